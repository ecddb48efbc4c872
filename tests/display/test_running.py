"""What `dspyer.progress()` counts and draws: any events in any order, any text, any size of the terminal."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dspyer.display.board import Board
from dspyer.display.running import LMUse, MapProgress, RunningRuns
from dspyer.events import (
    Asked,
    AttemptFailed,
    Commit,
    Committed,
    Doing,
    ItemFinished,
    ItemStarted,
    NodeFailed,
    NodeStarted,
    Question,
    RunEnded,
    RunStarted,
)

TEXTS = st.sampled_from(
    ["a", "b", "\x1b[31m", "[red]x[/]", "[/red]", "\u202e\x00", ":smile:", "x" * 300, "日本語" * 40, ""]
)
EXECUTIONS = st.sampled_from(["trunk:1", "0:0", "0:0[1]", "0:0[key]", "1:0[2][k]"])
BRANCHES = st.sampled_from([(), (0,), (1, 0)])


@st.composite
def events(draw: st.DrawFn) -> Any:
    node, branch, execution = draw(TEXTS), draw(BRANCHES), draw(EXECUTIONS)
    scope = tuple(draw(st.lists(EXECUTIONS, max_size=2)))
    question = Question("k", "?", None, node, branch, "/".join((*scope, execution)))
    commit = Commit(execution, 1, node, branch, 1, 1, {}, (), duration=0.5)
    item, status = draw(st.integers(0, 5)), draw(st.sampled_from(["completed", "failed", "stopped", "interrupted"]))
    made = [
        RunStarted("r", node, (), scope),
        NodeStarted(node, branch, 1, execution, scope),
        Committed(commit, 0, scope),
        NodeFailed(node, branch, execution, ValueError(node), scope),
        AttemptFailed(node, branch, execution, 1, ValueError(), 1, scope),
        Asked(question, scope),
        ItemStarted(node, branch, execution, item, 5, scope),
        ItemFinished(node, branch, execution, item, 5, status, scope),
        Doing(node, branch, execution, node, scope),
        RunEnded("r", status, scope),
        LMUse(5, draw(st.sampled_from([None, 0.1, 0.0]))),
    ]
    return draw(st.sampled_from(made))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), events()), max_size=80), st.integers(1, 40), st.integers(5, 100))
def test_any_events_fit_on_any_screen_as_plain_text(arrived: list[Any], height: int, width: int) -> None:
    runs = RunningRuns(0.0)
    for name in "abcd":
        runs.note(0.0, name, RunStarted(name, "G"))
    for at, (run, event) in enumerate(arrived):
        runs.note(float(at), run, event)
    for last in (False, True):
        file = io.StringIO()
        Console(file=file, width=width, height=height).print(Board(runs, 100.0, last=last))
        lines = file.getvalue().splitlines()
        assert last or len(lines) <= max(2, height - 2)
        assert len(lines) <= 40
        assert not [char for line in lines for char in line if not char.isprintable()]


def test_the_time_left_is_that_of_the_items_that_are_left() -> None:
    items = MapProgress(10, begun=100.0, started=4, last=5)  # two of the first six were done by an earlier attempt
    assert (items.done, items.running, items.remaining(110.0)) == (2, 4, None)
    items.ended.update(completed=1, failed=1)
    assert (items.done, items.running, items.remaining(110.0)) == (4, 2, 30.0)
    items.ended["stopped"] += 2
    assert (items.done, items.running) == (4, 0)


def test_an_attempt_of_a_router_is_none_of_an_item_or_of_the_node() -> None:
    runs = RunningRuns(0.0)
    error = ValueError()
    runs.note(0.0, "r", RunStarted("r", "G"))
    for event in (
        NodeStarted("read", (), 1, "trunk:1"),
        ItemStarted("read", (), "trunk:1", 0, 2),
        AttemptFailed("read", (), "trunk:1[0]", 1, error, 1),
        AttemptFailed("read", (), "trunk:1[route]", 1, error, 1),
    ):
        runs.note(0.0, "r", event)
    node = runs.runs["r"].graph.running["trunk:1"]
    assert node.items is not None
    assert (node.attempt, node.items.retries, runs.runs["r"].retries) == (1, 1, 2)
