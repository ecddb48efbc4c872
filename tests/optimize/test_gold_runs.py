"""`culprits`: each rule of gold runs on one small graph."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import (
    END,
    START,
    Budget,
    Command,
    CompiledGraph,
    Context,
    Graph,
    Send,
    agents,
    live,
    prefer,
    reducers,
    view,
)
from dspyer.errors import BudgetError, Interrupted, RunStoppedError
from dspyer.optimize import GEPA, Culprits, by_field, culprits, equals
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM
from tests.agents.kit import turn
from tests.executors.pools import BytesExecutor
from tests.optimize.planted import FakePredict
from tests.optimize.skills import SkillLM

EXAMPLE = dspy.Example(q="?", a="1", b="2", c="3", label="left", notes=["1", "2"]).with_inputs("q")
ASK: dict[str, Any] = {"question": "Which b?", "answer": str, "into": "b"}


class State(BaseModel):
    """The state of most of them."""

    q: str = ""
    a: str = ""
    b: str = ""
    c: str = ""
    label: str = ""
    notes: Annotated[list[str], reducers.append] = []
    tags: list[str] = []
    found: list[Any] = []


def fake(signature: str, *values: Any) -> FakePredict:
    """A predictor that gives these values one after the other, and the last one again."""
    rest = list(values)
    return FakePredict(signature, lambda **inputs: rest.pop(0) if len(rest) > 1 else rest[0])


def metric_of(*fields: str, **judged: Any) -> Any:
    """A metric of fields with gold, and of functions that judge; the last of all is the goal."""
    metrics = {**{field: equals(field) for field in fields}, **judged}
    return by_field(metrics, goal=[*metrics][-1])


def judge(program: Any, *fields: str, **judged: Any) -> Culprits:
    return culprits(program, EXAMPLE, metric_of(*fields, **judged))


def path(*nodes: tuple[str, Any], **options: Any) -> CompiledGraph:
    """Nodes one after the other."""
    graph = Graph(State, inputs=["q"])
    for name, node in nodes:
        graph.add_node(name, node)
    return graph.add_path(START, *(name for name, _ in nodes), END).compile(**options)


def chain(a: Any, b: Any, c: Any) -> CompiledGraph:
    return path(("first", fake("q -> a", a)), ("second", fake("a -> b", b)), ("third", fake("b -> c", c)))


# --- right and wrong


def test_a_value_that_was_right_in_the_run_itself_counts_as_right() -> None:
    """Gold in another style makes its reader wrong: that is no fault of the reader."""
    second = FakePredict("a -> b", lambda a: "2" if a == "one" else "?")
    program = path(("first", fake("q -> a", "one")), ("second", second), ("third", fake("b -> c", "x")))
    assert judge(program, "a", "b", "c").shares == {"first": 0.5, "third": 0.5}
    found = judge(program, a=equals("a"), b=close_b, c=equals("c"))
    assert found.shares == {"first": 0.5, "third": 0.5}, "neither does it excuse its reader"


def test_what_is_wrong_without_gold_excuses_its_readers() -> None:
    def close(example: Any, a: str) -> bool:
        return bool(a == example.a)

    assert judge(chain("x", "x", "x"), a=close, b=equals("b"), c=equals("c")).shares == {"first": 0.5, "third": 0.5}
    metric = by_field({"a": close, "b": close_b, "c": equals("c")}, goal="c")
    assert culprits(chain("x", "x", "x"), EXAMPLE, metric).shares == {"first": 1.0}


def close_b(example: Any, b: str) -> bool:
    return bool(b == example.b)


def test_a_metric_that_cannot_tell_makes_a_value_unknown() -> None:
    def cannot(example: Any, b: str) -> None:
        return None

    found = judge(chain("1", "x", "x"), a=equals("a"), b=cannot, c=equals("c"))
    assert (found.shares, found.suspects) == ({"second": 0.5, "third": 0.5}, ("second", "third"))


def test_what_is_wrong_and_read_by_nobody_needs_no_gold_run() -> None:
    calls = []

    def first(q: str) -> str:
        calls.append(q)
        return "1"

    count = FakePredict("q -> a", first)
    program = path(("first", count), ("last", fake("a -> c", "x")))
    assert judge(program, "a", "c").shares == {"last": 1.0}
    assert len(calls) == 1
    program = path(("first", count), ("last", fake("a -> c", "x")), ("after", fake("c -> b", "2")))
    assert judge(program, "a", "c", "b").shares == {"last": 1.0}
    assert len(calls) == 3, "it was read: a gold run"
    graph = Graph(State, inputs=["q"]).add_node("inner", path(("first", count), ("last", fake("a -> c", "x"))))
    assert judge(graph.add_path(START, "inner", END).compile(), "a", "c").shares == {"inner.last": 1.0}
    assert len(calls) == 4, "a graph is no reader of what is inside of it"


def test_the_table_names_who_is_responsible_and_why() -> None:
    found = judge(chain("x", "2", "y"), "a", "b", "c")
    assert str(found) == "50 % first: `a` is 'x', expected '1'.\n50 % third: `c` is 'y', expected '3'."
    assert json.loads(json.dumps(found.to_dict())) == {
        "shares": {"first": 0.5, "third": 0.5},
        "suspects": [],
        "not_tunable": [],
        "texts": {"first": ["`a` is 'x', expected '1'."], "third": ["`c` is 'y', expected '3'."]},
    }


# --- unknown values, functions


def test_unknown_values_give_suspects_with_equal_shares() -> None:
    found = judge(chain("x", "y", "z"), "c")
    assert found.shares == pytest.approx({"first": 1 / 3, "second": 1 / 3, "third": 1 / 3})
    assert found.suspects == tuple(found.shares)
    assert str(found).splitlines()[0] == "33 % first (suspect): `c` is 'z', expected '3'."
    found = judge(chain("x", "y", "z"), "a", "c")
    assert found.shares == pytest.approx({"first": 1 / 2, "second": 1 / 4, "third": 1 / 4})
    assert found.suspects == ("second", "third"), "the first one is known to be wrong"
    assert judge(chain("x", "y", "z"), "b", "c").shares == pytest.approx({"third": 0.5, "first": 0.25, "second": 0.25})


def test_a_function_passes_on_what_it_has_read() -> None:
    def between(b: str) -> CompiledGraph:
        middle = ("join", lambda a: {"b": b})
        return path(("first", fake("q -> a", "x")), middle, ("last", fake("b -> c", "x")))

    assert judge(between("x"), "c").shares == {"first": 0.5, "last": 0.5}
    found = judge(between("x"), "b", "c")
    assert (found.shares, found.suspects) == ({"first": 0.5, "last": 0.5}, ("first",))
    found = judge(between("x"), "a", "b")
    assert (found.shares, found.not_tunable) == ({"first": 0.5, "join": 0.5}, ("join",))
    assert "50 % join (not tunable): `b` is 'x', expected '2'." in str(found)
    assert judge(between("2"), "a", "b").shares == {"first": 1.0}


def test_a_caller_has_read_the_outputs_of_its_sub_agent_alone() -> None:
    """With gold for what it found, the caller is right: its own value is not blamed."""

    def say(prompt: Any) -> Any:
        if "topic" in prompt.inputs:
            return turn(("submit", {"found": "wrong"}))
        if len(prompt.turns) < 3:
            return turn(("look", {"topic": "tides"}))
        return turn(("submit", {"b": "2" if "gold" in str(prompt.turns) else "wrong"}))

    look = agents.tool(agents.tool_loop("topic -> found", [], name="Reader"), name="look", desc="Looks.")
    program = agents.tool_loop("q -> b", [look]).compile()
    metric = by_field({"look.found": equals(lambda example: "gold"), "b": equals("b")}, goal="b")
    with ScriptedLM(say) as lm:
        found = culprits(program, EXAMPLE, metric)
    assert found.shares == {"react": 0.5, "look.react": 0.5}
    assert {text for texts in found.texts.values() for text in texts} == {"`found` is 'wrong', expected 'gold'."}
    assert len(lm.calls) == 6, "a run and a gold run"
    right = by_field({"look.found": equals(lambda example: "wrong"), "b": equals("b")}, goal="b")
    with ScriptedLM(say):
        assert culprits(program, EXAMPLE, right).shares == {"react": 1.0}


def test_a_metric_may_run_a_graph() -> None:
    """Its nodes are none of the program, also if their names are."""
    judging = Graph(inputs=["given"]).add_node("last", fake("given -> c", "3")).add_path(START, "last", END).compile()
    program = path(("first", fake("q -> a", "x")), ("last", FakePredict("a -> c", lambda a: "3" if a == "1" else "x")))
    found = judge(program, "a", c=lambda example, c: judging(given=c).c == c)
    assert (found.shares, found.suspects) == ({"first": 1.0}, ())


def test_what_was_so_before_is_written_too() -> None:
    """A function gives a default of the schema: what has read it has read what the function had read."""
    middle = ("join", lambda a: {"b": "" if a == "x" else "2"})
    last = ("last", FakePredict("b -> c", lambda b: "3" if b == "2" else "x"))
    program = path(("first", fake("q -> a", "x")), middle, last)
    assert judge(program, "a", "b", "c").shares == {"first": 1.0}
    assert judge(program, "c", a=lambda example, a: a == example.a).shares == {"first": 1.0}


def test_a_frozen_predictor_is_a_culprit_that_no_optimizer_can_change() -> None:
    graph = Graph(State, inputs=["q"]).add_node("first", fake("q -> a", "x"), frozen=True)
    found = judge(graph.add_path(START, "first", END).compile(), "a")
    assert (found.shares, found.not_tunable) == ({"first": 1.0}, ("first",))


def test_a_module_of_two_predictors_shares_the_blame() -> None:
    class Two(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.think, self.say = fake("q -> thought", "t"), fake("thought -> a", "x")

        def forward(self, q: str) -> dspy.Prediction:
            return self.say(thought=self.think(q=q).thought)

    graph = Graph(State, inputs=["q"]).add_node("both", Two(), reads=["q"], writes=["a"])
    assert judge(graph.add_path(START, "both", END).compile(), "a").shares == {"both.think": 0.5, "both.say": 0.5}


def test_a_long_chain_of_unknown_values_is_followed_to_its_beginning() -> None:
    class Rounds(BaseModel):
        q: str
        a: str = ""
        n: int = 0

    graph = (
        Graph(Rounds)
        .add_node("first", fake("q -> a", "x"))
        .add_node("again", fake("a -> out", "x"), writes={"out": "a"})
    )
    graph.add_node("count", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "first", "again", "count")
    graph.add_conditional_edges("count", lambda n: "again" if n < 400 else END, ["again", END])
    metric = metric_of(a=lambda example, a, state: False if state["n"] == 399 else None)
    assert culprits(graph.compile(), EXAMPLE, metric).shares == {"again": 0.5, "first": 0.5}


# --- decisions


def routed(label: str, answer: str, writes: str | None) -> CompiledGraph:
    graph = Graph(State, inputs=["q"])
    decide = fake("q -> label: Literal['left', 'right']", label)
    graph.add_conditional_edges(START, decide, ["left", "right"], writes=writes)
    for arm in ("left", "right"):
        graph.add_node(arm, fake("q -> c", answer)).add_edge(arm, END)
    return graph.compile()


@pytest.mark.parametrize("writes", ["label", None])
def test_a_decision_that_no_metric_judges_makes_the_router_a_suspect(writes: str | None) -> None:
    found = judge(routed("right", "x", writes), "c")
    assert (found.shares, found.suspects) == ({"START_router": 0.5, "right": 0.5}, ("START_router", "right"))


def test_a_wrong_decision_is_mended_before_the_route_is_taken() -> None:
    assert judge(routed("right", "x", "label"), "label", "c").shares == {"START_router": 0.5, "left": 0.5}
    assert judge(routed("right", "3", "label"), "label", "c").shares == {"START_router": 1.0}


def test_a_wrong_decision_without_gold_excuses_where_it_leads() -> None:
    def is_left(example: Any, label: str) -> bool:
        return label == "left"

    assert judge(routed("right", "x", "label"), label=is_left, c=equals("c")).shares == {"START_router": 1.0}
    assert judge(routed("left", "x", "label"), label=is_left, c=equals("c")).shares == {"left": 1.0}
    graph = Graph(State, inputs=["q"]).add_node("first", fake("q -> label", "right")).add_edge(START, "first")
    graph.add_conditional_edges("first", lambda label: label, ["left", "right"])
    for arm in ("left", "right"):
        graph.add_node(arm, fake("q -> c", "x")).add_edge(arm, END)
    assert judge(graph.compile(), label=is_left, c=equals("c")).shares == {"first": 1.0}


def commanding(label: str, update: Callable[[str], Any]) -> CompiledGraph:
    def decide(q: str, ask: Any) -> Command[Literal["left", "right"]]:
        found = ask(q=q).label
        return Command(update(found), found)

    graph = Graph(State, inputs=["q"]).add_edge(START, "decide")
    graph.add_node("decide", decide, modules={"ask": fake("q -> label", label)}, writes=["label"])
    for arm in ("left", "right"):
        graph.add_node(arm, fake("q -> c", "x")).add_edge(arm, END)
    return graph.compile()


def test_a_command_is_a_decision_that_gold_does_not_mend() -> None:
    assert judge(commanding("right", lambda label: {"label": label}), "label", "c").shares == {"decide.ask": 1.0}
    assert judge(commanding("left", lambda label: {"label": label}), "label", "c").shares == {"left": 1.0}
    for update in (lambda label: {"label": label}, lambda label: {}):
        assert judge(commanding("right", update), "c").shares == {"decide.ask": 0.5, "right": 0.5}


# --- items


def mapped(*tags: str) -> CompiledGraph:
    graph = Graph(State, inputs=["q"]).add_node("split", lambda q: {"items": [*range(len(tags))]}, writes=["items"])
    graph = Graph(inputs=["q"]).add_node("split", lambda q: {"items": [*range(len(tags))]}, writes=["items"])
    graph.add_map(
        "tag", FakePredict("item: int -> tag", lambda item: tags[item]), over="items", item="item", into="notes"
    )
    return graph.add_path(START, "split", "tag", END).compile()


def sending(*tags: str) -> CompiledGraph:
    def spread(q: str) -> list[Send]:
        return [Send("tag", {"item": item}) for item in range(len(tags))]

    graph = Graph(State, inputs=["q"]).add_conditional_edges(START, spread, ["tag"])
    graph.add_node("tag", FakePredict("item: int -> note", lambda item: tags[item]), writes={"note": "notes"})
    return graph.add_edge("tag", END).compile()


@pytest.mark.parametrize("build", [mapped, sending])
def test_each_wrong_item_is_told_of_itself(build: Callable[..., CompiledGraph]) -> None:
    name = "tag" if build is mapped else "note"
    assert not judge(build("1", "2"), "notes").shares
    found = judge(build("1", "x"), "notes")
    assert (found.shares, found.texts["tag"]) == ({"tag": 1.0}, (f"`{name}` is 'x', expected '2'.",))
    found = judge(build("x", "y"), "notes")
    assert found.texts["tag"] == (f"`{name}` is 'x', expected '1'.", f"`{name}` is 'y', expected '2'.")


def test_a_list_of_another_length_is_judged_as_a_whole() -> None:
    (text,) = judge(mapped("1"), "notes").texts["tag"]
    assert "is ['1'], expected ['1', '2']." in text
    found = judge(sending("1", "2", "x"), "notes")
    assert (found.shares, len(found.texts["tag"])) == ({"tag": 1.0}, 1), "the third one is too much"
    assert not judge(sending("1", "2"), notes=lambda example, notes: notes == ["1", "2"]).shares
    assert judge(sending("1", "x"), notes=lambda example, notes: notes == ["1", "2"]).shares == {"tag": 1.0}


def test_a_list_that_is_rightly_empty_is_right() -> None:
    example = dspy.Example(q="?", notes=[]).with_inputs("q")
    assert not culprits(mapped(), example, metric_of("notes")).shares


def test_a_checked_node_is_judged_by_what_it_gave_first_with_what_the_check_has_found() -> None:
    graph = Graph(State, inputs=["q"]).add_node("first", fake("q -> a", "long"))
    fix = FakePredict("q, previous_a, problems: list[str] -> a", lambda **inputs: "1")
    graph.add_check("fits", lambda a: ["too long"] if len(a) > 1 else [], of="first", fix=fix, into="tags")
    found = judge(graph.add_path(START, "first", END).compile(), "a")
    assert str(found) == "100 % first: `a` is 'long', expected '1'. A check found: too long"


def test_a_fix_is_judged_once_by_the_run_itself() -> None:
    graph = Graph(State, inputs=["q"]).add_node("first", fake("q -> a", "long")).add_node("second", fake("q -> b", "y"))
    fix = FakePredict("q, previous_a, problems: list[str] -> a", lambda **inputs: "x")
    graph.add_check("fits", lambda a: ["too long"] if len(a) > 1 else [], of="first", fix=fix, into="tags")
    program = graph.add_node("third", fake("b -> c", "3")).add_path(START, "first", "second", "third", END).compile()
    found = judge(program, a=lambda example, a: a == "1", b=equals("b"), c=equals("c"))
    assert found.shares == pytest.approx({"first": 1 / 3, "first_fix": 1 / 3, "second": 1 / 3})


@pytest.mark.parametrize("way", ["map", "send"])
def test_what_made_the_items_is_a_suspect_of_what_is_made_of_each(way: str) -> None:
    inner = Graph(name="Inner", inputs=["item"]).add_node("note", fake("item -> note", "x"))
    each = inner.add_path(START, "note", END).compile()
    graph = Graph(State, inputs=["q"]).add_node("first", fake("q -> tags: list[str]", ["1", "2"]))
    if way == "map":
        graph.add_map("each", each, over="tags", item="item", into="found").add_path(START, "first", "each", END)
    else:
        graph.add_node("each", each, writes={"note": "notes"}).add_edge(START, "first").add_edge("each", END)
        graph.add_conditional_edges("first", lambda tags: [Send("each", {"item": tag}) for tag in tags], ["each"])
    metric = by_field({"each.note": equals(lambda example: "ok")}, goal="each.note")
    assert culprits(graph.compile(), EXAMPLE, metric).suspects == ("first", "each.note")


# --- fields that several nodes write


def noted(*notes: str, at_once: bool = False) -> Graph:
    graph, names = Graph(State, inputs=["q"]), [f"n{at}" for at in range(len(notes))]
    for name, note in zip(names, notes, strict=True):
        graph.add_node(name, fake("q -> note", note), writes={"note": "notes"})
    graph.add_node("last", FakePredict("notes: list[str] -> c", lambda notes: "".join([*notes])))
    if at_once:
        return graph.add_edge(START, names).add_edge(names, "last").add_edge("last", END)
    return graph.add_path(START, *names, "last", END)


@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_reducer_folds_is_judged_where_it_is_read_and_not_replaced(at_once: bool) -> None:
    def notes(example: Any, notes: list[str]) -> bool:
        return bool(notes == example.notes)

    assert not judge(noted("1", "2", at_once=at_once).compile(), "notes").shares
    for metric in (equals("notes"), notes):
        found = judge(noted("1", "x", at_once=at_once).compile(), notes=metric, c=lambda example, c: c == "12")
        assert (found.shares, found.suspects) == ({"n0": 0.5, "n1": 0.5}, ("n0", "n1")), "`last` has read it"
        found = judge(noted("1", "2", at_once=at_once).compile(), notes=metric, c=lambda example, c: c == "3")
        assert (found.shares, found.suspects) == ({"last": 1.0}, ())
    program = noted("1", "x", at_once=at_once)

    def count(c: str) -> str:
        calls.append(c)
        return "1"

    program.add_node("end", FakePredict("c -> a", count)).add_edge("last", "end").add_edge("end", END)
    calls: list[str] = []
    judge(program.compile(), "notes", "a")
    assert len(calls) == 1, "no gold is put in: no gold run"
    assert judge(noted("x").compile(), "notes").shares == {"n0": 1.0}
    assert judge(noted("x").compile(), "notes").suspects == (), "it has written all of it"


def test_a_list_that_has_only_begun_is_right_if_gold_goes_on_so() -> None:
    def begun(first: str, second: str) -> CompiledGraph:
        graph = Graph(State, inputs=["q"]).add_node("one", fake("q -> note", first), writes={"note": "notes"})
        graph.add_node("look", fake("notes: list[str] -> c", "x"))
        graph.add_node("two", fake("c -> note", second), writes={"note": "notes"})
        return graph.add_path(START, "one", "look", "two", END).compile()

    assert judge(begun("1", "2"), "notes", "c").shares == {"look": 1.0}
    assert judge(begun("1", "x"), c=lambda example, c: c == "x", notes=equals("notes")).shares == {"two": 1.0}
    assert judge(begun("x", "2"), "notes", "c").shares == {"one": 1.0}, "what has read it is excused"
    found = judge(begun("1", "2"), notes=lambda example, notes: notes == example.notes, c=equals("c"))
    assert found.shares == {"one": 0.5, "look": 0.5}, "a function cannot tell before the end"


class Fails(dspy.Module):
    """It asks a predictor, and fails."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = fake("a -> b", "y")

    def forward(self, a: str) -> dspy.Prediction:
        raise ValueError(f"cannot use {self.ask(a=a).b}")


@pytest.mark.parametrize("into", ["failure", None])
def test_what_has_failed_before_a_handler_is_a_suspect_of_what_that_gives(into: str | None) -> None:
    def handled(a: str, answer: str) -> CompiledGraph:
        graph = Graph(inputs=["q"]).add_node("first", fake("q -> a", a))
        graph.add_node("second", Fails(), reads=["a"], writes=["b"]).add_node("third", fake("b -> c", "3"))
        graph.add_node("sorry", fake("q -> c", answer)).add_edge("sorry", END).add_error_edge(
            "second", "sorry", into=into
        )
        return graph.add_path(START, "first", "second", "third", END).compile()

    found = judge(handled("1", "sorry"), "a", "c")
    assert (found.shares, found.suspects) == ({"second.ask": 0.5, "sorry": 0.5}, ("second.ask", "sorry"))
    assert judge(handled("x", "3"), "a", "c").shares == {"first": 1.0}
    assert not judge(handled("1", "3"), "a", "c").shares, "what it gives is right"


def test_a_view_has_read_what_it_shows() -> None:
    graph = Graph(State, inputs=["q"]).add_node("one", fake("q -> note", "1"), writes={"note": "notes"})
    graph.add_node("two", fake("q -> note", "x"), writes={"note": "notes"})
    graph.add_node("last", fake("notes: list[str] -> c", "x"), reads={"notes": view("notes").by("two")})
    program = graph.add_path(START, "one", "two", "last", END).compile()
    assert judge(program, "c").shares == {"two": 0.5, "last": 0.5}
    found = judge(program, "notes", "c")
    assert (set(found.shares), set(found.suspects)) == ({"one", "two", "last"}, {"one", "two", "last"})


class Board(BaseModel):
    """A state with a live field."""

    q: str = ""
    notes: Annotated[list[str], reducers.append, live] = []
    a: str = ""


def test_live_fields_are_judged_and_not_replaced() -> None:
    def board(note: str) -> CompiledGraph:
        graph = Graph(Board, inputs=["q"]).add_node("one", fake("q -> note", note), writes={"note": "notes"})
        graph.add_node("last", FakePredict("notes: list[str] -> a", lambda notes: notes[0]))
        return graph.add_path(START, "one", "last", END).compile()

    example = dspy.Example(q="?", notes=["1"], a="1").with_inputs("q")
    assert not culprits(board("1"), example, metric_of("notes", "a")).shares
    assert culprits(board("x"), example, metric_of("notes", "a")).shares == {"one": 1.0}


def test_a_conversation_of_right_outputs_is_nobodys_fault() -> None:
    def talk(a: str, b: str) -> CompiledGraph:
        graph = Graph(State, inputs=["q"], conversation=True)
        for name, given, output, text in (("first", "q", "a", a), ("second", "a", "b", b)):
            lm = ScriptedLM(partial(lambda output, text, _: {output: text}, output, text))
            graph.add_node(name, dspy.Predict(f"{given} -> {output}"), lm=lm)
        return graph.add_path(START, "first", "second", END).compile()

    assert judge(talk("1", "x"), "a", "b").shares == {"second": 1.0}
    found = judge(talk("x", "x"), "a", "b")
    assert (found.shares, found.suspects) == ({"first": 0.75, "second": 0.25}, ("second",)), "it heard that"


def test_posts_to_a_live_field_are_judged_together() -> None:
    def says(ctx: Context, ask: Any) -> None:
        ctx.post("notes", ask(q="?").note)

    def team(*notes: str) -> CompiledGraph:
        graph, names = Graph(Board, inputs=["q"]), ["one", "two"]
        for name, note in zip(names, notes, strict=True):
            graph.add_node(name, says, modules={"ask": fake("q -> note", note)}, reads=["notes"], writes=["notes"])
        graph.add_node("last", FakePredict("notes: list[str] -> a", lambda notes: str(len(notes))))
        return graph.add_edge(START, names).add_edge(names, "last").add_edge("last", END).compile()

    example = dspy.Example(q="?", notes=["1", "2"], a="2").with_inputs("q")
    assert not culprits(team("1", "2"), example, metric_of("notes", "a")).shares
    found = culprits(team("1", "x"), example, metric_of("notes", "a"))
    assert (found.shares, found.suspects) == ({"one.ask": 0.5, "two.ask": 0.5}, ("one.ask", "two.ask"))


def test_what_has_lost_a_merge_unread_is_nobodys_fault() -> None:
    graph = Graph(State, inputs=["q"], merge={"b": prefer("two")})
    graph.add_node("one", fake("q -> b", "wrong too")).add_node("two", fake("q -> b", "x"))
    graph.add_node("last", fake("b -> c", "x")).add_edge(START, ["one", "two"])
    program = graph.add_edge(["one", "two"], "last").add_edge("last", END).compile()
    assert judge(program, "b", "c").shares == {"two": 0.5, "last": 0.5}


# --- where a gold run may not go


def asking(**options: Any) -> CompiledGraph:
    graph = Graph(State, inputs=["q"]).add_node("first", fake("q -> a", "x")).add_interrupt("ask", **ASK)
    graph.add_node("third", fake("b -> c", "x")).add_path(START, "first", "ask", "third", END)
    return graph.compile(**options)


def test_an_open_question_leaves_it_unjudged_and_answers_go_on() -> None:
    with pytest.raises(Interrupted):
        judge(asking(), "a", "c")
    assert judge(asking(answers={"ask": "2"}), "a", "b", "c").shares == {"first": 0.5, "third": 0.5}


def test_a_node_that_raises_ends_it() -> None:
    def fails(a: str) -> dict[str, str]:
        raise ValueError(f"cannot read {a}")

    with pytest.raises(ValueError, match="cannot read x"):
        judge(path(("first", fake("q -> a", "x")), ("second", fails)), "a")
    second = FakePredict("a -> b", lambda a: str(1 / int(a == "x")))  # it fails in the gold run alone
    program = path(("first", fake("q -> a", "x")), ("second", second), ("third", fake("b -> c", "x")))
    with pytest.raises(ZeroDivisionError):
        judge(program, "a", "c")


def test_ctrl_c_passes_through() -> None:
    def stops(a: str) -> dict[str, str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(path(("first", fake("q -> a", "x")), ("second", stops)), "a")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("error", "failed"), [(RunStoppedError("enough"), 0), (ValueError("no"), 1)])
def test_a_stop_in_a_gold_run_ends_an_optimization_and_a_failure_is_counted(error: Exception, failed: int) -> None:
    def second(a: str) -> str:
        if a == "1":  # in the gold run
            raise error
        return "x"

    program = path(("first", fake("q -> a", "x")), ("second", FakePredict("a -> b", second)))
    gepa = GEPA(metric_of("a", "b"), reflection_lm=SkillLM(), max_metric_calls=4, num_threads=1)
    with nullcontext() if failed else pytest.raises(RunStoppedError, match="enough"):
        gepa.compile(program, trainset=[EXAMPLE], valset=[EXAMPLE])
    assert gepa.stats.failed >= failed


def test_a_budget_passes_through() -> None:
    with pytest.raises(BudgetError):
        judge(path(("first", fake("q -> a", "x")), ("last", fake("a -> b", "y")), budget=Budget(node_calls=1)), "a")


def test_it_needs_no_store_and_writes_nothing_into_one() -> None:
    store = Memory()
    program = path(("first", fake("q -> a", "x")), ("last", fake("a -> b", "y")), store=store)
    assert judge(program, "a", "b").shares == {"first": 0.5, "last": 0.5}
    assert not list(store.threads())


@pytest.fixture
def pool() -> Iterator[BytesExecutor]:
    with BytesExecutor() as executor:
        yield executor


def test_it_runs_in_this_process(pool: BytesExecutor) -> None:
    inner = path(("second", fake("a -> b", "y")), ("third", fake("b -> c", "z")))
    graph = Graph(State, inputs=["q"]).add_node("first", fake("q -> a", "x")).add_node("inner", inner)
    program = graph.add_path(START, "first", "inner", END).compile()
    expected = {"first": 1 / 3, "inner.second": 1 / 3, "inner.third": 1 / 3}
    assert judge(program.with_executor(pool), "a", "b", "c").shares == pytest.approx(expected)


def test_it_may_be_asked_for_in_an_event_loop() -> None:
    async def ask() -> Culprits:
        return await asyncio.to_thread(judge, chain("x", "2", "3"), "a", "b", "c")

    assert asyncio.run(ask()).shares == {"first": 1.0}


# --- arguments


def test_what_cannot_be_judged_is_refused_before_anything_is_called() -> None:
    calls: list[Any] = []
    program = path(("first", FakePredict("q -> a", calls.append)))
    metric = metric_of("a")
    refused: Sequence[tuple[tuple[Any, ...], type[Exception], str]] = [
        (
            (None, EXAMPLE, metric),
            TypeError,
            r"culprits takes a program, and got .*culprits\(program, example, metric\)",
        ),
        ((program, EXAMPLE, equals("a")), TypeError, "culprits takes a metric by field"),
        ((program, {"q": "?"}, metric), TypeError, "give dspy.Example"),
        ((program, dspy.Example(q="?", a="1"), metric), ValueError, r"call example.with_inputs\('q'\)"),
        ((program, dspy.Example(q="?").with_inputs("q"), metric), ValueError, "the example has no 'a'"),
        ((program, EXAMPLE, metric_of("answer")), ValueError, "nothing writes 'answer'"),
    ]
    for arguments, error, text in refused:
        with pytest.raises(error, match=text):
            culprits(*arguments)
    assert not calls


def looping() -> tuple[CompiledGraph, Any, Callable[[int], dspy.Example]]:
    graph = Graph(name="Loop", inputs=["n", "i"]).add_node("a", fake("i: int -> x: int", 0))
    graph.add_node("count", lambda i: {"i": i + 1}, writes=["i"]).add_path(START, "a", "count")
    graph.add_conditional_edges("count", lambda i, n: "a" if i < n else END, ["a", END])
    metric = by_field({"x": equals(lambda example, state: 1)}, goal="x")
    return graph.compile(max_steps=1000), metric, lambda n: dspy.Example(n=n, i=0).with_inputs("n", "i")


def mapping() -> tuple[CompiledGraph, Any, Callable[[int], dspy.Example]]:
    each = Graph(name="Each").add_node("u", fake("item -> v: int", 0)).add_node("w", fake("v: int -> o: int", 0))
    graph = Graph(name="Map").add_map("m", each.add_path(START, "u", "w", END), over="items", item="item", into="out")
    graph.add_node("last", lambda out: {"c": len(out)}, writes=["c"]).add_path(START, "m", "last", END)
    metric = by_field({"m.v": equals(lambda example, state: 1), "out": equals("out"), "c": equals("c")}, goal="c")
    return graph.compile(), metric, lambda n: dspy.Example(items=["i"] * n, out=[1] * n, c=n).with_inputs("items")


def note(events: list[str], _frame: Any, event: str, _arg: Any) -> None:
    events.append(event)


@pytest.mark.parametrize("build", [looping, mapping])
def test_the_cost_grows_with_the_number_of_nodes(build: Callable[[], Any]) -> None:
    program, metric, example = build()
    costs = []
    for size in (20, 40, 80):
        events: list[str] = []
        before = sys.getprofile()
        sys.setprofile(partial(note, events))
        try:
            found = culprits(program, example(size), metric)
        finally:
            sys.setprofile(before)
        assert found.shares
        costs.append(events.count("call") + events.count("c_call"))
    assert costs[2] - costs[1] < 2.6 * (costs[1] - costs[0]), costs


def test_a_mapping_is_an_input_as_any_other() -> None:
    class Facts(BaseModel):
        facts: dict[str, int] = {}
        a: str = ""

    graph = Graph(Facts, inputs=["facts"]).add_node("sum", FakePredict("facts: dict -> a", lambda facts: "x"))
    example = dspy.Example(facts={"m": 1}, a="1").with_inputs("facts")
    program = graph.add_path(START, "sum", END).compile(store=Memory())
    assert culprits(program, example, metric_of("a")).shares == {"sum": 1.0}
