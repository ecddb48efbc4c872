"""Change a thread outside of a run: copy, rerun from a commit, commit a patch manually, merge, send, delete, prune.

Copies and reruns begin at a `HistoryPrefix`, the history up to a given commit. Nothing is rewritten: a rerun, and a
manual commit in an open run, are a new part of the run, whose header names the rows of the parts before that it
excludes.

Merging is a three-way merge of the commits that only one of two threads has. The rule is that of a join of branches
(`scheduler.join`): each commit that only one side has is applied once, reducers fold, a field that one side changed is
taken, and a field that both changed is a conflict for the merge policies. The merge commit has the heads of both
threads as parents, so that a second merge finds nothing new, as in Git. Threads without a common commit are merged by
states, if the caller names the state that both come from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from secrets import token_hex
from typing import Any, NamedTuple, cast

from dspyer.errors import (
    ConcurrentRunError,
    InputError,
    NodeOutputError,
    StateError,
    StoreError,
    ThreadError,
    brief,
    list_names,
    noting,
    suggestion,
)
from dspyer.events import Commit, Sent
from dspyer.graph.spec import TO_KEEP, Exit, checked_policies
from dspyer.ids import FIRST, execution_id, full_id, new_run_id, outermost_execution
from dspyer.log.execution_records import totals_at
from dspyer.log.history import CommitListing
from dspyer.log.journal import MOST, CheckedStore, Journal, is_alive
from dspyer.log.reader import (
    RowRange,
    RunRows,
    SnapshotState,
    check_snapshot,
    check_thread_name,
    load_run,
    own_commit,
    read_run,
    read_runs,
    row_ranges,
    rows_left_out,
    snapshot_content,
    without_rows,
)
from dspyer.log.replay import update_commit
from dspyer.log.rows import (
    COMMITS,
    NO_BLOBS,
    CommitRow,
    DraftRow,
    OpenRow,
    ResumeRow,
    RowKind,
    SentRow,
    end_row,
    first_version,
    frozen_conflicts,
    row_time,
)
from dspyer.log.time_travel import Moment, identity_of, inbox_of, messages_of, status_of, unnamed
from dspyer.message_list import EMPTY, Remove, edited
from dspyer.nodes.node import Call
from dspyer.nodes.steps import run_script
from dspyer.patch import DELETE, Replace, diff, each_update, resets
from dspyer.policies import Conflict, Policies
from dspyer.runtime.execution import checked_targets
from dspyer.runtime.session import log_conflict
from dspyer.scheduler.join import Join, JoinFailedError, JoinResult
from dspyer.scheduler.lineage import UPDATE_AUTHOR, ancestry, decided_by, sent_to
from dspyer.scheduler.schedule import Branch, RunState, Target, active_branches
from dspyer.scheduler.topology import END, START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, DeletionReport, Point, RunRow, Snapshot, Store, ThreadRow, never
from dspyer.threads.start import FirstWrite, StoredThread, ThreadHead, checked_note
from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenList
from dspyer.values.json import with_valid_text
from dspyer.values.persistent import PersistentMap
from dspyer.values.scalars import KeyPath, check_flags

NewRun = tuple[RunRow, list[DraftRow]]
"""A run, or a part of one, with its rows, in which a commit is that no node has made."""


def copy_thread(
    source: StoredThread, target: StoredThread, at: int | str | None, patch: Mapping[str, Any] | None
) -> None:
    """Create the thread `target` with the history of `source` up to the commit `at`, or to its head for None.

    No row is copied: the head of the new thread is a row of the old one. Only with a `patch`, or `at` a commit inside
    of a run, the new thread gets a run or a part of a run of its own, with the manual commit or the end.
    """
    store, row = source.store, source.store.thread(source.name)
    if store.thread(target.name) is not None:
        raise ThreadError(f"there is a thread {target.name!r} already: take another name, or use thread.merge(...)")
    if row is None or row.head is None:
        raise ThreadError(f"thread {source.name!r} has no run yet: there is nothing to copy")
    _check_one_store(target, source, row.head)
    new_row = ThreadRow(target.name, None, 0, root=row.root)
    if at is None and patch is None:
        store.write(Change(target.name, 0, head=row.head, root=row.root, flush=True))
    else:
        prefix = prefix_at_head(store, row.head) if at is None else prefix_at(source, at)
        node = None if patch is None else _only_made_as(source, prefix)
        if patch is not None and (node is not None or not prefix.unfinished):
            head = target.head_at(new_row, prefix.last_row)
            made = _run_of_one(target, head, (prefix.last_row,), patch, node)
            if node is None:
                _check_lasting(target, (prefix.last_row,), patch)
            _write_run(store, new_row, made)
        elif prefix.unfinished:
            part = target.next_part(ThreadHead(new_row), prefix.run.run, prefix.last_row, prefix.excluded)
            rows = [source.end_of_open(prefix.run, row.root)]
            if patch is not None:
                rows = _commit_in_open_run(source, prefix, part.header["label"], patch, row.root)
            _write_run(store, new_row, (part, rows))
        else:
            store.write(Change(target.name, 0, head=prefix.last_row, root=row.root, flush=True))
    # A prune or a deletion may have come before the head of the copy was there, which keeps its history from both.
    now = store.thread(source.name)
    if now is None or now.root != row.root:
        store.delete([target.name])
        what = "deleted" if now is None else "pruned"
        raise ThreadError(f"thread {source.name!r} was {what} while it was copied: nothing was copied, copy it again")


def update_thread(thread: StoredThread, change: Mapping[str, Any] | None, as_node: str | None) -> None:
    """Commit a patch manually; None changes nothing, as where a node returns it."""
    patch = {} if change is None else change
    head = thread.load_head_without_owner()
    last_row = head.row.head
    prefix = None if last_row is None or not head.open else prefix_at_head(thread.store, last_row)
    node = None if prefix is None else _only_made_as(thread, prefix)
    if prefix is not None and as_node is None and node is None:
        rows = _commit_in_open_run(thread, prefix, thread.next_label(head), patch, head.row.root)
        made: NewRun = (thread.next_part(head, prefix.run.run, prefix.last_row), rows)
    else:
        if prefix is not None and node is None:
            _only_branch(thread, prefix, as_node)
        parents = () if last_row is None else (last_row,)
        made = _run_of_one(thread, head, parents, patch, as_node or node)
        if as_node is None and node is None:
            _check_lasting(thread, parents, patch)  # after the validation: what is no field at all is told first
    _write_run(thread.store, head.row, made)


def _check_lasting(thread: StoredThread, parents: tuple[Point, ...], patch: Mapping[str, Any]) -> None:
    """Refuse a change between two runs of fields that do not last."""
    lost = [name for name in patch if not thread.graph.lasts(name)]
    if lost:
        writers = [name for name, one in thread.graph.nodes.items() if lost[0] in (one.writes or {}).values()]
        writer = next((name for name in writers if _exits(thread, parents, name)), "a node")
        raise ThreadError(
            f"the next run of thread {thread.name!r} would begin without this change of {list_names(lost)}: {TO_KEEP}. "
            f"To correct what a node of the last run has written, name it: thread.update(patch, as_node={writer!r})"
        )


def first_write_of_rerun(thread: StoredThread, version: int | str, head: ThreadHead) -> FirstWrite:
    """A run that continues from an earlier commit."""
    prefix = prefix_at(thread, version)
    if not prefix.unfinished:
        raise ThreadError(
            f"version {version!r} of thread {thread.name!r} is the end of a run, nothing comes after it: to repeat "
            "a run with its inputs, rerun from its START; to continue differently, thread.copy(to=..., at=...)"
        )
    records = thread.read_records(prefix.run)
    records.resumes = 0  # what follows is done anew: its resumes without progress are counted from here
    thread.count_before(records, prefix.run, head.row.root)
    thread.compatibility.check_graph(prefix.run)
    changed = thread.compatibility.changed(prefix.run)  # a rerun is one of the graph as it is now
    run_start, migration = thread.compatibility.adapted_run(thread.rebuild(prefix.run, records), prefix.run)
    part = thread.next_part(head, prefix.run.run, prefix.last_row, prefix.excluded, changed)
    run_start = run_start._replace(run_id=part.id, label=(part.header["label"],))
    blobs = thread.compatibility.fingerprint.blobs if changed else NO_BLOBS
    rows = [ResumeRow().row(blobs), *migration]
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


def prefix_at(thread: StoredThread, version: int | str) -> HistoryPrefix:
    """The history up to a commit; raises `LookupError` if there is none of this version or id."""
    store, listed = thread.store, thread.history.commits_around(version)
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


def _only_made_as(thread: StoredThread, prefix: HistoryPrefix) -> str | None:
    """The node as which the only commit of an open run was made, manually; None if a node was called since."""
    opening = None if any(prefix.run.own_commits()) else thread.reader.opening(prefix.run.rows)
    return opening.node if opening is not None and opening.node != START and prefix.unfinished else None


def _run_of_one(
    thread: StoredThread, head: ThreadHead, parents: tuple[Point, ...], patch: Mapping[str, Any], node: str | None
) -> NewRun:
    """A run of one manual commit, which continues the row in `parents`.

    With a node, that is its author, and the run is open unless its edges lead to END alone, or it has ended the last
    run by a `Command`: a resume continues along them. Raises `ThreadError` if there is no such node, or it has no
    edge or router; `NodeOutputError` if the patch does not fit the schema.
    """
    graph, schema = thread.graph, thread.schema
    if node is not None and node not in graph.nodes:
        hint, known = suggestion(node, graph.nodes), ", ".join(map(repr, graph.nodes))
        raise ThreadError(f"as_node={node!r} is no node of graph {graph.name!r}.{hint} Nodes: {known}")
    exits = () if node is None else _exits(thread, parents, node)
    if node is not None and not exits:
        raise ThreadError(
            f"no edge leads on from node {node!r}: it chooses its targets itself, with Command(goto=...), and cannot "
            "be asked. Pass the node before it or that which ended the run, or call thread.update(...) without as_node"
        )
    author, commit_id = node or UPDATE_AUTHOR, full_id(thread.next_label(head), FIRST)
    thread.compatibility.check_graph(head.last_run)
    adapted = thread.compatibility.adapted(head.state, head.last_run)
    update, _ = _validated(schema, adapted.state, patch, author, commit_id, new_thread=not parents)
    update = adapted.patch(schema, update)  # it also adapts the state to a changed graph
    made = schema.made(head.state, schema.replay(head.state, update), update)
    blobs, now = thread.compatibility.fingerprint.blobs, time.time()
    if node is not None and {*exits} != {END}:
        opening = OpenRow(node=node, created=int(now * 1_000), patch=update, made=made).row(blobs)
        return _run_with(thread, head, parents, head.next_version, opening, "stopped")
    commit = Commit(FIRST, head.next_version, author, (), 1, 0, update, (), route=(END,), started=now)
    row = CommitRow.of_commit(commit, kind=RowKind.UPDATE, made=made).row(blobs)
    return _run_with(thread, head, parents, head.next_version, row, "completed")


def _exits(thread: StoredThread, parents: tuple[Point, ...], node: str) -> tuple[Exit, ...]:
    """The ways on from a manual commit of a node: `END`, if it ended the last run by its own decision."""
    declared = thread.graph.exits.get(node) or ()
    run = read_run(thread.store, parents[0]) if parents and not declared else None
    rows = () if run is None or run.status != "completed" else reversed(run.rows)
    last = next(filter(None, map(own_commit, rows)), None)
    return (END,) if last is not None and (last.node, last.route) == (node, (END,)) else declared


def _run_with(
    thread: StoredThread, head: ThreadHead, parents: tuple[Point, ...], first: int, commit: DraftRow, status: str
) -> NewRun:
    """A run that has one commit, of version `first`, and has ended."""
    # Only a completed run has a digest: more rows follow the end of an open one.
    digest = Journal(thread.store, thread.name, 0, "", 0).digest([commit]) if status == "completed" else None
    before = totals_at(thread.store, parents, head.row.root)
    run = RunRow(new_run_id(), thread.name, parents, thread.run_header(head, first, parents[0] if parents else None))
    return run, [commit, end_row(status, digest, (), steps=1, before=before)]


def _commit_in_open_run(
    thread: StoredThread, prefix: HistoryPrefix, label: str, patch: Mapping[str, Any], root: Point | None
) -> list[DraftRow]:
    """The rows of a commit in an open run, between its last commit and the node that comes next.

    `label` names the part of the run, and `root` is the row at which a pruned history begins. Raises `ThreadError` if
    several branches are active, or if the next node has done a part of its work; `NodeOutputError` if the patch does
    not fit the schema.
    """
    schema = thread.schema
    thread.compatibility.check_graph(prefix.run)
    run, branch = _only_branch(thread, prefix)
    records = thread.read_records(prefix.run)
    upcoming = execution_id(branch.path, branch.counts.get(branch.path, 0))
    _check_next_node_not_started(thread, prefix, records.items, upcoming)
    commit = update_commit(branch, 0, UPDATE_AUTHOR, {}, time.time())
    update, after = _validated(schema, branch.state, patch, UPDATE_AUTHOR, full_id(label, commit.id), runs_on=True)
    made = schema.made(branch.state, after, update)
    targets = _decided_anew(thread, run, branch, after)
    if targets:
        # What the node that came next has recorded is not for another one: not even under the same name.
        given = [
            key for key in records.answers if key in records.questions and records.questions[key].answer is not None
        ]
        _check_next_node_not_started(thread, prefix, [key.execution for key in (*records.effects, *given)], upcoming)
    commit = replace(commit, patch=update, route=tuple([target.node for target in targets]))
    sent = tuple([target.overlay for target in targets])
    sent = sent if any(overlay is not None for overlay in sent) else ()
    expires = None if targets else records.first_expiry()  # no question waits of a node that is decided anew
    return [
        CommitRow.of_commit(commit, kind=RowKind.UPDATE, made=made, sent=sent).row(),
        thread.end_of_open(prefix.run, root, prefix.run.status or "stopped", more=1, expires=expires),
    ]


def _write_run(store: Store, thread: ThreadRow, made: NewRun) -> None:
    """Make a run the head of a thread, which then has no owner; refused if another has written meanwhile."""
    run, drafts = made
    rows = [row.numbered(seq) for seq, row in enumerate(drafts)]
    store.write(
        Change(
            thread.name,
            thread.epoch,
            # A new epoch though no run owns the thread: a start that has read the old head is refused then. Of a new
            # thread the store chooses the epoch.
            thread.epoch + 1 if thread.epoch else None,
            lease=0.0,
            head=Point(run.id, rows[-1].seq),
            root=thread.root,
            run=run,
            rows_of=run.id,
            rows=rows,
            flush=True,
        )
    )


def _only_branch(thread: StoredThread, prefix: HistoryPrefix, as_node: str | None = None) -> tuple[RunState, Branch]:
    """An open run as it stands, and its only active branch, or the first where `as_node` has just forked.

    Raises `ThreadError` if several branches are active, with the nearest versions at which only one was, or if the run
    has no commit yet. Of a fork without a commit, all branches are left for those that the node leads into now.
    """
    # The rebuilt run knows where it stands: rows alone do not say which branches are active.
    run = thread.rebuild(prefix.run, thread.read_records(prefix.run)).run
    branches = active_branches(run)
    last = run.log[-1].commit if run.log else None
    forks = last is not None and not last.branch and {branch.head for branch in branches} == {len(run.log) - 1}
    fork = last.node if last is not None and forks and last.node in thread.graph.nodes else None
    if len(branches) != 1 and (fork is None or fork != as_node):
        hint = f". Or correct what {fork!r} has written: thread.update(patch, as_node={fork!r}), also of a copy"
        raise ThreadError(
            f"{len(branches)} branches of thread {thread.name!r} are active there, and a manual change must be one "
            f"that all of them share. {_nearest_single_branch(thread.history.listed(), prefix.number)}"
            + ("" if fork is None else hint)
        )
    branch = branches[0]
    if branch.head < 0:
        raise ThreadError(
            f"the last run of thread {thread.name!r} has no commit yet: call thread.resume(), or start another "
            "run with thread.run(..., if_open='abandon')"
        )
    return run, branch


def _nearest_single_branch(listed: CommitListing, number: int) -> str:
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


def _check_next_node_not_started(
    thread: StoredThread, prefix: HistoryPrefix, recorded: Iterable[str], upcoming: str
) -> None:
    """Refuse a change before a node that has used the unchanged state for items of a map or commits inside.

    `recorded` are the executions of what it may have recorded.
    """
    scopes = [CommitRow.of(row).scope for row in prefix.run.rows if row.kind in COMMITS]
    started = [*recorded, *[scope[0] for scope in scopes if scope]]
    if any(outermost_execution(name) == upcoming for name in started):
        raise ThreadError(
            f"the next node of thread {thread.name!r} has done a part of its work already, with the state as it is. "
            "Let it finish with thread.resume(), or commit in its place with thread.update(..., as_node=...)"
        )


def _decided_anew(thread: StoredThread, run: RunState, branch: Branch, after: ImmutableState) -> tuple[Target, ...]:
    """The targets of the branch in an edited state, if the routers behind its last node decide otherwise now.

    What a node has decided in its own code, by a `Command`, stays as it is.
    """
    before = decided_by(run.log, branch.head)
    node, exits = before.commit.node, thread.graph.exits.get(before.commit.node, ())
    groups = [*run.waiting.values(), *run.ready]
    changed = {
        name for name in {*branch.state, *after} if not same(branch.state.raw(name, None), after.raw(name, None))
    }
    routers = [exit_ for exit_ in exits if not isinstance(exit_, str)]
    read = [one for one in routers if one.reads is None or not changed.isdisjoint(one.reads.values())]
    if not read or before.commit.failure is not None or before.commit.branch != branch.path or len(groups) != 1:
        return ()
    for router in routers:
        if router.module_name is not None or router.binding.contexts or router.binding.resources:
            why = "is a module" if router.module_name is not None else "takes `ctx` or a resource"
            raise ThreadError(
                f"{read[0].who} has read what this change writes, and cannot be asked again here: {router.who} {why}. "
                + (
                    "Start another run with the inputs"
                    if node == START
                    else f"Commit as its node: thread.update(..., as_node={node!r}); the next resume asks it"
                )
            )
    overlay = sent_to(run.log, before.parents, before.commit.branch) or None

    def decided(state: ImmutableState) -> tuple[Target, ...]:
        call = Call(state, cast("Any", None), cast("Any", thread.program), overlay)
        found = [(exit_,) if isinstance(exit_, str) else run_script(exit_.script(call)).targets for exit_ in exits]
        return checked_targets(thread.graph, node, [target for targets in found for target in targets])

    with noting(f"asked again, since thread.update(...) of thread {thread.name!r} changes what it has read"):
        old, new = decided(branch.state), decided(after)
    # A node that has gone elsewhere was asked by no router: its own code has decided.
    return () if old == new or [target.node for target in old] != [groups[0].position[0]] else new


def _validated(
    schema: Schema,
    state: ImmutableState,
    patch: Mapping[str, Any],
    author: str,
    commit_id: str,
    new_thread: bool = False,
    runs_on: bool = False,
) -> tuple[dict[str, Any], ImmutableState]:
    """A patch as a commit holds it, and the state after it. In a new thread it adds the defaults of the fields.

    `runs_on` says that an open run goes on behind the commit, see `message_list.edited`.
    """
    if not isinstance(patch, Mapping):
        raise NodeOutputError(f"the patch is {brief(patch)}: give a mapping of fields to what is written")
    patch = {name: _with_edits(schema, state, name, update, commit_id, runs_on) for name, update in patch.items()}
    if new_thread:
        update, after = schema.begin(state, patch, keep=None, commit_id=commit_id)
    else:
        update, after = schema.commit(state, patch, node=author, commit_id=commit_id)
    return update, after


def _with_edits(
    schema: Schema, state: ImmutableState, field: str, update: Any, commit_id: str, runs_on: bool
) -> object:
    """The update of a field; of a conversation, all messages after it if it changes or removes some."""
    reducer = schema.reducer(field)
    parts = each_update(update)
    if reducer is None or reducer.kind != "messages" or update is None or resets(update):
        return update
    changes = [one for part in parts for one in (part if isinstance(part, (list, tuple, FrozenList)) else [part])]
    assert reducer.check is not None  # both reducers of messages have one
    reducer.check([change for change in changes if not isinstance(change, Remove)])
    before = state.raw(field, None)
    try:
        return edited(EMPTY if before is None else before, changes, commit_id, runs_on) or update
    except ThreadError as error:
        raise ThreadError(f"field {field!r} cannot be changed so: {error}. Nothing was written") from None


def _check_one_store(thread: StoredThread, other: StoredThread, head: Point | None) -> None:
    """Refuse to continue from the head of another thread that does not lie where the thread does."""
    mine, theirs = thread.store, other.store
    # Stores in memory have one address, and are the same as objects. A store may be made of several.
    apart = theirs.store is not mine.store and (theirs.address != mine.address or mine.address == ":memory:")
    if apart or (head is not None and mine.run(head.run) is None):
        raise ThreadError(
            f"threads {thread.name!r} and {other.name!r} are in different stores. Nothing was written: write "
            f"{other.name!r} to a file with export, and load it under a name of the other store"
        )


# --- merge


def merge_thread(thread: StoredThread, other: StoredThread, base: Moment | None, policy: object) -> bool:
    """Merge another thread of the same store; return whether it had anything new.

    `base` is the state that both threads come from, for threads that have no commit in common. `policy` decides
    conflicts; None for the merge policies of the graph.
    """
    topology = thread.graph.topology
    policies = checked_policies("policy", policy, topology.schema, topology.policies)
    head, other_head = thread.load_head_without_owner(), other.load_head_without_owner()
    _check_one_store(thread, other, other_head.row.head)
    for one in (head, other_head):
        if one.open:
            raise one.open_error()
        thread.compatibility.check_graph(one.last_run)
    if other_head.row.head is None:
        return False
    if head.row.head is None:
        raise ThreadError(f"thread {thread.name!r} has no run yet: make it with other.copy(to={thread.name!r})")
    history = thread.history.extended(head.row, other_head.row)
    log = history.log
    root = other_head.row.root
    if root != head.row.root and root in history.roots.intersection(history.runs_behind([other_head.row.head])):
        raise ThreadError(
            f"history of thread {other.name!r} was pruned, and thread {thread.name!r} has no commit where it begins: "
            f"merge {thread.name!r} into {other.name!r}, or a copy of it"
        )
    # The last commit of each that all its branches shared.
    left, right = (history.runs[at].trunk_index for at in (head.row.head, other_head.row.head))
    ours = set(ancestry(log, [] if left is None else [left]))
    if right is None or right in ours:
        return False
    related = any(place in ours for place in ancestry(log, [right]))
    if related and base is not None:
        raise ThreadError(
            f"threads {thread.name!r} and {other.name!r} have commits in common: merge them without base="
        )
    if base is not None:
        merged = _merge_states(thread.history.state_of(base), topology.schema, head.state, other_head.state, policies)
    elif related and left is not None:

        def deciding(path: KeyPath) -> tuple[str, Callable[[Conflict], Any]]:
            # Fields that last for one run only take the other thread's value.
            return (
                policies.decider_for(path) if thread.graph.lasts(path[0]) else ("last_write_wins", attrgetter("right"))
            )

        try:  # as a join merges branches: by the commits that only one of them descends from
            join = Join(log, other.name, history.reader.schema, deciding, len(log))
            merged = join.merge([left, right], [log[left].state, log[right].state])
        except JoinFailedError as raised:
            raise raised.error from None
    else:
        raise ThreadError(
            f"threads {thread.name!r} and {other.name!r} have no commit in common, so that no common state "
            "shows what each has changed: pass the state that both come from with base="
        )
    # Only now, and not while the policies decide: a merge that raises logs nothing.
    for conflict in merged.conflicts:
        if thread.graph.lasts(conflict.path[0]):
            log_conflict(conflict)
    heads = (head.row.head, other_head.row.head)  # ours first: readers fold along first parents
    # Its version counts the commits of both sides.
    version = head.next_version + history.count_settled_not_in(*heads)
    commit = Commit(FIRST, version, f"join:{other.name}", (), 1, 0, merged.patch, (), route=(END,), started=time.time())
    made = topology.schema.made(head.state, merged.state, None)
    conflicts = frozen_conflicts(merged.conflicts)
    # By their global ids; `FIRST` for a value that the merge itself has made.
    ids = {path: FIRST if at == len(log) else log[at].commit.id for path, at in merged.winners.items()}
    row = CommitRow.of_commit(commit, kind=RowKind.MERGE, made=made, conflicts=conflicts, winners=ids)
    _write_run(thread.store, head.row, _run_with(thread, head, heads, version, row.row(), "completed"))
    return True


def _merge_states(
    base: Mapping[str, Any], schema: Schema, left: ImmutableState, right: ImmutableState, policy: Policies
) -> JoinResult:
    """Merge two states that come from a third one, `base`, without commits; a policy may raise `MergeConflictError`."""
    merged = left.merge(right, policy, base=base)
    for name in merged:
        value, sides = merged.raw(name), [left.raw(name, DELETE), right.raw(name, DELETE)]
        if schema.reducer(name) is None and not any(value is side for side in sides):
            merged = merged.set(name, schema.validate_joined(name, value, sides, merged))
    patch = diff(left, merged)
    for field in patch:
        # What reducers fold is replaced: no update of either side leads there.
        if schema.reducer(field) is not None and patch[field] is not DELETE:
            patch[field] = Replace(merged.raw(field))
    return JoinResult(merged, patch, (), {}, PersistentMap())


# --- messages


LONGEST_TEXT = 100_000
"""Most bytes of a message."""


def send_message(thread: StoredThread, text: str, to: str | None, by: str, key: str | None) -> Sent:
    """Write a message to the inbox of a thread; return it, or the one that was sent with this key before.

    It needs no ownership: a row that exists is refused, so of two senders one takes the next number. It is written
    under the epoch that the thread has, so that none reaches a thread that was deleted meanwhile.
    """
    store, name, inbox = thread.store, thread.name, inbox_of(thread.name)
    text, by = _checked_message(thread.graph.listeners, text, to, by, key)
    made = SentRow(token_hex(8), row_time(), text, by, to, key)
    while True:
        row = store.thread(name)
        if row is None or row.head is None:
            raise ThreadError(f"thread {name!r} has no run yet: begin with thread.run(...). Nothing was sent")
        number, known = _numbers(store, inbox)
        first = [] if key is None or key not in known else messages_of(store, inbox, known[key], known[key])
        for sent in first:
            if (sent.text, sent.to) != (text, to):
                raise InputError(
                    f"key={key!r} is that of message {sent.number} of thread {name!r}, which has another text or "
                    "another agent: nothing was sent. A key stands for one message: give another one another key"
                )
            return replace(sent, open=status_of(store, name) != "completed")
        try:
            # Of no thread, for which the store would count it as a run.
            if not number and not identity_of(store, inbox):
                store.write(Change(run=RunRow(inbox, name, (), {"inbox": token_hex(8)})))
            rows, lease = [made.row().numbered(number)], None if row.owner else 0.0  # 0: the thread is in use, not idle
            store.write(Change(name, row.epoch, lease=lease, rows_of=inbox, rows=rows, flush=True))
        except ConcurrentRunError:
            continue  # another message has this number, or another run has the thread
        return Sent(number, text, by, made.at, to, status_of(store, name) != "completed")


def _numbers(store: CheckedStore, inbox: str) -> tuple[int, Mapping[str, int]]:
    """The number of the next message, and those of messages by their keys: what is known here, and what is new."""
    inboxes = store.heads.inboxes
    last, name, known = inboxes.get(inbox, (0, "", {}))
    rows = store.rows(inbox, last)
    if name and (not rows or SentRow.of(rows[0]).id != name):
        # Another process has deleted the thread since, and maybe loaded an older export of it.
        known, rows = {}, store.rows(inbox)
    for row in rows:
        found = SentRow.read(row, store.blobs)
        last, name = row.seq, found.id
        if found.key is not None:
            known[found.key] = row.seq
    if not rows:
        return 0, {}
    inboxes[inbox] = last, name, known
    if len(inboxes) > MOST:
        inboxes.pop(next(iter(inboxes)), None)
    return last + 1, known


def _checked_message(listeners: Collection[str], text: Any, to: Any, by: Any, key: Any) -> tuple[str, str]:
    """The text and the name of its author, as they are stored."""
    if not listeners:
        raise ThreadError(
            "the program has no agent that could read a message: change its state with thread.update(...), or answer "
            "its questions with thread.resume(...)"
        )
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"a message is a text that is not empty, not {brief(text)}. Nothing was sent")
    text, by = with_valid_text(text), checked_note("by", by, "Nothing was sent")
    size = len(text.encode())
    if size > LONGEST_TEXT:
        raise InputError(f"a message has at most {LONGEST_TEXT:,} bytes, and this one {size:,}. Nothing was sent")
    if key is not None and (not isinstance(key, str) or not key):
        raise InputError(f"key= is a text that is not empty, not {brief(key)}. Nothing was sent")
    if to is None and not unnamed(listeners):
        raise InputError(f"say which agent is meant, to=...: {list_names(listeners)}. Nothing was sent")
    if to is not None and (not to or to not in listeners):
        named = [path for path in listeners if path]
        known = f"Agents: {list_names(named)}" if named else "The program is the only agent: leave to= out"
        raise InputError(f"to={brief(to)} is no agent.{suggestion(str(to), named)} {known}. Nothing was sent")
    return text, by


# --- delete: what other threads still reach stays


def delete_thread(thread: StoredThread, take_over: bool) -> DeletionReport:
    """Delete a thread; raise `ConcurrentRunError` if a run owns it, or acquires it meanwhile, unless `take_over`."""
    check_flags(take_over=take_over)
    thread.existing_row(take_over)
    try:
        while (report := thread.store.delete([thread.name], never if take_over else is_alive)).busy:
            thread.existing_row(take_over)  # raises, unless the run that has acquired it meanwhile has ended since
    finally:
        thread.history.forget()  # an export that is loaded has runs with the ids of those that are deleted now
    return report


def delete_threads(store: Store, names: Iterable[str], idle: timedelta | None) -> DeletionReport:
    """Delete threads in one transaction, but those that a run owns, or that were used in the time `idle`."""
    if isinstance(names, str):
        raise ThreadError(f"delete({names!r}) takes the names of several threads: delete([{names!r}])")
    listed, seconds = list(names), idle_seconds(idle)
    for name in listed:
        check_thread_name(name, "delete(['t-42'])")
    if not listed:  # without names, a store deletes what no thread reaches
        return DeletionReport((), 0, 0, {})
    return store.delete(listed, lambda row: is_alive(row) or (seconds is not None and row.lease > -seconds))


def idle_seconds(idle: object) -> float | None:
    """Return the seconds of `idle=`."""
    if idle is None:
        return None
    if not isinstance(idle, timedelta) or idle < timedelta():
        raise ValueError(f"idle={idle!r}: a timedelta that is not negative, such as timedelta(days=90)")
    return idle.total_seconds()


def prune_thread(thread: StoredThread, before: int | str, take_over: bool) -> DeletionReport:
    """Delete the runs before the one that the commit `before` belongs to.

    A crash may come between two writes, hence their order: first the snapshot with which the history will begin, which
    is checked to be readable; then the root, from which on the snapshot is that beginning; then the deletion.
    """
    check_flags(take_over=take_over)
    store, reader, name = thread.store, thread.reader, thread.name
    row = thread.existing_row(take_over)
    listed = thread.history.listed()
    history, run_end = listed.history, listed.runs[listed.index_of(before)]
    parents = history.runs[run_end].parents
    if len(parents) > 1:
        raise ThreadError(
            f"the run of commit {before!r} of thread {name!r} merges two threads: prune before a later or an earlier "
            "one"
        )
    root = None
    if parents and parents[0] != row.root:
        root = parents[0]
        first, first_of_parent = (first_version(load_run(store, point.run)) for point in (run_end, root))
        last = history.runs[root].trunk_index
        commit = "" if last is None else history.log[last].commit.id
        state = SnapshotState(history.state(last), first - 1 - first_of_parent, commit)
        taken = Snapshot(root, snapshot_content(state))
        try:
            store.write(Change(name, row.epoch, snapshot=taken, flush=True))
        except StateError as error:
            raise StoreError(f"the state at which the pruned history begins cannot be read again: {error}") from error
        if taken.content.is_encoded:  # a store in memory keeps the state itself
            check_snapshot(taken.content, reader.fetch, reader.decode)
    store.write(Change(name, row.epoch, row.epoch + 1, root=root, flush=True))
    try:
        return store.delete_unreachable(name)
    finally:
        thread.history.forget()  # the next run of a key has the id of the one that is deleted now
