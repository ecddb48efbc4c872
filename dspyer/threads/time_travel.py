"""What can be read of a thread: its commits, its state at any of them, who wrote what. Nothing is called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

from dspyer.errors import StoreError, ThreadError
from dspyer.events import Commit
from dspyer.patch import Replace
from dspyer.persistence.history import CommitListing, History, inner_commits
from dspyer.persistence.history_parts import Block, LinearHistory, RunSpan, block_around, recovered_block, runs_back
from dspyer.persistence.reader import HistoryReader, RunRows, read_runs
from dspyer.persistence.rows import COMMITS, CommitHeader, RowKind, digest
from dspyer.persistence.snapshots import EVERY, latest_snapshot, recover_state
from dspyer.persistence.store_errors import Guarded
from dspyer.scheduler.lineage import LogEntry, ancestry, last_writer, touches, value_at
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Store, ThreadRow
from dspyer.stores.memory import Memory
from dspyer.threads.graph_fingerprint import Unnamed, decoder, fingerprint_of
from dspyer.threads.start import RunStarter
from dspyer.threads.views_across_runs import recent_of

if TYPE_CHECKING:
    from dspyer.runtime.program import CompiledGraph


Moment = int | str | Mapping[str, Any]
"""A version, the id of a commit, or a state itself."""


def _check_name(name: object) -> None:
    with suppress(UnicodeEncodeError):
        if isinstance(name, str) and name.encode():
            return
    raise ThreadError(f"{name!r} is no name of a thread: that is any text, not empty: program.thread('t-42')")


class PastReader:
    """Reads a thread.

    Args:
        program: the program of the thread.
        store: where it is kept.
        name: its name.

    Raises:
        ThreadError: if the name is none: no text, empty, or not to be written as UTF-8.
    """

    def __init__(self, program: CompiledGraph, store: Store, name: str) -> None:
        _check_name(name)
        self.name = name
        self._program = program
        self._store = store
        schema = program.graph.topology.schema
        guarded_store = (
            Guarded(store) if isinstance(store, Memory) else Guarded(store, Unnamed(program.graph.name, schema))
        )
        shape = fingerprint_of(program)
        reader = HistoryReader(guarded_store, schema, decoder(schema), shape.id)
        self._known = Known(reader, name)
        self._pages = Pages(reader, name)
        self._starter = RunStarter(
            program.graph, guarded_store, name, reader, shape, self._known.up_to, recent_of(program)
        )

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
        version and come last in their run, and what was abandoned stays. An id names the run too, `"t-42.1/trunk:3"`,
        as `ctx.execution` does in a node. Nothing that is done later changes what is listed here; a rerun takes the
        commits that it starts over out of the list, and they can still be read by id.

        Args:
            inside: version or id of the commit of a node that is a graph itself: lists the commits inside of that
                node. For a node that has not finished, the id that its commit will have.
            first: the version of the first commit of the page; by default that of the oldest, or with `newest` of the
                newest commit.
            count: how many commits the page has at most. Only they are read, and what leads from the snapshot before
                them to them.
            newest: lists them newest first.

        Returns:
            The commits.

        Raises:
            ThreadError: for a page of the commits inside of a node, or one of less than one commit.
            LookupError: if `inside` is a version that there is not.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("tag", lambda state: {"tags": [state["word"]]}).add_path(START, "tag", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> for word in ("bee", "fly"):
            ...     _ = t.run({"word": word})
            >>> [(commit.version, commit.id, commit.node) for commit in t.history()][1:3]
            [(1, 't-42.1/trunk:1', 'tag'), (2, 't-42.2/trunk:0', 'START')]
            >>> [commit.version for commit in t.history(count=2, newest=True)]
            [3, 2]
        """
        if inside is not None:
            if first is not None or count is not None or newest:
                raise ThreadError("the commits inside of a node have no pages: take inside= alone")
            return self._inside(inside)
        if count is not None and count < 1:
            raise ThreadError(f"count={count}: a page of a history has at least one commit")
        page = None if count is None else self._pages.page(first, count, newest)
        return cut_out(list(self._known.listed().commits), first, count, newest) if page is None else page

    def at(self, version: int | str) -> ImmutableState:
        """The state after a commit; inside a fork, the state of that commit's branch.

        Args:
            version: version or id of the commit. An id without a run in front is one of the last run.

        Raises:
            LookupError: if there is no such commit.
        """
        state = self._pages.at(version)
        if state is None:
            listed = self._around(version)
            state = listed.state(listed.index_of(version))
        return state

    def diff(self, first: Moment, second: Moment) -> dict[str, Any]:
        """The smallest patch that turns one state into another.

        Args:
            first: version or id of a commit, or a state: `t.diff(3, other.state)` compares with another thread.
            second: the same.
        """
        return self._state_of(first).diff(self._state_of(second))

    def blame(self, path: str | tuple[Any, ...]) -> Commit:
        """The commit that last wrote a path of the state, in any run: at, in or above it.

        A value that a merge policy chose belongs to the commit that wrote it, a value that a policy made to the join.

        Args:
            path: segments with dots between them, or a tuple of keys.

        Raises:
            LookupError: if nothing has written there.
        """
        keys: tuple[Any, ...] = tuple(path.split(".")) if isinstance(path, str) else tuple(path)
        found = self._pages.blame(keys)
        if found is not None:
            return found
        listed, log = self._known.listed(), self._known.history.log
        rest = [] if listed.trunk_index is None else [listed.trunk_index]
        state = self._known.history.state(listed.trunk_index)
        writer = last_writer(log, ancestry(log, rest), rest, keys, value_at(state, keys))
        if writer is not None:
            return listed.commits[listed.log_indexes.index(writer)]
        name = ".".join(map(str, keys))
        apart = [commit for commit in listed.commits if touches(commit.patch, keys)]
        if apart:
            raise LookupError(
                f"{name!r} was written by {apart[-1].node!r} (commit {apart[-1].id!r}), but its branch never joined, "
                "or its run was abandoned: see t.at(id)"
            )
        raise LookupError(f"no commit has written {name!r}; fields of the state: {', '.join(state)}")

    def replay(self) -> ImmutableState:
        """Computes all states again from what is stored, and compares them with what was noted when they were made.

        No node, router, policy or language model is called; reducers fold.

        Returns:
            The state that the thread has come to.

        Raises:
            StoreError: if a state differs: what is stored was changed, or a reducer gives something else than it did.
        """
        row = self._starter.store.thread(self.name)
        heads = [row.head] if row is not None and row.head is not None else []
        root = None if row is None else row.root
        history = History(self._starter.reader)
        history.read(heads, root)
        for found in read_runs(self._starter.store, heads, root):
            told = history.runs[found.points[-1]]
            if told.broken:
                raise StoreError(f"thread {self.name!r}: {told.broken}")
            for place, what in self._differing(history, found):
                commit = self._known.listed().commits[self._known.listed().index_of(history.log[place].commit.id)]
                raise StoreError(
                    f"thread {self.name!r}: the state after version {commit.version} (commit {commit.id!r}) is not the "
                    f"one {what}. What is stored was changed, or a reducer of the schema gives something else than it "
                    "did then"
                )
        return history.state(history.runs[heads[-1]].trunk_index) if heads else ImmutableState()

    def _differing(self, history: History, found: RunRows) -> Iterator[tuple[int, str]]:
        """Where the states of a run are not those that were noted, and what noted them; first to last."""
        reader, told = self._starter.reader, history.runs[found.points[-1]]
        snapshots = []
        at = found.points[-1]
        pruned = at in history.roots  # its snapshot is what it begins with
        while not pruned and at.seq >= 0 and (kept := latest_snapshot(reader.store, at, reader.decode)) is not None:
            snapshots.append(kept[1])
            at = Point(at.run, kept[0].seq - 1)
        for rested in reversed(snapshots):
            place = told.log_indexes[rested.commit_index] if rested.commit_index >= 0 else told.trunk_index
            if place is not None and history.log[place].state != rested.state:
                yield place, "in its snapshot (t.resume() and t.run() go on from that one)"
        noted = {end.header[1] for end in found.rows if end.kind == RowKind.END and len(end.header) > 1} - {None}
        if told.trunk_index is not None and noted and noted != {digest(history.state(told.trunk_index))}:
            yield told.trunk_index, "that its run ended with"

    def _state_of(self, moment: Moment) -> ImmutableState:
        if isinstance(moment, int | str):
            return self.at(moment)
        return moment if isinstance(moment, ImmutableState) else ImmutableState(moment)

    def _around(self, version: int | str) -> CommitListing:
        """The commits among which one is: the thread's, or those of a run of it that it does not go on from any more.

        Args:
            version: version or id of the commit.
        """
        listed, store = self._known.listed(), self._starter.store
        if isinstance(version, int) or listed.has(version):
            return listed
        for run in store.runs(self.name):
            rows = store.rows(run.id) if version.startswith(f"{run.header.get('label')}/") else []
            if rows:
                at = Point(run.id, rows[-1].seq)
                other = CommitListing(self._known.extended(ThreadRow(self.name, at, 0, root=self._known.root)), (at,))
                if other.has(version):
                    return other
        return listed

    def _id_of(self, version: int) -> str:
        page = self.history(first=version, count=1)
        if page and page[0].version == version:
            return page[0].id
        listed = self._known.listed()
        return listed.commits[listed.index_of(version)].id

    def _inside(self, version: int | str) -> list[Commit]:
        outer = self._id_of(version) if isinstance(version, int) else version
        listed, store = self._known.listed(), self._starter.store
        found: list[Commit] = []
        for part in read_runs(store, listed.heads):
            for label in dict.fromkeys(part.labels.values()):  # names of threads may hold any character: no splitting
                if outer.startswith(f"{label}/"):
                    execution = outer.removeprefix(f"{label}/")
                    found += inner_commits(self._starter.reader, part, tuple(execution.split("/")))
        return found


# --------------------------------------------------------------------------------------------------------------------
# Reading a thread in pages: a state, the author of a value or some commits, without the rest of the history.
#
# Each method gives None where that cannot be done: where two histories were merged, older history was pruned, a commit
# cannot be read or there is no such commit. There the whole history has to be read, which also knows what to raise.

KEPT = 4
"""Blocks that a handle keeps: who reads one state mostly reads the next one."""

NAME = re.compile(r"(?:trunk|[0-9]+(?:\.[0-9]+)*):([0-9]+)(?:\+[0-9]+)?")
"""The id of a commit without its run; its group is how many commits of its branch come before it at least."""


class Pages:
    """Reads parts of the history of one thread. Its methods may be called from any thread.

    Args:
        reader: reads the store.
        thread: the name of the thread.
    """

    def __init__(self, reader: HistoryReader, thread: str) -> None:
        self._reader = reader
        self._thread = thread
        self._kept: tuple[tuple[str, Block], ...] = ()

    def at(self, version: int | str) -> ImmutableState | None:
        """The state after a commit.

        Args:
            version: its version or id.
        """
        head, root = self._ends()
        if isinstance(version, str):
            return self._at_id(version, head, root)
        span = self._span(version, head, root)
        block = None if span is None else self._block(span, version, root)
        if block is None or version >= block.end:
            return None
        return block.states[next(commit.id for commit in block.commits if commit.version == version)]

    def _at_id(self, name: str, head: Point | None, root: Point | None) -> ImmutableState | None:
        for span in runs_back(self._reader.store, head, root):
            own = name.removeprefix(f"{span.labels[0]}/")
            found = NAME.fullmatch(own)
            if found is not None and (own != name or "/" not in name) and span.run is span.begun:
                place = self._place_of(span, own, int(found[1]))
                block = None if place is None else self._block(span, span.first + place, root)
                return None if block is None else block.states.get(f"{span.labels[0]}/{own}")
            if "/" not in name:
                return None
        return None

    def _place_of(self, span: RunSpan, name: str, least: int) -> int | None:
        """Which commit of a run has an id; None if there is none.

        Args:
            span: the run.
            name: the id without the run.
            least: how many commits come before it at least.
        """
        store, run, last = self._reader.store, span.run.id, span.at.seq
        near = store.rows(run, least, min(least + 1, last))
        for row in near:
            head = CommitHeader.parse(row.header) if row.kind in COMMITS else None
            if head is not None and head.id == name and not head.scope and head.step == least and not head.branch:
                return least  # the run has not forked before, nor made anything but commits of its own
        place = -1
        for row in store.rows(run, 0, last):
            if row.kind in COMMITS:
                head = CommitHeader.parse(row.header)
                place += not head.scope
                if head.id == name and not head.scope:
                    return place
        return None

    def blame(self, keys: tuple[Any, ...]) -> Commit | None:
        """The commit that last wrote a path.

        Args:
            keys: the path.
        """
        head, root = self._ends()
        if head is None:
            return None
        found = recover_state(self._reader, head)
        block = recovered_block(self._reader, found, root)
        if block is None:
            return None
        line, value = LinearHistory(self._reader, block, root), value_at(found.state, keys)
        while block is not None:
            writer = _writer_in(block, keys, value)
            if writer is not None:
                name = block.entries[writer - block.first].commit.id
                return next(commit for commit in block.commits if commit.id == name)
            value = value_at(block.state, keys)
            block = line.block(block.first - 1) if block.first else None
        return None

    def page(self, first: int | None, count: int, newest: bool) -> list[Commit] | None:
        """Some commits of the history.

        Args:
            first: the version of the first of them; None for the first of all.
            count: how many.
            newest: whether they go back in time, from the newest of all where `first` is None.
        """
        head, root = self._ends()
        if head is None:
            return []
        begin = end = first or 0
        if newest:
            last = recover_state(self._reader, head).next_version - 1
            end = last if first is None else min(first, last)
            begin = max(end - count + 1, 0)
        runs: list[RunSpan] = []
        for span in runs_back(self._reader.store, head, root):
            runs.append(span)
            if span.first <= begin:
                break
        if not runs or runs[-1].first > begin:
            return None
        found: list[Commit] = []
        for span in reversed(runs):
            start = max(begin, span.first)
            wanted = end - start + 1 if newest else count - len(found)
            if newest and first is None:
                wanted = span.at.seq + 1  # forks that have not joined come last
            elif wanted <= 0:
                break
            block = block_around(self._reader, span, start, wanted, root)
            if not block.is_complete:
                return None
            found += [commit for commit in block.commits if commit.version is None or commit.version >= start]
        return cut_out(found, first, count, newest)

    def _span(self, number: int, head: Point | None, root: Point | None) -> RunSpan | None:
        """The run of a commit; None where it is merged history or pruned, or there is none."""
        runs = runs_back(self._reader.store, head, root)
        return next((span for span in runs if number >= span.first), None)

    def _block(self, span: RunSpan, number: int, root: Point | None) -> Block | None:
        """The commits around one; the next ones too if its neighbours were read just now."""
        blocks = [
            block for run, block in self._kept if run == span.run.id and block.end <= span.first + span.at.seq + 1
        ]
        for block in blocks:
            if block.first <= number < block.end:
                return block
        near = any(block.first - EVERY <= number <= block.end + EVERY for block in blocks)
        block = block_around(self._reader, span, number, EVERY if near else 1, root)
        if not block.is_complete:
            return None
        self._kept = ((span.run.id, block), *self._kept[: KEPT - 1])
        return block

    def _ends(self) -> tuple[Point | None, Point | None]:
        row = self._reader.store.thread(self._thread)
        return (None, None) if row is None else (row.head, row.root)


def cut_out(commits: list[Commit], first: int | None, count: int | None, newest: bool) -> list[Commit]:
    """A page of commits that are listed oldest first.

    Args:
        commits: the commits: all of them, or those among which the page is.
        first: the version of the first commit of the page.
        count: how many it has at most.
        newest: whether it goes back in time.
    """
    commits = list(reversed(commits)) if newest else commits
    if first is not None:
        versions = enumerate([commit.version for commit in commits])
        wanted = (place for place, one in versions if one is not None and (one <= first if newest else one >= first))
        commits = commits[next(wanted, len(commits)) :]
    return commits if count is None else commits[:count]


def _writer_in(block: Block, keys: tuple[Any, ...], value: Any) -> int | None:
    """The number of the commit of a block that last wrote a path; None if it was written before."""
    if not block.entries:
        return None
    before = block.first - 1
    patch = {keys[0]: Replace(None)} if keys else {}
    log = {before: LogEntry(Commit("", None, "", (), 1, 0, patch, ()), block.state, (), None)}
    log |= dict(enumerate(block.entries, block.first))
    head = [block.end - 1]
    writer = last_writer(log, [before, *ancestry(log, head, range(block.first, block.end))], head, keys, value)
    return None if writer == before else writer


# --------------------------------------------------------------------------------------------------------------------
# What a handle on a thread has read of its history, each row once.


class Known:
    """The history of one thread as far as it was read. Its methods may be called from any thread.

    Args:
        reader: reads the store.
        thread: the name of the thread.

    Attributes:
        history: what was read.
        root: where the history begins, if older rows were pruned.
    """

    def __init__(self, reader: HistoryReader, thread: str) -> None:
        self.history = History(reader)
        self.root: Point | None = None
        self._reader = reader
        self._thread = thread
        self._listed = CommitListing(self.history, ())
        self._reading = Lock()

    def up_to(self, at: Point) -> CommitListing:
        """The commits up to a row of the thread.

        Args:
            at: the row.
        """
        row = self._reader.store.thread(self._thread)
        root = None if row is None else row.root
        with self._reading:
            self._begin_at(root)
            self.history.read([at], root)
            return CommitListing(self.history, [at])

    def extended(self, *rows: ThreadRow) -> History:
        """The history up to the heads of threads.

        Args:
            rows: the threads, this one first.
        """
        with self._reading:
            self._begin_at(rows[0].root)
            for row in rows:
                self.history.read([] if row.head is None else [row.head], row.root)
        return self.history

    def listed(self) -> CommitListing:
        """The commits up to the thread's head."""
        row = self._reader.store.thread(self._thread)
        heads = (row.head,) if row is not None and row.head is not None else ()
        root = None if row is None else row.root
        with self._reading:
            self._begin_at(root)
            if heads != self._listed.heads:
                self.history.read(heads, root)
                self._listed = CommitListing(self.history, heads)
            return self._listed

    def _begin_at(self, root: Point | None) -> None:
        """Drops what was read, if older history was pruned since."""
        if root != self.root:
            self.history, self.root = History(self._reader), root
            self._listed = CommitListing(self.history, ())
