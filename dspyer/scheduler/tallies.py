"""What a branch knows of its lineage without a look at it: kept with its counts, and added up where branches join."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from dspyer.events import Commit
from dspyer.values.persistent import PersistentMap

LineageCounts = PersistentMap[Any, Any]
"""By node and by branch path the number of their commits; and the keys of this module."""

CALLS = ("calls", "tool_calls")
REASON = ("reason",)
NONE = (0, 0)


def calls_of(kind: str, node: str) -> tuple[str, str]:
    """The key of how often a node has called predictors (`"calls"`) or tools (`"tool_calls"`)."""
    return kind, node


def wrote(field: str) -> tuple[str, str]:
    """The key of whether a field that may be None was written by a commit that is not the first."""
    return "wrote", field


def noted(commit: Commit, nullable: AbstractSet[str], before: Callable[[Any, int], Any]) -> dict[Any, Any]:
    """What a commit adds to a tally beside its counts.

    Args:
        commit: the commit.
        nullable: the fields that are None as long as nothing writes them.
        before: gives what a key had before, `(key, default)`.
    """
    found: dict[Any, Any] = {}
    if commit.calls == NONE and commit.reason is None and not nullable:
        return found
    for kind, count in zip(CALLS, commit.calls, strict=True):
        if count:
            key = calls_of(kind, commit.node)
            found[key] = before(key, 0) + count
    if commit.reason is not None:
        found[REASON] = commit.reason
    if commit.step and nullable and not nullable.isdisjoint(commit.patch):
        found |= {wrote(field): True for field in nullable if field in commit.patch}
    return found
