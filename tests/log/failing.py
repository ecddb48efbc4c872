"""Stores that fail, stop or kill their process at one write, before or after it took effect."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Change


class Crash(BaseException):
    """The end of a process, as far as one process can play it."""


class Failing(Store):
    """Counts writes, and fails at one of them. To be mixed into a store."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rest()

    def rest(self) -> None:
        """Fails no more, and counts from 0."""
        self.writes = 0
        self.at: int | None = None
        self.after = False
        self.forever = False
        self.inline = True
        self.fail: Callable[[], None] = lambda: None

    def arm(self, fail: Callable[[], None], at: int, after: bool, forever: bool = True) -> None:
        """Fails at a write, counted from 1.

        Args:
            fail: raises.
            at: which write.
            after: whether the write has taken effect.
            forever: whether all later ones fail too, without effect.
        """
        self.rest()
        self.fail, self.at, self.after, self.forever = fail, at, after, forever

    def write(self, change: Change) -> int:
        """Applies a change, or fails; that a lease is renewed now and then does not count."""
        if change.lease and change == Change(change.thread, change.epoch, lease=change.lease):
            return super().write(change)  # type: ignore[safe-super]  # a mixin: a store is the other base class
        self.writes += 1
        if self.at is None or self.writes < self.at or (self.writes > self.at and not self.forever):
            return super().write(change)  # type: ignore[safe-super]
        if self.writes > self.at:
            raise DiskError("the store is gone")
        if self.after:
            super().write(change)  # type: ignore[safe-super]
        self.fail()
        raise AssertionError("what fails raises")

    def write_now(self, change: Change) -> bool:
        """The same at once, unless every write is to go to a thread."""
        if self.inline:
            self.write(change)
        return self.inline


class FailingMemory(Failing, Memory):
    """In memory."""


class FailingSQLite(Failing, SQLite):
    """In a file."""


def crash() -> None:
    """Stops as if the process had ended."""
    raise Crash


def kill() -> None:
    """Ends the process, now."""
    os.kill(os.getpid(), signal.SIGKILL)


class DiskError(OSError):
    """What a store raises."""


def disk_full() -> None:
    """Fails as stores do."""
    raise DiskError("no space left on device")
