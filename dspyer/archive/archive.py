"""`Archive`: what a store holds, for programs that read runs and have no program to run them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, Self

from dspyer.archive.archived_thread import ArchivedThread
from dspyer.archive.opening import open_for_reading
from dspyer.archive.run_info import Page, run_info, unreadable
from dspyer.display import RunInfo
from dspyer.errors import ThreadError, list_names, suggestion
from dspyer.extend import Schema
from dspyer.log.journal import CheckedStore
from dspyer.log.reader import HistoryReader, check_thread_name
from dspyer.record.stored import due_threads, failures_of_run
from dspyer.stores import Store
from dspyer.stores.base import ListedRun, RunPlace, RunQuery
from dspyer.values import json as encoding
from dspyer.values.freezing import Opaque

ENDED = ("completed", "failed", "interrupted", "stopped")
"""How a run may have ended."""

OPEN = ("running", "crashed")
"""The status of a run that has written no end."""

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
        >>> from dspyer import END, START, Graph
        >>> from dspyer.stores import Memory
        >>> store = Memory()
        >>> graph = Graph().add_node("half", lambda n: {"h": 1 / n},
        ...     writes=["h"]).add_path(START, "half", END)
        >>> run = graph.compile(store=store).thread("t-42").run({"n": 0})
        >>> with Archive(store) as archive:
        ...     for info in archive.runs(status="failed"):
        ...         print(info.thread, info.steps, info.failure)
        t-42 1 half (execution t-42.1/trunk:1, attempt 1): ZeroDivisionError:
        division by zero
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        *,
        key: str | bytes | Sequence[str | bytes] | None = None,
        redact: Callable[[tuple[Any, ...], Any], Any] | str | Iterable[Any] | Literal[False] | None = None,
    ) -> None:
        self._given = isinstance(store, Store)
        self._store = open_for_reading(store, key)
        # Without a program there is no schema: what the graph of a run has declared is in its stored fingerprint.
        decode = encoding.decoder((), Opaque.of)
        self._reader = HistoryReader(CheckedStore(self._store), Schema.of(None), decode, redact=redact)

    @property
    def address(self) -> str:
        """The address of the store, without a password."""
        return self._store.address

    def runs(
        self,
        *,
        status: str | None = None,
        graph: str | None = None,
        thread: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
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
            text: only those with this text in the name of their thread or the message of a failure; case does not
                matter.
            after: `next` of the page before. Runs that are added between two pages move nothing: none comes twice, and
                none is left out.
            limit: the most runs of the page.

        Returns:
            A page: a sequence with `next`.

        Raises:
            ValueError: if there is no such status, or `after` is not from a page.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> runs = [graph.compile(store=store).thread(name).run({"n": 1})
            ...     for name in ("a", "b")]
            >>> page = Archive(store).runs(limit=1)
            >>> (page[0].thread, [info.thread for info in Archive(store).runs(
            ...     after=page.next)])
            ('b', ['a'])
        """
        times = _seconds("since", since), _seconds("until", until)
        return self._page(RunQuery(thread, graph, None, *times, _place(after), limit, last=False), status, text)

    def threads(
        self,
        *,
        status: str | None = None,
        graph: str | None = None,
        thread: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[RunInfo]:
        """The last run of each thread, newest first; of a copy without runs of its own, the run that it was made of.

        Args:
            status: only threads whose last run has this status, as all that follows.
            graph: as in `runs`.
            thread: the thread.
            since: as in `runs`.
            until: as in `runs`.
            text: as in `runs`.
            after: as in `runs`.
            limit: the most threads of the page.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=store).thread("a")
            >>> _ = t.run({"n": 1}), t.run({"n": 2})
            >>> (len(Archive(store).runs()), [(info.thread, info.status)
            ...     for info in Archive(store).threads()])
            (2, [('a', 'completed')])
        """
        times = _seconds("since", since), _seconds("until", until)
        return self._page(RunQuery(thread, graph, None, *times, _place(after), limit, last=True), status, text)

    def due(self, at: datetime | None = None, limit: int | None = None, graph: str | None = None) -> list[str]:
        """The names of the threads that can go on by themselves, the longest due first.

        Their last run waits for an answer to a question that has expired, or its process has crashed. Copies without a
        run of their own are left out. It needs no key of an encrypted store.

        Args:
            at: those that are due then, if nothing happens meanwhile; a time without a time zone is local time. By
                default now.
            limit: the most names; None for all.
            graph: only runs of the graph of this name.

        Raises:
            ValueError: if `limit` is less than 1.
            TypeError: if `at` is no datetime, or `graph` no name.

        Example:
            >>> from datetime import timedelta
            >>> from dspyer import END, START, Graph
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> graph = Graph().add_interrupt("cool_down", question="Waits an hour.",
            ...     answer=None, expires=3600)
            >>> run = graph.add_path(START, "cool_down", END).compile(
            ...     store=store).thread("t-42").run({})
            >>> (Archive(store).due(), Archive(store).due(at=datetime.now()
            ...     + timedelta(hours=2)))
            ([], ['t-42'])
        """
        _check(1 if limit is None else limit, graph=graph)
        return due_threads(self._reader.store, graph, _seconds("at", at))[:limit]

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
            >>> [commit.node for commit in Archive(store).thread("t-42").history()]
            ['START', 'add']
        """
        check_thread_name(name)
        store = self._reader.store
        if store.thread(name) is None:
            near = suggestion(name, store.threads(after=name[: len(name) // 2], limit=NAMES))  # those that begin alike
            raise ThreadError(f"no thread {name!r} in {store.address!r}.{near or ' archive.threads() lists them.'}")
        return ArchivedThread(self._reader, name)

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

    def _page(self, query: RunQuery, status: str | None, text: str | None) -> Page[RunInfo]:
        if status is not None and status not in (*ENDED, *OPEN):
            raise ValueError(
                f"no status {status!r}.{suggestion(status, (*ENDED, *OPEN))} It is one of {list_names((*ENDED, *OPEN))}"
            )
        _check(query.limit, graph=query.graph, thread=query.thread)
        # No store holds more runs than an index of SQLite or PostgreSQL can count.
        query = query._replace(limit=min(query.limit, 2**31))
        found: list[tuple[RunPlace, RunInfo]] = []
        for listed in self._listed(query, status, text):
            info = run_info(self._reader, listed)
            # Of a run without an end the status is known only here, and it may have ended since the list was read.
            if status is None or info.status == status:
                found.append((listed.place, info))
            if len(found) > query.limit:  # one more than the page has: there is a next one
                return Page([info for _, info in found[:-1]], _cursor(found[-2][0]))
        return Page([info for _, info in found])

    def _listed(self, query: RunQuery, status: str | None, text: str | None) -> Iterator[ListedRun]:
        """The runs that may be on a page, in its order, read in batches."""
        # A store knows how runs have ended, and not whether the owner of one without an end is alive: it has one status
        # for those that run and those that have crashed.
        if status is not None:
            query = query._replace(statuses=frozenset([status if status in ENDED else ""]))
        # What the store chooses alone fills the page at once; of the rest a batch is read, since few may be wanted.
        chosen_by_store = text is None and (status is None or status in ENDED)
        query = query._replace(limit=query.limit + 1 if chosen_by_store else max(BATCH, query.limit + 1))
        while True:
            batch = self._reader.store.list_runs(query)
            for listed in batch:
                if text is None or self._has(text.casefold(), listed):
                    yield listed
            if len(batch) < query.limit:
                return
            query = query._replace(after=batch[-1].place)

    def _has(self, text: str, listed: ListedRun) -> bool:
        """Return whether the name of the thread, or the message of a failure, has a text in it."""
        if text in listed.thread.name.casefold():
            return True
        try:
            failures = failures_of_run(self._reader, listed)
        except Exception as error:  # noqa: BLE001 - the list shows it as the failure of the run
            failures = (unreadable(error),)
        return any(text in f"{failure.type}: {failure.message}".casefold() for failure in failures)


def _check(limit: int, **names: str | None) -> None:
    """Raise for a number of runs that is none, and for names that are no texts."""
    if isinstance(limit, bool) or int(limit) != limit or limit < 1:
        raise ValueError(f"limit={limit!r}: give a whole number, 1 or more")
    for option, name in names.items():
        if not isinstance(name, str | None):
            raise TypeError(f"{option}={name!r}: give a name")


def _seconds(option: str, time: datetime | None) -> float | None:
    """The seconds since the Unix epoch of a time, which is local time without a time zone."""
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise TypeError(f"{option}={time!r}: give a datetime, for example datetime.now() - timedelta(days=1)")
    try:
        return time.timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{option}={time!r} is too far away to be a local time: give it a time zone") from error


def _cursor(place: RunPlace) -> str:
    return f"{place.started!r},{place.run},{place.thread}"


def _place(cursor: str | None) -> RunPlace | None:
    if cursor is None:
        return None
    started, run, thread, *_ = (*cursor.split(",", 2), "", "")
    try:
        if not run:
            raise ValueError(cursor)
        return RunPlace(float(started), run, thread)
    except ValueError:
        raise ValueError(f"after={cursor!r} is no cursor: pass page.next of the page before") from None
