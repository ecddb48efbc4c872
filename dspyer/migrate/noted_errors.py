"""The error of a node that has an error handler, kept for the case that the handler runs again without the node.

It does after a question of the handler, and after a crash. The error is kept as plain data: its class cannot be
rebuilt by the name in a store, unless it is one of Python's own.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.errors import NodeError

from dspyer.errors import error_text
from dspyer.log.execution_records import RecordKey
from dspyer.nodes.context import Context
from dspyer.values.frozen import thaw

_PLAIN = (str, int, float, bool, type(None))


_OF_HANDLER = "__dspyer_of_handler__"


@contextmanager
def handling() -> Iterator[None]:
    """Mark the errors of a handler: the retry policy is that of the node, whose attempts are over."""
    try:
        yield
    except Exception as error:
        error.__dict__[_OF_HANDLER] = True
        raise


def is_of_handler(error: BaseException) -> bool:
    """Whether a handler has raised this error."""
    return bool(vars(error).get(_OF_HANDLER))


def key_of(node: str) -> str:
    """The key of the effect under which the error of a node is kept."""
    return f"{node}.error"


def noted(error: Exception) -> dict[str, Any]:
    """An error as plain data."""
    text = error_text(error)
    plain = all(type(each) in _PLAIN for each in error.args)
    return {"type": type(error).__name__, "text": text, "args": list(error.args) if plain else [text]}


def earlier_error(node: str, label: str, ctx: Context) -> NodeError | None:
    """What the handler of a node got before; None if the node has not failed."""
    attempt = ctx.delegate
    found = thaw(attempt.host.records.effects.get(RecordKey(attempt.local_id, key_of(node))))
    return None if found is None else NodeError(label, _rebuilt(**found))


def _rebuilt(type: str, text: str, args: list[Any]) -> Exception:  # noqa: A002 - the key in the store
    kind = getattr(builtins, type, None)
    if isinstance(kind, builtins.type) and issubclass(kind, Exception):
        try:
            return kind(*args)
        except TypeError:  # its parts were no plain data
            pass
    return Exception(f"{type}: {text}")
