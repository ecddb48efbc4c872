"""The fix of a check: the node that corrects an output that the check has refused.

By default it is a predictor with the inputs of the checked node, `previous_<output>`, `problems`, and the node's
outputs. The check sends it all of these with a `Send`, so a fix reads what the node itself has read, also where the
node has overwritten an input since.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import dspy

from dspyer.dspy_module.predictors import predictors_in
from dspyer.errors import list_names
from dspyer.nodes.build import refused_class
from dspyer.nodes.check import PREVIOUS, PROBLEMS, CheckOptions
from dspyer.nodes.field_names import FieldNames
from dspyer.nodes.interrupt import InterruptOptions
from dspyer.nodes.module import ModuleIO, module_io
from dspyer.nodes.node import Built, Node
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.program_calls import is_program
from dspyer.schema.type_fit import value_type

INSTRUCTIONS = (
    "An earlier output for these inputs was checked and refused. The inputs whose names begin with `previous_` hold "
    "that output, and `problems` says what is wrong with it. Give the output again: solve every problem, and keep what "
    "is right."
)


def fix_name(of: str) -> str:
    """The name of the node that corrects another one."""
    return f"{of}_fix"


def checked_node_problems(node: Node | None, options: NodeOptions, who: str) -> list[str]:
    """Why a node cannot have a check."""
    what, name = options.node, options.name
    if options.map is not None:
        return [f"{who}: {name!r} is a map: check each item, with add_check in the graph that the map runs per item"]
    if isinstance(what, InterruptOptions):
        return [f"{who}: {name!r} asks a person, and an answer is not corrected: say its type, answer=..., instead"]
    if isinstance(what, CheckOptions):
        return [f"{who}: {name!r} is a check itself: let one check find all problems of {what.of!r}"]
    if is_program(what):
        return [f"{who}: {name!r} is a graph: call add_check in that graph, for the node that makes the output"]
    if node is None:
        return []
    problems = []
    if node.goto:
        problems.append(
            f"{who}: {name!r} says itself where its branch goes, with Command, so that no check could follow it: use a "
            f"router, add_conditional_edges({name!r}, ...), which then follows the check"
        )
    schema = options.schema
    folded = [field for field in schema.fields if schema.reducer(field) is not None or field in schema.live_fields]
    problems += [
        f"{who}: {name!r} writes {field!r}, which folds what is written, so a refused output could not be replaced: "
        f"write to a field without a reducer, and let the next node add it to {field!r}; or put {name!r} and its check "
        "in a graph of their own, and use that as the node"
        for field in (node.writes or {}).values()
        if field in folded
    ]
    return problems


class PlannedFix(NamedTuple):
    """The options of a fix, or the reasons why there is none."""

    options: NodeOptions | None
    problems: tuple[str, ...] = ()


def plan_fix(check: CheckOptions, of: NodeOptions, node: Node, who: str) -> PlannedFix:
    """The options of the node that corrects the output of another one."""
    if node.writes is None:
        known = isinstance(of.node, dspy.Module) and not of.schema.accepts_any_key  # its own error says the same
        text = f"{who}: {of.name!r} does not say what it writes, which its fix gets"
        return PlannedFix(None, () if known else (f"{text}: add_node({of.name!r}, ..., writes=[...])",))
    brought = brought_names(node)
    twice = [name for name in brought[len(node.input_names) :] if name in (*node.input_names, *node.writes)]
    if twice:
        text = f"{who}: {of.name!r} has an input or output {twice[0]!r}, and its fix gets another value of this name"
        return PlannedFix(None, (f"{text}: rename that of {of.name!r}",))
    module: Any = check.fix
    problems: list[str] = []
    writes: FieldNames | None
    if module is None:
        module, problems = _default_fix(of, node, who)
        writes = None if module is None else {name: node.writes[name] for name in module.signature.output_fields}
    elif isinstance(module, dspy.Module):
        writes, problems = _writes_of_module(module, node, who)
    elif callable(module) and not isinstance(module, type):
        writes = {field: field for field in node.writes.values()}
    elif isinstance(module, type):
        problems = [f"{who}: its fix {refused_class(module)}"]
    else:
        problems = [f"{who}: fix={module!r}: give a module or a function that corrects the output of {of.name!r}"]
    if problems:
        return PlannedFix(None, tuple(problems))
    options = NodeOptions(
        fix_name(of.name),
        of.schema,
        module,
        writes=writes,
        overlay=frozenset(brought),
        condense=of.condense,
        retry=of.retry,
        timeout=of.timeout,
    )
    return PlannedFix(options)


def brought_names(node: Node) -> tuple[str, ...]:
    """The names of what a check sends to the fix of a node."""
    return (*node.input_names, *(f"{PREVIOUS}{name}" for name in node.writes or ()), PROBLEMS)


def finished_fix(built: Built, check: CheckOptions, of: Node) -> Built:
    """A built fix, whose reads name the fields from which the check takes what it sends: pictures show them."""
    node = built.node
    sources = {name: field for name, field in (of.reads or {}).items() if name in of.input_names}
    sources |= {f"{PREVIOUS}{name}": field for name, field in (of.writes or {}).items()} | {PROBLEMS: check.into}
    given = list_names(brought_names(of))
    unknown = tuple(f"{text} A fix is also given {given}" for text in built.unknown)
    built = built._replace(problems=(*built.problems, *unknown), unknown=())
    if node is None or node.reads is None:
        return built
    taken = node.takes
    own = {name: field for name, field in sources.items() if taken is None or name in taken}
    optional = (node.optional | set(own.values())) - set(node.reads.values())
    return built._replace(node=replace(node, reads={**own, **node.reads}, optional=frozenset(optional)))


def _writes_of_module(module: dspy.Module, node: Node, who: str) -> tuple[FieldNames | None, list[str]]:
    """What a given fix writes: the fields that the checked node writes for outputs of the same names."""
    named = dict(node.writes or {})
    if is_program(module):
        graph: Any = module
        outputs = graph.graph.outputs
    else:
        outputs = module_io(module).outputs
    if outputs is None:
        return node.writes, []
    writes = {name: named[name] for name in outputs if name in named}
    if writes:
        return writes, []
    return None, [f"{who}: its fix gives {list_names(outputs)}, none of the outputs to correct: {list_names(named)}"]


# --- the default


def _default_fix(of: NodeOptions, node: Node, who: str) -> tuple[dspy.Predict | None, list[str]]:
    """A predictor that corrects the output of a module, with the language model that is pinned to the module."""
    given = f"give the module that corrects it, add_check(..., fix=dspy.Predict('..., {PROBLEMS}: list[str] -> ...'))"
    module = of.node
    if not isinstance(module, dspy.Module):
        return None, [f"{who}: {of.name!r} is a function, which has no signature to derive a correction from: {given}"]
    found, declared = module_io(module), signature_of_module(module)
    outputs = _outputs(found, declared, of, node)
    unknown = [name for name, info in outputs.items() if info is None]
    if unknown or not outputs:
        what = f"the type of {list_names(unknown)}" if unknown else "what it gives"
        return None, [f"{who}: {of.name!r}, a {type(module).__name__}, does not say {what}: {given}"]
    fields: dict[str, tuple[Any, Any]] = {}
    known_inputs = {} if declared is None else declared.input_fields
    for name, kind in found.inputs.items():
        info = known_inputs.get(name)
        fields[name] = (kind, dspy.InputField() if info is None else copy.copy(info))
    for name, (kind, _) in _known(outputs).items():
        fields[f"{PREVIOUS}{name}"] = (kind, dspy.InputField(desc=f"the {name} that was refused"))
    fields[PROBLEMS] = (list[str], dspy.InputField(desc="what is wrong with the refused output"))
    fields |= _known(outputs)
    instructions = "" if declared is None else f"{declared.instructions}\n\n"
    name = f"{of.name.title().replace('_', '')}Fix"
    predictor = dspy.Predict(dspy.Signature(fields, f"{instructions}{INSTRUCTIONS}", name))  # type: ignore[arg-type, call-arg, unused-ignore]  # DSPy's stubs know one form
    predictor.lm = next((inner.lm for _, inner in predictors_in(module) if inner.lm is not None), None)
    return predictor, []


Output = tuple[Any, Any]
"""The type and the field of an output."""


def _known(outputs: Mapping[str, Output | None]) -> dict[str, Output]:
    return {name: found for name, found in outputs.items() if found is not None}


def _outputs(
    found: ModuleIO, declared: type[dspy.Signature] | None, of: NodeOptions, node: Node
) -> dict[str, Output | None]:
    """The outputs that a correction gives: those that the node writes, except for the trajectory of a module."""
    known = {} if declared is None else declared.output_fields
    outputs: dict[str, Output | None] = {}
    for name, field in (node.writes or {}).items():
        if name in found.by_products and name != "reasoning":
            continue
        kind = (found.outputs or {}).get(name)
        if kind is None:
            kind = str if name in found.by_products else value_type(of.schema, field)
        info = known.get(name)
        outputs[name] = None if kind is Any else (kind, dspy.OutputField() if info is None else copy.copy(info))
    return outputs


def signature_of_module(module: Any) -> type[dspy.Signature] | None:
    """The signature that a user gave a module; None if it has several or none."""
    inner = getattr(module, "module", None)  # BestOfN and Refine
    if isinstance(inner, dspy.Module):
        return signature_of_module(inner)
    signature = getattr(module, "signature", None) or getattr(getattr(module, "predict", None), "signature", None)
    return signature if isinstance(signature, type) and issubclass(signature, dspy.Signature) else None
