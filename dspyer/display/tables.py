"""Tables of texts, as lines and as HTML: columns of names are aligned left, all others right."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import ClassVar, Final

_CELL: Final = "padding:.3em .8em;border-bottom:1px solid #8884;white-space:nowrap;text-align:"


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
        above, rows, below = self.shown()
        lines = [
            "".join(
                f'<{"td" if number else "th"} style="{_CELL}{"right" if place >= self.names else "left"}">'
                f"{html.escape(cell)}</{'td' if number else 'th'}>"
                for place, cell in enumerate(cells)
            )
            for number, cells in enumerate(rows)
        ]
        remarks = "".join(f"<li>{html.escape(remark)}</li>" for remark in [*above, *below])
        return (
            '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-variant-numeric:tabular-nums">'
            f"{''.join(f'<tr>{line}</tr>' for line in lines)}</table></div>"
            + (f'<ul style="font-size:90%">{remarks}</ul>' if remarks else "")
        )
