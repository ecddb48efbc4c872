"""Stored LM calls of a thread: those of one execution, those of a page of commits, those of all runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dspyer.events import Commit, LMCall
from dspyer.ids import Address, full_id, is_within, outermost_execution
from dspyer.persistence.history_parts import commit_row, rows_from
from dspyer.persistence.lm_calls import calls_in
from dspyer.persistence.reader import RunRows, commit_header, load_run, newest_rows, read_runs
from dspyer.persistence.rows import COMMITS, run_label
from dspyer.persistence.status import failures_in, last_end
from dspyer.stores.base import Point, Row, RunQuery, Store, ThreadRow


def lm_calls_of(store: Store, thread: str, name: str) -> tuple[LMCall, ...]:
    """Return the LM calls of an execution of a thread, with those inside of it.

    Args:
        store: the store.
        thread: the thread.
        name: the id of its commit, or of an execution that has none. Without the label of a run in front, it is one of
            the last run.

    Raises:
        LookupError: if there is no such execution.
    """
    row = store.thread(thread)
    address = Address.parse(name)
    last = _last_row(store, row, address.run, _labels(store, thread))
    execution = _in_run(address)
    if last is not None and Address.parse(outermost_execution(execution)).is_commit:
        at = commit_row(store, last, execution)
        calls = _calls_back(store, at or last, execution, None if row is None else row.root)
        if at is not None or calls or _has_failed(store, last, execution):
            return tuple(calls)
    raise LookupError(
        f"thread {thread!r} has no commit {name!r}, no execution of that id has failed, or made an LM call: "
        "ids are those of thread.history(), and Failure.execution"
    )


def _calls_back(store: Store, at: Point, execution: str, root: Point | None) -> list[LMCall]:
    """Return the LM calls of an execution of a run, with those of the items, graphs and calls inside of it, in order.

    Read back from the row of its commit, or from the end of the run, to the last commit before it on its branch.
    """
    path = Address.parse(outermost_execution(execution)).path
    found: list[LMCall] = []
    for index, row in enumerate(_rows_back(store, at, root)):
        if row.kind in COMMITS:
            header = commit_header(row)
            if index and not header.scope and header.branch == path[: len(header.branch)]:
                break
        found[:0] = [call for call in calls_in(row, store.blobs) if is_within(call.execution, execution)]
    return found


def _rows_back(store: Store, at: Point, root: Point | None) -> Iterator[Row]:
    """Yield the rows of a run up to one of them, newest first, back to pruned history at `root`."""
    for run, row in newest_rows(store, at):
        yield row
        if Point(run.id, row.seq) == root:
            return


def calls_by_commit(store: Store, thread: str, commits: Iterable[Commit]) -> dict[str, list[LMCall]]:
    """Return the LM calls of each of some commits, without their texts, by the ids of the commits.

    For the commits of one part of a run, one range of rows is read: from the earliest parent on, since an execution
    begins after its parents.
    """
    found: dict[str, list[LMCall]] = {}
    by_run: dict[str, dict[str, Commit]] = {}
    for one in commits:
        address = Address.parse(one.id)
        by_run.setdefault(address.run, {})[_in_run(address)] = one
        found[one.id] = []
    row = store.thread(thread)
    own = _labels(store, thread)
    for label, here in by_run.items():
        last = _last_row(store, row, label, own)
        if row is None or last is None:
            continue
        rows: Iterator[Row]
        if load_run(store, last.run).header.get("continues"):  # they may have begun, and failed, in the part before
            rows = reversed([*_rows_back(store, last, row.root)])
        else:
            before = {parent for one in here.values() for parent in one.parents} - {one.id for one in here.values()}
            starts = [
                commit_row(store, last, _in_run(parent)) if parent.run == label else None
                for parent in map(Address.parse, before)
            ]
            # Without a parent in this part of the run, executions may have begun with its first row.
            rows = rows_from(store, last.run, min([0 if at is None else at.seq for at in starts], default=0), last.seq)
        missing = set(here)
        for stored in rows:
            for call in calls_in(stored):
                commit = here.get(outermost_execution(call.execution))
                if commit is not None:
                    found[commit.id].append(call)
            if stored.kind in COMMITS:
                missing.discard(commit_header(stored).execution)
            if not missing:
                break
    return found


def _in_run(address: Address) -> str:
    return str(replace(address, run=""))


def _labels(store: Store, thread: str) -> dict[str, str]:
    """Return the ids of the runs that were made for a thread, by label."""
    return {run_label(run): run.id for run in store.runs(thread)}


def _last_row(store: Store, row: ThreadRow | None, label: str, own: Mapping[str, str]) -> Point | None:
    """Return the last row of the run with a label, "" for the last one; `own` are those of the thread."""
    if row is None or row.head is None:
        return None
    run, last = own.get(label), row.head
    if not label:
        return last
    if run is None:  # of a copy: the history of another thread
        named = ((run, one.points[-1]) for one in read_runs(store, [last], row.root) for run in _named(one, label))
        run, last = next(named, (None, last))
    if run is None or last.run == run:
        return None if run is None else last
    # A list knows the last row without reading the others; it lacks the runs of deleted threads.
    (listed,) = store.list_runs(RunQuery(run=run, limit=1)) or (None,)
    return Point(run, store.rows(run)[-1].seq if listed is None else listed.last)


def _named(run: RunRows, label: str) -> list[str]:
    return [part for part, name in run.labels.items() if name == label]


def _has_failed(store: Store, last: Point, execution: str) -> bool:
    failures = failures_in(store, last_end(store, last))
    return any(failure.execution == execution for failure in failures)


def stored_calls(runs: Iterable[RunRows]) -> Iterator[LMCall]:
    """Yield all LM calls of runs, each with the id of the commit that it belongs to as its execution; no texts."""
    for run in runs:
        for row, point in zip(run.rows, run.points, strict=True):
            for call in calls_in(row):
                yield replace(call, execution=full_id(run.labels[point.run], outermost_execution(call.execution)))


def unrecorded(usage: Mapping[str, Mapping[str, Any]], calls: Iterable[LMCall]) -> list[str]:
    """Return a sentence on the LM calls that were counted and not recorded, if there are any."""
    missing = sum(used.get("total_tokens", 0) for used in usage.values()) - sum(call.tokens for call in calls)
    if missing <= 0:
        return []
    return [f"{missing:,} tokens are of LM calls that were not recorded: the figures of nodes lack them"]
