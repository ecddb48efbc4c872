"""Blame of any path after any commit, in memory and stored, is what the docs say, by a slow and obvious rule."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import DELETE, END, START, CompiledGraph, Context, Graph, Replace, Thread, reducers
from dspyer.stores import Memory
from tests.log.test_history_parts import take_snapshots

Path = tuple[Any, ...]

VALUES: list[Any] = [0, 1, [1], DELETE, {"a": 1}, {"a": {"b": 1}}, {"a": DELETE, "c": 3}, {}]
VALUES += [Replace({"a": 1, "d": 2}), Replace({"c": 3})]


class Board(BaseModel):
    x: Any = 0
    n: dict[str, Any] = {}
    rows: Annotated[list[str], reducers.extend] = []
    pages: Annotated[dict[str, Any], reducers.update] = {}
    messages: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    tags: Annotated[set[str], reducers.union] = set()
    total: Annotated[int, reducers.increment] = 0


def written_by(seed: int, name: str) -> Any:
    def work(ctx: Context) -> dict[str, Any]:
        me = ctx.execution
        rng = random.Random(f"{seed} {me.rpartition('/')[2]} {name}")
        found: dict[str, Any] = {
            "x": rng.choice(VALUES),
            "n": rng.choice(VALUES[4:]),
            "rows": rng.choice([[me], [me, f"{me} z"], Replace([me]), Replace(["z"])]),
            "pages": rng.choice([{rng.choice("xyz"): rng.choice([name, {"q": 1}])}, Replace({"z": name})]),
            "messages": [{"role": "user", "content": me, "id": rng.choice("abc")}],
            "tags": {rng.choice("xyz"), me},
            "total": rng.choice([1, Replace(0)]),
        }
        return {field: value for field, value in found.items() if rng.random() < 0.4}

    return work


def crossing(seed: int) -> Graph:
    """Layers of nodes, each of which forks to some of the next two layers, so that branches cross; one is a graph."""
    rng = random.Random(seed)
    names = [[f"n{layer}{place}" for place in range(rng.randint(1, 3))] for layer in range(rng.randint(2, 3))]
    graph = Graph(
        Board, inputs=["x"], keep="all", merge=rng.choice(["last_write_wins", "first_write_wins", "combine_lists"])
    )
    reached = set(names[0])
    graph.add_edge(START, names[0])
    for layer, row in enumerate(names):
        ahead = [name for later in names[layer + 1 : layer + 3] for name in later] + [END]
        for name in row:
            if name in reached:
                targets = rng.sample(ahead, min(rng.randint(1, 3), len(ahead)))
                reached |= set(targets)
                graph.add_edge(name, targets)
    for name in reached - {END}:
        if name == "n00":
            inner = Graph(Board).add_node("inner", written_by(seed, name), writes=list(Board.model_fields))
            graph.add_node(name, inner.add_path(START, "inner", END))
        else:
            graph.add_node(name, written_by(seed, name), writes=list(Board.model_fields))
    return graph


# --- the rule


def at_path(state: Any, path: Path) -> str:
    """What is at a path, in a form to compare."""
    for depth, key in enumerate(path):
        if not isinstance(state, Mapping):
            return "nothing" if state is DELETE else f"{state!r} at {depth}"
        state = state.get(key, DELETE)
    return "nothing" if state is DELETE else in_any_order(state)


def in_any_order(value: Any) -> str:
    """Equal for equal values: the order of keys is no part of a mapping, nor that of members part of a set."""
    if isinstance(value, Mapping):
        return str(sorted([(key, in_any_order(inner)) for key, inner in value.items()]))
    if isinstance(value, AbstractSet):
        return str(sorted(map(in_any_order, value)))
    return repr(value)


def writes(patch: Any, path: Path) -> bool:
    """Whether a patch writes at, in or above a path."""
    for depth, key in enumerate(path):
        if hasattr(patch, "updates"):
            return any(writes(one, path[depth:]) for one in patch.updates)
        if not isinstance(patch, Mapping):
            return True
        if key not in patch:
            return False
        patch = patch[key]
    return True


class Rule:
    """Who wrote a path after a commit, with the last commit that wrote at, in or above it."""

    def __init__(self, log: Sequence[Any]) -> None:
        self.log = log
        self.of = lru_cache(maxsize=None)(self._of)
        self.lineage = lru_cache(maxsize=None)(self._lineage)

    def _of(self, index: int, path: Path) -> tuple[int, int | None]:
        entry, value = self.log[index], at_path(self.log[index].state, path)
        before = [self.of(parent, path) for parent in entry.parents]
        wrote = writes(entry.commit.patch, path)
        if len(before) < 2:
            return (index, index) if wrote else before[0] if before else (-1, None)
        # A value that a conflict decided belongs to the commit that won: the outer one of decisions within another.
        won = next((entry.winners[path[:end]] for end in range(len(path) + 1) if path[:end] in entry.winners), index)
        if wrote and (won == index or at_path(self.log[won].state, path) == value):
            return index, won
        # The branches count that hold the value: of several the last write since they parted, in their order.
        held = [at_path(self.log[parent].state, path) == value for parent in entry.parents]
        hold = [one for one, holds in zip(before, held, strict=True) if holds] or before
        order = self.since_they_parted(entry.parents)
        last = max(hold, key=lambda one: order.index(one[0]) if one[0] in order else -1)
        return (index, index) if wrote and last[1] is None else last

    def of_item(self, index: int, field: str, item: Any) -> set[int]:
        """The commit that brought an item, or a message as it is; the join if a policy made the list of several.

        There are several where branches brought the same: then one of them is named.
        """
        entry = self.log[index]
        if field == "rows" and entry.winners.get((field,)) == index:
            return {index}
        lists = [(parent, self.log[parent].state.get(field, ())) for parent in entry.parents]
        held = [parent for parent, items in lists if item in items]
        whole = [parent for parent, items in lists if items == entry.state[field]]  # as for any value, these count
        return set().union(*[self.of_item(at, field, item) for at in whole or held]) if held else {index}

    def items(self, index: int) -> Iterator[tuple[Path, set[int]]]:
        """The paths of all items that say who brought them, with the commits that did."""
        state = self.log[index].state
        for field in ("rows", "messages"):
            for place, item in enumerate(state.get(field, ())):
                if item != "z":
                    owner = self.of_item(index, field, item)
                    yield (field, place), owner
                    yield (field, str(place - len(state[field]))), owner
        for message in state.get("messages", ()):
            yield ("messages", message["id"], "content"), self.of_item(index, "messages", message)
        for tag in state.get("tags", ()):
            yield ("tags", tag), self.of_item(index, "tags", tag)

    def since_they_parted(self, heads: Sequence[int]) -> list[int]:
        """The commits that not all branches contain, those before a commit before it, and a left branch first."""
        lineages = [self.lineage(head) for head in heads]
        every = list(dict.fromkeys(index for lineage in lineages for index in lineage))
        return [index for index in every if not all(index in lineage for lineage in lineages)]

    def _lineage(self, head: int) -> tuple[int, ...]:
        parts = [self.lineage(parent) for parent in self.log[head].parents]
        return tuple(dict.fromkeys([*(index for part in parts for index in part), head]))


def paths_in(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    if isinstance(value, Mapping):
        for key in value:
            yield from paths_in(value[key], (*path, key))


def paths_of(log: Sequence[Any]) -> list[Path]:
    never = [
        ("x", "zz"),
        ("x", "a", "b"),
        ("pages", "x", "q"),
        ("n", "c"),
        ("rows", "no place"),
        ("rows", 99),
        ("none",),
    ]
    return sorted({*never, *(path for entry in log for path in paths_in(entry.state))}, key=repr)


@settings(phases=[Phase.generate])
@given(st.integers(0, 2**32))
def test_blame_in_memory(seed: int) -> None:
    run = crossing(seed).compile().run({"x": 0})
    assume(run.status == "completed")
    log: Any = run._log
    rule, last = Rule(log), len(log) - 1
    assert said(run, ("total",)) == named(log, rule.of(last, ("total",))[1])
    for index in range(len(log)):
        for path in paths_of(log):
            assert run._reads.writers.of(index, path) == rule.of(index, path)[1], (index, path)
        for path, owners in rule.items(index):
            assert run._reads.writers.of(index, path) in owners, (index, path)


def named(log: Sequence[Any], index: int | None) -> str:
    return "nobody" if index is None else log[index].commit.id


def said(there: Any, path: Path, at: str | None = None) -> str:
    try:
        commit = there.blame(path) if at is None else there.blame(path, at=at)
    except LookupError:
        return "nobody"
    return str(commit.id)


# --- stored


def run(program: CompiledGraph, thread: Thread) -> None:
    thread.run({"x": 1})


def by_hand(program: CompiledGraph, thread: Thread) -> None:
    thread.update({"n": {"a": DELETE, "h": 1}, "rows": [f"by hand {thread.history()[-1].id}"]})


def merged(program: CompiledGraph, thread: Thread) -> None:
    twin = thread.copy(to=f"twin {thread.history()[-1].version}")
    twin.update({"x": Replace({"a": 2}), "pages": {"x": "twin"}})
    twin.run({"x": 2})
    thread.update({"n": {"a": 5}, "total": 1})
    thread.merge(twin)


def rerun(program: CompiledGraph, thread: Thread) -> None:
    thread.run({"x": 3})
    thread.rerun(from_version=[commit.version for commit in thread.history() if commit.node == "START"][-1] or 0)


def pruned(program: CompiledGraph, thread: Thread) -> None:
    thread.run({"x": 4})
    thread.prune(before=[commit.version for commit in thread.history() if commit.node == "START"][-1] or 0)


CHANGES = (run, by_hand, merged, rerun, pruned)


@pytest.mark.parametrize("every", [1, 7])
@settings(
    phases=[Phase.generate],
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(CHANGES), max_size=4))
def test_blame_of_stored_commits(every: int, monkeypatch: pytest.MonkeyPatch, seed: int, changes: list[Any]) -> None:
    take_snapshots(monkeypatch, every)
    program = crossing(seed).compile(store=Memory())
    thread = program.thread("a/t")
    first = thread.run({"x": 0})
    assume(first.status == "completed")
    for change in changes:
        change(program, thread)
    listed = program.thread("a/t")._stored.history.listed()
    log, there = listed.history.log, program.thread("a/t")._stored.history
    rule, rng = Rule(log), random.Random(seed)
    assert listed.trunk_index is not None
    for path in paths_of(log):
        assert said(there, path) == said(thread, path) == named(log, rule.of(listed.trunk_index, path)[1])
    for path, owners in rule.items(listed.trunk_index):
        assert said(there, path) == said(thread, path) in [named(log, owner) for owner in owners], path
    for index in rng.choices(listed.log_indexes, k=30):
        for path, owners in list(rule.items(index))[:: rng.randint(5, 9)]:
            assert said(there, path, log[index].commit.id) in [named(log, owner) for owner in owners], (index, path)
        path = rng.choice(paths_of(log))
        expected = named(log, rule.of(index, path)[1])
        assert said(there, path, log[index].commit.id) == expected, (log[index].commit.id, path)
    for field, commit in there.writers(listed.commits[-1].id).items():
        assert commit.id == named(log, rule.of(listed.log_indexes[-1], (field,))[1])
