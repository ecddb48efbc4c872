"""The pure nodes of an agent: `begin` makes the user message of a task, `settle` ends a turn.

The branches of a turn join at `settle`. It gives every call a result that has none yet (`submit`, handoffs, unknown
tools), writes the outputs, and decides where the branch continues. It calls no model and no tool: guards and routes,
the functions of the author that it does call, are pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dspy import Tool
from pydantic import ValidationError

from dspyer import DELETE, END, ImmutableState
from dspyer.agents.arrivals import unread_messages
from dspyer.agents.compact import PlannedModes, current_mode, plan_modes
from dspyer.agents.conversation import (
    ARGS,
    HAND_OFF,
    HANDOFFS,
    MESSAGES,
    MODE,
    PROBLEMS,
    READ_RESULT,
    SUBMIT,
    BoundFunction,
    CallOfTurn,
    Shown,
    last_turn,
    plan_function,
    reader,
    task_message,
    tool_message,
    turns_since_task,
)
from dspyer.agents.tool_node import Approval, ToolSpec, refused_by_dspy
from dspyer.agents.tools import AgentPlan, Mode, ask_user
from dspyer.errors import InputError, RouteError, ThreadError, always_raised, list_names, short_error, suggestion
from dspyer.events import Question
from dspyer.extend import (
    Built,
    Call,
    FrozenList,
    Node,
    NodeOptions,
    Reply,
    Script,
    freeze,
    read_signature,
    same,
    text_of,
    thaw,
)
from dspyer.policies import first_write_wins
from dspyer.scheduler.join import value_in

BEGIN, SETTLE, CHECK = "begin", "settle", "check"
"""The names of the nodes of an agent that are neither modes nor tools, with `COMPACT`."""

LOST = "the call was made, but {} was not set: an earlier call of this turn has set another value"

WRITTEN_AGAIN = "the user has written again"
"""The reason for which the open calls of a turn are refused if the user writes while it waits."""

ADDED = "added to {}"
"""The key under which a run records what the user has written while a turn waited, by the id of the turn."""

ANY_TEXT = {"type": "string"}
"""The JSON schema of the answer to `ask_user`."""

FIRST_CALL = replace(first_write_wins, name="first_call_of_turn")
"""The merge policy where the calls of a turn join, for paths for which none was chosen."""

LEFT_OPEN = (
    "{} has no result: the run was abandoned while this call was open. It may have been made, so find out before you "
    "call it again."
)
"""What the model is shown of a call whose run was abandoned. The results of that run are not in the state, and a model
that is not told of an effect makes it again."""


def build_begin(plan: AgentPlan, options: NodeOptions) -> Built:
    """The first node of an agent: the inputs of the task, how each mode is shown messages, and when summaries come."""
    inputs, compact = tuple(plan.task.input_fields), plan.options.compact
    # Without summaries it shows nothing, and so it reads no field of a render.
    planned = plan_modes(dict.fromkeys(plan.modes, Shown("")) if compact is None else plan.shown, options, compact)
    reads = (*inputs, *planned.reads)
    fields = options.schema.fields.items()
    node = BeginNode(
        name=options.name,
        reads={name: name for name in reads},
        optional=frozenset(reads),
        writes={MESSAGES: MESSAGES},
        goto=planned.goto,
        inputs=inputs,
        modes=planned,
        none_by_default=frozenset(name for name, field in fields if field.fixed_default is None),
    )
    return Built(node)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BeginNode(Node):
    """A node that adds the inputs of a task to the conversation, and starts the current mode.

    Attributes:
        inputs: the inputs of the task.
        none_by_default: those of them that are None if they are left out; then the model is not shown them.
        modes: the modes, and when a summary comes before the first turn.
    """

    inputs: tuple[str, ...]
    modes: PlannedModes
    none_by_default: frozenset[str]

    def script(self, call: Call) -> Script[Reply]:
        """Make the user message. Calls that an abandoned run has left open get a result first."""
        yield from ()
        state = call.state
        # A provider refuses a conversation in which a tool call has no result, so these come before the task.
        left = [
            tool_message(one.id, one.name, LEFT_OPEN.format(one.name), True)
            for one in last_turn(state.raw(MESSAGES)).unanswered
        ]
        given = {name: thaw(state.raw(name)) for name in self.inputs if name in state}
        # The model would be told "None" of an input that was not given.
        given = {name: value for name, value in given.items() if value is not None or name not in self.none_by_default}
        # What was sent since the last run has ended comes before the task, too.
        new = [*left, *unread_messages(call), task_message(given)]
        mode = current_mode(state, tuple(self.modes.renderings))
        return Reply({MESSAGES: new}, (self.modes.way_to(mode, call, new),), True)

    def amended(
        self, state: ImmutableState, inputs: Mapping[str, Any], questions: Sequence[Question]
    ) -> tuple[Mapping[str, Any], str, Any] | None:
        """The answers that new inputs give to questions of the open turn, and their text for the end of the turn."""
        if extra := [name for name in inputs if name not in self.inputs]:
            raise InputError(
                f"an open run takes the inputs of its task ({list_names(self.inputs)}), and not {list_names(extra)}"
            )
        text = task_message(inputs)["content"]
        answers: dict[str, Any] = {}
        for question in questions:
            if question.call is not None:
                answers[question.id] = Approval(False, WRITTEN_AGAIN)
            elif question.key == question.node == ask_user.name and question.answer == ANY_TEXT:
                answers[question.id] = text
            else:
                raise ThreadError(
                    f"the run cannot be amended, since question {question.id!r} is neither an approval nor asked by "
                    "`ask_user`: answer it with thread.resume(...), or leave the run with "
                    "thread.run(..., if_open='abandon')"
                )
        turn = last_turn(state.raw(MESSAGES))
        return answers, ADDED.format(turn.id), {"role": "user", "content": text}


# --- submit


def submitted(submit: Tool, args: Mapping[str, Any]) -> tuple[Any, Exception | None]:
    """The outputs that a call of `submit` gives, or what a call of `read_result` does; or a text and why it failed."""
    try:
        return submit(**args), None
    except Exception as error:
        if always_raised(error):
            raise
        # The arguments are the model's, which is told what is wrong with them.
        # DSPy validates each argument as a field `value` of its own: the model must be told the name that it knows.
        told = refused_by_dspy(submit, args, error) if isinstance(error, ValidationError) else error
        return short_error(told, step=submit.name or ""), error


# --- settle


def _plan_rule(fn: Any, what: str, options: NodeOptions, problems: list[str]) -> BoundFunction | None:
    """A guard or a route, bound to the fields that it reads; what is wrong with it is added to `problems`."""
    if fn is None:
        return None
    if not callable(fn) or isinstance(fn, type):
        problems.append(f"{what} is {fn!r}: give a function of fields")
        return None
    rule = plan_function(fn, read_signature(fn, what), what, options, problems, whole=True)
    if not rule.binding.fields and not rule.binding.whole_state:
        problems.append(f"{what} reads no field, so it always decides alike: name a field as its parameter")
    return rule


def build_settle(plan: AgentPlan, options: NodeOptions) -> Built:
    """The last node of a turn. A branch goes to its `after` when its outputs are accepted: to `END`, or the check."""
    after = END if plan.options.check is None else CHECK
    problems: list[str] = []
    rules = {
        mode: replace(
            one,
            route=_plan_rule(one.route, f"the route of mode {mode!r}", options, problems),
            guard=_plan_rule(one.guard, f"the guard of mode {mode!r}", options, problems),
        )
        for mode, one in plan.modes.items()
    }
    planned = plan_modes(plan.shown, options, plan.options.compact)
    bound = [rule for one in rules.values() for rule in (one.route, one.guard) if isinstance(rule, BoundFunction)]
    found = [rule.reads for rule in bound if rule.reads is not None]
    names = (*planned.reads, HANDOFFS, *(field for one in found for field in one.values()))
    # One that reads the whole state: then the node does.
    reads = {name: name for name in names} if len(found) == len(bound) else None
    own = [name for name in (MESSAGES, *plan.task.output_fields, MODE) if name in options.schema.fields]
    node = SettleNode(
        name=options.name,
        reads=reads,
        optional=frozenset(reads or ()) - {MESSAGES},
        writes={name: name for name in own},
        goto=(*planned.goto, after),
        submit=plan.submit,
        rules=rules,
        tools=plan.tools,
        modes=planned,
        after=after,
        max_turns=plan.options.max_turns,
    )
    return Built(node, None, tuple(problems))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SettleNode(Node):
    """A node that ends a turn.

    Attributes:
        submit: the tool that validates outputs.
        rules: the modes, whose functions are bound to fields.
        tools: by mode, the tools that are nodes.
        modes: the modes as they are shown results, and when a summary comes before the next turn.
        after: where a branch goes when its outputs are accepted.
        max_turns: the most ordinary turns of a run.
    """

    bounded: bool = True

    submit: Tool
    rules: Mapping[str, Mode]
    tools: Mapping[str, tuple[ToolSpec, ...]]
    modes: PlannedModes
    after: str
    max_turns: int

    def script(self, call: Call) -> Script[Reply]:
        """End the turn."""
        yield from ()
        messages = call.state.raw(MESSAGES)
        turn = last_turn(messages)
        # A forced turn is the last one: a route could only begin a turn that the run does not have.
        routed = None if turn.forced else self._routed(turn.mode, call)
        asked, lost = _asked_for(call), _lost_updates(call)
        outputs: dict[str, Any] | None = None
        target: str | None = None
        results = []
        # In the order of the calls and not of their ends: of several handoffs the first counts, however long its tool
        # took.
        for one in turn.unanswered:
            handed = one.name.removeprefix(HAND_OFF)
            by_model = handed != one.name and handed in self.rules[turn.mode].to
            if one.name in (SUBMIT, READ_RESULT):
                how = self.modes.renderings[turn.mode].bound(call)
                own = self.submit if one.name == SUBMIT else reader(messages.raw_items(), how)
                value, refused = submitted(own, one.args)
                results.append(tool_message(one.id, one.name, value, refused is not None))
                outputs = value if one.name == SUBMIT and refused is None else outputs
            elif by_model or one.id in asked:
                message, to = asked.get(one.id, ({}, handed))
                refusal = lost.get(one.id)
                if to is not None:
                    refusal = refusal or self._refusal(turn.mode, to, target, routed, call)
                    target = to if refusal is None else target
                results.append(_handoff_message(one, message, to, refusal))
            else:
                known = one.name in [tool.name for tool in self.tools[turn.mode]]
                # Of an unknown one dspy.ReActV2 says the same.
                text = f"{one.name} ended without a result" if known else f"Unknown tool: {one.name}"
                results.append(tool_message(one.id, one.name, text, True))
        # The function of the author decides before the model.
        entered = target if routed is None else routed
        said = call.context.delegate.host.records.added(ADDED.format(turn.id))
        updates: dict[str, Any] = {MESSAGES: [*results, *said]} if results or said else {}
        updates |= outputs or {}
        # A mode that stays is no write: it would be one more value in the history, and may conflict in a graph around
        # it.
        if entered is not None and entered != call.state.raw(MODE, entered):
            updates[MODE] = entered
        # Who has written again gets an answer: outputs from before are none.
        goes_on = outputs is None or routed is not None or bool(said)
        goes_on = goes_on or is_written_to(call, self.max_turns)
        target = self.modes.way_to(entered or turn.mode, call, [*results, *said]) if goes_on else self.after
        return Reply(updates, (target,), True)

    def _routed(self, mode: str, call: Call) -> str | None:
        """The mode that the author's function names; None to let the model decide."""
        route = self.rules[mode].route
        found: Any = None if route is None else route(call)
        if found is None:
            return None
        allowed = tuple(dict.fromkeys((mode, *(self.rules[mode].to or self.rules))))
        if not isinstance(found, str) or found not in allowed:
            raise RouteError(
                f"the route of mode {mode!r} returned {found!r}: return one of {list_names(allowed)}, or None to let "
                f"the model decide.{suggestion(found, allowed) if isinstance(found, str) else ''}"
            )
        return found

    def _refusal(self, mode: str, target: str, taken: str | None, routed: str | None, call: Call) -> str | None:
        """The reason why a handoff is not made; None if it is."""
        to = self.rules[mode].to
        if target not in to:
            others = f"the modes that can are {list_names(to)}" if to else "no other mode can"
            return f"{target!r} cannot follow {mode!r}; {others}"
        if routed is not None and routed != target:
            return f"the next mode is {routed!r}"
        if taken is not None:
            return f"this turn has handed off to {taken!r} already"
        guard = self.rules[target].guard
        if not isinstance(guard, BoundFunction) or routed == target or guard(call):
            return None
        # The docstring of a partial is that of `functools.partial`.
        fn = guard.fn.func if isinstance(guard.fn, partial) else guard.fn
        return inspect.getdoc(fn) or f"{target!r} cannot be entered yet"


def is_written_to(call: Call, max_turns: int) -> bool:
    """Says that a message waits for the agent, and a turn is left that can take it."""
    return turns_since_task(call.state.raw(MESSAGES)) < max_turns and bool(unread_messages(call))


def _asked_for(call: Call) -> dict[str, tuple[Mapping[str, Any], str | None]]:
    """Results that tools have left to the end of a turn in this run, by the ids of their calls: each with a mode.

    Without a mode, it is a result that may become an error: another call of the turn may have written the same path.
    """
    entries = thaw(call.state.raw(HANDOFFS, FrozenList()))
    return {entry["message"]["tool_call_id"]: (entry["message"], entry["goto"]) for entry in entries}


def _lost_updates(call: Call) -> dict[str, str]:
    """Reasons why updates of this turn are not in the state, by call id: the join has kept another one's."""
    session, position = call.runner.session, call.context.delegate.position
    if session is None or position is None:  # called without a run
        return {}
    join = session.run.log[position.head]
    # A commit made by hand after the join has no conflicts of its own, and hides none.
    while join.commit.is_manual() and join.parents:
        join = session.run.log[join.parents[0]]
    found: dict[str, list[str]] = {}
    for conflict in [one for one in join.conflicts if one.policy == FIRST_CALL.name]:
        # A conflict names values and no calls. The branch of a call is told by the entry that it has added to the
        # handoffs, and its side by its value there.
        kept, *others = [side if side is DELETE else freeze(side) for _, side in conflict.values]
        for state in [session.run.log[parent].state for parent in join.parents]:
            value = value_in(session.graph.topology.schema, state, conflict.path)
            if HANDOFFS in state and not same(value, kept) and any(same(value, other) for other in others):
                lost = found.setdefault(state.raw(HANDOFFS).raw(-1).raw("message").raw("tool_call_id"), [])
                lost.append(".".join(map(str, conflict.path)))
    return {call_id: LOST.format(list_names(paths)) for call_id, paths in found.items()}


def _handoff_message(
    call: CallOfTurn, message: Mapping[str, Any], target: str | None, refusal: str | None
) -> dict[str, Any]:
    """The result of a call that was left to the end of the turn."""
    value, error = message.get("value"), message.get("error", False)
    if refusal is not None:
        before = "" if value is None else f"{text_of(value)}; "
        value = f"{before}{refusal}" if target is None else f"{before}no handoff to {target}: {refusal}"
        error = True
    elif value is None and target is not None:
        value = f"The next mode is {target}."
    return tool_message(call.id, call.name, value, error, message.get(ARGS), message.get(PROBLEMS, ()))
