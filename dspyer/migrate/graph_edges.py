"""Where the nodes of a LangGraph may lead: by edges, routers and `Command`s, and which nodes a run may reach."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from langgraph.constants import END, START
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send, interrupt

from dspyer.errors import list_names
from dspyer.migrate.code_reading import NodeCode, function_source, own_nodes, read_code, returned_values
from dspyer.migrate.converted_node import Targets
from dspyer.migrate.unsupported import Findings, names_parent

# Where the code of a router or node goes, as far as its source says it: the names, and whether there may be others.


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


class GraphEdges:
    """The edges of a `StateGraph`. What is read from code is a note in `findings`.

    Attributes:
        static: by node, the nodes to which its edges lead, in the order of their names.
        reached: the nodes that a run may reach, in the order in which they were added.
    """

    def __init__(
        self,
        builder: Any,
        routes: Mapping[str, Sequence[str]],
        goto: Mapping[str, Sequence[str]],
        findings: Findings,
        inside: str,
    ) -> None:
        self.builder, self.routes, self.goto = builder, routes, goto
        self.findings, self.inside = findings, inside
        self.static = self._static()
        self._routed = {source: self._read_routes(source) for source in builder.branches}
        self._commanded = {name: self._read_commands(name) for name in builder.nodes}
        self.reached = self._reached()

    def routed(self, source: str) -> list[str]:
        """The nodes to which the routers of a node may lead."""
        return self._routed.get(source, [])

    def commanded(self, source: str) -> list[str]:
        """The nodes to which a `Command` of a node, or of its error handler, may lead."""
        handler = self.handler(source)
        return list(dict.fromkeys([*self._commanded.get(source, []), *self._commanded.get(handler, [])]))

    def handler(self, source: str) -> str:
        """The error handler of a node, which LangGraph keeps as a node without edges; empty for none."""
        return (source in self.builder.nodes and self.builder.nodes[source].error_handler_node) or ""

    def ends(self, source: str) -> tuple[str, ...]:
        """All nodes to which a node may lead, each once."""
        return tuple(dict.fromkeys([*self.static.get(source, ()), *self.routed(source), *self.commanded(source)]))

    def _static(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, set[str]] = {}
        joins = [(start, end) for starts, end in self.builder.waiting_edges for start in starts]
        for start, end in [*self.builder.edges, *joins]:
            found.setdefault(start, set()).add(end)
        return {start: tuple(sorted(ends - {END})) for start, ends in found.items()}

    def _read_routes(self, source: str) -> list[str]:
        found: list[str] = []
        for label, branch in self.builder.branches[source].items():
            who = f"the router {label!r} of {source!r}{self.inside}"
            if source in self.routes:
                found += self.routes[source]
            elif not branch.ends:
                found += self._router_names(branch.path, who)
            else:
                found += branch.ends.values()
                may_send = any(use.value is Send for use in read_code(branch.path).uses)  # without naming it
                found += self._router_names(branch.path, who) if may_send else ()
        return list(dict.fromkeys(found))

    def _read_commands(self, name: str) -> list[str]:
        spec = self.builder.nodes[name]
        if name in self.goto:
            return list(self.goto[name])
        if spec.ends:
            return list(spec.ends)
        handles = [source for source in self.builder.nodes if self.handler(source) == name]
        who = f"the error handler of {list_names(handles)}" if handles else f"node {name!r}{self.inside}"
        code = read_code(spec.runnable)
        returns = code.values((Command, Send)) or any(
            use.value in (Command, Send) for use in code.uses if callable(use.value)
        )
        found = self._command_names(spec.runnable, who) if returns else []
        # A graph that the node calls may leave it by a Command to the parent, which goes on here.
        called: list[Any] = [use.value for use in code.values(CompiledStateGraph)]
        for graph in called:
            for inner in graph.builder.nodes.values():
                found += self._command_names(inner.runnable, who) if names_parent(read_code(inner.runnable)) else []
        return list(dict.fromkeys(found))

    def _router_names(self, path: Any, who: str) -> list[str]:
        """The nodes to which a router without a path map may lead."""
        code = read_code(path)
        return self._named_in(code.constants(), read_router(code), who, "routes")

    def _command_names(self, runnable: Any, who: str) -> list[str]:
        """The nodes to which the `Command`s of a node may lead."""
        code = read_code(runnable)
        return self._named_in(code.constants(), read_commands(code), who, "goto")

    def _named_in(self, constants: set[str], read: TargetsRead | None, who: str, option: str) -> list[str]:
        """The nodes that code names; all of them if it names none, or computes one.

        Args:
            constants: the texts in the code.
            read: where its source goes; None if that could not be read.
            who: whose code it is, for the note.
            option: the option that names targets, for the note.
        """
        complete = read is not None and read.complete
        names = read.names if read is not None and complete else constants
        found = [name for name in self.builder.nodes if name in names]
        if complete and not names - {END}:
            return []
        if found and (complete or read is None):
            self.findings.note(f"{who} may go to {', '.join(found)}: read from its code")
            return found
        why = "computes where it goes" if found else "names none"
        self.findings.note(f"{who} may go to any node: its code {why}; {option}= names them")
        return [name for name, spec in self.builder.nodes.items() if not spec.is_error_handler]

    def _reached(self) -> list[str]:
        seen: set[str] = set()
        work = [START]
        while work:
            source = work.pop()
            if source not in seen:
                seen.add(source)
                targets = [*self.static.get(source, ()), *self.routed(source), *self.commanded(source)]
                work += [target for target in targets if target in self.builder.nodes]
        return [name for name in self.builder.nodes if name in seen]


# What a conversion leaves out, or does in another way, as notes.


def note_what_is_left_out(
    given: Any, builder: Any, edges: GraphEdges, targets: Targets, findings: Findings, path: str
) -> None:
    """Add a note for each part of a graph that a conversion leaves out.

    `given` is the graph as it was given, `path` names the node that it is, with a dot after it.
    """
    inside = f" in the graph {path.removesuffix('.')!r}" if path else ""
    if isinstance(given, CompiledStateGraph):
        _note_compiled(given, targets, findings, inside)
    if builder.waiting_edges or any(spec.defer for spec in builder.nodes.values()):
        findings.note(
            f"barriers and `defer`{inside} are left out: a node waits for all branches that can still reach it"
        )
    if any(spec.metadata or spec.trace_policy for spec in builder.nodes.values()):
        findings.note(f"metadata and trace policies of nodes{inside} are left out")
    for name in edges.reached:
        _note_policies(name, builder, edges, targets, findings, path)
    _note_questions(builder, targets, findings, inside)
    left = [name for name, spec in builder.nodes.items() if name not in edges.reached and not spec.is_error_handler]
    if left:
        findings.note(f"left out{inside}, since no edge leads there: {', '.join(map(repr, left))}")


def _note_compiled(compiled: Any, targets: Targets, findings: Findings, inside: str) -> None:
    """Add notes on what `compile()` of LangGraph was given. The breakpoints of a graph inside are kept."""
    if compiled.cache:
        findings.note(f"the cache{inside} is left out: results of nodes are kept in Cache(folder=...)")
    if compiled.step_timeout is not None:
        findings.note(f"step_timeout{inside} is left out: give nodes a timeout, or a run a budget of seconds")
    config = compiled.config or {}
    kept = {"configurable", "recursion_limit"} if inside else {"configurable"}
    left = [key for key, value in config.items() if value and key not in kept]
    if left:
        fix = f": write compile(max_steps={config['recursion_limit']})" if "recursion_limit" in left else ""
        findings.note(f"{', '.join(left)} of the config that the graph{inside} was bound to are left out{fix}")
    if inside:
        return
    if compiled.checkpointer:
        findings.note("the checkpointer is left out: threads come from compile(store=...)")
    stops = [(word, targets.stops(getattr(compiled, f"interrupt_{word}_nodes"))) for word in ("before", "after")]
    if named := ", ".join(f"{word}={names}" for word, names in stops if names):
        findings.note(
            f"runs stop as in LangGraph, by Breakpoints({named}): compile(layers=[Breakpoints()]) removes that"
        )


def _note_policies(name: str, builder: Any, edges: GraphEdges, targets: Targets, findings: Findings, path: str) -> None:
    kind, handled = targets.kinds[name], edges.handler(name)
    if handled and kind == "graph":
        findings.problem(
            f"node {path + name!r} is a graph with an error_handler: handle the error in a node of that graph, or "
            "convert it without the handler and write graph.add_error_edge(...)"
        )
    elif handled and kind == "replaced":
        findings.note(
            f"the error_handler of {path + name!r}, which nodes= replaces, is left out: write graph.add_error_edge(...)"
        )
    if builder.nodes[name].retry_policy and name in builder.branches:
        findings.note(
            f"the retry policy of {path + name!r} holds for the node, and not for the router after it: put a decision "
            "that may fail in a node, and route by what it wrote"
        )
    if builder.nodes[name].cache_policy is not None:
        findings.note(
            f"the cache policy of {path + name!r} is left out: replace the node by a function of its fields, "
            "graph.add_node(..., cache=Cache(ttl=...))"
        )


def _note_questions(builder: Any, targets: Targets, findings: Findings, inside: str) -> None:
    """Say how the questions of `interrupt()` are answered."""
    asking = [
        name
        for name, kind in targets.kinds.items()
        if kind == "code" and any(use.value is interrupt for use in read_code(builder.nodes[name].runnable).uses)
    ]
    if asking:
        key = f"{targets.names[asking[0]]}-0"
        findings.note(
            f"{list_names(asking)}{inside} calls interrupt(): answer by resume({{{key!r}: ...}}), where 0 counts the "
            "questions of the node, which runs again from its start, as in LangGraph; in a graph of dspyer, "
            "add_interrupt(...) asks without a second run"
        )
