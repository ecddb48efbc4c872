"""What lies behind a run of a thread, for views that span its runs: read from the history once somebody looks there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

from dspyer.building.blueprint import Blueprint
from dspyer.durable.history import History
from dspyer.patch import DELETE
from dspyer.scheduler.provenance import Behind
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, ThreadRow

Read = Callable[[Sequence[Point]], History]

logger = logging.getLogger("dspyer")


class Past(NamedTuple):
    """Where a run goes on from.

    Attributes:
        thread: the name of the thread.
        heads: the rows.
        state: the state there.
        pruned: whether older history is gone.
    """

    thread: str
    heads: tuple[Point, ...]
    state: ImmutableState
    pruned: bool


class EarlierRuns:
    """Gives what lies behind a run, field by field.

    Args:
        blueprint: the graph of the run.
        read: reads the history behind some rows.
        past: where the run goes on from.
    """

    def __init__(self, blueprint: Blueprint, read: Read, past: Past) -> None:
        self._blueprint = blueprint
        self._read = read
        self._past = past
        self._reading = Lock()
        self._behind: Behind | None = None
        self._folds: dict[str, bool] = {}
        self._told: set[str] = set()
        self._history: History | None = None

    def __call__(self, field: str) -> Behind:
        """The commits of earlier runs; for a field of which they tell nothing, its value alone.

        Args:
            field: the field; `""` for no field, but the commits.
        """
        keep, past = self._blueprint.keep, self._past
        if field and keep is not None and field not in keep:  # each run begins with its default
            default = self._blueprint.topology.schema.fields[field].fixed_default
            return Behind.state(ImmutableState({} if default is DELETE else {field: default}), START)
        with self._reading:
            why = "older history was pruned" if past.pruned else "an earlier graph folded it in another way"
            if not past.pruned and self._known(field):
                assert self._behind is not None
                return self._behind
            if field not in self._told:
                self._told.add(field)
                logger.warning(
                    "thread %r: nobody knows any more who brought what to %r before this run, since %s; views take all "
                    "of it as new and from an unknown author",
                    past.thread,
                    field or "its fields",
                    why,
                )
        return Behind.state(past.state, "")

    def _known(self, field: str) -> bool:
        """Whether the commits of all earlier runs were folded as this graph folds the field."""
        if self._history is None:
            self._history = self._read(self._past.heads)
            runs = [self._history.runs[head] for head in self._past.heads]
            heads = tuple([run.resting for run in runs if run.resting is not None])
            self._behind = Behind(tuple(self._history.log), heads)
        history = self._history
        if field and field not in self._folds:
            shapes = {shape for at in history.behind(self._past.heads) for shape in history.runs[at].shapes}
            now = history.reader.schema.fields[field]
            then = [history.reader.schema_of(shape).fields.get(field) for shape in shapes]
            empty = field not in self._past.state
            self._folds[field] = all(empty if was is None else was.folds_like(now) for was in then)
        return not field or self._folds[field]


def earlier_runs(
    blueprint: Blueprint, read: Read, heads: tuple[Point, ...], state: ImmutableState, row: ThreadRow | None
) -> EarlierRuns | None:
    """What lies behind a run, for its views; None for nothing.

    Args:
        blueprint: the graph of the run.
        read: reads the history behind some rows.
        heads: the rows that it goes on from.
        state: the state there.
        row: where its thread stands.
    """
    if not heads or row is None:
        return None
    return EarlierRuns(blueprint, read, Past(row.name, heads, state, row.root is not None))
