"""What a conversion finds: the problems that refuse a graph, and the notes on what was inferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langgraph.channels.base import BaseChannel

from dspyer.migrate.code_reading import StateKeys, read_keys


class FoundNode(NamedTuple):
    """A node that a conversion has found.

    Attributes:
        path: the name of the node whose graph it is in, with a dot after it; empty for the outermost graph.
        label: its name in its graph.
        runnable: what LangGraph calls.
        channels: the channels of its graph.
        targets: the nodes that may follow it, also the end.
    """

    path: str
    label: str
    runnable: Any
    channels: Mapping[str, BaseChannel[Any, Any, Any]]
    targets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in options and texts."""
        return self.path + self.label

    @property
    def keys(self) -> StateKeys:
        """The fields that its function reads and returns, as far as its code names them."""
        found = read_keys(self.runnable)
        return StateKeys(*(tuple(key for key in keys if key in self.channels) for keys in found))


class Findings:
    """The problems and notes of one conversion, in the order in which they were found.

    The converter reports everything here and goes on, so that a user sees all problems at once.

    Attributes:
        problems: why the graph cannot be converted, each as `what: why; what to do`.
        notes: what the conversion has inferred or left out.
        nodes: the nodes that a run may reach, those of graphs that are nodes included.
        value_types: what values may be, of all fields and of all graphs inside.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.nodes: list[FoundNode] = []
        self.value_types: list[Any] = []

    def problem(self, text: str) -> None:
        """Add a problem, unless it is known."""
        if text not in self.problems:
            self.problems.append(text)

    def note(self, text: str) -> None:
        """Add a note, unless it is known."""
        if text not in self.notes:
            self.notes.append(text)
