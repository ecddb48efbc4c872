"""The texts of output fields as they arrive: readers of a response that has not ended yet, one per adapter of DSPy.

A reader is given the response piece by piece, however it is cut, and shows of each field what is certain: joined, the
pieces are what the adapter will make of the whole response. So white space around a value, and a line that may become
the header of the next field, are held back. The work of `ChatText` and `XMLText` grows with the response. `JSONText`
parses it again for each piece (2 µs per 1,000 characters).

`dspy.streaming.StreamListener` is not used: it gives the text of a JSON string with its escapes, ends a value at the
first `[[`, and gives nothing of a field that arrives in one piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from inspect import unwrap
from typing import Any, Protocol
from xml.parsers import expat

import dspy
from pydantic_core import from_json, to_json

from dspyer.dspy_module.not_public import field_header_pattern
from dspyer.values.unicode import with_valid_text

Show = Callable[[str, str, bool], None]
"""Called with a field, the next piece of its text, and whether that is the last one."""

TakeNested = Callable[[str, Any], bool]
"""Called with a field and its value as far as it has been parsed; returns whether it has taken the field."""


class ResponseReader(Protocol):
    """Reads a response piece by piece."""

    def feed(self, text: str) -> None:
        """Read the next piece."""

    def end(self) -> None:
        """Show what was held back: the response has ended."""


def reader_for(
    adapter: dspy.Adapter, fields: Collection[str], show: Show, nested: TakeNested | None = None
) -> ResponseReader | None:
    """The reader for the responses that an adapter parses; None for a class that parses in a way of its own."""
    parse = unwrap(type(adapter).parse)
    if parse is unwrap(dspy.JSONAdapter.parse):
        return JSONText(fields, show, nested)
    for known, reader in _READERS:
        if parse is unwrap(known.parse):
            return reader(fields, show)
    return None


def text_of_value(value: object) -> str:
    """A whole value as text: a text as it is, anything else as JSON."""
    if isinstance(value, (str, dspy.Reasoning)):
        return str(value)
    return to_json(value, fallback=str).decode()


# --- the format of `dspy.ChatAdapter`

_BEFORE, _AFTER = "[[ ## ", " ## ]]"
_NAME = re.compile(r"\w*")


class ChatText:
    """Reads lines. `[[ ## field ## ]]` at the start of one begins a field."""

    def __init__(self, fields: Collection[str], show: Show) -> None:
        self._left = set(fields)
        self._show = show
        self._line = ""  # what has not been read yet of the last line
        self._begun = self._has_header = False  # of that line, whether its beginning has been read, and is a header
        self._field: StrippedText | None = None

    def feed(self, text: str) -> None:
        """Read the next piece."""
        self._line += text
        if not self._line.isprintable():  # else no line ends in it
            *lines, last = self._line.splitlines(keepends=True)
            bare = last.splitlines()[0]
            if bare != last and last != bare + "\r":  # it has ended; after "\r", the "\n" of the same end may follow
                lines.append(last)
                last = ""
            for line in lines:
                self._line = line.splitlines()[0]
                self._end_line()
            self._line = last
        self._read_header()
        if self._begun or not _may_become_header(self._line.lstrip()):
            part = self._line.removesuffix("\r")
            self._read(part)
            self._line, self._begun = self._line[len(part) :], True

    def end(self) -> None:
        """Show what was held back."""
        if self._line:
            self._line = self._line.splitlines()[0]
            self._end_line()
        self._begin(None)

    def _end_line(self) -> None:
        self._read_header()
        self._read(self._line)
        if self._field is not None and self._has_header:
            self._field.drop_spaces()  # DSPy strips what follows a header in its line
        self._read("\n")
        self._line, self._begun, self._has_header = "", False, False

    def _read_header(self) -> None:
        """Begin a field if the line begins with its header."""
        match = None if self._begun else field_header_pattern.match(self._line.strip())
        if match is not None:
            name = match.group(1)
            self._begin(StrippedText(name, self._show) if name in self._left else None)
            self._left.discard(name)
            self._line, self._begun, self._has_header = self._line[match.end() :], True, True

    def _read(self, text: str) -> None:
        if self._field is not None:
            self._field.add(text)

    def _begin(self, field: StrippedText | None) -> None:
        if self._field is not None:
            self._field.end()
        self._field = field


def _may_become_header(line: str) -> bool:
    if len(line) <= len(_BEFORE):
        return _BEFORE.startswith(line)
    if not line.startswith(_BEFORE):
        return False
    name, gap, rest = line[len(_BEFORE) :].partition(" ")
    return _NAME.fullmatch(name) is not None and _AFTER.startswith(gap + rest)


class StrippedText:
    """The text of one field, without the white space around it: that at the end is held back until more follows."""

    def __init__(self, field: str, show: Show) -> None:
        self._field = field
        self._show = show
        self._begun = False
        self._spaces = ""

    def add(self, text: str) -> None:
        """Read the next piece."""
        if not self._begun:
            text = text.lstrip()
            if not text:
                return
            self._begun = True
        text = self._spaces + text
        shown = text.rstrip()
        self._spaces = text[len(shown) :]
        if shown:
            self._show(self._field, shown, False)

    def drop_spaces(self) -> None:
        """Forget the white space at the end so far."""
        self._spaces = ""

    def end(self) -> None:
        """The field has ended."""
        self._show(self._field, "", True)


# --- JSON


class JSONText:
    """Reads one JSON object, which text may precede, such as the mark of a code block."""

    def __init__(self, fields: Collection[str], show: Show, nested: TakeNested | None = None) -> None:
        self._values = GrowingValues(fields, show, nested)
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

    def end(self) -> None:
        """Nothing is held back: the last value is complete when the prediction is."""


def partial_json(text: str) -> Any:
    """The value of a JSON text that may not have ended; None if it is no JSON."""
    try:
        return from_json(with_valid_text(text), allow_partial="trailing-strings")
    except ValueError:
        return None


class GrowingValues:
    """The values of a mapping that is read again and again while it grows at its end.

    A text is shown as it grows, any other value when the next one has begun. `nested` gets the fields first, and says
    whether it has taken one.
    """

    def __init__(self, fields: Collection[str], show: Show, nested: TakeNested | None = None) -> None:
        self._lengths = dict.fromkeys(fields, 0)
        self._done: set[str] = set()
        self._show = show
        self._nested = nested

    def update(self, values: dict[str, Any]) -> None:
        """Show what is new."""
        last = next(reversed(values), None)
        for field, value in values.items():
            if field not in self._lengths or field in self._done or (self._nested and self._nested(field, value)):
                continue
            done = field != last
            if isinstance(value, str):
                start = self._lengths[field]
                if done or len(value) > start:
                    self._lengths[field] = len(value)
                    self._show(field, value[start:], done)
            elif done:
                self._show(field, text_of_value(value), True)
            if done:
                self._done.add(field)


# --- the format of `dspy.XMLAdapter`


class XMLText:
    """Reads elements. One that has elements in it is left to the end of the response."""

    def __init__(self, fields: Collection[str], show: Show) -> None:
        self._left = set(fields)
        self._show = show
        self._depth = 0
        self._field: StrippedText | None = None
        self._stopped = False
        parser = self._parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        if hasattr(parser, "SetReparseDeferralEnabled"):
            parser.SetReparseDeferralEnabled(False)  # else it holds back what it could read already
        parser.Parse("<response>", False)

    def feed(self, text: str) -> None:
        """Read the next piece."""
        if not self._stopped:
            try:
                self._parser.Parse(text, False)
            except expat.ExpatError:
                self._stopped = True

    def end(self) -> None:
        """Nothing is held back: a field ends with its element."""

    def _start(self, name: str, _attributes: Any) -> None:
        self._depth += 1
        if self._depth == 2 and name in self._left:  # below the root
            self._left.discard(name)
            self._field = StrippedText(name, self._show)
        else:
            self._field = None

    def _end(self, _name: str) -> None:
        self._depth -= 1
        if self._field is not None:
            self._field.end()
        self._field = None

    def _data(self, text: str) -> None:
        if self._field is not None:
            self._field.add(text)


_READERS: tuple[tuple[type[dspy.Adapter], Callable[[Collection[str], Show], ResponseReader]], ...] = (
    (dspy.ChatAdapter, ChatText),
    (dspy.XMLAdapter, XMLText),
)


# --- the final call of an agent


class SubmitText:
    """The arguments of the first call of `submit` in the tool calls of an agent, as they arrive."""

    def __init__(self, fields: Collection[str], show: Show) -> None:
        self._values = GrowingValues(fields, show)
        self._text = ""
        self._native: dict[int, list[str]] = {}  # name and arguments of each call so far

    def add_text(self, text: str) -> None:
        """Read the next piece of the JSON text of all calls."""
        self._text += text
        self.update(partial_json(self._text))

    def update(self, calls: Any) -> None:
        """Read the calls as far as they have been parsed."""
        if isinstance(calls, dict):
            calls = calls.get("tool_calls", [calls])
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and call.get("name") == SUBMIT:
                args = call.get("args", call.get("arguments"))
                if isinstance(args, dict) and next(reversed(call)) != "name":  # a name at the end may still grow
                    self._values.update(args)
                return

    def add_native(self, index: int, name: str, arguments: str) -> None:
        """Read the next piece of a native call."""
        call = self._native.setdefault(index, ["", ""])
        call[0] += name
        call[1] += arguments
        first = next((index for index, (known, _) in self._native.items() if known == SUBMIT), None)
        if first == index:
            args = partial_json(call[1])
            if isinstance(args, dict):
                self._values.update(args)


SUBMIT = "submit"
