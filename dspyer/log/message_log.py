"""The inbox of a thread: messages that are sent to it, whether a run works on it, waits, has crashed or has ended.

An inbox is a log of rows beside the runs of the thread: a run that no run continues, with `inbox` in its header, whose
rows are the messages. The number of a row is the order of its message. A row that exists is refused, so of two senders
one takes the next number, and neither needs to own the thread. A message is written under the epoch that the thread
has, so that none reaches a thread that was deleted meanwhile.

How far an agent has read is a row that the layer `Inbox` adds to the commit of its turn: both are stored, or none. Each
run has in its header how far the runs before it have read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from secrets import token_hex
from threading import Lock
from typing import Any

from dspyer.errors import ConcurrentRunError, InputError, ThreadError, brief, list_names, suggestion
from dspyer.events import Sent
from dspyer.log.journal import MOST, CheckedStore
from dspyer.log.rows import LONGEST_NOTE, LayerRow, RowKind, SentRow, StoredRow, is_readable, row_time
from dspyer.log.time_travel import status_of
from dspyer.stores.base import INBOX, Change, Point, Row, RunRow, Store
from dspyer.values.json import with_valid_text

TOOK = "took"
"""The kind of the rows that say how far an agent has read, and the key of a run's header for what was read before."""

LONGEST_TEXT = 100_000
"""Most bytes of a message."""

Progress = dict[tuple[str, str], int]
"""The number of the last message that was read, by the identity of the inbox and the path of the agent."""


def inbox_of(thread: str) -> str:
    """The id of the run that is the inbox of a thread."""
    return INBOX + blake2b(thread.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# --- How far agents have read


def progress_of(header: Mapping[str, Any], rows: Iterable[StoredRow]) -> Progress:
    """The progress of agents: what the header of a run says, and rows of it."""
    taken = [row.body for row in rows if isinstance(row, LayerRow) and row.name == TOOK]
    places = sorted([tuple(place) for place in [*header.get(TOOK, ()), *taken]])  # the last one of an agent counts
    return {(inbox, path): number for inbox, path, number in places}


def progress_at(store: Store, thread: str, at: Point | None) -> Progress:
    """The progress of the agents of a thread when a row was written; of a thread without an inbox nothing is read."""
    run = None if at is None or not identity_of(store, inbox_of(thread)) else store.run(at.run)
    if at is None or run is None:
        return {}
    rows = [row for row in store.rows(at.run, 0, at.seq) if row.kind == RowKind.LAYER and is_readable(row)]
    return progress_of(run.header, [LayerRow.read(row, store.blobs) for row in rows])


# --- Reading


class MessageLog:
    """The messages of a thread, as far as they were read from its store, for its agents.

    Args:
        store: the store.
        thread: the name of the thread.
        listeners: the paths of the agents of the outermost graph.
        progress: how far each has read.

    Attributes:
        readers: by the path of an agent who has been given messages, and has not committed them yet.
        lock: guards all of it, since agents that work at once read it.
    """

    def __init__(self, store: Store, thread: str, listeners: Collection[str], progress: Progress) -> None:
        self._run, self._store, self._listeners, self._progress = inbox_of(thread), store, listeners, progress
        self.readers: dict[str, object] = {}
        self._found: list[Sent] = []
        self._id = ""
        self.lock = Lock()

    def read(self) -> list[Sent]:
        """All messages, in the order of their numbers."""
        with self.lock:
            self._found += [_sent(row, self._store)[0] for row in self._store.rows(self._run, len(self._found))]
            return self._found

    @property
    def id(self) -> str:
        """The identity of the inbox, which one that was loaded from its export shares; `""` before a message."""
        self._id = self._id or identity_of(self._store, self._run)
        return self._id

    def waiting(self, path: str) -> list[Sent]:
        """The messages for an agent that no turn of it has taken, of those that were read."""
        last = self._progress.get((self.id, path), -1)
        return [sent for sent in self._found[last + 1 :] if self._is_for(sent, path)]

    def take(self, path: str, number: int) -> None:
        """Note that an agent has read up to a message."""
        self._progress[self.id, path] = number

    def unread(self) -> list[Sent]:
        """The messages that no turn has taken."""
        taken = [(path, last) for (inbox, path), last in self._progress.items() if inbox == self.id]
        return [
            sent
            for sent in self.read()
            if not any(sent.number <= last and self._is_for(sent, path) for path, last in taken)
        ]

    def _is_for(self, sent: Sent, path: str) -> bool:
        return path in _unnamed(self._listeners) if sent.to is None else path == sent.to


def unread(store: Store, thread: str, listeners: Collection[str]) -> tuple[Sent, ...]:
    """The messages of a thread that no turn has taken."""
    row = store.thread(thread)
    if row is None:
        return ()
    found = MessageLog(store, thread, listeners, progress_at(store, thread, row.head)).unread()
    is_open = bool(found) and status_of(store, thread) != "completed"
    return tuple([replace(sent, open=is_open) for sent in found])


def identity_of(store: Store, run: str) -> str:
    """The identity of an inbox; `""` if there is none."""
    found = store.run(run)
    return "" if found is None else str(found.header.get("inbox", found.id))


def _sent(row: Row, store: Store) -> tuple[Sent, str | None]:
    """A message, and its key."""
    found = SentRow.read(row, store.blobs)
    return Sent(row.seq, found.text, found.by, found.at, found.to), found.key


def _unnamed(listeners: Collection[str]) -> Collection[str]:
    """The paths of the agents that a message without a name is for: the graph itself, or else the nodes of it."""
    return [""] if "" in listeners else [path for path in listeners if "/" not in path]


# --- Sending


def send(
    store: CheckedStore, name: str, listeners: Collection[str], text: str, to: str | None, by: str, key: str | None
) -> Sent:
    """Write a message to the inbox of a thread; return it, or the one that was sent with this key before."""
    text, by = _checked(listeners, text, to, by, key)
    inbox, made = inbox_of(name), SentRow(token_hex(8), row_time(), text, by, to, key)
    while True:
        row = store.thread(name)
        if row is None or row.head is None:
            raise ThreadError(f"thread {name!r} has no run yet: begin with thread.run(...). Nothing was sent")
        identity = identity_of(store, inbox)
        known = _numbers(store, inbox, identity) if identity else {}
        number = known.get(None, -1) + 1  # before the key is looked up: another thread may add to them
        if key is not None and key in known:
            first, _ = _sent(store.rows(inbox, known[key], known[key])[0], store)
            if (first.text, first.to) != (text, to):
                raise InputError(
                    f"key={key!r} is that of message {first.number} of thread {name!r}, which has another text or "
                    "another agent: nothing was sent. A key stands for one message: give another one another key"
                )
            return replace(first, open=status_of(store, name) != "completed")
        try:
            if not identity:  # of no thread, for which the store would count it as a run
                store.write(Change(run=RunRow(inbox, name, (), {"inbox": token_hex(8)})))
            store.write(Change(name, row.epoch, rows_of=inbox, rows=[made.row().numbered(number)], flush=True))
        except ConcurrentRunError:
            continue  # another message has this number, or another run has the thread
        return Sent(number, text, by, made.at, to, status_of(store, name) != "completed")


def _numbers(store: CheckedStore, inbox: str, identity: str) -> dict[str | None, int]:
    """The numbers of messages by their keys, and by None of the last one: what this process knows, and what is new."""
    inboxes = store.heads.inboxes
    known = inboxes.setdefault((inbox, identity), {})
    rows = store.rows(inbox, known.get(None, 0))
    if known and not rows:  # another process has deleted the thread, and loaded an older export of it
        known = inboxes[inbox, identity] = {}
        rows = store.rows(inbox)
    for row in rows:
        known[_sent(row, store)[1]] = known[None] = row.seq
    if len(inboxes) > MOST:
        inboxes.pop(next(iter(inboxes)), None)
    return known


def _checked(listeners: Collection[str], text: Any, to: Any, by: Any, key: Any) -> tuple[str, str]:
    """The text and the name of its author, as they are stored."""
    if not listeners:
        raise ThreadError(
            "the program has no agent that could read a message: change its state with thread.update(...), or answer "
            "its questions with thread.resume(...)"
        )
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"a message is a text that is not empty, not {brief(text)}. Nothing was sent")
    text = with_valid_text(text)
    size = len(text.encode())
    if size > LONGEST_TEXT:
        raise InputError(f"a message has at most {LONGEST_TEXT:,} bytes, and this one {size:,}. Nothing was sent")
    if not isinstance(by, str) or len(by) > LONGEST_NOTE:
        raise InputError(f"by= is a text of at most {LONGEST_NOTE} characters, not {brief(by)}. Nothing was sent")
    if key is not None and (not isinstance(key, str) or not key):
        raise InputError(f"key= is a text that is not empty, not {brief(key)}. Nothing was sent")
    if to is None and not _unnamed(listeners):
        raise InputError(f"say which agent is meant, to=...: {list_names(listeners)}. Nothing was sent")
    if to is not None and (not to or to not in listeners):
        named = [path for path in listeners if path]
        known = f"Agents: {list_names(named)}" if named else "The program is the only agent: leave to= out"
        raise InputError(f"to={brief(to)} is no agent.{suggestion(str(to), named)} {known}. Nothing was sent")
    return text, with_valid_text(by)
