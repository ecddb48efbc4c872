"""The fields of a run over time: one lane for each field, as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple

from dspyer.display.run_rows import write_text
from dspyer.display.svg import document, draw_text, escape, fmt, shorten, text_width
from dspyer.events import Commit
from dspyer.patch import update_size
from dspyer.views import label

WIDE = 80  # commits in one block of the terminal
LANES_MARGIN = 24.0
LANE = 40.0  # between two fields
STEP = 26.0  # between two commits
LANES_TOP = 52.0
HUES = ("module", "map", "join", "subgraph", "interrupt", "function")


class FieldWrite(NamedTuple):
    """One write to a field.

    Attributes:
        field: the field.
        author: the node; `"START"` for the inputs and the defaults.
        commit: the id of the commit.
        text: what was written, in short.
        size: bytes of its JSON form.
    """

    field: str
    author: str
    commit: str
    text: str
    size: int


class Lanes:
    """The fields of a run over time: as text one line per field with a letter for each write, then totals.

    A notebook shows it as a picture whose dots grow with the size of the writes.

    Attributes:
        commits: the commits, in order.
        fields: the fields that they wrote, in the order of the first writes.
        authors: the nodes that wrote, in the order of the first writes.
        writes: each write, in the order of the commits.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
        >>> print(graph.compile().run({"n": 1}).lanes())
           0
        n  Sa  2 x, 2 bytes, last: 2
        <BLANKLINE>
        S START, a add
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = tuple(commits)
        self.fields = tuple(dict.fromkeys(field for commit in self.commits for field in commit.patch))
        writers = [commit.node for commit in self.commits if commit.patch]
        self.authors = tuple(dict.fromkeys(writers))
        self.writes = tuple(
            [
                FieldWrite(field, commit.node, commit.id, shorten(write_text(update), 40), update_size(update))
                for commit in self.commits
                for field, update in commit.patch.items()
            ]
        )

    def __str__(self) -> str:
        letters = _letters(self.authors)
        width = max([len(shorten(label(field), 24)) for field in self.fields], default=0) + 2
        sums = self._sums()
        blocks = []
        for start in range(0, max(len(self.commits), 1), WIDE):
            block = self.commits[start : start + WIDE]
            ruler = "".join(str(place).ljust(10) for place in range(start, start + len(block), 10))
            lines = [" " * width + ruler[: max(len(block), len(str(start)))].rstrip()]
            for field in self.fields:
                marks = "".join(letters[commit.node] if field in commit.patch else "." for commit in block)
                total = f"  {sums[field]}" if start + WIDE >= len(self.commits) else ""
                lines.append(shorten(label(field), 24).ljust(width) + marks + total)
            blocks.append("\n".join(lines))
        legend = ", ".join(f"{letter} {author}" for author, letter in letters.items())
        return "\n\n".join([*blocks, legend])

    __repr__ = __str__

    def _sums(self) -> dict[str, str]:
        """By field, the number of writes, their bytes, and the last one."""
        counts = dict.fromkeys(self.fields, 0)
        sizes = dict.fromkeys(self.fields, 0)
        last = dict.fromkeys(self.fields, "")
        for one in self.writes:
            counts[one.field] += 1
            sizes[one.field] += one.size
            last[one.field] = one.text
        return {field: f"{counts[field]} x, {sizes[field]:,} bytes, last: {last[field]}" for field in self.fields}

    def to_svg(self) -> str:
        """The lanes as a picture: a self-contained SVG document.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).lanes().to_svg()[:4]
            '<svg'
        """
        hues = {author: HUES[place % len(HUES)] for place, author in enumerate(self.authors)}
        left = LANES_MARGIN + max([text_width(shorten(field, 24)) for field in self.fields], default=0.0) + 20
        right = left + STEP * max(len(self.commits) - 1, 0)
        parts = self._legend(left, hues)
        found = {(one.field, one.commit): one for one in self.writes}
        for row, field in enumerate(self.fields):
            y = LANES_TOP + LANE * row
            parts.append(draw_text(LANES_MARGIN, y, shorten(field, 24), anchor="start"))
            parts.append(f'<path d="M{fmt(left)} {fmt(y)} H{fmt(right)}" class="line"/>')
            for place, commit in enumerate(self.commits):
                if field in commit.patch:
                    one = found[field, commit.id]
                    what = f"{commit.node} wrote {field} (commit {commit.id}): {one.text}, {one.size:,} bytes"
                    title, x, r = escape(what), left + STEP * place, min(11.0, 5.0 + log10(max(one.size, 1)))
                    dot = f'<circle cx="{fmt(x)}" cy="{fmt(y)}" r="{fmt(r)}" class="{hues[commit.node]} frame"/>'
                    parts.append(f"<g><title>{title}</title>{dot}</g>")
        height = LANES_TOP + LANE * max(len(self.fields) - 1, 0) + LANE
        legend = left + sum([text_width(author) + 34 for author in self.authors])
        return document("fields over time", max(right, legend) + LANES_MARGIN, height, parts)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    @staticmethod
    def _legend(x: float, hues: Mapping[str, str]) -> list[str]:
        parts = []
        for author, hue in hues.items():
            parts.append(f'<circle cx="{fmt(x)}" cy="22" r="6" class="{hue} frame"/>')
            parts.append(draw_text(x + 12, 22, author, anchor="start"))
            x += text_width(author) + 34
        return parts


def _letters(authors: Sequence[str]) -> dict[str, str]:
    """A letter for each author: the first one of its name that is free, then any free one, then `*`."""
    found: dict[str, str] = {}
    for author in authors:
        own = [letter for letter in author if letter.isalnum()]
        wanted = (*own, *ascii_lowercase, *ascii_uppercase)
        found[author] = next((letter for letter in wanted if letter not in found.values()), "*")
    return found
