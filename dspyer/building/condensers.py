"""The modules of a graph that shorten what its nodes write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dspy

from dspyer.building.declarations import NodeSpec
from dspyer.nodes.base import Node
from dspyer.nodes.condense import Condenser, Condensers, plan_condenser
from dspyer.nodes.view_access import author_problems
from dspyer.scheduler.topology import START
from dspyer.schema.schema import Schema
from dspyer.views import View


def build_condensers(
    specs: Iterable[NodeSpec],
    nodes: Mapping[str, Node],
    schema: Schema,
    modules: dict[str, dspy.Module],
    problems: list[str],
) -> Condensers:
    """The modules that shorten what nodes write, by node and field.

    Args:
        specs: the declared nodes.
        nodes: the nodes that were built.
        schema: the fields of the state.
        modules: the modules of the program by attribute; these are added.
        problems: what is wrong with them is added.
    """
    found: dict[str, dict[str, Condenser]] = {}
    for spec in specs:
        if not spec.condense or spec.name not in nodes:
            continue
        given: Any = spec.condense
        if not isinstance(given, Mapping):
            problems.append(f"node {spec.name!r}: condense takes a dict from fields to modules")
            continue
        for field, module in given.items():
            condenser, wrong = plan_condenser(spec.name, field, module, schema, nodes[spec.name].writes)
            problems += wrong
            if condenser is None:
                continue
            if condenser.name in modules or condenser.name in nodes:
                problems.append(f"two parts of the graph are called {condenser.name!r}: rename the other one")
            modules[condenser.name] = module
            found.setdefault(spec.name, {})[field] = condenser
    return found


def view_authors(specs: Iterable[NodeSpec]) -> list[str]:
    """Views that name nobody who could have brought anything, each with its fix.

    Args:
        specs: the declared nodes.
    """
    specs = list(specs)
    nodes = [START, *[spec.name for spec in specs]]
    return [
        problem
        for spec in specs
        if isinstance(spec.reads, Mapping)
        for name, right in spec.reads.items()
        if isinstance(right, View)
        for problem in author_problems(right, name, nodes, f"node {spec.name!r}")
    ]
