"""Redaction: hides values in what dspyer prints, draws, sends or writes for people. States and stores are whole.

`Redaction` hides what has a path: patches, commits, conflicts. `Redactor` also covers texts that have no path, such as
the message of an exception or a question: it remembers the texts of values that were hidden by path, and hides them
wherever they occur.

Everything here returns the same object if nothing in it is hidden: callers tell by identity what was hidden, and an
event of a run without secrets costs no copies.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import date, time
from itertools import chain
from operator import is_
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from dspyer.errors import DspyerError, brief, error_text
from dspyer.events import (
    Answer,
    Asked,
    Commit,
    Committed,
    ConflictFound,
    Emitted,
    Event,
    LMCall,
    MergedConflict,
    Posted,
    is_built_in,
)
from dspyer.failure import Failure
from dspyer.patch import DELETE, Replace, SealedPatch
from dspyer.policies import MANY, ONE, Pattern
from dspyer.record_codec import JsonRecord, changed
from dspyer.reducers import Updates
from dspyer.state import ImmutableState
from dspyer.values import json as encoding
from dspyer.values.freezing import Opaque, freeze
from dspyer.values.frozen import Container, FrozenList, thaw
from dspyer.values.scalars import KeyPath

HIDDEN = "[redacted]"
"""Replaces a value that a pattern matches."""

RedactValue = Callable[[KeyPath, Any], Any]
Redact = RedactValue | str | Iterable[Any] | None
"""The argument of `compile(redact=...)`: patterns of paths, or a function `(path, value) -> value`."""


# --- parts of values


_decode = encoding.decoder((), Opaque.of)


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of a model, extra ones too, or of a dataclass, known here or not; None for anything else."""
    cls = type(value)
    if cls is Opaque:
        found = json.loads(value.text).get("value")
        parts = encoding.model_parts(found) if type(found) is dict else {"value": found}
        return {name: thaw(_decode(part)) for name, part in parts.items()}
    if isinstance(value, BaseModel):
        declared = {name: getattr(value, name) for name in cls.model_fields if hasattr(value, name)}
        return {**declared, **(getattr(value, "__pydantic_extra__", None) or {})}
    if hasattr(cls, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in cls.__dataclass_fields__ if hasattr(value, name)}
    return None


def _with_parts(value: Any, part: Callable[[Any, Any], Any]) -> Any:
    """A value with `part(key, old)` in the place of each mapped value, item or attribute; None for one without parts.

    A model or dataclass with another part becomes a dict: its class may refuse what stands for a hidden value.
    """
    found = value if isinstance(value, Mapping) else _attributes(value)
    if found is not None:
        parts = {key: part(key, old) for key, old in found.items()}
        return value if all(parts[key] is old for key, old in found.items()) else parts
    if isinstance(value, (tuple, list, set, frozenset)):
        old = list(value)
        items = [part(index, item) for index, item in enumerate(old)]
        if all(map(is_, items, old)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return None


# --- values with a path


class Redaction:
    """Hides values by their path.

    `decide(path, value)` gets the path (field, keys, indexes of lists) and the plain value, and returns what to show:
    the same object to show it unchanged. It is called from the outside in. `lists` are the fields whose updates may be
    single items of a list: `list.*.key` hides the key of an item in the list, and so also in the update that appends
    it.
    """

    def __init__(
        self, decide: RedactValue | None, patterns: tuple[Pattern, ...] = (), lists: Collection[str] = frozenset()
    ) -> None:
        self._decide = decide or self._by_pattern
        self.patterns = patterns
        self._lists = lists
        self.hides_all = decide is _hide
        self._fields = {pattern.segments[0] for pattern in patterns}

    @classmethod
    def of(cls, spec: Redact, lists: Collection[str] = frozenset()) -> Redaction | None:
        """The redaction that `compile(redact=...)` was given; None for none. A malformed pattern is a `ValueError`."""
        if spec is None or callable(spec):
            return None if spec is None else cls(spec, lists=lists)
        patterns = tuple([Pattern.of(each) for each in ([spec] if isinstance(spec, str) else spec)])
        return cls(None, patterns, lists)

    @classmethod
    def stored(cls, hidden: Sequence[Any] | str | None, lists: Collection[str] = frozenset()) -> Redaction | None:
        """The redaction that the header of a run names. Of a function only the fact is stored: it hides all values."""
        if hidden is None or isinstance(hidden, str):
            return None if hidden is None else cls(_hide)
        return cls.of([tuple(map(encoding.decode, one)) if isinstance(one, list) else one for one in hidden], lists)

    @property
    def told(self) -> list[Any] | str:
        """The form in the headers of runs: patterns as text, literal paths as lists; or `"function"`."""
        patterns: list[Any] = [
            list(map(encoding.encode, one.segments)) if one.literal else ".".join(map(str, one.segments))
            for one in self.patterns
        ]
        return patterns or "function"

    def _by_pattern(self, path: KeyPath, value: Any) -> Any:
        return HIDDEN if any(pattern.matches(path) for pattern in self.patterns) else value

    def _shown(self, path: KeyPath, value: Any, appended: bool) -> Any:
        """The form of a value itself: by its path, and by the others under which a pattern may know it."""
        paths = [path]
        # A search holds what a trial has changed in its field `tree` or `trials`: under the path of the trial.
        if len(path) > 3 and path[0] in _OF_SEARCHES and path[2] in ("patch", "whole"):
            paths.append(path[3:])
        for known in paths:
            # `list.*.key` is a path of an item: in an update that appends one, the item has no index yet.
            for one in (known, (known[0], 0, *known[1:])) if appended else (known,):
                if (shown := self._decide(one, value)) is not value:
                    return shown
        return value

    def value(self, path: KeyPath, value: Any, *, appended: bool = False) -> Any:
        """The redacted form of a plain value; `appended` for one that an update appends to the list at its path."""
        shown = self._shown(path, value, appended)
        is_leaf = isinstance(value, (set, frozenset)) or (isinstance(value, tuple) and hasattr(value, "_fields"))
        if shown is not value or is_leaf:
            return shown
        found = _with_parts(value, lambda key, part: self.value((*path, key), part, appended=appended))
        return value if found is None else found

    def update(self, path: KeyPath, update: Any, *, appended: bool | None = None) -> Any:
        """The redacted form of an update in a patch; whether it is `appended` follows from its field."""
        if update is DELETE:
            return update
        if isinstance(update, Updates):
            parts = [self.update(path, part) for part in update.updates]
            return update if all(map(is_, parts, update.updates)) else Updates(*parts)
        if appended is None:
            appended = path[0] in self._lists and not isinstance(update, (list, tuple, FrozenList, Replace))
        if type(update) in (dict, SealedPatch):  # of a mapping: each key is an update of its own
            shown = self._shown(path, update, appended)
            if shown is not update:
                return freeze(shown)
            found = {key: self.update((*path, key), part, appended=appended) for key, part in update.items()}
            return update if all(found[key] is part for key, part in update.items()) else found
        whole = isinstance(update, Replace)
        plain = thaw(update.frozen if whole else update)
        shown = self.value(path, plain, appended=appended)
        return update if shown is plain else Replace(shown) if whole else freeze(shown)

    def patch(self, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        """The redacted form of a patch."""
        found = {name: self.update((name,), update) for name, update in patch.items() if self.names(name)}
        return patch if all(patch[name] is shown for name, shown in found.items()) else {**patch, **found}

    def at(self, path: KeyPath, value: Any) -> Any:
        """The redacted form of a frozen value at a path: hidden if a value around it is."""
        if value is DELETE or not self.names(path[0]):
            return value
        # `decide` is called from the outside in, so the value is wrapped in mappings that stand for those around it.
        inside = thaw(value)
        for key in reversed(path[1:]):
            inside = {key: inside}
        shown = self.value(path[:1], inside)
        for key in path[1:]:
            if not isinstance(shown, Mapping) or key not in shown:
                return shown
            shown = shown[key]
        return shown

    def may_hide(self, name: str, fields: frozenset[str] | None) -> bool:
        """True if an output of a node, or a part of it, may be hidden; the node may write these fields, any for None.

        Code of the node may write the output to another field than that of its name, or as a part of one. So it may be
        hidden if a pattern matches anything in one of these fields.
        """
        return fields is None or not self.patterns or not self._fields.isdisjoint((name, ONE, MANY, *fields))

    def names(self, field: str) -> bool:
        """Return whether a pattern may match anything in a field: most fields need no look at their values."""
        # A search keeps all other fields in its own.
        return field in _OF_SEARCHES or self.may_hide(field, _NO_FIELDS)

    def output(self, name: str, fields: frozenset[str] | None, text: str) -> str:
        """The redacted form of the whole text of such an output."""
        if not self.may_hide(name, fields):
            return text
        if self.patterns:
            return HIDDEN
        shown = (self._shown((field,), text, False) for field in (name, *sorted(fields or ())))
        return str(next((one for one in shown if one is not text), text))

    def brief(self, path: KeyPath, value: Any) -> str:
        """The redacted form of a value, abbreviated for an error."""
        return brief(self.at(path, value))

    def event(self, event: Any) -> Any:
        """The redacted form of a commit, a conflict, a post, or an event with one.

        A failure that the patch of a commit holds, or reports to a model, is hidden as there.
        """
        if isinstance(event, Committed):
            return replace(event, commit=self.event(event.commit))
        if isinstance(event, Posted):
            return replace(event, value=self.update((event.field,), event.value))
        if isinstance(event, ConflictFound):
            return replace(event, conflict=self.event(event.conflict))
        if isinstance(event, MergedConflict):
            values = tuple([(author, self.at(event.path, value)) for author, value in event.values])
            base, value = self.at(event.path, event.base), self.at(event.path, event.value)
            return replace(event, base=base, values=values, value=value)
        if not isinstance(event, Commit):
            return event
        commit = replace(event, patch=self.patch(event.patch))
        if event.failure is None:
            return commit
        for field, update in event.patch.items():
            given = thaw(getattr(update, "frozen", update))
            if given == event.failure or _reports_error(given):
                failure, *earlier = [self._failure(field, one) for one in (event.failure, *event.failed_attempts)]
                return replace(commit, failure=failure, failed_attempts=tuple(earlier))
        return commit

    def _failure(self, field: str, failure: Failure) -> Failure:
        """A failure as it is shown in a field."""
        shown = self.value((field,), failure, appended=field in self._lists)
        if isinstance(shown, Failure):
            return shown
        message = shown.get("message", "") if isinstance(shown, Mapping) else HIDDEN
        return failure.model_copy(update={"message": str(message)})  # its class is always told


def _reports_error(update: Any) -> bool:
    """True if an update of messages is the result of a tool call that failed."""
    messages = update if isinstance(update, list) else [update]
    return any(isinstance(one, dict) and one.get("role") == "tool" and one.get("error") is True for one in messages)


def _hide(_path: KeyPath, _value: Any) -> Any:
    return HIDDEN


_OF_SEARCHES = ("tree", "trials")
_NO_FIELDS: frozenset[str] = frozenset()


# --- texts without a path

SHORTEST = 4
"""Length of the shortest text that is searched for inside other texts: shorter ones are part of too many words."""

FEW = 16
"""Up to so many different beginnings, one regular expression for all is faster than a lookup at each character."""


_GIVEN: dict[type, tuple[str, ...]] = {
    Commit: ("patch",),
    Emitted: ("value",),
    LMCall: ("messages", "response"),
    MergedConflict: ("base", "values", "value"),
    Posted: ("value",),
}
"""The parts of events that hold values of the user."""

_Copies = dict[int, BaseException]
"""By the id of an exception, the redacted copy of it."""


class Redactor:
    """Redacts everything that leaves one run: events, logs, questions and errors.

    Values with a path are hidden by their path. Their texts are remembered, from the state with which the run begins
    and from every commit, and hidden in all other texts: a question, an emitted value, the message of an exception. May
    be used from several threads: texts are only added.

    Attributes:
        redaction: hides values by their path.
    """

    def __init__(self, redaction: Redaction, state: Mapping[str, Any]) -> None:
        self.redaction = redaction
        self._texts: set[str] = set()
        # First characters -> lengths of the texts that begin with them, longest first: a text is found by one lookup
        # per length, however many there are.
        self._starts: dict[str, tuple[int, ...]] = {}
        self._sorted: list[str] = []
        self._items: dict[tuple[str, int], tuple[Any, int, Any]] = {}  # of lists: the last one, and how it was shown
        self._pattern = 0, re.compile("")  # for so many beginnings
        for name in state:
            self.learn_value((name,), state[name])

    def event(self, event: Any) -> Any:
        """The redacted form of an event of any type, whose hidden texts are remembered."""
        return self.redact(self.learn(event))

    def shown(self, value: Any) -> Any:
        """The redacted form of a commit, a conflict, a post, a state, or any other object of a run.

        Values are hidden by path, then their texts, and those that say why a commit failed or led on.
        """
        if isinstance(value, ImmutableState):
            return ImmutableState({name: thaw(self.field(name, part)) for name, part in value.raw_items()})
        shown = self.redaction.event(value)
        if isinstance(shown, Commit):
            return replace(
                shown,
                # One that cannot be read is empty, and says why.
                patch={name: self.redact(update, given=True) for name, update in shown.patch.items()} or shown.patch,
                reason=self.redact(shown.reason),
                failure=None if shown.failure is None else self.failure(shown.failure),
                failed_attempts=tuple(map(self.failure, shown.failed_attempts)),
            )
        return self.redact(shown)

    def failure(self, failure: Failure) -> Failure:
        """The redacted form of a failure: its class and its place are told."""
        return failure.model_copy(
            update={name: self.redact(getattr(failure, name)) for name in ("message", "traceback")}
        )

    def field(self, name: str, value: Any, *, appended: bool = False) -> Any:
        """The redacted form of a frozen value of a field, or of an item of one: by its path, and of its texts."""
        if value is DELETE or not (self._texts or self.redaction.names(name)):
            return value
        if isinstance(value, FrozenList) and self.redaction.patterns and not appended:
            return self._list(name, value)
        plain = thaw(value)
        shown = self.redact(self.redaction.value((name,), plain, appended=appended), given=True)
        return value if shown is plain else freeze(shown)

    def _list(self, name: str, value: FrozenList[Any]) -> Any:
        """The redacted form of a list. Lists grow at their end: an item that was seen there is not read again."""
        if self.redaction.value((name,), None) is not None:
            return HIDDEN
        found: list[Any] = []
        for index, item in enumerate(value.raw_items()):
            seen, known, shown = self._items.get((name, index), (None, 0, None))
            if seen is not item or known != self.known:
                plain = thaw(item)
                shown = self.redact(self.redaction.at((name, index), plain), given=True)
                shown = item if shown is plain else freeze(shown)
                self._items[name, index] = item, self.known, shown
            found.append(shown)
        return value if all(map(is_, found, value.raw_items())) else FrozenList(found)

    @property
    def known(self) -> int:
        """The number of hidden texts that it knows: with more of them, what was shown before may have to be hidden."""
        return len(self._texts)

    # --- what is hidden

    def learn(self, event: Event) -> Any:
        """The form of an event that is redacted by path; remembers the texts that are hidden in it."""
        shown = self.redaction.event(event)
        if isinstance(event, Committed):
            self._learn(event.commit.patch, shown.commit.patch)
        elif isinstance(event, Posted):
            self._learn(event.value, shown.value)
        return shown

    def learn_patch(self, patch: Mapping[str, Any]) -> None:
        """Remembers the texts that are hidden in a patch."""
        self._learn(patch, self.redaction.patch(patch))

    def learn_failures(self, failures: Iterable[Failure], paths: Iterable[KeyPath]) -> None:
        """Remembers the texts of failures that a state may hold at these paths."""
        for path in paths:
            for failure in failures:
                if path[1:]:
                    self.learn_value(path, failure)
                else:  # as the update of a field: it may be an item of a list
                    self.learn_patch({path[0]: failure})

    def learn_value(self, path: KeyPath, value: Any) -> None:
        """Remembers the texts that are hidden in a value at a path, also by a pattern that hides what is around it."""
        plain = thaw(value)
        self._learn(plain, self.redaction.at(path, plain))

    def _learn(self, value: Any, shown: Any) -> None:
        """Remembers the texts of a value that its redacted form does not show."""
        if shown is value or value is DELETE:
            return
        value, shown = map(_plain, (value, shown))
        parts = _attributes(value) or value
        if isinstance(parts, Mapping):
            for key, part in parts.items():
                self._learn(part, shown.get(key) if isinstance(shown, Mapping) else None)
        elif isinstance(parts, (list, tuple, set, frozenset)):
            others = shown if isinstance(shown, (list, tuple)) and len(shown) == len(parts) else [None] * len(parts)
            for part, other in zip(parts, others, strict=True):
                self._learn(part, other)
        elif value is not None and not isinstance(value, bool):
            if str(value) == str(shown):
                return
            for form in chain.from_iterable(map(_forms_of, _texts_of(value))):
                if form not in self._texts:
                    self._texts.add(form)
                    start = form[:SHORTEST]
                    insort(self._sorted, form)  # at once: no other thread comes between
                    self._starts[start] = tuple(sorted({*self._starts.get(start, ()), len(form)}, reverse=True))

    # --- where it is hidden

    def redact(self, value: Any, *, given: bool = False, copies: _Copies | None = None) -> Any:
        """The redacted form of a text, or of any object with texts in it.

        `given` marks values of the user, whose numbers may be secret too. Other numbers are counts and versions of an
        event, which may equal a secret number by chance. `copies` are those of the exceptions around it.
        """
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, BaseException):
            return self.error(value, copies)
        if isinstance(value, Asked):
            return value  # who is to answer must see the question as it was asked
        if isinstance(value, Answer):
            asked = value.question
            if asked.call is not None:
                call = replace(asked.call, args=_hidden(asked.call.args))
                asked = replace(asked, call=call, text=call.text())
            question = replace(asked, text=HIDDEN) if self.redaction.hides_all else self.redact(asked)
            by, comment = self.redact(value.by), self.redact(value.comment)
            return replace(value, question=question, value=_hidden(value.value), by=by, comment=comment)
        if value is None or isinstance(value, (bool, type)):
            return value
        if isinstance(value, (int, float)):
            return HIDDEN if given and str(value) in self._texts else value
        if isinstance(value, (Replace, Container)):
            plain = thaw(getattr(value, "frozen", value))
            shown = self.redact(plain, given=given, copies=copies)
            return value if shown is plain else Replace(shown) if isinstance(value, Replace) else freeze(shown)
        if isinstance(value, Updates):
            parts = [self.redact(part, given=given, copies=copies) for part in value.updates]
            return value if all(map(is_, parts, value.updates)) else Updates(*parts)

        def part_of(key: Any, part: Any) -> Any:
            return self.redact(part, given=given or own or key in values, copies=copies)

        values = _GIVEN.get(type(value), ())
        own = isinstance(value, Event) and not is_built_in(value)
        try:
            shown = _with_parts(value, part_of)
            if isinstance(value, Mapping):
                keys = {key: self.redact(key, given=given) for key in shown}
                unchanged = all(map(is_, keys, keys.values()))
                shown = shown if unchanged else {keys[key]: part for key, part in shown.items()}
        except Exception:  # noqa: BLE001 - user classes refuse redacted parts with anything, and such a key may not hash
            return self._text(_repr_of(value))
        if shown is None:
            text = _repr_of(value) if self._texts else ""
            found = self._text(text)
            return value if found is text else found
        if shown is not value and isinstance(value, Failure):
            return value.model_copy(update=shown)
        return changed(value, **shown) if shown is not value and isinstance(value, JsonRecord) else shown

    def settled(self, text: str) -> int:
        """The number of first characters of a text that goes on which can be redacted now, as in the whole text.

        What follows them may be the beginning of a hidden text.
        """
        at = 0
        while at < len(text):
            rest = text[at:]
            # Of the hidden texts that come after it in their order, the first one begins with it, or none does.
            after = bisect_right(self._sorted, rest)
            if "".join(self._sorted[after : after + 1]).startswith(rest):
                return at
            lengths = self._starts.get(rest[:SHORTEST], ())  # the longest first
            at += next((length for length in lengths if rest[:length] in self._texts), 1)
        return at

    def _text(self, text: str) -> str:
        if self.redaction.hides_all:
            return HIDDEN
        found: list[str] = []
        end = 0
        for at in self._candidates(text):
            if at < end:  # inside of a text that was hidden
                continue
            for length in self._starts.get(text[at : at + SHORTEST], ()):  # the longest first
                if text[at : at + length] in self._texts:
                    found += (text[end:at], HIDDEN)
                    end = at + length
                    break
        return "".join((*found, text[end:])) if found else text

    def _candidates(self, text: str) -> Iterable[int]:
        """The indexes at which a hidden text may begin. The cost does not grow with the number of hidden texts."""
        number = len(self._starts)
        if number > FEW:
            return range(len(text) - SHORTEST + 1)
        known, pattern = self._pattern
        if known != number:  # other threads may add texts meanwhile: the pattern is kept with the number it has
            starts = list(self._starts)
            pattern = re.compile(f"(?={'|'.join(map(re.escape, starts))})")
            self._pattern = len(starts), pattern
        return [match.start() for match in pattern.finditer(text)] if number else ()

    # --- exceptions

    def error(self, error: BaseException, copies: _Copies | None = None) -> BaseException:
        """An exception with redacted texts, its causes, contexts and parts too.

        It is a copy with the same traceback, since retries and error edges decide by what was raised, and states get
        its text. If the class cannot be copied, or the copy still shows something, it is a `DspyerError`.
        """
        # One table for all: an exception may be the cause of two others, or an attribute of itself.
        copies = {} if copies is None else copies
        found = [one for one in _linked(error) if id(one) not in copies]
        if not self._texts or not any(map(self._shows_hidden, found)):
            return copies.get(id(error), error)
        for one in found:  # first all copies, since they refer to each other
            self._copied(one, copies)
        for one in found:
            new, cause, context = copies[id(one)], one.__cause__, one.__context__
            vars(new).update(self._attributes(one, copies))
            new.__cause__ = None if cause is None else copies[id(cause)]
            new.__context__ = None if context is None else copies[id(context)]
            new.__suppress_context__, new.__traceback__ = one.__suppress_context__, one.__traceback__
        return copies[id(error)]

    def _shows_hidden(self, error: BaseException) -> bool:
        parts = (error.args, *vars(error).values(), *[part for _, part in _members(error)])
        return any(self._text(text) is not text for text in (error_text(error), *map(_repr_of, parts)))

    def _attributes(self, error: BaseException, copies: _Copies) -> dict[str, Any]:
        """The attributes of the copy of an exception; a list of notes of its own, since notes are added."""
        shown = {name: self.redact(value, given=True, copies=copies) for name, value in vars(error).items()}
        return shown | {name: list(shown[name]) for name in ("__notes__",) if isinstance(shown.get(name), list)}

    def _copied(self, error: BaseException, copies: _Copies) -> BaseException:
        """Adds the copy of an exception, that of a group with the copies of its parts, if there is none yet."""
        if id(error) in copies:
            return copies[id(error)]
        if isinstance(error, BaseExceptionGroup):
            parts = [self._copied(part, copies) for part in error.exceptions]
            copies[id(error)] = BaseExceptionGroup.__new__(type(error), self._text(error.message), parts)
        elif isinstance(error, ValidationError):
            copies[id(error)] = self._validation_error(error)
        elif not any(self._copied_by(make, error, copies) for make in (_copy_without_init, copy)):
            copies[id(error)] = DspyerError(f"{type(error).__qualname__}: {self._text(error_text(error))}")
        return copies[id(error)]

    def _copied_by(self, make: Callable[[Any], BaseException], error: BaseException, copies: _Copies) -> bool:
        """True if it could be copied: a copy says the same, and nothing that is hidden once its parts are changed."""
        with suppress(Exception):  # classes of users raise anything
            made = copies[id(error)] = make(error)
            vars(made).update(vars(error))  # some classes do not copy them
            if error_text(made) != error_text(error):
                return False
            vars(made).update(self._attributes(error, copies))
            # C classes keep what they print in members of their own: `OSError.filename`, `SyntaxError.text`.
            for name, value in [("args", error.args), *_members(made)]:
                if (shown := self.redact(value, given=True, copies=copies)) is not value:
                    with suppress(AttributeError, TypeError):  # read-only
                        setattr(made, name, shown)
            text = error_text(made)
            return self._text(text) is text
        return False

    def _validation_error(self, error: ValidationError) -> ValidationError:
        """The same error without the refused inputs: they may be hidden by paths that pydantic does not know."""
        details = [
            InitErrorDetails(
                type=PydanticCustomError(cast(Any, problem["type"]), cast(Any, self._text(problem["msg"]))),
                loc=tuple([self._text(key) if isinstance(key, str) else key for key in problem["loc"]]),
                input=HIDDEN,
            )
            for problem in error.errors(include_url=False, include_context=False)
        ]
        return ValidationError.from_exception_data(self._text(error.title), details)


class OutputRedaction:
    """The form of the outputs of a node, by all graphs around it.

    Args:
        hiding: for each graph, outermost first, what hides its values, and the fields that its node may write, or
            None for any.
    """

    def __init__(self, hiding: tuple[tuple[Redactor, frozenset[str] | None], ...]) -> None:
        self._hiding = hiding

    def may_hide(self, field: str) -> bool:
        """True if an output is shown when it is complete: it, or a part of it, may be hidden by its path.

        So is any output inside of several graphs that hide something: each changes what the next one looks at.
        """
        return len(self._hiding) > 1 or any(one.redaction.may_hide(field, fields) for one, fields in self._hiding)

    def output(self, field: str, text: str) -> str:
        """The form of the whole text of an output."""
        for one, fields in self._hiding:
            text = one.redaction.output(field, fields, text)
        return text

    def settled(self, text: str) -> int:
        """The number of first characters of a growing text which can be shown: the rest may begin a hidden text."""
        return self._hiding[0][0].settled(text)


def _texts_of(value: Any) -> set[str]:
    """The texts that show a value: `str`, `repr` and JSON of a time differ. Short ones are part of too many words."""
    found = {str(value)}
    if not isinstance(value, str):
        found.add(_repr_of(value))
        if isinstance(value, (date, time)):
            found |= {value.isoformat(), value.isoformat().replace("+00:00", "Z")}
    return {text for text in found if len(text) >= SHORTEST}


def _forms_of(text: str) -> set[str]:
    """A text, and its forms in logs, errors, tool calls and JSON, also in JSON that is itself in one of these."""
    forms = _written(text)
    return forms if len(forms) == 1 else forms.union(*map(_written, forms))


def _written(text: str) -> set[str]:
    """A text, and its forms in JSON, in a `repr` and in the `repr` of bytes."""
    within = repr("\"'" + text)[4:-1]  # of a longer text, which has quotes of both kinds
    written = [json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)]
    return {text, repr(text)[1:-1], within, *written, repr(text.encode(errors="replace"))[2:-1]}


def _hidden(answer: Any) -> Any:
    """An answer, or the arguments of a call, without texts and numbers: no path says what they are for."""
    if answer is None or isinstance(answer, bool):
        return answer
    plain = thaw(answer)
    parts = _attributes(plain) or plain
    if isinstance(parts, Mapping):
        return {key: _hidden(part) for key, part in parts.items()}
    return list(map(_hidden, parts)) if isinstance(parts, (list, tuple)) else HIDDEN


def _plain(update: Any) -> Any:
    """The content of an update, to be compared with what is shown of it."""
    if isinstance(update, Updates):
        return list(update.updates)
    return thaw(update.frozen if isinstance(update, Replace) else update)


def _repr_of(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a user's `__repr__` raises anything; without a text, none is shown
        return ""


def _linked(error: BaseException) -> list[BaseException]:
    """An exception, and those that are its causes, contexts or parts; each before its parts."""
    found = {id(error): error}
    waiting = [error]
    while waiting:
        one = waiting.pop()
        parts = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        inside = [inner for inner in (one.__cause__, one.__context__, *parts) if inner is not None]
        waiting += [inner for inner in inside if id(inner) not in found]
        found |= {id(inner): inner for inner in inside if id(inner) not in found}
    return list(found.values())


def _members(error: BaseException) -> Iterator[tuple[str, Any]]:
    """The attributes of an exception that are not in its `__dict__`: in slots, and of C classes."""
    for cls in type(error).__mro__:
        if cls in (BaseException, object):
            return
        for name, member in vars(cls).items():
            if isinstance(member, (MemberDescriptorType, GetSetDescriptorType)) and not name.startswith("__"):
                yield name, getattr(error, name, None)


def _copy_without_init(error: BaseException) -> BaseException:
    # Without `__init__`, which may ask for other arguments than it keeps. `copy` is tried next: it calls `__reduce__`.
    made = type(error).__new__(type(error), *error.args)
    for name, value in _members(error):
        if value is not None:
            with suppress(AttributeError, TypeError):  # read-only
                setattr(made, name, value)
    return made
