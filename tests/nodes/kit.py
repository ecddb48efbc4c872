"""Helpers for tests of nodes: a graph around one node, which is compiled and run from sync or async code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from dspy.utils import DummyLM
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Run, Send
from dspyer.errors import GraphError

MODES = pytest.mark.parametrize("mode", ["sync", "async"])


def answering(*answers: dict[str, str]) -> DummyLM:
    return DummyLM(list(answers))


def graph_of(
    node: Any,
    state: Mapping[str, Any] | None = None,
    *,
    name: str = "node",
    schema: type[BaseModel] | None = None,
    sent: Mapping[str, Any] | None = None,
    goto: Iterable[str] = (),
    targets: Iterable[str] = (),
    **options: Any,
) -> Graph:
    """A graph whose node `given` writes a state, after which one node runs; what is `sent` comes with a `Send`.

    A node with `over=` is a map. `targets` are further nodes, where it may go. Only a run shows which fields are set.
    """
    values = dict(state or {})
    graph = Graph(schema, name="Around", inputs=[]).add_node("given", lambda: values).add_edge(START, "given")
    if "over" in options:
        graph.add_map(name, node, **options)
    else:
        graph.add_node(name, node, goto=[*goto], **options)
    graph.add_edge(name, END)
    graph = with_targets(graph, [*goto, *targets])
    if sent is None:
        return graph.add_edge("given", name)
    return graph.add_conditional_edges("given", lambda: Send(name, sent), [name])


def with_targets(graph: Graph, names: Iterable[str]) -> Graph:
    """The graph with nodes that take anything and write nothing."""
    for name in dict.fromkeys(names):
        if name != END:
            graph.add_node(name, lambda state: None, writes=[]).add_edge(name, END)
    return graph


def play(program: CompiledGraph, mode: str = "sync", *, resources: Any = None) -> Run:
    """A run without inputs, which must not fail."""
    run = program.run({}, resources=resources) if mode == "sync" else asyncio.run(program.arun({}, resources=resources))
    run.raise_error()
    return run


def run_node(node: Any, state: Any = None, mode: str = "sync", *, resources: Any = None, **options: Any) -> Run:
    return play(graph_of(node, state, **options).compile(), mode, resources=resources)


def written(run: Run, node: str = "node") -> dict[str, Any]:
    """What the last call of a node has changed."""
    return dict([commit for commit in run.commits if commit.node == node][-1].patch)


def facts(node: Any, *, name: str = "node", **options: Any) -> str:
    """What `explain()` says of a node: `reads question; writes answer; -> END`."""
    return facts_in(graph_of(node, name=name, **options), name)


def facts_in(graph: Graph, name: str) -> str:
    lines = [line.strip() for line in graph.compile().graph.explain().splitlines()]
    return next(line for line in lines if line.startswith(f"{name}: ")).removeprefix(f"{name}: ")


def problems(node: Any, **options: Any) -> list[str]:
    """What is wrong with the options of a node; nothing if a graph of it compiles."""
    try:
        graph_of(node, **options).compile()
    except GraphError as error:
        return [*error.problems]
    return []
