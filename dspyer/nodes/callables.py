"""Read a function's signature: its parameters, their annotations, its return annotation."""

from __future__ import annotations

import builtins
import dis
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Annotated, Any, ForwardRef, Literal, NamedTuple, TypeAlias, get_args, get_origin

import dspy
from typing_extensions import is_typeddict

from dspyer.hints import UNIONS, signature_of

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
    """The signature of a function, method, partial or callable object.

    Args:
        fn: what is called with keyword arguments.
        who: its name in problems.
        gives: what it should return, in the problem of a generator.

    Returns:
        The signature, with what is wrong with it.

    Example:
        >>> read_signature(lambda question, k=3: None, "node 'search'").parameters[
        ...     1]
        Parameter(name='k', annotation=typing.Any, text='', default=True)
    """
    source = plain_function(fn)
    code = source.__code__ if isinstance(source, FunctionType) else None
    if code is not None and code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
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
        # By the class: a proxy or a mock answers `fn.__call__` with anything.
        elif not isinstance(fn, (FunctionType, type)) and isinstance(own_call(fn), FunctionType):
            fn = own_call(fn)
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            return fn


def own_call(fn: object) -> Any:
    """The `__call__` of an object's class as it was written; None if there is none, as for a plain function."""
    return None if isinstance(fn, FunctionType) else inspect.getattr_static(type(fn), "__call__", None)


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
    names = _Names(fn)
    try:
        resolved = eval(_compiled(annotation), {}, names)
    except Exception:  # noqa: BLE001 - any expression may be there; the parameter is still known by its name
        return Any, annotation
    return resolved, annotation if names.missing else ""


@lru_cache(maxsize=256)
def _compiled(annotation: str) -> CodeType:
    """The code of an annotation: programs write few different ones, and to compile one takes longer than all else."""
    return compile(annotation.strip(), "<annotation>", "eval")


class _Names(dict[str, Any]):
    """The names that an annotation of a function may use, looked up where the function itself would look for them.

    One that is missing reads as `Any`. The dict itself stays empty: a copy of all globals would be made for two names.
    """

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.missing: list[str] = []

    def __missing__(self, name: str) -> Any:
        code: Any = getattr(self.fn, "__code__", None)
        if name in getattr(code, "co_freevars", ()):
            try:
                return self.fn.__closure__[code.co_freevars.index(name)].cell_contents
            except ValueError:  # a cell that is filled later
                pass
        found = getattr(self.fn, "__globals__", {}).get(name, self)
        if found is self:
            # A mapping that answers for each name hides the builtins from `eval`.
            found = getattr(builtins, name, self)
        if found is self:
            self.missing.append(name)
            return Any
        return found


# --- annotations


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, without `Annotated`; of anything else the annotation itself."""
    origin = get_origin(annotation)
    if origin is None:
        return (annotation,)
    if origin is Annotated:
        return members(get_args(annotation)[0])
    if origin in UNIONS:
        return tuple(found for member in get_args(annotation) for found in members(member))
    return (annotation,)


def names_class(annotation: Any, cls: type) -> bool:
    """Return whether an annotation names a class, at any depth."""
    return annotation is cls or any(names_class(part, cls) for part in get_args(annotation))


def literals(annotation: Any) -> tuple[Any, ...]:
    """All values of the `Literal`s in an annotation, at any depth, in order."""
    if get_origin(annotation) is Literal:
        return tuple(value for argument in get_args(annotation) for value in (literals(argument) or (argument,)))
    found = (value for argument in get_args(annotation) for value in literals(argument))
    return tuple(dict.fromkeys(found))


def gives_literals_alone(annotation: Any) -> bool:
    """Return whether an annotation consists of `Literal`s and lists of them alone."""
    return all(
        get_origin(member) is Literal
        or (get_origin(member) in (list, tuple) and all(map(gives_literals_alone, get_args(member))))
        for member in members(annotation)
    )


def wants_copy(annotation: Any) -> bool:
    """Return whether a parameter of this type gets a plain copy, not a frozen view. A model is a copy in any case."""
    kinds = [get_origin(member) or member for member in members(annotation)]
    return any(is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, _PLAIN)) for kind in kinds)


def class_of(annotation: Any) -> type | None:
    """The class in an annotation such as `Client`, `Client | None` or `Client[int]`; else None."""
    kinds = [get_origin(member) or member for member in members(annotation) if member not in (None, NoneType)]
    return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) else None


def giving(value: Any) -> Callable[[], Any]:
    """A function that returns a value."""
    return lambda: value


# Search for modules that a function uses without the graph knowing: they would not be tuned, copied or saved.
#
# The search reads the function's bytecode for the names that it uses, and looks at the objects behind them. It follows
# functions of the same file only: further calls end in the code of other packages.


_CONTAINERS = (list, tuple, set, frozenset)


def hidden_problems(fn: Callable[..., Any], who: str, fix: str) -> list[str]:
    """One problem per module that a function uses and the graph does not see.

    Args:
        fn: the function.
        who: its name in problems.
        fix: the code to write instead, with `{local}` and `{name}` in it.

    Returns:
        The problems.

    Example:
        >>> hidden_problems(len, "the rule", "give the module itself, {name}")
        []
    """
    problems = []
    found = {id(module): hidden for hidden, module in _Search().visit(fn)}  # each once, in the order of the search
    for name, place in found.values():
        local = "".join(c if c.isalnum() else "_" for c in name.rpartition(".")[2]).strip("_").lower() or "module"
        problems.append(
            f"{who} uses the dspy.Module {name!r} ({place}), which the graph does not see, so that it would be neither "
            f"tuned nor copied nor saved: {fix.format(local=local, name=name)}"
        )
    return problems


Found: TypeAlias = tuple[tuple[str, str], dspy.Module]
"""A module, with its name in the code and where it was found."""


class _Search:
    """Objects behind a callable: by globals that it uses, closures, defaults, partials, `__self__` and attributes."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.functions: list[FunctionType] = []

    def visit(self, fn: Any, inside: str = "") -> Iterator[Found]:
        """The modules that a callable holds; `inside` names the function that uses it."""
        # Functions may call each other.
        if fn is None or id(fn) in self.seen:
            return
        self.seen.add(id(fn))
        if isinstance(fn, partial):
            positional = {f"argument_{number}": value for number, value in enumerate(fn.args, 1)}
            for name, value in {**positional, **fn.keywords}.items():
                yield from self.value(name, value, "an argument of functools.partial")
            yield from self.visit(fn.func, inside)
        elif isinstance(fn, MethodType):
            yield from self.owner(fn.__self__)
            yield from self.visit(fn.__func__, inside)
        elif isinstance(fn, FunctionType):
            yield from self.function(fn, inside)
        elif not isinstance(fn, type):
            yield from self.owner(fn)
            yield from self.visit(own_call(fn), inside)
            yield from self.visit(getattr(fn, "__wrapped__", None), inside)

    def function(self, fn: FunctionType, inside: str) -> Iterator[Found]:
        self.functions.append(fn)
        for name, value in defaults_of(fn).items():
            yield from self.value(name, value, f"a default{inside}")
        for name, value in used_objects(fn).items():
            enclosed = name.partition(".")[0] in fn.__code__.co_freevars
            yield from self.value(name, value, f"{'its closure' if enclosed else 'a global variable'}{inside}")
            # What is followed: functions of the same file, and those from the closure.
            if isinstance(value, FunctionType) and (enclosed or value.__globals__ is fn.__globals__):
                yield from self.visit(value, f", used by {value.__name__}")
        yield from self.visit(getattr(fn, "__wrapped__", None), inside)

    def owner(self, owner: object) -> Iterator[Found]:
        if isinstance(owner, dspy.Module):
            yield (type(owner).__name__, "the object of the method"), owner
            return
        if isinstance(owner, (FunctionType, ModuleType)):
            return
        for name, value in attributes_of(owner).items():
            yield from self.value(name, value, f"an attribute of {type(owner).__name__}")

    def value(self, name: str, value: object, place: str) -> Iterator[Found]:
        if isinstance(value, dspy.Module):
            yield (name, place), value
        elif isinstance(value, (Mapping, *_CONTAINERS)):
            for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
                if isinstance(item, dspy.Module):
                    yield (f"{name}[{key!r}]", place), item
        elif isinstance(value, (partial, MethodType)):
            yield from self.visit(value)


def defaults_of(fn: FunctionType) -> dict[str, Any]:
    """The default values of a function by parameter."""
    positional, values = fn.__code__.co_varnames[: fn.__code__.co_argcount], fn.__defaults__ or ()
    return {**dict(zip(reversed(positional), reversed(values), strict=False)), **(fn.__kwdefaults__ or {})}


def used_objects(fn: FunctionType, *, defaults: bool = False) -> dict[str, Any]:
    """The globals and closure cells that a function's code uses, and attributes of modules and objects among them.

    With `defaults`, also the default values of its parameters.
    """
    loaded, attributes = names_of(fn.__code__)
    found = {name: fn.__globals__[name] for name in loaded if name in fn.__globals__}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the variable is assigned later
            continue
    # One level of attributes, `self.client.ask`: what is deeper would need the code to be run.
    for name, value in list(found.items()):
        if not issubclass(type(value), (FunctionType, dspy.Module)):
            owned = attributes_of(value)
            found.update({f"{name}.{key}": owned[key] for key in sorted(attributes & set(owned))})
    return {**found, **defaults_of(fn)} if defaults else found


@lru_cache(maxsize=1024)
def names_of(code: CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The globals that code loads, in their order, and all names in it; equal code has equal ones."""
    loaded: dict[str, None] = {}
    names: set[str] = set()
    for part in code_objects(code):
        names.update(part.co_names)
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                loaded[instruction.argval] = None
    return tuple(loaded), frozenset(names)


def attributes_of(value: object) -> Mapping[str, Any]:
    try:
        return dict(object.__getattribute__(value, "__dict__"))  # a proxy's own: it is not asked for its object
    except AttributeError:  # it has none
        return {}


def code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


# --- mentions of a class


def mentions(fn: Callable[..., Any], target: type) -> bool:
    """Return whether a function uses a class, by whatever name.

    It may be in its code, in that of functions of the same file that it calls, or in its return annotation.
    """
    # The search is a generator of modules; here only the functions that it has followed are wanted.
    search = _Search()
    deque(search.visit(fn), maxlen=0)
    return any(
        any(value is target for value in used_objects(found).values())
        or names_class(read_signature(found, "").returns, target)
        for found in search.functions
    )
