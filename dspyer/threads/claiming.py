"""Holding a thread while a run works on it: got at once or once it is free, and given back whatever happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio

from dspyer.blocking import cancellations, finish
from dspyer.errors import ConcurrentRunError, DspyerError, RunStoppedError, ThreadError
from dspyer.persistence.rows import end_row
from dspyer.runtime.request import Request
from dspyer.threads.owning import leases, pauses
from dspyer.threads.starting import OwnedRun


class ThreadLock:
    """The wish to own a thread for one run.

    Args:
        own: owns it, or raises `ConcurrentRunError`.
        request: what the run is asked for.
        on_conflict: what to do while another run owns the thread.
        timeout: seconds to wait.

    Attributes:
        patience: seconds to wait.

    Raises:
        ThreadError: for an `on_conflict` that is none.
    """

    def __init__(self, own: Callable[[], OwnedRun], request: Request, on_conflict: str, timeout: float) -> None:
        if on_conflict not in ("raise", "wait", "merge"):
            raise ThreadError(f'on_conflict={on_conflict!r}: it is "raise", "wait" or "merge"')
        self._own = own
        self._request = request
        self.patience = 0.0 if on_conflict == "raise" else timeout
        self._owned: OwnedRun | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Owns the thread for the block."""
        for pause in self._pauses():
            if self._try():
                break
            time.sleep(pause)
        else:
            self._take()
        assert self._owned is not None
        try:
            yield
        finally:
            _give_back(self._owned)

    @asynccontextmanager
    async def aheld(self) -> AsyncIterator[None]:
        """The same in async code. A cancellation waits until it is known whether the thread is owned."""
        before = cancellations()
        try:
            for pause in self._pauses():
                if await finish(self._try):
                    break
                if cancellations() > before:
                    raise asyncio.CancelledError
                await anyio.sleep(pause)
            else:
                await finish(self._take)
            if cancellations() > before:
                raise asyncio.CancelledError
            yield
        finally:
            owned = self._owned
            if owned is not None and _is_over(owned):
                _give_back(owned)
            elif owned is not None:
                with anyio.CancelScope(shield=True):
                    await finish(lambda: _give_back(owned))

    def _take(self) -> None:
        self._owned = self._own()

    def _try(self) -> bool:
        try:
            self._take()
        except ConcurrentRunError:
            return False
        return True

    def _pauses(self) -> Iterator[float]:
        """How long to wait before the next look, until the time is over."""
        for pause in pauses(self.patience):
            reason = self._request.halt.reason
            if reason is not None:
                raise RunStoppedError(
                    f"the run was stopped while it waited for its thread: {reason}. Nothing was started", reason
                )
            yield pause


def _is_over(owned: OwnedRun) -> bool:
    """Whether the run has written how it ended, and with that gave the thread back."""
    return bool(owned.request.sessions) and owned.request.sessions[-1].reported


def _give_back(owned: OwnedRun) -> None:
    """Ends the work on a thread.

    A run that was stopped before its first step says so; one that cannot say how it ended gives the thread back only.
    """
    try:
        if not owned.request.sessions:
            with suppress(DspyerError):  # else the thread is given back below, or its lease runs out
                owned.journal.write([end_row("stopped", None, ())], flush=True, release=True)
        if not _is_over(owned):
            owned.journal.leave()
    finally:
        leases.let_go(owned.owner.token)
