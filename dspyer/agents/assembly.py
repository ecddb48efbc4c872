"""The graph of an agent, assembled from its modes: fields, nodes and edges, and what is wrong with them.

`tool_loop` and `modes` are the same graph: `START -> begin -> a mode -> its tools -> settle -> a mode, check or END`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_origin

import dspy
from dspy import Tool
from pydantic import BaseModel, Field, create_model
from pydantic_core import PydanticUndefined

from dspyer import reducers
from dspyer.agents.agent_check import AgentCheckOptions
from dspyer.agents.conversation import SUBMIT
from dspyer.agents.mode import ModeOptions
from dspyer.agents.rendering import CONTEXT
from dspyer.agents.settle import (
    BEGIN,
    CHECK,
    FIRST_CALL,
    HAND_OFF,
    HANDOFFS,
    MODE,
    SETTLE,
    BeginOptions,
    ModeRules,
    SettleOptions,
)
from dspyer.agents.subagent import SESSIONS, Sessions, has_sessions
from dspyer.agents.tool_node import ToolSpec
from dspyer.agents.tools import add_tool
from dspyer.errors import GraphError, list_names, suggestion
from dspyer.graph.builder import Graph, compiled
from dspyer.layers.conversations import Conversations
from dspyer.messages import Messages
from dspyer.nodes.callables import literals, members, read_signature
from dspyer.nodes.check import PROBLEMS
from dspyer.nodes.node import Command
from dspyer.nodes.steps import is_program
from dspyer.policies import Policies
from dspyer.scheduler.topology import END, START
from dspyer.values.scalars import flag_problems, is_whole_number
from dspyer.views import View

OF_AGENT = (BEGIN, SETTLE, CHECK, SUBMIT)
"""The names that neither a tool nor a mode may have."""

OF_REACT = ("history", "tools", "termination_reason", "next_thought", "tool_calls")
"""The names in the signature of the predictor of `dspy.ReActV2`."""


Selection: TypeAlias = View | Callable[..., Any] | None
Check: TypeAlias = Callable[..., object] | type[BaseModel] | dspy.Module | Graph | str | None


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


class ModePlan(NamedTuple):
    """A mode of an agent, as the assembly needs it.

    Attributes:
        name: its name; that of its node.
        instructions: what is added to the instructions of the signature.
        tools: what the model may call.
        rules: which modes may follow it, and what decides about it.
        context: selects the messages that it is shown.
        config: settings of the LM.
        lm: its LM; None for the one that is configured.
        desc: what other modes are told about it.
    """

    name: str
    instructions: str
    tools: tuple[ToolSpec, ...]
    rules: ModeRules
    context: Selection
    config: Mapping[str, Any]
    lm: dspy.BaseLM | None
    desc: str


class AgentPlan(NamedTuple):
    """An agent: its task, its modes, the one in which it starts first, and the options of the whole.

    Attributes:
        shows_mode: whether it has a field for the current mode.
    """

    task: type[dspy.Signature]
    modes: tuple[ModePlan, ...]
    options: AgentOptions
    shows_mode: bool


def assemble(plan: AgentPlan) -> Graph:
    """The graph of an agent; raises `GraphError` with all that is wrong with it."""
    tools = {tool.name: tool for mode in plan.modes for tool in mode.tools}
    problems = [*_plan_problems(plan), *_name_problems(plan, tools), *_mode_problems(plan), *_field_problems(plan)]
    problems += _command_problems(plan, tools)
    if problems:
        raise GraphError(problems)
    task, given, names = plan.task, plan.options, tuple(mode.name for mode in plan.modes)
    graph = _graph(plan, tools)
    graph.add_node(BEGIN, BeginOptions(tuple(task.input_fields), names))
    submit = None
    rules, predictors = {}, {}
    for mode in plan.modes:
        react = _react(plan, mode)
        submit, predictors[mode.name] = react.tools[SUBMIT], react.react
        own = frozenset(tool.name for tool in mode.tools)
        rules[mode.name] = mode.rules._replace(tools=own)
        fn, reads = (None, {CONTEXT: mode.context}) if isinstance(mode.context, View) else (mode.context, None)
        renders = {tool.name: tool.render for tool in mode.tools if tool.render is not None}
        handoffs = frozenset(f"{HAND_OFF}{name}" for name in mode.rules.to)
        options = ModeOptions(react.react, tuple(react.tools.values()), own, given.max_turns, fn, renders, handoffs)
        graph.add_node(mode.name, options, reads=reads)
    assert submit is not None
    for tool in tools.values():
        add_tool(graph, tool, () if given.schema is None else tuple(given.schema.model_fields), HANDOFFS)
        graph.add_edge(tool.name, SETTLE)
    checked = given.check is not None
    graph.add_node(SETTLE, SettleOptions(submit, tuple(task.output_fields), rules, CHECK if checked else END))
    if checked:
        inputs, outputs = tuple(task.input_fields), tuple(task.output_fields)
        check = compiled(given.check, CHECK)
        graph.add_node(CHECK, AgentCheckOptions(check, inputs, outputs, predictors, given.max_fixes, given.accept))
    graph._join_policies[SETTLE] = Policies((), FIRST_CALL, given=False)
    return graph.add_edge(START, BEGIN)


def _react(plan: AgentPlan, mode: ModePlan) -> Any:
    """The module of DSPy whose predictor and tools a mode uses."""
    texts = (plan.task.instructions, mode.instructions)
    task = plan.task.with_instructions("\n\n".join(texts)) if mode.instructions else plan.task
    others = {other.name: other for other in plan.modes}
    handoffs = [_handoff_tool(others[name]) for name in mode.rules.to]
    react = dspy.ReActV2(task, [*(tool.tool for tool in mode.tools), *handoffs])
    react.react.update_config(**mode.config)
    react.react.lm = mode.lm
    return react


def _handoff_tool(mode: ModePlan) -> Tool:
    """The tool by which a model hands off to a mode."""

    def hand_off() -> None:
        """Never called: the node that ends the turn makes the handoff."""

    desc = mode.desc or mode.instructions or f"Continue in the mode {mode.name}."
    return Tool(hand_off, name=f"{HAND_OFF}{mode.name}", desc=desc)


# --- fields


def _graph(plan: AgentPlan, tools: Mapping[str, ToolSpec]) -> Graph:
    """A graph without nodes, with the fields of an agent."""
    task, given = plan.task, plan.options
    schema = given.schema
    fields: dict[str, Any] = {}
    for name, info in task.input_fields.items():
        default = info.default if info.default_factory is None else Field(default_factory=info.default_factory)
        fields[name] = (info.annotation, ... if default is PydanticUndefined else default)
    fields |= {name: (info.annotation, ...) for name, info in task.output_fields.items()}
    fields["messages"] = (Messages, [])
    if plan.shows_mode:
        names = tuple(mode.name for mode in plan.modes)
        fields[MODE] = (Literal[names], names[0])
    sessions = (SESSIONS,) if any(_has_sessions(tool) for tool in tools.values()) else ()
    if sessions:
        fields[SESSIONS] = (Sessions, {})
    fields[HANDOFFS] = (Annotated[list[dict[str, Any]], reducers.extend], ...)
    own = () if schema is None else tuple(schema.model_fields)
    if given.check is not None and PROBLEMS not in own:
        fields[PROBLEMS] = (list[str], [])
    model = create_model(given.name, __base__=schema or BaseModel, **fields)
    inputs = (*task.input_fields, *own)
    written = {field for tool in tools.values() if tool.writes is not None for field in _written(tool.writes)}
    required = [name for name in inputs if model.model_fields[name].is_required() and name not in written]
    kept = ("messages", *sessions, *((MODE,) if plan.shows_mode else ()), *own)
    graph = Graph(
        model,
        name=given.name,
        inputs=inputs,
        required=required,
        outputs=(*task.output_fields, *own),
        keep=[name for name in kept if name != PROBLEMS],
    )
    # Two agents in one graph have conversations of their own, unless the graph says by `reads=` that they share one.
    graph._options = graph._options._replace(also=frozenset(kept).difference(own))
    if given.warn_at is not None or given.max_demo_turns is not None:
        graph._layers.append(Conversations(warn_at=given.warn_at, max_demo_turns=given.max_demo_turns))
    return graph


def _has_sessions(tool: ToolSpec) -> bool:
    """Whether a tool is a program with a conversation for each session."""
    return is_program(tool.target) and has_sessions(tool.target, tool.reads)


def _written(writes: Collection[str] | Mapping[str, str]) -> Iterable[str]:
    return writes.values() if isinstance(writes, Mapping) else writes


# --- what is wrong


def _plan_problems(plan: AgentPlan) -> Iterator[str]:
    given: Any = plan.options
    if not is_whole_number(given.max_turns) or given.max_turns < 0:
        yield f"max_turns={given.max_turns!r}: give the most turns of a run, 0 or more"
    if not is_whole_number(given.max_fixes) or given.max_fixes < 0:
        yield f"max_fixes={given.max_fixes!r}: give the most corrections of one output, 0 or more"
    yield from flag_problems(accept=given.accept)
    if given.check is None and given.accept is True:
        yield "accept=True says what happens to an output that a check refuses: give check= as well"


def _name_problems(plan: AgentPlan, tools: Mapping[str, ToolSpec]) -> Iterator[str]:
    modes = [mode.name for mode in plan.modes]
    for name in tools:
        if name in OF_AGENT:
            yield f"{name!r} cannot name a tool, since the agent has a node {name!r}: agents.tool(..., name='...')"
        elif name in modes:
            yield f"{name!r} is a mode and a tool: give the tool another name, agents.tool(..., name='...')"
        elif name.removeprefix(HAND_OFF) != name and name.removeprefix(HAND_OFF) in modes:
            yield f"{name!r} cannot name a tool: by it the model hands off to {name.removeprefix(HAND_OFF)!r}"
    for name in modes:
        if name in OF_AGENT:
            yield f"{name!r} cannot name a mode: the agent has a node or a tool of this name"


def _field_problems(plan: AgentPlan) -> Iterator[str]:
    task, given = plan.task, plan.options
    own = {
        "messages",
        HANDOFFS,
        *((MODE,) if plan.shows_mode else ()),
        *((PROBLEMS,) if given.check is not None else ()),
        *((SESSIONS,) if any(_has_sessions(tool) for mode in plan.modes for tool in mode.tools) else ()),
    }
    for name in task.fields:
        if name in own:
            yield f"{name!r} cannot be an input or output: the agent has a field of this name"
        if name in OF_REACT:
            yield f"{name!r} cannot be an input or output: the predictor of dspy.ReActV2 has a field of this name"
    if not task.output_fields:
        yield "the signature has no output that the agent could submit"
    for name in () if given.schema is None else given.schema.model_fields:
        if name in task.fields:
            yield f"{name!r} is a field of the signature and of the schema: leave it out of the schema"
        elif name in own and name != PROBLEMS:
            yield f"{name!r} cannot be a field of the schema: the agent has a field of this name"


def _mode_problems(plan: AgentPlan) -> Iterator[str]:
    """Modes that do not exist, that nothing reaches, and routes that name them."""
    names = [mode.name for mode in plan.modes]
    follow: dict[str, set[str]] = {}
    for mode in plan.modes:
        rules = mode.rules
        for name in rules.to:
            if name not in names:
                yield (
                    f"mode {mode.name!r} hands off to {name!r}, which is no mode.{suggestion(name, names)} Modes: "
                    f"{list_names(names)}"
                )
        allowed = rules.to or tuple(names)
        routed = literals(read_signature(rules.route, "").returns) if callable(rules.route) else ()
        for label in map(str, routed):
            if label not in (mode.name, *allowed):
                yield (
                    f"the route of mode {mode.name!r} may return {label!r}, which cannot follow it: the modes that can "
                    f"are {list_names(allowed)}.{suggestion(label, allowed)}"
                )
        follow[mode.name] = {*rules.to, *(routed or allowed if rules.route is not None else ())}
    reached, waiting = {names[0]}, [names[0]]
    while waiting:
        for name in follow.get(waiting.pop(), ()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    for name in names:
        if name not in reached:
            yield f"nothing reaches the mode {name!r}: name it in `to` of another mode, or start there"


def _command_problems(plan: AgentPlan, tools: Mapping[str, ToolSpec]) -> Iterator[str]:
    """Modes that a tool declares to hand off to, in its return annotation, and that no mode with the tool may."""
    for name, tool in tools.items():
        allowed = {other for mode in plan.modes if tool in mode.tools for other in mode.rules.to}
        returns = read_signature(tool.target, "").returns if callable(tool.target) else Any
        commands = [kind for kind in members(returns) if get_origin(kind) is Command]
        for target in dict.fromkeys(target for kind in commands for target in literals(kind)):
            if target not in allowed:
                yield (
                    f"tool {name!r} hands off to {target!r}, which no mode with this tool may: name it in `to` of the "
                    f"mode.{suggestion(target, allowed)}"
                )
