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

Item = TypeVar("Item")
Made = TypeVar("Made")


def validate_examples(program: dspy.Module, examples: Sequence[Any], name: str) -> None:
    """Refuse examples with which a program cannot be called. DSPy scores each such run 0, and goes on.

    Args:
        program: the program; only the inputs of a compiled graph are known before it runs.
        examples: the examples.
        name: what the user calls them, `"trainset"` or `"valset"`.

    Raises:
        TypeError: if one is no `dspy.Example`.
        ValueError: if there is none, or if one has no inputs, or not those of the graph.
    """
    if not examples:
        raise ValueError(f"the {name} is empty: give it some examples with gold")
    for index, example in enumerate(examples):
        where = f"{name}[{index}]" if name != "example" else "the example"
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
