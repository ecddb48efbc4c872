"""The tables of a PostgreSQL store, and how older ones become those of today."""

from __future__ import annotations

from psycopg import sql

from dspyer.errors import StoreError
from dspyer.stores.postgres_connections import Connection

MIGRATIONS: list[str] = [
    """
    CREATE TABLE {s}.thread (
        name bytea PRIMARY KEY,
        epoch bigint NOT NULL,
        head_run text COLLATE "C",
        head_seq bigint,
        root_run text COLLATE "C",
        root_seq bigint,
        owner bytea,
        lease_until timestamptz,
        runs bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    CREATE TABLE {s}.run (
        id text COLLATE "C" PRIMARY KEY,
        number bigint GENERATED ALWAYS AS IDENTITY,
        thread bytea NOT NULL,
        parents bytea NOT NULL,
        header bytea NOT NULL
    );
    CREATE INDEX run_of_thread ON {s}.run (thread, number);
    CREATE TABLE {s}.entry (
        run text COLLATE "C",
        seq bigint,
        kind text NOT NULL,
        head bytea NOT NULL,
        data bytea,
        refs text[],
        PRIMARY KEY (run, seq)
    );
    CREATE INDEX entry_refs ON {s}.entry USING gin (refs) WHERE refs IS NOT NULL;
    CREATE TABLE {s}.snapshot (
        run text COLLATE "C",
        seq bigint,
        data bytea NOT NULL,
        refs text[],
        PRIMARY KEY (run, seq)
    );
    CREATE INDEX snapshot_refs ON {s}.snapshot USING gin (refs) WHERE refs IS NOT NULL;
    CREATE TABLE {s}.blob (
        id text COLLATE "C" PRIMARY KEY,
        data bytea NOT NULL
    );
    """,
    # What refers to what, so that a removal looks at nothing else, and how far epochs have been given. The column of
    # epochs has a new name: a program of version 1 that is at work would write no links, so it must not go on writing.
    """
    ALTER TABLE {s}.thread RENAME COLUMN epoch TO fencing;
    CREATE TABLE {s}.fence (largest bigint NOT NULL);
    INSERT INTO {s}.fence SELECT coalesce(max(fencing), 0) FROM {s}.thread;
    CREATE INDEX thread_head ON {s}.thread (head_run) WHERE head_run IS NOT NULL;
    CREATE TABLE {s}.link (
        parent text COLLATE "C",
        child text COLLATE "C",
        PRIMARY KEY (parent, child)
    );
    CREATE INDEX link_child ON {s}.link (child);
    INSERT INTO {s}.link SELECT DISTINCT parent ->> 0, id
        FROM {s}.run, json_array_elements(convert_from(parents, 'UTF8')::json) AS parent;
    """,
]
"""What leads from each version of the tables to the next; the first makes them. Never changed, only added to."""


def prepare(connection: Connection, schema: str) -> None:
    """Makes the tables, or brings them to the version of today; does nothing where they are of today.

    Raises:
        StoreError: the tables are of a later version.
    """
    if version_of(connection, schema) == len(MIGRATIONS):
        return
    names = {"s": sql.Identifier(schema)}
    with connection.transaction():
        # Held until the transaction ends: of many that start at once, one makes the tables and the others find them.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('dspyer ' || %s, 0))", [schema])
        version = version_of(connection, schema)
        if version > len(MIGRATIONS):
            raise StoreError(
                f"the tables in schema {schema!r} are of version {version}, and this dspyer knows {len(MIGRATIONS)}: "
                f"use the later dspyer that made them, or another schema"
            )
        if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).rowcount:
            connection.execute(sql.SQL("CREATE SCHEMA {s}").format(**names))
        if not version:
            table = "CREATE TABLE {s}.version (number int PRIMARY KEY, since timestamptz DEFAULT clock_timestamp())"
            connection.execute(sql.SQL(table).format(**names))
        for number in range(version, len(MIGRATIONS)):
            connection.execute(sql.SQL(MIGRATIONS[number]).format(**names))
            connection.execute(sql.SQL("INSERT INTO {s}.version (number) VALUES (%s)").format(**names), [number + 1])


def version_of(connection: Connection, schema: str) -> int:
    """The version of the tables in a schema; 0 for none."""
    # Read from the catalog: to_regclass may still answer from what the session knew before it waited for the lock.
    tables = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'version'"
    if not connection.execute(tables, [schema]).rowcount:
        return 0
    table = sql.Identifier(schema, "version")
    row = connection.execute(sql.SQL("SELECT coalesce(max(number), 0) FROM {}").format(table)).fetchone()
    return int(row[0]) if row else 0
