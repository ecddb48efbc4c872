"""Who had written each field at a step of a long run, found without the rest of the run: as the whole history says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Archive, Graph, reducers
from dspyer.archive.archived_thread import ArchivedThread
from dspyer.persistence.snapshots import EVERY
from dspyer.stores import Memory

FIELDS = ["a", "b", "c", "seen", "by"]
ROUNDS = EVERY // 2


class Board(BaseModel):
    n: int = 0
    a: int = 0
    b: int = 0
    c: int | None = None
    seen: Annotated[list[int], reducers.extend] = []
    by: dict[str, int] = {}
    results: list[int] = []
    old: int = 0


def writer(seed: int, node: str) -> Callable[[int], dict[str, Any]]:
    """A node that writes some fields in few rounds: also what they hold already."""

    def write(n: int) -> dict[str, Any]:
        chance = random.Random(f"{seed} {node} {n}")
        found: dict[str, Any] = {"n": n + 1} if node == "begin" else {}
        if n % 37 == 5 or chance.random() < 0.05:
            for field in chance.sample(FIELDS, chance.randint(1, 3)):
                value = chance.choice([0, 1, n])
                found[field] = [value] if field == "seen" else {node: value} if field == "by" else value
        return found

    return write


def looping(seed: int) -> Graph:
    """A map, then rounds with a fork in two of three."""
    graph = Graph(Board, name="Rounds", inputs=["old"], merge=dict.fromkeys(["a", "b", "c", "by"], "last_write_wins"))
    graph.add_map("each", lambda x: x, over="seen", item="x", into="results")
    for node in ("begin", "left", "more", "right", "meet"):
        graph.add_node(node, writer(seed, node), writes=[*FIELDS, "n"] if node == "begin" else FIELDS)
    graph.add_path(START, "each", "begin")
    graph.add_conditional_edges("begin", lambda n: ["left", "right"] if n % 3 else "meet", ["left", "right", "meet"])
    graph.add_edge("left", "more").add_edge(["more", "right"], "meet")
    return graph.add_conditional_edges("meet", lambda n: "begin" if n % ROUNDS else END, ["begin", END])


def by_whole_history(there: ArchivedThread, commit: str) -> dict[str, str]:
    reader = there._thread_reader
    reader.pages = type("NoPages", (), {"writers": lambda *_: None, "at": lambda *_: None})()
    return {field: one.id for field, one in reader.writers(commit).items()}


@pytest.mark.parametrize("seed", range(2))
def test_writers_are_those_of_the_whole_history(seed: int) -> None:
    store = Memory()
    thread = looping(seed).compile(store=store, max_steps=10 * ROUNDS).thread("t")
    for _ in range(2):
        thread.run({"old": seed}).raise_error()
    parts, whole = Archive(store).thread("t"), Archive(store).thread("t")
    for commit in random.Random(seed).sample(thread.history(), 25):
        found = parts._thread_reader.pages.writers(commit.id)
        assert found is not None  # the whole history was not read
        assert {field: one.id for field, one in found.items()} == by_whole_history(whole, commit.id), commit.id


def test_a_step_reads_few_blocks_of_a_long_run_with_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memory()
    thread = looping(-1).compile(store=store, max_steps=10 * ROUNDS).thread("t")
    thread.run({"old": 1}).raise_error()
    there = Archive(store).thread("t")
    last = thread.history()[-1]
    folded: list[int] = []
    fold = there._reader.fold

    def counted(rows: Any, *rest: Any) -> Any:
        folded.append(len(rows.rows))
        return fold(rows, *rest)

    monkeypatch.setattr(there._reader, "fold", counted)
    assert there.commit(last.id).blame["old"].node == "START"
    first, folded[:] = len(folded), []
    assert there.commit(last.parents[0]).blame["old"].node == "START"
    assert first <= 12
    assert len(folded) <= 2  # its neighbour
