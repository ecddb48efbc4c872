"""The file of a SQLite store: whether it may be one, its tables, and how older tables become today's."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dspyer.errors import StoreError
from dspyer.stores.base import Owner, Point
from dspyer.stores.content import Content

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


# --------------------------------------------------------------------------------------------------------------------
# What the columns of a SQLite store hold: ids, references, points and owners in as few bytes as they need.

SHIFT = 32
"""A row's id is its run's key, this many bits to the left, and its number."""

_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

MASK = (1 << SHIFT) - 1
"""The number in a row's id; the greatest number too."""


def pack(value: Any) -> bytes:
    """JSON as UTF-8."""
    return _json(value).encode()


COMMON = "commit"
"""The kind of most rows: in its column it is the empty text, and takes no space."""


def pack_kind(kind: str) -> str:
    """The kind of a row."""
    return "" if kind == COMMON else kind


def unpack_kind(stored: str) -> str:
    """The kind in a column."""
    return stored or COMMON


def pack_id(name: str) -> bytes | str:
    """An id: one of 32 hexadecimal digits in its 16 bytes, any other as it is."""
    if len(name) == 32:
        try:
            raw = bytes.fromhex(name)
        except ValueError:
            return name
        if raw.hex() == name:
            return raw
    return name


def unpack_id(stored: bytes | str) -> str:
    """The id of a column."""
    return stored if isinstance(stored, str) else stored.hex()


def pack_refs(refs: Sequence[str]) -> bytes | str | None:
    """The ids of blobs: 16 bytes each, or JSON if one of them is not like the others."""
    if not refs:
        return None
    packed = [pack_id(ref) for ref in refs]
    raw = [ref for ref in packed if isinstance(ref, bytes)]
    return b"".join(raw) if len(raw) == len(packed) else json.dumps(list(refs))


def unpack_refs(stored: bytes | str | None) -> tuple[str, ...]:
    """The ids of blobs in a column."""
    if stored is None:
        return ()
    if isinstance(stored, str):
        return tuple(json.loads(stored))
    return tuple(stored[start : start + 16].hex() for start in range(0, len(stored), 16))


def pack_points(points: Sequence[Point]) -> bytes | None:
    """Rows of runs."""
    return pack([[point.run, point.seq] for point in points]) if points else None


def unpack_points(stored: bytes | None) -> tuple[Point, ...]:
    """The rows of runs in a column."""
    return () if stored is None else tuple(Point(run, seq) for run, seq in json.loads(stored))


def unpack_point(run: bytes | str | None, seq: int | None) -> Point | None:
    """A row of a run in two columns."""
    return None if run is None or seq is None else Point(unpack_id(run), seq)


def unpack_owner(stored: str | None) -> Owner | None:
    """The owner in a column."""
    return None if stored is None else Owner(*json.loads(stored))


def unpack_content(data: bytes | None, refs: bytes | str | None) -> Content | None:
    """The content in two columns."""
    return None if data is None else Content.stored(data, unpack_refs(refs))


# --------------------------------------------------------------------------------------------------------------------
# Connections to one SQLite file: one for each thread and process, and the log of the file kept short.
#
# SQLite's log (the `-wal` file) is emptied into the file by a *checkpoint*. Whoever appends makes none: a thread of its
# own does, when the log is long. SQLite before 3.51.3 can lose a commit if a checkpoint begins while all of the log is
# in the file already and another connection commits in that moment. So the checkpoints of all processes run
# one after the other, and each writes first.

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

APPLICATION = 0x64737079
"""The application id in the file's header, by which a file is known as ours: the letters "dspy"."""

LOG_LIMIT = 2 * 1024 * 1024
"""Bytes of the log from which on it is emptied; appends go on meanwhile, so it becomes a little longer."""

KEPT_LOG = 3 * 1024 * 1024
"""Bytes of an emptied log that stay for the next entries."""

ERASING = 1.0
"""Seconds that a removal waits for readers before it leaves what it has removed in the log."""

COMMIT = 8 * 1024
"""Bytes that a commit adds to the log as a rule: two pages."""

logger = logging.getLogger("dspyer")


class ThreadConnection:
    """The connection of a thread, with the lock that keeps others from closing it while it works.

    Args:
        pool: where the connection comes from, and goes when the thread has ended.
    """

    __slots__ = ("__weakref__", "connection", "lock", "pool")

    def __init__(self, pool: Pool) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None
        self.pool = pool
        with pool.lock:
            pool.opened.add(self)

    def __del__(self) -> None:
        if self.connection is not None:
            self.pool.give_back(self.connection)


class Pool:
    """The open connections of a process to a file. Its lock is never held by somebody who waits for another one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.opened: weakref.WeakSet[ThreadConnection] = weakref.WeakSet()
        self._alive: set[sqlite3.Connection] = set()
        self._spare: sqlite3.Connection | None = None

    def take(self) -> sqlite3.Connection | None:
        """The connection of a thread that has ended, if one is left."""
        with self.lock:
            spare, self._spare = self._spare, None
        return spare

    def add(self, connection: sqlite3.Connection) -> None:
        """Notes a new connection."""
        with self.lock:
            self._alive.add(connection)

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Keeps a connection for the next thread, or closes it if there is one already."""
        with self.lock:
            if self._spare is None and connection in self._alive:
                self._spare = connection
            else:
                self._alive.discard(connection)
                connection.close()

    def close(self) -> None:
        """Closes all connections. The locks of all threads' connections are held."""
        with self.lock:
            for opened in list(self.opened):
                opened.connection = None
            self._spare = None
            while self._alive:
                self._alive.pop().close()

    def __del__(self) -> None:
        self.close()


class FileConnections:
    """All connections of this process to one file.

    Args:
        path: the file.
        connect: makes a connection, for any thread, that waits for no lock and begins no transaction by itself.
        patience: seconds that somebody waits for another connection's lock.
    """

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection], patience: float) -> None:
        self.path = path
        self.log = path.with_name(f"{path.name}-wal")
        self.closed = False
        self._connect = connect
        self._patience = patience
        self.start_anew()
        with _every:
            _ALL.add(self)

    def start_anew(self) -> None:
        """Forgets who held locks: in a new process nobody does."""
        self.local = threading.local()
        self.pool = Pool()
        self.writing = threading.Lock()
        self.checkpointing = threading.Lock()
        self._unsaved = 0
        self._written = False
        self._erasing = False

    def read(self, work: Work[T]) -> T:
        """What `work` returns, which only reads."""
        return self._patiently(work)

    def write(self, work: Work[T], flush: bool = False, size: int = 0) -> T:
        """What `work` returns, all of it in one transaction, which is kept if it raises nothing.

        Args:
            work: what is done.
            flush: whether it must be on the disk afterwards.
            size: bytes that it brings.
        """
        with self._alone():
            return self._patiently(lambda connection: self._transaction(connection, work, flush, size))

    def write_now(self, work: Work[object], flush: bool = False, size: int = 0) -> bool:
        """Does the same, unless it would have to wait for somebody: then False."""
        if not self.writing.acquire(blocking=False):
            return False
        try:
            opened = self._opened()
            with opened.lock:
                self._transaction(self._connection(opened), work, flush, size)
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return False
            raise
        finally:
            self.writing.release()
        return True

    def exclusively(self, work: Work[T]) -> T:
        """What `work` returns, which makes its own transaction; nobody else of this process writes meanwhile."""
        with self._alone():
            self._written = True
            return self._patiently(work)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other thread of this process writes."""
        if not self.writing.acquire(timeout=self._patience):
            raise StoreError(
                f"other threads of this process have been writing to {self.path} for {self._patience:g} s: nothing was "
                "written. See what holds them up, or allow more: SQLite(path, patience=...)"
            )
        try:
            yield
        finally:
            self.writing.release()

    def _grow(self, size: int) -> None:
        """Counts what went to the log; when it has become long, a thread begins to empty it."""
        self._unsaved += size
        if self._unsaved > LOG_LIMIT and self.checkpointing.acquire(blocking=False):
            self._unsaved = 0
            try:
                threading.Thread(target=self._empty_log, name="dspyer-checkpoint", daemon=True).start()
            except RuntimeError:  # the interpreter is about to end; closing empties the log
                self.checkpointing.release()

    def erase(self) -> bool:
        """Empties the log, with what was removed from the file, and says whether that was done.

        A reader that began before the removal needs the log. It is waited for, but not for long; then the next
        checkpoint empties the log.
        """
        with self.checkpointing:
            self._erasing = True
            for _ in _breaks(ERASING):
                with self._alone():
                    if self._checkpoint("TRUNCATE") and self._is_empty():
                        self._erasing = False
                        return True
        logger.warning(
            "what was removed from %s is still in its log, %s, since another program reads the file; it goes when the "
            "log is emptied next: vacuum() and close() do that",
            self.path,
            self.log.name,
        )
        return False

    def _is_empty(self) -> bool:
        """Whether the log is empty: another process may have been about to empty it, and have kept it."""
        try:
            return not self.log.stat().st_size
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Empties the log and closes the connections, each as soon as it rests."""
        if self.closed:
            return
        with self.checkpointing, self.writing:
            if self._written:
                self._checkpoint("TRUNCATE")
            self.closed = True
        with _at_rest([self.pool]):
            self.pool.close()

    def _patiently(self, action: Work[T]) -> T:
        """What `action` returns, done again as long as another connection holds the lock that it needs."""
        opened = self._opened()
        breaks = None
        while True:
            try:
                with opened.lock:
                    return action(self._connection(opened))
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                breaks = breaks or _breaks(self._patience)
                if not next(breaks, False):
                    error.add_note(
                        f"Another connection has held the lock of {self.path} for {self._patience:g} s. See which "
                        "process does (a tool that has the file open?), or allow more: SQLite(path, patience=...)."
                    )
                    raise

    def _transaction(self, connection: sqlite3.Connection, work: Work[T], flush: bool, size: int) -> T:
        if flush:
            connection.execute("PRAGMA synchronous=FULL")
        try:
            connection.execute("BEGIN IMMEDIATE")
            done = work(connection)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if flush:
                connection.execute("PRAGMA synchronous=NORMAL")
        self._written = True
        self._grow(COMMIT + size)
        return done

    def _empty_log(self) -> None:
        """Puts most of the log into the file while others append; then the rest, which is short, while they wait."""
        try:
            self._checkpoint("PASSIVE")
            for _ in _breaks(1.0):
                with self.writing:
                    if self._checkpoint("TRUNCATE" if self._erasing else "RESTART"):
                        self._erasing = self._erasing and not self._is_empty()
                        return
        except StoreClosedError:
            return
        except sqlite3.Error:
            logger.warning("the log of %s could not be emptied and goes on growing", self.path, exc_info=True)
        finally:
            self.checkpointing.release()

    def _checkpoint(self, mode: str) -> bool:
        """Whether the log is in the file, or another process is at it."""

        def work(connection: sqlite3.Connection) -> bool:
            with _locked(self.log) as alone:
                return not alone or checkpoint(connection, mode)

        return self._patiently(work)

    def _opened(self) -> ThreadConnection:
        """The place of this thread's connection."""
        opened: ThreadConnection | None = getattr(self.local, "opened", None)
        if opened is None:
            opened = self.local.opened = ThreadConnection(self.pool)
        return opened

    def _connection(self, opened: ThreadConnection) -> sqlite3.Connection:
        """The connection, made now if need be. Its lock is held."""
        if self.closed:
            raise StoreClosedError(
                f"the store {self.path} is closed: open it again with open_store({str(self.path)!r})"
            )
        if opened.connection is None:
            connection = self.pool.take()
            if connection is None:
                connection = self._connect()
                self.pool.add(connection)
            opened.connection = connection
        return opened.connection


class StoreClosedError(StoreError):
    """The store is closed."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds a lock."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY


def checkpoint(connection: sqlite3.Connection, mode: str) -> bool:
    """Puts the log into the file, as far as others let it, and says whether all of it is there."""
    try:
        connection.execute(f"PRAGMA application_id={APPLICATION}")  # something new for the log, see above
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return False
        raise
    busy, *_ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    return not busy


@contextmanager
def _locked(log: Path) -> Iterator[bool]:
    """Whether no other process empties the log. The lock is on the log itself, which SQLite never locks."""
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


def _breaks(patience: float) -> Iterator[bool]:
    """Longer and longer breaks, until somebody has waited long enough. The first comes at once."""
    end = time.monotonic() + patience
    pause = 0.0005
    while True:
        yield True
        if time.monotonic() > end:
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


@contextmanager
def _at_rest(pools: Sequence[Pool]) -> Iterator[None]:
    """While all connections rest, and nobody can begin with a new one.

    First the locks of the connections, then those of the pools: whoever works may need the lock of a pool for a moment.
    """
    with ExitStack() as stack:
        held: set[ThreadConnection] = set()
        while True:
            for pool in pools:
                with pool.lock:
                    opened = set(pool.opened)
                for one in opened - held:
                    stack.enter_context(one.lock)
                held |= opened
            with ExitStack() as inner:
                for pool in pools:
                    inner.enter_context(pool.lock)
                if all(one in held for pool in pools for one in pool.opened):
                    yield
                    return


_ALL: weakref.WeakSet[FileConnections] = weakref.WeakSet()
_every = threading.Lock()
_forking = ExitStack()


def _before_fork() -> None:
    """Closes every connection, as soon as it rests: what SQLite knows of its locks must not reach another process."""
    _every.acquire()
    pools = [connections.pool for connections in list(_ALL)]
    _forking.enter_context(_at_rest(pools))
    for pool in pools:
        pool.close()


def _after_fork_in_parent() -> None:
    _forking.close()
    _every.release()


def _after_fork_in_child() -> None:
    _forking.close()
    for connections in list(_ALL):
        connections.start_anew()
    _every.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
