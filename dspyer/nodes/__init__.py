"""Nodes and routers: what runs at each place of a graph, what it gets and what it gives back."""

from __future__ import annotations

from .base import IN_ORDER, Built, Call, Command, Context, Decision, Goto, Node, OneByOne, Reply, Runner, Send
from .build import build_map, build_node, node_name, precompiled
from .build_routers import BuiltRouter, build_router
from .color import call_async, colours, portal_scope, to_thread, uses_acall
from .function import FunctionNode, NodeModules
from .map import MapNode
from .module import ModuleNode
from .resources import check_resources, resources_of
from .routers import FieldRouter, FunctionRouter, ModuleRouter, Router
from .subgraph import SubgraphNode, is_program

__all__ = [
    "IN_ORDER",
    "Built",
    "BuiltRouter",
    "Call",
    "Command",
    "Context",
    "Decision",
    "FieldRouter",
    "FunctionNode",
    "FunctionRouter",
    "Goto",
    "MapNode",
    "ModuleNode",
    "ModuleRouter",
    "Node",
    "NodeModules",
    "OneByOne",
    "Reply",
    "Router",
    "Runner",
    "Send",
    "SubgraphNode",
    "build_map",
    "build_node",
    "build_router",
    "call_async",
    "check_resources",
    "colours",
    "is_program",
    "node_name",
    "portal_scope",
    "precompiled",
    "resources_of",
    "to_thread",
    "uses_acall",
]
