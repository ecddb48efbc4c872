"""What each LM call of a run has used, by the execution that made it: DSPy itself counts by language model only.

DSPy appends an entry with usage and cost to the history of each module that an LM call is made in (`caller_modules`). A
recorder is one of these for the time of a run. It keeps numbers only, so a run without LM calls pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import dspy

executing: ContextVar[str] = ContextVar("dspyer_executing", default="")
"""The execution that runs here, after those that it is inside of. It is set and not reset: what follows an execution in
the same task is another one, or the node around the run, whose driver restores it."""


@contextmanager
def executing_restored() -> Iterator[None]:
    """A block after which the execution around it runs here again."""
    before = executing.get()
    try:
        yield
    finally:
        executing.set(before)


class LMRecord(NamedTuple):
    """One LM call of a run.

    Attributes:
        execution: the execution in the outermost graph of the run.
        model: the language model.
        tokens: tokens of prompt and response, 0 for a response from a cache.
        cost: US dollars; None if DSPy knows no price.
        cached: whether the response came from DSPy's cache.
    """

    execution: str
    model: str
    tokens: int
    cost: float | None
    cached: bool


class LMRecorder:
    """Gets the history entries of a run's LM calls, and keeps a record of each. May be used from several threads.

    Attributes:
        records: the records in order of arrival.
        history: where DSPy appends entries; it stays empty.
    """

    def __init__(self) -> None:
        self.records: list[LMRecord] = []
        self.history: Any = _Entries(self.records)


class _Entries(list[Any]):
    """A history that makes a record of each entry and keeps none."""

    def __init__(self, records: list[LMRecord]) -> None:
        super().__init__()
        self._records = records

    def append(self, entry: Mapping[str, Any]) -> None:
        """Make a record of an entry."""
        usage = entry.get("usage") or {}
        execution = executing.get().partition("/")[0].partition("[")[0]
        record = LMRecord(execution, str(entry.get("model")), total_tokens(usage), entry.get("cost"), not usage)
        self._records.append(record)


def total_tokens(usage: Mapping[str, Any]) -> int:
    """The tokens of prompt and response together.

    Example:
        >>> total_tokens({"prompt_tokens": 2, "completion_tokens": 3})
        5
    """
    total = usage.get("total_tokens")
    if isinstance(total, int):
        return total
    parts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")]
    return sum(part for part in parts if isinstance(part, int))


@contextmanager
def record_lm_calls() -> Iterator[LMRecorder]:
    """Records the LM calls of a block, which is one run. At its end they are added to those of the run around it."""
    modules = dspy.settings.caller_modules or []
    around = [one for one in modules if isinstance(one, LMRecorder)]
    recorder, before = LMRecorder(), executing.get()
    executing.set("")
    try:
        with dspy.context(caller_modules=[*[one for one in modules if one not in around], recorder]):
            yield recorder
    finally:
        executing.set(before)
        outer = before.partition("/")[0].partition("[")[0]
        for one in around:
            one.records += [record._replace(execution=outer) for record in recorder.records]
