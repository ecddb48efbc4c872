"""Stopping a run before its end: why, and what has to hear of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

CLOSED = "its stream was closed"
DROPPED = "the reader of its stream went away"
EXITING = "its process ended"
CANCELLED = "its task was cancelled"


class StopSignal:
    """Whether a run, with the runs inside of it, is to stop. May be used from any thread.

    Attributes:
        reason: why; None as long as it is not to stop. The first reason counts.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._lock = Lock()
        self._calls: dict[int, Callable[[str], object]] = {}
        self._last = 0

    def stop(self, reason: str) -> None:
        """Lets nothing new start."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            calls = list(self._calls.values())
        for call in calls:
            call(reason)

    @contextmanager
    def calling(self, call: Callable[[str], object]) -> Iterator[None]:
        """Calls something with the reason if the run is stopped during the block, or was before."""
        with self._lock:
            self._last += 1
            key, reason = self._last, self.reason
            self._calls[key] = call
        try:
            if reason is not None:
                call(reason)
            yield
        finally:
            with self._lock:
                del self._calls[key]
