"""Helpers for tests of nodes: build one node, call it from sync or async code, script the LM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import dspy
import pytest
from dspy.utils import DummyLM

from dspyer.nodes.build import build_node
from dspyer.nodes.context import Context
from dspyer.nodes.node import Built, Call, Decision, Node, Reply
from dspyer.nodes.options import MapOptions, node_options
from dspyer.nodes.router import BuiltRouter, Router, RouterOptions, build_router
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict

OPEN = Schema.of(None)
MODES = pytest.mark.parametrize("mode", ["sync", "async"])


class Holder(dspy.Module):
    """A program: modules as attributes."""


def holder(**modules: dspy.Module) -> dspy.Module:
    program = Holder()
    for name, module in modules.items():
        setattr(program, name, module)
    return program


def call_of(
    state: Mapping[str, Any] | None = None,
    *,
    program: dspy.Module | None = None,
    overlay: Mapping[str, Any] | None = None,
    resources: Mapping[type, object] | None = None,
    node: str = "node",
) -> Call:
    return Call(
        ImmutableState(state or {}),
        Context(run_id="run", node=node, branch=(1,), visit=2, execution="1:0"),
        program or holder(),
        FrozenDict(overlay) if overlay is not None else None,
        resources or {},
    )


def built(node: object, name: str = "node", *, schema: Schema = OPEN, **options: Any) -> Built:
    return build_node(node_options(name, node, schema, **options))


def built_map(node: object, name: str = "node", *, schema: Schema = OPEN, **options: Any) -> Built:
    """A map over `node`; `over`, `item`, `into` and `max_concurrency` are options of the map."""
    mapped = {key: options.pop(key) for key in MapOptions._fields if key in options}
    return build_node(node_options(name, node, schema, map=MapOptions(**mapped), **options))


def built_router(
    source: str, route: Any, path_map: Any = None, *, schema: Schema, name: Any = None, writes: Any = None
) -> BuiltRouter:
    return build_router(RouterOptions(source, route, path_map, name, writes), schema)


def good(result: Built) -> Node:
    """The node of a build without problems."""
    assert (result.problems, result.unknown) == ((), ())
    assert result.node is not None
    return result.node


def reply(node: Node, call: Call, mode: str = "sync") -> Reply:
    return node.call(call) if mode == "sync" else anyio.run(node.acall, call)


def decision(router: Router | None, call: Call, mode: str = "sync") -> Decision:
    assert router is not None
    return router.call(call) if mode == "sync" else anyio.run(router.acall, call)


def run_node(
    node: object,
    state: Mapping[str, Any] | None = None,
    mode: str = "sync",
    *,
    schema: Schema = OPEN,
    overlay: Mapping[str, Any] | None = None,
    resources: Mapping[type, object] | None = None,
    **options: Any,
) -> Reply:
    """Builds a node, which must have no problems, and calls it."""
    found = built(node, schema=schema, **options)
    program = holder(node=found.module) if found.module is not None else None
    return reply(good(found), call_of(state, program=program, overlay=overlay, resources=resources), mode)


def answering(*answers: dict[str, str]) -> DummyLM:
    return DummyLM(list(answers))


def frozen(value: object) -> Any:
    return freeze(value)
