"""`by_field`: what a field metric may be, what it returns, and how a run is scored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import dspy
import numpy as np
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph
from dspyer.optimize import by_field, culprits, equals
from tests.rows import each

EXAMPLE = dspy.Example(text="a b", words=2, facts=["a"]).with_inputs("text")


def pred(**fields: Any) -> dspy.Prediction:
    return dspy.Prediction(**fields)


def by_state(example: Any, words: int, state: Any) -> bool:
    return bool(words == len(state["text"].split()))


async def later(example: Any, words: int) -> bool:
    await asyncio.sleep(0)
    return True


RESULTS: list[tuple[Any, float]] = [
    (True, 1.0),
    (False, 0.0),
    (0.25, 0.25),
    (1, 1.0),
    (dspy.Prediction(score=0.5, feedback="half"), 0.5),
    (dspy.Prediction(score=True), 1.0),
    (0.7 + 0.2 + 0.1, 1.0),
    (1.0 + 2**-52, 1.0),
    (-1e-17, 0.0),
]


@each(("returned", "score"), RESULTS, ids=lambda value: repr(value)[:30])
def test_what_a_field_metric_returns_is_the_score(returned: Any, score: float) -> None:
    metric = by_field({"words": lambda example, words: returned}, goal="words")
    assert metric(EXAMPLE, pred(words=2)) == score


@each("returned", [2, -0.1, float("nan"), "yes", [1], dspy.Prediction(score="1"), object(), np.array([1.0, 0.0])])
def test_any_other_result_is_refused(returned: Any) -> None:
    metric = by_field({"words": lambda example, words: returned}, goal="words")
    with pytest.raises(ValueError, match=r"the metric of 'words' returned .*: give a bool, a number from 0 to 1"):
        metric(EXAMPLE, pred(words=2))


def test_a_field_metric_takes_example_field_and_state() -> None:
    metric = by_field({"words": by_state}, goal="words")
    assert metric(EXAMPLE, pred(words=2, text="a b")) == 1
    assert metric(EXAMPLE, pred(words=2, text="a b c")) == 0


def ok(example: Any, words: Any) -> bool:
    return True


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: by_field({"words": ok}, goal="word"), "the goal 'word' has no metric. Did you mean 'words'?"),
    (lambda: by_field({}, goal="words"), "the goal 'words' has no metric. There are metrics of none"),
    (lambda: by_field({"words": 3}, goal="words"), "the metric of 'words' is 3, an int: give a function"),  # type: ignore[dict-item]
    (lambda: by_field({"words": later}, goal="words"), "the metric of 'words' is async"),
    (lambda: by_field({"words": lambda example: 1}, goal="words"), "the metric of 'words' takes no 'words'"),
    (lambda: by_field({"words": lambda example, wrods: 1}, goal="words"), "takes 'wrods'.* Did you mean 'words'?"),
    (lambda: by_field({"words": lambda gold, pred, trace: 1}, goal="words"), "takes 'gold', 'pred', 'trace'"),
    (lambda: by_field({"words": lambda *args: 1}, goal="words"), r"takes \*args"),
    (lambda: by_field({"words": ok}, goal="words", weights={"word": 1}), "'word' has a weight and no metric"),
    (lambda: by_field({"words": ok}, goal="words", weights={"words": 0}), "the weight of 'words' is 0"),
    (lambda: by_field({"words": ok}, goal="words", weights={"words": float("inf")}), "the weight of 'words' is inf"),
    (
        lambda: by_field({"words": ok, "notes": lambda example, notes: 1}, goal="words", weights={"notes": 1}),
        "the goal 'words' has no weight",
    ),
    (lambda: by_field({"words": ok}, goal=["words"]), r"the goal \['words'\] has no metric"),  # type: ignore[arg-type]
    (lambda: by_field({"example": lambda example: 1}, goal="example"), "cannot take both .* equals"),
    (lambda: by_field(["words"], goal="words"), "metrics is .*: give a dict"),  # type: ignore[arg-type]
]


@each(("make", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_what_is_no_field_metric_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"by_field: .*{message}"):
        make()


def test_all_problems_are_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"'notes' is 1.*'words' is 2.*the goal 'answer'"):
        by_field({"notes": 1, "words": 2}, goal="answer")  # type: ignore[dict-item]


def test_equals_compares_with_a_column() -> None:
    metric = by_field({"words": equals("words")}, goal="words")
    assert metric(EXAMPLE, pred(words=2)) == 1
    assert metric(EXAMPLE, pred(words=3)) == 0
    assert metric(EXAMPLE, pred(words=3), None, "count", []).feedback == "`words` is 3, expected 2."
    with pytest.raises(ValueError, match=r"equals.'word'.: the example has no 'word'; .* Did you mean 'words'?"):
        by_field({"words": equals("word")}, goal="words")(EXAMPLE, pred(words=3))


def test_a_function_in_equals_gives_none_for_an_example_without_gold(caplog: pytest.LogCaptureFixture) -> None:
    """The value is then of unknown worth: no gold run replaces it by None."""
    metric = by_field({"words": equals(lambda example: example.get("words"))}, goal="words")
    assert metric.metrics["words"](dspy.Example(text="a"), 2) is None
    without, written = dspy.Example(text="a").with_inputs("text"), dspy.Example(text="a", words=7).with_inputs("text")
    assert culprits(counting(), without, metric).shares == {}
    assert culprits(counting(), written, metric).shares == {"count": 1}
    assert caplog.records == []


def test_weights_mix_fields_and_only_then() -> None:
    metrics = {"notes": lambda example, notes: notes, "words": equals("words")}
    both = pred(notes=0.5, words=2)
    assert by_field(metrics, goal="words")(EXAMPLE, both) == 1
    weighted = by_field(metrics, goal="words", weights={"notes": 2, "words": 6})
    assert weighted(EXAMPLE, both) == 0.875
    assert weighted(EXAMPLE, pred(notes=None, words=2)) == 1, "a metric that cannot tell is left out"
    assert weighted(EXAMPLE, pred(words=2)) == 0.75, "a field that was not written is 0"
    uneven = {"notes": 0.1, "words": 0.2}
    assert by_field(metrics, goal="words", weights=uneven)(EXAMPLE, pred(notes=1.0, words=2)) == 1


def test_the_goal_must_be_able_to_tell() -> None:
    metric = by_field({"words": lambda example, words: None}, goal="words")
    with pytest.raises(ValueError, match="the metric of the goal 'words' returned None"):
        metric(EXAMPLE, pred(words=2))


def test_a_bootstrap_takes_only_a_full_score_as_true() -> None:
    metric = by_field({"words": lambda example, words: words}, goal="words")
    for value in (0.0, 0.5, 1.0):
        score = metric(EXAMPLE, pred(words=value), [])
        assert (bool(score), score == value, score >= 0.5) == (value == 1, True, value >= 0.5)


def test_a_field_metric_that_raises_is_named() -> None:
    metric = by_field({"words": lambda example, words: example.missing}, goal="words")
    with pytest.raises(AttributeError) as caught:
        metric(EXAMPLE, pred(words=2))
    assert caught.value.__notes__ == ["in the metric of 'words'"]


def counting() -> Any:
    graph = Graph().add_node("count", lambda text: {"words": len(text.split())}, writes=["words"])
    return graph.add_path(START, "count", END).compile()


def test_a_metric_that_does_not_fit_the_program_names_its_fields() -> None:
    for field, message in (
        ("word", "nothing writes 'word'. Did you mean 'words'? The program writes 'words'"),
        ("text", "nothing writes 'text'. The program writes 'words'"),
        ("cuont.words", "'cuont.words': there is no node 'cuont'. Did you mean 'count'? The nodes are 'count'."),
        ("count.word", "nothing writes 'count.word'. Did you mean 'words'? The node 'count' writes 'words'"),
    ):
        with pytest.raises(ValueError, match=message.replace("?", "[?]")):
            by_field({field: equals("words")}, goal=field).validate(counting())
    by_field({"count.words": equals("words")}, goal="count.words").validate(counting())
    fits = by_field({"words": equals("wrods")}, goal="words")
    fits.validate(counting())
    with pytest.raises(ValueError, match="the example has no 'wrods'"):
        fits.validate(counting(), [EXAMPLE])


def test_a_field_that_a_module_without_a_graph_does_not_give_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    metric = by_field({"anser": equals("answer")}, goal="anser")
    assert metric(dspy.Example(answer="4"), dspy.Prediction()) == 0  # of a run that failed
    assert [metric(dspy.Example(answer="4"), pred(answer="4")) for _ in range(3)] == [0, 0, 0]
    (record,) = caplog.records
    assert record.getMessage() == (
        "by_field: a prediction has no field 'anser', which scores 0; it has 'answer'. Did you mean 'answer'?"
    )


def test_examples_without_a_column_are_counted() -> None:
    examples = [dspy.Example(text="a"), dspy.Example(text="a", words=1), dspy.Example(text="b")]
    with pytest.raises(ValueError, match=r"the example has no 'words'; it has 'text'.* \(2 of 3 examples lack it\)"):
        by_field({"words": equals("words")}, goal="words").validate(counting(), examples)


def test_a_field_of_the_name_of_a_parameter() -> None:
    assert by_field({"state": lambda example, state: state == 2}, goal="state")(EXAMPLE, pred(state=2)) == 1
    assert by_field({"example": equals("words")}, goal="example")(EXAMPLE, pred(example=2)) == 1


def test_any_real_number_is_a_weight() -> None:
    weights: Any = {"words": Fraction(1, 3), "notes": np.int64(1)}
    metric = by_field({"words": equals("words"), "notes": ok_notes}, goal="words", weights=weights)
    assert metric(EXAMPLE, pred(words=0, notes=1)) == pytest.approx(0.75)


def ok_notes(example: Any, notes: Any) -> bool:
    return True


def test_feedback_without_words_is_none() -> None:
    metric = by_field({"words": lambda example, words: dspy.Prediction(score=0, feedback=" ")}, goal="words")
    assert metric(EXAMPLE, pred(words=3), None, "count", []).feedback == "`words` is 3, which is wrong."


class Rounded(dspy.Module):  # type: ignore[misc, unused-ignore]
    """Changes what its graph gave."""

    def __init__(self, graph: dspy.Module) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, **inputs: Any) -> dspy.Prediction:
        prediction = self.graph(**inputs)
        prediction.words = round(prediction.words)
        return prediction


def test_the_score_is_that_of_what_the_program_gives() -> None:
    graph = Graph().add_node("count", lambda text: {"words": 2.2}, writes=["words"]).add_path(START, "count", END)
    metric = by_field({"words": equals("words")}, goal="words")
    prediction = Rounded(graph.compile())(text="a b")
    assert metric(EXAMPLE, prediction) == metric(EXAMPLE, dspy.Prediction(**prediction)) == 1


class Line(BaseModel):
    item: str


DIFFERING: list[tuple[Any, Any, bool]] = [
    ([Line(item="boat")], [{"item": "boat"}], True),
    ([1, 2], (1, 2), True),
    (17, "17", True),
    ("17", 17, True),
    ([Line(item="boat")], [{"item": "lamp"}], False),
    ([Line(item="boat")], [Line(item="lamp")], False),
    (17, 18, False),
    ("a", "A", False),
    ("a", None, False),
    (object(), object(), False),
    (17.0, 17, False),
]


def test_values_that_differ_in_type_alone_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    for value, expected, warns in DIFFERING:
        caplog.clear()
        metric = equals("lines")
        found = [metric(dspy.Example(lines=expected), value) for _ in range(3)]
        assert found == [value == expected] * 3
        assert ["differ in their types alone" in record.getMessage() for record in caplog.records] == [True] * warns
