"""Change a thread outside of a run: copy it, rerun it from a commit, commit a patch manually.

Copies and reruns begin at a `HistoryPrefix`, the history up to a given commit. Nothing is rewritten: a rerun, and a
manual commit in an open run, are a new part of the run, whose header names the rows of the parts before that it
excludes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from dspyer.errors import NodeOutputError, ThreadError, brief, suggestion
from dspyer.events import Commit, MergedConflict
from dspyer.graph.spec import checked_policies
from dspyer.ids import FIRST, execution_id, full_id, new_run_id, outermost_execution
from dspyer.log.history import CommitListing, History
from dspyer.log.journal import Journal
from dspyer.log.lm_calls import run_usage, totals_at
from dspyer.log.reader import (
    RowRange,
    RunRows,
    read_run,
    read_runs,
    row_ranges,
    rows_left_out,
    without_rows,
)
from dspyer.log.replay import update_commit
from dspyer.log.rows import (
    COMMITS,
    NO_BLOBS,
    CommitContent,
    CommitRow,
    DraftRow,
    ResumeRow,
    RowKind,
    end_row,
    frozen_conflicts,
    manual_commit_row,
    open_row,
)
from dspyer.log.time_travel import HistoryCache, Moment, ThreadReader
from dspyer.patch import DELETE, Replace, diff
from dspyer.policies import Conflict, Policies
from dspyer.runtime.session import log_conflict
from dspyer.scheduler.join import Join, JoinFailedError, PolicyLookup
from dspyer.scheduler.lineage import UPDATE_AUTHOR, ancestry
from dspyer.scheduler.schedule import Branch, active_branches
from dspyer.scheduler.topology import END, START
from dspyer.schema.schema import NOTHING_MADE, Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, Point, RunRow, Snapshot, Store, ThreadRow
from dspyer.threads.start import FirstWrite, RunStarter, ThreadHead, names_of_next
from dspyer.values.scalars import KeyPath


def copy_thread(
    source: RunStarter,
    thread_reader: ThreadReader,
    target: RunStarter,
    at: int | str | None,
    patch: Mapping[str, Any] | None,
) -> None:
    """Create the thread of `target` with the history of `source` up to the commit `at`, or to its head for None.

    No row is copied: the head of the new thread is a row of the old one. Only with a `patch`, or `at` a commit inside
    of a run, the new thread gets a run or a part of a run of its own, with the manual commit or the end.
    """
    store, row = source.store, source.store.thread(source.thread)
    if store.thread(target.thread) is not None:
        raise ThreadError(f"there is a thread {target.thread!r} already: take another name, or use thread.merge(...)")
    if row is None or row.head is None:
        raise ThreadError(f"thread {source.thread!r} has no run yet: there is nothing to copy")
    if at is None and patch is None:
        store.write(Change(target.thread, 0, head=row.head, root=row.root, flush=True))
        _check_still_there(source, target, row)
        return
    new_row = ThreadRow(target.thread, None, 0, root=row.root)
    prefix = prefix_at_head(store, row.head) if at is None else prefix_at(store, thread_reader.commits_around(at), at)
    node = None if patch is None else _only_made_as(source, prefix)
    if patch is not None and (node is not None or not prefix.unfinished):
        head, parents = target.head_at(new_row, prefix.last_row), (prefix.last_row,)
        write_manual_commit(store, new_row, commit_alone(target, head, parents, patch, node))
    elif prefix.unfinished:
        new_head = ThreadHead(new_row, None, ImmutableState(), 0)
        part = target.next_part(new_head, prefix.run.run, prefix.last_row, prefix.excluded)
        rows = [end_in_open_run(source, prefix, "stopped")]
        if patch is not None:
            rows = commit_in_open_run(target, thread_reader.cache.listed, prefix, part.header["label"], patch)
        write_manual_commit(store, new_row, ManualCommit(part, rows))
    else:
        store.write(Change(target.thread, 0, head=prefix.last_row, root=row.root, flush=True))
    _check_still_there(source, target, row)


def _check_still_there(source: RunStarter, target: RunStarter, before: ThreadRow) -> None:
    """Takes a copy back if its history was pruned or deleted before the copy was there, whose head keeps it from that.

    Raises:
        ThreadError: for such a copy.
    """
    now = source.store.thread(source.thread)
    if now is None or now.root != before.root:
        source.store.delete([target.thread])
        what = "deleted" if now is None else "pruned"
        raise ThreadError(f"thread {source.thread!r} was {what} while it was copied: nothing was copied, copy it again")


def update_thread(
    starter: RunStarter, thread_reader: ThreadReader, change: Mapping[str, Any] | None, as_node: str | None
) -> None:
    """Commit a patch manually; None changes nothing, as where a node returns it."""
    patch = {} if change is None else change
    head = starter.load_head_without_owner()
    row, last_row = head.row, head.row.head
    parents = () if last_row is None else (last_row,)
    prefix = None if last_row is None or not head.open else prefix_at_head(starter.store, last_row)
    node = None if prefix is None else _only_made_as(starter, prefix)
    if prefix is not None and as_node is None and node is None:
        rows = commit_in_open_run(starter, thread_reader.cache.listed, prefix, starter.next_label(head), patch)
        commit = ManualCommit(starter.next_part(head, prefix.run.run, prefix.last_row), rows)
    else:
        if prefix is not None and node is None:
            only_branch(starter, thread_reader.cache.listed, prefix)
        commit = commit_alone(starter, head, parents, patch, as_node or node)
    write_manual_commit(starter.store, row, commit)


def first_write_of_rerun(
    starter: RunStarter, thread_reader: ThreadReader, version: int | str, head: ThreadHead
) -> FirstWrite:
    """A run that continues from an earlier commit, for `RunStarter.acquire`."""
    prefix = prefix_at(starter.store, thread_reader.commits_around(version), version)
    if not prefix.unfinished:
        raise ThreadError(
            f"version {version!r} of thread {starter.thread!r} is the end of a run, nothing comes after it: to repeat "
            "a run with its inputs, rerun from its START; to continue differently, thread.copy(to=..., at=...)"
        )
    records = starter.read_records(prefix.run)
    records.resumes = 0
    starter.count_before(records, prefix.run)
    starter.compatibility.check_graph(prefix.run)
    _, names = starter.compatibility.allowed(prefix.run, True)  # a rerun is one of the graph as it is now
    run_start, migration = starter.rebuild_adapted(prefix.run, records, adapt=names is not None)
    part = starter.next_part(head, prefix.run.run, prefix.last_row, prefix.excluded, names)
    run_start = run_start._replace(run_id=part.id, label=(part.header["label"],))
    blob = None if names is None else starter.compatibility.graph_blobs
    rows = [ResumeRow(0, tuple(names_of_next(run_start.run))).row(blob or NO_BLOBS), *migration]
    return FirstWrite(part, 0, rows, run_start, records)


# --- history up to a commit


class HistoryPrefix(NamedTuple):
    """The history of a thread up to one of its commits.

    Attributes:
        run: the run of the commit, with the rows that belong to the prefix. For an execution without a commit in the
            prefix these are none: no answers, effects or items.
        last_row: the last row of the prefix.
        excluded: spans of rows before it that do not belong to the prefix: those of branches that come later.
        number: the index of the commit among those of the thread; -1 for the last one.
        unfinished: whether the run continues after the commit: nodes are still to be called.
    """

    run: RunRows
    last_row: Point
    excluded: list[RowRange]
    number: int
    unfinished: bool


def prefix_at(store: Store, listed: CommitListing, version: int | str) -> HistoryPrefix:
    """The history up to a commit; raises `LookupError` if there is none of this version or id."""
    number = listed.index_of(version)
    run_end, place = listed.runs[number], listed.log_indexes[number]
    if run_end in listed.history.roots:  # the pruned history is one row, at which nothing is unfinished
        return HistoryPrefix(read_runs(store, [run_end], run_end)[0], run_end, [], number, False)
    whole = read_run(store, run_end)
    order = listed.history.canonical_order(run_end)
    if whole.status == "completed" and order[-1] == place:
        return HistoryPrefix(whole, run_end, [], number, False)
    # Rows are in the order of time, commits in canonical order: of a fork, rows of branches that come later in
    # canonical order may lie before the commit, and are excluded.
    kept = set(order[: order.index(place) + 1])
    commits_of_run = listed.history.runs[run_end].log_indexes
    rows = {row for row, commit in zip(_commit_rows(whole), commits_of_run, strict=True) if commit in kept}
    last, excluded = rows_left_out(whole.rows, rows)
    left, indexes = without_rows(whole.rows[: last + 1], excluded)
    points = tuple([whole.points[index] for index in indexes])
    if points[-1].run != run_end.run:
        # The prefix ends in an earlier part of the run. A later part has excluded rows of that one, which `whole` does
        # not show: they have to be excluded again by their numbers in the part where the prefix ends.
        kept_points = set(points)
        of_part = read_run(store, points[-1]).points
        excluded = row_ranges(index for index, point in enumerate(of_part) if point not in kept_points)
    return HistoryPrefix(whole._replace(rows=tuple(left), points=points), points[-1], excluded, number, True)


def prefix_at_head(store: Store, head: Point) -> HistoryPrefix:
    """The whole history, with the answers, effects and items of executions that have no commit yet."""
    whole = read_run(store, head)
    return HistoryPrefix(whole, head, [], -1, whole.status != "completed")


def _commit_rows(run: RunRows) -> list[int]:
    """The indexes of the rows of commits; for a run without any, that of its OPEN row."""
    rows = list(enumerate(run.rows))
    commits = [index for index, row in rows if row.kind in COMMITS and not CommitRow.of(row).scope]
    return commits or [index for index, row in rows if row.kind == RowKind.OPEN]


# --- manual commits


class ManualCommit(NamedTuple):
    """A commit that no node has made: the run, or the part of one, that holds it, and its rows."""

    run: RunRow
    rows: list[DraftRow]


def _only_made_as(starter: RunStarter, prefix: HistoryPrefix) -> str | None:
    """The node as which the only commit of an open run was made, manually; None if a node was called since."""
    opening = None if any(prefix.run.own_commits()) else starter.reader.opening(prefix.run.rows)
    return opening.node if opening is not None and opening.node != START and prefix.unfinished else None


def commit_alone(
    starter: RunStarter, head: ThreadHead, parents: tuple[Point, ...], patch: Mapping[str, Any], node: str | None
) -> ManualCommit:
    """A run of one manual commit, which continues the row in `parents`; with a node it is open."""
    if node is not None:
        return commit_as_node(starter, head, parents, patch, node)
    label = starter.next_label(head)
    update, state = _adapted_update(starter, head, patch, UPDATE_AUTHOR, full_id(label, FIRST), new_thread=not parents)
    commit = Commit(FIRST, head.next_version, UPDATE_AUTHOR, (), 1, 0, update, (), route=(END,), started=time.time())
    return one_commit_run(starter, head, label, parents, commit, state)


def one_commit_run(
    starter: RunStarter,
    head: ThreadHead | None,
    label: str,
    parents: tuple[Point, ...],
    commit: Commit,
    state: ImmutableState,
) -> ManualCommit:
    """A completed run of one manual commit, with the state after it; `head` is None for a thread without runs."""
    blob, first = starter.compatibility.graph_blobs, 0 if head is None else head.next_version
    before = ImmutableState() if head is None else head.state
    made = starter.graph.topology.schema.made(before, state, commit.patch)
    row = manual_commit_row(RowKind.UPDATE, commit, CommitContent(commit.patch, made=made), blob)
    rows = completed(starter, row, parents, None if head is None else head.row.root)
    return ManualCommit(RunRow(new_run_id(), starter.thread, parents, starter.run_header(head, first, label)), rows)


def completed(starter: RunStarter, commit: DraftRow, parents: Sequence[Point], root: Point | None) -> list[DraftRow]:
    """The rows of a completed run of one commit, which continues the rows `parents`."""
    digest = Journal(starter.store, starter.thread, 0, "", 0).digest([commit])
    before = totals_at(starter.store, parents, root)
    return [commit, end_row("completed", digest, (), steps=1, before=before)]


def commit_in_open_run(
    starter: RunStarter,
    listed: Callable[[], CommitListing],
    prefix: HistoryPrefix,
    label: str,
    patch: Mapping[str, Any],
) -> list[DraftRow]:
    """The rows of a commit in an open run, between its last commit and the node that comes next.

    Raises `ThreadError` if several branches are active (`listed` then finds the nearest versions with one), or if the
    next node has done a part of its work; `NodeOutputError` if the patch does not fit the schema.
    """
    starter.compatibility.check_graph(prefix.run)
    branch = only_branch(starter, listed, prefix)
    _check_next_node_not_started(starter, prefix, branch)
    commit = update_commit(branch, 0, UPDATE_AUTHOR, {}, time.time())
    update, after = _validated(starter, branch.state, patch, UPDATE_AUTHOR, full_id(label, commit.id))
    made = starter.graph.topology.schema.made(branch.state, after, update)
    return [
        manual_commit_row(RowKind.UPDATE, replace(commit, patch=update), CommitContent(update, made=made)),
        end_in_open_run(starter, prefix, prefix.run.status or "stopped", more=1),
    ]


def end_in_open_run(starter: RunStarter, prefix: HistoryPrefix, status: str, more: int = 0) -> DraftRow:
    """The row of the end of an open run after a prefix of it and so many commits more: it has used what that has."""
    run = prefix.run
    row = starter.store.thread(starter.thread)
    before = totals_at(starter.store, run.parents, None if row is None else row.root)
    return end_row(status, None, (), run_usage(run.rows), sum(1 for _ in run.own_commits()) + more, before)


def commit_as_node(
    starter: RunStarter, head: ThreadHead, parents: tuple[Point, ...], patch: Mapping[str, Any], node: str
) -> ManualCommit:
    """An open run whose first commit has a node as its author: a resume continues along the edges of that node.

    Raises `ThreadError` if there is no such node, or it has no edge or router; `NodeOutputError` if the patch does not
    fit the schema.
    """
    graph = starter.graph
    if node not in graph.nodes:
        hint, known = suggestion(node, graph.nodes), ", ".join(map(repr, graph.nodes))
        raise ThreadError(f"as_node={node!r} is no node of graph {graph.name!r}.{hint} Nodes: {known}")
    if not graph.exits.get(node):
        raise ThreadError(
            f"no edge leads on from node {node!r}: it chooses its targets itself, with Command(goto=...), and cannot "
            "be asked. Pass the node before it, or call thread.update(...) without as_node"
        )
    label = starter.next_label(head)
    update, state = _adapted_update(starter, head, patch, node, full_id(label, FIRST), new_thread=not parents)
    made = graph.topology.schema.made(head.state, state, update)
    blob = starter.compatibility.graph_blobs
    before = totals_at(starter.store, parents, head.row.root)
    end = end_row("stopped", None, (), steps=1, before=before)
    rows = [open_row(node, CommitContent(update, made=made), time.time(), blob), end]
    run = RunRow(new_run_id(), starter.thread, parents, starter.run_header(head, head.next_version, label))
    return ManualCommit(run, rows)


def write_manual_commit(
    store: Store, thread: ThreadRow, commit: ManualCommit, snapshot: Snapshot | None = None
) -> None:
    """Make a manual commit the head of a thread, which then has no owner; refused if another has written meanwhile."""
    run = commit.run
    rows = [row.numbered(seq) for seq, row in enumerate(commit.rows)]
    change = Change(
        thread.name,
        thread.epoch,
        thread.epoch + 1 if thread.epoch else None,
        lease=0.0,
        head=Point(run.id, rows[-1].seq),
        root=thread.root,
        run=run,
        rows_of=run.id,
        rows=rows,
        snapshot=snapshot,
        flush=True,
    )
    store.write(change)


def only_branch(starter: RunStarter, listed: Callable[[], CommitListing], prefix: HistoryPrefix) -> Branch:
    """The only active branch of an open run.

    Raises `ThreadError` if several branches are active, with the nearest versions at which only one was, or if the run
    has no commit yet.
    """
    run = starter.rebuild(prefix.run, starter.read_records(prefix.run)).run
    branches = active_branches(run)
    if len(branches) != 1:
        raise ThreadError(
            f"{len(branches)} branches of thread {starter.thread!r} are active there, and a manual change must be one "
            f"that all of them share. {nearest_single_branch(listed(), prefix.number)}"
        )
    (branch,) = branches
    if branch.head < 0:
        raise ThreadError(
            f"the last run of thread {starter.thread!r} has no commit yet: call thread.resume(), or start another "
            "run with thread.run(..., abandon=True)"
        )
    return branch


def nearest_single_branch(listed: CommitListing, number: int) -> str:
    """The versions nearest to a commit at which one branch was active, for an error."""
    history, number = listed.history, number % len(listed.commits)

    def has_one_branch(other: int) -> bool:
        commit = listed.commits[other]
        return commit.version is not None and history.settled[listed.log_indexes[other]] and len(commit.route) <= 1

    before = next((listed.commits[i].version for i in range(number - 1, -1, -1) if has_one_branch(i)), None)
    after = next((listed.commits[i].version for i in range(number + 1, len(listed.commits)) if has_one_branch(i)), None)
    found = [str(version) for version in (before, after) if version is not None]
    if not found:
        return "No version has one branch alone: to change the inputs, start another run with thread.run(...)"
    return f"Nearest versions with one branch: {' and '.join(found)}"


def _check_next_node_not_started(starter: RunStarter, prefix: HistoryPrefix, branch: Branch) -> None:
    """Refuse a change before a node that has used the unchanged state for items of a map or commits inside."""
    records = starter.read_records(prefix.run)
    upcoming = execution_id(branch.path, branch.counts.get(branch.path, 0))
    scopes = [CommitRow.of(row).scope for row in prefix.run.rows if row.kind in COMMITS]
    started = [*records.items, *[scope[0] for scope in scopes if scope]]
    if any(outermost_execution(name) == upcoming for name in started):
        raise ThreadError(
            f"the next node of thread {starter.thread!r} has done a part of its work already, with the state as it is. "
            "Let it finish with thread.resume(), or commit in its place with thread.update(..., as_node=...)"
        )


def _adapted_update(
    starter: RunStarter, head: ThreadHead, patch: Mapping[str, Any], author: str, commit_id: str, new_thread: bool
) -> tuple[dict[str, Any], ImmutableState]:
    """A validated patch of the state at the head, and the state after it; the patch also adapts to a changed graph."""
    starter.compatibility.check_graph(head.last_run)
    adapted = starter.compatibility.adapted(head.state, head.last_run)
    update, _ = _validated(starter, adapted.state, patch, author, commit_id, new_thread)
    schema = starter.graph.topology.schema
    update = adapted.patch(schema, update)
    return update, schema.replay(head.state, update)


def _validated(
    starter: RunStarter,
    state: ImmutableState,
    patch: Mapping[str, Any],
    author: str,
    commit_id: str,
    new_thread: bool = False,
) -> tuple[dict[str, Any], ImmutableState]:
    """A patch as a commit holds it, and the state after it. In a new thread it adds the defaults of the fields."""
    schema = starter.graph.topology.schema
    if not isinstance(patch, Mapping):
        raise NodeOutputError(f"the patch is {brief(patch)}: give a mapping of fields to what is written")
    if new_thread:
        update, after = schema.begin(state, patch, keep=None, commit_id=commit_id)
    else:
        update, after = schema.commit(state, patch, node=author, commit_id=commit_id)
    schema.check_state_limit(None if new_thread else author, state, update, after)
    return update, after


# Merge one thread into another: a three-way merge of the commits that only one of them has.
#
# The rule is that of a join of branches (`scheduler.join`): each commit that only one side has is applied once,
# reducers
# fold, a field that one side changed is taken, and a field that both changed is a conflict for the merge policies.
# The
# merge commit has the heads of both threads as parents, so that a second merge finds nothing new, as in Git. Threads
# without a common commit are merged by states, if the caller names the state that both come from.


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
