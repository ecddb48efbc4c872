"""Each fault of a provider against a node, without a policy and with one: requests, exception, usage, tokens."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import dspy
import httpx
import pytest
from dspy.utils.exceptions import LMTransportError

from dspyer import END, START, CompiledGraph, Graph, Retry
from dspyer.errors import is_transient
from dspyer.events import AttemptFailed, Token
from dspyer.testing import no_pauses
from tests.budget import deep
from tests.http_faults import (
    UNPARSABLE,
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
from tests.lm_calls import ANSWER
from tests.openai_server import OpenAIServer, usage
from tests.rows import each
from tests.timeouts import PATIENCE


@pytest.fixture(autouse=True)
def pauses() -> Iterator[list[float]]:
    with no_pauses() as asked:
        yield asked


# Only a response may take too long: on a busy machine, a connection and a request may take longer than that.
SHORT = httpx.Timeout(PATIENCE, read=0.03)


def program_of(retry: Any) -> CompiledGraph:
    graph = Graph(name="Asks").add_node("ask", dspy.Predict("question -> answer"), retry=retry)
    return graph.add_path(START, "ask", END).compile()


class Outcome(NamedTuple):
    run: Any
    events: list[Any]  # of a run that is streamed

    @property
    def answer(self) -> str | None:
        return self.run.state["answer"] if self.run.status == "completed" else None

    @property
    def total(self) -> int:
        return sum(one.get("total_tokens", 0) for one in self.run.usage.values())


def call_sync(program: CompiledGraph, lm: Any) -> Outcome:
    with dspy.context(lm=lm):
        return Outcome(program.run({"question": "a question"}), [])


def call_async(program: CompiledGraph, lm: Any) -> Outcome:
    async def main() -> Outcome:
        with dspy.context(lm=lm):
            run = await program.arun({"question": "a question"})
        await lm.aclose()
        return Outcome(run, [])

    return asyncio.run(main())


def call_streamed(program: CompiledGraph, lm: Any) -> Outcome:
    with dspy.context(lm=lm):
        stream, events = program.stream({"question": "a question"}, tokens=True), list[Any]()
        with suppress(Exception):  # that of the run
            events.extend(stream)
        return Outcome(stream.run, events)


def call_streamed_async(program: CompiledGraph, lm: Any) -> Outcome:
    async def main() -> Outcome:
        with dspy.context(lm=lm):
            stream, events = program.astream({"question": "a question"}, tokens=True), list[Any]()
            with suppress(Exception):
                async for event in stream:
                    events.append(event)
        await lm.aclose()
        return Outcome(stream.run, events)

    return asyncio.run(main())


CALLS: list[Callable[..., Outcome]] = [call_sync, call_async, call_streamed, call_streamed_async]
STREAMED = {call_streamed, call_streamed_async}


def check_tokens(outcome: Outcome) -> None:
    """The tokens of an attempt begin the answer, and `AttemptFailed` comes before those of the next attempt."""
    attempt, text = 1, ""
    for event in outcome.events:
        if isinstance(event, AttemptFailed):
            assert event.attempt == attempt
            attempt, text = attempt + 1, ""
        elif isinstance(event, Token):
            assert event.attempt == attempt
            text += event.text
            assert "one two three".startswith(text.rstrip())
    assert outcome.answer is None or not outcome.events or text.strip() == outcome.answer


def tokens_used(server: OpenAIServer) -> int:
    """Those of all complete responses, whatever the node has made of them."""
    texts = {Text: UNPARSABLE, EmptyChoices: "", type(None): ANSWER}
    return sum(
        usage(body["messages"], texts[type(fault)])["total_tokens"]
        for body, fault in zip(server.requests, server.sent, strict=True)
        if type(fault) in texts
    )


class Row(NamedTuple):
    """A fault: whether a node asks again after it, in general and for a stream; requests of one attempt."""

    fault: Fault
    retried: bool
    streamed: bool
    requests: int = 1  # DSPy asks again with its JSON adapter for what does not parse, before it has shown a token
    shown: bool = False  # whether a token of the answer is streamed before the fault


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
    Row(Cut(8), True, True, shown=True),
    Row(ErrorEvent(), True, True),
    Row(ErrorEvent(2), True, True),
    Row(ErrorEvent(8), True, True, shown=True),
    Row(Html(), False, True),
    Row(TruncatedJson(), False, False),
    Row(EmptyChoices(), True, True, 2),
    Row(Text(), True, True, 2),
    Row(Hold(), True, True),
]


each_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


def rows_and_calls(rows: list[Row]) -> list[tuple[Row, Callable[..., Outcome]]]:
    """Each fault in a call and in a stream, one of them in sync and one in async code; `make test-deep` has all."""
    ways = [CALLS, CALLS] if deep else [[call_sync, call_streamed_async], [call_async, call_streamed]]
    return [(row, call) for place, row in enumerate(rows) for call in ways[place % 2]]


def shown(value: Any) -> str:
    return repr(value.fault) if isinstance(value, Row) else value.__name__


@each(("row", "call"), rows_and_calls(ROWS), ids=shown, items=6)
def test_each_fault_with_and_without_a_policy(row: Row, call: Callable[..., Outcome]) -> None:
    again = row.streamed if call in STREAMED else row.retried
    options = {"timeout": SHORT} if isinstance(row.fault, Hold) else {}
    errors = []
    for retry, attempts in ((None, 1), (3, 3 if again else 1)):
        with OpenAIServer(lambda messages: ANSWER, faults=itertools.repeat(row.fault)) as server:
            lm = server.lm(**options)
            outcome = call(program_of(retry), lm)
            lm.close()
        assert outcome.run.status == "failed"
        errors.append(type(outcome.run.error))
        assert len(server.requests) == attempts * row.requests, (retry, server.sent)
        assert outcome.total == tokens_used(server)
        check_tokens(outcome)
    assert errors[0] is errors[1]  # the type is that of DSPy, whatever the policy


@each(
    ("row", "call"),
    rows_and_calls([row for row in ROWS if row.retried and row.streamed]),
    ids=shown,
    items=4,
)
def test_one_fault_and_then_an_answer(row: Row, call: Callable[..., Outcome], pauses: list[float]) -> None:
    pauses.clear()
    script, arrived = iter([row.fault] * row.requests), threading.Event()

    def faults(body: dict[str, Any]) -> Fault | None:
        lm.kwargs.pop("timeout", None)  # the next request has time
        arrived.set()
        return next(script, None)

    def wait(state: Any) -> float:
        assert arrived.wait(PATIENCE)  # on a busy machine, a request may arrive when its client has given up
        return 0.0

    with OpenAIServer(lambda messages: ANSWER, faults=faults) as server:
        lm = server.lm(**({"timeout": SHORT} if isinstance(row.fault, Hold) else {}))
        outcome = call(program_of(Retry(3, wait=wait)), lm)  # type: ignore[arg-type] # tenacity takes functions, too
        lm.close()
    assert outcome.run.error is None
    assert outcome.answer == "one two three"
    assert len(server.requests) == row.requests + 1
    assert outcome.total == tokens_used(server), "once, whatever failed before"
    check_tokens(outcome)
    first = [event for event in outcome.events if isinstance(event, Token) and event.attempt == 1]
    assert bool(first) is (row.shown and call in STREAMED)
    asked = getattr(row.fault, "headers", {}).get("Retry_After", "0")
    if asked in ("2", "5"):
        assert int(asked) <= pauses[0] <= int(asked) + 0.5


@each_call
def test_a_refused_connection(call: Callable[..., Outcome], pauses: list[float]) -> None:
    with refused_address() as address:
        lm = dspy.LM("openai/dead", api_base=address, api_key="test", num_retries=0, cache=False)
        assert isinstance(call(program_of(None), lm).run.error, LMTransportError)
        assert pauses == []
        assert isinstance(call(program_of(3), lm).run.error, LMTransportError)
    assert len(pauses) == 2


@each_call
def test_a_response_that_was_cut_off_is_an_answer(call: Callable[..., Outcome]) -> None:
    with OpenAIServer(lambda messages: ANSWER, faults=[Text("[[ ## answer ## ]]\none", finish="length")]) as server:
        lm = server.lm()
        outcome = call(program_of(3), lm)
        lm.close()
    assert outcome.answer == "one"
    assert len(server.requests) == 1
    check_tokens(outcome)


def test_a_policy_may_name_what_it_retries() -> None:
    """400 is no transient error, and a user may know better."""
    with OpenAIServer(lambda messages: ANSWER, faults=[Status(400)]) as server:
        lm = server.lm()
        outcome = call_sync(program_of(Retry(2, on=(is_transient, dspy.LMError))), lm)
        lm.close()
    assert outcome.answer == "one two three"
    assert len(server.requests) == 2
