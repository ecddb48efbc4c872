"""Following a thread: how soon a step shows, how many polls it costs, and every way it ends. A test moves the time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

import dspyer.inspector
from dspyer import END, START, Graph
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import ThreadRow
from tests.asgi_server import served
from tests.inspector.asking import TOKEN, get, request
from tests.inspector.desk import Stepping

PATIENCE = 20.0
INTERVAL = 0.08  # seconds between two polls
AUTH = {"X-Dspyer-Token": TOKEN}


class Polled(Memory):
    """A store that counts how often the inspector asks for a thread, and may fail then."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = 0
        self.fails = False

    def thread(self, name: str) -> ThreadRow | None:
        if threading.current_thread().name.startswith("AnyIO"):
            self.polls += 1
            if self.fails:
                raise OSError("no disk")
        return super().thread(name)


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time a test moves."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class Stage:
    """A thread whose run makes one step whenever it is told to, and the inspector of its store."""

    def __init__(self, steps: int) -> None:
        self.go = threading.Semaphore(0)
        graph = Graph().add_node("step", self.step).add_path(START, "step")
        graph.add_conditional_edges("step", lambda n: "step" if n < steps else END, ["step", END])
        self.store = Polled()
        self.thread = graph.compile(store=self.store).thread("t")
        self.worker = threading.Thread(target=self.thread.run, args=({"n": 0},), daemon=True)
        self.app = dspyer.inspector.app(self.store, token=TOKEN)

    def step(self, n: int) -> dict[str, int]:
        assert self.go.acquire(timeout=PATIENCE)
        return {"n": n + 1}

    async def has_steps(self, count: int) -> None:
        """Wait until so many are committed, the first commit of the run included."""
        await until(lambda: self.thread.status != "new" and len(self.thread.history()) >= count)

    async def tick(self) -> None:
        """Let it be time for the next poll, and wait until it was made."""
        before = self.store.polls
        pass_by(INTERVAL)
        await until(lambda: self.store.polls > before)
        await asyncio.sleep(0.002)


def pass_by(seconds: float) -> None:
    loop: Any = asyncio.get_running_loop()
    loop.ahead += seconds


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(1000 * PATIENCE):  # of a time that is moved
        while not condition():  # noqa: ASYNC110 - it is true of threads
            await asyncio.sleep(0.001)


class Reader:
    """A page that follows the thread; it reads the messages as they come."""

    def __init__(self, stage: Stage, **params: str) -> None:
        self.messages: list[tuple[str, str, Any]] = []
        self.comments: list[str] = []
        self.headers: dict[str, str] = {}
        self._rest = ""
        self._asks = [{"type": "http.request", "body": b"", "more_body": False}]
        self._gone = asyncio.Event()
        query = urlencode({"thread": "t", **params}).encode()
        headers = [(b"host", b"127.0.0.1:8000"), (b"x-dspyer-token", TOKEN.encode())]
        scope = {"type": "http", "method": "GET", "path": "/api/follow", "query_string": query, "headers": headers}
        self.task = asyncio.create_task(stage.app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._asks:
            return self._asks.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        *texts, self._rest = (self._rest + message["body"].decode()).split("\n\n")
        for text in texts:
            if text.startswith(":"):
                self.comments.append(text)
                continue
            lines = dict(line.split(": ", 1) for line in text.split("\n"))
            self.messages.append((lines["event"], lines.get("id", ""), json.loads(lines["data"])))

    async def next(self) -> tuple[str, str, Any]:
        """The next message."""
        await until(lambda: self.messages)
        return self.messages.pop(0)

    async def leave(self) -> None:
        """Close the page."""
        self._gone.set()
        await self.task


def played(steps: int, play: Callable[[Stage], Coroutine[Any, Any, None]]) -> Stage:
    """Plays a test on a stage whose run has begun, and ends the run."""
    stage = Stage(steps)
    stage.worker.start()

    async def main() -> None:
        await stage.has_steps(1)
        await play(stage)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())
    for _ in range(steps):
        stage.go.release()
    stage.worker.join(PATIENCE)
    return stage


def test_each_step_shows_soon_to_every_reader() -> None:
    async def play(stage: Stage) -> None:
        readers = [Reader(stage), Reader(stage)]
        first = [await reader.next() for reader in readers]
        assert first[0] == first[1]
        assert readers[0].headers["content-type"].startswith("text/event-stream")
        assert readers[0].headers["cache-control"] == "no-store"
        for step in range(2, 6):
            stage.go.release()
            await stage.has_steps(step)
            for _ in range(2):  # a poll may have begun before
                await stage.tick()
            shown = [reader.messages.pop()[:2] for reader in readers]
            assert shown[0] == shown[1]
            assert shown[0][0] == "changed"
        await readers[0].leave()
        await stage.tick()
        await readers[1].leave()
        before = stage.store.polls
        for _ in range(5):
            pass_by(INTERVAL)
            await asyncio.sleep(0.002)
        assert stage.store.polls <= before + 1, "no reader is left"

    played(4, play)


def test_a_reader_that_knows_the_position_hears_of_the_next_change_alone() -> None:
    async def play(stage: Stage) -> None:
        reader = Reader(stage)
        _, known, _ = await reader.next()
        await reader.leave()
        reader = Reader(stage, after=known)
        await stage.tick()
        await stage.tick()
        assert reader.messages == []
        stage.go.release()
        event, position, data = await reader.next()
        assert event == "changed"
        assert position == data["position"] != known
        await reader.leave()

    played(1, play)


@pytest.mark.parametrize("deleted", [True, False])
def test_a_deleted_thread_and_a_store_that_fails_end_the_stream(deleted: bool) -> None:
    async def play(stage: Stage) -> None:
        stage.go.release()
        await asyncio.to_thread(stage.worker.join, PATIENCE)
        reader = Reader(stage)
        await reader.next()
        await stage.tick()
        reader.messages.clear()
        if deleted:
            stage.thread.delete()
        else:
            stage.store.fails = True
        event, _, data = await reader.next()
        assert event == ("gone" if deleted else "error")
        assert deleted or "no disk" in data["message"]
        await asyncio.wait_for(reader.task, PATIENCE)

    stage = played(1, play)
    if deleted:
        assert request(stage.app, "GET", "/api/follow?thread=t", headers=AUTH).status_code == 404


def test_silence_is_filled() -> None:
    async def play(stage: Stage) -> None:
        reader = Reader(stage)
        await reader.next()
        pass_by(14)
        await stage.tick()
        assert ": waiting" not in reader.comments
        pass_by(1)
        await until(lambda: ": waiting" in reader.comments)
        await reader.leave()

    played(1, play)


def test_a_stream_needs_the_token_and_a_thread() -> None:
    app = Stage(1).app
    rows = [("?thread=t", {}, 401), ("", AUTH, 400), ("?thread=missing", AUTH, 404)]
    for query, headers, status in rows:
        assert request(app, "GET", f"/api/follow{query}", headers=headers).status_code == status


def test_another_process_is_followed_until_it_is_killed(tmp_path: Path) -> None:
    """Each change is told within 0.5 s, and what the process works on follows from its rows."""
    path = tmp_path / "runs.db"
    stepping = Stepping(path)
    stepping.ready()
    app = dspyer.inspector.app(SQLite(path), token=TOKEN)
    stepping.go()
    while request(app, "GET", "/api/record?thread=watched", headers=AUTH).status_code != 200:
        time.sleep(0.01)
    with served(app) as address, httpx.stream("GET", f"{address}/api/follow?thread=watched", headers=AUTH) as stream:
        lines, known, took = stream.iter_lines(), "", list[float]()
        found: list[tuple[str, list[tuple[str, str]]]] = []
        for act in (None, stepping.go, stepping.go, stepping.kill):
            began = time.perf_counter()
            if act is not None:
                act()
            while next(lines) != "event: changed":
                pass
            answer = get(app, "record", thread="watched", after=known)
            took.append(time.perf_counter() - began)
            known = answer["position"]
            found.append((answer["run"]["status"], [(step["id"], step["status"]) for step in answer["items"]]))
    assert min(took[1:]) < 0.5  # of three: other processes may take the time of this one
    steps = [f"watched.1/trunk:{number}" for number in range(4)]
    assert found[1:] == [
        ("running", [(steps[1], "done"), (steps[2], "running")]),
        ("running", [(steps[2], "done"), (steps[3], "running")]),
        ("crashed", [(steps[3], "stopped")]),
    ]
