"""Server-sent events for the readers of a thread: one poll per thread, however many pages show it.

A message says that the thread has changed, and not how: the page reads again what it shows. So a reader that is slow,
or connects again, has missed nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dspyer.archive.archive import Archive
from dspyer.archive.archived_thread import ArchivedThread
from dspyer.errors import ThreadError, error_text
from dspyer.inspector.json_answers import RefusedError, error_response, text_of

logger = logging.getLogger("dspyer")

INTERVAL = 0.08
"""Seconds between two polls. A step is shown within 0.2 s of its commit, what the page then reads included."""

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent: a proxy or a browser takes a silent connection for a dead one."""

GONE = ""
"""The position of a thread that was deleted."""


class Watched:
    """A thread that is polled.

    Attributes:
        position: where it was at the last poll; None before the first one.
        readers: each is woken when that changes.
        failed: why polling ended; empty if it goes on.
    """

    def __init__(self, thread: ArchivedThread) -> None:
        self.position: str | None = None
        self.readers: set[asyncio.Event] = set()
        self.failed = ""
        self._thread = thread
        self._limiter = CapacityLimiter(1)  # of its own: other requests may use all common threads for long reads

    async def poll(self) -> None:
        """Poll until cancelled, or until the thread is gone or the store fails."""
        try:
            while self.position != GONE:
                found = await run_sync(self._thread.position, limiter=self._limiter)
                if found != self.position:
                    self.position = found
                    self.wake()
                await asyncio.sleep(INTERVAL)
        except Exception as error:
            logger.error("the inspector failed to follow a thread", exc_info=error)
            self.failed = error_text(error)
            self.wake()

    def wake(self) -> None:
        """Wake all readers."""
        for reader in self.readers:
            reader.set()


class Followers:
    """The readers of one app, by thread.

    Attributes:
        polling: the threads that are polled, with their tasks. The last reader that goes ends the poll.
    """

    def __init__(self, archive: Archive, heartbeat: float = HEARTBEAT) -> None:
        self.polling: dict[str, tuple[Watched, asyncio.Task[None]]] = {}
        self._archive = archive
        self._heartbeat = heartbeat
        self._closed = False

    async def follow(self, request: Request) -> Response:
        """The endpoint: a stream that ends when the client goes, the thread is deleted or the server ends."""
        try:
            name = text_of(request, "thread")
            thread = await run_sync(self._archive.thread, name)
        except ThreadError as error:
            return error_response(RefusedError(404, str(error)))
        except Exception as error:  # noqa: BLE001 - answered as any other request is
            return error_response(error)
        known = request.query_params.get("after") or None
        headers = {"X-Accel-Buffering": "no"}  # a proxy in between passes each message on at once
        return StreamingResponse(self._messages(thread, known), media_type="text/event-stream", headers=headers)

    def close(self) -> None:
        """End all streams, and begin none."""
        self._closed = True
        for watched, _ in self.polling.values():
            watched.wake()

    async def _messages(self, thread: ArchivedThread, known: str | None) -> AsyncIterator[bytes]:
        watched = self._watch(thread)
        woken = asyncio.Event()
        woken.set()
        watched.readers.add(woken)
        try:
            yield b": following\n\n"
            while not self._closed:
                try:
                    await asyncio.wait_for(woken.wait(), self._heartbeat)
                except TimeoutError:
                    yield b": waiting\n\n"
                    continue
                woken.clear()
                if watched.failed:
                    yield _message("error", {"message": watched.failed})
                    return
                if watched.position == GONE:
                    yield _message("gone", {"thread": thread.name})
                    return
                if watched.position is not None and watched.position != known:
                    known = watched.position
                    yield _message("changed", {"thread": thread.name, "position": known}, known)
        finally:
            watched.readers.discard(woken)
            if not watched.readers:
                self._end(thread.name, watched)

    def _watch(self, thread: ArchivedThread) -> Watched:
        found = self.polling.get(thread.name)
        if found is not None and not found[1].done():
            return found[0]
        watched = Watched(thread)
        self.polling[thread.name] = (watched, asyncio.get_running_loop().create_task(watched.poll()))
        return watched

    def _end(self, name: str, watched: Watched) -> None:
        found = self.polling.get(name)
        if found is not None and found[0] is watched:
            del self.polling[name]
            with suppress(RuntimeError):  # the loop is closed
                found[1].cancel()


def _message(event: str, data: dict[str, Any], position: str | None = None) -> bytes:
    identity = "" if position is None else f"id: {position}\n"
    return f"event: {event}\n{identity}data: {json.dumps(data)}\n\n".encode()
