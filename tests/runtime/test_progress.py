"""`dspyer.progress()`: what it shows of runs wherever they are started, and that it disturbs no run and no output."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from rich.console import Console
from tenacity import wait_none

import dspyer
from dspyer import END, START, Budget, CompiledGraph, Context, Failure, Graph, Retry
from dspyer.display.amounts import cost_text
from dspyer.display.board import Board
from dspyer.display.running import RunningRuns
from dspyer.runtime import progress_screen
from dspyer.runtime.progress import Display, shown_on
from dspyer.runtime.progress_screen import NotebookScreen, TerminalScreen, screen_of_process
from dspyer.testing import ScriptedLM
from tests.runtime.conftest import Play

HOSTILE = "\x1b[2J\x1b]0;title\x07[red]bold[/red]\r\n\x9b31m\u202eevil"


def console_of(width: int = 100, height: int = 30) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False, markup=False, emoji=False
    )


def lines_of(runs: RunningRuns, now: float, width: int = 100, height: int = 30, last: bool = False) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, highlight=False, markup=False, emoji=False)
    console.print(Board(runs, now, last=last))
    return file.getvalue().splitlines()


class Watched:
    """A screen that keeps its pictures as text, and says when one shows a text."""

    def __init__(self, height: int = 30) -> None:
        self.height = height
        self.pictures: list[str] = []
        self.closed = ""
        self._wanted: list[tuple[str, threading.Event]] = []

    def wait_for(self, text: str) -> None:
        """Wait until a picture has the text."""
        shown = threading.Event()
        self._wanted.append((text, shown))
        assert shown.wait(20), f"never shown: {text}. Last: {self.pictures[-1:]}"

    def open(self) -> None:
        """Begin."""

    def show(self, runs: RunningRuns, now: float) -> None:
        """Keep a picture."""
        picture = "\n".join(lines_of(runs, now, height=self.height))
        self.pictures.append(picture)
        for text, shown in list(self._wanted):
            if text in picture:
                shown.set()

    def close(self, runs: RunningRuns, now: float) -> None:
        """Keep the last picture."""
        self.closed = "\n".join(lines_of(runs, now, height=self.height, last=True))

    def release(self, *, forked: bool = False) -> None:
        """End."""


@contextmanager
def watched(height: int = 30) -> Iterator[Watched]:
    screen = Watched(height)
    with shown_on(screen, refresh=0.005):
        yield screen


def chain(*nodes: Callable[..., Any], name: str = "Chain", **options: Any) -> CompiledGraph:
    graph = Graph(name=name)
    for node in nodes:
        graph.add_node(node.__name__, node)
    return graph.add_path(START, *[node.__name__ for node in nodes], END).compile(**options)


# --- what is shown


def test_nodes_branches_attempts_and_what_they_do(play: Play) -> None:
    with watched() as screen:

        def slow(ctx: Context) -> dict[str, Any]:
            ctx.doing(f"reads {HOSTILE}")
            screen.wait_for("reads [2J")
            return {"a": 1}

        def flaky(ctx: Context) -> dict[str, Any]:
            if ctx.attempt == 1:
                raise ConnectionError("reset")
            screen.wait_for("flaky · branch 1 · attempt 2")
            return {"b": 1}

        graph = Graph(name="Tides").add_node("plan", lambda q: {"p": 1}, writes=["p"])
        graph.add_node(slow, writes=["a"]).add_node("flaky", flaky, writes=["b"], retry=Retry(2, wait=wait_none()))
        graph.add_node("judge", lambda p: {"c": 1}, writes=["c"])
        graph.add_path(START, "plan").add_edge("plan", ["slow", "flaky"]).add_edge(["slow", "flaky"], "judge")
        run = play(graph.add_edge("judge", END).compile(), {"q": 1})
    assert run.status == "completed"
    first = next(picture for picture in screen.pictures if "reads" in picture)
    headline, plan, *_ = first.splitlines()
    assert headline.startswith("● Tides · ")
    assert plan.startswith("├─ ✓ plan · ")
    assert "slow · branch 0 · " in first
    assert "reads [2J ]0;title [red]bold[/red] 31m evil" in first
    assert not [char for char in first if not char.isprintable() and char != "\n"]
    assert " commits · 1 retry" in screen.closed
    assert screen.closed.startswith("✓ Tides · completed · ")
    assert "└─ ✓ judge" in screen.closed


def test_items_of_a_map_with_the_time_left() -> None:
    with watched() as screen:

        def read(doc: int) -> int:
            if doc == 5:
                screen.wait_for("5 of 8 · 1 running · 1 failed")
            if doc == 1:
                raise ValueError("unreadable")
            return doc

        graph = Graph(name="Corpus").add_map(
            "read", read, over="docs", item="doc", into="facts", failures="unread", max_concurrency=1
        )
        program = graph.add_path(START, "read", END).compile()
        run = program.run({"docs": list(range(8))})
    assert [failure.index for failure in run.state["unread"]] == [1]
    assert isinstance(run.state["unread"][0], Failure)
    assert any(" left" in picture and "━" in picture for picture in screen.pictures)
    assert "✓ read · " in screen.closed
    assert "8 items · 1 of them failed" in screen.closed


def test_graphs_inside_of_nodes_and_items_are_branches_of_the_tree() -> None:
    both_shown = threading.Event()
    with watched() as screen:

        def inner(doc: int) -> dict[str, Any]:
            if doc == 0:
                screen.wait_for("   └─ [1] Inner\n      └─ ● inner · ")
                both_shown.set()
            assert doc > 1 or both_shown.wait(20)
            return {"fact": doc}

        program = chain(inner, name="Inner")
        graph = Graph(name="Outer").add_map("read", program, over="docs", item="doc", into="facts", max_concurrency=2)
        run = graph.add_path(START, "read", END).compile(max_concurrency=4).run({"docs": [0, 1, 2]})
    assert run.status == "completed", run.error
    assert any("   ├─ [0] Inner\n   │  └─ ● inner · " in picture for picture in screen.pictures)


def test_tokens_and_cost_of_lm_calls() -> None:
    lm = ScriptedLM([{"answer": "a"}, {"answer": "b"}])
    graph = Graph().add_node("answer", dspy.Predict("question -> answer")).add_path(START, "answer", END)
    program = graph.compile(budget=Budget(cost=1, prices={"scripted": (0.15, 0.60)}))
    with watched() as screen, dspy.context(lm=lm):
        program(question="one?")
        cost = 2 * (program.run({"question": "two?"}).cost or 0)
    assert "Runs: 2 completed" in screen.closed
    assert "2 LM calls" in screen.closed
    assert f" {cost_text(cost)} USD" in screen.closed


def test_a_failed_run_says_why() -> None:
    def broken() -> None:
        raise ValueError(f"no such thing {HOSTILE}")

    with watched() as screen:
        assert chain(broken).run({}).status == "failed"
        assert chain(broken, name="Other").run({}).status == "failed"
    assert "Runs: 2 failed" in screen.closed
    assert "✗ Chain failed after " in screen.closed
    assert "ValueError: no such thing [2J ]0;title [red]bold[/red] 31m evil" in screen.closed.replace("\n", "")


# --- wherever it is started


def test_many_runs_at_once_are_one_screen() -> None:
    begun, all_shown = threading.Barrier(12), threading.Event()

    def work(text: str) -> dict[str, Any]:
        if begun.wait(20) == 0 and not all_shown.is_set():
            screen.wait_for("12 running")
            all_shown.set()
        assert all_shown.wait(20)
        return {"answer": text}

    program = chain(work, name="Answer")
    examples = [dspy.Example(text=str(i), answer=str(i)).with_inputs("text") for i in range(24)]
    with watched(height=14) as screen:
        evaluate = dspy.Evaluate(
            devset=examples, metric=lambda gold, made, trace=None: gold.answer == made.answer, num_threads=12
        )
        assert evaluate(program).score == 100
    assert "Runs: 24 completed" in screen.closed
    full = next(picture for picture in screen.pictures if "12 running" in picture)
    assert "… and 4 more" in full
    assert len(full.splitlines()) == 10  # the sum of all, the latest 8, and how many more
    assert max(len(picture.splitlines()) for picture in screen.pictures) <= 12


def test_an_optimizer_is_watched() -> None:
    graph = Graph(name="Tuned").add_node("answer", dspy.Predict("question -> answer")).add_path(START, "answer", END)
    lm = ScriptedLM(lambda prompt: {"answer": "yes"})
    examples = [dspy.Example(question=f"{i}?", answer="yes").with_inputs("question") for i in range(3)]
    with watched() as screen, dspy.context(lm=lm):
        tuned = dspy.BootstrapFewShot(metric=lambda gold, made, trace=None: True).compile(
            graph.compile(), trainset=examples
        )
    assert len(tuned.answer.demos) == 3
    assert "Runs: 3 completed" in screen.closed


def test_threads_of_the_user_and_tasks_are_watched() -> None:
    def work(n: int) -> dict[str, Any]:
        return {"n": n + 1}

    program = chain(work)

    async def both() -> None:
        await asyncio.gather(program.arun({"n": 1}), program.acall(n=2))

    with watched() as screen:
        thread = threading.Thread(target=program.run, args=({"n": 1},))
        thread.start()
        thread.join()
        asyncio.run(both())
        with program.stream({"n": 1}) as stream:
            assert len(list(stream)) > 3
    assert "Runs: 4 completed" in screen.closed


def test_a_resumed_map_counts_what_was_done_before() -> None:
    go_on = threading.Event()

    def read(doc: int) -> int:
        if doc == 4 and not go_on.is_set():
            raise ValueError("not yet")
        if doc == 4:
            screen.wait_for("4 of 8 · 1 running")
        return doc

    graph = Graph(name="Corpus").add_map("read", read, over="docs", item="doc", into="facts", max_concurrency=1)
    thread = graph.add_path(START, "read", END).compile(store=":memory:").thread("t")
    with watched() as screen:
        assert thread.run({"docs": list(range(8))}).status == "failed"
        go_on.set()
        assert thread.resume().status == "completed"
    assert "1 completed · 1 failed" in screen.closed


# --- it disturbs nothing


def test_inactive_it_costs_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> None:
        raise AssertionError("nothing is shown")

    monkeypatch.setattr(dspyer.runtime.session_events, "LMWatcher", never)
    monkeypatch.setattr(Display, "see", never)
    seen: list[int] = []

    def work() -> dict[str, Any]:
        seen.append(len(dspy.settings.caller_modules or []))
        return {"n": 1}

    program = chain(work)
    program()
    assert seen == [1]  # the program itself
    monkeypatch.undo()
    with watched():
        program()
    assert seen == [1, 2]


@pytest.mark.parametrize("fails", ["open", "show", "close"])
def test_an_error_of_the_display_is_logged_and_ends_only_the_display(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Watched):
        calls = 0

    def fail(*_: object) -> None:
        Broken.calls += 1
        shown.set()
        raise RuntimeError("no terminal any more")

    shown = threading.Event()
    setattr(Broken, fails, fail)

    def work() -> dict[str, Any]:
        assert fails == "close" or shown.wait(20)
        return {"n": 1}

    with shown_on(Broken(), refresh=0.005):
        run = chain(work).run({})
    assert run.status == "completed"
    assert Broken.calls == 1
    (record,) = [record for record in caplog.records if "progress" in record.getMessage()]
    assert record.exc_info


def test_nested_and_overlapping_blocks_share_one_display(monkeypatch: pytest.MonkeyPatch) -> None:
    screens: list[Watched] = []

    def made() -> Watched:
        screens.append(Watched())
        return screens[-1]

    monkeypatch.setattr(progress_screen, "screen_of_process", made)
    first, second = dspyer.progress(), dspyer.progress()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not screens[0].closed
    chain(work_once).run({})
    second.__exit__(None, None, None)
    assert len(screens) == 1
    assert "✓ Chain · completed" in screens[0].closed
    with dspyer.progress():
        pass
    assert len(screens) == 2


def work_once() -> dict[str, Any]:
    return {"n": 1}


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.mark.parametrize("variables", [{"CI": "true"}, {"TERM": "dumb"}, {"TERM": "unknown"}], ids=str)
def test_it_is_silent_in_ci_and_on_a_dumb_terminal(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(screen_of_process(), TerminalScreen)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert screen_of_process() is None


@pytest.mark.parametrize("stderr", [io.StringIO(), None], ids=["a file", "none"])
def test_it_is_silent_without_a_terminal(stderr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", stderr)
    before = sys.stdout
    with dspyer.progress():
        assert chain(work_once).run({}).status == "completed"
        assert sys.stdout is before
    assert stderr is None or stderr.getvalue() == ""


def test_without_rich_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dspyer.runtime.progress_screen")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ImportError, match=r"pip install rich"), dspyer.progress():
        pass


# --- the terminal


def test_lines_that_are_printed_come_above_the_display_and_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    console = console_of(width=40)
    written: io.StringIO = console.file  # type: ignore[assignment]
    monkeypatch.setattr(sys, "stdout", out)
    handler = logging.StreamHandler(out)
    logger = logging.getLogger("tests.progress")
    logger.addHandler(handler)
    try:
        screen = TerminalScreen(console, ["stdout"])
        runs = RunningRuns(0.0)
        screen.open()
        screen.show(runs, 1.0)
        print("long " * 20 + "\x1b[5A\x1b[31mred\x1b[0m [green]plain[/green]")
        logger.warning("a warning")
        print("30%\r60%", end="", flush=True)
        screen.show(runs, 1.0)
        assert "60%" in written.getvalue()
        assert "30%" not in written.getvalue()
        print("\r100%")
        print("begun", end="")
        screen.close(runs, 2.0)
        assert sys.stdout is out
        assert handler.stream is out
    finally:
        logger.removeHandler(handler)
    assert out.getvalue() == "begun"
    text = written.getvalue()
    assert "long " * 20 + "\x1b[31mred\x1b[0m [green]plain[/green]\n" in text
    assert "a warning\n" in text
    assert "100%\n" in text
    assert "\x1b[5A" not in text


def test_a_stream_that_was_kept_still_writes_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    screen = TerminalScreen(console_of(), ["stdout"])
    screen.open()
    kept = sys.stdout
    screen.close(RunningRuns(0.0), 0.0)
    print("after", file=kept)
    assert out.getvalue() == "after\n"


def test_a_terminal_that_is_gone_does_not_swallow_what_nodes_print(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out, console = Terminal(), console_of()
    monkeypatch.setattr(sys, "stdout", out)
    screen = TerminalScreen(console, ["stdout"])
    with shown_on(screen, refresh=60):

        def work() -> dict[str, Any]:
            print("first")
            console.file.close()
            print("second")
            print("third")
            return {"n": 1}

        assert chain(work).run({}).status == "completed"
    assert out.getvalue() == "second\nthird\n"
    assert sys.stdout is out
    assert caplog.text.count("progress() has failed") == 1


def test_a_forked_process_gets_its_streams_back(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    screen = TerminalScreen(console_of(), ["stdout"])
    with shown_on(screen, refresh=60) as display:
        print("begun in the parent", end="")
        display.forget()
        print("from the child")
        assert chain(work_once).run({}).status == "completed"
    assert out.getvalue() == "from the child\n"


SCRIPT = """
import sys, time
import dspyer
from dspyer import END, START, Graph

def talk(n, ctx: dspyer.Context):
    ctx.doing("counts [red]tides[/red]")
    print("said on stdout")
    print("said on stderr", file=sys.stderr)
    until = time.monotonic() + 20
    while "counts" not in open(sys.argv[1], errors="replace").read():  # what the terminal has got
        assert time.monotonic() < until
    return {"n": n + 1}

program = Graph(name="Pty").add_node(talk).add_path(START, "talk", END).compile()
with dspyer.progress():
    program(n=1)
print("the end")
"""


def in_terminal(got: Path, out: int | None) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """A process whose stderr is a terminal of 80 columns, and the thread that writes to a file what that gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    got.touch()
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")} | {"TERM": "xterm"}
    command = [sys.executable, "-c", SCRIPT, str(got)]
    process = subprocess.Popen(command, stdout=theirs if out is None else out, stderr=theirs, stdin=theirs, env=env)
    os.close(theirs)

    def read() -> None:
        with contextlib.suppress(OSError), got.open("ab", buffering=0) as file:  # an error: the other side is closed
            while data := os.read(ours, 65536):
                file.write(data)
        os.close(ours)

    thread = threading.Thread(target=read)
    thread.start()
    return process, thread


@pytest.mark.slow("two real processes: what they write to a terminal and a pipe, to their end")
def test_a_real_terminal(tmp_path: Path) -> None:
    """What a process prints on stdout comes above the display. A pipe gets exactly what is printed."""
    both = [in_terminal(tmp_path / "pipe", subprocess.PIPE), in_terminal(tmp_path / "terminal", None)]
    piped, _ = both[0][0].communicate(timeout=60)
    for process, thread in both:
        assert process.wait(60) == 0, (tmp_path / "pipe").read_text()
        thread.join()
    assert piped == b"said on stdout\nthe end\n"
    texts = [tmp_path.joinpath(name).read_bytes().decode() for name in ("pipe", "terminal")]
    for text in texts:
        assert "● \x1b[0m\x1b[1mPty" in text
        assert "counts [red]tides[/red]" in text
        assert "said on stderr\r\n" in text
        assert "✓ Pty · completed · " in re.sub(r"\x1b\[[\d;?]*\w", "", text)
    assert "stdout" not in texts[0]
    assert "said on stdout\r\n" in texts[1]
    assert texts[1].endswith("the end\r\n")


# --- a notebook


def test_a_notebook_shows_it_in_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)

    def display(first: str, display_id: bool) -> Any:
        assert display_id
        shown.append(first)
        return handle

    shell = SimpleNamespace(kernel=object())
    ipython = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display, HTML=str))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.delenv("CI", raising=False)
    screen = screen_of_process()
    assert isinstance(screen, NotebookScreen)

    def work(ctx: Context) -> dict[str, Any]:
        ctx.doing("<b>bold</b>")
        while not any("doing" in text or "bold" in text for text in list(shown)):
            threading.Event().wait(0.005)
        return {"n": 1}

    with shown_on(screen, refresh=0.005):
        chain(work).run({})
    assert "&lt;b&gt;bold&lt;/b&gt;" in "".join(shown)
    assert "completed" in shown[-1]
    shell.__dict__.clear()  # IPython in a terminal
    assert not isinstance(screen_of_process(), NotebookScreen)
