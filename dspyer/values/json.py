"""Frozen values as JSON and back, without pickle and without an import by name.

The values that JSON has are written as they are. Everything else is an object with the key `"$type"`, for example
`{"$type": "set", "value": [...]}`. A mapping that has this key itself, or keys that are not strings, is written as
pairs. A class is written by name and found among those that are registered, or that the caller passes: text from
anywhere can be decoded without loading code.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from operator import is_
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from dspyer.errors import StateError
from dspyer.values.freezing import (
    ARRAY,
    BUNDLE,
    OPAQUE,
    Opaque,
    RegisteredKind,
    class_name,
    freeze,
    known_class,
    record_kind,
    registered_kind,
)
from dspyer.values.frozen import (
    CopyOnRead,
    FrozenDict,
    FrozenList,
    FrozenSet,
    rebuild_tuple,
    thaw,
)
from dspyer.values.scalars import ADDRESSES, MAX_DEPTH, PATHS, is_array_scalar, scalar_base

# Text that is not valid Unicode: half of a surrogate pair, which a cut emoji leaves. No request can hold it.


def is_valid_text(text: str) -> bool:
    """Return whether a string can be written as UTF-8; one with half of a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_valid_text(value: Any) -> Any:
    """A value whose texts are valid: half of a surrogate pair becomes U+FFFD, and two halves become their character.

    The texts are those in dicts and lists. A value that needs no repair is returned itself.

    Example:
        >>> ascii(with_valid_text({"text": "cut \\ud83d"}))
        "{'text': 'cut \\\\ufffd'}"
    """
    if isinstance(value, str):
        valid = is_valid_text(value)
        return value if valid else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, (dict, FrozenDict)):
        items = list(value.items() if isinstance(value, dict) else value.raw_items())
        found: Any = {with_valid_text(key): with_valid_text(inner) for key, inner in items}
        return value if all(a is c and b is d for (a, b), (c, d) in zip(items, found.items(), strict=False)) else found
    if isinstance(value, (list, FrozenList)):
        parts = list(value if isinstance(value, list) else value.raw_items())
        found = [with_valid_text(part) for part in parts]
        return value if all(map(is_, parts, found)) else found
    return value


TAG = "$type"  # the key that marks a value that JSON does not have
# What reading a malformed JSON form may raise.
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_LARGE = 2**1024  # Python refuses to read longer integers as decimal digits


def to_json(frozen: Any) -> str:
    """Return the JSON text of a frozen value."""
    return json.dumps(encode(frozen), ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes, types: Iterable[type] = ()) -> Any:
    """Return the frozen value of a JSON text; `types` are classes that it may name besides the registered ones.

    Raises `StateError` if the text is not JSON of this form, or names a class that is unknown.
    """
    try:
        return decode(json.loads(text), types)
    except StateError:
        raise
    except RecursionError:
        raise StateError(f"the JSON text is nested deeper than {MAX_DEPTH} levels") from None
    except _MALFORMED as error:
        raise StateError(f"the text is not the JSON form of a state: {type(error).__name__}: {error}") from error


def encode(frozen: Any) -> Any:
    """Return the JSON form of a frozen value: dicts, lists, strings, numbers, booleans and None.

    Example:
        >>> encode((1, b"x"))
        {'$type': 'tuple', 'value': [1, {'$type': 'bytes', 'value': 'eA=='}]}
    """
    cls = type(frozen)
    if frozen is None or cls is bool:
        return frozen
    if cls is str:
        return frozen if is_valid_text(frozen) else _tagged("str", _pack(frozen.encode("utf-8", "surrogatepass")))
    if cls is int:
        return frozen if -_LARGE < frozen < _LARGE else _tagged("int", hex(frozen))
    if cls is float:
        # Infinity and NaN give NaN here: JSON has neither.
        return frozen if frozen - frozen == 0 else _tagged("float", repr(frozen))
    if isinstance(frozen, FrozenDict):
        return _encode_mapping(frozen)
    if cls is FrozenList:
        return _encode_all(frozen.raw_items())
    if cls is tuple:
        return _tagged("tuple", _encode_all(frozen))
    if isinstance(frozen, frozenset):
        return _tagged("set" if cls is FrozenSet else "frozenset", _encode_set(frozen))
    if cls is CopyOnRead:
        return _encode_copied(frozen)
    if cls in _SCALARS:
        name, write, _ = _SCALARS[cls]
        return _tagged(name, write(frozen))
    return _encode_named(frozen)


def _tagged(name: str, value: Any, **more: Any) -> dict[str, Any]:
    return {TAG: name, **more, "value": value}


def _encode_all(items: Iterable[Any]) -> list[Any]:
    return list(map(encode, items))


def _encode_set(members: Iterable[Any]) -> list[Any]:
    """Encode the members in the order of their text: the order of a set differs between processes."""
    return sorted(_encode_all(members), key=json.dumps)


def _encode_mapping(frozen: FrozenDict[Any, Any]) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    plain = True
    for key, value in frozen.raw_items():
        plain = plain and type(key) is str and key != TAG and is_valid_text(key)
        encoded[key] = encode(value)
    if plain:
        return encoded
    return _tagged("dict", [[encode(key), value] for key, value in encoded.items()])


def _encode_copied(value: CopyOnRead) -> Any:
    kind, cls, content = value.kind, value.cls, value.content
    if kind is ARRAY:
        return _tagged("array", _pack(content.tobytes()), dtype=_encode_dtype(content.dtype), shape=list(content.shape))
    if kind is BUNDLE:
        members = _encode_set(content) if cls in (set, frozenset) else _encode_all(content)
        if cls in (tuple, set, frozenset):
            return _tagged(cls.__name__, members)
        return _tagged("namedtuple", members, **{"class": class_name(cls)})
    if kind is OPAQUE:
        return json.loads(content.text)
    if isinstance(kind, RegisteredKind):
        return _tagged("registered", encode(freeze(kind.encode(content))), **{"class": class_name(cls)})
    return _tagged(kind.name, encode(content), **{"class": class_name(cls)})


def _encode_named(frozen: Any) -> Any:
    """Encode a value with the name of its class: an enum, a namedtuple, a subclass of a scalar, or a numpy scalar."""
    cls = type(frozen)
    if isinstance(frozen, Enum):
        value = encode(freeze(frozen.value)) if isinstance(frozen, Flag) else frozen.name
        return _tagged("enum", value, **{"class": class_name(cls)})
    if isinstance(frozen, tuple):
        return _tagged("namedtuple", _encode_all(frozen), **{"class": class_name(cls)})
    if is_array_scalar(frozen):
        return _tagged("scalar", _pack(frozen.tobytes()), dtype=_encode_dtype(frozen.dtype))
    base = scalar_base(cls)
    if base is not None:
        return _tagged("subclass", encode(_as_base(frozen, base)), **{"class": class_name(cls)})
    raise StateError(
        f"a {class_name(cls)} has no JSON form: register_value_type({cls.__qualname__}, encode=..., decode=...)"
    )


def _as_base(value: Any, base: Any) -> Any:
    """Return the plain scalar of class `base`, through methods of `base` that a subclass cannot override."""
    # A subclass may override `str()` and `int()`: what it shows is not what it holds.
    if base in (str, bytes):
        return base.__getitem__(value, slice(None))
    return base.__pos__(value) if base in (int, float) else _from_base(base, value)


def _from_base(cls: Any, value: Any) -> Any:
    if isinstance(value, datetime):
        return cls.combine(value.date(), value.timetz())
    if isinstance(value, date):
        return cls(value.year, value.month, value.day)
    if isinstance(value, time):
        return cls(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)
    if isinstance(value, timedelta):
        return cls(value.days, value.seconds, value.microseconds)
    return cls(int=value.int) if isinstance(value, UUID) else cls(value)


def _pack(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unpack(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _encode_dtype(dtype: Any) -> Any:
    return dtype.str if dtype.names is None else encode(freeze(dtype.descr))


def model_parts(encoded: dict[str, Any]) -> dict[str, Any]:
    """The attributes in the JSON form of a model, extra ones too; what it has besides is under names with a `$`."""
    found = {name: part for name, part in encoded.items() if name not in ("$set", "$private", "$extra")}
    return {**found, **(encoded.get("$extra") or {})}


# --- decoding

OnUnknown = Callable[[dict[str, Any], Exception], Any]
"""Returns the replacement for a tagged value that cannot be read, from its JSON form and the error."""


def decoder(types: Iterable[type] = (), unknown: OnUnknown | None = None) -> Callable[[Any], Any]:
    """Return the inverse of `encode`.

    `types` are classes that the JSON form may name besides the registered ones; `unknown` is called for any other,
    which is an error without it.
    """
    known = {class_name(cls): cls for cls in types}

    def decoding(value: Any) -> Any:
        try:
            return freeze(_read(value, known, unknown))
        except RecursionError:
            raise StateError(f"the JSON form is nested deeper than {MAX_DEPTH} levels") from None

    return decoding


# No closure that calls itself: it would be a cycle, and keep what it refers to until the collector runs.
def _read(value: Any, types: Mapping[str, type], unknown: OnUnknown | None) -> Any:
    if type(value) is list:
        return [_read(item, types, unknown) for item in value]
    if type(value) is not dict:
        return value
    if TAG not in value:
        return {key: _read(item, types, unknown) for key, item in value.items()}
    try:
        return _decode_tagged(value, types, unknown)
    except RecursionError:
        raise
    except (StateError, *_MALFORMED) as error:
        if unknown is None:
            raise
        return unknown(value, error)


def decode(value: Any, types: Iterable[type] = ()) -> Any:
    """Return the frozen value of a JSON form that `encode` returned.

    Example:
        >>> decode({"$type": "tuple", "value": [1, None]})
        (1, None)
    """
    return decoder(types)(value)


def _decode_tagged(tagged: dict[str, Any], types: Mapping[str, type], unknown: OnUnknown | None) -> Any:
    name, value = tagged[TAG], tagged.get("value")
    if name in _READERS:
        return _READERS[name](value)
    if name in ("array", "scalar"):
        return _decode_array(name, tagged)
    # The class before its parts: the error names the outermost one that is unknown.
    cls = _class_of(tagged["class"], types) if "class" in tagged else None
    parts = _read(value, types, unknown)
    if name == "dict":
        _refuse_opaque(key for key, _ in parts)
        return dict(parts)
    if name == "tuple":
        return tuple(parts)
    if name in ("set", "frozenset"):  # lists as members are hashable only in frozen form
        _refuse_opaque(parts)
        members = [freeze(part) for part in parts]
        return set(members) if name == "set" else frozenset(members)
    if cls is None:
        raise StateError(f"the JSON form has a value tagged {name!r}, which this version of dspyer does not know")
    return _decode_class(name, cls, parts)


def _refuse_opaque(members: Iterable[Any]) -> None:
    """Raise if a member is opaque: a set or a mapping with such a key cannot be looked up and is opaque as a whole."""
    for member in members:
        if type(member) is Opaque:
            raise StateError(f"one of its members is a {member.name}: {member.reason}")


def _decode_class(name: str, cls: Any, parts: Any) -> Any:
    if name == "registered":
        return registered_kind(cls).decode(parts)
    if name == "enum":
        return cls(parts) if issubclass(cls, Flag) else cls[parts]
    if name == "namedtuple":
        return rebuild_tuple(cls, parts)
    if name == "subclass":
        return _from_base(cls, parts)
    kind = record_kind(cls)
    if kind is None:
        raise StateError(f"the JSON form tags {class_name(cls)} as a {name}, which the class is not in this process")
    return kind.builder(cls, parts)()


def _class_of(name: str, types: Mapping[str, type]) -> type:
    cls = types.get(name) or known_class(name)
    if cls is None:
        short = name.rpartition(":")[2]
        raise StateError(
            f"the JSON form names the class {name}, which is unknown here: pass it, from_json(text, types=[{short}]), "
            f"or call register_value_type({short}) first"
        )
    return cls


def _decode_array(name: str, tagged: dict[str, Any]) -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        raise StateError("the JSON form has arrays of numpy: import numpy first")
    dtype = numpy.lib.format.descr_to_dtype(thaw(decode(tagged["dtype"])))
    array = numpy.frombuffer(_unpack(tagged["value"]), dtype)
    return array.reshape(tagged["shape"]).copy() if name == "array" else array[0]


def _write_time(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, encode(_zone_of(value))]


def _zone_of(value: Any) -> Any:
    """Return the time zone; one of a foreign class becomes its offset at this time."""
    if value.tzinfo is None or type(value.tzinfo) in (timezone, ZoneInfo):
        return value.tzinfo
    offset = value.utcoffset()
    return None if offset is None else timezone(offset)


def _read_time(cls: Any) -> Callable[[Any], Any]:
    return lambda parts: cls.fromisoformat(parts[0]).replace(fold=parts[1], tzinfo=decode(parts[2]))


def _read_fraction(text: str) -> Fraction:
    """Read `a/b`. `Fraction(text)` takes exponents too, and a short text with one would fill the memory."""
    above, _, below = text.partition("/")
    return Fraction(int(above), int(below or 1))


def _timezone_parts(zone: timezone) -> list[Any]:
    offset = zone.utcoffset(None)
    parts: list[Any] = [[offset.days, offset.seconds, offset.microseconds]]
    name = zone.tzname(None)
    return parts if name == timezone(offset).tzname(None) else [*parts, name]


# By type: the tag, how to write a value, how to read it.
_SCALARS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", _pack, _unpack),
    complex: ("complex", lambda value: [repr(value.real), repr(value.imag)], lambda parts: complex(*map(float, parts))),
    Decimal: ("decimal", str, Decimal),
    Fraction: ("fraction", str, _read_fraction),
    UUID: ("uuid", str, UUID),
    range: ("range", lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    datetime: ("datetime", _write_time, _read_time(datetime)),
    time: ("time", _write_time, _read_time(time)),
    date: ("date", date.isoformat, date.fromisoformat),
    timedelta: (
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
    ),
    timezone: ("timezone", _timezone_parts, lambda parts: timezone(timedelta(*parts[0]), *parts[1:])),
    ZoneInfo: ("zone", lambda zone: zone.key, ZoneInfo),
    **{cls: (cls.__name__.lower(), str, cls) for cls in (*ADDRESSES, *PATHS)},
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "str": lambda text: _unpack(text).decode("utf-8", "surrogatepass"),
    "int": lambda text: int(text, 16),
    "float": float,
    **{name: read for name, _, read in _SCALARS.values()},
}


def plain(encoded: Any) -> Any:
    """A JSON form of a value (`values.json.encode`) without the names of types: what a reader shows."""
    if type(encoded) is list:
        return [plain(item) for item in encoded]
    if type(encoded) is not dict:
        return encoded
    if TAG not in encoded:
        return {key: plain(item) for key, item in encoded.items()}
    value: Any = encoded.get("value")
    if encoded[TAG] in ("datetime", "time"):
        return value[0]
    if encoded[TAG] in ("dict", "patch"):
        pairs = [(plain(key), plain(item)) for key, item in value]
        return dict(pairs) if all(type(key) is str for key, _ in pairs) else [list(pair) for pair in pairs]
    found = plain(value)
    return model_parts(found) if encoded[TAG] == "model" and type(found) is dict else found
