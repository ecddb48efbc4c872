"""`Conversations`: what a program does with its conversations besides keeping them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import NoReturn

from dspyer.errors import GraphError
from dspyer.layers.layer import Layer, RunView
from dspyer.values.scalars import is_whole_number


@dataclass(frozen=True, slots=True)
class Conversations(Layer):
    """Warns of the end of a run in its conversations, and shortens demos: `compile(layers=[Conversations(...)])`.

    Args:
        warn_at: the number of remaining steps from which on module nodes of a conversation are warned: the instructions
            of the call say so, and a user message with the same text comes before the node's turn. None for never.
        max_demo_turns: how many turns of a `dspy.History` a demo shows, the last ones; None for all. It holds for
            graphs inside too, unless they have a number of their own.

    Raises:
        GraphError: for a number that is no whole number of at least 1.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("answer", dspy.Predict(
        ...     "question -> answer")).add_path(START, "answer", END)
        >>> program = graph.compile(layers=[Conversations(max_demo_turns=2)])
    """

    # By keyword alone: two numbers of one type would be mixed up without an error.
    _: KW_ONLY
    warn_at: int | None = None
    max_demo_turns: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("warn_at", self.warn_at), ("max_demo_turns", self.max_demo_turns)):
            if limit is not None and (not is_whole_number(limit) or limit < 1):
                raise GraphError(f"{name}={limit!r}: it must be a whole number of at least 1")

    def of(self, run: RunView) -> NoReturn:
        """Refuses to be around anything else than a whole graph, whose predictors it prepares when that is compiled."""
        raise GraphError(f"Conversations was given to a node or a call of {run.graph.name!r}: give it to compile")
