"""Build a node from its options: choose its kind, or say why nothing can be made of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any, ClassVar

import dspy
from pydantic import BaseModel

from dspyer.errors import GraphError, NodeOutputError, brief
from dspyer.nodes.binding import Binding, BoundNode, FieldParameter, filled, plan_templates, snapshot
from dspyer.nodes.field_access import check_names
from dspyer.nodes.function import bound_modules, build_function, goto_of, module_problems, permitted
from dspyer.nodes.map import build_map_node
from dspyer.nodes.module import build_module
from dspyer.nodes.node import Built, Call, Command, Flaws, Look, Node, Reply
from dspyer.nodes.options import KindOptions, NodeOptions
from dspyer.nodes.steps import Script, is_async, is_program, wrapped

# --- nodes of a kind of the user's own: a `Node` with a `script`, given to `add_node` or `add_map`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindNode(BoundNode):
    """A node of a kind of the user's own, whose replies are checked.

    Attributes:
        made: what the user has made, without its modules.
    """

    kind: ClassVar[str] = "kind"

    made: Node

    @property
    def look(self) -> Look:
        """The look of it in pictures."""
        return self.made.look

    def script(self, call: Call) -> Script[Reply]:
        """The script of the user's kind, which sees and may write what the node declares."""
        # What `call.read` sees is what the node declares to read: permissions hold for kinds of the user's own as
        # well.
        reply: Any = self.made.script(call._replace(state=snapshot(call, self.reads)))
        # A kind that needs no step may return its reply without a `yield`.
        if type(reply) is GeneratorType:
            filling = self.templates.in_instructions
            reply = yield from wrapped(reply, partial(filled, templates=self.templates)) if filling else reply
        if type(reply) is not Reply:
            raise NodeOutputError(
                f"{self.who}: {type(self.made).__name__}.script returned {brief(reply)}, of type "
                f"{type(reply).__name__}: return Reply({{...}}), with what it writes by field"
            )
        goto = goto_of(Command(goto=reply.goto), self.goto, self.who)
        return reply._replace(updates=permitted(reply.updates, self.writes, self.who), goto=goto)


def build_kind(given: Node, options: NodeOptions) -> Built:
    """A node of a kind of the user's own, and what is wrong with it."""
    who, kind, reads = options.who, type(given).__name__, options.reads
    found = Flaws(who, module_problems(options.modules, who))
    found.problems += [
        f"{who}: modules binds the program {name!r}, and a script calls modules alone: make it a node, or call it in a "
        "function, with `ctx.call`"
        for name, module in options.modules.items()
        if is_program(module)
    ]
    if options.views or options.computed or any(name != field for name, field in (reads or {}).items()):
        found.problems.append(
            f"{who}: {kind} reads fields by their own names, call.read('field'): give {kind}(reads=[...])"
        )
    if is_async(given.script):
        found.problems.append(
            f"{who}: {kind}.script is async: write a plain `def` with `yield`, which serves async runs too"
        )
    found.problems += check_names(options.writes or {}, "writes", who, own=None, schema=options.output_schema)
    found.unknown += check_names(reads or {}, "reads", who, own=None, schema=options.schema, overlay=options.overlay)
    # A script may leave out what is not set, and yet the graph must set it.
    fields = [FieldParameter(name, name, True, True, name not in options.overlay) for name in reads or ()]
    binding = Binding(who, tuple(fields), takes_all=reads is None, schema=options.schema)
    own, _ = binding.reading()
    templates = plan_templates(options.modules.values(), options, own, found)
    # A copy: one object may be given to several nodes, and each has a name of its own.
    made = copy.copy(given)
    for fact, value in (("name", options.name), ("who", who), ("modules", None)):
        object.__setattr__(made, fact, value)  # they are frozen for others
    node = KindNode(
        name=options.name,
        **binding.facts(templates) | templates.facts(own, frozenset()) | {"resources": given.resources},
        writes=options.writes,
        goto=options.goto,
        sends=given.sends,
        layers=given.layers,
        bounded=type(given).bounded,
        made=made,
    )
    return found.built(node, bound_modules(options) if options.modules else None)


def build_node(options: NodeOptions) -> Built:
    """A node, with what the program holds for it and what is wrong with it."""
    built = _build(options)
    if options.map is not None:
        built = build_map_node(built, options, options.map)
    return built._replace(problems=(*options.problems, *built.problems))


def _build(options: NodeOptions) -> Built:
    node: Any = options.node
    # Kinds first: options of a kind may be callable, and a `Node` of the user's own may be a module too.
    if isinstance(node, KindOptions):
        return node.build(options)
    if isinstance(node, Node) and hasattr(node, "who"):
        return build_kind(node, options)
    if isinstance(node, dspy.Module):
        return build_module(node, options)
    problem = _refusal(node)
    if problem is not None:
        return Built(None, None, (f"{options.who} {problem}",))
    return build_function(node, options)


def _refusal(node: object) -> str | None:
    """The reason why something cannot be a node, and what to do; None if it can."""
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
    """The reason why a class is nothing that a node can be made of, and what to give."""
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
