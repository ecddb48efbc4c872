"""The store in an SQLite file: what only it does. The promises of all stores are in the conformance suite.

Checkpoints, locks and versions of tables show only when a process dies or another one waits: this file looks at them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha512
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dspyer.errors import ConcurrentRunError, StoreError
from dspyer.log.journal import LEASE
from dspyer.stores import SQLite, sqlite
from dspyer.stores.base import Change, Point
from dspyer.stores.sql import PATIENCE
from dspyer.stores.sqlite import LOG_LIMIT, FileConnections, checkpoint
from dspyer.testing import clock
from tests.stores.kit import OWNER, append, begin, content, numbers, row, run, snapshot


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLite]:
    with SQLite(path) as opened:
        yield opened


def connections(store: SQLite) -> FileConnections:
    assert isinstance(store._connections, FileConnections)
    return store._connections


NAMES = ["größe 漢字 🙂", "a\0b", "it's; --", "0" * 32, "ab" * 16, "AB" * 16, "a" * 5_000]


def test_any_text_is_a_name(tmp_path: Path) -> None:
    long = content("🙂" * 20_000)
    for number, name in enumerate(NAMES):
        path = tmp_path / f"{number}.db"
        begun = run(name, name, Point(name, 0))
        rows = (row(0, name)._replace(kind=name), row(1)._replace(header={"id": [name]}, content=long))
        with SQLite(path) as store:
            store.write(Change(name, run=begun, rows_of=name, rows=rows, head=Point(name, 1)))
        with SQLite(path) as again:
            found = again.thread(name)
            assert found is not None
            assert (again.threads(), found.name, found.head, found.runs) == ([name], name, Point(name, 1), 1)
            assert again.run(name) == begun
            assert again.runs(name) == [begun]
            assert again.rows(name) == list(rows)
            kept = again.rows(name)[1].content
            assert kept is not None
            assert kept.value(again.blobs) == "🙂" * 20_000


def test_leases_expire_by_the_clock(path: Path) -> None:
    with clock() as time, SQLite(path) as store:
        store.write(Change("t", owner=OWNER, lease=30.0))
        time.advance(10)
        store.write(Change("t", 1, lease=30.0))  # renewed
        time.advance(35)
        thread = store.thread("t")
        assert thread is not None
        assert (thread.owner, round(thread.lease, 3)) == (OWNER, -5.0)
        store.write(Change("t", 1, lease=0.0))
        thread = store.thread("t")
        assert thread is not None
        assert (thread.owner, round(thread.lease, 3), thread.epoch) == (None, 0.0, 1)


def test_a_failed_write_is_rolled_back(store: SQLite) -> None:
    begin(store, "t", "r", 2)
    for change in (
        Change("t", 1, run=run("s", "t"), rows_of="s", rows=(row(1),)),
        Change("t", 1, run=run("s", "t"), rows_of="s", rows=(row(0),), head=Point("nowhere", 1)),
        Change("t", 1, run=run("s", "t"), snapshot=snapshot("nowhere", 1)),
    ):
        with pytest.raises(ValueError):
            store.write(change)
        assert store.run("s") is None
    with pytest.raises(ConcurrentRunError):
        store.write(append("t", "r", 2, epoch=3))
    thread = store.thread("t")
    assert thread is not None
    assert (thread.head, thread.runs, numbers(store, "r")) == (Point("r", 1), 1, [0, 1])


def test_writers_do_not_wait_for_readers(store: SQLite, path: Path) -> None:
    begin(store, "t", "r", 1)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM entry").fetchone() == (1,)
    store.write(append("t", "r", 1))
    assert store.write_now(append("t", "r", 2))
    assert reader.execute("SELECT count(*) FROM entry").fetchone() == (1,)
    reader.close()
    assert numbers(store, "r") == [0, 1, 2]


def test_write_now_does_not_wait(store: SQLite, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(store, "t", "r", 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    breaks: list[float] = []

    def rest(seconds: float) -> None:
        breaks.append(seconds)
        if len(breaks) == 3:
            other.execute("COMMIT")

    monkeypatch.setattr(time, "sleep", rest)
    assert store.write_now(append("t", "r", 1)) is False
    assert (breaks, numbers(store, "r")) == ([], [0])
    store.write(append("t", "r", 1))
    assert len(breaks) == 3
    assert store.write_now(append("t", "r", 2))
    with connections(store).write_lock:  # a thread of this process is about to write
        assert store.write_now(append("t", "r", 3)) is False
    other.close()
    assert numbers(store, "r") == [0, 1, 2]


def test_a_lock_held_too_long_is_an_error_with_advice(path: Path) -> None:
    with SQLite(path, patience=0.01) as store:
        begin(store, "t", "r", 1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            store.write(append("t", "r", 1))
        assert "patience=" in "".join(caught.value.__notes__)
        other.close()
        store.write(append("t", "r", 1))


def test_a_thread_that_writes_too_long_is_an_error(path: Path) -> None:
    with SQLite(path, patience=0.01) as store:
        begin(store, "t", "r", 1)
        with connections(store).write_lock, pytest.raises(StoreError, match=r"other threads .* patience="):
            store.write(append("t", "r", 1))
        store.write(append("t", "r", 1))


def test_waiting_ends_before_a_lease_expires() -> None:
    assert PATIENCE <= LEASE / 2


def test_each_call_has_a_connection(store: SQLite) -> None:
    """Of its own while it works; then another call has it."""
    begin(store, "t", "r", 1)
    barrier = threading.Barrier(3, timeout=60)

    def work(connection: sqlite3.Connection) -> sqlite3.Connection:
        barrier.wait()
        return connection

    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            assert len(set(pool.map(connections(store).read, [work] * 3))) == 3
            assert len(connections(store).connections) == 3


def test_concurrent_threads_write(store: SQLite) -> None:
    begin(store, "t", "r", 1)

    def work(number: int) -> None:
        begin(store, f"t{number}", f"r{number}", 1)
        for seq in range(1, 50):
            store.write(append(f"t{number}", f"r{number}", seq))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert [numbers(store, f"r{number}") for number in range(4)] == [list(range(50))] * 4


def test_flush_sets_full_synchronous_mode(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection says what SQLite does at a commit: 2 flushes, 1 does not."""
    levels: list[int] = []
    connect = sqlite3.connect

    def watched(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(
            lambda text: (
                levels.append(*connection.execute("PRAGMA synchronous").fetchone()) if text == "COMMIT" else None
            )
        )
        return connection

    monkeypatch.setattr(sqlite3, "connect", watched)
    with SQLite(path) as store:
        begin(store, "t", "r", 1)
        levels.clear()
        for seq, flush in ((1, False), (3, True)):
            store.write(append("t", "r", seq, flush=flush))
            assert store.write_now(append("t", "r", seq + 1, flush=flush))
    assert levels[:4] == [1, 1, 2, 2]
    with pickle.loads(pickle.dumps(SQLite(path, flush=True))) as store:
        levels.clear()
        store.write(append("t", "r", 5))
        assert store.write_now(append("t", "r", 6))
    assert levels[:2] == [2, 2]


def big(seq: int) -> Change:
    return append("t", "r", seq, f"{seq:06}" * 60_000)


def log_size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


LONGEST = 2 * LOG_LIMIT
"""Bytes of a log at most: SQLite's log has twice the size of the limit once a commit follows one that was too long."""


@pytest.mark.parametrize("by_itself", [False, True], ids=["here", "by SQLite"])
def test_the_commit_that_makes_the_log_too_long_empties_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, by_itself: bool
) -> None:
    """SQLite itself does so from 3.51.3 on; the one that runs here may do it for a single process."""
    monkeypatch.setattr(sqlite, "CHECKPOINTS_ITSELF", by_itself)
    with SQLite(path) as store:
        begin(store, "t", "r", 1)
        sizes = []
        for seq in range(1, 41):  # 14 MB
            assert store.write_now(big(seq)) if seq % 2 else store.write(big(seq))
            sizes.append(log_size(path))
        assert max(sizes) <= LONGEST
        assert path.stat().st_size > 10_000_000
    assert not Path(f"{path}-wal").exists()
    with SQLite(path) as again:
        assert numbers(again, "r") == list(range(41))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork() and signals")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_log_that_killed_processes_left_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was killed before it had written much: who finds the log counts all of it, SQLite itself too."""
    for by_itself in (False, True):
        monkeypatch.setattr(sqlite, "CHECKPOINTS_ITSELF", by_itself)
        path, left = tmp_path / f"{by_itself}.db", []
        for number in range(3):
            child = os.fork()
            if not child:
                with contextlib.suppress(BaseException):
                    store = SQLite(path)
                    begin(store, f"t{number}", f"r{number}", 1)
                    for seq in range(1, 4):
                        store.write(append(f"t{number}", f"r{number}", seq, f"{number:03}{seq:03}" * 60_000))
                    os.kill(os.getpid(), signal.SIGKILL)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
            left.append(log_size(path))
        assert left[-1] > LOG_LIMIT / 4
        assert max(left) <= LONGEST
        with SQLite(path) as store:
            begin(store, "t", "r", 1)
            for seq in range(1, 2 + LOG_LIMIT // 360_000):
                store.write(append("t", "r", seq, f"t{seq:05}" * 60_000))
            assert log_size(path) <= LONGEST
            assert [numbers(store, f"r{number}") for number in range(3)] == [list(range(4))] * 3


def test_a_log_that_a_reader_needs_is_emptied_once_it_has_ended(store: SQLite, path: Path) -> None:
    begin(store, "t", "r", 1)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM entry").fetchone() == (1,)
    tried: list[int] = []
    connections(store).write(
        lambda connection: connection.set_trace_callback(
            lambda text: tried.append(log_size(path)) if "wal_checkpoint" in text else None
        )
    )
    for seq in range(1, 21):
        store.write(big(seq))
    assert log_size(path) > LONGEST
    assert reader.execute("SELECT count(*) FROM entry").fetchone() == (1,)
    assert all(later - earlier > LOG_LIMIT / 4 for earlier, later in pairwise(tried))  # not at each commit
    assert len(tried) > 3
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM entry").fetchone() == (21,)
    reader.close()
    for seq in range(21, 24):
        store.write(big(seq))
    assert log_size(path) <= LOG_LIMIT


def test_a_checkpoint_that_fails_is_told_and_leaves_the_commit(
    store: SQLite, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    begin(store, "t", "r", 1)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "checkpoint", full)
        for seq in range(1, 8):
            assert store.write_now(big(seq))
    assert "could not be emptied" in caplog.text
    assert numbers(store, "r") == list(range(8))
    store.write(append("t", "r", 8, "x" * LOG_LIMIT))
    assert log_size(path) == 0


def test_checkpoints_of_processes_exclude_each_other(
    store: SQLite, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process has the lock, no checkpoint runs."""
    begin(store, "t", "r", 1)
    done: list[sqlite3.Connection] = []
    monkeypatch.setattr(sqlite, "checkpoint", done.append)
    monkeypatch.setattr(sqlite, "ERASE_PATIENCE", 0.0)
    with sqlite._lock_checkpoints(Path(f"{path}-wal")) as alone:
        assert alone
        connections(store).erase()
        assert done == []
    connections(store).erase()
    assert len(done) == 1


def test_a_checkpoint_writes_first(store: SQLite, path: Path) -> None:
    begin(store, "t", "r", 1)
    connection = sqlite3.connect(path, isolation_level=None)
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    checkpoint(connection)
    assert [text.split("=")[0] for text in seen] == ["PRAGMA application_id", "PRAGMA wal_checkpoint(TRUNCATE)"]
    assert log_size(path) == 0
    connection.close()


def test_sqlite_checkpoints_itself_where_it_is_safe(store: SQLite) -> None:
    (pages,) = connections(store).write(lambda connection: connection.execute("PRAGMA wal_autocheckpoint").fetchone())
    assert pages == (512 if sqlite3.sqlite_version_info >= (3, 51, 3) else 0)


def test_close_removes_the_log(store: SQLite, path: Path) -> None:
    begin(store, "t", "r", 1)
    assert Path(f"{path}-wal").exists()
    store.close()
    store.close()
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    with pytest.raises(StoreError) as caught:
        store.threads()
    assert "open_store(" in str(caught.value)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_removed_or_replaced_file_is_an_error(tmp_path: Path, replaced: bool) -> None:
    """On an open connection, and on a new one."""
    for elsewhere in (False, True):
        path = tmp_path / str(elsewhere) / "runs.db"
        path.parent.mkdir()
        store = SQLite(path)
        begin(store, "t", "r", 1)
        change = append("t", "r", 1, flush=True)
        for file in path.parent.iterdir():
            file.rename(tmp_path / f"moved-{elsewhere}-{file.name}")
        if replaced:
            with SQLite(path) as other:
                begin(other, "t", "r2", 1)
        names = sorted(file.name for file in path.parent.iterdir())
        with ThreadPoolExecutor() as pool:
            call = pool.submit(store.write, change) if elsewhere else None
            with pytest.raises(StoreError, match="is another file than before" if replaced else "was removed"):
                call.result() if call else store.write(change)
        assert sorted(file.name for file in path.parent.iterdir()) == names, elsewhere


def test_close_empties_the_log_of_an_open_file(store: SQLite, path: Path) -> None:
    with SQLite(path) as other:
        begin(other, "t", "r", 1)
        begin(store, "t2", "r2", 1)
        store.close()
        assert Path(f"{path}-wal").stat().st_size == 0
        assert other.threads() == ["t", "t2"]


def test_vacuum_shrinks_the_file(store: SQLite, path: Path) -> None:
    begin(store, "t", "r", 1)
    for seq in range(1, 10):
        store.write(big(seq))
    connections(store).erase()
    before = path.stat().st_size
    assert store.delete(["t"]).rows == 10
    store.vacuum()
    assert path.stat().st_size < before / 20


SECRET = " ".join(sha512(bytes([number])).hexdigest() for number in range(3))
"""A text that is still unlike any other one when it is compressed."""

BODIES = "SELECT body FROM entry UNION ALL SELECT body FROM snapshot UNION ALL SELECT body FROM blob"


def bodies(path: Path) -> set[bytes]:
    """The middle of each body in a store, where a secret shows."""
    connection = sqlite3.connect(path)
    found = {body[len(body) // 2 :][:24] for (body,) in connection.execute(BODIES)}
    connection.close()
    return found


def traces(path: Path, secrets: set[bytes]) -> dict[str, int]:
    """How often secrets are in each of the files of a store."""
    files = {found.name: found.read_bytes() for found in sorted(path.parent.iterdir())}
    return {name: sum(data.count(secret) for secret in secrets) for name, data in files.items()}


@pytest.mark.parametrize("how", ["delete", "delete_unreachable"])
def test_deleted_values_are_erased_from_file_and_log(tmp_path: Path, how: str) -> None:
    """They are neither in the log nor in free pages of the file: small ones, ones of a page, and blobs."""
    for length in (1, 100, 30_000):
        path = tmp_path / str(length) / "runs.db"
        path.parent.mkdir()
        text = SECRET + " again" * length
        with SQLite(path) as store:
            head = begin(store, "t", "r", 2)
            before = bodies(path)
            store.write(append("t", "r", 2, text))
            store.write(Change("t", 1, snapshot=snapshot("r", 2, text)))
            secrets = bodies(path) - before
            begin(store, "u", "s", 1)
            assert sum(traces(path, secrets).values()) >= 2, length
            if how == "delete":
                assert store.delete(["t"]).erased, length
            else:
                begin(store, "t", "again", 1, head, epoch=1)
                assert store.delete_unreachable("t").erased, length
            assert not sum(traces(path, secrets).values()), traces(path, secrets)


def test_a_reader_delays_the_erasure_of_the_log(
    store: SQLite, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The report and a warning say so; the log is emptied once the reader has ended."""
    monkeypatch.setattr(sqlite, "ERASE_PATIENCE", 0.0)
    begin(store, "t", "r", 2)
    before = bodies(path)
    store.write(append("t", "r", 2, SECRET))
    secrets = bodies(path) - before
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM entry").fetchall()
    assert store.delete(["t"]).erased is False
    assert "still in its log" in caplog.text
    assert sum(traces(path, secrets).values())
    reader.close()
    store.vacuum()
    assert not sum(traces(path, secrets).values())


def test_vacuum_erases_copies_of_moved_rows(store: SQLite, path: Path) -> None:
    """SQLite moves rows to other pages when they become full, and leaves what was there."""
    for number in range(12):
        begin(store, f"t{number}", f"r{number}", 1)
    for seq in range(1, 40):
        for number in range(12):
            text = "x" * (37 * seq * (number + 1) % 900) + f"{seq}{number}{SECRET * (number % 3 == 0)}"
            store.write(append(f"t{number}", f"r{number}", seq, text))
    before = bodies(path)
    store.delete([f"t{number}" for number in range(0, 12, 3)])
    secrets = before - bodies(path)
    assert len(secrets) > 39
    store.vacuum()
    assert not sum(traces(path, secrets).values())
    assert all(len(store.rows(f"r{number}")) == 40 for number in (1, 2, 4))


def test_a_pickle_opens_the_same_file(store: SQLite) -> None:
    begin(store, "t", "r", 1)
    again = pickle.loads(pickle.dumps(store))
    assert isinstance(again, SQLite)
    assert (again.address, again.threads()) == (store.address, ["t"])
    again.close()


def foreign(path: Path, mode: str) -> None:
    other = sqlite3.connect(path)
    other.execute(f"PRAGMA journal_mode={mode}")
    other.execute("CREATE TABLE cats (name)")
    other.commit()
    other.close()


def of_version(path: Path, version: int) -> None:
    with SQLite(path) as made:
        begin(made, "t", "r", 1)
    other = sqlite3.connect(path)
    other.execute("UPDATE version SET number = ?", (version,))
    other.commit()
    other.close()


def of_an_earlier_format(path: Path) -> None:
    """The version was in the header of the file."""
    of_version(path, 3)
    other = sqlite3.connect(path)
    other.execute("DROP TABLE version")
    other.execute("PRAGMA user_version=3")
    other.close()


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another file": (lambda path: path.write_bytes(b"cats and dogs" * 1000), "is no SQLite file"),
    "a short file": (lambda path: path.write_bytes(b"cat"), "is no SQLite file"),
    "another's tables": (lambda path: foreign(path, "DELETE"), "is no store of dspyer"),
    "with a log": (lambda path: foreign(path, "WAL"), "is no store of dspyer"),
    "a later version": (lambda path: of_version(path, 99), "has version 99, and this dspyer knows version 6"),
    "an earlier version": (of_an_earlier_format, "has version 3, and this dspyer knows version 6"),
    "a folder": (lambda path: path.mkdir(), "is a folder"),
}


def test_other_files_are_refused_unchanged(tmp_path: Path) -> None:
    for name, (make, words) in OTHERS.items():
        path = tmp_path / name / "runs.db"
        path.parent.mkdir()
        make(path)
        before = path.read_bytes() if path.is_file() else b""
        store = SQLite(path)
        for _ in range(2):
            with pytest.raises(StoreError) as caught:
                begin(store, "t", "r", 1)
            assert words in str(caught.value), name
            assert str(path) in str(caught.value), name
        store.close()
        assert (path.read_bytes() if path.is_file() else b"") == before, name


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        SQLite(tmp_path / "none" / "runs.db").threads()
    assert f"no folder {str(tmp_path / 'none')!r}" in str(caught.value)


def test_the_first_write_creates_the_file(store: SQLite, path: Path) -> None:
    assert (store.threads(), store.thread("t"), store.rows("r"), list(path.parent.iterdir())) == ([], None, [], [])
    with SQLite(path) as other:
        begin(other, "t", "r", 1)
        assert store.threads() == ["t"]


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with SQLite(path) as store:
        begin(store, "t", "r", 1)


def test_tables_that_cannot_be_made_are_rolled_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "TABLES", f"{sqlite.TABLES}; CREATE TABLE thread (name)")
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            begin(SQLite(path), "t", "r", 1)
    with SQLite(path) as store:
        begin(store, "t", "r", 1)
        assert numbers(store, "r") == [0]


MOUNTS = [
    ("/dev/a / ext4 rw 0 0\nserver:/x {folder} nfs4 rw 0 0\n", "nfs4"),
    ("/dev/a / ext4 rw 0 0\nserver:/x {folder} nfs4 rw 0 0\n/dev/b {folder}/sub xfs rw 0 0\n", "nfs4"),
    ("server / nfs rw 0 0\n/dev/b {folder} ext4 rw 0 0\n", "ext4"),
    ("/dev/a / ext4 rw 0 0\nserver:/x {folder}x nfs4 rw 0 0\n", "ext4"),
]


def test_network_file_systems_are_recognized(path: Path) -> None:
    listed = path.with_name("mounts")
    for mounts, kind in MOUNTS:
        listed.write_text(mounts.format(folder=str(path.parent).replace(" ", "\\040")))
        assert sqlite.file_system(path, listed) == kind, mounts
        if kind in sqlite.NETWORK_FILE_SYSTEMS:
            with pytest.raises(StoreError) as caught:
                sqlite.check_path(path, listed)
            assert f"network file system ({kind})" in str(caught.value)
        else:
            sqlite.check_path(path, listed)


def test_systems_without_a_mount_list(path: Path) -> None:
    assert sqlite.file_system(path, path / "none") == ""


def test_the_file_is_small(path: Path) -> None:
    with SQLite(path) as store:
        begin(store, "t", "0" * 15 + "a", 1)
        for seq in range(1, 2_000):
            store.write(append("t", "0" * 15 + "a", seq, {"role": "user", "content": f"{seq:064}"}))
    assert path.stat().st_size <= 1.65 * 2_000 * len(content({"role": "user", "content": "0" * 64}).data)


def test_two_processes_create_the_file_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite3.connect(path).execute("PRAGMA journal_mode=WAL").connection.close()
    assert path.stat().st_size
    is_store = sqlite.is_store

    def slow(connection: sqlite3.Connection, path: Path) -> bool:
        monkeypatch.setattr(sqlite, "is_store", is_store)
        found = is_store(connection, path)
        with SQLite(path) as other:
            begin(other, "t", "r", 1)
        return found

    monkeypatch.setattr(sqlite, "is_store", slow)
    with SQLite(path) as store:
        assert store.threads() == ["t"]


def test_a_process_killed_while_it_made_the_file_does_not_lock_others_out(path: Path, tmp_path: Path) -> None:
    """The rollback journal that it leaves can only be undone by a connection that may write."""
    made = tmp_path / "made.db"
    dying = sqlite3.connect(made, isolation_level=None)
    dying.execute("PRAGMA cache_size=1")  # pages go to the file before the transaction ends
    dying.execute("CREATE TABLE first (v)")
    dying.execute("DROP TABLE first")
    dying.execute("BEGIN IMMEDIATE")
    dying.execute("CREATE TABLE cats (name)")
    dying.executemany("INSERT INTO cats VALUES (?)", [("x" * 3_000,)] * 100)
    for ending in ("", "-journal"):  # what is on the disk when the process is killed now
        shutil.copy(f"{made}{ending}", f"{path}{ending}")
    dying.close()
    with SQLite(path) as store:
        begin(store, "t", "r", 1)
        assert store.threads() == ["t"]


def test_a_read_only_store_opens_its_file_again_only_if_it_has_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*args: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*args, **options))
        return made[-1]

    with SQLite(path) as writer:
        begin(writer, "t", "r", 1)
    store = SQLite(path, read_only=True)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", noted)
        assert [numbers(store, "r") for _ in range(10)] == [[0]] * 10
    assert len(made) == 1
    with SQLite(path) as writer:
        writer.write(append("t", "r", 1))
        assert numbers(store, "r") == [0, 1]  # from the log
    assert numbers(store, "r") == [0, 1]
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", noted)
        path.with_name("new").write_bytes(path.read_bytes())
        path.with_name("new").replace(path)
        assert numbers(store, "r") == [0, 1]
    store.close()
    for connection in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
