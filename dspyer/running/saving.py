"""Writing a run down as it goes on: what has happened since the last write, and when it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspyer.durable.rows import NewRow, commit_row
from dspyer.events import Commit, Event
from dspyer.scheduler.run_state import RunState, Target
from dspyer.values.frozen import FrozenDict

ItemsOf = Callable[[Commit], tuple[str, int] | None]


class PendingRows:
    """What has happened in a session since its run was last written down.

    Attributes:
        run: the run as it was written.
        events: what was not shown yet.
    """

    def __init__(self, run: RunState) -> None:
        self.run = run
        self.events: list[Event] = []
        self._overlays: dict[str, tuple[FrozenDict[str, Any] | None, ...]] = {}

    def sent(self, execution_id: str, targets: Sequence[Target]) -> None:
        """Notes what an execution sends to its targets."""
        if len(targets) != 1 or targets[0].overlay is not None:
            self._overlays[execution_id] = tuple([target.overlay for target in targets])

    def drafts(
        self, run: RunState, scope: tuple[str, ...], opening: Mapping[str, Any], items_of: ItemsOf
    ) -> list[NewRow]:
        """The rows of the commits that were not written yet.

        Args:
            run: the run as it is now.
            scope: the executions around it.
            opening: the patch with which it was opened.
            items_of: the field of a map whose results have rows of their own, and how many there are.
        """
        found = []
        log = run.log
        for place in range(len(self.run.log), len(log)):
            entry = log[place]
            commit = entry.commit
            overlays = self._overlays.pop(commit.id, ()) if self._overlays else ()
            found.append(commit_row(entry, place, scope, overlays, commit.patch is opening, items_of(commit)))
        return found

    def take(self, run: RunState) -> list[Event]:
        """Takes a run as written, and gives the events that may be shown now."""
        events, self.events, self.run = self.events, [], run
        return events
