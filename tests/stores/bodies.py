"""Bodies of rows as no store writes them: to damage a file, to fill one, and to look for what is in it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from dspyer.stores.base import Row
from dspyer.stores.content import Content
from dspyer.stores.sql import DICTIONARY, decode_body, encode_body, encode_ended


def body(header: Any, data: bytes | None = None, refs: Sequence[str] = ()) -> bytes:
    """A body with any header, and any bytes as its content, which may refer to blobs."""
    return encode_body(header, None if data is None else Content.stored(data, refs))


def with_content(stored: bytes, data: bytes) -> bytes:
    """A body with the same header and other bytes as its content."""
    return body(decode_body(stored)[0], data)


def unpacked(stored: bytes) -> bytes:
    """The lines of a body."""
    return zlib.decompressobj(-15, DICTIONARY).decompress(stored)


def ended(row: Row) -> bytes:
    """The column of a run that ended with a row."""
    found = encode_ended(row)
    assert found is not None
    return found
