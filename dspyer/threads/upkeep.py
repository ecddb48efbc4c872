"""What is done to a thread as a whole: deleting, pruning, taking it along as a file."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NamedTuple

from dspyer.errors import ConcurrentRunError, ThreadError
from dspyer.persistence.reader import HistoryReader, run_of
from dspyer.persistence.replay import written_of
from dspyer.persistence.rows import COMMITS, CommitContent, RowKind, encode_commit_content
from dspyer.persistence.snapshot_encoding import SnapshotEncoder
from dspyer.persistence.snapshots import SnapshotState, readable, snapshot
from dspyer.redacting import HIDDEN, Redaction
from dspyer.stores.base import Change, DeletionReport, Row, ThreadRow
from dspyer.threads.exported import read
from dspyer.threads.exporting import export, load
from dspyer.threads.looking import last_end
from dspyer.threads.owning import REPLACE, busy, is_alive
from dspyer.threads.past import PastReader


class StoredFailure(NamedTuple):
    """A failure of a stored run, as text: nothing of the exception itself is kept.

    Attributes:
        node: the node that failed.
        branch: the path of its branch.
        execution: the id of the execution.
        type: the class of the exception.
        message: its text.
        traceback: as Python prints it.
    """

    node: str
    branch: tuple[int, ...]
    execution: str
    type: str
    message: str
    traceback: str

    def __str__(self) -> str:
        return f"node {self.node!r} (execution {self.execution!r}) raised {self.type}: {self.message}"


class Upkeep(PastReader):
    """Looks after a thread as a whole."""

    @property
    def failures(self) -> tuple[StoredFailure, ...]:
        """The failures with which the last run ended: also in another process, days later."""
        row = self._starter.store.thread(self.name)
        if row is None or row.head is None:
            return ()
        end = last_end(self._starter.store, row.head)
        if end is None or end.content is None:
            return ()
        found = end.content.value(self._starter.store.blobs, lambda plain: plain)
        return tuple([_failure(one) for one in found])

    @property
    def error(self) -> StoredFailure | None:
        """The first failure with which the last run ended; None if it did not fail."""
        return next(iter(self.failures), None)

    def delete(self, *, take_over: bool = False) -> DeletionReport:
        """Removes the thread, and all of its history that no other thread reaches.

        The store uses the space again; `open_store(address).vacuum()` gives it back to the system.

        Args:
            take_over: removes it from under a run that is at work, which commits nothing more.

        Returns:
            What was removed, and what stayed with the names of the threads that reach it.

        Raises:
            ConcurrentRunError: if a run is at work, or begins to work meanwhile.
            ThreadError: if there is no such thread.
        """
        store = self._starter.store
        while True:
            row = self._row(take_over)
            try:
                return store.remove([self.name], {self.name: row.epoch})
            except ConcurrentRunError:
                if not take_over:
                    raise  # a run has begun since

    def prune(self, before: int | str, *, take_over: bool = False) -> DeletionReport:
        """Removes history: of what came before a commit, as much as whole runs of it make up.

        The runs that were left behind (abandoned, or done again) go too. State, versions and all commits from there on
        stay as they are.

        Args:
            before: version or id of a commit; the run that it belongs to is the first one that stays.
            take_over: does it although a run is at work, which commits nothing more.

        Returns:
            What was removed, and what stayed with the names of the threads that reach it.

        Raises:
            ConcurrentRunError: if a run is at work.
            ThreadError: if there is no such thread, or the run goes on from two threads.
            LookupError: if there is no such commit.
            StoreError: if the state there is larger than is read in one piece; nothing was removed.
        """
        row = self._row(take_over)
        store, listed = self._starter.store, self._known.listed()
        history, at = listed.history, listed.runs[listed.number(before)]
        behind = history.runs[at].parents
        if len(behind) > 1:
            raise ThreadError(
                f"the run of commit {before!r} of thread {self.name!r} goes on from two threads: prune before a later "
                "or an earlier one"
            )
        root = None
        if behind and behind[0] != row.root:
            root = behind[0]
            first, earlier = (int(run_of(store, point.run).header.get("first", 0)) for point in (at, root))
            rested = SnapshotState(history.state(history.runs[root].resting), first - 1 - earlier)
            taken = snapshot(root, rested, SnapshotEncoder())
            store.write(Change(self.name, row.epoch, snapshot=taken, flush=True))
            if taken.content.encoded:  # all that comes before is about to go
                readable(taken.content, self._starter.reader.fetch, self._starter.reader.decode)
        store.write(Change(self.name, row.epoch, row.epoch + 1, root=root, flush=True))
        return store.disown(self.name)

    def export(self, path: str | os.PathLike[str]) -> str:
        """Writes the thread to a file of JSON lines: its runs, their rows, large values, and a digest.

        With `compile(redact=...)` the file shows what may be shown: patches are redacted by their paths, and answers,
        effects, results of single items and texts of errors are left out. It is for people then, and cannot be loaded.

        Args:
            path: the file; it is replaced.

        Returns:
            The digest.

        Raises:
            ThreadError: if there is no such thread.
        """
        redaction = self._program.graph.redaction
        shown = None if redaction is None else partial(_shown, redaction, self._starter.reader)
        return export(self._starter.store, self._row(take_over=True), path, shown)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Makes this thread of a file that `export` has written, in this store or another one.

        Runs that are in the store already are shared, not stored twice.

        Args:
            path: the file.

        Raises:
            ThreadError: if there is a thread of this name.
            StoreError: if the file is not what was exported.
        """
        store = self._starter.store
        if store.thread(self.name) is not None:
            raise ThreadError(f"there is a thread {self.name!r} already: load into another name, or delete it first")
        load(store, self.name, read(path))

    def _row(self, take_over: bool) -> ThreadRow:
        row = self._starter.store.thread(self.name)
        if row is None:
            raise ThreadError(f"there is no thread {self.name!r}")
        if not take_over and is_alive(row):
            raise busy(row, REPLACE)
        return row


def _shown(redaction: Redaction, reader: HistoryReader, row: Row) -> Any:
    """What is shown of a row: patches by their paths; of what has no path, that it is there."""
    if row.kind in (RowKind.OPEN, *COMMITS):
        written = written_of(row.content, reader.fetch, reader.decode)
        patch = None if written.patch is None else redaction.patch(written.patch)
        return encode_commit_content(CommitContent(patch))
    if row.kind == RowKind.END and row.content is not None:
        failed = row.content.value(reader.fetch, lambda plain: plain)
        return [{**one, "message": HIDDEN, "traceback": HIDDEN} for one in failed]
    return HIDDEN


def _failure(found: dict[str, Any]) -> StoredFailure:
    return StoredFailure(**{**found, "branch": tuple(found["branch"])})
