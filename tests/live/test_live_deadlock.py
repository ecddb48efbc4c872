"""When a live field is closed; joins fold posts by their recorded arrival, in any order of completion; what a post
replaces. These are rules of few lines over many cases: a program shows a wrong answer only if it hangs or loses a race.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Annotated

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, ImmutableState, live, reducers
from dspyer.events import Commit, Exchange
from dspyer.nodes.live_access import Waiter
from dspyer.persistence.execution_records import RecordedPost
from dspyer.policies import Policies
from dspyer.reducers import Updates
from dspyer.runtime.live import LiveWaiters
from dspyer.runtime.live_buffer import LiveBuffer, ReaderCursor
from dspyer.scheduler.live_deadlock import HeldCommit, PossibleWriter, WaitingReader, WriteReach, readers_to_release
from dspyer.scheduler.loops import Edge
from dspyer.scheduler.run_state import Branch, Execution, RunState, Target, Transition
from dspyer.scheduler.schedule import advance, begin, plan, start
from dspyer.scheduler.topology import Topology
from dspyer.schema.schema import Schema
from dspyer.values.persistent import PersistentMap
from tests.plain_values import plain

# Who waits for which field (or has ended and needs others), who works, what each may write; and who is released.
CASES = {
    "nothing writes it": ("a:f b:f", "", {}, "a b"),
    "a node works that writes it": ("a:f", "w", {"w": "f"}, ""),
    "a node works that writes another": ("a:f", "w", {"w": "g"}, "a"),
    "one's own writes count for others only": ("a:f", "", {"a": "f"}, "a"),
    "a waiter on an open field may write it": ("a:f b:g", "w", {"w": "g", "b": "f"}, ""),
    "a ring: the first in path order": ("b:f a:g", "", {"a": "f", "b": "g"}, "a"),
    "all on one field": ("c:f a:f b:f", "", {"a": "f", "b": "f", "c": "f"}, "a"),
    "what waits for a ring waits on": ("a:x b:f c:g", "", {"b": "g x", "c": "f"}, "b"),
    "two rings": ("a:f b:g c:h d:i", "", {"a": "g", "b": "f", "c": "i", "d": "h"}, "a c"),
    "a ring beside a node that works": ("a:f b:g", "w", {"a": "g", "b": "f", "w": "h"}, "a"),
    "a chain ends at its end": ("a:f b:g", "", {"a": "g"}, "a"),
    "what has ended does not write again": ("a:f b<w", "w", {"b": "f"}, "a"),
}


def topology(names: Iterable[str], *more: Edge) -> Topology:
    nodes = tuple(names)
    edges = [Edge(START, name) for name in nodes] + [Edge(name, "join") for name in nodes] + [Edge("join", END), *more]
    others = tuple(dict.fromkeys(name for edge in more for name in edge[:2] if name not in (*nodes, "join", START)))
    return Topology("pad", (*nodes, "join", *others), tuple(edges), Schema.of(Pad), Policies.of(None))


def released(waiting: str, able: str, writes: dict[str, str], graph: Topology | None = None) -> set[str]:
    graph = graph or topology("abcdefgw")
    waiters, held = [], []
    for text in waiting.split():
        node = text[0]
        place = (node, graph.rounds.first(node))
        if text[1] == ":":
            waiters.append(WaitingReader(node, place, (ord(node),), text[2:]))
        else:
            held.append(HeldCommit(node, place, (ord(node),), frozenset(text[2:])))
    origins = [PossibleWriter((node, graph.rounds.first(node))) for node in able.split()]
    reach = WriteReach(graph, {node: fields.split() for node, fields in writes.items()})
    return {one.execution for one in readers_to_release(waiters, origins, held, reach)}


def test_which_reader_is_released() -> None:
    found = {name: released(waiting, able, writes) for name, (waiting, able, writes, _) in CASES.items()}
    assert found == {name: set(case[3].split()) for name, case in CASES.items()}


# The same where nodes follow: edges beside START -> node -> join -> END.
BEHIND: dict[str, tuple[str, str, dict[str, str], list[Edge], str]] = {
    "behind a join that waits for the listener": ("a:f", "w", {"join": "f"}, [], "a"),
    "behind a way of its own": ("a:f", "w", {"late": "f"}, [Edge("w", "late"), Edge("late", END)], ""),
    "in the next round, behind a join": ("a:f", "w", {"w": "f", "b": "g"}, [Edge("join", "w", True)], ""),
    "only in the next round": ("a:f", "b", {"w": "f"}, [Edge("join", "w", True)], "a"),
    "a loop is no ring": ("a:f b:g", "", {"b": "f", "w": "g"}, [Edge("join", "w", True)], "b"),
    "a router may send at once": ("a:f", "w", {"join": "f"}, [Edge("w", "join", True)], ""),
    "in a ring, what is certain decides": ("a:f b:g", "", {"b": "f", "join": "g"}, [Edge("a", "join", True)], "b"),
    "it has ended, and commits when w has": ("a:f b<w", "w", {"late": "f"}, [Edge("b", "late"), Edge("late", END)], ""),
    "it has ended, and needs the listener": ("a:f b<a", "", {"late": "f"}, [Edge("b", "late"), Edge("late", END)], "a"),
    "two have ended, and commit together when w has": ("a:f b<cw c<b", "w", {}, [], "a"),
    "they may write when they have": (
        *("a:f b<cw c<b", "w", {"late": "f"}, [Edge("c", "late"), Edge("late", END)]),
        "",
    ),
    "two need each other, and one that waits": (
        *("a:f b<ce c<b e:g", "w", {"late": "f"}, [Edge("c", "late"), Edge("late", END)]),
        "e",
    ),
    "it needs another that waits": (*("a:f b<c c:g", "", {"late": "f"}, [Edge("b", "late"), Edge("late", END)]), "c"),
}


def test_which_reader_is_released_when_other_nodes_follow() -> None:
    found = {
        name: released(waiting, able, writes, topology("abcew", *edges))
        for name, (waiting, able, writes, edges, _) in BEHIND.items()
    }
    assert found == {name: set(case[4].split()) for name, case in BEHIND.items()}


@given(
    waiting=st.lists(st.sampled_from("fgh"), min_size=1, max_size=6),
    writes=st.lists(st.sets(st.sampled_from("fgh")), min_size=7, max_size=7),
    works=st.booleans(),
)
def test_one_reader_can_always_continue(waiting: list[str], writes: list[set[str]], works: bool) -> None:
    """As long as none works, one is released; and never one whose field a node that works may write."""
    names = "abcdefg"
    may = {name: " ".join(sorted(fields)) for name, fields in zip(names, writes, strict=True)}
    text = " ".join(f"{name}:{field}" for name, field in zip(names, waiting, strict=False))
    found = released(text, "g" if works else "", may)
    assert found or works
    if works:
        assert not {name for name in found if waiting[names.index(name)] in writes[6]}


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
    commits = [sorted((entry.commit._replace(version=None) for entry in run.log), key=order_of) for run in ends]
    assert all(each == commits[0] for each in commits)


def test_a_timeout_does_not_count_the_wait_for_a_slot() -> None:
    """An entry came while another node held the only slot: time is over meanwhile, and the entry is given."""
    graph = topology("rw")
    waiters = LiveWaiters(1, WriteReach(graph, {"w": ["f"]}))
    for name in "rw":
        branch = Branch((), ((),), ImmutableState(), 0, "", 0, PersistentMap())
        waiters.running[name] = Execution(name, name, branch, (), 1, (name, graph.rounds.first(name)), None)
    woken: list[str] = []
    waiter = Waiter("r", "f", lambda: woken.append("r"))
    waiters.enter(waiter)
    waiters.arrived("f", "w")
    waiters.release("r", "timeout")
    waiters.grant()
    assert (waiter.outcome, woken) == ("waiting", [])
    del waiters.running["w"]
    waiters.grant()
    assert (waiter.outcome, woken) == ("entry", ["r"])


def test_a_timeout_is_raised_when_nothing_arrives() -> None:
    graph = topology("rw")
    waiters = LiveWaiters(2, WriteReach(graph, {"w": ["f"]}))
    branch = Branch((), ((),), ImmutableState(), 0, "", 0, PersistentMap())
    waiters.running["r"] = Execution("r", "r", branch, (), 1, ("r", graph.rounds.first("r")), None)
    waiter = Waiter("r", "f", lambda: None)
    waiters.enter(waiter)
    waiters.release("r", "timeout")
    waiters.grant()
    assert (waiter.outcome, waiters.waits) == ("timeout", False)


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
@given(
    st.lists(st.tuples(st.sampled_from(["post x", "post y", "read", "fail", "commit"]), st.integers(0, 3)), max_size=25)
)
def test_a_post_replaces_what_its_author_has_read(actions: list[tuple[str, int]]) -> None:
    """Also after withdrawals, and on a board that is made again from what was recorded."""
    schema = Schema.of(Table)
    state = schema.initial_state({})
    board, model = LiveBuffer(schema, state, {}), Model()
    readers = {f"{number}:0": ReaderCursor(f"{number}:0", f"n{number}", (number,), None, {}) for number in range(4)}
    recorded: dict[int, RecordedPost | None] = {}
    for action, number in actions:
        name = f"{number}:0"
        reader = readers.get(name)
        if reader is None:
            continue
        if action.startswith("post"):
            key, seq = action[-1], board.seq + 1
            value = f"{name} {seq}"
            update = schema.commit(state, {"t": {key: [value]}}, node="n", commit_id="")[0]["t"]
            meeting = board.conflicts(reader, "t", update)
            reader.used |= {post.execution for posts in meeting.unread.values() for post in posts} & set(board.pending)
            recorded[seq] = post = RecordedPost(seq, "t", f"n{number}", name, update, meeting.over)
            found = board.add(post)
            model.posts.append((seq, name, key, value, reader.reads.get("t", 0)))
            assert plain(found)[key] == model.values(key)
            again = LiveBuffer(schema, state, recorded)
            assert again.seq == board.seq
            assert again.entries(post) == board.entries(post)
        elif action == "read":
            while reader.next(board, "t") is not None:
                pass
        elif action == "commit":
            board.commit(name)
            del readers[name]
        else:
            gone = {name}
            while more := {one for one, other in readers.items() if other.used & gone} - gone:
                gone |= more
            for one in gone:
                for post in board.withdraw(one):
                    recorded[post.seq] = None
                readers.pop(one, None)
            model.posts = [post for post in model.posts if post[1] not in gone]
