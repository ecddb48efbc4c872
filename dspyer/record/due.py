"""The threads that can go on by themselves: a question of theirs has expired, or the process of a run has crashed."""

from __future__ import annotations

from dspyer.clock import wall
from dspyer.log.rows import EndRow
from dspyer.record.stored import current_status
from dspyer.stores.base import Row, RunQuery, Store

BATCH = 1_000
"""Runs that are read at once. A waiting thread is a row of a few hundred bytes."""


def due_since(status: str | None, end: Row | None) -> float | None:
    """The time at which the first question of a run expires, from the row of its end; None for a run without one."""
    return EndRow.of(end).expires if status == "interrupted" and end is not None else None


def due_threads(store: Store, graph: str | None, at: float | None = None) -> list[str]:
    """The names of the threads whose last run can go on by itself, the longest due first.

    Reads headers alone, which encrypted stores do not hide.

    Args:
        store: the store.
        graph: only runs of the graph of this name; None for all.
        at: what is due by then, seconds since the epoch; None for now.
    """
    now = wall()
    at = now if at is None else at
    found: list[tuple[float, str]] = []
    query = RunQuery(graph=graph, statuses=frozenset(["", "interrupted"]), last=True, limit=BATCH)
    while True:
        batch = store.list_runs(query)
        for listed in batch:
            # A copy without a run of its own shows the run of another thread, and was made to be looked at.
            if listed.run.thread != listed.thread.name:
                continue
            listed, status = current_status(store, listed)  # noqa: PLW2901 - it may have ended since
            # When a process has crashed is not known: at the latest when its lease has ended.
            since = now + min(listed.thread.lease, 0) if status == "crashed" else due_since(status, listed.end)
            if since is not None and since <= at:
                found.append((since, listed.thread.name))
        if len(batch) < query.limit:
            return [name for _, name in sorted(found)]
        query = query._replace(after=batch[-1].place)
