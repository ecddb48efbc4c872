"""Joins compared with a reference that uses only commits and their parents; blame compared with the states."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import (
    DELETE,
    END,
    START,
    Archive,
    CompiledGraph,
    Context,
    Graph,
    ImmutableState,
    Replace,
    Thread,
    live,
    reducers,
)
from dspyer.events import Committed, Numbered
from dspyer.log.history import History
from dspyer.log.reader import HistoryReader
from dspyer.policies import Conflict, Policies
from dspyer.scheduler.join import Join
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.schedule import Execution
from dspyer.schema.schema import Schema
from dspyer.stores import Memory, SQLite, Store
from tests.log.failing import Crash, FailingMemory, crash
from tests.scheduler.simulation import graph, simulate

VALUES: list[Any] = [0, 1, 2, [1], [1, 2], DELETE, {"a": 1}, {"a": {"b": 1}}, {"a": DELETE, "c": 3}]


@st.composite
def layers(draw: st.DrawFn) -> dict[str, str]:
    """Edges of a graph without loops: each node forks to some nodes of the next layers, so that branches cross."""
    names = [[f"n{i}{k}" for k in range(draw(st.integers(1, 3)))] for i in range(draw(st.integers(2, 4)))]
    edges = {START: " ".join(names[0])}
    for i, layer in enumerate(names):
        ahead = [name for later in names[i + 1 : i + 3] for name in later]
        for name in layer:
            targets = draw(st.lists(st.sampled_from([*ahead, END]), min_size=1, max_size=3, unique=True))
            edges[name] = " ".join(targets)
    return edges


def behind(log: Sequence[LogEntry], head: int) -> set[int]:
    found: set[int] = set()
    work = [head]
    while work:
        place = work.pop()
        if place not in found:
            found.add(place)
            work += log[place].parents
    return found


def merged(log: Sequence[LogEntry], heads: Sequence[int], policy: str) -> ImmutableState | None:
    """The branches folded with `state.merge`; None if no single state has all of their common commits."""
    state, known = log[heads[0]].state, behind(log, heads[0])
    for head in heads[1:]:
        common = known & behind(log, head)
        last = common - {parent for place in common for parent in log[place].parents}
        if len(last) != 1:
            return None
        state = state.merge(log[head].state, policy=policy, base=log[last.pop()].state)
        known |= behind(log, head)
    return state


def leaves(value: Mapping[Any, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key), inner


def add_edges(built: Graph, edges: Mapping[str, str]) -> set[str]:
    """Add the edges that lead on from `START`; return the nodes that they reach, with `START`."""
    reached = {START}
    for source, targets in edges.items():  # the layers come in order
        if source in reached:
            reached |= set(targets.split())
            built.add_edge(source, targets.split())
    return reached


POLICIES = st.sampled_from(["last_write_wins", "first_write_wins", "combine_lists"])


@given(layers(), POLICIES, st.integers(0, 2**32))
def test_a_join_is_the_three_way_merge_of_its_branches(edges: dict[str, str], policy: str, seed: int) -> None:
    def behave(execution: Execution) -> tuple[dict[str, Any], list[str]]:
        rng = random.Random(f"{seed}{execution.id}")
        return {key: rng.choice(VALUES) for key in "xn" if execution.node != START and rng.random() < 0.6}, []

    nodes = " ".join(name for name in edges if name != START)
    order = random.Random(seed)
    outcome = simulate(graph(nodes, edges, merge=policy), behave, order.randrange, {"x": 0, "n": {"a": 0}})
    log = list(outcome.run.log)
    assert outcome.run.ended
    for entry in log:
        if len(entry.parents) > 1:
            expected = merged(log, entry.parents, policy)
            if expected is not None:
                assert expected == entry.state
                first = [name for name in log[entry.parents[0]].state if name in expected]
                assert list(entry.state) == [*first, *(name for name in expected if name not in first)]


@given(layers(), POLICIES, st.integers(0, 2**32))
def test_blame_names_a_commit_that_left_the_value(edges: dict[str, str], policy: str, seed: int) -> None:
    def node(name: str) -> Any:
        def work(ctx: Any) -> dict[str, Any]:
            rng = random.Random(f"{seed}{ctx.execution}")
            return {key: rng.choice(VALUES) for key in "xn" if rng.random() < 0.6}

        return work

    built = Graph(merge=policy, inputs=["x", "n"])
    reached = add_edges(built, edges)
    for name in edges:
        if name in reached - {START}:
            built.add_node(name, node(name))
    run = built.compile().run({"x": 0, "n": {"a": 0}})
    assert [commit.version for commit in run.commits] == list(range(len(run.commits)))
    assert len({commit.id for commit in run.commits}) == len(run.commits)
    for path, value in leaves(run.state):
        left: Any = run.at(run.blame(path).id)
        for key in path:
            left = left[key]
        assert left == value


@given(layers(), st.integers(0, 2**32))
def test_a_stream_knows_each_version_once_the_fork_has_joined(edges: dict[str, str], seed: int) -> None:
    """A node in three asks first, so that another process goes on within a fork."""

    def work(ctx: Context) -> dict[str, Any]:
        if random.Random(f"{seed}{ctx.node}").random() < 0.3:
            ctx.interrupt("go", "Go on?", answer=bool)
        return {ctx.node: 1}

    built = Graph(inputs=["x"])
    reached = add_edges(built, edges)
    for name in edges:
        if name in reached - {START}:
            built.add_node(name, work, writes=[name])
    store = Memory()
    thread = built.compile(store=store).thread("t")
    told: dict[str, int | None] = {}
    stream: Any = thread.stream({"x": 0})
    for _ in range(30):
        for event in stream:
            if isinstance(event, Committed):
                told[event.commit.id] = event.commit.version
            elif isinstance(event, Numbered):
                assert all(told[name] is None for name in event.versions)
                told |= event.versions
        run = stream.run
        assert told == {commit.id: commit.version for commit in run.commits}
        if not run.questions:
            break
        thread = built.compile(store=store).thread("t")
        stream = thread.stream_resume({question.id: True for question in run.questions[:1]})
    assert run.status == "completed"
    assert set(told.values()) == set(range(len(told)))


def chain(*names: str) -> dict[str, str]:
    return dict(itertools.pairwise(names))


def writes(table: Mapping[str, Any], field: str = "x") -> Any:
    return lambda execution: ({field: table[execution.node]} if execution.node in table else {}, [])


@pytest.mark.parametrize("order", ["B C", "C B"])
def test_a_branch_that_restores_a_value_is_not_blamed_for_anothers(order: str) -> None:
    table = {"B": 2, "C": 1, "C2": 0}
    built = Graph(inputs=["x"])
    for name in ("B", "C", "C2"):
        built.add_node(name, lambda name=name: {"x": table[name]})
    built.add_edge(START, order.split()).add_path("C", "C2", END).add_edge("B", END)
    run = built.compile().run({"x": 0})
    assert run.state["x"] == 2
    assert run.blame("x").node == "B"


def test_the_author_of_a_conflict_is_not_a_branch_that_restored_the_value() -> None:
    edges = {START: "B C D", "B": END, **chain("C", "C2", END), "D": END}
    outcome = simulate(
        graph("B C C2 D", edges, merge="last_write_wins"), writes({"B": 2, "C": 1, "C2": 0, "D": 3}), inputs={"x": 0}
    )
    (conflict,) = outcome.conflicts
    assert conflict.values == (("B", 2), ("D", 3))


def test_the_base_of_branches_that_joined_before_is_their_joined_state() -> None:
    """B and C join at J, where C has restored what it wrote; then J forks, and T has joined no other branch yet."""
    edges = {START: "B C T", "B": "J", **chain("C", "C2", "J"), "J": "L R", "L": "Z", "R": "Z", "T": "Z", "Z": END}
    table = {"B": ["a", "x"], "C": ["a", "y"], "C2": ["a"], "L": ["a", "x", "l"], "R": ["a", "x", "r"]}
    topology = graph("B C C2 T J L R Z", edges, merge="combine_lists")
    outcome = simulate(topology, writes(table), inputs={"x": ["a"]})
    assert outcome.run.trunk_state["x"] == ["a", "x", "l", "r"]
    (conflict,) = outcome.conflicts
    assert conflict.base == ["a", "x"]


def test_a_conflict_lists_a_later_branch_that_overwrote_its_resolution() -> None:
    """The policy gives the base back, so that the third branch is the only one that changed it."""
    edges = {START: "B C D", "B": END, "C": END, "D": END}
    topology = graph("B C D", edges, merge=lambda conflict: conflict.base)
    outcome = simulate(topology, writes({"B": 1, "C": 2, "D": 3}), inputs={"x": 0})
    assert outcome.run.trunk_state["x"] == 3
    (conflict,) = outcome.conflicts
    assert (conflict.values, conflict.value, conflict.winner) == ((("B", 1), ("C", 2), ("D", 3)), 3, "D")


def test_a_conflict_lists_a_value_that_was_built_on_an_earlier_resolution() -> None:
    """A and B conflict, C builds on B, and D conflicts with the value of C."""
    built = Graph(merge="last_write_wins", inputs=["x"], outputs=["x"])
    for name in "ABCD":
        built.add_node(name, lambda name=name: {"x": name}, writes=["x"])
    built.add_edge(START, ["A", "B", "D"]).add_edge("A", END).add_edge("B", [END, "C"]).add_edge(["C", "D"], END)
    run = built.compile().run({"x": ""})
    (conflict,) = run.conflicts
    assert conflict.values == (("A", "A"), ("B", "B"), ("C", "C"), ("D", "D"))


@pytest.mark.parametrize(("last", "patch"), [(5, {"x": 5}), (DELETE, {"x": DELETE})])
def test_a_later_branch_may_replace_the_mapping_around_a_resolved_value(last: Any, patch: dict[str, Any]) -> None:
    """A and B differ at `x.a`; C builds on B, and leaves no `x.a` at all."""
    built = Graph(merge="last_write_wins", inputs=["x"], outputs=["x"])
    for name, value in {"A": {"a": 1}, "B": {"a": 2, "b": 2}, "C": last}.items():
        built.add_node(name, lambda value=value: {"x": value}, writes=["x"])
    built.add_node("J", lambda: None, writes=[])
    built.add_edge(START, ["A", "B"]).add_edge("A", "J").add_edge("B", ["J", "C"]).add_path("C", "J", END)
    run = built.compile().run({"x": {"a": 0}})
    (join,) = [commit for commit in run.commits if commit.node == "join:J"]
    assert run.state.to_dict() == ({} if last is DELETE else {"x": last})
    assert join.patch == patch
    assert run.blame("x").node == "C"
    (conflict,) = run.conflicts
    assert (conflict.values, conflict.winner) == ((("A", 1), ("B", 2), ("C", last)), "C")


def test_a_plain_value_in_the_middle_of_a_path_is_not_the_value_at_its_end() -> None:
    """L makes `x.a.b` 1; R and R2 restore what was there, 1 for `x.a`."""
    built = Graph(inputs=["x"], outputs=["x"], merge="last_write_wins")
    built.add_node("L", lambda: {"x": {"a": {"b": 1}}}, writes=["x"])
    built.add_node("R", lambda: {"x": {"a": 2}}, writes=["x"])
    built.add_node("R2", lambda: {"x": {"a": 1}}, writes=["x"])
    built.add_edge(START, ["L", "R"]).add_edge("L", END).add_path("R", "R2", END)
    run = built.compile().run({"x": {"a": 1}})
    assert not run.conflicts
    assert run.state.to_dict() == {"x": {"a": {"b": 1}}}
    assert run.blame("x.a.b").node == "L"


class LineageCounts(BaseModel):
    """A state whose fields all have reducers."""

    log: Annotated[list[str], reducers.extend] = []
    count: Annotated[int, reducers.increment] = 0


@given(layers(), st.integers(0, 2**32))
def test_crossing_branches_fold_each_update_once(edges: dict[str, str], seed: int) -> None:
    nodes = " ".join(name for name in edges if name != START)
    topology = graph(nodes, edges, schema=Schema.of(LineageCounts))

    def update(execution: Execution) -> tuple[dict[str, Any], list[str]]:
        return ({"log": [execution.id], "count": 1} if execution.node != START else {}), []

    outcome = simulate(topology, update, random.Random(seed).randrange)
    assert outcome.run.trunk_state["count"] == len(outcome.calls)
    made = [commit.id for commit in outcome.commits if commit.node in nodes.split()]
    assert sorted(outcome.run.trunk_state["log"]) == sorted(made)


# --- stored joins


def add(old: int, new: int) -> int:
    return old + new


def extended(old: dict[str, list[str]], new: dict[str, list[str]]) -> dict[str, list[str]]:
    return {key: [*old.get(key, []), *new.get(key, [])] for key in (*old, *new)}


class Fields(BaseModel):
    """A state with fields of every kind that a join folds."""

    x: Any = 0
    n: dict[str, Any] = {}
    files: Annotated[dict[str, Any], reducers.update] = {}
    lists: Annotated[dict[str, list[str]], extended] = {}
    said: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    tags: Annotated[set[str], reducers.union] = set()
    log: Annotated[list[str], reducers.extend] = []
    total: Annotated[int, add] = 0


class Board(Fields):
    """The same with a live field."""

    notes: Annotated[list[str], reducers.append, live] = []


def both(conflict: Conflict) -> Any:
    """A policy that makes a value of its own where that is easy."""
    plain = isinstance(conflict.left, (int, str)) and isinstance(conflict.right, type(conflict.left))
    return conflict.left + conflict.right if plain else conflict.right


MERGES: dict[str, Any] = {"last": "last_write_wins", "first": "first_write_wins", "own": both}


def update_of(rng: random.Random, name: str) -> dict[str, Any]:
    """What a node writes: single keys, whole values, deletions."""
    key = rng.choice("ab")
    choices: dict[str, list[Any]] = {
        "x": [0, 1, 2, "s", [1, 2], {"a": 1}, {"a": {"b": name}}, Replace(None)],
        "n": [{key: name}, {key: DELETE}, {key: {"deep": name}}, Replace({key: name}), Replace({})],
        "files": [{key: name}, {key: "same"}, Replace({key: name, "c": 1}), Replace({})],
        "lists": [{key: [name]}, {key: [name], "c": ["c"]}],
        "said": [{"id": name, "content": name}, {"id": key, "content": name}, Replace([{"id": "b", "content": name}])],
        "tags": [{name}, {name, key}, Replace({key})],
        "log": [[name], [name, name], [], Replace([name])],
        "total": [1, 10],
    }
    if name in ("left", "right"):  # a commit of their graph would keep the order of the keys before it
        del choices["n"]
    return {field: rng.choice(values) for field, values in choices.items() if rng.random() < 0.45}


def board(edges: dict[str, str], merge: str, seed: int, store: Store, is_async: bool) -> CompiledGraph:
    """A graph over boards; one of its nodes is a graph with a fork of its own."""

    def node(name: str) -> Any:
        def work(ctx: Context) -> dict[str, Any]:
            rng = random.Random(f"{seed}{ctx.execution.partition('/')[2]}{name}")
            if name not in ("left", "right") and rng.random() < 0.3:
                ctx.post("notes", name)
            return update_of(rng, name)

        async def awork(ctx: Context) -> dict[str, Any]:
            for _ in range(random.randrange(3)):
                await anyio.lowlevel.checkpoint()
            return work(ctx)

        return awork if is_async else work

    inner = Graph(Fields, name="Inner", merge=MERGES[merge])
    for name in ("left", "right"):
        inner.add_node(name, node(name), writes=list(Fields.model_fields))
    inner.add_edge(START, ["left", "right"]).add_edge(["left", "right"], END)
    built = Graph(Board, name="Boards", keep="all", merge=MERGES[merge])
    reached = add_edges(built, edges)
    for name in edges:
        if name in reached - {START}:
            if name == "n10":
                built.add_node(name, inner.compile())
            else:
                built.add_node(name, node(name), writes=list(Board.model_fields))
    return built.compile(store=store)


def merge_again(thread: Thread | Any, store: Store, merge: str) -> int:
    """Merges all joins and merges of a thread again, and compares each with what is stored; returns their number."""
    row = store.thread(thread.name)
    assert row is not None
    assert row.head is not None
    history = History(HistoryReader(store, Schema.of(Board)))
    history.read([row.head], row.root)
    checked = 0
    for at, entry in enumerate(history.log):
        if len(entry.parents) > 1:
            node = entry.commit.node.removeprefix("join:")
            policies = Policies.of(MERGES[merge]).decider_for
            again = Join(history.log, node, history.reader.schema, policies, at)
            made = again.merge(entry.parents, [history.log[parent].state for parent in entry.parents])
            assert (made.state, dict(made.patch)) == (entry.state, dict(entry.commit.patch))
            assert made.state.to_json() == entry.state.to_json(), "keys have the same order"
            assert (made.conflicts, made.winners) == (entry.conflicts, entry.winners)
            checked += 1
    return checked


def by_id(run: Any) -> dict[str, Any]:
    """What a run has made, without what depends on the order of posts."""
    found = {}
    for commit in run.commits:
        state = run.at(commit.id).to_dict()
        patch = {field: update for field, update in commit.patch.items() if field != "notes"}
        found[commit.id] = (patch, {field: value for field, value in state.items() if field != "notes"})
    return found


@pytest.mark.slow("a law: 50 random graphs, each run, killed, resumed, copied, merged, pruned and loaded")
@given(layers(), st.sampled_from(list(MERGES)), st.integers(0, 2**32), st.booleans(), st.integers(1, 12))
def test_joins_as_made_are_joins_merged_again(
    tmp_path_factory: pytest.TempPathFactory, edges: dict[str, str], merge: str, seed: int, is_async: bool, at: int
) -> None:
    store, loaded, file = FailingMemory(), Memory(), tmp_path_factory.mktemp("joins") / "t.jsonl"
    program = board(edges, merge, seed, store, is_async)

    def begin(name: str, resume: bool = False) -> Any:
        thread = program.thread(name)
        if is_async:
            return asyncio.run(thread.aresume() if resume else thread.arun({}))
        return thread.resume() if resume else thread.run({})

    whole = begin("t")
    assert whole.status == "completed", whole.error
    thread = program.thread("t")
    read = Archive(store).thread("t")
    assert [commit.patch for commit in thread.history()] == [commit.patch for commit in whole.commits]
    for version, commit in enumerate(whole.commits):
        assert thread.at(version).to_json() == whole.at(commit.id).to_json()
    assert [one for step in read.record().steps for one in step.conflicts] == list(whole.conflicts)
    joins = merge_again(thread, store, merge)

    # Killed at a write, and resumed: also inside of a fork, and inside of the graph in a node.
    store.arm(crash, at, bool(at % 2))
    try:
        begin("killed")
    except Crash:
        store.rest()
        status = program.thread("killed").status
        if status != "completed":
            assert by_id(begin("killed", resume=status != "new")) == by_id(whole)
    store.rest()
    killed = program.thread("killed")
    assert merge_again(killed, store, merge) == joins
    assert killed.replay() == killed.state

    # Two threads with a common past, merged both ways, and once more after other runs.
    copy = thread.copy("copy")
    rerun = thread.copy("rerun", at=whole.commits[len(whole.commits) // 2].version or 0)
    if rerun.status != "completed":
        rerun.resume() if not is_async else asyncio.run(rerun.aresume())
    merge_again(rerun, store, merge)
    for number, one in enumerate((thread, copy, thread)):
        patch = update_of(random.Random(seed + number), f"u{number}")
        if isinstance(patch.get("said"), dict):
            del patch["said"]["id"]  # a message that an update adds gets its id
        one.update(patch)
    thread.merge(copy, policy=MERGES[merge])
    copy.update({"x": "more", "log": ["more"]})
    copy.merge(thread, policy=MERGES[merge])
    thread.merge(copy, policy=MERGES[merge])
    begin("t")
    stored = merge_again(thread, store, merge)
    assert stored > joins
    assert merge_again(copy, store, merge) > joins
    assert thread.replay() == thread.state
    thread.export(file)
    other = board(edges, merge, seed, loaded, is_async).thread("other")
    other.load(file)  # which reads everything from bytes
    assert merge_again(other, loaded, merge) == stored
    assert [dict(commit.patch) for commit in other.history()] == [dict(commit.patch) for commit in thread.history()]
    begin("t")
    history = thread.history()
    thread.prune(next(commit.id for commit in history if commit.id.startswith(history[-1].id.partition("/")[0])))
    assert merge_again(thread, store, merge) == joins
    assert thread.replay() == thread.state


def tells(name: str) -> dict[str, Any]:
    return {"x": name, "total": 1, "seen": {"by": name}}


def tally(store: Store, policy: Callable[[Conflict], Any], reducer: Callable[[int, int], int], fails: bool) -> Any:
    class Tally(BaseModel):
        x: Any = 0
        total: Annotated[int, reducer] = 0
        seen: dict[str, Any] = {}

    def end(x: Any) -> dict[str, Any]:
        if fails:
            raise RuntimeError
        return {"seen": {"x": x}}

    built = Graph(Tally, name="Tally", keep="all", merge=policy)
    for name in ("left", "right"):
        built.add_node(name, partial(tells, name), writes=["x", "total", "seen"])
    built.add_node("end", end, writes=["seen"])
    built.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "end").add_edge("end", END)
    return built.compile(store=store)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_no_reader_merges_or_calls_a_policy_or_a_reducer_of_the_user(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Store = Memory() if kind == "memory" else SQLite(tmp_path / "runs.db")
    wrote = tally(store, both, add, fails=False)
    thread = wrote.thread("t")
    run = thread.run({})
    side = thread.copy("side")
    side.update({"x": "side", "total": 5})
    thread.update({"x": "main", "total": 7})
    assert thread.merge(side) is not None
    states = [thread.at(version).to_dict() for version in range(len(thread.history()))]
    expected = {"x": "mainside", "total": 14, "seen": {"by": "leftright", "x": "leftright"}}
    assert states[-1] == expected
    blamed = {path: thread.blame(path).id for path in ("x", "total", "seen.by", "seen.x")}
    assert tally(store, both, add, fails=True).thread("open").run({}).status == "failed"

    def refuse(*_: Any) -> Any:
        raise AssertionError("a reader must not call this")

    def again(_old: int, _new: int) -> int:
        raise AssertionError("a reader must not call this")

    refuse.__name__, again.__name__ = "both", "add"  # they are known by their names, and their code has changed
    monkeypatch.setattr(Join, "merge", refuse)
    program = tally(store, refuse, again, fails=False)
    read, archived = program.thread("t"), Archive(store).thread("t")
    thread.export(tmp_path / "t.jsonl")
    loaded = program.thread("loaded")
    loaded.load(tmp_path / "t.jsonl")
    for one in (read, loaded, program.thread("t").copy("copy"), archived):
        assert [one.at(version).to_dict() for version in range(len(states))] == states
        assert len(one.history()) == len(states)
    for one in (read, loaded):
        assert {path: one.blame(path).id for path in blamed} == blamed
    (first, *_) = {commit.id.partition("/")[0]: None for commit in read.history()}
    assert [one for step in archived.record(first).steps for one in step.conflicts] == list(run.conflicts)
    assert program.thread("open").resume().state["seen"] == {"by": "leftright", "x": "leftright"}
