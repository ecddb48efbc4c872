"""What rows hold: frozen values, as bytes where a store wants bytes.

Long texts and bytes are kept apart as *blobs*, named by what they are: stored once, however often they are written.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from threading import Lock
from types import MappingProxyType
from typing import Any

from dspyer.errors import StateError
from dspyer.values import json as encoding
from dspyer.values.json import TAG
from dspyer.values.refusals import MAX_DEPTH

MAX_INLINE = 16 * 1024
"""Bytes of a text or of bytes that stay in their row."""

MAX_JSON_BYTES = 1 << 28
"""Bytes of JSON that are read at most for one content, or one snapshot with all its pieces: 256 MiB. The long texts and
bytes that are stored apart are not counted."""

MAX_VALUES = 4_000_000
"""Values that are read at most for one of them: each takes some hundred bytes of memory, however short its text is."""

MAX_EXPANDED_BYTES = 1 << 30
"""Bytes of long texts and bytes that one content may refer to, each as often as it is referred to: 1 GiB."""

_FEW = 100_000
"""Bytes of a single content whose values need not be counted."""

Fetch = Callable[[Collection[str]], Mapping[str, bytes]]
"""Gives blobs by id."""

BLOB_TAGS = ("blob text", "blob bytes")
"""The tags of references to blobs."""

_NO_BLOBS: Mapping[str, bytes] = MappingProxyType({})
_UNREAD = object()


class ReadBudget:
    """What may still be read for one content or one snapshot. It is asked before anything is decompressed or parsed."""

    def __init__(self) -> None:
        self._bytes = MAX_JSON_BYTES
        self._values = MAX_VALUES
        self._expanded = MAX_EXPANDED_BYTES

    def spend(self, data: bytes, few: int = 0) -> bytes:
        """The same bytes of JSON, which are read now.

        Args:
            data: the bytes.
            few: their values are not counted if they are no more bytes than this.

        Raises:
            StateError: if they are more than may be read.
        """
        self._bytes -= len(data)
        if self._bytes < 0:
            raise StateError(
                f"it has {MAX_JSON_BYTES - self._bytes:,} bytes of JSON besides its long texts and bytes; "
                f"{MAX_JSON_BYTES:,} are stored and read at most"
            )
        if len(data) > few:
            self._values -= data.count(b",") + data.count(b"[") + data.count(b"{")
        if self._values < 0:
            raise StateError(
                f"it has about {MAX_VALUES - self._values:,} values; "
                f"{MAX_VALUES:,} are stored and read at most in one piece"
            )
        return data

    def inflate(self, data: bytes) -> bytes:
        """Decompressed bytes of JSON, which are read now.

        Raises:
            StateError: if they are more than may be read, or end too early.
            zlib.error: if they were not compressed.
        """
        reader = zlib.decompressobj()
        found = reader.decompress(data, self._bytes + 1)
        if len(found) > self._bytes:
            raise StateError(
                f"compressed bytes hold more than the {MAX_JSON_BYTES:,} bytes that are read at most in one piece"
            )
        if not reader.eof:
            raise StateError("compressed bytes end too early")
        return self.spend(found)

    def expand(self, data: bytes) -> bytes:
        """The same long text or bytes, which stand in the place of a reference now.

        Raises:
            StateError: if they are more than may be read.
        """
        self._expanded -= len(data)
        if self._expanded < 0:
            raise StateError(
                f"its references bring in more than the {MAX_EXPANDED_BYTES:,} bytes that are read at most"
            )
        return data


class Content:
    """A frozen value on its way to a store or back: encoded when a store asks for bytes, decoded when somebody reads.

    Args:
        value: what nobody can change.
        encode: what makes JSON values of it.
        extra_blobs: blobs that are kept with it, though its bytes do not name them.
    """

    __slots__ = ("_blobs", "_data", "_encode", "_refs", "_value", "extra_blobs")

    def __init__(
        self,
        value: Any,
        encode: Callable[[Any], Any] = encoding.encode,
        extra_blobs: Mapping[str, bytes] = _NO_BLOBS,
    ) -> None:
        self._value = value
        self._encode = encode
        self.extra_blobs = extra_blobs
        self._data: bytes | None = None
        self._refs: tuple[str, ...] = ()
        self._blobs: Mapping[str, bytes] = _NO_BLOBS

    @classmethod
    def stored(cls, data: bytes, refs: Iterable[str] = (), blobs: Mapping[str, bytes] = _NO_BLOBS) -> Content:
        """Content as its bytes.

        Args:
            data: the bytes.
            refs: ids of the blobs that they refer to.
            blobs: those of them that may have to be stored.
        """
        content = cls(_UNREAD)
        content._data = data
        content._refs = tuple(refs)
        content._blobs = blobs
        return content

    @property
    def is_encoded(self) -> bool:
        """Whether the bytes are there already."""
        return self._data is not None

    @property
    def original(self) -> Any:
        """The value that it was made of; None for what comes from a store."""
        return None if self._value is _UNREAD else self._value

    @property
    def data(self) -> bytes:
        """The bytes: JSON as UTF-8.

        Raises:
            StateError: if they would be more than can be read again.
        """
        if self._data is None:
            encoded = self._encode(self._value)
            data = _dump(encoded)
            if len(data) > MAX_INLINE:
                blobs: dict[str, bytes] = {}
                data = ReadBudget().spend(_dump(extract_blobs(encoded, blobs)), _FEW)
                self._refs, self._blobs = tuple(blobs), blobs
            if self.extra_blobs:
                self._refs, self._blobs = (*self._refs, *self.extra_blobs), {**self._blobs, **self.extra_blobs}
            self._data = data
        return self._data

    @property
    def refs(self) -> tuple[str, ...]:
        """The ids of the blobs that the bytes refer to."""
        self.data  # noqa: B018 - finds them
        return self._refs

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """Those of the blobs that may have to be stored, by id; none for what comes from a store."""
        self.data  # noqa: B018 - finds them
        return self._blobs

    def value(self, fetch: Fetch, decode: Callable[[Any], Any] = encoding.decode) -> Any:
        """The value.

        Args:
            fetch: where blobs come from.
            decode: what makes the value of JSON values again.

        Raises:
            StateError: if the bytes are not the form of a value, or name what is unknown here.
            LookupError: if a blob is missing.
        """
        if self._value is not _UNREAD:
            return self._value
        data = self.data
        budget = ReadBudget()
        try:
            plain = json.loads(budget.spend(data, _FEW))
            if self._refs:
                named = [name for name in self._refs if name.encode() in data]
                plain = insert_blobs(plain, fetch(named), budget) if named else plain
        except RecursionError:
            raise StateError(f"the value is nested deeper than {MAX_DEPTH} levels") from None
        except ValueError as error:
            raise StateError(f"the bytes are not the form of a value: {error}") from error
        return decode(plain)

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, Content) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)


def blob_id(data: bytes) -> str:
    """The name of a blob: what it is says what it is called."""
    return blake2b(data, digest_size=16).hexdigest()


_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


def _dump(encoded: Any) -> bytes:
    return _json(encoded).encode()


def extract_blobs(encoded: Any, blobs: dict[str, bytes]) -> Any:
    """The same JSON with references in the place of long texts and bytes, which go to `blobs`."""
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
    """The reference to a long text or to bytes, which go to `blobs`."""
    data, kind = (value.encode(), "text") if isinstance(value, str) else (value, "bytes")
    known = _named.get(id(value))
    if known is not None and known[0] is value:
        name = known[1]
    else:
        name = blob_id(data)
        _remember(value, name)
    blobs[name] = data
    return {TAG: f"blob {kind}", "value": name}


REMEMBERED_CHARACTERS = 32 * 1024 * 1024
"""Characters of the last long values whose names are remembered: what stays in a state is not hashed again."""

_named: dict[int, tuple[str | bytes, str]] = {}
_naming = Lock()


def _remember(value: str | bytes, name: str) -> None:
    if len(value) > REMEMBERED_CHARACTERS:
        return
    with _naming:
        _named.pop(id(value), None)
        _named[id(value)] = (value, name)
        size = sum([len(one) for one, _ in _named.values()])
        while size > REMEMBERED_CHARACTERS:
            size -= len(_named.pop(next(iter(_named)))[0])


def insert_blobs(plain: Any, blobs: Mapping[str, bytes], budget: ReadBudget) -> Any:
    """The JSON form with the blobs in their places again.

    Args:
        plain: the form.
        blobs: by id.
        budget: what may still be read.

    Raises:
        StateError: if they are more than may be read.
        LookupError: if one is missing.
    """
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
