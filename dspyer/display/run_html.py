"""A `Run` as the answers that the page of one run asks for: what `run.to_html` writes into a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspyer.display.run_file import RunFile, shown_places
from dspyer.display.run_page import commit_row
from dspyer.display.run_rows import DisplayRow
from dspyer.events import BranchPath, Commit, Event, LMCall, MergedConflict, Posted, is_built_in, path_of_event, told
from dspyer.ids import outermost_execution
from dspyer.redaction import Redactor
from dspyer.scheduler.lineage import LogEntry, sent_to
from dspyer.scheduler.provenance import Writers
from dspyer.state import ImmutableState
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze

FieldWriters = Mapping[str, int]
"""By field, the index of the commit that last wrote it."""


class ShownStates:
    """The JSON forms of states. Values that states share are redacted and encoded once, and are one object."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._known: dict[tuple[str, int], tuple[Any, Any]] = {}  # with the value, so that its id is not reused

    def of(self, state: ImmutableState) -> dict[str, Any]:
        """The fields of a state, as events would show them."""
        return {name: self._field(name, value) for name, value in state.raw_items()}

    def _field(self, name: str, value: Any) -> Any:
        key = name, id(value)
        if key not in self._known:
            redactor = self._redactor
            encoded = encoding.encode(value if redactor is None else freeze(redactor.redaction.at((name,), value)))
            self._known[key] = value, encoded if redactor is None else redactor.redact(encoded)
        return self._known[key][1]


def field_writers(log: Sequence[LogEntry]) -> Sequence[FieldWriters]:
    """For each commit, who had last written each field of the state after it."""
    writers = Writers(log)
    found = []
    for index, entry in enumerate(log):
        written = writers.at(index)
        last = {name: written.under(name).writer for name in entry.state}
        found.append({name: writer for name, writer in last.items() if writer is not None})
    return found


class RunWriter:
    """Writes a run into a file, with its values redacted as in events.

    Args:
        redactor: hides values by their path, and the same values in all other texts; None for none.
        keeps_texts: whether prompts and responses are shown although values are hidden: the program chose what is kept.
    """

    def __init__(self, redactor: Redactor | None, *, keeps_texts: bool) -> None:
        self._redactor = redactor
        self._keeps_texts = keeps_texts or redactor is None
        self._states = ShownStates(redactor)

    def write(
        self,
        path: str | os.PathLike[str],
        run: Mapping[str, Any],
        log: Sequence[LogEntry],
        shown: Sequence[Commit],
        rows: Iterable[DisplayRow],
        calls: Iterable[LMCall],
        events: Iterable[Event],
        repairs: Iterable[Any],
        depth: int = 0,
    ) -> Path:
        """Write the file: the answer to `api/run` with its `stats`, the steps, and what belongs to no step.

        Of `rows`, those without a commit are where the run has ended. `depth` is the length of the run's own scope.
        """
        events = list(events)
        file = RunFile(self._hide(run), len(log))
        by_execution: dict[str, list[LMCall]] = {}
        for call in calls:
            by_execution.setdefault(outermost_execution(call.execution), []).append(call)
        writers = field_writers(log)
        said = self._said(events, depth)
        for index in shown_places(len(log)):
            found = by_execution.pop(shown[index].id, [])
            step = self._step(log, writers[index], index)
            step["commit"] = self._hide(shown[index].to_dict())
            step["lm_calls"] = [self._call(call) for call in found]
            step["events"] = said.get(shown[index].id, [])
            file.add_step(self._hide(commit_row(shown[index], found)), step)
        places = {entry.commit.id: index for index, entry in enumerate(log)}
        executions: dict[str, Any] = {}
        for row in rows:
            if row.commit is None and (row.error is not None or row.questions):
                stopped = self._stopped(log, writers, places, row, by_execution.get(row.execution, ()))
                stopped["events"] = said.get(row.execution, [])
                executions |= dict.fromkeys([row.execution, *(one.id for one in row.questions)], stopped)
        file.add_lists(
            executions=executions,
            conflicts=[
                {"commit": entry.commit.id, "conflict": self._conflict(conflict)}
                for entry in log
                for conflict in entry.conflicts
            ],
            posts=self._hide([one.to_dict() for one in events if isinstance(one, Posted) and len(one.scope) == depth]),
            repairs=self._hide([encoding.encode(freeze(dict(repair.items()))) for repair in repairs]),
        )
        return file.write(path)

    def _step(self, log: Sequence[LogEntry], writers: FieldWriters, index: int) -> dict[str, Any]:
        entry = log[index]
        return {
            "before": self._states.of(log[entry.parents[0]].state) if entry.parents else None,
            "after": self._states.of(entry.state),
            "blame": _blame(log, writers),
            "sent": self._sent(log, entry.parents, entry.commit.branch),
            "conflicts": [self._conflict(conflict) for conflict in entry.conflicts],
        }

    def _stopped(
        self,
        log: Sequence[LogEntry],
        writers: Sequence[FieldWriters],
        places: Mapping[str, int],
        row: DisplayRow,
        calls: Iterable[LMCall],
    ) -> dict[str, Any]:
        """An execution that has left no commit, as `ExecutionInfo` says it."""
        parents = tuple([places[parent] for parent in row.parents])
        return {
            "execution": row.execution,
            "node": row.node,
            "parents": list(row.parents),
            "state": self._states.of(log[parents[0]].state) if parents else {},
            "blame": _blame(log, writers[parents[0]]) if parents else {},
            "lm_calls": [self._call(call) for call in calls],
            "sent": self._sent(log, parents, row.branch),
        }

    def _said(self, events: Iterable[Event], depth: int) -> dict[str, list[Any]]:
        """The events that the page does not know, by the execution of this run that they belong to."""
        found: dict[str, list[Any]] = {}
        for event in events:
            path = () if is_built_in(event) else path_of_event(event)[depth:]
            if path:
                said = {"text": told(event), "event": event.to_dict()}
                found.setdefault(outermost_execution(path[0]), []).append(self._hide(said))
        return found

    def _sent(self, log: Sequence[LogEntry], parents: tuple[int, ...], path: BranchPath) -> dict[str, Any]:
        return self._states.of(ImmutableState(sent_to(log, parents, path)))

    def _conflict(self, conflict: MergedConflict) -> Any:
        return (conflict if self._redactor is None else self._redactor.conflict(conflict)).to_dict()

    def _call(self, call: LMCall) -> Any:
        kept = call if self._keeps_texts else replace(call, messages=None, response=None)
        return self._hide(kept.to_dict())

    def _hide(self, answer: Any) -> Any:
        return answer if self._redactor is None else self._redactor.redact(answer)


def _blame(log: Sequence[LogEntry], writers: FieldWriters) -> dict[str, Any]:
    authors = {name: log[writer].commit for name, writer in writers.items()}
    return {name: {"node": author.node, "commit": author.id} for name, author in authors.items()}
