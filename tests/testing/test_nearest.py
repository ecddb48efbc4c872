"""`NearestLM`: it learns from its prompt alone, gets better with more demonstrations, and answers every prompt."""

from __future__ import annotations

import asyncio
import copy
import enum
import json
import pickle
import random
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import dspy
import pytest
from dspy.adapters.xml_adapter import XMLAdapter
from pydantic import BaseModel

from dspyer.testing import NearestLM
from tests.rows import each

ROOT = Path(__file__).parent.parent.parent
TICKETS = [json.loads(line) for line in (ROOT / "examples/data/tickets.jsonl").read_text("utf-8").splitlines()]
EXAMPLES = {
    split: [
        dspy.Example(text=ticket["text"], category=ticket["category"]).with_inputs("text")
        for ticket in TICKETS
        if ticket["split"] == split
    ]
    for split in ("train", "dev", "test")
}
Category = Literal["billing", "bug", "how_to", "account_access", "feature_request", "cancellation"]
GUIDE = """Sort a support ticket by what the writer wants to happen.

- billing: money between the customer and us: charges, prices, refunds, invoices, payments by card.
- bug: the product does something wrong: error, crash, broken, wrong numbers, it worked before.
- how_to: the writer wants to learn how to do something: where to find a setting, which steps.
- account_access: cannot log in, password reset, locked out, code, owner or admin of the account.
- feature_request: the writer would like something new: add an option, an idea, it would be great.
- cancellation: end the subscription, close or delete the account, not renew, no longer needed."""


class Sort(dspy.Signature):
    """Sort a support ticket."""

    text: str = dspy.InputField()
    category: Category = dspy.OutputField()


@pytest.fixture(autouse=True)
def offline() -> Any:
    with dspy.context(lm=NearestLM()):
        yield


def share_right(program: Any, examples: list[Any]) -> float:
    return mean(float(program(text=example.text).category == example.category) for example in examples)


def shown(count: int, seed: int = 0) -> Any:
    program = dspy.Predict(Sort)
    program.demos = random.Random(seed).sample(EXAMPLES["train"], count)
    return program


def right(example: Any, found: Any, trace: Any = None) -> bool:
    return bool(example.category == found.category)


# It knows nothing but its prompt.


@pytest.mark.slow("many demonstrations")
def test_more_demonstrations_give_better_answers() -> None:
    dev = EXAMPLES["dev"][:48]
    curve = [
        mean(share_right(shown(count, seed), dev) for seed in range(2 if count else 1)) for count in (0, 8, 16, 48)
    ]
    assert curve == sorted(curve)
    assert curve[0] < 0.36
    assert curve[0] + 0.05 < curve[2] < 0.55
    assert curve[0] + 0.12 < curve[3] < 0.75


def test_useful_instructions_give_better_answers() -> None:
    plain, guided = dspy.Predict(Sort), dspy.Predict(Sort.with_instructions(GUIDE))
    assert share_right(plain, EXAMPLES["dev"]) + 0.1 < share_right(guided, EXAMPLES["dev"]) < 0.8


def test_swapped_labels_swap_the_answers() -> None:
    swapped = {"bug": "billing", "billing": "bug"}
    straight, crossed = shown(36), shown(36)
    crossed.demos = [
        example.copy(category=swapped.get(example.category, example.category)) for example in crossed.demos
    ]
    demonstrated = [demo for demo in straight.demos if demo.category in swapped]
    assert demonstrated
    for demo in demonstrated:
        assert straight(text=demo.text).category == demo.category
        assert crossed(text=demo.text).category == swapped[demo.category]


MOODS = [
    ("We won the cup again!", "glad"),
    ("My dog died on Tuesday.", "sad"),
    ("The exam went splendidly, what a day.", "glad"),
    ("They cancelled the concert I had waited for.", "sad"),
]


@each(
    ("text", "mood"),
    [
        ("They canceled teh concrt!", "sad"),
        ("winning the cups", "glad"),
        ("my dogs are dying", "sad"),
        ("a splendid exam", "glad"),
        ("concrt", "sad"),
        ("splenddly", "glad"),
    ],
)
def test_misspelled_and_inflected_words_find_their_demonstration(text: str, mood: str) -> None:
    program = dspy.Predict("text -> mood: Literal['glad', 'sad']")
    program.demos = [dspy.Example(text=text, mood=mood) for text, mood in MOODS]
    assert program(text=text).mood == mood


def test_each_input_field_counts() -> None:
    program = dspy.Predict("text, kind -> queue: Literal['first', 'second']")
    text = "the same long text about nothing in particular"
    program.demos = [
        dspy.Example(text=text, kind="bug", queue="first"),
        dspy.Example(text=text, kind="wish", queue="second"),
    ]
    assert [program(text=text, kind=kind).queue for kind in ("bug", "wish")] == ["first", "second"]


def test_conditions_follow_demonstrations_or_else_their_description() -> None:
    class Check(dspy.Signature):
        text: str = dspy.InputField()
        threatens_lawyer: bool = dspy.OutputField(desc="the writer threatens to go to a lawyer or to court")

    program = dspy.Predict(Check)
    texts = ["My lawyer will see you in court.", "Lovely weather for a walk."]
    assert [program(text=text).threatens_lawyer for text in texts] == [True, False]
    program.demos = [
        dspy.Example(text=texts[0], threatens_lawyer=False),
        dspy.Example(text=texts[1], threatens_lawyer=True),
    ]
    assert [program(text=text).threatens_lawyer for text in texts] == [False, True]


def test_free_texts_are_taken_from_the_inputs() -> None:
    text = "The mill was built in 1720. Its wheel turns once in nine seconds. The miller keeps bees and a goose."
    program = dspy.Predict("document, question -> answer")
    assert (
        program(document=text, question="How fast does the wheel turn?").answer
        == "Its wheel turns once in nine seconds."
    )
    assert program(document=text, question="Which animals does the miller keep?").answer.startswith("The miller")
    documents = ["Bees sleep at night.", "The goose is called Martha."]
    assert dspy.Predict("documents: list[str], question -> answer")(
        documents=documents, question="What is the name of the goose?"
    ).answer.endswith("Martha.")


def test_a_demonstrated_question_gets_the_demonstrated_answer() -> None:
    program = dspy.Predict("question -> answer, year: int")
    program.demos = [
        dspy.Example(question="When was the mill built?", answer="Under Queen Anne.", year=1720),
        dspy.Example(question="Who keeps the bees?", answer="The miller.", year=0),
    ]
    found = program(question="When was the mill bilt?")
    assert (found.answer, found.year) == ("Under Queen Anne.", 1720)


# It never fails.


class Part(BaseModel):
    name: str
    count: int
    inner: Part | None = None


class Level(enum.Enum):
    LOW = "low"
    HIGH = "very high"


class Everything(dspy.Signature):
    """All types that an answer may have."""

    text: str = dspy.InputField()
    notes: list[str] = dspy.InputField()
    flag: bool = dspy.OutputField()
    kind: Literal["a", "b"] = dspy.OutputField()
    level: Level = dspy.OutputField()
    maybe: Literal["x", "y"] | None = dspy.OutputField()
    maybe_text: str | None = dspy.OutputField()
    count: int = dspy.OutputField()
    share: float = dspy.OutputField()
    numbers: list[int] = dspy.OutputField()
    tags: list[str] = dspy.OutputField()
    kinds: list[Literal["a", "b"]] = dspy.OutputField()
    part: Part = dspy.OutputField()
    parts: list[Part] = dspy.OutputField()
    counts: dict[str, int] = dspy.OutputField()
    either: int | str = dspy.OutputField()
    summary: str = dspy.OutputField()


@each("text", ["", "Name: Ada\nPlace: 3 Mill Lane", "42", "(?!)", "] } \" ' ## ]]", "Ünïcödé 漢字 🦆"])
@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(use_json_adapter_fallback=False), dspy.JSONAdapter()])
@pytest.mark.parametrize("demos", [0, 2])
def test_every_type_gets_a_value_that_parses(text: str, adapter: Any, demos: int) -> None:
    program = dspy.ChainOfThought(Everything)
    with dspy.context(adapter=adapter):
        first = program(text=text, notes=[text, "b"])
        program.predict.demos = [dspy.Example(text=f"{number}", notes=[], **first.toDict()) for number in range(demos)]
        found = asyncio.run(program.acall(text=text, notes=[]))
    assert isinstance(found.part, Part)
    assert isinstance(found.share, float)
    assert found.kind in ("a", "b")


def test_xml_and_plain_prompts() -> None:
    with dspy.context(adapter=XMLAdapter()):
        assert dspy.Predict("text -> mood: Literal['glad', 'sad']")(text="so sad").mood == "sad"
    assert NearestLM()("One. Two and one. Three.")[0]
    assert NearestLM()("") == ["Yes."]


def test_agents_terminate() -> None:
    def lookup(place: str) -> str:
        """Tells the weather of a place."""
        return f"rain in {place}"

    assert dspy.ReAct("question -> answer", tools=[lookup], max_iters=2)(question="Weather in Oslo?").answer


# The same prompt gets the same answer.


def answers(lm: Any, **settings: Any) -> list[str]:
    program = shown(16)
    with dspy.context(lm=lm):
        return [program(text=example.text, config=settings).category for example in EXAMPLES["dev"][:20]]


def test_answers_vary_with_the_rollout_alone() -> None:
    plain = answers(NearestLM())
    assert answers(NearestLM(temperature=1.0)) == plain
    first, again, second = (answers(NearestLM(temperature=1.0), rollout_id=number) for number in (1, 1, 2))
    assert first == again
    assert plain != first != second
    assert answers(NearestLM().copy(rollout_id=2, temperature=1.0)) == second
    assert sum(a == b for a, b in zip(plain, first, strict=True)) > 10, "a variation, not another model"


def test_several_answers_of_one_call_vary() -> None:
    program = dspy.Predict("basic_instruction -> proposed_instruction", n=6, temperature=1.0)
    found = program(basic_instruction="Sort the tickets.").completions.proposed_instruction
    assert len(set(found)) > 1
    assert program(basic_instruction="Sort the tickets.").completions.proposed_instruction == found


def test_without_temperature_nothing_varies() -> None:
    program = dspy.Predict("basic_instruction -> proposed_instruction")
    found = [
        program(basic_instruction="Sort the tickets.", config={"rollout_id": rollout}).proposed_instruction
        for rollout in (None, 1, 2, 3, 4)
    ]
    assert len(set(found)) == 1


# It is a `dspy.LM` like any other.


def test_copies_pickles_and_saved_states() -> None:
    lm = NearestLM("other", temperature=0.7)
    for twin in (copy.deepcopy(lm), pickle.loads(pickle.dumps(lm)), NearestLM.load_state(dict(lm.dump_state(), x=1))):
        assert isinstance(twin, dspy.LM)
        assert (twin.model, twin.kwargs["temperature"], twin.cache, twin.num_retries) == ("other", 0.7, False, 0)


def test_a_program_is_saved_with_it(tmp_path: Path) -> None:
    program = shown(4)
    program.set_lm(NearestLM(temperature=0.2))
    program.save(tmp_path / "program.json")
    loaded = dspy.Predict(Sort)
    loaded.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
    assert isinstance(loaded.lm, NearestLM)
    text = EXAMPLES["dev"][0].text
    assert loaded(text=text).category == program(text=text).category


def test_usage_and_streaming() -> None:
    async def collect() -> list[Any]:
        program = dspy.streamify(dspy.Predict("document -> answer"), stream_listeners=[listener], is_async_program=True)
        return [chunk async for chunk in program(document="The goose is called Martha.")]

    listener = dspy.streaming.StreamListener("answer")
    with dspy.context(track_usage=True):
        *chunks, last = asyncio.run(collect())
    assert "".join(chunk.chunk for chunk in chunks) == last.answer == "The goose is called Martha."
    assert len(chunks) >= 5
    usage = last.get_lm_usage()["nearest"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 50


# It serves optimizers, as the model that they tune and as the model that writes prompts.


def graded(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    score = float(gold.category == pred.category)
    feedback = "Right." if score else f"The category should be {gold.category}, not {pred.category}."
    return dspy.Prediction(score=score, feedback=feedback)


def bootstrap(student: Any, train: list[Any], _: list[Any]) -> Any:
    optimizer = dspy.BootstrapFewShot(metric=right, max_bootstrapped_demos=8, max_labeled_demos=24)
    return optimizer.compile(student, trainset=train)


def gepa(student: Any, train: list[Any], dev: list[Any]) -> Any:
    optimizer = dspy.GEPA(metric=graded, max_metric_calls=120, reflection_lm=NearestLM(), reflection_minibatch_size=16)
    return optimizer.compile(student, trainset=train, valset=dev[:16])


@pytest.mark.slow("an optimizer of DSPy each, whose scores are compared")
@pytest.mark.parametrize(
    ("optimize", "gain"),
    [(bootstrap, 0.08), (gepa, 0.05)],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_optimizers_change_the_score_by_at_least_their_gain(optimize: Any, gain: float) -> None:
    untuned = dspy.Predict(Sort)
    tuned = optimize(dspy.Predict(Sort), EXAMPLES["train"], EXAMPLES["dev"])
    before, after = (share_right(program, EXAMPLES["test"][:48]) for program in (untuned, tuned))
    assert before + gain < after < 0.8


def test_reflection_corrects_labels_by_the_feedback() -> None:
    shown = [
        {
            "Inputs": {"text": "the cup is won"},
            "Generated Outputs": {"mood": "sad"},
            "Feedback": "Wrong, it should be glad.",
        },
        {"Inputs": {"text": "a funeral again"}, "Generated Outputs": {"mood": "sad"}, "Feedback": "Right."},
        {"Inputs": {"text": "a cup of joy"}, "Generated Outputs": {"mood": "glad"}, "Feedback": "Right."},
    ]
    with dspy.context(adapter=dspy.JSONAdapter()):
        found = dspy.Predict("current_instruction, examples_with_feedback: list[dict[str, Any]] -> new_instruction")(
            current_instruction="Tell the mood.", examples_with_feedback=shown
        ).new_instruction
    assert '- mood "glad": cup, ' in found
    assert '- mood "sad": funeral' in found


@pytest.mark.parametrize(
    ("feedback", "learned"),
    [
        ("`mood` is 'sad', expected 'proud'.", "proud"),  # no output of the examples, so the feedback alone names it
        ("`song` is 'sad', expected 'proud'.", ""),  # of another field
        ("`song` follows from `mood`, which was already wrong: nothing to fix here.", ""),
        ("`mood` is right.", "sad"),
    ],
)
def test_reflection_learns_the_value_that_feedback_expects_of_the_field(feedback: str, learned: str) -> None:
    shown = [
        {"Inputs": {"text": "the cup is won"}, "Generated Outputs": {"mood": "sad"}, "Feedback": feedback},
        {"Inputs": {"text": "a joke"}, "Generated Outputs": {"mood": "glad"}, "Feedback": "`mood` is right."},
    ]
    with dspy.context(adapter=dspy.JSONAdapter()):
        found = dspy.Predict("current_instruction, examples_with_feedback: list[dict[str, Any]] -> new_instruction")(
            current_instruction="Tell the mood.", examples_with_feedback=shown
        ).new_instruction
    assert '- mood "glad": joke.' in found
    assert {each for each in ("sad", "proud") if f'- mood "{each}"' in found} == ({learned} if learned else set())


def test_a_summary_of_a_text_with_headings_is_no_instruction() -> None:
    text = "Title: The mill\nPublished: 1987\n\nThe mill turns. It has a wheel, and the wheel of the mill turns slowly."
    assert "mill" in (found := dspy.Predict("text -> summary")(text=text).summary)
    assert "- " not in found
