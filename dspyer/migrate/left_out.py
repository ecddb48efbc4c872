"""What a conversion leaves out, or does in another way, as notes."""

from __future__ import annotations

from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.types import interrupt

from dspyer.errors import list_names
from dspyer.migrate.code_reading import read_code
from dspyer.migrate.findings import Findings
from dspyer.migrate.graph_edges import GraphEdges
from dspyer.migrate.targets import Targets


def note_what_is_left_out(
    given: Any, builder: Any, edges: GraphEdges, targets: Targets, findings: Findings, path: str
) -> None:
    """Add a note for each part of a graph that a conversion leaves out.

    `given` is the graph as it was given, `path` names the node that it is, with a dot after it.
    """
    inside = f" in the graph {path.removesuffix('.')!r}" if path else ""
    if isinstance(given, CompiledStateGraph):
        _note_compiled(given, targets, findings, inside)
    if builder.waiting_edges or any(spec.defer for spec in builder.nodes.values()):
        findings.note(
            f"barriers and `defer`{inside} are left out: a node waits for all branches that can still reach it"
        )
    if any(spec.metadata or spec.trace_policy for spec in builder.nodes.values()):
        findings.note(f"metadata and trace policies of nodes{inside} are left out")
    for name in edges.reached:
        _note_policies(name, builder, edges, targets, findings, path)
    _note_questions(builder, targets, findings, inside)
    left = [name for name, spec in builder.nodes.items() if name not in edges.reached and not spec.is_error_handler]
    if left:
        findings.note(f"left out{inside}, since no edge leads there: {', '.join(map(repr, left))}")


def _note_compiled(compiled: Any, targets: Targets, findings: Findings, inside: str) -> None:
    """Add notes on what `compile()` of LangGraph was given. The breakpoints of a graph inside are kept."""
    if compiled.cache:
        findings.note(f"the cache{inside} is left out: results of nodes are kept in Cache(folder=...)")
    if compiled.step_timeout is not None:
        findings.note(f"step_timeout{inside} is left out: give nodes a timeout, or a run a budget of seconds")
    config = compiled.config or {}
    kept = {"configurable", "recursion_limit"} if inside else {"configurable"}
    left = [key for key, value in config.items() if value and key not in kept]
    if left:
        fix = f": write compile(max_steps={config['recursion_limit']})" if "recursion_limit" in left else ""
        findings.note(f"{', '.join(left)} of the config that the graph{inside} was bound to are left out{fix}")
    if inside:
        return
    if compiled.checkpointer:
        findings.note("the checkpointer is left out: threads come from compile(store=...)")
    stops = [(word, targets.stops(getattr(compiled, f"interrupt_{word}_nodes"))) for word in ("before", "after")]
    if named := ", ".join(f"{word}={names}" for word, names in stops if names):
        findings.note(
            f"runs stop as in LangGraph, by Breakpoints({named}): compile(layers=[Breakpoints()]) removes that"
        )


def _note_policies(name: str, builder: Any, edges: GraphEdges, targets: Targets, findings: Findings, path: str) -> None:
    kind, handled = targets.kinds[name], edges.handler(name)
    if handled and kind == "graph":
        findings.problem(
            f"node {path + name!r} is a graph with an error_handler: handle the error in a node of that graph, or "
            "convert it without the handler and write graph.add_error_edge(...)"
        )
    elif handled and kind == "replaced":
        findings.note(
            f"the error_handler of {path + name!r}, which nodes= replaces, is left out: write graph.add_error_edge(...)"
        )
    if builder.nodes[name].retry_policy and name in builder.branches:
        findings.note(
            f"the retry policy of {path + name!r} holds for the node, and not for the router after it: put a decision "
            "that may fail in a node, and route by what it wrote"
        )
    if builder.nodes[name].cache_policy is not None:
        findings.note(
            f"the cache policy of {path + name!r} is left out: replace the node by a function of its fields, "
            "graph.add_node(..., cache=Cache(ttl=...))"
        )


def _note_questions(builder: Any, targets: Targets, findings: Findings, inside: str) -> None:
    """Say how the questions of `interrupt()` are answered."""
    asking = [
        name
        for name, kind in targets.kinds.items()
        if kind == "code" and any(use.value is interrupt for use in read_code(builder.nodes[name].runnable).uses)
    ]
    if asking:
        key = f"{targets.names[asking[0]]}-0"
        findings.note(
            f"{list_names(asking)}{inside} calls interrupt(): answer by resume({{{key!r}: ...}}), where 0 counts the "
            "questions of the node, which runs again from its start, as in LangGraph; in a graph of dspyer, "
            "add_interrupt(...) asks without a second run"
        )
