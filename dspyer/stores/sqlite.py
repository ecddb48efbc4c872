"""Runs in one SQLite file, for many threads and processes of one machine."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dspyer.stores.base import NO_EPOCHS, Change, DeletionReport, Point, Row, RunRow, Snapshot, Store, ThreadRow
from dspyer.stores.content import Content
from dspyer.stores.reachability import (
    DeletionPlan,
    RunSummary,
    ThreadBounds,
    plan_delete_unreachable,
    plan_deletion,
    relevant_subgraph,
)
from dspyer.stores.sqlite_file import (
    MASK,
    SHIFT,
    ConnectionOpener,
    FileConnections,
    pack,
    pack_id,
    pack_kind,
    pack_points,
    pack_refs,
    unpack_content,
    unpack_id,
    unpack_kind,
    unpack_owner,
    unpack_point,
    unpack_points,
    unpack_refs,
)
from dspyer.stores.writes import CurrentRows, WritePlan, check_epochs, plan_write

PATIENCE = 15.0
"""Seconds that a call waits for a lock: half of a lease, so that an owner that waits is not taken for gone."""


class SQLite(Store):
    """Runs in one SQLite file.

    Several threads and processes of one machine may use the file at the same time. What `write` was given is with the
    operating system when it returns, and on the disk if the change says `flush`.

    Args:
        path: the file; it is made when it is first used.
        clock: seconds, the same for every process that uses the file: leases are compared by it.
        patience: seconds that a call waits for the lock of another process, or for other threads of this one.

    Raises:
        StoreError: (by the first use) if the file is not one of ours, was made by a later version of dspyer, or is
            on a network file system.

    Example:
        >>> SQLite("/tmp/runs.db")
        SQLite('/tmp/runs.db')
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time, patience: float = PATIENCE
    ) -> None:
        self._path = Path(path).absolute()
        self._clock = clock
        self._patience = patience
        self._opener = ConnectionOpener(self._path)
        self._connections = FileConnections(self._path, self._opener, patience)

    @property
    def address(self) -> str:
        """The absolute path of the file."""
        return str(self._path)

    def __repr__(self) -> str:
        return f"SQLite({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SQLite, clock=self._clock, patience=self._patience), (self.address,)

    def write(self, change: Change) -> int:
        """Applies a change in one transaction; waits for whoever else is writing."""
        contents = encode_change(change)
        return self._connections.write(partial(self._apply, change, contents), change.flush, contents.size)

    def write_now(self, change: Change) -> bool:
        """Applies a change, unless somebody else is writing at this moment."""
        contents = encode_change(change)
        return self._connections.write_now(partial(self._apply, change, contents), change.flush, contents.size)

    def _apply(self, change: Change, contents: PackedChange, connection: sqlite3.Connection) -> int:
        if change.flush:
            self._opener.check_same()
        return write(connection, change, contents, self._clock())

    def thread(self, name: str) -> ThreadRow | None:
        """Where a thread stands."""
        return self._connections.read(lambda connection: read_thread(connection, name, self._clock()))

    def threads(self) -> list[str]:
        """The names of all threads, sorted."""
        statement = "SELECT name FROM thread ORDER BY name"
        return [name for (name,) in self._connections.read(lambda connection: connection.execute(statement).fetchall())]

    def run(self, run: str) -> RunRow | None:
        """A run by its id."""
        return self._connections.read(lambda connection: read_run(connection, run))

    def runs(self, thread: str) -> list[RunRow]:
        """The runs that were made for a thread, in the order in which they were begun."""
        return self._connections.read(lambda connection: read_runs(connection, thread))

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        """Rows of a run in order."""
        return self._connections.read(lambda connection: read_rows(connection, run, first, last))

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """Large values by id."""
        return self._connections.read(lambda connection: read_blobs(connection, ids))

    def snapshot(self, at: Point) -> Snapshot | None:
        """The last snapshot of a run at or before a row."""
        return self._connections.read(lambda connection: read_snapshot(connection, at))

    def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        """Removes threads, and all that they had and nothing else reaches."""
        return self._erased(lambda connection: delete_threads(connection, frozenset(threads), epochs))

    def delete_unreachable(self, thread: str) -> DeletionReport:
        """Removes what was made for a thread and lies outside of what it reaches from its head."""
        return self._erased(
            lambda connection: delete_planned(
                connection, [thread], lambda found, runs: plan_delete_unreachable(found, runs, thread)
            )
        )

    def _erased(self, work: Callable[[sqlite3.Connection], DeletionReport]) -> DeletionReport:
        """Removes something; then it is overwritten in the file, and the log, which has it still, is emptied."""
        swept = self._connections.write(work)
        if not (swept.threads or swept.runs or swept.rows):
            return swept
        return swept._replace(erased=self._connections.erase())

    def drop_snapshots(self) -> None:
        """Removes all snapshots but those at the roots of threads."""
        self._connections.write(delete_snapshots)

    def vacuum(self) -> None:
        """Writes the file anew, without gaps and without any trace of what was removed, while no other writes."""
        self._connections.exclusively(lambda connection: connection.execute("VACUUM"))
        self._connections.erase()

    def close(self) -> None:
        """Empties the log and closes all connections of this process, each as soon as it rests."""
        self._connections.close()


# --------------------------------------------------------------------------------------------------------------------
# Reading from a SQLite store: what its rows say.

RUN = f"""
    SELECT key, (SELECT max(entry.id) FROM entry
        WHERE entry.id BETWEEN key << {SHIFT} AND (key << {SHIFT}) + {MASK}) FROM run WHERE id = ?"""
THREAD = """
    SELECT head.id, head_seq, fencing, owner, ends, root.id, root_seq, runs FROM thread
    LEFT JOIN run AS head ON head.key = head_run LEFT JOIN run AS root ON root.key = root_run WHERE name = ?"""
ROWS = f"""
    SELECT entry.id, kind, head, content, refs FROM run CROSS JOIN entry
    ON entry.id BETWEEN (key << {SHIFT}) + ? AND (key << {SHIFT}) + ? WHERE run.id = ? ORDER BY entry.id"""
SNAPSHOT = f"""
    SELECT snapshot.id, content, refs FROM run CROSS JOIN snapshot
    ON snapshot.id BETWEEN key << {SHIFT} AND (key << {SHIFT}) + ? WHERE run.id = ?
    ORDER BY snapshot.id DESC LIMIT 1"""


def read_thread(connection: sqlite3.Connection, name: str, now: float) -> ThreadRow | None:
    """Where a thread stands, its lease compared to the time."""
    row = connection.execute(THREAD, (name,)).fetchone()
    if row is None:
        return None
    head, head_seq, epoch, owner, ends, root, root_seq, runs = row
    lease = 0.0 if ends is None else ends - now
    points = unpack_point(head, head_seq), unpack_point(root, root_seq)
    return ThreadRow(name, points[0], epoch, unpack_owner(owner), lease, points[1], runs)


def read_run(connection: sqlite3.Connection, run: str) -> RunRow | None:
    """A run by its id."""
    found = connection.execute("SELECT id, thread, parents, header FROM run WHERE id = ?", (pack_id(run),)).fetchone()
    return None if found is None else _run_row(*found)


def read_runs(connection: sqlite3.Connection, thread: str) -> list[RunRow]:
    """The runs of a thread, in the order in which they were begun."""
    found = connection.execute("SELECT id, thread, parents, header FROM run WHERE thread = ? ORDER BY key", (thread,))
    return [_run_row(*columns) for columns in found]


def read_rows(connection: sqlite3.Connection, run: str, first: int, last: int | None) -> list[Row]:
    """Rows of a run in order."""
    end = MASK if last is None else min(last, MASK)
    found = connection.execute(ROWS, (max(first, 0), end, pack_id(run))).fetchall()
    return [
        Row(key & MASK, unpack_kind(kind), tuple(json.loads(head)) if head else (), unpack_content(data, refs))
        for key, kind, head, data, refs in found
    ]


def read_snapshot(connection: sqlite3.Connection, at: Point) -> Snapshot | None:
    """The last snapshot of a run at or before a row."""
    found = connection.execute(SNAPSHOT, (min(at.seq, MASK), pack_id(at.run))).fetchone()
    content = unpack_content(found[1], found[2]) if found else None
    return Snapshot(Point(at.run, found[0] & MASK), content) if content is not None else None


def read_blobs(connection: sqlite3.Connection, ids: Collection[str]) -> dict[str, bytes]:
    """Large values by id."""
    found: dict[str, bytes] = {}
    for name in ids:
        row = connection.execute("SELECT data FROM blob WHERE id = ?", (pack_id(name),)).fetchone()
        if row is not None:
            found[name] = row[0]
    return found


def key_and_last(connection: sqlite3.Connection, run: str) -> tuple[int | None, int | None]:
    """A run's key, and the number of its last row: -1 if it has none."""
    row = connection.execute(RUN, (pack_id(run),)).fetchone()
    if row is None:
        return None, None
    key, last = row
    return key, -1 if last is None else last & MASK


def _run_row(name: bytes | str, thread: str | None, parents: bytes | None, header: bytes) -> RunRow:
    return RunRow(unpack_id(name), thread or "", unpack_points(parents), json.loads(header))


# --------------------------------------------------------------------------------------------------------------------
# Removing from a SQLite store what `dspyer.stores.reachability` says, in the caller's transaction.

Decide = Callable[[Mapping[str, ThreadBounds], Mapping[str, RunSummary]], DeletionPlan]

_ENDS = """
    SELECT name, head.id, head_seq, root.id, root_seq FROM thread
    LEFT JOIN run AS head ON head.key = head_run LEFT JOIN run AS root ON root.key = root_run"""
_EXTENT = f"""
    SELECT key, id, thread, parents, (SELECT max(entry.id) FROM entry
        WHERE entry.id BETWEEN key << {SHIFT} AND (key << {SHIFT}) + {MASK}) FROM run"""


class FileReferences:
    """What refers to what in the file, as `dspyer.stores.reachability.connected` asks for it.

    Args:
        connection: in a transaction.

    Attributes:
        keys: of the runs that were asked for.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.keys: dict[str, int] = {}
        self._execute = connection.execute

    def bounds(self, thread: str) -> ThreadBounds | None:
        """Head and root of a thread."""
        return next((ends for _, ends in self._ends(f"{_ENDS} WHERE name = ?", thread)), None)

    def summary(self, run: str) -> RunSummary | None:
        """A run."""
        return next((extent for _, extent in self._extents(f"{_EXTENT} WHERE id = ?", pack_id(run))), None)

    def runs_of(self, thread: str) -> list[str]:
        """The runs that were made for a thread."""
        return [unpack_id(run) for (run,) in self._execute("SELECT id FROM run WHERE thread = ?", (thread,))]

    def children(self, run: str) -> list[str]:
        """The runs that have a run as a parent."""
        found = self._execute("SELECT id FROM link JOIN run ON key = child WHERE parent = ?", (pack_id(run),))
        return [unpack_id(child) for (child,) in found]

    def threads_at(self, run: str) -> list[str]:
        """The threads whose head is in a run."""
        key = self.keys.get(run)
        return [name for (name,) in self._execute("SELECT name FROM thread WHERE head_run = ?", (key,))]

    def whole(self) -> tuple[dict[str, ThreadBounds], dict[str, RunSummary]]:
        """All threads and runs."""
        return dict(self._ends(_ENDS)), dict(self._extents(_EXTENT))

    def _ends(self, statement: str, *values: object) -> Iterable[tuple[str, ThreadBounds]]:
        for name, head, head_seq, root, root_seq in self._execute(statement, values):
            yield name, ThreadBounds(unpack_point(head, head_seq), unpack_point(root, root_seq))

    def _extents(self, statement: str, *values: object) -> Iterable[tuple[str, RunSummary]]:
        for key, stored, thread, parents, last in self._execute(statement, values):
            name = unpack_id(stored)
            self.keys[name] = key
            yield name, RunSummary(thread or "", unpack_points(parents), -1 if last is None else last & MASK)


def delete_threads(connection: sqlite3.Connection, gone: Collection[str], epochs: Mapping[str, int]) -> DeletionReport:
    """Removes threads, and what only they reach; without any, all that nothing reaches.

    Raises:
        ConcurrentRunError: if a thread has another epoch than it must have.
    """
    check_epochs(_epochs(connection, epochs), epochs)
    largest = max(_epochs(connection, gone).values(), default=0)
    connection.execute("UPDATE fence SET largest = max(largest, ?)", (largest,))
    return delete_planned(connection, gone, lambda threads, runs: plan_deletion(threads, runs, gone))


def delete_planned(connection: sqlite3.Connection, names: Collection[str], decide: Decide) -> DeletionReport:
    """Removes what is decided, and the blobs that nothing refers to then.

    Args:
        connection: in a transaction.
        names: the threads that it is about; none for the whole store.
        decide: says what goes.
    """
    network = FileReferences(connection)
    near = relevant_subgraph(network, names) if names else network.whole()
    gone, keys, runs = decide(*near), network.keys, near[1]
    connection.executemany("DELETE FROM thread WHERE name = ?", [(name,) for name in gone.threads])
    spans = [(keys[run] << SHIFT, (keys[run] << SHIFT) + MASK) for run in gone.runs]
    spans += [((keys[span.run] << SHIFT) + span.first, (keys[span.run] << SHIFT) + span.last) for span in gone.rows]
    links = [(pack_id(parent.run), keys[run]) for run in gone.runs for parent in runs[run].parents]
    rows = _drop(connection, spans)
    connection.executemany("DELETE FROM link WHERE parent = ? AND child = ?", links)
    connection.executemany("DELETE FROM run WHERE key = ?", [(keys[run],) for run in gone.runs])
    connection.executemany("UPDATE run SET thread = NULL WHERE key = ?", [(keys[run],) for run in gone.orphans])
    return DeletionReport(gone.threads, len(gone.runs), rows, gone.kept)


def delete_snapshots(connection: sqlite3.Connection) -> None:
    """Removes the snapshots that are at no thread's root."""
    found = connection.execute(
        f"SELECT id FROM snapshot WHERE id NOT IN "
        f"(SELECT (root_run << {SHIFT}) + root_seq FROM thread WHERE root_run IS NOT NULL)"
    ).fetchall()
    _drop(connection, [(place, place) for (place,) in found], ("snapshot",))


def mark(place: int, table: str) -> int:
    """How the table of references writes the place of a row, or of the snapshot at it."""
    return place if table == "entry" else ~place


def drop_refs(connection: sqlite3.Connection, found: Iterable[tuple[int, bytes | str | None]]) -> None:
    """Forgets the references of contents that go, and removes the blobs that nothing refers to then.

    Args:
        connection: in a transaction.
        found: the marks of the contents, and their references.
    """
    pairs = [(pack_id(name), place) for place, refs in found for name in unpack_refs(refs)]
    connection.executemany("DELETE FROM ref WHERE blob = ? AND place = ?", pairs)
    statement = "DELETE FROM blob WHERE id = ? AND NOT EXISTS (SELECT 1 FROM ref WHERE blob = ?)"
    connection.executemany(statement, [(name, name) for name in {name for name, _ in pairs}])


def _drop(
    connection: sqlite3.Connection, spans: Iterable[tuple[int, int]], tables: tuple[str, ...] = ("entry", "snapshot")
) -> int:
    """Removes spans of rows with their snapshots, and says how many rows there were."""
    rows = 0
    for table in tables:
        refs: list[tuple[int, bytes | str | None]] = []
        for span in spans:
            found = f"SELECT id, refs FROM {table} WHERE id BETWEEN ? AND ? AND refs IS NOT NULL"
            refs += [(mark(place, table), names) for place, names in connection.execute(found, span)]
            gone = connection.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", span).rowcount
            rows += gone if table == "entry" else 0
        drop_refs(connection, refs)
    return rows


def _epochs(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, int]:
    statement = "SELECT fencing FROM thread WHERE name = ?"
    found = ((name, connection.execute(statement, (name,)).fetchone()) for name in names)
    return {name: row[0] for name, row in found if row is not None}


# --------------------------------------------------------------------------------------------------------------------
# Writing to a SQLite store: one change, in a transaction that the caller has begun.


Refs = bytes | str | None
_NOTHING = (None,) * 6

APPEND = f"""
    SELECT fencing, key, head_run, (SELECT max(entry.id) FROM entry
        WHERE entry.id BETWEEN key << {SHIFT} AND (key << {SHIFT}) + {MASK})
    FROM thread, run WHERE name = ? AND run.id = ?"""


class PackedChange(NamedTuple):
    """What a change brings, as the columns hold it: encoded before a lock is taken.

    Attributes:
        rows: by number, the kind, head, content and references.
        snapshot: its content and references.
        blobs: ids and bytes.
        size: bytes of all contents.
    """

    rows: dict[int, tuple[str, bytes | None, bytes | None, Refs]]
    snapshot: tuple[bytes, Refs] | None
    blobs: list[tuple[bytes | str, bytes]]
    size: int


def encode_change(change: Change) -> PackedChange:
    """Encodes what a change brings."""
    rows: dict[int, tuple[str, bytes | None, bytes | None, Refs]] = {}
    blobs: list[tuple[bytes | str, bytes]] = []
    size = 0
    for row in change.rows:
        data, refs = (None, None) if row.content is None else _packed_content(row.content, blobs)
        rows[row.seq] = (pack_kind(row.kind), pack(row.header) if row.header else None, data, refs)
        size += len(data or b"")
    snapshot = None if change.snapshot is None else _packed_content(change.snapshot.content, blobs)
    size += len(snapshot[0]) if snapshot else 0
    return PackedChange(rows, snapshot, blobs, size + sum(len(blob) for _, blob in blobs))


def _packed_content(content: Content, blobs: list[tuple[bytes | str, bytes]]) -> tuple[bytes, Refs]:
    data, refs = content.data, content.refs
    if refs:
        blobs.extend((pack_id(name), blob) for name, blob in content.blobs.items())
    return data, pack_refs(refs)


def write(connection: sqlite3.Connection, change: Change, contents: PackedChange, now: float) -> int:
    """Applies a change, unless that was done before, and says the epoch that its thread has afterwards.

    Raises:
        ConcurrentRunError: the thread has another epoch, or a row or run of that name is another one.
        ValueError: rows with a gap, or a run that is not there.
    """
    if change.head is not None and change.head.run == change.rows_of and _appends(connection, change, contents):
        return change.epoch
    key, last = key_and_last(connection, change.rows_of) if change.rows else (None, None)
    found = _found(connection, change, last, now)
    plan = plan_write(change, found)
    if plan is None:
        return found.thread.epoch if found.thread is not None else 0
    if plan.new_run and change.run is not None:
        begun = _begin(connection, change.run)
        key = begun if change.run.id == change.rows_of else key
    if contents.blobs:
        connection.executemany("INSERT OR IGNORE INTO blob (id, data) VALUES (?, ?)", contents.blobs)
    if key is not None:
        for row in plan.rows:
            _add_row(connection, key << SHIFT | row.seq, contents.rows[row.seq])
    if change.snapshot is not None and contents.snapshot is not None:
        at = change.snapshot.at
        _add_snapshot(connection, _key(connection, at.run) << SHIFT | at.seq, *contents.snapshot)
    if not change.thread:
        return 0
    _write_thread(connection, change, found.thread is None, plan, key, now)
    return plan.epoch


def _appends(connection: sqlite3.Connection, change: Change, contents: PackedChange) -> bool:
    """Does the usual: the next rows of a run, by the owner of the thread. Says whether it was that."""
    name, epoch, next_epoch, owner, lease, head, root, run, rows_of, rows, snapshot, _, runs = change
    if (next_epoch, owner, lease, root, run, snapshot) != _NOTHING or head is None or not rows or runs:
        return False
    found = connection.execute(APPEND, (name, pack_id(rows_of))).fetchone()
    if found is None or found[0] != epoch:
        return False
    _, key, head_run, last = found
    first = key << SHIFT if last is None else last + 1
    if [row.seq for row in rows] != list(range(first - (key << SHIFT), first - (key << SHIFT) + len(rows))):
        return False
    if contents.blobs:
        connection.executemany("INSERT OR IGNORE INTO blob (id, data) VALUES (?, ?)", contents.blobs)
    for row in rows:
        _add_row(connection, first, contents.rows[row.seq])
        first += 1
    if head_run == key:  # what names the column of an index writes the index too
        connection.execute("UPDATE thread SET head_seq = ? WHERE name = ?", (head.seq, name))
    else:
        connection.execute("UPDATE thread SET head_run = ?, head_seq = ? WHERE name = ?", (key, head.seq, name))
    return True


def _add_row(connection: sqlite3.Connection, place: int, columns: tuple[str, bytes | None, bytes | None, Refs]) -> None:
    connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", (place, *columns))
    if columns[3] is not None:
        _add_refs(connection, mark(place, "entry"), columns[3])


def _add_snapshot(connection: sqlite3.Connection, place: int, data: bytes, refs: Refs) -> None:
    before = connection.execute("SELECT refs FROM snapshot WHERE id = ?", (place,)).fetchone()
    connection.execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?)", (place, data, refs))
    at, stay = mark(place, "snapshot"), unpack_refs(refs)
    if before is not None:
        gone = [name for name in unpack_refs(before[0]) if name not in stay]
        drop_refs(connection, [(at, pack_refs(gone))])
    _add_refs(connection, at, refs)


def _add_refs(connection: sqlite3.Connection, at: int, refs: Refs) -> None:
    """Notes that the content at a place refers to blobs."""
    pairs = [(pack_id(name), at) for name in unpack_refs(refs)]
    connection.executemany("INSERT OR IGNORE INTO ref VALUES (?, ?)", pairs)


def _found(connection: sqlite3.Connection, change: Change, last: int | None, now: float) -> CurrentRows:
    """What is there; of a thread that has the epoch of the change, nothing else is read."""
    thread, fence = None, 0
    if change.thread:
        row = connection.execute("SELECT fencing FROM thread WHERE name = ?", (change.thread,)).fetchone()
        if row is not None and row[0] == change.epoch:
            thread = ThreadRow(change.thread, None, change.epoch)
        elif row is not None:
            thread = read_thread(connection, change.thread, now)
        elif not change.epoch:
            (fence,) = connection.execute("SELECT largest FROM fence").fetchone()
    run = None if change.run is None else read_run(connection, change.run.id)
    if last is None or not change.rows or change.rows[0].seq > last:
        return CurrentRows(thread, run, last, max_deleted_epoch=fence)
    first, end = change.rows[0].seq, change.rows[-1].seq
    return CurrentRows(thread, run, last, read_rows(connection, change.rows_of, first, end), fence)


def _write_thread(
    connection: sqlite3.Connection, change: Change, new: bool, plan: WritePlan, key: int | None, now: float
) -> None:
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
    """What changes in the thread's row, but for its epoch and its count of runs. `key` is that of `rows_of`."""
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


def _begin(connection: sqlite3.Connection, run: RunRow) -> int | None:
    columns = pack_id(run.id), run.thread or None, pack_points(run.parents), pack(dict(run.header))
    key = connection.execute("INSERT INTO run (id, thread, parents, header) VALUES (?, ?, ?, ?)", columns).lastrowid
    for parent in run.parents:
        connection.execute("INSERT OR IGNORE INTO link VALUES (?, ?)", (pack_id(parent.run), key))
    return key


def _key(connection: sqlite3.Connection, run: str) -> int:
    row = connection.execute("SELECT key FROM run WHERE id = ?", (pack_id(run),)).fetchone()
    if row is None:
        raise ValueError(f"run {run!r} does not exist: nothing was written. Create it with Change(run=...)")
    return int(row[0])
