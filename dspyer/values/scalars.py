"""Immutable values without parts: which types they have, and when two of them are the same value."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from numbers import Number
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import NoneType
from typing import Any, TypeGuard, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from dspyer.errors import brief
from dspyer.values.refusals import KeyPath, refuse_key

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
    """Whether a value is immutable and has no parts."""
    cls = type(value)
    return cls in SCALARS or isinstance(value, Enum) or scalar_base(cls) is not None or is_array_scalar(value)


def is_array_scalar(value: object) -> bool:
    """Whether a value is a numpy scalar. Structured ones (`numpy.void`) can be changed in place and do not count."""
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
    """Whether two scalars have the same type and value; NaN is the same as NaN."""
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


def as_float(value: object) -> float | None:
    """Return a real number of any class, also of numpy or of a tensor without axes, as a `float`; True is 1.

    None for anything else.

    Example:
        >>> from decimal import Decimal
        >>> as_float(Decimal("0.5")), as_float(True), as_float("1")
        (0.5, 1.0, None)
    """
    found = without_class(value)
    return float(cast(Any, found)) if isinstance(found, Number) and not isinstance(found, complex) else None


def without_class(value: object) -> Any:
    """Return a number or truth value of numpy, or of a tensor without axes, as Python's own; any other value as it is.

    Example:
        >>> without_class("text")
        'text'
    """
    found: Any = value
    single = getattr(found, "ndim", None) == 0 and callable(getattr(found, "item", None))
    return found.item() if single else found


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
