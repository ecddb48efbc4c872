"""The history of a stored thread, read without its program: `archive.thread(name)`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from dspyer.archive.run_display import StoppedExecution, StoredRunDisplay, stopped_executions, stored_run_display
from dspyer.archive.run_info import RunInfo, failures_of_run, run_info
from dspyer.archive.stored_graph import StoredGraph, stored_graph
from dspyer.archive.stored_records import JoinConflict, join_conflicts, stored_posts, stored_stats
from dspyer.display.graph_svg import RunPath, draw_svg
from dspyer.display.report import describe_run
from dspyer.display.run_file import RunFile, shown_places
from dspyer.display.run_page import commit_row, run_answer
from dspyer.display.stats import Stats
from dspyer.errors import ThreadError
from dspyer.events import Commit, LMCall, MergedConflict, Posted
from dspyer.failure import Failure
from dspyer.ids import full_id
from dspyer.log.history import runs_back
from dspyer.log.journal import is_alive
from dspyer.log.reader import HistoryReader, RunRows, read_run
from dspyer.log.rows import UnreadablePatch, first_version, run_label
from dspyer.log.time_travel import Bounds, Moment, ThreadReader, calls_by_commit
from dspyer.record.record import Record
from dspyer.record.stored import record_of
from dspyer.record_codec import Update, changed, encode
from dspyer.state import ImmutableState
from dspyer.stores.base import ListedRun, Point, RunQuery, RunRow, ThreadRow, listed_run
from dspyer.values import json as encoding
from dspyer.values.frozen import FrozenDict
from dspyer.waiting import cancellation_count
from dspyer.worker_threads import run_in_thread


class CommitInfo(NamedTuple):
    """A commit with what led to it and what it changed.

    Attributes:
        commit: the commit.
        before: the state before it; of a join, that of its first branch.
        after: the state after it.
        diff: the smallest patch from one to the other.
        blame: for each field of the state after it, the commit that had last written the field.
        lm_calls: the LM calls of its execution, if its program has recorded them.
        conflicts: of a join, the conflicts of its branches.
        sent: what a `Send` had brought to it, besides the state before it.
    """

    commit: Commit
    before: ImmutableState
    after: ImmutableState
    diff: Mapping[str, Update]
    blame: Mapping[str, Commit]
    lm_calls: tuple[LMCall, ...] = ()
    conflicts: tuple[MergedConflict, ...] = ()
    sent: Mapping[str, Any] = FrozenDict()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; of the commits that have written the fields, node and id."""
        return {**encode(self._replace(blame={})), "blame": blame_dict(self.blame)}


class ExecutionInfo(NamedTuple):
    """An execution that has left no commit: it failed, or asks a question.

    Attributes:
        execution: its id, with the label of its run in front.
        node: its node; `"join:NAME"` of a join.
        parents: the ids of the commits that it follows; several of a join.
        state: the state that its node could read; of a join, that of its first branch.
        blame: for each field of it, the commit that had last written the field.
        lm_calls: the LM calls that it has made, if its program has recorded them.
        sent: what a `Send` has brought to it, besides the state.
    """

    execution: str
    node: str
    parents: tuple[str, ...]
    state: ImmutableState
    blame: Mapping[str, Commit]
    lm_calls: tuple[LMCall, ...] = ()
    sent: Mapping[str, Any] = FrozenDict()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; of the commits that have written the fields, node and id."""
        return {**encode(self._replace(blame={})), "blame": blame_dict(self.blame)}


def blame_dict(blame: Mapping[str, Commit]) -> dict[str, Any]:
    """The JSON form of who has written each field: node and id of the commit."""
    return {name: {"node": found.node, "commit": found.id} for name, found in blame.items()}


def state_dict(state: ImmutableState) -> dict[str, Any]:
    """The JSON form of a state, by field."""
    return {name: encoding.encode(value) for name, value in state.raw_items()}


class ArchivedThread:
    """The history of one stored thread. Made by `archive.thread(name)`; its methods are those of `Thread` that read.

    Attributes:
        name: its name.

    Example:
        >>> from dspyer import END, START, Archive, Graph
        >>> from dspyer.stores import Memory
        >>> store = Memory()
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
        >>> run = graph.compile(store=store).thread("t-42").run({"n": 1})
        >>> thread = Archive(store).thread("t-42")
        >>> thread.info().status, thread.at(0)["n"], thread.at(1)["n"], thread.diff(0, 1)
        ('completed', 1, 2, {'n': 2})
        >>> thread.blame("n").node, thread.commit(1).before["n"], thread.failures(), thread.lm_calls(1)
        ('add', 1, (), ())
    """

    def __init__(self, reader: HistoryReader, name: str) -> None:
        self.name = name
        self._reader = reader
        self._thread_reader = ThreadReader(reader, name)
        self._readers: dict[str, ThreadReader] = {}

    def info(self, run: str | None = None) -> RunInfo:
        """What lists show of a run.

        Args:
            run: its id, or its label, with which the ids of its commits begin (`"t-42.1"`); None for the last run.
        """
        return run_info(self._reader, self._listed(run))

    def record(self, run: str | None = None) -> Record:
        """A run as one value, as `Thread.record` gives it; `run` as in `info`.

        Raises:
            ThreadError: if there is no such run.
        """
        return record_of(self._reader, self.name, run)

    def failures(self, run: str | None = None) -> tuple[Failure, ...]:
        """The failures with which a run ended, each with its traceback; `run` as in `info`."""
        return failures_of_run(self._reader.store, self._listed(run))

    def history(
        self,
        inside: int | str | None = None,
        *,
        run: str | None = None,
        first: int | None = None,
        count: int | None = None,
        newest: bool = False,
    ) -> list[Commit]:
        """The commits of the thread, or of one of its runs: all of them, or a page.

        Args:
            inside: as in `Thread.history`: the commits inside of this one, whose node is a graph.
            run: the id or the label of a run; None for all that led to the head of the thread.
            first: the version with which the page begins.
            count: the most commits of the page.
            newest: whether the newest come first; then the page goes from `first` back in time.

        Raises:
            LookupError: if there is no such run or commit.
        """
        if run is None:
            return self._thread_reader.history(inside, first, count, newest)
        listed = self._listed(run)
        begin = first_version(listed.run)
        return self._reader_of(listed).history(inside, first, count, newest, floor=begin)

    def state(self, run: str | None = None) -> ImmutableState:
        """The last state that all branches of a run shared: how the run has left it; `run` as in `info`."""
        commits = self.history(run=run, newest=True, count=50)
        if commits and commits[0].version is None:  # in a fork that has not joined, or not readable: then this raises
            self.at(commits[0].id)
            commits = self.history(run=run, newest=True)
        version = next((commit.version for commit in commits if commit.version is not None), None)
        return ImmutableState({}) if version is None else self.at(version)

    def at(self, version: int | str) -> ImmutableState:
        """The state after a commit, by its version or id."""
        return self._thread_reader.at(version)

    def diff(self, first: Moment, second: Moment) -> dict[str, Any]:
        """The smallest patch that turns one state into another: versions or ids of commits, or states."""
        return self._thread_reader.state_of(first).diff(self._thread_reader.state_of(second))

    def blame(self, path: str | tuple[Any, ...], at: int | str | None = None) -> Commit:
        """The commit that last wrote a path of the state.

        Args:
            path: segments with dots between them, or a tuple of keys; items as in `run.blame`.
            at: version or id of a commit: the last writer up to there; None for the state of the thread now.

        Raises:
            LookupError: if there is no such commit, or none has written there.
        """
        return self._thread_reader.blame(path, at)

    def commit(self, version: int | str) -> CommitInfo:
        """A commit with the states before and after it, who had written each field, and its LM calls.

        Args:
            version: its version or id.

        Raises:
            LookupError: if there is no such commit.
        """
        found = self._thread_reader.entry(version)
        after = found.after
        blame = self._thread_reader.writers(found.commit.id)
        return CommitInfo(
            found.commit,
            found.before,
            after,
            found.before.diff(after),
            blame,
            tuple(self.lm_calls(found.commit.id)),
            found.conflicts,
            self._thread_reader.sent_to(found.commit.parents, found.commit.branch),
        )

    def execution(self, name: str, run: str | None = None) -> ExecutionInfo:
        """An execution with which a run ended without its commit: what it could read, and its LM calls.

        Of an item of a map, and of a node inside of a graph, this is said of the node of the run around it.

        Args:
            name: its id, as `info.failure.execution` or `Question.execution` has it.
            run: as in `info`.

        Raises:
            LookupError: if the run has not ended there.
        """
        info, stopped = self._stopped(run)
        found = stopped.get(name) or stopped.get(full_id(run_label(self._listed(info.run_id).run), name))
        if found is None:
            raise LookupError(f"the run {info.run_id!r} has not ended at {name!r}: see info.failure and info.questions")
        return self._execution(found, info)

    def _stopped(self, run: str | None) -> tuple[RunInfo, dict[str, StoppedExecution]]:
        info = self.info(run)
        return info, stopped_executions(info, self.failures(run), self._last_commits(info.run_id))

    def _execution(self, stopped: StoppedExecution, info: RunInfo) -> ExecutionInfo:
        name, node, branch, parents = stopped
        reader, state = self._reader_of(self._listed(info.run_id)), ImmutableState()
        blame: dict[str, Commit] = {}
        calls: tuple[LMCall, ...] = ()
        if parents:
            state, blame = reader.at(parents[0]), reader.writers(parents[0])
        with suppress(LookupError):  # it has made none
            calls = self.lm_calls(name)
        return ExecutionInfo(name, node, parents, state, blame, calls, reader.sent_to(parents, branch))

    def _last_commits(self, run: str) -> list[Commit]:
        """The commits of a run from its last settled one on: all that is active at its end has come from that one."""
        count = 64
        while True:
            found = self.history(run=run, newest=True, count=count)
            if len(found) < count or any(commit.version is not None for commit in found):
                return found[::-1]
            count *= 4

    def graph(self, run: str | None = None) -> StoredGraph | None:
        """The graph that made a run; `run` as in `info`.

        Returns:
            The graph, with `to_svg()`, `to_mermaid()` and `explain()`; None if the run has stored none.

        Raises:
            StoreError: if it has stored one that cannot be read.
        """
        return stored_graph(self._reader.store, self._listed(run).run)

    def stats(self, run: str | None = None) -> Stats:
        """How reliable each node of a run was, as `run.stats()`; `run` as in `info`. Reads the whole run.

        Raises:
            LookupError: if there is no such run, or it has stored no graph.
        """
        listed, graph = self._listed(run), self._stored_graph(run)
        commits = self.history(run=listed.run.id)
        readable = commits and not isinstance(commits[0].patch, UnreadablePatch)
        begin = self._reader_of(listed).entry(commits[0].id).before if readable else {}
        rows = [] if listed.last < 0 else [self._rows_of(listed)]
        failures, nodes = self.failures(listed.run.id), graph.picture.topology.nodes
        return stored_stats(nodes, graph.checks, graph.maps, commits, failures, rows, begin)

    def _stored_graph(self, run: str | None) -> StoredGraph:
        found = self.graph(run)
        if found is None:
            raise LookupError(f"the run {run or 'that was last'!r} of thread {self.name!r} has stored no graph")
        return found

    def posts(self, run: str | None = None) -> list[Posted]:
        """The posts to the live fields of a run, in order; `run` as in `info`. Reads the whole run."""
        listed = self._listed(run)
        if listed.last < 0:
            return []
        rows = self._rows_of(listed)
        return stored_posts(self._reader, rows, stored_graph(self._reader.store, listed.run))

    def conflicts(self, run: str | None = None) -> list[JoinConflict]:
        """The conflicts of the joins of a run, in order; `run` as in `info`. Reads the whole run."""
        listed = self._listed(run)
        return self._conflicts(listed, self.history(run=listed.run.id))

    def _conflicts(self, listed: ListedRun, commits: Iterable[Commit]) -> list[JoinConflict]:
        joins = frozenset(commit.id for commit in commits if commit.node.startswith("join:"))
        return join_conflicts(self._reader_of(listed).cache.listed(), joins) if joins else []

    def lm_calls(self, commit: int | str) -> tuple[LMCall, ...]:
        """The LM calls of a commit, or of an execution that has failed (`info.failure.execution`).

        With those of items and graphs inside of its node. Messages and responses are there if they were recorded; of a
        graph that redacts values, only as its `record_lm_calls` function has left them.

        Raises:
            LookupError: if there is no such commit or execution.
        """
        return self._thread_reader.lm_calls(commit)

    def report(self, run: str | None = None) -> str:
        """A run in words, as `run.report()` gives it; `run` as in `info`.

        It says what is stored: values that `compile(redact=...)` hides are shown, the reason of a stop is not, and
        conflicts that ended the run are told by their error alone.
        """
        shown = self._shown(run)
        return describe_run(shown.rows, shown.facts)

    def to_svg(self, run: str | None = None) -> str:
        """The graph of a run with the path taken, as `run.to_svg()` draws it; `run` as in `info`.

        Raises:
            LookupError: if there is no such run, or it has stored no graph.
        """
        graph, shown = self._stored_graph(run), self._shown(run)
        return draw_svg(graph.picture, RunPath.of(shown.facts.status, shown.rows))

    def to_html(self, path: str | os.PathLike[str], run: str | None = None) -> Path:
        """Write a run as one HTML file, as `Run.to_html` does, with its values as they are stored.

        A program's `redact` is not stored, so nothing is redacted here: texts are hidden where they were not recorded.
        `run` is as in `info`. Returns the path.
        """
        info, stopped = self._stopped(run)
        commits = self.history(run=info.run_id)
        file = RunFile({**overview(self, run), "stats": self.stats(run).to_dict()}, len(commits))
        shown = [commits[place] for place in shown_places(len(commits))]
        calls = self.lm_calls_of(shown)
        unreadable = {commit.id for commit in commits if isinstance(commit.patch, UnreadablePatch)}
        for commit in shown:
            if isinstance(commit.patch, UnreadablePatch):  # what it was, and why it is not there
                step = {"commit": changed(commit, reason=commit.patch.error).to_dict(), "before": None, "after": None}
            else:
                step = self.commit(commit.id).to_dict()
            file.add_step(commit_row(commit, calls.get(commit.id, [])), step)
        file.add_lists(
            executions={
                name: self._execution(one, info).to_dict()
                for name, one in stopped.items()
                if unreadable.isdisjoint(one.parents)
            },
            posts=[post.to_dict() for post in self.posts(run)],
            conflicts=[found.to_dict() for found in self.conflicts(run)],
        )
        return file.write(path)

    def _shown(self, run: str | None) -> StoredRunDisplay:
        listed = self._listed(run)
        info = run_info(self._reader, listed)
        commits = self.history(run=info.run_id)
        conflicts: dict[str, tuple[MergedConflict, ...]] = {}
        for found in self._conflicts(listed, commits):
            conflicts[found.commit] = (*conflicts.get(found.commit, ()), found.conflict)
        rows = self._rows_of(listed)
        return stored_run_display(info, commits, conflicts, self.failures(info.run_id), rows)

    def lm_calls_of(self, commits: Iterable[Commit]) -> dict[str, list[LMCall]]:
        """The LM calls of each of some commits, by id, without texts: those of a page of a history at once."""
        return calls_by_commit(self._reader.store, self.name, commits)

    async def follow(self, after: int | str | None = None, *, interval: float = 0.2) -> AsyncIterator[Commit]:
        """Yields the commits of the thread as they are written. It never ends: close it, or cancel its task.

        Args:
            after: version or id of the last commit that is known; None begins with the first one.
            interval: seconds between two looks at the store.
        """
        news = await run_in_thread(lambda: NewCommits(self, after))
        position = None
        while True:
            before = cancellation_count()
            now = await run_in_thread(self.position)
            commits = await run_in_thread(news.read) if now not in ("", position) else ()
            if cancellation_count() > before:
                raise asyncio.CancelledError  # it was held back until the store had answered
            if not now:
                raise ThreadError(f"the thread {self.name!r} was deleted")
            for commit in commits:
                yield commit
            position = now
            # Polling: the writer may be any process on any host, and a store sends no messages.
            await anyio.sleep(interval)

    def position(self) -> str:
        """Where the history ends, as a text: another one after each write, and once its owner has died or let go.

        Empty for a thread that was deleted. It reads one row: pages that show a thread ask for it often.
        """
        row = self._reader.store.thread(self.name)
        if row is None:
            return ""
        head = "" if row.head is None else f"{row.head.run}:{row.head.seq}"
        return f"{head}:{row.epoch}:{int(is_alive(row))}"

    def __repr__(self) -> str:
        return f"<archived thread {self.name!r} in {self._reader.store.address}>"

    # --- runs

    def _listed(self, run: str | None) -> ListedRun:
        """A run of the thread by its id or label, the last one for None."""
        store = self._reader.store
        thread = store.thread(self.name)
        if thread is None:
            raise ThreadError(f"the thread {self.name!r} was deleted")
        if run is None:
            (last,) = store.list_runs(RunQuery(self.name, limit=1, last=True)) or (None,)
            if last is None:
                raise LookupError(f"the thread {self.name!r} has no run")
            return last
        (listed,) = store.list_runs(RunQuery(self.name, run=run, limit=1)) or (None,)
        if listed is not None:
            return listed
        found = next((one for one in self._runs_back(thread) if run in (one.id, run_label(one))), None)
        if found is None:
            labels = ", ".join(dict.fromkeys(run_label(one) for one in store.runs(self.name)[-3:]))
            raise LookupError(f"the thread {self.name!r} has no run {run!r}; the last ones: {labels or 'none'}")
        (listed,) = store.list_runs(RunQuery(found.thread, run=found.id, limit=1)) or (None,)
        # A run that was made for a thread that was deleted is in no list.
        listed = listed or listed_run(thread, found, store.rows(found.id))
        return listed._replace(thread=thread)

    def _runs_back(self, thread: ThreadRow) -> Iterator[RunRow]:
        """The runs that were made for the thread, newest first, then those that it continues."""
        store = self._reader.store
        own = store.runs(self.name)[::-1]
        yield from own
        known = {one.id for one in own}
        last = None if thread.head is None or thread.head.run in known else store.run(thread.head.run)
        if last is not None:  # of a copy of the commit at which a pruned history begins, there is no run behind it
            known.add(last.id)
            yield last
        for span in runs_back(store, thread.head, thread.root):
            yield from (one for one in (span.run, span.oldest) if one.id not in known)

    def _rows_of(self, listed: ListedRun) -> RunRows:
        """The rows of a run, as far as a pruned history has kept them."""
        return read_run(self._reader.store, Point(listed.run.id, listed.last), listed.thread.root)

    def _reader_of(self, listed: ListedRun) -> ThreadReader:
        """Reads a run and what it continues, as if the thread ended with it."""
        run, store = listed.run, self._reader.store

        def bounds() -> Bounds:
            rows = store.rows(run.id, listed.last) or store.rows(run.id)
            row = store.thread(self.name)
            return (Point(run.id, rows[-1].seq) if rows else None), None if row is None else row.root

        reader = self._readers.get(run.id)
        if reader is None:
            reader = self._readers[run.id] = ThreadReader(self._reader, self.name, bounds)
        return reader


def overview(thread: ArchivedThread, run: str | None) -> dict[str, Any]:
    """A run as a whole, as its page shows it; `run` as in `ArchivedThread.info`."""
    info, graph = thread.info(run), thread.graph(run)
    drawing, fields = (None, ()) if graph is None else (graph.drawing(), graph.fields)
    return run_answer(info, drawing, fields, info.questions, thread.failures(run), info.steps)


class NewCommits:
    """The commits of a thread that were not read before, each once. A rerun brings new ones with old versions."""

    def __init__(self, thread: ArchivedThread, after: int | str | None) -> None:
        self._thread = thread
        self._run = ""
        self._version = 0
        self._seen: set[str] = set()
        if after is not None:
            last = thread._thread_reader.entry(after).commit
            for commit in thread.history():
                self._seen.add(commit.id)
                if commit.id == last.id:
                    break

    def read(self) -> list[Commit]:
        """Read them, in the order of the history: from the last version on, or from the beginning of another run."""
        store, thread = self._thread._reader.store, self._thread.name
        row = store.thread(thread)
        if row is None or row.head is None:
            return []
        head = store.run(row.head.run)
        if head is None:  # the thread was deleted meanwhile
            return []
        if head.id != self._run:
            first = first_version(head) if self._run else 0
            self._run, self._version = head.id, min(first, self._version) if self._run else 0
        found = self._thread.history(first=self._version, count=1_000_000 if self._version else None)
        new = [commit for commit in found if commit.id not in self._seen]
        self._seen.update(commit.id for commit in new)
        self._version = max([self._version, *(commit.version + 1 for commit in found if commit.version is not None)])
        return new
