"""Retry policies: where they are set, which exceptions they accept, how long they wait, what a reader sees."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dspy
import pytest
from pydantic import BaseModel
from tenacity import retry_if_exception_type, wait_fixed

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, Run
from dspyer.errors import (
    AttemptError,
    AttemptOverError,
    BudgetError,
    CheckError,
    GraphError,
    Interrupted,
    MapError,
    MergeConflictError,
    NodeTimeoutError,
    RouteError,
    RunStoppedError,
    StepLimitError,
    StoreError,
    ThreadError,
    is_transient,
    needs_new_response,
)
from dspyer.events import AttemptFailed, Committed, NodeFailed, NodeStarted
from dspyer.stores import Memory
from dspyer.testing import FakeClock, call_node, clock, no_pauses
from tests.rows import each

MODES = ["sync", "async"]
modes = pytest.mark.parametrize("mode", MODES)
ANY = Retry(3, on=Exception, wait=wait_fixed(2))


@pytest.fixture
def pauses() -> Iterator[list[float]]:
    with no_pauses() as asked:
        yield asked


class Failing:
    """A node that raises what it is told to, and then returns."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.attempts: list[int] = []

    def sync(self, ctx: Context) -> dict[str, Any]:
        self.attempts.append(ctx.attempt)
        if len(self.attempts) <= len(self.errors):
            raise self.errors[len(self.attempts) - 1]
        return {"done": ctx.attempt}

    async def awaited(self, ctx: Context) -> dict[str, Any]:
        return self.sync(ctx)

    def node(self, mode: str) -> Callable[..., Any]:
        return self.sync if mode == "sync" else self.awaited


class Done(BaseModel):
    done: int = 0
    flag: bool = False


class Several(Done):
    many: list[int] = []
    all: list[Any] = []


def program(node: Callable[..., Any], retry: Any = ANY, **options: Any) -> CompiledGraph:
    graph = Graph(Done, name="One").add_node("work", node, retry=retry, writes=["done"])
    return graph.add_path(START, "work", END).compile(**options)


def run(program: CompiledGraph, mode: str, **inputs: Any) -> Run:
    return program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))


# --- rule 3: where a policy is set


@modes
def test_a_policy_of_the_graph_applies_to_nodes_without_one_of_their_own(mode: str, pauses: list[float]) -> None:
    nodes = {name: Failing(*[ConnectionError(name)] * 9) for name in ("default", "own", "none", "graph")}
    attempts = {}
    for name, node in nodes.items():
        graph = Graph(Done, name="G")
        if name == "graph":
            inner = Graph(Done, name="I").add_node("inner", node.node(mode), writes=["done"])
            graph.add_node("n", inner.add_path(START, "inner", END).compile())
        elif name == "default":
            graph.add_node("n", node.node(mode), writes=["done"])
        else:
            graph.add_node("n", node.node(mode), writes=["done"], retry=2 if name == "own" else None)
        run(graph.add_path(START, "n", END).compile(retry=4), mode)
        attempts[name] = node.attempts
    assert attempts == {"default": [1, 2, 3, 4], "own": [1, 2], "none": [1], "graph": [1]}
    del pauses


@modes
def test_without_a_policy_nothing_is_retried(mode: str) -> None:
    """C9."""
    node = Failing(ConnectionError("no line"))
    assert isinstance(run(program(node.node(mode), None), mode).error, ConnectionError)
    assert node.attempts == [1]


def test_explain_lists_policies_and_their_products() -> None:
    deep = Graph(Done, name="D").add_node("draft", lambda done: {}, writes=["done"], retry=2)
    middle = Graph(Done, name="M").add_node("write", deep.add_path(START, "draft", END).compile(), retry=3)
    outer = Graph(Several, name="O").add_node("team", middle.add_path(START, "write", END).compile(), retry=4)
    outer.add_node("after", lambda done: {}, writes=["done"])

    def calls(done: int, write: dspy.Module, ctx: Context) -> dict[str, Any]:
        return {"done": ctx.call(write, {"done": done}).done}

    inner = middle.compile()
    outer.add_node("calls", calls, modules={"write": inner}, writes=["done"], retry=6)
    outer.add_map("items", calls, modules={"write": inner}, over="many", item="done", into="all", retry=7)
    text = outer.add_path(START, "team", "after", "calls", "items", END).compile(retry=5).graph.explain()
    lines = [line.strip() for line in text.splitlines()]
    assert "retries multiply: team/write is called up to 4 x 3 times" in lines
    assert "retries multiply: calls/write/write/draft is called up to 6 x 3 x 2 times" in lines
    assert "retries multiply: items/write/write/draft is called up to 7 x 3 x 2 times" in lines
    assert "retries multiply: team/write/draft is called up to 4 x 3 x 2 times" in lines
    assert next(line for line in lines if line.startswith("team:")).endswith("up to 4 attempts")
    assert next(line for line in lines if line.startswith("after:")).endswith("up to 5 attempts")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"retry": 0}, Exception, "node 'work': Retry"),
        ({"retry": True}, Exception, "node 'work': retry"),
        ({"retry": "3"}, Exception, "node 'work': retry"),
    ],
)
def test_a_wrong_policy_is_a_build_error_that_names_the_node(given: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        program(lambda done: {}, **given)


async def _async_yes(error: BaseException) -> bool:
    return True  # a coroutine is true, whatever it would return


@each(
    ("make", "error"),
    [
        (lambda: Retry(0), ValueError),
        (lambda: Retry(True), TypeError),
        (lambda: Retry(2, on=3), TypeError),  # type: ignore[arg-type]
        (lambda: Retry(2, on=int), TypeError),  # type: ignore[arg-type]
        (lambda: Retry(2, on=()), TypeError),
        (lambda: Retry(2, on=StoreError), ValueError),
        (lambda: Retry(2, on=KeyboardInterrupt), ValueError),
        (lambda: Retry(2, on=(OSError, BudgetError)), ValueError),
        (lambda: Retry(2, wait=3), TypeError),  # type: ignore[arg-type]
        (lambda: Retry(2, on=(OSError, _async_yes)), TypeError),  # type: ignore[arg-type]
        (lambda: Retry(2, on=partial(_async_yes)), TypeError),  # type: ignore[arg-type]
        (lambda: Retry(2, on=retry_if_exception_type(OSError)), TypeError),  # type: ignore[arg-type]
        (lambda: Retry(2, wait=_async_yes), TypeError),  # type: ignore[arg-type]
        (lambda: Retry(2, max_wait=-1), ValueError),
        (lambda: Retry(2, max_wait=float("nan")), ValueError),
    ],
)
def test_a_wrong_policy_is_refused_when_it_is_made(make: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"give|takes|Leave"):
        make()


def test_what_a_predicate_raises_names_the_predicate() -> None:
    """Without its name it looks like an error of the node."""

    def overloaded(error: Any) -> bool:
        return bool(error.status == 429)

    def work() -> dict[str, Any]:
        raise ConnectionError("reset")

    for made in (
        Graph().add_node("work", work, retry=Retry(3, on=overloaded)),
        Graph().add_node("work", work).add_error_edge("work", END, on=overloaded),
    ):
        error = made.add_path(START, "work", END).compile().run({}).error
        assert isinstance(error, AttributeError)
        assert error.__notes__[0] == "in the function 'overloaded' of on=, which was asked about a ConnectionError"


# --- C3: what always propagates


class Fatal(BaseException):
    """No Exception."""


PASSES = [
    GraphError("no start"),
    RouteError("no way"),
    StepLimitError("too long"),
    RunStoppedError("stopped"),
    BudgetError("spent"),
    StoreError("full"),
    ExceptionGroup("tasks", [ValueError("other"), ExceptionGroup("inner", [StoreError("full")])]),
    ThreadError("open"),
    AttemptError("key twice"),
    Fatal(),
    KeyboardInterrupt(),
    SystemExit(1),
]
FAILURES = [
    NodeTimeoutError("late"),
    MapError("few"),
    CheckError("bad"),
    MergeConflictError("lost", ("x",), ("a", "b")),
]


@modes
@each("error", PASSES, ids=lambda error: type(error).__name__)
def test_some_exceptions_pass_at_once(error: BaseException, mode: str, pauses: list[float]) -> None:
    node = Failing(error)
    made = program(node.node(mode), Retry(3, on=lambda error: True))
    if isinstance(error, Exception):
        assert run(made, mode).error is error
    else:
        with pytest.raises(type(error)):
            run(made, mode)
    assert (node.attempts, pauses) == ([1], [])


@modes
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_failures_of_dspyer_are_retried_as_those_of_users(error: Exception, mode: str, pauses: list[float]) -> None:
    node = Failing(error)
    assert run(program(node.node(mode)), mode).state["done"] == 2
    assert pauses == [2.0]


LOST, LATE = ConnectionError("no line"), TimeoutError("late")


@each(
    ("on", "parts", "taken"),
    [
        (is_transient, [LOST, LATE], True),
        (is_transient, [LOST, ExceptionGroup("inner", [LATE])], True),
        (is_transient, [LOST, ValueError("odd")], False),
        ((ConnectionError, TimeoutError), [LOST, LATE], True),
        (ConnectionError, [LOST, LATE], False),
        (ExceptionGroup, [ValueError("odd")], True),
        (ExceptionGroup, [StoreError("full")], False),
    ],
)
def test_a_group_is_retried_if_all_its_parts_are(on: Any, parts: list[Exception], taken: bool) -> None:
    """As an `asyncio.TaskGroup` raises what its tasks have raised. Error edges take the same groups."""
    group = ExceptionGroup("tasks", parts)
    assert (Retry(2, on=on).pause(1, group) is not None) is taken
    if on is is_transient:
        assert is_transient(group) is taken


def test_a_group_pauses_for_the_longest_retry_after_and_asks_anew_if_a_part_needs_it() -> None:
    group = ExceptionGroup("tasks", [AskedToWaitError(7), AskedToWaitError(61), LOST])
    assert Retry(2, on=Exception).pause(1, group) is None
    assert Retry(2, on=Exception, max_wait=61).pause(1, group) == 61
    assert needs_new_response(group)
    assert not needs_new_response(ExceptionGroup("tasks", [LOST, LATE]))


@modes
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a failure"])
def test_a_question_in_a_task_group_is_asked(beside: bool, mode: str, pauses: list[float]) -> None:
    attempts: list[int] = []

    async def ask(ctx: Context) -> dict[str, Any]:
        attempts.append(ctx.attempt)

        async def question() -> bool:
            return bool(ctx.interrupt("ok", "Go on?"))

        async def other() -> None:
            if beside and len(attempts) == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    raise LOST  # as it is cancelled, since the other task has asked

        async with asyncio.TaskGroup() as tasks:
            _, asked = tasks.create_task(other()), tasks.create_task(question())
        return {"flag": asked.result()}

    graph = Graph(Done).add_node("ask", ask, writes=["flag"], retry=ANY).add_path(START, "ask", END)
    t = graph.compile(store=":memory:").thread("t")
    first = t.run({}) if mode == "sync" else asyncio.run(t.arun({}))
    assert (first.status, attempts) == ("interrupted", [1, 2] if beside else [1])
    last = t.resume({"ok": True}) if mode == "sync" else asyncio.run(t.aresume({"ok": True}))
    assert (last.status, last.state["flag"]) == ("completed", True)
    assert len(pauses) == beside


@modes
def test_a_question_is_no_failure(mode: str, pauses: list[float]) -> None:
    """An attempt that asks ends without another one; its effects and answers stay."""
    calls: Counter[str] = Counter()

    def ask(ctx: Context) -> dict[str, Any]:
        calls["attempts"] += 1
        ctx.once("charge", lambda: calls.update(["charged"]))
        if not ctx.interrupt("ok", "Go on?"):
            return {}
        calls["answered"] += 1
        if calls["answered"] < 3:
            raise ConnectionError("no line")
        return {"done": ctx.attempt}

    t = program(ask, store=":memory:").thread("t")
    first = t.run({}) if mode == "sync" else asyncio.run(t.arun({}))
    assert (first.status, calls["attempts"], pauses) == ("interrupted", 1, [])
    last = t.resume({"ok": True}) if mode == "sync" else asyncio.run(t.aresume({"ok": True}))
    assert last.state["done"] == 3
    assert calls == {"attempts": 4, "charged": 1, "answered": 3}
    assert pauses == [2.0, 2.0]


@modes
def test_a_question_of_a_later_attempt_is_asked(mode: str, pauses: list[float]) -> None:
    calls: list[int] = []

    def ask(ctx: Context) -> dict[str, Any]:
        calls.append(ctx.attempt)
        if len(calls) == 1:
            raise ConnectionError("no line")
        return {"flag": ctx.interrupt("ok", "Go on?")}

    graph = Graph(Done).add_node("ask", ask, writes=["flag"], retry=ANY).add_path(START, "ask", END).compile()
    with pytest.raises(Interrupted):
        graph() if mode == "sync" else asyncio.run(graph.acall())
    assert calls == [1, 2]
    assert run(graph, mode).status == "interrupted"
    assert len(pauses) == 1


# --- rule 1 and 4: how often, and how long


def test_the_default_pauses_are_full_jitter() -> None:
    policy = Retry(9, on=Exception)
    for attempt, most in ((1, 0.5), (2, 1.0), (3, 2.0), (8, 60.0)):
        found = [policy.pause(attempt, ConnectionError()) for _ in range(200)]
        assert all(one is not None and 0 <= one <= most for one in found)
        assert len(set(found)) > 100
    assert policy.pause(9, ConnectionError()) is None


class AskedToWaitError(Exception):
    def __init__(self, retry_after: Any) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


@each(
    ("retry_after", "least", "most"),
    [(5, 5.0, 5.5), (59.9, 59.9, 60.0), (60, 60.0, 60.0), (0, 0.0, 0.5), (-3, 0.0, 0.5), ("soon", 0.0, 0.5)],
)
def test_the_pause_is_at_least_what_the_server_asks_for(retry_after: Any, least: float, most: float) -> None:
    """Rule 4: jitter comes on top, up to `max_wait`."""
    for _ in range(50):
        pause = Retry(3, on=Exception).pause(1, AskedToWaitError(retry_after))
        assert pause is not None
        assert least <= pause <= most


@pytest.mark.parametrize("retry_after", [float("nan"), float("inf"), None])
def test_a_retry_after_that_is_no_time_is_ignored(retry_after: Any) -> None:
    assert Retry(3, on=Exception).pause(1, AskedToWaitError(retry_after)) is not None


@modes
def test_a_longer_retry_after_than_max_wait_fails_at_once(mode: str, pauses: list[float]) -> None:
    node = Failing(AskedToWaitError(61))
    assert isinstance(run(program(node.node(mode), Retry(3, on=Exception)), mode).error, AskedToWaitError)
    assert (node.attempts, pauses) == ([1], [])
    longer = Failing(AskedToWaitError(61))
    assert run(program(longer.node(mode), Retry(3, on=Exception, max_wait=100)), mode).state["done"] == 2
    assert 61 <= pauses[0] <= 61.5


def test_a_predicate_of_the_user_that_raises_ends_the_attempts() -> None:
    def odd(error: BaseException) -> bool:
        raise LookupError("predicate")

    ran = program(Failing(ValueError("first")).sync, Retry(3, on=odd)).run({})
    assert isinstance(ran.error, LookupError)
    assert isinstance(ran.error.__context__, ValueError)


# --- rule 5: a pause ends when the run stops


class LongPauses:
    """Pauses by a clock that nobody moves: only a stop ends them."""

    def __init__(self, time: FakeClock) -> None:
        self.time = time
        self.node = Failing(*[ConnectionError("no line")] * 9)

    def check(self) -> None:
        """One pause began, and no attempt followed."""
        assert self.time.pauses == [MINUTE]
        assert self.node.attempts == [1]


@pytest.fixture
def long_pauses() -> Iterator[LongPauses]:
    with clock() as time:
        yield LongPauses(time)


MINUTE = 60.0
LONG = Retry(3, on=Exception, wait=wait_fixed(MINUTE))


def forked(mode: str, node: Failing, other: Callable[..., Any], **options: Any) -> CompiledGraph:
    """A node that pauses, next to another one."""
    graph = Graph(Done, name="Two").add_node("pauses", node.node(mode), retry=LONG, writes=["done"])
    graph.add_node("other", other, writes=["flag"])
    return graph.add_edge(START, ["pauses", "other"]).add_edge(["pauses", "other"], END).compile(**options)


@modes
@pytest.mark.parametrize("alone", [True, False])
def test_a_closed_stream_ends_a_pause(mode: str, alone: bool, long_pauses: LongPauses) -> None:
    made = program(long_pauses.node.node(mode), LONG) if alone else forked(mode, long_pauses.node, lambda done: {})

    async def astream() -> Run | None:
        async with made.astream({}) as events:
            async for event in events:
                if isinstance(event, AttemptFailed):
                    await asyncio.to_thread(long_pauses.time.wait_for, "pause")
                    break
        return events.run

    if mode == "async":
        found = asyncio.run(astream())
    else:
        with made.stream({}) as events:
            for event in events:
                if isinstance(event, AttemptFailed):
                    long_pauses.time.wait_for("pause")
                    break
        found = events.run
    assert found is not None
    assert found.status == "stopped"
    long_pauses.check()


def test_a_cancelled_task_ends_a_pause(long_pauses: LongPauses) -> None:
    async def main() -> None:
        task = asyncio.create_task(program(long_pauses.node.awaited, LONG).arun({}))
        await asyncio.to_thread(long_pauses.time.wait_for, "pause")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    long_pauses.check()


@modes
def test_a_failing_store_ends_a_pause(mode: str, long_pauses: LongPauses) -> None:
    class Full(Memory):
        full = False

        def write(self, change: Any) -> int:
            if self.full:
                raise OSError("no space left")
            return super().write(change)

    store = Full()

    def other(done: int) -> dict[str, Any]:
        long_pauses.time.wait_for("pause")
        store.full = True
        return {"flag": True}

    t = forked(mode, long_pauses.node, other, store=store).thread("t")
    ran = t.run({}) if mode == "sync" else asyncio.run(t.arun({}))
    assert isinstance(ran.error, StoreError)
    long_pauses.check()


def test_ctrl_c_of_a_sibling_ends_a_pause(long_pauses: LongPauses) -> None:
    def other(done: int) -> dict[str, Any]:
        long_pauses.time.wait_for("pause")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        forked("sync", long_pauses.node, other).run({})
    long_pauses.check()


@modes
def test_a_node_that_pauses_keeps_its_slot(mode: str, pauses: list[float]) -> None:
    order: list[str] = []

    def work(ctx: Context) -> dict[str, Any]:
        order.append(f"{ctx.node}{ctx.attempt}")
        if ctx.attempt < 3:
            raise ConnectionError("no line")
        return {}

    graph = Graph(Done)
    for name in ("a", "b", "c"):
        graph.add_node(name, work, reads=[], writes=[], retry=ANY)
        graph.add_path(START, name, END)
    run(graph.compile(max_concurrency=1), mode)
    assert order == [f"{name}{number}" for name in "abc" for number in (1, 2, 3)]
    del pauses


# --- rule 6: each attempt starts clean


@modes
def test_posts_of_a_failed_attempt_are_dropped(mode: str, pauses: list[float]) -> None:
    from operator import add
    from typing import Annotated

    class Log(BaseModel):
        log: Annotated[list[str], add] = []

    old: list[Context] = []

    def write(ctx: Context) -> dict[str, Any]:
        ctx.post("log", [f"post {ctx.attempt}"])
        old.append(ctx)
        if ctx.attempt < 3:
            raise ConnectionError("no line")
        with pytest.raises(AttemptOverError, match="attempt 1 has failed, and another one follows"):
            old[0].post("log", ["late"])
        return {"log": [f"returned {ctx.attempt}"]}

    graph = Graph(Log).add_node("write", write, writes=["log"], retry=ANY).add_path(START, "write", END)
    assert run(graph.compile(), mode).state["log"] == ["post 3", "returned 3"]
    del pauses


# --- rule 23: what a reader sees


@modes
def test_attempts_are_events_logs_notes_and_lines(
    mode: str, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    node = Failing(ConnectionError("no line"), ConnectionError("still none"))
    with caplog.at_level(logging.INFO, "dspyer"):
        ran = run(program(node.node(mode)), mode)
    kinds = [type(event) for event in ran.events if isinstance(event, (NodeStarted, AttemptFailed, Committed))][1:]
    assert kinds == [NodeStarted, AttemptFailed, AttemptFailed, Committed]
    first = next(event for event in ran.events if isinstance(event, AttemptFailed))
    assert (first.node, first.branch, first.execution, first.attempt, first.pause) == ("work", (), "trunk:1", 1, 2.0)
    assert first.to_dict()["error"]["message"] == "no line"
    assert first.to_dict()["event"] == "AttemptFailed"
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert logged[0] == (
        "node 'work' (execution trunk:1), attempt 1 failed, the next one in 2.0 s: ConnectionError('no line')"
    )
    assert len(logged) == 2
    assert "attempt 3" in ran.report()
    assert "ConnectionError × 2" in ran.report()
    assert ran.commits[1].to_dict()["failed_attempts"][1]["message"] == "still none"
    del pauses


@modes
def test_the_last_exception_is_raised_with_its_number(mode: str, pauses: list[float]) -> None:
    last = ConnectionError("third")
    ran = run(program(Failing(ConnectionError("first"), ConnectionError("second"), last).node(mode)), mode)
    assert ran.error is last
    assert last.__notes__ == ["in node 'work' (branch trunk, visit 1, attempt 3)"]
    assert [type(event) for event in ran.events][-2:-1] == [NodeFailed]
    assert ran.failures[0].attempt == 3
    assert [failed.message for failed in ran._failures[0].failed_attempts] == ["first", "second"]
    del pauses


@modes
def test_texts_are_redacted_wherever_they_leave_the_run(
    mode: str, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    class Secret(BaseModel):
        key: str = ""
        done: int = 0

    def work(key: str, ctx: Context) -> dict[str, Any]:
        if ctx.attempt < 2:
            raise ConnectionError(f"wrong key {key}")
        return {"done": 1}

    graph = Graph(Secret).add_node("work", work, retry=ANY, writes=["done"]).add_path(START, "work", END)
    with caplog.at_level(logging.INFO, "dspyer"):
        ran = run(graph.compile(redact=["key"]), mode, key="SESAM-123")
    assert ran.status == "completed"
    shown = repr([event.to_dict() for event in ran.events]) + caplog.text + ran.report()
    assert "SESAM-123" not in shown
    del pauses


# --- what does not know policies


def test_call_node_ignores_policies() -> None:
    """It calls a node once: a test of a node should see what it raises."""
    node = Failing(ConnectionError("no line"))
    with pytest.raises(ConnectionError):
        call_node(program(node.sync), "work", {})
    assert node.attempts == [1]


@modes
def test_programs_are_retried_under_dspy(mode: str, pauses: list[float]) -> None:
    """Evaluate, Parallel, asyncify and streamify call the program as it is."""
    examples = [dspy.Example(done=0, flag=False).with_inputs("flag") for _ in range(4)]
    lock = threading.Lock()
    attempts: Counter[int] = Counter()

    def work(ctx: Context) -> dict[str, Any]:
        with lock:
            attempts[ctx.attempt] += 1
        if ctx.attempt < 3:
            raise ConnectionError("no line")
        return {"done": ctx.attempt}

    made = program(work)
    found = dspy.Evaluate(devset=examples, metric=lambda example, prediction: prediction.done == 3, num_threads=2)(made)
    assert found.score == 100.0
    assert attempts == {1: 4, 2: 4, 3: 4}
    results = dspy.Parallel(num_threads=2, disable_progress_bar=True)([(made, example) for example in examples])
    assert [result.done for result in results] == [3] * 4

    async def main() -> tuple[Any, Any]:
        one = await dspy.asyncify(made)(flag=False)
        async for item in dspy.streamify(made, is_async_program=mode == "async")(flag=False):
            if isinstance(item, dspy.Prediction):
                return one, item
        raise AssertionError

    one, two = asyncio.run(main())
    assert (one.done, two.done) == (3, 3)
    del pauses
