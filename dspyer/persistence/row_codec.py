"""How a record becomes a row and is read again: one codec, by the declared types of its attributes.

The JSON form of a record is an object of its attributes by name; those that are equal to their default are left out.
Reading is strict: a name that is not declared, a value of another type, or a missing one is an error.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from dspyer.errors import StoreError, brief
from dspyer.stores.base import Row
from dspyer.stores.columns import DAMAGED
from dspyer.stores.content import Content, Fetch
from dspyer.values import json as encoding

T = TypeVar("T")

Decode = Callable[[Any], Any]
"""Makes a frozen value of its JSON form."""

Convert = Callable[[Any], Any]

MALFORMED = (ValueError, TypeError, LookupError, AttributeError)
"""What reading something else than what was written may raise."""

CHANGED: Final = (
    "it was changed after dspyer wrote it. Restore the store from a backup, or load the thread from an export"
)


class UserData(NamedTuple):
    """The mark of an attribute that belongs to the content of a row: it may hold what the user has written.

    Attributes:
        encode: makes its JSON form.
        decode: makes the attribute of its JSON form, with a function that decodes values.
    """

    encode: Convert = encoding.encode
    decode: Callable[[Any, Decode], Any] = lambda plain, decode: decode(plain)


class _Attribute(NamedTuple):
    name: str
    key: str
    default: Any
    write: Convert
    read: Convert


class Codec:
    """The JSON form of records of a class: a dataclass or a named tuple.

    Args:
        cls: the class. An attribute of the type `Annotated[T, "key"]` has that key in the JSON form.
        without: attributes that are no part of it.
    """

    def __init__(self, cls: Callable[..., Any], without: tuple[str, ...] = ()) -> None:
        hints = get_type_hints(cls, include_extras=True)
        self.attributes: list[_Attribute] = []
        self.user_data: dict[str, tuple[Any, UserData]] = {}
        for name, parameter in inspect.signature(cls).parameters.items():
            hint, marks = hints[name], getattr(hints[name], "__metadata__", ())
            if marks and isinstance(marks[0], UserData):
                self.user_data[name] = parameter.default, marks[0]
            elif name not in without:
                key = marks[0] if marks and isinstance(marks[0], str) else name
                self.attributes.append(_Attribute(name, key, parameter.default, *_converters(hint)))
        self._by_key = {one.key: one for one in self.attributes}
        self._required = {one.key for one in self.attributes if one.default is inspect.Parameter.empty}

    def encode(self, record: Any) -> dict[str, Any]:
        """Return the JSON form, without the attributes that are user data."""
        found = {}
        for name, key, default, write, _ in self.attributes:
            value = getattr(record, name)
            if value is not default and value != default:
                found[key] = write(value)
        return found

    def decode(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes by name; those that are missing have their default. May raise `MALFORMED`."""
        found = {}
        for key, value in plain.items():
            attribute = self._by_key.get(key)
            if attribute is None:
                raise ValueError(f"it has {key!r}")
            found[attribute.name] = attribute.read(value)
        if not self._required <= plain.keys():
            raise ValueError(f"it lacks {', '.join(sorted(self._required - plain.keys()))}")
        return found


_CODECS: dict[Any, Codec] = {}


def codec_of(cls: Callable[..., Any]) -> Codec:
    """Return the codec of a class; the kind of a row is no part of its header."""
    found = _CODECS.get(cls)
    if found is None:
        found = _CODECS[cls] = Codec(cls, ("kind",))
    return found


def _converters(hint: Any) -> tuple[Convert, Convert]:
    """Return what makes the JSON form of an attribute of a declared type, and what reads it."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _converters(parts[0])
    if hint is Any:
        return _same, _same
    if hint is float:
        return _same, partial(_checked, (int, float))
    if hint in (str, int, bool):
        return _same, partial(_checked, (hint,))
    if kind in (Union, types.UnionType):  # only `X | None`
        ((write, read),) = [_converters(part) for part in parts if part is not type(None)]
        return (
            lambda value: None if value is None else write(value),
            lambda plain: None if plain is None else read(plain),
        )
    if kind is tuple:
        write, read = _converters(parts[0])  # all items are of one type
        length = None if parts[-1] is ... else len(parts)
        return lambda items: [write(item) for item in items], partial(_items, read, length)
    if kind is not None and issubclass(kind, Mapping):
        write, read = _converters(parts[1])
        return (
            lambda values: {key: write(value) for key, value in values.items()},
            lambda plain: {key: read(value) for key, value in plain.items()},
        )
    return lambda record: codec_of(hint).encode(record), lambda plain: hint(**codec_of(hint).decode(plain))


def _same(value: Any) -> Any:
    return value


def _checked(allowed: tuple[type, ...], plain: Any) -> Any:
    if type(plain) not in allowed:
        raise TypeError(f"{brief(plain)} is no {allowed[-1].__name__}")
    return plain


def _items(read: Convert, length: int | None, plain: Any) -> tuple[Any, ...]:
    if not isinstance(plain, list | tuple) or length not in (None, len(plain)):
        raise TypeError(f"{brief(plain)} is no list{'' if length is None else f' of {length}'}")
    return tuple([read(item) for item in plain])


# --- Rows


class NewRow(NamedTuple):
    """A row without its number: the journal numbers it when it writes it."""

    kind: str
    header: Mapping[str, Any]
    content: Content | None = None

    def numbered(self, seq: int) -> Row:
        """Return the row with this number."""
        return Row(seq, self.kind, self.header, self.content)


NO_BLOBS: Mapping[str, bytes] = types.MappingProxyType({})


class Record:
    """A row of a run as an object: a dataclass whose attributes are its header, or, marked by `UserData`, its
    content.

    The classes are not frozen, since one is made for every commit, and that takes four times as long. Nothing changes
    one that is written.
    """

    __slots__ = ()
    KIND: ClassVar[str]
    """The kind of its rows; a class of several kinds has an attribute `kind` instead."""

    @property
    def kind(self) -> str:
        """The kind of its row."""
        return self.KIND

    def header(self) -> dict[str, Any]:
        """Return the header of its row."""
        return codec_of(type(self)).encode(self)

    def row(self, blobs: Mapping[str, bytes] = NO_BLOBS, encode: Convert | None = None) -> NewRow:
        """Return it as a row, with more blobs to store by id; `encode` makes another content than `content`."""
        user_data = codec_of(type(self)).user_data.items()
        if not blobs and all(getattr(self, name) == default for name, (default, _) in user_data):
            return NewRow(self.kind, self.header())
        return NewRow(self.kind, self.header(), Content(self, encode or encode_content, blobs))

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the record of a row, without what is in its content.

        Raises:
            StoreError: if the header is malformed.
        """
        try:
            found = codec_of(cls).decode(row.header)
            if not hasattr(cls, "KIND"):
                found["kind"] = row.kind
            return cls(**found)
        except MALFORMED as error:
            raise StoreError(_malformed(cls, row, error)) from error

    @classmethod
    def read(cls, row: Row, fetch: Fetch, decode: Decode = encoding.decode) -> Self:
        """Return the record of a row with its content; raise `StoreError` if one of both is malformed."""
        record = cls.of(row)
        if row.content is not None:
            found = row.content.value(fetch, partial(decode_content, cls, decode))
            for name in codec_of(cls).user_data:
                setattr(record, name, found[name] if isinstance(found, dict) else getattr(found, name))
        return record


def encode_content(record: Record) -> dict[str, Any]:
    """Return the JSON form of what a record has in its content, without what is equal to its default."""
    found = {}
    for name, (default, marked) in codec_of(type(record)).user_data.items():
        value = getattr(record, name)
        if value is not default and value != default:
            found[name] = marked.encode(value)
    return found


def decode_content(cls: type[Record], decode: Decode, plain: Any) -> dict[str, Any]:
    """Return the attributes of a record that its content holds, by name; raise `StoreError` if it is malformed."""
    try:
        user_data = codec_of(cls).user_data
        if not plain.keys() <= user_data.keys():
            raise ValueError(f"it has {', '.join(map(repr, sorted(plain.keys() - user_data.keys())))}")
        return {
            name: marked.decode(plain[name], decode) if name in plain else default
            for name, (default, marked) in user_data.items()
        }
    except MALFORMED as error:
        raise StoreError(f"a content, {brief(plain)}, is none of a {cls.__name__} ({error}): {CHANGED}") from error


def _malformed(cls: type[Record], row: Row, error: Exception) -> str:
    if DAMAGED in row.header:
        return f"row {row.seq}, of kind {row.kind!r}, is damaged: {row.header[DAMAGED]}. It {CHANGED.partition(' ')[2]}"
    header = brief(dict(row.header))
    return f"row {row.seq} has the header {header}, which is none of a {cls.__name__} ({error}): {CHANGED}"
