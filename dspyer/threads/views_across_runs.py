"""The history before a run of a thread, for views that look back over its runs.

It is read block by block, as far as a view looks back. The parts of a field, each with its author, are an index that
grows with the commits (`scheduler.provenance`). The program keeps the index at the begin of each run, so that the next
run on the thread reads only the commits since then.
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
from dspyer.persistence.recovery import recover_state
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.provenance import FieldIndex, FieldIndexes, IndexedField, PriorHistory
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, ThreadRow

logger = logging.getLogger("dspyer")

Older = Callable[[Point], CommitListing]
"""Lists all commits up to a row of a thread."""


class PreviousRuns(NamedTuple):
    """The history before a run.

    Attributes:
        head: its last row.
        row: the row of the thread.
        state: the state at its end.
        first: how many commits it has, which is the version of the first commit of the run.
    """

    head: Point
    row: ThreadRow
    state: ImmutableState
    first: int


class EarlierRuns:
    """The history before a run, field by field, read when a view asks for it. Safe for use by several threads at once.

    Args:
        graph: of the run.
        reader: reads the store.
        older: lists all commits up to a row.
        recent: the indexes that the program keeps between runs.
        past: the history before the run.
    """

    def __init__(
        self, graph: GraphSpec, reader: HistoryReader, older: Older, recent: RecentIndexes, past: PreviousRuns
    ) -> None:
        self._graph = graph
        self._reader = reader
        self._older = older
        self._recent = recent
        self._past = past
        self._lock = Lock()
        self._line: LinearHistory | None = None
        self._was_read = False
        self._found: dict[str, PriorHistory] = {}
        self._graphs = EarlierGraphs(reader, past)

    def __call__(self, field: str) -> PriorHistory:
        """The commits before the run, and the parts of a field there; of `""` the commits only."""
        with self._lock:
            found = self._found.get(field)
            if found is None:
                found = self._found[field] = self._history_of(field)
            return found

    def _history_of(self, field: str) -> PriorHistory:
        keep, past = self._graph.keep, self._past
        if field and keep is not None and field not in keep:  # each run begins with its default
            default = self._graph.topology.schema.fields[field].fixed_default
            return PriorHistory.of_state(ImmutableState({} if default is DELETE else {field: default}), START)
        if not past.first:
            return PriorHistory((), ())
        if not self._was_read:
            self._was_read, self._line = True, self._read_newest()
        log = EarlierLog(past, self._line, self._older, self._graphs, field)
        return PriorHistory(log, (past.first - 1,), self._index(field, log) if field else None)

    def _read_newest(self) -> LinearHistory | None:
        """The history back from its last row; None if its newest part is merged or cannot be read."""
        root = self._past.row.root
        block = recovered_block(self._reader, recover_state(self._reader, self._past.head), root)
        return None if block is None else LinearHistory(self._reader, block, root)

    def _index(self, field: str, log: EarlierLog) -> FieldIndex | None:
        """The index of a field at the end of the history, made from the newest index that is kept."""
        of, past = IndexedField.of(self._graph.topology.schema.fields.get(field)), self._past
        if of is None:
            return None
        known = self._recent.get(past.head, field, past.row.root)
        if known is not None:
            return known
        indexes, number, before = FieldIndexes(of), 0, None
        for span in runs_back(self._reader.store, past.head, past.row.root):
            before = span.at
            # At the newest run, number is still 0: its end is past.head, for which no index is kept.
            known = self._recent.get(before, field, past.row.root) if number else None
            if known is not None:
                indexes.begin(number - 1, known)
                break
            number = span.first
        made = indexes.at(log, past.first - 1)
        self._recent.put(past.head, field, made, before if known is not None else None, past.row.root)
        return made


# --- commits by version


class EarlierLog:
    """The commits before a run by their versions, as the index of one field reads them.

    Of commits of a graph that folded the field in another way, and of pruned history, only the state is used: the
    values there count as new, and their author as unknown.

    Args:
        past: the history before the run.
        line: reads it in blocks, back to the first merge or pruning; None if even the newest block cannot be read so.
        older: lists all commits up to a row, for what is before that.
        graphs: the graphs that made the commits.
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
        self._all: tuple[CommitListing, dict[int, int]] | None = None

    def __len__(self) -> int:
        return self._past.first

    def __getitem__(self, number: int, /) -> LogEntry:
        block = None if self._line is None else self._line.block(number)
        if block is None:
            return self._entry_from_all(number)
        entry = block.entries[number - block.first]
        if self._folds(block.fingerprints[number - block.first]):
            return entry
        return self._unknown(entry.state, "an earlier graph folded it in another way")

    def _entry_from_all(self, number: int) -> LogEntry:
        """A commit of merged or pruned history, for which all commits are listed."""
        oldest = None if self._line is None else self._line.oldest
        at = self._past.head if oldest is None or oldest.snapshot_at is None else oldest.snapshot_at
        if at == self._past.row.root:
            state = self._past.state if oldest is None else oldest.state
            return self._unknown(state, "older history was pruned")
        if self._all is None:
            listed = self._older(at)
            versions = {
                index: commit.version or 0 for index, commit in zip(listed.log_indexes, listed.commits, strict=True)
            }
            self._all = listed, versions
        listed, versions = self._all
        entry = listed.history.log[listed.log_index_of(number)]
        fingerprints = [listed.history.runs[run].fingerprints for run in listed.history.runs_behind(listed.heads)]
        if listed.history.roots or not all(map(self._folds, fingerprints)):
            why = "older history was pruned" if listed.history.roots else "an earlier graph folded it in another way"
            return self._unknown(entry.state, why)
        parents = tuple([versions[parent] for parent in entry.parents])
        return entry._replace(parents=parents, winners={path: versions[at] for path, at in entry.winners.items()})

    def _folds(self, fingerprints: frozenset[str]) -> bool:
        return self._graphs.fold(self._field, fingerprints)

    def _unknown(self, state: ImmutableState, why: str) -> LogEntry:
        """A commit with the whole state as its patch and without an author."""
        self._graphs.warn(self._field, why)
        return PriorHistory.of_state(state, "").log[0]


class EarlierGraphs:
    """The graphs that made the runs before, for which a field may have been folded in another way."""

    def __init__(self, reader: HistoryReader, past: PreviousRuns) -> None:
        self._reader = reader
        self._past = past
        self._warned: set[str] = set()

    def fold(self, field: str, fingerprints: frozenset[str]) -> bool:
        """Whether the graphs of some fingerprints fold a field as the graph now does."""
        if not field:
            return True
        now = self._reader.schema.fields[field]
        then = [self._reader.schema_of(fingerprint).fields.get(field) for fingerprint in fingerprints]
        empty = field not in self._past.state
        return all(empty if was is None else was.folds_like(now) for was in then)

    def warn(self, field: str, why: str) -> None:
        """Log once that the authors of a field are unknown."""
        if field not in self._warned:
            self._warned.add(field)
            logger.warning(
                "thread %r: it is unknown who wrote what to %r in older runs, since %s; views show all of that as new "
                "and from an unknown author",
                self._past.row.name,
                field or "its fields",
                why,
            )


# --- indexes that are kept between runs

MOST_PARTS = 200_000
"""Most parts of fields that a program keeps between runs, over all threads."""


class RecentIndexes:
    """A cache of the indexes of fields at the rows where runs begin, which drops the least recently used ones.

    Safe for use by several threads at once.

    Args:
        most: the most parts of fields in all indexes together.
    """

    def __init__(self, most: int = MOST_PARTS) -> None:
        self._most = most
        self._size = 0
        self._found: OrderedDict[tuple[Point, str, Point | None], FieldIndex] = OrderedDict()
        self._lock = Lock()

    def get(self, at: Point, field: str, root: Point | None = None) -> FieldIndex | None:
        """The index of a field at a row; None if it is not kept.

        The root, at which pruned history begins, is a part of the key: an index from before the pruning names authors
        that the history no longer has.
        """
        with self._lock:
            found = self._found.get((at, field, root))
            if found is not None:
                self._found.move_to_end((at, field, root))
            return found

    def put(self, at: Point, field: str, index: FieldIndex, before: Point | None, root: Point | None = None) -> None:
        """Keep the index of a field at a row, and drop the one at the row `before`, from which it was made."""
        with self._lock:
            for key in ((at, field, root), *([] if before is None else [(before, field, root)])):
                old = self._found.pop(key, None)
                self._size -= 0 if old is None else 1 + len(old.parts)
            self._found[at, field, root] = index
            self._size += 1 + len(index.parts)
            while self._size > self._most:
                _, old = self._found.popitem(last=False)
                self._size -= 1 + len(old.parts)


def recent_indexes(program: object) -> RecentIndexes:
    """The indexes that a program keeps between runs."""
    recent = _recent.get(program)
    if recent is None:
        recent = _recent.setdefault(program, RecentIndexes())
    return recent


_recent: WeakKeyDictionary[object, RecentIndexes] = WeakKeyDictionary()
"""Weak, so that the indexes of a program go with it."""
