"""Tokens of agents: `next_thought`, and the arguments of `submit` as the output fields of the agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, agents
from dspyer.events import Token
from dspyer.testing import ScriptedLM
from tests.agents.parity import ADAPTERS
from tests.rows import each

modes = pytest.mark.parametrize("how", ["sync", "async"])
adapters = pytest.mark.parametrize("adapter", ADAPTERS)

REPORT = 'Two lines:\n"tides" turn at 9:40,\nsays \\ the harbour \U0001f30a.'


def look_up(topic: str) -> str:
    """Looks up a topic."""
    return f"all about {topic}"


def turn(*calls: tuple[str, dict[str, Any]], thought: str) -> dict[str, Any]:
    return {
        "next_thought": thought,
        "tool_calls": {"tool_calls": [{"name": name, "args": args} for name, args in calls]},
    }


SCRIPT = [
    turn(("look_up", {"topic": "tides"}), thought="I have to look it up"),
    turn(("look_up", {"topic": "moons"}), ("submit", {"report": REPORT, "pages": [1, 2]}), thought="Now I know"),
]


def streamed(program: Any, how: str, **inputs: Any) -> tuple[list[Any], Any]:
    async def collect() -> tuple[list[Any], Any]:
        stream = program.astream(inputs, tokens=True)
        return [event async for event in stream], stream.run

    if how == "async":
        return asyncio.run(collect())
    stream = program.stream(inputs, tokens=True)
    return list(stream), stream.run


HALF = "\ud83c"  # the first half of a surrogate pair


@each(
    ("adapter", "text", "how"),
    [
        (adapter, text, ("sync", "async")[(at + number) % 2])
        for at, adapter in enumerate(ADAPTERS)
        for number, text in enumerate((f"cut {HALF}", f"{HALF}\udf0a", f"{HALF} and"))
    ],
)
def test_half_of_a_surrogate_pair_in_a_response_is_repaired_in_the_stream(adapter: str, how: str, text: str) -> None:
    """A reader of JSON refuses such a text, and the halves may be in two chunks."""
    program = agents.tool_loop("question -> report", [look_up]).compile()
    script = [turn(("look_up", {"topic": text}), thought=""), turn(("submit", {"report": text}), thought="")]
    with dspy.context(adapter=ADAPTERS[adapter]()), ScriptedLM(script):
        events, run = streamed(program, how, question="?")
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert (run.status, run.state["report"]) == ("completed", whole)
    assert by_place(events)["react", 2, "report"] == whole


def by_place(events: list[Any]) -> dict[tuple[str, int, str], str]:
    found: dict[tuple[str, int, str], str] = {}
    for one in events:
        if isinstance(one, Token):
            place = (one.node, one.visit, one.field)
            found[place] = found.get(place, "") + one.text
    return found


def pieces(events: list[Any], field: str) -> list[Token]:
    return [event for event in events if isinstance(event, Token) and event.field == field]


@modes
@adapters
def test_the_arguments_of_submit_are_tokens_of_the_output_fields(adapter: str, how: str) -> None:
    program = agents.tool_loop("task -> report, pages: list[int]", [look_up]).compile()
    with ScriptedLM(SCRIPT), dspy.context(adapter=ADAPTERS[adapter]()):
        events, run = streamed(program, how, task="Tell about the tides.")

    assert run.status == "completed", run.error
    found = by_place(events)
    assert found.pop(("react", 2, "report")) == run.state["report"] == REPORT
    assert json.loads(found.pop(("react", 2, "pages"))) == [1, 2]
    # Texts that other tools are given; there are two calls of one tool, in two turns.
    assert [found.pop(("react", visit, "look_up.topic")) for visit in (1, 2)] == ["tides", "moons"]
    thoughts = {visit: message["content"] for visit, message in enumerate(_turns(run), 1)}
    assert found == {("react", visit, "next_thought"): text for visit, text in thoughts.items() if text}
    assert len(pieces(events, "report")) > 5
    assert [one.done for one in pieces(events, "report")].count(True) == 1
    assert {one.predictor for one in pieces(events, "report")} == {"react"}
    kinds = [(type(event).__name__, getattr(event, "field", "")) for event in events]
    assert kinds.index(("Token", "report")) < len(kinds) - 4, "the report was streamed before it was committed"


def _turns(run: Any) -> list[Mapping[str, Any]]:
    return [message for message in run.state["messages"] if message["role"] == "assistant"]


def write(path: str, text: str, mode: int = 0) -> str:
    """Writes a file."""
    return f"{len(text)} characters"


@modes
@adapters
def test_the_texts_of_all_calls_of_a_turn_are_tokens_one_call_after_the_other(adapter: str, how: str) -> None:
    calls = [("a.md", REPORT), ("b.md", ""), ("b.md", "[[ ## end ## ]]")]
    made = [("write", {"path": path, "mode": 7, "text": text}) for path, text in calls]
    script = [
        turn(*made, ("no_tool", {"why": "none"}), thought="now"),
        turn(("submit", {"report": "done"}), thought=""),
    ]
    program = agents.tool_loop("task -> report", [write]).compile()
    with ScriptedLM(script), dspy.context(adapter=ADAPTERS[adapter]()):
        events, run = streamed(program, how, task="Write.")
    assert run.status == "completed", run.error
    whole: list[tuple[str, str]] = []
    begun = ""
    for one in events:
        if isinstance(one, Token) and "." in one.field:
            begun += one.text
            if one.done:
                whole.append((one.field, begun))
                begun = ""
    expected = [pair for path, text in calls for pair in (("write.path", path), ("write.text", text))]
    assert whole == [*expected, ("no_tool.why", "none")]
    assert len(pieces(events, "write.text")) > 10


@modes
@each("redact", [["messages"], ["messages.*.tool_calls"], lambda path, value: "x" if path[0] == "messages" else value])
def test_arguments_are_hidden_with_the_conversation(redact: Any, how: str) -> None:
    program = agents.tool_loop("task -> report", [look_up]).compile(redact=redact)
    with ScriptedLM(SCRIPT):
        events, run = streamed(program, how, task="Tell about the tides.")
    assert run.status == "completed", run.error
    shown = [(one.text, one.done) for one in events if isinstance(one, Token) and one.field.endswith(".topic")]
    assert shown == [("x" if callable(redact) else "[redacted]", True)] * 2
    assert "tides" not in "".join(one.text for one in events if isinstance(one, Token) and "." in one.field)


@modes
def test_an_output_that_is_redacted_is_one_redacted_token(how: str) -> None:
    program = agents.tool_loop("task -> report, pages: list[int]", [look_up]).compile(redact=["report"])
    with ScriptedLM(SCRIPT):
        events, run = streamed(program, how, task="Tell about the tides.")
    assert run.status == "completed", run.error
    assert [(one.text, one.done) for one in pieces(events, "report")] == [("[redacted]", True)]
    assert len(pieces(events, "next_thought")) > 5


@modes
def test_react_v2_as_a_node_streams_the_same_fields(how: str) -> None:
    graph = Graph(inputs=["task"]).add_node("agent", dspy.ReActV2("task -> report, pages: list[int]", [look_up]))
    with ScriptedLM(SCRIPT):
        events, run = streamed(graph.add_path(START, "agent", END).compile(), how, task="Tell about the tides.")
    assert run.status == "completed", run.error
    assert "".join(one.text for one in pieces(events, "report")) == REPORT
    assert {one.predictor for one in pieces(events, "report")} == {"agent.react"}


@modes
def test_agents_in_parallel_branches_have_tokens_of_their_own(how: str) -> None:
    graph = Graph(name="Team", inputs=["task"])
    for name in ("north", "south"):
        graph.add_node(name, agents.tool_loop("task -> report", [look_up]), writes={"report": name})
        graph.add_edge(START, name).add_edge(name, END)

    def answer(call: Any) -> dict[str, Any]:
        return turn(("submit", {"report": "the report"}), thought="at once")

    with ScriptedLM(answer):
        events, run = streamed(graph.compile(), how, task="Tell.")
    assert run.status == "completed", run.error
    scopes = {commit.node: (commit.id,) for commit in run.commits if commit.node in ("north", "south")}
    for name in ("north", "south"):
        own = [one for one in pieces(events, "report") if one.scope == scopes[name]]
        assert "".join(one.text for one in own) == run.state[name] == "the report"
        assert {one.node for one in own} == {"react"}


def test_a_turn_that_answers_in_another_format_is_read_as_without_tokens() -> None:
    """The chat adapter falls back to JSON, as long as no token was shown."""
    program = agents.tool_loop("task -> report", [look_up]).compile()
    with ScriptedLM(["no form that an adapter knows", turn(("submit", {"report": "found"}), thought="now")]) as lm:
        events, run = streamed(program, "sync", task="Tell.")
    assert run.status == "completed", run.error
    assert by_place(events) == {("react", 1, "next_thought"): "now", ("react", 1, "report"): "found"}
    assert len(lm.calls) == 2


@modes
def test_sub_agents_that_run_at_once_have_tokens_of_their_own(how: str) -> None:
    reader = agents.tool_loop("topic -> findings", [look_up], name="Reader").compile()
    tool = agents.tool(reader, name="research", desc="Reads about one topic.")
    lead = agents.tool_loop("task -> report", [tool], name="Lead").compile()

    def answer(call: Any) -> dict[str, Any]:
        topic = call.inputs.get("topic")
        if topic is not None:
            return turn(("submit", {"findings": f"{topic} it is"}), thought=f"thinking of {topic}")
        if "topic" not in call.inputs and "tool_call_results" in call.inputs:
            return turn(("submit", {"report": "both"}), thought="done")
        return turn(*[("research", {"topic": topic}) for topic in ("tides", "moons")], thought="look again")

    with ScriptedLM(answer):
        events, run = streamed(lead, how, task="Tell.")
    assert run.status == "completed", run.error
    started = {event.execution: event.node for event in events if type(event).__name__ == "NodeStarted"}
    found: dict[tuple[Any, ...], str] = {}
    for one in events:
        if isinstance(one, Token):
            place = (*[started[execution] for execution in one.scope], one.scope, one.node, one.field)
            found[place] = found.get(place, "") + one.text
    assert found.pop(((), "react", "research.topic")) == "tidesmoons"
    inner = {place: text for place, text in found.items() if place[0] == "research"}
    assert sorted(inner.values()) == ["moons it is", "thinking of moons", "thinking of tides", "tides it is"]
    assert {place[2:] for place in inner} == {("react", "next_thought"), ("react", "findings")}
    assert len({place[1] for place in inner}) == 2
    assert found[((), "react", "report")] == "both"
