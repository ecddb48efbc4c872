"""The three-way merge of frozen values: what both sides changed since their base, and nothing else.

Nothing here knows of graphs or policies. A conflict is handed to `resolve`, which says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dspyer.patch import DELETE
from dspyer.values._dicts import FrozenDict
from dspyer.values._same import same

KeyPath = tuple[Any, ...]
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
        >>> from dspyer.values._freezing import freeze
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
