"""Reading for the inspector, from an `Archive` alone, and following a thread.

Functions that read may block and run in worker threads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dspyer import Archive
from dspyer.archive.archived_thread import ArchivedThread
from dspyer.display import RECORD, RunAnswers, cut_within, part_of
from dspyer.errors import ThreadError, error_text
from dspyer.extend import Address, full_id
from dspyer.inspector.json_answers import RefusedError, number, read_in_thread, text_of

logger = logging.getLogger("dspyer")

MOST_RUNS = 500
MOST_COMMITS = 2_000
MOST_ITEMS = 10_000
INTERVAL = 0.08
"""Seconds between two polls. A step is shown within 0.2 s of its commit, what the page then reads included."""

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent: a proxy or a browser takes a silent connection for a dead one."""

KEPT = 16
"""Threads whose readers are kept: a page asks for many parts of one thread."""


class Reading:
    """The endpoints that read.

    Args:
        archive: what is read.
        program: the name of the graph with which the inspector acts; None if it only reads.
    """

    def __init__(self, archive: Archive, program: str | None, version: str) -> None:
        self._archive = archive
        self._program = program
        self._version = version
        self._lock = Lock()
        self._kept: dict[str, ArchivedThread] = {}  # the last used one last
        self._valued: dict[str, Callable[[Request], Any]] = {
            "run": self._run,
            "commit": self._commit,
            "execution": self._execution,
            "posts": lambda request: {"items": self._answers(request).posts()},
            "conflicts": lambda request: {"items": self._answers(request).conflicts()},
            "items": lambda request: {"items": self._answers(request).items()},
        }

    def routes(self) -> list[Route]:
        """The endpoints. The answers of some hold values, which are cut; `value` gives the rest of these."""
        about = {"store": self._archive.address, "version": self._version, "program": self._program}
        plain: dict[str, Callable[[Request], Any]] = {
            "about": lambda _: {**about, "acts": self._program is not None},
            "runs": partial(self._listed, self._archive.runs),
            "threads": partial(self._listed, self._archive.threads),
            "commits": self._commits,
            "stats": self._stats,
            "value": self._value,
        }
        reads = plain | {name: _cutting(read) for name, read in self._valued.items()}
        return [Route(f"/{name}", read_in_thread(read)) for name, read in reads.items()]

    # --- lists

    def _listed(self, listing: Callable[..., Any], request: Request) -> dict[str, Any]:
        query = request.query_params
        filters = {
            name: query[name]
            for name in ("status", "graph", "thread", "contains", "node", "model", "after")
            if query.get(name)
        }
        times = {name: _time(query[name], name) for name in ("since", "until") if query.get(name)}
        limit = number(request, "limit", 100, 1, MOST_RUNS)
        try:
            page = listing(**filters, **times, limit=limit)
        except ValueError as error:  # no such status, or a cursor that is none
            raise RefusedError(400, str(error)) from None
        items = [info.to_dict() for info in page]
        return {"items": cut_within(items, [RECORD], ("items",)), "next": page.next}

    # --- one run

    def _run(self, request: Request) -> dict[str, Any]:
        unread = [{**one.to_dict(), "step": None} for one in self._thread(request).unread]
        found = self._answers(request).run()
        return {**found, "messages": [*found["messages"], *unread]}

    def _commits(self, request: Request) -> dict[str, Any]:
        first = number(request, "first", 0)
        count = number(request, "count", 200, 1, MOST_COMMITS)
        newest = request.query_params.get("newest", "") not in ("", "0", "false")
        answers = self._answers(request)
        items = list(map(answers.row, answers.commits[:: -1 if newest else 1][first : first + count]))
        return {"items": items, "next": first + count if len(items) == count else None}

    def _stats(self, request: Request) -> Any:
        return self._thread(request).stats(_optional(request, "run")).to_dict()

    # --- one step

    def _commit(self, request: Request) -> Any:
        """A commit of the last run, or of that which its id names."""
        name = text_of(request, "id")
        answers = self._answers(request)
        if not answers.record.has(name):
            answers = self._answers(request, Address.parse(name).run)
        return answers.commit(answers.record.step(name))

    def _execution(self, request: Request) -> Any:
        answers, name = self._answers(request), text_of(request, "id")
        run = answers.record.id
        step = answers.stops.get(name) or answers.stops.get(full_id(run, name))
        if step is None:
            raise LookupError(f"the run {run!r} has not ended at {name!r}: see its failures and questions")
        return answers.execution(step)

    def _answers(self, request: Request, run: str = "") -> RunAnswers:
        """The answers about the run that is asked for."""
        return RunAnswers(self._thread(request).record(run or _optional(request, "run")))

    def _value(self, request: Request) -> Any:
        """A part of a value that another answer has cut: the same question, with the path of the mark."""
        name = text_of(request, "of")
        if name not in self._valued:
            raise RefusedError(400, f"of={name!r}: the answers with values are {', '.join(self._valued)}")
        try:
            path = json.loads(text_of(request, "path"))
        except (ValueError, RecursionError):
            path = None
        if not isinstance(path, list) or not all(type(key) in (str, int) for key in path):
            raise RefusedError(400, "path is a JSON list of names and numbers, as the mark has it")
        first = number(request, "first", 0)
        return part_of(self._valued[name](request), path, first)

    def _thread(self, request: Request) -> ArchivedThread:
        """The thread; one that was asked for lately has cached what it read."""
        name = text_of(request, "thread")
        thread = self._kept.get(name)
        if thread is None or not thread.position():  # deleted since: another one may have its name
            try:
                thread = self._archive.thread(name)
            except ThreadError as error:
                raise RefusedError(404, str(error)) from None
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = thread
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
        return thread


class Following:
    """Server-sent events for the readers of a thread.

    A message says that the thread has changed, and not how: the page reads again what it shows. So a reader that is
    slow, or connects again, has missed nothing.
    """

    def __init__(self, archive: Archive) -> None:
        self.closed = False  # ends all streams, which never end by themselves
        self._archive = archive
        self._limiter = CapacityLimiter(4)  # of its own: other requests may use all common threads for long reads

    async def follow(self, request: Request) -> Response:
        """The endpoint: a stream that ends when the client goes, the thread is deleted or the server ends."""
        name = text_of(request, "thread")
        try:
            thread = await run_sync(self._archive.thread, name, limiter=self._limiter)
        except ThreadError as error:
            raise RefusedError(404, str(error)) from None
        known = request.query_params.get("after") or None
        headers = {"X-Accel-Buffering": "no"}  # a proxy in between passes each message on at once
        return StreamingResponse(self._messages(thread, known), media_type="text/event-stream", headers=headers)

    async def _messages(self, thread: ArchivedThread, known: str | None) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        yield b": following\n\n"
        said = loop.time()
        # Polling: the writer may be any process, and a store sends no messages. It reads one row.
        while not self.closed:
            try:
                position = await run_sync(thread.position, limiter=self._limiter)
            except Exception as error:
                logger.error("the inspector failed to follow a thread", exc_info=error)
                yield _message("error", {"message": error_text(error)})
                return
            if not position:
                yield _message("gone", {"thread": thread.name})
                return
            if position != known:
                known, said = position, loop.time()
                yield _message("changed", {"thread": thread.name, "position": known}, known)
            elif loop.time() - said >= HEARTBEAT:
                said = loop.time()
                yield b": waiting\n\n"
            await asyncio.sleep(INTERVAL)


def _message(event: str, data: dict[str, Any], position: str | None = None) -> bytes:
    identity = "" if position is None else f"id: {position}\n"
    return f"event: {event}\n{identity}data: {json.dumps(data)}\n\n".encode()


def _cutting(read: Callable[[Request], Any]) -> Callable[[Request], Any]:
    def read_and_cut(request: Request) -> Any:
        found = read(request)
        if list(found) != ["items"]:
            return cut_within(found, RECORD)
        # The list itself is the page's and no value: it comes in pages.
        first, items = number(request, "first", 0), found["items"]
        end = first + number(request, "count", MOST_ITEMS, 1, MOST_ITEMS)
        shown = cut_within(items[first:end], [RECORD], ("items",), first)
        return {"items": shown, "next": end if end < len(items) else None}

    return read_and_cut


def _optional(request: Request, name: str) -> str | None:
    return request.query_params.get(name) or None


def _time(text: str, name: str) -> datetime:
    """A time of the query: seconds since the epoch, or ISO 8601; without a zone it is UTC."""
    is_number = text.replace(".", "", 1).isdigit() and text.isascii()
    try:
        found = datetime.fromtimestamp(float(text), UTC) if is_number else datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        problem = f"{name}={text!r} is no time: 2026-01-31T12:00, or seconds"
        raise RefusedError(400, problem, {name: "is no time"}) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
