"""What is hidden of the values that leave a run: in events, logs, errors and exports. Never in what is stored."""

from __future__ import annotations

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
from dspyer.values import freeze, thaw

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
