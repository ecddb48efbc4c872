"""Property tests: after any sequence of operations, every store equals a model of plain dicts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspyer.errors import ConcurrentRunError
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Change, Point, RunRow, Snapshot, ThreadRow
from dspyer.stores.postgres import Postgres
from tests.stores import postgres_server
from tests.stores.kit import OTHER, OWNER, content, row
from tests.stores.model import Model

THREADS = ("t", "u")
RUNS = ("a", "b", "c", "d")  # a run continues earlier ones only

points = st.builds(Point, st.sampled_from(RUNS), st.integers(0, 3))
rows = st.builds(
    lambda first, count, value: [row(seq, value) for seq in range(first, first + count)],
    st.integers(0, 4),
    st.integers(0, 3),
    st.sampled_from(["x", "x", "x", "y"]),
)


@st.composite
def runs(draw: st.DrawFn) -> RunRow:
    place = draw(st.integers(0, len(RUNS) - 1))
    earlier = [Point(run, seq) for run in RUNS[:place] for seq in (0, 1, 2)]
    parents = draw(st.lists(st.sampled_from(earlier), max_size=2)) if earlier else []
    return RunRow(RUNS[place], draw(st.sampled_from(THREADS)), tuple(parents), {})


changes = st.builds(
    Change,
    st.sampled_from([*THREADS, *THREADS, ""]),
    st.integers(0, 3),
    st.none() | st.integers(1, 4),
    st.sampled_from([None, OWNER, OTHER]),
    st.sampled_from([None, None, 0.0, 1_000.0]),
    st.none() | points,
    st.none() | st.none() | points,
    st.none() | runs(),
    st.sampled_from(RUNS),
    rows,
    st.none() | st.builds(Snapshot, points, st.just(content({"v": 1}))),
    st.booleans(),
    st.sampled_from([0, 0, 2]),
).map(lambda change: change if change.thread else change._replace(head=None, root=None, lease=None, owner=None, runs=0))


@st.composite
def valid_changes(draw: st.DrawFn) -> Callable[[Model], Change]:
    """A change that is valid for the current data: random ones are mostly refused."""
    change = draw(changes)
    more = draw(st.integers(0, 2))

    def fit(model: Model) -> Change:
        there = model.threads.get(change.thread, {"epoch": 0})
        first = max(model.runs.get(change.rows_of, {"rows": {}})["rows"], default=-1) + 1
        known = change.rows_of in model.runs or (change.run is not None and change.run.id == change.rows_of)
        new = [row(seq, "x") for seq in range(first, first + more)] if known else []
        epoch = there["epoch"] if change.thread else 0
        last = Point(change.rows_of, first + len(new) - 1)
        snapshot = Snapshot(last, content({"v": 1})) if new and change.snapshot else None
        next_epoch = None if change.next_epoch is None else epoch + 1
        begun = change.run if change.run is not None and change.run.id not in model.runs else None
        head = last if new else None
        return change._replace(
            epoch=epoch, next_epoch=next_epoch, run=begun, rows=new, head=head, root=None, snapshot=snapshot
        )

    return fit


steps = st.lists(
    st.tuples(
        st.just("write"),
        changes.map(lambda change: lambda model: change) | valid_changes() | valid_changes() | valid_changes(),
    )
    | st.tuples(st.sampled_from(["delete", "delete_unreachable"]), st.sampled_from([*THREADS, "missing"]))
    | st.tuples(st.just("delete at"), st.tuples(st.sets(st.sampled_from(THREADS), min_size=1), st.integers(1, 4)))
    | st.tuples(st.just("collect"), st.none())
    | st.tuples(st.just("root"), st.sampled_from(THREADS))
    | st.tuples(st.sampled_from(["again", "drop"]), st.none()),
    max_size=14,
)


def apply_steps(store: Store, script: list[tuple[str, Any]]) -> None:
    model = Model()
    last: Change | None = None
    for kind, value in script:
        if kind == "write":
            last = value(model)
        elif kind == "root":
            last = _root(model, value)
        if kind in ("write", "root", "again"):
            if last is not None:
                assert _outcome(model.write, last) == _outcome(store.write, last), last
        elif kind == "drop":
            model.drop_snapshots()
            store.drop_snapshots()
        elif kind == "delete":
            model.delete(value)
            store.delete([value])
        elif kind == "delete at":
            names, epoch = value
            going = [name for name in names if model.threads.get(name, {"epoch": epoch})["epoch"] == epoch]
            there = {name for name in names if name in model.threads}
            for name in going:
                model.delete(name)
            report = store.delete(names, partial(_other_epoch, epoch))
            assert ({*report.threads}, {*report.busy}) == (there & {*going}, there - {*going})
        elif kind == "collect":
            model.delete(None)
            store.delete()
        else:
            model.delete_unreachable(value)
            store.delete_unreachable(value)
        assert _read_store(store) == _read_model(model), (kind, last if kind == "write" else value)


def _other_epoch(epoch: int, thread: ThreadRow) -> bool:
    return thread.epoch != epoch


def _root(model: Model, name: str) -> Change | None:
    """Move the root to the middle of the last run."""
    thread = model.threads.get(name)
    if thread is None or thread["head"] is None:
        return None
    root = thread["head"]._replace(seq=thread["head"].seq // 2)
    return Change(name, thread["epoch"], root=root, snapshot=Snapshot(root, content({"v": 1})))


def _outcome(work: Callable[[Change], object], change: Change) -> type[Exception] | None:
    return _raised(lambda: work(change))


def _raised(work: Callable[[], object]) -> type[Exception] | None:
    try:
        work()
    except (ConcurrentRunError, ValueError) as error:
        return ConcurrentRunError if isinstance(error, ConcurrentRunError) else ValueError
    return None


def _read_store(store: Store) -> Any:
    threads = {}
    for name in store.threads():
        found = store.thread(name)
        assert found is not None
        threads[name] = (found.head, found.root, found.owner, found.epoch, found.runs)
    there = {}
    for name in RUNS:
        run = store.run(name)
        if run is not None:
            kept = {entry.seq: (entry.kind, entry.content.data if entry.content else b"") for entry in store.rows(name)}
            shots = {shot.at.seq for seq in range(12) if (shot := store.snapshot(Point(name, seq))) is not None}
            there[name] = (run.thread, tuple(run.parents), kept, shots)
    return threads, there


def _read_model(model: Model) -> Any:
    threads = {
        name: (part["head"], part["root"], part["owner"], part["epoch"], part["runs"])
        for name, part in model.threads.items()
    }
    there = {
        name: (part["thread"], part["parents"], part["rows"], part["snapshots"]) for name, part in model.runs.items()
    }
    return threads, there


@contextmanager
def sqlite() -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder, SQLite(Path(folder) / "runs.db") as store:
        yield store


@settings(max_examples=settings().max_examples * 3)
@given(steps)
def test_memory(script: list[tuple[str, Any]]) -> None:
    apply_steps(Memory(), script)


@pytest.mark.slow("a law over files: each example is a sequence of transactions")
@settings(max_examples=settings().max_examples * 2)
@given(steps)
def test_sqlite(script: list[tuple[str, Any]]) -> None:
    with sqlite() as store:
        apply_steps(store, script)


@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=steps)
def test_postgres(postgres_address: str, script: list[tuple[str, Any]]) -> None:
    address = postgres_server.fresh(postgres_address)
    with Postgres(address) as store:
        apply_steps(store, script)
    postgres_server.drop(address)
