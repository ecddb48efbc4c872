"""The programs that `bench.optimize` optimizes: graphs of the steps of `simulated_lms`, examples, metrics by hand.

Every metric by hand is written as well as one can with DSPy alone: it says what a field is and what it should be, and
in a loop it finds the visit of the step that GEPA shows by its place in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy
from pydantic import BaseModel

from bench.simulated_lms import KINDS, Conventions, Step, chance
from dspyer import END, START, Graph, optimize

VISITS = 3  # of the step in the loop


class Desk(BaseModel):
    question: str
    first: str = ""
    second: str = ""
    third: str = ""
    left: str = ""
    right: str = ""
    desk: str = ""
    draft: str = ""
    answer: str = ""


class Rounds(BaseModel):
    question: str
    current: str = ""
    worked: str = ""
    rounds: int = 0
    answer: str = ""


def predictor(step: Step) -> dspy.Predict:
    """The module of a step."""
    return dspy.Predict(dspy.Signature(f"{', '.join(step.reads)} -> {step.writes}", step.instruction))


def line(*names: str) -> tuple[Step, ...]:
    """Steps, each of which reads what the one before wrote."""
    return tuple(Step(name, (before,), name) for before, name in zip(("question", *names), names, strict=False))


@dataclass(frozen=True)
class Shape:
    """A program, and what is right in it.

    Attributes:
        name: its heading in the tables.
        steps: its steps.
        build: makes the graph's program.
        solve: the right values for a question, as columns of an example.
        fields: the fields that are compared, the goal last.
    """

    name: str
    steps: tuple[Step, ...]
    build: Callable[..., Any]
    solve: Callable[[Conventions, str], dict[str, Any]]
    fields: tuple[str, ...]

    def examples(self, conventions: Conventions, what: str, number: int) -> list[dspy.Example]:
        """Examples with a gold column for each compared field."""
        dice = chance("examples", self.name, conventions.seed, what)
        questions = [f"{dice.choice(KINDS)} {dice.randrange(1000)}" for _ in range(number)]
        return [
            dspy.Example(question=question, **self.solve(conventions, question)).with_inputs("question")
            for question in questions
        ]


def in_order(steps: tuple[Step, ...]) -> Callable[[Conventions, str], dict[str, Any]]:
    """Solves a program whose steps all run once, in that order."""

    def solve(conventions: Conventions, question: str) -> dict[str, Any]:
        values = {"question": question}
        for step in steps:
            values[step.writes] = conventions.right(step, values)
        return {f"gold_{step.writes}": values[step.writes] for step in steps}

    return solve


PIPELINE = line("first", "second", "third", "answer")


def pipeline() -> Any:
    graph = Graph(Desk, name="Pipeline")
    for step in PIPELINE:
        graph.add_node(f"{step.name}_step", predictor(step))
    graph.add_path(START, *(f"{step.name}_step" for step in PIPELINE), END)
    return graph.compile()


FORK = (
    *line("first"),
    Step("left", ("first",), "left"),
    Step("right", ("first",), "right"),
    Step("answer", ("left", "right"), "answer"),
)


def fork() -> Any:
    graph = Graph(Desk, name="Fork")
    for step in FORK:
        graph.add_node(f"{step.name}_step", predictor(step))
    graph.add_edge(START, "first_step")
    graph.add_edge("first_step", ["left_step", "right_step"])
    graph.add_edge(["left_step", "right_step"], "answer_step")
    graph.add_edge("answer_step", END)
    return graph.compile()


LOOP = (
    Step("first", ("question",), "current"),
    Step("work", ("current",), "worked"),
    Step("answer", ("worked",), "answer"),
)


def turn(worked: str, rounds: int) -> dict[str, Any]:
    return {"current": worked, "rounds": rounds + 1}


def enough(rounds: int) -> str:
    return "answer_step" if rounds >= VISITS else "work_step"


def loop() -> Any:
    graph = Graph(Rounds, name="Loop")
    for step in LOOP:
        graph.add_node(f"{step.name}_step", predictor(step))
    graph.add_node("turn", turn, writes=["current", "rounds"])
    graph.add_path(START, "first_step", "work_step", "turn")
    graph.add_conditional_edges("turn", enough, ["answer_step", "work_step"])
    graph.add_edge("answer_step", END)
    return graph.compile()


def solve_loop(conventions: Conventions, question: str) -> dict[str, Any]:
    first, work, answer = LOOP
    values = [conventions.right(first, {"question": question})]
    for _ in range(VISITS):
        values.append(conventions.right(work, {"current": values[-1]}))
    return {"gold_values": values, "gold_answer": conventions.right(answer, {"worked": values[-1]})}


ROUTER = (
    Step("sort", ("question",), "desk", chooses=True),
    Step("north", ("question",), "draft"),
    Step("south", ("question",), "draft"),
    Step("answer", ("draft",), "answer"),
)


def to_desk(desk: str) -> str:
    return "south_step" if desk == "south" else "north_step"


def router() -> Any:
    graph = Graph(Desk, name="Router")
    for step in ROUTER:
        graph.add_node(f"{step.name}_step", predictor(step))
    graph.add_edge(START, "sort_step")
    graph.add_conditional_edges("sort_step", to_desk, ["north_step", "south_step"])
    graph.add_edge("north_step", "answer_step")
    graph.add_edge("south_step", "answer_step")
    graph.add_edge("answer_step", END)
    return graph.compile()


def solve_router(conventions: Conventions, question: str) -> dict[str, Any]:
    sort, north, south, answer = ROUTER
    desk = conventions.right(sort, {"question": question})
    draft = conventions.right(south if desk == "south" else north, {"question": question})
    return {"gold_desk": desk, "gold_draft": draft, "gold_answer": conventions.right(answer, {"draft": draft})}


PIPELINE_SHAPE = Shape("pipeline", PIPELINE, pipeline, in_order(PIPELINE), tuple(step.writes for step in PIPELINE))
FORK_SHAPE = Shape("fork", FORK, fork, in_order(FORK), tuple(step.writes for step in FORK))
LOOP_SHAPE = Shape("loop", LOOP, loop, solve_loop, ("current", "worked", "answer"))
ROUTER_SHAPE = Shape("router", ROUTER, router, solve_router, ("desk", "draft", "answer"))
SHAPES = (PIPELINE_SHAPE, FORK_SHAPE, LOOP_SHAPE, ROUTER_SHAPE)


def field_metrics(shape: Shape) -> dict[str, Any]:
    """The metric of each compared field, as a user of `optimize.by_field` writes them."""
    if shape is LOOP_SHAPE:
        return {
            "current": optimize.equals(lambda example, state: example.gold_values[state["rounds"]]),
            "worked": optimize.equals(lambda example, state: example.gold_values[state["rounds"] + 1]),
            "answer": optimize.equals("gold_answer"),
        }
    return {name: optimize.equals(f"gold_{name}") for name in shape.fields}


def compared(name: str, value: Any, gold: Any) -> dspy.Prediction:
    """A field metric's verdict with its feedback."""
    return dspy.Prediction(score=float(value == gold), feedback=expected(name, value, gold))


def expected(name: str, value: Any, gold: Any) -> str:
    """What a metric by hand says about a field."""
    return f"`{name}` is right." if value == gold else f"`{name}` is {value!r}, expected {gold!r}."


Metric = Callable[..., Any]


def final_metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    """The answer alone, with a feedback that says what was expected."""
    answer = getattr(pred, "answer", None)
    score = float(answer == gold.gold_answer)
    return dspy.Prediction(score=score, feedback=expected("answer", answer, gold.gold_answer))


def metric_by_hand(shape: Shape) -> Metric:
    """The same score, with a feedback on the field that the predictor wrote."""
    steps = {f"{step.name}_step": step for step in shape.steps}

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        score = float(getattr(pred, "answer", None) == gold.gold_answer)
        step = steps.get(str(pred_name).split(".")[0])
        if step is None:
            return score
        inputs, outputs = pred_trace[0][1], pred_trace[0][2]
        wanted = gold_of(gold, step, inputs, outputs, trace)
        return dspy.Prediction(score=score, feedback=expected(step.writes, outputs.get(step.writes), wanted))

    return metric


def gold_of(gold: Mapping[str, Any], step: Step, inputs: Any, outputs: Any, trace: Any) -> Any:
    """The right output of a step; in the loop that of its visit."""
    if "gold_values" not in gold or step.writes == "answer":
        return gold[f"gold_{step.writes}"]
    if step.writes == "current":
        return gold["gold_values"][0]
    visits = [one for one in trace if "worked" in one[2]]
    return gold["gold_values"][1 + next(i for i, one in enumerate(visits) if one[1] is inputs and one[2] is outputs)]
