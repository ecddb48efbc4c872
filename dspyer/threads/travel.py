"""Going back in a thread, and changing it by hand: copies, reruns, updates, merges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Self

from dspyer.errors import ThreadError
from dspyer.events import Commit
from dspyer.nodes.binding import resources_of
from dspyer.persistence.execution_records import ExecutionRecords
from dspyer.persistence.history import History
from dspyer.persistence.rows import NewRow, end_row, resume_row
from dspyer.policies import Conflict, Policies
from dspyer.runtime.request import Request
from dspyer.runtime.run import Run
from dspyer.runtime.session import log_conflict
from dspyer.scheduler.join import Deciding
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, Point, RunRow, Snapshot, ThreadRow
from dspyer.threads.claiming import ThreadLock
from dspyer.threads.cuts import ManualCommit, at_rest, in_the_name_of, lone_branch, prefix_at, prefix_here, within
from dspyer.threads.merging import Met, common, meet, meet_from, merge_rows
from dspyer.threads.owning import busy, is_alive
from dspyer.threads.past import Moment, PastReader
from dspyer.threads.rest import ThreadHead
from dspyer.threads.starting import FirstWrite

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
        with self._again_from(from_version, request, take_over).held():
            return self._program._run({}, request)

    async def arerun(self, from_version: int | str, *, resources: Resources = None, take_over: bool = False) -> Run:
        """Goes back to a commit in async code, otherwise like `rerun`."""
        request = Request(resources_of(resources))
        async with self._again_from(from_version, request, take_over).aheld():
            return await self._program._arun({}, request)

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

    def _meet(self, left: ThreadRow, right: ThreadRow, name: str, deciding: Deciding) -> Met | None:
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
        return history, history.runs[left.head].resting, history.runs[right.head].resting

    def _deciding(self, policies: Policies) -> Deciding:
        """What decides conflicts; what does not outlive a run is none between two of them."""

        def deciding(path: tuple[Any, ...]) -> tuple[str, Callable[[Conflict], Any]]:
            return policies.deciding(path) if self._keeps(path[0]) else ("last_write_wins", _right)

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
        first = rest.first + self._known.history.settled_beside(*heads)
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
            running = sorted(opening.run.running) or [group.place[0] for group in opening.run.ready]
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
