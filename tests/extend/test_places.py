"""What layers are around, in which order: nodes, maps, graphs, agents, searches, routers."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, Retry, Run, agents
from dspyer.extend import Layer, Place, using
from dspyer.search import best_of
from dspyer.testing import ScriptedLM, no_pauses
from tests.agents.kit import SUBMIT, turn
from tests.extend.kit import PLACES, Counted, Noted, at, graph_of
from tests.rows import each
from tests.runtime.conftest import Play


def noted(source: str, notes: list[str], places: tuple[Place, ...] = PLACES) -> list[Layer]:
    """A layer at each place, given from the inside out."""
    return [at(place, Noted)(f"{source} {place}", notes) for place in reversed(places)]


def test_layers_are_around_each_other_by_place_and_then_by_who_asks(everywhere: Play) -> None:
    notes: list[str] = []

    def work(n: int) -> dict[str, int]:
        notes.append("work")
        return {"doubled": 2 * n}

    program = graph_of(work, layers=noted("node", notes)).compile(layers=noted("graph", notes))
    with using(*noted("outer block", notes)), using(*noted("block", notes)):
        run = everywhere(program, {"n": 2})
    assert run.state["doubled"] == 4
    sources = ("outer block", "block", "graph", "node")
    expected = [f"{source} {place} work" for place in PLACES for source in sources]
    assert notes == [*expected, "work", *[f"/{one}" for one in reversed(expected)]]


def test_within_a_place_layers_are_as_given(play: Play) -> None:
    notes: list[str] = []
    play(graph_of(layers=[Noted("a", notes), Noted("b", notes), Noted("c", notes)]).compile(), {"n": 1})
    assert notes == ["a work", "b work", "c work", "/c work", "/b work", "/a work"]


def test_by_default_a_layer_is_around_all_attempts(play: Play) -> None:
    notes: list[str] = []
    calls: list[int] = []

    def work(n: int) -> dict[str, int]:
        calls.append(n)
        if len(calls) < 3:
            raise ConnectionError
        return {"doubled": n}

    with no_pauses():
        play(graph_of(work, layers=noted("in", notes), retry=3, timeout=20).compile(), {"n": 1})
    begun = [note.removeprefix("in ").removesuffix(" work") for note in notes if not note.startswith("/")]
    assert begun == [*PLACES, "attempt", "call", "attempt", "call"]
    assert len(calls) == 3


def test_a_layer_in_the_place_of_the_retry_is_around_it_if_the_graph_gives_it(play: Play) -> None:
    notes: list[str] = []
    at_retry = at("retry", Noted)
    graph = graph_of(layers=[at_retry("node", notes), Retry(2), at_retry("inside", notes)])
    play(graph.compile(layers=[at_retry("graph", notes)]), {"n": 1})
    assert [note for note in notes if note[0] != "/"] == ["graph work", "node work", "inside work"]


def test_a_map_is_surrounded_once_and_its_items_by_retry_and_what_is_inside_of_it(play: Play) -> None:
    notes: list[str] = []

    def size(item: str) -> dict[str, int]:
        notes.append(f"size {item}")
        return {"size": len(item)}

    graph = Graph().add_map("map", size, over="items", item="item", into="sizes", layers=noted("in", notes))
    run = play(graph.add_path(START, "map", END).compile(max_concurrency=1), {"items": ["a", "bc"]})
    assert run.state["sizes"] == [1, 2]
    around, inside = [f"in {place} map" for place in PLACES[:5]], [f"in {place} map" for place in PLACES[5:]]
    items = [[*inside, f"size {item}", *(f"/{one}" for one in reversed(inside))] for item in ("a", "bc")]
    assert notes == [*around, *items[0], *items[1], *(f"/{one}" for one in reversed(around))]


def test_an_item_gives_an_output_with_what_it_writes(play: Play) -> None:
    found: list[Any] = []

    class Seen(Layer):
        place = "attempt"

        def around(self, call: Any, inner: Any) -> Any:
            output = yield from inner(call)
            found.append((call.execution, call.read("item"), dict(output.patch), output.failure))
            return output

    graph = Graph().add_map("map", lambda item: {"size": len(item)}, over="items", item="item", into="sizes")
    program = graph.add_path(START, "map", END).compile(layers=[Seen()], max_concurrency=1)
    play(program, {"items": ["a", "bc"]})
    assert found == [("trunk:1[0]", "a", {"sizes": 1}, None), ("trunk:1[1]", "bc", {"sizes": 2}, None)]


def test_a_graph_is_surrounded_as_one_node_and_its_nodes_by_its_own_layers(play: Play) -> None:
    notes: list[str] = []
    inner = graph_of(name="inner").compile(layers=[Noted("inner graph", notes)])
    outer = Graph(inputs=["n"]).add_node("outer", inner).add_path(START, "outer", END)
    program = outer.compile(layers=[Noted("outer graph", notes)])
    with using(Noted("block", notes)):
        play(program, {"n": 1})
    begun = ["block outer", "outer graph outer", "block inner", "inner graph inner"]
    assert notes == [*begun, *[f"/{one}" for one in reversed(begun)]]


def test_a_program_that_a_node_calls_is_surrounded_too(play: Play) -> None:
    notes: list[str] = []
    inner = graph_of(name="inner").compile()
    graph = graph_of(lambda n, sub, ctx: {"out": ctx.call(sub, {"n": n}).doubled}, modules={"sub": inner})
    with using(Noted("block", notes)):
        assert play(graph.compile(), {"n": 1}).state["out"] == 2
    assert notes == ["block work", "block inner", "/block inner", "/block work"]


def look_up(word: str) -> str:
    """Looks up a word."""
    return word.upper()


def test_the_nodes_of_an_agent(play: Play) -> None:
    counted = Counted()
    program = agents.tool_loop("question -> answer", [look_up]).compile(layers=[counted])
    with ScriptedLM([turn(("look_up", {"word": "x"})), SUBMIT]):
        run = play(program, {"question": "why?"})
    assert run.state["answer"] == "done"
    assert counted.nodes == [c.node for c in run.commits if c.node in program.graph.nodes]
    assert counted.nodes.count("look_up") == 1


def searching() -> Graph:
    tried = Graph(inputs=["n"], name="Tried").add_node("plus", lambda n: {"m": n + 1}, writes=["m"])
    return best_of(tried.add_path(START, "plus", END).compile(), 2, float_of, per_round=2)


def float_of(m: int) -> float:
    return float(m)


@each("place", PLACES)
def test_trials_are_surrounded_as_items_are(place: Place) -> None:
    found: list[tuple[str, Any]] = []

    class Seen(Layer):
        def around(self, call: Any, inner: Any) -> Any:
            output = yield from inner(call)
            found.append((call.execution, output))
            return output

    seen = at(place, Seen)()
    run: Run = searching().compile(layers=[seen], max_concurrency=1).run({"n": 1})
    assert run.state["m"] == 2
    trials = [name for name, _ in found if name.startswith("trunk:2")]
    if place == "retry":  # around the rewards, which have attempts of their own, as well
        assert trials == [f"trunk:2[{trial}]{part}" for trial in (0, 1) for part in ("", "[reward]")]
    elif place in ("attempt", "call"):
        assert trials == ["trunk:2[0]", "trunk:2[1]"]
        assert [dict(output.patch) for name, output in found if name in trials] == [{"m": 2}] * 2
    else:
        assert trials == ["trunk:2"]


@each("place", PLACES)
def test_a_router_that_is_a_module_has_attempts_of_its_own(place: Place) -> None:
    counted = at(place, Counted)()
    graph = Graph().add_node("a", lambda n: {"m": n}, writes=["m"]).add_edge(START, "a")
    graph.add_conditional_edges("a", dspy.Predict("m -> next: Literal['on']"), {"on": END})
    with ScriptedLM([{"next": "on"}]):
        assert graph.compile(layers=[counted]).run({"n": 1}).status == "completed"
    assert counted.nodes == (["a", "a"] if place == "retry" else ["a"])


def test_a_router_at_start_that_is_a_module_is_no_part_of_a_node(play: Play) -> None:
    notes: list[str] = []
    graph = Graph(inputs=["n"]).add_node("a", lambda n: {"m": n}, writes=["m"]).add_edge("a", END)
    graph.add_conditional_edges(START, dspy.Predict("n -> next: Literal['on']"), {"on": "a"})
    with ScriptedLM([{"next": "on"}]), using(*noted("in", notes)):
        assert play(graph.compile(), {"n": 1}).error is None
    assert [note for note in notes if note[0] != "/"] == [f"in {place} a" for place in PLACES]


def test_surrounds_chooses_nodes_of_a_graph_and_of_a_block(play: Play) -> None:
    class OfB(Counted):
        asked: tuple[str, ...] = ()

        def surrounds(self, node: Any) -> bool:
            self.asked = (*self.asked, node.name)
            return bool(node.name == "b")

    of_graph, of_block, of_node = OfB(), OfB(), OfB()
    graph = Graph().add_node("a", lambda n: {"m": n}, layers=[of_node]).add_node("b", lambda m: {"n": m})
    program = graph.add_path(START, "a", "b", END).compile(layers=[of_graph])
    assert of_graph.asked == ("a", "b")  # once, when the graph is compiled
    for _ in range(2):
        with using(of_block):
            play(program, {"n": 1})
    assert of_graph.nodes == of_block.nodes == ["b", "b"]
    assert of_node.nodes == ["a", "a"]  # a node that was given a layer has it
    assert of_graph.asked == ("a", "b")


def test_a_layer_without_around_is_in_no_chain(play: Play) -> None:
    class Silent(Layer):
        """Overrides nothing."""

    program = graph_of(layers=[Silent()]).compile(layers=[Silent()])
    with using(Silent()):
        assert play(program, {"n": 1}).state["doubled"] == 2


def test_explain_names_the_layers_of_a_node() -> None:
    class Slow(Layer):
        """Its note is the name of its class."""

    class Kept(Layer):
        note = "kept for a day"

    text = graph_of(layers=[Slow(), Kept()]).compile(retry=2).graph.explain()
    assert "in Slow" in text
    assert "kept for a day" in text
    mapped = Graph().add_map("map", lambda item: item, over="items", item="item", into="found")
    program = mapped.add_path(START, "map", END).compile(layers=[at("attempt", Slow)(), Kept()])
    assert "in Slow per item" in program.graph.explain()
    assert "kept for a day per item" not in program.graph.explain()


@pytest.mark.parametrize("wrapped_by", ["retry", "timeout", "nothing"])
def test_a_predictor_is_surrounded_like_a_function(play: Play, wrapped_by: str) -> None:
    counted = Counted()
    options: dict[str, Any] = {"retry": {"retry": 2}, "timeout": {"timeout": 20}}.get(wrapped_by, {})
    graph = Graph().add_node("ask", dspy.Predict("question -> answer"), layers=[counted], **options)
    with ScriptedLM([{"answer": "42"}]):
        run = play(graph.add_path(START, "ask", END).compile(), {"question": "?"})
    assert (run.state["answer"], counted.nodes, len(run.trace)) == ("42", ["ask"], 1)
