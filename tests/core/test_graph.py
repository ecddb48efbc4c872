"""Building: every problem of a graph at once, each with its fix; inputs and outputs; what compile() copies."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Send, reducers
from dspyer.building.declarations import RESERVED
from dspyer.errors import GraphError, InputError


class Draft(BaseModel):
    question: str
    notes: Annotated[list[str], reducers.extend] = []
    draft: str = ""
    meta: dict[str, int] = {}
    score: float | None = None


def nothing(question: str) -> Any:
    return None


def graph(**options: Any) -> Graph:
    """A sound graph of one node `a`, to be spoiled."""
    return Graph(Draft, **options).add_node("a", nothing, writes=["draft"]).add_path(START, "a", END)


def two_writers() -> Graph:
    made = graph().add_node("b", nothing, writes=["draft"])
    return made.add_edge(START, "b").add_edge("b", END)


hidden = dspy.Predict("question -> draft")


def uses_global(question: str) -> dict[str, Any]:
    return {"draft": hidden(question=question).draft}


PROBLEMS: dict[str, tuple[Callable[[], Graph], str]] = {
    "nothing starts": (lambda: Graph(Draft).add_node("a", nothing), "add an edge from START"),
    "unreachable": (lambda: graph().add_node("b", nothing).add_edge("b", END), "'b' is never reached"),
    "dead end": (lambda: graph().add_node("b", nothing).add_edge("a", "b"), "'b' is a dead end"),
    "no way out": (
        lambda: graph().add_node("b", nothing).add_edge("a", "b").add_edge("b", "b"),
        "no way leads from node 'b' to END",
    ),
    "unknown target": (lambda: graph().add_edge("a", "bb"), "names no node 'bb'"),
    "unknown source": (lambda: graph().add_edge("bb", "a"), "names no node 'bb'"),
    "unknown target of a router": (
        lambda: graph().add_conditional_edges("a", lambda draft: "x", {"x": "nowhere"}),
        "names no node 'nowhere'",
    ),
    "unknown goto": (lambda: graph().add_node("b", nothing, goto=["nowhere"]).add_path("a", "b", END), "'nowhere'"),
    "two parallel writers": (two_writers, "'a' and 'b' run in parallel and both write 'draft'"),
    "read before written": (
        lambda: graph(inputs=["notes"]),
        "reads 'question', which nothing can have written",
    ),
    "read of no field": (lambda: graph().add_node("b", lambda qestion: None).add_path("a", "b", END), "question"),
    "lambda s": (lambda: graph().add_node("b", lambda s: None).add_path("a", "b", END), "state"),
    "write of no field": (
        lambda: graph().add_node("b", nothing, writes=["drfat"]).add_path("a", "b", END),
        "draft",
    ),
    "module writes no field": (
        lambda: graph().add_node("b", dspy.Predict("question -> anser")).add_path("a", "b", END),
        "anser",
    ),
    "hidden module": (lambda: graph().add_node("b", uses_global).add_path("a", "b", END), "modules={"),
    "unknown input": (lambda: graph(inputs=["qestion", "question"]), "the input 'qestion' is no field"),
    "unknown output": (lambda: graph(outputs=["drafts"]), "the output 'drafts' is no field"),
    "an async router": (lambda: graph().add_conditional_edges("a", route_async, {"x": END}), "sync"),
    "a router without targets": (lambda: graph().add_conditional_edges("a", lambda draft: "x"), "path map"),
    "a dspy class": (lambda: graph().add_node("b", dspy.Predict).add_path("a", "b", END), "Predict"),
    "a generator": (lambda: graph().add_node("b", yields).add_path("a", "b", END), "generator"),
}


async def route_async(draft: str) -> str:
    return "x"


def yields(question: str) -> Any:
    yield {}


@pytest.mark.parametrize(("build", "text"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_problem_is_reported_with_its_fix(build: Callable[[], Graph], text: str) -> None:
    with pytest.raises(GraphError) as caught:
        build().compile()
    assert any(text in problem for problem in caught.value.problems), caught.value.problems


def test_all_problems_are_reported_at_once() -> None:
    bad = graph().add_node("b", nothing, writes=["draft"]).add_edge(START, "b").add_node("c", lambda qestion: None)
    with pytest.raises(GraphError) as caught:
        bad.compile()
    text = str(caught.value)
    assert text.startswith("the graph has 4 problems:")
    for part in ("qestion", "'b' is a dead end", "'c' is never reached", "both write 'draft'"):
        assert part in text


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda: Graph(Draft, merge="lats_write_wins"), ValueError, "last_write_wins"),
        (lambda: Graph(Draft, merge={"draft": "typo"}), ValueError, "first_write_wins"),
        (lambda: graph().add_edge("a", END, policy="typo"), ValueError, "combine_lists"),
        (lambda: Graph(dict), GraphError, "pydantic"),  # type: ignore[arg-type]
        (lambda: graph().add_node("a", nothing), GraphError, "'a' already"),
        (lambda: graph().add_node("not a name", nothing), GraphError, "identifiers"),
        (lambda: graph().add_node("class", nothing), GraphError, "identifiers"),
        (lambda: graph().add_node("forward", nothing), GraphError, "forward_node"),
        (lambda: graph().add_node("run", nothing), GraphError, "run_node"),
        (lambda: graph().add_node("_private", nothing), GraphError, "attribute"),
        (lambda: graph().add_node(lambda question: None), GraphError, "name"),
        (lambda: graph().add_node("b"), GraphError, "no function or module"),
        (lambda: graph().add_path("a"), GraphError, "at least two"),
        (lambda: graph().add_edge("a", []), GraphError, "names of nodes"),
        (lambda: graph().add_edge(nothing, "a"), GraphError, "names of nodes"),  # type: ignore[arg-type]
        (lambda: graph().compile(max_steps=0), GraphError, "max_steps=0"),
        (lambda: graph().compile(max_concurrency="many"), GraphError, "max_concurrency"),  # type: ignore[arg-type]
        (lambda: graph()(question="?"), GraphError, "compile()"),
    ],
)
def test_wrong_use_is_refused_at_once(build: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        build()


@pytest.mark.parametrize("use", ["deepcopy", "reset_copy", "named_predictors", "batch", "save"])
def test_a_graph_handed_to_an_optimizer_says_compile_first(use: str) -> None:
    with pytest.raises(AttributeError, match=r"Call \.compile\(\) first"):
        getattr(graph(), use)
    assert not hasattr(graph(), "something_else")


def test_every_attribute_of_a_program_is_reserved() -> None:
    own = {name for name in dir(CompiledGraph) if not name.startswith("_")} - set(dir(dspy.Module))
    assert own <= RESERVED
    for name in own | {"score", "candidate_programs", "set_lm", "named_predictors"}:
        with pytest.raises(GraphError):
            Graph().add_node(name, nothing)


def test_a_policy_or_a_reducer_settles_parallel_writers() -> None:
    for options in ({"merge": "last_write_wins"}, {"merge": {"draft": "first_write_wins"}}, {"merge": "raise"}):
        made = graph(**options).add_node("b", nothing, writes=["draft"]).add_edge(START, "b").add_edge("b", END)
        made.compile()
    joined = Graph(Draft).add_node("a", nothing, writes=["draft"]).add_node("b", nothing, writes=["draft"])
    joined.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END, policy="last_write_wins").compile()
    for field in ("notes", "meta"):  # a reducer folds, mappings merge by key
        made = Graph(Draft).add_node("a", nothing, writes=[field]).add_node("b", nothing, writes=[field])
        made.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END).compile()


def test_writers_one_after_the_other_are_no_conflict() -> None:
    made = graph().add_node("b", nothing, writes=["draft"]).add_edge("a", "b").add_edge("b", END)
    made.add_conditional_edges("b", lambda draft: "a", {"a": "a", "end": END}).compile()
    routed = Graph(Draft).add_node("a", nothing, writes=["draft"]).add_node("b", nothing, writes=["draft"])
    routed.add_conditional_edges(START, lambda question: "a", {"a": "a", "b": "b"}).add_edge(["a", "b"], END).compile()


class Asked(BaseModel):
    question: str
    limit: int = 3
    answer: str | None = None
    log: Annotated[list[str], reducers.extend] = []


def test_inputs_and_outputs_are_inferred() -> None:
    declared = Graph(Asked).add_node("a", lambda question: {"answer": "x"}, writes=["answer"]).add_path(START, "a", END)
    plan = declared.compile().graph
    assert plan.inputs == ("question", "limit", "log")
    assert plan.required == {"question"}
    assert plan.outputs == ("answer", "log")
    named = Graph(Asked, inputs=["question"], outputs=["answer"]).add_node("a", nothing).add_path(START, "a", END)
    program = named.compile()
    assert dict(program(question="?")) == {"answer": None}
    with pytest.raises(InputError, match="no input 'limit'"):
        program(question="?", limit=4)


def test_without_a_schema_reads_are_inputs() -> None:
    made = (
        Graph().add_node("a", lambda x, y: {"z": x + y}, writes=["z"]).add_node("b", lambda z: {"w": z}, writes=["w"])
    )
    program = made.add_path(START, "a", "b", END).compile()
    assert program.graph.inputs == ("x", "y")
    assert dict(program(x=1, y=2)) == {"z": 3, "w": 3}
    with pytest.raises(InputError, match="'y'"):
        program(x=1)


def test_a_field_that_prediction_shadows_is_a_warning() -> None:
    class Shadow(BaseModel):
        question: str
        items: list[str] = []

    made = (
        Graph(Shadow).add_node("a", lambda question: {"items": [question]}, writes=["items"]).add_path(START, "a", END)
    )
    with pytest.warns(UserWarning, match="items"):
        program = made.compile()
    assert program(question="?")["items"] == ["?"]


def test_compile_copies_modules_and_keeps_shared_ones_shared() -> None:
    shared = dspy.Predict("question -> draft")
    made = Graph(Draft, merge="last_write_wins").add_node("a", shared).add_node("b", shared)
    program = made.add_path(START, "a", "b", END).compile()
    assert program.a is program.b
    assert program.a is not shared
    assert [name for name, _ in program.named_predictors()] == ["a"]
    program.a.demos = ["changed"]
    assert shared.demos == []
    assert made.compile().a.demos == []


def test_a_graph_can_be_changed_after_it_was_compiled() -> None:
    made = graph()
    first = made.compile()
    made.add_node("b", nothing).add_edge("a", "b").add_edge("b", END)
    assert list(first.graph.nodes) == ["a"]
    assert list(made.compile().graph.nodes) == ["a", "b"]


def test_explain_names_heads_reads_writes_and_what_is_unknown() -> None:
    made = Graph(Draft).add_node("a", nothing, writes=["draft"]).add_node("b", lambda draft: {"notes": [draft]})
    made.add_edge(START, ["a", "b"]).add_edge("a", "b")
    made.add_conditional_edges("b", lambda notes: "end", {"again": "a", "end": END})
    text = made.compile().graph.explain()
    for part in ("a: reads question; writes draft", "b: reads draft; writes ?", "a round begins at a", "what b write"):
        assert part in text


def test_sends_may_bring_what_is_no_field() -> None:
    def split(question: str) -> list[Send]:
        return [Send("work", {"part": part}) for part in question.split()]

    made = Graph(Draft).add_node("work", lambda part: {"notes": [part]}, writes=["notes"])
    made.add_conditional_edges(START, split, ["work"]).add_edge("work", END)
    assert made.compile()(question="a b").notes == ["a", "b"]


def test_command_targets_are_declared_by_annotation() -> None:
    from dspyer import Command

    def judge(question: str) -> Command[Literal["a", "END"]]:
        return Command(update={"draft": "judged"}, goto=END)

    judge.__annotations__["return"] = Command[Literal["a", "END"]]
    made = Graph(Draft).add_node("judge", judge).add_node("a", nothing).add_edge(START, "judge").add_edge("a", END)
    assert made.compile()(question="?").draft == "judged"


def test_no_warning_is_given_for_a_sound_graph() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph().compile()(question="?")
