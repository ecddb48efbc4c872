"""An SQLite file that is only read: nothing is created or changed.

SQLite itself makes two files next to a file with a write-ahead log, even for a connection that may not write. So:

- While other programs have the file open, both are there, and a read-only connection uses them (`mode=ro`).
- Otherwise all of the data is in the file, which is read without locks (`immutable=1`). Another program may open it at
  that moment; it changes the file itself only when it copies its log back. So the file must be the same before and
  after each read, or else the read is done again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import NoReturn, TypeVar

from dspyer.errors import StoreError
from dspyer.stores.sqlite_file import StoreClosedError, is_busy
from dspyer.stores.sqlite_tables import APPLICATION, application_and_version, check_version

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

FileFacts = tuple[int, int, int, bool]
"""Inode, size and time of the last change of a file, and whether a log is next to it."""

ATTEMPTS = 20
"""How often a read is done again because the file was changed meanwhile."""


class ReadOnlyFile:
    """The connection of this process to a file that it only reads. Its methods are those of `FileConnections`.

    Attributes:
        path: the file.
        closed: whether `close` was called.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = False
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._facts: FileFacts | None = None

    def read(self, work: Work[T]) -> T:
        """Call `work`, which only reads."""
        with self._lock:
            for attempt in range(ATTEMPTS):
                facts = self._open()
                try:
                    found = work(self._connection)  # type: ignore[arg-type]
                except sqlite3.DatabaseError as error:
                    if attempt == ATTEMPTS - 1 or not (is_busy(error) or self._facts_now() != facts):
                        raise
                else:
                    if facts[3] or self._facts_now()[:3] == facts[:3]:
                        return found
                self._close()
        raise StoreError(f"the store {str(self.path)!r} is changed all the time by another program: try again")

    def refuse(self, *_: object) -> NoReturn:
        """Refuse a write."""
        raise StoreError(
            f"the store {str(self.path)!r} was opened for reading only: open_store(path) opens it to write"
        )

    write = write_now = exclusively = erase = refuse

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self.closed = True
            self._close()

    def _open(self) -> FileFacts:
        """Open the file, or open it again if it has changed in a way that the connection cannot see."""
        if self.closed:
            raise StoreClosedError(f"the store {str(self.path)!r} is closed: open it again")
        facts = self._facts_now()
        same = self._facts is not None and facts[0] == self._facts[0] and facts[3] == self._facts[3]
        if self._connection is not None and same and (facts[3] or facts == self._facts):
            return facts
        self._close()
        connection = sqlite3.connect(
            self._address(facts[3]), uri=True, timeout=5, check_same_thread=False, isolation_level=None
        )
        try:
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._facts = connection, facts
        return facts

    def _address(self, has_log: bool) -> str:
        if has_log and not self.path.with_name(f"{self.path.name}-shm").exists():
            raise StoreError(
                f"the store {str(self.path)!r} has a log, {self.path.name}-wal, which was not copied back into it, and "
                "reading it would write files: open the store once to write, open_store(path).threads(), or take the "
                "copy of a store that was closed"
            )
        return f"{self.path.as_uri()}?mode=ro" + ("" if has_log else "&immutable=1")

    def _check(self, connection: sqlite3.Connection) -> None:
        try:
            application, version = application_and_version(connection)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_NOTADB:
                raise
            raise StoreError(f"{str(self.path)!r} is no SQLite file: name the file of a store") from error
        if application != APPLICATION:
            raise StoreError(f"{str(self.path)!r} is no store of dspyer: name the file of a store")
        check_version(self.path, version)

    def _facts_now(self) -> FileFacts:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise StoreError(f"there is no file {str(self.path)!r}: name the file of a store") from None
        if self.path.is_dir():
            raise StoreError(f"{str(self.path)!r} is a folder: name the file of a store in it")
        log_size = 0
        with suppress(FileNotFoundError):
            log_size = self.path.with_name(f"{self.path.name}-wal").stat().st_size
        return found.st_ino, found.st_size, found.st_mtime_ns, log_size > 0

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
