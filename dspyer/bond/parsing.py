"""Reading and parsing source text in programs of several threads."""

from __future__ import annotations

import ast
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.RLock()
_TRIES = 50


def source_of(value: Any) -> str:
    """The source of a function or class, as `inspect.getsource` gives it.

    Raises:
        OSError: if there is none.
        TypeError: for anything that has no source.
    """
    return _undisturbed(lambda: inspect.getsource(value))


def parsed(text: str, mode: str = "exec") -> Any:
    """The syntax tree of a text, as `ast.parse` gives it.

    Raises:
        SyntaxError: if it has none.
    """
    return _undisturbed(lambda: ast.parse(text, mode=mode))


def _undisturbed(parse: Callable[[], T]) -> T:
    """Parses, alone.

    Some versions of CPython count the depth of a tree in one place for all threads: two that parse at once get a
    SystemError, or a RecursionError. The lock holds back this package; other code of the process parses when it likes,
    so such an error is believed when it comes each time.
    """
    with _lock:
        for _ in range(_TRIES - 1):
            try:
                return parse()
            except (SystemError, RecursionError):
                continue
        return parse()
