"""A fleet of Celery whose processes are killed: a request is one run, and only the calls that were cut off come again.

Requests are in the queue twice, and what takes longer than the visibility timeout is delivered again meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.fleet.celery_fleet import NODES, workers

GATED = ["check order-0", "pay order-1", "send order-2"]
REQUESTS = [f"order-{number}" for number in range(5)]


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
