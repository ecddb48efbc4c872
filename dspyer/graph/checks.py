"""Checks as nodes and edges, `of -> check -> fix -> check -> ...`, and error edges; and what is wrong with them.

The fix of a check corrects an output that the check has refused. By default it is a predictor with the inputs of the
checked node, `previous_<output>`, `problems`, and the node's outputs. The check sends it all of these with a `Send`, so
a fix reads what the node itself has read, also where the node has overwritten an input since.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dspy

from dspyer.errors import GraphError, is_always_raised, list_names, suggestion
from dspyer.failure import Failure
from dspyer.graph.spec import Exit, checked_edge_ends
from dspyer.layers.attempts import check_on
from dspyer.layers.handlers import ErrorEdge
from dspyer.lm.parameters import predictors_in
from dspyer.nodes.build import build_node, refused_class
from dspyer.nodes.callables import members, names_class
from dspyer.nodes.check import PREVIOUS, PROBLEMS, CheckNode, CheckOptions, checks_of, facts_around, into_problems
from dspyer.nodes.field_access import FieldNames, is_conversation, unknown_field_text
from dspyer.nodes.interrupt import InterruptOptions
from dspyer.nodes.module import ModuleIO, module_io
from dspyer.nodes.node import Built, Node
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import is_program
from dspyer.scheduler.topology import END, START
from dspyer.schema.schema import Schema
from dspyer.schema.type_fit import shown_type, update_type, value_type
from dspyer.values.scalars import flag_problems, is_whole_number

if TYPE_CHECKING:
    from dspyer.graph.compile import GraphParts

INSTRUCTIONS = (
    "An earlier output for these inputs was checked and refused. The inputs whose names begin with `previous_` hold "
    "that output, and `problems` says what is wrong with it. Give the output again: solve every problem, and keep what "
    "is right."
)


def fix_name(of: str) -> str:
    """The name of the node that corrects another one."""
    return f"{of}_fix"


def checked_node_problems(node: Node | None, options: NodeOptions, who: str) -> list[str]:
    """The reasons why a node cannot have a check."""
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
        + ("; or leave it out of the conversation, conversation=False" if is_conversation(field, schema) else "")
        for field in (node.writes or {}).values()
        if field in folded
    ]
    return problems


def fix_options(check: CheckOptions, of: NodeOptions, node: Node, who: str) -> NodeOptions:
    """The options of the node that corrects the output of another one; a `GraphError` says why there is none."""
    if node.writes is None:
        known = isinstance(of.node, dspy.Module) and not of.schema.accepts_any_key  # its own error says the same
        text = f"{who}: {of.name!r} does not say what it writes, which its fix gets"
        raise GraphError(() if known else f"{text}: add_node({of.name!r}, ..., writes=[...])")
    brought = brought_names(node)
    # All that a fix is sent has one name space, with the inputs of the node first.
    twice = [name for name in brought[len(node.input_names) :] if name in (*node.input_names, *node.writes)]
    if twice:
        text = f"{who}: {of.name!r} has an input or output {twice[0]!r}, and its fix gets another value of this name"
        raise GraphError(f"{text}: rename that of {of.name!r}")
    module: Any = check.fix
    writes: FieldNames
    if module is None:
        module = _default_fix(of, node, who)
        writes = {name: node.writes[name] for name in module.signature.output_fields}
    elif isinstance(module, dspy.Module):
        writes = _writes_of_module(module, node.writes, who)
    elif callable(module) and not isinstance(module, type):
        writes = {field: field for field in node.writes.values()}
    elif isinstance(module, type):
        raise GraphError(f"{who}: its fix {refused_class(module)}")
    else:
        raise GraphError(f"{who}: fix={module!r}: give a module or a function that corrects the output of {of.name!r}")
    return NodeOptions(
        fix_name(of.name),
        of.schema,
        module,
        writes=writes,
        overlay=frozenset(brought),
        condense=of.condense,
        retry=of.retry,
        timeout=of.timeout,
        lm=of.lm,
    )


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
    # The names that it takes and not all that it is sent: a picture would show reads which do not exist.
    own = {name: field for name, field in sources.items() if taken is None or name in taken}
    # The sent value hides the field, so the field need not be set.
    optional = (node.optional | set(own.values())) - set(node.reads.values())
    # A check sends all that the fix may need, which may be more than it takes.
    return built._replace(node=replace(node, reads={**own, **node.reads}, optional=frozenset(optional), takes=None))


def _writes_of_module(module: Any, named: FieldNames, who: str) -> FieldNames:
    """The writes of a given fix: the fields that the checked node writes for outputs of the same names."""
    outputs = module.graph.outputs if is_program(module) else module_io(module).outputs
    if outputs is None:
        return named
    writes = {name: named[name] for name in outputs if name in named}
    if not writes:
        raise GraphError(
            f"{who}: its fix gives {list_names(outputs)}, none of the outputs to correct: {list_names(named)}"
        )
    return writes


def _default_fix(of: NodeOptions, node: Node, who: str) -> dspy.Predict:
    """A predictor that corrects the output of a module, with the language model that is pinned to the module."""
    given = f"give the module that corrects it, add_check(..., fix=dspy.Predict('..., {PROBLEMS}: list[str] -> ...'))"
    module = of.node
    if not isinstance(module, dspy.Module):
        raise GraphError(
            f"{who}: {of.name!r} is a function, which has no signature to derive a correction from: {given}"
        )
    found, declared = module_io(module), signature_of_module(module)
    inputs, outputs = ({}, {}) if declared is None else (declared.input_fields, declared.output_fields)
    kinds = _output_types(found, of, node)
    unknown = [name for name, kind in kinds.items() if kind is Any]
    if unknown or not kinds:
        what = f"the type of {list_names(unknown)}" if unknown else "what it gives"
        raise GraphError(f"{who}: {of.name!r}, a {type(module).__name__}, does not say {what}: {given}")
    fields: dict[str, tuple[Any, Any]] = {}
    for name, kind in found.inputs.items():
        fields[name] = (kind, copy.copy(inputs[name]) if name in inputs else dspy.InputField())
    for name, kind in kinds.items():
        fields[f"{PREVIOUS}{name}"] = (kind, dspy.InputField(desc=f"the {name} that was refused"))
    fields[PROBLEMS] = (list[str], dspy.InputField(desc="what is wrong with the refused output"))
    for name, kind in kinds.items():
        fields[name] = (kind, copy.copy(outputs[name]) if name in outputs else dspy.OutputField())
    instructions = "" if declared is None else f"{declared.instructions}\n\n"
    name = f"{of.name.title().replace('_', '')}Fix"
    predictor = dspy.Predict(dspy.Signature(fields, f"{instructions}{INSTRUCTIONS}", name))  # type: ignore[arg-type, call-arg, unused-ignore]  # DSPy's stubs know one form
    # A correction by another model than the one that made the mistake would be a surprise, on the bill too.
    predictor.lm = next((inner.lm for _, inner in predictors_in(module) if inner.lm is not None), None)
    return predictor


def _output_types(found: ModuleIO, of: NodeOptions, node: Node) -> dict[str, Any]:
    """The outputs that a correction gives: those that the node writes, except for the trajectory of a module."""
    kinds: dict[str, Any] = {}
    for name, field in (node.writes or {}).items():
        # A trajectory is a record of what a module did: no correction can give another one. Reasoning leads to the
        # output.
        if name in found.by_products and name != "reasoning":
            continue
        kind = (found.outputs or {}).get(name)
        if kind is None:
            kind = str if name in found.by_products else value_type(of.schema, field)
        kinds[name] = kind
    return kinds


def signature_of_module(module: Any) -> type[dspy.Signature] | None:
    """The signature that a user gave a module; None if it has several or none."""
    inner = getattr(module, "module", None)  # BestOfN and Refine
    if isinstance(inner, dspy.Module):
        return signature_of_module(inner)
    signature = getattr(module, "signature", None) or getattr(getattr(module, "predict", None), "signature", None)
    return signature if isinstance(signature, type) and issubclass(signature, dspy.Signature) else None


def build_checks(parts: GraphParts) -> None:
    """Build the checks and their fixes, whose options come after those of the check.

    A check that cannot follow a node is no node of the graph, but its own mistakes are found.
    """
    given, parts.options = {one.name: one for one in parts.options}, []
    known: dict[str, str] = {}  # the check of each node
    for options in given.values():
        if not isinstance(options.node, CheckOptions):
            parts.options.append(options)
            continue
        check, who = options.node, f"check {options.name!r}"
        parts.problems += _option_problems(check, options, who)
        built = check.build(options)
        parts.add(options.name, built._replace(node=None))
        fix = _fix_of(check)
        if reason := _no_place(check, fix, given, known):
            parts.problems.append(f"{who}: {reason}")
            continue
        known[check.of] = options.name
        parts.options.append(options)
        # The node may be missing, since it has problems of its own: the check keeps its name and edges all the same.
        of, node = given[check.of], parts.nodes.get(check.of)
        # A node that cannot have a check gets no fix either: what is wrong with that would only follow from this.
        refused = checked_node_problems(node, of, who)
        parts.problems += refused
        if fix is not None:
            # The options of a fix that cannot be built stand for it, so that edges to it are not called unknown.
            parts.options.append(NodeOptions(fix, options.schema))
            if node is not None and not refused:
                _build_fix(check, of, node, who, parts)
        if built.node is None or node is None:
            continue
        parts.nodes[options.name] = CheckNode(
            name=options.name,
            **facts_around(built.node),
            writes={check.into: check.into},
            goto=() if fix is None else (fix,),
            sends=fix is not None,
            of=of.name,
            what=f"the output of {of.name!r}",
            note=f"an error edge that takes this error begins at {options.name!r}, not at {of.name!r}",
            into=check.into,
            fix=fix,
            max_fixes=check.max_fixes,
            accept=check.accept,
            outputs=dict(node.writes or {}),
        )
    # In the order of declaration, in which pictures and texts show the nodes.
    parts.nodes = {name: parts.nodes[name] for name in parts.names if name in parts.nodes}


def _fix_of(check: CheckOptions) -> str | None:
    """The name of the node that corrects what a check refuses; None if it allows no correction."""
    fixes: Any = check.max_fixes
    return fix_name(check.of) if is_whole_number(fixes) and fixes > 0 else None


def _build_fix(check: CheckOptions, of: NodeOptions, node: Node, who: str, parts: GraphParts) -> None:
    try:
        options = fix_options(check, of, node, who)
    except GraphError as error:
        parts.problems += error.problems
        return
    parts.options[-1] = options
    parts.add(options.name, finished_fix(build_node(options), check, node))


def _option_problems(check: CheckOptions, options: NodeOptions, who: str) -> Iterator[str]:
    """The options of a check that are wrong, whatever node it follows."""
    fixes: Any = check.max_fixes
    if not is_whole_number(fixes) or fixes < 0:
        yield f"{who}: max_fixes={fixes!r}: give the most corrections of one output, 0 or more"
    yield from (f"{who}: {problem}" for problem in flag_problems(accept=check.accept))
    if check.fix is not None and fixes == 0:
        yield f"{who}: with max_fixes=0 nothing is corrected: leave fix= out, or allow corrections"
    yield from into_problems(check.into, options)


def _no_place(check: CheckOptions, fix: str | None, given: Mapping[str, NodeOptions], others: Mapping[str, str]) -> str:
    """The reason why a check cannot follow the node that it names; "" if it can."""
    if check.of not in given:
        known = [name for name, one in given.items() if not isinstance(one.node, CheckOptions)]
        return f"of={check.of!r} is no node.{suggestion(check.of, known)} Nodes: {list_names(known)}"
    if check.of in others:
        return f"{check.of!r} has the check {others[check.of]!r} already: let one check find all problems"
    if fix in given:
        return (
            f"the node that corrects {check.of!r} is called {fix!r}, and there is a node of this name: give that one "
            "another name"
        )
    return ""


# --- edges


def follow_checks(parts: GraphParts) -> None:
    """Let the edges and routers of checked nodes begin at their checks."""
    exits, nodes, problems = parts.exits, parts.nodes, parts.problems
    # Before any exit is changed: below, edges to checks and fixes are made that no user has declared.
    declared = [(source, target) for source, ways in exits.items() for way in ways for target in _targets(way)]
    lost = [router.source for router in parts.lost]
    checks = [(one.name, one.node) for one in parts.options if isinstance(one.node, CheckOptions)]
    for name, of, fix in [(name, check.of, _fix_of(check)) for name, check in checks]:
        for part in (name, fix):
            if part is not None and exits.get(part):
                problems.append(
                    f"an edge begins at {part!r}, a part of the check of {of!r}: let it begin at {of!r}; the branch "
                    "follows it once the check has passed"
                )
                # What was declared there is dropped: the exits of both follow from those of the node.
                exits[part].clear()
        problems += [
            f"the edge {source!r} -> {target!r} goes to a part of the check of {of!r}: let it go to {of!r}"
            for source, target in declared
            if target in (name, fix)
        ]
        ways = exits.get(of, [])
        if not ways:
            if of not in lost and not (of in nodes and nodes[of].goto):
                problems.append(
                    f"node {of!r} is a dead end: add an edge from it, add_edge({of!r}, END) if the branch ends there"
                )
            # The problem was said: with an end, no further check takes what follows for unreachable.
            ways = [END]
        exits[name], exits[of] = list(ways), [name]
        if fix is not None:
            exits[fix] = [name]
            if name not in nodes:
                exits[name].append(fix)  # as a check that was built does by its `goto`


def handler_problems(nodes: Mapping[str, Node], edges: Iterable[ErrorEdge]) -> Iterator[str]:
    """Error edges that lead to a check or a fix, which follow the node that they check alone."""
    part_of = {part: node.of for node in checks_of(nodes).values() for part in (node.name, node.fix)}
    for edge in edges:
        if edge.target in part_of:
            yield f"{edge.who} goes to a part of the check of {part_of[edge.target]!r}: name another handler"


def _targets(way: Exit) -> tuple[str, ...]:
    return (way,) if isinstance(way, str) else way.goto


# --- error edges: their declaration, and the checks of `compile()`


def error_edges(source: Any, target: Any, on: Any, into: Any) -> list[ErrorEdge]:
    """The edges of one call of `add_error_edge`, one for each source; a wrong form is a `GraphError`."""
    sources, targets = checked_edge_ends(source), checked_edge_ends(target)
    if len(targets) != 1:
        raise GraphError(
            f"an error edge leads to one handler, and {list_names(targets)} are {len(targets)}: fork after the handler"
        )
    for name in sources:
        if name in (START, END):
            raise GraphError(
                f"the error edge {name!r} -> {targets[0]!r} begins at no node: {name} runs nothing that could fail. "
                "Name the node whose failures it takes"
            )
    try:
        check_on(on, "add_error_edge")
    except TypeError as error:
        raise GraphError(str(error)) from None
    if into is not None and not isinstance(into, str):
        raise GraphError(f"add_error_edge(into={into!r}): give the name of the field that gets the failure, or None")
    for kind in on if isinstance(on, tuple) else (on,):
        if isinstance(kind, type) and is_always_raised(kind):
            raise GraphError(
                f"the error edge {sources[0]!r} -> {targets[0]!r} on {kind.__name__} is never taken: this error passes "
                "every error edge, since no step of the graph can mend it. Handle it where the program is run"
            )
    return [ErrorEdge(name, targets[0], on, into) for name in sources]


def error_edge_problems(
    edges: Sequence[ErrorEdge], schema: Schema, sent: Collection[str], joins: Callable[[str], bool]
) -> Iterator[str]:
    """Problems of error edges: fields that cannot hold a failure, and edges that are never taken.

    `sent` are the nodes that `Send`s may start, `joins` says whether parallel writes of a field can be joined.
    """
    for number, edge in enumerate(edges):
        yield from _field_problems(edge, schema)
        yield from _never_taken(edge, [one for one in edges[:number] if one.source == edge.source])
        if edge.into is not None and edge.source in sent and not joins(edge.into):
            yield (
                f"{edge.who}: several Sends may start {edge.source!r}, and each that fails writes {edge.into!r}: "
                f"declare {edge.into}: Annotated[list[Failure], reducers.append]"
            )


def unfilled_problems(
    edges: Iterable[ErrorEdge], schema: Schema, nodes: Mapping[str, Node], given: Collection[str]
) -> Iterator[str]:
    """Handlers that read a field for failures which nothing fills, since their error edge does not say `into`.

    `given` are the fields that some node or error edge may write, or that the graph declares as inputs.
    """
    for edge in edges:
        if edge.into is not None or edge.target not in nodes:
            continue
        for name in dict.fromkeys((nodes[edge.target].reads or {}).values()):
            if name in schema.fields and name not in given and names_class(schema.fields[name].annotation, Failure):
                yield (
                    f"{edge.who} gives the failure to no field, and {edge.target!r} reads {name!r}, which nothing "
                    f"writes: add_error_edge({edge.source!r}, {edge.target!r}, into={name!r})"
                )


def _field_problems(edge: ErrorEdge, schema: Schema) -> Iterator[str]:
    name = edge.into
    if name is None or schema.accepts_any_key:
        return
    field = schema.fields.get(name)
    if field is None:
        yield f"{edge.who}: into={name!r} {unknown_field_text(name, schema)}"
        return
    if name in schema.live_fields:
        yield f"{edge.who}: into={name!r} is a live field, to which only nodes post: name a field of its own"
        return
    # A failure is iterable, and pydantic makes a list of anything of its fields: only its class or a base holds it.
    kinds = members(update_type(schema, name))
    held = Any in kinds or any(isinstance(kind, type) and issubclass(Failure, kind) for kind in kinds)
    if not held or field.inputs_only:
        kind = f"is {shown_type(field.annotation)}"
        if field.reducer is not None:
            kind += f" with the reducer {field.reducer.name!r}"
        yield (
            f"{edge.who}: into={name!r} {kind}, which takes no dspyer.Failure: declare {name}: Failure | None = None, "
            f"or {name}: Annotated[list[Failure], reducers.append] = [] for several failures"
        )


def _never_taken(edge: ErrorEdge, before: Sequence[ErrorEdge]) -> Iterator[str]:
    """An edge all of whose types an earlier edge takes. What predicates take is not known."""
    own = edge.on if isinstance(edge.on, tuple) else (edge.on,)
    for other in before:
        # Types alone: what a predicate takes shows only when it is asked.
        types = tuple([on for on in (other.on if isinstance(other.on, tuple) else (other.on,)) if isinstance(on, type)])
        if all(isinstance(on, type) and issubclass(on, types) for on in own):
            yield (
                f"{edge.who} on {edge.condition} is never taken: before it {other.who} on {other.condition} is "
                "declared, which takes all of these. Declare the narrower one first"
            )
            return
