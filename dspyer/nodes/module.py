"""DSPy modules as nodes: `ModuleNode`, and the plan of its inputs, outputs and conversation turns.

A module's inputs and outputs come from a table of DSPy's classes (the last section), else from the parameters of its
`forward`. `plan_inputs` decides from which field each input comes, `plan_writes` to which field each output goes.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, NoReturn, cast

import dspy
from pydantic_core import PydanticUndefined

from dspyer.errors import NodeOutputError, StateError, brief, list_names, suggestion
from dspyer.hints import without_none
from dspyer.lm.parameters import predictors_in
from dspyer.messages import ToolStep, tool_messages, turn_message, warning_message
from dspyer.nodes.binding import Binding, BoundNode, FieldParameter, filled, plan_templates, warning_of
from dspyer.nodes.callables import FunctionSignature, read_signature
from dspyer.nodes.field_access import (
    FieldNames,
    check_names,
    form_of,
    form_problems,
    is_conversation,
    unknown_field_text,
)
from dspyer.nodes.node import SENT, Built, Call, Flaws, Look, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import InsideRun, ModuleStep, Script, SharedFields, is_program, program_step
from dspyer.patch import DELETE
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.schema.type_fit import misfit, shown_type, update_type, value_type
from dspyer.values.freezing import (
    RegisteredKind,
    class_name,
    classes_in,
    known_class,
    register_kind,
    register_value_type,
)
from dspyer.views import CUTS

# --- DSPy's own types as values of a state: `dspy.Tool`, which holds a function, and `dspy.Code["python"]`

_STORED = ("name", "desc", "args", "arg_desc", "has_kwargs")


@dataclass(frozen=True)
class _NotStored:
    """In the place of the function of a tool that was read from a store."""

    tool: str

    def __call__(self, **_: Any) -> NoReturn:
        raise StateError(
            f"the tool {self.tool!r} was read from a store, which does not hold its function: let the node that "
            "calls it find the function by this name in your own code"
        )


def _facts(tool: dspy.Tool) -> dict[str, Any]:
    return {name: getattr(tool, name) for name in _STORED}


def _stored_tool(facts: dict[str, Any]) -> dspy.Tool:
    return dspy.Tool.model_construct(func=_NotStored(facts["name"]), arg_types={}, **facts)


def _copied(tool: dspy.Tool) -> dspy.Tool:
    return tool.model_copy(update=copy.deepcopy(_facts(tool)))  # the function is that of the tool


# A state with a tool in it can be stored; the function is found again by the node that calls it.
register_kind(RegisteredKind(_facts, _stored_tool, _copied, dspy.Tool, unstored=attrgetter("func")))


def register_dspy_types(annotations: Iterable[Any]) -> None:
    """Let stores hold values of the classes of DSPy that annotations name, also of those that no import finds."""
    for cls in classes_in(annotations):
        if cls.__module__.startswith("dspy.") and known_class(class_name(cls)) is None:
            register_value_type(cls)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleNode(BoundNode):
    """A node that is a DSPy module. The module itself is an attribute of the program.

    Attributes:
        known: whether its outputs were known when the graph was built.
        gives: the fields that get its outputs, by their names; None for all outputs. `writes` are these and the
            conversations.
        turns: how it takes part in conversations.
        is_predictor: whether all that it does is to ask one predictor, of which it has the inputs and outputs.
    """

    kind: ClassVar[str] = "module"
    look = Look("module", "module")
    of_module: ClassVar[bool] = True

    known: bool = True
    gives: FieldNames | None = None
    turns: Turns
    is_predictor: bool = False

    @property
    def predicted(self) -> FieldNames | None:
        """The fields of its outputs by name, if it is one predictor that is given fields as they are; else None."""
        return self.gives if self.is_predictor and len(self.sources) == len(self.binding.fields) else None

    def script(self, call: Call) -> Script[Reply]:
        """Call the program's module with its inputs."""
        # The warning near the step limit of the run is part of the prompt and of the conversation.
        inputs, warning = self.binding.bind(call), warning_of(call) if self.turns.fields else ""
        before = self.turns.before(call, inputs) if self.turns.has_calls else (0, 0)
        result = yield filled(ModuleStep(getattr(call.program, self.name), inputs), self.templates, warning), call
        return self.reply(result, inputs, warning, before)

    def reply(
        self, result: object, inputs: Mapping[str, Any], warning: str = "", before: tuple[int, int] = (0, 0)
    ) -> Reply:
        """The module's result as updates of the state."""
        who = self.who
        values = values_of_prediction(result, who, self.known)
        updates = selected(values, self.gives, who) if values or self.known else {}
        if self.turns.fields:
            updates |= self.turns.updates(self.name, inputs, values, before)
        if warning:
            message = warning_message(warning)  # as a user message before its turn
            updates |= {field: Updates(message, updates[field]) for field in self.turns.fields if field in updates}
        return Reply(updates, None, True)


def build_module(module: dspy.Module, options: NodeOptions) -> Built:
    """A node of a DSPy module, which may be a compiled graph, and what is wrong with it."""
    if is_program(module):
        return _build_subgraph(module, options)
    found = module_io(module)
    register_dspy_types([*found.inputs.values(), *(found.outputs or {}).values()])
    wrong = Flaws(options.who, [f"{options.who}: {problem}" for problem in found.problems])
    binding = plan_inputs(found, options, wrong)
    turns, own_writes = plan_turns(module, found, options, wrong)
    binding = replace(binding, turn=((*turns.inputs, *turns.answers, *turns.reasoning), turns.answers))
    gives = plan_writes(found, options._replace(writes=own_writes), type(module).__name__, wrong)
    templates = plan_templates([module], options, binding.reading()[0], wrong)
    node = ModuleNode(
        name=options.name,
        **binding.facts(templates),
        writes=gives if gives is None else {**gives, **{field: field for field in turns.fields}},
        known=found.outputs is not None,
        gives=gives,
        always_writes=tuple((gives or {}).values()),  # a module gives all its outputs
        conversations=turns.fields,
        turns=turns,
        is_predictor=_is_predictor(module, [one.name for one in binding.fields], gives),
    )
    kinds = {name: found.type_of(name) for name in gives or ()}
    fix = "declare the type in the signature (... -> {name}: {kind}), or change the field"
    _compare_types(kinds, gives, options, fix, wrong)
    if options.modules:
        wrong.problems.append(
            f"{options.who}: modules={{...}} binds modules to a function; this node is a module itself"
        )
    if options.goto:
        wrong.problems.append(
            f"{options.who}: goto=[...] is for functions that return Command; give a module edges or a router"
        )
    return wrong.built(node, module, types=None if gives is None else list(kinds.values()))


def _is_predictor(module: dspy.Module, inputs: Iterable[str], outputs: Iterable[str] | None) -> bool:
    """Return whether a module has one predictor, of whose signature these are inputs and outputs."""
    signatures = [predictor.signature for _, predictor in predictors_in(module)]
    if len(signatures) != 1 or not outputs:
        return False
    return {*inputs} <= {*signatures[0].input_fields} and {*outputs} <= {*signatures[0].output_fields}


def plan_writes(found: ModuleIO, options: NodeOptions, kind: str, wrong: Flaws) -> FieldNames | None:
    """The fields that get the outputs: by `writes=`, or else the fields of the same names."""
    schema, who = options.output_schema, wrong.who
    outputs = None if found.outputs is None else (*found.outputs, *found.by_products)
    if options.writes is not None:
        wrong.problems += check_names(options.writes, "writes", who, own=outputs, schema=schema)
        return options.writes
    if found.outputs is not None:
        names = {name: name for name in found.outputs}
        wrong.problems += [
            f"{who}: its output {name!r} {unknown_field_text(name, schema)} Add the field, or say what is written: "
            f"writes={{{name!r}: 'a field'}}"
            for name in names
            if name not in schema
        ]
        return names
    if not schema.accepts_any_key:
        fields = [name for name in schema.fields if name not in found.inputs][:2] or ["a field"]
        line = f"add_node({options.name!r}, ..., writes={fields!r})"
        text = f"{who}: a module of class {kind} does not say what it gives; with a schema, say what is written: {line}"
        wrong.problems.append(text)
    return None


def _compare_types(
    kinds: Mapping[str, Any], gives: FieldNames | None, options: NodeOptions, fix: str, wrong: Flaws
) -> None:
    """Find outputs whose types can never be written to their fields; `fix` has `{name}`, and the type as `{kind}`."""
    for name, field in (gives or {}).items():
        if name in kinds and (text := misfit(options.output_schema, field, kinds[name])):
            kind = shown_type(update_type(options.output_schema, field)) if "{kind}" in fix else ""
            wrong.problems.append(f"{wrong.who}: its output {name!r} {text}: {fix.format(name=name, kind=kind)}")


# --- inputs


def plan_inputs(found: ModuleIO, options: NodeOptions, wrong: Flaws, copy: bool = True) -> Binding:
    """Decide where each input of a module comes from: the field of its name, or what `reads` says.

    With `copy` it gets plain copies, as a module must; a graph gets frozen values.
    """
    any_name = "**" in found.extras
    own = None if any_name else dict.fromkeys((*found.inputs, *found.extras))
    reads, schema, who = options.reads, options.schema, wrong.who
    if reads is not None:
        wrong.problems += check_names(reads, "reads", who, own=own, schema=schema, overlay=options.not_fields)
    elif any_name and not found.inputs:
        wrong.problems.append(
            f"{who}: its `forward` takes **kwargs, which does not say what it reads: give reads=[...]"
        )
    names = list(found.inputs)
    names += [name for name in reads or () if name not in names and (any_name or name in found.extras)]
    # Extras come last: they are given only where `reads` or a `Send` names them.
    names += [name for name in found.extras if name not in names and name != "**"]
    fields = []
    for name in names:
        default = name in found.optional or name not in found.inputs
        if reads is not None and name in reads:
            view, kind = options.views.get(name), found.inputs.get(name, Any)
            form = form_of(kind) if copy or form_of(kind) != "values" else "frozen"
            if view is not None:
                wrong.problems += form_problems(view, kind, name, schema, who)
            readable, computed = reads[name] not in options.not_fields, options.computed.get(name)
            unset = default or view is not None  # a view of an unset field is empty, which is no error
            fields.append(FieldParameter(name, reads[name], copy, unset, readable, view, form, computed))
            continue
        readable = name in found.inputs and reads is None and name not in options.overlay and name in schema
        if not readable and not default and name not in options.overlay:  # a `Send` may bring it
            wrong.unknown.append(_unknown_input(name, options, who))
        fields.append(FieldParameter(name, name, copy, default, readable))
    rest = copy if any_name else None
    return Binding(who, tuple(fields), rest=rest, schema=schema)


def _unknown_input(name: str, options: NodeOptions, who: str) -> str:
    if options.reads is not None:
        return f"{who}: its input {name!r} is not in reads ({list_names(options.reads)}): add {{{name!r}: 'a field'}}"
    missing = unknown_field_text(name, options.schema)
    return f"{who}: its input {name!r} {missing} Add the field, or map it: reads={{{name!r}: 'a field'}}"


# --- results


def values_of_prediction(result: object, who: str, known: bool) -> Mapping[str, object]:
    """A module's result by its own names. `known` says that its outputs are known, so that None is an error."""
    if isinstance(result, dspy.Prediction):
        return dict(result.items())
    if isinstance(result, Mapping):
        return result
    # A module that says nothing of its outputs may have none.
    if result is None and not known:
        return {}
    raise NodeOutputError(
        f"the module of {who} gave {brief(result)}, of type {type(result).__name__}: a module gives a dspy.Prediction "
        "or a dict"
    )


def selected(values: Mapping[str, object], writes: FieldNames | None, who: str) -> dict[str, object]:
    """The values of a module's result that the node writes, by field."""
    if writes is None:
        return {name: value for name, value in values.items() if name not in BY_PRODUCTS}
    for name in writes:
        if name not in values:
            raise NodeOutputError(
                f"the module of {who} gave no {name!r}, which is in its writes; it gave {list_names(values)}."
                f"{suggestion(name, values)}"
            )
    return {field: values[name] for name, field in writes.items()}


# --- turns: what a node adds to a conversation, and its own turns as a history of DSPy


class Turns(NamedTuple):
    """The part of a module node in conversations.

    Attributes:
        fields: the message fields that get its turn.
        histories: its inputs that get its own earlier turns.
        inputs: the inputs of its signature that a turn holds: what the conversation does not hold already.
        answers: the outputs of its signature.
        reasoning: the by-products that a turn holds too.
        asked: the inputs among them that are no view of a conversation.
        has_calls: whether the module makes tool calls.
    """

    fields: tuple[str, ...] = ()
    histories: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    has_calls: bool = False

    def before(self, call: Call, inputs: Mapping[str, Any]) -> tuple[int, int]:
        """The numbers of messages in the conversation, and in a history to which the module adds, before its call."""
        return len(call.state.raw(self.fields[0], ())), len(getattr(inputs.get("history"), "messages", ()))

    def updates(
        self, node: str, inputs: Mapping[str, Any], values: Mapping[str, Any], before: tuple[int, int]
    ) -> dict[str, Any]:
        """The turn that each conversation gets, behind the tool calls that have led to it."""
        if not self.fields:
            return {}
        asked = {name: inputs[name] for name in self.inputs if name in inputs}
        answered = {name: values[name] for name in (*self.reasoning, *self.answers) if name in values}
        # By the length of the conversation, ids of calls are new in it, and the same when the call is repeated.
        place, earlier = before
        made = tool_messages(node, _tool_steps(values, earlier), f"{node}_{place}") if self.has_calls else []
        if made:  # the user has said the inputs before the first call
            said = {name: asked[name] for name in self.asked if name in asked}
            made[0] = {**turn_message(node, said, {}, said), **made[0]}
        made.append(turn_message(node, asked, answered, () if made else self.asked))
        return dict.fromkeys(self.fields, made)


NO_TURNS = Turns()


def plan_turns(
    module: dspy.Module, found: ModuleIO, options: NodeOptions, wrong: Flaws
) -> tuple[Turns, FieldNames | None]:
    """Decide which of the node's writes are its turn, and which of its inputs its history; also the other writes."""
    outputs = found.outputs or {}
    names = dict(options.writes or {})
    turns = {
        name: field
        for name, field in names.items()
        if name not in outputs and is_conversation(field, options.output_schema)
    }
    writes = options.writes if not turns else {name: field for name, field in names.items() if name not in turns}
    histories = tuple(name for name in options.views if found.inputs.get(name) is dspy.History)
    missing = tuple(name for name in options.views if name not in found.inputs and _is_own(name, options))
    if not turns and not histories and not missing:
        return NO_TURNS, options.writes
    held = tuple(name for name, kind in found.inputs.items() if _is_held(name, kind, options))
    reasoning = tuple(name for name in found.by_products if name == "reasoning")
    asked = tuple(name for name in held if _is_said(name, found.inputs[name], options))
    has_calls = bool(turns) and isinstance(module, (dspy.ReAct, dspy.ReActV2))
    planned = Turns(tuple(turns.values()), histories, held, tuple(outputs), reasoning, asked, has_calls)
    wrong.problems += [
        f"{options.who}: its signature has no input {name!r} for its own turns: add {name}: dspy.History = "
        "dspy.InputField()"
        for name in missing
    ]
    wrong.problems += [
        f"{options.who}: {field!r} gets its turn, and a {type(module).__name__} does not say what it answers: let a "
        "function call it and return the message, or leave it out, add_node(..., conversation=False)"
        for field in turns.values()
        if found.outputs is None
    ]
    if histories:
        wrong.problems += _history_problems(module, found, planned, options.who)
    return planned, writes


def _is_held(name: str, kind: Any, options: NodeOptions) -> bool:
    """Tell if a turn holds an input. An input that shows the conversation is held only if a step of its view bounds it.

    Otherwise each turn would hold all turns before it, and a conversation would grow quadratically, or double.
    """
    if dspy.History in (kind, without_none(kind)):
        return False
    view, computed = options.views.get(name), options.computed.get(name)
    if computed is not None:
        return not any(is_conversation(field, options.schema) for field in computed.names)
    if not _of_conversation(name, options):
        return True
    bounded = view is not None and any(step.name in ("new", *CUTS) for step in view.steps)
    return bounded and view is not None and view.last_step != "then"


def _is_said(name: str, kind: Any, options: NodeOptions) -> bool:
    """Tell if an input is what the user has said: a text or value that the conversation does not show otherwise."""
    is_picture = isinstance(without_none(kind), type) and issubclass(without_none(kind), dspy.Type)
    return not is_picture and not _of_conversation(name, options)


def _of_conversation(name: str, options: NodeOptions) -> bool:
    """Tell if an input that is computed from no fields shows a conversation."""
    field = (options.reads or {}).get(name, name)
    return name not in options.computed and field not in options.overlay and is_conversation(field, options.schema)


def _is_own(name: str, options: NodeOptions) -> bool:
    view = options.views[name]
    return any(step.name == "own" for step in view.steps) and is_conversation(view.field, options.schema)


def _history_problems(module: dspy.Module, found: ModuleIO, turns: Turns, who: str) -> list[str]:
    kinds = [name for name, kind in found.inputs.items() if kind is dspy.History]
    if len(kinds) > 1:
        return [f"{who}: it has the histories {list_names(kinds)}, of which DSPy shows one as JSON: keep one of them"]
    known = {*turns.answers, *turns.reasoning}
    for path, predictor in predictors_in(module):
        fields = predictor.signature.output_fields
        others = [name for name in fields if name not in known]
        # DSPy fills the fields of a predictor from the turns by name: a predictor with other fields would be shown
        # turns with holes.
        if others and any(field.annotation is dspy.History for field in predictor.signature.input_fields.values()):
            text = (
                f"{who}: its predictor {path!r} answers in {list_names(others)}, which a turn of the node does not hold"
            )
            return [f"{text}: take {turns.histories[0]!r} as text, by an input of type str"]
    return []


# --- the inputs and outputs of each class of DSPy modules

BY_PRODUCTS = ("reasoning", "trajectory")


@dataclass(frozen=True, slots=True)
class ModuleIO:
    """The inputs and outputs of a module.

    Attributes:
        inputs: the inputs by name, in order, with their types.
        optional: inputs that may be left out.
        extras: further inputs that are given only if `reads` names them.
        outputs: the outputs by name, in order, with their types; None for unknown.
        by_products: further outputs, written only if `writes` names them.
        problems: why the module cannot be a node, each with its fix.
        own_code: whether code of a user's class makes the outputs, which may convert what the signature declares.
    """

    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    extras: tuple[str, ...] = ()
    outputs: Mapping[str, Any] | None = None
    by_products: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    own_code: bool = False

    def type_of(self, name: str) -> Any:
        """The type that an output certainly has; `Any` where none is certain."""
        return Any if self.own_code else (self.outputs or {}).get(name, Any)


def module_io(module: dspy.Module) -> ModuleIO:
    """The inputs and outputs of a module.

    Of a compiled graph, its own. Of a class in `TABLE` and its subclasses, those of the signature; but a `forward` of
    its own that names its parameters replaces the inputs. Of any other class, the parameters of `forward`, and the
    outputs of its attribute `signature`, which are unknown without one.

    Args:
        module: the module.

    Returns:
        Both, with their types, and why it cannot be a node.

    Example:
        >>> found = module_io(dspy.ChainOfThought("question -> answer: int"))
        >>> dict(found.inputs), dict(found.outputs), found.by_products
        ({'question': <class 'str'>}, {'answer': <class 'int'>}, ('reasoning',))
    """
    kind = type(module)
    if is_program(module):
        return _of_graph(cast("Any", module).graph)
    known = _known(kind)
    if known is not None:
        found = TABLE[known](module)
        # A subclass that adds code to the call of a class of the table may convert what the signature declares.
        found = replace(found, own_code=found.own_code or _changes_call(kind, known))
        # A subclass that overrides `forward` decides itself what it takes.
        return found if _forward_of(kind) is _forward_of(known) else _with_forward(found, kind)
    signature = getattr(module, "signature", None)
    if inspect.isclass(signature) and issubclass(signature, dspy.Signature):
        return _with_forward(replace(of_signature(signature), by_products=BY_PRODUCTS, own_code=True), kind)
    return _of_forward(kind)


def takes_more(module: dspy.Module) -> bool:
    """Return whether a module passes all that it gets to one predictor, whose signature may be given more inputs."""
    known, inner = _known(type(module)), getattr(module, "module", None)
    passes = known in (dspy.Predict, dspy.ChainOfThought) or (inner is not None and takes_more(inner))
    return known is not None and passes and not _changes_call(type(module), known)


def _known(kind: type) -> type | None:
    return next((base for base in kind.__mro__ if base in TABLE), None)


def _changes_call(kind: type, known: type) -> bool:
    called = ("forward", "aforward", "__call__", "acall")
    return any(getattr(kind, name, None) is not getattr(known, name, None) for name in called)


def _of_graph(graph: Any) -> ModuleIO:
    names, schema = graph.writes if graph.outputs is None else graph.outputs, graph.topology.schema
    outputs = None if names is None else {name: value_type(schema, name) for name in names}
    # A view comes as text to a field of texts; values of all other types are checked when the graph begins.
    kinds = {name: str if without_none(value_type(schema, name)) is str else Any for name in graph.inputs}
    return ModuleIO(kinds, frozenset(graph.inputs) - graph.required, tuple(sorted(graph.of_around)), outputs)


def _forward_of(kind: type) -> Any:
    return getattr(kind, "forward", None) or getattr(kind, "aforward", None)


def _forward_signature(kind: type) -> FunctionSignature:
    forward = _forward_of(kind)
    if forward is None:
        problem = f"{kind.__name__} has neither `forward` nor `aforward`: write one, with its inputs as parameters"
        return FunctionSignature(problems=(problem,))
    signature = read_signature(forward, f"`forward` of {kind.__name__}")
    if isinstance(inspect.getattr_static(kind, forward.__name__), staticmethod):
        return signature
    return replace(signature, parameters=signature.parameters[1:])


def _with_forward(found: ModuleIO, kind: type) -> ModuleIO:
    signature = _forward_signature(kind)
    own = _inputs(signature)
    if signature.takes_all:
        own = replace(own, inputs={**own.inputs, **found.inputs}, optional=own.optional | found.optional)
    return replace(found, inputs=own.inputs, optional=own.optional, problems=own.problems)


def _inputs(signature: FunctionSignature) -> ModuleIO:
    return ModuleIO(
        inputs={parameter.name: parameter.annotation for parameter in signature.parameters},
        optional=frozenset(parameter.name for parameter in signature.parameters if parameter.default),
        by_products=BY_PRODUCTS,
        problems=signature.problems,
    )


def _of_forward(kind: type) -> ModuleIO:
    signature = _forward_signature(kind)
    found = _inputs(signature)
    # Only `reads` can say what **kwargs gets; "**" means any name.
    return replace(found, extras=("**",)) if signature.takes_all else found


ReadModule = Callable[[Any], ModuleIO]


def of_signature(signature: type[dspy.Signature]) -> ModuleIO:
    """The inputs and outputs of a signature."""
    inputs = {name: info.annotation for name, info in signature.input_fields.items()}
    defaults = {name for name, info in signature.input_fields.items() if info.default is not PydanticUndefined}
    outputs = {name: info.annotation for name, info in signature.output_fields.items()}
    return ModuleIO(inputs=inputs, optional=frozenset(defaults), outputs=outputs)


def _own(*by_products: str, extras: tuple[str, ...] = ()) -> ReadModule:
    """A reader for the classes that hold the user's signature in their attribute `signature`."""
    return lambda module: replace(of_signature(module.signature), by_products=by_products, extras=extras)


def _predicted(by_product: str) -> ReadModule:
    """A reader for the classes whose predictor has the user's signature, with one more output."""

    def read(module: Any) -> ModuleIO:
        found = of_signature(module.predict.signature)
        outputs = {name: kind for name, kind in (found.outputs or {}).items() if name != by_product}
        return replace(found, outputs=outputs, by_products=(by_product,))

    return read


def _comparison(module: Any) -> ModuleIO:
    """`MultiChainComparison`: callers pass the list `completions` for the inputs `reasoning_attempt_1` to `_M`."""
    found = _predicted("rationale")(module)
    attempts = {f"reasoning_attempt_{number}" for number in range(1, module.M + 1)}
    inputs = {name: kind for name, kind in found.inputs.items() if name not in attempts}
    return replace(found, inputs={"completions": list[Any], **inputs})


TABLE: Mapping[type, ReadModule] = {
    dspy.Predict: _own(),
    dspy.ChainOfThought: _predicted("reasoning"),
    dspy.ReAct: _own("trajectory", "reasoning", extras=("max_iters",)),
    dspy.ReActV2: _own("history", "termination_reason", extras=("history", "max_iters")),
    dspy.RLM: _own("trajectory", "final_reasoning"),
    dspy.ProgramOfThought: _own("reasoning"),
    dspy.CodeAct: _own("trajectory", "reasoning", extras=("max_iters",)),
    dspy.MultiChainComparison: _comparison,
    **dict.fromkeys((dspy.BestOfN, dspy.Refine), lambda module: module_io(module.module)),  # which they call
    dspy.Flex: _own(),
}
"""The module classes that DSPy 3.4 exports, with what reads the inputs and outputs of one."""


def _tool_steps(values: Mapping[str, Any], earlier: int) -> Iterator[ToolStep]:
    """The tool calls of a `dspy.ReAct` or `ReActV2`, without those that end the loop; of other modules there are none.

    `earlier` is the number of turns in the history that it was given.
    """
    found = values["trajectory"] if isinstance(values.get("trajectory"), Mapping) else {}
    for number in range(len(found)):
        if (tool := found.get(f"tool_name_{number}", "finish")) != "finish":
            args, result = found.get(f"tool_args_{number}"), found.get(f"observation_{number}")
            failed = str(result).startswith("Execution error in ")  # the text that DSPy makes of an error
            yield found.get(f"thought_{number}"), [(tool, args, result, failed)]
    for event in getattr(values.get("history"), "messages", ())[earlier:]:
        made = event["tool_calls"]
        results = {result.call_id: result for result in made.tool_call_results.tool_call_results}
        calls = [(call.name, call.args, results[call.id].value, results[call.id].is_error) for call in made.tool_calls]
        if calls := [call for call in calls if call[0] != "submit"]:
            yield event.get("next_thought"), calls


# --- compiled graphs as nodes of another graph


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubgraphNode(BoundNode):
    """A node that is a compiled graph. The program itself is an attribute of the outer one.

    Attributes:
        gives: the fields of the outer state that get its changed fields, by its own names; None for all of them. This
            may be more than `writes` declares: an input that an inner node may change without declaring it.
        folds: own names of the fields whose updates the outer state folds; for the others it gets the new value.
        per_item: whether it runs inside a map, which needs all values and not the changes.
        same_types: the inputs that come from fields whose values are valid inside too, each as its name and the field.
        shared: the live fields that are one with those of the graph around; None for none.
    """

    kind: ClassVar[str] = "subgraph"
    look = Look("subgraph", "subgraph")
    runs_graph = True

    gives: FieldNames | None = None
    folds: frozenset[str] = frozenset()
    per_item: bool = False
    same_types: tuple[tuple[str, str], ...] = ()
    shared: SharedFields | None = None

    @property
    def may_give(self) -> frozenset[str] | None:
        """The fields that a call may change; None for any."""
        if self.writes is None or self.gives is None:
            return None
        return frozenset((*self.writes.values(), *self.gives.values()))

    @staticmethod
    def shared_fields(
        program: Any, reads: FieldNames, writes: FieldNames | None, schema: Schema, wrong: Flaws
    ) -> SharedFields | None:
        """The live fields of a program that are those of the state around it, as a node reads and writes them."""
        inner = program.graph.topology.schema
        if not inner.live_fields or not schema.live_fields or program._executor is not None:
            return None
        both = [
            {
                name: field
                for name, field in (names or {}).items()
                if name in inner.live_fields and field in schema.live_fields
            }
            for names in (reads, writes)
        ]
        for name, field in both[0].items():
            if both[1].get(name, field) != field:
                wrong.problems.append(
                    f"{wrong.who}: the live field {name!r} of its graph is read from {field!r} and written to "
                    f"{both[1][name]!r}: a live field is one field inside and outside, so name the same one"
                )
        found = SharedFields(*both)
        for name, field in found.names.items():
            if len([other for other in found.names.values() if other == field]) > 1:
                wrong.problems.append(
                    f"{wrong.who}: several live fields of its graph are {field!r} of this one: name one"
                )
            folds = [
                None if reducer is None else reducer.name for reducer in (inner.reducer(name), schema.reducer(field))
            ]
            if folds[0] != folds[1]:
                wrong.problems.append(
                    f"{wrong.who}: the live field {name!r} of its graph is {field!r} of this one, and posts are folded "
                    f"by {folds[0] or 'no reducer'} inside and by {folds[1] or 'none'} here: give both the same reducer"
                )
        return found if any(both) else None

    def script(self, call: Call) -> Script[Reply]:
        """Run the graph as a part of the run."""
        program = getattr(call.program, self.name)
        inputs = self._inputs(call)
        inside = yield program_step(program, inputs, call, self._valid(call), self.shared)
        return self.reply(program, inside, inputs, call)

    def _inputs(self, call: Call) -> dict[str, Any]:
        if call.overlay is None or SENT not in call.overlay:
            return self.binding.bind(call)
        sent, known = call.overlay.raw(SENT), self.input_names  # nothing else; further keys are for others
        return {name: sent[name] for name in sent if name in known}

    def _valid(self, call: Call) -> dict[str, Any]:
        """The values that the graph need not validate, since they are those of a field of the same type."""
        if _is_sent(call):
            return {}
        sent = call.overlay or ()
        found = [(name, field) for name, field in self.same_types if field not in sent and field in call.state]
        return {name: call.state.raw(field) for name, field in found}

    def reply(self, program: Any, inside: InsideRun, inputs: Collection[str], call: Call) -> Reply:
        """The changes in the inner graph, as updates of the outer state; other values stay inside.

        If its whole state was sent, the outer state has none of it, and gets all. What was written to live fields is
        posted already, unless the run has live=False.
        """
        sent, live = _is_sent(call), call.context.delegate.host.together.posts is not None
        schema, changes = program.graph.topology.schema, inside.changes()
        raw = {name for name in changes if schema.reducer(name) is not None}
        # What the outer field folds goes out as updates, so that nothing is counted twice; any other field gets the
        # new value.
        whole, as_updates = self.per_item or sent, frozenset() if sent else self.folds
        if whole or raw - as_updates:
            state = inside.inputs
            values = {name: state.raw(name) for name in state} if whole else {}
            values |= {name: change for name, change in changes.items() if name not in raw or name in as_updates}
            values |= {name: schema.fold(name, state.raw(name, DELETE), changes[name]) for name in raw - as_updates}
        else:
            values = dict(changes)
        if self.per_item:
            # An item has no state of its own in which something could be deleted.
            values = {name: value for name, value in values.items() if value is not DELETE}
        if self.shared is not None and (live or self.per_item):
            posted = set(self.shared.writes) if live else set(self.shared.writes).difference(changes)
            values = {name: value for name, value in values.items() if name not in posted}
        if self.gives is not None:
            values = {field: values[name] for name, field in self.gives.items() if name in values}
        elif self.per_item:
            # Of an item that declares nothing, its inputs are no results.
            values = {name: value for name, value in values.items() if name not in inputs}
        return Reply(values, None, True)


def _is_sent(call: Call) -> bool:
    """Return whether a `Send` brings all that the graph gets."""
    return call.overlay is not None and SENT in call.overlay


def _build_subgraph(module: Any, options: NodeOptions) -> Built:
    """A node of a compiled graph, and what is wrong with it."""
    graph, wrong = module.graph, Flaws(options.who)
    found = module_io(module)
    if options.reads is None and options.map is None:  # also those that the graph writes: they are one field
        both = set(graph.topology.schema.live_fields).intersection(options.schema.live_fields).difference(found.inputs)
        live = sorted(both)
        found = replace(found, inputs={**found.inputs, **dict.fromkeys(live, Any)}, optional=found.optional.union(live))
    binding = plan_inputs(found, options, wrong, copy=False)
    binding = binding if graph.closed else replace(binding, rest=False)
    writes = _plan_writes(graph, options, wrong)
    reads = binding.reading()[0] or {}
    gives = writes
    if options.writes is None and writes is not None and options.map is None:
        # A view without a reducer shows a part of its field: writing that part back would lose the rest.
        partial = {name for name in options.views if options.schema.reducer(name) is None}
        # The inputs that the graph may change and that come from the field of their name.
        may = set(graph.inputs if graph.writes is None else graph.writes).difference(partial)
        changed = [name for name in (*graph.inputs, *graph.of_around) if name in may and reads.get(name) == name]
        gives = {**_fields(changed, options.schema), **writes}
        writes = {**writes, **{name: name for name in gives if name in (graph.writes or ())}}
    templates = plan_templates((), options, reads, wrong)
    own = {} if options.map is not None or gives is None else gives
    inner, outer = graph.topology.schema, options.schema
    same_types = [
        (one.name, one.field)
        for one in binding.fields
        if one.readable and one.view is None and one.computed is None
        if one.name in inner.fields and one.field in outer.fields
        if inner.fields[one.name].holds_values_of(outer.fields[one.field])
    ]
    node = SubgraphNode(
        name=options.name,
        **binding.facts(templates),
        writes=writes,
        gives=gives,
        folds=frozenset(name for name, field in own.items() if options.schema.reducer(field) is not None),
        per_item=options.map is not None,
        same_types=tuple(same_types),
        shared=SubgraphNode.shared_fields(module, reads, writes, options.schema, wrong),
    )
    kinds = {name: value_type(inner, name) for name in gives or () if name in inner.fields}
    raw = {name: update_type(inner, name) for name in kinds if name in node.folds and inner.reducer(name) is not None}
    _compare_types(kinds | raw, gives, options, "give both fields one type, or say writes={{...}}", wrong)
    return wrong.built(node, module, types=[kinds.get(name, Any) for name in gives or ()])


def _plan_writes(graph: Any, options: NodeOptions, wrong: Flaws) -> FieldNames | None:
    """The fields that it declares to write: by `writes=`, or else its outputs that are fields of the outer state."""
    schema = options.output_schema
    own = graph.writes if graph.outputs is None else graph.outputs
    if options.writes is not None:
        known = None if own is None else tuple(dict.fromkeys((*own, *graph.inputs, *graph.of_around)))
        wrong.problems += check_names(options.writes, "writes", wrong.who, own=known, schema=schema)
        return options.writes
    if own is None:
        return None if schema.accepts_any_key else _fields(schema.fields, schema)
    writes = _fields(own, schema)
    if own and not writes:
        wrong.problems.append(
            f"{wrong.who}: the graph gives {list_names(own)}, and none of these is a field of the state "
            f"({list_names(schema.fields)}): say where its results go, as writes={{{own[0]!r}: 'a field'}}"
        )
    return writes


def _fields(names: Iterable[str], schema: Schema) -> dict[str, str]:
    """The names that are fields of a state, each under its own name."""
    return {name: name for name in names if name in schema}
