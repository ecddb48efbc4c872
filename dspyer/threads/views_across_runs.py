"""What lies behind a run of a thread, for views that span its runs: read block by block, as far as a view looks back.

The parts of a field, each with its author, are an index that grows with the commits. The one at the end of a run is
kept for the next run that this process begins on the thread: that run reads what came since, and no more.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

from dspyer.graph.spec import GraphSpec
from dspyer.patch import DELETE
from dspyer.persistence.history import CommitListing
from dspyer.persistence.history_parts import LinearHistory, recovered_block, runs_back
from dspyer.persistence.reader import HistoryReader
from dspyer.persistence.snapshots import recover_state
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.provenance import FieldIndex, FieldIndexes, IndexedField, PriorHistory
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, ThreadRow

logger = logging.getLogger("dspyer")

Older = Callable[[Point], CommitListing]
"""Gives all commits up to a row of a thread."""

MOST_PARTS = 200_000
"""Parts of fields that a program keeps between runs, over all threads."""


class RecentIndexes:
    """The indexes of fields at the rows where runs have begun, the latest of them. It may be used by any thread.

    Args:
        most: how many parts are kept.
    """

    def __init__(self, most: int = MOST_PARTS) -> None:
        self._most = most
        self._size = 0
        self._found: OrderedDict[tuple[Point, str, Point | None], FieldIndex] = OrderedDict()
        self._lock = Lock()

    def get(self, at: Point, field: str, root: Point | None = None) -> FieldIndex | None:
        """The index of a field at a row; None if it is not kept.

        Args:
            at: the row.
            field: the field.
            root: where the history begins, if older history was pruned: an index from before names authors that the
                history does not name any more.
        """
        with self._lock:
            found = self._found.get((at, field, root))
            if found is not None:
                self._found.move_to_end((at, field, root))
            return found

    def put(self, at: Point, field: str, index: FieldIndex, before: Point | None, root: Point | None = None) -> None:
        """Keeps the index of a field at a row.

        Args:
            at: the row.
            field: the field.
            index: the index.
            before: the row whose index it was made from, which is not kept any more.
            root: where the history begins, if older history was pruned.
        """
        with self._lock:
            for key in ((at, field, root), *([] if before is None else [(before, field, root)])):
                old = self._found.pop(key, None)
                self._size -= 0 if old is None else 1 + len(old.row)
            self._found[at, field, root] = index
            self._size += 1 + len(index.row)
            while self._size > self._most:
                _, old = self._found.popitem(last=False)
                self._size -= 1 + len(old.row)


class PreviousRuns(NamedTuple):
    """Where a run goes on from.

    Attributes:
        head: the row.
        row: the thread.
        state: the state there.
        first: the number of the first commit of the run.
    """

    head: Point
    row: ThreadRow
    state: ImmutableState
    first: int


class EarlierGraphs:
    """What the graphs of earlier runs did with the fields.

    Args:
        reader: reads rows.
        past: where the run goes on from.
    """

    def __init__(self, reader: HistoryReader, past: PreviousRuns) -> None:
        self._reader = reader
        self._past = past
        self._told: set[str] = set()

    def fold(self, field: str, shapes: frozenset[str]) -> bool:
        """Whether graphs of these fingerprints fold a field as this one does."""
        if not field:
            return True
        now = self._reader.schema.fields[field]
        then = [self._reader.schema_of(shape).fields.get(field) for shape in shapes]
        empty = field not in self._past.state
        return all(empty if was is None else was.folds_like(now) for was in then)

    def warn(self, field: str, why: str) -> None:
        """Logs once that the authors of a field are not known any more."""
        if field not in self._told:
            self._told.add(field)
            logger.warning(
                "thread %r: it is not known any more who brought what to %r in older runs, since %s; views take all "
                "of that as new and from an unknown author",
                self._past.row.name,
                field or "its fields",
                why,
            )


class EarlierLog:
    """The commits behind a run by their numbers, for one field.

    What a graph has made that folded the field in another way counts as a state of which no more is known, and so does
    what comes before pruned history.

    Args:
        past: where the run goes on from.
        line: the commits as far as they are of one history; None if the last ones are not.
        older: gives all commits up to a row.
        graphs: what is known of the graphs that made them.
        field: the field; `""` for none.
    """

    def __init__(
        self, past: PreviousRuns, line: LinearHistory | None, older: Older, graphs: EarlierGraphs, field: str
    ) -> None:
        self._past = past
        self._line = line
        self._older = older
        self._graphs = graphs
        self._field = field
        self._whole: tuple[CommitListing, dict[int, int]] | None = None

    def __len__(self) -> int:
        return self._past.first

    def __getitem__(self, number: int, /) -> LogEntry:
        block = None if self._line is None else self._line.block(number)
        if block is None:
            return self._entry_of_all(number)
        entry = block.entries[number - block.first]
        if self._folds(block.fingerprints[number - block.first]):
            return entry
        return self._unknown(entry.state, "an earlier graph folded it in another way")

    def _entry_of_all(self, number: int) -> LogEntry:
        """A commit of merged or pruned history."""
        oldest = None if self._line is None else self._line.oldest
        at = self._past.head if oldest is None or oldest.snapshot_at is None else oldest.snapshot_at
        if at == self._past.row.root:
            state = self._past.state if oldest is None else oldest.state
            return self._unknown(state, "older history was pruned")
        if self._whole is None:
            listed = self._older(at)
            versions = {
                place: commit.version or 0 for place, commit in zip(listed.log_indexes, listed.commits, strict=True)
            }
            self._whole = listed, versions
        listed, versions = self._whole
        entry = listed.history.log[listed.log_index_of(number)]
        shapes = [listed.history.runs[run].fingerprints for run in listed.history.runs_behind(listed.heads)]
        if listed.history.roots or not all(map(self._folds, shapes)):
            why = "older history was pruned" if listed.history.roots else "an earlier graph folded it in another way"
            return self._unknown(entry.state, why)
        parents = tuple([versions[parent] for parent in entry.parents])
        return entry._replace(parents=parents, winners={path: versions[at] for path, at in entry.winners.items()})

    def _folds(self, shapes: frozenset[str]) -> bool:
        return self._graphs.fold(self._field, shapes)

    def _unknown(self, state: ImmutableState, why: str) -> LogEntry:
        self._graphs.warn(self._field, why)
        return PriorHistory.state(state, "").log[0]


class EarlierRuns:
    """Gives what lies behind a run, field by field. It may be called from any thread.

    Args:
        blueprint: the graph of the run.
        reader: reads rows.
        older: gives all commits up to a row.
        recent: what is kept between runs.
        past: where the run goes on from.
    """

    def __init__(
        self, blueprint: GraphSpec, reader: HistoryReader, older: Older, recent: RecentIndexes, past: PreviousRuns
    ) -> None:
        self._blueprint = blueprint
        self._reader = reader
        self._older = older
        self._recent = recent
        self._past = past
        self._lock = Lock()
        self._line: LinearHistory | None = None
        self._begun = False
        self._found: dict[str, PriorHistory] = {}
        self._graphs = EarlierGraphs(reader, past)

    def __call__(self, field: str) -> PriorHistory:
        """The commits of earlier runs, and the parts of a field there.

        Args:
            field: the field; `""` for no field, but the commits.
        """
        with self._lock:
            found = self._found.get(field)
            if found is None:
                found = self._found[field] = self._behind(field)
            return found

    def _behind(self, field: str) -> PriorHistory:
        keep, past = self._blueprint.keep, self._past
        if field and keep is not None and field not in keep:  # each run begins with its default
            default = self._blueprint.topology.schema.fields[field].fixed_default
            return PriorHistory.state(ImmutableState({} if default is DELETE else {field: default}), START)
        if not past.first:
            return PriorHistory((), ())
        if not self._begun:
            self._begun, self._line = True, self._newest()
        log = EarlierLog(past, self._line, self._older, self._graphs, field)
        return PriorHistory(log, (past.first - 1,), self._index(field, log) if field else None)

    def _newest(self) -> LinearHistory | None:
        root = self._past.row.root
        block = recovered_block(self._reader, recover_state(self._reader, self._past.head), root)
        return None if block is None else LinearHistory(self._reader, block, root)

    def _index(self, field: str, log: EarlierLog) -> FieldIndex | None:
        """The parts of a field where the run goes on from: made from those where an earlier run did."""
        of, past = IndexedField.of(self._blueprint.topology.schema.fields.get(field)), self._past
        if of is None:
            return None
        known = self._recent.get(past.head, field, past.row.root)
        if known is not None:
            return known
        indexes, number, before = FieldIndexes(of), 0, None
        for span in runs_back(self._reader.store, past.head, past.row.root):
            before = span.at
            known = self._recent.get(before, field, past.row.root) if number else None
            if known is not None:
                indexes.begin(number - 1, known)
                break
            number = span.first
        made = indexes.at(log, past.first - 1)
        self._recent.put(past.head, field, made, before if known is not None else None, past.row.root)
        return made


def recent_indexes(program: object) -> RecentIndexes:
    """What the views of a program keep between runs."""
    recent = _recent.get(program)
    if recent is None:
        recent = _recent.setdefault(program, RecentIndexes())
    return recent


_recent: WeakKeyDictionary[object, RecentIndexes] = WeakKeyDictionary()
