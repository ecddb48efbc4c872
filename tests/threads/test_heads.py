"""What a process remembers of its threads is never told in place of what the store has."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Kept, reducers
from dspyer.errors import StoreError, ThreadError
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Row


class Said(BaseModel):
    say: str = ""
    log: Kept[Annotated[list[str], reducers.append]] = []


def compiled(store: Any) -> CompiledGraph:
    graph = Graph(Said, inputs=["say"]).add_node("hear", lambda say: {"log": say}, writes=["log"])
    return graph.add_path(START, "hear", END).compile(store=store)


class Counting(SQLite):
    """Counts the reads of rows; fails on request."""

    reads = 0
    fails = False

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        self.reads += 1
        if self.fails:
            raise OSError("the disk is gone")
        return super().rows(run, first, last)


def reads_of(store: Counting, work: Callable[[], object]) -> int:
    before = store.reads
    work()
    return store.reads - before


# By two handles of one file, each as a process has it: what it remembers is its own.
STEPS = ("run", "update", "copy", "rerun", "prune", "delete", "load", "merge", "take over", "read")


def step(kind: str, program: CompiledGraph, number: int, path: Path) -> None:
    """One change of thread `t`; an export of it is what `load` brings back."""
    t = program.thread("t")
    if kind == "run" or t.status == "new":
        t.run({"say": str(number)})
    elif kind == "update":
        t.update({"log": f"by hand {number}"})
    elif kind == "copy":
        other = t.copy(f"copy {number}")
        other.run({"say": f"copied {number}"})
    elif kind == "rerun":
        ids = [commit.id for commit in t.history() if commit.node == "START"]
        t.rerun(from_version=ids[-1] if ids else t.history()[-1].id).raise_error()
    elif kind == "prune":
        t.prune(before=t.history()[-1].id)
    elif kind == "delete":
        t.delete()
    elif kind == "load":
        t.export(path / f"{number}.jsonl")
        t.delete()
        t.load(path / f"{number}.jsonl")
    elif kind == "merge":
        other = t.copy(f"copy {number}")
        other.run({"say": f"merged {number}"})
        t.merge(other)
    elif kind == "take over":
        t.run({"say": str(number)}, take_over=True)


@pytest.mark.slow("a law over files that two handles change in turns")
@given(turns=st.lists(st.tuples(st.booleans(), st.sampled_from(STEPS)), min_size=1, max_size=9))
def test_a_second_process_is_never_answered_from_memory(turns: list[tuple[bool, str]], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("runs")
    with SQLite(folder / "runs.db") as one, SQLite(folder / "runs.db") as two:
        programs = [compiled(one), compiled(two)]
        for number, (which, kind) in enumerate(turns):
            with suppress(ThreadError):  # not every version can be repeated, nor every run begin the history
                step(kind, programs[which], number, folder)
            with SQLite(folder / "runs.db") as fresh:
                known = compiled(fresh)
                for thread in known.threads():
                    wanted = known.thread(thread).state
                    for program in programs:
                        assert program.thread(thread).state == wanted, (number, kind, thread)
                if "t" in known.threads():
                    known.thread("t").replay()


def test_the_next_turn_of_a_process_reads_no_rows(tmp_path: Path) -> None:
    with Counting(tmp_path / "runs.db") as store, SQLite(tmp_path / "runs.db") as other:
        t, second = compiled(store).thread("t"), compiled(other).thread("t")
        t.run({"say": "a"})
        assert reads_of(store, lambda: t.run({"say": "b"})) == 0
        assert reads_of(store, lambda: compiled(store).thread("t").state) == 0, "by another program of this graph too"
        second.run({"say": "c"})
        assert reads_of(store, lambda: t.run({"say": "d"})) > 0, "another process has written the head"
        assert t.state["log"] == ["a", "b", "c", "d"] == second.state["log"]
        assert reads_of(store, lambda: t.run({"say": "e"})) == 0


def test_a_failure_of_the_store_forgets(tmp_path: Path) -> None:
    with Counting(tmp_path / "runs.db") as store:
        t = compiled(store).thread("t")
        t.run({"say": "a"})
        store.fails = True
        with pytest.raises(StoreError):
            t.history()
        store.fails = False
        assert reads_of(store, lambda: t.run({"say": "b"})) > 0
        assert t.state["log"] == ["a", "b"]


def test_another_graph_reads_the_values_as_its_own_classes(tmp_path: Path) -> None:
    class Other(Said):
        note: str = "new"

    with Counting(tmp_path / "runs.db") as store:
        compiled(store).thread("t").run({"say": "a"})
        graph = Graph(Other, inputs=["say"]).add_node("hear", lambda say: {"log": say}, writes=["log"])
        t = graph.add_path(START, "hear", END).compile(store=store).thread("t")
        assert reads_of(store, lambda: t.run({"say": "b"})) > 0
        assert t.state.to_dict() == {"say": "b", "log": ["a", "b"], "note": "new"}


def test_a_fork_reads_what_its_parent_remembers(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with Counting(tmp_path / "runs.db") as store:
        t = compiled(store).thread("t")
        t.run({"say": "a"})

        def child() -> None:
            os._exit(10 if reads_of(store, lambda: t.run({"say": "b"})) else 11)

        process = context.Process(target=child)
        process.start()
        process.join(60)
        assert process.exitcode == 10
        assert t.run({"say": "c"}).state["log"] == ["a", "b", "c"]


def test_a_pickled_store_has_none_and_a_freed_one_keeps_no_state(tmp_path: Path) -> None:
    store = SQLite(tmp_path / "runs.db")
    bare = len(pickle.dumps(store))
    program = compiled(store)
    state = weakref.ref(program.thread("t").run({"say": "a" * 10_000}).state)
    assert len(pickle.dumps(store)) == bare
    gc.collect()
    assert state() is not None
    store.close()
    del program, store
    gc.collect()
    assert state() is None


def test_a_store_in_memory_remembers_too() -> None:
    t = compiled(Memory()).thread("t")
    for say in "ab":
        t.run({"say": say})
    t.delete()
    assert t.run({"say": "c"}).state["log"] == ["c"]
