"""A graph as a node: what it gets of the state around it, and what it gives back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import DELETE, END, START, CompiledGraph, Graph, Replace, Run, Updates, reducers
from dspyer.errors import GraphError, UnsetFieldError
from tests.rows import each

MODES = pytest.mark.parametrize("mode", ["sync", "async"])


class Inner(BaseModel):
    question: str
    hint: str = ""
    scratch: str = ""
    answer: str | None = None
    notes: dict[str, Any] = {}
    log: Annotated[list[str], reducers.extend] = []


class Outer(BaseModel):
    question: str = ""
    topic: str = ""
    topics: list[str] = []
    answer: str | None = None
    notes: dict[str, Any] = {}
    log: Annotated[list[str], reducers.extend] = []
    lines: list[str] = []
    results: list[Any] = []


STATE = {"question": "q", "topic": "t", "notes": {"a": 1}, "log": ["0"]}
BOTH_LINES = Updates(["x"], ["y"])


class Part:
    """A graph whose one node makes these changes; `asked` has its inputs, call by call."""

    def __init__(
        self,
        changes: dict[str, Any],
        outputs: tuple[str, ...] | None = ("answer", "notes", "log"),
        writes: tuple[str, ...] | None = ("scratch", "answer", "notes", "log"),
    ) -> None:
        self.asked: list[tuple[str, str]] = []

        def work(question: str, hint: str) -> dict[str, Any]:
            self.asked.append((question, hint))
            return changes

        graph = Graph(Inner, name="Part", inputs=["question", "hint"], outputs=outputs)
        self.program = graph.add_node("work", work, writes=writes).add_path(START, "work", END).compile()


def around(part: Part | Graph, schema: type[BaseModel] | None = Outer, **options: Any) -> CompiledGraph:
    inputs = [*STATE] if schema is Outer else None
    program = part.program if isinstance(part, Part) else part
    graph = Graph(schema, inputs=inputs).add_node("node", program, **options)
    return graph.add_path(START, "node", END).compile()


def mapped(part: Part, schema: type[BaseModel] | None = Outer) -> CompiledGraph:
    graph = Graph(schema).add_map("node", part.program, over="topics", item="question", into="results")
    return graph.add_path(START, "node", END).compile()


def ran(program: CompiledGraph, mode: str = "sync", inputs: dict[str, Any] = STATE) -> Run:
    found = program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))
    found.raise_error()
    return found


def given(program: CompiledGraph, mode: str = "sync", inputs: dict[str, Any] = STATE) -> dict[str, Any]:
    """What the node commits."""
    return dict(ran(program, mode, inputs).commits[1].patch)


def facts(part: Part, schema: type[BaseModel] | None = Outer, **options: Any) -> str:
    """What the node reads and writes."""
    lines = around(part, schema, **options).graph.explain().splitlines()
    return next(line for line in lines if line.startswith("  node: ")).removeprefix("  node: ").partition("; ->")[0]


@MODES
def test_it_gets_its_inputs_and_gives_what_changed(mode: str) -> None:
    part = Part({"answer": "a", "scratch": "s"})
    assert given(around(part), mode) == {"answer": "a"}
    assert part.asked == [("q", "")]


def test_reads_and_writes_of_a_subgraph_node() -> None:
    assert facts(Part({})) == "reads question; writes answer, notes, log"
    assert facts(Part({}), None) == "reads question, hint; writes answer, notes, log"
    assert "inputs: question, hint (optional)" in around(Part({}), None).graph.explain()
    unknown = Graph().add_node("work", lambda question: {}).add_path(START, "work", END)
    assert "  node: reads question; writes ?;" in around(unknown, None).graph.explain()
    changes_an_input = Part({}, outputs=("answer",), writes=("question", "scratch", "answer"))
    assert facts(changes_an_input) == "reads question; writes answer, question"
    apart = facts(changes_an_input, reads={"question": "topic"})
    assert apart == "reads topic (as question); writes answer"


@MODES
@each(("writes", "declared"), [(None, "answer"), (("question",), "answer, question")])
def test_an_input_that_changed_inside_is_given_back(writes: Any, declared: str, mode: str) -> None:
    part = Part({"question": "better"}, ("answer",), writes)
    assert given(around(part), mode) == {"question": "better"}
    assert facts(part) == f"reads question; writes {declared}"
    assert given(around(part, reads={"question": "topic"}), mode) == {}
    assert given(around(part, writes={"question": "topic"}), mode) == {"topic": "better"}


@MODES
def test_a_field_with_a_reducer_gets_the_raw_updates(mode: str) -> None:
    run = ran(around(Part({"log": BOTH_LINES})), mode)
    assert (run.commits[1].patch, run.state["log"]) == ({"log": BOTH_LINES}, ["0", "x", "y"])


@MODES
@each(("schema", "writes", "field"), [(Outer, {"log": "lines"}, "lines"), (None, None, "log"), (None, ["log"], "log")])
def test_a_field_without_a_reducer_gets_the_value(schema: Any, writes: Any, field: str, mode: str) -> None:
    program = around(Part({"log": BOTH_LINES}), schema, writes=writes)
    assert ran(program, mode, STATE if schema else {"question": "q"}).state[field] == ["x", "y"]


@each(("changes", "notes"), [({"b": 1}, {"b": 1}), (Replace({"b": 1}), {"b": 1}), ({}, {"a": 1})])
def test_a_mapping_that_changed_is_given_whole(changes: Any, notes: dict[str, int]) -> None:
    assert ran(around(Part({"notes": changes}))).state["notes"] == notes


def test_a_field_that_was_reset_is_reset() -> None:
    graph = Graph(Inner, inputs=["question", "notes"], outputs=["notes"])
    graph.add_node("work", lambda: {"notes": DELETE}, writes=["notes"]).add_path(START, "work", END)
    outer = Graph(Outer, inputs=[*STATE]).add_node("node", graph).add_path(START, "node", END)
    assert ran(outer.compile()).state["notes"] == {}


def test_reads_and_writes_rename() -> None:
    part = Part({"answer": "a"})
    assert given(around(part, reads={"question": "topic"}, writes={"answer": "topic"})) == {"topic": "a"}
    assert part.asked == [("t", "")]


class Apart(BaseModel):
    elsewhere: str = ""


@each(
    ("schema", "options", "message"),
    [
        (Apart, {}, "its input 'question' is no field of the state"),
        (Apart, {}, "say where its results go, as writes={'answer': 'a field'}"),
        (Outer, {"writes": ["anser"]}, "Did you mean 'answer'?"),
        (Outer, {"reads": {"topic": "question"}}, "write reads={'question': 'topic'}"),
        (Outer, {"reads": []}, "its input 'question' is not in reads (none)"),
    ],
)
def test_outputs_that_do_not_fit_the_outer_state_are_problems(
    schema: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GraphError) as raised:
        around(Part({}), schema, **options)
    assert message in str(raised.value)


class Small(BaseModel):
    question: str
    hint: str = ""
    answer: str | None = None


@each(("schema", "outputs"), [(Small, ("answer",)), (Small, None), (None, None)])
def test_a_worker_of_a_map_gives_no_inputs_back(schema: Any, outputs: Any) -> None:
    asked: list[tuple[str, str]] = []

    def work(question: str, hint: str) -> dict[str, str]:
        asked.append((question, hint))
        return {"answer": "a", "hint": "changed"}

    graph = Graph(schema, inputs=["question", "hint"], outputs=outputs).add_node("work", work)
    graph = Graph().add_map("node", graph.add_path(START, "work", END), over="topics", item="question", into="results")
    program = graph.add_path(START, "node", END).compile()
    assert given(program, inputs={"topics": ["t"], "hint": "h"}) == {"results": ["a"]}
    assert asked == [("t", "h")]


def test_a_missing_input_raises() -> None:
    graph = Graph().add_node("first", lambda: None, writes=["question"]).add_node("node", Part({}).program)
    with pytest.raises(UnsetFieldError, match="'question'"):
        ran(graph.add_path(START, "first", "node", END).compile(), inputs={})


@MODES
@each("writes", [("scratch", "answer", "notes", "log"), None])
@each(
    ("outputs", "expected"),
    [
        (("answer",), "a"),
        (("log",), ["x", "y"]),
        (("hint",), ""),  # which did not change
        (("answer", "log"), {"answer": "a", "log": ["x", "y"]}),
        (("notes",), {}),
    ],
)
def test_a_worker_of_a_map_gives_the_values_of_its_outputs(
    outputs: tuple[str, ...], expected: object, writes: Any, mode: str
) -> None:
    part = Part({"answer": "a", "scratch": "s", "log": BOTH_LINES}, outputs, writes)
    run = ran(mapped(part), mode, {"topics": ["t1", "t2"]})
    assert run.state["results"] == [expected, expected]
    assert sorted(part.asked) == [("t1", ""), ("t2", "")]


def test_an_output_that_was_deleted_is_none_for_its_item() -> None:
    part = Part({"question": DELETE}, ("question",), ("question",))
    assert ran(mapped(part), inputs={"topics": ["t"]}).state["results"] == [None]


# --- graphs that are not compiled


def shout() -> Graph:
    graph = Graph(name="Shout").add_node("shout", lambda text: {"loud": text.upper()}, writes=["loud"])
    return graph.add_path(START, "shout", END)


def test_the_error_about_reads_names_each_input_once() -> None:
    graph = Graph().add_node("shout", shout(), reads=["txt"]).add_path(START, "shout", END)
    with pytest.raises(GraphError, match=r"'txt' in reads is none of its inputs \('text', 'loud'\)"):
        graph.compile()


def use_in_function(text: str, inner: Any) -> dict[str, Any]:
    return {"found": inner(text=text).loud}


def twice(loud: str) -> list[str]:
    return [] if loud.isupper() else ["too quiet"]


ADDED: dict[str, Callable[[Graph], Graph]] = {
    "as a node": lambda graph: graph.add_node("made", shout(), writes={"loud": "found"}),
    "per item": lambda graph: graph.add_map("made", shout(), over="text", item="text", into="found"),
    "bound to a function": lambda graph: graph.add_node("made", use_in_function, modules={"inner": shout()}),
}


@each("add", ADDED.values(), ids=ADDED)
def test_a_graph_is_compiled_where_a_program_may_be(add: Callable[[Graph], Graph]) -> None:
    program = add(Graph(outputs=["found"])).add_path(START, "made", END).compile()
    text: Any = ["hey"] if add is ADDED["per item"] else "hey"
    assert program(text=text).found == (["HEY"] if text == ["hey"] else "HEY")


def test_a_graph_that_was_given_may_be_changed_afterwards() -> None:
    inner = shout()
    program = Graph().add_node("made", inner).add_path(START, "made", END).compile()
    inner.add_node("more", lambda: {"x": 1})  # which no edge reaches
    assert program(text="hey").loud == "HEY"


def test_a_graph_as_a_check() -> None:
    judge = Graph(name="Judge").add_node("judge", lambda loud: {"problems": twice(loud)}, writes=["problems"])
    graph = Graph().add_node("say", lambda text: {"loud": text}, writes=["loud"])
    graph.add_check("judged", judge.add_path(START, "judge", END), of="say", fix=shout(), max_fixes=1)
    run = graph.add_path(START, "say", END).compile().run({"text": "hey"})
    assert run.state["loud"] == "HEY"
    assert [commit.node for commit in run.commits][1:] == ["say", "judged", "say_fix", "judged"]


def test_what_is_wrong_with_a_graph_names_the_node_that_got_it() -> None:
    with pytest.raises(GraphError) as refusal:
        Graph().add_node("made", Graph(name="Empty"))
    assert "in the graph 'Empty' that was given for node 'made'" in "".join(refusal.value.__notes__)
