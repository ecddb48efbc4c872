"""All readers and the final state agree on one order of posts, whatever nodes do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dspyer import END, START, Context, Graph, LiveEntry, Updates, view
from tests.live.kit import Pad, finished, team


def in_turn(order: Sequence[int], count: int) -> dict[str, Any]:
    """Nodes that post in a given order, however they are scheduled."""
    turns, condition = iter(enumerate(order)), threading.Condition()
    current: list[tuple[int, int] | None] = [next(turns, None)]

    def node(me: int) -> Any:
        def posts(ctx: Context) -> None:
            for _ in range(list(order).count(me)):
                with condition:
                    assert condition.wait_for(lambda: current[0] is not None and current[0][1] == me, 20)
                    assert current[0] is not None
                    ctx.post("notes", f"{me}.{current[0][0]}")
                    current[0] = next(turns, None)
                    condition.notify_all()

        return (posts, ["notes"])

    return {f"n{me}": node(me) for me in range(count)}


@given(order=st.lists(st.integers(0, 3), max_size=12))
def test_the_final_state_is_the_fold_by_arrival(order: list[int]) -> None:
    run = finished(team(**in_turn(order, 4)).compile().run({}))
    expected = [f"{me}.{number}" for number, me in enumerate(order)]
    assert run.state.to_dict()["notes"] == expected
    numbered = [
        (seq, update)
        for commit in run.commits
        if commit.live
        for seq, update in zip(
            commit.live.posts["notes"],
            commit.patch["notes"].updates if isinstance(commit.patch["notes"], Updates) else (commit.patch["notes"],),
            strict=True,
        )
    ]
    assert [update for _, update in sorted(numbered)] == expected


def test_views_show_posts_in_the_order_of_their_arrival() -> None:
    seen: list[list[tuple[str, str]]] = []

    def reads(ctx: Context) -> None:
        seen.append([(entry.author, entry.value) for entry in ctx.view(view("notes"))])

    graph = Graph(Pad)
    nodes = in_turn([1, 0, 1], 2)
    for name, (fn, writes) in nodes.items():
        graph.add_node(name, fn, writes=writes)
    graph.add_node("reads", reads, reads=["notes"], writes=[]).add_edge(START, list(nodes))
    run = graph.add_edge(list(nodes), "reads").add_edge("reads", END).compile().run({})
    finished(run)
    assert seen == [[("n1", "1.0"), ("n0", "0.1"), ("n1", "1.2")]]


def test_all_readers_get_all_posts_in_one_order() -> None:
    heard: dict[str, list[int]] = {}

    def agent(ctx: Context) -> None:
        for number in range(10):
            ctx.post("notes", f"{ctx.node} {number}")
        heard[ctx.node] = [note.seq for note in ctx.live("notes")]

    nodes = {f"a{number}": (agent, ["notes"]) for number in range(12)}
    run = finished(team(**nodes).compile().run({}))
    assert len(run.state["notes"]) == 120
    for name, seqs in heard.items():
        own = next(commit.live.posts["notes"] for commit in run.commits if commit.node == name and commit.live)
        assert seqs == sorted(set(range(1, 121)) - set(own))


def test_a_node_reads_each_entry_once_over_its_visits() -> None:
    heard: list[list[str]] = []

    def posts(ctx: Context) -> dict[str, Any]:
        return {"notes": f"visit {ctx.visit}"}

    def listens(ctx: Context) -> dict[str, Any]:
        heard.append([note.value for note in ctx.live("notes")] + [note.value for note in ctx.live("notes")])
        return {"notes": f"own {ctx.visit}"}

    graph = Graph(Pad, inputs=["notes"])
    graph.add_node("posts", posts, writes=["notes"]).add_node("listens", listens, writes=["notes"])
    graph.add_path(START, "posts", "listens")
    graph.add_conditional_edges(
        "listens", lambda ctx: "more" if ctx.visit < 3 else "end", {"more": "posts", "end": END}
    )
    finished(graph.compile().run({"notes": "given"}))
    assert heard == [["given", "visit 1"], ["visit 2"], ["visit 3"]]


def test_entries_have_author_number_and_key() -> None:
    found: list[LiveEntry] = []

    def posts(ctx: Context) -> None:
        ctx.post("code", {"a": 1, "b": [2]})

    def listens(ctx: Context) -> None:
        found.extend(ctx.live("code"))
        found[-1].value.append(3)  # a copy of its own

    run = finished(team(posts=(posts, ["code"]), listens=listens, sequence=True).compile().run({}))
    commit = next(commit.id for commit in run.commits if commit.node == "posts")
    assert found == [LiveEntry(1, "posts", commit, 1, "a"), LiveEntry([2, 3], "posts", commit, 1, "b")]
    assert run.state.to_dict()["code"] == {"a": 1, "b": [2]}


ACTIONS = st.sampled_from(["post notes", "post echoes", "hear notes", "hear echoes", "one note", "one echo"])


def scripted(actions: Sequence[str], heard: dict[str, list[tuple[str, int]]]) -> tuple[Any, Any]:
    """A node that posts, hears to the end, or takes one entry, in both colours."""
    fields = {"note": "notes", "echo": "echoes"}

    def take(ctx: Context, field: str, entry: LiveEntry) -> None:
        heard.setdefault(f"{ctx.node} {field}", []).append((entry.value, entry.seq))

    def node(ctx: Context) -> None:
        for number, action in enumerate(actions):
            verb, field = action.split()
            if verb == "post":
                ctx.post(field, f"{ctx.node} {number}")
            elif verb == "hear":
                for entry in ctx.live(field):
                    take(ctx, field, entry)
            else:
                found = next(ctx.live(fields[field]), None)
                if found is not None:
                    take(ctx, fields[field], found)

    async def anode(ctx: Context) -> None:
        for number, action in enumerate(actions):
            verb, field = action.split()
            if verb == "post":
                ctx.post(field, f"{ctx.node} {number}")
            elif verb == "hear":
                async for entry in ctx.live(field):
                    take(ctx, field, entry)
            else:
                found = await anext(ctx.live(fields[field]), None)
                if found is not None:
                    take(ctx, fields[field], found)

    return node, anode


def writes_of(actions: Sequence[str]) -> list[str]:
    return sorted({action.split()[1] for action in actions if action.startswith("post")})


@given(
    scripts=st.lists(st.lists(ACTIONS, max_size=5), min_size=1, max_size=6),
    colours=st.lists(st.booleans(), min_size=6, max_size=6),
    limit=st.integers(1, 4),
    behind=st.booleans(),
    tasks=st.booleans(),
)
def test_random_nodes_all_end_and_agree_on_one_order(
    scripts: list[list[str]], colours: list[bool], limit: int, behind: bool, tasks: bool
) -> None:
    """Any scripts, in either colour, under either driver; with `behind`, each second node follows the one before it."""
    heard: dict[str, list[tuple[str, int]]] = {}
    graph = Graph(Pad)
    ends: list[str] = []
    starts: list[str] = []
    for number, actions in enumerate(scripts):
        name = f"n{number}"
        fn = scripted(actions, heard)[colours[number]]
        graph.add_node(name, fn, reads=["notes", "echoes"], writes=writes_of(actions))
        if behind and number % 2:
            graph.add_edge(ends.pop(), name)
        else:
            starts.append(name)
        ends.append(name)
    program = graph.add_edge(START, starts).add_edge(ends, END).compile(max_concurrency=limit)
    run = finished(asyncio.run(program.arun({})) if tasks else program.run({}))
    order: dict[str, list[tuple[str, int]]] = {"notes": [], "echoes": []}
    for commit in run.commits:
        for field, seqs in commit.live.posts.items() if commit.live else ():
            update = commit.patch[field]
            updates = update.updates if isinstance(update, Updates) else (update,)
            order[field] += zip(updates, seqs, strict=True)
    for field, posts in order.items():
        posts.sort(key=lambda post: post[1])
        assert run.state.to_dict()[field] == [value for value, _ in posts]
    for place, entries in heard.items():
        node, field = place.split()
        others = [post for post in order[field] if not post[0].startswith(node)]
        assert entries == others[: len(entries)]
