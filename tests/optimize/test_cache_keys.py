"""Which calls `optimize.cache` takes for the same: one row for each thing that a result may depend on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import dspy
import pytest

from dspyer import END, START, Graph, optimize
from tests.optimize.cached import caching_lm


@pytest.fixture(autouse=True)
def _without_dspy_cache() -> Iterator[None]:
    before = dspy.cache
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    yield
    dspy.cache = before


def program(module: Any = None, name: str = "One", node: str = "answer", **options: Any) -> Any:
    graph = Graph(name=name).add_node(node, module or dspy.Predict("question -> answer"), **options)
    return graph.add_path(START, node, END).compile()


def instructed(text: str) -> Any:
    made = program()
    made.answer.signature = made.answer.signature.with_instructions(text)
    return made


def with_demos(*demos: dspy.Example) -> Any:
    made = program()
    made.answer.demos = list(demos)
    return made


def with_lm(**kwargs: Any) -> Any:
    made = program()
    made.set_lm(caching_lm(**kwargs))
    return made


def told(text: str) -> Any:
    return program(dspy.Predict(dspy.Signature("question, place -> answer", f"{text} {{place}}")), reads=["question"])


class Kinds(dspy.Signature):
    """Say it."""

    question: str = dspy.InputField()
    answer: Literal["a", "b"] = dspy.OutputField()


class MoreKinds(dspy.Signature):
    """Say it."""

    question: str = dspy.InputField()
    answer: Literal["a", "b", "c"] = dspy.OutputField()


def with_model(**fields: Any) -> Any:
    """Two models of one name, one of which has another field."""
    from pydantic import create_model

    made: Any = create_model("Answer", **fields)
    return program(dspy.Predict(dspy.Signature("question -> answer").with_updated_fields("answer", type_=made)))


def coded(source: str) -> Any:
    """A module whose code is given."""
    space: dict[str, Any] = {"dspy": dspy, "__name__": "of_the_test"}
    exec(
        textwrap.dedent(
            f"""
            class Own(dspy.Module):
                def __init__(self):
                    super().__init__()
                    self.ask = dspy.Predict("question -> answer")
                    self.limit = 3
                def forward(self, question):
                    {source}
            """
        ),
        space,
    )
    return program(space["Own"](), writes=["answer"])


def limited(limit: int) -> Any:
    made = coded("return self.ask(question=question)")
    made.answer.limit = limit
    return made


def tooled(fn: Callable[..., Any], desc: str = "looks") -> Any:
    return program(dspy.ReAct("question -> answer", tools=[dspy.Tool(fn, name="look", desc=desc)], max_iters=1))


def look(place: str) -> str:
    return place


def look_twice(place: str) -> str:
    return place + place


EXAMPLE = dspy.Example(question="q", answer="a")
ASK = {"question": "Where?"}

EQUAL: dict[str, Callable[[], Any]] = {
    "another copy": lambda: program().deepcopy(),
    "the same instructions": lambda: instructed(program().answer.signature.instructions),
    "an id of a data set in a demo": lambda: program(),
    "traces and stage": lambda: _changed(program(), stage="other", traces=[1], train=[2]),
    "a compiled copy": lambda: _changed(program(), _compiled=True),
    "another api key": lambda: with_lm(api_key="other"),
}


def _changed(made: Any, **attributes: Any) -> Any:
    vars(made.answer).update(attributes)
    return made


# What is asked first, and then as something else: (program, further settings), twice.
DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "graph": (program, lambda: program(name="Two")),
    "node": (program, lambda: program(node="other")),
    "instructions": (program, lambda: instructed("Be brief.")),
    "a demo": (program, lambda: with_demos(EXAMPLE)),
    "another demo": (lambda: with_demos(EXAMPLE), lambda: with_demos(dspy.Example(question="q", answer="b"))),
    "order of demos": (
        lambda: with_demos(EXAMPLE, dspy.Example(question="r", answer="s")),
        lambda: with_demos(dspy.Example(question="r", answer="s"), EXAMPLE),
    ),
    "type of a field": (lambda: program(dspy.Predict(Kinds)), lambda: program(dspy.Predict(MoreKinds))),
    "fields of a type": (lambda: with_model(a=(int, 1)), lambda: with_model(a=(int, 1), b=(str, ""))),
    "description of a field": (
        program,
        lambda: program(dspy.Predict(dspy.Signature("question -> answer").with_updated_fields("answer", desc="short"))),
    ),
    "class of the module": (program, lambda: program(dspy.ChainOfThought("question -> answer"))),
    "config of a predictor": (program, lambda: program(dspy.Predict("question -> answer", temperature=0.5))),
    "rollout id in the config": (
        lambda: program(dspy.Predict("question -> answer", temperature=1.0, rollout_id=1)),
        lambda: program(dspy.Predict("question -> answer", temperature=1.0, rollout_id=2)),
    ),
    "model": (lambda: with_lm(model="a"), lambda: with_lm(model="b")),
    "temperature of the LM": (lambda: with_lm(temperature=0.1), lambda: with_lm(temperature=0.2)),
    "rollout id of the LM": (
        lambda: with_lm(rollout_id=1, temperature=1.0),
        lambda: with_lm(rollout_id=2, temperature=1.0),
    ),
    "address of the LM": (lambda: with_lm(api_base="http://a"), lambda: with_lm(api_base="http://b")),
    "code of a module": (
        lambda: coded("return self.ask(question=question)"),
        lambda: coded("return self.ask(question=question + '!')"),
    ),
    "attribute of a module": (lambda: limited(3), lambda: limited(4)),
    "code of a tool": (lambda: tooled(look), lambda: tooled(look_twice)),
    "description of a tool": (lambda: tooled(look), lambda: tooled(look, "looks well")),
    "template": (lambda: told("In"), lambda: told("At")),
}


def made_calls(folder: Path, first: Any, second: Any, inputs: Any = ASK, other: Any = None) -> tuple[int, int]:
    """The LM calls of one run, and of another after it."""
    counts = []
    for made, given_ in ((first, inputs), (second, other or inputs)):
        lm = made.answer.lm if isinstance(getattr(made, "answer", None), dspy.Predict) else None
        lm = lm or caching_lm()
        with optimize.cache(folder), dspy.context(lm=lm):
            made.run(given_)
        counts.append(len(lm.calls))
    return counts[0], counts[1]


@pytest.mark.parametrize("case", EQUAL)
def test_equal_calls_hit(case: str, tmp_path: Path) -> None:
    first = with_lm(api_key="one") if "api key" in case else program()
    second = EQUAL[case]()
    if "data set" in case:
        first = with_demos(dspy.Example(dspy_uuid="1", question="q", answer="a"))
        second = with_demos(dspy.Example(dspy_uuid="2", question="q", answer="a"))
    assert made_calls(tmp_path, first, second) == (1, 0)


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_changed_part_misses(case: str, tmp_path: Path) -> None:
    first, second = (make() for make in DIFFERENT[case])
    inputs = {**ASK, "place": "town"}
    if case != "template":
        inputs.pop("place")
    before, after = made_calls(tmp_path, first, second, inputs)
    assert before == after > 0
    assert made_calls(tmp_path, *(make() for make in DIFFERENT[case]), inputs) == (0, 0)
