"""Programs as tools: arguments, results, own state, questions, sessions, parameters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict

from dspyer import END, START, CompiledGraph, Context, Graph, Run, agents, reducers
from dspyer.errors import GraphError
from dspyer.testing import ScriptedLM
from tests.budget import deep
from tests.log.failing import Crash, FailingMemory, crash
from tests.rows import each

MODES = pytest.mark.parametrize("mode", ["sync", "async"])


def turn(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"next_thought": "", "tool_calls": {"tool_calls": [{"name": name, "args": args} for name, args in calls]}}


def submit(**outputs: Any) -> dict[str, Any]:
    return turn(("submit", outputs))


def search(query: str) -> str:
    """Searches."""
    return f"<{query}>"


def reader(*tools: Callable[..., Any], **options: Any) -> Graph:
    return agents.tool_loop("topic -> findings: list[str]", tools or [search], name="Reader", **options)


def lead_of(*tools: Any, store: Any = None, **options: Any) -> CompiledGraph:
    return agents.tool_loop("task -> report", tools, name="Lead", **options).compile(store=store)


def read(graph: Any = None, **options: Any) -> Any:
    return agents.tool(graph or reader(), desc="Reads about a topic.", **options)


def run_of(target: Any, mode: str, inputs: dict[str, Any]) -> Run:
    run: Run = target.run(inputs) if mode == "sync" else asyncio.run(target.arun(inputs))
    return run


def resumed(thread: Any, mode: str, *args: Any) -> Run:
    run: Run = thread.resume(*args) if mode == "sync" else asyncio.run(thread.aresume(*args))
    return run


def results(run: Run) -> list[Any]:
    """The results of tools in the conversation of the caller, but for those of `submit`."""
    return [each["value"] for each in run.state["messages"] if each["role"] == "tool" and each["name"] != "submit"]


def shown(lm: ScriptedLM, *names: str) -> list[Any]:
    return [tuple(call.prompt.inputs.get(name) for name in names) for call in lm.calls]


@MODES
def test_a_program_as_a_tool_takes_its_inputs_and_gives_its_outputs(mode: str) -> None:
    program = lead_of(read(), store=":memory:")
    assert dict(program.named_predictors()) == {"react": program.react, "reader.react": program.reader.react}
    tool = read().tool
    assert list(tool.args) == ["topic", "session"]
    script = [
        turn(("reader", {"topic": "bees"}), ("reader", {"topic": "ants"})),
        submit(findings=["sting"]),
        submit(findings=["march"]),
        submit(report="done"),
    ]
    with ScriptedLM(script):
        run = run_of(program.thread("t"), mode, {"task": "insects"})
    run.raise_error()
    assert run.state["report"] == "done"
    assert sorted(results(run)) == [["march"], ["sting"]]
    assert "findings" not in run.state  # it has a state of its own
    assert [step[0] for step in run.trace].count(program.reader.react) == 2
    sent = [commit for commit in run.commits if commit.node == "reader"]
    assert len({event.scope for event in run.events if event.scope}) == len(sent) == 2


@MODES
def test_a_single_output_is_the_result_and_several_are_a_dict(mode: str) -> None:
    one = Graph(inputs=["n"], name="One").add_node("add", lambda n: {"more": n + 1}, writes=["more"])
    two = Graph(inputs=["n"], name="TwoWays").add_node("both", lambda n: {"a": n, "b": -n}, writes=["a", "b"])
    tools = [
        agents.tool(one.add_path(START, "add", END), desc="+"),
        agents.tool(two.add_path(START, "both", END), desc="-"),
    ]
    script = [turn(("one", {"n": 1}), ("two_ways", {"n": 2})), submit(report="done")]
    with ScriptedLM(script):
        run = run_of(lead_of(*tools), mode, {"task": "add"})
    assert results(run) == [2, {"a": 2, "b": -2}]
    assert "sessions" not in run.state


class Team(BaseModel):
    style: str = "brief"
    findings: Annotated[list[str], reducers.extend] = []
    last: str = ""


@MODES
def test_reads_and_writes_map_fields_of_the_caller(mode: str) -> None:
    def look(topic: str, how: str) -> dict[str, Any]:
        return {"findings": [f"{topic}, {how}"], "last": topic}

    class Looked(BaseModel):
        topic: str
        how: str
        findings: Annotated[list[str], reducers.extend] = []
        last: str = ""

    inner = Graph(Looked, inputs=["topic", "how"], name="Look").add_node("look", look).add_path(START, "look", END)
    tool = agents.tool(inner, desc="Looks.", reads={"how": "style"}, writes={"findings": "findings", "last": "last"})
    assert list(tool.tool.args) == ["topic"]
    script = [turn(("look", {"topic": "a"})), turn(("look", {"topic": "b"})), submit(report="done")]
    with ScriptedLM(script):
        run = run_of(lead_of(tool, schema=Team), mode, {"task": "t"})
    run.raise_error()
    assert run.state["findings"] == ["a, brief", "b, brief"]
    assert run.state["last"] == "b"
    assert results(run)[0] == {"findings": ["a, brief"], "last": "a"}
    assert run.blame("last").node == "look"


def test_without_writes_nothing_but_the_result_comes_back() -> None:
    inner = Graph(inputs=["topic"], name="Look").add_node("look", lambda topic: {"last": topic}, writes=["last"])
    tool = agents.tool(inner.add_path(START, "look", END), desc="Looks.")
    with ScriptedLM([turn(("look", {"topic": "a"})), submit(report="done")]):
        run = lead_of(tool, schema=Team).run({"task": "t"})
    assert (run.state["last"], results(run)) == ("", ["a"])


@MODES
def test_an_error_inside_is_the_result_of_the_call(mode: str) -> None:
    def fails(topic: str) -> None:
        raise ValueError("no such topic")

    inner = Graph(inputs=["topic"], name="Look").add_node("look", fails, writes=[]).add_path(START, "look", END)
    with ScriptedLM([turn(("look", {"topic": "a"})), submit(report="done")]):
        run = run_of(lead_of(agents.tool(inner, desc="Looks.")), mode, {"task": "t"})
    (result,) = results(run)
    assert "ValueError: no such topic" in result
    assert run.status == "completed"


# --- questions


def asks(query: str, ctx: Context) -> str:
    """Searches if it may."""
    return search(query) if ctx.interrupt("may", f"Search {query}?") else "not allowed"


@MODES
def test_questions_of_parallel_sub_agents_come_together_and_nothing_is_called_twice(mode: str) -> None:
    program = lead_of(read(reader(asks)), store=":memory:")
    thread = program.thread("t")
    script = {
        "insects": turn(("reader", {"topic": "bees"}), ("reader", {"topic": "ants"})),
        "bees": turn(("asks", {"query": "bees"})),
        "ants": turn(("asks", {"query": "ants"})),
    }
    with ScriptedLM(lambda prompt: script[str(prompt.inputs.get("topic") or prompt.inputs["task"])]) as lm:
        run = run_of(thread, mode, {"task": "insects"})
    assert len(lm.calls) == 3
    assert sorted(question.text for question in run.questions) == ["Search ants?", "Search bees?"]
    ids = {question.text: question.id for question in run.questions}
    with ScriptedLM([submit(findings=["b"])]) as lm:
        run = resumed(thread, mode, {ids["Search bees?"]: True})
    assert len(lm.calls) == 1
    assert [question.text for question in run.questions] == ["Search ants?"]
    with ScriptedLM([submit(findings=["a"]), submit(report="done")]) as lm:
        run = resumed(thread, mode, {ids["Search ants?"]: False})
    assert len(lm.calls) == 2
    assert results(run) == [["b"], ["a"]]
    inside = [
        each["value"]
        for chat in run.state["sessions"].values()
        for each in chat
        if each.get("name") == "asks" and each["role"] == "tool"
    ]
    assert inside == ["<bees>", "not allowed"]


# --- sessions


def topics(lm: ScriptedLM) -> list[tuple[Any, ...]]:
    """Of each call of the reader: its topic, and how many turns of its conversation it was shown."""
    calls = [call for call in lm.calls if call.prompt.inputs.get("topic") is not None]
    return [(call.prompt.inputs["topic"], len(call.prompt.demos)) for call in calls]


@MODES
def test_a_known_session_is_resumed_and_no_name_starts_a_new_one(mode: str) -> None:
    program = lead_of(read(), store=":memory:")
    thread = program.thread("t")
    script = [
        turn(("reader", {"topic": "bees", "session": "s"})),
        submit(findings=["1"]),
        turn(("reader", {"topic": "more of s", "session": "s"}), ("reader", {"topic": "apart"})),
        {"next_thought": "", "tool_calls": {"tool_calls": [{"name": "submit", "args": {"findings": ["2"]}}]}},
        submit(findings=["3"]),
        submit(report="done"),
    ]
    with ScriptedLM(script) as lm:
        run = run_of(thread, mode, {"task": "insects"})
    run.raise_error()
    assert sorted(topics(lm)) == [("apart", 0), ("bees", 0), ("more of s", 1)]
    chats = run.state["sessions"]
    assert set(chats) == {"reader/s", "reader/call_1_1"}
    assert [each["turn"]["topic"] for each in chats["reader/s"] if each["role"] == "user"] == ["bees", "more of s"]
    added = [commit.patch["sessions"] for commit in run.commits if commit.node == "reader"]
    assert [len(chat) for update in added for chat in update.values()] == [3, 3, 3]  # only what is new
    with ScriptedLM(
        [turn(("reader", {"topic": "again", "session": "s"})), submit(findings=["4"]), submit(report="b")]
    ) as lm:
        run = run_of(thread, mode, {"task": "next run"})
    assert topics(lm) == [("again", 2)]
    assert len(run.state["sessions"]["reader/s"]) == 9


@MODES
def test_two_calls_of_one_turn_with_one_session_the_second_is_refused(mode: str) -> None:
    program = lead_of(read(), read(name="critic"))
    script = [
        turn(
            ("reader", {"topic": "bees", "session": "s"}),
            ("critic", {"topic": "bees", "session": "s"}),
            ("reader", {"topic": "ants", "session": "s"}),
            ("reader", {"topic": "wasps", "session": "other"}),
        ),
        *[submit(findings=["x"])] * 3,
        submit(report="done"),
    ]
    with ScriptedLM(script) as lm:
        run = run_of(program, mode, {"task": "insects"})
    assert sorted(topics(lm)) == [("bees", 0), ("bees", 0), ("wasps", 0)]
    assert set(run.state["sessions"]) == {"reader/s", "critic/s", "reader/other"}
    found = results(run)
    assert "the session 's' is used by another call of this turn" in found[2]
    assert (found[0], found[1], found[3]) == (["x"], ["x"], ["x"])


@MODES
def test_no_call_gets_the_session_of_another_one_by_its_default_name(mode: str) -> None:
    """A model may give a session the name that another call would have without one."""
    program = lead_of(read(), store=":memory:")
    script = [
        turn(
            ("reader", {"topic": "bees", "session": "call_0_1"}),
            ("reader", {"topic": "ants"}),
            ("reader", {"topic": "wasps", "session": "call_1_0"}),
        ),
        *[submit(findings=[topic]) for topic in ("1", "2", "3")],
        turn(("reader", {"topic": "flies"})),
        submit(findings=["4"]),
        submit(report="done"),
    ]
    with ScriptedLM(script):
        run = run_of(program.thread("t"), mode, {"task": "insects"})
    chats = {
        name: [one["content"] for one in chat if one["role"] == "user"] for name, chat in run.state["sessions"].items()
    }
    assert chats == {
        "reader/call_0_1": ["bees"],
        "reader/call_0_1_2": ["ants"],
        "reader/call_1_0": ["wasps"],
        "reader/call_1_0_2": ["flies"],
    }


def test_a_person_who_edits_a_call_gives_it_no_session_of_another_one() -> None:
    program = lead_of(read(approve=True), store=":memory:")
    calls = ("reader", {"topic": "bees", "session": "a"}), ("reader", {"topic": "ants", "session": "b"})
    thread = program.thread("t")
    with ScriptedLM([turn(*calls)]):
        first, second = thread.run({"task": "insects"}).questions
    edited = agents.Approval(True, args={"topic": "bees", "session": "b"})
    with ScriptedLM([submit(findings=["1"]), submit(report="done")]):
        run = thread.resume({first.id: edited, second.id: True})
    assert set(run.state["sessions"]) == {"reader/b"}
    assert "the session 'b' is used by another call of this turn" in results(run)[0]


def test_a_sub_agent_that_fails_leaves_its_session_as_it_was() -> None:
    program = lead_of(read(reader(max_turns=0)))
    script = [turn(("reader", {"topic": "bees", "session": "s"})), turn(), submit(report="done")]
    with ScriptedLM(script):
        run = program.run({"task": "insects"})
    run.raise_error()
    assert run.state["sessions"] == {}
    assert "AgentError" in results(run)[0]


def test_sub_agents_of_sub_agents_have_sessions_of_their_own() -> None:
    middle = agents.tool_loop("topic -> text", [read()], name="Middle")
    program = lead_of(agents.tool(middle, desc="Asks the reader."))
    script = [
        turn(("middle", {"topic": "bees", "session": "m"})),
        turn(("reader", {"topic": "stings", "session": "r"})),
        submit(findings=["ouch"]),
        submit(text="ouch"),
        submit(report="done"),
    ]
    with ScriptedLM(script):
        run = program.run({"task": "insects"})
    assert set(run.state["sessions"]) == {"middle/m"}
    assert [name for name, _ in program.named_predictors()] == ["react", "middle.react", "middle.reader.react"]


def test_a_session_of_an_agent_with_modes_continues_in_its_mode() -> None:
    modes = {"plan": agents.Mode("Plan.", to=["work"]), "work": agents.Mode("Work.")}
    program = lead_of(agents.tool(agents.modes("topic -> text", modes, name="Worker"), desc="Works."))
    script = [
        turn(("worker", {"topic": "bees", "session": "s"})),
        turn(("to_work", {})),
        submit(text="a"),
        turn(("worker", {"topic": "ants", "session": "s"}), ("worker", {"topic": "wasps"})),
        submit(text="b"),
        submit(text="c"),
        submit(report="done"),
    ]
    with ScriptedLM(script):
        run = program.run({"task": "insects"})
    run.raise_error()
    turns = [[each["name"] for each in chat if each["role"] == "assistant"] for chat in run.state["sessions"].values()]
    assert sorted(turns) == [["plan"], ["plan", "work", "work"]]


# --- crashes


CRASHED = {
    ("insects", 0): turn(("reader", {"topic": "bees", "session": "s"}), ("reader", {"topic": "ants", "session": "t"})),
    ("insects", 1): turn(("reader", {"topic": "more", "session": "s"})),
    ("insects", 2): submit(report="done"),
}


def respond(prompt: Any) -> dict[str, Any]:
    topic = prompt.inputs.get("topic")
    return CRASHED["insects", len(prompt.demos)] if topic is None else submit(findings=[str(topic)])


@pytest.mark.parametrize(("mode", "at", "after"), [("sync", 1, False), ("async", 3, True)])
def test_a_crash_at_any_write_repeats_no_lm_call_that_was_committed(mode: str, at: int, after: bool) -> None:
    """In each mode at every fifth write, before it or after it; `test_kill.py` kills after each of them."""
    store = FailingMemory()
    first, second = lead_of(read(), store=store), lead_of(read(), store=store)
    with ScriptedLM(respond) as lm:
        run_of(first.thread("whole"), mode, {"task": "insects"}).raise_error()
    assert len(lm.calls) == 6
    for at in count(at, 2 if deep else 5):
        name = f"t{at}"
        store.arm(crash, at, after)
        with ScriptedLM(respond) as lm:
            try:
                run_of(first.thread(name), mode, {"task": "insects"})
            except Crash:
                store.rest()
            else:
                break
            thread = second.thread(name)
            if thread.status == "new":
                run_of(thread, mode, {"task": "insects"})
            elif thread.status != "completed":
                resumed(thread, mode)
        assert thread.state["report"] == "done"
        assert {key: len(chat) for key, chat in thread.state["sessions"].items()} == {"reader/s": 6, "reader/t": 3}
        assert len(lm.calls) <= 6 + 2  # at most those that were running
    assert at > 10


# --- what is wrong


class Client:
    """No model can give one."""


class Needs(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    call: Client


def needs() -> Graph:
    return Graph(Needs).add_node("look", lambda call: None, writes=[]).add_path(START, "look", END)


@each(
    ("make", "text"),
    [
        (lambda: read(effect=True), "tool 'reader': effect=True records a call"),
        (lambda: read(reads={"other": "style"}), "reads names 'other', no input of the graph"),
        (lambda: read(writes={"other": "findings"}), "'other' in writes"),
        (lambda: read(writes={"findings": "nowhere"}), "'nowhere'"),
    ],
)
def test_wrong_options_are_refused_with_their_fix(make: Any, text: str) -> None:
    with pytest.raises(GraphError, match=text):
        lead_of(make(), schema=Team)


def test_an_input_that_no_model_can_give_is_refused() -> None:
    with pytest.raises(
        GraphError, match=r"no model can give its input 'call' of type .*map a field of the agent to it"
    ):
        agents.tool(needs(), desc="x")


def test_a_program_without_a_description_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="tool 'reader' has no description"):
        lead_of(reader())
