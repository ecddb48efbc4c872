"""`dspyer.progress()`: what it shows of runs wherever they are started, and that it disturbs no run and no output."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import pty
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from rich.cells import cell_len
from tenacity import wait_none

import dspyer
from dspyer import END, START, Budget, CompiledGraph, Context, Failure, Graph, Retry
from dspyer.testing import ScriptedLM
from tests.rows import each
from tests.runtime.conftest import Play

HOSTILE = "\x1b[2J\x1b]0;title\x07[red]bold[/red]\r\n\x9b31m\u202eevil"
PATIENCE = 5.0
DEVICE = os.open(os.devnull, os.O_WRONLY)  # of all terminals, so that they are one


class Terminal(io.StringIO):
    """A terminal in place of stdout or stderr. It may refuse a text, as one does that is gone."""

    def __init__(self, refuses: str | None = None) -> None:
        super().__init__()
        self.refuses = refuses
        self.refused = threading.Event()
        self._changed = threading.Condition()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return DEVICE

    def write(self, text: str) -> int:
        if self.refuses is not None and self.refuses in text:
            assert not self.refused.is_set()
            self.refused.set()
            raise RuntimeError("no terminal any more")
        with self._changed:
            count = super().write(text)
            self._changed.notify_all()
            return count

    @property
    def text(self) -> str:
        """What was written, without colours."""
        return re.sub(r"\x1b\[[\d;]*m|\x1b\[\?25[lh]", "", self.getvalue())

    @property
    def pictures(self) -> list[str]:
        """What was there between two movements of the cursor."""
        return re.split(r"(?:\r|\x1b\[1A|\x1b\[2K)+", self.text)

    @property
    def closed_with(self) -> str:
        """The lines that stay after the end."""
        return self.pictures[-1]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was written has made a condition true."""
        with self._changed:
            self._changed.wait_for(condition, PATIENCE)

    def wait_for(self, text: str) -> str:
        """The first picture that has the text, once there is one."""
        self.wait_until(lambda: text in self.text)
        found = [picture for picture in self.pictures if text in picture]
        assert found, f"never shown: {text}. Last: {self.pictures[-1:]}"
        return found[0]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The terminal of stderr: 100 columns, 30 lines."""
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


@contextmanager
def shown_on(terminal: Terminal | None) -> Iterator[None]:
    """A block whose stderr is a terminal that shows the progress."""
    with redirect_stderr(terminal), dspyer.progress():
        yield


def chain(*nodes: Callable[..., Any], name: str = "Chain", **options: Any) -> CompiledGraph:
    graph = Graph(name=name)
    for node in nodes:
        graph.add_node(node.__name__, node)
    return graph.add_path(START, *[node.__name__ for node in nodes], END).compile(**options)


# --- what is shown


def test_nodes_branches_attempts_and_what_they_do(play: Play, terminal: Terminal) -> None:
    with shown_on(terminal):

        def slow(ctx: Context) -> dict[str, Any]:
            ctx.doing(f"reads {HOSTILE}")
            terminal.wait_for("reads [2J")
            return {"a": 1}

        def flaky(ctx: Context) -> dict[str, Any]:
            if ctx.attempt == 1:
                raise ConnectionError("reset")
            terminal.wait_for("flaky · branch 1 · attempt 2")
            return {"b": 1}

        graph = Graph(name="Tides").add_node("plan", lambda q: {"p": 1}, writes=["p"])
        graph.add_node(slow, writes=["a"]).add_node("flaky", flaky, writes=["b"], retry=Retry(2, wait=wait_none()))
        graph.add_node("judge", lambda p: {"c": 1}, writes=["c"])
        graph.add_path(START, "plan").add_edge("plan", ["slow", "flaky"]).add_edge(["slow", "flaky"], "judge")
        run = play(graph.add_edge("judge", END).compile(), {"q": 1})
    assert run.status == "completed"
    first = terminal.wait_for("reads")
    headline, plan, *_ = first.splitlines()
    assert headline.startswith("● Tides · ")
    assert plan.startswith("├── ✓ plan · ")
    assert "slow · branch 0 · " in first
    assert "reads [2J ]0;title [red]bold[/red] 31m evil" in first
    assert all(char.isprintable() or char == "\n" for picture in terminal.pictures for char in picture)
    assert " commits · 1 retry" in terminal.closed_with
    assert terminal.closed_with.startswith("✓ Tides · completed · ")
    assert "└── ✓ judge" in terminal.closed_with


def test_items_of_a_map(terminal: Terminal) -> None:
    def read(doc: int) -> int:
        if doc == 5:
            assert " left" in terminal.wait_for("5 of 8 · 1 running · 1 failed")
        if doc == 1:
            raise ValueError("unreadable")
        return doc

    graph = Graph(name="Corpus").add_map(
        "read", read, over="docs", item="doc", into="facts", failures="unread", max_concurrency=1
    )
    with shown_on(terminal):
        run = graph.add_path(START, "read", END).compile().run({"docs": list(range(8))})
    assert [failure.index for failure in run.state["unread"]] == [1]
    assert isinstance(run.state["unread"][0], Failure)
    assert f"{15 * '━'}{9 * '─'} 5 of 8" in terminal.text
    assert "✓ read · " in terminal.closed_with
    assert "8 items · 1 of them failed" in terminal.closed_with


def test_the_time_left_is_that_of_the_items_that_are_left(terminal: Terminal) -> None:
    """Two of the first six were done by an earlier attempt."""
    times: list[float] = []

    def read(doc: int) -> int:
        if doc == 2 and failing:
            failing.clear()
            times.clear()
            raise ValueError("the first time")
        times.append(time.monotonic())
        if doc == 6:
            shown.append(terminal.wait_for("6 of 5,000 · 1 running"))
            times.append(time.monotonic())
            raise ValueError("the second time")
        return doc

    failing, shown = [True], list[str]()
    graph = Graph(name="Corpus").add_map("read", read, over="docs", item="doc", into="facts", max_concurrency=1)
    thread = graph.add_path(START, "read", END).compile(store=":memory:").thread("t")
    thread.run({"docs": list(range(5000))})
    with shown_on(terminal):
        began = time.monotonic()
        thread.resume()
    (found,) = re.findall(r"([\d:.]+)(?: s)? left", shown[0])
    left = sum(float(part) * 60**place for place, part in enumerate(reversed(found.split(":"))))
    ended = len(times) - 2
    # An item is told of before or after its node is entered: what surely lies between the first and the last event that
    # the picture shows is the time from the start of the second one to that of the last one that has ended.
    assert (times[-3] - times[1]) / ended * 4994 - 1 <= left <= (times[-1] - began) / ended * 4994 + 1


def test_an_attempt_of_an_item_is_none_of_the_node(terminal: Terminal) -> None:
    def read(doc: int, ctx: Context) -> int:
        if doc == 1 and ctx.attempt == 1:
            raise ConnectionError("reset")
        return doc

    def route(facts: list[int]) -> str:
        picture = terminal.wait_for(" 2 of 2 · 1 retry")
        assert "attempt" not in picture
        return END

    again = Retry(2, wait=wait_none())
    graph = Graph().add_map("read", read, over="docs", item="doc", into="facts", retry=again).add_edge(START, "read")
    with shown_on(terminal):
        run = graph.add_conditional_edges("read", route, [END]).compile().run({"docs": [0, 1]})
    assert run.status == "completed", run.error


def test_graphs_inside_of_nodes_and_items_are_branches_of_the_tree(terminal: Terminal) -> None:
    both_shown = threading.Event()
    with shown_on(terminal):

        def inner(doc: int) -> dict[str, Any]:
            if doc == 0:
                terminal.wait_for("    └── [1] Inner\n        └── ● inner · ")
                both_shown.set()
            assert doc > 1 or both_shown.wait(PATIENCE)
            return {"fact": doc}

        program = chain(inner, name="Inner")
        graph = Graph(name="Outer").add_map("read", program, over="docs", item="doc", into="facts", max_concurrency=2)
        run = graph.add_path(START, "read", END).compile(max_concurrency=4).run({"docs": [0, 1, 2]})
    assert run.status == "completed", run.error
    assert "    ├── [0] Inner\n    │   └── ● inner · " in terminal.text


def test_tokens_and_cost_of_lm_calls(terminal: Terminal) -> None:
    lm = ScriptedLM([{"answer": "a"}, {"answer": "b"}])
    graph = Graph().add_node("answer", dspy.Predict("question -> answer")).add_path(START, "answer", END)
    program = graph.compile(budget=Budget(cost=1, prices={"scripted": (0.15, 0.60)}))
    with shown_on(terminal), dspy.context(lm=lm):
        program(question="one?")
        cost = 2 * (program.run({"question": "two?"}).cost or 0)
    assert "Runs: 2 completed" in terminal.closed_with
    assert "2 LM calls" in terminal.closed_with
    assert f" {cost:.6f} USD" in terminal.closed_with


def test_a_failed_run_says_why(terminal: Terminal) -> None:
    def broken() -> None:
        raise ValueError(f"no such thing {HOSTILE}")

    with shown_on(terminal):
        assert chain(broken).run({}).status == "failed"
        assert chain(broken, name="Other").run({}).status == "failed"
    assert "Runs: 2 failed" in terminal.closed_with
    assert "✗ Chain failed after " in terminal.closed_with
    assert "ValueError: no such thing [2J ]0;title [red]bold[/red] 31m evil" in terminal.closed_with.replace("\n", "")


# --- wherever it is started


def test_many_runs_at_once_are_one_screen(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "14")
    begun, all_shown = threading.Barrier(12), threading.Event()

    def work(text: str) -> dict[str, Any]:
        if begun.wait(PATIENCE) == 0 and not all_shown.is_set():
            terminal.wait_for("12 running")
            all_shown.set()
        assert all_shown.wait(PATIENCE)
        return {"answer": text}

    program = chain(work, name="Answer")
    examples = [dspy.Example(text=str(i), answer=str(i)).with_inputs("text") for i in range(24)]
    with shown_on(terminal):
        evaluate = dspy.Evaluate(
            devset=examples, metric=lambda gold, made, trace=None: gold.answer == made.answer, num_threads=12
        )
        assert evaluate(program).score == 100
    assert "Runs: 24 completed" in terminal.closed_with
    full = terminal.wait_for("12 running")
    assert "… and 4 more" in full
    assert len(full.splitlines()) == 10  # the sum of all, the latest 8, and how many more
    assert max(len(picture.splitlines()) for picture in terminal.pictures) <= 12


def test_an_optimizer_is_watched(terminal: Terminal) -> None:
    graph = Graph(name="Tuned").add_node("answer", dspy.Predict("question -> answer")).add_path(START, "answer", END)
    lm = ScriptedLM(lambda prompt: {"answer": "yes"})
    examples = [dspy.Example(question=f"{i}?", answer="yes").with_inputs("question") for i in range(3)]
    with shown_on(terminal), dspy.context(lm=lm):
        tuned = dspy.BootstrapFewShot(metric=lambda gold, made, trace=None: True).compile(
            graph.compile(), trainset=examples
        )
    assert len(tuned.answer.demos) == 3
    assert "Runs: 3 completed" in terminal.closed_with


def test_threads_of_the_user_and_tasks_are_watched(terminal: Terminal) -> None:
    def work(n: int) -> dict[str, Any]:
        return {"n": n + 1}

    program = chain(work)

    async def both() -> None:
        await asyncio.gather(program.arun({"n": 1}), program.acall(n=2))

    with shown_on(terminal):
        thread = threading.Thread(target=program.run, args=({"n": 1},))
        thread.start()
        thread.join()
        asyncio.run(both())
        with program.stream({"n": 1}) as stream:
            assert len(list(stream)) > 3
    assert "Runs: 4 completed" in terminal.closed_with


def test_a_resumed_map_counts_what_was_done_before(terminal: Terminal) -> None:
    go_on = threading.Event()

    def read(doc: int) -> int:
        if doc == 4 and not go_on.is_set():
            raise ValueError("not yet")
        if doc == 4:
            terminal.wait_for("4 of 8 · 1 running")
        return doc

    graph = Graph(name="Corpus").add_map("read", read, over="docs", item="doc", into="facts", max_concurrency=1)
    thread = graph.add_path(START, "read", END).compile(store=":memory:").thread("t")
    with shown_on(terminal):
        assert thread.run({"docs": list(range(8))}).status == "failed"
        go_on.set()
        assert thread.resume().status == "completed"
    assert "1 completed · 1 failed" in terminal.closed_with


@each("size", [(5, 1), (20, 3), (39, 8), (300, 100)])
def test_a_run_fits_on_any_screen_as_plain_text(
    size: tuple[int, int], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs, and in the lines that stay."""
    width, height = size
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    names = [HOSTILE, "[/red]", ":smile:", 300 * "x", 40 * "日本語"]
    begun, shown = threading.Barrier(len(names)), threading.Event()

    def talk(doc: str, ctx: Context) -> int:
        ctx.doing(doc)
        if begun.wait(PATIENCE) == 0:
            before = screen.tell()
            screen.wait_until(lambda: screen.tell() > before)
            shown.set()
        assert shown.wait(PATIENCE)
        raise ValueError(doc)

    graph = Graph(name=HOSTILE).add_map(
        "read", chain(talk, name=HOSTILE), over="docs", item="doc", into="out", failures="lost", max_concurrency=5
    )
    with shown_on(screen):
        graph.add_path(START, "read", END).compile().run({"docs": names})
    for picture in screen.pictures:
        lines = picture.splitlines()
        assert len(lines) <= max(2, min(height - 2, 40))
        assert all(cell_len(line) <= width for line in lines)
        assert all(char.isprintable() for line in lines for char in line)
    assert len(screen.pictures) > 2


# --- it disturbs nothing


def test_inactive_it_costs_no_call(terminal: Terminal) -> None:
    seen: list[int] = []

    def work() -> dict[str, Any]:
        seen.append(len(dspy.settings.caller_modules or []))
        return {"n": 1}

    program = chain(work)
    program()
    with shown_on(terminal):
        program()
    program()
    assert seen == [1, 2, 1]  # the program itself, and what counts its tokens


@pytest.mark.parametrize("refused", ["\x1b[?25l", "●", "completed"], ids=["to begin", "a picture", "the end"])
def test_an_error_of_the_display_is_logged_and_ends_only_the_display(
    refused: str, terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> dict[str, Any]:
        assert refused == "completed" or terminal.refused.wait(PATIENCE)
        return {"n": 1}

    terminal.refuses = refused
    with shown_on(terminal):
        run = chain(work).run({})
    assert run.status == "completed"
    assert terminal.refused.is_set()
    (record,) = [record for record in caplog.records if "progress" in record.getMessage()]
    assert record.exc_info


def test_nested_and_overlapping_blocks_share_one_display(terminal: Terminal) -> None:
    first, second = dspyer.progress(), dspyer.progress()
    with redirect_stderr(terminal):
        first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    chain(work_once).run({})
    assert "completed" not in terminal.text
    second.__exit__(None, None, None)
    assert terminal.text.count("✓ Chain · completed") == 1
    chain(work_once, name="Unseen").run({})
    with shown_on(terminal):
        chain(work_once, name="Later").run({})
    assert terminal.closed_with.startswith("✓ Later · completed")
    assert "Unseen" not in terminal.text


def work_once() -> dict[str, Any]:
    return {"n": 1}


@pytest.mark.parametrize("variables", [{"CI": "true"}, {"TERM": "dumb"}, {"TERM": "unknown"}], ids=str)
def test_it_is_silent_in_ci_and_on_a_dumb_terminal(
    variables: dict[str, str], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with shown_on(terminal):
        chain(work_once).run({})
    assert terminal.text == ""


@pytest.mark.parametrize("stderr", [io.StringIO(), None], ids=["a file", "none"])
def test_it_is_silent_without_a_terminal(stderr: Any, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    before = sys.stdout
    with shown_on(stderr):
        assert chain(work_once).run({}).status == "completed"
        assert sys.stdout is before
    assert stderr is None or stderr.getvalue() == ""


# --- the terminal


def test_lines_that_are_printed_come_above_the_display_and_are_whole(terminal: Terminal) -> None:
    out = Terminal()
    handler = logging.StreamHandler(out)
    logger = logging.getLogger("tests.progress")
    logger.addHandler(handler)
    try:
        with redirect_stdout(out), shown_on(terminal):
            print("long " * 30 + "\x1b[5A\x1b[31mred\x1b[0m [green]plain[/green]")
            logger.warning("a warning")
            print("30%\r60%", end="", flush=True)
            assert "30%" not in terminal.wait_for("60%")
            print("\r100%")
            print("begun", end="")
        assert handler.stream is out
    finally:
        logger.removeHandler(handler)
    assert out.getvalue() == "begun"
    text = terminal.getvalue()
    assert "long " * 30 + "\x1b[31mred\x1b[0m [green]plain[/green]\n" in text
    assert "a warning\n" in text
    assert "100%\n" in text
    assert "\x1b[5A" not in text


def test_a_stream_that_was_kept_still_writes_after_the_end(terminal: Terminal) -> None:
    out = Terminal()
    with redirect_stdout(out), shown_on(terminal):
        kept = sys.stdout
    print("after", file=kept)
    assert kept is not out
    assert out.getvalue() == "after\n"


def test_a_terminal_that_is_gone_does_not_swallow_what_nodes_print(
    terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    out = Terminal()

    def work() -> dict[str, Any]:
        print("first")
        terminal.close()
        print("second")
        print("third")
        return {"n": 1}

    with redirect_stdout(out), shown_on(terminal):
        assert chain(work).run({}).status == "completed"
        assert sys.stdout is out
    assert out.getvalue() == "second\nthird\n"
    assert caplog.text.count("progress() has failed") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_gets_its_streams_back(terminal: Terminal) -> None:
    out = Terminal()
    reads, writes = os.pipe()
    with redirect_stdout(out), shown_on(terminal):
        print("begun in the parent", end="")
        pid = os.fork()
        if pid == 0:
            try:
                print("from the child")
                status = chain(work_once).run({}).status
                os.write(writes, f"{out.getvalue()}{status}, {sys.stderr is terminal}".encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    os.close(writes)
    with os.fdopen(reads) as told:
        assert told.read() == "from the child\ncompleted, True"


@pytest.mark.parametrize("piped", [True, False])
def test_a_real_terminal(piped: bool, terminal: Terminal) -> None:
    """What a process prints on stdout comes above the display. A pipe gets exactly what is printed."""
    ours, theirs = pty.openpty()
    reads, writes = os.pipe()
    got, shown = bytearray(), threading.Event()

    def collect() -> None:
        while b"the end" not in got:
            got.extend(os.read(ours, 65536))
            if b"counts" in got:
                shown.set()

    def talk(n: int, ctx: Context) -> dict[str, int]:
        ctx.doing("counts [red]tides[/red]")
        print("said on stdout")
        print("said on stderr", file=sys.stderr)
        assert shown.wait(PATIENCE)
        return {"n": n + 1}

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    with os.fdopen(theirs, "w") as err, os.fdopen(writes, "w") as pipe, os.fdopen(reads) as printed:
        with redirect_stderr(err), redirect_stdout(pipe if piped else err), dspyer.progress():
            chain(talk, name="Pty")(n=1)
        print("the end", file=err, flush=True)
        reader.join(PATIENCE)
        pipe.close()
        assert printed.read() == ("said on stdout\n" if piped else "")
    os.close(ours)
    text = got.decode()
    assert "● \x1b[0m\x1b[1mPty" in text
    assert "counts [red]tides[/red]" in text
    assert "said on stderr\r\n" in text
    assert "✓ Pty · completed · " in re.sub(r"\x1b\[[\d;?]*\w", "", text)
    assert ("said on stdout\r\n" in text) == (not piped)


# --- a notebook


def test_a_notebook_shows_it_in_one_output(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    drawn = threading.Event()

    def update(text: str) -> None:
        shown.append(text)
        if "bold" in text:
            drawn.set()

    def display(first: str, display_id: bool) -> Any:
        assert display_id
        shown.append(first)
        return SimpleNamespace(update=update)

    shell = SimpleNamespace(kernel=object())
    ipython = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display, HTML=str))
    monkeypatch.setitem(sys.modules, "IPython", ipython)

    def work(ctx: Context) -> dict[str, Any]:
        ctx.doing("<b>bold</b>")
        assert drawn.wait(PATIENCE)
        return {"n": 1}

    with shown_on(terminal):
        chain(work).run({})
    assert "&lt;b&gt;bold&lt;/b&gt;" in "".join(shown)
    assert "completed" in shown[-1]
    assert terminal.text == ""
    shell.__dict__.clear()  # IPython in a terminal
    with shown_on(terminal):
        chain(work_once).run({})
    assert "completed" in terminal.closed_with
