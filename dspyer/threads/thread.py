"""The handle on a stored conversation: `program.thread("t-42")`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any, Literal, NamedTuple

import anyio.to_thread

from dspyer.display.redaction import HIDDEN, Redaction, Redactor
from dspyer.errors import ConcurrentRunError, StoreError, ThreadError
from dspyer.events import Commit, Question
from dspyer.nodes.binding import resources_of
from dspyer.persistence.journal import Journal
from dspyer.persistence.reader import HistoryReader, load_run, read_run
from dspyer.persistence.replay import read_commit_content
from dspyer.persistence.rows import (
    COMMITS,
    CommitContent,
    RowKind,
    digest,
    encode_commit_content,
    end_row,
    manual_commit_row,
)
from dspyer.persistence.snapshot_encoding import SnapshotEncoder
from dspyer.persistence.snapshots import SnapshotState, check_snapshot, new_snapshot, recover_state
from dspyer.runtime.request import Observe, Request, ignore
from dspyer.runtime.run import Counts, Run, counts_in
from dspyer.runtime.streams import AsyncEvents, Events
from dspyer.scheduler.topology import END, START
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, DeletionReport, Point, Row, RunRow, ThreadRow
from dspyer.threads.changes import ManualCommit, Travel
from dspyer.threads.export import export, load, read
from dspyer.threads.graph_changes import AllowChanged
from dspyer.threads.ownership import REPLACE, busy, is_alive, new_owner, pauses
from dspyer.threads.start import OwnedRun, ThreadHead, ThreadLock
from dspyer.threads.status import last_end, status_of, usage_of
from dspyer.threads.time_travel import PastReader

# --------------------------------------------------------------------------------------------------------------------
# Runs that start beside others, without owning their thread, and land at their end: `on_conflict="merge"`.

SNAPSHOT = 24
"""Rows since the last snapshot after which a merge takes one."""


class MergeOnFinish(Travel):
    """Starts runs that own no thread, and merges what they have done into it."""

    def _begin_beside(self, inputs: Mapping[str, Any], request: Request, abandon: bool) -> OwnedRun:
        """Begins a run that goes on from where the thread stands, and leaves it to others meanwhile."""
        starter, rest = self._starter, self._ground(abandon)
        label = f"{self.name}.{token_hex(4)}"  # others begin at the same time
        ahead = starter.ahead(rest, inputs, request, label)
        rows = [draft.numbered(seq) for seq, draft in enumerate(ahead.drafts)]
        starter.store.write(Change(run=ahead.run, rows_of=ahead.run.id, rows=rows))
        journal = Journal(starter.store, "", 0, ahead.run.id, len(rows), starter.blueprint.durability)
        if rest.forms is not None:
            journal.continue_after(rest.tail + len(rows), rest.forms)
        asked = replace(request, run_start=ahead.opening, records=ahead.memo, journal=journal)
        return OwnedRun(asked, journal, new_owner())

    def _ground(self, abandon: bool) -> ThreadHead:
        """What a run goes on from: all that start together need one commit that they have in common."""
        starter = self._starter
        row = starter.store.thread(self.name)
        if row is None or row.head is None:
            self._found(row or ThreadRow(self.name, None, 0))
        rest = starter.rest()
        if rest.broken:
            raise rest.broken_error()
        if not rest.open or rest.row.head is None:
            return rest
        if not is_alive(rest.row):
            if not abandon:
                raise rest.open_error()
            return rest
        running = read_run(starter.store, rest.row.head)
        if not running.parents:
            raise busy(rest.row)  # there is nothing yet that both could go on from
        at = running.parents[0]
        found = recover_state(starter.reader, at)
        return ThreadHead(
            rest.row._replace(head=at), found.last_run, found.state, found.next_version, found.tail, found.encoder
        )

    def _found(self, row: ThreadRow) -> None:
        """Begins a thread with the defaults of its fields."""
        starter, label = self._starter, f"{self.name}.{row.runs + 1}"
        schema = starter.blueprint.topology.schema
        patch, state = schema.begin(ImmutableState(), {}, keep=None, commit_id=f"{label}/trunk:0")
        commit = Commit("trunk:0", 0, START, (), 1, 0, patch, (), route=(END,), started=time.time())
        begun = manual_commit_row(RowKind.UPDATE, commit, CommitContent(patch), starter.fitting.beside)
        drafts = [begun, end_row("completed", digest(state), ())]
        self._write(
            row, ManualCommit(RunRow(token_hex(16), self.name, (), starter.header(0, label)), drafts), self.name
        )

    def _landed(self, run: Run, claim: ThreadLock) -> Run:
        """Brings what a run has done into the thread; one that owns its thread is there already."""
        journal = None if claim.owned is None else claim.owned.journal
        if journal is None or journal.thread or run.status in ("failed", "stopped"):
            return run
        try:
            if run.status != "completed":
                raise ThreadError(
                    f'the run waits for answers, and a run with on_conflict="merge" is nowhere that '
                    f'resume() could find it: use on_conflict="wait" on thread {self.name!r}, or supply the answers '
                    "with compile(interrupts={...})"
                )
            self._land(Point(journal.run, journal.seq - 1), claim.patience)
        except Exception as error:  # noqa: BLE001 - it is the run's
            run.status, run.error = "failed", error
            if not isinstance(error, StoreError):
                journal.write([end_row("failed", None, [(f"join:{self.name}", (), "", error)])], flush=True)
        return run

    def _land(self, tip: Point, patience: float) -> None:
        for pause in pauses(patience):
            try:
                self._land_once(tip)
            except ConcurrentRunError:
                time.sleep(pause)
            else:
                return
        self._land_once(tip)

    def _land_once(self, tip: Point) -> None:
        starter, store = self._starter, self._starter.store
        row = store.thread(self.name)
        if row is None or row.head is None:
            raise ThreadError(f"thread {self.name!r} was removed while a run went on beside it")
        if is_alive(row):
            raise busy(row)
        if row.head in read_run(store, tip).parents:
            store.write(Change(self.name, row.epoch, row.epoch + 1, lease=0.0, head=tip, flush=True))
            return
        rest = starter.rest()
        head = rest.row.head
        if rest.open or head is None:
            raise rest.open_error()
        starter.fitting.check_graph(rest.last)
        beside = row._replace(head=tip)
        met = self._meet(rest.row, beside, self.name, self._deciding(starter.blueprint.topology.policies))
        if met is None:
            return
        by_hand = self._merged(rest, (head, tip), met, self.name)
        kept = None
        if rest.tail >= SNAPSHOT and rest.forms is not None:
            at = Point(by_hand.run.id, len(by_hand.drafts) - 1)
            kept = new_snapshot(at, SnapshotState(met.state, 0), rest.forms)
        self._write(rest.row, by_hand, self.name, kept)
        self._log(met)


# --------------------------------------------------------------------------------------------------------------------
# What is done to a thread as a whole: deleting, pruning, taking it along as a file.


class StoredFailure(NamedTuple):
    """A failure of a stored run, as text: nothing of the exception itself is kept.

    Attributes:
        node: the node that failed.
        branch: the path of its branch.
        execution: the id of the execution.
        type: the class of the exception.
        message: its text.
        traceback: as Python prints it.
    """

    node: str
    branch: tuple[int, ...]
    execution: str
    type: str
    message: str
    traceback: str

    def __str__(self) -> str:
        return f"node {self.node!r} (execution {self.execution!r}) raised {self.type}: {self.message}"


class Upkeep(PastReader):
    """Looks after a thread as a whole."""

    @property
    def failures(self) -> tuple[StoredFailure, ...]:
        """The failures with which the last run ended: also in another process, days later."""
        row = self._starter.store.thread(self.name)
        if row is None or row.head is None:
            return ()
        end = last_end(self._starter.store, row.head)
        if end is None or end.content is None:
            return ()
        found = end.content.value(self._starter.store.blobs, lambda plain: plain)
        return tuple([_failure(one) for one in found])

    @property
    def error(self) -> StoredFailure | None:
        """The first failure with which the last run ended; None if it did not fail."""
        return next(iter(self.failures), None)

    def delete(self, *, take_over: bool = False) -> DeletionReport:
        """Removes the thread, and all of its history that no other thread reaches.

        The store uses the space again; `open_store(address).vacuum()` gives it back to the system.

        Args:
            take_over: removes it from under a run that is at work, which commits nothing more.

        Returns:
            What was removed, and what stayed with the names of the threads that reach it.

        Raises:
            ConcurrentRunError: if a run is at work, or begins to work meanwhile.
            ThreadError: if there is no such thread.
        """
        store = self._starter.store
        while True:
            row = self._row(take_over)
            try:
                return store.delete([self.name], {self.name: row.epoch})
            except ConcurrentRunError:
                if not take_over:
                    raise  # a run has begun since

    def prune(self, before: int | str, *, take_over: bool = False) -> DeletionReport:
        """Removes history: of what came before a commit, as much as whole runs of it make up.

        The runs that were left behind (abandoned, or done again) go too. State, versions and all commits from there on
        stay as they are.

        Args:
            before: version or id of a commit; the run that it belongs to is the first one that stays.
            take_over: does it although a run is at work, which commits nothing more.

        Returns:
            What was removed, and what stayed with the names of the threads that reach it.

        Raises:
            ConcurrentRunError: if a run is at work.
            ThreadError: if there is no such thread, or the run goes on from two threads.
            LookupError: if there is no such commit.
            StoreError: if the state there is larger than is read in one piece; nothing was removed.
        """
        row = self._row(take_over)
        store, listed = self._starter.store, self._known.listed()
        history, at = listed.history, listed.runs[listed.index_of(before)]
        behind = history.runs[at].parents
        if len(behind) > 1:
            raise ThreadError(
                f"the run of commit {before!r} of thread {self.name!r} goes on from two threads: prune before a later "
                "or an earlier one"
            )
        root = None
        if behind and behind[0] != row.root:
            root = behind[0]
            first, earlier = (int(load_run(store, point.run).header.get("first", 0)) for point in (at, root))
            rested = SnapshotState(history.state(history.runs[root].trunk_index), first - 1 - earlier)
            taken = new_snapshot(root, rested, SnapshotEncoder())
            store.write(Change(self.name, row.epoch, snapshot=taken, flush=True))
            if taken.content.is_encoded:  # all that comes before is about to go
                check_snapshot(taken.content, self._starter.reader.fetch, self._starter.reader.decode)
        store.write(Change(self.name, row.epoch, row.epoch + 1, root=root, flush=True))
        return store.delete_unreachable(self.name)

    def export(self, path: str | os.PathLike[str]) -> str:
        """Writes the thread to a file of JSON lines: its runs, their rows, large values, and a digest.

        With `compile(redact=...)` the file shows what may be shown: patches are redacted by their paths, and answers,
        effects, results of single items and texts of errors are left out. It is for people then, and cannot be loaded.

        Args:
            path: the file; it is replaced.

        Returns:
            The digest.

        Raises:
            ThreadError: if there is no such thread.
        """
        redaction = self._program.graph.redaction
        shown = None if redaction is None else partial(_shown, redaction, self._starter.reader)
        return export(self._starter.store, self._row(take_over=True), path, shown)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Makes this thread of a file that `export` has written, in this store or another one.

        Runs that are in the store already are shared, not stored twice.

        Args:
            path: the file.

        Raises:
            ThreadError: if there is a thread of this name.
            StoreError: if the file is not what was exported.
        """
        store = self._starter.store
        if store.thread(self.name) is not None:
            raise ThreadError(f"there is a thread {self.name!r} already: load into another name, or delete it first")
        load(store, self.name, read(path))

    def _row(self, take_over: bool) -> ThreadRow:
        row = self._starter.store.thread(self.name)
        if row is None:
            raise ThreadError(f"there is no thread {self.name!r}")
        if not take_over and is_alive(row):
            raise busy(row, REPLACE)
        return row


def _shown(redaction: Redaction, reader: HistoryReader, row: Row) -> Any:
    """What is shown of a row: patches by their paths; of what has no path, that it is there."""
    if row.kind in (RowKind.OPEN, *COMMITS):
        written = read_commit_content(row.content, reader.fetch, reader.decode)
        patch = None if written.patch is None else redaction.patch(written.patch)
        return encode_commit_content(CommitContent(patch))
    if row.kind == RowKind.END and row.content is not None:
        failed = row.content.value(reader.fetch, lambda plain: plain)
        return [{**one, "message": HIDDEN, "traceback": HIDDEN} for one in failed]
    return HIDDEN


def _failure(found: dict[str, Any]) -> StoredFailure:
    return StoredFailure(**{**found, "branch": tuple(found["branch"])})


Resources = Mapping[type, object] | Sequence[object] | None
OnConflict = Literal["raise", "wait", "merge"]


class Thread(MergeOnFinish, Upkeep):
    """A named conversation: runs over one state, kept in the store of the program.

    Attributes:
        name: its name.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("count", lambda state: {"n": state.get("n", 0) + 1}).add_path(START, "count", END)
        >>> t = graph.compile(store=":memory:").thread("t-42")
        >>> t.run({}).status, t.run({}).status, t.state["n"]
        ('completed', 'completed', 2)
    """

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,
        abandon: bool = False,
        take_over: bool = False,
        live: bool = True,
    ) -> Run:
        """Starts a run that goes on from what the thread has come to.

        Args:
            inputs: the inputs by name; those of fields with a reducer are folded in.
            resources: as in `program.run`; never stored.
            on_conflict: what to do while another run owns the thread: `"raise"`, or `"wait"` until it is free. With
                `"merge"` the run starts at once beside others, owns nothing, and is merged into the thread at its end:
                `t.state` has both. What both have changed is a conflict for the graph's merge policies; if one raises,
                the run has failed and its commits stay. Such a run cannot wait for answers, nor be resumed.
            timeout: seconds to wait, and to try to land.
            abandon: leaves an open run as it is; its commits stay in the history.
            take_over: replaces another owner, who can commit nothing more.
            live: as in `program.run`; whoever resumes the run goes on in the same way.

        Returns:
            The run.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            OpenRunError: if the last run failed, crashed or waits for answers.
            ChangedGraphError: if the thread belongs to a graph of another name, or its values do not fit this one.
            InputError: for missing, unknown or invalid inputs.
            StoreError: if the store fails before the run has begun.
        """
        request = Request(resources_of(resources), live=live)
        return self._play(inputs, self._begin(inputs, request, abandon, take_over, on_conflict, timeout))

    async def arun(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,  # noqa: ASYNC109 - the same in both colours
        abandon: bool = False,
        take_over: bool = False,
        live: bool = True,
    ) -> Run:
        """Starts a run in async code, otherwise like `run`."""
        request = Request(resources_of(resources), live=live)
        claim = self._begin(inputs, request, abandon, take_over, on_conflict, timeout)
        return await self._aplay(inputs, claim)

    def stream(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,
        abandon: bool = False,
        take_over: bool = False,
        live: bool = True,
    ) -> Events:
        """Starts a run like `run` and gives its events as they happen.

        The run begins with the first event that is asked for. Closing the stream early stops it: nothing new starts,
        what runs is finished and committed, and `resume` or `stream_resume` goes on from there.

        Returns:
            An iterator of events; its `run` is there after the last one. If a node failed, its error is raised then; a
            question ends the events.
        """
        request = Request(resources_of(resources), live=live)
        claim = self._begin(inputs, request, abandon, take_over, on_conflict, timeout)
        return Events(lambda observe: self._play(inputs, claim, observe), request)

    def astream(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,
        abandon: bool = False,
        take_over: bool = False,
        live: bool = True,
    ) -> AsyncEvents:
        """Starts a run in async code and gives its events as they happen, otherwise like `stream`."""
        request = Request(resources_of(resources), live=live)
        claim = self._begin(inputs, request, abandon, take_over, on_conflict, timeout)
        return AsyncEvents(lambda observe: self._aplay(inputs, claim, observe), request)

    def resume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: AllowChanged = False,
    ) -> Run:
        """Goes on with the last run where it stands: after a failure, a crash, or a question.

        What has finished is not called again.

        Args:
            answers: answers to open questions, by `Question.id`. A key does where exactly one open question has it; it
                means whatever is open now, so an answer that may be delivered late or twice must come by id.
            resources: as in `program.run`: they are never stored.
            take_over: replaces another owner, who can commit nothing more.
            max_resumes: how often a run may be taken up without coming any further.
            allow_changed_graph: whether a graph may go on that has changed since the run was begun (other nodes, edges,
                fields, policies: code, prompts and language models may always differ), as far as what the log says
                still has a place in it. A mapping gives new names of nodes by their old ones.

        Returns:
            The run, with the commits from its beginning.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            ChangedGraphError: if the graph has changed, with what is different. Nothing was called then.
            ThreadError: if there is nothing to resume, or an answer answers no open question.
            StoreError: if the store fails before anything has run.
        """
        request = Request(resources_of(resources))
        return self._play({}, self._take_up(answers, request, take_over, max_resumes, allow_changed_graph))

    async def aresume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: AllowChanged = False,
    ) -> Run:
        """Goes on with the last run in async code, otherwise like `resume`."""
        request = Request(resources_of(resources))
        return await self._aplay({}, self._take_up(answers, request, take_over, max_resumes, allow_changed_graph))

    def stream_resume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: AllowChanged = False,
    ) -> Events:
        """Goes on with the last run like `resume` and gives the events of what happens now, as they happen.

        Returns:
            An iterator of events, as of `stream`.
        """
        request = Request(resources_of(resources))
        claim = self._take_up(answers, request, take_over, max_resumes, allow_changed_graph)
        return Events(lambda observe: self._play({}, claim, observe), request)

    def astream_resume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: AllowChanged = False,
    ) -> AsyncEvents:
        """Goes on with the last run in async code and gives the events, otherwise like `stream_resume`."""
        request = Request(resources_of(resources))
        claim = self._take_up(answers, request, take_over, max_resumes, allow_changed_graph)
        return AsyncEvents(lambda observe: self._aplay({}, claim, observe), request)

    def _begin(
        self,
        inputs: Mapping[str, Any],
        request: Request,
        abandon: bool,
        take_over: bool,
        on_conflict: str,
        timeout: float,
    ) -> ThreadLock:
        self._program._check_resources(request)
        own = partial(self._starter.begin, inputs, request, abandon=abandon, take_over=take_over)
        if on_conflict == "merge":
            own = partial(self._begin_beside, inputs, request, abandon)
        return ThreadLock(own, request, on_conflict, timeout)

    def _take_up(
        self,
        answers: Mapping[str, Any] | None,
        request: Request,
        take_over: bool,
        max_resumes: int,
        allow: AllowChanged,
    ) -> ThreadLock:
        self._program._check_resources(request)
        take_up = self._starter.take_up
        own = partial(take_up, answers, request, take_over=take_over, max_resumes=max_resumes, allow=allow)
        return ThreadLock(own, request, "raise", 0.0)

    def _play(self, inputs: Mapping[str, Any], claim: ThreadLock, observe: Observe = ignore) -> Run:
        return self._landed(self._play_held(inputs, claim, observe), claim)

    async def _aplay(self, inputs: Mapping[str, Any], claim: ThreadLock, observe: Observe = ignore) -> Run:
        return await self._alanded(await self._aplay_held(inputs, claim, observe), claim)

    # These hold no run in a variable: the traceback of its error refers to their frames.

    def _play_held(self, inputs: Mapping[str, Any], claim: ThreadLock, observe: Observe) -> Run:
        with claim.held() as owned:
            return self._program._run(inputs, owned.request, observe)

    async def _aplay_held(self, inputs: Mapping[str, Any], claim: ThreadLock, observe: Observe) -> Run:
        async with claim.aheld() as owned:
            return await self._program._arun(inputs, owned.request, observe)

    async def _alanded(self, run: Run, claim: ThreadLock) -> Run:
        if claim.owned is None or claim.owned.journal.thread:
            return run
        return await anyio.to_thread.run_sync(self._landed, run, claim)

    @property
    def state(self) -> ImmutableState:
        """What the thread has come to: the last state that all branches of its last run shared.

        Raises:
            StoreError: if the newest commits cannot be read, for want of the right key for example. It names the last
                version that can: `t.at(version)`.
        """
        rest = self._starter.readable()
        return self._starter.fitting.shown(rest.state, rest.last)

    @property
    def status(self) -> str:
        """`"new"`, `"running"`, or how the last run ended: `"completed"`, `"failed"`, `"interrupted"`, `"stopped"`,
        `"crashed"`.
        """
        return status_of(self._starter.store, self.name)

    @property
    def usage(self) -> dict[str, dict[str, Any]]:
        """Tokens by language model, of all runs in its history, those of other processes too. What a process used that
        was killed is not known.

        It reads the whole history.
        """
        return usage_of(self._starter.store, self.name)

    @property
    def counts(self) -> dict[str, Counts]:
        """How often each node of the graph has run and called predictors and tools, over all runs in its history.

        It reads the whole history; `run.counts` has those of one run.
        """
        return counts_in(self.history(), self._program.graph.nodes)

    @property
    def questions(self) -> tuple[Question, ...]:
        """What the last run waits to be told."""
        questions, redaction = self._starter.questions(), self._program.graph.redaction
        if not questions or redaction is None:
            return questions
        shown: tuple[Question, ...] = Redactor(redaction, dict(self._starter.readable().state.raw_items())).shown(
            questions
        )
        return shown

    def __repr__(self) -> str:
        return f"<thread {self.name!r} in {self._store.address}>"
