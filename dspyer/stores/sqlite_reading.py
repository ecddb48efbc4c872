"""Reading from a SQLite store: what its rows say."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection

from dspyer.stores.base import Point, Row, RunRow, Snapshot, ThreadRow
from dspyer.stores.sqlite_columns import (
    MASK,
    SHIFT,
    pack_id,
    unpack_content,
    unpack_id,
    unpack_kind,
    unpack_owner,
    unpack_point,
    unpack_points,
)

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
