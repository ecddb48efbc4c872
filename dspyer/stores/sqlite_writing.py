"""Writing to a SQLite store: one change, in a transaction that the caller has begun."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, NamedTuple

from dspyer.stores.admission import Admitted, Found, admit
from dspyer.stores.base import Change, RunRow, ThreadRow
from dspyer.stores.content import Content
from dspyer.stores.sqlite_columns import MASK, SHIFT, pack, pack_id, pack_kind, pack_points, pack_refs
from dspyer.stores.sqlite_reading import key_and_last, read_rows, read_run, read_thread

Refs = bytes | str | None
_NOTHING = (None,) * 6

APPEND = f"""
    SELECT epoch, key, (SELECT max(entry.id) FROM entry
        WHERE entry.id BETWEEN key << {SHIFT} AND (key << {SHIFT}) + {MASK})
    FROM thread, run WHERE name = ? AND run.id = ?"""


class Packed(NamedTuple):
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


def packed(change: Change) -> Packed:
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
    return Packed(rows, snapshot, blobs, size + sum(len(blob) for _, blob in blobs))


def _packed_content(content: Content, blobs: list[tuple[bytes | str, bytes]]) -> tuple[bytes, Refs]:
    data, refs = content.data, content.refs
    if refs:
        blobs.extend((pack_id(name), blob) for name, blob in content.blobs.items())
    return data, pack_refs(refs)


def write(connection: sqlite3.Connection, change: Change, contents: Packed, now: float) -> None:
    """Applies a change, unless that was done before.

    Raises:
        ConcurrentRunError: the thread has another epoch, or a row or run of that name is another one.
        ValueError: rows with a gap, or a run that is not there.
    """
    if change.head is not None and change.head.run == change.rows_of and _appends(connection, change, contents):
        return
    key, last = key_and_last(connection, change.rows_of) if change.rows else (None, None)
    found = _found(connection, change, last, now)
    admitted = admit(change, found)
    if admitted is None:
        return
    if admitted.begins and change.run is not None:
        begun = _begin(connection, change.run)
        key = begun if change.run.id == change.rows_of else key
    if contents.blobs:
        connection.executemany("INSERT OR IGNORE INTO blob (id, data) VALUES (?, ?)", contents.blobs)
    if key is not None:
        for row in admitted.rows:
            values = (key << SHIFT | row.seq, *contents.rows[row.seq])
            connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", values)
    if change.snapshot is not None and contents.snapshot is not None:
        at = change.snapshot.at
        place = _key(connection, at.run) << SHIFT | at.seq
        connection.execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?)", (place, *contents.snapshot))
    if change.thread:
        _write_thread(connection, change, found.thread is None, admitted, key, now)


def _appends(connection: sqlite3.Connection, change: Change, contents: Packed) -> bool:
    """Does the usual: the next rows of a run, by the owner of the thread. Says whether it was that."""
    name, epoch, next_epoch, owner, lease, head, root, run, rows_of, rows, snapshot, _ = change
    if (next_epoch, owner, lease, root, run, snapshot) != _NOTHING or head is None or not rows:
        return False
    found = connection.execute(APPEND, (name, pack_id(rows_of))).fetchone()
    if found is None or found[0] != epoch:
        return False
    _, key, last = found
    first = key << SHIFT if last is None else last + 1
    if [row.seq for row in rows] != list(range(first - (key << SHIFT), first - (key << SHIFT) + len(rows))):
        return False
    if contents.blobs:
        connection.executemany("INSERT OR IGNORE INTO blob (id, data) VALUES (?, ?)", contents.blobs)
    for row in rows:
        connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", (first, *contents.rows[row.seq]))
        first += 1
    connection.execute("UPDATE thread SET head_run = ?, head_seq = ? WHERE name = ?", (key, head.seq, name))
    return True


def _found(connection: sqlite3.Connection, change: Change, last: int | None, now: float) -> Found:
    """What is there; of a thread that has the epoch of the change, nothing else is read."""
    thread = None
    if change.thread:
        row = connection.execute("SELECT epoch FROM thread WHERE name = ?", (change.thread,)).fetchone()
        if row is not None and row[0] == change.epoch:
            thread = ThreadRow(change.thread, None, change.epoch)
        elif row is not None:
            thread = read_thread(connection, change.thread, now)
    run = None if change.run is None else read_run(connection, change.run.id)
    if last is None or not change.rows or change.rows[0].seq > last:
        return Found(thread, run, last)
    first, end = change.rows[0].seq, change.rows[-1].seq
    return Found(thread, run, last, read_rows(connection, change.rows_of, first, end))


def _write_thread(
    connection: sqlite3.Connection, change: Change, new: bool, admitted: Admitted, key: int | None, now: float
) -> None:
    values = _thread_columns(connection, change, key, now)
    if new:
        values |= {"name": change.thread, "epoch": admitted.epoch, "runs": int(admitted.begins)}
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO thread ({names}) VALUES ({marks})", tuple(values.values()))
        return
    if admitted.epoch != change.epoch:
        values["epoch"] = admitted.epoch
    settings = [f"{name} = ?" for name in values]
    if admitted.begins:
        settings.append("runs = runs + 1")
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
    return connection.execute("INSERT INTO run (id, thread, parents, header) VALUES (?, ?, ?, ?)", columns).lastrowid


def _key(connection: sqlite3.Connection, run: str) -> int:
    row = connection.execute("SELECT key FROM run WHERE id = ?", (pack_id(run),)).fetchone()
    if row is None:
        raise ValueError(f"there is no run {run!r}: nothing was written. Begin it with Change(run=...)")
    return int(row[0])
