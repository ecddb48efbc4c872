"""`Inbox`: the layer by which the agents of a run read the messages to its thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dspyer.events import Commit, Sent
from dspyer.layers.layer import Layer, NewRow, RunView
from dspyer.log.message_log import TOOK, MessageLog, Progress, is_for, note_progress, progress_before
from dspyer.log.rows import LayerRow
from dspyer.messages import SENT
from dspyer.record.turns import sent_messages


class Inbox(Layer):
    """The messages to the thread of a run, for the agent that the run is: the layer of graphs with agents.

    One agent may run several times at once. What a turn of one of these was given is kept from the others until it is
    committed, so that no two take the same message.

    Args:
        log: the messages, of a part in a run; None for the layer itself.
        path: the nodes around the run.
        around: the part of the run around it, which has what all parts share.
    """

    __slots__ = ("_given", "_listeners", "_log", "_path", "_progress", "_takers")

    def __init__(self, log: MessageLog | None = None, path: str = "", around: Inbox | None = None) -> None:
        self._log, self._path = log, path
        self._listeners: Collection[str] = () if around is None else around._listeners
        self._progress: Progress = {} if around is None else around._progress
        self._takers: dict[str, Inbox] = {} if around is None else around._takers  # by path
        self._given: set[int] = set()

    def of(self, run: Any) -> Inbox | None:
        """Its part in a stored run, or in a run inside of a node of it; none in items of maps."""
        inside, journal = run.inside, run.records.journal
        if inside is not None:
            if self._log is None or inside.item is not None:
                return None
            return Inbox(self._log, f"{self._path}/{inside.node}" if self._path else inside.node, self)
        if journal is None or journal.run_row is None:
            return None
        part = Inbox(MessageLog(journal.store, journal.thread))
        part._listeners = run.graph.listeners
        part._progress.update(progress_before(journal.run_row.header))
        for row in [row for rows in run.records.with_commit.values() for row in rows]:  # of a resumed run
            if isinstance(row, LayerRow):
                note_progress(part._progress, row)
        return part

    @contextmanager
    def run(self, run: RunView) -> Iterator[None]:
        """A block after which others may take what it was given and has not committed."""
        del run
        try:
            yield
        finally:
            self._end_turn()

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
        with log.lock:
            if self._takers.get(self._path, self) is not self:
                return []
            last = max(number, self._progress.get((self.id, self._path), -1))
            waiting = [sent for sent in found[last + 1 :] if is_for(sent, self._path, self._listeners)]
            if waiting:
                self._takers[self._path] = self
                self._given.update([sent.number for sent in waiting])
            return waiting

    def rows(self, commit: Commit) -> Iterable[NewRow]:
        """The row that says how far the agent has read, of the commit of a turn that took messages."""
        taken = [message.raw(SENT)["number"] for message in sent_messages(commit)] if self._given else []
        taken = [number for number in taken if number in self._given]  # others are of an agent inside
        if not taken:
            return ()
        self._progress[self.id, self._path] = max(taken)
        self._end_turn()
        return (NewRow(TOOK, [self.id, self._path, max(taken)]),)

    def _end_turn(self) -> None:
        """Lets another one take messages."""
        self._given.clear()
        if self._takers.get(self._path) is self:
            del self._takers[self._path]
