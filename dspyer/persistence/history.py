"""All runs behind some rows as one log: commits with states, whose parents lead from run to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dspyer.errors import StoreError
from dspyer.events import Commit
from dspyer.patch import Replace, seal
from dspyer.persistence.reader import HistoryReader, RunRows, read_runs
from dspyer.persistence.replay import read_commit_content
from dspyer.persistence.rows import COMMITS, CommitHeader, RowKind, UnreadablePatch
from dspyer.persistence.snapshots import latest_snapshot
from dspyer.scheduler.join import Join, RecordedResolutions
from dspyer.scheduler.lineage import LogEntry
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row

PRUNED = "pruned"
"""The author of the commit with which a pruned history begins."""


class LoggedRun(NamedTuple):
    """A run in the log.

    Attributes:
        parents: the rows that it goes on from.
        log_indexes: of its commits, in the order in which they were written.
        settled_count: how many of them were written until all branches were one for the last time.
        trunk_index: the index in the log of the last commit that all its branches shared, if need be of an earlier run.
        broken: why one of its commits cannot be read, or one that it builds on; "" if all can.
        fingerprints: the ids of the fingerprints of the graphs that made it.
    """

    parents: tuple[Point, ...]
    log_indexes: tuple[int, ...]
    settled_count: int
    trunk_index: int | None
    broken: str = ""
    fingerprints: frozenset[str] = frozenset()


class History:
    """The commits of many runs. It grows as it is asked for more, and nothing in it changes.

    A commit has the id under which it can be told from those of all other runs, for example `"t-42.1/trunk:3"`; it is
    what `ctx.execution` says in its node. It has no version here (that depends on who looks), and its `step` is the
    longest chain of commits up to it over all runs.

    Args:
        reader: reads the rows.

    Attributes:
        log: the commits.
        points: the row of each.
        steps: the step of each within its run.
        settled: whether no other branch was live when it was made, for each.
        runs: by last row, the runs in the log.
        roots: by the row at which a pruned history begins, the version that it begins with.
    """

    def __init__(self, reader: HistoryReader) -> None:
        self.reader = reader
        self.log: list[LogEntry] = []
        self.points: list[Point] = []
        self.steps: list[int] = []
        self.settled: list[bool] = []
        self.runs: dict[Point, LoggedRun] = {}
        self.roots: dict[Point, int] = {}
        self._places: dict[Point, int] = {}

    def read(self, heads: Sequence[Point], root: Point | None = None) -> None:
        """Reads what is behind some rows.

        Args:
            heads: the rows.
            root: the row at which the history begins, if older history was pruned.
        """
        for found in read_runs(self.reader.store, heads, root, self.runs):
            if root is not None and found.points[-1] == root:
                self._add_root(found, root)
            else:
                self._add(found)

    def _add_root(self, found: RunRows, root: Point) -> None:
        """The commit with which a pruned history begins: all that came before it, in one."""
        taken = latest_snapshot(self.reader.store, root, self.reader.decode)
        if taken is None or taken[0] != root:
            raise StoreError(
                f"older history was pruned at row {root.seq} of run {root.run!r}, and its snapshot is lost"
            )
        _, (state, place), _ = taken
        version = int(found.run.header.get("first", 0)) + place
        name = f"{found.labels[root.run]}/{PRUNED}"
        patch = {field: Replace(value) for field, value in state.raw_items()}
        commit = Commit(name, None, PRUNED, (), 1, 0, seal(patch), ())
        self.runs[root] = LoggedRun((), (len(self.log),), 1, len(self.log))
        self.roots[root] = version
        self.points.append(root)
        self.steps.append(0)
        self.settled.append(True)
        self._places[root] = len(self.log)
        self.log.append(LogEntry(commit, state, (), None))

    def state(self, place: int | None) -> ImmutableState:
        """The state after a commit; an empty one where there is none."""
        return ImmutableState() if place is None else self.log[place].state

    def canonical_order(self, at: Point) -> list[int]:
        """The places of a run's commits in canonical order, those of forks that have not joined last."""
        told = self.runs[at]
        settled = set(told.log_indexes[: told.settled_count])

        def order(place: int) -> tuple[bool, int, tuple[int, ...]]:
            return place not in settled, self.steps[place], self.log[place].commit.branch

        return sorted(dict.fromkeys(told.log_indexes), key=order)

    def runs_behind(self, heads: Iterable[Point]) -> list[Point]:
        """The last rows of the runs behind some rows, oldest first: as `chapters` gives them."""
        found: set[Point] = set()
        order: list[Point] = []
        stack = [(head, False) for head in reversed(list(heads))]
        while stack:
            at, done = stack.pop()
            if done:
                order.append(at)
            elif at not in found:
                found.add(at)
                stack.append((at, True))
                stack.extend((parent, False) for parent in reversed(self.runs[at].parents))
        return order

    def count_settled_not_in(self, left: Point, right: Point) -> int:
        """How many commits with a version are behind one row and not behind another, which comes first."""
        ours = self.runs_behind([left])
        theirs = [self.runs[at] for at in self.runs_behind([right]) if at not in set(ours)]
        known = {place for at in ours for place in self.runs[at].log_indexes}
        return len({place for told in theirs for place in told.log_indexes[: told.settled_count]} - known)

    def _add(self, found: RunRows) -> None:
        parents = tuple([parent for parent in found.parents if parent in self.runs])
        before = [self.runs[parent].trunk_index for parent in parents]
        broken = next((self.runs[parent].broken for parent in parents if self.runs[parent].broken), "")
        told = self.reader.fold(found, self.state(before[0] if before else None), broken)
        rows = list(_own_rows(found))
        if told.entries and not rows:  # somebody's commit whose routes nobody has asked for yet
            rows = [_opening(found)]
        places: list[int] = []
        if rows and self._is_opening(rows[0][0], found):
            rows[0] = (rows[0][0], _opening(found)[1])
        for (row, point), entry in zip(rows, told.entries, strict=True):
            place = self._places.get(point)
            if place is None:
                heads = [places[parent] for parent in entry.parents] or [head for head in before if head is not None]
                place = len(self.log)
                name = f"{found.labels.get(point.run, point.run)}/{entry.commit.id}"
                self.log.append(self._moved(entry, name, row, heads, places, found))
                self.points.append(point)
                self.steps.append(entry.commit.step)
                self.settled.append(row.kind == RowKind.OPEN or CommitHeader.parse(row.header).settled)
                self._places[point] = place
            places.append(place)
        resting = places[told.last_settled] if told.last_settled >= 0 else (before[0] if before else None)
        fingerprints = frozenset(found.fingerprints.values())
        self.runs[found.points[-1]] = LoggedRun(
            parents, tuple(places), told.last_settled + 1, resting, told.broken, fingerprints
        )

    def _moved(
        self, entry: LogEntry, name: str, row: Row, heads: list[int], places: list[int], found: RunRows
    ) -> LogEntry:
        """An entry of a run as it is in the whole log."""
        commit = entry.commit._replace(
            id=name,
            parents=tuple([self.log[head].commit.id for head in heads]),
            step=1 + max([self.log[head].commit.step for head in heads], default=-1),
        )
        if row.kind == RowKind.MERGE and len(heads) > 1 and not found.run.header.get("base"):
            written = read_commit_content(row.content, self.reader.fetch, self.reader.decode)
            node = commit.node.removeprefix("join:")
            join = Join(self.log, node, self.reader.schema, RecordedResolutions(written.resolutions), len(self.log))
            merged = join.merge(heads, [self.log[head].state for head in heads])
            return entry._replace(
                commit=commit._replace(patch=merged.patch),
                parents=tuple(heads),
                winners=merged.winners,
                conflicts=merged.conflicts,
                resolutions=merged.resolutions,
            )
        here = len(places)
        winners = {path: len(self.log) if at == here else places[at] for path, at in entry.winners.items()}
        return entry._replace(commit=commit, parents=tuple(heads), winners=winners)

    def _is_opening(self, row: Row, found: RunRows) -> bool:
        """Whether a commit is the one with which its run was opened, whoever has written it then."""
        if row.kind == RowKind.OPEN:
            return True
        try:
            return read_commit_content(row.content, self.reader.fetch, self.reader.decode).patch is None
        except Exception:  # noqa: BLE001 - it cannot be read: the structure says what it is
            return any(other.kind == RowKind.OPEN for other in found.rows)


def _own_rows(found: RunRows) -> Iterator[tuple[Row, Point]]:
    for row, point in zip(found.rows, found.points, strict=True):
        if row.kind in COMMITS and not CommitHeader.parse(row.header).scope:
            yield row, point


def _opening(found: RunRows) -> tuple[Row, Point]:
    return next((row, point) for row, point in zip(found.rows, found.points, strict=True) if row.kind == RowKind.OPEN)


def inner_commits(reader: HistoryReader, found: RunRows, scope: tuple[str, ...]) -> list[Commit]:
    """The commits inside of an execution, in canonical order. What a graph inside began with is not stored again.

    Args:
        reader: reads the rows.
        found: the run that the execution belongs to.
        scope: ids of the executions around them, the outermost first; without the mark of an item they stand for all
            items of a map.
    """
    commits: dict[tuple[str, ...], list[Commit]] = {}
    for row, point in zip(found.rows, found.points, strict=True):
        head = CommitHeader.parse(row.header) if row.kind in COMMITS else None
        if head is None or len(head.scope) != len(scope) or not all(map(_is_in, head.scope, scope)):
            continue
        siblings = commits.setdefault(head.scope, [])
        before = (len(siblings) - 1,) if siblings else ()
        parents = before if head.parents is None else head.parents
        name = "/".join((found.labels.get(point.run, point.run), *head.scope, head.id))
        written = read_commit_content(row.content, reader.fetch, reader.decode)
        siblings.append(reader.commit(head, written, [siblings[parent].id for parent in parents])._replace(id=name))
    return [
        commit
        for inner in sorted(commits, key=lambda inner: [(len(name), name) for name in inner])
        for commit in sorted(commits[inner], key=lambda commit: (commit.step, commit.branch))
    ]


def _is_in(execution: str, wanted: str) -> bool:
    return execution == wanted or execution.partition("[")[0] == wanted


class CommitListing:
    """The commits behind a row as people read them: in canonical order run by run, with versions over all of them.

    Versions and order of what is behind a row never change, since a thread that goes on only adds to it.

    Args:
        history: has read what is behind the rows.
        heads: the row; two where threads are about to be merged.

    Attributes:
        history: the same.
        heads: the same.
        commits: the commits. Those of forks that have not joined have no version and come last in their run.
        log_indexes: where each of them is in the log of the history.
        runs: the last row of the run of each, as far as it is known here.
    """

    def __init__(self, history: History, heads: Sequence[Point]) -> None:
        self.history = history
        self.heads = tuple(heads)
        self.log_indexes: list[int] = []
        self.commits: list[Commit] = []
        self.runs: list[Point] = []
        self._by_version: list[int] = []
        self._by_id: dict[str, int] = {}
        self._listed: set[int] = set()
        self.first = 0
        for at in history.runs_behind(heads):
            self._add(at)

    def _add(self, at: Point) -> None:
        history, told = self.history, self.history.runs[at]
        if not self.log_indexes:
            self.first = history.roots.get(at, 0)
        settled = set(told.log_indexes[: told.settled_count])
        for place in history.canonical_order(at):
            if place in self._listed:
                continue
            commit = history.log[place].commit
            version = None
            if place in settled:
                version = self.first + len(self._by_version)
                self._by_version.append(len(self.commits))
            self._listed.add(place)
            self._by_id.setdefault(commit.id, len(self.commits))
            self.log_indexes.append(place)
            self.runs.append(at)
            self.commits.append(commit._replace(version=version, step=history.steps[place]))

    @property
    def next_version(self) -> int:
        """The version that the next commit gets."""
        return self.first + len(self._by_version)

    @property
    def trunk_index(self) -> int | None:
        """The place in the log of the last commit that all branches shared."""
        return self.history.runs[self.heads[-1]].trunk_index if self.heads else None

    def has(self, commit_id: str) -> bool:
        """Whether one of the commits has an id, with or without its run in front."""
        try:
            self.index_of(commit_id)
        except LookupError:
            return False
        return True

    def index_of(self, version: int | str) -> int:
        """Which of the commits a version or an id names.

        Args:
            version: the version, or the id; one without a run in front is one of the last run.

        Raises:
            LookupError: if there is no such commit.
        """
        if isinstance(version, str):
            if version in self._by_id:
                return self._by_id[version]
            newest: Sequence[int] = self.history.runs[self.heads[-1]].log_indexes if self.heads else ()
            for place in reversed(newest):
                name = self.history.log[place].commit.id
                if name.rpartition("/")[2] == version and name in self._by_id:  # its own part never holds a "/"
                    return self._by_id[name]
            like = f"; ids look like {self.commits[-1].id!r}" if self.commits else ""
            raise LookupError(f"no commit has the id {version!r}{like}")
        if self.first <= version < self.next_version:
            return self._by_version[version - self.first]
        if not self._by_version:
            raise LookupError(f"no commit has version {version}: there is none that has a version")
        span = f"they go from {self.first} to {self.next_version - 1}"
        raise LookupError(f"no commit has version {version}: {span}; others are known by their id")

    def log_index_of(self, version: int | str) -> int:
        """Where the commit of a version or an id is in the log."""
        return self.log_indexes[self.index_of(version)]

    def state(self, number: int) -> ImmutableState:
        """The state after one of the commits.

        Raises:
            StoreError: if the commit, or one that it builds on, cannot be read.
        """
        patch = self.commits[number].patch
        if isinstance(patch, UnreadablePatch):
            raise StoreError(patch.error)
        return self.history.log[self.log_indexes[number]].state
