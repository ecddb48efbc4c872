"""Where the nodes of a LangGraph may lead: by edges, routers and `Command`s, and which nodes a run may reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.constants import END, START
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send

from dspyer.errors import list_names
from dspyer.migrate.code_reading import read_code
from dspyer.migrate.findings import Findings
from dspyer.migrate.target_reading import TargetsRead, read_commands, read_router
from dspyer.migrate.unsupported import names_parent


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
