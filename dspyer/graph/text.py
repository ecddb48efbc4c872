"""A graph in words, and the labels of its edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dspyer.display.graph_picture import ERROR_MARK
from dspyer.layers.layer import OF_EACH_ITEM
from dspyer.scheduler.topology import START
from dspyer.schema.limits import kilobytes

if TYPE_CHECKING:
    from dspyer.graph.spec import GraphSpec
    from dspyer.layers.handlers import ErrorEdge


def explain(graph: GraphSpec) -> str:
    """The graph in words, one line per fact: nodes with reads, writes and targets, loops, stops, shared fields."""
    topology = graph.topology
    inputs = [name if name in graph.required else f"{name} (optional)" for name in graph.inputs]
    outputs = "every field that is no input" if graph.outputs is None else ", ".join(graph.outputs)
    lines = [f"graph {graph.name}: {len(graph.nodes)} nodes"]
    lines.append(f"  inputs: {', '.join(inputs) or 'none'}")
    lines.append(f"  outputs: {outputs}")
    if topology.schema.state_limit is not None:
        lines.append(f"  limit: the state holds at most {kilobytes(topology.schema.state_limit.max_bytes)}")
    labels = _joined(_router_labels(graph))  # by source and target
    for name in (START, *graph.nodes):
        node = graph.nodes.get(name)
        facts = [] if node is None else [f"reads {_fields(node.reads)}", f"writes {_fields(node.writes)}"]
        facts.append("-> " + ", ".join(_target(graph, name, target, labels) for target in topology.own_targets(name)))
        facts += _layer_facts(graph, name)
        if node is not None and node.look.note:
            facts.append(node.look.note)
        facts += [f"on {edge.condition} {_error_target(graph, edge)}" for edge in graph.error_edges.get(name, ())]
        lines.append(f"  {name}: {'; '.join(facts)}")
    lines.extend(
        f"  loop of {', '.join(loop.nodes)}: a round begins at {', '.join(loop.heads)}"
        for loop in topology.rounds.loops
    )
    for word, names in (("before", graph.interrupt_before), ("after", graph.interrupt_after)):
        if names:
            lines.append(f"  stops {word} {', '.join(name for name in graph.nodes if name in names)}")
    lines.extend(
        f"  several writers: {written} is written by {', '.join(writers)}; the last one's value stays"
        + (", in parallel the merge policy decides" if topology.has_policy(written) else "")
        for written, writers in _overwritten_fields(graph).items()
    )
    lines.extend(
        f"  retries multiply: {path} is called up to {' x '.join(map(str, attempts))} times"
        for path, attempts in graph.attempts.items()
        if len(attempts) > 1
    )
    unknown = [name for name, node in graph.nodes.items() if node.writes is None]
    if unknown:
        lines.append(
            f"  not checked: what is written by {', '.join(unknown)} is not declared, so parallel writers and unset "
            "reads are found when they happen; declare it with writes=[...]"
        )
    return "\n".join(lines)


def _layer_facts(graph: GraphSpec, name: str) -> list[str]:
    """What surrounds the calls of a node, from the inside out."""
    node = graph.nodes.get(name)
    each = " per item" if node is not None and node.has_items else ""
    return [
        f"{layer.note}{each if layer.place in OF_EACH_ITEM else ''}"
        for layer in reversed(graph.given_layers.get(name, ()))
    ]


def edge_labels(graph: GraphSpec) -> dict[tuple[str, str], str]:
    """The labels of edges in a picture: those of routers, and after a cross what an error edge takes."""
    found = _router_labels(graph)
    for source, edges in graph.error_edges.items():
        for edge in edges:
            found.setdefault((source, edge.target), []).append(f"{ERROR_MARK} {edge.condition}")
    return _joined(found)


def _router_labels(graph: GraphSpec) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for source, ways in graph.exits.items():
        for way in ways:
            if not isinstance(way, str):
                for target, text in way.labels.items():
                    found.setdefault((source, target), []).append(text)
    return found


def _joined(labels: Mapping[tuple[str, str], list[str]]) -> dict[tuple[str, str], str]:
    return {edge: ", ".join(texts) for edge, texts in labels.items()}


def _target(graph: GraphSpec, name: str, target: str, labels: Mapping[tuple[str, str], str]) -> str:
    label = labels.get((name, target))
    facts = [repr(label)] if label else []
    facts += ["next round"] if graph.topology.rounds.goes_back(name, target) else []
    return f"{target} ({', '.join(facts)})" if facts else target


def _error_target(graph: GraphSpec, edge: ErrorEdge) -> str:
    facts = [] if edge.into is None else [f"the failure into {edge.into}"]
    facts += ["next round"] if graph.topology.rounds.goes_back(edge.source, edge.target) else []
    return f"-> {edge.target} ({', '.join(facts)})" if facts else f"-> {edge.target}"


def _fields(names: Mapping[str, str] | None) -> str:
    if names is None:
        return "?"
    return ", ".join(field if own == field else f"{field} (as {own})" for own, field in names.items()) or "nothing"


def _overwritten_fields(graph: GraphSpec) -> dict[str, list[str]]:
    """The fields in which one node's value replaces another one's, with their writers."""
    schema = graph.topology.schema
    merged = {name for name, found in schema.fields.items() if found.reducer is not None or found.patches_by_key}
    writers: dict[str, list[str]] = {}
    fixes = {check.fix for check in graph.checks.values()}
    for name, node in graph.nodes.items():
        own = () if name in fixes else (node.writes or {}).values()
        failures = [edge.into for edge in graph.error_edges.get(name, ()) if edge.into is not None]
        for written in dict.fromkeys((*own, *failures)):
            writers.setdefault(written, []).append(name)
    return {written: names for written, names in writers.items() if len(names) > 1 and written not in merged}
