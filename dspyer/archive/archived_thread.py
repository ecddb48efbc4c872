"""The history of a stored thread, read without its program: `archive.thread(name)`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from dspyer import ImmutableState
from dspyer.archive.run_info import RunInfo, run_info
from dspyer.archive.stored_graph import StoredGraph
from dspyer.display import RunPath, Stats, count_stats, describe_run, draw_svg, write_page
from dspyer.errors import ThreadError, shows_removed
from dspyer.events import Answer, Commit, LMCall, Sent
from dspyer.failure import Failure
from dspyer.log.journal import is_alive
from dspyer.log.reader import HistoryReader
from dspyer.log.rows import first_version
from dspyer.log.time_travel import Bounds, ReadsHistory, ThreadReader, run_of
from dspyer.record import Items, Record
from dspyer.record.stored import FollowedRecords, drawn_graph, failures_of_run, unread_of
from dspyer.stores.base import ListedRun, Point
from dspyer.waiting import cancellation_count
from dspyer.worker_threads import run_in_thread

PAGE = 16
"""Commits that are read at once to find the new ones, if these are few."""


@shows_removed
class ArchivedThread(ReadsHistory):
    """The history of one stored thread. Made by `archive.thread(name)`; its methods are those of `Thread` that read.

    Their `run` is the id of a run or its label, with which the ids of its commits begin (`"t-42.1"`); None for the last
    one. They raise `ThreadError` if there is no such run, and `LookupError` if there is no such commit, or if a picture
    or figures need a graph that the run has not stored.

    Attributes:
        name: its name.

    Example:
        >>> from dspyer import END, START, Archive, Graph
        >>> from dspyer.stores import Memory
        >>> store = Memory()
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
        ...     writes=["n"]).add_path(START, "add", END)
        >>> run = graph.compile(store=store).thread("t-42").run({"n": 1})
        >>> thread = Archive(store).thread("t-42")
        >>> (thread.info().status, thread.at(0)["n"], thread.at(1)["n"],
        ...     thread.diff(0, 1))
        ('completed', 1, 2, {'n': 2})
        >>> (thread.blame("n").node, [step.node for step in thread.record().steps],
        ...     thread.failures(), thread.lm_calls(1))
        ('add', ['START', 'add'], (), ())
    """

    def __init__(self, reader: HistoryReader, name: str) -> None:
        self.name = name
        self._reader = reader
        self._thread_reader = ThreadReader(reader, name)
        self._records = FollowedRecords(reader, name)

    @property
    def _past(self) -> ThreadReader:
        return self._thread_reader

    def info(self, run: str | None = None) -> RunInfo:
        """The entry of a run in lists."""
        return run_info(self._reader, self._listed(run))

    def record(self, run: str | None = None) -> Record:
        """A run as one value, as `Thread.record` gives it. Asked for again, it reads what was written since."""
        return self._records.record(run)

    def items(self, node: str, run: str | None = None) -> Items:
        """The items of a map, as `Thread.items` gives them; a `KeyError` lists the maps that there are."""
        return self._records.items(node, run)

    def failures(self, run: str | None = None) -> tuple[Failure, ...]:
        """The failures with which a run ended, each with its traceback."""
        return failures_of_run(self._reader, self._listed(run))

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers to the questions of all runs, as they may be shown."""
        return tuple(map(self._records.shown, super().answers))

    @property
    def unread(self) -> tuple[Sent, ...]:
        """The messages that no turn has taken, as they may be shown."""
        return tuple(map(self._records.shown, unread_of(self._reader.store, self.name)))

    def history(
        self,
        inside: int | str | None = None,
        *,
        run: str | None = None,
        first: int | None = None,
        count: int | None = None,
        newest: bool = False,
    ) -> list[Commit]:
        """The commits of the thread, as `Thread.history` gives them, or of one of its runs.

        All of them are those that led to the head of the thread; of a run, also those that a rerun has replaced.
        """
        if run is None:
            return super().history(inside, first=first, count=count, newest=newest)
        listed = self._listed(run)
        return self._reader_of(listed).history(inside, first, count, newest, floor=first_version(listed.run))

    def state(self, run: str | None = None) -> ImmutableState:
        """The last state that all branches of a run shared: how the run has left it."""
        # Versions of a run that a rerun has replaced count along that run: those of the thread are other commits.
        reader = self._thread_reader if run is None else self._reader_of(self._listed(run))
        commits = self.history(run=run, newest=True, count=50)
        if commits and commits[0].version is None:  # in a fork that has not joined, or not readable: then this raises
            reader.at(commits[0].id)
            commits = self.history(run=run, newest=True)
        version = next((commit.version for commit in commits if commit.version is not None), None)
        return ImmutableState({}) if version is None else reader.at(version)

    def graph(self, run: str | None = None) -> StoredGraph | None:
        """The graph that made a run, with `to_svg()`, `to_mermaid()` and `explain()`; None if it has stored none."""
        found = drawn_graph(self._reader.store, self._listed(run).run)
        return None if found is None else StoredGraph(found)

    def stats(self, run: str | None = None) -> Stats:
        """Statistics of the nodes of a run, as `run.stats()`. Reads the whole run."""
        return count_stats([self._drawn(run)])

    def lm_calls(self, commit: int | str) -> tuple[LMCall, ...]:
        """The LM calls of a commit, or of an execution that has failed (`info.failure.execution`).

        With those of items and graphs inside of its node. Messages and responses are there if they were recorded; of a
        run that hides values, only as its `record_lm_calls` function has left them.
        """
        return self._records.calls(self._thread_reader.id_of(commit))

    def _drawn(self, run: str | None) -> Record:
        """The record of a run with its graph; raises if it has none, or one that cannot be read."""
        if self.graph(run) is None:
            raise LookupError(f"a run of thread {self.name!r} has stored no graph: no figures, and no picture")
        return self.record(run)

    def report(self, run: str | None = None) -> str:
        """A run in words, as `run.report()` gives it, but for the reason of a stop."""
        return describe_run(self.record(run))

    def to_svg(self, run: str | None = None) -> str:
        """The graph of a run with the path taken, as `run.to_svg()` draws it."""
        record = self._drawn(run)
        return draw_svg(record.graph, RunPath.of(record))

    def to_html(self, path: str | os.PathLike[str], run: str | None = None) -> Path:
        """Write a run as one HTML file, as `Run.to_html` does. Returns the path."""
        return write_page(self.record(run), path)

    async def follow(self, after: int | str | None = None, *, interval: float = 0.2) -> AsyncIterator[Commit]:
        """Yields the commits of the thread as they are written. It never ends: close it, or cancel its task.

        Args:
            after: version or id of the last commit that is known; None begins with the first one.
            interval: seconds between two looks at the store.
        """
        known = await run_in_thread(lambda: dict[str, bool]() if after is None else self._up_to(after))
        position = None
        while True:
            before = cancellation_count()
            now = await run_in_thread(self.position)
            commits = await run_in_thread(lambda: self._unseen(known)) if now not in ("", position) else ()
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
        """The end of the history, as a text: another one after each write, and once its owner has died or let go.

        Empty for a thread that was deleted. It reads one row: pages that show a thread ask for it often.
        """
        row = self._reader.store.thread(self.name)
        if row is None:
            return ""
        head = "" if row.head is None else f"{row.head.run}:{row.head.seq}"
        return f"{head}:{row.epoch}:{int(is_alive(row))}"

    def __repr__(self) -> str:
        return f"<archived thread {self.name!r} in {self._reader.store.address}>"

    def _up_to(self, commit: int | str) -> dict[str, bool]:
        """The ids of the commits up to one, as they are known to `follow`."""
        around = self._thread_reader.commits_around(commit)
        ids = [one.id for one in self.history()]
        name = around.commits[around.index_of(commit)].id
        return dict.fromkeys(ids[: ids.index(name) + 1] if name in ids else ids, False)

    def _unseen(self, known: dict[str, bool]) -> list[Commit]:
        """The commits that are not known, in the order of the history, which are noted, with whether they are settled.

        Those behind one that was seen settled were seen: read back to one of these, also after a rerun.
        """
        count, found = PAGE, list[Commit]()
        while len(found := self.history(newest=True, count=count)) == count and not known.get(found[-1].id):
            count *= 4
        new = [commit for commit in reversed(found) if commit.id not in known]
        known |= {commit.id: commit.version is not None for commit in found}
        return new

    # --- runs

    def _listed(self, run: str | None) -> ListedRun:
        return run_of(self._reader.store, self.name, run)

    def _reader_of(self, listed: ListedRun) -> ThreadReader:
        """Reads a run and what it continues, as if the thread ended with it."""
        bounds: Bounds = (None if listed.last < 0 else Point(listed.run.id, listed.last)), listed.thread.root
        return ThreadReader(self._reader, self.name, lambda: bounds)
