"""The file of a SQLite store: whether it may be one, its tables, and how older tables become today's."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from dspyer.errors import StoreError
from dspyer.stores.sqlite_columns import pack_id, unpack_points, unpack_refs
from dspyer.stores.sqlite_connections import APPLICATION, KEPT_LOG

NETWORK = {
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "davfs",
    "fuse.ceph",
    "fuse.davfs",
    "fuse.glusterfs",
    "fuse.gcsfuse",
    "fuse.s3fs",
    "fuse.sshfs",
    "gfs2",
    "glusterfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
}
"""File systems on which several machines may see one file, so that SQLite's locks and shared memory do not hold."""

MOUNTS = Path("/proc/self/mounts")

# A row's id is the key of its run and its number in one integer: a table of rows in this order packs small and large
# rows without gaps, which one ordered by two columns does not.
TABLES = """
CREATE TABLE thread (
    name TEXT PRIMARY KEY NOT NULL, epoch INTEGER NOT NULL, runs INTEGER NOT NULL, head_run INTEGER, head_seq INTEGER,
    root_run INTEGER, root_seq INTEGER, owner TEXT, ends REAL
) WITHOUT ROWID;
CREATE TABLE run (key INTEGER PRIMARY KEY, id UNIQUE NOT NULL, thread TEXT, parents BLOB, header BLOB);
CREATE INDEX run_thread ON run (thread) WHERE thread IS NOT NULL;
CREATE TABLE entry (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, head BLOB, content BLOB, refs BLOB);
CREATE INDEX entry_refs ON entry (refs) WHERE refs IS NOT NULL;
CREATE TABLE snapshot (id INTEGER PRIMARY KEY, content BLOB NOT NULL, refs BLOB);
CREATE TABLE blob (id UNIQUE NOT NULL, data BLOB NOT NULL);
"""


def _create(connection: sqlite3.Connection) -> None:
    for statement in TABLES.split(";"):
        connection.execute(statement)


def _connect(connection: sqlite3.Connection) -> None:
    """Notes what refers to what, so that a removal looks at nothing else, and how far epochs have been given.

    The column of epochs has a new name: a program of version 1 that has the file open would write nothing of this, so
    it must not go on writing.
    """
    for statement in (
        "ALTER TABLE thread RENAME COLUMN epoch TO fencing",
        "CREATE TABLE fence (largest INTEGER NOT NULL)",
        "INSERT INTO fence SELECT coalesce(max(fencing), 0) FROM thread",
        "CREATE INDEX thread_head ON thread (head_run) WHERE head_run IS NOT NULL",
        "CREATE TABLE link (parent NOT NULL, child INTEGER NOT NULL, PRIMARY KEY (parent, child)) WITHOUT ROWID",
        "CREATE TABLE ref (blob NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (blob, place)) WITHOUT ROWID",
        "DROP INDEX entry_refs",
    ):
        connection.execute(statement)
    for key, parents in connection.execute("SELECT key, parents FROM run WHERE parents IS NOT NULL").fetchall():
        links = [(pack_id(parent.run), key) for parent in unpack_points(parents)]
        connection.executemany("INSERT OR IGNORE INTO link VALUES (?, ?)", links)
    for table in ("entry", "snapshot"):
        for place, refs in connection.execute(f"SELECT id, refs FROM {table} WHERE refs IS NOT NULL").fetchall():
            pairs = [(pack_id(name), place if table == "entry" else ~place) for name in unpack_refs(refs)]
            connection.executemany("INSERT OR IGNORE INTO ref VALUES (?, ?)", pairs)


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_create, _connect)
"""What makes a file of version n one of version n + 1, by n. The version of a file is its `user_version`."""


def check_place(path: Path, mounts: Path = MOUNTS) -> None:
    """Refuses a path at which no SQLite file of ours can be.

    Args:
        path: the file, absolute.
        mounts: the system's list of file systems.

    Raises:
        StoreError: if its folder is not there, or is on a network file system.
    """
    if not path.parent.is_dir():
        raise StoreError(f"no folder {str(path.parent)!r} for the store {path.name!r}: make it first")
    if path.is_dir():
        raise StoreError(f"{str(path)!r} is a folder: name a file in it, such as {str(path / 'runs.db')!r}")
    kind = file_system(path, mounts)
    if kind in NETWORK:
        raise StoreError(
            f"{str(path)!r} is on a network file system ({kind}), on which SQLite loses data: use a local disk, or "
            "PostgreSQL for several machines (store='postgresql://...')"
        )


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """The kind of file system that a path is on; `""` where the system does not tell."""
    try:
        lines = mounts.read_bytes().splitlines()
    except OSError:
        return ""
    place = os.fsencode(os.path.realpath(path))
    best, kind = b"", b""
    for line in lines:
        _, point, system, *_ = line.split(b" ")
        point = point.replace(b"\\040", b" ").replace(b"\\011", b"\t").replace(b"\\134", b"\\")
        inside = place == point or place.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best):
            best, kind = point, system
    return kind.decode()


def check_file(path: Path) -> None:
    """Refuses a file that is there and is not ours, and changes nothing of it.

    Raises:
        StoreError: if it is something else, or was made by a later version.
    """
    if not path.exists() or not path.stat().st_size:
        return
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)
    try:
        connection.execute("BEGIN")  # one moment for all three: another process may be making the file
        application, version = _marks(connection)
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_NOTADB:
            raise
        raise StoreError(f"{str(path)!r} is no SQLite file: nothing was changed. Name another file.") from error
    finally:
        connection.close()
    if application == APPLICATION:
        check_version(path, version)
    elif application or version or tables:
        raise StoreError(
            f"{str(path)!r} is a SQLite file of something else than dspyer: nothing was changed. Name another file."
        )


def check_version(path: Path, version: int) -> None:
    """Refuses a file that a later version of dspyer has made."""
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the store {str(path)!r} has version {version} and this dspyer knows versions up to {len(MIGRATIONS)}: "
            "a newer dspyer has written it, install that"
        )


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Makes the tables those of this version, in one transaction; only reads if they are."""
    if _marks(connection) == (APPLICATION, len(MIGRATIONS)):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        _, version = _marks(connection)
        check_version(path, version)
        for step in MIGRATIONS[version:]:
            step(connection)
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class ConnectionOpener:
    """Makes connections to a file, of which it makes sure before the first.

    Args:
        path: the file, absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[int, int] | None = None

    def __call__(self) -> sqlite3.Connection:
        """A connection, for any thread, that waits for no lock and begins no transaction by itself."""
        if self._opened is None:
            check_place(self.path)
            check_file(self.path)
        else:
            self.check_same()
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        self._opened = self._opened or _identity(self.path)
        return connection

    def check_same(self) -> None:
        """Refuses to go on if somebody has removed the file or put another in its place: what is written would be lost.

        Raises:
            StoreError: then.
        """
        found = _identity(self.path)
        if found != self._opened:
            what = "was removed" if found is None else "is another file than before"
            raise StoreError(
                f"the store {str(self.path)!r} {what}, while this program had it open: nothing is written to it any "
                "more. Put the file back if it was moved, or compile the program again to begin with what is there now"
            )

    def _set_up(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{str(self.path)!r} cannot have a write-ahead log (mode {mode!r}): take another disk")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute(f"PRAGMA journal_size_limit={KEPT_LOG}")
        migrate(connection, self.path)


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from others, under whatever name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version
