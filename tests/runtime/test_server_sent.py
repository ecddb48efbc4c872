"""`sse()`: the events of a run as the body of an HTTP response; no value breaks a message, no error the response."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import anyio
import dspy
import fastapi
import httpx
import pytest
from fastapi.responses import StreamingResponse as FastAPIStreamingResponse
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from dspyer import END, START, Context, Graph
from dspyer.errors import ConcurrentRunError, InputError, StoreError
from dspyer.events import Event
from dspyer.runtime.streams import AsyncEvents
from dspyer.testing import ScriptedLM, no_pauses
from tests.asgi_server import PATIENCE, served
from tests.log.failing import FailingMemory

HEARTBEAT = b":\n\n"


class Message(NamedTuple):
    """A server-sent event, as a browser reads it."""

    name: str
    id: str
    data: Any


def read(body: bytes) -> list[Message]:
    """The messages of a body, by the rules of the HTML standard: a line has three ends, a blank one ends a message."""
    found: list[Message] = []
    fields: dict[str, str] = {}
    for line in re.split("\r\n|\r|\n", body.decode()):
        if not line:
            if "data" in fields:
                found.append(Message(fields["event"], fields["id"], json.loads(fields["data"])))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            assert name in ("event", "id", "data", "retry")
            assert name not in fields, "an event has one line of data"
            fields[name] = value.removeprefix(" ")
    assert not fields, "the last message is complete"
    return found


async def whole(events: AsyncEvents, **options: Any) -> list[Message]:
    return read(b"".join([part async for part in events.sse(**options)]))


def adding(**options: Any) -> Any:
    graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    return graph.compile(**options)


# --- messages


def test_a_message_has_the_name_the_number_and_the_json_of_an_event() -> None:
    async def main() -> tuple[list[Message], tuple[Event, ...], str]:
        events = adding().astream({"n": 1})
        found = await whole(events)
        return found, events.run.events, events.run.run_id

    found, events, run_id = asyncio.run(main())
    assert [one.id for one in found] == ["1", "2", "3", "4", "5", "6"]
    assert [one.data for one in found[:-1]] == [event.to_dict() for event in events]
    assert [one.name for one in found[:-1]] == [type(event).__name__ for event in events]
    last = {"event": "StreamEnded", "run_id": run_id, "status": "completed", "error": None}
    assert found[-1] == ("StreamEnded", "6", last)


HOSTILE = "\r\n\r\nevent: Token\ndata: x\n\n\u2028\u2029\x00\x85\ud800<script>"


def test_no_text_breaks_a_message() -> None:
    """Neither as a value, nor as a key, a name, what a node does, a problem, a question, a token or an error."""
    graph = Graph(name=HOSTILE, inputs=["text", "question"])
    graph.add_node("ask", dspy.Predict("question -> answer"))

    def node(text: str, ctx: Context) -> None:
        ctx.doing(text)
        ctx.emit({text: text})
        if ctx.attempt == 1:
            raise ConnectionError(text)
        ctx.interrupt(text, text, answer=str)

    graph.add_node("node", node, writes=["other"], retry=2).add_path(START, "ask", "node", END)
    with dspy.context(lm=ScriptedLM([{"answer": HOSTILE}])), no_pauses():
        stream = graph.compile().astream({"text": HOSTILE, "question": "?"}, tokens=True)
        found = asyncio.run(whole(stream))
    kinds = {"RunStarted", "Committed", "NodeStarted", "Token", "Doing", "Emitted", "AttemptFailed", "Asked"}
    assert {one.name for one in found} == kinds | {"RunEnded", "StreamEnded"}
    kept = {type(event).__name__ for event in stream.run.events}
    assert [one.data for one in found if one.name in kept] == [event.to_dict() for event in stream.run.events]


class Odd:
    """Nothing of it can be shown."""

    def __repr__(self) -> str:
        raise ValueError("no text")

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise ValueError("no state")


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


VALUES = [math.nan, -math.inf, 2**2000, b"\xff", {1: {2}}, {"$type": "set"}, Odd(), endless(), lambda: 1, object, Odd]
emitted = st.one_of(st.text(), st.sampled_from(VALUES), st.floats(), st.binary(), st.integers())


@given(values=st.lists(emitted, max_size=4))
def test_any_value_can_be_emitted(values: list[Any]) -> None:
    def node(ctx: Context) -> None:
        for value in values:
            ctx.emit(value)

    program = Graph().add_node("node", node, writes=[]).add_path(START, "node", END).compile()
    found = asyncio.run(whole(program.astream({})))
    assert [one.name for one in found].count("Emitted") == len(values)
    assert found[-1].data["status"] == "completed"


def test_a_silence_is_filled_with_comments() -> None:
    go_on, parts = asyncio.Event(), list[bytes]()

    async def node(n: int) -> dict[str, int]:
        await go_on.wait()
        return {"n": n + 1}

    async def main() -> None:
        program = Graph(inputs=["n"]).add_node("node", node, writes=["n"]).add_path(START, "node", END).compile()
        async for part in program.astream({"n": 1}).sse(heartbeat=0.001):
            parts.append(part)
            if parts.count(HEARTBEAT) == 3:
                go_on.set()

    asyncio.run(main())
    assert parts[0] == b"retry: 86400000\n\n"
    assert parts.count(HEARTBEAT) >= 3
    assert [one.name for one in read(b"".join(parts))][-2:] == ["RunEnded", "StreamEnded"]


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan])
def test_a_heartbeat_is_positive(seconds: float) -> None:
    with pytest.raises(InputError, match="heartbeat="):
        adding().astream({"n": 1}).sse(heartbeat=seconds)


# --- how it ends


def test_a_question_ends_the_stream_and_the_answer_continues_in_another_one() -> None:
    graph = Graph(inputs=["question"]).add_node("first", dspy.Predict("question -> first"))
    graph.add_interrupt("ok", question="Go on?", answer=bool, into="ok")
    graph.add_node("second", dspy.Predict("first -> second")).add_path(START, "first", "ok", "second", END)
    t = graph.compile(store=":memory:").thread("t")

    async def main() -> tuple[list[Message], list[Message]]:
        first = await whole(t.astream({"question": "x"}, tokens=True))
        return first, await whole(t.astream_resume({"ok": True}, tokens=True))

    with dspy.context(lm=ScriptedLM([{"first": "one word"}, {"second": "two words"}])):
        first, second = asyncio.run(main())
    assert [one.name for one in first][-3:] == ["Asked", "RunEnded", "StreamEnded"]
    assert (first[-3].data["question"]["text"], first[-1].data["status"]) == ("Go on?", "interrupted")
    for found, text in ((first, "one word"), (second, "two words")):
        assert "".join(one.data["text"] for one in found if one.name == "Token") == text
    assert second[-1].data["status"] == "completed"
    assert second[0].id == "1"


def test_a_failure_is_the_last_message_and_nothing_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    def fails(token: str) -> None:
        raise ConnectionError(f"the bank refuses {token}")

    program = Graph(inputs=["token"]).add_node("pay", fails, writes=[]).add_path(START, "pay", END)
    found = asyncio.run(whole(program.compile(redact=["token"]).astream({"token": "sesame-open"})))
    assert [one.name for one in found][-3:] == ["NodeFailed", "RunEnded", "StreamEnded"]
    last = found[-1].data
    assert (last["status"], last["error"]["type"]) == ("failed", "ConnectionError")
    assert last["error"]["message"] == found[-3].data["error"]["message"] == "the bank refuses [redacted]"
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "the bank refuses" in record.getMessage()
    assert "sesame" not in f"{found} {caplog.text}"


def refused_inputs() -> AsyncEvents:
    stream: AsyncEvents = adding().astream({"m": 1})
    return stream


def refused_thread() -> AsyncEvents:
    stage = Waiting()
    stream = stage.thread.stream({"n": 1})
    next(stream)
    owned.append(stream)
    return stage.thread.astream({"n": 2})


def no_connection() -> None:
    raise StoreError("no connection to db://user:password@host")


def refused_store() -> AsyncEvents:
    store = FailingMemory()
    store.arm(no_connection, 1, after=False)
    stream: AsyncEvents = adding(store=store).thread("t").astream({"n": 1})
    return stream


owned: list[Any] = []


@pytest.mark.parametrize(
    ("begin", "kind", "text"),
    [
        (refused_inputs, InputError, "'n'"),
        (refused_thread, ConcurrentRunError, "the thread is owned by another run"),
        (refused_store, StoreError, "the log of the server says why"),
    ],
)
def test_a_run_that_cannot_begin_says_so(
    begin: Callable[[], AsyncEvents], kind: type[Exception], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dspyer")
    (found,) = asyncio.run(whole(begin()))
    assert (found.name, found.id, found.data["run_id"], found.data["status"]) == ("StreamEnded", "1", None, "refused")
    assert found.data["error"]["type"] == kind.__name__
    assert text in found.data["error"]["message"]
    assert "password" not in str(found)
    assert f"on {socket.gethostname()!r}" not in found.data["error"]["message"]
    assert f"process {os.getpid()}" not in str(found)
    assert [record.levelno == logging.ERROR for record in caplog.records] == [kind is StoreError]
    with pytest.raises(kind):
        asyncio.run(begin().start())
    while owned:
        owned.pop().close()


def test_a_stream_that_was_started_loses_no_event() -> None:
    async def main() -> list[Message]:
        events = await adding().astream({"n": 1}).start()
        return await whole(await events.start())

    assert [one.name for one in asyncio.run(main())][:2] == ["RunStarted", "Committed"]


def test_a_stream_that_another_task_closes_ends() -> None:
    stage = Waiting()

    async def main() -> list[Message]:
        events = stage.thread.astream({"n": 0})
        reading = asyncio.ensure_future(whole(events))
        await asyncio.to_thread(stage.inside.wait, PATIENCE)
        await events.aclose()
        assert await whole(events) == await whole(events)
        return await reading

    assert asyncio.run(main())[-1].data["status"] == "stopped"
    stage.check()


# --- a client that goes away


class Waiting:
    """A program on a thread, whose first node waits for ever the first time."""

    def __init__(self) -> None:
        self.inside, self.calls = threading.Event(), list[str]()

        async def waits(n: int) -> dict[str, int]:
            self.calls.append("waits")
            if not self.inside.is_set():
                self.inside.set()
                await asyncio.Event().wait()
            return {"n": n + 1}

        def late(n: int) -> dict[str, int]:
            self.calls.append("late")
            return {"n": n + 1}

        graph = Graph(inputs=["n"]).add_node(waits, writes=["n"]).add_node(late, writes=["n"])
        self.thread = graph.add_path(START, "waits", "late", END).compile(store=":memory:").thread("t")

    def check(self) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE / 0.005)):
            if self.thread.status != "running":
                break
            pause.wait(0.005)
        assert (self.thread.status, self.calls) == ("stopped", ["waits"])
        assert self.thread.resume().state["n"] == 2
        assert self.calls == ["waits", "waits", "late"]


async def until_it_waits(stage: Waiting, body: AsyncIterator[bytes]) -> None:
    async for part in body:
        if b"NodeStarted" in part:
            await asyncio.to_thread(stage.inside.wait, PATIENCE)
            return


async def is_closed(stage: Waiting) -> None:
    body: Any = stage.thread.astream({"n": 0}).sse()
    await until_it_waits(stage, body)
    await body.aclose()


async def is_cancelled_while_it_waits(stage: Waiting) -> None:
    reading = asyncio.ensure_future(whole(stage.thread.astream({"n": 0})))
    await asyncio.to_thread(stage.inside.wait, PATIENCE)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def is_cancelled_in_a_scope(stage: Waiting) -> None:
    """As Starlette does."""
    async with anyio.create_task_group() as group:
        group.start_soon(whole, stage.thread.astream({"n": 0}))
        await asyncio.to_thread(stage.inside.wait, PATIENCE)
        group.cancel_scope.cancel()


async def is_dropped(stage: Waiting) -> None:
    await until_it_waits(stage, stage.thread.astream({"n": 0}).sse())
    me = asyncio.current_task()
    await asyncio.wait([task for task in asyncio.all_tasks() if task is not me], timeout=PATIENCE)


@pytest.mark.parametrize("leave", [is_closed, is_cancelled_while_it_waits, is_cancelled_in_a_scope, is_dropped])
def test_a_response_that_ends_early_stops_the_run(leave: Any) -> None:
    stage = Waiting()
    asyncio.run(leave(stage))
    stage.check()


def starlette_app(stream: Callable[[], AsyncEvents]) -> Any:
    async def answer(request: Request) -> StreamingResponse:
        return StreamingResponse(stream().sse(), media_type="text/event-stream")

    return Starlette(routes=[Route("/run", answer)])


def fastapi_app(stream: Callable[[], AsyncEvents]) -> Any:
    app = fastapi.FastAPI()

    @app.get("/run")
    async def answer() -> FastAPIStreamingResponse:
        return FastAPIStreamingResponse(stream().sse(), media_type="text/event-stream")

    return app


@pytest.mark.parametrize("app", [starlette_app, fastapi_app])
def test_a_client_that_disconnects_stops_the_run(app: Any) -> None:
    """Behind a real server. The messages before are those of the stream."""
    stage = Waiting()
    with served(app(lambda: stage.thread.astream({"n": 0}))) as address:
        with httpx.stream("GET", f"{address}/run", timeout=PATIENCE) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.iter_lines()
            assert [next(lines) for _ in range(3)] == ["retry: 86400000", "", "event: RunStarted"]
            assert stage.inside.wait(PATIENCE)
        stage.check()
    with served(app(lambda: adding().astream({"n": 1}))) as address:
        found = read(httpx.get(f"{address}/run", timeout=PATIENCE).content)
    assert [one.name for one in found][-2:] == ["RunEnded", "StreamEnded"]


def test_a_slow_client_holds_up_its_own_run() -> None:
    """What a client does not read fills the sockets and the queue; then the run waits."""
    made, count = [0], 1500

    def emits(ctx: Context) -> None:
        for _ in range(count):
            made[0] += 1
            ctx.emit(20_000 * "x")

    program = Graph().add_node("emits", emits, writes=[]).add_path(START, "emits", END).compile()
    app = starlette_app(lambda: program.astream({}))
    with served(app) as address, httpx.stream("GET", f"{address}/run", timeout=PATIENCE) as response:
        lines = response.iter_lines()  # which would close the response when it is freed
        next(lines)
        before, pause = -1, threading.Event()
        while made[0] != before or made[0] < 1000:
            before = made[0]
            pause.wait(0.05)
        assert made[0] < count
        left = sum(line == "event: Emitted" for line in lines)
    assert left == made[0] == count
