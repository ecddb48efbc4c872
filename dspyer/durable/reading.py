"""From the rows of a thread back to its commits and states. It needs the schema and no graph: it reads any history."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.durable.contents import Written
from dspyer.durable.cutting import without
from dspyer.durable.replaying import written_of
from dspyer.durable.rows import COMMITS, END, JOIN, OPEN, RESUME, CommitHead
from dspyer.errors import StoreError
from dspyer.events import Commit
from dspyer.scheduler.joining import Join, resolved_as
from dspyer.scheduler.lineage import Entry
from dspyer.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, RunRow, Store
from dspyer.stores.content import Fetch
from dspyer.values import PersistentMap, encoding

Decode = Callable[[Any], Any]


class Chapter(NamedTuple):
    """One run of a thread, with all parts that it was written in.

    Attributes:
        run: its newest part.
        parents: the rows that the run goes on from.
        rows: its rows, in the order in which they were written, without those that a later part has left out.
        points: the place of each of these rows.
        labels: by id of each part, its name for people.
    """

    run: RunRow
    parents: tuple[Point, ...]
    rows: tuple[Row, ...]
    points: tuple[Point, ...]
    labels: Mapping[str, str]

    @property
    def status(self) -> str | None:
        """How it ended: `"completed"`, `"failed"`, `"interrupted"` or `"stopped"`; None if nobody said so."""
        for row in reversed(self.rows):
            if row.kind == END:
                return str(row.head[0])
            if row.kind in COMMITS or row.kind == RESUME:
                break
        return None

    def main(self) -> Iterator[tuple[Row, CommitHead]]:
        """The rows of its own commits, without those of the graphs inside of it."""
        for row in self.rows:
            if row.kind in COMMITS:
                head = CommitHead.of(row.head)
                if not head.scope:
                    yield row, head


def chapter(store: Store, at: Point) -> Chapter:
    """The run that a row belongs to, up to this row.

    Args:
        store: where it is kept.
        at: the row.

    Raises:
        StoreError: if the store has no such run.
    """
    parts: list[tuple[RunRow, list[Row]]] = []
    run, last = run_of(store, at.run), at.seq
    while True:
        parts.append((run, store.rows(run.id, 0, last)))
        if not run.header.get("continues"):
            break
        (before,) = run.parents
        run, last = run_of(store, before.run), before.seq
    rows: list[Row] = []
    points: list[Point] = []
    for part, its_rows in reversed(parts):
        if part.header.get("without"):
            rows, places = without(rows, part.header["without"])
            points = [points[place] for place in places]
        rows += its_rows
        points += [Point(part.id, row.seq) for row in its_rows]
    labels = {part.id: str(part.header.get("label", part.id)) for part, _ in parts}
    return Chapter(parts[0][0], run.parents, tuple(rows), tuple(points), labels)


def run_of(store: Store, run: str) -> RunRow:
    """A run by its id.

    Raises:
        StoreError: if it is not there.
    """
    found = store.run(run)
    if found is None:
        raise StoreError(
            f"the store {store.address!r} has no run {run!r}, which a thread goes on from: was it removed?"
        )
    return found


def chapters(
    store: Store, heads: Sequence[Point], root: Point | None = None, known: Container[Point] = ()
) -> list[Chapter]:
    """The runs behind some rows, oldest first: what is behind a first parent, or a first row, comes before what only
    the others have.

    Args:
        store: where they are kept.
        heads: the rows.
        root: the row at which the history begins, if older history was pruned.
        known: rows at which runs have ended that are not read, nor what is behind them.
    """
    found: dict[Point, Chapter] = {}
    stack: list[tuple[Point, bool]] = [(head, False) for head in reversed(heads)]
    order: list[Point] = []
    while stack:
        at, done = stack.pop()
        if done:
            order.append(at)
        elif at not in found and at not in known:
            found[at] = chapter(store, at)
            stack.append((at, True))
            if root is None or root not in found[at].points:
                stack.extend((parent, False) for parent in reversed(found[at].parents))
    return [found[at] for at in order]


class Told(NamedTuple):
    """The commits of a chapter, each with its state, in the order in which they were written."""

    entries: list[Entry]
    before: ImmutableState
    settled: int

    @property
    def resting(self) -> ImmutableState:
        """The last state that all branches shared."""
        return self.entries[self.settled].state if self.settled >= 0 else self.before


class Reader:
    """Reads chapters with a schema.

    Args:
        store: where they are kept.
        schema: types and reducers of the fields.
        decode: what makes frozen values of their JSON form.
    """

    def __init__(self, store: Store, schema: Schema, decode: Decode = encoding.decode) -> None:
        self.fetch: Fetch = store.blobs
        self.store = store
        self.schema = schema
        self.decode = decode

    def opening(self, rows: Iterable[Row]) -> tuple[str, Mapping[str, Any]] | None:
        """The node and the patch with which a run was opened."""
        for row in rows:
            if row.kind == OPEN:
                patch = written_of(row.content, self.fetch, self.decode).patch
                return str(row.head[0]), patch or {}
        return None

    def tell(self, of: Chapter, before: ImmutableState) -> Told:
        """The commits of a chapter with their states.

        Args:
            of: the chapter.
            before: the state that it goes on from.
        """
        opening = self.opening(of.rows)
        entries: list[Entry] = []
        settled = -1
        for place, (row, packed) in enumerate(of.main()):
            head = packed
            written = written_of(row.content, self.fetch, self.decode)
            if written.patch is None:
                written = written._replace(patch=opening[1] if opening else {})
                head = opening_head(head, of.rows)
            parents = head.parents if head.parents is not None else ((place - 1,) if place else ())
            if row.kind == JOIN:
                entry = self._join(entries, head, written, parents)
            else:
                state = entries[parents[0]].state if parents else before
                after = self.schema.replay(state, written.patch or {})
                entry = Entry(self._commit(head, written, parents, entries), after, parents, _NO_TALLY)
            entries.append(entry)
            settled = place if head.settled else settled
        if not entries and opening is not None and opening[0] != "START":
            entries.append(self._by_hand(*opening, before, of.rows))
            settled = 0
        return Told(entries, before, settled)

    def _by_hand(self, node: str, patch: Mapping[str, Any], before: ImmutableState, rows: Sequence[Row]) -> Entry:
        """A commit that somebody made in the name of a node, whose routes nobody has asked for yet."""
        head = opening_head(CommitHead("trunk:0", node, 0, 1, True, (), None, (), 0, 0), rows)
        commit = self._commit(head, Written(patch), (), [])
        return Entry(commit, self.schema.replay(before, patch), (), _NO_TALLY)

    def _join(self, log: list[Entry], head: CommitHead, written: Written, parents: tuple[int, ...]) -> Entry:
        node = head.node.removeprefix("join:")
        merged = Join(log, node, self.schema, resolved_as(written.resolutions), len(log)).merge(
            parents, [log[parent].state for parent in parents]
        )
        commit = self._commit(head, written, parents, log)._replace(patch=merged.patch)
        return Entry(commit, merged.state, parents, _NO_TALLY, merged.winners, merged.conflicts, merged.resolutions)

    def _commit(self, head: CommitHead, written: Written, parents: tuple[int, ...], log: list[Entry]) -> Commit:
        return self.commit(head, written, [log[parent].commit.id for parent in parents])

    @staticmethod
    def commit(head: CommitHead, written: Written, parents: Iterable[str]) -> Commit:
        """A commit as users see it, without version.

        Args:
            head: its structure.
            written: what it holds.
            parents: ids of its parents.
        """
        return Commit(
            head.id,
            None,
            head.node,
            head.branch,
            head.visit,
            head.step,
            written.patch or {},
            tuple(parents),
            1,
            head.route,
            written.reason,
            head.started / 1_000,
            head.duration / 1_000_000,
        )


def opening_head(head: CommitHead, rows: Iterable[Row]) -> CommitHead:
    """The head of a run's first commit: what somebody made by hand has the time at which it was made."""
    made = next((row.head[1] for row in rows if row.kind == OPEN and len(row.head) > 1), None)
    return head if made is None else head._replace(started=made, duration=0)


_NO_TALLY: PersistentMap[Any, int] = PersistentMap()
