"""From what a user gave to `add_node` to a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dspy
from pydantic import BaseModel

from dspyer.errors import GraphError, brief
from dspyer.nodes.field_names import NamesSpec, ReadsSpec
from dspyer.nodes.function import build_function
from dspyer.nodes.interrupt import InterruptOptions, build_interrupt
from dspyer.nodes.map import build_map_node
from dspyer.nodes.module import build_module
from dspyer.nodes.node import Built
from dspyer.nodes.options import NodeOptions, node_options
from dspyer.nodes.subgraph import build_subgraph, is_program
from dspyer.schema.schema import Schema


def node_name(node: object) -> str:
    """The name of a node that was added without one: that of the function.

    Raises:
        GraphError: if it has none that says what it does.

    Example:
        >>> def search(question): ...
        >>> node_name(search)
        'search'
    """
    name = getattr(node, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise GraphError(f"a node that is {brief(node)} has no name of its own: add_node('a_name', ...)")
    return name


def build_node(
    name: str,
    node: object,
    *,
    schema: Schema,
    reads: ReadsSpec | None = None,
    writes: NamesSpec | None = None,
    modules: Mapping[str, dspy.Module] | None = None,
    goto: Iterable[str] = (),
) -> Built:
    """Make a node of a function, a module or a compiled graph.

    Args:
        name: the node's name.
        node: what it does.
        schema: the fields of the state.
        reads: what it may read: fields, or a map from its own names to fields; None for everything.
        writes: what it may write, in the same form; None for what it declares itself.
        modules: the modules that are bound to parameters of a function.
        goto: the targets that its `Command`s may name.

    Returns:
        The node and what the program holds for it, or the problems.
    """
    spec, problems = node_options(name, schema, reads, writes, modules, goto)
    built = _build(node, spec)
    return built._replace(problems=(*problems, *built.problems))


def build_map(
    name: str,
    node: object,
    *,
    schema: Schema,
    over: str,
    item: str,
    into: str,
    max_concurrency: int | None = None,
    reads: ReadsSpec | None = None,
    writes: NamesSpec | None = None,
    modules: Mapping[str, dspy.Module] | None = None,
) -> Built:
    """Make one node that runs `node` once per item of a field.

    Args:
        name: the name of the whole.
        node: what runs per item.
        schema: the fields of the state.
        over: the field with the items.
        item: the name under which the node sees its item; it need not be a field.
        into: the field for the results, in the order of the items.
        max_concurrency: most items that run at once; None for no limit of its own.
        reads: as for `build_node`.
        writes: which outputs make up an item's result; None for all.
        modules: as for `build_node`.

    Returns:
        The node and what the program holds for it, or the problems.
    """
    spec, problems = node_options(name, schema, reads, writes, modules, (), (item,))
    built = build_map_node(_build(node, spec), spec, over, into, max_concurrency)
    return built._replace(problems=(*problems, *built.problems))


def _build(node: Any, spec: NodeOptions) -> Built:
    if isinstance(node, InterruptOptions):
        return build_interrupt(node, spec)
    if is_program(node):
        return build_subgraph(node, spec)
    if isinstance(node, dspy.Module):
        return build_module(node, spec)
    problem = _refusal(node)
    if problem is not None:
        return Built(None, None, (f"{spec.who} {problem}",))
    return build_function(node, spec)


def _refusal(node: object) -> str | None:
    """Why something cannot be a node, and what to do; None if it can."""
    if isinstance(node, str):
        return f"is the text {node!r}: a signature needs a module, dspy.Predict({node!r})"
    if isinstance(node, type):
        return _refused_class(node)
    if isinstance(node, dspy.Parallel):
        return "is dspy.Parallel, which is no module: fork with add_edge, or run one node per item with add_map"
    if hasattr(node, "add_node"):
        return f"is a {type(node).__name__} that is not compiled: call .compile() on it and give what that returns"
    if not callable(node):
        return f"is {brief(node)}, of type {type(node).__name__}: give a function or a dspy.Module"
    if type(node).__module__.partition(".")[0] == "dspy":
        return (
            f"is a {type(node).__name__}, which is no dspy.Module: call it in a function of your own that returns "
            "what it found by field"
        )
    return None


def _refused_class(node: type) -> str | None:
    name = node.__name__
    if issubclass(node, dspy.Signature):
        return f"is the signature {name}: give a module of it, dspy.Predict({name})"
    if issubclass(node, dspy.Module):
        return f"is the class {name}: give a module, {name}(...)"
    if issubclass(node, BaseModel):
        return f"is the model {name}: give a function that returns one"
    return f"is the class {name}: give an object of it, or a function"


def precompiled(module: dspy.Module) -> tuple[str, ...]:
    """The parts of a module that an optimizer has compiled already, which DSPy leaves alone from then on.

    Args:
        module: any module.

    Returns:
        Their paths, as DSPy names them; `"self"` for the module itself.
    """
    return tuple(path for path, part in module.named_sub_modules() if isinstance(part, dspy.Module) and part._compiled)
