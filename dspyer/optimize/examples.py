"""The examples of an optimization: they are checked before the first run, and run in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import dspy

from dspyer import CompiledGraph
from dspyer.errors import InputError, brief, error_text, with_article
from dspyer.graph.spec import check_inputs
from dspyer.lm.not_public import INPUT_KEYS
from dspyer.optimize.field_metric import FieldMetric

Item = TypeVar("Item")
Made = TypeVar("Made")


def validate(program: Any, metric: Any, who: str = "", **named: Sequence[Any]) -> None:
    """Refuse what a program cannot be run and judged with. DSPy scores each such run 0, and goes on.

    Examples are named as the user calls them. `who` takes nothing but programs and metrics by field.
    """
    if who and not isinstance(program, dspy.Module):
        kind, form = with_article(type(program).__name__), f"{who}(program, {', '.join(named)}, metric)"
        raise TypeError(f"{who} takes a program, and got {kind}: call {form}")
    if who and not isinstance(metric, FieldMetric):
        raise TypeError(f"{who} takes a metric by field, as optimize.by_field makes it, and got {brief(metric)}")
    for name in [one for one, examples in named.items() if not examples and one != "valset"]:
        raise ValueError(f"the {name} is empty: give it some examples with gold")
    every = [(f"{name}[{at}]", one) for name, examples in named.items() for at, one in enumerate(examples)]
    for where, example in every:
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
    if isinstance(metric, FieldMetric):
        metric.validate(program, [example for _, example in every])


def told(error: BaseException) -> str:
    """An error as lists show it, with the places that it came from."""
    places = f" ({'; '.join(notes)})" if (notes := getattr(error, "__notes__", ())) else ""
    return f"{type(error).__name__}: {error_text(error)}{places}"


def in_threads(function: Callable[[Item], Made], items: Iterable[Item], threads: int | None = None) -> list[Made]:
    """The results of a function, in the order of the items, in DSPy's number of threads and with its settings."""
    with ThreadPoolExecutor(threads or dspy.settings.num_threads or 1) as pool:
        made = [pool.submit(copy_context().run, function, item) for item in items]
        try:
            return [one.result() for one in made]
        finally:
            pool.shutdown(cancel_futures=True)  # what is raised here ends it, such as a budget or Ctrl-C
