"""How a record becomes a row and is read again, by the codec of all records (`record_codec`).

The fields of a row's class are its header, or, marked by `CONTENT`, its content: two JSON objects, from which what is
equal to its default is left out. Reading is strict: a name that is not declared, a value of another type, or a missing
one is an error.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, ClassVar, Final, NamedTuple, Self

from dspyer.errors import StoreError, brief
from dspyer.record_codec import MALFORMED, DecodeValue, decode_fields, fields_of, short_encoder
from dspyer.stores.base import Row
from dspyer.stores.columns import CHANGED, DAMAGED
from dspyer.stores.content import Content, Fetch
from dspyer.values import json as encoding

CONTENT: Final = "content"
"""The mark of a field that belongs to the content of a row: it may hold what the user has written."""

NO_BLOBS: Mapping[str, bytes] = types.MappingProxyType({})

logger = logging.getLogger("dspyer")


class DraftRow(NamedTuple):
    """A row before the journal numbers it and writes it."""

    kind: str
    header: Mapping[str, Any]
    content: Content | None = None

    def numbered(self, seq: int) -> Row:
        """Return the row with this number."""
        return Row(seq, self.kind, self.header, self.content)


class StoredRow:
    """A row of a run as an object: a dataclass whose fields are its header, or, marked by `CONTENT`, its content.

    The classes are not frozen, since one is made for every commit, and that takes four times as long. Nothing changes
    one that is written.
    """

    __slots__ = ()
    KIND: ClassVar[str]
    """The kind of its rows; a class of several kinds has a field `kind` instead."""

    @property
    def kind(self) -> str:
        """The kind of its row."""
        return self.KIND

    def header(self) -> dict[str, Any]:
        """Return the header of its row."""
        cls: Any = type(self)
        return short_encoder(cls, _not_in_header(cls))(self)

    def row(
        self, blobs: Mapping[str, bytes] = NO_BLOBS, encode: Callable[[Any], dict[str, Any]] | None = None
    ) -> DraftRow:
        """Return it as a row, with more blobs to store by id; `encode` makes another content than `encode_content`."""
        cls: Any = type(self)
        if not blobs and all(getattr(self, name) == default for name, default in _content_of(cls)):
            return DraftRow(self.kind, self.header())
        return DraftRow(self.kind, self.header(), Content(self, encode or encode_content, blobs))

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the record of a row, without what is in its content.

        Raises:
            StoreError: if the header is malformed.
        """
        kind: Any = cls
        try:
            found = decode_fields(kind, row.header, encoding.decode, _not_in_header(kind))
            if not hasattr(cls, "KIND"):
                found["kind"] = row.kind
            return cls(**found)
        except MALFORMED as error:  # TypeError: a field without a default is missing
            raise StoreError(_malformed(cls, row, error)) from error

    @classmethod
    def read(cls, row: Row, fetch: Fetch, decode: DecodeValue = encoding.decode) -> Self:
        """Return the record of a row with its content; raise `StoreError` if one of both is malformed."""
        record = cls.of(row)
        if row.content is not None:
            found = row.content.value(fetch, partial(decode_content, cls, decode))
            for name in content_names(cls):
                if not isinstance(found, dict):
                    setattr(record, name, getattr(found, name))
                elif name in found:
                    setattr(record, name, found[name])
        return record


@cache
def _content_of(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names and the defaults of the fields that are in the content of a row."""
    return tuple([(field.name, field.default) for field in fields_of(cls) if CONTENT in field.marks])


def content_names(cls: Any) -> list[str]:
    """Return the names of the fields that are in the content of a row of a class."""
    return [name for name, _ in _content_of(cls)]


@cache
def _not_in_header(cls: Any) -> tuple[str, ...]:
    return "kind", *[field.name for field in fields_of(cls) if CONTENT in field.marks or field.decode is None]


@cache
def _not_in_content(cls: Any) -> tuple[str, ...]:
    return tuple([field.name for field in fields_of(cls) if CONTENT not in field.marks])


def encode_content(record: StoredRow) -> dict[str, Any]:
    """Return the JSON form of what a record has in its content, without what is equal to its default."""
    cls: Any = type(record)
    return short_encoder(cls, _not_in_content(cls))(record)


def decode_content(cls: Any, decode: DecodeValue, plain: Any) -> dict[str, Any]:
    """Return the fields of a record that its content holds, by name; raise `StoreError` if it is malformed."""
    try:
        return decode_fields(cls, plain, decode, _not_in_content(cls))
    except MALFORMED as error:
        raise StoreError(f"a content, {brief(plain)}, is none of a {cls.__name__} ({error}): {CHANGED}") from error


def is_readable(row: Row) -> bool:
    """Return whether a row is not damaged; a warning names one that is, for those who show the rest without it.

    What a resume needs is never left out like this: reading such a row raises.
    """
    if DAMAGED not in row.header:
        return True
    logger.warning("left out: %s", _malformed(StoredRow, row, StoreError()))
    return False


def _malformed(cls: type[StoredRow], row: Row, error: Exception) -> str:
    if DAMAGED in row.header:
        return f"row {row.seq}, of kind {row.kind!r}, is damaged: {row.header[DAMAGED]}. It {CHANGED.partition(' ')[2]}"
    header = brief(dict(row.header))
    return f"row {row.seq} has the header {header}, which is none of a {cls.__name__} ({error}): {CHANGED}"
