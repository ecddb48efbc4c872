"""Graphs written for LangGraph, run by LangGraph and by the programs that they are converted to.

The graphs are in `state_graphs.py`, `flow_graphs.py` and `service_graphs.py`, each with its outcome in LangGraph and,
where the two differ, with dspyer's outcome and the reason; `refused_graphs.py` has those that are not converted.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.types import Command

from dspyer import errors, testing
from dspyer.events import Emitted
from dspyer.migrate import explain_langgraph, from_langgraph, langgraph_inputs
from tests.log.processes import end_of, fork
from tests.migrate import flow_graphs, service_graphs, state_graphs
from tests.migrate.cases import Case, Seen, run_dspyer, run_langgraph
from tests.migrate.refused_graphs import REFUSED, all_problems
from tests.rows import each

CASES = [*state_graphs.CASES, *flow_graphs.CASES, *service_graphs.CASES]
MODES = [(each, mode) for each in CASES for mode in (False, True) if mode or not each.only_async]


@each(("case", "asynchronous"), MODES, items=8)
def test_langgraph_gives_this_outcome(case: Case, asynchronous: bool) -> None:
    assert run_langgraph(case, asynchronous=asynchronous) == case.langgraph


@each(("case", "asynchronous"), MODES, items=12)
def test_the_converted_program_gives_this_outcome(case: Case, asynchronous: bool) -> None:
    with testing.no_pauses():
        assert run_dspyer(case, asynchronous=asynchronous) == case.dspyer, case.why


@each(("build", "sentence"), REFUSED)
def test_a_graph_that_is_refused(build: Callable[[], Any], sentence: str) -> None:
    graph = build()
    with pytest.raises(errors.GraphError) as raised:
        from_langgraph(graph)
    assert sentence in str(raised.value)
    assert any(sentence in problem for problem in explain_langgraph(graph).problems)


@each("case", CASES, ids=lambda case: case.name, items=6)
def test_a_graph_that_converts_is_explained(case: Case) -> None:
    report = explain_langgraph(case.build(Seen()))
    assert not report.problems
    assert str(report).startswith("This graph can be converted")


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(errors.GraphError) as raised:
        from_langgraph(all_problems())
    for text in ("is async", "Command.PARENT", "calls the module 'classify'"):
        assert text in str(raised.value)


def test_a_question_is_answered_in_another_process(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    assert end_of(fork(lambda: service_graphs.start_and_stop(path))) == 0
    seen = Seen()
    app = service_graphs.approving(seen).compile()
    program = from_langgraph(app).compile(store=path)
    thread = program.thread("1")
    assert [question.text for question in thread.questions] == ["ok?"]
    run = thread.resume({"ask-0": "yes"})
    assert run.status == "completed"
    assert seen == ["ask", "last"]
    said = [("human", "hi"), ("ai", "you said yes"), ("ai", "turn 1")]
    assert [(message.type, message.content) for message in run.state["messages"]] == said
    thread.run(langgraph_inputs(app, {"messages": [("user", "hi")]}))
    run = thread.resume({"ask-0": "no"})
    assert seen == ["ask", "last", "first", "ask", "ask", "last"]
    said += [("human", "hi"), ("ai", "you said no"), ("ai", "turn 2")]
    assert [(message.type, message.content) for message in run.state["messages"]] == said
    assert len({message.id for message in run.state["messages"]}) == 6, "the second turn replaces no message"

    saved = service_graphs.approving(Seen()).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    for answer in ("yes", "no"):
        saved.invoke({"messages": [("user", "hi")]}, config)
        ended = saved.invoke(Command(resume=answer), config)
    assert [(message.type, message.content) for message in ended["messages"]] == said


def test_a_subgraph_stops_at_the_breakpoint_that_it_was_compiled_with() -> None:
    def build(seen: Seen) -> StateGraph:
        builder = flow_graphs.logs(seen, "after")
        builder.add_node("part", flow_graphs.part(seen, interrupt_before=["two"]))
        return flow_graphs.edges(builder, "^ part", "part after")

    there, here = Seen(), Seen()
    saved = build(there).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    saved.invoke({"word": "w"}, config)
    thread = from_langgraph(build(here)).compile(store=":memory:").thread("1")
    run = thread.run({"word": "w"})
    assert (run.status, here, there) == ("interrupted", ["one"], ["one"])
    ended = saved.invoke(None, config)
    run = thread.resume({question.key: None for question in run.questions})
    assert run.state.to_dict() == ended == {"word": "w12", "log": ["after"]}
    assert here == there == ["one", "two", "after"]


def test_a_target_that_is_computed_may_be_any_node_and_can_be_named() -> None:
    def build() -> StateGraph:
        builder = flow_graphs.logs(Seen(), "a", "b1", "b2")
        builder.add_node("jump", lambda state: Command(goto="b1" if "x" in state else f"b{state['count']}"))
        builder.add_conditional_edges("a", lambda state: "b1" if "x" in state else f"b{state['count']}")
        return flow_graphs.edges(builder, "^ a", "^ jump")

    for option, source in (("routes", "a"), ("goto", "jump")):
        named: dict[str, Any] = {"routes": {"a": ["b1", "b2"]}, "goto": {"jump": ["b1", "b2"]}}
        assert from_langgraph(build(), **named).compile().run({"count": 2}).state["log"].count("b2") == 1
        assert from_langgraph(build()).compile().run({"count": 2}).state["log"].count("b2") == 1
        named[option] = {source: ["b1"]}
        run = from_langgraph(build(), **named).compile().run({"count": 2})
        assert isinstance(run.error, errors.RouteError)
        assert "goes to 'b2', which its code does not name" in str(run.error)
        assert f"from_langgraph({option}={{'{source}': [...]}})" in str(run.error)


def test_a_converted_program_is_a_program_like_any_other() -> None:
    seen = Seen()
    app = service_graphs.a_stream_writer(seen).compile()
    program = copy.deepcopy(from_langgraph(app).compile(store=":memory:"))
    events = list(program.thread("1").stream({}))
    assert [event.value for event in events if isinstance(event, Emitted)] == [{"custom": 1}, {"custom": 2}]
    assert [commit.node for commit in program.thread("1").history()][-1:] == ["write"]
    assert seen == ["write"]
    assert "write" in program.graph.explain()


def test_what_was_inferred_is_noted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    builder = flow_graphs.an_unreachable_node(Seen())
    builder.add_node("two words", lambda state: {})
    builder.add_edge("b", "two words")
    app = builder.compile(checkpointer=InMemorySaver())
    notes = explain_langgraph(app).notes
    with caplog.at_level(logging.INFO, "dspyer.migrate"):
        from_langgraph(app)
    (record,) = caplog.records
    assert all(note in record.getMessage() for note in notes)
    for text in ("'never', 'ever'", "two words", "checkpointer"):
        assert text in record.getMessage()


def test_a_router_that_is_not_retried_is_noted() -> None:
    notes = explain_langgraph(service_graphs.a_router_that_fails_under_a_retry(Seen())).notes
    assert [note for note in notes if note.startswith("the retry policy of 'a' holds for the node")]
