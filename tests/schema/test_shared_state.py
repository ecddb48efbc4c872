"""One state for many agents: fields, reducers, permissions, log. The numbers are those of the project's list."""

from __future__ import annotations

import json
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import DELETE, END, START, Context, Graph, Replace, Run, Updates, errors, events, limit, reducers, view
from dspyer.testing import ScriptedLM


def longest(current: str, update: str) -> str:
    return max(current, update, key=len)


class Board(BaseModel):
    topic: str = "tides"
    status: Annotated[dict[str, str], reducers.replace] = {}
    findings: Annotated[list[str], reducers.append] = []
    sources: Annotated[dict[str, str], reducers.update] = {}
    calls: Annotated[int, reducers.increment] = 0
    title: Annotated[str, longest] = ""
    answer: str = ""


def solo(node: Any, inputs: dict[str, Any] | None = None, **options: Any) -> Run:
    graph = Graph(Board, inputs=list(Board.model_fields) if inputs else None)
    run = graph.add_node("node", node, **options).add_path(START, "node", END).compile().run(inputs or {})
    run.raise_error()
    return run


def test_one_update_of_many_fields_folds_each_with_its_own_reducer() -> None:
    """S000-1, S000-2, S000-3, S000-4, S000-5, S000-6, S000-7, S000-8, S000-9, S003-2, S003-9, S003-11, S004-1, S004-2,
    S004-3, S004-4, S004-25.
    """
    given = {"status": {"old": "x"}, "sources": {"a": "1"}, "answer": "none", "title": "Tides"}
    delta = {
        "status": {"phase": "done"},
        "findings": "springs",
        "sources": {"b": "2"},
        "calls": 2,
        "answer": "moon",
        "title": "T",
    }
    run = solo(lambda: delta, given, writes=list(delta))
    assert run.state.to_dict() == {
        "topic": "tides",
        "status": {"phase": "done"},
        "findings": ["springs"],
        "sources": {"a": "1", "b": "2"},
        "calls": 2,
        "title": "Tides",
        "answer": "moon",
    }
    assert set(run.commits[1].patch) == set(delta)


def test_a_state_reads_like_a_dict_and_copies_to_one() -> None:
    """S000-10, S000-11, S000-32, S003-1, S004-10."""
    run = solo(lambda topic: {"answer": topic})
    assert (run.state.get("answer"), run.state.get("nothing", "default")) == ("tides", "default")
    copy = run.state.to_dict()
    copy["findings"].append("mine")
    assert run.state["findings"] == []
    assert run.prediction.answer == "tides"


def found_state(stream: Any) -> Any:
    return stream.run.state


def test_each_update_is_an_immutable_event() -> None:
    """S000-14, S000-15, S000-31, S004-15, S004-16, S004-21: agent, version, delta, time, size; plain data."""

    class Sized(BaseModel):
        notes: Annotated[list[str], reducers.append, limit(kb=1)] = []

    graph = Graph(Sized).add_node("ann", lambda: {"notes": "a"}, writes=["notes"]).add_path(START, "ann", END)
    stream = graph.compile().stream({})
    found = list(stream)
    assert [type(event).__name__ for event in found] == [
        *("RunStarted", "Committed", "NodeStarted", "Committed", "RunEnded"),
    ]
    commit = next(event.commit for event in found[3:] if isinstance(event, events.Committed))
    assert (commit.node, commit.version, dict(commit.patch), dict(commit.sizes)) == (
        "ann",
        1,
        {"notes": "a"},
        {"notes": 5},
    )
    assert commit.started > 0
    with pytest.raises(AttributeError):
        commit.node = "bob"  # type: ignore[misc]
    with pytest.raises(errors.ImmutableError):
        found_state(stream)["notes"].append("b")
    assert json.loads(json.dumps([commit.node, commit.version, dict(commit.patch)])) == ["ann", 1, {"notes": "a"}]


def test_the_patches_of_a_log_rebuild_every_state() -> None:
    """S000-16, S000-17, S000-18, S000-19, S000-30, S004-14, S004-20: no second write of the full state."""

    def write(ctx: Context) -> dict[str, Any]:
        return {"findings": f"f{ctx.visit}", "calls": 1}

    graph = Graph(Board).add_node(write).add_edge(START, "write")
    graph.add_conditional_edges("write", lambda calls: END if calls > 2 else "write", ["write", END])
    thread = graph.compile(store=":memory:").thread("t")
    run = thread.run({})
    assert thread.replay() == thread.replay() == run.state
    assert [list(thread.at(version)["findings"]) for version in range(3)] == [[], ["f1"], ["f1", "f2"]]
    assert [(commit.node, dict(commit.patch)) for commit in thread.history()[1:]] == [
        ("write", {"findings": f"f{number}", "calls": 1}) for number in (1, 2, 3)
    ]
    assert thread.blame("findings").version == 3


def test_a_run_resumes_from_its_patches_after_a_crash() -> None:
    """S000-28, S004-28: a node that has finished does not run again."""
    calls: list[str] = []
    broken = {"second"}

    def work(ctx: Context) -> dict[str, Any]:
        calls.append(ctx.node)
        if ctx.node in broken:
            raise ConnectionError("gone")
        return {"findings": ctx.node}

    graph = Graph(Board).add_node("first", work).add_node("second", work).add_path(START, "first", "second", END)
    thread = graph.compile(store=":memory:").thread("t")
    assert thread.run({}).status == "failed"
    broken.clear()
    assert thread.resume().state["findings"] == ["first", "second"]
    assert calls == ["first", "second", "second"]


def test_a_channel_is_a_field_to_which_many_nodes_write() -> None:
    """S000-20, S000-21, S000-22, S000-24, S000-25, S000-26: send, receive all, receive new; no update is lost."""
    received: list[Any] = []

    def send(ctx: Context) -> None:
        ctx.post("findings", f"{ctx.node}: one")
        ctx.post("findings", f"{ctx.node}: two")

    def receive(everything: list[str], news: list[str], ctx: Context) -> dict[str, Any]:
        received.append((everything, news))
        everything.append("a copy")
        return {"findings": "heard"}

    graph = Graph(Board).add_node("ann", send, writes=["findings"]).add_node("bob", send, writes=["findings"])
    reads = {"everything": "findings", "news": view("findings").new()}
    graph.add_node("chair", receive, reads=reads, writes=["findings"])
    graph.add_edge(START, ["ann", "bob"]).add_edge(["ann", "bob"], "chair")
    graph.add_conditional_edges("chair", lambda ctx: "ann" if ctx.visit < 2 else END, ["ann", END])
    run = graph.compile().run({})
    run.raise_error()
    first = ["ann: one", "ann: two", "bob: one", "bob: two"]
    assert received[0] == ([*first, "a copy"], first)
    assert received[1] == ([*first, "heard", "ann: one", "ann: two", "a copy"], ["ann: one", "ann: two"])
    assert run.commits[1].patch["findings"] == Updates("ann: one", "ann: two")


def test_an_agent_is_a_node_with_instructions_a_model_and_permissions() -> None:
    """S000-33, S004-7, S004-8, S004-9, S004-11, S004-26, S004-27: the reviewer reads all and writes its own field."""
    prompts: list[dict[str, str]] = []

    def answer(prompt: Any) -> dict[str, str]:
        prompts.append(dict(prompt.inputs))
        return {field.name: f"{prompt.instructions} {len(prompts)}" for field in prompt.output_fields}

    finder = dspy.Predict(dspy.Signature("topic -> findings", "Find."))
    reviewer = dspy.Predict(dspy.Signature("topic, findings: list[str] -> answer", "Review."))
    graph = Graph(Board).add_node("finder", finder, reads=["topic"], writes=["findings"])
    graph.add_node("reviewer", reviewer, reads=["topic", "findings"], writes=["answer"])
    program = graph.add_path(START, "finder", "reviewer", END).compile()
    with ScriptedLM(answer) as lm:
        program.set_lm(lm)
        found = program(topic="tides")
    assert prompts == [{"topic": "tides"}, {"topic": "tides", "findings": '["Find. 1"]'}]
    assert found.answer == "Review. 2"
    assert "finder: reads topic; writes findings" in program.graph.explain()


FORBIDDEN: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "a read": (lambda ctx: ctx.view(view("sources")), {"reads": ["topic"]}, errors.InputError, "not among its reads"),
    "a write": (lambda ctx: {"answer": "a"}, {"writes": ["title"]}, errors.NodeOutputError, "which it does not write"),
    "a post": (lambda ctx: ctx.post("calls", 1), {"writes": ["title"]}, errors.NodeOutputError, "not among its writes"),
}


@pytest.mark.parametrize(("node", "options", "error", "text"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_access_without_permission_is_refused(
    node: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """S004-9."""
    with pytest.raises(error, match=text):
        solo(node, **options)


def test_parallel_writers_of_one_field_are_reported() -> None:
    """S003-13: before anything runs."""
    graph = Graph(Board).add_node("ann", lambda: {"answer": "a"}, writes=["answer"])
    graph.add_node("bob", lambda: {"answer": "b"}, writes=["answer"]).add_node("end", lambda: None, writes=[])
    graph.add_edge(START, ["ann", "bob"]).add_edge(["ann", "bob"], "end").add_edge("end", END)
    with pytest.raises(errors.GraphError, match=r"'ann' and 'bob'|'answer'"):
        graph.compile()


def test_several_writers_of_one_plain_field_are_listed() -> None:
    """S003-13: one after the other, the last one's value stays, and `explain()` says who they are."""
    graph = Graph(Board).add_node("ann", lambda: {"answer": "a", "findings": []}, writes=["answer", "findings"])
    graph.add_node("bob", lambda: {"answer": "b", "findings": []}, writes=["answer", "findings"])
    text = graph.add_path(START, "ann", "bob", END).compile().graph.explain()
    assert "several writers: answer is written by ann, bob; the last one's value stays" in text
    assert "findings is written by" not in text


def test_explain_lists_parallel_writers_with_their_policy() -> None:
    graph = Graph(Board, merge={"answer": "first_write_wins"})
    graph.add_node("ann", lambda: {"answer": "a"}, writes=["answer"])
    graph.add_node("bob", lambda: {"answer": "b"}, writes=["answer"])
    program = graph.add_edge(START, ["ann", "bob"]).add_edge(["ann", "bob"], END).compile()
    assert "the last one's value stays, in parallel the merge policy decides" in program.graph.explain()
    assert program().answer == "a"


class Observed(BaseModel):
    events: Annotated[list[str], reducers.log] = []
    plain: Annotated[list[str], reducers.append] = []


@pytest.mark.parametrize("update", [Replace([]), DELETE, Updates("a", DELETE)], ids=str)
def test_a_field_with_the_log_reducer_cannot_be_replaced(update: Any) -> None:
    """S004-2: an append channel refuses what would remove entries; parallel entries are all kept."""
    graph = Graph(Observed, inputs=["events"], outputs=["events"])
    graph.add_node("ann", lambda: {"events": "a"}, writes=["events"])
    graph.add_node("bob", lambda: {"events": Updates("b", "c")}, writes=["events"])
    graph.add_node("end", lambda: None, writes=[])
    graph.add_edge(START, ["ann", "bob"]).add_edge(["ann", "bob"], "end").add_edge("end", END)
    assert graph.compile().run({"events": "start"}).state["events"] == ["start", "a", "b", "c"]
    erasing = Graph(Observed, inputs=["events"]).add_node("eve", lambda: {"events": update}, writes=["events"])
    run = erasing.add_path(START, "eve", END).compile().run({"events": "start"})
    assert isinstance(run.error, errors.NodeOutputError)
    assert "node 'eve' writes a new value to field 'events', whose entries are never removed (reducer 'log')" in str(
        run.error
    )


def test_the_sizes_of_a_state_can_be_read() -> None:
    """S004-6: by field, and in total."""
    state = solo(lambda: {"answer": "ä"}, {}, writes=["answer"]).state
    assert state.sizes()["answer"] == len('"ä"'.encode())
    assert abs(sum(state.sizes().values()) - len(state.to_json().encode())) < 40 * len(state)


def test_reads_of_views_are_recorded_on_demand() -> None:
    """S004-17: by node and view, how often and how much."""

    def node(it: str) -> dict[str, str]:
        return {"answer": it}

    run = solo(node, {"findings": "a"}, reads={"it": view("findings").new()}, writes=["answer"])
    (row,) = run.view_tokens().rows
    assert (row.node, row.name, row.view, row.visits) == ("node", "it", "view('findings').new()", 1)
