"""Compare the outcome of an interrupted run with that of an uninterrupted one."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, NamedTuple

from dspyer import Run
from dspyer.stores import Store
from dspyer.stores.base import Point, Row
from tests.log.kinds import Called


class Outcome(NamedTuple):
    """What two runs are compared by. Times, attempts, and ids of runs are not."""

    status: str
    state: dict[str, Any]
    commits: list[tuple[Any, ...]]
    conflicts: tuple[Any, ...]
    drawn: list[Any]


def outcome(run: Run) -> Outcome:
    """The outcome of a run."""
    commits = [
        (c.id, c.version, c.node, c.branch, c.visit, c.step, dict(c.patch), c.parents, c.route, c.reason, c.failure)
        for c in run.commits
    ]
    drawn = [
        (step.node, step.branch, len(step.after), step.to, step.conflicts)
        for step in run.record().steps
        if step.parent is None
    ]
    return Outcome(run.status, run.state.to_dict(), commits, run.conflicts, drawn)


def rows_of(store: Store, thread: str) -> list[Row]:
    """The rows of the last run of a thread, with those of the parts that it continues."""
    found = store.thread(thread)
    return [] if found is None or found.head is None else _rows_up_to(store, found.head)


def _rows_up_to(store: Store, at: Point) -> list[Row]:
    run, rows = store.run(at.run), store.rows(at.run, 0, at.seq)
    assert run is not None
    if not run.header.get("continues"):
        return rows
    gone = {place for first, last in run.header.get("without", ()) for place in range(first, last + 1)}
    before = _rows_up_to(store, run.parents[0])
    return [*[row for place, row in enumerate(before) if place not in gone], *rows]


def finished(store: Store, thread: str) -> set[str]:
    """The executions whose results are in the store, of the last run of a thread."""
    found: set[str] = set()
    for row in rows_of(store, thread):
        if row.kind in ("commit", "join"):
            found.add("/".join((*row.header.get("scope", ()), row.header["id"])))
        elif row.kind == "item":
            found.add(row.header["execution"])
    return found


def decided(store: Store, thread: str) -> int:
    """How many conflicts were decided by a policy in what is in the store."""
    joins = [json.loads(row.content.data) for row in rows_of(store, thread) if row.kind == "join" and row.content]
    return sum(len(conflict["values"]) - 1 for content in joins for conflict in content.get("conflicts", ()))


def left_to_call(undisturbed: Counter[Called], done: set[str]) -> Counter[Called]:
    """The calls that are still to be made when some executions have finished, each once.

    An execution inside of another one, or the item of a map, has finished with it.
    """

    def has_finished(execution: str) -> bool:
        around = [execution[: mark.start()] for mark in re.finditer(r"[/\[]", execution)]
        return execution in done or any(outer in done for outer in around)

    return Counter({call: count for call, count in undisturbed.items() if not has_finished(call.execution)})
