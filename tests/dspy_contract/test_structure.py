"""Rules 1 to 5 of the contract: what a compiled graph looks like to DSPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph
from dspyer.errors import GraphError
from tests.dspy_optimizers.programs import PAIRS, Pair

SET_BY_DSPY = [
    "forward",
    "_compiled",
    "callbacks",
    "history",
    "simba_idx",
    "candidate_programs",
    "trial_logs",
    "score",
    "total_calls",
    "prompt_model_total_calls",
    "mb_candidate_programs",
    "results_best",
    "results_latest",
    "detailed_results",
    "flag_compilation_error_occurred",
]
pairs = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


def test_predictors_are_attributes_named_like_the_nodes() -> None:
    """Rule 1: the names and their order are those of the plain module."""
    for pair in PAIRS:
        program = pair.graph()

        names = [name for name, _ in program.named_predictors()]
        assert names == list(pair.predictors) == [name for name, _ in pair.by_hand().named_predictors()]
        for name, predictor in program.named_predictors():
            value: Any = program
            for part in name.split("."):
                value = vars(value)[part]
            assert value is predictor, f"{pair.name}: {name}"


@pairs
def test_names_and_order_are_the_same_in_every_copy(pair: Pair) -> None:
    """Rule 2: they are the keys of saved files and the components of GEPA; MIPROv2 goes by the order."""
    program = pair.graph()

    for other in (pair.graph(), program.deepcopy(), program.reset_copy(), program.deepcopy().deepcopy()):
        assert [name for name, _ in other.named_predictors()] == list(pair.predictors)
    program.map_named_predictors(lambda predictor: predictor)  # evaluates the names


def refused(name: str) -> bool:
    """Whether no node may have a name, with an error that says it."""
    try:
        Graph().add_node(name, dspy.Predict("question -> answer")).add_path(START, name, END).compile()
    except (GraphError, ValueError) as error:
        return name in str(error) or repr(name) in str(error)
    return False


def test_names_that_cannot_be_attributes_are_refused() -> None:
    """Rule 2: DSPy evaluates the names."""
    assert not [name for name in ("it's", 'a"b', "a b", "a.b", "", "1st", "a\\b") if not refused(name)]


def test_attributes_that_optimizers_set_are_free() -> None:
    """Rule 3: the topology is frozen, not the module; no node may take the name."""
    for name in SET_BY_DSPY:
        program = PAIRS[0].graph()
        value = [] if name in {"callbacks", "history"} else {"mark": 1}
        setattr(program, name, value)
        assert getattr(program, name) is value or name == "forward", name
    assert not [name for name in SET_BY_DSPY if not refused(name)]


def test_program_is_no_container_and_has_no_iterators() -> None:
    """Rule 4: MIPROv2's source reader iterates over every attribute, and takes a module with items for a list."""
    for program in (pair.graph() for pair in PAIRS):
        for name in ("__iter__", "__getitem__", "__len__", "__contains__"):
            assert not hasattr(type(program), name), name
        assert "__eq__" not in {name for kind in type(program).__mro__[:-1] for name in vars(kind)}
        assert not [name for name, value in vars(program).items() if isinstance(value, Iterator)]


def test_program_is_a_module_and_no_predictor() -> None:
    """Rule 5: OpenInference looks up every subclass of Predict in DSPy itself."""
    program = PAIRS[0].graph()

    assert isinstance(program, dspy.Module)
    assert not isinstance(program, dspy.Predict)
    assert not any(issubclass(kind, dspy.Predict) for kind in type(program).__mro__)
