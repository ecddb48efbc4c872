"""The node of a tool: it makes one call of an agent, and commits the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from dspy.adapters.types.tool import Tool

from dspyer.errors import short_error
from dspyer.messages import tool_message
from dspyer.nodes.node import Built, Call, Node, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.sync_async import acall_function, call_function, is_async
from dspyer.values.frozen import thaw


class ToolOptions(NamedTuple):
    """What makes a node a tool."""

    tool: Tool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolNode(Node):
    """A node that makes one tool call."""

    kind: ClassVar[str] = "tool"

    tool: Tool

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that a `Send` to it may bring."""
        return frozenset(["call"])

    def call(self, call: Call) -> Reply:
        """Make the tool call."""
        made = self._made(call)
        try:
            args = self.tool._validate_and_parse_args(**made["args"])
            value = call_function(self.tool.func, args, is_async(self.tool.func))
        except Exception as error:  # noqa: BLE001 - the model is told
            return self._reply(made, short_error(error, step=self.name), True)
        return self._reply(made, value, False)

    async def acall(self, call: Call) -> Reply:
        """The same from async code."""
        made = self._made(call)
        try:
            args = self.tool._validate_and_parse_args(**made["args"])
            value = await acall_function(self.tool.func, args, is_async(self.tool.func))
        except Exception as error:  # noqa: BLE001 - the model is told
            return self._reply(made, short_error(error, step=self.name), True)
        return self._reply(made, value, False)

    def _made(self, call: Call) -> dict[str, Any]:
        assert call.overlay is not None
        found: dict[str, Any] = thaw(call.overlay.raw("call"))
        return found

    def _reply(self, made: dict[str, Any], value: Any, error: bool) -> Reply:
        return Reply({"messages": tool_message(made["id"], made["name"], value, error)}, None, True)


def build_tool(tool: ToolOptions, options: NodeOptions) -> Built:
    """A node of a tool."""
    return Built(ToolNode(name=options.name, reads={}, writes={"messages": "messages"}, tool=tool.tool))
