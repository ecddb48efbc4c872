"""The records of stored runs: what their rows say."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from itertools import chain
from threading import Lock
from typing import Any, TypeVar, cast

from dspyer.errors import StateError, StoreError, ThreadError
from dspyer.events import Answer, Commit, LMCall, Posted, Sent
from dspyer.failure import Failure
from dspyer.ids import Address, full_id, path_of_id
from dspyer.log.execution_records import calls_in, long_texts_in
from dspyer.log.history import FoldedRun, recover_state
from dspyer.log.reader import (
    PRUNED,
    HistoryReader,
    RunRows,
    latest_snapshot,
    load_run,
    read_run,
    read_runs,
    rows_through,
    with_map_results,
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
    UnreadablePatch,
    drawing_id,
    is_readable,
    run_label,
    sum_usage,
    usage_of_calls,
)
from dspyer.log.time_travel import ThreadReader, current_status, failures_in, run_of, unread
from dspyer.patch import update_size
from dspyer.record.drawn import DrawnGraph
from dspyer.record.making import Items, RunEnding, RunSteps, StepQuestion, items_of
from dspyer.record.record import Origin, Record
from dspyer.record_codec import changed, decode
from dspyer.redaction import Redaction, Redactor
from dspyer.state import ImmutableState
from dspyer.stores.base import ListedRun, Point, Row, RunRow, Store

T = TypeVar("T")

KEPT = 16
"""Graphs that are kept as they were read last: a page asks for that of its run again with every step."""

KEPT_RUNS = 4
"""Runs of a thread that are kept as far as they were read: a page shows one, and looks at its neighbours."""

TEXTS = 100
"""Rows of which the long texts are read at once."""


def unread_of(store: Store, name: str) -> tuple[Sent, ...]:
    """The messages of a thread that no turn has taken, by the agents that the graph of its last run has stored."""
    row = store.thread(name)
    drawn = None if row is None or row.head is None else drawn_graph(store, load_run(store, row.head.run))
    return unread(store, name, () if drawn is None else [path for path, graph in drawn.within() if graph.is_agent])


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
    return decode(DrawnGraph, json.loads(drawing))


# --- records


def _redactor_of(reader: HistoryReader, run: RunRow, graph: DrawnGraph) -> Redactor | None:
    """The redactor of a run: as the reader says, or else as the run has stored it; None for none."""
    lists, given = frozenset(chain.from_iterable([one.lists for _, one in graph.within()])), reader.redact
    found = given or None
    if given is None:
        found = Redaction.stored(run.header.get("hidden"), lists)
    elif found is not None and not isinstance(found, Redaction):
        found = Redaction.of(found, lists)
    return None if found is None else Redactor(found, {})


Before = tuple[ImmutableState, str]
"""The state that a run begins with, and why it cannot be read; "" if it can."""

NOTHING: Before = ImmutableState(), ""


def record_at(reader: HistoryReader, thread: str, at: Point) -> Record:
    """The record of a run up to one of its rows, as it was then."""
    row = reader.store.thread(thread)
    root = None if row is None else row.root
    rows = read_run(reader.store, at, root)
    return RunReader(reader, thread, rows, root).record()


def records_of(reader: HistoryReader, thread: str) -> Iterator[Record]:
    """The records of all runs in the history of a thread, oldest first. Each state is folded once."""
    row = reader.store.thread(thread)
    ends: dict[Point, Before] = {}
    if row is None or row.head is None:
        return
    for rows in read_runs(reader.store, [row.head], row.root):
        before = next((ends[parent] for parent in rows.parents if parent in ends), NOTHING)
        run = RunReader(reader, thread, rows, row.root, before)
        ends[rows.points[-1]] = run.after
        yield run.record()


def failures_of_run(reader: HistoryReader, listed: ListedRun) -> tuple[Failure, ...]:
    """The failures with which a run ended. Their executions have the label of the run in front, as ids of commits.

    If its last row is damaged or lost, that is what is said to have failed.
    """
    store, run, end = reader.store, listed.run, listed.end
    if end is None:
        return ()
    hidden, label = run.header.get("hidden"), run_label(run)
    try:
        # Of another rule than that by which they are stored, only the whole run tells what is to be hidden in them.
        if reader.hides(run) and not (reader.redact is None and EndRow.of(end).hidden == hidden):
            return FollowedRecords(reader, listed.thread.name).record(listed).failures
        found = failures_in(store, *rows_through(store, run.id, end.seq, end.seq))
    except StoreError as error:
        return (Failure.of(error, node="archive"),)
    if hidden == "function" and reader.redact is None:  # it is not known here, and so no text is shown
        found = tuple(map(Redactor(cast("Redaction", Redaction.stored(hidden)), {}).failure, found))
    return tuple([one.model_copy(update={"execution": full_id(label, one.execution)}) for one in found])


class FollowedRecords:
    """The records of runs of a thread, for readers that ask for them again and again: rows are read once.

    What was read is dropped when rows of it may be gone: with another root, where older history was pruned, or with
    another row of the run, which stands for all of it. May be used from several threads.
    """

    def __init__(self, reader: HistoryReader, thread: str) -> None:
        self._reader = reader
        self._thread = thread
        self._lock = Lock()
        self._runs: dict[str, tuple[Point | None, RunReader]] = {}  # the last used one last
        self._hiding: dict[str | None, str | None] = {}  # by name, the ids of the runs that hide values

    def record(self, run: str | ListedRun | None = None) -> Record:
        """The record of a run by id or label, the last one for None; one that was just listed is not looked for."""
        return self._read(run, RunReader.record)

    def items(self, node: str, run: str | None = None) -> Items:
        """The items of a map of a run."""
        return self._read(run, lambda reader, status: reader.items(node, status))

    def shown(self, value: T, run: str | None = None) -> T:
        """A commit or an answer, or a state or a message of a run, as it may be shown."""
        given: Any = value
        if isinstance(given, Commit | Answer):
            run = given.question.run if isinstance(given, Answer) else Address.parse(given.id).run
        if run not in self._hiding:
            store = self._reader.store
            try:
                found = run_of(store, self._thread, run).run
            except ThreadError:  # a part of a run may be known by its commits alone
                found = run_of(store, self._thread).run
            self._hiding[run] = found.id if self._reader.hides(found) else None
        hiding = self._hiding[run]
        redactor = None if hiding is None else self._read(hiding, RunReader.redactor)
        return value if redactor is None else cast("T", redactor.shown(given))

    def _read(self, run: str | ListedRun | None, read: Callable[[RunReader, str], T]) -> T:
        found_run = run if isinstance(run, ListedRun) else run_of(self._reader.store, self._thread, run)
        listed, status = current_status(self._reader.store, found_run)
        name, root = listed.run.id, listed.thread.root
        # One at a time: two that read the same new rows would add them twice.
        with self._lock:
            known, found = self._runs.pop(name, (None, None))
            if found is None or known != root or not found.read_on(listed):
                found = _run_reader(self._reader, self._thread, listed)
            self._runs[name] = root, found
            if len(self._runs) > KEPT_RUNS:
                del self._runs[next(iter(self._runs))]
            return read(found, status)

    def calls(self, name: str) -> tuple[LMCall, ...]:
        """The LM calls of an execution by its id, with those inside of it; without the label, one of the last run.

        Raises:
            LookupError: if there is no such execution.
        """
        address = Address.parse(name)
        local = str(replace(address, run=""))
        with suppress(ThreadError):  # no such thread or run
            record = self.record(address.run or None)
            for step in record.steps:
                # Of a run in parts, commits have the labels of all of them.
                if step.id.endswith(local) and str(replace(Address.parse(step.id), run="")) == local:
                    return record.calls(step.id)
        raise LookupError(
            f"thread {self._thread!r} has no commit {name!r}, and no execution of that id has failed, or made an LM "
            "call: ids are those of thread.history(), and Failure.execution"
        )


def _run_reader(reader: HistoryReader, thread: str, listed: ListedRun) -> RunReader:
    run, root = listed.run, listed.thread.root
    rows = RunRows(run, (), (), (), {run.id: run_label(run)})
    if listed.last >= 0:
        at = Point(run.id, listed.last)
        rows = read_run(reader.store, root if root is not None and root.run == at.run else at, root, run)
    return RunReader(reader, thread, rows, root)


class RunReader:
    """Reads one run to its record. What cannot be read is said as such, and the rest is read.

    It hides what `reader.redact` says, or what the program has hidden that made the run.

    Args:
        reader: reads contents.
        thread: the name of the thread.
        rows: the rows of the run.
        root: the row at which a pruned history begins.
        before: the state before the run; None if it is not known.
    """

    def __init__(
        self,
        reader: HistoryReader,
        thread: str,
        rows: RunRows,
        root: Point | None = None,
        before: Before | None = None,
    ) -> None:
        if root is not None and rows.points and rows.points[-1] == root:  # its state is in the snapshot alone
            rows = rows._replace(snapshot=latest_snapshot(reader.store, root, reader.decode))
        self._reader, self._thread, self._rows = reader, thread, rows
        self._last = rows.points[-1] if rows.points else Point(rows.run.id, -1)
        self._damaged: dict[str, str] = {}
        self._texts: Mapping[str, bytes] = {}
        self._items: list[Row] = []
        self._read_items: set[str] = set()  # those whose results a commit has
        self._end: Row | None = None
        self._is_ended = False  # also by a row that cannot be read
        self._used: Mapping[str, Mapping[str, Any]] = {}
        self._recorded: dict[tuple[Point, str | None], Record] = {}
        self._siblings: dict[tuple[str, ...], list[str]] = {}
        header = rows.run.header
        try:
            graph = drawn_graph(reader.store, rows.run)
        except StoreError as error:
            graph, self._damaged["graph"] = None, str(error)
        graph = graph or DrawnGraph(str(header.get("graph", "")))
        self._steps = RunSteps(
            run_label(rows.run),
            graph,
            cache(self._writers_before),
            _redactor_of(reader, rows.run, graph),
            header.get("lm_calls") == "function",
        )
        self._folded = FoldedRun(reader, rows, *(before or self._before())) if rows.rows else None
        self._read_rows(rows.rows)

    @property
    def after(self) -> Before:
        """The state with which a run begins that continues this one."""
        return NOTHING if self._folded is None else (self._folded.trunk_state, self._folded.run.broken)

    def read_on(self, listed: ListedRun) -> bool:
        """Read what was written since; return whether that can be done."""
        last, folded = self._last, self._folded
        # A thread that was deleted and made again by the same key has a run of the same id: its times tell.
        if listed.run != self._rows.run or listed.last < last.seq or last.run != listed.run.id:
            return False
        if listed.last == last.seq:
            return True
        # The first commit is in the open row, too: with the next one it is known where it leads.
        if folded is None or folded.ends_open or not folded.log or self._rows.snapshot is not None:
            return False
        found = rows_through(self._reader.store, last.run, last.seq + 1, listed.last)
        rows = with_map_results(found, lambda: self._items)
        self._last = Point(last.run, listed.last)
        # Commits before the rest: a call, a post or an answer may belong to one of them.
        folded.read_on(rows, self._last)
        self._read_rows(rows)
        return True

    def record(self, status: str | None = None) -> Record:
        """The record of what was read; `status` is that of the run if it has no end."""
        if (self._last, status) not in self._recorded:
            header = self._rows.run.header
            record = Record.of(
                self._steps,
                self._ending(status),
                self._rows.run.id,
                self._thread,
                float(header.get("started", 0.0)),
                None if self._steps.redactor is None else self._steps.redactor.redaction.told,
                str(header.get("lm_calls", "usage")),
                self._origin(),
            )
            self._recorded = {(self._last, status): record}
        return self._recorded[self._last, status]

    def redactor(self, status: str | None = None) -> Redactor | None:
        """The redactor of the run, once its steps are made."""
        self.record(status)
        return self._steps.redactor

    def items(self, node: str, status: str | None = None) -> Items:
        """The items of a map; `status` as for `record`."""
        return items_of(self._steps, self._ending(status), node)

    def _ending(self, status: str | None) -> RunEnding:
        if self._end is None:
            # The end may have been pruned with the thread of the run: what a copy keeps has none.
            known = status if status == "running" or self._is_ended else None
            return RunEnding(known or "crashed", usage=self._used, damaged=self._damaged)
        found = RunEnding(status or EndRow.of(self._end).status, usage=self._used, damaged=self._damaged)
        try:
            end = EndRow.read(self._end, self._reader.fetch)
            ended = None if end.ended is None else end.ended / 1_000
            failures = [Failure.model_validate(failure) for failure in end.failures]
            return found._replace(ended=ended, failures=failures, failed=end.failed)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this row, the others are shown
            reason = f"{type(error).__name__}: {error}"
            return found._replace(damaged={**self._damaged, f"row-{self._end.seq}": reason})

    def _before(self) -> Before:
        """The state that the run continues from."""
        rows = self._rows
        if not rows.parents or rows.snapshot is not None:
            return NOTHING
        found = recover_state(self._reader, rows.parents[0])
        return found.state, found.broken

    def _writers_before(self) -> dict[str, Commit]:
        """The commits of earlier runs that have written the fields with which the run began."""
        reader, rows, steps = self._reader, self._rows, self._steps
        if not rows.parents or not steps.log:
            return {}
        own = zip(rows.rows, rows.points, strict=True)
        at = next((point for row, point in own if row.kind in COMMITS), rows.points[0])
        name = steps.id_of(steps.log[0].commit.id)
        row = reader.store.thread(self._thread)
        root = None if row is None else row.root
        # As the history of the thread was when the run had made its first commit.
        try:
            found = ThreadReader(reader, self._thread, lambda: (at, root)).writers(name)
        except StoreError:  # what has written them was pruned with a thread that had it, too
            return {}
        return {field: commit for field, commit in found.items() if commit.id != name}

    def _origin(self) -> Origin | None:
        """The origin of a part of a run that continues a part with another name."""
        steps = self._steps
        if not self._rows.run.header.get("continues"):
            return None
        log = [entry.commit for entry in steps.in_order()]
        behind = [commit for commit in log if steps.labels[commit.id] != steps.label]
        if not behind:
            return None
        edits = [commit for commit in log[len(behind) : len(behind) + 1] if commit.is_manual()]
        last = behind[-1].id
        return Origin(steps.labels[last], steps.id_of(last), tuple(edits[0].patch) if edits else ())

    def _read_rows(self, rows: Sequence[Row]) -> None:
        """Read rows that come after those that were read; a question may be one after a commit, so these come first."""
        if self._folded is not None:
            self._read_own_commits(self._folded)
        # A commit with the results of its items has read their rows: they are not read twice.
        for row in rows:
            if row.kind in COMMITS and "items" in row.header and not row.header.get("scope"):
                header = CommitRow.of(row)
                at = self._steps.places.get(header.execution)
                if at is not None and not isinstance(self._steps.log[at].commit.patch, UnreadablePatch):
                    self._read_items.update(header.item_ids)
        for place, row in enumerate(rows):
            if place % TEXTS == 0:  # else each row asks for its texts, which those of an agent have in common
                self._texts = {}
                with suppress(StoreError, StateError):  # then it is said at the row that it concerns
                    names = long_texts_in(rows[place : place + TEXTS])
                    self._texts = self._reader.fetch(names) if names else {}
            if row.kind == RowKind.ITEM and row.header.get("execution") in self._read_items:
                self._items.append(row)
                continue
            if row.kind in COMMITS or row.kind in (RowKind.RESUME, RowKind.END):
                self._end, self._is_ended = None, row.kind == RowKind.END
            reason, name = "", f"row-{row.seq}"
            try:
                if is_readable(row):
                    self._read(row)
                elif row.kind not in COMMITS or row.header.get("scope"):  # else the commit says what is wrong with it
                    reason = _reason(row)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with this row, the others are shown
                reason = f"{type(error).__name__}: {error}"
            if reason:
                self._steps.of(name).damaged[name] = reason
        self._texts = {}

    def _read(self, row: Row) -> None:
        fetch, decode, steps = self._reader.fetch, self._reader.decode, self._steps
        if row.kind in COMMITS and row.header.get("scope"):
            self._read_inside(row)
        if row.kind in COMMITS or row.kind == RowKind.LM_CALL:
            if used := usage_of_calls(calls_in(row)):  # it counts, though a text be lost
                self._used = sum_usage((self._used, used))
                for call in calls_in(row, self._texts_of):
                    steps.of(call.execution).calls.append(call)
        elif row.kind == RowKind.ITEM:
            self._items.append(row)
            item = ItemRow.read(row, fetch, decode)
            steps.of(item.execution).items[item.execution] = item.value
        elif row.kind == RowKind.ASK:
            ask = QuestionRow.read(row, fetch)
            steps.ask(StepQuestion(ask.question(), ask.at))
        elif row.kind == RowKind.ANSWER:
            given = AnswerRow.read(row, fetch, decode)
            asked = steps.of(given.execution).asked.get((given.execution, given.key))
            if asked is not None:
                steps.ask(asked._replace(answer=None if given.retracted else given.answer(asked.question)))
        elif row.kind == RowKind.POST:
            post = PostRow.read(row, fetch, decode)
            update, name = post.patch[post.field], full_id(*post.scope, Address.parse(post.execution).own)
            size, how = update_size(update), post.operation
            steps.of(name).posts.append(
                Posted(post.field, post.node, path_of_id(name), name, post.seq, size, update, how, post.time)
            )
        elif row.kind == RowKind.END:
            # It has the sums of all processes up to it.
            self._end, self._used = row, sum_usage((EndRow.of(row).usage,))

    def _texts_of(self, names: Collection[str]) -> Mapping[str, bytes]:
        return self._texts if self._texts.keys() >= {*names} else self._reader.fetch(names)

    def _read_inside(self, row: Row) -> None:
        """The commit of a graph inside of a node."""
        header = CommitRow.of(row)
        siblings = self._siblings.setdefault(header.scope, [])
        parents = ((len(siblings) - 1,) if siblings else ()) if header.parents is None else header.parents
        record = header.filled(row, self._reader.fetch, self._reader.decode)
        if row.kind == RowKind.JOIN:
            record = replace(record, patch=record.made)
        commit = self._reader.commit(record, header.id, [siblings[one] for one in parents])
        self._steps.of(header.execution).inside[header.execution] = commit
        siblings.append(header.id)

    def _read_own_commits(self, folded: FoldedRun) -> None:
        """The commits of the run's own graph that were folded since."""
        rows, steps = self._rows, self._steps
        for index in range(len(steps.log), len(folded.log)):
            entry, point = folded.log[index], folded.points[index]
            if rows.snapshot is not None and not index:
                entry = entry._replace(commit=changed(entry.commit, id=PRUNED))
            steps.commit(entry, rows.labels.get(point.run, point.run))
        steps.settle(folded.run.settled_count, folded.run.first)


def _reason(row: Row) -> str:
    try:
        EndRow.of(row)
    except StoreError as error:
        return str(error)
    return "it is damaged"
