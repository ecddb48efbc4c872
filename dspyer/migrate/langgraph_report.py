"""`explain_langgraph`: what a conversion of a LangGraph graph would do, as a table."""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, get_args, get_origin

import dspy
from langchain_core.language_models import BaseLanguageModel
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableBinding
from langchain_core.tools import BaseTool
from langgraph.channels.base import BaseChannel
from langgraph.graph import END
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel.protocol import PregelProtocol
from langgraph.types import Command

from dspyer.display import count_of, table_lines
from dspyer.migrate.code_reading import NodeCode, is_a, main_function, read_code
from dspyer.migrate.unsupported import FoundNode
from dspyer.nodes.callables import attributes_of

# Which nodes of a LangGraph graph call an LM, and what could be written instead so that DSPy tunes it.


# Functions of LangChain that return a model of a name.
_MAKERS: Final = frozenset({"init_chat_model"})


@dataclass(frozen=True, slots=True)
class LMNode:
    """A node that calls an LM, and a line that could replace it. The line is a suggestion and is never applied.

    Attributes:
        node: its name in LangGraph; in a graph that is node `outer`, `outer.name`.
        lm: the model or module that it calls.
        suggestion: the module to write, as code. `...` stands for a field that the node's code does not name.
        also_writes: fields that the node writes and the suggestion does not.
        adds_message: whether the node answers in a conversation. The module is then called by a function that returns
            the message.
        remark: what else to know, often empty.
    """

    node: str
    lm: str
    suggestion: str
    also_writes: tuple[str, ...] = ()
    adds_message: bool = False
    remark: str = ""


def _lm_node(node: FoundNode, code: NodeCode) -> LMNode | None:
    modules = code.values(dspy.Module)
    if modules:
        use = modules[0]
        named = use.name[:1].isidentifier()
        suggestion = use.name if named else f"{type(use.value).__name__}(...)"
        return LMNode(node.name, f"dspy.{type(use.value).__name__}", suggestion)
    lm = next(_models(code), "")
    return _suggest(node, lm, code) if lm else None


def _models(code: NodeCode) -> Iterator[str]:
    """The language models that a node uses: instances, classes, and what makes one."""
    for use in code.uses:
        value = use.value
        if is_a(value, (BaseLanguageModel, dspy.BaseLM)):
            model = next((getattr(value, name, None) for name in ("model_name", "model") if hasattr(value, name)), None)
            yield " ".join([type(value).__name__, *([model] if isinstance(model, str) and model else [])])
        elif is_a(value, type) and issubclass(value, (BaseLanguageModel, dspy.BaseLM)):
            if not inspect.isabstract(value):  # those are for annotations and isinstance
                yield value.__name__
        # A class that is used may be called in the node: nothing is called to find out.
        elif is_a(value, type) and issubclass(value, dspy.Module):
            yield f"dspy.{value.__name__}"
        elif is_a(value, types.FunctionType) and value.__name__ in _MAKERS:
            yield "a chat model"


def _suggest(node: FoundNode, lm: str, code: NodeCode) -> LMNode:
    keys = node.keys
    asked = [name for use in code.values(BasePromptTemplate) for name in getattr(use.value, "input_variables", [])]
    # The prompt of a chain names its variables; a function names the keys that it reads.
    reads = list(keys.read or [name for name in asked if name in node.channels] or asked)
    writes = [key for key in keys.returned if not is_conversation(node.channels[key])]
    talks = bool(keys.read) and all(is_conversation(node.channels[key]) for key in keys.read)
    adds_message = not writes and (talks or bool(keys.returned))
    if adds_message:
        reads = ["conversation" if is_conversation(node.channels[key]) else key for key in keys.read]
        reads, writes = reads or ["conversation"], ["reply"]
    remark = ""
    # DSPy refuses a signature with one name on both sides.
    both = [key for key in writes if key in reads]
    if both:
        remark = f"an input and an output of a signature have different names: {', '.join(both)} is both"
        writes = [f"new_{key}" if key in both else key for key in writes]
    outputs = [f"{key}{_type_text(node.channels[key])}" if key in node.channels else key for key in writes]
    text = f"{', '.join(dict.fromkeys(reads)) or '...'} -> {', '.join(outputs) or '...'}"
    tools = _tools(code)
    module = f'dspy.ReAct("{text}", tools=[{", ".join(tools)}])' if tools else f'dspy.Predict("{text}")'
    if tools:
        remark = remark or "the module calls its tools itself"
    if any(use.value is Command for use in code.uses):
        remark = f"{node.name} also says where to go: call the module in a function that returns a dspyer.Command"
    written = {key.removeprefix("new_") for key in writes}
    also = () if adds_message else tuple(key for key in keys.returned if key not in written)
    return LMNode(node.name, lm, module, also, adds_message, remark)


def is_conversation(channel: BaseChannel[Any, Any, Any]) -> bool:
    """Return whether a channel is folded by `add_messages`."""
    fold = getattr(channel, "operator", None) or getattr(channel, "reducer", None)
    return getattr(fold, "__name__", "").strip("_") in {"add_messages", "messages_delta_reducer"}


def _tools(code: NodeCode) -> list[str]:
    """The tools that a model is given, as code."""
    found = [tool for use in code.values(RunnableBinding) for tool in use.value.kwargs.get("tools", ())]
    if not found and "bind_tools" in code.names():
        # `bind_tools` in a function: the tools are what lists in reach of the code hold.
        listed = [tool for use in code.values((list, tuple)) for tool in use.value]
        found = [tool for tool in listed if is_a(tool, (BaseTool, types.FunctionType))]
        found += [use.value for use in code.values(BaseTool)]
    functions = {use.name for use in code.values(types.FunctionType)}
    texts = [_tool_text(tool, functions) for tool in found]
    return [text for text in dict.fromkeys(texts) if text]


def _tool_text(tool: Any, functions: Collection[str]) -> str:
    """A tool as code: DSPy takes the function of a tool of LangChain, and no such tool; empty without a usable name."""
    described = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    name = str(described.get("name") or getattr(tool, "name", None) or getattr(tool, "__name__", ""))
    if not name.isidentifier():
        return ""
    if name in functions or isinstance(tool, types.FunctionType):
        return name
    has_function = not isinstance(tool, BaseTool) or getattr(tool, "func", None) is not None
    return f"{name}.func" if has_function else f"dspy.Tool.from_langchain({name})"


# --- signatures as text


def _type_text(channel: BaseChannel[Any, Any, Any]) -> str:
    """`: int`, empty for a text and for a type that a signature cannot name."""
    text = _type_name(channel)
    try:
        dspy.Signature(f"x -> y: {text}")
    except Exception:  # noqa: BLE001 - DSPy raises many kinds
        return ""
    return "" if text == "str" else f": {text}"


def node_kind(runnable: object) -> str:
    """The kind of a node, in a few words."""
    if isinstance(runnable, CompiledStateGraph):
        return f"graph of {count_of(len(runnable.builder.nodes), 'node')}"
    if isinstance(runnable, (PregelProtocol, ToolNode)):
        return type(runnable).__name__
    fn = main_function(runnable)
    if fn is None:
        return type(runnable).__name__
    return "function" if attributes_of(runnable).get("func") is not None else "async function"


def replaced_text(node: FoundNode, options: Mapping[str, Any]) -> str:
    """A note on a node that `nodes=` replaces: what its function wrote and the new node does not."""
    new = options.get("node")
    signature = getattr(new, "signature", None) or getattr(getattr(new, "predict", None), "signature", None)
    outputs = options.get("writes", getattr(signature, "output_fields", None))
    text = f"node {node.name!r} is replaced by {getattr(new, '__name__', type(new).__name__)}"
    # Of an agent's middleware, only what it does before and after the model has nodes of its own.
    wrapping = [use.value.__qualname__.split(".") for use in read_code(node.runnable).values(types.FunctionType)]
    around = dict.fromkeys([names[-2] for names in wrapping if names[-1] in ("wrap_model_call", "awrap_model_call")])
    text += f", and what wraps its model call is left out: {', '.join(around)}" if around else ""
    if outputs is None:
        return f"{text}; its function wrote {', '.join(node.keys.returned)}" if node.keys.returned else text
    written = set(outputs.values()) if isinstance(outputs, Mapping) and "writes" in options else set(outputs)
    rest = [key for key in node.keys.returned if key not in written]
    return f"{text}; its function also wrote {', '.join(rest)}" if rest else text


_UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True)
class LangGraphReport:
    """The findings of `explain_langgraph`. `str(report)` is a table.

    Attributes:
        problems: why the graph cannot be converted, each as `what: why; what to do`; empty if it can be.
        notes: what the conversion infers or leaves out.
        lm_calls: the nodes that call an LM, each with a module that could replace it.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    lm_calls: tuple[LMNode, ...] = ()
    _nodes: tuple[FoundNode, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        parts = [[self._verdict()], _listed("Problems", self.problems), self._node_lines()]
        parts += [self._lm_lines(), _listed("Notes", self.notes)]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _verdict(self) -> str:
        if not self.problems:
            return "This graph can be converted: from_langgraph(graph)."
        return f"This graph cannot be converted as it is: {count_of(len(self.problems), 'problem')}."

    def _node_lines(self) -> list[str]:
        if not self._nodes:
            return []
        called = {call.node: call.lm for call in self.lm_calls}
        rows = [["node", "what it is", "calls the LM", "reads", "writes", "goes to"]]
        for node in self._nodes:
            keys = node.keys
            rows.append(
                [
                    node.name,
                    node_kind(node.runnable),
                    called.get(node.name, ""),
                    ", ".join(keys.read) or _UNKNOWN,
                    ", ".join(keys.returned) or _UNKNOWN,
                    ", ".join("END" if target == END else target for target in node.targets),
                ]
            )
        lines = _table(rows)
        if any(_UNKNOWN in row for row in rows):
            lines.append(f"  {_UNKNOWN}: its code does not name fields")
        return ["Nodes", *lines]

    def _lm_lines(self) -> list[str]:
        if not self.lm_calls:
            return []
        return [
            "These nodes call the model directly. They run unchanged; to tune and count",
            "them, replace them with predictors, one by one:",
            "  from_langgraph(graph, nodes={",
            *[f"      {line}" for call in self.lm_calls for line in _replacement(call)],
            "  })",
        ]


def _replacement(call: LMNode) -> Iterator[str]:
    """An entry of `nodes=`, with comments."""
    if call.also_writes:
        yield f"# {call.node} also writes {', '.join(call.also_writes)}"
    if call.remark:
        yield f"# {call.remark}"
    if call.adds_message:
        name = call.node.rpartition(".")[2]
        yield f"# def {name}(messages, predict): ... return {{'messages': [('ai', predict(conversation=...).reply)]}}"
        yield f"{call.node!r}: {{'node': {name}, 'modules': {{'predict': {call.suggestion}}}}},"
    else:
        yield f"{call.node!r}: {call.suggestion},"


def _type_name(channel: BaseChannel[Any, Any, Any]) -> str:
    typ = getattr(channel, "typ", Any)
    if is_conversation(channel):
        return "list of messages"
    while get_origin(typ) is Annotated:
        typ = get_args(typ)[0]
    return typ.__name__ if isinstance(typ, type) and not get_args(typ) else str(typ).replace("typing.", "")


def _listed(title: str, texts: Sequence[str]) -> list[str]:
    """Sentences, numbered and wrapped; a table is not, since what is cut there could not be read."""
    wrapped = partial(textwrap.fill, width=76, subsequent_indent="     ", break_on_hyphens=False)
    return [title, *[wrapped(f"{number:>3}. {text}") for number, text in enumerate(texts, 1)]] if texts else []


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table, indented; columns without a value are left out."""
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [f"  {line}" for line in table_lines(list(zip(*kept, strict=True)), names=len(kept))]


def _in_order(nodes: Sequence[FoundNode], path: str) -> Iterator[FoundNode]:
    """The nodes of a graph, each followed by those of the graph that it is."""
    for node in nodes:
        if node.path == path:
            yield node
            yield from _in_order(nodes, f"{node.name}.")


def make_report(problems: Iterable[str], notes: Iterable[str], nodes: Iterable[FoundNode] = ()) -> LangGraphReport:
    """The report of what a conversion has found."""
    found = tuple(_in_order(list(nodes), ""))
    # A graph has rows of its own for its nodes.
    calls = [
        _lm_node(node, read_code(node.runnable)) for node in found if not isinstance(node.runnable, PregelProtocol)
    ]
    return LangGraphReport(tuple(problems), tuple(notes), tuple([one for one in calls if one is not None]), found)
