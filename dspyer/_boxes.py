"""Frozen values that need work to be read: the base of all containers, plain copies, and boxes for what is read as a copy."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from ._scalars import SCALARS

Path = tuple[Hashable, ...]
Freeze = Callable[[object, Path], Any]
Same = Callable[[object, object], bool]


class Container:
    """Base of the frozen values that have parts, tuples apart."""

    __slots__ = ()

    def _thaw(self) -> Any:
        raise NotImplementedError

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self


def thaw(frozen: Any) -> Any:
    """A plain copy of a frozen value: dicts, lists, sets and models of the caller's own.

    Args:
        frozen: a value read from a state, or a state.

    Returns:
        The value with every immutable view replaced by the plain type.

    Example:
        >>> from dspyer.values import freeze
        >>> thaw(freeze({"tags": ["a"]}))
        {'tags': ['a']}
    """
    if type(frozen) in SCALARS:
        return frozen
    if isinstance(frozen, Container):
        return frozen._thaw()
    if isinstance(frozen, tuple) and frozen:
        return _thaw_tuple(frozen)
    return frozen


def _thaw_tuple(frozen: tuple[Any, ...]) -> tuple[Any, ...]:
    items = []
    changed = False
    for item in frozen:
        plain = thaw(item)
        changed = changed or plain is not item
        items.append(plain)
    return rebuild_tuple(type(frozen), items) if changed else frozen


def rebuild_tuple(cls: type, items: list[Any]) -> tuple[Any, ...]:
    """A tuple or namedtuple of class `cls`."""
    return tuple(items) if cls is tuple else tuple.__new__(cls, items)


class Kind(Protocol):
    """How values of some type are kept as private copies."""

    name: str

    def pack(self, value: Any, freeze: Freeze, path: Path) -> Any:
        """The private content for a value: immutable, or never handed out."""
        ...

    def unpack(self, cls: type, content: Any) -> Any:
        """A fresh value from the content."""
        ...

    def same(self, a: Any, b: Any, same: Same) -> bool:
        """Whether two contents are the same."""
        ...


class Box(Container):
    """A private copy of a value that could be changed in place; each read gives a fresh copy."""

    __slots__ = ("cls", "content", "kind")

    kind: Kind
    cls: type
    content: Any

    def __init__(self, kind: Kind, cls: type, content: Any) -> None:
        self.kind = kind
        self.cls = cls
        self.content = content

    def open(self) -> Any:
        """A fresh copy of the value."""
        return self.kind.unpack(self.cls, self.content)

    def _thaw(self) -> Any:
        return self.open()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return equal(self.open(), other.open() if isinstance(other, Box) else other)

    def __hash__(self) -> int:
        return hash(self.open())

    def __repr__(self) -> str:
        return repr(self.open())

    def __reduce__(self) -> tuple[Any, ...]:
        return Box, (self.kind, self.cls, self.content)


def equal(a: Any, b: Any) -> bool:
    """`==` as one truth value, also for arrays."""
    if hasattr(a, "dtype") and hasattr(a, "shape") and hasattr(b, "shape"):
        return a.shape == b.shape and bool((a == b).all())
    return bool(a == b)
