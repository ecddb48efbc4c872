"""The channels of a LangGraph as fields: what nodes see, what their results write, what a run is given."""

from __future__ import annotations

import operator
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Literal, NotRequired

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels import BinaryOperatorAggregate
from langgraph.graph import MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from langgraph.types import Command, Overwrite, Send
from pydantic import AfterValidator, BaseModel, Field, field_validator
from typing_extensions import ReadOnly, TypedDict

from dspyer import END, START, Archive, Graph, Replace, Run, Updates
from dspyer.errors import GraphError, InputError, NodeOutputError, RouteError
from dspyer.migrate import explain_langgraph, from_langgraph, langgraph_inputs
from dspyer.stores import Memory
from tests.rows import each


def chain(schema: Any, functions: Iterable[Any], **options: Any) -> Any:
    """The functions as nodes of LangGraph, one after the other."""
    builder: Any = StateGraph(schema, **options)
    builder.add_sequence([(f"n{number}", function) for number, function in enumerate(functions)])
    return builder.add_edge("__start__", "n0")


def idle(state: Any) -> Any:
    return {}


def run(schema: Any, *functions: Any, given: Any, **options: Any) -> Run:
    """A run of the functions as a converted graph; the options are of `from_langgraph`."""
    builder = chain(schema, functions)
    return from_langgraph(builder, **options).compile().run(langgraph_inputs(builder, given))


class Notes(MessagesState):
    notes: Annotated[list[str], operator.add]
    topic: str
    facts: dict[str, int]


@dataclass
class NotesObject:
    topic: str = "sea"
    notes: Annotated[list[str], operator.add] = field(default_factory=list)


class NotesModel(BaseModel):
    topic: str = "sea"
    notes: Annotated[list[str], operator.add] = []
    seen: str | None = None


def test_a_key_is_a_field_that_a_reducer_folds_or_a_value_replaces() -> None:
    state = run(
        Notes,
        lambda state: {"notes": ["b"], "facts": {"y": 2}, "messages": ("ai", "hi")},
        lambda state: Command(update={"notes": Overwrite(["c"])}),
        given={"notes": ["a"], "facts": {"x": 1}, "messages": "hello"},
    ).state
    assert (list(state["notes"]), dict(state["facts"])) == (["c"], {"y": 2})
    assert [message.content for message in state["messages"]] == ["hello", "hi"]
    assert len({message.id for message in state["messages"]}) == 2
    assert "topic" not in state


@pytest.mark.parametrize("schema", [NotesObject, NotesModel])
def test_a_class_as_schema_gives_an_instance_with_its_defaults(schema: Any) -> None:
    seen = []

    def note(state: Any) -> Any:
        seen.append(state)
        return schema(notes=["b"])

    state = run(schema, note, given={"notes": ["a"]}).state.to_dict()
    assert seen == [schema(topic="sea", notes=["a"])]
    assert state == chain(schema, [note]).compile().invoke({"notes": ["a"]}) == {"topic": "sea", "notes": ["a", "b"]}


TAKEN: list[tuple[Any, dict[str, Any]]] = [  # what a node returns, and what it changes
    (None, {}),
    (Command(update=[("notes", ["a"]), ("notes", ["b"])]), {"notes": ["z", "a", "b"]}),
    ([Command(goto="__end__"), {"topic": "x"}], {"topic": "x"}),
    ({"notes": {"__overwrite__": []}}, {"notes": []}),
]


@each(("result", "changes"), TAKEN)
def test_results_that_langgraph_takes(result: Any, changes: dict[str, Any]) -> None:
    given = {"notes": ["z"], "topic": "t"}
    found = run(Notes, lambda state: result, given=given).state.to_dict()
    assert found == chain(Notes, [lambda state: result]).compile().invoke(given) == {"messages": [], **given, **changes}


def test_results_that_are_refused() -> None:
    assert run(Notes, lambda state: {"other": 1}, given={}, extra="drop").status == "completed"
    for result, why in [
        ({"other": 1}, "'other'"),
        ([Command(update={"topic": "x"}), {"topic": "y"}], "the node returns two values for 'topic' at once"),
        ("x", "returned 'x', of type str"),
    ]:
        error = run(Notes, lambda state, result=result: result, given={}).error
        assert isinstance(error, NodeOutputError)
        assert why in str(error)


def test_a_root_value_is_the_field_root() -> None:
    state = run(Annotated[list, operator.add], lambda value: [*value, "b"], given=["a"]).state
    assert list(state["root"]) == ["a", "a", "b"]


def test_inputs_are_those_of_the_input_schema() -> None:
    class In(TypedDict):
        topic: str

    builder = chain(Notes, [lambda state: {}], input_schema=In)
    assert langgraph_inputs(builder, {"topic": "x", "notes": ["a"]}) == {"topic": "x"}
    with pytest.raises(InputError, match="None is no input of a new run"):
        langgraph_inputs(builder, None)
    with pytest.raises(InputError, match="no input 'notes'"):
        from_langgraph(builder).compile().run({"notes": ["a"]})


def test_ids_are_those_of_the_commit_and_given_ones_stay() -> None:
    messages = [AIMessage("a"), AIMessage("b", id="mine"), AIMessage("c")]
    state = run(Notes, lambda state: {"messages": messages}, given={}).state
    assert [message.id for message in state["messages"]] == ["trunk:1/0", "mine", "trunk:1/2"]


def test_a_field_may_be_called_root() -> None:
    class Tree(TypedDict):
        root: str
        leaves: Annotated[list[str], operator.add]

    program = from_langgraph(chain(Tree, [lambda state: {"root": state["root"].upper()}])).compile()
    assert program(root="a").toDict() == {"root": "A", "leaves": []}


def test_a_managed_value_is_seen_and_not_written() -> None:
    class Counted(TypedDict):
        n: int
        left: RemainingSteps

    found = run(Counted, lambda state: {"n": state["n"] + (state["left"] > 1), "left": 5}, given={"n": 1})
    assert found.state.to_dict() == {"n": 2}


def test_inputs_are_read_like_results() -> None:
    graph = StateGraph(Notes)
    update = Command(update=[("notes", ["a"]), ("notes", ["b"])])
    assert langgraph_inputs(graph, update) == {"notes": Updates(["a"], ["b"])}
    assert langgraph_inputs(graph, {"notes": Overwrite(["a"])}) == {"notes": Replace(["a"])}
    for value, why in [
        ("x", "the input is 'x', of type str: give a dict"),
        (Command(resume=1), "is no input of a new run: thread.resume"),
        (Command(update={"topic": "a"}, goto="n"), "is no input of a new run"),
        (Command(update=[("topic", "a"), ("topic", "b")]), "the input has two values for 'topic'"),
    ]:
        with pytest.raises(InputError, match=why):
            langgraph_inputs(graph, value)
    with pytest.raises(GraphError, match="has no nodes and edges to convert"):
        langgraph_inputs(object(), {})


class Place(TypedDict):
    name: str


class NoSchema:
    """A class that pydantic cannot validate."""


TYPES: dict[str, tuple[Any, Any, Any, str]] = {  # annotation, a value, what the field holds, a note
    "coerced": (int, "5", 5, ""),
    "with metadata": (Annotated[str, "a doc"], "x", "x", ""),
    "constrained": (Annotated[int, Field(gt=0)], 1, 1, ""),
    "not required": (NotRequired[list[int]], [1], [1], ""),
    "read only": (ReadOnly[int], "5", 5, ""),
    "no class of pydantic": (NoSchema, {"a": 1}, {"a": 1}, "field 'x' accepts anything: its type .*NoSchema"),
    "an iterable": (Iterable[int], [1, 2], [1, 2], "would make an iterator of a list"),
    "a TypedDict": (Place, {"name": "a", "more": 1}, {"name": "a", "more": 1}, "would drop the keys"),
    "a list of them": (list[Place], [{"more": 1}], [{"more": 1}], "would drop the keys"),
}


@each(("annotation", "value", "held", "note"), TYPES.values(), ids=TYPES)
def test_plain_fields_are_validated_by_their_annotation(annotation: Any, value: Any, held: Any, note: str) -> None:
    make: Any = TypedDict
    builder = chain(make("Values", {"x": annotation}), [lambda state: {"x": value}])
    report = explain_langgraph(builder)
    assert report.problems == ()
    assert len(report.notes) == bool(note)
    assert not note or re.search(note, report.notes[0])
    assert from_langgraph(builder).compile().run({}).state.to_dict() == {"x": held}


def test_a_value_that_does_not_fit_is_refused_unless_nothing_is_validated() -> None:
    class Typed(TypedDict):
        x: int

    def write(state: Any) -> Any:
        return {"x": "many"}

    assert run(Typed, write, given={}, validate=False).state.to_dict() == {"x": "many"}
    with pytest.raises(NodeOutputError, match="node 'n0' writes 'many' for field 'x'"):
        run(Typed, write, given={}).raise_error()


def test_fields_may_have_the_names_of_methods_of_models() -> None:
    make: Any = TypedDict
    names = make("Names", {"json": str, "model_dump": str})
    state = run(names, lambda state: {"model_dump": "x"}, given={"json": "y"}).state
    assert state.to_dict() == {"json": "y", "model_dump": "x"}


def test_the_root_value_and_a_field_of_its_name_are_a_problem() -> None:
    make: Any = TypedDict
    builder = chain(make("Both", {"__root__": str, "root": str}), [lambda state: {}])
    problem = "field 'root': it would be the field of the state's root value: rename it"
    assert explain_langgraph(builder).problems == (problem,)


def test_messages_with_a_format_are_messages_and_what_is_none_is_refused() -> None:
    class Formatted(TypedDict):
        messages: Annotated[list[Any], add_messages(format="langchain-openai")]

    (message,) = run(Formatted, lambda state: {"messages": "hi"}, given={}).state["messages"]
    assert message.content == "hi"
    with pytest.raises(NodeOutputError, match="5 is no message or list of messages"):
        run(Formatted, lambda state: {"messages": 5}, given={}).raise_error()


def test_a_start_that_no_state_can_hold_is_a_problem() -> None:
    class Odd(TypedDict):
        x: Annotated[NoSchema, lambda current, update: update]

    (problem,) = explain_langgraph(chain(Odd, [lambda state: {}])).problems
    assert re.search("field 'x' starts from .*NoSchema.*, which no field can hold", problem)


def test_each_graph_that_a_send_starts_gives_its_messages_ids_of_their_own() -> None:
    inner = StateGraph(MessagesState).add_node("say", lambda state: {"messages": [("ai", "x")]}).set_entry_point("say")
    outer: Any = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.set_conditional_entry_point(
        lambda state: [Send("inner", {"messages": [("user", str(number))]}) for number in range(3)], ["inner"]
    )
    expected = [message.content for message in outer.compile().invoke({"messages": []})["messages"]]
    messages = from_langgraph(outer).compile().run({}).state["messages"]
    assert [message.content for message in messages] == expected == ["0", "x", "1", "x", "2", "x"]
    assert len({message.id for message in messages}) == 6


def test_messages_of_two_runs_of_a_thread_differ() -> None:
    graph = StateGraph(MessagesState).add_node("say", lambda state: {"messages": "x"}).set_entry_point("say")
    thread = from_langgraph(graph).compile(store=":memory:").thread("1")
    for _ in range(2):
        state = thread.run(langgraph_inputs(graph, {"messages": "hi"})).state
    assert [message.content for message in state["messages"]] == ["hi", "x", "hi", "x"]
    assert len({message.id for message in state["messages"]}) == 4


@each(
    "value",
    [
        HumanMessage("hi", id="a", additional_kwargs={"n": [1]}),
        AIMessage(
            "x", id="m", tool_calls=[{"name": "look", "args": {"a": 1}, "id": "c"}], response_metadata={"t": 0.5}
        ),
        AIMessageChunk("x", id="m"),
        ToolMessage("found", tool_call_id="c", artifact={"rows": [1]}),
        RemoveMessage(id="m"),
        Document("page", metadata={"source": "a"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_langchain_are_read_back_without_the_program(value: Any) -> None:
    store = Memory()
    loose = Graph(name="Loose").add_node("keep", lambda: {"values": [value]}, writes=["values"])
    loose.add_path(START, "keep", END).compile(store=store).thread("t").run({})
    (found,) = Archive(store).thread("t").state()["values"]
    assert (type(found), found) == (type(value), value)


def add_all(*parts: Any) -> Any:
    return parts[0] + parts[1]


def add_swapped(left: Any, right: Any) -> Any:
    return right + left


def add_three(left: Any, right: Any) -> Any:
    return left + right + [3]


def add(left: list[Any], right: list[Any]) -> list[Any]:
    """Add."""
    return left + right


FOLDED: dict[Any, tuple[list[int], bool]] = {
    operator.add: ([1, 2], True),
    add: ([1, 2], True),
    add_all: ([1, 2], False),
    add_swapped: ([2, 1], False),
    add_three: ([1, 3, 2, 3], False),
    operator.iadd: ([1, 2], False),
}


@each("function", FOLDED, ids=lambda function: function.__name__)
def test_an_addition_of_lists_copies_no_item(function: Any) -> None:
    numbers, shared = FOLDED[function]
    make: Any = TypedDict
    channel = Annotated[list, BinaryOperatorAggregate(list, function)]
    builder = chain(make("Rows", {"rows": channel}), [idle, lambda state: {"rows": [{"n": 2}]}, idle])
    seen: list[list[Any]] = []
    look = {"node": lambda rows: seen.append(list(rows)), "writes": []}
    from_langgraph(builder, nodes={"n0": look, "n2": look}).compile().run({"rows": [{"n": 1}]}).raise_error()
    before, after = seen
    assert [row if row == 3 else row["n"] for row in after] == numbers
    assert any(row is before[0] for row in after) is shared


def test_a_message_that_is_added_copies_none_of_those_before() -> None:
    made: list[type] = []
    before: list[int] = []

    class Counted(HumanMessage):
        def __new__(cls, *_: Any, **__: Any) -> Any:
            made.append(cls)
            return super().__new__(cls)

    def say() -> dict[str, Any]:
        before.append(len(made))
        return {"messages": [AIMessage("")]}

    nodes = {f"n{number}": say for number in range(3)}  # of which the first has the ids of all messages read
    program = from_langgraph(chain(MessagesState, [idle] * 3), nodes=nodes).compile()
    assert len(program.run({"messages": [Counted("") for _ in range(80)]}).state["messages"]) == 83
    assert before[1] == before[2]


class Words(TypedDict):
    counts: Annotated[Counter[str], operator.add]
    places: Annotated[defaultdict[str, list[int]] | None, lambda left, right: {**(left or {}), **right}]
    plain: NotRequired[Counter[str]]
    groups: defaultdict[str, list[int]]
    order: OrderedDict[str, int]
    bare: defaultdict  # type: ignore[type-arg]


def test_nodes_and_reducers_get_the_dicts_that_annotations_name() -> None:
    kinds = []

    def count(state: Words) -> dict[str, Any]:
        kinds.append({key: type(value).__name__ for key, value in state.items()})
        return {
            "counts": Counter("ab"),
            "places": {"a": [1]},
            "plain": Counter("a"),
            "groups": defaultdict(list, b=[2]),
        }

    def group(state: Words) -> dict[str, Any]:
        kinds.append({key: type(value).__name__ for key, value in state.items()})
        state["groups"]["a"].append(len(state["counts"]))
        return {"groups": state["groups"], "counts": Counter("a"), "plain": state["plain"] + Counter("z")}

    builder = StateGraph(Words).add_node("count", count).add_node("group", group)
    builder.add_edge("__start__", "count").add_edge("count", "group")
    given: Any = {"order": OrderedDict(x=1), "bare": {}}
    old = builder.compile().invoke(given)
    seen_there, kinds = kinds, []
    new = from_langgraph(builder).compile().run(given).state.to_dict()
    assert new == old
    assert (new["counts"], new["groups"]) == ({"a": 2, "b": 1}, {"b": [2], "a": [2]})
    assert kinds[1]["groups"] == "defaultdict"
    assert kinds[1]["counts"] == kinds[1]["plain"] == "Counter"
    assert kinds[0]["order"] == seen_there[0]["order"] == "OrderedDict"
    assert kinds[1]["places"] == "defaultdict"


def test_a_send_to_a_graph_names_a_value_that_has_no_fields() -> None:
    inner = StateGraph(Notes).add_node("work", lambda state: {}).add_edge("__start__", "work").compile()
    builder = StateGraph(Notes).add_node("inner", inner)
    builder.add_conditional_edges("__start__", lambda state: [Send("inner", 5)], ["inner"])
    with pytest.raises(RouteError, match="sends 5 to 'inner', which takes fields: give a dict of them, or an object"):
        from_langgraph(builder).compile().run({}).raise_error()


class Validated(BaseModel):
    twice: Annotated[int, AfterValidator(lambda value: value * 2)] = 1
    label: Literal["a"] = "a"
    _hidden: int = 4

    @field_validator("label", mode="before")
    @classmethod
    def lower(cls, value: Any) -> Any:
        return value.lower()


@dataclass
class KeywordsOnly:
    _: KW_ONLY
    twice: int = 1
    label: str = "a"


@pytest.mark.parametrize("schema", [Validated, KeywordsOnly])
def test_validators_run_as_often_as_in_langgraph_and_attributes_that_are_no_data_are_left_out(schema: Any) -> None:
    seen: list[Any] = []

    def step(state: Any) -> Any:
        seen.append((state.twice, state.label))
        return Command(update=schema(twice=state.twice + 1, label="a"))

    builder = StateGraph(schema).add_node("a", step).add_node("b", step)
    builder.add_edge("__start__", "a").add_edge("a", "b")
    given = {"twice": 1, "label": "A"}
    builder.compile().invoke(given)
    there, seen = seen, []
    from_langgraph(builder).compile().run(given).raise_error()
    assert seen == there
    notes = " ".join(explain_langgraph(builder).notes)
    left = "_hidden" if schema is Validated else "_"
    assert f"{left!r} is left out: it is a private attribute or a marker of a class, and no data" in notes
