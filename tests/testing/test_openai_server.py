"""The local OpenAI-compatible server: a real `dspy.LM` calls it over HTTP, sync and async, at once and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMInvalidRequestError, LMRateLimitError, LMServerError

from tests.openai_server import HTTPFailureError, Messages, OpenAIServer, text_of

QA = "question -> answer"


def echo(messages: Messages) -> str:
    question = text_of(messages[-1]).split("[[ ## question ## ]]\n")[1].split("\n")[0]
    if question == "fail":
        raise ValueError("cannot")
    if question.isdigit():
        raise HTTPFailureError(int(question), f"status {question}")
    return f"[[ ## answer ## ]]\nyou said {question}\n\n[[ ## completed ## ]]"


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(echo) as running:
        yield running


@pytest.fixture
def lm(server: OpenAIServer) -> Iterator[Any]:
    lm = server.lm(max_tokens=50)
    with dspy.context(lm=lm, track_usage=True):
        yield lm
    lm.close()


def test_a_call_goes_over_http(server: OpenAIServer, lm: Any) -> None:
    found = dspy.Predict(QA)(question="hello")
    assert found.answer == "you said hello"
    usage = found.get_lm_usage()["openai/local"]
    assert usage["completion_tokens"] == 13
    assert usage["total_tokens"] == usage["prompt_tokens"] + 13
    assert server.requests[-1]["model"] == "local"
    assert [message["role"] for message in server.requests[-1]["messages"]] == ["system", "user"]


def test_a_call_in_a_loop(lm: Any) -> None:
    async def call() -> Any:
        try:
            return await dspy.Predict(QA).acall(question="you")
        finally:
            await lm.aclose()

    assert asyncio.run(call()).answer == "you said you"


@pytest.mark.parametrize("in_loop", [False, True], ids=["sync program", "async program"])
def test_an_answer_is_streamed(server: OpenAIServer, lm: Any, in_loop: bool) -> None:
    async def collect() -> list[Any]:
        listener = dspy.streaming.StreamListener("answer")
        program = dspy.streamify(dspy.Predict(QA), stream_listeners=[listener], is_async_program=in_loop)
        try:
            return [chunk async for chunk in program(question="again")]
        finally:
            await lm.aclose()

    *parts, last = asyncio.run(collect())
    assert server.requests[-1]["stream"] is True
    assert [part.chunk.strip() for part in parts if part.chunk] == ["you", "said", "again"]
    assert last.answer == "you said again"


@pytest.mark.parametrize(
    ("question", "error"),
    [("fail", LMServerError), ("503", LMServerError), ("429", LMRateLimitError), ("400", LMInvalidRequestError)],
)
def test_failures_come_as_http_failures(lm: Any, question: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="cannot" if question == "fail" else f"status {question}"):
        dspy.Predict(QA)(question=question)


def test_a_retry_asks_again(lm: Any) -> None:
    waiting = [HTTPFailureError(503, "busy", Retry_After="0")]

    def answer(messages: Messages) -> str:
        if waiting:
            raise waiting.pop()
        return echo(messages)

    with OpenAIServer(answer) as other:
        patient = other.lm(num_retries=1)
        with dspy.context(lm=patient):
            assert dspy.Predict(QA)(question="now").answer == "you said now"
        patient.close()
    assert len(other.requests) == 2
