"""What a handle on a thread has read of its history, each row once."""

from __future__ import annotations

from threading import Lock

from dspyer.persistence.history import History, ListedCommit
from dspyer.persistence.reader import HistoryReader
from dspyer.stores.base import Point, ThreadRow


class Known:
    """The history of one thread as far as it was read. Its methods may be called from any thread.

    Args:
        reader: reads the store.
        thread: the name of the thread.

    Attributes:
        history: what was read.
        root: where the history begins, if older rows were pruned.
    """

    def __init__(self, reader: HistoryReader, thread: str) -> None:
        self.history = History(reader)
        self.root: Point | None = None
        self._reader = reader
        self._thread = thread
        self._listed = ListedCommit(self.history, ())
        self._reading = Lock()

    def up_to(self, at: Point) -> ListedCommit:
        """The commits up to a row of the thread.

        Args:
            at: the row.
        """
        row = self._reader.store.thread(self._thread)
        root = None if row is None else row.root
        with self._reading:
            self._begin_at(root)
            self.history.read([at], root)
            return ListedCommit(self.history, [at])

    def extended(self, *rows: ThreadRow) -> History:
        """The history up to the heads of threads.

        Args:
            rows: the threads, this one first.
        """
        with self._reading:
            self._begin_at(rows[0].root)
            for row in rows:
                self.history.read([] if row.head is None else [row.head], row.root)
        return self.history

    def listed(self) -> ListedCommit:
        """The commits up to the thread's head."""
        row = self._reader.store.thread(self._thread)
        heads = (row.head,) if row is not None and row.head is not None else ()
        root = None if row is None else row.root
        with self._reading:
            self._begin_at(root)
            if heads != self._listed.heads:
                self.history.read(heads, root)
                self._listed = ListedCommit(self.history, heads)
            return self._listed

    def _begin_at(self, root: Point | None) -> None:
        """Drops what was read, if older history was pruned since."""
        if root != self.root:
            self.history, self.root = History(self._reader), root
            self._listed = ListedCommit(self.history, ())
