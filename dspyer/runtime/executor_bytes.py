"""The bytes that the caller of a program and a worker of an executor send each other.

They are made by cloudpickle, so that functions and classes that no import finds are sent by value. What both sides have
is sent back as a name: the program, its modules and its graph. So a trace and a run that a worker returns refer to the
objects of the caller, and are small.
"""

from __future__ import annotations

import copy
import io
import pickle
import traceback
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any

import cloudpickle
import dspy

from dspyer.dspy_module.source import reduce_program
from dspyer.errors import error_text

Parts = dict[Hashable, Any]
"""What the bytes hold as names only, by name."""


def encode(value: object, parts: Parts | None = None) -> bytes:
    """The bytes of a value, with a name for each of the parts. Raises whatever a part of the value raises."""
    file = io.BytesIO()
    _Pickler(file, parts or {}).dump(value)
    return file.getvalue()


def decode(data: bytes, parts: Parts | None = None) -> Any:
    """The value of some bytes, with the parts in the place of their names."""
    return _Unpickler(io.BytesIO(data), parts or {}).load()


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, parts: Parts) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names = {id(part): name for name, part in parts.items()}

    def persistent_id(self, value: object) -> Hashable:
        return self._names.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (dspy.BaseLM, dspy.Adapter)):
            return _without_records(value).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if isinstance(value, BaseException):
            return _load_error, (*_error_parts(value),)
        if isinstance(value, dspy.Module) and hasattr(type(value), "_dspyer_program"):
            call, arguments, _ = reduce_program(value)
            return call, arguments, sent_state(value)
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: Parts) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, name: Any) -> Any:
        return self._parts[name]


# --- programs


def sent_state(program: dspy.Module) -> dict[str, Any]:
    """The attributes of a program that its runs need: its modules and its graph, and not what optimizers left on it."""
    state: dict[str, Any] = program.__getstate__()
    return {name: value for name, value in state.items() if name.startswith("_") or isinstance(value, dspy.Module)}


def parts_of(program: dspy.Module) -> Parts:
    """The modules of a program and its graphs by name. A copy of the program has the same names."""
    found: Parts = {}
    _add_parts(found, "", program)
    return found


def _add_parts(found: Parts, path: str, value: Any) -> None:
    if isinstance(value, dspy.Module):
        found[path] = value
        if hasattr(type(value), "_dspyer_program"):
            graph = value._graph
            found[f"{path}#graph"] = graph
            found[f"{path}#topology"] = graph.topology
            found[f"{path}#schema"] = graph.topology.schema
            inner = sent_state(value)
        else:
            inner = value.__getstate__()
    elif isinstance(value, dict):
        inner = value
    elif isinstance(value, (list, tuple)):
        inner = {str(index): part for index, part in enumerate(value)}
    else:
        return
    for name, part in inner.items():
        if isinstance(part, (dspy.Module, dict, list, tuple)):
            _add_parts(found, f"{path}.{name}", part)


def _without_records(value: Any) -> Any:
    """A language model or an adapter without its history and callbacks."""
    twin = copy.copy(value)
    for name in ("history", "callbacks"):
        if vars(twin).get(name):
            setattr(twin, name, [])
    return twin


# --- exceptions


class WorkerTraceback(Exception):  # noqa: N818  # it is the cause of an error, and says where that was raised
    """The traceback of an exception that a worker has raised, as text."""

    def __str__(self) -> str:
        return f"\n\nin a worker:\n{self.args[0]}"


def _error_parts(error: BaseException) -> tuple[bytes | None, str, str, tuple[str, ...], BaseException | None]:
    """Bytes of an exception, or None if it cannot be pickled; its text, traceback, notes and cause."""
    data = None
    with suppress(Exception):
        data = cloudpickle.dumps(error)
    text = f"{type(error).__qualname__}: {error_text(error)}"
    shown = "" if error.__traceback__ is None else "".join(traceback.format_exception(error))
    return data, text, shown, tuple(getattr(error, "__notes__", ())), error.__cause__


def _load_error(
    data: bytes | None, text: str, shown: str, notes: tuple[str, ...], cause: BaseException | None
) -> BaseException:
    """The exception; one that cannot be loaded becomes a `RuntimeError`. Its cause says where it was raised."""
    error: BaseException | None = None
    with suppress(Exception):
        error = None if data is None else pickle.loads(data)
    if not isinstance(error, BaseException):
        error = RuntimeError(text)
    if notes:
        error.__notes__ = list(notes)
    if cause is not None:
        error.__cause__ = cause
    elif shown:
        error.__cause__ = WorkerTraceback(shown)
    return error


# --- what cannot be sent


def what_fails(named: Mapping[str, Any], encode_one: Callable[[Any], object] = encode) -> str:
    """Says which of some values cannot be pickled, and why; "" if each of them can."""
    for name, value in named.items():
        try:
            encode_one(value)
        except Exception as error:  # noqa: BLE001 - whatever an object raises when it is pickled
            return f"{name} ({type(value).__qualname__}) cannot be pickled: {type(error).__name__}: {error}"
    return ""
