"""Processes that are killed in a pause, and in a later attempt; another one resumes what they left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from operator import add
from pathlib import Path
from threading import Timer
from typing import Annotated, Any

import pytest
from pydantic import BaseModel
from tenacity import RetryCallState

from dspyer import END, START, CompiledGraph, Context, Graph, Retry
from dspyer.testing import no_pauses
from tests.log.processes import end_of, fork

MODES = ["sync", "async"]
WHERE = ["in the first pause", "in the second pause", "in attempt 2", "in attempt 3"]


class State(BaseModel):
    log: Annotated[list[str], add] = []


class Calls:
    """Node calls and effects, in a file that survives the process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, what: str) -> None:
        handle = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(handle, f"{what}\n".encode())
        os.close(handle)

    def read(self) -> Counter[str]:
        return Counter(self.path.read_text().split("\n")[:-1])


def program(
    path: Path, calls: Calls, mode: str, hook: Callable[[int], None], failures: int, wait: Any = None
) -> CompiledGraph:
    """a -> flaky | sibling -> last, where `flaky` charges once and then fails."""

    def flaky(ctx: Context) -> dict[str, Any]:
        calls.note("flaky")
        ctx.once("charge", lambda: calls.note("charged"))
        ctx.post("log", [f"posted by {ctx.attempt}"])
        hook(ctx.attempt)
        if ctx.attempt <= failures:
            raise ConnectionError("no line")
        return {"log": ["flaky"]}

    async def aflaky(ctx: Context) -> dict[str, Any]:
        return flaky(ctx)

    def plain(name: str) -> Callable[[], dict[str, Any]]:
        def node() -> dict[str, Any]:
            calls.note(name)
            return {"log": [name]}

        return node

    inner = Graph(State, name="Inner").add_node("first", plain("first"), writes=["log"])
    inner.add_node(
        "flaky", flaky if mode == "sync" else aflaky, writes=["log"], retry=Retry(4, wait=wait) if wait else Retry(4)
    )
    inner.add_path(START, "first", "flaky", END)
    graph = Graph(State, name="Outer").add_node("inner", inner.compile())
    for name in ("a", "last"):
        graph.add_node(name, plain(name), writes=["log"])
    graph.add_path(START, "a", "inner", "last", END)
    return graph.compile(store=path / "runs.db")


def kill_here() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("mode", MODES)
def test_kill_9_in_a_pause_or_a_later_attempt(mode: str, where: str, tmp_path: Path) -> None:
    """No finished call is repeated, no effect is doubled; attempts count from 1 again, and the pause is not resumed."""
    calls = Calls(tmp_path / "calls")

    def child() -> None:
        def wait(tried: RetryCallState) -> float:
            if where != WHERE[tried.attempt_number - 1]:
                return 0.0
            Timer(0.02, kill_here).start()  # in the pause, which is longer
            return 60.0

        def hook(attempt: int) -> None:
            if where.endswith(str(attempt)):
                kill_here()

        made = program(tmp_path, calls, mode, hook, 9, wait)
        t = made.thread("t")
        t.run({}) if mode == "sync" else asyncio.run(t.arun({}))

    assert end_of(fork(child)) == -signal.SIGKILL
    before = calls.read()
    assert before == {"a": 1, "first": 1, "charged": 1, "flaky": 3 if where == WHERE[3] else 2 - (where == WHERE[0])}
    numbers: list[int] = []
    t = program(tmp_path, calls, mode, numbers.append, 1).thread("t")
    with no_pauses() as pauses:
        run = t.resume() if mode == "sync" else asyncio.run(t.aresume())
    assert run.status == "completed", run.error
    assert run.state["log"] == ["a", "first", "posted by 2", "flaky", "last"]
    assert numbers == [1, 2]
    assert len(pauses) == 1
    after = calls.read()
    assert after == {**before, "flaky": before["flaky"] + 2, "last": 1}
    inner = next(commit for commit in t.history() if commit.node == "inner")
    assert inner.failed_attempts == ()  # the attempts were those of an inner node
