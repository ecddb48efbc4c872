"""The tokens that a run sent to its nodes, compared with what it would have sent without views: `run.view_tokens()`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dspyer.display.tables import ShownTable
from dspyer.extend import label


class TokenRow(NamedTuple):
    """One input of a node, summed over its visits.

    Attributes:
        node: the node.
        name: the node's name for the input.
        view: the view; None for the whole field.
        visits: how often it was sent.
        sent: the tokens that were sent.
        full: the tokens of the whole field.
    """

    node: str
    name: str
    view: str | None
    visits: int
    sent: int
    full: int


class Tokens(ShownTable):
    """The tokens that the nodes of a run got. As text it is a table.

    Attributes:
        rows: one for each input of each node.
        sent: the tokens of all inputs as they were sent.
        full: the tokens of all inputs if each had been sent whole.
        cached: input tokens that providers report as cached, by language model: a long history costs less there than
            its tokens suggest. Empty if none reports any.
        counted: `"by estimate"` or `"by tokenizer"`.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
        ...     writes=["n"]).add_path(START, "add", END)
        >>> print(graph.compile().run({"n": 1}).view_tokens())
        node  input  visits  sent  full
        add   n           1     1     1  100.0 %
        all                     1     1  100.0 %
        counted by estimate
    """

    names = 2

    def __init__(self, rows: Iterable[TokenRow], cached: Mapping[str, int], counted: str) -> None:
        self.rows = tuple(rows)
        self.sent = sum([row.sent for row in self.rows])
        self.full = sum([row.full for row in self.rows])
        self.cached = dict(cached)
        self.counted = counted

    def shown(self) -> tuple[list[str], list[list[str]], list[str]]:
        """The rows with their sum, and how they were counted."""
        rows = [["node", "input", "visits", "sent", "full", ""], *map(self._cells, self.rows)]
        rows.append(["all", "", "", f"{self.sent:,}", f"{self.full:,}", _share(self.sent, self.full)])
        lines = [f"cached by the provider: {count:,} input tokens of {name}" for name, count in self.cached.items()]
        return [], rows, [*lines, f"counted {self.counted}"]

    @staticmethod
    def _cells(row: TokenRow) -> list[str]:
        name = label(row.name)
        what = name if row.view is None else f"{name} = {row.view}"
        return [row.node, what, str(row.visits), f"{row.sent:,}", f"{row.full:,}", _share(row.sent, row.full)]


def _share(sent: int, full: int) -> str:
    return f"{100 * sent / full:.1f} %" if full else ""


def count_tokens(
    nodes: Iterable[str],
    reads: Iterable[tuple[str, str, str | None, int, int]],
    usage: Mapping[str, Mapping[str, Any]],
    counted: str,
) -> Tokens:
    """Sums up the reads of nodes: node, its name for the input, view, tokens sent, tokens of the whole field.

    `nodes` are in the order of the table, `usage` has the tokens by language model as providers report them, `counted`
    says how tokens were counted.
    """
    found: dict[tuple[str, str, str | None], list[int]] = {}
    for node, name, view, sent, full in reads:
        sums = found.setdefault((node, name, view), [0, 0, 0])
        sums[0] += 1
        sums[1] += sent
        sums[2] += full
    rows = [TokenRow(*key, *sums) for key, sums in found.items()]
    # In the order of the graph: that of the reads depends on which branch was faster.
    order = {name: number for number, name in enumerate(nodes)}
    rows.sort(key=lambda row: order[row.node])
    return Tokens(rows, _cached(usage), counted)


def total_of(tokens: Mapping[str, Any]) -> int:
    """The tokens of one language model."""
    total = tokens.get("total_tokens")
    return total if isinstance(total, int) else 0


def _cached(usage: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """By language model, the cached input tokens that providers report, by the names that OpenAI and Anthropic use."""
    found: dict[str, int] = {}
    for name, tokens in usage.items():
        details = tokens.get("prompt_tokens_details")
        given = details.get("cached_tokens") if isinstance(details, Mapping) else None
        cached = given or tokens.get("cache_read_input_tokens")
        if isinstance(cached, int) and cached:
            found[name] = cached
    return found
