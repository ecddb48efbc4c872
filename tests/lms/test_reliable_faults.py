"""Each fault of a provider against `reliable`: what is retried, what goes to the next LM, what is raised at once.

Requests are counted at the servers. `tests/testing/test_http_faults.py` shows the same faults without a policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import dspy
import httpx
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
    LMTimeoutError,
    LMTransportError,
    LMUnexpectedError,
)

from dspyer import Retry
from dspyer.errors import is_transient
from dspyer.lms import reliable
from dspyer.testing import no_pauses
from tests.http_faults import (
    Cut,
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
from tests.lm_calls import ANSWER, CALLS, Outcome, call_streamed, call_streamed_async
from tests.openai_server import OpenAIServer
from tests.rows import each
from tests.timeouts import PATIENCE

ATTEMPTS = 3
STREAMED = {call_streamed, call_streamed_async}
Call = Callable[..., Outcome]


class Row(NamedTuple):
    """What `reliable` makes of a fault that every request to an LM gets.

    `retried`: the LM is asked `ATTEMPTS` times. `falls_back`: the next LM is asked. Else the error is raised at once.
    """

    fault: Fault
    error: type[BaseException] | None
    retried: bool
    falls_back: bool
    requests: int = 1  # if it is not retried
    tokens: int = 0  # that are shown


def down(fault: Fault, error: type[BaseException]) -> Row:
    return Row(fault, error, retried=True, falls_back=True)


def out(fault: Fault, error: type[BaseException]) -> Row:
    return Row(fault, error, retried=False, falls_back=True)


def wrong(fault: Fault, error: type[BaseException]) -> Row:
    return Row(fault, error, retried=False, falls_back=False)


def shown(fault: Fault, error: type[BaseException], tokens: int) -> Row:
    return Row(fault, error, retried=False, falls_back=False, tokens=tokens)


def accepted(fault: Fault, error: type[BaseException] | None, requests: int = 1, tokens: int = 0) -> Row:
    return Row(fault, error, retried=False, falls_back=False, requests=requests, tokens=tokens)


# If the request is answered at once, and if it is streamed.
ROWS: list[tuple[Row, Row | None]] = [
    (down(Status(429), LMRateLimitError), None),
    (down(Status(429, Retry_After="2"), LMRateLimitError), None),
    (out(Status(429, Retry_After="3600"), LMRateLimitError), None),
    (down(Status(429, Retry_After="soon"), LMRateLimitError), None),
    (out(Status(429, "insufficient_quota"), LMBillingError), None),
    (down(Status(500), LMServerError), None),
    (down(Status(503), LMServerError), None),
    (down(Status(504), LMTimeoutError), None),
    (down(Status(503, Retry_After="5"), LMServerError), None),
    (wrong(Status(400), LMInvalidRequestError), None),
    (wrong(Status(400, "content_policy_violation"), LMInvalidRequestError), None),
    (wrong(Status(400, "context_length_exceeded"), ContextWindowExceededError), None),
    (wrong(Status(401), LMAuthError), None),
    (wrong(Status(403), LMAuthError), None),
    (wrong(Status(404), LMInvalidRequestError), None),
    (down(Drop(), LMTransportError), None),
    (down(Drop("headers"), LMTransportError), None),
    (down(Drop("body"), LMTransportError), None),
    (down(Cut(0), LMTransportError), down(Cut(0), LMStreamAssemblyError)),
    (down(Cut(1), LMTransportError), shown(Cut(1), LMStreamAssemblyError, 1)),
    (down(Cut(3), LMTransportError), shown(Cut(3), LMStreamAssemblyError, 3)),
    (down(ErrorEvent(), LMServerError), None),
    (down(ErrorEvent(2), LMServerError), shown(ErrorEvent(2), LMServerError, 2)),
    (out(Html(), LMProviderError), down(Html(), LMStreamAssemblyError)),
    (out(TruncatedJson(), LMProviderError), out(TruncatedJson(), LMUnexpectedError)),
    (accepted(EmptyChoices(), AdapterParseError, 2), accepted(EmptyChoices(), AdapterParseError, 1)),
    (accepted(Text(), AdapterParseError, 2), accepted(Text(), AdapterParseError, 1, tokens=7)),
    (
        accepted(Text("[[ ## answer ## ]]\none", finish="length"), None),
        accepted(Text("[[ ## answer ## ]]\none", finish="length"), None, tokens=6),
    ),
    (down(Hold(), LMTransportError), None),
]
CASES = [(streamed or whole if call in STREAMED else whole, call) for whole, streamed in ROWS for call in CALLS]

RETRIED = [case for case in CASES if case[0].retried]


def failing(fault: Fault) -> OpenAIServer:
    return OpenAIServer(lambda messages: ANSWER, faults=itertools.repeat(fault))


def lm_of(server: OpenAIServer, fault: Fault | None = None) -> Any:
    # Only a response may take too long: on a busy machine, a connection and a request may take longer than that.
    return server.lm(**({"timeout": httpx.Timeout(PATIENCE, read=0.03)} if isinstance(fault, Hold) else {}))


@each(("row", "call"), CASES, items=8)
def test_a_fault_that_lasts(row: Row, call: Call) -> None:
    """One LM: the number of requests, the exception with its type, and whether a node may repeat the step."""
    with failing(row.fault) as server, no_pauses() as pauses:
        outcome = call(reliable(lm_of(server, row.fault), retry=ATTEMPTS))
    assert type(outcome.error) is (row.error or type(None)), outcome.error
    assert len(server.requests) == (ATTEMPTS if row.retried else row.requests)
    assert len(outcome.tokens) == row.tokens
    if row.retried:
        assert len(pauses) >= ATTEMPTS - 1
    if outcome.error is not None:
        repeatable = row.tokens > 0 or isinstance(outcome.error, AdapterParseError)
        assert is_transient(outcome.error) is repeatable, "a node must not repeat what the LM has repeated"


@each(("row", "call"), RETRIED, items=5)
def test_a_fault_that_passes(row: Row, call: Call) -> None:
    """One LM, whose first request fails: the response is given once, and its usage is counted once."""
    failed: list[Any] = []

    def wait(state: Any) -> float:
        """Between two attempts: the second one has time."""
        failed.append(lm._lanes[0].lm.kwargs.pop("timeout", None))
        return 0.0

    def faults(body: dict[str, Any]) -> Fault | None:
        return None if failed else row.fault

    with OpenAIServer(lambda messages: ANSWER, faults=faults) as server, no_pauses():
        lm: Any = reliable(lm_of(server, row.fault), retry=Retry(ATTEMPTS, wait=wait))  # type: ignore[arg-type] # as tenacity does
        outcome = call(lm)
    assert outcome.answer == "one two three"
    assert len(server.requests) == 2
    assert outcome.total_tokens == tokens_of_one_response(call)
    assert "".join(outcome.tokens) == ("" if call not in STREAMED else ANSWER)


@each(("row", "call"), CASES, items=10)
def test_the_next_lm(row: Row, call: Call) -> None:
    """Two LMs, the first of which always fails."""
    with failing(row.fault) as main, OpenAIServer(lambda messages: ANSWER, "backup") as backup, no_pauses():
        outcome = call(reliable(lm_of(main, row.fault), lm_of(backup), retry=ATTEMPTS))
    assert len(main.requests) == (ATTEMPTS if row.retried else row.requests)
    assert len(backup.requests) == int(row.falls_back)
    if row.falls_back:
        assert outcome.answer == "one two three"
        assert outcome.total_tokens == tokens_of_one_response(call, "backup"), "only the LM that responded"
        assert "".join(outcome.tokens) == ("" if call not in STREAMED else ANSWER)
    else:
        assert type(outcome.error) is (row.error or type(None))
        assert len(outcome.tokens) == row.tokens


@cache
def tokens_of_one_response(call: Call, model: str = "local") -> dict[str, int]:
    with OpenAIServer(lambda messages: ANSWER, model) as server:
        plain = server.lm()
        found = call(plain).total_tokens
        plain.close()
    return found


@pytest.mark.parametrize("call", CALLS)
def test_a_refused_connection(call: Call) -> None:
    with refused_address() as address, OpenAIServer(lambda messages: ANSWER) as backup, no_pauses() as pauses:
        dead = dspy.LM("openai/dead", api_base=address, api_key="test", cache=False)  # 3 retries of its own
        outcome = call(reliable(dead, backup.lm(), retry=ATTEMPTS))
    assert outcome.answer == "one two three"
    assert len(pauses) == ATTEMPTS - 1
    assert len(backup.requests) == 1


@pytest.mark.parametrize("call", CALLS)
def test_when_all_fail_the_last_error_is_raised_and_names_the_others(call: Call) -> None:
    with failing(Status(500)) as main, failing(Status(429)) as backup, no_pauses():
        outcome = call(reliable(main.lm(), backup.lm(), retry=2))
    assert isinstance(outcome.error, LMRateLimitError)
    assert "LMServerError" in "".join(outcome.error.__notes__)
    assert (len(main.requests), len(backup.requests)) == (2, 2)
    assert not is_transient(outcome.error)


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_request_at_the_second_lm_is_raised(call: Call) -> None:
    with failing(Status(500)) as main, failing(Status(401)) as backup, failing(Status(500)) as third, no_pauses():
        outcome = call(reliable(main.lm(), backup.lm(), third.lm(), retry=2))
    assert type(outcome.error) is LMAuthError
    assert (len(main.requests), len(backup.requests), len(third.requests)) == (2, 1, 0)
