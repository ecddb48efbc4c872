"""Stored LM calls of a thread: those of one execution, those of all, and what they sum up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dspyer.events import Commit, LMCall
from dspyer.ids import Address, full_id, outermost_execution
from dspyer.persistence.history_parts import PAGE, commit_row
from dspyer.persistence.lm_calls import calls_in, calls_of
from dspyer.persistence.reader import RunRows, commit_header, load_run, read_runs
from dspyer.persistence.rows import COMMITS, run_label
from dspyer.persistence.status import failures_in, last_end
from dspyer.stores.base import Point, RunQuery, Store, ThreadRow


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
    found = _run_of(store, row, name, _labels(store, thread))
    if found is not None and Address.parse(outermost_execution(found[1])).is_commit:
        last, execution = found
        at = commit_row(store, last, execution)
        calls = calls_of(store, at or last, execution, root=None if row is None else row.root)
        if at is not None or calls or _has_failed(store, last, execution):
            return tuple(calls)
    raise LookupError(
        f"thread {thread!r} has no commit {name!r}, no execution of that id has failed, or made an LM call: "
        "ids are those of thread.history(), and Failure.execution"
    )


def calls_by_commit(store: Store, thread: str, commits: Iterable[Commit]) -> dict[str, list[LMCall]]:
    """Return the LM calls of each of some commits, without their texts, by the ids of the commits.

    For the commits of one part of a run, one range of rows is read: from the earliest parent on, since an execution
    begins after its parents.
    """
    found: dict[str, list[LMCall]] = {}
    left = list(commits)
    row = store.thread(thread) if left else None
    own = _labels(store, thread)
    while left:
        place = _run_of(store, row, left[0].id, own)
        here: dict[str, Commit] = {}
        if place is not None:
            label = left[0].id.removesuffix(place[1])
            here = {one.id.removeprefix(label): one for one in left if one.id.startswith(label)}
            before = {parent for one in here.values() for parent in one.parents} - {one.id for one in here.values()}
            starts = {parent: commit_row(store, place[0], parent.removeprefix(label)) for parent in before}
            # Without a parent in this part of the run, executions may have begun with its first row.
            first = min([start.seq if start is not None else 0 for start in starts.values()], default=0)
            _read_calls(store, Point(place[0].run, first), here, found)
            if load_run(store, place[0].run).header.get("continues"):
                # They may have begun, and failed, in the part before.
                for execution, one in here.items():
                    at = None
                    if not all(starts.get(parent, True) for parent in one.parents):
                        at = commit_row(store, place[0], execution)
                    if at is not None:
                        found[one.id] = calls_of(store, at, execution, with_texts=False)
        left = [one for one in left[1:] if one.id not in found]
    return found


def _read_calls(store: Store, at: Point, commits: Mapping[str, Commit], found: dict[str, list[LMCall]]) -> None:
    """Add the calls of commits, which are given by their local ids, from a row on to the last of these commits."""
    found |= {commit.id: [] for commit in commits.values()}
    missing, first, count = set(commits), at.seq, PAGE
    while missing and (rows := store.rows(at.run, first, first + count - 1)):
        for row in rows:
            for call in calls_in(row):
                commit = commits.get(outermost_execution(call.execution))
                if commit is not None:
                    found[commit.id].append(call)
            if row.kind in COMMITS:
                missing.discard(commit_header(row).execution)
            if not missing:
                break
        first, count = first + count, 2 * count


def _labels(store: Store, thread: str) -> dict[str, str]:
    """Return the labels of the runs that were made for a thread, by id."""
    return {run.id: run_label(run) for run in store.runs(thread)}


def _run_of(store: Store, row: ThreadRow | None, name: str, runs: Mapping[str, str]) -> tuple[Point, str] | None:
    """Return the last row of the run of an execution, and the execution's id in that run; `runs` are the own labels."""
    if row is None or row.head is None:
        return None
    # Ids are compared by prefix and never split: the name of a thread may hold any character.
    for run, label in runs.items():
        if name.startswith(f"{label}/"):
            return _last_row(store, run, row.head), name.removeprefix(f"{label}/")
    if outermost_execution(name) == name or "/" not in name.partition(":")[0]:
        own = row.head, name
        if commit_row(store, *own) is not None or ":" in name.partition("/")[0]:
            return own
    for one in read_runs(store, [row.head], row.root):  # of a copy: the history of another thread
        for run, label in one.labels.items():
            if name.startswith(f"{label}/"):
                return _last_row(store, run, one.points[-1]), name.removeprefix(f"{label}/")
    return None


def _last_row(store: Store, run: str, head: Point) -> Point:
    """Return the last row of a run: up to `head`, if that is in it."""
    if head.run == run:
        return head
    # A list knows the last row without reading the others; it lacks the runs of deleted threads.
    (listed,) = store.list_runs(RunQuery(run=run, limit=1)) or (None,)
    return Point(run, store.rows(run)[-1].seq if listed is None else listed.last)


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
