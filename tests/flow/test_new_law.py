"""What is new to a node, on random graphs, against a reference that knows ancestors and nothing else."""

from __future__ import annotations

import random
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import Replace, limit, reducers
from dspyer.patch import DELETE
from dspyer.scheduler.provenance import Folded, Part, Parts, parts_of
from dspyer.scheduler.runstate import Execution, Target
from dspyer.scheduler.topology import START
from dspyer.schema import Schema
from dspyer.values import thaw
from tests.core.simulation import Outcome, graph, simulate
from tests.core.test_joins import layers
from tests.core.test_schedule import Plan, plans, router


class Board(BaseModel):
    items: Annotated[list[str], reducers.extend] = ["default"]
    single: Annotated[list[str], reducers.append] = []
    keys: Annotated[dict[str, str], reducers.update] = {}
    names: Annotated[set[str], reducers.union] = set()
    count: Annotated[int, reducers.increment] = 5
    short: Annotated[list[str], reducers.append, limit(kb=0.04, full="drop_oldest")] = []
    recent: Annotated[dict[str, str], reducers.update, limit(kb=0.05, full="drop_oldest")] = {}


SCHEMA = Schema.of(Board)
FIELDS = ("items", "single", "keys", "names", "count", "short", "recent")


def looked(outcome: Outcome, place: int, field: str, reader: str, new: bool = False) -> Parts:
    """The parts of a field as a reader saw them that stood behind a commit."""
    known = SCHEMA.fields[field]
    assert known.reducer is not None
    value = outcome.run.log[place].state.raw(field)
    most = len(value) if known.limit is not None else None
    of = Folded(field, known.reducer, known.fixed_default, True, most)
    return parts_of(outcome.run.log, [place], of, reader, new=new)


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


def value_of(parts: Parts) -> Any:
    plain = [(thaw(part.value), part.key) for part in parts.parts]
    if parts.shape == "keys":
        return {key: value for value, key in plain}
    if parts.shape == "amount":
        return sum(value for value, _ in plain)
    return {value for value, _ in plain} if parts.shape == "members" else [value for value, _ in plain]


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
    }
    if resets and rng.random() < 0.2:
        found["items"] = rng.choice([Replace([f"{name}r"]), DELETE])
        found["keys"] = Replace({"r": name})
    return {field: update for field, update in found.items() if rng.random() < 0.8}


def check(outcome: Outcome, resets: bool) -> None:
    nodes = sorted({entry.commit.node for entry in outcome.run.log})
    for place, entry in enumerate(outcome.run.log):
        for field in FIELDS:
            whole = looked(outcome, place, field, "nobody")
            assert value_of(whole) == entry.state.to_dict()[field], field
            if field in ("items", "single", "short"):
                assert [part.value for part in whole.parts] == list(entry.state[field])
            for reader in nodes:
                check_reader(outcome, place, field, reader, whole, resets)


def check_reader(outcome: Outcome, place: int, field: str, reader: str, whole: Parts, resets: bool) -> None:
    seen = {outcome.run.log[at].commit.id for at in seen_by(outcome, place, reader)}
    marked = looked(outcome, place, field, reader)
    new = looked(outcome, place, field, reader, new=True)
    assert [part for part in marked.parts if not part.seen] == list(new.parts), "both ways to look agree"
    if field == "names" or (resets and field in ("items", "keys")):
        return  # a set knows the first who brought a member; what a policy decided belongs to a join
    expected = [part._replace(seen=False) for part in whole.parts if part.commit not in seen]
    assert [part._replace(seen=False) for part in new.parts] == expected, "nothing missed, nothing twice"


@settings(max_examples=60, deadline=None)
@given(plans(), st.integers(0, 2**32))
def test_new_is_the_lineage_without_what_was_seen(plan: Plan, seed: int) -> None:
    """S000-26."""
    topology = graph(" ".join(plan.nodes), plan.edges, plan.conditional, SCHEMA, plan.merge, max_steps=25)
    route = router(plan.routes)

    def behave(execution: Execution) -> tuple[dict[str, Any], list[str | Target]]:
        _, goto = route(execution)
        return ({} if execution.node == START else updates(execution, seed, False)), goto

    check(simulate(topology, behave, random.Random(seed).randrange), False)


@settings(max_examples=60, deadline=None)
@given(layers(), st.integers(0, 2**32), st.sampled_from(["last_write_wins", "first_write_wins"]))
def test_after_resets_the_parts_are_still_the_value(edges: dict[str, str], seed: int, policy: str) -> None:
    nodes = " ".join(name for name in edges if name != START)
    topology = graph(nodes, edges, schema=SCHEMA, merge=policy)

    def behave(execution: Execution) -> tuple[dict[str, Any], list[str]]:
        return ({} if execution.node == START else updates(execution, seed, True)), []

    check(simulate(topology, behave, random.Random(seed).randrange), True)


@pytest.mark.parametrize("length", [10, 200])
def test_what_is_new_costs_by_what_is_new(length: int) -> None:
    """A loop looks back to its own last commit, however long the run is."""
    topology = graph("a b", {START: "a", "a": "b"}, {"b": "a END"}, SCHEMA, max_steps=500)

    def behave(execution: Execution) -> tuple[dict[str, Any], list[str]]:
        if execution.node != "b":
            return ({} if execution.node == START else {"single": execution.id}), []
        return {}, ["END" if execution.visit == length else "a"]

    outcome = simulate(topology, behave)
    asked: list[int] = []

    class Counting:
        def __getitem__(self, place: int, /) -> Any:
            asked.append(place)
            return outcome.run.log[place]

    known = SCHEMA.fields["single"].reducer
    assert known is not None
    found = parts_of(Counting(), [2 * length - 1], Folded("single", known, (), True), "b", new=True)
    assert [part.author for part in found.parts] == ["a"]
    assert len(asked) < 10


def test_a_part_is_what_one_sees() -> None:
    assert Part("a", None, "node", "trunk:1") == ("a", None, "node", "trunk:1", False)
