"""Tokens: what the predictors of one node call stream, by predictor and output field.

DSPy asks an LM to stream if the setting `send_stream` is there, and sends it every chunk. `TokenCallback` is one of
DSPy's callbacks: it sees each call of a predictor begin and end, in whatever module, thread or task it is made, and
puts a `PredictorCall` in place of `send_stream` for just this call. So no two calls share a parser, and the chunks of a
call need no id. A stream that is there already (`dspy.streamify`) gets the same chunks as without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import dspy

from dspyer.blocking import lend_loop, reachable_loop, take_back_loop
from dspyer.display.redaction import OutputRedaction
from dspyer.dspy_module.field_texts import SUBMIT, ResponseReader, SubmitText, reader_for, text_of_value
from dspyer.dspy_module.not_public import (
    DECIDES,
    LISTENERS,
    SEND_STREAM,
    BaseCallback,
    Choice,
    Noul,
    Score,
    _adapter_calls,
)
from dspyer.event_queue import EventQueue
from dspyer.values.unicode import with_valid_text

ShowToken = Callable[[dspy.Predict, str, str, bool], None]
"""Called with a predictor, a field, the next piece of its text, and whether that is the last one."""


class TokenCallback(BaseCallback):
    """Streams the tokens of the predictors that are called in one attempt of a node.

    Args:
        show: gets the tokens.
        redaction: what to show of the outputs; None for all of it, as it arrives.
        queue: where the tokens wait for their reader; None for no reader.
    """

    def __init__(self, show: ShowToken, redaction: OutputRedaction | None, queue: EventQueue[Any] | None) -> None:
        self._show = show
        self._queue = queue
        self._redaction = redaction
        self._calls: dict[str, tuple[PredictorCall, AbstractContextManager[None], bool]] = {}  # by the id of DSPy

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Begins to listen to a predictor."""
        if not isinstance(instance, dspy.Predict):
            return
        call = PredictorCall(instance, inputs.get("kwargs", {}), self._show, self._redaction, self._queue)
        stream = None if _decides(instance) else call
        context = dspy.context(**{SEND_STREAM: stream, LISTENERS: []})  # with listeners, DSPy streams theirs alone
        context.__enter__()
        self._calls[call_id] = (call, context, lend_loop())

    def on_adapter_format_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Notes which adapter will parse the response: `dspy.ChatAdapter` falls back to `dspy.JSONAdapter`."""
        del call_id
        call = dspy.settings.get(SEND_STREAM)
        # Of a class below `dspy.ChatAdapter` the method is wrapped several times: the innermost call names its inputs.
        if isinstance(call, PredictorCall) and "signature" in inputs:
            call.read_as(instance, inputs["signature"])

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Begins a response: `dspyer.lms.reliable` asks again, or another LM, if one breaks off before a token."""
        del call_id, instance, inputs
        call = dspy.settings.get(SEND_STREAM)
        if isinstance(call, PredictorCall):
            call.begin_response()

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Shows the rest of each field; all of it if the response came from a cache or the LM does not stream."""
        call, context, lent = self._calls.pop(call_id, (None, None, False))
        if call is None or context is None:
            return
        if lent:
            take_back_loop()
        context.__exit__(None, None, None)
        if exception is None and isinstance(outputs, dspy.Prediction):
            call.end(outputs)
        if self._queue is not None:
            self._queue.wait_for_room()


def without_tokens(callbacks: list[Any]) -> list[Any]:
    """The callbacks without those of tokens; the same list if there are none."""
    others = [one for one in callbacks if not isinstance(one, TokenCallback)]
    return others if len(others) < len(callbacks) else callbacks


def apart_from_tokens(callbacks: list[Any], stream: Any) -> dict[str, Any]:
    """DSPy settings for a run whose tokens are not those of the node that has called it; `{}` if there are none.

    `callbacks` and `stream` are what DSPy's settings have.
    """
    found: dict[str, Any] = {}
    if callbacks and without_tokens(callbacks) is not callbacks:
        found["callbacks"] = without_tokens(callbacks)
    if isinstance(stream, PredictorCall):
        found[SEND_STREAM] = stream.around
    return found


class PredictorCall:
    """One call of a predictor, and the `send_stream` of its LM calls.

    Attributes:
        around: the stream that the caller of the program has set up, if it gets the chunks of the predictor; else None.
    """

    def __init__(
        self,
        predictor: dspy.Predict,
        inputs: Mapping[str, Any],
        show: ShowToken,
        redaction: OutputRedaction | None,
        queue: EventQueue[Any] | None,
    ) -> None:
        self._predictor = predictor
        self._queue = queue
        self._show_token = show
        self._redaction = redaction
        self._held: dict[str, str] = {}  # what may be the beginning of a hidden text
        self._outputs = dspy.ensure_signature(inputs.get("signature") or predictor.signature).output_fields
        self._shown: dict[str, list[str]] = {}
        self._done: set[str] = set()
        self._make_reader: Callable[[], ResponseReader | None] = _no_reader
        self._reader: ResponseReader | None = None
        self._ended = False  # whether the first of several responses to one request has ended
        self._half = ""  # the first half of a surrogate pair, of which the next chunk may bring the other one
        self._native: dict[str, Any] = {}  # fields that the adapter leaves to the LM, by name, with their types
        calls = [name for name, field in self._outputs.items() if field.annotation is dspy.ToolCalls]
        self._calls_field, self._final = _submit_of(calls, inputs)
        self._submit = SubmitText(self._final, self._show)
        settings = dspy.settings
        listeners = settings.get(LISTENERS) or ()
        wanted = not listeners or any(one.predict == predictor for one in listeners)
        around = settings.get(SEND_STREAM) if wanted else None
        # Of a predictor that another one calls, the chunks are not a part of the other one's response.
        self.around: Any = around.around if isinstance(around, PredictorCall) else around
        self._loop = reachable_loop()
        self._scopes = len(_adapter_calls.get())  # of calls around this one

    async def send(self, chunk: Any) -> None:
        """Gets a chunk from DSPy. It must not block: the loop may be one that all sync runs of the process share."""
        # A stream around the program belongs to the loop from which the program was called.
        if self.around is not None and asyncio.get_running_loop() is self._loop:
            await self.around.send(chunk)
        self._receive(chunk)
        if self.around is None and not self._shown:
            # DSPy falls back to another adapter, and `dspyer.lms.reliable` to another LM, until a chunk was streamed.
            # Here what counts is that a token was shown.
            for progress in _adapter_calls.get()[self._scopes :]:
                progress.emitted = False
        if self._queue is not None:
            await self._queue.room()  # the LM is read no faster than the stream

    def read_as(self, adapter: dspy.Adapter, signature: Any) -> None:
        """The next response is for this adapter, with the fields of this signature in its text."""
        fields = [name for name in signature.output_fields if name in self._outputs]
        self._make_reader = partial(reader_for, adapter, fields, self._show_field, self._take_calls)
        left = {name: field.annotation for name, field in self._outputs.items() if name not in signature.output_fields}
        self._native = {name: kind for name, kind in left.items() if name == self._calls_field or _streams(kind)}
        self.begin_response()

    def begin_response(self) -> None:
        """What is received from now on is another response."""
        self._reader, self._ended, self._half = self._make_reader(), False, ""
        self._submit = SubmitText(self._final, self._show)

    def _receive(self, chunk: Any) -> None:
        choices = getattr(chunk, "choices", None)
        if self._ended or not choices or choices[0].index:  # of several responses the first counts
            return
        self._ended = choices[0].finish_reason is not None
        delta = choices[0].delta
        text = self._half + (getattr(delta, "content", None) or "")
        self._half = text[-1:] if "\ud800" <= text[-1:] < "\udc00" and not self._ended else ""
        text = with_valid_text(text.removesuffix(self._half))
        if text and self._reader is not None:
            self._reader.feed(text)
        for name, kind in self._native.items():
            if name == self._calls_field:
                self._read_native_calls(getattr(delta, "tool_calls", None) or ())
            elif isinstance(part := kind.parse_stream_chunk(chunk), str):
                self._show(name, part, False)

    def _read_native_calls(self, calls: Any) -> None:
        for call in calls:
            function = call["function"] if isinstance(call, Mapping) else call.function
            index = call["index"] if isinstance(call, Mapping) else call.index
            self._submit.add_native(index, _get(function, "name"), _get(function, "arguments"))

    def _show_field(self, field: str, text: str, done: bool) -> None:
        """Shows a piece of a field's text; that of the tool calls of an agent is read for the arguments of `submit`."""
        if field != self._calls_field:
            self._show(field, text, done)
        elif text:
            self._submit.add_text(text)

    def _take_calls(self, field: str, value: Any) -> bool:
        """Takes the tool calls of an agent out of a parsed response."""
        if field != self._calls_field:
            return False
        self._submit.update(value)
        return True

    def _show(self, field: str, text: str, done: bool) -> None:
        redaction = self._redaction
        if field in self._done or not (text or done) or (redaction is not None and redaction.may_hide(field)):
            return
        self._shown.setdefault(field, []).append(text)
        if done:
            self._done.add(field)
        if redaction is not None:
            text = self._held.pop(field, "") + text
            if not done:
                length = redaction.settled(text)
                self._held[field], text = text[length:], text[:length]
        if text or done:
            self._show_token(self._predictor, field, text, done)

    def end(self, prediction: dspy.Prediction) -> None:
        """Shows what is left of each field."""
        if self._reader is not None:
            self._reader.end()
        values = {name: value for name, value in prediction.items() if name in self._outputs}
        if self._calls_field in values:
            values.update(_final_values(values.pop(self._calls_field), self._final))
        for field, value in values.items():
            if field in self._done:
                continue
            whole, shown = with_valid_text(text_of_value(value)), "".join(self._shown.get(field, ()))
            if self._redaction is not None and self._redaction.may_hide(field):
                self._show_token(self._predictor, field, self._redaction.output(field, whole), True)
                continue
            # A value that is no text is shown as the LM has written it, in whatever form.
            is_text = not shown or isinstance(value, (str, dspy.Reasoning))
            self._show(field, whole[len(shown) :] if is_text and whole.startswith(shown) else "", True)


def _no_reader() -> None:
    """Before an adapter has formatted a prompt."""


def _decides(predictor: Any) -> bool:
    """Whether DSPy refuses to stream: a predictor has outputs of its experimental types of decisions."""
    found = [
        kind for field in predictor.signature.output_fields.values() for kind in (field.annotation, *field.metadata)
    ]
    lm = predictor.lm or dspy.settings.lm
    return (
        any(isinstance(kind, type) and issubclass(kind, (Choice, Noul, Score)) for kind in found)
        or bool(getattr(predictor, "fields", None))
        or getattr(lm, DECIDES, False) is True
    )


def _streams(kind: Any) -> bool:
    """Whether chunks have parts of a value of this type, beside the text of the response."""
    own: Any = kind if isinstance(kind, type) and issubclass(kind, dspy.Type) else None
    return own is not None and bool(own.is_streamable())


def _submit_of(calls: list[str], inputs: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The output with the tool calls of an agent, and the arguments of its tool `submit`; ("", ()) for no agent."""
    for value in inputs.values() if calls else ():
        for tool in value if isinstance(value, (list, tuple)) else ():
            if isinstance(tool, dspy.Tool) and tool.name == SUBMIT:
                return calls[0], tuple(tool.args or ())
    return "", ()


def _final_values(calls: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of the first call of `submit`; none if there is no such call."""
    for call in getattr(calls, "tool_calls", None) or ():
        if call.name == SUBMIT:
            return {name: value for name, value in (call.args or {}).items() if name in fields}
    return {}


def _get(value: Any, name: str) -> str:
    found = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return found or ""
