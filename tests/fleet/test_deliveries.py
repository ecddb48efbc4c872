"""What becomes of a job: which errors the queue tries again, what a second delivery does. In one process, in memory."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

import dspy
import pytest
from procrastinate.testing import InMemoryConnector

from dspyer import END, START, Context, Graph, errors
from dspyer.stores import Memory
from tests.fleet.fleet import EXAMPLES


class Desk:
    """The tasks of the example, with a queue and a store in memory, and a program whose nodes fail as told."""

    def __init__(self, tasks: Any) -> None:
        self.tasks = tasks
        self.calls: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.sending, self.gate = Event(), Event()
        self.gate.set()
        self.put_off: list[dict[str, Any]] = []
        self.store = Memory()
        graph = Graph().add_node("read", self.read, writes=["read"]).add_node("send", self.send, writes=["sent"])
        graph.add_interrupt("approve", question="Send {read}?", answer=bool, into="approved")
        graph.add_path(START, "read")
        graph.add_conditional_edges("read", lambda read: "approve" if read < 0 else "send", ["approve", "send"])
        graph.add_path("approve", "send", END)
        tasks.program = self.program = graph.compile(store=self.store)

    def read(self, number: int) -> dict[str, Any]:
        self.calls["read"] += 1
        return {"read": number}

    def send(self, read: int, ctx: Context) -> dict[str, Any]:
        self.calls["send"] += 1
        self.sending.set()
        assert self.gate.wait(20)
        if self.errors:
            raise self.errors.pop(0)
        return {"sent": read}

    def deliver(self, task: str, thread: str = "t", **arguments: Any) -> list[str]:
        """Puts a job into the queue, and works until none is left; the statuses that the job has had."""
        return asyncio.run(self._deliver(task, thread, arguments))

    async def _deliver(self, task: str, thread: str, arguments: dict[str, Any]) -> list[str]:
        connector = InMemoryConnector()
        with self.tasks.app.replace_connector(connector):
            await getattr(self.tasks, task).configure(lock=thread).defer_async(thread=thread, **arguments)
            await self.tasks.app.run_worker_async(wait=False, listen_notify=False, install_signal_handlers=False)
        job, *_ = (number for number, row in connector.jobs.items() if row["task_name"].endswith(task))
        self.put_off += [dict(row) for row in connector.jobs.values() if row["status"] == "todo"]
        events = [event["type"] for event in connector.events[job]]
        return [event for event in events if event in ("started", "succeeded", "failed", "aborted")]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.syspath_prepend(EXAMPLES)
    for name in ("fleet_tasks", "refunds", "triage", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tasks = importlib.import_module("fleet_tasks")
    monkeypatch.setattr(tasks.again, "wait", 0)
    yield Desk(tasks)
    dspy.configure(lm=None)


TRIED_AGAIN = [
    ConnectionError("down"),
    BrokenPipeError("down"),
    errors.StoreError("no disk"),
    errors.ConcurrentRunError("taken over"),
    errors.ChangedGraphError("made by another version"),
]
FINAL = [
    ValueError("a bug"),
    errors.BudgetError("9 of 9 requests", "requests"),
    errors.RunStoppedError("stopped by a person", "stop"),
]


@pytest.mark.parametrize("error", TRIED_AGAIN, ids=repr)
def test_what_passes_by_itself_is_tried_again(error: Exception, desk: Desk) -> None:
    desk.errors = [error, error]
    assert desk.deliver("advance", key="1", inputs={"number": 1}) == ["started", "started", "started", "succeeded"]
    assert desk.calls == {"read": 1, "send": 3}
    assert runs(desk) == 1


@pytest.mark.parametrize("error", FINAL, ids=repr)
def test_an_error_that_comes_again_is_not_paid_for_again(error: Exception, desk: Desk) -> None:
    """Once the cause is mended, another delivery of the request goes on where the run had ended."""
    desk.errors = [error]
    assert desk.deliver("advance", key="1", inputs={"number": 1}) == ["started", "failed"]
    assert desk.deliver("advance", key="2", inputs={"number": 2}) == ["started", "succeeded"]  # put off
    assert desk.calls == {"read": 1, "send": 1}
    assert desk.deliver("advance", key="1", inputs={"number": 1}) == ["started", "succeeded"]
    assert desk.deliver("advance", key="2", inputs={"number": 2}) == ["started", "succeeded"]
    assert desk.calls == {"read": 2, "send": 3}
    assert runs(desk) == 2


def test_the_tries_are_bounded(desk: Desk) -> None:
    desk.errors = [ConnectionError("down")] * 30
    assert desk.deliver("advance", key="1", inputs={"number": 1}) == ["started"] * 21 + ["failed"]


def test_a_request_that_comes_again_is_the_same_run_and_its_key_refuses_other_inputs(desk: Desk) -> None:
    for _ in range(2):
        assert desk.deliver("advance", key="1", inputs={"number": 1}) == ["started", "succeeded"]
    assert desk.deliver("advance", key="1", inputs={"number": 2}) == ["started", "failed"]
    assert desk.calls == {"read": 1, "send": 1}
    assert desk.deliver("advance", thread="u", key="1", inputs={"number": 2}) == ["started", "succeeded"]
    assert runs(desk) == 1


def test_answers_that_come_twice_late_or_different(desk: Desk) -> None:
    desk.deliver("advance", key="1", inputs={"number": -1})
    first = desk.program.thread("t").questions[0].id
    for _ in range(2):
        assert desk.deliver("advance", key="1", inputs={"number": -1}) == ["started", "succeeded"]
        assert desk.deliver("answer", answers={first: True}) == ["started", "succeeded"]
    assert desk.deliver("answer", answers={first: False}) == ["started", "failed"]
    assert desk.calls == {"read": 1, "send": 1}
    desk.deliver("advance", key="2", inputs={"number": -2})
    assert desk.deliver("answer", answers={first: True}) == ["started", "failed"]
    assert desk.program.thread("t").status == "interrupted"
    assert desk.calls == {"read": 2, "send": 1}


@pytest.mark.parametrize("first", ["waits", "failed", "goes on", "of another version"])
def test_a_request_is_put_off_until_the_one_before_it_has_ended(first: str, desk: Desk) -> None:
    """However long that takes: not among the tries, which end, nor under the lock, which would hold back the answer."""
    thread = desk.program.thread("t")
    request: dict[str, Any] = {"key": "1", "inputs": {"number": -1 if first == "waits" else 1}}
    desk.errors = [ValueError("a bug")] if first in ("failed", "of another version") else []
    going_on = Thread(target=thread.run, args=(request["inputs"],), kwargs={"key": "1"})
    if first == "goes on":
        desk.gate.clear()
        going_on.start()
        assert desk.sending.wait(20)
    else:
        desk.deliver("advance", **request)
    later: dict[str, Any] = {"key": "2", "inputs": {"number": 2}}
    if first == "of another version":
        later = request
        graph = Graph().add_node("other", lambda number: {"sent": number}, writes=["sent"])
        graph.add_path(START, "other", END)
        desk.tasks.program = graph.compile(store=desk.store)
    for count in range(1, 4):
        assert desk.deliver("advance", **later) == ["started", "succeeded"]
        assert len(desk.put_off) == count
    job = desk.put_off[-1]
    assert (job["args"], job["lock"]) == ({"thread": "t", **later}, None)
    assert job["scheduled_at"] > datetime.now(UTC)
    desk.tasks.program = desk.program
    if first == "waits":
        desk.deliver("answer", answers={thread.questions[0].id: True})
    elif first == "failed":
        desk.deliver("advance", **request)
    elif first == "goes on":
        desk.gate.set()
        going_on.join()
    assert desk.deliver("advance", **job["args"]) == ["started", "succeeded"]
    assert (runs(desk), len(desk.put_off)) == (1 if later is request else 2, 3)


def test_an_answer_whose_run_fails_is_delivered_again(desk: Desk) -> None:
    desk.deliver("advance", key="1", inputs={"number": -1})
    desk.errors = [ConnectionError("down")]
    answers = {desk.program.thread("t").questions[0].id: True}
    assert desk.deliver("answer", answers=answers) == ["started", "started", "succeeded"]
    assert desk.calls == {"read": 1, "send": 2}


def runs(desk: Desk) -> int:
    return sum(commit.node == "START" for commit in desk.program.thread("t").history())
