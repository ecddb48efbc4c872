"""Worker threads belong to the process: runs use them again, nothing stays in them, and no end loses a job."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import dspy
import pytest

import dspyer
from dspyer import END, START, CompiledGraph, Graph
from dspyer.testing import ScriptedLM, clock
from tests.children import run_python
from tests.nodes.kit import MODES

LIBRARY = str(Path(dspyer.__file__).parent)
HANDING_OVER = ("start", "next", "start_work")  # functions that give work to a thread, and take its outcome
PATIENCE = 20.0


def beside(*nodes: Callable[..., Any], **options: Any) -> CompiledGraph:
    """Nodes that run at once; each writes what its function returns into a field of its own."""
    names = [f"n{number}" for number in range(len(nodes))]
    graph = Graph()
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, writing(f"by_{name}", node), writes=[f"by_{name}"], **options)
    return graph.add_edge(START, names).add_edge(names, END).compile()


def writing(field: str, function: Callable[[], Any]) -> Callable[[], Any]:
    """A node, sync or async as the function is."""

    async def anode() -> dict[str, Any]:
        return {field: await function()}

    return anode if inspect.iscoroutinefunction(function) else lambda: {field: function()}


def run(program: CompiledGraph, mode: str) -> dict[str, Any]:
    ran = program.run({}) if mode == "sync" else asyncio.run(program.arun({}))
    ran.raise_error()
    return ran.state.to_dict()


def threads_of(count: int, mode: str) -> set[threading.Thread]:
    """The threads in which as many nodes run that wait for each other."""
    together = threading.Barrier(count, timeout=PATIENCE)

    def node() -> threading.Thread:
        together.wait()
        return threading.current_thread()

    found: set[threading.Thread] = set()
    run(beside(*[lambda: found.add(node())] * count), mode)
    return found


def ended(threads: Iterable[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(PATIENCE)
    return not any(thread.is_alive() for thread in threads)


@MODES
def test_a_second_run_starts_no_thread(mode: str) -> None:
    assert len(threads_of(8, mode)) == 8
    before = {*threading.enumerate()}
    assert threads_of(8, mode) <= before
    assert threads_of(8, "sync") <= before


@MODES
def test_a_thread_without_a_job_ends_after_ten_seconds(mode: str) -> None:
    with clock() as time:
        others = [thread for thread in threading.enumerate() if thread.name == "dspyer worker thread"]
        threads = threads_of(3 + len(others), mode)  # those of earlier tests as well: any thread takes the next job
        time.wait_for("idle", len(threads))
        time.advance(9.9)
        assert all(thread.is_alive() for thread in threads)
        time.advance(0.2)
        assert ended(threads)


class Large:
    """A value that a weak reference can watch."""


@MODES
@pytest.mark.parametrize("fails", [False, True])
def test_an_idle_thread_keeps_nothing_of_its_last_job(fails: bool, mode: str) -> None:
    here: contextvars.ContextVar[Any] = contextvars.ContextVar("here")
    kept: list[weakref.ref[Any]] = []

    threads: set[threading.Thread] = set()

    def node() -> None:
        threads.add(threading.current_thread())
        large = Large()
        kept.append(weakref.ref(large))
        here.set(large)
        if fails:
            raise ValueError(large)

    def around() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        here.set(large)
        program = beside(node, node)
        ran = program.run({}) if mode == "sync" else asyncio.run(program.arun({}))
        assert ran.status == ("failed" if fails else "completed")

    with clock() as time:
        contextvars.copy_context().run(around)
        time.wait_for("idle", len(threads))
        if fails:
            gc.collect()  # an error may wait for the collector
        assert {found() for found in kept} == {None}


def test_each_job_reaches_the_loop_of_its_own_run() -> None:
    """Also a loop that follows a closed one; after it, a thread has none."""
    reached: list[tuple[bool, str]] = []

    async def loop_here() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def node() -> int:
        try:
            reached.append((anyio.from_thread.run(loop_here) in loops, threading.current_thread().name))
        except RuntimeError as error:
            reached.append((False, type(error).__name__))
        return 1

    loops: list[asyncio.AbstractEventLoop] = []

    async def main(call: Callable[[], Any]) -> None:
        loops[:] = [asyncio.get_running_loop()]
        await call()

    program = beside(node, node)
    for call in (program.acall, program.acall, dspy.asyncify(program.run).__get__({})):
        asyncio.run(main(call))
    assert [found for found, _ in reached] == [True] * 6
    del reached[:]
    program()
    assert [found for found, _ in reached] == [False] * 2


def test_outcomes_that_come_together_wake_the_loop_once() -> None:
    class Loop(asyncio.SelectorEventLoop):
        woken = 0

        def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
            self.woken += 1
            return super().call_soon_threadsafe(*args, **options)

    blocked = threading.Event()

    def waits() -> int:
        assert blocked.wait(PATIENCE)
        return 1

    loop = Loop()
    with clock() as time, asyncio.Runner(loop_factory=lambda: loop) as runner:

        async def blocks() -> int:
            blocked.set()
            time.wait_for("idle", 6)  # the nodes have ended, and the loop could not look
            return 1

        async def main() -> None:
            await asyncio.sleep(0)
            before = loop.woken
            assert (await beside(*[waits] * 6, blocks).arun({})).status == "completed"
            assert loop.woken == before + 1

        runner.run(main())


def test_programs_that_wait_for_programs_wait_for_no_thread() -> None:
    """Two at once on each of twenty levels, with one slot for nodes that work: no thread is refused."""

    def level(depth: int) -> int:
        return 1 + max(run(beside(lambda: level(depth - 1), lambda: 0), "sync").values()) if depth else 0

    graph = Graph().add_node("top", lambda: {"found": level(20)}, writes=["found"]).add_path(START, "top", END)
    assert graph.compile(max_concurrency=1).run({}).state["found"] == 20


def test_callers_in_many_threads_get_each_their_own() -> None:
    def doubled(n: int) -> dict[str, int]:
        return {"double": 2 * n}

    def tripled(n: int) -> dict[str, int]:
        return {"triple": 3 * n}

    graph = Graph(inputs=["n"]).add_node(doubled).add_node(tripled).add_edge(START, ["doubled", "tripled"])
    program = graph.add_edge(["doubled", "tripled"], END).compile()
    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(lambda n: program.run({"n": n}).state.to_dict(), range(200)))
    assert found == [{"n": n, "double": 2 * n, "triple": 3 * n} for n in range(200)]


FORKS = """
import os, sys, threading
from dspyer import END, START, Graph

def forks():
    if not (pid := os.fork()):
        os._exit(0 if nested() == "completed" else 1)
    return os.waitpid(pid, 0)[1]

def nested():
    together = threading.Barrier(2, timeout=20)
    graph = Graph()
    for name in "ab":
        graph.add_node(name, lambda: {} if together.wait() >= 0 else None, writes=[])
    return graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END).compile().run({}).status

print(nested(), forks(), nested())
graph = Graph().add_node("forks", lambda: {"code": forks()}, writes=["code"]).add_node("other", lambda: {}, writes=[])
print(graph.add_edge(START, ["forks", "other"]).add_edge(["forks", "other"], END).compile().run({}).state["code"])
"""


def test_a_forked_process_has_threads_of_its_own() -> None:
    """Those of its parent are not in it; also if it was forked in one of them."""
    done = run_python(FORKS)
    assert done.stdout.split() == ["completed", "0", "completed", "0"], done.stderr


EXITS = """
import asyncio, os, signal, sys, threading
from dspyer import END, START, Graph

def stays():
    begun.set()
    threading.main_thread().join()
    while sys.argv[2] == "pressed":  # again: a signal just before Python waits for a lock is seen at the next one
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(0.1)
    sum(range(3_000_000))
    print("finished")
    return {}

async def aleaves():
    begun.wait()
    def stop():
        raise KeyboardInterrupt
    asyncio.get_running_loop().call_soon(stop)
    return {}

async def leaves():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(3600)
    finally:
        os.kill(os.getpid(), signal.SIGINT)

begun = threading.Event()
graph = Graph().add_node("stays", stays, writes=[])
graph.add_node("leaves", {"sync": leaves, "async": aleaves}[sys.argv[1]], writes=[])
program = graph.add_edge(START, ["stays", "leaves"]).add_edge(["stays", "leaves"], END).compile()
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    if sys.argv[1] == "sync":
        program.run({})
    else:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(program.arun({}))
        finally:
            loop.close()
except KeyboardInterrupt:
    print("left")
"""


@MODES
def test_the_end_of_a_process_waits_for_nodes_that_were_left_running(mode: str) -> None:
    done = run_python(EXITS, mode, "waits")
    assert done.stdout.split() == ["left", "finished"], done.stderr


@MODES
def test_ctrl_c_ends_a_process_that_waits_for_a_node(mode: str) -> None:
    assert run_python(EXITS, mode, "pressed").stdout.split() == ["left"]


def test_a_sync_call_on_a_loop_leaves_that_loop_out_of_its_timed_attempts() -> None:
    """As in a notebook: the loop is blocked, so an async function on it would end with the time limit."""

    async def node() -> int:
        return 1

    async def cell() -> dict[str, Any]:
        return run(beside(node, timeout=PATIENCE), "sync")

    assert asyncio.run(cell()) == {"by_n0": 1}


@pytest.mark.parametrize("options", [{}, {"timeout": PATIENCE}])
def test_a_node_in_a_thread_may_run_a_loop(options: dict[str, Any]) -> None:
    async def one() -> int:
        return 1

    program = beside(lambda: anyio.run(one), **options)

    async def main() -> Any:
        return (await program.acall())["by_n0"]

    assert anyio.run(main) == 1


def test_a_program_that_a_predictor_calls_while_it_is_streamed_may_fork() -> None:
    class Calls(dspy.Predict):
        def forward(self, **inputs: Any) -> dspy.Prediction:
            return dspy.Prediction(answer=run(beside(lambda: 1, lambda: 2), "sync")["by_n1"])

    program = Graph().add_node("asks", Calls("question -> answer: int")).add_path(START, "asks", END).compile()
    with dspy.context(lm=ScriptedLM([])):
        stream = program.stream({"question": "?"}, tokens=True)
        assert len(list(stream)) > 0
    assert stream.run.state["answer"] == 2


class CtrlC:
    """Raises `KeyboardInterrupt` at a line of these functions, as the handler of a signal does."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_name not in HANDING_OVER or not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted_at(program: CompiledGraph, at: int) -> bool:
    """A run with Ctrl-C at a line; returns whether there is such a line."""
    raised: list[bool] = []

    def work() -> None:
        sys.settrace(CtrlC(at))
        try:
            program.run({})
            raised.append(False)
        except KeyboardInterrupt:
            raised.append(True)
        finally:
            sys.settrace(None)

    before = {*threading.enumerate()}
    with clock():  # threads that are idle at its end have no more time
        runs = threading.Thread(target=work, daemon=True)
        runs.start()
        runs.join(PATIENCE)
    assert raised, f"it waits for an outcome that is gone, after line {at}"
    assert ended({*threading.enumerate()} - before), f"a thread is left that nothing ends, after line {at}"
    return raised[0]


def test_nothing_waits_for_an_outcome_that_ctrl_c_has_lost() -> None:
    """Ctrl-C may be raised between any two lines: then nothing waits for work that is gone, and no thread stays."""
    program = beside(lambda: 1, lambda: 2)
    at = 1
    while interrupted_at(program, at):
        at += 1
    assert at > 15  # the last one was behind the end of the run
