"""Removing from a PostgreSQL store what `dspyer.stores.reach` says.

Who writes locks the row of its thread first, then the rows of the runs that it names, then those of the large values
that it refers to, each kind in one order. A removal does the same with all threads and runs that are connected with
what it removes, and reads again what it had read before it had the locks. Others go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from psycopg import sql

from dspyer.stores.admission import check_epochs
from dspyer.stores.base import DeletionReport
from dspyer.stores.postgres_columns import pack_text, unpack_point, unpack_points, unpack_text
from dspyer.stores.postgres_connections import PATIENCE, Connection
from dspyer.stores.reach import DeletionPlan, Ends, Extent, deletion_plan

Decide = Callable[[Mapping[str, Ends], Mapping[str, Extent]], DeletionPlan]
Statement = Callable[[str], sql.Composed]
Near = tuple[dict[str, Ends], dict[str, Extent]]

TRIES = 5
"""How often a removal reads again what others have connected with it meanwhile; then it has the tables alone."""

BOUNDED = f"set_config('lock_timeout', '{1000 * PATIENCE:.0f}', true)"
"""Ends a transaction that waits too long for a lock."""

# Every writer locks one of these tables before it writes: nothing new can refer to what is about to go.
_LOCK = "LOCK TABLE {s}.thread, {s}.entry IN EXCLUSIVE MODE"
_ENDS = "SELECT name, head_run, head_seq, root_run, root_seq FROM {s}.thread"
_SOME_ENDS = f"{_ENDS} WHERE head_run = ANY(%(runs)b) OR name = ANY(%(names)b)"
_EXTENTS = """
    SELECT id, thread, parents, coalesce((SELECT max(seq) FROM {s}.entry WHERE run = run.id), -1)
    FROM {s}.run AS run"""
# What dspyer.stores.reach.connected says, in one statement.
_NEAR = f"""
    WITH RECURSIVE
    held AS NOT MATERIALIZED (SELECT name FROM {{s}}.thread WHERE root_run IS NULL AND name <> ALL(%(names)b)),
    behind (id) AS (
        SELECT run.id FROM {{s}}.run AS run WHERE run.thread = ANY(%(names)b)
        UNION SELECT run.id FROM {{s}}.thread AS own JOIN {{s}}.run AS run ON run.id = own.head_run
            WHERE own.name = ANY(%(names)b) AND NOT EXISTS (SELECT FROM held WHERE held.name = run.thread)
        UNION SELECT run.id FROM behind JOIN {{s}}.link ON link.child = behind.id
            JOIN {{s}}.run AS run ON run.id = link.parent
            WHERE NOT EXISTS (SELECT FROM held WHERE held.name = run.thread)
    ), near (id) AS (
        SELECT id FROM behind UNION SELECT link.child FROM near JOIN {{s}}.link ON link.parent = near.id
    ) {_EXTENTS.strip()} WHERE id IN (SELECT id FROM near)"""
_LOCK_THREADS = "SELECT FROM {s}.thread WHERE name = ANY(%b) ORDER BY name FOR UPDATE"
_LOCK_RUNS = "SELECT FROM {s}.run WHERE id = ANY(%b) ORDER BY id FOR UPDATE"
_EPOCHS = "SELECT name, fencing FROM {s}.thread WHERE name = ANY(%b)"
_RAISE = "UPDATE {s}.fence SET largest = greatest(largest, %s)"
_DROP_SPANS = """
    DELETE FROM {s}.%s AS gone USING unnest(%%b::text[], %%b::bigint[], %%b::bigint[]) AS span (run, first, last)
    WHERE gone.run = span.run AND gone.seq BETWEEN span.first AND span.last RETURNING gone.refs"""
_DROP_ROWS = _DROP_SPANS % "entry"
_DROP_SNAPSHOTS = _DROP_SPANS % "snapshot"
_DROP_RUNS = "DELETE FROM {s}.run WHERE id = ANY(%b)"
_DROP_LINKS = "DELETE FROM {s}.link WHERE child = ANY(%b)"
_DROP_THREADS = "DELETE FROM {s}.thread WHERE name = ANY(%b)"
_ORPHAN = "UPDATE {s}.run SET thread = ''::bytea WHERE id = ANY(%b)"
_DROP_ALL_SNAPSHOTS = """
    DELETE FROM {s}.snapshot AS gone WHERE NOT EXISTS (
        SELECT FROM {s}.thread WHERE root_run = gone.run AND root_seq = gone.seq) RETURNING refs"""
_LOCK_BLOBS = "SELECT FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR UPDATE"
_DROP_BLOBS = """
    DELETE FROM {s}.blob WHERE id = ANY(%b)
    AND NOT EXISTS (SELECT FROM {s}.entry WHERE refs @> ARRAY[blob.id] AND refs IS NOT NULL)
    AND NOT EXISTS (SELECT FROM {s}.snapshot WHERE refs @> ARRAY[blob.id] AND refs IS NOT NULL)"""
_LAST_ROW = 2**63 - 1


def sweep_threads(
    connection: Connection, statement: Statement, gone: Collection[str], epochs: Mapping[str, int]
) -> DeletionReport:
    """Removes threads and what only they reach; without any, all that nothing reaches.

    Raises:
        ConcurrentRunError: if a thread has another epoch than it must have.
    """

    def check(execute: Execute) -> None:
        names = [pack_text(name) for name in {*gone, *epochs}]
        found = {unpack_text(name): epoch for name, epoch in execute(_EPOCHS, [names])}
        check_epochs(found, epochs)
        execute(_RAISE, [max([found[name] for name in gone if name in found], default=0)])

    return sweep(connection, statement, gone, lambda threads, runs: deletion_plan(threads, runs, gone), check)


def sweep(
    connection: Connection,
    statement: Statement,
    names: Collection[str],
    decide: Decide,
    check: Callable[[Execute], None] | None = None,
) -> DeletionReport:
    """Removes what is decided, and the blobs that nothing refers to then, in one transaction.

    Args:
        connection: where to.
        statement: fills the name of the schema into a statement.
        names: the threads that it is about; none for the whole store.
        decide: says what goes.
        check: is called when the threads are locked; what it raises is raised.
    """
    execute = _executor(connection, statement)
    for turn in range(TRIES + 1):
        with connection.transaction():
            execute(f"SELECT {BOUNDED}")
            if not names or turn == TRIES:
                execute(_LOCK)
                near = _near(execute, names)
            else:
                before = _near(execute, names)
                execute(_LOCK_THREADS, [sorted(pack_text(name) for name in {*before[0], *names})])
                execute(_LOCK_RUNS, [sorted(before[1])])
                near = _near(execute, names)
                if not (near[0].keys() <= before[0].keys() and near[1].keys() <= before[1].keys()):
                    continue  # what has come meanwhile is not locked, and would be out of order now
            if check is not None:
                check(execute)
            return _remove(execute, decide(*near))
    raise AssertionError("the last turn has the tables alone")


def sweep_snapshots(connection: Connection, statement: Statement) -> None:
    """Removes the snapshots that are at no thread's root."""
    with connection.transaction():
        execute = _executor(connection, statement)
        execute(f"SELECT {BOUNDED}")
        execute(_LOCK)
        drop_blobs(execute, execute(_DROP_ALL_SNAPSHOTS))


def _near(execute: Execute, names: Collection[str]) -> Near:
    """The threads and runs that decide what goes; all for no names."""
    packed = [pack_text(name) for name in names]
    found = execute(_NEAR, {"names": packed}) if names else execute(_EXTENTS)
    runs = {run: Extent(unpack_text(thread), unpack_points(parents), last) for run, thread, parents, last in found}
    owners = {pack_text(extent.thread) for extent in runs.values() if extent.thread}
    some = {"names": [*{*packed, *owners}], "runs": list(runs)}
    threads = {
        unpack_text(name): Ends(unpack_point(*points[:2]), unpack_point(*points[2:]))
        for name, *points in (execute(_SOME_ENDS, some) if names else execute(_ENDS))
    }
    return threads, runs


def _remove(execute: Execute, gone: DeletionPlan) -> DeletionReport:
    spans = [(run, 0, _LAST_ROW) for run in gone.runs] + [tuple(span) for span in gone.rows]
    columns = [list(column) for column in zip(*spans, strict=True)]
    rows = execute(_DROP_ROWS, columns) if spans else []
    snapshots = execute(_DROP_SNAPSHOTS, columns) if spans else []
    if gone.runs:
        execute(_DROP_RUNS, [list(gone.runs)])
        execute(_DROP_LINKS, [list(gone.runs)])
    if gone.orphans:
        execute(_ORPHAN, [list(gone.orphans)])
    if gone.threads:
        execute(_DROP_THREADS, [[pack_text(name) for name in gone.threads]])
    drop_blobs(execute, [*rows, *snapshots])
    return DeletionReport(gone.threads, len(gone.runs), len(rows), gone.kept, False)


def drop_blobs(execute: Execute, removed: list[tuple[Any, ...]]) -> None:
    """Removes those of the blobs of removed contents that nothing refers to any more.

    They are locked first, and looked for afterwards: who wrote a reference to one held it until its end.
    """
    candidates = sorted({name for (refs,) in removed for name in refs or ()})
    if candidates:
        execute(_LOCK_BLOBS, [candidates])
        execute(_DROP_BLOBS, [candidates])


Execute = Callable[..., list[tuple[Any, ...]]]


def _executor(connection: Connection, statement: Statement) -> Execute:
    def execute(text: str, values: Any = None) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement(text), values, binary=True)
        return cursor.fetchall() if cursor.description else []

    return execute
