"""What a run has sent to its nodes, in tokens, against what it would have sent without views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.scheduler.provenance import FieldPart, unattributed_parts
from dspyer.views import label, tokens_of_parts

Count = Callable[[str], int]
KNOWN = 1024  # values whose sizes are known at once


class Read(NamedTuple):
    """What a node has got as one of its inputs at one visit.

    Attributes:
        node: the node.
        name: what the node calls it.
        view: the view; None for the whole field.
        sent: the tokens that it got.
        full: the tokens that the whole field would have been.
    """

    node: str
    name: str
    view: str | None
    sent: int
    full: int


class TokenRow(NamedTuple):
    """What one node got as one of its inputs.

    Attributes:
        node: the node.
        name: what the node calls it.
        view: the view; None for the whole field.
        visits: how often it got it.
        sent: the tokens that it got.
        full: the tokens that the whole field would have been.
    """

    node: str
    name: str
    view: str | None
    visits: int
    sent: int
    full: int


class Tokens:
    """What the nodes of a run got, in tokens. As text it is a table.

    Attributes:
        rows: one for each input of each node.
        sent: the tokens of all inputs as they were sent.
        full: the tokens of all inputs if each had been sent whole.
        cached: input tokens that providers say they had cached, by language model: what a whole history costs less
            there than it seems. Empty if none says so.
        counted: `"by estimate"` or `"by tokenizer"`.
    """

    def __init__(self, rows: Iterable[TokenRow], cached: Mapping[str, int], counted: str) -> None:
        self.rows = tuple(rows)
        self.sent = sum([row.sent for row in self.rows])
        self.full = sum([row.full for row in self.rows])
        self.cached = dict(cached)
        self.counted = counted

    def __str__(self) -> str:
        head = ("node", "input", "visits", "sent", "full", "")
        table = [head, *[self._cells(row) for row in self.rows]]
        total = ("all", "", "", f"{self.sent:,}", f"{self.full:,}", _share(self.sent, self.full))
        table.append(total)
        widths = [max(len(cells[place]) for cells in table) for place in range(len(head))]
        lines = ["  ".join(map(_aligned, range(len(head)), cells, widths)).rstrip() for cells in table]
        lines += [f"cached by the provider: {count:,} input tokens of {name}" for name, count in self.cached.items()]
        return "\n".join([*lines, f"counted {self.counted}"])

    __repr__ = __str__

    @staticmethod
    def _cells(row: TokenRow) -> tuple[str, ...]:
        name = label(row.name)
        what = name if row.view is None else f"{name} = {row.view}"
        return row.node, what, str(row.visits), f"{row.sent:,}", f"{row.full:,}", _share(row.sent, row.full)


def _aligned(place: int, cell: str, width: int) -> str:
    return cell.ljust(width) if place < 2 else cell.rjust(width)


def _share(sent: int, full: int) -> str:
    return f"{100 * sent / full:.1f} %" if full else ""


def count_tokens(
    nodes: Iterable[str], reads: Iterable[Read], usage: Mapping[str, Mapping[str, Any]], counted: str
) -> Tokens:
    """Counts what nodes have got.

    Args:
        nodes: the nodes, in the order in which they are listed.
        reads: what they have got.
        usage: tokens by language model, as providers report them.
        counted: how tokens were counted.
    """
    found: dict[tuple[str, str, str | None], list[int]] = {}
    for node, name, view, sent, full in reads:
        tally = found.setdefault((node, name, view), [0, 0, 0])
        tally[0] += 1
        tally[1] += sent
        tally[2] += full
    rows = [TokenRow(*key, *tally) for key, tally in found.items()]
    order = {name: number for number, name in enumerate(nodes)}
    rows.sort(key=lambda row: order[row.node])
    return Tokens(rows, _cached(usage), counted)


class Sizes:
    """The sizes of values, those of the last ones known at once.

    Args:
        count: counts the tokens of a text.
    """

    def __init__(self, count: Count) -> None:
        self._count = count
        self._last: dict[int, tuple[Any, int]] = {}

    def part(self, kind: str, part: FieldPart) -> int:
        """The tokens of a part."""
        return tokens_of_parts(kind, (part,), self._count)

    def parts(self, kind: str, parts: Sequence[FieldPart]) -> int:
        """The tokens of some parts."""
        return tokens_of_parts(kind, parts, self._count)

    def whole(self, value: Any) -> int:
        """The tokens of a whole frozen value."""
        known = self._last.get(id(value))
        if known is None:
            if len(self._last) >= KNOWN:
                self._last.clear()
            kind, parts = unattributed_parts(value)
            known = self._last[id(value)] = value, self.parts(kind, parts)
        return known[1]


def _cached(usage: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Input tokens that providers had cached, in the words of the large ones."""
    found: dict[str, int] = {}
    for name, tokens in usage.items():
        details = tokens.get("prompt_tokens_details")
        given = details.get("cached_tokens") if isinstance(details, Mapping) else None
        cached = given or tokens.get("cache_read_input_tokens")
        if isinstance(cached, int) and cached:
            found[name] = cached
    return found
