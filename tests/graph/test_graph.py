"""`compile()`: all problems of a graph at once, each with its fix; inferred inputs and outputs; copies of modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import cloudpickle
import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Breakpoints, CompiledGraph, Graph, Send, prefer, reducers, view
from dspyer.errors import GraphError, InputError
from dspyer.testing import ScriptedLM, call_node, stub
from tests.rows import each


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


hidden = dspy.Predict("question -> draft")


def uses_global(question: str) -> dict[str, Any]:
    return {"draft": hidden(question=question).draft}


async def route_async(draft: str) -> str:
    return "x"


def yields(question: str) -> Any:
    yield {}


class Spoiled(Draft):
    late: str
    docs: list[str] = []


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Problem(NamedTuple):
    """One mistake in a sound graph of one node `a`.

    Attributes:
        text: a part of the problem.
        spoil: makes the mistake; its nodes hang on `a`.
        inputs: more inputs of the graph.
        options: options of the graph.
        compiled: options of `compile`.
        starts: whether a branch starts.
    """

    text: str
    spoil: Callable[[Graph], object] = lambda made: made
    inputs: tuple[str, ...] = ()
    options: Mapping[str, Any] = NOTHING
    compiled: Mapping[str, Any] = NOTHING
    starts: bool = True


def at(name: str, node: object, **options: Any) -> Callable[[Graph], object]:
    """Adds a node behind `a`."""
    return lambda made: made.add_node(name, node, **options).add_path("a", name, END)


def routed(*arguments: Any, **options: Any) -> Callable[[Graph], object]:
    """Adds a router behind `a`."""
    return lambda made: made.add_conditional_edges("a", *arguments, **options)


def two_writers(made: Graph) -> object:
    for name in ("w", "x"):
        made.add_node(name, nothing, writes=["score"])
    return made.add_edge("a", ["w", "x"]).add_edge(["w", "x"], END)


PROBLEMS: dict[str, Problem] = {
    "nothing starts": Problem("add an edge from START", starts=False),
    "unreachable": Problem("'u' is never reached", lambda g: g.add_node("u", nothing).add_edge("u", END)),
    "dead end": Problem("'d' is a dead end", lambda g: g.add_node("d", nothing).add_edge("a", "d")),
    "no way out": Problem(
        "no way leads from node 'n' to END", lambda g: g.add_node("n", nothing).add_edge("a", "n").add_edge("n", "n")
    ),
    "unknown target": Problem("names no node 'target'", lambda g: g.add_edge("a", "target")),
    "unknown source": Problem("names no node 'source'", lambda g: g.add_edge("source", "a")),
    "from END": Problem("begins where a branch ends", lambda g: g.add_edge(END, "a")),
    "to START": Problem("goes to the start", lambda g: g.add_edge("a", START)),
    "unknown target of a router": Problem("names no node 'nowhere'", routed(lambda draft: "x", {"x": "nowhere"})),
    "unknown goto": Problem("'elsewhere'", at("g", nothing, goto=["elsewhere"])),
    "two parallel writers": Problem("'w' and 'x' run in parallel and both write 'score'", two_writers),
    "prefers no node": Problem(
        "a merge policy prefers 'critic', which is no node",
        options={"merge": {"draft": prefer("START", "a", "update", "join:b", "critic")}},
    ),
    "a join prefers no node": Problem(
        "prefers 'judge', which is no node", lambda g: g.add_edge("a", END, policy={"draft": prefer("judge")})
    ),
    "read before written": Problem("make it an input, Graph(..., inputs=[..., 'late'])", at("r", lambda late: None)),
    "read of no field": Problem("'qestion'", at("q", lambda qestion: None)),
    "lambda s": Problem("name it `state`", at("s", lambda s: None)),
    "write of no field": Problem("'drfat'", at("o", nothing, writes=["drfat"])),
    "module writes no field": Problem("'anser'", at("m", dspy.Predict("question -> anser"))),
    "template of no field": Problem("{lte}", at("t", dspy.Predict(dspy.Signature("question -> draft", "Use {lte}.")))),
    "condense of no field": Problem("'ntes'", at("c", nothing, condense={"ntes": dspy.Predict("a -> b")})),
    "view of no author": Problem("nbody", at("v", lambda seen: None, reads={"seen": view("notes").by("nbody")})),
    "map over no list": Problem(
        "a map needs a list",
        lambda g: g.add_map("p", nothing, over="draft", item="question", into="docs").add_path("a", "p", END),
    ),
    "hidden module": Problem("modules={", at("h", uses_global)),
    "unknown input": Problem("the input 'qestion' is no field", inputs=("qestion",)),
    "unknown output": Problem("the output 'drafts' is no field", options={"outputs": ["drafts"]}),
    "unknown stop": Problem("Breakpoints(before=) names 'b4'", compiled={"layers": [Breakpoints(before=["b4"])]}),
    "an async router": Problem("is async", routed(route_async, {"x": END})),
    "a router without targets": Problem("give it a path map", routed(lambda draft: "x")),
    "a router by no field": Problem("'scroe'", routed("scroe", {1: "a", 2: END})),
    "a router that is no router": Problem("give a function", routed(3, ["a"])),
    "a module router without labels": Problem("no Literal output", routed(dspy.Predict("question -> draft"), ["a"])),
    "a dspy class": Problem("is the class Predict", at("k", dspy.Predict)),
    "a signature": Problem("needs a module", at("l", "question -> draft")),
    "a generator": Problem("generator", at("y", yields)),
}
UNKNOWABLE = [  # of each pair the second cannot be known before the first is mended
    {"nothing starts", "unreachable"},
    {"a router without targets", "unreachable"},
]


def problems_of(*names: str) -> tuple[str, ...]:
    """The problems of a graph with some mistakes."""
    found = [PROBLEMS[name] for name in names]
    options = {name: value for problem in found for name, value in problem.options.items()}
    inputs = [name for problem in found for name in problem.inputs]
    made = Graph(Spoiled, inputs=["question", *inputs], **options)
    made.add_node("a", nothing, writes=["draft"]).add_edge("a", END)
    if all(problem.starts for problem in found):
        made.add_edge(START, "a")
    for problem in found:
        problem.spoil(made)
    compiled = {name: value for problem in found for name, value in problem.compiled.items()}
    if not names:
        made.compile()
        return ()
    with pytest.raises(GraphError) as caught:
        made.compile(**compiled)
    return caught.value.problems


def test_the_graph_that_the_problems_are_added_to_has_none() -> None:
    assert problems_of() == ()


@each("name", PROBLEMS)
def test_a_problem_is_reported_alone_with_its_fix(name: str) -> None:
    (problem,) = problems_of(name)
    assert PROBLEMS[name].text in problem


def unreported(names: Collection[str]) -> list[str]:
    """The mistakes of a graph that its problems do not tell."""
    reported = problems_of(*names)
    return [
        name
        for name in names
        if not any(PROBLEMS[name].text in problem for problem in reported)
        and not any(name == "unreachable" and pair <= set(names) for pair in UNKNOWABLE)
    ]


def test_both_of_two_problems_are_reported() -> None:
    """Each pair is among the mistakes of one graph or of several."""
    blocks = [set([*PROBLEMS][first::12]) for first in range(12)]
    groups = [one | other for one, other in combinations(blocks, 2)]
    groups += [names - (pair - {"unreachable"}) for names in groups for pair in UNKNOWABLE if pair <= names]
    assert [found for names in groups if (found := unreported(names))] == []


def test_all_problems_are_reported_at_once() -> None:
    bad = graph().add_node("b", nothing, writes=["draft"]).add_edge(START, "b").add_node("c", lambda qestion: None)
    with pytest.raises(GraphError) as caught:
        bad.compile()
    text = str(caught.value)
    assert text.startswith("the graph has 4 problems:")
    for part in ("qestion", "'b' is a dead end", "'c' is never reached", "both write 'draft'"):
        assert part in text


@each(
    ("build", "error", "text"),
    [
        (lambda: Graph(Draft, merge="lats_write_wins"), ValueError, "last_write_wins"),
        (lambda: Graph(Draft, merge={"draft": "typo"}), ValueError, "first_write_wins"),
        (lambda: graph().add_edge("a", END, policy="typo"), ValueError, "combine_lists"),
        (lambda: Graph(dict), GraphError, "pydantic"),  # type: ignore[arg-type]
        (lambda: graph().add_node("a", nothing), GraphError, "'a' already"),
        (lambda: graph().add_node("not a name", nothing), GraphError, "identifiers"),
        (lambda: graph().add_node("class", nothing), GraphError, "identifiers"),
        (lambda: graph().add_node("START", nothing), GraphError, "ends of a graph.*'START_node'"),
        (lambda: graph().add_node("END", nothing), GraphError, "'END_node'"),
        (lambda: graph().add_node("_private", nothing), GraphError, "leading underscore.*'private_node'"),
        (lambda: graph().add_node(lambda question: None), GraphError, "name"),
        (lambda: graph().add_node("b"), GraphError, "no function or module"),
        (lambda: graph().add_map(nothing, "m", over="o", item="i", into="r"), GraphError, "is no name"),  # type: ignore[arg-type]
        (lambda: graph().add_check(nothing, "a", of="a"), GraphError, "is no name"),  # type: ignore[arg-type]
        (lambda: graph().add_interrupt(3, question="?"), GraphError, "3 is no name"),  # type: ignore[arg-type]
        (lambda: graph().add_map("m", nothing, over=["o"], item="i", into="r"), GraphError, "over=.*give one name"),  # type: ignore[arg-type]
        (lambda: graph().add_map("m", nothing, over="o", item="i", into=["r"]), GraphError, "into=.*give one name"),  # type: ignore[arg-type]
        (lambda: graph().add_check("c", nothing, of=["a"]), GraphError, "of=.*give one name, of='...'"),  # type: ignore[arg-type]
        (lambda: graph().add_check("c", nothing, of="a", into=["p"]), GraphError, "into=.*give one name"),  # type: ignore[arg-type]
        (lambda: graph().add_path("a"), GraphError, "at least two"),
        (lambda: graph().add_edge("a", []), GraphError, "names of nodes"),
        (lambda: graph().add_edge(nothing, "a"), GraphError, "names of nodes"),  # type: ignore[arg-type]
        (lambda: graph().compile(max_steps=0), GraphError, "max_steps=0"),
        (lambda: graph().compile(max_steps=True), GraphError, "max_steps=True: it must be a whole number"),
        (lambda: graph().compile(max_concurrency="many"), GraphError, "max_concurrency"),  # type: ignore[arg-type]
        (lambda: graph()(question="?"), GraphError, "compile()"),
    ],
)
def test_wrong_use_is_refused_at_once(build: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        build()


@pytest.mark.parametrize("use", ["deepcopy", "reset_copy", "named_predictors", "batch", "save"])
def test_a_graph_given_to_an_optimizer_says_compile_first(use: str) -> None:
    with pytest.raises(AttributeError, match=r"Call \.compile\(\) first"):
        getattr(graph(), use)
    assert not hasattr(graph(), "something_else")


# All public attributes of a program, and those that DSPy's optimizers and `save` set; then names that are free.
ATTRIBUTES = sorted(
    {name for name in dir(CompiledGraph) if not name.startswith("_")}
    | {"history", "callbacks", "metadata", "score", "simba_idx", "candidate_programs", "trial_logs", "total_calls"}
)
FREE = ["state", "ctx", "self", "graphs", "program", "inputs", "answers", "resources", "trunk"]


def test_a_node_without_a_module_may_have_the_name_of_any_attribute(tmp_path: Path) -> None:
    made = Graph()
    for name in (*ATTRIBUTES, *FREE):
        made.add_node(name, lambda steps=0: {"steps": steps + 1}, writes=["steps"])
    made.add_node("answer", dspy.Predict("question -> answer")).add_path(START, *ATTRIBUTES, *FREE, "answer", END)
    program = made.compile(store=":memory:")
    program.answer.demos = [dspy.Example(question="1 + 1", answer="2")]
    program.save(tmp_path / "program.json")
    loaded = made.compile()
    loaded.load(tmp_path / "program.json")
    assert [demo["answer"] for demo in loaded.answer.demos] == ["2"]
    assert call_node(program, "history", {"steps": 4}) == {"steps": 5}
    stub(program, program={"steps": 0}, self={"steps": 7})
    copies = [program, loaded, program.deepcopy(), program.reset_copy(), cloudpickle.loads(cloudpickle.dumps(program))]
    for one in copies:
        assert [name for name, _ in one.named_predictors()] == ["answer"]
        with dspy.context(lm=ScriptedLM(lambda prompt: {"answer": "4"})):
            run = one.run({"question": "2 + 2"})
            batched = one.batch([dspy.Example(question="2 + 2").with_inputs("question")], disable_progress_bar=True)
        assert run.state["steps"] == len(ATTRIBUTES) + len(FREE)
        assert batched[0].steps == run.state["steps"]
    with dspy.context(lm=ScriptedLM(lambda prompt: {"answer": "4"})):
        assert program.thread("thread").run({"question": "2 + 2"}).status == "completed"


def test_the_name_of_a_module_is_no_attribute_of_a_program() -> None:
    module, inner = dspy.Predict("question -> answer"), Graph().add_node("a", nothing).add_path(START, "a", END)
    for name in ATTRIBUTES:
        refused = rf"no module of the graph can be called '{name}'.*like '{name}_node'"
        with pytest.raises(GraphError, match=refused):
            Graph().add_node(name, module).add_path(START, name, END).compile()
        Graph().add_node(f"{name}_node", module).add_path(START, f"{name}_node", END).compile()
    kinds: dict[str, Callable[[], Graph]] = {
        "a bound module": lambda: Graph().add_node("load", lambda ask: {"n": 1}, modules={"ask": module}),
        "a map": lambda: Graph().add_map("load", module, over="questions", item="question", into="answers"),
        "a graph": lambda: Graph().add_node("load", inner),
        "a router": lambda: (
            Graph()
            .add_node("a", nothing)
            .add_conditional_edges("a", dspy.Predict("question -> way: Literal['x']"), {"x": END}, name="load")
        ),
    }
    for kind, make in kinds.items():
        with pytest.raises(GraphError) as caught:
            make().compile()
        assert "no module of the graph can be called" in str(caught.value), kind


def test_a_predictor_may_have_a_name_that_is_no_attribute(tmp_path: Path) -> None:
    made = Graph()
    for name in FREE:
        made.add_node(name, dspy.Predict(f"question -> {name}_answer"))
    made.add_path(START, *FREE, END)
    program = made.compile()
    program.state.demos = [dspy.Example(question="1 + 1", state_answer="2")]
    program.save(tmp_path / "program.json")
    loaded = made.compile()
    loaded.load(tmp_path / "program.json")
    for one in (loaded, program.deepcopy(), cloudpickle.loads(cloudpickle.dumps(program))):
        assert [name for name, _ in one.named_predictors()] == FREE
        assert [demo["state_answer"] for demo in one.state.demos] == ["2"]
        with dspy.context(lm=ScriptedLM(lambda prompt: dict.fromkeys(prompt.asks, "4"))):
            assert one(question="2 + 2").self_answer == "4"


def test_parallel_writers_are_allowed_with_a_policy_or_a_reducer() -> None:
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
    for part in (
        "a: reads question; writes draft",
        "b: reads draft; writes ?",
        "a round begins at a",
        "what is written by b is",
    ):
        assert part in text


def test_sends_may_bring_values_that_are_no_fields() -> None:
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
