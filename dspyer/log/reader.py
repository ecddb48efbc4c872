"""Read the log of a thread: its rows, run by run, and the commits and states that they fold to.

Reading needs the schema and no graph, so every history can be read, whatever graph wrote it.

A run may consist of several *parts*: a rerun from a past version, for example, begins a new part that continues the run
at one of its rows. Rows are kept in order of arrival, so inside a fork the commits up to a version are no prefix of the
rows. The header of the new part therefore lists the rows before it that do not count: nothing is written twice, and a
commit keeps its row.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, NoReturn

from pydantic import create_model

from dspyer.errors import StateError, StoreError, ThreadError
from dspyer.events import Commit
from dspyer.ids import outermost_execution
from dspyer.log.rows import (
    COMMITS,
    CommitRow,
    EndRow,
    OpenRow,
    RowKind,
    fingerprint_id,
    run_label,
)
from dspyer.patch import seal
from dspyer.record_codec import DecodeValue
from dspyer.redaction import Redact, Redaction
from dspyer.reducers import BUILT_IN, Reducer
from dspyer.scheduler.topology import START
from dspyer.schema.fields import STARTS, Field, read_model
from dspyer.schema.limits import Limit
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, RunQuery, RunRow, Store
from dspyer.stores.content import Content, Fetch
from dspyer.stores.sql import DAMAGED
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict
from dspyer.values.json import TAG
from dspyer.values.scalars import SCALARS

# Snapshots: the state of a run at one of its rows, so that recovery folds only the log behind it.
#
# A snapshot is one body: the JSON of the state, with long texts and bytes as blobs. It is taken when a single branch
# is active and enough was written since the last one (`SinceSnapshot`). It is a cache: a missing or unreadable one
# costs time, and nothing else. `recover_state` reads the log from the last snapshot on.


EVERY = 480
"""Rows since the last snapshot from which on a run takes one as soon as a single branch is active."""

AT_END = 100
"""Rows since the last snapshot from which on a run takes one when it ends."""

TIMES, TIMES_AT_END = 4, 1
"""How many times the bytes of the last snapshot the rows since then must have, in a run and at its end.

So all snapshots of a thread together take a share of its log, however large the state grows; and what a reader folds
behind a snapshot is fewer than `EVERY` rows, or in proportion to the snapshot, which it reads anyway.
"""

ROW = 64
"""Bytes that a row counts for beside its content."""

logger = logging.getLogger("dspyer")

_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, StateError)


class SinceSnapshot(NamedTuple):
    """The rows written since the last snapshot, counted: they decide whether the next one is due.

    Attributes:
        rows: how many rows, without those of LM calls, which no state is computed of.
        size: about how many bytes they have as JSON. A store in memory encodes no row: there a snapshot costs nothing.
        snapshot: how many bytes of JSON the last snapshot has; 0 without one.
    """

    rows: int = 0
    size: int = 0
    snapshot: int = 0

    def with_rows(self, rows: Sequence[Row]) -> SinceSnapshot:
        """Return it with some rows more."""
        count, size, snapshot = self
        for row in rows:
            if row.kind != RowKind.LM_CALL:
                content = row.content
                count += 1
                size += ROW if content is None or not content.is_encoded else ROW + len(content.data)
        return SinceSnapshot(count, size, snapshot)

    def snapshot_is_due(self, more: int, ended: bool = False) -> bool:
        """Return whether to take a snapshot with so many rows more, which may end the run."""
        least, times = (AT_END, TIMES_AT_END) if ended else (EVERY, TIMES)
        return self.rows + more >= least and self.size >= times * self.snapshot


class SnapshotState(NamedTuple):
    """The state of a run at a row at which a single branch was active.

    Attributes:
        state: the state.
        commit_index: the index of the last commit among those of the run.
        commit: the global id of that commit.
    """

    state: ImmutableState
    commit_index: int
    commit: str = ""


class LoadedSnapshot(NamedTuple):
    """A snapshot that was read: its row, its state, and how many bytes of JSON it has."""

    at: Point
    content: SnapshotState
    size: int


def snapshot_content(state: SnapshotState) -> Content:
    """Return the content of a snapshot."""
    return Content(state, lambda taken: [taken.commit_index, taken.commit, encoding.encode(taken.state)])


def latest_snapshot(store: Store, at: Point, decode: DecodeValue) -> LoadedSnapshot | None:
    """Return the last readable snapshot of a run at or before a row."""
    while at.seq >= 0:
        found = store.snapshot(at)
        if found is None:
            return None
        try:
            size = len(found.content.data) if found.content.is_encoded else 0
            return LoadedSnapshot(found.at, _read(found.content, store.blobs, decode), size)
        except _UNREADABLE as error:
            logger.warning("the snapshot at row %d of run %s is skipped: %s", found.at.seq, at.run, error)
        at = Point(at.run, found.at.seq - 1)
    return None


def check_snapshot(content: Content, fetch: Fetch, decode: DecodeValue) -> None:
    """Raise `StoreError` if a snapshot cannot be read: pruning deletes the log that it replaces."""
    try:
        _read(Content.stored(content.data, content.refs), fetch, decode)
    except _UNREADABLE as error:
        raise StoreError(f"the snapshot at which the pruned history begins cannot be read: {error}") from error


def _read(content: Content, fetch: Fetch, decode: DecodeValue) -> SnapshotState:
    def loaded(plain: Any) -> SnapshotState:
        commit_index, commit, encoded = plain
        return SnapshotState(ImmutableState(_load(encoded, decode)), commit_index, commit)

    found: SnapshotState = content.value(fetch, loaded)
    return found


def _load(encoded: Any, decode: DecodeValue) -> Any:
    """Decode a value. Mappings and lists of mappings mostly hold scalars, which are frozen as they are."""
    if type(encoded) is list:
        return decode([_freeze_flat(item) for item in encoded])
    if type(encoded) is dict and TAG not in encoded:
        return freeze({key: _load(item, decode) for key, item in encoded.items()})
    return decode(encoded)


def _freeze_flat(encoded: Any) -> Any:
    """Freeze a mapping of scalars without decoding it: long lists mostly hold such mappings."""
    if type(encoded) is dict and TAG not in encoded and SCALARS.issuperset(map(type, encoded.values())):
        return FrozenDict.from_scalars(encoded)
    return encoded


PRUNED = "pruned"
"""The author of the commit with which a pruned history begins."""

PAGE = 16
"""Rows that `newest_rows` reads first, unless it is told; each further page is twice as long."""

# --- Rows of one run


OwnCommit = tuple[Row, Point, CommitRow]
"""A row of a commit of a run, not of a graph inside its nodes, with its place and its header."""


class RunRows(NamedTuple):
    """One run of a thread, with all its parts.

    Attributes:
        run: its newest part.
        parents: the rows that the run continues from.
        rows: its rows in the order of writing, without those that a later part leaves out.
        points: the point of each of these rows.
        labels: the readable name of each part, by its id.
        fingerprints: the id of the fingerprint of the graph that made each part, by the part's id.
        snapshot: that at the first of the rows, if what is before them was not read.
    """

    run: RunRow
    parents: tuple[Point, ...]
    rows: tuple[Row, ...]
    points: tuple[Point, ...]
    labels: Mapping[str, str]
    fingerprints: Mapping[str, str] = MappingProxyType({})
    snapshot: LoadedSnapshot | None = None

    @property
    def fingerprint(self) -> str:
        """The id of the fingerprint of the graph that made its newest part; "" if unknown."""
        return fingerprint_id(self.run)

    @property
    def status(self) -> str | None:
        """The status with which it ended; None if it has not ended."""
        end = ending_row(reversed(self.rows))
        return None if end is None else EndRow.of(end).status

    def own_commits(self) -> Iterator[OwnCommit]:
        """Yield the rows of its own commits, without those of graphs inside its nodes and that of the snapshot."""
        first = int(self.snapshot is not None)
        for row, point in zip(self.rows[first:], self.points[first:], strict=True):
            header = own_commit(row)
            if header is not None:
                yield row, point, header

    @property
    def step_count(self) -> int:
        """The number of its own commits; of a manual one whose run was not resumed there is an open row alone."""
        opened = [row for row in self.rows if row.kind == RowKind.OPEN and OpenRow.of(row).node != START]
        return sum(1 for _ in self.own_commits()) or len(opened)


class RecoveredState(NamedTuple):
    """The state at a row.

    Attributes:
        state: the last state at which a single branch was active.
        next_version: the version of the next commit.
        last_run: the run of the row, as far as it was read.
        tail: what was written since the last snapshot.
        broken: why a commit before the row cannot be read; "" if all can. State and version are those before it.
        last_good: the row of the last readable commit, if one is not readable; None for none.
    """

    state: ImmutableState
    next_version: int
    last_run: RunRows
    tail: SinceSnapshot
    broken: str = ""
    last_good: Point | None = None


def own_commit(row: Row) -> CommitRow | None:
    """Return the header of a commit of a run; None for other rows, and for commits of graphs inside its nodes.

    A header that cannot be read is that of an unknown author: `History.add` says why, and names the row.
    """
    header = commit_header(row) if row.kind in COMMITS else None
    return None if header is None or header.scope else header


def commit_header(row: Row) -> CommitRow:
    """Return the header of a commit, for those who show its neighbours, too; that of an unknown author if need be."""
    try:
        return CommitRow.of(row)
    except StoreError:
        return CommitRow(id=f"row-{row.seq}", node=UNKNOWN, step=row.seq)


UNKNOWN = "?"
"""The author of a commit whose row cannot be read."""


def read_run(store: Store, at: Point, root: Point | None = None, known: RunRow | None = None) -> RunRows:
    """Read the run of a row, up to this row; raise `StoreError` if the run or the row is missing.

    `known` is the run, if it was read before. Of the run that ends at `root`, where a pruned history begins, this row
    alone is read.
    """
    if at == root:
        return rows_of_part(load_run(store, at.run), store.rows(at.run, at.seq, at.seq))._replace(parents=())
    parts: list[tuple[RunRow, list[Row]]] = []
    run, last = known or load_run(store, at.run), at.seq
    ancestry = RunAncestry(store, run)
    while True:
        parts.append((run, rows_through(store, run.id, 0, last)))
        if not run.header.get("continues"):
            break
        run, last = ancestry.continued_part(run)
    rows: list[Row] = []
    points: list[Point] = []
    for part, its_rows in reversed(parts):
        if part.header.get("without"):
            rows, kept = without_rows(rows, part.header["without"])
            points = [points[index] for index in kept]
        rows += its_rows
        points += [Point(part.id, row.seq) for row in its_rows]
    rows = with_map_results(rows)
    labels = {part.id: run_label(part) for part, _ in parts}
    fingerprints = {part.id: fingerprint_id(part) for part, _ in parts}
    return RunRows(parts[0][0], run.parents, tuple(rows), tuple(points), labels, fingerprints)


_GONE = (
    ". If another process has deleted or pruned the thread meanwhile, read it again; if not, rows were removed by hand"
)


def rows_through(store: Store, run: str, first: int, last: int) -> list[Row]:
    """Read the rows of a run up to `last`; raise `StoreError` if that row is missing: another process may delete it.

    Where others are missing, there is a damaged row: it may have been a commit, so what comes after it is not known.
    """
    rows = store.rows(run, first, last)
    if not rows or rows[-1].seq != last:
        raise StoreError(f"the store {store.address!r} has no row {last} of run {run!r}, which a thread needs{_GONE}")
    if len(rows) <= last - first:
        gone = {DAMAGED: f"in run {run}, it is not there"}
        seqs = [first - 1, *[row.seq for row in rows]]
        gaps = [Row(seq + 1, RowKind.COMMIT, gone) for seq, after in pairwise(seqs) if after != seq + 1]
        rows = sorted([*rows, *gaps], key=lambda row: row.seq)
    return rows


def newest_rows(store: Store, at: Point, count: int = PAGE) -> Iterator[tuple[RunRow, Row]]:
    """Yield the rows of a run up to one of them, newest first, each with the part of the run that it is in.

    They are read in pages of doubling length, the first of `count` rows: callers mostly need a few of the last ones.
    """
    run, last, given = load_run(store, at.run), at.seq, 0
    ancestry = RunAncestry(store, run)
    while True:
        while last >= 0:
            page = store.rows(run.id, max(last - count + 1, 0), last)
            yield from ((run, row) for row in reversed(page))
            given += len(page)
            last, count = last - count, 2 * count
        if not run.header.get("continues"):
            return
        if run.header.get("without"):
            break  # of the parts before this one, some rows do not count
        run, last = ancestry.continued_part(run)
    whole = read_run(store, at)
    parts = {name: load_run(store, name) for name in whole.labels}
    older = list(zip(whole.rows, whole.points, strict=True))[: len(whole.rows) - given]
    yield from ((parts[point.run], row) for row, point in reversed(older))


def ending_row(newest_first: Iterable[Row]) -> Row | None:
    """Return the end row of a run; None if it has not ended, or was resumed since."""
    for row in newest_first:
        if row.kind == RowKind.END:
            return row
        if row.kind in COMMITS or row.kind == RowKind.RESUME:
            break
    return None


def with_map_results(rows: Sequence[Row], earlier: Callable[[], Sequence[Row]] = tuple) -> list[Row]:
    """Return rows in which the commits of maps have the results of their item rows.

    Args:
        rows: rows of a run.
        earlier: reads the rows before them, if they are not from the beginning.
    """
    items = _items_in(rows)
    found: list[Row] = []
    for row in rows:
        header = None
        if row.kind in COMMITS and "items" in row.header:
            header = commit_header(row)
        if header is None or header.items is None or row.content is None:
            found.append(row)
            continue
        # A corrupt header may claim any number of items: ids are listed only for as many as there are rows.
        ids = header.item_ids if header.items.number <= len(items) else []
        if header.items.number > len(items) or not all(name in items for name in ids):
            items = {**_items_in(earlier()), **items}
            ids = header.item_ids if header.items.number <= len(items) else [""]
        # One that is damaged does not say whose it is: reading it says what is wrong.
        results = [items.get(name, items.get(UNKNOWN)) for name in ids]
        found.append(row._replace(content=row.content.with_parts(results)))
    return found


def _items_in(rows: Iterable[Row]) -> dict[str, Row]:
    """Return the rows of items of maps, by the ids of their executions."""
    return {str(row.header.get("execution", UNKNOWN)): row for row in rows if row.kind == RowKind.ITEM}


def check_thread_name(name: object, example: str = "program.thread('t-42')") -> None:
    """Raise `ThreadError` for a name that is no text, empty, or cannot be encoded as UTF-8."""
    with suppress(UnicodeEncodeError):
        if isinstance(name, str) and name.encode():
            return
    raise ThreadError(f"{name!r} is no name of a thread: that is any text, not empty: {example}")


# --- The chain of runs behind a row


def load_run(store: Store, run: str) -> RunRow:
    """Return a run by its id; raise `StoreError` if it is missing."""
    found = store.run(run)
    if found is None:
        raise StoreError(f"the store {store.address!r} has no run {run!r}, which a thread continues from{_GONE}")
    return found


class RunAncestry:
    """The runs passed on the way back from a row. In a log that dspyer wrote, no run comes twice.

    Without this check, a forged or corrupt log whose runs continue from each other would be read without end.
    """

    def __init__(self, store: Store, first: RunRow | None = None) -> None:
        self._store = store
        self._passed = set() if first is None else {first.id}

    def visit(self, run: str) -> None:
        """Record a run; raise `StoreError` if it was passed before."""
        if run in self._passed:
            raise cyclic_history(self._store, run)
        self._passed.add(run)

    def continued_part(self, run: RunRow) -> tuple[RunRow, int]:
        """Return the part that a part of a run continues, and the number of its last row that counts."""
        if len(run.parents) != 1:
            raise StoreError(
                f"run {run.id!r} of the store {self._store.address!r} continues {len(run.parents)} runs, not one"
            )
        ((name, seq),) = run.parents
        self.visit(name)
        return load_run(self._store, name), seq


def cyclic_history(store: Store, run: str) -> StoreError:
    """Return the error for a run that continues from itself."""
    return StoreError(
        f"run {run!r} of the store {store.address!r} continues from itself, through one or several runs: its rows were "
        "not written by dspyer. Delete the thread, or load it from an export that can be trusted"
    )


def read_runs(
    store: Store, heads: Sequence[Point], root: Point | None = None, known: Container[Point] = ()
) -> list[RunRows]:
    """Read the runs behind some rows, parents first: ancestors of an earlier head, or first parent, come first.

    Args:
        store: the store.
        heads: the rows.
        root: the row at which a pruned history begins.
        known: last rows of runs that are not read again, nor what is behind them.
    """
    found: dict[Point, RunRows] = {}

    def parents_of(at: Point) -> Sequence[Point]:
        found[at] = read_run(store, at, root)
        return [parent for parent in found[at].parents if parent not in known]

    order = parents_first(store, [head for head in heads if head not in known], parents_of)
    return [found[at] for at in order]


def parents_first(store: Store, heads: Sequence[Point], parents_of: Callable[[Point], Sequence[Point]]) -> list[Point]:
    """Return the last rows of the runs behind some rows: depth first, in postorder."""
    stack: list[tuple[Point, bool]] = [(head, False) for head in reversed(heads)]
    begun: set[Point] = set()
    order: dict[Point, None] = {}
    while stack:  # `done` marks a run whose parents are in `order`
        at, done = stack.pop()
        if done:
            order[at] = None
        elif at not in begun:
            begun.add(at)
            stack.append((at, True))
            stack.extend((parent, False) for parent in reversed(parents_of(at)))
        elif at not in order:
            raise cyclic_history(store, at.run)
    return list(order)


def rows_of_part(run: RunRow, rows: Sequence[Row], snapshot: LoadedSnapshot | None = None) -> RunRows:
    """Return some rows of one part of a run, with its label and fingerprint."""
    points = tuple([Point(run.id, row.seq) for row in rows])
    labels, fingerprints = {run.id: run_label(run)}, {run.id: fingerprint_id(run)}
    return RunRows(run, run.parents, tuple(rows), points, labels, fingerprints, snapshot)


# --- Reading commits


class HistoryReader:
    """Reads the rows of runs with a schema.

    Args:
        store: the store.
        schema: types and reducers of the fields.
        decode: makes frozen values of their JSON form.
        fingerprint: the id of the graph's fingerprint; rows of other graphs are folded as those graphs did.
        redact: what records hide, as `compile(redact=)` takes it; None for what each run has stored, False for nothing.
    """

    def __init__(
        self,
        store: Store,
        schema: Schema,
        decode: DecodeValue = encoding.decode,
        fingerprint: str = "",
        redact: Redact | Redaction | Literal[False] = None,
    ) -> None:
        if redact and not isinstance(redact, Redaction):
            Redaction.of(redact)  # raises for a malformed pattern
        self.redact = redact
        self.fingerprint = fingerprint
        self.fetch: Fetch = store.blobs
        self.store = store
        self.schema = schema
        self.decode = decode
        self._earlier_schemas: dict[str, Schema] = {}

    def hides(self, run: RunRow) -> bool:
        """Return whether values of a run are hidden where it is shown."""
        return self.redact is not False and (self.redact is not None or run.header.get("hidden") is not None)

    def opening(self, rows: Iterable[Row]) -> OpenRow | None:
        """Return the open row of a run, which has the author and the patch of its first commit; None without one."""
        found = next((row for row in rows if row.kind == RowKind.OPEN), None)
        return None if found is None else OpenRow.read(found, self.fetch, self.decode)

    def schema_of(self, fingerprint: str) -> Schema:
        """Return the schema that folds what a graph has written, by the id of its fingerprint; "" is this graph."""
        if fingerprint in ("", self.fingerprint):
            return self.schema
        if fingerprint not in self._earlier_schemas:
            found = self.fetch([fingerprint]).get(fingerprint)
            schema = self.schema if found is None else earlier_schema(json.loads(found), self.schema)
            self._earlier_schemas[fingerprint] = schema
        return self._earlier_schemas[fingerprint]

    def schema_by_row(self, run_rows: RunRows) -> Callable[[Row], Schema]:
        """Return a function from each row of a run to the schema of the graph that wrote it."""
        if len(set(run_rows.fingerprints.values())) < 2:
            schema = self.schema_of(run_rows.fingerprint)
            return lambda _: schema
        fingerprints = {
            id(row): run_rows.fingerprints[point.run] for row, point in zip(run_rows.rows, run_rows.points, strict=True)
        }
        # Rows that are not among these were written since, by the graph of the newest part.
        return lambda row: self.schema_of(fingerprints.get(id(row), run_rows.fingerprint))

    @staticmethod
    def commit(record: CommitRow, name: str, parents: Iterable[str]) -> Commit:
        """Return a commit as users see it, without version, from its row, its id and those of its parents."""
        started, duration = record.seconds
        return Commit(
            name,
            None,
            record.node,
            record.branch,
            record.visit,
            record.step,
            seal({} if record.patch is None else record.patch),
            tuple(parents),
            route=record.route,
            reason=record.reason,
            started=started,
            duration=duration,
            live=record.live,
            calls=record.calls,
            **record.attempts,
        )


def with_opening(record: CommitRow, opening: OpenRow) -> CommitRow:
    """Return a run's first commit with the patch of its open row; a manual one has the time at which it was made."""
    times = record.times if opening.created is None else (opening.created, 0)
    return replace(record, patch=opening.patch, made=opening.made, times=times)


# --- Cutting a run at one of its commits

RowRange = tuple[int, int]
"""First and last of successive row indexes."""


def rows_left_out(rows: Sequence[Row], kept: Collection[int]) -> tuple[int, list[RowRange]]:
    """Return, for a run of which only some commits are kept, the last row that counts and the rows left out before it.

    Left out are other commits, and the items, effects, questions, answers, LM calls and rows of layers of executions
    that have no commit among those that are kept.

    Args:
        rows: the rows of the run.
        kept: indexes of the commits that are kept; with each of them, those it descends from. The open row is one of
            a manual commit whose run was not resumed yet.
    """
    last = max(kept)
    committed = {CommitRow.of(rows[index]).id: index for index in kept if rows[index].kind in COMMITS}
    dropped = []
    for index, row in enumerate(rows[:last]):
        if row.kind in COMMITS:
            header = CommitRow.of(row)
            counts = committed.get(outermost_execution(header.scope[0]), -1) > index if header.scope else index in kept
        elif row.kind in (RowKind.ITEM, RowKind.ONCE, RowKind.ASK, RowKind.ANSWER, RowKind.LAYER, RowKind.LM_CALL):
            counts = committed.get(outermost_execution(str(row.header.get("execution"))), -1) > index
        else:
            counts = True
        if not counts:
            dropped.append(index)
    return last, row_ranges(dropped)


def row_ranges(indexes: Iterable[int]) -> list[RowRange]:
    """Return ascending indexes as ranges."""
    found: list[RowRange] = []
    for index in indexes:
        if found and found[-1][1] == index - 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return found


def without_rows(rows: Sequence[Row], dropped: Iterable[Sequence[int]]) -> tuple[list[Row], list[int]]:
    """Return rows without some ranges of them, and the old indexes of those that are left.

    Parents of commits are indexes among the commits of their scope, so they are counted anew.
    """
    gone = {index for first, last in dropped for index in range(max(first, 0), min(last + 1, len(rows)))}
    new_indexes: dict[tuple[str, ...], dict[int, int]] = {}
    counts: dict[tuple[str, ...], int] = {}
    left: list[Row] = []
    kept: list[int] = []
    for index, row in enumerate(rows):
        if row.kind in COMMITS:
            header = CommitRow.of(row)
            old = counts.get(header.scope, 0)
            counts[header.scope] = old + 1
            if index in gone:
                continue
            known = new_indexes.setdefault(header.scope, {})
            parents = header.parents if header.parents is not None else ((old - 1,) if old else ())
            now = tuple([known[parent] for parent in parents])
            known[old] = len(known)
            left.append(row._replace(header=replace(header, parents=now).header()) if now != parents else row)
        elif index in gone:
            continue
        else:
            left.append(row)
        kept.append(index)
    return left, kept


# --- Schemas of earlier graphs


def earlier_schema(facts: Mapping[str, Any], now: Schema) -> Schema:
    """Return the schema that folds the updates that another graph has written, from that graph's fingerprint.

    Nothing is validated again. A field that the schema still has is folded by its reducer if that has the same name,
    any other by the built-in reducer of the name. What a function has made, which may be gone, is in the rows.
    """
    if facts.get("open"):
        return Schema.of(None)
    if any(reducer == "langgraph.add_messages" for _, reducer, *_ in facts.get("fields", {}).values()):
        with suppress(ImportError):  # with LangGraph installed, the classes of its messages are known
            import_module("dspyer.migrate.channels")
    fields = {
        name: _field(name, text, reducer, Limit(*rest[0]) if rest else None, now.fields.get(name))
        for name, (text, reducer, *rest) in facts.get("fields", {}).items()
        if reducer
    }
    return Schema(now.model, MappingProxyType(fields), None)


def _field(name: str, type_text: str, reducer: str, limit: Limit | None, now: Field | None) -> Field:
    if now is not None and now.reducer is not None and now.reducer.name == reducer:
        return replace(now, checks_result=False, limit=limit)
    found = BUILT_IN.get(reducer) or Reducer(reducer, partial(_gone, reducer))
    start = found.empty
    if found is BUILT_IN["union"]:
        kind = type_text.partition("[")[0].partition(" ")[0]
        start = next((value for cls, value in STARTS.items() if cls.__name__ == kind), start)
    return replace(_ANY, name=name, reducer=found, fold_start=start, limit=limit)


_ANY = replace(read_model(create_model("Stored", value=(Any, ...)))["value"], required=False, plain_config=None)
"""A field of which only the name of its reducer is known, and not the type."""


def _gone(reducer: str, _current: Any, _update: Any) -> NoReturn:
    raise StoreError(f"the reducer {reducer!r} is not there, and the store has not kept what it made of its updates")


def is_encrypted(store: Store) -> bool:
    """Return whether the contents of the newest run are encrypted."""
    # Lists read headers alone, which encryption leaves as they are. The first row with a content says how it is stored;
    # a store is encrypted as a whole, so the newest run speaks for all.
    for listed in store.list_runs(RunQuery(limit=1)):
        for row in store.rows(listed.run.id, 0, 1):
            if row.content is not None and row.content.is_encoded:
                return row.content.is_encrypted
    return False
