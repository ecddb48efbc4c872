"""How the SQL stores write values into columns: JSON as UTF-8 bytes, and back.

Bytes, not the databases' own text and JSON types: PostgreSQL's `text` refuses the character 0 and its `jsonb` rewrites
numbers, and neither database takes the lone surrogates that a model may return.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from dspyer.stores.base import Owner, Point
from dspyer.stores.content import Content

_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode_json(value: Any) -> bytes:
    """JSON as UTF-8, lone surrogates included."""
    return _json(value).encode("utf-8", "surrogatepass")


def decode_json(data: bytes | str) -> Any:
    """The value of JSON as bytes or text; tuples have become lists."""
    return json.loads(data)


def encode_text(text: str) -> bytes:
    """Any text as bytes that sort as its code points do."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def decode_points(data: bytes | None) -> tuple[Point, ...]:
    return () if data is None else tuple([Point(run, seq) for run, seq in json.loads(data)])


def decode_point(run: str | None, seq: int | None) -> Point | None:
    """The point of two columns; None where both are null."""
    return None if run is None or seq is None else Point(run, seq)


def decode_owner(data: bytes | str | None) -> Owner | None:
    return None if data is None else Owner(*json.loads(data))


def decode_content(data: bytes | None, refs: Iterable[str]) -> Content | None:
    """The content of two columns: its bytes, and the ids of the blobs that they refer to."""
    return None if data is None else Content.stored(data, refs)
