"""Teams at random that post, wait, fail, ask and crash: each post is shown once to each reader, in one order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, Run, Updates
from dspyer.errors import StoreError
from dspyer.testing import no_pauses
from tests.live.kit import Notes
from tests.log.failing import Crash, FailingMemory, crash

ACTIONS = st.sampled_from(["post notes", "post echoes", "one notes", "all notes", "all echoes", "raise", "fail", "ask"])
TEAMS = st.lists(st.lists(ACTIONS, max_size=5), min_size=2, max_size=4)


class Board(BaseModel):
    notes: Notes = []
    echoes: Notes = []


RETRY = Retry(2, on=ConnectionError)


class Team:
    """Nodes by script. `raise` fails each first attempt of a process, `fail` the first process that comes to it.

    Attributes:
        depths: how many graphs each node is inside of. Those at depth 3 are in one graph, each other has its own.
        heard: what the last attempt of each node has got: field, value and number.
    """

    def __init__(self, scripts: Sequence[Sequence[str]], depths: Sequence[int]) -> None:
        self.scripts = scripts
        self.depths = depths
        self.heard: dict[str, list[tuple[str, str, int]]] = {}
        self.failed: set[tuple[str, int]] = set()

    def steps(self, ctx: Context, script: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Posts and fails; yields what is to be read."""
        self.heard[ctx.node] = []
        for place, action in enumerate(script):
            verb, _, field = action.partition(" ")
            if verb == "post":
                ctx.post(field, f"{ctx.node} {place // 2}")  # some values twice
            elif verb == "raise" and ctx.attempt == 1:
                raise ConnectionError("broken")
            elif verb == "fail" and (ctx.node, place) not in self.failed:
                self.failed.add((ctx.node, place))
                raise ValueError("broken")
            elif verb == "ask":
                ctx.interrupt(f"{ctx.node} {place}", "Go on?")
            elif verb in ("one", "all"):
                yield verb, field

    def node(self, script: Sequence[str], is_async: bool) -> Any:
        def talks(ctx: Context) -> None:
            for verb, field in self.steps(ctx, script):
                for entry in ctx.live(field):
                    self.heard[ctx.node].append((field, entry.value, entry.seq))
                    if verb == "one":
                        break

        async def atalks(ctx: Context) -> None:
            for verb, field in self.steps(ctx, script):
                async for entry in ctx.live(field):
                    self.heard[ctx.node].append((field, entry.value, entry.seq))
                    if verb == "one":
                        break

        return atalks if is_async else talks

    def program(self, store: Any, is_async: bool, limit: int) -> CompiledGraph:
        nodes = {f"n{number}": self.node(script, is_async) for number, script in enumerate(self.scripts)}
        together = [name for name, depth in zip(nodes, self.depths, strict=False) if depth == 3]
        members = {name: node for name, node in nodes.items() if name not in together}
        for name, depth in zip(nodes, self.depths, strict=False):
            for _ in range(depth if name in members else 0):
                members[name] = self.graph({name: members[name]}).compile(retry=RETRY)
        if together:
            members["team"] = self.graph({name: nodes[name] for name in together}).compile(retry=RETRY)
        return self.graph(members).compile(store=store, max_concurrency=limit, retry=RETRY)

    def graph(self, members: dict[str, Any]) -> Graph:
        graph, names = Graph(Board), list(members)
        for name, node in members.items():
            graph.add_node(name, node, reads=["notes", "echoes"], writes=["notes", "echoes"])
        return graph.add_edge(START, names).add_edge(names, END)


def completed(program: CompiledGraph, store: FailingMemory, is_async: bool, crashes: Sequence[int]) -> Run:
    """A run that crashes at given writes, and is continued until it is complete."""
    left, answers = list(crashes), dict[str, Any]()
    for _ in range(60):
        store.rest()
        if left:
            store.arm(crash, left.pop(), after=len(left) % 2 == 0)
        t = program.thread("t")
        try:
            given, answers = answers, {}  # after a crash the run says what it still asks
            if given:
                run = asyncio.run(t.aresume(given, take_over=True)) if is_async else t.resume(given, take_over=True)
            elif is_async:
                run = asyncio.run(t.arun({}, key="k", take_over=True))
            else:
                run = t.run({}, key="k", take_over=True)
        except (Crash, StoreError):
            continue
        if run.status == "completed":
            return run
        answers = {question.key: True for question in run.questions}
    raise AssertionError("the run does not come to its end")


@given(
    scripts=TEAMS,
    depths=st.lists(st.integers(0, 3), max_size=4),
    is_async=st.booleans(),
    limit=st.sampled_from([1, 2, 32]),
    crashes=st.lists(st.integers(1, 12), max_size=3),
)
@example([["post notes", "post notes"], ["all notes", "post echoes"]], [], False, 32, [3])
@example([["post notes", "post notes"], ["all notes", "post echoes"]], [1, 2], True, 1, [3])
@pytest.mark.slow("a law: runs random teams to their end, through crashes, failures and questions")
def test_each_post_is_shown_once_to_each_reader_in_one_order(
    scripts: list[list[str]], depths: list[int], is_async: bool, limit: int, crashes: list[int]
) -> None:
    team, store = Team(scripts, depths), FailingMemory()
    program = team.program(store, is_async, limit)
    with no_pauses():
        run = completed(program, store, is_async, crashes)
    row = store.thread("t")
    assert row is not None
    assert row.head is not None
    rows = [one.header for one in store.rows(row.head.run, 0, row.head.seq) if one.kind == "post"]
    assert [header["seq"] for header in rows] == list(range(1, len(rows) + 1))
    committed: list[tuple[int, str, str, str]] = []
    for commit in run.commits:
        for field, seqs in commit.live.posts.items() if commit.live else ():
            update = commit.patch[field]
            values = update.updates if isinstance(update, Updates) else (update,)
            committed += [(seq, field, value, value.partition(" ")[0]) for seq, value in zip(seqs, values, strict=True)]
    committed.sort()
    assert [post[0] for post in committed] == [header["seq"] for header in rows]
    for number, script in enumerate(scripts):  # as often as one attempt posts it
        wanted = [
            (action.split()[1], f"n{number} {place // 2}") for place, action in enumerate(script) if "post" in action
        ]
        assert sorted((field, value) for _, field, value, node in committed if node == f"n{number}") == sorted(wanted)
    for field in ("notes", "echoes"):
        assert list(run.state[field]) == [value for _, one, value, _ in committed if one == field]
        for node, heard in team.heard.items():
            others = [(field, value, seq) for seq, one, value, author in committed if one == field and author != node]
            got = [one for one in heard if one[0] == field]
            assert got == others[: len(got)], (node, heard, others)
    assert program.thread("t").replay() == run.state
