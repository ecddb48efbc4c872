"""Checks of the examples of an optimization, before the first run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from dspyer import CompiledGraph
from dspyer.errors import InputError, brief, with_article
from dspyer.graph.spec import check_inputs
from dspyer.lm.not_public import INPUT_KEYS


def validate_examples(program: dspy.Module, examples: Sequence[Any], name: str) -> None:
    """Refuse examples with which a program cannot be called. DSPy scores each such run 0, and goes on.

    Args:
        program: the program; only the inputs of a compiled graph are known before it runs.
        examples: the examples.
        name: what the user calls them, `"trainset"` or `"valset"`.

    Raises:
        TypeError: if one is no `dspy.Example`.
        ValueError: if one has no inputs, or not those of the graph.
    """
    for index, example in enumerate(examples):
        where = f"{name}[{index}]"
        if not isinstance(example, dspy.Example):
            kind = with_article(type(example).__name__)
            raise TypeError(f"{where} is {kind}: give dspy.Example(**values).with_inputs(...), not {brief(example)}")
        if getattr(example, INPUT_KEYS) is None:
            inputs = program.graph.inputs if isinstance(program, CompiledGraph) else ()
            names = ", ".join(repr(field) for field in inputs if field in example) or "..."
            raise ValueError(f"{where} does not say which of its columns are inputs: call example.with_inputs({names})")
        if isinstance(program, CompiledGraph):
            try:
                check_inputs(program.graph, example.inputs().keys())
            except InputError as error:
                raise InputError(f"{where}: {error}") from None
