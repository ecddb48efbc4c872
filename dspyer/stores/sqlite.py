"""A store in one SQLite file, for many threads and processes of one machine.

First what is refused, then the connections and the log, then the store. `dspyer.stores.sql` has nearly all statements;
here is what is done otherwise than in PostgreSQL.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from dspyer.clock import now, wall
from dspyer.errors import StoreError, names_options
from dspyer.stores.base import (
    Change,
    CurrentRows,
    DeletionReport,
    WritePlan,
    appended,
    check_runs,
    thread_after,
)
from dspyer.stores.sql import (
    ALL_TABLES,
    PATIENCE,
    VERSION,
    EncodedChange,
    Plan,
    SQLSession,
    SQLStore,
    decode_thread,
    delete_planned,
    encode_json,
    insert_refs,
    read_around,
    read_run,
    write_ended,
    write_planned,
)
from dspyer.waiting import at_fork, gives_up, held_back

# Opening the file of an SQLite store: its tables and their version, and what is refused.
#
# A file that is only read is opened so that nothing is created or changed. SQLite itself makes two files next to a
# file with a write-ahead log, even for a connection that may not write. So:
#
# - While other programs have the file open, both are there, and a read-only connection uses them (`mode=ro`).
# - Otherwise all of the data is in the file, which is read without locks (`immutable=1`). Another program may open it
#   at that moment; it changes the file itself only when it copies its log back. So the file must be the same before
#   and after each read, or else the read is done again.


T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

APPLICATION = 0x64737079
"""The application id in the header of the file, which marks it as a store: the bytes of "dspy" in ASCII."""

_TYPES = {"name": "TEXT", "id": "TEXT", "bytes": "BLOB", "time": "REAL"}
TABLES = ALL_TABLES.replace("{s}.", "").format(
    **_TYPES, thread="WITHOUT ROWID", keyed="WITHOUT ROWID", version=VERSION, largest=0
)


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether SQLite refused because another connection holds a lock."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY  # the low byte: there are extended codes of it


def is_store(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether a file has the tables of a store; False for an empty one.

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
    """A file that this process only reads. Its methods are those of `FileConnections`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = False
        self._idle: list[tuple[FileFacts, sqlite3.Connection]] = []
        weakref.finalize(self, _close_all, self._idle)

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
            raise StoreError(f"the store {str(self.path)!r} is closed: open it again")
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


# The file of an SQLite store: its connections and its write-ahead log.
#
# How SQLite is used, and why:
#
# - *Write-ahead log* (WAL, https://sqlite.org/wal.html): a commit appends pages to the `-wal` file, readers keep
#   reading the older state, and one writer at a time holds the write lock of the file. `synchronous=NORMAL`: a commit
#   is in the operating system's memory when it returns, so the end of this process loses nothing; a change with
#   `flush` sets FULL for its transaction and waits for the disk.
# - *Checkpoints* copy the log back into the file, so that the log can start again from its beginning. The commit that
#   makes the log too long does this, and pays for it: SQLite does so itself (`wal_autocheckpoint`), from 3.51.3 on.
#   SQLite before that can lose a commit if a checkpoint starts on a log that is already copied as a whole while
#   another connection commits. There, the checkpoints of all processes run one after the other, under a lock on the
#   log file, and each one first writes a page, so that there is always something to copy. A process that finds a log
#   that is too long empties it: one that was killed may have left it.
# - *Connections*: a call takes one that no other call uses, and gives it back.
# - *Fork*: SQLite's locks are POSIX locks, which belong to one process, while its memory of them would be copied into
#   the child: using an inherited connection there can damage the file (https://sqlite.org/howtocorrupt.html). So
#   before a fork all connections are closed, as soon as each is idle, and both processes open new ones when they need
#   them.
# - *Lock order*: `write_lock`, then `opening`, then the locks of connections.


if sys.platform != "win32":
    import fcntl

LOG_LIMIT = 512 * 4096
"""Bytes of the log at which it is copied into the file: 512 pages."""

CHECKPOINTS_ITSELF = sqlite3.sqlite_version_info >= (3, 51, 3)
"""Whether SQLite may do that itself: see above."""

ERASE_PATIENCE = 1.0
"""Seconds that a deletion waits for readers before it leaves the deleted bytes in the log."""

logger = logging.getLogger("dspyer")


# --- connections


class FileConnections:
    """All connections of this process to one file; the first one checks the file and makes its tables.

    A call waits for the locks of other connections for `patience` seconds.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self.log = path.with_name(f"{path.name}-wal")
        self.closed = False
        self._first_seen: tuple[int, int] | None = None
        self._patience = patience
        self.reset()
        with _ALL_LOCK:
            _ALL.add(self)

    def reset(self) -> None:
        """Start with no connections and free locks, as a new process must: the holders of locks are not in it."""
        self.opening = threading.RLock()  # keeps calls from opening further connections
        self.connections: list[HeldConnection] = []
        self._idle: list[HeldConnection] = []
        # Writers of this process wait here, in turn, and not at the lock of the file, where they would poll.
        self.write_lock = threading.Lock()
        self._has_written = False
        self._log_left = 0  # bytes of the log that the last checkpoint could not empty

    def read(self, work: Work[T]) -> T:
        """Call `work`, which only reads. A file that is not there is not made."""
        if not self.closed and self._first_seen is None and not self.path.exists():
            check_path(self.path)
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
                create_tables(empty, self.path)
                return work(empty)
        return self._retry(work)

    def write(self, work: Work[T], flush: bool = False) -> T:
        """Call `work` in a transaction, which is committed unless `work` raises.

        `work` is called again if another process held the write lock. With `flush` the commit is on the disk then.
        """
        with self._only_writer():
            return self._retry(lambda connection: self._transaction(connection, work, flush))

    def write_now(self, work: Work[object], flush: bool = False) -> bool:
        """Do the same, but return False, without a change, where `write` would wait."""
        if not self.write_lock.acquire(blocking=False):
            return False
        try:
            self._use(lambda connection: self._transaction(connection, work, flush))
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return False
            raise
        finally:
            self.write_lock.release()
        return True

    def exclusively(self, work: Work[T]) -> T:
        """Call `work` outside of a transaction while no other thread of this process writes."""
        with self._only_writer():
            self._has_written = True
            return self._retry(work)

    def erase(self) -> bool:
        """Empty the log, which still has the deleted rows; return whether that was possible.

        A reader that began before the deletion needs the log. It is waited for, but only for `ERASE_PATIENCE`; after
        that, the next checkpoint empties the log.
        """
        for _ in _backoff(ERASE_PATIENCE):
            with self._only_writer():
                if self._retry(self._checkpoint):
                    return True
        logger.warning(
            "what was deleted from %s is still in its log, %s, since another program reads the file; it goes when the "
            "log is emptied next: vacuum() and close() do that",
            self.path,
            self.log.name,
        )
        return False

    def close(self) -> None:
        """Empty the log and close all connections, each as soon as it is idle."""
        if self.closed:
            return
        with held_back():
            with self.write_lock:
                if self._has_written:
                    self._retry(self._checkpoint)
                self.closed = True
            with ExitStack() as stack:
                self.close_idle(stack)

    @contextmanager
    def _only_writer(self) -> Iterator[None]:
        """Keep other threads of this process from writing."""
        with held_back():
            if not self.write_lock.acquire(timeout=self._patience):
                raise StoreError(
                    f"other threads of this process have been writing to {self.path} for {self._patience:g} s: nothing "
                    "was written. See what delays them, or allow more: SQLite(path, patience=...)"
                )
            try:
                yield
            finally:
                self.write_lock.release()

    def _retry(self, action: Work[T]) -> T:
        """Call `action` with a connection, again and again while another process holds the file's lock.

        SQLite's own busy timeout would wait within the call, with the connection's lock held: a fork or a close would
        wait as long.
        """
        pauses = None
        while True:
            try:
                return self._use(action)
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                pauses = pauses or _backoff(self._patience)
                if not next(pauses, False):
                    error.add_note(
                        f"Another connection has held the lock of {self.path} for {self._patience:g} s. See which "
                        "process does (a tool that has the file open?), or allow more: SQLite(path, patience=...)."
                    )
                    raise

    def _transaction(self, connection: sqlite3.Connection, work: Work[T], flush: bool) -> T:
        if flush:  # not for each write: a flush is rare, and takes longer than this look at the file
            self._check_same_file()
            connection.execute("PRAGMA synchronous=FULL")
        try:
            # IMMEDIATE takes the write lock before anything is read: what `work` reads is current when it writes.
            connection.execute("BEGIN IMMEDIATE")
            done = work(connection)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if flush:
                connection.execute("PRAGMA synchronous=NORMAL")
        self._has_written = True
        if not CHECKPOINTS_ITSELF:
            self._limit_log(connection)
        return done

    def _use(self, action: Work[T]) -> T:
        """Call `action` with a connection that no other call uses meanwhile."""
        try:
            held = self._idle.pop()
        except IndexError:
            with self.opening:
                self.connections.append(held := HeldConnection())
        try:
            with held.lock:
                if self.closed:
                    raise StoreError(
                        f"the store {self.path} is closed: open it again with open_store({str(self.path)!r})"
                    )
                if held.connection is None:
                    held.connection = self._open()
                return action(held.connection)
        finally:
            self._idle.append(held)

    def close_idle(self, stack: ExitStack) -> None:
        """Close every connection as soon as it is idle; none is opened before the end of the stack."""
        stack.enter_context(self.opening)
        for held in self.connections:
            stack.enter_context(held.lock)
            held.close()

    # --- opening

    def _open(self) -> sqlite3.Connection:
        """Open a connection that may be used by any thread, waits for no lock and begins no transaction itself.

        Raise `StoreError` if the file is not a store, has tables of another version, or was removed or replaced.
        """
        if self._first_seen is None:
            check_path(self.path)
        else:
            self._check_same_file()
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            is_store(connection, self.path)  # before anything is written: the file of something else stays as it is
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise StoreError(f"{str(self.path)!r} cannot have a write-ahead log (mode {mode!r}): use another disk")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA secure_delete=ON")  # deleted rows are overwritten with zeros
            connection.execute(f"PRAGMA wal_autocheckpoint={LOG_LIMIT // 4096 if CHECKPOINTS_ITSELF else 0}")
            connection.execute(f"PRAGMA journal_size_limit={LOG_LIMIT}")  # what a checkpoint leaves of a longer log
            create_tables(connection, self.path)
        except BaseException:
            connection.close()
            raise
        self._first_seen = self._first_seen or identity(self.path)
        return connection

    def _check_same_file(self) -> None:
        """Raise if the file was removed or replaced since it was opened: writes to it would be lost.

        An open connection keeps working on a removed file, which no other process can open any more.
        """
        found = identity(self.path)
        if found != self._first_seen:
            what = "was removed" if found is None else "is another file than before"
            raise StoreError(
                f"the store {str(self.path)!r} {what}, while this program had it open: nothing more is written to it. "
                "Put the file back if it was moved, or compile the program again to use the file that is there now"
            )

    # --- the log

    def _limit_log(self, connection: sqlite3.Connection) -> None:
        """Empty the log if commits have made it too long. The last commit stands, whatever comes of this.

        While a reader needs the log, it is tried again each time that the log has grown by a part of its limit.
        """
        size = self._log_size()
        self._log_left = min(self._log_left, size)
        if size > max(LOG_LIMIT, self._log_left + LOG_LIMIT // 4):
            try:
                self._checkpoint(connection)
            except (sqlite3.Error, OSError):
                logger.warning("the log of %s could not be emptied and continues to grow", self.path, exc_info=True)
            self._log_left = self._log_size()

    def _checkpoint(self, connection: sqlite3.Connection) -> bool:
        """Run a checkpoint, unless another process runs one; return whether the log is empty then."""
        with _lock_checkpoints(self.log) as alone:
            if alone:
                checkpoint(connection)
        return not self._log_size()

    def _log_size(self) -> int:
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0


class HeldConnection:
    """A connection, and the lock under which it works: a thread that holds the lock may close it."""

    __slots__ = ("connection", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def __del__(self) -> None:
        if not sys.is_finalizing():  # Python ends daemon threads then, in the middle of their work
            self.close()


def checkpoint(connection: sqlite3.Connection) -> None:
    """Copy the log into the file, and empty it if all of it was copied: readers may still need it."""
    try:
        # Writes a page, so that the log has something that is not copied yet: see above.
        connection.execute(f"PRAGMA application_id={APPLICATION}")
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return
        raise
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


@contextmanager
def _lock_checkpoints(log: Path) -> Iterator[bool]:
    """Keep other processes from running checkpoints; False if one of them is running one.

    `flock` on the log file is free for this: SQLite itself locks ranges of the `-shm` file, never the log. Windows has
    no `flock`; there, checkpoints are only kept apart within a process.
    """
    if sys.platform == "win32":
        yield True
        return
    try:
        number = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(number)


def _backoff(patience: float) -> Iterator[bool]:
    """Yield True at once, and again after ever longer pauses (0.5 to 20 ms) until `patience` seconds have passed.

    Each pause waits for another process to release a lock of the file. SQLite cannot notify a waiting process, so it
    has to ask again. A commit holds the lock for well under a millisecond, hence the short first pauses.
    """
    end = now() + patience
    pause = 0.0005
    while True:
        yield True
        if now() > end or gives_up():
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


# --- fork

_ALL: weakref.WeakSet[FileConnections] = weakref.WeakSet()
_ALL_LOCK = threading.Lock()
_HELD_FOR_FORK = ExitStack()


def _before_fork() -> None:
    """Close every connection, as soon as it is idle, and keep the locks until the fork is done."""
    _HELD_FOR_FORK.enter_context(_ALL_LOCK)
    for connections in list(_ALL):
        connections.close_idle(_HELD_FOR_FORK)


def _after_fork_in_child() -> None:
    _HELD_FOR_FORK.close()
    for connections in list(_ALL):
        connections.reset()  # other threads of the parent may have held `write_lock`; they are not in this process


at_fork(_after_fork_in_child, _before_fork, _HELD_FOR_FORK.close)


class SQLite(SQLStore):
    """A store in one SQLite file, which several threads and processes of one machine may use at the same time.

    A written change is in the operating system's memory when `write` returns: it survives the end of the process. With
    `Change.flush` it is on the disk: it survives a power failure.

    Args:
        path: the file; the first write creates it.
        patience: seconds to wait for the lock of another process, or for other threads of this one.
        read_only: reads the file and writes nothing: it is not created, and no file is made next to it.
        flush: whether each change is on the disk when its write returns, so that a power failure loses nothing. Ends,
            failures, questions, answers and effects always are.

    Raises:
        StoreError: (on first use) the file is not a store, was made by another version of dspyer, or is on a network
            file system; or it does not exist, with `read_only`.

    Example:
        >>> import tempfile
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("a", lambda state: {"n": 1}).add_path(START,
        ...     "a", END)
        >>> with tempfile.TemporaryDirectory() as folder, SQLite(
        ...     f"{folder}/runs.db") as store:
        ...     _ = graph.compile(store=store).thread("t-1").run({})
        ...     store.threads()
        ['t-1']
    """

    @names_options("SQLite")
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        patience: float = PATIENCE,
        read_only: bool = False,
        flush: bool = False,
    ) -> None:
        super().__init__(patience=patience, read_only=read_only, flush=flush)
        self._path = Path(path).absolute()
        self._flush = flush
        self._connections: FileConnections | ReadOnlyFile = (
            ReadOnlyFile(self._path) if read_only else FileConnections(self._path, patience)
        )

    @property
    def address(self) -> str:
        return str(self._path)

    def write(self, change: Change) -> int:
        work = partial(self._apply, change, EncodedChange.of(change))
        return self._connections.write(work, change.flush or self._flush)

    def write_now(self, change: Change) -> bool:
        work = partial(self._apply, change, EncodedChange.of(change))
        return self._connections.write_now(work, change.flush or self._flush)

    def _apply(self, change: Change, encoded: EncodedChange, connection: sqlite3.Connection) -> int:
        session = SQLiteSession(connection)
        return change.epoch if _append(session, change, encoded) else write_planned(session, change, encoded)

    def _read(self, work: Callable[[SQLSession], T]) -> T:
        return self._connections.read(lambda connection: work(SQLiteSession(connection)))

    def _write(self, work: Callable[[SQLSession], T]) -> T:
        return self._connections.write(lambda connection: work(SQLiteSession(connection)))

    def _delete(self, names: Collection[str], plan: Plan) -> DeletionReport:
        """Delete, then empty the log, which still has what was overwritten in the file."""

        def work(session: SQLSession) -> DeletionReport:
            return delete_planned(session, plan(*read_around(session, names)))

        report = self._write(work)
        if not (report.threads or report.runs or report.rows):
            return report
        return report._replace(erased=self._connections.erase())

    def vacuum(self) -> None:
        """Rewrite the file without gaps and without any trace of deleted data; other writers wait meanwhile."""
        self._connections.exclusively(lambda connection: connection.execute("VACUUM"))
        self._connections.erase()

    def close(self) -> None:
        """Empty the log and close all connections of this process, each as soon as it is idle."""
        self._connections.close()


# All that a write must know, in one statement.
_LAST = "(SELECT max(seq) FROM entry WHERE run = :rows_of)"
_CURRENT = f"""
    SELECT largest, {_LAST}, EXISTS (SELECT 1 FROM run WHERE id = :rows_of), EXISTS (SELECT 1 FROM run WHERE id = :run),
    thread.* FROM fence LEFT JOIN thread ON name = :thread"""


class SQLiteSession(SQLSession):
    """Executes statements with a connection, within the transaction of its caller."""

    lease = "lease_until"

    def text(self, statement: str) -> str:
        return statement.replace("{s}.", "")

    @property
    def now(self) -> float:
        return wall()

    def lock(self, change: Change) -> CurrentRows:
        run = "" if change.run is None else change.run.id
        values = {"rows_of": change.rows_of, "run": run, "thread": change.thread}
        ((largest, last, has_rows_of, has_run, *columns),) = self(_CURRENT, values)
        thread = None if columns[0] is None else decode_thread(self, columns)
        last = (-1 if last is None else last) if has_rows_of else None
        return CurrentRows(thread, read_run(self, run) if has_run else None, last, max_deleted_epoch=largest)

    def insert_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        self.each("INSERT OR IGNORE INTO blob VALUES (?, ?)", blobs.items())

    def write_thread(self, change: Change, current: CurrentRows, plan: WritePlan) -> None:
        name, head, epoch, owner, lease, root, runs = thread_after(change, current.thread, plan, wall())
        owned = None if owner is None else encode_json(owner)
        columns = name, epoch, *(head or (None, None)), *(root or (None, None)), owned, lease, runs
        self("INSERT OR REPLACE INTO thread VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", columns)


# The next row of a run, if the thread has the epoch of the change.
_APPEND = """
    INSERT INTO entry SELECT ?1, ?2, ?3, ?4 FROM thread WHERE name = ?5 AND fencing = ?6
    AND (SELECT max(seq) FROM entry WHERE run = ?1) = ?2 - 1"""


def _append(session: SQLiteSession, change: Change, encoded: EncodedChange) -> bool:
    """Append the next row of a run for the thread's owner; False, without a change, for any other change.

    It takes two statements.
    """
    head, run, name = appended(change), change.rows_of, change.thread
    if head is None:
        return False
    row, execute = change.rows[0], session.connection.execute
    try:
        if not execute(_APPEND, (run, row.seq, row.kind, encoded.bodies[row.seq], name, change.epoch)).rowcount:
            return False
    except sqlite3.IntegrityError:
        return False  # the row is there already: the statement has changed nothing
    # Naming `head_run` would write its index too, even with the same value.
    moved = execute("UPDATE thread SET head_seq = ? WHERE name = ? AND head_run = ?", (head.seq, name, head.run))
    if not moved.rowcount:
        check_runs(change, lambda run: read_run(session, run) is not None)
        execute("UPDATE thread SET head_run = ?, head_seq = ? WHERE name = ?", (*head, name))
    if encoded.refs:
        session.insert_blobs(encoded.blobs)
        insert_refs(session, encoded.refs)
    write_ended(session, run, change.rows)
    return True
