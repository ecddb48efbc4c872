"""`FewShot`: demonstrations from one gold run per example, their order, and rollouts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Live, Retry, Run, Send, reducers
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
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Task:
        return self

    def write(self, prompt: Prompt, sampling: Any, /) -> str:
        name = prompt.output_fields[0].name
        with self._lock:
            self.calls[name, sampling.rollout or 0] += 1
        return written(prompt, self.steps[name](dict(prompt.inputs), (sampling.rollout or 0) // STRIDE))

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


def chain(a: Sequence[str] = "", b: Sequence[str] = "", c: Sequence[str] = "", from_rollout: int = 99) -> Task:
    """The LM of a pipeline whose steps are wrong by themselves for some texts."""
    wrong = (("text", "a", a), ("a", "b", b), ("b", "c", c))
    return Task(**{after: right(before, after, texts, from_rollout) for before, after, texts in wrong})


METRIC = by_field({name: equals(name) for name in "abc"}, goal="c")
GOAL = by_field({"c": equals("c")}, goal="c")
OF_A = by_field({"a": equals("a")}, goal="a")


def few_shot(metric: Any = METRIC, **options: Any) -> FewShot:
    return FewShot(metric, **{"max_labeled_demos": 0, **options})


def texts_of(program: dspy.Module) -> dict[str, str]:
    """What the demonstrations of each predictor are about."""
    return {
        name: "".join([list(demo.toDict().values())[-1].rpartition(" ")[2] for demo in predictor.demos])
        for name, predictor in program.named_predictors()
    }


# --- which steps are demonstrations, and their order


@each(
    ("texts", "wrong", "options", "demos"),
    [
        # x is wrong at the first step, y at the last: the others have read gold, or what was right
        ("xyz", {"a": "x", "c": "y"}, {}, ("zy", "zxy", "zx")),
        # p and q are wrong at b, r at c, s and t nowhere: full runs first, then the rarest culprits
        ("pqrst", {"b": "pq", "c": "r"}, {"max_demos": 9}, ("strpq", "str", "stpq")),
        ("pqrs", {"b": "p"}, {"max_demos": 2}, ("qr", "qr", "qr")),
        # r is right when `a` is asked again, and nothing was replaced; or never
        ("pqr", {"a": "r", "b": "q", "from_rollout": 1}, {"rollouts": 1}, ("pqr", "pqr", "pqr")),
        ("pqr", {"a": "r", "b": "q"}, {"rollouts": 1}, ("pq", "pr", "pqr")),
    ],
)
def test_each_step_that_is_right_on_right_inputs(texts: str, wrong: Any, options: Any, demos: tuple[str, ...]) -> None:
    with chain(**wrong):
        tuned = few_shot(**options).compile(pipeline(), trainset=examples(*texts))
    assert tuple(texts_of(tuned).values()) == demos


def test_inputs_and_outputs_of_every_demonstration_are_right() -> None:
    with chain(a="xy", b="yz", c="zx"):
        tuned = few_shot().compile(pipeline(), trainset=examples(*"wxyz"))
    for name, before in (("a", "text"), ("b", "a"), ("c", "b")):
        for demo in getattr(tuned, f"make_{name}").demos:
            text = demo[name].rpartition(" ")[2]
            assert demo.toDict() == {
                "augmented": True,
                before: f"{before} {text}".removeprefix("text "),
                name: f"{name} {text}",
            }


def test_one_run_per_example() -> None:
    with chain(a="pqrstu", b="pqrstu", c="pqrstu") as task:
        few_shot().compile(pipeline(), trainset=examples(*"pqrstu"))
    assert task.calls == {("a", 0): 6, ("b", 0): 6, ("c", 0): 6}


def test_with_the_goal_alone_it_is_bootstrap_few_shot() -> None:
    """The same demonstrations, labeled ones too, and the same calls, if only the result is compared."""
    found = []
    for optimizer in (FewShot(GOAL, max_demos=2), dspy.BootstrapFewShot(metric=GOAL, max_bootstrapped_demos=2)):
        with chain(b="pr") as task:
            tuned = optimizer.compile(pipeline(), trainset=examples(*"pqrstuvw"))
        found.append(([one.demos for one in tuned.predictors()], task.calls, tuned._compiled))
    assert found[0] == found[1]


def test_what_no_gold_could_mend_comes_last() -> None:
    """A function judges `b`, so that its readers read what is wrong: their demonstrations are the last ones."""
    metric = by_field({"a": equals("a"), "b": lambda example, b: b == example.b, "c": equals("c")}, goal="c")
    lucky: Answer = lambda inputs, rollout: {"c": f"c {str(inputs['b']).rpartition(' ')[2]}"}  # noqa: E731
    with Task(a=right("text", "a"), b=right("a", "b", ["x"]), c=lucky):
        tuned = few_shot(metric).compile(pipeline(), trainset=examples("x", "y"))
        short = few_shot(metric, max_demos=1).compile(pipeline(), trainset=examples("x", "y"))
    assert texts_of(tuned) == {"make_a": "xy", "make_b": "y", "make_c": "yx"}
    assert texts_of(short)["make_c"] == "y"


def test_it_goes_on_until_every_predictor_has_enough_and_enough_runs_were_right() -> None:
    graph = Graph(name="Routed", inputs=["text"]).add_node("make_a", dspy.Predict("text -> a"))
    graph = graph.add_node("make_b", dspy.Predict("a -> b")).add_edge(START, "make_a").add_edge("make_b", END)
    graph = graph.add_conditional_edges("make_a", lambda a: "make_b" if a.endswith("z") else END, ["make_b", END])
    metric = by_field({"a": equals("a"), "b": lambda example, b: b == example.b}, goal="a")
    with chain() as task:
        tuned = few_shot(metric, max_demos=1).compile(graph.compile(), trainset=examples(*"vwxyz"))
    assert (texts_of(tuned), task.count("a")) == ({"make_a": "v", "make_b": "z"}, 5)
    with chain(c="x") as task:
        few_shot(max_demos=1).compile(pipeline(), trainset=examples("x", "y", "z"))
    assert task.count("a") == 2


def test_a_teacher_gives_the_demonstrations() -> None:
    teacher = pipeline()
    teacher.make_a.lm = WriterLM("strong", chain())
    with chain(a="x") as task:
        tuned = few_shot().compile(pipeline(), teacher=teacher, trainset=examples("x"))
    assert (task.count("a"), texts_of(tuned)["make_a"], tuned.make_a.lm) == (0, "x", None)


def test_a_metric_is_asked_once_for_each_value() -> None:
    """The result and the demonstrations share what it said: it may ask an LM."""
    asked: Counter[str] = Counter()

    def judged(example: Any, c: str) -> bool:
        asked[c] += 1
        return bool(c == example.c)

    with chain(b="x", c="z"):
        metric = by_field({"a": equals("a"), "c": judged}, goal="c")
        few_shot(metric).compile(pipeline(), trainset=examples("x", "y", "z"))
    assert asked == {"no x": 1, "c y": 1, "no z": 1}


# --- checks, loops, maps, branches, and modules written by hand


def checked(of: str) -> CompiledGraph:
    """text -> a (checked) -> b."""
    graph = Graph(name="Checked", inputs=["text"]).add_node("make", dspy.Predict("text -> a"))
    graph = graph.add_check("form", lambda a: ["too short"] if a == of else [], of="make")
    return graph.add_node("use", dspy.Predict("a -> b")).add_path(START, "make", "use", END).compile()


@each(
    ("draft", "fixed", "demos"),
    [
        ("short", "a x", {"make": "", "make_fix": "x", "use": "x"}),  # refused, and mended
        ("short", "no", {"make": "", "make_fix": "", "use": "x"}),  # gold comes after the fix
        ("no", "a x", {"make": "", "make_fix": "", "use": "x"}),  # accepted, though wrong: gold comes after the check
        ("a x", "a x", {"make": "x", "make_fix": "", "use": "x"}),
    ],
)
def test_a_check_and_its_correction(draft: str, fixed: str, demos: dict[str, str]) -> None:
    metric = by_field({"a": equals("a"), "b": equals("b")}, goal="b")
    step: Answer = lambda inputs, rollout: {"a": fixed if "previous_a" in inputs else draft}  # noqa: E731
    with Task(a=step, b=right("a", "b")) as task:
        tuned = few_shot(metric).compile(checked("short"), trainset=examples("x"))
    assert texts_of(tuned) == demos
    assert (task.count("a"), task.count("b")) == (2 if draft == "short" else 1, 1)
    assert all(demo.a == "a x" for demo in tuned.use.demos)
    assert all(demo.previous_a == "short" for demo in tuned.make_fix.demos)


def test_what_a_check_refused_is_no_demonstration_though_its_metric_is_content() -> None:
    metric = by_field({"a": lambda example, a: a.startswith(example.a), "b": equals("b")}, goal="b")
    step: Answer = lambda inputs, rollout: {"a": "a x" if "previous_a" in inputs else "a x!"}  # noqa: E731
    with Task(a=step, b=right("a", "b")):
        tuned = few_shot(metric).compile(checked("a x!"), trainset=examples("x"))
    assert texts_of(tuned) == {"make": "", "make_fix": "x", "use": "x"}


@each(("draft", "rollouts", "calls"), [("no", 0, (1, 1)), ("no", 2, (3, 1)), ("a x", 2, (1, 1))])
def test_a_check_that_asks_an_lm_is_not_asked_again(draft: str, rollouts: int, calls: tuple[int, int]) -> None:
    graph = Graph(name="Checked", inputs=["text"]).add_node("make", dspy.Predict("text -> a"))
    graph = graph.add_check("form", dspy.Predict("a -> problems: list[str]"), of="make").add_path(START, "make", END)
    with Task(a=lambda inputs, rollout: {"a": draft}, problems=lambda inputs, rollout: {"problems": []}) as task:
        run = learned(graph.compile(), examples("x")[0], OF_A, rollouts)
    assert (run.state["a"], (task.count("a"), task.count("problems"))) == ("a x", calls)


class Rounds(BaseModel):
    n: int = 0
    text: str = ""
    a: str = ""


def test_each_visit_of_a_loop_is_judged_by_its_own_execution() -> None:
    graph = Graph(Rounds, inputs=["text"]).add_node("count", lambda n: {"n": n + 1}, writes=["n"])
    graph = graph.add_node("make", dspy.Predict("text, n: int -> a")).add_path(START, "count", "make")
    program = graph.add_conditional_edges("make", lambda n: END if n == 3 else "count", [END, "count"]).compile()
    with Task(a=lambda inputs, rollout: {"a": "a x" if inputs["n"] == "2" else f"draft {inputs['n']}"}):
        tuned = few_shot(OF_A).compile(program, trainset=examples("x"))
    (demo,) = tuned.make.demos  # of the second of three visits: the others were wrong
    assert (demo.n, demo.a) == (2, "a x")


class Fork(BaseModel):
    text: str = ""
    left: str = ""
    right: str = ""
    both: str = ""
    texts: list[str] = []
    found: list[str] = []
    parts: Annotated[list[str], reducers.append] = []
    c: str = ""


def mapped() -> CompiledGraph:
    graph = Graph(Fork, inputs=["texts"])
    graph = graph.add_map("read", dspy.Predict("text -> left"), over="texts", item="text", into="found")
    return graph.add_path(START, "read", END).compile()


@each(("rollouts", "calls", "demos"), [(0, 2, "x"), (1, 4, None), (3, 4, None)])
def test_a_map_has_demonstrations_of_its_right_items_and_is_asked_again_as_a_whole(
    rollouts: int, calls: int, demos: str | None
) -> None:
    example = dspy.Example(texts=["x", "y"], found=["left x", "left y"]).with_inputs("texts")
    with Task(left=right("text", "left", ["y"], 1)) as task:
        metric = by_field({"found": equals("found")}, goal="found")
        tuned = few_shot(metric, rollouts=rollouts).compile(mapped(), trainset=[example])
    (demo,) = tuned.read.demos
    assert (task.count("left"), demo.left) == (calls, f"left {demo.text}")
    assert demos is None or demo.text == demos


def workers(how: str) -> CompiledGraph:
    """Two branches that make a list together."""

    def spread(text: str) -> list[Send]:
        return [Send("part", {"text": item}) for item in "12"]

    graph = Graph(Fork, inputs=["text"])
    for name in ("part", "other") if how == "fork" else ("part",):
        graph.add_node(name, dspy.Predict("text -> part"), writes={"part": "parts"})
    graph.add_node("make_c", dspy.Predict("parts: list[str] -> c")).add_edge("make_c", END)
    if how == "fork":
        return graph.add_edge(START, ["part", "other"]).add_edge(["part", "other"], "make_c").compile()
    return graph.add_conditional_edges(START, spread, ["part"]).add_edge("part", "make_c").compile()


def both_ok(example: Any, parts: list[str]) -> bool:
    return (parts[0], parts[1]) == ("ok", "ok")


@each(
    ("how", "parts", "own", "calls", "demos"),
    [
        ("send", equals("parts"), "ok", 2, (1, 1)),
        ("send", equals("parts"), "no", 6, (0, 1)),  # each by its entry in gold, which then takes its place
        ("send", both_ok, "ok", 2, (1, 1)),
        ("send", both_ok, "no", 2, (0, 1)),  # never seen by itself, so never asked again
        ("fork", equals("parts"), "ok", 2, (1, 1)),
        ("fork", equals("parts"), "no", 2, (0, 1)),
        ("fork", both_ok, "ok", 2, (1, 1)),
    ],
)
def test_values_that_branches_make_together(how: str, parts: Any, own: str, calls: int, demos: tuple[int, int]) -> None:
    metric = by_field({"parts": parts, "c": equals("c")}, goal="c")
    example = dspy.Example(text="x", parts=["ok", "ok"], c="ok").with_inputs("text")
    with Task(part=lambda inputs, rollout: {"part": own}, c=lambda inputs, rollout: {"c": "ok"}) as task:
        tuned = few_shot(metric, rollouts=2).compile(workers(how), trainset=[example])
    assert (task.count("part"), task.count("c")) == (calls, 1)
    assert (len(tuned.part.demos), len(tuned.make_c.demos)) == demos


class Hand(dspy.Module):
    """A module written by hand, with a graph or without."""

    def __init__(self, inner: dspy.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, text: str) -> dspy.Prediction:
        found: dspy.Prediction = self.inner(text=text)
        return found


def test_modules_written_by_hand() -> None:
    with chain(a="x"):
        plain = few_shot(OF_A).compile(Hand(dspy.Predict("text -> a")), trainset=examples("x", "y"))
    assert texts_of(plain) == {"inner": "y"}
    with chain(c="x", from_rollout=1) as task:
        tuned = few_shot(rollouts=1).compile(Hand(pipeline()), trainset=examples("x"))
    assert texts_of(tuned) == {"inner.make_a": "x", "inner.make_b": "x", "inner.make_c": "x"}
    assert task.count("c") == 2


# --- rollouts


@each(
    ("wrong", "from_rollout", "rollouts", "calls"),
    [
        ({"a": "x"}, 2, 3, {("a", 0): 1, ("a", STRIDE): 1, ("a", 2 * STRIDE): 1, ("b", 0): 1, ("c", 0): 1}),
        ({"a": "x"}, 9, 1, {("a", 0): 1, ("a", STRIDE): 1, ("b", 0): 1, ("c", 0): 1}),
        ({"b": "x", "c": "x"}, 1, 3, {("a", 0): 1, ("b", 0): 1, ("b", STRIDE): 1, ("c", 0): 1, ("c", STRIDE): 1}),
        ({}, 9, 3, {("a", 0): 1, ("b", 0): 1, ("c", 0): 1}),
    ],
)
def test_a_culprit_is_asked_again_alone(wrong: Any, from_rollout: int, rollouts: int, calls: Any) -> None:
    """With rollout ids of its own; the run goes on with what is right, or with gold."""
    with chain(**wrong, from_rollout=from_rollout) as task:
        few_shot(rollouts=rollouts).compile(pipeline(), trainset=examples("x"))
    assert task.calls == calls


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


def learned(program: CompiledGraph, example: dspy.Example, metric: Any, rollouts: int, how: str = "sync") -> Run:
    """The run by which `FewShot` has learned of the example."""
    RUNS.clear()
    few_shot(metric, rollouts=rollouts).compile(Watched(program, how), trainset=[example])
    (run,) = RUNS
    return run


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_run_shows_the_rollouts_as_lost_steps_and_as_nothing_else(how: str) -> None:
    metric = by_field({"a": equals("a"), "b": lambda example, b: b == example.b}, goal="a")
    with Task(a=right("text", "a", ["x"], 2), b=right("a", "b", ["x"]), c=right("b", "c")):
        run = learned(pipeline(), examples("x")[0], metric, 2, how)
    run.raise_error()
    steps = [(step.node, *step.outputs.toDict().values(), step.status) for step in run.trace_steps]
    assert [step for *step, status in steps if status == "used"] == [
        ["make_a", "a x"],
        ["make_b", "no x"],  # none was right: the run goes on with the first one
        ["make_c", "no x"],
    ]
    lost = [step for *step, status in steps if status == "lost"]
    assert lost == [["make_a", "no x"], ["make_a", "no x"], ["make_b", "no x"], ["make_b", "no x"]]
    assert len(run.trace) == 3
    assert {(commit.attempt, commit.failed_attempts) for commit in run.commits} == {(1, ())}


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_error_in_a_rollout_is_a_rollout_that_was_not_right(how: str) -> None:
    def flaky(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        if rollout == 1:
            raise ConnectionError("down")
        return {"a": "a x" if rollout == 2 else "no x"}

    with Task(a=flaky, b=right("a", "b"), c=right("b", "c")) as task:
        run = learned(pipeline(), examples("x")[0], METRIC, 3, how)
    assert (run.state["c"], task.count("a")) == ("c x", 3)
    assert {(commit.attempt, commit.failed_attempts) for commit in run.commits} == {(1, ())}


def test_rollouts_have_retries_of_their_own_and_leave_those_of_the_output_that_stays() -> None:
    graph = Graph(name="One", inputs=["text"]).add_node("make", dspy.Predict("text -> a"), retry=Retry(2, on=Exception))
    calls: list[int] = []

    def answer(inputs: Mapping[str, Any], rollout: int) -> dict[str, Any]:
        calls.append(rollout)
        if len(calls) == 1 or rollout:
            raise ConnectionError("down")
        return {"a": "?"}

    with no_pauses(), Task(a=answer) as task:
        run = learned(graph.add_path(START, "make", END).compile(), examples("x")[0], OF_A, 2)
    run.raise_error()
    (commit,) = run.commits[1:]
    assert (commit.attempt, len(commit.failed_attempts), len(calls), len(task.calls)) == (2, 1, 6, 3)
    assert run.state["a"] == "a x", "gold"


def test_rollouts_in_a_fork() -> None:
    graph = Graph(Fork, inputs=["text"])
    for name in ("left", "right"):
        graph = graph.add_node(f"make_{name}", dspy.Predict(f"text -> {name}"))
    graph = graph.add_edge(START, ["make_left", "make_right"]).add_edge(["make_left", "make_right"], END)
    metric = by_field({"left": equals("l"), "right": equals("r")}, goal="left")
    example = dspy.Example(text="x", l="left x", r="right x").with_inputs("text")
    with Task(left=right("text", "left", ["x"], 1), right=right("text", "right", ["x"], 2)) as task:
        run = learned(graph.compile(), example, metric, 2)
    found = (run.state["left"], run.state["right"], task.count("left"), task.count("right"))
    assert found == ("left x", "right x", 2, 3)


class Wall(BaseModel):
    text: str = ""
    wall: Annotated[list[str], Live(reducers.append)] = []
    a: str = ""


def one_node(kind: str, calls: list[str]) -> CompiledGraph:
    """A graph with one node that writes `a`, of a kind that is never asked again."""

    def make(text: str) -> dict[str, str]:
        calls.append(text)
        return {"a": "no"}

    graph = Graph(Wall if kind == "live" else None, name=kind.title(), inputs=["text"])
    if kind == "router":
        for label in ("yes", "no"):
            graph.add_node(label, lambda: {"c": "done"}, writes=["c"]).add_edge(label, END)
        way = dspy.Predict(dspy.Signature("text -> a").with_updated_fields("a", type_=Literal["yes", "no"]))
        return graph.add_conditional_edges(START, way, {"yes": "yes", "no": "no"}, writes=["a"]).compile()
    if kind == "graph":
        inner = Graph(name="Inner", inputs=["text"]).add_node("make", dspy.Predict("text -> b"))
        graph.add_node("make", inner.add_path(START, "make", END).compile(), writes={"b": "a"})
    else:
        graph.add_node("make", make if kind == "function" else dspy.Predict("text -> a"), writes=["a"])
    return graph.add_path(START, "make", END).compile()


@each(("kind", "made"), [("function", {"function": 1}), ("graph", {"b": 1}), ("router", {"a": 1}), ("live", {"a": 1})])
def test_what_is_never_asked_again(kind: str, made: Mapping[str, int]) -> None:
    """A function gives the same, a graph would go on where it was, siblings have read posts."""
    called: list[str] = []
    example = dspy.Example(text="x", a="yes").with_inputs("text")
    with Task(a=lambda inputs, rollout: {"a": "no"}, b=lambda inputs, rollout: {"b": "no"}) as task:
        run = learned(one_node(kind, called), example, OF_A, 3)
    counts = {"function": len(called)} if called else {name: task.count(name) for name, _ in task.calls}
    assert (counts, run.state["a"]) == (made, "yes"), "gold"


# --- errors


def failing(at: str) -> CompiledGraph:
    """A graph that fails after its step, or before it for the text x."""

    def fail(text: str) -> Any:
        if at == "end" or text == "x":
            raise ConnectionError("down")
        return "make_a"

    graph = Graph(name="Failing", inputs=["text"]).add_node("make_a", dspy.Predict("text -> a"))
    if at == "end":
        return graph.add_node("fail", fail, writes=["b"]).add_path(START, "make_a", "fail", END).compile()
    return graph.add_conditional_edges(START, fail, ["make_a"]).add_edge("make_a", END).compile()


@each(("at", "errors", "demos"), [("end", 2, "xy"), ("begin", 1, "y")])
def test_runs_that_raise_are_counted_and_give_the_steps_that_they_have_made(at: str, errors: int, demos: str) -> None:
    with chain():
        optimizer = few_shot(OF_A, max_errors=5)
        tuned = optimizer.compile(failing(at), trainset=examples("x", "y"))
        with pytest.raises(Exception, match="down"):
            few_shot(OF_A, max_errors=1).compile(failing(at), trainset=examples("x", "y"))
    assert (texts_of(tuned), optimizer.error_count) == ({"make_a": demos}, errors)


def test_a_store_that_fails_ends_the_optimization() -> None:
    """Also when a node is asked again."""
    calls: list[int] = []

    class Broken(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("text -> a")

        def forward(self, text: str) -> dspy.Prediction:
            calls.append(1)
            if len(calls) > 1:
                raise StoreError("the disk is full")
            return dspy.Prediction(a=self.ask(text=text).a)

    graph = Graph(name="One", inputs=["text"]).add_node("make_a", Broken()).add_path(START, "make_a", END)
    with chain(a="x"), pytest.raises(StoreError, match="the disk is full"):
        few_shot(OF_A, rollouts=2, max_errors=9).compile(graph.compile(), trainset=examples("x", "y"))


def test_an_error_of_a_metric_is_counted_and_no_error_edge_takes_it() -> None:
    def broken(example: dspy.Example, a: str) -> bool:
        raise LookupError("no such column")

    graph = Graph(name="Edge", inputs=["text"]).add_node("make_a", dspy.Predict("text -> a"))
    graph = graph.add_node("help", lambda: {"c": "c x"}, writes=["c"]).add_error_edge("make_a", "help")
    metric = by_field({"a": broken, "c": equals("c")}, goal="c")
    with chain():
        optimizer = few_shot(metric, rollouts=2, max_errors=9)
        optimizer.compile(graph.add_path(START, "make_a", "help", END).compile(), trainset=examples("x"))
    assert (optimizer.error_count, optimizer.metric) == (1, metric)


def test_an_example_whose_goal_cannot_be_judged_is_counted() -> None:
    metric = by_field({"a": equals("a"), "c": lambda example, c: None if example.text == "x" else True}, goal="c")
    optimizer = few_shot(metric)
    with chain():
        tuned = optimizer.compile(pipeline(), trainset=examples("x", "y"))
    assert texts_of(tuned) == {"make_a": "xy", "make_b": "y", "make_c": "y"}
    assert optimizer.error_count == 1


@each(
    ("call", "error", "says"),
    [
        (lambda: few_shot(lambda example, pred, trace=None: True), TypeError, "takes a metric by field.*by_field"),
        (lambda: few_shot().compile(pipeline(), trainset=[]), ValueError, "the trainset is empty"),
        (lambda: few_shot(max_demos=0), ValueError, "max_demos=0: give at least 1"),
        (lambda: few_shot(rollouts=-1), ValueError, "rollouts=-1: give at least 0"),
        (lambda: few_shot(rollouts=1.5), TypeError, "rollouts=1.5: give an integer"),
        (
            lambda: few_shot(by_field({"d": equals("c")}, goal="d")).compile(pipeline(), trainset=examples("x")),
            ValueError,
            "nothing writes 'd'",
        ),
    ],
)
def test_wrong_arguments(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()
