"""From the rows of a thread back to its commits and states. It needs the schema and no graph: it reads any history."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from dspyer.errors import StoreError
from dspyer.events import Commit
from dspyer.patch import DELETE, seal
from dspyer.persistence.replay import read_commit_content
from dspyer.persistence.rows import COMMITS, CommitContent, CommitHeader, MapCommitContent, RowKind, UnreadablePatch
from dspyer.reducers import BUILT_IN, Reducer
from dspyer.scheduler.join import Join, RecordedResolutions
from dspyer.scheduler.lineage import LogEntry
from dspyer.schema.fields import STARTS, Field
from dspyer.schema.limits import Limit
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, RunRow, Store
from dspyer.stores.content import Fetch
from dspyer.values import json as encoding
from dspyer.values.persistent import PersistentMap
from dspyer.values.types import Opaque

Decode = Callable[[Any], Any]


class RunRows(NamedTuple):
    """One run of a thread, with all parts that it was written in.

    Attributes:
        run: its newest part.
        parents: the rows that the run goes on from.
        rows: its rows, in the order in which they were written, without those that a later part has left out.
        points: the place of each of these rows.
        labels: by id of each part, its name for people.
        fingerprints: by id of each part, the id of the fingerprint of the graph that made it.
    """

    run: RunRow
    parents: tuple[Point, ...]
    rows: tuple[Row, ...]
    points: tuple[Point, ...]
    labels: Mapping[str, str]
    fingerprints: Mapping[str, str] = MappingProxyType({})

    @property
    def fingerprint(self) -> str:
        """The id of the fingerprint of the graph that made its newest part; `""` if it is not known."""
        return str(self.run.header.get("shape", ""))

    @property
    def status(self) -> str | None:
        """How it ended: `"completed"`, `"failed"`, `"interrupted"` or `"stopped"`; None if it has not ended."""
        end = ending_row(reversed(self.rows))
        return None if end is None else str(end.header[0])

    def own_commits(self) -> Iterator[tuple[Row, CommitHeader]]:
        """The rows of its own commits, without those of the graphs inside of it."""
        for row in self.rows:
            if row.kind in COMMITS:
                head = CommitHeader.parse(row.header)
                if not head.scope:
                    yield row, head


def read_run(store: Store, at: Point) -> RunRows:
    """The run that a row belongs to, up to this row.

    Args:
        store: where it is kept.
        at: the row.

    Raises:
        StoreError: if the store has no such run or row, or a part of the run continues itself.
    """
    parts: list[tuple[RunRow, list[Row]]] = []
    run, last = load_run(store, at.run), at.seq
    ancestry = RunAncestry(store, run)
    while True:
        parts.append((run, store.rows(run.id, 0, last)))
        if not parts[-1][1] or parts[-1][1][-1].seq != last:
            raise StoreError(f"the store {store.address!r} has no row {last} of run {run.id!r}, which a thread needs")
        if not run.header.get("continues"):
            break
        run, last = ancestry.continued_part(run)
    rows: list[Row] = []
    points: list[Point] = []
    for part, its_rows in reversed(parts):
        if part.header.get("without"):
            rows, places = without_rows(rows, part.header["without"])
            points = [points[place] for place in places]
        if part.header.get("names"):
            rows = [rename_nodes(row, part.header["names"]) for row in rows]
        rows += its_rows
        points += [Point(part.id, row.seq) for row in its_rows]
    rows = with_map_results(rows)
    labels = {part.id: str(part.header.get("label", part.id)) for part, _ in parts}
    fingerprints = {part.id: str(part.header.get("shape", "")) for part, _ in parts}
    return RunRows(parts[0][0], run.parents, tuple(rows), tuple(points), labels, fingerprints)


def ending_row(newest: Iterable[Row]) -> Row | None:
    """The row that says how a run ended; None if it has not ended, or was resumed since.

    Args:
        newest: the rows of the run, newest first.
    """
    for row in newest:
        if row.kind == RowKind.END:
            return row
        if row.kind in COMMITS or row.kind == RowKind.RESUME:
            break
    return None


def newest_rows(store: Store, at: Point) -> Iterator[tuple[RunRow, Row]]:
    """The rows of a run up to one of them, newest first, each with the part of the run that it is in.

    They are read in pages, each twice as long as the one before: what is looked for is mostly among the last few.

    Args:
        store: where it is kept.
        at: the row.
    """
    run, last, count, given = load_run(store, at.run), at.seq, PAGE, 0
    ancestry = RunAncestry(store, run)
    while True:
        while last >= 0:
            page = store.rows(run.id, max(last - count + 1, 0), last)
            yield from ((run, row) for row in reversed(page))
            given += len(page)
            last, count = last - count, 2 * count
        if not run.header.get("continues"):
            return
        if run.header.get("without") or run.header.get("names"):
            break
        run, last = ancestry.continued_part(run)
    whole = read_run(store, at)  # what comes before this part counts in part only, or with other names
    parts = {name: load_run(store, name) for name in whole.labels}
    older = list(zip(whole.rows, whole.points, strict=True))[: len(whole.rows) - given]
    yield from ((parts[point.run], row) for row, point in reversed(older))


PAGE = 16
"""Rows that `newest` reads at first."""


def with_map_results(rows: Sequence[Row], earlier: Callable[[], Sequence[Row]] = tuple) -> list[Row]:
    """Rows in which the commits of maps hold what the rows of their items do.

    Args:
        rows: rows of a run.
        earlier: gives those before them, if they do not begin with the first.
    """
    items = {str(row.header[0]): row.content for row in rows if row.kind == RowKind.ITEM}
    found: list[Row] = []
    for row in rows:
        head = CommitHeader.parse(row.header) if row.kind in COMMITS and len(row.header) > _PLACE_OF_ITEMS else None
        if head is None or head.items is None or row.content is None:
            found.append(row)
            continue
        names = head.item_names if head.items[1] <= len(items) else []
        if head.items[1] > len(items) or not all(name in items for name in names):
            items = {**{str(one.header[0]): one.content for one in earlier() if one.kind == RowKind.ITEM}, **items}
            names = head.item_names if head.items[1] <= len(items) else [""]
        results = [content for name in names if (content := items.get(name)) is not None]
        if len(results) < len(names):
            raise StoreError(f"commit {head.id} of {head.node!r} refers to rows of its items, which are not there")
        found.append(row._replace(content=MapCommitContent(row.content, head.items[0], results)))
    return found


_PLACE_OF_ITEMS = 10


def rename_nodes(row: Row, names: Mapping[str, str]) -> Row:
    """A row with new names of nodes.

    Args:
        row: the row.
        names: new names of nodes by their old ones.
    """
    if row.kind == RowKind.OPEN:
        return row._replace(header=(names.get(row.header[0], row.header[0]), *row.header[1:]))
    if row.kind not in COMMITS:
        return row
    head = CommitHeader.parse(row.header)
    if head.scope:
        return row
    author, _, node = head.node.rpartition(":")
    now = names.get(node, node)
    route = tuple([names.get(target, target) for target in head.route])
    return row._replace(header=head._replace(node=f"{author}:{now}" if author else now, route=route).pack())


def load_run(store: Store, run: str) -> RunRow:
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


class RunAncestry:
    """The runs on the ancestry back from a row. None of them comes twice, in what dspyer has written.

    Args:
        store: where they are kept.
        first: the run of the row.
    """

    def __init__(self, store: Store, first: RunRow | None = None) -> None:
        self._store = store
        self._passed = set() if first is None else {first.id}

    def visit(self, run: str) -> None:
        """Notes that the ancestry goes over a run.

        Raises:
            StoreError: if it did so before.
        """
        if run in self._passed:
            raise cyclic_history(self._store, run)
        self._passed.add(run)

    def continued_part(self, run: RunRow) -> tuple[RunRow, int]:
        """The part of a run that another part continues, and its last row that counts.

        Raises:
            StoreError: if there is none, or the ancestry went over it before.
        """
        if len(run.parents) != 1:
            raise StoreError(
                f"run {run.id!r} of the store {self._store.address!r} continues {len(run.parents)} runs, not one"
            )
        ((name, seq),) = run.parents
        self.visit(name)
        return load_run(self._store, name), seq


def cyclic_history(store: Store, run: str) -> StoreError:
    """The error that what a run goes on from leads back to it: no run of ours does."""
    return StoreError(
        f"run {run!r} of the store {store.address!r} goes on from itself, over one or several runs: its rows were not "
        "written by dspyer. Delete the thread, or load it from an export that can be trusted"
    )


def read_runs(
    store: Store, heads: Sequence[Point], root: Point | None = None, known: Container[Point] = ()
) -> list[RunRows]:
    """The runs behind some rows, oldest first: what is behind a first parent, or a first row, comes before what only
    the others have.

    Args:
        store: where they are kept.
        heads: the rows.
        root: the row at which the history begins, if older history was pruned.
        known: rows at which runs have ended that are not read, nor what is behind them.

    Raises:
        StoreError: if a run is not there, or goes on from itself.
    """
    found: dict[Point, RunRows] = {}
    stack: list[tuple[Point, bool]] = [(head, False) for head in reversed(heads)]
    order: dict[Point, None] = {}
    while stack:
        at, done = stack.pop()
        if done:
            order[at] = None
        elif at in found and at not in order:
            raise cyclic_history(store, at.run)
        elif at not in found and at not in known:
            found[at] = read_run(store, at) if at != root else _at_root(store, at)
            stack.append((at, True))
            if at != root:
                stack.extend((parent, False) for parent in reversed(found[at].parents))
    return [found[at] for at in order]


def _at_root(store: Store, at: Point) -> RunRows:
    """A run of which nothing but its last row is read."""
    run = load_run(store, at.run)
    return RunRows(
        run, (), tuple(store.rows(at.run, at.seq, at.seq)), (at,), {run.id: str(run.header.get("label", ""))}
    )


class FoldedRun(NamedTuple):
    """The commits of a chapter, each with its state, in the order in which they were written.

    Attributes:
        entries: the commits. The first one that cannot be read has an `Unreadable` patch and the state before it, and
            so have those that come after it.
        before: the state before them.
        last_settled: the index of the last readable one after which a single branch was active; -1 for none.
        broken: why one cannot be read; "" if all can.
    """

    entries: list[LogEntry]
    before: ImmutableState
    last_settled: int
    broken: str = ""

    @property
    def trunk_state(self) -> ImmutableState:
        """The last state that all branches shared."""
        return self.entries[self.last_settled].state if self.last_settled >= 0 else self.before


class HistoryReader:
    """Reads chapters with a schema.

    Args:
        store: where they are kept.
        schema: types and reducers of the fields.
        decode: what makes frozen values of their JSON form.
        fingerprint: the id of the fingerprint of the graph; what other graphs have written is folded as they did it.
    """

    def __init__(self, store: Store, schema: Schema, decode: Decode = encoding.decode, fingerprint: str = "") -> None:
        self.fingerprint = fingerprint
        self._earlier_schemas: dict[str, Schema] = {}
        self.fetch: Fetch = store.blobs
        self.store = store
        self.schema = schema
        self.decode = decode

    def opening_patch(self, rows: Iterable[Row]) -> tuple[str, Mapping[str, Any]] | None:
        """The node and the patch with which a run was opened."""
        for row in rows:
            if row.kind == RowKind.OPEN:
                patch = read_commit_content(row.content, self.fetch, self.decode).patch
                return str(row.header[0]), patch or {}
        return None

    def fold(self, of: RunRows, before: ImmutableState, broken: str = "") -> FoldedRun:
        """The commits of a chapter with their states.

        Args:
            of: the chapter.
            before: the state that it goes on from.
            broken: why that cannot be read; then nothing of the chapter can.
        """
        opening = self._try_opening(of.rows)
        schema_at = self.schema_by_row(of)
        entries: list[LogEntry] = []
        settled = -1
        for place, (row, head) in enumerate(of.own_commits()):
            parents = head.parents if head.parents is not None else ((place - 1,) if place else ())
            if not broken:
                try:
                    entry = self._entry(row, head, parents, entries, before, opening, of, schema_at(row))
                except Exception as error:  # noqa: BLE001 - whatever is wrong with it: the rest stays readable
                    broken = f"commit {head.id} of {head.node!r} cannot be read: {type(error).__name__}: {error}"
                else:
                    settled = place if head.settled else settled
            if broken:
                state = entries[parents[0]].state if parents else before
                commit = self._commit(head, CommitContent(UnreadablePatch(broken)), parents, entries)
                entry = LogEntry(commit, state, parents, _NO_TALLY)
            entries.append(entry)
        if not entries and opening is not None and opening[0] != "START":
            entries.append(self._by_hand(*opening, before, of.rows))
            settled = 0
        return FoldedRun(entries, before, settled, broken)

    def _entry(
        self,
        row: Row,
        head: CommitHeader,
        parents: tuple[int, ...],
        entries: list[LogEntry],
        before: ImmutableState,
        opening: tuple[str, Mapping[str, Any]] | None,
        of: RunRows,
        schema: Schema,
    ) -> LogEntry:
        written = read_commit_content(row.content, self.fetch, self.decode)
        if written.patch is None:
            if opening is None:
                self.opening_patch(of.rows)  # says why there is none
            written = written._replace(patch=opening[1] if opening else {})
            head = open_row_head(head, of.rows)
        if row.kind == RowKind.JOIN:
            return self._join(entries, head, written, parents, schema)
        state = entries[parents[0]].state if parents else before
        patch = written.patch or {}
        after = schema.replay(state, patch)
        commit = schema.with_sizes(self._commit(head, written, parents, entries), state, (patch,), after)
        return LogEntry(commit, after, parents, _NO_TALLY)

    def _try_opening(self, rows: Iterable[Row]) -> tuple[str, Mapping[str, Any]] | None:
        try:
            return self.opening_patch(rows)
        except Exception:  # noqa: BLE001 - the commit that it belongs to says so
            return None

    def schema_of(self, fingerprint: str) -> Schema:
        """The schema that folds what a graph has written.

        Args:
            fingerprint: the id of its fingerprint; "" if it is not known.
        """
        if fingerprint in ("", self.fingerprint):
            return self.schema
        if fingerprint not in self._earlier_schemas:
            found = self.fetch([fingerprint]).get(fingerprint)
            self._earlier_schemas[fingerprint] = (
                self.schema if found is None else earlier_schema(json.loads(found), self.schema)
            )
        return self._earlier_schemas[fingerprint]

    def schema_by_row(self, of: RunRows) -> Callable[[Row], Schema]:
        """What folds each row of a run: the schema of the graph that wrote it.

        Args:
            of: the run.
        """
        if len(set(of.fingerprints.values())) < 2:
            schema = self.schema_of(of.fingerprint)
            return lambda _: schema
        fingerprints = {id(row): of.fingerprints[point.run] for row, point in zip(of.rows, of.points, strict=True)}
        return lambda row: self.schema_of(fingerprints[id(row)])

    def _by_hand(self, node: str, patch: Mapping[str, Any], before: ImmutableState, rows: Sequence[Row]) -> LogEntry:
        """A commit that somebody made in the name of a node, whose routes nobody has asked for yet."""
        head = open_row_head(CommitHeader("trunk:0", node, 0, 1, True, (), None, (), 0, 0), rows)
        after = self.schema.replay(before, patch)
        commit = self.schema.with_sizes(self._commit(head, CommitContent(patch), (), []), before, (patch,), after)
        return LogEntry(commit, after, (), _NO_TALLY)

    def _join(
        self, log: list[LogEntry], head: CommitHeader, written: CommitContent, parents: tuple[int, ...], schema: Schema
    ) -> LogEntry:
        node = head.node.removeprefix("join:")
        join = Join(log, node, schema, RecordedResolutions(written.resolutions), len(log))
        merged = join.merge(parents, [log[parent].state for parent in parents])
        commit = self._commit(head, written, parents, log)._replace(patch=merged.patch)
        commit = join.with_sizes(commit, merged)
        return LogEntry(commit, merged.state, parents, _NO_TALLY, merged.winners, merged.conflicts, merged.resolutions)

    def _commit(
        self, head: CommitHeader, written: CommitContent, parents: tuple[int, ...], log: list[LogEntry]
    ) -> Commit:
        return self.commit(head, written, [log[parent].commit.id for parent in parents])

    @staticmethod
    def commit(head: CommitHeader, written: CommitContent, parents: Iterable[str]) -> Commit:
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
            seal({} if written.patch is None else written.patch),
            tuple(parents),
            1,
            head.route,
            written.reason,
            head.started / 1_000,
            head.duration / 1_000_000,
            head.live,
            head.calls,
        )


def open_row_head(head: CommitHeader, rows: Iterable[Row]) -> CommitHeader:
    """The head of a run's first commit: what somebody made by hand has the time at which it was made."""
    made = next((row.header[1] for row in rows if row.kind == RowKind.OPEN and len(row.header) > 1), None)
    return head if made is None else head._replace(started=made, duration=0)


_NO_TALLY: PersistentMap[Any, int] = PersistentMap()


# --------------------------------------------------------------------------------------------------------------------
# A run up to one of its commits, in canonical order, whatever had arrived in between.
#
# Rows are kept in order of arrival. So the commits up to a version are no prefix of the rows inside a fork: a part of a
# run that goes on from there says which of the rows before it do not count. Nothing is written a second time, and a
# commit stays the row that it is.

RowRange = tuple[int, int]
"""First and last of some places."""


def rows_left_out(rows: Sequence[Row], kept: Collection[int]) -> tuple[int, list[RowRange]]:
    """Which rows do not count where a run is cut.

    Args:
        rows: the rows of the run.
        kept: places of the commits that stay, among these rows: with each of them, those it builds on.

    Returns:
        The place of the last row that counts, and the rows before it that do not: other commits, and what executions
        have left behind that have no commit up to there.
    """
    last = max(kept)
    committed = {CommitHeader.parse(rows[place].header).id: place for place in kept}
    gone = []
    for place, row in enumerate(rows[:last]):
        if row.kind in COMMITS:
            head = CommitHeader.parse(row.header)
            stays = committed.get(outermost_execution(head.scope[0]), -1) > place if head.scope else place in kept
        elif row.kind in (RowKind.ITEM, RowKind.ONCE, RowKind.ASK, RowKind.ANSWER):
            stays = committed.get(outermost_execution(str(row.header[0])), -1) > place
        else:
            stays = True
        if not stays:
            gone.append(place)
    return last, row_ranges(gone)


def outermost_execution(execution: str) -> str:
    """The execution that another one is a part of: `"trunk:2"` of `"trunk:2[0]/trunk:1"`."""
    return execution.partition("/")[0].partition("[")[0]


def row_ranges(places: Iterable[int]) -> list[RowRange]:
    """Ascending places as spans."""
    found: list[RowRange] = []
    for place in places:
        if found and found[-1][1] == place - 1:
            found[-1] = (found[-1][0], place)
        else:
            found.append((place, place))
    return found


def without_rows(rows: Sequence[Row], gone: Iterable[Sequence[int]]) -> tuple[list[Row], list[int]]:
    """The rows that count, and their places; the commits among them refer to each other by their new places.

    Args:
        rows: rows of a run.
        gone: spans of those that do not count.
    """
    dropped = {place for first, last in gone for place in range(max(first, 0), min(last + 1, len(rows)))}
    moved: dict[tuple[str, ...], dict[int, int]] = {}
    counts: dict[tuple[str, ...], int] = {}
    found: list[Row] = []
    places: list[int] = []
    for place, row in enumerate(rows):
        if row.kind in COMMITS:
            head = CommitHeader.parse(row.header)
            old = counts.get(head.scope, 0)
            counts[head.scope] = old + 1
            if place in dropped:
                continue
            known = moved.setdefault(head.scope, {})
            parents = head.parents if head.parents is not None else ((old - 1,) if old else ())
            now = tuple([known[parent] for parent in parents])
            known[old] = len(known)
            found.append(row._replace(header=head._replace(parents=now).pack()) if now != parents else row)
        elif place in dropped:
            continue
        else:
            found.append(row)
        places.append(place)
    return found, places


# --------------------------------------------------------------------------------------------------------------------
# How values were folded when the graph was another one, as far as the fingerprint of its schema tells.


def earlier_schema(facts: Mapping[str, Any], now: Schema) -> Schema:
    """The schema that folds the updates of runs which another graph has made.

    Nothing is validated again. A field that is still there is folded by its reducer if that has the same name, any
    other by the built-in reducer of the name; what a reducer has folded that is not there any more is opaque.

    Args:
        facts: the fingerprint of that graph: its fields, with type and name of the reducer.
        now: the schema of the graph now.
    """
    if facts.get("open"):
        return Schema.of(None, state_limit=now.state_limit)
    fields = {
        name: _field(name, text, reducer, Limit(*rest[0]) if rest else None, now.fields.get(name))
        for name, (text, reducer, *rest) in facts.get("fields", {}).items()
        if reducer
    }
    return Schema(now.model, MappingProxyType(fields), None, state_limit=now.state_limit)


def _field(name: str, text: str, reducer: str, limit: Limit | None, now: Field | None) -> Field:
    if now is not None and now.reducer is not None and now.reducer.name == reducer:
        return replace(now, checks_result=False, limit=limit)
    found = BUILT_IN.get(reducer) or Reducer(reducer, _lost(name, reducer), None)
    start = found.empty
    if found is BUILT_IN["union"]:
        kind = text.partition("[")[0].partition(" ")[0]
        start = next((value for cls, value in STARTS.items() if cls.__name__ == kind), start)
    return Field(
        name=name,
        annotation=Any,
        info=FieldInfo(annotation=Any),
        required=False,
        reducer=found,
        always_replaces=False,
        inputs_only=False,
        exact_types=frozenset(),
        validate=lambda value, _others: value,
        validate_update=None,
        validate_entries=None,
        unvalidated_mapping=True,
        patches_by_key=True,
        model=None,
        checks_result=False,
        reads_other_fields=False,
        fold_start=start,
        fixed_default=DELETE,
        limit=limit,
    )


def _lost(name: str, reducer: str) -> Any:
    lost = Opaque(f"value of field {name!r}", f"it was folded by reducer {reducer!r}, which is not there", "null")
    return lambda _current, _update: lost
