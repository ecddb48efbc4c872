"""Targets of tools: a function or a module of the program, with validated arguments; and what the call gave.

Parameters that the model does not see (`ctx`, fields of `reads=`, resources) are bound here, behind the validation of
`dspy.Tool`, by the plan that nodes have for their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, Protocol, cast

import dspy
from dspy import Tool as ModelTool

from dspyer import DELETE, Command, Replace, Updates, reducers
from dspyer.agents.conversation import MESSAGES, MODE, last_turn
from dspyer.errors import NodeOutputError, RouteError, list_names, short_error
from dspyer.extend import (
    Binding,
    Call,
    Flaws,
    FrozenDict,
    FrozenList,
    FunctionStep,
    ModuleIO,
    ModuleStep,
    NodeOptions,
    Schema,
    Script,
    Templates,
    arun_script,
    check_names,
    filled,
    freeze,
    run_script,
    thaw,
)
from dspyer.lm.not_public import serialize_for_json
from dspyer.nodes.function import values_of
from dspyer.nodes.module import SubgraphNode, plan_inputs, selected, values_of_prediction
from dspyer.nodes.steps import program_step
from dspyer.values.json import to_json, with_valid_text


class ToolAction(Protocol):
    """The target of a tool. A call of it may ask questions, and may use what `call.context` offers."""

    def script(self, call: Call, args: Mapping[str, Any]) -> Script[object]:
        """Call it with validated arguments."""

    def result(self, returned: object) -> object:
        """The result of a call, or its `Command`, from what it returned. It may raise: the call was made."""
        return returned


@dataclass(frozen=True, slots=True)
class FunctionAction(ToolAction):
    """A tool that is a function.

    Attributes:
        fn: the function.
        binding: what the parameters get that the model does not see.
        asynchronous: whether the function is async.
        takes: the arguments that it takes; None for all.
    """

    fn: Callable[..., Any]
    binding: Binding
    asynchronous: bool
    takes: frozenset[str] | None = None

    def script(self, call: Call, args: Mapping[str, Any]) -> Script[object]:
        """Call the function."""
        # The fake of a tool may name fewer arguments than the tool has.
        shown = args if self.takes is None else {name: args[name] for name in args if name in self.takes}
        return (yield FunctionStep(self.fn, {**shown, **self.binding.bind(call)}, self.asynchronous), call)


@dataclass(frozen=True, slots=True)
class ModuleAction(ToolAction):
    """A tool that is a `dspy.Module`, an attribute of the program. Its outputs are the result, a single one by itself.

    Attributes:
        path: the attributes that lead from the program to the module.
        who: the name of the tool in errors.
        outputs: the outputs that the model is shown; None for all.
        writes: the outputs that go to fields as well.
        binding: what the inputs get that the model does not see.
        templates: the templates in the instructions of its predictors.
    """

    path: tuple[str, ...]
    who: str
    outputs: tuple[str, ...] | None
    writes: tuple[str, ...]
    binding: Binding
    templates: Templates

    def script(self, call: Call, args: Mapping[str, Any]) -> Script[object]:
        """Call the module."""
        hidden = {name: thaw(value) for name, value in self.binding.bind(call).items()}
        step = ModuleStep(attrgetter(".".join(self.path))(call.program), {**args, **hidden})
        return (yield filled(step, self.templates), call)

    def result(self, returned: object) -> Command[Any]:
        """The outputs, and those that go to fields."""
        values = values_of_prediction(returned, self.who, self.outputs is not None)
        names = self.outputs
        shown = selected(values, None if names is None else {name: name for name in names}, self.who)
        written = selected(values, {name: name for name in self.writes}, self.who)
        found = next(iter(shown.values())) if len(shown) == 1 else shown
        return Command(dspy.Prediction(**written) if written else None, result=found)


class BuiltAction(NamedTuple):
    """The target of a tool, with what the graph must know of it.

    Attributes:
        action: what is called.
        module: the module of the program that it calls; None for none.
        reads: the fields that it reads, by its own names.
        optional: fields among them that may be unset.
        resources: the types of the resources that it needs, by parameter.
        templates: the templates in instructions of the module.
        problems: what is wrong with it.
        fields: the fields that it may write, by its own names; None for those of the options.
    """

    action: ToolAction
    module: dspy.Module | None = None
    reads: Mapping[str, str] = FrozenDict()
    optional: frozenset[str] = frozenset()
    resources: Mapping[str, type] = FrozenDict()
    templates: Templates = Templates()
    problems: tuple[str, ...] = ()
    fields: Mapping[str, str] | None = None


class BoundTool(ModelTool):
    """A tool whose arguments are validated already. It is called instead of its function, for DSPy's callbacks."""

    def _validate_and_parse_args(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs


def bound(tool: ModelTool, fn: Callable[..., Any]) -> BoundTool:
    """A tool that calls a function with validated arguments. Without pydantic: one is made for every call."""
    return cast("BoundTool", BoundTool.model_construct(**{**tool.__dict__, "func": fn}))


class ToolOutcome(NamedTuple):
    """The result of one call of a tool.

    Attributes:
        value: the result, as JSON values.
        update: the patch for the fields of the state, by the tool's own names.
        whole: whether the values of the patch replace what is there.
        goto: the mode that the tool hands off to; None for none.
        error: whether the value says why there is no result.
    """

    value: Any
    update: Mapping[str, object]
    whole: bool = False
    goto: str | None = None
    error: bool = False

    @classmethod
    def of(cls, returned: object, step: ToolInvocation) -> ToolOutcome:
        """The outcome of what a tool returned. If that cannot be kept, no other call is made for a result.

        Without an effect, a `Command` that is none fails the node: nothing needs a record, and the author mends it.
        """
        # What is known so far: if a later step fails, the update is kept, since the call has been made.
        found = cls(None, {})
        try:
            result = step.action.result(returned)
            # A bare result is a command that writes nothing.
            command = result if isinstance(result, Command) else Command(result=result)
            update, whole = values_of(command.update, step.who, step.schema, step.fields)
            if command.goto is not None and not isinstance(command.goto, str):
                text = f"{step.who} returned Command(goto={command.goto!r}): a tool hands off to one mode, by its name"
                raise RouteError(text)
            if step.effect is not None:
                to_json(freeze(dict(update)))  # an update that no store can hold could not be recorded
            found = cls(None, update, whole)
            value = storable(command.result)
            freeze(value)
        except Exception as error:
            if step.effect is None and isinstance(error, (NodeOutputError, RouteError)):
                raise
            action = "the call was made, and only its result is lost: find out what it did before you make it again"
            return found._replace(value=short_error(error, step=step.tool.name or "", action=action), error=True)
        return found._replace(value=value, goto=command.goto)


def storable(value: object) -> Any:
    """A result as JSON values, in the form in which DSPy shows it to a model.

    Models and dataclasses become dicts, dates and numbers of other libraries text. Any other object becomes `str(it)`.
    What no request can hold, half of a surrogate pair, becomes U+FFFD.
    """
    return with_valid_text(serialize_for_json(with_valid_text(value)))


class ToolInvocation(NamedTuple):
    """One call of a tool.

    Attributes:
        tool: what the model is shown of it.
        who: the name of the tool in errors.
        action: what it calls.
        args: the validated arguments.
        schema: the fields of the state.
        fields: those that it may write, by its own names.
        effect: the name of the effect under which the outcome is recorded; None for no effect.
        takes_key: whether the function gets the idempotency key of the effect.
    """

    tool: ModelTool
    who: str
    action: ToolAction
    args: Mapping[str, Any]
    schema: Schema
    fields: Mapping[str, str]
    effect: str | None = None
    takes_key: bool = False

    def script(self, call: Call) -> Script[ToolOutcome]:
        """Make it."""
        call = call._replace(overlay=None)  # what a turn sends must not hide a field
        if self.effect is None:
            return (yield from self._made(call, {}))

        def effect(key: str) -> Script[list[Any]]:
            return list((yield from self._made(call, {"key": key} if self.takes_key else {})))

        return ToolOutcome(*(yield Recorded(self.effect, effect), call))

    def _made(self, call: Call, key: Mapping[str, str]) -> Script[ToolOutcome]:
        return ToolOutcome.of((yield _BoundCall(self, key), call), self)


class _BoundCall(NamedTuple):
    """The step that calls a tool by DSPy's own class, for its callbacks; these do not see the key of the effect."""

    made: ToolInvocation
    key: Mapping[str, str]

    def call(self, call: Call) -> object:
        def fn(**args: Any) -> object:
            found = run_script(self.made.action.script(call, {**args, **self.key}))
            # DSPy takes it for a coroutine, and refuses it: the model would make the call again.
            return str(found) if isinstance(found, Generator) else found

        return bound(self.made.tool, fn)(**self.made.args)

    async def acall(self, call: Call) -> object:
        async def fn(**args: Any) -> object:
            return await arun_script(self.made.action.script(call, {**args, **self.key}))

        return await bound(self.made.tool, fn).acall(**self.made.args)


class Recorded(NamedTuple):
    """The step that runs a script as an effect: its result is recorded, so that no later attempt runs it again.

    Attributes:
        key: the name of the effect.
        script: makes the script, given the idempotency key of the effect.
    """

    key: str
    script: Callable[[str], Script[Any]]

    def call(self, call: Call) -> Any:
        """Run it in sync code."""
        return call.context.delegate.once(self.key, lambda key: run_script(self.script(key)))

    async def acall(self, call: Call) -> Any:
        """Run it in async code."""

        async def effect(key: str) -> Any:
            return await arun_script(self.script(key))

        return await call.context.delegate.once(self.key, effect)


# A program as a tool: a sub-agent. It runs as a part of the run, in the node of the tool, with a state of its own.
#
# What the model gives are its required inputs, and its outputs are the result. If the program has a conversation, each
# call continues a session: the field `sessions` of the caller holds the conversation of each, by `<tool>/<session>`.


SESSION: Final = "session"
"""The argument that names a session."""

SESSIONS: Final = "sessions"
"""The field with the conversation of each session."""


Sessions = Annotated[dict[str, list[dict[str, Any]]], reducers.each(reducers.conversation)]
"""The type of the field `sessions`."""


def has_sessions(program: Any, reads: Collection[str]) -> bool:
    """Tell if each call of a program continues a conversation: it takes one, and the caller does not map one to it."""
    graph = program.graph
    reducer = graph.topology.schema.reducer(MESSAGES)
    takes_one = MESSAGES in graph.inputs or MESSAGES in graph.also
    return takes_one and reducer is not None and reducer.name == "conversation" and MESSAGES not in reads


def arguments_of(program: Any, reads: Collection[str]) -> tuple[str, ...]:
    """The inputs that a model gives: those that are required, but for those that the fields of the caller give."""
    graph = program.graph
    return tuple([name for name in graph.inputs if name in graph.required and name not in reads])


@dataclass(frozen=True, slots=True)
class ProgramAction(ToolAction):
    """A tool that is a program.

    Attributes:
        tool: the name of the tool.
        path: the attributes that lead from the caller's program to the program.
        binding: what the inputs get that the model does not see.
        updates: makes updates, by the program's own names, of what the program has changed.
        has_sessions: whether each call continues a conversation.
    """

    tool: str
    path: tuple[str, ...]
    binding: Binding
    updates: SubgraphNode
    has_sessions: bool

    def with_session(self, call: Call, args: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        """The arguments of a call with the name of its session: a new one if the model gave none.

        Raises `ValueError` if another call of the turn has the session.
        """
        if not self.has_sessions:
            return dict(args)
        calls = [one for one in last_turn(call.state.raw(MESSAGES)).unanswered if one.name == self.tool]
        if not (session := args.get(SESSION)):
            # Of the id of the call: an attempt that is repeated must come to the same name. A model may have used it.
            taken = {*call.state.raw(SESSIONS, ()), *(f"{self.tool}/{one.args.get(SESSION)}" for one in calls)}
            taken |= {f"{self.tool}/{one.id}" for one in calls if one.id != call_id}
            names = (call_id, *(f"{call_id}_{number}" for number in range(2, len(taken) + 3)))
            return {**args, SESSION: next(name for name in names if f"{self.tool}/{name}" not in taken)}
        # Calls of one turn run at once: two of one session would both continue the same conversation, and one would be
        # lost.
        for other in calls:
            if other.args.get(SESSION) != session:
                continue
            if other.id == call_id:
                break  # of two, the first is made; but a person who has edited this one may have named any of them
            raise ValueError(
                f"the session {session!r} is used by another call of this turn: continue it in the next turn, or give "
                "another session"
            )
        return {**args, SESSION: session}

    def script(self, call: Call, args: Mapping[str, Any]) -> Script[Command[Any]]:
        """Run the program; returns its outputs and what it writes."""
        program: Any = attrgetter(".".join(self.path))(call.program)
        inputs, session = {**args, **self.binding.bind(call)}, ""
        if self.has_sessions:
            # By tool: two sub-agents may have a session of one name.
            session = f"{self.tool}/{inputs.pop(SESSION)}"
            known = cast("FrozenDict[str, Any]", call.state.raw(SESSIONS, FrozenDict())).raw(session, None)
            if known:
                inputs[MESSAGES] = known
                if MODE in program.graph.also:  # an agent of several modes starts where the session has ended
                    inputs[MODE] = last_turn(known).mode
        inside = yield program_step(program, inputs, call, shared=self.updates.shared)
        changes = inside.changes()
        updates: dict[str, object] = {
            # A value that the program has computed is meant whole; only a reducer is given what was added.
            name: value if name in self.updates.folds or value is DELETE else Replace(value)
            for name, value in self.updates.reply(program, inside, inputs, call).updates.items()
        }
        # A copy: the prediction is what the trace and `run.trace` have.
        outputs = dict(inside.prediction.items())
        if session:
            outputs.pop(MESSAGES, None)
            updates[SESSIONS] = {session: _new_messages(changes)}
        return Command(updates, result=next(iter(outputs.values())) if len(outputs) == 1 else outputs)


def _new_messages(changes: Mapping[str, object]) -> list[Any]:
    """The messages that a run has added to its conversation."""
    found = changes.get(MESSAGES)
    parts = found.updates if isinstance(found, Updates) else () if found is None else (found,)
    return [message for part in parts for message in (part.raw_items() if isinstance(part, FrozenList) else (part,))]


def plan_subagent(program: Any, options: NodeOptions, path: tuple[str, ...], who: str) -> BuiltAction:
    """Decide where the inputs of a program come from, and where its outputs go."""
    graph, schema = program.graph, options.schema
    hidden = options.reads if options.reads is not None else FrozenDict()
    inputs = (*graph.inputs, *sorted(graph.of_around))
    own = ModuleIO(inputs={name: Any for name in inputs if name in hidden}, optional=frozenset(hidden))
    found = Flaws(who)
    binding = plan_inputs(own, options._replace(reads=hidden), found, copy=False)
    shared = SubgraphNode.shared_fields(program, hidden, options.writes, schema, found)
    wrong = [name for name in hidden if name not in inputs and graph.closed]
    problems = found.problems if not wrong else []
    if wrong:
        problems.append(
            f"{who}: reads names {list_names(wrong)}, no input of the graph, whose inputs are {list_names(inputs)}"
        )
    writes = options.writes or FrozenDict()
    known = graph.writes if graph.outputs is None else graph.outputs
    if known is not None:
        known = tuple(dict.fromkeys((*known, *graph.inputs)))
    problems += check_names(writes, "writes", who, own=known, schema=schema)
    folds = frozenset(name for name, field in writes.items() if schema.reducer(field) is not None)
    same_names = {name: name for name in writes}
    sessions = has_sessions(program, hidden)
    reads, unset = binding.reading()
    if sessions:
        reads = {**(reads or {}), MESSAGES: MESSAGES, SESSIONS: SESSIONS}
        writes = {**writes, SESSIONS: SESSIONS}
        unset |= {SESSIONS}
    updates = SubgraphNode(name=options.name, binding=binding, gives=same_names, folds=folds, shared=shared)
    action = ProgramAction(options.name, path, binding, updates, sessions)
    return BuiltAction(action, program, reads or {}, unset, problems=tuple(problems), fields=writes)
