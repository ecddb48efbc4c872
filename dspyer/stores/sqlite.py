"""A store in one SQLite file, for many threads and processes of one machine.

`dspyer.stores.sqlite_file` has the connections and the log, `dspyer.stores.sqlite_opening` the tables; here is what is
read and written in them. All functions below the class work within the transaction of their caller.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dspyer.clock import wall
from dspyer.stores.base import (
    ENDINGS,
    NO_EPOCHS,
    Change,
    DeletionReport,
    ListedRun,
    Point,
    Row,
    RunQuery,
    RunRow,
    Snapshot,
    Store,
    ThreadRow,
    end_of,
    is_listed,
    start_of,
)
from dspyer.stores.columns import (
    BLOB_ID,
    DAMAGED,
    decode_body,
    decode_ended,
    decode_json,
    decode_owner,
    decode_point,
    decode_points,
    encode_blob_id,
    encode_body,
    encode_ended,
    encode_json,
    encode_text,
    ended_range,
)
from dspyer.stores.content import Content
from dspyer.stores.reachability import (
    DeletionPlan,
    RunSummary,
    ThreadBounds,
    plan_delete_unreachable,
    plan_deletion,
    relevant_subgraph,
)
from dspyer.stores.sqlite_file import FileConnections
from dspyer.stores.sqlite_opening import ConnectionOpener, ReadOnlyFile
from dspyer.stores.writes import CurrentRows, as_read, check_epochs, check_runs, plan_write, thread_after

PATIENCE = 15.0
"""Seconds that a call waits for a lock: half of a lease, so that the lease of a waiting owner does not expire."""

MAX_SEQ = (1 << 63) - 1
"""The greatest number that a row can have: that of an integer in SQLite."""


class SQLite(Store):
    """A store in one SQLite file, which several threads and processes of one machine may use at the same time.

    A written change is in the operating system's memory when `write` returns: it survives the end of the process. With
    `Change.flush` it is on the disk: it survives a power failure.

    Args:
        path: the file; the first write creates it.
        clock: returns seconds, the same for every process that uses the file: leases are compared by it.
        patience: seconds to wait for the lock of another process, or for other threads of this one.
        read_only: reads the file and writes nothing: it is not created, and no file is made next to it.

    Raises:
        StoreError: (on first use) the file is not a store, was made by another version of dspyer, or is on a network
            file system; or it does not exist, with `read_only`.

    Example:
        >>> import tempfile
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("a", lambda state: {"n": 1}).add_path(START, "a", END)
        >>> with tempfile.TemporaryDirectory() as folder, SQLite(f"{folder}/runs.db") as store:
        ...     _ = graph.compile(store=store).thread("t-1").run({})
        ...     store.threads()
        ['t-1']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = wall,
        patience: float = PATIENCE,
        read_only: bool = False,
    ) -> None:
        self._path = Path(path).absolute()
        self._clock = clock
        self._patience = patience
        self._read_only = read_only
        self._opener = ConnectionOpener(self._path)
        self._connections: FileConnections | ReadOnlyFile = (
            ReadOnlyFile(self._path) if read_only else FileConnections(self._path, self._opener, patience)
        )

    @property
    def address(self) -> str:
        return str(self._path)

    def __repr__(self) -> str:
        return f"SQLite({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(SQLite, clock=self._clock, patience=self._patience, read_only=self._read_only)
        return make, (self.address,)

    def write(self, change: Change) -> int:
        encoded = EncodedChange.of(change)
        return self._connections.write(partial(self._write, change, encoded), change.flush, encoded.size)

    def write_now(self, change: Change) -> bool:
        encoded = EncodedChange.of(change)
        return self._connections.write_now(partial(self._write, change, encoded), change.flush, encoded.size)

    def _write(self, change: Change, encoded: EncodedChange, connection: sqlite3.Connection) -> int:
        if change.flush:  # not for each write: a flush is rare, and takes longer than this look at the file
            self._opener.check_same_file()
        return write(connection, change, encoded, self._clock())

    def thread(self, name: str) -> ThreadRow | None:
        found = self._connections.read(lambda connection: connection.execute(_THREAD, (name,)).fetchone())
        return None if found is None else as_read(_thread_row(*found), self._clock())

    def threads(self, after: str = "", limit: int | None = None) -> list[str]:
        values = after, -1 if limit is None else limit  # a negative limit of SQLite's is none
        found = self._connections.read(lambda connection: connection.execute(_NAMES, values).fetchall())
        return [name for (name,) in found]

    def run(self, run: str) -> RunRow | None:
        return self._connections.read(lambda connection: read_run(connection, run))

    def runs(self, thread: str) -> list[RunRow]:
        if not thread:  # runs of no thread belong to deleted ones
            return []
        found = self._connections.read(lambda connection: connection.execute(_RUNS, (thread,)).fetchall())
        return [_run_row(*columns) for columns in found]

    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        return self._connections.read(lambda connection: list_runs(connection, query, self._clock()))

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        return self._connections.read(lambda connection: read_rows(connection, run, first, last))

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        return self._connections.read(lambda connection: read_blobs(connection, ids))

    def snapshot(self, at: Point) -> Snapshot | None:
        return self._connections.read(lambda connection: read_snapshot(connection, at))

    def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        return self._delete(lambda connection: delete_threads(connection, frozenset(threads), epochs))

    def delete_unreachable(self, thread: str) -> DeletionReport:
        def plan(threads: Mapping[str, ThreadBounds], runs: Mapping[str, RunSummary]) -> DeletionPlan:
            return plan_delete_unreachable(threads, runs, thread)

        return self._delete(lambda connection: delete_planned(connection, [thread], plan))

    def _delete(self, work: Callable[[sqlite3.Connection], DeletionReport]) -> DeletionReport:
        """Delete, then empty the log, which still has what was overwritten in the file."""
        report = self._connections.write(work)
        if not (report.threads or report.runs or report.rows):
            return report
        return report._replace(erased=self._connections.erase())

    def drop_snapshots(self) -> None:
        self._connections.write(delete_snapshots)

    def vacuum(self) -> None:
        """Rewrite the file without gaps and without any trace of deleted data; other writers wait meanwhile."""
        self._connections.exclusively(lambda connection: connection.execute("VACUUM"))
        self._connections.erase()

    def close(self) -> None:
        """Empty the log and close all connections of this process, each as soon as it is idle."""
        self._connections.close()


# --- writing

_LAST = "(SELECT max(seq) FROM entry WHERE run = :rows_of)"

# All that a write must know, in one statement.
_CURRENT = f"""
    SELECT largest, {_LAST}, EXISTS (SELECT 1 FROM run WHERE id = :rows_of), EXISTS (SELECT 1 FROM run WHERE id = :run),
    thread.* FROM fence LEFT JOIN thread ON name = :thread"""

# The next row of a run, if the thread has the epoch of the change.
_APPEND = """
    INSERT INTO entry SELECT ?1, ?2, ?3, ?4 FROM thread WHERE name = ?5 AND fencing = ?6
    AND (SELECT max(seq) FROM entry WHERE run = ?1) = ?2 - 1"""
_INSERT_ROW = "INSERT INTO entry VALUES (?, ?, ?, ?)"
_INSERT_BLOBS = "INSERT OR IGNORE INTO blob VALUES (?, ?)"
_INSERT_THREAD = "INSERT OR REPLACE INTO thread VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class EncodedChange(NamedTuple):
    """The columns of a change, encoded before the write lock is taken.

    Attributes:
        bodies: the bodies of its rows by number.
        snapshot: the body of its snapshot.
        blobs: ids and bytes.
        size: bytes of all of them.
    """

    bodies: Mapping[int, bytes]
    snapshot: bytes | None
    blobs: Sequence[tuple[bytes, bytes]]
    size: int

    @classmethod
    def of(cls, change: Change) -> EncodedChange:
        """Encode a change."""
        bodies = {row.seq: encode_body(row.header, row.content) for row in change.rows}
        contents = [row.content for row in change.rows if row.content is not None and row.content.refs]
        snapshot = None
        if change.snapshot is not None:
            contents.append(change.snapshot.content)
            snapshot = encode_body({}, change.snapshot.content)
        blobs = [(encode_blob_id(name), blob) for one in contents for name, blob in one.blobs.items()]
        size = sum(map(len, (*bodies.values(), snapshot or b"", *(blob for _, blob in blobs))))
        return cls(bodies, snapshot, blobs, size)


def write(connection: sqlite3.Connection, change: Change, encoded: EncodedChange, now: float) -> int:
    """Write what is new of a change; return the epoch of its thread afterwards, 0 without one."""
    if _append(connection, change, encoded):
        return change.epoch
    current = _current_rows(connection, change)
    plan = plan_write(change, current)
    if plan is None:
        return current.thread.epoch if current.thread is not None else 0
    check_runs(change, lambda run: read_run(connection, run) is not None)
    if plan.new_run and change.run is not None:
        _insert_run(connection, change.run)
    connection.executemany(_INSERT_BLOBS, encoded.blobs)
    for row in plan.rows:
        connection.execute(_INSERT_ROW, (change.rows_of, row.seq, row.kind, encoded.bodies[row.seq]))
    _note_rows(connection, change.rows_of, plan.rows)
    if change.snapshot is not None and encoded.snapshot is not None:
        _write_snapshot(connection, change.snapshot, encoded.snapshot)
    if not change.thread:
        return 0
    connection.execute(_INSERT_THREAD, _thread_columns(thread_after(change, current.thread, plan, now)))
    return plan.epoch


_NONE_OF_SIX = (None,) * 6


def _append(connection: sqlite3.Connection, change: Change, encoded: EncodedChange) -> bool:
    """Append the next row of a run for the thread's owner; False, without a change, for any other change.

    This is nearly every write of a run, and takes two statements.
    """
    name, epoch, next_epoch, owner, lease, head, root, run, rows_of, rows, snapshot, _, runs = change
    if (next_epoch, owner, lease, root, run, snapshot) != _NONE_OF_SIX or head is None or len(rows) != 1 or runs:
        return False
    row, body = rows[0], encoded.bodies[rows[0].seq]
    try:
        if not connection.execute(_APPEND, (rows_of, row.seq, row.kind, body, name, epoch)).rowcount:
            return False
    except sqlite3.IntegrityError:
        return False  # the row is there already: the statement has changed nothing
    # Naming `head_run` would write its index too, even with the same value.
    moved = connection.execute(
        "UPDATE thread SET head_seq = ? WHERE name = ? AND head_run = ?", (head.seq, name, head.run)
    )
    if not moved.rowcount:
        check_runs(change, lambda run: read_run(connection, run) is not None)
        connection.execute("UPDATE thread SET head_run = ?, head_seq = ? WHERE name = ?", (*head, name))
    if encoded.blobs:
        connection.executemany(_INSERT_BLOBS, encoded.blobs)
    _note_rows(connection, rows_of, rows)
    return True


def _current_rows(connection: sqlite3.Connection, change: Change) -> CurrentRows:
    """What `plan_write` must know."""
    run = "" if change.run is None else change.run.id
    values = {"rows_of": change.rows_of, "run": run, "thread": change.thread}
    largest, last, has_rows_of, has_run, *columns = connection.execute(_CURRENT, values).fetchone()
    thread = None if columns[0] is None else _thread_row(*columns)
    stored = read_run(connection, run) if has_run else None
    last = (-1 if last is None else last) if has_rows_of else None
    if last is None or not change.rows or change.rows[0].seq > last:
        return CurrentRows(thread, stored, last, max_deleted_epoch=largest)
    rows = read_rows(connection, change.rows_of, change.rows[0].seq, change.rows[-1].seq)
    return CurrentRows(thread, stored, last, rows, largest)


def _insert_run(connection: sqlite3.Connection, run: RunRow) -> None:
    header, parents, graph = dict(run.header), encode_json(run.parents), run.header.get("graph")
    name = encode_text(graph) if isinstance(graph, str) else None
    columns = run.id, run.thread, parents, encode_json(header), name, start_of(run)
    connection.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, NULL)", columns)
    links = [(parent.run, run.id) for parent in run.parents]
    connection.executemany("INSERT OR IGNORE INTO link VALUES (?, ?)", links)


def _note_rows(connection: sqlite3.Connection, run: str, rows: Sequence[Row]) -> None:
    """Note which blobs rows refer to, and how their run ended if they say so."""
    for row in rows:
        if row.content is not None and row.content.refs:
            _insert_refs(connection, row.content, run, row.seq)
    last = next((row for row in reversed(rows) if row.kind in ENDINGS), None)
    if last is not None:
        _write_ended(connection, run, end_of([last]))


def _write_ended(connection: sqlite3.Connection, run: str, end: Row | None) -> None:
    ended = None if end is None else encode_ended(end)
    connection.execute("UPDATE run SET ended = ? WHERE id = ?", (ended, run))


def _write_snapshot(connection: sqlite3.Connection, snapshot: Snapshot, body: bytes) -> None:
    """Insert or replace a snapshot, and delete the blobs that only the replaced one referred to."""
    (run, seq), content = snapshot
    if not connection.execute("INSERT OR IGNORE INTO snapshot VALUES (?, ?, ?)", (run, seq, body)).rowcount:
        kept = {encode_blob_id(name) for name in content.refs}
        _delete_refs(connection, [ref for ref in _refs_in(connection, "snapshot", run, seq, seq) if ref[0] not in kept])
        connection.execute("UPDATE snapshot SET body = ? WHERE run = ? AND seq = ?", (body, run, seq))
    _insert_refs(connection, content, run, -1 - seq)


Ref = tuple[bytes, str, int]
"""A row of the table `ref`: the id of a blob, and the place that refers to it."""


def _insert_refs(connection: sqlite3.Connection, content: Content, run: str, place: int) -> None:
    """Note the references of a content: `place` is the number of an entry, or -1 minus that of a snapshot."""
    refs: list[Ref] = [(encode_blob_id(name), run, place) for name in content.refs]
    connection.executemany("INSERT OR IGNORE INTO ref VALUES (?, ?, ?)", refs)


# --- reading

_THREAD = "SELECT * FROM thread WHERE name = ?"
_NAMES = "SELECT name FROM thread WHERE name > ? ORDER BY name LIMIT ?"
_RUN = "SELECT id, thread, parents, header FROM run"
_RUNS = f"{_RUN} WHERE thread = ? ORDER BY rowid"  # in the order of their creation
_ROWS = "SELECT seq, kind, body FROM entry WHERE run = ? AND seq BETWEEN ? AND ? ORDER BY seq"
_SNAPSHOT = "SELECT seq, body FROM snapshot WHERE run = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
_ENDINGS = "SELECT seq, kind, body FROM entry WHERE run = ? AND seq <= ? AND kind IN (?, ?) ORDER BY seq DESC LIMIT 1"


def read_run(connection: sqlite3.Connection, run: str) -> RunRow | None:
    found = connection.execute(f"{_RUN} WHERE id = ?", (run,)).fetchone()
    return None if found is None else _run_row(*found)


def read_rows(connection: sqlite3.Connection, run: str, first: int, last: int | None) -> list[Row]:
    end = MAX_SEQ if last is None else min(last, MAX_SEQ)
    found = connection.execute(_ROWS, (run, max(first, 0), end)).fetchall()
    return [_row(*columns) for columns in found]


def read_end(connection: sqlite3.Connection, run: str, last: int = MAX_SEQ) -> Row | None:
    """The row with which a run ended, by its rows up to `last`."""
    found = connection.execute(_ENDINGS, (run, last, *ENDINGS)).fetchall()
    return end_of([_row(*columns) for columns in found])


def read_snapshot(connection: sqlite3.Connection, at: Point) -> Snapshot | None:
    found = connection.execute(_SNAPSHOT, (at.run, min(at.seq, MAX_SEQ))).fetchone()
    if found is None:
        return None
    _, content = decode_body(found[1])
    # Of a damaged one, an empty content: its reader is told that it is none.
    return Snapshot(Point(at.run, found[0]), Content.stored(b"") if content is None else content)


def read_blobs(connection: sqlite3.Connection, ids: Collection[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in filter(BLOB_ID.fullmatch, ids):
        for (body,) in connection.execute("SELECT body FROM blob WHERE id = ?", (encode_blob_id(name),)):
            found[name] = body
    return found


def _row(seq: int, kind: str, body: bytes) -> Row:
    header, content = decode_body(body)
    return Row(seq, kind, header, content)


def _run_row(run: str, thread: str, parents: bytes, header: bytes) -> RunRow:
    return RunRow(run, thread, decode_points(parents), decode_json(header))


def _thread_row(*columns: Any) -> ThreadRow:
    """The row of a thread from its columns; its lease is the time at which it expires."""
    name, epoch, head, head_seq, root, root_seq, owner, lease_until, runs = columns
    bounds = decode_point(head, head_seq), decode_point(root, root_seq)
    return ThreadRow(name, bounds[0], epoch, decode_owner(owner), lease_until, bounds[1], runs)


def _thread_columns(thread: ThreadRow) -> tuple[Any, ...]:
    name, head, epoch, owner, lease, root, runs = thread
    owned = None if owner is None else encode_json(owner)
    return name, epoch, *(head or (None, None)), *(root or (None, None)), owned, lease, runs


# --- lists of runs

_LAST_OF_RUN = "(SELECT max(seq) FROM entry WHERE entry.run = run.id)"

# CROSS JOIN: the runs come first, in the order of the list, so that reading ends with the last one that is wanted.
_LISTED = f"""
    SELECT run.id, run.thread, parents, header, run.started, run.ended, {_LAST_OF_RUN}, thread.*
    FROM run CROSS JOIN thread ON %s
    WHERE %s ORDER BY run.started DESC, run.id DESC, thread.name DESC LIMIT ?"""


def list_runs(connection: sqlite3.Connection, query: RunQuery, now: float) -> list[ListedRun]:
    """The runs that a query asks for."""
    found: list[ListedRun] = []
    while len(found) < query.limit:
        statement, values = _list_statement(query)
        batch = [_listed(connection, columns, query.last, now) for columns in connection.execute(statement, values)]
        found += [listed for listed in batch if is_listed(listed, query._replace(after=None))]
        if len(batch) < query.limit:
            break
        query = query._replace(after=batch[-1].place)
    return found[: query.limit]


def _list_statement(query: RunQuery) -> tuple[str, list[Any]]:
    """The statement of a query, and its values. It may find runs that the query does not ask for."""
    terms: list[str] = []
    values: list[Any] = []
    if query.statuses is not None:
        ended = [ended_range(status) for status in sorted(query.statuses) if status]
        chosen = ["run.ended >= ? AND run.ended < ?"] * len(ended)
        chosen += ["run.ended IS NULL"] * ("" in query.statuses)
        chosen += [f"head_seq <> {_LAST_OF_RUN}"] * query.last  # a copy of a part of a run: see `_listed`
        terms.append(f"({' OR '.join(chosen) or 'false'})")
        values += [bound for bounds in ended for bound in bounds]
    for term, value in (
        ("thread.name = ?", query.thread),
        ("run.id = ?", query.run),
        ("run.graph = ?", None if query.graph is None else encode_text(query.graph)),
        ("run.started >= ?", query.since),
        ("run.started < ?", query.until),
    ):
        if value is not None:
            terms.append(term)
            values.append(value)
    if query.after is not None:
        terms.append("(run.started, run.id, thread.name) < (?, ?, ?) AND run.started <= ?")
        values += [*query.after, query.after.started]
    join = "thread.head_run = run.id" if query.last else "thread.name = run.thread"
    return _LISTED % (join, " AND ".join(terms) or "true"), [*values, query.limit]


def _listed(connection: sqlite3.Connection, columns: tuple[Any, ...], is_last: bool, now: float) -> ListedRun:
    run_id, own_thread, parents, header, started, ended, last, *of_thread = columns
    thread, run = as_read(_thread_row(*of_thread), now), _run_row(run_id, own_thread, parents, header)
    last = -1 if last is None else last
    if is_last and thread.head is not None and last != thread.head.seq:  # the thread reaches a part of the run
        last = thread.head.seq
        end = read_end(connection, run_id, last)
        ended = None if end is None else encode_ended(end)
    status, row = ("", None) if ended is None else decode_ended(ended)
    return ListedRun(thread, run, started, status, last, row)


# --- deletion

Plan = Callable[[Mapping[str, ThreadBounds], Mapping[str, RunSummary]], DeletionPlan]

_BOUNDS = "SELECT name, head_run, head_seq, root_run, root_seq FROM thread"
_SUMMARY = f"SELECT id, thread, parents, coalesce({_LAST_OF_RUN}, -1) FROM run"


def delete_threads(connection: sqlite3.Connection, gone: Collection[str], epochs: Mapping[str, int]) -> DeletionReport:
    """Delete threads and what only they reach; without any, all that no thread reaches."""
    check_epochs(_epochs(connection, epochs), epochs)
    largest = max(_epochs(connection, gone).values(), default=0)
    connection.execute("UPDATE fence SET largest = ? WHERE largest < ?", (largest, largest))
    return delete_planned(connection, gone, lambda threads, runs: plan_deletion(threads, runs, gone))


def delete_planned(connection: sqlite3.Connection, names: Collection[str], plan_for: Plan) -> DeletionReport:
    """Delete what `plan_for` plans for the threads and runs around `names`, or for the whole store without names."""
    references = SQLiteReferences(connection)
    plan = plan_for(*(relevant_subgraph(references, names) if names else references.whole()))
    spans = [*[(run, 0, MAX_SEQ) for run in plan.runs], *plan.rows]
    rows = sum(_delete_span(connection, "entry", *span) for span in spans)
    for span in spans:
        _delete_span(connection, "snapshot", *span)
    for run in {span.run for span in plan.rows}:  # the end of a run may be among the deleted rows
        _write_ended(connection, run, read_end(connection, run))
    for statement, ids in (
        ("DELETE FROM thread WHERE name = ?", plan.threads),
        ("DELETE FROM link WHERE child = ?", plan.runs),
        ("DELETE FROM run WHERE id = ?", plan.runs),
        ("UPDATE run SET thread = '' WHERE id = ?", plan.orphans),
    ):
        connection.executemany(statement, [(name,) for name in ids])
    return DeletionReport(plan.threads, len(plan.runs), rows, plan.kept)


def delete_snapshots(connection: sqlite3.Connection) -> None:
    """Delete the snapshots that are not at the root of a thread."""
    found = connection.execute(
        "SELECT run, seq FROM snapshot "
        "WHERE NOT EXISTS (SELECT 1 FROM thread WHERE (root_run, root_seq) = (snapshot.run, seq))"
    ).fetchall()
    for run, seq in found:
        _delete_span(connection, "snapshot", run, seq, seq)


class SQLiteReferences:
    """The references between threads and runs, as `relevant_subgraph` asks for them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def bounds(self, thread: str) -> ThreadBounds | None:
        return next((bounds for _, bounds in self._bounds(f"{_BOUNDS} WHERE name = ?", thread)), None)

    def summary(self, run: str) -> RunSummary | None:
        return next((summary for _, summary in self._summaries(f"{_SUMMARY} WHERE id = ?", run)), None)

    def runs_of(self, thread: str) -> list[str]:
        return self._names("SELECT id FROM run WHERE thread = ?", thread)

    def children(self, run: str) -> list[str]:
        return self._names("SELECT child FROM link WHERE parent = ?", run)

    def threads_at(self, run: str) -> list[str]:
        return self._names("SELECT name FROM thread WHERE head_run = ?", run)

    def whole(self) -> tuple[dict[str, ThreadBounds], dict[str, RunSummary]]:
        """All threads and runs."""
        return dict(self._bounds(_BOUNDS)), dict(self._summaries(_SUMMARY))

    def _names(self, statement: str, name: str) -> list[str]:
        return [found for (found,) in self._execute(statement, (name,))]

    def _bounds(self, statement: str, *values: str) -> Iterator[tuple[str, ThreadBounds]]:
        for name, *ends in self._execute(statement, values):
            yield name, ThreadBounds(decode_point(*ends[:2]), decode_point(*ends[2:]))

    def _summaries(self, statement: str, *values: str) -> Iterator[tuple[str, RunSummary]]:
        for run, thread, parents, last in self._execute(statement, values):
            yield run, RunSummary(thread, decode_points(parents), last)


def _delete_span(connection: sqlite3.Connection, table: str, run: str, first: int, last: int) -> int:
    """Delete a span of rows or snapshots with the blobs that only they refer to; return how many there were."""
    refs = _refs_in(connection, table, run, first, last)
    gone = connection.execute(f"DELETE FROM {table} WHERE run = ? AND seq BETWEEN ? AND ?", (run, first, last))
    _delete_refs(connection, refs)
    return gone.rowcount


def _refs_in(connection: sqlite3.Connection, table: str, run: str, first: int, last: int) -> list[Ref]:
    """The references of a span of rows or snapshots, as their bodies say.

    The table of references is in the order of the blobs. It is searched only for a damaged body, which says nothing.
    """
    refs: list[Ref] = []
    statement = f"SELECT seq, body FROM {table} WHERE run = ? AND seq BETWEEN ? AND ?"
    for seq, body in connection.execute(statement, (run, first, last)):
        header, content = decode_body(body)
        place = seq if table == "entry" else -1 - seq
        if content is not None:
            refs += [(encode_blob_id(name), run, place) for name in filter(BLOB_ID.fullmatch, content.refs)]
        elif isinstance(header, dict) and DAMAGED in header:
            refs += connection.execute("SELECT * FROM ref WHERE run = ? AND seq = ?", (run, place))
    return refs


def _delete_refs(connection: sqlite3.Connection, refs: Collection[Ref]) -> None:
    """Delete references, and the blobs that have no other one."""
    connection.executemany("DELETE FROM ref WHERE blob = ? AND run = ? AND seq = ?", refs)
    statement = "DELETE FROM blob WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM ref WHERE blob = ?1)"
    connection.executemany(statement, [(blob,) for blob in {blob for blob, _, _ in refs}])


def _epochs(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, int]:
    statement = "SELECT fencing FROM thread WHERE name = ?"
    found = ((name, connection.execute(statement, (name,)).fetchone()) for name in names)
    return {name: row[0] for name, row in found if row is not None}
