"""Removing from a PostgreSQL store what `dspyer.stores.reach` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from psycopg import sql

from dspyer.stores.base import Swept
from dspyer.stores.postgres_columns import pack_text, unpack_point, unpack_points, unpack_text
from dspyer.stores.postgres_connections import Connection
from dspyer.stores.reach import Ends, Extent, Removal

Decide = Callable[[Mapping[str, Ends], Mapping[str, Extent]], Removal]
Statement = Callable[[str], sql.Composed]

# Every writer locks one of these tables before it writes: nothing new can refer to what is about to go.
_LOCK = "LOCK TABLE {s}.thread, {s}.entry IN EXCLUSIVE MODE"
_THREADS = "SELECT name, head_run, head_seq, root_run, root_seq FROM {s}.thread"
_RUNS = """
    SELECT id, thread, parents, coalesce((SELECT max(seq) FROM {s}.entry WHERE run = run.id), -1)
    FROM {s}.run AS run"""
_DROP_SPANS = """
    DELETE FROM {s}.%s AS gone USING unnest(%%b::text[], %%b::bigint[], %%b::bigint[]) AS span (run, first, last)
    WHERE gone.run = span.run AND gone.seq BETWEEN span.first AND span.last RETURNING gone.refs"""
_DROP_ROWS = _DROP_SPANS % "entry"
_DROP_SNAPSHOTS = _DROP_SPANS % "snapshot"
_DROP_RUNS = "DELETE FROM {s}.run WHERE id = ANY(%b)"
_DROP_THREADS = "DELETE FROM {s}.thread WHERE name = ANY(%b)"
_ORPHAN = "UPDATE {s}.run SET thread = ''::bytea WHERE id = ANY(%b)"
_DROP_ALL_SNAPSHOTS = """
    DELETE FROM {s}.snapshot AS gone WHERE NOT EXISTS (
        SELECT FROM {s}.thread WHERE root_run = gone.run AND root_seq = gone.seq) RETURNING refs"""
_DROP_BLOBS = """
    DELETE FROM {s}.blob WHERE id = ANY(%b)
    AND NOT EXISTS (SELECT FROM {s}.entry WHERE refs @> ARRAY[blob.id] AND refs IS NOT NULL)
    AND NOT EXISTS (SELECT FROM {s}.snapshot WHERE refs @> ARRAY[blob.id] AND refs IS NOT NULL)"""
_LAST_ROW = 2**63 - 1


def sweep(connection: Connection, statement: Statement, decide: Decide) -> Swept:
    """Removes what is decided, and the blobs that nothing refers to then, in one transaction."""
    with connection.transaction():
        execute = _executor(connection, statement)
        execute(_LOCK)
        removal = decide(
            {
                unpack_text(name): Ends(unpack_point(*points[:2]), unpack_point(*points[2:]))
                for name, *points in execute(_THREADS)
            },
            {
                run: Extent(unpack_text(thread), unpack_points(parents), last)
                for run, thread, parents, last in execute(_RUNS)
            },
        )
        spans = [(run, 0, _LAST_ROW) for run in removal.runs] + [tuple(span) for span in removal.rows]
        columns = [list(column) for column in zip(*spans, strict=True)]
        rows = execute(_DROP_ROWS, columns) if spans else []
        snapshots = execute(_DROP_SNAPSHOTS, columns) if spans else []
        if removal.runs:
            execute(_DROP_RUNS, [list(removal.runs)])
        if removal.orphans:
            execute(_ORPHAN, [list(removal.orphans)])
        if removal.threads:
            execute(_DROP_THREADS, [[pack_text(name) for name in removal.threads]])
        _drop_blobs(execute, [*rows, *snapshots])
        return Swept(removal.threads, len(removal.runs), len(rows), removal.kept)


def sweep_snapshots(connection: Connection, statement: Statement) -> None:
    """Removes the snapshots that are at no thread's root."""
    with connection.transaction():
        execute = _executor(connection, statement)
        execute(_LOCK)
        _drop_blobs(execute, execute(_DROP_ALL_SNAPSHOTS))


def _drop_blobs(execute: Callable[..., list[tuple[Any, ...]]], removed: list[tuple[Any, ...]]) -> None:
    candidates = {name for (refs,) in removed for name in refs or ()}
    if candidates:
        execute(_DROP_BLOBS, [sorted(candidates)])


def _executor(connection: Connection, statement: Statement) -> Callable[..., list[tuple[Any, ...]]]:
    def execute(text: str, values: Any = None) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement(text), values, binary=True)
        return cursor.fetchall() if cursor.description else []

    return execute
