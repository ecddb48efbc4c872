"""Following a thread over the real server: how soon a step shows, how many polls it costs, and every way it ends."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import dspyer.inspector
from dspyer import END, START, Graph, Thread
from dspyer.archive.archived_thread import ArchivedThread
from dspyer.inspector import following as following_module
from dspyer.stores import Memory
from tests.asgi_server import served
from tests.inspector.asking import TOKEN

PATIENCE = 20.0
AUTH = {"X-Dspyer-Token": TOKEN}


class Stepping:
    """A thread whose run makes one step whenever it is told to."""

    def __init__(self, steps: int) -> None:
        self.go = threading.Semaphore(0)
        graph = Graph().add_node("step", self.step).add_path(START, "step")
        graph.add_conditional_edges("step", lambda n: "step" if n < steps else END, ["step", END])
        self.store = Memory()
        self.thread: Thread = graph.compile(store=self.store).thread("t")
        self.worker = threading.Thread(target=self.thread.run, args=({"n": 0},), daemon=True)

    def step(self, n: int) -> dict[str, int]:
        assert self.go.acquire(timeout=PATIENCE)
        return {"n": n + 1}

    def start(self) -> None:
        self.worker.start()
        deadline = time.monotonic() + PATIENCE
        while self.thread.status == "new":
            assert time.monotonic() < deadline


class Messages:
    """The messages of a stream, as a page reads them."""

    def __init__(self, response: httpx.Response) -> None:
        self.chunks = response.iter_text()
        self.rest = ""
        self.comments: list[str] = []

    def next(self) -> tuple[str, str, Any]:
        """The next message: its event, id and data."""
        while True:
            while "\n\n" not in self.rest:
                self.rest += next(self.chunks)
            text, self.rest = self.rest.split("\n\n", 1)
            if text.startswith(":"):
                self.comments.append(text)
                continue
            lines = dict(line.split(": ", 1) for line in text.split("\n"))
            return lines["event"], lines.get("id", ""), json.loads(lines["data"])


@contextmanager
def following(address: str, **params: Any) -> Iterator[Messages]:
    query = {"thread": "t", **params}
    with httpx.stream("GET", f"{address}/api/follow", params=query, headers=AUTH, timeout=PATIENCE) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        yield Messages(response)


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_each_step_shows_soon_to_every_reader_for_one_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    polls: list[str] = []
    position = ArchivedThread.position

    def counted(self: ArchivedThread) -> str:
        polls.append(position(self))
        return polls[-1]

    told = defaultdict[str, list[int]](list)
    message = following_module._message

    def noted(event: str, data: dict[str, Any], position: str) -> bytes:
        told[position].append(len(polls))
        return message(event, data, position)

    monkeypatch.setattr(ArchivedThread, "position", counted)
    monkeypatch.setattr(following_module, "_message", noted)
    run = Stepping(4)
    run.start()
    app = dspyer.inspector.app(run.store, token=TOKEN)
    with served(app) as address, following(address) as first, following(address) as second:
        seen = [first.next(), second.next()]
        assert seen[0][:2] == seen[1][:2]
        began, before = time.monotonic(), len(polls)
        for _ in range(4):
            run.go.release()
            for reader in (first, second):
                event, shown, _ = reader.next()
                assert event == "changed"
                # Told after the poll that found it, if not after one more on a busy machine.
                assert max(told[shown]) - polls.index(shown) <= 2
        assert following_module.INTERVAL < 0.1
        assert len(polls) - before <= (time.monotonic() - began) / 0.08 + 3  # those of one reader
        assert list(app.state.followers.polling) == ["t"]
    run.worker.join(PATIENCE)
    assert app.state.followers.polling == {}


def test_a_reader_that_knows_the_position_hears_of_the_next_change_alone() -> None:
    run = Stepping(1)
    run.start()
    with served(dspyer.inspector.app(run.store, token=TOKEN)) as address:
        with following(address) as reader:
            known = reader.next()[1]
        with following(address, after=known) as reader:
            run.go.release()
            event, position, data = reader.next()
            assert event == "changed"
            assert position == data["position"] != known
    run.worker.join(PATIENCE)


def test_a_reader_that_goes_ends_the_poll() -> None:
    run = Stepping(1)
    run.start()
    app = dspyer.inspector.app(run.store, token=TOKEN)
    with served(app) as address:
        with following(address) as reader:
            reader.next()
            assert list(app.state.followers.polling) == ["t"]
        until(lambda: not app.state.followers.polling)
    run.go.release()
    run.worker.join(PATIENCE)


def test_a_deleted_thread_and_a_store_that_fails_end_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Stepping(1)
    run.go.release()
    run.start()
    run.worker.join(PATIENCE)
    app = dspyer.inspector.app(run.store, token=TOKEN)
    with served(app) as address:
        with following(address) as reader:
            reader.next()
            run.thread.delete()
            assert reader.next()[0] == "gone"
            with pytest.raises(StopIteration):
                reader.next()
        response = httpx.get(f"{address}/api/follow?thread=t", headers=AUTH, timeout=PATIENCE)
        assert response.status_code == 404
        run.go.release()
        run.thread.run({"n": 0})

        def fail(self: ArchivedThread) -> str:
            raise OSError("no disk")

        with following(address) as reader:
            reader.next()
            monkeypatch.setattr(ArchivedThread, "position", fail)
            assert reader.next()[::2] == ("error", {"message": "no disk"})
            with pytest.raises(StopIteration):
                reader.next()


def test_silence_is_filled_and_the_end_of_the_server_ends_the_stream() -> None:
    run = Stepping(1)
    run.go.release()
    run.start()
    run.worker.join(PATIENCE)
    app = dspyer.inspector.app(run.store, token=TOKEN)
    app.state.followers._heartbeat = 0.01
    with served(app) as address, following(address) as reader:
        reader.next()
        threading.Timer(0.1, app.state.followers.close).start()
        with pytest.raises(StopIteration):
            reader.next()
        assert ": waiting" in reader.comments


def test_a_stream_needs_the_token_and_a_thread() -> None:
    run = Stepping(1)
    with served(dspyer.inspector.app(run.store, token=TOKEN)) as address:
        assert httpx.get(f"{address}/api/follow?thread=t", timeout=PATIENCE).status_code == 401
        assert httpx.get(f"{address}/api/follow", headers=AUTH, timeout=PATIENCE).status_code == 400
        assert httpx.get(f"{address}/api/follow?thread=missing", headers=AUTH, timeout=PATIENCE).status_code == 404
