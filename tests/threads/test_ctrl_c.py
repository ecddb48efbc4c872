"""Ctrl-C ends a sync run in the main thread: what runs is finished, its end is written, and no lock stays taken."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from tenacity import wait_fixed

import dspyer
from dspyer import END, START, CompiledGraph, Context, Graph, Retry, Thread
from dspyer.errors import RunStoppedError
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Store, ThreadRow
from tests.log.processes import end_of, fork

LIBRARY = str(Path(dspyer.__file__).parent)


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """Python's own handler, which a runner of tests may have replaced; no test leaves another one behind."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class PressedAt:
    """Presses Ctrl-C at a line of the library in this thread, counted from 1; a trace function.

    It counts the lines of all functions, or of those with the given names.
    """

    def __init__(self, at: int, names: Collection[str] = ()) -> None:
        self.at = at
        self.names = names
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        del arg
        if not frame.f_code.co_filename.startswith(LIBRARY) or frame.f_code.co_name == "__del__":
            return None
        if event == "line" and (not self.names or frame.f_code.co_name in self.names):
            self.lines += 1
            if self.lines == self.at:
                os.kill(os.getpid(), signal.SIGINT)
        return sys.gettrace()

    def during(self, work: Callable[[], object]) -> None:
        before = sys.gettrace()
        # With the name of a module of Python's: the signal is to come in the line that is traced, not in this class.
        sys.settrace(partial(FunctionType(PressedAt.__call__.__code__, {**globals(), "__name__": "trace"}), self))
        try:
            work()
        finally:
            sys.settrace(before)


def forked(store: Store | None, inner: bool = False) -> CompiledGraph:
    graph = Graph(name="Forked", inputs=["x"], merge="last_write_wins")
    for name in ("a", "b", "c"):
        graph.add_node(name, lambda x: {"y": x}, writes=["y"])
    graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "c").add_edge("c", END)
    if inner:
        graph = Graph(inputs=["x"]).add_node("inside", graph.compile(), writes=["y"]).add_path(START, "inside", END)
    return graph.compile() if store is None else graph.compile(store=store)


@pytest.mark.parametrize("kind", ["run", "lock", "stream", "nested"])
def test_wherever_it_comes_the_run_is_stopped_and_the_store_works(kind: str, tmp_path: Path) -> None:
    store = Memory() if kind == "nested" else SQLite(tmp_path / "runs.db", patience=1)
    program = forked(store, inner=kind == "nested")
    names = ("_only_writer", "drive") if kind == "lock" else ()

    def start(thread: Thread) -> None:
        if kind == "stream":
            with thread.stream({"x": 1}) as stream:
                list(stream)
        else:
            thread.run({"x": 1})

    count = PressedAt(-1, names)
    count.during(lambda: start(program.thread("counted")))
    for number in range(places := 8):
        thread, pressed = program.thread(f"t{number}"), PressedAt(1 + count.lines * number // places, names)
        try:
            pressed.during(partial(start, thread))
        except KeyboardInterrupt:
            assert thread.status in ("new", "stopped", "completed")
        else:
            assert pressed.lines < pressed.at  # a stream has another number of lines each time
        if thread.status == "stopped":
            thread.resume()
        assert thread.status in ("new", "completed")


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a sibling"])
def test_a_sync_node_is_finished_and_no_other_one_begins(beside: bool, tmp_path: Path) -> None:
    """A real signal to a process of its own, of which the store remains."""
    calls, working, go_on = tmp_path / "calls", tmp_path / "working", tmp_path / "go on"
    os.mkfifo(working)
    os.mkfifo(go_on)

    resumes: list[int] = []

    def pay(x: int) -> dict[str, int]:
        with calls.open("a") as file:
            file.write("pay ")
        if not resumes:
            working.write_text("yes")
            go_on.read_text()
        return {"paid": x}

    def ship(paid: int) -> dict[str, int]:
        with calls.open("a") as file:
            file.write("ship ")
        return {"shipped": paid}

    def program() -> CompiledGraph:
        graph = Graph(inputs=["x"]).add_node("pay", pay, writes=["paid"]).add_node("ship", ship, writes=["shipped"])
        if beside:
            graph.add_node("other", lambda x: {"other": x}, writes=["other"]).add_path(START, "other", END)
        return graph.add_path(START, "pay", "ship", END).compile(store=SQLite(tmp_path / "runs.db"))

    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            program().thread("t").run({"x": 1})

    child = fork(work)
    working.read_text()
    os.kill(child, signal.SIGINT)
    go_on.write_text("yes")
    assert end_of(child) == 0
    resumes.append(1)
    thread = program().thread("t")
    assert (thread.status, calls.read_text()) == ("stopped", "pay ")
    assert thread.resume().state["shipped"] == 1
    assert calls.read_text() == "pay ship "


def test_without_a_store_it_reaches_the_caller_after_the_node() -> None:
    calls: list[str] = []

    def first() -> dict[str, int]:
        press()
        calls.append("finished")
        return {"a": 1}

    graph = Graph().add_node("first", first, writes=["a"]).add_node("late", lambda a: calls.append("late"), writes=[])
    program = graph.add_path(START, "first", "late", END).compile()
    with pytest.raises(KeyboardInterrupt):
        program.run({})
    with pytest.raises(KeyboardInterrupt):
        program()
    assert calls == ["finished", "finished"]


def test_it_ends_a_pause_between_attempts() -> None:
    def fails() -> None:
        press()
        raise ConnectionError("no line")

    graph = Graph().add_node("fails", fails, retry=Retry(2, wait=wait_fixed(3600), max_wait=3600))
    thread = graph.add_path(START, "fails", END).compile(store=Memory()).thread("t")
    with pytest.raises(KeyboardInterrupt):
        thread.run({})
    assert thread.status == "stopped"


def test_pressed_again_it_is_raised_in_the_code_of_a_node() -> None:
    passed: list[str] = []

    def twice() -> None:
        press()
        passed.append("first")
        press()
        passed.append("second")

    def outer() -> None:
        Graph().add_node("twice", twice).add_path(START, "twice", END).compile().run({})

    thread = Graph().add_node("outer", outer).add_path(START, "outer", END).compile(store=Memory()).thread("t")
    with pytest.raises(KeyboardInterrupt):
        thread.run({})
    assert (passed, thread.status, [commit.node for commit in thread.history()]) == (["first"], "stopped", ["START"])


@pytest.mark.parametrize("place", ["effect", "router", "retry", "store"])
def test_pressed_again_it_is_raised_in_whatever_code_the_library_calls(place: str) -> None:
    passed: list[str] = []

    def twice() -> Any:
        press()
        passed.append("first")
        press()
        passed.append("second")
        return END

    class Stuck(Memory):
        def thread(self, name: str) -> ThreadRow | None:
            if not passed:
                twice()
            return super().thread(name)

    def node(ctx: Context) -> None:
        if place == "effect":
            ctx.once("pay", twice)
        elif place == "retry":
            raise ConnectionError("no line")

    graph = Graph().add_node("node", node, retry=Retry(2, on=lambda error: twice()) if place == "retry" else None)
    graph.add_edge(START, "node").add_conditional_edges("node", twice if place == "router" else lambda: END, [END])
    thread = graph.compile(store=Stuck() if place == "store" else Memory()).thread("t")
    with pytest.raises(KeyboardInterrupt):
        thread.run({})
    assert (passed, thread.status) == (["first"], "new" if place == "store" else "stopped")


def test_pressed_again_async_code_that_does_not_end_is_left_running() -> None:
    go_on, left = threading.Event(), threading.Event()

    async def stuck() -> None:
        press()
        with suppress(asyncio.CancelledError):  # by the first time
            await asyncio.sleep(3600)
        press()
        go_on.wait(20)
        left.set()

    thread = Graph().add_node("stuck", stuck).add_path(START, "stuck", END).compile(store=Memory()).thread("t")
    with pytest.raises(KeyboardInterrupt):
        thread.run({})
    assert (thread.status, go_on.is_set(), left.is_set()) == ("stopped", False, False)
    go_on.set()
    assert left.wait(20)


def test_a_handler_that_is_given_back_after_the_run_is_pythons_own() -> None:
    found: list[Any] = []

    def node() -> None:
        found.append(signal.signal(signal.SIGINT, signal.SIG_IGN))

    program = Graph().add_node("node", node).add_path(START, "node", END).compile()
    program()
    signal.signal(signal.SIGINT, found[0])
    with pytest.raises(KeyboardInterrupt):
        press()
    forked(None)(x=1)  # gives back what it has found, as Python's own
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_pressed_again_nodes_in_threads_are_left_running(store: Store) -> None:
    stopped, go_on = threading.Event(), threading.Event()
    refused: list[str] = []

    async def cancelled() -> None:
        press()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    def stuck(ctx: Context) -> None:
        assert stopped.wait(20)
        press()
        assert go_on.wait(20)
        try:
            ctx.once("pay", dict)
        except RunStoppedError as error:
            refused.append(str(error))
        finally:
            left.set()

    left = threading.Event()
    graph = Graph().add_node("stuck", stuck).add_node("cancelled", cancelled)
    graph.add_edge(START, ["stuck", "cancelled"]).add_edge(["stuck", "cancelled"], END)
    thread = graph.compile(store=store).thread("t")
    with pytest.raises(KeyboardInterrupt):
        thread.run({})
    assert thread.status == "stopped"
    go_on.set()
    assert left.wait(20)
    assert "Ctrl-C was pressed" in refused[0]
    assert (thread.status, len(thread.history())) == ("stopped", 1)


def test_the_signal_belongs_to_the_reader_of_a_stream_between_two_events() -> None:
    thread = forked(Memory()).thread("t")

    def read() -> None:
        with thread.stream({"x": 1}) as stream:
            next(stream)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            press()
            pytest.fail("it is raised at once")

    with pytest.raises(KeyboardInterrupt):
        read()
    assert thread.status in ("stopped", "completed")


def test_a_handler_of_the_user_stays() -> None:
    seen: list[object] = []

    def node() -> dict[str, int]:
        press()
        seen.append(signal.getsignal(signal.SIGINT))
        return {"a": 1}

    def handler(number: int, frame: FrameType | None) -> None:
        del frame
        seen.append(number)

    signal.signal(signal.SIGINT, handler)
    try:
        run = Graph().add_node("node", node, writes=["a"]).add_path(START, "node", END).compile().run({})
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert (run.status, seen) == ("completed", [signal.SIGINT, handler])


EARLIER_HOOK = """
import os, signal, threading, time
armed, ended = [], threading.Event()
def hook():
    if armed:
        signal.pthread_kill(other.ident, signal.SIGINT)
        time.sleep(0.02)  # Python calls the handler at its end, in this thread
        print("hook")
os.register_at_fork(after_in_parent=hook)
from dspyer.stores import SQLite
other = threading.Thread(target=ended.wait, args=(20,))
other.start()
armed.append(True)
begun = time.monotonic()
try:
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)
    ended.wait(20)
except KeyboardInterrupt:
    print("raised", time.monotonic() - begun < 10)  # it ends a wait
ended.set()
"""


def test_in_the_hooks_of_others_a_fork_does_not_drop_it() -> None:
    """What such a hook raises is dropped. Another thread takes the signal, which the thread that forks has blocked.

    In a process that is started, since the hook is called before those of dspyer if it was registered before.
    """
    done = subprocess.run([sys.executable, "-c", EARLIER_HOOK], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("hook\nraised True\n", "")


@pytest.mark.slow("forks a process for each of the places in which the signal comes")
def test_just_after_a_fork_it_leaves_no_lock_taken(tmp_path: Path) -> None:
    forked(SQLite(tmp_path / "runs.db")).thread("parent").run({"x": 1})
    parent, at, behind = os.getpid(), 0, 99

    def child(pressed: PressedAt) -> None:
        sys.settrace(None)
        signal.alarm(5)
        try:
            forked(SQLite(tmp_path / "runs.db")).thread(f"t{at}").run({"x": 1})
        except KeyboardInterrupt:  # it comes a moment after the fork
            forked(SQLite(tmp_path / "runs.db")).thread(f"u{at}").run({"x": 1})
        os._exit(behind if pressed.lines < pressed.at else 0)

    codes: list[int] = []
    while behind not in codes:
        at += 1 + at // 3
        pressed, before = PressedAt(at), sys.gettrace()
        sys.settrace(lambda *event: None if os.getpid() == parent else pressed(*event))
        pid = fork(partial(child, pressed))
        sys.settrace(before)
        codes.append(end_of(pid))
    assert set(codes) == {0, behind}
    assert len(codes) > 3
