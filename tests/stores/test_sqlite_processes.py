"""An SQLite file and several processes: concurrent, killed and forked ones, and power failures."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dspyer.errors import ConcurrentRunError
from dspyer.stores import SQLite
from dspyer.stores.base import Change, Point
from tests.children import Child
from tests.stores.kit import append, begin, numbers, row, run

ROOT = Path(__file__).parent.parent.parent
NOBODY = 65534

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork() and signals")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


HEAD = "import os, sys; from tests.stores.kit import *; from dspyer.stores import SQLite\n"


def start(script: str, *arguments: object) -> Child:
    """A process that begins with the imports of these tests."""
    return Child(HEAD + script, *map(str, arguments), cwd=ROOT)


def finish(process: Child) -> None:
    err = process.stderr.read()
    assert process.wait() == 0, err


def write(store: SQLite, change: Change) -> None:
    store.write(change)


def in_child(work: Callable[[], None]) -> int:
    """The exit code of a forked process that does some work."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the child must end here
        os.write(2, repr(error).encode())
        os._exit(1)
    os._exit(0)


def heads_are_last_rows(store: SQLite) -> bool:
    for name in store.threads():
        thread = store.thread(name)
        assert thread is not None
        assert thread.head is not None
        assert numbers(store, thread.head.run) == list(range(thread.head.seq + 1))
    return True


def test_a_killed_process_loses_no_reported_write(path: Path) -> None:
    script = """
store = SQLite(sys.argv[1])
begin(store, "t", "r", 1)
for seq in range(1, 100_000):
    store.write(append("t", "r", seq))
    print(seq, flush=True)
"""
    process = start(script, path)
    for _ in range(100):
        seen = int(process.stdout.readline())
    process.kill()
    seen = max([seen, *(int(line) for line in process.stdout)])
    assert process.wait() == -signal.SIGKILL
    with SQLite(path) as store:
        assert len(numbers(store, "r")) in (seen + 1, seen + 2)
        assert heads_are_last_rows(store)


def test_a_process_killed_during_a_write_leaves_nothing_of_it(path: Path) -> None:
    """At its second row, each time that the store goes through the rows of the change."""
    script = """
import signal
class Rows(tuple):
    passes = 0
    def __iter__(self):
        Rows.passes += 1
        for number, row in enumerate(super().__iter__()):
            if number and Rows.passes == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            yield row
change = append("t", "r", 1)
change = change._replace(rows=Rows((change.rows[0], row(2))), head=Point("r", 2))
SQLite(sys.argv[1]).write(change)
"""
    with SQLite(path) as store:
        begin(store, "t", "r", 1)
    for passes in range(1, 20):
        process = start(script, path, passes)
        err, code = process.stderr.read(), process.wait()
        with SQLite(path) as store:
            if code == 0:
                assert numbers(store, "r") == [0, 1, 2]
                break
            assert code == -signal.SIGKILL, err
            assert numbers(store, "r") == [0]
    assert passes > 2  # packed, looked at and written: it was killed in the transaction too


def test_a_power_failure_keeps_flushed_writes_and_a_prefix_of_the_rest(path: Path) -> None:
    """The log is cut at many lengths behind the last flush; what is loaded is what some write had left behind."""
    log = Path(f"{path}-wal")
    with SQLite(path) as store:
        begin(store, "t", "r", 1)
        for seq in range(1, 6):
            store.write(append("t", "r", seq, flush=seq == 5))
        flushed = log.stat().st_size
        for seq in range(6, 12):
            store.write(append("t", "r", seq, "x" * 3_000 if seq % 2 else seq))
        begin(store, "t2", "r2", 1)
        whole, data = path.read_bytes(), log.read_bytes()
    cut = path.with_name("cut.db")
    lengths = {*range(flushed, len(data), 2_503), *range(32, len(data), 24 + 4096), len(data), len(data) - 1}
    found = set()
    for length in sorted(length for length in lengths if length >= flushed):
        for old in path.parent.glob("cut.db*"):
            old.unlink()
        cut.write_bytes(whole)
        Path(f"{cut}-wal").write_bytes(data[:length])
        with SQLite(cut) as store:
            assert heads_are_last_rows(store)
            kept = numbers(store, "r")
            assert kept == list(range(len(kept)))
            assert len(kept) >= 6
            found.add((len(kept), len(store.threads())))
            store.write(append("t", "r", len(kept)))
    assert found == {*((count, 1) for count in range(6, 13)), (12, 2)}


def test_concurrent_processes_lose_no_write(path: Path) -> None:
    """Each to its own thread, and all of them to one, taken by its epoch: nothing is lost."""
    script = """
from dspyer.errors import ConcurrentRunError
store, me = SQLite(sys.argv[1]), sys.argv[2]
begin(store, "own" + me, "own" + me, 1)
done = 0
while done < 100:
    if len(store.rows("own" + me)) == done + 1:
        store.write(append("own" + me, "own" + me, done + 1))
    thread = store.thread("t")
    new = {"epoch": thread.epoch, "next_epoch": thread.epoch + 1, "owner": OWNER._replace(token=me), "lease": 9.0}
    change = append("t", "r", thread.head.seq + 1, me, **new)
    try:
        store.write(change)
        done += 1
    except ConcurrentRunError:
        pass
store.close()
"""
    with SQLite(path) as store:
        begin(store, "t", "r", 1)
        for process in [start(script, path, number) for number in range(3)]:
            finish(process)
        assert numbers(store, "r") == list(range(301))
        wrote = [found.content.value(store.blobs) for found in store.rows("r", 1) if found.content]
        assert {who: wrote.count(who) for who in wrote} == {"0": 100, "1": 100, "2": 100}
        assert heads_are_last_rows(store)
        thread = store.thread("t")
        assert thread is not None
        assert thread.epoch == 301


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_while_another_thread_writes(path: Path) -> None:
    with SQLite(path) as store:
        begin(store, "t", "r", 1)
        begin(store, "child", "c", 1)
        stop, written = threading.Event(), threading.Event()
        count = 0

        def work() -> None:
            nonlocal count
            while not stop.is_set():
                count += 1
                store.write(append("t", "r", count))
                written.set()

        writer = threading.Thread(target=work)
        writer.start()
        try:
            for seq in range(1, 5):
                written.clear()
                assert written.wait(60)
                change = append("child", "c", seq)
                assert in_child(lambda change=change: write(store, change)) == 0  # type: ignore[misc]
        finally:
            stop.set()
            writer.join()
        assert numbers(store, "c") == list(range(5))
        assert numbers(store, "r") == list(range(count + 1))


def test_parent_and_child_close_independently(path: Path) -> None:
    """Each closes its own connections; neither deletes the log of the other."""
    store = SQLite(path)
    begin(store, "t", "r", 1)
    to_child, to_parent = os.pipe(), os.pipe()

    def work() -> None:
        store.write(append("t", "r", 1))
        os.write(to_parent[1], b"1")
        os.read(to_child[0], 1)
        store.write(append("t", "r", 2))
        os.write(to_parent[1], b"2")
        os.read(to_child[0], 1)
        store.close()

    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    os.read(to_parent[0], 1)
    store.close()
    os.write(to_child[1], b"1")
    os.read(to_parent[0], 1)
    with SQLite(path) as again:
        assert numbers(again, "r") == [0, 1, 2]
        os.write(to_child[1], b"2")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        again.write(append("t", "r", 3))
    for end in (*to_child, *to_parent):
        os.close(end)
    with SQLite(path) as again:
        assert numbers(again, "r") == [0, 1, 2, 3]
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_read_only_file_can_be_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "runs.db"
        with SQLite(path) as store:
            begin(store, "t", "r", 1)
        path.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)

        def work() -> None:
            if not os.getuid():
                os.setuid(NOBODY)
            store = SQLite(path)
            assert numbers(store, "r") == [0]
            with pytest.raises(sqlite3.OperationalError) as caught:
                store.write(append("t", "r", 1))
            assert "readonly" in str(caught.value)
            store.close()

        assert in_child(work) == 0
        path.chmod(0o600)
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir()


def test_a_replaced_owner_cannot_write(path: Path) -> None:
    with SQLite(path) as mine, SQLite(path) as yours:
        begin(mine, "t", "r", 1)
        yours.write(
            Change("t", 1, 2, run=run("s", "t", Point("r", 0)), rows_of="s", rows=(row(0),), head=Point("s", 0))
        )
        with pytest.raises(ConcurrentRunError):
            mine.write(append("t", "r", 1))
        assert numbers(mine, "r") == [0]


def test_a_process_ends_although_a_daemon_thread_is_ended_while_it_uses_a_connection(path: Path) -> None:
    """A node with a timeout runs in a daemon thread, which a real Python ends with the locks that it holds."""
    script = """
import threading, time
store = SQLite(sys.argv[1])
begin(store, "t", "r", 1)
inside = threading.Event()

def hold():
    store._connections.read(lambda _: inside.set() or time.sleep(1000))

threading.Thread(target=hold, daemon=True).start()
inside.wait()
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script, path], cwd=ROOT, capture_output=True, timeout=20, check=False
    )
    assert done.stdout == b"end\n"
