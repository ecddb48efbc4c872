"""Merge one thread into another: a three-way merge of the commits that only one of them has.

The rule is that of a join of branches (`scheduler.join`): each commit that only one side has is applied once, reducers
fold, a field that one side changed is taken, and a field that both changed is a conflict for the merge policies. The
merge commit has the heads of both threads as parents, so that a second merge finds nothing new, as in Git. Threads
without a common commit are merged by states, if the caller names the state that both come from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from dspyer.errors import ThreadError
from dspyer.events import Commit, MergedConflict
from dspyer.graph.declarations import checked_policies
from dspyer.ids import FIRST, new_run_id
from dspyer.patch import DELETE, Replace, diff
from dspyer.persistence.history import History
from dspyer.persistence.rows import CommitContent, RowKind, frozen_conflicts, manual_commit_row
from dspyer.persistence.time_travel import HistoryCache, Moment, ThreadReader
from dspyer.policies import Conflict, Policies
from dspyer.runtime.session_events import log_conflict
from dspyer.scheduler.join import Join, JoinFailedError, PolicyLookup
from dspyer.scheduler.lineage import ancestry
from dspyer.scheduler.topology import END
from dspyer.schema.schema import NOTHING_MADE, Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, RunRow, Store, ThreadRow
from dspyer.threads.changes import ManualCommit, completed, write_manual_commit
from dspyer.threads.start import RunStarter, ThreadHead
from dspyer.values.refusals import KeyPath


class MergeResult(NamedTuple):
    """The merge of two states.

    Attributes:
        patch: of the merge commit: the resolved values, or all that differs if the sides have no commit in common.
        state: the merged state.
        conflicts: the decisions of the merge policies.
        winners: for each resolved path, the global id of the commit whose value was kept; `FIRST` for the merge.
    """

    patch: Mapping[str, Any]
    state: ImmutableState
    conflicts: tuple[MergedConflict, ...] = ()
    winners: Mapping[KeyPath, str] = NOTHING_MADE


class ThreadMerger:
    """Merges other threads, and runs that own none, into one thread."""

    def __init__(self, starter: RunStarter, thread_reader: ThreadReader) -> None:
        self._starter = starter
        self._thread_reader = thread_reader

    def merge_thread(self, other: RunStarter, base: Moment | None, policy: object) -> bool:
        """Merge another thread of the same store; return whether it had anything new.

        `base` is the state that both threads come from, for threads that have no commit in common. `policy` decides
        conflicts; None for the merge policies of the graph.
        """
        starter, topology = self._starter, self._starter.graph.topology
        policies = checked_policies("policy", policy, topology.schema, topology.policies)
        head, other_head = starter.load_head_without_owner(), other.load_head_without_owner()
        for one in (head, other_head):
            if one.open:
                raise one.open_error()
            starter.compatibility.check_graph(one.last_run)
        if other_head.row.head is None:
            return False
        if head.row.head is None:
            raise ThreadError(
                f"thread {starter.thread!r} has no run yet: make it with other.copy(to={starter.thread!r})"
            )
        if base is None:
            merged = self.merge_commits(head.row, other_head.row, other.thread, policies)
        else:
            merged = self._merge_states(base, head, other_head, other.thread, policies)
        if merged is None:
            return False
        self.log_conflicts(merged)
        heads = (head.row.head, other_head.row.head)
        commit = self.merge_commit(head, heads, merged, other.thread)
        write_manual_commit(starter.store, head.row, commit)
        return True

    def merge_commits(self, left: ThreadRow, right: ThreadRow, name: str, policies: Policies) -> MergeResult | None:
        """The merge of two threads that have commits in common; None if the left one has all of the right one's.

        The right one need not be stored under its name: its head is enough. `name` is for errors and conflicts.
        """
        history, ours, theirs = _histories(self._thread_reader.cache, left, right)
        related, contained = common(history, ours, theirs)
        if contained:
            return None
        if not related or ours is None or theirs is None:
            raise ThreadError(
                f"threads {self._starter.thread!r} and {name!r} have no commit in common, so that no common state "
                "shows what each has changed: pass the state that both come from with base="
            )
        return merge_lineages(history, ours, theirs, name, self._deciding(policies))

    def _merge_states(
        self, base: Moment, ours: ThreadHead, theirs: ThreadHead, name: str, policies: Policies
    ) -> MergeResult | None:
        """The merge of two threads without a common commit, by the state that both come from."""
        related, contained = common(*_histories(self._thread_reader.cache, ours.row, theirs.row))
        if contained:
            return None
        if related:
            raise ThreadError(
                f"threads {self._starter.thread!r} and {name!r} have commits in common: merge them without base="
            )
        schema = self._starter.graph.topology.schema
        return merge_states(self._thread_reader.state_of(base), schema, ours.state, theirs.state, policies)

    def merge_commit(
        self, head: ThreadHead, heads: tuple[Point, Point], merged: MergeResult, name: str
    ) -> ManualCommit:
        """The merge commit, in a run of its own; its version counts the commits of both sides."""
        starter = self._starter
        version = head.next_version + self._thread_reader.cache.history.count_settled_not_in(*heads)
        header = starter.run_header(head, version, starter.next_label(head))
        commit = Commit(FIRST, version, f"join:{name}", (), 1, 0, merged.patch, (), route=(END,), started=time.time())
        made = starter.graph.topology.schema.made(head.state, merged.state, None)
        conflicts = frozen_conflicts(merged.conflicts)
        content = CommitContent(merged.patch, made=made, conflicts=conflicts, winners=merged.winners)
        rows = completed(starter, manual_commit_row(RowKind.MERGE, commit, content), heads, head.row.root)
        return ManualCommit(RunRow(new_run_id(), starter.thread, heads, header), rows)

    def log_conflicts(self, merged: MergeResult) -> None:
        """Log the conflicts that a policy has decided."""
        for conflict in merged.conflicts:
            if self._keeps(conflict.path[0]):
                log_conflict(conflict)

    def _deciding(self, policies: Policies) -> PolicyLookup:
        """A lookup of the policy for a path. Fields that last for one run only take the other thread's value."""

        def deciding(path: tuple[Any, ...]) -> tuple[str, Callable[[Conflict], Any]]:
            return policies.decider_for(path) if self._keeps(path[0]) else ("last_write_wins", attrgetter("right"))

        return deciding

    def _keeps(self, field: str) -> bool:
        keep = self._starter.graph.keep
        return keep is None or field in keep


def check_same_store(name: str, store: Store, other_name: str, other: Store) -> None:
    """Refuse to merge threads of different stores. Stores in memory have one address, and are the same as objects."""
    if other is not store and (other.address != store.address or store.address == ":memory:"):
        raise ThreadError(f"threads {name!r} and {other_name!r} are in different stores: export one first")


def _histories(cache: HistoryCache, left: ThreadRow, right: ThreadRow) -> tuple[History, int | None, int | None]:
    """The history of two threads, and the last commit of each that all its branches shared."""
    assert left.head is not None
    assert right.head is not None
    history = cache.extended(left, right)
    if right.root != left.root and right.root in history.roots.intersection(history.runs_behind([right.head])):
        raise ThreadError(
            f"history of thread {right.name!r} was pruned, and thread {left.name!r} has no commit where it begins: "
            f"merge {left.name!r} into {right.name!r}, or a copy of it"
        )
    return history, history.runs[left.head].trunk_index, history.runs[right.head].trunk_index


def common(history: History, left: int | None, right: int | None) -> tuple[bool, bool]:
    """Whether two commits have an ancestor in common, and whether the right one is an ancestor of the left one."""
    ours = set(ancestry(history.log, [] if left is None else [left]))
    theirs = ancestry(history.log, [] if right is None else [right])
    return any(place in ours for place in theirs), right is None or right in ours


def merge_lineages(history: History, left: int, right: int, name: str, deciding: PolicyLookup) -> MergeResult:
    """Merge two commits as a join merges branches: by the commits that only one of them descends from.

    `left` and `right` are indexes in the log of the history; they have ancestors in common, and the right one is no
    ancestor of the left one. `name` is that of the join in conflicts. Raises `MergeConflictError` if a policy does.
    """
    log = history.log
    join = Join(log, name, history.reader.schema, deciding, len(log))
    try:
        merged = join.merge([left, right], [log[left].state, log[right].state])
        join.check_state_limit(merged)
    except JoinFailedError as raised:
        raise raised.error from None
    ids = {path: FIRST if at == len(log) else log[at].commit.id for path, at in merged.winners.items()}
    return MergeResult(merged.patch, merged.state, merged.conflicts, ids)


def merge_states(
    base: Mapping[str, Any], schema: Schema, left: ImmutableState, right: ImmutableState, policy: Policies
) -> MergeResult:
    """Merge two states that come from a third one, `base`, without commits; a policy may raise `MergeConflictError`."""
    merged = left.merge(right, policy, base=base)
    for name in merged:
        value, sides = merged.raw(name), [left.raw(name, DELETE), right.raw(name, DELETE)]
        if schema.reducer(name) is None and not any(value is side for side in sides):
            merged = merged.set(name, schema.validate_joined(name, value, sides, merged))
    patch = _patch_between(schema, left, merged)
    schema.check_state_limit("merge", left, patch, merged)
    return MergeResult(patch, merged)


def _patch_between(schema: Schema, left: ImmutableState, merged: ImmutableState) -> dict[str, Any]:
    """A patch from one state to another. What reducers fold is replaced: no update of either side leads there."""
    patch = diff(left, merged)
    for field in patch:
        if schema.reducer(field) is not None and patch[field] is not DELETE:
            patch[field] = Replace(merged.raw(field))
    return patch
