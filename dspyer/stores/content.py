"""The content of rows and snapshots: a frozen value, and its bytes as JSON once a store asks for them.

Long texts and bytes are stored apart from their row as *blobs*, named by a hash of their bytes (content addressing, as
in git), so that a value that is written in a hundred rows is stored once.

A store may hold what an attacker has written: `ReadBudget` bounds the memory that reading one content can take.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Self

from dspyer.errors import StateError
from dspyer.values import json as encoding
from dspyer.values.json import TAG
from dspyer.values.scalars import MAX_DEPTH

ENCRYPTED_MARK = b"\x00sealed1"
"""The first bytes of what `Encrypted` has written: neither JSON nor compressed data begins with a zero byte."""

MAX_INLINE = 16 * 1024
"""The longest text or bytes that stay in their row; longer ones become blobs."""

MAX_JSON_BYTES = 1 << 28
"""Bytes of JSON of one content, or of one snapshot, at most: 256 MiB, not counting blobs."""

MAX_VALUES = 4_000_000
"""Values in it at most: each takes about a hundred bytes of memory, however short its text is."""

MAX_EXPANDED_BYTES = 1 << 30
"""Bytes of blobs that it may refer to, each counted as often as it is referred to: 1 GiB."""

UNCOUNTED = 100_000
"""Bytes of JSON that cannot hold enough values to matter, so that the values of a usual row are not counted."""

Fetch = Callable[[Collection[str]], Mapping[str, bytes]]
"""Returns blobs by id."""

_decoder: Any = json.JSONDecoder()
_scan = _decoder.scan_once


def parse_json(text: str) -> Any:
    """The value of JSON text without spaces around it.

    `json.loads` looks for an encoding, for options and for spaces first, in as much time as a row takes.
    """
    try:
        value, end = _scan(text, 0)
    except StopIteration as error:
        raise json.JSONDecodeError("Expecting value", text, error.value) from None
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


_NO_BLOBS: Mapping[str, bytes] = MappingProxyType({})
_UNREAD = object()


class ReadBudget:
    """A limit of what may still be read for one content or one snapshot, spent before anything is parsed."""

    def __init__(self) -> None:
        self._bytes = MAX_JSON_BYTES
        self._values = MAX_VALUES
        self._expanded = MAX_EXPANDED_BYTES

    def spend(self, data: bytes, uncounted: int = 0) -> bytes:
        """Account for bytes of JSON, and return them; the values of at most `uncounted` bytes are not counted."""
        self._bytes -= len(data)
        if self._bytes < 0:
            raise StateError(
                f"it has {MAX_JSON_BYTES - self._bytes:,} bytes of JSON besides its long texts and bytes; "
                f"{MAX_JSON_BYTES:,} are stored and read at most"
            )
        if len(data) > uncounted:
            # An upper bound without parsing: each value but the first follows one of these characters.
            self._values -= data.count(b",") + data.count(b"[") + data.count(b"{")
        if self._values < 0:
            raise StateError(
                f"it has about {MAX_VALUES - self._values:,} values; "
                f"{MAX_VALUES:,} are stored and read at most in one piece"
            )
        return data

    def expand(self, data: bytes) -> bytes:
        """Account for the bytes of a blob that replaces a reference, and return them."""
        self._expanded -= len(data)
        if self._expanded < 0:
            raise StateError(
                f"its references bring in more than the {MAX_EXPANDED_BYTES:,} bytes that are read at most"
            )
        return data


class Content:
    """A frozen value on its way to a store or back, encoded and decoded only when needed.

    Args:
        value: a frozen value.
        encode: turns it into JSON values.
        extra_blobs: blobs to store with it, by id, that its bytes do not name.

    Attributes:
        parts: what its reader needs besides, from other rows; no store keeps it.

    Example:
        >>> content = Content("x" * 20_000)
        >>> content.data
        b'{"$type":"blob text","value":"12b84e707b695a54f692644f5accaaed"}'
        >>> stored = Content.stored(content.data, content.refs)
        >>> stored.value(lambda ids: content.blobs) == "x" * 20_000
        True
    """

    __slots__ = ("_blobs", "_data", "_encode", "_refs", "_value", "extra_blobs", "parts")

    def __init__(
        self,
        value: Any,
        encode: Callable[[Any], Any] = encoding.encode,
        extra_blobs: Mapping[str, bytes] = _NO_BLOBS,
    ) -> None:
        self._value = value
        self._encode = encode
        self.extra_blobs = extra_blobs
        self.parts: Sequence[Any] | None = None
        self._data: bytes | None = None
        self._refs: tuple[str, ...] = ()
        self._blobs: Mapping[str, bytes] = _NO_BLOBS

    @classmethod
    def stored(cls, data: bytes, refs: Iterable[str] = (), blobs: Mapping[str, bytes] = _NO_BLOBS) -> Content:
        """A content of bytes that a store has read.

        Args:
            data: the bytes, as `data` returned them.
            refs: ids of the blobs that they refer to.
            blobs: those of these blobs that may not be stored yet, by id.

        Example:
            >>> Content.stored(b'{"n":1}').value(lambda ids: {})
            FrozenDict({'n': 1})
        """
        content = cls(_UNREAD)
        content._data = data
        content._refs = tuple(refs)
        content._blobs = blobs
        return content

    @classmethod
    def loaded_by(cls, load: Callable[[], tuple[bytes, tuple[str, ...]]]) -> Content:
        """A content from a store, of which `load` returns the bytes and their references once they are needed."""
        return cls(_UNREAD, lambda _: load())

    def with_parts(self, parts: Sequence[Any]) -> Self:
        """A copy with these parts."""
        found = copy(self)
        found.parts = parts
        return found

    @property
    def is_encrypted(self) -> bool:
        """True if its bytes are those that an encrypted store has written."""
        return self.data.startswith(ENCRYPTED_MARK)

    @property
    def is_encoded(self) -> bool:
        """True once the bytes were computed, and for a content from a store."""
        return self._data is not None or self._value is _UNREAD

    @property
    def original(self) -> Any:
        """The value that it was made of; None for a content from a store."""
        return None if self._value is _UNREAD else self._value

    @property
    def data(self) -> bytes:
        """The bytes: JSON as UTF-8, encoded on first use.

        Raises:
            StateError: the value is larger than what can be read again.
        """
        return self._made() if self._data is None else self._data

    def _made(self) -> bytes:
        data: bytes
        if self._value is _UNREAD:
            data, self._refs = self._encode(None)
        else:
            encoded = self._encode(self._value)
            data = _dump(encoded)
            if len(data) > MAX_INLINE:
                blobs: dict[str, bytes] = {}
                plain = extract_blobs(encoded, blobs)
                # Checked when written: a content that is too large to read would be lost.
                data = ReadBudget().spend(_dump(plain) if blobs else data, UNCOUNTED)
                self._refs, self._blobs = tuple(blobs), blobs
            if self.extra_blobs:
                self._refs, self._blobs = (*self._refs, *self.extra_blobs), {**self._blobs, **self.extra_blobs}
        self._data = data
        return data

    @property
    def refs(self) -> tuple[str, ...]:
        """The ids of the blobs that belong to it."""
        self.data  # noqa: B018 - encoding finds the blobs
        return self._refs

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """The blobs that may not be stored yet, by id; none for a content from a store."""
        self.data  # noqa: B018 - encoding finds the blobs
        return self._blobs

    def value(self, fetch: Fetch, decode: Callable[[Any], Any] = encoding.decode) -> Any:
        """The value.

        Args:
            fetch: returns blobs by id, such as a store's `blobs`.
            decode: turns JSON values into the value.

        Raises:
            StateError: the bytes are damaged, larger than `ReadBudget` allows, or name a class that is not registered.
            LookupError: a blob is missing.

        Example:
            >>> Content(("a", 1)).value(lambda ids: {})
            ('a', 1)
        """
        if self._value is not _UNREAD:
            return self._value
        data = self.data
        budget = ReadBudget()
        try:
            plain = parse_json(budget.spend(data, UNCOUNTED).decode("utf-8", "surrogatepass"))
            if self._refs:
                # Blobs that are only stored with it are not named in its bytes: they are not fetched.
                named = [name for name in self._refs if name.encode() in data]
                found = fetch(named) if named else {}
                if lost := [name for name in named if name not in found]:
                    raise LookupError(f"the large value {lost[0]!r} is lost or damaged")
                plain = insert_blobs(plain, found, budget) if named else plain
        except RecursionError:
            raise StateError(f"the value is nested deeper than {MAX_DEPTH} levels") from None
        except ValueError as error:
            if self.is_encrypted:
                why = "the value is encrypted: give compile(store=Encrypted(store, key=...))"
                raise StateError(why) from None
            raise StateError(f"the bytes are not those of an encoded value: {error}") from error
        return decode(plain)

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, Content) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)


def blob_id(data: bytes) -> str:
    """The id of a blob: a hash of its bytes, 32 hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


def _dump(encoded: Any) -> bytes:
    return _json(encoded).encode()


def extract_blobs(encoded: Any, blobs: dict[str, bytes]) -> Any:
    """The JSON with long texts and bytes replaced by references; they are added to `blobs`."""
    if type(encoded) is str:
        return encoded if len(encoded) <= MAX_INLINE else extract_blob(encoded, blobs)
    if type(encoded) is list:
        return [extract_blobs(item, blobs) for item in encoded]
    if type(encoded) is not dict:
        return encoded
    if encoded.get(TAG) == "bytes" and len(encoded["value"]) > MAX_INLINE:
        return extract_blob(base64.b64decode(encoded["value"]), blobs)
    return {key: extract_blobs(item, blobs) for key, item in encoded.items()}


def extract_blob(value: str | bytes, blobs: dict[str, bytes]) -> dict[str, str]:
    """The reference to a long text or bytes; its blob is added to `blobs`."""
    data, kind = (value.encode(), "text") if isinstance(value, str) else (value, "bytes")
    known = _known_ids.get(id(value))
    if known is None:
        known = (value, blob_id(data))
        if len(value) <= REMEMBERED_CHARACTERS:
            if sum([len(one) for one, _ in list(_known_ids.values())]) + len(value) > REMEMBERED_CHARACTERS:
                _known_ids.clear()
            _known_ids[id(value)] = known
    blobs[known[1]] = data
    return {TAG: f"blob {kind}", "value": known[1]}


REMEMBERED_CHARACTERS = 32 * 1024 * 1024
"""Length of the long values whose ids are remembered: a value that stays in a state is hashed once."""

# By the value's `id()`, with the value itself: while it is kept here, no other object can get the same `id()`.
_known_ids: dict[int, tuple[str | bytes, str]] = {}


def insert_blobs(plain: Any, blobs: Mapping[str, bytes], budget: ReadBudget) -> Any:
    """The JSON with references replaced by their blobs."""
    if type(plain) is list:
        return [insert_blobs(item, blobs, budget) for item in plain]
    if type(plain) is not dict:
        return plain
    tag = plain.get(TAG)
    if tag == "blob text":
        return budget.expand(blobs[plain["value"]]).decode()
    if tag == "blob bytes":
        return {TAG: "bytes", "value": base64.b64encode(budget.expand(blobs[plain["value"]])).decode()}
    return {key: insert_blobs(item, blobs, budget) for key, item in plain.items()}
