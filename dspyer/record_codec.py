"""Records as JSON and back: one conversion by the declared types of the fields, so that a new class needs no code.

A record is a dataclass or a named tuple. Its JSON form is an object with a key for each field: the name of the field,
or `field(metadata={"key": "short"})`. What a type stands for:

- `str`, `int`, `bool`: as they are; `float` too, but for infinity and NaN, which JSON does not have.
- `Any`, and every type that is not named here: a value of a state, in the form in which stores hold it.
- `Update`: an update of a patch, with its markers.
- `Annotated[X, JSON]`: JSON values, as they are.
- `X | None`, `tuple[X, ...]`, `tuple[X, Y]`, `Mapping[str, X]`, another record, `Failure`, `datetime`.
- `Mapping[X, Y]` of keys that are no text: a list of pairs.
- an exception: its class, text and notes. It cannot be read back.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from dspyer.errors import DspyerError, StateError, brief, error_text
from dspyer.failure import Failure
from dspyer.patch import DELETE, decode_update, encode_update
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict
from dspyer.values.json import TAG

R = TypeVar("R")
Convert = Callable[[Any], Any]
DecodeValue = Callable[[Any], Any]

_UPDATE = "update"
Update = Annotated[Any, _UPDATE]
"""The type of a field that holds an update of a patch; plain `Any` is a value of a state."""

JSON = "json"
"""The mark of a field that holds JSON values."""

MALFORMED = (DspyerError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What reading something else than what was written may raise."""


class _Codec(NamedTuple):
    """The two ways between a type and JSON; `decode` also gets the function that reads the values of a state.

    A value of the type `plain` comes back as it is: most fields hold one, and a call for each costs most of reading.
    """

    encode: Convert
    decode: Callable[[Any, DecodeValue], Any]
    plain: type | None = None


class _Field(NamedTuple):
    """A field of a record class. Of a property, which is written and not read, `decode` is None."""

    name: str
    key: str
    encode: Convert
    decode: Callable[[Any, DecodeValue], Any] | None
    plain: type | None = None
    default: Any = MISSING
    marks: tuple[Any, ...] = ()


def encode(record: Any) -> dict[str, Any]:
    """Return the JSON form of a record: its fields and properties.

    Example:
        >>> from dspyer.events import FieldShape
        >>> encode(FieldShape("n", "int", limit_kb=2.0))["limit_kb"]
        2.0
    """
    cls: Any = type(record)
    return {field.key: field.encode(getattr(record, field.name)) for field in fields_of(cls)}


@cache
def short_encoder(cls: Any, omit: tuple[str, ...] = ()) -> Callable[[Any], dict[str, Any]]:
    """Return the function that makes the short JSON form of the records of a class, which `decode` takes as well.

    It has no properties, no fields that equal their default, and none of those to `omit`.

    It is compiled, since it runs for each step of a stored run. A value of another class than the default differs from
    it: True is not 1. A mapping of any class equals its default.
    """
    names: dict[str, Any] = {"_Mapping": Mapping}
    lines = ["def encode(record):", "    found = {}"]
    for name, key, convert, decoder, _, default, _ in fields_of(cls):
        if name in omit or decoder is None:
            continue
        names |= {f"_encode_{name}": convert, f"_default_{name}": default, f"_class_{name}": type(default)}
        is_of = "isinstance(value, _Mapping)" if isinstance(default, Mapping) else f"type(value) is _class_{name}"
        converted = "value" if convert is _same else f"_encode_{name}(value)"
        lines.append(f"    value = record.{name}")
        if default is not MISSING:
            lines.append(f"    if value is not _default_{name} and not ({is_of} and value == _default_{name}):")
        lines.append(f"{'' if default is MISSING else '    '}    found[{key!r}] = {converted}")
    # The text has names of fields and of keys alone, which are those of a class: no data is in it.
    exec("\n".join([*lines, "    return found"]), names)
    made: Callable[[Any], dict[str, Any]] = names["encode"]
    return made


def decode(cls: type[R], data: Any, decode_value: DecodeValue = encoding.decode) -> R:
    """Return the record of a JSON form. Fields that it lacks get their default.

    Args:
        cls: the class of the record.
        data: what `encode` has returned, also through JSON text.
        decode_value: reads a value of a state. A caller that knows more classes, or where large values are, passes its
            own.

    Raises `ValueError` if the data is malformed: it names the class and the key, and shows the value.

    Example:
        >>> from dspyer.events import FieldShape
        >>> decode(FieldShape, {"name": "n", "type": "int"}).limit_kb is None
        True
    """
    try:
        return cls(**decode_fields(cls, data, decode_value))
    except TypeError as error:  # a field without a default is missing
        raise ValueError(f"{cls.__name__}: {error_text(error)}") from error


def decode_fields(
    cls: Any, data: Any, decode_value: DecodeValue = encoding.decode, omit: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the fields of a record that its JSON form has, by name. Those to `omit` are unknown."""
    if type(data) is not dict:
        raise ValueError(f"{cls.__name__}: {brief(data)} is no JSON object")
    known = _by_key(cls, omit)
    given: dict[str, Any] = {}
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"{cls.__name__}: the key {brief(key)} is unknown")
        name, read, plain = known[key]
        # The most frequent case first, without a call.
        if type(value) is plain:
            given[name] = value
            continue
        if read is None:
            continue
        try:
            given[name] = read(value, decode_value)
        except MALFORMED as error:
            raise ValueError(f"{cls.__name__}.{key}: {brief(value)} cannot be read: {error_text(error)}") from error
    return given


def error_dict(error: BaseException) -> dict[str, Any]:
    """Return the JSON form of an exception: class name, text and notes.

    Example:
        >>> error_dict(ValueError("odd"))
        {'type': 'ValueError', 'message': 'odd', 'notes': []}
    """
    return {"type": type(error).__name__, "message": error_text(error), "notes": list(getattr(error, "__notes__", ()))}


# --- the classes


class JsonRecord:
    """The base of records: frozen dataclasses that become JSON by their declared types.

    Their `repr` names the node, fields and sizes, and no values: what is printed while debugging lands in logs.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # Set before `dataclass` looks for one: it makes a `repr` with all values for a class that has none of its own.
        if "__repr__" not in vars(cls):
            cls.__repr__ = JsonRecord.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        cls: Any = type(self)
        told = [(one, getattr(self, one.name, None)) for one in fields(cls) if one.repr]
        parts = [
            f"{one.name}={_outline(one.name, value, cls.__module__ == 'dspyer.events')}"
            for one, value in told
            if value is not None and not (type(value) in (*_SHOWN, tuple, FrozenDict) and value == one.default)
        ]
        return f"{cls.__name__}({', '.join(parts)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return encode(self)


_PLACES = ("node", "execution")
_TEXTS = ("text", "reason", "comment", "by", "failed", "path", "value", "base", "key", "response", "messages")
"""Fields of the package's own records that hold values, though their types are those of names."""
_SHOWN = (str, int, float, bool)


def _outline(name: str, value: Any, is_own: bool) -> str:
    """A field in a `repr`: a name or number as it is, anything that may hold a value by its size."""
    parts = value if isinstance(value, tuple) else (value,)
    is_name = is_own and name not in _TEXTS and all(isinstance(part, (JsonRecord, *_SHOWN)) for part in parts)
    if is_name or name in _PLACES or isinstance(value, JsonRecord):
        return repr(value)
    if name in ("patch", "inputs", "args") and isinstance(value, Mapping):
        return f"{{{', '.join([f'{key}: {size_text(value[key])}' for key in value])}}}"
    return size_text(value)


def size_text(value: Any) -> str:
    """Return the size of a value in words, for texts that show no values.

    Example:
        >>> size_text("s3cret"), size_text(["a", 1]), size_text(4.5)
        ('6 characters', '2 items', 'float')
    """
    if isinstance(value, str):
        return f"{len(value)} characters"
    with suppress(TypeError, StateError):  # what is opaque has no length
        return f"{len(value)} items"
    return str(getattr(value, "cls", type(value)).__name__)


def fast(cls: type[R]) -> type[R]:
    """Give a frozen dataclass with slots a constructor that is four times as fast, and `changed`. For those that each
    step makes.

    The constructor of a frozen dataclass calls `object.__setattr__` for each field. This one makes the object an
    instance of a twin class, which has the same slots and is not frozen, sets the slots as Python does it fastest, and
    makes it an instance of its own class again: of 20 fields, that takes 0.5 and not 2.1 microseconds.
    """
    kind: Any = cls
    slots = vars(cls)["__slots__"]
    free = {"__slots__": slots, "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    draft = type(kind)(f"{cls.__name__}Draft", kind.__bases__, free)
    names = {"_become": object.__setattr__, "_new": object.__new__, "_own": cls, "_free": draft}
    given: list[str] = []
    keywords: list[str] = []
    for one in fields(kind):
        has_default = one.default is not MISSING
        names[f"_default_{one.name}"] = one.default
        (keywords if one.kw_only else given).append(f"{one.name}=_default_{one.name}" if has_default else one.name)
    lines = [
        f"def __init__(self, {', '.join([*given, *(['*'] if keywords else []), *keywords])}):",
        "    _become(self, '__class__', _free)",
        *[f"    self.{one.name} = {one.name}" for one in fields(kind)],
        "    self.__class__ = _own",
        "def changed(record, changes):",
        "    new = _new(_free)",
        *[f"    new.{one.name} = record.{one.name}" for one in fields(kind)],
        "    for name, value in changes.items():",
        "        setattr(new, name, value)",
        "    new.__class__ = _own",
        "    return new",
    ]
    exec("\n".join(lines), names)
    kind.__init__, _CHANGED[cls] = names["__init__"], names["changed"]
    return cls


_CHANGED: dict[type, Callable[[Any, Mapping[str, Any]], Any]] = {}


def changed(record: R, **changes: Any) -> R:
    """Return a copy of a record with other values, without calling its constructor.

    Of a `fast` one, in a quarter of the time of `dataclasses.replace`; of a user's, also if it checks its values.
    """
    copied = _CHANGED.get(type(record))
    if copied is not None:
        made: R = copied(record, changes)
        return made
    new = copy(record)
    for name, value in changes.items():
        object.__setattr__(new, name, value)
    return new


# --- the fields of a class


@cache
def fields_of(cls: Any) -> tuple[_Field, ...]:
    """Return the fields and properties of a record class."""
    found = []
    if is_dataclass(cls):
        defaults: dict[str, Any] = {}
        keys = {}
        for one in sorted(fields(cls), key=lambda one: bool(one.kw_only)):  # as the constructor takes them
            made = one.default_factory
            defaults[one.name] = one.default if made is MISSING else made()
            keys[one.name] = one.metadata.get("key", one.name)
    else:
        defaults = {name: cls._field_defaults.get(name, MISSING) for name in cls._fields}
        keys = {name: name for name in cls._fields}
    hints = _hints_of(cls)
    for name, key in keys.items():
        hint = hints.get(name, Any)
        codec = _codec(hint)
        found.append(_Field(name, key, *codec, defaults[name], getattr(hint, "__metadata__", ())))
    for name, value in _properties_of(cls).items():
        found.append(_Field(name, name, _codec(_hints_of(value.fget).get("return", Any)).encode, None))
    return tuple(found)


@cache
def _by_key(cls: Any, omit: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    return {field.key: (field.name, field.decode, field.plain) for field in fields_of(cls) if field.name not in omit}


def _properties_of(cls: Any) -> dict[str, property]:
    """Return the public properties of a class and its bases, which are shown with its fields."""
    return {
        name: value
        for base in reversed(cls.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, property) and not name.startswith("_")
    }


def _hints_of(owner: Any) -> dict[str, Any]:
    """Return the types of the fields of a class, or of a function, without those that no import at run time defines."""
    try:
        return get_type_hints(owner, include_extras=True)
    # One name that no import defines fails all hints of the class at once: each is asked for alone.
    except NameError:
        found: dict[str, Any] = {}
        for base in reversed(getattr(owner, "__mro__", (owner,))):
            names = vars(sys.modules[base.__module__])
            for name, hint in getattr(base, "__annotations__", {}).items():
                one = types.SimpleNamespace(__annotations__={name: hint})
                try:
                    found |= get_type_hints(one, globalns=names, include_extras=True)
                except NameError:
                    found[name] = Any  # it is imported for type checkers alone: any value is shown as one of a state
        return found


# --- the types


def _codec(hint: Any) -> _Codec:
    """Return the conversion of a declared type."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is None and hint in _PLAIN:
        return _PLAIN[hint]
    if kind is Annotated:
        return _UPDATES if _UPDATE in parts else _JSON if JSON in parts else _codec(parts[0])
    if kind in (Union, types.UnionType):
        inner = [_codec(part) for part in parts if part is not type(None)]
        return _optional(inner[0]) if len(inner) == 1 and len(parts) == 2 else _VALUES
    if kind is tuple and parts and parts[-1] is ...:
        return _items(_codec(parts[0]))
    if kind is tuple:
        return _members([_codec(part) for part in parts])
    if isinstance(kind, type) and issubclass(kind, Mapping):
        value = _codec(parts[1])
        if parts[0] is not str:
            return _pairs(_codec(parts[0]), value)
        return _mapping(value, kind if issubclass(kind, FrozenDict) else dict)
    if isinstance(hint, type) and issubclass(hint, FrozenDict):
        return _mapping(_VALUES, hint)
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return _Codec(encode, lambda value, decode_value: decode(hint, value, decode_value))
    if isinstance(hint, type) and issubclass(hint, BaseException):
        return _Codec(error_dict, _refuse_error)
    return _VALUES


def _scalar(cls: type) -> _Codec:
    """A text, number or truth value as it is; another value in its place (a float of numpy) as one of a state."""

    def write(value: Any) -> Any:
        return value if type(value) is cls else _encode_value(value)

    def read(value: Any, _: DecodeValue) -> Any:
        if type(value) is not cls:
            raise TypeError(f"it is no {cls.__name__}")
        return value

    return _Codec(write, read, cls)


def _read_float(value: Any, _: DecodeValue) -> float:
    if type(value) in (float, int):
        return float(value)
    found = encoding.decode(value)
    if type(found) is not float:
        raise TypeError("it is no float")
    return found


def _optional(inner: _Codec) -> _Codec:
    write, read, plain = inner
    return _Codec(
        lambda value: None if value is None else write(value),
        lambda value, decode_value: None if value is None else read(value, decode_value),
        plain,
    )


def _items(item: _Codec) -> _Codec:
    write, read, plain = item
    return _Codec(
        lambda values: [write(value) for value in values],
        lambda values, decode_value: tuple(
            [value if type(value) is plain else read(value, decode_value) for value in _list(values)]
        ),
    )


def _members(members: list[_Codec]) -> _Codec:
    return _Codec(
        lambda values: [member.encode(value) for member, value in zip(members, values, strict=True)],
        lambda values, decode_value: tuple(
            [
                value if type(value) is member.plain else member.decode(value, decode_value)
                for member, value in zip(members, _list(values), strict=True)
            ]
        ),
    )


def _mapping(item: _Codec, cls: Any) -> _Codec:
    write, read, _ = item

    def pairs(values: Mapping[Any, Any]) -> dict[str, Any]:
        return {str(key): write(value) for key, value in _raw_items(values)}

    def back(values: Any, decode_value: DecodeValue) -> Any:
        if type(values) is not dict:
            raise TypeError("it is no JSON object")
        found = {key: read(value, decode_value) for key, value in values.items()}
        return found if cls is dict else cls(found)

    return _Codec(pairs, back)


def _pairs(key: _Codec, value: _Codec) -> _Codec:
    return _Codec(
        lambda values: [[key.encode(one), value.encode(values[one])] for one in values],
        lambda values, decode_value: {
            key.decode(one, decode_value): value.decode(other, decode_value) for one, other in _list(values)
        },
    )


def _raw_items(values: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """Return the items of a mapping; those of a frozen one as they are, without thawing its values."""
    return values.raw_items() if isinstance(values, FrozenDict) else values.items()


def _list(values: Any) -> list[Any]:
    if type(values) is not list:
        raise TypeError("it is no JSON array")
    return values


def _refuse_error(_value: Any, _decode: DecodeValue) -> NoReturn:
    raise TypeError("an exception is written for readers alone: declare a Failure, which can be read back")


def _encode_value(value: Any) -> Any:
    """Encode a value of a state; of an object that no state can hold (`ctx.emit` takes any) its class and text."""
    if value is DELETE:
        return {TAG: "delete"}
    # An event must never fail for what a node has emitted.
    try:
        return encoding.encode(freeze(value))
    except StateError:
        return {TAG: "object", "class": f"{type(value).__module__}:{type(value).__qualname__}", "value": brief(value)}


def _same(value: Any) -> Any:
    return value


_VALUES = _Codec(
    _encode_value,
    lambda value, read: DELETE if type(value) is dict and value.get(TAG) == "delete" else read(value),
)
_JSON = _Codec(_same, lambda value, _: value)
_UPDATES = _Codec(encode_update, decode_update)
_PLAIN: dict[Any, _Codec] = {
    Any: _VALUES,
    str: _scalar(str),
    int: _scalar(int),
    bool: _scalar(bool),
    float: _Codec(lambda value: encoding.encode(value) if type(value) is float else _encode_value(value), _read_float),
    Failure: _Codec(Failure.to_dict, lambda value, _: Failure.model_validate(value, strict=False)),
    datetime: _Codec(datetime.isoformat, lambda value, _: datetime.fromisoformat(value)),
}
