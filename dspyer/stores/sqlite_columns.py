"""What the columns of a SQLite store hold: ids, references, points and owners in as few bytes as they need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dspyer.stores.base import Owner, Point
from dspyer.stores.content import Content

SHIFT = 32
"""A row's id is its run's key, this many bits to the left, and its number."""

_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

MASK = (1 << SHIFT) - 1
"""The number in a row's id; the greatest number too."""


def pack(value: Any) -> bytes:
    """JSON as UTF-8."""
    return _json(value).encode()


COMMON = "commit"
"""The kind of most rows: in its column it is the empty text, and takes no space."""


def pack_kind(kind: str) -> str:
    """The kind of a row."""
    return "" if kind == COMMON else kind


def unpack_kind(stored: str) -> str:
    """The kind in a column."""
    return stored or COMMON


def pack_id(name: str) -> bytes | str:
    """An id: one of 32 hexadecimal digits in its 16 bytes, any other as it is."""
    if len(name) == 32:
        try:
            raw = bytes.fromhex(name)
        except ValueError:
            return name
        if raw.hex() == name:
            return raw
    return name


def unpack_id(stored: bytes | str) -> str:
    """The id of a column."""
    return stored if isinstance(stored, str) else stored.hex()


def pack_refs(refs: Sequence[str]) -> bytes | str | None:
    """The ids of blobs: 16 bytes each, or JSON if one of them is not like the others."""
    if not refs:
        return None
    packed = [pack_id(ref) for ref in refs]
    raw = [ref for ref in packed if isinstance(ref, bytes)]
    return b"".join(raw) if len(raw) == len(packed) else json.dumps(list(refs))


def unpack_refs(stored: bytes | str | None) -> tuple[str, ...]:
    """The ids of blobs in a column."""
    if stored is None:
        return ()
    if isinstance(stored, str):
        return tuple(json.loads(stored))
    return tuple(stored[start : start + 16].hex() for start in range(0, len(stored), 16))


def pack_points(points: Sequence[Point]) -> bytes | None:
    """Rows of runs."""
    return pack([[point.run, point.seq] for point in points]) if points else None


def unpack_points(stored: bytes | None) -> tuple[Point, ...]:
    """The rows of runs in a column."""
    return () if stored is None else tuple(Point(run, seq) for run, seq in json.loads(stored))


def unpack_point(run: bytes | str | None, seq: int | None) -> Point | None:
    """A row of a run in two columns."""
    return None if run is None or seq is None else Point(unpack_id(run), seq)


def unpack_owner(stored: str | None) -> Owner | None:
    """The owner in a column."""
    return None if stored is None else Owner(*json.loads(stored))


def unpack_content(data: bytes | None, refs: bytes | str | None) -> Content | None:
    """The content in two columns."""
    return None if data is None else Content.stored(data, unpack_refs(refs))
