"""`tool_loop` and `modes`: the graphs of agents. A turn makes the requests of `dspy.ReActV2`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MethodType
from typing import Any, TypeAlias

import dspy
from pydantic import BaseModel

from dspyer.agents.assembly import AgentOptions, AgentPlan, Check, ModePlan, Selection, assemble
from dspyer.agents.settle import ModeRules
from dspyer.agents.tool_node import ToolSpec
from dspyer.agents.tools import as_tools
from dspyer.errors import GraphError, brief, list_names, suggestion
from dspyer.graph.builder import Graph

AnyTool: TypeAlias = Callable[..., Any] | dspy.Tool | dspy.Module | ToolSpec

REACT = "react"
"""The one mode of a `tool_loop`; `dspy.ReActV2` calls its predictor so."""


@dataclass(frozen=True)
class Mode:
    """One mode of an agent: what it is told, what it may call, and which modes may follow it.

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
    to: Iterable[str] = ()
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
        object.__setattr__(self, "tools", _tool_list(self.tools))
        if isinstance(self.config, Mapping):  # another type is refused with the rest, by `_check_types`
            object.__setattr__(self, "config", dict(self.config))


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
) -> Graph:
    """The graph of an agent that calls tools until it submits its outputs.

    Its predictor is `program.react`, and sends the requests of `dspy.ReActV2`: a file that either has saved loads into
    the other. On a thread, the inputs of the next run are the next user message.

    Args:
        signature: the inputs and outputs of the task.
        tools: what the model may call: functions, `dspy.Tool`s, modules, programs, and what `agents.tool` made of them.
        max_turns: the most ordinary turns of a run; after them comes a last one, which must submit.
        context: selects the messages that the model is shown: a view of `messages`, or a pure function of `messages`
            and other fields, by name, that returns messages; None for all. The inputs of the task are always shown.
        config: settings of the LM, such as the temperature.
        lm: the LM of the agent; None for the one that is configured.
        schema: a model of further fields of the state, for the tools. They last over the runs of a thread.
        check: finds problems in the outputs: a function of fields that returns a list of problems, a pydantic model
            that validates the fields of its names, or a module or program with an output `problems: list[str]`; or
            "react", which asks the agent's own predictor for problems. The problems become a user message.
        max_fixes: the most corrections of a run; after them the check raises `CheckError`.
        accept: whether the last outputs are accepted instead of the error, with their problems in the field `problems`.
        name: the name of the graph.
        warn_at: the number of remaining steps from which on the model is warned, as in `Conversations`.
        max_demo_turns: how many turns of the conversation a demo shows, as in `Conversations`.

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
        >>> calls = [{"name": "add", "args": {"a": 1, "b": 2}}], [{"name": "submit", "args": {"answer": 3}}]
        >>> with ScriptedLM([{"next_thought": "", "tool_calls": {"tool_calls": call}} for call in calls]):
        ...     program(question="1 + 2?").answer
        3
    """
    modes = {REACT: Mode(tools=tools)}
    common = AgentOptions(
        max_turns, context, config, lm, schema, check, max_fixes, accept, name, warn_at, max_demo_turns
    )
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
        check: as in `tool_loop`; it may be the name of any mode.
        max_fixes: as in `tool_loop`.
        accept: as in `tool_loop`.
        name: the name of the graph.
        warn_at: the number of remaining steps from which on the model is warned, as in `Conversations`.
        max_demo_turns: how many turns of the conversation a demo shows, as in `Conversations`.

    Returns:
        The graph, to be compiled, changed, or used as a node of another one.

    Raises:
        GraphError: if anything is wrong with the agent, with all problems and their fixes.

    Example:
        >>> from dspyer.testing import ScriptedLM
        >>> graph = modes("task -> report", {"plan": Mode("Plan.", to=["work"]), "work": Mode("Work.")})
        >>> calls = [{"name": "to_work", "args": {}}], [{"name": "submit", "args": {"report": "done"}}]
        >>> with ScriptedLM([{"next_thought": "", "tool_calls": {"tool_calls": call}} for call in calls]):
        ...     run = graph.compile().run({"task": "Tidy up"})
        >>> run.state["report"], run.state["mode"]
        ('done', 'work')
    """
    common = AgentOptions(
        max_turns, context, config, lm, schema, check, max_fixes, accept, name, warn_at, max_demo_turns
    )
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
    tools = _distinct([tool for mode in given.values() for tool in mode.tools])
    specs = list(zip(tools, as_tools(tools), strict=True))
    plans = [
        ModePlan(
            name=name,
            instructions=mode.instructions,
            tools=tuple(next(spec for known, spec in specs if _same(tool, known)) for tool in mode.tools),
            rules=ModeRules(tuple(mode.to), mode.route, mode.guard),
            context=common.context if mode.context is None else mode.context,
            config={**common.config, **mode.config},
            lm=common.lm if mode.lm is None else mode.lm,
            desc=mode.desc,
        )
        for name, mode in sorted(given.items(), key=lambda item: item[0] != first)
    ]
    return assemble(AgentPlan(dspy.ensure_signature(signature), tuple(plans), common, shows_mode))


def _tool_list(tools: Any) -> tuple[Any, ...]:
    # A set has another order in every process, and the order is part of the prompt.
    if isinstance(tools, Mapping | str | set | frozenset) or not isinstance(tools, Iterable):
        raise GraphError(f"tools={brief(tools)}: give a list of tools, tools=[...]")
    return tuple(tools)


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


def _distinct(tools: list[Any]) -> list[Any]:
    """The tools, each object once: in several modes it is one node."""
    found: list[Any] = []
    for tool in tools:
        if not any(_same(tool, known) for known in found):
            found.append(tool)
    return found


def _same(tool: Any, other: Any) -> bool:
    # Each access to a method of an object gives another object.
    return tool is other or (isinstance(tool, MethodType) and tool == other)
