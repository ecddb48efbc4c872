"""Whether the live fields of a graph can be: for each, all who may write it are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dspyer.nodes.base import Node
from dspyer.nodes.router import Router
from dspyer.schema.schema import Schema


def live_problems(schema: Schema, nodes: Mapping[str, Node], routers: Iterable[tuple[str, Router]]) -> Iterator[str]:
    """What is wrong with the live fields, each with its fix.

    Args:
        schema: the fields.
        nodes: the nodes by name.
        routers: the routers, with the nodes at which they decide.
    """
    if not schema.live:
        return
    named = ", ".join(map(repr, schema.live))
    for name, node in nodes.items():
        if node.writes is None:
            yield (
                f"node {name!r} does not say what it writes, so nobody could tell when the live field {named} is "
                "closed: declare it, add_node(..., writes=[...])"
            )
    for source, router in routers:
        for field in router.writes.values():
            if field in schema.live:
                yield (
                    f"the router at {source!r} writes the live field {field!r}: let a node post to it, or write the "
                    "label to a field of its own"
                )
