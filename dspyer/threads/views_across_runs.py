"""The history before a run of a thread, for views that look back over its runs.

The history is read block by block, only as far back as a view needs. The parts of a field, each with its author, form a
`FieldIndex`, which is extended commit by commit (`scheduler.provenance`). The program caches the index at the beginning
of each run, so that the next run on the thread reads only the commits since then.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary, proxy

from dspyer.log.history import CommitListing, part_before, part_of, read_back, runs_back
from dspyer.patch import DELETE
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.provenance import FieldIndex, FieldIndexes, IndexedField, PriorHistory
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.stores.base import Point

if TYPE_CHECKING:
    from dspyer.threads.start import StoredThread

logger = logging.getLogger("dspyer")


@dataclass(frozen=True, eq=False)
class EarlierRuns:
    """The history before a run, read field by field as views ask for it. Safe for use by several threads at once.

    Attributes:
        thread: the thread; its program caches indexes of fields.
        head: the last row of this history.
        root: the row at which it begins, if older history was pruned.
        state: the state at its end.
        first: how many commits it has, which is the version of the first commit of the run.
    """

    thread: StoredThread
    head: Point
    root: Point | None
    state: ImmutableState
    first: int
    _lock: Lock = field(default_factory=Lock)
    _parts: list[CommitListing] = field(default_factory=list)  # newest first, as far as they were read
    _found: dict[str, PriorHistory] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def __call__(self, name: str) -> PriorHistory:
        """The commits before the run, with the index of a field at the last of them; for `""`, without an index."""
        with self._lock:
            if name not in self._found:
                self._found[name] = self._history_of(name)
            return self._found[name]

    def _history_of(self, name: str) -> PriorHistory:
        if name and not self.thread.graph.lasts(name):  # each run begins with its default
            field = self.thread.reader.schema.fields.get(name)
            default = DELETE if field is None else field.fixed_default
            return PriorHistory.of_state(ImmutableState({} if default is DELETE else {name: default}), START)
        if not self.first:
            return PriorHistory((), ())
        log = _EarlierLog(self, name)
        return PriorHistory(log, (self.first - 1,), self._index(name, log) if name else None)

    def _index(self, name: str, log: _EarlierLog) -> FieldIndex | None:
        """The index of a field at the end of the history, extended from the newest index that is cached."""
        of = IndexedField.of(self.thread.reader.schema.fields.get(name))
        if of is None:
            return None
        recent = recent_indexes(self.thread.program)
        known = recent.get(self.head, name, self.root)
        if known is not None:
            return known
        indexes, number, before = FieldIndexes(of), 0, None
        for span in runs_back(self.thread.reader.store, self.head, self.root):
            before = span.at
            # At the newest run, number is still 0: its end is the head, for which no index is cached.
            known = recent.get(before, name, self.root) if number else None
            if known is not None:
                indexes.begin(number - 1, known)
                break
            number = span.first
        # The older index is dropped: nothing begins there any more, unless the thread is rerun from before it.
        made = indexes.at(log, self.first - 1)
        recent.put(self.head, name, made, before if known is not None else None, self.root)
        return made

    def entry(self, number: int, name: str) -> LogEntry:
        """A commit by its version, as the index of a field reads it.

        The history is read part by part, back to the newest merge or unreadable commit, and everything before that at
        once. Pruned commits, and those of a graph that folded the field in another way, contribute their state only:
        the values in it count as new, with an unknown author.
        """
        parts = self._parts
        # Back from the newest: a view mostly asks for what is new since the last run.
        while not parts or number < parts[-1].first:
            oldest = parts[-1] if parts else None
            at = self.head if oldest is None else oldest.history.snapshot_at
            if at is None or (oldest is not None and at == self.root):
                break
            if oldest is None:
                part = part_of(self.thread.reader, read_back(self.thread.reader, self.head), self.root)
            else:
                part = part_before(self.thread.reader, oldest, self.root)
            parts.append(part or self.thread.history.up_to(at))
        part = next((part for part in parts if part.first <= number), parts[-1])
        if number < part.first or (part.history.roots and number == part.first):
            begin = part.log_indexes[0] if part.history.roots else 0
            return self._unknown(part.history.log[begin].state, name, "older history was pruned")
        entry, fingerprints = part.by_version(number)
        if not name or all(self._folds_alike(name, one) for one in fingerprints):
            return entry
        return self._unknown(entry.state, name, "an earlier graph folded it in another way")

    def _folds_alike(self, name: str, fingerprint: str) -> bool:
        """Return whether the graph with a fingerprint folds a field as the current graph does."""
        was = self.thread.reader.schema_of(fingerprint).fields.get(name)
        return name not in self.state if was is None else was.folds_like(self.thread.reader.schema.fields[name])

    def _unknown(self, state: ImmutableState, name: str, why: str) -> LogEntry:
        """A commit with the whole state as its patch and without an author; logged once for each field."""
        if name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "thread %r: it is unknown who wrote what to %r in older runs, since %s; views show all of that as new "
                "and from an unknown author",
                self.thread.name,
                name or "its fields",
                why,
            )
        return PriorHistory.of_state(state, "").log[0]


class _EarlierLog:
    """The commits before a run by their versions, as the index of one field reads them."""

    def __init__(self, earlier: EarlierRuns, name: str) -> None:
        # `EarlierRuns` keeps this log: a cycle would keep all states of the thread.
        self._earlier = cast("EarlierRuns", proxy(earlier))
        self._name = name

    def __len__(self) -> int:
        return self._earlier.first

    def __getitem__(self, number: int, /) -> LogEntry:
        return self._earlier.entry(number, self._name)


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
                self._size -= _cost(self._found.pop(key, None))
            self._found[at, field, root] = index
            self._size += _cost(index)
            while self._size > self._most:
                _, old = self._found.popitem(last=False)
                self._size -= _cost(old)


def _cost(index: FieldIndex | None) -> int:
    return 0 if index is None else 1 + len(index.parts)


def recent_indexes(program: object) -> RecentIndexes:
    """The cache of indexes of a program."""
    return _recent.get(program) or _recent.setdefault(program, RecentIndexes())


_recent: WeakKeyDictionary[object, RecentIndexes] = WeakKeyDictionary()
"""By program. Weak, so that a cache is freed with its program."""
