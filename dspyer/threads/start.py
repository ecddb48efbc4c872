"""The beginning of a run of a thread: a new run, or the last one resumed or as it is stored.

A `StoredThread` is one thread in the store of a program. It reads the head, checks what a caller gives, and builds the
run in memory. It writes nothing: `playing` acquires the thread and writes the rows of a `FirstWrite`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from time import time
from typing import Any, Literal, NamedTuple, Protocol

from dspyer.errors import (
    ChangedGraphError,
    ConcurrentRunError,
    InputError,
    OpenRunError,
    QuestionExpired,
    StoreError,
    ThreadError,
    brief,
    suggestion,
)
from dspyer.events import Answer, Question
from dspyer.graph.spec import GraphSpec, check_inputs, check_inputs_by_name
from dspyer.ids import FIRST, Address, full_id, id_prefix, label_of, new_run_id
from dspyer.log.execution_records import (
    EXPIRED,
    ExecutionRecords,
    RecordKey,
    expired_text,
    has_expired,
    no_answer,
    run_usage,
    totals_at,
)
from dspyer.log.history import FoldedRun, recover_state
from dspyer.log.journal import CheckedStore, Journal, is_alive
from dspyer.log.reader import HistoryReader, RunRows, SinceSnapshot, check_thread_name, read_run
from dspyer.log.replay import replay
from dspyer.log.rows import (
    LONGEST_NOTE,
    NO_BLOBS,
    AnswerRow,
    DraftRow,
    EndRow,
    OpenRow,
    ResumeRow,
    RowKind,
    end_row,
    first_version,
    row_time,
)
from dspyer.log.time_travel import (
    TOOK,
    ThreadReader,
    open_questions,
    progress_at,
    resumes_without_progress,
)
from dspyer.nodes.attempt import check_shape, schema_of, validated
from dspyer.record_codec import changed
from dspyer.redaction import HIDDEN
from dspyer.runtime.request import Request, RunStart
from dspyer.scheduler.schedule import NOTHING_READY, RunState, Suspended, advance, start
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, Point, RunRow, Store, ThreadRow
from dspyer.stores.memory import Memory
from dspyer.threads.graph_changes import (
    Adapted,
    GraphCompatibility,
    OtherGraphs,
    StorableCheck,
    decoder,
    fingerprint_of,
)
from dspyer.threads.views_across_runs import EarlierRuns
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import thaw
from dspyer.values.json import with_valid_text
from dspyer.values.persistent import PersistentVector

Resources = Mapping[type, object] | Sequence[object] | None
AnswersByKey = Mapping[str, Any] | None
OnConflict = Literal["raise", "wait"]
IfOpen = Literal["refuse", "amend", "abandon"]

MAX_RESUMES = 10
"""How often a run is resumed without progress: the default of `resume(max_resumes=)`."""

DONE = ("completed", "interrupted")
"""How a run ends that has nothing more to do, unless a new answer comes."""

# What an error about a live owner advises, by the options that the refused call has.
WAIT = "try again when it has ended (t.status)"
REPLACE = f"{WAIT}, or replace the owner with take_over=True"


class ThreadProgram(Protocol):
    """The compiled graph, as far as a thread needs it: a protocol, so that `threads` imports no program."""

    @property
    def graph(self) -> GraphSpec: ...


class ThreadHead(NamedTuple):
    """The end of a thread's history, where its next run begins.

    Attributes:
        row: the thread's row in the store.
        last_run: the last run, as far as it was read; None for a thread without runs.
        last_readable: the row of the last commit that can be read, if the newest cannot. The others are in the order of
            `RecoveredState`, whose attributes they are.
    """

    row: ThreadRow
    state: ImmutableState = ImmutableState()
    next_version: int = 0
    last_run: RunRows | None = None
    tail: SinceSnapshot = SinceSnapshot()
    broken: str = ""
    last_readable: Point | None = None

    @property
    def open(self) -> bool:
        """Return whether the last run was not finished."""
        return self.last_run is not None and self.last_run.status != "completed"

    def open_error(self, questions: Sequence[Question] = ()) -> OpenRunError:
        """The error for a call that needs a finished last run; `questions` are those that it waits for."""
        status = self.last_run.status if self.last_run else None
        ended = {"failed": "failed", "interrupted": "waits for answers", "stopped": "was stopped"}
        answers, more = "", ""
        if status == "interrupted":
            answers, more = "{'key': answer}", "; an agent reads the inputs in that run with if_open='amend'"
        return OpenRunError(
            f"the last run of thread {self.row.name!r} {ended.get(str(status), 'crashed')}: resume it with "
            f"thread.resume({answers}), or abandon it with thread.run(..., if_open='abandon'){more}",
            questions,
        )

    def broken_error(self) -> StoreError:
        """The error for a call that needs commits that cannot be read."""
        last = self.next_version - 1
        remedy = (
            f". What came before it can be read with thread.history() and thread.at(...); continue from version "
            f"{last} with thread.run(..., if_open='abandon'), or on a copy, thread.copy(to=..., at={last})"
        )
        return StoreError(f"thread {self.row.name!r}: {self.broken}{remedy if last >= 0 else ''}")


class FirstWrite(NamedTuple):
    """A run that is ready to start, and the rows that are written before it does.

    Attributes:
        run: the run, or the part of it that the rows belong to.
        first_seq: the number of the first of the rows; 0 if the run is new in the store.
        rows: the rows.
        start: the run in memory.
        records: what earlier attempts left: answers, effects, results of items.
    """

    run: RunRow
    first_seq: int
    rows: list[DraftRow]
    start: RunStart
    records: ExecutionRecords


class StoredThread:
    """One thread in the store of a program: its head, and what its runs begin with."""

    def __init__(self, program: ThreadProgram, store: Store, name: str, others: OtherGraphs) -> None:
        check_thread_name(name)
        graph, schema, fingerprint = program.graph, program.graph.topology.schema, fingerprint_of(program)
        # A store in memory keeps the values themselves, whatever their classes are; others must be able to read them.
        check = None if isinstance(store, Memory) else StorableCheck(graph.name, schema)
        self.program, self.graph, self.schema, self.name = program, graph, schema, name
        self.store = CheckedStore(store, check, name)
        self.reader = HistoryReader(self.store, schema, decoder(schema), fingerprint.id, graph.redaction)
        self.compatibility = GraphCompatibility(name, graph, fingerprint, self.reader, others)

    @cached_property
    def history(self) -> ThreadReader:
        """The reader of its past, which a run does not need."""
        return ThreadReader(self.reader, self.name)

    # --- the head of the thread

    def load_head(self) -> ThreadHead:
        """The end of the thread's history."""
        return self._head_of(self.store.thread(self.name))

    def _head_of(self, row: ThreadRow | None) -> ThreadHead:
        """The end of a thread by its row: remembered, if this process has written it, else read."""
        if row is None or row.head is None:
            return ThreadHead(row or ThreadRow(self.name, None, 0))
        # By the class of states, since another graph may read the same values as other classes.
        known = self.store.heads.get(row, self.schema.model)
        return self.head_at(row, row.head) if known is None else ThreadHead(row, *known)

    def head_at(self, row: ThreadRow, at: Point) -> ThreadHead:
        """The head of a thread as if it ended at a row."""
        return ThreadHead(row, *recover_state(self.reader, at))

    def readable_head(self) -> ThreadHead:
        """The end of the thread's history; raises `StoreError` if its newest commits cannot be read."""
        head = self.load_head()
        if head.broken:
            raise head.broken_error()
        return head

    def load_free_head(self, remedy: str) -> ThreadHead:
        """The head of a thread without a live owner; raises `ConcurrentRunError` if it has one.

        The row of the thread is read again if it names an owner that is not alive: that may have ended just after the
        first read, and a run that has just finished would look as if it had crashed.
        """
        row = self.store.thread(self.name)
        while row is not None and row.owner is not None:
            check_no_owner(row, remedy)
            before, row = row, self.store.thread(self.name)
            if row is None or (row.head, row.epoch, row.owner) == (before.head, before.epoch, before.owner):
                break
        return self._head_of(row)

    def load_head_without_owner(self) -> ThreadHead:
        """The head of a thread that no run owns, for a change that is one transaction.

        Raises `ConcurrentRunError` if the thread has a live owner. An owner that seems dead is fenced off first: it may
        be alive after all, on a host that cannot be asked, and must write nothing after the head was read.
        """
        row = self.store.thread(self.name)
        if row is not None and row.owner is not None:
            check_no_owner(row)
            self.store.write(Change(self.name, row.epoch, row.epoch + 1, lease=0.0))
        return self.readable_head()

    def existing_row(self, take_over: bool) -> ThreadRow:
        """The row of the thread; raises if there is none, or if it has a live owner that may not be replaced."""
        row = self.store.thread(self.name)
        if row is None:
            raise ThreadError(f"there is no thread {self.name!r}")
        if not take_over:
            check_no_owner(row, REPLACE)
        return row

    # --- what a run begins with

    def new_run(
        self, head: ThreadHead, inputs: Mapping[str, Any], request: Request, if_open: str, own_part: bool = False
    ) -> FirstWrite:
        """A new run that begins with the state at the head and folds the inputs in.

        `if_open` says what becomes of a run that was not finished; it is amended with `own_part` in a part of its own.
        """
        if head.open and if_open == "amend":
            return self._amended_run(head, inputs, request, own_part)
        if head.open and if_open != "abandon":
            raise head.open_error(open_questions(self.reader, self.name))
        if head.broken and (if_open != "abandon" or head.last_readable is None):
            raise head.broken_error()  # with a wrong key nothing can be read: that must not start an empty thread
        schema, label = self.schema, self.next_label(head)
        adapted, patch, _ = self._begun(head, inputs)
        patch = adapted.patch(schema, patch)
        state = schema.replay(head.state, patch)
        last_row = head.last_readable if head.broken else head.row.head
        parents = () if last_row is None else (last_row,)
        header = self.run_header(head, head.next_version, last_row)
        if not request.options.live:
            header["live"] = False
        # `parents`, not the head: after unreadable commits the history goes on from the last one that can be read.
        run = RunRow(new_run_id(), self.name, parents, header)
        run_state = start(self.graph.topology, head.state, head.next_version)
        earlier = self._earlier_runs(parents, head.state, head.next_version, head.row)
        run_start = RunStart(run_state, patch, state, run.id, (label,), earlier)
        opening = OpenRow(node=START, patch=patch, made=schema.made(head.state, state, patch))
        rows = [opening.row(self.compatibility.fingerprint.blobs)]
        records = ExecutionRecords()
        records.read((), self.reader.fetch, self.reader.decode)
        records.totals_before = self._totals_at(head, last_row)
        return FirstWrite(run, 0, rows, run_start, records)

    def _begun(self, head: ThreadHead, inputs: Mapping[str, Any]) -> tuple[Adapted, dict[str, Any], ImmutableState]:
        """The state at the head as this graph reads it, and the patch and the state with which inputs begin a run."""
        self.compatibility.check_graph(head.last_run)
        adapted = self.compatibility.adapted(head.state, head.last_run)
        check_inputs_by_name(self.graph, inputs)
        # What lasts from the run before needs no input.
        check_inputs(self.graph, inputs, [name for name in adapted.state if self.graph.lasts(name)], adapted.state)
        commit_id = full_id(self.next_label(head), FIRST)
        return adapted, *self.schema.begin(adapted.state, inputs, keep=self.graph.keep, commit_id=commit_id)

    def _amended_run(self, head: ThreadHead, inputs: Mapping[str, Any], request: Request, own_part: bool) -> FirstWrite:
        """The last run, with new inputs that answer its open questions and reach the agent at the end of its turn.

        Raises `ThreadError` if they cannot be added to it.
        """
        at, last = head.row.head, head.last_run
        assert at is not None
        assert last is not None
        if head.broken:
            raise head.broken_error()
        _, _, state = self._begun(head, inputs)
        who = f"the last run of thread {self.name!r} cannot be amended"
        rest = "or leave it with thread.run(..., if_open='abandon')"
        if last.status != "interrupted":
            raise ThreadError(f"{who}, since it does not wait for an answer: go on with thread.resume(), {rest}")
        questions = self.read_records(read_run(self.store, at)).open_questions()
        given = {name: thaw(state.raw(name)) for name in inputs}
        found = [node.amended(head.state, given, questions) for node in self.graph.nodes.values()]
        amended = [one for one in found if one is not None]
        if len(amended) != 1:
            raise ThreadError(
                f"{who}, since graph {self.graph.name!r} is not one agent: answer its questions with "
                f"thread.resume({{'key': answer}}), {rest}"
            )
        answers, *added = amended[0]
        resumed = self.resumed_run(head, Delivery(answers), request, MAX_RESUMES, False, added, own_part)
        assert isinstance(resumed, FirstWrite)  # it has open questions, and answers to them
        return resumed

    def resumed_run(
        self,
        head: ThreadHead,
        delivery: Delivery,
        request: Request,
        max_resumes: int,
        allow: bool,
        added: Sequence[Any] = (),
        own_part: bool = False,
    ) -> FirstWrite | Request:
        """The last run, rebuilt from its log, with answers to its questions, and what is `added` to it.

        As it is stored if each of the answers was given before, and nothing is left to do.
        """
        at, status = head.row.head, None if head.last_run is None else head.last_run.status
        answers = delivery.answers or {}
        can_be_read = not head.broken and (head.open or answers)
        asked = _Asked(self, read_run(self.store, at)) if at is not None and can_be_read else None
        if asked and answers and status in DONE and asked.were_given(answers, completed=status == "completed"):
            return self.as_stored(asked.run, request)
        if not head.open or at is None:
            found = "has no run yet" if head.last_run is None else "has finished its last run"
            raise ThreadError(
                f"thread {self.name!r} {found}: there is nothing to resume; start a run with thread.run(...)"
            )
        if asked is None:
            raise head.broken_error()
        last = asked.run
        changed = self.compatibility.allows(last, allow)
        given, records = asked.given(delivery), asked.records
        # An edit after the end of the run may lead to another node; and a program may know answers itself.
        as_it_ended = status == "interrupted" and last.rows[-1].kind == RowKind.END and not changed
        if as_it_ended and asked.for_time_alone and not (given or added) and self.graph.answer is no_answer:
            return self.as_stored(last, request)
        # Before the run is rebuilt: nodes that were waiting for these answers begin with it.
        records.resumes += 1
        for one in given:
            records.deliver(one)
        run_start, migration = self.compatibility.adapted_run(self.rebuild(last, records), last)
        # Counted in the log: a node that kills its process leaves nothing else behind.
        count = 1 + resumes_without_progress(last.rows)
        if count > max_resumes:
            running = sorted(run_start.run.running) or [group.position[0] for group in run_start.run.ready]
            raise ThreadError(
                f"the last run of thread {self.name!r} was resumed {max_resumes} times without progress; open: "
                f"{', '.join(running)}. Find out what kills its process, then allow more resumes with "
                f"resume(max_resumes={2 * max_resumes}), or abandon the run with thread.run(..., if_open='abandon')"
            )
        blobs = self.compatibility.fingerprint.blobs if changed else NO_BLOBS
        rows = [AnswerRow.of_answer(one).row() for one in given]
        rows += [records.add(*added)] if added else []
        rows += [ResumeRow(count).row(blobs), *migration]
        run, seq = last.run, at.seq + 1
        # Rows of the run may follow the head (of an owner that was replaced, of another thread), or be another graph's.
        if own_part or changed or run.thread != self.name or self.store.rows(run.id, seq, seq):
            run, seq = self.next_part(head, run, at, changed=changed), 0
            run_start = run_start._replace(run_id=run.id, label=(run.header["label"],))
        self.count_before(records, last, head.row.root)
        return FirstWrite(run, seq, rows, run_start, records)

    def as_stored(self, rows: RunRows, request: Request) -> Request:
        """The request of a run that has completed or waits for answers, which returns it as it is stored."""
        records = self.read_records(rows)
        try:
            run_start = self.rebuild(rows, records)
            # After its commits the row of its end: of a completed run, the step that ends it.
            run = replay(run_start.run, rows.rows[-1:], run_start[1:3], self.reader.fetch, self.reader.decode)
        except ChangedGraphError:
            run_start = self._folded(rows)
            run = run_start.run
        for execution in list(run.running):  # at a join, which has committed before its node has asked
            run, _ = advance(run, execution, Suspended(()))
        records.journal = Journal(self.store, self.name, 0, rows.run.id, rows.points[-1].seq + 1)  # it writes nothing
        records.journal.run_row = rows.run
        options = request.options._replace(live=rows.run.header.get("live", True))
        return replace(request, options=options, run_start=run_start._replace(run=run), records=records)

    def _folded(self, rows: RunRows) -> RunStart:
        """A run that this graph cannot have made, from its commits alone; branches that it waits in are not known."""
        before, first = self._state_before(rows)
        folded = FoldedRun(self.reader, rows, before)
        if folded.run.broken:
            raise StoreError(f"thread {self.name!r}: {folded.run.broken}")
        log = [
            entry._replace(commit=changed(entry.commit, version=first + index if alone else None))
            for index, (entry, alone) in enumerate(zip(folded.log, folded.settled, strict=True))
        ]
        run = start(self.graph.topology, before, first)._replace(
            log=PersistentVector(log),
            ready=NOTHING_READY,
            trunk_state=folded.trunk_state,
            ended=rows.status == "completed",
        )
        return self._run_start(rows, run, log[0].commit.patch, log[0].state, before, first)

    # --- from rows to a run in memory

    def read_records(self, run: RunRows) -> ExecutionRecords:
        """The answers, effects and results of items that a run has stored."""
        records = ExecutionRecords()
        records.read(run.rows, self.reader.fetch, self.reader.decode)
        return records

    def rebuild(self, last: RunRows, records: ExecutionRecords) -> RunStart:
        """A run as its log left it: every commit is replayed, no node is called."""
        before, first = self._state_before(last)
        opening = self.reader.opening(last.rows)
        if opening is None:
            raise ThreadError(
                f"the log of the last run of thread {self.name!r} lacks its first commit: abandon the run with "
                "thread.run(..., if_open='abandon')"
            )
        node, patch, made = opening.node, opening.patch or {}, opening.made
        if node != START and node not in self.graph.nodes:
            why = f"its first commit was made as node {node!r}, which is gone: map it to its new name"
            raise ChangedGraphError(f"thread {self.name!r}: {why}", [f"node {node!r} is gone"])
        schema_at = self.reader.schema_by_row(last)
        state = schema_at(next(row for row in last.rows if row.kind == RowKind.OPEN)).replay(before, patch, made)
        fresh: RunState = start(self.graph.topology, before, first, node)
        try:
            rows = records.commits(())  # of the run's own graph: those of graphs inside are replayed by their nodes
            run = replay(fresh, rows, (patch, state), self.reader.fetch, self.reader.decode, schema_at)
        except ChangedGraphError as error:
            raise self.compatibility.explained(error, last) from None
        return self._run_start(last, run, patch, state, before, first)

    def _run_start(
        self,
        rows: RunRows,
        run: RunState,
        patch: Mapping[str, Any],
        state: ImmutableState,
        before: ImmutableState,
        first: int,
    ) -> RunStart:
        """A run with its names and what came before it: the state there, and the version of its first commit."""
        label = str(rows.run.header.get("label", self.name))
        earlier = self._earlier_runs(rows.parents, before, first, self.store.thread(self.name))
        return RunStart(run, patch, state, rows.run.id, (label,), earlier, _id_prefixes(rows))

    def _state_before(self, run: RunRows) -> tuple[ImmutableState, int]:
        """The state with which a run began, and the version of its first commit."""
        first = first_version(run.run)
        if not run.parents:
            return ImmutableState(), first
        return recover_state(self.reader, run.parents[0]).state, first

    def _earlier_runs(
        self, parents: tuple[Point, ...], state: ImmutableState, first: int, row: ThreadRow | None
    ) -> EarlierRuns | None:
        """The history before a run, for its views; None for the first run of a thread."""
        if not parents or row is None:
            return None
        return EarlierRuns(self, parents[0], row.root, state, first)

    # --- totals

    def _totals_at(self, head: ThreadHead, at: Point | None) -> Mapping[str, Any]:
        """The totals of the thread up to a row; of its head, mostly without reading any."""
        rows = () if head.last_run is None else head.last_run.rows
        if at == head.row.head and rows and rows[-1].kind == RowKind.END:
            return EndRow.of(rows[-1]).totals
        return totals_at(self.store, () if at is None else (at,), head.row.root)

    def count_before(self, records: ExecutionRecords, run: RunRows, root: Point | None) -> None:
        """Note what a run that goes on has used so far, and what the thread had before it."""
        records.used_before, records.nodes_before = run_usage(run.rows), run_usage(run.rows, by_node=True)
        records.totals_before = totals_at(self.store, run.parents, root)

    # --- rows of runs

    def end_of_open(
        self,
        run: RunRows,
        root: Point | None,
        status: str = "stopped",
        more: int = 0,
        expires: float | None = None,
    ) -> DraftRow:
        """The row of the end of an open run, with what it has used; `more` commits are written with this row.

        `root` is the row at which a pruned history begins, `expires` when the first of its questions expires.
        """
        before, steps = totals_at(self.store, run.parents, root), sum(1 for _ in run.own_commits()) + more
        commits = [
            (header.node, header.seconds[1])
            for row, _, header in run.own_commits()
            if row.kind == RowKind.COMMIT and header.node != START
        ]
        nodes = run_usage(run.rows, by_node=True)
        return end_row(status, None, (), run_usage(run.rows), steps, before, (), expires, commits, nodes)

    def next_part(
        self,
        head: ThreadHead,
        run: RunRow,
        at: Point,
        excluded: Sequence[tuple[int, int]] = (),
        changed: bool = False,
    ) -> RunRow:
        """A new part of a run: it continues `run`, under an id of its own, after the row `at`.

        The spans `excluded` of rows up to `at` do not belong to the continued run. `changed` says that another graph
        continues the run.
        """
        # Named one by one: what is said of the rows of the part before does not hold for this one.
        header = {name: run.header[name] for name in INHERITED if name in run.header}
        if changed:
            header.pop("named", None)
            header |= self._graph_header()
        header |= {"continues": True, **self._own_header(head, at)}
        if excluded:
            header["without"] = [list(span) for span in excluded]
        return RunRow(new_run_id(), self.name, (at,), header)

    def next_label(self, head: ThreadHead) -> str:
        """The label of the next run, with which the ids of its commits begin: `"t-42.3"`."""
        return label_of(self.name, head.row.runs + 1)

    def run_header(self, head: ThreadHead, first: int, at: Point | None) -> dict[str, Any]:
        """The header of a run that continues the row `at`: its graph, label, first version, and when it was started."""
        return {**self._graph_header(), "first": first, **self._own_header(head, at)}

    def key_salt(self, last: RunRow) -> str:
        """The salt of the keys of the thread, which each of its runs passes on to the next; "" before its first key.

        `last` is the run at its head. The salt makes the ids of runs with keys differ from those of a deleted thread of
        this name: caches rely on it that a row of a run never changes.
        """
        return str(last.header.get("keys", "")) if last.thread == self.name else ""

    def _graph_header(self) -> dict[str, Any]:
        made_by = self.compatibility.fingerprint
        header: dict[str, Any] = {"graph": self.graph.name, "shape": made_by.id, "drawing": made_by.drawing}
        return {**header, "named": True} if self.graph.named else header

    def _own_header(self, head: ThreadHead, at: Point | None) -> dict[str, Any]:
        """The own entries of the header of a run, or of a part of one, that continues the row `at`."""
        header: dict[str, Any] = {"label": self.next_label(head), "started": int(time() * 1_000) / 1_000}
        if head.last_run is not None and (salt := self.key_salt(head.last_run.run)):
            header["keys"] = salt
        if self.graph.listeners and (progress := progress_at(self.store, self.name, at)):
            header[TOOK] = [[*place, number] for place, number in progress.items()]
        if self.graph.hidden is not None:
            header["hidden"] = self.graph.hidden
        if self.graph.recorded != "usage":
            header["lm_calls"] = self.graph.recorded
        return header


INHERITED = ("graph", "shape", "drawing", "named", "first", "live")
"""What a part of a run has in its header from the part before."""


def _id_prefixes(run: RunRows) -> tuple[tuple[int, str], ...]:
    """For each part of a run, the number of commits up to its end, and the prefix of their ids."""
    found: list[tuple[int, str]] = []
    for count, (_, point, _) in enumerate(run.own_commits(), 1):
        # The part of the open row names the first commit.
        prefix = id_prefix(run.labels[point.run if count > 1 else run.points[0].run])
        if found and found[-1][1] == prefix:
            found.pop()
        found.append((count, prefix))
    return tuple(found)


# --- answers that a caller gives: checked before anything is stored


def checked_note(name: str, text: Any, undone: str) -> Any:
    """Return a text about an answer or a message as it is stored; raises `InputError` if it is none, or too long."""
    if not isinstance(text, str) or len(text) > LONGEST_NOTE:
        found = f"one of {len(text):,}" if isinstance(text, str) else brief(text)
        raise InputError(f"{name}= is a text of at most {LONGEST_NOTE} characters, not {found}. {undone}")
    return with_valid_text(text)


class Delivery(NamedTuple):
    """The answers of one call of `resume`, by key or id, who gives them, and what is said with them.

    `permits` says whether it answers the questions that ask for permission alone: no person has asked for a recovery.
    """

    answers: AnswersByKey = None
    by: str | None = None
    comment: str | None = None
    permits: bool = True

    @classmethod
    def checked(cls, answers: AnswersByKey, by: str | None, comment: str | None) -> Delivery:
        """Return the delivery; raises `InputError` for notes that are no texts, or too long."""
        by = None if by is None else checked_note("by", by, "Nothing was answered")
        comment = None if comment is None else checked_note("comment", comment, "Nothing was answered")
        if by is not None and not by.strip():
            raise InputError("by= is empty: give a name, or None for none. Nothing was answered")
        if by == EXPIRED:
            raise InputError(
                f"by={by!r} is the author of defaults, which no person has given: say it with another name"
            )
        return cls(answers, by, comment)


LATE = "Nothing was stored: resume() goes on with its default, or with QuestionExpired if it has none"


class _Asked:
    """The questions of a run, as answers name them: found once, since a run may ask thousands."""

    def __init__(self, thread: StoredThread, run: RunRows) -> None:
        self.run, self.records = run, thread.read_records(run)
        self._graph = thread.graph
        self._open = self.records.open_questions()
        self._ids = {question.id: question for question in self.records.questions.values()}
        self._keys = _by_key(self.records.questions.values())
        self._open_keys = _by_key(self._open)

    @property
    def for_time_alone(self) -> bool:
        """Return whether a question will expire, and none has: without an answer nothing goes on until then."""
        timed = [has_expired(question) for question in self._open if question.expires is not None]
        return bool(timed) and not any(timed)

    def were_given(self, answers: Mapping[str, Any], completed: bool) -> bool:
        """Return whether the run has had each of these answers before: they were delivered again.

        To a `completed` run that can only be said of an answer by id. Raises `ThreadError` for one that differs.
        """
        for name, answer in self._by_name(answers).items():
            if (completed and name not in self._ids) or not self._was_given(self._named(name), name, freeze(answer)):
                return False
        return True

    def given(self, delivery: Delivery) -> list[Answer]:
        """The answers that a resume adds, frozen: of the caller, and None for each question that needs no answer.

        Those are by the id of a question, or by its key if only one open question has it. Raises `ThreadError` for an
        answer that fits no open question, several, or one that has another answer; `InputError` for one of the wrong
        type.

        Of an answer to a question that a node asks in its own code the class is not known before the node runs again:
        until then it must have the types of the question's JSON schema.
        """
        given: dict[RecordKey, Any] = {}
        for name, answer in self._by_name(delivery.answers or {}).items():
            question = self._named(name)
            key = RecordKey(question.execution, question.key)
            frozen = freeze(answer)
            if self._was_given(question, name, frozen):
                continue  # the same answer, delivered twice
            if not same(given.get(key, frozen), frozen):
                raise ThreadError(
                    f"question {question.id!r} is given two answers, by its key and by its id: "
                    f"{self._shown(given[key])} and {self._shown(frozen)}. Nothing was stored: give it one"
                )
            shown = self._shown(frozen)
            if has_expired(question):
                raise QuestionExpired(f"{expired_text(question)}: the answer {shown} comes too late. {LATE}")
            self._check(question, frozen, shown)
            given[key] = frozen
        for question in self._open:
            if question.answer is None and question.expires is None and delivery.permits:
                given.setdefault(RecordKey(question.execution, question.key), None)
        asked, at = self.records.questions, row_time()
        return [Answer(asked[key], frozen, delivery.by, delivery.comment, at) for key, frozen in given.items()]

    def _check(self, question: Question, frozen: Any, shown: str) -> None:
        inside = bool(Address.parse(question.execution).scope)
        graphs = _graphs_in(self._graph) if inside else (self._graph,)
        nodes = [graph.nodes[question.node] for graph in graphs if question.node in graph.nodes]
        types = [node.answer_types[question.key] for node in nodes if question.key in node.answer_types]
        if inside:  # nodes of several graphs may have this name: one that takes the answer may be meant
            types = [kind for kind in types if schema_of(kind) == question.answer]
        refusals = []
        for kind in types or ([None] if question.answer is None else []):
            try:
                validated(kind, frozen, question, shown)
            except InputError as refusal:
                refusals.append(refusal)
            else:
                return
        if refusals:
            raise refusals[0]
        check_shape(thaw(frozen), question, f" {shown}")

    def _by_name(self, answers: object) -> Mapping[str, Any]:
        if isinstance(answers, Mapping):
            return answers
        listed = ", ".join(repr(question.key) for question in self._open)
        raise InputError(
            f"answers come by the key or id of their question, resume({{'key': answer}}), not as {brief(answers)}. "
            f"Open questions: {listed or 'none'}"
        )

    def _was_given(self, question: Question, name: str, frozen: Any) -> bool:
        answers, key = self.records.answers, RecordKey(question.execution, question.key)
        if key not in answers:
            return False
        first = answers[key]
        if first.by == EXPIRED:  # also if it is the same: who gives it would think that it was heard
            raise QuestionExpired(f"{expired_text(question)}, and the run has gone on without an answer")
        if not same(first.value, frozen):
            by = f" by {first.by}" if first.by else ""
            raise ThreadError(f"question {name!r} was answered already{by}, with {self._shown(first.value)}")
        return True

    def _shown(self, answer: Any) -> str:
        """An answer as errors show it. Not at all if a graph hides values: what an answer is for, is not known."""
        hides = any(graph.redaction is not None for graph in (self._graph, *_graphs_in(self._graph)))
        return HIDDEN if hides else brief(thaw(answer))

    def _named(self, name: str) -> Question:
        """The question with this id, or else the only one with this key; an open one before one that was answered."""
        if name in self._ids:
            return self._ids[name]
        open_with_key = self._open_keys.get(name, [])
        candidates = open_with_key or self._keys.get(name, [])
        if len(candidates) == 1:
            return candidates[0]
        ids = ", ".join(repr(question.id) for question in self._open) or "none"
        if open_with_key:
            raise ThreadError(
                f"{len(open_with_key)} open questions have the key {name!r}: answer each by its id: {ids}"
            )
        # An id is that of another run or call: its answer must not be given to the question that is open now.
        meant = suggestion(name, [] if "/" in str(name) else list(self._open_keys))
        raise ThreadError(
            f"the last run has no open question {name!r} (another run may have asked it).{meant} Open questions: {ids}"
        )


def _graphs_in(graph: GraphSpec) -> Iterator[GraphSpec]:
    """The graphs inside of a graph, at any depth."""
    for inner in graph.inner.values():
        yield inner
        yield from _graphs_in(inner)


def _by_key(questions: Iterable[Question]) -> dict[str, list[Question]]:
    found: dict[str, list[Question]] = {}
    for question in questions:
        found.setdefault(question.key, []).append(question)
    return found


# --- refuse a thread that has a live owner


def check_no_owner(row: ThreadRow, remedy: str = WAIT) -> None:
    """Raise `ConcurrentRunError` if a thread has a live owner; `remedy` says what the caller can do."""
    if not is_alive(row):
        return
    owner = row.owner
    where = "unknown" if owner is None else f"process {owner.pid} on {owner.host!r}"
    raise ConcurrentRunError(
        f"thread {row.name!r} is owned by another run ({where}; its lease ends in {max(row.lease, 0):.0f} s unless it "
        f"is renewed): {remedy}"
    )
