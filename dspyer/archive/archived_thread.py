"""The history of a stored thread, read without its program: `archive.thread(name)`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from dspyer import ImmutableState
from dspyer.archive.run_info import RunInfo, run_info
from dspyer.display import (
    RunPath,
    Stats,
    count_stats,
    describe_run,
    draw_svg,
    write_page,
)
from dspyer.errors import StoreError, ThreadError, shows_removed
from dspyer.events import Answer, Commit, LMCall, Sent
from dspyer.failure import Failure
from dspyer.log.history import recover_state
from dspyer.log.journal import is_alive
from dspyer.log.reader import HistoryReader
from dspyer.log.rows import first_version
from dspyer.log.time_travel import Bounds, ReadsHistory, ThreadReader, run_of
from dspyer.record import DrawnGraph, Items, Record
from dspyer.record.stored import FollowedRecords, drawn_graph, failures_of_run, unread_of
from dspyer.stores.base import ListedRun, Point
from dspyer.waiting import cancellation_count
from dspyer.worker_threads import run_in_thread


@shows_removed
class ArchivedThread(ReadsHistory):
    """The history of one stored thread. Made by `archive.thread(name)`; its methods are those of `Thread` that read.

    Their `run` is the id of a run or its label, with which the ids of its commits begin (`"t-42.1"`); None for the last
    one. They raise `ThreadError` if there is no such run, and `LookupError` if there is no such commit, or if a picture
    or figures need a graph that the run has not stored.

    Attributes:
        name: its name.
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
        listed = self._listed(run)  # read as if the thread ended with it
        bounds: Bounds = (None if listed.last < 0 else Point(listed.run.id, listed.last)), listed.thread.root
        reader = ThreadReader(self._reader, self.name, lambda: bounds)
        return reader.history(inside, first, count, newest, floor=first_version(listed.run))

    def state(self, run: str | None = None) -> ImmutableState:
        """The last state that all branches of a run shared: how the run has left it."""
        listed = self._listed(run)
        if listed.last < 0:
            return ImmutableState()
        found = recover_state(self._reader, Point(listed.run.id, listed.last))
        if found.broken:
            raise StoreError(found.broken)
        return found.state

    def graph(self, run: str | None = None) -> DrawnGraph:
        """The graph that made a run; a `LookupError` if the run has stored none."""
        found = drawn_graph(self._reader.store, self._listed(run).run)
        if found is None:
            raise LookupError(f"a run of thread {self.name!r} has stored no graph: no figures, and no picture")
        return found

    def stats(self, run: str | None = None) -> Stats:
        """Statistics of the nodes of a run, as `run.stats()`. Reads the whole run."""
        self.graph(run)  # raises if it is not known, or cannot be read
        return count_stats([self.record(run)])

    def lm_calls(self, commit: int | str) -> tuple[LMCall, ...]:
        """The LM calls of a commit, or of an execution that has failed (`info.failure.execution`).

        With those of items and graphs inside of its node. Messages and responses are there if they were recorded; of a
        run that hides values, only as its `record_lm_calls` function has left them.
        """
        return self._records.calls(self._thread_reader.id_of(commit))

    def report(self, run: str | None = None) -> str:
        """A run in words, as `run.report()` gives it, but for the reason of a stop."""
        return describe_run(self.record(run))

    def to_svg(self, run: str | None = None) -> str:
        """The graph of a run with the path taken, as `run.to_svg()` draws it."""
        return draw_svg(self.graph(run), RunPath.of(self.record(run)))

    def to_html(self, path: str | os.PathLike[str], run: str | None = None) -> Path:
        """Write a run as one HTML file, as `Run.to_html` does. Returns the path."""
        return write_page(self.record(run), path)

    async def follow(self, after: int | str | None = None, *, interval: float = 0.2) -> AsyncIterator[Commit]:
        """Yields the commits of the thread as they are written. It never ends: close it, or cancel its task.

        Args:
            after: version or id of the last commit that is known; None begins with the first one.
            interval: seconds between two looks at the store.
        """
        known = await run_in_thread(lambda: set[str]() if after is None else self._up_to(after))
        position = None
        while True:
            before = cancellation_count()
            now = await run_in_thread(self.position)
            commits = await run_in_thread(self.history) if now not in ("", position) else ()  # reads what is new
            if cancellation_count() > before:
                raise asyncio.CancelledError  # it was held back until the store had answered
            if not now:
                raise ThreadError(f"the thread {self.name!r} was deleted")
            for commit in [one for one in commits if one.id not in known]:
                known.add(commit.id)
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

    def _up_to(self, commit: int | str) -> set[str]:
        """The ids of the commits up to one."""
        around = self._thread_reader.commits_around(commit)
        ids = [one.id for one in self.history()]
        name = around.commits[around.index_of(commit)].id
        return set(ids[: ids.index(name) + 1] if name in ids else ids)

    # --- runs

    def _listed(self, run: str | None) -> ListedRun:
        return run_of(self._reader.store, self.name, run)
