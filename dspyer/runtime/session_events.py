"""The events of a session: what they show, when they are published, and who gets them.

An event passes through one place, `SessionEvents.publish`: through the layers of the run; then it is kept for
`run.events`, and passed to the reader of the stream and to the watchers of the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import time
from typing import TYPE_CHECKING

from dspyer.display.running import LMUse
from dspyer.dspy_module.lm_records import LMWatcher
from dspyer.errors import annotate, brief
from dspyer.events import ConflictFound, Doing, Emitted, Event, MergedConflict, Token, own_copy
from dspyer.layers.layer import Layer, RunLayers

if TYPE_CHECKING:
    from dspyer.runtime.request import Request
    from dspyer.runtime.run_log import RunLog
    from dspyer.runtime.run_start import RunIds

logger = logging.getLogger("dspyer")

Watch = Callable[[str, Event], object]
"""Called with the id of an outermost run and one of its events, as its layers show it; from any thread. It must not
raise."""

WatchLM = Callable[[str, LMUse], object]
"""The same with what an LM call has used."""

_watchers: list[Watch] = []
"""Those who see the events of every run in the process. Each change is atomic: runs read it without a lock."""

_lm_watchers: list[WatchLM] = []
"""Those who see what their LM calls use."""


_set = object.__setattr__

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
    own, own_lm = partial(watch), None if watch_lm is None else partial(watch_lm)  # equal to nothing but themselves
    _watchers.append(own)
    if own_lm is not None:
        _lm_watchers.append(own_lm)
    try:
        yield
    finally:
        _watchers.remove(own)
        if own_lm is not None:
            _lm_watchers.remove(own_lm)


def lm_watchers(run_id: str) -> list[LMWatcher]:
    """What passes the LM calls of a run to those who watch them."""
    return [LMWatcher(partial(watch, run_id)) for watch in tuple(_lm_watchers)] if _lm_watchers else []


class SessionEvents:
    """The events of a session. It does not refer to the session: that would be a cycle.

    Args:
        layers: those of the run, through which events pass before any reader sees them.
        request: what the call of the run was given: its reader, where the run is, and whether a `Run` will be made.
        ids: the ids of the run.
        log: what a stored run has still to write; None for a run that is not stored.

    Attributes:
        kept: the events in order of arrival.
        queue: where the events of the outermost run wait for their reader; None for no reader.
        heard: not empty as long as anybody hears the events: a stream, `run.events`, a layer, the run around, or those
            who watch the process, who come and go. Nothing else need be published than conflicts, which are logged.
    """

    def __init__(self, layers: RunLayers, request: Request, ids: RunIds, log: RunLog | None) -> None:
        inside, keeps = request.inside, request.options.keeps_events
        self.kept: list[Event] = []
        self.queue = queue = request.queue
        self._layers = layers
        self._around = around = None if inside is None else inside.around
        self._keeps = keeps
        self._root, self._scope = ids.root, ids.scope
        self._log = log
        self._limit = None if inside is None else inside.limit
        hears = keeps or queue is not None or bool(layers.events)
        self.heard: Sequence[object] = (hears,) if hears else _watchers if around is None else around.events.heard

    def publish(self, event: Event) -> None:
        """Keeps an event and passes it on. May be called from any thread; a node that emits may wait here."""
        if self._limit is not None and self._limit.left_running:
            return
        if not self.heard and type(event) is not ConflictFound:
            return
        # It is changed in place, since no reader has it yet: a copy would take longer than the rest.
        if not event.at:
            _set(event, "at", time())
        if self._scope and not event.scope:
            _set(event, "scope", self._scope)
        for layer in self._layers.events:
            shown = _shown(layer, event)
            if shown is None:
                return
            event = shown
        if self._keeps and type(event) not in _NOT_KEPT:
            self.kept.append(event)
        if type(event) is ConflictFound and event.scope == self._scope:
            log_conflict(self._layers.shown(event).conflict)
        if _watchers and not self._scope:  # events of runs inside of nodes come here too
            for watch in tuple(_watchers):
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
            for event in events:
                self._layers.shown(event)  # an error that is published before the next write may name what is hidden
            return
        for event in events:
            self.publish(event)


def _shown(layer: Layer, event: Event) -> Event | None:
    """What a layer makes of an event; None if it drops it."""
    try:
        shown = layer.event(event)
    except Exception as error:
        annotate(error, f"in {type(layer).__name__}.event, which got {type(event).__name__}")
        raise
    if shown is not None and not isinstance(shown, Event):
        raise TypeError(f"{type(layer).__name__}.event returned {brief(shown)}: return an event, or None")
    if shown is not None and not shown.at:
        shown = own_copy(shown, scope=shown.scope or event.scope, at=event.at)
    return shown


def log_conflict(conflict: MergedConflict) -> None:
    """Logs a resolved conflict as a warning: a write was discarded."""
    if conflict.winner is not None:
        path = ".".join(map(str, conflict.path))
        writers = ", ".join(author for author, _ in conflict.values)
        decided = f"{brief(conflict.value)} by {conflict.winner}"
        logger.warning("join at %s: %s wrote %r, %s kept %s", conflict.join, writers, path, conflict.policy, decided)
