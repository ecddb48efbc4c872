"""Workers of Celery that a test starts, kills and looks at; they run the tasks of `examples/celery_tasks.py`.

Calls of nodes, and what becomes of jobs, are rows in lists of the Redis that is the broker. A gated node blocks until
the gates are open, so that a test kills a process in mid-call.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph
from tests.fleet.fleet import EXAMPLES
from tests.fleet.orders import thread_of

NODES = ["read", "check", "pay", "send"]
WAIT = 60  # seconds


class Broker(NamedTuple):
    """Where the workers of a fleet meet, and how patient they are."""

    socket: str
    store: str
    seconds: float = 0.0  # of each node
    gated: Sequence[str] = ()  # calls: node and thread
    visibility: float = 3600.0  # seconds
    retry: float = 0.2  # seconds
    concurrency: int = 3

    @property
    def redis(self) -> Any:
        import redis

        return redis.Redis(unix_socket_path=self.socket, socket_timeout=None, decode_responses=True)


class Order(BaseModel):
    number: int
    read: int | None = None
    check: int | None = None
    pay: int | None = None
    send: int | None = None


def orders(broker: Broker) -> CompiledGraph:
    """Four nodes, each of which notes its call first."""
    client = broker.redis

    def node(name: str) -> Any:
        def call(number: int, ctx: Context) -> dict[str, Any]:
            thread = thread_of(ctx)
            client.rpush("calls", f"{name} {thread} {os.getpid()}")
            if f"{name} {thread}" in broker.gated:
                client.blmove("gate", "gate", timeout=0)
            time.sleep(broker.seconds)
            return {name: number}

        return call

    graph = Graph(Order, inputs=["number"])
    for name in NODES:
        graph.add_node(name, node(name), writes=[name])
    return graph.add_path(START, *NODES, END).compile(store=broker.store)


def work(broker: Broker) -> None:
    """A worker with the program of the test and shorter times. It leads a group of processes, killed as one."""
    os.setsid()
    sys.path.insert(0, str(EXAMPLES))
    os.environ["BROKER_URL"] = f"redis+socket://{broker.socket}"
    signals: Any = importlib.import_module("celery.signals")
    tasks: Any = importlib.import_module("celery_tasks")
    autoretry: Any = importlib.import_module("celery.app.autoretry")
    autoretry.get_exponential_backoff_interval = lambda **_: broker.retry
    pool: Any = importlib.import_module("celery.concurrency.asynpool")
    pool.AsynPool.timers = property(lambda pool: {pool.maintain_pool: 0.1})  # how often it looks for dead children
    tasks.refunds = lambda: orders(broker)
    tasks.app.conf.worker_lost_wait = 0.1
    tasks.app.conf.broker_transport_options = {
        "visibility_timeout": broker.visibility,
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
    }
    signals.task_success.connect(lambda sender, **_: done(sender.request.id), weak=False)
    signals.task_failure.connect(lambda task_id, exception, **_: failed(task_id, exception), weak=False)

    def done(job: str) -> None:
        broker.redis.rpush("ended", f"{job} done")

    def failed(job: str, error: BaseException) -> None:
        broker.redis.rpush("ended", f"{job} failed {error!r}")

    tasks.app.worker_main(
        ["worker", f"--concurrency={broker.concurrency}", "--loglevel=WARNING", f"--hostname=w{os.getpid()}"]
        + [f"--without-{part}" for part in ("gossip", "mingle", "heartbeat")]
    )


class Workers:
    """Worker processes, and the jobs that they are given."""

    def __init__(self, broker: Broker, tasks: Any) -> None:
        self.broker, self.redis = broker, broker.redis
        self.program = orders(broker)
        self._tasks = tasks
        self._workers: list[BaseProcess] = []
        self._calls: list[str] = []
        self._new: dict[str, int] = {}

    def start(self, visibility: float) -> None:
        given = (self.broker._replace(visibility=visibility),)
        worker = multiprocessing.get_context("forkserver").Process(target=work, args=given)
        worker.start()
        self._workers.append(worker)

    def kill_all(self) -> None:
        """SIGKILL to the workers and their children, as when a machine is switched off."""
        for worker in self._workers:
            assert worker.pid is not None
            os.killpg(worker.pid, signal.SIGKILL)
            worker.join()
        self._workers.clear()

    def close(self) -> None:
        self.kill_all()
        self._tasks.app.close()
        self.redis.close()

    def deliver(self, thread: str) -> str:
        """Puts the same request into the queue once more, and gives the id of the job."""
        job: str = self._tasks.advance.delay(thread, f"key of {thread}", {"number": 1}).id
        return job

    def wait_for_calls(self, *calls: str) -> list[int]:
        """Waits for calls, each a node and a thread, that were not waited for; gives the processes that make them."""
        while not self._new.keys() >= set(calls):
            row = self.redis.blpop("calls", WAIT)
            assert row, (calls, self._calls)
            self._calls.append(row[1])
            call, pid = row[1].rsplit(" ", 1)
            self._new[call] = int(pid)
        return [self._new.pop(call) for call in calls]

    def wait_for_jobs(self, jobs: Collection[str]) -> dict[str, str]:
        """How these have ended; waits until all have."""
        ended: dict[str, str] = {}
        while not ended.keys() >= set(jobs):
            row = self.redis.blpop("ended", WAIT)
            assert row, (set(jobs) - ended.keys(), self.calls())
            job, how = row[1].split(maxsplit=1)
            ended[job] = how
        return {job: ended[job] for job in jobs}

    def open_gates(self) -> None:
        self.redis.rpush("gate", "open")

    def calls(self) -> Counter[str]:
        """How often each node was called, of each thread."""
        return Counter(row.rsplit(" ", 1)[0] for row in self._calls + self.redis.lrange("calls", 0, -1))


def imported_tasks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the example, made anew."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "celery_tasks", raising=False)
    return importlib.import_module("celery_tasks")


@contextmanager
def workers(store: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Workers]:
    """A Redis of its own, and what puts jobs into it."""
    executable = shutil.which("redis-server")
    if executable is None:
        pytest.skip("there is no redis-server")
    folder = tempfile.mkdtemp(prefix="dspyer-redis-")
    path = str(Path(folder) / "socket")  # short, as addresses of sockets must be
    command = [executable, "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert any("eady to accept connections" in line for line in server.stdout)
            monkeypatch.setenv("BROKER_URL", f"redis+socket://{path}")
            made = Workers(Broker(path, store, **options), imported_tasks(monkeypatch))
            try:
                yield made
            finally:
                made.close()
        finally:
            server.kill()
    shutil.rmtree(folder)
