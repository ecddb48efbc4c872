"""Merge policies: what becomes of a path that both sides of a merge changed.

A policy is a function from a `Conflict` to the value to keep; `DELETE` stands for "absent", in what it is asked and as its
answer. First and last mean branch order, never time. `Policies` says which policy holds at which path.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from .errors import MergeConflictError, brief, suggestion
from .merge import Conflict, Keys, Resolve
from .patch import DELETE
from .values import FrozenList, freeze, same, thaw


@dataclass(frozen=True, slots=True)
class Policy:
    """A named merge policy. Call it with a `Conflict` to get the value to keep.

    Attributes:
        name: how it is called in records and errors.
        decide: the function that decides.
        built_in: whether `decide` may be given frozen values; a user's function gets plain ones.
    """

    name: str
    decide: Callable[[Conflict], Any]
    built_in: bool = False

    def __call__(self, conflict: Conflict) -> Any:
        return self.decide(conflict)

    def __repr__(self) -> str:
        return self.name


def _raise(conflict: Conflict) -> Any:
    raise MergeConflictError(_conflict_text(conflict), conflict.path, (conflict.left_author, conflict.right_author))


def _last(conflict: Conflict) -> Any:
    return conflict.right


def _first(conflict: Conflict) -> Any:
    return conflict.left


def _combine(conflict: Conflict) -> Any:
    left, right = conflict.left, conflict.right
    if not (isinstance(left, (list, FrozenList)) and isinstance(right, (list, FrozenList))):
        return right
    base = conflict.base if isinstance(conflict.base, (list, FrozenList)) else []
    was = _count(base)
    ours, theirs = _count(left), _count(right)
    kept: list[Any] = []
    seen: Counter[Hashable] = Counter()
    for item in base:
        key = _identity(item)
        seen[key] += 1
        if seen[key] <= min(was[key], ours[key], theirs[key]):
            kept.append(item)
    return [*kept, *_additions(left, was), *_additions(right, was)]


def _count(items: Iterable[Any]) -> Counter[Hashable]:
    return Counter(_identity(item) for item in items)


def _additions(items: Iterable[Any], base: Counter[Hashable]) -> list[Any]:
    """The items that a side has beyond those of the base, counting equal ones."""
    seen: Counter[Hashable] = Counter()
    added: list[Any] = []
    for item in items:
        key = _identity(item)
        seen[key] += 1
        if seen[key] > base[key]:
            added.append(item)
    return added


class _Same:
    """An item as a dictionary key: equal when `same` says so (1, 1.0 and True differ)."""

    __slots__ = ("item", "number")

    def __init__(self, item: Any) -> None:
        self.item = item
        try:
            self.number = hash(item)
        except TypeError:  # not hashable: every such item of this type meets the comparison
            self.number = hash(type(item))

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and same(self.item, other.item)


def _identity(item: Any) -> Hashable:
    return _Same(item)


@dataclass(frozen=True, slots=True)
class _Prefer:
    """Decides for the value of the first of `nodes` that wrote one."""

    nodes: tuple[str, ...]

    def __call__(self, conflict: Conflict) -> Any:
        for node in self.nodes:
            if conflict.left_author == node:
                return conflict.left
            if conflict.right_author == node:
                return conflict.right
        return _raise(conflict)


raise_ = Policy("raise", _raise, built_in=True)
last_write_wins = Policy("last_write_wins", _last, built_in=True)
first_write_wins = Policy("first_write_wins", _first, built_in=True)
combine_lists = Policy("combine_lists", _combine, built_in=True)

KNOWN: Mapping[str, Policy] = MappingProxyType(
    {policy.name: policy for policy in (raise_, last_write_wins, first_write_wins, combine_lists)}
)


def prefer(*nodes: str) -> Policy:
    """The policy that keeps what the earliest named node wrote.

    Args:
        nodes: names of nodes, the most trusted first. If none of them wrote, the conflict is raised.

    Returns:
        The policy.

    Example:
        >>> prefer("editor", "writer")(Conflict(("title",), "-", "A", "B", "writer", "editor"))
        'B'
    """
    if not nodes or not all(isinstance(node, str) and node for node in nodes):
        raise ValueError(
            "prefer() needs names of nodes, the most trusted first, for example prefer('editor', 'writer')"
        )
    return Policy(f"prefer({', '.join(map(repr, nodes))})", _Prefer(nodes), built_in=True)


def policy_of(spec: object) -> Policy:
    """The policy that a name, a policy or a function stands for.

    Args:
        spec: a name such as `"last_write_wins"`, a policy, or a function `(Conflict) -> value`.

    Returns:
        The policy.

    Raises:
        ValueError: if there is no such policy; the text lists the known ones.

    Example:
        >>> policy_of("first_write_wins")
        first_write_wins
    """
    if isinstance(spec, Policy):
        return spec
    if isinstance(spec, str):
        if spec in KNOWN:
            return KNOWN[spec]
        raise ValueError(f"unknown merge policy {spec!r}.{suggestion(spec, KNOWN)} {_known()}")
    if spec is prefer:
        raise ValueError("prefer is given the names of nodes: write prefer('editor', 'writer')")
    if callable(spec) and not isinstance(spec, type):
        _check_arity(spec)
        return Policy(str(getattr(spec, "__name__", type(spec).__name__)), spec)
    raise ValueError(f"{brief(spec)} is no merge policy. {_known()}")


def _known() -> str:
    names = ", ".join(repr(name) for name in KNOWN)
    return f"Known policies: {names}, prefer(*nodes), or a function that is given a Conflict and returns the value."


def _check_arity(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise ValueError(
            f"a merge policy is called with one Conflict and returns the value to keep; {function!r} does not take exactly one argument"
        ) from None
    except ValueError:  # builtins without a signature
        return


class _Rule(NamedTuple):
    """One pattern of a policy table; `literal` for a tuple, which is a path as it stands."""

    segments: tuple[Any, ...]
    literal: bool
    policy: Policy

    def matches(self, path: Keys) -> bool:
        return self.segments == path if self.literal else len(self.segments) in _reached(self.segments, path)

    def covers(self, path: Keys) -> bool:
        """Whether it matches the path or may match one below it."""
        return self.segments[: len(path)] == path if self.literal else bool(_reached(self.segments, path))

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The longest literal prefix first, then more literal segments, fewer `**`, more segments."""
        if self.literal:
            return len(self.segments), len(self.segments), 1, len(self.segments)
        wild = [segment in ("*", "**") for segment in self.segments]
        prefix = wild.index(True) if True in wild else len(wild)
        return prefix, len(wild) - sum(wild), -self.segments.count("**"), len(wild)


def _reached(segments: tuple[Any, ...], path: Keys) -> set[int]:
    """How many segments of a pattern a path may have used up. Keys that are no strings are compared as text."""
    reached = _skip(segments, {0})
    for key in path:
        reached = _skip(segments, {after for at in reached for after in _step(segments, at, str(key))})
    return reached


def _skip(segments: tuple[Any, ...], reached: set[int]) -> set[int]:
    """Adds the positions that are reached when `**` stands for no segment at all."""
    result = set(reached)
    for at in range(len(segments)):
        if at in result and segments[at] == "**":
            result.add(at + 1)
    return result


def _step(segments: tuple[Any, ...], at: int, key: str) -> tuple[int, ...]:
    if at == len(segments):
        return ()
    if segments[at] == "**":
        return (at,)
    return (at + 1,) if segments[at] in ("*", key) else ()


@dataclass(frozen=True, slots=True)
class Policies:
    """Which merge policy holds at which path.

    Build one with `Policies.of`.

    Example:
        >>> policies = Policies.of({"draft.*": "first_write_wins", "tags": "combine_lists"})
        >>> policies.policy_for(("draft", "title")), policies.policy_for(("tags",)), policies.policy_for(("other",))
        (first_write_wins, combine_lists, raise)
    """

    rules: tuple[_Rule, ...]
    default: Policy
    given: bool = True
    otherwise: Policies | None = None

    @classmethod
    def of(cls, spec: object = None, otherwise: object = "raise") -> Policies:
        """Reads what a user gave as `merge=` or `policy=`.

        Args:
            spec: a name, a policy or a function for every path, or a dict from path pattern to one of these. In a pattern dots
                separate segments, `*` stands for one segment, `**` for any number; a tuple is a path as it stands. Where several
                match, the one with the longest literal prefix wins.
            otherwise: what holds at paths that no pattern matches: a policy, or the `Policies` to ask then.

        Returns:
            The table.

        Raises:
            ValueError: for an unknown policy or a malformed pattern.
        """
        if isinstance(spec, Policies):
            return spec
        rest = otherwise if isinstance(otherwise, Policies) else cls((), policy_of(otherwise), given=False)
        if spec is None:
            return rest
        if not isinstance(spec, Mapping):
            return cls((), policy_of(spec))
        rules = [_rule(pattern, policy) for pattern, policy in spec.items()]
        rules.sort(key=lambda rule: rule.rank, reverse=True)
        return cls(tuple(rules), rest.default, rest.given, rest)

    def policy_for(self, path: Keys) -> Policy:
        """The policy that holds at a path."""
        for rule in self.rules:
            if rule.matches(path):
                return rule.policy
        return self.default if self.otherwise is None else self.otherwise.policy_for(path)

    def covers(self, path: Keys) -> bool:
        """Whether a user chose what holds at a path, or somewhere below it."""
        if any(rule.covers(path) for rule in self.rules):
            return True
        return self.given if self.otherwise is None else self.otherwise.covers(path)

    def resolver(self, left_author: str = "left", right_author: str = "right") -> Resolve:
        """The function that `merge_values` asks when two named sides are merged.

        Args:
            left_author: who wrote the left side.
            right_author: who wrote the right side.

        Returns:
            A function that lets the policy of the path decide and gives the frozen answer: the very value of a side where the
            policy chose that side's.
        """

        def resolve(path: Keys, base: Any, left: Any, right: Any) -> Any:
            return settle(self.policy_for(path), Conflict(path, base, left, right, left_author, right_author))

        return resolve


def settle(policy: Policy, conflict: Conflict) -> Any:
    """Lets a policy decide a conflict of frozen values.

    Args:
        policy: the policy. A user's function is asked with plain copies.
        conflict: the conflict, with frozen values.

    Returns:
        The frozen answer, or `DELETE`: the very value of a side where the policy chose that side's.
    """
    if not policy.built_in:
        plain = (thaw(conflict.base), thaw(conflict.left), thaw(conflict.right))
        asked = Conflict(conflict.path, *plain, conflict.left_author, conflict.right_author)
    else:
        asked = conflict
    answer = policy(asked)
    answer = answer if answer is DELETE else freeze(answer, conflict.path)
    if same(answer, conflict.right):
        return conflict.right
    return conflict.left if same(answer, conflict.left) else answer


def _rule(pattern: object, spec: object) -> _Rule:
    policy = policy_of(spec)
    if isinstance(pattern, tuple):
        if not pattern:
            raise ValueError("the empty path () is no pattern of merge policies; write '**' for every path")
        return _Rule(pattern, True, policy)
    if not isinstance(pattern, str):
        raise ValueError(
            f"a pattern of merge policies is text such as 'draft.*' or a tuple of keys, not {brief(pattern)}"
        )
    segments = tuple(pattern.split("."))
    for segment in segments:
        if not segment or ("*" in segment and segment not in ("*", "**")):
            raise ValueError(
                f"malformed pattern {pattern!r} of a merge policy: segments are separated by single dots and are a key, "
                f"'*' (one segment) or '**' (any number); give keys that hold dots or stars as a tuple, such as ('a.b', 'c')"
            )
    return _Rule(segments, False, policy)


def _conflict_text(conflict: Conflict) -> str:
    name = ".".join(str(key) for key in conflict.path)
    pattern = repr(name) if not any("." in str(key) for key in conflict.path) else repr(conflict.path)
    return (
        f"Conflict detected at key {name!r}: {conflict.left_author} has {_side(conflict.left)}, "
        f"{conflict.right_author} has {_side(conflict.right)}; both started from {_side(conflict.base)}. "
        f"Let one node alone write it, give the field a reducer, or choose a merge policy for this path, "
        f'for example {{{pattern}: "last_write_wins"}}.'
    )


def _side(value: Any) -> str:
    return "nothing" if value is DELETE else brief(value)
