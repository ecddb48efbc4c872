"""Read the past of a thread: its commits, its state after any of them, who wrote a value. No node is called.

Most questions are answered by `PageReader` from the few rows between two snapshots, however long the history is. Where
that cannot work (merged or pruned history, commits that cannot be read) `ThreadReader` reads the whole history once and
caches it for the `Thread` object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any

from dspyer.clock import wall
from dspyer.errors import StoreError, ThreadError
from dspyer.events import Answer, Commit, Question, Sent
from dspyer.failure import Failure
from dspyer.ids import Address, commit_name, full_id, is_within
from dspyer.log.execution_records import ExecutionRecords
from dspyer.log.history import (
    CommitListing,
    History,
    commit_row,
    part_around,
    part_before,
    part_of,
    read_back,
    runs_back,
    scoped_logs,
    writing_part,
)
from dspyer.log.journal import RowDigest, is_alive
from dspyer.log.reader import (
    EVERY,
    HistoryReader,
    RunRows,
    ending_row,
    latest_snapshot,
    load_run,
    newest_rows,
    read_runs,
)
from dspyer.log.rows import (
    CommitRow,
    EndRow,
    LayerRow,
    QuestionRow,
    ResumeRow,
    RowKind,
    SentRow,
    StoredRow,
    is_readable,
    run_label,
)
from dspyer.patch import DELETE
from dspyer.scheduler.lineage import LogEntry, touches
from dspyer.state import ImmutableState
from dspyer.stores.base import INBOX, ListedRun, Point, Row, RunQuery, RunRow, Store, ThreadRow, listed_run
from dspyer.values.freezing import same
from dspyer.values.scalars import KeyPath

Moment = int | str | Mapping[str, Any]
"""A version, the id of a commit, or a state itself."""


Bounds = tuple[Point | None, Point | None]
"""The last row of a history, and the one at which it begins if older history was pruned."""


def thread_bounds(store: Store, thread: str) -> Bounds:
    """The bounds of the history of a thread, now."""
    row = store.thread(thread)
    return (None, None) if row is None else (row.head, row.root)


class ThreadReader:
    """Reads the history of one thread, and caches what it has read. Safe for use by several threads at once.

    Args:
        reader: folds rows.
        thread: the name of the thread.
        bounds: returns the bounds of the history, for one that is not that of the thread's head; None for the thread.

    Attributes:
        pages: reads parts of the history.
        root: the row at which the whole history begins, if older history was pruned.
    """

    def __init__(self, reader: HistoryReader, thread: str, bounds: Callable[[], Bounds] | None = None) -> None:
        self._find = bounds or partial(thread_bounds, reader.store, thread)
        self._reader = reader
        self._thread = thread
        self._lock = Lock()
        self._drop(None)

    def _drop(self, root: Point | None) -> None:
        self.pages = PageReader(self._reader, self._find)
        self._whole, self.root = History(self._reader), root  # no row is read twice into it
        self._listed = CommitListing(self._whole, ())

    def forget(self) -> None:
        """Drop what was read, since rows of it were deleted."""
        with self._lock:
            self._drop(self.root)

    def history(
        self, inside: int | str | None, first: int | None, count: int | None, newest: bool, floor: int = 0
    ) -> list[Commit]:
        """The commits of the thread, a page of them, or those inside of a node.

        `floor` is the version with which the last run begins, for the commits of that run alone.
        """
        if inside is not None:
            if first is not None or count is not None or newest:
                raise ThreadError("the commits inside of a node have no pages: pass inside= alone")
            return self._commits_inside(inside)
        if count is not None and count < 1:
            raise ThreadError(f"count={count}: a page of a history has at least one commit")
        page = None if count is None else self.pages.page(first, count, newest, floor)
        if page is not None:
            return page
        listed = self.listed()
        commits = list(listed.commits)
        if floor:  # only those of the last run
            commits = [one for one, at in zip(commits, listed.runs, strict=True) if at == listed.heads[-1]]
        return cut_page(commits, first, count, newest)

    def answers(self) -> tuple[Answer, ...]:
        """The answers of all runs, in the order in which they were given. Reads the whole history.

        Those of runs that a rerun has replaced too: what was approved there was done.
        """
        store, (head, root) = self._reader.store, self._find()
        listed = store.list_runs(RunQuery(self._thread, limit=1 + len(store.runs(self._thread))))
        ends = [Point(one.run.id, one.last) for one in reversed(listed) if one.last >= 0]
        found: dict[tuple[str, float | None], Answer] = {}  # runs may have a beginning in common
        for run in read_runs(store, [*([] if head is None else [head]), *ends], root):
            records = ExecutionRecords()
            rows = [one for one in run.rows if one.kind in (RowKind.ASK, RowKind.ANSWER) and is_readable(one)]
            records.read(rows, self._reader.fetch, self._reader.decode)
            found |= {(one.question.id, one.at): one for one in records.given_answers()}
        return tuple(sorted(found.values(), key=lambda one: one.at or 0.0))

    def at(self, version: int | str) -> ImmutableState:
        """The state after a commit."""
        version = commit_name(version)
        listed = self.pages.around(version) or self.commits_around(version)
        return listed.state(listed.index_of(version))

    def state_of(self, moment: Moment) -> ImmutableState:
        """The state after a commit, or the given one."""
        if isinstance(moment, int | str):
            return self.at(moment)
        return moment if isinstance(moment, ImmutableState) else ImmutableState(moment)

    def blame(self, path: str | tuple[Any, ...], at: int | str | None = None) -> Commit:
        """The commit that last wrote a path, up to the head or to the commit `at`."""
        keys: tuple[Any, ...] = tuple(path.split(".")) if isinstance(path, str) else tuple(path)
        found = self._last_writers([keys], at)
        if keys in found:
            return found[keys]
        listed, name = self.listed() if at is None else self.commits_around(at), ".".join(map(str, keys))
        last = listed.trunk_index if at is None else listed.log_index_of(at)
        fields = ", ".join(listed.history.state(last)) or "none"
        not_joined = [commit for commit in listed.commits if touches(commit.patch, keys)]
        if at is not None:
            raise LookupError(f"no commit up to {at!r} has written {name!r}; fields of the state: {fields}")
        if not_joined:
            raise LookupError(
                f"{name!r} was written by {not_joined[-1].node!r} (commit {not_joined[-1].id!r}), but its branch never "
                "joined, or its run was abandoned: see thread.at(id)"
            )
        raise LookupError(f"no commit has written {name!r}; fields of the state: {fields}")

    def writers(self, version: int | str) -> dict[str, Commit]:
        """For each field of the state after a commit, the commit that had last written it, in order of the state."""
        found = self._last_writers([(field,) for field in self.at(version)], version)
        return {field: commit for (field,), commit in found.items()}

    def _last_writers(self, paths: Sequence[KeyPath], at: int | str | None) -> dict[KeyPath, Commit]:
        """By path, the commit that last wrote it, up to the head or to a commit."""
        at = None if at is None else commit_name(at)
        found = None if self.is_read() else self.pages.writers(paths, at)
        if found is None:
            listed = self.listed() if at is None else self.commits_around(at)
            if at is None and listed.heads and (broken := listed.history.runs[listed.heads[-1]].broken):
                raise StoreError(broken)  # it may have written there, and what is behind it, too
            if at is not None:
                listed.state(listed.index_of(at))  # raises if it cannot be read
            found = listed.last_writers(paths, listed.trunk_index if at is None else listed.log_index_of(at))
        return {path: found[path] for path in paths if path in found}

    def replay(self) -> ImmutableState:
        """The state at the head, computed from all patches, and compared with every snapshot and digest on the way."""
        store = self._reader.store
        row = store.thread(self._thread)
        heads = [row.head] if row is not None and row.head is not None else []
        root = None if row is None else row.root
        history = History(self._reader)
        history.read(heads, root)
        for run in read_runs(store, heads, root):
            of_run = history.runs[run.points[-1]]
            if of_run.broken:
                raise StoreError(f"thread {self._thread!r}: {of_run.broken}")
            for index, expected_by in self._differences(history, run):
                commit = self.listed().commits[self.listed().index_of(history.log[index].commit.id)]
                raise StoreError(
                    f"thread {self._thread!r}: the state after version {commit.version} (commit {commit.id!r}) is not "
                    f"the one {expected_by}. What is stored was changed, or a reducer of the schema returns something "
                    "else than it did then"
                )
        return history.state(history.runs[heads[-1]].trunk_index) if heads else ImmutableState()

    def _differences(self, history: History, run: RunRows) -> Iterator[tuple[int, str]]:
        """The commits of a run whose computed state is not the stored one, with where that is stored; oldest first."""
        reader, of_run = self._reader, history.runs[run.points[-1]]
        # What functions of the user have made is stored, and only here they are called again.
        schema, then = reader.schema, [reader.schema_of(one) for one in run.fingerprints.values()]
        names = {name for name in schema.user_folded if all(one.reducer(name) is schema.reducer(name) for one in then)}
        for at_log in of_run.log_indexes:
            commit, state, parents, *_ = history.log[at_log]
            for name in commit.patch.keys() & names if len(parents) < 2 else ():
                before = history.state(parents[0] if parents else None).raw(name, DELETE)
                try:
                    folded = schema.fold(name, before, commit.patch[name])
                except Exception as error:  # noqa: BLE001 - a function that refuses now what it folded then
                    folded = error
                if not same(folded, state.raw(name, DELETE)):
                    yield at_log, f"that the reducer of field {name!r} makes"
        snapshots = []
        at = run.points[-1]
        pruned = at in history.roots  # then its state was read from the snapshot: there is nothing to compare
        while not pruned and at.seq >= 0 and (taken := latest_snapshot(reader.store, at, reader.decode)) is not None:
            snapshots.append(taken[1])
            at = Point(at.run, taken[0].seq - 1)
        for snapshot in reversed(snapshots):
            index = of_run.log_indexes[snapshot.commit_index] if snapshot.commit_index >= 0 else of_run.trunk_index
            if index is not None and history.log[index].state != snapshot.state:
                yield index, "in its snapshot (thread.resume() and thread.run() continue from that one)"
        if not pruned and of_run.trunk_index is not None and any(map(self._was_changed, dict(run.points).items())):
            yield of_run.trunk_index, "that its run ended with"

    def _was_changed(self, at: tuple[str, int]) -> bool:
        """Return whether the rows of a part of a run are not those that one of its ends has the digest of."""
        rows = self._reader.store.rows(at[0], 0, at[1])
        ends = [(row.seq, end.digest) for row in rows if row.kind == RowKind.END and (end := EndRow.of(row)).digest]
        if rows[0].seq:
            return False  # its beginning was pruned
        return any(digest != RowDigest(rows[:seq]).followed_by(()) for seq, digest in ends)

    def up_to(self, at: Point) -> CommitListing:
        """The commits up to a row of the thread."""
        _, root = self._find()
        with self._lock:
            return self._listing((at,), root)

    def extended(self, *rows: ThreadRow) -> History:
        """The history up to the heads of some threads, the first of which is this one."""
        with self._lock:
            if rows[0].root != self.root:
                self._drop(rows[0].root)
            for row in rows:
                self._whole.read([] if row.head is None else [row.head], row.root)
        return self._whole

    def listed(self) -> CommitListing:
        """The commits up to the head of the thread."""
        head, root = self._find()
        heads = () if head is None else (head,)
        with self._lock:
            if heads != self._listed.heads or root != self.root:
                self._listed = self._listing(heads, root)
            return self._listed

    def is_read(self) -> bool:
        """Return whether all commits up to the head were listed before, and can be read."""
        listed, root = self._listed, self.root
        return any((at, root) == self._find() and not listed.history.runs[at].broken for at in listed.heads)

    def _listing(self, heads: Sequence[Point], root: Point | None) -> CommitListing:
        """Read up to some rows; what was read is dropped, if older history was pruned since."""
        if root != self.root:
            self._drop(root)
        self._whole.read(heads, root)
        return CommitListing(self._whole, heads)

    def commits_around(self, version: int | str) -> CommitListing:
        """The commits that hold a version or an id: those of the thread, or of an abandoned or rerun run of it."""
        listed, store = self.listed(), self._reader.store
        if isinstance(version, int) or listed.has(version):
            return listed
        label = Address.parse(version).run
        for run in store.runs(self._thread):
            rows = store.rows(run.id) if label == run.header.get("label") else []
            if rows:
                at = Point(run.id, rows[-1].seq)
                row = ThreadRow(self._thread, at, 0, root=self.root)
                other = CommitListing(self.extended(row), (at,))
                if other.has(version):
                    return other
        return listed

    def _commits_inside(self, version: int | str) -> list[Commit]:
        """The commits of the graph inside of a node, in canonical order. Its inputs are not stored again."""
        outer = Address.parse(self.id_of(version))
        listed, scope = self.listed(), outer.inside

        def is_meant(inner: tuple[str, ...]) -> bool:
            # One without the index of an item or the key of a call matches all of them.
            return len(inner) == len(scope) and all(map(is_within, inner, scope))

        found: list[LogEntry] = []
        for run in read_runs(self._reader.store, listed.heads, self.root):
            logs = scoped_logs(self._reader, run, is_meant) if outer.run in run.labels.values() else {}
            for inner in sorted(logs, key=lambda inner: [(len(name), name) for name in inner]):  # item 2 before item 10
                found += sorted(logs[inner], key=lambda entry: (entry.commit.step, entry.commit.branch))
        return [entry.commit for entry in found]

    def id_of(self, commit: int | str) -> str:
        """The id of a commit, by its version or id."""
        version = commit_name(commit)
        if isinstance(version, str):
            return version
        page = self.history(None, version, 1, newest=False)
        if page and page[0].version == version:
            return page[0].id
        listed = self.listed()
        return listed.commits[listed.index_of(version)].id


class ReadsHistory:
    """The reading half of `Thread` and `ArchivedThread`: their history, which `_past` reads."""

    @property
    def _past(self) -> ThreadReader:
        raise NotImplementedError

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers to the questions of all runs, with who gave them and when. Reads the whole history.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_interrupt("ok", question="Send it?", answer=bool,
            ...     into="sent")
            >>> t = graph.add_path(START, "ok", END).compile(store=":memory:").thread(
            ...     "t-42")
            >>> t.run({}).status, t.resume({"ok": True}, by="ada").status
            ('interrupted', 'completed')
            >>> [(answer.question.key, answer.value, answer.by) for answer in t.answers]
            [('ok', True, 'ada')]
        """
        return self._past.answers()

    def history(
        self,
        inside: int | str | None = None,
        *,
        first: int | None = None,
        count: int | None = None,
        newest: bool = False,
    ) -> list[Commit]:
        """The commits of the thread, over all its runs: who changed what, and when. All of them, or a page.

        They come run by run in canonical order, with versions from 0 on. Commits of forks that have not joined have no
        version and come last in their run. An id names the run too, `"t-42.1/trunk:3"`, as `ctx.execution` does. Later
        runs never change what is listed; a rerun takes out the commits that it replaces, which can be read by id.
        An entry that is damaged or missing makes its commit, and those that build on it, unreadable: they are listed as
        that, reports and lists leave them out with a warning of the logger `dspyer`, and `run` and `resume` raise.

        Args:
            inside: version or id of the commit of a node that is a graph itself: lists the commits inside of it. For a
                node that has not finished, the id that its commit will have.
            first: the version of the first commit of the page; by default the oldest, or with `newest` the newest.
            count: the most commits on the page. Only they are read, and what leads to them from the snapshot before.
            newest: lists them newest first.

        Raises:
            ThreadError: for a page of the commits inside of a node, or one of less than one commit.
            LookupError: if there is no version `inside`.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("tag", lambda state: {
            ...     "tags": [state["word"]]}).add_path(START, "tag", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> _ = t.run({"word": "bee"}), t.run({"word": "fly"})
            >>> [(one.version, one.id, one.node) for one in t.history()][1:3]
            [(1, 't-42.1/trunk:1', 'tag'), (2, 't-42.2/trunk:0', 'START')]
            >>> [commit.version for commit in t.history(count=2, newest=True)]
            [3, 2]
        """
        return self._past.history(inside, first, count, newest)

    def at(self, version: int | str) -> ImmutableState:
        """The state after a commit; inside a fork, the state of that commit's branch.

        Args:
            version: version or id of the commit. An id without a run in front is one of the last run.

        Raises:
            LookupError: if there is no such commit.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"n": 1}).status, t.at(0)["n"], t.at("trunk:1")["n"]
            ('completed', 1, 2)
        """
        return self._past.at(version)

    def diff(self, first: Moment, second: Moment) -> dict[str, Any]:
        """The smallest patch from one state to another: new values by field, `DELETE` for a field that is gone.

        Args:
            first: version or id of a commit, or a state: `thread.diff(3, other.state)` compares with another thread.
            second: the same.

        Raises:
            LookupError: if there is no such commit.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"n": 1}).status, t.diff(0, 1), t.diff(1, {"n": 5})
            ('completed', {'n': 2}, {'n': 5})
        """
        return self._past.state_of(first).diff(self._past.state_of(second))

    def blame(self, path: str | tuple[Any, ...], at: int | str | None = None) -> Commit:
        """The commit that last wrote a path of the state, in any run: at, in or above it.

        A value that a merge policy chose belongs to the commit that wrote it, a value that a policy made to the join.

        Args:
            path: segments with dots between them, or a tuple of keys; items as in `run.blame`.
            at: version or id of a commit: the last writer up to there; None for the state of the thread now.

        Raises:
            LookupError: if there is no such commit, or none has written there.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"m": n + 1},
            ...     writes=["m"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"n": 1}).status, t.blame("m").node, t.blame("n").node
            ('completed', 'add', 'START')
        """
        return self._past.blame(path, at)


# --- parts of the history

KEPT_PARTS = 4
"""Parts that a `PageReader` caches: a caller that reads one state often reads its neighbours next."""


class PageReader:
    """Reads a state, the author of a value or a page of commits, without the rest of the history.

    A method returns None if that cannot be done: where histories were merged, older history was pruned, a commit cannot
    be read or does not exist. The caller then reads the whole history, which also knows what to raise. Safe for use by
    several threads at once.
    """

    def __init__(self, reader: HistoryReader, bounds: Callable[[], Bounds]) -> None:
        self._reader = reader
        self._bounds = bounds
        # The last used first. Replaced as a whole, so that no lock is needed.
        self._kept: tuple[Point | None, tuple[CommitListing, ...]] = None, ()

    def _parts(self, root: Point | None) -> tuple[CommitListing, ...]:
        """The cached parts; none if older history was pruned since: a run may have the id of a pruned one."""
        known, parts = self._kept
        return parts if known == root else ()

    def around(self, version: int | str) -> CommitListing | None:
        """The commits around one."""
        head, root = self._bounds()
        commit = Address.parse(version) if isinstance(version, str) else Address(index=version)
        if commit.scope or not commit.is_commit:
            return None
        for span in runs_back(self._reader.store, head, root):
            here: int | str = version
            if isinstance(version, str):
                # A run in several parts has commits with the labels of all of them: only the whole history knows these.
                if commit.run not in ("", run_label(span.run)) or span.run is not span.oldest:
                    if not commit.run:
                        return None
                    continue
                here = full_id(run_label(span.run), commit.own)
            in_run = [part for part in self._parts(root) if part.heads[0].run == span.run.id]
            for known in in_run:
                # Of a settled commit it stays true what is said there.
                if known.heads[0].seq <= span.at.seq and known.has(here, settled=True):
                    return known
            if isinstance(version, int) and version < span.first:
                continue
            row = -1
            if isinstance(version, str):
                at = commit_row(self._reader.store, span.at, commit.own)
                if at is None:
                    return None
                row = at.seq
            count = EVERY if in_run else 1  # its neighbours were read before
            part = part_around(self._reader, span, root, commit.index, count, row)
            if part is None or not part.has(here):
                return None
            if not part.history.ends_open:
                self._kept = root, (part, *self._parts(root)[: KEPT_PARTS - 1])
            return part
        return None

    def writers(self, paths: Sequence[KeyPath], at: int | str | None) -> dict[KeyPath, Commit] | None:
        """By path, the commit that last wrote it, up to the head or to a commit, found by reading back part by part.

        A path that no commit has written is left out.
        """
        head, root = self._bounds()
        if head is None:
            return {}
        part = part_of(self._reader, read_back(self._reader, head), root) if at is None else self.around(at)
        if part is None:
            return None
        last = part.trunk_index if at is None else part.log_index_of(at)
        found, before = part.last_writers(paths, last), part.before
        missing = {path for path in paths if path not in found and path not in before}
        if last is not None and any(part.writers.item(last, path) is not None for path in missing):
            return None  # an older item: where it was in an older part is not known
        while missing and part.history.snapshot_at is not None:
            fields = {path[0] for path in missing if path}
            part = writing_part(self._reader, part.history.snapshot_at, fields, root)
            if part is None:
                return None
            before |= part.last_writers(missing, part.trunk_index)
            missing -= before.keys()
        return {path: before[path] for path in paths if path in before} | found

    def page(self, first: int | None, count: int, newest: bool, floor: int = 0) -> list[Commit] | None:
        """A page of `count` commits from version `first` on; with `newest`, from there back in time to `floor`."""
        head, root = self._bounds()
        if head is None:
            return []
        begin = max(min(first or 0, 2**62), floor)  # beyond it no store counts
        end = first if newest else begin + count - 1
        part = None if end is None else self.around(end)
        part = part or part_of(self._reader, read_back(self._reader, head), root)
        if newest and part is not None:
            end = part.next_version - 1 if end is None else min(end, part.next_version - 1)
            begin = max(end - count + 1, floor)
        last = head if part is None else part.heads[0]
        found: list[tuple[Commit, Point]] = []  # each with the last row of its run
        # From its end back in time, part by part: only then it is known where the part before ends.
        while part is not None:
            found = [*zip(part.commits, part.runs, strict=True), *found]
            if part.first <= begin:
                # Of commits without a version, which come last in their run, those of the last run.
                inside = (run == last if one.version is None else one.version >= begin for one, run in found)
                before = next((index for index, is_inside in enumerate(inside) if is_inside), len(found))
                return cut_page([one for one, _ in found[before:]], first, count, newest)
            part = part_before(self._reader, part, root)
        return None


def cut_page(commits: list[Commit], first: int | None, count: int | None, newest: bool) -> list[Commit]:
    """A page of at most `count` commits, from version `first` on, of commits that are listed oldest first.

    With `newest` the page is listed newest first.
    """
    commits = list(reversed(commits)) if newest else commits
    if first is not None:
        versions = enumerate([commit.version for commit in commits])
        inside = (index for index, v in versions if v is not None and (v <= first if newest else v >= first))
        commits = commits[next(inside, len(commits)) :]
    return commits if count is None else commits[:count]


# --- Which run is meant, and whether it is at work

BATCH = 1_000
"""Runs that are read at once. A waiting thread is a row of a few hundred bytes."""


def run_of(store: Store, name: str, run: str | None = None) -> ListedRun:
    """A run of a thread by its id or label, the last one for None.

    Raises:
        ThreadError: if there is no such thread or run.
    """
    thread = store.thread(name)
    if thread is None:
        raise ThreadError(f"the thread {name!r} was deleted, or never had a run")
    text = None if run is None else str(run)
    may_be_id = text is None or (text.isascii() and text.isprintable())  # else it is no id; a label may be any text
    (listed,) = (store.list_runs(RunQuery(name, run=text, limit=1, last=run is None)) if may_be_id else ()) or (None,)
    if listed is not None:
        return listed
    if run is None:
        if thread.head is None:
            raise ThreadError(f"the thread {name!r} has no run")
        # No list can place it, since its row is damaged. Its entries say, too, how it ended.
        return listed_run(thread, load_run(store, thread.head.run), store.rows(thread.head.run, 0, thread.head.seq))
    found, at = next((one for one in _runs_back(store, thread) if run in (one[0].id, run_label(one[0]))), (None, None))
    if found is None:
        labels = ", ".join(dict.fromkeys(run_label(one) for one in store.runs(name)[-3:]))
        raise ThreadError(f"the thread {name!r} has no run {run!r}; the last ones: {labels or 'none'}")
    (listed,) = store.list_runs(RunQuery(found.thread, run=found.id, limit=1)) or (None,)
    # A run that was made for a thread that was deleted is in no list.
    listed = listed or listed_run(thread, found, store.rows(found.id))
    root = listed.thread.root
    # Where its own thread has pruned it, there are gaps behind the row that this thread has reached.
    return listed._replace(thread=thread, last=at.seq if at and root and root.run == found.id else listed.last)


def _runs_back(store: Store, thread: ThreadRow) -> Iterator[tuple[RunRow, Point | None]]:
    """The runs that were made for a thread, newest first, then those that it continues, each with its row there."""
    own = store.runs(thread.name)[::-1]
    yield from ((one, None) for one in own)
    known, passed = {one.id: one for one in own}, set[str]()
    pending = [] if thread.head is None else [thread.head]
    for at in pending:  # also behind a merge
        run = None if at.run in passed else known.get(at.run) or store.run(at.run)
        if run is None:
            continue
        passed.add(at.run)
        if at.run not in known:
            yield run, at
        pending += () if at == thread.root else run.parents


def current_status(store: Store, listed: ListedRun) -> tuple[ListedRun, str]:
    """A run and its status: one without an end is running if its owner is alive, else it has crashed."""
    while not listed.status:
        thread, run = listed.thread, listed.run
        works_on = thread.head is not None and thread.head.run == run.id
        if works_on and is_alive(thread):
            return listed, "running"
        # Its owner may have written since the list was read: read the run again, by its id, since the name of a thread
        # may lead into no store any more.
        found = store.list_runs(RunQuery(run=run.id, limit=1)) if works_on else []
        now = next((one for one in found if one.thread.name == thread.name), listed)
        if (now.thread.head, now.thread.epoch) == (thread.head, thread.epoch):
            return listed, "crashed"
        listed = now
    return listed, listed.status


def due_since(status: str | None, end: Row | None) -> float | None:
    """The time at which the first question of a run expires, from the row of its end; None for a run without one."""
    return EndRow.of(end).expires if status == "interrupted" and end is not None else None


def due_threads(store: Store, graph: str | None, at: float | None = None) -> list[str]:
    """The names of the threads whose last run can go on by itself, the longest due first.

    Reads headers alone, which encrypted stores do not hide.

    Args:
        store: the store.
        graph: only runs of the graph of this name; None for all.
        at: what is due by then, seconds since the epoch; None for now.
    """
    now = wall()
    at = now if at is None else at
    found: list[tuple[float, str]] = []
    query = RunQuery(graph=graph, statuses=frozenset(["", "interrupted"]), last=True, limit=BATCH)
    while True:
        batch = store.list_runs(query)
        for listed in batch:
            # A copy without a run of its own shows the run of another thread, and was made to be looked at.
            if listed.run.thread != listed.thread.name:
                continue
            listed, status = current_status(store, listed)  # noqa: PLW2901 - it may have ended since
            # When a process has crashed is not known: at the latest when its lease has ended.
            since = now + min(listed.thread.lease, 0) if status == "crashed" else due_since(status, listed.end)
            if since is not None and since <= at:
                found.append((since, listed.thread.name))
        if len(batch) < query.limit:
            return [name for _, name in sorted(found)]
        query = query._replace(after=batch[-1].place)


PROGRESS = (RowKind.COMMIT, RowKind.JOIN, RowKind.ITEM, RowKind.ONCE, RowKind.ANSWER, RowKind.END)


def status_of(store: Store, thread: str) -> str:
    """`"new"`, `"running"`, `"crashed"`, or how the last run ended."""
    row = store.thread(thread)
    while row is not None and row.head is not None:
        end = last_end(store, row.head)
        if end is not None:
            return EndRow.of(end).status
        if is_alive(row):
            return "running"
        now = store.thread(thread)
        if now is None or now.head == row.head:  # its owner is gone and has written no end
            return "crashed"
        row = now  # the owner wrote between the two reads: read again
    return "new"


def failures_in(store: Store, end: Row | None) -> tuple[Failure, ...]:
    """The failures in the row of the end of a run."""
    failures = () if end is None else EndRow.read(end, store.blobs).failures
    return tuple([Failure.model_validate(failure) for failure in failures])


def last_end(store: Store, at: Point) -> Row | None:
    """The row that says how the run up to `at` ended; None if it has not ended, or was resumed since."""
    return ending_row(row for _, row in newest_rows(store, at, 1))


def open_questions(reader: HistoryReader, thread: str) -> tuple[Question, ...]:
    """The open questions of the last run."""
    row = reader.store.thread(thread)
    return () if row is None or row.head is None else questions_at(reader, row.head)


def questions_at(reader: HistoryReader, at: Point) -> tuple[Question, ...]:
    """The questions that had no answer when a row was written."""
    return tuple([question for question, _ in waiting_at(reader, at)])


def waiting_at(reader: HistoryReader, at: Point) -> list[tuple[Question, float | None]]:
    """The questions that had no answer when a row was written, and when each was asked."""
    records = ExecutionRecords()
    oldest_first = list(_question_rows(reader.store, at))[::-1]
    records.read(oldest_first, reader.fetch, reader.decode)
    asked = [QuestionRow.of(row) for row in oldest_first if row.kind == RowKind.ASK]
    times = {(one.execution, one.key): one.at for one in asked}
    return [(one, times.get((one.execution, one.key))) for one in records.open_questions()]


def _question_rows(store: Store, at: Point) -> Iterator[Row]:
    """The rows of questions that may be open, of answers, and of commits that close them, newest first.

    A commit after which one branch was active leaves no question open: every execution before it had ended. So nothing
    before such a commit has to be read.
    """
    for _, row in newest_rows(store, at, 4):
        if row.kind in (RowKind.ASK, RowKind.ANSWER, RowKind.UPDATE):
            yield row
        elif row.kind == RowKind.OPEN:
            return
        elif row.kind in (RowKind.COMMIT, RowKind.JOIN):
            yield row
            head = CommitRow.of(row)
            if head.settled and not head.scope:
                return


def resumes_without_progress(rows: Sequence[Row]) -> int:
    """Return how often a run was resumed since it last made progress."""
    count = 0
    for row in reversed(rows):
        # The first part of a rerun begins with a RESUME row of number 0, which is no resume after a crash.
        if row.kind in PROGRESS or (row.kind == RowKind.RESUME and not ResumeRow.of(row).attempt):
            break
        count += row.kind == RowKind.RESUME
    return count


# --- Messages to a thread, which `thread.send` writes
#
# The inbox of a thread is a log of rows beside its runs: a run that no run continues, with `inbox` in its header, whose
# rows are the messages. The number of a row is the order of its message.
#
# How far an agent has read is a row that the layer `Inbox` adds to the commit of its turn: both are stored, or none.
# Each run has in its header how far the runs before it have read.

TOOK = "took"
"""The kind of the rows that say how far an agent has read, and the key of a run's header for what was read before."""

Progress = dict[tuple[str, str], int]
"""The number of the last message that was read, by the identity of the inbox and the path of the agent."""


def inbox_of(thread: str) -> str:
    """The id of the run that is the inbox of a thread."""
    return INBOX + blake2b(thread.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def identity_of(store: Store, inbox: str) -> str:
    """The identity of an inbox, which one that was loaded from its export shares; `""` if there is none."""
    found = store.run(inbox)
    return "" if found is None else str(found.header.get("inbox", found.id))


def progress_of(header: Mapping[str, Any], rows: Iterable[StoredRow]) -> Progress:
    """The progress of agents: what the header of a run says, and rows of it."""
    taken = [row.body for row in rows if isinstance(row, LayerRow) and row.name == TOOK]
    places = sorted([tuple(place) for place in [*header.get(TOOK, ()), *taken]])  # the last one of an agent counts
    return {(inbox, path): number for inbox, path, number in places}


def progress_at(store: Store, thread: str, at: Point | None) -> Progress:
    """The progress of the agents of a thread when a row was written; of a thread without an inbox nothing is read."""
    run = None if at is None or not identity_of(store, inbox_of(thread)) else store.run(at.run)
    if at is None or run is None:
        return {}
    rows = [row for row in store.rows(at.run, 0, at.seq) if row.kind == RowKind.LAYER and is_readable(row)]
    return progress_of(run.header, [LayerRow.read(row, store.blobs) for row in rows])


def messages_of(store: Store, inbox: str, first: int = 0, last: int | None = None) -> list[Sent]:
    """The messages of an inbox from a number on, in their order."""
    rows = [(row.seq, SentRow.read(row, store.blobs)) for row in store.rows(inbox, first, last)]
    return [Sent(number, found.text, found.by, found.at, found.to) for number, found in rows]


def unnamed(listeners: Collection[str]) -> list[str]:
    """The paths of the agents that a message without a name is for: the graph itself, or else the nodes of it."""
    return [""] if "" in listeners else [path for path in listeners if "/" not in path]


def unread(store: Store, thread: str, listeners: Collection[str]) -> tuple[Sent, ...]:
    """The messages of a thread that no turn has taken; `listeners` are the paths of the agents of its graph."""
    found, inbox = messages_of(store, inbox_of(thread)), identity_of(store, inbox_of(thread))
    if not found:
        return ()
    read, every = progress_at(store, thread, thread_bounds(store, thread)[0]), unnamed(listeners)
    last = {path: number for (known, path), number in read.items() if known == inbox}
    is_open = status_of(store, thread) != "completed"
    return tuple(
        [
            replace(sent, open=is_open)
            for sent in found
            if all(last.get(path, -1) < sent.number for path in (every if sent.to is None else [sent.to]))
        ]
    )
