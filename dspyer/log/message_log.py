"""The inbox of a thread: messages that were sent to it, whether a run works or not.

An inbox is a log of rows beside the runs of the thread: a run that no run continues, with `inbox` in its header, whose
rows are the messages. The number of a row is the order of its message. A row that exists is refused, so of two senders
one takes the next number, and neither needs to own the thread.

How far an agent has read is a row that the layer `Inbox` adds to the commit of its turn: both are stored, or none. Each
run has in its header how far the runs before it have read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from hashlib import blake2b
from threading import Lock
from typing import Any

from dspyer.events import Sent
from dspyer.log.rows import LayerRow, RowKind, SentRow, is_readable
from dspyer.log.time_travel import status_of
from dspyer.stores.base import INBOX, Point, Store

TOOK = "took"
"""The kind of the rows that say how far an agent has read, and the key of a run's header for what was read before."""

Progress = dict[tuple[str, str], int]
"""The number of the last message that was read, by the identity of the inbox and the path of the agent."""


def inbox_of(thread: str) -> str:
    """The id of the run that is the inbox of a thread."""
    return INBOX + blake2b(thread.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def progress_before(header: Mapping[str, Any]) -> Progress:
    """The progress of the runs before one, by its header."""
    return {(inbox, path): number for inbox, path, number in header.get(TOOK, ())}


def note_progress(progress: Progress, row: LayerRow) -> None:
    """Adds what a row of a layer says, in place."""
    if row.name == TOOK:
        inbox, path, number = row.body
        progress[inbox, path] = max(progress.get((inbox, path), -1), number)


def progress_at(store: Store, at: Point | None) -> Progress:
    """The progress of the agents of a thread when a row of it was written."""
    run = None if at is None else store.run(at.run)
    if at is None or run is None:
        return {}
    progress = progress_before(run.header)
    for row in store.rows(at.run, 0, at.seq):
        if row.kind == RowKind.LAYER and is_readable(row):
            note_progress(progress, LayerRow.read(row, store.blobs))
    return progress


class MessageLog:
    """The messages of a thread, as far as they were read from its store.

    Attributes:
        run: the run that is the inbox.
        keys: the numbers of messages by their keys.
    """

    def __init__(self, store: Store, thread: str) -> None:
        self.run = inbox_of(thread)
        self.keys: dict[str, int] = {}
        self._store = store
        self._found: list[Sent] = []
        self._id = ""
        self._lock = Lock()  # agents that work at once read it

    def read(self) -> list[Sent]:
        """All messages, in the order of their numbers."""
        with self._lock:
            for row in self._store.rows(self.run, len(self._found)):
                found = SentRow.read(row, self._store.blobs)
                if found.key is not None:
                    self.keys[found.key] = row.seq
                self._found.append(Sent(row.seq, found.text, found.by, found.at, found.to))
            return self._found

    @property
    def id(self) -> str:
        """The identity of the inbox, which one that was loaded from its export shares; `""` before a message."""
        if not self._id:
            run = self._store.run(self.run)
            self._id = "" if run is None else str(run.header.get("inbox", run.id))
        return self._id


def is_for(sent: Sent, path: str, listeners: Collection[str]) -> bool:
    """Says of a message that it is for the agent of a path."""
    return path in unnamed(listeners) if sent.to is None else path == sent.to


def unnamed(listeners: Collection[str]) -> Collection[str]:
    """The paths of the agents that a message without a name is for: the graph itself, or else the nodes of it."""
    return [""] if "" in listeners else [path for path in listeners if "/" not in path]


def unread(store: Store, thread: str, listeners: Collection[str]) -> tuple[Sent, ...]:
    """The messages of a thread that no turn has taken."""
    log, row = MessageLog(store, thread), store.thread(thread)
    if row is None or not (found := log.read()):
        return ()
    progress = [(path, number) for (inbox, path), number in progress_at(store, row.head).items() if inbox == log.id]
    is_open = status_of(store, thread) != "completed"
    return tuple(
        [
            replace(sent, open=is_open)
            for sent in found
            if not any(sent.number <= number and is_for(sent, path, listeners) for path, number in progress)
        ]
    )
