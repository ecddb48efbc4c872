"""The turns of module nodes: what a node adds to a conversation, and its own turns as a history of DSPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import dspy

from dspyer.dspy_module.prompt_templates import predictors_in
from dspyer.messages import turn_of, turns_in
from dspyer.nodes.module_io import ModuleIO
from dspyer.nodes.names import FieldNames, listed
from dspyer.nodes.spec import NodeOptions
from dspyer.nodes.viewing import is_conversation
from dspyer.reducers import Updates, without_none


class Turns(NamedTuple):
    """How a module node takes part in conversations.

    Attributes:
        fields: the fields of messages that get its turn.
        histories: its inputs that get its own turns.
        inputs: the inputs of its signature that a turn holds: what the conversation does not hold already.
        answers: the outputs of its signature.
        beside: what else it may give that a turn holds.
    """

    fields: tuple[str, ...] = ()
    histories: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def given(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Inputs with histories in the place of messages."""
        own = (*self.inputs, *self.answers, *self.beside)
        for name in self.histories:
            if isinstance(inputs.get(name), list):
                inputs[name] = dspy.History(messages=turns_in(inputs[name], own, self.answers))
        return inputs

    def updates(self, node: str, inputs: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """What a turn adds to each conversation."""
        if not self.fields:
            return {}
        told = {name: inputs[name] for name in self.inputs if name in inputs}
        said = {name: values[name] for name in (*self.beside, *self.answers) if name in values}
        return dict.fromkeys(self.fields, turn_of(node, told, said))


NO_TURNS = Turns()


def with_warning(turns: Turns, updates: Mapping[str, object], warning: str) -> dict[str, object]:
    """A turn with the message before it that has warned the node.

    Args:
        turns: how the node takes part in conversations.
        updates: what it writes, its turn included.
        warning: the text.
    """
    message = {"role": "user", "name": "dspyer", "content": warning}
    return {**updates, **{field: Updates(message, updates[field]) for field in turns.fields if field in updates}}


class PlannedTurns(NamedTuple):
    """The turns of a node, what it writes beside them, and what is wrong."""

    turns: Turns
    writes: FieldNames | None
    problems: tuple[str, ...] = ()


def plan_turns(module: dspy.Module, found: ModuleIO, spec: NodeOptions) -> PlannedTurns:
    """Decides which of what a node writes is its turn, and which of what it reads its history.

    Args:
        module: the module.
        found: its inputs and outputs.
        spec: the options of the node.
    """
    outputs = found.outputs or {}
    names = dict(spec.writes or {})
    turns = {
        name: field
        for name, field in names.items()
        if name not in outputs and is_conversation(field, spec.output_schema)
    }
    writes = spec.writes if not turns else {name: field for name, field in names.items() if name not in turns}
    histories = tuple(name for name in spec.views if found.inputs.get(name) is dspy.History)
    missing = tuple(name for name in spec.views if name not in found.inputs and _is_own(name, spec))
    if not turns and not histories and not missing:
        return PlannedTurns(NO_TURNS, spec.writes)
    told = tuple(name for name, kind in found.inputs.items() if _is_held(name, kind, spec))
    beside = tuple(name for name in found.by_products if name == "reasoning")
    planned = Turns(tuple(turns.values()), histories, told, tuple(outputs), beside)
    problems = [
        f"{spec.who}: its signature has no input {name!r} for its own turns: add {name}: dspy.History = "
        "dspy.InputField()"
        for name in missing
    ]
    problems += [
        f"{spec.who}: {field!r} gets its turn, and a {type(module).__name__} does not say what it answers: let a "
        "function call it and return the message"
        for field in turns.values()
        if found.outputs is None
    ]
    if histories:
        problems += _history_problems(module, found, planned, spec.who)
    return PlannedTurns(planned, writes, tuple(problems))


def _is_held(name: str, kind: Any, spec: NodeOptions) -> bool:
    """Whether a turn holds an input: one that shows the conversation only if a step of its view bounds it.

    Otherwise each turn would hold all turns before it, and a conversation would grow with its square, or double.
    """
    if dspy.History in (kind, without_none(kind)):
        return False
    view, made = spec.views.get(name), spec.made.get(name)
    if made is not None:
        return not any(is_conversation(field, spec.schema) for field in made.names)
    field = (spec.reads or {}).get(name, name)
    if field in spec.overlay or not is_conversation(field, spec.schema):
        return True
    bounded = view is not None and any(step.name in ("new", "last", "fit") for step in view.steps)
    return bounded and view is not None and view.last_step != "then"


def _is_own(name: str, spec: NodeOptions) -> bool:
    view = spec.views[name]
    return any(step.name == "own" for step in view.steps) and is_conversation(view.field, spec.schema)


def _history_problems(module: dspy.Module, found: ModuleIO, turns: Turns, who: str) -> list[str]:
    kinds = [name for name, kind in found.inputs.items() if kind is dspy.History]
    if len(kinds) > 1:
        return [f"{who}: it has the histories {listed(kinds)}, of which DSPy shows one as JSON: keep one of them"]
    known = {*turns.answers, *turns.beside}
    for path, predictor in predictors_in(module):
        fields = predictor.signature.output_fields
        others = [name for name in fields if name not in known]
        if others and any(field.annotation is dspy.History for field in predictor.signature.input_fields.values()):
            text = f"{who}: its predictor {path!r} answers in {listed(others)}, which a turn of the node does not hold"
            return [f"{text}: take {turns.histories[0]!r} as text, by an input of type str"]
    return []
