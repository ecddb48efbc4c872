"""The gate of an LM: even spacing, holds, slots for threads and event loops at once, nothing lost when one gives up."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tenacity import wait_fixed

from dspyer import END, START, Graph, Retry, clock
from dspyer.clock import TimeLimit, current_limit
from dspyer.errors import AttemptOverError
from dspyer.lms import reliable
from dspyer.lms.gate import Gate, RateLimits, Slots, SlotStep
from dspyer.nodes.steps import arun_script, run_script
from dspyer.testing import no_pauses
from dspyer.testing.fake_clock import fake_clock
from tests.budget import deep
from tests.http_faults import Cut, DateIn, Drop, Fault, Hold, Html, Status
from tests.openai_server import OpenAIServer, prompt_of, text_of
from tests.rows import each

PATIENCE = 30  # seconds after which a test that hangs fails


def enter(gate: Gate, tokens: int = 0) -> float:
    """Enters in sync code; returns when."""
    run_script(gate.enter(tokens))
    return clock.now()


# --- time


def test_requests_are_spaced_evenly() -> None:
    with fake_clock():
        gate = Gate(RateLimits(requests_per_minute=600))
        times = [enter(gate) for _ in range(30)]
        clock.pause(10)
        times += [enter(gate) for _ in range(30)]
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[29] == pytest.approx(10)
    assert [*gaps[:29], *gaps[30:]] == pytest.approx([0.1] * 58), "no burst, also after a quiet time"


def test_each_response_of_a_call_counts() -> None:
    """DSPy makes one request for each of the `n` responses."""
    with OpenAIServer(lambda messages: "yes") as server, no_pauses():
        lm = reliable(server.lm(), requests_per_minute=60)
        start = clock.now()
        assert lm("a", n=5) == ["yes"] * 5
        lm("b")
        assert clock.now() - start == pytest.approx(5, abs=0.5)
    assert len(server.requests) == 6


def test_tokens_are_reserved_and_corrected() -> None:
    with fake_clock() as found:
        gate = Gate(RateLimits(tokens_per_minute=60_000))
        start = enter(gate, 5000)
        assert enter(gate, 1000) - start == pytest.approx(5)
        gate.correct(1000, 400)
        assert enter(gate, 10) - start == pytest.approx(5.4)
        gate.correct(10, 3010)
        assert enter(gate, 10) - start == pytest.approx(8.41)
    assert len(found.pauses) == 3


def test_who_waits_waits_longer_if_the_request_before_used_more() -> None:
    with fake_clock():
        gate = Gate(RateLimits(requests_per_minute=60, tokens_per_minute=60_000))
        start = enter(gate, 1000)
        waiting = [gate.enter(1000) for _ in range(2)]
        assert [next(one)[0].seconds for one in waiting] == pytest.approx([1, 2])
        gate.correct(1000, 6000)
        clock.pause(2)
        again = [one.send(None)[0].seconds for one in waiting]
        assert [clock.now() + seconds - start for seconds in again] == pytest.approx([6, 7])


@pytest.mark.parametrize("keeps_history", [True, False])
def test_the_tokens_that_a_call_reserves(keeps_history: bool) -> None:
    """The estimate of the prompt, `max_tokens`, and what the response has used."""
    with (
        OpenAIServer(lambda messages: "one two three") as server,
        no_pauses() as pauses,
        dspy.context(disable_history=not keeps_history),
    ):
        lm = reliable(server.lm(max_tokens=900), tokens_per_minute=60)
        before = clock.now()
        lm("four bytes each!")
        assert pauses == []
        lm("again")
        assert clock.now() - before == pytest.approx(6, abs=0.5), "3 words were sent and 3 answered: not 904"
        lm.copy(max_tokens=1)("x")
    assert len(pauses) == 2


def test_a_failed_request_gives_its_tokens_back() -> None:
    with OpenAIServer(lambda messages: "yes", faults=[Status(400)]) as server, no_pauses() as pauses:
        lm = reliable(server.lm(max_tokens=5000), tokens_per_minute=60)
        with pytest.raises(dspy.utils.exceptions.LMInvalidRequestError):
            lm("hi")
        lm("hi")
    assert pauses == []


@each(
    ("asked", "held"),
    [
        ("7", 7),
        ("0.5", 0.5),
        (DateIn(30), 29),  # a date has no fractions of a second
        ("0", 0),
        ("-7", 0),
        (DateIn(-7), 0),
        ("soon", 0),
        ("nan", 0),
        ("inf", 0),
        ("3600", 0),  # more than `max_wait`: each caller is to hear of it at once, and asks the next LM
    ],
    ids=repr,  # the text of a date is another one in each process that collects the tests
)
def test_a_server_that_asks_to_wait_holds_back_every_caller(asked: Any, held: float) -> None:
    with OpenAIServer(lambda messages: "yes", faults=[Status(429, Retry_After=asked)]) as server, no_pauses() as pauses:
        lm, began = reliable(server.lm(), requests_per_minute=60_000, retry=1), time.monotonic()
        with pytest.raises(dspy.utils.exceptions.LMRateLimitError):
            lm("a")
        lm("b")
        assert held - (time.monotonic() - began) <= sum(pauses) <= held + 1


def test_a_hold_makes_the_times_of_those_who_wait_void() -> None:
    """Each asks for another time: after the hold they do not come all at once."""
    with fake_clock():
        gate = Gate(RateLimits(requests_per_minute=60))
        start = enter(gate)
        waiting = [gate.enter(0) for _ in range(3)]
        sleeps = [next(one)[0].seconds for one in waiting]
        assert sleeps == pytest.approx([1, 2, 3])
        gate.hold(10)
        clock.pause(3)
        again = [one.send(None)[0].seconds for one in waiting]
        assert [clock.now() + seconds - start for seconds in again] == pytest.approx([10, 11, 12])
        assert enter(gate) - start == pytest.approx(13)


def test_who_gives_up_gives_the_time_back() -> None:
    with fake_clock():
        gate = Gate(RateLimits(requests_per_minute=60))
        start = enter(gate)
        first, second = gate.enter(0), gate.enter(0)
        next(first), next(second)
        first.close()
        assert enter(gate) - start == pytest.approx(1)
        assert enter(gate) - start == pytest.approx(3)


def test_who_gives_up_gives_the_tokens_back() -> None:
    with fake_clock():
        gate = Gate(RateLimits(tokens_per_minute=60_000))
        start = enter(gate, 2000)
        one = gate.enter(5000)
        next(one)
        one.close()
        assert enter(gate) - start == pytest.approx(2)


# --- slots


@pytest.mark.parametrize("waits_for", ["a slot", "a time"])
def test_a_cancelled_task_gives_its_slot_back(waits_for: str) -> None:
    async def whole() -> None:
        limits = RateLimits(max_concurrency=1, requests_per_minute=None if waits_for == "a slot" else 1)
        gate = Gate(limits)
        await arun_script(gate.enter(0))
        if waits_for == "a time":
            gate.leave()
        task = asyncio.create_task(enter_and_close(gate))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if waits_for == "a slot":
            gate.leave()
        with fake_clock():
            await asyncio.wait_for(arun_script(gate.enter(0)), PATIENCE)

    async def enter_and_close(gate: Gate) -> None:
        script = gate.enter(0)
        try:
            await arun_script(script)
        finally:
            script.close()

    asyncio.run(whole())


def test_a_slot_that_is_granted_while_its_task_is_cancelled_is_not_lost() -> None:
    async def whole() -> None:
        slots = Slots(1)
        assert slots.acquire() is None
        task = asyncio.create_task(SlotStep(slots).acall(None))
        await asyncio.sleep(0)
        slots.release()  # it is granted, and before the task runs again
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slots.acquire() is None

    asyncio.run(whole())


def test_a_slot_is_not_granted_to_a_task_whose_loop_was_closed() -> None:
    """It never runs again, and could not give it back."""
    slots, loop = Slots(1), asyncio.new_event_loop()
    assert slots.acquire() is None
    loop.set_exception_handler(lambda loop, context: None)  # it hears of the task that is destroyed
    task = loop.create_task(SlotStep(slots).acall(None))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    following = slots.acquire()
    slots.release()
    assert following is not None
    assert following.done()
    del task
    gc.collect()  # it ends the task
    slots.release()
    assert slots._free == 1


@pytest.mark.parametrize("limiter", [Slots(1), Gate(RateLimits())], ids=["slots", "gate"])
def test_the_garbage_collector_may_end_a_task_while_its_thread_holds_the_lock(limiter: Slots | Gate) -> None:
    with limiter._lock:
        assert limiter._lock.acquire(blocking=False)
        limiter._lock.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_limits_of_its_own() -> None:
    """Who holds a slot, a time or a lock in the parent, gives nothing back in the child."""
    gate = Gate(RateLimits(requests_per_minute=1, max_concurrency=1))
    enter(gate)
    with gate._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(PATIENCE)
                with fake_clock() as found:
                    enter(gate)
                    gate.leave()
                    code = len(found.pauses)
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert gate._slots is not None
    assert gate._slots._free == 0, "the parent's"


def test_a_sync_call_within_an_event_loop_does_not_wait_for_tasks_of_that_loop() -> None:
    with OpenAIServer(lambda messages: "yes") as server:
        lm = reliable(server.lm(), max_concurrency=1)

        async def whole() -> None:
            [lane] = lm._lanes
            await arun_script(lane.gate.enter(0))
            lm("it would wait for ever")
            lane.gate.leave()
            assert lane.gate._slots._free == 1

        asyncio.run(whole())


def test_threads_and_two_event_loops_share_the_slots() -> None:
    """The server answers only when 4 requests are there at once, and never sees a fifth."""
    together = threading.Barrier(4)
    lock, active, most = threading.Lock(), 0, 0

    def answer(messages: Any) -> str:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        together.wait(PATIENCE)
        with lock:
            active -= 1
        return "yes"

    with OpenAIServer(answer) as server:
        lm = reliable(server.lm(timeout=PATIENCE), max_concurrency=4, retry=1)
        all_done = threading.Event()

        async def ask(count: int) -> None:
            try:
                await asyncio.gather(*(lm.acall(f"{count} {number}") for number in range(count)))
                await asyncio.to_thread(all_done.wait, PATIENCE)
            finally:
                await lm.aclose()  # of the sync connections too, as DSPy does it: so only when no thread uses them

        with ThreadPoolExecutor(14) as threads:
            loops = [threads.submit(asyncio.run, ask(14)) for _ in range(2)]
            calls = [threads.submit(lm, f"thread {number}") for number in range(12)]
            try:
                for one in calls:
                    one.result(PATIENCE)
            finally:
                all_done.set()
            for one in loops:
                one.result(PATIENCE)
    assert len(server.requests) == 40
    assert most == 4


@pytest.mark.parametrize("cancelled", ["the request", "the one that waits", "both"])
def test_a_cancelled_call_gives_its_slot_back(cancelled: str) -> None:
    async def whole() -> None:
        arrived, loop = asyncio.Event(), asyncio.get_running_loop()

        def held(body: Any) -> Fault | None:
            loop.call_soon_threadsafe(arrived.set)
            return Hold() if len(server.requests) == 0 else None

        with OpenAIServer(lambda messages: "yes", faults=held) as server:
            lm = reliable(server.lm(), max_concurrency=1, retry=None)
            request = asyncio.create_task(lm.acall("a"))
            await asyncio.wait_for(arrived.wait(), PATIENCE)
            waiting = asyncio.create_task(lm.acall("b"))
            [lane] = lm._lanes
            while not lane.gate._slots._waiting:  # noqa: ASYNC110 - nothing else tells that a caller waits
                await asyncio.sleep(0)
            tasks = {"the request": [request], "the one that waits": [waiting], "both": [request, waiting]}[cancelled]
            for task in tasks:
                task.cancel()
            server.release()
            found = await asyncio.wait_for(asyncio.gather(request, waiting, return_exceptions=True), PATIENCE)
            assert [isinstance(one, asyncio.CancelledError) for one in found] == [
                task in tasks for task in (request, waiting)
            ]
            assert await asyncio.wait_for(lm.acall("c"), PATIENCE) == ["yes"]
            assert lane.gate._slots._free == 1
            await lm.aclose()

    asyncio.run(whole())


# --- nodes that time out


def test_a_sync_node_that_timed_out_makes_no_request_that_waits_for_nothing() -> None:
    limit = TimeLimit(PATIENCE)
    limit.end()
    with OpenAIServer(lambda messages: "yes") as server:
        lm, context = reliable(server.lm()), contextvars.copy_context()
        context.run(current_limit.set, limit)
        with pytest.raises(AttemptOverError):
            context.run(lm, "hi")
    assert server.requests == []


@pytest.mark.parametrize("waits_for", ["a time", "a slot", "the next attempt"])
def test_a_sync_node_that_timed_out_makes_no_further_request(waits_for: str) -> None:
    """It was left running in its thread. It stops waiting when its time is over, and gives back what it has."""
    faults = [None, Status(500, Retry_After="50")] if waits_for == "the next attempt" else []
    with OpenAIServer(lambda messages: "yes", faults=faults) as server:
        rate = 1 if waits_for == "a time" else None
        lm = reliable(server.lm(), requests_per_minute=rate, max_concurrency=1)
        lm("the first")
        [lane] = lm._lanes
        slots = lane.gate._slots
        if waits_for == "a slot":
            slots.acquire()
        limit, waits = TimeLimit(PATIENCE), threading.Event()
        limit.signal.on_stop = noting(limit.signal.on_stop, waits)  # type: ignore[method-assign]

        def node() -> None:
            current_limit.set(limit)
            if waits_for == "a slot":
                waits.set()
            with pytest.raises(AttemptOverError):
                lm("the second")

        with ThreadPoolExecutor(1) as threads:
            work = threads.submit(contextvars.copy_context().run, node)
            assert waits.wait(PATIENCE)
            limit.end()
            if waits_for == "a slot":
                slots.release()
            work.result(PATIENCE)
        assert len(server.requests) == (2 if faults else 1)
        assert slots._free == 1


def noting(on_stop: Any, noted: threading.Event) -> Any:
    """A node waits when it asks to be told of a stop."""

    def on_stop_noted(callback: Any) -> Any:
        noted.set()
        return on_stop(callback)

    return on_stop_noted


# --- storms


@pytest.mark.parametrize("in_loop", [False, True])
def test_in_a_storm_of_callers_each_item_is_answered_once(in_loop: bool) -> None:
    """A map of 40 items, 16 at once, at 1000 requests per second, with faults: each item is answered once."""
    faults: dict[int, Fault] = {3: Status(429, Retry_After="0.05"), 10: Drop(), 11: Status(503), 25: Drop("body")}
    seen = iter(range(10_000))
    with OpenAIServer(
        lambda messages: f"[[ ## answer ## ]]\n{prompt_of(messages).inputs['item']}\n\n[[ ## completed ## ]]",
        faults=lambda body: faults.get(next(seen)),
    ) as server:
        lm = reliable(server.lm(), requests_per_minute=60_000, max_concurrency=16, retry=Retry(4, wait=wait_fixed(0)))
        graph = Graph().add_map("ask", dspy.Predict("item -> answer"), over="items", item="item", into="answers")
        program = graph.add_path(START, "ask", END).compile(max_concurrency=16)
        inputs = {"items": [f"item {number}" for number in range(40)]}
        start = time.monotonic()
        with dspy.context(lm=lm):
            run = asyncio.run(program.arun(inputs)) if in_loop else program.run(inputs)
        lasted = time.monotonic() - start
        lm.close()
    assert run.status == "completed", run.error
    assert list(run.state["answers"]) == inputs["items"]
    assert len(server.requests) == 44
    assert lasted >= 0.043, "43 intervals of a millisecond"


FAULTS: list[Fault | None] = [None, Status(429), Status(500), Drop(), Cut(0), Html()]


@settings(max_examples=500 if deep else 8)
@given(st.lists(st.sampled_from(FAULTS), max_size=30), st.lists(st.sampled_from(FAULTS), max_size=8), st.booleans())
def test_no_response_is_lost_or_given_twice(main_faults: Any, backup_faults: Any, in_loop: bool) -> None:
    """Whatever fails: each call gets the response to its own prompt or an error, and usage has one entry for each
    response that was given.
    """

    def answer(messages: Any) -> str:
        return f"you said {text_of(messages[-1])}"

    with (
        OpenAIServer(answer, "main", main_faults) as main,
        OpenAIServer(answer, "backup", backup_faults) as backup,
        no_pauses(),
        dspy.track_usage() as usage,
    ):
        lm = reliable(main.lm(), backup.lm(), retry=2, max_concurrency=3, requests_per_minute=600)
        prompts = [f"prompt-{number}" for number in range(8)]
        found = ask_in_loop(lm, prompts) if in_loop else ask_in_threads(lm, prompts)
        lm.close()
    answered = [one for one in found if not isinstance(one, Exception)]
    pairs = zip(prompts, found, strict=True)
    assert all(isinstance(one, Exception) or one == [f"you said {prompt}"] for prompt, one in pairs)
    good = [(server, fault) for server in (main, backup) for fault in server.sent if fault is None]
    assert len(good) == len(answered), "each response of a server was given to one call"
    assert sum(len(entries) for entries in usage.usage_data.values()) == len(answered) == len(lm.history)
    gates = [lane.gate for lane in lm._lanes]
    assert [gate._slots._free for gate in gates] == [3, 3], "all slots are back"


def ask_in_threads(lm: Any, prompts: list[str]) -> list[Any]:
    def ask(prompt: str) -> Any:
        with dspy.context(usage_tracker=tracker):
            return caught(lambda: lm(prompt))

    tracker = dspy.settings.usage_tracker
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(ask, prompts))


def caught(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error


def ask_in_loop(lm: Any, prompts: list[str]) -> list[Any]:
    async def whole() -> list[Any]:
        try:
            return await asyncio.gather(*(lm.acall(prompt) for prompt in prompts), return_exceptions=True)
        finally:
            await lm.aclose()

    return asyncio.run(whole())
