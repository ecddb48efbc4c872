"""SVG building blocks of pictures: escaped text and its width, paths, and the document with its colours.

A picture is a card with its own background, so that it is readable on any page, and follows the light or dark setting
of the reader. It loads nothing from elsewhere. All style rules are scoped to the picture, because a notebook inserts it
into a page as it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape as escape_html
from itertools import pairwise

Coordinates = tuple[float, float]

FONT_SIZE = 13.5
SMALL = 11.5  # for labels and details
CORNER = 9.0

_COLOURS = {  # class: (fill, stroke) by day, by night
    "ground": (("#ffffff", "#e3e6ee"), ("#1c1f29", "#333847")),
    "mask": (("#ffffff", "none"), ("#1c1f29", "none")),
    "function": (("#f5f6fb", "#8a93ab"), ("#272b38", "#77819c")),
    "module": (("#e7f1ff", "#3f7fd6"), ("#1b2d47", "#5b9bf0")),
    "subgraph": (("#f3ebff", "#8457c9"), ("#33254b", "#ab85e8")),
    "map": (("#fff1e2", "#d98324"), ("#40301c", "#e9a254")),
    "interrupt": (("#dff5f4", "#1f8f8b"), ("#14393a", "#45bdb8")),
    "tool": (("#e9f7ec", "#3f9b57"), ("#1d3626", "#62bf7c")),
    "check": (("#fff5d1", "#b08400"), ("#3d3413", "#dcb23c")),
    "end": (("#e9ebf2", "#8a93ab"), ("#333847", "#77819c")),
    "failed": (("#ffe9e7", "#cf3d30"), ("#4a2320", "#f0776b")),
    "line": (("none", "#6b7389"), ("none", "#97a0b8")),
    "tip": (("#6b7389", "none"), ("#97a0b8", "none")),
}
_TEXTS = {  # class: colour by day, by night
    "name": ("#1f2430", "#e6e8ef"),
    "quiet": ("#5d667a", "#a3acc0"),
}
_FONTS = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'
_RULES = (
    f".dspyer text {{ font-family: {_FONTS}; font-size: {FONT_SIZE}px; font-weight: 600; stroke: none }}",
    f".dspyer text.small {{ font-size: {SMALL}px; font-weight: 400 }}",
    ".dspyer .frame { stroke-width: 1.2 }",
    ".dspyer .head { stroke-width: 3 }",
    ".dspyer .line { stroke-width: 1.5 }",
    ".dspyer .back { stroke-dasharray: 5 4 }",
    ".dspyer .error { stroke-dasharray: 2 3 }",
    ".dspyer .taken { stroke-width: 3 }",
    ".dspyer .idle { opacity: 0.45 }",
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]+")


def escape(text: str) -> str:
    """A text escaped for SVG content and attributes; characters that XML forbids become spaces.

    Example:
        >>> escape('a < "b"')
        'a &lt; &quot;b&quot;'
    """
    return escape_html(_CONTROL.sub(" ", text))


def shorten(text: str, limit: int) -> str:
    """A text on one line, cut to `limit` characters.

    Example:
        >>> shorten("a long way home", 8)
        'a long …'
    """
    line = " ".join(_CONTROL.sub(" ", text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """The estimated width of a text in pixels. The font of the reader is unknown, so a wide one is assumed."""
    return size * sum(_width(character) for character in text)


def _width(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    if character in "ijlI.,:;'|!()[] ":
        return 0.38
    if character in "mwMW@%—":
        return 0.95
    return 0.72 if character.isupper() else 0.63


def fmt(value: float) -> str:
    """A length as SVG text, with one decimal at most.

    Example:
        >>> fmt(12.0), fmt(12.34)
        ('12', '12.3')
    """
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")  # adding 0.0 turns -0.0 into 0.0


def draw_text(x: float, y: float, words: str, kind: str = "name", anchor: str = "middle") -> str:
    """A line of text whose vertical middle is `y`."""
    classes = kind if kind == "name" else f"{kind} small"
    dy = (FONT_SIZE if kind == "name" else SMALL) * 0.35
    return f'<text x="{fmt(x)}" y="{fmt(y + dy)}" class="{classes}" text-anchor="{anchor}">{escape(words)}</text>'


def document(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """A whole SVG document of `parts` in drawing order, sized in pixels; `title` describes it for screen readers."""
    w, h = fmt(width), fmt(height)
    body = "\n".join(f"  {part}" for part in parts)
    # A page with several pictures has this id several times: they are all the same, so it may take any.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" class="dspyer" '
        f'role="img" aria-label="{escape(title)}">\n'
        f"  <title>{escape(title)}</title>\n"
        f"  <style>\n{_style()}\n  </style>\n"
        '  <defs><marker id="dspyer-tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.5 L8 4 L0 7.5 z" class="tip"/></marker></defs>\n'
        f'  <rect x="0.5" y="0.5" width="{fmt(width - 1)}" height="{fmt(height - 1)}" rx="10" class="ground"/>\n'
        f"{body}\n</svg>\n"
    )


def _style() -> str:
    day = [f".dspyer .{name} {{ fill: {fill}; stroke: {stroke} }}" for name, ((fill, stroke), _) in _COLOURS.items()]
    day += [f".dspyer text.{name} {{ fill: {colour} }}" for name, (colour, _) in _TEXTS.items()]
    night = [f".dspyer .{name} {{ fill: {fill}; stroke: {stroke} }}" for name, (_, (fill, stroke)) in _COLOURS.items()]
    night += [f".dspyer text.{name} {{ fill: {colour} }}" for name, (_, colour) in _TEXTS.items()]
    # Those of the night come last: they weigh as much as those of the day, and the last one counts.
    lines = [f"    {rule}" for rule in (*_RULES, *day)]
    lines += ["    @media (prefers-color-scheme: dark) {", *(f"      {rule}" for rule in night), "    }"]
    return "\n".join(lines)


def curve(points: Sequence[Coordinates]) -> str:
    """A smooth SVG path downwards, which passes all its points straight down."""
    path = [f"M{fmt(points[0][0])} {fmt(points[0][1])}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        path.append(f"V{fmt(y1)}" if x0 == x1 else "C" + " ".join(map(fmt, (x0, middle, x1, middle, x1, y1))))
    return " ".join(path)


def angular(points: Sequence[Coordinates]) -> str:
    """An SVG path of vertical and horizontal lines with round corners.

    Example:
        >>> angular([(0, 0), (40, 0), (40, 40)])
        'M0 0 L31 0 Q40 0 40 9 L40 40'
    """
    path = [f"M{fmt(points[0][0])} {fmt(points[0][1])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        into, out = _towards(corner, before), _towards(corner, after)
        path.append(f"L{fmt(into[0])} {fmt(into[1])}")
        path.append(f"Q{fmt(corner[0])} {fmt(corner[1])} {fmt(out[0])} {fmt(out[1])}")
    path.append(f"L{fmt(points[-1][0])} {fmt(points[-1][1])}")
    return " ".join(path)


def _towards(corner: Coordinates, other: Coordinates) -> Coordinates:
    (x, y), (u, v) = corner, other
    far = abs(u - x) + abs(v - y)
    part = min(CORNER, far / 2) / far if far else 0.0
    return x + (u - x) * part, y + (v - y) * part
