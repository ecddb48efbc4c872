"""Write a thread to a file of JSON lines, and load it.

The first line is the thread. Each run is a line, followed by its rows; a large value (blob) comes before the first row
that refers to it. If older history was pruned, the snapshot at its root comes next. The last line is a digest of all
lines before it: it shows that the file is complete, not who made it. So a file is checked in full before anything is
written, within limits on its size.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from dspyer.errors import DspyerError, StateError, StoreError, ThreadError
from dspyer.ids import new_run_id
from dspyer.log.execution_records import check_row, run_usage
from dspyer.log.journal import LEASE, CheckedStore, is_alive, leases, new_owner
from dspyer.log.reader import HistoryReader, check_snapshot, check_thread_name, cyclic_history, read_run
from dspyer.log.rows import EndRow, is_readable
from dspyer.log.time_travel import Bounds, ThreadReader, failures_in, inbox_of, last_end, thread_bounds
from dspyer.schema.schema import Schema
from dspyer.stores.base import (
    INBOX,
    Change,
    Point,
    Row,
    RunQuery,
    RunRow,
    Snapshot,
    Store,
    ThreadRow,
    same_row,
    same_run,
)
from dspyer.stores.content import Content, ReadBudget, blob_id
from dspyer.stores.memory import Memory
from dspyer.stores.reachability import RunSummary, reachable_rows
from dspyer.values import json as encoding
from dspyer.values.freezing import Opaque


def export(store: Store, row: ThreadRow, path: str | os.PathLike[str]) -> str:
    """Write all that a thread reaches to a file, which is replaced once the new one is complete; return the digest."""
    digest = blake2b(digest_size=16)
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{str(target)!r} is a folder: name the file to write")
    part = target.with_name(f"{target.name}.part")
    with part.open("wb") as file:
        for line in _lines(store, row):
            data = dump(line) + b"\n"
            digest.update(data)
            file.write(data)
        file.write(dump({"digest": digest.hexdigest()}) + b"\n")
    now = store.thread(row.name)
    if now is None or now.root != row.root or (row.head is not None and store.run(row.head.run) is None):
        part.unlink()  # a part of the history may be missing in it
        raise ThreadError(
            f"thread {row.name!r} was deleted or pruned while it was exported: {str(target)!r} is as it was. Export it "
            "again"
        )
    part.replace(target)  # only now: a file of that name is whole, or as it was
    return digest.hexdigest()


def _lines(store: Store, thread: ThreadRow) -> Iterator[dict[str, Any]]:
    found = reached_runs(store, thread)
    yield {"thread": thread.name, "format": FORMAT, "head": thread.head, "root": thread.root, "runs": thread.runs}
    written: set[str] = set()  # the ids of blobs
    for run, rows in found:
        yield {"run": run.id, "own": run.thread == thread.name, "parents": run.parents, "header": dict(run.header)}
        for row in rows:
            is_readable(row)  # a warning names it: the file can be read by people, and not be loaded
            line: dict[str, Any] = {"row": row.seq, "kind": row.kind, "head": row.header}
            if row.content is not None:
                yield from _blob_lines(store, row.content, written)
                line |= _content_line(row.content)
            yield line
    snapshot = store.snapshot(thread.root) if thread.root is not None else None
    if snapshot is not None and snapshot.at == thread.root:
        yield from _blob_lines(store, snapshot.content, written)
        yield {"snapshot": snapshot.at, **_content_line(snapshot.content)}


def _blob_lines(store: Store, content: Content, written: set[str]) -> Iterator[dict[str, Any]]:
    content.data  # noqa: B018 - it encodes the content, if its store is in memory: only then are its blobs known
    names = [name for name in content.refs if name not in written]
    if not names:
        return
    written.update(names)
    blobs = {**content.blobs, **store.blobs([name for name in names if name not in content.blobs])}
    for name in names:
        if name not in blobs:
            raise StoreError(f"the store {store.address!r} has lost the large value {name!r}: nothing was exported")
        yield {"blob": name, **_bytes_line(blobs[name])}


def _content_line(content: Content) -> dict[str, Any]:
    """Content as JSON where that restores the same bytes, else as base64: its hash must not change."""
    refs = {"refs": content.refs} if content.refs else {}
    with suppress(ValueError, RecursionError, StateError):
        plain = json.loads(ReadBudget().spend(content.data))
        if dump(plain) == content.data:
            return {"content": plain, **refs}
    return {"base64": base64.b64encode(content.data).decode(), **refs}


def _bytes_line(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def dump(value: Any) -> bytes:
    """JSON as UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def reached_runs(store: Store, thread: ThreadRow) -> list[tuple[RunRow, list[Row]]]:
    """All runs that a thread reaches, parents first, each with the rows of it that the thread reaches."""
    own = [run.id for run in store.runs(thread.name)]
    own += [run.id for run in [store.run(inbox_of(thread.name))] if run is not None and run.id not in own]
    runs: dict[str, tuple[RunRow, list[Row]]] = {}
    waiting = [*own, *([thread.head.run] if thread.head else [])]
    while waiting:
        name = waiting.pop()
        run = None if name in runs else store.run(name)
        if run is not None:
            runs[name] = run, store.rows(name)
            waiting += [parent.run for parent in run.parents]
    summaries = {
        name: RunSummary(run.thread, run.parents, rows[-1].seq if rows else -1) for name, (run, rows) in runs.items()
    }
    # As the stores decide what a deletion leaves: an export holds what would be kept for this thread alone.
    spans = reachable_rows(thread, summaries, [run for run in own if run in runs])  # one may have been deleted since
    parents = {name: [parent.run for parent in runs[name][0].parents if parent.run in spans] for name in spans}
    try:
        ordered = list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        raise cyclic_history(store, error.args[1][0]) from None
    return [
        (run, [row for row in rows if any(first <= row.seq <= last for first, last in spans[run.id])])
        for run, rows in map(runs.__getitem__, ordered)
    ]


# --- load

BATCH = 500
"""Most rows in one transaction."""


class Exported(NamedTuple):
    """The content of a file, or of a part of it that was read.

    Attributes:
        thread: the thread.
        runs: its runs, parents first, each with its rows. The thread of a run is "" unless it is this one.
        snapshot: the snapshot at the root of pruned history.
    """

    thread: ThreadRow
    runs: list[tuple[RunRow, list[Row]]]
    snapshot: Snapshot | None


def load(store: CheckedStore, name: str, path: str | os.PathLike[str]) -> None:
    """Write an exported thread to the store of this thread, under a name that no thread has.

    Each line is checked, then all together in memory, before anything is written. The thread is owned while it is
    written, so that no run starts on a part of it; if writing fails it is deleted.
    """
    check_thread_name(name)
    row = store.thread(name)
    if row is not None and (row.head is not None or is_alive(row)):
        raise ThreadError(f"there is a thread {name!r} already: load into another name, or delete it first")
    exported = read(path)
    try:
        _write(memory := Memory(), memory, name, exported)
        _read_all(memory, name)
    except Exception as error:
        raise _refused(path, "its lines do not fit together", error) from error
    # What is left of a load that was killed: all that it had written, without a head.
    store.delete([name], lambda there: row is None or there.epoch != row.epoch)
    _write(store, CheckedStore(store.store), name, exported)


def _read_all(store: Memory, name: str) -> None:
    """Read all runs of a thread, up to their last rows. A commit whose values are unreadable is no error."""
    reader = HistoryReader(CheckedStore(store), Schema.of(None), encoding.decoder((), Opaque.of))
    head, root = thread_bounds(store, name)
    ends = [] if head is None else [head]
    for listed in store.list_runs(RunQuery(name)):
        ended = None if listed.end is None else EndRow.of(listed.end).ended
        for moment in (listed.started, (ended or 0) / 1_000):
            datetime.fromtimestamp(moment, UTC)
        ends += [Point(listed.run.id, listed.last)] if listed.last >= 0 else []
    for end in dict.fromkeys(ends):
        bounds: Callable[[], Bounds] = partial(lambda *found: found, end, root)
        ThreadReader(reader, name, bounds).history(None, None, None, newest=False)
        failures_in(store, last_end(store, end))
        run_usage(read_run(store, end).rows if end != root else ())  # of what was pruned, the last row alone is left


def _write(store: Store, whole: Store, name: str, exported: Exported) -> None:
    """Write a thread that the store does not have, and own it meanwhile; `whole` looks for runs of all threads."""
    owner, moved = new_owner(), _moved(store, whole, name, exported)
    try:
        epoch = leases.acquire(store, name, 0, owner).epoch
        try:
            _fill(store, name, epoch, moved)
        except BaseException:
            store.delete([name], lambda there: there.epoch != epoch)  # unless another process has replaced the owner
            raise
    finally:
        leases.let_go(owner.token)


def _fill(store: Store, name: str, epoch: int, exported: Exported) -> None:
    """Write runs, rows, snapshot and head into a thread that this process owns."""
    count, thread = 0, exported.thread  # of runs that the store counts for the thread itself
    for run, rows in exported.runs:
        is_new = store.run(run.id) is None
        counts = not run.id.startswith(INBOX)
        change = Change(name, epoch, lease=LEASE) if counts else Change()
        store.write(change._replace(run=run._replace(thread=name if run.thread else "")))
        count += is_new and counts
        last = -1 if is_new else max((row.seq for row in store.rows(run.id)), default=-1)
        fresh = [row for row in rows if row.seq > last]  # of a shared run, what the store lacks
        for start in range(0, len(fresh), BATCH):
            store.write(Change(name, epoch, lease=LEASE, rows_of=run.id, rows=fresh[start : start + BATCH]))
    # The head comes last, with the end of the ownership: until then no reader follows it into runs that are not whole.
    runs = max(thread.runs - count, 0)  # later runs get labels that none of these has
    end = Change(name, epoch, lease=0.0, head=thread.head, root=thread.root, flush=True, runs=runs)
    store.write(end._replace(snapshot=exported.snapshot))


def _moved(store: Store, whole: Store, name: str, exported: Exported) -> Exported:
    """The same with the ids that its runs get in a store.

    A run keeps its id if the store has no such run, or the same one: then it is shared, unless it lies with threads
    of another store, of several that the whole is made of. Else it gets a new id, and so
    does a run whose parent gets one: the stored run leads to the rows of the parent in the store, of which some may be
    pruned. Rows that were pruned are not exported, and the rows of a run in a store begin with number 0.
    """
    moves: dict[str, tuple[str, int]] = {}  # the new id, and how much smaller the numbers of the rows become

    def move(point: Point) -> Point:
        new_id, shift = moves.get(point.run, (point.run, 0))
        return Point(new_id, point.seq - shift)

    runs = []
    for run, rows in exported.runs:  # parents first
        known, shift = whole.run(run.id), rows[0].seq if rows else 0
        stored = None if known is None else store.run(run.id)
        if known is None:
            keeps_id = not shift
        else:
            moved = any(moves.get(parent.run, (parent.run, 0))[0] != parent.run for parent in run.parents)
            keeps_id = bool(stored and not moved and same_run(stored, run) and _continue(store.rows(run.id), rows))
        moves[run.id] = (run.id, 0) if keeps_id else (new_run_id(), shift)
        if run.id.startswith(INBOX):  # it is found by the name of its thread
            moves[run.id] = (inbox_of(name), 0)
        new_id, shift = moves[run.id]
        new_run = run._replace(id=new_id, parents=tuple(map(move, run.parents)))
        runs.append((new_run, [row._replace(seq=row.seq - shift) for row in rows]))
    thread, snapshot = exported.thread, exported.snapshot
    head, root = (None if point is None else move(point) for point in (thread.head, thread.root))
    taken = None if snapshot is None else Snapshot(move(snapshot.at), snapshot.content)
    return Exported(thread._replace(head=head, root=root), runs, taken)


def _continue(stored: list[Row], rows: list[Row]) -> bool:
    """Return whether rows of a run are those that are stored, or continue them."""
    known = {row.seq: row for row in stored}
    if known and rows and not min(known) <= rows[0].seq <= max(known) + 1:
        return False
    return all(same_row(row, known[row.seq]) for row in rows if row.seq in known)


# --- read a file, and check it

FORMAT = 1
"""The version of the file format."""

LONGEST = 1 << 30
"""Most bytes of a line, 1 GiB: of a blob. Other lines have to fit `ReadBudget`."""

VALUES = 32_000_000
"""Most JSON values in all lines of a file."""

# What parsing of a line that `export` has not written may raise.
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, StateError, StoreError)

# What the headers of runs may hold, as far as what reads them relies on it.
_HEADER: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("graph", "shape", "drawing", "label", "keys", "lm_calls", "inbox"), str),
    **dict.fromkeys(("named", "continues", "live"), bool),
    "first": int,
    "started": (int, float),
    **dict.fromkeys(("without", "took"), list),
    "hidden": (str, list),
}


def read(path: str | os.PathLike[str]) -> Exported:
    """Read an exported thread; raise `StoreError` if the file is incomplete, malformed or larger than a limit."""
    digest, lines, number = blake2b(digest_size=16), _Lines(), 0
    with Path(path).open("rb") as file:
        while data := file.readline(LONGEST + 1):
            number += 1
            try:
                line = lines.parsed(data)
                if "digest" in line:
                    if line["digest"] != digest.hexdigest():
                        break
                    if file.read(1):
                        raise StateError("more follows it, which is its last line")
                    return lines.exported()
                lines.add(line)
            except _MALFORMED as error:
                raise _refused(path, f"line {number}", error) from error
            digest.update(data)
    raise _refused(path, f"line {number}", StateError("its digest differs, or its end is missing"))


def _refused(path: str | os.PathLike[str], where: str, error: Exception) -> StoreError:
    """The error for a file that is not as it was exported."""
    reason = error if isinstance(error, DspyerError) else " ".join(f"{type(error).__name__}: {error}".split())
    return StoreError(
        f"{os.fspath(path)!r} is no thread that this dspyer has exported, or was changed since: {where}: {reason}. "
        "Nothing was loaded; export the thread again"
    )


class _Lines:
    """Reads the lines of a file one by one. Each method raises `StateError` for what `export` does not write."""

    def __init__(self) -> None:
        self._thread: ThreadRow | None = None
        self._runs: dict[str, tuple[RunRow, list[Row]]] = {}
        self._blobs: dict[str, bytes] = {}
        self._snapshot: Snapshot | None = None
        self._rows: list[Row] = []
        self._unseen_parents: set[str] = set()  # a run whose line comes after a child of it is an error
        self._values = VALUES
        self._decode = encoding.decoder((), Opaque.of)

    def parsed(self, data: bytes) -> dict[str, Any]:
        """A line as JSON, if it is within the limits. Commas and brackets bound the number of its values."""
        _require(len(data) <= LONGEST, f"it has more than the {LONGEST:,} bytes that are read at most")
        if not data.startswith(b'{"blob":'):
            ReadBudget().spend(data)
        self._values -= data.count(b",") + data.count(b"[")
        _require(self._values >= 0, f"up to here there are more than the {VALUES:,} values that are read at most")
        line = json.loads(data)
        if not isinstance(line, dict):
            raise StateError("it is no object")
        return line

    def add(self, line: dict[str, Any]) -> None:
        """Check a line against those before it, and keep it."""
        if self._thread is None:
            _require(line.get("format") == FORMAT, f"it is not the line of a thread in format {FORMAT}")
            head, root = (None if line[name] is None else _point(line[name]) for name in ("head", "root"))
            self._thread = ThreadRow("", head, 0, root=root, runs=_count(line["runs"], "of runs"))
        elif "run" in line:
            self._add_run(line)
        elif "row" in line:
            seq, kind, head = _count(line["row"], "of a row"), line["kind"], line["head"]
            follows = not self._rows or seq == self._rows[-1].seq + 1
            _require(bool(self._runs) and follows, f"row {seq} does not follow what is before it")
            _require(isinstance(kind, str) and isinstance(head, dict), "it is no row")
            content = self._content(line) if "content" in line or "base64" in line else None
            self._rows.append(row := Row(seq, kind, head, content))
            check_row(row, lambda _: self._blobs, self._decode)
        elif "blob" in line:
            name, data = line["blob"], _bytes(line)
            _require(name == blob_id(data), f"large value {name!r} is another one than its id says")
            self._blobs[name] = data
        else:
            at = _point(line["snapshot"])
            _require(at == self._thread.root and self._snapshot is None, "its snapshot is not at its root")
            self._snapshot = Snapshot(at, self._content(line))
            check_snapshot(self._snapshot.content, lambda _: self._blobs, self._decode)

    def exported(self) -> Exported:
        """All lines, checked against each other."""
        thread = self._thread
        _require(thread is not None, "it has no thread")
        assert thread is not None
        for name, at in (("head", thread.head), ("root", thread.root)):
            rows = [] if at is None else self._runs.get(at.run, (None, []))[1]
            found = at is None or (bool(rows) and rows[0].seq <= at.seq <= rows[-1].seq)
            _require(found, f"its {name} is in none of its runs")
        _require(thread.root is None or self._snapshot is not None, "it lacks the snapshot at its root")
        return Exported(thread, list(self._runs.values()), self._snapshot)

    def _add_run(self, line: dict[str, Any]) -> None:
        name, header = line["run"], line["header"]
        _require(isinstance(name, str) and bool(name) and isinstance(header, dict), "it is no run")
        _require(name not in self._runs, f"run {name!r} is there twice")
        fits = all(isinstance(header[one], kind) for one, kind in _HEADER.items() if one in header)
        _require(fits, f"run {name!r} has no header of a run")
        parents = tuple(map(_point, line["parents"]))
        ids = {parent.run for parent in parents}
        cycle = name in ids or name in self._unseen_parents
        _require(not cycle, f"run {name!r} is its own parent, or comes after a run of which it is the parent")
        self._unseen_parents |= ids - self._runs.keys()
        self._rows = []
        self._runs[name] = RunRow(name, "own" if line["own"] else "", parents, header), self._rows

    def _content(self, line: Mapping[str, Any]) -> Content:
        refs = line.get("refs", ())
        missing = [name for name in refs if name not in self._blobs]
        _require(not missing, f"it refers to large values that are not there: {missing}")
        data = dump(line["content"]) if "content" in line else _bytes(line)
        return Content.stored(data, refs, {name: self._blobs[name] for name in refs})


def _bytes(line: Mapping[str, Any]) -> bytes:
    """The bytes of a line: of its text, or of its base64."""
    return str(line["text"]).encode() if "text" in line else base64.b64decode(line["base64"])


def _point(value: Any) -> Point:
    run, seq = value
    _require(isinstance(run, str), f"{value!r} names no row")
    return Point(run, _count(seq, "of a row"))


def _count(value: Any, what: str) -> int:
    _require(type(value) is int and 0 <= value < 1 << 32, f"{value!r} is no number {what}")
    return int(value)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise StateError(problem)
