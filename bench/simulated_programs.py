"""The programs that `bench.optimize` optimizes: graphs of the steps of `simulated_lms`, examples, an expert's metric.

The expert's metric is written as well as one can with DSPy alone: it says what a step should have given, unless one of
its inputs was wrong, which it says instead. In a loop and in a map it finds the round or the item by the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import dspy
from pydantic import BaseModel

from bench.simulated_lms import DESKS, KINDS, Conventions, Step, chance
from dspyer import END, START, Graph, optimize

VISITS = 3  # of the step in the loop
ITEMS = 3  # of the map


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
    items: list[str] = []
    notes: list[str] = []
    current: str = ""
    worked: str = ""
    rounds: int = 0
    left: str = ""
    right: str = ""
    answer: str = ""


def predictor(step: Step) -> dspy.Predict:
    """The module of a step."""
    inputs = [f"{name}: list[str]" if name == "notes" else name for name in (*step.reads, *step.shown)]
    return dspy.Predict(dspy.Signature(f"{', '.join(inputs)} -> {step.writes}", step.instruction))


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
        metrics: the metric of each field, as a user of `optimize.by_field` writes them; by default `equals` with the
            column of each step.
        known: the right values around one call of a step, by the names of its inputs and its output, given the example,
            the step and the inputs; None if an input is none of the right values.
        inputs: the inputs of the program for a question.
    """

    name: str
    steps: tuple[Step, ...]
    build: Callable[..., Any]
    solve: Callable[[Conventions, str], dict[str, Any]]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    known: Callable[[Any, Step, Mapping[str, Any]], Mapping[str, Any] | None] | None = None
    inputs: Callable[[str], dict[str, Any]] = lambda question: {"question": question}

    def examples(self, conventions: Conventions, what: str, number: int) -> list[dspy.Example]:
        """Examples with a gold column for each compared field."""
        dice = chance("examples", self.name, conventions.seed, what)
        questions = [f"{dice.choice(KINDS)} {dice.randrange(1000)}" for _ in range(number)]
        made = [(self.inputs(question), self.solve(conventions, question)) for question in questions]
        return [dspy.Example(**inputs, **columns).with_inputs(*inputs) for inputs, columns in made]


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


def enough(after: str) -> Callable[[int], str]:
    return lambda rounds: after if rounds >= VISITS else "work_step"


def loop() -> Any:
    graph = Graph(Rounds, name="Loop")
    for step in LOOP:
        graph.add_node(f"{step.name}_step", predictor(step))
    graph.add_node("turn", turn, writes=["current", "rounds"])
    graph.add_path(START, "first_step", "work_step", "turn")
    graph.add_conditional_edges("turn", enough("answer_step"), ["answer_step", "work_step"])
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


def nested() -> Any:
    first, second, third, answer = PIPELINE
    inner = Graph(Desk, name="Inner", outputs=["third"]).add_node("second_step", predictor(second))
    inner.add_node("third_step", predictor(third)).add_path(START, "second_step", "third_step", END)
    graph = Graph(Desk, name="Nested").add_node("first_step", predictor(first))
    graph.add_node("inner", inner.compile(), reads=["question", "first"], writes=["third"])
    graph.add_node("answer_step", predictor(answer)).add_path(START, "first_step", "inner", "answer_step", END)
    return graph.compile()


MAP = (Step("note", ("item",), "note"), Step("answer", ("notes",), "answer"))


def mapped() -> Any:
    graph = Graph(Rounds, name="Map", inputs=["question", "items"])
    graph.add_map("note_step", predictor(MAP[0]), over="items", item="item", into="notes")
    graph.add_node("answer_step", predictor(MAP[1])).add_path(START, "note_step", "answer_step", END)
    return graph.compile()


def items_of(question: str) -> dict[str, Any]:
    """The inputs of a program with a map: its items follow from the question."""
    dice = chance("items", question)
    return {"question": question, "items": [f"{dice.choice(KINDS)} {dice.randrange(1000)}" for _ in range(ITEMS)]}


def solve_map(conventions: Conventions, question: str) -> dict[str, Any]:
    note, answer = MAP
    notes = [conventions.right(note, {"item": item}) for item in items_of(question)["items"]]
    return {"gold_notes": notes, "gold_answer": conventions.right(answer, {"notes": str(notes)})}


BALANCE = (
    Step("left", ("question",), "left"),
    Step("right", ("question",), "right"),
    Step("answer", ("question", "left", "right"), "answer", minus=("right",)),
)


def balance() -> Any:
    graph = Graph(Desk, name="Balance")
    for step in BALANCE:
        graph.add_node(f"{step.name}_step", predictor(step))
    graph.add_edge(START, ["left_step", "right_step"]).add_edge(["left_step", "right_step"], "answer_step")
    return graph.add_edge("answer_step", END).compile()


MIX = (
    Step("note", ("item",), "note"),
    Step("first", ("notes",), "current"),
    Step("work", ("current",), "worked"),
    Step("left", ("worked",), "left"),
    Step("right", ("worked",), "right"),
    Step("answer", ("left", "right"), "answer"),
)


def mix() -> Any:
    note, *others = MIX
    graph = Graph(Rounds, name="Mix", inputs=["question", "items"])
    graph.add_map("note_step", predictor(note), over="items", item="item", into="notes")
    for step in others:
        graph.add_node(f"{step.name}_step", predictor(step))
    graph.add_node("turn", turn, writes=["current", "rounds"]).add_node("part", lambda worked: {}, writes=[])
    graph.add_path(START, "note_step", "first_step", "work_step", "turn")
    graph.add_conditional_edges("turn", enough("part"), ["part", "work_step"])
    graph.add_edge("part", ["left_step", "right_step"]).add_edge(["left_step", "right_step"], "answer_step")
    return graph.add_edge("answer_step", END).compile()


def solve_mix(conventions: Conventions, question: str) -> dict[str, Any]:
    note, first, work, left, right, answer = MIX
    notes = [conventions.right(note, {"item": item}) for item in items_of(question)["items"]]
    values = [conventions.right(first, {"notes": str(notes)})]
    for _ in range(VISITS):
        values.append(conventions.right(work, {"current": values[-1]}))
    sides = {step.writes: conventions.right(step, {"worked": values[-1]}) for step in (left, right)}
    gold = {"gold_notes": notes, "gold_values": values, **{f"gold_{name}": value for name, value in sides.items()}}
    return {**gold, "gold_answer": conventions.right(answer, sides)}


EDITOR = (Step("draft", ("question",), "draft"), Step("edit", ("question",), "answer", shown=("draft",)))


def editor() -> Any:
    graph = Graph(Desk, name="Editor")
    graph.add_node("draft_step", predictor(EDITOR[0]), frozen=True)
    graph.add_node("edit_step", predictor(EDITOR[1])).add_path(START, "draft_step", "edit_step", END)
    return graph.compile()


def rounds_known(example: Any, step: Step, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The right values around a call in a loop: the round is known by what it had read."""
    values = example.gold_values
    if step.name == "first":
        return {"notes": example.get("gold_notes"), "question": example.question, "current": values[0]}
    if step.name == "work":
        at = next((at for at, value in enumerate(values[:-1]) if value == inputs["current"]), None)
        return None if at is None else {"current": values[at], "worked": values[at + 1]}
    return items_known(example, step, inputs)


def items_known(example: Any, step: Step, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The right values around a call in a program with a map: the item is known by its text."""
    if step.name == "note":
        return {"item": inputs["item"], "note": example.gold_notes[example["items"].index(inputs["item"])]}
    if step.name in DESKS and example.get("gold_desk", step.name) != step.name:  # it should not have run
        return None
    columns = {key.removeprefix("gold_"): value for key, value in example.items() if key.startswith("gold_")}
    last = example.get("gold_values")
    return {"question": example.question, **columns, **({} if last is None else {"worked": last[-1]})}


OF_ROUNDS = {
    "current": optimize.equals(lambda example, state: example.gold_values[state["rounds"]]),
    "worked": optimize.equals(lambda example, state: example.gold_values[state["rounds"] + 1]),
}
SHAPES = (
    Shape("pipeline", PIPELINE, pipeline, in_order(PIPELINE)),
    Shape("fork", FORK, fork, in_order(FORK)),
    Shape("nested", PIPELINE, nested, in_order(PIPELINE)),
    Shape("map", MAP, mapped, solve_map, {"notes": optimize.equals("gold_notes")}, items_known, items_of),
    Shape("compensating errors", BALANCE, balance, in_order(BALANCE)),
    Shape("mix", MIX, mix, solve_mix, {**OF_ROUNDS, "notes": optimize.equals("gold_notes")}, rounds_known, items_of),
    Shape("editor", EDITOR, editor, in_order(EDITOR)),
    Shape("loop", LOOP, loop, solve_loop, OF_ROUNDS, rounds_known),
    Shape("router", ROUTER, router, solve_router),
)


def field_metrics(shape: Shape) -> dict[str, Any]:
    """The metric of each compared field, the goal last."""
    given = {
        step.writes: shape.metrics.get(step.writes, optimize.equals(f"gold_{step.writes}")) for step in shape.steps
    }
    own = {name: metric for name, metric in {**shape.metrics, **given}.items() if name != "note"}
    return {**{name: metric for name, metric in own.items() if name != "answer"}, "answer": own["answer"]}


def expected(name: str, value: Any, gold: Any) -> str:
    """What a metric by hand says about a field."""
    return f"`{name}` is right." if value == gold else f"`{name}` is {value!r}, expected {gold!r}."


def with_strict_gold(shape: Shape) -> Shape:
    """The program with gold in another style for one field in the middle, which no value ever equals."""
    field = shape.steps[1].writes

    def solve(conventions: Conventions, question: str) -> dict[str, Any]:
        columns = shape.solve(conventions, question)
        return {**columns, f"gold_{field}": columns[f"gold_{field}"].upper()}

    return replace(shape, solve=solve)


Metric = Callable[..., Any]


def metric_by_hand(shape: Shape) -> Metric:
    """The expert's metric: the score of the answer, with a feedback on what the predictor wrote."""
    steps = {f"{step.name}_step": step for step in shape.steps}
    known = shape.known or items_known

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        score = float(getattr(pred, "answer", None) == gold.gold_answer)
        step = next((steps[part] for part in str(pred_name).split(".") if part in steps), None)
        if step is None:
            return score
        _, inputs, outputs = pred_trace[0]
        right = known(gold, step, inputs)
        wrong = (
            ""
            if right is None
            else next((name for name in inputs if right.get(name, inputs[name]) != inputs[name]), "")
        )
        # A step that is shown a draft besides should notice that it is wrong.
        if right is None or (wrong and wrong not in step.shown):
            return dspy.Prediction(score=score, feedback="An input was already wrong: nothing to fix here.")
        return dspy.Prediction(
            score=score, feedback=expected(step.writes, outputs.get(step.writes), right[step.writes])
        )

    return metric
