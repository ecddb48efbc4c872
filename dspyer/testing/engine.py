"""The engine of the LMs for tests: a function from a prompt to a text, in both colours, streamed, with usage."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import dspy
from dspy.lm15 import (
    Message,
    Request,
    Response,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    TextDelta,
    Usage,
)

from dspyer.testing.prompt import Prompt, Turn, read_prompt

_CHUNK = re.compile(r"\s*\S+\s*")


class Sampling:
    """How an answer may vary.

    Attributes:
        temperature: 0 for the best answer always.
        rollout: the rollout id of the call, None if it has none.
        candidate: which of the `n` answers of one call this is, from 0.
    """

    __slots__ = ("candidate", "rollout", "temperature")

    def __init__(self, temperature: float = 0.0, rollout: int | None = None, candidate: int = 0) -> None:
        self.temperature = temperature
        self.rollout = rollout
        self.candidate = candidate


class Writer(Protocol):
    """What stands behind an engine: it answers a prompt with a text, or raises."""

    def write(self, prompt: Prompt, sampling: Sampling, /) -> str:
        """Answers one prompt."""
        ...


_calls: ContextVar[Sampling | None] = ContextVar("dspyer_testing_sampling", default=None)


class TextEngine:
    """A synchronous engine of `dspy.LM`."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def complete(self, request: Request) -> Response:
        """Answers a request at once."""
        text = self.writer.write(prompt_of(request), _next_sampling(request))
        usage = Usage(input_tokens=_input_tokens(request), output_tokens=count_tokens(text))
        message = Message.assistant(text)
        return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)

    def stream(self, request: Request) -> Iterator[Any]:
        """Answers a request word by word."""
        response = self.complete(request)
        yield StreamStartEvent(id=None, model=request.model)
        text = response.message.text or ""
        for chunk in _CHUNK.findall(text) or [text]:
            yield StreamDeltaEvent(delta=TextDelta(text=chunk, part_index=0))
        yield StreamEndEvent(finish_reason="stop", usage=response.usage)

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


class AsyncTextEngine:
    """The same engine for `await`. It answers on the caller's event loop, without waiting for anything."""

    def __init__(self, engine: TextEngine) -> None:
        self.engine = engine

    async def complete(self, request: Request) -> Response:
        """Answers a request at once."""
        return self.engine.complete(request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """Answers a request word by word."""
        for event in self.engine.stream(request):
            yield event

    async def aclose(self) -> None:
        """Does nothing: there is nothing to close."""


class TextLM(dspy.LM):
    """A `dspy.LM` whose answers a `Writer` writes. It never caches, never retries and needs no network."""

    def __init__(self, model: str, writer: Writer, **kwargs: Any) -> None:
        engine = TextEngine(writer)
        defaults = {"cache": False, "num_retries": 0}
        super().__init__(model, engine=engine, async_engine=AsyncTextEngine(engine), **{**defaults, **kwargs})

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Answers as `dspy.LM` does."""
        with _sampling({**self.kwargs, **kwargs}):
            return super().__call__(prompt, messages=messages, **kwargs)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Answers as `dspy.LM` does."""
        with _sampling({**self.kwargs, **kwargs}):
            return await super().acall(prompt, messages=messages, **kwargs)


def count_tokens(text: str) -> int:
    """Tokens of a text by the rule of these LMs: one per word between blanks."""
    return len(text.split())


def turns_of(request: Request) -> tuple[Turn, ...]:
    """The messages of a request as texts. Parts that are no text are left out."""
    system = request.system
    turns = [] if system is None else [Turn("system", system if isinstance(system, str) else _text(system))]
    turns.extend(Turn(message.role, _text(message.parts)) for message in request.messages)
    return tuple(turns)


def prompt_of(request: Request) -> Prompt:
    """What a request says."""
    return read_prompt(turns_of(request))


def _text(parts: Any) -> str:
    return "".join(part.text for part in parts if getattr(part, "type", "") == "text")


def _input_tokens(request: Request) -> int:
    return sum(count_tokens(turn.content) for turn in turns_of(request))


@contextmanager
def _sampling(settings: Mapping[str, Any]) -> Iterator[None]:
    """Hands rollout and candidate to the engine: DSPy takes both out of the request."""
    token = _calls.set(Sampling(settings.get("temperature") or 0.0, settings.get("rollout_id")))
    try:
        yield
    finally:
        _calls.reset(token)


def _next_sampling(request: Request) -> Sampling:
    call = _calls.get()
    if call is None:
        return Sampling(request.config.temperature or 0.0)
    current = Sampling(call.temperature, call.rollout, call.candidate)
    call.candidate += 1
    return current
