"""The common part of the stores in SQLite and PostgreSQL: statements, and the order in which a change writes.

The tables are the same, so the statements are too. In a statement, `{s}.` is the schema, `?` a value; an `SQLSession`
executes it with the driver of its database. What differs between the two is its methods: locks, leases, and how the
next row of a run is appended, which each database does in as few statements as it can.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

from dspyer.errors import StateError, StoreError, brief
from dspyer.stores.base import (
    END,
    ENDINGS,
    Change,
    CurrentRows,
    DeletionReport,
    ListedRun,
    Owner,
    Point,
    Row,
    RunPlace,
    RunQuery,
    RunRow,
    Snapshot,
    Store,
    ThreadRow,
    WritePlan,
    as_read,
    check_runs,
    end_of,
    ending_of,
    is_listed,
    never,
    plan_write,
    start_of,
)
from dspyer.stores.content import MAX_JSON_BYTES, Content, parse_json
from dspyer.stores.reachability import DeletionPlan, RunSummary, plan_delete_unreachable, plan_deletion

# How the SQL stores write values into columns: JSON as UTF-8 bytes, bodies of rows compressed, and back.
#
# Bytes, not the databases' own text and JSON types: PostgreSQL's `text` refuses the character 0 and its `jsonb`
# rewrites numbers, and neither database takes the lone surrogates that a model may return.
#
# The *body* of an entry or a snapshot is DEFLATE (RFC 1951) over three lines: the header as JSON, the ids of the
# blobs of the content with commas, and the bytes of the content (JSON, unless the store encrypts). No line break
# occurs in the first two. A body without content has one line. Entries are short and alike, so the compressor begins
# with a preset dictionary: `zlib.decompressobj(-15, zdict=DICTIONARY).decompress(body)` reads any of them. Two bytes
# follow, the CRC-16 of those before them: the frame that zlib itself puts around them takes ten, a fifth of the body
# of a short entry.


_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

DICTIONARY = (
    b'"conflicts":[{"join":"failed":[{"node":"reason":"sent":[{"value":"prompt_tokens":"response_tokens":"finish_reason'
    b'":"stop","predictor":"model":"response_model":"cost":0.0,"seconds":0."started":"lm_calls":[{"messages":[{"role":"'
    b'system","content":{"$text":""attempt":2,"cached":true,"live":"items":{"field":"scope":["trunk:"status":"completed'
    b'","digest":"","execution":"trunk:2","key":""}\n\n{"made":{"":{"$type":"tail","value":[{"$type":"replace","value":'
    b'{"id":"0:1","node":"join:","step":1,"visit":1,"settled":false,"parents":[0,1]}\n\n{"patch":{"answer":"}},"lm_call'
    b's":[{"predictor":""to":["END"],"at":[18,"step":2,"visit":1,"calls":[1,0]}\n\n{"patch":{"messages":[{"role":"assis'
    b'tant","content":"{"role":"user","content":"}]}}"}}]}\n\n{"patch":{"{"id":"trunk:1","node":"","to":[""],"at":[179'
)
"""What bodies often hold, the most frequent last. A part of the format: another text is another version of it."""

MAX_BODY = MAX_JSON_BYTES + (1 << 20)
"""Bytes of a body at most: those of a content, and of a header with the ids of its blobs."""

_SHORT = 1024
"""Bytes up to which a body is compressed with little memory: allocating the usual 256 KB takes 60 µs.

The window is then 2,048 bytes: zlib looks back 262 bytes less, and the whole dictionary is to be in reach.
"""


def encode_json(value: Any) -> bytes:
    """JSON as UTF-8, lone surrogates included."""
    return _json(value).encode("utf-8", "surrogatepass")


def encode_text(text: str) -> bytes:
    """Any text as bytes that sort as its code points do."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def decode_point(run: str | None, seq: int | None) -> Point | None:
    """The point of two columns; None where both are null."""
    return None if run is None or seq is None else Point(run, seq)


BLOB_ID = re.compile("(?:[0-9a-f]{2})+")
"""The ids of blobs that can be columns."""


def encode_blob_id(name: str) -> bytes:
    """The id of a blob as the bytes of its hexadecimal digits; `bytes.hex` reads it."""
    if not BLOB_ID.fullmatch(name):
        raise ValueError(
            f"{brief(name)} is no id of a blob, which has hexadecimal digits in pairs: nothing was written"
        )
    return bytes.fromhex(name)


# --- bodies

_CRC_START = 0xFFFF
"""With what the CRC-16 begins, so that zeros in front change it."""

CHANGED = "it was changed after dspyer wrote it. Restore the store from a backup, or load the thread from an export"

DAMAGED = "damaged"
"""The one key of the header of a row whose body cannot be read; its value says why."""


def encode_body(header: Any, content: Content | None) -> bytes:
    """The body of an entry or a snapshot: its header and its content in one column."""
    text = encode_json(header)
    if content is not None:
        data = content.data
        text = b"%b\n%b\n%b" % (text, ",".join(content.refs).encode(), data)
    window, memory = (-11, 2) if len(text) <= _SHORT else (-15, 8)  # negative: without the frame of zlib
    packer = zlib.compressobj(6, zlib.DEFLATED, window, memory, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    packed = packer.compress(text) + packer.flush()
    return packed + crc_hqx(packed, _CRC_START).to_bytes(2)


def decode_body(body: bytes) -> tuple[Any, Content | None]:
    """The header and the content of a body.

    A damaged body has the header `{DAMAGED: why}` and no content: the reader of this row names it, and the other rows
    stay readable.
    """
    try:
        if crc_hqx(body, _CRC_START):  # 0 if the last two bytes are the CRC-16 of those before them
            raise StateError("its checksum is wrong")
        unpacker = zlib.decompressobj(-15, DICTIONARY)
        text = unpacker.decompress(body, MAX_BODY + 1)  # a zip bomb is recognized without being decompressed
        if len(text) > MAX_BODY:
            raise StateError(f"it holds more than the {MAX_BODY:,} bytes that are read at most")
        if not unpacker.eof:
            raise StateError("it is truncated")
        header, *rest = text.split(b"\n", 2)
        content = None
        if rest:
            refs, data = rest
            content = Content.stored(data, refs.decode().split(",") if refs else ())
        return parse_json(header.decode("utf-8", "surrogatepass")), content
    except (zlib.error, TypeError, ValueError, RecursionError, StateError) as error:  # TypeError: SQLite may hold text
        return {DAMAGED: f"its body {brief(body)} cannot be read: {error}"}, None


# --- the column `ended` of a run


def encode_ended(row: Row | None) -> bytes | None:
    """Encode how a run ended, by its row of the kind `"end"`: its status, its number and its header, in three lines."""
    return row and b"%b\n%d\n%b" % (encode_text(ending_of(row)), row.seq, encode_json(row.header))


def decode_ended(ended: bytes) -> tuple[str, Row]:
    """The status with which a run ended, and its row of the kind `"end"`, without content."""
    status, seq, header = ended.split(b"\n", 2)
    return decode_text(status), Row(int(seq), END, json.loads(header))


def ended_range(status: str) -> tuple[bytes, bytes]:
    """The columns of the runs that ended with a status: those from the first one on, and below the second one."""
    return encode_text(status) + b"\n", encode_text(status) + b"\x0b"


# --- tables

VERSION = 6
"""The version of the tables, which is in the table `version`."""

ALL_TABLES = """
CREATE TABLE {s}.version (number bigint NOT NULL);
INSERT INTO {s}.version VALUES ({version});
CREATE TABLE {s}.fence (largest bigint NOT NULL);
INSERT INTO {s}.fence VALUES ({largest});
CREATE TABLE {s}.thread (name {name} PRIMARY KEY NOT NULL, fencing bigint NOT NULL, head_run {id}, head_seq bigint,
    root_run {id}, root_seq bigint, owner {bytes}, lease_until {time} NOT NULL, runs bigint NOT NULL) {thread};
CREATE INDEX thread_head ON {s}.thread (head_run);
CREATE TABLE {s}.run (id {id} PRIMARY KEY NOT NULL, thread {name} NOT NULL, parents {bytes} NOT NULL,
    header {bytes} NOT NULL, graph {bytes}, started float8 NOT NULL, ended {bytes}) {keyed};
CREATE INDEX run_thread ON {s}.run (thread);
CREATE INDEX run_started ON {s}.run (started, id);
CREATE TABLE {s}.link (parent {id}, child {id}, PRIMARY KEY (parent, child)) {keyed};
CREATE INDEX link_child ON {s}.link (child);
CREATE TABLE {s}.entry (run {id}, seq bigint, kind {id} NOT NULL, body {bytes} NOT NULL,
    PRIMARY KEY (run, seq)) {keyed};
CREATE TABLE {s}.snapshot (run {id}, seq bigint, body {bytes} NOT NULL, PRIMARY KEY (run, seq)) {keyed};
CREATE TABLE {s}.blob (id {bytes} PRIMARY KEY NOT NULL, body {bytes} NOT NULL) {keyed};
CREATE TABLE {s}.ref (blob {bytes}, run {id}, seq bigint, PRIMARY KEY (blob, run, seq)) {keyed};
CREATE INDEX ref_run ON {s}.ref (run, seq)
"""
"""The tables, with the names that a database has for types: a run is a row of `run` and rows of `entry`.

`fencing` is the epoch of a thread, and `fence` the largest of those that were deleted: at first `{largest}`.
`lease_until` is when the lease expires, or when the thread was released, which has no owner then. `link` has the
parents of runs, and `ref` the uses of blobs (`seq` is that of an entry, or -1 minus that of a snapshot), so that a
deletion searches nothing. `ended` is null until a run has ended.
"""


logger = logging.getLogger("dspyer")

T = TypeVar("T")
Columns = tuple[Any, ...]
Plan = Callable[[Mapping[str, ThreadRow], Mapping[str, RunSummary]], DeletionPlan]
Ref = tuple[bytes, str, int]
"""A use of a blob, the columns of the table `ref`: the blob, the run, and the entry, or -1 minus that of a snapshot."""

PATIENCE = 15.0
"""Seconds that a call waits for a lock: half of a lease, so that the lease of a waiting owner does not expire."""

MAX_SEQ = (1 << 63) - 1
"""The greatest number that a row can have: that of an integer in the databases."""

_BATCH = 500
"""How many keys one statement looks for."""


class SQLSession(ABC):
    """Executes statements with one connection.

    Attributes:
        lease: the expression for when a lease expires, in seconds after `now`.
        options: further arguments for a statement that reads.
    """

    options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    lease: ClassVar[str]

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @property
    def now(self) -> float:
        """The time from which `lease` counts."""
        return 0.0

    @property
    def ago(self) -> str:
        """The expression for the time that is as many seconds ago as its value says, as `lease_until` has it."""
        return f"{self.now!r} - ?"

    @abstractmethod
    def text(self, statement: str) -> str:
        """A statement as the driver takes it."""

    def __call__(self, statement: str, values: Any = ()) -> list[Columns]:
        """Execute a statement and return its rows."""
        cursor = self.connection.execute(self.text(statement), values, **self.options)
        return cursor.fetchall() if cursor.description else []

    def count(self, statement: str, values: Any = ()) -> int:
        """Execute a statement and return how many rows it has changed."""
        return int(self.connection.execute(self.text(statement), values).rowcount)

    def each(self, statement: str, values: Iterable[Any]) -> None:
        """Execute a statement with each of the values."""
        if listed := list(values):
            self.connection.cursor().executemany(self.text(statement), listed)

    def encode_name(self, name: str) -> Any:
        """The column of the name of a thread. Half of a surrogate pair is in no name: such a text is like none."""
        return name if name.isascii() or name == name.encode("utf-8", "replace").decode() else encode_text(name)

    def decode_name(self, column: Any) -> str:
        """The name of a thread."""
        return str(column)

    def thread_now(self, thread: ThreadRow) -> ThreadRow:
        """A thread as it was read from its columns, with the seconds of its lease."""
        return as_read(thread, self.now)

    def at_one_time(self) -> AbstractContextManager[object]:
        """Make all statements of a block see the same rows, where others write meanwhile."""
        return nullcontext()

    @abstractmethod
    def lock(self, change: Change) -> CurrentRows:
        """Lock what a change writes, and read what `plan_write` must know, but the rows."""

    @abstractmethod
    def insert_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        """Insert the blobs that are not stored yet."""

    @abstractmethod
    def write_thread(self, change: Change, current: CurrentRows, plan: WritePlan) -> None:
        """Write the row of the thread of a change."""

    def lock_blobs(self, blobs: list[bytes]) -> None:  # noqa: B027 - not abstract: one database needs nothing
        """Keep others from referring to blobs that may be deleted; nothing to do where one writes at a time."""

    def of_keys(self, statement: str, keys: Iterable[Any]) -> list[Columns]:
        """Execute a statement, in which `KEYS` is the list of keys, for all of them, and return its rows."""
        found = [self(statement.replace("KEYS", _marks(batch)), batch) for batch in _batches(keys)]
        return [columns for rows in found for columns in rows]


def _batches(keys: Iterable[Any]) -> Iterator[list[Any]]:
    listed = list(keys)
    return (listed[first : first + _BATCH] for first in range(0, len(listed), _BATCH))


def _marks(keys: Collection[Any]) -> str:
    return ", ".join("?" * len(keys))


class SQLStore(Store):
    """A store in tables; `options` are those with which it was made, but for its address."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._options), (self.address,)

    @abstractmethod
    def _read(self, work: Callable[[SQLSession], T]) -> T:
        """Call `work`, which only reads."""

    @abstractmethod
    def _write(self, work: Callable[[SQLSession], T]) -> T:
        """Call `work` in a transaction."""

    @abstractmethod
    def _delete(self, names: Collection[str], plan: Plan) -> DeletionReport:
        """Delete what is planned for the threads and runs around `names`, or for the whole store without names."""

    def thread(self, name: str) -> ThreadRow | None:
        def work(session: SQLSession) -> ThreadRow | None:
            threads = THREAD.replace("LEASE", session.lease)
            found = session(f"{threads} WHERE name = ?", (session.encode_name(name),))
            return session.thread_now(decode_thread(session, found[0])) if found else None

        return self._read(work)

    def threads(self, after: str = "", limit: int | None = None, idle: float | None = None) -> list[str]:
        def work(session: SQLSession) -> list[str]:
            term, until = ("", ()) if idle is None else (f" AND lease_until <= {session.ago}", (idle,))
            statement = f"SELECT name FROM {{s}}.thread WHERE name > ?{term} ORDER BY name LIMIT ?"
            found = session(statement, (session.encode_name(after), *until, MAX_SEQ if limit is None else limit))
            return [session.decode_name(name) for (name,) in found]

        return self._read(work)

    def run(self, run: str) -> RunRow | None:
        return self._read(lambda session: read_run(session, run))

    def runs(self, thread: str) -> list[RunRow]:
        if not thread:  # runs of no thread belong to deleted ones
            return []
        return self._read(lambda session: read_runs(session, "thread = ?", session.encode_name(thread)))

    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        return self._read(lambda session: list_runs(session, query))

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        return self._read(lambda session: read_rows(session, run, first, last))

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        keys = [encode_blob_id(name) for name in ids if BLOB_ID.fullmatch(name)]
        statement = "SELECT id, body FROM {s}.blob WHERE id IN (KEYS)"
        found = self._read(lambda session: session.of_keys(statement, keys))
        return {key.hex(): body for key, body in found if isinstance(body, bytes)}  # text, if SQLite was given it

    def snapshot(self, at: Point) -> Snapshot | None:
        return self._read(lambda session: read_snapshot(session, at))

    def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
        names = frozenset(threads)
        return self._delete(names if len(names) <= MAX_NAMES else (), partial(plan_deletion, names=names, busy=busy))

    def delete_unreachable(self, thread: str) -> DeletionReport:
        return self._delete([thread], partial(plan_delete_unreachable, thread=thread))

    def drop_snapshots(self) -> None:
        # EXCEPT: both databases read the roots once. With NOT EXISTS, SQLite reads all threads for each snapshot.
        others = "(run, seq) IN (SELECT run, seq FROM {s}.%s WHERE %s EXCEPT SELECT root_run, %s FROM {s}.thread)"

        def work(session: SQLSession) -> None:
            session(f"DELETE FROM {{s}}.snapshot WHERE {others % ('snapshot', 'true', 'root_seq')}")
            _delete_unused(session, _delete_refs(session, others % ("ref", "seq < 0", "-1 - root_seq")))

        self._write(work)


# --- reading

THREAD = "SELECT thread.name, fencing, head_run, head_seq, root_run, root_seq, owner, LEASE, runs FROM {s}.thread"
_RUN = "SELECT run.id, run.thread, run.parents, run.header FROM {s}.run"
LAST = "coalesce((SELECT max(seq) FROM {s}.entry WHERE entry.run = run.id), -1)"
_ROWS = "SELECT seq, kind, body FROM {s}.entry WHERE run = ? AND seq BETWEEN ? AND ?"
_ENDINGS = "SELECT seq, kind, body FROM {s}.entry WHERE run = ? AND seq <= ? AND kind IN (?, ?)"
_SPAN = "run = ? AND seq BETWEEN ? AND ?"
_SNAPSHOT = "SELECT seq, body FROM {s}.snapshot WHERE run = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"


def _naming(table: str, decode: Callable[[SQLSession, Sequence[Any]], T]) -> Callable[[SQLSession, Sequence[Any]], T]:
    """Name the row of a table in the error for one that `decode` cannot read."""

    def decoded(session: SQLSession, columns: Sequence[Any]) -> T:
        try:
            return decode(session, columns)
        except (TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"row {columns[0]!r} of the table {table!r} is damaged ({error}): {CHANGED}") from error

    return decoded


def _decode_thread(session: SQLSession, columns: Sequence[Any]) -> ThreadRow:
    name, epoch, head, head_seq, root, root_seq, owner, lease, runs = columns
    points = decode_point(head, head_seq), decode_point(root, root_seq)
    held = None if owner is None else Owner(*json.loads(owner))
    return ThreadRow(session.decode_name(name), points[0], epoch, held, lease, points[1], runs)


def read_run(session: SQLSession, run: str) -> RunRow | None:
    return next(iter(read_runs(session, "id = ?", run)), None)


def read_runs(session: SQLSession, where: str, value: Any) -> list[RunRow]:
    found = session(f"{_RUN} WHERE {where} ORDER BY started, id", (value,))
    return [decode_run(session, columns) for columns in found]


def _decode_run(session: SQLSession, columns: Sequence[Any]) -> RunRow:
    run, thread, parents, header = columns
    points = tuple([Point(run, seq) for run, seq in json.loads(parents)])
    return RunRow(run, session.decode_name(thread), points, dict(json.loads(header)))


decode_thread, decode_run = _naming("thread", _decode_thread), _naming("run", _decode_run)


def read_rows(session: SQLSession, run: str, first: int, last: int | None) -> list[Row]:
    end = MAX_SEQ if last is None else min(last, MAX_SEQ)
    return [
        _row(run, *columns) for columns in session(f"{_ROWS} ORDER BY seq", (run, min(max(first, 0), MAX_SEQ), end))
    ]


def read_end(session: SQLSession, run: str, last: int = MAX_SEQ) -> Row | None:
    """The row with which a run ended, by its rows up to `last`."""
    found = session(f"{_ENDINGS} ORDER BY seq DESC LIMIT 1", (run, last, *sorted(ENDINGS)))
    return end_of([_row(run, *columns) for columns in found])


def read_snapshot(session: SQLSession, at: Point) -> Snapshot | None:
    for seq, body in session(_SNAPSHOT, (at.run, min(at.seq, MAX_SEQ))):
        # Of a damaged one, an empty content: its reader is told that it is none.
        return Snapshot(Point(at.run, seq), decode_body(body)[1] or Content.stored(b""))
    return None


def _row(run: str, seq: int, kind: str, body: bytes) -> Row:
    header, content = decode_body(body)
    if DAMAGED in header:
        header = {DAMAGED: f"in run {run}, {header[DAMAGED]}"}
    return Row(seq, kind, header, content)


# --- lists of runs

# CROSS JOIN: in SQLite, the runs come first, in the order of the list, so that reading ends with the last one wanted.
_LISTED = f"""
    {_RUN.partition(" FROM ")[0]}, run.started, run.ended, {LAST},
    {THREAD.removeprefix("SELECT ").partition(" FROM ")[0]}
    FROM {{s}}.run CROSS JOIN {{s}}.thread
    WHERE %s ORDER BY run.started DESC, run.id DESC, thread.name DESC LIMIT ?"""


def list_runs(session: SQLSession, query: RunQuery) -> list[ListedRun]:
    """The runs that a query asks for."""
    found: list[ListedRun] = []
    decode = _naming("run", partial(_listed, is_last=query.last))
    with session.at_one_time():
        while len(found) < query.limit:
            statement, values = _list_statement(session, query)
            batch = session(statement, values)
            for columns in batch:
                try:
                    listed = decode(session, columns)
                except StoreError as error:
                    logger.warning("left out: %s", error)
                    continue
                found += [listed] * is_listed(listed, query._replace(after=None))
            if len(batch) < query.limit:
                break
            run, _, _, _, started, _, _, name, *_ = batch[-1]
            query = query._replace(after=RunPlace(started, run, session.decode_name(name)))
    return found[: query.limit]


def _list_statement(session: SQLSession, query: RunQuery) -> tuple[str, list[Any]]:
    """The statement of a query, and its values. It may find runs that the query does not ask for."""
    terms = ["thread.head_run = run.id" if query.last else "thread.name = run.thread"]
    values: list[Any] = []
    if query.statuses is not None:
        ended = [ended_range(status) for status in sorted(query.statuses) if status]
        chosen = ["run.ended >= ? AND run.ended < ?"] * len(ended)
        chosen += ["run.ended IS NULL"] * ("" in query.statuses)
        chosen += [f"head_seq <> {LAST}"] * query.last  # a copy of a part of a run: see `_listed`
        terms.append(f"({' OR '.join(chosen) or 'false'})")
        values += [bound for bounds in ended for bound in bounds]
    for term, value in (
        ("thread.name = ?", None if query.thread is None else session.encode_name(query.thread)),
        ("run.id = ?", query.run),
        ("run.graph = ?", None if query.graph is None else encode_text(query.graph)),
        ("run.started >= ?", query.since),
        ("run.started < ?", query.until),
    ):
        if value is not None:
            terms.append(term)
            values.append(value)
    if query.after is not None:
        started, run, thread = query.after
        terms.append("(run.started, run.id, thread.name) < (?, ?, ?) AND run.started <= ?")
        values += [started, run, session.encode_name(thread), started]
    return (_LISTED % " AND ".join(terms)).replace("LEASE", session.lease), [*values, query.limit]


def _listed(session: SQLSession, columns: Sequence[Any], is_last: bool) -> ListedRun:
    run, thread = decode_run(session, columns[:4]), session.thread_now(decode_thread(session, columns[7:]))
    started, ended, last = columns[4:7]
    if is_last and thread.head is not None and last != thread.head.seq:  # the thread reaches a part of the run
        last = thread.head.seq
        ended = encode_ended(read_end(session, run.id, last))
    status, row = ("", None) if ended is None else decode_ended(ended)
    return ListedRun(thread, run, float(started), status, last, row)


# --- writing


class EncodedChange(NamedTuple):
    """The columns of a change, encoded before anything is locked.

    Attributes:
        bodies: the bodies of its rows by number.
        snapshot: the body of its snapshot.
        blobs: the blobs that may not be stored yet.
        refs: what its rows and its snapshot refer to.
    """

    bodies: Mapping[int, bytes]
    snapshot: bytes
    blobs: Mapping[bytes, bytes]
    refs: Sequence[Ref]

    @classmethod
    def of(cls, change: Change) -> EncodedChange:
        """Encode a change."""
        bodies = {row.seq: encode_body(row.header, row.content) for row in change.rows}
        uses = [(change.rows_of, row.seq, row.content) for row in change.rows if row.content is not None]
        snapshot = b""
        if change.snapshot is not None:
            (run, seq), content = change.snapshot
            uses.append((run, -1 - seq, content))
            snapshot = encode_body({}, content)
        blobs: dict[bytes, bytes] = {}
        refs: list[Ref] = []
        for run, seq, content in uses:
            if content.refs:
                blobs.update({encode_blob_id(name): blob for name, blob in content.blobs.items()})
                refs += [(encode_blob_id(name), run, seq) for name in content.refs]
        return cls(bodies, snapshot, blobs, refs)


def write_planned(session: SQLSession, change: Change, encoded: EncodedChange) -> int:
    """Write what is new of a change; return the epoch of its thread afterwards, 0 without one."""
    current = session.lock(change)
    if current.last is not None and change.rows and change.rows[0].seq <= current.last:
        stored = read_rows(session, change.rows_of, change.rows[0].seq, change.rows[-1].seq)
        current = current._replace(rows=stored)
    plan = plan_write(change, current)
    if plan is None:
        return current.thread.epoch if current.thread is not None else 0
    check_runs(change, lambda run: read_run(session, run) is not None)
    if plan.new_run and change.run is not None:
        _insert_run(session, change.run)
    session.insert_blobs(encoded.blobs)
    rows = [(change.rows_of, row.seq, row.kind, encoded.bodies[row.seq]) for row in plan.rows]
    session.each("INSERT INTO {s}.entry VALUES (?, ?, ?, ?)", rows)
    write_ended(session, change.rows_of, plan.rows)
    freed = _write_snapshot(session, change.snapshot, encoded) if change.snapshot is not None else set()
    insert_refs(session, encoded.refs)
    _delete_unused(session, freed)
    if not change.thread:
        return 0
    session.write_thread(change, current, plan)
    return plan.epoch


def ended_by(rows: Sequence[Row]) -> bytes | None:
    """The column `ended` of a run after rows of which one says how it ended, or that it was resumed."""
    return encode_ended(end_of(reversed(rows)))


def write_ended(session: SQLSession, run: str, rows: Sequence[Row]) -> None:
    """Note how a run ended if its new rows say so."""
    if any(row.kind in ENDINGS for row in rows):
        session("UPDATE {s}.run SET ended = ? WHERE id = ?", (ended_by(rows), run))


def insert_refs(session: SQLSession, refs: Sequence[Ref]) -> None:
    session.each("INSERT INTO {s}.ref VALUES (?, ?, ?) ON CONFLICT DO NOTHING", refs)


def _insert_run(session: SQLSession, run: RunRow) -> None:
    graph = run.header.get("graph")
    name = encode_text(graph) if isinstance(graph, str) else None
    columns = run.id, session.encode_name(run.thread), encode_json(run.parents), encode_json(dict(run.header)), name
    session("INSERT INTO {s}.run VALUES (?, ?, ?, ?, ?, ?, NULL)", (*columns, start_of(run)))
    links = [(parent.run, run.id) for parent in run.parents]
    session.each("INSERT INTO {s}.link VALUES (?, ?) ON CONFLICT DO NOTHING", links)


def _write_snapshot(session: SQLSession, snapshot: Snapshot, encoded: EncodedChange) -> set[bytes]:
    """Insert or replace a snapshot; return the blobs that the replaced one referred to."""
    at, body = snapshot.at, encoded.snapshot
    if session.count("INSERT INTO {s}.snapshot VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (*at, body)):
        return set()
    session("UPDATE {s}.snapshot SET body = ? WHERE run = ? AND seq = ?", (body, *at))
    return _delete_refs(session, _SPAN, (at.run, -1 - at.seq, -1 - at.seq))


# --- deletion

MAX_NAMES = 10_000
"""How many threads a deletion looks around; with more of them it searches the whole store."""

# The runs that decide what is deleted with the threads `gone`, as `dspyer.stores.reachability` says: the search ends at
# those that are not `free`. CROSS JOIN: SQLite looks for what is on the right with what is on the left, and never the
# other way round. `free` is a column, since SQLite may read a whole table of a join first if a term filters it.
_FREE = """
    NOT EXISTS (SELECT 1 FROM {s}.thread AS owner WHERE name = (SELECT thread FROM {s}.run WHERE id = %s)
        AND root_run IS NULL AND name NOT IN (SELECT name FROM gone))"""
_NEAR = f"""
    WITH RECURSIVE gone (name) AS (VALUES %s), behind (id, free) AS (
        SELECT run.id, true FROM gone CROSS JOIN {{s}}.run WHERE run.thread = gone.name
        UNION SELECT own.head_run, {_FREE % "own.head_run"}
            FROM gone CROSS JOIN {{s}}.thread AS own WHERE own.name = gone.name
        UNION SELECT link.parent, {_FREE % "link.parent"}
            FROM behind CROSS JOIN {{s}}.link WHERE link.child = behind.id AND behind.free
    ), near (id) AS (
        SELECT id FROM behind WHERE free
        UNION SELECT link.child FROM near CROSS JOIN {{s}}.link WHERE link.parent = near.id
    )"""
_SUMMARIES = f"SELECT run.id, thread, parents, {LAST} FROM"


def read_around(session: SQLSession, names: Collection[str]) -> tuple[dict[str, ThreadRow], dict[str, RunSummary]]:
    """The threads and runs that decide what is deleted with threads; all without names."""
    gone = [session.encode_name(name) for name in names]
    statement = f"{_SUMMARIES} {{s}}.run"
    if gone:
        near = _NEAR % ", ".join(["(?)"] * len(gone))
        statement = f"{near} {_SUMMARIES} near CROSS JOIN {{s}}.run WHERE run.id = near.id"
    found = [(decode_run(session, (*columns, b"{}")), last) for *columns, last in session(statement, gone)]
    runs = {run.id: RunSummary(run.thread, run.parents, last) for run, last in found}
    threads = THREAD.replace("LEASE", session.lease)
    if gone:
        named = {*gone, *[session.encode_name(run.thread) for run in runs.values() if run.thread]}
        listed = session.of_keys(f"{threads} WHERE name IN (KEYS)", named)
        listed += session.of_keys(f"{threads} WHERE head_run IN (KEYS)", runs)
    else:
        listed = session(threads)
    rows = [session.thread_now(decode_thread(session, columns)) for columns in listed]
    return {row.name: row for row in rows}, runs


def delete_planned(session: SQLSession, plan: DeletionPlan) -> DeletionReport:
    """Delete what a plan says, and the blobs that nothing refers to then."""
    places: list[tuple[str, Sequence[Any]]] = [
        *[(f"run IN ({_marks(batch)})", batch) for batch in _batches(plan.runs)],
        *[(_SPAN, span) for span in plan.rows],
    ]
    rows, freed = 0, set[bytes]()
    for where, values in places:
        rows += session.count(f"DELETE FROM {{s}}.entry WHERE {where}", values)
        session(f"DELETE FROM {{s}}.snapshot WHERE {where}", values)
        freed |= _delete_refs(session, where, values)
    for run, first, last in plan.rows:
        freed |= _delete_refs(session, _SPAN, (run, -1 - last, -1 - first))
    _delete_unused(session, freed)
    for run in {run for run, *_ in plan.rows}:  # the end of a run may be among the deleted rows
        session("UPDATE {s}.run SET ended = ? WHERE id = ?", (encode_ended(read_end(session, run)), run))
    for statement, keys in (
        ("DELETE FROM {s}.thread WHERE name IN (KEYS)", map(session.encode_name, plan.threads)),
        ("DELETE FROM {s}.link WHERE child IN (KEYS)", plan.runs),
        ("DELETE FROM {s}.run WHERE id IN (KEYS)", plan.runs),
        ("UPDATE {s}.run SET thread = '' WHERE id IN (KEYS)", plan.orphans),
    ):
        session.of_keys(statement, keys)
    # Last, and only if it grows: deletions of other threads wait for the lock of its row.
    session("UPDATE {s}.fence SET largest = ? WHERE largest < ?", (plan.epoch, plan.epoch))
    return DeletionReport(plan.threads, len(plan.runs), rows, plan.kept, busy=plan.busy)


def _delete_refs(session: SQLSession, where: str, values: Sequence[Any] = ()) -> set[bytes]:
    """Delete uses of blobs; return the blobs."""
    freed = {blob for (blob,) in session(f"SELECT blob FROM {{s}}.ref WHERE {where}", values)}
    session(f"DELETE FROM {{s}}.ref WHERE {where}", values)
    return freed


def _delete_unused(session: SQLSession, freed: Collection[bytes]) -> None:
    """Delete those of the blobs that nothing refers to any more."""
    if freed:
        session.lock_blobs(sorted(freed))
        statement = "DELETE FROM {s}.blob WHERE id = ? AND NOT EXISTS (SELECT 1 FROM {s}.ref WHERE blob = ?)"
        session.each(statement, [(blob, blob) for blob in sorted(freed)])
