"""The graph of a stored run, from what the run has stored of it: its fingerprint, and the facts of its drawing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from dspyer.display.graph_mermaid import draw_mermaid
from dspyer.display.graph_picture import GraphPicture
from dspyer.display.graph_svg import GraphDrawing, draw_graph, draw_svg
from dspyer.errors import StoreError
from dspyer.events import FieldShape
from dspyer.log.rows import drawing_id, fingerprint_id
from dspyer.policies import Policies
from dspyer.record.drawn import Checked, Mapped
from dspyer.scheduler.topology import ERROR_MARK, Edge, Topology
from dspyer.schema.schema import Schema
from dspyer.stores.base import RunRow, Store

KEPT = 16
"""Graphs that are kept as they were read last: a page asks for that of its run again with every step."""


@dataclass(frozen=True)
class StoredGraph:
    """The graph that made a run, as far as the run has stored it.

    Attributes:
        picture: its nodes and edges.
        fields: the fields of its schema; empty without one.
        text: the graph in words.
        checks: its checks by name, as its figures count them.
        maps: its maps by name, as its figures count them.
    """

    picture: GraphPicture
    fields: tuple[FieldShape, ...] = ()
    text: str = ""
    checks: Mapping[str, Checked] = field(default_factory=dict)
    maps: Mapping[str, Mapped] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.picture.topology.name

    def explain(self) -> str:
        """The graph in words, as `program.graph.explain()` said when the run was made."""
        return self.text

    def to_mermaid(self) -> str:
        """The graph as Mermaid text."""
        return draw_mermaid(self.picture)

    def to_svg(self) -> str:
        """The graph as a picture: an SVG document that loads nothing from elsewhere."""
        return draw_svg(self.picture)

    def drawing(self) -> GraphDrawing:
        """The graph with all positions, for pages that draw it themselves."""
        return self._drawing

    @cached_property
    def _drawing(self) -> GraphDrawing:
        return draw_graph(self.picture)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return f"<graph {self.name}: {', '.join(self.picture.topology.nodes)}>"


def stored_graph(store: Store, run: RunRow) -> StoredGraph | None:
    """The graph that made a run; None if the run has stored none.

    Raises:
        StoreError: if it has stored one that cannot be read.
    """
    names = fingerprint_id(run), drawing_id(run)
    if not all(names):
        return None
    blobs = store.blobs(names)
    if len(blobs) < len(names):
        raise StoreError(
            f"the graph of run {run.id!r} is not in the store {store.address!r}: it was removed, is damaged, or "
            "encrypted with another key"
        )
    return _graph_of(run.header["graph"], *[blobs[name] for name in names])


@lru_cache(KEPT)
def _graph_of(name: str, fingerprint: bytes, drawing: bytes) -> StoredGraph:
    facts, drawn = json.loads(fingerprint), json.loads(drawing)
    nodes = tuple(facts.get("nodes", {}))
    chosen = {(source, target) for source, target in [(one[0], one[1]) for one in drawn.get("edges", ()) if one[2]]}
    edges = [Edge(source, target, (source, target) in chosen) for source, target in facts.get("edges", ())]
    labels = {(source, target): label for source, target, label in drawn.get("labels", ())}
    for source, ways in facts.get("errors", {}).items():
        for target, condition, into in ways:
            edges.append(Edge(source, target, conditional=True, on_error=True, into=into or None))
            labels.setdefault((source, target), f"{ERROR_MARK} {condition}")
    looks = {node: (shape, label) for node, (shape, label) in drawn.get("looks", {}).items()}
    topology = Topology(name, nodes, tuple(edges), Schema.of(None), Policies.of())
    picture = GraphPicture(topology, labels, {node: looks.get(node, ("function", "unknown")) for node in nodes})
    fields = tuple([FieldShape(**shape) for shape in drawn.get("fields", ())])
    checks = {node: Checked(fix, into, frozenset(more)) for node, (fix, into, more) in drawn.get("checks", {}).items()}
    maps = {node: Mapped(into, failed) for node, (into, failed) in drawn.get("maps", {}).items()}
    return StoredGraph(picture, fields, str(drawn.get("text", "")), checks, maps)
