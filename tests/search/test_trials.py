"""What a trial is: its failure, its reward, its requests, its question, its place in the trace and in a budget."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import dspy
import numpy as np
import pytest

from dspyer import END, START, Budget, Context, Graph, Retry
from dspyer.errors import BudgetError, NodeOutputError, SearchError, StoreError
from dspyer.search import beam, best_of, tree
from dspyer.testing import Prompt, no_pauses
from tests.search.kit import MODES, RolloutLM, Step, digest, rollout_here, run

QA = "question -> answer"
WHY = {"question": "why?"}
STRIDE = 10**6  # between the rollout ids of two attempts; another one would miss the responses in the caches of users


def by_rollout(*answers: Any) -> RolloutLM:
    """Answers by rollout; an exception is raised."""
    return RolloutLM(lambda prompt, rollout: answers[rollout] if isinstance(answers[rollout], Exception) else
                     {"answer": str(answers[rollout])})  # fmt: skip


def rate(answer: str) -> float:
    return float(answer)


# --- failures and rewards


@pytest.mark.parametrize("mode", MODES)
def test_a_trial_that_raises_has_no_reward_is_done_and_counts(mode: str) -> None:
    with dspy.context(lm=by_rollout(1, 2, ValueError("no"), 2)):
        done = run(best_of(dspy.Predict(QA), 4, rate, per_round=4), WHY, mode)
    entries = done.state["tree"]
    assert [(entry["reward"], entry["done"]) for entry in entries.values()] == [
        (1.0, False),
        (2.0, False),
        (None, True),
        (2.0, False),
    ]
    failure = entries["0.2"]["failure"]
    assert (failure.type, failure.index, failure.node) == ("LMUnexpectedError", 2, "trial")
    assert (done.state["best"], done.state["answer"]) == ("0.1", "2")  # of equal rewards the first


@pytest.mark.parametrize("mode", MODES)
def test_if_all_trials_fail_the_first_error_is_the_cause(mode: str) -> None:
    def fails(n: int) -> int:
        raise KeyError(f"trial {rollout_here()}")

    done = run(best_of(Step(fails), 3, lambda n: 1, per_round=3, writes=["n"]), {"n": 1}, mode)
    assert isinstance(done.error, SearchError)
    assert len(done.error.failures) == 3
    assert repr(done.error.__cause__) == "KeyError('trial 0')"
    assert "all 3 trials" in str(done.error)


def test_no_trial_at_all_is_an_error() -> None:
    done = run(tree(Step(abs), lambda n: 1, lambda tree: [], writes=["n"]), {"n": 1})
    assert "has made no trial" in str(done.error)


@pytest.mark.parametrize(
    "reward", [math.nan, None, "good", [1], 1j, np.array([1.0]), np.float32("nan"), Decimal("nan")]
)
def test_what_is_no_number_is_no_reward(reward: Any) -> None:
    done = run(best_of(Step(abs), 1, lambda n: reward, writes=["n"]), {"n": 1})
    assert isinstance(done.error, SearchError)
    assert isinstance(done.error.__cause__, NodeOutputError)
    assert "a reward is a number" in str(done.error)


def test_true_counts_as_1() -> None:
    done = run(best_of(Step(lambda n: rollout_here()), 3, lambda n: n == 1, threshold=1, writes=["n"]), {"n": 5})
    assert (done.state["n"], len(done.state["tree"])) == (1, 2)


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(2), np.bool_(True), Decimal("0.5"), Fraction(1, 2)])
def test_a_reward_may_be_a_number_of_any_class(number: Any) -> None:
    """A similarity of embeddings is a number of numpy, and so is what a comparison of two gives."""
    run_of = best_of(Step(abs), 3, lambda n: number, threshold=number, writes=["n"])
    done = run(run_of, {"n": 1})
    assert [entry["reward"] for entry in done.state["tree"].values()] == [float(number)]
    is_one: Any = lambda n: np.bool_(n == 1)  # noqa: E731
    graph = beam(Step(abs), lambda n: number, width=1, branch=1, depth=3, done=is_one,
                 writes=["n"])  # fmt: skip
    assert run(graph, {"n": 1}).state["best"] == "0.0"


@pytest.mark.parametrize(
    "error", [StoreError("the disk is full"), ExceptionGroup("tasks", [KeyError(), StoreError("the disk is full")])]
)
@pytest.mark.parametrize("place", ["module", "reward"])
def test_what_always_propagates_fails_the_run(place: str, error: Exception) -> None:
    def fails(n: int) -> int:
        raise error

    given: Any = (Step(fails), 3, lambda n: 1) if place == "module" else (Step(abs), 3, fails)
    assert run(best_of(*given, writes=["n"]), {"n": 1}).error is error


def test_the_best_of_those_that_are_done() -> None:
    """Trial 1 has the larger reward, but trial 0 is a solution."""
    graph = beam(Step(lambda n: rollout_here()), lambda n: n, width=2, branch=2, depth=1, done=lambda n: n == 0,
                 writes=["n"])  # fmt: skip
    done = run(graph, {"n": 5})
    assert (done.state["best"], done.state["n"]) == ("0.0", 0)


# --- requests


class Two(dspy.Module):
    """A predictor with an LM of its own, and one that has a temperature and a rollout id of its own."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.first = dspy.Predict("question -> draft")
        self.first.lm = lm
        self.second = dspy.Predict("draft -> answer", temperature=0.3)

    def forward(self, question: str) -> dspy.Prediction:
        return self.second(draft=self.first(question=question).draft)

    async def aforward(self, question: str) -> dspy.Prediction:
        return await self.second.acall(draft=(await self.first.acall(question=question)).draft)


def drafts(prompt: Prompt, rollout: int) -> dict[str, str]:
    return {"draft": f"d{rollout}"} if "question" in prompt.inputs else {"answer": str(rollout)}


@pytest.mark.parametrize("mode", MODES)
def test_every_predictor_of_a_trial_asks_in_its_rollout(mode: str) -> None:
    own, lm = RolloutLM(drafts), RolloutLM(drafts, temperature=0.0)
    with dspy.context(lm=lm):
        run(best_of(Two(own), 3, rate, rollout_id=10, temperature=0.9, writes=["answer"]), WHY, mode)
    assert [(one.rollout, one.temperature) for one in own.asked] == [(10, 0.9), (11, 0.9), (12, 0.9)]
    assert [(one.rollout, one.temperature) for one in lm.asked] == [(10, 0.3), (11, 0.3), (12, 0.3)]


def test_a_retry_in_a_trial_asks_for_what_no_other_trial_asks() -> None:
    """The first two responses of each trial do not parse."""
    lm = RolloutLM(lambda prompt, rollout: {"n": "7" if rollout >= 2 * STRIDE else "seven"})
    program = best_of(dspy.Predict("question -> n: int"), 3, lambda n: n).compile(retry=Retry(3))
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()), no_pauses():
        done = program.run(WHY)
    assert done.status == "completed", done.error
    assert Counter(lm.rollouts) == Counter(trial + STRIDE * attempt for trial in range(3) for attempt in range(3))


def test_trials_of_a_search_in_a_trial_ask_for_different_responses() -> None:
    lm = RolloutLM(lambda prompt, rollout: {"answer": "1"})
    inner = best_of(dspy.Predict(QA), 3, rate)
    with dspy.context(lm=lm):
        done = run(best_of(inner, 3, rate), WHY)
    assert done.status == "completed", done.error
    assert len(set(lm.rollouts)) == len(lm.rollouts) == 9


def test_best_of_n_in_a_trial_asks_for_different_responses() -> None:
    lm = RolloutLM(lambda prompt, rollout: {"answer": "1"})
    inner = dspy.BestOfN(dspy.Predict(QA), 3, lambda args, found: 0.0, 1.0)
    with dspy.context(lm=lm):
        run(best_of(inner, 3, rate), WHY)
    assert len(set(lm.rollouts)) == len(lm.rollouts) == 9


def test_an_optimizer_that_changes_the_rollout_id_gets_other_responses() -> None:
    lm = RolloutLM(lambda prompt, rollout: {"answer": "1"})
    for other in (lm, lm.copy(rollout_id=1), lm.copy(rollout_id=2)):
        with dspy.context(lm=other):
            run(best_of(dspy.Predict(QA), 3, rate), WHY)
    assert len(set(lm.rollouts)) == len(lm.rollouts) == 9


# --- judges


QUALITY = "answer -> quality: float"


def judged(prompt: Prompt, rollout: int) -> dict[str, str]:
    if "answer" in prompt.inputs:
        return {"quality": str(digest(prompt.inputs["answer"]) % 100)}
    return {"answer": f"a{rollout}"}


def judge_graph() -> Graph:
    return Graph(name="Judge").add_node("rate", dspy.Predict(QUALITY)).add_path(START, "rate", END)


JUDGES: dict[str, Callable[[], Any]] = {
    "module": lambda: dspy.Predict(QUALITY),
    "reasoning": lambda: dspy.ChainOfThought("answer -> quality: int"),
    "graph": judge_graph,
    "program": lambda: judge_graph().compile(),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", JUDGES)
def test_a_judge_is_frozen_and_asks_outside_of_the_rollout(kind: str, mode: str) -> None:
    def answer(prompt: Prompt, rollout: int) -> dict[str, str]:
        found = judged(prompt, rollout)
        return {field.name: found.get(field.name, "so") for field in prompt.output_fields}

    lm = RolloutLM(answer)
    program = best_of(dspy.Predict(QA), 3, JUDGES[kind](), per_round=3).compile()
    with dspy.context(lm=lm):
        done = run(program, WHY, mode)
    assert done.status == "completed", done.error
    expected = max(range(3), key=lambda place: digest(f"a{place}") % 100)
    assert done.state["best"] == f"0.{expected}"
    assert Counter(lm.rollouts) == {0: 1, 1: 1, 2: 1, None: 3}
    assert [name for name, _ in program.named_predictors()] == ["trial"]
    assert [dict(outputs) for _, _, outputs in done.trace] == [{"answer": f"a{expected}"}]
    assert any(name.startswith("reward") for name in program.dump_state())
    assert isinstance(getattr(program, "reward"), dspy.Module)


def test_a_judge_that_fails_is_retried_without_its_module() -> None:
    tries = Counter[str]()

    def answer(prompt: Prompt, rollout: int) -> Any:
        if "answer" in prompt.inputs:
            tries[prompt.inputs["answer"]] += 1
            if tries[prompt.inputs["answer"]] == 1:
                return {"quality": "high"}
        return judged(prompt, rollout)

    lm = RolloutLM(answer)
    program = best_of(dspy.Predict(QA), 2, dspy.Predict(QUALITY)).compile(retry=2)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()), no_pauses():
        done = program.run(WHY)
    assert all(entry["failure"] is None for entry in done.state["tree"].values())
    assert Counter(lm.rollouts) == {0: 1, 1: 1, None: 2, STRIDE: 2}


def test_a_reward_that_fails_is_attempted_again_with_its_keys_and_effects() -> None:
    rated, charged = Counter[int](), []

    def rate(n: int, ctx: Context) -> float:
        rated[n] += 1
        ctx.once("ask", lambda: charged.append(n))
        if rated[n] == 1:
            raise ConnectionError("no line")
        return n

    with no_pauses():
        done = run(best_of(Step(lambda n: rollout_here()), 2, rate, writes=["n"]).compile(retry=2), {"n": 9})
    assert done.status == "completed", done.error
    assert [entry["failure"] for entry in done.state["tree"].values()] == [None, None]
    assert (sorted(charged), rated) == ([0, 1], {0: 2, 1: 2})


# --- the trace


@pytest.mark.parametrize("mode", MODES)
def test_the_trace_has_the_steps_of_the_winner_alone(mode: str) -> None:
    """Failed attempts, failed trials and trials that lost are lost, and counted."""
    lm = RolloutLM(lambda prompt, rollout: {"next_line": f"{prompt.inputs['line']}{rollout}"})
    graph = beam(dspy.Predict("line -> next_line"), lambda line: digest(line) % 100, width=1, branch=2, depth=3,
                 done=lambda line: False, writes={"next_line": "line"})  # fmt: skip
    program = graph.compile()
    with dspy.context(lm=lm, trace=[]):
        done = run(program, {"line": ""}, mode)
        assert dspy.settings.trace == list(done.trace)
    state = done.state
    path = [state["best"][: 3 + 2 * level] for level in range(state["best"].count("."))]
    lines = [state["tree"][name]["patch"]["line"] for name in path]
    assert [dict(outputs)["next_line"] for _, _, outputs in done.trace] == lines
    assert all(predictor is program.trial for predictor, _, _ in done.trace)
    statuses = Counter(step.status for step in done.trace_steps)
    assert statuses == {"used": len(path), "lost": 6 - len(path)}


def test_a_search_in_a_graph_passes_on_what_it_credits() -> None:
    lm = by_rollout(1, 3, 2)
    program = Graph(name="Outer").add_node("write", best_of(dspy.Predict(QA), 3, rate)).add_path(START, "write", END)
    with dspy.context(lm=lm):
        done = run(program, WHY)
    assert done.state["answer"] == "3"
    assert [dict(outputs)["answer"] for _, _, outputs in done.trace] == ["3"]
    assert Counter(step.status for step in done.trace_steps) == {"used": 1, "lost": 2}
    assert done.blame("answer").node == "write"


def test_searches_run_in_parallel_and_as_items_of_a_map() -> None:
    """Their own fields stay inside: no two of them write one, and an item has the value alone."""
    graph = Graph(name="Outer", inputs=["question", "questions"])
    graph.add_node("one", best_of(dspy.Predict("question -> first"), 2, lambda first: 1.0))
    graph.add_node("two", best_of(dspy.Predict("question -> second"), 2, lambda second: 1.0))
    graph.add_map("each", best_of(dspy.Predict(QA), 2, rate), over="questions", item="question", into="answers")
    graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], "each").add_edge("each", END)
    lm = RolloutLM(lambda prompt, rollout: {field.name: str(rollout) * (rollout + 1) for field in prompt.output_fields})
    with dspy.context(lm=lm):
        done = run(graph, WHY | {"questions": ["a", "b"]})
    done.raise_error()
    given = WHY | {"questions": ["a", "b"]}
    assert done.state.to_dict() == given | {"first": "0", "second": "0", "answers": ["11", "11"]}


# --- budgets and questions


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("per_round", [1, 3])
def test_a_budget_stops_a_search_and_resume_goes_on_with_its_tree(mode: str, per_round: int) -> None:
    lm = RolloutLM(judged)
    graph = best_of(dspy.Predict(QA), 6, dspy.Predict(QUALITY), per_round=per_round)
    with dspy.context(lm=lm):
        whole = run(graph, WHY, mode)
        whole_calls = Counter(lm.asked)
        lm.asked.clear()
        thread = graph.compile(store=":memory:").thread("t")
        budget = Budget(requests=3)
        done = thread.run(WHY, budget=budget) if mode == "sync" else asyncio.run(thread.arun(WHY, budget=budget))
        assert isinstance(done.error, BudgetError)
        assert 3 <= len(lm.asked) <= 3 + per_round
        rounds = 1
        while done.status == "stopped":
            done = thread.resume(budget=budget) if mode == "sync" else asyncio.run(thread.aresume(budget=budget))
            rounds += 1
    assert rounds >= 3
    assert done.state == whole.state
    assert Counter(lm.asked) == whole_calls


def asking() -> Graph:
    graph = Graph(name="Asking").add_node("draft", dspy.Predict("question -> draft"))
    graph.add_interrupt("pick", question="How good is {draft}?", answer=float, into="score")
    return graph.add_path(START, "draft", "pick", END)


@pytest.mark.parametrize("mode", MODES)
def test_a_trial_may_ask_and_waits_for_the_answer(mode: str) -> None:
    lm = RolloutLM(lambda prompt, rollout: {"draft": f"d{rollout}"})
    program = best_of(asking(), 4, lambda score: score, per_round=2, writes=["draft", "score"]).compile(
        store=":memory:"
    )
    thread = program.thread("t")
    with dspy.context(lm=lm):
        done = thread.run(WHY) if mode == "sync" else asyncio.run(thread.arun(WHY))
        assert [question.text for question in done.questions] == ["How good is d0?", "How good is d1?"]
        given = {done.questions[0].id: 1.0, done.questions[1].id: 5.0}
        done = thread.resume(given) if mode == "sync" else asyncio.run(thread.aresume(given))
        assert [question.text for question in done.questions] == ["How good is d2?", "How good is d3?"]
        given = {question.id: 2.0 for question in done.questions}
        done = thread.resume(given) if mode == "sync" else asyncio.run(thread.aresume(given))
    assert (done.state["best"], done.state["draft"], done.state["score"]) == ("0.1", "d1", 5.0)
    assert Counter(lm.rollouts) == Counter(range(4))


def test_a_second_run_on_a_thread_begins_a_new_tree() -> None:
    lm = RolloutLM(lambda prompt, rollout: {"answer": f"{len(prompt.inputs['question'])}{rollout}"})
    thread = best_of(dspy.Predict(QA), 2, rate).compile(store=":memory:").thread("t")
    with dspy.context(lm=lm):
        thread.run(WHY)
        done = thread.run({"question": "and why not?"})
    assert done.state["answer"] == "121"
    assert [*done.state["tree"]] == ["0.0", "0.1"]


def test_what_lasts_in_a_program_lasts_in_a_search_over_it() -> None:
    graph = Graph(inputs=["n", "given"], required=[], outputs=["n"], keep=["n"])
    graph.add_node("add", lambda n=0, given=0: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    thread = best_of(graph, 1, lambda n: n).compile(store=":memory:").thread("t")
    first = thread.run({"n": 1, "given": 1}).state["n"]
    assert (first, thread.run({}).state["n"]) == (2, 3)
    assert "given" not in thread.state
