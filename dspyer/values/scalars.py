"""Immutable values without parts: which types they have, and when two of them are the same value."""

from __future__ import annotations

import io
import sys
import types
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Hashable, Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import NoneType
from typing import Any, NoReturn, Self, TypeGuard, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import SecretBytes, SecretStr

from dspyer.errors import (
    ImmutableError,
    StateError,
    UnsetFieldError,
    UnsupportedValueError,
    brief,
    suggestion,
)

# Errors for values that a state cannot hold: where the value is, of which type, and what to do instead.


KeyPath = tuple[Any, ...]
"""The keys that lead from a state down to a value, each of them hashable: `("user", "tags", 0)`."""

# Levels of nesting. Reading, comparing, copying and encoding recurse, with several frames of Python's stack per level.
MAX_DEPTH = 100

# The first match counts; `add_advice` puts its entry in front.
_ADVICE: list[tuple[tuple[type, ...], str]] = [
    ((io.IOBase,), "read it in the node and return its content, or its path"),
    ((AsyncGenerator, Awaitable), "await or collect it in the node and return the result"),
    ((types.GeneratorType, Iterator), "return its items as a list: list(...)"),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType), "return its name, for a look-up by the caller"),
    ((type,), "return its name"),
    ((types.ModuleType,), "import it where it is used"),
    ((deque,), "return a list: list(...)"),
    ((bytearray, memoryview), "return bytes(...)"),
    ((SecretStr, SecretBytes), "keep secrets out of the state and hand them to the run as one of its `resources`"),
]


class Uncopied:
    """Base of what never changes, or is shared by all copies of what refers to it: a copy is the object itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


class TooDeepError(UnsupportedValueError):
    """A value has more than `MAX_DEPTH` levels, or contains itself. `freeze` replaces it by an error with the path."""

    def __init__(self, text: str = f"the value is nested deeper than {MAX_DEPTH} levels") -> None:
        super().__init__(text)


def refuse_value(value: object, path: KeyPath) -> NoReturn:
    """Raise `UnsupportedValueError` for a value, with advice for its type."""
    cls = type(value)
    for kinds, known in _ADVICE:
        if isinstance(value, kinds):
            advice = known
            break
    else:
        advice = (
            f"if it is data, teach dspyer to copy it: register_value_type({cls.__qualname__}, encode=..., decode=...); "
            f"if it is a client or another tool of the nodes, hand it to the run as one of its `resources`"
        )
    raise UnsupportedValueError(
        f"{_place('value', path)} is of type {_name(cls)}, which a state cannot protect from later changes: {advice}"
    )


def add_advice(kinds: tuple[type, ...], advice: str) -> None:
    """Set what `refuse_value` suggests for values of these types."""
    _ADVICE.insert(0, (kinds, advice))


def refuse_key(key: object, path: KeyPath, advice: str) -> NoReturn:
    """Raise `UnsupportedValueError` for a key of the mapping at `path`."""
    raise UnsupportedValueError(f"{_place('mapping', path)} has a key of type {_name(type(key))}: {advice}")


def refuse_missing(key: object, known: Iterable[object]) -> NoReturn:
    """Raise `UnsetFieldError` for a key that is absent, with the keys of similar spelling."""
    keys = list(known)
    if len(keys) > 1000:  # difflib would compare the key with each of them: seconds for a large mapping
        raise UnsetFieldError(f"no key {key!r} among the {len(keys)} here")
    near = suggestion(key, keys) if isinstance(key, str) else ""
    shown = ", ".join(map(repr, keys[:10])) + (", ..." if len(keys) > 10 else "")
    known_keys = f" Known keys: {shown}." if keys else " It is empty, as the state of a thread without a run is."
    raise UnsetFieldError(f"no key {key!r} here.{near or known_keys}")


def refuse_change(what: str, advice: str) -> NoReturn:
    """Raise `ImmutableError` for an attempt to change a value of a state in place."""
    raise ImmutableError(f"{what} cannot be changed in place: {advice}")


def refuse_depth(path: KeyPath, error: type[StateError]) -> NoReturn:
    """Raise `error` for a value with more than `MAX_DEPTH` levels, as one that contains itself has, too."""
    raise error(
        f"{_place('value', path)} is nested deeper than {MAX_DEPTH} levels, or contains itself: store the deep part as "
        f"text or bytes, or as a flat list with the ids of parents"
    )


def _name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _place(what: str, path: KeyPath) -> str:
    return f"the {what} at {show_path(path)!r}" if path else f"the {what}"


def show_path(path: KeyPath) -> str:
    """Return a path as text for messages, `user.tags.0`, shortened if it is long."""
    parts = [str(part) for part in path]
    if len(parts) > 12:
        parts = [*parts[:6], "...", *parts[-3:]]
    text = ".".join(parts)
    return text if len(text) <= 200 else f"{text[:200]}..."


ADDRESSES = (IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network)
PATHS = (PosixPath, PurePosixPath, PureWindowsPath, WindowsPath)

# Scalars of which two equal values of one type are the same value.
PLAIN: frozenset[type] = frozenset(
    {NoneType, bool, int, str, bytes, date, timedelta, UUID, Fraction, range, *ADDRESSES, *PATHS}
)
# Scalars of which two values can be equal and differ: -0.0 and 0.0, 1.0 and 1.00, one instant in two time zones.
SUBTLE: frozenset[type] = frozenset({float, complex, Decimal, datetime, time, timezone, ZoneInfo})
SCALARS: frozenset[type] = PLAIN | SUBTLE

# A datetime is a date: the more specific class comes first.
_BASES = (str, int, float, bytes, complex, datetime, date, time, timedelta, Decimal, UUID, Fraction)


def is_scalar(value: object) -> bool:
    """Return whether a value is immutable and has no parts."""
    cls = type(value)
    return cls in SCALARS or isinstance(value, Enum) or scalar_base(cls) is not None or is_array_scalar(value)


def is_array_scalar(value: object) -> bool:
    """Return whether a value is a numpy scalar; structured ones (`numpy.void`) can be changed in place and are none."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and not isinstance(value, (numpy.void, numpy.object_))


def scalar_base(cls: type) -> type | None:
    """Return the scalar type behind a subclass whose instances take no attributes; None for any other class."""
    if issubclass(cls, Enum) or cls.__dictoffset__:
        return None
    for base in _BASES:
        if issubclass(cls, base):
            slots = any(parent.__dict__.get("__slots__") for parent in cls.__mro__ if parent not in base.__mro__)
            return None if _is_numpy(cls) or slots else base
    return None


def _is_numpy(cls: type) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and issubclass(cls, numpy.generic)


def freeze_key(key: Any, path: KeyPath) -> Hashable:
    """Return the frozen form of a key of the mapping at `path`; it must be a scalar or a tuple of scalars."""
    if is_scalar(key):
        return cast("Hashable", key)
    if isinstance(key, str):  # of a subclass whose instances take attributes: keep the text alone
        return str.__str__(key)
    if type(key) is tuple:
        return tuple([freeze_key(part, path) for part in key])
    return refuse_key(key, path, "use a string, a number or another immutable value without parts")


def same_scalar(a: Any, b: Any) -> bool:
    """Return whether two scalars have the same type and value; NaN is the same as NaN."""
    kind = type(a)
    if kind is not type(b):
        return False
    if kind in PLAIN:
        return bool(a == b)
    if kind is float and a != b:  # the text of a float is slow to make
        return bool(a != a and b != b)
    return bool(scalar_identity(a) == scalar_identity(b))


def scalar_identity(value: Any) -> object:
    """Return a hashable key that is equal exactly for scalars that are the same."""
    kind = type(value)
    if kind in PLAIN or isinstance(value, Enum):
        return kind, value
    if isinstance(value, datetime | time):
        return kind, repr(value.replace(tzinfo=None)), str(value.utcoffset()), scalar_identity(value.tzinfo)
    if is_array_scalar(value):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, ZoneInfo) and value.key is not None:
        return kind, value.key
    return kind, repr(value) if scalar_base(kind) is None else _BASE_REPR[scalar_base(kind)](value)


# Their own `__repr__`: a subclass may override it.
_BASE_REPR: dict[type | None, Any] = {base: base.__repr__ for base in _BASES}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is an `int` or a `float`; a `bool` is none.

    Example:
        >>> is_number(0.5), is_number(True), is_number("1")
        (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole_number(value: object) -> TypeGuard[int]:
    """Return whether a value is an `int`; a `bool` is none.

    Example:
        >>> is_whole_number(3), is_whole_number(3.0), is_whole_number(True)
        (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def flag_problems(**options: object) -> list[str]:
    """Return what is wrong with options that are True or False: anything else, such as "no", would count as one.

    Example:
        >>> flag_problems(accept="no", frozen=True)
        ["accept='no': give True or False"]
    """
    return [f"{name}={brief(given)}: give True or False" for name, given in options.items() if type(given) is not bool]


def check_flags(**options: object) -> None:
    """Refuse options that are neither True nor False with a `TypeError`.

    Example:
        >>> check_flags(live="no")
        Traceback (most recent call last):
        TypeError: live='no': give True or False
    """
    for problem in flag_problems(**options):
        raise TypeError(problem)
