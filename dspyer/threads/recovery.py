"""Resume the runs whose processes have crashed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dspyer.errors import ConcurrentRunError, DspyerError
from dspyer.log.journal import CheckedStore
from dspyer.runtime.request import new_request
from dspyer.stores.base import RunQuery
from dspyer.threads.playing import recovered_play

if TYPE_CHECKING:
    from dspyer.threads.thread import Thread

logger = logging.getLogger("dspyer")

BATCH = 256


def recover_threads(store: CheckedStore, graph: str, thread: Callable[[str], Thread]) -> list[str]:
    """Resume the crashed runs of a graph, one by one, and return the names of their threads."""
    resumed = []
    for name in _crashed(store, graph):
        try:
            recovered_play(thread(name)._stored, new_request(None, True, None)).run()
        except ConcurrentRunError:
            continue  # its owner lives, or another process was faster
        except DspyerError as error:  # one thread that cannot go on must not keep the others from it
            logger.error("the crashed run of thread %r cannot be resumed: %s", name, error, exc_info=error)
            continue
        resumed.append(name)
    return resumed


def _crashed(store: CheckedStore, graph: str) -> Iterator[str]:
    """The threads whose last run has no end; whether its owner lives is asked where it is acquired."""
    query = RunQuery(graph=graph, statuses=frozenset([""]), last=True, limit=BATCH)
    while True:
        batch = store.list_runs(query)
        for listed in batch:
            # A copy without a run of its own shows the run of another thread, and was made to be looked at.
            if listed.run.thread == listed.thread.name:
                yield listed.thread.name
        if len(batch) < query.limit:
            return
        query = query._replace(after=batch[-1].place)
