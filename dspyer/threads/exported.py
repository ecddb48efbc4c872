"""An exported thread, read line by line. The digest of a file says that it is whole, not who made it."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from dspyer.errors import DspyerError, StateError, StoreError
from dspyer.persistence.snapshot_encoding import piece_id
from dspyer.persistence.snapshots import readable
from dspyer.stores.content import Allowance, Content, blob_id
from dspyer.values import json as encoding
from dspyer.values.types import Opaque

FORMAT = 1
"""Of the files that this dspyer writes and reads."""

LONGEST = 1 << 30
"""Bytes of a line that are read at most, 1 GiB: one with a long text or bytes. For others see `Allowance`."""

VALUES = 32_000_000
"""Values that are read at most in all lines of a file."""

_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error, StateError, StoreError)


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
    """Reads an exported thread. Everything in it is checked, and nothing larger than the limits is read.

    Args:
        path: the file.

    Raises:
        StoreError: if it is none, is not complete, holds what no thread has, or more than is read at most.
    """
    name = repr(os.fspath(path))
    digest, lines, number = blake2b(digest_size=16), _Lines(), 0
    with Path(path).open("rb") as file:
        while data := file.readline(LONGEST + 1):
            number += 1
            try:
                line = lines.parsed(data)
                if "digest" in line:
                    if line["digest"] != digest.hexdigest():
                        break
                    return lines.exported()
                lines.add(line)
            except _MALFORMED as error:
                reason = f"{type(error).__name__}: {error}" if not isinstance(error, DspyerError) else error
                raise StoreError(
                    f"{name} is no thread that this dspyer has exported: line {number}: {reason}. Nothing was loaded"
                ) from error
            digest.update(data)
    raise StoreError(f"{name} is not what was exported: its digest differs, or its end is missing. Nothing was loaded")


def content_of(line: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Content:
    """The content of a line.

    Args:
        line: of a row or a snapshot.
        blobs: by id.
    """
    refs = line.get("refs", ())
    data = dump(line["content"]) if "content" in line else bytes_of(line)
    return Content.stored(data, refs, {name: blobs[name] for name in refs if name in blobs})


def bytes_of(line: Mapping[str, Any]) -> bytes:
    """The bytes of a line, which are written as text where they are text."""
    return str(line["text"]).encode() if "text" in line else base64.b64decode(line["base64"])


def dump(value: Any) -> bytes:
    """JSON as UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class _Lines:
    """The lines of a file as they come. Each method raises `StateError` for a line that `export` does not write."""

    def __init__(self) -> None:
        self._thread: dict[str, Any] = {}
        self._runs: dict[str, tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = {}
        self._blobs: dict[str, bytes] = {}
        self._snapshot: Mapping[str, Any] | None = None
        self._rows: list[Mapping[str, Any]] = []
        self._elsewhere: set[str] = set()  # parents of runs whose lines have not come
        self._values = VALUES
        self._pieces = Allowance()

    def parsed(self, data: bytes) -> dict[str, Any]:
        """A line, parsed if it is not too large."""
        _require(len(data) <= LONGEST, f"it has more than the {LONGEST:,} bytes that are read at most")
        if not data.startswith(b'{"blob":'):
            Allowance().take(data)
        self._values -= data.count(b",") + data.count(b"[")
        _require(self._values >= 0, f"up to here there are more than the {VALUES:,} values that are read at most")
        line = json.loads(data)
        if not isinstance(line, dict):
            raise StateError("it is no object")
        return line

    def add(self, line: dict[str, Any]) -> None:
        """Takes a line."""
        if not self._thread:
            _require(line.get("format") == FORMAT, f"it is not the line of a thread in format {FORMAT}")
            _require(not line.get("redacted"), "it was exported with redact=: it lacks values, and cannot be loaded")
            _require(_is_count(line["runs"]), f"{line['runs']!r} is no number of runs")
            self._thread = line
        elif "run" in line:
            self._add_run(line)
        elif "row" in line:
            _require(_is_count(line["row"]), f"{line['row']!r} is no number of a row")
            follows = not self._rows or line["row"] == self._rows[-1]["row"] + 1
            _require(bool(self._runs) and follows, f"row {line['row']} does not follow what is before it")
            _require(isinstance(line["kind"], str) and isinstance(line["head"], list), "it is no row")
            self._rows.append(line)
        elif "blob" in line:
            self._add_blob(line["blob"], bytes_of(line))
        else:
            at, names = line["snapshot"], line.get("refs", ())
            _require(at == self._thread["root"] and self._snapshot is None, "its snapshot is not at its root")
            _require(all(name in self._blobs for name in names), "it refers to large values that are not there")
            readable(content_of(line, self._blobs), lambda _: self._blobs, encoding.decoder((), Opaque.of))
            self._snapshot = line

    def exported(self) -> Exported:
        """What all lines say."""
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
        _require(all(run in parents for run, _ in line["parents"]), "it goes on from what is no row")
        circles = name in parents or name in self._elsewhere
        _require(not circles, f"run {name!r} goes on from itself, or another run from it that comes before")
        self._elsewhere |= parents - self._runs.keys()
        self._rows = []
        self._runs[name] = line, self._rows

    def _add_blob(self, name: str, data: bytes) -> None:
        if name != blob_id(data):
            _require(name == _piece(data, self._pieces), f"large value {name!r} is another one than its id says")
        self._blobs[name] = data

    def _has(self, run: str, seq: int) -> bool:
        rows = self._runs[run][1] if run in self._runs else []
        return bool(rows) and rows[0]["row"] <= seq <= rows[-1]["row"]


def _piece(data: bytes, allowance: Allowance) -> str:
    """The id of a piece of a snapshot, which is compressed; `""` for what is none."""
    try:
        return piece_id(allowance.inflate(data))
    except zlib.error:
        return ""


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise StateError(problem)
