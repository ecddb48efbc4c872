"""`Condense`: the layer whose modules shorten what a node writes to its fields, before it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import dspy

from dspyer.errors import GraphError, NodeOutputError, list_names
from dspyer.hints import without_none
from dspyer.layers.layer import Inner, Layer, Place, of_part
from dspyer.nodes.binding import filled, plan_templates
from dspyer.nodes.callables import class_of
from dspyer.nodes.field_access import unknown_field_text
from dspyer.nodes.function import folded, given
from dspyer.nodes.module import module_io, values_of_prediction
from dspyer.nodes.node import Call, Flaws, Node, Output, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import ModuleStep, Script
from dspyer.patch import DELETE, Replace, each_update
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList, thaw


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Condenser(Node):
    """A node that shortens one value. Its module is an attribute of the program, of this node's name.

    Attributes:
        node: the name of the node whose writes it shortens.
        field: the field.
        given: the name of the module's input.
        entry_kind: whether it takes the entries of an update one by one: of a list `"items"`, of a mapping `"keys"`;
            `""` for the whole update.
    """

    node: str
    field: str
    given: str
    entry_kind: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", f"the module that condenses {self.field!r} of node {self.node!r}")

    def shortened(self, value: Any, call: Call) -> Script[Any]:
        """One value, shortened. The module gets it under the name of its input, templates too."""
        frozen: Any = freeze(value)
        # As an overlay, so that templates of the module find the value under the name of its input and not the field.
        call = call._replace(overlay=(call.overlay or FrozenDict()).set(self.given, frozen))
        step = ModuleStep(getattr(call.program, self.name), {self.given: thaw(frozen)})
        result = yield filled(step, self.templates), call
        values = dict(values_of_prediction(result, self.who, True))
        # The outputs of some modules are not known before they have run: only the result shows that it is one value.
        names = list(self.writes or values)
        if len(names) != 1 or names[0] not in values:
            raise NodeOutputError(
                f"{self.who} gave {list_names(values)}: a module of condense gives one value, the shorter one"
            )
        return values[names[0]]


def condensed(condensers: Mapping[str, Condenser], updates: Mapping[str, object], call: Call) -> Script[Any]:
    """The updates of a node, shortened."""
    found = dict(updates)
    for field, condenser in condensers.items():
        if field not in found:
            continue
        update = found[field]
        short = []
        for part in each_update(update):
            whole = isinstance(part, Replace)
            value = yield from _shorter(condenser, part.value if isinstance(part, Replace) else part, call)
            short.append(Replace(value) if whole else value)
        found[field] = Updates(*short) if isinstance(update, Updates) else short[0]
    return found


def _shorter(condenser: Condenser, value: Any, call: Call) -> Script[Any]:
    # There is nothing to shorten, and a module that is asked about nothing makes something up.
    if value is DELETE or value is None:
        return value
    kind = condenser.entry_kind
    is_list = kind == "items" and isinstance(value, (list, tuple, FrozenList))
    if not is_list and not (kind == "keys" and isinstance(value, Mapping)):
        return (yield from condenser.shortened(value, call))
    short = {}
    for key, entry in enumerate(value) if is_list else value.items():
        short[key] = yield from condenser.shortened(entry, call)
    return list(short.values()) if is_list else short


@dataclass(frozen=True, slots=True)
class Condense(Layer):
    """The modules of one node, by field."""

    place: ClassVar[Place] = "output"

    condensers: Mapping[str, Condenser]

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The output of `inner`, shortened. The modules have attempts of their own: what the node gave is kept."""
        # The node's reply is not committed to a state yet: a field may have a limit that only the shorter value keeps.
        output: Output = yield from inner(call._replace(made=self._unshortened))
        return (yield from of_part(output.call, "condense", partial(self._condensed, output)))

    def _unshortened(self, call: Call, reply: Reply) -> Output:
        """Validates what will not be shortened, before a module is called for nothing. The rest may be too long yet."""
        schema = call.runner.session.graph.topology.schema
        updates = given(call, reply.updates, schema)
        others = {field: update for field, update in updates.items() if field not in self.condensers}
        schema.commit(call.state, others, node=call.node, commit_id=call.execution, whole_values=reply.whole)
        return Output({}, call.state, reply.goto, None, False, None, call, updates)

    def _condensed(self, output: Output, call: Call) -> Script[Output]:
        try:
            updates = yield from condensed(self.condensers, output.updates, call)
            patch, after = folded(call, updates, call.runner.session.graph.topology.schema)
        except NodeOutputError as error:
            # As an error of a module: a retry asks for a new response, past the cache, which has the same one again.
            error.of_module = True
            raise
        return output._replace(patch=patch, after=after)


# --- building


def plan_condenser(
    node: str, field: str, module: object, schema: Schema, writes: Mapping[str, str] | None
) -> tuple[Condenser, list[str]]:
    """A module that shortens what a node writes to a field, and what is wrong with its templates.

    Raises:
        GraphError: if it cannot shorten that field.
    """
    who = f"node {node!r}: condense"
    if field not in schema:
        raise GraphError(f"{who} names {field!r}, which {unknown_field_text(field, schema)}")
    if writes is not None and field not in writes.values():
        raise GraphError(
            f"{who} names {field!r}, which it does not write: its writes are {list_names(writes.values())}"
        )
    if field in schema.live_fields:
        raise GraphError(
            f"{who} names {field!r}, a live field, whose posts are seen as they are made: shorten in the node"
        )
    if not isinstance(module, dspy.Module):
        kind = type(module).__name__
        raise GraphError(
            f"{who} gives {field!r} an object of type {kind}: give a dspy.Module, dspy.Predict('text -> short')"
        )
    found = module_io(module)
    inputs = [name for name in found.inputs if name not in found.optional] or list(found.inputs)
    if len(inputs) != 1 or (found.outputs is not None and len(found.outputs) != 1):
        has = f"has the inputs {list_names(found.inputs)} and the outputs {list_names(found.outputs or ())}"
        raise GraphError(
            f"{who}: the module for {field!r} {has}: it takes one value, gives one, dspy.Predict('text -> short')"
        )
    kind = _kind(schema, field)
    if kind == "messages":
        raise GraphError(
            f"{who} names {field!r}: messages are never changed; shorten the text before it becomes a message"
        )
    taken = class_of(without_none(found.inputs[inputs[0]]))
    several = taken is not None and issubclass(taken, (list, tuple, Mapping))
    outputs = None if found.outputs is None else dict.fromkeys(found.outputs, field)
    name = f"{node}_condense_{field}"
    # The input is no field of the state, and templates may name it: `plan_templates` takes overlays as known.
    options = NodeOptions(name, schema, overlay=frozenset({inputs[0]}))
    wrong = Flaws(f"{who} of {field!r}")
    templates = plan_templates([module], options, {}, wrong)
    condenser = Condenser(
        name=name,
        node=node,
        writes=outputs,
        field=field,
        given=inputs[0],
        entry_kind="" if several else kind,
        templates=templates,
    )
    return condenser, wrong.without_sends()


def _kind(schema: Schema, field: str) -> str:
    """The kind of the entries of one update of a field."""
    reducer = schema.reducer(field)
    if reducer is None or reducer.parts is None or reducer.name == "append":
        return ""  # one update is one entry
    return {"members": "items", "amount": ""}.get(reducer.kind, reducer.kind)
