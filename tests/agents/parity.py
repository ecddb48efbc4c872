"""Runs a script with `dspy.ReActV2` and with `agents.tool_loop`, and says what was sent and what came back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from unittest import mock

import dspy
import pytest
from pydantic_core import to_jsonable_python

from dspyer import CompiledGraph, agents
from dspyer.errors import short_error
from tests.agents.recording import RecordingLM
from tests.agents.scripts import GARBLED, AgentScript

ADAPTERS: dict[str, Callable[[], dspy.Adapter]] = {
    "chat": dspy.ChatAdapter,
    "chat, native": lambda: dspy.ChatAdapter(use_native_function_calling=True, parallel_tool_calls=True),
    "json": lambda: dspy.JSONAdapter(use_native_function_calling=False),
    "json, native": dspy.JSONAdapter,
}
adapters = pytest.mark.parametrize("adapter", ADAPTERS)


class Talk(NamedTuple):
    """What was sent for a script, request by request, and how each run ended: its outputs, or None."""

    requests: list[str]
    outcomes: list[Any]


def recording(script: AgentScript, adapter: str) -> RecordingLM:
    """The LM of a script. Adapters that fall back to JSON ask again after a response that does not parse."""
    asked = 2 if adapter.startswith("chat") else 1
    return RecordingLM([each for answer in script.answers for each in [answer] * (asked if answer == GARBLED else 1)])


def with_react(script: AgentScript, adapter: str, mode: str) -> Talk:
    """What `ReActV2` does, each run with the history of those before it."""
    lm = recording(script, adapter)
    agent = react_of(script)
    history = None
    outcomes: list[Any] = []
    with dspy.context(lm=lm, adapter=ADAPTERS[adapter]()), mock.patch(FORMATTER, one_line):
        for inputs in script.runs:
            try:
                found = call(agent, mode, history=history, **inputs)
            except Exception:  # noqa: BLE001 - the loop is compared, whatever it was
                outcomes.append(None)
                break
            history = found.history
            outcomes.append({name: found[name] for name in agent.signature.output_fields})
    lm.assert_used()
    return Talk([without_ids(as_the_loop(request), script) for request in lm.requests], plain(outcomes))


def with_loop(script: AgentScript, adapter: str, mode: str) -> Talk:
    """What the loop does, each run on one thread."""
    lm = recording(script, adapter)
    thread = program_of(script).thread(f"{adapter} {mode}")
    names = dspy.ensure_signature(script.signature).output_fields
    outcomes: list[Any] = []
    with dspy.context(lm=lm, adapter=ADAPTERS[adapter]()):
        for inputs in script.runs:
            run = thread.run(inputs) if mode == "sync" else asyncio.run(thread.arun(inputs))
            outcomes.append(None if run.error else {name: run.state.to_dict()[name] for name in names})
            if run.error is not None:
                break
    lm.assert_used()
    return Talk([without_ids(request, script) for request in lm.requests], plain(outcomes))


PROGRAMS: dict[str, CompiledGraph] = {}
AGENTS: dict[str, dspy.ReActV2] = {}


def react_of(script: AgentScript) -> dspy.ReActV2:
    """The `ReActV2` of a script, made once."""
    if script.name not in AGENTS:
        AGENTS[script.name] = dspy.ReActV2(script.signature, list(script.tools), max_iters=script.max_turns)
    return AGENTS[script.name]


def program_of(script: AgentScript) -> CompiledGraph:
    """The loop of a script, compiled once."""
    if script.name not in PROGRAMS:
        graph = agents.tool_loop(script.signature, tools=list(script.tools), max_turns=script.max_turns)
        PROGRAMS[script.name] = graph.compile(store=":memory:")
    return PROGRAMS[script.name]


def call(program: Any, mode: str, /, **inputs: Any) -> Any:
    return program(**inputs) if mode == "sync" else asyncio.run(awaited(program.acall(**inputs)))


async def awaited(coroutine: Awaitable[Any]) -> Any:
    return await coroutine


def plain(value: Any) -> Any:
    return to_jsonable_python(value)


# --- documented differences: an error is shown in one line, not as stack frames; ids are unique over all runs

FORMATTER = "dspy.predict.react_v2.format_error_for_lm"
SHOWN = re.compile(r"Execution error in (\w+): <error>(.*?)</error>")


def one_line(error: BaseException, *, traceback_frames: int = 0) -> str:
    """A wrong argument is named by the loop, with those that there are."""
    text = str(error)
    if found := re.search(r"missing 1 required positional argument: '(\w+)'", text):
        error = ValueError(f"the argument {found[1]!r} is missing. The arguments are {found[1]!r}")
    if re.search(r"Arg \w+ is not in the tool's args", text):
        error = ValueError("the argument 'city' is missing; there is no argument 'town'. The arguments are 'city'")
    return f"<error>{short_error(error, step='STEP')}</error>"


def as_the_loop(request: str) -> str:
    """A request of `ReActV2` with the loop's error texts."""
    return SHOWN.sub(lambda found: found[2].replace("step: STEP", f"step: {found[1]}", 1), request)


def without_ids(request: str, script: AgentScript) -> str:
    """A request in which the ids of a second run do not differ: `ReActV2` gives `call_0_0` once more."""
    return re.sub(r"call_\d+_(\d+)", r"call_#_\1", request) if len(script.runs) > 1 else request
