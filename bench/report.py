"""Figures and tables of a run."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from statistics import median

from bench.machine import describe, spread

NO = "**no**"
FLOORS = ("plain Python", "dict copy", "by hand")  # they do less than any library, so no library is compared with them
SCALE = {"µs": 1e6, "ms": 1e3, "KiB": 1 / 1024, "MiB": 1 / 1024**2, "×": 1.0, "steps": 1.0}


@dataclass
class Cell:
    """What one library measured in a row, or why it did not. Values are seconds or bytes."""

    values: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def middle(self) -> float:
        """The median of the values."""
        return median(self.values)


@dataclass
class Measured:
    """A row with its cells by column, dspyer's first."""

    title: str
    unit: str
    goal: float | None
    against: str
    cells: dict[str, Cell]

    def ratio(self, column: str) -> float | None:
        """How many times dspyer's figure a column has: the median of the rounds' ratios, taken round by round."""
        ours, theirs = self.cells.get("dspyer"), self.cells.get(column)
        if column == "dspyer" or not ours or not theirs or not ours.values or not theirs.values:
            return None
        return median(b / a if a > 0 else float("inf") for a, b in zip(ours.values, theirs.values, strict=False))

    def verdict(self) -> str:
        """The goal, and whether dspyer met it."""
        if self.goal is None:
            return "–"
        if self.against:
            ratio = self.ratio(self.against)
            if self.goal < 1:
                text = f"≥ {1 / self.goal:g} × as fast as {self.against}"
                return f"{text}: {ratio:.2f}, {word(ratio >= 1 / self.goal)}" if ratio else text
            text = f"≤ {self.goal:g} × {self.against}"
            return f"{text}: {1 / ratio:.2f}, {word(1 / ratio <= self.goal)}" if ratio else text
        text = f"≤ {self.goal:g} {self.unit}"
        ours = self.cells.get("dspyer")
        if not ours or not ours.values:
            return text
        return f"{text}: {word(ours.middle * SCALE[self.unit] <= self.goal)}"

    def shortfall(self) -> str:
        """Goal and figure, where dspyer missed the goal; else empty."""
        if NO not in self.verdict():
            return ""
        ratio = self.ratio(self.against)
        if self.against and ratio and self.goal is not None and self.goal < 1:
            return f"{ratio:.2f} × as fast as {self.against}, goal {1 / self.goal:g}"
        if self.against and ratio:
            return f"{1 / ratio:.2f} × {self.against}, goal {self.goal:g}"
        figure = number(self.cells["dspyer"].middle * SCALE[self.unit])
        return f"{figure} {self.unit}, goal {self.goal:g}"


@dataclass
class Report:
    """A whole run."""

    tables: list[tuple[str, str, list[Measured]]] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    machine: str = field(default_factory=describe)
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).date().isoformat())


def word(met: bool) -> str:
    """Yes or no."""
    return "yes" if met else NO


def number(value: float) -> str:
    """Three significant figures, no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell_text(row: Measured, column: str) -> str:
    """A cell: figure, spread, ratio."""
    cell = row.cells.get(column)
    if cell is None:
        return ""
    if cell.problem:
        return cell.problem if cell.problem.startswith("–") else f"failed: {cell.problem}"
    if not cell.values:
        return ""
    text = f"{number(cell.middle * SCALE[row.unit])} ± {spread(cell.values):.0%}"
    ratio = row.ratio(column)
    return text if ratio is None else f"{text} ({number(ratio)}×)"


def columns(rows: list[Measured]) -> list[str]:
    """The columns of a table, in the order in which the rows name them."""
    return list(dict.fromkeys(column for row in rows for column in row.cells))


def grid(rows: list[Measured]) -> list[list[str]]:
    """A table as texts, the heading first."""
    names = columns(rows)
    lines = [["work", "unit", *names, "goal"]]
    lines.extend([row.title, row.unit, *(cell_text(row, name) for name in names), row.verdict()] for row in rows)
    return lines


def short_grid(rows: list[Measured]) -> list[list[str]]:
    """A table that fits on a phone, the heading first: dspyer's figure, LangGraph's, and that of a faster library."""
    lines = [["work", "dspyer", "others"]]
    for row in rows:
        measured = [name for name in row.cells if row.ratio(name) is not None and name not in FLOORS[:2]]
        best = min(measured, key=lambda name: row.ratio(name) or 0.0, default=None)
        first = next((name for name in (row.against, "LangGraph") if name in measured), best)
        shown = list(dict.fromkeys(name for name in (first, best) if name is not None))
        others = "<br>".join(f"{name} {figure(row, name)}" for name in shown)
        lines.append([row.title, figure(row, "dspyer"), others or "–"])
    return lines


def figure(row: Measured, column: str) -> str:
    """A figure with its unit and noise, and in brackets how many times dspyer's it is; or why there is none."""
    cell = row.cells.get(column)
    if cell is None or not cell.values:
        return cell.problem if cell is not None and cell.problem else "–"
    text = f"{number(cell.middle * SCALE[row.unit])} {row.unit} ± {spread(cell.values):.0%}"
    ratio = row.ratio(column)
    return text if ratio is None else f"{text} ({number(ratio)}×)"


def all_figures(report: Report) -> str:
    """Every figure, row by row, as a list."""
    lines = ["## All figures"]
    for name, _, rows in report.tables:
        lines.append(f"### {name}")
        lines.append(
            "\n".join(f"- {row.title}: {', '.join(f'{of} {figure(row, of)}' for of in row.cells)}" for row in rows)
        )
    return "\n\n".join(lines)


def markdown(lines: list[list[str]]) -> str:
    """A table in Markdown, padded so that it reads as text too."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def circumstances(report: Report) -> str:
    """Machine, versions and noise."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    noise = spread(report.noise)
    return (
        f"{report.date}. {report.machine}. {versions}.\n"
        f"{report.rounds} rounds, all libraries of a row in turn. Noise: a fixed loop of pure Python took "
        f"{number(median(report.noise) * 1e3) if report.noise else '?'} ms ± {noise:.0%} "
        f"(slowest {number(max(report.noise, default=0) * 1e3)} ms) between the measurements."
    )


def as_text(report: Report) -> str:
    """The whole report for a terminal."""
    parts = [circumstances(report)]
    for name, about, rows in report.tables:
        parts.append(f"## {name}\n\n{about}\n\n{markdown(grid(rows))}")
    return "\n\n".join([*parts, missed(report)])


PAGE = """\
Each library runs in a process of its own, all libraries of a row in turn, round by round; in one process where the
section says so. A cell has the median of the rounds ± half the distance of their quartiles, and in brackets the
figure as a multiple of dspyer's (the median of the ratios of each round). Lower is better everywhere. The tables show
LangGraph, and the fastest other library where that is another one.

{circumstances}

The workloads are in `bench/peers/`, one module for each library, and every workload checks its result.
The time of a loop starts when its first node starts, so only the rows of a whole call include reading the inputs.
LangGraph's state has one channel for each key, as is usual there; with "keys in one field" all keys but one are in
a dictionary in one channel, which no node touches. pydantic-graph changes its state in place and keeps no versions.
In Burr, each branch is an application of its own. Libraries that copy the state do fewer steps and keep fewer versions
where a thousand would take minutes or gigabytes: `bench/rows.py` lists every size.

{tables}

{faster}

{figures}
"""


def missed(report: Report) -> str:
    """The goals that a run missed, for those who work on dspyer."""
    rows = [row for _, _, rows in report.tables for row in rows]
    lines = [f"- {row.title}: {row.shortfall()}" for row in rows if row.shortfall()]
    return "Goals that this run missed:\n\n" + "\n".join(lines) if lines else "Every goal was met."


def faster(report: Report) -> str:
    """What a reader should not have to look for: who was faster."""
    found = []
    for row in (row for _, _, rows in report.tables for row in rows):
        ratios = {name: row.ratio(name) for name in row.cells if name not in FLOORS}
        names = [f"{name} ({number(ratio)}×)" for name, ratio in ratios.items() if ratio is not None and ratio < 1]
        if names:
            found.append(f"- {row.title}: {', '.join(names)}")
    return "## Libraries that were faster\n\n" + ("\n".join(found) or "None was.")


BEFORE = "\n## Libraries that were faster"  # sections that another bench measures come before it


def section_of(page: str, title: str) -> str:
    """A section of a file with its heading, empty if it has none."""
    _, found, rest = page.partition(f"\n## {title}\n")
    body, _, _ = rest.partition("\n## ")
    return f"## {title}\n{body.rstrip()}\n" if found else ""


def put_section(page: str, section: str) -> str:
    """The file with a section; one with the same title is replaced."""
    if not section:
        return page
    old = section_of(page, section.partition("\n")[0].removeprefix("## "))
    rest = page.replace(f"\n{old}", "", 1) if old else page
    return rest.replace(BEFORE, f"\n{section}{BEFORE}", 1)


def as_results(report: Report) -> str:
    """The tables of `bench/results.md`, which the page of benchmarks includes."""
    parts = [f"## {name}\n\n{about}\n\n{markdown(short_grid(rows))}" for name, about, rows in report.tables]
    return PAGE.format(
        circumstances=circumstances(report),
        tables="\n\n".join(parts),
        faster=faster(report),
        figures=all_figures(report),
    )
