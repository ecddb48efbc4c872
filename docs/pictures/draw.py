"""Draws the pictures of the documentation: `python docs/pictures/draw.py` writes docs/img/*.svg.

Each picture is a card with a ground of its own, so that it is readable on any page, and follows the reader's light or
dark setting.
"""

from __future__ import annotations

import contextlib
import io
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from dspyer.display.progress import RunningRuns
from dspyer.display.progress_screen import Board
from dspyer.events import (
    AttemptFailed,
    Commit,
    Committed,
    Doing,
    ItemFinished,
    ItemStarted,
    NodeStarted,
    RunStarted,
)

OUT = Path(__file__).parent.parent / "img"

STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 14px; fill: #1f2430 }
  .code { font-family: ui-monospace, "SFMono-Regular", Menlo, "DejaVu Sans Mono", monospace; font-size: 12.5px }
  .small { font-size: 12px }
  .title { font-weight: 600 }
  .quiet { fill: #667085 }
  .ground { fill: #ffffff; stroke: #e3e6ee }
  .box { fill: #f5f6fb; stroke: #aab1c6; stroke-width: 1.2 }
  .left { fill: #e7f1ff; stroke: #3f7fd6; stroke-width: 1.2 }
  .right { fill: #fff1e2; stroke: #d98324; stroke-width: 1.2 }
  .join { fill: #e9f7ec; stroke: #3f9b57; stroke-width: 1.2 }
  .band { fill: #f8f9fd; stroke: #e3e6ee }
  .line { fill: none; stroke: #6b7389; stroke-width: 1.6 }
  .line.l { stroke: #3f7fd6 } .line.r { stroke: #d98324 } .line.j { stroke: #3f9b57 }
  .back { stroke-dasharray: 5 4 }
  .head { fill: #6b7389 }
  .tl { fill: #2160b5 } .tr { fill: #a85c0a } .tj { fill: #2c7a42 }
  .gone { text-decoration: line-through; fill: #98a0b3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e8ef }
    .quiet { fill: #9aa3b8 }
    .ground { fill: #1c1f29; stroke: #333847 }
    .box { fill: #272b38; stroke: #5b647d }
    .left { fill: #1b2d47; stroke: #5b9bf0 }
    .right { fill: #40301c; stroke: #e9a254 }
    .join { fill: #1d3626; stroke: #62bf7c }
    .band { fill: #222632; stroke: #333847 }
    .line { stroke: #97a0b8 }
    .line.l { stroke: #5b9bf0 } .line.r { stroke: #e9a254 } .line.j { stroke: #62bf7c }
    .head { fill: #97a0b8 }
    .tl { fill: #8dbcff } .tr { fill: #f2ba7c } .tj { fill: #86d79c }
    .gone { fill: #6f7890 }
  }
"""


class Picture:
    """One SVG file: shapes are added in drawing order."""

    def __init__(self, name: str, width: int, height: int, title: str) -> None:
        self.name, self.width, self.height, self.title = name, width, height, title
        self.parts: list[str] = []

    def add(self, part: str) -> None:
        self.parts.append(part)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        self.add(
            f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}" xml:space="preserve">{escape(words)}</text>'
        )

    def box(self, x: float, y: float, w: float, h: float, words: str = "", kind: str = "box", rx: float = 8) -> None:
        self.add(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="{rx}" class="{kind}"/>')
        if words:
            self.text(x + w / 2, y + h / 2 + 5, words, "title" if kind == "title" else "", "middle")

    def dot(self, x: float, y: float, kind: str = "box", r: float = 8) -> None:
        self.add(f'<circle cx="{x}" cy="{y}" r="{r}" class="{kind}"/>')

    def path(self, d: str, kind: str = "", head: bool = True) -> None:
        marker = ' marker-end="url(#head)"' if head else ""
        self.add(f'<path d="{d}" class="line {kind}"{marker}/>')

    def save(self) -> None:
        body = "\n".join(f"  {part}" for part in self.parts)
        OUT.joinpath(f"{self.name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-labelledby="title">\n'
            f'  <title id="title">{escape(self.title)}</title>\n'
            f"  <style>{STYLE}  </style>\n"
            '  <defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0.5 L8 4 L0 7.5 z" class="head"/></marker></defs>\n'
            f'  <rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="12" class="ground"/>\n'
            f"{body}\n</svg>\n"
        )


def graph_nodes(p: Picture, x: float, y: float) -> None:
    """The graph of the example: a loop with a fork inside it."""
    p.box(x, y + 60, 84, 38, "search")
    p.box(x + 150, y + 10, 84, 38, "answer", "left")
    p.box(x + 150, y + 110, 84, 38, "audit", "right")
    p.box(x + 300, y + 60, 84, 38, "judge", "join")
    p.path(f"M{x - 42} {y + 79} H{x - 3}")
    p.path(f"M{x + 84} {y + 79} C{x + 120} {y + 79} {x + 110} {y + 29} {x + 147} {y + 29}", "l")
    p.path(f"M{x + 84} {y + 79} C{x + 120} {y + 79} {x + 110} {y + 129} {x + 147} {y + 129}", "r")
    p.path(f"M{x + 234} {y + 29} C{x + 270} {y + 29} {x + 260} {y + 79} {x + 297} {y + 79}", "l")
    p.path(f"M{x + 234} {y + 129} C{x + 270} {y + 129} {x + 260} {y + 79} {x + 297} {y + 79}", "r")
    p.path(f"M{x + 384} {y + 79} H{x + 432}")
    p.text(x + 440, y + 84, "END", "title")
    p.path(f"M{x + 342} {y + 60} C{x + 342} {y - 34} {x + 42} {y - 34} {x + 42} {y + 57}", "back")
    p.text(x + 192, y - 18, "again: goes back, the next round", "small quiet", "middle")


def rounds() -> None:
    """A loop with a fork: the graph, and what a run of it does round by round."""
    p = Picture("fork-join", 860, 440, "A fork and a join inside a loop: each round joins once")
    p.text(28, 36, "the graph", "title")
    graph_nodes(p, 210, 66)
    p.text(28, 262, "a run of it", "title")
    for start, label in ((140, "round 0"), (474, "round 1")):
        p.box(start, 246, 318, 170, kind="band", rx=10)
        p.text(start + 14, 266, label, "small quiet")
    y, top, low = 334, 290, 380
    for start in (140, 474):
        s, a, j = start + 52, start + 152, start + 256
        p.path(f"M{s} {y} C{s + 45} {y} {s + 40} {top} {a} {top}", "l", head=False)
        p.path(f"M{s} {y} C{s + 45} {y} {s + 40} {low} {a} {low}", "r", head=False)
        p.path(f"M{a} {top} C{a + 70} {top} {a + 60} {y} {j} {y}", "l", head=False)
        p.path(f"M{a} {low} C{a + 70} {low} {a + 60} {y} {j} {y}", "r", head=False)
        if start == 140:
            p.path(f"M{j} {y} H{474 + 52}", "back", head=False)
        else:
            p.path(f"M{j} {y} H{j + 76}")
            p.text(j + 82, y + 5, "END", "small title")
        p.dot(s, y)
        p.dot(a, top, "left")
        p.dot(a, low, "right")
        p.dot(j, y, "join")
        p.text(s, y + 26, "search", "small", "middle")
        p.text(a + 14, top - 6, "answer", "small")
        p.text(a + 14, low + 18, "audit", "small")
        p.text(j, y + 26, "judge", "small", "middle")
    p.text(28, 339, "START", "small quiet")
    p.path("M76 334 H181")
    p.save()


def merge_rows(p: Picture, x: float, y: float, rows: list[tuple[str, str]]) -> None:
    for number, (words, kind) in enumerate(rows):
        p.text(x, y + 22 * number, words, f"code {kind}")


def three_way() -> None:
    """Three-way merge: only what a side changed since the base counts."""
    p = Picture("three-way-merge", 860, 330, "Three-way merge: base, two sides, and the joined state")
    w, h = 220, 108
    same = "text:    'The inv...'"
    p.box(28, 110, w, h)
    p.text(44, 134, "base", "title")
    merge_rows(p, 44, 158, [(same, "")])
    p.box(320, 30, w, h, kind="left")
    p.text(336, 54, "judge", "title tl")
    merge_rows(p, 336, 78, [(same, "quiet"), ("team:    'billing'", "tl"), ("urgency: 'low'", "tl")])
    p.box(320, 190, w, h, kind="right")
    p.text(336, 214, "contract", "title tr")
    merge_rows(p, 336, 238, [(same, "quiet"), ("plan:    'business'", "tr"), ("urgency: 'high'", "tr")])
    p.box(602, 98, w, 132, kind="join")
    p.text(618, 122, "joined", "title tj")
    rows = [(same, ""), ("team:    'billing'", "tl"), ("plan:    'business'", "tr"), ("urgency: 'high'", "tr")]
    merge_rows(p, 618, 146, rows)
    p.path("M248 150 C285 150 285 84 317 84", "l")
    p.path("M248 178 C285 178 285 244 317 244", "r")
    p.path("M540 84 C577 84 570 150 599 150", "l")
    p.path("M540 244 C577 244 570 178 599 178", "r")
    p.text(712, 260, "team, plan: one side changed it", "small", "middle")
    p.text(712, 280, "urgency: both did, so the policy decides", "small tr", "middle")
    p.text(712, 300, "prefer('contract')", "small quiet", "middle")
    p.save()


def tree_node(p: Picture, x: float, y: float, words: str, kind: str = "box") -> None:
    w = 30 + 7.6 * len(words)
    p.box(x - w / 2, y, w, 30, kind=kind, rx=15)
    p.text(x, y + 20, words, "code", "middle")


def sharing() -> None:
    """Two versions of a state: a patch makes new only what it names."""
    p = Picture("structural-sharing", 860, 340, "Two versions of a state share everything that the patch does not name")
    old, new = "box", "join"
    p.path("M230 74 C230 110 130 100 130 137", head=False)
    p.path("M230 74 C230 110 330 100 330 137", head=False)
    p.path("M230 74 C230 112 560 100 560 137", head=False)
    p.path("M630 74 C630 110 730 100 730 137", "j", head=False)
    p.path("M630 74 C630 112 575 100 568 137", "j", head=False)
    p.path("M630 74 C630 118 350 100 342 137", "j", head=False)
    p.path("M130 167 C130 200 80 200 80 227", head=False)
    p.path("M130 167 C130 200 200 200 200 227", head=False)
    p.path("M730 167 C730 200 780 200 780 227", "j", head=False)
    p.path("M730 167 C730 214 220 190 206 227", "j", head=False)
    tree_node(p, 230, 44, "state", old)
    tree_node(p, 630, 44, "after", new)
    tree_node(p, 130, 137, "user", old)
    tree_node(p, 335, 137, "messages", old)
    tree_node(p, 564, 137, "documents", old)
    tree_node(p, 730, 137, "user", new)
    tree_node(p, 80, 227, "'dark'", old)
    tree_node(p, 204, 227, "'Ada'", old)
    tree_node(p, 780, 227, "'light'", new)
    p.text(62, 202, "theme", "small quiet", "end")
    p.text(150, 216, "name", "small quiet", "end")
    p.text(776, 202, "theme", "small quiet")
    p.box(28, 278, 804, 40, kind="band")
    p.text(48, 303, "after = state | {'user': {'theme': 'light'}}", "code")
    p.text(812, 303, "green is new, everything else is the same object", "small tj", "end")
    p.save()


LAYERS = [
    ("threads, runtime, graph", "conversations; sessions, drivers, workers; Graph, checks", "join"),
    ("nodes, lm", "functions, DSPy modules, subgraphs, maps: binding, permissions, traces", "right"),
    ("persistence, stores", "a run as rows: journal, snapshots, replay; memory, SQLite, PostgreSQL", "right"),
    ("scheduler", "plan, advance, loops, joins: pure, a run is a frozen value", "left"),
    ("state, schema, policies, reducers", "patches, merges, folds: pure", "left"),
    ("values", "frozen values; versions share what did not change", "left"),
]


def layers() -> None:
    """The layers: imports point down only."""
    p = Picture("layers", 860, 372, "The layers of dspyer; imports point down only")
    for number, (name, words, kind) in enumerate(LAYERS):
        y = 24 + 54 * number
        p.box(96, y, 650, 44, kind=kind)
        p.text(114, y + 27, name, "title")
        p.text(728, y + 27, words, "small", "end")
    p.path("M60 30 V340")
    p.add('<text transform="translate(46 186) rotate(-90)" text-anchor="middle" class="small quiet">imports</text>')
    p.path("M764 24 q10 0 10 10 V64 q0 10 10 10 M764 122 q10 0 10 -10 V84 q0 -10 10 -10", head=False)
    p.text(790, 70, "know", "small quiet")
    p.text(790, 86, "DSPy", "small quiet")
    p.path("M764 186 q10 0 10 10 V255 q0 10 10 10 M764 340 q10 0 10 -10 V275 q0 -10 10 -10", head=False)
    p.text(790, 261, "no clock,", "small quiet")
    p.text(790, 277, "no thread", "small quiet")
    p.save()


# One node call: what happens, in which file, and the colour of its folder. The first row goes, the second comes back.
CALL = [
    [
        ("program.run(inputs)", "runtime/program.py", "box"),
        ("what may start?", "scheduler/schedule.py", "left"),
        ("a thread or a task", "runtime/drivers.py", "box"),
        ("the calls of a node", "runtime/execution.py", "box"),
        ("parameters, your code", "nodes/", "right"),
    ],
    [
        ("events, then the Run", "runtime/session.py", "box"),
        ("rows of what happened", "log/, stores/", "join"),
        ("commit, join, what next?", "scheduler/schedule.py", "left"),
        ("patch and next state", "schema/schema.py", "left"),
        ("updates, permissions", "nodes/outputs.py", "right"),
    ],
]


def one_call() -> None:
    """The stops of one node call, and back."""
    p = Picture("how-a-run-works", 1000, 262, "One node call, stop by stop: from program.run to the commit and back")
    left, step, width = 24, 193, 176
    for row, stops in enumerate(CALL):
        for column, (words, file, kind) in enumerate(stops):
            x, y = left + step * column, 28 + 132 * row
            p.box(x, y, width, 62, kind=kind)
            p.text(x + width / 2, y + 27, words, "small title", "middle")
            p.text(x + width / 2, y + 47, file, "code quiet", "middle")
            if column < 4:
                ends = (x + step - 3, x + width) if row else (x + width, x + step - 3)
                p.path(f"M{ends[0]} {y + 31} H{ends[1] + (3 if row else 0)}")
    right = left + step * 4 + width / 2
    p.path(f"M{right} 90 V157")
    p.path(f"M{left + step + width / 2} 160 V93", "back")
    p.text(left + step + width / 2 + 10, 130, "until nothing may start", "small quiet")
    p.text(
        left,
        246,
        "blue: pure functions of values; orange: what knows DSPy and your code; green: only on a thread",
        "small quiet",
    )
    p.save()


def progress() -> None:
    """What a terminal shows during a run: the lines of the display, from events at given times."""
    events: list[tuple[float, Any]] = [
        (0.0, RunStarted("run", "Report")),
        (0.0, NodeStarted("plan", (), 1, "trunk:1")),
        (1.4, Committed(Commit("trunk:1", 1, "plan", (), 1, 1, {}, (), duration=1.4))),
        (1.4, NodeStarted("read", (0,), 1, "0:0")),
        (1.4, NodeStarted("write", (1,), 1, "1:0")),
        *[(1.5, ItemStarted("read", (0,), f"0:0[{item}]", item, 200)) for item in range(153)],
        *[(9.0, ItemFinished("read", (0,), f"0:0[{item}]", item, 200, "completed")) for item in range(134)],
        *[(9.0, ItemFinished("read", (0,), f"0:0[{item}]", item, 200, "failed")) for item in range(134, 137)],
        (5.2, AttemptFailed("write", (1,), "1:0", 1, TimeoutError(), 0.5)),
        (6.0, RunStarted("inner", "Writer", scope=("1:0",))),
        (6.0, NodeStarted("draft", (), 1, "trunk:1", scope=("1:0",))),
        (8.1, Committed(Commit("trunk:1", 1, "draft", (), 1, 1, {}, (), duration=2.1), scope=("1:0",))),
        (8.1, NodeStarted("polish", (), 2, "trunk:2", scope=("1:0",))),
        (8.3, Doing("polish", (), "trunk:2", "shortens the second paragraph", scope=("1:0",))),
        *[(8.0, (412, 0.00061)) for _ in range(141)],
    ]
    runs = RunningRuns(0.0)
    for at, event in events:
        runs.note(at, "run", event)
    file = io.StringIO()
    Console(file=file, width=104, height=30).print(Board(runs, 10.2))
    lines = file.getvalue().splitlines()
    p = Picture(
        "progress", 830, 34 + 21 * len(lines), "A terminal during a run: nodes, branches, and the items of a map"
    )
    for number, line in enumerate(lines):
        p.text(24, 32 + 21 * number, line, "code")
    p.save()


# Pictures that the library draws itself: the page whose first blocks are run, how many of them, and what is drawn then.
DRAWN = {
    "desk": ("README.md", 1, "run"),
    "how-it-works": ("docs/how-it-works.md", 3, "run"),
    "self-correction": ("docs/guides/self-correction.md", 1, "program.graph"),
    "refunds-run": ("docs/guides/looking.md", 2, "run"),
}


def drawn(page: str, blocks: int, name: str) -> str:
    """What `to_svg()` of a page's object gives."""
    fences = (OUT.parent.parent / page).read_text().split("```python\n")[1 : blocks + 1]
    namespace: dict[str, Any] = {}
    # In a new folder: some pages keep a store in the current one.
    with TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        for fence in fences:
            exec(fence.split("```")[0], namespace)
    picture: str = eval(f"{name}.to_svg()", namespace)
    return picture


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for draw in (rounds, three_way, sharing, layers, one_call, progress):
        draw()
    for file, source in DRAWN.items():
        OUT.joinpath(f"{file}.svg").write_text(drawn(*source))
