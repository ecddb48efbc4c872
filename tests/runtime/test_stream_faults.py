"""Streams at their limits: a collector that works under a lock, a fork, no thread left, another event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dspyer import END, START, Context, Graph
from dspyer.stores import Memory
from dspyer.stores.base import Change
from tests.asgi_server import PATIENCE


def alone(node: Any, **options: Any) -> Any:
    return Graph().add_node("node", node, writes=[]).add_path(START, "node", END).compile(**options)


def counting(store: Any, until: Callable[[], object] = lambda: time.sleep(0.001)) -> Any:
    """A program that counts to 500; each step goes on once `until` returns."""

    def count(n: int) -> dict[str, int]:
        until()
        return {"n": n + 1}

    graph = Graph(inputs=["n"]).add_node("count", count, writes=["n"]).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda n: "count" if n < 500 else END, ["count", END]).compile(
        store=store
    )


class Locked(Memory):
    """A store with a lock that is held while it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def write(self, change: Change) -> int:
        with self.lock:
            return super().write(change)


def test_a_stream_is_collected_in_its_readers_thread_while_that_holds_a_lock_of_the_store() -> None:
    """There nothing may wait for the run either: it needs the lock to write its end."""
    store = Locked()
    thread = counting(store).thread("t")

    def reads_and_collects() -> None:
        cycle: list[Any] = [thread.stream({"n": 0})]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        with store.lock:
            gc.collect()

    gc.disable()
    pool = ThreadPoolExecutor(1)
    try:
        pool.submit(reads_and_collects).result(PATIENCE)
    finally:
        gc.enable()
        pool.shutdown(wait=False)
    end = time.monotonic() + PATIENCE
    while thread.status == "running":
        assert time.monotonic() < end
        time.sleep(0.001)
    assert thread.status == "stopped"


def test_what_a_node_has_left_running_emits_to_the_end_and_waits_for_no_reader() -> None:
    left: list[threading.Thread] = []
    ended = threading.Event()

    def node(ctx: Context) -> None:
        def emits() -> None:
            ended.wait(PATIENCE)
            for number in range(3000):  # more than wait for a reader
                ctx.emit(number)

        left.append(threading.Thread(target=emits, daemon=True))
        left[0].start()

    stream = alone(node).stream({})
    events = list(stream)
    ended.set()
    left[0].join(PATIENCE)
    assert not left[0].is_alive()
    assert type(events[-1]).__name__ == "RunEnded"
    assert list(stream) == []


def test_without_a_thread_the_run_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        if thread.name == "dspyer-stream":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    thread = counting(":memory:").thread("t")
    with thread.stream({"n": 0}) as stream:
        with pytest.raises(RuntimeError, match="can't start"):
            next(stream)
        assert list(stream) == []
    with pytest.raises(RuntimeError, match="can't start"):
        _ = stream.run
    assert thread.status == "new"


def closes(stream: Any) -> None:
    stream.close()


def reads(stream: Any) -> None:
    with pytest.raises(RuntimeError, match="forked"):
        next(stream)


def drops(stream: Any) -> None:
    del stream


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("leave", [closes, reads, drops])
def test_a_forked_process_leaves_the_run_to_its_parent(leave: Callable[[Any], None]) -> None:
    thread = counting(":memory:").thread("t")
    with thread.stream({"n": 480}) as stream:
        next(stream)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(int(PATIENCE))
                sent = [stream]
                del stream
                leave(sent.pop())
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        list(stream)
    assert (stream.run.status, stream.run.state["n"]) == ("completed", 500)


async def aread(stream: Any) -> None:
    await anext(stream)


async def aclose(stream: Any) -> None:
    await stream.aclose()


@pytest.mark.parametrize("use", [aread, aclose])
@pytest.mark.parametrize("loop_is", ["alive", "closed"])
def test_a_stream_of_another_event_loop_says_so(use: Any, loop_is: str) -> None:
    # Nothing can end the run of a closed loop: it has no store, where it would own a thread until the process ends.
    released = threading.Event()
    program = counting(":memory:" if loop_is == "alive" else None, until=lambda: released.wait(PATIENCE))
    stream = program.thread("t").astream({"n": 0}) if loop_is == "alive" else program.astream({"n": 0})
    loop = asyncio.new_event_loop()
    loop.run_until_complete(aread(stream))
    serving = threading.Thread(target=loop.run_forever, daemon=True)
    if loop_is == "alive":
        serving.start()
    else:
        loop.close()

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(use(stream))

    async def closes_at_home() -> None:
        closing = asyncio.create_task(stream.aclose())
        await asyncio.sleep(0)  # now it has asked the run to stop, and waits for the node
        released.set()
        await closing

    pool = ThreadPoolExecutor(1)
    try:
        pool.submit(elsewhere).result(PATIENCE)
        if loop_is == "alive":
            asyncio.run_coroutine_threadsafe(closes_at_home(), loop).result(PATIENCE)
            assert stream.run.status == "stopped"
            loop.call_soon_threadsafe(loop.stop)
            serving.join(PATIENCE)
            loop.close()
    finally:
        released.set()
        pool.shutdown(wait=False)


@pytest.mark.parametrize("closes", [True, False])
def test_a_refusal_that_no_reader_has_seen_is_no_complaint_of_asyncio(closes: bool) -> None:
    """The reader is cancelled before, while and after the run is refused."""
    complaints: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        for turns in range(12):
            streams = [counting(None).astream({"unknown": 1})]
            reader = asyncio.ensure_future(aread(streams[0]))
            for _ in range(turns):
                await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader])
            if not reader.cancelled():
                assert "unknown" in str(reader.exception())
            if closes:
                await streams[0].aclose()
            del streams, reader
            gc.collect()
            await asyncio.sleep(0)

    asyncio.run(main())
    assert complaints == []
