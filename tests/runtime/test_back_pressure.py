"""A run that is ahead of its reader waits: nothing is dropped or reordered, and a reader that leaves ends the wait."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Context, Graph, Thread, live, reducers, waiting
from dspyer.events import Emitted, Posted, RunEnded, Token
from dspyer.lm.token_stream import StreamedCall
from dspyer.testing import ScriptedLM
from dspyer.waiting import LIMIT, EventQueue
from tests.asgi_server import PATIENCE
from tests.rows import each

modes = pytest.mark.parametrize("mode", ["sync", "async"])


class Lead:
    """How far a producer is ahead of the reader, counted at each step of the producer."""

    def __init__(self) -> None:
        self.made = self.read = self.most = 0

    def note(self) -> None:
        self.made += 1
        self.most = max(self.most, self.made - self.read)


def until_full(stream: Any) -> None:
    """Waits until the run of a stream waits for its reader."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.001)):
        if stream._queue.is_full:
            return
        pause.wait(0.001)
    raise AssertionError("the queue has room")


def emitting(lead: Lead, count: int) -> Callable[[Context], None]:
    def emits(ctx: Context) -> None:
        for number in range(count):
            lead.note()
            ctx.emit(number)

    return emits


def alone(node: Any, **options: Any) -> Any:
    return Graph().add_node("node", node, writes=[]).add_path(START, "node", END).compile(**options)


def values_of(events: list[Any]) -> list[Any]:
    return [event.value for event in events if isinstance(event, Emitted)]


def slowly(events: Any, lead: Lead) -> Iterator[Any]:
    """Begins to read once the queue is full."""
    yield next(events)
    until_full(events)
    for event in events:
        lead.read += isinstance(event, Emitted)
        yield event


async def aslowly(events: Any, lead: Lead) -> list[Any]:
    found = [await anext(events)]
    await asyncio.to_thread(until_full, events)
    async for event in events:
        lead.read += isinstance(event, Emitted)
        found.append(event)
    return found


# --- a full queue


@modes
def test_a_sync_node_that_emits_into_a_full_queue_waits(mode: str) -> None:
    """In an async run too: there it is in a thread of its own."""
    lead, count = Lead(), 3 * LIMIT
    program = alone(emitting(lead, count))
    if mode == "sync":
        found = list(slowly(program.stream({}), lead))
    else:
        found = asyncio.run(aslowly(program.astream({}), lead))
    assert values_of(found) == list(range(count))
    assert LIMIT - 5 < lead.most <= LIMIT + 2, "other events are in the queue too"


def looping(node: Any, rounds: int) -> Any:
    graph = Graph(inputs=["n"]).add_node("node", node, writes=["n"]).add_edge(START, "node")
    return graph.add_conditional_edges("node", lambda n: "node" if n < rounds else END, ["node", END]).compile()


def test_an_async_node_emits_at_once_and_the_next_step_waits() -> None:
    lead, each, rounds = Lead(), 600, 6

    async def node(n: int, ctx: Context) -> dict[str, int]:
        for _ in range(each):
            lead.note()
            ctx.emit(lead.made)
        return {"n": n + 1}

    async def main() -> list[Any]:
        return await aslowly(looping(node, rounds).astream({"n": 0}), lead)

    assert values_of(asyncio.run(main())) == list(range(1, each * rounds + 1))
    assert LIMIT <= lead.most < LIMIT + each


@modes
def test_the_next_item_of_a_map_waits(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LIMIT", 10)
    lead = Lead()

    def read(item: int) -> int:
        lead.note()
        return item

    async def aread(item: int) -> int:
        return read(item)

    graph = Graph(inputs=["items"])
    graph.add_map("read", read if mode == "sync" else aread, over="items", item="item", into="found")
    program = graph.add_path(START, "read", END).compile(max_concurrency=2)
    inputs = {"items": list(range(100))}

    def note(event: Any) -> None:
        lead.read += type(event).__name__ == "ItemFinished"

    async def main() -> Any:
        async with program.astream(inputs) as stream:
            async for event in stream:
                note(event)
        return stream.run

    if mode == "async":
        run = asyncio.run(main())
    else:
        with program.stream(inputs) as stream:
            for event in stream:
                note(event)
        run = stream.run
    assert run.state["found"] == inputs["items"]
    assert lead.most <= 10


def test_a_post_to_a_live_field_waits_where_nothing_is_locked() -> None:
    class Shared(BaseModel):
        notes: Annotated[list[int], reducers.append, live] = []

    lead = Lead()

    def posts(ctx: Context) -> None:
        for number in range(LIMIT + 50):
            lead.note()
            ctx.post("notes", number)

    graph = Graph(Shared).add_node("posts", posts, writes=["notes"]).add_path(START, "posts", END)
    with graph.compile().stream({}) as events:
        next(events)
        until_full(events)
        found = [event.value for event in events if isinstance(event, Posted)]
    assert found == list(range(LIMIT + 50))


def test_memory_does_not_grow_with_the_number_of_events() -> None:
    """Counted: how many of the emitted objects are alive at once."""

    class Piece:
        pass

    alive: weakref.WeakSet[Piece] = weakref.WeakSet()
    most = 0

    def emits(ctx: Context) -> None:
        nonlocal most
        for _ in range(20 * LIMIT):
            piece = Piece()
            alive.add(piece)
            ctx.emit(piece)
            most = max(most, len(alive))

    count = 0
    with alone(emits).stream({}) as events:
        for event in events:
            count += isinstance(event, Emitted)
    del event
    gc.collect()
    assert (count, len(alive)) == (20 * LIMIT, 0)
    assert LIMIT / 2 < most <= LIMIT + 3
    assert len(events.run.events) == 5


def test_what_a_node_has_left_running_adds_no_event_after_the_end() -> None:
    left: list[Context] = []

    async def leave(ctx: Context) -> None:
        left.append(ctx)

    async def main() -> list[Any]:
        found: list[Any] = []
        async for event in alone(leave).astream({}):
            found.append(event)
            if isinstance(event, RunEnded):
                for _ in range(50):  # the run's own task ends meanwhile
                    await asyncio.sleep(0)
                left[0].emit("late")
        return found

    assert isinstance(asyncio.run(main())[-1], RunEnded)


# --- tokens


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Lead:
    """Counts the chunks that LMs have sent."""
    lead, send = Lead(), StreamedCall.send

    async def counted(self: StreamedCall, chunk: Any) -> None:
        lead.note()
        await send(self, chunk)

    monkeypatch.setattr(StreamedCall, "send", counted)
    return lead


LONG = " ".join(f"w{number}" for number in range(2 * LIMIT))


def asking() -> Any:
    return Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer")).add_path(START, "ask", END)


@modes
def test_the_lm_is_read_no_faster_than_the_tokens(mode: str, chunks: Lead) -> None:
    program, found = asking().compile(), list[Any]()

    def note(event: Any) -> None:
        found.append(event)
        chunks.read += isinstance(event, Token)

    async def main() -> None:
        events = program.astream({"question": "x"}, tokens=True)
        note(await anext(events))
        await asyncio.to_thread(until_full, events)
        async for event in events:
            note(event)

    with dspy.context(lm=ScriptedLM([{"answer": LONG}])):
        if mode == "async":
            asyncio.run(main())
        else:
            for event in slowly(program.stream({"question": "x"}, tokens=True), Lead()):
                note(event)
    assert "".join(event.text for event in found if isinstance(event, Token)) == LONG
    assert LIMIT - 5 < chunks.most <= LIMIT + 20  # the header of the field is no token


def test_a_run_whose_tokens_are_not_read_holds_up_no_other_run() -> None:
    """The chunks of sync runs arrive on one event loop of the process."""
    program = asking().compile()
    with dspy.context(lm=ScriptedLM([{"answer": LONG}])), program.stream({"question": "x"}, tokens=True) as unread:
        next(unread)
        until_full(unread)
        with dspy.context(lm=ScriptedLM([{"answer": "a short answer"}])):
            other = list(program.stream({"question": "y"}, tokens=True))
        assert "".join(event.text for event in other if isinstance(event, Token)) == "a short answer"
    assert (unread.run.status, unread.run.state["answer"]) == ("stopped", LONG), "a sync node is finished"


# --- a reader that leaves while the run waits for it


class Waits:
    """A program on a thread whose first node emits more than the queue holds."""

    def __init__(self, mode: str = "sync") -> None:
        self.lead = Lead()
        self.calls: list[str] = []

        def emits(n: int, ctx: Context) -> dict[str, int]:
            self.calls.append("emits")
            emitting(self.lead, 3 * LIMIT)(ctx)
            return {"n": n + 1}

        async def aemits(n: int, ctx: Context) -> dict[str, int]:
            return emits(n, ctx)

        def late(n: int) -> dict[str, int]:
            self.calls.append("late")
            return {"n": n + 1}

        graph = Graph(inputs=["n"]).add_node("emits", emits if mode == "sync" else aemits, writes=["n"])
        graph.add_node("late", late, writes=["n"]).add_path(START, "emits", "late", END)
        self.thread: Thread = graph.compile(store=":memory:").thread("t")

    def begun(self) -> Any:
        stream = self.thread.stream({"n": 0})
        next(stream)
        until_full(stream)
        return stream

    def check(self) -> None:
        assert (self.thread.status, self.calls) == ("stopped", ["emits"])
        assert self.thread.resume().state["n"] == 2
        assert self.calls == ["emits", "late"]


def closes(waits: Waits) -> None:
    stream = waits.begun()
    stream.close()
    assert stream.run.error.reason == "its stream was closed"
    assert list(stream) == []


def closes_in_another_thread(waits: Waits) -> None:
    stream = waits.begun()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stream.close).result(PATIENCE)
    assert list(stream) == []


def leaves_a_block_that_raises(waits: Waits) -> None:
    def fails() -> None:
        with waits.begun():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()


def drops(waits: Waits) -> None:
    stream = waits.begun()
    del stream


def is_collected(waits: Waits) -> None:
    """In another thread than the reader's, so that nothing waits for the end."""
    cycle: list[Any] = [waits.begun()]
    future = cycle[0]._future
    cycle.append(cycle)
    del cycle
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gc.collect).result(PATIENCE)
    assert future.result(PATIENCE).status == "stopped"


def is_stopped(waits: Waits) -> None:
    """By something else than its reader, who does not read."""
    stream = waits.begun()
    stream._request.stop_signal.stop("a test stops it")
    assert stream._future.result(PATIENCE).status == "stopped"
    assert len(values_of(list(stream))) == 3 * LIMIT, "the reader is there: nothing is dropped"


@each("leave", [closes, closes_in_another_thread, leaves_a_block_that_raises, drops, is_collected, is_stopped])
def test_a_reader_that_leaves_a_full_queue_ends_the_run(leave: Callable[[Waits], None]) -> None:
    waits = Waits()
    leave(waits)
    waits.check()


async def acloses(events: Any) -> None:
    await events.aclose()
    assert [event async for event in events] == []


async def is_cancelled(events: Any) -> None:
    """As `asyncio.run` does with every task when it ends, and this one with a stream that is still referenced."""
    events._future.cancel()
    await asyncio.wait([events._future])


async def adrops(events: Any) -> None:
    task = events._future
    del events
    await asyncio.wait([task])


@each("leave", [acloses, is_cancelled, adrops])
@modes
def test_an_async_reader_that_leaves_a_full_queue_ends_the_run(leave: Any, mode: str) -> None:
    waits = Waits(mode)

    async def main() -> None:
        stream = [waits.thread.astream({"n": 0})]
        await anext(stream[0])
        await asyncio.to_thread(until_full, stream[0])
        await leave(stream.pop())

    asyncio.run(main())
    waits.check()


def test_a_stream_is_collected_in_the_thread_of_its_own_run() -> None:
    """There nothing may wait for the run."""
    waits, collected = Waits(), threading.Event()
    emit = waits.lead.note

    def note() -> None:
        emit()
        if waits.lead.made == 10:
            assert dropped.wait(PATIENCE)
            gc.collect()
            collected.set()

    dropped, waits.lead.note = threading.Event(), note  # type: ignore[method-assign]
    cycle: list[Any] = [waits.thread.stream({"n": 0})]
    next(cycle[0])
    future = cycle[0]._future
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        dropped.set()
        assert collected.wait(PATIENCE)
    finally:
        gc.enable()
    assert future.result(PATIENCE).status == "stopped"
    waits.check()


# --- the queue by itself


def test_threads_and_tasks_share_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LIMIT", 3)
    queue: EventQueue[int] = EventQueue()
    sizes: list[int] = []

    def produce(start: int) -> None:
        for number in range(start, start + 500):
            queue.put(number)
            sizes.append(len(queue))
            queue.wait_for_room()

    async def aproduce(start: int) -> None:
        for number in range(start, start + 500):
            queue.put(number)
            sizes.append(len(queue))
            await queue.room()

    def consume() -> list[int]:
        return list(iter(queue.get, None))

    async def aconsume() -> list[int]:
        found: list[int] = []
        while (number := await queue.get_async()) is not None:
            found.append(number)
        return found

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(consume), pool.submit(lambda: asyncio.run(aconsume()))]
        producers = [pool.submit(produce, start) for start in (0, 1000)]
        producers += [pool.submit(asyncio.run, aproduce(start)) for start in (2000, 3000)]
        for producer in producers:
            producer.result(PATIENCE)
        queue.end()
        found = [reader.result(PATIENCE) for reader in readers]
    assert sorted(found[0] + found[1]) == [start + number for start in range(0, 4000, 1000) for number in range(500)]
    for one in found:
        for start in range(0, 4000, 1000):
            mine = [number for number in one if start <= number < start + 500]
            assert mine == sorted(mine), "what one producer has put arrives in its order"
    assert max(sizes) <= 3 + 4
