"""The LM calls of a run that are not written yet, and the rows that hold them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Literal, get_args

from dspyer.errors import LMCallError, brief, with_article
from dspyer.events import LMCall
from dspyer.ids import is_within
from dspyer.persistence.lm_calls import StoredCall, encode_call, usage_alone
from dspyer.persistence.row_codec import DraftRow
from dspyer.persistence.rows import LMCallsRow

Choose = Callable[[LMCall], LMCall | None]
"""Decides what is written of an LM call; None for nothing."""

Recorded = Literal["usage", "full", "none"]
"""How much of LM calls is written."""


def check_recorded(given: Any) -> Recorded | Choose:
    """Return what an option `record_lm_calls=` means; raise `TypeError` or `ValueError` for anything else."""
    if isinstance(given, str) and given in get_args(Recorded):
        level: Recorded = given  # type: ignore[assignment]  # it is one of them
        return level
    form = (
        "give 'usage' (models, tokens, cost and times), 'full' (messages and responses, too), 'none', or a function "
        "that gets each LMCall and returns what to write, or None"
    )
    if isinstance(given, str):
        raise ValueError(f"record_lm_calls={given!r} is unknown: {form}")  # noqa: TRY004 - the type is right
    if not callable(given) or isinstance(given, type):
        raise TypeError(f"record_lm_calls={brief(given)}: {form}")
    if inspect.iscoroutinefunction(given):
        raise TypeError(f"record_lm_calls={brief(given)} is async: {form}. It is called while a node runs")
    function: Choose = given
    return function


StoredCalls = tuple[Sequence[StoredCall], Mapping[str, bytes]]
"""LM calls on their way to a row, and the long texts in them by id."""


class LMCallLog:
    """LM calls on their way to the rows of a run. May be used from several threads.

    Args:
        recorded: how much of them is written, or what decides it.
        redacts: whether the graph hides values. Then readers show messages and responses only if a function has
            decided about them.
    """

    def __init__(self, recorded: Recorded | Choose, redacts: bool) -> None:
        self.wants_texts = recorded not in ("usage", "none")
        self._choose = None if isinstance(recorded, str) else recorded
        self._hidden = redacts and self._choose is None
        self._waiting: dict[str, list[LMCall]] = {}
        self._lock = Lock()
        self._failed: tuple[LMCall, Exception] | None = None

    def add(self, call: LMCall) -> LMCall:
        """Take a call to be written; return it as the run shows it."""
        written: LMCall | None = call
        if self._choose is not None:
            try:
                written = _checked(self._choose(call), call)
            except Exception as error:  # noqa: BLE001 - raised by the next write: DSPy drops what a callback raises
                written = usage_alone(call)
                self._failed = self._failed or (written, error)
        if written is not None:
            with self._lock:
                self._waiting.setdefault(written.execution, []).append(written)
        return usage_alone(call) if written is None or self._hidden else written

    def take_error(self) -> LMCallError | None:
        """Return, once, the error of a function that has raised, or has returned neither a call nor None."""
        failed, self._failed = self._failed, None
        if failed is None:
            return None
        error = LMCallError(*failed)
        error.__cause__ = failed[1]
        return error

    # --- rows

    @property
    def waits(self) -> bool:
        """Whether calls wait for a row."""
        return bool(self._waiting)

    def calls_of(self, execution: str, taken: list[LMCall]) -> StoredCalls:
        """Take the calls of an execution for its commit, and add them to `taken`."""
        with self._lock:
            calls = self._waiting.pop(execution, [])
        taken += calls
        return self._encoded(calls)

    def rows_inside(self, execution: str, taken: list[LMCall]) -> list[DraftRow]:
        """Take the calls that were made inside of an execution and have no row yet: of attempts that failed there."""
        return self._rows(lambda name: name != execution and is_within(name, execution), taken)

    def put_back(self, taken: list[LMCall]) -> None:
        """Let calls wait again that were taken with commits whose rows were not written."""
        with self._lock:
            for call in taken:
                self._waiting.setdefault(call.execution, []).append(call)
        taken.clear()

    def rows_of(self, execution: str) -> list[DraftRow]:
        """Take the calls of an execution, and of those inside of it."""
        return self._rows(lambda name: is_within(name, execution))

    def all_rows(self) -> list[DraftRow]:
        """Take all calls."""
        return self._rows(lambda _: True)

    def _rows(self, wanted: Callable[[str], bool], taken_by: list[LMCall] | None = None) -> list[DraftRow]:
        if not self._waiting:
            return []
        with self._lock:
            names = [name for name in self._waiting if wanted(name)]
            taken = [(name, self._waiting.pop(name)) for name in names]
            if taken_by is not None:
                taken_by += [call for _, calls in taken for call in calls]
        found = [(name, calls[0].node, *self._encoded(calls)) for name, calls in taken]
        return [LMCallsRow(name, node, calls).row(texts) for name, node, calls, texts in found]

    def _encoded(self, calls: Iterable[LMCall]) -> StoredCalls:
        texts: dict[str, bytes] = {}
        return [encode_call(call, texts, self._hidden) for call in calls], texts


def _checked(chosen: Any, call: LMCall) -> LMCall | None:
    """Return what a function has chosen to write; the place of the call stays what it is."""
    if chosen is None:
        return None
    if not isinstance(chosen, LMCall):
        if inspect.iscoroutine(chosen):
            chosen.close()  # else Python warns of a coroutine that was never awaited
        kind = with_article(type(chosen).__name__)
        raise TypeError(f"it returned {kind}, not an LMCall (such as dataclasses.replace(call, messages=None)) or None")
    kept: LMCall = replace(chosen, execution=call.execution, node=call.node)
    encode_call(kept, {})
    return kept
