"""Nodes of a kind of the user's own: a `Node` with a `script`, given to `add_node` or `add_map`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any, ClassVar

import dspy

from dspyer.errors import NodeOutputError, brief
from dspyer.nodes.binding import Binding, BoundNode, FieldParameter, snapshot
from dspyer.nodes.field_names import check_names
from dspyer.nodes.function import bound_modules, module_problems
from dspyer.nodes.node import Built, Call, Command, Look, Node, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.outputs import goto_of, permitted
from dspyer.nodes.program_calls import is_program
from dspyer.nodes.steps import Script, wrapped
from dspyer.nodes.sync_async import is_async
from dspyer.nodes.template_plans import filled, plan_templates


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
        """How pictures show it."""
        return self.made.look._replace(inner=False)

    def script(self, call: Call) -> Script[Reply]:
        """The script of the user's kind, which sees and may write what the node declares."""
        reply: Any = self.made.script(call._replace(state=snapshot(call, self.reads)))
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
    problems = module_problems(options.modules, who)
    problems += [
        f"{who}: modules binds the program {name!r}, and a script calls modules alone: make it a node, or call it in a "
        "function, with `ctx.call`"
        for name, module in options.modules.items()
        if is_program(module)
    ]
    if options.views or options.computed or any(name != field for name, field in (reads or {}).items()):
        problems.append(f"{who}: {kind} reads fields by their own names, call.read('field'): give {kind}(reads=[...])")
    if is_async(given.script):
        problems.append(f"{who}: {kind}.script is async: write a plain `def` with `yield`, which serves async runs too")
    problems += check_names(options.writes or {}, "writes", who, own=None, schema=options.output_schema)
    unknown = check_names(reads or {}, "reads", who, own=None, schema=options.schema, overlay=options.overlay)
    # A script may leave out what is not set, and yet the graph must set it.
    fields = [FieldParameter(name, name, True, True, name not in options.overlay) for name in reads or ()]
    binding = Binding(who, tuple(fields), takes_all=reads is None, schema=options.schema)
    own, _ = binding.reading()
    templates, wrong, missing = plan_templates(options.modules.values(), options, own, who)
    unset = {} if own is None else {"optional": templates.optional_fields(own, frozenset())}
    made = copy.copy(given)
    for fact, value in (("name", options.name), ("who", who), ("modules", None)):
        object.__setattr__(made, fact, value)  # they are frozen for others
    node = KindNode(
        name=options.name,
        **binding.facts(templates) | unset | {"resources": given.resources},
        writes=options.writes,
        goto=options.goto,
        sends=given.sends,
        layers=given.layers,
        made=made,
    )
    module: dspy.Module | None = bound_modules(options) if options.modules else None
    return Built(node, module, (*problems, *wrong), (*unknown, *missing))
