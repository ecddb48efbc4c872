"""`FewShot`: each step is judged by itself, the order of demonstrations, and rollouts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Retry, Run, Send, reducers
from dspyer.errors import StoreError
from dspyer.optimize import FewShot, by_field, equals
from dspyer.testing import Prompt, no_pauses
from tests.dspy_optimizers.lm import WriterLM, written
from tests.rows import each

Answer = Callable[[Mapping[str, Any], int], dict[str, Any]]
"""What a step answers, given its inputs and the number of the rollout: 0 for the first call."""

STRIDE = 10**12  # how far apart the rollout ids of rollouts are


class Task:
    """The LM of these tests: each step by its first output field; it counts calls by step and rollout."""

    def __init__(self, **steps: Answer) -> None:
        self.steps = steps
        self.calls: Counter[tuple[str, int]] = Counter()
        self.demos: dict[str, int] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Task:
        return self

    def write(self, prompt: Prompt, sampling: Any, /) -> str:
        name = prompt.output_fields[0].name
        rollout = (sampling.rollout or 0) // STRIDE
        with self._lock:
            self.calls[name, sampling.rollout or 0] += 1
        return written(prompt, self.steps[name](dict(prompt.inputs), rollout))

    def __enter__(self) -> Self:
        self._context = dspy.context(lm=WriterLM("task", self))
        self._context.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._context.__exit__(*raised)

    def count(self, name: str) -> int:
        return sum(number for (step, _), number in self.calls.items() if step == name)


def pipeline() -> CompiledGraph:
    """Three steps: text -> a -> b -> c."""
    graph = Graph(name="Pipe", inputs=["text"])
    for before, after in (("text", "a"), ("a", "b"), ("b", "c")):
        graph = graph.add_node(f"make_{after}", dspy.Predict(f"{before} -> {after}"))
    return graph.add_path(START, "make_a", "make_b", "make_c", END).compile()


def examples(*texts: str) -> list[dspy.Example]:
    return [dspy.Example(text=text, a=f"a {text}", b=f"b {text}", c=f"c {text}").with_inputs("text") for text in texts]


def right(before: str, after: str, wrong: Sequence[str] = (), from_rollout: int = 99) -> Answer:
    """A step that answers `after` for what it is asked about, wrongly for some texts until a rollout."""

    def answer(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        given, _, text = str(inputs[before]).rpartition(" ")
        if given == "no" or (text in wrong and rollout < from_rollout):
            return {after: f"no {text}"}
        return {after: f"{after} {text}"}

    return answer


METRIC = by_field({name: equals(name) for name in "abc"}, goal="c")


def few_shot(metric: Any = METRIC, **options: Any) -> FewShot:
    return FewShot(metric, **{"max_labeled_demos": 0, **options})


def texts_of(program: dspy.Module) -> dict[str, list[str]]:
    """What the demonstrations of each predictor are about."""
    return {
        name: [list(demo.without("augmented").toDict().values())[-1].rpartition(" ")[2] for demo in predictor.demos]
        for name, predictor in program.named_predictors()
    }


# --- partial credit


def test_a_step_that_was_right_is_a_demonstration_whatever_the_result() -> None:
    with Task(a=right("text", "a", ["x"]), b=right("a", "b"), c=right("b", "c", ["y"])):
        tuned = few_shot().compile(pipeline(), trainset=examples("x", "y", "z"))
    # x: the first step is wrong, and what follows from it; y: the last one
    assert texts_of(tuned) == {"make_a": ["z", "y"], "make_b": ["z", "y"], "make_c": ["z"]}


def test_a_field_without_a_metric_has_those_of_successful_runs() -> None:
    metric = by_field({"c": equals("c")}, goal="c")
    task = {"a": right("text", "a", ["x"]), "b": right("a", "b"), "c": right("b", "c", ["y"])}
    with Task(**task):
        tuned = few_shot(metric).compile(pipeline(), trainset=examples("x", "y", "z"))
    with Task(**task):
        plain = dspy.BootstrapFewShot(metric=metric, max_labeled_demos=0)
        expected = plain.compile(pipeline(), trainset=examples("x", "y", "z"))
    assert texts_of(tuned) == texts_of(expected)
    assert [one.demos for one in tuned.predictors()] == [one.demos for one in expected.predictors()]


def test_with_the_goal_alone_it_is_bootstrap_few_shot() -> None:
    """The same demonstrations, labeled ones too, and the same calls, if only the result is compared."""
    metric = by_field({"c": equals("c")}, goal="c")
    train = examples(*"pqrstuvw")
    found = []
    for optimizer in (FewShot(metric, max_demos=2), dspy.BootstrapFewShot(metric=metric, max_bootstrapped_demos=2)):
        with Task(a=right("text", "a"), b=right("a", "b", ["p", "r"]), c=right("b", "c")) as task:
            tuned = optimizer.compile(pipeline(), trainset=train)
        found.append(([one.demos for one in tuned.predictors()], task.calls, tuned._compiled))
    assert found[0] == found[1]


def test_what_is_known_to_be_wrong_is_no_demonstration_of_a_successful_run() -> None:
    def lucky(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        return {"c": f"c {str(inputs['b']).rpartition(' ')[2]}"}

    with Task(a=right("text", "a"), b=right("a", "b", ["x"]), c=lucky):
        tuned = few_shot().compile(pipeline(), trainset=examples("x"))
    assert texts_of(tuned) == {"make_a": ["x"], "make_b": [], "make_c": ["x"]}


def test_a_run_that_raised_gives_the_steps_that_it_has_made() -> None:
    def fails(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        raise ConnectionError("down")

    with Task(a=right("text", "a"), b=right("a", "b"), c=fails):
        optimizer = few_shot(max_errors=5)
        tuned = optimizer.compile(pipeline(), trainset=examples("x", "y"))
    assert texts_of(tuned) == {"make_a": ["x", "y"], "make_b": ["x", "y"], "make_c": []}
    assert optimizer.error_count == 2
    with Task(a=right("text", "a"), b=right("a", "b"), c=fails), pytest.raises(Exception, match="down"):
        few_shot(max_errors=1).compile(pipeline(), trainset=examples("x", "y"))


class Broken(dspy.Module):
    """A module that gives a wrong value, and finds a full disk when it is asked again."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("text -> a")
        self.calls: list[str] = []

    def forward(self, text: str) -> dspy.Prediction:
        self.calls.append(text)
        if len(self.calls) > 1:
            raise StoreError("the disk is full")
        found: dspy.Prediction = self.ask(text=text)
        return found


def test_a_store_that_fails_ends_the_optimization() -> None:
    graph = Graph(name="One", inputs=["text"]).add_node("make_a", Broken()).add_path(START, "make_a", END)
    metric = by_field({"a": equals("a")}, goal="a")
    with Task(a=right("text", "a", ["x"])), pytest.raises(StoreError, match="the disk is full"):
        few_shot(metric, rollouts=2, max_errors=9).compile(graph.compile(), trainset=examples("x", "y"))


def test_an_error_of_a_metric_is_counted_and_no_error_edge_takes_it() -> None:
    def broken(example: dspy.Example, a: str) -> bool:
        raise LookupError("no such column")

    graph = Graph(name="Edge", inputs=["text"]).add_node("make_a", dspy.Predict("text -> a"))
    graph = graph.add_node("help", lambda: {"c": "c x"}, writes=["c"]).add_error_edge("make_a", "help")
    program = graph.add_path(START, "make_a", "help", END).compile()
    metric = by_field({"a": broken, "c": equals("c")}, goal="c")
    with Task(a=right("text", "a")):
        optimizer = few_shot(metric, rollouts=2, max_errors=9)
        optimizer.compile(program, trainset=examples("x"))
    assert (optimizer.error_count, optimizer.metric) == (1, metric)


def test_full_runs_come_first_and_then_the_rarest_culprits() -> None:
    with Task(a=right("text", "a"), b=right("a", "b", ["p", "q"]), c=right("b", "c", ["r"])):
        tuned = few_shot(max_demos=9).compile(pipeline(), trainset=examples("p", "q", "r", "s", "t"))
    # p and q fail at b, r at c, s and t at nothing
    assert texts_of(tuned)["make_a"] == ["s", "t", "r", "p", "q"]


def test_it_stops_when_every_predictor_has_enough() -> None:
    with Task(a=right("text", "a"), b=right("a", "b", ["p"]), c=right("b", "c")) as task:
        tuned = few_shot(max_demos=2).compile(pipeline(), trainset=examples(*"pqrstu"))
    assert {name: len(found) for name, found in texts_of(tuned).items()} == {"make_a": 2, "make_b": 2, "make_c": 2}
    assert task.count("a") == 3


def test_what_a_node_gave_when_it_was_asked_again_comes_first() -> None:
    """It shows what the node does not do by itself; in a run that failed elsewhere, too."""
    with Task(a=right("text", "a", ["r"], 1), b=right("a", "b", ["q", "r"], 9), c=right("b", "c")):
        tuned = few_shot(rollouts=1).compile(pipeline(), trainset=examples("p", "q", "r"))
    assert texts_of(tuned) == {"make_a": ["r", "p", "q"], "make_b": ["p"], "make_c": ["p"]}


def test_it_goes_on_for_a_predictor_that_a_route_has_left_out() -> None:
    graph = Graph(name="Routed", inputs=["text"]).add_node("make_a", dspy.Predict("text -> a"))
    graph = graph.add_node("make_b", dspy.Predict("a -> b")).add_edge(START, "make_a").add_edge("make_b", END)
    graph = graph.add_conditional_edges("make_a", lambda a: "make_b" if a.endswith("z") else END, ["make_b", END])
    metric = by_field({"a": equals("a"), "b": lambda example, b: b == example.b}, goal="a")
    with Task(a=right("text", "a"), b=right("a", "b")) as task:
        tuned = few_shot(metric, max_demos=1).compile(graph.compile(), trainset=examples(*"vwxyz"))
    assert (texts_of(tuned), task.count("a")) == ({"make_a": ["v"], "make_b": ["z"]}, 5)


def test_a_teacher_gives_the_demonstrations() -> None:
    teacher = pipeline()
    teacher.make_a.signature = teacher.make_a.signature.with_instructions(teacher.make_a.signature.instructions)
    strong = WriterLM("strong", Task(a=right("text", "a")))
    teacher.make_a.lm = strong
    with Task(a=right("text", "a", ["x"]), b=right("a", "b"), c=right("b", "c")) as task:
        tuned = few_shot().compile(pipeline(), teacher=teacher, trainset=examples("x"))
    assert task.count("a") == 0
    assert texts_of(tuned)["make_a"] == ["x"]
    assert tuned.make_a.lm is None


# --- checks, loops, and modules written by hand


def test_what_a_check_refused_is_no_demonstration() -> None:
    def draft(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        return {"a": "short" if "previous_a" not in inputs else f"a {inputs['text']}"}

    graph = Graph(name="Checked", inputs=["text"]).add_node("make", dspy.Predict("text -> a"))
    graph = graph.add_check("long", lambda a: ["too short"] if a == "short" else [], of="make")
    metric = by_field({"a": equals("a")}, goal="a")
    with Task(a=draft):
        tuned = few_shot(metric).compile(graph.add_path(START, "make", END).compile(), trainset=examples("x"))
    assert texts_of(tuned) == {"make": [], "make_fix": ["x"]}


class Rounds(BaseModel):
    n: int = 0
    text: str = ""
    a: str = ""


def test_each_visit_of_a_loop_is_judged_by_its_own_execution() -> None:
    def answer(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        return {"a": "a x" if inputs["n"] == "2" else f"draft {inputs['n']}"}

    graph = Graph(Rounds, inputs=["text"]).add_node("count", lambda n: {"n": n + 1}, writes=["n"])
    graph = graph.add_node("make", dspy.Predict("text, n: int -> a")).add_path(START, "count", "make")
    program = graph.add_conditional_edges("make", lambda n: END if n == 3 else "count", [END, "count"]).compile()
    metric = by_field({"a": equals("a")}, goal="a")
    with Task(a=answer):
        tuned = few_shot(metric).compile(program, trainset=examples("x"))
    (demo,) = tuned.make.demos  # of the second of three visits: the others were wrong, and so is the result
    assert (demo.n, demo.a) == (2, "a x")


def test_a_module_written_by_hand_is_bootstrapped_as_ever() -> None:
    class Hand(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make = dspy.Predict("text -> c")

        def forward(self, text: str) -> dspy.Prediction:
            return dspy.Prediction(c=self.make(text=text).c)

    metric = by_field({"c": equals("c")}, goal="c")
    with Task(c=right("text", "c", ["x"])):
        tuned = few_shot(metric).compile(Hand(), trainset=examples("x", "y"))
    assert texts_of(tuned) == {"make": ["y"]}


def test_a_program_in_a_wrapper() -> None:
    class Wrapper(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = pipeline()

        def forward(self, text: str) -> dspy.Prediction:
            found: dspy.Prediction = self.inner(text=text)
            return found

    with Task(a=right("text", "a"), b=right("a", "b"), c=right("b", "c", ["x"], from_rollout=1)) as task:
        tuned = few_shot(rollouts=1).compile(Wrapper(), trainset=examples("x"))
    assert {name: len(found) for name, found in texts_of(tuned).items()} == dict.fromkeys(texts_of(tuned), 1)
    assert task.count("c") == 2


# --- rollouts


def test_a_culprit_is_asked_again_alone_and_the_run_goes_on() -> None:
    with Task(a=right("text", "a", ["x"], 2), b=right("a", "b"), c=right("b", "c")) as task:
        tuned = few_shot(rollouts=3).compile(pipeline(), trainset=examples("x"))
    assert texts_of(tuned) == {"make_a": ["x"], "make_b": ["x"], "make_c": ["x"]}
    assert tuned.make_a.demos[0].a == "a x"
    assert task.calls == {("a", 0): 1, ("a", STRIDE): 1, ("a", 2 * STRIDE): 1, ("b", 0): 1, ("c", 0): 1}


def test_what_follows_from_a_wrong_value_is_not_asked_again() -> None:
    """No more calls than `rollouts` for the culprit, and none for the steps after it."""

    def follows(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        return {"b": str(inputs["a"]).replace("a ", "b ")}

    with Task(a=right("text", "a", ["x"]), b=follows, c=lambda inputs, rollout: {"c": "?"}) as task:
        tuned = few_shot(rollouts=3).compile(pipeline(), trainset=examples("x"))
    assert {name: task.count(name) for name in "abc"} == {"a": 4, "b": 1, "c": 1}
    assert texts_of(tuned) == {"make_a": [], "make_b": [], "make_c": []}


class Watched(dspy.Module):
    """A module around a program, all copies of which note its runs in one list."""

    def __init__(self, program: CompiledGraph, how: str) -> None:
        super().__init__()
        self.program, self.how = program, how

    def forward(self, **inputs: Any) -> dspy.Prediction:
        found = asyncio.run(self.program.acall(**inputs)) if self.how == "async" else self.program(**inputs)
        RUNS.append(Run.of(found))
        return found


RUNS: list[Run] = []


def run_with_rollouts(program: CompiledGraph, example: dspy.Example, metric: Any, rollouts: int, how: str) -> Run:
    """The run by which `FewShot` has learned of the example."""
    RUNS.clear()
    few_shot(metric, rollouts=rollouts).compile(Watched(program, how), trainset=[example])
    (run,) = RUNS
    return run


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_run_shows_the_rollouts_as_lost_steps_and_as_nothing_else(how: str) -> None:
    with Task(a=right("text", "a", ["x"], 2), b=right("a", "b", ["x"]), c=right("b", "c")):
        run = run_with_rollouts(pipeline(), examples("x")[0], METRIC, 2, how)
    run.raise_error()
    assert [(step.node, step.outputs.toDict(), step.status) for step in run.trace_steps if step.status == "used"] == [
        ("make_a", {"a": "a x"}, "used"),
        ("make_b", {"b": "no x"}, "used"),
        ("make_c", {"c": "no x"}, "used"),
    ]
    lost = [
        (step.node, next(iter(step.outputs.toDict().values()))) for step in run.trace_steps if step.status == "lost"
    ]
    assert lost == [("make_a", "no x"), ("make_a", "no x"), ("make_b", "no x"), ("make_b", "no x")]
    assert len(run.trace) == 3
    assert {(commit.attempt, commit.failed_attempts) for commit in run.commits} == {(1, ())}
    assert run.state["b"] == "no x"  # none was right: the run goes on with the first one


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_error_in_a_rollout_is_a_rollout_that_was_not_right(how: str) -> None:
    def flaky(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        if rollout == 1:
            raise ConnectionError("down")
        return {"a": "a x" if rollout == 2 else "no x"}

    program = pipeline()
    with Task(a=flaky, b=right("a", "b"), c=right("b", "c")) as task:
        run = run_with_rollouts(program, examples("x")[0], METRIC, 3, how)
    assert (run.state["c"], task.count("a")) == ("c x", 3)
    assert {(commit.attempt, commit.failed_attempts) for commit in run.commits} == {(1, ())}


def test_rollouts_that_fail_leave_the_failed_attempts_of_the_output_that_stays() -> None:
    graph = Graph(name="One", inputs=["text"]).add_node("make", dspy.Predict("text -> a"), retry=Retry(2, on=Exception))
    calls: list[int] = []

    def answer(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        calls.append(rollout)
        if len(calls) == 1 or rollout:
            raise ConnectionError("down")
        return {"a": "?"}

    metric = by_field({"a": equals("a")}, goal="a")
    with no_pauses(), Task(a=answer):
        run = run_with_rollouts(graph.add_path(START, "make", END).compile(), examples("x")[0], metric, 2, "sync")
    run.raise_error()
    (commit,) = run.commits[1:]
    assert run.state["a"] == "?"
    assert (commit.attempt, len(commit.failed_attempts), len(calls)) == (2, 1, 6)


def test_it_goes_on_until_enough_runs_were_successful() -> None:
    """Every predictor has its demonstrations after the first run, whose result a function got wrong."""
    graph = Graph(name="Pipe", inputs=["text"]).add_node("make_a", dspy.Predict("text -> a"))
    graph.add_node("make_c", lambda a: {"c": "c y" if a == "a y" else "?"}, writes=["c"])
    metric = by_field({"a": equals("a"), "c": equals("c")}, goal="c")
    with Task(a=right("text", "a")) as task:
        program = graph.add_path(START, "make_a", "make_c", END).compile()
        tuned = few_shot(metric, max_demos=1).compile(program, trainset=examples("x", "y", "z"))
    assert [demo.text for demo in tuned.make_a.demos] == ["y"]
    assert task.count("a") == 2


def test_a_rollout_has_retries_of_its_own_with_other_rollout_ids() -> None:
    graph = Graph(name="One", inputs=["text"]).add_node("make", dspy.Predict("text -> a: int"), retry=Retry(2))

    def answer(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        return {"a": 1 if rollout == 0 else 2}

    metric = by_field({"a": equals("n")}, goal="a")
    example = dspy.Example(text="x", n=2).with_inputs("text")
    with no_pauses(), Task(a=answer) as task:
        run = run_with_rollouts(graph.add_path(START, "make", END).compile(), example, metric, 2, "sync")
    assert (run.state["a"], task.calls) == (2, {("a", 0): 1, ("a", STRIDE): 1})


class Fork(BaseModel):
    text: str = ""
    left: str = ""
    right: str = ""
    both: str = ""
    texts: list[str] = []
    found: Annotated[list[str], reducers.extend] = []


def test_rollouts_in_a_fork() -> None:
    graph = Graph(Fork, inputs=["text"]).add_node("start", lambda text: {"texts": [text]}, writes=["texts"])
    for name in ("left", "right"):
        graph = graph.add_node(f"make_{name}", dspy.Predict(f"text -> {name}"))
    graph = graph.add_node("join", lambda left, right: {"both": left + right}, writes=["both"])
    graph = graph.add_edge(START, "start").add_edge("start", ["make_left", "make_right"])
    program = graph.add_edge(["make_left", "make_right"], "join").add_edge("join", END).compile()
    metric = by_field({"left": equals("l"), "right": equals("r"), "both": equals("b")}, goal="both")
    example = dspy.Example(text="x", l="left x", r="right x", b="left xright x").with_inputs("text")
    with Task(left=right("text", "left", ["x"], 1), right=right("text", "right", ["x"], 2)) as task:
        run = run_with_rollouts(program, example, metric, 2, "sync")
    assert (run.state["both"], task.count("left"), task.count("right")) == ("left xright x", 2, 3)


def test_a_map_is_asked_again_as_a_whole() -> None:
    graph = Graph(Fork, inputs=["texts"])
    graph = graph.add_map("read", dspy.Predict("text -> left"), over="texts", item="text", into="found")
    program = graph.add_path(START, "read", END).compile()
    metric = by_field({"found": equals("gold")}, goal="found")
    example = dspy.Example(texts=["x", "y"], gold=["left x", "left y"]).with_inputs("texts")
    with Task(left=right("text", "left", ["y"], 1)) as task:
        run = run_with_rollouts(program, example, metric, 3, "sync")
    assert task.count("left") == 4
    assert list(run.state["found"]) == ["left x", "left y"]


def test_a_function_is_never_asked_again() -> None:
    calls: list[str] = []

    def wrong(text: str) -> dict[str, str]:
        calls.append(text)
        return {"a": "no"}

    graph = Graph(name="F", inputs=["text"]).add_node("make", wrong, writes=["a"]).add_path(START, "make", END)
    metric = by_field({"a": equals("a")}, goal="a")
    run = run_with_rollouts(graph.compile(), examples("x")[0], metric, 3, "sync")
    assert (calls, run.state["a"]) == (["x"], "no")


def test_fields_of_a_graph_inside_are_not_those_of_the_metric() -> None:
    inner = Graph(name="Inner", inputs=["text"]).add_node("make", dspy.Predict("text -> a"))
    inner = inner.add_path(START, "make", END)
    graph = Graph(name="Outer", inputs=["text"]).add_node("inner", inner.compile(), writes={"a": "b"})
    metric = by_field({"b": equals("b")}, goal="b")
    with Task(a=right("text", "a")) as task:
        run_with_rollouts(graph.add_path(START, "inner", END).compile(), examples("x")[0], metric, 3, "sync")
    assert task.count("a") == 1


# --- errors


@each(
    ("call", "error", "says"),
    [
        (lambda: few_shot(lambda example, pred, trace=None: True), TypeError, "takes a metric by field.*by_field"),
        (lambda: few_shot(max_demos=0), ValueError, "max_demos=0: give at least 1"),
        (lambda: few_shot(rollouts=-1), ValueError, "rollouts=-1: give at least 0"),
        (lambda: few_shot(rollouts=1.5), TypeError, "rollouts=1.5: give an integer"),
        (
            lambda: few_shot(by_field({"d": equals("c")}, goal="d")).compile(pipeline(), trainset=examples("x")),
            ValueError,
            "no field 'd'",
        ),
    ],
)
def test_wrong_arguments(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_a_metric_is_asked_once_for_each_value_of_a_run() -> None:
    """The score and the demonstrations of a run share what its field metrics said: they may ask an LM."""
    asked: Counter[str] = Counter()

    def judged(example: Any, c: str) -> bool:
        asked[c] += 1
        return bool(c == example.c)

    metric = by_field({"a": equals("a"), "c": judged}, goal="c")
    with Task(a=right("text", "a"), b=right("a", "b", wrong=["x"]), c=right("b", "c")):
        FewShot(metric, max_labeled_demos=0).compile(pipeline(), trainset=examples("x", "y"))
    assert asked == {"no x": 1, "c y": 1}


# --- branches that make one value together


class Items(BaseModel):
    text: str
    parts: Annotated[list[str], reducers.append] = []
    c: str = ""


def workers(how: str) -> CompiledGraph:
    def spread(text: str) -> list[Send]:
        return [Send("part", {"text": item}) for item in "12"]

    graph = Graph(Items, inputs=["text"])
    for name in ("part", "other") if how == "fork" else ("part",):
        graph.add_node(name, dspy.Predict("text -> part"), writes={"part": "parts"})
    graph.add_node("make_c", dspy.Predict("parts: list[str] -> c")).add_edge("make_c", END)
    if how == "fork":
        return graph.add_edge(START, ["part", "other"]).add_edge(["part", "other"], "make_c").compile()
    return graph.add_conditional_edges(START, spread, ["part"]).add_edge("part", "make_c").compile()


@each(
    ("how", "own", "c", "demos"),
    [
        (how, *row)
        for how in ("send", "fork")
        for row in (("ok", "no", (1, 0)), ("ok", "ok", (1, 1)), ("bad", "ok", (0, 1)))
    ],
)
def test_a_part_is_judged_with_the_others_and_not_asked_again(
    how: str, own: str, c: str, demos: tuple[int, int]
) -> None:
    """It is never right alone, so rollouts would be in vain; that of a wrong value is no demonstration."""
    program = workers(how)
    metric = by_field({"parts": equals("parts"), "c": equals("c")}, goal="c")
    example = dspy.Example(text="x", parts=["ok", "ok"], c="ok").with_inputs("text")
    with Task(part=lambda inputs, rollout: {"part": own}, c=lambda inputs, rollout: {"c": c}) as task:
        taught = few_shot(metric, rollouts=2).compile(program, trainset=[example])
    assert (task.count("part"), task.count("c")) == (2, 1 if c == "ok" or own == "bad" else 3)
    found = {name: len(predictor.demos) for name, predictor in taught.named_predictors()}
    assert (found["part"], found["make_c"]) == demos


@each("how", ["send", "fork"])
def test_a_metric_never_sees_a_part(how: str) -> None:
    def both(example: Any, parts: list[str]) -> bool:
        return (parts[0], parts[1]) == ("ok", "ok")

    example = dspy.Example(text="x", c="ok").with_inputs("text")
    with Task(part=lambda inputs, rollout: {"part": "ok"}, c=lambda inputs, rollout: {"c": "ok"}):
        metric = by_field({"parts": both, "c": equals("c")}, goal="c")
        taught = few_shot(metric, rollouts=2).compile(workers(how), trainset=[example])
    assert all(len(predictor.demos) == 1 for _, predictor in taught.named_predictors())


def test_a_run_that_fails_before_its_first_node_is_an_error_like_others() -> None:
    def route(text: str) -> str:
        if text == "x":
            raise ConnectionError("down")
        return "make_a"

    graph = Graph(name="Routed").add_node("make_a", dspy.Predict("text -> a")).add_edge("make_a", END)
    graph.add_conditional_edges(START, route, ["make_a"])
    metric = by_field({"a": equals("a")}, goal="a")
    with Task(a=lambda inputs, rollout: {"a": "a y"}):
        taught = few_shot(metric, max_errors=2).compile(graph.compile(), trainset=examples("x", "y"))
    assert texts_of(taught) == {"make_a": ["y"]}
