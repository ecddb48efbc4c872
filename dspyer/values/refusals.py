"""Errors for values that a state cannot hold: where the value is, of which type, and what to do instead."""

from __future__ import annotations

import io
import types
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from pydantic import SecretBytes, SecretStr

from dspyer.errors import (
    ImmutableError,
    StateError,
    UnsetFieldError,
    UnsupportedValueError,
    suggestion,
)

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


def refuse_depth(value: object, path: KeyPath, error: type[StateError]) -> NoReturn:
    """Raise `error` for a value with more than `MAX_DEPTH` levels; the text differs if the value contains itself."""
    cycle = _find_cycle(value)
    if cycle is not None:
        raise error(
            f"{_place('value', path)} contains itself, at {show_path(cycle)!r}: a state holds trees; store an id "
            f"instead of the reference"
        )
    raise error(
        f"{_place('value', path)} is nested deeper than {MAX_DEPTH} levels: store the deep part as text or bytes, or "
        f"as a flat list with the ids of parents"
    )


def _find_cycle(value: object) -> KeyPath | None:
    """Return the path at which a container contains itself; None if the value is a tree.

    A depth-first search with its own stack, since Python's would overflow on such values.
    """
    ancestors: set[int] = set()  # ids of the containers on the path from the root to the current one
    done: set[int] = set()  # ids of containers that were searched completely: each is searched once
    stack: list[tuple[Any, KeyPath, bool]] = [(value, (), False)]
    while stack:
        item, path, leaving = stack.pop()
        if leaving:
            ancestors.discard(id(item))
            done.add(id(item))
            continue
        if id(item) in ancestors:
            return path
        if id(item) in done:
            continue
        parts = _parts(item)
        if parts:
            ancestors.add(id(item))
            stack.append((item, path, True))
            # Paths are for the message, which shortens them: longer ones would only cost memory.
            stack.extend((part, (*path, key) if len(path) < 20 else path, False) for key, part in parts)
    return None


def _parts(item: Any) -> list[tuple[Any, Any]]:
    if isinstance(item, Mapping):
        return list(item.items())
    if isinstance(item, list | tuple):
        return list(enumerate(item))
    return list(getattr(item, "__dict__", {}).items()) if not callable(item) else []


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
