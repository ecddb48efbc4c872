"""`Graph(conversation=True)`: the declarations by which the nodes of a graph share one conversation.

They are made of the options of the nodes when the graph is compiled, and what is built of them knows nothing of it: a
node does what it would do if the user had written them.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import dspy

from dspyer.errors import GraphError
from dspyer.messages import MESSAGES
from dspyer.nodes.field_access import is_conversation
from dspyer.nodes.module import ModuleIO, module_io, takes_more
from dspyer.nodes.node import Node
from dspyer.nodes.options import KindOptions, NodeOptions
from dspyer.nodes.steps import is_program
from dspyer.schema.schema import Schema
from dspyer.views import View, view

LAST, HISTORY = "last_message", "history"
"""The inputs in which a node gets the last message of another author, and its own turns."""

_OTHERS, _OWN = view(MESSAGES).others().last(1), view(MESSAGES).own()


def check_shared(schema: Schema) -> None:
    """Refuse a state in which nodes cannot share a conversation."""
    if schema.model is None:
        raise GraphError("conversation=True adds a field to a schema, and there is none: write Graph(Schema, ...)")
    if not is_conversation(MESSAGES, schema):
        raise GraphError(
            f"conversation=True: {schema.model.__name__} has a field {MESSAGES!r} of another type: give it the type "
            "dspyer.Messages, or rename it"
        )


def in_conversation(nodes: Iterable[NodeOptions]) -> list[NodeOptions]:
    """The options of nodes, with the declarations of a shared conversation.

    Left as they are: nodes that the user has left out or that name the conversation themselves, maps, and what is no
    module. A module that gets more inputs is copied, and one of several nodes only once.
    """
    copies: dict[int, dspy.Module] = {}
    return [_sharing(one, copies) for one in nodes]


def _sharing(options: NodeOptions, copies: dict[int, dspy.Module]) -> NodeOptions:
    module, named = options.node, {*(options.reads or {}).values(), *(options.writes or {}).values()}
    named |= {name for source in options.computed.values() for name in source.names}
    is_module = isinstance(module, dspy.Module) and not isinstance(module, (KindOptions, Node))
    if not options.conversation or options.map or MESSAGES in named or not is_module:
        return options
    found = module_io(module)
    if is_program(module):
        return _sharing_graph(options, found, module)
    if MESSAGES in (*found.inputs, *(found.outputs or ())) or (found.outputs is None and options.writes is None):
        return options  # without `writes` nothing can be made of it, which is reported when it is built
    history = next((name for name, kind in found.inputs.items() if kind is dspy.History), HISTORY)
    views = {LAST: _OTHERS, history: _OWN}
    known = (*found.inputs, *(found.outputs or ()), *found.by_products)
    added = [name for name in views if name not in known] if takes_more(module) else []
    module = _with_inputs(module, added, copies)
    writes = options.writes if options.writes is not None else {name: name for name in found.outputs or ()}
    shared = _reading(options._replace(node=module), found, views, added)
    return shared._replace(writes={**writes, MESSAGES: MESSAGES})


def _sharing_graph(options: NodeOptions, found: ModuleIO, program: Any) -> NodeOptions:
    """The options of a graph inside, whose nodes add their messages to the conversation if it has one of its own."""
    inner = program.graph
    if MESSAGES not in (*found.inputs, *found.extras) or not is_conversation(MESSAGES, inner.topology.schema):
        return options
    # An agent would be shown the tool calls of another one as its own. Nodes of other graphs are told apart.
    is_agent = any(node.bounded for node in inner.nodes.values())
    shared = _reading(options, found, {LAST: _OTHERS, MESSAGES: _OWN if is_agent else MESSAGES}, [MESSAGES])
    return shared if options.writes is None else shared._replace(writes={**options.writes, MESSAGES: MESSAGES})


def _reading(
    options: NodeOptions, found: ModuleIO, sources: Mapping[str, View | str], added: Collection[str]
) -> NodeOptions:
    """The options with the sources of inputs that are added, and of others where neither `reads` nor a field is one."""
    fields, own = options.schema.fields, options.reads
    taken = {
        name: one
        for name, one in sources.items()
        if name not in (own or ()) and (name in added or (name in found.inputs and name not in fields))
    }
    if not taken:
        return options
    # What it reads by the names of its fields has to be said, now that something is.
    reads = {name: name for name in found.inputs if name in fields} if own is None else own
    views = {**options.views, **{name: one for name, one in taken.items() if isinstance(one, View)}}
    return options._replace(reads={**reads, **dict.fromkeys(taken, MESSAGES)}, views=views)


def _with_inputs(module: Any, names: list[str], copies: dict[int, dspy.Module]) -> Any:
    """A copy of a module whose signature has these inputs too, as if the user had written them last."""
    if not names or id(module) in copies:
        return copies.get(id(module), module)
    copies[id(module)] = longer = copy.copy(module)
    if isinstance(module, dspy.Predict):
        longer.signature = _with_fields(module.signature, names)
    else:
        part = "predict" if isinstance(module, dspy.ChainOfThought) else "module"
        setattr(longer, part, _with_inputs(getattr(module, part), names, copies))
    return longer


def _with_fields(signature: type[dspy.Signature], names: Iterable[str]) -> type[dspy.Signature]:
    longer = signature
    for name in names:
        longer = longer.append(name, dspy.InputField(), type_=str if name == LAST else dspy.History)
    # The instructions that DSPy writes where the user writes none name the inputs.
    before, after = map(_default_instructions, (signature, longer))
    return longer.with_instructions(after) if signature.instructions == before else longer


def _default_instructions(signature: type[dspy.Signature]) -> Any:
    outputs = [name for name in signature.output_fields if name != "reasoning"]  # `ChainOfThought` adds it afterwards
    return dspy.Signature(f"{', '.join(signature.input_fields)} -> {', '.join(outputs)}").instructions
