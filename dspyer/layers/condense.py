"""Modules that shorten what a node writes to a field, before it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import dspy

from dspyer.errors import NodeOutputError, list_names
from dspyer.hints import without_none
from dspyer.nodes.callables import class_of
from dspyer.nodes.field_names import unknown_field_text
from dspyer.nodes.module import module_io, values_of_prediction
from dspyer.nodes.node import Call, Node, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import ModuleStep, Script
from dspyer.nodes.template_plans import filled, plan_templates
from dspyer.patch import DELETE, Replace, each_update
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList, thaw

LISTS = (list, tuple, FrozenList)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Condenser(Node):
    """A node that shortens one value. Its module is an attribute of the program, of this node's name.

    Attributes:
        node: the name of the node whose writes it shortens.
        field: the field.
        given: the name of the module's input.
        entry_kind: the kind of an update's entries: of a list `"items"`, of a mapping `"keys"`, else `""`.
        several: whether it takes a whole update and not one entry.
    """

    node: str
    field: str
    given: str
    entry_kind: str
    several: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", f"the module that condenses {self.field!r} of node {self.node!r}")

    def script(self, call: Call) -> Script[Reply]:
        """Shorten the value that the overlay of the call holds."""
        assert call.overlay is not None
        inputs = {self.given: thaw(call.overlay.raw(self.given))}
        result = yield filled(ModuleStep(getattr(call.program, self.name), inputs), self.templates), call
        values = dict(values_of_prediction(result, self.who, True))
        names = list(self.writes or values)
        if len(names) != 1 or names[0] not in values:
            raise NodeOutputError(
                f"{self.who} gave {list_names(values)}: a module of condense gives one value, the shorter one"
            )
        return Reply({self.field: values[names[0]]})


Condensers: TypeAlias = Mapping[str, Mapping[str, Condenser]]
"""The modules that shorten what nodes write, by node and field."""


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
    if value is DELETE or value is None:
        return value
    if condenser.entry_kind == "keys" and isinstance(value, Mapping) and not condenser.several:
        short = {}
        for key, entry in value.items():
            short[key] = yield from _one(condenser, entry, call)
        return short
    if condenser.entry_kind == "items" and isinstance(value, LISTS) and not condenser.several:
        entries: list[Any] = []
        for entry in value:
            one = yield from _one(condenser, entry, call)
            entries.append(one)
        return entries
    return (yield from _one(condenser, value, call))


def _one(condenser: Condenser, value: Any, call: Call) -> Script[Any]:
    overlay: Any = (FrozenDict() if call.overlay is None else call.overlay).set(condenser.given, freeze(value))
    reply = yield from condenser.script(call._replace(overlay=overlay))
    return reply.updates[condenser.field]


# --- building


def plan_condenser(
    node: str, field: str, module: object, schema: Schema, writes: Mapping[str, str] | None
) -> tuple[Condenser | None, list[str]]:
    """A module that shortens what a node writes to a field, and what is wrong with it."""
    who = f"node {node!r}: condense"
    if not schema.accepts_any_key and field not in schema.fields:
        return None, [f"{who} names {field!r}, which {unknown_field_text(field, schema)}"]
    if writes is not None and field not in writes.values():
        return None, [f"{who} names {field!r}, which it does not write: its writes are {list_names(writes.values())}"]
    if field in schema.live_fields:
        return None, [
            f"{who} names {field!r}, a live field, whose posts are seen as they are made: shorten in the node"
        ]
    if not isinstance(module, dspy.Module):
        kind = type(module).__name__
        return None, [
            f"{who} gives {field!r} an object of type {kind}: give a dspy.Module, dspy.Predict('text -> short')"
        ]
    found = module_io(module)
    inputs = [name for name in found.inputs if name not in found.optional] or list(found.inputs)
    if len(inputs) != 1 or (found.outputs is not None and len(found.outputs) != 1):
        has = f"has the inputs {list_names(found.inputs)} and the outputs {list_names(found.outputs or ())}"
        return None, [
            f"{who}: the module for {field!r} {has}: it takes one value, gives one, dspy.Predict('text -> short')"
        ]
    kind = _kind(schema, field)
    if kind == "messages":
        return None, [
            f"{who} names {field!r}: messages are never changed; shorten the text before it becomes a message"
        ]
    taken = class_of(without_none(found.inputs[inputs[0]]))
    several = taken is not None and issubclass(taken, (list, tuple, Mapping))
    outputs = None if found.outputs is None else dict.fromkeys(found.outputs, field)
    name = f"{node}_condense_{field}"
    options = NodeOptions(name, schema, overlay=frozenset({inputs[0]}))
    templates, problems, unknown = plan_templates([module], options, {}, f"{who} of {field!r}")
    condenser = Condenser(
        name=name,
        node=node,
        writes=outputs,
        field=field,
        given=inputs[0],
        entry_kind=kind,
        several=several,
        templates=templates,
    )
    return condenser, [*problems, *unknown]


def _kind(schema: Schema, field: str) -> str:
    """The kind of the entries of one update of a field."""
    reducer = schema.reducer(field)
    if reducer is None or reducer.parts is None or reducer.name == "append":
        return ""  # one update is one entry
    return {"members": "items", "amount": ""}.get(reducer.kind, reducer.kind)
