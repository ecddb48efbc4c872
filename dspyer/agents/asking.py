"""The tool by which a model asks the user."""

from __future__ import annotations

from dspyer.agents.tool_node import ToolSpec
from dspyer.agents.tools import tool
from dspyer.nodes.context import Context


def _ask_user(question: str, ctx: Context) -> str:
    return ctx.interrupt(ctx.node, question, str)


ask_user: ToolSpec = tool(_ask_user, name="ask_user", desc="Asks the user a question and returns the answer.")
"""A tool that asks the user: its argument `question` is the text of a question of the run, whose key is `ask_user`.

Example:
    >>> ask_user
    tool(ask_user: question)
"""
