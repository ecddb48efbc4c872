"""Writing to a SQLite store: one change, in a transaction that the caller has begun."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, NamedTuple

from dspyer.stores.admission import Admitted, CurrentRows, admit
from dspyer.stores.base import Change, RunRow, ThreadRow
from dspyer.stores.content import Content
from dspyer.stores.sqlite_columns import MASK, SHIFT, pack, pack_id, pack_kind, pack_points, pack_refs, unpack_refs
from dspyer.stores.sqlite_reading import key_and_last, read_rows, read_run, read_thread
from dspyer.stores.sqlite_sweep import drop_refs, mark

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


def packed(change: Change) -> PackedChange:
    """Encodes what a change brings."""
    rows: dict[int, tuple[str, bytes | None, bytes | None, Refs]] = {}
    blobs: list[tuple[bytes | str, bytes]] = []
    size = 0
    for row in change.rows:
        data, refs = (None, None) if row.content is None else _packed_content(row.content, blobs)
        rows[row.seq] = (pack_kind(row.kind), pack(row.head) if row.head else None, data, refs)
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
    admitted = admit(change, found)
    if admitted is None:
        return found.thread.epoch if found.thread is not None else 0
    if admitted.begins and change.run is not None:
        begun = _begin(connection, change.run)
        key = begun if change.run.id == change.rows_of else key
    if contents.blobs:
        connection.executemany("INSERT OR IGNORE INTO blob (id, data) VALUES (?, ?)", contents.blobs)
    if key is not None:
        for row in admitted.rows:
            _add_row(connection, key << SHIFT | row.seq, contents.rows[row.seq])
    if change.snapshot is not None and contents.snapshot is not None:
        at = change.snapshot.at
        _add_snapshot(connection, _key(connection, at.run) << SHIFT | at.seq, *contents.snapshot)
    if not change.thread:
        return 0
    _write_thread(connection, change, found.thread is None, admitted, key, now)
    return admitted.epoch


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
        return CurrentRows(thread, run, last, fence=fence)
    first, end = change.rows[0].seq, change.rows[-1].seq
    return CurrentRows(thread, run, last, read_rows(connection, change.rows_of, first, end), fence)


def _write_thread(
    connection: sqlite3.Connection, change: Change, new: bool, admitted: Admitted, key: int | None, now: float
) -> None:
    values = _thread_columns(connection, change, key, now)
    if new:
        values |= {"name": change.thread, "fencing": admitted.epoch, "runs": admitted.begins + change.runs}
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO thread ({names}) VALUES ({marks})", tuple(values.values()))
        return
    if admitted.epoch != change.epoch:
        values["fencing"] = admitted.epoch
    settings = [f"{name} = ?" for name in values]
    if admitted.begins or change.runs:
        settings.append(f"runs = runs + {admitted.begins + change.runs:d}")
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
        raise ValueError(f"there is no run {run!r}: nothing was written. Begin it with Change(run=...)")
    return int(row[0])
