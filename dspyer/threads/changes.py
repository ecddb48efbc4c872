"""Going back in a thread, and changing it by hand: copies, reruns, updates, merges."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any, NamedTuple, Self

from dspyer.errors import ThreadError, suggestion
from dspyer.events import Commit, MergedConflict
from dspyer.nodes.binding import resources_of
from dspyer.patch import DELETE, Replace, diff_value, each_update, resets
from dspyer.persistence.execution_records import ExecutionRecords
from dspyer.persistence.history import CommitListing, History
from dspyer.persistence.reader import (
    RowRange,
    RunRows,
    outermost_execution,
    read_run,
    read_runs,
    row_ranges,
    rows_left_out,
    without_rows,
)
from dspyer.persistence.replay import update_commit
from dspyer.persistence.rows import (
    COMMITS,
    CommitContent,
    CommitHeader,
    NewRow,
    RowKind,
    digest,
    end_row,
    manual_commit_row,
    open_row,
    resume_row,
)
from dspyer.policies import Conflict, Policies
from dspyer.reducers import Updates
from dspyer.runtime.request import Request
from dspyer.runtime.run import Run
from dspyer.runtime.session import log_conflict
from dspyer.scheduler.join import Join, JoinFailedError, PolicyLookup, value_at_key
from dspyer.scheduler.lineage import Resolution, ancestry
from dspyer.scheduler.run_state import Branch, active_branches, execution_id
from dspyer.scheduler.topology import END
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, Point, RunRow, Snapshot, ThreadRow
from dspyer.threads.ownership import busy, is_alive
from dspyer.threads.start import FirstWrite, RunStarter, ThreadHead, ThreadLock
from dspyer.threads.time_travel import Moment, PastReader
from dspyer.values.freezing import same

Resources = Mapping[type, object] | Sequence[object] | None


class Travel(PastReader):
    """Copies, reruns, updates and merges a thread."""

    def copy(self, to: str, *, at: int | str | None = None, patch: Mapping[str, Any] | None = None) -> Self:
        """Makes another thread that goes on from here, or from an earlier commit. Nothing is stored twice.

        At the end of a run the copy is at rest. Inside of a run it is an open run: `resume()` on the copy finishes it,
        with the branches that were live there. Both threads go on independently. Without `at` the copy has all that
        the thread has, with answers, effects and questions of nodes that have not finished; with `at` only what led to
        that commit.

        Args:
            to: the name of the new thread.
            at: version or id of a commit; None for the thread as it stands.
            patch: a change that the copy begins with, written as a node would. It changes the state, not where the
                run goes.

        Returns:
            The new thread.

        Raises:
            ThreadError: if there is a thread of this name, nothing to copy, or several branches are live where
                `patch` is to go.
            LookupError: if there is no such commit.
            NodeOutputError: if the patch does not fit the schema.
        """
        store, twin = self._starter.store, type(self)(self._program, self._store, to)
        row = store.thread(self.name)
        if store.thread(to) is not None:
            raise ThreadError(f"there is a thread {to!r} already: take another name, or merge with t.merge(...)")
        if row is None or row.head is None:
            raise ThreadError(f"thread {self.name!r} has no run yet: there is nothing to copy")
        starter, new = twin._starter, ThreadRow(to, None, 0, root=row.root)
        if at is None and patch is None:
            store.write(Change(to, 0, head=row.head, root=row.root, flush=True))
            return twin
        cut = prefix_here(starter, row.head) if at is None else prefix_at(starter, self._around(at), at)
        rest = ThreadHead(new, None, ImmutableState(), 0)
        if cut.inside:
            part = starter.next_part(rest, cut.run.run, cut.point, cut.gone)
            drafts = [end_row("stopped", None, ())]
            if patch is not None:
                drafts = within(starter, self._known.listed, cut, part.header["label"], patch)
            self._write(new, ManualCommit(part, drafts), to)
        elif patch is not None:
            rest = starter.rest_at(new, cut.point)
            self._write(new, at_rest(starter, rest, (cut.point,), patch), to)
        else:
            store.write(Change(to, 0, head=cut.point, root=row.root, flush=True))
        return twin

    def rerun(self, from_version: int | str, *, resources: Resources = None, take_over: bool = False) -> Run:
        """Goes back to a commit and does again what came after it: a new run, with new calls and new effects.

        The branches that were live at the commit go on, along the routes that they had taken there. What came after
        it leaves the history of the thread, and stays in the store: `at`, `copy` and `rerun` take its ids.

        Args:
            from_version: version or id of the commit. To do a whole run again with its inputs, that of its `START`.
            resources: as in `program.run`; never stored.
            take_over: replaces another owner, who can commit nothing more.

        Returns:
            The run, with the commits from its beginning.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            ThreadError: if the commit is the end of a run: nothing comes after it.
            ChangedGraphError: if the graph has changed, and what led to the commit has no place in it.
            LookupError: if there is no such commit.
        """
        request = Request(resources_of(resources))
        with self._again_from(from_version, request, take_over).held() as owned:
            return self._program._run({}, owned.request)

    async def arerun(self, from_version: int | str, *, resources: Resources = None, take_over: bool = False) -> Run:
        """Goes back to a commit in async code, otherwise like `rerun`."""
        request = Request(resources_of(resources))
        async with self._again_from(from_version, request, take_over).aheld() as owned:
            return await self._program._arun({}, owned.request)

    def update(self, patch: Mapping[str, Any], as_node: str | None = None) -> Commit:
        """Changes the state by hand. It is validated like the output of a node, and is a commit like any other.

        A thread at rest stays at rest. In an open run the change comes between its last commit and the node that is
        next: `resume()` goes on with it.

        Args:
            patch: the change, as a node would return it.
            as_node: commits in the name of this node; the next `resume()` goes on along its edges, and asks its
                routers. What was left of an open run is left.

        Returns:
            The commit; its author is `"update"`, or the node.

        Raises:
            ConcurrentRunError: if a run owns the thread.
            ThreadError: if several branches are live, with the nearest versions at which only one was.
            NodeOutputError: if the patch does not fit the schema.
        """
        rest = self._unowned()
        starter, head = self._starter, rest.row.head
        parents = () if head is None else (head,)
        if as_node is not None:
            if head is not None and rest.open:
                lone_branch(starter, self._known.listed, prefix_here(starter, head))
            self._write(rest.row, in_the_name_of(starter, rest, parents, patch, as_node), self.name)
        elif head is None or not rest.open:
            self._write(rest.row, at_rest(starter, rest, parents, patch), self.name)
        else:
            cut = prefix_here(starter, head)
            drafts = within(starter, self._known.listed, cut, starter.label(rest), patch)
            self._write(rest.row, ManualCommit(starter.next_part(rest, cut.run.run, head), drafts), self.name)
        return self.history(count=1, newest=True)[0]

    def merge(self, other: Self, *, base: Moment | None = None, policy: object = None) -> Commit | None:
        """Brings what another thread has done into this one. Both must be at rest; the other one stays as it is.

        Each commit that only one of them has is applied once, as when branches join: reducers fold, what only one side
        changed is taken, and what both changed is a conflict for the merge policies. If one raises, nothing is
        written. Fields that `Graph(keep=...)` leaves out do not outlive a run: the other thread's are taken. The
        commit has the ends of both threads as parents, so merging again adds nothing.

        Args:
            other: the other thread, of the same store.
            base: for threads that have no commit in common, the state that both come from: a version or id of this
                thread, or the state itself.
            policy: decides conflicts, as in `Graph(merge=...)`; by default those of the graph, which raise.

        Returns:
            The commit, whose author is `"join:"` with the other thread's name; None if there is nothing to add.

        Raises:
            MergeConflictError: if both have changed something, and the policy is to raise.
            ConcurrentRunError: if a run owns one of the threads.
            OpenRunError: if the last run of one was not finished.
            ThreadError: if they have no commit in common and there is no `base`.
        """
        if other._store is not self._store and (
            other._store.address != self._store.address or self._store.address == ":memory:"
        ):
            raise ThreadError(f"threads {self.name!r} and {other.name!r} are in different stores: export one first")
        rest, theirs = self._unowned(), other._unowned()
        for found in (rest, theirs):
            if found.open:
                raise found.open_error()
            self._starter.fitting.check_graph(found.last)
        if theirs.row.head is None:
            return None
        if rest.row.head is None:
            raise ThreadError(f"thread {self.name!r} has no run yet: make it with other.copy(to={self.name!r})")
        policies = Policies.of(policy, self._program.graph.topology.policies)
        if base is None:
            met = self._meet(rest.row, theirs.row, other.name, self._deciding(policies))
        else:
            met = self._meet_from(base, rest, theirs, other.name, policies)
        if met is None:
            return None
        self._log(met)
        heads = (rest.row.head, theirs.row.head)
        self._write(rest.row, self._merged(rest, heads, met, other.name, base is not None), self.name)
        return self._known.listed().commits[-1]

    def _meet(self, left: ThreadRow, right: ThreadRow, name: str, deciding: PolicyLookup) -> Met | None:
        """What two threads make together; None if the left one has all that the right one has."""
        history, ours, theirs = self._both(left, right)
        related, known = common(history, ours, theirs)
        if known:
            return None
        if not related or ours is None or theirs is None:
            raise ThreadError(
                f"threads {self.name!r} and {name!r} have no commit in common, so nothing says what has changed: give "
                "the state that both come from with base="
            )
        return meet(history, ours, theirs, name, deciding)

    def _both(self, left: ThreadRow, right: ThreadRow) -> tuple[History, int | None, int | None]:
        """What is behind two threads, and where each of them stands in it."""
        assert left.head is not None
        assert right.head is not None
        history = self._known.extended(left, right)
        return history, history.runs[left.head].trunk_index, history.runs[right.head].trunk_index

    def _deciding(self, policies: Policies) -> PolicyLookup:
        """What decides conflicts; what does not outlive a run is none between two of them."""

        def deciding(path: tuple[Any, ...]) -> tuple[str, Callable[[Conflict], Any]]:
            return policies.decider_for(path) if self._keeps(path[0]) else ("last_write_wins", _right)

        return deciding

    def _keeps(self, field: str) -> bool:
        keep = self._starter.blueprint.keep
        return keep is None or field in keep

    def _log(self, met: Met) -> None:
        for conflict in met.conflicts:
            if self._keeps(conflict.path[0]):
                log_conflict(conflict)

    def _meet_from(
        self, base: Moment, ours: ThreadHead, theirs: ThreadHead, name: str, policies: Policies
    ) -> Met | None:
        """What two threads make together that come from a state that somebody names."""
        related, known = common(*self._both(ours.row, theirs.row))
        if known:
            return None
        if related:
            raise ThreadError(f"threads {self.name!r} and {name!r} have commits in common: merge them without base=")
        schema = self._program.graph.topology.schema
        return meet_from(self._state_of(base), schema, ours.state, theirs.state, policies)

    def _merged(
        self, rest: ThreadHead, heads: tuple[Point, Point], met: Met, name: str, based: bool = False
    ) -> ManualCommit:
        first = rest.first + self._known.history.count_settled_not_in(*heads)
        header = {**self._starter.header(first, self._starter.label(rest)), **({"base": True} if based else {})}
        return ManualCommit(RunRow(token_hex(16), self.name, heads, header), merge_rows(met, name, first))

    def _again_from(self, version: int | str, request: Request, take_over: bool) -> ThreadLock:
        def ahead(rest: ThreadHead) -> FirstWrite:
            starter, cut = self._starter, prefix_at(self._starter, self._around(version), version)
            if not cut.inside:
                raise ThreadError(
                    f"version {version!r} of thread {self.name!r} is the end of a run, nothing comes after it: to do a "
                    "run again with its inputs, rerun from its START; to go on otherwise, t.copy(to=..., at=...)"
                )
            memo = ExecutionRecords()
            memo.read(cut.run.rows, starter.reader.fetch, starter.reader.decode)
            memo.resumes = 0
            starter.fitting.check_graph(cut.run)
            _, names = starter.fitting.allowed(cut.run, True)  # whoever goes back wants the graph as it is now
            opening = starter.again(cut.run, memo)
            moved: list[NewRow] = []
            if names is not None:
                opening, moved = starter.fitting.going_on(opening, cut.run)
            part = starter.next_part(rest, cut.run.run, cut.point, cut.gone, names)
            opening = opening._replace(run_id=part.id, label=(part.header["label"],))
            running = sorted(opening.run.running) or [group.position[0] for group in opening.run.ready]
            beside = None if names is None else starter.fitting.beside
            return FirstWrite(part, 0, [resume_row(0, running, beside), *moved], opening, memo)

        self._program._check_resources(request)
        return ThreadLock(lambda: self._starter.own(ahead, request, take_over), request, "raise", 0.0)

    def _unowned(self) -> ThreadHead:
        """What the thread has come to, if nobody works on it."""
        store, row = self._starter.store, self._starter.store.thread(self.name)
        if row is not None and is_alive(row):
            raise busy(row)
        if row is not None and row.owner is not None:  # it may be at work after all: it can write nothing more
            store.write(Change(self.name, row.epoch, row.epoch + 1, lease=0.0))
        rest = self._starter.rest()
        if rest.broken:
            raise rest.broken_error()
        return rest

    def _write(self, row: ThreadRow, by_hand: ManualCommit, thread: str, snapshot: Snapshot | None = None) -> None:
        run = by_hand.run
        rows = [draft.numbered(seq) for seq, draft in enumerate(by_hand.drafts)]
        head, epoch = Point(run.id, rows[-1].seq), row.epoch
        next_epoch = epoch + 1 if epoch else None
        change = Change(thread, epoch, next_epoch, lease=0.0, head=head, run=run, rows_of=run.id, rows=rows, flush=True)
        self._starter.store.write(change._replace(root=row.root, snapshot=snapshot))


def _right(conflict: Conflict) -> Any:
    return conflict.right


# --------------------------------------------------------------------------------------------------------------------
# A thread as it stood at one of its commits: what of its run counts there, and how somebody changes it by hand.

BY_HAND = "update"
"""The author of a commit that somebody makes by hand."""


class HistoryPrefix(NamedTuple):
    """A thread up to one of its commits.

    Attributes:
        run: its run up to there; what executions without a commit up to there have left behind is not in it.
        point: the last row that counts.
        gone: spans of the rows before it that do not.
        number: which of the thread's commits it is; -1 for the last one.
        inside: whether it is inside of a run, and something is left to be done.
    """

    run: RunRows
    point: Point
    gone: list[RowRange]
    number: int
    inside: bool


def prefix_at(starter: RunStarter, listed: CommitListing, version: int | str) -> HistoryPrefix:
    """A thread as it stood at a commit.

    Args:
        starter: of the thread.
        listed: its commits.
        version: version or id of the commit.

    Raises:
        LookupError: if there is no such commit.
    """
    number = listed.index_of(version)
    at, place = listed.runs[number], listed.log_indexes[number]
    if at in listed.history.roots:  # what came before it was pruned
        return HistoryPrefix(read_runs(starter.store, [at], at)[0], at, [], number, False)
    whole = read_run(starter.store, at)
    order = listed.history.canonical_order(at)
    if whole.status == "completed" and order[-1] == place:
        return HistoryPrefix(whole, at, [], number, False)
    kept = set(order[: order.index(place) + 1])
    rows = [
        (row_place, told)
        for row_place, told in zip(_commit_rows(whole), listed.history.runs[at].log_indexes, strict=True)
        if told in kept
    ]
    last, gone = rows_left_out(whole.rows, {row_place for row_place, _ in rows})
    left, places = without_rows(whole.rows[: last + 1], gone)
    points = tuple([whole.points[row_place] for row_place in places])
    if points[-1].run != at.run:  # a part before this one goes on otherwise: there rows count that this one leaves out
        counting = set(points)
        before = read_run(starter.store, points[-1]).points
        gone = row_ranges(place for place, point in enumerate(before) if point not in counting)
    return HistoryPrefix(whole._replace(rows=tuple(left), points=points), points[-1], gone, number, True)


def prefix_here(starter: RunStarter, head: Point) -> HistoryPrefix:
    """A thread as it stands, with all that is left to be done."""
    whole = read_run(starter.store, head)
    return HistoryPrefix(whole, head, [], -1, whole.status != "completed")


def _commit_rows(of: RunRows) -> list[int]:
    found = [
        place for place, row in enumerate(of.rows) if row.kind in COMMITS and not CommitHeader.parse(row.header).scope
    ]
    return found or [place for place, row in enumerate(of.rows) if row.kind == RowKind.OPEN]


def memo_of(starter: RunStarter, cut: HistoryPrefix) -> ExecutionRecords:
    """What the executions of a run have left behind."""
    memo = ExecutionRecords()
    memo.read(cut.run.rows, starter.reader.fetch, starter.reader.decode)
    return memo


def lone_branch(starter: RunStarter, listed: Callable[[], CommitListing], cut: HistoryPrefix) -> Branch:
    """The only live branch of an open run.

    Args:
        starter: of the thread.
        listed: gives the commits of the thread that the run is from.
        cut: the place in the run.

    Raises:
        ThreadError: if several branches are live, with the nearest versions at which only one was.
    """
    run = starter.again(cut.run, memo_of(starter, cut)).run
    branches = active_branches(run)
    if len(branches) != 1:
        raise ThreadError(
            f"{len(branches)} branches of thread {starter.thread!r} are live there, and a change by hand must be one "
            f"that all of them share. {nearest(listed(), cut.number)}"
        )
    (branch,) = branches
    if branch.head < 0:
        raise ThreadError(
            f"the last run of thread {starter.thread!r} has not come to its first commit: call t.resume(), or start "
            "another run with t.run(..., abandon=True)"
        )
    return branch


def _check_not_begun(starter: RunStarter, cut: HistoryPrefix, branch: Branch) -> None:
    """A node that has done a part of its work has done it with the state as it is."""
    memo = memo_of(starter, cut)
    comes = execution_id(branch.path, branch.counts.get(branch.path, 0))
    begun = [*memo.items, *[head.scope[0] for head in map(CommitHeader.parse, _heads(cut)) if head.scope]]
    if any(outermost_execution(name) == comes for name in begun):
        raise ThreadError(
            f"the node that comes next in thread {starter.thread!r} has done a part of its work already, with the "
            "state as it is. Let it finish with t.resume(), or commit in its place with t.update(..., as_node=...)"
        )


def _heads(cut: HistoryPrefix) -> list[tuple[Any, ...]]:
    return [row.header for row in cut.run.rows if row.kind in COMMITS]


def nearest(listed: CommitListing, number: int) -> str:
    """The versions nearest to a commit at which one branch was live, as an error names them."""
    history, number = listed.history, number % len(listed.commits)

    def lone(other: int) -> bool:
        commit = listed.commits[other]
        return commit.version is not None and history.settled[listed.log_indexes[other]] and len(commit.route) <= 1

    before = next((listed.commits[other].version for other in range(number - 1, -1, -1) if lone(other)), None)
    after = next(
        (listed.commits[other].version for other in range(number + 1, len(listed.commits)) if lone(other)), None
    )
    found = [str(version) for version in (before, after) if version is not None]
    return f"Nearest versions with one branch: {' and '.join(found)}" if found else "No version has one branch alone"


class ManualCommit(NamedTuple):
    """What somebody changes: rows to be written, at the end of a run or as a new one.

    Attributes:
        run: the run.
        drafts: its rows.
    """

    run: RunRow
    drafts: list[NewRow]


def at_rest(
    starter: RunStarter, rest: ThreadHead, parents: tuple[Point, ...], patch: Mapping[str, Any]
) -> ManualCommit:
    """A run that is one commit by hand, and after which the thread is at rest.

    Args:
        starter: of the thread that gets it.
        rest: what that thread has come to, with the state to change and the version of the commit.
        parents: the row that the run goes on from.
        patch: the change.

    Raises:
        NodeOutputError: if the change does not fit the schema.
        InputError: the same for a thread without any run.
    """
    label = starter.label(rest)
    update, state = _fitting(starter, rest, patch, BY_HAND, f"{label}/trunk:0", fresh=not parents)
    commit = Commit("trunk:0", rest.first, BY_HAND, (), 1, 0, update, (), route=(END,), started=time.time())
    begun = manual_commit_row(RowKind.UPDATE, commit, CommitContent(update), starter.fitting.beside)
    drafts = [begun, end_row("completed", digest(state), ())]
    return ManualCommit(RunRow(token_hex(16), starter.thread, parents, starter.header(rest.first, label)), drafts)


def within(
    starter: RunStarter, listed: Callable[[], CommitListing], cut: HistoryPrefix, label: str, patch: Mapping[str, Any]
) -> list[NewRow]:
    """The rows of a commit by hand in an open run, between its last commit and the node that comes next.

    Args:
        starter: of the thread.
        listed: gives the commits of the thread that the run is from.
        cut: where the run stands.
        label: the name of the run for people.
        patch: the change.

    Raises:
        ThreadError: if several branches are live.
        NodeOutputError: if the change does not fit the schema.
    """
    starter.fitting.check_graph(cut.run)
    branch = lone_branch(starter, listed, cut)
    _check_not_begun(starter, cut, branch)
    commit = update_commit(branch, 0, BY_HAND, {}, time.time())
    update, _ = validated(starter, branch.state, patch, BY_HAND, f"{label}/{commit.id}")
    status = cut.run.status or "stopped"
    return [
        manual_commit_row(RowKind.UPDATE, commit._replace(patch=update), CommitContent(update)),
        end_row(status, None, ()),
    ]


def in_the_name_of(
    starter: RunStarter, rest: ThreadHead, parents: tuple[Point, ...], patch: Mapping[str, Any], node: str
) -> ManualCommit:
    """A run that begins with a commit in the name of a node, and goes on along its edges when it is resumed.

    Raises:
        ThreadError: if there is no such node, or no edge that leads on from it.
        NodeOutputError: if the change does not fit the schema.
    """
    blueprint = starter.blueprint
    if node not in blueprint.nodes:
        hint, known = suggestion(node, blueprint.nodes), ", ".join(map(repr, blueprint.nodes))
        raise ThreadError(f"as_node={node!r} is no node of graph {blueprint.name!r}.{hint} Nodes: {known}")
    if not blueprint.exits.get(node):
        raise ThreadError(
            f"no edge leads on from node {node!r}: it says itself where to go, with Command(goto=...), and cannot be "
            "asked. Take the node before it, or t.update(...) without as_node"
        )
    label = starter.label(rest)
    update, _ = _fitting(starter, rest, patch, node, f"{label}/trunk:0", fresh=not parents)
    drafts = [open_row(node, update, time.time(), starter.fitting.beside), end_row("stopped", None, ())]
    return ManualCommit(RunRow(token_hex(16), starter.thread, parents, starter.header(rest.first, label)), drafts)


def _fitting(
    starter: RunStarter, rest: ThreadHead, patch: Mapping[str, Any], author: str, commit_id: str, fresh: bool
) -> tuple[dict[str, Any], ImmutableState]:
    """A change of what a thread has come to, with what makes that fit the graph, if it has changed."""
    starter.fitting.check_graph(rest.last)
    fitted = starter.fitting.adapted(rest.state, rest.last)
    update, _ = validated(starter, fitted.state, patch, author, commit_id, fresh)
    schema = starter.blueprint.topology.schema
    update = fitted.patch(schema, update)
    return update, schema.replay(rest.state, update)


def validated(
    starter: RunStarter,
    state: ImmutableState,
    patch: Mapping[str, Any],
    author: str,
    commit_id: str,
    fresh: bool = False,
) -> tuple[dict[str, Any], ImmutableState]:
    """A change as a commit holds it, and the state after it; a thread without any run gets the defaults with it."""
    schema = starter.blueprint.topology.schema
    if fresh:
        update, after = schema.begin(state, patch, keep=None, commit_id=commit_id)
    else:
        update, after = schema.commit(state, patch, node=author, commit_id=commit_id)
    schema.check_state_limit(None if fresh else author, state, update, after)
    return update, after


# --------------------------------------------------------------------------------------------------------------------
# Merging what two threads, or two runs, have come to: each commit that only one side has is applied once.


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
    ours = set(ancestry(history.log, [] if left is None else [left]))
    theirs = ancestry(history.log, [] if right is None else [right])
    return any(place in ours for place in theirs), right is None or right in ours


def meet(history: History, left: int, right: int, name: str, deciding: PolicyLookup) -> Met:
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
    except JoinFailedError as raised:
        raise raised.error from None
    updates: dict[str, list[Any]] = {}
    for item in join.own:
        if item.mask == _RIGHT_ONLY:
            for field, update in log[item.log_index].commit.patch.items():
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
            merged = merged.set(name, schema.validate_joined(name, value, sides, merged))
    patch = _between(schema, left, merged, {})
    schema.check_state_limit("merge", left, patch, merged)
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
    keys = dict.fromkeys(key for update in updates for one in each_update(update) for key, _ in reducer.parts(one))
    kept = {key: value_at_key(reducer.keyed, new, key) for key in keys}
    return None if DELETE in kept.values() else reducer.keyed.make_update(kept)
