"""Names and classes that the function of a node or router uses: read from its code, without a call.

A function is followed into the functions that it calls, two deep, as far as they are the user's own: the code of
libraries is not read, except for what their closures hold, since that is what the user gave them.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import dspy
from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable
from langgraph.pregel.protocol import PregelProtocol

from dspyer.migrate.internals import RunnableCallable, TaskFunction
from dspyer.nodes.callables import attributes_of, code_objects, own_call, used_objects

_DEPTH: Final = 2
_MOST_ITEMS: Final = 100  # of a container: models and tools are few, and data is not read
_FRAMEWORKS: Final = frozenset({"langgraph", "langchain", "langchain_core", "langsmith", "dspy", "dspyer"})
_STDLIB: Final = Path(sysconfig.get_path("stdlib"))
Source: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class UsedObject(NamedTuple):
    """An object that a function or a `Runnable` uses, with its name there."""

    name: str
    value: Any


class NodeCode(NamedTuple):
    """Findings behind a node or a router.

    Attributes:
        main: the function itself, None if there is none, as for a chain.
        functions: it and the user's functions that it calls, two deep.
        uses: the objects that they use, each once.
    """

    main: FunctionType | None
    functions: tuple[FunctionType, ...]
    uses: tuple[UsedObject, ...]

    def values(self, kind: type | tuple[type, ...]) -> list[UsedObject]:
        """The names that are used of some classes."""
        return [use for use in self.uses if is_a(use.value, kind)]

    def names(self) -> set[str]:
        """The attributes and globals that the functions name."""
        return {name for fn in self.functions for code in code_objects(fn.__code__) for name in code.co_names}

    def names_itself(self, function: object) -> bool:
        """Return whether the main function names another one, and not what it calls or holds."""
        main: Any = self.main
        return main is not None and any(value is function for value in used_objects(main).values())

    def raises(self, error: str) -> bool:
        """Return whether the source of a function raises an error of a class."""
        sources = filter(None, map(function_source, self.functions))
        found = [ast.unparse(node) for source in sources for node in ast.walk(source) if isinstance(node, ast.Raise)]
        return any(error in text for text in found)

    def constants(self) -> set[str]:
        """The texts that stand in the code of the functions."""
        codes = [code for fn in self.functions for code in code_objects(fn.__code__)]
        found = [text for code in codes for constant in code.co_consts for text in _texts(constant)]
        return set(found)


def _texts(constant: object) -> Iterator[str]:
    """The texts in a constant, which may be that of a list of texts."""
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, (tuple, frozenset)):
        for item in constant:
            yield from _texts(item)


def is_a(value: object, kind: type | tuple[type, ...]) -> bool:
    """`isinstance` that asks the object nothing: a proxy would load what it stands for, or fail."""
    return issubclass(type(value), kind)


def read_code(runnable: object) -> NodeCode:
    """Read what a node's or a router's `Runnable` uses."""
    search = _CodeSearch()
    search.visit("", runnable, 0)
    return NodeCode(main_function(runnable), tuple(search.functions), tuple(search.uses.values()))


def main_function(runnable: object) -> FunctionType | None:
    """The function that a node was made of, without partials and methods around it."""
    fn: Any = sync_or_async(runnable) if isinstance(runnable, Runnable) else runnable
    while isinstance(fn, partial):
        fn = fn.func
    if fn is not None and not isinstance(fn, (FunctionType, MethodType, Runnable)):
        fn = own_call(fn)
    fn = fn.__func__ if isinstance(fn, MethodType) else fn
    return fn if isinstance(fn, FunctionType) else None


def sync_or_async(runnable: Runnable[Any, Any]) -> Callable[..., Any] | None:
    """The function of a `Runnable` that wraps one; its async form if that is the only one."""
    own = attributes_of(runnable)  # `with_fallbacks` looks for others in what it wraps, and may fail
    return own.get("func") or own.get("afunc")


class _CodeSearch:
    def __init__(self) -> None:
        self.uses: dict[int, UsedObject] = {}
        self.functions: list[FunctionType] = []
        self.seen: dict[int, object] = {}  # with the objects, so that no id is used twice
        self.read: dict[tuple[int, int], object] = {}  # functions with the objects whose methods they are

    def visit(self, name: str, value: Any, depth: int) -> None:
        """Record an object, and go into it if it holds what a node calls."""
        if is_a(value, MethodType):
            if is_a(value.__self__, PregelProtocol):  # its `invoke`
                self.visit(name, value.__self__, depth)
            self.function(value.__func__, value.__self__, depth)
            return
        if id(value) in self.seen:
            return
        self.seen[id(value)] = value
        self.uses[id(value)] = UsedObject(name, value)
        if is_a(value, FunctionType):
            self.function(value, None, depth)
        elif is_a(value, partial):
            self.visit(name, value.func, depth)
            self.items(name, (*value.args, *value.keywords.values()), depth)
        elif is_a(value, TaskFunction):
            self.visit(name, value.func, depth)
        elif type(value) is dict:
            for key, item in islice(value.items(), _MOST_ITEMS):
                self.visit(f"{name}[{key!r}]" if is_a(key, (str, int)) else f"{name}[...]", item, depth)
        elif type(value) in (list, tuple, set, frozenset):  # others may load their items, or have no end
            self.items(name, value, depth)
        elif is_a(value, (type, ModuleType, BaseLanguageModel, dspy.Module, PregelProtocol)):
            return
        elif is_a(value, Runnable):
            for part in attributes_of(value).values():
                if is_a(part, (Runnable, FunctionType, MethodType, partial, dict, list, tuple)) or (
                    callable(part) and not is_a(part, type)
                ):
                    self.visit(name, part, depth)
        elif depth == 0 and not name:  # a callable object as a node
            self.function(own_call(value), value, depth)

    def items(self, name: str, items: Iterable[object], depth: int) -> None:
        for index, item in enumerate(islice(items, _MOST_ITEMS)):
            self.visit(f"{name}[{index}]", item, depth)

    def function(self, fn: Any, owner: object, depth: int) -> None:
        """Read a function, and what it names of the object whose method it is."""
        if not is_a(fn, FunctionType) or (id(fn), id(owner)) in self.read:
            return
        self.read[id(fn), id(owner)] = fn, owner
        # Code of a framework calls what the user gave it, which is in its closure.
        own = _top(fn) not in _FRAMEWORKS
        if own:
            self.functions.append(fn)
        named = {name for code in code_objects(fn.__code__) for name in code.co_names}
        used = used_objects(fn, defaults=True)
        used.update(_named_attributes(owner, named, "self") if owner is not None else ())
        for name, value in list(used.items()):
            if not is_a(value, (FunctionType, ModuleType, type, Runnable, dspy.Module)):
                used.update(_named_attributes(value, named, name, methods=not _is_library(type(value))))
        for name, value in used.items():
            enclosed = name.partition(".")[0] in fn.__code__.co_freevars
            if not own and not enclosed and not name.startswith("self."):
                continue
            called = value.__func__ if is_a(value, MethodType) else value
            if is_a(called, FunctionType) and not (enclosed or _is_followed(called, fn)):
                self.uses.setdefault(id(value), UsedObject(name, value))
            elif not is_a(called, FunctionType) or depth < _DEPTH:
                self.visit(name, value, depth + is_a(called, FunctionType))
        self.visit("", getattr(fn, "__wrapped__", None), depth)


def _named_attributes(
    owner: object, named: set[str], prefix: str, methods: bool = True
) -> Iterator[tuple[str, object]]:
    """The attributes of an object that code names, its methods bound."""
    own = attributes_of(owner)
    for name in sorted(named):
        if name in own:
            yield f"{prefix}.{name}", own[name]
        elif methods and is_a(found := inspect.getattr_static(type(owner), name, None), FunctionType):
            yield f"{prefix}.{name}", MethodType(found, owner)


def _top(fn: object) -> str:
    return (getattr(fn, "__module__", None) or "").partition(".")[0]


def _is_library(thing: object) -> bool:
    return _top(thing) in _FRAMEWORKS or _top(thing) == "builtins"


def _is_followed(fn: FunctionType, by: FunctionType) -> bool:
    """Return whether a function is the user's own: of the caller's package, or of no installed one."""
    if _top(fn) == _top(by):
        return True
    place = Path(fn.__code__.co_filename)
    return not ({"site-packages", "dist-packages"} & set(place.parts) or place.is_relative_to(_STDLIB))


# --- keys


class StateKeys(NamedTuple):
    """Keys of the state in the source of a function.

    Attributes:
        needed: read as `state["x"]`.
        read: read in any form: `state["x"]`, `state.get("x")`, `state.x`.
        returned: keys of the dicts that it returns, in order.
    """

    needed: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


def read_keys(runnable: object) -> StateKeys:
    """The keys that a node's function reads of its first argument, and those that it returns, read from its source."""
    fn = main_function(runnable)
    source = function_source(fn) if fn is not None else None
    if fn is None or source is None:
        return StateKeys()
    state = _first_parameter(runnable)
    needed, read = [], []
    for node in ast.walk(source):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key)), ctx=ast.Load()):
                needed += [key] if name == state else []
                read += [key] if name == state else []
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[ast.Constant(value=str(key)), *_]
            ):
                read += [key] if name == state else []
            case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Load()) if attribute != "get":
                read += [attribute] if name == state else []
    returned = [key for value in returned_values(source) for key in _dict_keys(value, source, fn)]
    return StateKeys(*(tuple(dict.fromkeys(keys)) for keys in (needed, read, returned)))


def _first_parameter(runnable: object) -> str:
    """The parameter that gets the state, after those of a partial and the object of a method."""
    called: Any = sync_or_async(runnable) if isinstance(runnable, Runnable) else runnable
    try:
        return next(iter(inspect.signature(called).parameters), "")
    except (TypeError, ValueError):  # it has no signature
        return ""


def function_source(fn: FunctionType) -> Source | None:
    """The definition of a function in its file, None if the file cannot be read or is another one by now."""
    code = fn.__code__
    column = next((start for line, _, start, _ in code.co_positions() if line == code.co_firstlineno and start), None)
    found = [
        node
        for node in _definitions("".join(linecache.getlines(code.co_filename)))
        if (min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])) == code.co_firstlineno
        and getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(found) > 1 and column is not None:  # several lambdas in one line
        found = [node for node in found if node.col_offset <= column <= (node.end_col_offset or 0)][-1:]
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=32)
def _definitions(text: str) -> tuple[Source, ...]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    )


def own_nodes(source: Source) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions in it."""
    work: list[ast.AST] = [source.body] if isinstance(source, ast.Lambda) else list(source.body)
    while work:
        node = work.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            work += ast.iter_child_nodes(node)


def returned_values(source: Source) -> Iterator[ast.expr]:
    if isinstance(source, ast.Lambda):
        yield source.body
        return
    for node in own_nodes(source):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


def _is_state_class(fn: FunctionType, name: str) -> bool:
    """Return whether a name is that of a class of the user, which a node returns as its state, and no message."""
    cls = fn.__globals__.get(name)
    return isinstance(cls, type) and not _is_library(cls)


def _dict_keys(value: ast.expr, source: Source, fn: FunctionType) -> Iterator[str]:
    """The keys of a returned dict: written out, in `Command(update=...)`, of a schema, or of a variable."""
    match value:
        case ast.Dict(keys=keys):
            for key in keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value
        case ast.IfExp(body=body, orelse=other):
            yield from _dict_keys(body, source, fn)
            yield from _dict_keys(other, source, fn)
        case ast.Call(func=ast.Name(id="Command"), keywords=keywords):
            for keyword in keywords:
                if keyword.arg == "update":
                    yield from _dict_keys(keyword.value, source, fn)
        case ast.Call(func=ast.Name(id=name), keywords=keywords) if name == "dict" or _is_state_class(fn, name):
            yield from (keyword.arg for keyword in keywords if keyword.arg)
        case ast.Name(id=variable):
            for assigned in own_nodes(source):
                match assigned:
                    case ast.Assign(targets=[ast.Name(id=target)], value=ast.Dict() as table) if target == variable:
                        yield from _dict_keys(table, source, fn)
                    case ast.Assign(
                        targets=[ast.Subscript(value=ast.Name(id=target), slice=ast.Constant(value=str(name)))]
                    ) if target == variable:
                        yield name


# Routers that are `async def`: a router of dspyer is a plain function, so that one which awaits is refused.
#
# Many are `async def` by habit and await nothing: such a coroutine ends at its first step, and needs no event loop.


def has_sync_form(path: Any) -> bool:
    """Return whether a router can be called without an event loop."""
    if not _is_async(path):
        return True
    fn = main_function(path)
    return fn is not None and inspect.iscoroutinefunction(fn) and not _awaits(fn.__code__)


def sync_form(path: Any) -> Any:
    """The router with a sync form: itself, or one that takes the single step of its coroutine."""
    if not _is_async(path):
        return path
    made = copy(path)  # it has read what the parameters ask for
    made.func = _one_step(path.afunc)
    return made


def _is_async(path: Any) -> bool:
    """Return whether a router has only an async form."""
    return isinstance(path, RunnableCallable) and path.func is None


def _awaits(code: CodeType) -> bool:
    """Tell if code awaits; `async for` and `async with` do, too. What a function inside of it awaits is its own."""
    return any(step.opname in {"GET_AWAITABLE", "GET_ANEXT"} for step in dis.get_instructions(code))


def _one_step(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        coroutine = fn(*args, **kwargs)
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        coroutine.close()
        raise AssertionError("a coroutine without an await has waited")

    return call
