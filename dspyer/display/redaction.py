"""What is hidden of the values that leave a run: in events, logs, errors and exports. Never in what is stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from dspyer.errors import DspyerError, MergeConflictError, brief
from dspyer.events import Commit, Committed, ConflictFound, Emitted, Event, MergedConflict, Posted
from dspyer.patch import DELETE, Replace, SealedPatch
from dspyer.policies import Conflict, Pattern, Policies, Policy, raise_
from dspyer.reducers import Updates
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.refusals import KeyPath

HIDDEN = "[redacted]"
"""What stands for a value that a pattern names."""

RedactValue = Callable[[KeyPath, Any], Any]
Redact = RedactValue | str | Iterable[Any] | None
"""What `compile(redact=...)` takes."""


@dataclass(frozen=True, slots=True)
class _PatternRedaction:
    """Hides what patterns match."""

    patterns: tuple[Pattern, ...]

    def __call__(self, path: KeyPath, value: Any) -> Any:
        return HIDDEN if any(pattern.matches(path) for pattern in self.patterns) else value


class Redaction:
    """Hides values by their path.

    Args:
        decide: gets the path of a value (field, keys, places in lists) and the value, plain, and gives what is shown:
            the value itself to show it as it is. Values are asked for from the outside in.
    """

    def __init__(self, decide: RedactValue) -> None:
        self._decide = decide

    @classmethod
    def of(cls, spec: Redact) -> Redaction | None:
        """Reads what `compile(redact=...)` was given.

        Args:
            spec: a function `(path, value) -> value`, or patterns of paths.

        Raises:
            ValueError: for a malformed pattern.
        """
        if spec is None or callable(spec):
            return None if spec is None else cls(spec)
        return cls(_PatternRedaction(tuple([Pattern.of(each) for each in ([spec] if isinstance(spec, str) else spec)])))

    def value(self, path: KeyPath, value: Any) -> Any:
        """What is shown of a plain value: the value itself if nothing in it is hidden."""
        shown = self._decide(path, value)
        if shown is not value:
            return shown
        if isinstance(value, Mapping):
            parts = {key: self.value((*path, key), part) for key, part in value.items()}
            return value if all(parts[key] is part for key, part in value.items()) else parts
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            items = [self.value((*path, place), item) for place, item in enumerate(value)]
            return value if all(map(_same_object, items, value)) else type(value)(items)
        fields = _fields_of(value)
        if fields is None:
            return value
        shown = {name: self.value((*path, name), part) for name, part in fields.items()}
        return value if all(shown[name] is part for name, part in fields.items()) else shown

    def update(self, path: KeyPath, update: Any) -> Any:
        """What is shown of an update in a patch."""
        if update is DELETE:
            return update
        if isinstance(update, Replace):
            return self._kept(update, Replace, update.frozen, path)
        if isinstance(update, Updates):
            parts = [self.update(path, part) for part in update.updates]
            return update if all(map(_same_object, parts, update.updates)) else Updates(*parts)
        if type(update) in (dict, SealedPatch):
            shown = self._decide(path, update)
            if shown is not update:
                return freeze(shown)
            found = {key: self.update((*path, key), part) for key, part in update.items()}
            return update if all(found[key] is part for key, part in update.items()) else found
        return self._kept(update, freeze, update, path)

    def patch(self, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is shown of a patch."""
        found = {name: self.update((name,), update) for name, update in patch.items()}
        return patch if all(found[name] is update for name, update in patch.items()) else found

    def at(self, path: KeyPath, value: Any) -> Any:
        """What is shown of a frozen value somewhere in a field: nothing of it if a value around it is hidden."""
        if value is DELETE:
            return value
        inside = thaw(value)
        for key in reversed(path[1:]):
            inside = {key: inside}
        shown = self.value(path[:1], inside)
        for key in path[1:]:
            if not isinstance(shown, Mapping) or key not in shown:
                return shown
            shown = shown[key]
        return shown

    def brief(self, path: KeyPath, value: Any) -> str:
        """How errors show a value."""
        return brief(self.at(path, value))

    def event(self, event: Event) -> Event:
        """What is shown of an event."""
        if isinstance(event, Committed):
            return event._replace(commit=self.commit(event.commit))
        if isinstance(event, ConflictFound):
            return event._replace(conflict=self.conflict(event.conflict))
        if isinstance(event, Posted):
            return event._replace(value=self.update((event.field,), event.value))
        return event

    def conflict(self, found: MergedConflict) -> MergedConflict:
        """What is shown of a conflict."""
        values = tuple([(author, self.at(found.path, value)) for author, value in found.values])
        return found._replace(
            base=self.at(found.path, found.base), values=values, value=self.at(found.path, found.value)
        )

    def commit(self, commit: Commit) -> Commit:
        """What is shown of a commit."""
        return commit._replace(patch=self.patch(commit.patch))

    def _kept(self, update: Any, make: Callable[[Any], Any], frozen: Any, path: KeyPath) -> Any:
        plain = thaw(frozen)
        shown = self.value(path, plain)
        return update if shown is plain else make(shown)


def _same_object(left: Any, right: Any) -> bool:
    return left is right


def _fields_of(value: Any) -> dict[str, Any] | None:
    """The attributes of a model or a dataclass; None for anything else."""
    cls = type(value)
    if hasattr(cls, "model_fields") or hasattr(cls, "__dataclass_fields__"):
        names = getattr(cls, "model_fields", None) or cls.__dataclass_fields__
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return None


def hiding(policies: Policies, redaction: Redaction) -> Policies:
    """The same policies; what they raise themselves shows what may be shown.

    Args:
        policies: the policies.
        redaction: what is hidden.
    """
    rest = None if policies.otherwise is None else hiding(policies.otherwise, redaction)
    rules = tuple([rule._replace(policy=_hiding(rule.policy, redaction)) for rule in policies.rules])
    return Policies(rules, _hiding(policies.default, redaction), policies.given, rest)


def _hiding(policy: Policy, redaction: Redaction) -> Policy:
    if not policy.built_in:
        return policy

    def decide(conflict: Conflict) -> Any:
        try:
            return policy.decide(conflict)
        except MergeConflictError:
            base, left, right = (redaction.at(conflict.path, side) for side in _sides(conflict))
            return raise_(replace(conflict, base=base, left=left, right=right))

    return Policy(policy.name, decide, built_in=True)


def _sides(conflict: Conflict) -> tuple[Any, Any, Any]:
    return conflict.base, conflict.left, conflict.right


SHORTEST = 4
"""Characters of the shortest text that is looked for inside of other texts: a shorter one is part of too many words."""

FEW = 16
"""Up to so many beginnings of texts, a pattern that looks for all of them is faster than a look at each character."""


_Seen = dict[int, BaseException]
"""What stands for an exception, by its identity: itself, or one without what is hidden."""


class Redactor:
    """What everything that leaves one run passes: events, logs, questions and errors.

    What has a path is hidden by its path. In all other texts (a question, an emitted value, the text of an exception),
    the texts of the values that were hidden by path are hidden wherever they occur.

    Args:
        redaction: what is hidden by path.
        state: the state with which the run begins.
    """

    def __init__(self, redaction: Redaction, state: Mapping[str, Any]) -> None:
        self._redaction = redaction
        self._texts: set[str] = set()
        self._starts: dict[str, tuple[int, ...]] = {}  # their first characters, and how long those are that begin so
        self._pattern = 0, re.compile("")
        for name in state:
            self._learn((name,), state[name])

    def event(self, event: Any) -> Any:
        """What is shown of an event of any type."""
        self.learn(event)
        return self.shown(self._redaction.event(event))

    def learn(self, event: Event) -> None:
        """Remembers the texts of what is hidden of an event."""
        if isinstance(event, Committed):
            self.learn_commit(event.commit)
        if isinstance(event, Posted):
            self._learn_update((event.field,), event.value)

    def learn_commit(self, commit: Commit) -> None:
        """Remembers the texts of what is hidden of a commit."""
        for name, update in commit.patch.items():
            self._learn_update((name,), update)

    def shown(self, value: Any) -> Any:
        """What is shown of a text, or of anything that holds texts; the thing itself if nothing in it is hidden."""
        return self._shown(value, {})

    def error(self, error: BaseException) -> BaseException:
        """The exception, its texts without what is hidden, and those around it.

        It is changed in place: class and traceback stay. One whose text cannot be changed is replaced: an exception
        group and pydantic's `ValidationError` by one of their class, any other by a `DspyerError` with its text.
        """
        return self._error(error, {}) if self._texts else error

    def _shown(self, value: Any, seen: _Seen, given: bool = False) -> Any:
        """What is shown of a value; `given` is one whose numbers are a user's, not counts or versions of an event."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, BaseException):
            return self._error(value, seen)
        if isinstance(value, Replace):
            plain = thaw(value.frozen)
            found = self._shown(plain, seen, given)
            return value if found is plain else Replace(found)
        if isinstance(value, (FrozenDict, FrozenList)):
            plain = thaw(value)
            found = self._shown(plain, seen, given)
            return value if found is plain else freeze(found)
        if isinstance(value, Updates):
            parts = [self._shown(part, seen, given) for part in value.updates]
            return value if all(map(_same_object, parts, value.updates)) else Updates(*parts)
        if isinstance(value, Mapping):
            pairs = [
                (key, part, self._shown(key, seen, given), self._shown(part, seen, given))
                for key, part in value.items()
            ]
            if all(key is named and part is found for key, part, named, found in pairs):
                return value
            return self._made(value, lambda: {named: found for _, _, named, found in pairs})
        if isinstance(value, (tuple, list, set, frozenset)):
            items = list(value)
            own = value.value if isinstance(value, Emitted) else None
            parts = [self._shown(part, seen, given or (own is not None and part is own)) for part in items]
            if all(map(_same_object, parts, items)):
                return value
            return self._made(value, lambda: type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts))
        fields = _fields_of(value)
        if fields is None:
            return self._leaf(value, given)
        shown = {name: self._shown(part, seen, given) for name, part in fields.items()}
        return value if all(shown[name] is part for name, part in fields.items()) else shown

    def _leaf(self, value: Any, given: bool) -> Any:
        """A text in place of anything else that shows what is hidden."""
        if value is None or isinstance(value, (bool, type)):
            return value
        if isinstance(value, (int, float)):
            return HIDDEN if given and str(value) in self._texts else value
        if not self._texts:
            return value
        text = _repr_of(value)
        found = self._text(text)
        return value if found is text else found

    def _made(self, value: Any, make: Callable[[], Any]) -> Any:
        """A container made anew, or its text where its class does not take what is shown of its parts."""
        try:
            return make()
        except Exception:  # noqa: BLE001 - a class of a user's, or a key that is none any more: nothing is lost
            return self._text(_repr_of(value))

    def _error(self, error: BaseException, seen: _Seen) -> BaseException:
        found: list[BaseException] = []
        waiting = [error]
        while waiting:
            one = waiting.pop()
            if id(one) not in seen:
                seen[id(one)] = one
                found.append(one)
                self._change(one, seen)
                inside = (
                    one.__cause__,
                    one.__context__,
                    *(one.exceptions if isinstance(one, BaseExceptionGroup) else ()),
                )
                waiting += [inner for inner in inside if inner is not None]
        for one in reversed(found):
            self._replace(one, seen)
        for one in found:
            _link(one, seen)
        return seen[id(error)]

    def _change(self, error: BaseException, seen: _Seen) -> None:
        """Changes what can be changed of an exception: its arguments and attributes, also those of C and of slots."""
        args = self._shown(error.args, seen, given=True)
        if args is not error.args:
            error.args = args
        for name, value in vars(error).items():
            vars(error)[name] = self._shown(value, seen, given=True)
        for cls in type(error).__mro__:
            if cls in (BaseException, object):
                break
            for name, member in vars(cls).items():
                if isinstance(member, (MemberDescriptorType, GetSetDescriptorType)) and not name.startswith("__"):
                    value = getattr(error, name, None)
                    shown = self._shown(value, seen, given=True)
                    if shown is not value:
                        with suppress(AttributeError, TypeError):  # read-only: the exception is replaced
                            setattr(error, name, shown)

    def _replace(self, error: BaseException, seen: _Seen) -> BaseException:
        """Notes down what stands for an exception whose text still shows something."""
        if seen[id(error)] is not error:
            return seen[id(error)]
        new: BaseException | None = None
        if isinstance(error, BaseExceptionGroup):
            parts = [self._replace(part, seen) for part in error.exceptions]
            if not all(map(_same_object, parts, error.exceptions)) or self._tells(error.message):
                new = BaseExceptionGroup.__new__(type(error), self._text(error.message), parts)
        elif isinstance(error, ValidationError):
            new = self._refusal(error)
        elif self._tells(_text_of(error)):
            new = DspyerError(f"{type(error).__qualname__}: {self._text(_text_of(error))}")
        if new is not None and new is not error:
            vars(new).update({name: value for name, value in vars(error).items() if name not in vars(new)})
            seen[id(error)] = seen[id(new)] = new.with_traceback(error.__traceback__)
        return seen[id(error)]

    def _refusal(self, error: ValidationError) -> ValidationError:
        """The same refusal without the values that were refused: they may be hidden by paths that it does not know."""
        problems = error.errors(include_url=False, include_context=False)
        if all(problem["input"] is HIDDEN for problem in problems):
            return error
        details = [
            InitErrorDetails(
                type=PydanticCustomError(cast(Any, problem["type"]), cast(Any, self._text(problem["msg"]))),
                loc=tuple([self._text(key) if isinstance(key, str) else key for key in problem["loc"]]),
                input=HIDDEN,
            )
            for problem in problems
        ]
        return ValidationError.from_exception_data(self._text(error.title), details)

    def _tells(self, text: str) -> bool:
        return self._text(text) is not text

    def _text(self, text: str) -> str:
        found: list[str] = []
        end = 0
        for place in self._places(text):
            if place < end:
                continue
            for length in self._starts.get(text[place : place + SHORTEST], ()):  # the longest first
                if text[place : place + length] in self._texts:
                    found += (text[end:place], HIDDEN)
                    end = place + length
                    break
        return "".join((*found, text[end:])) if found else text

    def _places(self, text: str) -> Iterable[int]:
        """Where a hidden text may begin: its cost must not grow with their number."""
        number = len(self._starts)
        if number > FEW:
            return range(len(text) - SHORTEST + 1)
        known, pattern = self._pattern
        if known != number:  # threads show events while others learn: what is compiled names its size
            starts = list(self._starts)
            pattern = re.compile(f"(?={'|'.join(map(re.escape, starts))})")
            self._pattern = len(starts), pattern
        return [match.start() for match in pattern.finditer(text)] if number else ()

    def _keep(self, text: str) -> None:
        """Remembers a text that is to be hidden."""
        if text not in self._texts:
            self._texts.add(text)
            start = text[:SHORTEST]
            lengths = self._starts.get(start, ())
            if len(text) not in lengths:
                self._starts[start] = tuple(sorted((*lengths, len(text)), reverse=True))

    def _learn(self, path: KeyPath, value: Any) -> None:
        plain = thaw(value)
        shown = self._redaction.value(path, plain)
        if shown is not plain:
            self._hide(plain, shown)

    def _learn_update(self, path: KeyPath, update: Any) -> None:
        if isinstance(update, Updates):
            for part in update.updates:
                self._learn_update(path, part)
        elif isinstance(update, Replace):
            self._learn(path, update.frozen)
        elif type(update) in (dict, SealedPatch):
            for key, part in update.items():
                self._learn_update((*path, key), part)
        elif update is not DELETE:
            self._learn(path, update)

    def _hide(self, value: Any, shown: Any) -> None:
        """Remembers the texts of a value that are not in what is shown of it."""
        if shown is value:
            return
        fields = _fields_of(value)
        parts = fields if fields is not None else value
        if isinstance(parts, Mapping):
            for key, part in parts.items():
                self._hide(part, shown.get(key) if isinstance(shown, Mapping) else None)
        elif isinstance(parts, (list, tuple, set, frozenset)):
            others = shown if isinstance(shown, (list, tuple)) and len(shown) == len(parts) else [None] * len(parts)
            for part, other in zip(parts, others, strict=True):
                self._hide(part, other)
        elif value is not None and not isinstance(value, bool) and len(str(value)) >= SHORTEST:
            text = str(value)
            escaped = (repr(text)[1:-1], json.dumps(text)[1:-1], repr(text.encode(errors="replace"))[2:-1])
            for form in (text, *escaped):
                self._keep(form)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a `__str__` of a user's: what shows the exception shows that it failed
        return ""


def _repr_of(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a `__repr__` of a user's: it has no text, so that none is shown
        return ""


def _link(error: BaseException, seen: _Seen) -> None:
    """Refers from what stands for an exception to what stands for those before it."""
    new, cause, context = seen[id(error)], error.__cause__, error.__context__
    suppressed = error.__suppress_context__
    new.__cause__ = None if cause is None else seen[id(cause)]
    new.__context__ = None if context is None else seen[id(context)]
    new.__suppress_context__ = suppressed
