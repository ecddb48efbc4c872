"""Failures of nodes are counted; a repeated proposal is asked for anew."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, optimize
from tests.optimize.skills import ChainState, SkillLM, examples, step, stepwise

pytestmark = pytest.mark.usefixtures("quiet")


def sides() -> Any:
    """Even numbers go to `left`, odd ones to `right`."""
    graph = Graph(ChainState, name="Sides").add_node("begin", lambda n: {}, writes=[])
    for side in ("left", "right"):
        graph.add_node(side, dspy.Predict(step("n", "a")))
        graph.add_edge(side, END)
    graph.add_conditional_edges("begin", lambda n: "right" if n % 2 else "left", ["left", "right"])
    return graph.add_edge(START, "begin").compile()


def first_step(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    del trace, pred_trace
    score = float(prediction.a == example.a)
    return score if pred_name is None else dspy.Prediction(score=score, feedback=f"`a` is wrong for {example.n}")


OF_SIDES = optimize.by_field({"a": lambda example, a: False}, goal="a")


def only(component: str) -> Any:
    return lambda state, trajectories, scores, index, candidate: [component]


def tune(program: Any, lm: Any = None, metric: Any = stepwise, **options: Any) -> tuple[Any, Any, SkillLM]:
    strong = options.pop("reflection_lm", None) or SkillLM()
    train, val = options.pop("train", examples(6)), options.pop("val", examples(5, 100))
    settings = {"max_metric_calls": 36, "num_threads": 1, "track_stats": True, **options}
    with dspy.context(lm=lm or SkillLM()):
        gepa = optimize.GEPA(metric, reflection_lm=strong, **settings)
        tuned = gepa.compile(program, trainset=train, valset=val)
    return tuned, gepa.stats, strong


def test_a_module_around_the_graph_counts_as_run() -> None:
    class Around(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = dspy.Predict(step("n", "a"))
            self.graph = sides()

        def forward(self, n: int) -> Any:
            return self.graph(n=self.shift(n=n).a % 2)

    lm = SkillLM()
    tune(Around(), lm, lambda *args: 0.5, component_selector=only("shift"))

    assert len({one.text for one in lm.tasks if "RULE" in one.text}) > 3, "an edit of `shift` runs the program again"


# --- proposals


def test_a_repeated_proposal_is_asked_for_with_another_rollout_id() -> None:
    dspy.cache.enable_memory_cache = True
    strong = SkillLM(cache=True, temperature=None)
    train = examples(3)

    _, stats, _ = tune(sides(), metric=OF_SIDES, train=train, val=train, reflection_lm=strong, max_metric_calls=40)

    rollouts = [one.rollout for one in strong.asked if one.rollout is not None]
    assert 0 < stats.repeated <= len(rollouts)
    assert set(rollouts) == {10**6 * number for number in range(1, len(set(rollouts)) + 1)}
    assert len({(one.text, one.rollout) for one in strong.asked}) == len(strong.asked)


def test_an_unusable_proposal_is_asked_for_anew() -> None:
    class Unusable(SkillLM):
        """Responds with no JSON at all, the first time."""

        def __init__(self) -> None:
            super().__init__(cache=True)
            write = self.writer.write
            self.writer.write = lambda prompt, sampling: (
                "no JSON" if sampling.rollout is None else write(prompt, sampling)
            )

    dspy.cache.enable_memory_cache = True
    strong = Unusable()
    _, stats, _ = tune(sides(), metric=OF_SIDES, reflection_lm=strong, max_metric_calls=12)

    assert 10**6 in [one.rollout for one in strong.asked]
    assert stats.repeated
    assert stats.nodes["left"].proposed + stats.nodes["right"].proposed


def test_without_culprits_proposals_are_asked_as_dspy_asks_them() -> None:
    _, stats, strong = tune(sides(), metric=first_step, train=examples(3))

    assert not stats.repeated
    assert all(one.rollout is None for one in strong.asked)
