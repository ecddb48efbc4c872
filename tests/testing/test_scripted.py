"""`ScriptedLM`: its answers, its recorded calls, and that every deviation from the script fails the test."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Literal

import dspy
import pytest
from dspy.adapters.xml_adapter import XMLAdapter
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import LMError, LMUnexpectedError

from dspyer import END, START, Graph
from dspyer.errors import DspyerError, ScriptError
from dspyer.testing import Asks, ScriptedLM, UnexpectedCallError
from tests.rows import each

QA = "question -> answer"
ADAPTERS = [dspy.ChatAdapter(), dspy.JSONAdapter(), XMLAdapter()]


def ask(question: str = "q", signature: Any = QA, **settings: Any) -> Any:
    return dspy.Predict(signature, **settings)(question=question)


class Typed(dspy.Signature):
    """Answers of many types."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()
    sure: bool = dspy.OutputField()
    count: int = dspy.OutputField()
    share: float = dspy.OutputField()
    kind: Literal["fact", "guess"] = dspy.OutputField()


TYPED = {"answer": "two\nlines", "sure": True, "count": 3, "share": 0.5, "kind": "guess"}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: type(adapter).__name__)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_fields_are_written_as_the_adapter_asks(adapter: Any, mode: str) -> None:
    with dspy.context(adapter=adapter), ScriptedLM([TYPED]) as lm:
        program = dspy.ChainOfThought(Typed)
        found = program(question="q") if mode == "sync" else asyncio.run(program.acall(question="q"))
    assert {name: found[name] for name in TYPED} == TYPED
    assert found.reasoning == ""
    assert lm.calls[0].prompt.asks == ("reasoning", *TYPED)


@pytest.mark.parametrize("adapter", ADAPTERS[:2], ids=lambda adapter: type(adapter).__name__)
def test_lists_and_mappings_are_written_too(adapter: Any) -> None:
    answer = {"tags": ["a", "b"], "parts": {"x": 1}}
    with dspy.context(adapter=adapter), ScriptedLM([answer]):
        found = ask(signature="question -> tags: list[str], parts: dict[str, int]")
    assert {"tags": found.tags, "parts": found.parts} == answer


def test_answers_come_in_order_and_are_recorded() -> None:
    with ScriptedLM(
        [{"answer": "a"}, "[[ ## answer ## ]]\nb", lambda prompt: {"answer": prompt.inputs["question"]}]
    ) as lm:
        assert [ask("1").answer, ask("2").answer, ask("3").answer] == ["a", "b", "3"]
    assert [call.prompt.inputs["question"] for call in lm.calls] == ["1", "2", "3"]
    assert lm.calls[0].messages[-1]["role"] == "user"
    assert "[[ ## question ## ]]\n1" in lm.calls[0].messages[-1]["content"]
    assert lm.calls[0].answer == "[[ ## answer ## ]]\na\n\n[[ ## completed ## ]]"


def test_a_plain_prompt_gets_a_plain_text() -> None:
    assert ScriptedLM(["hello"])("hi") == ["hello"]
    assert ScriptedLM([{"a": 1}])("hi") == ['{"a": 1}']


def test_several_answers_of_one_call_are_several_answers() -> None:
    with ScriptedLM([{"answer": "a"}, {"answer": "b"}]):
        assert ask(n=2).completions.answer == ["a", "b"]


@each(
    ("script", "questions", "answers"),
    [
        (
            {"Rome": {"answer": "Italy"}, "Oslo": {"answer": "Norway"}},
            ["Oslo?", "Rome?", "Oslo?"],
            "Norway Italy Norway",
        ),
        ([("Rome", [{"answer": "1"}, {"answer": "2"}]), ("", {"answer": "other"})], ["Rome", "x", "Rome"], "1 other 2"),
        ([(Asks("answer", question="b"), {"answer": "yes"}), (Asks(), {"answer": "no"})], ["a", "b"], "no yes"),
        (
            [(lambda prompt: prompt.inputs["question"] == "b", {"answer": "1"}), ("", {"answer": "2"})],
            ["a", "b"],
            "2 1",
        ),
        (lambda prompt: {"answer": prompt.inputs["question"]}, ["a", "b"], "a b"),
        ([("a", [{"answer": "first"}]), ("a", {"answer": "then"})], ["a", "a", "a"], "first then then"),
    ],
    ids=["mapping", "lists", "asks", "function", "answer-function", "fall-through"],
)
def test_matched_answers(script: Any, questions: list[str], answers: str) -> None:
    with ScriptedLM(script):
        assert [ask(question).answer for question in questions] == answers.split()


def test_matches_do_not_depend_on_the_order_of_parallel_calls() -> None:
    script = {str(number) * 3: {"answer": f"answer {number}"} for number in range(8)}
    with ScriptedLM(script) as lm, ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(copy_context().run, ask, str(number) * 3) for number in range(8)]
        assert [run.result().answer for run in runs] == [f"answer {number}" for number in range(8)]
    assert len(lm.calls) == 8


UNEXPECTED: dict[str, tuple[Any, str]] = {
    "no answer": ([], "unexpected LM call 1: the script expects no call"),
    "used": ([{"answer": "a"}], "unexpected LM call 2: the one answer that fits it is used"),
    "no match": ({"Rome": {"answer": "a"}}, "none of the 1 matches of the script fits it"),
    "lacking": ([{}], "it lacks answer"),
    "unknown": ([{"answer": "a", "anwser": "b"}], "it has anwser"),
    "no answer type": ([lambda prompt: 3], "not int"),
}


@pytest.mark.parametrize(("script", "text"), UNEXPECTED.values(), ids=UNEXPECTED)
@pytest.mark.parametrize("adapter", ADAPTERS[:2], ids=lambda adapter: type(adapter).__name__)
def test_an_unexpected_call_reaches_the_test(script: Any, text: str, adapter: Any) -> None:
    def calls() -> None:
        ask("long " * 100)
        ask("long " * 100)

    with dspy.context(lm=ScriptedLM(script), adapter=adapter), pytest.raises(UnexpectedCallError, match=text) as caught:
        calls()
    assert isinstance(caught.value, ScriptError)
    assert isinstance(caught.value, DspyerError)
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, LMError)  # so DSPy hands it on as it is
    assert len(str(caught.value)) < 400, "the error shows the call, not the whole prompt"


def test_the_error_of_an_unparsable_answer_says_why_dspy_asked_again() -> None:
    with (
        dspy.context(lm=ScriptedLM(["no fields"])),
        pytest.raises(UnexpectedCallError, match="could not parse") as caught,
    ):
        ask()
    assert "'no fields'" in str(caught.value)


@pytest.mark.parametrize("error", [ValueError("out of luck"), ValueError], ids=["instance", "class"])
def test_an_exception_of_the_script_is_raised_as_an_engine_would(error: Any) -> None:
    with ScriptedLM([error, {"answer": "a"}]) as lm:
        with pytest.raises(LMUnexpectedError) as caught:
            ask()
        assert isinstance(caught.value.__cause__, ValueError)
        assert str(caught.value.__cause__) in str(caught.value)
        assert ask().answer == "a"
    assert isinstance(lm.calls[0].error, ValueError)


def test_an_lm_error_of_the_script_comes_unwrapped_and_is_not_retried() -> None:
    error = dspy.utils.exceptions.LMRateLimitError("slow down")
    with ScriptedLM([error]), pytest.raises(dspy.utils.exceptions.LMRateLimitError) as caught:
        ask()
    assert caught.value is error


UNUSED: dict[str, tuple[Any, str]] = {
    "list": ([{"answer": "a"}, {"answer": "b"}, {"answer": "c"}], "not used: 2 of 3 answers"),
    "matched": ({"q": {"answer": "a"}, "Rome": {"answer": "b"}}, "not used: 'Rome': 1 of 1"),
    "matched list": ({"q": [{"answer": "a"}, {"answer": "b"}]}, "not used: 'q': 1 of 2"),
    "asks": ([("q", {"answer": "a"}), (Asks("x", y="z"), {"x": ""})], r"not used: Asks\('x', y='z'\)"),
}


@pytest.mark.parametrize(("script", "text"), UNUSED.values(), ids=UNUSED)
def test_unused_answers_fail_the_test(script: Any, text: str) -> None:
    lm = ScriptedLM(script)
    with pytest.raises(ScriptError, match=text), lm:
        ask()
    with pytest.raises(ScriptError, match=text):
        lm.assert_used()


def test_an_unexpected_call_whose_error_was_caught_fails_at_the_end() -> None:
    def program(**inputs: Any) -> None:
        with pytest.raises(UnexpectedCallError):
            ask(**inputs)

    with pytest.raises(ScriptError, match="unexpected LM call 1"), ScriptedLM([]):
        program(question="q")


@pytest.mark.parametrize("error", [AssertionError("no"), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_an_error_of_the_block_is_not_covered_by_unused_answers(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, ScriptedLM([{"answer": "a"}]):
        raise error
    assert caught.value is error
    assert "not used: 1 of 1 answers" in error.__notes__[0]


def calls_of_a_broken_graph() -> dict[str, Callable[[Any], Any]]:
    async def astream(program: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            _ = [event async for event in program.astream({"n": 0})]

    return {
        "run": lambda program: program.run({"n": 0}),
        "arun": lambda program: asyncio.run(program.arun({"n": 0})),
        "astream": lambda program: asyncio.run(astream(program)),
        "thread": lambda program: program.thread("t").run({"n": 0}),
        "evaluate": dspy.Evaluate(devset=[dspy.Example(n=0).with_inputs("n")], metric=lambda *_: 1.0, num_threads=1),
    }


@pytest.mark.parametrize("call", calls_of_a_broken_graph().values(), ids=calls_of_a_broken_graph())
def test_why_a_run_failed_is_the_cause_of_unused_answers(call: Callable[[Any], Any]) -> None:
    graph = Graph().add_node("broken", lambda n: {"text": str(1 / n)}, writes=["text"])
    graph.add_node("ask", dspy.Predict("text -> answer")).add_path(START, "broken", "ask", END)
    program = graph.compile(store=":memory:")
    with pytest.raises(ScriptError, match="not used: 1 of 1 answers") as caught, ScriptedLM([{"answer": "a"}]):
        call(program)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_script_without_a_failure_has_no_cause_and_keeps_the_callbacks_around_it() -> None:
    seen: list[str] = []

    class Watch(BaseCallback):
        def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
            seen.append(outputs.answer)

    script = [{"answer": "a"}, {"answer": "b"}]
    with dspy.context(callbacks=[Watch()]), pytest.raises(ScriptError) as caught, ScriptedLM(script):
        ask()
    assert caught.value.__cause__ is None
    assert seen == ["a"]


def test_a_program_is_copied_inside_the_block(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedLM([{"answer": "a"}]) as lm:
        program = dspy.Predict(QA)
        program.set_lm(lm)
        assert program.deepcopy()(question="q").answer == "a"
    assert not caplog.records


COPIES: dict[str, Callable[[ScriptedLM], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "rollout": lambda lm: lm.copy(rollout_id=7, temperature=1.0),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_share_script_and_calls(copied: Callable[[ScriptedLM], Any]) -> None:
    lm = ScriptedLM([{"answer": "a"}, {"answer": "b"}])
    other = copied(lm)
    with dspy.context(lm=lm):
        assert ask().answer == "a"
    with dspy.context(lm=other):
        assert ask().answer == "b"
    assert len(lm.calls) == len(other.calls) == 2
    lm.assert_used()


def test_a_copied_program_shares_the_script_of_its_lm() -> None:
    program = dspy.Predict(QA)
    program.set_lm(lm := ScriptedLM([{"answer": "a"}, {"answer": "b"}]))
    assert [program(question="1").answer, program.deepcopy()(question="2").answer] == ["a", "b"]
    lm.assert_used()


def test_best_of_n_draws_from_one_script() -> None:
    best = dspy.BestOfN(
        dspy.Predict(QA), N=3, reward_fn=lambda args, found: float(found.answer == "good"), threshold=1.0
    )
    with ScriptedLM([{"answer": "bad"}, {"answer": "good"}]) as lm:
        assert best(question="q").answer == "good"
    assert len(lm.calls) == 2


def test_a_script_stays_in_its_process() -> None:
    lm = ScriptedLM([{"answer": "a"}])
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(lm)
    program = dspy.Predict(QA)
    program.set_lm(lm)
    with pytest.raises(TypeError, match="not saved"):
        program.dump_state()


@pytest.mark.parametrize("script", [3, "text", [3], {"q": 3}, [("q", [None])]])
def test_an_invalid_script_raises_at_once(script: Any) -> None:
    with pytest.raises(TypeError, match=r"not (int|str|NoneType)"):
        ScriptedLM(script)


def test_usage_counts_words() -> None:
    with dspy.context(track_usage=True), ScriptedLM([{"answer": "three short words"}], model="fake") as lm:
        usage = ask().get_lm_usage()["fake"]
    sent = sum(len(message["content"].split()) for message in lm.calls[0].messages)
    answered = len(str(lm.calls[0].answer).split())
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (sent, answered)
    assert usage["total_tokens"] == sent + answered


@pytest.mark.parametrize("in_loop", [False, True], ids=["sync program", "async program"])
def test_answers_stream_word_by_word(in_loop: bool) -> None:
    async def collect() -> list[Any]:
        program = dspy.streamify(
            dspy.Predict(QA),
            stream_listeners=[dspy.streaming.StreamListener("answer")],
            is_async_program=in_loop,
        )
        return [chunk async for chunk in program(question="q")]

    with ScriptedLM([{"answer": "one two three"}]):
        *chunks, last = asyncio.run(collect())
    assert [chunk.chunk.strip() for chunk in chunks if chunk.chunk] == ["one", "two", "three"]
    assert last.answer == "one two three"


def test_the_cache_is_off_and_can_be_asked_for() -> None:
    assert ScriptedLM([]).cache is False
    assert ScriptedLM([], cache=True).cache is True
    assert ScriptedLM([], num_retries=2, temperature=0.5).num_retries == 2
