"""The records of stored runs: which run is meant, what its rows say, and whether it is still at work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from dspyer.errors import StoreError, ThreadError
from dspyer.events import Commit, LMCall, Posted, Question
from dspyer.failure import Failure
from dspyer.ids import Address, full_id, path_of_id
from dspyer.log.execution_records import calls_in, run_usage
from dspyer.log.history import FoldedRun, fold_run, recover_state
from dspyer.log.journal import is_alive
from dspyer.log.reader import (
    PRUNED,
    HistoryReader,
    RunRows,
    ending_row,
    latest_snapshot,
    load_run,
    read_run,
    read_runs,
)
from dspyer.log.rows import (
    COMMITS,
    AnswerRow,
    CommitRow,
    EndRow,
    ItemRow,
    PostRow,
    QuestionRow,
    RowKind,
    drawing_id,
    is_readable,
    run_label,
)
from dspyer.log.time_travel import ThreadReader
from dspyer.patch import update_size
from dspyer.record.drawn import DrawnGraph
from dspyer.record.making import Material, StepAnswer, StepQuestion, make_steps
from dspyer.record.record import Origin, Record
from dspyer.record_codec import changed
from dspyer.redaction import Redactor
from dspyer.scheduler.lineage import LogEntry, is_manual
from dspyer.state import ImmutableState
from dspyer.stores.base import ListedRun, Point, Row, RunQuery, RunRow, Store, ThreadRow, listed_run

KEPT = 16
"""Graphs that are kept as they were read last: a page asks for that of its run again with every step."""

# --- which run


def run_of(store: Store, name: str, run: str | None = None) -> ListedRun:
    """A run of a thread by its id or label, the last one for None.

    Raises:
        ThreadError: if there is no such thread or run.
    """
    thread = store.thread(name)
    if thread is None:
        raise ThreadError(f"the thread {name!r} was deleted, or never had a run")
    (listed,) = store.list_runs(RunQuery(name, run=run, limit=1, last=run is None)) or (None,)
    if listed is not None:
        return listed
    if run is None:
        if thread.head is None:
            raise ThreadError(f"the thread {name!r} has no run")
        # No list can place it, since its row is damaged. Its entries say, too, how it ended.
        return listed_run(thread, load_run(store, thread.head.run), store.rows(thread.head.run, 0, thread.head.seq))
    found, at = next((one for one in _runs_back(store, thread) if run in (one[0].id, run_label(one[0]))), (None, None))
    if found is None:
        labels = ", ".join(dict.fromkeys(run_label(one) for one in store.runs(name)[-3:]))
        raise ThreadError(f"the thread {name!r} has no run {run!r}; the last ones: {labels or 'none'}")
    (listed,) = store.list_runs(RunQuery(found.thread, run=found.id, limit=1)) or (None,)
    # A run that was made for a thread that was deleted is in no list.
    listed = listed or listed_run(thread, found, store.rows(found.id))
    root = listed.thread.root
    # Where its own thread has pruned it, there are gaps behind the row that this thread has reached.
    return listed._replace(thread=thread, last=at.seq if at and root and root.run == found.id else listed.last)


def _runs_back(store: Store, thread: ThreadRow) -> Iterator[tuple[RunRow, Point | None]]:
    """The runs that were made for a thread, newest first, then those that it continues, each with its row there."""
    own = store.runs(thread.name)[::-1]
    yield from ((one, None) for one in own)
    known, passed = {one.id: one for one in own}, set[str]()
    pending = [] if thread.head is None else [thread.head]
    for at in pending:  # also behind a merge
        run = None if at.run in passed else known.get(at.run) or store.run(at.run)
        if run is None:
            continue
        passed.add(at.run)
        if at.run not in known:
            yield run, at
        pending += () if at == thread.root else run.parents


def current_status(store: Store, listed: ListedRun) -> tuple[ListedRun, str]:
    """A run and its status: one without an end is running if its owner is alive, else it has crashed."""
    while not listed.status:
        thread, run = listed.thread, listed.run
        works_on = thread.head is not None and thread.head.run == run.id
        if works_on and is_alive(thread):
            return listed, "running"
        now = store.thread(thread.name) if works_on else None
        if now is None or (now.head, now.epoch) == (thread.head, thread.epoch):
            return listed, "crashed"
        # Its owner may have written since the list was read: read the run again.
        (found,) = store.list_runs(RunQuery(thread.name, run=run.id, limit=1)) or (None,)
        if found is None or (found.last, found.thread.epoch) == (listed.last, thread.epoch):
            return listed, "crashed"
        listed = found
    return listed, listed.status


def drawn_graph(store: Store, run: RunRow) -> DrawnGraph | None:
    """The graph that made a run; None if the run has stored none.

    Raises:
        StoreError: if it has stored one that cannot be read.
    """
    name = drawing_id(run)
    if not name:
        return None
    data = store.blobs([name]).get(name)
    if data is None:
        raise StoreError(
            f"the graph of run {run.id!r} is not in the store {store.address!r}: it was removed, is damaged, or "
            "encrypted with another key"
        )
    return _graph_of(data)


@lru_cache(KEPT)
def _graph_of(drawing: bytes) -> DrawnGraph:
    return DrawnGraph.of(json.loads(drawing))


# --- records


class Before(NamedTuple):
    """The state that a run begins with, and why it cannot be read; "" if it can."""

    state: ImmutableState = ImmutableState()
    broken: str = ""


def record_of(
    reader: HistoryReader, thread: str, run: str | None = None, redactor: Callable[[], Redactor | None] | None = None
) -> Record:
    """The record of a stored run; `run` is its id or label, None for the last one.

    Raises:
        ThreadError: if there is no such run.
    """
    listed, status = current_status(reader.store, run_of(reader.store, thread, run))
    rows = RunRows(listed.run, (), (), (), {listed.run.id: run_label(listed.run)})
    if listed.last >= 0:
        at, root = Point(listed.run.id, listed.last), listed.thread.root
        rows = read_run(reader.store, root if root is not None and root.run == at.run else at, root)
        if status != "running" and ending_row(reversed(rows.rows)) is None:
            status = "crashed"  # its end was pruned with its thread: what a copy keeps has none
    return record_of_rows(reader, thread, rows, status, listed.thread.root, None if redactor is None else redactor())


def record_at(
    reader: HistoryReader, thread: str, at: Point, redactor: Callable[[], Redactor | None] | None = None
) -> Record:
    """The record of a run up to one of its rows, as it was then."""
    row = reader.store.thread(thread)
    root = None if row is None else row.root
    rows = read_run(reader.store, at, root)
    return record_of_rows(
        reader, thread, rows, rows.status or "crashed", root, None if redactor is None else redactor()
    )


def records_of(reader: HistoryReader, thread: str, redactor: Redactor | None = None) -> Iterator[Record]:
    """The records of all runs in the history of a thread, oldest first. Each state is folded once."""
    row = reader.store.thread(thread)
    ends: dict[Point, Before] = {}
    if row is None or row.head is None:
        return
    for run in read_runs(reader.store, [row.head], row.root):
        before = next((ends[parent] for parent in run.parents if parent in ends), Before())
        rows = _from_root(reader, run, row.root)
        folded = fold_run(reader, rows, *before)
        ends[rows.points[-1]] = Before(folded.trunk_state, folded.run.broken)
        yield record_of_rows(reader, thread, rows, rows.status or "crashed", None, redactor, folded)


def _from_root(reader: HistoryReader, rows: RunRows, root: Point | None) -> RunRows:
    """The rows of a run; those at which a pruned history begins with the snapshot that has its state."""
    if root is None or not rows.points or rows.points[-1] != root:
        return rows
    return rows._replace(snapshot=latest_snapshot(reader.store, root, reader.decode))


class RecordedCalls:
    """The LM calls of the executions of a thread.

    The record that was read last is kept as long as its run gets no new row: most callers go on to the next step.
    """

    def __init__(self, reader: HistoryReader, thread: str) -> None:
        self._reader, self._thread = reader, thread
        self._last: tuple[object, Record | None] = None, None  # replaced as a whole: it needs no lock

    def of(self, name: str) -> tuple[LMCall, ...]:
        """The LM calls of an execution by its id, with those inside of it; without the label, one of the last run.

        Raises:
            LookupError: if there is no such execution.
        """
        address = Address.parse(name)
        local = str(replace(address, run=""))
        with suppress(ThreadError):  # no such thread or run
            record = self._record(run_of(self._reader.store, self._thread, address.run or None))
            for step in record.steps:
                if step.id == name or (
                    step.id.endswith(local) and str(replace(Address.parse(step.id), run="")) == local
                ):
                    return record.calls(step.id)
        raise LookupError(
            f"thread {self._thread!r} has no commit {name!r}, and no execution of that id has failed, or made an LM "
            "call: ids are those of thread.history(), and Failure.execution"
        )

    def _record(self, listed: ListedRun) -> Record:
        known, record = self._last
        key = listed.run.id, listed.last, listed.thread.root
        if record is None or known != key:
            record = record_of(self._reader, self._thread, listed.run.id)
            self._last = key, record
        return record


def _local(name: str) -> str:
    """The id of an execution within its run."""
    return str(replace(Address.parse(name), run=""))


def record_of_rows(
    reader: HistoryReader,
    thread: str,
    rows: RunRows,
    status: str,
    root: Point | None = None,
    redactor: Redactor | None = None,
    folded: FoldedRun | None = None,
) -> Record:
    """The record of the rows of a run; `folded` are its commits, if they are known."""
    rows = _from_root(reader, rows, root)
    if folded is None and rows.rows:
        folded = fold_run(reader, rows, *_before(reader, rows))
    header = rows.run.header
    reading = _Reading(reader, rows)
    label = run_label(rows.run)
    try:
        graph = drawn_graph(reader.store, rows.run)
    except StoreError as error:
        graph = None
        reading.damaged["graph"] = str(error)
    reading.read()
    log, labels = ([], {}) if folded is None else reading.log(folded)
    earlier = cache(partial(_writers_before, reader, thread, rows, log, labels))
    material = Material(
        status=status,
        label=label,
        log=log,
        labels=labels,
        inside=reading.inside,
        items=reading.items,
        calls=reading.calls,
        questions=reading.questions(),
        posts=reading.posts,
        failures=reading.failures,
        failed=reading.failed,
        damaged=reading.damaged,
        graph=graph or DrawnGraph(str(header.get("graph", ""))),
        earlier=earlier,
        redactor=redactor,
        keeps_texts=header.get("lm_calls") == "function",
    )
    hidden = header.get("hidden")
    return Record(
        label,
        rows.run.id,
        thread,
        material.graph,
        status,
        float(header.get("started", 0.0)),
        reading.ended,
        run_usage(filter(is_readable, rows.rows)),
        make_steps(material),
        tuple([_global(label, failure) for failure in reading.failures]),
        _origin(rows, log, labels),
        tuple(hidden) if isinstance(hidden, list) else hidden,
        str(header.get("lm_calls", "usage")),
        log,
        earlier,
    )


def _before(reader: HistoryReader, rows: RunRows) -> Before:
    """The state that a run continues from."""
    if not rows.parents or rows.snapshot is not None:
        return Before()
    found = recover_state(reader, rows.parents[0])
    return Before(found.state, found.broken)


def _global(label: str, failure: Failure) -> Failure:
    return failure.model_copy(update={"execution": full_id(label, failure.execution)})


def _writers_before(
    reader: HistoryReader, thread: str, rows: RunRows, log: Sequence[LogEntry], labels: Mapping[str, str]
) -> dict[str, Commit]:
    """The commits of earlier runs that have written the fields with which a run began."""
    if not rows.parents or not log:
        return {}
    at = next((point for row, point in zip(rows.rows, rows.points, strict=True) if row.kind in COMMITS), rows.points[0])
    first = log[0].commit.id
    name = full_id(labels[first], first)
    row = reader.store.thread(thread)
    root = None if row is None else row.root
    # As the history of the thread was when the run had made its first commit.
    try:
        found = ThreadReader(reader, thread, lambda: (at, root)).writers(name)
    except StoreError:  # what has written them was pruned with a thread that had it, too
        return {}
    return {field: commit for field, commit in found.items() if commit.id != name}


def _origin(rows: RunRows, log: Sequence[LogEntry], labels: Mapping[str, str]) -> Origin | None:
    """The origin of a part of a run that continues a part with another name."""
    own = run_label(rows.run)
    behind = [entry.commit for entry in log if labels[entry.commit.id] != own]
    if not rows.run.header.get("continues") or not behind:
        return None
    edits = [entry.commit for entry in log[len(behind) : len(behind) + 1] if is_manual(entry.commit)]
    last = behind[-1].id
    return Origin(labels[last], full_id(labels[last], last), tuple(edits[0].patch) if edits else ())


class _Reading:
    """Contents of the rows of one run, row by row. What cannot be read is said as such, and the rest is read.

    Attributes:
        ended: when the run ended.
        damaged: why rows cannot be read, by what is known of their place.
    """

    def __init__(self, reader: HistoryReader, rows: RunRows) -> None:
        self.inside: dict[str, Commit] = {}
        self.items: dict[str, Any] = {}
        self.calls: list[LMCall] = []
        self.posts: list[Posted] = []
        self.failures: tuple[Failure, ...] = ()
        self.failed: tuple[Failure, ...] = ()
        self.ended: float | None = None
        self.damaged: dict[str, str] = {}
        self._reader, self._rows = reader, rows
        self._asked: dict[tuple[str, str], tuple[Question, float | None]] = {}
        self._answers: dict[tuple[str, str], StepAnswer] = {}
        self._siblings: dict[tuple[str, ...], list[str]] = {}

    def read(self) -> None:
        """Read all rows but the commits of the run's own graph."""
        end = ending_row(reversed(self._rows.rows))
        for row in self._rows.rows:
            if row.kind in COMMITS and not row.header.get("scope"):
                if not is_readable(row):
                    continue  # `log` says what is wrong with it
            elif not is_readable(row):
                self.damaged[f"row-{row.seq}"] = _reason(row)
                continue
            try:
                self._read(row, is_end=row is end)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with this row, the others are shown
                self.damaged[f"row-{row.seq}"] = f"{type(error).__name__}: {error}"

    def _read(self, row: Row, is_end: bool) -> None:
        fetch, decode = self._reader.fetch, self._reader.decode
        if row.kind in COMMITS and row.header.get("scope"):
            self._read_inside(row)
        if row.kind in COMMITS or row.kind == RowKind.LM_CALL:
            self.calls += calls_in(row, fetch)
        elif row.kind == RowKind.ITEM:
            item = ItemRow.read(row, fetch, decode)
            self.items[item.execution] = item.value
        elif row.kind == RowKind.ASK:
            ask = QuestionRow.read(row, fetch)
            self._asked[ask.execution, ask.key] = ask.question(), ask.at
        elif row.kind == RowKind.ANSWER:
            given = AnswerRow.read(row, fetch, decode)
            self._answers.pop((given.execution, given.key), None)
            if not given.retracted:
                self._answers[given.execution, given.key] = StepAnswer(given.value, given.at)
        elif row.kind == RowKind.POST:
            post = PostRow.read(row, fetch, decode)
            update, name = post.patch[post.field], full_id(*post.scope, Address.parse(post.execution).own)
            size, how = update_size(update), post.operation
            self.posts.append(
                Posted(post.field, post.node, path_of_id(name), name, post.seq, size, update, how, post.time)
            )
        elif is_end:
            ended = EndRow.read(row, fetch)
            self.ended = None if ended.ended is None else ended.ended / 1_000
            self.failures = tuple([Failure.model_validate(failure) for failure in ended.failures])
            self.failed = ended.failed

    def _read_inside(self, row: Row) -> None:
        """The commit of a graph inside of a node."""
        header = CommitRow.of(row)
        siblings = self._siblings.setdefault(header.scope, [])
        parents = ((len(siblings) - 1,) if siblings else ()) if header.parents is None else header.parents
        record = header.filled(row, self._reader.fetch, self._reader.decode)
        if row.kind == RowKind.JOIN:
            record = replace(record, patch=record.made)
        self.inside[header.execution] = self._reader.commit(record, header.id, [siblings[one] for one in parents])
        siblings.append(header.id)

    def questions(self) -> list[StepQuestion]:
        """The questions, with their answers."""
        return [StepQuestion(question, at, self._answers.get(key)) for key, (question, at) in self._asked.items()]

    def log(self, folded: FoldedRun) -> tuple[list[LogEntry], dict[str, str]]:
        """The commits of the run's own graph in canonical order, and what begins the global id of each."""
        rows = self._rows
        first = folded.run.first
        entries: list[LogEntry] = []
        labels: dict[str, str] = {}
        for index, (entry, point, alone) in enumerate(zip(*folded[:3], strict=True)):
            commit = entry.commit
            if rows.snapshot is not None and not index:
                commit = changed(commit, id=PRUNED)
            version = first + index if alone and index < folded.run.settled_count else None
            labels[commit.id] = rows.labels.get(point.run, point.run)
            entries.append(entry._replace(commit=changed(commit, version=version)))
        return canonical_order(entries, first), labels


def _reason(row: Row) -> str:
    try:
        EndRow.of(row)
    except StoreError as error:
        return str(error)
    return "it is damaged"


def canonical_order(log: list[LogEntry], first: int = 0) -> list[LogEntry]:
    """The log in canonical order, with a version for each commit up to the last at which only one branch was active.

    Commits are logged in the order in which they were made, which differs between runs of one fork. Sorted by step and
    branch, every run of the same graph with the same results has the same versions.
    """
    if [entry.commit.version for entry in log] == list(range(first, first + len(log))):
        return log  # no fork
    settled = max((i for i, entry in enumerate(log) if entry.commit.version is not None), default=-1) + 1

    order = sorted(range(len(log)), key=lambda i: (i >= settled, log[i].commit.step, log[i].commit.branch))
    moved = {old: new for new, old in enumerate(order)}
    ordered = []
    for new, old in enumerate(order):
        entry = log[old]
        ordered.append(
            entry._replace(
                commit=changed(entry.commit, version=first + new if old < settled else None),
                parents=tuple(moved[parent] for parent in entry.parents),
                winners={path: moved[winner] for path, winner in entry.winners.items()},
            )
        )
    return ordered
