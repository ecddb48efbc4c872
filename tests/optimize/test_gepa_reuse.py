"""Rule 4.2: no equal run is repeated. Rule 4.3: a repeated proposal is asked for anew."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, optimize
from tests.optimize.skills import RULES, ChainState, SkillLM, chain, examples, step, stepwise

pytestmark = pytest.mark.usefixtures("quiet")


def sides(note: Any = lambda n: None) -> Any:
    """Even numbers go to `left`, odd ones to `right`."""

    def begin(n: int) -> dict[str, Any]:
        note(n)
        return {}

    graph = Graph(ChainState, name="Sides").add_node("begin", begin, writes=[])
    for side in ("left", "right"):
        graph.add_node(side, dspy.Predict(step("n", "a")))
        graph.add_edge(side, END)
    graph.add_conditional_edges("begin", lambda n: "right" if n % 2 else "left", ["left", "right"])
    return graph.add_edge(START, "begin").compile()


def first_step(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    del trace, pred_trace
    score = float(prediction.a == example.a)
    return score if pred_name is None else dspy.Prediction(score=score, feedback=f"`a` is wrong for {example.n}")


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


# --- which runs are made


@pytest.mark.parametrize("threads", [1, 4])
def test_a_run_is_reused_if_every_node_that_ran_has_the_same_instructions(threads: int) -> None:
    runs: Counter[int] = Counter()
    lm = SkillLM()

    tuned, stats, _ = tune(
        sides(lambda n: runs.update([n])), lm, first_step, component_selector=only("left"), num_threads=threads
    )

    odd = [n for n in runs if n % 2]
    assert len(odd) == 3 + 2
    assert all(runs[n] == 1 for n in odd), "`right` was never edited"
    assert all(runs[n] > 1 for n in runs if n % 2 == 0)
    assert stats.metric_calls == runs.total() == tuned.detailed_results.total_metric_calls
    assert stats.metric_spared
    assert stats.nodes["right"].lm_calls == 5
    assert stats.nodes["left"].lm_calls + 5 == len(lm.asked)


def test_the_metric_is_not_called_for_a_known_run_and_the_budget_is_not_charged() -> None:
    scored: list[int] = []

    def metric(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if pred_name is None:
            scored.append(example.n)
        return stepwise(example, prediction, trace, pred_name, pred_trace)

    tuned, stats, _ = tune(chain(), metric=metric)

    found = tuned.detailed_results
    assert len(scored) == stats.metric_calls == found.total_metric_calls <= 36 + 5 + 3
    assert stats.metric_spared > 5
    assert found.best_idx > 0


def test_scores_are_those_of_the_same_candidates_without_reuse() -> None:
    tuned, _, _ = tune(chain())
    found = tuned.detailed_results

    for candidate, scores in zip(found.candidates, found.val_subscores, strict=True):
        with dspy.context(lm=SkillLM()):
            again = [stepwise(example, candidate(n=example.n)) for example in examples(5, 100)]
        assert list(scores.values()) == again


def test_one_set_for_training_and_validation_is_run_once_by_the_seed() -> None:
    lm, train = SkillLM(), examples(6)
    _, stats, _ = tune(chain(), lm, train=train, val=None, max_metric_calls=12, component_selector=only("write_c"))

    per_seed = Counter(one.text for one in lm.tasks if one.field == "c" and "RULE" not in one.text)
    assert len(per_seed) == 6
    assert set(per_seed.values()) == {1}
    assert stats.metric_spared >= 3


def test_a_run_that_failed_is_made_again_and_its_node_is_named() -> None:
    seen: Counter[int] = Counter()

    def fetch(n: int) -> dict[str, Any]:
        seen[n] += 1
        if n == 2 and seen[n] < 3:
            raise ConnectionError("no route")
        return {"b": n}

    graph = Graph(ChainState, name="Fetching").add_node("fetch", fetch, writes=["b"])
    graph.add_node("write", dspy.Predict(step("n", "a")))
    program = graph.add_path(START, "fetch", "write", END).compile()
    train = examples(3)
    _, stats, _ = tune(program, metric=first_step, train=train, val=train, max_metric_calls=30)

    assert seen[2] > 3
    assert stats.nodes["fetch"].failed == 2
    assert not stats.nodes["fetch"].tunable
    assert "fetch (not tunable)" in str(stats)


def test_a_response_that_cannot_be_parsed_is_a_failure_of_its_node() -> None:
    program = chain()
    program.write_b.signature = program.write_b.signature.with_instructions("BREAK")

    _, stats, _ = tune(program, component_selector=only("write_c"), max_metric_calls=10)

    assert stats.nodes["write_b"].failed == stats.metric_calls


def test_a_module_around_the_graph_counts_as_run() -> None:
    class Around(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = dspy.Predict(step("n", "a"))
            self.graph = sides()

        def forward(self, n: int) -> Any:
            return self.graph(n=self.shift(n=n).a % 2)

    lm = SkillLM()
    _, stats, _ = tune(Around(), lm, lambda *args: 0.5, component_selector=only("shift"))

    assert len({one.text for one in lm.tasks if "RULE" in one.text}) > 3, "an edit of `shift` runs the program again"
    assert stats.nodes["shift"].lm_calls
    assert stats.nodes["left"].lm_calls + stats.nodes["right"].lm_calls + stats.nodes["shift"].lm_calls == len(lm.asked)


# --- it ends


def test_it_ends_when_every_example_is_solved() -> None:
    program = chain()
    for field in RULES:
        node = getattr(program, f"write_{field}")
        node.signature = node.signature.with_instructions(f"RULE {field}")

    _, stats, strong = tune(program, max_metric_calls=300)

    assert stats.metric_calls == 11
    assert not strong.asked


def test_it_ends_when_no_proposal_comes() -> None:
    _, stats, strong = tune(chain(), reflection_lm=SkillLM({"a": RULES["a"]}), max_metric_calls=18)
    broken = dspy.LM("openai/none", api_base="http://127.0.0.1:9", num_retries=0, cache=False)
    _, failing, _ = tune(chain(), reflection_lm=broken, max_metric_calls=18)

    assert stats.metric_calls <= 18 + 5
    assert failing.metric_calls == 11
    assert failing.reflection_calls <= 2 * 18 / 3, "as many tries as dspy.GEPA, each of which may be two requests"
    assert strong.asked


# --- what is counted as spared


def test_lm_calls_that_the_cache_of_dspy_would_answer_are_not_claimed() -> None:
    _, uncached, _ = tune(chain(), SkillLM(cache=False), max_metric_calls=28)
    dspy.cache.enable_memory_cache = True
    _, cached, _ = tune(chain(), SkillLM(cache=True), max_metric_calls=28)

    assert cached.metric_spared == uncached.metric_spared > 0
    assert sum(one.lm_spared for one in uncached.nodes.values()) == 3 * uncached.metric_spared
    assert sum(one.lm_spared for one in cached.nodes.values()) == 0
    assert all(
        one.lm_cached + one.lm_calls == other.lm_calls for one, other in zip(*rows(cached, uncached), strict=True)
    )
    assert sum(one.lm_cached for one in cached.nodes.values()) > 0


def rows(*stats: Any) -> list[Any]:
    return [one.nodes.values() for one in stats]


# --- proposals


def test_a_repeated_proposal_is_asked_for_with_another_rollout_id() -> None:
    dspy.cache.enable_memory_cache = True
    strong = SkillLM(cache=True, temperature=None)
    train = examples(3)

    _, stats, _ = tune(sides(), metric=first_step, train=train, val=train, reflection_lm=strong, max_metric_calls=20)

    assert len({one.text for one in strong.asked}) < len(strong.asked)
    rollouts = Counter(one.text for one in strong.asked if one.rollout is not None)
    assert stats.repeated == rollouts.total() > 0
    assert stats.reflection_calls == len(strong.asked)
    assert stats.reflection_cached == 0
    for text in rollouts:
        found = [one.rollout for one in strong.asked if one.text == text]
        assert found == [None, *[10**6 * number for number in range(1, len(found))]]


def test_an_unusable_proposal_is_asked_for_anew_and_the_others_of_its_round_as_before() -> None:
    class Unusable(SkillLM):
        """Responds to one component with no JSON at all, the first time."""

        def __init__(self) -> None:
            super().__init__(cache=True)
            write = self.writer.write

            def broken(prompt: Any, sampling: Any) -> str:
                text = write(prompt, sampling)
                bad = "Give b" in prompt.inputs.get("current_instruction", "") and sampling.rollout is None
                return "no JSON" if bad else text

            self.writer.write = broken

    dspy.cache.enable_memory_cache = True
    strong = Unusable()
    _, stats, _ = tune(chain(), reflection_lm=strong, component_selector="all", max_metric_calls=12)

    asked = [(one.rollout, word) for one in strong.asked for word in ("Give a", "Give b", "Give c") if word in one.text]
    assert (10**6, "Give b") in asked
    assert asked.count((None, "Give a")) == 1, "DSPy's cache has it"
    assert stats.repeated == 1
    assert stats.nodes["write_b"].proposed


def test_without_reuse_proposals_are_asked_as_dspy_asks_them() -> None:
    _, stats, strong = tune(sides(), metric=first_step, train=examples(3), reuse=False)

    assert not stats.repeated
    assert all(one.rollout is None for one in strong.asked)
