"""`ctx.once`: an effect happens once, however often the node around it is called."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from dspyer import END, START, CompiledGraph, Context, Graph, Run
from dspyer.errors import AttemptError, AttemptOverError, StoreError
from dspyer.events import Emitted, Event
from dspyer.stores import Memory
from dspyer.stores.base import Change
from dspyer.testing import call_node, no_pauses
from tests.runtime.conftest import Play

Take = Callable[..., Run]
T = TypeVar("T")


def noted(calls: list[str], what: str, result: T) -> T:
    calls.append(what)
    return result


def _sync(program: CompiledGraph, name: str, answers: dict[str, Any] | None = None) -> Run:
    thread = program.thread(name)
    return thread.run({}) if answers is None else thread.resume(answers)


def _async(program: CompiledGraph, name: str, answers: dict[str, Any] | None = None) -> Run:
    thread = program.thread(name)
    return asyncio.run(thread.arun({}) if answers is None else thread.aresume(answers))


@pytest.fixture(params=[_sync, _async], ids=["sync", "async"])
def take(request: pytest.FixtureRequest) -> Take:
    chosen: Take = request.param
    return chosen


def alone(node: Any, **options: Any) -> CompiledGraph:
    return Graph().add_node("work", node).add_path(START, "work", END).compile(**options)


def test_a_repeated_attempt_gets_the_recorded_result(take: Take) -> None:
    calls: list[str] = []

    def work(ctx: Context) -> dict[str, Any]:
        paid = ctx.once("charge", lambda: noted(calls, "charge", {"id": 7}))
        assert ctx.interrupt("ok", "Go on?")
        sent = ctx.once("mail", lambda: noted(calls, "mail", "sent"))
        assert ctx.interrupt("really", "Really?")
        return {"paid": paid, "sent": sent}

    program = alone(work, store=":memory:")
    assert take(program, "t").status == "interrupted"
    assert calls == ["charge"]
    assert take(program, "t", {"ok": True}).status == "interrupted"
    run = take(program, "t", {"really": True})
    assert (run.state.to_dict(), calls) == ({"paid": {"id": 7}, "sent": "sent"}, ["charge", "mail"])


def test_an_async_effect_is_awaited_in_every_attempt(take: Take) -> None:
    calls: list[str] = []

    async def charge(key: str) -> list[int]:
        await asyncio.sleep(0)
        calls.append(key)
        return [1]

    async def work(ctx: Context) -> dict[str, Any]:
        paid = await ctx.once("charge", charge)
        again = await ctx.once("again", partial(charge))
        assert ctx.interrupt("ok", "Go on?")
        return {"paid": [*paid, *again]}

    program = alone(work, store=":memory:")
    take(program, "t")
    run = take(program, "t", {"ok": True})
    assert (run.state.to_dict(), len(calls)) == ({"paid": [1, 1]}, 2)


def test_once_works_in_every_place_that_a_program_is_called_from(play: Play) -> None:
    calls: list[str] = []

    def work(ctx: Context) -> dict[str, Any]:
        return {"n": ctx.once("n", lambda: noted(calls, "n", 1))}

    graph = Graph().add_node("a", work).add_node("b", lambda ctx: {"m": work(ctx)["n"]})
    program = graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END).compile()
    assert play(program, {}).state.to_dict() == {"n": 1, "m": 1}
    assert calls == ["n", "n"]


def test_the_first_attempt_gets_the_stored_value_too() -> None:
    given: dict[str, Any] = {"parts": (1, 2), "list": []}

    def work(ctx: Context) -> dict[str, Any]:
        got = ctx.once("n", lambda: given)
        assert got == given
        assert got is not given
        given["list"].append("changed later")
        return {"got": got}

    assert alone(work).run({}).state["got"] == {"parts": (1, 2), "list": []}


def names(count: int, thread: str = "t", *, map_items: bool = False) -> list[str]:
    """The idempotency keys that `count` attempts of one run see."""
    keys: list[str] = []

    def charge(key: str) -> None:
        keys.append(key)
        if len(keys) < count:
            raise ConnectionError("no answer")

    def work(ctx: Context) -> dict[str, Any]:
        ctx.once("charge", charge)
        return {}

    if map_items:
        graph = Graph().add_map("work", lambda x, ctx: work(ctx), over="xs", item="x", into="ys")
        program = graph.add_path(START, "work", END).compile(store=":memory:", max_concurrency=1)
        count = 0
        assert program.thread(thread).run({"xs": [1, 2]}).status == "completed"
        return keys
    program = alone(work, store=":memory:")
    run = program.thread(thread).run({})
    while run.status == "failed":
        run = program.thread(thread).resume()
    return keys


def test_the_key_is_unique_to_an_effect_and_the_same_in_every_attempt() -> None:
    first = names(3)
    assert len(first) == 3
    assert len(set(first)) == 1
    others = [*names(1), *names(1, "other"), *names(1, map_items=True)]
    assert len(set(others)) == 4, "another run, another thread, each item"
    assert first[0] not in others
    assert all(len(key) == 32 for key in others)


def test_the_key_is_the_same_in_every_attempt_of_an_inner_graph() -> None:
    keys: list[str] = []

    def charge(key: str) -> None:
        keys.append(key)
        if len(keys) < 4:
            raise ConnectionError("no answer")

    def work(ctx: Context) -> dict[str, Any]:
        ctx.once("charge", charge)
        return {"done": True}

    inner = Graph().add_node("work", lambda x, ctx: work(ctx)).add_path(START, "work", END).compile()
    graph = Graph().add_map("each", inner, over="xs", item="x", into="ys").add_path(START, "each", END)
    thread = graph.compile(store=":memory:", max_concurrency=1).thread("t")
    run = thread.run({"xs": [1, 2]})
    while run.status == "failed":
        run = thread.resume()
    assert len(set(keys[:4])) == 1
    assert len(set(keys)) == 2


def test_each_visit_has_effects_of_its_own() -> None:
    seen: list[int] = []

    def lap(ctx: Context) -> dict[str, Any]:
        seen.append(ctx.once("n", lambda: ctx.visit))
        return {"n": ctx.visit}

    graph = Graph().add_node("lap", lap).add_edge(START, "lap")
    graph.add_conditional_edges("lap", lambda n: n < 3, {True: "lap", False: END})
    assert graph.compile().run({}).status == "completed"
    assert seen == [1, 2, 3]


def test_an_exception_is_not_recorded(take: Take) -> None:
    calls: list[str] = []

    def flaky() -> str:
        calls.append("flaky")
        if len(calls) == 1:
            raise ConnectionError("try again")
        return "done"

    program = alone(lambda ctx: {"got": ctx.once("flaky", flaky)}, store=":memory:")
    assert isinstance(take(program, "t").error, ConnectionError)
    assert take(program, "t", {}).state["got"] == "done"
    assert len(calls) == 2


def test_none_is_a_result() -> None:
    calls: list[str] = []

    def work(ctx: Context) -> dict[str, Any]:
        got = ctx.once("send", lambda: calls.append("send"))
        return {"got": [got], "ok": ctx.interrupt("ok", "Go on?")}

    program = alone(work, store=":memory:")
    program.thread("t").run({})
    assert program.thread("t").resume({"ok": False}).state.to_dict() == {"got": [None], "ok": False}
    assert calls == ["send"]


async def _coroutine() -> int:
    return 1


def _later() -> Any:
    return _coroutine()


def _twice(ctx: Context) -> None:
    ctx.once("a", lambda: 1)
    ctx.once("a", lambda: 1)


REFUSED: dict[str, tuple[Callable[[Context], Any], str]] = {
    "key twice": (_twice, "used the key 'a' of ctx.once twice"),
    "no key": (lambda ctx: ctx.once("", lambda: 1), "takes a key"),
    "key of another type": (lambda ctx: ctx.once(cast("str", 3), lambda: 1), "this one is 3"),
    "cannot be stored": (lambda ctx: ctx.once("a", object), "the effect 'a' has happened, but cannot be re"),
    "awaitable": (lambda ctx: ctx.once("a", _later), "not async: give ctx.once an `async def`"),
}


@pytest.mark.parametrize(("use", "text"), REFUSED.values(), ids=REFUSED)
def test_wrong_uses_are_refused(use: Callable[[Context], Any], text: str) -> None:
    error = alone(lambda ctx: {"n": use(ctx)}).run({}).error
    assert isinstance(error, AttemptError)
    assert text in str(error)
    assert "'work'" in str(error)


def test_one_key_in_two_nodes_and_in_a_question_is_no_repetition() -> None:
    def work(ctx: Context) -> dict[str, Any]:
        return {"a": ctx.once("a", lambda: 1), "b": ctx.interrupt("a", "?", answer=int)}

    assert alone(work).run({}, answers={"a": 2}).state.to_dict() == {"a": 1, "b": 2}


def test_a_record_is_flushed_before_the_node_continues() -> None:
    writes: list[tuple[list[str], bool]] = []

    class Watched(Memory):
        def write(self, change: Change) -> int:
            writes.append(([row.kind for row in change.rows], change.flush))
            return super().write(change)

    def work(ctx: Context) -> dict[str, Any]:
        ctx.once("charge", lambda: 1)
        assert writes[-1] == (["once"], True)
        return {}

    assert alone(work, store=Watched()).thread("t").run({}).status == "completed"


def test_an_effect_that_cannot_be_written_fails_the_run() -> None:
    class Full(Memory):
        def write(self, change: Change) -> int:
            if any(row.kind == "once" for row in change.rows):
                raise OSError("no space left")
            return super().write(change)

    run = alone(lambda ctx: {"n": ctx.once("n", lambda: 1)}, store=Full()).thread("t").run({})
    assert isinstance(run.error, StoreError)


def test_a_node_without_a_run_makes_its_effects() -> None:
    program = alone(lambda ctx: {"n": ctx.once("n", lambda key: f"as {key}")})
    assert len(call_node(program, "work", {})["n"]) == 35


# --- what an attempt leaves behind, and runs that can record nothing any more


@pytest.mark.parametrize("stored", [True, False])
def test_a_retry_waits_for_an_effect_that_the_failed_attempt_left_in_progress(stored: bool) -> None:
    """`asyncio.gather` raises the first error, and leaves its other tasks running."""
    calls: list[str] = []
    again = asyncio.Event()

    async def work(ctx: Context) -> dict[str, Any]:
        async def charge() -> int:
            calls.append("charge")
            await again.wait()
            for _ in range(50):  # until the next attempt waits
                await asyncio.sleep(0)
            return len(calls)

        async def check() -> None:
            await asyncio.sleep(0)
            if ctx.attempt == 1:
                raise ConnectionError("of the first attempt")
            again.set()

        paid, _ = await asyncio.gather(ctx.once("charge", charge), check())
        return {"paid": paid}

    graph = Graph().add_node("work", work, writes=["paid"], retry=2).add_path(START, "work", END)
    program: Any = graph.compile(store=":memory:").thread("t") if stored else graph.compile()
    with no_pauses():
        run = asyncio.run(program.arun({}))
    assert (run.status, run.state["paid"], calls) == ("completed", 1, ["charge"])


def test_a_retry_waits_for_an_effect_in_a_thread_that_the_failed_attempt_left_running() -> None:
    calls: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def charge() -> str:
        calls.append("charge")
        begun.set()
        assert go_on.wait(20)
        return "paid"

    def work(ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            threading.Thread(target=ctx.once, args=("charge", charge)).start()
            assert begun.wait(20)
            raise ConnectionError("of the first attempt")
        threading.Timer(0.05, go_on.set).start()
        return {"paid": ctx.once("charge", charge)}

    graph = Graph().add_node("work", work, writes=["paid"], retry=2).add_path(START, "work", END)
    with no_pauses():
        assert graph.compile().run({}).state["paid"] == "paid"
    assert calls == ["charge"]


def test_a_task_of_a_failed_attempt_begins_no_effect_while_the_next_one_works() -> None:
    calls: list[str] = []
    refused: list[BaseException] = []
    left: list[asyncio.Task[None]] = []

    async def late(ctx: Context, go_on: asyncio.Event) -> None:
        await go_on.wait()
        uses: list[Callable[[], Any]] = [
            lambda: ctx.once("charge", lambda: noted(calls, "late", 1)),
            lambda: ctx.emit("late"),
        ]
        for use in uses:
            try:
                use()
            except AttemptOverError as error:
                refused.append(error)

    async def work(ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            go_on.append(asyncio.Event())
            left.append(asyncio.ensure_future(late(ctx, go_on[0])))
            raise ConnectionError("of the first attempt")
        go_on[0].set()
        await left[0]
        return {"paid": ctx.once("charge", lambda: noted(calls, "charge", 1))}

    go_on: list[asyncio.Event] = []
    graph = Graph().add_node("work", work, writes=["paid"], retry=2).add_path(START, "work", END)
    events: list[Event] = []

    async def main() -> Run:
        async with graph.compile().astream({}) as stream:
            events.extend([event async for event in stream])
        return stream.run

    with no_pauses():
        run = asyncio.run(main())
    assert (run.status, calls, len(refused)) == ("completed", ["charge"], 2)
    assert "attempt 1 has failed, and another one follows" in str(refused[0])
    assert not [event for event in events if isinstance(event, Emitted)]


def test_no_effect_begins_once_the_run_is_known_to_have_lost_its_thread(take: Take) -> None:
    calls: list[str] = []

    def work(ctx: Context) -> dict[str, Any]:
        if not stopped:
            stopped.append(True)
            stop = threading.Thread(target=program.thread("t").stop)
            stop.start()
            stop.join()
        return {"paid": ctx.once("charge", lambda: noted(calls, "charge", len(calls)))}

    stopped: list[bool] = []
    program = alone(work, store=":memory:")
    assert (take(program, "t").status, calls) == ("stopped", [])
    assert take(program, "t", {}).status == "completed"
    assert calls == ["charge"]
