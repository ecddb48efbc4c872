"""The graph of a stored run, with the ways to show it."""

from __future__ import annotations

from dataclasses import dataclass

from dspyer.display import GraphDrawing, draw_mermaid, draw_svg, drawing_of
from dspyer.record import DrawnGraph


@dataclass(frozen=True)
class StoredGraph:
    """The graph that made a run, as far as the run has stored it, with `fields`, the fields of its schema."""

    facts: DrawnGraph

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.facts.name

    def explain(self) -> str:
        """The graph in words, as `program.graph.explain()` said when the run was made."""
        return self.facts.text

    def to_mermaid(self) -> str:
        """The graph as Mermaid text."""
        return draw_mermaid(self.facts)

    def to_svg(self) -> str:
        """The graph as a picture: an SVG document that loads nothing from elsewhere."""
        return draw_svg(self.facts)

    def drawing(self) -> GraphDrawing:
        """The graph with all positions, for pages that draw it themselves."""
        return drawing_of(self.facts)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return f"<graph {self.name}: {', '.join(self.facts.looks)}>"
