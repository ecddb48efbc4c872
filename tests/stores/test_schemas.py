"""`Schemas`: stores in schemas of one real server, which are created and dropped while others use them.

Another `Schemas` object of the same database, with a pool of its own, is as another process: it knows nothing of what
this one does. What must wait for what is forced by locks, which a session of the test holds.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from dspyer import END, START, Archive, CompiledGraph, Graph, Run
from dspyer.errors import ConcurrentRunError, StoreError, ThreadError
from dspyer.stores import Sharded, Store
from dspyer.stores.base import Change, Point, Row, RunQuery
from dspyer.stores.postgres import Postgres, Schemas
from tests.children import Child
from tests.stores import postgres_server
from tests.stores.kit import OTHER, OWNER, append, rows, run
from tests.threads.test_key_deliveries import Stepped, Steps

LONG = 20.0  # seconds after which a test gives up
BLOB = "too long for its row " * 1_000


def begin(thread: str, name: str, count: int, *parents: Point, epoch: int = 0) -> Change:
    """The first change of a run with an owner."""
    head, after = Point(name, count - 1), epoch + 1 if epoch else None
    begun = run(name, thread, *parents)
    return Change(thread, epoch, after, OWNER, 30.0, head, run=begun, rows_of=name, rows=rows(0, count - 1))


class Database:
    """A database, the schemas of one prefix in it, and those of another process."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.prefix = f"Days_{uuid4().hex[:12]}-"
        self.days, self.elsewhere = self.opened(), self.opened(connections=4)

    def opened(self, **options: Any) -> Schemas:
        return Schemas(self.address, prefix=self.prefix, **options)

    def execute(self, text: str, values: Any = None, label: str = "a") -> list[Any]:
        with psycopg.connect(self.address, autocommit=True) as connection:
            cursor = connection.execute(self.about(text, label), values)
            return cursor.fetchall() if cursor.description else []

    def about(self, text: str, label: str = "a") -> sql.Composed:
        """A statement about the schema of a label."""
        return sql.SQL(text).format(s=sql.Identifier(self.prefix + label))

    @contextmanager
    def holding(self, text: str) -> Iterator[Any]:
        """A transaction that has executed a statement, until it is rolled back."""
        with psycopg.connect(self.address) as other:
            other.execute(self.about(text))
            yield other
            other.rollback()

    def wait_for(self, count: int) -> None:
        """Wait until so many sessions wait for a lock."""
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        end = time.monotonic() + LONG
        with psycopg.connect(self.address, autocommit=True) as connection:
            while connection.execute(waiting, [f'%"{self.prefix}%']).rowcount != count:
                assert time.monotonic() < end


@pytest.fixture
def database(postgres_address: str) -> Iterator[Database]:
    found = Database(postgres_address)
    yield found
    for label in found.opened():
        postgres_server.drop(found.days[label].address)


@pytest.fixture
def days(database: Database) -> Schemas:
    return database.days


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as found:
        yield found


def release(name: str, seq: int, status: str | None, epoch: int, thread: str = "t") -> Change:
    """The end of a run; without a status it ends as that of a process that has crashed a lease ago."""
    if status is None:
        return Change(thread, epoch, lease=0.0)
    row = Row(seq, "end", {"status": status})
    return Change(thread, epoch, rows_of=name, rows=[row], head=Point(name, seq), lease=0.0)


def ended(store: Store, thread: str, status: str | None = "completed") -> int:
    """A thread whose run has ended so; its epoch."""
    epoch = store.write(begin(thread, f"run of {thread}", 2))
    return store.write(release(f"run of {thread}", 2, status, epoch, thread))


WRONG: list[Any] = ["", "a b", "a.b", "a/b", 'a"b', "é", "x" * 41, "a\n", None, 7]


def test_labels_are_those_of_schemas(database: Database, days: Schemas) -> None:
    assert (list(days), len(days), "a" in days, days.drop("a")) == ([], 0, False, False)
    first, longest = days["a"], days["Z_-9" + 36 * "x"]
    assert first is days["a"]
    for store in (first, longest):
        assert [*store.threads(), *store.runs("t"), *store.list_runs(RunQuery()), *store.rows("r")] == []
        assert (store.thread("t"), store.run("r"), store.blobs(["00"]), store.snapshot(Point("r", 1))) == (
            None,
            None,
            {},
            None,
        )
        assert store.delete(["t"]) == store.delete_unreachable("t") == store.delete()
        store.drop_snapshots()
        store.vacuum()
        for refused in (append("t", "r", 1), Change(rows_of="r", rows=rows(0, 0)), Change("t", 3, lease=0.0)):
            with pytest.raises((ConcurrentRunError, ValueError), match=r"does not exist|deleted"):
                store.write(refused)
    assert list(days) == [], "what reads, deletes or is refused makes no schema"
    for store in (longest, first):
        ended(store, "t")
    database.execute('CREATE SCHEMA {s}; CREATE TABLE {s}."version" (name text)', label="no_store")
    ended(Postgres(database.address, schema=f"{database.prefix}not.a.label"), "t")
    other = Schemas(database.address, prefix=f"{database.prefix}x")  # begins with this prefix
    ended(other["y"], "t")
    assert list(days) == sorted(["a", "xy", "Z_-9" + 36 * "x"])
    assert (len(days), "a" in days, "y" in days, "no_store" in days) == (3, True, False, False)
    assert (list(other), list(Schemas(database.address, prefix="Days-"))) == (["y"], [])
    first.close()  # its connections are those of all
    assert first.threads() == ["t"]
    for label in WRONG:
        assert label not in days
        for use in (days.__getitem__, days.drop, lambda label: Schemas(database.address, prefix=label)):
            with pytest.raises(StoreError, match=r"(label|prefix) .*: give 1 to \d+ letters, digits, - and _"):
                use(label)
    with pytest.raises(StoreError, match="1 to 23 letters"):
        Schemas(database.address, prefix=24 * "x")
    with pytest.raises(ValueError, match="leave out schema="):
        Schemas("postgresql://db/desk?schema=a", prefix="a")
    postgres_server.drop(Postgres(database.address, schema=f"{database.prefix}not.a.label").address)
    database.execute("DROP SCHEMA {s} CASCADE", label="no_store")


def test_no_password_is_shown_or_pickled() -> None:
    days = Schemas("postgresql://ada:secret@db/desk?sslmode=require", prefix="runs_", connections=3)
    again = pickle.loads(pickle.dumps(days))
    assert repr(days) == repr(again) == "Schemas('postgresql://ada@db/desk?sslmode=require', prefix='runs_')"
    assert b"secret" not in pickle.dumps([days, days["a"]])
    assert days["a"].address == again["a"].address == "postgresql://ada@db/desk?sslmode=require&schema=runs_a"
    with pytest.raises(StoreError, match="the list of the schemas runs_"):
        list(Schemas("postgresql://nobody@127.0.0.1:1/none", prefix="runs_"))


def test_drop_refuses_what_is_not_done(database: Database, days: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the server: that of this machine is two days late, or early."""
    store = days["a"]
    ended(store, "done")
    ended(store, "copied")
    store.write(Change("whole", head=Point("run of copied", 2)))
    store.write(Change("no run yet"))
    cases: dict[str, Callable[[], object]] = {
        **{str(status): partial(ended, store, "t", status) for status in ("failed", "stopped", None)},
        "waits": partial(ended, store, "t", "interrupted"),
        "lapsed": lambda: store.write(begin("t", "r", 2)._replace(lease=1e-6)),
        "copy of a part": lambda: store.write(Change("t", head=Point("run of copied", 1))),
    }
    for name, make in cases.items():
        make()
        with pytest.raises(ThreadError, match=r"nothing was dropped.*\(1: 't'\).*unfinished=True") as refused:
            days.drop("a")
        assert not isinstance(refused.value, ConcurrentRunError), name
        store.delete(["t"])
    for number in range(5):
        ended(store, f"open {number}", "failed")
    with pytest.raises(ThreadError, match=r"\(5: 'open 0', 'open 1', 'open 2'\)"):
        days.drop("a")
    epoch = store.write(begin("alive", "r", 2))
    for off in (-172_800, 172_800):
        with monkeypatch.context() as wrong:
            now, steady = time.time(), time.monotonic()
            wrong.setattr("time.time", lambda: now + off)
            wrong.setattr("time.monotonic", lambda: steady + off)
            for unfinished in (False, True):
                with pytest.raises(ConcurrentRunError, match=r"\(1: 'alive'\) at work"):
                    days.drop("a", unfinished=unfinished)
    store.write(release("r", 2, "completed", epoch, "alive"))
    assert len(store.threads()) == 10
    assert days.drop("a", unfinished=True)
    assert (store.threads(), "a" in days, days.drop("a")) == ([], False, False)
    ended(store, "done")
    assert days.drop("a")


def test_what_is_of_others_in_a_schema_is_not_dropped(database: Database, days: Schemas) -> None:
    ended(days["a"], "t")
    for make in ("CREATE VIEW {s}.kept AS SELECT 1", "CREATE VIEW public.kept AS SELECT name FROM {s}.thread"):
        database.execute(make)
        with pytest.raises(StoreError, match=f"dropping the schema {database.prefix}a failed.*depend"):
            days.drop("a")
        assert days["a"].threads() == ["t"]
        database.execute("DROP VIEW IF EXISTS {s}.kept, public.kept")
    assert days.drop("a")


def test_nothing_of_a_dropped_schema_fits_into_a_new_one(database: Database, days: Schemas) -> None:
    """An owner whose lease has lapsed is back when its label was dropped, and the same run of a key begun anew."""
    old, new = days["a"], database.elsewhere["a"]
    epoch = old.write(begin("t", "r", 2)._replace(lease=1e-6))
    late = [
        append("t", "r", 2, epoch=epoch),
        append("t", "r", 2, epoch=epoch, value=BLOB),
        release("r", 2, "completed", epoch),
        Change("t", epoch, owner=OWNER, lease=30.0),
        Change("t", epoch, epoch + 1, OTHER, 30.0),
        begin("t", "s", 1, Point("r", 1), epoch=epoch),
    ]
    assert database.elsewhere.drop("a", unfinished=True)
    for change in late:
        with pytest.raises(ConcurrentRunError, match=r"was deleted\. Nothing was written"):
            old.write(change)
    assert "a" not in days
    begun = new.write(begin("t", "r", 2)._replace(lease=0.0))
    assert begun > epoch
    before = database.execute("SELECT * FROM {s}.thread"), new.rows("r")
    for change in late:
        with pytest.raises(ConcurrentRunError):
            old.write(change)
    assert (database.execute("SELECT * FROM {s}.thread"), new.rows("r")) == before


class Nodes:
    """A graph of two nodes that count their calls."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, n: int) -> dict[str, int]:
        self.calls += 1
        return {"n": n * 10}

    def program(self, store: Store) -> CompiledGraph:
        graph = Graph(inputs=["n"]).add_node("x", self.call, writes=["n"]).add_node("y", self.call, writes=["n"])
        return graph.add_path(START, "x", "y", END).compile(store=store)


EVERY = 3  # of its steps: odd ones are before a call, even ones after it


@pytest.mark.parametrize("lapsed", [False, True])
def test_drop_at_every_step_of_a_run(database: Database, days: Schemas, lapsed: bool) -> None:
    """Before or after a call of the store. If the lease has lapsed, another delivery of the key comes as well."""
    steps, at = Steps(), 0
    while at <= steps.count:
        at += EVERY
        store, nodes, dropped = days["a"], Nodes(), list[bool]()

        def drop() -> None:
            if lapsed and "a" in days:
                database.execute("UPDATE {s}.thread SET lease_until = now() - interval '1 minute'")
            with suppress(ConcurrentRunError):
                dropped.append(database.elsewhere.drop("a", unfinished=True))
            if lapsed:
                again.append(Nodes().program(database.elsewhere["a"]).thread("t").run({"n": 7}, key="k"))

        again: list[Run] = []
        steps = Steps(at)
        steps.do = drop
        with suppress(ConcurrentRunError, ThreadError):
            found = nodes.program(Stepped(store, steps)).thread("t").run({"n": 7}, key="k")
            found.raise_error()
            assert found.state["n"] == 700
        assert nodes.calls <= 2
        for label in (days, database.elsewhere):
            thread = Nodes().program(label["a"]).thread("t")
            assert thread.status == ("new" if store.thread("t") is None else "completed"), (at, dropped)
            ids = [one.id for one in store.runs("t")]
            assert again == [] or (thread.state["n"], [one.run_id for one in again]) == (700, ids)
        assert store.thread("t") is not None or dropped == [True]
        days.drop("a")
    assert at > 6


HOLDS = "LOCK TABLE {s}.%s IN ACCESS EXCLUSIVE MODE"


def test_who_is_at_work_is_waited_for(database: Database, days: Schemas, pool: ThreadPoolExecutor) -> None:
    """A write, a list and a deletion that have begun end as if there were no drop: none of them is a deadlock."""
    store = days["a"]
    works: dict[str, tuple[str, Callable[[], Any]]] = {
        "append": ("entry", lambda: store.write(append("t", "run of t", 3, epoch=epoch))),
        "large value": ("blob", lambda: store.write(append("t", "run of t", 3, epoch=epoch, value=BLOB))),
        "delete": ("link", lambda: store.delete(["t"]).threads),
        "list": ("entry", lambda: len(store.list_runs(RunQuery(last=True)))),
        "snapshots": ("ref", store.drop_snapshots),
    }
    for name, (table, work) in works.items():
        epoch = ended(store, "t")
        with database.holding(HOLDS % table) as lock:
            begun = pool.submit(work)
            database.wait_for(1)
            dropping = pool.submit(database.elsewhere.drop, "a", unfinished=True)
            database.wait_for(2)
            lock.rollback()
            assert begun.result(LONG) == {"list": 1, "delete": ("t",), "snapshots": None}.get(name, epoch), name
            assert dropping.result(LONG), name


def test_who_comes_later_waits_and_finds_nothing(database: Database, days: Schemas, pool: ThreadPoolExecutor) -> None:
    """While the drop waits for somebody who reads, as for a backup, the others of its label wait for the drop."""
    store, epoch = days["a"], ended(days["a"], "t")
    with database.holding("SELECT FROM {s}.entry") as reading:
        dropping: Future[bool] = pool.submit(database.elsewhere.drop, "a")
        database.wait_for(1)
        late = pool.submit(store.write, append("t", "run of t", 3, epoch=epoch))
        read, new = pool.submit(store.thread, "t"), pool.submit(store.write, begin("new", "r", 1))
        database.wait_for(4)
        ended(days["b"], "t")  # other labels do not wait
        reading.rollback()
        assert dropping.result(LONG)
    with pytest.raises(ConcurrentRunError, match="was deleted"):
        late.result(LONG)
    assert (read.result(LONG), new.result(LONG) > epoch, store.threads()) == (None, True, ["new"])


def test_drops_among_many_runs(days: Schemas, pool: ThreadPoolExecutor, database: Database) -> None:
    """Whatever the order: each run has completed or was refused, and what is there afterwards is whole."""
    together, refused = threading.Barrier(4), list[str]()

    def work(number: int) -> None:
        program = Nodes().program([days, database.elsewhere][number % 2]["a"])
        for made in range(20):
            thread = program.thread(f"t{made % 3}")
            try:
                assert thread.run({"n": made}, on_conflict="wait", lock_timeout=5).state["n"] == 100 * made
                if made % 5 == number:
                    thread.delete()
            except (ThreadError, StoreError) as error:
                refused.append(str(error))
            if made % 4 == 3:
                together.wait(LONG)

    working, dropped = [pool.submit(work, number) for number in range(3)], 0
    for _ in range(5):
        ready = False
        while not ready:
            ready = together.n_waiting == 3 or together.broken
            with suppress(ConcurrentRunError):
                dropped += days.drop("a", unfinished=True)
        together.wait(LONG)
    for done in working:
        done.result(LONG)
    assert dropped >= 5
    assert days["a"].threads() == []
    assert not [text for text in refused if "deadlock" in text or "Undefined" in text], refused


def test_days_of_requests(database: Database, days: Schemas) -> None:
    """Each request is a run of a key on a thread of its day; days that are over are dropped, and take no request."""
    over = ""

    def day(thread: str) -> str:
        if thread[:10] <= over:
            raise LookupError("this day is over")
        return thread[:10]

    nodes = Nodes()
    program = nodes.program(store := Sharded(days, shard=day))
    worker = nodes.program(Sharded(database.elsewhere, shard=day))  # of another process
    requests = [f"2026-11-{1 + number // 2:02}/{number}" for number in range(6)]

    def deliver(program: CompiledGraph, request: str) -> int:
        run = program.thread(request).run({"n": int(request[11:])}, key=request)
        run.raise_error()
        return int(run.state["n"])

    for request in requests:
        assert deliver(program, request) == deliver(worker, request) == 100 * int(request[11:])
    assert (nodes.calls, list(days), program.threads()) == (12, sorted({name[:10] for name in requests}), requests)
    worker.thread(requests[1]).copy(to="2026-11-01/copy")
    with pytest.raises(ThreadError, match="export"):
        program.thread(requests[0]).copy(to="2026-11-02/copy")
    over = "2026-11-02"
    assert [days.drop(label) for label in days if label <= over] == [True, True]
    assert [info.thread for info in Archive(store).threads()][::-1] == worker.threads() == requests[4:]
    for late in (program, worker):
        with pytest.raises(StoreError, match="this day is over"):
            deliver(late, requests[0])
        assert deliver(late, requests[5]) == 500
    assert (nodes.calls, list(days)) == (12, ["2026-11-03"])
    over = ""
    with pytest.raises(StoreError, match=r"thread 'no label.*label 'no label"):
        program.thread("no label at all").run({"n": 1})
    assert deliver(worker, requests[0]) == 0, "its key was forgotten"
    assert nodes.calls == 14


CREATES = """
import sys
from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, Point
from dspyer.stores.postgres import Schemas
from tests.stores.kit import OWNER, append, rows, run
address, prefix, name = sys.argv[1:]
store = Schemas(address, prefix=prefix)["a"]
assert store.threads() == []
print("ready", flush=True)
sys.stdin.readline()
begun = Change(name, 0, None, OWNER, 30.0, Point(name, 0), run=run(name, name), rows_of=name, rows=rows(0, 0))
epoch = store.write(begun)
print("written", flush=True)
sys.stdin.readline()
try:
    store.write(append(name, name, 1, epoch=epoch))
except ConcurrentRunError as error:
    print(store.threads(), error)
"""


def test_processes_create_a_schema_once_and_go_on_when_it_was_dropped(database: Database, days: Schemas) -> None:
    processes = [Child(CREATES, database.address, database.prefix, f"t{n}") for n in range(4)]

    def together(said: str) -> None:
        for process in processes:
            assert process.stdout.readline() == said, process.stderr.read()
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()

    try:
        together("ready\n")
        for process in processes:
            assert process.stdout.readline() == "written\n", process.stderr.read()
        assert days["a"].threads() == [f"t{n}" for n in range(4)]
        with pytest.raises(ConcurrentRunError, match=r"4: 't0', 't1', 't2'"):
            days.drop("a", unfinished=True)
        database.execute("UPDATE {s}.thread SET lease_until = now() - interval '1 minute'")
        assert days.drop("a", unfinished=True)
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        for n, process in enumerate(processes):
            gone = f"[] thread 't{n}' does not exist any more: it was deleted. Nothing was written.\n"
            assert (process.stdout.read(), process.stderr.read(), process.wait()) == (gone, "", 0)
    finally:
        for process in processes:
            process.kill()


BEYOND = """
    SELECT conname::text FROM pg_constraint WHERE connamespace = %(s)s::regnamespace AND contype NOT IN ('p', 'n')
    UNION ALL SELECT relname FROM pg_class WHERE relnamespace = %(s)s::regnamespace AND relkind NOT IN ('r', 'i')
    UNION ALL SELECT adnum::text FROM pg_attrdef WHERE adrelid::regclass::text LIKE %(like)s
    UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = %(s)s::regnamespace
    UNION ALL SELECT tgname FROM pg_trigger WHERE tgrelid::regclass::text LIKE %(like)s"""


def test_every_statement_names_its_schema_and_nothing_crosses_schemas(database: Database, tmp_path: Path) -> None:
    """The sessions find no table without the name of its schema, and the catalog has tables and indexes alone."""
    days = Schemas(f"{database.address}&options=-csearch_path%3Dpg_catalog", prefix=database.prefix)
    program = Nodes().program(days["a"])
    thread = program.thread("t")
    for turn in range(3):
        thread.run({"n": turn}, key=str(turn))
    thread.copy(to="copy", at=1).run({"n": 7}, if_open="abandon")
    thread.prune(before=6)
    thread.rerun(7)
    thread.export(tmp_path / "t")
    program.thread("loaded").load(tmp_path / "t")
    days["a"].drop_snapshots()
    assert days["a"].list_runs(RunQuery())
    thread.delete()
    days["a"].vacuum()
    schema = f'"{database.prefix}a"'
    assert database.execute(BEYOND, {"s": schema, "like": f"{schema}.%"}) == []
    assert days.drop("a")
