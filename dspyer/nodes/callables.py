"""Read a function's signature: its parameters, their annotations, its return annotation."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, NamedTuple, Union, get_args, get_origin

from typing_extensions import is_typeddict

from dspyer.hints import signature_of

_PLAIN = (list, dict, set, bytearray)


class Parameter(NamedTuple):
    """One parameter of a function.

    Attributes:
        name: its name.
        annotation: `Any` if there is none; a part that cannot be resolved reads as `Any`.
        text: the annotation as it was written, if a part of it could not be resolved, else empty.
        default: whether it has one.
    """

    name: str
    annotation: Any = Any
    text: str = ""
    default: bool = False


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """The signature of a function that is called with keyword arguments.

    Attributes:
        parameters: what can be given by name, without `self` and without what a partial has bound.
        takes_all: whether it has `**kwargs`.
        returns: the return annotation, `Any` if there is none.
        problems: why it cannot be a node or a router, each with its fix.
    """

    parameters: tuple[Parameter, ...] = ()
    takes_all: bool = False
    returns: Any = Any
    problems: tuple[str, ...] = ()


def read_signature(
    fn: Callable[..., Any], who: str, gives: str = "one result; for partial results, `ctx.emit(value)`"
) -> FunctionSignature:
    """The signature of a function, method, partial or callable object. `who` is its name in problems."""
    source = plain_function(fn)
    if inspect.isgeneratorfunction(source) or inspect.isasyncgenfunction(source):
        return FunctionSignature(problems=(f"{who} is a generator: return {gives}",))
    try:
        signature = signature_of(fn)
    except (TypeError, ValueError) as error:
        reason = f"{who}: the parameters of {fn!r} cannot be read ({error}): wrap it in a function"
        return FunctionSignature(problems=(reason,))
    bound = _bound_names(fn)
    found: list[Parameter] = []
    problems: list[str] = []
    takes_all = False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            problems.append(f"{who} takes *{parameter.name}: name the fields that it reads as parameters")
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            problems.append(f"{who}: its parameter {parameter.name!r} is positional-only: remove the `/` behind it")
        elif parameter.name not in bound:
            annotation, text = _resolve(parameter.annotation, source)
            has_default = parameter.default is not inspect.Parameter.empty
            found.append(Parameter(parameter.name, annotation, text, has_default))
    returns, _ = _resolve(signature.return_annotation, source)
    return FunctionSignature(tuple(found), takes_all, returns, tuple(problems))


def plain_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partials, bound methods, callable objects and decorators."""
    while True:
        if isinstance(fn, partial):
            fn = fn.func
        elif isinstance(fn, MethodType):
            fn = fn.__func__
        elif not isinstance(fn, (FunctionType, type)) and isinstance(own_call(fn), FunctionType):
            fn = own_call(fn)
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            return fn


def own_call(fn: object) -> Any:
    """The `__call__` of an object's class as it was written; None if there is none."""
    return inspect.getattr_static(type(fn), "__call__", None)


def _bound_names(fn: Callable[..., Any]) -> set[str]:
    names: set[str] = set()
    while isinstance(fn, partial):
        names.update(fn.keywords)
        fn = fn.func
    return names


def _resolve(annotation: Any, fn: Callable[..., Any]) -> tuple[Any, str]:
    """The annotation as an object, and its text if a part of it cannot be resolved."""
    if annotation is inspect.Parameter.empty:
        return Any, ""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        return annotation, ""
    names = _names_of(fn)
    try:
        resolved = eval(annotation, {}, names)
    except Exception:  # noqa: BLE001 - any expression may be there; the parameter is still known by its name
        return Any, annotation
    return resolved, annotation if names.missing else ""


def _names_of(fn: Callable[..., Any]) -> _Names:
    names: dict[str, Any] = dict(getattr(fn, "__globals__", {}))
    code = getattr(fn, "__code__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(fn, "__closure__", None) or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # a cell that is filled later
            continue
    return _Names(names)


class _Names(dict[str, Any]):
    """The names that an annotation may use; a missing one reads as `Any`."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self.missing: list[str] = []

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        self.missing.append(name)
        return Any


# --- annotations


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, without `Annotated`; of anything else the annotation itself."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(found for member in get_args(annotation) for found in members(member))
    return (annotation,)


def literals(annotation: Any) -> tuple[Any, ...]:
    """All values of the `Literal`s in an annotation, at any depth, in order."""
    if get_origin(annotation) is Literal:
        return tuple(value for argument in get_args(annotation) for value in (literals(argument) or (argument,)))
    found = (value for argument in get_args(annotation) for value in literals(argument))
    return tuple(dict.fromkeys(found))


def gives_literals_alone(annotation: Any) -> bool:
    """Whether an annotation consists of `Literal`s and lists of them alone."""
    return all(
        get_origin(member) is Literal
        or (get_origin(member) in (list, tuple) and all(map(gives_literals_alone, get_args(member))))
        for member in members(annotation)
    )


def wants_copy(annotation: Any) -> bool:
    """Whether a parameter of this type gets a plain copy, not a frozen view. A model is a copy in any case."""
    for member in members(annotation):
        kind = get_origin(member) or member
        if is_typeddict(kind):
            return True
        if isinstance(kind, type) and issubclass(kind, _PLAIN):
            return True
    return False


def class_of(annotation: Any) -> type | None:
    """The class in an annotation such as `Client`, `Client | None` or `Client[int]`; else None."""
    kinds = [get_origin(member) or member for member in members(annotation) if member not in (None, NoneType)]
    return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) else None


def giving(value: Any) -> Callable[[], Any]:
    """A function that returns a value."""

    def constant() -> Any:
        return value

    return constant
