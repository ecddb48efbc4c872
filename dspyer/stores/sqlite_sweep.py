"""Removing from a SQLite store what `dspyer.stores.reach` says, in the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping

from dspyer.stores.base import Swept
from dspyer.stores.reach import Ends, Extent, Removal
from dspyer.stores.sqlite_columns import MASK, SHIFT, pack_id, unpack_id, unpack_point, unpack_points, unpack_refs

Decide = Callable[[Mapping[str, Ends], Mapping[str, Extent]], Removal]


def sweep(connection: sqlite3.Connection, decide: Decide) -> Swept:
    """Removes what is decided, and the blobs that nothing refers to then."""
    found, keys = _runs(connection)
    removal = decide(_threads(connection), found)
    connection.executemany("DELETE FROM thread WHERE name = ?", [(name,) for name in removal.threads])
    spans = [(keys[run] << SHIFT, (keys[run] << SHIFT) + MASK) for run in removal.runs]
    spans += [((keys[span.run] << SHIFT) + span.first, (keys[span.run] << SHIFT) + span.last) for span in removal.rows]
    rows = connection.executemany("DELETE FROM entry WHERE id BETWEEN ? AND ?", spans).rowcount if spans else 0
    connection.executemany("DELETE FROM snapshot WHERE id BETWEEN ? AND ?", spans)
    connection.executemany("DELETE FROM run WHERE key = ?", [(keys[run],) for run in removal.runs])
    connection.executemany("UPDATE run SET thread = NULL WHERE key = ?", [(keys[run],) for run in removal.orphans])
    sweep_blobs(connection)
    return Swept(removal.threads, len(removal.runs), rows, removal.kept)


def sweep_snapshots(connection: sqlite3.Connection) -> None:
    """Removes the snapshots that are at no thread's root."""
    connection.execute(
        f"DELETE FROM snapshot WHERE id NOT IN "
        f"(SELECT (root_run << {SHIFT}) + root_seq FROM thread WHERE root_run IS NOT NULL)"
    )
    sweep_blobs(connection)


def sweep_blobs(connection: sqlite3.Connection) -> None:
    """Removes the blobs that no row and no snapshot refers to."""
    used: set[str] = set()
    for table in ("entry", "snapshot"):
        for (refs,) in connection.execute(f"SELECT refs FROM {table} WHERE refs IS NOT NULL"):
            used.update(unpack_refs(refs))
    names = (unpack_id(name) for (name,) in connection.execute("SELECT id FROM blob").fetchall())
    _remove_blobs(connection, (name for name in names if name not in used))


def _remove_blobs(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    connection.executemany("DELETE FROM blob WHERE id = ?", ((pack_id(name),) for name in names))


def _threads(connection: sqlite3.Connection) -> dict[str, Ends]:
    found = connection.execute(
        "SELECT name, head.id, head_seq, root.id, root_seq FROM thread "
        "LEFT JOIN run AS head ON head.key = head_run LEFT JOIN run AS root ON root.key = root_run"
    )
    return {
        name: Ends(unpack_point(head, head_seq), unpack_point(root, root_seq))
        for name, head, head_seq, root, root_seq in found
    }


def _runs(connection: sqlite3.Connection) -> tuple[dict[str, Extent], dict[str, int]]:
    """Every run, and its key."""
    runs: dict[str, Extent] = {}
    keys: dict[str, int] = {}
    found = connection.execute(
        f"SELECT key, id, thread, parents, (SELECT max(entry.id) FROM entry "
        f"WHERE entry.id BETWEEN key << {SHIFT} AND (key << {SHIFT}) + {MASK}) FROM run"
    )
    for key, stored, thread, parents, last in found:
        name = unpack_id(stored)
        runs[name] = Extent(thread or "", unpack_points(parents), -1 if last is None else last & MASK)
        keys[name] = key
    return runs, keys
