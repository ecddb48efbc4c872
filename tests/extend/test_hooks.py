"""Blocks around runs, what is asked before a node begins, and what events pass through."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tenacity import wait_none

from dspyer import END, START, Context, Failure, Graph, Retry, Run
from dspyer.errors import GraphError, RunStoppedError
from dspyer.events import Committed, Event, NodeStarted
from dspyer.extend import Call, Layer, Stop, using
from dspyer.stores import Memory
from tests.extend.kit import graph_of, program_of
from tests.runtime.conftest import Play


class Blocks(Layer):
    """Notes when each run begins and has ended, and what it is then."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextmanager
    def run(self, run: Any) -> Iterator[None]:
        self.notes.append(f"{run.graph.name} {'/'.join(run.scope)}")
        yield
        self.notes.append(f"/{run.graph.name}")


def nested(**options: Any) -> Graph:
    return Graph(name="Outer").add_node("inner", graph_of(), **options).add_path(START, "inner", END)


def test_a_block_is_around_each_run_and_those_inside_of_it(play: Play) -> None:
    blocks = Blocks()
    with using(blocks):
        assert play(nested().compile(), {"n": 1}).state["doubled"] == 2
    assert blocks.notes == ["Outer ", "One trunk:1", "/One", "/Outer"]


def test_a_block_of_a_graph_is_around_its_runs_alone(play: Play) -> None:
    blocks = Blocks()
    assert play(nested().compile(layers=[blocks]), {"n": 1}).state["doubled"] == 2
    assert blocks.notes == ["Outer ", "/Outer"]


def test_a_block_ends_after_a_failure_and_a_question(play: Play) -> None:
    for work in (lambda n: 1 / 0, lambda n, ctx: ctx.interrupt("go", "Go on?")):
        blocks = Blocks()
        play(program_of(blocks, work=work, writes=["doubled"]), {"n": 1})
        assert blocks.notes == ["One ", "/One"]


class Broken(Layer):
    def run(self, run: Any) -> AbstractContextManager[None]:
        raise ValueError("no block")


def test_a_block_that_cannot_begin_fails_the_run_before_a_node_is_called(play: Play) -> None:
    calls: list[int] = []

    def work(n: int) -> None:
        calls.append(n)

    run = play(program_of(Broken(), work=work, writes=[]), {"n": 1})
    assert (run.status, str(run.error), calls) == ("failed", "no block", [])


def test_a_stored_run_whose_block_cannot_begin_is_resumed_without_it() -> None:
    store = Memory()
    failed = graph_of().compile(store=store, layers=[Broken()]).thread("t").run({"n": 1})
    assert (failed.status, len(failed.commits)) == ("failed", 0)
    assert graph_of().compile(store=store).thread("t").resume().state["doubled"] == 2


def test_a_block_of_an_inner_run_that_cannot_begin_fails_its_node(play: Play) -> None:
    graph = Graph(name="Outer").add_node("inner", program_of(Broken()))
    graph.add_node("help", lambda: {"doubled": 0}, writes=["doubled"])
    graph.add_path(START, "inner", END).add_error_edge("inner", "help", on=ValueError)
    assert play(graph.add_edge("help", END).compile(), {"n": 1}).state["doubled"] == 0


class Gate(Layer):
    """Lets so many executions begin, then stops the run, or raises something else."""

    def __init__(self, most: int, error: Exception) -> None:
        self.left, self.error = most, error

    def admit(self, call: Call) -> None:
        if not self.left:
            raise self.error
        self.left -= 1


def counting() -> Graph:
    graph = Graph(name="Count").add_node("count", lambda n: {"n": n + 1}, writes=["n"]).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda n: END if n == 5 else "count", ["count", END])


def test_a_layer_stops_the_run_before_an_execution_and_a_resume_calls_it() -> None:
    store = Memory()
    stopped = counting().compile(store=store, layers=[Gate(2, Stop("twice is enough"))]).thread("t").run({"n": 0})
    assert (stopped.status, stopped.state["n"]) == ("stopped", 2)
    assert isinstance(stopped.error, RunStoppedError)
    assert stopped.error.reason == "twice is enough"
    assert counting().compile(store=store).thread("t").resume().state["n"] == 5


@pytest.mark.parametrize("kind", ["graph", "call", "map"])
def test_a_layer_inside_a_node_stops_the_run_around_it_too(kind: str, play: Play) -> None:
    gate = Gate(0, Stop("closed"))
    inner = graph_of(layers=[gate])
    graph = Graph(name="Outer")
    inputs: dict[str, Any] = {"n": 1}
    if kind == "graph":
        graph.add_node("inner", inner)
    elif kind == "map":
        graph.add_map("inner", inner, over="numbers", item="n", into="all")
        inputs = {"numbers": [1, 2]}
    else:

        def ask(n: int, part: Any, ctx: Context) -> dict[str, Any]:
            return {"doubled": ctx.call(part, {"n": n}).doubled}

        graph.add_node("inner", ask, modules={"part": inner}, writes=["doubled"])
    graph.add_node("last", lambda: {"end": True}, writes=["end"]).add_path(START, "inner", "last", END)
    run = play(graph.compile(), inputs)
    assert (run.status, [commit.node for commit in run.commits]) == ("stopped", ["START"])
    assert isinstance(run.error, RunStoppedError)
    assert run.error.reason == "closed"
    thread = graph.compile(store=":memory:").thread("t")
    assert thread.run(inputs).status == "stopped"
    gate.left = 3
    assert thread.resume().status == "completed"


def test_an_async_node_beside_a_layer_that_stops_the_run_is_finished() -> None:
    stopped = asyncio.Event()

    class Closed(Layer):
        def admit(self, call: Call) -> None:
            stopped.set()
            raise Stop("closed")

    async def beside() -> dict[str, Any]:
        await stopped.wait()
        await asyncio.to_thread(int)  # a cancellation would come here
        return {"beside": True}

    graph = Graph().add_node("beside", beside, writes=["beside"])
    graph.add_node("first", lambda: {"first": True}, writes=["first"])
    graph.add_node("then", lambda first: {"then": first}, writes=["then"], layers=[Closed()])
    graph.add_edge(START, ["beside", "first"]).add_edge("first", "then").add_edge(["beside", "then"], END)
    run = asyncio.run(graph.compile().arun({}))
    assert (run.status, sorted(commit.node for commit in run.commits)) == ("stopped", ["START", "beside", "first"])


def test_what_a_layer_raises_before_an_execution_fails_its_node(play: Play) -> None:
    run = play(counting().compile(layers=[Gate(2, ValueError("no more"))]), {"n": 0})
    assert (run.status, str(run.error), run.state["n"]) == ("failed", "no more", 2)


def test_an_error_edge_does_not_take_what_is_raised_before_an_execution(play: Play) -> None:
    graph = graph_of(layers=[Gate(0, ValueError("closed"))]).add_node(
        "help", lambda: {"doubled": 0}, writes=["doubled"]
    )
    graph = graph.add_error_edge("work", "help", on=ValueError).add_edge("help", END)
    assert play(graph.compile(), {"n": 1}).status == "failed"


class Hidden(Layer):
    """Drops the events of one kind, and changes those of another."""

    def event(self, event: Event) -> Event | None:
        if isinstance(event, NodeStarted):
            return None
        return replace(event, position=7) if isinstance(event, Committed) else event


def test_a_layer_drops_and_changes_events_for_all_readers() -> None:
    program = nested().compile(layers=[Hidden()])
    with program.stream({"n": 1}) as stream:
        seen = list(stream)
    run: Run = stream.run
    for events in (seen, run.events):
        assert not [event for event in events if isinstance(event, NodeStarted)]
        assert {event.position for event in events if isinstance(event, Committed)} == {7}
    assert run.state["doubled"] == 2


def test_a_layer_sees_the_events_of_a_call_without_a_reader() -> None:
    seen: list[str] = []

    class Seen(Layer):
        def event(self, event: Event) -> Event:
            seen.append(type(event).__name__)
            return event

    assert program_of(Seen())(n=1).doubled == 2
    assert seen == ["RunStarted", "Committed", "NodeStarted", "Committed", "RunEnded"]


def test_an_unknown_place_is_refused_by_a_block_of_layers() -> None:
    class Odd(Layer):
        place = "inside"  # type: ignore[assignment]

    with pytest.raises(GraphError, match="'inside'"), using(Odd()):
        pass


class Read(Layer):
    """Notes all that it gets, and shows it as it is."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def event(self, event: Event) -> Event:
        self.notes.append(str(event.to_dict()))
        return event

    def shown(self, value: Any, failure: Failure | None = None, *, ends: bool = False) -> Any:
        self.notes.append(f"{value!r} {ends}")
        return value


class EventsAlone(Read):
    shown = Layer.shown


@pytest.mark.parametrize("kind", [Read, EventsAlone])
@pytest.mark.parametrize("store", [None, ":memory:"])
def test_redaction_comes_before_all_layers(kind: type[Read], store: str | None) -> None:
    ambient, of_graph, of_node = kind(), kind(), kind()

    def work(token: str, ctx: Context) -> dict[str, str]:
        ctx.emit(token)
        if ctx.attempt == 1:
            raise ValueError(f"{token} is refused")
        if ctx.interrupt("go", f"Use {token}?"):
            raise RuntimeError(f"{token} is used up")
        return {}

    inner = graph_of(work, writes=["token"], layers=[of_node], retry=Retry(2, wait=wait_none(), on=ValueError))
    graph = Graph(name="Outer").add_node("inner", inner.compile(redact="token")).add_path(START, "inner", END)
    program = graph.compile(layers=[of_graph], redact=["token"], store=store)
    with using(ambient):
        if store is None:
            runs = [program.run({"token": "S3CRET"}), program.run({"token": "S3CRET"}, answers={"go": True})]
        else:
            runs = [program.thread("t").run({"token": "S3CRET"}), program.thread("t").resume({"go": True})]
    assert [run.status for run in runs] == ["interrupted", "failed"]
    assert "'S3CRET'" in repr(runs[0].state)
    for layer in (ambient, of_graph, of_node):
        assert "is used up" in "".join(layer.notes)
        # An open question is shown as it was asked.
        assert not [note for note in layer.notes if "S3CRET" in note and "Asked" not in note]
