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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from dspyer.archive.archived_thread import ArchivedThread
from dspyer.errors import ConcurrentRunError, DspyerError, StateError, StoreError, ThreadError
from dspyer.ids import new_run_id
from dspyer.log.execution_records import check_row
from dspyer.log.journal import LEASE, CheckedStore, Journal, leases, new_owner
from dspyer.log.reader import (
    HistoryReader,
    check_snapshot,
    check_thread_name,
    cyclic_history,
)
from dspyer.log.rows import (
    is_readable,
)
from dspyer.schema.schema import Schema
from dspyer.stores.base import Change, Point, Row, RunRow, Snapshot, Store, ThreadRow, same_row, same_run
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
    part.replace(target)
    return digest.hexdigest()


def _lines(store: Store, thread: ThreadRow) -> Iterator[dict[str, Any]]:
    found = reached_runs(store, thread)
    yield {
        "thread": thread.name,
        "format": FORMAT,
        "head": thread.head,
        "root": thread.root,
        "runs": thread.runs,
    }
    written: set[str] = set()  # the ids of blobs
    for run, rows in found:
        yield {
            "run": run.id,
            "own": run.thread == thread.name,
            "parents": run.parents,
            "header": dict(run.header),
        }
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


# --- which rows a thread reaches


class ReachedRun(NamedTuple):
    """A run, with the rows of it that a thread reaches."""

    run: RunRow
    rows: list[Row]


def reached_runs(store: Store, row: ThreadRow) -> list[ReachedRun]:
    """All runs that a thread reaches, parents first."""
    own = [run.id for run in store.runs(row.name)]
    rows: dict[str, list[Row]] = {}
    runs: dict[str, RunRow] = {}
    waiting = [*own, *([row.head.run] if row.head else [])]
    while waiting:
        name = waiting.pop()
        run = None if name in runs else store.run(name)
        if run is not None:
            runs[name], rows[name] = run, store.rows(name)
            waiting += [parent.run for parent in run.parents]
    extents = {
        name: RunSummary(run.thread, run.parents, rows[name][-1].seq if rows[name] else -1)
        for name, run in runs.items()
    }
    spans = reachable_rows(row, extents, own)
    kept = {
        name: ReachedRun(
            runs[name], [part for part in rows[name] if any(first <= part.seq <= last for first, last in found)]
        )
        for name, found in spans.items()
    }
    parents = {name: [parent.run for parent in run.run.parents if parent.run in kept] for name, run in kept.items()}
    try:
        return [kept[name] for name in TopologicalSorter(parents).static_order()]
    except CycleError as error:
        raise cyclic_history(store, error.args[1][0]) from None


# --- load

BATCH = 500
"""Most rows in one transaction."""


def load(store: Store, name: str, path: str | os.PathLike[str]) -> None:
    """Write an exported thread to a store, under a name that no thread has.

    Each line is checked, then all together in memory, before anything is written. The thread is owned while it is
    written, so that no run starts on a part of it; if writing fails it is deleted.
    """
    check_thread_name(name)
    if store.thread(name) is not None:
        raise ThreadError(f"there is a thread {name!r} already: load into another name, or delete it first")
    exported = read(path)
    try:
        _write(memory := Memory(), name, exported)
        reader = HistoryReader(CheckedStore(memory), Schema.of(None), encoding.decoder((), Opaque.of))
        thread = ArchivedThread(reader, name)
        for run in (None, *[run.id for run in memory.runs(name)]):
            thread.history(run=run)
            thread.failures(run)
            thread.info(run).to_dict()
        with suppress(StoreError):  # for a commit whose values cannot be read: the others can
            thread.state()
    except Exception as error:
        raise _refused(path, "its lines do not fit together", error) from error
    _write(store, name, exported)


def _write(store: Store, name: str, exported: Exported) -> None:
    """Write a thread that the store does not have, and own it meanwhile."""
    owner, journal = new_owner(), Journal(store, name, 0, "", 0)
    offsets = _offsets(store, exported)
    try:
        leases.hold(owner.token, journal)  # before the write that makes the owner visible
        epoch = store.write(Change(name, 0, None, owner, LEASE))
        journal.set_epoch(epoch)
        try:
            _fill(store, name, epoch, exported, offsets)
        except BaseException:
            with suppress(ConcurrentRunError):  # another process has replaced the owner
                store.delete([name], {name: epoch})
            raise
    finally:
        leases.let_go(owner.token)


def _fill(store: Store, name: str, epoch: int, exported: Exported, offsets: Mapping[str, _RunOffset]) -> None:
    """Write runs, rows, snapshot and head into a thread that this process owns."""
    count = 0  # of runs that the store counts for the thread itself
    for line, rows in exported.runs:
        own = offsets[line["run"]]
        parents = tuple([_shifted(run, seq, offsets) for run, seq in line["parents"]])
        run = RunRow(own.run, name if line["own"] else "", parents, line["header"])
        is_new = store.run(own.run) is None
        store.write(Change(name, epoch, run=run, lease=LEASE))
        count += is_new
        last = -1 if is_new else max((row.seq for row in store.rows(own.run)), default=-1)
        fresh = [row for row in (_row(part, own, exported.blobs) for part in rows) if row.seq > last]
        for start in range(0, len(fresh), BATCH):
            store.write(Change(name, epoch, lease=LEASE, rows_of=own.run, rows=fresh[start : start + BATCH]))
    root, head = _point(exported.thread["root"], offsets), _point(exported.thread["head"], offsets)
    snapshot = None
    if exported.snapshot is not None and root is not None:
        snapshot = Snapshot(root, content_of(exported.snapshot, exported.blobs))
    runs = max(exported.thread["runs"] - count, 0)  # later runs get labels that none of these has
    store.write(Change(name, epoch, lease=0.0, head=head, root=root, snapshot=snapshot, flush=True, runs=runs))


class _RunOffset(NamedTuple):
    """The id under which a run is written, and how much smaller the numbers of its rows become.

    Rows that were pruned are not exported, and the rows of a run in a store begin with number 0.
    """

    run: str
    shift: int


def _offsets(store: Store, exported: Exported) -> dict[str, _RunOffset]:
    """The id that each run had, if the store has no such run or the same one; else a new one.

    A run whose parent gets a new id gets one as well: the stored run leads to the rows of the parent in the store, of
    which some may be pruned.
    """
    offsets: dict[str, _RunOffset] = {}
    for line, rows in exported.runs:  # parents first
        name, shift = str(line["run"]), int(rows[0]["row"]) if rows else 0
        moved = any(run in offsets and offsets[run].run != run for run, _ in line["parents"])
        stored = store.run(name)
        keeps_id = not shift if stored is None else not moved and _is_stored(store, stored, line, rows, exported)
        offsets[name] = _RunOffset(name, 0) if keeps_id else _RunOffset(new_run_id(), shift)
    return offsets


def _is_stored(
    store: Store, stored: RunRow, line: Mapping[str, Any], rows: list[Mapping[str, Any]], exported: Exported
) -> bool:
    """Whether the store has this run, with the same rows or with rows that those of the file continue."""
    parents = tuple([Point(run, seq) for run, seq in line["parents"]])
    if not same_run(stored, RunRow(stored.id, "", parents, line["header"])):
        return False
    stored_rows = {row.seq: row for row in store.rows(stored.id)}
    own = [_row(part, _RunOffset(stored.id, 0), exported.blobs) for part in rows]
    if stored_rows and own and not min(stored_rows) <= own[0].seq <= max(stored_rows) + 1:
        return False
    return all(same_row(row, stored_rows[row.seq]) for row in own if row.seq in stored_rows)


def _row(line: Mapping[str, Any], offset: _RunOffset, blobs: Mapping[str, bytes]) -> Row:
    has_content = "content" in line or "base64" in line
    content = content_of(line, blobs) if has_content else None
    return Row(int(line["row"]) - offset.shift, line["kind"], line["head"], content)


def _point(point: tuple[str, int] | None, offsets: Mapping[str, _RunOffset]) -> Point | None:
    return None if point is None else _shifted(*point, offsets)


def _shifted(run: str, seq: int, offsets: Mapping[str, _RunOffset]) -> Point:
    offset = offsets.get(run)
    return Point(run, seq) if offset is None else Point(offset.run, seq - offset.shift)


# --- read a file, and check it

FORMAT = 1
"""The version of the file format."""

LONGEST = 1 << 30
"""Most bytes of a line, 1 GiB: of a blob. Other lines have to fit `ReadBudget`."""

VALUES = 32_000_000
"""Most JSON values in all lines of a file."""

# What parsing of a line that `export` has not written may raise.
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, StateError, StoreError)


class Exported(NamedTuple):
    """The lines of a file, parsed and checked.

    Attributes:
        thread: the line of the thread.
        runs: the lines of its runs, each with the lines of its rows.
        blobs: large values by id.
        snapshot: the line of the snapshot at the root of pruned history.
    """

    thread: Mapping[str, Any]
    runs: list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]
    blobs: Mapping[str, bytes]
    snapshot: Mapping[str, Any] | None


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


def content_of(line: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Content:
    """The content of the line of a row or a snapshot."""
    refs = line.get("refs", ())
    data = dump(line["content"]) if "content" in line else bytes_of(line)
    return Content.stored(data, refs, {name: blobs[name] for name in refs if name in blobs})


def bytes_of(line: Mapping[str, Any]) -> bytes:
    """The bytes of a line: of its text, or of its base64."""
    return str(line["text"]).encode() if "text" in line else base64.b64decode(line["base64"])


def dump(value: Any) -> bytes:
    """JSON as UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class _Lines:
    """Checks the lines of a file one by one. Each method raises `StateError` for what `export` does not write."""

    def __init__(self) -> None:
        self._thread: dict[str, Any] = {}
        self._runs: dict[str, tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = {}
        self._blobs: dict[str, bytes] = {}
        self._snapshot: Mapping[str, Any] | None = None
        self._rows: list[Mapping[str, Any]] = []
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
        if not self._thread:
            _require(line.get("format") == FORMAT, f"it is not the line of a thread in format {FORMAT}")
            _require(_is_count(line["runs"]), f"{line['runs']!r} is no number of runs")
            self._thread = line
        elif "run" in line:
            self._add_run(line)
        elif "row" in line:
            _require(_is_count(line["row"]), f"{line['row']!r} is no number of a row")
            follows = not self._rows or line["row"] == self._rows[-1]["row"] + 1
            _require(bool(self._runs) and follows, f"row {line['row']} does not follow what is before it")
            _require(isinstance(line["kind"], str) and isinstance(line["head"], dict), "it is no row")
            self._require_blobs(line)
            check_row(_row(line, _RunOffset("", 0), self._blobs), lambda _: self._blobs, self._decode)
            self._rows.append(line)
        elif "blob" in line:
            self._add_blob(line["blob"], bytes_of(line))
        else:
            at = line["snapshot"]
            _require(at == self._thread["root"] and self._snapshot is None, "its snapshot is not at its root")
            self._require_blobs(line)
            check_snapshot(content_of(line, self._blobs), lambda _: self._blobs, self._decode)
            self._snapshot = line

    def exported(self) -> Exported:
        """All lines, checked against each other."""
        for name in ("head", "root"):
            at = self._thread[name]
            _require(at is None or self._has(*at), f"its {name} is in none of its runs")
        _require(self._thread["root"] is None or self._snapshot is not None, "it lacks the snapshot at its root")
        return Exported(self._thread, list(self._runs.values()), self._blobs, self._snapshot)

    def _add_run(self, line: dict[str, Any]) -> None:
        name = line["run"]
        _require(isinstance(name, str) and bool(name) and isinstance(line["header"], dict), "it is no run")
        _require(name not in self._runs, f"run {name!r} is there twice")
        parents = {run for run, seq in line["parents"] if isinstance(run, str) and _is_count(seq)}
        _require(all(run in parents for run, _ in line["parents"]), "a parent of the run is no row")
        cycle = name in parents or name in self._unseen_parents
        _require(not cycle, f"run {name!r} is its own parent, or comes after a run of which it is the parent")
        self._unseen_parents |= parents - self._runs.keys()
        self._rows = []
        self._runs[name] = line, self._rows

    def _require_blobs(self, line: dict[str, Any]) -> None:
        missing = [name for name in line.get("refs", ()) if name not in self._blobs]
        _require(not missing, f"it refers to large values that are not there: {missing}")

    def _add_blob(self, name: str, data: bytes) -> None:
        _require(name == blob_id(data), f"large value {name!r} is another one than its id says")
        self._blobs[name] = data

    def _has(self, run: str, seq: int) -> bool:
        rows = self._runs[run][1] if run in self._runs else []
        return bool(rows) and rows[0]["row"] <= seq <= rows[-1]["row"]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise StateError(problem)
