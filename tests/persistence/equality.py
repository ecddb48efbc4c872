"""Compare the outcome of an interrupted run with that of an uninterrupted one."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

from dspyer import Run
from dspyer.persistence.reader import read_run
from dspyer.persistence.rows import CommitHeader, RowKind, read_commit_content
from dspyer.stores.base import Store
from dspyer.values import json as encoding
from tests.persistence.kinds import Called


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
    drawn = [(row.node, row.branch, row.came, row.children, row.conflicts) for row in run._rows()]
    return Outcome(run.status, run.state.to_dict(), commits, run.conflicts, drawn)


def finished(store: Store, thread: str) -> set[str]:
    """The executions whose results are in the store, of the last run of a thread."""
    row = store.thread(thread)
    found: set[str] = set()
    if row is None or row.head is None:
        return found
    for entry in read_run(store, row.head).rows:
        if entry.kind in (RowKind.COMMIT, RowKind.JOIN):
            head = CommitHeader.parse(entry.header)
            found.add("/".join((*head.scope, head.id)))
        elif entry.kind == RowKind.ITEM:
            found.add(str(entry.header[0]))
    return found


def decided(store: Store, thread: str) -> int:
    """How many conflicts were decided by a policy in what is in the store."""
    row = store.thread(thread)
    if row is None or row.head is None:
        return 0
    joins = [entry.content for entry in read_run(store, row.head).rows if entry.kind == RowKind.JOIN]
    found = [read_commit_content(content, store.blobs, encoding.decode) for content in joins]
    return sum(len(written.resolutions) for written in found)


def left_to_call(undisturbed: Counter[Called], done: set[str]) -> Counter[Called]:
    """The calls that are still to be made when some executions have finished, each once.

    An execution inside of another one, or the item of a map, has finished with it.
    """

    def has_finished(execution: str) -> bool:
        around = [execution[: mark.start()] for mark in re.finditer(r"[/\[]", execution)]
        return execution in done or any(outer in done for outer in around)

    return Counter({call: count for call, count in undisturbed.items() if not has_finished(call.execution)})
