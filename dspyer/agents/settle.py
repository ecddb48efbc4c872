"""The pure nodes of an agent: `begin` makes the user message of a task, `settle` ends a turn.

The branches of a turn join at `settle`. It gives every call a result that has none yet (`submit`, handoffs, unknown
tools), writes the outputs, and decides where the branch continues. It calls no model and no tool: guards and routes,
the functions of the author that it does call, are pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dspy import Tool
from pydantic import ValidationError

from dspyer import DELETE, END, ImmutableState
from dspyer.agents.conversation import (
    MODE,
    PROBLEMS,
    READ_RESULT,
    SUBMIT,
    CallOfTurn,
    Rendering,
    Shown,
    last_turn,
    plan_renderings,
    reader,
    task_message,
    tool_message,
    unanswered_calls,
)
from dspyer.agents.tool_node import Approval, refused_by_dspy
from dspyer.agents.tools import ask_user
from dspyer.errors import InputError, RouteError, ThreadError, always_raised, list_names, short_error, suggestion
from dspyer.events import Question
from dspyer.extend import (
    Binding,
    Built,
    Call,
    Flaws,
    FrozenList,
    KindOptions,
    Node,
    NodeOptions,
    Reply,
    Script,
    freeze,
    is_async,
    plan_binding,
    read_signature,
    same,
    text_of,
    thaw,
)
from dspyer.messages import ARGS
from dspyer.policies import first_write_wins
from dspyer.scheduler.join import value_in

if TYPE_CHECKING:
    from dspyer.agents.compact import Compact

BEGIN, SETTLE, CHECK, COMPACT = "begin", "settle", "check", "compact"
"""The names of the nodes of an agent that are neither modes nor tools."""

HANDOFFS = "handoffs"
"""The field with results that the end of a turn decides about."""

HAND_OFF = "to_"
"""How the tools begin by which a model hands off: `to_plan`."""


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


@dataclass(frozen=True, slots=True)
class BeginOptions(KindOptions):
    """Options of the first node of an agent: the inputs of the task, and the modes in which it may start.

    Attributes:
        inputs: the inputs of the task.
        modes: how each mode is shown messages.
        compact: when a summary is written; None for never.
    """

    inputs: tuple[str, ...]
    modes: Mapping[str, Shown]
    compact: Compact | None = None

    def build(self, options: NodeOptions) -> Built:
        """The node, and what is wrong with it."""
        renderings, shown = plan_renderings(self.modes if self.compact else {}, options)
        reads = (*self.inputs, "messages", *((MODE,) if MODE in options.schema.fields else ()), *shown)
        node = BeginNode(
            name=options.name,
            reads={name: name for name in reads},
            optional=frozenset(reads),
            writes={"messages": "messages"},
            goto=(*self.modes, *((COMPACT,) if self.compact else ())),
            inputs=self.inputs,
            modes=tuple(self.modes),
            entry=TurnEntry(self.compact, renderings),
            none_by_default=frozenset(
                name for name, field in options.schema.fields.items() if field.fixed_default is None
            ),
        )
        return Built(node)

    def text(self, name: str, show: Callable[[object], str]) -> str:
        """The line of a program's source that adds the node."""
        del show
        return f'graph.add_node("{name}", agents.add_task_to_messages())'


class TurnEntry(NamedTuple):
    """The way to the next turn.

    Attributes:
        compact: when a summary is written; None for never.
        renderings: how each mode is shown messages.
    """

    compact: Compact | None
    renderings: Mapping[str, Rendering]

    def to(self, mode: str, call: Call, new: Sequence[Mapping[str, Any]]) -> str:
        """The next node on the way to a mode, after `new` messages: the mode, or the node that writes a summary."""
        if self.compact is None:
            return mode
        messages = call.state.raw("messages").plus([freeze(message) for message in new])
        return COMPACT if self.compact.is_due(messages, self.renderings[mode].bound(call)) else mode


def current_mode(state: ImmutableState, modes: Sequence[str]) -> str:
    """The mode in which an agent is. One with a single mode may have a field `mode` of its own."""
    return modes[0] if len(modes) == 1 else str(state.raw(MODE, modes[0]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BeginNode(Node):
    """A node that adds the inputs of a task to the conversation, and starts the current mode.

    Attributes:
        inputs: the inputs of the task.
        none_by_default: those of them that are None if they are left out; then the model is not shown them.
        modes: the modes.
        entry: decides what comes before the first turn.
    """

    inputs: tuple[str, ...]
    modes: tuple[str, ...]
    entry: TurnEntry
    none_by_default: frozenset[str]

    def script(self, call: Call) -> Script[Reply]:
        """Make the user message. Calls that an abandoned run has left open get a result first."""
        yield from ()
        state = call.state
        # A provider refuses a conversation in which a tool call has no result, so these come before the task.
        left = [
            tool_message(one.id, one.name, LEFT_OPEN.format(one.name), True)
            for one in unanswered_calls(state.raw("messages"))
        ]
        given = {name: thaw(state.raw(name)) for name in self.inputs if name in state}
        # The model would be told "None" of an input that was not given.
        given = {name: value for name, value in given.items() if value is not None or name not in self.none_by_default}
        new = [*left, task_message(given)]
        mode = current_mode(state, self.modes)
        return Reply({"messages": new}, (self.entry.to(mode, call, new),), True)

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
        turn = last_turn(state.raw("messages"))
        return answers, ADDED.format(turn.id), {"role": "user", "content": text}


# --- submit


class Submission(NamedTuple):
    """The result of a call of `submit`: the outputs, or why they were refused."""

    value: Any
    text: str
    cause: Exception | None = None


def submitted(submit: Tool, args: Mapping[str, Any]) -> Submission:
    """The outputs that a call of `submit` gives, or what a call of `read_result` does."""
    try:
        outputs = submit(**args)
    except Exception as error:
        if always_raised(error):
            raise
        # The arguments are the model's, which is told what is wrong with them.
        # DSPy validates each argument as a field `value` of its own: the model must be told the name that it knows.
        told = refused_by_dspy(submit, args, error) if isinstance(error, ValidationError) else error
        text = short_error(told, step=submit.name or "")
        return Submission(text, text, error)
    return Submission(outputs, text_of(outputs))


# --- guards and routes


class ModeRules(NamedTuple):
    """The modes that may follow a mode, and what decides about it.

    Attributes:
        to: the modes to which the model and the tools may hand off.
        route: the function that decides before the model; None for none.
        guard: the function that says whether the mode may be entered by a handoff; None for always.
        tools: the tools of the mode that are nodes.
        shown: how the mode is shown results.
    """

    to: tuple[str, ...] = ()
    route: Callable[..., object] | None = None
    guard: Callable[..., object] | None = None
    tools: frozenset[str] = frozenset()
    shown: Shown = Shown("")

    @property
    def may_follow(self) -> tuple[str, ...] | None:
        """The modes that a route may name; None for all."""
        return self.to or None


class BoundRule(NamedTuple):
    """A guard or a route with what its parameters get."""

    fn: Callable[..., object]
    binding: Binding

    def __call__(self, call: Call) -> object:
        return self.fn(**self.binding.bind(call))


def plan_rule(fn: object, what: str, options: NodeOptions, problems: list[str]) -> BoundRule | None:
    """A guard or a route, bound to the fields that it reads; what is wrong with it is added to `problems`."""
    if not callable(fn) or isinstance(fn, type):
        problems.append(f"{what} is {fn!r}: give a function of fields")
        return None
    found = Flaws(what)
    binding = plan_binding(read_signature(fn, what), options, found)
    problems += found.without_sends()
    if is_async(fn):
        problems.append(f"{what} is an async function: give one that is not, since it decides by fields alone")
    if binding.contexts or binding.resources:
        problems.append(f"{what} takes `ctx` or a resource: it decides by fields alone, so that a replay decides alike")
    if not binding.fields and not binding.whole_state:
        problems.append(f"{what} reads no field, so it always decides alike: name a field as its parameter")
    return BoundRule(fn, binding)


# --- settle


@dataclass(frozen=True, slots=True)
class SettleOptions(KindOptions):
    """Options that make a node the last one of a turn.

    Attributes:
        submit: the tool that validates outputs.
        outputs: the names of the outputs.
        rules: the modes, each with what may follow it.
        after: where a branch goes when its outputs are accepted: `END`, or the check.
        compact: when a summary is written; None for never.
    """

    submit: Tool
    outputs: tuple[str, ...]
    rules: Mapping[str, ModeRules]
    after: str = END
    compact: Compact | None = None

    def build(self, options: NodeOptions) -> Built:
        """The node, and what is wrong with it."""
        problems: list[str] = []
        routes: dict[str, BoundRule] = {}
        guards: dict[str, BoundRule] = {}
        for mode, rules in self.rules.items():
            for what, fn, found in (("route", rules.route, routes), ("guard", rules.guard, guards)):
                rule = None if fn is None else plan_rule(fn, f"the {what} of mode {mode!r}", options, problems)
                if rule is not None:
                    found[mode] = rule
        own = [name for name in (MODE, HANDOFFS) if name in options.schema.fields]
        renderings, shown = plan_renderings({mode: rules.shown for mode, rules in self.rules.items()}, options)
        reads = _reads([*routes.values(), *guards.values()], ("messages", *own, *shown))
        node = SettleNode(
            name=options.name,
            reads=reads,
            optional=frozenset(reads or ()) - {"messages"},
            writes={name: name for name in ("messages", *self.outputs, *(name for name in own if name == MODE))},
            goto=(*self.rules, *((COMPACT,) if self.compact else ()), self.after),
            submit=self.submit,
            rules=self.rules,
            routes=routes,
            guards=guards,
            entry=TurnEntry(self.compact, renderings),
            after=self.after,
        )
        return Built(node, None, tuple(problems))

    def text(self, name: str, show: Callable[[object], str]) -> str:
        """The line of a program's source that adds the node."""
        rules = [one for rule in self.rules.values() for one in (rule.route, rule.guard) if one is not None]
        return f'graph.add_node("{name}", agents.end_turn_and_choose_what_follows({", ".join(map(show, rules))}))'


class Handoff(NamedTuple):
    """The request of a call that hands off: the mode, and the message of its tool, if it has one.

    Without a mode, it is a result that may become an error: another call of the turn may have written the same path.
    """

    target: str | None
    message: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SettleNode(Node):
    """A node that ends a turn.

    Attributes:
        submit: the tool that validates outputs.
        rules: the modes, each with what may follow it.
        routes: the bound routes, by mode.
        guards: the bound guards, by mode.
        entry: decides what comes before the next turn.
        after: where a branch goes when its outputs are accepted.
    """

    bounded: bool = True

    submit: Tool
    rules: Mapping[str, ModeRules]
    routes: Mapping[str, BoundRule] = field(default_factory=dict)
    guards: Mapping[str, BoundRule] = field(default_factory=dict)
    entry: TurnEntry
    after: str = END

    def script(self, call: Call) -> Script[Reply]:
        """End the turn."""
        yield from ()
        turn = last_turn(call.state.raw("messages"))
        # A forced turn is the last one: a route could only begin a turn that the run does not have.
        routed = None if turn.forced else self._routed(turn.mode, call)
        asked, lost = _asked_for(call), _lost_updates(call)
        outputs: dict[str, Any] | None = None
        target: str | None = None
        results = []
        # In the order of the calls and not of their ends: of several handoffs the first counts, however long its tool
        # took.
        for one in turn.unanswered:
            handoff = self._handoff(turn.mode, one, asked.get(one.id))
            if one.name in (SUBMIT, READ_RESULT):
                how = self.entry.renderings[turn.mode].bound(call)
                own = self.submit if one.name == SUBMIT else reader(call.state.raw("messages").raw_items(), how)
                found = submitted(own, one.args)
                results.append(tool_message(one.id, one.name, found.value, found.cause is not None))
                outputs = found.value if one.name == SUBMIT and found.cause is None else outputs
            elif handoff is None:
                known = one.name in self.rules[turn.mode].tools
                # Of an unknown one dspy.ReActV2 says the same.
                text = f"{one.name} ended without a result" if known else f"Unknown tool: {one.name}"
                results.append(tool_message(one.id, one.name, text, True))
            else:
                refusal = lost.get(one.id)
                if handoff.target is not None:
                    refusal = refusal or self._refusal(turn.mode, handoff.target, target, routed, call)
                    target = handoff.target if refusal is None else target
                results.append(_handoff_message(one, handoff, refusal))
        # The function of the author decides before the model.
        entered = target if routed is None else routed
        said = call.context.delegate.host.records.added(ADDED.format(turn.id))
        updates: dict[str, Any] = {"messages": [*results, *said]} if results or said else {}
        updates |= outputs or {}
        # A mode that stays is no write: it would be one more value in the history, and may conflict in a graph around
        # it.
        if entered is not None and entered != call.state.raw(MODE, entered):
            updates[MODE] = entered
        # Who has written again gets an answer: outputs from before are none.
        goes_on = outputs is None or routed is not None or bool(said)
        target = self.entry.to(entered or turn.mode, call, [*results, *said]) if goes_on else self.after
        return Reply(updates, (target,), True)

    def _routed(self, mode: str, call: Call) -> str | None:
        """The mode that the author's function names; None to let the model decide."""
        route = self.routes.get(mode)
        found = None if route is None else route(call)
        if found is None:
            return None
        allowed = tuple(dict.fromkeys((mode, *(self.rules[mode].may_follow or self.rules))))
        if not isinstance(found, str) or found not in allowed:
            raise RouteError(
                f"the route of mode {mode!r} returned {found!r}: return one of {list_names(allowed)}, or None to let "
                f"the model decide.{suggestion(found, allowed) if isinstance(found, str) else ''}"
            )
        return found

    def _handoff(self, mode: str, call: CallOfTurn, asked: Handoff | None) -> Handoff | None:
        """The handoff that a call asks for, by itself or by what its tool returned; None if it asks for none."""
        if asked is not None:
            return asked
        target = call.name.removeprefix(HAND_OFF)
        return Handoff(target) if target != call.name and target in self.rules[mode].to else None

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
        guard = self.guards.get(target)
        if guard is None or routed == target or guard(call):
            return None
        # The docstring of a partial is that of `functools.partial`.
        fn = guard.fn.func if isinstance(guard.fn, partial) else guard.fn
        return inspect.getdoc(fn) or f"{target!r} cannot be entered yet"


def _asked_for(call: Call) -> dict[str, Handoff]:
    """Results that tools have left to the end of a turn in this run, by the ids of their calls."""
    entries = thaw(call.state.raw(HANDOFFS, FrozenList()))
    return {entry["message"]["tool_call_id"]: Handoff(entry["goto"], entry["message"]) for entry in entries}


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


def _handoff_message(call: CallOfTurn, handoff: Handoff, refusal: str | None) -> dict[str, Any]:
    """The result of a call that was left to the end of the turn."""
    value, error = handoff.message.get("value"), handoff.message.get("error", False)
    if refusal is not None:
        before = "" if value is None else f"{text_of(value)}; "
        value = f"{before}{refusal}" if handoff.target is None else f"{before}no handoff to {handoff.target}: {refusal}"
        error = True
    elif value is None and handoff.target is not None:
        value = f"The next mode is {handoff.target}."
    message = handoff.message
    return tool_message(call.id, call.name, value, error, message.get(ARGS), message.get(PROBLEMS, ()))


def _reads(rules: list[BoundRule], own: tuple[str, ...]) -> dict[str, str] | None:
    """The fields that the node and its rules read; None for the whole state."""
    reads = {name: name for name in own}
    for rule in rules:
        names, _ = rule.binding.reading()
        if names is None:
            return None
        reads |= {field: field for field in names.values()}
    return reads
