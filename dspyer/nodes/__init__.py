"""Nodes and routers: what runs at each place of a graph, what it gets and what it gives back."""

from __future__ import annotations

from dspyer.nodes.answers import Interrupts, answering, first_of
from dspyer.nodes.attempt import Alone, Attempt
from dspyer.nodes.base import (
    IN_ORDER,
    Built,
    Call,
    Command,
    Context,
    Decision,
    Goto,
    Node,
    OneByOne,
    Reply,
    Runner,
    Send,
)
from dspyer.nodes.build import build_map, build_node, node_name, precompiled
from dspyer.nodes.build_routers import BuiltRouter, build_router, lost_ways
from dspyer.nodes.color import call_async, colours, portal_scope, to_thread, uses_acall
from dspyer.nodes.function import FunctionNode, NodeModules
from dspyer.nodes.interrupt import Inquiry, InterruptNode
from dspyer.nodes.listening import Isolated, LiveEntry, Peer, Source, Verdict, Waiter
from dspyer.nodes.map import MapNode
from dspyer.nodes.module import ModuleNode
from dspyer.nodes.resources import check_resources, resources_of
from dspyer.nodes.routers import FieldRouter, FunctionRouter, ModuleRouter, Router
from dspyer.nodes.subgraph import SubgraphNode, is_program

__all__ = [
    "IN_ORDER",
    "Alone",
    "Attempt",
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
    "Inquiry",
    "InterruptNode",
    "Interrupts",
    "Isolated",
    "LiveEntry",
    "MapNode",
    "ModuleNode",
    "ModuleRouter",
    "Node",
    "NodeModules",
    "OneByOne",
    "Peer",
    "Reply",
    "Router",
    "Runner",
    "Send",
    "Source",
    "SubgraphNode",
    "Verdict",
    "Waiter",
    "answering",
    "build_map",
    "build_node",
    "build_router",
    "call_async",
    "check_resources",
    "colours",
    "first_of",
    "is_program",
    "lost_ways",
    "node_name",
    "portal_scope",
    "precompiled",
    "resources_of",
    "to_thread",
    "uses_acall",
]
