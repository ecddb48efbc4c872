"""Concurrent work of the store tests: threads, child processes, processes that are killed, and the expected result."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Barrier
from typing import Any

from dspyer.errors import ConcurrentRunError
from dspyer.stores import Memory, Store
from dspyer.stores.base import Change, Point, Snapshot
from dspyer.stores.content import blob_id
from dspyer.testing.store_samples import BLOB, append, begin, blobs_of, content, dump, row, rows

THREADS = 8
ROUNDS = 10
PROCESSES = 4

OpenStore = Callable[[], Store]
Job = Callable[..., None]


def changes_of_every_kind(name: str) -> list[Change]:
    """The changes that a process writes before it is killed: one of every kind."""
    run, second = f"{name}-r", f"{name}-s"
    return [
        begin(name, run, 2),
        append(name, run, 2, 3),
        append(name, run, 5, value=[name, BLOB]),
        Change(name, 1, snapshot=Snapshot(Point(run, 5), content({"v": BLOB}))),
        append(name, run, 6)._replace(lease=0.0, flush=True),
        begin(name, second, 2, Point(run, 6), epoch=1),
        append(name, second, 2, 2, epoch=2)._replace(flush=True),
        Change(f"{name} copy", head=Point(second, 1)),
        Change(rows_of=second, rows=rows(2, 4)),
    ]


def write_then_die(opener: OpenStore, pipe: Connection, name: str, last: int) -> None:
    """Write, report the last write, and kill this process."""
    store = opener()
    for change in changes_of_every_kind(name)[: last + 1]:
        store.write(change)
    pipe.send(last)
    os.kill(os.getpid(), signal.SIGKILL)  # no cleanup runs: a buffered write would be lost


def write_until_killed(opener: OpenStore, pipe: Connection, name: str, last: int) -> None:
    """Write, and report the last write just before it: the parent kills this process meanwhile."""
    store = opener()
    for change in changes_of_every_kind(name)[:last]:
        store.write(change)
    pipe.send(last)
    store.write(changes_of_every_kind(name)[last])


def count_up(opener: OpenStore, pipe: Connection, name: str) -> None:
    """Claim the thread `ROUNDS` times; each run stores how many runs came before it."""
    store = opener()
    wins: list[str] = []
    while len(wins) < ROUNDS:
        thread = store.thread("t")
        assert thread is not None
        assert thread.head is not None
        run = f"{name}-{len(wins)}-{thread.epoch}"
        change = begin("t", run, 1, thread.head, epoch=thread.epoch)._replace(rows=[row(0, f"{thread.epoch - 1}")])
        if _succeeds(store, change):
            wins.append(run)
    pipe.send(wins)
    store.close()


def _succeeds(store: Store, change: Change) -> bool:
    try:
        store.write(change)
    except ConcurrentRunError:
        return False
    return True


def write_concurrently(store: Store, changes: Sequence[Change]) -> list[bool]:
    """Write several changes at once; return for each whether it was written."""
    return run_in_threads(lambda number: _succeeds(store, changes[number]), len(changes))


def has_all_blobs(store: Store, run: str) -> bool:
    """Return whether the store has all blobs that the rows of a run refer to."""
    # By content: a blob with the right id and other bytes is none of them.
    contents = [entry.content for entry in store.rows(run) if entry.content is not None]
    return all(set(found.refs) <= {blob_id(data) for data in blobs_of(store, found).values()} for found in contents)


def expected_after(name: str, count: int) -> dict[str, Any]:
    """Return what `read_back` finds in a store in memory after the first `count` changes."""
    store = Memory()
    for change in changes_of_every_kind(name)[:count]:
        store.write(change)
    return read_back(store, name)


def read_back(store: Store, name: str) -> dict[str, Any]:
    """Read the threads and runs of `changes_of_every_kind` from a store."""
    return {part: {one: found[one] for one in found if one.startswith(name)} for part, found in dump(store).items()}


def run_in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Run `work(0)`, `work(1)`, ... in threads that start together; the first exception is raised here."""
    # Without it the first thread has often ended before the last one begins, and nothing is concurrent.
    barrier = Barrier(count)

    def start(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


@contextmanager
def child_processes(
    opener: OpenStore, job: Job, arguments: Sequence[tuple[Any, ...]]
) -> Iterator[list[tuple[Connection, BaseProcess]]]:
    """Child processes that open the store and do a job, each with a pipe to it; none is left running at the end."""
    # They inherit no open store, and start in milliseconds: the fork server has imported this module already.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    children: list[tuple[Connection, BaseProcess]] = []
    try:
        for values in arguments:
            here, there = context.Pipe()
            child: BaseProcess = context.Process(target=job, args=(opener, there, *values))
            child.start()
            there.close()  # only the child may hold its end: recv() then raises EOFError if the child dies
            children.append((here, child))
        yield children
    finally:
        for pipe, child in children:
            # A child that has sent its result may still close its store; one that hangs is killed.
            child.join(0 if child.exitcode is None else None)
            child.kill()
            child.join()
            pipe.close()
