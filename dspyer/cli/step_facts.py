"""Facts of one step, and of the maps of a run, as `dspyer show` prints them, from a `Record`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from dspyer import ImmutableState
from dspyer.patch import encode_update
from dspyer.record import Record, RecordStep
from dspyer.record_codec import changed
from dspyer.values import json as encoding


class RunAnswers:
    """The answers about the steps of one run."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def commit(self, step: RecordStep) -> dict[str, Any]:
        """A commit with the states before and after it, what differs, who had written each field, and its LM calls.

        Of one that cannot be read it says what it was, and why.
        """
        assert step.commit is not None
        is_readable = step.status != "unreadable"
        before = self._values(step.after[0]) if step.after and is_readable else None
        after = self._values(step.id) if is_readable else None
        # From what may be shown: the difference of the states themselves would tell what is hidden in them.
        differing = ImmutableState(before or {}).diff(ImmutableState(after or {}))
        return {
            "commit": changed(step.commit, reason=step.reason).to_dict(),
            "before": None if before is None else _encoded(before),
            "after": None if after is None else _encoded(after),
            "diff": {name: encode_update(update) for name, update in differing.items()},
            "conflicts": [conflict.to_dict() for conflict in step.conflicts],
            **self._around(step),
        }

    def execution(self, step: RecordStep) -> dict[str, Any]:
        """An execution that has left no commit: what it could read, and its LM calls."""
        return {
            "execution": step.id,
            "node": step.node,
            "parents": list(step.after),
            "state": _encoded(self._values(step.id)),
            **self._around(step),
        }

    def _around(self, step: RecordStep) -> dict[str, Any]:
        record = self.record
        writers = record.fields(step.id) if step.status != "unreadable" else {}
        return {
            "blame": {name: {"node": record.node(one.by or ""), "commit": one.by} for name, one in writers.items()},
            "lm_calls": [call.to_dict() for call in record.calls(step.id)],
            "answers": [one.to_dict() for one in record.answers(step.id)],
            "sent": _encoded(step.sent),
        }

    def _values(self, step: str) -> dict[str, Any]:
        return {name: one.value for name, one in self.record.fields(step).items()}

    @cached_property
    def stops(self) -> dict[str, RecordStep]:
        """The executions that failed or ask, by their ids and by those of their questions.

        Of an item of a map, and of a node inside of a graph, this is the node of the run around it.
        """
        found: dict[str, RecordStep] = {}
        outermost: RecordStep | None = None
        for step in self.record.steps:
            outermost = step if step.parent is None else outermost
            assert outermost is not None
            if step.parent is None and step.commit is None and step.status in ("failed", "waiting"):
                found[step.id] = step
            if outermost.commit is None:
                if step.asked is not None:
                    found[step.asked.question.id] = outermost
                if step.failure is not None:
                    found[step.id] = outermost
        return found


def _encoded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encoding.encode(value) for name, value in values.items()}
