"""The simulated LMs of `bench.optimize` answer after their prompts alone, and its figures are what was counted."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from dspy.teleprompt.gepa import InstructionProposer

from bench import optimize as bench
from bench.optimizations import FINAL_ALL, FINAL_ROBIN, OURS, Job
from bench.report import put_section, section_of
from bench.simulated_lms import Conventions, ReflectionLM, Reflector, Skill, TaskLM, Worker, rules_in
from bench.simulated_programs import LOOP_SHAPE, PIPELINE, SHAPES, metric_by_hand, predictor

pytestmark = pytest.mark.usefixtures("own_dspy_cache")

STEP = PIPELINE[1]
CONVENTIONS = Conventions(PIPELINE, seed=1)
KNOWN = next(kind for kind in CONVENTIONS.actions["second"] if kind not in CONVENTIONS.unknown["second"])
UNKNOWN = min(CONVENTIONS.unknown["second"])
ADDED = int(CONVENTIONS.actions["second"][UNKNOWN])


def written(value: str, instruction: str = STEP.instruction, demos: tuple[Any, ...] = (), **sampling: Any) -> str:
    """What the second step writes."""
    module = predictor(STEP)
    module.signature = module.signature.with_instructions(instruction)
    module.demos = list(demos)
    lm = TaskLM(Worker(CONVENTIONS), cache=False)
    with dspy.context(lm=lm.copy(**sampling) if sampling else lm):
        return str(module(first=value).second)


def test_a_step_does_what_it_knows_or_is_told() -> None:
    right = {kind: CONVENTIONS.right(STEP, {"first": f"{kind} 10"}) for kind in (KNOWN, UNKNOWN)}
    assert written(f"{KNOWN} 10") == right[KNOWN]
    assert written(f"{UNKNOWN} 10") == STEP.apply(10, 0) != right[UNKNOWN]
    assert written(f"{UNKNOWN} 10", f"{STEP.instruction}\n- {UNKNOWN}: add {ADDED}") == right[UNKNOWN]
    assert written(f"{KNOWN} 10", f"{STEP.instruction}\n- {KNOWN}: add 9") == STEP.apply(10, 9)


def test_a_step_learns_from_a_demonstration() -> None:
    demo = dspy.Example(first=f"{UNKNOWN} 3", second=CONVENTIONS.right(STEP, {"first": f"{UNKNOWN} 3"}))
    assert written(f"{UNKNOWN} 10", demos=(demo,)) == CONVENTIONS.right(STEP, {"first": f"{UNKNOWN} 10"})
    other = dspy.Example(first=f"{KNOWN} 3", second="red 3")
    assert written(f"{UNKNOWN} 10", demos=(other,)) == STEP.apply(10, 0)


def test_a_rollout_guesses_the_same_each_time() -> None:
    guesses = [written(f"{UNKNOWN} 10", rollout_id=number, temperature=1.0) for number in range(12)]
    assert guesses == [written(f"{UNKNOWN} 10", rollout_id=number, temperature=1.0) for number in range(12)]
    assert {STEP.infer(10, guess) for guess in guesses} == {0, 1, 2, 3}


OUTPUT = STEP.apply(10, 0)
OTHER = "`answer` is 'red 1', expected 'red 2'."
REFLECTIONS = [
    # feedback, skill, the rule that it leads to
    (f"`second` is '{OUTPUT}', expected 'red 12'.", Skill(0, 1), {UNKNOWN: 2}),
    (f"`second` is '{OUTPUT}', expected 'red 12'.", Skill(1, 0), {}),
    (f"`second` is '{OUTPUT}', expected 'red 17'.", Skill(0, 1), {UNKNOWN: 7}),  # the input was wrong: a wrong rule
    (f"`second` is '{OUTPUT}', expected 'red 17'.", Skill(0, 1, "plausibly"), {}),
    (f"`second` is '{OUTPUT}', expected 'red {10 + ADDED % 3 + 1}'.", Skill(0, 1, "never"), {}),
    (f"`second` is '{OUTPUT}', expected 'red {10 + ADDED}'.", Skill(0, 1, "never"), {UNKNOWN: ADDED}),
    (OTHER, Skill(0, 1), {}),
    (OTHER, Skill(1, 0), {UNKNOWN: ADDED}),
    (
        f"{OTHER} `second` is the first field known to be wrong; this step may be the cause.",
        Skill(1, 0),
        {UNKNOWN: ADDED},
    ),
    ("`second` is right.", Skill(1, 1), {}),
    ("`second` follows from `first`, which was already wrong: nothing to fix here.", Skill(1, 1), {}),
]


@pytest.mark.parametrize(("feedback", "skill", "rules"), REFLECTIONS)
def test_a_reflection_writes_the_rule_that_its_records_show(feedback: str, skill: Skill, rules: dict[str, int]) -> None:
    reflector = Reflector(CONVENTIONS, skill)
    record = {"Inputs": {"first": f"{UNKNOWN} 10"}, "Generated Outputs": {"second": OUTPUT}, "Feedback": feedback}
    with dspy.context(lm=ReflectionLM(reflector, cache=False)):
        new = InstructionProposer()({"second": STEP.instruction}, {"second": [record]}, ["second"])["second"]
    assert rules_in(new) == rules
    assert new.startswith(STEP.instruction)
    assert new != STEP.instruction
    assert reflector.calls == 1


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_program_that_is_told_all_conventions_is_right(shape: Any) -> None:
    conventions = Conventions(shape.steps, 3)
    program, before = shape.build(), shape.build()
    for step in shape.steps:
        told = "".join(
            f"\n- {kind}: {f'add {action}' if isinstance(action, int) else f'desk {action}'}"
            for kind, action in conventions.actions[step.name].items()
        )
        module = getattr(program, f"{step.name}_step")
        module.signature = module.signature.with_instructions(step.instruction + told)
    examples = shape.examples(conventions, "valid", 16)
    with dspy.context(lm=TaskLM(Worker(conventions), cache=False)):
        assert all(program(question=one.question).answer == one.gold_answer for one in examples)
        assert 0 < sum(before(question=one.question).answer == one.gold_answer for one in examples) < 10


def test_the_metric_by_hand_finds_the_visit_of_a_loop() -> None:
    conventions = Conventions(LOOP_SHAPE.steps, 3)
    (example,) = LOOP_SHAPE.examples(conventions, "valid", 1)
    program, metric = LOOP_SHAPE.build(), metric_by_hand(LOOP_SHAPE)
    with dspy.context(lm=TaskLM(Worker(conventions), cache=False), trace=[]):
        pred = program(question=example.question)
        trace = list(dspy.settings.trace)
    visits = [step for step in trace if "worked" in step[2]]
    for number, step in enumerate(visits):
        said = metric(example, pred, trace, "work_step", [step]).feedback
        wanted = example.gold_values[number + 1]
        assert said in ("`worked` is right.", f"`worked` is {step[2]['worked']!r}, expected {wanted!r}.")


@pytest.mark.slow("optimizations are compared")
def test_the_tables_show_what_was_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--quick", "--parts", "gepa"]) == 0
    printed = capsys.readouterr().out
    assert all(f"| {title} " in printed for title in bench.TITLES.values())


def test_a_ratio_is_that_of_medians_and_takes_the_better_rival() -> None:
    done = [
        (Job("gepa", "pipeline", arm, seed), {"metric": value, "task": 1, "reflections": 1, "reached": True})
        for arm, values in ((OURS, (10, 20, 30)), (FINAL_ROBIN, (80, 40, 50)), (FINAL_ALL, (90,) * 3))
        for seed, value in enumerate(values)
    ]
    results = bench.Results(done)
    row = next(line for line in bench.claims_table(results) if line[0] == "metric calls / final metric")
    assert row[1] == "0.40 (≤ 0.5: yes)"
    assert bench.shown([10, 20, 30]) == "20 (15–25)"


def test_the_goals_that_were_missed_come_first() -> None:
    done = [
        (Job("few_shot", "fork", arm, 0), {"score": score, "task": 1})
        for arm, score in (("BootstrapFewShot(max_rounds=3)", 0.5), ("FewShot(rollouts=3)", 0.55))
    ]
    text = bench.as_text(bench.Results(done))
    missed = "- Demonstrations: fork, `FewShot(rollouts=3)`, accuracy, ratio: 1.10 (≥ 1.2)"
    assert text.index("Goals that were missed") < text.index(missed) < text.index("### Demonstrations")


def test_a_section_is_put_before_the_shortfalls_and_replaced() -> None:
    page = "# Benchmarks\n\n## Runs\n\nOne.\n\n## Where dspyer falls short\n\nHere.\n"
    first = put_section(page, "## Optimizing\n\nTwo.\n\n### More\n\nThree.\n")
    assert first == page.replace("## Where", "## Optimizing\n\nTwo.\n\n### More\n\nThree.\n\n## Where")
    assert section_of(first, "Optimizing") == "## Optimizing\n\nTwo.\n\n### More\n\nThree.\n"
    assert put_section(first, "## Optimizing\n\nFour.\n") == page.replace(
        "## Where", "## Optimizing\n\nFour.\n\n## Where"
    )
    assert put_section(page, section_of(page, "Optimizing")) == page
