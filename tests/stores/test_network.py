"""Whole runs over a network that fails, with a real PostgreSQL behind it: each commit is written once, none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

from dspyer import END, START, CompiledGraph, Context, Graph
from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, Store
from dspyer.stores.postgres import Postgres
from tests.rows import each
from tests.stores.postgres_server import split_schema
from tests.stores.proxy import AFTER, BEFORE, LATE, Proxy, proxy

NODES = ["read", "pay", "send"]
RUNS = 4  # at once


class Desk:
    """Programs of one graph over several stores, whose nodes do something to the network before they return.

    Attributes:
        calls: how often each node, and the effect of one, was called.
        before: what is done in each call, by the name of the node.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str], object] = lambda node: None

    def program(self, store: Store, who: str = "") -> CompiledGraph:
        def read(number: int) -> dict[str, Any]:
            self._called("read")
            return {"text": f"{number} " * 50_000}  # lies beside its row: a transaction, ended by a COMMIT

        def pay(ctx: Context) -> dict[str, Any]:
            def transfer(key: str) -> str:
                self._called("transfer")
                return key

            receipt = ctx.once("pay", transfer)
            self._called("pay")
            return {"receipt": receipt}

        def send() -> dict[str, Any]:
            self._called("send")
            return {"sent_by": who}

        graph = Graph(inputs=["number"]).add_node("read", read, writes=["text"])
        graph.add_node("pay", pay, writes=["receipt"]).add_node("send", send, writes=["sent_by"])
        return graph.add_path(START, *NODES, END).compile(store=store)

    def _called(self, what: str) -> None:
        self.calls[what] += 1
        self.before(what)


def nodes_of(store: Store, thread: str) -> list[str]:
    return [commit.node for commit in Desk().program(store).thread(thread).history()]


@each("when", [BEFORE, AFTER])
def test_a_lost_answer_repeats_no_call_and_no_commit(postgres: str, store: Store, between: Proxy, when: str) -> None:
    """The connection is cut at each write of the run, and at the COMMIT of the large one."""
    desk = Desk()
    cuts: list[str] = []

    def cut(node: str) -> None:
        assert not between.armed
        between.cut(when, b"COMMIT\0" if node == "read" else b"INSERT INTO")
        cuts.append(node)

    desk.before = cut
    with Postgres(between.address, schema=split_schema(postgres)[1]) as far:
        run = desk.program(far).thread(when).run({"number": 1}, key="key")
        assert (run.status, between.armed) == ("completed", False)
    assert cuts == ["read", "transfer", "pay", "send"]
    assert desk.calls == Counter(cuts)
    assert nodes_of(store, when) == ["START", *NODES]


def test_who_is_answered_after_its_lease_writes_nothing_more(postgres: str, store: Store, between: Proxy) -> None:
    """What it has written before is there: another owner goes on behind it."""
    desk = Desk()
    desk.before = lambda node: between.cut(LATE, b"INSERT INTO") if node == "pay" else None
    with Postgres(between.address, schema=split_schema(postgres)[1]) as far, ThreadPoolExecutor(1) as pool:
        late = pool.submit(desk.program(far, "late").thread("t").run, {"number": 1}, key="key")
        assert between.answered.wait(20)
        row = store.thread("t")
        assert row is not None
        store.write(Change("t", row.epoch, owner=row.owner, lease=0.001))  # as it ends where nothing renews it
        again = desk.program(store, "other").thread("t").run({"number": 1}, key="key")
        assert (again.status, again.state["sent_by"]) == ("completed", "other")
        between.released.set()
        assert isinstance(late.result().error, ConcurrentRunError)
    assert desk.calls == {"read": 1, "transfer": 1, "pay": 1, "send": 2}
    assert nodes_of(store, "t") == ["START", *NODES]
    assert desk.program(store).thread("t").state["sent_by"] == "other"


@each("when", [BEFORE, AFTER])
def test_runs_go_on_at_the_second_server(postgres: str, store: Store, when: str) -> None:
    """The first one is gone while several runs are in the same step; both have the same data."""
    address, schema = split_schema(postgres)
    desk = Desk()

    with proxy(address) as first, proxy(address) as second, ThreadPoolExecutor(RUNS) as pool:

        def fail() -> None:
            assert (first.connections > 0, second.connections) == (True, 0)
            first.refuse()
            first.cut(when, b"", times=1_000_000)

        together = Barrier(RUNS, action=fail)
        desk.before = lambda node: together.wait(20) if node == "pay" else None
        parts = urlsplit(first.address)
        hosts = f"{parts.netloc},{urlsplit(second.address).netloc.rpartition('@')[2]}"
        both = f"{parts._replace(netloc=hosts).geturl()}&target_session_attrs=read-write"
        with Postgres(both, schema=schema) as far:
            program = desk.program(far)
            names = [f"{when} {number}" for number in range(RUNS)]
            runs = list(pool.map(lambda name: program.thread(name).run({"number": 1}, key=name), names))
            assert [run.status for run in runs] == ["completed"] * RUNS
            assert second.connections > 0
    assert set(desk.calls.values()) == {RUNS}
    for name in names:
        assert nodes_of(store, name) == ["START", *NODES]
