"""The layers of conversations: `Conversations`, what a program does with them besides keeping them, and `Inbox`.

By the latter the agents of a run read the messages to its thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from threading import Lock
from typing import Any, NoReturn

from dspyer.errors import GraphError
from dspyer.events import Commit, Sent
from dspyer.layers.layer import Layer, NewRow, RunView
from dspyer.log.time_travel import TOOK, Progress, identity_of, inbox_of, messages_of, progress_of, unnamed
from dspyer.record.turns import sent_messages
from dspyer.stores.base import Store
from dspyer.values.scalars import is_whole_number


@dataclass(frozen=True, slots=True)
class Conversations(Layer):
    """Warns of the end of a run in its conversations, and shortens demos: `compile(layers=[Conversations(...)])`.

    Args:
        warn_at: the number of remaining steps from which on module nodes of a conversation are warned: the instructions
            of the call say so, and a user message with the same text comes before the node's turn. None for never.
        max_demo_turns: how many turns of a `dspy.History` a demo shows, the last ones; None for all. It holds for
            graphs inside too, unless they have a number of their own.

    Raises:
        GraphError: for a number that is no whole number of at least 1.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("answer", dspy.Predict(
        ...     "question -> answer")).add_path(START, "answer", END)
        >>> program = graph.compile(layers=[Conversations(max_demo_turns=2)])
    """

    # By keyword alone: two numbers of one type would be mixed up without an error.
    _: KW_ONLY
    warn_at: int | None = None
    max_demo_turns: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("warn_at", self.warn_at), ("max_demo_turns", self.max_demo_turns)):
            if limit is not None and (not is_whole_number(limit) or limit < 1):
                raise GraphError(f"{name}={limit!r}: it must be a whole number of at least 1")

    def of(self, run: RunView) -> NoReturn:
        """Refuses to be around anything else than a whole graph, whose predictors it prepares when that is compiled."""
        raise GraphError(f"Conversations was given to a node or a call of {run.graph.name!r}: give it to compile")


class MessageLog:
    """The messages of a thread, as far as they were read from its store, for the agents of one run.

    Args:
        store: the store.
        thread: the name of the thread.
        listeners: the paths of the agents of the outermost graph.
        progress: how far each has read.

    Attributes:
        id: the identity of the inbox; `""` before a message was read.
        readers: by the path of an agent who has been given messages, and has not committed them yet.
        lock: guards all of it, since agents that work at once read it.
    """

    def __init__(self, store: Store, thread: str, listeners: Collection[str], progress: Progress) -> None:
        self._store, self._inbox, self._unnamed, self.progress = store, inbox_of(thread), unnamed(listeners), progress
        self.id = ""
        self.readers: dict[str, object] = {}
        self._found: list[Sent] = []
        self.lock = Lock()

    def read(self) -> bool:
        """Read what was sent since; return whether there is any message."""
        with self.lock:
            self._found += messages_of(self._store, self._inbox, len(self._found))
            if self._found and not self.id:
                self.id = identity_of(self._store, self._inbox)
            return bool(self._found)

    def waiting(self, path: str) -> list[Sent]:
        """The messages for an agent that no turn of it has taken, of those that were read."""
        new = self._found[self.progress.get((self.id, path), -1) + 1 :]
        return [sent for sent in new if (path in self._unnamed if sent.to is None else path == sent.to)]


class Inbox(Layer):
    """The messages to the thread of a run, for the agent that the run is: the layer of graphs with agents.

    Args:
        log: the messages, of a part in a run, shared by all parts of it; None for the layer itself.
        path: the nodes around the run.
    """

    __slots__ = ("_given", "_log", "_path")

    def __init__(self, log: MessageLog | None = None, path: str = "") -> None:
        self._log, self._path = log, path
        self._given: set[int] = set()

    def of(self, run: Any) -> Inbox | None:
        """Its part in a stored run, or in a run inside of a node of it; none in items of maps."""
        inside, journal = run.inside, run.records.journal
        if inside is not None:
            if self._log is None or inside.item is not None:
                return None
            return Inbox(self._log, f"{self._path}/{inside.node}" if self._path else inside.node)
        if journal is None or journal.run_row is None:
            return None
        resumed = [row for rows in run.records.with_commit.values() for row in rows]
        progress = progress_of(journal.run_row.header, resumed)
        return Inbox(MessageLog(journal.store, journal.thread, run.graph.listeners, progress))

    def waiting(self) -> list[Sent]:
        """The messages for this agent that no turn of it has taken, in their order.

        They count as taken once a commit has them: as messages of its conversation with `sent`. Of two calls of one
        sub-agent at once, one gets them.
        """
        log = self._log
        if log is None or not log.read():
            return []
        with log.lock:  # two tools of one turn may look
            if log.readers.setdefault(self._path, self) is not self:
                return []
            found = log.waiting(self._path)  # not before: the other call may have committed just now what it was given
            self._given.update([sent.number for sent in found])
            if not self._given:
                del log.readers[self._path]
            return found

    @contextmanager
    def run(self, run: Any) -> Iterator[None]:
        """A block around the run: what it was given and has not committed is for the next call of the agent."""
        del run
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._log is not None and self._given:
            self._given.clear()
            self._log.readers.pop(self._path, None)

    def rows(self, commit: Commit) -> Iterable[NewRow]:
        """The row that says how far the agent has read, of the commit of a turn that took messages."""
        taken = [one["number"] for one in sent_messages(commit)] if self._given else []
        taken = [number for number in taken if number in self._given]  # others are of an agent inside
        if self._log is None or not taken:
            return ()
        self._log.progress[self._log.id, self._path] = max(taken)
        self._leave()
        return (NewRow(TOOK, [self._log.id, self._path, max(taken)]),)
