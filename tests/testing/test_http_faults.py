"""Each fault of the HTTP server against a plain `dspy.LM` without retries: which exception, how many requests.

This is what everything that retries builds on: DSPy's types of errors, and what it counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import dspy
import pytest
from dspy.utils.exceptions import (
    AdapterParseError,
    ContextWindowExceededError,
    LMAuthError,
    LMBillingError,
    LMInvalidRequestError,
    LMProviderError,
    LMRateLimitError,
    LMServerError,
    LMStreamAssemblyError,
    LMTransportError,
    LMUnexpectedError,
)

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
    refused_address,
)
from tests.lm_calls import ANSWER, CALLS, Outcome, call_streamed, call_streamed_async, call_sync
from tests.openai_server import OpenAIServer, usage
from tests.rows import each

STREAMED = {call_streamed, call_streamed_async}


class Row(NamedTuple):
    """A fault, and what a call raises if it is answered at once and if it is streamed."""

    fault: Fault
    error: type[BaseException] | None
    streamed: type[BaseException] | None
    requests: int = 1  # of a call that is not streamed; DSPy asks again with its JSON adapter for what does not parse
    tokens: int = 0  # that a stream has shown by then
    retry_after: float | None = None


def same(fault: Fault, error: type[BaseException] | None, **expected: Any) -> Row:
    return Row(fault, error, error, **expected)


ROWS = [
    same(Status(429), LMRateLimitError),
    same(Status(429, Retry_After="2"), LMRateLimitError, retry_after=2.0),
    same(Status(429, Retry_After="3600"), LMRateLimitError, retry_after=3600.0),
    same(Status(429, Retry_After="soon"), LMRateLimitError),
    same(Status(429, "insufficient_quota"), LMBillingError),
    same(Status(500), LMServerError),
    same(Status(503), LMServerError),
    same(Status(503, Retry_After="5"), LMServerError, retry_after=5.0),
    same(Status(400), LMInvalidRequestError),
    same(Status(400, "context_length_exceeded"), ContextWindowExceededError),
    same(Status(401), LMAuthError),
    same(Status(404), LMInvalidRequestError),
    same(Drop(), LMTransportError),
    same(Drop("headers"), LMTransportError),
    same(Drop("body"), LMTransportError),
    Row(Cut(0), LMTransportError, LMStreamAssemblyError),
    Row(Cut(1), LMTransportError, LMStreamAssemblyError, tokens=1),
    Row(Cut(3), LMTransportError, LMStreamAssemblyError, tokens=3),
    same(ErrorEvent(), LMServerError),
    same(ErrorEvent(2), LMServerError, tokens=2),
    Row(ErrorEvent(0, "rate_limit_error"), LMServerError, LMRateLimitError),
    Row(Html(), LMProviderError, LMStreamAssemblyError),
    Row(TruncatedJson(), LMProviderError, LMUnexpectedError),
    same(EmptyChoices(), AdapterParseError, requests=2),
    same(Text(), AdapterParseError, requests=2, tokens=7),
    same(Text("[[ ## answer ## ]]\none", finish="length"), None, tokens=6),
    same(Hold(), LMTransportError),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@each("row", ROWS, ids=lambda row: repr(row.fault))
def test_what_a_fault_raises(row: Row, call: Callable[..., Outcome]) -> None:
    with OpenAIServer(lambda messages: ANSWER, faults=itertools.repeat(row.fault)) as server:
        lm = server.lm(**({"timeout": 0.05} if isinstance(row.fault, Hold) else {}))
        outcome = call(lm)
        lm.close()
    expected = row.streamed if call in STREAMED else row.error
    assert type(outcome.error) is (expected or type(None)), outcome.error
    assert getattr(outcome.error, "retry_after", None) == row.retry_after
    assert len(server.requests) == len(server.times) == (1 if call in STREAMED else row.requests)
    assert len(outcome.tokens) == (row.tokens if call in STREAMED else 0)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_retry_after_may_be_a_date(call: Callable[..., Outcome]) -> None:
    with OpenAIServer(lambda messages: ANSWER, faults=[Status(429, Retry_After=DateIn(30))]) as server:
        lm = server.lm()
        outcome = call(lm)
        lm.close()
    assert 25 < getattr(outcome.error, "retry_after", 0) <= 30


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_refused_connection(call: Callable[..., Outcome]) -> None:
    with refused_address() as address:
        outcome = call(dspy.LM("openai/local", api_base=address, api_key="test", num_retries=0, cache=False))
    assert type(outcome.error) is LMTransportError


def test_a_held_stream_goes_on_when_it_is_released() -> None:
    with OpenAIServer(lambda messages: ANSWER, faults=[Hold(after=1)]) as server:
        lm = server.lm()
        server.release()
        outcome = call_streamed(lm)
        lm.close()
    assert outcome.answer == "one two three"


def test_faults_are_given_in_order_and_recorded() -> None:
    script = [Status(500), None, Drop()]
    with OpenAIServer(lambda messages: ANSWER, faults=script) as server:
        lm = server.lm()
        outcomes = [call_sync(lm) for _ in range(4)]
        lm.close()
    assert [type(one.error) for one in outcomes] == [LMServerError, type(None), LMTransportError, type(None)]
    assert server.sent == [*script, None]
    assert server.times == sorted(server.times)
    assert outcomes[1].total_tokens == {"openai/local": sum(usage_of(server, 1))}


def usage_of(server: OpenAIServer, number: int) -> tuple[int, int]:
    counted = usage(server.requests[number]["messages"], ANSWER)
    return counted["prompt_tokens"], counted["completion_tokens"]
