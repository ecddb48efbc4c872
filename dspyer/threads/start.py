"""How a thread gets a run: a new one, or its last one taken up again. Everything is checked before it is owned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any, NamedTuple

import anyio

from dspyer.blocking import cancellation_count, run_in_thread
from dspyer.errors import (
    ChangedGraphError,
    ConcurrentRunError,
    DspyerError,
    OpenRunError,
    RunStoppedError,
    StoreError,
    ThreadError,
)
from dspyer.events import Question
from dspyer.graph.spec import GraphSpec
from dspyer.persistence.execution_records import ExecutionRecords, answer_row
from dspyer.persistence.journal import Journal
from dspyer.persistence.reader import HistoryReader, RunRows, read_run
from dspyer.persistence.replay import replay
from dspyer.persistence.rows import COMMITS, CommitHeader, NewRow, RowKind, end_row, open_row, resume_row
from dspyer.persistence.snapshot_encoding import SnapshotEncoder
from dspyer.persistence.snapshots import recover_state
from dspyer.runtime.request import Request, RunStart
from dspyer.scheduler.run_state import RunState
from dspyer.scheduler.schedule import start
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, Owner, Point, RunRow, Store, ThreadRow
from dspyer.threads.graph_changes import AllowChanged, GraphCompatibility
from dspyer.threads.graph_fingerprint import GraphFingerprint
from dspyer.threads.ownership import LEASE, REPLACE, WAIT_OR_REPLACE, busy, is_alive, leases, new_owner, pauses
from dspyer.threads.status import given_answers, questions_in, resumes
from dspyer.threads.views_across_runs import EarlierRuns, Older, PreviousRuns, RecentIndexes


class OwnedRun(NamedTuple):
    """A run that this process owns: what its call asks for, and how it is given back."""

    request: Request
    journal: Journal
    owner: Owner


class FirstWrite(NamedTuple):
    """What is about to be written and run.

    Attributes:
        run: the run.
        seq: the number of its next row.
        drafts: its next rows.
        opening: where it stands.
        memo: what it remembers.
    """

    run: RunRow
    seq: int
    drafts: list[NewRow]
    opening: RunStart
    memo: ExecutionRecords


class RunStarter:
    """Starts and takes up the runs of one thread.

    Args:
        blueprint: the graph.
        store: where the thread is kept.
        thread: its name.
        reader: reads it.
        shape: the shape of the graph.
        older: gives all commits up to a row, for views.
        recent: what views keep between runs.
    """

    def __init__(
        self,
        blueprint: GraphSpec,
        store: Store,
        thread: str,
        reader: HistoryReader,
        shape: GraphFingerprint,
        older: Older,
        recent: RecentIndexes,
    ) -> None:
        self.fitting = GraphCompatibility(thread, blueprint, shape, reader)
        self.blueprint = blueprint
        self.store = store
        self.thread = thread
        self.reader = reader
        self.older = older
        self.recent = recent

    def rest(self) -> ThreadHead:
        """What the thread has come to."""
        row = self.store.thread(self.thread) or ThreadRow(self.thread, None, 0)
        return ThreadHead(row, None, ImmutableState(), 0) if row.head is None else self.rest_at(row, row.head)

    def rest_at(self, row: ThreadRow, at: Point) -> ThreadHead:
        """A thread that goes on from a row.

        Args:
            row: the thread.
            at: the row.
        """
        found = recover_state(self.reader, at)
        end = found.tail, found.encoder, found.broken, found.last_good
        return ThreadHead(row, found.last_run, found.state, found.next_version, *end)

    def readable(self) -> ThreadHead:
        """What the thread has come to.

        Raises:
            StoreError: if its newest commits cannot be read; it names the last version that can.
        """
        rest = self.rest()
        if rest.broken:
            raise rest.broken_error()
        return rest

    def questions(self) -> tuple[Question, ...]:
        """What the last run waits to be told."""
        row = self.store.thread(self.thread)
        if row is None or row.head is None:
            return ()
        memo = ExecutionRecords()
        memo.read(questions_in(self.store, row.head), self.reader.fetch, self.reader.decode)
        return memo.open_questions()

    def before(self, of: RunRows) -> tuple[ImmutableState, int]:
        """The state that a run goes on from, and the version of its first commit."""
        first = int(of.run.header.get("first", 0))
        if not of.parents:
            return ImmutableState(), first
        return recover_state(self.reader, of.parents[0]).state, first

    def begin(self, inputs: Mapping[str, Any], request: Request, *, abandon: bool, take_over: bool) -> OwnedRun:
        """Makes a new run and owns the thread for it.

        Args:
            inputs: the inputs by name.
            request: what the call asks for beside them.
            abandon: whether an open run is left as it is.
            take_over: whether an owner that is alive is replaced.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            OpenRunError: if its last run was not finished.
            InputError: for missing, unknown or invalid inputs.
        """
        return self.own(lambda rest: self._new(rest, inputs, request, abandon), request, take_over, WAIT_OR_REPLACE)

    def take_up(
        self,
        answers: Mapping[str, Any] | None,
        request: Request,
        *,
        take_over: bool,
        max_resumes: int,
        allow: AllowChanged = False,
    ) -> OwnedRun:
        """Owns the thread to go on with its last run.

        Args:
            answers: answers to open questions, by key or id.
            request: what the call asks for beside them.
            take_over: whether an owner that is alive is replaced.
            max_resumes: how often a run may be taken up without coming further.
            allow: whether another graph may go on with it, or new names of nodes by their old ones.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            ChangedGraphError: if the graph is another one, or does not fit.
            ThreadError: if there is nothing to go on with, or an answer answers no open question.
        """
        return self.own(lambda rest: self._last(rest, answers or {}, max_resumes, allow), request, take_over)

    def _new(self, rest: ThreadHead, inputs: Mapping[str, Any], request: Request, abandon: bool) -> FirstWrite:
        if rest.open and not abandon:
            raise rest.open_error()
        if rest.broken and (not abandon or rest.good is None):  # a wrong key is no reason to begin from nothing
            raise rest.broken_error()
        return self.ahead(rest, inputs, request, self.label(rest))

    def ahead(self, rest: ThreadHead, inputs: Mapping[str, Any], request: Request, label: str) -> FirstWrite:
        """A new run that goes on from what the thread has come to.

        Args:
            rest: that.
            inputs: the inputs by name.
            request: what the call asks for.
            label: the name of the run for people.
        """
        self.fitting.check_graph(rest.last)
        fitted = self.fitting.adapted(rest.state, rest.last)
        self.blueprint.check_inputs(inputs, self._kept(fitted.state))
        schema, keep = self.blueprint.topology.schema, self.blueprint.keep
        patch, _ = schema.begin(fitted.state, inputs, keep=keep, commit_id=f"{label}/trunk:0")
        patch = fitted.patch(schema, patch)
        state = schema.replay(rest.state, patch)
        schema.check_state_limit(None, rest.state, patch, state)
        head = rest.good if rest.broken else rest.row.head
        parents = () if head is None else (head,)
        header = self.header(rest.first, label)
        if not request.live:
            header["live"] = False
        run = RunRow(token_hex(16), self.thread, parents, header)
        begun = start(self.blueprint.topology, rest.state, rest.first)
        earlier = self._earlier(parents, rest.state, rest.first, rest.row)
        opening = RunStart(begun, patch, state, run.id, (label,), earlier)
        return FirstWrite(run, 0, [open_row(START, patch, beside=self.fitting.beside)], opening, ExecutionRecords())

    def _last(self, rest: ThreadHead, answers: Mapping[str, Any], max_resumes: int, allow: AllowChanged) -> FirstWrite:
        if not rest.open or rest.row.head is None:
            what = "has no run yet" if rest.last is None else "has finished its last run"
            raise ThreadError(f"thread {self.thread!r} {what}: there is nothing to resume; start a run with t.run(...)")
        if rest.broken:
            raise rest.broken_error()
        last, names = self.fitting.allowed(read_run(self.store, rest.row.head), allow)
        memo = ExecutionRecords()
        memo.read(last.rows, self.reader.fetch, self.reader.decode)
        memo.resumes += 1
        drafts: list[NewRow] = []
        for key, frozen in given_answers(memo, answers, self.blueprint).items():
            memo.answers[key] = frozen
            drafts.append(answer_row(key, frozen))
        opening = self.again(last, memo)
        moved: list[NewRow] = []
        if names is not None:
            opening, moved = self.fitting.going_on(opening, last)
        count = 1 + resumes(last.rows)
        running = sorted(opening.run.running) or [group.position[0] for group in opening.run.ready]
        if count > max_resumes:
            raise ThreadError(
                f"the last run of thread {self.thread!r} was taken up {max_resumes} times and came no further; open: "
                f"{', '.join(running)}. Look for what kills its process, then allow more with "
                f"resume(max_resumes={2 * max_resumes}), or leave it with t.run(..., abandon=True)"
            )
        drafts += [resume_row(count, running, None if names is None else self.fitting.beside), *moved]
        run, seq = last.run, rest.row.head.seq + 1
        if names is not None or run.thread != self.thread or self.store.rows(run.id, seq, seq):
            run, seq = self.next_part(rest, run, rest.row.head, names=names), 0
            opening = opening._replace(run_id=run.id, label=(run.header["label"],))
        return FirstWrite(run, seq, drafts, opening, memo)

    def next_part(
        self,
        rest: ThreadHead,
        of: RunRow,
        at: Point,
        gone: Sequence[tuple[int, int]] = (),
        names: Mapping[str, str] | None = None,
    ) -> RunRow:
        """A further part of a run.

        Args:
            rest: what the thread has come to.
            of: the part before.
            at: the row that it goes on from.
            gone: spans of the rows up to there that do not count.
            names: if another graph goes on: new names of nodes by their old ones.
        """
        header = {**of.header, "continues": True, "label": self.label(rest), "without": [list(span) for span in gone]}
        if not gone:
            del header["without"]
        header.pop("names", None)
        if names is not None:
            header.pop("named", None)
            header |= self.graph()
        if names:
            header["names"] = dict(names)
        return RunRow(token_hex(16), self.thread, (at,), header)

    def label(self, rest: ThreadHead) -> str:
        """The name of the next run for people, and in front of what is named after its commits."""
        return f"{self.thread}.{rest.row.runs + 1}"

    def header(self, first: int, label: str) -> dict[str, Any]:
        """What a run says about itself from the start."""
        return {**self.graph(), "first": first, "label": label}

    def graph(self) -> dict[str, Any]:
        """What a run says about the graph that makes it."""
        about = {"graph": self.blueprint.name, "shape": self.fitting.shape.id}
        return {**about, "named": True} if self.blueprint.named else about

    def again(self, last: RunRows, memo: ExecutionRecords) -> RunStart:
        """A run as its rows left it.

        Args:
            last: the run.
            memo: what it remembers.
        """
        before, first = self.before(last)
        found = self.reader.opening_patch(last.rows)
        if found is None:
            raise ThreadError(f"the last run of thread {self.thread!r} has no opening: leave it with abandon=True")
        node, patch = found
        topology = self.blueprint.topology
        schema_at = self.reader.schema_by_row(last)
        state = schema_at(next(row for row in last.rows if row.kind == RowKind.OPEN)).replay(before, patch)
        begun: RunState = start(topology, before, first, node)
        try:
            rows = memo.commits(())
            run = replay(begun, rows, (patch, state), self.reader.fetch, self.reader.decode, schema_at)
        except ChangedGraphError as error:
            raise self.fitting.explained(error, last) from None
        label = str(last.run.header.get("label", self.thread))
        earlier = self._earlier(last.parents, before, first, self.store.thread(self.thread))
        return RunStart(run, patch, state, last.run.id, (label,), earlier, _taken(last))

    def _earlier(
        self, heads: tuple[Point, ...], state: ImmutableState, first: int, row: ThreadRow | None
    ) -> EarlierRuns | None:
        """What lies behind a run, for its views; None for nothing."""
        if not heads or row is None:
            return None
        return EarlierRuns(
            self.blueprint, self.reader, self.older, self.recent, PreviousRuns(heads[0], row, state, first)
        )

    def own(
        self, ahead_of: Callable[[ThreadHead], FirstWrite], request: Request, take_over: bool, fix: str = REPLACE
    ) -> OwnedRun:
        """Owns the thread for a run.

        Args:
            ahead_of: says what is about to be written and run, from what the thread has come to; checks it.
            request: what the call asks for.
            take_over: whether an owner that is alive is replaced.
            fix: what the caller can do about an owner that is alive.

        Raises:
            ConcurrentRunError: if another run owns the thread.
        """
        rest = self.rest() if take_over else self._free(fix)
        ahead = ahead_of(rest)  # everything is checked before anything is written
        owner = new_owner()
        replaced: Journal | None = None
        try:
            if rest.row.owner is not None:  # it may be at work after all: what it has written until now is kept
                replaced = self._replace(rest.row, owner)
                rest = self.rest()
                ahead = ahead_of(rest)
            return self._begun(rest, ahead, owner, request)
        except BaseException:
            leases.let_go(owner.token)
            if replaced is not None:
                replaced.release()
            raise

    def _free(self, fix: str) -> ThreadHead:
        """What a thread has come to that nobody works on."""
        while True:
            row = self.store.thread(self.thread)
            if row is not None and is_alive(row):
                raise busy(row, fix)
            rest = self.rest()
            if rest.row.owner is None:
                return rest
            if is_alive(rest.row):
                raise busy(rest.row, fix)
            last = self.store.thread(self.thread)
            if last is None or last[1:4] == rest.row[1:4]:  # it has written nothing between the read and its end
                return rest

    def _replace(self, row: ThreadRow, owner: Owner) -> Journal:
        """Owns a thread that has an owner, who can write nothing more."""
        journal = Journal(self.store, self.thread, 0, "", 0)
        leases.hold(owner.token, journal)
        journal.set_epoch(self.store.write(Change(self.thread, row.epoch, row.epoch + 1, owner, LEASE)))
        return journal

    def _begun(self, rest: ThreadHead, ahead: FirstWrite, owner: Owner, request: Request) -> OwnedRun:
        row = rest.row
        run, seq = ahead.run, ahead.seq
        rows = [draft.numbered(seq + place) for place, draft in enumerate(ahead.drafts)]
        journal = Journal(self.store, self.thread, 0, run.id, seq + len(rows), self.blueprint.durability)
        journal.continue_after(rest.tail + len(rows), rest.forms or SnapshotEncoder())
        leases.hold(owner.token, journal)  # before anybody can see that it owns the thread
        head, begun = Point(run.id, rows[-1].seq), run if not seq else None
        next_epoch = row.epoch + 1 if row.epoch else None
        change = Change(self.thread, row.epoch, next_epoch, owner, LEASE, head, None, begun, run.id, rows, flush=True)
        journal.set_epoch(self.store.write(change))
        live = run.header.get("live", True)
        asked = replace(request, live=live, run_start=ahead.opening, records=ahead.memo, journal=journal)
        return OwnedRun(asked, journal, owner)

    def _kept(self, state: ImmutableState) -> frozenset[str]:
        keep = self.blueprint.keep
        return frozenset(name for name in state if keep is None or name in keep)


def _taken(run: RunRows) -> tuple[tuple[int, str], ...]:
    """What stands before the ids of the commits of a run, by part, with the place at which the next part begins."""
    found: list[tuple[int, str]] = []
    count = 0
    for row, point in zip(run.rows, run.points, strict=True):
        if row.kind in COMMITS and not CommitHeader.parse(row.header).scope:
            count += 1
            prefix = f"{run.labels[point.run]}/"
            if found and found[-1][1] == prefix:
                found.pop()
            found.append((count, prefix))
    return tuple(found)


# --------------------------------------------------------------------------------------------------------------------
# What a thread has come to, and why nothing can go on from there.


class ThreadHead(NamedTuple):
    """What a thread has come to.

    Attributes:
        row: where it stands.
        last: its last run, as far as it was read; None if it has none.
        state: the last state that all branches of it shared.
        first: the version that the next commit gets.
        tail: how many rows there are since the last snapshot.
        forms: what is known of the forms of its states.
        broken: why a commit cannot be read; "" if all can. State and version are those before it.
        good: the row of the last commit that can be read, if one cannot.
    """

    row: ThreadRow
    last: RunRows | None
    state: ImmutableState
    first: int
    tail: int = 0
    forms: SnapshotEncoder | None = None
    broken: str = ""
    good: Point | None = None

    @property
    def open(self) -> bool:
        """Whether its last run was not finished."""
        return self.last is not None and self.last.status != "completed"

    def open_error(self) -> OpenRunError:
        """The error that the last run was not finished."""
        status = self.last.status if self.last else None
        what = {"failed": "failed", "interrupted": "waits for answers", "stopped": "was stopped"}.get(
            str(status), "crashed"
        )
        return OpenRunError(
            f"the last run of thread {self.row.name!r} {what}: go on with it, t.resume(), or leave it, "
            "t.run(..., abandon=True)"
        )

    def broken_error(self) -> StoreError:
        """The error that a thread has a commit that nobody can read."""
        last = self.first - 1
        way_on = (
            f". What came before it can be read, t.history() and t.at(...); go on from version {last} with "
            f"t.run(..., abandon=True), or on a copy, t.copy(to=..., at={last})"
        )
        return StoreError(f"thread {self.row.name!r}: {self.broken}{way_on if last >= 0 else ''}")


# --------------------------------------------------------------------------------------------------------------------
# Holding a thread while a run works on it: got at once or once it is free, and given back whatever happens.


class ThreadLock:
    """The wish to own a thread for one run.

    Args:
        own: owns it, or raises `ConcurrentRunError`.
        request: what the run is asked for.
        on_conflict: what to do while another run owns the thread.
        timeout: seconds to wait.

    Attributes:
        patience: seconds to wait.
        owned: the run, once the thread is owned.

    Raises:
        ThreadError: for an `on_conflict` that is none.
    """

    def __init__(self, own: Callable[[], OwnedRun], request: Request, on_conflict: str, timeout: float) -> None:
        if on_conflict not in ("raise", "wait", "merge"):
            raise ThreadError(f'on_conflict={on_conflict!r}: it is "raise", "wait" or "merge"')
        self._own = own
        self._request = request
        self.patience = 0.0 if on_conflict == "raise" else timeout
        self.owned: OwnedRun | None = None

    @contextmanager
    def held(self) -> Iterator[OwnedRun]:
        """Owns the thread for the block, in which the run is given."""
        for pause in self._pauses():
            if self._try():
                break
            time.sleep(pause)
        else:
            self._take()
        assert self.owned is not None
        try:
            yield self.owned
        finally:
            _give_back(self.owned)

    @asynccontextmanager
    async def aheld(self) -> AsyncIterator[OwnedRun]:
        """The same in async code. A cancellation waits until it is known whether the thread is owned."""
        before = cancellation_count()
        try:
            for pause in self._pauses():
                if await run_in_thread(self._try):
                    break
                if cancellation_count() > before:
                    raise asyncio.CancelledError
                await anyio.sleep(pause)
            else:
                await run_in_thread(self._take)
            if cancellation_count() > before:
                raise asyncio.CancelledError
            assert self.owned is not None
            yield self.owned
        finally:
            owned = self.owned
            if owned is not None and _is_over(owned):
                _give_back(owned)
            elif owned is not None:
                with anyio.CancelScope(shield=True):
                    await run_in_thread(lambda: _give_back(owned))

    def _take(self) -> None:
        self.owned = self._own()

    def _try(self) -> bool:
        try:
            self._take()
        except ConcurrentRunError:
            return False
        return True

    def _pauses(self) -> Iterator[float]:
        """How long to wait before the next look, until the time is over."""
        for pause in pauses(self.patience):
            reason = self._request.stop_signal.reason
            if reason is not None:
                raise RunStoppedError(
                    f"the run was stopped while it waited for its thread: {reason}. Nothing was started", reason
                )
            yield pause


def _is_over(owned: OwnedRun) -> bool:
    """Whether the run has written how it ended, and with that gave the thread back."""
    return bool(owned.request.outcome.sessions) and owned.request.outcome.sessions[-1].end_written


def _give_back(owned: OwnedRun) -> None:
    """Ends the work on a thread.

    A run that was stopped before its first step says so; one that cannot say how it ended gives the thread back only.
    """
    try:
        if not owned.request.outcome.sessions:
            with suppress(DspyerError):  # else the thread is given back below, or its lease runs out
                owned.journal.write([end_row("stopped", None, ())], flush=True, release=True)
        if not _is_over(owned):
            owned.journal.release()
    finally:
        leases.let_go(owned.owner.token)
