"""Rule 11: a program with an executor inside another graph is one node, with the result that it has as a graph."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from threading import Lock
from typing import Annotated, Any

import dspy
import pytest
from dspy.utils.exceptions import LMServerError
from dspy.utils.usage_tracker import track_usage
from pydantic import BaseModel
from tenacity import wait_none

from dspyer import (
    END,
    START,
    Breakpoints,
    Budget,
    CompiledGraph,
    Context,
    Failure,
    Graph,
    Retry,
    reducers,
)
from dspyer.errors import BudgetError, ExecutorLost, GraphError, Interrupted
from dspyer.events import NodeStarted
from dspyer.testing import no_pauses
from tests.executors.comparing import differences, parts_of, plain, step_of
from tests.executors.pools import BreakingExecutor, BytesExecutor, HeldExecutor
from tests.executors.programs import (
    FLAKY,
    Case,
    State,
    WordLM,
    asking,
    chain,
    checked,
    count,
    flaky,
    fork,
    loop,
    mapped,
    odd,
    one,
)
from tests.http_faults import Status
from tests.openai_server import OpenAIServer
from tests.rows import each

MODES = pytest.mark.parametrize("mode", ["sync", "async"])
Wrap = Callable[[CompiledGraph], Graph]


INPUTS = ["q", "n", "docs", "notes", "total"]


class Outer(State):
    begun: str = ""
    ended: str = ""
    failure: Failure | None = None


def node(inner: CompiledGraph) -> Graph:
    """Before it and after it another node."""
    graph = Graph(Outer, name="Outer", inputs=INPUTS).add_node("begin", lambda: {"begun": "yes"}, writes=["begun"])
    graph.add_node("inner", inner).add_node("end", lambda: {"ended": "yes"}, writes=["ended"])
    return graph.add_path(START, "begin", "inner", "end", END)


def beside(inner: CompiledGraph) -> Graph:
    """In a fork, so that updates of fields with a reducer are folded at the join."""
    graph = (
        Graph(Outer, name="Outer", inputs=INPUTS)
        .add_node("inner", inner)
        .add_node("other", note_one, writes=["notes", "total"])
    )
    return graph.add_edge(START, ["inner", "other"]).add_edge(["inner", "other"], END)


class Keeping(BaseModel):
    notes: Annotated[list[str], reducers.extend] = ["default"]
    total: int = 0


def keeping() -> Graph:
    """A field with a reducer and a default: what the outer state holds replaces it, and is not added to it."""
    graph = Graph(Keeping, name="Keeping").add_node("count", lambda notes: {"notes": [f"{len(notes)} so far"]})
    return graph.add_path(START, "count", END)


def note_one() -> dict[str, Any]:
    return {"notes": ["other"], "total": 100}


def renamed(inner: CompiledGraph) -> Graph:
    graph = Graph(Outer, name="Outer", inputs=INPUTS).add_node(
        "inner", inner, reads={"q": "q"}, writes={"a": "b", "notes": "notes"}
    )
    return graph.add_path(START, "inner", END)


def mapped_over(inner: CompiledGraph) -> Graph:
    graph = Graph(Outer, name="Outer", inputs=INPUTS).add_map(
        "inner", inner, over="docs", item="q", into="notes", writes=["a"]
    )
    return graph.add_path(START, "inner", END)


class Calling(dspy.Module):
    """A module of a user that calls the program."""

    def __init__(self, inner: CompiledGraph) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, q: str) -> dspy.Prediction:
        return dspy.Prediction(c=self.inner(q=q).c)


def in_a_module(inner: CompiledGraph) -> Graph:
    graph = Graph(Outer, name="Outer", inputs=INPUTS).add_node("call", Calling(inner), reads=["q"], writes=["c"])
    return graph.add_path(START, "call", END)


def run(graph: Graph, mode: str, inputs: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What the outer run tells, without what is inside of the node alone."""
    program = graph.compile()
    trace: list[Any] = []
    with dspy.context(lm=WordLM(), trace=trace), track_usage() as tracker:
        found = program.run(inputs, **options) if mode == "sync" else asyncio.run(program.arun(inputs, **options))
    return {
        "status": found.status,
        "error": plain(found.error),
        "state": found.state.to_dict(),
        "commits": [
            (one.id, one.node, plain(one.patch), one.parents, one.route, one.calls, plain(one.failure))
            for one in found.commits
        ],
        "trace": [step_of(program, step) for step in found.trace],
        "around": [step_of(program, step) for step in trace],
        "statuses": [(step.node, step_of(program, parts_of(step)), step.status) for step in found.trace_steps],
        "usage": plain(found.usage),
        "cost": found.cost,
        "lm_calls": sorted((one.execution, one.node, one.predictor, one.attempt) for one in found.lm_calls),
        "tokens": tracker.get_total_tokens(),
        "counts": [commit.calls for commit in found.commits],
        "sources": [found.sources(commit.id) for commit in found.commits],
        "repairs": plain(found.repairs()),
    }


Q: dict[str, Any] = {"q": "why"}
INNER: dict[str, tuple[Wrap, Case]] = {
    "predictors": (node, Case(fork)),
    "fields with reducers": (node, Case(loop, {"n": 0, "notes": ["given"], "total": 5})),
    "folded at a join": (beside, Case(loop, {"n": 0, "notes": ["given"], "total": 5})),
    "defaults of such fields": (node, Case(keeping, {"notes": ["mine"]})),
    "attempts that raised": (node, Case(lambda: one(flaky, **FLAKY))),
    "a map": (node, Case(lambda: mapped(failures="unread"), {"docs": ["x", "bad"]})),
    "a check": (node, Case(checked)),
    "a failure": (node, Case(lambda: one(odd, writes=["n"]), {"n": 1})),
    "renamed": (renamed, Case(fork)),
    "in the code of a module": (in_a_module, Case(fork)),
    "items of a map": (mapped_over, Case(fork, {"docs": ["x", "y", "z"]})),
    "answered by compile": (node, Case(asking, compiled={"answers": {"sure": 1}})),
}


@pytest.mark.parametrize(("wrap", "case"), INNER.values(), ids=INNER)
@MODES
def test_a_node_gives_what_the_graph_gives(wrap: Wrap, case: Case, mode: str, pool: BytesExecutor) -> None:
    sent = len(pool.sent)
    far = run(wrap(case.program().with_executor(pool)), mode, dict(case.inputs))
    assert len(pool.sent) > sent
    assert differences(run(wrap(case.program()), mode, dict(case.inputs)), far) == {}


@MODES
def test_ctx_call_gives_what_the_graph_gives(mode: str, pool: BytesExecutor) -> None:
    def calling(q: str, inner: Any, ctx: Context) -> dict[str, Any]:
        first = ctx.call(inner, {"q": q, "notes": ["mine"]}, key="first")
        return {"a": first.a, "b": ctx.call(inner, {"q": first.c}, key="second").b}

    async def acalling(q: str, inner: Any, ctx: Context) -> dict[str, Any]:
        first, second = await asyncio.gather(
            ctx.acall(inner, {"q": q}, key="first"), ctx.acall(inner, {"q": "two"}, key="second")
        )
        return {"a": first.a, "b": second.b}

    def outer(inner: CompiledGraph) -> Graph:
        work = calling if mode == "sync" else acalling
        graph = Graph(Outer, name="Outer", inputs=INPUTS).add_node(
            "work", work, modules={"inner": inner}, writes=["a", "b"]
        )
        return graph.add_path(START, "work", END)

    far = run(outer(fork().compile().with_executor(pool)), mode, dict(Q))
    assert differences(run(outer(fork().compile()), mode, dict(Q)), far) == {}


# --- questions


def deep() -> Graph:
    return Graph(State, name="Deep").add_node("within", asking().compile()).add_path(START, "within", END)


def before() -> CompiledGraph:
    return chain().compile(layers=[Breakpoints(before=["second"])])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: asking().compile(), "sure"),
        (lambda: deep().compile(), "within/sure"),
        (before, "second"),
    ],
    ids=["a node that asks", "a node in a graph inside", "a breakpoint"],
)
def test_a_program_that_asks_is_refused_at_build(make: Any, named: str, pool: BytesExecutor) -> None:
    with pytest.raises(GraphError, match=rf"(?s)'inner'.*executor.*'{named}'.*answers="):
        node(make().with_executor(pool)).compile()


def asks(n: int, ctx: Context) -> dict[str, Any]:
    return {"n": ctx.interrupt("more", "How many more?")}


@MODES
def test_a_question_that_is_not_known_at_build_fails_the_node(mode: str, pool: BytesExecutor) -> None:
    program = node(one(asks, writes=["n"]).compile().with_executor(pool)).compile(store=":memory:")
    thread = program.thread("t")
    found = thread.run({"n": 1}) if mode == "sync" else asyncio.run(thread.arun({"n": 1}))
    assert found.status == "failed"
    assert isinstance(found.error, Interrupted)
    assert "How many more?" in str(found.error)
    assert found.questions == ()


def test_a_question_is_the_same_error_from_the_code_of_a_node_and_without_one() -> None:
    """A worker knows who calls, and forgets it after the call."""

    def calling(n: int, inner: Any) -> dict[str, Any]:
        return {"n": inner(n=n).n}

    texts = []
    with BytesExecutor(threads=1) as pool:
        for inner in (one(asks, writes=["n"]).compile(), one(asks, writes=["n"]).compile().with_executor(pool)):
            found = one(calling, modules={"inner": inner}, writes=["n"]).compile().run({"n": 1})
            with pytest.raises(Interrupted) as direct:
                inner(n=1)
            texts.append((str(found.error), str(direct.value)))
    assert texts[0] == texts[1]
    assert ["ctx.call" in text for text in texts[0]] == [True, False]


class Locked:
    """A resource that cannot be sent."""

    def __init__(self) -> None:
        self.lock = Lock()


def with_lock(locked: Locked) -> dict[str, Any]:
    with locked.lock:
        return {"begun": "locked"}


def test_resources_and_answers_of_the_outer_run_stay_with_it(pool: BytesExecutor) -> None:
    """They may be what cannot be sent, and would answer a question that must not be asked."""
    statuses = []
    for inner in (one(lambda n: {"n": n + 1}, writes=["n"]), one(asks, writes=["n"])):
        graph = Graph(Outer, name="Outer", inputs=INPUTS).add_node("begin", with_lock, writes=["begun"])
        graph.add_node("inner", inner.compile().with_executor(pool)).add_path(START, "begin", "inner", END)
        found = graph.compile().run({"n": 1}, resources=[Locked()], answers={"more": 2})
        statuses.append((found.status, type(found.error)))
    assert statuses == [("completed", type(None)), ("failed", Interrupted)]


# --- budgets


@MODES
def test_the_budget_of_the_outer_run_counts_what_the_worker_has_used(mode: str, pool: BytesExecutor) -> None:
    def outer(inner: CompiledGraph) -> CompiledGraph:
        graph = (
            Graph(Outer, name="Outer", inputs=INPUTS)
            .add_node("inner", inner)
            .add_node("last", dspy.Predict("c -> ended"))
        )
        return graph.add_path(START, "inner", "last", END).compile()

    program = outer(fork().compile().with_executor(pool))
    with dspy.context(lm=WordLM()):
        if mode == "sync":
            found = program.run(dict(Q), budget=Budget(requests=3))
            enough = program.run(dict(Q), budget=Budget(requests=5))
        else:
            found = asyncio.run(program.arun(dict(Q), budget=Budget(requests=3)))
            enough = asyncio.run(program.arun(dict(Q), budget=Budget(requests=5)))
    assert found.status == "stopped"
    assert isinstance(found.error, BudgetError)
    assert found.error.spent["requests"] == 3
    assert [commit.node for commit in found.commits] == ["START", "inner"]
    assert enough.status == "completed"


def test_a_call_for_which_the_budget_has_nothing_left_is_not_sent(pool: BytesExecutor) -> None:
    def calling(q: str, inner: Any, ctx: Context) -> dict[str, Any]:
        for key in ("first", "second"):
            ctx.call(inner, {"q": q}, key=key)
        return {"a": "both"}

    graph = Graph(Outer, name="Outer", inputs=INPUTS)
    graph.add_node("work", calling, modules={"inner": fork().compile().with_executor(pool)}, writes=["a"])
    sent = len(pool.sent)
    with dspy.context(lm=WordLM()):
        found = graph.add_path(START, "work", END).compile().run(dict(Q), budget=Budget(requests=1))
    assert (found.status, len(pool.sent) - sent) == ("stopped", 1)


def test_the_cost_is_that_of_the_outer_budgets_prices(pool: BytesExecutor) -> None:
    prices = {"words": (1_000_000.0, 1_000_000.0)}
    found = []
    for inner in (fork().compile(), fork().compile().with_executor(pool)):
        with dspy.context(lm=WordLM()):
            ran = node(inner).compile().run(dict(Q), budget=Budget(cost=1e9, prices=prices))
        found.append((ran.status, ran.cost))
    assert found[0] == found[1]
    assert found[0][1]


# --- attempts, failures, lost workers


@MODES
@each("most", [2, 3, 8, 9])
def test_node_calls_in_the_worker_count_towards_the_budget(most: int, mode: str, pool: BytesExecutor) -> None:
    """The loop makes two calls of a node; the map of two items makes four."""

    def outer(inner: CompiledGraph) -> CompiledGraph:
        graph = Graph(name="Outer").add_node("first", inner)
        graph.add_map("each", inner, over="items", item="n", into="found", writes=["n"])
        return graph.add_path(START, "first", "each", END).compile(budget=Budget(node_calls=most), max_concurrency=1)

    inputs = {"n": 1, "items": [1, 1], "notes": [], "total": 0}
    local, far = [
        outer(program).run(dict(inputs)) if mode == "sync" else asyncio.run(outer(program).arun(dict(inputs)))
        for program in (loop().compile(), loop().compile().with_executor(pool))
    ]
    assert (local.status == "completed") == (most > 7)
    assert (type(far.error), far.status) == (type(local.error), local.status)


def test_a_later_attempt_asks_for_new_responses(pool: BytesExecutor) -> None:
    """C5: after a response that cannot be used, the requests of the next attempt have rollout ids of their own."""

    def outer(inner: CompiledGraph) -> Graph:
        graph = Graph(Outer, name="Outer", inputs=INPUTS)
        graph.add_node("inner", inner, retry=Retry(3, on=ValueError, wait=wait_none()))
        return graph.add_path(START, "inner", END)

    def picky() -> Graph:
        graph = Graph(State, name="Picky", inputs=["q"]).add_node("ask", dspy.Predict("q -> a"))
        graph.add_node("look", refuse, writes=["b"])
        return graph.add_path(START, "ask", "look", END)

    far = run(outer(picky().compile().with_executor(pool)), "sync", dict(Q))
    assert (far["status"], far["error"][0]) == ("failed", "ValueError")
    lost = [step[1][3] for step in far["statuses"]]
    assert len(lost) == 3


def refuse(a: str) -> dict[str, Any]:
    raise ValueError(f"refused {a}")


def test_an_error_edge_takes_the_failure_of_the_worker(pool: BytesExecutor) -> None:
    def outer(inner: CompiledGraph) -> Graph:
        graph = node(inner).add_node("sorry", count)
        return graph.add_error_edge("inner", "sorry", on=ValueError, into="failure").add_edge("sorry", END)

    failing = one(odd, writes=["n"])
    far = run(outer(failing.compile().with_executor(pool)), "sync", {"n": 1})
    assert far["status"] == "completed"
    assert far["state"]["failure"].type == "Odd"


@MODES
def test_a_lost_worker_fails_no_node_and_a_resume_calls_it_again(mode: str) -> None:
    """`ExecutorLost` passes error edges and retries, and leaves the stored run as a killed process does."""

    def outer(pool: BytesExecutor) -> CompiledGraph:
        graph = Graph(Outer, name="Outer", inputs=INPUTS).add_node("begin", dspy.Predict("q -> begun"))
        graph.add_node("inner", fork().compile().with_executor(pool), retry=Retry(3, on=Exception, wait=wait_none()))
        graph.add_node("sorry", count).add_path(START, "begin", "inner", END).add_edge("sorry", END)
        return graph.add_error_edge("inner", "sorry", into="failure").compile(store=":memory:")

    broken = BreakingExecutor(0)
    program = outer(broken)
    lm = WordLM()
    with dspy.context(lm=lm):
        thread = program.thread("t")
        with pytest.raises(ExecutorLost) as lost:
            _ = thread.run(dict(Q)) if mode == "sync" else asyncio.run(thread.arun(dict(Q)))
        assert isinstance(lost.value.__cause__, BrokenProcessPool)
        assert broken.count == 1
        broken.at = 99
        found = thread.resume() if mode == "sync" else asyncio.run(thread.aresume())
    assert found.status == "completed"
    assert [commit.node for commit in found.commits] == ["START", "begin", "inner"]
    assert found.state["failure"] is None


def test_one_commit_is_stored_and_its_node_is_not_called_again(pool: BytesExecutor) -> None:
    tries: list[int] = []

    def fails_once() -> dict[str, Any]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no disk")
        return {"ended": "yes"}

    graph = Graph(Outer, name="Outer", inputs=INPUTS).add_node("inner", fork().compile().with_executor(pool))
    graph.add_node("last", fails_once, writes=["ended"]).add_path(START, "inner", "last", END)
    thread = graph.compile(store=":memory:").thread("t")
    with dspy.context(lm=WordLM()):
        assert thread.run(dict(Q)).status == "failed"
        sent = len(pool.sent)
        assert thread.resume().status == "completed"
    assert len(pool.sent) == sent
    assert [commit.node for commit in thread.history()] == ["START", "inner", "last"]
    assert thread.history(inside=thread.history()[1].id) == []


def test_a_cancelled_outer_run_cancels_the_task() -> None:
    with HeldExecutor() as pool:
        program = node(fork().compile().with_executor(pool)).compile()

        async def main() -> None:
            task = asyncio.create_task(program.arun(dict(Q)))
            await asyncio.to_thread(pool.submitted.wait, 30)
            task.cancel()
            await task

        with dspy.context(lm=WordLM()), pytest.raises(asyncio.CancelledError):
            asyncio.run(main())
        pool.go_on.set()


def test_a_closed_stream_drops_the_calls_that_no_worker_has_begun() -> None:
    with HeldExecutor() as pool, dspy.context(lm=WordLM()):
        program = mapped_over(fork().compile().with_executor(pool)).compile()
        stream = program.stream({**Q, "docs": ["x", "y", "z"]})
        for event in stream:
            if isinstance(event, NodeStarted):
                break
        while len(pool.futures) < 3:
            pass
        pool.futures[2].add_done_callback(lambda _: pool.go_on.set())
        stream.close()
    assert [future.cancelled() for future in pool.futures] == [False, False, True]
    assert stream.run is not None
    assert stream.run.status == "stopped"


def test_a_program_around_it_can_be_streamified(pool: BytesExecutor) -> None:
    program = node(fork().compile().with_executor(pool)).compile()
    with dspy.context(lm=WordLM()):
        *_, last = dspy.streamify(program, async_streaming=False)(**Q)
    assert last.ended == "yes"


def test_an_outer_program_with_an_executor_runs_all_of_it_in_the_worker(pool: BytesExecutor) -> None:
    """The pickle of a program leaves executors out: there is no executor in a worker."""
    inner = BreakingExecutor(0)
    program = node(fork().compile().with_executor(inner)).compile().with_executor(pool)
    with dspy.context(lm=WordLM()):
        found = program.run(dict(Q))
    assert found.status == "completed"
    assert inner.count == 0


@MODES
@pytest.mark.parametrize("called", [False, True], ids=["a node", "ctx.call"])
def test_what_the_lm_of_a_worker_has_retried_is_not_retried_again(called: bool, mode: str, pool: BytesExecutor) -> None:
    """The notes of the LM's own retries are made where the LM is called."""
    far = Graph(name="Far").add_node("ask", dspy.Predict("question -> answer")).add_path(START, "ask", END)
    program = far.compile().with_executor(pool)

    def calling(question: str, inner: dspy.Module, ctx: Context) -> dict[str, Any]:
        return {"answer": ctx.call(inner, {"question": question}).answer}

    graph = Graph(name="Near")
    if called:
        graph.add_node("near", calling, modules={"inner": program}, writes=["answer"], retry=3)
    else:
        graph.add_node("near", program, retry=3)
    near = graph.add_path(START, "near", END).compile()
    with OpenAIServer(lambda messages: "", faults=itertools.repeat(Status(500, Retry_After="0"))) as server:
        with dspy.context(lm=server.lm(num_retries=1)), no_pauses():
            given = {"question": "why"}
            done = near.run(given) if mode == "sync" else asyncio.run(near.arun(given))
        assert (type(done.error), len(server.requests)) == (LMServerError, 2)
