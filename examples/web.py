"""Tokens to a web page: two branches write at once, a person approves, and the letter is sent.

python examples/web.py                # then open http://127.0.0.1:8000; needs: pip install starlette uvicorn

The page reads a run with the browser's EventSource, and the rest of it, after the answer, from the response to a POST.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
from model import language_model
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from triage import STEP_OF, Classify, Extract, tickets

from dspyer import END, START, CompiledGraph, Context, Graph, errors
from dspyer.runtime.streams import AsyncEvents

PAGE = Path(__file__).parent / "data" / "web.html"
STREAM = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # for caches, and for nginx, which buffers otherwise


class Case(BaseModel):
    """A ticket and the letter that answers it."""

    text: str
    category: str | None = None
    wish: str | None = None
    letter: str | None = None
    approved: bool | None = None
    outcome: str | None = None


def write(category: str, wish: str) -> dict[str, Any]:
    return {"letter": f"You wrote: \u201c{wish}\u201d We will {STEP_OF[category]}."}


def send(letter: str, approved: bool, ctx: Context) -> dict[str, Any]:
    """Send the letter once: a later attempt gets the stored result of the effect."""
    if not approved:
        return {"outcome": "nothing was sent"}
    return {"outcome": ctx.once("letter", lambda: f"a letter of {len(letter)} characters was sent")}


def desk(store: str = ":memory:") -> CompiledGraph:
    """The graph: two LM calls at once, a letter, a question, and the end."""
    graph = Graph(Case, inputs=["text"])
    graph.add_node("classify", dspy.Predict(Classify))
    graph.add_node("extract", dspy.Predict(Extract))
    graph.add_node("write", write, writes=["letter"])
    graph.add_interrupt("approve", question="Send this letter? {letter}", answer=bool, into="approved")
    graph.add_node("send", send, writes=["outcome"])
    graph.add_edge(START, ["classify", "extract"]).add_edge(["classify", "extract"], "write")
    program = graph.add_path("write", "approve", "send", END).compile(store=store)
    program.set_lm(language_model())
    program.classify.demos = program.extract.demos = tickets("train")[:20]
    return program


def streamed(events: AsyncEvents) -> Response:
    """The response: whatever ends it, the run ends with it."""
    return StreamingResponse(events.sse(), media_type="text/event-stream", headers=STREAM)


def service(program: CompiledGraph) -> Starlette:
    """The server. The name of a case comes from the page: check in production that its user may see it."""

    async def page(_request: Request) -> Response:
        return FileResponse(PAGE)

    async def start(request: Request) -> Response:
        """EventSource can only GET. One that connects again must not start another run: 204 tells it to stop."""
        if "last-event-id" in request.headers:
            return Response(status_code=204)
        case = program.thread(request.path_params["case"])
        return streamed(case.astream({"text": request.query_params["text"]}, tokens=True))

    async def answer(request: Request) -> Response:
        """The answer, by the id of its question, and in return the rest of the events."""
        case = program.thread(request.path_params["case"])
        try:
            return streamed(await case.astream_resume(await request.json(), tokens=True).start())
        except (errors.InputError, errors.ThreadError) as error:
            return JSONResponse({"detail": str(error)}, status_code=409)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/cases/{case}", start),
            Route("/cases/{case}/answers", answer, methods=["POST"]),
        ]
    )


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(service(desk("web.db")), port=8000)
