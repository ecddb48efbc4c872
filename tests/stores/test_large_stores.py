"""The cost of an operation on one thread does not grow with the other threads of a store: counted, not timed."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest
from psycopg import sql

from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Change, Point, Row, RunQuery, Snapshot
from dspyer.stores.postgres import Postgres
from tests.stores.bodies import body, ended
from tests.stores.kit import OWNER, append, begin, content, run
from tests.stores.postgres_server import split_schema

SMALL, LARGE = 1_000, 20_000
BLOB = "a text that is stored apart " * 1_000
SHARED = "a description of the graph " * 1_000
"""Each run refers to it."""

IN_MEMORY = 10_000
"""Threads of the larger store in memory, which is filled thread by thread."""

Operation = Callable[[Store], Any]
OPERATIONS: Mapping[str, Operation] = {
    "delete": lambda store: store.delete(["t"], lambda thread: thread.epoch != 1).threads == ("t",),
    "delete a copy": lambda store: store.delete(["copy"]).threads == ("copy",),
    "delete several": lambda store: store.delete(["t", "copy", "other 500"]).threads == ("copy", "other 500", "t"),
    "delete what a rerun has left": lambda store: store.delete_unreachable("rerun").rows == 1,
    "begin a thread": lambda store: store.write(Change("new", run=run("new-1", "new"))),
    "begin a run": lambda store: store.write(
        Change("t", 1, 2, owner=OWNER, lease=9.0, run=run("t-3", "t", Point("t-2", 3)))
    ),
    "append a row": lambda store: store.write(append("t", "t-2", 4)),
    "append a row with a blob": lambda store: store.write(append("t", "t-2", 4, BLOB)),
    "replace a snapshot": lambda store: store.write(Change("t", 1, snapshot=Snapshot(Point("t-2", 3), content(1)))),
    "read a thread": lambda store: store.thread("t"),
    "read its runs": lambda store: [store.rows(made.id) for made in store.runs("t") if store.run(made.id)],
    "read its state": lambda store: store.snapshot(Point("t-2", 3)),
}
READS = ("read a thread", "read its runs", "read its state", "find a run")
WRITES = ("append a row with a blob", "begin a thread", "delete what a rerun has left", "delete a copy", "delete")
LISTS: Mapping[str, Operation] = {
    "find a run": lambda store: store.list_runs(RunQuery(run="t-1"))[0].thread.name == "t",
    "a page of names": lambda store: store.threads("other 5", 10)[-1].startswith("other 50"),
    "the oldest threads": lambda store: (
        len(store.list_runs(RunQuery(since=0.5, until=50.5, last=True, limit=100))) == 50
    ),
    "the newest threads": lambda store: len(store.list_runs(RunQuery(last=True, limit=10))) == 10,
}


def begin_threads(store: Store) -> None:
    """A thread with two runs, a copy that shares the first one, and a thread with a run that it does not reach."""
    begin(store, "t", "t-1", 3)
    store.write(append("t", "t-1", 3, [BLOB, SHARED]))
    begin(store, "t", "t-2", 4, Point("t-1", 3), epoch=1)
    store.write(Change("t", 1, snapshot=Snapshot(Point("t-2", 3), content(BLOB + "as a state"))))
    store.write(Change("copy", head=Point("t-1", 1)))
    begin(store, "rerun", "r-1", 1)
    begin(store, "rerun", "r-2", 1, Point("r-1", 0), epoch=1)
    store.write(Change("rerun", 1, head=Point("r-1", 0)))
    store.write(Change("old"))
    store.write(Change("old", 1, 5))
    store.delete(["old"])  # no epoch of a deleted thread is larger


def check(small: Mapping[str, int], large: Mapping[str, int]) -> None:
    """A deeper index may cost a few steps more, but nothing is read that does not concern the thread."""
    assert small.keys() == large.keys()
    assert {name: (count, large[name]) for name, count in small.items() if large[name] > 2 * count} == {}


# --- SQLite: steps of its virtual machine

END = Row(0, "end", {"status": "completed"})
FILL_SQLITE = [
    (
        "INSERT INTO run (id, thread, parents, header, started, ended) "
        f"SELECT 'o' || n, 'other ' || n, '[]', '{{}}', n, x'{ended(END).hex()}' FROM numbers"
    ),
    (
        "INSERT INTO thread (name, fencing, runs, head_run, head_seq, lease_until) "
        "SELECT 'other ' || n, 1, 1, 'o' || n, 0, 0 FROM numbers"
    ),
    "INSERT INTO link SELECT 'pruned ' || n, 'o' || n FROM numbers",
    f"INSERT INTO entry SELECT 'o' || n, 0, 'end', x'{body(END.header).hex()}' FROM numbers",
    f"INSERT INTO ref SELECT x'{content(SHARED).refs[0]}', 'o' || n, 0 FROM numbers",
]


def fill_sqlite(first: int, last: int, connection: sqlite3.Connection) -> None:
    numbers = f"WITH RECURSIVE numbers (n) AS (VALUES ({first}) UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
    for statement in FILL_SQLITE:
        insert, _, select = statement.partition("SELECT")
        connection.execute(f"{insert} {numbers} SELECT {select}")


class Counting(sqlite3.Connection):
    """Counts the steps of SQLite, and undoes what is to be committed."""

    steps = 0
    active = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.set_progress_handler(self.step, 1)

    @classmethod
    def step(cls) -> int:
        cls.steps += cls.active
        return 0

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return super().execute("ROLLBACK" if self.active and statement == "COMMIT" else statement, *values)

    @classmethod
    def count(cls, store: Store) -> dict[str, int]:
        found, cls.active = {}, True
        for name, operation in {**OPERATIONS, **LISTS}.items():
            cls.steps = 0
            assert operation(store), name
            found[name] = cls.steps
        cls.active = False
        return found


def test_in_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.db"
    with sqlite3_connections(monkeypatch), SQLite(path) as store:
        begin_threads(store)
        with filling(path) as connection:
            fill_sqlite(1, SMALL, connection)
        small = Counting.count(store)
        with filling(path) as connection:
            fill_sqlite(SMALL + 1, LARGE, connection)
        check(small, Counting.count(store))
        with filling(path) as connection:
            connection.execute("ANALYZE")
        check(small, Counting.count(store))


def test_snapshots_are_dropped_in_linear_time_in_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those at the roots of threads stay, and the threads are not searched for each snapshot."""
    counts = []
    for count in (50, 400):
        with sqlite3_connections(monkeypatch), SQLite(tmp_path / f"{count}.db") as store:
            for name in map(str, range(count)):
                begin(store, name, name, 2)
                store.write(Change(name, 1, root=Point(name, 1), snapshot=Snapshot(Point(name, 1), content(BLOB))))
                store.write(Change(name, 1, snapshot=Snapshot(Point(name, 0), content(BLOB))))
            Counting.steps, Counting.active = 0, True
            store.drop_snapshots()
            Counting.active = False
            counts.append(Counting.steps)
            store.drop_snapshots()
            assert [store.snapshot(Point("7", seq)) is None for seq in (0, 1)] == [True, False]
            assert store.blobs(content(BLOB).refs)
    assert counts[1] < 2 * 8 * counts[0]


@contextmanager
def sqlite3_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connections that are made in the block count."""
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Counting))
        yield


@contextmanager
def filling(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.Connection(path)
    with connection:
        yield connection
    connection.close()


# --- PostgreSQL: rows that are read and written, whatever the statistics of the tables say

FILL_POSTGRES = [
    (
        "INSERT INTO {s}.run (id, thread, parents, header, started, ended) "
        "SELECT 'o' || n, ('other ' || n)::bytea, '[]', '{{}}', n, %(ended)s FROM generate_series({a}, {b}) AS n"
    ),
    (
        "INSERT INTO {s}.thread (name, fencing, runs, head_run, head_seq, lease_until) "
        "SELECT ('other ' || n)::bytea, 1, 1, 'o' || n, 0, now() FROM generate_series({a}, {b}) AS n"
    ),
    "INSERT INTO {s}.link SELECT 'pruned ' || n, 'o' || n FROM generate_series({a}, {b}) AS n",
    "INSERT INTO {s}.entry SELECT 'o' || n, 0, 'end', %(body)s FROM generate_series({a}, {b}) AS n",
    "INSERT INTO {s}.ref SELECT %(shared)s, 'o' || n, 0 FROM generate_series({a}, {b}) AS n",
]
TOUCHED = """
    SELECT (SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd + n_tup_del)
        FROM pg_stat_user_tables WHERE schemaname = %s)::int
        + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = %s)::int"""


class Tables:
    """The tables of a store, with its connection, which counts the rows that are touched."""

    def __init__(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        server, self.schema = split_schema(address)
        self.connect = partial(psycopg.connect, server, autocommit=True)
        made: list[Any] = []
        connect = psycopg.connect

        def noted(*args: Any, **options: Any) -> Any:
            made.append(connect(*args, **options))
            return made[-1]

        self.store = Postgres(address)
        with monkeypatch.context() as patched:
            patched.setattr(psycopg, "connect", noted)
            begin_threads(self.store)
        (self.connection,) = made  # one thread needs one

    def execute(self, statement: str, connection: Any = None, **values: Any) -> Any:
        query = sql.SQL(statement).format(s=sql.Identifier(self.schema), a=values.pop("a", 0), b=values.pop("b", 0))
        return (connection or self.connection).execute(query, values or None)

    def fill(self, first: int, last: int) -> None:
        shared, end = content(SHARED), Row(0, "end", {"status": "completed"})
        values = {
            "ended": ended(end),
            "body": body(end.header, shared.data, shared.refs),
            "shared": bytes.fromhex(shared.refs[0]),
        }
        for statement in FILL_POSTGRES:
            self.execute(statement, a=first, b=last, **values)

    def touched(self) -> int:
        self.connection.execute("SELECT pg_stat_force_next_flush()")
        found = self.connection.execute(TOUCHED, [self.schema] * 2).fetchone()
        return found[0] if found else 0

    def counts(self) -> dict[str, int]:
        found = {}
        for name, operation in {**OPERATIONS, **LISTS}.items():
            before = self.touched()
            undone = self.connection.transaction(force_rollback=True) if name in OPERATIONS else nullcontext()
            with undone:
                assert operation(self.store), name
            found[name] = self.touched() - before
        return found


@pytest.fixture
def tables(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    made = Tables(postgres, monkeypatch)
    with made.store:
        yield made


def test_in_postgres(tables: Tables) -> None:
    tables.fill(1, SMALL)
    tables.connection.execute("ANALYZE")
    small = tables.counts()
    tables.fill(SMALL + 1, LARGE)
    check(small, tables.counts())  # with the statistics of the small store
    for table in ("thread", "run", "link", "entry", "ref"):
        tables.execute(f"ANALYZE {{s}}.{table}")
    check(small, tables.counts())


def test_a_deletion_locks_the_rows_of_its_threads_alone(tables: Tables) -> None:
    """Neither a table, nor another thread or run, nor the row of the largest epoch, for which all others would wait."""
    tables.fill(1, SMALL)
    with tables.connection.transaction(force_rollback=True), tables.connect() as other:
        assert tables.store.delete(["t"]).rows

        def locked(table: str, column: str) -> set[Any]:
            name = f"SELECT {column} FROM {{s}}.{table}"
            free = tables.execute(f"{name} FOR UPDATE SKIP LOCKED", other).fetchall()
            return {key for (key,) in tables.execute(name, other).fetchall()} - {key for (key,) in free}

        assert locked("thread", "name") == {b"t", b"copy"}
        assert locked("run", "id") == {"t-1", "t-2"}
        assert locked("fence", "largest") == set()
        strong = (
            "SELECT mode FROM pg_locks JOIN pg_class ON pg_class.oid = relation WHERE relnamespace = %s::regnamespace"
        )
        modes = {mode for (mode,) in other.execute(strong, [tables.schema]).fetchall()}
        assert modes <= {"AccessShareLock", "RowShareLock", "RowExclusiveLock"}


# --- in memory: lines of Python


def test_in_memory() -> None:
    small, large = (count_lines(begin_many(count)) for count in (100, IN_MEMORY))
    check(small, large)


def begin_many(count: int) -> Memory:
    store = Memory()
    for number in range(1, count + 1):
        begin(store, f"other {number}", f"o{number}", 1)
    begin_threads(store)
    return store


def count_lines(store: Memory) -> dict[str, int]:
    """The lines of the package that each operation executes, one after the other: each changes the store."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if "dspyer" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    found = {}
    for name in (*READS, *WRITES):
        lines = 0
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            assert {**OPERATIONS, **LISTS}[name](store), name
        finally:
            sys.settrace(before)
        found[name] = lines
    return found
