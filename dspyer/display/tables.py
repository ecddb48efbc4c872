"""Tables of texts: columns of names are aligned left, all others right."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import ClassVar


def table_lines(rows: Sequence[Sequence[str]], names: int = 1) -> list[str]:
    """The rows, the head among them, as lines; `names` is the number of columns that are left-aligned.

    Example:
        >>> table_lines([["node", "calls"], ["write", "7"]])
        ['node   calls', 'write      7']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place >= names else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in rows
    ]


class ShownTable:
    """Figures that are a table as text, and in a notebook; `names` columns are aligned left."""

    names: ClassVar[int] = 1

    def shown(self) -> tuple[list[str], list[list[str]], list[str]]:
        """The lines above the table, its rows with the head, and the lines below."""
        raise NotImplementedError

    def __str__(self) -> str:
        above, rows, below = self.shown()
        return "\n".join([*above, *table_lines(rows, self.names), *below])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
