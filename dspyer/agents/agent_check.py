"""The check of an agent: the node after `submit` that looks for problems in the outputs.

If it finds some, they become a user message, the outputs are unset, and the mode resumes. How often that has happened
in a run is counted in the conversation, so it depends on no timing.

A check has one of the forms of `check`, or is self-reflection: the name of a mode, or True for that which submitted.
Then the predictor of the mode is asked for problems, with its instructions and its LM, and is shown the conversation as
text. It is asked through a copy, since a demo of such a call would be no demo of a turn; and the call is no step of the
trace, whose steps are those of predictors that the program has.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import dspy

from dspyer import DELETE, END
from dspyer.agents.arrivals import POSTED
from dspyer.agents.compact import current_mode, text_shown
from dspyer.agents.conversation import (
    MESSAGES,
    MODE,
    PROBLEMS,
    TURN,
    Shown,
    last_turn,
    since_task,
    text_input_of,
    uncovered,
)
from dspyer.agents.settle import BEGIN, SETTLE, is_written_to
from dspyer.agents.tools import AgentPlan
from dspyer.errors import suggestion
from dspyer.events import Commit
from dspyer.extend import (
    Built,
    Call,
    Flaws,
    LogEntry,
    ModuleStep,
    Node,
    NodeOptions,
    Reply,
    Schema,
    Script,
    apply_value,
    filled,
    plan_templates,
    thaw,
)
from dspyer.lm.tracing import set_apart
from dspyer.messages import SENT
from dspyer.nodes.callables import giving
from dspyer.nodes.check import (
    FinderNode,
    Repair,
    build_finder,
    facts_around,
    into_problems,
)

CONVERSATION = "conversation"
"""The input by which a mode that checks its own outputs is shown the conversation."""

REFUSED = "The outputs that you submitted were checked and refused:"
CORRECT = "Solve every problem, and submit the outputs again."
REFLECT = (
    "You have submitted the outputs. Now check them: compare them with the task and with what the tools returned in "
    f"the `{CONVERSATION}`, and name in `{PROBLEMS}` all that is wrong with them. Name nothing if they are right."
)


def build_agent_check(check: object, plan: AgentPlan, options: NodeOptions) -> Built:
    """The check of an agent: an object with one of the three forms of a check, the name of a mode, or True."""
    task, given = plan.task, plan.options
    outputs, options = tuple(task.output_fields), options._replace(node=check)
    if isinstance(check, str) or check is True:
        built = _reflection(check, (*task.input_fields, *outputs), plan.predictors, options)
    else:
        built = build_finder(check, options, PROBLEMS)
    finder = built.node
    if finder is None:
        return built
    wrong = [text.replace(", into='...'", "") for text in into_problems(PROBLEMS, options)]  # it has no such option
    node = AgentCheckNode(
        name=options.name,
        **_facts_around(finder, options.schema),
        writes={name: name for name in (*outputs, MESSAGES, PROBLEMS)},
        goto=(*plan.modes, SETTLE, END),
        onwards=(END,),
        what="the outputs of the agent",
        into=PROBLEMS,
        outputs=outputs,
        max_fixes=given.max_fixes,
        accept=given.accept,
        max_turns=given.max_turns,
        modes=tuple(plan.modes),
    )
    return built._replace(node=node, problems=(*built.problems, *wrong))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReflectionFinder(Node):
    """Asks the predictor of a mode for problems in the outputs; without a `mode`, of that which submitted them."""

    mode: str
    inputs: tuple[str, ...]

    def script(self, call: Call) -> Script[Reply]:
        """Ask it."""
        own = self._asked(call)
        # A copy, whose signature and demos are others: the module of the program is shared by runs of other threads.
        asked = copy.copy(own)
        # An optimizer may have given the mode a signature without one of these inputs, and other instructions.
        known = own.signature.input_fields
        kinds = {one: known[one].annotation if one in known else Any for one in self.inputs if one in call.state}
        fields: dict[str, Any] = {one: (kind, dspy.InputField()) for one, kind in kinds.items()}
        fields |= {CONVERSATION: (str, dspy.InputField()), PROBLEMS: (list[str], dspy.OutputField())}
        asked.signature = dspy.Signature(fields, f"{own.signature.instructions}\n\n{REFLECT}")  # type: ignore[arg-type, unused-ignore]  # DSPy's stubs know one form
        asked.demos = []  # those of turns are none of a check
        set_apart(asked)
        found = yield filled(ModuleStep(asked, self.read_inputs(call)), self.templates), call
        return Reply({PROBLEMS: found[PROBLEMS]})

    def read_inputs(self, call: Call) -> dict[str, Any]:
        """The text that it is shown: inputs, outputs, and the conversation as text."""
        given = {name: thaw(call.state.raw(name)) for name in self.inputs if name in call.state}
        how = Shown(text_input_of(self._asked(call).signature))
        return {**given, CONVERSATION: text_shown(uncovered(list(call.state.raw(MESSAGES).raw_items())), how)}

    def _asked(self, call: Call) -> Any:
        """The predictor of the mode."""
        # Of the turn and not of the field `mode`, which a handoff in the same turn may have changed.
        return getattr(call.program, self.mode or last_turn(call.state.raw(MESSAGES)).mode)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentCheckNode(FinderNode):
    """A node that checks the outputs of an agent, and decides whether a mode resumes.

    Attributes:
        outputs: the outputs, which are unset if there are problems.
        max_turns: the most ordinary turns of a run.
    """

    bounded: bool = True

    outputs: tuple[str, ...]
    max_turns: int

    def script(self, call: Call) -> Script[Reply]:
        """Find the problems, and decide. For what was sent meanwhile there is another turn, as after any other one."""
        reply = yield from FinderNode.script(self, call)
        if reply.goto == self.onwards and is_written_to(call, self.max_turns):
            return reply._replace(goto=(SETTLE,))
        return reply

    def with_fake(self, fake: object, schema: Schema) -> Built:
        """The same check by another function that gives problems, or by a patch with them: what `testing.stub` puts."""
        fn = giving(fake.get(PROBLEMS, [])) if isinstance(fake, Mapping) else fake
        built = build_finder(fn, NodeOptions(self.name, schema), PROBLEMS)
        node = None if built.node is None else replace(self, **_facts_around(built.node, schema))
        return built._replace(node=node)

    @property
    def named(self) -> str:
        """The name of it in its errors."""
        return "the check of the agent"

    def fixes_before(self, call: Call) -> int:
        """The number of times that a mode has resumed in this task."""
        asked = [one for one in since_task(call.state.raw(MESSAGES)) if one.raw("role") == "user"]
        # Another author may have the name of the node.
        own = [one for one in asked if one.raw("name", None) == self.name]
        return sum(SENT not in one and POSTED not in one for one in own)

    def correction(self, problems: list[str], call: Call) -> Reply:
        """The mode goes on, and is told the problems as a user message."""
        text = "\n".join([REFUSED, *(f"- {problem}" for problem in problems), CORRECT])
        message = {"role": "user", "name": self.name, "content": text}
        updates = {**dict.fromkeys(self.outputs, DELETE), MESSAGES: message, PROBLEMS: problems}
        return Reply(updates, (current_mode(call.state, self.modes),), True)

    def output_before(self, log: Sequence[LogEntry], index: int) -> set[str]:
        """The turn that gave the outputs: the last commit of a mode before the check."""
        while index >= 0:
            entry = log[index]
            if entry.commit.node in self.modes:
                return {entry.commit.id}
            index = entry.parents[0] if entry.parents else -1
        return set()

    def repair_in(self, log: Sequence[LogEntry], index: int, nodes: Mapping[str, Node]) -> Repair | None:
        """The correction that its commit at `index` has accepted: from the inputs of the task, in the user message."""
        del nodes
        task: list[Commit] = []  # newest first
        entry = log[index]
        while entry.parents:
            entry = log[entry.parents[0]]
            task.append(entry.commit)
            if entry.commit.node == BEGIN:
                break
        else:  # a task that an earlier run has begun is not in this log
            return None
        inputs = task.pop().patch[MESSAGES][-1].raw(TURN)  # behind what came before the task
        held: dict[str, Any] = {}  # the outputs and the problems, after each commit
        rejected, problems = [], []
        for commit in reversed(task):
            refused = _set_in(held, self.outputs)
            for name in (*self.outputs, PROBLEMS):
                if name in commit.patch:
                    held[name] = apply_value(held.get(name, DELETE), commit.patch[name])
            # One that failed, and whose error edge leads to a mode, tells the model nothing.
            if commit.node == self.name and self.rejects(commit.route) and PROBLEMS in held:
                rejected.append(refused)
                problems.append(held[PROBLEMS])
        if not rejected:
            return None
        given = dict(inputs.raw_items())
        writes = {name: name for name in self.outputs}
        return Repair(given, _set_in(held, self.outputs), rejected, problems, {name: name for name in given}, writes)


def _set_in(held: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The values of these fields, but for those that are unset."""
    return {name: held[name] for name in names if held.get(name, DELETE) is not DELETE}


def _facts_around(finder: Node, schema: Schema) -> dict[str, Any]:
    """Declarations of the check: that of its finder, and that it reads the conversation and the current mode."""
    facts = facts_around(finder)
    mode = {MODE: MODE} if MODE in schema.fields else {}
    reads = None if finder.reads is None else {**finder.reads, MESSAGES: MESSAGES, **mode}
    return {**facts, "reads": reads, "optional": finder.optional | {MODE}}


def _reflection(
    name: str | Literal[True], names: tuple[str, ...], modes: Mapping[str, dspy.Predict], options: NodeOptions
) -> Built:
    if name is not True and name not in modes:
        problem = (
            f"check={name!r} is no mode of the agent.{suggestion(name, modes)} Give True for the mode that "
            "submitted, the name of a mode, a function, a pydantic model or a module"
        )
        return Built(None, None, (problem,))
    reads = {one: one for one in (*names, MESSAGES)}
    # What is wrong with its templates is said of the mode itself.
    asked = modes.values() if name is True else [modes[name]]
    templates = plan_templates(asked, options, reads, Flaws(options.who))
    finder = ReflectionFinder(
        name=options.name,
        **templates.facts(reads, frozenset(names)),
        mode="" if name is True else name,
        inputs=names,
    )
    return Built(finder)
