"""What a thread says of itself without a look at its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspyer.bond.tracing import add_tokens
from dspyer.durable.reading import chapter, chapters
from dspyer.durable.rows import ANSWER, COMMIT, END, ITEM, JOIN, ONCE, RESUME
from dspyer.stores.base import Row, Store
from dspyer.threads.owning import is_alive

PROGRESS = (COMMIT, JOIN, ITEM, ONCE, ANSWER, END)
"""Rows that show that a run has come further."""


def status_of(store: Store, thread: str) -> str:
    """What a thread does, or how its last run ended.

    Args:
        store: where it is kept.
        thread: its name.
    """
    row = store.thread(thread)
    while row is not None and row.head is not None:
        found = chapter(store, row.head).status or ("running" if is_alive(row) else None)
        if found is not None:
            return found
        now = store.thread(thread)
        if now is None or now.head == row.head:  # its owner has gone without a word
            return "crashed"
        row = now
    return "new"


def usage_of(store: Store, thread: str) -> dict[str, dict[str, Any]]:
    """The tokens of all runs of a thread, by language model, as far as they have said how they ended.

    Args:
        store: where it is kept.
        thread: its name.
    """
    row = store.thread(thread)
    total: dict[str, dict[str, Any]] = {}
    if row is not None and row.head is not None:
        for run in chapters(store, [row.head], row.root):
            for end in run.rows:
                if end.kind == END and len(end.head) > 2:
                    add_tokens(total, end.head[2])
    return total


def resumes(rows: Sequence[Row]) -> int:
    """How often a run was taken up since it last came further.

    Args:
        rows: of the run.
    """
    count = 0
    for row in reversed(rows):
        if row.kind in PROGRESS or (row.kind == RESUME and not row.head[0]):
            break
        count += row.kind == RESUME
    return count
