"""The pure nodes of an agent: `begin` makes the user message of a task, `settle` ends a turn.

The branches of a turn join at `settle`. It gives every call a result that has none yet (`submit`, handoffs, unknown
tools), writes the outputs, and decides where the branch continues. It runs no code of a model or a tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from dspy.adapters.types.tool import Tool

from dspyer.errors import short_error
from dspyer.messages import last_turn, task_message, tool_message
from dspyer.nodes.conversation import SUBMIT
from dspyer.nodes.node import Built, Call, Node, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.scheduler.topology import END
from dspyer.values.frozen import thaw
from dspyer.views import text_of

BEGIN, SETTLE, CHECK = "begin", "settle", "check"
"""The names of the nodes of an agent that are neither modes nor tools."""


class BeginOptions(NamedTuple):
    """What makes a node the first one of an agent: the inputs of the task, and the modes in which it may start."""

    inputs: tuple[str, ...]
    modes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BeginNode(Node):
    """A node that adds the inputs of a task to the conversation, and starts the mode of the agent."""

    kind: ClassVar[str] = "begin"

    inputs: tuple[str, ...]

    def call(self, call: Call) -> Reply:
        """Make the user message."""
        state = call.state
        given = {name: thaw(state.raw(name)) for name in self.inputs if name in state}
        return Reply({"messages": task_message(given)}, (self.goto[0],), True)

    async def acall(self, call: Call) -> Reply:
        """The same from async code."""
        return self.call(call)


def build_begin(begin: BeginOptions, options: NodeOptions) -> Built:
    """The first node of an agent."""
    node = BeginNode(
        name=options.name,
        reads={name: name for name in begin.inputs},
        optional=frozenset(begin.inputs),
        writes={"messages": "messages"},
        goto=begin.modes,
        inputs=begin.inputs,
    )
    return Built(node)


# --- submit


class Submission(NamedTuple):
    """The result of a call of `submit`: the outputs, or why they were refused."""

    value: Any
    text: str
    cause: Exception | None = None


def submitted(submit: Tool, args: Mapping[str, Any]) -> Submission:
    """The outputs that a call of `submit` gives."""
    try:
        outputs = submit(**args)
    except Exception as error:  # noqa: BLE001 - the arguments are the model's, which is told what is wrong with them
        text = short_error(error, step=SUBMIT)
        return Submission(text, text, error)
    return Submission(outputs, text_of(outputs))


# --- settle


class SettleOptions(NamedTuple):
    """What makes a node the last one of a turn.

    Attributes:
        submit: the tool that validates outputs.
        outputs: the names of the outputs.
        modes: the modes by which it may be followed.
    """

    submit: Tool
    outputs: tuple[str, ...]
    modes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SettleNode(Node):
    """A node that ends a turn."""

    kind: ClassVar[str] = "settle"

    submit: Tool
    outputs: tuple[str, ...]

    def call(self, call: Call) -> Reply:
        """End the turn."""
        turn = last_turn(call.state.raw("messages"))
        results: list[dict[str, Any]] = []
        outputs: dict[str, Any] | None = None
        for one in turn.unanswered:
            if one.name == SUBMIT:
                found = submitted(self.submit, one.args)
                results.append(tool_message(one.id, one.name, found.value, found.cause is not None))
                outputs = outputs if found.cause is not None else found.value
            else:
                results.append(tool_message(one.id, one.name, f"Unknown tool: {one.name}", True))
        updates: dict[str, Any] = {"messages": results} if results else {}
        return Reply({**updates, **(outputs or {})}, (turn.mode if outputs is None else END,), True)

    async def acall(self, call: Call) -> Reply:
        """The same from async code."""
        return self.call(call)


def build_settle(settle: SettleOptions, options: NodeOptions) -> Built:
    """The last node of a turn."""
    node = SettleNode(
        name=options.name,
        reads={"messages": "messages"},
        writes={"messages": "messages", **{name: name for name in settle.outputs}},
        goto=(*settle.modes, END),
        submit=settle.submit,
        outputs=settle.outputs,
    )
    return Built(node)
