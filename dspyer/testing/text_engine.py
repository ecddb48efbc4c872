"""The engine of the LMs for tests: a `dspy.LM`, sync, async and streamed, of a function from a prompt to a text."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import dspy

from dspyer.lm.not_public import (
    Message,
    Request,
    Response,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    TextDelta,
    TextPart,
    ToolCallDelta,
    ToolCallPart,
    Usage,
)
from dspyer.testing.prompt import LMAnswer, Prompt, Tool, Turn, read_prompt

_CHUNK = re.compile(r"\s*\S+\s*")


class Sampling:
    """The settings by which an answer may vary.

    Attributes:
        temperature: 0 for always the best answer.
        rollout: the rollout id of the call, None if it has none.
        candidate: the number of the answer among the `n` of one call, from 0.
    """

    __slots__ = ("candidate", "rollout", "temperature")

    def __init__(self, temperature: float = 0.0, rollout: int | None = None, candidate: int = 0) -> None:
        self.temperature = temperature
        self.rollout = rollout
        self.candidate = candidate


AnswerWriter = Callable[[Prompt, Sampling], str | LMAnswer]
"""Writes the answer to one prompt: a text, or an `LMAnswer` with tool calls."""

_current_sampling: ContextVar[Sampling | None] = ContextVar("dspyer_testing_sampling", default=None)


class TextEngine:
    """A synchronous engine of `dspy.LM`."""

    supports_function_calling = True

    def __init__(self, writer: AnswerWriter) -> None:
        self.writer = writer

    def complete(self, request: Request) -> Response:
        """The response to a request."""
        written = self.writer(prompt_of(request), _next_sampling(request))
        answer = LMAnswer(written) if isinstance(written, str) else written
        # Calls are numbered through the whole conversation, so that no two of them share an id.
        before = sum(part.type == "tool_call" for message in request.messages for part in message.parts)
        parts: list[Any] = [
            ToolCallPart(id=call.id or f"call_{number}", name=call.name, input=dict(call.args))
            for number, call in enumerate(answer.calls, before)
        ]
        outputs = [answer.text, *(f"{call.name} {json.dumps(call.input)}" for call in parts)]
        read = sum(count_tokens(turn.content) for turn in turns_of(request))
        usage = Usage(input_tokens=read, output_tokens=sum(map(count_tokens, outputs)))
        reason: Any = "tool_call" if parts else "stop"
        parts = [TextPart(text=answer.text), *parts] if answer.text or not parts else parts
        message = Message(role="assistant", parts=tuple(parts))
        return Response(id=None, model=request.model, message=message, finish_reason=reason, usage=usage)

    def stream(self, request: Request) -> Iterator[Any]:
        """The response to a request, word by word."""
        response = self.complete(request)
        yield StreamStartEvent(id=None, model=request.model)
        for index, part in enumerate(response.message.parts):
            if isinstance(part, ToolCallPart):
                name: str | None = part.name  # in the first piece, as providers send it
                for chunk in _CHUNK.findall(json.dumps(part.input)):
                    delta = ToolCallDelta(input=chunk, part_index=index, id=part.id if name else None, name=name)
                    yield StreamDeltaEvent(delta=delta)
                    name = None
            elif isinstance(part, TextPart):
                for chunk in _CHUNK.findall(part.text) or [part.text]:
                    yield StreamDeltaEvent(delta=TextDelta(text=chunk, part_index=index))
        yield StreamEndEvent(finish_reason=response.finish_reason, usage=response.usage)

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


class AsyncTextEngine:
    """The same engine for `await`. It answers on the caller's event loop and never waits."""

    def __init__(self, engine: TextEngine) -> None:
        self.engine = engine

    async def complete(self, request: Request) -> Response:
        """The response to a request."""
        return self.engine.complete(request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """The response to a request, word by word."""
        for event in self.engine.stream(request):
            yield event

    async def aclose(self) -> None:
        """Does nothing: there is nothing to close."""


class TextLM(dspy.LM):
    """A `dspy.LM` whose answers an `AnswerWriter` writes. By default it does not cache or retry; it has no network."""

    def __init__(self, model: str, writer: AnswerWriter, **kwargs: Any) -> None:
        engine = TextEngine(writer)
        defaults = {"cache": False, "num_retries": 0}
        super().__init__(model, engine=engine, async_engine=AsyncTextEngine(engine), **{**defaults, **kwargs})

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """As `dspy.LM.__call__`, with the sampling settings for the writer."""
        with _sampling({**self.kwargs, **kwargs}):
            return super().__call__(prompt, messages=messages, **kwargs)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """As `dspy.LM.acall`, with the sampling settings for the writer."""
        with _sampling({**self.kwargs, **kwargs}):
            return await super().acall(prompt, messages=messages, **kwargs)


def count_tokens(text: str) -> int:
    """The tokens of a text as these LMs report them: one per word."""
    return len(text.split())


def turns_of(request: Request) -> tuple[Turn, ...]:
    """The messages of a request as texts, with the results of tools; other parts that are no text are left out."""
    system = request.system
    turns = [] if system is None else [Turn("system", system if isinstance(system, str) else _text(system))]
    turns.extend(Turn(message.role, _text(message.parts)) for message in request.messages)
    return tuple(turns)


def prompt_of(request: Request) -> Prompt:
    """Read the prompt of a request."""
    tools = [tool for tool in request.tools or () if tool.type == "function"]
    choice = request.config.tool_choice
    must_call: Any = ()
    if choice is not None and choice.mode == "required":
        must_call = choice.allowed or [tool.name for tool in tools]
    known = [Tool(tool.name, tool.description or "", tool.parameters or {}) for tool in tools]
    return read_prompt(turns_of(request), known, must_call)


def _text(parts: Any) -> str:
    texts = [part.text for part in parts if getattr(part, "type", "") == "text"]
    texts += [_text(part.content) for part in parts if getattr(part, "type", "") == "tool_result"]
    return "".join(texts)


@contextmanager
def _sampling(settings: Mapping[str, Any]) -> Iterator[None]:
    """Passes rollout and candidate to the engine in a context variable: DSPy removes both from the request."""
    token = _current_sampling.set(Sampling(settings.get("temperature") or 0.0, settings.get("rollout_id")))
    try:
        yield
    finally:
        _current_sampling.reset(token)


def _next_sampling(request: Request) -> Sampling:
    call = _current_sampling.get()
    if call is None:
        return Sampling(request.config.temperature or 0.0)
    current = Sampling(call.temperature, call.rollout, call.candidate)
    call.candidate += 1
    return current
