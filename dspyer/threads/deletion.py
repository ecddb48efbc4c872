"""Delete a thread, or the older part of its history, without what other threads still reach."""

from __future__ import annotations

from dspyer.errors import ConcurrentRunError, StateError, StoreError, ThreadError
from dspyer.log.reader import (
    HistoryReader,
    SnapshotState,
    check_snapshot,
    load_run,
    snapshot_content,
)
from dspyer.log.rows import (
    first_version,
)
from dspyer.log.time_travel import ThreadReader
from dspyer.stores.base import Change, DeletionReport, Snapshot, Store
from dspyer.threads.ownership import existing_row
from dspyer.values.scalars import check_flags


def delete_thread(store: Store, thread_reader: ThreadReader, thread: str, take_over: bool) -> DeletionReport:
    """Delete a thread; raise `ConcurrentRunError` if a run owns it, or acquires it meanwhile, unless `take_over`."""
    check_flags(take_over=take_over)
    while True:
        row = existing_row(store, thread, take_over)
        try:
            return store.delete([thread], {thread: row.epoch})
        except ConcurrentRunError:
            if not take_over:
                raise
        finally:
            thread_reader.forget()  # an export that is loaded has runs with the ids of those that are deleted now


def prune_thread(
    reader: HistoryReader, thread_reader: ThreadReader, thread: str, before: int | str, take_over: bool
) -> DeletionReport:
    """Delete the runs before the one that the commit `before` belongs to.

    A crash may come between two writes, hence their order: first the snapshot with which the history will begin, which
    is checked to be readable; then the root, from which on the snapshot is that beginning; then the deletion.
    """
    check_flags(take_over=take_over)
    store = reader.store
    row = existing_row(store, thread, take_over)
    listed = thread_reader.cache.listed()
    history, run_end = listed.history, listed.runs[listed.index_of(before)]
    parents = history.runs[run_end].parents
    if len(parents) > 1:
        raise ThreadError(
            f"the run of commit {before!r} of thread {thread!r} merges two threads: prune before a later or an earlier "
            "one"
        )
    root = None
    if parents and parents[0] != row.root:
        root = parents[0]
        first, first_of_parent = (first_version(load_run(store, point.run)) for point in (run_end, root))
        last = history.runs[root].trunk_index
        commit = "" if last is None else history.log[last].commit.id
        state = SnapshotState(history.state(last), first - 1 - first_of_parent, commit)
        taken = Snapshot(root, snapshot_content(state))
        try:
            store.write(Change(thread, row.epoch, snapshot=taken, flush=True))
        except StateError as error:
            raise StoreError(f"the state at which the pruned history begins cannot be read again: {error}") from error
        if taken.content.is_encoded:  # a store in memory keeps the state itself
            check_snapshot(taken.content, reader.fetch, reader.decode)
    store.write(Change(thread, row.epoch, row.epoch + 1, root=root, flush=True))
    try:
        return store.delete_unreachable(thread)
    finally:
        thread_reader.forget()  # the next run of a key has the id of the one that is deleted now
