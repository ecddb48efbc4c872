"""Traps that other frameworks of graphs fall into, and corners of errors, streams, subgraphs and threads."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Replace, Run, Send, Updates, reducers
from dspyer.errors import (
    InputError,
    MergeConflictError,
    NodeOutputError,
    RouteError,
    RunStoppedError,
    annotate,
)
from dspyer.events import Emitted, Event
from dspyer.testing import ScriptedLM
from tests.runtime.conftest import Play


class Log(BaseModel):
    """A state that shows who did what."""

    q: str = ""
    label: str = ""
    log: Annotated[list[str], reducers.extend] = []
    tags: Annotated[list[str], reducers.append] = []
    count: Annotated[int, reducers.increment] = 0
    value: Any = None


def says(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda state: {"log": [name], "count": 1}


def raises(error: BaseException) -> Callable[[Any], None]:
    def work(state: Any) -> None:
        raise error

    return work


def alone(node: Any, schema: type[BaseModel] | None = None) -> CompiledGraph:
    """A graph of one node."""
    return Graph(schema).add_node("a", node).add_path(START, "a", END).compile()


def beside(left: Any, right: Any, **options: Any) -> CompiledGraph:
    """A graph of two nodes in parallel, which join at END."""
    graph = Graph(**options).add_node("a", left).add_node("b", right)
    return graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END).compile()


# --- what LangGraph users meet; a letter and a number are those of the study that found it


EQUAL: dict[str, tuple[dict[str, int], dict[str, int], int]] = {
    "equal values": ({"x": 1}, {"x": 1}, 1),
    "a state returned as it was": ({"x": 0, "y": 5}, {"x": 0}, 0),
    "only one side changed it": ({"x": 2}, {"x": 0}, 2),
}


def test_equal_writes_and_writes_of_the_base_value_are_no_conflict(play: Play) -> None:
    for case, (left, right, x) in EQUAL.items():
        run = play(beside(lambda state, left=left: left, lambda state, right=right: right), {"x": 0})
        assert (case, run.status, run.state["x"], run.conflicts) == (case, "completed", x, ())


def test_a_conflict_names_both_writers_and_both_branches_stay_readable(play: Play) -> None:
    run = play(beside(lambda state: {"x": 1}, lambda state: {"x": 2}), {"x": 0})
    assert isinstance(run.error, MergeConflictError)
    assert run.error.writers == ("a", "b")
    assert run.state == {"x": 0}
    assert {path: state["x"] for path, state in run.branches.items()} == {(0,): 1, (1,): 2}
    assert [run.at(commit.id)["x"] for commit in run.commits] == [0, 1, 2]
    assert run.blame("x").node == "START"


def test_emitted_values_of_a_failed_node_are_events_and_not_committed(play: Play) -> None:
    def work(ctx: Context) -> None:
        ctx.emit("partial")
        raise OSError("lost")

    run = play(alone(work, Log), {})
    seen = list[Event]()
    with suppress(OSError):
        for event in alone(work, Log).stream({}):
            seen.append(event)
    assert [event.value for event in seen if isinstance(event, Emitted)] == ["partial"]
    assert not [event for event in run.events if isinstance(event, Emitted)], "they would grow with what a node emits"
    assert (run.status, [commit.node for commit in run.commits]) == ("failed", ["START"])


def test_parallel_writes_are_folded_in_the_order_of_declaration(play: Play) -> None:
    for names in (["n2", "n10", "n1"], ["z", "m", "a"]):
        graph = Graph(Log)
        for name in sorted(names):
            graph.add_node(name, says(name))
        graph.add_edge(START, names).add_edge(names, END)
        assert play(graph.compile(), {}).state["log"] == names


def test_sends_and_names_keep_the_order_of_the_route(play: Play) -> None:
    graph = Graph(Log).add_node("w", lambda n: {"log": [f"w{n}"]}).add_node("zz", says("zz")).add_node("aa", says("aa"))
    route = lambda ctx: [Send("w", {"n": 3}), "zz", Send("w", {"n": 1}), "aa"]  # noqa: E731
    graph.add_conditional_edges(START, route, ["w", "zz", "aa"]).add_edge(["w", "zz", "aa"], END)
    assert play(graph.compile(), {}).state["log"] == ["w3", "zz", "w1", "aa"]


def test_a_join_waits_only_for_branches_that_were_taken_and_keeps_nothing_for_the_next_run(play: Play) -> None:
    graph = Graph(Log)
    for name in "abj":
        graph.add_node(name, says(name))
    graph.add_conditional_edges(START, lambda value: value, ["a", "b"]).add_edge(["a", "b"], "j").add_edge("j", END)
    program = graph.compile()
    for only in "ab":
        assert play(program, {"value": only}).state["log"] == [only, "j"]


def test_a_join_does_not_wait_for_an_unrelated_loop() -> None:
    joined = threading.Event()

    def loop(ctx: Context) -> dict[str, Any]:
        assert ctx.visit == 1 or joined.wait(20), "the join waited for the loop"
        return {"count": 1}

    def j(state: Any) -> dict[str, Any]:
        joined.set()
        return {"log": ["j"]}

    graph = Graph(Log).add_node("a", says("a")).add_node("b", says("b")).add_node("j", j).add_node("loop", loop)
    graph.add_edge(START, ["a", "b", "loop"]).add_edge(["a", "b"], "j").add_edge("j", END)
    graph.add_conditional_edges("loop", lambda ctx: "loop" if ctx.visit < 4 else END, ["loop", END])
    assert graph.compile().run({}).state["log"] == ["a", "b", "j"]


def test_a_node_that_mutates_its_inputs_changes_no_state(play: Play) -> None:
    def spoils(box: dict[str, Any]) -> dict[str, Any]:
        given = {"list": [1]}
        box["evil"] = True
        spoiled.append(given)
        return {"kept": given}

    spoiled: list[dict[str, Any]] = []
    inputs = {"box": {"k": [1]}}
    run = play(beside(spoils, lambda box: {"seen": dict(box)}), inputs)
    spoiled[0]["list"].append(2)
    run.prediction.kept["list"].append(3)
    assert inputs == {"box": {"k": [1]}}
    assert run.state == {"box": {"k": [1]}, "kept": {"list": [1]}, "seen": {"k": [1]}}
    assert [dict(run.at(commit.id)["box"]) for commit in run.commits] == [{"k": [1]}] * len(run.commits)


def test_unknown_fields_are_errors(play: Play) -> None:
    assert isinstance(play(alone(lambda state: {"lgo": ["x"]}, Log), {}).error, NodeOutputError)
    with pytest.raises(InputError, match="lgo"):
        play(alone(says("a"), Log), {"lgo": ["x"]})
    graph = (
        Graph(Log).add_node("a", says("a")).add_edge(START, "a").add_conditional_edges("a", lambda q: "nowhere", [END])
    )
    assert isinstance(play(graph.compile(), {}).error, RouteError)


def test_a_failed_router_repeats_no_node(play: Play) -> None:
    calls: list[str] = []
    graph = Graph(Log).add_node("a", lambda state: calls.append("a")).add_edge(START, "a")
    graph.add_conditional_edges("a", raises(ConnectionError("once")), [END])
    run = play(graph.compile(), {})
    assert isinstance(run.error, ConnectionError)
    assert calls == ["a"]
    assert [commit.node for commit in run.commits] == ["START"]


def test_concurrent_runs_of_one_program_lose_no_update() -> None:
    program = beside(says("a"), says("b"), schema=Log)

    async def many() -> list[Run]:
        return await asyncio.gather(*[program.arun({"count": i}) for i in range(20)])

    assert [run.state["count"] for run in asyncio.run(many())] == [i + 2 for i in range(20)]


# --- errors reach the user as they were raised


@dataclass(frozen=True)
class Frozen(Exception):  # noqa: N818
    """An exception that takes no notes."""

    code: int


class NoText(Exception):  # noqa: N818
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_a_note_is_written_once_and_only_where_it_can_be() -> None:
    annotate(Frozen(3), "note")
    shared = ValueError("one object, raised again and again")
    program = alone(raises(shared))
    for _ in range(5):
        assert program.run({}).error is shared
    assert shared.__notes__ == ["in node 'a' (branch trunk, visit 1, attempt 1)"]


def test_errors_that_cannot_be_shown_are_still_raised(play: Play) -> None:
    run = play(beside(raises(NoText()), raises(NoText())), {})
    assert isinstance(run.error, NoText)
    assert [note for note in run.error.__notes__ if note.startswith("also failed: 'b' (branch 1)")]


@pytest.mark.parametrize("where", ["node", "branch", "router"])
def test_a_stop_iteration_is_a_failure_like_any_other(where: str) -> None:
    """Python puts a RuntimeError in its place in generators and coroutines, and it would end a stream in silence."""
    stop = raises(StopIteration(7))
    if where == "router":
        graph = Graph().add_node("a", lambda state: None).add_edge(START, "a").add_conditional_edges("a", stop, [END])
        program = graph.compile()
    else:
        program = alone(stop) if where == "node" else beside(stop, lambda state: None)
    for run in (program.run({}), asyncio.run(program.arun({}))):
        assert isinstance(run.error, StopIteration)
        assert run.error.value == 7
    try:
        program()
    except StopIteration as error:
        assert error.value == 7  # noqa: PT017 - pytest.raises would not let it through
    with pytest.raises(RuntimeError, match="a node raised StopIteration"):
        list(program.stream({}))

    async def stream() -> None:
        async for _ in program.astream({}):
            pass

    with pytest.raises(RuntimeError, match="a node raised StopIteration"):
        asyncio.run(stream())


@pytest.mark.parametrize("together", [False, True], ids=["alone", "beside another"])
def test_a_node_that_cancels_itself_does_not_hang_the_run(together: bool) -> None:
    async def work(state: Any) -> None:
        raise asyncio.CancelledError("mine")

    program = beside(work, lambda state: None) if together else alone(work)

    async def call() -> None:
        with anyio.fail_after(10):
            await program.acall()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(call())


# --- streams


def test_an_exhausted_stream_stays_exhausted() -> None:
    refused = Graph(inputs=["q"]).add_node("a", says("a")).add_path(START, "a", END).compile().stream({"other": 1})
    with pytest.raises(InputError):
        next(refused)
    assert list(refused) == []
    failed = alone(raises(KeyError("x"))).stream({})
    with pytest.raises(KeyError):
        list(failed)
    assert list(failed) == []
    closed = alone(says("a")).stream({})
    closed.close()
    assert list(closed) == []
    with pytest.raises(RunStoppedError, match="closed before its run had begun"):
        _ = closed.run


def test_an_exhausted_async_stream_stays_exhausted() -> None:
    async def read() -> None:
        stream = alone(raises(KeyError("x"))).astream({})
        with pytest.raises(KeyError):
            _ = [event async for event in stream]
        assert [event async for event in stream] == []

    asyncio.run(read())


# --- subgraphs


class Begun(BaseModel):
    """Reducers whose defaults are not empty, so that a value folded in once more would show."""

    log: Annotated[list[str], reducers.extend] = ["0"]
    count: Annotated[int, reducers.increment] = 10
    tags: Annotated[list[str], reducers.append] = ["t"]
    highest: Annotated[int, reducers.max] = 3


def test_inputs_of_a_subgraph_are_not_folded_into_its_defaults(play: Play) -> None:
    def work(log: list[str], count: int, tags: list[str], highest: int) -> dict[str, Any]:
        seen.append((log, count, tags, highest))
        return {"log": ["x"], "count": 1, "tags": "x", "highest": 2}

    seen: list[Any] = []
    program: Any = Graph(Begun, inputs=["log", "count", "tags", "highest"]).add_node("x", work)
    program = program.add_path(START, "x", END).compile()
    for _ in range(3):
        program = Graph(Begun, inputs=[]).add_node("x", program).add_path(START, "x", END).compile()
    run = play(program, {})
    assert seen == [(["0"], 10, ["t"], 3)]
    assert run.state == {"log": ["0", "x"], "count": 11, "tags": ["t", "x"], "highest": 3}


@pytest.mark.parametrize(
    ("field", "state"),
    [("label", {"label": "x", "tags": ["p"]}), ("tags", {"label": "", "tags": ["p", "x"]})],
    ids=["a field", "a reducer"],
)
def test_a_subgraph_returns_what_its_router_at_start_wrote(field: str, state: dict[str, Any]) -> None:
    inner = Graph(Log, name="Inner", inputs=["q", "log", "tags"]).add_node("x", lambda q: {"log": ["x"]})
    router = dspy.Predict("q -> label: Literal['x', 'stop']")
    inner.add_conditional_edges(START, router, {"x": "x", "stop": END}, name="router", writes={"label": field})
    outer = Graph(Log).add_node("pre", lambda q: {"log": ["pre"], "tags": "p"})
    outer.add_node("sub", inner.add_edge("x", END).compile()).add_path(START, "pre", "sub", END)
    with dspy.context(lm=ScriptedLM([{"label": "x"}, {"label": "x"}])):
        run = outer.compile().run({"q": "?"})
        begun = inner.compile().run({"q": "?", "tags": "p"})
    assert {name: run.state[name] for name in state} == state
    assert run.state["log"] == ["pre", "x"]
    if field == "tags":
        assert begun.commits[0].patch["tags"] == Updates(Replace(["p"]), "x")
        assert begun.at(0)["tags"] == ["p", "x"]


# --- threads, tasks and what belongs to the caller


async def _waits(state: Any) -> None:
    await asyncio.Event().wait()


def test_a_deadline_ends_a_run() -> None:
    async def with_anyio(program: CompiledGraph) -> None:
        with anyio.fail_after(0.01):
            await program.acall()

    async def with_asyncio(program: CompiledGraph) -> None:
        await asyncio.wait_for(program.acall(), 0.01)

    two = beside(_waits, _waits)
    for program in (alone(_waits), two, beside(two, _waits)):
        for call in (with_anyio, with_asyncio):
            with pytest.raises(TimeoutError):
                asyncio.run(call(program))


def test_a_failed_run_leaves_settings_and_threads_as_they_were(play: Play) -> None:
    def fails(state: Any) -> None:
        raise ValueError("x")

    async def afails(state: Any) -> None:
        raise ValueError("x")

    before, threads = dict(dspy.settings.copy()), set(threading.enumerate())
    for program in (alone(fails), beside(fails, afails), beside(beside(fails, fails), afails)):
        assert isinstance(play(program, {}).error, ValueError)
    assert dict(dspy.settings.copy()) == before
    left = [
        thread.name for thread in set(threading.enumerate()) - threads if thread.name.startswith("dspyer-")
    ]  # no idle workers
    assert left == []


def test_a_program_keeps_no_run() -> None:
    program = beside(lambda state: {"x": 1}, lambda state: {"y": 1})
    run = weakref.ref(program.run({}))
    gc.collect()
    assert run() is None


def test_branches_have_context_variables_of_their_own(play: Play) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    passing = threading.Barrier(2, timeout=20)

    def node(number: int) -> Callable[[Any], dict[str, int]]:
        def work(state: Any) -> dict[str, int]:
            variable.set(number)
            passing.wait()
            return {f"n{number}": variable.get()}

        return work

    run = play(beside(node(1), node(2)), {})
    assert run.state == {"n1": 1, "n2": 2}
    assert variable.get() == 0


def test_a_program_that_calls_itself(play: Play) -> None:
    programs: list[Any] = []

    def work(n: int, ctx: Context) -> dict[str, int]:
        return {"out": 0 if n == 0 else 1 + again(n - 1)}

    def again(n: int) -> int:
        inner = programs[0](n=n)
        return int(inner.out)

    graph = Graph(inputs=["n"]).add_node("a", work, writes=["out"]).add_node("b", lambda state: None, writes=[])
    programs.append(graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END).compile())
    assert play(programs[0], {"n": 4}).state["out"] == 4


@pytest.mark.parametrize(("size", "left"), [(3, ["old", "old", "step"]), (0, ["old", "old", "old"])])
def test_the_callers_trace_keeps_its_limit(size: int, left: list[str]) -> None:
    program = alone(dspy.Predict("q -> a"))
    trace: list[Any] = ["old", "old", "old"]
    with dspy.context(lm=ScriptedLM([{"a": "1"}]), trace=trace, max_trace_size=size):
        program(q="?")
    assert ["old" if step == "old" else "step" for step in trace] == left
    with dspy.context(lm=ScriptedLM([{"a": "1"}]), trace=None):
        assert len(program.run({"q": "?"}).trace) == 1
        assert dspy.settings.trace is None


def test_nodes_may_have_names_like_start_and_end() -> None:
    graph = Graph(Log).add_node("END_", says("END_")).add_node("START2", says("START2"))
    assert graph.add_path(START, "START2", "END_", END).compile()().log == ["START2", "END_"]


def test_subgraphs_in_sends_loops_and_maps(play: Play) -> None:
    inner = Graph(Log, name="Inner", inputs=["q", "log"]).add_node("x", lambda q: {"log": ["x" + q], "count": 1})
    inner.add_node("y", lambda q: {"log": ["y" + q]}).add_edge(START, ["x", "y"]).add_edge(["x", "y"], END)
    sub = inner.compile()

    def spread(ctx: Context) -> list[Send]:
        return [Send("sub", {"q": str(i)}) for i in range(2)]

    sent = Graph(Log).add_node("sub", sub).add_conditional_edges(START, spread, ["sub"]).add_edge("sub", END).compile()
    run = play(sent, {})
    assert (run.state["log"], run.state["count"]) == (["x0", "y0", "x1", "y1"], 2)

    loop = Graph(Log).add_node("sub", sub).add_edge(START, "sub")
    loop.add_conditional_edges("sub", lambda ctx: "sub" if ctx.visit < 2 else END, ["sub", END])
    assert play(loop.compile(), {"q": "!"}).state["log"] == ["x!", "y!", "x!", "y!"]

    mapped = (
        Graph(inputs=["qs"]).add_map("m", sub, over="qs", item="q", into="outs").add_path(START, "m", END).compile()
    )
    assert [out["log"] for out in play(mapped, {"qs": ["a", "b"]}).state["outs"]] == [["xa", "ya"], ["xb", "yb"]]
