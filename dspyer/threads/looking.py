"""What a thread says of itself without a look at its states: from its last rows, however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dspyer.dspy_module.tracing import add_tokens
from dspyer.persistence.reader import end_in, newest, read_runs
from dspyer.persistence.rows import CommitHeader, RowKind
from dspyer.stores.base import Point, Row, Store
from dspyer.threads.owning import is_alive

PROGRESS = (RowKind.COMMIT, RowKind.JOIN, RowKind.ITEM, RowKind.ONCE, RowKind.ANSWER, RowKind.END)
"""Rows that show that a run has come further."""


def status_of(store: Store, thread: str) -> str:
    """What a thread does, or how its last run ended.

    Args:
        store: where it is kept.
        thread: its name.
    """
    row = store.thread(thread)
    while row is not None and row.head is not None:
        end = last_end(store, row.head)
        if end is not None:
            return str(end.head[0])
        if is_alive(row):
            return "running"
        now = store.thread(thread)
        if now is None or now.head == row.head:  # its owner has gone without a word
            return "crashed"
        row = now
    return "new"


def last_end(store: Store, at: Point) -> Row | None:
    """The row that says how a run ended; None if it has not ended, or was resumed since.

    Args:
        store: where it is kept.
        at: its last row.
    """
    return end_in(row for _, row in newest(store, at))


def questions_in(store: Store, at: Point) -> list[Row]:
    """The rows of the questions of a run that may be open, and of answers to them, in order.

    A commit after which one branch was live leaves no question open: every execution before it had ended.

    Args:
        store: where it is kept.
        at: its last row.
    """
    return list(_questions(store, at))[::-1]


def _questions(store: Store, at: Point) -> Iterator[Row]:
    for _, row in newest(store, at):
        if row.kind in (RowKind.ASK, RowKind.ANSWER):
            yield row
        elif row.kind == RowKind.OPEN:
            return
        elif row.kind in (RowKind.COMMIT, RowKind.JOIN):
            head = CommitHeader.of(row.head)
            if head.settled and not head.scope:
                return


def usage_of(store: Store, thread: str) -> dict[str, dict[str, Any]]:
    """The tokens of all runs of a thread, by language model, as far as they have said how they ended.

    Args:
        store: where it is kept.
        thread: its name.
    """
    row = store.thread(thread)
    total: dict[str, dict[str, Any]] = {}
    if row is not None and row.head is not None:
        for run in read_runs(store, [row.head], row.root):
            for end in run.rows:
                if end.kind == RowKind.END and len(end.head) > 2:
                    add_tokens(total, end.head[2])
    return total


def resumes(rows: Sequence[Row]) -> int:
    """How often a run was resumed since it last came further.

    Args:
        rows: of the run.
    """
    count = 0
    for row in reversed(rows):
        if row.kind in PROGRESS or (row.kind == RowKind.RESUME and not row.head[0]):
            break
        count += row.kind == RowKind.RESUME
    return count
