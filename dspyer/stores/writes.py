"""Whether a change may be written, or was written already: pure, the same for every store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, Row, RunRow, ThreadRow


class CurrentRows(NamedTuple):
    """What a store holds where a change wants to write. Read in the transaction that writes.

    Attributes:
        thread: the thread of the change.
        run: the run of the id of the change's `run`.
        last: the number of the last row of `rows_of`, -1 if it has none; None if there is no such run.
        rows: those of the rows of `rows_of` that have the numbers of the change's rows.
        fence: the largest epoch of all threads that were ever removed, for a thread that is to be made.
    """

    thread: ThreadRow | None = None
    run: RunRow | None = None
    last: int | None = None
    rows: Sequence[Row] = ()
    fence: int = 0


class WritePlan(NamedTuple):
    """What is to be written.

    Attributes:
        epoch: the thread's epoch afterwards.
        begins: whether the run of the change is new.
        rows: the rows that are new.
    """

    epoch: int
    begins: bool
    rows: Sequence[Row]


def plan_write(change: Change, found: CurrentRows) -> WritePlan | None:
    """What of a change is to be written; None if all of it was written before, by a call whose answer got lost.

    Args:
        change: the change.
        found: what is there.

    Raises:
        ConcurrentRunError: the thread has another epoch, or a row or run of that name is another one.
        ValueError: rows with a gap before or between them, rows of a run that is not there, or a next epoch that is
            not larger.
    """
    if change.thread and change.epoch != (found.thread.epoch if found.thread else 0):
        if found.thread is not None and _was_written(change, found, found.thread):
            return None
        raise ConcurrentRunError(_refusal(change, found.thread))
    begins = change.run is not None and found.run is None
    if change.run is not None and found.run is not None and not same_run(change.run, found.run):
        raise ConcurrentRunError(f"run {change.run.id!r} is there already, begun by somebody else: nothing was written")
    return WritePlan(_epoch_after(change, found.fence), begins, _new_rows(change, found))


def check_epochs(found: Mapping[str, int], epochs: Mapping[str, int]) -> None:
    """Refuses the removal of threads that others have got meanwhile.

    Args:
        found: by name, the epochs that threads have.
        epochs: by name, the epochs that they must have, if they are there.

    Raises:
        ConcurrentRunError: if one has another epoch.
    """
    for name, epoch in epochs.items():
        if found.get(name, epoch) != epoch:
            raise ConcurrentRunError(
                f"thread {name!r} was taken over by another run: it has epoch {found[name]}, this call knows {epoch}. "
                "Nothing was removed. Wait for the other run's end, or remove the thread with take_over=True"
            )


def _epoch_after(change: Change, fence: int) -> int:
    if not change.epoch:
        return fence + 1
    if change.next_epoch is None:
        return change.epoch
    if change.next_epoch <= change.epoch:
        raise ValueError(f"next_epoch={change.next_epoch} is not larger than epoch {change.epoch}: nothing was written")
    return change.next_epoch


def same_run(left: RunRow, right: RunRow) -> bool:
    """Whether two runs began equal. The thread is not compared: a run may have been disowned since."""
    return (left.id, tuple(left.parents)) == (right.id, tuple(right.parents)) and _same_json(
        dict(left.header), dict(right.header)
    )


def same_row(left: Row, right: Row) -> bool:
    """Whether two rows are equal as they are stored."""
    return (left.seq, left.kind) == (right.seq, right.kind) and (
        _same_json(left.header, right.header) and left.content == right.content
    )


def _was_written(change: Change, found: CurrentRows, thread: ThreadRow) -> bool:
    owner = change.owner if change.lease else None
    if not (change.rows or change.run or owner):
        return False
    if change.epoch and thread.epoch != (change.epoch if change.next_epoch is None else change.next_epoch):
        return False
    if (owner is not None and thread.owner != owner) or (change.head is not None and thread.head != change.head):
        return False
    if change.run is not None and (found.run is None or not same_run(change.run, found.run)):
        return False
    there = {row.seq: row for row in found.rows}
    return all(row.seq in there and same_row(row, there[row.seq]) for row in change.rows)


def _new_rows(change: Change, found: CurrentRows) -> Sequence[Row]:
    if not change.rows:
        return ()
    last = found.last
    if last is None:
        if change.run is None or change.run.id != change.rows_of:
            raise ValueError(f"rows for run {change.rows_of!r}, which is not there: begin it with Change(run=...)")
        last = -1
    first = change.rows[0].seq
    numbers = [row.seq for row in change.rows]
    if first < 0 or first > last + 1 or numbers != list(range(first, first + len(numbers))):
        raise ValueError(
            f"rows {numbers} of run {change.rows_of!r} leave a gap: the next row has the number {last + 1}. "
            "Nothing was written."
        )
    if first > last:
        return change.rows
    there = {row.seq: row for row in found.rows}
    for row in change.rows:
        if row.seq <= last and (row.seq not in there or not same_row(row, there[row.seq])):
            raise ConcurrentRunError(
                f"row {row.seq} of run {change.rows_of!r} is there already with other content: another process goes "
                "on with this run. Nothing was written; read the thread again."
            )
    return change.rows[last + 1 - first :]


def _refusal(change: Change, thread: ThreadRow | None) -> str:
    name = change.thread
    if thread is None:
        return f"thread {name!r} is not there any more: somebody has removed it. Nothing was written."
    if not change.epoch:
        return f"thread {name!r} is there already: nothing was written. Take another name, or remove it first."
    if thread.owner is None:
        owner = "nobody owns it at the moment"
    else:
        owner = f"process {thread.owner.pid} on host {thread.owner.host!r} owns it"
    return (
        f"thread {name!r} was taken over by another run: it has epoch {thread.epoch}, this one knows {change.epoch}; "
        f"{owner}. Nothing was written. Wait for the other run's end and start again from the thread's new head, or "
        "take the thread over."
    )


def _same_json(left: Any, right: Any) -> bool:
    """Equal as JSON, in which a tuple is a list."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
