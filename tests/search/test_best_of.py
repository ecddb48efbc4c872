"""`best_of` makes the requests of `dspy.BestOfN`, and picks the same prediction."""

from __future__ import annotations

import contextlib
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspyer.search import best_of
from dspyer.testing import Prompt
from tests.search.kit import RolloutLM, digest, run


def answers(rewards: list[int]) -> RolloutLM:
    """Each rollout answers with its reward; -1 raises."""

    def answer(prompt: Prompt, rollout: int) -> Any:
        reward = rewards[rollout]
        if reward < 0:
            return ValueError(f"rollout {rollout}")
        values = {"reasoning": "so", "answer": f"{reward} {rollout}"}
        return {field.name: values[field.name] for field in prompt.output_fields}

    return RolloutLM(answer)


def by_hand(rewards: list[int], threshold: float, module: Any) -> tuple[RolloutLM, Any, list[Any]]:
    lm = answers(rewards)

    def reward(args: dict[str, Any], prediction: Any) -> float:
        assert args == {"question": "why?"}
        return float(prediction.answer.split()[0])

    best = dspy.BestOfN(module, N=len(rewards), reward_fn=reward, threshold=threshold, fail_count=100)
    with dspy.context(lm=lm, trace=[]):
        found = best(question="why?")
        return lm, found, list(dspy.settings.trace)


def rate(answer: str) -> float:
    return float(answer.split(maxsplit=1)[0])


@pytest.mark.parametrize(("mode", "kind"), [("sync", dspy.Predict), ("async", dspy.ChainOfThought)])
@given(rewards=st.lists(st.integers(-1, 3), min_size=1, max_size=5), threshold=st.integers(0, 4))
@settings(max_examples=7, deadline=None)
def test_requests_and_choice_of_best_of_n(mode: str, kind: Any, rewards: list[int], threshold: int) -> None:
    with contextlib.redirect_stdout(None):  # BestOfN prints each failure
        theirs, found, trace = by_hand(rewards, threshold, kind("question -> answer"))
    ours = answers(rewards)
    graph = best_of(kind("question -> answer"), len(rewards), rate, threshold=threshold)
    with dspy.context(lm=ours, trace=[]):
        done = run(graph, {"question": "why?"}, mode)
    assert ours.asked == theirs.asked
    if found is None:
        assert done.status == "failed"
        return
    assert done.status == "completed", done.error
    assert done.state["answer"] == found.answer
    assert [dict(outputs) for _, _, outputs in done.trace] == [dict(outputs) for _, _, outputs in trace]


def test_the_cache_serves_a_search_that_runs_again_and_dspy_best_of_n(tmp_path: Any) -> None:
    lm = RolloutLM(lambda prompt, rollout: {"answer": f"{digest(rollout) % 7} {rollout}"}, cache=True)
    question = {"question": f"why, in {tmp_path}?"}
    graph = best_of(dspy.Predict("question -> answer"), 4, rate)
    with dspy.context(lm=lm):
        first = run(graph, question)
        assert lm.rollouts == [0, 1, 2, 3]
        assert run(graph, question).state == first.state
        by_hand = dspy.BestOfN(dspy.Predict("question -> answer"), 4, lambda args, found: rate(found.answer), 99.0)
        assert by_hand(**question).answer == first.state["answer"]
        assert len(lm.asked) == 4
        run(best_of(dspy.Predict("question -> answer"), 4, rate, rollout_id=4), question)
    assert lm.rollouts == [*range(8)]
