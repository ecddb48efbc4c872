"""A budget stops a run when a limit is reached: requests are counted at a real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Budget, CompiledGraph, Graph, Retry, reducers
from dspyer.errors import BudgetError, RunStoppedError
from dspyer.testing import no_pauses
from tests.openai_server import OpenAIServer

MODES = pytest.mark.parametrize("mode", ["sync", "async"])
PRICES = {"openai/local": (1_000_000.0, 1_000_000.0)}
"""A dollar per token, so that costs are known exactly."""


class Talk(BaseModel):
    question: str = ""
    answers: Annotated[list[str], reducers.append] = []
    n: int = 0


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    text = "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"
    with OpenAIServer(lambda messages: text) as server, dspy.context(lm=server.lm()):
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


@MODES
@pytest.mark.parametrize("limit", ["tokens", "cost", "requests"])
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
    assert "t.resume()" in str(error)
    with pytest.raises(BudgetError):
        _ = found.prediction
    while found.status == "stopped":
        found = resume(thread, mode, budget=budget)
    assert (found.status, len(found.state["answers"]), len(server.requests)) == ("completed", 12, 12)


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


@MODES
@pytest.mark.parametrize("kind", NODES)
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
        assert resume(thread, mode, budget=Budget(requests=100)).status == "completed"
        assert 13 <= len(server.requests) <= 13 + concurrent  # those that were in progress at the limit
