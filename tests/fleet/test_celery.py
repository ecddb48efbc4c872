"""A fleet of Celery whose processes are killed: a request is one run, and only the calls that were cut off come again.

Requests are in the queue twice, and what takes longer than the visibility timeout is delivered again meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from dspyer import END, START, Graph, errors
from tests.fleet.celery_fleet import NODES, imported_tasks, workers
from tests.rows import each

GATED = ["check order-0", "pay order-1", "send order-2"]
REQUESTS = [f"order-{number}" for number in range(5)]


PASSING = [
    errors.ConcurrentRunError("taken over"),
    errors.OpenRunError("an earlier request waits"),
    errors.ChangedGraphError("made by another version"),
    errors.StoreError("no disk"),
    ConnectionError("down"),
]
FINAL = [ValueError("a bug"), errors.BudgetError("9 of 9 requests", "requests")]


@each("error", [*PASSING, *FINAL], ids=repr)
def test_what_passes_by_itself_is_tried_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = imported_tasks(monkeypatch)
    calls: list[int] = []

    def read(number: int) -> dict[str, int]:
        calls.append(number)
        if len(calls) == 1:
            raise error
        return {"read": number}

    graph = Graph(inputs=["number"]).add_node("read", read, writes=["read"])
    tasks.app.program = graph.add_path(START, "read", END).compile(store=":memory:")
    done = tasks.advance.apply(("t", "key", {"number": 1}))  # here, with the retries that follow
    assert (done.state, len(calls)) == (("SUCCESS", 2) if error in PASSING else ("FAILURE", 1))


@pytest.mark.slow("two workers with three children each, a Redis and a PostgreSQL")
@pytest.mark.usefixtures("fork_server")
def test_a_request_is_one_run_though_children_and_whole_workers_are_killed(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workers(postgres, monkeypatch, gated=GATED) as made:
        jobs = [made.deliver(name) for name in REQUESTS + REQUESTS[1:]]
        made.start(visibility=3600)  # so it is the worker that rejects the job of its child
        child, *_ = made.wait_for_calls(*GATED)
        os.kill(child, signal.SIGKILL)
        made.wait_for_calls(GATED[0])  # now all children are in a call again
        made.kill_all()
        made.start(visibility=0.5)
        made.wait_for_calls(*GATED)
        made.open_gates()
        assert set(made.wait_for_jobs(jobs).values()) == {"done"}
        for name in REQUESTS:
            assert made.program.thread(name).status == "completed"
            assert [commit.node for commit in made.program.thread(name).history()] == ["START", *NODES]
        once = Counter(f"{node} {name}" for node in NODES for name in REQUESTS)
        assert made.calls() - once == Counter(GATED) + Counter(GATED[:1])
