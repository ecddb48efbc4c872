"""Interrupt nodes: the question, the field of the answer, and options that are refused when the graph is built."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import cloudpickle
import pytest
from pydantic import BaseModel, BeforeValidator, Field, create_model

from dspyer import END, START, CompiledGraph, Context, Graph, ImmutableState, Send, reducers
from dspyer.errors import GraphError, InputError, NodeOutputError, UnsetFieldError
from dspyer.testing import call_node
from tests.rows import each
from tests.runtime.conftest import Play, play

__all__ = ["play"]


class Mail(BaseModel):
    draft: str = "Dear Ada"
    price: float = 2.5
    parts: list[str] = ["a", "b"]
    count: int = Field(default=0, gt=100)
    tone: Literal["warm", "cold"] = "warm"
    table: dict[str, int] = {}
    approved: bool = False
    note: str | None = None
    unset: str


def asking(schema: type[BaseModel] | None = Mail, **options: Any) -> Graph:
    graph = Graph(schema, inputs=["draft"] if schema else None)
    return graph.add_interrupt("approve", **options).add_path(START, "approve", END)


def shout(draft: str, tone: str) -> str:
    return f"{tone}: {draft.upper()}"


def peek(state: ImmutableState, ctx: Context) -> str:
    return f"{state['draft']} at {ctx.node}"


QUESTIONS: dict[str, tuple[Any, str]] = {
    "text": ("Send it?", "Send it?"),
    "field": ("Send {draft}?", "Send Dear Ada?"),
    "values as in a prompt": ("{parts} {approved} {note}", '["a", "b"] False None'),
    "other braces": ('{"price": {price}}, {}', '{"price": 2.5}, {}'),
    "braces": ("{{draft}} is {draft}", "{draft} is Dear Ada"),
    "function": (shout, "warm: DEAR ADA"),
    "function of the state": (peek, "Dear Ada at approve"),
    "lambda of nothing": (lambda: "Go?", "Go?"),
}


@each(("question", "text"), QUESTIONS.values(), ids=QUESTIONS)
def test_the_question_is_a_template_or_a_function_of_fields(play: Play, question: Any, text: str) -> None:
    program = asking(question=question, into="approved").compile()
    run = play(program, {})
    assert [(asked.text, asked.key, asked.node) for asked in run.questions] == [(text, "approve", "approve")]
    done = play(program, {}, answers={"approve": True})
    assert done.state["approved"] is True
    assert done.commits[-1].patch == {"approved": True}


def test_values_in_a_question_are_not_templates_themselves() -> None:
    program = asking(question="Send {draft}?", into="approved").compile()
    assert program.run({"draft": "{price} {0.__class__}"}).questions[0].text == "Send {price} {0.__class__}?"


ANSWERS: dict[str, tuple[Any, str, Any, Any]] = {
    "no": (bool, "approved", False, False),
    "zero": (float, "price", 0, 0.0),
    "empty": (str, "draft", "", ""),
    "none": (str | None, "note", None, None),
    "literal": (Literal["warm", "cold"], "tone", "cold", "cold"),
    "mapping, as a whole": (dict[str, int], "table", {"b": 2}, {"b": 2}),
    "some fit": (Literal["warm", "odd"], "tone", "warm", "warm"),
    "a number that may be large enough": (int, "count", 200, 200),
}


@each(("kind", "into", "given", "stored"), ANSWERS.values(), ids=ANSWERS)
def test_the_answer_is_committed_to_its_field(kind: Any, into: str, given: Any, stored: Any) -> None:
    program = asking(question="?", answer=kind, into=into).compile(store=":memory:")
    program.thread("t").run({})
    run = program.thread("t").resume({"approve": given})
    assert (run.status, run.state.to_dict()[into]) == ("completed", stored)


class Level(Enum):
    LOW = "low"
    ONE = 1


class Visit(BaseModel):
    day: date
    hours: tuple[int, ...] = ()
    sure: bool = True


class Sum(BaseModel, extra="forbid", populate_by_name=True):
    value: int = Field(alias="amount")


TODAY = date(2026, 11, 23)
READ: dict[str, tuple[Any, Any, Any]] = {
    "a number": (float, 3, 3.0),
    "a date as text": (date, "2026-11-23", TODAY),
    "a date as such": (date, TODAY, TODAY),
    "a decimal as text": (Decimal, "1.50", Decimal("1.50")),
    "a decimal as a number": (Decimal, 2, Decimal(2)),
    "a list for a set": (set[int], [1, 2], {1, 2}),
    "a list for a tuple": (tuple[int, str], [1, "a"], (1, "a")),
    "an enum by its value": (Level, "low", Level.LOW),
    "an enum as such": (Level, Level.ONE, Level.ONE),
    "a model as JSON": (Visit, {"day": "2026-11-23", "hours": [9]}, Visit(day=TODAY, hours=(9,))),
    "a model with instances": (Visit, {"day": TODAY}, Visit(day=TODAY)),
    "a model by the names of its fields": (Sum, {"value": 1}, Sum(value=1)),
    "a model as such": (Visit, Visit(day=TODAY), Visit(day=TODAY)),
    "a text that may be a number": (int | str, "1", "1"),
}
REFUSED: dict[str, tuple[Any, Any]] = {
    "a text for yes": (bool, "yes"),
    "a number for yes": (bool, 1),
    "a text for a number": (int, "1"),
    "a text for a decimal": (float, "1.5"),
    "a whole number with a fraction": (int, 1.0),
    "a yes for a number": (int, True),
    "a number for a text": (str, 5),
    "a number for a date": (date, 5),
    "a date for a text": (str, TODAY),
    "a number for the literal true": (Literal[True], 1),
    "a number for the literal true of a mapping": (dict[str, Literal[True]], {"a": 1}),
    "a yes for the literal 1": (Literal[1], True),
    "a yes for an enum": (Level, True),
    "within a model": (Visit, {"day": "2026-11-23", "sure": "on"}),
    "a text in a list": (list[int], ["1"]),
}


@pytest.mark.parametrize("inside", [False, True], ids=["node", "function in a graph"])
@each("case", [*READ, *REFUSED])
def test_an_answer_is_read_as_strict_json(case: str, inside: bool) -> None:
    """Of an interrupt node, and of a question whose class only the function knows, in a graph inside."""
    kind, answer = (READ.get(case) or REFUSED[case])[:2]
    got: list[Any] = []

    def ask(ctx: Context) -> None:
        got.append(ctx.interrupt("approve", "?", answer=kind))

    if inside:
        graph = Graph().add_node("inner", Graph().add_node("ask", ask).add_path(START, "ask", END), writes=[])
        graph.add_path(START, "inner", END)
    else:
        graph = Graph().add_interrupt("approve", question="?", answer=kind, into="got")
        graph.add_node("use", lambda state: got.append(state["got"]), writes=[]).add_path(START, "approve", "use", END)
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({})
    if case in READ:
        assert thread.resume({"approve": answer}).status == "completed"
        assert got == [READ[case][2]]
        return
    with pytest.raises(InputError, match="The question is open"):
        thread.resume({"approve": answer}).raise_error()
    assert ([question.key for question in thread.questions], got) == (["approve"], [])
    assert inside or thread.status == "interrupted"


def test_a_resume_calls_no_node_again() -> None:
    calls: list[str] = []

    def text(draft: str) -> str:
        calls.append("text")
        return draft

    graph = Graph(Mail, inputs=["draft"]).add_node("write", lambda: calls.append("write"), writes=[])
    graph.add_interrupt("approve", question=text, into="approved").add_path(START, "write", "approve", END)
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({})
    assert thread.resume({"approve": True}).state["approved"] is True
    assert calls == ["write", "text"]


def test_a_question_without_answer_waits() -> None:
    graph = asking(question="Look at {draft}", answer=None)
    run = graph.compile().run({})
    assert run.questions[0].answer is None
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({})
    assert thread.resume().status == "completed"
    assert isinstance(graph.compile(answers={"approve": False}).run({}).error, InputError)


def test_a_router_after_it_reads_the_answer() -> None:
    graph = Graph(Mail, inputs=["draft"]).add_interrupt("approve", question="{draft}?", into="approved")
    graph.add_node("send", lambda: {"draft": "sent"}, writes=["draft"]).add_edge(START, "approve")
    graph.add_conditional_edges("approve", "approved", {True: "send", False: END}).add_edge("send", END)
    for answer, draft in ((True, "sent"), (False, "Dear Ada")):
        assert graph.compile().run({}, answers={"approve": answer}).state["draft"] == draft


def test_a_send_brings_values_for_the_question() -> None:
    graph = Graph().add_interrupt("approve", question="Send {doc}?", into="ok").add_edge("approve", END)
    graph.add_conditional_edges(START, lambda: [Send("approve", {"doc": "a"})], ["approve"])
    assert graph.compile().run({}).questions[0].text == "Send a?"


def test_reads_writes_and_pictures_of_an_interrupt_node() -> None:
    program = asking(question="Send {draft}?", into="approved").compile()
    graph = program.graph
    assert "approve: reads draft; writes approved; -> END" in graph.explain()
    assert 'approve_{{"approve"}}' in graph.to_mermaid()
    assert "approve: interrupt" in graph.to_svg()
    text = inspect.getsource(type(program))
    assert """graph.add_interrupt("approve", question='Send {draft}?', answer=bool, into="approved")""" in text
    shown = inspect.getsource(type(asking(question=shout, answer=None).compile()))
    assert 'graph.add_interrupt("approve", question=shout, answer=None)' in shown
    assert "def shout(draft: str, tone: str)" in shown


def test_without_a_schema_its_fields_are_inputs() -> None:
    graph = asking(None, question="Send {draft}?", into="approved")
    with pytest.raises(InputError, match="'draft', read by 'approve'"):
        graph.compile().run({})


async def later() -> str:
    return "?"


class Colour(Enum):
    RED = "red"


class Bill(BaseModel):
    amount: float


def as_price(bill: Bill) -> str:
    return f"{bill.amount:.2f}"


@dataclass
class Place:
    town: str


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"question": "{drift}?"}, "{drift} in its question is no field of the state"),
    "near miss": ({"question": "{drift}?"}, "Did you mean 'draft'?"),
    "no question": ({"question": 3}, "its question is 3: give a text, or a function of fields"),
    "unknown parameter": ({"question": lambda drift: drift}, "its parameter 'drift' is no field of the state"),
    "async": ({"question": later}, "its question is an async function"),
    "into nowhere": ({"question": "?", "into": None}, "its answer goes nowhere, so a no would change nothing"),
    "into an unknown field": ({"question": "?", "into": "aproved"}, "Did you mean 'approved'?"),
    "nothing into": ({"question": "?", "answer": None}, "it takes no answer that into='approved' could get"),
    "no type": ({"question": "?", "answer": 3}, "answer=3 is no type of answers"),
    "a function": ({"question": "?", "answer": shout}, "is no type of answers (a function)"),
}
TO = "its answer is {}, and field 'said' takes {}"
MISFITS: dict[str, tuple[Any, Any, str]] = {  # what is asked, and the field
    "yes into text": (bool, str, TO.format("bool", "str")),
    "number into text": (int, str | None, TO.format("int", "str | None")),
    "text into a number": (str, int, TO.format("str", "int")),
    "text into a list": (str, list[str], TO.format("str", "list[str]")),
    "list into text": (list[str], str | int, TO.format("list[str]", "str | int")),
    "model into a dict": (Bill, dict, TO.format("Bill", "dict")),
    "model into a mapping of any": (Bill | None, dict[str, Any], "'said' takes dict[str, "),
    "models into dicts": (list[Bill], list[dict[str, Any]], "'said' takes list[dict["),
    "model into text": (Bill, str, TO.format("Bill", "str")),
    "record into a dict": (Place, dict, TO.format("Place", "dict")),
    "date into text": (date, str, TO.format("date", "str")),
    "none of a literal": (Literal["odd"], Literal["even"], TO.format("Literal['odd']", "Literal['even']")),
    "none of an enum": (Colour | None, Literal["x", "y"], TO.format("Colour | NoneType", "Literal['x', 'y']")),
    "yes into a literal": (bool, Literal["yes", "no"], TO.format("bool", "Literal['yes', 'no']")),
    "a list where items are added": (
        list[str],
        Annotated[list[str], reducers.append],
        "its answer is list[str], and field 'said' takes by its reducer 'append' str",
    ),
    "a model where dicts are added": (
        Bill,
        Annotated[list[dict[str, Any]], reducers.append],
        "its answer is Bill, and field 'said' takes by its reducer 'append' dict[str, ",
    ),
}


@each(("answer", "field", "text"), MISFITS.values(), ids=MISFITS)
def test_a_question_whose_answer_its_field_refuses_is_not_built(answer: Any, field: Any, text: str) -> None:
    graph = Graph(create_model("Asked", said=(field, ...)), inputs=["said"])
    graph.add_interrupt("ask", question="?", answer=answer, into="said").add_path(START, "ask", END)
    with pytest.raises(GraphError) as caught:
        graph.compile()
    assert "node 'ask'" in str(caught.value)
    assert text in str(caught.value)


@each(("options", "text"), PROBLEMS.values(), ids=PROBLEMS)
def test_wrong_options_are_refused_when_the_graph_is_built(options: dict[str, Any], text: str) -> None:
    with pytest.raises(GraphError) as caught:
        asking(**{"into": "approved", **options}).compile()
    assert "node 'approve'" in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "answer", "given", "found"),
    [
        (Literal["yes", "no"], str, "yes", "yes"),
        (Literal["yes"] | None, str, "yes", "yes"),
        (Literal[1, 2], int, 2, 2),
        (Colour, str, "red", Colour.RED),
        (float, int, 5, 5.0),
        (bool, int, 1, True),
        (Bill, Bill, {"amount": 1}, Bill(amount=1)),
        (Bill, dict[str, float], {"amount": 1}, Bill(amount=1)),
        (dict[str, Any] | Bill, Bill, {"amount": 1}, Bill(amount=1)),
        (str, str | None, "x", "x"),
        (list[str], tuple[str, ...], ["x"], ["x"]),
        (Annotated[list[str], reducers.append], str, "x", ["x"]),
        (Annotated[dict[str, Any], reducers.update], dict[str, int], {"x": 1}, {"x": 1}),
        pytest.param(Annotated[str, BeforeValidator(as_price)], Bill, {"amount": 1}, "1.00", id="a validator"),
    ],
    ids=str,
)
def test_an_answer_that_may_be_one_of_the_values_of_a_field_is_built(
    wanted: Any, answer: Any, given: Any, found: Any
) -> None:
    graph = Graph(create_model("Asked", said=(wanted, ...)), inputs=[])
    graph.add_interrupt("ask", question="?", answer=answer, into="said").add_path(START, "ask", END)
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({})
    assert thread.resume({"ask": given}).state["said"] == found


def test_its_name_must_not_be_a_key_of_compile() -> None:
    graph = Graph().add_interrupt("before", question="?", into="ok").add_path(START, "before", END)
    with pytest.raises(GraphError, match=r"Breakpoints\(before=\) has this key"):
        graph.compile()


RUNTIME: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unset": ({"question": "{unset}"}, UnsetFieldError, "node 'approve' reads 'unset'"),
    "no text": ({"question": lambda: 3}, NodeOutputError, "its question is 3, of type int"),
}


@pytest.mark.parametrize(("options", "kind", "text"), RUNTIME.values(), ids=RUNTIME)
def test_errors_of_the_question_are_raised_in_the_run(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    graph = Graph(Mail).add_node("set", lambda: None, writes=["unset"])
    graph.add_interrupt("approve", **options, into="approved").add_path(START, "set", "approve", END)
    error = graph.compile().run({"draft": "x"}).error
    assert isinstance(error, kind)
    assert text in str(error)


def test_a_node_called_without_a_run_asks_too() -> None:
    program: CompiledGraph = asking(question="Send {draft}?", into="approved").compile()
    assert call_node(program, "approve", {"draft": "x"}, answers={"approve": False}) == {}
    assert call_node(program, "approve", {"draft": "x"}, answers={"approve": True}) == {"approved": True}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda program: cloudpickle.loads(cloudpickle.dumps(program))])
def test_a_copy_of_a_program_asks_the_same(copied: Any) -> None:
    graph = Graph(Mail, inputs=[]).add_interrupt("approve", question="Send it?", answer=bool, into="approved")
    run = copied(graph.add_path(START, "approve", END).compile()).run({})
    assert [question.text for question in run.questions] == ["Send it?"], run.error
