"""Where the events of a run go."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dspyer.errors import brief
from dspyer.events import Event, MergedConflict

Observe = Callable[[Event], None]
"""Gets each event as it happens."""

logger = logging.getLogger("dspyer")


def log_conflict(conflict: MergedConflict) -> None:
    """A resolved conflict is a warning: somebody's write did not last."""
    if conflict.winner is not None:
        path = ".".join(map(str, conflict.path))
        writers = ", ".join(author for author, _ in conflict.values)
        decided = f"{brief(conflict.value)} by {conflict.winner}"
        logger.warning("join at %s: %s wrote %r, %s kept %s", conflict.join, writers, path, conflict.policy, decided)


def ignore(event: Event) -> None:
    """Where events go when nobody listens."""
