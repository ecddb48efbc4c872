"""Merging threads: as branches join, each commit once; merging again adds nothing; a conflict writes nothing."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, ImmutableState, Thread, reducers
from dspyer.errors import ConcurrentRunError, MergeConflictError, OpenRunError, ThreadError
from dspyer.stores import Memory
from dspyer.stores.base import Change, Owner, Store


class Board(BaseModel):
    do: dict[str, Any] = {}
    a: Any = 0
    b: Any = 0
    notes: dict[str, Any] = {}
    n: Annotated[int, reducers.increment] = 0
    log: Annotated[list[str], reducers.extend] = []
    said: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    files: Annotated[dict[str, str], reducers.update] = {}


def program(store: Store, merge: Any = "raise") -> CompiledGraph:
    def work(do: dict[str, Any]) -> dict[str, Any]:
        if do.get("fail"):
            raise RuntimeError
        return do

    graph = Graph(Board, merge=merge, keep=[*Board.model_fields.keys() - {"do"}])
    return graph.add_node("work", work).add_path(START, "work", END).compile(store=store)


def two(merge: Any = "raise", store: Store | None = None) -> tuple[Thread, Thread]:
    """A thread and its copy."""
    left = program(store or Memory(), merge).thread("left")
    left.run({"do": {"a": 1, "b": 1, "n": 1, "log": ["base"], "notes": {"x": 1}}})
    return left, left.copy("right")


def do(thread: Thread, **patch: Any) -> None:
    assert thread.run({"do": patch}).status == "completed"


def test_each_change_of_both_threads_is_applied_once() -> None:
    left, right = two()
    do(left, a=2, n=10, log=["left"], notes={"l": 1}, said=[{"role": "user", "content": "left"}])
    do(right, b=2, n=100, log=["right"], notes={"r": 1}, said=[{"role": "user", "content": "right"}])
    theirs, ours = right.history(), left.history()
    made = left.merge(right)
    assert made is not None
    assert (made.node, made.parents) == ("join:right", (ours[-1].id, theirs[-1].id))
    state = left.state
    assert (state["a"], state["b"], state["n"], state["log"]) == (2, 2, 111, ["base", "left", "right"])
    assert state["notes"] == {"x": 1, "l": 1, "r": 1}
    assert [message["content"] for message in state["said"]] == ["left", "right"]
    history = left.history()
    assert history[: len(ours)] == ours
    assert [commit.id for commit in history[len(ours) :]] == [*(c.id for c in theirs[len(ours) - 2 :]), made.id]
    assert [commit.version for commit in history] == list(range(len(history)))
    assert left.blame("b").id == theirs[-1].id
    assert left.blame("notes.l").id == ours[-1].id
    assert right.history() == theirs
    assert left.replay() == left.state
    assert left.status == "completed"


def test_two_values_under_one_key_conflict() -> None:
    left, right = two()
    do(left, files={"k": "left", "l": "1"}, said=[{"id": "m", "content": "left"}])
    do(right, files={"k": "right", "r": "1"}, said=[{"id": "m", "content": "right"}])
    for path, other in (("files.k", "said"), ("said.m", "files")):
        with pytest.raises(MergeConflictError, match=f"Conflict detected at key '{path}'"):
            left.merge(right, policy={f"{other}.*": "last_write_wins"})
    before = left.history()
    made = left.merge(right, policy={"files.*": "first_write_wins", "said.*": "last_write_wins"})
    assert made is not None
    assert left.state["files"] == {"k": "left", "l": "1", "r": "1"}
    assert left.state["said"] == [{"id": "m", "content": "right"}]
    assert left.replay() == left.state
    assert left.blame(("files", "k")).id == before[-1].id
    assert left.blame(("files", "r")).node == "work"
    do(right, files={"s": "1"})  # the merge put single keys, so that the fold continues
    assert left.merge(right) is not None
    assert left.state["files"] == {"k": "left", "l": "1", "r": "1", "s": "1"}


def test_a_conflict_is_decided_by_the_policy_or_writes_nothing() -> None:
    left, right = two()
    do(left, a="left")
    do(right, a="right")
    before = left.history()
    with pytest.raises(MergeConflictError, match="Conflict detected at key 'a'"):
        left.merge(right)
    assert left.history() == before
    assert left.merge(right, policy={"a": "first_write_wins"}) is not None
    assert left.state["a"] == "left"
    assert left.blame("a").id == before[-1].id
    do(right, a="r2")
    do(left, a="l2")
    made = left.merge(right, policy=lambda conflict: f"{conflict.left}+{conflict.right}" if conflict.path else 0)
    assert made is not None
    assert left.state["a"] == "l2+r2"
    assert left.blame("a") == made
    assert left.replay() == left.state


def test_threads_with_an_open_run_or_an_owner_are_not_merged() -> None:
    store = Memory()
    left, right = two(store=store)
    right.run({"do": {"fail": True}})
    for first, second in ((left, right), (right, left)):
        with pytest.raises(OpenRunError, match="'right' failed"):
            first.merge(second)
    other = left.copy("busy")
    row = store.thread("busy")
    assert row is not None
    store.write(Change("busy", row.epoch, row.epoch + 1, Owner("elsewhere", 1, "", "x"), 30.0))
    with pytest.raises(ConcurrentRunError):
        left.merge(other)
    assert program(store).thread("new").history() == []
    assert left.merge(program(store).thread("new")) is None
    with pytest.raises(ThreadError, match=r"copy\(to='new'\)"):
        program(store).thread("new").merge(left)
    with pytest.raises(ThreadError, match="different stores"):
        left.merge(program(Memory()).thread("left"))


def test_threads_without_a_common_commit_need_a_base() -> None:
    store = Memory()
    left, right = program(store).thread("left"), program(store).thread("right")
    do(left, a=1, n=1, log=["left"])
    do(right, b=2, log=["right"])
    with pytest.raises(ThreadError, match="no commit in common"):
        left.merge(right)
    base = {**left.at(0)}
    expected = left.state.merge(right.state, policy="last_write_wins", base=base)
    made = left.merge(right, base=base, policy="last_write_wins")
    assert made is not None
    assert left.state == expected
    assert left.merge(right) is None
    assert left.replay() == left.state
    third, fourth = left.copy("third"), left.copy("fourth")
    do(third, n=10)
    do(fourth, n=100)
    third.merge(fourth)
    assert third.state["n"] == left.state["n"] + 110
    with pytest.raises(ThreadError, match="without base="):
        third.merge(fourth.copy("fifth", patch={"n": 1}), base=0)


def test_copies_from_inside_of_one_run_can_be_merged() -> None:
    graph = Graph(Board).add_node("a", lambda state: {"log": ["a"], "n": 1}, writes=["log", "n"])
    graph.add_node("b", lambda state: {"log": ["b"], "n": 1}, writes=["log", "n"])
    graph.add_node("j", lambda state: {"log": ["j"], "n": 1}, writes=["log", "n"])
    graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "j").add_edge("j", END)
    thread = graph.compile(store=Memory()).thread("t")
    thread.run({})
    twin = thread.copy("c", at="0:0")  # a is common, b and j are made again
    twin.resume()
    thread.merge(twin)
    assert thread.state["n"] == 5
    assert sorted(thread.state["log"]) == ["a", "b", "b", "j", "j"]
    assert [commit.version for commit in thread.history()] == list(range(len(thread.history())))
    assert thread.replay() == thread.state


class Step(NamedTuple):
    """What happens to one of three threads: a run, a manual commit, or a merge of another one."""

    thread: int
    kind: str
    other: int
    value: int


steps = st.lists(
    st.builds(
        Step, st.integers(0, 2), st.sampled_from(["run", "update", "merge"]), st.integers(0, 2), st.integers(1, 9)
    ),
    max_size=12,
)


@pytest.mark.slow("a law: 50 sequences of up to 12 runs and merges of three threads, and all that was read of them")
@settings(max_examples=2 * settings().max_examples)
@given(steps)
def test_any_sequence_of_merges_neither_loses_nor_doubles_a_change(done: list[Step]) -> None:
    """Each increment has a bit of its own set of threads that know it: a model of what every thread must hold."""
    first, second = two("last_write_wins")
    threads = [first, second, first.copy("third")]
    known: list[dict[str, int]] = [{}, {}, {}]
    histories = [thread.history() for thread in threads]
    for number, step in enumerate(done):
        thread, other = threads[step.thread], threads[step.other]
        change = {"n": step.value, "log": [f"{number}"], "notes": {f"k{number}": step.value}}
        if step.kind == "merge":
            new = not known[step.other].items() <= known[step.thread].items()
            if step.thread != step.other:
                made = thread.merge(other)
                assert made is not None or not new
                known[step.thread] = {**known[step.thread], **known[step.other]}
        else:
            if step.kind == "run":
                do(thread, **change)
            else:
                thread.update(change)
            known[step.thread][f"{number}"] = step.value
        for index, before in enumerate(histories):
            now = threads[index].history()
            assert now[: len(before)] == before  # later operations only append
            histories[index] = now
    for thread, changes in zip(threads, known, strict=True):
        assert thread.state["n"] == 1 + sum(changes.values())
        assert sorted(thread.state["log"]) == sorted(["base", *changes])
        assert thread.state["notes"] == {"x": 1, **{f"k{number}": value for number, value in changes.items()}}
        assert [commit.version for commit in thread.history()] == list(range(len(thread.history())))
        assert thread.replay() == thread.state


values = st.dictionaries(st.sampled_from("abcd"), st.one_of(st.integers(0, 2), st.none()), max_size=3)


@given(values, values, values)
def test_a_merge_of_copies_is_a_three_way_merge_of_states(
    base: dict[str, Any], left: dict[str, Any], right: dict[str, Any]
) -> None:
    graph = Graph(merge="last_write_wins", keep="all").add_node("work", lambda state: None).add_path(START, "work", END)
    ours = graph.compile(store=Memory()).thread("ours")
    ours.update({"m": {name: value for name, value in base.items() if value is not None}})
    theirs, start = ours.copy("theirs"), ours.state
    ours.update({"m": left})
    theirs.update({"m": right})
    expected: ImmutableState = ours.state.merge(theirs.state, policy="last_write_wins", base=start)
    ours.merge(theirs)
    assert ours.state == expected


def test_a_pruned_thread_can_be_copied_and_merged() -> None:
    left, _ = two()
    for number in range(4):
        do(left, n=1, log=[f"{number}"])
    old = left.copy("old")
    do(left, n=1, log=["4"])
    version = left.history()[-2].version
    assert version is not None
    state = left.at(version - 1)
    left.prune(version)
    first = left.history()[0]
    assert (first.version, left.at(version - 1)) == (version - 1, state)
    assert left.copy("at the root", at=first.version).state == state
    early = left.copy("early", at=first.version)
    do(early, n=100, log=["early"])
    assert early.merge(left) is not None, "both come from the commit with which the pruned history begins"
    assert (early.state["n"], early.replay()) == (106, early.state)
    assert early.history()[0].version == first.version
    twin = left.copy("twin")
    do(twin, n=10, log=["twin"])
    assert left.merge(twin) is not None
    assert left.state["n"] == 16
    assert left.merge(old) is None
    assert left.replay() == left.state
    assert [commit.version for commit in left.history()] == list(range(version - 1, version + 5))


def test_a_pruned_thread_of_another_origin_is_not_merged_but_merges() -> None:
    """A thread has one beginning: that of the other one would be missing in what the next process reads."""
    store = Memory()
    whole, pruned = program(store).thread("whole"), program(store).thread("pruned")
    for thread in (whole, pruned):
        for word in ("one", "two"):
            do(thread, log=[f"{thread.name} {word}"])
    base = ImmutableState()
    pruned.prune(before="pruned.2/trunk:0")
    history = whole.history()
    for _ in range(2):
        with pytest.raises(ThreadError, match="'pruned' was pruned, and thread 'whole' has no commit where it begins"):
            whole.merge(pruned, base=base, policy="last_write_wins")
    assert whole.history() == history
    assert pruned.merge(whole, base=base, policy="last_write_wins") is not None
    for reader in (pruned, program(store).thread("pruned")):
        assert reader.at("pruned.2/trunk:1")["log"] == ["pruned one", "pruned two"]
        assert reader.replay() == reader.state
