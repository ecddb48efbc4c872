"""Tests of stores: many threads and processes at once, and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from threading import Barrier
from typing import Any

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, Point, Snapshot, Store
from dspyer.stores.content import blob_id
from dspyer.testing.store_reading import OpenStore, ReopenedData
from dspyer.testing.store_samples import BLOB, append, begin, blobs_of, content, copy, owner, row, rows

THREADS = 8
ROUNDS = 10
PROCESSES = 4


class Racing(ReopenedData):
    """Many at once: one wins, nothing is lost, nobody sees the half of a change."""

    def test_one_of_many_threads_gets_an_epoch(self, store: Store) -> None:
        """Each epoch goes to one claim; the others are refused, and leave nothing."""
        store.write(begin("t", "start", 1))
        for epoch in range(1, ROUNDS + 1):
            won = _race(store, [begin("t", f"{epoch}-{n}", 2, epoch=epoch) for n in range(THREADS)])
            assert sum(won) == 1, f"epoch {epoch} was given to {sum(won)} owners"
            winner = f"{epoch}-{won.index(True)}"
            thread = store.thread("t")
            assert thread is not None
            assert (thread.epoch, thread.head, thread.owner) == (epoch + 1, Point(winner, 1), owner(winner))
            assert thread.runs == epoch + 1
            there = [n for n in range(THREADS) if store.run(f"{epoch}-{n}") is not None]
            assert there == [won.index(True)], "a run that lost was begun"

    def test_one_of_many_threads_begins_a_thread(self, store: Store) -> None:
        """The same for a name that is free."""
        for number in range(ROUNDS):
            won = _race(store, [begin(f"t{number}", f"{number}-{n}", 1) for n in range(THREADS)])
            assert sum(won) == 1
            assert [run.id for run in store.runs(f"t{number}")] == [f"{number}-{won.index(True)}"]

    def test_one_of_many_threads_writes_a_row(self, store: Store) -> None:
        """Rows of one number with other contents: the first stays."""
        store.write(begin("t", "r", 1))
        for seq in range(1, ROUNDS + 1):
            won = _race(store, [append("t", "r", seq, value=f"{seq}-{n}") for n in range(THREADS)])
            assert sum(won) == 1, f"row {seq} was written {sum(won)} times"
            assert store.rows("r", seq) == [row(seq, f"{seq}-{won.index(True)}")]

    def test_many_threads_write_at_once(self, store: Store) -> None:
        """Each to a thread of its own: nothing is lost or mixed."""

        def work(number: int) -> None:
            store.write(begin(f"t{number}", f"r{number}", 1))
            for seq in range(1, 30):
                store.write(append(f"t{number}", f"r{number}", seq, value=[number, BLOB] if seq % 10 == 0 else number))

        _together(work)
        for number in range(THREADS):
            found = store.rows(f"r{number}")
            wanted = [row(seq, [number, BLOB] if seq % 10 == 0 else number) for seq in range(1, 30)]
            assert found == rows(1) + wanted
            assert _is_whole(store, f"r{number}")

    def test_many_threads_write_the_same_large_values(self, store: Store) -> None:
        """In another order each: nobody waits for ever, and all can be read."""
        texts = [BLOB + str(number) for number in range(6)]

        def work(number: int) -> None:
            for turn in range(4):
                values = [f"{turn} {text}" for text in (texts if number % 2 else reversed(texts))]
                store.write(begin(f"t{turn}-{number}", f"r{turn}-{number}", 1)._replace(rows=[row(0, values)]))

        _together(work)
        assert all(_is_whole(store, f"r{turn}-{number}") for turn in range(4) for number in range(THREADS))

    def test_nobody_sees_the_half_of_a_change(self, store: Store) -> None:
        """Rows that are written together are there together."""
        store.write(begin("t", "r", 2))

        def work(number: int) -> list[int]:
            if number:
                return [len(store.rows("r")) for _ in range(60)]
            for seq in range(2, 62, 2):
                store.write(append("t", "r", seq, 2))
            return []

        counts = [count for seen in _together(work, 3) for count in seen]
        assert not [count for count in counts if count % 2], "a change was seen when the half of it was written"

    def test_a_copy_while_its_source_is_removed(self, store: Store) -> None:
        """Either the copy comes first and keeps its rows, or it is refused."""
        for number in range(ROUNDS):
            name, run = f"t{number}", f"r{number}"
            store.write(begin(name, run, 3)._replace(rows=[row(seq, [seq, BLOB]) for seq in range(3)]))

            def work(who: int, name: str = name, run: str = run) -> bool:
                if who:
                    store.delete([name])
                    return True
                try:
                    store.write(copy(f"copy of {name}", Point(run, 1)))
                except ValueError:
                    return False
                return True

            copied = _together(work, 2)[0]
            thread = store.thread(f"copy of {name}")
            assert (thread is not None) == copied
            assert len(store.rows(run)) == (2 if copied else 0)
            assert _is_whole(store, run)

    def test_a_blob_is_written_while_its_last_use_is_removed(self, store: Store) -> None:
        """Whoever refers to it can read it."""
        store.write(begin("keeps", "k", 1))
        for number in range(1, ROUNDS + 1):
            store.write(begin("goes", f"g{number}", 1)._replace(rows=[row(0, BLOB + str(number))]))
            change = append("keeps", "k", number, value=BLOB + str(number))

            def work(who: int, change: Change = change) -> None:
                if who:
                    store.delete(["goes"])
                else:
                    store.write(change)

            _together(work, 2)
            assert _is_whole(store, "k"), "a row refers to a blob that was removed"

    def test_processes_at_once(self, store: Store) -> None:
        """Several processes count in one thread: each goes on from the last one, and nothing is lost."""
        opener = self.opener(store)
        if opener is None:
            return
        store.write(begin("t", "start", 1))
        with _children(opener, count_up, [(str(number),) for number in range(PROCESSES)]) as children:
            wins = [run for pipe, _ in children for run in pipe.recv()]
        assert len(wins) == len(set(wins)) == PROCESSES * ROUNDS
        thread = store.thread("t")
        assert thread is not None
        assert (thread.epoch, thread.runs) == (1 + len(wins), 1 + len(wins))
        at, chain = thread.head, []
        while at is not None and at.run != "start":
            chain.append(at.run)
            run = store.run(at.run)
            assert run is not None
            assert store.rows(at.run) == [row(0, f"{len(wins) - len(chain)}")]
            at = run.parents[0]
        assert sorted(chain) == sorted(wins), "a run was lost"

    def test_a_process_that_is_killed_after_each_write(self, store: Store) -> None:
        """What was reported is there, and nothing else is."""
        self._kill(store, write_and_die)

    def test_a_process_that_is_killed_in_each_write(self, store: Store) -> None:
        """What was reported is there; the change that it was at is there as a whole, or not at all."""
        self._kill(store, write_until_killed)

    def _kill(self, store: Store, job: Job) -> None:
        opener = self.opener(store)
        if opener is None or not hasattr(signal, "SIGKILL"):
            return
        numbers = range(len(changes("x")))
        with _children(opener, job, [(f"t{number}", number) for number in numbers]) as children:
            for number, (pipe, child) in zip(numbers, children, strict=True):
                assert pipe.recv() == number
                child.kill()
                child.join()
        with opener() as again:
            for reader in (store, again):
                for number in numbers:
                    before, after = (_expected(f"t{number}", count) for count in (number, number + 1))
                    seen = _seen(reader, f"t{number}")
                    assert seen == after or (seen == before and job is write_until_killed), f"write {number}"


Job = Callable[..., None]


def changes(name: str) -> list[Change]:
    """What a process writes that is killed: a change of every kind."""
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


def write_and_die(opener: OpenStore, pipe: Connection, name: str, last: int) -> None:
    """Writes, reports the last write and is gone."""
    store = opener()
    for change in changes(name)[: last + 1]:
        store.write(change)
    pipe.send(last)
    os.kill(os.getpid(), signal.SIGKILL)


def write_until_killed(opener: OpenStore, pipe: Connection, name: str, last: int) -> None:
    """Writes, and reports the last write when it begins."""
    store = opener()
    for change in changes(name)[:last]:
        store.write(change)
    pipe.send(last)
    store.write(changes(name)[last])


def count_up(opener: OpenStore, pipe: Connection, who: str) -> None:
    """Takes the thread over again and again; each run holds how many were before it."""
    store = opener()
    wins: list[str] = []
    while len(wins) < ROUNDS:
        thread = store.thread("t")
        assert thread is not None
        assert thread.head is not None
        run = f"{who}-{len(wins)}-{thread.epoch}"
        change = begin("t", run, 1, thread.head, epoch=thread.epoch)._replace(rows=[row(0, f"{thread.epoch - 1}")])
        if _wins(store, change):
            wins.append(run)
    pipe.send(wins)
    store.close()


def _wins(store: Store, change: Change) -> bool:
    try:
        store.write(change)
    except ConcurrentRunError:
        return False
    return True


def _race(store: Store, changes: Sequence[Change]) -> list[bool]:
    """Writes several changes at once; for each, whether it was written."""
    return _together(lambda number: _wins(store, changes[number]), len(changes))


def _is_whole(store: Store, run: str) -> bool:
    """Whether all blobs of a run's rows are there."""
    contents = [entry.content for entry in store.rows(run) if entry.content is not None]
    return all(set(found.refs) <= {blob_id(data) for data in blobs_of(store, found).values()} for found in contents)


def _expected(name: str, count: int) -> dict[str, Any]:
    """What is seen after a number of changes, as the changes say it."""
    seen: dict[str, Any] = {}
    for change in changes(name)[:count]:
        if change.run is not None:
            seen[change.run.id] = []
        if change.rows_of:
            seen[change.rows_of] = seen[change.rows_of] + [(entry.seq, entry.content) for entry in change.rows]
        if change.snapshot is not None:
            seen["snapshot"] = change.snapshot
        if change.thread:
            before = seen.get(change.thread, (0, None, False))
            owned = before[2] if change.lease is None else change.lease > 0
            seen[change.thread] = (change.next_epoch or change.epoch or 1, change.head or before[1], owned)
    return seen


def _seen(store: Store, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for thread in (store.thread(name), store.thread(f"{name} copy")):
        if thread is not None:
            found[thread.name] = (thread.epoch, thread.head, thread.owner is not None)
    for run in (f"{name}-r", f"{name}-s"):
        if store.run(run) is not None:
            found[run] = [(entry.seq, entry.content) for entry in store.rows(run)]
            assert _is_whole(store, run)
    snapshot = store.snapshot(Point(f"{name}-r", 99))
    return found if snapshot is None else {**found, "snapshot": snapshot}


def _together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Does something in several threads at once; what is raised in one of them is raised here."""
    barrier = Barrier(count)

    def start(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


@contextmanager
def _children(
    opener: OpenStore, job: Job, arguments: Sequence[tuple[Any, ...]]
) -> Iterator[list[tuple[Connection, BaseProcess]]]:
    """Processes that open the store and do a job; none of them is left at the end."""
    context = _context()
    children: list[tuple[Connection, BaseProcess]] = []
    try:
        for values in arguments:
            here, there = context.Pipe()
            child = context.Process(target=job, args=(opener, there, *values))  # type: ignore[attr-defined]
            child.start()
            there.close()
            children.append((here, child))
        yield children
    finally:
        for pipe, child in children:
            child.join(0 if child.exitcode is None else None)
            child.kill()
            child.join()
            pipe.close()


def _context() -> BaseContext:
    """Processes that share nothing with this one; where it can be, they are forked from one that has imported all."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
