"""Agents whose model follows a script: what a turn answers, and what came of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from dspyer import CompiledGraph, Run, agents
from dspyer.testing import ScriptedLM

modes = pytest.mark.parametrize("mode", ["sync", "async"])


def turn(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """An answer that calls tools."""
    return {"next_thought": "so", "tool_calls": {"tool_calls": [{"name": name, "args": args} for name, args in calls]}}


SUBMIT = turn(("submit", {"answer": "done"}))


def agent(*tools: Any, store: Any = None, answers: Any = None, **options: Any) -> CompiledGraph:
    compiled = {name: value for name, value in {"store": store, "answers": answers}.items() if value is not None}
    return agents.tool_loop("question -> answer", list(tools), **options).compile(**compiled)


def run_turn(program: CompiledGraph, *calls: tuple[str, dict[str, Any]], mode: str = "sync", **options: Any) -> Run:
    """A run whose first turn makes these calls and whose second submits."""
    with ScriptedLM([turn(*calls), SUBMIT]):
        return start(program, mode, **options)


def run_one(program: CompiledGraph, *calls: tuple[str, dict[str, Any]], mode: str = "sync") -> Run:
    """A run of one turn, which is the last one."""
    with ScriptedLM([turn(*calls)]):
        return start(program, mode)


def start(target: Any, mode: str = "sync", **options: Any) -> Run:
    """A run of a program or a thread."""
    inputs = {"question": "Why?"}
    run: Run = target.run(inputs, **options) if mode == "sync" else asyncio.run(target.arun(inputs, **options))
    return run


def results(run: Run) -> list[tuple[str, Any, bool]]:
    """The results of the tools: name, value, error; without that of `submit`."""
    found: Iterable[Any] = [message for message in run.state["messages"] if message["role"] == "tool"]
    shown = sorted(found, key=lambda message: message["tool_call_id"])
    return [(one["name"], one["value"], one["error"]) for one in shown if one["name"] != "submit"]
