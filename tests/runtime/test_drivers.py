"""The sync and the async driver, wherever a program is called: same results, same calls, same failures."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from dataclasses import replace
from typing import Annotated, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import (
    END,
    START,
    Budget,
    Command,
    Context,
    Graph,
    MergedConflict,
    Run,
    Send,
    reducers,
)
from dspyer.errors import BudgetError, InputError, NodeOutputError, RouteError, StepLimitError
from dspyer.events import Committed, Emitted, Forked, Joined, NodeFailed, NodeStarted, Numbered, RunEnded, RunStarted
from tests.rows import each
from tests.runtime.conftest import PLAYS, Play
from tests.scheduler.test_schedule import Plan, plans


class Log(BaseModel):
    """A state that shows who did what."""

    start: str = ""
    log: Annotated[list[str], reducers.extend] = []
    count: Annotated[int, reducers.increment] = 0
    value: Any = None


def says(name: str) -> Any:
    return lambda state: {"log": [name], "count": 1}


def fork() -> Graph:
    graph = Graph(Log)
    for name in ("a", "b", "b2", "c", "j"):
        graph.add_node(name, says(name), writes=["log", "count"])
    graph.add_path(START, "a").add_edge("a", ["b", "c"]).add_path("b", "b2", "j").add_path("c", "j", END)
    return graph


def test_unequal_branches_join_once(everywhere: Play) -> None:
    run = everywhere(fork().compile(), {})
    assert run.status == "completed"
    assert run.state["log"] == ["a", "b", "b2", "c", "j"]
    assert [c.node for c in run.commits] == ["START", "a", "b", "c", "b2", "join:j", "j"]
    assert [c.version for c in run.commits] == list(range(7))
    assert run.prediction.count == 5


class Turnstile:
    """Lets nodes finish in one order, whatever order they start in: no node passes before its predecessors have."""

    def __init__(self, order: list[str]) -> None:
        self.order = order
        self.passed: list[str] = []
        self.moved = threading.Condition()

    def passing(self, name: str) -> None:
        with self.moved:
            ready = self.moved.wait_for(lambda: self.order[len(self.passed)] == name, timeout=20)
            assert ready, f"{name} waited for {self.order[len(self.passed) :]}"
            self.passed.append(name)
            self.moved.notify_all()


@each("order", [["b", "c", "d"], ["d", "c", "b"], ["c", "d", "b"]], ids=" ".join)
def test_order_of_completion_changes_nothing(everywhere: Play, order: list[str]) -> None:
    gate = Turnstile(order)
    graph = Graph(Log, merge="last_write_wins")
    graph.add_node("a", says("a"))

    def node(name: str) -> Any:
        def work(state: Any) -> dict[str, Any]:
            gate.passing(name)
            return {"log": [name], "value": name}

        return work

    for name in "bcd":
        graph.add_node(name, node(name))
    graph.add_node("j", says("j"))
    graph.add_path(START, "a").add_edge("a", ["b", "c", "d"]).add_edge(["b", "c", "d"], "j").add_edge("j", END)
    run = everywhere(graph.compile(), {})
    assert gate.passed == order
    assert run.state["log"] == ["a", "b", "c", "d", "j"]
    assert run.state["value"] == "d"
    (conflict,) = run.conflicts
    assert isinstance(conflict, MergedConflict)
    assert (conflict.values, conflict.winner) == ((("b", "b"), ("c", "c"), ("d", "d")), "d")
    assert run.blame("value").node == "d"


def test_a_branch_continues_while_its_sibling_works(play: Play) -> None:
    """`d` starts alone while `b` runs, and ends only after what follows `b`, which does not wait for it."""
    gate = Turnstile(["c", "b", "b2", "d"])

    def node(name: str) -> Any:
        def work(state: Any) -> dict[str, Any]:
            gate.passing(name)
            return {"log": [name]}

        return work

    graph = Graph(Log)
    for name in ("b", "b2", "c", "d"):
        graph.add_node(name, node(name))
    graph.add_edge(START, ["b", "c"]).add_path("b", "b2", END).add_path("c", "d", END)
    run = play(graph.compile(), {})
    assert run.error is None
    assert run.state["log"] == ["b", "b2", "c", "d"]


def test_async_and_sync_nodes_can_be_mixed(everywhere: Play) -> None:
    async def a(state: Any) -> dict[str, Any]:
        await anyio.lowlevel.checkpoint()
        return {"log": ["a"]}

    async def b(state: Any) -> dict[str, Any]:
        await anyio.lowlevel.checkpoint()
        return {"log": ["b"]}

    graph = Graph(Log).add_node("a", a).add_node("b", b).add_node("c", says("c")).add_node("j", says("j"))
    graph.add_path(START, "a").add_edge("a", ["b", "c"]).add_edge(["b", "c"], "j").add_edge("j", END)
    assert everywhere(graph.compile(), {}).state["log"] == ["a", "b", "c", "j"]


def test_async_branches_wait_for_each_other_on_one_loop() -> None:
    """Two async nodes of a sync run share an event loop, so that they can talk to each other."""
    bells: list[asyncio.Event] = []

    def bell() -> asyncio.Event:
        if not bells:
            bells.append(asyncio.Event())
        return bells[0]

    async def hear(state: Any) -> dict[str, Any]:
        await asyncio.wait_for(bell().wait(), 20)
        return {"log": ["heard"]}

    async def tell(state: Any) -> dict[str, Any]:
        bell().set()
        return {"log": ["told"]}

    graph = Graph(Log).add_node("hear", hear).add_node("tell", tell)
    graph.add_edge(START, ["hear", "tell"]).add_edge(["hear", "tell"], END)
    assert graph.compile().run({}).state["log"] == ["heard", "told"]


def test_running_siblings_finish_after_a_failure(everywhere: Play) -> None:
    calls: Counter[str] = Counter()
    gate = Turnstile(["b", "d", "c"])

    def node(name: str) -> Any:
        def work(state: Any) -> dict[str, Any]:
            calls[name] += 1
            gate.passing(name)
            if name in "bd":
                raise KeyError(f"no {name}")
            return {"log": [name]}

        return work

    graph = Graph(Log).add_node("a", says("a")).add_node("j", says("j"))
    for name in "bcd":
        graph.add_node(name, node(name))
    graph.add_path(START, "a").add_edge("a", ["b", "c", "d"]).add_edge(["b", "c", "d"], "j").add_edge("j", END)
    program = graph.compile()
    run = everywhere(program, {})
    assert run.status == "failed"
    assert isinstance(run.error, KeyError)
    assert run.error.args == ("no b",)
    assert any("in node 'b' (branch 0, visit 1, attempt 1)" in note for note in run.error.__notes__)
    assert any("also failed: 'd'" in note for note in run.error.__notes__)
    assert calls == {"b": 1, "c": 1, "d": 1}
    assert run.state["log"] == ["a"], "the last state that all branches shared"
    assert {path: state["log"] for path, state in run.branches.items()} == {(0,): ["a"], (1,): ["a", "c"], (2,): ["a"]}
    assert [(c.node, c.version) for c in run.commits] == [("START", 0), ("a", 1), ("c", None)]
    with pytest.raises(KeyError, match="no b"):
        _ = run.prediction


BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda state: 3, NodeOutputError, "'bad'"),
    (lambda state: {"lgo": ["x"]}, NodeOutputError, "log"),
    (lambda state: {"count": "many"}, NodeOutputError, "count"),
    (lambda state: {"value": object()}, Exception, "value"),
    (lambda state: Command(update={"log": ["x"]}, goto="nowhere"), RouteError, "nowhere"),
]


def test_bad_output_changes_nothing(play: Play) -> None:
    for node, error, text in BAD:
        graph = Graph(Log).add_node("bad", node, goto=["bad"]).add_path(START, "bad", END)
        run = play(graph.compile(), {"start": "here"})
        assert isinstance(run.error, error)
        assert text in str(run.error)
        assert run.state == {"start": "here", "log": [], "count": 0, "value": None}
        assert len(run.commits) == 1


def test_send_fans_out_and_joins_in_order(play: Play) -> None:
    def split(state: Any) -> list[Send]:
        return [Send("work", {"item": i}) for i in range(20)]

    graph = (
        Graph(Log).add_node("a", says("a")).add_node("work", lambda item: {"log": [str(item)]}).add_node("j", says("j"))
    )
    graph.add_edge(START, "a").add_conditional_edges("a", split, ["work"]).add_path("work", "j", END)
    run = play(graph.compile(), {})
    assert run.state["log"] == ["a", *map(str, range(20)), "j"]
    assert "item" not in run.state


def test_map_keeps_the_order_of_the_items(play: Play) -> None:
    gate = Turnstile(["2", "0", "1"])

    def measure(item: str) -> dict[str, Any]:
        gate.passing(item)
        return {"size": int(item)}

    graph = Graph().add_map("measure", measure, over="items", item="item", into="sizes").add_path(START, "measure", END)
    program = graph.compile()
    run = play(program, {"items": ["0", "1", "2"]})
    assert run.state["sizes"] == [0, 1, 2]
    assert [c.node for c in run.commits] == ["START", "measure"]
    assert play(program, {"items": []}).state["sizes"] == []


def test_a_subgraph_returns_what_has_changed(everywhere: Play) -> None:
    inner = Graph(Log, name="Inner", inputs=["log", "count", "value"])
    inner.add_node("x", says("x")).add_node("y", says("y")).add_node("z", lambda value: {"value": [value, "z"]})
    inner.add_edge(START, ["x", "y"]).add_edge(["x", "y"], "z").add_edge("z", END)
    outer = (
        Graph(Log)
        .add_node("a", lambda state: {"log": ["a"], "count": 1, "value": "v"})
        .add_node("inner", inner.compile())
    )
    outer.add_node("b", says("b")).add_path(START, "a").add_edge("a", ["inner", "b"]).add_edge(["inner", "b"], END)
    run = everywhere(outer.compile(), {})
    assert run.state["log"] == ["a", "x", "y", "b"], "nothing doubles, no inputs echoed"
    assert run.state["count"] == 4
    assert run.state["value"] == ["v", "z"]
    inside = [event for event in run.events if isinstance(event, Committed) and event.scope]
    assert sorted(event.commit.node for event in inside) == ["START", "join:z", "x", "y", "z"]
    assert {event.scope for event in inside} == {("0:0",)}


def test_a_failure_in_a_subgraph_is_raised_unwrapped(play: Play) -> None:
    def fails(state: Any) -> None:
        raise LookupError("inside")

    inner = Graph(Log, name="Inner").add_node("x", fails).add_path(START, "x", END).compile()
    run = play(Graph(Log).add_node("x", inner).add_path(START, "x", END).compile(), {})
    assert isinstance(run.error, LookupError)
    assert [note for note in run.error.__notes__ if "in node" in note] == [
        "in node 'x' of graph 'Inner' (branch trunk, visit 1, attempt 1)",
        "in node 'x' (branch trunk, visit 1, attempt 1)",
    ]


def test_limits(play: Play) -> None:
    graph = Graph(Log).add_node("a", says("a")).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda count: "again", {"again": "a", "done": END})
    run = play(graph.compile(max_steps=7), {})
    assert isinstance(run.error, StepLimitError)
    assert "a 7x" in str(run.error)
    run = play(graph.compile(budget=Budget(node_calls=3)), {})
    assert isinstance(run.error, BudgetError)
    assert (run.status, run.error.reason) == ("stopped", "node_calls: 3 of 3")


def test_context_and_events(everywhere: Play) -> None:
    seen: list[Context] = []

    def work(ctx: Context) -> dict[str, Any]:
        seen.append(ctx)
        ctx.emit({"progress": ctx.visit})
        return {"log": [ctx.execution]}

    graph = Graph(Log).add_node("work", work).add_edge(START, "work")
    graph.add_conditional_edges(
        "work", lambda ctx: "again" if ctx.visit < 2 else "done", {"again": "work", "done": END}
    )
    run = everywhere(graph.compile(), {})
    assert [(ctx.run_id, ctx.node, ctx.branch, ctx.visit, ctx.execution) for ctx in seen] == [
        (run.run_id, "work", (), 1, "trunk:1"),
        (run.run_id, "work", (), 2, "trunk:2"),
    ]
    assert [type(event) for event in graph.compile().stream({})] == [
        RunStarted, Committed, NodeStarted, Emitted, Committed, NodeStarted, Emitted, Committed, RunEnded,
    ]  # fmt: skip
    kinds = {type(event) for event in everywhere(fork().compile(), {}).events}
    assert kinds == {RunStarted, NodeStarted, Committed, Forked, Joined, Numbered, RunEnded}


def test_resources_reach_the_nodes_that_declare_them(play: Play) -> None:
    class Client:
        def fetch(self) -> str:
            return "fetched"

    graph = Graph(Log).add_node("a", lambda state: {"log": ["a"]})

    def fetch(client: Client) -> dict[str, Any]:
        return {"log": [client.fetch()]}

    fetch.__annotations__["client"] = Client  # the annotation is text, and the class is local
    program = graph.add_node(fetch).add_path(START, "a", "fetch", END).compile()
    assert play(program, {}, resources=[Client()]).state["log"] == ["a", "fetched"]
    assert play(program.with_resources([Client()]), {}).state["log"] == ["a", "fetched"]
    with pytest.raises(InputError, match="Client"):
        play(program, {})


def test_inputs_are_checked_before_anything_starts(play: Play) -> None:
    calls: list[str] = []

    class Asked(BaseModel):
        question: str
        limit: int = 3
        answer: str | None = None

    graph = Graph(Asked).add_node("a", lambda question: calls.append("a"), writes=["answer"]).add_path(START, "a", END)
    program = graph.compile()
    for inputs in (
        {},
        {"qestion": "?"},
        {"question": 3},
        {"question": "?", "limit": "many"},
        {"question": "?", "answer": ""},
    ):
        with pytest.raises(InputError):
            play(program, inputs)
    assert calls == []
    assert play(program, {"question": "?"}).status == "completed"


def summary(run: Run) -> tuple[Any, ...]:
    """All that must not depend on timing, threads or colour."""
    commits = [replace(c, started=0.0, duration=0.0, patch=dict(c.patch)) for c in run.commits]
    return run.status, run.state.to_dict(), commits, run.conflicts


@pytest.mark.slow("a random graph, run three times, for each example")
@given(plans(), st.sampled_from(["asyncified", "inside a loop", "streamed"]), st.randoms(use_true_random=False))
def test_both_drivers_give_the_same_run(plan: Plan, place: str, rng: random.Random) -> None:
    """Random graphs through both drivers, the order of completion forced at random."""
    runs = []
    for name in ("sync", "async", place):
        calls: Counter[str] = Counter()
        program = random_program(plan, calls, random.Random(rng.random()))
        run = PLAYS[name](program, {})
        runs.append((summary(run), calls))
    if runs[0][0][0] == "completed":
        assert runs[1] == runs[0]
        assert runs[2] == runs[0]
    else:
        assert all(run[0][0] == "failed" for run in runs)


def random_program(plan: Plan, calls: Counter[str], rng: random.Random) -> Any:
    """The graph of a plan. Sibling nodes are held back until a random one of them may continue."""
    graph = Graph(Log, merge=plan.merge)
    held = threading.Condition()
    waiting: list[object] = []

    def node(name: str, write: int) -> Any:
        def work(ctx: Context) -> dict[str, Any]:
            with held:
                calls[name] += 1
                me = object()
                waiting.append(me)
                if len(waiting) > 1:  # several wait: let a random one go first
                    rng.shuffle(waiting)
                waiting.remove(me)
                held.notify_all()
            update: dict[str, Any] = {"log": [ctx.execution], "count": 1}
            return update if write % 3 == 0 else {**update, "value": write}

        return work

    def route(name: str) -> Any:
        def decide(ctx: Context) -> list[str | Send]:
            ways = plan.routes[name]
            chosen = ways[min(ctx.visit, len(ways)) - 1].split()
            return [Send(way.strip("()"), {}) if way.startswith("(") else way for way in chosen]

        return decide

    for name in plan.nodes:
        graph.add_node(name, node(name, plan.writes[name]))
    for source, targets in plan.edges.items():
        graph.add_edge(source, targets.split())
    for source, targets in plan.conditional.items():
        graph.add_conditional_edges(source, route(source), targets.split())
    for name in unreached(plan):
        graph.add_edge(START, name)
    return graph.compile(max_steps=40)


def unreached(plan: Plan) -> list[str]:
    """Nodes that nothing leads to; compile() refuses such a graph, so they start with the others."""
    ways = {**plan.edges}
    for source, targets in plan.conditional.items():
        ways[source] = f"{ways.get(source, '')} {targets}"
    reached: list[str] = []
    found: set[str] = set()
    for root in (START, *plan.nodes):
        if root != START and root not in found:
            reached.append(root)
        work = [root]
        while work:
            for target in ways.get(work.pop(), "").split():
                if target not in found and target != END:
                    found.add(target)
                    work.append(target)
        found.add(root)
    return reached


def test_a_stream_that_is_closed_starts_nothing_more() -> None:
    calls: list[str] = []
    reached, go_on = threading.Event(), threading.Event()

    def slow(state: Any) -> None:
        calls.append("slow")
        reached.set()
        assert go_on.wait(20)

    graph = Graph(Log).add_node("slow", slow).add_node("after", lambda state: calls.append("after"))
    stream = graph.add_path(START, "slow", "after", END).compile().stream({})
    with stream:
        next(stream)
        assert reached.wait(20)
        stream._request.stop_signal.stop("the test stops it")
        go_on.set()
    assert calls == ["slow"]


def test_async_stream_gives_events_as_they_happen() -> None:
    async def collect() -> tuple[list[str], Any]:
        stream = fork().compile().astream({})
        names = [type(event).__name__ async for event in stream]
        return names, stream.run

    names, run = asyncio.run(collect())
    assert (names[0], names[-1]) == ("RunStarted", "RunEnded")
    assert run.state["count"] == 5


def test_cancelling_an_async_run_cancels_its_nodes() -> None:
    cancelled: list[str] = []

    async def main() -> None:
        started = asyncio.Event()

        async def waits(state: Any) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append("waits")
                raise

        graph = Graph(Log).add_node("waits", waits).add_node("beside", waits)
        program = graph.add_edge(START, ["waits", "beside"]).add_edge(["waits", "beside"], END).compile()
        task = asyncio.ensure_future(program.acall())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cancelled == ["waits", "waits"]


def test_a_time_limit_waits_until_cancelled_nodes_have_cleaned_up() -> None:
    began: list[str] = []
    tidied: list[str] = []
    scopes: list[anyio.CancelScope] = []

    async def waits(state: Any, ctx: Context) -> None:
        began.append(ctx.node)
        if len(began) == 2:
            scopes[0].cancel()
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
            tidied.append(ctx.node)

    async def main() -> None:
        graph = Graph(Log).add_node("waits", waits).add_node("beside", waits)
        program = graph.add_edge(START, ["waits", "beside"]).add_edge(["waits", "beside"], END).compile()
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await program.acall()
        assert scope.cancelled_caught
        assert sorted(tidied) == ["beside", "waits"]

    asyncio.run(main())


def test_an_interrupt_of_the_process_is_no_failure_of_a_node() -> None:
    def work(state: Any) -> None:
        raise KeyboardInterrupt

    program = Graph(Log).add_node("a", work).add_path(START, "a", END).compile()
    with pytest.raises(KeyboardInterrupt):
        program.run({})
    with pytest.raises(KeyboardInterrupt):
        program()


def test_node_failed_event_holds_the_error(play: Play) -> None:
    def fails(state: Any) -> None:
        raise OSError("disk")

    run = play(Graph(Log).add_node("a", fails).add_path(START, "a", END).compile(), {})
    (event,) = [event for event in run.events if isinstance(event, NodeFailed)]
    assert event.error is run.error


def test_a_resolved_conflict_is_logged_once(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    def graph(name: str) -> Graph:
        built = Graph(Log, name=name, merge="last_write_wins")
        for node in "bc":
            built.add_node(node, lambda ctx: {"value": ctx.node})
        return built.add_edge(START, ["b", "c"]).add_edge(["b", "c"], END)

    outer = Graph(Log).add_node("inner", graph("Inner").compile()).add_path(START, "inner", END)
    for program in (graph("Plain").compile(), outer.compile()):
        caplog.clear()
        with caplog.at_level(logging.INFO, "dspyer"):
            play(program, {})
        assert [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "dspyer"] == [
            ("INFO", "join at END: b, c wrote 'value', last_write_wins kept 'c' by c")
        ]


def test_a_send_to_the_end_is_refused(play: Play) -> None:
    graph = Graph(Log).add_node("a", says("a")).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: [Send(END, {})], ["a", END])
    error = play(graph.compile(), {}).error
    assert isinstance(error, RouteError)
    assert "Send(END)" in str(error)


def test_positional_inputs_are_refused() -> None:
    program = fork().compile()
    with pytest.raises(InputError, match=r"write program\(start=\.\.\.\)"):
        program("x")
    with pytest.raises(InputError, match="by name"):
        asyncio.run(program.acall("x"))


def test_a_goto_replaces_the_edges(play: Play) -> None:
    def decide(count: int) -> Command:
        return Command(update={"count": 1}, goto="left" if count == 0 else None)

    graph = Graph(Log).add_node("decide", decide, goto=["left"], writes=["count"])
    graph.add_node("left", lambda state: {"log": ["left"]}).add_node("right", lambda state: {"log": ["right"]})
    graph.add_path(START, "decide", "right", END).add_edge("left", "decide")
    run = play(graph.compile(), {})
    assert [c.node for c in run.commits] == ["START", "decide", "left", "decide", "right"]


def test_an_error_that_counts_as_false_is_an_error(play: Play) -> None:
    class EmptyError(Exception):
        def __len__(self) -> int:
            return 0

    def fails(state: Any) -> None:
        raise EmptyError

    run = play(Graph(Log).add_node("a", fails).add_path(START, "a", END).compile(), {})
    assert isinstance(run.error, EmptyError)
    assert run.status == "failed"


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("handled", [False, True], ids=["raised", "handled"])
def test_the_error_of_a_task_group_is_no_cancellation_of_the_run(handled: bool, mode: str) -> None:
    """Python 3.11 leaves the task around a group that failed marked as cancelled."""

    async def fails() -> None:
        raise ValueError("bad")

    async def group() -> dict[str, Any]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())
        return {}

    async def handles() -> dict[str, Any]:
        try:
            return await group()
        except* ValueError:
            pass
        return {"x": 1}

    graph = Graph().add_node("group", handles if handled else group, writes=["x"])
    program = graph.add_node("next", lambda x: {"y": x}, writes=["y"]).add_path(START, "group", "next", END).compile()
    run = program.run({}) if mode == "sync" else asyncio.run(program.arun({}))
    if handled:
        assert run.state["y"] == 1
        return
    assert isinstance(run.error, ExceptionGroup)
    assert run.status == "failed"
