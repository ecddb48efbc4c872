"""Reading for the inspector, from an `Archive` alone, and following a thread.

Functions that read may block and run in worker threads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from datetime import UTC, datetime
from threading import Lock
from typing import Any, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dspyer import Archive, __version__
from dspyer.archive.archived_thread import ArchivedThread
from dspyer.display import drawn_graphs
from dspyer.errors import ThreadError, error_text
from dspyer.inspector.json_answers import RefusedError, number, read_in_thread, text_of
from dspyer.record import Record, StepExamples, examples_of
from dspyer.record.record import RecordWriter

logger = logging.getLogger("dspyer")

K = TypeVar("K")
T = TypeVar("T")

MOST_RUNS = 500
MOST_VALUES = 50
PAGE = 1_000
"""Steps of a record that are sent at once."""

INTERVAL = 0.08
"""Seconds between two polls. A step is shown within 0.2 s of its commit, what the page then reads included."""

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent: a proxy or a browser takes a silent connection for a dead one."""

KEPT = 16
"""Threads whose readers are kept, and records of a run: a page asks for what has changed since one of them."""

KEPT_RUNS = 6
"""Runs of which it is kept what the page was given."""


class ShownRun:
    """The last records of one run that pages were given, by position, with the values of all that was written."""

    def __init__(self) -> None:
        self.lock = Lock()  # several pages may ask at once
        self.writer = RecordWriter()
        self._records: dict[str, Record] = {}

    def page(self, record: Record, first: int, position: str) -> dict[str, Any]:
        """The steps from one on; of the record at a position, if it is kept: pages of one record fit together."""
        record = self._records.get(position, record)
        end = first + PAGE
        found = {"items": self.writer.steps(record, record.steps[first:end]), "first": first}
        graphs = {} if first else {"graphs": drawn_graphs(record.graph)}
        return {**self._said(record), **graphs, **found, "next": end if end < len(record.steps) else None}

    def changes(self, record: Record, position: str) -> dict[str, Any] | None:
        """The steps that are new or have changed since the record at a position; None if it is not kept.

        Steps that did not change are the same objects in later records of a run.
        """
        before = self._records.get(position)
        if before is None:
            return None
        known, now = set(map(id, before.steps)), set(map(id, record.steps))
        places = [place for place, step in enumerate(record.steps) if id(step) not in known]
        items = self.writer.steps(record, [record.steps[place] for place in places])
        for place, item in zip(places, items, strict=True):
            item["previous"] = record.steps[place - 1].id if place else None
        removed = [step.id for step in before.steps if id(step) not in now and not record.has(step.id)]
        return {**self._said(record), "items": items, "removed": removed, "next": None}

    def _said(self, record: Record) -> dict[str, Any]:
        position = next((name for name, one in self._records.items() if one is record), None)
        if position is None:
            position = secrets.token_hex(6)  # one that another server has given is not known
            self._records[position] = record
            for oldest in list(self._records)[:-KEPT]:
                del self._records[oldest]
        return {"run": self.writer.run(record), "position": position, "count": len(record.steps)}


class Reading:
    """The endpoints that read.

    Args:
        archive: what is read.
        programs: the names of the graphs whose runs the inspector acts on.
    """

    def __init__(self, archive: Archive, programs: Collection[str]) -> None:
        self._archive = archive
        self._programs = programs
        self._lock = Lock()
        self._threads: dict[str, ArchivedThread] = {}  # the last used one last, as all that is kept
        self._runs: dict[tuple[str, str], ShownRun] = {}

    def routes(self) -> list[Route]:
        """The endpoints."""
        about: dict[str, Any] = {"store": self._archive.address, "version": __version__}
        about |= {"programs": sorted(self._programs), "acts": bool(self._programs)}
        reads: dict[str, Callable[[Request], Any]] = {
            "about": lambda _: about,
            "runs": self._list,
            "overview": self._overview,
            "questions": self._questions,
            "compare": self._compare,
            "examples": self._examples,
            "record": self._record,
            "values": self._values,
        }
        return [Route(f"/{name}", read_in_thread(read)) for name, read in reads.items()]

    # --- lists

    def _list(self, request: Request) -> dict[str, Any]:
        page = _refusing(
            lambda: self._archive.runs(**_filters(request, *FILTERS), limit=number(request, "limit", 100, 1, MOST_RUNS))
        )
        return {"items": [_shortened(info.to_dict()) for info in page], "next": page.next}

    def _overview(self, request: Request) -> Any:
        filters = _filters(request, "graph", "since", "until")
        return _refusing(lambda: self._archive.overview(**filters)).to_dict()

    def _questions(self, request: Request) -> dict[str, Any]:
        del request
        items = []
        for one in self._archive.questions():
            found = one.to_dict()
            found["question"]["text"] = RecordWriter().text(one.question.text)
            items.append({**found, "program": one.graph in self._programs})
        return {"items": items, "next": None}

    def _examples(self, request: Request) -> dict[str, Any]:
        """The examples of a node in some of the chosen runs, `limit` of them, or in one run."""
        query, node = request.query_params, text_of(request, "node")
        if query.get("run"):
            _, record, _ = self._read(request)
            found, after = examples_of([record], node), None
        else:
            filters = _filters(request, *(name for name in FILTERS if name != "node"))
            limit = number(request, "limit", 50, 1, MOST_RUNS)
            page = _refusing(lambda: self._archive.runs(**filters, limit=limit))
            after = page.next
            try:
                found = examples_of(self._archive._records(page), node)
            except LookupError:
                if after is None and not query.get("after"):
                    raise
                found = StepExamples([], 0)  # of older runs, or of newer ones, there may be some
        items = [{**one.to_dict(), "thread": one.thread} for one in found.items]
        return {"items": items, "next": after, "left_out": found.left_out}

    # --- one run, or two

    def _compare(self, request: Request) -> dict[str, Any]:
        (_, a, _), (_, b, _) = self._read(request), self._read(request, "other_")
        return {**a.compare(b).to_dict(), "a": RecordWriter().run(a), "b": RecordWriter().run(b)}

    def _record(self, request: Request) -> dict[str, Any]:
        query, first = request.query_params, number(request, "first", 0)
        thread, record, shown = self._read(request)
        after = query.get("after", "")
        with shown.lock:
            found = shown.changes(record, after) or shown.page(record, 0 if after else first, query.get("position", ""))
            found["run"]["unread"] = [{**one.to_dict(), "text": shown.writer.text(one.text)} for one in thread.unread]
        for graph in found.get("graphs", {}).values():
            graph["can_act"] = record.graph.name in self._programs
        return found

    def _values(self, request: Request) -> dict[str, Any]:
        names = request.query_params.getlist("id")
        if len(names) > MOST_VALUES:
            raise RefusedError(400, f"{len(names)} values: at most {MOST_VALUES} at once", {"id": "are too many"})
        _, record, shown = self._read(request)
        with shown.lock:
            return {"values": {name: shown.writer.value(record, name) for name in names}}

    def _read(self, request: Request, prefix: str = "") -> tuple[ArchivedThread, Record, ShownRun]:
        thread = self._thread(text_of(request, f"{prefix}thread"))
        try:
            record = thread.record(request.query_params.get(f"{prefix}run") or None)
        except ThreadError as error:
            raise RefusedError(404, str(error)) from None
        return thread, record, self._kept(self._runs, (thread.name, record.run_id), ShownRun, KEPT_RUNS)

    def _thread(self, name: str) -> ArchivedThread:
        """The thread; one that was asked for lately has kept what it read."""
        known = self._threads.get(name)
        if known is not None and not known.position():  # deleted since: another one may have its name
            self._threads.pop(name, None)
        try:
            return self._kept(self._threads, name, lambda: self._archive.thread(name), KEPT)
        except ThreadError as error:
            raise RefusedError(404, str(error)) from None

    def _kept(self, kept: dict[K, T], key: K, make: Callable[[], T], most: int) -> T:
        with self._lock:
            found = kept[key] = kept.pop(key) if key in kept else make()
            if len(kept) > most:
                del kept[next(iter(kept))]
            return found


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


def _refusing(read: Callable[[], T]) -> T:
    try:
        return read()
    except ValueError as error:  # no such status, or a cursor that is none
        raise RefusedError(400, str(error)) from None


def _shortened(info: dict[str, Any]) -> dict[str, Any]:
    """The entry of a run with long texts as its record has them."""
    shorten = RecordWriter().text
    if info["failure"] is not None:
        info["failure"]["message"] = shorten(info["failure"]["message"])
    for question in info["questions"]:
        question["text"] = shorten(question["text"])
    return info


def _time(text: str, name: str) -> datetime:
    """A time of the query: seconds since the epoch, or ISO 8601; without a zone it is UTC."""
    is_number = text.replace(".", "", 1).isdigit() and text.isascii()
    try:
        found = datetime.fromtimestamp(float(text), UTC) if is_number else datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        problem = f"{name}={text!r} is no time: 2026-01-31T12:00, or seconds"
        raise RefusedError(400, problem, {name: "is no time"}) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _figure(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RefusedError(400, f"{name}={text!r} is no number", {name: "is no number"}) from None


FILTERS: dict[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(("status", "graph", "thread", "contains", "node", "model", "after"), lambda text, _: text),
    **dict.fromkeys(("since", "until"), _time),
    **dict.fromkeys(("min_cost", "min_seconds"), _figure),
}
"""The filters of runs, with what reads each from a text of the query and its name."""


def _filters(request: Request, *names: str) -> dict[str, Any]:
    """The filters of runs that the query has."""
    query = request.query_params
    return {name: FILTERS[name](query[name], name) for name in names if query.get(name)}
