"""How the SQL stores write values into columns: JSON as UTF-8 bytes, bodies of rows compressed, and back.

Bytes, not the databases' own text and JSON types: PostgreSQL's `text` refuses the character 0 and its `jsonb` rewrites
numbers, and neither database takes the lone surrogates that a model may return.

The *body* of an entry or a snapshot is DEFLATE (RFC 1951) over three lines: the header as JSON, the ids of the blobs of
the content with commas, and the bytes of the content (JSON, unless the store encrypts). No line break occurs in the
first two. A body without content has one line. Entries are short and alike, so the compressor begins with a preset
dictionary: `zlib.decompressobj(-15, zdict=DICTIONARY).decompress(body)` reads any of them. Two bytes follow, the CRC-16
of those before them: the frame that zlib itself puts around them takes ten, a fifth of the body of a short entry.
"""

from __future__ import annotations

import json
import re
import zlib
from binascii import crc_hqx
from typing import Any

from dspyer.errors import StateError, brief
from dspyer.stores.base import END, Owner, Point, Row, ending_of
from dspyer.stores.content import MAX_JSON_BYTES, Content, parse_json

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


def decode_points(data: bytes | None) -> tuple[Point, ...]:
    return () if data is None else tuple([Point(run, seq) for run, seq in json.loads(data)])


def decode_point(run: str | None, seq: int | None) -> Point | None:
    """The point of two columns; None where both are null."""
    return None if run is None or seq is None else Point(run, seq)


def decode_owner(data: bytes | str | None) -> Owner | None:
    return None if data is None else Owner(*json.loads(data))


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


def encode_ended(row: Row) -> bytes:
    """How a run ended, by its last row of the kind `"end"`: its status, its number and its header, in three lines."""
    return b"%b\n%d\n%b" % (encode_text(ending_of(row)), row.seq, encode_json(row.header))


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

TABLES = """
CREATE TABLE {s}.version (number bigint NOT NULL);
INSERT INTO {s}.version VALUES ({version});
CREATE TABLE {s}.fence (largest bigint NOT NULL);
INSERT INTO {s}.fence VALUES (0);
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

`fencing` is the epoch of a thread, and `fence` the largest of those that were deleted. `lease_until` is when the lease
expires, or when the thread was released, which has no owner then. `link` has the parents of runs, and `ref` the uses of
blobs (`seq` is that of an entry, or -1 minus that of a snapshot), so that a deletion searches nothing. `ended` is null
until a run has ended.
"""
