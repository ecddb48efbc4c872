"""Checks: which corrections follow an output, what they read and write, and what is refused when the graph is built."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import dspy
import pytest
from pydantic import BaseModel, Field, field_validator, model_validator

from dspyer import END, START, CompiledGraph, Context, Graph, Send, fill, reducers, view
from dspyer.errors import CheckError, GraphError, InputError, NodeOutputError, NodeTimeoutError
from dspyer.testing import ScriptedLM, call_node, no_pauses
from tests.rows import each
from tests.runtime.conftest import Play, play
from tests.timeouts import TimeIsOver

__all__ = ["play"]

DRAFT = "question -> answer, cites: list[str]"
BAD, WORSE, GOOD = ({"answer": text, "cites": cites} for text, cites in (("a", []), ("b", []), ("c", ["x"])))
NO_SOURCE = "no source was cited"


def cited(cites: list[str]) -> list[str]:
    return [] if cites else [NO_SOURCE]


def checked(check: Any = cited, **options: Any) -> Graph:
    graph = Graph().add_node("draft", dspy.Predict(DRAFT))
    return graph.add_check("cited", check, of="draft", **options).add_path(START, "draft", END)


def nodes(run: Any) -> list[str]:
    return [commit.node for commit in run.commits]


# --- which corrections follow


class Case(NamedTuple):
    answers: Sequence[Any]
    options: dict[str, Any]
    nodes: list[str]
    error: list[str] | None = None
    left: list[str] = []  # noqa: RUF012 - a NamedTuple


CASES = {
    "passes": Case([GOOD], {}, ["draft", "cited"]),
    "one fix": Case([BAD, GOOD], {}, ["draft", "cited", "draft_fix", "cited"]),
    "two fixes": Case([BAD, WORSE, GOOD], {}, ["draft", "cited", "draft_fix", "cited", "draft_fix", "cited"]),
    "fails": Case([BAD, BAD, BAD], {}, ["draft", "cited", "draft_fix", "cited", "draft_fix"], [NO_SOURCE]),
    "accepts": Case(
        [BAD, WORSE], {"max_fixes": 1, "accept": True}, ["draft", "cited", "draft_fix", "cited"], None, [NO_SOURCE]
    ),
    "no fixes": Case([BAD], {"max_fixes": 0}, ["draft"], [NO_SOURCE]),
    "no fixes, accepted": Case([BAD], {"max_fixes": 0, "accept": True}, ["draft", "cited"], None, [NO_SOURCE]),
}


@each("case", CASES.values(), ids=CASES)
def test_corrections_follow_until_the_check_passes(play: Play, case: Case) -> None:
    program = checked(**case.options).compile()
    with ScriptedLM(case.answers):
        run = play(program, {"question": "q"})

    assert nodes(run) == ["START", *case.nodes]
    if case.error is None:
        assert run.status == "completed"
        assert run.state["problems"] == case.left
        assert run.prediction.answer == case.answers[-1]["answer"]
    else:
        assert isinstance(run.error, CheckError)
        assert list(run.error.problems) == case.error
        assert "'cited' refuses the output of 'draft'" in str(run.error)
        assert run.error.__notes__[0] == "an error edge that takes this error begins at 'cited', not at 'draft'"
    last = "used" if case.error is None else "rejected"
    assert [step.status for step in run.trace_steps] == [*["rejected"] * (len(case.answers) - 1), last]


def test_a_check_that_passes_costs_one_node_call() -> None:
    with ScriptedLM([GOOD]) as lm:
        run = checked().compile().run({"question": "q"})

    assert len(lm.calls) == 1
    assert len(run.trace) == 1
    assert [node.visits for node in run.stats().nodes.values()] == [1, 1]
    assert run.state["problems"] == []


def test_the_fix_gets_the_inputs_the_refused_output_and_the_problems() -> None:
    with ScriptedLM([BAD, WORSE, GOOD]) as lm:
        checked().compile().run({"question": "q"})

    inputs = [dict(call.prompt.inputs) for call in lm.calls]
    assert set(inputs[1]) == {"question", "previous_answer", "previous_cites", "problems"}
    assert [one["previous_answer"] for one in inputs[1:]] == ["a", "b"]
    assert NO_SOURCE in inputs[1]["problems"]


def test_each_visit_in_a_loop_has_corrections_of_its_own(play: Play) -> None:
    graph = Graph().add_node("draft", dspy.Predict(DRAFT)).add_node("count", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_check("cited", cited, of="draft", max_fixes=1)
    graph.add_path(START, "draft", "count").add_conditional_edges(
        "count", lambda n: "stop" if n > 1 else "again", {"stop": END, "again": "draft"}
    )
    with ScriptedLM([BAD, GOOD, BAD, GOOD]):
        run = play(graph.compile(), {"question": "q", "n": 0})
    assert nodes(run)[1:] == ["draft", "cited", "draft_fix", "cited", "count"] * 2

    with ScriptedLM([BAD, GOOD, BAD, BAD]):
        run = play(graph.compile(), {"question": "q", "n": 0})
    assert isinstance(run.error, CheckError)


# --- the three forms


class Line(BaseModel):
    amount: float


class Sums(BaseModel):
    lines: list[Line]
    total: float = Field(gt=0)

    @model_validator(mode="after")
    def adds_up(self) -> Sums:
        if abs(sum(line.amount for line in self.lines) - self.total) > 0.01:
            raise ValueError("the lines do not add up")
        return self


def adds_up(lines: list[Any], total: float) -> list[str]:
    return [] if sum(line["amount"] for line in lines) == total else ["the lines do not add up"]


async def adds_up_async(lines: list[Any], total: float) -> list[str]:
    return adds_up(lines, total)


def judging_graph() -> CompiledGraph:
    graph = Graph(inputs=["lines", "total"], outputs=["problems"])
    graph.add_node("judge", lambda lines, total: {"problems": adds_up(lines, total)}, writes=["problems"])
    return graph.add_path(START, "judge", END).compile()


FORMS: dict[str, Any] = {
    "function": adds_up,
    "async function": adds_up_async,
    "model": Sums,
    "graph": judging_graph,
}


@each("form", FORMS.values(), ids=FORMS)
def test_the_forms_of_a_check(play: Play, form: Any) -> None:
    values = iter([5.0, 3.0])
    graph = Graph(inputs=["text"]).add_node(
        "extract",
        lambda text: {"lines": [{"amount": 1}, {"amount": 2}], "total": next(values)},
        writes=["lines", "total"],
    )
    graph.add_node("done", lambda total: {"paid": total}, writes=["paid"])
    check = form() if form is judging_graph else form
    graph.add_check("adds_up", check, of="extract", fix=lambda previous_total: {"total": previous_total - 2})
    run = play(graph.add_path(START, "extract", "done", END).compile(), {"text": "t"})

    assert run.status == "completed", run.error
    assert run.state["total"] == 3.0
    rejected = next(commit for commit in run.commits if commit.node == "adds_up")
    assert rejected.patch["problems"] == ["the lines do not add up"]


def test_a_module_is_a_check() -> None:
    judge = dspy.Predict("answer -> problems: list[str]")
    program = checked(judge).compile()
    with ScriptedLM([BAD, {"problems": ["too short"]}, GOOD, {"problems": [" "]}]) as lm:
        run = program.run({"question": "q"})

    assert nodes(run)[1:] == ["draft", "cited", "draft_fix", "cited"]
    assert lm.calls[2].prompt.inputs["problems"].count("too short") == 1
    assert [name for name, _ in program.named_predictors()] == ["draft", "cited", "draft_fix"]


def test_a_model_names_the_path_of_each_problem() -> None:
    class Strict(BaseModel):
        name: str = Field(min_length=2)
        lines: list[Line]

        @field_validator("name")
        @classmethod
        def is_lower(cls, name: str) -> str:
            raise ValueError("write it in lower case")

    graph = Graph(inputs=["name", "lines"]).add_node("draft", lambda name: {"name": name}, writes=["name"])
    graph.add_check("strict", Strict, of="draft", max_fixes=0, accept=True).add_path(START, "draft", END)
    program = graph.compile()
    found = call_node(program, "strict", {"name": "AB", "lines": [{"amount": "many"}]})
    assert [problem.split(":")[0] for problem in found["problems"]] == ["name", "lines.0.amount"]
    assert found["problems"][0] == "name: write it in lower case"
    assert call_node(program, "strict", {"name": "AB"})["problems"][1].startswith("lines: Field required")


def test_what_a_model_requires_and_nothing_writes_is_an_input() -> None:
    """Each correction of it would be paid, and could not succeed."""

    class Sourced(BaseModel):
        citations: list[str]
        cites: list[str]
        title: str = ""

    program = checked(Sourced).compile()
    assert program.graph.required == {"question", "citations"}
    with ScriptedLM([]), pytest.raises(InputError, match="missing inputs: 'citations', read by 'cited'"):
        program.run({"question": "q"})
    graph = Graph(inputs=["question"]).add_node("draft", dspy.Predict(DRAFT)).add_path(START, "draft", END)
    with pytest.raises(GraphError, match=r"node 'cited' reads 'citations', which nothing can have written by then"):
        graph.add_check("cited", Sourced, of="draft").compile()


def test_what_a_model_refuses_without_a_text_is_a_problem() -> None:
    class Silent(BaseModel):
        answer: str

        @field_validator("answer")
        @classmethod
        def is_short(cls, answer: str) -> str:
            if len(answer) > 1:
                raise ValueError
            return answer

        @model_validator(mode="after")
        def is_given(self) -> Silent:
            if not self.answer:
                raise AssertionError  # an `assert` of the tests has a text
            return self

    program = checked(Silent, max_fixes=0, accept=True).compile()
    assert call_node(program, "cited", {"answer": "ab"})["problems"] == ["answer: Value error"]
    assert call_node(program, "cited", {"answer": ""})["problems"] == ["Assertion failed"]


GIVEN: dict[str, tuple[Any, str]] = {
    "text": ("too short", "write a list around it"),
    "None": (None, "a list of problems"),
    "bool": (True, "a list of problems"),
    "other items": ([1], "a list of problems"),
    "a blank text": (["too short", " "], "in which a text is blank: say what is wrong, or leave it out"),
    "a generator": ((text for text in ["too short"]), "return list(...) of it"),
}


@each(("given", "text"), GIVEN.values(), ids=GIVEN)
def test_a_check_gives_a_list_of_texts(given: Any, text: str) -> None:
    run = checked(lambda cites: given).compile()
    with ScriptedLM([GOOD]):
        failed = run.run({"question": "q"})
    assert isinstance(failed.error, NodeOutputError)
    assert "the check 'cited' gave" in str(failed.error)
    assert text in str(failed.error)


def test_a_check_cannot_change_what_it_sees() -> None:
    def greedy(cites: list[str], state: Any) -> list[str]:
        cites.append("more")
        return []

    with ScriptedLM([GOOD]):
        run = checked(greedy).compile().run({"question": "q"})
    assert run.status == "completed", run.error
    assert run.state["cites"] == ["x"]


# --- what a fix reads and writes


def test_the_fix_reads_what_the_node_has_read() -> None:
    """The node has overwritten its own input since; its inputs have other names, a view and a template."""

    class Story(BaseModel):
        text: str
        notes: Annotated[list[str], reducers.append] = []
        topic: str = "bees"
        problems: list[str] = []

    seen: list[Any] = []

    class Fix(dspy.Module):
        def forward(self, draft: str, news: list[str], task: str, previous_better: str, problems: list[str]) -> Any:
            seen.append((draft, list(news), task, previous_better, problems))
            return dspy.Prediction(better="good")

    graph = Graph(Story, inputs=["text", "topic"])
    graph.add_node("note", lambda: {"notes": "first"}, writes=["notes"])
    reads = {"draft": "text", "news": view("notes").new(), "task": fill("Write on {topic}")}
    graph.add_node(
        "revise", dspy.Predict("draft, news: list[str], task -> better"), reads=reads, writes={"better": "text"}
    )
    graph.add_check("good", lambda text: [] if text == "good" else ["bad"], of="revise", fix=Fix())
    graph.add_path(START, "note", "revise", END)
    with ScriptedLM([{"better": "bad 1"}]):
        run = graph.compile().run({"text": "old"})

    assert run.status == "completed", run.error
    assert seen == [("old", ["first"], "Write on bees", "bad 1", ["bad"])]
    assert run.state["text"] == "good"


def test_the_branches_of_sends_are_checked_one_by_one(play: Play) -> None:
    """What a `Send` brought reaches the check and the fix; each branch has corrections of its own."""

    class Docs(BaseModel):
        docs: list[str]
        sizes: dict[str, int] = {}
        problems: list[str] = []

    def spread(docs: list[str]) -> list[Send]:
        return [Send("size", {"doc": doc}) for doc in docs]

    calls: list[str] = []

    def size(doc: str) -> dict[str, Any]:
        calls.append(f"size {doc}")
        return {"sizes": {doc: -len(doc)}}

    def positive(doc: str, sizes: dict[str, int]) -> list[str]:
        return [] if sizes[doc] > 0 else [f"{doc} is negative"]

    def fix(doc: str, previous_sizes: dict[str, int], problems: list[str], ctx: Context) -> dict[str, Any]:
        calls.append(f"fix {doc} {problems}")
        return {"sizes": {doc: -previous_sizes[doc]}}

    graph = Graph(Docs).add_node("size", size, writes=["sizes"])
    graph.add_check("positive", positive, of="size", max_fixes=1, fix=fix)
    graph.add_node("done", lambda sizes: None, writes=[])
    graph.add_conditional_edges(START, spread, ["size"]).add_path("size", "done", END)
    run = play(graph.compile(), {"docs": ["a", "bb", "ccc"]})

    assert run.status == "completed", run.error
    assert run.state["sizes"] == {"a": 1, "bb": 2, "ccc": 3}
    assert sorted(calls) == sorted(
        [f"size {doc}" for doc in ("a", "bb", "ccc")]
        + [f"fix {doc} ['{doc} is negative']" for doc in ("a", "bb", "ccc")]
    )
    assert nodes(run).count("done") == 1


def test_the_default_fix_is_a_parameter_of_its_own(tmp_path: Any) -> None:
    graph = Graph().add_node("draft", dspy.ChainOfThought(DRAFT), writes=["answer", "cites"])
    graph.add_check("cited", cited, of="draft").add_path(START, "draft", END)
    program = graph.compile()
    assert [name for name, _ in program.named_predictors()] == ["draft.predict", "draft_fix"]
    assert list(program.draft_fix.signature.output_fields) == ["answer", "cites"]
    assert program.draft_fix.signature.input_fields["previous_cites"].annotation == list[str]
    assert "was checked and refused" in program.draft_fix.signature.instructions

    program.draft_fix.demos = [dspy.Example(question="q", answer="a")]
    program.save(tmp_path / "p.json")
    other = graph.compile()
    other.load(tmp_path / "p.json")
    assert other.draft_fix.demos[0]["answer"] == "a"
    assert not other.draft.predict.demos


def test_the_fix_of_a_node_with_a_language_model_uses_it() -> None:
    lm = ScriptedLM([BAD, GOOD])
    draft = dspy.Predict(DRAFT)
    draft.lm = lm
    graph = Graph().add_node("draft", draft).add_check("cited", cited, of="draft").add_path(START, "draft", END)
    assert graph.compile()(question="q").answer == "c"
    lm.assert_used()


def test_the_condensers_of_a_node_condense_its_corrections(play: Play) -> None:
    condense = {"answer": dspy.Predict("entry -> short")}
    graph = Graph(Fields, inputs=["question"]).add_node("draft", dspy.Predict("question -> answer"), condense=condense)
    graph.add_check("short", lambda answer: ["long"] if answer != "ok" else [], of="draft")
    program = graph.add_path(START, "draft", END).compile()
    with ScriptedLM([{"answer": "a"}, {"short": "b"}, {"answer": "c"}, {"short": "ok"}]) as lm:
        run = play(program, {"question": "q"})
    assert run.prediction.answer == "ok"
    assert lm.calls[2].prompt.inputs["previous_answer"] == "b"


# --- edges


def test_edges_and_routers_begin_at_the_check_whatever_the_order() -> None:
    def edges(graph: Graph) -> Graph:
        graph.add_conditional_edges("draft", lambda answer: "b" if answer == "b" else "a", {"a": "left", "b": "right"})
        return graph.add_edge(START, "draft").add_edge(["left", "right"], END)

    def check(graph: Graph) -> Graph:
        return graph.add_check("cited", cited, of="draft")

    shown = []
    for steps in ([edges, check], [check, edges]):
        graph = Graph().add_node("draft", dspy.Predict(DRAFT))
        graph.add_node("left", nothing, writes=[]).add_node("right", nothing, writes=[])
        for step in steps:
            step(graph)
        program = graph.compile()
        shown.append({(edge.source, edge.target) for edge in program.graph.topology.edges})
        with ScriptedLM([{"answer": "b", "cites": []}, GOOD]):
            assert nodes(program.run({"question": "q"}))[-1] == "left"
    assert shown[0] == shown[1]
    assert ("cited", "right") in shown[0]
    assert ("draft", "cited") in shown[0]


def test_the_source_of_the_program_says_add_check() -> None:
    import inspect

    source = inspect.getsource(type(checked(max_fixes=1).compile()))
    assert 'graph.add_check("cited", cited, of="draft", max_fixes=1)' in source
    assert "def cited(cites: list[str])" in source
    assert "draft_fix" not in source


# --- build errors


class Fields(BaseModel):
    question: str
    answer: str = ""
    cites: list[str] = []
    notes: Annotated[list[str], reducers.append] = []
    counts: list[int] = []
    problems: list[str] = []


def nothing():  # type: ignore[no-untyped-def]
    return None


def each_problem(cites: list[str]) -> Iterator[str]:
    yield from cited(cites)


class Wrong(NamedTuple):
    text: str
    spoil: Callable[[Graph], Any]


def check_of(of: str, check: Any = cited, name: str = "cited", **options: Any) -> Callable[[Graph], Any]:
    return lambda graph: graph.add_check(name, check, of=of, **options)


def after(*steps: Callable[[Graph], Any]) -> Callable[[Graph], Any]:
    def spoil(graph: Graph) -> None:
        for step in steps:
            step(graph)

    return spoil


class Judge(dspy.Signature):
    """A signature is a pydantic model, too: as one it would refuse nothing, and no LM would be asked."""

    answer: str = dspy.InputField()
    problems: list[str] = dspy.OutputField()


WRONG = {
    "unknown of": Wrong("of='drft' is no node. Did you mean 'draft'?", check_of("drft")),
    "a map": Wrong(
        "'m' is a map: check each item",
        after(
            lambda g: g.add_map("m", dspy.Predict("note -> count: int"), over="notes", item="note", into="counts"),
            lambda g: g.add_path(START, "m", END),
            check_of("m"),
        ),
    ),
    "an interrupt": Wrong(
        "asks a person",
        after(
            lambda g: g.add_interrupt("ask", question="?", answer=str, into="answer").add_path("draft", "ask", END),
            check_of("ask"),
        ),
    ),
    "a graph": Wrong(
        "'inner' is a graph",
        after(lambda g: g.add_node("inner", checked().compile()).add_path("draft", "inner", END), check_of("inner")),
    ),
    "a check": Wrong("'cited' is a check itself", after(check_of("draft"), check_of("cited", name="again"))),
    "two checks": Wrong("has the check 'cited' already", after(check_of("draft"), check_of("draft", name="again"))),
    "a function without a fix": Wrong(
        "'f' is a function, which has no signature",
        after(lambda g: g.add_node("f", nothing, writes=["answer"]).add_path("draft", "f", END), check_of("f")),
    ),
    "edge from the check": Wrong(
        "let it begin at 'draft'", after(check_of("draft"), lambda g: g.add_edge("cited", END))
    ),
    "edge from the fix": Wrong(
        "let it begin at 'draft'", after(check_of("draft"), lambda g: g.add_edge("draft_fix", END))
    ),
    "edge to the check": Wrong("let it go to 'draft'", after(check_of("draft"), lambda g: g.add_edge(START, "cited"))),
    "name of the fix taken": Wrong(
        "called 'draft_fix'",
        after(
            lambda g: g.add_node("draft_fix", nothing, writes=[]).add_path("draft", "draft_fix", END),
            check_of("draft"),
        ),
    ),
    "max_fixes": Wrong("max_fixes=-1: give", check_of("draft", max_fixes=-1)),
    "max_fixes no number": Wrong("max_fixes='2'", check_of("draft", max_fixes="2")),
    "accept": Wrong("accept='no': give True or False", check_of("draft", accept="no")),
    "fix without corrections": Wrong("leave fix= out", check_of("draft", max_fixes=0, fix=dspy.Predict(DRAFT))),
    "into is no field": Wrong("into='trouble' is no field", check_of("draft", into="trouble")),
    "into is a text": Wrong("list[str], and field 'answer' takes str", check_of("draft", into="answer")),
    "into is a list of numbers": Wrong("field 'counts' takes list[int]", check_of("draft", into="counts")),
    "into folds": Wrong("the field 'notes' folds", check_of("draft", into="notes")),
    "no check": Wrong("give a function of fields", check_of("draft", "cites")),
    "a class": Wrong("give a function of fields", check_of("draft", dict)),
    "a generator": Wrong("node 'cited' is a generator: return a list of problems", check_of("draft", each_problem)),
    "a signature": Wrong("give a module of it, dspy.Predict(Judge)", check_of("draft", Judge)),
    "a class of modules": Wrong("is the class Predict: give a module, Predict(...)", check_of("draft", dspy.Predict)),
    "fix is a signature": Wrong("its fix is the signature Judge", check_of("draft", fix=Judge)),
    "unknown parameter": Wrong("'citations' is no field", check_of("draft", lambda citations: [])),
    "unknown field of a model": Wrong("the field 'amount' of Line is no field", check_of("draft", Line)),
    "module without problems": Wrong(
        "an output `problems: list[str]`", check_of("draft", dspy.Predict("answer -> verdict"))
    ),
    "module with a text": Wrong("its output `problems` is str", check_of("draft", dspy.Predict("answer -> problems"))),
    "graph without problems": Wrong(
        "the graph gives",
        check_of("draft", Graph().add_node("a", lambda answer: {}, writes=["b"]).add_path(START, "a", END).compile()),
    ),
    "fix is no module": Wrong("fix='x': give a module", check_of("draft", fix="x")),
    "fix of other outputs": Wrong(
        "its fix gives 'facts', none of the outputs",
        check_of("draft", fix=dspy.Predict("question, problems: list[str] -> facts")),
    ),
    "fix with an unknown input": Wrong(
        "A fix is also given 'question', 'previous_answer', 'previous_cites', 'problems'",
        check_of("draft", fix=dspy.Predict("previous_anser -> answer")),
    ),
    "a reducer": Wrong(
        "'notes', which folds what is written",
        after(
            lambda g: g.add_node("w", dspy.Predict("question -> notes")).add_path("draft", "w", END),
            check_of("w", nothing),
        ),
    ),
    "unknown writes": Wrong(
        "'w' does not say what it writes",
        after(lambda g: g.add_node("w", nothing).add_path("draft", "w", END), check_of("w", fix=dspy.Predict(DRAFT))),
    ),
    "a Command": Wrong(
        "says itself where its branch goes",
        after(
            lambda g: g.add_node("w", nothing, writes=["answer"], goto=[END]).add_edge("draft", "w"),
            check_of("w", fix=dspy.Predict(DRAFT)),
        ),
    ),
    "dead end": Wrong(
        "node 'w' is a dead end: add an edge from it, add_edge('w', END)",
        after(lambda g: g.add_node("w", dspy.Predict("question -> answer")).add_edge("draft", "w"), check_of("w")),
    ),
    "own names": Wrong(
        "has an input or output 'problems', and its fix gets another value",
        after(
            lambda g: g.add_node("w", dspy.Predict("question, problems -> answer")).add_path("draft", "w", END),
            check_of("w"),
        ),
    ),
}


@each("wrong", WRONG.values(), ids=WRONG)
def test_a_mistake_is_reported_alone_with_its_fix(wrong: Wrong) -> None:
    graph = Graph(Fields, inputs=["question"]).add_node("draft", dspy.Predict(DRAFT)).add_path(START, "draft", END)
    wrong.spoil(graph)
    with pytest.raises(GraphError) as caught:
        graph.compile()
    assert any(wrong.text in problem for problem in caught.value.problems), caught.value.problems
    assert len(caught.value.problems) == 1, caught.value.problems


class Unsaid(dspy.Module):
    def forward(self, question: str) -> Any:
        return {"answer": question}


@pytest.mark.parametrize("node", [lambda question: {"answer": question}, Unsaid()], ids=["function", "module"])
@pytest.mark.parametrize("schema", [None, Fields], ids=["no schema", "schema"])
def test_a_fix_needs_the_outputs_that_it_corrects(node: Any, schema: Any) -> None:
    """Otherwise it would get none of them, and a repair would have none."""

    def graph(**options: Any) -> Graph:
        made = Graph(schema, inputs=["question"]).add_node("w", node, writes=options.pop("writes", None))
        return made.add_check("c", lambda answer: ["no"], of="w", **options).add_path(START, "w", END)

    fix = dspy.Predict("question, previous_answer, problems: list[str] -> answer")
    with pytest.raises(GraphError, match=r"'w'.* does not say what it (writes|gives)") as caught:
        graph(fix=fix).compile()
    assert len(caught.value.problems) == 1
    graph(fix=fix, writes=["answer"]).compile()
    if schema is None:
        graph(max_fixes=0).compile()


def test_the_name_of_a_check_is_taken_at_once() -> None:
    with pytest.raises(GraphError, match="there is a node 'draft' already"):
        checked().add_check("draft", cited, of="draft")
    with pytest.raises(GraphError, match="there is a node 'cited' already"):
        checked().add_node("cited", nothing)


# --- error edges


def with_handler(source: str) -> CompiledGraph:
    graph = checked(max_fixes=1).add_node("sorry", lambda oops: {"answer": oops.type}, writes=["answer"])
    return graph.add_error_edge(source, "sorry", into="oops").add_edge("sorry", END).compile()


HANDLED = {
    "the check": ("cited", [BAD, BAD], ["draft", "cited", "draft_fix", "cited", "sorry"], ["rejected", "rejected"]),
    "the node": ("draft", [ConnectionError()], ["draft", "sorry"], []),
    "the fix": ("draft_fix", [BAD, ConnectionError()], ["draft", "cited", "draft_fix", "sorry"], ["rejected"]),
    "nothing failed": ("cited", [BAD, GOOD], ["draft", "cited", "draft_fix", "cited"], ["rejected", "used"]),
}


@each(("source", "answers", "expected", "status"), HANDLED.values(), ids=HANDLED)
def test_error_edges_stay_where_they_were_declared(
    play: Play, source: str, answers: list[Any], expected: list[str], status: list[str]
) -> None:
    program = with_handler(source)
    with ScriptedLM(answers):
        run = play(program, {"question": "q"})
    assert run.status == "completed", run.error
    assert nodes(run)[1:] == expected
    assert [step.status for step in run.trace_steps] == status
    assert run.repairs() == [] or source == "cited"


@pytest.mark.parametrize("target", ["cited", "draft_fix"])
def test_an_error_edge_leads_to_no_part_of_a_check(target: str) -> None:
    with pytest.raises(GraphError, match=f"'draft' -> '{target}' goes to a part of the check of 'draft'"):
        checked().add_error_edge("draft", target).compile()


def test_a_correction_has_as_much_time_as_the_output_that_it_corrects(time_is_over: TimeIsOver) -> None:
    async def forever(previous_text: str) -> dict[str, str]:
        time_is_over()
        await asyncio.Event().wait()
        return {"text": previous_text}

    graph = Graph().add_node("write", lambda: {"text": "long"}, writes=["text"], timeout=0.05)
    graph.add_check("short", lambda text: [] if len(text) < 4 else ["too long"], of="write", fix=forever)
    run = asyncio.run(graph.add_path(START, "write", END).compile().arun({}))
    assert isinstance(run.error, NodeTimeoutError)
    assert run.failures[0].node == "write_fix"


@each("own", [True, False], ids=["of the node", "of the graph"])
def test_a_correction_is_attempted_as_often_as_the_output_that_it_corrects(play: Play, own: bool) -> None:
    attempts: list[str] = []

    def shorten(previous_text: str) -> dict[str, str]:
        attempts.append(previous_text)
        if len(attempts) < 3:
            raise ConnectionError("reset by peer")
        return {"text": previous_text[:3]}

    options: dict[str, Any] = {"retry": 3} if own else {}
    graph = Graph().add_node("write", lambda: {"text": "long"}, writes=["text"], **options)
    graph.add_check("short", lambda text: [] if len(text) < 4 else ["too long"], of="write", fix=shorten)
    program = graph.add_path(START, "write", END).compile(retry=None if own else 3)
    with no_pauses():
        run = play(program, {})
    assert run.status == "completed", run.error
    assert run.commits[3].node == "write_fix"
    assert len(run.commits[3].failed_attempts) == 2
