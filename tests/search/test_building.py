"""What is wrong with a search is found when it is built, and said with its fix."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, agents
from dspyer.errors import GraphError
from dspyer.search import beam, best_of, mcts, tree
from tests.rows import each
from tests.search.kit import Step, run

QA = "question -> answer"


def rate(answer: str) -> float:
    return float(len(answer))


class Judged:
    """A reward that hides a module."""

    def __init__(self, judge: dspy.Module) -> None:
        self.judge = judge

    def __call__(self, answer: str) -> float:
        return float(self.judge(answer=answer).quality)


def near(n: float) -> float:
    return -abs(n - 7)


def pay(amount: float) -> str:
    """Pays."""
    return f"paid {amount}"


def agent(**options: Any) -> Graph:
    return agents.tool_loop(QA, [agents.tool(pay, **options)])


def level(module: Any = None, **options: Any) -> Graph:
    more = {"width": 2, "branch": 2, "depth": 2, "done": lambda n: n == 7, "writes": ["n"], **options}
    return beam(module or Step(lambda n: n + 1), near, **more)


PROBLEMS: dict[str, tuple[Callable[[], Any], str]] = {
    "no module": (lambda: best_of(rate, 3, rate), "module of a search is .*function.*: give a dspy.Module"),
    "n": (lambda: best_of(dspy.Predict(QA), 0, rate), "n=0: it must be a whole number"),
    "per_round": (lambda: best_of(dspy.Predict(QA), 2, rate, per_round=0), "per_round=0"),
    "threshold": (lambda: best_of(dspy.Predict(QA), 2, rate, threshold=float("nan")), "threshold=nan"),
    "temperature": (lambda: best_of(dspy.Predict(QA), 2, rate, temperature=0), "all trials would be the same one"),
    "negative": (lambda: best_of(dspy.Predict(QA), 1, rate, temperature=-1), "temperature=-1"),
    "rollout": (lambda: best_of(dspy.Predict(QA), 1, rate, rollout_id=-1), "rollout_id=-1"),
    "width": (lambda: level(width=0), "width=0"),
    "c": (lambda: mcts(Step(abs), near, branch=1, depth=1, max_trials=1, c="1"), "c='1'"),  # type: ignore[arg-type]
    "choose": (lambda: tree(Step(abs), near, None, writes=["n"]), "choose is None"),  # type: ignore[arg-type]
    "outputs": (lambda: best_of(Step(abs), 2, near), "does not say what it gives: name it, writes="),
    "deeper": (
        lambda: beam(dspy.Predict(QA), rate, width=1, branch=1, depth=2, done=bool),
        r"'answer' is none of its inputs \('question'\).*writes={'answer': 'question'}",
    ),
    "own fields": (lambda: best_of(dspy.Predict("question -> best"), 2, rate), "'best': a search has fields"),
    "reads": (lambda: best_of(dspy.Predict(QA), 2, rate, reads="question"), r"write reads=\['question'\]"),
    "views": (lambda: best_of(dspy.Predict(QA), 2, rate, reads={"question": 7}), "name of a field"),
    "reward": (lambda: best_of(dspy.Predict(QA), 2, "good").compile(), "'good'.*a function of fields, or a module"),
    "judge": (lambda: best_of(dspy.Predict(QA), 2, dspy.Predict("answer -> a, b")).compile(), "a judge has one output"),
    "judge's type": (
        lambda: best_of(dspy.Predict(QA), 2, dspy.Predict("answer -> verdict: list[str]")).compile(),
        r"'verdict' is list\[str\]: a judge has one output, a number",
    ),
    "hidden module": (
        lambda: best_of(dspy.Predict(QA), 2, Judged(dspy.Predict("answer -> quality: float"))).compile(),
        "give the module itself as the reward",
    ),
    "approve": (lambda: best_of(agent(approve=True), 2, rate), "the tool 'pay' with approve=.*not undone"),
    "effect": (lambda: best_of(agent(effect=True), 2, rate), "the tool 'pay' with effect="),
    "effect inside": (
        lambda: best_of(Graph().add_node("ask", agent(effect=True)).add_path(START, "ask", END), 2, rate),
        "the tool 'pay' with effect=",
    ),
    "reward of BestOfN": (
        lambda: best_of(dspy.Predict(QA), 2, lambda args, pred: 1.0),
        r"the reward reads 'args', 'pred', and nothing that the module gives \('answer'\)\. .*def reward\(answer\)",
    ),
    "misspelt": (lambda: best_of(dspy.Predict(QA), 2, lambda question, anser: 1.0), "Did you mean 'answer'"),
    "no graph": (lambda: best_of(Graph().add_node("a", rate), 2, rate), "nothing starts"),
}


@each("name", PROBLEMS)
def test_problems(name: str) -> None:
    build, text = PROBLEMS[name]
    with pytest.raises(GraphError, match=text):
        build()


def test_depth_without_done_is_warned_of_at_the_line_of_the_user() -> None:
    builds: list[Callable[[], Graph]] = [
        lambda: level(done=None),
        lambda: mcts(Step(abs), near, branch=1, depth=2, max_trials=3, writes=["n"]),
    ]
    for build in builds:
        with pytest.warns(UserWarning, match="without done=") as caught:
            build()
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        level(done=None, depth=1)


CHOICES: list[tuple[Any, str]] = [
    (None, "returned None"),
    ("0", "returned '0'"),
    ([("0",)], r"\('0',\) is in it"),
    ([("0", 1)], "the next one is 0"),
    ([("0", 0), ("0", 0)], "place 0 below '0', where the next one is 1"),
    ([("0", True)], "place True"),
    ([("0.0", 0)], "which is no trial of an earlier round"),
    ([(0, 0)], r"\(0, 0\) is in it"),
]


@each(("choice", "text"), CHOICES)
def test_a_wrong_choice_fails_the_run(choice: Any, text: str) -> None:
    done = run(tree(Step(lambda n: n + 1), near, lambda tree: choice, writes=["n"]), {"n": 1})
    with pytest.raises(ValueError, match=text):
        done.raise_error()


def test_what_is_done_or_failed_cannot_be_continued() -> None:
    def again(tree: Any) -> Any:
        return [("0", 0)] if not len(tree) else [("0.0", 0)]

    solved = run(tree(Step(lambda n: n + 1), near, again, writes=["n"], done=lambda n: True), {"n": 1})
    failed = run(tree(Step(lambda n: 1 / n), near, again, writes=["n"]), {"n": 0})
    assert "'0.0', which is done" in str(solved.error)
    assert "'0.0', which failed" in str(failed.error)


def test_names_are_mapped_as_in_add_node() -> None:
    graph = beam(
        dspy.Predict("board -> next_board"),
        lambda position: 0.0,
        width=1,
        branch=1,
        depth=2,
        done=lambda position: False,
        reads={"board": "position"},
        writes={"next_board": "position"},
    )
    assert graph.compile().graph.inputs == ("position",)


def test_a_reward_may_read_what_the_module_does_not() -> None:
    """Tests that the module must not see: an input of the search."""
    graph = best_of(Step(lambda n: n + 1), 2, lambda n, wanted: -abs(n - wanted), writes=["n"])
    assert graph.compile().graph.required == {"n", "wanted"}
    assert run(graph, {"n": 1, "wanted": 4}).state["tree"]["0.0"]["reward"] == -2


class Board(BaseModel):
    cells: list[int]


def test_the_fields_have_the_types_of_the_module() -> None:
    program = best_of(dspy.Predict("board: Board, note -> answer", custom_types={"Board": Board}), 1, rate).compile()
    fields = program.graph.topology.schema.fields
    assert fields["board"].annotation is Board
    assert fields["note"].annotation is Any


def test_the_source_of_the_program_says_what_is_tried_and_what_rates_it() -> None:
    source = inspect.getsource(type(best_of(dspy.Predict(QA), 2, rate).compile()))
    assert 'graph.add_trials("trial", dspy.Predict("question -> answer"), reward=rate)' in source
    assert "def rate(answer: str)" in source
