"""An idempotency key: one run of a thread for each key, however often and in whatever state it is delivered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, CompiledGraph, Context, Graph, Run, Thread
from dspyer.errors import (
    ChangedGraphError,
    ConcurrentRunError,
    InputError,
    Interrupted,
    OpenRunError,
    RunStoppedError,
    StateError,
    StoreError,
    ThreadError,
)
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Change, Point, Row, RunRow
from dspyer.stores.encrypted import Encrypted
from tests.log.equality import outcome
from tests.log.failing import Crash, FailingMemory, crash
from tests.log.kinds import CALLS, INPUTS, KINDS, State
from tests.rows import each
from tests.threads.owned_runs import BackgroundRun, Clock, Gate, WatchedStore, gated, owner_of


class Flaky:
    """Two nodes that count their calls; the second one raises at its first `failures` calls."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[str] = []
        self.failures = failures
        self.before_second: Callable[[], None] = lambda: None

    def first(self, n: int) -> dict[str, Any]:
        self.calls.append("first")
        return {"n": n + 1}

    def second(self, n: int) -> dict[str, Any]:
        self.calls.append("second")
        self.before_second()
        if self.calls.count("second") <= self.failures:
            raise ValueError("not yet")
        return {"n": n * 10}

    def program(self, store: Store) -> CompiledGraph:
        graph = Graph(inputs=["n"], keep="all").add_node("first", self.first, writes=["n"])
        return (
            graph.add_node("second", self.second, writes=["n"])
            .add_path(START, "first", "second", END)
            .compile(store=store)
        )


def asking(store: Store, *, name: str = "ask") -> CompiledGraph:
    graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_interrupt(name, question="Send it?", answer=bool, into="sent")
    return graph.add_path(START, "add", name, END).compile(store=store)


class Counted(Memory):
    """Counts what is read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_read = 0
        self.runs_read = 0
        self.writes = 0

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = super().rows(run, first, last)
        self.rows_read += len(found)
        return found

    def run(self, run: str) -> RunRow | None:
        self.runs_read += 1
        return super().run(run)

    def write(self, change: Change) -> int:
        self.writes += 1
        return super().write(change)


def arun(t: Thread, *args: Any, **options: Any) -> Run:
    return asyncio.run(t.arun(*args, **options))


def stream(t: Thread, *args: Any, **options: Any) -> Run:
    events = t.stream(*args, **options)
    assert [type(event).__name__ for event in events][-1] == "RunEnded"
    return events.run


def astream(t: Thread, *args: Any, **options: Any) -> Run:
    async def read() -> Run:
        events = t.astream(*args, **options)
        assert [type(event).__name__ async for event in events][-1] == "RunEnded"
        return events.run

    return asyncio.run(read())


FORMS = [Thread.run, arun, stream, astream]
"""The ways to deliver a key."""


# --- rule 12: the states of the run


@pytest.mark.parametrize("deliver", FORMS)
def test_a_completed_run_is_returned_as_stored_and_nothing_is_called_or_written(deliver: Callable[..., Run]) -> None:
    store, flaky = Counted(), Flaky()
    t = flaky.program(store).thread("t")
    first = deliver(t, {"n": 1}, key="a")
    t.run({"n": 5}, key="b")
    t.run({"n": 6})
    flaky.calls.clear()
    writes, before = store.writes, t.history()
    again = deliver(flaky.program(store).thread("t"), {"n": 1}, key="a")
    assert (flaky.calls, store.writes, t.history()) == ([], writes, before)
    assert (again.run_id, again.status, again.error, again.questions) == (first.run_id, "completed", None, ())
    assert (again.state, again.prediction.n, again.at(1), again.diff(0, 2)) == (first.state, 20, first.at(1), {"n": 20})
    assert again.blame("n").node == "second"
    assert [(c.id, c.version, c.node, c.patch) for c in again.commits] == [
        (c.id, c.version, c.node, c.patch) for c in first.commits
    ]
    assert (again.usage, again.cost, again.trace, again.branches) == ({}, 0.0, (), {(): first.state})
    assert Run.of(again.prediction) is again


@pytest.mark.parametrize("deliver", FORMS)
def test_an_open_run_is_resumed(deliver: Callable[..., Run], store: Store) -> None:
    flaky = Flaky(failures=2)
    t = flaky.program(store).thread("t")
    runs: list[Run] = []
    for _ in range(2):
        try:
            runs.append(deliver(t, {"n": 1}, key="a"))
        except ValueError:
            assert deliver in (stream, astream)  # they raise after the last event
    done = deliver(t, {"n": 1}, key="a")
    assert (done.status, done.state["n"]) == ("completed", 20)
    assert flaky.calls == ["first", "second", "second", "second"]
    assert {run.status for run in runs} <= {"failed"}
    assert {run.run_id for run in runs} <= {done.run_id}
    assert [run.id for run in store.runs("t")] == [done.run_id]


def test_a_stopped_run_is_resumed(store: Store) -> None:
    flaky = Flaky()
    t = flaky.program(store).thread("t")
    flaky.before_second = t.stop
    stopped = t.run({"n": 1}, key="a")
    assert (stopped.status, type(stopped.error)) == ("stopped", RunStoppedError)
    flaky.before_second = lambda: None
    assert t.run({"n": 1}, key="a").state["n"] == 20
    assert flaky.calls == ["first", "second", "second"]


@pytest.mark.parametrize("deliver", FORMS)
def test_another_key_behind_a_crashed_run_comes_again_later(deliver: Callable[..., Run]) -> None:
    """The delivery that began the crashed run resumes it; behind one that failed, a caller has to decide."""
    store, flaky = FailingMemory(), Flaky(failures=1)
    t = flaky.program(store).thread("t")
    store.arm(crash, 3, after=False)
    with pytest.raises(Crash):
        t.run({"n": 1}, key="a")
    store.rest()
    with pytest.raises(ConcurrentRunError, match=r"crashed.*try again.*thread.resume\(\).*if_open='abandon'"):
        deliver(t, {"n": 2}, key="b")
    with pytest.raises(OpenRunError):
        deliver(t, {"n": 2})
    assert t.run({"n": 1}, key="a").status == "failed"
    with pytest.raises(OpenRunError):
        deliver(t, {"n": 2}, key="b")
    assert deliver(t, {"n": 1}, key="a").status == deliver(t, {"n": 2}, key="b").status == "completed"
    assert len(store.runs("t")) == 2


@each("after", [False, True])
def test_a_crashed_run_is_resumed(after: bool) -> None:
    """The fifth write is its end: after it, nothing is left to do."""
    for at in range(1, 5):
        store, flaky = FailingMemory(), Flaky()
        t = flaky.program(store).thread("t")
        store.arm(crash, at, after)
        with pytest.raises(Crash):
            t.run({"n": 1}, key="a")
        store.rest()
        done, called = flaky.program(store).thread("t").run({"n": 1}, key="a"), list(flaky.calls)
        assert (done.state["n"], done.status, len(done.commits)) == (20, "completed", 3), at
        assert called.count("first") <= 1 + (at <= 3 and not (at == 3 and after)), at
        assert flaky.program(store).thread("t").run({"n": 1}, key="a").state["n"] == 20
        assert flaky.calls == called, at
        assert len(store.runs("t")) == 1


def test_a_run_that_makes_no_progress_is_not_resumed_for_ever() -> None:
    store, flaky = FailingMemory(), Flaky()
    t = flaky.program(store).thread("t")
    for _ in range(11):
        store.arm(crash, 3, after=False)
        with pytest.raises(Crash):
            t.run({"n": 1}, key="a")
    store.rest()
    with pytest.raises(ThreadError, match="was resumed 10 times without progress"):
        t.run({"n": 1}, key="a")


@pytest.mark.parametrize("deliver", FORMS)
def test_a_run_that_waits_for_an_answer_is_returned_as_stored(deliver: Callable[..., Run]) -> None:
    store = Counted()
    t = asking(store).thread("t")
    first = t.run({"n": 1}, key="a")
    writes = store.writes
    again = deliver(t, {"n": 1}, key="a")
    assert (again.status, again.questions, again.run_id) == ("interrupted", first.questions, first.run_id)
    with pytest.raises(OpenRunError, match=r"waits for answers: .*thread.resume\({'key': answer}\).*'amend'"):
        t.run({})
    assert (again.state, again.branches, store.writes) == (first.state, first.branches, writes)
    assert [type(event).__name__ for event in again.events] == ["RunStarted", "Asked", "RunEnded"]
    with pytest.raises(Interrupted, match=r"thread\.resume\(answers="):
        again.raise_error()
    t.resume({first.questions[0].id: True})
    done = deliver(t, {"n": 1}, key="a")
    assert (done.status, done.state["sent"], done.run_id) == ("completed", True, first.run_id)


def test_a_run_that_waits_in_several_branches_and_at_a_join_is_returned_as_stored(store: Store) -> None:
    def ask(ctx: Context) -> dict[str, Any]:
        return {ctx.node: ctx.interrupt(ctx.node, "?", bool)}

    graph = Graph(inputs=["n"]).add_node("a", ask, writes=["a"]).add_node("b", ask, writes=["b"])
    graph.add_node("c", lambda: {"c": 1}, writes=["c"]).add_node("j", ask, writes=["j"])
    for name in "abc":
        graph.add_path(START, name, "j")
    t = graph.add_edge("j", END).compile(store=store).thread("t")
    asked = t.run({"n": 1}, key="k")
    for count in (2, 1):
        again = t.run({"n": 1}, key="k")
        assert (len(again.questions), again.questions, again.status) == (count, asked.questions, "interrupted")
        assert (again.branches, again.state) == (asked.branches, asked.state)
        assert [commit.id for commit in again.commits] == [commit.id for commit in asked.commits]
        asked = t.resume({one.id: True for one in asked.questions})
    assert t.run({"n": 1}, key="k").state == asked.state


def test_an_abandoned_run_is_not_started_again(store: Store) -> None:
    flaky = Flaky(failures=1)
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a")
    with pytest.raises(OpenRunError):
        t.run({"n": 2}, key="b")
    t.run({"n": 2}, key="b", if_open="abandon")
    calls = list(flaky.calls)
    ways: list[Any] = [("refuse", False), ("abandon", False), ("amend", False), ("refuse", True)]
    for if_open, take_over in ways:
        with pytest.raises(ThreadError, match="run of key 'a' on thread 't' was abandoned") as refused:
            t.run({"n": 1}, key="a", if_open=if_open, take_over=take_over)
        assert not isinstance(refused.value, (ConcurrentRunError, OpenRunError))
    assert flaky.calls == calls
    assert t.run({"n": 2}, key="b").status == "completed"


def test_the_option_to_abandon_does_not_abandon_the_run_of_the_key(store: Store) -> None:
    flaky = Flaky(failures=1)
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a", if_open="abandon")
    assert t.run({"n": 1}, key="a", if_open="abandon").status == "completed"
    assert flaky.calls == ["first", "second", "second"]


def test_other_inputs_are_refused_whatever_the_state(store: Store) -> None:
    flaky = Flaky(failures=1)
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a")
    for _ in range(2):  # of a failed run, and of a completed one
        with pytest.raises(ThreadError, match="other inputs"):
            t.run({"n": 2}, key="a", take_over=True)
        t.run({"n": 1}, key="a")
    assert flaky.calls == ["first", "second", "second"]


def test_a_key_is_a_text() -> None:
    flaky = Flaky()
    t = flaky.program(Memory()).thread("t")
    wrong: list[Any] = ["", 7, b"a", None.__class__]
    for key in wrong:
        with pytest.raises(ThreadError, match="a key is a text that is not empty"):
            t.run({"n": 1}, key=key)
    assert (t.status, flaky.calls) == ("new", [])


def test_any_text_is_a_key(store: Store) -> None:
    flaky, keys = Flaky(), ["a b", "\ud800", "x" * 10_000, "t\0a", "ключ", "1"]
    t = flaky.program(store).thread("t")
    ids = [t.run({"n": 1}, key=key).run_id for key in keys]
    assert [t.run({"n": 1}, key=key).run_id for key in keys] == ids
    assert (len(set(ids)), flaky.calls) == (len(keys), ["first", "second"] * len(keys))


def test_names_of_threads_and_keys_do_not_run_together(store: Store) -> None:
    program = Flaky().program(store)
    pairs = [("t", "1a"), ("t1", "a"), ("t1a", "a"), ('t", "1', "a"), ("t", '1", "a'), ("a", "t")]
    assert len({program.thread(name).run({"n": 1}, key=key, if_open="abandon").run_id for name, key in pairs}) == len(
        pairs
    )


def test_a_key_is_refused_with_inputs_that_have_no_digest() -> None:
    t = Flaky().program(Memory()).thread("t")
    with pytest.raises(InputError):
        t.run({"m": 1}, key="a")
    with pytest.raises((InputError, StateError), match="n"):
        t.run({"n": object()}, key="a")
    assert t.status == "new"


# --- rule 12: other threads, deletion


def test_a_deleted_run_is_forgotten(store: Store) -> None:
    flaky = Flaky()
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a")
    t.delete()
    assert t.run({"n": 2}, key="a").state["n"] == 30
    assert t.run({"n": 2}, key="a").state["n"] == 30
    assert flaky.calls == ["first", "second"] * 2


BETWEEN: dict[str, Callable[[Thread], object]] = {
    "a run": lambda t: t.run({"n": 5}),
    "an update": lambda t: t.update({"n": 5}),
    "an update as a node": lambda t: (t.update({"n": 5}, as_node="first"), t.resume()),
    "a rerun": lambda t: t.rerun(1),
    "a rerun from before the first key": lambda t: t.rerun("t.1/trunk:1"),
    "a merge": lambda t: (t.copy(to="u", patch={"x": 1}), t.update({"y": 1}), t.merge(t.copy(to="v", patch={"z": 1}))),
    "a pruning": lambda t: t.prune(before="t.2/trunk:0"),
    "an open run": lambda t: t.run({"n": "x"}),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_a_key_stays_known_whatever_happens_to_the_thread(between: str, store: Store) -> None:
    flaky = Flaky()
    t = flaky.program(store).thread("t")
    t.run({"n": 0})
    first = t.run({"n": 1}, key="a")
    BETWEEN[between](t)
    flaky.calls.clear()
    again = t.run({"n": 1}, key="a")
    assert (again.run_id, again.status, again.state["n"], flaky.calls) == (first.run_id, "completed", 20, [])
    assert t.run({"n": 2}, key="b", if_open="abandon").run_id == t.run({"n": 2}, key="b").run_id
    assert t.run({"n": 1}, key="a").run_id == first.run_id


@pytest.mark.parametrize("pruned", [1, 2])
def test_a_pruned_run_is_forgotten(pruned: int, store: Store) -> None:
    """The last row of the last pruned run stays, as the beginning of the history, and its id is taken."""
    flaky = Flaky()
    t = flaky.program(store).thread("t")

    def called(keys: int) -> int:
        del flaky.calls[:]
        for n in range(keys):
            assert t.run({"n": n}, key=str(n)).state["n"] == (n + 1) * 10
        return len(flaky.calls)

    assert called(3) == 6
    t.prune(before=3 * pruned)
    assert called(3) == 2 * pruned
    begun = [commit.id for commit in t.history() if commit.node == "START"]
    t.prune(before=begun[3 - pruned])  # that row is deleted now, and the runs that came after it
    assert called(pruned) == 0
    assert called(3) == 2 * (3 - pruned)


# --- what else happens to a run


def test_a_rerun_of_a_failed_run_continues_it_and_one_from_before_leaves_it(store: Store) -> None:
    flaky = Flaky(failures=1)
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a")
    assert t.rerun(1).status == "completed"
    t.run({"n": 5}, key="b")
    assert t.run({"n": 1}, key="a").state["n"] == 20
    assert flaky.calls == ["first", "second", "second", "first", "second"]

    flaky = Flaky()
    u = flaky.program(store).thread("u")
    u.run({"n": 1}, key="a")
    flaky.failures = 2
    assert u.run({"n": 1}, key="b").status == "failed"
    assert u.rerun(1).status == "completed"
    with pytest.raises(ThreadError, match="replaced by a rerun"):
        u.run({"n": 1}, key="b")
    assert u.run({"n": 1}, key="a").state["n"] == 20


def test_a_rerun_of_a_completed_run_is_another_run(store: Store) -> None:
    flaky = Flaky()
    t = flaky.program(store).thread("t")
    first = t.run({"n": 1}, key="a")
    assert t.rerun(1).run_id != first.run_id
    assert t.run({"n": 1}, key="a").run_id == first.run_id


def test_a_rerun_of_a_run_that_was_continued_in_another_part_is_another_run(store: Store) -> None:
    flaky = Flaky(failures=1)
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a")
    t.update({"n": 7})
    first = t.run({"n": 1}, key="a")
    assert first.state["n"] == 70
    flaky.failures = 4
    assert t.rerun(1).status == "failed"
    t.run({"n": 1}, key="b", if_open="abandon")
    again = t.run({"n": 1}, key="a")
    assert (again.status, again.run_id, again.state["n"]) == ("completed", first.run_id, 70)


def test_the_id_of_a_pruned_run_is_not_taken_for_that_of_a_later_one(store: Store) -> None:
    """The pruned history begins with a part that continued the run of the key, whose id is free again."""
    flaky = Flaky(failures=1)
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a")
    t.update({"n": 7})
    t.run({"n": 1}, key="a")
    t.run({"n": 2}, key="b")
    t.prune(before=[commit.id for commit in t.history() if commit.node == "START"][1])
    flaky.failures = 5
    assert t.run({"n": 3}, key="a").status == "failed"
    assert t.run({"n": 4}, key="c", if_open="abandon").status == "failed"
    with pytest.raises(ThreadError, match="was abandoned"):
        t.run({"n": 3}, key="a")


def test_manual_commits_and_other_graphs_continue_the_run(store: Store) -> None:
    flaky = Flaky(failures=2)
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a")
    t.update({"n": 7})
    assert t.run({"n": 1}, key="a").status == "failed"
    more = (
        Graph(inputs=["n"]).add_node("first", flaky.first, writes=["n"]).add_node("second", flaky.second, writes=["n"])
    )
    more.add_node("third", nothing).add_path(START, "first", "second", "third", END)
    t = more.compile(store=store).thread("t")
    with pytest.raises(ThreadError, match="third"):
        t.run({"n": 1}, key="a")
    assert t.resume(allow_changed_graph=True).state["n"] == 70
    t.run({"n": 1}, key="b")
    assert t.run({"n": 1}, key="a").state["n"] == 70
    assert flaky.calls.count("second") == 4


class Backwards(Memory):
    """As of machines whose clocks differ: each part of a run seems to have started before what it continues."""

    def runs(self, thread: str) -> list[RunRow]:
        return super().runs(thread)[::-1]


def test_a_continued_run_is_found_whatever_the_clocks_said() -> None:
    test_manual_commits_and_other_graphs_continue_the_run(Backwards())


def nothing() -> dict[str, Any]:
    return {}


def test_a_failed_run_of_a_graph_that_has_changed_is_not_resumed(store: Store) -> None:
    """`resume(allow_changed_graph=...)` is for people: a delivery calls no node."""
    flaky = Flaky(failures=1)
    flaky.program(store).thread("t").run({"n": 1}, key="a")
    graph = Graph(inputs=["n"]).add_node("first", flaky.first, writes=["n"])
    graph.add_node("second", flaky.second, writes=["n"]).add_node("third", nothing).add_node("fourth", nothing)
    t = graph.add_path(START, "first", "second", "third", END).add_path("second", "fourth", END).compile(store=store)
    with pytest.raises(ChangedGraphError):
        t.thread("t").run({"n": 1}, key="a")
    assert flaky.calls == ["first", "second"]


def test_a_replaced_run_is_looked_for_no_further_than_the_pruned_history_goes(store: Store) -> None:
    flaky = Flaky()
    t = flaky.program(store).thread("t")
    for n in range(3):
        t.run({"n": n}, key=str(n))
    begun = [commit.id for commit in t.history() if commit.node == "START"]
    t.prune(before=begun[2])
    flaky.failures = 4
    assert t.run({"n": 7}, key="open").status == "failed"
    assert t.rerun(begun[2]).status == "completed"
    with pytest.raises(ThreadError, match="replaced by a rerun"):
        t.run({"n": 7}, key="open")


def test_a_run_of_another_graph_is_returned_as_stored(store: Store) -> None:
    """A deployment between two deliveries: nothing is called, so nothing has to fit."""
    first = asking(store).thread("t").run({"n": 1}, key="a")
    other = asking(store, name="confirm").thread("t")
    waiting = other.run({"n": 1}, key="a")
    assert (waiting.status, waiting.questions, waiting.state) == ("interrupted", first.questions, first.state)
    asking(store).thread("t").resume({first.questions[0].id: True})
    done = other.run({"n": 1}, key="a")
    assert (done.status, done.state["sent"], [c.version for c in done.commits]) == ("completed", True, [0, 1, 2])
    assert "completed" in str(done.report())


@pytest.mark.parametrize("name", KINDS)
def test_runs_of_every_kind_of_graph_are_returned_as_they_ended(name: str) -> None:
    """From a graph that fits, and from one of another name, which reads the commits alone."""
    store, kind = Memory(), KINDS[name]
    t = kind.compile("sync", store).thread("t")
    with kind.lm():
        t.run({"q": "before"})
        first = t.run(INPUTS, key="a")
        CALLS.take()
        for thread in (t, unfit(store).thread("t")):
            again = thread.run(INPUTS, key="a")
            assert (outcome(again), CALLS.take()) == (outcome(first), {})
            assert again.prediction == first.prediction or thread is not t  # it has other outputs
            assert again.blame("q").id == first.blame("q").id
            assert again.record() == first.record()
            assert (again.failures, again.routing_reason) == (first.failures, first.routing_reason)
            assert [again.at(commit.id) for commit in first.commits] == [
                first.at(commit.id) for commit in first.commits
            ]


def unfit(store: Store) -> CompiledGraph:
    """A graph that has nothing of the others but their fields."""
    graph = Graph(State).add_node("other", nothing).add_path(START, "other", END)
    return graph.compile(store=store)


def test_what_is_hidden_stays_hidden_in_a_run_that_is_returned_as_stored(tmp_path: Path) -> None:
    def ask(secret: str, ctx: Context) -> dict[str, Any]:
        return {"ok": ctx.interrupt("ok", f"Is it {secret}?", bool)}

    graph = Graph(inputs=["secret"]).add_node("ask", ask, writes=["ok"]).add_path(START, "ask", END)
    t = graph.compile(store=tmp_path / "runs.db", redact=["secret"]).thread("t")
    first = t.run({"secret": "hunter2"}, key="a")
    again = t.run({"secret": "hunter2"}, key="a")
    # An open question is shown as it was asked.
    assert [run.questions[0].text for run in (first, again)] == ["Is it hunter2?"] * 2
    assert again.questions == t.questions
    assert again.state["secret"] == "hunter2"
    t.resume({"ok": True})
    done = t.run({"secret": "hunter2"}, key="a")
    assert done.status == "completed"
    assert "hunter2" not in str(done.events) + done.report()


def test_an_export_takes_the_keys_along(store: Store, tmp_path: Path) -> None:
    flaky = Flaky()
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a")
    t.export(tmp_path / "t.jsonl")
    other = flaky.program(Memory()).thread("t")
    other.load(tmp_path / "t.jsonl")
    assert other.run({"n": 1}, key="a").state["n"] == 20
    assert flaky.calls == ["first", "second"]


# --- a thread that has an owner


def test_deliveries_to_a_thread_that_another_run_owns(store: Store) -> None:
    gate = Gate()
    t = gated(gate, store).thread("t")
    gate.opened.set()
    t.run({"n": 1}, key="done")
    gate.opened.clear()
    gate.inside.clear()
    working = BackgroundRun(lambda: t.run({"n": 2}, key="a"))
    assert gate.inside.wait(20)
    for key, n in [("a", 2), ("new", 3)]:
        with pytest.raises(ConcurrentRunError, match='on_conflict="wait"'):
            t.run({"n": n}, key=key)
    with pytest.raises(ThreadError, match="other inputs"):
        t.run({"n": 3}, key="a")
    assert t.run({"n": 1}, key="done").status == "completed"
    waiting = BackgroundRun(lambda: t.run({"n": 2}, key="a", on_conflict="wait"))
    gate.opened.set()
    first, second = working.end(), waiting.end()
    assert (first.run_id, first.state, gate.calls) == (second.run_id, second.state, 2)


def test_the_owner_can_be_replaced(store: Store) -> None:
    gate = Gate()
    t = gated(gate, store).thread("t")
    working = BackgroundRun(lambda: t.run({"n": 1}, key="a"))
    assert gate.inside.wait(20)
    taking = BackgroundRun(lambda: t.run({"n": 1}, key="a", take_over=True))
    while gate.calls < 2:
        time.sleep(0.001)
    gate.opened.set()
    assert (taking.end().status, working.end().status) == ("completed", "failed")
    assert t.run({"n": 1}, key="a").status == "completed"
    assert gate.calls == 2


def test_an_owner_that_only_seemed_dead_may_finish_the_run_before_it_is_replaced(late_clock: Clock) -> None:
    gate, store = Gate(), WatchedStore()
    t = gated(gate, store).thread("t")
    working = BackgroundRun(lambda: t.run({"n": 1}, key="a"))
    assert gate.inside.wait(20)
    late_clock.ahead += 31  # its lease has ended, as of a process that was suspended

    def finish(change: Change) -> None:
        if change.owner is not None and not change.rows and not gate.opened.is_set():
            gate.opened.set()
            working.wait()

    store.before = finish
    assert t.run({"n": 1}, key="a").state == working.end().state
    assert gate.calls == 1
    assert owner_of(store) is None
    assert t.run({"n": 1}, key="b").status == "completed"


# --- rule 13: what it costs


def test_a_delivery_reads_as_much_after_many_runs_as_after_one() -> None:
    store = Counted()
    t = Flaky().program(store).thread("t")
    t.run({"n": 1}, key="a")
    costs: list[tuple[int, int, int]] = []
    for runs in (1, 60):
        for n in range(runs):
            t.run({"n": 1}, key=f"{runs}.{n}")
        for key in ("a", f"new{runs}"):
            store.rows_read = store.runs_read = store.writes = 0
            t.run({"n": 1}, key=key)
            costs.append((store.rows_read, store.runs_read, store.writes))
    stored, new, stored_later, new_later = costs
    assert (stored[2], stored_later[2], new[2]) == (0, 0, new_later[2])
    assert stored_later[1] <= stored[1] + 30  # up to 24 rows without a snapshot may be those of several runs
    assert new_later[1] <= new[1] + 30


def test_a_key_costs_two_look_ups_and_one_row() -> None:
    store, costs = Counted(), list[tuple[int, int, int]]()
    for key in (None, "a"):
        t = Flaky().program(store).thread(f"t{key}")
        t.run({"n": 1}, key=None if key is None else "before")
        store.rows_read = store.runs_read = store.writes = 0
        run = t.run({"n": 1}, key=key)
        costs.append((store.runs_read, store.writes, len(store.rows(run.run_id))))
    plain, keyed = costs
    assert [after - before for before, after in zip(plain, keyed, strict=True)] == [2, 0, 1]


def test_an_encrypted_store_does_not_tell_the_inputs(tmp_path: Path) -> None:
    """The digest of the inputs is not written in the clear: who guesses them could check the guess."""
    path, flaky = tmp_path / "runs.db", Flaky()
    plain = SQLite(tmp_path / "plain.db")
    flaky.program(plain).thread("t").run({"n": 1}, key="a")
    (run,) = plain.runs("t")
    digest = plain.rows(run.id, 1, 1)[0].content
    assert digest is not None
    hidden = str(digest.value(plain.blobs))
    with Encrypted(SQLite(path), key=Encrypted.new_key()) as store:
        t = flaky.program(store).thread("t")
        t.run({"n": 1}, key="a")
        assert t.run({"n": 1}, key="a").state["n"] == 20
        with pytest.raises(ThreadError, match="other inputs"):
            t.run({"n": 2}, key="a")
    data = b"".join(file.read_bytes() for file in tmp_path.glob("runs.db*"))
    assert hidden.encode() not in data
    assert hidden in "".join(str(row.content and row.content.value(plain.blobs)) for row in plain.rows(run.id))


class Damaged(Memory):
    """The header of the last commit is cut off."""

    damaged = False

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = super().rows(run, first, last)
        return [row._replace(header={"id": "trunk:1"}) if self.damaged and row.seq == 3 else row for row in found]


@pytest.mark.parametrize("fits", [True, False])
def test_a_damaged_log_is_not_returned_as_a_result(fits: bool) -> None:
    store, flaky = Damaged(), Flaky()
    flaky.program(store).thread("t").run({"n": 1}, key="a")
    store.damaged = True
    with pytest.raises(StoreError):
        (flaky.program(store) if fits else unfit(store)).thread("t").run({"n": 1}, key="a")
    assert flaky.calls == ["first", "second"]


class Cyclic(Memory):
    """Of a store that was forged or damaged: each run continues itself."""

    forged = False

    def run(self, run: str) -> RunRow | None:
        row = super().run(run)
        return row._replace(parents=(Point(run, 0),)) if self.forged and row is not None else row


def test_runs_that_continue_themselves_are_an_error() -> None:
    store, flaky = Cyclic(), Flaky(failures=2)
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="a")
    t.run({"n": 2}, key="b", if_open="abandon")
    store.forged = True
    with pytest.raises(StoreError, match="continues from itself"):
        t.run({"n": 1}, key="a")


def test_a_thread_that_was_changed_between_two_reads_is_read_again() -> None:
    """The run is begun after this delivery has read the thread, and before it looks for the key."""
    flaky = Flaky(failures=1)

    class Between(Memory):
        def __init__(self) -> None:
            super().__init__()
            self.acts: list[Callable[[], object]] = []

        def run(self, run: str) -> RunRow | None:
            if self.acts:
                self.acts.pop()()
            return super().run(run)

    store = Between()
    t, other = flaky.program(store).thread("t"), flaky.program(store).thread("t")
    flaky.failures = 0
    t.run({"n": 0}, key="before")
    flaky.calls.clear()
    flaky.failures = 1
    store.acts.append(lambda: other.run({"n": 1}, key="a"))
    with pytest.raises(ConcurrentRunError, match="another process has changed thread 't'"):
        t.run({"n": 1}, key="a")
    assert t.run({"n": 1}, key="a").status == "completed"
    assert flaky.calls == ["first", "second", "second"]
