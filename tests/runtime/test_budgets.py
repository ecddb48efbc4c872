"""A budget stops a run when a limit is reached: requests are counted at a real HTTP server."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel
from tenacity import wait_fixed, wait_none

from dspyer import END, START, Budget, CompiledGraph, Graph, Retry, reducers
from dspyer.errors import BudgetError, InputError, RunStoppedError
from dspyer.lms import reliable
from dspyer.testing import no_pauses
from tests import openai_server
from tests.http_faults import Status
from tests.openai_server import OpenAIServer, prompt_of
from tests.rows import each
from tests.runtime.calls import let_pass

ANSWER = "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"
MODES = pytest.mark.parametrize("mode", ["sync", "async"])
PRICES = {"openai/local": (1_000_000.0, 1_000_000.0)}
"""A dollar per token, so that costs are known exactly."""


class Talk(BaseModel):
    question: str = ""
    answers: Annotated[list[str], reducers.append] = []
    n: int = 0


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(lambda messages: ANSWER) as server, dspy.context(lm=server.lm()):
        yield server


def run(runner: Any, mode: str, **options: Any) -> Any:
    if mode == "sync":
        return runner.run({"question": "Is it?"}, **options)
    return asyncio.run(runner.arun({"question": "Is it?"}, **options))


def resume(thread: Any, mode: str, **options: Any) -> Any:
    return thread.resume(**options) if mode == "sync" else asyncio.run(thread.aresume(**options))


def loop(times: int) -> CompiledGraph:
    """A predictor that is called so many times, one request each."""
    graph = Graph(Talk).add_node("ask", dspy.Predict("question -> answer"), writes={"answer": "answers"})
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda answers: "ask" if len(answers) < times else END, ["ask", END])
    return graph.compile(store=":memory:")


def tokens_per_request(server: OpenAIServer) -> int:
    found = run(loop(1), "sync").usage["openai/local"]["total_tokens"]
    server.requests.clear()
    return int(found)


@pytest.mark.parametrize(("limit", "mode"), [("tokens", "sync"), ("cost", "async"), ("requests", "sync")])
def test_a_run_stops_at_a_limit_and_a_resume_makes_the_other_requests(
    server: OpenAIServer, limit: str, mode: str
) -> None:
    each = tokens_per_request(server)
    # Not a multiple of a request: the one that passes the limit is the last one.
    budget = {
        "tokens": Budget(tokens=each * 4 + 1),
        "cost": Budget(cost=each * 4 + 1.0, prices=PRICES),
        "requests": Budget(requests=5),
    }[limit]
    thread = loop(12).thread("t")
    found = run(thread, mode, budget=budget)
    assert (found.status, thread.status) == ("stopped", "stopped")
    assert (len(server.requests), len(found.state["answers"])) == (5, 5)
    error = found.error
    assert isinstance(error, BudgetError)
    spent = 5 if limit == "requests" else each * 5
    assert error.spent == {limit: spent}
    assert error.limit == {limit: getattr(budget, limit)}
    told = {
        "tokens": f"tokens: {each * 5} of {each * 4 + 1}. The run of graph",
        "cost": f"cost: {each * 5}.00 of {each * 4 + 1}.00 USD. The run",
        "requests": "requests: 5 of 5. The run of graph 'Talk' was stopped",
    }
    assert str(error).startswith(told[limit])
    assert "thread.resume()" in str(error)
    with pytest.raises(BudgetError):
        _ = found.prediction
    while found.status == "stopped":
        found = resume(thread, mode, budget=budget)
    assert (found.status, len(found.state["answers"]), len(server.requests)) == ("completed", 12, 12)


@pytest.mark.parametrize(("mode", "inside"), [("sync", True), ("async", False)])
def test_a_run_whose_last_node_reaches_the_limit_is_completed(server: OpenAIServer, mode: str, inside: bool) -> None:
    program = loop(2)
    if inside:
        program = Graph(Talk).add_node("inner", program).add_path(START, "inner", END).compile(store=":memory:")
    thread = program.thread("t")
    done = run(thread, mode, budget=Budget(requests=2))
    assert (done.status, done.error, thread.status) == ("completed", None, "completed")
    assert len(done.state["answers"]) == len(server.requests) == 2


@MODES
def test_a_program_that_is_called_raises(server: OpenAIServer, mode: str) -> None:
    del server
    graph = Graph(Talk).add_node("ask", dspy.Predict("question -> answer"), writes={"answer": "answers"})
    graph.add_node("again", dspy.Predict("question -> answer"), writes={"answer": "answers"})
    program = graph.add_path(START, "ask", "again", END).compile(budget=Budget(requests=1))
    with pytest.raises(BudgetError, match="requests: 1 of 1"):
        program(question="Is it?") if mode == "sync" else asyncio.run(program.acall(question="Is it?"))
    assert run(program, mode, budget=Budget(requests=3)).status == "completed"
    with pytest.raises(RunStoppedError, match="Start it again"):
        run(program, mode).raise_error()


def asks(times: int) -> Callable[..., Any]:
    def node(ask: dspy.Predict) -> dict[str, Any]:
        return {"answers": " ".join([ask(question=f"{i}").answer for i in range(times)])}

    return node


def in_parallel(ask: dspy.Predict) -> dict[str, Any]:
    found = dspy.Parallel(num_threads=2, disable_progress_bar=True)([(ask, {"question": f"{i}"}) for i in range(9)])
    return {"answers": str(found)}


def swallows(ask: dspy.Predict) -> dict[str, Any]:
    found = []
    for i in range(9):
        try:
            found.append(ask(question=f"{i}").answer)
        except:  # noqa: E722 - what users write
            found.append("none")
    return {"answers": str(found)}


def catches(ask: dspy.Predict) -> dict[str, Any]:
    for i in range(9):
        with suppress(Exception):
            ask(question=f"{i}")
    return {"answers": "done"}


def raises_another(ask: dspy.Predict) -> dict[str, Any]:
    try:
        return swallows(ask)
    finally:
        raise ValueError("odd")


def tracks(ask: dspy.Predict) -> dict[str, Any]:
    with dspy.track_usage():
        return dict(asks(9)(ask))


async def gathers(ask: dspy.Predict) -> dict[str, Any]:
    found = []
    for i in range(3):
        found += await asyncio.gather(*[ask.acall(question=f"{i} {k}") for k in range(3)], return_exceptions=True)
    return {"answers": str(found)}


def in_a_thread(ask: dspy.Predict) -> dict[str, Any]:
    found: list[Any] = []
    call = dspy.asyncify(asks(9))

    async def main() -> None:
        found.append(await call(ask))

    asyncio.run(main())
    return dict(found[0])


NODES = {
    "loop": asks(9),
    "dspy.Parallel": in_parallel,
    "bare except": swallows,
    "suppress": catches,
    "another error": raises_another,
    "track_usage": tracks,
    "gather": gathers,
    "asyncify": in_a_thread,
}


@pytest.mark.parametrize(("kind", "mode"), [(kind, ["sync", "async"][at % 2]) for at, kind in enumerate(NODES)])
def test_whatever_a_node_does_no_request_starts_after_the_limit(server: OpenAIServer, kind: str, mode: str) -> None:
    """And the node commits nothing: it is called again by the resume."""
    graph = Graph(Talk)
    graph.add_node(
        "node",
        NODES[kind],
        modules={"ask": dspy.Predict("question -> answer")},
        writes=["answers"],
        retry=Retry(3, on=Exception),
    )
    graph.add_node("after", lambda: {"n": 1}, writes=["n"])
    thread = graph.add_path(START, "node", "after", END).compile(store=":memory:").thread("t")
    with no_pauses():
        found = run(thread, mode, budget=Budget(requests=4))
    concurrent = {"dspy.Parallel": 1, "gather": 2}.get(kind, 0)
    assert 4 <= len(server.requests) <= 4 + concurrent
    assert (found.status, found.state["answers"]) == ("stopped", [])
    assert isinstance(found.error, BudgetError)
    assert 4 <= found.error.spent["requests"] <= 4 + concurrent
    if kind != "another error":
        found = resume(thread, mode, budget=Budget(requests=100))
        used = found.usage["openai/local"]
        assert (found.status, used["requests"], used["completion_tokens"]) == ("completed", 9, 9 * len(ANSWER.split()))
        assert 13 <= len(server.requests) <= 13 + concurrent  # those that were in progress at the limit


def best_of(predict: dspy.Predict) -> dspy.Module:
    return dspy.BestOfN(predict, N=9, reward_fn=lambda args, prediction: 0.0, threshold=1.0)


def react(predict: dspy.Predict) -> dspy.Module:
    del predict
    return dspy.ReAct("question -> answer", tools=[look_up], max_iters=8)


def look_up(topic: str) -> str:
    """Looks up a topic."""
    return "nothing"


MODULES: dict[str, Callable[[Any], Any]] = {
    "BestOfN": best_of,
    "ReAct": react,
    "ChainOfThought": lambda predict: dspy.ChainOfThought("question -> answer"),
}


@pytest.mark.parametrize(("kind", "mode"), [("BestOfN", "async"), ("ReAct", "sync"), ("ChainOfThought", "async")])
def test_modules_of_dspy_are_bounded(kind: str, mode: str) -> None:
    text = "[[ ## reasoning ## ]]\nso\n\n[[ ## answer ## ]]\nyes\n\n[[ ## next_thought ## ]]\nlook\n\n"
    text += (
        '[[ ## next_tool_name ## ]]\nlook_up\n\n[[ ## next_tool_args ## ]]\n{"topic": "tides"}\n\n[[ ## completed ## ]]'
    )
    predict: Any = dspy.Predict("question -> answer")
    module = MODULES[kind](predict)
    graph = Graph(Talk).add_node("one", module, writes={"answer": "answers"})
    twin: dspy.Module = copy.deepcopy(module)
    graph.add_node("two", twin, writes={"answer": "answers"}).add_path(START, "one", "two", END)
    thread = graph.compile(store=":memory:").thread("t")
    with OpenAIServer(lambda messages: text) as server, dspy.context(lm=server.lm()):
        whole = run(graph.compile(), mode)
        assert whole.status == "completed"
        requests = len(server.requests)
        server.requests.clear()
        limit = 3 if requests > 2 else 1
        found = run(thread, mode, budget=Budget(requests=limit))
        assert (found.status, len(server.requests)) == ("stopped", limit)
        found = resume(thread, mode)
        assert found.status == "completed"
        finished = 1 if requests == 2 else 0  # a node that was cut off is called again from its beginning
        assert len(server.requests) == limit + requests - finished
        assert found.state["answers"] == whole.state["answers"]


@MODES
def test_maps_and_inner_graphs_share_the_budget_and_keep_what_is_finished(server: OpenAIServer, mode: str) -> None:
    class Docs(BaseModel):
        question: str = ""
        docs: list[str] = [str(i) for i in range(12)]
        notes: list[str] = []
        more: list[str] = []

    predict = dspy.Predict("doc -> answer")
    inner = Graph(inputs=["doc"]).add_node("ask", dspy.Predict("doc -> answer"), writes=["answer"])
    program = inner.add_path(START, "ask", END).compile(budget=Budget(requests=1))  # of no effect inside
    graph = Graph(Docs).add_map("read", predict, over="docs", item="doc", into="notes", max_concurrency=2)
    graph.add_map("again", program, over="docs", item="doc", into="more", max_concurrency=2)
    thread = graph.add_path(START, "read", "again", END).compile(store=":memory:").thread("t")
    found = run(thread, mode, budget=Budget(requests=5))
    calls = 0
    while found.status == "stopped":
        assert 5 <= len(server.requests) - calls <= 6
        calls = len(server.requests)
        found = resume(thread, mode, budget=Budget(requests=5))
    assert found.status == "completed", found.error
    assert len(server.requests) == 24
    assert found.state["notes"] == found.state["more"] == ["yes"] * 12


@MODES
def test_branches_finish_what_is_in_progress(mode: str) -> None:
    """The one request of each branch was made before the limit was reached: all of them are committed."""
    arrived = threading.Barrier(3)

    def answer(messages: Any) -> str:
        arrived.wait(20)
        return "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"

    graph = Graph(Talk)
    for name in "abc":
        graph.add_node(name, dspy.Predict("question -> answer"), writes={"answer": "answers"})
    graph.add_node("late", lambda: {"n": 1}, writes=["n"])
    graph.add_edge(START, list("abc")).add_edge(list("abc"), "late").add_edge("late", END)
    thread = graph.compile(store=":memory:").thread("t")
    with OpenAIServer(answer) as server, dspy.context(lm=server.lm()):
        found = run(thread, mode, budget=Budget(requests=1))
        assert (found.status, len(server.requests)) == ("stopped", 3)
        assert isinstance(found.error, BudgetError)
        assert found.error.spent == {"requests": 3}
        assert resume(thread, mode).status == "completed"
        assert len(server.requests) == 3


@MODES
def test_an_async_node_that_runs_at_the_limit_is_finished(server: OpenAIServer, mode: str) -> None:
    """It is not cancelled, as it would be if its stream were closed."""
    spent = threading.Event()

    async def slow(ask: dspy.Predict) -> dict[str, Any]:
        await asyncio.to_thread(spent.wait, 20)
        await asyncio.sleep(0)
        return {"answers": "slow"}

    async def asks_and_tells(ask: dspy.Predict) -> dict[str, Any]:
        answer = (await ask.acall(question="Is it?")).answer
        spent.set()
        return {"answers": answer}

    graph = Graph(Talk)
    graph.add_node("slow", slow, modules={"ask": dspy.Predict("question -> answer")}, writes=["answers"])
    graph.add_node("asks", asks_and_tells, modules={"ask": dspy.Predict("question -> answer")}, writes=["answers"])
    graph.add_node("late", lambda: {"n": 1}, writes=["n"])
    graph.add_edge(START, ["slow", "asks"]).add_edge(["slow", "asks"], "late").add_edge("late", END)
    found = run(graph.compile(), mode, budget=Budget(requests=1))
    assert (found.status, sorted(commit.node for commit in found.commits)) == ("stopped", ["START", "asks", "slow"])
    assert len(server.requests) == 1


@MODES
def test_responses_from_a_cache_cost_nothing(mode: str) -> None:
    text = "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"
    with OpenAIServer(lambda messages: text) as server, dspy.context(lm=server.lm(cache=True)):
        question = f"cached in {mode}?"
        graph = Graph(Talk).add_node("ask", dspy.Predict("question -> answer"), writes={"answer": "answers"})
        graph.add_edge(START, "ask")
        graph.add_conditional_edges("ask", lambda answers: "ask" if len(answers) < 9 else END, ["ask", END])
        program = graph.compile()
        budget = Budget(requests=2, tokens=10**6, cost=10**6, prices=PRICES)
        given = {"question": question}
        found = program.run(given, budget=budget) if mode == "sync" else asyncio.run(program.arun(given, budget=budget))
        assert (found.status, len(found.state["answers"]), len(server.requests)) == ("completed", 9, 1)


@each(
    ("mode", "repeats", "disable_history"),
    [("sync", False, False), ("sync", True, True), ("async", False, True), ("async", True, False)],
)
def test_each_response_that_a_call_asks_for_is_a_request(mode: str, repeats: bool, disable_history: bool) -> None:
    """DSPy makes one request for each of the `n` responses."""
    text = "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"
    with OpenAIServer(lambda messages: text, faults=[None, Status(500)] if repeats else []) as server:
        lm = server.lm(n=3, temperature=1.0)
        lm = reliable(lm, retry=Retry(2, wait=wait_none())) if repeats else lm
        with dspy.context(lm=lm, disable_history=disable_history):
            found = run(loop(9), mode, budget=Budget(requests=8))
        made = {True: 2 + 3 + 3, False: 3 * 3}[repeats]  # with a failure, the call is repeated as a whole
        assert (found.status, len(server.requests), found.error.spent) == ("stopped", made, {"requests": made})


@pytest.mark.parametrize(("budget", "mode"), [(None, "async"), (Budget(requests=50), "sync")])
def test_a_closed_stream_lets_sync_nodes_finish_their_requests(
    server: OpenAIServer, budget: Budget | None, mode: str
) -> None:
    """A budget that is not used up makes no difference."""
    asked, closed = threading.Event(), threading.Event()

    def node(ask: dspy.Predict) -> dict[str, Any]:
        first = ask(question="1").answer
        asked.set()
        closed.wait(20)
        return {"answers": first + ask(question="2").answer}

    graph = Graph(Talk).add_node("node", node, modules={"ask": dspy.Predict("question -> answer")}, writes=["answers"])
    thread = graph.add_path(START, "node", END).compile(store=":memory:").thread("t")
    if mode == "sync":
        stream = thread.stream({}, budget=budget)
        next(iter(stream))
        asked.wait(20)
        stop = threading.Thread(target=stream.close)
        stop.start()
        closed.set()
        stop.join(20)
    else:

        async def main() -> None:
            task = asyncio.create_task(thread.arun({}, budget=budget))
            await asyncio.to_thread(asked.wait, 20)
            task.cancel()
            await asyncio.sleep(0)
            closed.set()
            with suppress(asyncio.CancelledError):
                await task

        asyncio.run(main())
    assert (len(server.requests), thread.state["answers"]) == (2, ["yesyes"])
    assert thread.resume().status == "completed"
    assert len(server.requests) == 2


@MODES
def test_a_run_within_a_node_has_a_budget_of_its_own(server: OpenAIServer, mode: str) -> None:
    """It is stopped, and the run around it goes on; what it spends counts for both."""
    inner = Graph(Talk)
    inner.add_node("many", asks(5), modules={"ask": dspy.Predict("question -> answer")}, writes=["answers"])

    def node(part: dspy.Module) -> dict[str, Any]:
        return {"answers": part.run({"question": "Is it?"}, budget=Budget(requests=2)).status}

    graph = Graph(Talk)
    graph.add_node("node", node, modules={"part": inner.add_path(START, "many", END).compile()}, writes=["answers"])
    program = graph.add_path(START, "node", END).compile()
    found = run(program, mode, budget=Budget(requests=50))
    assert (found.status, found.state["answers"], len(server.requests)) == ("completed", ["stopped"], 2)
    found = run(program, mode, budget=Budget(requests=1))
    assert (found.status, found.error.spent, len(server.requests)) == ("stopped", {"requests": 1}, 3)


@MODES
def test_a_cost_without_a_price_fails_before_the_first_request(server: OpenAIServer, mode: str) -> None:
    thread = loop(2).thread("t")
    found = run(thread, mode, budget=Budget(cost=1.0))
    assert (found.status, thread.status, len(server.requests)) == ("failed", "failed", 0)
    assert isinstance(found.error, InputError)
    assert "the price of 'openai/local' is not known" in str(found.error)
    assert "prices={'openai/local': (0.1, 0.4)}" in str(found.error)
    (failure,) = thread.failures
    assert (failure.node, failure.type) == ("ask", "InputError")
    with pytest.raises(InputError):
        found.raise_error()
    budget = Budget(cost=10**6, prices=PRICES)
    assert resume(thread, mode, budget=budget).status == "completed"


@pytest.mark.parametrize(("bound", "mode"), [("tokens", "sync"), ("cost", "async")])
def test_a_response_that_does_not_say_what_it_has_used_fails_the_run(
    bound: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local servers leave the usage out: nothing would ever end the run."""
    monkeypatch.setattr(openai_server, "usage", lambda messages, text: None)
    budget = {"tokens": Budget(tokens=10**6), "cost": Budget(cost=10**6, prices=PRICES)}[bound]
    with OpenAIServer(lambda messages: ANSWER) as server, dspy.context(lm=server.lm()):
        found = run(loop(9), mode, budget=budget)
        assert (found.status, len(server.requests)) == ("failed", 1)
        assert isinstance(found.error, InputError)
        assert "a response of 'openai/local' does not say how many tokens it has used" in str(found.error)
        bounded = run(loop(9), mode, budget=Budget(requests=3))
        assert (bounded.status, bounded.error.spent, len(server.requests)) == ("stopped", {"requests": 3}, 4)


@MODES
def test_a_price_that_dspy_knows_is_taken(mode: str) -> None:
    text = "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"
    with OpenAIServer(lambda messages: text, model="gpt-4o-mini") as server, dspy.context(lm=server.lm()):
        found = run(loop(50), mode, budget=Budget(cost=0.0001))
        assert found.status == "stopped"
        assert 1 < len(server.requests) < 50
        assert str(found.error).startswith("cost: 0.00010")
        own = run(loop(50), mode, budget=Budget(cost=0.0001, prices={"openai/gpt-4o-mini": (1000, 1000)}))
        assert len(own.state["answers"]) == 1  # the given price wins


@MODES
def test_the_deadline_of_a_run(mode: str) -> None:
    """Pauses end at it; the clock is that of the test."""
    calls: list[float | None] = []

    def fails(ctx: Any) -> dict[str, Any]:
        calls.append(ctx.seconds_left)
        if len(calls) < 4:
            raise ConnectionError
        return {"n": 1}

    graph = Graph(Talk).add_node("fails", fails, writes=["n"], retry=Retry(9, wait=wait_fixed(20)))
    thread = graph.add_path(START, "fails", END).compile(store=":memory:").thread("t")
    with no_pauses() as pauses:
        found = run(thread, mode, budget=Budget(seconds=50))
        assert found.status == "stopped"
        assert str(found.error).startswith("seconds: 50.")
        assert pauses[:2] == [20.0, 20.0]
        assert pauses[2] <= 10
        assert [round(left or 0) for left in calls] == [50, 30, 10]
        assert resume(thread, mode).status == "completed"
        assert calls[-1] is None


@MODES
def test_no_node_starts_after_the_deadline(mode: str) -> None:
    def slow() -> dict[str, Any]:
        let_pass(60)
        return {"n": 1}

    graph = Graph(Talk).add_node("slow", slow, writes=["n"]).add_node("late", lambda: {"n": 2}, writes=["n"])
    thread = graph.add_path(START, "slow", "late", END).compile(store=":memory:").thread("t")
    with no_pauses():
        found = run(thread, mode, budget=Budget(seconds=30))
        assert (found.status, found.state["n"]) == ("stopped", 1)
        assert resume(thread, mode).state["n"] == 2


def test_streams_take_a_budget(server: OpenAIServer) -> None:
    thread = loop(4).thread("t")
    with thread.stream({"question": "Is it?"}, budget=Budget(requests=1)) as stream:
        assert len(list(stream)) > 3
    assert stream.run.status == "stopped"
    assert isinstance(stream.run.error, BudgetError)

    async def main() -> None:
        async with thread.astream_resume(budget=Budget(requests=1)) as events:
            assert [event async for event in events]
        assert events.run.status == "stopped"
        async with loop(4).astream({"question": "Is it?"}, budget=Budget(requests=2)) as more:
            assert [event async for event in more]
        assert more.run.status == "stopped"

    asyncio.run(main())
    with loop(4).stream({"question": "Is it?"}, budget=Budget(requests=2)) as own, thread.stream_resume() as rest:
        assert list(own)
        assert list(rest)
    assert (own.run.status, rest.run.status) == ("stopped", "completed")
    again = thread.rerun(0, budget=Budget(requests=1))
    assert again.status == "stopped"
    assert asyncio.run(thread.arerun(0, budget=Budget(requests=1))).status == "stopped"
    assert len(server.requests) == 1 + 1 + 2 + 2 + 2 + 1 + 1


def test_tokens_stream_under_a_budget_and_a_timeout() -> None:
    text = "[[ ## answer ## ]]\nhigh tide at six\n\n[[ ## completed ## ]]"
    graph = Graph(Talk).add_node("ask", dspy.Predict("question -> answer"), writes={"answer": "answers"}, timeout=60)
    program = graph.add_path(START, "ask", END).compile(budget=Budget(requests=9))
    streamed = dspy.streamify(program, stream_listeners=[dspy.streaming.StreamListener("answer", predict=program.ask)])

    async def main() -> list[str]:
        events = streamed(question="When?")
        return [event.chunk async for event in events if isinstance(event, dspy.streaming.StreamResponse)]

    with OpenAIServer(lambda messages: text) as server, dspy.context(lm=server.lm()):
        chunks = asyncio.run(main())
    assert "".join(chunks).strip() == "high tide at six"
    assert len(chunks) > 1


@MODES
def test_an_item_that_swallows_the_refusal_is_not_recorded(server: OpenAIServer, mode: str) -> None:
    """And an item that had its response is: it is not called again."""
    calls: list[str] = []

    class Docs(BaseModel):
        question: str = ""
        docs: list[str] = ["a", "b", "c", "d"]
        notes: list[str] = []

    def read(doc: str, ask: dspy.Predict) -> str:
        calls.append(doc)
        try:
            return str(ask(question=doc).answer)
        except:  # noqa: E722 - what users write
            return "nothing"

    graph = Graph(Docs).add_map(
        "read",
        read,
        over="docs",
        item="doc",
        into="notes",
        modules={"ask": dspy.Predict("question -> answer")},
        max_concurrency=1,
    )
    thread = graph.add_path(START, "read", END).compile(store=":memory:").thread("t")
    found = run(thread, mode, budget=Budget(requests=2))
    assert found.status == "stopped"
    found = resume(thread, mode)
    assert (found.status, list(found.state["notes"])) == ("completed", ["yes"] * 4)
    assert len(server.requests) == 4
    assert calls[:2] == ["a", "b"]
    assert calls[-2:] == ["c", "d"]


def calls(part: dspy.Module, ctx: Any) -> dict[str, Any]:
    try:
        return {"answers": ctx.call(part, {}).answers[-1]}
    except:  # noqa: E722 - what users write
        return {"answers": "none"}


async def acalls(part: dspy.Module, ctx: Any) -> dict[str, Any]:
    try:
        return {"answers": (await ctx.acall(part, {})).answers[-1]}
    except BaseException as error:
        raise ValueError("odd") from error


@pytest.mark.parametrize(("node", "mode"), [(calls, "sync"), (acalls, "async")])
def test_a_node_whose_call_of_a_program_was_stopped_commits_nothing(
    server: OpenAIServer, node: Callable[..., Any], mode: str
) -> None:
    """Whatever its code makes of it; the resume goes on where the program was."""
    graph = Graph(Talk).add_node("node", node, modules={"part": loop(3)}, writes=["answers"])
    thread = graph.add_path(START, "node", END).compile(store=":memory:").thread("t")
    found = run(thread, mode, budget=Budget(requests=2))
    assert (found.status, found.state["answers"]) == ("stopped", [])
    found = resume(thread, mode)
    assert (found.status, found.state["answers"], len(server.requests)) == ("completed", ["yes"], 3)


def test_an_effect_that_swallows_the_refusal_is_not_recorded(server: OpenAIServer) -> None:
    def node(ask: dspy.Predict, ctx: Any) -> dict[str, Any]:
        return {"answers": ctx.once("both", lambda: str(swallows(ask)["answers"]))}

    graph = Graph(Talk)
    graph.add_node("node", node, modules={"ask": dspy.Predict("question -> answer")}, writes=["answers"])
    thread = graph.add_path(START, "node", END).compile(store=":memory:").thread("t")
    assert run(thread, "sync", budget=Budget(requests=4)).status == "stopped"
    assert "none" not in str(resume(thread, "sync").state["answers"])
    assert len(server.requests) == 4 + 9


class Wide(BaseModel):
    question: str = ""
    docs: list[str] = ["a", "b", "c"]
    notes: list[str] = []
    answers: Annotated[list[str], reducers.append] = []


def wide() -> CompiledGraph:
    """A fork into a chain, a map and an inner graph, a join, and a router that asks a model: each node one request."""
    ask = dspy.Predict("question -> answer")
    inner = Graph(Wide, outputs=["answers"])
    for name in ("one", "two"):
        inner.add_node(name, copy.deepcopy(ask), writes={"answer": "answers"})
    inner.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END)
    graph = Graph(Wide)
    for name in ("first", "second", "last"):
        graph.add_node(name, copy.deepcopy(ask), writes={"answer": "answers"})
    graph.add_map("read", dspy.Predict("doc -> answer"), over="docs", item="doc", into="notes")
    graph.add_node("part", inner.compile()).add_node("join", lambda: None, writes=[])
    graph.add_edge(START, ["first", "read", "part"]).add_edge("first", "second")
    graph.add_edge(["second", "read", "part"], "join").add_edge("last", END)
    router = dspy.Predict("question -> way: Literal['last', 'end']")
    return graph.add_conditional_edges("join", router, {"last": "last", "end": END}).compile(store=":memory:")


@pytest.mark.parametrize(("mode", "limits"), [("sync", (1, 3, 6)), ("async", (2, 4, 7))])
def test_where_a_budget_cuts_a_run_into_parts_changes_nothing(mode: str, limits: tuple[int, ...]) -> None:
    """No request is made twice, and the result is that of the whole run."""

    def answer(messages: Any) -> str:
        asked = prompt_of(messages)
        (field,) = asked.output_fields
        value = "last" if field.name == "way" else f"to {asked.inputs}"
        return f"[[ ## {field.name} ## ]]\n{value}\n\n[[ ## completed ## ]]"

    with OpenAIServer(answer) as server, dspy.context(lm=server.lm()):
        program = wide()
        whole = run(program.thread("whole"), mode)
        assert (whole.status, len(server.requests)) == ("completed", 9)
        for limit in limits:
            server.requests.clear()
            thread = program.thread(f"t{limit}")
            found, parts = run(thread, mode, budget=Budget(requests=limit)), 1
            while found.status == "stopped":
                found, parts = resume(thread, mode, budget=Budget(requests=limit)), parts + 1
            assert (limit, found.status, found.state.to_dict()) == (limit, "completed", whole.state.to_dict())
            assert [commit.patch for commit in found.commits] == [commit.patch for commit in whole.commits]
            assert len(server.requests) == 9
            assert parts > 1
            assert thread.replay() == thread.state


def bounded(budget: Any) -> CompiledGraph:
    return Graph().add_node("a", lambda: None, writes=[]).add_path(START, "a", END).compile(budget=budget)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "has no limit"),
    ({"tokens": 0}, ValueError, "tokens=0"),
    ({"cost": -1}, ValueError, "more than 0"),
    ({"seconds": float("nan")}, ValueError, "seconds=nan"),
    ({"seconds": float("inf")}, ValueError, "seconds=inf"),
    ({"requests": 1.5}, TypeError, "whole number"),
    ({"requests": True}, TypeError, "whole number"),
    ({"cost": "1"}, TypeError, "US dollars"),
    ({"cost": 1, "prices": {"openai/x": 0.1}}, TypeError, r"prices=\{'openai/x': \(0.1, 0.4\)\}"),
    ({"cost": 1, "prices": {"openai/x": (0.1, -1)}}, ValueError, "0 or more"),
    ({"cost": 1, "prices": [1]}, TypeError, "got a list"),
]


def test_what_a_budget_may_be() -> None:
    for options, kind, text in WRONG:
        with pytest.raises(kind, match=text):
            Budget(**options)


TAKERS: list[Callable[[Any], Any]] = [
    lambda budget: loop(1).run({"question": ""}, budget=budget),
    lambda budget: loop(1).thread("t").run({"question": ""}, budget=budget),
    lambda budget: loop(1).thread("t").resume(budget=budget),
    bounded,
]


def test_what_is_no_budget_is_refused() -> None:
    for take in TAKERS:
        with pytest.raises(TypeError, match=r"budget=0.5: give a dspyer.Budget, for example Budget\(cost=0.50\)"):
            take(0.5)


def test_a_budget_is_a_value() -> None:
    prices = {"openai/x": (1, 2)}
    budget = Budget(cost=1, prices=prices)
    prices["openai/y"] = (3, 4)
    assert dict(budget.prices) == {"openai/x": (1.0, 2.0)}
    assert pickle.loads(pickle.dumps(budget)) == budget
    error = pickle.loads(pickle.dumps(BudgetError("text", "tokens: 3 of 2", {"tokens": 3}, {"tokens": 2})))
    assert (error.reason, error.spent, error.limit) == ("tokens: 3 of 2", {"tokens": 3}, {"tokens": 2})


# --- LMs of users


class LMOfTwo(dspy.BaseLM):  # type: ignore[misc,unused-ignore]  # Any without DSPy's types
    """An LM that asks another one, as a router or a judge does."""

    def __init__(self, inner: Any, around: Any) -> None:
        super().__init__("two")
        self.inner, self.around = inner, around

    def forward(self, prompt: Any = None, messages: Any = None, **settings: Any) -> Any:
        with self.around():
            answer = self.inner("Is it?")[0]
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        choice = SimpleNamespace(message=SimpleNamespace(content=answer), finish_reason="stop")
        return SimpleNamespace(choices=[choice], usage=usage, model="two")


class LMWithoutCallbacks(dspy.BaseLM):  # type: ignore[misc,unused-ignore]  # as above
    """An LM that calls no callbacks of DSPy: its history entry is all there is."""

    def __call__(self, prompt: Any = None, messages: Any = None, **settings: Any) -> list[str]:
        entry = {"model": self.model, "usage": {"total_tokens": 5}, "cost": 0.5, "outputs": [ANSWER]}
        for owner in (self, *(dspy.settings.caller_modules or ())):
            owner.history.append(entry)
        return [ANSWER]


@pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
@pytest.mark.parametrize("around", [nullcontext, dspy.track_usage])
def test_a_request_that_an_lm_makes_through_another_one_counts_once(around: Any, server: OpenAIServer) -> None:
    with dspy.context(lm=LMOfTwo(server.lm(), around)):
        usage = run(loop(1), "sync").usage
        each_time = 5 + usage["openai/local"]["total_tokens"]
        done = run(loop(3), "sync", budget=Budget(tokens=3 * each_time, requests=6))

    assert usage["two"]["total_tokens"] == 5
    assert done.status == "completed", "a limit that is reached stops what comes after it"
    assert [call.requests for call in done.lm_calls] == [1] * 6


@pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
def test_an_lm_that_calls_no_callbacks_is_counted() -> None:
    with dspy.context(lm=LMWithoutCallbacks("plain")):
        stopped = run(loop(9), "sync", budget=Budget(cost=1.0, prices={}))

    assert stopped.status == "stopped"
    assert isinstance(stopped.error, BudgetError)
    assert [call.cost for call in stopped.lm_calls] == [0.5, 0.5]
