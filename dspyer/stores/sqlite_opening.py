"""Opening the file of an SQLite store: its tables and their version, and what is refused.

A file that is only read is opened so that nothing is created or changed. SQLite itself makes two files next to a file
with a write-ahead log, even for a connection that may not write. So:

- While other programs have the file open, both are there, and a read-only connection uses them (`mode=ro`).
- Otherwise all of the data is in the file, which is read without locks (`immutable=1`). Another program may open it at
  that moment; it changes the file itself only when it copies its log back. So the file must be the same before and
  after each read, or else the read is done again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar
from weakref import finalize

from dspyer.errors import StoreError
from dspyer.stores import columns
from dspyer.stores.columns import VERSION

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

APPLICATION = 0x64737079
"""The application id in the header of the file, which marks it as a store: the bytes of "dspy" in ASCII."""

_TYPES = {"name": "TEXT", "id": "TEXT", "bytes": "BLOB", "time": "REAL"}
TABLES = columns.TABLES.replace("{s}.", "").format(
    **_TYPES, thread="WITHOUT ROWID", keyed="WITHOUT ROWID", version=VERSION
)


class StoreClosedError(StoreError):
    """The store is closed."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether SQLite refused because another connection holds a lock."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY  # the low byte: there are extended codes of it


def is_store(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether a file has the tables of a store; False for an empty one.

    Raise `StoreError` for the file of something else, or of another version of dspyer. The tables are read first: they
    come with the application id, in one transaction, and another process may be making them.
    """
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if not tables and application in (0, APPLICATION):
            return False
        if application != APPLICATION:
            raise StoreError(
                f"{str(path)!r} is no store of dspyer, but another SQLite file: nothing was changed. Name another file."
            )
        # Before there was a table for it, the version was in the header of the file.
        number = "SELECT max(number) FROM version" if "version" in tables else "PRAGMA user_version"
        (version,) = connection.execute(number).fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_NOTADB:
            raise
        raise StoreError(f"{str(path)!r} is no SQLite file: nothing was changed. Name another file.") from error
    if version != VERSION:
        raise StoreError(
            f"the store {str(path)!r} has version {version}, and this dspyer knows version {VERSION}: use the dspyer "
            "that wrote it, or another file"
        )
    return True


def create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in one transaction; only read if they are there."""
    if is_store(connection, path):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not is_store(connection, path):  # again: another process may have been faster
            for statement in TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION}")
            connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def check_file(path: Path) -> None:
    """Raise `StoreError` if a file is not a store, or one of another version; nothing in it is changed."""
    if not path.exists() or not path.stat().st_size:
        return
    for mode in ("ro", "rw"):
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=5)) as connection:
                is_store(connection, path)
                return
        except sqlite3.OperationalError as error:
            # A process was killed while it made the file. Only a connection that may write can undo its transaction.
            if mode == "rw" or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode, which identify a file under any name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# --- where a file may be

MOUNTS = Path("/proc/self/mounts")

_SHARED = (
    "afs beegfs ceph cifs davfs fuse.ceph fuse.davfs fuse.glusterfs fuse.gcsfuse fuse.s3fs fuse.sshfs gfs2 glusterfs "
    "lustre ncpfs nfs nfs4 smb3 smbfs"
)
NETWORK_FILE_SYSTEMS = frozenset(_SHARED.split())
"""File systems that several machines may share, where SQLite's locks and shared memory do not work."""


def check_path(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise `StoreError` if the folder of a file does not exist, or is on a network file system."""
    if not path.parent.is_dir():
        raise StoreError(f"no folder {str(path.parent)!r} for the store {path.name!r}: make it first")
    if path.is_dir():
        raise StoreError(f"{str(path)!r} is a folder: name a file in it, such as {str(path / 'runs.db')!r}")
    kind = file_system(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{str(path)!r} is on a network file system ({kind}), on which SQLite loses data: use a local disk, or "
            "PostgreSQL for several machines (store='postgresql://...')"
        )


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """The kind of file system that a path is on; `""` where the system does not list them."""
    try:
        lines = mounts.read_bytes().splitlines()
    except OSError:
        return ""
    place = os.fsencode(os.path.realpath(path))
    best, kind = b"", b""
    for line in lines:
        _, point, system, *_ = line.split(b" ")
        # The kernel writes blanks, tabs and backslashes of a mount point as octal numbers.
        point = point.replace(b"\\040", b" ").replace(b"\\011", b"\t").replace(b"\\134", b"\\")
        inside = place == point or place.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best):  # the innermost mount; of two at one place, the later one
            best, kind = point, system
    return kind.decode()


# --- files that are only read

FileFacts = tuple[int, int, int, bool, int]
"""Inode, size and time of the last change of a file, whether a log is next to it, and the process that asks."""

ATTEMPTS = 20
"""How often a read is done again because the file was changed meanwhile."""


class ReadOnlyFile:
    """A file that this process only reads. Its methods are those of `FileConnections`.

    Attributes:
        path: the file.
        closed: whether `close` was called.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = False
        self._idle: list[tuple[FileFacts, sqlite3.Connection]] = []
        finalize(self, _close_all, self._idle)

    def read(self, work: Work[T]) -> T:
        """Call `work`, which only reads, with a connection to the file as it is now."""
        for attempt in range(ATTEMPTS):
            facts = self._facts()
            try:
                with self._connection(facts) as connection:
                    found = work(connection)
            except sqlite3.DatabaseError as error:
                if attempt == ATTEMPTS - 1 or not (is_busy(error) or self._facts() != facts):
                    raise
            else:
                if facts[3] or self._facts()[:3] == facts[:3]:
                    return found
        raise StoreError(f"the store {str(self.path)!r} is changed all the time by another program: try again")

    @contextmanager
    def _connection(self, facts: FileFacts) -> Iterator[sqlite3.Connection]:
        """A connection that no other call uses meanwhile: an idle one if the file is as it was, else a new one."""
        address = f"{self.path.as_uri()}?mode=ro{'' if facts[3] else '&immutable=1'}"
        with ExitStack() as stack:
            connection = known = self._take(facts)
            if connection is None:
                connection = sqlite3.connect(
                    address, uri=True, timeout=5, isolation_level=None, check_same_thread=False
                )
            stack.callback(connection.close)
            if known is None and not is_store(connection, self.path):
                raise StoreError(f"{str(self.path)!r} is no store of dspyer: name the file of a store")
            yield connection
            stack.pop_all()
        self._idle.append((facts, connection))
        if self.closed:
            _close_all(self._idle)

    def _take(self, facts: FileFacts) -> sqlite3.Connection | None:
        with suppress(IndexError):  # none is idle
            known, connection = self._idle.pop()
            if known == facts:
                return connection
            connection.close()
        return None

    def refuse(self, *_: object) -> NoReturn:
        """Refuse a write."""
        raise StoreError(
            f"the store {str(self.path)!r} was opened for reading only: open_store(path) opens it to write"
        )

    write = write_now = exclusively = erase = refuse

    def close(self) -> None:
        """Refuse what comes from now on."""
        self.closed = True
        _close_all(self._idle)

    def _facts(self) -> FileFacts:
        if self.closed:
            raise StoreClosedError(f"the store {str(self.path)!r} is closed: open it again")
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise StoreError(f"there is no file {str(self.path)!r}: name the file of a store") from None
        if self.path.is_dir():
            raise StoreError(f"{str(self.path)!r} is a folder: name the file of a store in it")
        log_size = 0
        with suppress(FileNotFoundError):
            log_size = self.path.with_name(f"{self.path.name}-wal").stat().st_size
        if log_size and not self.path.with_name(f"{self.path.name}-shm").exists():
            raise StoreError(
                f"the store {str(self.path)!r} has a log, {self.path.name}-wal, which was not copied back into it, and "
                "reading it would write files: open the store once to write, open_store(path).threads(), or take the "
                "copy of a store that was closed"
            )
        return found.st_ino, found.st_size, found.st_mtime_ns, log_size > 0, os.getpid()


def _close_all(idle: list[tuple[FileFacts, sqlite3.Connection]]) -> None:
    with suppress(IndexError):
        while True:
            idle.pop()[1].close()
