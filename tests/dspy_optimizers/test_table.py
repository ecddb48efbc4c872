"""Every optimizer gives the same for a graph and for the same program as a plain module: prompts, demos, score.

The language model is the test's own. It answers from its prompt alone, so that one prompt that differs changes what
comes after it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.dspy_optimizers.lm import NotingLM, Sent
from tests.dspy_optimizers.programs import PAIRS, Pair, exact
from tests.dspy_optimizers.table import ROW, ROWS, Row, gepa

EVERYWHERE = {"BootstrapFewShot", "GEPA"}  # the others on the loop, which has a fork, a join, a map and two routers
LOOP = next(pair for pair in PAIRS if pair.name == "loop")
DEAR = {"COPRO", "SIMBA", "GEPA", "BootstrapFewShotWithRandomSearch"}
VARIANTS = {"GEPA_one_by_one": PAIRS[0], "MIPROv2_zero_shot": PAIRS[0], "MIPROv2_program_aware": PAIRS[0]}
SHORT = dataclasses.replace(ROW["GEPA"], tune=functools.partial(gepa, max_metric_calls=12))
CASES = [
    *(
        pytest.param(
            [LOOP],
            row,
            id=f"loop-{row.name}",
            marks=[pytest.mark.slow("two optimizations of a loop of 4 predictors, and 4 evaluations")]
            * (row.name in DEAR),
        )
        for row in ROWS
        if row.name not in VARIANTS
    ),
    *(pytest.param([pair], ROW[name], id=f"{pair.name}-{name}") for name, pair in VARIANTS.items()),
    *(pytest.param([pair], SHORT, id=f"{pair.name}-GEPA") for pair in PAIRS if pair is not LOOP),
    pytest.param(PAIRS[:2], ROW["BootstrapFewShot"], id="chain-fork-BootstrapFewShot"),
    pytest.param(PAIRS[3:4], ROW["BootstrapFewShot"], id="map-BootstrapFewShot"),
    pytest.param(PAIRS[4:], ROW["BootstrapFewShot"], id="bound-nested-BootstrapFewShot"),
]
SAVED = {"BootstrapFewShot", "GEPA", "BootstrapFinetune"}  # demonstrations, instructions, LMs: all that a file has


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "optimizing.md"
ELSEWHERE = {"Ensemble", "ReAnchor"}  # in `test_traps`
NOT_USABLE = {"AvatarOptimizer", "SignatureOptimizer", "FinetuneTeleprompter", "Teleprompter"}


def test_every_optimizer_of_dspy_is_in_the_tables() -> None:
    found = {
        name
        for module in pkgutil.walk_packages(dspy.teleprompt.__path__, "dspy.teleprompt.")
        for name, value in vars(importlib.import_module(module.name)).items()
        if inspect.isclass(value) and issubclass(value, dspy.teleprompt.Teleprompter)
    }
    rows = {row.name.partition("_")[0] for row in ROWS}
    assert found - NOT_USABLE - ELSEWHERE == rows
    everywhere, others = re.findall(r"^\| (\w+(?:, \w+)+) \| a", PAGE.read_text(), re.MULTILINE)
    assert set(everywhere.split(", ")) == EVERYWHERE
    assert set(others.split(", ")) == rows - EVERYWHERE
    with pytest.raises(AttributeError, match="TypedPredictor"):  # once it works, it needs a row
        dspy.teleprompt.AvatarOptimizer(metric=exact)


@dataclass
class Tuned:
    """What an optimizer made of a program."""

    program: Any
    lm: NotingLM
    sent: list[Sent]  # while it was tuned

    @property
    def state(self) -> dict[str, Any]:
        return {name: predictor.dump_state() for name, predictor in self.program.named_predictors()}

    def evaluate(self, pair: Pair) -> Any:
        """Score and answers; what is sent is noted in `lm.sent`."""
        self.lm.sent.clear()
        with dspy.context(lm=self.lm):
            result = dspy.Evaluate(devset=pair.trainset[5:], num_threads=1, display_progress=False)(
                self.program, metric=exact
            )
        return result.score, [(dict(prediction), score) for _, prediction, score in result.results]


def tune(program: Any, pair: Pair, row: Row) -> Tuned:
    lm = NotingLM()
    with dspy.context(lm=lm):
        if row.pins_lm:
            program.set_lm(lm)
        tuned = row.tune(program, pair.trainset, lm)
    return Tuned(tuned, lm, list(lm.sent))


def by_hand(pair: Pair) -> Any:
    """The plain program, with the source of the graph: optimizers put it into their prompts."""
    made, program = type(pair.graph()), pair.by_hand()
    # `inspect` finds the source of a class by its module and its name
    program.__class__ = type(made.__name__, (type(program),), {"__module__": made.__module__, "made": made})
    assert inspect.getsource(type(program)) == inspect.getsource(made)
    return program


@pytest.mark.parametrize(("pairs", "row"), CASES)
def test_graph_and_hand_written_module_are_tuned_alike(pairs: list[Pair], row: Row, tmp_path: Path) -> None:
    for pair in pairs:
        check_tuned_alike(pair, row, tmp_path)


def check_tuned_alike(pair: Pair, row: Row, folder: Path) -> None:
    hand, graph = tune(by_hand(pair), pair, row), tune(pair.graph(), pair, row)

    if pair.name in {"fork", "loop", "map"}:  # branches run at the same time
        assert graph.lm.prompts() == hand.lm.prompts()
    else:
        assert graph.sent == hand.sent
    assert list(graph.state) == list(pair.predictors)
    assert graph.state == hand.state
    assert_learned(graph, pair, row)
    assert_trained_alike(graph, hand)
    outcome = graph.evaluate(pair)
    assert outcome == hand.evaluate(pair)
    assert graph.lm.prompts() == hand.lm.prompts()
    copied = Tuned(graph.program.deepcopy(), graph.lm, [])
    assert copied.state == graph.state
    assert copied.evaluate(pair) == outcome
    if row.name in SAVED:
        assert_files_agree(graph, hand, pair, folder)


def assert_learned(tuned: Tuned, pair: Pair, row: Row) -> None:
    before = {name: predictor.signature.instructions for name, predictor in pair.by_hand().named_predictors()}
    learned = [
        bool(predictor.demos) or predictor.signature.instructions != before[name]
        for name, predictor in tuned.program.named_predictors()
    ]
    assert {"all": all(learned), "some": any(learned), "none": True}[row.learns], learned


def assert_trained_alike(graph: Tuned, hand: Tuned) -> None:
    """Finetuning and reinforcement get the same data, in the same order, and the tuned model is in use."""
    assert graph.lm.provider.jobs == hand.lm.provider.jobs
    ours, theirs = (getattr(tuned.lm, "reinforced", None) for tuned in (graph, hand))
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert ours.groups == theirs.groups
        assert {len(item["group"]) for item in ours.groups} == {2}
    if graph.lm.provider.jobs:
        assert {predictor.lm.model for predictor in graph.program.predictors()} == {"fake/model-tuned"}


def assert_files_agree(graph: Tuned, hand: Tuned, pair: Pair, folder: Path) -> None:
    for name in ("state.json", "state.pkl"):
        for giver, taker in ((graph, pair.by_hand()), (hand, pair.graph()), (graph, pair.graph())):
            giver.program.save(folder / name)
            taker.load(folder / name, allow_pickle=True, allow_unsafe_lm_state=True)
            assert Tuned(taker, graph.lm, []).state == graph.state
