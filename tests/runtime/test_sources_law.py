"""Every value says itself who wrote it: on random graphs, `run.sources` names exactly the commits in what was read.

Nodes write their own execution id, so that the ids in a value are an oracle that knows nothing of logs and joins.
"""

from __future__ import annotations

import asyncio
import random
import re
from typing import Annotated, Any

import anyio.lowlevel
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import START, Context, Graph, Replace, Run, Send, reducers, view
from tests.runtime.test_drivers import unreached
from tests.scheduler.test_schedule import Plan, plans

ID = re.compile(r"(?:trunk|\d+(?:\.\d+)*):\d+")
BEGIN = "trunk:0"


def add_text(old: str, new: str) -> str:
    return old + new


class Board(BaseModel):
    by: str = ""
    plain: str = ""
    card: dict[str, Any] = {}
    rows: Annotated[list[str], reducers.extend] = []
    pages: Annotated[dict[str, str], reducers.update] = {}
    names: Annotated[set[str], reducers.union] = set()
    texts: Annotated[str, add_text] = ""


INPUTS: dict[str, Any] = {
    "plain": BEGIN,
    "card": {"x": BEGIN, "deep": {"y": BEGIN}},
    "rows": [BEGIN],
    "pages": {"x": BEGIN},
    "names": {BEGIN},
    "texts": BEGIN + " ",
}

Seen = dict[str, dict[str, set[str]]]
"""By execution and field, the ids in what was read."""


def ids(value: Any) -> set[str]:
    return set(ID.findall(repr(value)))


def update(rng: random.Random, me: str, resets: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "plain": me,
        "card": rng.choice(
            [{rng.choice("xyz"): me}, {"deep": {rng.choice("xyz"): me}}, {"x": None, "z": me}, Replace({"w": me})]
        ),
        "rows": [f"{me} a", f"{me} b"],
        "pages": {rng.choice("xyz"): me},
        "names": {me},
        "texts": me + " ",
    }
    if resets and rng.random() < 0.3:
        found["rows"], found["pages"] = Replace([f"{me} r"]), Replace({"r": me})
        found["texts"] = Replace(me + " ")
    return {field: value for field, value in found.items() if rng.random() < 0.5}


def note(where: Seen, ctx: Context, **fields: Any) -> None:
    found = where.setdefault(ctx.execution, {})
    for field, value in fields.items():
        found[field] = found.get(field, set()) | ids(value)


async def pause(me: str, seed: int) -> random.Random:
    rng = random.Random(f"{seed} {me}")
    for _ in range(rng.randrange(4)):
        await anyio.lowlevel.checkpoint()
    return rng


def add_node(graph: Graph, name: str, seed: int, resets: bool, seen: Seen) -> None:
    async def whole(
        ctx: Context,
        plain: str,
        card: dict[str, Any],
        rows: list[str],
        pages: dict[str, str],
        names: set[str],
        texts: str,
        by: str,
    ) -> dict[str, Any]:
        note(seen, ctx, plain=plain, card=card, rows=rows, pages=pages, names=names, texts=texts, by=by)
        return update(await pause(ctx.execution, seed), ctx.execution, resets)

    async def viewing(
        ctx: Context, last: list[str], others: dict[str, str], new: list[str], plain: str, by: str
    ) -> Any:
        note(seen, ctx, rows=last, pages=others, names=new, plain=plain, by=by)
        return update(await pause(ctx.execution, seed), ctx.execution, resets)

    if (ord(name) + seed) % 3:
        graph.add_node(name, whole)
        return
    shown = {"last": view("rows").last(2), "others": view("pages").others(), "new": view("names").new()}
    graph.add_node(name, viewing, reads={**shown, "plain": "plain", "by": "by"})


def router(ways: list[str], routed: Seen) -> Any:
    def decide(ctx: Context, plain: str, rows: list[str]) -> list[str | Send]:
        note(routed, ctx, plain=plain, rows=rows)
        chosen = ways[min(ctx.visit, len(ways)) - 1].split()
        sent = {"by": f"sent by {ctx.execution}"}
        return [Send(way.strip("()"), sent) if way.startswith("(") else way for way in chosen]

    return decide


def graph_of(plan: Plan, seed: int, resets: bool, seen: Seen, routed: Seen) -> Graph:
    graph = Graph(Board, merge="last_write_wins")
    for name in plan.nodes:
        add_node(graph, name, seed, resets, seen)
    for source, targets in plan.edges.items():
        graph.add_edge(source, targets.split())
    for source, targets in plan.conditional.items():
        graph.add_conditional_edges(source, router(plan.routes[source], routed), targets.split())
    for name in unreached(plan):
        graph.add_edge(START, name)
    return graph


def is_explained(run: Run, field: str, found: set[str], expected: set[str]) -> bool:
    """Whether the commits are those in the value; a join that made the value of several has read theirs."""
    joins = {one for one in found if run.commits[run._index_of[one]].node.startswith("join:")}
    if not joins:
        return found == expected
    seen = set(joins)
    while joins:
        behind = {one for join in joins for one in run.sources(join).get(field, ())}
        found = (found - joins) | (behind - seen)
        joins = {one for one in found if run.commits[run._index_of[one]].node.startswith("join:")}
        seen |= joins
    return found >= expected


def check(run: Run, seen: Seen, routed: Seen) -> None:
    for commit in run.commits:
        found = run.sources(commit.id)
        by_node, by_routers = seen.get(commit.id, {}), routed.get(commit.id, {})
        for field in {*by_node, *by_routers}:
            expected = by_node.get(field, set()) | by_routers.get(field, set())
            # An empty value holds no id: who made it is not checked, also if the node or its routers read another one.
            if expected and all(ids.get(field, expected) for ids in (by_node, by_routers)):
                assert is_explained(run, field, set(found.get(field, ())), expected), (commit.id, field)
        assert set(found) <= set(Board.model_fields)


DECIDED = Plan(
    nodes=["A", "B", "C", "D", "E"],
    edges={"START": "B D", "C": "E"},
    conditional={"A": "C B", "B": "D", "D": "B C END E", "E": "END A D"},
    routes={"A": ["(C)", "B"], "B": ["(D)", "D"], "D": ["B C", "(B)", "E"], "E": ["END (D)", "A", "END"]},
    writes={"A": 4, "B": 5, "C": 7, "D": 7, "E": 5},
    merge="last_write_wins",
)
"""A join keeps a mapping that several commits have written, and a later commit writes one of its keys."""


@settings(phases=[Phase.explicit, Phase.generate])
@example(DECIDED, 304, False)
@given(plans(), st.integers(0, 2**32), st.booleans())
def test_the_sources_of_every_value(plan: Plan, seed: int, resets: bool) -> None:
    seen: Seen = {}
    routed: Seen = {}
    program = graph_of(plan, seed, resets, seen, routed).compile(max_steps=40)
    run = asyncio.run(program.arun(INPUTS))
    assume(run.status == "completed")
    check(run, seen, routed)
