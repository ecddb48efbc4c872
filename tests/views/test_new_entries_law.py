"""The parts that are new to a node, on random graphs, compared with a slow reference that only uses ancestors."""

from __future__ import annotations

import random
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import DELETE, START, Messages, Replace, limit, reducers
from dspyer.scheduler.provenance import (
    FieldIndex,
    FieldIndexes,
    FieldPart,
    FieldParts,
    IndexedField,
    is_new,
    unseen_commits,
    unseen_parts,
)
from dspyer.scheduler.schedule import Execution, Target
from dspyer.schema.schema import Schema
from dspyer.stores.base import Point
from dspyer.threads.views_across_runs import RecentIndexes
from dspyer.values.frozen import thaw
from dspyer.values.persistent import SparseVector as PartRow
from tests.scheduler.simulation import Outcome, graph, simulate
from tests.scheduler.test_joins import layers
from tests.scheduler.test_schedule import Plan, plans, router


class Board(BaseModel):
    items: Annotated[list[str], reducers.extend] = ["default"]
    single: Annotated[list[str], reducers.append] = []
    keys: Annotated[dict[str, str], reducers.update] = {}
    names: Annotated[set[str], reducers.union] = set()
    count: Annotated[int, reducers.increment] = 5
    short: Annotated[list[str], reducers.append, limit(kb=0.04, full="drop_oldest")] = []
    recent: Annotated[dict[str, str], reducers.update, limit(kb=0.05, full="drop_oldest")] = {}
    said: Messages = []
    chat: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    late: Annotated[list[dict[str, Any]], reducers.add_messages, limit(kb=0.2, full="drop_oldest")] = []


SCHEMA = Schema.of(Board)
FIELDS = ("items", "single", "keys", "names", "count", "short", "recent", "said", "chat", "late")
SHARED = ("names", "said")  # what two branches may both bring: who has seen it once has seen it


def folded(field: str) -> IndexedField:
    known = SCHEMA.fields[field]
    assert known.reducer is not None
    return IndexedField(field, known.reducer, known.fixed_default, True, limited=known.limit is not None)


def parts_at(indexes: FieldIndexes, outcome: Outcome, place: int) -> FieldParts:
    """The parts of a field at a commit."""
    return FieldParts(indexes.of.reducer.kind, tuple(indexes.at(outcome.run.log, place).parts))


def new_to(indexes: FieldIndexes, outcome: Outcome, place: int, reader: str) -> list[FieldPart]:
    """The parts of a field that are new to a reader whose branch ends at a commit."""
    log = outcome.run.log
    return unseen_parts(indexes.at(log, place), log, unseen_commits(log, [place], reader), indexes.of).parts


def behind(outcome: Outcome, place: int) -> set[int]:
    """A commit and all commits behind it."""
    found: set[int] = set()
    stack = [place]
    while stack:
        at = stack.pop()
        if at not in found:
            found.add(at)
            stack.extend(outcome.run.log[at].parents)
    return found


def seen_by(outcome: Outcome, place: int, reader: str) -> set[int]:
    """All that is behind some commit of the reader that is behind a commit."""
    own = [at for at in behind(outcome, place) if outcome.run.log[at].commit.node == reader]
    return {at for visit in own for at in behind(outcome, visit)}


def value_of(parts: FieldParts) -> Any:
    plain = [(thaw(part.value), part.key) for part in parts.parts]
    if parts.kind == "keys":
        return {key: value for value, key in plain}
    if parts.kind == "amount":
        return sum(value for value, _ in plain)
    return {value for value, _ in plain} if parts.kind == "members" else [value for value, _ in plain]


def message(name: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": text, "id": name}


def updates(execution: Execution, seed: int, resets: bool) -> dict[str, Any]:
    rng = random.Random(f"{seed}{execution.id}")
    name = execution.id
    found: dict[str, Any] = {
        "items": [f"{name}a", f"{name}b"],
        "single": name,
        "keys": {rng.choice("xyz"): name, name: "own"},
        "names": {name, rng.choice("xyz")},
        "count": 1,
        "short": name,
        "recent": {rng.choice("uvw"): name},
        "said": [message(rng.choice("xyz"), "the same"), message(name, name)],
        "chat": [message(rng.choice("xyz"), rng.choice([name, "one"])), message(name, name)],
        "late": message(rng.choice("uvw"), name),
    }
    if resets and rng.random() < 0.2:
        found["items"] = rng.choice([Replace([f"{name}r"]), DELETE])
        found["keys"] = Replace({"r": name})
    return {field: update for field, update in found.items() if rng.random() < 0.8}


def check(outcome: Outcome, resets: bool, seed: int) -> None:
    """In any order of asking, as branches do."""
    nodes = sorted({entry.commit.node for entry in outcome.run.log})
    places = list(range(len(outcome.run.log)))
    random.Random(seed).shuffle(places)
    for field in FIELDS:
        indexes = FieldIndexes(folded(field))
        for place in places:
            entry = outcome.run.log[place]
            whole = parts_at(indexes, outcome, place)
            assert value_of(whole) == entry.state.to_dict()[field], field
            if field in ("items", "single", "short", "said", "chat", "late"):
                assert [thaw(part.value) for part in whole.parts] == entry.state.to_dict()[field]
            assert sorted(part.slot for part in whole.parts) == [part.slot for part in whole.parts]
            for reader in nodes:
                check_reader(indexes, outcome, place, reader, whole, resets)


def check_reader(
    indexes: FieldIndexes, outcome: Outcome, place: int, reader: str, whole: FieldParts, resets: bool
) -> None:
    log = outcome.run.log
    names = {indexes.of.global_id(log, at) for at in unseen_commits(log, [place], reader)}
    seen = seen_by(outcome, place, reader)
    assert names == {log[at].commit.id for at in behind(outcome, place) - seen}
    new = new_to(indexes, outcome, place, reader)
    assert new == [part for part in whole.parts if is_new(part, names)], "both ways to look agree"
    if indexes.of.field in SHARED:
        visits = [at for at in seen if log[at].commit.node == reader]
        held = [part for at in visits for part in parts_at(indexes, outcome, at).parts]
        there = {part.key for part in held}
        assert new == [part for part in whole.parts if part.key not in there]
        return
    if indexes.of.field == "chat" or (resets and indexes.of.field in ("items", "keys")):
        return  # a message may be brought again as it was; what a policy decided belongs to a join
    known = {log[at].commit.id for at in seen}
    assert new == [part for part in whole.parts if part.commit not in known], "nothing missed, nothing twice"


@pytest.mark.slow("a law: ten fields at each commit of 25 random graphs, for each node")
@given(plans(), st.integers(0, 2**32))
def test_new_parts_are_those_of_ancestor_commits_that_the_reader_has_not_seen(plan: Plan, seed: int) -> None:
    """S000-26."""
    topology = graph(" ".join(plan.nodes), plan.edges, plan.conditional, SCHEMA, plan.merge, max_steps=25)
    route = router(plan.routes)

    def behave(execution: Execution) -> tuple[dict[str, Any], list[str | Target]]:
        _, goto = route(execution)
        return ({} if execution.node == START else updates(execution, seed, False)), goto

    check(simulate(topology, behave, random.Random(seed).randrange), False, seed)


@pytest.mark.slow("a law: ten fields at each commit of 25 random graphs, for each node")
@given(layers(), st.integers(0, 2**32), st.sampled_from(["last_write_wins", "first_write_wins"]))
def test_after_resets_the_parts_make_up_the_value(edges: dict[str, str], seed: int, policy: str) -> None:
    nodes = " ".join(name for name in edges if name != START)
    topology = graph(nodes, edges, schema=SCHEMA, merge=policy)

    def behave(execution: Execution) -> tuple[dict[str, Any], list[str]]:
        return ({} if execution.node == START else updates(execution, seed, True)), []

    check(simulate(topology, behave, random.Random(seed).randrange), True, seed)


@pytest.mark.parametrize("length", [10, 200])
def test_reading_new_parts_takes_time_for_the_new_parts_only(length: int) -> None:
    """A loop looks back to its own last commit, however long the run is."""
    topology = graph("a b", {START: "a", "a": "b"}, {"b": "a END"}, SCHEMA, max_steps=500)

    def behave(execution: Execution) -> tuple[dict[str, Any], list[str]]:
        if execution.node != "b":
            return ({} if execution.node == START else {"single": execution.id}), []
        return {}, ["END" if execution.visit == length else "a"]

    outcome = simulate(topology, behave)
    asked: list[int] = []

    class Counting:
        def __len__(self) -> int:
            return len(outcome.run.log)

        def __getitem__(self, place: int, /) -> Any:
            asked.append(place)
            return outcome.run.log[place]

    indexes = FieldIndexes(folded("single"))
    indexes.at(outcome.run.log, 2 * length - 3)
    log = Counting()
    index = indexes.at(log, 2 * length - 1)
    found = unseen_parts(index, log, unseen_commits(log, [2 * length - 1], "b"), indexes.of)
    assert [part.author for part in found.parts] == ["a"]
    assert len(asked) < 25


def test_the_cache_between_runs_is_bounded() -> None:
    recent, index = RecentIndexes(most=10), FieldIndex(row_of(3))
    for number in range(8):
        recent.put(Point("r", number), "log", index, None)
    kept = [number for number in range(8) if recent.get(Point("r", number), "log") is not None]
    assert kept == [6, 7]
    recent.put(Point("s", 0), "log", index, Point("r", 7))
    assert [recent.get(Point("r", number), "log") is None for number in (6, 7)] == [False, True]


def row_of(count: int) -> Any:
    row: Any = PartRow()
    for number in range(count):
        row = row.set(number, FieldPart(number, None, "a", "c"))
    return row
