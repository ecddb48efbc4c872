"""Tools that a model can call: `tool` gives a function, a `dspy.Tool`, a module or a program the options of a tool; and
the plan of an agent, from which its nodes are built.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias, get_type_hints

import dspy
from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

from dspyer import Context, Fill, Graph, Retry, View
from dspyer.agents.compact import Compact
from dspyer.agents.conversation import HAND_OFF, SUBMIT, Shown, text_input_of, text_output_of
from dspyer.agents.tool_action import SESSION, has_sessions
from dspyer.agents.tool_node import OF_AGENT, ToolSpec, max_result_problem
from dspyer.errors import GraphError, brief, list_names
from dspyer.extend import (
    FunctionSignature,
    Parameter,
    Schema,
    flag_problems,
    is_async,
    is_program,
    module_io,
    read_signature,
)
from dspyer.graph.builder import compiled
from dspyer.graph.checks import signature_of_module
from dspyer.graph.spec import check_name
from dspyer.hints import signature_of
from dspyer.nodes.binding import is_value_class
from dspyer.nodes.callables import class_of, own_call
from dspyer.nodes.options import OfGraph, node_options
from dspyer.schema.type_fit import shown_type


def tool(
    target: Any,
    *,
    name: str | None = None,
    desc: str | None = None,
    reads: Collection[str] | Mapping[str, str | View | Fill] | None = None,
    writes: Collection[str] | Mapping[str, str] | None = None,
    approve: bool | Callable[..., object] = False,
    effect: bool = False,
    render: Callable[..., Any] | None = None,
    check: object = None,
    raises: type[Exception] | tuple[type[Exception], ...] = (),
    retry: Retry | int | OfGraph | None = OfGraph.RETRY,
    timeout: float | None = None,
    max_result: int | Literal["of the agent"] | None = OF_AGENT,
) -> ToolSpec:
    """Give something that a model can call the options of a tool.

    Each tool is a node of its name, and each call one visit of it, with exactly one result. What the call raises, wrong
    arguments included, is its result: one line, the same in every process, after the retries of the node. Budgets,
    questions, cancellation, errors of the store, a `NodeOutputError` and what `raises` names fail the node instead.
    Results are kept as JSON values; any other object as `str(object)`.

    A program with a conversation has one more argument, `session`: a known name continues the conversation of that
    name, a new one begins another, and without a name one is begun that is named after the call. The caller's field
    `sessions` holds them, over the runs of a thread. Of two calls of one turn in the same session the second is
    refused; a call that fails leaves its session as it was.

    The model does not see the parameters `ctx`, those that `reads` names, `key` with `effect=True`, and those annotated
    with the class of a resource. Pydantic models and dataclasses are arguments. What `Annotated` demands is validated;
    descriptions are given by `dspy.Tool(fn, arg_desc={...})`. A single output of a module is the result itself, several
    are a dict. As a check of a tool `search`, a module is the predictor `search.check`, and a module that is the tool
    then `search.module`.

    The question of `approve` has the tool's name as its key and the call as its text, also where `redact` hides the
    conversation; several open ones are told apart by their `id`. Answers are True, False and `Approval`, or its JSON. A
    call with changed arguments is that call from then on, and a note in the result says so. A function decides on the
    state with which the call began, the same at each attempt, without `ctx` or a model. If the user writes instead of
    answering, `if_open="amend"` refuses the call; with `if_open="abandon"` the model is shown that it may have been
    made.

    A crash in the middle of a call repeats it. With `effect=True` neither a retry nor a later step that fails does,
    also if its result cannot be kept; after a timeout or a lost connection the model is told that it may have happened.
    A call that a check repeats has another idempotency key and is approved on its own. An error in a check fails the
    node.

    If two calls of one turn write different values to one path, the first in the order of the calls is kept and the
    other's result is an error. Reducers keep both, apart from two values of one key and a `Replace`; a merge policy of
    an edge to `settle` holds instead. The result of a call that updates a field is added at the end of the turn.

    Args:
        target: a function, sync or async; a `dspy.Tool` (also one made of an MCP or LangChain tool); a `dspy.Module`,
            whose inputs are the arguments; or a graph or program, whose required inputs are the arguments. Outputs are
            the result.
        name: the name under which the model calls it, and of its node; by default that of the function or graph.
        desc: the description that the model is shown; by default the docstring.
        reads: fields of the state for parameters or inputs that the model does not see, as in `add_node`.
        writes: the fields that a `Command` of the tool may update, as in `add_node`; by default those of the agent's
            `schema=`. Of a module or program, the outputs that go to fields as well; by default none.
        approve: True to ask before each call, or a function of arguments and fields that says whether to ask.
        effect: True to record the result, so that no later attempt calls the tool again.
        render: a pure function of a call that returns what the model is shown of its result, at each turn again; None
            leaves out the call. A call has `name`, `args`, `value`, `error`, `age` (0 for the last turn, 1 for the one
            before) and `mode`, the mode that is shown it. Further parameters are fields. To show other arguments, it
            returns `call._replace(args=..., value=...)`.
        check: finds problems in a result: a function of `tool`, `args`, `result` and fields that returns a list of
            them, a pydantic model, or a module or graph with an output `problems: list[str]`. The call is then repeated
            once, with the `args` that it gives as well; one with an effect only if it gives some. The model is shown
            the problems of the last result.
        raises: exceptions that fail the node. Any other becomes the result of the call.
        retry: which failed attempts are followed by another one, as in `add_node`.
        timeout: the seconds of one attempt, None for no limit.
        max_result: the most characters of its result that a model is shown whole, None for no limit; by default that of
            the agent.

    Returns:
        The tool, for the list of tools of an agent.

    Raises:
        GraphError: if it cannot be a tool, with all reasons.

    Example:
        >>> def look_up(word: str, ctx):
        ...     "Looks up a word."
        ...     return f"{word}: no entry"
        >>> tool(look_up, name="dictionary", timeout=5)
        tool(dictionary: word)
    """
    if isinstance(target, ToolSpec):
        raise GraphError(f"{target!r} is a tool already: give tool(...) what it calls, with all options at once")
    for option, text in (("name", name), ("desc", desc)):
        if text is not None and not isinstance(text, str):
            raise GraphError(f"tool(..., {option}={brief(text)}): give a text")
    problems: list[str] = []
    found = _describe(target, name, desc, frozenset(reads or ()), effect is True, problems)
    of_node: dict[str, Any] = {"reads": reads, "writes": writes, "retry": retry, "timeout": timeout}
    options = node_options(found.name, target, Schema.of(None), **of_node)
    problems += [text.replace("node ", "tool ", 1) for text in options.problems]
    if found.tool is NO_TOOL:
        raise GraphError(problems)
    found = replace(
        found,
        **of_node,
        approve=approve,
        effect=effect,
        render=render,
        check=compiled(check, f"{found.name}.check"),
        raises=raises if isinstance(raises, tuple) else (raises,),
        max_result=max_result,
    )
    problems += _option_problems(found)
    if problems:
        raise GraphError(problems)
    return found


AnyTool: TypeAlias = Callable[..., Any] | dspy.Tool | dspy.Module | ToolSpec
Selection: TypeAlias = View | Callable[..., Any] | None


@dataclass(frozen=True)
class Mode:
    """One mode of an agent: what it is told, what it may call, and which modes may follow it.

    A guard sees what all tools of the turn have written. No guard holds back a `route`, which goes on also after a
    `submit`: the outputs stay, and the named mode follows. With `to` it may name only these modes. After `max_turns`
    turns the last turn ends the run, whatever the route says. A run may be given the `mode` in which it starts, as an
    input.

    Args:
        instructions: what is added to the instructions of the signature; `{name}` is filled with a field at each call.
        tools: what the model may call in this mode. A tool of several modes is one node.
        to: the modes to which the model may hand off, by its tools `to_<mode>`, and tools by `Command(goto=...)`.
        route: a pure function of fields that is called after each turn and decides before the model: it returns the
            name of the next mode, also instead of an end, or None to let the model decide. Without `to` it may name
            any mode.
        guard: a pure function of fields. If it returns a false value, handoffs to this mode are refused, and the model
            is shown the function's docstring.
        context: selects the messages that the mode is shown, as in `tool_loop`; by default that of the agent.
        config: settings of the LM, over those of the agent.
        lm: the LM of the mode; by default that of the agent.
        desc: what other modes are told about it; by default its instructions.

    Example:
        >>> Mode("Make a plan.", to=["work"]).to
        ('work',)
    """

    instructions: str = ""
    tools: Iterable[AnyTool] = ()
    _: KW_ONLY
    to: Collection[str] = ()
    route: Callable[..., str | None] | None = None
    guard: Callable[..., object] | None = None
    context: Selection = None
    config: Mapping[str, Any] = field(default_factory=dict)
    lm: dspy.BaseLM | None = None
    desc: str = ""

    def __post_init__(self) -> None:
        for option, text in (("instructions", self.instructions), ("desc", self.desc)):
            if not isinstance(text, str):
                raise GraphError(f"Mode(..., {option}={brief(text)}): give a text")
        given: Any = (self.to,) if isinstance(self.to, str) else self.to
        names = tuple(given) if isinstance(given, Iterable) else (given,)
        if not all(isinstance(name, str) for name in names):
            raise GraphError(f"Mode(..., to={brief(given)}): give the names of modes, to=['work']")
        object.__setattr__(self, "to", tuple(dict.fromkeys(names)))
        tools: Any = self.tools
        # A set has another order in every process, and the order is part of the prompt.
        if isinstance(tools, Mapping | str | set | frozenset) or not isinstance(tools, Iterable):
            raise GraphError(f"tools={brief(tools)}: give a list of tools, tools=[...]")
        object.__setattr__(self, "tools", tuple(tools))
        if isinstance(self.config, Mapping):  # another type is refused with the rest, by `_check_types`
            object.__setattr__(self, "config", dict(self.config))


def as_tools(tools: Iterable[Any]) -> tuple[ToolSpec, ...]:
    """The tools of an agent, from functions, `dspy.Tool`s, modules, programs, and what `tool` made of them.

    Raises `GraphError` if two of them have one name; warns of tools without a description.
    """
    found = tuple(one if isinstance(one, ToolSpec) else tool(one) for one in tools)
    names = [one.name for one in found]
    twice = sorted({one for one in names if names.count(one) > 1})
    if twice:
        raise GraphError(f"several tools are called {list_names(twice)}: give each its own name, tool(..., name='...')")
    for one in found:
        if not (one.tool.desc or "").strip():
            warnings.warn(
                f"tool {one.name!r} has no description, so that a model must guess what it does: write a docstring, or "
                "tool(..., desc='...')",
                stacklevel=4,  # the line of the user, who calls `tool_loop` or `modes`
            )
    return found


# --- the plan of an agent


Check: TypeAlias = Callable[..., object] | type[BaseModel] | dspy.Module | Graph | str | Literal[True] | None


class AgentOptions(NamedTuple):
    """The options of an agent, as `tool_loop` and `modes` take them."""

    max_turns: int
    context: Selection
    config: Mapping[str, Any]
    lm: dspy.BaseLM | None
    schema: type[BaseModel] | None
    check: Check
    max_fixes: int
    accept: bool
    name: str
    warn_at: int | None
    max_demo_turns: int | None
    max_result: int | None
    compact: Compact | None


@dataclass(frozen=True)
class AgentPlan:
    """An agent, as its nodes are built from it.

    Attributes:
        task: its inputs and outputs.
        modes: its modes by name, that in which it starts first, with the options of the agent where they have none.
        tools: by mode, the tools that are nodes.
        options: the options of the whole.
        shows_mode: whether it has a field for the current mode.
    """

    task: type[dspy.Signature]
    modes: Mapping[str, Mode]
    tools: Mapping[str, tuple[ToolSpec, ...]]
    options: AgentOptions
    shows_mode: bool

    @property
    def nodes(self) -> dict[str, ToolSpec]:
        """The tools of all modes, by name."""
        return {tool.name: tool for several in self.tools.values() for tool in several}

    @cached_property
    def reacts(self) -> dict[str, Any]:
        """The modules of DSPy whose predictors and tools the modes use."""
        return {name: self._react(name, mode) for name, mode in self.modes.items()}

    def _react(self, name: str, mode: Mode) -> Any:
        texts = (self.task.instructions, mode.instructions)
        task = self.task.with_instructions("\n\n".join(texts)) if mode.instructions else self.task
        # By such a tool a model hands off to a mode: the node that ends the turn makes the handoff.
        told = {to: self.modes[to].desc or self.modes[to].instructions for to in mode.to}
        handoffs = [model_view(f"{HAND_OFF}{to}", {}, {}, told[to] or f"Continue in the mode {to}.") for to in told]
        react = dspy.ReActV2(task, [*(tool.tool for tool in self.tools[name]), *handoffs])
        react.react.update_config(**mode.config)
        # On the predictor and not by a context: it is saved with the program, and `set_lm` may change it.
        react.react.lm = mode.lm
        return react

    @property
    def predictors(self) -> dict[str, dspy.Predict]:
        """The predictors of the modes."""
        return {name: react.react for name, react in self.reacts.items()}

    @property
    def submit(self) -> dspy.Tool:
        """The tool that gives the outputs, the same one for each mode."""
        found: dspy.Tool = next(iter(self.reacts.values())).tools[SUBMIT]
        return found

    @cached_property
    def shown(self) -> dict[str, Shown]:
        """The way in which each mode is shown messages."""
        limits = {name: tool.max_result for name, tool in self.nodes.items() if tool.max_result != OF_AGENT}
        output, most, found = text_output_of(self.task), self.options.max_result, {}
        for mode, predictor in self.predictors.items():
            renders = {tool.name: tool.render for tool in self.tools[mode] if tool.render is not None}
            found[mode] = Shown(text_input_of(predictor.signature), renders, mode, output, most, limits)
        return found


# --- what is wrong with the options


def _option_problems(spec: Any) -> Iterator[str]:
    who, approve, render, check = f"tool {spec.name!r}", spec.approve, spec.render, spec.check
    if (problem := max_result_problem(spec.max_result)) is not None:
        yield f"{who}: {problem}"
    try:
        check_name(spec.name, ())
    except GraphError as refusal:
        yield f"{who}: {refusal}: tool(..., name='...')"
    if not isinstance(approve, bool) and (not callable(approve) or isinstance(approve, type)):
        yield f"{who}: approve={brief(approve)}: give True, or a function of its arguments that says whether to ask"
    yield from (f"{who}: {problem}" for problem in flag_problems(effect=spec.effect))
    if render is not None and (not callable(render) or isinstance(render, type) or is_async(render)):
        yield f"{who}: render={brief(render)}: give a function of a call that is not async, render=lambda call: ..."
    elif render is not None and not _takes_call(render):
        yield f"{who}: its render takes no call: give it a first parameter for one, render=lambda call: ..."
    if isinstance(check, str) or (check is not None and not callable(check)):
        yield (
            f"{who}: check={brief(check)}: give a function of `tool`, `args`, `result` and fields, a pydantic model, "
            "or a module or graph with an output `problems: list[str]`"
        )
    for kind in spec.raises:
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            yield f"{who}: raises holds {brief(kind)}: give classes of exceptions, raises=(BillingError,)"


def _takes_call(render: Callable[..., object]) -> bool:
    """Return whether a function has a first parameter, for the call that it renders."""
    try:
        first = next(iter(signature_of(render).parameters.values()), None)
    except ValueError:  # a function of C has no signature
        return True
    return first is not None and first.kind not in (first.KEYWORD_ONLY, first.VAR_KEYWORD)


# --- what the model sees of a tool, and what is hidden from it


NO_TOOL: Any = None
"""The `dspy.Tool` of what cannot be shown to a model."""


def _describe(
    target: Any, name: str | None, desc: str | None, reads: Collection[str], effect: bool, problems: list[str]
) -> ToolSpec:
    """The tool that something becomes: what the model sees, and what is called. Adds what is wrong to `problems`."""
    if isinstance(target, dspy.Tool):
        return _describe_tool(target, name or str(target.name), desc, reads, effect, problems)
    if isinstance(target, Graph) or is_program(target):
        return _describe_program(target, name, desc, reads, problems)
    if isinstance(target, dspy.Module):
        return _describe_module(target, name, desc, reads, problems)
    if not callable(target) or isinstance(target, type):
        what = f"the class {target.__name__}" if isinstance(target, type) else brief(target)
        problems.append(f"a tool is a function, a dspy.Tool, a module or a program, and this is {what}")
        return ToolSpec(name or "?", NO_TOOL, target)
    source = target.func if isinstance(target, partial) else target
    name = name or str(getattr(source, "__name__", type(source).__name__))
    who = f"tool {name!r}"
    signature, own = read_signature(target, who), signature_of(target).parameters
    problems += [text for text in signature.problems if " takes *" not in text]
    problems += [
        f"{who} takes *{one.name}: a model gives arguments by name, so name them"
        for one in own.values()
        if one.kind is inspect.Parameter.VAR_POSITIONAL
    ]
    shown, hidden, takes_key = _split(signature, reads, effect, who, problems)
    if problems:
        return ToolSpec(name, NO_TOOL, target)
    hints = {one.name: one.annotation for one in shown}
    defaults = {one.name: own[one.name].default for one in shown if one.default}
    # What `**` takes, DSPy shows to the model as one argument.
    rest = [one for one in own.values() if signature.takes_all and one.kind is inspect.Parameter.VAR_KEYWORD]
    view = model_view(name, hints, defaults, _doc_of(target) if desc is None else desc, rest=rest)
    return ToolSpec(name, view, target, hidden, frozenset(hints).difference(defaults), takes_key)


def _split(
    signature: FunctionSignature, reads: Collection[str], effect: bool, who: str, problems: list[str]
) -> tuple[list[Parameter], FunctionSignature, bool]:
    """The parameters of a function that the model sees, those that it does not, and whether it takes the key."""
    shown, hidden, takes_key = [], [], False
    for one in signature.parameters:
        kind = class_of(one.annotation)
        if one.name in reads or one.name == "ctx" or kind is Context or one.text.rpartition(".")[2] == "Context":
            hidden.append(one)
        elif one.name == "key" and effect:
            takes_key = True
        elif one.name == "self":  # DSPy cannot pass an argument of this name
            problems.append(
                f"{who}: its parameter 'self' would be an argument that the model gives: make the method of an object "
                "a tool, desk.refund and not Desk.refund, or rename the parameter"
            )
        elif one.text:
            problems.append(
                f"{who}: the annotation {one.text!r} of its parameter {one.name!r} cannot be resolved from here: "
                "define its class at module level"
            )
        elif _has_schema(one.annotation):
            shown.append(one)
        elif kind is not None and not is_value_class(kind):
            hidden.append(one)
        else:
            problems.append(
                f"{who}: no model can give its parameter {one.name!r} of type {shown_type(one.annotation)}: bind it "
                "with functools.partial, or take it as a resource of the run"
            )
    return shown, FunctionSignature(tuple(hidden)), takes_key


def _has_schema(annotation: Any) -> bool:
    """Tell if a model can give values of a type: pydantic has a JSON schema for it. Of other classes, the run has one.

    So a pydantic model or a dataclass is an argument, and an HTTP client is a resource.
    """
    try:
        TypeAdapter(annotation).json_schema()
    except (PydanticUserError, NameError):
        return False
    return True


def model_view(
    name: str,
    hints: Mapping[str, Any],
    defaults: Mapping[str, Any],
    desc: str,
    arg_desc: dict[str, str] | None = None,
    rest: Iterable[inspect.Parameter] = (),
) -> dspy.Tool:
    """The `dspy.Tool` of a function as if it had only parameters with these types and defaults, and the `rest`."""

    def called_by_its_node(**_: Any) -> Any:
        raise TypeError(f"tool {name!r} is called by its node in a graph, and not through the dspy.Tool of a model")

    keyword, none = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [inspect.Parameter(one, keyword, default=defaults.get(one, none)) for one in hints]
    called_by_its_node.__signature__ = inspect.Signature([*parameters, *rest])  # type: ignore[attr-defined]  # any function
    called_by_its_node.__annotations__ = dict(hints)
    try:
        view = dspy.Tool(called_by_its_node, name=name, desc=desc, arg_desc=arg_desc)
    except RecursionError:
        raise GraphError(
            f"tool {name!r}: the type of a parameter contains itself, and DSPy shows a model types without references: "
            "take a dict or a text, and validate it in the tool"
        ) from None
    # DSPy takes the types without what `Annotated` adds to them, and would not validate a `Field(gt=0)`.
    view.arg_types = {**(view.arg_types or {}), **hints}
    return view


def _doc_of(fn: Any) -> str:
    """The docstring of a function, or of a callable object."""
    source = fn.func if isinstance(fn, partial) else fn
    if inspect.isroutine(source):
        return source.__doc__ or ""
    return source.__doc__ or getattr(own_call(source), "__doc__", None) or ""


def _describe_tool(
    given: dspy.Tool, name: str, desc: str | None, reads: Collection[str], effect: bool, problems: list[str]
) -> ToolSpec:
    """A `dspy.Tool`: without the parameters that its function names and that the model does not see.

    The function of an MCP tool names none: its server validates the arguments.
    """
    who = f"tool {name!r}"
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {one.name for one in signature_of(given.func).parameters.values() if one.kind in kinds}
    found = read_signature(given.func, who)
    parameters = tuple(one for one in found.parameters if one.name in named)
    shown, hidden, takes_key = _split(replace(found, parameters=parameters), reads, effect, who, problems)
    known = {one.name for one in shown}
    args = {key: value for key, value in (given.args or {}).items() if key in known or key not in named}
    types = {key: value for key, value in (given.arg_types or {}).items() if key in args}
    annotated = {one.name: one.annotation for one in shown if one.name in types}
    plain = get_type_hints(SimpleNamespace(__annotations__=annotated))  # without what `Annotated` adds, at any depth
    types |= {key: value for key, value in annotated.items() if types[key] == plain[key]}  # not types of the caller
    update = {"args": args, "arg_types": types, "name": name, "desc": given.desc if desc is None else desc}
    required = frozenset(one.name for one in shown if not one.default and one.name in args)
    return ToolSpec(name, given.model_copy(update=update), given.func, hidden, required, takes_key)


def _describe_module(
    module: dspy.Module, name: str | None, desc: str | None, reads: Collection[str], problems: list[str]
) -> ToolSpec:
    """A module: its inputs are the arguments."""
    if name is None:
        problems.append(f"a {type(module).__name__} as a tool has no name of its own: tool(module, name='...')")
        return ToolSpec("?", NO_TOOL, module)
    found = module_io(module)
    inputs = [Parameter(one, kind, "", one in found.optional) for one, kind in found.inputs.items()]
    hidden = FunctionSignature(tuple([one for one in inputs if one.name in reads]))
    hints = {one.name: one.annotation for one in inputs if one.name not in reads}
    defaults = {one: None for one in hints if one in found.optional}
    signature = signature_of_module(module)
    fields = {} if signature is None else signature.input_fields
    told = {one: info.json_schema_extra.get("desc") for one, info in fields.items()}
    arg_desc = {one: text for one, text in told.items() if text and text != f"${{{one}}}"}
    if desc is None:
        own = vars(type(module)).get("__doc__") if not type(module).__module__.startswith("dspy.") else None
        desc = own or (signature.instructions if signature is not None else "")
    problems += [f"tool {name!r}: {text}" for text in found.problems]
    view = model_view(name, hints, defaults, desc, arg_desc)
    return ToolSpec(name, view, module, hidden, frozenset(hints).difference(defaults))


_SESSION_DESC = "Name of the conversation to continue, or of a new one. Without a name, a new one begins."


def _describe_program(
    target: Any, name: str | None, desc: str | None, reads: Collection[str], problems: list[str]
) -> ToolSpec:
    """A program, or a graph that becomes one: its required inputs are the arguments."""
    program = compiled(target, name or "tool")
    schema = program.graph.topology.schema
    name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", program.graph.name).lower()
    who = f"tool {name!r}"
    hints: dict[str, Any] = {}
    told: dict[str, str] = {}
    for one in [one for one in program.graph.inputs if one in program.graph.required and one not in reads]:
        field = schema.fields.get(one)
        hints[one] = Any if field is None else field.annotation
        if field is not None and field.info.description:
            told[one] = field.info.description
        if not _has_schema(hints[one]):
            problems.append(
                f"{who}: no model can give its input {one!r} of type {shown_type(hints[one])}: map a field of the "
                f"agent to it, reads={{{one!r}: 'a field'}}"
            )
    required = frozenset(hints)
    if has_sessions(program, reads):
        if SESSION in hints:
            problems.append(f"{who}: its input {SESSION!r} has the name of the argument for sessions: rename it")
        hints, told = {**hints, SESSION: str}, {**told, SESSION: _SESSION_DESC}
    if problems:
        return ToolSpec(name, NO_TOOL, program)
    own = None if schema.model is None else vars(schema.model).get("__doc__")
    view = model_view(name, hints, {SESSION: ""}, (own or "") if desc is None else desc, told)
    return ToolSpec(name, view, program, required=required)


# The tool by which a model asks the user.


def _ask_user(question: str, ctx: Context) -> str:
    return ctx.interrupt(ctx.node, question, str)


ask_user: ToolSpec = tool(_ask_user, name="ask_user", desc="Asks the user a question and returns the answer.")
"""A tool that asks the user: its argument `question` is the text of a question of the run, whose key is `ask_user`.

Example:
    >>> ask_user
    tool(ask_user: question)
"""
