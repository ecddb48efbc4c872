"""Saving and loading the parameters of a program, those of frozen modules included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dspy
from dspy.predict.parameter import Parameter

from dspyer.bond.filling import check_template
from dspyer.errors import InputError, suggestion


def every_parameter(program: dspy.Module) -> list[tuple[str, Any]]:
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
    parameters = dict(every_parameter(program))
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
    for target in (dict(every_parameter(program.deepcopy())), parameters):
        for name, parameter in target.items():
            if name not in state:
                continue
            if isinstance(parameter, dspy.Module):
                parameter.load_state(state[name], allow_unsafe_lm_state=allow_unsafe_lm_state)
                check_template(parameter)
            else:
                parameter.load_state(state[name])
