"""Who goes on first of those that wait; joins fold posts by their recorded arrival, in any order of completion; what a
post replaces. These are rules of few lines over many cases: a program shows a wrong answer only if it loses a race.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, live, reducers
from dspyer.events import Commit, Exchange
from dspyer.layers.live import LiveField, LiveWaiters, ReaderCursor
from dspyer.log.rows import PostRow
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.context import Waiter
from dspyer.policies import Policies
from dspyer.reducers import Updates
from dspyer.scheduler.schedule import (
    ReleaseOrder,
    RunState,
    Target,
    Transition,
    advance,
    begin,
    plan,
    start,
)
from dspyer.scheduler.topology import Edge, Topology
from dspyer.schema.schema import Schema
from tests.plain_values import plain

# Who waits for which field, and what each may write; and who goes on first.
CASES = {
    "nothing writes it": ("b:f a:f", {}, "a"),
    "one's own writes count for others only": ("a:f", {"a": "f"}, "a"),
    "another that waits writes it": ("a:f b:g", {"b": "f"}, "b"),
    "a ring: the first in path order": ("b:f a:g", {"a": "f", "b": "g"}, "a"),
    "all on one field": ("c:f a:f b:f", {"a": "f", "b": "f", "c": "f"}, "a"),
    "what has ended does not write again": ("a:f b:g", {"b": "", "w": "f"}, "a"),
    "a chain ends at its end": ("a:f b:g c:h", {"b": "f", "c": "g"}, "c"),
}
# The same where nodes follow: edges beside START -> node -> join -> END.
BEHIND: dict[str, tuple[str, dict[str, str], list[Edge], str]] = {
    "behind a join that waits for the reader": ("a:f b:g", {"join": "f"}, [], "a"),
    "behind a way of its own": ("a:f b:g", {"late": "f"}, [Edge("b", "late"), Edge("late", END)], "b"),
    "behind a router": (
        *("a:f b:g", {"late": "f"}),
        [Edge("b", "x", True), Edge("b", "y", True), Edge("x", "late"), Edge("y", "late"), Edge("late", END)],
        "b",
    ),
    "in the next round, behind the join": ("a:f b:g", {"b": "h", "w": "f"}, [Edge("join", "w", True)], "a"),
    "a router may send past the join": ("a:f b:g", {"join": "f"}, [Edge("b", "join", True)], "b"),
    "among rings, what is certain decides": ("a:f b:g", {"b": "f", "join": "g"}, [Edge("a", "join", True)], "b"),
}


def topology(names: Iterable[str], *more: Edge) -> Topology:
    nodes = tuple(names)
    edges = [Edge(START, name) for name in nodes] + [Edge(name, "join") for name in nodes] + [Edge("join", END), *more]
    others = tuple(dict.fromkeys(name for edge in more for name in edge[:2] if name not in (*nodes, "join", START)))
    return Topology("pad", (*nodes, "join", *others), tuple(edges), Schema.of(Pad), Policies.of(None))


def first(waiting: str, writes: dict[str, str], graph: Topology) -> str:
    readers: list[Any] = []
    for node, field in (text.split(":") for text in waiting.split()):
        readers.append((SimpleNamespace(position=(node, graph.rounds.first(node)), path=(ord(node),), id=node), field))
    return ReleaseOrder(graph, {node: fields.split() for node, fields in writes.items()}).first(readers).id


def test_who_goes_on_first() -> None:
    found = {name: first(waiting, writes, topology("abcefgw")) for name, (waiting, writes, _) in CASES.items()}
    assert found == {name: case[2] for name, case in CASES.items()}


def test_who_goes_on_first_when_other_nodes_follow() -> None:
    found = {
        name: first(waiting, writes, topology("abcew", *edges)) for name, (waiting, writes, edges, _) in BEHIND.items()
    }
    assert found == {name: case[3] for name, case in BEHIND.items()}


class Pad(BaseModel):
    """What the nodes share."""

    notes: Annotated[list[str], reducers.append, live] = []


def played(posts: dict[str, list[int]], order: Iterable[str]) -> RunState:
    """A run whose nodes end in a given order, each with posts of given numbers."""
    graph = topology(posts)
    schema = graph.schema
    state = schema.initial_state({})
    run, execution, _ = begin(start(graph))
    assert execution is not None
    run, _ = advance(run, execution.id, Transition({}, state, tuple(Target(name) for name in posts)))
    begun = {}
    while plan(run):
        run, execution, _ = begin(run)
        assert execution is not None
        begun[execution.node] = execution.id
    for name in order:
        seqs = posts[name]
        patch = {"notes": Updates(*[str(seq) for seq in seqs])} if seqs else {}
        exchange = Exchange({"notes": tuple(seqs)} if seqs else {}, {})
        done = Transition(patch, schema.replay(state, patch), (Target("join"),), live=exchange)
        run, _ = advance(run, begun[name], done)
    run, execution, _ = begin(run)
    assert execution is not None
    run, _ = advance(run, execution.id, Transition({}, execution.branch.state, (Target(END),)))
    return begin(run)[0]


def order_of(commit: Commit) -> tuple[int, tuple[int, ...]]:
    return commit.step, commit.branch


@given(authors=st.lists(st.sampled_from("abc"), max_size=8))
def test_a_join_folds_by_arrival_in_any_order_of_completion(authors: list[str]) -> None:
    posts = {name: [seq for seq, author in enumerate(authors, 1) if author == name] for name in "abc"}
    ends = [played(posts, order) for order in itertools.permutations("abc")]
    assert [run.trunk_state.to_dict()["notes"] for run in ends] == [
        [str(seq) for seq in range(1, len(authors) + 1)]
    ] * 6
    commits = [sorted((replace(entry.commit, version=None) for entry in run.log), key=order_of) for run in ends]
    assert all(each == commits[0] for each in commits)


def test_a_timeout_does_not_count_the_wait_for_a_slot() -> None:
    """An entry came while another node held the only slot: time is over meanwhile, and the entry is given."""
    waiters = LiveWaiters(1, {})
    woken: list[str] = []
    waiter = Waiter("r", ("f",), lambda: woken.append("r"))
    waiters.enter(waiter)
    waiters.arrived("f", "w")
    waiters.end_wait("r", "timeout")
    waiters.grant(2)
    assert (waiter.outcome, woken) == ("waiting", [])
    waiters.grant(1)
    assert (waiter.outcome, woken) == ("entry", ["r"])


def test_a_timeout_is_raised_when_nothing_arrives() -> None:
    waiters = LiveWaiters(2, {})
    waiter = Waiter("r", ("f",), lambda: None)
    waiters.enter(waiter)
    waiters.end_wait("r", "timeout")
    waiters.grant(1)
    assert (waiter.outcome, waiters.waiting) == ("timeout", {})


# --- keys: a post replaces what its author has read, and is kept with what it has not read


class Table(BaseModel):
    t: Annotated[dict[str, list[str]], reducers.update, live] = {}


class Model:
    """The same by definition: a post is replaced by a later one of an author who had read it or made it."""

    def __init__(self) -> None:
        self.posts: list[tuple[int, str, str, str, int]] = []  # number, author, key, value, read up to

    def values(self, key: str) -> list[str]:
        here = [post for post in self.posts if post[2] == key]
        replaced = {
            one[0] for one in here for two in here if one[0] < two[0] and (one[1] == two[1] or one[0] <= two[4])
        }
        return [value for number, _, _, value, _ in here if number not in replaced]


@settings(max_examples=6 * settings().max_examples)
@given(st.lists(st.tuples(st.sampled_from(["post x", "post y", "read"]), st.integers(0, 3)), max_size=25))
def test_a_post_replaces_what_its_author_has_read(actions: list[tuple[str, int]]) -> None:
    """Also on a board that is made again from what was recorded."""
    schema = Schema.of(Table)
    state = schema.initial_state({})
    board, model = LiveField(schema, "t", state), Model()
    attempts = [Attempt(node=f"n{number}", branch=(number,), execution=f"{number}:0") for number in range(4)]
    readers = [ReaderCursor((attempt,), {}) for attempt in attempts]
    for action, number in actions:
        name, reader = f"{number}:0", readers[number]
        if action == "read":
            while reader.next(board, "t") is not None:
                pass
            continue
        key, seq = action[-1], len(board.posts)
        value = f"{name} {seq}"
        update = schema.commit(state, {"t": {key: [value]}}, node="n", commit_id="")[0]["t"]
        over = board.conflicts(reader, update, reader.reads.get("t", 0))[0]
        post = PostRow(name, (), f"n{number}", "t", seq, str(seq), over, 0.0, {"t": update})
        found = board.add(post)
        model.posts.append((seq, name, key, value, reader.reads.get("t", 0)))
        assert plain(found)[key] == model.values(key)
        again = LiveField(schema, "t", state)
        for one in board.posts[1:]:
            again.add(one)
        assert again.entries(post) == board.entries(post)
