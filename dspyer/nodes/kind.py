"""Nodes of a kind of the user's own: a `Node` with a `script`, given to `add_node` or `add_map`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any, ClassVar

import dspy

from dspyer.errors import NodeOutputError, brief
from dspyer.nodes.field_names import check_names
from dspyer.nodes.function import bound_modules, module_problems
from dspyer.nodes.node import Built, Call, Command, Look, Node, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.outputs import goto_of, permitted
from dspyer.nodes.program_calls import is_program
from dspyer.nodes.steps import Script, wrapped
from dspyer.nodes.template_plans import filled, plan_templates
from dspyer.state import ImmutableState


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindNode(Node):
    """A node of a kind of the user's own, whose replies are checked.

    Attributes:
        made: what the user has made, without its modules.
        names: what it reads, of the state or of what a `Send` or a map brings; None for any.
    """

    kind: ClassVar[str] = "kind"

    made: Node
    names: tuple[str, ...] | None

    @property
    def look(self) -> Look:
        """How pictures show it."""
        return self.made.look._replace(inner=False)

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that a `Send` to it may bring; None for any."""
        return None if self.names is None else self.templates.takes.union(self.names)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of what `read_inputs` gives."""
        return self.names or ()

    def read_inputs(self, call: Call) -> dict[str, Any]:
        """The fields that it declares to read, as far as they are set."""
        return {
            name: call.read(name) for name in self.names or () if name in (call.overlay or ()) or name in call.state
        }

    def whole_fields(self, state: ImmutableState) -> list[tuple[str, str]]:
        """The fields that a call reads whole, each as the node's own name and the field."""
        return [(name, name) for name in (state if self.reads is None else self.reads) if name in state]

    def script(self, call: Call) -> Script[Reply]:
        """The script of the user's kind, whose reply may write what the node declares."""
        found: Any = self.made.script(call)
        if type(found) is not GeneratorType:
            raise NodeOutputError(
                f"{self.who}: {type(self.made).__name__}.script gave {brief(found)}, and no script: write "
                "`yield call.module(...)` or `yield call.function(...)` in it, `yield from ()` if it waits for nothing"
            )
        if self.templates.in_instructions:
            found = wrapped(found, partial(filled, templates=self.templates))
        reply = yield from found
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
    problems += check_names(options.writes or {}, "writes", who, own=None, schema=options.output_schema)
    unknown = check_names(reads or {}, "reads", who, own=None, schema=options.schema, overlay=options.overlay)
    own = None if reads is None else {name: name for name in reads if name not in options.overlay}
    templates, wrong, missing = plan_templates(options.modules.values(), options, own, who)
    made = copy.copy(given)
    for fact, value in (("name", options.name), ("who", who), ("modules", None)):
        object.__setattr__(made, fact, value)  # they are frozen for others
    node = KindNode(
        name=options.name,
        reads=None if own is None else templates.all_reads(own),
        optional=given.optional if own is None else templates.optional_fields(own, given.optional),
        writes=options.writes,
        goto=options.goto,
        sends=given.sends,
        resources=given.resources,
        templates=templates,
        layers=given.layers,
        made=made,
        names=None if reads is None else tuple(reads),
    )
    module: dspy.Module | None = bound_modules(options) if options.modules else None
    return Built(node, module, (*problems, *wrong), (*unknown, *missing))
