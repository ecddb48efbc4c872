"""What an optimization asks outside of nodes is kept: responses by request and number, results of field metrics."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMServerError

from dspyer import optimize
from dspyer.lms import reliable
from dspyer.optimize.cached_calls import cached_lm
from dspyer.optimize.field_functions import FieldJudge
from dspyer.testing import ScriptedLM
from tests.runtime.cached import warnings_of
from tests.runtime.calls import CALLS, count_call


def numbered(count: int = 9, **settings: Any) -> ScriptedLM:
    """An LM that responds with how many requests it got."""
    return ScriptedLM([{"idea": f"idea {number}"} for number in range(1, count + 1)], **settings)


def propose(lm: Any, topic: str = "x", **config: Any) -> str:
    with dspy.context(lm=lm):
        return str(dspy.Predict("topic -> idea")(topic=topic, config=config).idea)


async def apropose(lm: Any, topic: str = "x", **config: Any) -> str:
    with dspy.context(lm=lm):
        return str((await dspy.Predict("topic -> idea").acall(topic=topic, config=config)).idea)


def test_a_repeated_request_asks_anew_and_one_that_is_started_again_replays(tmp_path: Path) -> None:
    """5.5: by prompt and by how often that prompt was sent."""
    lm = numbered()
    with optimize.cache(tmp_path):
        first = cached_lm(lm)
        assert [propose(first), propose(first), propose(first, "y")] == ["idea 1", "idea 2", "idea 3"]
        again = cached_lm(lm)
        found = [propose(again), propose(again), propose(again, "y"), propose(again)]
    assert found == ["idea 1", "idea 2", "idea 3", "idea 4"]
    assert len(lm.calls) == 4
    assert len(lm.history) == 4  # the twin notes in the history of the LM itself


@pytest.mark.anyio
async def test_async_code_finds_what_sync_code_kept(tmp_path: Path) -> None:
    lm = numbered()
    with optimize.cache(tmp_path):
        assert propose(cached_lm(lm)) == "idea 1"
        again = cached_lm(lm)
        assert [await apropose(again), await apropose(again)] == ["idea 1", "idea 2"]
        assert [propose(cached_lm(lm)) for _ in range(2)] == ["idea 1", "idea 1"]
    assert len(lm.calls) == 2


CHANGES: dict[str, tuple[Callable[[ScriptedLM], Any], dict[str, Any], bool]] = {
    "nothing": (lambda lm: lm, {}, True),
    "api_key": (lambda lm: _with(lm, api_key="another"), {}, True),
    "a copy": (lambda lm: lm.copy(), {}, True),
    "rollout_id": (lambda lm: lm.copy(rollout_id=7, temperature=1.0), {}, False),
    "temperature": (lambda lm: lm, {"temperature": 0.5}, False),
    "model": (lambda lm: _with(lm, model="another"), {}, False),
    "the class": (lambda lm: reliable(lm, retry=None), {}, False),
}


def _with(lm: ScriptedLM, model: str | None = None, **kwargs: Any) -> Any:
    twin = lm.copy()
    twin.model = model or twin.model
    twin.kwargs |= kwargs
    return twin


@pytest.mark.parametrize("name", CHANGES)
def test_a_request_is_known_by_all_that_may_change_its_response(tmp_path: Path, name: str) -> None:
    change, config, found = CHANGES[name]
    with optimize.cache(tmp_path):
        propose(cached_lm(lm := numbered()))
        assert propose(cached_lm(change(lm)), **config) == ("idea 1" if found else "idea 2")


def test_a_request_that_fails_does_not_count(tmp_path: Path) -> None:
    lm = ScriptedLM([LMServerError("busy"), {"idea": "a"}, {"idea": "b"}])
    with optimize.cache(tmp_path):
        twin = cached_lm(lm)
        with pytest.raises(LMServerError, match="busy"):
            propose(twin)
        assert [propose(twin), propose(twin)] == ["a", "b"]
        again = cached_lm(lm)
        assert [propose(again), propose(again)] == ["a", "b"]


def test_the_lms_of_reliable_and_copies_are_recorded_together(tmp_path: Path) -> None:
    lm = numbered()
    with optimize.cache(tmp_path):
        twin = cached_lm(reliable(lm, retry=None))
        assert [propose(twin), propose(copy.deepcopy(twin)), propose(twin.copy())] == ["idea 1", "idea 2", "idea 3"]
        again = cached_lm(cached_lm(reliable(lm, retry=None)))
        assert [propose(again) for _ in range(3)] == ["idea 1", "idea 2", "idea 3"]
    assert len(lm.calls) == 3


def test_nothing_is_recorded_outside_of_a_block(tmp_path: Path) -> None:
    lm = numbered()
    assert cached_lm(lm) is lm
    with optimize.cache(tmp_path):
        assert cached_lm(None) is None


def test_a_response_that_json_would_change_is_used_and_not_kept(tmp_path: Path) -> None:
    calls = [{"name": "search", "args": {"q": "x"}}]
    with optimize.cache(tmp_path):
        lm = ScriptedLM(lambda _prompt: {"calls": calls})
        for _ in range(2):
            with dspy.context(lm=cached_lm(lm), adapter=dspy.ChatAdapter(use_native_function_calling=True)):
                search = dspy.Predict("question, tools: list[dspy.Tool] -> calls: dspy.ToolCalls")
                found = search(question="x", tools=[dspy.Tool(lambda q: q, name="search")])
                assert found.calls.tool_calls[0].name == "search"
    assert len(lm.calls) == 2


def test_a_folder_that_fails_later_costs_requests_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lm = numbered()
    with optimize.cache(folder := tmp_path / "results"):
        assert propose(cached_lm(lm)) == "idea 1"
        for path in folder.glob("cache.db*"):
            path.write_bytes(b"no database" * 1000)
        found = [propose(cached_lm(lm)) for _ in range(2)]
    assert found == ["idea 2", "idea 3"]
    assert len(warnings_of(caplog)) == 1


# --- results of field metrics


def close(example: Any, answer: str) -> Any:
    count_call(answer)
    return dspy.Prediction(score=0.5, feedback=f"{answer} is near") if answer == "near" else answer == example.answer


def in_state(example: Any, answer: str, state: Any) -> Any:
    count_call(answer)
    return None if state["draft"] == "?" else answer in example.answer


EXAMPLE = dspy.Example(question="q", answer="Paris", seen=[1, 2.0]).with_inputs("question")


def judged(metric: Any, answer: str = "Paris", example: Any = EXAMPLE, **state: Any) -> Any:
    return FieldJudge({"answer": metric}).judge("answer", example, answer, {"answer": answer, **state})


@pytest.fixture(autouse=True)
def count_anew() -> None:
    CALLS.clear()


@pytest.mark.parametrize("answer", ["Paris", "near", "far"])
def test_a_metric_is_called_once_for_equal_values(tmp_path: Path, answer: str) -> None:
    """5.5: metric results by example and values."""
    outside = judged(close, answer)
    with optimize.cache(tmp_path):
        inside = [judged(close, answer), judged(close, answer, copy.deepcopy(EXAMPLE))]
    assert inside == [outside, outside]
    assert CALLS[answer] == 2


def other(example: Any, answer: str) -> Any:
    count_call(answer)
    return answer == example.answer


def test_a_result_is_known_by_the_code_the_example_and_the_values(tmp_path: Path) -> None:
    changed = dspy.Example(EXAMPLE.toDict() | {"seen": [1, 2]}).with_inputs("question")
    with optimize.cache(tmp_path):
        judged(close)
        judged(other)
        judged(close, example=changed)
        assert CALLS["Paris"] == 3
        judged(in_state, draft="a")
        judged(in_state, draft="b")
        judged(in_state, draft="a")
        assert CALLS["Paris"] == 5
        assert judged(in_state, draft="?") == judged(in_state, draft="?") == (None, None)
    assert CALLS["Paris"] == 6


def test_the_settings_of_an_adapter_count(tmp_path: Path) -> None:
    with optimize.cache(tmp_path):
        for native in (False, True, False):
            with dspy.context(adapter=dspy.ChatAdapter(use_native_function_calling=native)):
                judged(close)
    assert CALLS["Paris"] == 2


class Opaque:
    """Looks the same whatever it holds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_a_metric_or_an_example_that_could_be_another_is_asked_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its identity is unknown, so nothing is kept, and a warning says so once."""
    tool = Opaque()

    def with_tool(example: Any, answer: str) -> bool:
        count_call(answer)
        return not tool.lock.locked() and bool(answer == example.answer)

    with optimize.cache(tmp_path):
        assert [judged(with_tool).score for _ in range(2)] == [1.0, 1.0]
        assert [judged(close, example=dspy.Example(answer="Paris", tool=tool)).score for _ in range(2)] == [1.0, 1.0]
    assert CALLS["Paris"] == 4
    assert len([one for one in caplog.messages if "are not kept" in one]) == 2
    assert any("tool" in one and "with_tool" in one for one in caplog.messages)


def test_an_error_of_a_metric_is_raised_and_not_kept(tmp_path: Path) -> None:
    def broken(example: Any, answer: str) -> bool:
        count_call(answer)
        raise ZeroDivisionError

    with optimize.cache(tmp_path):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                judged(broken)
    assert CALLS["Paris"] == 2


# --- metrics that ask an LM

JUDGE = dspy.Predict("fact, answer -> verdict: bool")


def by_global_judge(example: Any, answer: str) -> bool:
    count_call(answer)
    return bool(JUDGE(fact=example.answer, answer=answer).verdict)


def judge_in_closure(lm: Any = None, instructions: str = "") -> Any:
    judge = dspy.ChainOfThought(dspy.Signature("fact, answer -> verdict: bool", instructions))
    judge.set_lm(lm)

    def by_judge(example: Any, answer: str) -> bool:
        count_call(answer)
        return bool(judge(fact=example.answer, answer=answer).verdict)

    return by_judge


def test_the_verdict_of_an_lm_is_found_again_while_the_judge_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def yes(model: str = "yes") -> ScriptedLM:
        return ScriptedLM(lambda _prompt: {"verdict": "True"}, model=model, cache=True)

    with optimize.cache(tmp_path), dspy.context(lm=yes()):
        for metrics in ([by_global_judge] * 2, [judge_in_closure(), judge_in_closure()]):
            CALLS.clear()
            assert [judged(metric).score for metric in metrics] == [1.0, 1.0]
            assert CALLS["Paris"] == 1
        judged(judge_in_closure(instructions="Be strict."))
        assert CALLS["Paris"] == 2
        judged(judge_in_closure(lm=yes()))
        assert CALLS["Paris"] == 3
        with dspy.context(lm=yes("another")):
            judged(judge_in_closure())
            judged(by_global_judge)
        assert CALLS["Paris"] == 5
        with dspy.context(adapter=dspy.JSONAdapter()):
            judged(judge_in_closure())
        assert CALLS["Paris"] == 6
        monkeypatch.setattr(JUDGE, "signature", JUDGE.signature.with_instructions("Be kind."))
        judged(by_global_judge)
        assert CALLS["Paris"] == 7
        for _ in range(2):  # it says that each call is to be made
            judged(judge_in_closure(lm=yes().copy(cache=False)))
        assert CALLS["Paris"] == 9
