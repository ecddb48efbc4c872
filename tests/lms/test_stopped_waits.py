"""A run that its budget stops does not wait for a gate: for a time, for a slot, or for the pause after a failure."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dspy
import pytest
from pydantic import BaseModel
from tenacity import wait_fixed

from dspyer import END, START, Budget, Graph, Retry
from dspyer.lms import reliable
from tests.http_faults import Drop, Fault, Hold, Status
from tests.openai_server import OpenAIServer
from tests.rows import each

MODES = pytest.mark.parametrize("mode", ["sync", "async"])
ANSWER = "[[ ## note ## ]]\nyes\n\n[[ ## completed ## ]]"
PATIENCE = 30  # seconds: the shortest of the waits that must not be waited for takes a minute


class Docs(BaseModel):
    docs: list[str] = list("abcde")
    notes: list[str] = []


def reading(store: str | None = ":memory:") -> Any:
    graph = Graph(Docs).add_map("read", dspy.Predict("doc -> note"), over="docs", item="doc", into="notes")
    return graph.add_path(START, "read", END).compile(store=store)


def run(runner: Any, mode: str, budget: Budget) -> Any:
    return runner.run({}, budget=budget) if mode == "sync" else asyncio.run(runner.arun({}, budget=budget))


@contextmanager
def taken_slot() -> Iterator[tuple[OpenAIServer, Any, Callable[[], None]]]:
    """A server, and an LM with one slot that another caller has until it is released."""
    with OpenAIServer(lambda messages: ANSWER, faults=[Hold()]) as server:
        lm = reliable(server.lm(), max_concurrency=1)
        other = threading.Thread(target=lm, args=("a question",))
        other.start()
        while not server.requests:
            time.sleep(0.001)

        def release() -> None:
            server.release()
            other.join(PATIENCE)

        yield server, lm, release


WAITS: dict[str, tuple[Callable[[Any], Any], Budget, list[Fault | None]]] = {
    "for a time": (lambda lm: reliable(lm, requests_per_minute=1), Budget(requests=1), []),
    "for tokens": (lambda lm: reliable(lm, tokens_per_minute=50), Budget(tokens=1), []),
    "for a time, until the deadline": (lambda lm: reliable(lm, requests_per_minute=1), Budget(seconds=0.1), []),
    "for a hold, until the deadline": (
        reliable,
        Budget(seconds=0.1),
        [Status(429, Retry_After="60") for _ in range(5)],
    ),
    "between attempts, until the deadline": (
        lambda lm: reliable(lm, retry=Retry(2, wait=wait_fixed(60))),
        Budget(seconds=0.1),
        [Drop() for _ in range(5)],
    ),
    "between attempts": (
        lambda lm: reliable(lm, requests_per_minute=6000, retry=Retry(2, wait=wait_fixed(60))),
        Budget(requests=4),
        [Drop(), Drop(), Drop()],
    ),
}


@MODES
@each("wait", WAITS)
def test_no_caller_waits_for_a_request_that_the_budget_refuses(wait: str, mode: str) -> None:
    make, budget, faults = WAITS[wait]
    thread = reading().thread("t")
    began = time.monotonic()
    script, mended = iter(faults), threading.Event()
    with (
        OpenAIServer(
            lambda messages: ANSWER, faults=lambda body: None if mended.is_set() else next(script, None)
        ) as server,
        dspy.context(lm=make(server.lm())),
    ):
        found = run(thread, mode, budget)
        mended.set()  # a busy machine may not have made all requests before the deadline
        assert time.monotonic() - began < PATIENCE
        assert (found.status, thread.status) == ("stopped", "stopped")
        requests = len(server.requests)
        assert requests <= 5
        with dspy.context(lm=server.lm()):
            assert thread.resume().status == "completed"
        assert len(server.requests) - requests == 5 - (requests - len(faults) if requests > len(faults) else 0)


@MODES
def test_a_caller_that_waits_for_a_slot_is_ended_and_loses_none(mode: str) -> None:
    with taken_slot() as (server, lm, release):
        with dspy.context(lm=lm):
            found = run(reading(None), mode, Budget(seconds=0.2))
            assert (found.status, len(server.requests)) == ("stopped", 1)
            release()
            assert run(reading(None), mode, Budget(seconds=PATIENCE)).status == "completed"
        assert len(server.requests) == 6


@MODES
def test_the_limit_that_one_caller_reaches_ends_the_wait_of_the_others(mode: str) -> None:
    """Two runs share an LM: one holds the slot, and the other reaches its limit elsewhere."""
    with taken_slot() as (server, lm, release):
        with OpenAIServer(lambda messages: ANSWER) as free:
            direct = dspy.Predict("doc -> note")
            direct.lm = free.lm()
            graph = Graph(Docs).add_map("read", dspy.Predict("doc -> note"), over="docs", item="doc", into="notes")

            def spends(ask: dspy.Predict) -> None:
                time.sleep(0.05)  # the others wait by then, as a rule; the result is the same if they do not
                ask(doc="z")

            graph.add_node("spends", spends, modules={"ask": direct}, writes=[])
            program = graph.add_edge(START, ["read", "spends"]).add_edge("read", END).add_edge("spends", END).compile()
            with dspy.context(lm=lm):
                found = run(program, mode, Budget(requests=1))
            assert found.status == "stopped"
            assert (len(free.requests), len(server.requests)) == (1, 1)
        release()
        assert len(lm("another question")) == 1


def test_a_sync_node_that_timed_out_gives_up_its_place_for_a_slot() -> None:
    with taken_slot() as (server, lm, release):
        program = Graph(inputs=["doc"]).add_node("read", dspy.Predict("doc -> note"), timeout=0.1)
        with dspy.context(lm=lm):
            assert program.add_path(START, "read", END).compile().run({"doc": "a"}).status == "failed"
        end = time.monotonic() + PATIENCE
        while any(one.name == "dspyer-timed" for one in threading.enumerate()):
            assert time.monotonic() < end, "the thread still waits for a slot"
            time.sleep(0.01)
        release()
        assert len(server.requests) == 1
