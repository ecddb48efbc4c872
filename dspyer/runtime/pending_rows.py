"""What a session has done since its last write, and the rows that the next write stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspyer.events import Commit, Event, LMCall
from dspyer.nodes.map import map_fields_of
from dspyer.nodes.node import Node
from dspyer.persistence.execution_records import MISSING, ExecutionRecords
from dspyer.persistence.lm_call_log import LMCallLog
from dspyer.persistence.lm_calls import NO_CALLS
from dspyer.persistence.rows import MapItems, NewRow, commit_row
from dspyer.scheduler.run_state import RunState
from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenList


class PendingRows:
    """The commits and events of a session since its last write.

    Attributes:
        run: the run as it was last written: a failed write returns to it.
        events: the events to publish after the next write.
        lm_calls: the LM calls in the rows of the commits.
    """

    def __init__(self, run: RunState) -> None:
        self.run = run
        self.events: list[Event] = []
        self.lm_calls: list[LMCall] = []

    def commit_rows(
        self,
        run: RunState,
        first_patch: Any,
        scope: tuple[str, ...],
        items_of: Callable[[Commit], MapItems | None],
        lm_calls: LMCallLog | None = None,
    ) -> list[NewRow]:
        """The rows of the commits of `run` since the last write.

        `first_patch` is that of its first commit, which the row of its start has already; `items_of` says which item
        rows have the results of a map; `lm_calls` has the LM calls that go with the commits.
        """
        found: list[NewRow] = []
        for index in range(len(self.run.log), len(run.log)):
            entry = run.log[index]
            commit = entry.commit
            calls = NO_CALLS
            if lm_calls is not None and lm_calls.waits:
                execution = "/".join((*scope, commit.id))
                # Before the commit: whatever keeps the commit keeps these, too.
                found += lm_calls.rows_inside(execution, self.lm_calls)
                calls = lm_calls.packed(execution, int(commit.started * 1_000), self.lm_calls)
            is_first = commit.patch is first_patch
            made, schema = {}, run.topology.schema
            if schema.user_folded and entry.parents:  # a join may have changed each of these fields
                written = commit.patch if len(entry.parents) == 1 else schema.user_folded
                made = schema.made(run.log[entry.parents[0]].state, entry.state, written)
            found.append(commit_row(entry, index, scope, made, is_first, items_of(commit), *calls))
        return found

    def written(self, run: RunState) -> list[Event]:
        """Marks a run as written; returns the events that may now be published."""
        events, self.events, self.run = self.events, [], run
        self.lm_calls.clear()
        return events


def item_results(commit: Commit, node: Node | None, records: ExecutionRecords, execution: str) -> MapItems | None:
    """The results of a map, if item rows hold them already, so that the row of its commit does not repeat them."""
    mapped = map_fields_of(node)
    if node is None or mapped is None:
        return None
    into, failures = mapped.into, mapped.failures
    results = commit.patch.get(into)
    if not isinstance(results, FrozenList) or not results:
        return None
    failed = () if failures is None else commit.patch.get(failures, ())
    found = MapItems(into, len(results), tuple([failure.index for failure in failed]))
    items = [records.items.get(name, MISSING) for name in found.ids(execution)]
    fits = all(one is two or same(one, two) for one, two in zip(items, results.raw_items(), strict=True))
    return found if fits else None
