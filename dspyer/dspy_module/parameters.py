"""The parameters of a program: listing and loading them, copies that keep shared modules shared, copies to pickle."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import dspy

from dspyer.dspy_module.not_public import COMPILED, Parameter
from dspyer.dspy_module.predictors import HOLDING, parts_with_paths, walk
from dspyer.dspy_module.prompt_templates import check_template
from dspyer.errors import InputError, suggestion

ProgramT = TypeVar("ProgramT", bound=dspy.Module)


# --- listing and loading


def all_parameters(program: dspy.Module) -> list[tuple[str, Any]]:
    """The parameters of a program by name: those that DSPy lists, then those of modules that an optimizer has compiled.

    DSPy leaves out the parameters of a compiled sub-module. That is right for tuning, but would lose them when the
    program is saved or given a language model. The walk is DSPy's own, one level into lists and dicts: what optimizers
    store on a program deeper than that, such as the candidates that they tried, is not part of it.
    """
    found = {id(parameter): (name, parameter) for name, parameter in program.named_parameters()}
    for name, parameter in walk_parameters(program):
        found.setdefault(id(parameter), (name, parameter))
    return list(found.values())


def walk_parameters(module: dspy.Module, tuned: bool = False) -> Iterator[tuple[str, Any]]:
    """The parameters of a module with their paths, one for each path to them.

    Also those of compiled sub-modules, unless only those are asked for that optimizers may change.
    """
    for name, value in parts_with_paths("", module):
        one_level = isinstance(value, list | tuple | dict)
        for path, item in parts_with_paths(name, value) if one_level else [(name, value)]:
            if isinstance(item, Parameter):
                yield path, item
            elif isinstance(item, dspy.Module) and not (tuned and getattr(item, COMPILED, False)):
                own = tuned and type(item).named_parameters is not dspy.Module.named_parameters
                inner = item.named_parameters() if own else walk_parameters(item, tuned)
                yield from ((f"{path}.{name}", parameter) for name, parameter in inner)


def parameter_names(program: dspy.Module) -> dict[int, str]:
    """The name of each parameter of a program by its id: the first of its paths."""
    return {id(parameter): name for name, parameter in reversed([*walk_parameters(program)])}


def load_parameters(program: dspy.Module, state: dict[str, Any], allow_unsafe_lm_state: bool) -> None:
    """Loads a state, first into a copy, so that a state that does not fit changes nothing.

    Raises `InputError` if the state lacks a parameter that optimizers may change, or has one that the program lacks.
    """
    parameters = dict(all_parameters(program))
    tuned = {name for name, _ in program.named_parameters()}
    missing = [name for name in parameters if name not in state and name in tuned]
    extra = [name for name in state if name not in parameters and name != "metadata"]
    if missing or extra:
        differences = [f"it has nothing for {', '.join(map(repr, missing))}"] if missing else []
        if extra:
            differences.append(f"it has {', '.join(map(repr, extra))}, which this graph has not")
        hints = "".join(suggestion(name, missing) for name in extra)
        raise InputError(
            f"this state belongs to another graph: {'; '.join(differences)}.{hints} Give the nodes the names that "
            "they had then"
        )
    for target in (dict(all_parameters(program.deepcopy())), parameters):
        for name, parameter in target.items():
            if name not in state:
                continue
            if isinstance(parameter, dspy.Module):
                parameter.load_state(state[name], allow_unsafe_lm_state=allow_unsafe_lm_state)
                check_template(parameter)
            else:
                parameter.load_state(state[name])


# --- copies


def copy_tree(modules: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """Copies modules and other attributes together, so that a part that two of them share is shared by their copies.

    A part that cannot be copied (a client, a lock) is shared with the original. `dspy.Module.deepcopy` would in that
    case copy each attribute alone, so that one predictor becomes two. `memo` is that of `copy.deepcopy`.
    """
    leaves = _leaves(modules)
    histories = [vars(leaf).get("history") for leaf in leaves if isinstance(leaf, dspy.BaseLM)]
    memo.update({id(history): [] for history in histories if history})  # the copy of an LM begins with none, as in DSPy
    known = dict(memo)
    try:
        return copy.deepcopy(modules, memo)
    except Exception:  # noqa: BLE001 - whatever a third-party object raises when it is copied
        memo.clear()
        memo.update(known)
        for value in leaves:
            try:
                copy.deepcopy(value, dict(known))
            except Exception:  # noqa: BLE001 - the same as above: this one is shared
                memo[id(value)] = value
        return copy.deepcopy(modules, memo)


def without_histories(program: ProgramT) -> ProgramT:
    """A program to pickle: a copy whose language models have no histories, which hold every prompt of the process.

    The program itself if there is no history to leave out.
    """
    memo: dict[int, Any] = {}
    for value in _leaves(program):
        if isinstance(value, dspy.BaseLM) and value.history:
            memo[id(value)] = twin = copy.copy(value)
            twin.history = []
    return copy.deepcopy(program, memo) if memo else program


def _leaves(value: object) -> list[Any]:
    """All values in modules and plain containers that are no modules or plain containers themselves."""
    return [part for _, part in walk(value) if not isinstance(part, HOLDING)]
