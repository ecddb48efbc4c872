"""An error of any kind in a run is reported, leaves the thread readable, and the run can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Run, reducers
from dspyer.errors import InputError, NodeOutputError, OpenRunError, RouteError, StepLimitError, ThreadError
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM
from tests.log.equality import outcome
from tests.log.kinds import CALLS, KINDS, Fault
from tests.log.places import FEWER, MODES, Place, nodes, start

OTHERS = ("LM router", "error edges", "failed Sends")
"""Kinds of graphs in which not every fault fails the run: error edges take some of them."""


@pytest.mark.parametrize(
    ("kind", "mode"), [(name, FEWER[n % 2]) for n, name in enumerate(name for name in KINDS if name not in OTHERS)]
)
def test_a_run_with_any_error_can_be_resumed_once_the_cause_is_gone(kind: str, mode: str, tmp_path: Path) -> None:
    """Each call of each node, item, router and policy raises in its turn."""
    place = Place(KINDS[kind], MODES[mode], tmp_path)
    for number, call in enumerate(sorted(place.whole.calls)):
        CALLS.fault = call
        thread = place.first.thread(f"t{number}")
        run = start(thread, place.call_mode)
        made = CALLS.take()
        CALLS.fault = None
        assert run.status == "failed"
        assert isinstance(run.error, Fault)
        assert thread.status == "failed"
        assert thread.state == run.state
        with pytest.raises(OpenRunError, match=r"failed.*thread.resume\(\).*if_open='abandon'"):
            thread.run({})
        assert not CALLS.made
        assert nodes(made) <= nodes(place.whole.calls)
        place.check_the_rest(thread.name)


class Faults:
    """The faults of the nodes, until the test removes them."""

    def __init__(self) -> None:
        self.there = True


def _add(old: int, new: int) -> int:
    if FAULTS.there:
        raise ZeroDivisionError("no adding today")
    return old + new


class Added(BaseModel):
    log: Annotated[list[str], reducers.extend] = []
    total: Annotated[int, _add] = 0
    size: int = 0


FAULTS = Faults()


def wrong_type() -> CompiledGraph:
    graph = Graph(Added).add_node("a", lambda state: {"log": ["a"]})
    graph.add_node("b", lambda state: {"log": ["b"], "size": "large" if FAULTS.there else 3})
    return graph.add_path(START, "a", "b", END).compile(store=Memory())


def unknown_field() -> CompiledGraph:
    graph = Graph(Added).add_node("a", lambda state: {"log": ["a"]})
    graph.add_node("b", lambda state: {"log": ["b"], "sise" if FAULTS.there else "size": 3})
    return graph.add_path(START, "a", "b", END).compile(store=Memory())


def unknown_target() -> CompiledGraph:
    graph = Graph(Added).add_node("a", lambda state: {"log": ["a"]}).add_node("b", lambda state: {"log": ["b"]})
    graph.add_edge(START, "a").add_conditional_edges("a", lambda state: "c" if FAULTS.there else "b", ["b"])
    return graph.add_edge("b", END).compile(store=Memory())


def reducer_in_a_node() -> CompiledGraph:
    graph = Graph(Added).add_node("a", lambda state: {"log": ["a"]})
    graph.add_node("b", lambda state: {"log": ["b"], "total": 3})
    return graph.add_path(START, "a", "b", END).compile(store=Memory())


def reducer_in_a_join() -> CompiledGraph:
    """Two branches may write, and their join folds what one of them wrote onto the other."""
    graph = Graph(Added).add_node("a", lambda state: _without_fault({"log": ["a"], "total": 1}))
    graph.add_node("b", lambda state: {"log": ["b"], "total": 2})
    return graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END).compile(store=Memory())


def _without_fault(update: dict[str, Any]) -> dict[str, Any]:
    return update


@pytest.mark.parametrize(
    ("build", "error", "log"),
    [
        (wrong_type, NodeOutputError, ["a", "b"]),
        (unknown_field, NodeOutputError, ["a", "b"]),
        (unknown_target, RouteError, ["a", "b"]),
        (reducer_in_a_node, ZeroDivisionError, ["a", "b"]),
        (reducer_in_a_join, ZeroDivisionError, ["a", "b"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_invalid_update_is_never_stored(build: Any, error: type[Exception], log: list[str]) -> None:
    FAULTS.there = True
    thread = build().thread("t")
    run = thread.run({})
    assert isinstance(run.error, error)
    assert (thread.status, thread.state) == ("failed", run.state)
    assert thread.state.get("size") == 0
    FAULTS.there = False
    run = thread.resume()
    assert (run.status, run.state["log"]) == ("completed", log)
    assert thread.state == run.state


def test_a_reached_limit_is_raised_again_until_a_program_allows_more(tmp_path: Path) -> None:
    store = Memory()
    loop = KINDS["loop"]
    thread = loop.compile("sync", store, max_steps=3).thread("t")
    assert isinstance(thread.run({}).error, StepLimitError)
    CALLS.take()
    assert isinstance(thread.resume().error, StepLimitError)
    assert not CALLS.made
    whole = outcome(loop.compile("sync", store).thread("whole").run({}))
    assert outcome(loop.compile("sync", store).thread("t").resume()) == whole


def test_a_limit_reached_at_a_join_holds_after_a_resume() -> None:
    store = Memory()
    thread = KINDS["fork"].compile("sync", store, max_steps=4).thread("t")
    assert isinstance(thread.run({}).error, StepLimitError)
    CALLS.take()
    assert isinstance(thread.resume().error, StepLimitError)
    assert not CALLS.made
    assert KINDS["fork"].compile("sync", store).thread("t").resume().status == "completed"


# --- runs left open


def counter(**options: Any) -> Graph:
    class Count(BaseModel):
        n: Annotated[int, reducers.increment] = 0
        seen: Annotated[list[str], reducers.extend] = []
        note: str = ""

    return Graph(Count, inputs=["n", "note"], **options)


def test_an_abandoned_run_stays_in_the_history_and_the_next_starts_from_the_shared_state() -> None:
    FAULTS.there = True

    def fails(state: Any) -> dict[str, Any]:
        if FAULTS.there:
            raise RuntimeError("boom")
        return {"seen": ["fails"]}

    graph = counter(keep=["n", "seen"]).add_node("a", lambda state: {"seen": ["a"]})
    graph.add_node("b", lambda state: {"seen": ["b"]}).add_node("fails", fails)
    graph.add_edge(START, "a").add_edge("a", ["b", "fails"]).add_edge(["b", "fails"], END)
    thread = graph.compile(store=Memory()).thread("t")
    run = thread.run({"n": 1, "note": "first"})
    assert (run.status, run.state["seen"]) == ("failed", ["a"])
    with pytest.raises(OpenRunError):
        thread.run({"n": 1})
    FAULTS.there = False
    run = thread.run({"n": 10}, if_open="abandon")
    assert run.state.to_dict() == {"n": 11, "seen": ["a", "a", "b", "fails"], "note": ""}
    assert [commit.version for commit in run.commits] == list(range(2, 2 + len(run.commits)))
    assert thread.state == run.state
    with pytest.raises(ThreadError, match="has finished its last run: there is nothing to resume"):
        thread.resume()


def test_there_is_nothing_to_resume_on_a_new_thread() -> None:
    thread = KINDS["chain"].compile("sync", Memory()).thread("t")
    assert (thread.status, thread.state.to_dict()) == ("new", {})
    with pytest.raises(ThreadError, match="has no run yet"):
        thread.resume()


class Client:
    """A resource."""


@pytest.mark.parametrize("wrong", ["input", "resource", "on_conflict"])
def test_a_call_with_invalid_arguments_leaves_no_open_run(wrong: str) -> None:
    def uses(client: Client, n: int) -> dict[str, Any]:
        return {"seen": [type(client).__name__]}

    graph = counter().add_node("uses", uses).add_path(START, "uses", END)
    thread = graph.compile(store=Memory()).thread("t")
    calls: dict[str, Callable[[], object]] = {
        "input": lambda: thread.run({"m": 1}, resources=[Client()]),
        "resource": lambda: thread.run({"n": 1}),
        "on_conflict": lambda: thread.run({"n": 1}, resources=[Client()], on_conflict="hope"),  # type: ignore[arg-type]
    }
    with pytest.raises((InputError, ThreadError)):
        calls[wrong]()
    assert thread.status == "new"
    assert thread.run({"n": 1}, resources=[Client()]).status == "completed"


def test_a_resume_without_its_resources_is_refused_before_it_acquires_the_thread() -> None:
    FAULTS.there = True

    def uses(client: Client, n: int) -> None:
        if FAULTS.there:
            raise RuntimeError("boom")

    graph = counter().add_node("uses", uses).add_path(START, "uses", END)
    thread = graph.compile(store=Memory()).thread("t")
    assert thread.run({"n": 1}, resources=[Client()]).status == "failed"
    with pytest.raises(InputError, match="Client"):
        thread.resume()
    assert thread.status == "failed"
    FAULTS.there = False
    assert thread.resume(resources=[Client()]).status == "completed"


def test_a_failed_module_can_be_resumed_by_another_program_with_another_lm() -> None:
    """A failure of the language model is the commonest of all."""

    class Asked(BaseModel):
        question: str
        answer: str = ""
        short: str = ""

    def build() -> CompiledGraph:
        graph = Graph(Asked).add_node("ask", dspy.Predict("question -> answer"))
        graph.add_node("cut", dspy.Predict("answer -> short"))
        return graph.add_path(START, "ask", "cut", END).compile(store=store)

    store = Memory()
    script = ScriptedLM([{"answer": "Paris, of course"}, TimeoutError("overloaded"), TimeoutError("overloaded")])
    with dspy.context(lm=script):
        assert build().thread("t").run({"question": "Capital of France?"}).status == "failed"
    with ScriptedLM([{"short": "Paris"}]):
        assert build().thread("t").resume().state["short"] == "Paris"


def test_error_notes_say_how_often_the_run_was_resumed() -> None:
    def bad() -> None:
        raise ValueError("no")

    def note(run: Run) -> str:
        assert run.error is not None
        return next(note for note in run.error.__notes__ if "'bad'" in note)

    inner = Graph().add_node("bad", bad).add_path(START, "bad", END).compile()
    thread = Graph().add_node("around", inner).add_path(START, "around", END).compile(store=":memory:").thread("t")
    place = "in node 'bad' of graph 'Graph' (branch trunk, visit 1, attempt 1"
    assert note(thread.run({})) == f"{place})"
    assert note(thread.resume()) == f"{place} after 1 resume)"
    assert note(thread.resume()) == f"{place} after 2 resumes)"
    assert note(thread.rerun(from_version=0)) == f"{place})"
    assert note(thread.resume()) == f"{place} after 1 resume)"
    assert note(thread.run({}, if_open="abandon")) == f"{place})"


@pytest.mark.parametrize(
    "text", ["half of a pair: \ud800", "\x00", "long " * 100_000], ids=["surrogate", "null", "long"]
)
def test_any_text_of_an_exception_is_stored(text: str, tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError(text)

    program = Graph().add_node("fail", fail, writes=[]).add_path(START, "fail", END).compile(store=tmp_path / "runs.db")
    run = program.thread("t").run({})
    assert (run.status, repr(run.error)) == ("failed", repr(ValueError(text)))
    (failure,) = program.thread("t").failures
    assert failure.message == run.failures[0].message
    assert "in fail\n" in failure.traceback
    assert text[-5:].encode(errors="backslashreplace").decode() in failure.traceback
    assert len(failure.traceback) < 60_000
