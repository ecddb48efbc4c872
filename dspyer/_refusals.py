"""Errors for values that a state refuses: where, of which type, and what to do instead."""

from __future__ import annotations

import io
import types
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Hashable, Iterator, Mapping
from typing import Any, NoReturn

from .errors import StateError, UnsupportedValueError

MAX_DEPTH = 128  # levels of nesting: each costs several frames of the stack when read, compared, copied or encoded
SLACK = 32  # length of the caller's own path that the guards of the recursion allow for

_ADVICE: list[tuple[tuple[type, ...], str]] = [
    ((io.IOBase,), "read it in the node and return its content, or its path"),
    ((AsyncGenerator, Awaitable), "await or collect it in the node and return the result"),
    ((types.GeneratorType, Iterator), "return its items as a list: list(...)"),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType), "return its name, and look it up where it is called"),
    ((type,), "return its name"),
    ((types.ModuleType,), "import it where it is used"),
    ((deque,), "return a list: list(...)"),
    ((bytearray, memoryview), "return bytes(...)"),
]


class TooDeep(UnsupportedValueError):
    """A value that is nested too deep, or contains itself; `freeze` says where."""

    def __init__(self, text: str = f"the value is nested deeper than {MAX_DEPTH} levels") -> None:
        super().__init__(text)


def advise(types: tuple[type, ...], advice: str) -> None:
    """Say what to do instead of storing values of these types."""
    _ADVICE.insert(0, (types, advice))


def show_path(path: tuple[Hashable, ...]) -> str:
    """A path for people: `user.tags.0`, shortened where it is long."""
    parts = [str(part) for part in path]
    if len(parts) > 12:
        parts = [*parts[:6], "...", *parts[-3:]]
    text = ".".join(parts)
    return text if len(text) <= 200 else f"{text[:200]}..."


def refuse_value(value: object, path: tuple[Hashable, ...]) -> NoReturn:
    cls = type(value)
    place = f"the value at {show_path(path)!r}" if path else "the value"
    for kinds, advice in _ADVICE:
        if isinstance(value, kinds):
            raise UnsupportedValueError(
                f"{place} is a {_name(cls)}, which a state cannot protect from later changes: {advice}"
            )
    raise UnsupportedValueError(
        f"{place} is a {_name(cls)}, which a state cannot protect from later changes: if it is data, teach dspyer to copy it with "
        f"register_value_type({cls.__qualname__}, encode=..., decode=...); if it is a client or another tool of the nodes, hand it "
        f"to the run as one of its `resources`"
    )


def refuse_key(
    key: object, path: tuple[Hashable, ...], advice: str = "use a string, a number or another immutable value without parts"
) -> NoReturn:
    place = f"the mapping at {show_path(path)!r}" if path else "the mapping"
    raise UnsupportedValueError(f"{place} has a key of type {_name(type(key))}: {advice}")


def refuse_depth(value: object, path: tuple[Hashable, ...], error: type[StateError]) -> NoReturn:
    """Say whether a value contains itself or is only nested too deep, and where."""
    place = f"the value at {show_path(path)!r}" if path else "the value"
    cycle = _find_cycle(value)
    if cycle is not None:
        raise error(
            f"{place} contains itself (at {show_path(cycle)!r}): a state holds trees; store an id instead of the reference"
        )
    raise error(
        f"{place} is nested deeper than {MAX_DEPTH} levels: store the deep part as text or bytes, or as a flat list with parent ids"
    )


def _find_cycle(value: object) -> tuple[Hashable, ...] | None:
    """The path at which a container is met again inside itself."""
    seen: set[int] = set()
    done: set[int] = set()
    stack: list[tuple[Any, tuple[Hashable, ...], bool]] = [(value, (), False)]
    while stack:
        item, path, leaving = stack.pop()
        if leaving:
            seen.discard(id(item))
            done.add(id(item))
            continue
        if id(item) in seen:
            return path
        if id(item) in done:
            continue
        parts = _parts(item)
        if parts:
            seen.add(id(item))
            stack.append((item, path, True))
            stack.extend((part, (*path, key) if len(path) < 20 else path, False) for key, part in parts)
    return None


def _parts(item: Any) -> list[tuple[Hashable, Any]]:
    if isinstance(item, Mapping):
        return list(item.items())
    if isinstance(item, list | tuple):
        return list(enumerate(item))
    return list(getattr(item, "__dict__", {}).items()) if not callable(item) else []


def _name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
