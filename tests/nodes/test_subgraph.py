"""A graph as a node: the program is a fake that implements the node's protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, reducers
from dspyer.errors import GraphError, UnsetFieldError
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.node import Reply
from dspyer.nodes.program_calls import is_program
from dspyer.nodes.subgraph import SubgraphNode
from dspyer.patch import DELETE
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.values.freezing import freeze
from tests.nodes.kit import MODES, OPEN, built, built_map, call_of, good, holder, reply
from tests.rows import each


class Inner(BaseModel):
    question: str
    hint: str = ""
    scratch: str = ""
    answer: str | None = None
    notes: dict[str, Any] = {}
    log: Annotated[list[str], reducers.extend] = []


class Small(BaseModel):
    question: str
    hint: str = ""
    answer: str | None = None


class Outer(BaseModel):
    question: str
    topic: str = ""
    topics: list[str] = []
    answer: str | None = None
    notes: dict[str, Any] = {}
    log: Annotated[list[str], reducers.extend] = []
    lines: list[str] = []
    results: list[Any] = []


@dataclass
class View:
    inputs: tuple[str, ...]
    required: frozenset[str]
    outputs: tuple[str, ...] | None
    writes: tuple[str, ...] | None
    topology: Any
    closed: bool = True
    also: frozenset[str] = frozenset()


@dataclass
class Shape:
    schema: Schema


@dataclass
class Inside:
    changed: Mapping[str, object]
    inputs: Any
    prediction = dspy.Prediction()

    def changes(self) -> Mapping[str, object]:
        return self.changed


class Program(dspy.Module):
    """A fake program: it returns the given changes and records its inputs."""

    _dspyer_program = True

    def __init__(
        self,
        changes: Mapping[str, object],
        outputs: tuple[str, ...] | None = ("answer", "notes", "log"),
        writes: tuple[str, ...] | None = ("scratch", "answer", "notes", "log"),
        schema: Schema | None = None,
    ) -> None:
        super().__init__()
        self.changes = dict(changes)
        self.given: list[dict[str, Any]] = []
        self.graph = View(
            ("question", "hint"), frozenset({"question"}), outputs, writes, Shape(schema or Schema.of(Inner))
        )

    def _run_inside(self, inputs: dict[str, Any], attempt: Attempt, **options: Any) -> Inside:
        self.given.append(inputs)
        schema = self.graph.topology.schema
        return Inside(self.changes, schema.initial_state(schema.as_replacements(inputs)))

    async def _arun_inside(self, inputs: dict[str, Any], attempt: Attempt, **options: Any) -> Inside:
        return self._run_inside(inputs, attempt, **options)


OUTER = Schema.of(Outer)
STATE = {"question": "q", "topic": "t"}


def run(program: Program, mode: str = "sync", *, schema: Schema = OUTER, **options: Any) -> Reply:
    node = good(built(program, schema=schema, **options))
    assert isinstance(node, SubgraphNode)
    return reply(node, call_of(STATE, program=holder(node=program)), mode)


def test_a_compiled_graph_is_known_by_its_class() -> None:
    assert is_program(Program({}))
    assert not is_program(dspy.Predict("a -> b"))


@MODES
def test_it_gets_its_inputs_and_gives_what_changed(mode: str) -> None:
    program = Program({"answer": "a", "scratch": "s"})
    assert run(program, mode) == Reply({"answer": "a"}, None, True)
    assert program.given == [{"question": "q"}]


def test_reads_and_writes_of_a_subgraph_node() -> None:
    node = good(built(Program({}), schema=OUTER))
    assert (node.reads, node.optional) == ({"question": "question"}, frozenset())
    assert node.writes == {"answer": "answer", "notes": "notes", "log": "log"}
    node = good(built(Program({})))
    assert (node.reads, node.optional) == ({"question": "question", "hint": "hint"}, frozenset({"hint"}))
    assert good(built(Program({}, outputs=None, writes=None))).writes is None
    changes_an_input = Program({}, outputs=("answer",), writes=("question", "scratch", "answer"))
    assert good(built(changes_an_input, schema=OUTER)).writes == {"answer": "answer", "question": "question"}
    apart = good(built(changes_an_input, schema=OUTER, reads={"question": "topic"}))
    assert apart.writes == {"answer": "answer"}


@MODES
@pytest.mark.parametrize(("writes", "declared"), [(None, ["answer"]), (("question",), ["answer", "question"])])
def test_an_input_that_changed_inside_is_given_back(writes: Any, declared: list[str], mode: str) -> None:
    program = Program({"question": "better"}, ("answer",), writes)
    assert run(program, mode).updates == {"question": "better"}
    assert list(good(built(program, schema=OUTER)).writes or ()) == declared
    assert run(program, mode, reads={"question": "topic"}).updates == {}
    assert run(program, mode, writes={"question": "topic"}).updates == {"topic": "better"}


@MODES
def test_a_field_with_a_reducer_gets_the_raw_updates(mode: str) -> None:
    updates = Updates(freeze(["x"]), freeze(["y"]))
    given = run(Program({"log": updates}), mode)
    assert given.updates == {"log": updates}
    patch, after = OUTER.commit(
        OUTER.initial_state({"question": "q", "log": ["0"]}),
        given.updates,
        node="n",
        commit_id="1",
        whole_values=given.whole,
    )
    assert after["log"] == ["0", "x", "y"]
    assert patch == {"log": updates}


@MODES
@each(("schema", "writes", "field"), [(OUTER, {"log": "lines"}, "lines"), (OPEN, None, "log"), (OPEN, ["log"], "log")])
def test_a_field_without_a_reducer_gets_the_value(schema: Schema, writes: Any, field: str, mode: str) -> None:
    program = Program({"log": Updates(freeze(["x"]), freeze(["y"]))})
    given = run(program, mode, schema=schema, writes=writes)
    assert given.updates == {field: ["x", "y"]}


def test_a_field_that_was_reset_is_reset() -> None:
    given = run(Program({"notes": DELETE}))
    assert given.updates == {"notes": DELETE}


def test_a_mapping_that_changed_is_given_whole() -> None:
    given = run(Program({"notes": freeze({"b": 1})}))
    state = OUTER.initial_state({"question": "q", "notes": {"a": 1}})
    _, after = OUTER.commit(state, given.updates, node="n", commit_id="1", whole_values=given.whole)
    assert after["notes"] == {"b": 1}


def test_reads_and_writes_rename() -> None:
    program = Program({"answer": "a"})
    given = run(program, reads={"question": "topic"}, writes={"answer": "topic"})
    assert (program.given, given.updates) == ([{"question": "t"}], {"topic": "a"})


class Apart(BaseModel):
    elsewhere: str = ""


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (Schema.of(Apart), {}, "its input 'question' is no field of the state"),
        (Schema.of(Apart), {}, "say where its results go, as writes={'answer': 'a field'}"),
        (OUTER, {"writes": ["anser"]}, "Did you mean 'answer'?"),
        (OUTER, {"reads": {"topic": "question"}}, "write reads={'question': 'topic'}"),
        (OUTER, {"reads": []}, "its input 'question' is not in reads (none)"),
    ],
)
def test_outputs_that_do_not_fit_the_outer_state_are_problems(
    schema: Schema, options: dict[str, Any], message: str
) -> None:
    found = built(Program({}), schema=schema, **options)
    text = "\n".join((*found.problems, *found.unknown))
    assert message in text


def test_a_worker_of_a_map_gives_no_inputs_back() -> None:
    for outputs in (("answer",), None):
        program = Program({"answer": "a", "hint": "changed"}, outputs, None, Schema.of(Small))
        found = built_map(program, schema=OPEN, over="topics", item="question", into="results")
        call = call_of({"topics": ["t"], "hint": "h"}, program=holder(node=program))
        assert reply(good(found), call).updates == {"results": ["a"]}
        assert program.given == [{"question": "t", "hint": "h"}]


def test_a_worker_of_a_map_gives_outputs_that_did_not_change() -> None:
    program = Program({}, ("hint",))
    found = built_map(program, schema=OUTER, over="topics", item="question", into="results")
    call = call_of({"topics": ["t"]}, program=holder(node=program))
    assert reply(good(found), call).updates == {"results": [""]}


def test_a_missing_input_raises() -> None:
    program = Program({})
    node = good(built(program))
    with pytest.raises(UnsetFieldError, match="'question'"):
        reply(node, call_of(program=holder(node=program)))


@MODES
@pytest.mark.parametrize("writes", [(), None], ids=["declared", "unknown"])
@each(
    ("outputs", "expected"),
    [
        (("answer",), "a"),
        (("log",), ["x", "y"]),
        (("hint",), ""),
        (("answer", "log"), {"answer": "a", "log": ["x", "y"]}),
        (("notes",), {}),
    ],
)
def test_a_worker_of_a_map_gives_the_values_of_its_outputs(
    outputs: tuple[str, ...], expected: object, writes: Any, mode: str
) -> None:
    changes = {"answer": "a", "scratch": "s", "notes": DELETE, "log": Updates(freeze(["x"]), freeze(["y"]))}
    program = Program(changes, outputs, writes)
    found = built_map(program, schema=OUTER, over="topics", item="question", into="results")
    call = call_of({"topics": ["t1", "t2"]}, program=holder(node=program))
    given = reply(good(found), call, mode)
    if outputs == ("notes",):
        expected = None
    assert given.updates == {"results": [expected, expected]}
    assert program.given == [{"question": "t1"}, {"question": "t2"}]


# --- graphs that are not compiled


def shout() -> Graph:
    graph = Graph(name="Shout").add_node("shout", lambda text: {"loud": text.upper()}, writes=["loud"])
    return graph.add_path(START, "shout", END)


def use_in_function(text: str, inner: Any) -> dict[str, Any]:
    return {"found": inner(text=text).loud}


def twice(loud: str) -> list[str]:
    return [] if loud.isupper() else ["too quiet"]


ADDED: dict[str, Callable[[Graph], Graph]] = {
    "as a node": lambda graph: graph.add_node("made", shout(), writes={"loud": "found"}),
    "per item": lambda graph: graph.add_map("made", shout(), over="text", item="text", into="found"),
    "bound to a function": lambda graph: graph.add_node("made", use_in_function, modules={"inner": shout()}),
}


@pytest.mark.parametrize("add", ADDED.values(), ids=ADDED)
def test_a_graph_is_compiled_where_a_program_may_be(add: Callable[[Graph], Graph]) -> None:
    program = add(Graph(outputs=["found"])).add_path(START, "made", END).compile()
    text: Any = ["hey"] if program.graph.nodes["made"].map_fields else "hey"
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
