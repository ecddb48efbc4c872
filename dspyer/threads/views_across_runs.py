"""The history before a run of a thread, for views that look back over its runs.

The history is read block by block, only as far back as a view needs. The parts of a field, each with its author, form a
`FieldIndex`, which is extended commit by commit (`scheduler.provenance`). The program caches the index at the beginning
of each run, so that the next run on the thread reads only the commits since then.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

from dspyer.graph.spec import GraphSpec
from dspyer.log.history import CommitListing, part_before, part_of, read_back, runs_back
from dspyer.log.reader import HistoryReader
from dspyer.patch import DELETE
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.provenance import FieldIndex, FieldIndexes, IndexedField, PriorHistory
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, ThreadRow

logger = logging.getLogger("dspyer")

ListCommits = Callable[[Point], CommitListing]
"""Lists all commits up to a row of a thread."""


class PreviousRuns(NamedTuple):
    """The history before a run.

    Attributes:
        head: the last row of this history.
        row: the row of the thread.
        state: the state at its end.
        first: how many commits it has, which is the version of the first commit of the run.
    """

    head: Point
    row: ThreadRow
    state: ImmutableState
    first: int


class EarlierRuns:
    """The history before a run, read field by field as views ask for it. Safe for use by several threads at once."""

    def __init__(
        self,
        graph: GraphSpec,
        reader: HistoryReader,
        list_commits: ListCommits,
        recent: RecentIndexes,
        previous: PreviousRuns,
    ) -> None:
        self._graph = graph
        self._reader = reader
        self._list_commits = list_commits
        self._recent = recent
        self._previous = previous
        self._lock = Lock()
        self._parts: list[CommitListing] = []
        self._found: dict[str, PriorHistory] = {}
        self._graphs = EarlierGraphs(reader, previous)

    def __call__(self, field: str) -> PriorHistory:
        """The commits before the run, with the index of a field at the last of them; for `""`, without an index."""
        with self._lock:
            found = self._found.get(field)
            if found is None:
                found = self._found[field] = self._history_of(field)
            return found

    def _history_of(self, field: str) -> PriorHistory:
        keep, previous = self._graph.keep, self._previous
        if field and keep is not None and field not in keep:  # each run begins with its default
            default = self._graph.topology.schema.fields[field].fixed_default
            return PriorHistory.of_state(ImmutableState({} if default is DELETE else {field: default}), START)
        if not previous.first:
            return PriorHistory((), ())
        log = EarlierLog(previous, self._reader, self._parts, self._list_commits, self._graphs, field)
        return PriorHistory(log, (previous.first - 1,), self._index(field, log) if field else None)

    def _index(self, field: str, log: EarlierLog) -> FieldIndex | None:
        """The index of a field at the end of the history, extended from the newest index that is cached."""
        of, previous = IndexedField.of(self._graph.topology.schema.fields.get(field)), self._previous
        if of is None:
            return None
        known = self._recent.get(previous.head, field, previous.row.root)
        if known is not None:
            return known
        indexes, number, before = FieldIndexes(of), 0, None
        for span in runs_back(self._reader.store, previous.head, previous.row.root):
            before = span.at
            # At the newest run, number is still 0: its end is previous.head, for which no index is cached.
            known = self._recent.get(before, field, previous.row.root) if number else None
            if known is not None:
                indexes.begin(number - 1, known)
                break
            number = span.first
        made = indexes.at(log, previous.first - 1)
        self._recent.put(previous.head, field, made, before if known is not None else None, previous.row.root)
        return made


# --- commits by version


class EarlierLog:
    """The commits before a run by their versions, as the index of one field reads them.

    It is read part by part, back to the newest merge or unreadable commit, and everything before that at once.

    Pruned commits, and those of a graph that folded the field in another way, contribute their state only: the values
    in it count as new, with an unknown author.
    """

    def __init__(
        self,
        previous: PreviousRuns,
        reader: HistoryReader,
        parts: list[CommitListing],
        list_commits: ListCommits,
        graphs: EarlierGraphs,
        field: str,
    ) -> None:
        self._previous = previous
        self._reader = reader
        self._parts = parts  # newest first, as far as they were read
        self._list_commits = list_commits
        self._graphs = graphs
        self._field = field

    def __len__(self) -> int:
        return self._previous.first

    def __getitem__(self, number: int, /) -> LogEntry:
        head, root = self._previous.head, self._previous.row.root
        while not self._parts or number < self._parts[-1].first:
            oldest = self._parts[-1] if self._parts else None
            at = head if oldest is None else oldest.history.snapshot_at
            if at is None or (oldest is not None and at == root):
                break
            if oldest is None:
                part = part_of(self._reader, read_back(self._reader, head), root)
            else:
                part = part_before(self._reader, oldest, root)
            self._parts.append(part or self._list_commits(at))
        part = next((part for part in self._parts if part.first <= number), self._parts[-1])
        if number < part.first or (part.history.roots and number == part.first):
            begin = part.log_indexes[0] if part.history.roots else 0
            return self._unknown(part.history.log[begin].state, "older history was pruned")
        entry, fingerprints = part.by_version(number)
        if self._folds(fingerprints):
            return entry
        return self._unknown(entry.state, "an earlier graph folded it in another way")

    def _folds(self, fingerprints: frozenset[str]) -> bool:
        return self._graphs.fold_alike(self._field, fingerprints)

    def _unknown(self, state: ImmutableState, why: str) -> LogEntry:
        """A commit with the whole state as its patch and without an author."""
        self._graphs.warn(self._field, why)
        return PriorHistory.of_state(state, "").log[0]


class EarlierGraphs:
    """The graphs that made the runs before, for which a field may have been folded in another way."""

    def __init__(self, reader: HistoryReader, previous: PreviousRuns) -> None:
        self._reader = reader
        self._previous = previous
        self._warned: set[str] = set()

    def fold_alike(self, field: str, fingerprints: frozenset[str]) -> bool:
        """Whether the graphs with these fingerprints fold a field as the current graph does."""
        if not field:
            return True
        now = self._reader.schema.fields[field]
        then = [self._reader.schema_of(fingerprint).fields.get(field) for fingerprint in fingerprints]
        empty = field not in self._previous.state
        return all(empty if was is None else was.folds_like(now) for was in then)

    def warn(self, field: str, why: str) -> None:
        """Log once that the authors of a field are unknown."""
        if field not in self._warned:
            self._warned.add(field)
            logger.warning(
                "thread %r: it is unknown who wrote what to %r in older runs, since %s; views show all of that as new "
                "and from an unknown author",
                self._previous.row.name,
                field or "its fields",
                why,
            )


# --- indexes that are cached between runs

MOST_PARTS = 200_000
"""Most parts of fields in the cache of a program, over all threads."""


class RecentIndexes:
    """A cache of the indexes of fields at the rows where runs begin, which drops the least recently used ones.

    All indexes together have at most `most` parts. Safe for use by several threads at once.
    """

    def __init__(self, most: int = MOST_PARTS) -> None:
        self._most = most
        self._size = 0
        self._found: OrderedDict[tuple[Point, str, Point | None], FieldIndex] = OrderedDict()
        self._lock = Lock()

    def get(self, at: Point, field: str, root: Point | None = None) -> FieldIndex | None:
        """The index of a field at a row; None if it is not cached.

        The root, at which pruned history begins, is a part of the key: an index from before the pruning names authors
        that the history no longer has.
        """
        with self._lock:
            found = self._found.get((at, field, root))
            if found is not None:
                self._found.move_to_end((at, field, root))
            return found

    def put(self, at: Point, field: str, index: FieldIndex, before: Point | None, root: Point | None = None) -> None:
        """Cache the index of a field at a row, and drop the one at the row `before`, from which it was extended."""
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
    """The cache of indexes of a program."""
    recent = _recent.get(program)
    if recent is None:
        recent = _recent.setdefault(program, RecentIndexes())
    return recent


_recent: WeakKeyDictionary[object, RecentIndexes] = WeakKeyDictionary()
"""By program. Weak, so that a cache is freed with its program."""
