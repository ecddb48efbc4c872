"""What a layer stores with a commit: a resume finds it, after a crash too, and with it what the commit says."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tenacity import wait_none

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, Thread
from dspyer.errors import InputError, StateError
from dspyer.events import Commit
from dspyer.extend import Call, Layer, NewRow, Stop
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.encrypted import Encrypted
from tests.extend.kit import program_of
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork
from tests.rows import each
from tests.runtime.conftest import Play
from tests.stores.conftest import postgres, postgres_address  # noqa: F401 - fixtures


class Most(Layer):
    """Counts the attempts of a run, in all processes that work on it, and lets no more than so many begin."""

    place = "attempt"

    def __init__(self, most: int, made: int = 0) -> None:
        self.most, self.made, self.stored = most, made, made

    def of(self, run: Any) -> Layer:
        return Most(self.most, sum(run.rows("attempts")))

    def admit(self, call: Call) -> None:
        if self.made >= self.most:
            raise Stop(f"{self.made} attempts")

    def around(self, call: Call, inner: Any) -> Any:
        self.made += 1
        return (yield from inner(call))

    def rows(self, commit: Commit) -> Iterable[NewRow]:
        if new := self.made - self.stored:
            self.stored = self.made
            yield NewRow("attempts", new)


def failing_loop(store: Any, most: int, deadly: Any = None) -> Thread:
    """A loop whose every round takes two attempts; the process is killed in the third one."""

    def work(n: int, ctx: Context) -> dict[str, int]:
        if n == 2 and deadly is not None:
            deadly()
        if ctx.attempt == 1:
            raise ConnectionError("once more")
        return {"n": n + 1}

    graph = Graph().add_node("work", work, writes=["n"], retry=Retry(2, wait=wait_none())).add_edge(START, "work")
    graph.add_conditional_edges("work", lambda n: END if n == 9 else "work", ["work", END])
    return graph.compile(layers=[Most(most)], store=store).thread("t")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_count_goes_on_after_a_crash(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    address = tmp_path / "runs.db" if kind == "sqlite" else request.getfixturevalue("postgres")
    assert end_of(fork(lambda: failing_loop(address, 99, kill).run({"n": 0}))) == -signal.SIGKILL
    stopped = failing_loop(address, 6).resume()
    assert (str(stopped.error).partition(". ")[0], stopped.state["n"]) == (
        "the run of graph 'Graph' was stopped: 6 attempts",
        3,
    )


def test_a_count_goes_on_in_memory() -> None:
    store = Memory()
    assert failing_loop(store, 4).run({"n": 0}).state["n"] == 2
    assert failing_loop(store, 8).resume().state["n"] == 4


class Tally(Layer):
    """A row for each commit; notes which of them a run finds when it begins and has ended, by its scope."""

    def __init__(self) -> None:
        self.begun: dict[tuple[str, ...], list[str]] = {}
        self.ended: dict[tuple[str, ...], list[str]] = {}

    def of(self, run: Any) -> Layer:
        self.begun[run.scope] = run.rows("done")
        return self

    @contextmanager
    def run(self, run: Any) -> Iterator[None]:
        yield
        self.ended[run.scope] = run.rows("done")

    def rows(self, commit: Commit) -> list[NewRow]:
        return [NewRow("done", commit.node), NewRow("other", {"node": [commit.node]})]


def forked(tally: Tally, store: Store) -> CompiledGraph:
    """Two branches, the second one with a graph inside of its node."""
    graph = Graph(name="Outer").add_node("a", lambda n: {"m": n}).add_node("b", program_of(tally))
    graph.add_node("last", lambda m: {"k": m}).add_edge(START, ["a", "b"]).add_edge(["a", "b"], "last")
    return graph.add_edge("last", END).compile(layers=[tally], store=store)


def test_rows_are_there_if_and_only_if_their_commit_is(tmp_path: Path) -> None:
    """A process is killed at any write: a commit and its rows are one transaction."""
    store, whole = FailingSQLite(tmp_path / "runs.db"), ["a", "b", "last"]
    for after in (False, True):
        for at in count(2):
            name = f"{at} {after}"

            def child(name: str = name, at: int = at, after: bool = after) -> None:
                store.arm(kill, at, after)
                forked(Tally(), store).thread(name).run({"n": 1})

            if end_of(fork(child)) == 0:
                break
            store.rest()
            thread = forked(tally := Tally(), store).thread(name)
            stored = sorted(commit.node for commit in thread.history() if commit.node in whole)
            if thread.status != "completed":
                thread.resume()
                assert (sorted(tally.begun[()]), sorted(tally.ended[()])) == (stored, whole)
                inside = [found for scope, found in tally.ended.items() if scope]
                assert inside in ([], [["work"]])
        assert at > 4


def asking(tally: Tally, store: Store) -> Thread:
    graph = Graph(inputs=["n"], name="Asks").add_node("first", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_node("ask", lambda ctx: {"ok": ctx.interrupt("ok", "Go on?")}, writes=["ok"])
    return graph.add_path(START, "first", "ask", END).compile(layers=[tally], store=store).thread("t")


@pytest.fixture(params=["memory", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield Memory()
        return
    with SQLite(tmp_path / "runs.db") as file:
        yield Encrypted(file, key=Encrypted.new_key())


OPEN, WHOLE = ["first"], ["first", "ask"]


@pytest.mark.parametrize("what", ["nothing", "copy", "copy at", "load", "prune", "update"])
def test_rows_survive_what_is_done_with_a_thread(what: str, store: Store, tmp_path: Path) -> None:
    thread = asking(tally := Tally(), store)
    thread.run({"n": 1})
    thread.resume({"ok": True})
    assert thread.run({"n": 1}).status == "interrupted"
    if what == "copy":
        thread = thread.copy("u")
    elif what == "copy at":
        thread = thread.copy("u", at=3)
    elif what == "load":
        thread.export(tmp_path / "t.jsonl")
        thread = asking(tally, Memory())
        thread.load(tmp_path / "t.jsonl")
    elif what == "prune":
        assert thread.prune(before=3).rows
    elif what == "update":
        thread.update({"n": 7})
    found = thread.resume({} if what == "copy at" else {"ok": True})
    expected = [] if what == "copy at" else OPEN
    assert (tally.begun[()], tally.ended[()]) == (expected, OPEN if what == "copy at" else WHOLE)
    assert found.error is None


def test_rows_of_what_a_rerun_leaves_behind_do_not_count(store: Store) -> None:
    second = Event()
    graph = Graph(name="Fork").add_node("a", lambda: {"a": second.wait(9)}, writes=["a"])
    graph.add_node("b", lambda: {"b": 1}, writes=["b"]).add_node("c", second.set, writes=[])
    graph.add_node("ask", lambda ctx: {"ok": ctx.interrupt("ok", "Go on?")}, writes=["ok"])
    graph.add_edge(START, ["a", "b"]).add_edge("b", "c").add_edge(["a", "c"], "ask").add_edge("ask", END)
    thread = graph.compile(layers=[tally := Tally()], store=store).thread("t")
    thread.run({})
    (first,) = [commit for commit in thread.history() if commit.node == "a"]  # "b" has committed before it
    assert thread.rerun(first.id).status == "interrupted"
    assert tally.begun[()] == ["a"]
    thread.resume({"ok": True})
    assert (tally.begun[()], tally.ended[()]) == (["a", "b", "c"], ["a", "b", "c", "ask"])
    thread.merge(twin := thread.copy("u"))
    thread.run({})
    assert tally.begun[()] == [], "each run has its own"
    runs = store.runs("t")
    twin.delete()
    thread.delete()
    assert not any(store.rows(run.id) for run in runs)


def test_rows_of_a_run_in_a_node_are_found_by_the_next_attempt(play: Play) -> None:
    tally, failed = Tally(), list[int]()

    def fails_once(doubled: int) -> dict[str, int]:
        if not failed:
            failed.append(doubled)
            raise ConnectionError("once more")
        return {"end": doubled}

    inner = Graph(name="Inner").add_node("work", lambda n: {"doubled": 2 * n}).add_node("last", fails_once)
    inner.add_path(START, "work", "last", END)
    graph = Graph().add_node("part", inner.compile(layers=[tally]), retry=Retry(2, wait=wait_none()))
    failed.clear()
    run = play(graph.add_path(START, "part", END).compile(), {"n": 1})
    assert (run.state["end"], tally.begun) == (2, {("trunk:1",): ["work"]})


class Gives(Layer):
    """Gives something as the rows of one node."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def rows(self, commit: Commit) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


BAD: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, r"Gives.rows gave None: return a list of NewRow\(kind, body\)"),
    (NewRow("a", 1), TypeError, "return a list"),
    (["a"], TypeError, "return a list"),
    ([NewRow("", 1)], InputError, "kind ''"),
    ([NewRow("commit", 1)], InputError, "none of answer, ask, commit, "),
    ([NewRow(3, 1)], InputError, "kind 3"),  # type: ignore[arg-type]
    ([NewRow("\ud800", 1)], InputError, "is a text"),
    ([NewRow("a", object())], StateError, "kind 'a' that cannot be stored.*Give JSON data"),
    (ZeroDivisionError("none"), ZeroDivisionError, "none"),
]


@each("given, error, text", BAD)
@pytest.mark.parametrize("stored", [False, True])
def test_bad_rows_are_the_failure_of_the_node(given: Any, error: type[Exception], text: str, stored: bool) -> None:
    store = Memory() if stored else None

    def program(layer: Layer) -> CompiledGraph:
        graph = Graph().add_node("work", lambda n: {"doubled": 2 * n}, layers=[layer], retry=2)
        graph.add_node("help", lambda: {"doubled": 0}, writes=["doubled"]).add_error_edge("work", "help")
        return graph.add_path(START, "work", END).add_edge("help", END).compile(store=store)

    failing = program(Gives(given))
    run = failing.thread("t").run({"n": 1}) if stored else failing.run({"n": 1})
    with pytest.raises(error, match=text):
        _ = run.prediction
    assert [commit.node for commit in run.commits] == [START]
    assert any("in node 'work'" in note for note in run.error.__notes__)  # type: ignore[union-attr]
    if stored:
        assert program(Gives([NewRow("a", (1, b"x"))])).thread("t").resume().state["doubled"] == 2


def test_a_layer_without_rows_is_not_asked() -> None:
    class Plain(Layer):
        pass

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Layer, "rows", None)
        assert program_of(Plain())(n=1).doubled == 2
