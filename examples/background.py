"""A service whose runs continue without their requests: start one, close the page, come back, and read what is new.

python examples/background.py         # asks itself, without a port; needs: pip install fastapi httpx
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from dspyer import END, START, Archive, CompiledGraph, Graph, errors
from dspyer.runtime.streams import AsyncEvents

STORE = "letters.db"


class Letter(BaseModel):
    customer: str
    draft: str = ""
    sent: bool = False


def letters(store: str = STORE) -> CompiledGraph:
    """A letter that is written, then sent."""
    graph = Graph(Letter, inputs=["customer"], name="Letters")
    graph.add_node("write", lambda customer: {"draft": f"Dear {customer}, ..."}, writes=["draft"])
    graph.add_node("send", lambda draft: {"sent": bool(draft)}, writes=["sent"])
    return graph.add_path(START, "write", "send", END).compile(store=store)


# --8<-- [start:task]
tasks = set()  # asyncio itself keeps no task alive


async def read_to_the_end(events: AsyncEvents) -> None:
    async for _ in events.sse():  # raises nothing
        pass


async def in_background(events: AsyncEvents) -> dict[str, bool]:
    await events.start()  # a refused run raises here, in time for a 409
    task = asyncio.create_task(read_to_the_end(events))
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return {"started": True}


# --8<-- [end:task]


def service(program: CompiledGraph) -> FastAPI:
    app = FastAPI()

    @app.exception_handler(errors.InputError)
    @app.exception_handler(errors.ThreadError)
    async def refused(request: Request, error: Exception) -> JSONResponse:
        busy = isinstance(error, errors.ConcurrentRunError)  # its text names the host
        told = "the letter is being written" if busy else str(error)
        return JSONResponse({"detail": told}, status_code=409 if busy else 422)

    Key = Annotated[str | None, Header(alias="Idempotency-Key")]  # noqa: N806 - it is a type

    # --8<-- [start:routes]
    @app.post("/letters/{name}", status_code=202)
    async def start(name: str, customer: str, key: Key = None):
        thread = program.thread(name)
        events = thread.astream({"customer": customer}, key=key)
        return await in_background(events)

    @app.get("/letters/{name}")
    def news(name: str, after: int = -1):
        thread = program.thread(name)
        status = thread.status  # read first: then no commit is missed
        new = [] if status == "new" else thread.history(first=after + 1)
        steps = [one.node for one in new if one.version is not None]
        return {"status": status, "steps": steps}

    # --8<-- [end:routes]

    @app.post("/letters/{name}/resume", status_code=202)
    async def resume(name: str, answers: dict[str, bool] | None = None):
        return await in_background(program.thread(name).astream_resume(answers))

    @app.post("/letters/{name}/stop")
    def stop(name: str):
        program.thread(name).stop()
        return {"status": program.thread(name).status}

    return app


# --8<-- [start:due]
def due(store: str) -> Sequence[str]:
    """The cron job: the threads that can go on, for your queue."""
    with Archive(store) as archive:
        return archive.due(graph="Letters", limit=1000)


def advance(program: CompiledGraph, store: str, name: str) -> str:
    """The worker. A name that comes twice does nothing."""
    if name not in due(store):
        return "done"
    try:
        return program.thread(name).resume().status
    except errors.ConcurrentRunError:
        return "another worker has it"


# --8<-- [end:due]


async def page(app: Any) -> None:
    """What a page does that is reloaded while its letter is written."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        started = await client.post("/letters/1", params={"customer": "Ada"})
        steps: list[str] = []
        status = "running"
        while status == "running":
            found = (await client.get("/letters/1", params={"after": len(steps) - 1})).json()
            status = found["status"]
            steps += found["steps"]
            await asyncio.sleep(0.02)
        print(started.status_code, status, steps)


def main() -> None:
    program = letters()
    asyncio.run(page(service(program)))
    print("due:", [advance(program, STORE, name) for name in due(STORE)])


if __name__ == "__main__":
    main()
