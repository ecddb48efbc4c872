"""The router of `router`: a request starts or continues a run on a thread; its end, or its events, are the response."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from functools import cache, partial
from typing import Any, NamedTuple, cast

from anyio.to_thread import run_sync
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from dspyer import CompiledGraph, Run, Thread
from dspyer.errors import DspyerError, InputError, PublicError, public
from dspyer.graph.spec import GraphSpec
from dspyer.runtime.streams import AsyncEvents
from dspyer.serve.http_request import RunResponse, as_json, asked, asked_thread, check_program, json_content

logger = logging.getLogger("dspyer")

ThreadOf = Callable[[Request, str], str | Thread | Awaitable[str | Thread]]
By = Callable[[Request], str | Awaitable[str | None] | None]

PAGE = 1_000
"""The most names of a list."""

AGAIN = 60.0
"""Seconds after which crashed runs are looked for again: the leases of owners in lost containers have ended then."""

CODES = {404: "unknown", 409: "conflict", 422: "invalid", 429: "limit"}


def make_router(program: CompiledGraph, thread: ThreadOf, by: By | None, if_open: str, recover: bool) -> Router:
    """The router, once its options are checked."""
    check_program("router", program)
    for name, function in (("thread", thread), ("by", by)):
        if not (callable(function) or (name == "by" and function is None)):
            raise InputError(f"router({name}={function!r}): pass a function that gets the request")
    if if_open not in ("refuse", "amend", "abandon"):
        raise ValueError(f'router(if_open={if_open!r}): it is "refuse", "amend" or "abandon"')
    if not isinstance(cast(object, recover), bool):
        raise TypeError(f"recover={recover!r}: give True or False")
    service = Service(program, thread, by, if_open)

    # Of where the router is made: the first request may have another language model than the application.
    context = copy_context()

    @cache  # once: when the router starts, or else with its first request, since Starlette starts no mounted router
    def begin() -> None:
        if recover:
            # A daemon: the end of the process crashes the run that goes on here, and the next start resumes it.
            work = partial(context.run, recover_crashed, program)
            threading.Thread(target=work, name="dspyer-recover", daemon=True).start()

    def route(path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "POST") -> Route:
        async def respond(request: Request) -> Response:
            begin()
            try:
                return await answer(request)
            except HTTPException as error:
                code = CODES.get(error.status_code, "invalid" if error.status_code < 500 else "failed")
                told, headers = PublicError(code, error.status_code, error.detail), error.headers
            except Exception as error:  # the client is told what it may know, the log the rest
                told, headers = public(error), None
                level = logging.ERROR if told.code == "failed" else logging.INFO
                logger.log(level, "a request was refused: %r", error, exc_info=error)
            return respond_json({"error": told._asdict()}, told.status, headers)

        return Route(path, respond, methods=[method])

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        begin()
        yield

    routes = [
        route("/", service.names, "GET"),
        route("/{name}", service.show, "GET"),
        route("/{name}", service.start),
        route("/{name}/answers", service.answer),
        route("/{name}/resume", service.resume),
        route("/{name}/stop", service.stop),
        route("/{name}/messages", service.send),
    ]
    return Router(routes, lifespan=lifespan)


def recover_crashed(program: CompiledGraph) -> None:
    """Resume crashed runs, twice."""
    for pause in (AGAIN, 0):
        try:
            logger.info("crashed runs of these threads were resumed: %s", program.recover())
        except Exception:
            logger.exception("crashed runs of graph %r were not resumed", program.graph.name)
        time.sleep(pause)


# --- requests


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that is the body of a request; raises status 400 if there is none."""
    content = await json_content(request)
    try:
        found = json.loads(content, parse_constant=_refused_constant)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "the body is no JSON object")
    return found


def _refused_constant(name: str) -> None:
    raise ValueError(f"{name} is none of its numbers")


class Service(NamedTuple):
    """A program that is served: the options of `router`."""

    program: CompiledGraph
    thread: ThreadOf
    by: By | None
    if_open: Any

    async def start(self, request: Request) -> Response:
        """Start a run with the inputs in the body."""
        inputs = await body_of(request)
        thread, key = await self._thread(request), request.headers.get("idempotency-key")
        tokens = wants_events(request)
        return await self._played(request, thread.astream(inputs, key=key, if_open=self.if_open, tokens=tokens))

    async def answer(self, request: Request) -> Response:
        """Continue a run with the answers in the body, by the ids of their questions."""
        answers = await body_of(request)
        thread = await self._thread(request, begun=True)
        # A key means whatever is open now: an answer that comes late would be that to another question.
        unknown = await run_sync(_unknown, thread, answers)
        if unknown or not answers:
            what = f"{unknown[0]!r} is no id of a question" if unknown else "there is no answer"
            raise HTTPException(422, f"{what}: give each answer by its question's id, {{id: answer}}")
        by = await self._author(request)
        return await self._played(request, thread.astream_resume(answers, by=by, tokens=wants_events(request)))

    async def resume(self, request: Request) -> Response:
        """Continue a run that failed, crashed or was stopped."""
        thread = await self._thread(request, begun=True)
        return await self._played(request, thread.astream_resume(tokens=wants_events(request)))

    async def stop(self, request: Request) -> Response:
        """Stop the run, in whatever process it is."""
        thread = await self._thread(request, begun=True)
        await run_sync(thread.stop)
        return respond_json(await run_sync(of_thread, self.program.graph, thread))

    async def send(self, request: Request) -> Response:
        """Send a message, `{text, to}`, to the agent of the thread; the response comes before a turn takes it."""
        body = await body_of(request)
        unknown = sorted(body.keys() - {"text", "to"})
        if unknown or "text" not in body:
            what = f"{unknown[0]!r} is not known" if unknown else "there is no text"
            raise HTTPException(422, f'{what}: send {{"text": "..."}}, and "to" for one agent of several')
        thread = await self._thread(request, begun=True)
        by, key = await self._author(request), request.headers.get("idempotency-key")
        sent = await thread.asend(body["text"], to=body.get("to"), by=by or "", key=key)
        return respond_json({"number": sent.number, "open": sent.open}, 202)

    async def _author(self, request: Request) -> str | None:
        """The name that the application gives to who sends a request."""
        by = None if self.by is None else await asked(self.by, request)
        if not isinstance(by, str | None):  # no fault of the client, as which `resume` would have it
            raise TypeError(f"router(by=): the function gave {by!r}, and not a name as text, or None")
        return by

    async def show(self, request: Request) -> Response:
        """The last run."""
        thread = await self._thread(request, begun=True)
        return respond_json(await run_sync(of_thread, self.program.graph, thread))

    async def names(self, request: Request) -> Response:
        """The names below the one that the application gives to the empty name."""
        found: Any = await asked(self.thread, request, "")
        prefix = found.name if isinstance(found, Thread) else found
        return respond_json({"names": await run_sync(self._names, prefix, request.query_params.get("after", ""))})

    def _names(self, prefix: str, after: str) -> list[str]:
        found: list[str] = []
        last = prefix + after
        while len(found) < PAGE and (batch := self.program.threads(after=last, limit=PAGE)):
            names = [each.removeprefix(prefix) for each in batch if each.startswith(prefix)]
            found += [one for one in names if "/" not in one]  # else no route leads there, and it may be another user's
            last = batch[-1]
            if not last.startswith(prefix):
                break
        return found[:PAGE]

    async def _thread(self, request: Request, begun: bool = False) -> Thread:
        """The thread that the application gives to a name; raises status 404 if it must have runs and has none."""
        thread = await asked_thread(self.program, self.thread, request, request.path_params["name"])
        if begun and await run_sync(lambda: thread.status) == "new":
            raise LookupError(f"thread {thread.name!r} has no run")
        return thread

    async def _played(self, request: Request, stream: AsyncEvents) -> Response:
        """Play a run to its end, which is the response, or send its events. A client that leaves stops it."""
        if wants_events(request):
            return RunResponse((await stream.start()).sse(public=True))
        leaving = asyncio.create_task(_stop_at_leave(request, stream))
        try:
            with suppress(Exception):  # why it failed is in the run; why it could not begin, `run` raises
                async for _ in stream:
                    pass
        finally:
            leaving.cancel()
        await stream.aclose()  # if the client has left, the loop ends before the run
        run = stream.run
        if run.status == "failed":
            logger.error("run %s failed; its client was told so", run.run_id, exc_info=run.error)
        told = None if run.error is None else public(run.error)
        return respond_json(shown(self.program.graph, run, run.status, told), 200 if told is None else told.status)


# --- responses


def wants_events(request: Request) -> bool:
    """Return whether the client asks for the events of a run."""
    return "text/event-stream" in request.headers.get("accept", "")


async def _stop_at_leave(request: Request, stream: AsyncEvents) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    await stream.aclose()


def _unknown(thread: Thread, answers: Iterable[str]) -> list[str]:
    """The names that are the id of no question, open or answered."""
    unknown = set(answers).difference(one.id for one in thread.questions)
    return sorted(unknown.difference(one.question.id for one in thread.answers) if unknown else ())


def of_thread(graph: GraphSpec, thread: Thread) -> dict[str, Any]:
    """The last run of a thread as a client sees it, and all answers."""
    status = thread.status  # before the rest, so that nothing is missing once it says "completed"
    error = public(DspyerError()) if status == "failed" else None
    answers = map(thread._records.shown, thread.answers)
    told = [{**one.to_dict(), "value": as_json(one.value)} for one in answers]
    return {**shown(graph, thread, status, error), "answers": told}


def shown(graph: GraphSpec, source: Run | Thread, status: str, error: PublicError | None) -> dict[str, Any]:
    """The run as a client sees it: the fields that the program returns, as far as there are any, and open questions."""
    if graph.redaction is None:
        fields: dict[str, Any] = dict(source.state)
    else:
        record = source.record()
        last = [step.id for step in record.steps if step.commit is not None and not step.commit.branch][-1]
        fields = {name: one.value for name, one in record.fields(last).items()}
    returned = graph.outputs
    outputs = {
        name: as_json(value)
        for name, value in fields.items()
        if (name not in graph.inputs if returned is None else name in returned)
    }
    questions = [one.to_dict() for one in source.questions]
    told = None if error is None else error._asdict()
    return {"status": status, "outputs": outputs, "questions": questions, "error": told}


def respond_json(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The response with some JSON."""
    body = json.dumps(content, allow_nan=False)  # in ASCII: half of a surrogate pair has no other form
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")
