"""Snapshots are a cache: a thread has the same state with and without them. Their chunks are stored once."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, Graph, ImmutableState, reducers
from dspyer.persistence.snapshots import (
    AT_END,
    CHUNK,
    EVERY,
    SnapshotContent,
    SnapshotEncoder,
    SnapshotState,
    latest_snapshot,
    state_digest,
)
from dspyer.runtime.program import CompiledGraph
from dspyer.stores import Store, open_store
from dspyer.stores.base import Point, Row
from dspyer.stores.content import ReadBudget
from dspyer.values import json as encoding


class Chat(BaseModel):
    """Fields that grow, change and stay."""

    messages: Annotated[list[dict[str, str]], reducers.extend] = []
    n: Annotated[int, reducers.increment] = 0
    left: int = 0
    right: int = 0
    more: int = 0
    note: str = ""


CALLS: list[int] = []


def step(n: int, more: int) -> dict[str, Any]:
    """One step of the loop."""
    CALLS.append(n)
    if more == 13 and n % 3 == 1:
        raise RuntimeError("unlucky")
    return {"messages": [{"role": "user", "content": f"message {n}"}], "n": 1}


def loop(store: Store | None) -> CompiledGraph:
    """As many rounds as `more` says; each forks in two every other time."""
    graph = Graph(Chat).add_node(step, writes=["messages", "n"])
    graph.add_node("l", lambda n: {"left": n, "messages": [{"role": "l", "content": str(n)}]})
    graph.add_node("r", lambda n: {"right": n, "messages": [{"role": "r", "content": str(n)}]})
    graph.add_node("join", lambda left, right: {"note": f"{left}{right}"}, writes=["note"])
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda n: ["l", "r"] if n % 2 else "join", ["l", "r", "join"])
    graph.add_edge(["l", "r"], "join")
    graph.add_conditional_edges("join", lambda n, more: "step" if n % max(more, 1) else END, ["step", END])
    return graph.compile(store=store, max_steps=100_000)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes snapshots every few rows, with small pieces."""
    monkeypatch.setattr("dspyer.persistence.journal.EVERY", 5)
    monkeypatch.setattr("dspyer.persistence.journal.AT_END", 3)
    monkeypatch.setattr("dspyer.persistence.snapshots.CHUNK", 4)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with open_store(":memory:" if request.param == "memory" else tmp_path / "runs.db") as made:
        yield made


def seen(program: CompiledGraph) -> tuple[Any, ...]:
    """What a new handle says of the thread."""
    t = program.thread("t")
    return t.state.to_dict(), t.status


@pytest.mark.usefixtures("often")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(turns=st.lists(st.tuples(st.sampled_from([1, 2, 5, 13]), st.booleans()), min_size=1, max_size=6))
def test_deleting_all_snapshots_changes_nothing(turns: list[tuple[int, bool]], tmp_path_factory: Any) -> None:
    paths = [tmp_path_factory.mktemp("runs") / "runs.db" for _ in range(2)]
    with open_store(paths[0]) as kept, open_store(paths[1]) as dropped:
        pair = [(each, loop(each)) for each in (kept, dropped)]
        for more, resumes in turns:
            found = []
            for one, program in pair:
                if one is dropped:
                    one.drop_snapshots()
                CALLS.clear()
                t = program.thread("t")
                run = t.resume() if resumes and t.status == "failed" else t.run({"more": more}, abandon=True)
                commits = [(c.id, c.version, c.node, c.route) for c in run.commits]
                found.append((run.status, CALLS.copy(), run.state.to_dict(), commits, seen(program)))
            assert found[0] == found[1]


@pytest.mark.usefixtures("often")
def test_few_rows_follow_a_snapshot(store: Store) -> None:
    program = loop(store)
    t = program.thread("t")
    for _ in range(3):
        t.run({"more": 20})
    row = store.thread("t")
    assert row is not None
    assert row.head is not None
    found = store.snapshot(row.head)
    assert found is not None
    assert found.at == row.head
    asked: list[int] = []
    rows = store.rows

    def counted(run: str, first: int = 0, last: int | None = None) -> list[Row]:
        asked.append(first)
        return rows(run, first, last)

    store.rows = counted  # type: ignore[method-assign]
    assert program.thread("t").state["n"] == 60
    assert asked == [row.head.seq]
    for at in range(row.head.seq):
        before = store.snapshot(Point(row.head.run, at))
        assert at < 12 or (before is not None and at - before.at.seq <= 10), at


@pytest.mark.parametrize("damage", ["missing blob", "no zlib", "no JSON", "another version", "no state"])
@pytest.mark.usefixtures("often")
def test_an_unreadable_snapshot_is_skipped(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_store(tmp_path / "runs.db") as store:
        program = loop(store)
        program.thread("t").run({"more": 9})
        wanted = seen(program)
        sql: Any = store
        data = {
            "no zlib": b"?",
            "no JSON": zlib.compress(b"?"),
            "another version": zlib.compress(b'[99,0,{"n":1}]'),
            "no state": zlib.compress(b"[1,0,5]"),
        }
        statement = (
            "DELETE FROM blob"
            if damage == "missing blob"
            else f"UPDATE snapshot SET content = x'{data[damage].hex()}', refs = NULL"
        )
        sql._connections.write(lambda connection: connection.execute(statement))
        assert seen(program) == wanted
        assert "is skipped" in caplog.text
        program.thread("t").run({"more": 9})
        assert program.thread("t").state["n"] == 18


def stored(
    state: ImmutableState, forms: SnapshotEncoder, blobs: dict[str, bytes]
) -> tuple[ImmutableState, SnapshotEncoder]:
    """A state there and back."""
    content = SnapshotContent(SnapshotState(state, 0), forms)
    blobs.update(content.blobs)
    assert set(content.refs) <= set(blobs)
    again = SnapshotEncoder()
    _, _, form = json.loads(zlib.decompress(content.data))
    found = {name: blobs[name] for name in content.refs}
    return again.load(form, content.refs, lambda _: found, encoding.decode, ReadBudget()), again


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=9)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$type", "é"]), inner, max_size=9)
        | st.tuples(inner, inner)
    ),
    max_leaves=30,
)


@pytest.mark.usefixtures("often")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states=st.lists(st.dictionaries(st.text(max_size=2), VALUES, max_size=8), min_size=1, max_size=4))
def test_any_state_is_restored_with_the_same_digest(states: list[dict[str, Any]]) -> None:
    forms, blobs = SnapshotEncoder(), dict[str, bytes]()
    state = ImmutableState()
    for patch in states:
        state = ImmutableState({**dict(state.raw_items()), **patch})
        back, again = stored(state, forms, blobs)
        assert encoding.to_json(back) == encoding.to_json(state)
        assert forms.digest(state) == again.digest(back) == state_digest(back) == state_digest(state)


GROWING: dict[str, tuple[Callable[[int], Any], int]] = {
    "a list that grows": (lambda n: [{"text": f"item {i}"} for i in range(3 * CHUNK + n)], 0),
    "a mapping that grows": (lambda n: {f"k{i}": [i] for i in range(3 * CHUNK + n)}, 0),
    "an item of the middle": (lambda n: [n if i == CHUNK else i for i in range(4 * CHUNK)], 1),
    "a long text": (lambda n: "x" * 100_000, 0),
    "long bytes": (lambda n: b"x" * 100_000, 0),
    "a long text in a list": (lambda n: [n, "x" * 100_000], 0),
}


@pytest.mark.parametrize("name", GROWING)
def test_chunks_are_stored_once(name: str) -> None:
    value, fresh = GROWING[name]
    state = ImmutableState({"field": value(0), "deep": {"down": value(0)}})
    forms, blobs = SnapshotEncoder(), dict[str, bytes]()
    assert SnapshotContent(SnapshotState(state, 0), forms).blobs
    changed = state.set("field", value(1))
    assert len(SnapshotContent(SnapshotState(changed, 1), forms).blobs) == fresh
    back, again = stored(changed, SnapshotEncoder(), blobs)
    assert SnapshotContent(SnapshotState(back, 1), again).blobs == {}


def test_in_memory_nothing_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspyer.persistence.journal.AT_END", 1)
    with open_store(":memory:") as store:
        program = loop(store)
        t = program.thread("t")
        state = t.run({"more": 2}).state
        row = store.thread("t")
        assert row is not None
        assert row.head is not None
        found = latest_snapshot(store, row.head, encoding.decode)
        assert found is not None
        assert found[1].state["messages"] is state["messages"]


def test_the_limits_keep_the_promise() -> None:
    assert AT_END <= EVERY <= 500
