"""The content of the page of one run, as JSON: a record in the forms that the inspector serves, and `to_html` writes.

The forms are listed in `dspyer/inspector/README.md`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sized
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dspyer import ImmutableState
from dspyer.display.cut_values import VALUE, cut_within
from dspyer.display.graph_svg import drawing_of
from dspyer.display.run_file import RECORD, SharedValues, shown_places, write_file
from dspyer.errors import StoreError
from dspyer.events import Question, is_built_in, path_of_event, told
from dspyer.extend import Event, freeze, outermost_execution
from dspyer.failure import Failure
from dspyer.patch import encode_update
from dspyer.record import Items, Record, RecordStep
from dspyer.record_codec import changed, encode
from dspyer.values import json as encoding


class RunInfo(NamedTuple):
    """A stored run, as lists show it.

    Attributes:
        thread: the name of its thread.
        run_id: its id, as `Run.run_id`.
        graph: the name of its graph.
        status: `"running"`, `"completed"`, `"failed"`, `"interrupted"`, `"stopped"` or `"crashed"`, as `Thread.status`.
        steps: how many commits it has, without those of graphs inside its nodes.
        started: when it was started.
        ended: when it ended; None for a run that has written no end.
        usage: what it used by language model, as far as it has written its end.
        cost: US dollars; None if a language model has no price, or the run has written no end.
        questions: its questions that have no answer.
        failure: the first failure with which it ended, without traceback; None if it did not fail. Of a run of which
            something cannot be read, the reason, with the node `"archive"`.
    """

    thread: str
    run_id: str
    graph: str
    status: str
    steps: int
    started: datetime
    ended: datetime | None
    usage: Mapping[str, Mapping[str, Any]]
    cost: float | None
    questions: tuple[Question, ...] = ()
    failure: Failure | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; times as ISO 8601, in UTC."""
        return encode(self)

    @classmethod
    def of(cls, record: Record) -> RunInfo:
        """The entry of a run that was read as a whole."""
        asked = [step.asked for step in record.steps if step.asked is not None and record.status != "completed"]
        return cls(
            record.thread,
            record.run_id,
            record.graph.name,
            record.status,
            len(steps_of(record)),
            datetime.fromtimestamp(record.started, UTC),
            None if record.ended is None else datetime.fromtimestamp(record.ended, UTC),
            record.usage,
            record.cost,
            tuple([one.question for one in asked if one.answer is None]),
            next((one.model_copy(update={"traceback": ""}) for one in record.failures), None),
        )


def steps_of(record: Record) -> list[RecordStep]:
    """The steps that are listed: the commits of the run's own graph."""
    return [step for step in record.steps if step.parent is None and step.commit is not None]


class RunAnswers:
    """The answers about one run: it as a whole, its lists, and its steps one by one."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.commits = steps_of(record)

    def run(self) -> dict[str, Any]:
        """The run as a whole."""
        record = self.record
        info = RunInfo.of(record).to_dict()
        return {
            "info": info,
            "graph": drawing_of(record.graph).to_dict() if record.graph.looks else None,
            "fields": [field.to_dict() for field in record.graph.fields],
            "questions": info["questions"],
            "answers": [one.to_dict() for one in record.answers()],
            "messages": record.messages(),
            "failures": [failure.to_dict() for failure in record.failures],
            "maps": [one.to_dict() for one in maps_of(record)],
            "count": info["steps"],
        }

    def row(self, step: RecordStep) -> dict[str, Any]:
        """A commit as one row of a list, without values."""
        assert step.commit is not None
        calls = self.record.calls(step.id)
        found = changed(step.commit, patch={}).to_dict()
        for name in ("patch", "live", "calls", "sizes", "ended"):
            del found[name]
        # The cost is not known if one of the calls has no known price.
        costs = [call.cost for call in calls if call.cost is not None]
        cost = sum(costs) if len(costs) == len(calls) else None
        lm = {"calls": len(calls), "tokens": sum(call.tokens for call in calls), "cost": cost} if calls else None
        return {**found, "writes": list(map(str, step.commit.patch)), "lm": lm}

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

    def posts(self) -> list[dict[str, Any]]:
        """The posts to the live fields of the run's own graph, in order; `execution` is the id of the step."""
        found = [changed(post, execution=step.id) for step in self._own() for post in step.posts]
        return [post.to_dict() for post in sorted(found, key=lambda post: post.seq)]

    def conflicts(self) -> list[dict[str, Any]]:
        """The conflicts of the joins, in order."""
        return [{"commit": step.id, "conflict": one.to_dict()} for step in self._own() for one in step.conflicts]

    def items(self) -> list[dict[str, Any]]:
        """The items of maps, in order, each with what became of it."""
        return [
            {
                "id": step.id,
                "node": step.node,
                "status": step.status,
                "value": encoding.encode(step.wrote["result"].value) if "result" in step.wrote else None,
                "failure": None if step.failure is None else str(step.failure),
            }
            for step in self.record.steps
            if step.kind in ITEMS
        ]

    def _own(self) -> list[RecordStep]:
        return [step for step in self.record.steps if step.parent is None]


def _encoded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encoding.encode(value) for name, value in values.items()}


ITEMS = ("item", "trial")


def maps_of(record: Record) -> list[Items]:
    """The maps of the run's own graph that it has reached: at the last visit of each, how many items are how far."""
    found: dict[str, tuple[str, int]] = {}  # by node: the last visit, and how many items it has been given
    counts: dict[str, Counter[str]] = {}
    for step in record.steps:
        mapped = record.graph.maps.get(step.node)
        if step.parent is None and mapped is not None:
            # An item that has failed its map has no step of its own.
            counts[step.id] = Counter(failed=int(step.failure is not None and step.failure.index is not None))
            given: Sized = ()
            if step.commit is None and step.after:  # without a commit, only the list says how many there are
                with suppress(StoreError):  # of a damaged state, those that have left something are counted
                    given = step.sent.get(mapped.over, record.state(step.after[0]).get(mapped.over, ()))
            found[step.node] = step.id, len(given)
        elif step.kind in ITEMS and step.parent in counts:
            counts[step.parent][step.status] += 1
    items = []
    for node, (visit, total) in found.items():
        of = counts[visit]
        items.append(Items(node, max(total, of.total()), of["done"], of["failed"], of["waiting"], {}, {}))
    return [one for one in items if one.total]


def write_page(
    record: Record,
    path: str | os.PathLike[str],
    stats: Mapping[str, Any],
    events: Iterable[Event] = (),
    repairs: Iterable[Any] = (),
    depth: int = 0,
) -> Path:
    """Write a run as one HTML file, with its figures.

    Args:
        record: the run.
        path: the file.
        stats: the figures of its nodes.
        events: those of the process; of classes of users are shown at their steps.
        repairs: its corrections.
        depth: the length of the run's own scope.
    """
    answers, values = RunAnswers(record), SharedValues()
    said: dict[str, list[Any]] = {}
    for event in events:
        # What the built-in ones say is in the steps.
        inside = () if is_built_in(event) else path_of_event(event)[depth:]
        if inside:
            said.setdefault(outermost_execution(inside[0]), []).append({"text": told(event), "event": event.to_dict()})

    def with_events(name: str, answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "events": said[name]} if name in said else answer

    count = len(answers.commits)
    shown = [answers.commits[place] for place in shown_places(count)]
    lists: dict[str, Any] = {
        "executions": {name: with_events(name, answers.execution(step)) for name, step in answers.stops.items()},
        "conflicts": answers.conflicts(),
        "items": answers.items(),
        "posts": answers.posts(),
    }
    examples = [encoding.encode(freeze(dict(repair.items()))) for repair in repairs]
    places = {name: values.place(cut_within(one, [RECORD])) for name, one in lists.items()}
    data = {
        "about": {"store": "", "version": "", "program": None, "acts": False},
        "run": {**answers.run(), "stats": stats, "count": len(shown)},
        "rows": list(map(answers.row, shown)),
        "steps": {step.id: values.place_step(with_events(step.id, answers.commit(step))) for step in shown},
        "lists": {**places, "repairs": values.place(cut_within(examples, [[VALUE]]))},
        "between": count - len(shown),
        "values": values.entries,
    }
    return write_file(data, path)
