"""Pictures of graphs: every node and edge is drawn, edges that go back are dashed, texts are escaped, no overlaps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer import END, START
from dspyer.agents.mode import ModeNode
from dspyer.agents.settle import SettleNode
from dspyer.agents.tool_node import ToolNode
from dspyer.display.graph_mermaid import draw_mermaid
from dspyer.display.graph_picture import GraphPicture
from dspyer.display.graph_svg import NodeBox, across, arrange, draw_graph, draw_svg, spread
from dspyer.display.svg import SMALL, curve, escape, fmt, shorten, text_width
from dspyer.nodes.node import Node
from dspyer.policies import Policies
from dspyer.scheduler.loops import Edge
from dspyer.scheduler.topology import Topology
from dspyer.schema.schema import Schema
from dspyer.search.trial import TrialNode
from tests.rows import each

SVG = "{http://www.w3.org/2000/svg}"
NASTY = 'a <b> & "c" | `d` #e; \x00\x1b[31m ]] --> f'


def picture(
    text: str, kinds: dict[str, str] | None = None, labels: dict[tuple[str, str], str] | None = None
) -> GraphPicture:
    """A graph from lines such as `a -> b` and, for a route, `a ? b label`."""
    edges, found = [], dict(labels or {})
    nodes: dict[str, None] = {}
    for line in text.strip().splitlines():
        source, arrow, target, *label = line.split(maxsplit=3)
        edges.append(Edge(source, target, arrow == "?"))
        if label:
            found[source, target] = label[0]
        nodes.update(dict.fromkeys(node for node in (source, target) if node not in (START, END)))
    topology = Topology("pictured", tuple(nodes), tuple(edges), Schema.of(None), Policies.of("raise"))
    return GraphPicture(topology, found, kinds or {})


GRAPHS = {
    "chain": "START -> a\na -> b\nb -> END",
    "fork": "START -> a\na -> b\na -> c\nb -> d\nc -> d\nd -> END",
    "loop around a fork": "START -> a\na -> b\na -> c\nb -> d\nc -> d\nd ? a again\nd ? END done",
    "nested loops": "START -> a\na -> b\nb -> c\nc ? b inner\nc ? d\nd ? a outer\nd ? END\nd ? d self",
    "long edges": "START -> a\na -> b\nb -> c\nc -> d\na -> d\na -> c\na -> END\nd -> END",
    "out of the middle": "START -> s\ns -> a\ns -> b\ns -> c\na -> j\nb ? s back\nb -> j\nc -> j\nj ? b half\nj ? END",
    "loops inside a fork": (
        "START -> s\ns -> a\ns -> b\ns -> c\na ? a1 on\na1 ? a back\na1 -> j\nb ? b1 on\nb1 ? b back\nb1 -> j\n"
        "c ? c1 on\nc1 ? c back\nc1 -> j\nj ? s back\nj ? END done"
    ),
    "loop with two heads": "START ? a\nSTART ? b\na ? b\nb ? a\nb ? END",
    "no end": "START -> a\na -> b\nb -> a",
    "no end and the last node in the middle": "START -> a\na -> c\nc -> a\na -> b\nb -> c",
    "wide": "START -> s\n" + "\n".join(f"s -> w{i}\nw{i} -> j" for i in range(12)) + "\nj -> END",
    "empty": "START -> END",
}


def drawn(made: GraphPicture) -> ElementTree.Element:
    return ElementTree.fromstring(draw_svg(made))


def titles(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}title")]


def edges_of(root: ElementTree.Element) -> dict[str, bool]:
    """Title of each drawn edge, with whether it is dashed."""
    found = {}
    for path in root.iter(f"{SVG}path"):
        classes = path.get("class", "").split()
        if "line" in classes:
            title = path.find(f"{SVG}title")
            assert title is not None
            assert title.text
            found[title.text.removesuffix(", the next round")] = "back" in classes
    return found


@each("text", GRAPHS.values(), ids=GRAPHS)
def test_svg_has_every_node_and_edge_and_dashes_edges_that_go_back(text: str) -> None:
    made = picture(text)
    root = drawn(made)
    for node in made.nodes:
        assert any(title.split(":")[0].split(",")[0] == node for title in titles(root))
    goes_back = made.topology.rounds.goes_back
    assert edges_of(root) == {f"{e.source} to {e.target}": goes_back(e.source, e.target) for e in made.edges}


@each("text", GRAPHS.values(), ids=GRAPHS)
def test_boxes_are_inside_the_picture_and_do_not_overlap(text: str) -> None:
    root = drawn(picture(text))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    boxes = boxes_of(root)
    for box in boxes:
        assert box.left >= 0
        assert box.top >= 0
        assert box.right <= width
        assert box.bottom <= height
    assert len(boxes) >= 2
    for one, other in combinations(boxes, 2):
        apart_x = one.right < other.left or other.right < one.left
        assert apart_x or one.bottom < other.top or other.bottom < one.top


@each("text", GRAPHS.values(), ids=GRAPHS)
def test_numbers_in_paths_are_finite_and_inside(text: str) -> None:
    root = drawn(picture(text))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for path in root.iter(f"{SVG}path"):
        if "line" in path.get("class", ""):
            values = [float(value) for value in re.findall(r"-?[\d.]+", path.get("d", ""))]
            assert values
            assert all(0 <= value <= max(width, height) for value in values)


def boxes_of(root: ElementTree.Element) -> list[NodeBox]:
    boxes = []
    for group in root.iter(f"{SVG}g"):
        frame = group.find(f"{SVG}rect")
        if frame is not None:
            x, y, w, h = (float(frame.get(name, "nan")) for name in ("x", "y", "width", "height"))
            boxes.append(NodeBox(x + w / 2, y + h / 2, w, h))
    return boxes


@each("text", GRAPHS.values(), ids=GRAPHS)
def test_edges_that_go_back_run_around_the_boxes(text: str) -> None:
    root = drawn(picture(text))
    for path in root.iter(f"{SVG}path"):
        if path.get("class") != "line back":
            continue
        values = [float(value) for value in re.findall(r"-?[\d.]+", path.get("d", ""))]
        points = list(zip(values[::2], values[1::2], strict=True))
        for (x0, y0), (x1, y1) in pairwise(points):
            for box in boxes_of(root):
                beside = max(x0, x1) <= box.left + 1 or min(x0, x1) >= box.right - 1
                assert beside or max(y0, y1) <= box.top + 1 or min(y0, y1) >= box.bottom - 1


@each("text", GRAPHS.values(), ids=GRAPHS)
def test_labels_are_inside_the_picture_and_do_not_overlap(text: str) -> None:
    root = drawn(picture(text.replace(" back", " a much longer way back")))
    width = float(root.get("width", "0"))
    spans = []
    for element in root.iter(f"{SVG}text"):
        if "small" not in element.get("class", ""):
            continue
        wide = text_width(element.text or "", SMALL)
        left = (
            float(element.get("x", "nan"))
            - wide * {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor", "")]
        )
        assert 0 < left < left + wide < width
        spans.append((left, left + wide, float(element.get("y", "nan"))))
    for one, other in combinations(spans, 2):
        assert one[1] < other[0] or other[1] < one[0] or abs(one[2] - other[2]) >= SMALL


def test_heads_of_loops_are_marked() -> None:
    root = drawn(picture(GRAPHS["nested loops"]))
    assert [title for title in titles(root) if "round begins" in title] == [
        "a: function, a round begins here",
        "b: function, a round begins here",
        "d: function, a round begins here",
    ]
    assert sum("head" in rect.get("class", "").split() for rect in root.iter(f"{SVG}rect")) == 3


def test_kinds_look_different() -> None:
    kinds = {"b": "module", "c": "map", "d": "subgraph"}
    svg = draw_svg(picture("START -> a\na -> b\nb -> c\nc -> d\nd -> END", kinds))
    root = ElementTree.fromstring(svg)
    assert [title for title in titles(root) if ":" in title] == ["a: function", "b: module", "c: map", "d: subgraph"]
    shapes = {}
    for group in root.iter(f"{SVG}g"):
        title, text = group.find(f"{SVG}title"), group.find(f"{SVG}text")
        assert title is not None
        assert text is not None
        parts = [(part.tag, part.get("class")) for part in group if part is not title]
        shapes[text.text] = (len(group.findall(f"{SVG}rect")), len(group.findall(f"{SVG}path")), str(parts))
    assert len({shapes[node] for node in "abcd"}) == 4


def test_every_kind_of_node_has_a_colour_and_a_shape() -> None:
    def with_subclasses(cls: type[Node]) -> Iterator[type[Node]]:
        yield cls
        for one in cls.__subclasses__():
            yield from with_subclasses(one)

    kinds = {cls.kind for cls in with_subclasses(Node) if cls.__module__.startswith("dspyer.")}
    assert {ModeNode.kind, ToolNode.kind, SettleNode.kind, TrialNode.kind} <= kinds
    for kind in kinds:
        drawing = picture("START -> a\na -> END", {"a": kind})
        assert f".dspyer .{kind} {{ fill:" in draw_svg(drawing)
        assert (kind == "function") == ('a_["a"]' in draw_mermaid(drawing))


def test_conditional_edges_begin_with_a_mark() -> None:
    def marks(text: str) -> int:
        return sum(path.get("class") == "function frame" for path in drawn(picture(text)).iter(f"{SVG}path"))

    assert marks("START -> a\na -> b\na -> END\nb -> END") == 0
    assert marks("START -> a\na ? b\na ? END\nb -> END") == 2


def test_no_text_can_break_the_svg() -> None:
    root = drawn(picture("START -> a\na ? b\na ? END\nb -> END", labels={("a", "b"): NASTY, ("a", END): " "}))
    shown = [text.text for text in root.iter(f"{SVG}text")]
    assert 'a <b> & "c" | `d` #e; [31m …' in shown
    assert any(title.startswith('a <b> & "c" | `d` #e;') and title.endswith("]] --> f") for title in titles(root))


def test_the_svg_loads_nothing_from_elsewhere() -> None:
    svg = draw_svg(picture(GRAPHS["nested loops"]))
    outside = re.findall(r"https?://[^\"' )]+", svg)
    assert set(outside) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|@import|<image|<use|href", svg)
    assert "prefers-color-scheme: dark" in svg
    rules = re.findall(r"^ +([^{}@<]+) \{", svg, re.MULTILINE)
    assert rules
    assert all(rule.startswith(".dspyer ") for rule in rules)


def test_a_static_edge_parallel_to_a_route_is_one_solid_edge() -> None:
    made = picture("START -> a\na -> b\na ? b\na ? END\nb -> END")
    assert [(edge.target, edge.conditional) for edge in made.edges if edge.source == "a"] == [("b", False), (END, True)]
    assert draw_mermaid(made).count("a_ --> b_") == 1


def test_the_mermaid_text_of_a_graph() -> None:
    kinds = {"answer": "module", "notes": "map", "polish": "subgraph"}
    text = (
        "START -> search\nsearch -> answer\nsearch -> notes\nanswer -> judge\nnotes -> judge\n"
        "judge ? search again\njudge ? polish good | done\npolish -> END"
    )
    assert draw_mermaid(picture(text, kinds)) == (
        "flowchart TD\n"
        '    START(["START"])\n'
        '    search_["search"]\n'
        '    answer_[["answer"]]\n'
        '    notes_[("notes")]\n'
        '    judge_["judge"]\n'
        '    polish_[/"polish"/]\n'
        '    END(["END"])\n'
        "    START --> search_\n"
        "    search_ --> answer_\n"
        "    search_ --> notes_\n"
        "    answer_ --> judge_\n"
        "    notes_ --> judge_\n"
        '    judge_ -.->|"again"| search_\n'
        '    judge_ -->|"good #124; done"| polish_\n'
        "    polish_ --> END\n"
        "    style search_ stroke-width:3px"
    )


@each("text", GRAPHS.values(), ids=GRAPHS)
def test_mermaid_dashes_edges_that_go_back(text: str) -> None:
    made = picture(text)
    lines = draw_mermaid(made).splitlines()
    dashed = {line.split()[0] + " " + line.split()[-1] for line in lines if "-.->" in line}
    back = [edge for edge in made.edges if made.topology.rounds.goes_back(edge.source, edge.target)]
    assert dashed == {f"{edge.source}_ {edge.target}_" for edge in back}
    assert sum("-->" in line for line in lines) == len(made.edges) - len(back)


@each(
    ("label", "shown"),
    [
        ('say "no"', "say #34;no#34;"),
        ("a|b", "a#124;b"),
        ("<b>", "#60;b#62;"),
        ("`x` #1", "#96;x#96; #35;1"),
        ("1. first", "1#46; first"),
        ("- item", "#45; item"),
        ("two\nlines", "two lines"),
        ("follow-up (no. 2), größer", "follow-up (no. 2), größer"),
    ],
)
def test_mermaid_escapes_markup_in_labels(label: str, shown: str) -> None:
    made = picture("START -> a\na ? END\na ? b\nb -> END", labels={("a", "b"): label})
    assert f'    a_ -->|"{shown}"| b_' in draw_mermaid(made).splitlines()


@pytest.mark.slow("two processes, since a hash seed holds for one")
def test_drawings_are_the_same_in_every_process() -> None:
    script = (
        "import runpy, sys; names = runpy.run_path(sys.argv[1])\n"
        "made = [names['picture'](text) for text in names['GRAPHS'].values()]\n"
        "print([names[draw](one) for draw in ('draw_svg', 'draw_mermaid') for one in made])"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # another than that of this process
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", script, __file__], env=environment, capture_output=True, text=True, check=True
    )
    made = [picture(text) for text in GRAPHS.values()]
    assert result.stdout.strip() == repr([draw(one) for draw in (draw_svg, draw_mermaid) for one in made])


def test_siblings_keep_their_order_and_crossings_are_removed() -> None:
    ways = [("s", "a"), ("s", "b"), ("s", "c"), ("a", "e"), ("b", "e"), ("c", "e")]
    rows = arrange(["s", "a", "b", "c", "e"], ways).rows
    assert rows[2] == ("a", "b", "c")
    crossed = [("s", "a"), ("s", "b"), ("a", "y"), ("b", "x"), ("x", "e"), ("y", "e"), ("a", "z"), ("z", "e")]
    rows = arrange(["s", "a", "b", "x", "y", "z", "e"], crossed).rows
    assert rows[2] == ("a", "b")
    assert rows[4] == ("y", "z", "x")
    apart = [("s", "a"), ("s", "b"), ("s", "c"), ("a", "x"), ("b", "y"), ("c", "x"), ("x", "e"), ("y", "e")]
    rows = arrange(["s", "a", "b", "c", "x", "y", "e"], apart).rows
    assert rows[2] == ("a", "c", "b")
    assert rows[4] == ("x", "y")


def test_chains_and_long_edges_are_straight() -> None:
    ways = [("s", "a"), ("a", "b"), ("b", "c"), ("c", "e"), ("s", "e")]
    grid = arrange(["s", "a", "b", "c", "e"], ways)
    x = across(grid, dict.fromkeys("sabce", 80.0))
    assert x["a"] == pytest.approx(x["b"], abs=0.1)
    assert x["b"] == pytest.approx(x["c"], abs=0.1)
    passing = [x[cell] for row in grid.rows for cell in row if isinstance(cell, tuple) and cell[:2] == ("s", "e")]
    assert max(passing) - min(passing) < 0.1


@given(st.data())
def test_spread_keeps_order_and_gaps_and_moves_least(data: st.DataObject) -> None:
    numbers = st.floats(-100, 100)
    wanted = data.draw(st.lists(numbers, min_size=1, max_size=6))
    gaps = data.draw(st.lists(st.floats(0, 50), min_size=len(wanted) - 1, max_size=len(wanted) - 1))
    weights = data.draw(st.lists(st.floats(0.1, 9), min_size=len(wanted), max_size=len(wanted)))
    places = spread(wanted, gaps, weights)
    assert all(right - left >= gap - 1e-6 for left, right, gap in zip(places[:-1], places[1:], gaps, strict=True))

    def cost(at: list[float]) -> float:
        return sum(weight * (a - b) ** 2 for weight, a, b in zip(weights, at, wanted, strict=True))

    other = [sum(gaps[:i]) + data.draw(numbers) for i in range(len(wanted))]
    for i in range(1, len(other)):
        other[i] = max(other[i], other[i - 1] + gaps[i - 1])
    assert cost(places) <= cost(other) + 1e-6


@given(st.integers(1, 7), st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14))
def test_any_graph_can_be_drawn(count: int, pairs: set[tuple[int, int]]) -> None:
    ways = {(a % count, b % count) for a, b in pairs}
    lines = ["START -> n0", *(f"n{i} -> n{i + 1}" for i in range(count - 1)), f"n{count - 1} -> END"]
    made = picture("\n".join([*lines, *(f"n{a} ? n{b} label{a}{b}" for a, b in sorted(ways))]))
    goes_back = made.topology.rounds.goes_back
    assert edges_of(drawn(made)) == {f"{e.source} to {e.target}": goes_back(e.source, e.target) for e in made.edges}


def test_texts_are_escaped_shortened_and_measured() -> None:
    assert escape("a\x00\x1bb") == "a b"
    assert shorten("  one\n two  ", 20) == "one two"
    assert shorten("abcdef", 4) == "abc…"
    assert text_width("語") > text_width("m") > text_width("a") > text_width("i") > text_width("\u0301") == 0
    assert [fmt(value) for value in (-0.01, 2.0, 2.25, -3.96)] == ["0", "2", "2.2", "-4"]
    assert curve([(0, 0), (0, 10)], [True, True]) == "M0 0 V10"


@each("name", GRAPHS)
def test_a_drawing_is_plain_json_with_the_positions_of_the_svg(name: str) -> None:
    made = picture(GRAPHS[name], {"a": "module", "b": "interrupt"}, {("a", "b"): NASTY})
    drawing = draw_graph(made).to_dict()
    assert json.loads(json.dumps(drawing, allow_nan=False)) == drawing
    root = drawn(made)
    assert (f"{drawing['width']:g}", f"{drawing['height']:g}") == (root.get("width"), root.get("height"))
    paths = {path.get("d") for path in root.iter(f"{SVG}path")}
    assert {edge["path"] for edge in drawing["edges"]} <= paths
    assert [node["name"] for node in drawing["nodes"]] == list(made.nodes)
    assert {(edge["source"], edge["target"]) for edge in drawing["edges"]} == {
        (edge.source, edge.target) for edge in made.edges
    }
    for node in drawing["nodes"]:
        assert 0 <= node["x"] - node["w"] / 2 <= node["x"] + node["w"] / 2 <= drawing["width"]
        assert 0 <= node["y"] - node["h"] / 2 <= node["y"] + node["h"] / 2 <= drawing["height"]
