"""Reading a thread in pages: a state, the author of a value or some commits, without the rest of the history.

Each method gives None where that cannot be done: where two histories were merged, older history was pruned, a commit
cannot be read or there is no such commit. There the whole history has to be read, which also knows what to raise.
"""

from __future__ import annotations

import re
from typing import Any

from dspyer.events import Commit
from dspyer.patch import Replace
from dspyer.persistence.history_parts import Block, Line, RunSpan, block_around, block_of, spans
from dspyer.persistence.reader import HistoryReader
from dspyer.persistence.rows import COMMITS, CommitHeader
from dspyer.persistence.snapshots import EVERY, load_snapshot_head
from dspyer.scheduler.lineage import LogEntry, last_writer, lineage, value_at
from dspyer.state import ImmutableState
from dspyer.stores.base import Point

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
        for span in spans(self._reader.store, head, root):
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
            head = CommitHeader.of(row.head) if row.kind in COMMITS else None
            if head is not None and head.id == name and not head.scope and head.step == least and not head.branch:
                return least  # the run has not forked before, nor made anything but commits of its own
        place = -1
        for row in store.rows(run, 0, last):
            if row.kind in COMMITS:
                head = CommitHeader.of(row.head)
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
        found = load_snapshot_head(self._reader, head)
        block = block_of(self._reader, found, root)
        if block is None:
            return None
        line, value = Line(self._reader, block, root), value_at(found.state, keys)
        while block is not None:
            writer = _writer_in(block, keys, value)
            if writer is not None:
                name = block.line[writer - block.first].commit.id
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
            last = load_snapshot_head(self._reader, head).first - 1
            end = last if first is None else min(first, last)
            begin = max(end - count + 1, 0)
        runs: list[RunSpan] = []
        for span in spans(self._reader.store, head, root):
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
            if not block.whole:
                return None
            found += [commit for commit in block.commits if commit.version is None or commit.version >= start]
        return cut_out(found, first, count, newest)

    def _span(self, number: int, head: Point | None, root: Point | None) -> RunSpan | None:
        """The run of a commit; None where it is merged history or pruned, or there is none."""
        runs = spans(self._reader.store, head, root)
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
        if not block.whole:
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
    if not block.line:
        return None
    before = block.first - 1
    patch = {keys[0]: Replace(None)} if keys else {}
    log = {before: LogEntry(Commit("", None, "", (), 1, 0, patch, ()), block.state, (), None)}
    log |= dict(enumerate(block.line, block.first))
    head = [block.end - 1]
    writer = last_writer(log, [before, *lineage(log, head, range(block.first, block.end))], head, keys, value)
    return None if writer == before else writer
