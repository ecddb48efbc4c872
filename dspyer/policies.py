"""Merge policies: what becomes of a path that both sides of a merge changed.

A policy is a function from a `Conflict` to the value to keep; `DELETE` stands for "absent", in what it is asked and as
its answer. First and last mean branch order, never time. `Policies` says which policy holds at which path.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from dspyer.errors import MergeConflictError, brief, suggestion
from dspyer.hints import signature_of
from dspyer.patch import DELETE
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.refusals import KeyPath


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
        """The value to keep."""
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
        key = _Same(item)
        seen[key] += 1
        if seen[key] <= min(was[key], ours[key], theirs[key]):
            kept.append(item)
    return [*kept, *_additions(left, was), *_additions(right, was)]


def _count(items: Iterable[Any]) -> Counter[Hashable]:
    return Counter(_Same(item) for item in items)


def _additions(items: Iterable[Any], base: Counter[Hashable]) -> list[Any]:
    """The items that a side has beyond those of the base, counting equal ones."""
    seen: Counter[Hashable] = Counter()
    added: list[Any] = []
    for item in items:
        key = _Same(item)
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
    if not nodes or not all(map(_is_name, nodes)):
        raise ValueError(
            "prefer() needs names of nodes, the most trusted first, for example prefer('editor', 'writer')"
        )
    return Policy(f"prefer({', '.join(map(repr, nodes))})", _Prefer(nodes), built_in=True)


def _is_name(node: object) -> bool:
    return isinstance(node, str) and node != ""


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
    if inspect.iscoroutinefunction(spec):
        raise ValueError(f"merge policy {spec.__name__!r} is async: a join decides at once; await in a node before it")
    if not isinstance(spec, type) and callable(spec):
        _check_arity(spec)
        return Policy(str(getattr(spec, "__name__", type(spec).__name__)), spec)
    raise ValueError(f"{brief(spec)} is no merge policy. {_known()}")


def _known() -> str:
    names = ", ".join(repr(name) for name in KNOWN)
    return f"Known policies: {names}, prefer(*nodes), or a function that is given a Conflict and returns the value."


def _check_arity(function: Callable[..., Any]) -> None:
    try:
        signature_of(function).bind(None)
    except TypeError:
        raise ValueError(
            "a merge policy is called with one Conflict and returns the value to keep; "
            f"{getattr(function, '__name__', function)!r} does not take exactly one argument"
        ) from None
    except ValueError:  # builtins without a signature
        return


class _Rule(NamedTuple):
    """One row of a policy table."""

    pattern: Pattern
    policy: Policy


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
            spec: a name, a policy or a function for every path, or a dict from path pattern to one of these. In a
                pattern dots
                separate segments, `*` stands for one segment, `**` for any number; a tuple is a path as it stands.
                Where several match, the one with the longest literal prefix wins.
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
        rules = [_Rule(Pattern.of(pattern), policy_of(policy)) for pattern, policy in spec.items()]
        rules.sort(key=lambda rule: rule.pattern.rank, reverse=True)
        return cls(tuple(rules), rest.default, rest.given, rest)

    def policy_for(self, path: KeyPath) -> Policy:
        """The policy that holds at a path."""
        for rule in self.rules:
            if rule.pattern.matches(path):
                return rule.policy
        return self.default if self.otherwise is None else self.otherwise.policy_for(path)

    def decider_for(self, path: KeyPath) -> tuple[str, Callable[[Conflict], Any]]:
        """The name of the policy that holds at a path, and what it decides about a conflict of frozen values."""
        policy = self.policy_for(path)
        return policy.name, partial(resolve_conflict, policy)

    def covers(self, field: str) -> bool:
        """Whether the user chose what holds at a field, or somewhere below it."""
        if any(rule.pattern.covers((field,)) for rule in self.rules):
            return True
        return self.given if self.otherwise is None else self.otherwise.covers(field)

    def resolver(self, left_author: str = "left", right_author: str = "right") -> Resolve:
        """The function that `merge_values` asks when two named sides are merged.

        Args:
            left_author: who wrote the left side.
            right_author: who wrote the right side.

        Returns:
            A function that lets the policy of the path decide and gives the frozen answer: the very value of a side
            where the policy chose that side's.
        """

        def resolve(path: KeyPath, base: Any, left: Any, right: Any) -> Any:
            return resolve_conflict(self.policy_for(path), Conflict(path, base, left, right, left_author, right_author))

        return resolve


def resolve_conflict(policy: Policy, conflict: Conflict) -> Any:
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


def _conflict_text(conflict: Conflict) -> str:
    name = ".".join(str(key) for key in conflict.path)
    pattern = repr(name) if not any("." in str(key) for key in conflict.path) else repr(conflict.path)
    return (
        f"Conflict detected at key {name!r}: {conflict.left_author} has {_side(conflict.left)}, "
        f"{conflict.right_author} has {_side(conflict.right)}; both started from {_side(conflict.base)}. "
        "Let one node alone write it, give the field a reducer that keeps both, or choose a merge policy for this "
        f'path, for example {{{pattern}: "last_write_wins"}}.'
    )


def _side(value: Any) -> str:
    return "nothing" if value is DELETE else brief(value)


# --------------------------------------------------------------------------------------------------------------------
# The three-way merge of frozen values: what both sides changed since their base, and nothing else.
#
# Nothing here knows of graphs or policies. A conflict is handed to `resolve`, which says what becomes of it.

Resolve = Callable[[KeyPath, Any, Any, Any], Any]

EMPTY: FrozenDict[Any, Any] = FrozenDict()


@dataclass(frozen=True, slots=True)
class Conflict:
    """One path that both sides of a merge changed, to different values. What a merge policy is asked about.

    Attributes:
        path: keys from the state down to the value.
        base: the value that both sides started from, `DELETE` if there was none.
        left: the value of the side that comes first in branch order, `DELETE` if it removed it.
        right: the value of the other side, `DELETE` if it removed it.
        left_author: who wrote the left value: a node, or `"left"` where two states are merged by hand.
        right_author: who wrote the right value.
    """

    path: KeyPath
    base: Any
    left: Any
    right: Any
    left_author: str = "left"
    right_author: str = "right"


def merge_values(base: Any, left: Any, right: Any, path: KeyPath, resolve: Resolve) -> Any:
    """Merges two frozen values that were made from one base.

    Only net change counts: a side that holds what the base holds has changed nothing, and equal values are no
    conflict. Two mappings are merged key by key, where a base that is no mapping counts as empty. Anything else that
    both sides changed is one conflict, at this path and with whole values.

    Args:
        base: the value that both sides started from. Like `left` and `right`, `DELETE` stands for "absent".
        left: the value of the first side; its keys keep their order.
        right: the value of the second side; its new keys follow, in its order.
        path: where the values are.
        resolve: called as `(path, base, left, right)` for each conflict, gives the value to keep, or `DELETE`.

    Returns:
        The merged value: `left` itself if the right side adds nothing to it. `DELETE` if nothing is left.

    Example:
        >>> from dspyer.values.freezing import freeze
        >>> base, left, right = freeze({"a": 1, "b": 2}), freeze({"a": 1}), freeze({"a": 5, "b": 2})
        >>> merge_values(base, left, right, (), lambda path, base, left, right: right) == {"a": 5}
        True
    """
    if left is right or right is base:
        return left
    if isinstance(left, FrozenDict) and isinstance(right, FrozenDict):
        return _merge_mappings(base if isinstance(base, FrozenDict) else EMPTY, left, right, path, resolve)
    if same(right, base) or same(left, right):
        return left
    if left is base or same(left, base):
        return right
    return resolve(path, base, left, right)


def _merge_mappings(
    base: FrozenDict[Any, Any], left: FrozenDict[Any, Any], right: FrozenDict[Any, Any], path: KeyPath, resolve: Resolve
) -> FrozenDict[Any, Any]:
    merged = left
    for key in _changed_keys(base, right):
        ours = left.raw(key, DELETE)
        value = merge_values(base.raw(key, DELETE), ours, right.raw(key, DELETE), (*path, key), resolve)
        if value is not ours:
            merged = merged.discard(key) if value is DELETE else merged.set(key, value)
    return merged


def _changed_keys(before: FrozenDict[Any, Any], after: FrozenDict[Any, Any]) -> list[Any]:
    """The keys under which a mapping may hold something new: its own in their order, then the removed ones."""
    changed = [key for key, value in after.raw_items() if before.raw(key, DELETE) is not value]
    changed.extend(key for key in before if key not in after)
    return changed


# --------------------------------------------------------------------------------------------------------------------
# Patterns of paths: `draft.*`, `**.title`, `("a.b", "c")`.

ONE, MANY = "*", "**"


class Pattern(NamedTuple):
    """A pattern of paths.

    Attributes:
        segments: keys, `*` for any one key, `**` for any number of keys.
        literal: whether the segments are a path as they stand.

    Example:
        >>> Pattern.of("draft.*").matches(("draft", "title")), Pattern.of("draft.*").matches(("draft",))
        (True, False)
    """

    segments: KeyPath
    literal: bool = False

    @classmethod
    def of(cls, spec: object) -> Pattern:
        """Reads a pattern.

        Args:
            spec: text with dots between segments, or a tuple of keys, which is a path as it stands.

        Returns:
            The pattern.

        Raises:
            ValueError: if it is malformed.
        """
        if isinstance(spec, tuple) and spec:
            return cls(spec, True)
        if not isinstance(spec, str):
            raise ValueError(  # noqa: TRY004  # like every other mistake in a policy table
                f"a pattern is text such as 'draft.*', or a tuple of keys, not {brief(spec)}; write '**' for every path"
            )
        segments = tuple(spec.split("."))
        if all(segment and ("*" not in segment or segment in (ONE, MANY)) for segment in segments):
            return cls(segments)
        raise ValueError(
            f"malformed pattern {spec!r}: single dots separate its segments, and a segment is a key, '*' (any one key) "
            "or '**' (any number of keys); give keys that hold dots or stars as a tuple, such as ('a.b', 'c')"
        )

    def matches(self, path: KeyPath) -> bool:
        """Whether a path is one of the pattern's. Keys that are no strings are compared as text."""
        return self.segments == path if self.literal else len(self.segments) in self._reached(path)

    def covers(self, path: KeyPath) -> bool:
        """Whether it matches the path, or may match one below it."""
        return self.segments[: len(path)] == path if self.literal else bool(self._reached(path))

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """What decides between patterns: the longest literal prefix, then more literals, fewer `**`, more segments."""
        if self.literal:
            return len(self.segments), len(self.segments), 1, len(self.segments)
        wild = [segment in (ONE, MANY) for segment in self.segments]
        prefix = wild.index(True) if True in wild else len(wild)
        return prefix, len(wild) - sum(wild), -self.segments.count(MANY), len(wild)

    def _reached(self, path: KeyPath) -> set[int]:
        """How many of its segments a path may have used up."""
        reached = self._skip({0})
        for key in path:
            reached = self._skip({after for at in reached for after in self._step(at, str(key))})
        return reached

    def _skip(self, reached: set[int]) -> set[int]:
        """Adds what is reached where `**` stands for no key at all."""
        result = set(reached)
        for at, segment in enumerate(self.segments):
            if at in result and segment == MANY:
                result.add(at + 1)
        return result

    def _step(self, at: int, key: str) -> tuple[int, ...]:
        if at == len(self.segments):
            return ()
        if self.segments[at] == MANY:
            return (at,)
        return (at + 1,) if self.segments[at] in (ONE, key) else ()
