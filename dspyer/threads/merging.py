"""Merging what two threads, or two runs, have come to: each commit that only one side has is applied once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from dspyer.events import Commit, MergedConflict
from dspyer.patch import DELETE, Replace, diff_value, resets, single
from dspyer.persistence.history import History
from dspyer.persistence.rows import CommitContent, NewRow, RowKind, digest, end_row, manual_commit_row
from dspyer.policies import Policies
from dspyer.reducers import Updates
from dspyer.scheduler.join import ConflictRaisedError, Deciding, Join, value_under
from dspyer.scheduler.lineage import Resolution, lineage
from dspyer.scheduler.topology import END
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import same


class Met(NamedTuple):
    """What two sides make together.

    Attributes:
        patch: from the state of the left side to the merged one: updates of fields with a reducer as they were, of
            the others the net change.
        state: the merged state.
        conflicts: what the merge policies have decided.
        resolutions: the same, as a log keeps it.
    """

    patch: dict[str, Any]
    state: ImmutableState
    conflicts: tuple[MergedConflict, ...] = ()
    resolutions: tuple[Resolution, ...] = ()


def common(history: History, left: int | None, right: int | None) -> tuple[bool, bool]:
    """Whether two commits have any commit in common behind them, and whether the left one has the right one."""
    ours = set(lineage(history.log, [] if left is None else [left]))
    theirs = lineage(history.log, [] if right is None else [right])
    return any(place in ours for place in theirs), right is None or right in ours


def meet(history: History, left: int, right: int, name: str, deciding: Deciding) -> Met:
    """Merges two commits as a join merges branches: by what only one of them has behind it.

    Args:
        history: has read what is behind both.
        left: the place of one.
        right: the place of the other; the left one does not have it, and they have commits in common.
        name: what conflicts call the place where they meet.
        deciding: what decides conflicts.

    Raises:
        MergeConflictError: if a policy raises.
    """
    schema, log = history.reader.schema, history.log
    join = Join(log, name, schema, deciding, len(log))
    try:
        merged = join.merge([left, right], [log[left].state, log[right].state])
        join.check_whole(merged)
    except ConflictRaisedError as raised:
        raise raised.error from None
    updates: dict[str, list[Any]] = {}
    for item in join.own:
        if item.mask == _RIGHT_ONLY:
            for field, update in log[item.place].commit.patch.items():
                updates.setdefault(field, []).append(update)
    patch = _between(schema, log[left].state, merged.state, updates)
    return Met(patch, schema.replay(log[left].state, patch), merged.conflicts, merged.resolutions)


def meet_from(
    base: Mapping[str, Any], schema: Schema, left: ImmutableState, right: ImmutableState, policy: Policies
) -> Met:
    """Merges two states that come from a third one, where no commit says so.

    Raises:
        MergeConflictError: if a policy raises.
    """
    merged = left.merge(right, policy, base=base)
    for name in merged:
        value, sides = merged.raw(name), [left.raw(name, DELETE), right.raw(name, DELETE)]
        if schema.reducer(name) is None and not any(value is side for side in sides):
            merged = merged.set(name, schema.joined(name, value, sides, merged))
    patch = _between(schema, left, merged, {})
    schema.check_whole("merge", left, patch, merged)
    return Met(patch, schema.replay(left, patch))


def merge_rows(met: Met, name: str, version: int) -> list[NewRow]:
    """The rows of the run that is nothing but the merge.

    Args:
        met: what it came to.
        name: where it was merged: the other thread.
        version: its version.
    """
    commit = Commit("trunk:0", version, f"join:{name}", (), 1, 0, met.patch, (), route=(END,), started=time.time())
    written = CommitContent(met.patch, resolutions=met.resolutions)
    return [manual_commit_row(RowKind.MERGE, commit, written), end_row("completed", digest(met.state), ())]


_RIGHT_ONLY = 0b10


def _between(
    schema: Schema, left: ImmutableState, merged: ImmutableState, updates: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """The patch from one state to another, of the updates that lead there where they do."""
    patch: dict[str, Any] = {}
    for field in dict.fromkeys((*left, *merged)):
        old, new = left.raw(field, DELETE), merged.raw(field, DELETE)
        if same(old, new):
            continue
        if schema.reducer(field) is None:
            patch[field] = diff_value(old, new)
            continue
        found = updates.get(field, [])
        for update in (Updates(*found), _by_key(schema, field, found, new)):
            if update is not None and found and same(schema.fold(field, old, update), new):
                patch[field] = update
                break
        else:
            patch[field] = DELETE if new is DELETE else Replace(new)
    return patch


def _by_key(schema: Schema, field: str, updates: list[Any], new: Any) -> Any:
    """One update that puts what was kept under each key that some updates write; None where there is none."""
    reducer = schema.reducer(field)
    if reducer is None or reducer.keyed is None or new is DELETE:
        return None
    assert reducer.parts is not None  # what has keys has parts
    if any(map(resets, updates)):
        return None
    keys = dict.fromkeys(key for update in updates for one in single(update) for key, _ in reducer.parts(one))
    kept = {key: value_under(reducer.keyed, new, key) for key in keys}
    return None if DELETE in kept.values() else reducer.keyed.made(kept)
