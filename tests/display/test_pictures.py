"""Pictures of graphs: every node and edge is drawn, edges that go back are dashed, texts are escaped, no overlaps."""

from __future__ import annotations

import functools
import json
import re
from itertools import combinations, pairwise
from typing import NamedTuple
from xml.etree import ElementTree

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer import END, START, Graph
from dspyer.agents import Mode, modes, tool_loop
from dspyer.graph.spec import GraphSpec
from dspyer.search import best_of
from tests.rows import each

SVG = "{http://www.w3.org/2000/svg}"
NASTY = 'a <b> & "c" | `d` #e; \x00\x1b[31m ]] --> f'
SMALL = 11.5  # the size of small letters


def picture(text: str, kinds: dict[str, str] | None = None, renamed: dict[str, str] | None = None) -> GraphSpec:
    """A graph from lines such as `a -> b` and, for a route, `a ? b label`, or `a ^ b label` if it goes back."""
    graph, names = Graph(name="pictured"), renamed or {}
    inner = Graph().add_node("inside", lambda: None, writes=[]).add_path(START, "inside", END).compile()
    add = {
        "function": lambda name: graph.add_node(name, lambda: None, writes=[]),
        "module": lambda name: graph.add_node(name, dspy.Predict("x -> y")),
        "map": lambda name: graph.add_map(name, lambda x: x, over="xs", item="x", into="ys"),
        "subgraph": lambda name: graph.add_node(name, inner, writes=[]),
        "interrupt": lambda name: graph.add_interrupt(name, question="?", answer=bool, into="z"),
    }
    lines = [line.split(maxsplit=3) for line in text.strip().splitlines()]
    for name in dict.fromkeys(name for source, _, target, *_ in lines for name in (source, target)):
        if name not in (START, END):
            add[(kinds or {}).get(name, "function")](names.get(name, name))
    routes: dict[str, dict[str, str]] = {}
    for source, arrow, target, *label in lines:
        source, target = names.get(source, source), names.get(target, target)  # noqa: PLW2901
        if arrow == "->":
            graph.add_edge(source, target)
        else:
            routes.setdefault(source, {})[names.get(label[0], label[0]) if label else target] = target
    for source, targets in routes.items():
        graph.add_conditional_edges(source, lambda: END, targets)
    return graph.compile().graph


GRAPHS = {
    "chain": "START -> a\na -> b\nb -> END",
    "fork": "START -> a\na -> b\na -> c\nb -> d\nc -> d\nd -> END",
    "loop around a fork": "START -> a\na -> b\na -> c\nb -> d\nc -> d\nd ^ a again\nd ? END done",
    "nested loops": "START -> a\na -> b\nb -> c\nc ^ b inner\nc ? d\nd ^ a outer\nd ? END\nd ^ d self",
    "long edges": "START -> a\na -> b\nb -> c\nc -> d\na -> d\na -> c\na -> END\nd -> END",
    "out of the middle": "START -> s\ns -> a\ns -> b\ns -> c\na -> j\nb ^ s back\nb -> j\nc -> j\nj ^ b half\nj ? END",
    "loops inside a fork": (
        "START -> s\ns -> a\ns -> b\ns -> c\na ? a1 on\na1 ^ a back\na1 -> j\nb ? b1 on\nb1 ^ b back\nb1 -> j\n"
        "c ? c1 on\nc1 ^ c back\nc1 -> j\nj ^ s back\nj ? END done"
    ),
    "loop with two heads": "START ? a\nSTART ? b\na ^ b\nb ^ a\nb ? END",
    "a head below another one": "START -> a\na ? b\na ? d\nb ? c\nc ^ d\nd ^ c\nd ? END",
    "wide": "START -> s\n" + "\n".join(f"s -> w{i}\nw{i} -> j" for i in range(12)) + "\nj -> END",
    "empty": "START -> END",
}


def drawn(made: GraphSpec) -> ElementTree.Element:
    return ElementTree.fromstring(made.to_svg())


@functools.cache
def drawing_of(text: str) -> ElementTree.Element:
    return drawn(picture(text))


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


def edges_in(text: str) -> dict[str, bool]:
    """The same of the lines of a text."""
    return {f"{source} to {target}": arrow == "^" for source, arrow, target, *_ in map(str.split, text.splitlines())}


@each("text", GRAPHS.values(), ids=GRAPHS)
def test_svg_has_every_node_and_edge_and_dashes_edges_that_go_back(text: str) -> None:
    root = drawing_of(text)
    for node in set(re.findall(r"\w+", text)) - set(re.findall(r" (\w+)$", text, re.MULTILINE)):
        assert any(title.split(":")[0].split(",")[0] == node for title in titles(root))
    assert edges_of(root) == edges_in(text)


@each("text", GRAPHS.values(), ids=GRAPHS)
def test_boxes_are_inside_the_picture_and_do_not_overlap(text: str) -> None:
    root = drawing_of(text)
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
    root = drawing_of(text)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for path in root.iter(f"{SVG}path"):
        if "line" in path.get("class", ""):
            values = [float(value) for value in re.findall(r"-?[\d.]+", path.get("d", ""))]
            assert values
            assert all(0 <= value <= max(width, height) for value in values)


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float


def boxes_of(root: ElementTree.Element) -> list[Box]:
    frames = [frame for group in root.iter(f"{SVG}g") if (frame := group.find(f"{SVG}rect")) is not None]
    sides = [[float(frame.get(name, "nan")) for name in ("x", "y", "width", "height")] for frame in frames]
    return [Box(x, y, x + width, y + height) for x, y, width, height in sides]


@each("text", GRAPHS.values(), ids=GRAPHS)
def test_edges_that_go_back_run_around_the_boxes(text: str) -> None:
    root = drawing_of(text)
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
        wide = 6 * len(element.text or "")
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
    svg = picture("START -> a\na -> b\nb -> c\nc -> d\nd -> END", kinds).to_svg()
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
    text = "START -> a\na -> b\nb -> c\nc -> d\nd -> e\ne -> END"
    checked = Graph().add_node("a", lambda: {"x": 1}, writes=["x"]).add_path(START, "a", END)
    checked.add_check("short", lambda x: [], of="a", max_fixes=0)
    agents = tool_loop("question -> answer", [shouted]), modes("task -> report", {"plan": Mode("Plan.")})
    programs = [graph.compile() for graph in (checked, *agents, best_of(dspy.Predict("a -> b"), 2, lambda b: 1))]
    graphs = [picture(text, {"b": "module", "c": "map", "d": "subgraph", "e": "interrupt"})]
    found = set()
    for graph in [*graphs, *(program.graph for program in programs)]:
        for node in graph.drawing().nodes:
            found.add((node.shape, node.word))
            assert f".dspyer .{node.shape} {{ fill:" in graph.to_svg()
            assert (node.shape == "function") == (f'{node.name}_["{node.name}"]' in graph.to_mermaid())
    same = {(kind, kind) for kind in ("module", "map", "subgraph", "interrupt", "check", "tool")}
    assert found == same | {("end", ""), ("function", ""), ("module", "mode"), ("map", "trials")}


def shouted(text: str) -> str:
    """A tool."""
    return text.upper()


def test_conditional_edges_begin_with_a_mark() -> None:
    def marks(text: str) -> int:
        return sum(path.get("class") == "function frame" for path in drawn(picture(text)).iter(f"{SVG}path"))

    assert marks("START -> a\na -> b\na -> END\nb -> END") == 0
    assert marks("START -> a\na ? b\na ? END\nb -> END") == 2


def test_no_text_can_break_the_svg() -> None:
    root = drawn(picture("START -> a\na ? b L\na ? END M\nb -> END", renamed={"L": NASTY, "M": " "}))
    shown = [text.text for text in root.iter(f"{SVG}text")]
    assert 'a <b> & "c" | `d` #e; [31m …' in shown
    assert any(title.startswith('a <b> & "c" | `d` #e;') and title.endswith("]] --> f") for title in titles(root))


def test_the_svg_loads_nothing_from_elsewhere() -> None:
    svg = picture(GRAPHS["nested loops"]).to_svg()
    outside = re.findall(r"https?://[^\"' )]+", svg)
    assert set(outside) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|@import|<image|<use|href", svg)
    assert "prefers-color-scheme: dark" in svg
    rules = re.findall(r"^ +([^{}@<]+) \{", svg, re.MULTILINE)
    assert rules
    assert all(rule.startswith(".dspyer ") for rule in rules)


def test_a_static_edge_parallel_to_a_route_is_one_solid_edge() -> None:
    made = picture("START -> a\na -> b\na ? b\na ? END\nb -> END")
    edges = made.drawing().edges
    assert [(edge.target, edge.conditional) for edge in edges if edge.source == "a"] == [("b", False), (END, True)]
    assert "\n    a_ --> b_\n" in made.to_mermaid()


def test_the_mermaid_text_of_a_graph() -> None:
    kinds = {"answer": "module", "notes": "map", "polish": "subgraph"}
    text = (
        "START -> search\nsearch -> answer\nsearch -> notes\nanswer -> judge\nnotes -> judge\n"
        "judge ^ search again\njudge ? polish L\npolish -> END"
    )
    assert picture(text, kinds, {"L": "good | done"}).to_mermaid() == (
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
    lines = picture(text).to_mermaid().splitlines()
    edges = edges_in(text)
    dashed = {line.split()[0] + " " + line.split()[-1] for line in lines if "-.->" in line}
    assert {edge.replace("_", "") for edge in dashed} == {edge.replace(" to", "") for edge in edges if edges[edge]}
    assert sum("-->" in line for line in lines) == list(edges.values()).count(False)


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
    made = picture("START -> a\na ? END\na ? b L\nb -> END", renamed={"L": label})
    assert f'    a_ -->|"{shown}"| b_' in made.to_mermaid().splitlines()


def across(text: str) -> dict[str, float]:
    """Where the middle of each node is."""
    return {node.name: node.x for node in picture(text).drawing().nodes}


@each(
    ("text", "order"),
    [
        ("START -> s\ns -> a\ns -> b\ns -> c\na -> e\nb -> e\nc -> e\ne -> END", "abc"),
        ("START -> s\ns -> a\ns -> b\na -> y\nb -> x\nx -> e\ny -> e\na -> z\nz -> e\ne -> END", "ab yzx"),
        ("START -> s\ns -> a\ns -> b\ns -> c\na -> x\nb -> y\nc -> x\nx -> e\ny -> e\ne -> END", "acb xy"),
    ],
)
def test_siblings_keep_their_order_and_crossings_are_removed(text: str, order: str) -> None:
    x = across(text)
    assert all(x[left] < x[right] for row in order.split() for left, right in pairwise(row))


def test_chains_and_long_edges_are_straight_and_forks_are_in_the_middle() -> None:
    text = "START -> s\ns -> a\na -> b\nb -> c\nc -> e\ns -> e\ne -> END"
    x = across(text)
    assert x["a"] == pytest.approx(x["b"], abs=0.1)
    assert x["b"] == pytest.approx(x["c"], abs=0.1)
    (passing,) = [edge.path for edge in picture(text).drawing().edges if (edge.source, edge.target) == ("s", "e")]
    assert " V" in passing
    x = across(GRAPHS["fork"])
    assert (x["b"] + x["c"]) / 2 == pytest.approx(x["a"], abs=0.1) == pytest.approx(x["d"], abs=0.1)


@given(st.integers(1, 6), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=10))
def test_any_graph_can_be_drawn(count: int, pairs: set[tuple[int, int]]) -> None:
    ways = {(a % count, b % count) for a, b in pairs} | {(i, i + 1) for i in range(count - 1)}
    lines = ["START -> n0", *(f"n{a} ? n{b} label{a}{b}" for a, b in sorted(ways)), f"n{count - 1} ? END"]
    found = edges_of(drawn(picture("\n".join(lines))))
    assert found.keys() == edges_in("\n".join(lines)).keys()
    assert all(found[f"n{a} to n{b}"] == (a >= b) for a, b in ways if count < 3 or a == b)


def test_texts_are_escaped_shortened_and_measured() -> None:
    names = [12 * "語", 12 * "m", 12 * "a", 12 * "i", 36 * "b", 37 * "b"]
    text = "\n".join(f"START ? n{at}\nn{at} -> END" for at in range(len(names)))
    made = picture(text, renamed={f"n{at}": name for at, name in enumerate(names)})
    nodes = [node for node in made.drawing().nodes if node.name in names]
    widths = [node.w for node in nodes]
    assert widths[:5] == sorted(widths[:4], reverse=True) + widths[4:5]
    assert len(set(widths[:4])) == 4
    assert widths[4:] == [widths[4], widths[4]]
    assert [node.label for node in nodes[4:]] == [36 * "b", 35 * "b" + "…"]
    numbers = " ".join(path.get("d", "") for path in drawn(made).iter(f"{SVG}path"))
    assert not re.search(r"\.\d\d|-0(?![.\d])|\.0", numbers)
    assert "<title>" in made.to_svg()


@each("name", GRAPHS)
def test_a_drawing_is_plain_json_with_the_positions_of_the_svg(name: str) -> None:
    text = GRAPHS[name]
    made = picture(text, {"a": "module", "b": "interrupt"})
    drawing = made.drawing().to_dict()
    assert json.loads(json.dumps(drawing, allow_nan=False)) == drawing
    root = drawn(made)
    assert (f"{drawing['width']:g}", f"{drawing['height']:g}") == (root.get("width"), root.get("height"))
    paths = {path.get("d") for path in root.iter(f"{SVG}path")}
    assert {edge["path"] for edge in drawing["edges"]} <= paths
    assert {f"{edge['source']} to {edge['target']}": edge["back"] for edge in drawing["edges"]} == edges_in(text)
    for node in drawing["nodes"]:
        assert 0 <= node["x"] - node["w"] / 2 <= node["x"] + node["w"] / 2 <= drawing["width"]
        assert 0 <= node["y"] - node["h"] / 2 <= node["y"] + node["h"] / 2 <= drawing["height"]
