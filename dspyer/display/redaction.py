"""Redaction: hides values in what leaves a run (events, logs, errors, reports, exports). States and stores keep them.

`Redaction` hides what has a path: patches, commits, conflicts. `Redactor` also covers texts that have no path, such as
the message of an exception or a question: it remembers the texts of values that were hidden by path, and hides them
wherever they occur.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from dspyer.errors import DspyerError, MergeConflictError, brief, error_text
from dspyer.events import Commit, Committed, ConflictFound, Emitted, Event, MergedConflict, Posted
from dspyer.failure import Failure
from dspyer.patch import DELETE, Replace, SealedPatch
from dspyer.policies import MANY, ONE, Conflict, Pattern, Policies, Policy, raise_
from dspyer.record_codec import JsonRecord, changed
from dspyer.reducers import Updates
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.scalars import KeyPath

HIDDEN = "[redacted]"
"""Replaces a value that a pattern matches."""

RedactValue = Callable[[KeyPath, Any], Any]
Redact = RedactValue | str | Iterable[Any] | None
"""The argument of `compile(redact=...)`: patterns of paths, or a function `(path, value) -> value`."""


@dataclass(frozen=True, slots=True)
class _PatternRedaction:
    """The function that patterns stand for: hides every value whose path one of them matches."""

    patterns: tuple[Pattern, ...]

    def __call__(self, path: KeyPath, value: Any) -> Any:
        return HIDDEN if any(pattern.matches(path) for pattern in self.patterns) else value


@dataclass(frozen=True, slots=True)
class _Anywhere:
    """Hides a value also where a search holds it: as what a trial has changed, in its field `tree` or `trials`."""

    decide: RedactValue

    def __call__(self, path: KeyPath, value: Any) -> Any:
        shown = self.decide(path, value)
        if shown is value and len(path) > 3 and path[0] in ("tree", "trials") and path[2] in ("patch", "whole"):
            return self.decide(path[3:], value)
        return shown


@dataclass(frozen=True, slots=True)
class _AppendedItem:
    """Hides an item that an update appends to a list: by the path of the field, and by that of an item in it."""

    decide: RedactValue

    def __call__(self, path: KeyPath, value: Any) -> Any:
        shown = self.decide(path, value)
        return self.decide((path[0], 0, *path[1:]), value) if shown is value else shown


class Redaction:
    """Hides values by their path.

    `decide(path, value)` gets the path (field, keys, indexes of lists) and the plain value, and returns what to show:
    the same object to show it unchanged. It is called from the outside in. The methods return the same object too if
    nothing in it is hidden. `lists` are the fields whose updates may be single items of a list: `list.*.key` hides the
    key of an item in the list, and so also in the update that appends it.
    """

    def __init__(
        self, decide: RedactValue, patterns: tuple[Pattern, ...] = (), lists: Collection[str] = frozenset()
    ) -> None:
        self._decide = _Anywhere(decide)
        self.patterns = patterns
        self._lists = lists
        self._of_item = Redaction(_AppendedItem(decide), patterns) if lists else None

    @classmethod
    def of(cls, spec: Redact, lists: Collection[str] = frozenset()) -> Redaction | None:
        """The redaction that `compile(redact=...)` was given; None for none. A malformed pattern is a `ValueError`."""
        if spec is None or callable(spec):
            return None if spec is None else cls(spec, lists=lists)
        patterns = tuple([Pattern.of(each) for each in ([spec] if isinstance(spec, str) else spec)])
        return cls(_PatternRedaction(patterns), patterns, lists)

    def for_update(self, field: str, update: Any) -> Redaction:
        """What redacts an update of a field: another one than of values of the field if it is an item of a list."""
        whole = isinstance(update, (list, tuple, FrozenList, Replace))
        if self._of_item is None or field not in self._lists or whole:
            return self
        return self._of_item

    def value(self, path: KeyPath, value: Any) -> Any:
        """The redacted form of a plain value."""
        shown = self._decide(path, value)
        if shown is not value:
            return shown
        if isinstance(value, Mapping):
            parts = {key: self.value((*path, key), part) for key, part in value.items()}
            return value if all(parts[key] is part for key, part in value.items()) else parts
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            items = [self.value((*path, index), item) for index, item in enumerate(value)]
            return value if all(map(is_, items, value)) else type(value)(items)
        fields = _fields_of(value)
        if fields is None:
            return value
        shown = {name: self.value((*path, name), part) for name, part in fields.items()}
        return value if all(shown[name] is part for name, part in fields.items()) else shown

    def update(self, path: KeyPath, update: Any) -> Any:
        """The redacted form of an update in a patch."""
        if update is DELETE:
            return update
        if isinstance(update, Replace):
            return self._redact_frozen(update, Replace, update.frozen, path)
        if isinstance(update, Updates):
            parts = [self.update(path, part) for part in update.updates]
            return update if all(map(is_, parts, update.updates)) else Updates(*parts)
        if len(path) == 1 and (of_item := self.for_update(path[0], update)) is not self:
            return of_item.update(path, update)
        if type(update) in (dict, SealedPatch):
            shown = self._decide(path, update)
            if shown is not update:
                return freeze(shown)
            found = {key: self.update((*path, key), part) for key, part in update.items()}
            return update if all(found[key] is part for key, part in update.items()) else found
        return self._redact_frozen(update, freeze, update, path)

    def patch(self, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        """The redacted form of a patch."""
        found = {name: self.update((name,), update) for name, update in patch.items()}
        return patch if all(found[name] is update for name, update in patch.items()) else found

    def at(self, path: KeyPath, value: Any) -> Any:
        """The redacted form of a frozen value at a path: hidden if a value around it is."""
        if value is DELETE:
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
        """Whether an output of a node, or a part of it, may be hidden; the node may write these fields, any for None.

        Code of the node may write the output to another field than that of its name, or as a part of one. So it may be
        hidden if a pattern matches anything in one of these fields.
        """
        first = {pattern.segments[0] for pattern in self.patterns}
        return fields is None or not first or not first.isdisjoint((name, ONE, MANY, *fields))

    def output(self, name: str, fields: frozenset[str] | None, text: str) -> str:
        """The redacted form of the whole text of such an output."""
        if not self.may_hide(name, fields):
            return text
        if self.patterns:
            return HIDDEN
        for field in (name, *sorted(fields or ())):
            shown = self._decide((field,), text)
            if shown is not text:
                return str(shown)
        return text

    def brief(self, path: KeyPath, value: Any) -> str:
        """The redacted form of a value, abbreviated for an error."""
        return brief(self.at(path, value))

    def event(self, event: Event) -> Event:
        """The redacted form of an event."""
        if isinstance(event, Committed):
            return replace(event, commit=self.commit(event.commit))
        if isinstance(event, ConflictFound):
            return replace(event, conflict=self.conflict(event.conflict))
        if isinstance(event, Posted):
            return replace(event, value=self.update((event.field,), event.value))
        return event

    def conflict(self, found: MergedConflict) -> MergedConflict:
        """The redacted form of a conflict."""
        values = tuple([(author, self.at(found.path, value)) for author, value in found.values])
        return replace(
            found, base=self.at(found.path, found.base), values=values, value=self.at(found.path, found.value)
        )

    def commit(self, commit: Commit) -> Commit:
        """The redacted form of a commit: a failure that its patch holds, or reports to a model, is hidden as there."""
        shown = replace(commit, patch=self.patch(commit.patch))
        failure = commit.failure
        if failure is None:
            return shown
        for field, update in commit.patch.items():
            found = thaw(getattr(update, "frozen", update))
            if found == failure or _reports_error(found):
                earlier = tuple([self._failure(field, failed) for failed in commit.failed_attempts])
                return replace(shown, failure=self._failure(field, failure), failed_attempts=earlier)
        return shown

    def _failure(self, field: str, failure: Failure) -> Failure:
        """A failure as it is shown in a field."""
        shown = self.for_update(field, failure).value((field,), failure)
        if isinstance(shown, Failure):
            return shown
        parts = shown if isinstance(shown, Mapping) else {"type": HIDDEN, "message": HIDDEN}
        return failure.model_copy(update={name: str(parts[name]) for name in ("type", "message") if name in parts})

    def _redact_frozen(self, update: Any, make: Callable[[Any], Any], frozen: Any, path: KeyPath) -> Any:
        plain = thaw(frozen)
        shown = self.value(path, plain)
        return update if shown is plain else make(shown)


def _fields_of(value: Any) -> dict[str, Any] | None:
    """The attributes of a model, extra ones too, or of a dataclass; None for anything else."""
    cls = type(value)
    if isinstance(value, BaseModel):
        declared = {name: getattr(value, name) for name in cls.model_fields if hasattr(value, name)}
        return {**declared, **(getattr(value, "__pydantic_extra__", None) or {})}
    if hasattr(cls, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in cls.__dataclass_fields__ if hasattr(value, name)}
    return None


def redacted_policies(policies: Policies, redaction: Redaction) -> Policies:
    """The same policies, whose own errors are redacted: a `MergeConflictError` quotes the values of its conflict."""
    rest = None if policies.otherwise is None else redacted_policies(policies.otherwise, redaction)
    rules = tuple([rule._replace(policy=_redacted_policy(rule.policy, redaction)) for rule in policies.rules])
    return Policies(rules, _redacted_policy(policies.default, redaction), policies.given, rest)


def _redacted_policy(policy: Policy, redaction: Redaction) -> Policy:
    if not policy.built_in:
        return policy
    return Policy(policy.name, partial(_decide_redacted, policy, redaction), built_in=True)


def _decide_redacted(policy: Policy, redaction: Redaction, conflict: Conflict) -> Any:
    try:
        return policy.decide(conflict)
    except MergeConflictError:
        base, left, right = (
            redaction.at(conflict.path, side) for side in (conflict.base, conflict.left, conflict.right)
        )
        return raise_(replace(conflict, base=base, left=left, right=right))


# --- texts without a path

SHORTEST = 4
"""Length of the shortest text that is searched for inside other texts: shorter ones are part of too many words."""

FEW = 16
"""Up to so many different beginnings, one regular expression for all is faster than a lookup at each character."""


_Replacements = dict[int, BaseException]
"""By the id of an exception, what replaces it: itself, or a redacted one."""


def _reports_error(update: Any) -> bool:
    """Whether an update of messages is the result of a tool call that failed."""
    messages = update if isinstance(update, list) else [update]
    return any(isinstance(one, dict) and one.get("role") == "tool" and one.get("error") is True for one in messages)


class Redactor:
    """Redacts everything that leaves one run: events, logs, questions and errors.

    Values with a path are hidden by their path. Their texts are remembered, from the state with which the run begins
    and from every commit, and hidden in all other texts: a question, an emitted value, the message of an exception. May
    be used from several threads.

    Attributes:
        redaction: hides values by their path.
    """

    def __init__(self, redaction: Redaction, state: Mapping[str, Any]) -> None:
        self.redaction = redaction
        self._texts: set[str] = set()
        # First characters -> lengths of the texts that begin with them, longest first.
        self._starts: dict[str, tuple[int, ...]] = {}
        self._by_start: dict[str, list[str]] = {}  # the texts
        self._beginnings: set[str] = set()  # of the first characters
        self._pattern = 0, re.compile("")
        for name in state:
            self.learn_value((name,), state[name])

    def event(self, event: Any) -> Any:
        """The redacted form of an event of any type."""
        self.learn(event)
        return self.redact(self.redaction.event(event))

    def settled(self, text: str) -> int:
        """How many of the first characters of a text that goes on can be redacted now, as in the whole text.

        What follows them may be the beginning of a hidden text.
        """
        at = 0
        while at < len(text):
            rest = text[at:]
            if len(rest) < SHORTEST:
                if rest in self._beginnings:
                    return at
                at += 1
                continue
            known = self._by_start.get(rest[:SHORTEST], ())
            if any(len(hidden) > len(rest) and hidden.startswith(rest) for hidden in known):
                return at
            at += max((len(hidden) for hidden in known if rest.startswith(hidden)), default=1)
        return at

    def learn(self, event: Event) -> None:
        """Remembers the texts that are hidden in an event."""
        if isinstance(event, Committed):
            self.learn_commit(event.commit)
        if isinstance(event, Posted):
            self.learn_update(event.field, event.value)

    def learn_commit(self, commit: Commit) -> None:
        """Remembers the texts that are hidden in a commit."""
        for name, update in commit.patch.items():
            self.learn_update(name, update)

    def learn_update(self, field: str, update: Any) -> None:
        """Remembers the texts that are hidden in an update of a field."""
        self._learn_update(self.redaction.for_update(field, update), (field,), update)

    def learn_failure(self, path: KeyPath, failure: Failure) -> None:
        """Remembers the texts that are hidden in a failure: as the update of a field, or at its place in a list."""
        if len(path) == 1:
            self.learn_update(path[0], failure)
        else:
            self.learn_value(path, failure)

    def commit(self, commit: Commit) -> Commit:
        """The redacted form of a commit, as its event shows it: its values by path, and then all texts in it."""
        return cast(Commit, self.redact(self.redaction.commit(commit)))

    def conflict(self, found: MergedConflict) -> MergedConflict:
        """The redacted form of a conflict, as its event shows it."""
        return cast(MergedConflict, self.redact(self.redaction.conflict(found)))

    def redact(self, value: Any) -> Any:
        """The redacted form of a text, or of any object with texts in it; the same object if nothing is hidden."""
        return self._redact(value, {})

    def field(self, name: str, value: Any) -> Any:
        """The redacted form of a value of a field, as a plain value: by its path, and of its texts."""
        return self.redact(self.redaction.value((name,), thaw(value)))

    def error(self, error: BaseException) -> BaseException:
        """The exception with which a run ends, with redacted texts, its causes and contexts too.

        It is changed in place, so that class and traceback stay. An exception whose text cannot be changed is replaced:
        an exception group and pydantic's `ValidationError` by another of their class, any other by a `DspyerError`.
        """
        return self._error(error, {}) if self._texts else error

    def _redact(self, value: Any, replaced: _Replacements, given: bool = False) -> Any:
        """The redacted form of a value. `given` marks values of the user, whose numbers may be secret too.

        Other numbers are counts and versions of an event, which may equal a secret number by chance.
        """
        if isinstance(value, str):
            return self._redact_text(value)
        if isinstance(value, BaseException):
            return replaced[id(value)] if id(value) in replaced else self._redacted_copy(value, replaced)
        if isinstance(value, Failure):
            shown = {name: self._redact(part, replaced) for name, part in value}
            return value if all(shown[name] is part for name, part in value) else value.model_copy(update=shown)
        if isinstance(value, Replace):
            plain = thaw(value.frozen)
            found = self._redact(plain, replaced, given)
            return value if found is plain else Replace(found)
        if isinstance(value, (FrozenDict, FrozenList)):
            plain = thaw(value)
            found = self._redact(plain, replaced, given)
            return value if found is plain else freeze(found)
        if isinstance(value, Updates):
            parts = [self._redact(part, replaced, given) for part in value.updates]
            return value if all(map(is_, parts, value.updates)) else Updates(*parts)
        if isinstance(value, Mapping):
            pairs = [
                (key, part, self._redact(key, replaced, given), self._redact(part, replaced, given))
                for key, part in value.items()
            ]
            if all(key is named and part is found for key, part, named, found in pairs):
                return value
            return self._made(value, lambda: {named: found for _, _, named, found in pairs})
        if isinstance(value, (tuple, list, set, frozenset)):
            items = list(value)
            parts = [self._redact(part, replaced, given) for part in items]
            if all(map(is_, parts, items)):
                return value
            return self._made(value, lambda: type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts))
        fields = _fields_of(value)
        if fields is None:
            return self._leaf(value, given)
        own = "value" if isinstance(value, Emitted) else None
        found = {name: self._redact(part, replaced, given or name == own) for name, part in fields.items()}
        if all(found[name] is part for name, part in fields.items()):
            return value
        return changed(value, **found) if isinstance(value, JsonRecord) else found

    def _leaf(self, value: Any, given: bool) -> Any:
        """The redacted form of an object without parts: its text if that shows a hidden one, else the object itself."""
        if value is None or isinstance(value, (bool, type)):
            return value
        if isinstance(value, (int, float)):
            return HIDDEN if given and str(value) in self._texts else value
        if not self._texts:
            return value
        text = _repr_of(value)
        found = self._redact_text(text)
        return value if found is text else found

    def _made(self, value: Any, make: Callable[[], Any]) -> Any:
        """A rebuilt container, or its redacted text if its class refuses the redacted parts."""
        try:
            return make()
        except Exception:  # noqa: BLE001 - user classes raise anything, and a redacted key may not hash; the text is shown
            return self._redact_text(_repr_of(value))

    def _redacted_copy(self, error: BaseException, replaced: _Replacements) -> BaseException:
        """The exception for an event or a log: a copy if it shows a hidden text, since the run still needs this one.

        Retries and error edges decide by what was raised, and states get its text.
        """
        found = _linked(error)
        if not self._texts or not any(map(self._shows_hidden, found)):
            return error
        copies: _Replacements = {}
        for one in found:
            _copy_into(copies, one)
        for one in found:
            _link(one, copies)
        replaced.update(copies)
        self._error(copies[id(error)], replaced)
        replaced.update({given: replaced[id(copy)] for given, copy in copies.items()})
        return replaced[id(error)]

    def _shows_hidden(self, error: BaseException) -> bool:
        parts = (error.args, *vars(error).values(), *[part for _, part in _members(error)])
        return self._reveals(error_text(error)) or any(self._reveals(_repr_of(part)) for part in parts)

    def _error(self, error: BaseException, replaced: _Replacements) -> BaseException:
        found = [one for one in _linked(error) if id(one) not in replaced]
        replaced.update({id(one): one for one in found})
        for one in found:
            self._change(one, replaced)
        for one in reversed(found):
            self._replace(one, replaced)
        for one in found:
            _link(one, replaced)
        return replaced[id(error)]

    def _change(self, error: BaseException, replaced: _Replacements) -> None:
        """Redacts an exception in place: its arguments and attributes, also those in slots and of C classes."""
        args = self._redact(error.args, replaced, given=True)
        if args is not error.args:
            error.args = args
        for name, value in vars(error).items():
            vars(error)[name] = self._redact(value, replaced, given=True)
        for name, value in _members(error):
            shown = self._redact(value, replaced, given=True)
            if shown is not value:
                with suppress(AttributeError, TypeError):  # read-only: `_replace` makes another exception
                    setattr(error, name, shown)

    def _replace(self, error: BaseException, replaced: _Replacements) -> BaseException:
        """Replaces an exception whose text still shows a hidden one, and records the replacement."""
        if replaced[id(error)] is not error:
            return replaced[id(error)]
        new: BaseException | None = None
        if isinstance(error, BaseExceptionGroup):
            parts = [self._replace(part, replaced) for part in error.exceptions]
            if not all(map(is_, parts, error.exceptions)) or self._reveals(error.message):
                new = BaseExceptionGroup.__new__(type(error), self._redact_text(error.message), parts)
        elif isinstance(error, ValidationError):
            new = self._validation_error(error)
        elif self._reveals(error_text(error)):
            new = DspyerError(f"{type(error).__qualname__}: {self._redact_text(error_text(error))}")
        if new is not None and new is not error:
            vars(new).update({name: value for name, value in vars(error).items() if name not in vars(new)})
            replaced[id(error)] = replaced[id(new)] = new.with_traceback(error.__traceback__)
        return replaced[id(error)]

    def _validation_error(self, error: ValidationError) -> ValidationError:
        """The same error without the refused inputs: they may be hidden by paths that pydantic does not know."""
        problems = error.errors(include_url=False, include_context=False)
        if all(problem["input"] is HIDDEN for problem in problems):
            return error
        details = [
            InitErrorDetails(
                type=PydanticCustomError(cast(Any, problem["type"]), cast(Any, self._redact_text(problem["msg"]))),
                loc=tuple([self._redact_text(key) if isinstance(key, str) else key for key in problem["loc"]]),
                input=HIDDEN,
            )
            for problem in problems
        ]
        return ValidationError.from_exception_data(self._redact_text(error.title), details)

    def _reveals(self, text: str) -> bool:
        return self._redact_text(text) is not text

    def _redact_text(self, text: str) -> str:
        found: list[str] = []
        end = 0
        for at in self._candidates(text):
            if at < end:
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

    def _remember(self, text: str) -> None:
        """Remembers a text that must be hidden."""
        if text not in self._texts:
            self._texts.add(text)
            start = text[:SHORTEST]
            self._by_start.setdefault(start, []).append(text)
            self._beginnings.update(start[:length] for length in range(1, SHORTEST))
            lengths = self._starts.get(start, ())
            if len(text) not in lengths:
                self._starts[start] = tuple(sorted((*lengths, len(text)), reverse=True))

    def learn_value(self, path: KeyPath, value: Any) -> None:
        """Remembers the texts that are hidden in a value at a path, also by a pattern that hides what is around it."""
        self._learn_value(self.redaction, path, value)

    def _learn_value(self, redaction: Redaction, path: KeyPath, value: Any) -> None:
        plain = thaw(value)
        shown = redaction.at(path, plain)
        if shown is not plain:
            self._learn_difference(plain, shown)

    def _learn_update(self, redaction: Redaction, path: KeyPath, update: Any) -> None:
        if isinstance(update, Updates):
            for part in update.updates:
                self._learn_update(self.redaction.for_update(path[0], part), path, part)
        elif isinstance(update, Replace):
            self._learn_value(redaction, path, update.frozen)
        elif type(update) in (dict, SealedPatch):
            for key, part in update.items():
                self._learn_update(redaction, (*path, key), part)
        elif update is not DELETE:
            self._learn_value(redaction, path, update)

    def _learn_difference(self, value: Any, shown: Any) -> None:
        """Remembers the texts of a value that its redacted form does not show."""
        if shown is value:
            return
        fields = _fields_of(value)
        parts = fields if fields is not None else value
        if isinstance(parts, Mapping):
            for key, part in parts.items():
                self._learn_difference(part, shown.get(key) if isinstance(shown, Mapping) else None)
        elif isinstance(parts, (list, tuple, set, frozenset)):
            others = shown if isinstance(shown, (list, tuple)) and len(shown) == len(parts) else [None] * len(parts)
            for part, other in zip(parts, others, strict=True):
                self._learn_difference(part, other)
        elif value is not None and not isinstance(value, bool) and len(str(value)) >= SHORTEST:
            text = str(value)
            # Also its forms in JSON, in a `repr` and in the `repr` of bytes: logs and errors show these.
            escaped = (repr(text)[1:-1], json.dumps(text)[1:-1], repr(text.encode(errors="replace"))[2:-1])
            for form in (text, *escaped):
                self._remember(form)


class OutputRedaction:
    """What is shown of the outputs of a node, by all graphs around it.

    Args:
        hiding: for each graph, outermost first, what hides its values, and the fields that its node may write, or
            None for any.
    """

    def __init__(self, hiding: tuple[tuple[Redactor, frozenset[str] | None], ...]) -> None:
        self._hiding = hiding

    def may_hide(self, field: str) -> bool:
        """Whether an output is shown when it is complete: it, or a part of it, may be hidden by its path.

        So is any output inside of several graphs that hide something: each changes what the next one looks at.
        """
        return len(self._hiding) > 1 or any(one.redaction.may_hide(field, fields) for one, fields in self._hiding)

    def output(self, field: str, text: str) -> str:
        """What to show of the whole text of an output."""
        for one, fields in self._hiding:
            text = one.redaction.output(field, fields, text)
        return text

    def settled(self, text: str) -> int:
        """How many of the first characters of a text that goes on can be shown: the rest may begin a hidden text."""
        return self._hiding[0][0].settled(text)


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


def _copy_into(copies: _Replacements, error: BaseException) -> BaseException:
    """Copies an exception, without its traceback, unless there is a copy already."""
    if id(error) not in copies:
        copies[id(error)] = _copied(error, copies)
    return copies[id(error)]


def _copied(error: BaseException, copies: _Replacements) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        parts = [_copy_into(copies, part) for part in error.exceptions]
        group = BaseExceptionGroup.__new__(type(error), error.message, parts)
        vars(group).update(vars(error))
        return group
    for make in (_copy_without_init, copy):
        with suppress(Exception):  # classes of users raise anything
            made = make(error)
            vars(made).update(vars(error))  # some classes do not copy them, and so lose the notes
            if error_text(made) == error_text(error):
                return made
    other = DspyerError(f"{type(error).__qualname__}: {error_text(error)}")
    vars(other).update(vars(error))
    return other


def _copy_without_init(error: BaseException) -> BaseException:
    made = type(error).__new__(type(error), *error.args)
    for name, value in _members(error):
        if value is not None:
            with suppress(AttributeError, TypeError):  # read-only
                setattr(made, name, value)
    return made


def _link(error: BaseException, replaced: _Replacements) -> None:
    """Links the replacement of an exception to the replacements of its cause and context."""
    new, cause, context = replaced[id(error)], error.__cause__, error.__context__
    suppressed = error.__suppress_context__
    new.__cause__ = None if cause is None else replaced[id(cause)]
    new.__context__ = None if context is None else replaced[id(context)]
    new.__suppress_context__ = suppressed
