"""A store whose failures are `StoreError`s."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from dspyer.errors import DspyerError, StoreError
from dspyer.stores.base import NO_EPOCHS, Change, DeletionReport, Point, Row, RunRow, Snapshot, Store, ThreadRow

T = TypeVar("T")


def guarded(store: Store, work: Callable[[], T]) -> T:
    """Does something with a store; what goes wrong there is a `StoreError`.

    Args:
        store: the store.
        work: what to do.

    Raises:
        StoreError: with the exception of the store as its cause.
    """
    try:
        return work()
    except DspyerError:
        raise
    except Exception as error:
        raise failed(store, error) from error


def failed(store: Store, error: Exception) -> StoreError:
    """What is raised where a store has failed."""
    return StoreError(
        f"the store {store.address!r} failed: {type(error).__name__}: {error}. What was reported before is kept; "
        "mend the store, then call resume() on the thread"
    )


CheckChange = Callable[[Change], None]
"""Raises for a change that must not be written."""


def _unchecked(change: Change) -> None:
    del change


class Guarded(Store):
    """Hands everything on to a store. What goes wrong there is raised as a `StoreError`, with its cause.

    Args:
        store: the store.
        check: raises for what must not be written.
    """

    def __init__(self, store: Store, check: CheckChange = _unchecked) -> None:
        self.store = store
        self.check = check

    @property
    def address(self) -> str:
        """Where it is."""
        return self.store.address

    def write(self, change: Change) -> int:
        """Applies a change."""
        try:
            self.check(change)
            return self.store.write(change)
        except DspyerError:
            raise
        except Exception as error:
            raise failed(self.store, error) from error

    def write_now(self, change: Change) -> bool:
        """Applies a change if that needs no waiting."""
        try:
            self.check(change)
            return self.store.write_now(change)
        except DspyerError:
            raise
        except Exception as error:
            raise failed(self.store, error) from error

    def thread(self, name: str) -> ThreadRow | None:
        """Where a thread stands."""
        return guarded(self.store, lambda: self.store.thread(name))

    def threads(self) -> list[str]:
        """The names of all threads."""
        return guarded(self.store, self.store.threads)

    def run(self, run: str) -> RunRow | None:
        """A run by its id."""
        return guarded(self.store, lambda: self.store.run(run))

    def runs(self, thread: str) -> list[RunRow]:
        """The runs that were made for a thread."""
        return guarded(self.store, lambda: self.store.runs(thread))

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        """Rows of a run."""
        return guarded(self.store, lambda: self.store.rows(run, first, last))

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """Large values by id."""
        return guarded(self.store, lambda: self.store.blobs(ids))

    def snapshot(self, at: Point) -> Snapshot | None:
        """The last snapshot at or before a row."""
        return guarded(self.store, lambda: self.store.snapshot(at))

    def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        """Removes threads."""
        return guarded(self.store, lambda: self.store.delete(threads, epochs))

    def delete_unreachable(self, thread: str) -> DeletionReport:
        """Removes what a thread does not reach."""
        return guarded(self.store, lambda: self.store.delete_unreachable(thread))

    def drop_snapshots(self) -> None:
        """Removes the cache."""
        guarded(self.store, self.store.drop_snapshots)

    def vacuum(self) -> None:
        """Gives space back."""
        guarded(self.store, self.store.vacuum)

    def close(self) -> None:
        """Ends the use of the store."""
        guarded(self.store, self.store.close)
