"""What `display.stats` must know of a graph: its checks and its maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from dspyer.display.stats import Checked, Mapped
from dspyer.nodes.check import CheckNode
from dspyer.nodes.node import Node


class CountedParts(TypedDict):
    """The checks and the maps of a graph, by name."""

    checks: dict[str, Checked]
    maps: dict[str, Mapped]


def counted_parts(nodes: Mapping[str, Node]) -> CountedParts:
    """The checks and the maps among the nodes of a graph."""
    checks = {
        name: Checked(node.of, node.fix, node.into) for name, node in nodes.items() if isinstance(node, CheckNode)
    }
    maps = {name: Mapped(*node.map_fields[2:]) for name, node in nodes.items() if node.map_fields is not None}
    return {"checks": checks, "maps": maps}
