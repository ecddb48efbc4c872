"""Tables of texts, as lines and as HTML: columns of names are aligned left, all others right."""

from __future__ import annotations

import html
from collections.abc import Container, Iterable, Sequence
from typing import Final

_CELL: Final = "padding:.3em .8em;border-bottom:1px solid #8884;white-space:nowrap;text-align:"
_ALARM: Final = ";color:#c0392b;font-weight:600"


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


def table_html(
    head: Sequence[str], rows: Sequence[Sequence[str]], remarks: Iterable[str], alarms: Container[tuple[int, int]] = ()
) -> str:
    """A table for a notebook, with remarks below; the cells of `alarms`, given as (row, column), are red."""

    def line(tag: str, cells: Sequence[str], row: int) -> str:
        return "".join(
            f'<{tag} style="{_CELL}{"right" if column else "left"}{_ALARM if (row, column) in alarms else ""}">'
            f"{html.escape(cell)}</{tag}>"
            for column, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', cells, row)}</tr>" for row, cells in enumerate(rows))
    listed = "".join(f"<li>{html.escape(remark)}</li>" for remark in remarks)
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-variant-numeric:tabular-nums">'
        f"<thead><tr>{line('th', head, -1)}</tr></thead><tbody>{body}</tbody></table></div>"
        + (f'<ul style="font-size:90%">{listed}</ul>' if listed else "")
    )


class ShownTable:
    """Figures that are a table as text, and in a notebook."""

    def shown(self) -> tuple[list[str], list[list[str]], list[str]]:
        """The lines above the table, its rows with the head, and the lines below."""
        raise NotImplementedError

    def __str__(self) -> str:
        above, rows, below = self.shown()
        return "\n".join([*above, *table_lines(rows), *below])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        above, (head, *rows), below = self.shown()
        return table_html(head, rows, [*above, *below])
