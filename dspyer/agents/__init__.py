"""Agents as graphs: a predictor, its tools and its conversation are nodes and fields like any other."""

from __future__ import annotations

from dspyer.agents.arrivals import wait_for_posts
from dspyer.agents.compact import Compact
from dspyer.agents.loop import modes, tool_loop
from dspyer.agents.tool_node import Approval
from dspyer.agents.tools import Mode, ask_user, tool

__all__ = ["Approval", "Compact", "Mode", "ask_user", "modes", "tool", "tool_loop", "wait_for_posts"]
