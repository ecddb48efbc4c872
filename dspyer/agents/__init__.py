"""Agents as graphs: a predictor, its tools and its conversation are nodes and fields like any other."""

from __future__ import annotations

from dspyer.agents.loop import tool_loop

__all__ = ["tool_loop"]
