"""Each fault of a provider against a node, without a policy and with one: requests, exception, usage, tokens."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dspy
import pytest

from dspyer import END, START, CompiledGraph, Graph, Retry
from dspyer.errors import is_transient
from dspyer.testing import no_pauses
from tests.http_faults import (
    Cut,
    DateIn,
    Drop,
    EmptyChoices,
    ErrorEvent,
    Fault,
    Hold,
    Html,
    Status,
    Text,
    TruncatedJson,
)
from tests.lm_calls import ANSWER
from tests.openai_server import OpenAIServer, usage


@pytest.fixture(autouse=True)
def pauses() -> Iterator[list[float]]:
    with no_pauses() as asked:
        yield asked


def program_of(retry: Any) -> CompiledGraph:
    graph = Graph(name="Asks").add_node("ask", dspy.Predict("question -> answer"), retry=retry)
    return graph.add_path(START, "ask", END).compile()


class Outcome(NamedTuple):
    error: BaseException | None
    answer: str | None
    tokens: str
    total: int


def call_sync(program: CompiledGraph, lm: Any) -> Outcome:
    with dspy.context(lm=lm):
        return of_run(program.run({"question": "a question"}))


def call_async(program: CompiledGraph, lm: Any) -> Outcome:
    async def main() -> Outcome:
        with dspy.context(lm=lm):
            found = of_run(await program.arun({"question": "a question"}))
        await lm.aclose()
        return found

    return asyncio.run(main())


def call_streamed(program: CompiledGraph, lm: Any) -> Outcome:
    """Raw chunks, as `dspy.streamify` shows them."""

    async def main() -> Outcome:
        tokens, answer, error = "", None, None
        with dspy.context(lm=lm), dspy.track_usage() as tracker:
            try:
                async for item in dspy.streamify(program)(question="a question"):
                    if isinstance(item, dspy.Prediction):
                        answer = item.answer
                    elif text := item["choices"][0]["delta"]["content"]:
                        tokens += text
            except BaseException as raised:  # noqa: BLE001 - the test looks at it
                error = raised
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        await lm.aclose()
        counted = [one["total_tokens"] for entries in tracker.usage_data.values() for one in entries if one]
        return Outcome(error, answer, tokens, sum(counted))

    return asyncio.run(main())


def of_run(run: Any) -> Outcome:
    answer = run.state["answer"] if run.status == "completed" else None
    return Outcome(run.error, answer, "", sum(one.get("total_tokens", 0) for one in run.usage.values()))


CALLS: list[Callable[..., Outcome]] = [call_sync, call_async, call_streamed]


class Row(NamedTuple):
    """A fault: whether a node asks again after it, in general and for a stream; requests of one attempt."""

    fault: Fault
    retried: bool
    streamed: bool
    requests: int = 1  # DSPy asks again with its JSON adapter for what does not parse, before it has shown a token


ROWS = [
    Row(Status(429), True, True),
    Row(Status(429, Retry_After="2"), True, True),
    Row(Status(429, Retry_After=DateIn(30)), True, True),
    Row(Status(429, Retry_After="3600"), False, False),
    Row(Status(429, Retry_After="soon"), True, True),
    Row(Status(429, "insufficient_quota"), False, False),
    Row(Status(500), True, True),
    Row(Status(503, Retry_After="5"), True, True),
    Row(Status(400), False, False),
    Row(Status(400, "context_length_exceeded"), False, False),
    Row(Status(401), False, False),
    Row(Status(404), False, False),
    Row(Drop(), True, True),
    Row(Drop("headers"), True, True),
    Row(Drop("body"), True, True),
    Row(Cut(0), True, True),
    Row(Cut(3), True, True),
    Row(ErrorEvent(), True, True),
    Row(ErrorEvent(2), True, True),
    Row(Html(), False, True),
    Row(TruncatedJson(), False, False),
    Row(EmptyChoices(), True, True, 2),
    Row(Text(), True, True, 2),
    Row(Hold(), True, True),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: repr(row.fault))
def test_each_fault_with_and_without_a_policy(row: Row, call: Callable[..., Outcome]) -> None:
    again = row.streamed if call is call_streamed else row.retried
    each = 1 if call is call_streamed and isinstance(row.fault, (Text, EmptyChoices)) else row.requests
    options = {"timeout": 0.1} if isinstance(row.fault, Hold) else {}
    errors = []
    for retry, attempts in ((None, 1), (3, 3 if again else 1)):
        with OpenAIServer(lambda messages: ANSWER, faults=itertools.repeat(row.fault)) as server:
            lm = server.lm(**options)
            outcome = call(program_of(retry), lm)
            lm.close()
        assert outcome.error is not None
        errors.append(type(outcome.error))
        assert len(server.requests) in {attempts * one for one in (each, row.requests)}, (retry, server.sent)
    assert errors[0] is errors[1]  # the type is that of DSPy, whatever the policy


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("row", [row for row in ROWS if row.retried and row.streamed], ids=lambda row: repr(row.fault))
def test_one_fault_and_then_an_answer(row: Row, call: Callable[..., Outcome], pauses: list[float]) -> None:
    options = {"timeout": 0.5} if isinstance(row.fault, Hold) else {}
    with OpenAIServer(lambda messages: ANSWER, faults=[row.fault] * row.requests) as server:
        lm = server.lm(**options)
        outcome = call(program_of(3), lm)
        lm.close()
    assert outcome.error is None
    assert outcome.answer == "one two three"
    counted = usage(server.requests[-1]["messages"], ANSWER)["total_tokens"]
    if not isinstance(row.fault, (Text, EmptyChoices, Cut, ErrorEvent)):
        assert outcome.total == counted  # once, whatever failed before
    asked = getattr(row.fault, "headers", {}).get("Retry_After", "0")
    if asked in ("2", "5"):
        assert int(asked) <= pauses[0] <= int(asked) + 0.5


def test_a_policy_may_name_what_it_retries() -> None:
    """400 is no transient error, and a user may know better."""
    with OpenAIServer(lambda messages: ANSWER, faults=[Status(400)]) as server:
        lm = server.lm()
        outcome = call_sync(program_of(Retry(2, on=(is_transient, dspy.LMError))), lm)
        lm.close()
    assert outcome.answer == "one two three"
    assert len(server.requests) == 2
