"""`timeout=` bounds the seconds of one attempt: async code is cancelled, sync code is left running and fenced."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Budget, CompiledGraph, Graph, Retry, live, reducers, view
from dspyer.errors import AttemptOverError, GraphError, NodeTimeoutError, is_transient
from dspyer.lms import reliable
from dspyer.testing import ScriptedLM, no_pauses
from tests.children import run_python
from tests.openai_server import OpenAIServer
from tests.rows import each
from tests.timeouts import TimeIsOver

ANSWER = "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"
SHORT = 0.05  # it is over when `time_is_over` is called
LONG = 30.0


def run(program: CompiledGraph, mode: str, inputs: dict[str, Any] | None = None, thread: str = "") -> Any:
    """A run in sync or async code, on a thread if one is named."""
    runner: Any = program.thread(thread) if thread else program
    given = inputs or {}
    return runner.run(given) if mode == "sync" else asyncio.run(runner.arun(given))


MODES = pytest.mark.parametrize("mode", ["sync", "async"])


class Stuck:
    """A sync node that waits for the test, in which its time is over, and then uses its `ctx`."""

    def __init__(self, time_is_over: Callable[[], object], use: Callable[[Any], Any] = lambda ctx: None) -> None:
        self.time_is_over = time_is_over
        self.use = use
        self.go_on = threading.Event()
        self.ended = threading.Event()
        self.calls = 0
        self.raised: BaseException | None = None
        self.daemon: bool | None = None

    def __call__(self, ctx: Any) -> dict[str, Any]:
        self.calls += 1
        self.daemon = threading.current_thread().daemon
        if not self.go_on.is_set():
            self.time_is_over()
        assert self.go_on.wait(20)
        try:
            self.use(ctx)
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.ended.set()
        return {"text": "late"}

    def program(self, **options: Any) -> CompiledGraph:
        graph = Graph(Notes).add_node("stuck", self.__call__, writes=["text", "log"], timeout=SHORT, **options)
        return graph.add_path(START, "stuck", END).compile(store=":memory:")


class Notes(BaseModel):
    text: str = ""
    log: Annotated[list[str], reducers.append] = []


@MODES
def test_an_attempt_in_time_is_as_without_a_timeout(mode: str) -> None:
    async def half(n: int) -> dict[str, Any]:
        return {"n": n // 2}

    graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"], timeout=LONG)
    graph.add_node("half", half, writes=["n"], timeout=LONG).add_path(START, "add", "half", END)
    found = run(graph.compile(), mode, {"n": 5})
    assert (found.status, found.state["n"]) == ("completed", 3)


@MODES
def test_async_code_is_cancelled_and_its_finally_blocks_run(mode: str, time_is_over: TimeIsOver) -> None:
    steps: list[str] = []

    async def slow() -> None:
        time_is_over()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned")

    graph = Graph().add_node("slow", slow, writes=[], timeout=SHORT).add_path(START, "slow", END)
    found = run(graph.compile(), mode)
    assert found.status == "failed"
    assert isinstance(found.error, NodeTimeoutError)
    assert isinstance(found.error, TimeoutError)
    assert not found.error.left_running
    assert is_transient(found.error)
    assert "node 'slow' (execution trunk:1): attempt 1 took longer than its timeout of 0.05 s" in str(found.error)
    assert steps == ["cleaned"]


@MODES
def test_a_cancelled_attempt_is_retried(mode: str, time_is_over: TimeIsOver) -> None:
    async def slow(ctx: Any) -> dict[str, Any]:
        if ctx.attempt < 3:
            time_is_over()
            await asyncio.Event().wait()
        return {"attempt": ctx.attempt}

    graph = Graph().add_node("slow", slow, writes=["attempt"], timeout=SHORT, retry=3).add_path(START, "slow", END)
    with no_pauses() as pauses:
        found = run(graph.compile(), mode)
    assert (found.status, found.state["attempt"], len(pauses)) == ("completed", 3, 2)


USES: dict[str, Callable[[Any], Any]] = {
    "once": lambda ctx: ctx.once("charge", lambda: "charged"),
    "post": lambda ctx: ctx.post("log", "late"),
    "emit": lambda ctx: ctx.emit("late"),
    "interrupt": lambda ctx: ctx.interrupt("ok", "Go?"),
    "live": lambda ctx: list(ctx.live("log")),
    "doing": lambda ctx: ctx.doing("late"),
    "delta": lambda ctx: ctx.delta(),
    "view": lambda ctx: ctx.view(view("log")),
    "call": lambda ctx: ctx.call(None, {}),
}


@MODES
@pytest.mark.parametrize("use", USES)
def test_a_sync_attempt_is_left_running_and_fenced(
    mode: str, use: str, caplog: pytest.LogCaptureFixture, time_is_over: TimeIsOver
) -> None:
    stuck = Stuck(time_is_over, USES[use])
    program = stuck.program()
    with caplog.at_level(logging.WARNING, "dspyer"):
        found = run(program, mode, thread="t")
    error = found.error
    assert isinstance(error, NodeTimeoutError)
    assert error.left_running
    assert not is_transient(error)
    assert "still runs in a thread, which Python cannot end" in str(error)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "took longer than its timeout" in caplog.text
    events = len(found.events)
    stuck.go_on.set()
    assert stuck.ended.wait(20)
    assert isinstance(stuck.raised, AttemptOverError), stuck.raised
    assert "node 'stuck' (execution trunk:1)" in str(stuck.raised)
    assert (stuck.calls, stuck.daemon, len(found.events)) == (1, True, events)
    t = program.thread("t")
    assert (t.status, t.state["text"], t.state["log"]) == ("failed", "", [])
    resumed = t.resume()  # in time, it may do the same; but it is given no program to call
    expected = {"interrupt": "interrupted", "call": "failed"}.get(use, "completed")
    assert resumed.status == expected
    assert resumed.state["text"] == ("late" if expected == "completed" else "")


def asks_in_a_loop(ask: dspy.Predict) -> None:
    for i in range(3):
        ask(question=f"{i}")


def asks_in_parallel(ask: dspy.Predict) -> None:
    dspy.Parallel(num_threads=2, disable_progress_bar=True)([(ask, {"question": f"{i}"}) for i in range(3)])


def asks_on_a_loop_of_its_own(ask: dspy.Predict) -> None:
    asyncio.run(ask.acall(question="?"))


def asks_in_a_program(ask: dspy.Predict) -> None:
    Graph().add_node("ask", ask).add_path(START, "ask", END).compile()(question="?")


ASKS = [asks_in_a_loop, asks_in_parallel, asks_on_a_loop_of_its_own, asks_in_a_program]


@MODES
@each("budget", [None, Budget(requests=1)])
@pytest.mark.parametrize("repeats", [False, True])
@each("asks", ASKS)
def test_a_left_attempt_makes_no_further_request(
    asks: Any, repeats: bool, budget: Budget | None, mode: str, time_is_over: TimeIsOver
) -> None:
    """And what is refused to it is refused to no other attempt."""
    go_on, ended = threading.Event(), threading.Event()

    def node(ask: dspy.Predict, ctx: Any) -> dict[str, Any]:
        if ctx.attempt == 2:
            go_on.set()
            assert ended.wait(20)
            return {"text": "second"}
        time_is_over()
        assert go_on.wait(20)
        try:
            asks(ask)
        finally:
            ended.set()
        return {"text": "first"}

    ask, retry = dspy.Predict("question -> answer"), Retry(2, on=NodeTimeoutError)
    graph = Graph(Notes).add_node("node", node, modules={"ask": ask}, writes=["text"], timeout=SHORT, retry=retry)
    program = graph.add_path(START, "node", END).compile(budget=budget)
    with OpenAIServer(lambda messages: ANSWER) as server, no_pauses():
        with dspy.context(lm=reliable(server.lm()) if repeats else server.lm()):
            found = run(program, mode)
        assert (found.status, found.state["text"], server.requests) == ("completed", "second", [])


@MODES
def test_a_request_that_a_left_attempt_has_in_progress_counts(mode: str, time_is_over: TimeIsOver) -> None:
    release, ended = threading.Event(), threading.Event()

    def answer(messages: Any) -> str:
        time_is_over()
        assert release.wait(20)
        return ANSWER

    def node(ask: dspy.Predict) -> None:
        try:
            ask(question="?")
        finally:
            ended.set()

    def after() -> None:
        release.set()
        assert ended.wait(20)

    ask = dspy.Predict("question -> answer")
    graph = Graph(Notes).add_node("node", node, modules={"ask": ask}, writes=[], timeout=SHORT)
    graph.add_node("after", after, writes=[]).add_path(START, "node", "after", END).add_error_edge("node", "after")
    with OpenAIServer(answer) as server, dspy.context(lm=server.lm()):
        found = run(graph.compile(budget=Budget(requests=2)), mode)
    used = found.usage["openai/local"]
    assert (found.status, found.trace, used["requests"], used["completion_tokens"] > 0) == ("completed", (), 1, True)


@MODES
def test_an_effect_of_a_timed_out_attempt_is_not_recorded(mode: str, time_is_over: TimeIsOver) -> None:
    go_on, ended = threading.Event(), threading.Event()
    keys: list[str] = []
    errors: list[BaseException] = []

    def charge(key: str) -> str:
        keys.append(key)
        if len(keys) == 1:
            time_is_over()
            assert go_on.wait(20)
        return "charged"

    def pay(ctx: Any) -> dict[str, Any]:
        try:
            return {"text": ctx.once("charge", charge)}
        except AttemptOverError as error:
            errors.append(error)
            raise
        finally:
            ended.set()

    graph = Graph(Notes).add_node("pay", pay, writes=["text"], timeout=SHORT).add_path(START, "pay", END)
    program = graph.compile(store=":memory:")
    assert isinstance(run(program, mode, thread="t").error, NodeTimeoutError)
    go_on.set()
    assert ended.wait(20)
    assert "has happened, but its attempt had timed out" in str(errors[0])
    assert program.thread("t").resume().state["text"] == "charged"
    assert len(keys) == 2
    assert len(set(keys)) == 1


@MODES
def test_a_sync_attempt_is_retried_only_if_the_policy_names_the_error(mode: str, time_is_over: TimeIsOver) -> None:
    go_on, ended = threading.Event(), threading.Event()

    def slow(ctx: Any) -> dict[str, Any]:
        if ctx.attempt == 1:
            time_is_over()
            assert go_on.wait(20)
            ended.set()
        return {"text": f"attempt {ctx.attempt}"}

    def program(retry: Any) -> CompiledGraph:
        graph = Graph(Notes).add_node("slow", slow, writes=["text"], timeout=SHORT, retry=retry)
        return graph.add_path(START, "slow", END).compile()

    with no_pauses():
        assert isinstance(run(program(3), mode).error, NodeTimeoutError)
        found = run(program(Retry(3, on=(is_transient, NodeTimeoutError))), mode)
    go_on.set()
    assert ended.wait(20)
    assert (found.status, found.state["text"]) == ("completed", "attempt 2")


@MODES
def test_a_timeout_error_of_the_node_itself_is_its_own(mode: str) -> None:
    async def own() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    def sync_own() -> None:
        raise TimeoutError("the server is silent")

    for node in (own, sync_own):
        graph = Graph().add_node("own", node, writes=[], timeout=LONG).add_path(START, "own", END)
        assert type(run(graph.compile(), mode).error) is TimeoutError


@MODES
def test_a_node_that_swallows_its_cancellation_has_timed_out_all_the_same(mode: str, time_is_over: TimeIsOver) -> None:
    kept: list[BaseException] = []

    async def swallows(ctx: Any) -> dict[str, Any]:
        time_is_over()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                ctx.emit("late")
            except AttemptOverError as error:
                kept.append(error)
        return {"text": "late"}

    graph = Graph(Notes).add_node("node", swallows, writes=["text"], timeout=SHORT).add_path(START, "node", END)
    found = run(graph.compile(), mode)
    assert isinstance(found.error, NodeTimeoutError)
    assert (len(kept), found.state["text"]) == (1, "")


def test_a_cancellation_of_the_caller_at_the_moment_of_the_timeout_stays_a_cancellation(
    time_is_over: TimeIsOver,
) -> None:
    async def main() -> None:
        task: asyncio.Task[Any]

        async def slow() -> None:
            time_is_over()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # of the timeout; the caller's comes before the attempt has ended
                task.cancel()
                await asyncio.sleep(0)
                raise

        graph = Graph().add_node("slow", slow, writes=[], timeout=SHORT).add_path(START, "slow", END)
        program = graph.compile(store=":memory:")
        task = asyncio.ensure_future(program.thread("t").arun({}))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert program.thread("t").status == "stopped"

    asyncio.run(main())


def test_a_cancelled_caller_waits_for_a_sync_node_until_it_times_out(time_is_over: TimeIsOver) -> None:
    stuck = Stuck(lambda: None)

    async def main() -> None:
        program = stuck.program()
        task = asyncio.ensure_future(program.thread("t").arun({}))
        while not stuck.calls:  # noqa: ASYNC110 - until the node runs
            await asyncio.sleep(0)
        task.cancel()
        time_is_over()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert program.thread("t").status == "stopped"

    asyncio.run(main())
    stuck.go_on.set()
    assert stuck.ended.wait(20)


@MODES
def test_the_trace_of_a_left_attempt_gets_nothing_more(mode: str, time_is_over: TimeIsOver) -> None:
    """The late step comes while the next node runs, and is not taken for a step of that one."""
    go_on, ended = threading.Event(), threading.Event()

    def slow() -> None:
        time_is_over()
        assert go_on.wait(20)
        dspy.settings.trace.append((None, {}, dspy.Prediction(answer="late")))
        ended.set()

    def after() -> None:
        go_on.set()
        assert ended.wait(20)

    graph = Graph().add_node("slow", slow, writes=[], timeout=SHORT).add_node("after", after, writes=[])
    graph.add_path(START, "slow", "after", END).add_error_edge("slow", "after")
    found = run(graph.compile(), mode)
    assert (found.status, found.trace) == ("completed", ())


@MODES
def test_the_trace_of_an_attempt_in_time_is_kept(mode: str) -> None:
    def node(ask: dspy.Predict) -> dict[str, Any]:
        return {"text": ask(question="Is it?").answer}

    ask = dspy.Predict("question -> answer")
    graph = Graph(Notes).add_node("node", node, modules={"ask": ask}, writes=["text"], timeout=LONG)
    with ScriptedLM([{"answer": "yes"}]):
        found = run(graph.add_path(START, "node", END).compile(), mode)
    assert (found.state["text"], len(found.trace), len(found.usage)) == ("yes", 1, 1)


def test_usage_that_arrives_while_it_is_added_up_raises_nothing() -> None:
    """Of an LM call in an attempt that is left running."""

    def asks() -> None:
        usage = dspy.settings.usage_tracker.usage_data

        class Late(dict[str, Any]):
            def __len__(self) -> int:
                usage["late"].append({"total_tokens": 1})
                return super().__len__()

        usage["lm"] = [Late(total_tokens=2), Late(total_tokens=3)]

    found = Graph().add_node("asks", asks, writes=[]).add_path(START, "asks", END).compile().run({})
    assert found.usage["lm"] == {"total_tokens": 5}


def test_a_cancelled_caller_waits_for_a_sync_node_that_has_time(time_is_over: TimeIsOver) -> None:
    stuck = Stuck(time_is_over)
    graph = Graph(Notes).add_node("stuck", stuck.__call__, writes=["text"], timeout=LONG).add_path(START, "stuck", END)
    program = graph.compile(store=":memory:")

    async def main() -> None:
        task = asyncio.ensure_future(program.thread("t").arun({}))
        while not stuck.calls:  # noqa: ASYNC110 - until the node runs
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        stuck.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert program.thread("t").state["text"] == "late"


@MODES
def test_a_graph_as_a_node_is_stopped(mode: str, time_is_over: TimeIsOver) -> None:
    """Its finished nodes are kept; the async one is cancelled, and a resume calls only that one."""
    calls: list[str] = []

    def quick() -> dict[str, Any]:
        calls.append("quick")
        return {"log": "quick"}

    async def slow(ctx: Any) -> dict[str, Any]:
        calls.append("slow")
        if calls.count("slow") == 1:
            time_is_over()
            await asyncio.Event().wait()
        return {"text": "done"}

    inner = Graph(Notes).add_node("quick", quick, writes=["log"]).add_node("slow", slow, writes=["text"])
    program = inner.add_path(START, "quick", "slow", END).compile()
    outer = Graph(Notes).add_node("part", program, timeout=SHORT).add_path(START, "part", END)
    compiled = outer.compile(store=":memory:")
    error = run(compiled, mode, thread="t").error
    assert isinstance(error, NodeTimeoutError)
    assert not error.left_running
    found = compiled.thread("t").resume()
    assert (found.status, found.state["text"], found.state["log"]) == ("completed", "done", ["quick"])
    assert calls == ["quick", "slow", "slow"]


@MODES
def test_a_graph_that_is_left_running_commits_nothing_more(mode: str, time_is_over: TimeIsOver) -> None:
    stuck = Stuck(time_is_over)
    inner = Graph(Notes).add_node("stuck", stuck.__call__, writes=["text"])
    inner.add_node("after", lambda: {"log": "after"}, writes=["log"])
    program = inner.add_path(START, "stuck", "after", END).compile()
    outer = Graph(Notes).add_node("part", program, timeout=SHORT).add_path(START, "part", END)
    compiled = outer.compile(store=":memory:")
    found = run(compiled, mode, thread="t")
    assert isinstance(found.error, NodeTimeoutError)
    assert found.error.left_running
    stuck.go_on.set()
    assert stuck.ended.wait(20)
    time_is_over.wait_for_workers()
    resumed = compiled.thread("t").resume()
    assert (resumed.status, resumed.state["text"], resumed.state["log"]) == ("completed", "late", ["after"])
    assert stuck.calls == 2


@MODES
@pytest.mark.parametrize("stored", [False, True])
def test_a_node_that_is_left_running_leaves_the_graph_around_it_in_time(
    stored: bool, mode: str, time_is_over: TimeIsOver
) -> None:
    """Its graph goes on, also if the graph is a node with a timeout: with all events, and other attempts."""
    stuck, calls = Stuck(time_is_over), []

    def fails_once() -> dict[str, Any]:
        calls.append("late")
        if len(calls) == 1:
            raise ConnectionError("no line")
        return {"log": "late"}

    inner = Graph(Notes).add_node("stuck", stuck.__call__, writes=["text"], timeout=SHORT)
    inner.add_node("late", fails_once, writes=["log"]).add_path(START, "stuck", END).add_edge("late", END)
    inner.add_error_edge("stuck", "late", on=NodeTimeoutError)
    outer = Graph(Notes).add_node("part", inner.compile(), timeout=LONG, retry=2).add_path(START, "part", END)
    with no_pauses():
        found = run(outer.compile(store=":memory:"), mode, thread="t" if stored else "")
    assert (found.status, found.state["log"]) == ("completed", ["late"])
    names = [type(event).__name__ for event in found.events if event.scope]
    # The commits of the inputs, of the node that timed out (kept for the next attempt), and of the handler.
    assert (names.count("NodeFailed"), names.count("Committed"), names.count("RunEnded")) == (2, 3, 2)
    assert (stuck.calls, calls) == (1, ["late", "late"])
    stuck.go_on.set()


@MODES
def test_a_live_reader_that_times_out_ends(mode: str, time_is_over: TimeIsOver) -> None:
    class Pad(BaseModel):
        notes: Annotated[list[str], reducers.append, live] = []

    posted, read = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def writes(ctx: Any) -> None:
        ctx.post("notes", "tide at 6")
        posted.set()
        assert read.wait(20)

    def reads(ctx: Any) -> None:
        try:
            for _ in ctx.live("notes"):
                time_is_over()
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            read.set()

    graph = Graph(Pad).add_node("writes", writes, writes=["notes"])
    graph.add_node("reads", reads, reads=["notes"], writes=[], timeout=SHORT)
    graph.add_edge(START, ["writes", "reads"]).add_edge(["writes", "reads"], END)
    found = run(graph.compile(), mode)
    assert isinstance(found.error, NodeTimeoutError)
    assert read.wait(20)
    assert isinstance(errors[0], AttemptOverError)


@MODES
def test_seconds_left(mode: str) -> None:
    found: dict[str, float | None] = {}

    def timed(ctx: Any) -> None:
        found["timed"] = ctx.seconds_left

    def free(ctx: Any) -> None:
        found["free"] = ctx.seconds_left

    def inside(ctx: Any) -> None:
        found["inside"] = ctx.seconds_left

    inner = Graph().add_node("inside", inside, writes=[], timeout=60).add_path(START, "inside", END).compile()
    graph = Graph().add_node("timed", timed, writes=[], timeout=LONG).add_node("free", free, writes=[])
    graph.add_node("part", inner, writes=[], timeout=LONG)
    assert run(graph.add_path(START, "timed", "free", "part", END).compile(), mode).status == "completed"
    assert found["free"] is None
    assert found["timed"] is not None
    assert LONG - 10 < found["timed"] <= LONG
    assert found["inside"] is not None
    assert LONG - 10 < found["inside"] <= LONG


@each("wrong", [0, -1, float("inf"), float("nan"), True, "60", None])
def test_what_a_timeout_may_be(wrong: Any) -> None:
    graph = Graph().add_node("a", lambda: None, writes=[], timeout=wrong).add_path(START, "a", END)
    if wrong is None:
        assert graph.compile().run({}).status == "completed"
        return
    with pytest.raises(GraphError, match="node 'a': timeout="):
        graph.compile()


EXITS = """
import threading
from dspyer import END, START, Graph
def hangs():
    threading.Event().wait()
async def quick():
    pass
inner = Graph().add_node("hangs", hangs, writes=[]).add_node("quick", quick, writes=[])
inner = inner.add_edge(START, ["hangs", "quick"]).add_edge(["hangs", "quick"], END).compile()
for node in (hangs, inner):
    graph = Graph().add_node("node", node, writes=[], timeout=0.05).add_path(START, "node", END)
    print(type(graph.compile().run({}).error).__name__)
"""


def test_a_left_attempt_keeps_no_process_alive() -> None:
    done = run_python(EXITS)  # which joins its threads at the end, as any process of Python
    assert (done.returncode, done.stdout.split()) == (0, ["NodeTimeoutError", "NodeTimeoutError"]), done.stderr
