"""`explain_langgraph`: what a conversion of a LangGraph graph would do, as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, get_args, get_origin

from langgraph.channels import BinaryOperatorAggregate, DeltaChannel
from langgraph.channels.base import BaseChannel
from langgraph.graph import END

from dspyer.display.tables import table_lines
from dspyer.migrate.findings import FoundNode
from dspyer.migrate.model_calls import LMNode, is_conversation, lm_nodes, node_kind

_WIDTH: Final = 120
_UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True)
class LangGraphReport:
    """What `explain_langgraph` found. `str(report)` is a table of at most 120 columns.

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
        parts = [[self._verdict()], _listed("Problems", self.problems), self._node_lines(), self._field_lines()]
        parts += [self._lm_lines(), _listed("Notes", self.notes)]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _verdict(self) -> str:
        if not self.problems:
            return "This graph can be converted: from_langgraph(graph)."
        number = len(self.problems)
        return f"This graph cannot be converted as it is: {number} problem{'s' * (number != 1)}."

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
        lines = _fitted(rows)
        if any(_UNKNOWN in row for row in rows):
            lines.append(f"  {_UNKNOWN}: its code does not name fields")
        return ["Nodes", *lines]

    def _field_lines(self) -> list[str]:
        channels = {
            name: channel
            for node in reversed(self._nodes)
            if "." not in node.name
            for name, channel in node.channels.items()
        }
        if not channels:
            return []
        rows = [["field", "type", "an update"]]
        rows += [
            ["root" if name == "__root__" else name, _type_name(channel), _update(channel)]
            for name, channel in channels.items()
        ]
        return ["Fields", *_fitted(rows)]

    def _lm_lines(self) -> list[str]:
        if not self.lm_calls:
            return []
        lines = textwrap.wrap(
            "These nodes call an LM. They run as they are, but DSPy neither tunes nor counts their calls. To have them "
            "tuned, replace them one by one, for example so:",
            _WIDTH,
        )
        lines.append("  from_langgraph(graph, nodes={")
        for call in self.lm_calls:
            lines += [_cut(f"      {line}", _WIDTH) for text in _replacement(call) for line in _code_lines(text)]
        return [*lines, "  })"]


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


def _code_lines(code: str) -> list[str]:
    """A line of code, its signature in several strings if it is too long."""
    opened, _, rest = code.partition('("')
    if len(code) <= _WIDTH - 6 or not rest:
        return [code]
    signature, _, end = rest.partition('"')
    *first, last = textwrap.wrap(signature, _WIDTH - 20, break_on_hyphens=False)
    return [f"{opened}(", *(f'    "{part} "' for part in first), f'    "{last}"', end]


def _update(channel: BaseChannel[Any, Any, Any]) -> str:
    if isinstance(channel, BinaryOperatorAggregate):
        return f"is folded in by {_function_name(channel.operator)}"
    if isinstance(channel, DeltaChannel):
        return f"is folded in by {_function_name(channel.reducer)}"
    return "replaces the value"


def _function_name(fn: object) -> str:
    name = getattr(fn, "__name__", type(fn).__name__)
    return "a lambda" if name == "<lambda>" else name.lstrip("_")


def _type_name(channel: BaseChannel[Any, Any, Any]) -> str:
    typ = getattr(channel, "typ", Any)
    if is_conversation(channel):
        return "list of messages"
    while get_origin(typ) is Annotated:
        typ = get_args(typ)[0]
    return typ.__name__ if isinstance(typ, type) and not get_args(typ) else str(typ).replace("typing.", "")


def _listed(title: str, texts: Sequence[str]) -> list[str]:
    lines = [
        line
        for number, text in enumerate(texts, 1)
        for line in textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"{number:>3}. ",
            subsequent_indent="     ",
            break_long_words=True,
            break_on_hyphens=False,
        )
    ]
    return [title, *lines] if lines else []


def _fitted(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table, indented; the widest columns are cut until it fits, and columns without a value are left out."""
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in kept]
    while sum(widths) + 2 * len(widths) > _WIDTH:
        widths[widths.index(max(widths))] -= 1
    cut = [[_cut(cell, width) for cell in column] for column, width in zip(kept, widths, strict=True)]
    return [f"  {line}" for line in table_lines(list(zip(*cut, strict=True)), names=len(kept))]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _in_order(nodes: Sequence[FoundNode], path: str) -> Iterator[FoundNode]:
    """The nodes of a graph, each followed by those of the graph that it is."""
    for node in nodes:
        if node.path == path:
            yield node
            yield from _in_order(nodes, f"{node.name}.")


def make_report(problems: Iterable[str], notes: Iterable[str], nodes: Iterable[FoundNode] = ()) -> LangGraphReport:
    """The report of what a conversion has found."""
    found = tuple(_in_order(list(nodes), ""))
    return LangGraphReport(tuple(problems), tuple(notes), tuple(lm_nodes(found)), found)
