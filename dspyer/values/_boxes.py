"""Frozen values that need work to be read: the base of all containers, and boxes for what is read as a copy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from types import GenericAlias
from typing import Any, ClassVar, Protocol

from pydantic_core import core_schema

from dspyer.values._scalars import SCALARS

KeyPath = tuple[Hashable, ...]
Same = Callable[[object, object], bool]


class Container:
    """Base of the frozen values that have parts, tuples apart."""

    __slots__ = ()

    _freeze: ClassVar[Callable[..., Any]]  # `freeze`, which is built on the containers and puts itself here

    def _thaw(self) -> Any:
        raise NotImplementedError

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self


class Levels(Container):
    """Base of the mappings and lists, which know how deep they are."""

    __slots__ = ("_depth", "_measured")

    _depth: int  # at least the number of levels, this one included
    _measured: int  # what `measured` gives; not there until `measure` was called

    def _parts(self) -> Iterable[Any]:
        raise NotImplementedError


def measured(value: object) -> int | None:
    """The size that `measure` has put on a mapping or list; None if there is none."""
    size: int | None = getattr(value, "_measured", None)
    return size


def measure(value: object, size: int) -> None:
    """Remembers the size of a mapping or list as long as it lives. It is no part of the value."""
    if isinstance(value, Levels):
        value._measured = size


def thaw(frozen: Any) -> Any:
    """A plain copy of a frozen value: dicts, lists, sets and models of the caller's own.

    Args:
        frozen: a value read from a state, or a state.

    Returns:
        The value with every immutable view replaced by the plain type.

    Example:
        >>> from dspyer.values._freezing import freeze
        >>> thaw(freeze({"tags": ["a"]}))
        {'tags': ['a']}
    """
    if type(frozen) in SCALARS:
        return frozen
    if isinstance(frozen, Container):
        return frozen._thaw()
    return _thaw_tuple(frozen) if isinstance(frozen, tuple) else frozen


def _thaw_tuple(frozen: tuple[Any, ...]) -> tuple[Any, ...]:
    items = []
    changed = False
    for item in frozen:
        plain = thaw(item)
        changed = changed or plain is not item
        items.append(plain)
    return rebuild_tuple(type(frozen), items) if changed else frozen


def rebuild_tuple(cls: type, items: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple or namedtuple of class `cls`."""
    return tuple(items) if cls is tuple else tuple.__new__(cls, items)


class ValueKind(Protocol):
    """How values of some type are kept as private copies."""

    name: str
    in_parts: bool  # the content is made of supported values, and is frozen in its turn

    def pack(self, value: Any) -> Any:
        """The private content for a value: never handed out, if it is not frozen."""
        ...

    def unpack(self, cls: type, content: Any) -> Any:
        """A fresh value of class `cls` from the content."""
        ...

    def same(self, a: Any, b: Any, same: Same) -> bool:
        """Whether two contents are the same; `same` compares supported values."""
        ...


class CopyOnRead(Container):
    """A private copy of a value that could be changed in place; each read gives a fresh copy."""

    __slots__ = ("cls", "content", "kind")

    def __init__(self, kind: ValueKind, cls: type, content: Any) -> None:
        self.kind = kind
        self.cls = cls
        self.content = content

    def open(self) -> Any:
        """A fresh copy of the value."""
        return self.kind.unpack(self.cls, self.content)

    def _thaw(self) -> Any:
        return self.open()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CopyOnRead):
            return equal(self.open(), other)
        if self.cls is other.cls and equal(self.content, other.content):
            return True
        return equal(self.open(), other.open())

    def __hash__(self) -> int:
        return hash(self.open())

    def __repr__(self) -> str:
        return repr(self.open())

    def __reduce__(self) -> tuple[Any, ...]:
        return CopyOnRead, (self.kind, self.cls, self.content)


def equal(a: Any, b: Any) -> bool:
    """`==` as one truth value, also for arrays and for what holds them."""
    if a is b:
        return True
    if type(a) in SCALARS and type(b) in SCALARS:
        return bool(a == b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if not isinstance(a, Container) and getattr(a, "shape", ()) != getattr(b, "shape", ()):
        return False
    result = a == b
    return bool(result.all()) if hasattr(result, "all") else bool(result)


def container_schema(cls: type, plain: type, source: Any, handler: Any) -> Any:
    """How pydantic validates and writes a field that is annotated with a frozen container."""
    arguments = getattr(source, "__args__", ())

    def validate(value: Any, inner: Any) -> Any:
        return value if type(value) is cls and not arguments else cls(inner(value))

    return core_schema.no_info_wrap_validator_function(
        validate,
        handler.generate_schema(GenericAlias(plain, arguments) if arguments else plain),
        serialization=core_schema.plain_serializer_function_ser_schema(thaw),
    )
