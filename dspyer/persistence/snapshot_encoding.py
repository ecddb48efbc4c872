"""The form in which a snapshot holds a state: long lists and large mappings in pieces that are written once.

A piece is a run of `CHUNK` items, compressed, and named by what it holds. So a list that has grown by appending shares
all of its full pieces with what it was before; the last items, fewer than a piece, stay in the form itself.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from operator import is_
from threading import Lock
from typing import Any, NamedTuple

from dspyer.state import ImmutableState
from dspyer.stores.content import BLOB_TAGS, MAX_INLINE, Fetch, ReadBudget, extract_blob, extract_blobs, insert_blobs
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.values.json import TAG
from dspyer.values.scalars import SCALARS

CHUNK = 256
"""Items of a piece."""

LIST, MAPPING = "pieces of a list", "pieces of a mapping"
Decode = Callable[[Any], Any]
FieldKeys = tuple[str, ...]

_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


class EncodedValue(NamedTuple):
    """A part of a state and its form.

    Attributes:
        value: the frozen value.
        form: its JSON form.
        refs: ids of the blobs that the form refers to.
        pieces: of a long list or large mapping, those of each piece: its own id first.
    """

    value: Any
    form: Any
    refs: tuple[str, ...]
    pieces: tuple[tuple[str, ...], ...] = ()


class EncodedState(NamedTuple):
    """The form of a state.

    Attributes:
        text: as JSON.
        refs: ids of the blobs that it refers to, those of its pieces too.
    """

    text: str
    refs: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A fingerprint of the state: the same for equal states, in every process."""
        return blake2b(self.text.encode(), digest_size=16).hexdigest()


class SnapshotEncoder:
    """Makes forms of the states of one run, one after the other: what has not changed is not looked at again."""

    def __init__(self) -> None:
        self._parts: dict[FieldKeys, EncodedValue] = {}
        self._unsent: dict[str, tuple[bytes, bool]] = {}  # by id, whether it is to be compressed
        self._sent: set[str] = set()
        self._lock = Lock()

    def encode(self, state: ImmutableState) -> EncodedState:
        """The form of a state."""
        with self._lock:
            part = self._mapping(state, ())
        return EncodedState(_dump(part.form), tuple(dict.fromkeys(part.refs)))

    def digest(self, state: ImmutableState) -> str:
        """The fingerprint of a state."""
        return self.encode(state).digest

    def take_new_blobs(self, form: EncodedState) -> dict[str, bytes]:
        """The blobs of a form that may not be in the store yet. They count as sent."""
        with self._lock:
            fresh = {name: self._unsent.pop(name) for name in form.refs if name in self._unsent}
            self._sent.update(fresh)
        return {name: zlib.compress(data) if pressed else data for name, (data, pressed) in fresh.items()}

    def load(self, form: Any, refs: Sequence[str], fetch: Fetch, decode: Decode, budget: ReadBudget) -> ImmutableState:
        """The state of a form that was stored; what is in the store already is not written again.

        Args:
            form: the form, as JSON values.
            refs: ids of the blobs that it refers to.
            fetch: where they come from.
            decode: what makes frozen values of their JSON form.
            budget: what may still be read.

        Raises:
            LookupError: if a blob is missing.
            StateError: if it is more than may be read.
        """
        blobs = fetch(refs) if refs else {}
        missing = [name for name in refs if name not in blobs]
        if missing:
            raise LookupError(f"blob {missing[0]} is not there")
        self._sent.update(refs)
        return ImmutableState(self._load(form, (), blobs, decode, budget))

    def _load(self, form: Any, keys: FieldKeys, blobs: Mapping[str, bytes], decode: Decode, budget: ReadBudget) -> Any:
        if type(form) is not dict:
            return decode(insert_blobs(form, blobs, budget) if blobs else form) if type(form) is list else form
        tag = form.get(TAG)
        if tag is None:
            return freeze({key: self._load(item, (*keys, key), blobs, decode, budget) for key, item in form.items()})
        refs: tuple[str, ...] = ()
        pieces: tuple[tuple[str, ...], ...] = ()
        if tag in (LIST, MAPPING):
            pieces = tuple([tuple(piece) for piece in form["value"]])
            items: FrozenList[Any] = FrozenList()
            for part in (*(json.loads(budget.inflate(blobs[piece[0]])) for piece in pieces), form["rest"]):
                plain = insert_blobs(part, blobs, budget) if len(blobs) > len(pieces) else part
                items += decode([_flat(item) for item in plain])
            value: Any = items if tag == LIST else _pairs(items.raw_items())
            refs = tuple([name for piece in pieces for name in piece])
        else:
            value = decode(insert_blobs(form, blobs, budget))
            refs = (form["value"],) if tag in BLOB_TAGS else ()
        if refs:
            self._parts[keys] = EncodedValue(value, form, (*refs, *_refs_of(form.get("rest"))), pieces)
        return value

    def _part(self, value: Any, keys: FieldKeys) -> EncodedValue:
        """The part at some keys: as it was, if it is the same object."""
        known = self._parts.get(keys)
        if known is not None and known.value is value:
            return known
        if type(value) is FrozenList and len(value) >= CHUNK:
            part = self._pieces(value, keys, LIST, list(value.raw_items()))
        elif isinstance(value, FrozenDict):
            part = self._mapping(value, keys)
        else:
            part = EncodedValue(value, *self._small(value))
        self._parts[keys] = part
        return part

    def _mapping(self, value: FrozenDict[Any, Any], keys: FieldKeys) -> EncodedValue:
        items = list(value.raw_items())
        if len(items) >= CHUNK:
            part = self._pieces(value, keys, MAPPING, items)
            self._parts[keys] = part
            return part
        form: dict[str, Any] = {}
        refs: list[str] = []
        for key, item in items:
            if type(key) is not str or key == TAG or not key.isascii():
                return EncodedValue(value, *self._small(value))
            if type(item) in _TINY:
                form[key] = encoding.encode(item)
            else:
                part = self._part(item, (*keys, key))
                form[key] = part.form
                refs += part.refs
        return EncodedValue(value, form, tuple(refs))

    def _pieces(self, value: Any, keys: FieldKeys, tag: str, items: list[Any]) -> EncodedValue:
        """A value in pieces. A piece whose items are those of before is the piece of before."""
        known = self._parts.get(keys)
        before: list[Any] = []
        pieces: list[tuple[str, ...]] = []
        if known is not None and known.pieces and known.form[TAG] == tag:
            before = list(known.value.raw_items())
        full = len(items) - len(items) % CHUNK
        for number, start in enumerate(range(0, full, CHUNK)):
            own = items[start : start + CHUNK]
            if known and number < len(known.pieces) and _unchanged(before[start : start + CHUNK], own, tag):
                pieces.append(known.pieces[number])
            else:
                pieces.append(self._piece(own, tag))
        rest, refs = self._items(items[full:], tag)
        form = {TAG: tag, "value": pieces, "rest": rest}
        return EncodedValue(value, form, (*(name for piece in pieces for name in piece), *refs), tuple(pieces))

    def _piece(self, items: list[Any], tag: str) -> tuple[str, ...]:
        forms, refs = self._items(items, tag)
        data = _dump(forms).encode()
        name = chunk_id(data)
        self._keep(name, data, True)
        return (name, *refs)

    def _items(self, items: Iterable[Any], tag: str) -> tuple[list[Any], tuple[str, ...]]:
        if tag == MAPPING:
            items = [part for pair in items for part in pair]
        return self._small(items)

    def _small(self, value: Any) -> tuple[Any, tuple[str, ...]]:
        """The form of a value, or of each in a list, with long texts and bytes as blobs."""
        blobs: dict[str, bytes] = {}
        if type(value) is bytes and len(value) > MAX_INLINE:
            form: Any = extract_blob(value, blobs)
        elif type(value) is list:
            form = extract_blobs([encoding.encode(item) for item in value], blobs)
        else:
            form = extract_blobs(encoding.encode(value), blobs)
        for name, data in blobs.items():
            self._keep(name, data, False)
        return form, tuple(blobs)

    def _keep(self, name: str, data: bytes, pressed: bool) -> None:
        if name not in self._sent:
            self._unsent[name] = (data, pressed)


def chunk_id(data: bytes) -> str:
    """The id of a piece, of its bytes before they are compressed."""
    return blake2b(data, digest_size=16, person=b"dspyer piece").hexdigest()


def _flat(form: Any) -> Any:
    """A mapping of scalars is frozen at once: long lists are mostly of them. Anything else stays as it is."""
    if type(form) is dict and TAG not in form and SCALARS.issuperset(map(type, form.values())):
        return FrozenDict.from_scalars(form)
    return form


def _pairs(items: Iterable[Any]) -> Any:
    both = iter(items)
    return freeze(dict(zip(both, both, strict=True)))


def _refs_of(form: Any) -> Iterator[str]:
    """The ids of blobs in a form without pieces."""
    if type(form) is list:
        for item in form:
            yield from _refs_of(item)
    elif type(form) is dict:
        if form.get(TAG) in BLOB_TAGS:
            yield form["value"]
        else:
            for item in form.values():
                yield from _refs_of(item)


_TINY = frozenset({bool, int, float, type(None)})


def _unchanged(before: Sequence[Any], now: Sequence[Any], tag: str) -> bool:
    if len(before) != len(now):
        return False
    if tag == LIST:
        return all(map(is_, before, now))
    return all(old[1] is new[1] and old[0] == new[0] for old, new in zip(before, now, strict=True))
