"""`Sharded`: a store over others behaves as one store, asks the one that matters, and refuses what lies in two."""

from __future__ import annotations

import copy
import pickle
from collections import Counter, UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, Archive, CompiledGraph, Context, Graph
from dspyer.errors import DspyerError, StoreError, ThreadError
from dspyer.stores import Memory, Sharded, Store
from dspyer.stores.base import Change, DeletionReport, ListedRun, Point, Row, RunQuery, RunRow, StoreAround
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import StoreConformance, clock
from tests.stores import postgres_server
from tests.stores.kit import begin, numbers, row, snapshot

KEY = Encrypted.new_key()
LONG = "x" * 20_000


def first_letter(thread: str) -> str:
    return thread[0]


def one_label(thread: str) -> str:
    del thread
    return "one"


class Counted(StoreAround):
    """A store that counts the calls of it, by its label."""

    def __init__(self, store: Store, label: str, calls: Counter[str]) -> None:
        super().__init__(store)
        self.label, self.calls = label, calls

    def pass_on(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self.calls[self.label] += 1
        return super().pass_on(name, *args, **kwargs)


def counted(stores: dict[str, Store]) -> tuple[Sharded, Counter[str]]:
    calls = Counter[str]()
    return Sharded({label: Counted(store, label, calls) for label, store in stores.items()}, first_letter), calls


def refs(row: Row) -> Sequence[str]:
    return row.content.refs if row.content is not None else ()


class Sum(BaseModel):
    do: Any = None
    total: int = 0
    text: str = ""


def program(store: Store) -> CompiledGraph:
    """A program that adds up what it gets, and asks, fails or keeps a long text if it gets that."""

    def work(do: Any, total: int, ctx: Context) -> dict[str, Any]:
        if do == "ask":
            do = int(ctx.interrupt("sure", "go on?"))
        if do == "fail":
            raise ValueError(do)
        return {"text": do * 10_000, "total": total + 1} if isinstance(do, str) else {"total": total + do}

    graph = Graph(Sum, keep=["total", "text"]).add_node("work", work)
    return graph.add_path(START, "work", END).compile(store=store)


# --- it is one store


@contextmanager
def emptied(kind: str, folder: Path, numbers: Iterator[int], postgres: Callable[[], str]) -> Iterator[Sharded]:
    address = postgres() if kind == "postgres" else ":memory:" if kind == "memory" else f"{folder}/{next(numbers)}.db"
    with Sharded({"one": address}, one_label) as store:
        yield store
    if kind == "postgres":
        postgres_server.drop(address)


@pytest.mark.parametrize(
    "kinds", [["memory"], pytest.param(["sqlite", "postgres"], marks=pytest.mark.slow("the promises of two databases"))]
)
def test_all_names_with_one_label_keep_the_promises_of_a_store(
    kinds: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def postgres() -> str:
        return postgres_server.fresh(request.getfixturevalue("postgres_address"))

    suite, numbers = StoreConformance(), count()
    names = [name for name in dir(suite) if name.startswith("test_") and "process" not in name]
    assert len(names) > 35
    for kind in kinds:
        for name in names:
            with emptied(kind, tmp_path, numbers, postgres) as store:
                getattr(suite, name)(store)


NAMES = ("a1", "a2", "b1", "b2", "c1")

names = st.sampled_from(NAMES)
steps = st.lists(
    st.tuples(st.just("run"), names, st.sampled_from([1, "t", "ask", "fail"]), st.sampled_from([None, None, "k", "l"]))
    | st.tuples(st.sampled_from(["copy", "merge", "load"]), names, names)
    | st.tuples(st.sampled_from(["resume", "update", "delete", "prune"]), names)
    | st.tuples(st.just("delete many"), st.lists(names, max_size=3)),
    max_size=12,
)


def counts(report: DeletionReport) -> Any:
    return report[:3], {name: len(runs) for name, runs in report.kept.items()}, report.busy


def step(graph: CompiledGraph, folder: Path, kind: str, name: Any, *given: Any) -> Any:
    """What came of a step."""
    thread = graph.thread(name) if isinstance(name, str) else graph.thread("a1")
    try:
        match kind:
            case "run":
                return thread.run({"do": given[0]}, key=given[1]).status
            case "resume":
                return thread.resume({"sure": True}).status
            case "copy":
                thread.copy(given[0])
            case "merge":
                thread.merge(graph.thread(given[0]), policy="last_write_wins")
            case "load":
                thread.export(folder / "thread.jsonl")
                graph.thread(given[0]).load(folder / "thread.jsonl")
            case "update":
                thread.update({"total": 100})
            case "prune":
                return counts(thread.prune(len(thread.history()) - 1))
            case "delete":
                return counts(thread.delete())
            case _:
                return counts(graph.delete(name))
    except (DspyerError, LookupError) as error:
        return type(error)


def seen(graph: CompiledGraph, store: Store) -> Any:
    """All that a reader finds in a store, but for times and the random ids of runs."""
    threads: list[str] = []
    while page := graph.threads(after=threads[-1] if threads else "", limit=2):
        threads += page
    assert threads == graph.threads()
    archive, runs, after = Archive(store), [], None
    while True:
        listed = archive.runs(limit=2, after=after)
        runs += [{**one.to_dict(), "run_id": "", "started": "", "ended": ""} for one in listed]
        if (after := listed.next) is None:
            break
    found = {}
    for name in threads:
        thread = archive.thread(name)
        history = [(one.node, one.patch) for one in thread.history()]
        record = thread.record()
        steps = [(one.node, one.status, record.state(one.id)) for one in record.steps]
        found[name] = dict(graph.thread(name).state), history, record.status, steps
    return threads, runs, found


@settings(max_examples=settings().max_examples // 2)
@given(script=steps)
def test_three_stores_are_as_one(tmp_path_factory: pytest.TempPathFactory, script: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("exports")
    one, three = Memory(), Sharded({label: Memory() for label in "abc"}, first_letter)
    graph, sharded = program(one), program(three)
    with clock() as time:
        for each in script:
            time.advance(1)
            kind, name, *other = each
            if kind in ("copy", "merge", "load") and name[0] != other[0][0]:
                before = seen(sharded, three)
                if kind != "load":  # of a load, one store shares the runs
                    outcome = step(sharded, folder, *each)
                    assert outcome is None or issubclass(outcome, DspyerError), outcome
                    assert seen(sharded, three) == before
            else:
                assert step(graph, folder, *each) == step(sharded, folder, *each), each
            assert seen(graph, one) == seen(sharded, three), each


# --- it asks the store that matters


def test_what_concerns_one_thread_asks_one_store() -> None:
    stores: dict[str, Store] = {label: Memory() for label in "abcd"}
    (first, calls), (later, later_calls) = counted(stores), counted(stores)
    graph, other = program(first), program(later)  # the second is another process: it remembers nothing
    archive, t = Archive(later), other.thread("b1")
    later_calls.clear()
    works: list[Callable[[], object]] = [
        lambda: graph.thread("b1").run({"do": "t"}),
        lambda: graph.thread("b1").run({"do": 1}, key="new"),
        lambda: graph.thread("b1").run({"do": 1}, key="new"),
        lambda: other.thread("b1").run({"do": 1}, key="newer"),
        lambda: graph.thread("b1").copy("b2"),
        lambda: graph.thread("b2").merge(graph.thread("b1")),
        lambda: graph.thread("b2").update({"total": 7}),
        lambda: graph.delete(["b2"]),
        lambda: (t.state, t.record(), t.history(), t.blame("total"), t.status, t.unread),
        lambda: (archive.thread("b1").record(), archive.thread("b1").at(1)["total"], archive.thread("b1").unread),
        lambda: archive.runs(thread="b1"),
    ]
    for number, work in enumerate(works):
        work()
        assert {*calls} | {*later_calls} == {"b"}, number
    first, calls = counted(stores)  # remembers nothing
    (listed,) = first.list_runs(RunQuery(limit=1))  # of all threads: each is asked once, and the run is known then
    assert calls == dict.fromkeys("abcd", 1)
    calls.clear()
    assert first.run(listed.run.id) == listed.run
    assert [row.seq for row in first.rows(listed.run.id)] == list(range(listed.last + 1))
    assert first.blobs([ref for row in first.rows(listed.run.id) for ref in refs(row)])
    assert {*calls} == {"b"}


def test_what_names_no_thread_is_found_in_any_store() -> None:
    stores: dict[str, Store] = {label: Memory() for label in "abc"}
    store, _ = counted(stores)
    head = begin(store, "c1", "r", 3)
    store.write(Change(rows_of="r", rows=[row(3, LONG)]))  # names no thread: it goes where the run is
    store.write(Change("c1", 1, snapshot=snapshot("r", 2)))
    fresh = Sharded(stores, first_letter)
    (long,) = store.rows("r", 3)
    assert long.content is not None
    (name,) = long.content.refs
    assert fresh.blobs([name, "none"]) == {name: LONG.encode()}
    assert fresh.snapshot(Point("r", 9)) == stores["c"].snapshot(Point("r", 9))
    assert (fresh.run("none"), fresh.rows("none"), fresh.snapshot(Point("none", 0))) == (None, [], None)
    assert [one.run.id for one in fresh.list_runs(RunQuery(run="r"))] == ["r"]
    # A run that was deleted and written elsewhere is found there, whatever is remembered of it.
    assert numbers(fresh, "r") == numbers(store, "r") == [0, 1, 2, 3]
    stores["c"].delete(["c1"])
    assert (fresh.run("r"), store.run("r")) == (None, None)
    begin(stores["a"], "a1", "r", 2)
    assert numbers(fresh, "r") == numbers(store, "r") == [0, 1]
    assert head == Point("r", 2)
    for limit in (1, 2, 3, 50):  # of pages of each length, all stores have some
        many = Sharded({label: Memory() for label in "abcde"}, first_letter)
        for number, label in enumerate("aaaabaacaaaaaaaae"):
            run = RunRow(f"r{number:02}", f"{label}{number}", (), {"started": number})
            many.write(Change(run.thread, run=run))
        found: list[ListedRun] = []
        while page := many.list_runs(RunQuery(after=found[-1].place if found else None, limit=limit)):
            found += page
        assert [one.run.id for one in found] == [f"r{number:02}" for number in range(16, -1, -1)]
        assert many.threads(after="a2", limit=limit) == [*filter("a2".__lt__, many.threads())][:limit]


# --- it refuses what it cannot place


def fails(thread: str) -> str:
    raise OSError(thread)


REFUSED: list[tuple[Callable[[str], Any], str]] = [
    (fails, r"shard\('a1'\) failed: OSError: a1"),
    (lambda thread: None, "thread 'a1' belongs in the store of the label None"),
    (lambda thread: 7, "thread 'a1' belongs in the store of the label 7"),
    (lambda thread: "z", "thread 'a1' belongs in the store of the label 'z', .* one of 'a', 'b'"),
]


def test_a_thread_without_a_store_starts_no_node() -> None:
    called: list[int] = []

    def call() -> dict[str, Any]:
        called.append(1)
        return {}

    cases: list[tuple[dict[str, Store | str], str]] = [
        ({}, "one store at least"),
        ({"a": "mysql://db"}, "no store of kind 'mysql'"),
        (dict.fromkeys("ab", "a.db"), "two labels have one store"),
        (dict.fromkeys("ab", Memory()), "two labels have one store"),
    ]
    for stores, wrong in cases:
        with pytest.raises(ValueError, match=wrong):
            Sharded(stores, first_letter)
    for shard, message in REFUSED:
        store = Sharded({"a": Memory(), "b": Memory()}, shard)
        graph = Graph().add_node("call", call, writes=[]).add_path(START, "call", END)
        thread = graph.compile(store=store).thread("a1")
        for work in (lambda: thread.run({}), lambda: thread.run({}, key="k"), lambda: thread.status, thread.delete):
            with pytest.raises(StoreError, match=message):
                work()
        assert (called, store.threads()) == ([], [])
    days = {label: Memory() for label in "ab"}
    for label, day in days.items():  # what crashed in a period that is over keeps nothing from being listed
        begin(day, f"{label}1", f"run of {label}1", 2)
    archive = Archive(Sharded(days, lambda thread: {"b1": "b"}[thread]))
    assert (archive.due(), [run.status for run in archive.runs()]) == (["a1", "b1"], ["crashed"] * 2)


def test_a_thread_and_its_copies_stay_in_one_store(tmp_path: Path) -> None:
    stores: dict[str, Store] = {label: Memory() for label in "ab"}
    graph = program(store := Sharded(stores, first_letter))
    t, other, file = graph.thread("a1"), graph.thread("b1"), tmp_path / "a1.jsonl"
    t.run({"do": 1})
    other.run({"do": 1})
    t.run({"do": "ask"})
    tries: list[Callable[[], object]] = [
        lambda: t.copy("b2"),
        lambda: t.copy("b2", at=1),
        lambda: t.copy("b2", patch={"total": 3}),
        lambda: t.merge(other),
        lambda: other.merge(t),
    ]
    before = seen(graph, store)
    for number, work in enumerate(tries):
        with pytest.raises(ThreadError, match=r"different stores. Nothing was written: .* export, and load"):
            work()
        assert seen(graph, store) == before, number
    # What the message advises: the copy is one of its own, which no id leads to the other store.
    t.export(file)
    graph.thread("b2").load(file)
    assert not {run.id for run in stores["a"].runs("a1")} & {run.id for run in stores["b"].runs("b2")}
    assert (t.resume({"sure": True}).state["total"], graph.thread("b2").status) == (2, "interrupted")
    assert graph.thread("b2").resume({"sure": False}).state["total"] == 1
    assert [step.node for step in t.record().steps] == [step.node for step in graph.thread("b2").record().steps]
    report = graph.delete(["a1", "b1", "b2", "b9"])
    assert (report.threads, report.busy, graph.threads()) == (("a1", "b1", "b2"), (), [])


# --- what it is made of


class Days(Mapping[str, Store]):
    """A mapping that makes its stores, as those of schemas do."""

    def __init__(self) -> None:
        self.made: dict[str, Store] = {}

    def __getitem__(self, label: str) -> Store:
        return self.made.setdefault(label, Memory())

    def __iter__(self) -> Iterator[str]:
        return (label for label, store in self.made.items() if store.threads())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Growing(dict[str, Store]):
    """To which another thread adds a label while its labels are read."""

    def __getitem__(self, label: str) -> Store:
        self.setdefault(f"{label}+", Memory())
        return super().__getitem__(label)


def test_labels_are_looked_up_at_each_call(tmp_path: Path) -> None:
    stores: dict[str, Store | str] = {"a": str(tmp_path / "a.db")}
    with Sharded(stores, first_letter) as store:
        graph = program(store)
        graph.thread("a1").run({"do": 1})
        stores["b"] = ":memory:"
        graph.thread("b1").run({"do": 1})
        assert graph.threads() == ["a1", "b1"]
        graph.thread("b1").run({"do": 1})
        assert graph.thread("b1").state["total"] == 2  # an address is opened once
        assert (copy.copy(store), copy.deepcopy(store)) == (store, store)
    del stores["b"]
    assert Sharded(stores, first_letter).threads() == ["a1"]
    store = Sharded(Growing(a=Memory()), first_letter)
    assert (store.threads(), store.list_runs(RunQuery()), store.run("none"), store.delete().runs) == ([], [], None, 0)
    days = Days()
    graph = program(store := Sharded(days, first_letter))
    assert (graph.threads(), store.run("none"), store.list_runs(RunQuery()), store.delete().runs) == ([], None, [], 0)
    graph.thread("a1").run({"do": 1})
    assert (graph.threads(), graph.thread("b1").status, [*days]) == (["a1"], "new", ["a"])


def test_a_pickle_has_no_password_and_no_key(tmp_path: Path) -> None:
    tenants: dict[str, Store | str] = {
        "a": "postgresql://desk:secret@127.0.0.1:1/desk",
        "b": Encrypted(tmp_path / "b.db", key=KEY),
        "c": str(tmp_path / "c.db"),
    }
    for mapping in (dict, UserDict, MappingProxyType):
        store = Sharded(mapping(tenants), first_letter)
        program(store).thread("c1").run({"do": 1})
        pickled = pickle.dumps(store)
        assert b"secret" not in pickled
        assert KEY.encode() not in pickled
        loaded = pickle.loads(pickled)
        assert loaded.address == store.address == repr(Sharded(tenants, first_letter))
        assert "secret" not in store.address
        assert program(loaded).thread("c1").state["total"] >= 1


def test_encrypted_stores_and_an_encrypted_one() -> None:
    for around in (False, True):
        inner: dict[str, Store] = {label: Memory() for label in "ab"}
        plain = Sharded(inner, first_letter)
        each = {label: Encrypted(store, key=KEY) for label, store in inner.items()}
        store: Store = Encrypted(plain, key=KEY) if around else Sharded(each, first_letter)
        graph = program(store)
        for name in ("a1", "b1"):
            graph.thread(name).run({"do": "secret "})
            graph.thread(name).run({"do": "ask"})
            graph.thread(name).resume({"sure": True})
        for name in ("a1", "b1"):
            thread = Archive(store).thread(name)
            assert thread.at(len(thread.history()) - 1)["text"] == "secret " * 10_000
            for run in plain.runs(name):
                assert not [row for row in plain.rows(run.id) if row.content and b"secret" in row.content.data]
