"""Writing to a PostgreSQL store: one statement where that is enough, else one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from dspyer.stores.admission import Admitted, CurrentRows, admit
from dspyer.stores.base import Change, Row, RunRow, ThreadRow
from dspyer.stores.postgres_columns import (
    ContentColumns,
    pack,
    pack_content,
    pack_rows,
    pack_text,
    unpack,
    unpack_content,
    unpack_owner,
    unpack_point,
    unpack_run,
)
from dspyer.stores.postgres_connections import Connection
from dspyer.stores.postgres_sweep import BOUNDED, drop_blobs

MAX_NAME = 2_500
"""Bytes of a thread's name: what an index of PostgreSQL can hold."""

MESSAGE = 16 * 1024 * 1024
"""Bytes of blobs that are sent together."""

# How far a commit waits: on the disk as the server is set up for it, or until the server has it in its memory.
_FLUSHED = (
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END"
)
_DURABILITY = f"set_config('synchronous_commit', CASE WHEN %(flush)s THEN {_FLUSHED} ELSE 'off' END, true)"

_FOLLOWS = """
    CASE %(first)s::bigint WHEN 0 THEN EXISTS (SELECT FROM {s}.run WHERE id = %(run)b)
        ELSE EXISTS (SELECT FROM {s}.entry WHERE run = %(run)b AND seq = %(first)s::bigint - 1) END"""
_COLUMNS = """
    head_run = coalesce(%(head_run)b, head_run), head_seq = coalesce(%(head_seq)s::bigint, head_seq),
    root_run = coalesce(%(root_run)b, root_run), root_seq = coalesce(%(root_seq)s::bigint, root_seq),
    owner = CASE WHEN %(lease)s::float8 <= 0 THEN NULL WHEN %(lease)s::float8 > 0
        THEN coalesce(%(owner)b::bytea, owner) ELSE owner END,
    lease_until = CASE WHEN %(lease)s::float8 <= 0 THEN NULL WHEN %(lease)s::float8 > 0
        THEN clock_timestamp() + make_interval(secs => %(lease)s::float8) ELSE lease_until END"""
_NEW_ROWS = """
    SELECT %(run)b, new.seq, new.kind, new.head, new.data, string_to_array(new.refs, ' ')
    FROM {source}unnest(%(seqs)b::bigint[], %(kinds)b::text[], %(heads)b::bytea[], %(datas)b::bytea[], %(refs)b::text[])
    AS new (seq, kind, head, data, refs)"""
_INSERT_ROWS = "INSERT INTO {s}.entry (run, seq, kind, head, data, refs)" + _NEW_ROWS.replace("{source}", "")

# The whole of a usual append, in one message to the server and back.
_APPEND = f"""
    WITH held AS (%s), added AS (
        INSERT INTO {{s}}.entry (run, seq, kind, head, data, refs) {_NEW_ROWS.replace("{source}", "held, ")}
    ) SELECT count(*), {_DURABILITY} FROM held"""
_HOLD = f"UPDATE {{s}}.thread SET {_COLUMNS} WHERE name = %(thread)b AND fencing = %(epoch)s AND "
_APPEND_ROWS = _APPEND.replace("%s", f"{_HOLD}{_FOLLOWS} RETURNING 1", 1)
_APPEND_NOTHING = f"WITH held AS ({_HOLD} true RETURNING 1) SELECT count(*), {_DURABILITY} FROM held"
_APPEND_APART = _APPEND.replace(
    "%s", f"SELECT 1 FROM {{s}}.run WHERE id = %(run)b AND {_FOLLOWS} FOR KEY SHARE OF run", 1
)

_LOCK_THREAD = """
    SELECT fencing, owner, head_run, head_seq FROM {s}.thread WHERE name = %(thread)b FOR UPDATE"""
_NEW_THREAD = "INSERT INTO {s}.thread (name, fencing) VALUES (%(thread)b, 0) ON CONFLICT DO NOTHING"
_FENCE = "SELECT largest FROM {s}.fence"
# Those that others would remove wait until this has ended, and the other way round; in one order by all.
_HOLD_RUNS = "SELECT id FROM {s}.run WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE"
_HOLD_BLOBS = "SELECT id FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE"
_RUN = "SELECT id, thread, parents, header FROM {s}.run WHERE id = %b"
_LAST = """
    SELECT coalesce((SELECT max(seq) FROM {s}.entry WHERE run = run.id), -1) FROM {s}.run AS run WHERE id = %b"""
_ROWS_OF_RUN = "SELECT seq, kind, head, data, refs FROM {s}.entry WHERE run = %b AND seq >= %b AND seq <= %b"
_BEGIN_RUN = "INSERT INTO {s}.run (id, thread, parents, header) VALUES (%b, %b, %b, %b)"
_LINKS = "INSERT INTO {s}.link (parent, child) SELECT unnest(%b::text[]), %b ON CONFLICT DO NOTHING"
_INSERT_BLOBS = """
    INSERT INTO {s}.blob (id, data) SELECT * FROM unnest(%b::text[], %b::bytea[]) ORDER BY 1
    ON CONFLICT (id) DO UPDATE SET id = excluded.id"""
_SNAPSHOT_BEFORE = "SELECT refs FROM {s}.snapshot WHERE run = %b AND seq = %b"
_INSERT_SNAPSHOT = """
    INSERT INTO {s}.snapshot (run, seq, data, refs) VALUES (%b, %b, %b, %b)
    ON CONFLICT (run, seq) DO UPDATE SET data = excluded.data, refs = excluded.refs"""
_WRITE_THREAD = (
    f"UPDATE {{s}}.thread SET fencing = %(after)s, runs = runs + %(begins)s, {_COLUMNS} WHERE name = %(thread)b"
)


class EncodedChange(NamedTuple):
    """A change, encoded before any lock is taken.

    Attributes:
        rows: its rows.
        snapshot: the bytes of its snapshot and the ids that they refer to.
        values: the values of its statements.
        usual: whether one statement may do.
    """

    rows: ContentColumns
    snapshot: tuple[bytes, list[str] | None] | None
    values: dict[str, Any]
    usual: bool


class ChangeWriter:
    """Writes changes with a connection.

    Args:
        statement: fills the name of the schema into a statement.
    """

    def __init__(self, statement: Callable[[str], sql.Composed]) -> None:
        self._sql = statement
        self._append_rows = statement(_APPEND_ROWS)
        self._append_nothing = statement(_APPEND_NOTHING)
        self._append_apart = statement(_APPEND_APART)

    def pack(self, change: Change) -> EncodedChange:
        """Encodes a change.

        Raises:
            ValueError: for a name of a thread that is too long for an index.
        """
        if len(change.thread) > MAX_NAME // 4 and len(pack_text(change.thread)) > MAX_NAME:
            raise ValueError(f"a thread's name of more than {MAX_NAME} bytes: PostgreSQL keeps shorter ones")
        rows = pack_rows(change.rows)
        snapshot = None
        if change.snapshot is not None:
            data, refs = pack_content(change.snapshot.content, rows.blobs)
            snapshot = data or b"", refs
        head, root, lease = change.head, change.root, change.lease
        moves = change.next_epoch is not None
        values: dict[str, Any] = {
            "thread": pack_text(change.thread),
            "epoch": change.epoch,
            "head_run": None if head is None else head.run,
            "head_seq": None if head is None else head.seq,
            "root_run": None if root is None else root.run,
            "root_seq": None if root is None else root.seq,
            "owner": pack(change.owner) if change.owner is not None else None,
            "lease": None if lease is None else float(lease),
            # An epoch that the server forgets could be given to a second owner.
            "flush": change.flush or moves or not change.epoch,
            "run": change.rows_of,
            "first": rows.seqs[0] if rows.seqs else 0,
            **rows._asdict(),
        }
        del values["blobs"]
        return EncodedChange(rows, snapshot, values, not moves and _is_usual(change) and not rows.blobs)

    def write(self, connection: Connection, change: Change, written: EncodedChange) -> int:
        """Applies a change, and says the epoch that its thread has afterwards."""
        if written.usual and self._append(connection, change, written):
            return change.epoch
        with connection.transaction():
            return self._transact(connection, change, written)

    def _append(self, connection: Connection, change: Change, written: EncodedChange) -> bool:
        """A change that only adds what must be new; False if it does not fit: nothing was written then."""
        statement = self._append_rows if change.rows else self._append_nothing
        if not change.thread:
            statement = self._append_apart
        try:
            found = connection.execute(statement, written.values).fetchone()
        except (psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure):
            return False
        return found is not None and found[0] == 1

    def _transact(self, connection: Connection, change: Change, written: EncodedChange) -> int:
        def execute(statement: str, values: Any = None) -> list[tuple[Any, ...]]:
            cursor = connection.execute(self._sql(statement), values, binary=True)
            return cursor.fetchall() if cursor.description else []

        execute(f"SELECT {_DURABILITY}, {BOUNDED}", written.values)
        thread, fence = self._thread(execute, change, written)
        held = {run for (run,) in execute(_HOLD_RUNS, (sorted(_runs_of(change)),))}
        admitted = admit(change, self._found(execute, change, written)._replace(thread=thread, fence=fence))
        if admitted is None:
            return 0 if thread is None else thread.epoch
        if admitted.begins and change.run is not None:
            run = change.run
            execute(_BEGIN_RUN, (run.id, pack_text(run.thread), pack(run.parents), pack(dict(run.header))))
            if run.parents:
                execute(_LINKS, (sorted({parent.run for parent in run.parents}), run.id))
            held.add(run.id)
        for point in (change.head, change.root, change.snapshot and change.snapshot.at):
            if point is not None and point.run not in held:
                raise ValueError(f"there is no run {point.run!r}: nothing was written. Begin it with Change(run=...)")
        self._add(execute, change, written, admitted)
        if not change.thread:
            return 0
        more = {"after": admitted.epoch, "begins": admitted.begins + change.runs}
        execute(_WRITE_THREAD, {**written.values, **more})
        return admitted.epoch

    def _thread(self, execute: _Execute, change: Change, written: EncodedChange) -> tuple[ThreadRow | None, int]:
        """The thread, whose row is locked, and made if it must be new; then the largest epoch of removed ones too."""
        if not change.thread:
            execute("LOCK TABLE {s}.thread IN ROW SHARE MODE")  # a removal from the whole store has it alone
            return None, 0
        if not change.epoch:
            execute(_NEW_THREAD, written.values)
        for epoch, owner, run, seq in execute(_LOCK_THREAD, written.values):
            if epoch:  # 0: just made, by this transaction
                return ThreadRow(change.thread, unpack_point(run, seq), epoch, unpack_owner(owner)), 0
        return None, 0 if change.epoch else execute(_FENCE)[0][0]

    def _found(self, execute: _Execute, change: Change, written: EncodedChange) -> CurrentRows:
        """What is there where the change wants to write, without the thread."""
        run_row: RunRow | None = None
        if change.run is not None:
            run_row = next((unpack_run(*columns) for columns in execute(_RUN, (change.run.id,))), None)
        if not change.rows:
            return CurrentRows(run=run_row)
        last = next((last for (last,) in execute(_LAST, (change.rows_of,))), None)
        there = execute(_ROWS_OF_RUN, (change.rows_of, min(written.rows.seqs), max(written.rows.seqs)))
        rows = [Row(seq, kind, tuple(unpack(head)), unpack_content(*content)) for seq, kind, head, *content in there]
        return CurrentRows(None, run_row, last, rows)

    def _add(self, execute: _Execute, change: Change, written: EncodedChange, admitted: Admitted) -> None:
        packed, snapshot = written.rows, written.snapshot
        if packed.blobs:
            # In one order by all: two that bring the same blobs wait for each other, and not in a circle.
            held = {name for (name,) in execute(_HOLD_BLOBS, (sorted(packed.blobs),))}
            for batch in _batches({name: packed.blobs[name] for name in sorted(packed.blobs.keys() - held)}):
                execute(_INSERT_BLOBS, (list(batch), list(batch.values())))
        if admitted.rows:
            new = len(change.rows) - len(admitted.rows)
            values = {name: column[new:] for name, column in packed._asdict().items() if name != "blobs"}
            execute(_INSERT_ROWS, {**values, "run": change.rows_of})
        if snapshot is not None and change.snapshot is not None:
            before = execute(_SNAPSHOT_BEFORE, change.snapshot.at)
            execute(_INSERT_SNAPSHOT, (*change.snapshot.at, *snapshot))
            drop_blobs(execute, before)


_Execute = Callable[..., list[tuple[Any, ...]]]


def _is_usual(change: Change) -> bool:
    if change.run is not None or change.snapshot is not None or change.root is not None or change.runs:
        return False
    seqs = [row.seq for row in change.rows]
    if change.rows and (seqs[0] < 0 or seqs != list(range(seqs[0], seqs[0] + len(seqs)))):
        return False
    if not change.thread:
        return bool(change.rows) and change.head is None
    own_head = change.head is None or (change.head.run == change.rows_of and bool(change.rows))
    return change.epoch > 0 and own_head


def _batches(blobs: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """The blobs in parts that one message can hold."""
    batch: dict[str, bytes] = {}
    size = 0
    for name, data in blobs.items():
        if batch and size + len(data) > MESSAGE:
            yield batch
            batch, size = {}, 0
        batch[name] = data
        size += len(data)
    if batch:
        yield batch


def _runs_of(change: Change) -> set[str]:
    """The runs that a change names, and that must not go before it has ended."""
    points = [
        change.head,
        change.root,
        change.snapshot and change.snapshot.at,
        *(change.run.parents if change.run else ()),
    ]
    named = {change.run.id if change.run else "", change.rows_of} - {""}
    return named | {point.run for point in points if point is not None}
