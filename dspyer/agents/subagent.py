"""A program as a tool: a sub-agent. It runs as a part of the run, in the node of the tool, with a state of its own.

What the model gives are its required inputs, and its outputs are the result. If the program has a conversation, each
call continues a session: the field `sessions` of the caller holds the conversation of each, under `<tool>/<session>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final, cast

from dspyer import reducers
from dspyer.agents.tool_action import BuiltAction, ToolAction
from dspyer.errors import list_names
from dspyer.messages import last_turn
from dspyer.nodes.binding import Binding
from dspyer.nodes.field_access import check_names
from dspyer.nodes.module import ModuleIO, SubgraphNode, plan_inputs
from dspyer.nodes.node import NOTHING, Call, Command
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import InsideRun, ProgramStep, Script
from dspyer.patch import DELETE, Replace, Updates
from dspyer.values.frozen import FrozenDict, FrozenList

SESSION: Final = "session"
"""The argument that names a session."""

SESSIONS: Final = "sessions"
"""The field with the conversation of each session."""

MESSAGES: Final = "messages"
MODE: Final = "mode"

Sessions = Annotated[dict[str, list[dict[str, Any]]], reducers.each(reducers.conversation)]
"""The type of the field `sessions`."""


def has_sessions(program: Any, reads: object = None) -> bool:
    """Whether each call of a program continues a conversation: it takes one, and the caller does not map one to it."""
    graph = program.graph
    reducer = graph.topology.schema.reducer(MESSAGES)
    given = isinstance(reads, (Mapping, list, tuple, set, frozenset)) and MESSAGES in reads
    takes_one = MESSAGES in graph.inputs or MESSAGES in graph.also
    return takes_one and reducer is not None and reducer.name == "conversation" and not given


def arguments_of(program: Any, reads: object = None) -> tuple[str, ...]:
    """The inputs that a model gives: those that are required, but for those that the fields of the caller give."""
    graph = program.graph
    given = reads if isinstance(reads, (Mapping, list, tuple, set, frozenset)) else ()
    return tuple([name for name in graph.inputs if name in graph.required and name not in given])


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
        """The arguments of a call with the name of its session: the id of the call if the model gave none.

        Raises `ValueError` if an earlier call of the turn has the session.
        """
        if not self.has_sessions:
            return dict(args)
        session = args.get(SESSION) or ""
        for other in last_turn(call.state.raw(MESSAGES)).unanswered if session else ():
            if other.id == call_id:
                break
            if other.name == self.tool and other.args.get(SESSION) == session:
                raise ValueError(
                    f"the session {session!r} is used by an earlier call of this turn: continue it in the next turn, "
                    "or give another session"
                )
        return {**args, SESSION: session or call_id}

    def script(self, call: Call, args: Mapping[str, Any]) -> Script[Command[Any]]:
        """Run the program; returns its outputs and what it writes."""
        program, inputs, session = self._begun(call, args)
        return self._ended(program, inputs, session, (yield ProgramStep(program, inputs), call))

    def _begun(self, call: Call, args: Mapping[str, Any]) -> tuple[Any, dict[str, Any], str]:
        """The program, its inputs, and the key of its session."""
        program: Any = attrgetter(".".join(self.path))(call.program)
        inputs = {**args, **self.binding.bind(call)}
        if not self.has_sessions:
            return program, inputs, ""
        session = f"{self.tool}/{inputs.pop(SESSION)}"
        known = cast("FrozenDict[str, Any]", call.state.raw(SESSIONS, FrozenDict())).raw(session, None)
        if known:
            inputs[MESSAGES] = known
            if MODE in program.graph.also:  # an agent of several modes starts where the session has ended
                inputs[MODE] = last_turn(known).mode
        return program, inputs, session

    def _ended(self, program: Any, inputs: dict[str, Any], session: str, inside: InsideRun) -> Command[Any]:
        changes = inside.changes()
        updates: dict[str, object] = {
            name: value if name in self.updates.folds or value is DELETE else Replace(value)
            for name, value in self.updates.reply(program, inside, inputs).updates.items()
        }
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
    hidden = options.reads if options.reads is not None else NOTHING
    inputs = (*graph.inputs, *sorted(graph.also))
    own = ModuleIO(inputs={name: Any for name in inputs if name in hidden}, optional=frozenset(hidden))
    planned = plan_inputs(own, options._replace(reads=hidden), who, copy=False)
    wrong = [name for name in hidden if name not in inputs and graph.closed]
    problems = planned.problems if not wrong else []
    if wrong:
        problems.append(
            f"{who}: reads names {list_names(wrong)}, no input of the graph, whose inputs are {list_names(inputs)}"
        )
    writes = options.writes or NOTHING
    known = graph.writes if graph.outputs is None else graph.outputs
    if known is not None:
        known = tuple(dict.fromkeys((*known, *graph.inputs)))
    problems += check_names(writes, "writes", who, own=known, schema=schema)
    folds = frozenset(name for name, field in writes.items() if schema.reducer(field) is not None)
    same_names = {name: name for name in writes}
    sessions = has_sessions(program, hidden)
    reads, unset = planned.binding.reading()
    if sessions:
        reads = {**(reads or {}), MESSAGES: MESSAGES, SESSIONS: SESSIONS}
        writes = {**writes, SESSIONS: SESSIONS}
        unset |= {SESSIONS}
    updates = SubgraphNode(name=options.name, binding=planned.binding, gives=same_names, folds=folds)
    action = ProgramAction(options.name, path, planned.binding, updates, sessions)
    return BuiltAction(action, program, reads or {}, unset, problems=tuple(problems), fields=writes)
