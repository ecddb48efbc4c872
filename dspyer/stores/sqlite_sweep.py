"""Removing from a SQLite store what `dspyer.stores.reach` says, in the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping

from dspyer.stores.admission import check_epochs
from dspyer.stores.base import DeletionReport
from dspyer.stores.reach import DeletionPlan, Ends, Extent, connected, deletion_plan
from dspyer.stores.sqlite_columns import MASK, SHIFT, pack_id, unpack_id, unpack_point, unpack_points, unpack_refs

Decide = Callable[[Mapping[str, Ends], Mapping[str, Extent]], DeletionPlan]

_ENDS = """
    SELECT name, head.id, head_seq, root.id, root_seq FROM thread
    LEFT JOIN run AS head ON head.key = head_run LEFT JOIN run AS root ON root.key = root_run"""
_EXTENT = f"""
    SELECT key, id, thread, parents, (SELECT max(entry.id) FROM entry
        WHERE entry.id BETWEEN key << {SHIFT} AND (key << {SHIFT}) + {MASK}) FROM run"""


class FileReferences:
    """What refers to what in the file, as `dspyer.stores.reach.connected` asks for it.

    Args:
        connection: in a transaction.

    Attributes:
        keys: of the runs that were asked for.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.keys: dict[str, int] = {}
        self._execute = connection.execute

    def ends(self, thread: str) -> Ends | None:
        """Head and root of a thread."""
        return next((ends for _, ends in self._ends(f"{_ENDS} WHERE name = ?", thread)), None)

    def extent(self, run: str) -> Extent | None:
        """A run."""
        return next((extent for _, extent in self._extents(f"{_EXTENT} WHERE id = ?", pack_id(run))), None)

    def made(self, thread: str) -> list[str]:
        """The runs that were made for a thread."""
        return [unpack_id(run) for (run,) in self._execute("SELECT id FROM run WHERE thread = ?", (thread,))]

    def children(self, run: str) -> list[str]:
        """The runs that have a run as a parent."""
        found = self._execute("SELECT id FROM link JOIN run ON key = child WHERE parent = ?", (pack_id(run),))
        return [unpack_id(child) for (child,) in found]

    def heads(self, run: str) -> list[str]:
        """The threads whose head is in a run."""
        key = self.keys.get(run)
        return [name for (name,) in self._execute("SELECT name FROM thread WHERE head_run = ?", (key,))]

    def whole(self) -> tuple[dict[str, Ends], dict[str, Extent]]:
        """All threads and runs."""
        return dict(self._ends(_ENDS)), dict(self._extents(_EXTENT))

    def _ends(self, statement: str, *values: object) -> Iterable[tuple[str, Ends]]:
        for name, head, head_seq, root, root_seq in self._execute(statement, values):
            yield name, Ends(unpack_point(head, head_seq), unpack_point(root, root_seq))

    def _extents(self, statement: str, *values: object) -> Iterable[tuple[str, Extent]]:
        for key, stored, thread, parents, last in self._execute(statement, values):
            name = unpack_id(stored)
            self.keys[name] = key
            yield name, Extent(thread or "", unpack_points(parents), -1 if last is None else last & MASK)


def sweep_threads(connection: sqlite3.Connection, gone: Collection[str], epochs: Mapping[str, int]) -> DeletionReport:
    """Removes threads, and what only they reach; without any, all that nothing reaches.

    Raises:
        ConcurrentRunError: if a thread has another epoch than it must have.
    """
    check_epochs(_epochs(connection, epochs), epochs)
    largest = max(_epochs(connection, gone).values(), default=0)
    connection.execute("UPDATE fence SET largest = max(largest, ?)", (largest,))
    return sweep(connection, gone, lambda threads, runs: deletion_plan(threads, runs, gone))


def sweep(connection: sqlite3.Connection, names: Collection[str], decide: Decide) -> DeletionReport:
    """Removes what is decided, and the blobs that nothing refers to then.

    Args:
        connection: in a transaction.
        names: the threads that it is about; none for the whole store.
        decide: says what goes.
    """
    network = FileReferences(connection)
    near = connected(network, names) if names else network.whole()
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


def sweep_snapshots(connection: sqlite3.Connection) -> None:
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
