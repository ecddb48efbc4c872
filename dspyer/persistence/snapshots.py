"""Snapshots: the state of a run at one of its rows, so that recovery folds only the log behind it.

A snapshot is taken every `EVERY` rows, when a single branch is active. It is a cache: a missing or unreadable one costs
time, and nothing else. `recovery` reads the log from the last snapshot on.

Long lists and large mappings are stored in *chunks* of `CHUNK` items, each compressed and named by the hash of its
bytes (content addressing, as in git). A list that has grown by appending shares all full chunks with the snapshot
before it; the last items, fewer than a chunk, are in the snapshot itself. So a snapshot costs what has changed since
the last one, whatever the size of the state.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from operator import is_
from threading import Lock
from typing import Any, NamedTuple

from dspyer.errors import StateError, StoreError
from dspyer.persistence.row_codec import Decode
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Snapshot, Store
from dspyer.stores.content import (
    BLOB_TAGS,
    MAX_INLINE,
    Content,
    Fetch,
    ReadBudget,
    extract_blob,
    extract_blobs,
    insert_blobs,
)
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.values.json import TAG
from dspyer.values.scalars import SCALARS

EVERY = 480
"""Rows since the last snapshot from which on a run takes one as soon as a single branch is active."""

AT_END = 100
"""Rows since the last snapshot from which on a run takes one when it ends."""

VERSION = 1
"""Version of the snapshot format; a snapshot of another version is skipped."""

CHUNK = 256
"""Items of a chunk."""

# The names under which chunks are tagged and hashed are part of the format: they cannot change with the code's words.
LIST, MAPPING = "pieces of a list", "pieces of a mapping"
_HASH_DOMAIN = b"dspyer piece"

FieldKeys = tuple[str, ...]
"""The path of a value in the state."""

logger = logging.getLogger("dspyer")

_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, zlib.error, StateError)


class SnapshotState(NamedTuple):
    """The state of a run at a row at which a single branch was active.

    Attributes:
        state: the state.
        commit_index: the index of the last commit among those of the run.
    """

    state: ImmutableState
    commit_index: int


class LoadedSnapshot(NamedTuple):
    """A snapshot that was read: its row, its state, and an encoder that knows its chunks."""

    at: Point
    content: SnapshotState
    encoder: SnapshotEncoder


class SnapshotContent(Content):
    """The content of a snapshot: it is encoded when a store asks for its bytes."""

    __slots__ = ("_encoder",)

    def __init__(self, content: SnapshotState, encoder: SnapshotEncoder) -> None:
        super().__init__(content)
        self._encoder = encoder

    @property
    def data(self) -> bytes:
        """The compressed bytes."""
        if self._data is None:
            encoded = self._encoder.encode(self._value.state)
            self._refs, self._blobs = encoded.refs, self._encoder.take_new_blobs(encoded)
            self._data = zlib.compress(f"[{VERSION},{self._value.commit_index},{encoded.text}]".encode())
        return self._data


def new_snapshot(at: Point, content: SnapshotState, encoder: SnapshotEncoder) -> Snapshot:
    """Make a snapshot at a settled commit, or at the end of a completed run, with the encoder of earlier snapshots."""
    return Snapshot(at, SnapshotContent(content, encoder))


def latest_snapshot(store: Store, at: Point, decode: Decode) -> LoadedSnapshot | None:
    """Return the last readable snapshot of a run at or before a row."""
    while at.seq >= 0:
        found = store.snapshot(at)
        if found is None:
            return None
        encoder = SnapshotEncoder()
        try:
            return LoadedSnapshot(found.at, _read(found.content, store.blobs, decode, encoder), encoder)
        except _UNREADABLE as error:
            logger.warning("the snapshot at row %d of run %s is skipped: %s", found.at.seq, at.run, error)
        at = Point(at.run, found.at.seq - 1)
    return None


def check_snapshot(content: Content, fetch: Fetch, decode: Decode) -> None:
    """Raise `StoreError` if a snapshot cannot be read: pruning deletes the log that it replaces."""
    try:
        _read(Content.stored(content.data, content.refs), fetch, decode, SnapshotEncoder())
    except _UNREADABLE as error:
        raise StoreError(f"the snapshot at which the pruned history begins cannot be read: {error}") from error


def state_digest(state: ImmutableState) -> str:
    """Return a hash of a state: the same for equal states, in every process."""
    return SnapshotEncoder().digest(state)


def _read(content: Content, fetch: Fetch, decode: Decode, encoder: SnapshotEncoder) -> SnapshotState:
    if not content.is_encoded:  # of a store in memory: the state itself
        kept: SnapshotState = content.value(fetch)
        return kept
    budget = ReadBudget()
    try:
        version, commit_index, encoded = json.loads(budget.inflate(content.data))
        if version != VERSION:
            raise StateError(f"its format has version {version}, this dspyer knows version {VERSION}")
        return SnapshotState(encoder.load(encoded, content.refs, fetch, decode, budget), commit_index)
    except RecursionError:
        raise StateError("its JSON is nested too deep") from None


# --- Encoding of states


class EncodedState(NamedTuple):
    """The JSON text of a state, and the ids of all blobs that it refers to, its chunks included."""

    text: str
    refs: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A hash of the state: the same for equal states, in every process."""
        return blake2b(self.text.encode(), digest_size=16).hexdigest()


class EncodedValue(NamedTuple):
    """A part of a state with its encoding.

    Attributes:
        value: the frozen value.
        encoded: its JSON form.
        refs: ids of the blobs that the JSON form refers to.
        chunks: of a long list or large mapping: for each chunk its id, then the ids of the blobs in it.
    """

    value: Any
    encoded: Any
    refs: tuple[str, ...]
    chunks: tuple[tuple[str, ...], ...] = ()


class SnapshotEncoder:
    """Encodes successive states of one run. Values that are the same object as before are not encoded again."""

    def __init__(self) -> None:
        self._known: dict[FieldKeys, EncodedValue] = {}
        self._new: dict[str, tuple[bytes, bool]] = {}  # blobs by id, and whether to compress them
        self._stored: set[str] = set()
        # The thread of the run computes digests while another thread may write its last snapshot.
        self._lock = Lock()

    def encode(self, state: ImmutableState) -> EncodedState:
        """Return the encoding of a state."""
        with self._lock:
            part = self._encode_mapping(state, ())
        return EncodedState(_dump(part.encoded), tuple(dict.fromkeys(part.refs)))

    def digest(self, state: ImmutableState) -> str:
        """Return the hash of a state."""
        return self.encode(state).digest

    def take_new_blobs(self, encoded: EncodedState) -> dict[str, bytes]:
        """Return the blobs of a state that the store may not have yet, and count them as stored."""
        with self._lock:
            fresh = {name: self._new.pop(name) for name in encoded.refs if name in self._new}
            self._stored.update(fresh)
        return {name: zlib.compress(data) if compress else data for name, (data, compress) in fresh.items()}

    def load(
        self, encoded: Any, refs: Sequence[str], fetch: Fetch, decode: Decode, budget: ReadBudget
    ) -> ImmutableState:
        """Return the state of a stored encoding, and remember its chunks: the next snapshot does not store them again.

        Raises:
            LookupError: if a blob is missing.
            StateError: if it exceeds the budget.
        """
        blobs = fetch(refs) if refs else {}
        missing = [name for name in refs if name not in blobs]
        if missing:
            raise LookupError(f"blob {missing[0]} is not there")
        self._stored.update(refs)
        return ImmutableState(self._load(encoded, (), blobs, decode, budget))

    def _load(
        self, encoded: Any, keys: FieldKeys, blobs: Mapping[str, bytes], decode: Decode, budget: ReadBudget
    ) -> Any:
        if type(encoded) is list:
            return decode(insert_blobs(encoded, blobs, budget) if blobs else encoded)
        if type(encoded) is not dict:
            return encoded
        tag = encoded.get(TAG)
        if tag is None:
            items = encoded.items()
            return freeze({key: self._load(item, (*keys, key), blobs, decode, budget) for key, item in items})
        if tag not in (LIST, MAPPING):
            value = decode(insert_blobs(encoded, blobs, budget))
            if tag in BLOB_TAGS:
                self._known[keys] = EncodedValue(value, encoded, (encoded["value"],))
            return value
        chunks = tuple([tuple(chunk) for chunk in encoded["value"]])
        loaded: FrozenList[Any] = FrozenList()
        for part in (*(json.loads(budget.inflate(blobs[chunk[0]])) for chunk in chunks), encoded["rest"]):
            plain = insert_blobs(part, blobs, budget) if len(blobs) > len(chunks) else part
            loaded += decode([_freeze_flat(item) for item in plain])
        value = loaded if tag == LIST else _paired(loaded.raw_items())
        refs = tuple([name for chunk in chunks for name in chunk])
        if refs:
            self._known[keys] = EncodedValue(value, encoded, (*refs, *_refs_in(encoded["rest"])), chunks)
        return value

    def _encode_value(self, value: Any, keys: FieldKeys) -> EncodedValue:
        known = self._known.get(keys)
        if known is not None and known.value is value:
            return known
        if type(value) is FrozenList and len(value) >= CHUNK:
            part = self._encode_chunks(value, keys, LIST, list(value.raw_items()))
        elif isinstance(value, FrozenDict):
            part = self._encode_mapping(value, keys)
        else:
            part = EncodedValue(value, *self._encode_small(value))
        self._known[keys] = part
        return part

    def _encode_mapping(self, value: FrozenDict[Any, Any], keys: FieldKeys) -> EncodedValue:
        items = list(value.raw_items())
        if len(items) >= CHUNK:
            part = self._encode_chunks(value, keys, MAPPING, items)
            self._known[keys] = part
            return part
        encoded: dict[str, Any] = {}
        refs: list[str] = []
        for key, item in items:
            if type(key) is not str or key == TAG or not key.isascii():
                return EncodedValue(value, *self._encode_small(value))
            if type(item) in _TINY:  # not worth an entry in `_known`
                encoded[key] = encoding.encode(item)
            else:
                part = self._encode_value(item, (*keys, key))
                encoded[key] = part.encoded
                refs += part.refs
        return EncodedValue(value, encoded, tuple(refs))

    def _encode_chunks(self, value: Any, keys: FieldKeys, tag: str, items: list[Any]) -> EncodedValue:
        """Encode a long value in chunks; those whose items are unchanged are reused."""
        known = self._known.get(keys)
        before: list[Any] = []
        chunks: list[tuple[str, ...]] = []
        if known is not None and known.chunks and known.encoded[TAG] == tag:
            before = list(known.value.raw_items())
        full = len(items) - len(items) % CHUNK
        for number, start in enumerate(range(0, full, CHUNK)):
            own = items[start : start + CHUNK]
            if known and number < len(known.chunks) and _unchanged(before[start : start + CHUNK], own, tag):
                chunks.append(known.chunks[number])
            else:
                chunks.append(self._new_chunk(own, tag))
        rest, refs = self._encode_items(items[full:], tag)
        encoded = {TAG: tag, "value": chunks, "rest": rest}
        return EncodedValue(value, encoded, (*(name for chunk in chunks for name in chunk), *refs), tuple(chunks))

    def _new_chunk(self, items: list[Any], tag: str) -> tuple[str, ...]:
        encoded, refs = self._encode_items(items, tag)
        data = _dump(encoded).encode()
        name = chunk_id(data)
        self._keep(name, data, True)
        return (name, *refs)

    def _encode_items(self, items: Iterable[Any], tag: str) -> tuple[list[Any], tuple[str, ...]]:
        if tag == MAPPING:
            items = [part for pair in items for part in pair]
        return self._encode_small(items)

    def _encode_small(self, value: Any) -> tuple[Any, tuple[str, ...]]:
        """Encode a value, or each item of a list, with long texts and bytes as blobs."""
        blobs: dict[str, bytes] = {}
        if type(value) is bytes and len(value) > MAX_INLINE:
            encoded: Any = extract_blob(value, blobs)
        elif type(value) is list:
            encoded = extract_blobs([encoding.encode(item) for item in value], blobs)
        else:
            encoded = extract_blobs(encoding.encode(value), blobs)
        for name, data in blobs.items():
            self._keep(name, data, False)
        return encoded, tuple(blobs)

    def _keep(self, name: str, data: bytes, compress: bool) -> None:
        if name not in self._stored:
            self._new[name] = (data, compress)


_TINY = frozenset({bool, int, float, type(None)})


def chunk_id(data: bytes) -> str:
    """Return the id of a chunk, of its bytes before compression."""
    return blake2b(data, digest_size=16, person=_HASH_DOMAIN).hexdigest()


def _unchanged(before: Sequence[Any], now: Sequence[Any], tag: str) -> bool:
    if len(before) != len(now):
        return False
    if tag == LIST:
        return all(map(is_, before, now))
    return all(old[1] is new[1] and old[0] == new[0] for old, new in zip(before, now, strict=True))


def _freeze_flat(encoded: Any) -> Any:
    """Freeze a mapping of scalars without decoding it: long lists mostly hold such mappings."""
    if type(encoded) is dict and TAG not in encoded and SCALARS.issuperset(map(type, encoded.values())):
        return FrozenDict.from_scalars(encoded)
    return encoded


def _paired(items: Iterable[Any]) -> Any:
    """Return the mapping of alternating keys and values."""
    both = iter(items)
    return freeze(dict(zip(both, both, strict=True)))


def _refs_in(encoded: Any) -> Iterator[str]:
    """Yield the ids of the blobs in a JSON form without chunks."""
    if type(encoded) is list:
        for item in encoded:
            yield from _refs_in(item)
    elif type(encoded) is dict:
        if encoded.get(TAG) in BLOB_TAGS:
            yield encoded["value"]
        else:
            for item in encoded.values():
                yield from _refs_in(item)
