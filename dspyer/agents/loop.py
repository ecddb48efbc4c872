"""`tool_loop` and `modes`: the graphs of agents. A turn makes the requests of `dspy.ReActV2`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Annotated, Any, Literal, get_origin

import dspy
from pydantic import BaseModel, Field, create_model
from pydantic_core import PydanticUndefined

from dspyer import START, Command, Conversations, Graph, Messages, View, reducers
from dspyer.agents.agent_check import build_agent_check
from dspyer.agents.arrivals import SEEN
from dspyer.agents.compact import COMPACT, Compact, build_compact
from dspyer.agents.conversation import (
    CONTEXT,
    HAND_OFF,
    HANDOFFS,
    MAX_RESULT,
    MESSAGES,
    MODE,
    PROBLEMS,
    READ_RESULT,
    SUBMIT,
    AgentPart,
)
from dspyer.agents.mode import build_mode
from dspyer.agents.settle import (
    BEGIN,
    CHECK,
    FIRST_CALL,
    SETTLE,
    build_begin,
    build_settle,
)
from dspyer.agents.tool_action import SESSIONS, Sessions, has_sessions
from dspyer.agents.tool_node import ToolSpec, build_tool, max_result_problem
from dspyer.agents.tools import AgentOptions, AgentPlan, AnyTool, Check, Mode, Selection, as_tools
from dspyer.errors import GraphError, brief, list_names, suggestion
from dspyer.extend import Schema, flag_problems, is_program, is_whole_number, read_signature
from dspyer.graph.builder import compiled
from dspyer.nodes.callables import literals, members
from dspyer.policies import Policies

# The graph of an agent, assembled from its modes: fields, nodes and edges, and what is wrong with them.
#
# `tool_loop` and `modes` are one graph: `START -> begin -> a mode -> its tools -> settle -> a mode, check or END`.


RESERVED = (BEGIN, SETTLE, CHECK, SUBMIT, READ_RESULT)
"""The names that neither a tool nor a mode may have."""

OF_REACT = ("history", "tools", "termination_reason", "next_thought", "tool_calls")
"""The names in the signature of the predictor of `dspy.ReActV2`."""


def assemble(plan: AgentPlan) -> Graph:
    """The graph of an agent; raises `GraphError` with all that is wrong with it."""
    tools = plan.nodes
    problems = [*_plan_problems(plan), *_name_problems(plan, tools), *_mode_problems(plan), *_field_problems(plan)]
    problems += _command_problems(plan, tools)
    if problems:
        raise GraphError(problems)
    given = plan.options
    graph = _graph(plan, tools)
    graph.add_node(BEGIN, AgentPart(partial(build_begin, plan), "add_task_to_messages"))
    for name, mode in plan.modes.items():
        # A view is what the node reads, so that it is checked with the graph and shown in pictures.
        reads = {CONTEXT: mode.context} if isinstance(mode.context, View) else None
        graph.add_node(name, AgentPart(partial(build_mode, plan), "take_turn", (plan.predictors[name],)), reads=reads)
    for tool in tools.values():
        fields = () if given.schema is None else tuple(given.schema.model_fields)
        graph.add_node(
            tool.name,
            AgentPart(partial(build_tool, tool), "tool", (tool.target,)),
            reads=tool.reads,
            writes=fields if tool.writes is None else tool.writes,
            retry=tool.retry,
            timeout=tool.timeout,
        )
        graph.add_edge(tool.name, SETTLE)
    decides = tuple([fn for mode in plan.modes.values() for fn in (mode.route, mode.guard) if fn is not None])
    graph.add_node(SETTLE, AgentPart(partial(build_settle, plan), "end_turn_and_choose_what_follows", decides))
    if given.compact is not None:
        build: Any = partial(build_compact, given.compact, plan.shown, given.lm)
        graph.add_node(COMPACT, AgentPart(build, "write_summary", (given.compact,)))
    if given.check is not None:
        check = compiled(given.check, CHECK)
        by = () if isinstance(check, str) or check is True else (check,)
        graph.add_node(CHECK, AgentPart(partial(build_agent_check, check, plan), "check_outputs", by))
    graph._settle_policies[SETTLE] = Policies((), FIRST_CALL)
    return graph.add_edge(START, BEGIN)


# --- fields


def _own_fields(plan: AgentPlan) -> dict[str, tuple[Any, Any]]:
    """The type and the default of each field that every agent of this kind has."""
    found: dict[str, tuple[Any, Any]] = {MESSAGES: (Messages, [])}
    if plan.shows_mode:
        names = tuple(plan.modes)
        found[MODE] = (Literal[names], names[0])
    if any(is_program(tool.target) and has_sessions(tool.target, tool.reads or ()) for tool in plan.nodes.values()):
        found[SESSIONS] = (Sessions, {})
    # Without a default: it is unset until a call of this run leaves something to the end of its turn.
    found[HANDOFFS] = (Annotated[list[dict[str, Any]], reducers.extend], ...)
    if plan.options.check is not None:
        found[PROBLEMS] = (list[str], [])
    if plan.options.schema is not None and Schema.of(plan.options.schema).live_fields:
        found[SEEN] = (dict[str, dict[str, Any]], ...)  # unset until a post is shown
    return found


def _graph(plan: AgentPlan, tools: Mapping[str, ToolSpec]) -> Graph:
    """A graph without nodes, with the fields of an agent."""
    task, given = plan.task, plan.options
    schema = given.schema
    fields: dict[str, Any] = {}
    for name, info in task.input_fields.items():
        default = info.default if info.default_factory is None else Field(default_factory=info.default_factory)
        fields[name] = (info.annotation, ... if default is PydanticUndefined else default)
    fields |= {name: (info.annotation, ...) for name, info in task.output_fields.items()}
    own = () if schema is None else tuple(schema.model_fields)
    # The schema may say what becomes of the problems.
    of_agent = _own_fields(plan)
    fields |= {name: field for name, field in of_agent.items() if name not in own}
    model = create_model(given.name, __base__=schema or BaseModel, **fields)
    inputs = (*task.input_fields, *own)
    writes = [tool.writes for tool in tools.values() if tool.writes is not None]
    written = {field for one in writes for field in (one.values() if isinstance(one, Mapping) else one)}
    # What a tool writes may come later than the start.
    required = [name for name in inputs if model.model_fields[name].is_required() and name not in written]
    kept = [name for name in (SESSIONS, MODE, SEEN) if name in of_agent]  # besides what the schema says
    graph = Graph(
        model,
        name=given.name,
        inputs=inputs,
        required=required,
        outputs=(*task.output_fields, *own),
        keep=kept,
    )
    # Two agents in one graph have conversations of their own, unless the graph says by `reads=` that they share one.
    graph._options = graph._options._replace(also=frozenset((MESSAGES, *kept)))
    if given.warn_at is not None or given.max_demo_turns is not None:
        graph._layers.append(Conversations(warn_at=given.warn_at, max_demo_turns=given.max_demo_turns))
    return graph


# --- what is wrong


def _plan_problems(plan: AgentPlan) -> Iterator[str]:
    given: Any = plan.options
    if not is_whole_number(given.max_turns) or given.max_turns < 0:
        yield f"max_turns={given.max_turns!r}: give the most turns of a run, 0 or more"
    if not is_whole_number(given.max_fixes) or given.max_fixes < 0:
        yield f"max_fixes={given.max_fixes!r}: give the most corrections of one output, 0 or more"
    if (problem := max_result_problem(given.max_result)) is not None:
        yield problem
    if given.compact is not None and not isinstance(given.compact, Compact):
        yield f"compact={brief(given.compact)}: say when a summary is written, compact=agents.Compact(after=60_000)"
    yield from flag_problems(accept=given.accept)
    if given.check is None and given.accept is True:
        yield "accept=True says what happens to an output that a check refuses: give check= as well"


def _name_problems(plan: AgentPlan, tools: Mapping[str, ToolSpec]) -> Iterator[str]:
    modes = list(plan.modes)
    reserved = RESERVED if plan.options.compact is None else (*RESERVED, COMPACT)
    for name in tools:
        if name in reserved:
            own = "tool" if name == READ_RESULT else "node"
            yield f"{name!r} cannot name a tool, since the agent has a {own} {name!r}: agents.tool(..., name='...')"
        elif name in modes:
            yield f"{name!r} is a mode and a tool: give the tool another name, agents.tool(..., name='...')"
        elif name.removeprefix(HAND_OFF) != name and name.removeprefix(HAND_OFF) in modes:
            yield f"{name!r} cannot name a tool: by it the model hands off to {name.removeprefix(HAND_OFF)!r}"
    for name in modes:
        if name in reserved:
            yield f"{name!r} cannot name a mode: the agent has a node or a tool of this name"


def _field_problems(plan: AgentPlan) -> Iterator[str]:
    task, given = plan.task, plan.options
    own = _own_fields(plan)
    for name in task.fields:
        if name in own:
            yield f"{name!r} cannot be an input or output: the agent has a field of this name"
        if name in OF_REACT:
            yield f"{name!r} cannot be an input or output: the predictor of dspy.ReActV2 has a field of this name"
    if not task.output_fields:
        yield "the signature has no output that the agent could submit"
    for name in () if given.schema is None else given.schema.model_fields:
        if name in task.fields:
            yield f"{name!r} is a field of the signature and of the schema: declare it in one, in the schema if Kept"
        elif name in own and name != PROBLEMS:
            yield f"{name!r} cannot be a field of the schema: the agent has a field of this name"


def _mode_problems(plan: AgentPlan) -> Iterator[str]:
    """Modes that do not exist, that nothing reaches, and routes that name them."""
    names = list(plan.modes)
    follow: dict[str, set[str]] = {}
    for own, mode in plan.modes.items():
        for name in mode.to:
            if name not in names:
                yield (
                    f"mode {own!r} hands off to {name!r}, which is no mode.{suggestion(name, names)} Modes: "
                    f"{list_names(names)}"
                )
        allowed = tuple(mode.to) or tuple(names)
        routed = literals(read_signature(mode.route, "").returns) if callable(mode.route) else ()
        for label in map(str, routed):
            if label not in (own, *allowed):
                yield (
                    f"the route of mode {own!r} may return {label!r}, which cannot follow it: the modes that can "
                    f"are {list_names(allowed)}.{suggestion(label, allowed)}"
                )
        follow[own] = {*mode.to, *(routed or allowed if mode.route is not None else ())}
    reached = [names[0]]
    for name in reached:  # it grows
        reached += [other for other in follow.get(name, ()) if other not in reached]
    for name in names:
        if name not in reached:
            yield f"nothing reaches the mode {name!r}: name it in `to` of another mode, or start there"


def _command_problems(plan: AgentPlan, tools: Mapping[str, ToolSpec]) -> Iterator[str]:
    """Modes that a tool declares to hand off to, in its return annotation, and that no mode with the tool may."""
    for name, tool in tools.items():
        allowed = {other for own, mode in plan.modes.items() if tool in plan.tools[own] for other in mode.to}
        returns = read_signature(tool.target, "").returns if callable(tool.target) else Any
        commands = [kind for kind in members(returns) if get_origin(kind) is Command]
        for target in dict.fromkeys(target for kind in commands for target in literals(kind)):
            if target not in allowed:
                yield (
                    f"tool {name!r} hands off to {target!r}, which no mode with this tool may: name it in `to` of the "
                    f"mode.{suggestion(target, allowed)}"
                )


REACT = "react"
"""The one mode of a `tool_loop`; `dspy.ReActV2` calls its predictor so."""


def tool_loop(
    signature: str | type[dspy.Signature],
    tools: Iterable[AnyTool],
    *,
    max_turns: int = 20,
    context: Selection = None,
    config: Mapping[str, Any] = {},
    lm: dspy.BaseLM | None = None,
    schema: type[BaseModel] | None = None,
    check: Check = None,
    max_fixes: int = 2,
    accept: bool = False,
    name: str = "Agent",
    warn_at: int | None = None,
    max_demo_turns: int | None = None,
    max_result: int | None = MAX_RESULT,
    compact: Compact | None = None,
) -> Graph:
    """The graph of an agent that calls tools until it submits its outputs.

    Its predictor is `program.react`, and sends the requests of `dspy.ReActV2`: a file that either has saved loads into
    the other. On a thread, the inputs of the next run are the next user message.

    The nodes are `begin`, `react`, one per tool, and `settle`, which ends a turn. The conversation is the field
    `messages`. The user's message of a task has its inputs under `turn`; a turn has the `name` of its mode, its
    `tool_calls` and its thought; the result of a tool has the tool's `name`, `tool_call_id`, `value`, `error`, and
    `args` if a person has changed them. A call without an id, or with one that is taken, gets `call_<turn>_<place>`.

    The prompt is made anew for each turn. A call is shown with its result or not at all, results in the order of the
    calls. The texts of users are shown in the first input of type `str`, with the inputs that no turn has handled yet;
    pictures in them are parts of the request. An assistant's message without a name is a turn that has submitted the
    text, if the one output is a text, or else has thought it. Messages of others are blocks `<message from="critic">`,
    and these marks are escaped in all other texts. If the prompt is too long for the model, the turn is asked again
    without the older half of the turns and with results of at most 1,000 characters, then with the last turn alone.

    A response that cannot be parsed, one without tool calls, and a prompt that is too long lead to the last turn at
    once; with `compile(retry=2)` the request is repeated first. A run whose last turn does not submit fails with
    `AgentError`, which has a `reason` and the number of `turns`.

    As a node of another graph it reads its inputs from fields and has a conversation of its own, which begins anew at
    each call; a node that reads and writes `messages` shares that of the outer graph. `prediction.trajectory` has the
    turns of all agents of the run, and a program that is one agent has the `history` and `termination_reason` of
    `ReActV2`.

    Optimizers see one predictor per mode, each turn as one step of the trace; a response without calls and a turn whose
    outputs a check refused make no demo. Tools are no part of demos and saved files. `LabeledFewShot` teaches nothing,
    since a labelled example has no turn. With native tool calls DSPy shows demos without the calls: tune with calls as
    text. `BootstrapFinetune` needs `multitask=True`; its prompts and those of `GRPO` lack the list of tools.

    Args:
        signature: the inputs and outputs of the task.
        tools: what the model may call: functions, `dspy.Tool`s, modules, programs, and what `agents.tool` made of them.
        max_turns: the most ordinary turns of a run; after them comes a last one, which must submit.
        context: selects the messages that the model is shown: a view of `messages`, or a pure function of `messages`
            and other fields, by name, that returns messages; None for all. The inputs of the task and the last turn are
            always shown.
        config: settings of the LM, such as the temperature.
        lm: the LM of the agent; None for the one that is configured.
        schema: a model of further fields of the state, for the tools. They are inputs too; those declared
            `Kept[...]` last over the runs of a thread. Braces in the instructions, `{field}`, show one to the model.
        check: finds problems in the outputs: a function of fields that returns a list of problems, a pydantic model
            that validates the fields of its names, or a module or program with an output `problems: list[str]`; or
            True, which asks the agent's own predictor for problems; no optimizer sees that question. The problems
            become a user message.
        max_fixes: the most corrections of a run; after them the check raises `CheckError`.
        accept: whether the last outputs are accepted instead of the error, with their problems in the field `problems`.
        name: the name of the graph.
        warn_at: the number of remaining steps of a given `max_steps` from which on the model is warned, as in
            `Conversations`.
        max_demo_turns: how many turns of the conversation a demo shows, as in `Conversations`.
        max_result: the most characters of a tool's result that the model is shown whole; None for no limit. Of a
            longer one it is shown the first tenth, and gets a tool `read_result` to read on.
        compact: when the turns but the last ones are replaced by a summary, which the predictor `program.compact`
            writes; None for never. The conversation keeps them.

    Returns:
        The graph, to be compiled, changed, or used as a node of another one.

    Raises:
        GraphError: if anything is wrong with the agent, with all problems and their fixes.

    Example:
        >>> from dspyer.testing import ScriptedLM
        >>> def add(a: int, b: int) -> int:
        ...     "Adds two numbers."
        ...     return a + b
        >>> program = tool_loop("question -> answer: int", [add]).compile()
        >>> calls = [{"name": "add", "args": {"a": 1, "b": 2}}], [
        ...     {"name": "submit", "args": {"answer": 3}}]
        >>> with ScriptedLM([{"next_thought": "",
        ...     "tool_calls": {"tool_calls": call}} for call in calls]):
        ...     program(question="1 + 2?").answer
        3
    """
    modes = {REACT: Mode(tools=tools)}
    prompt = warn_at, max_demo_turns, max_result, compact
    common = AgentOptions(max_turns, context, config, lm, schema, check, max_fixes, accept, name, *prompt)
    return _agent(signature, modes, REACT, common, shows_mode=False)


def modes(
    signature: str | type[dspy.Signature],
    modes: Mapping[str, Mode],
    *,
    start: str | None = None,
    max_turns: int = 20,
    context: Selection = None,
    config: Mapping[str, Any] = {},
    lm: dspy.BaseLM | None = None,
    schema: type[BaseModel] | None = None,
    check: Check = None,
    max_fixes: int = 2,
    accept: bool = False,
    name: str = "Agent",
    warn_at: int | None = None,
    max_demo_turns: int | None = None,
    max_result: int | None = MAX_RESULT,
    compact: Compact | None = None,
) -> Graph:
    """The graph of an agent that changes its instructions and tools while it runs.

    Each mode is a node with a predictor of its own, so optimizers tune its instructions and demos separately. The field
    `mode` holds the name of the current one; the next run on a thread starts in it. The first handoff of a turn takes
    effect, in the order of the calls, after all other calls of the turn have their results.

    Args:
        signature: the inputs and outputs of the task.
        modes: the modes by name.
        start: the mode in which a conversation starts; by default the first.
        max_turns: the most ordinary turns of a run, of all modes together.
        context: as in `tool_loop`, for the modes that have none.
        config: settings of the LM, for all modes.
        lm: the LM of the modes that have none.
        schema: a model of further fields of the state, for tools, guards, routes and instructions.
        check: as in `tool_loop`: True asks the mode that submitted, the name of a mode that one.
        max_fixes: as in `tool_loop`.
        accept: as in `tool_loop`.
        name: the name of the graph.
        warn_at: the number of remaining steps of a given `max_steps` from which on the model is warned, as in
            `Conversations`.
        max_demo_turns: how many turns of the conversation a demo shows, as in `Conversations`.
        max_result: as in `tool_loop`.
        compact: as in `tool_loop`.

    Returns:
        The graph, to be compiled, changed, or used as a node of another one.

    Raises:
        GraphError: if anything is wrong with the agent, with all problems and their fixes.

    Example:
        >>> from dspyer.testing import ScriptedLM
        >>> graph = modes("task -> report", {"plan": Mode("Plan.", to=["work"]),
        ...     "work": Mode("Work.")})
        >>> calls = [{"name": "to_work", "args": {}}], [
        ...     {"name": "submit", "args": {"report": "done"}}]
        >>> with ScriptedLM([{"next_thought": "",
        ...     "tool_calls": {"tool_calls": call}} for call in calls]):
        ...     run = graph.compile().run({"task": "Tidy up"})
        >>> run.state["report"], run.state["mode"]
        ('done', 'work')
    """
    prompt = warn_at, max_demo_turns, max_result, compact
    common = AgentOptions(max_turns, context, config, lm, schema, check, max_fixes, accept, name, *prompt)
    return _agent(signature, modes, start, common, shows_mode=True)


def _agent(
    signature: str | type[dspy.Signature],
    given: Mapping[str, Mode],
    start: str | None,
    common: AgentOptions,
    shows_mode: bool,
) -> Graph:
    found: Any = given
    if (
        not isinstance(found, Mapping)
        or not found
        or not all(isinstance(name, str) and isinstance(mode, Mode) for name, mode in found.items())
    ):
        raise GraphError(f"modes={brief(found)}: give the modes by name, {{'plan': agents.Mode('...'), ...}}")
    _check_types(signature, given, common)
    first = next(iter(given)) if start is None else start
    found = first
    if not isinstance(found, str) or found not in given:
        raise GraphError(f"start={first!r} is no mode.{suggestion(first, given)} Modes: {list_names(given)}")
    distinct = {_key(tool): tool for mode in given.values() for tool in mode.tools}
    # In several modes, a tool is one node.
    specs = dict(zip(distinct, as_tools(distinct.values()), strict=True))
    # The first mode comes first in the type of the field `mode`, whose default it is; the others keep their order.
    modes = {
        name: replace(
            mode,
            context=common.context if mode.context is None else mode.context,
            config={**common.config, **mode.config},
            lm=common.lm if mode.lm is None else mode.lm,
        )
        for name, mode in sorted(given.items(), key=lambda item: item[0] != first)
    }
    own = {name: tuple(specs[_key(tool)] for tool in mode.tools) for name, mode in modes.items()}
    return assemble(AgentPlan(dspy.ensure_signature(signature), modes, own, common, shows_mode))


def _check_types(signature: Any, modes: Mapping[str, Mode], common: AgentOptions) -> None:
    """Raise `GraphError` for options of another type, before anything is made of them."""
    problems = []
    if not isinstance(signature, str) and not _is_subclass(signature, dspy.Signature):
        problems.append(
            f"{brief(signature)} is no signature: give a text such as 'question -> answer', or a dspy.Signature"
        )
    if common.schema is not None and not _is_subclass(common.schema, BaseModel):
        problems.append(f"schema={brief(common.schema)}: give a class of pydantic's BaseModel")
    given: list[Any] = [common, *modes.values()]
    for options in given:
        lm = options.lm
        if isinstance(lm, str):
            problems.append(f"lm={lm!r} is a name: give the LM itself, lm=dspy.LM({lm!r})")
        elif lm is not None and not isinstance(lm, dspy.BaseLM):
            problems.append(f"lm={brief(lm)} is no LM: give one, lm=dspy.LM('openai/gpt-4o-mini')")
        if not isinstance(options.config, Mapping):
            problems.append(f"config={brief(options.config)}: give settings of the LM, config={{'temperature': 0}}")
    if problems:
        raise GraphError(problems)


def _is_subclass(value: Any, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)


def _key(tool: Any) -> object:
    # Each access to a method of an object gives another object.
    return (id(tool.__self__), tool.__func__) if isinstance(tool, MethodType) else id(tool)
