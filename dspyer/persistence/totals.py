"""What the runs of a thread have used: its totals, which the row of the end of each run holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dspyer.errors import StoreError
from dspyer.events import LMCall
from dspyer.persistence.lm_calls import calls_in
from dspyer.persistence.lm_usage import LMUsage, sum_usage, total_cost, usage_of_calls
from dspyer.persistence.reader import newest_rows, own_commit, read_runs
from dspyer.persistence.rows import EndRow, RowKind, Totals
from dspyer.stores.base import Point, Row, Store


def totals_at(store: Store, heads: Sequence[Point], root: Point | None = None) -> Totals:
    """Return the totals of a thread up to its head, or heads: those at the last end of a run, and the LM calls since.

    A run without an end, whose process was killed, counts once it has ended; of it, the LM calls in its rows count.
    What histories that were merged have used is the sum of their runs, some of which they may have in common.
    """
    calls: list[LMCall] = []
    found = Totals()
    while len(heads) == 1:
        (at,), heads = heads, ()
        for run, row in newest_rows(store, at):
            heads = run.parents
            if row.kind == RowKind.END:
                found, heads = EndRow.of(row).totals, ()
                break
            if at == root:
                heads = ()
                break
            calls += _readable_calls(row)
    for merged in read_runs(store, heads, root):
        if merged.points[-1] == root and merged.rows[-1].kind == RowKind.END:  # counts what was pruned, too
            pruned = EndRow.of(merged.rows[-1]).totals
            found = found.with_run(pruned.usage, pruned.steps, pruned.runs)
        else:
            commits = sum(own_commit(row) is not None for row in merged.rows)
            found = found.with_run(run_usage(merged.rows), commits)
    usage = sum_usage((found.usage, usage_of_calls(calls)))
    return Totals(found.runs, usage, total_cost(usage), found.steps)


def thread_usage(store: Store, thread: str) -> dict[str, LMUsage]:
    """Return what all runs of a thread have used, by language model."""
    row = store.thread(thread)
    if row is None or row.head is None:
        return {}
    return sum_usage([totals_at(store, (row.head,), row.root).usage])


def run_usage(rows: Iterable[Row]) -> dict[str, LMUsage]:
    """Return what the rows of a run say that it has used, by language model.

    It is what its last end says, and the LM calls after that: of processes that were killed. Calls that cannot be read
    count nothing: a run with such a row can be resumed and stopped.
    """
    used: Mapping[str, Mapping[str, Any]] = {}
    since: list[LMCall] = []
    for row in rows:
        if row.kind == RowKind.END:
            used, since = EndRow.of(row).usage, []
        else:
            since += _readable_calls(row)
    return sum_usage((used, usage_of_calls(since)))


def _readable_calls(row: Row) -> Sequence[LMCall]:
    with suppress(StoreError, ValueError):
        return calls_in(row)
    return ()
