"""A request to a service over a program, without a network: `serve.router`, and a route of Starlette by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from bench.peers import measure
from bench.peers.measure import Round, expect
from dspyer import END, START, CompiledGraph, Graph, errors, serve

BODY = json.dumps({"text": "hey"}).encode()


def program() -> CompiledGraph:
    """A program that does almost nothing."""
    graph = Graph(inputs=["text"]).add_node("shout", lambda text: {"loud": text.upper()}, writes=["loud"])
    return graph.add_path(START, "shout", END).compile(store=":memory:")


def own(request: Request, name: str) -> str:
    """The thread of a user."""
    return f"{request.headers['x-user']}/{name}"


def by_router(served: CompiledGraph) -> Starlette:
    """The service as the library has it."""
    return Starlette(routes=[Mount("/t", app=serve.router(served, thread=own))])


def by_hand(served: CompiledGraph) -> Starlette:
    """The same answer by hand. A client that leaves stops nothing here, and few errors are told."""

    async def start(request: Request) -> JSONResponse:
        if request.headers.get("content-type") != "application/json":
            return JSONResponse({"error": "send JSON"}, 415)
        thread = served.thread(own(request, request.path_params["name"]))
        key = request.headers.get("idempotency-key")
        try:
            run = await thread.arun(await request.json(), key=key)
        except errors.ThreadError as error:
            return JSONResponse({"error": str(error)}, 409)
        asked = [question.to_dict() for question in run.questions]
        outputs = {name: run.state[name] for name in run.state if name != "text"}
        error = None if run.error is None else str(run.error)
        return JSONResponse({"status": run.status, "outputs": outputs, "questions": asked, "error": error})

    return Starlette(routes=[Route("/t/{name}", start, methods=["POST"])])


async def post(app: Any, name: str) -> bytes:
    """The body of the response to a request."""
    headers = [(b"content-type", b"application/json"), (b"x-user", b"ada")]
    path = f"/t/{name}"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "root_path": ""}
    scope |= {"query_string": b"", "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("a", 80)}
    waiting: list[dict[str, Any]] = [{"type": "http.request", "body": BODY, "more_body": False}]
    found = []

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()  # the client stays
        return waiting.pop()

    async def send(message: dict[str, Any]) -> None:
        found.append(message.get("body", b""))

    await app(scope, receive, send)
    return b"".join(found)


def request(kind: Literal["router", "hand"], calls: int, beyond: bool = False) -> Round:
    """Seconds of a request that starts the first run of a thread; with `beyond`, without those of the run itself."""

    async def measured() -> float:
        served = program()
        app = by_router(served) if kind == "router" else by_hand(served)
        expect(json.loads(await post(app, "first"))["outputs"], {"loud": "HEY"})
        asked = ran = 0.0
        for number in range(calls):  # in turn, so that both see the same machine
            began = measure.clock()
            await post(app, f"asked{number}")
            asked += measure.clock() - began
            if beyond:
                began = measure.clock()
                await served.thread(f"run{number}").arun({"text": "hey"})
                ran += measure.clock() - began
        return (asked - ran) / calls

    return lambda: asyncio.run(measured())
