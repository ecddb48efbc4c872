"""What the columns of a PostgreSQL store hold.

Text of users goes into `bytea`: `text` refuses the character 0, and `jsonb` rewrites numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from dspyer.stores.base import Owner, Point, Row, RunRow
from dspyer.stores.content import Content


class ContentColumns(NamedTuple):
    """Contents on their way to a table, a list for each column.

    Attributes:
        seqs: the numbers of the rows.
        kinds: their kinds.
        heads: their heads.
        datas: the bytes of their contents.
        refs: the ids of the blobs that they refer to, in one text, as arrays of arrays must be of equal lengths.
        blobs: the blobs that may have to be stored, by id.
    """

    seqs: list[int]
    kinds: list[str]
    heads: list[bytes]
    datas: list[bytes | None]
    refs: list[str | None]
    blobs: dict[str, bytes]


def pack_rows(rows: Iterable[Row]) -> ContentColumns:
    """Rows as columns."""
    packed = ContentColumns([], [], [], [], [], {})
    for row in rows:
        data, refs = pack_content(row.content, packed.blobs)
        packed.seqs.append(row.seq)
        packed.kinds.append(row.kind)
        packed.heads.append(pack(row.head))
        packed.datas.append(data)
        packed.refs.append(None if refs is None else " ".join(refs))
    return packed


def pack_content(content: Content | None, blobs: dict[str, bytes]) -> tuple[bytes | None, list[str] | None]:
    """The bytes of a content and the ids that they refer to; its blobs are added to `blobs`."""
    if content is None:
        return None, None
    data, refs = content.data, content.refs
    if refs:
        blobs.update(content.blobs)
    return data, list(refs) or None


def unpack_content(data: bytes | None, refs: list[str] | None) -> Content | None:
    """The content in two columns."""
    return None if data is None else Content.stored(data, refs or ())


def pack(value: Any) -> bytes:
    """JSON as UTF-8."""
    return pack_text(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def unpack(data: bytes) -> Any:
    """What `pack` was given, lists in the place of tuples."""
    return json.loads(unpack_text(data))


def pack_text(text: str) -> bytes:
    """Any text, in the order of its characters."""
    return text.encode("utf-8", "surrogatepass")


def unpack_text(data: bytes) -> str:
    """What `pack_text` was given."""
    return data.decode("utf-8", "surrogatepass")


def unpack_owner(data: bytes | None) -> Owner | None:
    """The owner in a column."""
    return None if data is None else Owner(*unpack(data))


def unpack_point(run: str | None, seq: int | None) -> Point | None:
    """The row of a run in two columns."""
    return None if run is None or seq is None else Point(run, seq)


def unpack_points(data: bytes) -> tuple[Point, ...]:
    """The rows of runs in a column."""
    return tuple(Point(run, seq) for run, seq in unpack(data))


def unpack_run(name: str, thread: bytes, parents: bytes, header: bytes) -> RunRow:
    """A run in its columns."""
    return RunRow(name, unpack_text(thread), unpack_points(parents), unpack(header))
