"""A store over others: of periods, servers or tenants. The name of a thread decides in which of them it lies.

A thread lies in one store with all that belongs to it, so a write is one transaction there, and the work on a
thread asks that store alone. What names no thread, such as a list of all runs, asks all of them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from heapq import merge
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

from dspyer.errors import StoreError, list_names
from dspyer.stores.address import open_store
from dspyer.stores.base import ABOUT, Change, DeletionReport, ListedRun, RunQuery, Store, StoreAround, never

Place = tuple[str, Store]
"""A store and its label."""

PLAIN = (MutableMapping, MappingProxyType)
"""Mappings that have their labels, while to ask another one for them may be a query."""

MOST = 10_000
"""Runs of which it is remembered where they lie."""


class Sharded(StoreAround):
    """A store over others. A thread lies in `stores[shard(name)]`, with its runs, values and copies.

    A query for one thread asks one store; lists of all threads and runs merge those of all stores. A look-up by the id
    of a run remembers where the run was, and asks the others if it is not there. Deleting threads of several stores is
    one transaction in each. A copy of a thread, or a merge with another one, stays in one store: `ThreadError`
    otherwise.

    It opens files and connections when they are needed; `close` closes every store that was used. A pickle of
    it holds addresses without passwords, and `shard`.

    Args:
        stores: by label, stores or their addresses, as `compile(store=...)` takes them; each label has a store of its
            own. Labels are looked up at each call, so the mapping may grow, and may be one that makes its stores.
        shard: returns the label of a thread by its name, and by nothing else: it must return the same for good.

    Raises:
        ValueError: if there are no stores, two labels have one, or one has an address that is none.
        StoreError: (when a thread is used) if `shard` fails, or returns no label of `stores`.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("shout", lambda state: {
        ...     "loud": state["text"].upper()})
        >>> store = Sharded({"de": ":memory:", "fr": ":memory:"},
        ...     shard=lambda thread: thread[:2])
        >>> program = graph.add_path(START, "shout", END).compile(store=store)
        >>> for name in ("fr/1", "de/1", "fr/2"):
        ...     _ = program.thread(name).run({"text": name})
        >>> program.threads()
        ['de/1', 'fr/1', 'fr/2']
        >>> program.thread("es/1").run({"text": "hola"})
        Traceback (most recent call last):
        ...
        dspyer.errors.StoreError: thread 'es/1' belongs in the store of the label
        'es', and there is none: ...
    """

    def __init__(self, stores: Mapping[str, Store | str], shard: Callable[[str], str]) -> None:
        self._stores, self._shard = stores, shard
        self._used: dict[object, Store] = {}
        self._places: dict[str, str] = {}  # by id of a run, a label
        if isinstance(stores, PLAIN) and not self._shown():  # another mapping may be empty now and grow
            raise ValueError("stores={}: give one store at least, by label")
        given = [store for store in stores.values() if store != ":memory:"] if isinstance(stores, PLAIN) else []
        if len({*given}) < len(given):  # lists would have its threads twice
            raise ValueError("two labels have one store: let shard return one label for the threads of both")

    @property
    def address(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"Sharded({self._shown()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Sharded, (self._shown(), self._shard)

    def _shown(self) -> Mapping[str, Store | str]:
        # A store has no password in its pickle, as its address may have.
        return dict(self._everywhere()) if isinstance(self._stores, PLAIN) else self._stores

    # --- where something lies

    def _store(self, label: str) -> Store:
        """The store of a label, opened once; raises `KeyError` if there is none."""
        store = self._stores[label]
        if isinstance(store, Store):
            self._used[label] = store
            return store
        found = self._used.get((label, store))
        return self._used.setdefault((label, store), open_store(store)) if found is None else found

    def _place(self, thread: str) -> Place:
        try:
            label = self._shard(thread)
        except Exception as error:
            raise StoreError(f"shard({thread!r}) failed: {type(error).__name__}: {error}. Nothing was done") from error
        try:
            if isinstance(label, str):
                with suppress(KeyError):
                    return label, self._store(label)
        except StoreError as error:
            raise StoreError(f"thread {thread!r} belongs in the store of the label {label!r}: {error}") from error
        raise StoreError(
            f"thread {thread!r} belongs in the store of the label {label!r}, and there is none: shard=... must return "
            f"one of {list_names(self._stores)}. Nothing was done"
        )

    def _everywhere(self, likely: str | None = None) -> Iterator[Place]:
        with suppress(KeyError):  # a label may be gone
            if likely is not None:
                yield likely, self._store(likely)
        for label in list(self._stores):  # others may add one meanwhile, or delete one
            with suppress(KeyError):
                if label != likely:
                    yield label, self._store(label)

    def _candidates(self, run: str = "") -> Iterable[Place]:
        """The stores in which a run or a blob may lie, the likeliest first; one alone if the thread is known."""
        thread = ABOUT.get()
        return [self._place(thread)] if thread else self._everywhere(self._places.get(run))

    def _remember(self, label: str, runs: Iterable[str]) -> None:
        if len(self._places) > MOST:
            self._places.clear()
        self._places.update(dict.fromkeys(runs, label))

    # --- what a store does

    def pass_on(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method: of all stores, of that of a thread or a change, or of the first that has what is asked.

        Example:
            >>> store = Sharded({"de": ":memory:"}, shard=lambda thread: "de")
            >>> store.pass_on("runs", "t-42")
            []
        """
        asked: Any = (*args, *kwargs.values(), None)[0]
        if asked is None:
            for _, store in self._everywhere():
                getattr(store, name)()
            return None
        if isinstance(asked, Change):
            return getattr(self._target(asked), name)(asked)
        if name in ("thread", "runs", "delete_unreachable"):
            return getattr(self._place(asked)[1], name)(*args, **kwargs)
        run = asked if isinstance(asked, str) else asked.run
        return self._found(run, lambda store: getattr(store, name)(*args, **kwargs), [] if name == "rows" else None)

    def _found(self, run: str, read: Callable[[Store], Any], none: Any) -> Any:
        """Return what was read about a run in the store that has it; `none` if none has.

        It goes on to the others even if it is remembered where the run was: it may have been deleted, and loaded there.
        """
        for label, store in self._candidates(run):
            if found := read(store):
                self._remember(label, [run, ""])  # "": its blobs are looked for there first
                return found
        return none

    def _target(self, change: Change) -> Store:
        thread = change.thread or (change.run.thread if change.run else "")
        found = None if thread else self._found(change.rows_of, lambda store: store.run(change.rows_of) and store, None)
        return found or self._place(thread)[1]

    def threads(self, after: str = "", limit: int | None = None, idle: float | None = None) -> list[str]:
        found = [store.threads(after, limit, idle) for _, store in self._everywhere()]
        return list(islice(merge(*found), limit))

    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        if query.thread is not None:
            return self._place(query.thread)[1].list_runs(query)
        if query.run is not None:
            return list(self._found(query.run, lambda store: store.list_runs(query), ()))
        places = list(self._everywhere())
        found = [self._listed_in(*place, query, query.limit // len(places) + 1) for place in places]
        return list(islice(merge(*found, key=lambda one: one.place, reverse=True), query.limit))

    def _listed_in(self, label: str, store: Store, query: RunQuery, size: int) -> Iterator[ListedRun]:
        """The runs of one store, in pages that grow: most stores have few of what is listed, or all of it."""
        while page := store.list_runs(query._replace(limit=size)):
            self._remember(label, [listed.run.id for listed in page])
            yield from page
            if len(page) < size:
                return
            query, size = query._replace(after=page[-1].place), 2 * size

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for _, store in self._candidates() if ids else ():
            found |= store.blobs([name for name in ids if name not in found])
            if found.keys() >= set(ids):
                break
        return found

    def delete(self, threads: Collection[str] = (), busy: Callable[[Any], bool] = never) -> DeletionReport:
        names: dict[str, list[str]] = {} if threads else {label: [] for label, _ in self._everywhere()}
        for name in threads:
            names.setdefault(self._place(name)[0], []).append(name)
        found = [self._store(label).delete(of_one, busy) for label, of_one in names.items()]
        gone, runs, rows, kept, erased, left = zip(DeletionReport((), 0, 0, {}), *found, strict=True)
        deleted, stay = (tuple(sorted(chain(*parts))) for parts in (gone, left))
        return DeletionReport(deleted, sum(runs), sum(rows), dict(ChainMap(*kept)), all(erased), stay)

    def close(self) -> None:
        for store in list(self._used.values()):
            store.close()
