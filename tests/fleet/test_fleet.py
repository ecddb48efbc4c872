"""A fleet whose workers are killed: a request is one run, finished nodes are not called again, effects not repeated."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.fleet.fleet import Fleet, fleet
from tests.fleet.orders import Note

pytestmark = pytest.mark.usefixtures("fork_server")

REQUESTS = 6
KILLS = 4
PATH = ["read", "check", "pay", "send"]
NODES = ["START", "read", "check", "approve", "pay", "send"]


@pytest.mark.slow("a fleet of three processes of which four are killed, with a queue and a store in PostgreSQL")
def test_a_request_is_one_run_though_workers_are_killed(postgres_address: str, tmp_path: Path) -> None:
    kills = chosen_kills(random.Random(0))
    with fleet(postgres_address, tmp_path, hosts=True) as made:
        threads = [f"order-{number}" for number in range(REQUESTS)]
        for number, name in enumerate(threads):
            for _ in range(2 if number % 6 == 0 else 1):  # a client that sends its request twice
                made.defer("advance", name, key=f"key {number}", inputs={"number": number})
        made.start(3)
        kill_some(made, next(kills), 0)
        made.wait_for_jobs()
        assert {made.program.thread(name).status for name in threads} == {"interrupted"}
        begun = len(made.calls())
        for name in threads:
            (question,) = made.program.thread(name).questions
            for lock in (True, False):  # in the order of the thread, and at the same time as another delivery
                made.defer("answer", name, lock=lock, answers={question.id: True})
        kill_some(made, next(kills), begun)
        made.wait_for_jobs()
        assert made.jobs("failed", "aborted", "cancelled") == []
        for name in threads:
            commits = made.program.thread(name).history()
            assert [commit.node for commit in commits] == NODES
            assert made.program.thread(name).status == "completed"
        assert_called_once(made)
        assert_paid_once(made, threads)


def chosen_kills(chance: random.Random) -> Iterator[list[tuple[int, int]]]:
    """For each half of the runs: after how many calls, which of the workers."""
    while True:
        yield [(calls, chance.randrange(3)) for calls in sorted(chance.sample(range(1, 2 * REQUESTS), KILLS // 2))]


def kill_some(made: Fleet, kills: list[tuple[int, int]], begun: int) -> None:
    """Kills workers, each after so and so many calls since there were `begun`, and starts others."""
    for calls, number in kills:
        made.wait_for(lambda enough=begun + calls: len(made.calls()) >= enough)
        made.kill(made.workers[number])
        made.start()


def calls_of(made: Fleet) -> dict[tuple[str, str], list[Note]]:
    calls = defaultdict(list)
    for note in made.calls():
        calls[note.thread, note.what].append(note)
    return calls


def assert_called_once(made: Fleet) -> None:
    """A node is called again only if the process that called it was killed, and never once it was committed."""
    for (thread, node), notes in calls_of(made).items():
        for before, after in pairwise(notes):
            assert made.killed.get(before.pid, float("inf")) < after.time, (thread, node)
        if node != "transfer":
            (commit,) = [commit for commit in made.program.thread(thread).history() if commit.node == node]
            assert notes[-1].time < commit.ended


def assert_paid_once(made: Fleet, threads: list[str]) -> None:
    keys = defaultdict(set)
    for note in made.calls():
        if note.what == "transfer":
            keys[note.thread].add(note.text)
    assert keys == {name: {made.program.thread(name).state["receipt"]} for name in threads}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain function", "async def"])
def test_at_sigterm_a_worker_stops_its_runs_and_another_goes_on(
    asynchronous: bool, postgres_address: str, tmp_path: Path
) -> None:
    """A plain function is finished and committed, an async node is cancelled; nothing new starts."""
    with fleet(postgres_address, tmp_path, graceful=0.0, ask=False, gated=True, asynchronous=asynchronous) as made:
        made.defer("advance", "order-0", key="key 0", inputs={"number": 0})
        made.start()
        made.wait_for(lambda: made.noted("check"))
        made.terminate()
        made.wait_for(lambda: made.noted("abort"))
        if not asynchronous:
            made.setting.gate.touch()
        assert made.exit_codes() == [0]
        thread = made.program.thread("order-0")
        assert thread.status == "stopped"
        assert [commit.node for commit in thread.history()] == ["START", "read", *([] if asynchronous else ["check"])]
        assert made.jobs("todo") == ["advance"]
        made.setting.gate.touch()
        made.start()
        made.wait_for_jobs()
        assert made.jobs("failed", "aborted", "cancelled") == []
        assert [commit.node for commit in thread.history()] == ["START", "read", "check", "pay", "send"]
        again = ["check"] if asynchronous else []
        assert [note.what for note in made.calls()] == ["read", "check", *again, "transfer", "pay", "send"]


def test_a_worker_that_froze_for_longer_than_its_lease_commits_nothing_more(
    postgres_address: str, tmp_path: Path
) -> None:
    with fleet(postgres_address, tmp_path, hosts=True, ask=False, gated=True) as made:
        made.defer("advance", "order-0", key="key 0", inputs={"number": 0})
        made.start()
        made.wait_for(lambda: made.noted("check"))
        frozen = made.workers[0]
        os.kill(frozen.pid or 0, signal.SIGSTOP)
        made.end_leases(frozen)
        made.start()
        made.wait_for(lambda: made.noted("check") >= 2)
        made.setting.gate.touch()
        made.wait_for(lambda: made.program.thread("order-0").status == "completed")
        os.kill(frozen.pid or 0, signal.SIGCONT)
        made.wait_for_jobs()
        made.terminate()
        assert made.exit_codes() == [0, 0]


def test_a_new_worker_refuses_an_old_run_and_an_old_one_ends_it(postgres_address: str, tmp_path: Path) -> None:
    """As in a deployment, while workers of both versions take jobs from one queue."""
    with fleet(postgres_address, tmp_path, ask=False, gated=True) as made:
        made.defer("advance", "old", key="key", inputs={"number": 0})
        made.start()
        made.wait_for(lambda: made.noted("check"))
        made.kill(made.workers[0])
        made.start(audited=True)
        made.wait_for(lambda: made.jobs("succeeded") == ["advance"])  # it has put it off
        assert [note.what for note in made.calls()] == ["read", "check"], "it has called nothing"
        made.setting.gate.touch()
        made.defer("advance", "new", key="key", inputs={"number": 1})
        made.wait_for(lambda: made.program.thread("new").status == "completed")
        made.start()
        made.wait_for_jobs()
        assert made.jobs("failed", "aborted", "cancelled") == []
        found = {name: [commit.node for commit in made.program.thread(name).history()] for name in ("old", "new")}
        assert found == {"old": ["START", *PATH], "new": ["START", *PATH, "audit"]}
        calls = Counter(note.what for note in made.calls() if note.thread == "old")
        assert calls == Counter([*PATH, "check", "transfer"])
