"""Search for modules that a function uses without the graph knowing: they would not be tuned, copied or saved.

The search reads the function's bytecode for the names that it uses, and looks at the objects behind them. It follows
functions of the same file only: further calls end in the code of other packages.
"""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias, get_args

import dspy

from dspyer.nodes.callables import members, own_call, read_signature

_CONTAINERS = (list, tuple, set, frozenset)


def hidden_problems(fn: Callable[..., Any], who: str, fix: str) -> list[str]:
    """One problem per hidden module. `fix` is the code to write instead, with `{local}` and `{name}` in it."""
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
    """What a callable leads to: by globals that it uses, closures, defaults, partials, `__self__` and attributes.

    Attributes:
        functions: the functions that were followed.
    """

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.functions: list[FunctionType] = []

    def visit(self, fn: Any, inside: str = "") -> Iterator[Found]:
        """The modules that a callable holds; `inside` names the function that uses it."""
        if id(fn) in self.seen:
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
        names = fn.__code__.co_varnames
        defaults = dict(zip(reversed(names[: fn.__code__.co_argcount]), reversed(fn.__defaults__ or ()), strict=False))
        for name, value in {**defaults, **(fn.__kwdefaults__ or {})}.items():
            yield from self.value(name, value, f"a default{inside}")
        for name, value in used_objects(fn).items():
            enclosed = name.partition(".")[0] in fn.__code__.co_freevars
            yield from self.value(name, value, f"{'its closure' if enclosed else 'a global variable'}{inside}")
            if isinstance(value, FunctionType) and _is_near(name, value, fn):
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
        elif isinstance(value, Mapping):
            for key, item in value.items():
                if isinstance(item, dspy.Module):
                    yield (f"{name}[{key!r}]", place), item
        elif isinstance(value, _CONTAINERS):
            for index, item in enumerate(value):
                if isinstance(item, dspy.Module):
                    yield (f"{name}[{index}]", place), item
        elif isinstance(value, (partial, MethodType)):
            yield from self.visit(value)


def used_objects(fn: FunctionType) -> dict[str, Any]:
    """The globals and closure cells that a function's code uses, and attributes of modules and objects among them."""
    loaded, attributes = names_of(fn.__code__)
    found = {name: fn.__globals__[name] for name in loaded if name in fn.__globals__}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the variable is assigned later
            continue
    for name, value in list(found.items()):
        if not issubclass(type(value), (FunctionType, dspy.Module)):
            owned = attributes_of(value)
            found.update({f"{name}.{key}": owned[key] for key in sorted(attributes & set(owned))})
    return found


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


def _is_near(name: str, used: FunctionType, by: FunctionType) -> bool:
    """Whether a function is followed: one of the same file, or from the closure."""
    return name.partition(".")[0] in by.__code__.co_freevars or used.__globals__ is by.__globals__


# --- mentions of a class


def mentions(fn: Callable[..., Any], target: type) -> bool:
    """Whether a function uses a class, by whatever name.

    It may be in its code, in that of functions of the same file that it calls, or in its return annotation.
    """
    search = _Search()
    deque(search.visit(fn), maxlen=0)
    return any(
        any(value is target for value in used_objects(found).values()) or _returns(found, target)
        for found in search.functions
    )


def _returns(fn: FunctionType, target: type) -> bool:
    """Whether the return annotation of a function names a class, at any depth."""
    work = list(members(read_signature(fn, "").returns))
    while work:
        part = work.pop()
        if part is target:
            return True
        work += get_args(part)
    return False
