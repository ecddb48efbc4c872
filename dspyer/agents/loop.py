"""`tool_loop`: the graph of an agent with tools, which makes the requests of `dspy.ReActV2`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dspy
from dspy.adapters.types.tool import Tool
from pydantic import BaseModel, create_model
from pydantic_core import PydanticUndefined

from dspyer.agents.tools import add_tool, as_tools
from dspyer.graph.builder import Graph
from dspyer.messages import Messages
from dspyer.nodes.conversation import SUBMIT
from dspyer.nodes.mode import ModeOptions
from dspyer.nodes.rendering import CONTEXT
from dspyer.nodes.settle import BEGIN, SETTLE, BeginOptions, SettleOptions
from dspyer.nodes.tool import ToolSpec
from dspyer.scheduler.topology import START
from dspyer.views import View


def tool_loop(
    signature: str | type[dspy.Signature],
    tools: Iterable[Callable[..., Any] | Tool | ToolSpec],
    *,
    max_turns: int = 20,
    context: View | Callable[..., Any] | None = None,
    config: Mapping[str, Any] | None = None,
    lm: dspy.LM | None = None,
    schema: type[BaseModel] | None = None,
    name: str = "Agent",
) -> Graph:
    """The graph of an agent that calls tools until it submits its outputs.

    Args:
        signature: the inputs and outputs of the task.
        tools: what the model may call.
        max_turns: the most ordinary turns of a run; after them the model must submit.
        context: selects the messages that the model is shown: a view of `messages`, or a pure function of `messages`
            and other fields, by name, that returns messages; None for all. The inputs of the task are always shown.
        config: settings of the LM, such as the temperature.
        lm: the LM of the agent; None for the one that is configured.
        schema: a model of further fields of the state.
        name: the name of the graph.

    Returns:
        The graph, to be compiled, changed, or used as a node of another one.

    Example:
        >>> from dspyer.testing import ScriptedLM
        >>> def add(a: int, b: int) -> int:
        ...     "Adds two numbers."
        ...     return a + b
        >>> program = tool_loop("question -> answer: int", [add]).compile()
        >>> calls = [{"name": "add", "args": {"a": 1, "b": 2}}], [{"name": "submit", "args": {"answer": 3}}]
        >>> with ScriptedLM([{"next_thought": "", "tool_calls": {"tool_calls": call}} for call in calls]):
        ...     program(question="1 + 2?").answer
        3
    """
    task = dspy.signatures.signature.ensure_signature(signature)
    graph, outputs = _graph(task, schema, name), tuple(task.output_fields)
    known = as_tools(tools)
    names = frozenset(tool.name for tool in known)
    react = dspy.ReActV2(task, [tool.tool for tool in known])
    react.react.update_config(**(config or {}))
    react.react.lm = lm
    graph.add_node(BEGIN, BeginOptions(tuple(task.input_fields), ("react",)))
    fn, reads = (None, {CONTEXT: context}) if isinstance(context, View) else (context, None)
    mode = ModeOptions(react.react, tuple(react.tools.values()), names, max_turns, fn)
    graph.add_node("react", mode, reads=reads)
    for tool in known:
        add_tool(graph, tool, () if schema is None else tuple(schema.model_fields))
        graph.add_edge(tool.name, SETTLE)
    graph.add_node(SETTLE, SettleOptions(react.tools[SUBMIT], outputs, ("react",)))
    return graph.add_edge(START, BEGIN)


def _graph(task: type[dspy.Signature], schema: type[BaseModel] | None, name: str) -> Graph:
    """A graph without nodes, with the fields of an agent."""
    fields: dict[str, Any] = {}
    for field, info in task.input_fields.items():
        fields[field] = (info.annotation, ... if info.default is PydanticUndefined else info.default)
    for field, info in task.output_fields.items():
        fields[field] = (info.annotation, ...)
    fields["messages"] = (Messages, [])
    model = create_model(name, __base__=schema or BaseModel, **fields)
    inputs = tuple(task.input_fields)
    own = tuple(schema.model_fields) if schema is not None else ()
    return Graph(
        model,
        name=name,
        inputs=(*inputs, *own, "messages"),
        outputs=tuple(task.output_fields),
        keep=("messages", *own),
    )
