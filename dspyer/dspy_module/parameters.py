"""Saving and loading the parameters of a program, those of frozen modules included."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import dspy
from dspy.predict.parameter import Parameter

from dspyer.dspy_module.prompt_templates import check_template
from dspyer.errors import InputError, suggestion


def all_parameters(program: dspy.Module) -> list[tuple[str, Any]]:
    """The parameters of a program by name: those that DSPy lists, then those of modules that an optimizer has compiled.

    DSPy leaves out the parameters of a compiled sub-module, which is right for tuning, but would lose them when the
    program is saved or given a language model. The walk is DSPy's own, one level into lists and dicts: what optimizers
    leave on a program deeper than that, such as the candidates they tried, is no part of it.
    """
    found = dict(program.named_parameters())
    known = {id(parameter) for parameter in found.values()}
    for name, parameter in _parameters(program):
        if id(parameter) not in known:
            known.add(id(parameter))
            found[name] = parameter
    return list(found.items())


def _parameters(module: dspy.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if isinstance(value, list | tuple):
            items = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            items = [(f"{name}['{key}']", item) for key, item in value.items()]
        else:
            items = [(name, value)]
        for path, item in items:
            if isinstance(item, Parameter):
                yield path, item
            elif isinstance(item, dspy.Module):
                yield from ((f"{path}.{inner}", parameter) for inner, parameter in _parameters(item))


def load_parameters(program: dspy.Module, state: dict[str, Any], allow_unsafe_lm_state: bool) -> None:
    """Loads a state, first into a copy, so that a state that does not fit changes nothing.

    Raises:
        InputError: if the state lacks a parameter of the program that is open to optimizers, or has one that the
        program lacks.
    """
    parameters = dict(all_parameters(program))
    tuned = {name for name, _ in program.named_parameters()}
    missing = [name for name in parameters if name not in state and name in tuned]
    extra = [name for name in state if name not in parameters and name != "metadata"]
    if missing or extra:
        parts = [f"it has nothing for {', '.join(map(repr, missing))}"] if missing else []
        if extra:
            parts.append(f"it has {', '.join(map(repr, extra))}, which this graph has not")
        hints = "".join(suggestion(name, missing) for name in extra)
        raise InputError(
            f"this state belongs to another graph: {'; '.join(parts)}.{hints} Give the nodes the names that "
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


# --------------------------------------------------------------------------------------------------------------------
# Copies of modules that keep what is shared shared, and copies to be pickled.

ProgramT = TypeVar("ProgramT", bound=dspy.Module)


def copy_tree(modules: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """Copies modules together, so that a part that two of them share is still shared by their copies.

    What cannot be copied (a client, a lock) is shared with the original. `dspy.Module.deepcopy` would in that case
    copy each attribute alone, so that one predictor becomes two.

    Args:
        modules: modules and other attributes by name.
        memo: the memo of `copy.deepcopy`.

    Returns:
        The copies by name.
    """
    known = dict(memo)
    try:
        return copy.deepcopy(modules, memo)
    except Exception:  # noqa: BLE001 - whatever a third-party object raises when it is copied
        memo.clear()
        memo.update(known)
        for value in _attributes(modules, set()):
            try:
                copy.deepcopy(value, dict(known))
            except Exception:  # noqa: BLE001 - the same as above: this one is shared
                memo[id(value)] = value
        return copy.deepcopy(modules, memo)


def without_histories(program: ProgramT) -> ProgramT:
    """A program to be pickled: its language models have no histories, which hold every prompt of the process.

    Args:
        program: the program; it keeps its histories.

    Returns:
        A copy, in which what is shared is shared; the program itself if there is no history to leave out.
    """
    memo: dict[int, Any] = {}
    for value in _attributes(vars(program), set()):
        if isinstance(value, dspy.BaseLM) and value.history:
            memo[id(value)] = twin = copy.copy(value)
            twin.history = []
    return copy.deepcopy(program, memo) if memo else program


def _attributes(value: Any, seen: set[int]) -> list[Any]:
    """All values in modules and plain containers that are no modules or plain containers themselves."""
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, dspy.Module):
        inner = list(vars(value).values())
    elif isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, (list, tuple)):
        inner = list(value)
    else:
        return [value]
    return [leaf for item in inner for leaf in _attributes(item, seen)]
