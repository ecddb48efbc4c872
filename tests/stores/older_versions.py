"""Stores as earlier versions of dspyer have written them, made of stores of today."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

V2 = """
    DROP INDEX run_started; DROP INDEX entry_end; ALTER TABLE run DROP COLUMN started;
    ALTER TABLE run DROP COLUMN graph; ALTER TABLE run DROP COLUMN ended; PRAGMA user_version=2
"""
V1 = f"""{V2};
    ALTER TABLE thread RENAME COLUMN fencing TO epoch; DROP INDEX thread_head; DROP TABLE link; DROP TABLE ref;
    DROP TABLE fence; CREATE INDEX entry_refs ON entry (refs) WHERE refs IS NOT NULL; PRAGMA user_version=1
"""
V3_POSTGRES = """
    DROP TABLE {s}.ref; ALTER TABLE {s}.entry RENAME COLUMN blob_ids TO refs;
    ALTER TABLE {s}.snapshot RENAME COLUMN blob_ids TO refs;
    CREATE INDEX entry_refs ON {s}.entry USING gin (refs) WHERE refs IS NOT NULL;
    CREATE INDEX snapshot_refs ON {s}.snapshot USING gin (refs) WHERE refs IS NOT NULL;
    DELETE FROM {s}.version WHERE number = 4
"""
V2_POSTGRES = f"""{V3_POSTGRES};
    DROP INDEX {{s}}.run_started; DROP INDEX {{s}}.entry_end;
    ALTER TABLE {{s}}.run DROP COLUMN started, DROP COLUMN graph, DROP COLUMN ended;
    DELETE FROM {{s}}.version WHERE number = 3
"""
V1_POSTGRES = f"""{V2_POSTGRES};
    ALTER TABLE {{s}}.thread RENAME COLUMN fencing TO epoch; DROP INDEX {{s}}.thread_head; DROP TABLE {{s}}.link;
    DROP TABLE {{s}}.fence; DELETE FROM {{s}}.version WHERE number = 2
"""


def make_old(path: Path, script: str = V2) -> None:
    """Turn a closed SQLite file into one of an earlier version, with the headers that runs and ends had then."""
    connection = sqlite3.connect(path)
    for key, header in connection.execute("SELECT key, header FROM run").fetchall():
        old = {name: value for name, value in json.loads(header).items() if name not in ("started", "drawing")}
        connection.execute("UPDATE run SET header = ? WHERE key = ?", (json.dumps(old).encode(), key))
    for row_id, head in connection.execute("SELECT id, head FROM entry WHERE kind = 'end'").fetchall():
        status, digest, usage = json.loads(head)[:3]
        old_head = [status, digest, usage] if usage else [status, digest] if digest else [status]
        connection.execute("UPDATE entry SET head = ? WHERE id = ?", (json.dumps(old_head).encode(), row_id))
    connection.commit()
    connection.executescript(script)
    connection.close()
