"""A thread as a file of JSON lines, and back: a line for the thread, for each run, row, large value; a digest last."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from dspyer.durable.journal import Journal
from dspyer.errors import ConcurrentRunError, StoreError
from dspyer.stores.admission import same_row, same_run
from dspyer.stores.base import Change, Point, Row, RunRow, Snapshot, Store, ThreadRow
from dspyer.stores.content import Content
from dspyer.stores.reach import Ends, Extent, reach
from dspyer.threads.owning import LEASE, leases, new_owner

FORMAT = 1
BATCH = 500
"""Rows that are written together."""


class Reached(NamedTuple):
    """What a thread reaches of one run."""

    run: RunRow
    rows: list[Row]


def reached(store: Store, row: ThreadRow) -> list[Reached]:
    """What a thread reaches, runs before those that go on from them.

    Args:
        store: where it is.
        row: where it stands.
    """
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
        name: Extent(run.thread, run.parents, rows[name][-1].seq if rows[name] else -1) for name, run in runs.items()
    }
    spans = reach(Ends(row.head, row.root), extents, own)
    kept = {
        name: Reached(
            runs[name], [part for part in rows[name] if any(first <= part.seq <= last for first, last in found)]
        )
        for name, found in spans.items()
    }
    return [kept[name] for name in _parents_first(kept)]


def _parents_first(kept: Mapping[str, Reached]) -> list[str]:
    done: dict[str, None] = {}
    stack = [(name, False) for name in reversed(list(kept))]
    while stack:
        name, ready = stack.pop()
        if name in done or name not in kept:
            continue
        if ready:
            done[name] = None
        else:
            stack.append((name, True))
            stack += [(parent.run, False) for parent in kept[name].run.parents]
    return list(done)


Shown = Callable[[Row], Any]
"""What is shown of a row, as JSON values."""


def export(store: Store, row: ThreadRow, path: str | os.PathLike[str], shown: Shown | None = None) -> str:
    """Writes all that a thread reaches to a file.

    Args:
        store: where it is.
        row: where it stands.
        path: the file; it is replaced.
        shown: what is shown of each row, if not all is; then the file is for people alone.

    Returns:
        The digest of the lines.
    """
    digest = blake2b(digest_size=16)
    target = Path(path)
    part = target.with_name(f"{target.name}.part")
    with part.open("wb") as file:
        for line in _lines(store, row, shown):
            data = _dump(line) + b"\n"
            digest.update(data)
            file.write(data)
        file.write(_dump({"digest": digest.hexdigest()}) + b"\n")
    part.replace(target)
    return digest.hexdigest()


def _lines(store: Store, thread: ThreadRow, shown: Shown | None) -> Iterator[dict[str, Any]]:
    found = reached(store, thread)
    yield {
        "thread": thread.name,
        "format": FORMAT,
        "head": thread.head,
        "root": thread.root,
        "runs": thread.runs,
        **({} if shown is None else {"redacted": True}),
    }
    told: set[str] = set()
    for run, rows in found:
        yield {
            "run": run.id,
            "own": run.thread == thread.name,
            "parents": run.parents,
            "header": dict(run.header),
        }
        for row in rows:
            line: dict[str, Any] = {"row": row.seq, "kind": row.kind, "head": row.head}
            if row.content is not None and shown is not None:
                line["content"] = shown(row)
            elif row.content is not None:
                yield from _blob_lines(store, row.content, told)
                line |= _content_line(row.content)
            yield line
    if shown is not None:
        return
    snapshot = store.snapshot(thread.root) if thread.root is not None else None
    if snapshot is not None and snapshot.at == thread.root:
        yield from _blob_lines(store, snapshot.content, told)
        yield {"snapshot": snapshot.at, **_content_line(snapshot.content)}


def _blob_lines(store: Store, content: Content, told: set[str]) -> Iterator[dict[str, Any]]:
    content.data  # noqa: B018 - a content of a store in memory has its blobs only then
    names = [name for name in content.refs if name not in told]
    if not names:
        return
    told.update(names)
    blobs = {**content.blobs, **store.blobs([name for name in names if name not in content.blobs])}
    for name in names:
        if name not in blobs:
            raise StoreError(f"the store {store.address!r} has lost the large value {name!r}: nothing was exported")
        yield {"blob": name, **_bytes_line(blobs[name])}


def _content_line(content: Content) -> dict[str, Any]:
    refs = {"refs": content.refs} if content.refs else {}
    try:
        plain = json.loads(content.data)
    except ValueError:
        return {"base64": base64.b64encode(content.data).decode(), **refs}
    if _dump(plain) != content.data:
        return {"base64": base64.b64encode(content.data).decode(), **refs}
    return {"content": plain, **refs}


def _bytes_line(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


# --- and back


class Exported(NamedTuple):
    """What a file holds.

    Attributes:
        thread: the line of the thread.
        runs: the lines of its runs, each with those of its rows.
        blobs: by id.
        snapshot: the line of the snapshot at its root.
    """

    thread: Mapping[str, Any]
    runs: list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]
    blobs: Mapping[str, bytes]
    snapshot: Mapping[str, Any] | None


def read(path: str | os.PathLike[str]) -> Exported:
    """Reads an exported thread.

    Args:
        path: the file.

    Raises:
        StoreError: if it is none, or is not complete.
    """
    digest = blake2b(digest_size=16)
    lines: list[dict[str, Any]] = []
    with Path(path).open("rb") as file:
        for data in file:
            try:
                line = json.loads(data)
            except ValueError:
                line = None
            if not isinstance(line, dict) or (not lines and line.get("format") != FORMAT):
                raise StoreError(f"{os.fspath(path)!r} is no thread that this dspyer has exported, from line 1 on")
            if "digest" in line:
                if line["digest"] == digest.hexdigest():
                    return _sorted(lines, path)
                break
            digest.update(data)
            lines.append(line)
    raise StoreError(
        f"{os.fspath(path)!r} is not what was exported: its digest differs, or its end is missing. Nothing was loaded"
    )


def _sorted(lines: Iterable[dict[str, Any]], path: str | os.PathLike[str]) -> Exported:
    thread, *rest = lines
    if thread.get("redacted"):
        raise StoreError(f"{os.fspath(path)!r} was exported with redact=: it lacks values, and cannot be loaded")
    runs: list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = []
    blobs: dict[str, bytes] = {}
    snapshot = None
    for line in rest:
        if "run" in line:
            runs.append((line, []))
        elif "row" in line:
            runs[-1][1].append(line)
        elif "blob" in line:
            blobs[line["blob"]] = _bytes_of(line)
        else:
            snapshot = line
    return Exported(thread, runs, blobs, snapshot)


def load(store: Store, name: str, found: Exported) -> None:
    """Makes a thread of what was exported.

    Args:
        store: where to.
        name: the name of the thread.
        found: what was exported.

    Raises:
        ConcurrentRunError: if there is a thread of this name.
    """
    owner, journal = new_owner(), Journal(store, name, 0, "", 0)
    moved = {str(line["run"]): _place(store, line, rows, found) for line, rows in found.runs}
    try:
        leases.hold(owner.token, journal)  # before another can see that it owns the thread
        epoch = store.write(Change(name, 0, None, owner, LEASE))
        journal.owns(epoch)
        try:
            _fill(store, name, epoch, found, moved)
        except BaseException:
            with suppress(ConcurrentRunError):  # another has it, who knows that it is not whole
                store.remove([name], {name: epoch})
            raise
    finally:
        leases.let_go(owner.token)


def _fill(store: Store, name: str, epoch: int, found: Exported, moved: Mapping[str, _Place]) -> None:
    """Writes what was exported into a thread that is owned."""
    count = 0
    for line, rows in found.runs:
        own = moved[line["run"]]
        run = RunRow(own.run, name if line["own"] else "", _points(line["parents"], moved), line["header"])
        begun = store.run(own.run) is None
        store.write(Change(name, epoch, run=run, lease=LEASE))
        count += begun
        last = -1 if begun else max((row.seq for row in store.rows(own.run)), default=-1)
        fresh = [row for row in (_row(part, own, found) for part in rows) if row.seq > last]
        for start in range(0, len(fresh), BATCH):
            store.write(Change(name, epoch, lease=LEASE, rows_of=own.run, rows=fresh[start : start + BATCH]))
    root, head = _point(found.thread["root"], moved), _point(found.thread["head"], moved)
    snapshot = None
    if found.snapshot is not None and root is not None:
        snapshot = Snapshot(root, _content(found.snapshot, found))
    runs = max(found.thread["runs"] - count, 0)  # so that no later run gets the name of one that is there
    store.write(Change(name, epoch, lease=0.0, head=head, root=root, snapshot=snapshot, flush=True, runs=runs))


class _Place(NamedTuple):
    """Where a run goes: its id, and the number by which those of its rows become smaller."""

    run: str
    shift: int


def _place(store: Store, line: Mapping[str, Any], rows: list[Mapping[str, Any]], found: Exported) -> _Place:
    """The id that a run had, if it is free or the run is there already; else a new one."""
    shift = int(rows[0]["row"]) if rows else 0
    name = str(line["run"])
    known = store.run(name)
    if known is None:
        return _Place(token_hex(16) if shift else name, shift)
    parents = tuple([Point(run, seq) for run, seq in line["parents"]])
    there = {row.seq: row for row in store.rows(name)}
    own = [_row(part, _Place(name, 0), found) for part in rows]
    if same_run(known, RunRow(name, "", parents, line["header"])) and (
        not there or not own or own[0].seq <= max(there) + 1
    ):
        common = [row for row in own if row.seq in there]
        if all(same_row(row, there[row.seq]) for row in common):
            return _Place(name, 0)
    return _Place(token_hex(16), shift)


def _row(line: Mapping[str, Any], place: _Place, found: Exported) -> Row:
    holds = "content" in line or "base64" in line
    content = _content(line, found) if holds else None
    return Row(int(line["row"]) - place.shift, line["kind"], tuple(line["head"]), content)


def _content(line: Mapping[str, Any], found: Exported) -> Content:
    refs = line.get("refs", ())
    data = _dump(line["content"]) if "content" in line else _bytes_of(line)
    return Content.stored(data, refs, {name: found.blobs[name] for name in refs if name in found.blobs})


def _bytes_of(line: Mapping[str, Any]) -> bytes:
    return str(line["text"]).encode() if "text" in line else base64.b64decode(line["base64"])


def _points(points: Iterable[tuple[str, int]], moved: Mapping[str, _Place]) -> tuple[Point, ...]:
    return tuple([_moved(run, seq, moved) for run, seq in points])


def _point(point: tuple[str, int] | None, moved: Mapping[str, _Place]) -> Point | None:
    return None if point is None else _moved(*point, moved)


def _moved(run: str, seq: int, moved: Mapping[str, _Place]) -> Point:
    place = moved.get(run)
    return Point(run, seq) if place is None else Point(place.run, seq - place.shift)
