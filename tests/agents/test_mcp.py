"""Tools of an MCP server (rule 9 of agents): a real one in a process of its own, and a session that is like one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import dspy
import mcp
import pytest

from dspyer import Run, agents
from dspyer.testing import ScriptedLM
from tests.agents.kit import SUBMIT, agent, results, start, turn

CALLS = (
    ("low_tide", {"place": "Hook"}),
    ("low_tide", {"place": "Atlantis"}),
    ("low_tide", {"place": "Rome", "day": 2}),
)


@asynccontextmanager
async def tools_of_a_server() -> AsyncIterator[dict[str, dspy.Tool]]:
    """The tools of the server in `mcp_server.py`, by name, as long as its process runs."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = str(Path(__file__).with_name("mcp_server.py"))
    parameters = mcp.StdioServerParameters(command=sys.executable, args=[server], env=env)
    async with mcp.stdio_client(parameters) as streams, mcp.ClientSession(*streams) as session:
        await session.initialize()
        listed = await session.list_tools()
        yield {tool.name: dspy.Tool.from_mcp_tool(session, tool) for tool in listed.tools}


def check_tides(run: Run) -> None:
    found = results(run)
    assert found[0] == ("low_tide", "Hook, day 1: 6:10", False)
    assert found[1][2]
    assert found[1][1].startswith("step: low_tide; error: RuntimeError: Failed to call a MCP tool")
    assert "\n" not in found[1][1]
    assert found[2] == ("low_tide", "Rome, day 2: 6:10", False)


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def whole() -> None:
        asyncio.run(test())

    return whole


@pytest.mark.slow("a Python process that imports the MCP SDK: the transport is the SDK's own")
@in_a_loop
async def test_a_server_in_a_process_of_its_own() -> None:
    """Name, description and arguments are the server's; its errors become results; options are those of any tool."""
    async with tools_of_a_server() as tools:
        tide = agents.tool(tools["low_tide"])
        assert (tide.name, tide.tool.desc) == ("low_tide", "Says when the tide is low.")
        assert list(tide.tool.args or {}) == ["place", "day"]
        program = agent(*tools.values())
        with dspy.context(lm=ScriptedLM([turn(*CALLS, ("process", {})), SUBMIT])):
            run = await program.arun({"question": "?"})
        check_tides(run)
        assert int(results(run)[3][1]) != os.getpid()
        guarded = agents.tool(tools["low_tide"], name="tide", approve=True, effect=True, retry=2, timeout=20)
        thread = agent(guarded, store=":memory:").thread("t")
        with dspy.context(lm=ScriptedLM([turn(("tide", {"place": "Hook"})), SUBMIT])):
            run = await thread.arun({"question": "?"})
            assert [one.text for one in run.questions] == ["tide(place='Hook')?"]
            run = await thread.aresume({"tide": {"ok": True, "args": {"place": "Rome"}}})
        assert results(run) == [("tide", "Rome, day 1: 6:10", False)]

        program = agent(tools["low_tide"])  # a sync run in a worker thread uses the session of the loop
        with dspy.context(lm=ScriptedLM([turn(*CALLS), SUBMIT])):
            check_tides(await anyio.to_thread.run_sync(partial(program.run, {"question": "?"})))


class Session:
    """What `dspy.Tool.from_mcp_tool` makes of a session: an async function that takes any arguments."""

    def __init__(self) -> None:
        self.loops: set[int] = set()

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        self.loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        if arguments["place"] == "Atlantis":
            raise RuntimeError("Failed to call a MCP tool: no such place")
        return f"{arguments['place']}, day {arguments.get('day', 1)}: 6:10"

    def tool(self) -> dspy.Tool:
        async def func(*args: Any, **kwargs: Any) -> str:
            return await self.call_tool("low_tide", arguments=kwargs)

        args = {"place": {"type": "string"}, "day": {"type": "integer", "default": 1}}
        return dspy.Tool(func, name="low_tide", desc="Says when.", args=args, arg_types={"place": str, "day": int})


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_tool_whose_function_takes_any_arguments(mode: str) -> None:
    session = Session()
    program = agent(session.tool())
    with dspy.context(lm=ScriptedLM([turn(*CALLS), SUBMIT])):
        check_tides(start(program, mode))
    assert len(session.loops) == 1
