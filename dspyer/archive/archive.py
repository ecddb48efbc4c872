"""`Archive`: what a store holds, for programs that read runs and have no program to run them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from dspyer.archive.archived_thread import ArchivedThread
from dspyer.archive.finding import RunFilters, as_seconds
from dspyer.archive.run_info import Page, RunInfo, Waiting, run_info
from dspyer.errors import StoreError, ThreadError, names_options, suggestion
from dspyer.extend import Schema
from dspyer.log.journal import CheckedStore
from dspyer.log.reader import HistoryReader, check_thread_name, is_encrypted
from dspyer.log.time_travel import due_threads, waiting_at
from dspyer.record import Overview, Record, StepExamples, examples_of
from dspyer.stores import Store, open_store
from dspyer.stores.base import ListedRun, Point, RunPlace, RunQuery
from dspyer.values import json as encoding
from dspyer.values.freezing import Opaque

if TYPE_CHECKING:
    import dspy

logger = logging.getLogger("dspyer")

MOST_COMMITS = 10_000
"""Rows of which the records are made that are read for one page of a list; each commit has one."""

NAMES = 1_000
"""Names of threads among which one is looked for that is like a name that no thread has."""

BATCH = 256
"""Runs that are read at once where not each of them is wanted."""


class Archive:
    """Reads the runs of a store, without their program, and writes nothing.

    It imports nothing of the program's and no DSPy. Values whose classes are not known here are opaque: they are shown
    and compared, and not used. Safe for use by several threads at once.

    Args:
        store: the address of a store, as `compile(store=...)` takes it, or the store itself, which stays open. A file
            that an address names must exist, or a misspelled one would look empty; a store without one yet is empty.
        key: the key of an encrypted store, or several of them, as `Encrypted(key=...)`; by default those in the
            environment variable `DSPYER_STORE_KEY`. Without a key, lists show all but failures and questions.
        redact: what is hidden where runs are shown: patterns or a function, as `compile(redact=...)` takes them. By
            default what the program of each run has hidden; of a function the store knows only that there was one, so
            no value is shown. False hides nothing. States and commits that methods return are whole.

    Raises:
        StoreError: the file does not exist, or is no store.
        ValueError: a pattern is malformed.
        ImportError: it needs an extra that is not installed.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> from dspyer.stores import Memory
        >>> from dspyer.testing import ScriptedLM
        >>> store = Memory()
        >>> graph = Graph().add_node("judge", dspy.Predict("text -> label"))
        >>> _ = graph.add_interrupt("ok", question="Send it?", answer=bool,
        ...     into="sent").add_path(START, "judge", "ok", END)
        >>> t = graph.compile(store=store).thread("t-42")
        >>> with ScriptedLM([{"label": "spam"}]):
        ...     run = t.run({"text": "Win!"})
        >>> archive = Archive(store)
        >>> [(info.thread, info.status) for info in archive.runs(contains="win")]
        [('t-42', 'interrupted')]
        >>> [one.question.text for one in archive.questions()], archive.due()
        (['Send it?'], [])
        >>> (archive.overview().runs,
        ...     [one.label for one in archive.examples("judge")])
        (1, ['spam'])
        >>> [step.node for step in archive.thread("t-42").record().steps]
        ['START', 'judge', 'ok']
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        *,
        key: str | bytes | Sequence[str | bytes] | None = None,
        redact: Callable[[tuple[Any, ...], Any], Any] | str | Iterable[Any] | Literal[False] | None = None,
    ) -> None:
        self._given = isinstance(store, Store)
        if not self._given and os.fspath(store) == ":memory:":  # type: ignore[arg-type]
            raise StoreError(
                "':memory:' is a new store, which has no runs: give the address of a file or a database, or the store"
            )
        self._store = open_store(store, read_only=True)
        if key is not None or is_encrypted(CheckedStore(self._store)):
            from dspyer.stores.encrypted import Encrypted  # only here: it needs a package that may be missing

            self._store = self._store if isinstance(self._store, Encrypted) else Encrypted(self._store, key)
        # Without a program there is no schema: what the graph of a run has declared is in its stored fingerprint.
        decode = encoding.decoder((), Opaque.of)
        self._read = partial(HistoryReader, schema=Schema.of(None), decode=decode, redact=redact)
        self._reader = self._read(CheckedStore(self._store))

    @property
    def address(self) -> str:
        """The address of the store, without a password."""
        return self._store.address

    @names_options("Archive")
    def runs(
        self,
        *,
        status: str | None = None,
        graph: str | None = None,
        thread: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        contains: str | None = None,
        node: str | None = None,
        model: str | None = None,
        min_cost: float | None = None,
        min_seconds: float | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[RunInfo]:
        """The runs of all threads, newest first.

        A rerun, and a resume with a changed graph, are runs of their own. Of a deleted thread there are none, even if
        a copy has kept some. A run of which `prune` has kept a part alone, since a rerun begins there, has no end any
        more: it is listed as crashed.

        Args:
            status: only those with this status, as in `Thread.status`.
            graph: only those of the graph of this name.
            thread: only those that were made for this thread.
            since: only those started then or later; a time without a time zone is local time.
            until: only those started before.
            contains: only those with this text in a name, a value, a prompt or a failure, as they may be shown; case
                does not matter. At most 10,000 commits are read for a page, which then is short, or empty: `next` goes
                on.
            node: only those that came to this node; of one inside of another, its name or its path, `"lead/check"`.
            model: only those that have called this language model.
            min_cost: only those that cost so many US dollars or more, as far as that is known.
            min_seconds: only those that took so long or longer; of one that runs, up to now.
            after: `next` of the page before. Runs that are added between two pages move nothing: none comes twice, and
                none is left out.
            limit: the most runs of the page.

        Raises:
            ValueError: if there is no such status, a number is negative, or `after` is not from a page.
            TypeError: if a name is no text, or a time no datetime.

        Example:
            >>> from dspyer.stores import Memory
            >>> Archive(Memory()).runs(contains="refund", min_cost=0.01)
            Page([], next=None)
        """
        where = RunFilters(status, graph, thread, since, until, contains, node, model, min_cost, min_seconds)
        return self._page(where._replace(after=after, limit=limit), last=False)

    def threads(self, **filters: Any) -> Page[RunInfo]:
        """The last run of each thread, newest first; of a copy without runs of its own, the run that it was made of.

        Args:
            **filters: those of `runs`, which concern the last run of a thread.

        Example:
            >>> from dspyer.stores import Memory
            >>> Archive(Memory()).threads(status="crashed")
            Page([], next=None)
        """
        return self._page(RunFilters.of("threads", filters), last=True)

    def due(self, at: datetime | None = None, limit: int | None = None, graph: str | None = None) -> list[str]:
        """The names of the threads that can go on by themselves, the longest due first.

        Their last run waits for an answer to a question that has expired, or its process has crashed. Copies without a
        run of their own are left out. It needs no key of an encrypted store.

        Args:
            at: those that are due then, if nothing happens meanwhile; a time without a time zone is local time. By
                default now.
            limit: the most names; None for all.
            graph: only runs of the graph of this name.

        Example:
            >>> from dspyer.stores import Memory
            >>> Archive(Memory()).due()
            []
        """
        RunFilters(graph=graph, limit=1 if limit is None else limit).query(last=True)  # raises for what is none
        return due_threads(self._reader.store, graph, as_seconds("at", at))[:limit]

    def overview(
        self, *, since: datetime | None = None, until: datetime | None = None, graph: str | None = None
    ) -> Overview:
        """Sum up the newest 20,000 runs: how many have failed and why, how long they took, tokens and cost.

        It reads the headers of runs and how they have ended, and no values. Printed, it is a table.

        Args:
            since: only runs started then or later; a time without a time zone is local time.
            until: only those started before.
            graph: only those of the graph of this name.

        Example:
            >>> from dspyer.stores import Memory
            >>> Archive(Memory()).overview().runs
            0
        """
        return Overview.of(self._reader, RunFilters(graph=graph, since=since, until=until).query(last=False))

    def questions(self) -> list[Waiting]:
        """All that waits for an answer, the longest first: the open questions of the last runs of threads.

        Copies without a run of their own are left out.

        Example:
            >>> from dspyer.stores import Memory
            >>> Archive(Memory()).questions()
            []
        """
        filters = RunFilters(status="interrupted")
        found: list[Waiting] = []
        for listed in self._listed(filters.query(last=True), filters):
            thread, run = listed.thread.name, listed.run
            if run.thread == thread:
                try:
                    for question, at in waiting_at(self._reader, Point(run.id, listed.last)):
                        since = datetime.fromtimestamp(listed.started if at is None else at, UTC)
                        found.append(Waiting(thread, run.id, question, since, str(run.header.get("graph", ""))))
                except StoreError as error:  # lists show it as it is
                    logger.warning("the questions of thread %r are left out: %s", thread, error)
        return sorted(found, key=lambda one: one.since)

    def examples(self, node: str, **filters: Any) -> list[dspy.Example]:
        """Examples for optimizers: what a node with one predictor has read and written in stored runs.

        Those of the oldest run come first. A step that several runs share counts once, and what is redacted is left
        out: a warning in the log says how many.

        Args:
            node: the node; of a graph inside of a node with the path to it, as `"lead/check"`.
            **filters: those of `runs`; without `limit` all runs count.

        Raises:
            LookupError: if no run has such a node; it lists those that they have.

        Example:
            >>> from dspyer.stores import Memory
            >>> Archive(Memory()).examples("plan", status="completed")
            []
        """
        return self._examples(node, filters).as_dspy(node)

    def thread(self, name: str) -> ArchivedThread:
        """The history of a thread.

        Args:
            name: its name.

        Raises:
            ThreadError: if there is no such thread; it suggests names that look like it.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> run = graph.compile(store=store).thread("t-42").run({"n": 1})
            >>> thread = Archive(store).thread("t-42")
            >>> (thread.info().status, thread.at(1)["n"], thread.diff(0, 1),
            ...     thread.blame("n").node, thread.failures())
            ('completed', 2, {'n': 2}, 'add', ())
        """
        check_thread_name(name)
        store = self._reader.store
        if store.thread(name) is None:
            near = suggestion(name, store.threads(after=name[: len(name) // 2], limit=NAMES))  # those that begin alike
            raise ThreadError(f"no thread {name!r} in {store.address!r}.{near or ' archive.threads() lists them.'}")
        return ArchivedThread(self._read(CheckedStore(self._store, thread=name)), name)

    def close(self) -> None:
        """Closes the store, unless it was given as a store.

        Example:
            >>> from dspyer.stores import Memory
            >>> Archive(Memory()).close()
        """
        if not self._given:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<archive {self.address!r}>"

    def _examples(self, node: str, filters: Mapping[str, Any]) -> StepExamples:
        """The examples of a node, each with the step that it is of."""

        def records() -> Iterator[Record]:
            chosen = RunFilters.of("examples", filters)
            while True:
                page = self._page(chosen, last=False)
                yield from self._records(page)
                if page.next is None or "limit" in filters:
                    return
                chosen = chosen._replace(after=page.next)

        return examples_of(records(), node)

    def _records(self, infos: Iterable[RunInfo]) -> Iterator[Record]:
        """Yield the records of some runs, one at a time."""
        for info in infos:
            with suppress(ThreadError):  # it was deleted since
                yield ArchivedThread(self._reader, info.thread).record(info.run_id)

    def _page(self, filters: RunFilters, *, last: bool) -> Page[RunInfo]:
        query, read = filters.query(last=last), 0
        found: list[tuple[RunPlace, RunInfo]] = []
        place = query.after
        for listed in self._listed(query, filters):
            info = run_info(self._reader, listed)
            fits = filters.allow(info)
            if fits and filters.look_inside(info):
                if place is not None and read and read + listed.last > MOST_COMMITS:
                    return Page([info for _, info in found], place.text)
                record = None
                with suppress(ThreadError, StoreError):  # deleted since, or not readable: the entry is there
                    record = ArchivedThread(self._reader, listed.thread.name)._records.record(listed)
                    read += max(listed.last, len(record.steps))
                fits = filters.fit(info, record)
            place = listed.place
            if fits:
                found.append((place, info))
            if len(found) > query.limit:  # one more than the page has: there is a next one
                return Page([info for _, info in found[:-1]], found[-2][0].text)
        return Page([info for _, info in found])

    def _listed(self, query: RunQuery, filters: RunFilters) -> Iterator[ListedRun]:
        """The runs that may be on a page, in its order, read in batches."""
        # What the store chooses alone fills the page at once; of the rest a batch is read, since few may be wanted.
        query = query._replace(limit=query.limit + 1 if filters.chosen_by_store else max(BATCH, query.limit + 1))
        while True:
            batch = self._reader.store.list_runs(query)
            yield from batch
            if len(batch) < query.limit:
                return
            query = query._replace(after=batch[-1].place)
