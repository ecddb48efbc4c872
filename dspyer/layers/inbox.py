"""`Inbox`: the layer by which the agents of a run read the messages to its thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dspyer.events import Commit, Sent
from dspyer.layers.layer import Layer, NewRow
from dspyer.log.message_log import TOOK, MessageLog, Progress, is_for, note_progress, progress_before
from dspyer.log.rows import LayerRow
from dspyer.messages import SENT
from dspyer.record.turns import sent_messages


class Inbox(Layer):
    """The messages to the thread of a run, for the agent that the run is: the layer of graphs with agents.

    Args:
        log: the messages, of a part in a run; None for the layer itself.
        path: the nodes around the run.
        listeners: the paths of the agents of the outermost graph.
        progress: how far each agent has read, shared by all parts.
        readers: by the path of an agent the part that has been given messages, and has not committed them yet, shared
            as well: of two calls of one sub-agent at once, one gets them.
    """

    __slots__ = ("_given", "_listeners", "_log", "_path", "_progress", "_readers")

    def __init__(
        self,
        log: MessageLog | None = None,
        path: str = "",
        listeners: Collection[str] = (),
        progress: Progress | None = None,
        readers: dict[str, Inbox] | None = None,
    ) -> None:
        self._log, self._path, self._listeners = log, path, listeners
        self._progress: Progress = {} if progress is None else progress
        self._readers: dict[str, Inbox] = {} if readers is None else readers
        self._given: set[int] = set()

    def of(self, run: Any) -> Inbox | None:
        """Its part in a stored run, or in a run inside of a node of it; none in items of maps."""
        inside, journal = run.inside, run.records.journal
        if inside is not None:
            if self._log is None or inside.item is not None:
                return None
            path = f"{self._path}/{inside.node}" if self._path else inside.node
            return Inbox(self._log, path, self._listeners, self._progress, self._readers)
        if journal is None or journal.run_row is None:
            return None
        progress = progress_before(journal.run_row.header)
        for row in [row for rows in run.records.with_commit.values() for row in rows]:  # of a resumed run
            if isinstance(row, LayerRow):
                note_progress(progress, row)
        return Inbox(MessageLog(journal.store, journal.thread), "", run.graph.listeners, progress)

    @property
    def id(self) -> str:
        """The identity of the inbox; `""` before its first message."""
        return "" if self._log is None else self._log.id

    def after(self, number: int = -1) -> list[Sent]:
        """The messages after number `number` for this agent that no turn of it has taken, in their order.

        They count as taken once a commit has them: as messages of its conversation with `sent`.
        """
        log = self._log
        if log is None or not (found := log.read()):
            return []
        with log.lock:  # two tools of one turn may look
            if self._readers.setdefault(self._path, self) is not self:
                return []
            # Not before: the other call may have committed just now what it was given.
            last = max(number, self._progress.get((self.id, self._path), -1))
            waiting = [sent for sent in found[last + 1 :] if is_for(sent, self._path, self._listeners)]
            self._given.update([sent.number for sent in waiting])
            if not self._given:
                del self._readers[self._path]
            return waiting

    @contextmanager
    def run(self, run: Any) -> Iterator[None]:
        """A block around the run: what it was given and has not committed is for the next call of the agent."""
        del run
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._given:
            self._given.clear()
            self._readers.pop(self._path, None)

    def rows(self, commit: Commit) -> Iterable[NewRow]:
        """The row that says how far the agent has read, of the commit of a turn that took messages."""
        taken = [message.raw(SENT)["number"] for message in sent_messages(commit)] if self._given else []
        taken = [number for number in taken if number in self._given]  # others are of an agent inside
        if not taken:
            return ()
        self._progress[self.id, self._path] = max(taken)
        self._leave()
        return (NewRow(TOOK, [self.id, self._path, max(taken)]),)
