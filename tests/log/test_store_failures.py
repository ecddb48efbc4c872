"""A store that fails at any write: nothing that depends on it starts, and the run resumes at the end of the log."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, Graph
from dspyer.errors import StoreError
from dspyer.stores.base import ThreadRow
from tests.log.equality import finished, outcome
from tests.log.failing import DiskError, Failing, FailingMemory, disk_full
from tests.log.kinds import CALLS, KINDS, State
from tests.log.places import FAULTS, MODES, Place, modes_of, start


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_fails_stops_what_depends_on_it_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    places = [Place(KINDS[kind], MODES[mode], tmp_path) for mode in modes_of(kind)]
    parents = {commit[0]: set(commit[7]) for commit in places[0].whole.outcome.commits}
    for number, after, first in FAULTS:
        for at in count(first, 4):
            if not fails(kind, places[number], parents, at, after):
                break


def fails(kind: str, place: Place, parents: dict[str, set[str]], at: int, after: bool) -> bool:
    """Whether a run has a write of that number, which fails."""
    place.arm(disk_full, at, after, forever=after)
    name = f"t {at} {after}"
    if at == 1:
        with pytest.raises(StoreError) as caught:
            start(place.first.thread(name), place.call_mode)
        assert isinstance(caught.value.__cause__, DiskError)
        assert not CALLS.made
        place.check_the_rest(name)
        return True
    with KINDS[kind].lm():
        run = start(place.first.thread(name), place.call_mode)
    if run.error is None:
        assert outcome(run) == place.whole.outcome
        return False
    assert isinstance(run.error, StoreError)
    assert isinstance(run.error.__cause__, DiskError)
    there = finished(place.store, name)
    made = {commit.id for commit in run.commits}
    assert made <= there
    assert after or made == {done for done in there if not set(done) & {"/", "["}}
    for call in CALLS.made:
        assert parents.get(call.execution, set()) <= made
    place.check_the_rest(name)
    return True


def test_running_siblings_finish_and_are_not_committed() -> None:
    store = FailingMemory()
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        disk_full()

    finished_calls: list[str] = []

    def quick(state: Any) -> dict[str, Any]:
        finished_calls.append("quick")
        return {"log": ["quick"]}

    def slow(state: Any) -> dict[str, Any]:
        assert failed.wait(20)
        finished_calls.append("slow")
        return {"log": ["slow"]}

    graph = Graph(State).add_node("quick", quick).add_node("slow", slow).add_node("after", lambda state: None)
    graph.add_edge(START, ["quick", "slow"]).add_path("quick", "after", END).add_edge("slow", END)
    thread = graph.compile(store=store).thread("t")
    store.arm(fail, 3, after=False)
    run = thread.run({})
    assert isinstance(run.error, StoreError)
    assert [commit.node for commit in run.commits] == ["START"]
    assert finished_calls == ["quick", "slow"]
    store.rest()
    assert thread.resume().state["log"] == ["quick", "slow"]
    assert finished_calls[2:] in (["quick", "slow"], ["slow", "quick"])


class Unreadable(FailingMemory):
    """A store that cannot be read."""

    readable = True

    def thread(self, name: str) -> ThreadRow | None:
        if not self.readable:
            raise DiskError("read error")
        return super().thread(name)


def test_a_failed_read_raises_a_store_error() -> None:
    store: Failing = Unreadable()
    thread = KINDS["chain"].compile("sync", store).thread("t")
    store.readable = False  # type: ignore[attr-defined]
    for ask in (lambda: thread.run({}), lambda: thread.state, lambda: thread.status, thread.resume):
        with pytest.raises(StoreError, match="read error") as caught:
            ask()
        assert isinstance(caught.value.__cause__, DiskError)


def test_a_thread_is_released_after_a_single_failed_write() -> None:
    """A write that failed once does not keep other processes out until the lease ends."""
    store = FailingMemory()
    thread = KINDS["chain"].compile("sync", store).thread("t")
    store.arm(disk_full, 3, after=False, forever=False)
    assert isinstance(thread.run({}).error, StoreError)
    row = store.thread("t")
    assert row is not None
    assert row.owner is None
