"""A store in one SQLite file, for many threads and processes of one machine.

`dspyer.stores.sqlite_file` has the connections, the log and the tables; here is what is read and written in them. All
functions below the class work within the transaction of their caller.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    start_of,
)
from dspyer.stores.columns import decode_content, decode_json, decode_owner, decode_point, decode_points, encode_json
from dspyer.stores.content import Content
from dspyer.stores.reachability import (
    DeletionPlan,
    RunSummary,
    ThreadBounds,
    plan_delete_unreachable,
    plan_deletion,
    relevant_subgraph,
)
from dspyer.stores.sqlite_file import ConnectionOpener, FileConnections
from dspyer.stores.sqlite_lists import list_runs
from dspyer.stores.sqlite_reading import ReadOnlyFile
from dspyer.stores.sqlite_tables import (
    MASK,
    SHIFT,
    ending_column,
    ending_in,
    graph_of,
    location,
    pack_id,
    pack_refs,
    unpack_id,
    unpack_refs,
)
from dspyer.stores.writes import CurrentRows, WritePlan, check_epochs, plan_write

PATIENCE = 15.0
"""Seconds that a call waits for a lock: half of a lease, so that the lease of a waiting owner does not expire."""


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
        encoded = encode_change(change)
        return self._connections.write(partial(self._write, change, encoded), change.flush, encoded.size)

    def write_now(self, change: Change) -> bool:
        encoded = encode_change(change)
        return self._connections.write_now(partial(self._write, change, encoded), change.flush, encoded.size)

    def _write(self, change: Change, encoded: SQLiteChange, connection: sqlite3.Connection) -> int:
        if change.flush:  # not for each write: a flush is rare, and takes longer than this look at the file
            self._opener.check_same_file()
        return write(connection, change, encoded, self._clock())

    def thread(self, name: str) -> ThreadRow | None:
        return self._connections.read(lambda connection: read_thread(connection, name, self._clock()))

    def threads(self, after: str = "", limit: int | None = None) -> list[str]:
        values = after, -1 if limit is None else limit  # a negative limit of SQLite's is none
        found = self._connections.read(lambda connection: connection.execute(_NAMES, values).fetchall())
        return [name for (name,) in found]

    def run(self, run: str) -> RunRow | None:
        return self._connections.read(lambda connection: read_run(connection, run))

    def runs(self, thread: str) -> list[RunRow]:
        return self._connections.read(lambda connection: read_runs(connection, thread))

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

Refs = bytes | str | None
"""The column `refs`: ids of blobs."""

EncodedRow = tuple[str, bytes | None, bytes | None, Refs]
"""The columns of a row after its id: kind, header, content and refs."""

_LAST_ROW = f"""(SELECT max(entry.id) FROM entry WHERE entry.id BETWEEN key << {SHIFT} AND (key << {SHIFT}) + {MASK})"""

_KEY_AND_LAST = f"SELECT key, {_LAST_ROW} FROM run WHERE id = ?"

# All that an append must know, in one statement.
_APPEND = f"SELECT fencing, key, head_run, {_LAST_ROW} FROM thread, run WHERE name = ? AND run.id = ?"

_INSERT_BLOBS = "INSERT OR IGNORE INTO blob (id, data) VALUES (?, ?)"

COMMON_KIND = "commit"
"""The kind of most rows: it is stored as the empty text, which takes no space."""


class SQLiteChange(NamedTuple):
    """The columns of a change, encoded before the write lock is taken.

    Attributes:
        rows: by number.
        snapshot: its content and refs.
        blobs: ids and bytes.
        size: bytes of all contents.
        ends: whether one of the rows is the end of the run, or a resume after it.
    """

    rows: dict[int, EncodedRow]
    snapshot: tuple[bytes, Refs] | None
    blobs: list[tuple[bytes | str, bytes]]
    size: int
    ends: bool


def encode_change(change: Change) -> SQLiteChange:
    rows: dict[int, EncodedRow] = {}
    blobs: list[tuple[bytes | str, bytes]] = []
    size = 0
    ends = False
    for row in change.rows:
        ends = ends or row.kind in ENDINGS
        data, refs = (None, None) if row.content is None else _encode_content(row.content, blobs)
        kind = "" if row.kind == COMMON_KIND else row.kind
        rows[row.seq] = (kind, encode_json(row.header) if row.header else None, data, refs)
        size += len(data or b"")
    snapshot = None if change.snapshot is None else _encode_content(change.snapshot.content, blobs)
    size += len(snapshot[0]) if snapshot else 0
    return SQLiteChange(rows, snapshot, blobs, size + sum(len(blob) for _, blob in blobs), ends)


def _encode_content(content: Content, blobs: list[tuple[bytes | str, bytes]]) -> tuple[bytes, Refs]:
    """The columns of a content; its blobs are added to `blobs`."""
    data, refs = content.data, content.refs
    if refs:
        blobs.extend((pack_id(name), blob) for name, blob in content.blobs.items())
    return data, pack_refs(refs)


def write(connection: sqlite3.Connection, change: Change, encoded: SQLiteChange, now: float) -> int:
    """Write what is new of a change; return the epoch of its thread afterwards, 0 without one."""
    if change.head is not None and change.head.run == change.rows_of and _append(connection, change, encoded):
        return change.epoch
    key, last = _key_and_last(connection, change.rows_of) if change.rows else (None, None)
    current = _current_rows(connection, change, last, now)
    plan = plan_write(change, current)
    if plan is None:
        return current.thread.epoch if current.thread is not None else 0
    if plan.new_run and change.run is not None:
        new_key = _insert_run(connection, change.run, start_of(change.run))
        key = new_key if change.run.id == change.rows_of else key
    if encoded.blobs:
        connection.executemany(_INSERT_BLOBS, encoded.blobs)
    if key is not None:
        for row in plan.rows:
            _insert_row(connection, key << SHIFT | row.seq, encoded.rows[row.seq])
        if encoded.ends:
            _write_ending(connection, key, plan.rows)
    if change.snapshot is not None and encoded.snapshot is not None:
        at = change.snapshot.at
        _insert_snapshot(connection, _key(connection, at.run) << SHIFT | at.seq, *encoded.snapshot)
    if not change.thread:
        return 0
    _write_thread(connection, change, current.thread is None, plan, key, now)
    return plan.epoch


_NONE_OF_SIX = (None,) * 6


def _append(connection: sqlite3.Connection, change: Change, encoded: SQLiteChange) -> bool:
    """Append the next rows of a run for the thread's owner; False, without a change, for any other change.

    This is nearly every write of a run, and takes three statements.
    """
    name, epoch, next_epoch, owner, lease, head, root, run, rows_of, rows, snapshot, _, runs = change
    if (next_epoch, owner, lease, root, run, snapshot) != _NONE_OF_SIX or head is None or not rows or runs:
        return False
    found = connection.execute(_APPEND, (name, pack_id(rows_of))).fetchone()
    if found is None or found[0] != epoch:
        return False
    _, key, head_run, last = found
    row_id = key << SHIFT if last is None else last + 1
    number = row_id & MASK
    if [row.seq for row in rows] != list(range(number, number + len(rows))):
        return False
    if encoded.blobs:
        connection.executemany(_INSERT_BLOBS, encoded.blobs)
    for row in rows:
        _insert_row(connection, row_id, encoded.rows[row.seq])
        row_id += 1
    if encoded.ends:
        _write_ending(connection, key, rows)
    if head_run == key:  # naming `head_run` would write its index too, even with the same value
        connection.execute("UPDATE thread SET head_seq = ? WHERE name = ?", (head.seq, name))
    else:
        connection.execute("UPDATE thread SET head_run = ?, head_seq = ? WHERE name = ?", (key, head.seq, name))
    return True


def _current_rows(connection: sqlite3.Connection, change: Change, last: int | None, now: float) -> CurrentRows:
    """What `plan_write` must know; of a thread with the epoch of the change, only that is read."""
    thread, max_deleted_epoch = None, 0
    if change.thread:
        row = connection.execute("SELECT fencing FROM thread WHERE name = ?", (change.thread,)).fetchone()
        if row is not None and row[0] == change.epoch:
            thread = ThreadRow(change.thread, None, change.epoch)
        elif row is not None:
            thread = read_thread(connection, change.thread, now)
        elif not change.epoch:
            (max_deleted_epoch,) = connection.execute("SELECT largest FROM fence").fetchone()
    run = None if change.run is None else read_run(connection, change.run.id)
    if last is None or not change.rows or change.rows[0].seq > last:
        return CurrentRows(thread, run, last, max_deleted_epoch=max_deleted_epoch)
    first, end = change.rows[0].seq, change.rows[-1].seq
    return CurrentRows(thread, run, last, read_rows(connection, change.rows_of, first, end), max_deleted_epoch)


def _insert_run(connection: sqlite3.Connection, run: RunRow, started: float) -> int | None:
    parents = encode_json(run.parents) if run.parents else None
    columns = pack_id(run.id), run.thread or None, parents, encode_json(dict(run.header)), started, graph_of(run)
    statement = "INSERT INTO run (id, thread, parents, header, started, graph) VALUES (?, ?, ?, ?, ?, ?)"
    key = connection.execute(statement, columns).lastrowid
    for parent in run.parents:
        connection.execute("INSERT OR IGNORE INTO link VALUES (?, ?)", (pack_id(parent.run), key))
    return key


def _write_ending(connection: sqlite3.Connection, key: int, rows: Sequence[Row]) -> None:
    """Write how the run ended into its columns, if the rows say so."""
    last = next((row for row in reversed(rows) if row.kind in ENDINGS), None)
    if last is not None:
        connection.execute("UPDATE run SET ended = ? WHERE key = ?", (ending_column(last), key))


def _insert_row(connection: sqlite3.Connection, row_id: int, columns: EncodedRow) -> None:
    connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", (row_id, *columns))
    if columns[3] is not None:
        _insert_refs(connection, location(row_id, "entry"), columns[3])


def _insert_snapshot(connection: sqlite3.Connection, row_id: int, data: bytes, refs: Refs) -> None:
    """Insert or replace a snapshot, and delete the blobs that only the replaced one referred to."""
    before = connection.execute("SELECT refs FROM snapshot WHERE id = ?", (row_id,)).fetchone()
    connection.execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?)", (row_id, data, refs))
    at, kept = location(row_id, "snapshot"), unpack_refs(refs)
    if before is not None:
        gone = [name for name in unpack_refs(before[0]) if name not in kept]
        _delete_refs(connection, [(at, pack_refs(gone))])
    _insert_refs(connection, at, refs)


def _insert_refs(connection: sqlite3.Connection, at: int, refs: Refs) -> None:
    pairs = [(pack_id(name), at) for name in unpack_refs(refs)]
    connection.executemany("INSERT OR IGNORE INTO ref VALUES (?, ?)", pairs)


def _write_thread(
    connection: sqlite3.Connection, change: Change, new: bool, plan: WritePlan, key: int | None, now: float
) -> None:
    """Insert or update the row of a thread; `key` is that of the run `rows_of`."""
    values = _thread_columns(connection, change, key, now)
    if new:
        values |= {"name": change.thread, "fencing": plan.epoch, "runs": plan.new_run + change.runs}
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO thread ({names}) VALUES ({marks})", tuple(values.values()))
        return
    if plan.epoch != change.epoch:
        values["fencing"] = plan.epoch
    settings = [f"{name} = ?" for name in values]
    if plan.new_run or change.runs:
        settings.append(f"runs = runs + {plan.new_run + change.runs:d}")
    if settings:
        statement = f"UPDATE thread SET {', '.join(settings)} WHERE name = ?"
        connection.execute(statement, (*values.values(), change.thread))


def _thread_columns(connection: sqlite3.Connection, change: Change, key: int | None, now: float) -> dict[str, Any]:
    """The changed columns of a thread, except for its epoch and its count of runs."""
    values: dict[str, Any] = {}
    if change.head is not None:
        known = key is not None and change.head.run == change.rows_of
        values["head_run"] = key if known else _key(connection, change.head.run)
        values["head_seq"] = change.head.seq
    if change.root is not None:
        values["root_run"], values["root_seq"] = _key(connection, change.root.run), change.root.seq
    if change.lease is not None and change.lease <= 0:
        values["owner"] = values["ends"] = None
    elif change.lease is not None:
        values["ends"] = now + change.lease
        if change.owner is not None:
            values["owner"] = json.dumps(change.owner)
    return values


def _key(connection: sqlite3.Connection, run: str) -> int:
    row = connection.execute("SELECT key FROM run WHERE id = ?", (pack_id(run),)).fetchone()
    if row is None:
        raise ValueError(f"run {run!r} does not exist: nothing was written. Create it with Change(run=...)")
    return int(row[0])


def _key_and_last(connection: sqlite3.Connection, run: str) -> tuple[int | None, int | None]:
    """The key of a run and the number of its last row, -1 if it has none; two None if there is no such run."""
    row = connection.execute(_KEY_AND_LAST, (pack_id(run),)).fetchone()
    if row is None:
        return None, None
    key, last = row
    return key, -1 if last is None else last & MASK


# --- reading

_THREAD = """
    SELECT head.id, head_seq, fencing, owner, ends, root.id, root_seq, runs FROM thread
    LEFT JOIN run AS head ON head.key = head_run LEFT JOIN run AS root ON root.key = root_run WHERE name = ?"""

_NAMES = "SELECT name FROM thread WHERE name > ? ORDER BY name LIMIT ?"

# CROSS JOIN keeps SQLite from reordering the tables: first the one run, then its range of rows.
_ROWS = f"""
    SELECT entry.id, kind, head, content, refs FROM run CROSS JOIN entry
    ON entry.id BETWEEN (key << {SHIFT}) + ? AND (key << {SHIFT}) + ? WHERE run.id = ? ORDER BY entry.id"""
_SNAPSHOT = f"""
    SELECT snapshot.id, content, refs FROM run CROSS JOIN snapshot
    ON snapshot.id BETWEEN key << {SHIFT} AND (key << {SHIFT}) + ? WHERE run.id = ?
    ORDER BY snapshot.id DESC LIMIT 1"""


def read_thread(connection: sqlite3.Connection, name: str, now: float) -> ThreadRow | None:
    row = connection.execute(_THREAD, (name,)).fetchone()
    if row is None:
        return None
    head, head_seq, epoch, owner, lease_end, root, root_seq, runs = row
    lease = 0.0 if lease_end is None else lease_end - now
    return ThreadRow(name, _point(head, head_seq), epoch, decode_owner(owner), lease, _point(root, root_seq), runs)


def read_run(connection: sqlite3.Connection, run: str) -> RunRow | None:
    found = connection.execute("SELECT id, thread, parents, header FROM run WHERE id = ?", (pack_id(run),)).fetchone()
    return None if found is None else _run_row(*found)


def read_runs(connection: sqlite3.Connection, thread: str) -> list[RunRow]:
    found = connection.execute("SELECT id, thread, parents, header FROM run WHERE thread = ? ORDER BY key", (thread,))
    return [_run_row(*columns) for columns in found]


def read_rows(connection: sqlite3.Connection, run: str, first: int, last: int | None) -> list[Row]:
    end = MASK if last is None else min(last, MASK)
    found = connection.execute(_ROWS, (max(first, 0), end, pack_id(run))).fetchall()
    return [
        Row(
            row_id & MASK,
            kind or COMMON_KIND,
            decode_json(header) if header else {},
            decode_content(data, unpack_refs(refs)),
        )
        for row_id, kind, header, data, refs in found
    ]


def read_snapshot(connection: sqlite3.Connection, at: Point) -> Snapshot | None:
    found = connection.execute(_SNAPSHOT, (min(at.seq, MASK), pack_id(at.run))).fetchone()
    content = decode_content(found[1], unpack_refs(found[2])) if found else None
    return Snapshot(Point(at.run, found[0] & MASK), content) if content is not None else None


def read_blobs(connection: sqlite3.Connection, ids: Collection[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in ids:
        row = connection.execute("SELECT data FROM blob WHERE id = ?", (pack_id(name),)).fetchone()
        if row is not None:
            found[name] = row[0]
    return found


def _run_row(name: bytes | str, thread: str | None, parents: bytes | None, header: bytes) -> RunRow:
    return RunRow(unpack_id(name), thread or "", decode_points(parents), decode_json(header))


def _point(run: bytes | str | None, seq: int | None) -> Point | None:
    return None if run is None else decode_point(unpack_id(run), seq)


# --- deletion

Plan = Callable[[Mapping[str, ThreadBounds], Mapping[str, RunSummary]], DeletionPlan]

_BOUNDS = """
    SELECT name, head.id, head_seq, root.id, root_seq FROM thread
    LEFT JOIN run AS head ON head.key = head_run LEFT JOIN run AS root ON root.key = root_run"""
_SUMMARY = f"SELECT key, id, thread, parents, {_LAST_ROW} FROM run"


def delete_threads(connection: sqlite3.Connection, gone: Collection[str], epochs: Mapping[str, int]) -> DeletionReport:
    """Delete threads and what only they reach; without any, all that no thread reaches."""
    check_epochs(_epochs(connection, epochs), epochs)
    largest = max(_epochs(connection, gone).values(), default=0)
    connection.execute("UPDATE fence SET largest = ? WHERE largest < ?", (largest, largest))
    return delete_planned(connection, gone, lambda threads, runs: plan_deletion(threads, runs, gone))


def delete_planned(connection: sqlite3.Connection, names: Collection[str], plan_for: Plan) -> DeletionReport:
    """Delete what `plan_for` plans for the threads and runs around `names`, or for the whole store without names."""
    references = SQLiteReferences(connection)
    threads, runs = relevant_subgraph(references, names) if names else references.whole()
    plan, keys = plan_for(threads, runs), references.keys
    connection.executemany("DELETE FROM thread WHERE name = ?", [(name,) for name in plan.threads])
    spans = [(keys[run] << SHIFT, (keys[run] << SHIFT) + MASK) for run in plan.runs]
    spans += [((keys[span.run] << SHIFT) + span.first, (keys[span.run] << SHIFT) + span.last) for span in plan.rows]
    links = [(pack_id(parent.run), keys[run]) for run in plan.runs for parent in runs[run].parents]
    rows = _delete_spans(connection, spans)
    for run in {span.run for span in plan.rows}:  # the end of a run may be among the deleted rows
        connection.execute("UPDATE run SET ended = ? WHERE key = ?", (ending_in(connection, keys[run]), keys[run]))
    connection.executemany("DELETE FROM link WHERE parent = ? AND child = ?", links)
    connection.executemany("DELETE FROM run WHERE key = ?", [(keys[run],) for run in plan.runs])
    connection.executemany("UPDATE run SET thread = NULL WHERE key = ?", [(keys[run],) for run in plan.orphans])
    return DeletionReport(plan.threads, len(plan.runs), rows, plan.kept)


def delete_snapshots(connection: sqlite3.Connection) -> None:
    """Delete the snapshots that are not at the root of a thread."""
    found = connection.execute(
        f"SELECT id FROM snapshot WHERE id NOT IN "
        f"(SELECT (root_run << {SHIFT}) + root_seq FROM thread WHERE root_run IS NOT NULL)"
    ).fetchall()
    _delete_spans(connection, [(row_id, row_id) for (row_id,) in found], ("snapshot",))


class SQLiteReferences:
    """The references between threads and runs, as `relevant_subgraph` asks for them.

    Attributes:
        keys: the keys of the runs that were asked for.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.keys: dict[str, int] = {}
        self._execute = connection.execute

    def bounds(self, thread: str) -> ThreadBounds | None:
        return next((bounds for _, bounds in self._bounds(f"{_BOUNDS} WHERE name = ?", thread)), None)

    def summary(self, run: str) -> RunSummary | None:
        return next((summary for _, summary in self._summaries(f"{_SUMMARY} WHERE id = ?", pack_id(run))), None)

    def runs_of(self, thread: str) -> list[str]:
        return [unpack_id(run) for (run,) in self._execute("SELECT id FROM run WHERE thread = ?", (thread,))]

    def children(self, run: str) -> list[str]:
        found = self._execute("SELECT id FROM link JOIN run ON key = child WHERE parent = ?", (pack_id(run),))
        return [unpack_id(child) for (child,) in found]

    def threads_at(self, run: str) -> list[str]:
        key = self.keys.get(run)
        return [name for (name,) in self._execute("SELECT name FROM thread WHERE head_run = ?", (key,))]

    def whole(self) -> tuple[dict[str, ThreadBounds], dict[str, RunSummary]]:
        """All threads and runs."""
        return dict(self._bounds(_BOUNDS)), dict(self._summaries(_SUMMARY))

    def _bounds(self, statement: str, *values: object) -> Iterable[tuple[str, ThreadBounds]]:
        for name, head, head_seq, root, root_seq in self._execute(statement, values):
            yield name, ThreadBounds(_point(head, head_seq), _point(root, root_seq))

    def _summaries(self, statement: str, *values: object) -> Iterable[tuple[str, RunSummary]]:
        for key, stored, thread, parents, last in self._execute(statement, values):
            name = unpack_id(stored)
            self.keys[name] = key
            yield name, RunSummary(thread or "", decode_points(parents), -1 if last is None else last & MASK)


def _delete_spans(
    connection: sqlite3.Connection, spans: Iterable[tuple[int, int]], tables: tuple[str, ...] = ("entry", "snapshot")
) -> int:
    """Delete spans of rows with their snapshots and unused blobs; return how many rows there were."""
    rows = 0
    for table in tables:
        refs: list[tuple[int, Refs]] = []
        for span in spans:
            found = f"SELECT id, refs FROM {table} WHERE id BETWEEN ? AND ? AND refs IS NOT NULL"
            refs += [(location(row_id, table), names) for row_id, names in connection.execute(found, span)]
            deleted = connection.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", span).rowcount
            rows += deleted if table == "entry" else 0
        _delete_refs(connection, refs)
    return rows


def _delete_refs(connection: sqlite3.Connection, found: Iterable[tuple[int, Refs]]) -> None:
    """Delete the references at some locations, and the blobs that have no other reference."""
    pairs = [(pack_id(name), at) for at, refs in found for name in unpack_refs(refs)]
    connection.executemany("DELETE FROM ref WHERE blob = ? AND place = ?", pairs)
    statement = "DELETE FROM blob WHERE id = ? AND NOT EXISTS (SELECT 1 FROM ref WHERE blob = ?)"
    connection.executemany(statement, [(name, name) for name in {name for name, _ in pairs}])


def _epochs(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, int]:
    statement = "SELECT fencing FROM thread WHERE name = ?"
    found = ((name, connection.execute(statement, (name,)).fetchone()) for name in names)
    return {name: row[0] for name, row in found if row is not None}
