"""Where the code of a router or node goes, as far as its source says it: the names, and whether there may be others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from dspyer.migrate.code_reading import NodeCode, function_source, own_nodes, returned_values

_DEPTH: Final = 2  # as far as functions are followed for what they use
_ADDING: Final = frozenset({"append", "extend", "insert", "add", "update"})
_ASSIGNMENTS: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
_MISSING: Final = object()
_Source: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class TargetsRead(NamedTuple):
    """What the source of a function says of where it goes.

    Attributes:
        names: the texts that it may return, or give as `goto`.
        complete: whether there are no others; `return state["next"]` may be any node.
    """

    names: frozenset[str] = frozenset()
    complete: bool = True


def read_router(code: NodeCode) -> TargetsRead | None:
    """Where a router goes; None if its source cannot be read."""
    main: Any = code.main  # mypy takes a function in an attribute for a method
    source = None if main is None else function_source(main)
    return None if source is None else _read((value, source, main) for value in returned_values(source))


def read_commands(code: NodeCode) -> TargetsRead | None:
    """Where the `Command`s lead that a node makes, in its function or in those that it calls; None without a source."""
    sources = [(function_source(fn), fn) for fn in code.functions]
    if any(source is None for source, _ in sources):
        return None
    calls = [
        (call, source, fn)
        for source, fn in sources
        if source is not None
        for call in ast.walk(source)
        if isinstance(call, ast.Call) and _called(call) == "Command"
    ]
    found = [(goto, source, fn) for call, source, fn in calls for goto in _goto(call)]
    return _read(found) if calls else None


def _goto(call: ast.Call) -> Iterator[ast.expr]:
    """What a call of `Command` goes to, and what may hide it: `**options`."""
    yield from (keyword.value for keyword in call.keywords if keyword.arg in ("goto", None))


def _called(call: ast.Call) -> str:
    """The last name of what is called: `types.Send(...)` is a `Send`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _read(values: Iterable[tuple[ast.expr, _Source, FunctionType]]) -> TargetsRead:
    names: set[str] = set()
    complete = True
    for value, source, fn in values:
        reader = _TargetReader(source, fn, _DEPTH)
        reader.expression(value)
        names |= reader.names
        complete = complete and reader.complete
    return TargetsRead(frozenset(names), complete)


class _TargetReader:
    """Reads what one expression of a function may be. `complete` turns False at the first that is computed."""

    def __init__(self, source: _Source, fn: FunctionType, depth: int) -> None:
        self.source, self.fn, self.depth = source, fn, depth
        self.names: set[str] = set()
        self.complete = True
        self.read: set[str] = set()

    def expression(self, expr: ast.expr) -> None:
        match expr:
            case ast.Constant(value=value):
                self.value(value)
            case ast.Name(id=name):
                self.variable(name)
            case ast.Attribute():
                self.value(self.resolved(expr))
            case ast.IfExp(body=first, orelse=second):
                self.all(first, second)
            case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                self.all(*parts)
            case ast.BinOp(left=first, op=ast.Add(), right=second) if _is_list(first) or _is_list(second):
                self.all(first, second)
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.SetComp(elt=part):
                self.expression(part)
            case ast.Starred(value=part) | ast.Await(value=part) | ast.NamedExpr(value=part):
                self.expression(part)
            case ast.Subscript(value=table):
                self.table(table)
            case ast.Call():
                self.call(expr)
            case _:
                self.complete = False

    def all(self, *parts: ast.expr) -> None:
        for part in parts:
            self.expression(part)

    def value(self, value: object) -> None:
        """What a name outside of the function stands for."""
        if isinstance(value, Enum):
            value = value.value
        if type(value) is str:
            self.names.add(value)
        elif type(value) in (list, tuple, set, frozenset):
            for item in value:  # type: ignore[attr-defined]  # it is one of these
                self.value(item)
        elif value is not None:
            self.complete = False

    def variable(self, name: str) -> None:
        """A variable of the function is what is assigned to it or put into it; any other is looked up."""
        if name in self.read:
            return
        self.read.add(name)
        given = self.source.args
        if name in {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}:
            self.complete = False
            return
        stored = [node for node in own_nodes(self.source) if _is_name(node, name) and isinstance(node.ctx, ast.Store)]
        if not stored:
            self.value(self.resolved(ast.Name(id=name)))
            return
        self.all(*self.given_to(name))
        # A loop, `with`, `except` or an unpacked value also gives it one, which is none of these.
        assigned = [node for node in own_nodes(self.source) if isinstance(node, _ASSIGNMENTS) and _assigns(node, name)]
        self.complete = self.complete and len(assigned) == len(stored)

    def given_to(self, name: str) -> Iterator[ast.expr]:
        """What is assigned to a variable, or put into the list that it is."""
        for node in own_nodes(self.source):
            match node:
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr() if _assigns(node, name):
                    yield from [node.value] if node.value is not None else []
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=target))], value=value) if target == name:
                    yield value
                case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr=method), args=[*_, added]) if (
                    target == name and method in _ADDING
                ):
                    yield added

    def resolved(self, expr: ast.expr) -> object:
        """The value of a name or of an attribute of a class or module, now; a plain object may change its own."""
        match expr:
            case ast.Name(id=name) if name in self.fn.__code__.co_freevars:
                cell = (self.fn.__closure__ or ())[self.fn.__code__.co_freevars.index(name)]
                try:
                    return cell.cell_contents
                except ValueError:  # it is assigned later
                    return _MISSING
            case ast.Name(id=name):
                return self.fn.__globals__.get(name, _MISSING)
            case ast.Attribute(value=owner, attr=name):
                found = self.resolved(owner)
                return getattr(found, name, _MISSING) if isinstance(found, (type, Enum)) else _MISSING
        return _MISSING

    def table(self, table: ast.expr) -> None:
        """What is looked up in a table: one of its values."""
        found: Any = self.resolved(table)
        if isinstance(table, ast.Dict):
            self.all(*table.values)
        elif type(found) is dict or isinstance(found, Mapping):
            self.value(list(found.values()))
        elif isinstance(table, ast.Name) and table.id in self.fn.__code__.co_varnames:
            assigned = list(self.given_to(table.id))
            self.all(*(value for one in assigned if isinstance(one, ast.Dict) for value in one.values))
            self.complete = self.complete and bool(assigned) and all(isinstance(one, ast.Dict) for one in assigned)
        else:
            self.complete = False

    def call(self, call: ast.Call) -> None:
        match call:
            case ast.Call(func=ast.Name(id="Send") | ast.Attribute(attr="Send"), args=[target, *_]):
                self.expression(target)
            case ast.Call(func=ast.Name(id="Send") | ast.Attribute(attr="Send"), keywords=keywords):
                self.all(*(keyword.value for keyword in keywords if keyword.arg == "node"))
            case ast.Call(func=ast.Name(id="Command") | ast.Attribute(attr="Command")):
                self.all(*_goto(call))
            case ast.Call(func=ast.Name(id="list" | "tuple" | "set" | "sorted"), args=args):
                self.all(*args)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[_, *default]):
                self.table(table)
                self.all(*default)
            case ast.Call(func=ast.Name() as name):
                self.function(self.resolved(name))
            case _:
                self.complete = False

    def function(self, fn: object) -> None:
        source = function_source(fn) if isinstance(fn, FunctionType) and self.depth else None
        if not isinstance(fn, FunctionType) or source is None:
            self.complete = False
            return
        inner = _TargetReader(source, fn, self.depth - 1)
        for value in returned_values(source):
            inner.expression(value)
        self.names |= inner.names
        self.complete = self.complete and inner.complete


def _is_list(expr: ast.expr) -> bool:
    return isinstance(expr, (ast.List, ast.ListComp))


def _is_name(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id == name


def _assigns(node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr, name: str) -> bool:
    """Whether a variable is all that an assignment changes."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return len(targets) == 1 and _is_name(targets[0], name)
