"""What `display.stats` must know of a graph: its checks and its maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

from dspyer.display.stats import Checked, ItemCounts, Mapped
from dspyer.events import Event, ItemFinished
from dspyer.ids import whole_execution
from dspyer.nodes.check import rejecting_of
from dspyer.nodes.map import map_fields_of
from dspyer.nodes.node import Node
from dspyer.schema.schema import Schema


class CountedParts(TypedDict):
    """The checks and the maps of a graph, by name."""

    checks: dict[str, Checked]
    maps: dict[str, Mapped]


def items_in(events: Iterable[Event]) -> dict[str, ItemCounts]:
    """The items of each execution of a map."""
    totals: dict[str, int] = {}
    ended: dict[tuple[str, str], set[int]] = {}
    for event in events:
        if isinstance(event, ItemFinished):
            execution = whole_execution(event.execution)
            totals[execution] = event.items
            ended.setdefault((execution, event.status), set()).add(event.item)
    return {
        execution: ItemCounts(
            total, *[frozenset(ended.get((execution, status), ())) for status in ("completed", "failed")]
        )
        for execution, total in totals.items()
    }


def counted_parts(nodes: Mapping[str, Node], schema: Schema) -> CountedParts:
    """The checks and the maps among the nodes of a graph."""
    checks = {name: Checked(node.fix, node.into, frozenset(node.modes)) for name, node in rejecting_of(nodes).items()}
    maps: dict[str, Mapped] = {}
    for name, node in nodes.items():
        if (fields := map_fields_of(node)) is not None:
            into, failures = fields.into, fields.failures
            folded = {field for field in (into, failures) if field is not None and schema.reducer(field) is not None}
            maps[name] = Mapped(into, failures, frozenset(folded))
    return {"checks": checks, "maps": maps}
