"""Resume the runs that can go on by themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from dspyer.errors import ConcurrentRunError, DspyerError
from dspyer.log.journal import CheckedStore
from dspyer.record.stored import due_threads
from dspyer.runtime.request import new_request
from dspyer.threads.playing import recovered_play

if TYPE_CHECKING:
    from dspyer.threads.thread import Thread

logger = logging.getLogger("dspyer")


def recover_threads(store: CheckedStore, graph: str, thread: Callable[[str], Thread]) -> list[str]:
    """Resume the runs of a graph that are due, one by one, and return the names of their threads."""
    resumed = []
    for name in due_threads(store, graph):
        try:
            recovered_play(thread(name)._stored, new_request(None, True, None)).run()
        except ConcurrentRunError:
            continue  # its owner lives, or another process was faster
        except DspyerError as error:  # one thread that cannot go on must not keep the others from it
            logger.error("the run of thread %r cannot be resumed: %s", name, error, exc_info=error)
            continue
        resumed.append(name)
    return resumed
