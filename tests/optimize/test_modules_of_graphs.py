"""Modules written by hand around graphs: who is the culprit, and what optimizers make of them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph
from dspyer.optimize import GEPA, FewShot, by_field, culprits, equals
from tests.optimize.hand_written import MODULES, Parts, graph
from tests.optimize.planted import Planting
from tests.optimize.skills import ONE_EACH, RULES, SkillLM, examples, step

FIELDS = ("a", "b", "c")
METRIC = by_field({field: equals(field) for field in FIELDS}, goal="c")
BESIDE = "a predictor, a graph, a predictor"
EXAMPLE = dspy.Example(q="?", a="ok a", b="ok b", c="ok c").with_inputs("q")


@pytest.mark.parametrize("name", MODULES)
def test_the_culprits_are_where_faults_were_planted(name: str) -> None:
    build, names = MODULES[name]
    for size in (0, 1, 2):
        for faults in combinations(FIELDS, size):
            plant = Planting(faults)
            steps: Any = {
                "a": plant.predictor("a", "q -> a"),
                "b": plant.predictor("b", "a -> b"),
                "c": plant.predictor("c", "b -> c"),
            }
            program = build(steps)
            assert {*names} <= {one for one, _ in program.named_predictors()}
            paths = {f"{one}.{field}": equals(field) for field, one in zip(FIELDS, names, strict=True)}
            by_path = culprits(program, EXAMPLE, by_field({**paths, "c": equals("c")}, goal="c"))
            found = culprits(program, EXAMPLE, METRIC)
            assert by_path == found, "a key may be a path, as the predictors are named"
            # No gold is put in for what is called outside of graphs: what has read it is excused.
            planted = [field for field in faults if field != "b" or name != BESIDE or "a" not in faults]
            expected = {one for field, one in zip(FIELDS, names, strict=True) if field in planted}
            assert set(found.shares) == expected, f"{faults}: {found}"


def test_what_is_called_later_was_not_read() -> None:
    """Two predictors before a graph, and one after it: the goal alone is judged."""

    def call(self: Any, q: str) -> dspy.Prediction:
        return self.last(c=self.graph(b=self.more(a=self.first(q=q).a).b).c)

    metric = by_field({"d": equals("d")}, goal="d")
    example = dspy.Example(q="?", d="ok d").with_inputs("q")
    for fault in "abcd":
        plant = Planting([fault])
        steps: Any = {"c": plant.predictor("c", "b -> c")}
        parts = {"first": plant.predictor("a", "q -> a"), "more": plant.predictor("b", "a -> b")}
        program = Parts(call, **parts, graph=graph(steps, "c"), last=plant.predictor("d", "c -> d"))
        assert culprits(program, example, metric).shares == dict.fromkeys(("first", "more", "graph.c", "last"), 0.25)


def test_a_default_of_a_graph_is_not_made_of_what_an_earlier_graph_gave() -> None:
    class Counted(BaseModel):
        q: str = ""
        rounds: int = 1
        c: str = ""

    plant = Planting(["a", "c"])
    steps: Any = {"a": plant.predictor("a", "q -> a")}
    last = Graph(Counted, inputs=["q"]).add_node("c", plant.predictor("c", "q, rounds: int -> c"))
    program = Parts(
        lambda self, q: self.last(q=self.first(q=q) and q),
        first=graph(steps, "a"),
        last=last.add_path(START, "c", END).compile(),
    )
    metric = by_field({"a": lambda example, a: a == example.a, "c": equals("c")}, goal="c")
    assert culprits(program, EXAMPLE, metric).shares == {"first.a": 0.5, "last.c": 0.5}


def test_code_that_spoils_what_its_graphs_gave_is_no_fault_of_theirs() -> None:
    plant = Planting()
    first = graph({"a": plant.predictor("a", "q -> a")}, "a")
    within = Parts(lambda self, q: dspy.Prediction(c=f"{self.first(q=q).a}, spoilt"), first=first)
    outer = Graph(name="Outer").add_node("within", within, reads=["q"], writes=["c"]).add_path(START, "within", END)
    metric = by_field({"a": equals("a"), "c": equals("c")}, goal="c")
    found = culprits(outer.compile(), EXAMPLE, metric)
    assert (found.shares, found.not_tunable) == ({"within": 1.0}, ("within",))


def learners() -> Any:
    """Predictors that lack a rule each."""
    return {output: dspy.Predict(step(given, output)) for given, output in (("q", "a"), ("a", "b"), ("b", "c"))}


def rules(count: int) -> list[dspy.Example]:
    """Inputs with the gold value of each field."""
    return [dspy.Example(q=one.n, a=one.a, b=one.b, c=one.c).with_inputs("q") for one in examples(count)]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", MODULES)
def test_gepa_tunes_each_predictor(name: str) -> None:
    build, names = MODULES[name]
    lm, strong = SkillLM(), SkillLM()
    with dspy.context(lm=lm):
        gepa = GEPA(METRIC, reflection_lm=strong, max_metric_calls=60, num_threads=1)
        tuned = gepa.compile(build(learners()), trainset=rules(4), valset=rules(3))
        assert [tuned(q=n).c for n in range(3)] == [one.c for one in rules(3)]
    texts = {one: predictor.signature.instructions for one, predictor in tuned.named_predictors()}
    assert all(texts[one].endswith(f"RULE {field}") for field, one in zip(FIELDS, names, strict=True))
    assert name == BESIDE or len(strong.reflections) == 3, "one each, at once"


@pytest.mark.usefixtures("quiet")
def test_code_of_a_module_or_a_node_may_tune_a_program() -> None:
    """What is around the tuning is no part of the names in the program."""
    program, paths = graph(learners(), "a", "b"), by_field({f"{one}.{one}": equals(one) for one in "ab"}, goal="b.b")

    def tune(self: Any, q: str) -> Any:
        found = culprits(self.program, rules(1)[0], paths)
        gepa = GEPA(paths, reflection_lm=SkillLM(), max_metric_calls=60, num_threads=1)
        tuned = gepa.compile(self.program, trainset=rules(4))
        texts = [one.signature.instructions[-6:] for one in tuned.predictors()]
        return dspy.Prediction(c=[found.shares, gepa.stats.failed, texts])

    expected = [{"a": 0.5, "b": 0.5}, 0, ["RULE a", "RULE b"]]
    by_hand = Parts(tune, program=program)
    outer = Graph(inputs=["q"]).add_node("tune", by_hand, reads=["q"], writes=["c"]).add_path(START, "tune", END)
    with dspy.context(lm=SkillLM()):
        assert by_hand(q="?").c == expected
        assert outer.compile(store=":memory:").thread("t").run({"q": "?"}).state["c"] == expected


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", MODULES)
def test_few_shot_shows_each_predictor_what_it_did_right(name: str) -> None:
    build, names = MODULES[name]
    with dspy.context(lm=SkillLM(hard=ONE_EACH)):
        tuned = FewShot(METRIC, max_labeled_demos=0).compile(build(learners()), trainset=rules(9))
    for field, given, one in zip(FIELDS, ("q", "a", "b"), names, strict=True):
        demos = dict(tuned.named_predictors())[one].demos
        assert demos
        assert all(int(demo[field]) == RULES[field](int(demo[given])) for demo in demos)
