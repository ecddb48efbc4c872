"""The bytes that the caller of a program and a worker of an executor send each other.

They are made by cloudpickle, so that functions and classes that no import finds are sent by value: those of a script,
of a notebook, of a function. What the caller has is sent back as a name: the program, its modules, its graph, and the
classes that it has sent by value. So a trace and a run that a worker returns refer to the objects of the caller, and
are small. (Of a class that comes back by value, cloudpickle would set every attribute of the caller's class anew.)
"""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import io
import pickle
import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from operator import itemgetter
from threading import Lock
from typing import Any, cast
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle
import dspy
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dspyer.errors import error_text
from dspyer.lm.parameters import HOLDING, RECORDS
from dspyer.lm.source import reduce_program
from dspyer.lm.tracing import REJECTED, rejected_copy

LARGE = 1000
"""Characters or bytes of an input from which on it comes back as a name."""

Parts = dict[Hashable, Any]
"""What the bytes hold as names only, by name."""


def encode_sent(value: object) -> bytes:
    """The bytes of a value for a worker. Raises whatever a part of the value raises."""
    file = io.BytesIO()
    _Pickler(file, returning=False).dump(value)
    return file.getvalue()


def encode_returned(value: object, parts: Parts) -> bytes:
    """The bytes of a value for the caller, with a name for each of the parts. Raises whatever the value raises."""
    file = io.BytesIO()
    _NamingPickler(file, parts).dump(value)
    return file.getvalue()


def decode(data: bytes, parts: Parts | None = None) -> Any:
    """The value of some bytes, with the parts in the place of their names."""
    return _Unpickler(io.BytesIO(data), parts or {}).load()


class _Pickler(cloudpickle.Pickler):
    """Makes bytes without the histories of language models, callbacks, and what optimizers have left on a program.

    Args:
        file: gets the bytes.
        returning: whether the bytes are for the process that has sent the classes.
        error: the exception that is being pickled; others are pickled by themselves, in case that they cannot be.
    """

    def __init__(self, file: io.BytesIO, *, returning: bool, error: BaseException | None = None) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._returning = returning
        self._error = error

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type):
            return self._reduce_class(value)
        if isinstance(value, (dspy.BaseLM, dspy.Adapter)):
            return _without_records(value).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if isinstance(value, BaseException):
            return _reduce_error(value) if value is self._error else (_load_error, self._error_parts(value))
        if isinstance(value, dspy.Module) and hasattr(type(value), "_dspyer_program"):
            call, arguments, _ = reduce_program(value)
            return call, arguments, sent_state(value)
        if isinstance(value, FieldInfo) and isinstance(getattr(value, "_original_assignment", None), FieldInfo):
            return _without_origin(value).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if value is dataclasses.MISSING:  # of a dataclass that is sent by value: it is known by its identity
            return "MISSING"
        return super().reducer_override(value)

    def _reduce_class(self, kind: type) -> Any:
        if self._returning and kind in _keys:
            return _known_class, (_keys[kind],)
        found = super().reducer_override(kind)
        if self._returning or not isinstance(found, tuple) or len(found) != 6:
            return found
        make, arguments, state, *_, set_state = found  # by value
        return _load_class, (_key_of(kind), make, *arguments), (set_state, state), None, None, _set_state

    def _error_parts(self, error: BaseException) -> tuple[bytes, str, str, tuple[str, ...], BaseException | None]:
        """Bytes of an exception, incomplete if it cannot be pickled; its text, traceback, notes and cause."""
        file = io.BytesIO()
        with suppress(Exception):
            _Pickler(file, returning=self._returning, error=error).dump(error)
        text = f"{type(error).__qualname__}: {error_text(error)}"
        shown = "" if error.__traceback__ is None else "".join(traceback.format_exception(error))
        return file.getvalue(), text, shown, tuple(getattr(error, "__notes__", ())), error.__cause__


class _NamingPickler(_Pickler):
    def __init__(self, file: io.BytesIO, parts: Parts) -> None:
        super().__init__(file, returning=True)
        # By identity: an equal object of the worker is its own, and comes back as bytes.
        self._names = {id(part): name for name, part in parts.items()}
        self._parts = parts

    def persistent_id(self, value: object) -> Hashable:
        return self._names.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        # What marks the copy of a predictor whose output was refused is the id of that predictor.
        name = self._names.get(vars(value).get(REJECTED)) if isinstance(value, dspy.Predict) else None
        return super().reducer_override(value) if name is None else (rejected_copy, (self._parts[name],))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: Parts) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, name: Any) -> Any:
        return self._parts[name]


# --- classes that are sent by value

_lock = Lock()
_keys: WeakKeyDictionary[type, str] = WeakKeyDictionary()
_classes: WeakValueDictionary[str, type] = WeakValueDictionary()
_received: WeakValueDictionary[str, type] = WeakValueDictionary()  # of these, those of another process


def _key_of(kind: type) -> str:
    """The key under which a worker returns a class that it has got by value."""
    with _lock:
        key = _keys.get(kind)
        if key is None:
            key = _keys[kind] = uuid4().hex
            _classes[key] = kind
        return key


def _load_class(key: str, make: Callable[..., type], *arguments: Any) -> type:
    with _lock:
        known = _classes.get(key)
    if known is not None:
        return known
    kind = make(*arguments)
    # Made without the lock, since making it may load other classes: of two threads that make it, the first one counts.
    with _lock:
        kind = _classes.setdefault(key, kind)
        _received[key] = kind
        _keys[kind] = key
    return kind


def _set_state(kind: type, found: tuple[Callable[[type, Any], object], Any]) -> None:
    """Gives a class its attributes, each time that it comes: they may have changed. A class of this process has its."""
    set_state, state = found
    if _keys.get(kind) in _received:
        set_state(kind, state)


def _known_class(key: str) -> type:
    return _classes[key]


# --- programs


def sent_state(program: dspy.Module) -> dict[str, Any]:
    """The attributes of a program that its runs need: its modules and its graph, and not what optimizers left on it."""
    state: dict[str, Any] = program.__getstate__()
    return {name: value for name, value in state.items() if name.startswith("_") or isinstance(value, dspy.Module)}


def parts_of(program: dspy.Module) -> Parts:
    """The modules of a program and its graphs by name. A copy of the program has the same names."""
    found: Parts = {}
    seen: set[int] = set()
    open_parts: list[tuple[str, Any]] = [("", program)]
    for path, part in open_parts:  # grows meanwhile
        if id(part) in seen:
            continue
        seen.add(id(part))
        inner: Iterable[tuple[object, Any]]
        if isinstance(part, dspy.Module):
            found[path] = part
            is_graph = hasattr(type(part), "_dspyer_program")
            if is_graph:
                graph = part._graph
                found[f"{path}#graph"], found[f"{path}#topology"] = graph, graph.topology
                found[f"{path}#schema"], found[f"{path}#redaction"] = graph.topology.schema, graph.redaction
            attributes = sent_state(part) if is_graph else vars(part)
            # Sorted, since the attributes of a copy may have another order.
            inner = sorted([one for one in attributes.items() if one[0] not in RECORDS], key=itemgetter(0))
        else:  # by number: the key of a dict may have another text in another process, as a function and a set have
            inner = enumerate(part.values() if isinstance(part, dict) else part)
        open_parts += [(f"{path}.{name!r}", one) for name, one in inner if isinstance(one, HOLDING)]
    return {name: part for name, part in found.items() if part is not None}


def large_inputs(inputs: Mapping[str, Any]) -> Parts:
    """The long texts and bytes in the inputs of a call by number, the same on both sides: a run has them again."""
    found: Parts = {}
    seen: set[int] = set()
    containers: list[Any] = [inputs]
    for container in containers:  # grows meanwhile
        if id(container) in seen:
            continue
        seen.add(id(container))
        for value in container.values() if isinstance(container, Mapping) else container:
            if type(value) in (str, bytes):
                if len(value) >= LARGE:
                    found["input", len(found)] = value
            elif type(value) in (dict, list, tuple):
                containers.append(value)
    return found


def _without_records(value: Any) -> Any:
    """A language model or an adapter without its history and callbacks."""
    twin = copy.copy(value)
    for name in RECORDS:
        if vars(twin).get(name):
            setattr(twin, name, [])
    return twin


def _without_origin(field: FieldInfo) -> FieldInfo:
    """A field without the one that it was made from, and that one's.

    pydantic needs it for a field whose annotation is not known yet. Each time that an optimizer changes instructions,
    DSPy makes the fields of a signature from those before: 300 times, and pickling them all would be too deep.
    """
    twin: Any = copy.copy(field)
    if twin._complete:
        twin._original_assignment = PydanticUndefined
    return cast(FieldInfo, twin)


# --- exceptions


class WorkerTraceback(Exception):  # noqa: N818  # it is the cause of an error, and says where that was raised
    """The traceback of an exception that a worker has raised, as text."""

    def __str__(self) -> str:
        return f"\n\nin a worker:\n{self.args[0]}"


def _reduce_error(error: BaseException) -> Any:
    """The parts from which an exception is made again: without its `__init__`, unless it says how itself.

    Python would call it with `args`, which are what it has passed on to `Exception`, and not what it takes: the errors
    of DSPy's adapters, of LiteLLM and of OpenAI could not be loaded, and others would get their text twice.
    """
    kind = type(error)
    built_in = _built_in(kind)
    inherits = kind.__reduce__ is built_in.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__
    inherits = inherits and kind.__new__ is built_in.__new__
    if not inherits or kind in copyreg.dispatch_table:
        return NotImplemented
    _, *parts = cast(tuple[Any, ...], error.__reduce__())
    return _new_error, (kind, parts[0]), *parts[1:]


def _new_error(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    built_in = _built_in(kind)
    error: BaseException = built_in.__new__(kind, *args)
    built_in.__init__(error, *args)  # sets what is no attribute of Python, as the `value` of `StopIteration`
    return error


def _built_in(kind: type[BaseException]) -> Any:
    return next(one for one in kind.__mro__ if one.__module__ == "builtins")


def _load_error(
    data: bytes, text: str, shown: str, notes: tuple[str, ...], cause: BaseException | None
) -> BaseException:
    """The exception; one that cannot be loaded becomes a `RuntimeError`. Its cause says where it was raised."""
    error: BaseException | None = None
    with suppress(Exception):
        error = decode(data)
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


def what_fails(named: Mapping[str, Any]) -> str:
    """Says which of some values cannot be pickled, and why; "" if each of them can."""
    for name, value in named.items():
        try:
            encode_sent(value)
        except Exception as error:  # noqa: BLE001 - whatever an object raises when it is pickled
            return f"{name} ({type(value).__qualname__}) cannot be pickled: {type(error).__name__}: {error}"
    return ""
