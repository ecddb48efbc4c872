"""The simulated LMs of `bench.optimize` answer after their prompts alone, and its figures are what was counted."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from dspy.teleprompt.gepa import InstructionProposer

from bench import optimize as bench
from bench.optimizations import EXPERT, OURS, Job
from bench.report import put_section, section_of
from bench.simulated_lms import Conventions, ReflectionLM, Reflector, Skill, TaskLM, Worker, rules_in
from bench.simulated_programs import PIPELINE, SHAPES, metric_by_hand, predictor

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
        for name, module in program.named_predictors():
            if name.rpartition(".")[2] == f"{step.name}_step":
                module.signature = module.signature.with_instructions(step.instruction + told)
    examples = shape.examples(conventions, "valid", 16)
    with dspy.context(lm=TaskLM(Worker(conventions), cache=False)):
        assert all(program(**one.inputs()).answer == one.gold_answer for one in examples)
        assert sum(before(**one.inputs()).answer == one.gold_answer for one in examples) < 14


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_an_expert_compares_with_gold_unless_an_input_was_wrong(shape: Any) -> None:
    conventions = Conventions(shape.steps, 3)
    program, metric = shape.build(), metric_by_hand(shape)
    steps = {f"{step.name}_step": step for step in shape.steps}
    names = {id(one): name for name, one in program.named_predictors()}
    told = 0
    for example in shape.examples(conventions, "valid", 6):
        with dspy.context(lm=TaskLM(Worker(conventions), cache=False), trace=[]):
            pred = program(**example.inputs())
            trace = list(dspy.settings.trace)
        for called, inputs, outputs in trace:
            name = names.get(id(called))
            if name is None:  # a frozen one
                continue
            said = metric(example, pred, trace, name, [(called, inputs, outputs)]).feedback
            step = next(steps[part] for part in name.split(".") if part in steps)
            wanted = conventions.right(step, {key: str(value) for key, value in inputs.items()})
            right = f"`{step.writes}` is right."
            wrong = f"`{step.writes}` is {outputs[step.writes]!r}, expected {wanted!r}."
            assert said in (
                right if outputs[step.writes] == wanted else wrong,
                "An input was already wrong: nothing to fix here.",
            )
            told += said == wrong
    assert told


@pytest.mark.slow("optimizations are compared")
def test_the_tables_show_what_was_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--quick", "--parts", "gepa", "strict"]) == 0
    printed = capsys.readouterr().out
    assert "### Against an expert's metric" in printed
    assert "| pipeline | 1.00 " in printed, "no proposal yet: the same calls"
    assert "### A metric that is too strict" in printed


def test_a_ratio_is_the_geometric_mean_of_the_seeds() -> None:
    done = [
        (Job("gepa", "pipeline", arm, seed), {"metric": value, "task": 1, "reflections": 1, "gold": 2, "reached": True})
        for arm, values in ((OURS, (20, 10)), (EXPERT, (10, 80)))
        for seed, value in enumerate(values)
    ]
    (line,) = bench.ratios_table(bench.Results(done))[1:]
    assert line == ["pipeline", "0.50", "1.00", "1.00", "2", "2, 2 of 2"]


def test_a_section_is_put_before_the_last_ones_and_replaced() -> None:
    page = "Tables.\n\n## Runs\n\nOne.\n\n## Libraries that were faster\n\nNone was.\n"
    first = put_section(page, "## Optimizing\n\nTwo.\n\n### More\n\nThree.\n")
    assert first == page.replace("## Libraries", "## Optimizing\n\nTwo.\n\n### More\n\nThree.\n\n## Libraries")
    assert section_of(first, "Optimizing") == "## Optimizing\n\nTwo.\n\n### More\n\nThree.\n"
    assert put_section(first, "## Optimizing\n\nFour.\n") == page.replace(
        "## Libraries", "## Optimizing\n\nFour.\n\n## Libraries"
    )
    assert put_section(page, section_of(page, "Optimizing")) == page
