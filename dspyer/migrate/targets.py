"""The names to which LangGraph's code goes, as targets of dspyer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from langgraph import types as langgraph_types
from langgraph.constants import END

from dspyer.errors import GraphError, RouteError, brief, list_names
from dspyer.graph.spec import attribute_problems, check_name
from dspyer.nodes.node import SENT, Goto, Send

Kind: TypeAlias = Literal["code", "graph", "replaced"]


class NamedTargets(NamedTuple):
    """The targets that are known before a run.

    Attributes:
        names: the nodes, by their names in LangGraph.
        option: the option of `from_langgraph` that names them, with the node: `goto={'x': [...]}`.
    """

    names: frozenset[str]
    option: str


@dataclass(frozen=True, slots=True)
class Targets:
    """How the names that LangGraph's code goes to become targets of dspyer.

    Attributes:
        names: the name of each node in dspyer, by its name in LangGraph; those that no run reaches are left out.
        all: the names of all nodes in LangGraph.
        kinds: what became of each node: its own code, a converted graph, or what replaces it.
    """

    names: Mapping[str, str]
    all: frozenset[str]
    kinds: Mapping[str, Kind]

    def stops(self, breakpoints: Any) -> list[str]:
        """The nodes at which LangGraph's breakpoints stop a run: names, or `"*"` for all."""
        found = self.names if breakpoints == "*" else breakpoints
        return [self.names[name] for name in found if name in self.names]

    def ordered(self, found: Sequence[object], who: str, known: NamedTargets) -> list[Goto]:
        """The targets of what code of LangGraph went to: nodes by name, each once, then each `Send`; without `END`.

        LangGraph folds updates in this order, and an edge and a `goto` to one node start it once.
        """
        nodes = sorted({name for name in found if isinstance(name, str) and name != END})
        sends = [send for send in found if not isinstance(send, str)]
        return [
            *[self._named(name, who, known) for name in nodes],
            *[self._send(send, who, known) for send in sends],
        ]

    def _named(self, name: str, who: str, known: NamedTargets) -> str:
        if name not in self.all:
            raise RouteError(f"{who} goes to {name!r}, and there is no such node: the nodes are {list_names(self.all)}")
        if name not in known.names:
            raise RouteError(
                f"{who} goes to {name!r}, which its code does not name: name all targets in "
                f"from_langgraph({known.option})"
            )
        return self.names[name]

    def _send(self, send: Any, who: str, known: NamedTargets) -> Send:
        if not isinstance(send, langgraph_types.Send):
            raise RouteError(f"{who} goes to {brief(send)}, of type {type(send).__name__}: give a name or a Send")
        if getattr(send, "timeout", None) is not None:
            raise RouteError(f"{who} gives its Send to {send.node!r} a timeout: give that node one, add_node(timeout=)")
        name, kind = self._named(send.node, who, known), self.kinds[send.node]
        if kind == "code":
            return Send(name, {SENT: send.arg})
        if not isinstance(send.arg, Mapping) and not hasattr(send.arg, "__dict__"):
            raise RouteError(
                f"{who} sends {brief(send.arg)} to {send.node!r}, which takes fields: give a dict of them, or an "
                "object of its schema"
            )
        values = dict(send.arg if isinstance(send.arg, Mapping) else vars(send.arg))
        return Send(name, {SENT: values} if kind == "graph" else values)


def usable_name(name: str, taken: Iterable[str]) -> str:
    """The name of a node that a graph of dspyer accepts: the same one where possible."""
    found = re.sub(r"\W", "_", name).lstrip("_") or "node"
    found = found if not found[0].isdigit() else f"node_{found}"
    while True:
        with suppress(GraphError):
            check_name(found, list(taken))
            if not attribute_problems([found]):  # a module may replace its code
                return found
        found += "_node"
