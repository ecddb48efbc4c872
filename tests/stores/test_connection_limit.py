"""PostgreSQL at its limit of connections: calls wait for those that this process has.

Who waits, and for how long, shows only in what order things happen: this file moves the limits, and looks at who waits.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Semaphore
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql

from dspyer import END, START, Graph
from dspyer.errors import StoreError
from dspyer.stores import Sharded, Store
from dspyer.stores.postgres import Postgres, Schemas, split_address, with_schema
from dspyer.testing import FakeClock, clock
from dspyer.testing.store_samples import append, begin, rows
from tests.runtime.traces import metering
from tests.stores.proxy import LATE, proxy

LONG = 20.0  # seconds after which a test gives up


class Server(NamedTuple):
    """A real server that allows a role few connections."""

    whole: str
    schema: str
    role: str
    refused: Semaphore
    on_refusal: list[Callable[[], object]]

    def allow(self, count: int) -> None:
        """How many connections the role may have."""
        self.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}").format(sql.Identifier(self.role), sql.Literal(count)))

    def address(self, suffix: str = "") -> str:
        return with_schema(f"{self.whole}&user={self.role}", self.schema + suffix)

    def execute(self, statement: Any) -> list[Any]:
        with psycopg.connect(self.whole, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def sessions(self, where: str = "true") -> list[int]:
        """The sessions of the role."""
        found = self.execute(f"SELECT pid FROM pg_stat_activity WHERE usename = '{self.role}' AND {where}")
        return [pid for (pid,) in found]

    def wait_for_sessions(self, count: int, where: str = "true") -> None:
        end = time.monotonic() + LONG
        while len(self.sessions(where)) != count:
            assert time.monotonic() < end

    @contextmanager
    def locked(self) -> Iterator[Any]:
        """Nothing can be written meanwhile, so that a write keeps its connection."""
        with psycopg.connect(self.whole) as other:
            other.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(self.schema, "entry")))
            yield other


@pytest.fixture
def server(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    whole, _, schema = split_address(postgres)
    assert schema is not None
    refused, connect = Semaphore(0), psycopg.connect
    on_refusal: list[Callable[[], object]] = []

    def noting(*args: Any, **options: Any) -> Any:
        try:
            return connect(*args, **options)
        except psycopg.OperationalError:
            while on_refusal:
                on_refusal.pop(0)()
            refused.release()
            raise

    monkeypatch.setattr(psycopg, "connect", noting)
    found = Server(whole, schema, f"few_{schema}", refused, on_refusal)
    names = {
        "r": sql.Identifier(found.role),
        "d": sql.Identifier(str(psycopg.conninfo.conninfo_to_dict(whole)["dbname"])),
    }
    alone = "SELECT pg_advisory_xact_lock(7); "  # two workers cannot grant, or drop, at the same time
    found.execute(sql.SQL(alone + "CREATE ROLE {r} LOGIN; GRANT CREATE ON DATABASE {d} TO {r}").format(**names))
    yield found
    found.execute(sql.SQL(alone + "DROP OWNED BY {r}; DROP ROLE {r}").format(**names))


@pytest.fixture
def store(server: Server) -> Iterator[Postgres]:
    with Postgres(server.address()) as opened:
        opened.write(begin("t", "r", 1))
        yield opened


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@contextmanager
def one_in_use(server: Server, store: Postgres, threads: ThreadPoolExecutor) -> Iterator[tuple[Future[int], Any]]:
    """A write that waits for a lock with the only connection, and what has the lock."""
    with server.locked() as lock:
        written = threads.submit(store.write, append("t", "r", 1))
        server.wait_for_sessions(1, "wait_event_type = 'Lock'")
        yield written, lock


@pytest.mark.parametrize("comes", ["back", "lost"])
def test_a_call_takes_the_next_connection_given_back(
    server: Server, store: Postgres, threads: ThreadPoolExecutor, comes: str
) -> None:
    server.allow(1)
    with Postgres(server.address("_other")) as other, one_in_use(server, store, threads) as (written, lock):
        waiting: list[Future[Any]] = [threads.submit(other.threads), threads.submit(store.rows, "r", 0, 0)]
        assert server.refused.acquire(timeout=LONG)
        assert not written.done()
        if comes == "lost":
            server.execute(f"SELECT pg_terminate_backend({server.sessions()[0]}, 10000)")
        lock.rollback()
        assert [one.result(LONG) for one in waiting] == [[], rows(1)]
        written.result(LONG)
        assert store.rows("r") == rows(2)
        assert len(server.sessions()) == 1  # of two stores


def test_a_repeated_call_takes_no_connection_from_before_the_loss(
    server: Server, store: Postgres, threads: ThreadPoolExecutor
) -> None:
    """At a failover: the server lets nobody in for a while, and meanwhile another call gives its connection back."""
    store.close()
    whole = server.address().partition("&schema=")[0]
    with proxy(whole) as between, Postgres(with_schema(between.address, server.schema)) as far:
        between.cut(LATE, b"INSERT INTO")
        written = threads.submit(far.write, append("t", "r", 1))
        assert between.answered.wait(LONG)
        assert far.rows("r") == rows(2)
        server.allow(1)
        between.lose()
        read = threads.submit(far.rows, "r")
        assert server.refused.acquire(timeout=LONG)
        while not far._connections._waiting:
            time.sleep(0.001)
        server.allow(-1)
        between.released.set()
        assert (written.result(LONG), read.result(LONG)) == (1, rows(2))


def test_a_connection_that_comes_back_while_another_is_asked_for_is_taken(
    server: Server, store: Postgres, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dspyer.stores.postgres.PATIENCE", 10 * LONG)
    server.allow(1)
    with one_in_use(server, store, threads) as (written, lock):
        server.on_refusal[:] = [lock.rollback, lambda: written.result(LONG)]
        assert threads.submit(store.rows, "r").result(LONG) == rows(2)


def test_one_idle_connection_serves_all_stores(server: Server, store: Postgres) -> None:
    server.allow(1)
    for schema in ("", "_second", "_third"):
        with Postgres(server.address(schema)) as other:
            assert other.threads() == (["t"] if not schema else [])
    assert len(server.sessions()) == 1  # closed stores leave it to the one that is open
    store.close()
    server.wait_for_sessions(0)
    with pytest.raises(StoreError, match="closed"):
        store.threads()


@pytest.mark.parametrize(("limit", "labels"), [(1, 0), (3, 4)])
def test_async_runs_wait(server: Server, limit: int, labels: int) -> None:
    """All write at once, in the second row to schemas that the first of them make; most find no connection."""

    async def runs(store: Store) -> list[Any]:
        together = asyncio.Barrier(32)

        async def node(x: int) -> dict[str, int]:
            async with together:
                return {"y": x}

        graph = Graph().add_node("node", node, writes=["y"]).add_path(START, "node", END)
        program = graph.compile(store=store)
        return await asyncio.gather(*[program.thread(f"t{i}").arun({"x": i}) for i in range(32)])

    days = Schemas(f"{server.whole}&user={server.role}", prefix=server.schema[-20:])
    with Sharded(days, lambda name: f"-{int(name[1:]) % labels}") if labels else Postgres(server.address()) as store:
        assert store.threads() == []
        server.allow(limit)
        with metering() as meter:
            found = asyncio.run(runs(store))
            waited = {name: value for name, _, value in meter.points()}["store.pool.wait"]
        assert waited > 0
        assert len(days) == labels
        assert [(run.status, run.state["y"]) for run in found] == [("completed", i) for i in range(32)]


def test_the_servers_error_is_raised_in_the_end(
    server: Server, store: Postgres, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.allow(1)
    with one_in_use(server, store, threads) as (written, lock):
        monkeypatch.setattr("dspyer.stores.postgres.PATIENCE", 0.01)
        with pytest.raises(StoreError, match=r"all 1 connections .*too many connections for role.*max_connections"):
            store.rows("r")
        lock.rollback()
        written.result(LONG)


def test_without_a_connection_the_servers_error_is_raised_at_once(server: Server, store: Postgres) -> None:
    store.close()
    server.wait_for_sessions(0)
    server.allow(1)
    program = (
        Graph()
        .add_node("n", lambda x: {"y": x}, writes=["y"])
        .add_path(START, "n", END)
        .compile(store=server.address())
    )
    with psycopg.connect(f"{server.whole}&user={server.role}"):  # as another process
        with pytest.raises(StoreError, match="too many connections for role"):
            program.thread("u").run({"x": 1})
        assert server.refused.acquire(blocking=False)
    server.wait_for_sessions(0)
    assert program.thread("u").run({"x": 1}).status == "completed"


def test_connections_that_become_free_elsewhere_are_used(
    server: Server, store: Postgres, threads: ThreadPoolExecutor
) -> None:
    server.allow(2)
    elsewhere = psycopg.connect(f"{server.whole}&user={server.role}")
    with clock() as stopped, one_in_use(server, store, threads) as (written, lock):
        waiting = threads.submit(store.rows, "r")
        stopped.wait_for("connection")
        elsewhere.close()
        server.wait_for_sessions(1)
        stopped.advance(1.0)  # the pause is over
        assert store.rows("r") == waiting.result(LONG) == rows(1)
        assert not written.done()
        lock.rollback()


@pytest.mark.parametrize("ends", ["the store is closed", "Ctrl-C"])
def test_a_call_may_stop_waiting(server: Server, store: Postgres, threads: ThreadPoolExecutor, ends: str) -> None:
    server.allow(1)
    with Postgres(server.address("_other")) as other, one_in_use(server, store, threads) as (written, lock):
        if ends == "Ctrl-C":
            here, seen = threading.get_ident(), threading.Event()

            def press(stopped: FakeClock) -> None:
                stopped.wait_for("connection", patience=LONG)
                while not seen.wait(0.01):  # one that comes just before a wait does not end it
                    signal.pthread_kill(here, signal.SIGINT)

            def interrupt(number: int, frame: object) -> None:
                if not seen.is_set():
                    seen.set()
                    raise KeyboardInterrupt

            before = signal.signal(signal.SIGINT, interrupt)
            with clock() as stopped:
                pressing = threads.submit(press, stopped)
                with pytest.raises(KeyboardInterrupt):
                    other.threads()
                pressing.result(LONG)  # none comes after this
            signal.signal(signal.SIGINT, before)
        else:
            waiting = threads.submit(other.threads)
            assert server.refused.acquire(timeout=LONG)
            other.close()
            with pytest.raises(StoreError, match="closed"):
                waiting.result(LONG)
        lock.rollback()
        written.result(LONG)
        assert store.rows("r") == rows(2)


def test_who_waits_comes_before_who_comes_later(server: Server, threads: ThreadPoolExecutor) -> None:
    order: list[str] = []

    def work(name: str) -> Callable[[Any], None]:
        return lambda connection: order.append(name)

    with Postgres(server.address(), connections=1) as store:

        def first(connection: Any) -> None:
            waiting.append(threads.submit(store._run, work("waiting")))
            end = time.monotonic() + LONG
            while not store._connections._waiting:
                assert time.monotonic() < end
            order.append("first")

        waiting: list[Future[None]] = []
        store._run(first)
        store._run(work("later"))
        waiting[0].result(LONG)
    assert order == ["first", "waiting", "later"]
