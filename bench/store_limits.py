"""How much a store carries: `python -m bench.store_limits [--write bench/results.md]`.

Questions, asked of one SQLite file and one PostgreSQL database in turn:

- How many commits do 1, 4 and 16 writers make in a second, and how long does a run take then? The writers are
  processes, and each makes run after run, on a new thread each.
- What does an operation on one thread cost beside 1,000 threads, and beside 100,000? The other threads are copies of
  one that a run has made, written by the database itself; those that are measured are made by runs.
- How long does `program.delete` take for many of them, and `Schemas.drop` for all? How long do writes of another label
  take meanwhile?
- How many runs at once complete if PostgreSQL opens few connections?

`--quick` measures next to nothing, to see that the bench works. Without it, a run takes about five minutes.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated
from uuid import uuid4

import psycopg
from pydantic import BaseModel

from bench.machine import calibrate, describe, spread
from bench.report import put_section
from dspyer import END, START, Archive, CompiledGraph, Graph, reducers
from dspyer.stores import Sharded, Store, open_store
from dspyer.stores.base import Change, Row, RunRow
from dspyer.stores.postgres import SCHEMA, Postgres, PostgresSession, Schemas, split_address, with_schema
from tests.stores import postgres_server

COMMITS = 20
"""Commits of a run, the one of its inputs included."""

ROWS = COMMITS + 2
"""Rows of a run: its start, its commits, its end."""

SAID = "A message as people write them, of a length as they often have. 12345"
STORES = 14
"""Stores in a sharded one."""

DAYS = 30
FLEET = 100_000_000
"""Threads of the store that is calculated."""


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        writers: how many processes write at once.
        seconds: how long they do.
        threads: the sizes of the stores that are compared.
        times: how often each operation is measured in a round.
        rounds: how often all is measured.
        page: names on a page, and threads that are deleted at once.
        sized: threads whose bytes are measured.
    """

    writers: Sequence[int] = (1, 4, 16)
    seconds: float = 4.0
    threads: tuple[int, int] = (1_000, 100_000)
    times: int = 20
    rounds: int = 3
    page: int = 500
    sized: int = 1_000


QUICK = Extent((1, 2), 0.05, (5, 20), 2, 1, 3, 5)


class Talk(BaseModel):
    n: int = 0
    said: Annotated[list[str], reducers.append] = []


def talk() -> Graph:
    """A loop of small commits."""
    graph = Graph(Talk, name="Talk", inputs=[])
    graph.add_node("speak", lambda n: {"n": n + 1, "said": SAID}, writes=["n", "said"]).add_edge(START, "speak")
    graph.add_conditional_edges("speak", lambda n: END if n >= COMMITS - 1 else "speak", ["speak", END])
    return graph


@cache
def program(address: str) -> CompiledGraph:
    """One for each store in a process."""
    return talk().compile(store=address)


@cache
def sharded(address: str) -> CompiledGraph:
    """One whose threads lie in this store, of several."""
    stores = {"here": address, **{str(number): ":memory:" for number in range(STORES - 1)}}
    return talk().compile(store=Sharded(stores, lambda thread: "here"))


# --- writers


@dataclass
class Written:
    """What one writer has done: commits in a second, and the seconds of each run."""

    rate: float
    runs: list[float]


def write(address: str, begin: float, seconds: float) -> Written:
    """Makes runs from a time on, each on a new thread."""
    graph, name, runs = program(address), uuid4().hex, list[float]()
    graph.thread(f"{name} warm").run({}).raise_error()
    time.sleep(max(0.0, begin - time.time()))
    start = now = time.perf_counter()
    while not runs or now < start + seconds:
        run = graph.thread(f"{name} {len(runs)}").run({})
        run.raise_error()
        now, before = time.perf_counter(), now
        runs.append(now - before)
    return Written(COMMITS * len(runs) / (now - start), runs)


@dataclass
class Writers:
    """Figures of so many writers in one store, a value for each round: commits in a second, milliseconds of a run."""

    rate: list[float] = field(default_factory=list)
    middle: list[float] = field(default_factory=list)
    slowest: list[float] = field(default_factory=list)


def measure_writers(pool: Executor, address: str, count: int, seconds: float, into: Writers) -> None:
    begin = time.time() + min(1.0, seconds)
    done = list(pool.map(write, [address] * count, [begin] * count, [seconds] * count))
    runs = [1e3 * run for each in done for run in each.runs]
    into.rate.append(sum(each.rate for each in done))
    into.middle.append(median(runs))
    into.slowest.append(quantiles(runs, n=100, method="inclusive")[-1] if len(runs) > 1 else runs[0])


# --- stores with many threads

FILL_SQLITE = (
    (
        "INSERT INTO run SELECT printf('other %09d', n), printf('other %09d', n), parents, header, graph, started - n, "
        "ended FROM run, numbers WHERE id = :run"
    ),
    (
        "INSERT INTO thread (name, fencing, head_run, head_seq, lease_until, runs) "
        "SELECT printf('other %09d', n), fencing, printf('other %09d', n), head_seq, lease_until, runs "
        "FROM thread, numbers WHERE head_run = :run"
    ),
    "INSERT INTO entry SELECT printf('other %09d', n), seq, kind, body FROM numbers, entry WHERE run = :run",
    "INSERT INTO ref SELECT blob, printf('other %09d', n), seq FROM ref CROSS JOIN numbers WHERE run = :run",
    "INSERT INTO snapshot SELECT printf('other %09d', n), seq, body FROM numbers, snapshot WHERE run = :run",
)
FILL_POSTGRES = (
    (
        "INSERT INTO {s}.run (id, thread, parents, header, started, graph, ended) "
        "SELECT md5(n::text), ('other ' || lpad(n::text, 9, '0'))::bytea, parents, header, started - n, graph, ended "
        "FROM {s}.run, generate_series(%(first)s::int, %(last)s::int) AS n WHERE id = %(run)s"
    ),
    (
        "INSERT INTO {s}.thread (name, fencing, runs, head_run, head_seq, lease_until) "
        "SELECT ('other ' || lpad(n::text, 9, '0'))::bytea, fencing, runs, md5(n::text), head_seq, lease_until "
        "FROM {s}.thread, generate_series(%(first)s::int, %(last)s::int) AS n WHERE head_run = %(run)s"
    ),
    (
        "INSERT INTO {s}.ref SELECT blob, md5(n::text), seq "
        "FROM {s}.ref, generate_series(%(first)s::int, %(last)s::int) AS n WHERE run = %(run)s"
    ),
    (
        "INSERT INTO {s}.entry SELECT md5(n::text), seq, kind, body "
        "FROM {s}.entry, generate_series(%(first)s::int, %(last)s::int) AS n WHERE run = %(run)s ORDER BY 1, 2"
    ),
    (
        "INSERT INTO {s}.snapshot SELECT md5(n::text), seq, body "
        "FROM {s}.snapshot, generate_series(%(first)s::int, %(last)s::int) AS n WHERE run = %(run)s ORDER BY 1, 2"
    ),
)
AT_ONCE = 10_000
"""Threads that one statement copies."""


def fill(address: str, count: int) -> None:
    """Copies the run of one thread until the store has so many."""
    program(address).thread("model").run({}).raise_error()
    with open_store(address) as store:
        made = store.runs("model")[0].id
        for first in range(1, count, AT_ONCE):
            span = {"first": first, "last": min(first + AT_ONCE, count) - 1}
            if isinstance(store, Postgres):
                server, _, schema = split_address(address)
                with psycopg.connect(server) as filling:
                    for statement in FILL_POSTGRES:
                        PostgresSession(filling, schema or SCHEMA)(statement, {**span, "run": made})
            else:
                with sqlite3.connect(address) as connection:
                    _fill_file(connection, made, **span)
                connection.close()


def _fill_file(connection: sqlite3.Connection, run: str, first: int, last: int) -> None:
    numbers = f"WITH RECURSIVE numbers (n) AS (VALUES ({first}) UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
    for statement in FILL_SQLITE:
        insert, _, select = statement.partition("SELECT")
        connection.execute(f"{insert} {numbers} SELECT {select}", {"run": run})


@dataclass(frozen=True)
class Subject:
    """What is measured: a thread of its own, in a store with so many others."""

    address: str
    store: Store
    size: int
    extent: Extent
    name: str

    @property
    def middle(self) -> str:
        return f"other {self.size // 2:09}"


OPERATIONS: Mapping[str, Callable[[Subject], object]] = {
    f"a run of {COMMITS} commits on a new thread": lambda of: program(of.address).thread(of.name).run({}).raise_error(),
    f"the same through `Sharded`, with {STORES} stores": lambda of: (
        sharded(of.address).thread(f"{of.name} sharded").run({}).raise_error()
    ),
    "`status`": lambda of: program(of.address).thread(of.name).status,
    "`state`": lambda of: program(of.address).thread(of.name).state["n"],
    "a page of names": lambda of: program(of.address).threads(after=of.middle, limit=of.extent.page)[0],
    "`threads(idle=...)`, where none is": lambda of: program(of.address).threads(idle=timedelta(days=1)),
    "a page of 100 threads by time (`Archive.threads`)": lambda of: Archive(of.store).threads(limit=100)[0],
    "`delete`": lambda of: program(of.address).thread(of.name).delete(),
}
"""What is done with a thread, in this order."""


def measure_operations(address: str, size: int, extent: Extent) -> dict[str, float]:
    """Milliseconds of each operation, as medians."""
    taken: dict[str, list[float]] = {title: [] for title in OPERATIONS}
    with open_store(address) as store:
        for _ in range(extent.times):
            subject = Subject(address, store, size, extent, f"measured {uuid4().hex}")
            for title, do in OPERATIONS.items():
                start = time.perf_counter()
                do(subject)
                taken[title].append(1e3 * (time.perf_counter() - start))
    return {title: median(each) for title, each in taken.items()}


def measure_deletion(address: str, extent: Extent) -> float:
    """Milliseconds in which so many threads are deleted in one call."""
    graph = program(address)
    names = graph.threads(after="other", limit=extent.page)
    start = time.perf_counter()
    deleted = graph.delete(names).threads
    taken = 1e3 * (time.perf_counter() - start)
    assert len(deleted) == len(names)
    return taken


@dataclass(frozen=True)
class Dropped:
    """Milliseconds in which a schema is dropped, and those of the writes of another label: before, and meanwhile."""

    taken: float
    before: Sequence[float]
    meanwhile: Sequence[float]


def measure_drop(server: str, count: int, before: int) -> Dropped:
    """Drops a schema with so many threads, while one writer appends to a thread of another label, after some writes."""
    days, writes = Schemas(server, prefix=f"bench_{uuid4().hex[:8]}_"), list[tuple[float, float]]()
    fill(days["old"].address, count)
    store, end = days["new"], list[float]()
    epoch = store.write(Change("t", run=RunRow("r", "t", (), {})))

    def write() -> None:
        while not end or writes[-1][0] < end[0]:
            start = time.perf_counter()
            store.write(Change("t", epoch, rows_of="r", rows=[Row(len(writes), "commit", {})]))
            writes.append((start, time.perf_counter()))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while len(writes) < before and not writing.done():
            time.sleep(0.001)
        begin = time.perf_counter()
        days.drop("old")
        end.append(time.perf_counter())
        writing.result()
    days.drop("new")
    taken = [(1e3 * (b - a), b > begin) for a, b in writes]
    found = [[each for each, is_later in taken if is_later is later] for later in (False, True)]
    return Dropped(1e3 * (end[0] - begin), *found)


AT_A_LIMIT, CONNECTIONS = 32, 3
"""Runs at once, and the connections that the server opens for them."""


def completed_at_a_limit(address: str) -> int:
    """How many of the runs complete if the server allows this process few connections, less than the store may open."""
    server, _, schema = split_address(address)
    role = f"few_{schema}"
    with psycopg.connect(server, autocommit=True) as admin:
        database = admin.info.dbname
        admin.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT {CONNECTIONS}")
        admin.execute(f'GRANT CREATE ON DATABASE "{database}" TO {role}')
        few = with_schema(f"{server}{'&' if '?' in server else '?'}user={role}", f"{schema}")
        with open_store(few) as store, ThreadPoolExecutor(AT_A_LIMIT) as pool:
            graph = talk().compile(store=store)
            runs = list(pool.map(lambda number: graph.thread(f"{number}").run({}), range(AT_A_LIMIT)))
        while admin.execute("SELECT FROM pg_stat_activity WHERE usename = %s", [role]).rowcount:
            time.sleep(0.01)
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    return sum(run.status == "completed" for run in runs)


# --- bytes

SIZES = """
    SELECT relname, pg_table_size(c.oid), pg_indexes_size(c.oid) FROM pg_class AS c
    WHERE relnamespace = %s::regnamespace AND relkind = 'r' ORDER BY pg_total_relation_size(c.oid) DESC"""


TABLES = ("`entry`", "`snapshot`", "`run`", "`thread`", "`ref`")
PARTS = ("rows", "indexes")


def bytes_of(address: str) -> dict[str, int]:
    """The bytes of a store, by table and its indexes; of a file as a whole."""
    if not address.startswith("postgres"):
        with sqlite3.connect(address) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return {"file": Path(address).stat().st_size}
    server, _, schema = split_address(address)
    with psycopg.connect(server) as session:
        found = session.execute(SIZES, [schema or "dspyer"]).fetchall()
    parts = {f"`{table}`, {what}": size for table, *both in found for what, size in zip(PARTS, both, strict=True)}
    return {part: size for part, size in parts.items() if part.startswith(TABLES)}


def bytes_a_thread(address: str, count: int) -> dict[str, float]:
    """What a thread adds to a store, by real runs."""
    graph = program(address)
    graph.thread("first").run({}).raise_error()
    before = bytes_of(address)
    for number in range(count):
        graph.thread(f"thread {number}").run({}).raise_error()
    return {part: (size - before[part]) / count for part, size in bytes_of(address).items()}


# --- all of it


@dataclass
class Report:
    """What was measured, by the name of a store.

    Attributes:
        writers: by how many they were.
        operations: for each round, milliseconds by size and operation.
        sizes: bytes of a thread, by part.
        deletions: milliseconds in which a page of threads is deleted, for each round.
        completed: how many runs complete at the limit of connections, for each round.
        dropped: the drop of a schema with the larger number of threads, for each round.
    """

    extent: Extent
    noise: list[float] = field(default_factory=list)
    server: str = ""
    writers: dict[str, dict[int, Writers]] = field(default_factory=dict)
    operations: dict[str, dict[int, list[dict[str, float]]]] = field(default_factory=dict)
    sizes: dict[str, dict[str, float]] = field(default_factory=dict)
    deletions: dict[str, list[float]] = field(default_factory=dict)
    completed: list[int] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)


@contextmanager
def addresses(postgres: str | None, folder: Path) -> Iterator[Callable[[str], str]]:
    """A function that returns the address of a new store of a kind; what was made is deleted at the end."""
    with ExitStack() as stack:
        server = postgres or stack.enter_context(postgres_server.server(folder / "postgres"))

        def fresh(kind: str) -> str:
            if kind == "SQLite":
                return str(folder / f"{uuid4().hex}.db")
            address = postgres_server.fresh(server)
            stack.callback(postgres_server.drop, address)
            return address

        yield fresh


KINDS = ("SQLite", "PostgreSQL")


def measure(extent: Extent, postgres: str | None = None, processes: bool = True, folder: Path | None = None) -> Report:
    """Measures everything, the stores and sizes in turn."""
    report = Report(extent)
    with ExitStack() as stack:
        where = folder or Path(stack.enter_context(TemporaryDirectory()))
        fresh = stack.enter_context(addresses(postgres, where))
        pool = stack.enter_context(_pool(max(extent.writers), processes))
        written = {kind: fresh(kind) for kind in KINDS}
        with psycopg.connect(split_address(written["PostgreSQL"])[0]) as connection:
            report.server = f"PostgreSQL {connection.info.server_version // 10_000}, SQLite {sqlite3.sqlite_version}"
        for kind, address in written.items():
            report.writers[kind] = {count: Writers() for count in extent.writers}
            list(pool.map(write, [address] * max(extent.writers), [0.0] * max(extent.writers), [0.0] * 99))
        for turn in range(extent.rounds):
            for kind in KINDS[:: 1 if turn % 2 else -1]:
                for count, into in report.writers[kind].items():
                    report.noise.append(calibrate())
                    measure_writers(pool, written[kind], count, extent.seconds, into)
        filled = {(kind, size): fresh(kind) for kind in KINDS for size in extent.threads}
        for (kind, size), address in filled.items():
            fill(address, size)
            measure_operations(address, size, QUICK)
            report.operations.setdefault(kind, {})[size] = []
        for turn in range(extent.rounds):
            for (kind, size), address in list(filled.items())[:: 1 if turn % 2 else -1]:
                report.noise.append(calibrate())
                report.operations[kind][size].append(measure_operations(address, size, extent))
        for turn in range(extent.rounds):
            for kind in KINDS[:: 1 if turn % 2 else -1]:
                deleted = measure_deletion(filled[kind, extent.threads[1]], extent)
                report.deletions.setdefault(kind, []).append(deleted)
            report.completed.append(completed_at_a_limit(fresh("PostgreSQL")))
            report.dropped.append(
                measure_drop(split_address(fresh("PostgreSQL"))[0], extent.threads[1], 10 * extent.times)
            )
        for kind in KINDS:
            report.sizes[kind] = bytes_a_thread(fresh(kind), extent.sized)
        program.cache_clear()
        sharded.cache_clear()
    return report


def _pool(writers: int, processes: bool) -> Executor:
    if not processes:
        return ThreadPoolExecutor(writers)
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(writers, context)


# --- what is shown


def as_text(report: Report) -> str:
    """The tables, in Markdown."""
    parts = _circumstances, _writers, _operations, _at_once, _bytes, _fleet
    return "\n\n".join([part(report) for part in parts])


def _circumstances(report: Report) -> str:
    extent, noise = report.extent, 100 * spread(report.noise)
    return (
        f"{describe()}; {report.server}, with the settings that they come with. Medians of {extent.rounds} rounds, the "
        f"stores in turn; a fixed piece of Python took {1e3 * median(report.noise):.1f} ms ± {noise:.0f} % meanwhile. "
        f"A run is {COMMITS} commits of a 70-byte message, on a new thread. `python -m bench.store_limits` measures it."
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _writers(report: Report) -> str:
    rows = [
        [f"{kind}, {count} writer{'s' * (count > 1)}"]
        + [number(median(each)) for each in (of.rate, of.middle, of.slowest)]
        + [f"{median(of.rate) / median(report.writers[kind][report.extent.writers[0]].rate):.2f}"]
        for kind, found in report.writers.items()
        for count, of in found.items()
    ]
    head = ["writers", "commits/s", "run, median (ms)", "run, 99 of 100 (ms)", "commits/s, to 1 writer"]
    return table(head, rows)


def _operations(report: Report) -> str:
    small, large = report.extent.threads
    rows = []
    for kind, found in report.operations.items():
        for title in OPERATIONS:
            few, many = ([each[title] for each in found[size]] for size in (small, large))
            ratios = [b / a for a, b in zip(few, many, strict=True)]
            rows.append([f"{kind}: {title}", *[number(median(each)) for each in (few, many)], f"{median(ratios):.2f}"])
    return table(["operation (ms)", f"{small:,} threads", f"{large:,} threads", "ratio"], rows)


def _at_once(report: Report) -> str:
    rows = [
        [f"{kind}: `program.delete` of {report.extent.page:,} threads (ms)", number(median(taken))]
        for kind, taken in report.deletions.items()
    ]
    title = f"PostgreSQL: of {AT_A_LIMIT} runs where it opens {CONNECTIONS} connections, completed (fewest)"
    rows.append([title, f"{min(report.completed)}"])
    many, dropped = report.extent.threads[1], report.dropped
    one = median([each["`delete`"] for each in report.operations["PostgreSQL"][many]])
    rows += [
        [f"PostgreSQL: `Schemas.drop` of {many:,} threads (ms)", number(median([each.taken for each in dropped]))],
        ["the same one by one, calculated of `delete` (ms)", number(one * many)],
    ]
    for name, of in (("median", median), ("longest", max)):
        ratios = [of(each.meanwhile) / median(each.before) for each in dropped]
        rows.append([f"writes of another label meanwhile, to the median before: {name}", number(median(ratios))])
    return table(["at once", "measured"], rows)


def _bytes(report: Report) -> str:
    rows = [
        [f"{kind}: {part}", number(size / 1024), f"{100 * size / sum(parts.values()):.0f} %"]
        for kind, parts in report.sizes.items()
        for part, size in [*parts.items(), ("all", sum(parts.values()))]
        if size > 0.01 * sum(parts.values()) and (part != "all" or len(parts) > 1)
    ]
    return table([f"a thread of {COMMITS} commits", "KiB", "share"], rows)


def _fleet(report: Report) -> str:
    sizes, rates = report.sizes["PostgreSQL"], report.writers["PostgreSQL"]
    whole, best = sum(sizes.values()), max(median(of.rate) for of in rates.values())
    indexes = sum(size for part, size in sizes.items() if "indexes" in part)
    deleting = median([each["`delete`"] for each in report.operations["PostgreSQL"][report.extent.threads[1]]])
    seconds = DAYS * 86_400
    rows = [
        ["rows in `entry`", f"{FLEET * ROWS / 1e9:.1f} billion"],
        ["bytes, indexes included", f"{FLEET * whole / 1e12:.2f} TB"],
        ["of these, indexes", f"{FLEET * indexes / 1e9:,.0f} GB"],
        [f"commits/s, if {DAYS} days make them", f"{FLEET * COMMITS / seconds:,.0f} (here at most {best:,.0f})"],
        [
            f"threads to delete in a second, if they are kept {DAYS} days",
            f"{FLEET / seconds:.0f} (here one after the other {1e3 / deleting:,.0f})",
        ],
    ]
    return table([f"{FLEET // 1_000_000} million threads of {COMMITS} commits", "calculated"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.store_limits", description="What a store carries.")
    parser.add_argument("--quick", action="store_true", help="only see that it works")
    parser.add_argument("--postgres", metavar="ADDRESS", help="the server; without it, one is started")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="where SQLite's files are made")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the section of bench/results.md")
    given = parser.parse_args(arguments)
    report = measure(QUICK if given.quick else Extent(), given.postgres, not given.quick, given.folder)
    text = as_text(report)
    print(text)
    if given.write:
        given.write.write_text(put_section(given.write.read_text(), f"## How much a store carries\n\n{text}\n"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
