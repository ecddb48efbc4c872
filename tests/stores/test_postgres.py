"""The store in PostgreSQL: what only it does. The promises of all stores are in the conformance suite.

Its connections, and what it leaves on a server, show only when they are missing: this file looks at both.
"""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from threading import Barrier
from typing import Any

import psycopg
import pytest
from psycopg import sql

from dspyer import END, START, Graph
from dspyer.errors import ConcurrentRunError, StateError, StoreError
from dspyer.stores import open_store
from dspyer.stores.base import Change, Point, Row, Snapshot
from dspyer.stores.content import Content
from dspyer.stores.postgres import Postgres, Schemas, split_address
from dspyer.testing.store_samples import BLOB, OTHER_BLOB, append, begin, content, owner, row, rows
from tests.rows import each
from tests.stores.proxy import AFTER, BEFORE, Proxy


@pytest.fixture
def far(postgres: str, between: Proxy) -> Iterator[Postgres]:
    """The same data, through the proxy."""
    with Postgres(between.address, schema=split_address(postgres)[2]) as opened:
        opened.threads()
        yield opened


ADDRESSES = [
    ("postgresql://ada:secret@db/runs", "postgresql://ada@db/runs"),
    ("postgres://ada:se%40cret@[::1]:5433/runs?sslmode=require", "postgres://ada@[::1]:5433/runs?sslmode=require"),
    ("postgresql://db/runs?password=secret&user=ada", "postgresql://db/runs?user=ada"),
    ("postgresql://ada:secret@db1:1,db2:2/runs?schema=team", "postgresql://ada@db1:1,db2:2/runs?schema=team"),
    ("postgresql://db/runs?user=ada@desk&password=se@cret", "postgresql://db/runs?user=ada@desk"),
    (
        "postgresql:///runs?host=%2Ftmp%2Fx&sslpassword=secret&schema=a%20b",
        "postgresql:///runs?host=%2Ftmp%2Fx&schema=a%20b",
    ),
]


def test_no_password_in_address_repr_and_pickle() -> None:
    for given, shown in ADDRESSES:
        store = Postgres(given)
        assert store.address == shown
        assert "cret" not in repr(store), shown
        assert b"cret" not in pickle.dumps(store), shown
        again = pickle.loads(pickle.dumps(store))
        assert again.address == shown
        assert Postgres(shown).address == shown


def test_addresses_that_are_none_are_errors() -> None:
    with pytest.raises(ValueError, match="starts with postgresql://"):
        Postgres("mysql://db/runs")
    for password in ("cret/x", "x/cret", "cret#x", "cret?x", "cret%x", "cret@x"):
        for address in (f"postgresql://ada:{password}@db/runs", f"postgresql://db/runs?password={password}#"):
            for opened in (Postgres, open_store, partial(Schemas, prefix="x")):
                with pytest.raises(ValueError, match="write % as %25") as refused:
                    opened(address)
                assert "cret" not in str(refused.value)


def test_copies_share_a_store_and_open_store_finds_it(postgres: str, store: Postgres) -> None:
    assert copy.deepcopy(store) is store
    found = open_store(postgres)
    assert isinstance(found, Postgres)
    assert found.address == store.address


def test_an_unreachable_server_is_an_error() -> None:
    with pytest.raises(psycopg.OperationalError):
        Postgres("postgresql://nobody@127.0.0.1:1/none").threads()


def test_schemas_are_independent(postgres_address: str, store: Postgres, postgres: str) -> None:
    store.write(begin("t", "r", 1))
    name = f'{split_address(postgres)[2]} "other"'
    with Postgres(postgres_address, schema=name) as other:
        assert other.threads() == []
        other.write(begin("u", "r", 2))
        assert store.threads() == ["t"]
        with Postgres(other.address) as again:
            assert again.rows("r") == rows(2)
        _execute(postgres, sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


def test_names_too_long_for_an_index_are_errors(store: Postgres) -> None:
    store.write(begin("é" * 1_250, "r", 1))
    with pytest.raises(ValueError, match="more than 2500 bytes"):
        store.write(begin("é" * 1_251, "s", 1))
    assert store.threads() == ["é" * 1_250]


# Each change, and a text in the message at which the connection is cut.
WRITES: dict[str, tuple[Change, bytes]] = {
    "an append": (append("t", "r", 2, 2), b"INSERT INTO"),
    "an append at the end": (append("t", "r", 2, 2)._replace(lease=0.0, flush=True), b"INSERT INTO"),
    "a lease": (Change("t", 1, owner=owner("r"), lease=90.0), b"clock_timestamp"),
    "rows without a thread": (Change(rows_of="r", rows=rows(2, 2)), b"INSERT INTO"),
    "a large value": (append("t", "r", 2, value=BLOB), b"COMMIT\0"),
    "a large value, half of it": (append("t", "r", 2, value=BLOB), b".entry VALUES"),
    "a claim": (Change("t", 1, 2, owner("second"), 30.0), b"COMMIT\0"),
    "a new run": (begin("t", "s", 2, Point("r", 1), epoch=1), b"COMMIT\0"),
    "a new thread": (begin("u", "s", 2), b"COMMIT\0"),
    "a snapshot": (Change("t", 1, snapshot=Snapshot(Point("r", 1), content({"v": BLOB}))), b"COMMIT\0"),
}


@each("when", [BEFORE, AFTER])
def test_a_write_is_repeated_after_a_lost_connection(store: Postgres, far: Postgres, between: Proxy, when: str) -> None:
    for name, (change, text) in WRITES.items():
        far.write(begin("t", "r", 2))
        connections = between.connections
        between.cut(when, text)
        far.write(change)
        assert not between.armed, name
        assert between.connections == connections + 1, name
        thread = store.thread(change.thread) if change.thread else None
        if change.rows:
            assert store.rows(change.rows_of, change.rows[0].seq) == list(change.rows), name
        if thread is not None:
            assert thread.epoch == (change.next_epoch or change.epoch or 1), name
            assert thread.head == (change.head or Point("r", 1)), name
            assert thread.runs == len(store.runs(change.thread)), name
        if change.snapshot is not None:
            assert store.snapshot(change.snapshot.at) == change.snapshot, name
        store.delete(["t", "u"])  # epochs begin anew, as on another server
        _execute(store.address, sql.SQL("UPDATE {}.fence SET largest = 0").format(_schema(store.address)))


def test_a_repeated_write_is_refused_if_another_was_faster(store: Postgres, far: Postgres, between: Proxy) -> None:
    far.write(begin("t", "r", 2))
    store.write(append("t", "r", 2, value="other"))
    between.cut(BEFORE, b"INSERT INTO")
    with pytest.raises(ConcurrentRunError):
        far.write(append("t", "r", 2))
    assert store.rows("r", 2) == [row(2, "other")]


def test_a_write_is_repeated_only_once(store: Postgres, far: Postgres, between: Proxy) -> None:
    far.write(begin("t", "r", 1))
    between.cut(BEFORE, b"INSERT INTO", times=2)
    with pytest.raises(psycopg.OperationalError):
        far.write(append("t", "r", 1))
    assert not between.armed
    assert store.rows("r") == rows(1)
    far.write(append("t", "r", 1))
    assert store.rows("r") == rows(2)


def test_reads_and_deletions_are_repeated_after_a_lost_connection(far: Postgres, between: Proxy) -> None:
    far.write(begin("t", "r", 2))
    days, label = Schemas(between.address, prefix="test_"), far._schema.removeprefix("test_")
    before = far.rows("r")
    work: dict[str, Callable[[], bool]] = {
        "rows": lambda: far.rows("r") == before,
        "thread": lambda: far.thread("t") is not None,
        "blobs": lambda: far.blobs(["00"]) == {},
        "remove": lambda: far.delete(["t", "u"])[:3] == (("t",), 1, 2) and far.threads() == [],
        "drop": lambda: days.drop(label) and not days.drop(label),
    }
    for name, does in work.items():
        between.cut(AFTER, b"COMMIT\0" if name in ("remove", "drop") else b"SELECT")
        assert does(), name
        assert not between.armed, name


def test_idle_sessions_ended_by_the_server_are_replaced(store: Postgres, postgres: str) -> None:
    """As at a restart of the server: all idle connections are lost, and one new one is opened."""
    store.write(begin("t", "r", 1))
    with ThreadPoolExecutor(4) as pool:
        barrier = Barrier(4)
        list(pool.map(lambda _: store._run(lambda connection: barrier.wait()), range(4)))
    idle = store._connections._idle
    assert len(idle) == 4
    for wait in ("", ", 10000"):  # all at once, since the server looks each 0.1 s whether one has ended
        for connection in idle:
            _execute(postgres, f"SELECT pg_terminate_backend({connection.info.backend_pid}{wait})")
    store.write(append("t", "r", 1))
    assert len(idle) == 1
    _execute(postgres, f"SELECT pg_terminate_backend({idle[0].info.backend_pid}, 10000)")
    assert store.rows("r") == rows(2)


def test_a_session_ended_during_a_write_is_replaced(store: Postgres, postgres: str) -> None:
    """The thread's row is locked by another session when the waiting one is ended."""
    store.write(begin("t", "r", 1))
    schema = _schema(postgres)
    pid = store._connections._idle[0].info.backend_pid
    waits = f"SELECT pg_blocking_pids({pid}) <> '{{}}'"
    with psycopg.connect(split_address(postgres)[0]) as other, ThreadPoolExecutor(1) as pool:
        other.execute(sql.SQL("SELECT FROM {}.thread FOR UPDATE").format(schema))
        written = pool.submit(store.write, append("t", "r", 1))
        while _execute(postgres, waits) != [(True,)]:
            assert not written.done()
        _execute(postgres, f"SELECT pg_terminate_backend({pid}, 10000)")
        other.rollback()
        written.result()
    assert store.rows("r") == rows(2)


def test_no_state_is_kept_in_a_session(store: Postgres, postgres: str) -> None:
    """As behind a pooler that gives every transaction another session, which has seen no other."""
    left: list[Any] = []
    calls: list[Callable[[], Any]] = [
        lambda: store.write(begin("t", "r", 2)),
        lambda: store.write(append("t", "r", 2, 3)._replace(flush=True)),
        lambda: store.write(append("t", "r", 5, value=BLOB)),
        lambda: store.write(Change("t", 1, snapshot=Snapshot(Point("r", 1), content({"v": 1})))),
        lambda: [found.seq for found in store.rows("r")] == [0, 1, 2, 3, 4, 5],
        lambda: store.delete(["t"]).rows == 6,
    ]
    for call in calls:
        assert call()
        (connection,) = store._connections._idle
        left.append(
            connection.execute(
                "SELECT (SELECT count(*) FROM pg_prepared_statements), "
                "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), "
                "(SELECT count(*) FROM pg_listening_channels()), "
                "(SELECT count(*) FROM pg_settings WHERE source = 'session')"
            ).fetchone()
        )
        connection.close()
    plain = _execute(postgres, "SELECT count(*) FROM pg_settings WHERE source = 'session'")[0][0]
    assert set(left) == {(0, 0, 0, plain)}


WAITING: list[tuple[Change, bool]] = [
    (append("t", "r", 1), False),
    (append("t", "r", 2)._replace(flush=True), True),
    (append("t", "r", 3, value=BLOB), False),
    (append("t", "r", 4, value=BLOB)._replace(flush=True), True),
    (Change("t", 1, 2, owner("second"), 30.0), True),
]


def test_flush_and_new_epochs_wait_for_the_disk(store: Postgres, postgres: str) -> None:
    """A trigger that runs when a transaction commits sees how far the commit will wait."""
    store.write(begin("t", "r", 1))
    schema = _schema(postgres)
    _execute(
        postgres,
        sql.SQL("""
        CREATE TABLE {s}.seen (setting text);
        CREATE FUNCTION {s}.see() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO {s}.seen VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER see AFTER UPDATE ON {s}.thread DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION {s}.see();
    """).format(s=schema),
    )
    # The server of the tests waits for nothing: a flush waits all the same, and as far as another server says.
    with Postgres(f"{postgres}&options=-csynchronous_commit%3Dlocal") as other:
        for change, _ in WAITING:
            other.write(change)
    store.write(append("t", "r", 5, epoch=2)._replace(flush=True))
    with Postgres(postgres, flush=True) as flushing:
        flushing.write(append("t", "r", 6, epoch=2))
    seen = _execute(postgres, sql.SQL("SELECT setting FROM {s}.seen").format(s=schema))
    assert seen == [*[("local" if waits else "off",) for _, waits in WAITING], ("on",), ("on",)]


def test_leases_use_the_clock_of_the_server(store: Postgres, postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Graph().add_node("n", lambda state: None, writes=[]).add_path(START, "n", END).compile(store=store)
    store.write(Change("released"))
    ago = sql.SQL("UPDATE {}.thread SET lease_until = now() - '2 days'::interval")
    _execute(postgres, ago.format(_schema(postgres)))
    two_days = timedelta(days=2)
    for off in (0.0, 2e9):  # this machine's clock, decades off
        monkeypatch.setattr("time.time", lambda off=off: off)
        monkeypatch.setattr("time.monotonic", lambda off=off: off)
        store.write(begin("t", "r", 1)._replace(lease=100.0))
        thread = store.thread("t")
        assert thread is not None
        assert 0 < thread.lease <= 100
        assert program.threads(idle=timedelta()) == program.threads(idle=two_days) == ["released"]
        assert program.threads(idle=2 * two_days) == program.threads(idle=timedelta.max) == []
        report = program.delete(["t", "released"], idle=two_days if off else 2 * two_days)
        assert (report.threads, report.busy) == ((("released",), ("t",)) if off else ((), ("released", "t")))
        store.delete(["t"])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The values of each statement."""
    found: list[list[Any]] = []
    execute, executemany = psycopg.Connection.execute, psycopg.Cursor.executemany

    def counted(self: Any, query: Any, values: Any = None, **options: Any) -> Any:
        found.append(list(values.values() if isinstance(values, dict) else values or ()))
        return execute(self, query, values, **options)

    def counted_each(self: Any, query: Any, values: Any, **options: Any) -> Any:
        found.extend(list(each) for each in values)
        return executemany(self, query, values, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    monkeypatch.setattr(psycopg.Cursor, "executemany", counted_each)
    return found


def test_an_append_is_one_statement(store: Postgres, calls: list[Any]) -> None:
    store.write(begin("t", "r", 1))
    calls.clear()
    store.write(append("t", "r", 1, 3)._replace(lease=0.0, flush=True))
    assert len(calls) == 1


def test_a_stored_blob_is_not_sent_again(store: Postgres, calls: list[Any]) -> None:
    store.write(begin("t", "r", 1))
    store.write(append("t", "r", 1, value=BLOB))
    assert any(BLOB.encode() in call for call in calls)
    calls.clear()
    store.write(append("t", "r", 2, value=BLOB))
    assert calls
    assert not any(BLOB.encode() in call for call in calls)


def test_concurrent_threads_create_the_tables_once(postgres: str) -> None:
    stores = [Postgres(postgres) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda store: store.write(Change(str(stores.index(store)))), stores)) == [1] * 8
    assert stores[0].threads() == [str(number) for number in range(8)]
    for store in stores:
        store.close()


def test_a_drop_waits_only_so_long(store: Postgres, postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(Change("t"))
    whole, _, schema = split_address(postgres)
    monkeypatch.setattr("dspyer.stores.postgres.LOCK_TIMEOUT", "set_config('lock_timeout', '20', true)")
    with psycopg.connect(whole) as other:
        other.execute(sql.SQL("SELECT FROM {}.entry").format(_schema(postgres)))  # as a backup does
        with pytest.raises(StoreError, match="lock timeout"):
            Schemas(whole, prefix=str(schema)[:5]).drop(str(schema)[5:])
    assert store.write(Change("t", 1)) == 1


def test_concurrent_deletions_around_one_run_do_not_deadlock(store: Postgres) -> None:
    """All at once, while others copy: exactly the reached rows remain."""
    for turn in range(5):
        store.write(begin(f"base {turn}", f"b{turn}", 3))
        for number in range(6):
            store.write(begin(f"t{turn}-{number}", f"r{turn}-{number}", 2, Point(f"b{turn}", number % 3)))

        def work(number: int, turn: int = turn) -> None:
            if number == 6:
                store.delete([f"base {turn}"])
            elif number > 6:
                with suppress(ValueError):
                    store.write(Change(f"copy {turn}-{number}", head=Point(f"b{turn}", 1)))
            else:
                store.delete([f"t{turn}-{number}"])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        there = f"copy {turn}-7" in store.threads()
        assert len(store.rows(f"b{turn}")) == (2 if there else 0)
    assert store.delete().runs == 0


def test_a_deletion_does_not_wait_for_unrelated_threads(store: Postgres, postgres: str) -> None:
    store.write(begin("t", "r", 2))
    store.write(begin("u", "s", 2))
    schema = _schema(postgres)
    with psycopg.connect(split_address(postgres)[0]) as other:  # as a writer in the middle of its transaction
        other.execute(sql.SQL("SELECT FROM {}.thread WHERE name = 'u' FOR UPDATE").format(schema))
        other.execute(sql.SQL("SELECT FROM {}.run WHERE id = 's' FOR UPDATE").format(schema))
        other.execute(sql.SQL("DELETE FROM {}.entry WHERE run = 's'").format(schema))
        assert store.delete(["t"]).rows == 2
        other.rollback()
    assert len(store.rows("s")) == 2


@pytest.mark.parametrize("version", [4, 99])
@pytest.mark.parametrize("read_only", [False, True])
def test_tables_of_another_version_are_refused(postgres: str, store: Postgres, version: int, read_only: bool) -> None:
    store.write(begin("t", "r", 1))
    schema = _schema(postgres)
    _execute(postgres, sql.SQL("UPDATE {}.version SET number = {}").format(schema, sql.Literal(version)))
    text = f"version {version}, and this dspyer knows version 6"
    with Postgres(postgres, read_only=read_only) as other, pytest.raises(StoreError, match=text):
        other.threads()


def test_a_role_without_create_rights_can_use_the_tables(store: Postgres, postgres: str) -> None:
    store.write(begin("t", "r", 1))
    schema = split_address(postgres)[2] or ""
    user = sql.Identifier(f"user_{schema}")
    _execute(
        postgres,
        sql.SQL("""
        CREATE ROLE {u} LOGIN;
        GRANT USAGE ON SCHEMA {s} TO {u};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {s} TO {u};
    """).format(u=user, s=sql.Identifier(schema)),
    )
    whole, _, _ = split_address(postgres)
    with Postgres(f"{whole}&user=user_{schema}", schema=schema) as other:
        other.write(append("t", "r", 1))
        assert other.delete(["t"]).rows == 2
    _execute(postgres, sql.SQL("DROP OWNED BY {u}; DROP ROLE {u}").format(u=user))


def test_a_closed_store_is_an_error(postgres: str) -> None:
    store = Postgres(postgres)
    store.threads()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.threads()


def test_the_number_of_connections_is_bounded(postgres: str) -> None:
    with Postgres(postgres, connections=2) as store:
        store.write(begin("t", "r", 1))
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: store.rows("r"), range(40))) == [rows(1)] * 40
        assert len(store._connections._idle) <= 2


TIMEOUTS: list[tuple[str, str | None, int | None]] = [
    ("", None, 5),  # a limit of ours
    ("connect_timeout=9", None, 9),
    ("", "7", None),  # that of the environment
]


def test_connection_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    for more, environment, expected in TIMEOUTS:
        given: dict[str, Any] = {}

        def connect(given: dict[str, Any] = given, **options: Any) -> None:
            given.update(options)
            raise psycopg.OperationalError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(psycopg, "connect", connect)
            if environment:
                patched.setenv("PGCONNECT_TIMEOUT", environment)
            with Postgres(f"postgresql://ada@db/runs?{more}") as store, pytest.raises(psycopg.OperationalError):
                store.threads()
        assert int(given.get("connect_timeout", 0)) == (expected or 0), (more, environment)
        assert int(given["tcp_user_timeout"]) == 10_000


def test_an_interrupted_transaction_is_not_reused(store: Postgres) -> None:
    store.write(begin("t", "r", 1))

    def broken(session: Any) -> None:
        session("BEGIN")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store._run(broken)
    assert store._connections._idle == []
    store.write(append("t", "r", 1))
    assert store.rows("r") == rows(2)


FORK = """
import os, sys, threading
from dspyer.stores.content import Content
from dspyer.stores.postgres import Postgres
from dspyer.testing.store_samples import append, begin
store = Postgres(sys.argv[1])
store.write(begin("t", "r", 1))

def takes_a_connection():  # in the middle of which the process is forked
    with store._connections._changed:
        taking.set()
        forked.wait()

taking, forked = threading.Event(), threading.Event()
threading.Thread(target=takes_a_connection).start()
taking.wait()
child = os.fork()
if not child:
    store.write(append("t", "r", 1))
    store.close()
    os._exit(0)
forked.set()
assert os.waitpid(child, 0)[1] == 0
store.write(append("t", "r", 2))
child = os.fork()
if not child:  # ends as programs do: with collection and handlers at exit
    store.write(append("t", "r", 3))
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
before = store._connections._idle[:]
store.write(append("t", "r", 4))
assert store._connections._idle == before and len(before) == 1
print([row.seq for row in store.rows("r")])
"""


@pytest.mark.slow("starts Python anew: it ends as programs do, with collection and handlers at exit")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_opens_its_own_connections(postgres: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", FORK, postgres],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[0, 1, 2, 3, 4]\n", "")


def _schema(postgres: str) -> sql.Identifier:
    return sql.Identifier(split_address(postgres)[2] or "")


def _execute(address: str, query: Any) -> list[Any]:
    with psycopg.connect(split_address(address)[0], autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def test_no_reference_to_a_blob_outlives_what_referred_to_it(store: Postgres, postgres: str) -> None:
    """The blob itself would stay for ever."""
    conninfo, _, schema = split_address(postgres)
    store.write(begin("t", "r", 1))
    store.write(append("t", "r", 1, value=BLOB))
    for text in (BLOB, OTHER_BLOB):
        store.write(Change("t", 1, snapshot=Snapshot(Point("r", 1), content(text))))
    count = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema or "dspyer", "ref"))
    with psycopg.connect(conninfo, autocommit=True) as connection:
        assert connection.execute(count).fetchone() == (2,)
        store.delete(["t"])
        assert connection.execute(count).fetchone() == (0,)


def test_a_damaged_body_is_named_and_its_blob_is_deleted_with_its_thread(store: Postgres, postgres: str) -> None:
    store.write(begin("t", "r", 3))
    store.write(append("t", "r", 3, value=BLOB))
    for seq in (1, 2):
        store.write(Change("t", 1, snapshot=Snapshot(Point("r", seq), content(f"state {seq}"))))
    schema = _schema(postgres)
    for table, seq in (("entry", 3), ("entry", 1), ("snapshot", 2)):
        cut = sql.SQL("UPDATE {} SET body = substr(body, 1, 9) WHERE seq = {}")
        _execute(postgres, cut.format(sql.Identifier(str(split_address(postgres)[2]), table), sql.Literal(seq)))
    found = store.rows("r")
    assert [(row.seq, "damaged" in row.header, row.content is None) for row in found] == [
        (seq, seq in (1, 3), seq in (1, 3)) for seq in range(4)
    ]
    assert [found[0], found[2]] == [row(0, 0), row(2, 2)]
    damaged = store.snapshot(Point("r", 2))
    assert damaged is not None
    with pytest.raises(StateError):  # so its reader takes the one before
        damaged.content.value(store.blobs)
    assert store.delete(["t"]).rows == 4
    assert _execute(postgres, sql.SQL("SELECT FROM {s}.ref UNION ALL SELECT FROM {s}.blob").format(s=schema)) == []


def test_ids_of_blobs_that_are_no_hexadecimal_digits_are_refused(store: Postgres) -> None:
    store.write(begin("t", "r", 1))
    for name in ("x", "AB", "a b", "abc", ""):
        refused = Row(1, "commit", {"id": "trunk:1"}, Content.stored(b"1", [name], {name: b"blob"}))
        with pytest.raises(ValueError, match="no id of a blob"):
            store.write(Change("t", 1, rows_of="r", rows=[refused]))
    assert store.rows("r") == rows(1)
