"""The node of a mode: it takes a turn of an agent, with a predictor of the program and the tools of the mode.

The predictor is that of `dspy.ReActV2`, so the prompt is DSPy's own. Tools are a part of the program and not of the
state: the node passes them at each call, and takes them out of the trace, from which optimizers make demos.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import dspy
from dspy import AdapterParseError, ContextWindowExceededError, Tool, ToolCalls

from dspyer import ImmutableState, Retry, Send
from dspyer.agents.arrivals import SEEN, arrivals
from dspyer.agents.conversation import (
    CONTEXT,
    FORCED,
    MESSAGES,
    SUBMIT,
    THOUGHT,
    TURN,
    Rendering,
    Shown,
    TurnPrompt,
    last_turn,
    plan_rendering,
    reader,
    shown,
    turns_since_task,
    with_ids,
)
from dspyer.agents.settle import SETTLE, submitted
from dspyer.agents.tools import AgentPlan
from dspyer.errors import AgentError, DspyerError
from dspyer.extend import (
    Built,
    Call,
    Flaws,
    FrozenList,
    Look,
    ModuleStep,
    Node,
    NodeOptions,
    Reply,
    Script,
    filled,
    plan_templates,
)
from dspyer.lm.not_public import TRACE
from dspyer.lm.tracing import set_steps_apart, step_count
from dspyer.messages import warning_message
from dspyer.nodes.binding import Filler, warning_of
from dspyer.templates import fill_text, is_template, names_in
from dspyer.values.json import with_valid_text

READER = reader()
"""The tool `read_result` as a model is shown it; `settle` makes its calls."""

MUST_SUBMIT = {"tool_choice": {"type": "function", "function": {"name": SUBMIT}}, "reasoning_effort": None}
"""The settings of a last turn, which must submit, as `dspy.ReActV2` gives them."""


def build_mode(plan: AgentPlan, options: NodeOptions) -> Built:
    """The node of the mode of this name."""
    name = options.name
    predictor, tools = plan.predictors[name], tuple(plan.reacts[name].tools.values())
    nodes = frozenset(tool.name for tool in plan.tools[name])
    found = Flaws(options.who)
    context = options.views.get(CONTEXT, plan.modes[name].context)
    rendering, reads, optional = plan_rendering(context, plan.shown[name], options, found.problems)
    templates = plan_templates([predictor], options, reads, found)
    # What a tool is described by is text of its author; only handoffs are described by instructions of modes, which
    # are templates.
    told = {tool.name: tool.desc or "" for tool in tools if tool.name not in (*nodes, SUBMIT)}
    told = {name: text for name, text in told.items() if is_template(text)}
    named = [name for text in told.values() for name in names_in(text) if name in options.schema.fields]
    templates = templates._replace(names=tuple(dict.fromkeys((*templates.names, *named))))
    seen = {SEEN: SEEN} if options.schema.live_fields else {}
    reads, optional = {**reads, **seen}, optional | {*seen}
    node = ModeNode(
        name=name,
        takes=templates.takes,
        **templates.facts(reads, optional),
        writes={MESSAGES: MESSAGES, **seen},
        conversations=(MESSAGES,),
        # In the order of the tools: that of a set differs between processes, and edges are in the fingerprint.
        goto=(*(tool.name for tool in tools if tool.name in nodes), SETTLE),
        sends=True,
        tools=tools,
        nodes=nodes,
        max_turns=plan.options.max_turns,
        rendering=rendering,
        filled=frozenset(told),
    )
    return found.built(node, predictor)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModeNode(Node):
    """A node that takes a turn: it calls its predictor, commits the message, and sends the calls to the tools.

    Attributes:
        tools: what the model may call; the last one is `submit`.
        nodes: the tools among them that are nodes.
        max_turns: the most ordinary turns of a run.
        rendering: how the conversation is shown.
        filled: the tools whose descriptions are templates.
    """

    kind: ClassVar[str] = "mode"
    listens: ClassVar[bool] = True
    bounded: bool = True
    look = Look("module", "mode")

    tools: tuple[Tool, ...]
    nodes: frozenset[str]
    max_turns: int
    rendering: Rendering
    filled: frozenset[str]

    def told(self, state: ImmutableState) -> dict[str, Any]:
        """Attributes that `dspy.ReActV2` gives besides the outputs: the conversation, and how it ended."""
        messages = state.raw(MESSAGES)
        how = Shown(self.rendering.how.text_input, text_output=self.rendering.how.text_output)
        history = shown(messages.raw_items(), how).history
        reason = "forced_submit" if last_turn(messages).forced else "submit"
        return {"history": history, "termination_reason": reason}

    def script(self, call: Call) -> Script[Reply]:
        """Take a turn. What has arrived, and a warning, come before the turn that they were shown to."""
        warning, new = warning_of(call), arrivals(call)
        reply = yield from self._turn(call, TurnPrompt(self.rendering, new.shown(call)), warning)
        before = [*new.messages, warning_message(warning)] if warning else new.messages
        return reply._replace(updates={**reply.updates, **new.seen, MESSAGES: [*before, reply.updates[MESSAGES]]})

    def _turn(self, call: Call, prompt: TurnPrompt, warning: str) -> Script[Reply]:
        messages: FrozenList[Any] = call.state.raw(MESSAGES)
        taken = turns_since_task(messages)
        # The reason of a forced turn is kept in its message, as `dspy.ReActV2` names it.
        reason, cause = "max_turns", None
        if taken < self.max_turns:
            try:
                prediction, calls = yield from self._predicted(call, prompt, {}, warning)
            except ContextWindowExceededError as error:
                reason, cause = "context_window_exceeded", error
            except (AdapterParseError, ValueError) as error:
                if isinstance(error, DspyerError) or is_retried(call, error):
                    raise
                reason, cause = "parse_error", error
            else:
                if calls:
                    return self._reply(prediction, with_ids(calls, messages))
                reason = "empty_tool_calls"
        try:  # a last turn, which must submit
            prediction, calls = yield from self._predicted(call, prompt, {"config": dict(MUST_SUBMIT)}, warning)
            # A model that ignores `tool_choice` may call others: these would begin a turn that the run does not have.
            calls = [one for one in with_ids(calls, messages) if one.name == SUBMIT]
        except (AdapterParseError, ValueError, ContextWindowExceededError) as error:
            if isinstance(error, DspyerError) or is_retried(call, error):
                raise
            raise self._failure(reason, taken, f"the last turn failed: {error}", cause) from error
        if not calls:
            raise self._failure(reason, taken, "the last turn did not call `submit`", cause) from cause
        # Tried here already: in an ordinary turn the model is told of a refusal and goes on, and this turn is the last.
        found = [submitted(self.tools[-1], one.args) for one in calls]
        if all(refused is not None for _, refused in found):
            text, refused = found[-1]
            raise self._failure(reason, taken, f"its `submit` was refused: {text}", cause) from refused
        return self._reply(prediction, calls, reason)

    def _predicted(
        self, call: Call, prompt: TurnPrompt, settings: Mapping[str, Any], warning: str
    ) -> Script[tuple[Any, list[Any]]]:
        """The output of the predictor, and the calls in it. It is asked again by a shorter prompt if one is too long.

        The prompt stays short for the rest of the turn.
        """
        before = step_count()
        while True:
            inputs = {**prompt.shown.inputs, "history": prompt.shown.history, "tools": self._tools(call, prompt)}
            step = ModuleStep(getattr(call.program, self.name), {**inputs, **settings})
            try:
                found = yield filled(step, self.templates, warning), call
                break
            except ContextWindowExceededError:
                if not prompt.shorten():
                    raise
        # A demo with tools would hold functions, which no file can save.
        without_tools(before)
        given = getattr(found, "tool_calls", None)
        calls = [] if given is None else ToolCalls.model_validate(given).tool_calls
        if not calls:  # no turn, and so no example of one
            # Steps that are set apart stay in the trace of the run, and become no demos.
            set_steps_apart(before)
        return found, [one.model_copy(update=with_valid_text(dict(one))) for one in calls]

    def _tools(self, call: Call, prompt: TurnPrompt) -> list[Tool]:
        """The tools as the model is shown them: templates are filled into the descriptions of handoffs."""
        # Only if there is something to read on: other requests are those of `dspy.ReActV2`.
        tools = [*self.tools, READER] if prompt.shown.is_cut else list(self.tools)
        if not self.filled:
            return tools
        value_of = Filler(call, None).text
        return [
            tool.model_copy(update={"desc": fill_text(tool.desc or "", value_of)[0]})
            if tool.name in self.filled
            else tool
            for tool in tools
        ]

    def _failure(self, reason: str, turns: int, text: str, cause: Exception | None) -> AgentError:
        why = {
            "max_turns": f"{turns} turns were taken, the most that it may take",
            "parse_error": "a response could not be read",
            "empty_tool_calls": "a response called no tool",
            "context_window_exceeded": "the prompt is longer than the model reads",
        }[reason]
        if reason == "parse_error" and not isinstance(cause, AdapterParseError):
            # DSPy raises `ValueError` also for what is wrong before the request, such as an LM that is a string.
            why = f"a turn failed with {type(cause).__name__}"
        return AgentError(f"{self.who} gave no final output: {why}, and {text}", reason, turns)

    def _reply(self, prediction: dspy.Prediction, calls: Sequence[ToolCalls.ToolCall], forced: str = "") -> Reply:
        thought = getattr(prediction, "next_thought", None)
        text = None if thought is None else str(thought)
        message: dict[str, Any] = {
            "role": "assistant",
            "name": self.name,
            "content": text or "",
            "tool_calls": [
                {
                    "id": one.id,
                    "type": "function",
                    "function": {"name": one.name, "arguments": json.dumps(one.args, ensure_ascii=False)},
                }
                for one in calls
            ],
            TURN: {THOUGHT: text},
        }
        if forced:
            message[FORCED] = forced
        sends = [
            Send(one.name, {"call": {"id": one.id, "name": one.name, "args": one.args, "alone": len(calls) == 1}})
            for one in calls
            if one.name in self.nodes
        ]
        return Reply({MESSAGES: message}, tuple(sends) or (SETTLE,), True)


def is_retried(call: Call, error: Exception) -> bool:
    """Return whether the node has a policy by which another attempt follows this error."""
    # The policy of the graph counts as well as that of the node: both are layers around it.
    policy = call.layer(Retry)
    return policy is not None and policy.pause(call.attempt, error) is not None


def without_tools(count: int) -> None:
    """Take the tools out of the steps of the recording around the caller, but for the first `count`."""
    trace = dspy.settings.get(TRACE)
    for index in range(count, len(trace or ())):
        predictor, inputs, outputs = trace[index]
        if "tools" in inputs:
            trace[index] = predictor, {name: value for name, value in inputs.items() if name != "tools"}, outputs
