"""Targets of the nodes of a LangGraph: by edges, routers and `Command`s, and which nodes a run may reach."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from langgraph.constants import END, START
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send, interrupt

from dspyer.errors import list_names
from dspyer.migrate.code_reading import NodeCode, Source, function_source, is_a, own_nodes, read_code, returned_values
from dspyer.migrate.converted_node import Targets
from dspyer.migrate.nested_graphs import names_parent
from dspyer.migrate.unsupported import Findings
from dspyer.nodes.callables import used_objects

# Where code goes, as far as its source says it. What is computed, or looked up in a table, may be any node: then the
# graph leads to all of them, so that a join waits too long rather than too short.


def _router_targets(code: NodeCode) -> set[str | None] | None:
    """The texts that a router returns, None for one that is computed; None in all if its source cannot be read."""
    fn: Any = code.main  # mypy takes a function in an attribute for a method
    source = None if fn is None else function_source(fn)
    if source is None:
        return None
    return {text for value in returned_values(source) for text in _targets(value, source, fn, set())}


def _command_targets(code: NodeCode) -> set[str | None] | None:
    """The same for the `Command`s that a node makes, in its function or in those that it calls."""
    found: set[str | None] = set()
    calls = 0
    for fn in code.functions:
        source = function_source(fn)
        if source is None:
            return None
        for call in ast.walk(source):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == "Command":
                calls += 1
                found.update(_targets(call, source, fn, set()))
    return found if calls else None


def _targets(expr: ast.expr, source: Source, fn: FunctionType, seen: set[str]) -> Iterator[str | None]:
    """The values that one expression of a function may have; None where it is computed."""
    parts: Iterable[ast.expr] = ()
    match expr:
        case ast.Constant(value=str() | None as text):
            yield from [] if text is None else [text]
        case ast.IfExp(body=first, orelse=second):
            parts = first, second
        case ast.BoolOp(values=several) | ast.List(elts=several) | ast.Tuple(elts=several) | ast.Set(elts=several):
            parts = several
        case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.Starred(value=part) | ast.NamedExpr(value=part):
            parts = (part,)
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=args, keywords=keywords):
            given = {keyword.arg: keyword.value for keyword in keywords}
            if called == "Command" and None not in given:  # else `**options` may hide it
                parts = [given["goto"]] if "goto" in given else []
            elif called == "Send":
                parts = [*args[:1], *([given["node"]] if "node" in given else [])]
            elif called in ("list", "set", "sorted"):
                parts = args[:1]
            else:
                yield None
        case ast.Name(id=name) if name in seen:
            pass
        case ast.Name(id=name) if name in (*fn.__code__.co_varnames, *fn.__code__.co_cellvars):
            seen.add(name)
            assigned = list(_assigned(name, source))
            # A parameter, a loop, `with` or an unpacked value gives it one that is not read.
            stored = [node for node in own_nodes(source) if isinstance(node, ast.Name) and node.id == name]
            if len(assigned) < len([node for node in stored if isinstance(node.ctx, ast.Store)]) or not assigned:
                yield None
            parts = [value for value in (*assigned, *_added(name, source)) if value is not None]
        case ast.Name(id=name):
            value: Any = used_objects(fn).get(name)
            values = value if type(value) in (list, tuple) else [value]
            yield from (text if type(text) is str else None for text in values)
        case _:
            yield None
    for part in parts:
        yield from _targets(part, source, fn, seen)


def _assigned(name: str, source: Source) -> Iterator[ast.expr | None]:
    """The expression that is assigned to a variable alone, None for a mere annotation."""
    for node in own_nodes(source):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from [node.value] if [ast.unparse(target) for target in targets] == [name] else []


def _added(name: str, source: Source) -> Iterator[ast.expr]:
    """The expressions that are put into the list that a variable is."""
    for node in own_nodes(source):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="append" | "extend"), args=[added]):
                yield from [added] if owner == name else []


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
        # The handler runs in place of its node, and goes where it says.
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
        # `edges` is a set of LangGraph, whose order differs between processes.
        return {start: tuple(sorted(ends - {END})) for start, ends in found.items()}

    def _read_routes(self, source: str) -> list[str]:
        found: list[str] = []
        for label, branch in self.builder.branches[source].items():
            if source in self.routes:
                found += self.routes[source]
                continue
            found += (branch.ends or {}).values()
            code = read_code(branch.path)
            if not branch.ends or any(use.value is Send for use in code.uses):  # a `Send` is in no path map
                who = f"the router {label!r} of {source!r}{self.inside}"
                found += self._named_in(code, _router_targets(code), who, "routes")
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
        found = []
        if any(use.value is way or is_a(use.value, way) for use in code.uses for way in (Command, Send)):
            found += self._named_in(code, _command_targets(code), who, "goto")
        # A graph that the node calls may leave it by a Command to the parent, which goes on here.
        called: list[Any] = [use.value for use in code.values(CompiledStateGraph)]
        for graph in called:
            for inner in graph.builder.nodes.values():
                code = read_code(inner.runnable)
                found += self._named_in(code, _command_targets(code), who, "goto") if names_parent(code) else []
        return list(dict.fromkeys(found))

    def _named_in(self, code: NodeCode, read: set[str | None] | None, who: str, option: str) -> list[str]:
        """The nodes that code names; all of them if it names none, or computes one.

        `read` are the targets in its source; without one, all texts in the code count. `option` names targets.
        """
        computed = read is not None and None in read
        # Without a source, texts in the bytecode are all that is known.
        names = code.constants() if read is None else read
        found = [name for name in self.builder.nodes if name in names]
        if read is not None and not computed and not names - {END}:
            return []
        if found and not computed:
            self.findings.note(f"{who} may go to {', '.join(found)}: read from its code")
            return found
        why = "computes where it goes" if computed else "names none"
        self.findings.note(f"{who} may go to any node: its code {why}; {option}= names them")
        return [name for name, spec in self.builder.nodes.items() if not spec.is_error_handler]

    def _reached(self) -> list[str]:
        seen: set[str] = set()
        # Nodes that nothing leads to are left out: LangGraph keeps them, and `compile` here would refuse them.
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
    # LangGraph runs routers inside of the node, so its policy repeats both.
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
        key, verb = f"{targets.names[asking[0]]}-0", "call" if len(asking) > 1 else "calls"
        findings.note(
            f"{list_names(asking)}{inside} {verb} interrupt(): answer by resume({{{key!r}: ...}}), where 0 counts the "
            "questions of the node, which runs again from its start, as in LangGraph; in a graph of dspyer, "
            "add_interrupt(...) asks without a second run"
        )
