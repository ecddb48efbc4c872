"""Targets of tools: a function, a module or a program, as a node that is given validated arguments; and what it gave.

Parameters that the model does not see (`ctx`, fields of `reads=`, resources) are bound here, behind the validation of
`dspy.Tool`, by the plan that nodes have for their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, cast

import dspy
from dspy import Tool as ModelTool

from dspyer import DELETE, Command, Replace, reducers
from dspyer.agents.conversation import MESSAGES, MODE, last_turn
from dspyer.errors import list_names
from dspyer.extend import (
    Built,
    Call,
    Flaws,
    FrozenDict,
    FunctionStep,
    ModuleIO,
    ModuleStep,
    NodeOptions,
    Script,
    TwoWays,
    arun_script,
    check_names,
    filled,
    run_script,
    thaw,
)
from dspyer.lm.not_public import serialize_for_json
from dspyer.messages import messages_in
from dspyer.nodes.binding import BoundNode
from dspyer.nodes.module import SubgraphNode, plan_inputs, selected, values_of_prediction
from dspyer.nodes.steps import program_step
from dspyer.values.json import with_valid_text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionAction(BoundNode):
    """A tool that is a function. Its `binding` gives what the parameters get that the model does not see.

    Attributes:
        fn: the function.
        asynchronous: whether the function is async.
        taken: the arguments that it takes; None for all.
    """

    fn: Callable[..., Any]
    asynchronous: bool
    taken: frozenset[str] | None = None

    def made(self, call: Call, args: Mapping[str, Any]) -> Script[object]:
        """Call it with validated arguments. It may ask questions, and may use what `call.context` offers."""
        # The fake of a tool may name fewer arguments than the tool has.
        shown = args if self.taken is None else {name: args[name] for name in args if name in self.taken}
        return (yield FunctionStep(self.fn, {**shown, **self.binding.bind(call)}, self.asynchronous), call)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleAction(BoundNode):
    """A tool that is a `dspy.Module`, an attribute of the program. Its outputs are the result, a single one by itself.

    Attributes:
        path: the attributes that lead from the program to the module.
        outputs: the outputs that the model is shown; None for all. Those of `writes` go to fields as well.
    """

    path: tuple[str, ...]
    outputs: tuple[str, ...] | None

    def made(self, call: Call, args: Mapping[str, Any]) -> Script[object]:
        """Call it with validated arguments."""
        hidden = {name: thaw(value) for name, value in self.binding.bind(call).items()}
        step = ModuleStep(attrgetter(".".join(self.path))(call.program), {**args, **hidden})
        return (yield filled(step, self.templates), call)

    def command(self, returned: object) -> Command[Any]:
        """The outputs, and those that go to fields."""
        who, names = self.binding.reader, self.outputs
        values = values_of_prediction(returned, who, names is not None)
        shown = selected(values, None if names is None else {name: name for name in names}, who)
        written = selected(values, {name: name for name in self.writes or ()}, who)
        found = next(iter(shown.values())) if len(shown) == 1 else shown
        return Command(dspy.Prediction(**written) if written else None, result=found)


class BoundTool(ModelTool):
    """A tool whose arguments are validated already. It is called instead of its function, for DSPy's callbacks."""

    def _validate_and_parse_args(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs


def by_dspy(tool: ModelTool, script: Callable[..., Script[Any]], args: Mapping[str, Any]) -> TwoWays:
    """The step that makes a script of a call by DSPy's own class, for its callbacks.

    Without pydantic: a tool is made for every call.
    """

    def bound(fn: Callable[..., Any]) -> BoundTool:
        return cast("BoundTool", BoundTool.model_construct(**{**tool.__dict__, "func": fn}))

    def sync(**given: Any) -> object:
        found = run_script(script(**given))
        # DSPy takes it for a coroutine, and refuses it: the model would make the call again.
        return str(found) if isinstance(found, Generator) else found

    async def asynchronous(**given: Any) -> object:
        return await arun_script(script(**given))

    return TwoWays(lambda: bound(sync)(**args), lambda: bound(asynchronous).acall(**args))


def recorded(key: str, script: Callable[[str], Script[Any]], call: Call) -> tuple[TwoWays, Call]:
    """The step that makes a script as the effect `key`: its result is recorded, and no later attempt makes it again.

    The script is given the idempotency key of the effect.
    """

    async def effect(key: str) -> Any:
        return await arun_script(script(key))

    once = call.context.delegate.once
    return TwoWays(lambda: once(key, lambda key: run_script(script(key))), lambda: once(key, effect)), call


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


def storable(value: object) -> Any:
    """A result as JSON values, in the form in which DSPy shows it to a model.

    Models and dataclasses become dicts, dates and numbers of other libraries text. Any other object becomes `str(it)`.
    What no request can hold, half of a surrogate pair, becomes U+FFFD.
    """
    return with_valid_text(serialize_for_json(with_valid_text(value)))


# A program as a tool: a sub-agent. It runs as a part of the run, in the node of the tool, with a state of its own.
#
# What the model gives are its required inputs, and its outputs are the result. If the program has a conversation, each
# call continues a session: the field `sessions` of the caller holds the conversation of each, by `<tool>/<session>`.


SESSION: Final = "session"
"""The argument that names a session."""

SESSIONS: Final = "sessions"
"""The field with the conversation of each session."""


Sessions = Annotated[dict[str, list[dict[str, Any]]], reducers.conversations]
"""The type of the field `sessions`."""


def has_sessions(program: Any, reads: Collection[str]) -> bool:
    """Tell if each call of a program continues a conversation: it takes one, and the caller does not map one to it."""
    graph = program.graph
    reducer = graph.topology.schema.reducer(MESSAGES)
    takes_one = MESSAGES in graph.inputs or MESSAGES in graph.also
    return takes_one and reducer is not None and reducer.name == "conversation" and MESSAGES not in reads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramAction(BoundNode):
    """A tool that is a program.

    Attributes:
        inner: gives the program's changes as updates, under the program's own names.
        path: the attributes that lead from the caller's program to the program.
        has_sessions: whether each call continues a conversation.
    """

    inner: SubgraphNode
    path: tuple[str, ...]
    has_sessions: bool

    def with_session(self, call: Call, args: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        """The arguments of a call with the name of its session: a new one if the model gave none.

        Raises `ValueError` if another call of the turn has the session.
        """
        if not self.has_sessions:
            return dict(args)
        calls = [one for one in last_turn(call.state.raw(MESSAGES)).unanswered if one.name == self.name]
        if not (session := args.get(SESSION)):
            # Of the id of the call: an attempt that is repeated must come to the same name. A model may have used it.
            taken = {*call.state.raw(SESSIONS, ()), *(f"{self.name}/{one.args.get(SESSION)}" for one in calls)}
            taken |= {f"{self.name}/{one.id}" for one in calls if one.id != call_id}
            names = (call_id, *(f"{call_id}_{number}" for number in range(2, len(taken) + 3)))
            return {**args, SESSION: next(name for name in names if f"{self.name}/{name}" not in taken)}
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

    def made(self, call: Call, args: Mapping[str, Any]) -> Script[Command[Any]]:
        """Run the program; returns its outputs and what it writes."""
        program: Any = attrgetter(".".join(self.path))(call.program)
        inputs, session = {**args, **self.binding.bind(call)}, ""
        if self.has_sessions:
            # By tool: two sub-agents may have a session of one name.
            session = f"{self.name}/{inputs.pop(SESSION)}"
            known = cast("FrozenDict[str, Any]", call.state.raw(SESSIONS, FrozenDict())).raw(session, None)
            if known:
                inputs[MESSAGES] = known
                if MODE in program.graph.also:  # an agent of several modes starts where the session has ended
                    inputs[MODE] = last_turn(known).mode
        inside = yield program_step(program, inputs, call, shared=self.inner.shared)
        updates: dict[str, object] = {
            # A value that the program has computed is meant whole; only a reducer is given what was added.
            name: value if name in self.inner.folds or value is DELETE else Replace(value)
            for name, value in self.inner.reply(program, inside, inputs, call).updates.items()
        }
        # A copy: the prediction is what the trace and `run.trace` have.
        outputs = dict(inside.prediction.items())
        if session:
            outputs.pop(MESSAGES, None)
            updates[SESSIONS] = {session: list(messages_in(inside.changes().get(MESSAGES)))}
        return Command(updates, result=next(iter(outputs.values())) if len(outputs) == 1 else outputs)


ToolAction: TypeAlias = FunctionAction | ModuleAction | ProgramAction


def plan_subagent(program: Any, options: NodeOptions, path: tuple[str, ...], who: str) -> Built:
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
    facts, sessions = binding.facts(), has_sessions(program, hidden)
    if sessions:
        facts["reads"] |= {MESSAGES: MESSAGES, SESSIONS: SESSIONS}
        facts["optional"] |= {SESSIONS}
    action = ProgramAction(
        name=options.name,
        **facts,
        writes={**writes, SESSIONS: SESSIONS} if sessions else writes,
        inner=SubgraphNode(binding=binding, gives={name: name for name in writes}, folds=folds, shared=shared),
        path=path,
        has_sessions=sessions,
    )
    return Built(action, program, tuple(problems))
