"""The events of a session: what they show, when they are published, and who gets them.

An event passes through one place, `SessionEvents.publish`: it is redacted, kept for `run.events`, and passed to the
reader of the stream and to the watchers of the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from dspyer.display.redaction import Redactor
from dspyer.display.running import LMUse
from dspyer.dspy_module.lm_records import LMWatcher
from dspyer.errors import MapError, brief, error_text
from dspyer.event_queue import EventQueue
from dspyer.events import Commit, ConflictFound, Doing, Emitted, Event, MergedConflict, Token
from dspyer.failure import Failure
from dspyer.graph.spec import GraphSpec
from dspyer.layers.layer import Layer
from dspyer.nodes.map import map_fields_of
from dspyer.values.refusals import KeyPath

if TYPE_CHECKING:
    from dspyer.runtime.run_log import RunLog
    from dspyer.runtime.run_start import Inside, RunIds

logger = logging.getLogger("dspyer")

Watch = Callable[[str, Event], object]
"""Called with the id of an outermost run and one of its events, redacted; from any thread. It must not raise."""

WatchLM = Callable[[str, LMUse], object]
"""The same with what an LM call has used."""

_watchers: tuple[Watch, ...] = ()
"""Those who see the events of every run in the process. A tuple that is replaced: runs read it without a lock."""

_lm_watchers: tuple[WatchLM, ...] = ()
"""Those who see what their LM calls use."""


_NOT_KEPT = (Token, Emitted)
"""A node makes as many of them as it likes: `run.events` must not grow with them."""

_AT_WILL = (Emitted, Doing)
"""What a node says between its steps, where nothing is locked: it waits until the reader has room for the next one."""


@contextmanager
def watching(watch: Watch, watch_lm: WatchLM | None = None) -> Iterator[None]:
    """A block during which `watch` sees each event of each run in the process, those of runs inside of nodes too.

    They have the id of the outermost run and the scope of the event; tokens are among them if the run streams them.
    `watch_lm` sees the LM calls of the runs that begin in the block.
    """
    global _watchers, _lm_watchers  # noqa: PLW0603 - of the process, as the terminal is that shows it
    own = partial(watch)  # an object of this block alone
    own_lm = () if watch_lm is None else (partial(watch_lm),)
    _watchers, _lm_watchers = (*_watchers, own), (*_lm_watchers, *own_lm)
    try:
        yield
    finally:
        _watchers = tuple([one for one in _watchers if one is not own])
        _lm_watchers = tuple([one for one in _lm_watchers if one not in own_lm])


def lm_watchers(run_id: str) -> list[LMWatcher]:
    """What passes the LM calls of a run to those who watch them."""
    return [LMWatcher(partial(watch, run_id)) for watch in _lm_watchers] if _lm_watchers else []


class SessionEvents:
    """The events of a session. It does not refer to the session: that would be a cycle.

    Args:
        queue: where the events of the outermost run wait for their reader; None for no reader.
        keeps: whether a `Run` will be made, which has the events.
        inside: where the run is, if it is a part of another one.
        ids: the ids of the run.
        redactor: hides values; None for none.
        log: what a stored run has still to write; None for a run that is not stored.

    Attributes:
        kept: the events in order of arrival.
        queue: where the events of the outermost run wait for their reader; None for no reader.
        layers: those that events pass through before any reader sees them.
        redactors: what hides values of the run: its own redaction, and those of the runs around it.
    """

    def __init__(
        self,
        queue: EventQueue[Event] | None,
        keeps: bool,
        inside: Inside | None,
        graph: GraphSpec,
        ids: RunIds,
        redactor: Redactor | None,
        log: RunLog | None,
    ) -> None:
        self.kept: list[Event] = []
        self.layers: tuple[Layer, ...] = ()
        self.queue = queue
        self._around = around = None if inside is None else inside.around
        self._keeps = keeps
        self._root, self._scope = ids.root, ids.scope
        self._graph = graph
        self._redactor = redactor
        self._log = log
        self._limit = None if inside is None else inside.limit
        self._unheard = not keeps and queue is None and around is None and redactor is None  # but by watchers
        own = () if redactor is None else (redactor,)
        self.redactors: tuple[Redactor, ...] = own if around is None else (*own, *around.events.redactors)

    @property
    def node_around(self) -> str:
        """The node of the run around this one in which the run is; "" for an outermost run."""
        return "" if self._around is None else self._around.node

    def publish(self, event: Event) -> None:
        """Keeps an event and passes it on. May be called from any thread; a node that emits may wait here."""
        if self._limit is not None and self._limit.left_running:
            return
        if self._scope and not event.scope:
            event = event._replace(scope=self._scope)
        if self._redactor is not None:
            event = self._redactor.event(event)
        for layer in self.layers:
            shown = layer.event(event)
            if shown is None:
                return
            event = shown
        if self._keeps and type(event) not in _NOT_KEPT:
            self.kept.append(event)
        if type(event) is ConflictFound and event.scope == self._scope:
            log_conflict(self.shown(event).conflict)
        if _watchers and not self._scope:  # events of runs inside of nodes come here too
            for watch in _watchers:
                watch(self._root, event)
        if self._around is not None:
            self._around.events.publish(event)
        elif self.queue is not None:
            self.queue.put(event)
            if type(event) in _AT_WILL:
                self.queue.wait_for_room()

    def publish_once_written(self, events: list[Event]) -> None:
        """Publishes events of the scheduler; of a stored run, after the rows that they report are written."""
        if self._log is not None:
            self._log.events += events
            for redactor in self.redactors:
                for event in events:
                    redactor.learn(event)  # an error published before the next write may name these values
            return
        for event in events:
            if not self._unheard or self.layers or _watchers or type(event) is ConflictFound:
                self.publish(event)

    # --- redaction, by this run and by those around it

    def shown(self, value: Any) -> Any:
        """An event, an error or a text as a log may show it."""
        for redactor in self.redactors:
            value = redactor.event(value)
        return value

    def learn_commit(self, commit: Commit) -> None:
        """Lets the redaction hide what it hides in a commit of an earlier process."""
        for redactor in self.redactors:
            redactor.learn_commit(commit)
        for failure in (*commit.failed_attempts, *([] if commit.failure is None else [commit.failure])):
            self._learn(self._failure_paths(commit.node, failure.index), [failure])

    def learn_message(self, node: str, error: BaseException, failure: Failure) -> None:
        """Lets the redaction hide the text of an exception that it hides in the field that gets the failure.

        The exception is shown, by events and logs, before the commit is; and its text may be longer than the failure's.
        """
        if not self.redactors:
            return
        whole = failure.model_copy(update={"message": error_text(error)})
        self._learn(self._failure_paths(node, failure.index), [failure, whole])

    def learn_failures_of_items(self, node: str, error: BaseException) -> None:
        """Lets the redaction hide the texts of items of a map, which the error of the map repeats."""
        if self.redactors and isinstance(error, MapError):
            for failure in error.failures:
                self._learn(self._failure_paths(node, failure.index), [failure])

    def _learn(self, paths: list[KeyPath], failures: list[Failure]) -> None:
        """Remembers failures that a state may hold at these paths, or where the node around this run leads its own."""
        if self._redactor is not None:
            for path in paths:
                for failure in failures:
                    self._redactor.learn_failure(path, failure)
        if self._around is not None:
            events, node, item = self._around
            events._learn([*paths, *events._failure_paths(node, item)], failures)

    def _failure_paths(self, node: str, index: int | None) -> list[KeyPath]:
        """Where a state may hold a failure: the fields of error edges, and of an item its place in that of the map."""
        edges, nodes = self._graph.error_edges.get(node, ()), self._graph.nodes
        found: list[KeyPath] = [(edge.into,) for edge in edges if edge.into is not None]
        found += [(field,) for field in nodes[node].reports_in] if node in nodes else []
        mapped = map_fields_of(nodes.get(node))
        if mapped is not None and mapped.failures is not None and index is not None:
            found.append((mapped.failures, index))
        return found


def log_conflict(conflict: MergedConflict) -> None:
    """Logs a resolved conflict as a warning: a write was discarded."""
    if conflict.winner is not None:
        path = ".".join(map(str, conflict.path))
        writers = ", ".join(author for author, _ in conflict.values)
        decided = f"{brief(conflict.value)} by {conflict.winner}"
        logger.warning("join at %s: %s wrote %r, %s kept %s", conflict.join, writers, path, conflict.policy, decided)
