"""A wrong live field is an error of the graph, a wrong use of one an error of the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from dspyer import DELETE, END, START, Context, Graph, Replace, live, reducers
from dspyer.errors import AttemptError, GraphError, InputError, NodeOutputError
from tests.live.kit import Pad, fields, team
from tests.rows import each


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Graph(fields(a=Annotated[list[str], max, live])),
            "does not keep the posts apart: give it one of append, log, ",
        ),
        (
            lambda: Graph(fields(a=Annotated[list[str], reducers.append, live(on_conflict="last_write_wins")])),
            "is for a field of keys or messages",
        ),
        (lambda: live(on_conflict="never"), "it is one of 'merge', 'last_write_wins', 'reject'"),  # type: ignore[arg-type]
        (
            lambda: Graph(Pad).add_node("n", lambda notes: {}).add_path(START, "n", END).compile(),
            "node 'n' does not say what it writes, so it would never be known when the live field",
        ),
    ],
)
def test_a_wrong_live_field_is_an_error_of_the_graph(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        make()


def never_ends(ctx: Context) -> None:
    ctx.live("done")


async def blocks(ctx: Context) -> None:
    for _ in ctx.live("notes"):
        pass


WRONG: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda ctx: ctx.post("notes", 1), NodeOutputError, "field 'notes'"),
    (lambda ctx: ctx.post("notes", Replace([])), NodeOutputError, "whose posts are never removed"),
    (lambda ctx: {"notes": DELETE}, NodeOutputError, "whose posts are never removed"),
    (lambda ctx: ctx.post("code", {}), NodeOutputError, "not among its writes"),
    (lambda ctx: ctx.live("done"), InputError, "not among its reads"),
    (lambda ctx: ctx.live("task"), InputError, "which is not live"),
    (lambda ctx: ctx.live("notes", timeout="5"), InputError, r"ctx.live\('notes', timeout='5'\): give seconds"),
    (lambda ctx: ctx.live("notes", timeout=-1), InputError, "timeout=-1"),
    (blocks, AttemptError, "write `async for` in an async node"),
]


@each(("fn", "error", "text"), WRONG)
def test_a_wrong_use_is_an_error_of_the_node(fn: Callable[..., Any], error: type[Exception], text: str) -> None:
    graph = Graph(Pad).add_node("n", fn, reads=["notes", "task"], writes=["notes"])
    program = graph.add_path(START, "n", END).compile()
    with pytest.raises(error, match=text):
        asyncio.run(program.arun({})).raise_error()


def test_a_post_from_a_thread_that_outlives_its_node_is_an_error() -> None:
    kept: list[Context] = []

    def leaves(ctx: Context) -> None:
        kept.append(ctx)

    def late(ctx: Context) -> None:
        kept[0].post("notes", "late")

    run = team(sequence=True, leaves=(leaves, ["notes"]), late=(late, ["notes"])).compile().run({})
    assert isinstance(run.error, NodeOutputError)
