"""What each LM call of a run has used, by the execution that made it: DSPy itself counts by language model only.

DSPy appends an entry with usage and cost to the history of each module that an LM call is made in (`caller_modules`). A
recorder is one of these for the time of a run. It keeps numbers only, so a run without LM calls pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import dspy

from dspyer.display.running import LMUse

FALLBACK = "fallback"
"""The key of a history entry that says whether the response came from a backup."""


class Executing:
    """The execution that runs in a context, after those that it is inside of.

    A driver that runs one node after the other changes its own object: setting a context variable for each of them
    would take 1 µs. What runs at the same time as something else gets an object of its own.
    """

    __slots__ = ("id",)

    def __init__(self, execution: str = "") -> None:
        self.id = execution

    def enter(self, execution: str) -> None:
        """Name the execution that runs here next."""
        self.id = execution
        if executing.get() is not self:
            executing.set(self)


executing: ContextVar[Executing | None] = ContextVar("dspyer_executing", default=None)


def executing_id() -> str:
    """The execution that runs here; "" outside of any."""
    here = executing.get()
    return "" if here is None else here.id


def execute_apart() -> None:
    """Give what runs here an object of its own: it may still run when the driver is at the next execution."""
    executing.set(Executing(executing_id()))


@contextmanager
def executing_here() -> Iterator[Executing]:
    """A block that runs executions, after which the one around it runs here again."""
    before = executing.get()
    try:
        yield Executing()
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
        fallback: whether it came from another LM than the first one of `dspyer.lms.reliable`.
    """

    execution: str
    model: str
    tokens: int
    cost: float | None
    cached: bool
    fallback: bool = False


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
        execution = _outermost(executing_id())
        tokens, fallback = token_counts(usage).total, entry.get(FALLBACK, False)
        record = LMRecord(execution, str(entry.get("model")), tokens, entry.get("cost"), not usage, fallback)
        self._records.append(record)


class LMWatcher:
    """A module to DSPy that passes on what each LM call has used, and keeps nothing.

    Attributes:
        history: where DSPy appends entries; it stays empty.
    """

    def __init__(self, note: Callable[[LMUse], object]) -> None:
        self.history: Any = _Passed(note)


class _Passed(list[Any]):
    """A history that passes on what an entry says of tokens and cost."""

    def __init__(self, note: Callable[[LMUse], object]) -> None:
        super().__init__()
        self._note = note

    def append(self, entry: Mapping[str, Any]) -> None:
        """Pass on an entry; a response from a cache has no usage, and costs nothing."""
        usage = entry.get("usage") or {}
        self._note(LMUse(token_counts(usage).total, entry.get("cost") if usage else 0.0))


class TokenCounts(NamedTuple):
    """The tokens of one response: of its prompt, of the response, and of both."""

    prompt: int
    response: int
    total: int


def token_counts(usage: Mapping[str, Any]) -> TokenCounts:
    """The tokens in the usage of a response, by the names of either of OpenAI's protocols; 0 where there is no number.

    Example:
        >>> token_counts({"prompt_tokens": 2, "completion_tokens": 3}).total
        5
    """
    prompt = usage.get("prompt_tokens") or usage.get("input_tokens") or 0
    response = usage.get("completion_tokens") or usage.get("output_tokens") or 0
    return TokenCounts(prompt, response, usage.get("total_tokens") or prompt + response)


@contextmanager
def record_lm_calls() -> Iterator[LMRecorder]:
    """Records the LM calls of a block, which is one run. At its end they are added to those of the run around it."""
    modules = dspy.settings.caller_modules or []
    around = [one for one in modules if isinstance(one, LMRecorder)]
    recorder, before, execution = LMRecorder(), executing.get(), _outermost(executing_id())
    executing.set(Executing())
    try:
        with dspy.context(caller_modules=[*[one for one in modules if one not in around], recorder]):
            yield recorder
    finally:
        executing.set(before)
        for one in around:
            one.records += [record._replace(execution=execution) for record in recorder.records]


def _outermost(execution: str) -> str:
    """The execution in the outermost graph; of an item, that of its map."""
    return execution.partition("/")[0].partition("[")[0]
