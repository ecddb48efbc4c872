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
from dspyer.log.journal import MOST, CheckedStore, InboxIndex
from dspyer.log.rows import LayerRow, RowKind, SentRow, is_readable
from dspyer.log.time_travel import status_of
from dspyer.stores.base import INBOX, Point, Row, Store

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
        lock: guards it, since agents that work at once read it.
    """

    def __init__(self, store: Store, thread: str) -> None:
        self.run = inbox_of(thread)
        self._store = store
        self._found: list[Sent] = []
        self._id = ""
        self.lock = Lock()

    def read(self) -> list[Sent]:
        """All messages, in the order of their numbers."""
        with self.lock:
            self._found += [_sent(row, self._store)[0] for row in self._store.rows(self.run, len(self._found))]
            return self._found

    @property
    def id(self) -> str:
        """The identity of the inbox, which one that was loaded from its export shares; `""` before a message."""
        self._id = self._id or identity_of(self._store, self.run)
        return self._id


def _sent(row: Row, store: Store) -> tuple[Sent, str | None]:
    """A message, and its key."""
    found = SentRow.read(row, store.blobs)
    return Sent(row.seq, found.text, found.by, found.at, found.to), found.key


def identity_of(store: Store, run: str) -> str:
    """The identity of an inbox; `""` if there is none."""
    found = store.run(run)
    return "" if found is None else str(found.header.get("inbox", found.id))


def index_of(store: CheckedStore, run: str) -> InboxIndex:
    """The index of an inbox: what this process knows, with what was sent since."""
    known, identity = store.heads.inboxes.pop(run, None), identity_of(store, run)
    if known is None or known.id != identity:
        known = InboxIndex(identity, 0, {})
    for row in store.rows(run, known.size):
        _, key = _sent(row, store)
        if key is not None:
            known.keys[key] = row.seq
        known = known._replace(size=row.seq + 1)
    store.heads.inboxes[run] = known  # the last one that was asked for comes last
    if len(store.heads.inboxes) > MOST:
        store.heads.inboxes.pop(next(iter(store.heads.inboxes)), None)
    return known


def message(store: Store, run: str, number: int) -> Sent:
    """One message of an inbox."""
    (row,) = store.rows(run, number, number)
    return _sent(row, store)[0]


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
