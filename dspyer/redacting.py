"""What is hidden of the values that leave a run: in events, logs, errors and exports. Never in what is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dspyer.errors import MergeConflictError, brief
from dspyer.events import Commit, Committed, ConflictFound, Event, MergedConflict, Posted
from dspyer.merge import Conflict, Keys
from dspyer.patch import DELETE, Replace, SealedPatch
from dspyer.patterns import Pattern
from dspyer.policies import Policies, Policy, raise_
from dspyer.reducers import Updates
from dspyer.values import FrozenDict, FrozenList, freeze, thaw

HIDDEN = "[redacted]"
"""What stands for a value that a pattern names."""

Decide = Callable[[Keys, Any], Any]
Redact = Decide | str | Iterable[Any] | None
"""What `compile(redact=...)` takes."""


@dataclass(frozen=True, slots=True)
class _Named:
    """Hides what patterns match."""

    patterns: tuple[Pattern, ...]

    def __call__(self, path: Keys, value: Any) -> Any:
        return HIDDEN if any(pattern.matches(path) for pattern in self.patterns) else value


class Redaction:
    """Hides values by their path.

    Args:
        decide: gets the path of a value (field, keys, places in lists) and the value, plain, and gives what is shown:
            the value itself to show it as it is. Values are asked for from the outside in.
    """

    def __init__(self, decide: Decide) -> None:
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
        return cls(_Named(tuple([Pattern.of(each) for each in ([spec] if isinstance(spec, str) else spec)])))

    def value(self, path: Keys, value: Any) -> Any:
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

    def update(self, path: Keys, update: Any) -> Any:
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

    def at(self, path: Keys, value: Any) -> Any:
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

    def brief(self, path: Keys, value: Any) -> str:
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

    def _kept(self, update: Any, make: Callable[[Any], Any], frozen: Any, path: Keys) -> Any:
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


class Veil:
    """What everything that leaves one run passes: events, logs, questions and errors.

    What has a path is hidden by its path. In all other texts (a question, an emitted value, the text of an exception),
    the texts of the values that were hidden by path are hidden wherever they occur.

    Args:
        redaction: what is hidden by path.
        state: the state with which the run begins.
    """

    def __init__(self, redaction: Redaction, state: Mapping[str, Any]) -> None:
        self._redaction = redaction
        self._texts: dict[str, None] = {}
        self._found: re.Pattern[str] | None = None
        for name in state:
            self._learn((name,), state[name])

    def event(self, event: Any) -> Any:
        """What is shown of an event of any type."""
        if isinstance(event, Committed):
            self.learn(event.commit)
        if isinstance(event, Posted):
            self._learn_update((event.field,), event.value)
        return self.shown(self._redaction.event(event))

    def learn(self, commit: Commit) -> None:
        """Remembers the texts of what is hidden of a commit."""
        for name, update in commit.patch.items():
            self._learn_update((name,), update)

    def shown(self, value: Any) -> Any:
        """What is shown of a text, or of anything that holds texts; the thing itself if nothing in it is hidden."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, BaseException):
            return self.error(value)
        if isinstance(value, Replace):
            plain = thaw(value.frozen)
            seen = self.shown(plain)
            return value if seen is plain else Replace(seen)
        if isinstance(value, (FrozenDict, FrozenList)):
            plain = thaw(value)
            seen = self.shown(plain)
            return value if seen is plain else freeze(seen)
        if isinstance(value, Updates):
            parts = [self.shown(part) for part in value.updates]
            return value if all(map(_same_object, parts, value.updates)) else Updates(*parts)
        if isinstance(value, Mapping):
            pairs = [(key, part, self.shown(key), self.shown(part)) for key, part in value.items()]
            if all(key is named and part is seen for key, part, named, seen in pairs):
                return value
            return {named: seen for _, _, named, seen in pairs}
        if isinstance(value, (tuple, list, set, frozenset)):
            items = list(value)
            parts = [self.shown(part) for part in items]
            if all(map(_same_object, parts, items)):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        fields = _fields_of(value)
        if fields is None:
            return value
        shown = {name: self.shown(part) for name, part in fields.items()}
        return value if all(shown[name] is part for name, part in fields.items()) else shown

    def error(self, error: BaseException) -> BaseException:
        """The exception, its texts without what is hidden. Its class and traceback stay, so it is changed in place."""
        seen: set[int] = set()
        found: BaseException | None = error
        while found is not None and id(found) not in seen:
            seen.add(id(found))
            found.args = tuple([self.shown(arg) for arg in found.args])
            for name, value in vars(found).items():
                vars(found)[name] = self.shown(value) if not isinstance(value, BaseException) else value
            found = found.__cause__ or found.__context__
        return error

    def _text(self, text: str) -> str:
        if not self._texts:
            return text
        if self._found is None:  # the longest first: a text may be a part of another
            self._found = re.compile("|".join(map(re.escape, sorted(self._texts, key=len, reverse=True))))
        found = self._found.sub(HIDDEN, text)
        return text if found == text else found

    def _learn(self, path: Keys, value: Any) -> None:
        plain = thaw(value)
        shown = self._redaction.value(path, plain)
        if shown is not plain:
            self._hide(plain, shown)

    def _learn_update(self, path: Keys, update: Any) -> None:
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
            self._texts[str(value)] = None
            self._found = None
