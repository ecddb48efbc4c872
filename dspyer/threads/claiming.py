"""Holding a thread while a run works on it: got at once or once it is free, and given back whatever happens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Lock

import anyio
import anyio.to_thread

from dspyer.errors import ConcurrentRunError, RunStoppedError, ThreadError
from dspyer.request import Request
from dspyer.threads.owning import leases, pauses
from dspyer.threads.starting import Owned


class Claim:
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

    def __init__(self, own: Callable[[], Owned], request: Request, on_conflict: str, timeout: float) -> None:
        if on_conflict not in ("raise", "wait", "merge"):
            raise ThreadError(f'on_conflict={on_conflict!r}: it is "raise", "wait" or "merge"')
        self._own = own
        self._request = request
        self.patience = 0.0 if on_conflict == "raise" else timeout
        self._wanted = True
        self._owned: Owned | None = None
        self._lock = Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Owns the thread for the block."""
        for pause in self._pauses():
            if self._try():
                break
            time.sleep(pause)
        else:
            self._take()
        owned = self._owned
        assert owned is not None
        try:
            yield
        finally:
            _give_back(owned, owned.journal.leave)

    @asynccontextmanager
    async def aheld(self) -> AsyncIterator[None]:
        """The same in async code, which waits without keeping a worker thread."""
        try:
            for pause in self._pauses():
                if await anyio.to_thread.run_sync(self._try):
                    break
                await anyio.sleep(pause)
            else:
                await anyio.to_thread.run_sync(self._take)
            yield
        finally:
            self._drop()

    def _take(self) -> None:
        owned = self._own()
        with self._lock:
            if self._wanted:
                self._owned = owned
                return
        _give_back(owned, owned.journal.leave)  # whoever wanted it was cancelled while this thread went on

    def _try(self) -> bool:
        try:
            self._take()
        except ConcurrentRunError:
            return False
        return True

    def _drop(self) -> None:
        with self._lock:
            self._wanted = False
            owned = self._owned
        if owned is not None:
            _give_back(owned, owned.journal.leave_soon)

    def _pauses(self) -> Iterator[float]:
        """How long to wait before the next look, until the time is over."""
        for pause in pauses(self.patience):
            if self._request.stopped:
                raise RunStoppedError("the stream of this run was closed before the run had got hold of its thread")
            yield pause


def _give_back(owned: Owned, leave: Callable[[], None]) -> None:
    """Ends the work on a thread; a run that did not come to say how it ended gives the thread back without that."""
    session = owned.request.sessions[-1] if owned.request.sessions else None
    try:
        if session is None or not session.reported:
            leave()
    finally:
        leases.let_go(owned.owner.token)
