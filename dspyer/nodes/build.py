"""Build a node from its options: choose its kind, or say why nothing can be made of it."""

from __future__ import annotations

from typing import Any

import dspy
from pydantic import BaseModel

from dspyer.errors import GraphError, brief
from dspyer.nodes.function import build_function
from dspyer.nodes.kind import build_kind
from dspyer.nodes.map import build_map_node
from dspyer.nodes.module import build_module
from dspyer.nodes.node import Built, Node
from dspyer.nodes.options import KindOptions, NodeOptions
from dspyer.nodes.program_calls import is_program
from dspyer.nodes.subgraph import build_subgraph


def build_node(options: NodeOptions) -> Built:
    """A node, with what the program holds for it and what is wrong with it."""
    built = _build(options)
    if options.map is not None:
        built = build_map_node(built, options, options.map)
    return built._replace(problems=(*options.problems, *built.problems))


def _build(options: NodeOptions) -> Built:
    node: Any = options.node
    if isinstance(node, KindOptions):
        return node.build(options)
    if isinstance(node, Node) and hasattr(node, "who"):
        return build_kind(node, options)
    if is_program(node):
        return build_subgraph(node, options)
    if isinstance(node, dspy.Module):
        return build_module(node, options)
    problem = _refusal(node)
    if problem is not None:
        return Built(None, None, (f"{options.who} {problem}",))
    return build_function(node, options)


def _refusal(node: object) -> str | None:
    """Why something cannot be a node, and what to do; None if it can."""
    if isinstance(node, str):
        return f"is the text {node!r}: a signature needs a module, dspy.Predict({node!r})"
    if isinstance(node, type):
        return refused_class(node)
    if isinstance(node, Node):
        return f"is a {type(node).__name__} whose `__init__` does not call super().__init__(reads=[...], writes=[...])"
    if isinstance(node, dspy.Parallel):
        return "is dspy.Parallel, which is no module: fork with add_edge, or run one node per item with add_map"
    if hasattr(node, "add_node"):  # a graph of another library; one of dspyer is compiled by `Graph.add_node`
        return f"is a {type(node).__name__} that is not compiled: call .compile() on it and give what that returns"
    if not callable(node):
        return f"is {brief(node)}, of type {type(node).__name__}: give a function or a dspy.Module"
    if type(node).__module__.partition(".")[0] == "dspy":
        return (
            f"is a {type(node).__name__}, which is no dspy.Module: call it in a function of your own that returns "
            "what it found by field"
        )
    return None


def refused_class(node: type) -> str:
    """Why a class is nothing that a node can be made of, and what to give."""
    name = node.__name__
    if issubclass(node, dspy.Signature):
        return f"is the signature {name}: give a module of it, dspy.Predict({name})"
    if issubclass(node, dspy.Module):
        return f"is the class {name}: give a module, {name}(...)"
    if issubclass(node, BaseModel):
        return f"is the model {name}: give a function that returns one"
    return f"is the class {name}: give an object of it, or a function"


def node_name(node: object) -> str:
    """The name of a node that was added without one: that of the function.

    Example:
        >>> def search(question): ...
        >>> node_name(search)
        'search'
    """
    name = getattr(node, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise GraphError(f"a node that is {brief(node)} has no name of its own: add_node('a_name', ...)")
    return name
