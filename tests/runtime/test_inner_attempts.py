"""A graph that is a node and is attempted again continues its run (C7): what has finished is not called again."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import AfterValidator, BaseModel

from dspyer import (
    END,
    START,
    Breakpoints,
    CompiledGraph,
    Context,
    Graph,
    Retry,
    Run,
    Send,
    live,
    reducers,
)
from dspyer.errors import AttemptOverError, NodeTimeoutError, StoreError
from dspyer.events import Committed
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Change
from dspyer.testing import ScriptedLM, no_pauses
from tests.timeouts import TimeIsOver

ANY = Retry(4, on=Exception)
ROWS = (
    pytest.mark.parametrize(("mode", "stored"), [("sync", True), ("async", False)]),
    pytest.mark.parametrize(("mode", "stored"), [("sync", False), ("async", True)]),
)


@pytest.fixture(autouse=True)
def pauses() -> Iterator[list[float]]:
    with no_pauses() as asked:
        yield asked


class Words(BaseModel):
    n: int = 0
    words: Annotated[list[str], reducers.extend] = []


class Counted:
    """Nodes that count their calls, and fail as often as told."""

    def __init__(self, **failures: int) -> None:
        self.calls: Counter[str] = Counter()
        self.failures = failures

    def node(self, name: str) -> Callable[..., Any]:
        def step(n: int) -> dict[str, Any]:
            self.calls[name] += 1
            if self.calls[name] <= self.failures.get(name, 0):
                raise ConnectionError(f"{name} has no line")
            return {"words": [f"{name}{n}"]}

        return step

    def add(self, graph: Graph, *names: str, **options: Any) -> Graph:
        for name in names:
            graph.add_node(name, self.node(name), **options)
        return graph


def run(graph: Graph, mode: str, stored: bool, path: Path, **options: Any) -> Run:
    store = path / "runs.db" if stored else None
    program = graph.compile(store=store, **options)
    if not stored:
        return program.run({}) if mode == "sync" else asyncio.run(program.arun({}))
    t = program.thread("t")
    found = t.run({}) if mode == "sync" else asyncio.run(t.arun({}))
    if found.status == "completed":
        assert program.thread("t").replay() == found.state  # each inner commit is stored once, and folds
        assert stored_commits(path) == len(
            {(one.scope, one.commit.id) for one in found.events if isinstance(one, Committed)}
        )
    return found


def stored_commits(path: Path) -> int:
    """How many commits the thread has, of all graphs."""
    store = SQLite(path / "runs.db")
    row = store.thread("t")
    assert row is not None
    assert row.head is not None
    kinds = [one.kind for one in store.rows(row.head.run)]
    store.close()
    return sum(kind in ("commit", "join") for kind in kinds)


def around(inner: CompiledGraph, retry: Any = ANY) -> Graph:
    return Graph(Words, name="Outer").add_node("inner", inner, retry=retry).add_path(START, "inner", END)


@ROWS[1]
def test_finished_nodes_of_a_chain_are_not_called_again(mode: str, stored: bool, tmp_path: Path) -> None:
    nodes = Counted(b=2)
    inner = nodes.add(Graph(Words, name="Inner"), "a", "b", "c").add_path(START, "a", "b", "c", END).compile()
    ran = run(around(inner), mode, stored, tmp_path)
    assert ran.status == "completed", ran.error
    assert ran.state["words"] == ["a0", "b0", "c0"]
    assert nodes.calls == {"a": 1, "b": 3, "c": 1}
    assert (ran.commits[1].attempt, len(ran.commits[1].failed_attempts)) == (3, 2)


@ROWS[0]
def test_finished_branches_of_a_fork_are_not_called_again(mode: str, stored: bool, tmp_path: Path) -> None:
    """The join must wait for the branch that failed."""
    nodes = Counted(b=2, join=1)
    inner = nodes.add(Graph(Words, name="Inner"), "a", "b", "c", "join")
    inner.add_edge(START, ["a", "b", "c"])
    for name in "abc":
        inner.add_edge(name, "join")
    inner.add_edge("join", END)
    ran = run(around(inner.compile()), mode, stored, tmp_path)
    assert ran.status == "completed", ran.error
    assert ran.state["words"] == ["a0", "b0", "c0", "join0"]
    assert nodes.calls == {"a": 1, "b": 3, "c": 1, "join": 2}


@ROWS[1]
def test_branches_of_sends_are_continued(mode: str, stored: bool, tmp_path: Path) -> None:
    nodes = Counted(work=1)
    inner = nodes.add(Graph(Words, name="Inner"), "work", "join", "plan")

    def fan(n: int) -> list[Send]:
        return [Send("work", {"n": k}) for k in range(3)]

    inner.add_edge(START, "plan").add_conditional_edges("plan", fan, ["work"])
    inner.add_path("work", "join", END)
    ran = run(around(inner.compile()), mode, stored, tmp_path, max_concurrency=1)
    assert ran.status == "completed", ran.error
    assert ran.state["words"] == ["plan0", "work0", "work1", "work2", "join0"]
    assert nodes.calls["work"] == 4
    assert nodes.calls["plan"] == 1


@ROWS[0]
def test_graphs_within_graphs(mode: str, stored: bool, tmp_path: Path) -> None:
    nodes = Counted(deep=3, after=1)
    deep = nodes.add(Graph(Words, name="Deep"), "first", "deep").add_path(START, "first", "deep", END).compile()
    middle = Graph(Words, name="Middle").add_node("nested", deep)
    nodes.add(middle, "before", "after").add_path(START, "before", "nested", "after", END)
    ran = run(around(middle.compile(), Retry(5, on=Exception)), mode, stored, tmp_path)
    assert ran.status == "completed", ran.error
    assert ran.state["words"] == ["before0", "first0", "deep0", "after0"]
    assert nodes.calls == {"before": 1, "first": 1, "deep": 4, "after": 2}


@ROWS[1]
def test_policies_multiply(mode: str, stored: bool, tmp_path: Path) -> None:
    """Up to 2 x 3 calls, and each attempt of the inner node counts from 1 again."""
    nodes = Counted(b=5)
    inner = nodes.add(Graph(Words, name="Inner"), "a")
    nodes.add(inner, "b", retry=Retry(3, on=Exception))
    ran = run(around(inner.add_path(START, "a", "b", END).compile(), Retry(2, on=Exception)), mode, stored, tmp_path)
    assert ran.status == "completed", ran.error
    assert nodes.calls == {"a": 1, "b": 6}


@ROWS[0]
def test_a_completed_inner_run_whose_output_is_refused_is_not_made_again(
    mode: str, stored: bool, tmp_path: Path
) -> None:
    nodes = Counted()
    inner = nodes.add(Graph(Words, name="Inner"), "a").add_path(START, "a", END).compile()

    class Short(BaseModel):
        n: int = 0
        words: Annotated[list[str], reducers.extend] = []

    graph = Graph(Short, name="Outer").add_node("inner", inner, retry=ANY, condense={"words": Flaky()})
    ran = run(graph.add_path(START, "inner", END), mode, stored, tmp_path)
    assert ran.status == "completed", ran.error
    assert nodes.calls == {"a": 1}


class Flaky(dspy.Module):
    """Condenses at the third call."""

    calls = 0

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def forward(self, text: str) -> Any:
        self.calls += 1
        if self.calls < 3:
            raise ConnectionError("no line")
        return dspy.Prediction(short=text[:1])


@ROWS[1]
def test_a_loop_of_visits_keeps_each_run_apart(mode: str, stored: bool, tmp_path: Path) -> None:
    nodes = Counted(b=1)
    inner = nodes.add(Graph(Words, name="Inner"), "a", "b").add_path(START, "a", "b", END).compile()
    graph = Graph(Words, name="Outer").add_node("inner", inner, retry=ANY)
    graph.add_node("count", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_path(START, "inner", "count")
    graph.add_conditional_edges("count", lambda n: "inner" if n < 3 else END, ["inner", END])
    ran = run(graph, mode, stored, tmp_path)
    assert ran.state["words"] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert nodes.calls == {"a": 3, "b": 4}


class Hangs(Counted):
    """Its node `b` hangs when it is first called, until the test ends."""

    def __init__(self, time_is_over: TimeIsOver) -> None:
        super().__init__()
        self.time_is_over = time_is_over
        self.go_on = threading.Event()
        self.ended = False

    def node(self, name: str) -> Callable[..., Any]:
        step = super().node(name)

        def hangs(n: int) -> dict[str, Any]:
            found: dict[str, Any] = step(n)
            if name == "b" and self.calls["b"] == 1:
                self.time_is_over()
                self.go_on.wait(20)
                self.ended = True
            return found

        return hangs


def called(n: int, inner: Any, ctx: Context) -> dict[str, Any]:
    return {"words": ctx.call(inner, {"n": n}).words}


def called_in_threads(n: int, inner: Any, ctx: Context) -> dict[str, Any]:
    with ThreadPoolExecutor(1) as pool:
        return {"words": pool.submit(ctx.call, inner, {"n": n}).result().words}


async def awaited(n: int, inner: Any, ctx: Context) -> dict[str, Any]:
    return {"words": (await ctx.acall(inner, {"n": n})).words}


@pytest.mark.parametrize(
    ("call", "mode", "stored"),
    [
        (None, "sync", True),
        (None, "async", False),
        (called, "sync", False),
        (called_in_threads, "async", True),
        (awaited, "async", True),
    ],
)
def test_after_a_timeout_finished_nodes_are_not_called_again(
    call: Any, mode: str, stored: bool, tmp_path: Path, time_is_over: TimeIsOver
) -> None:
    """Also if sync code inside of it still runs in a thread: the next attempt gets what was committed by then."""
    nodes = Hangs(time_is_over)
    inner = nodes.add(Graph(Words, name="Inner", outputs=["words"]), "a", "b", "c").add_path(START, "a", "b", "c", END)
    modules: dict[str, Any] = {} if call is None else {"modules": {"inner": inner}}
    graph = Graph(Words, name="Outer").add_node(
        "inner", call or inner.compile(), retry=ANY, timeout=0.1, writes=["words"], **modules
    )
    ran = run(graph.add_path(START, "inner", END), mode, stored, tmp_path)
    assert not nodes.ended  # the second attempt does not wait for the first one
    nodes.go_on.set()
    assert ran.status == "completed", ran.error
    assert ran.state["words"] == ["a0", "b0", "c0"]
    assert nodes.calls == {"a": 1, "b": 2, "c": 1}
    time_is_over.wait_for_workers(2)
    if stored:
        assert stored_commits(tmp_path) == 6


def test_after_a_timeout_async_code_counts_that_was_done_in_time(time_is_over: TimeIsOver) -> None:
    """The run has not looked at it yet, since its store was slow. Beside it, sync code is left running."""
    calls: Counter[str] = Counter()
    go_on = threading.Event()

    class Slow(Memory):
        def write_now(self, change: Change) -> bool:
            return False

        def write(self, change: Change) -> int:
            if calls["first"] and not go.is_set():
                loops[0].call_soon_threadsafe(go.set)
                asyncio.run_coroutine_threadsafe(rounds(), loops[0]).result()  # `second` returns
                time_is_over()
                asyncio.run_coroutine_threadsafe(rounds(), loops[0]).result()  # `hangs` is left running
            return super().write(change)

    async def rounds() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def first() -> None:
        calls["first"] += 1

    async def second() -> None:
        calls["second"] += 1
        await go.wait()

    def hangs() -> None:
        calls["hangs"] += 1
        if calls["hangs"] == 1:
            go_on.wait(20)

    async def arun() -> Run:
        loops.append(asyncio.get_running_loop())
        return await graph.compile(store=Slow()).thread("t").arun({})

    go = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    inner = Graph(name="Inner")
    for node in (hangs, second, first):
        inner.add_node(node.__name__, node, writes=[]).add_path(START, node.__name__, END)
    graph = Graph(name="Outer").add_node("inner", inner.compile(), retry=ANY, timeout=0.1).add_path(START, "inner", END)
    ran = asyncio.run(arun())
    go_on.set()
    assert ran.status == "completed", ran.error
    assert calls == {"first": 1, "second": 1, "hangs": 2}


@ROWS[1]
def test_after_a_timeout_an_inner_graph_continues_with_all_posts(
    mode: str, stored: bool, tmp_path: Path, time_is_over: TimeIsOver
) -> None:
    class Notes(BaseModel):
        notes: Annotated[list[str], reducers.append, live] = []

    calls: Counter[str] = Counter()
    go_on = threading.Event()

    def first(ctx: Context) -> None:
        calls["first"] += 1
        ctx.post("notes", "first")

    def hangs(ctx: Context) -> None:
        calls["hangs"] += 1
        ctx.post("notes", f"attempt {calls['hangs']}")
        if calls["hangs"] == 1:
            time_is_over()
            go_on.wait(20)

    inner = Graph(Notes, name="Inner").add_node("first", first, writes=["notes"])
    inner.add_node("hangs", hangs, writes=["notes"]).add_path(START, "first", "hangs", END)
    graph = Graph(Notes, name="Outer").add_node("inner", inner.compile(), retry=ANY, timeout=0.1)
    ran = run(graph.add_path(START, "inner", END), mode, stored, tmp_path)
    go_on.set()
    assert ran.status == "completed", ran.error
    assert ran.state["notes"] == ["first", "attempt 1", "attempt 2"]
    assert calls == {"first": 1, "hangs": 2}


@ROWS[1]
def test_a_post_that_comes_too_late_is_neither_stored_nor_read(
    mode: str, stored: bool, tmp_path: Path, time_is_over: TimeIsOver
) -> None:
    """It was begun in time: the field's own check has taken too long."""
    go_on, ended = threading.Event(), threading.Event()
    calls: list[str] = []
    refused: list[str] = []

    def checked(note: str) -> str:
        if note == "attempt 1" and not go_on.is_set():  # the schema of the graph around checks it again
            time_is_over()
            go_on.wait(20)
        return note

    class Notes(BaseModel):
        notes: Annotated[list[Annotated[str, AfterValidator(checked)]], reducers.append, live] = []

    def post(ctx: Context) -> None:
        calls.append("post")
        if len(calls) > 1:
            ctx.post("notes", "attempt 2")
            go_on.set()
            assert ended.wait(20)
        else:
            try:
                ctx.post("notes", "attempt 1")
            except AttemptOverError:
                refused.append("attempt 1")
            finally:
                ended.set()

    inner = Graph(Notes, name="Inner").add_node("post", post, writes=["notes"])
    inner.add_path(START, "post", END)
    graph = Graph(Notes, name="Outer").add_node("inner", inner.compile(), retry=ANY, timeout=0.1)
    ran = run(graph.add_path(START, "inner", END), mode, stored, tmp_path)
    assert ran.status == "completed", ran.error
    assert (ran.state["notes"], calls, refused) == (["attempt 2"], ["post", "post"], ["attempt 1"])


@pytest.mark.parametrize("where", ["alone", "in a graph"])
def test_a_graph_that_ends_in_the_moment_of_the_timeout_has_timed_out(where: str, time_is_over: TimeIsOver) -> None:
    """The limit stops it before its task is cancelled: that is no cancellation of the run."""
    calls: list[str] = []

    async def first() -> None:
        calls.append("first")
        if len(calls) == 1:
            time_is_over()
            await asyncio.sleep(0)  # the limit ends here, and the cancellation comes in the next round of the loop

    inner = Graph(name="Inner").add_node("first", first, writes=[])
    inner.add_node("second", lambda: calls.append("second"), writes=[]).add_path(START, "first", "second", END)
    graph = Graph(name="Outer").add_node("inner", inner.compile(), retry=ANY, timeout=0.1)
    graph.add_path(START, "inner", END)
    if where == "in a graph":
        graph = Graph(name="Around").add_node("outer", graph.compile()).add_path(START, "outer", END)
    ran = asyncio.run(graph.compile().arun({}))
    assert (ran.status, calls) == ("completed", ["first", "second"])


@pytest.mark.parametrize("what", ["a policy", "what answers"])
def test_a_timeout_does_not_wait_for_code_between_two_nodes(what: str, time_is_over: TimeIsOver) -> None:
    go_on = threading.Event()
    ended: list[str] = []

    def hangs(asked: Any) -> Any:
        time_is_over()
        go_on.wait(20)
        ended.append(what)
        return 1 if what == "a policy" else True

    inner = Graph(name="Inner", merge={"y": hangs}).add_node("a", lambda: {"y": 1}, writes=["y"])
    inner.add_node("b", lambda: {"y": 2} if what == "a policy" else {}, writes=["y"])
    inner.add_node("c", lambda: {"z": 1}, writes=["z"]).add_edge(START, ["a", "b"])
    inner.add_edge(["a", "b"], "c").add_edge("c", END)
    asks: dict[str, Any] = {} if what == "a policy" else {"layers": [Breakpoints(after=["a"])], "answers": hangs}
    graph = Graph(name="Outer").add_node("inner", inner.compile(**asks), timeout=0.1).add_path(START, "inner", END)
    error = graph.compile().run({}).error
    assert (ended, type(error)) == ([], NodeTimeoutError)
    go_on.set()


@ROWS[0]
def test_effects_and_posts_to_live_fields_of_finished_nodes_are_kept(mode: str, stored: bool, tmp_path: Path) -> None:
    class Notes(BaseModel):
        notes: Annotated[list[str], reducers.append, live] = []
        heard: list[str] = []

    charged: list[str] = []
    calls: Counter[str] = Counter()

    def write(ctx: Context) -> dict[str, Any]:
        calls["write"] += 1
        ctx.once("charge", lambda: charged.append("charged"))
        ctx.post("notes", "hello")
        return {}

    async def read(ctx: Context) -> dict[str, Any]:
        calls["read"] += 1
        heard = [entry.value async for entry in ctx.live("notes")]
        if calls["read"] < 3:
            raise ConnectionError("no line")
        return {"heard": heard}

    inner = Graph(Notes, name="Inner").add_node("write", write, writes=["notes"])
    inner.add_node("read", read, writes=["heard"]).add_path(START, "write", END).add_path(START, "read", END)
    graph = Graph(Notes, name="Outer").add_node("inner", inner.compile(), retry=ANY).add_path(START, "inner", END)
    ran = run(graph, mode, stored, tmp_path)
    assert ran.status == "completed", ran.error
    assert ran.state["heard"] == ["hello"]
    assert ran.state["notes"] == ["hello"]
    assert charged == ["charged"]


@ROWS[1]
def test_the_trace_has_the_steps_of_finished_inner_nodes_once(mode: str, stored: bool, tmp_path: Path) -> None:
    """C4: they led to the result, although the attempt in which they were made raised."""
    calls: Counter[str] = Counter()

    def second(n: int, ask: dspy.Module) -> dict[str, Any]:
        calls["second"] += 1
        ask(question="b")
        if calls["second"] < 3:
            raise ConnectionError("no line")
        return {"words": ["b"]}

    inner = Graph(Words, name="Inner")
    inner.add_node("a", lambda n, ask: {"words": [ask(question="a").answer]}, **bound(), writes=["words"])
    inner.add_node("b", second, **bound(), writes=["words"])
    with dspy.context(lm=ScriptedLM(lambda prompt: {"answer": "x"})):
        ran = run(around(inner.add_path(START, "a", "b", END).compile()), mode, stored, tmp_path)
    assert ran.status == "completed", ran.error
    assert [step[1]["question"] for step in ran.trace] == ["a", "b"]
    found = [(step.inputs["question"], step.attempt, step.status) for step in ran.trace_steps]
    assert found == [("b", 1, "lost"), ("b", 2, "lost"), ("a", 3, "used"), ("b", 3, "used")]


def bound() -> dict[str, Any]:
    return {"modules": {"ask": dspy.Predict("question -> answer")}}


@ROWS[0]
def test_a_program_that_a_module_calls_several_times_is_not_continued_within_an_attempt(
    mode: str, stored: bool, tmp_path: Path
) -> None:
    """Each call is a run of its own."""
    nodes = Counted(b=1)
    inner = nodes.add(Graph(Words, name="Inner"), "a", "b").add_path(START, "a", "b", END).compile()

    class Twice(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, n: int) -> Any:
            try:
                self.inner(n=n)
            except ConnectionError:
                nodes.calls["caught"] += 1
            return self.inner(n=n)

    graph = Graph(Words, name="Outer").add_node("twice", Twice(), retry=ANY, reads=["n"], writes=["words"])
    ran = run(graph.add_path(START, "twice", END), mode, stored, tmp_path)
    assert ran.status == "completed", ran.error
    assert nodes.calls == {"a": 2, "b": 2, "caught": 1}


@ROWS[1]
def test_what_passes_every_retry_passes_also_beside_another_failure(mode: str, stored: bool, tmp_path: Path) -> None:
    """C3: of two nodes that fail at once, the first in path order has an error that could be retried."""
    calls: Counter[str] = Counter()

    def fails(n: int) -> dict[str, Any]:
        calls["fails"] += 1
        raise ConnectionError("no line")

    def broken(n: int) -> dict[str, Any]:
        calls["broken"] += 1
        raise StoreError("no space left")

    inner = Graph(Words, name="Inner").add_node("fails", fails, writes=["words"])
    inner.add_node("broken", broken, writes=["words"]).add_edge(START, ["fails", "broken"])
    ran = run(around(inner.add_edge(["fails", "broken"], END).compile()), mode, stored, tmp_path)
    assert isinstance(ran.error, StoreError)
    assert calls == {"fails": 1, "broken": 1}
