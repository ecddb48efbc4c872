"""Stores that each break one promise, to show that the conformance tests notice."""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import Barrier, Event
from typing import Any

from dspyer.errors import ConcurrentRunError
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import (
    Change,
    DeletionReport,
    ListedRun,
    Point,
    Row,
    RunQuery,
    RunRow,
    Snapshot,
    ThreadRow,
    never,
)
from tests.stores.kit import Content

THREADS = 8  # of the test that it must fail


class LosesTheLastOfManyRows(Memory):
    def write(self, change: Change) -> int:
        return super().write(change._replace(rows=change.rows[:1]))


class ChecksBeforeItLocks(Memory):
    """Every thread finds the epoch right before the first of them writes."""

    def __init__(self) -> None:
        super().__init__()
        self.checked = Barrier(THREADS)

    def write(self, change: Change) -> int:
        if change.next_epoch is not None and change.epoch:
            if self._threads[change.thread].epoch != change.epoch:
                raise ConcurrentRunError(change.thread)
            self.checked.wait()
            with self._lock:
                found = self._threads[change.thread]
                return super().write(change._replace(epoch=found.epoch, next_epoch=found.epoch + 1))
        return super().write(change)


class ShowsPartOfAChange(Memory):
    """A reader comes between the rows of a change."""

    def __init__(self) -> None:
        super().__init__()
        self.half, self.seen = Event(), Event()

    def write(self, change: Change) -> int:
        if change.run is None:
            super().write(change._replace(rows=change.rows[:1], head=None))
            self.half.set()
            self.seen.wait()
        return super().write(change)

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        self.half.wait()
        found = super().rows(run, first, last)
        self.seen.set()
        return found


class IgnoresEpochs(Memory):
    def write(self, change: Change) -> int:
        found = self._threads.get(change.thread)
        if found is not None and change.next_epoch is None:
            change = change._replace(epoch=found.epoch)
        return super().write(change)


class CreatesAThreadTwice(Memory):
    def write(self, change: Change) -> int:
        found = self._threads.get(change.thread)
        if found is not None and change.epoch == 0:
            change = change._replace(epoch=found.epoch)
        return super().write(change)


class WritesRowByRow(Memory):
    """A change that is refused at its last row has written those before."""

    def write(self, change: Change) -> int:
        for end in range(1, len(change.rows)):
            super().write(change._replace(rows=change.rows[:end], head=None, next_epoch=None, snapshot=None))
            change = change._replace(run=None, epoch=change.epoch or 1, next_epoch=None)
        return super().write(change)


class KeepsBlobsOfRefusedChanges(Memory):
    def write(self, change: Change) -> int:
        for row in change.rows:
            if row.content is not None:
                self._blobs.update(row.content.blobs)
        return super().write(change)


class ReturnsItsOwnLists(Memory):
    def run(self, run: str) -> RunRow | None:
        return self._runs.get(run)


class KeepsWhatItWasGiven(Memory):
    def write(self, change: Change) -> int:
        epoch = super().write(change)
        for row in change.rows:
            self._rows[change.rows_of][row.seq] = row
        return epoch


class CountsARunTwice(Memory):
    """Counts a run again when it is written again."""

    def write(self, change: Change) -> int:
        epoch = super().write(change)
        if change.run is not None and change.thread:
            thread = self._threads[change.thread]
            self._threads[change.thread] = thread._replace(runs=thread.runs + 1)
        return epoch


class RefusesRepetition(Memory):
    def write(self, change: Change) -> int:
        if change.rows and change.rows[0].seq in self._rows.get(change.rows_of, ()):
            raise ConcurrentRunError(change.rows_of)
        return super().write(change)


class OverwritesRows(Memory):
    def write(self, change: Change) -> int:
        there = self._rows.get(change.rows_of, {})
        for row in change.rows:
            if row.seq in there:
                there[row.seq] = row
        return super().write(change)


class LeavesGaps(Memory):
    def write(self, change: Change) -> int:
        there = self._rows.get(change.rows_of)
        if there is not None and change.rows and change.rows[0].seq > len(there):
            there.update({row.seq: row for row in change.rows})
            return change.epoch
        return super().write(change)


class TurnsTuplesIntoLists(Memory):
    """As JSON libraries do that know no tuples."""

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        return [
            row._replace(content=row.content and Content.stored(row.content.data.replace(b'"tuple"', b'"list"')))
            for row in super().rows(run, first, last)
        ]


class LosesBlobs(Memory):
    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        return [
            row._replace(content=row.content and Content.stored(row.content.data, row.content.refs))
            for row in super().rows(run, first, last)
        ]

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        return {}


class TruncatesNames(Memory):
    def write(self, change: Change) -> int:
        return super().write(change._replace(thread=change.thread.partition("\x00")[0]))


class SortsByCase(Memory):
    def threads(self, after: str = "", limit: int | None = None, idle: float | None = None) -> list[str]:
        return sorted(super().threads(after, limit), key=str.lower)


class RepeatsTheLastName(Memory):
    """A page begins with the name that it should come after."""

    def threads(self, after: str = "", limit: int | None = None, idle: float | None = None) -> list[str]:
        there = [after] if after and self.thread(after) is not None else []
        return [*there, *super().threads(after)][:limit]


class NeedsThePageBefore(Memory):
    """A page comes after a thread, but not after a name that no thread has."""

    def threads(self, after: str = "", limit: int | None = None, idle: float | None = None) -> list[str]:
        names = super().threads()
        return names[names.index(after) + 1 if after in names else 0 :][:limit]


class ForgetsTheSecondParent(Memory):
    def run(self, run: str) -> RunRow | None:
        found = super().run(run)
        return found and found._replace(parents=found.parents[:1])


class SortsRuns(Memory):
    def runs(self, thread: str) -> list[RunRow]:
        return sorted(super().runs(thread))


class OmitsTheLastRow(Memory):
    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        return super().rows(run, first, None if last is None else last - 1)


class FindsLaterSnapshots(Memory):
    def snapshot(self, at: Point) -> Snapshot | None:
        return super().snapshot(Point(at.run, at.seq + 1))


class DropsSnapshotsAtRoots(Memory):
    def drop_snapshots(self) -> None:
        for found in self._snapshots.values():
            found.clear()


class KeepsOwners(Memory):
    """A release that changes nothing."""

    def write(self, change: Change) -> int:
        return super().write(change._replace(lease=change.lease or None))


class LeasesForEver(Memory):
    def thread(self, name: str) -> ThreadRow | None:
        found = super().thread(name)
        return found and found._replace(lease=1_000.0 if found.owner else 0.0)


class DeletesRowsOfCopies(Memory):
    def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
        own = [run.id for name in threads for run in self.runs(name)]
        swept = super().delete(threads, busy)
        for run in own:
            self._rows.get(run, {}).clear()
        return swept


class DeletesNoRows(Memory):
    def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
        for name in threads:
            self._threads.pop(name, None)
        return DeletionReport(tuple(threads), 0, 0, {})


class DeletesNothingUnreachable(Memory):
    def delete_unreachable(self, thread: str) -> DeletionReport:
        return DeletionReport((), 0, 0, {})


class RestartsEpochs(Memory):
    """A thread that is made again begins with the epoch with which every thread begins."""

    def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
        swept = super().delete(threads, busy)
        self._max_deleted_epoch = 0
        return swept


class DeletesBusyThreads(Memory):
    def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
        return super().delete(threads)


class ReturnsTheEpochBefore(Memory):
    def write(self, change: Change) -> int:
        super().write(change)
        return change.epoch


class IgnoresRunsElsewhere(Memory):
    def write(self, change: Change) -> int:
        return super().write(change._replace(runs=0))


class KeepsBlobs(Memory):
    def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
        before = dict(self._blobs)
        swept = super().delete(threads, busy)
        self._blobs.update(before)
        return swept


class DeletesBlobsInUse(Memory):
    def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
        swept = super().delete(threads, busy)
        if threads:
            for rows in self._rows.values():
                for seq, row in rows.items():
                    if row.content is not None and row.content.refs:
                        rows[seq] = row._replace(content=Content.stored(row.content.data, row.content.refs))
            self._blobs.clear()
        return swept


class LosesWhatIsNotFlushed(SQLite):
    """Keeps changes to itself until one says `flush`."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(path, **options)
        self.waiting: list[Change] = []

    def write(self, change: Change) -> int:
        self.waiting.append(change)
        while change.flush and self.waiting:
            super().write(self.waiting.pop(0))
        return 1


class ClaimsToHaveWritten(Memory):
    def write_now(self, change: Change) -> bool:
        return True


class WritesAndReturnsFalse(Memory):
    def write_now(self, change: Change) -> bool:
        self.write(change)
        return False


class ListsResumedRunsAsEnded(Memory):
    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        found = super().list_runs(query)
        ends = [[row for row in self.rows(one.run.id, 0, one.last) if row.kind == "end"] for one in found]
        return [
            one._replace(status=str(rows[-1].header["status"]), end=rows[-1]) if rows else one
            for one, rows in zip(found, ends, strict=True)
        ]


class ForgetsWhereAPageEnded(Memory):
    """Runs that were started at the same time as the last one of a page are on no page."""

    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        until = query.until if query.after is None else query.after.started
        return super().list_runs(query._replace(after=None, until=until))
