"""The graph of a run as its readers know it: from facts that the run has stored, without its program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dspyer import display
from dspyer.events import FieldShape
from dspyer.ids import Address
from dspyer.scheduler.topology import START, Edge

FUNCTION = ("function", "")
KINDS = {"subgraph": "graph", "interrupt": "question"}
"""The kinds of steps by the shapes of nodes, where they differ."""


class Checked(NamedTuple):
    """A check, as far as its commits show what it did.

    Attributes:
        fix: the node that corrects what it refuses; None for none, and for the check of an agent.
        into: the field that gets its problems.
        modes: of the check of an agent, the modes: one of them gave what is checked, and corrects it.
    """

    fix: str | None
    into: str
    modes: tuple[str, ...] = ()


class Mapped(NamedTuple):
    """The fields of a map: of results, of failures, if it has one, and of items; and `item`, as its node reads one."""

    into: str
    failures: str | None
    over: str
    item: str = ""


@dataclass(frozen=True, eq=False)
class DrawnGraph:
    """A graph as far as a run has stored it: `record_codec.decode` reads what `graph.spec.drawing_facts` gave.

    Attributes:
        name: its name.
        looks: the shape and the label of each node, as in `nodes.node.Look`.
        edges: its edges, those of errors too.
        labels: the labels of edges, by source and target.
        inputs: the fields that a run may be given.
        fields: the fields of its schema; empty without one.
        text: the graph in words, as `program.graph.explain()` said.
        checks: its checks by name.
        maps: its maps by name.
        reads: the fields of inputs that are fields, by node: of predictors, and of the graphs inside of it.
        gives: the fields of outputs, by node, of nodes with one predictor.
        lists: the fields of which an update may be one item of a list.
        failures: by node, the fields that may get its failures.
        inner: the graphs inside of it, by node, or by the name under which a node calls one.
    """

    name: str
    looks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    labels: Mapping[tuple[str, str], str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    fields: tuple[FieldShape, ...] = ()
    text: str = ""
    checks: Mapping[str, Checked] = field(default_factory=dict)
    maps: Mapping[str, Mapped] = field(default_factory=dict)
    reads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gives: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lists: tuple[str, ...] = ()
    failures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inner: Mapping[str, DrawnGraph] = field(default_factory=dict)

    def kind(self, node: str) -> str:
        """The kind of the steps of a node."""
        inside = self.inner.get(node)
        # Agents and searches are graphs like others to the core: what they are shows in the nodes that they consist of.
        if inside is not None and inside.is_agent:
            return "agent"
        if inside is not None and inside.is_search:
            return "search"
        shape, _ = self.looks.get(node, FUNCTION)
        return KINDS.get(shape, shape)

    @property
    def is_agent(self) -> bool:
        """Return whether its nodes take the turns of an agent."""
        return ("module", "mode") in self.looks.values()

    @property
    def is_search(self) -> bool:
        """Return whether its nodes make the trials of a search, and decide about them."""
        return any(shape == "map" and label != "map" for shape, label in self.looks.values())

    def inside(self, node: str, execution: str) -> DrawnGraph | None:
        """The graph that ran inside of an execution of a node, or of an item, or under the key of a called program."""
        found = self.inner.get(node)
        # The innermost key names the program: a program that an item calls has the item's number further out.
        for key in reversed(Address.parse(execution).keys):
            found = found or self.inner.get(key)
        return found

    def within(self, path: str = "") -> Iterator[tuple[str, DrawnGraph]]:
        """This graph and those inside of it, each with its path: `"lead/check"`."""
        yield path, self
        for name, graph in self.inner.items():
            yield from graph.within(f"{path}/{name}" if path else name)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: its nodes and edges, without positions, its fields and its checks."""
        nodes = [{"name": node, "kind": self.kind(node), "label": label} for node, (_, label) in self.looks.items()]
        edges = [
            {**dict(zip(Edge._fields[:4], edge, strict=False)), "label": self.labels.get(edge[:2], "")}
            for edge in self.edges
        ]
        return {
            "name": self.name,
            "nodes": [{"name": START, "kind": "start", "label": ""}, *nodes],
            "edges": edges,
            "fields": [one.to_dict() for one in self.fields],
            "checks": {name: {**one._asdict(), "modes": list(one.modes)} for name, one in self.checks.items()},
        }

    def explain(self) -> str:
        """The graph in words, as `program.graph.explain()` said when the run was made."""
        return self.text

    def to_mermaid(self) -> str:
        """The graph as Mermaid text."""
        return display.draw_mermaid(self)

    def to_svg(self) -> str:
        """The graph as a picture: an SVG document that loads nothing from elsewhere."""
        return display.draw_svg(self)

    _repr_svg_ = to_svg

    def __repr__(self) -> str:
        return f"<graph {self.name}: {', '.join(self.looks)}>"
