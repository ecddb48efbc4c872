"""Tokens: what the predictors of one node call stream, by predictor and output field.

DSPy asks an LM to stream if the setting `send_stream` is there, and sends it every chunk. `TokenCallback` is one of
DSPy's callbacks: it sees each call of a predictor begin and end, in whatever module, thread or task it is made, and
puts a `StreamedCall` in place of `send_stream` for just this call. So no two calls share a parser, and the chunks of a
call need no id. A stream that is there already (`dspy.streamify`) gets the same chunks as without it.

A reader, one per adapter of DSPy, is given the response piece by piece, however it is cut, and shows of each field what
is certain: joined, the pieces are a beginning of what the adapter will make of the whole response, whose rest is shown
when the call has ended. `dspy.streaming.StreamListener` is not used: it gives the text of a JSON string with its
escapes, ends a value at the first `[[`, and gives nothing of a field that arrives in one piece.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from inspect import unwrap
from typing import Any, TypeAlias
from xml.parsers import expat

import dspy
from pydantic_core import from_json, to_json

from dspyer.lm.not_public import (
    DECIDES,
    LISTENERS,
    SEND_STREAM,
    BaseCallback,
    Choice,
    Noul,
    Score,
    _adapter_calls,
    field_header_pattern,
)
from dspyer.redaction import OutputRedaction
from dspyer.values.json import with_valid_text
from dspyer.waiting import EventQueue, lend_loop, reachable_loop, take_back_loop

Show = Callable[[str, str, bool], None]
"""Called with a field, the next piece of its text, and whether that is the last one."""

TakeNested = Callable[[str, Any], bool]
"""Called with a field and its value as far as it has been parsed; returns whether it has taken the field."""


def reader_for(
    adapter: dspy.Adapter, fields: Collection[str], show: Show, nested: TakeNested | None = None
) -> ResponseReader | None:
    """The reader for the responses that an adapter parses; None for a class that parses in a way of its own."""
    parse = unwrap(type(adapter).parse)
    for known, reader in _READERS:
        if parse is unwrap(known.parse):
            return reader(GrowingValues(fields, show, nested))
    return None


def text_of_value(value: object) -> str:
    """A whole value as text: a text as it is, anything else as JSON."""
    if isinstance(value, (str, dspy.Reasoning)):
        return str(value)
    return to_json(value, fallback=str).decode()


class GrowingValues:
    """The values of a mapping that is read again and again while it grows at its end.

    A text is shown as it grows, any other value when the next one has begun. `nested` gets the fields first, and says
    whether it has taken one. `fields` None means all that are texts.
    """

    def __init__(self, fields: Collection[str] | None, show: Show, nested: TakeNested | None = None) -> None:
        self._fields = fields
        self._lengths: dict[str, int] = {}
        self._done: set[str] = set()
        self._show = show
        self._nested = nested

    def update(self, values: dict[str, Any], ended: bool = False) -> None:
        """Show what is new; `ended` says that they grow no more."""
        last = None if ended else next(reversed(values), None)
        for field, value in values.items():
            wanted = isinstance(value, str) if self._fields is None else field in self._fields
            if not wanted or field in self._done or (self._nested and self._nested(field, value)):
                continue
            done = field != last
            if isinstance(value, str):
                start = self._lengths.get(field, 0)
                if done or len(value) > start:
                    self._lengths[field] = len(value)
                    self._show(field, value[start:], done)
            elif done:
                self._show(field, text_of_value(value), True)
            if done:
                self._done.add(field)


_BEFORE, _AFTER = "[[ ## ", " ## ]]"
_NAME = re.compile(r"\w*")


class ChatText:
    """Reads the format of `dspy.ChatAdapter`: `[[ ## field ## ]]` at the start of a line begins a field.

    A line that may become such a header, and white space around a value, are held back.
    """

    def __init__(self, values: GrowingValues) -> None:
        self._values = values
        self._texts: dict[str, str] = {}
        self._name = ""  # of the field that is read
        self._line = ""  # what has not been read yet of the last line
        self._begun = self._is_header = False  # of that line, whether its beginning has been read, and is a header

    def feed(self, text: str) -> None:
        """Read the next piece."""
        self._line += text
        if self._line.endswith("\r"):
            return  # the "\n" of the same end of a line may follow
        *lines, last = f"{self._line}|".splitlines()  # the mark keeps an end of a line from being the last one
        for line in lines:
            self._read(line)
            if self._name:  # DSPy strips what follows a header in its line
                found = self._texts[self._name]
                self._texts[self._name] = (found.rstrip() if self._is_header else found) + "\n"
            self._begun = self._is_header = False
        self._line = last[:-1]
        if self._begun or not _may_become_header(self._line.lstrip()):
            self._read(self._line)  # so that a long line is read once
            self._line = ""
        self._values.update({name: found.strip() for name, found in self._texts.items()})

    def _read(self, part: str) -> None:
        match = None if self._begun else field_header_pattern.match(part.strip())
        if match is not None:
            self._name = match[1] if match[1] not in self._texts else ""  # of several, DSPy takes the first
            part, self._is_header = part[match.end() :], True
        self._begun = True
        if self._name:
            self._texts[self._name] = self._texts.get(self._name, "") + part


def _may_become_header(line: str) -> bool:
    if len(line) <= len(_BEFORE):
        return _BEFORE.startswith(line)
    if not line.startswith(_BEFORE):
        return False
    name, gap, rest = line[len(_BEFORE) :].partition(" ")
    return _NAME.fullmatch(name) is not None and _AFTER.startswith(gap + rest)


class JSONText:
    """Reads one JSON object, which text may precede, such as the mark of a code block.

    It is parsed again for each piece: 2 µs per 1,000 characters.
    """

    def __init__(self, values: GrowingValues) -> None:
        self._values = values
        self._text = ""
        self._stopped = False

    def feed(self, text: str) -> None:
        """Read the next piece."""
        if self._stopped:
            return
        self._text = (self._text + text) if self._text else text[text.find("{") :] if "{" in text else ""
        found = partial_json(self._text)
        if isinstance(found, dict):
            self._values.update(found)
        elif self._text:
            self._stopped = True  # no JSON; DSPy may mend it when it has ended


def partial_json(text: str) -> Any:
    """The value of a JSON text that may not have ended; None if it is no JSON."""
    try:
        return from_json(with_valid_text(text), allow_partial="trailing-strings")
    except ValueError:
        return None


class XMLText:
    """Reads the elements of `dspy.XMLAdapter`. One that has elements in it is left to the end of the response."""

    def __init__(self, values: GrowingValues) -> None:
        self._values = values
        self._texts: dict[str, str] = {}
        self._begun: set[str] = set()
        self._depth = 0
        self._name = ""  # of the field that is read
        parser = self._parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        if hasattr(parser, "SetReparseDeferralEnabled"):
            parser.SetReparseDeferralEnabled(False)  # else it holds back what it could read already
        parser.Parse("<response>", False)

    def feed(self, text: str) -> None:
        """Read the next piece."""
        with suppress(expat.ExpatError):  # no XML: the parser reads no further
            self._parser.Parse(text, False)
        self._values.update({name: found.strip() for name, found in self._texts.items()})

    def _start(self, name: str, _attributes: Any) -> None:
        self._depth += 1
        self._texts.pop(self._name, None)  # an element in the field
        self._name = (
            name if self._depth == 2 and name not in self._begun else ""
        )  # below the root, the first of several
        if self._name:
            self._begun.add(name)
            self._texts[name] = ""

    def _end(self, _name: str) -> None:
        self._depth -= 1
        self._name = ""

    def _data(self, text: str) -> None:
        if self._name:
            self._texts[self._name] += text


ResponseReader: TypeAlias = JSONText | ChatText | XMLText
"""Reads a response piece by piece."""

_READERS: tuple[tuple[type[dspy.Adapter], type[ResponseReader]], ...] = (
    (dspy.JSONAdapter, JSONText),  # before the class that it is a subclass of
    (dspy.ChatAdapter, ChatText),
    (dspy.XMLAdapter, XMLText),
)


# --- the calls of an agent

SUBMIT = "submit"
FINAL = -1
"""The place of the fields that are outputs: of the predictor itself, and the arguments of the first `submit`."""

ShowArgument = Callable[[int, str, str, bool], None]
"""Called as `Show` is, with the place of the call before the field, which is `<tool>.<argument>`; or with `FINAL`."""


class CallTexts:
    """The arguments of the tool calls of an agent, as they arrive: those of the first `submit`, and texts of others."""

    def __init__(self, outputs: Collection[str], show: ShowArgument) -> None:
        self._outputs = outputs
        self._show = show
        self._values: dict[int, GrowingValues] = {}  # by the place of the call
        self._native: dict[int, dict[str, Any]] = {}  # each call so far; its arguments also as text
        self._submit: int | None = None  # the place of the first `submit`

    def update(self, calls: Any) -> None:
        """Read the calls as far as they have been parsed, or are written as JSON."""
        calls = partial_json(calls) if isinstance(calls, str) else calls
        if isinstance(calls, dict):
            calls = calls.get("tool_calls", [calls])
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            ended = place + 1 < len(calls)
            # A name at the end may still grow.
            if isinstance(call, dict) and "name" in call and (next(reversed(call)) != "name" or ended):
                self._read(place, str(call["name"]), call.get("args", call.get("arguments")), ended)

    def add_native(self, index: int, name: str, arguments: str) -> None:
        """Read the next piece of a native call."""
        call = self._native.setdefault(index, {"name": "", "text": "", "args": None})
        call["name"] += name
        call["text"] += arguments
        call["args"] = partial_json(call["text"])
        self.update([*self._native.values()])

    def _read(self, place: int, name: str, args: Any, ended: bool) -> None:
        if not isinstance(args, dict):
            return
        self._submit = place if self._submit is None and name == SUBMIT else self._submit
        if name == SUBMIT and place != self._submit:
            return
        if place not in self._values:
            own = name == SUBMIT
            show = partial(self._show, FINAL) if own else partial(self._show_of, place, name)
            self._values[place] = GrowingValues(self._outputs if own else None, show)
        self._values[place].update(args, ended)

    def _show_of(self, place: int, tool: str, argument: str, text: str, done: bool) -> None:
        self._show(place, f"{tool}.{argument}", text, done)


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
        self.show = show
        self.queue = queue
        self.redaction = redaction
        self._calls: dict[str, tuple[StreamedCall, AbstractContextManager[None], bool]] = {}  # by the id of DSPy

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Begins to listen to a predictor."""
        if not isinstance(instance, dspy.Predict):
            return
        call = StreamedCall(instance, inputs.get("kwargs", {}), self)
        stream = None if _decides(instance) else call
        context = dspy.context(**{SEND_STREAM: stream, LISTENERS: []})  # with listeners, DSPy streams theirs alone
        context.__enter__()
        self._calls[call_id] = (call, context, lend_loop())

    def on_adapter_format_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Notes which adapter will parse the response: `dspy.ChatAdapter` falls back to `dspy.JSONAdapter`."""
        del call_id
        call = dspy.settings.get(SEND_STREAM)
        # Of a class below `dspy.ChatAdapter` the method is wrapped several times: the innermost call names its inputs.
        if isinstance(call, StreamedCall) and "signature" in inputs:
            call.read_as(instance, inputs["signature"])

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Begins a response: `dspyer.lms.reliable` asks again, or another LM, if one breaks off before a token."""
        del call_id, instance, inputs
        call = dspy.settings.get(SEND_STREAM)
        if isinstance(call, StreamedCall):
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
        if self.queue is not None:
            self.queue.wait_for_room()


def without_tokens(callbacks: list[Any]) -> list[Any]:
    """The callbacks without those of tokens."""
    return [one for one in callbacks if not isinstance(one, TokenCallback)]


class StreamedCall:
    """One call of a predictor, and the `send_stream` of its LM calls.

    Attributes:
        around: the stream that the caller of the program has set up, if it gets the chunks of the predictor; else None.
    """

    def __init__(self, predictor: dspy.Predict, inputs: Mapping[str, Any], callback: TokenCallback) -> None:
        self._predictor = predictor
        self._callback = callback
        self._held: dict[tuple[int, str], str] = {}  # what may be the beginning of a hidden text
        self._outputs = dspy.ensure_signature(inputs.get("signature") or predictor.signature).output_fields
        self._shown: dict[tuple[int, str], list[str]] = {}
        self._done: set[tuple[int, str]] = set()
        # Before an adapter has formatted a prompt there is none.
        self._make_reader: Callable[[], ResponseReader | None] = lambda: None
        self._reader: ResponseReader | None = None
        self._ended = False  # whether the first of several responses to one request has ended
        self._half = ""  # the first half of a surrogate pair, of which the next chunk may bring the other one
        self._native: dict[str, Any] = {}  # fields that the adapter leaves to the LM, by name, with their types
        calls = [name for name, field in self._outputs.items() if field.annotation is dspy.ToolCalls]
        self._calls_field, self._final = _submit_of(calls, inputs)
        self._calls = CallTexts(self._final, self._show)
        settings = dspy.settings
        listeners = settings.get(LISTENERS) or ()
        wanted = not listeners or any(one.predict == predictor for one in listeners)
        around = settings.get(SEND_STREAM) if wanted else None
        # Of a predictor that another one calls, the chunks are not a part of the other one's response.
        self.around: Any = around.around if isinstance(around, StreamedCall) else around
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
        if self._callback.queue is not None:
            await self._callback.queue.room()  # the LM is read no faster than the stream

    def read_as(self, adapter: dspy.Adapter, signature: Any) -> None:
        """The next response is for this adapter, with the fields of this signature in its text."""
        fields = [name for name in signature.output_fields if name in self._outputs]
        self._make_reader = partial(reader_for, adapter, fields, partial(self._show, FINAL), self._take_calls)
        left = {name: field.annotation for name, field in self._outputs.items() if name not in signature.output_fields}
        self._native = {name: kind for name, kind in left.items() if name == self._calls_field or _streams(kind)}
        self.begin_response()

    def begin_response(self) -> None:
        """Take what is received from now on for another response."""
        self._reader, self._ended, self._half = self._make_reader(), False, ""
        self._calls = CallTexts(self._final, self._show)

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
                for call in getattr(delta, "tool_calls", None) or ():
                    function, index = _get(call, "function"), _get(call, "index")
                    self._calls.add_native(index, _get(function, "name") or "", _get(function, "arguments") or "")
            elif isinstance(part := kind.parse_stream_chunk(chunk), str):
                self._show(FINAL, name, part, False)

    def _take_calls(self, field: str, value: Any) -> bool:
        """Takes the tool calls of an agent out of a parsed response."""
        if field != self._calls_field:
            return False
        self._calls.update(value)
        return True

    def _show(self, place: int, field: str, text: str, done: bool) -> None:
        redaction, key = self._callback.redaction, (place, field)
        if key in self._done or not (text or done) or (redaction is not None and redaction.may_hide(field)):
            return
        self._shown.setdefault(key, []).append(text)
        if done:
            self._done.add(key)
        if redaction is not None:
            text = self._held.pop(key, "") + text
            if not done:
                length = redaction.settled(text)
                self._held[key], text = text[length:], text[:length]
        if text or done:
            self._callback.show(self._predictor, field, text, done)

    def end(self, prediction: dspy.Prediction) -> None:
        """Shows what is left of each field."""
        redaction = self._callback.redaction
        outputs = {name: value for name, value in prediction.items() if name in self._outputs}
        calls = outputs.pop(self._calls_field, None)
        values = {(FINAL, name): value for name, value in outputs.items()} | _values_of_calls(calls, self._final)
        for (place, field), value in values.items():
            if (place, field) in self._done:
                continue
            whole, shown = with_valid_text(text_of_value(value)), "".join(self._shown.get((place, field), ()))
            if redaction is not None and redaction.may_hide(field):
                self._callback.show(self._predictor, field, redaction.output(field, whole), True)
                continue
            # A value that is no text is shown as the LM has written it, in whatever form.
            is_text = not shown or isinstance(value, (str, dspy.Reasoning))
            self._show(place, field, whole[len(shown) :] if is_text and whole.startswith(shown) else "", True)


def _decides(predictor: Any) -> bool:
    """Return whether DSPy refuses to stream: a predictor has outputs of its experimental types of decisions."""
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
    """Return whether chunks have parts of a value of this type, beside the text of the response."""
    own: Any = kind if isinstance(kind, type) and issubclass(kind, dspy.Type) else None
    return own is not None and bool(own.is_streamable())


def _submit_of(calls: list[str], inputs: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The output with the tool calls of an agent, and the arguments of its tool `submit`; ("", ()) for no agent."""
    for value in inputs.values() if calls else ():
        for tool in value if isinstance(value, (list, tuple)) else ():
            if isinstance(tool, dspy.Tool) and tool.name == SUBMIT:
                return calls[0], tuple(tool.args or ())
    return "", ()


def _values_of_calls(calls: Any, outputs: tuple[str, ...]) -> dict[tuple[int, str], Any]:
    """The arguments of the first call of `submit` that are outputs, and the texts of other calls, as `CallTexts`."""
    found: dict[tuple[int, str], Any] = {}
    submitted = False
    for place, call in enumerate(getattr(calls, "tool_calls", None) or ()):
        args = (call.args or {}).items()
        if call.name != SUBMIT:
            found |= {(place, f"{call.name}.{name}"): value for name, value in args if isinstance(value, str)}
        elif not submitted:
            found |= {(FINAL, name): value for name, value in args if name in outputs}
            submitted = True
    return found


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
