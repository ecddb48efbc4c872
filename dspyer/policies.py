"""Conflicts between two sides of a merge, the three-way merge that finds them, and the policies that decide them.

The merge is that of version control (diff3), on nested mappings instead of lines: what only one side changed since the
common base is kept, and what both changed to different values is a `Conflict`. A merge policy is a function from a
`Conflict` to the value to keep. `Policies` maps patterns of paths (`Pattern`) to policies.

`DELETE` means "absent", in a conflict and as the answer of a policy. Left and right, first and last mean the order
of branches, never time.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from dspyer.errors import MergeConflictError, brief, suggestion
from dspyer.hints import signature_of
from dspyer.patch import DELETE
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.scalars import KeyPath

__all__ = [
    "Conflict",
    "Pattern",
    "Policies",
    "Policy",
    "combine_lists",
    "first_write_wins",
    "last_write_wins",
    "merge_values",
    "policy_of",
    "prefer",
    "raise_",
    "resolve_conflict",
]

ShowPath = Callable[[KeyPath, Any], str]
"""Returns a value as errors show it; the path says whether it must be hidden."""

Resolve = Callable[[KeyPath, Any, Any, Any], Any]
"""Decides a conflict in `merge_values`: `(path, base, left, right) -> value to keep`, all frozen, or `DELETE`."""


# --- conflicts


def show_brief(_path: KeyPath, value: Any) -> str:
    """Return a value as errors show it if nothing is hidden."""
    return brief(value)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A path that both sides of a merge changed, to different values: the argument of a merge policy.

    Only the net change of a side counts: one that restores the value of the base has changed nothing. `Replace` or
    `DELETE` in one branch and any update in another are a conflict of the whole field with a reducer. The keys of an
    `update` field and the ids of messages conflict one by one, with whole values; where a policy returns `DELETE` for
    a key, the join replaces the whole field, so updates of branches that join later conflict with the whole field.

    Attributes:
        path: keys from the state down to the value.
        base: the value that both sides started from, `DELETE` if there was none.
        left: the value of the side that is first in branch order, `DELETE` if that side removed it.
        right: the value of the other side, `DELETE` if that side removed it.
        left_author: the node that wrote the left value; `"left"` in `ImmutableState.merge`, which knows no nodes.
        right_author: the node that wrote the right value, or `"right"`.
        show_value: how an error shows a value of it.

    Example:
        >>> def longest(conflict):
        ...     return max(conflict.left, conflict.right, key=len)
        >>> longest(Conflict(("title",), "", "Rates", "On rates"))
        'On rates'
    """

    path: KeyPath
    base: Any
    left: Any
    right: Any
    left_author: str = "left"
    right_author: str = "right"
    show_value: ShowPath = field(default=show_brief, repr=False, compare=False)


def _conflict_text(conflict: Conflict) -> str:
    """The text of a `MergeConflictError`: the path, both sides, and how to avoid or decide the conflict."""
    name = ".".join(str(key) for key in conflict.path)
    pattern = repr(name) if not any("." in str(key) for key in conflict.path) else repr(conflict.path)
    base, left, right = [
        "nothing" if value is DELETE else conflict.show_value(conflict.path, value)
        for value in (conflict.base, conflict.left, conflict.right)
    ]
    return (
        f"Conflict detected at key {name!r}: {conflict.left_author} has {left}, "
        f"{conflict.right_author} has {right}; both started from {base}. "
        "Let one node alone write it, give the field a reducer that keeps both, or choose a merge policy for this "
        f'path, for example {{{pattern}: "last_write_wins"}}.'
    )


# --- the three-way merge

_EMPTY: FrozenDict[Any, Any] = FrozenDict()


def merge_values(base: Any, left: Any, right: Any, path: KeyPath, resolve: Resolve) -> Any:
    """Merges two frozen values that were made from one base.

    Only net change counts: a side that holds what the base holds has changed nothing, and equal values are no
    conflict. Two mappings are merged key by key; a base that is no mapping counts as empty there. Any other value that
    both sides changed is one conflict, at this path and with whole values.

    Args:
        base: the value that both sides started from. Like `left` and `right`, `DELETE` for "absent".
        left: the value of the first side; its keys keep their order.
        right: the value of the second side; its new keys follow, in its order.
        path: where the values are.
        resolve: called as `(path, base, left, right)` for each conflict; returns the value to keep, or `DELETE`.

    Returns:
        The merged value: `left` itself if the right side adds nothing to it, `DELETE` if nothing is left.

    Example:
        >>> from dspyer.values.freezing import freeze
        >>> base, left, right = freeze({"a": 1, "b": 2}), freeze({"a": 1}), freeze(
        ...     {"a": 5, "b": 2})
        >>> merge_values(base, left, right, (), lambda path, base, left,
        ...     right: right)
        FrozenDict({'a': 5})
    """
    # Identity is tested before `same`, which compares whole values: branches share what they did not change.
    if left is right or right is base:
        return left
    if isinstance(left, FrozenDict) and isinstance(right, FrozenDict):
        return _merge_mappings(base if isinstance(base, FrozenDict) else _EMPTY, left, right, path, resolve)
    if same(right, base) or same(left, right):
        return left
    if left is base or same(left, base):
        return right
    return resolve(path, base, left, right)


def _merge_mappings(
    base: FrozenDict[Any, Any], left: FrozenDict[Any, Any], right: FrozenDict[Any, Any], path: KeyPath, resolve: Resolve
) -> FrozenDict[Any, Any]:
    merged = left
    # Compared by identity alone: `merge_values` compares the values themselves, and only those that are left.
    changed = [key for key, value in right.raw_items() if base.raw(key, DELETE) is not value]
    changed += [key for key in base if key not in right]
    for key in changed:
        left_value = left.raw(key, DELETE)
        value = merge_values(base.raw(key, DELETE), left_value, right.raw(key, DELETE), (*path, key), resolve)
        if value is not left_value:
            merged = merged.discard(key) if value is DELETE else merged.set(key, value)
    return merged


# --- merge policies


@dataclass(frozen=True, slots=True)
class Policy:
    """A named merge policy. Call it with a `Conflict` to get the value to keep.

    Attributes:
        name: its name in records and errors.
        decide: the function that decides.
        built_in: whether `decide` may get frozen values; a user's function gets plain copies.

    Example:
        >>> last_write_wins(Conflict(("n",), 0, 1, 2))
        2
        >>> Policy("sum", lambda conflict: conflict.left + conflict.right)(
        ...     Conflict(("n",), 0, 1, 2))
        3
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


# Functions of this module: two objects of `attrgetter` would not be equal, and a graph is compared after it was copied.
def _last(conflict: Conflict) -> Any:
    return conflict.right


def _first(conflict: Conflict) -> Any:
    return conflict.left


def _combine(conflict: Conflict) -> Any:
    """The base's items that both sides kept, then the items that each side added; the right value if a side is no list.

    Lists are merged as multisets: an item of the base is kept as often as base, left and right all have it.
    """
    left, right = conflict.left, conflict.right
    if not (isinstance(left, (list, FrozenList)) and isinstance(right, (list, FrozenList))):
        return right
    base = conflict.base if isinstance(conflict.base, (list, FrozenList)) else []
    in_base, in_left, in_right = [Counter(map(_ItemKey, items)) for items in (base, left, right)]
    kept = _chosen(base, lambda key, number: number <= min(in_left[key], in_right[key]))
    added = [_chosen(side, lambda key, number: number > in_base[key]) for side in (left, right)]
    return [*kept, *added[0], *added[1]]


def _chosen(items: Iterable[Any], is_kept: Callable[[_ItemKey, int], bool]) -> list[Any]:
    """The items of a list that are kept, each decided by its key and by how many of this key there were so far."""
    seen: Counter[_ItemKey] = Counter()
    found: list[Any] = []
    for item in items:
        key = _ItemKey(item)
        seen[key] += 1
        if is_kept(key, seen[key]):
            found.append(item)
    return found


class _ItemKey:
    """An item as a dictionary key, equal when `same` says so: 1, 1.0 and True differ, and lists can be keys."""

    __slots__ = ("hash", "item")

    def __init__(self, item: Any) -> None:
        self.item = item
        try:
            self.hash = hash(item)
        except TypeError:  # not hashable: `same` compares all such items of one type
            self.hash = hash(type(item))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ItemKey) and same(self.item, other.item)


# The table of built-in policies. A new one is a row here, and a row of the table in tests/test_policies.py.
raise_ = Policy("raise", _raise, built_in=True)
last_write_wins = Policy("last_write_wins", _last, built_in=True)
first_write_wins = Policy("first_write_wins", _first, built_in=True)
combine_lists = Policy("combine_lists", _combine, built_in=True)

_BUILT_IN: Mapping[str, Policy] = MappingProxyType(
    {policy.name: policy for policy in (raise_, last_write_wins, first_write_wins, combine_lists)}
)


def prefer(*nodes: str) -> Policy:
    """A policy that keeps the value of the most trusted node.

    Args:
        nodes: names of nodes, the most trusted first. If none of them wrote a side, the conflict is raised.

    Returns:
        The policy.

    Raises:
        ValueError: if no names are given.

    Example:
        >>> prefer("editor", "writer")(Conflict(("title",), "-", "A", "B", "writer",
        ...     "editor"))
        'B'
    """
    given: tuple[object, ...] = nodes
    if not given or not all(isinstance(node, str) and node for node in given):
        raise ValueError(
            "prefer() needs names of nodes, the most trusted first, for example prefer('editor', 'writer')"
        )
    return Policy(f"prefer({', '.join(map(repr, nodes))})", _Prefer(nodes), built_in=True)


@dataclass(frozen=True, slots=True)
class _Prefer:
    """The function of a `prefer` policy: a class, since a closure could not be pickled."""

    nodes: tuple[str, ...]

    def __call__(self, conflict: Conflict) -> Any:
        for node in self.nodes:
            if conflict.left_author == node:
                return conflict.left
            if conflict.right_author == node:
                return conflict.right
        return _raise(conflict)


def policy_of(spec: object) -> Policy:
    """The policy for a name, a policy or a function.

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
        if spec in _BUILT_IN:
            return _BUILT_IN[spec]
        raise ValueError(f"unknown merge policy {spec!r}.{suggestion(spec, _BUILT_IN)} {_known_policies()}")
    if spec is prefer:
        raise ValueError("prefer takes the names of nodes and returns a policy: write prefer('editor', 'writer')")
    if inspect.iscoroutinefunction(spec):
        raise ValueError(
            f"merge policy {spec.__name__!r} is async, and a join cannot await: make it a plain function, and await in "
            "a node before the join"
        )
    if not isinstance(spec, type) and callable(spec):
        _check_arity(spec)
        return Policy(str(getattr(spec, "__name__", type(spec).__name__)), spec)
    raise ValueError(f"{brief(spec)} is no merge policy. {_known_policies()}")


def _known_policies() -> str:
    names = ", ".join(repr(name) for name in _BUILT_IN)
    return f"Known policies: {names}, prefer(*nodes), or a function that takes a Conflict and returns a value."


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


def resolve_conflict(policy: Policy, conflict: Conflict, show_value: ShowPath = show_brief) -> Any:
    """Decides a conflict of frozen values by a policy.

    Args:
        policy: the policy. A user's function gets plain copies of the values.
        conflict: the conflict, with frozen values.
        show_value: how the error shows them if the policy raises.

    Returns:
        The value to keep, frozen, or `DELETE`. An answer that equals a side is that side's value itself.

    Raises:
        MergeConflictError: if the policy is to raise.

    Example:
        >>> from dspyer.values.freezing import freeze
        >>> resolve_conflict(combine_lists, Conflict(("tags",), freeze(["a"]),
        ...     freeze(["a", "b"]), freeze(["a", "c"])))
        FrozenList(['a', 'b', 'c'])
    """
    given = [conflict.base, conflict.left, conflict.right]
    base, left, right = given if policy.built_in else map(thaw, given)
    argument = Conflict(conflict.path, base, left, right, conflict.left_author, conflict.right_author, show_value)
    answer = policy(argument)
    answer = answer if answer is DELETE else freeze(answer, conflict.path)
    # A side's own value keeps what it shares with other states, and lets records say which side won.
    if same(answer, conflict.right):
        return conflict.right
    return conflict.left if same(answer, conflict.left) else answer


# --- which policy holds at which path


class _Rule(NamedTuple):
    pattern: Pattern
    policy: Policy


@dataclass(frozen=True, slots=True)
class Policies:
    """The merge policies by path. Make one with `Policies.of`.

    Attributes:
        rules: the patterns with their policies; the first that holds at a path decides there. A user chose each.
        default: the policy at paths that no pattern matches.
        show_value: how errors show the values of a conflict.

    Example:
        >>> policies = Policies.of({"draft.*": "first_write_wins",
        ...     "tags": "combine_lists"})
        >>> (policies.policy_for(("draft", "title")),
        ...     policies.policy_for(("tags",)), policies.policy_for(("other",)))
        (first_write_wins, combine_lists, raise)
    """

    rules: tuple[_Rule, ...] = ()
    default: Policy = raise_
    show_value: ShowPath = field(default=show_brief, repr=False, compare=False)

    @classmethod
    def of(cls, spec: object = None, otherwise: Policies | None = None) -> Policies:
        """Reads the value of `merge=` or `policy=`.

        Args:
            spec: a name, a policy or a function for every path, or a dict from path pattern to one of these. In a
                pattern dots separate segments, `*` is any one segment, `**` any number; a tuple is a literal
                path. One that ends with a key holds below that key too. Of several, the one with the longest literal
                prefix holds.
            otherwise: the table that decides at paths that no pattern matches; None for one that raises.

        Returns:
            The table.

        Raises:
            ValueError: for an unknown policy or a malformed pattern.

        Example:
            >>> Policies.of("combine_lists").policy_for(("tags",))
            combine_lists
        """
        if isinstance(spec, Policies):
            return spec
        rest = otherwise or cls()
        if spec is None:
            return rest
        given = spec if isinstance(spec, Mapping) else {MANY: spec}
        rules = [_Rule(Pattern.of(pattern), policy_of(policy)) for pattern, policy in given.items()]
        rules.sort(key=lambda rule: rule.pattern.rank, reverse=True)  # stable: of equal ranks the first declared holds
        # Behind a policy for every path the rules of the other table would never be asked.
        below = rest.rules if given is spec else ()
        return cls((*rules, *below), rest.default, rest.show_value)

    def preferred(self) -> tuple[str, ...]:
        """The nodes that `prefer` policies of the table name.

        Example:
            >>> Policies.of({"title": prefer("editor", "writer"),
            ...     "tags": "combine_lists"}).preferred()
            ('editor', 'writer')
            >>> Policies.of(prefer("judge")).preferred()
            ('judge',)
        """
        found = [rule.policy.decide for rule in self.rules] + [self.default.decide]
        return tuple(dict.fromkeys(name for decide in found if isinstance(decide, _Prefer) for name in decide.nodes))

    def policy_for(self, path: KeyPath) -> Policy:
        """The policy that holds at a path.

        Args:
            path: keys from the state down to a value.

        Example:
            >>> policies = Policies.of({"draft": "first_write_wins"})
            >>> policies.policy_for(("draft", "title")), policies.policy_for(("title",))
            (first_write_wins, raise)
        """
        for rule in self.rules:
            if rule.pattern.holds_at(path):
                return rule.policy
        return self.default

    def decider_for(self, path: KeyPath) -> tuple[str, Callable[[Conflict], Any]]:
        """The name of the policy that holds at a path, and the function that decides a conflict of frozen values.

        Args:
            path: keys from the state down to a value.

        Example:
            >>> name, decide = Policies.of("last_write_wins").decider_for(("n",))
            >>> name, decide(Conflict(("n",), 0, 1, 2))
            ('last_write_wins', 2)
        """
        policy = self.policy_for(path)
        return policy.name, partial(resolve_conflict, policy, show_value=self.show_value)

    def covers(self, field: str) -> bool:
        """Return whether a user chose the policy of a field, or of a path below it.

        Args:
            field: name of the field.

        Example:
            >>> policies = Policies.of({"draft.title": "raise"})
            >>> policies.covers("draft"), policies.covers("tags")
            (True, False)
        """
        return any(rule.pattern.covers((field,)) for rule in self.rules)

    def resolve(self, path: KeyPath, base: Any, left: Any, right: Any) -> Any:
        """The value to keep of two sides that have no names, as `merge_values` asks.

        Example:
            >>> Policies.of("last_write_wins").resolve(("title",), "-", "A", "B")
            'B'
        """
        return self.decider_for(path)[1](Conflict(path, base, left, right))


# --- patterns of paths

ONE, MANY = "*", "**"  # the wildcards: any one key, any number of keys


class Pattern(NamedTuple):
    """A pattern of paths, such as `draft.*`, `**.title` or `("a.b", "c")`.

    Attributes:
        segments: keys, `*` for any one key, `**` for any number of keys.
        literal: whether the segments are a path without wildcards.

    Example:
        >>> (Pattern.of("draft.*").matches(("draft", "title")),
        ...     Pattern.of("draft.*").matches(("draft",)))
        (True, False)
    """

    segments: KeyPath
    literal: bool = False

    @classmethod
    def of(cls, spec: object) -> Pattern:
        """Reads a pattern.

        Args:
            spec: text with dots between segments, or a tuple of keys, which is a literal path.

        Returns:
            The pattern.

        Raises:
            ValueError: if it is malformed.

        Example:
            >>> Pattern.of("**.title")
            Pattern(segments=('**', 'title'), literal=False)
        """
        if isinstance(spec, tuple) and spec:
            return cls(spec, True)
        if not isinstance(spec, str):
            raise ValueError(  # noqa: TRY004  # a ValueError, as for every other mistake in a policy table
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
        """Return whether the pattern matches a path. Keys that are no strings are compared as text.

        Args:
            path: keys from the state down to a value.

        Example:
            >>> Pattern.of("notes.**.text").matches(("notes", "a", 1, "text"))
            True
        """
        if self.literal:
            return self.segments == path
        return _expression(self.segments, False).fullmatch(_text_of(path)) is not None

    def holds_at(self, path: KeyPath) -> bool:
        """Return whether a merge policy of the pattern holds at a path: it matches it, or ends with a key above it.

        Args:
            path: keys from the state down to a value.

        Example:
            >>> (Pattern.of("code").holds_at(("code", "a.py")),
            ...     Pattern.of("*").holds_at(("code", "a.py")))
            (True, False)
        """
        ends_with_key = self.literal or self.segments[-1] not in (ONE, MANY)
        return any(self.matches(path[:end]) for end in range(1 if ends_with_key else len(path), len(path) + 1))

    def covers(self, path: KeyPath) -> bool:
        """Return whether the pattern matches a path, or can match one below it.

        Args:
            path: keys from the state down to a value.

        Example:
            >>> Pattern.of("draft.title").covers(("draft",))
            True
        """
        if self.literal:
            return self.segments[: len(path)] == path
        return _expression(self.segments, True).fullmatch(_text_of(path)) is not None

    @property
    def field(self) -> Any:
        """The field in which all paths lie that the pattern matches: its first key; None if they may lie in any."""
        first = self.segments[0]
        return first if self.literal or first not in (ONE, MANY) else None

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The order between patterns: longest literal prefix, then more literals, fewer `**`, more segments."""
        if self.literal:
            return len(self.segments), len(self.segments), 1, len(self.segments)  # 1 ranks above any wildcards
        wild = [segment in (ONE, MANY) for segment in self.segments]
        prefix = wild.index(True) if True in wild else len(wild)
        return prefix, len(wild) - sum(wild), -self.segments.count(MANY), len(wild)


_WILDCARDS = {ONE: "[^\0]*\0", MANY: "(?:[^\0]*\0)*"}


def _text_of(path: Iterable[Any]) -> str:
    """A path as text for `_expression`: each key ends with a character that is in none."""
    return "".join([str(key).replace("\0", "\1") + "\0" for key in path])


@lru_cache(maxsize=1024)
def _expression(segments: KeyPath, below: bool) -> re.Pattern[str]:
    """The expression for the paths that some segments match; with `below`, for all that begin such a path."""
    parts = [_WILDCARDS.get(segment) or re.escape(_text_of([segment])) for segment in segments]
    return re.compile("".join([f"(?:{part}" for part in parts]) + ")?" * len(parts) if below else "".join(parts))
