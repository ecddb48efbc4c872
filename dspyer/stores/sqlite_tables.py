"""The tables of an SQLite store, and how ids are written in them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from dspyer.errors import StoreError
from dspyer.stores.base import END, RESUME, Row, RunRow, ending_of
from dspyer.stores.columns import decode_json, encode_text

APPLICATION = 0x64737079
"""The application id in the header of the file, which marks it as a store: the bytes of "dspy" in ASCII."""

SHIFT = 32
"""The id of a row is `key of its run << SHIFT | its number`."""

MASK = (1 << SHIFT) - 1
"""The bits of the number in a row's id, and the greatest number."""

# One integer as primary key, and not two columns: SQLite then stores the rows in that order in the table itself, small
# and large ones side by side without gaps. The columns of ids have no type, since they hold bytes or text: see pack_id.
TABLES = """
CREATE TABLE thread (
    name TEXT PRIMARY KEY NOT NULL, fencing INTEGER NOT NULL, runs INTEGER NOT NULL, head_run INTEGER, head_seq INTEGER,
    root_run INTEGER, root_seq INTEGER, owner TEXT, ends REAL
) WITHOUT ROWID;
CREATE INDEX thread_head ON thread (head_run) WHERE head_run IS NOT NULL;
CREATE TABLE fence (largest INTEGER NOT NULL);
INSERT INTO fence VALUES (0);
CREATE TABLE run (
    key INTEGER PRIMARY KEY, id UNIQUE NOT NULL, thread TEXT, parents BLOB, header BLOB, started REAL NOT NULL,
    graph BLOB, ended BLOB
);
CREATE INDEX run_thread ON run (thread) WHERE thread IS NOT NULL;
CREATE INDEX run_started ON run (started, id, ended);
CREATE TABLE link (parent NOT NULL, child INTEGER NOT NULL, PRIMARY KEY (parent, child)) WITHOUT ROWID;
CREATE TABLE entry (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, head BLOB, content BLOB, refs BLOB);
CREATE INDEX entry_end ON entry (id) WHERE kind = 'end';
CREATE TABLE snapshot (id INTEGER PRIMARY KEY, content BLOB NOT NULL, refs BLOB);
CREATE TABLE blob (id UNIQUE NOT NULL, data BLOB NOT NULL);
CREATE TABLE ref (blob NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (blob, place)) WITHOUT ROWID;
"""
"""The tables. `fencing` is the epoch of a thread, and `fence` the largest of those that were deleted; `link` has the
parents of runs and `ref` the uses of blobs, so that a deletion searches nothing; `ended` of a run is null until it has.
"""

VERSION = 3
"""The version of the tables, `user_version` of the file."""

_LAST_MARK = f"""
    SELECT kind, head FROM entry WHERE id BETWEEN ? AND ? AND kind IN ('{END}', '{RESUME}') ORDER BY id DESC LIMIT 1"""


def ending_in(connection: sqlite3.Connection, key: int, last: int = MASK) -> bytes | None:
    """How a run ended, by its rows up to `last`; None if it has not ended."""
    kind, head = connection.execute(_LAST_MARK, (key << SHIFT, (key << SHIFT) + last)).fetchone() or (RESUME, None)
    return None if kind == RESUME or head is None else ending_column(Row(0, kind, decode_json(head)))


def ending_column(row: Row) -> bytes | None:
    """How a run ended, by its last row of the kind END or RESUME, as a column; None if it has not ended."""
    return (encode_text(ending_of(row)) or None) if row.kind == END else None


def graph_of(run: RunRow) -> bytes | None:
    """The name of the graph of a run, as a column."""
    name = run.header.get("graph")
    return encode_text(name) if isinstance(name, str) else None


def create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in one transaction; only read if they are there."""
    if application_and_version(connection) == (APPLICATION, VERSION):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        _, version = application_and_version(connection)  # again: another process may have been faster
        if version:
            check_version(path, version)
            return
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute(f"PRAGMA user_version={VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def check_version(path: Path, version: int) -> None:
    """Raise `StoreError` for a file that another version of dspyer has written."""
    if version != VERSION:
        raise StoreError(
            f"the store {str(path)!r} has version {version}, and this dspyer knows version {VERSION}: use the dspyer "
            "that wrote it, or another file"
        )


def application_and_version(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version


# --- ids in columns: packed, which makes a file with many blobs about a sixth smaller


def pack_id(name: str) -> bytes | str:
    """An id of 32 hexadecimal digits as its 16 bytes, any other one unchanged."""
    if len(name) == 32:
        try:
            raw = bytes.fromhex(name)
        except ValueError:
            return name
        if raw.hex() == name:  # fromhex also takes capital letters and blanks
            return raw
    return name


def unpack_id(stored: bytes | str) -> str:
    return stored if isinstance(stored, str) else stored.hex()


def pack_refs(refs: Sequence[str]) -> bytes | str | None:
    """The ids of blobs: 16 bytes each, or a JSON list if one of them cannot be packed."""
    if not refs:
        return None
    packed = [pack_id(ref) for ref in refs]
    raw = [ref for ref in packed if isinstance(ref, bytes)]
    return b"".join(raw) if len(raw) == len(packed) else json.dumps(list(refs))


def unpack_refs(stored: bytes | str | None) -> tuple[str, ...]:
    if stored is None:
        return ()
    if isinstance(stored, str):
        return tuple(json.loads(stored))
    return tuple(stored[start : start + 16].hex() for start in range(0, len(stored), 16))


def location(row_id: int, table: str) -> int:
    """How the table `ref` names the row, or (as a negative number) the snapshot, that refers to a blob."""
    return row_id if table == "entry" else ~row_id
