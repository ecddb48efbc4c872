"""What the runs of a thread have used: its totals, which the row of the end of each run holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from dspyer.errors import StoreError
from dspyer.events import LMCall
from dspyer.persistence.lm_calls import calls_in
from dspyer.persistence.lm_usage import LMUsage, sum_usage, total_cost, usage_of_calls
from dspyer.persistence.reader import load_run, newest_rows, own_commit, read_runs
from dspyer.persistence.rows import EndRow, RowKind, Totals
from dspyer.stores.base import Point, Row, Store


def totals_at(store: Store, at: Point | None, root: Point | None = None) -> Totals:
    """Return the totals of a thread up to a row: those at the last end of a run, and the LM calls after it.

    A run without an end, whose process was killed, counts once it has ended; of it, the LM calls in its rows count.
    What the history of a merge has used is the sum of its runs.
    """
    calls: list[LMCall] = []
    found = Totals()
    while at is not None:
        end = None
        oldest = load_run(store, at.run)
        for run, row in newest_rows(store, at):
            oldest = run
            if row.kind == RowKind.END:
                end = row
                break
            if at == root:
                break
            calls += _readable_calls(row)
        if end is not None:
            found = EndRow.of(end).totals
            break
        if at == root:
            break
        if len(oldest.parents) > 1:
            found = totals_of_merge(store, oldest.parents, root)
            break
        at = oldest.parents[0] if oldest.parents else None
    usage = sum_usage((found.usage, usage_of_calls(calls)))
    return Totals(found.runs, usage, total_cost(usage), found.steps)


def thread_usage(store: Store, thread: str) -> dict[str, LMUsage]:
    """Return what all runs of a thread have used, by language model."""
    row = store.thread(thread)
    return {} if row is None else sum_usage((totals_at(store, row.head, row.root).usage,))


def totals_before(store: Store, parents: Sequence[Point], root: Point | None = None) -> Totals:
    """Return the totals of a thread before a run, by the rows that the run continues from."""
    if len(parents) > 1:
        return totals_of_merge(store, parents, root)
    return totals_at(store, parents[0] if parents else None, root)


def totals_of_merge(store: Store, heads: Sequence[Point], root: Point | None = None) -> Totals:
    """Return the totals of several histories, which may have runs in common."""
    found = Totals()
    for run in read_runs(store, heads, root):
        commits = sum(own_commit(row) is not None for row in run.rows)
        found = found.with_run(run_usage(run.rows), commits)
    return found


def run_usage(rows: Iterable[Row]) -> dict[str, LMUsage]:
    """Return what the rows of a run say that it has used, by language model.

    It is what its last end says, and the LM calls after that: of processes that were killed. Calls that cannot be read
    count nothing: a run with such a row can be resumed and stopped.
    """
    used: dict[str, LMUsage] = {}
    since: list[LMCall] = []
    for row in rows:
        if row.kind == RowKind.END:
            used, since = sum_usage((EndRow.of(row).usage,)), []
        else:
            since += _readable_calls(row)
    return sum_usage((used, usage_of_calls(since)))


def _readable_calls(row: Row) -> Sequence[LMCall]:
    with suppress(StoreError, ValueError):
        return calls_in(row)
    return ()
