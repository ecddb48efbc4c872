"""A fleet that a test starts, kills and looks at: worker processes, and the queue as a web process sees it."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from procrastinate import App, SyncPsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued
from psycopg import sql

from dspyer import CompiledGraph
from dspyer.errors import ConcurrentRunError
from dspyer.stores import open_store
from dspyer.stores.base import Change, Store
from tests.fleet.orders import Note, Notes, orders

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
HEARTBEAT = 0.05


class Setting(NamedTuple):
    """What the workers of a fleet have in common.

    Attributes:
        address: the database.
        folder: where the file of the notes is.
        seconds: how long a node takes.
        ask: whether each run asks a question.
        hosts: whether each worker has a host name of its own, so that only its leases show whether it is alive.
        silence: seconds after which the queue takes a worker for dead.
        wait: seconds between two deliveries of a job that another worker has.
        graceful: seconds for which a worker goes on with its runs after SIGTERM; None to end them.
        gated: whether the node `check` lasts until the file `gate` is there.
        asynchronous: whether `check` is an `async def`.
        audited: whether there is another node at the end, as in a new version.
        at_once: how many jobs a worker runs at once.
    """

    address: str
    folder: Path
    seconds: float = 0.02
    ask: bool = True
    hosts: bool = False
    silence: float = 0.3
    wait: float = 0.25
    graceful: float | None = None
    gated: bool = False
    asynchronous: bool = False
    audited: bool = False
    at_once: int = 4

    @property
    def notes(self) -> Notes:
        return Notes(self.folder / "notes.txt")

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def program(self, store: str | Store) -> CompiledGraph:
        gate = self.gate if self.gated else None
        return orders(store, self.notes, self.seconds, self.ask, gate, self.asynchronous, self.audited)


def work(setting: Setting, name: str) -> None:
    """A worker of the fleet: the tasks of the example with the program, the host and the patience of the test."""
    os.environ["DATABASE_URL"] = setting.address
    sys.path.insert(0, str(EXAMPLES))
    if setting.hosts:
        socket.gethostname = lambda: name
    tasks: Any = importlib.import_module("fleet_tasks")
    tasks.program = setting.program(setting.address)
    for task in (tasks.advance, tasks.answer):
        task.retry_strategy.wait = setting.wait
    put_off = tasks.advance.configure
    tasks.advance.configure = lambda schedule_in: put_off(schedule_in={"milliseconds": 1000 * setting.wait})
    worker_log = logging.getLogger("procrastinate.worker")
    worker_log.setLevel(logging.DEBUG)
    worker_log.addHandler(Told(setting.notes))
    manager = tasks.app.job_manager
    manager.get_stalled_jobs = partial(manager.get_stalled_jobs, seconds_since_heartbeat=setting.silence)
    tasks.app.run_worker(
        name=name,
        concurrency=setting.at_once,
        fetch_job_polling_interval=0.05,
        update_heartbeat_interval=HEARTBEAT,
        shutdown_graceful_timeout=setting.graceful,
    )


class Told(logging.Handler):
    """Notes when the worker tells its jobs to stop, and the classes of errors."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.DEBUG)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == "abort_job":
            self._notes.add("abort", "-")
        if record.exc_info and record.exc_info[0]:
            self._notes.add(record.exc_info[0].__name__, "-")


class Fleet:
    """Worker processes, and the jobs that they are given."""

    def __init__(self, setting: Setting, queue: App) -> None:
        self.setting = setting
        self.store = open_store(setting.address)
        self.program = setting.program(self.store)
        self.workers: list[BaseProcess] = []
        self.killed: dict[int, float] = {}
        self.queue = queue
        self._context = multiprocessing.get_context("forkserver")  # the processes import DSPy once, in their parent

    def start(self, count: int = 1, audited: bool = False) -> None:
        for _ in range(count):
            name = f"host-{len(self.workers) + len(self.killed)}"
            worker = self._context.Process(target=work, args=(self.setting._replace(audited=audited), name))
            worker.start()
            self.workers.append(worker)

    def kill(self, worker: BaseProcess) -> None:
        """SIGKILL, and the time at which the process was gone."""
        worker.kill()
        worker.join()
        assert worker.pid is not None
        self.killed[worker.pid] = time.time()
        self.workers.remove(worker)
        self.end_leases(worker)

    def end_leases(self, worker: BaseProcess) -> None:
        """The leases of a worker have ended, as they do when it has not renewed them for long enough."""
        for name in self.store.threads():
            row = self.store.thread(name)
            if row is not None and row.owner is not None and row.owner.pid == worker.pid:
                with suppress(ConcurrentRunError):  # another worker has seen that the process is gone
                    self.store.write(Change(name, row.epoch, owner=row.owner, lease=0.001))

    def defer(self, task: str, thread: str, lock: bool = True, **arguments: Any) -> None:
        options = {"lock": thread} if lock else {}
        self.queue.configure_task(f"fleet_tasks.{task}", **options).defer(thread=thread, **arguments)  # type: ignore[arg-type]

    def deliver_stalled(self) -> None:
        """What the workers do each minute by themselves."""
        with suppress(AlreadyEnqueued):
            self.queue.configure_task("fleet_tasks.stalled", queueing_lock="stalled").defer(timestamp=0)

    def jobs(self, *statuses: str) -> list[str]:
        # In one query: between two, a job that is delivered again may go from one status to the other.
        found = [job for job in self.queue.job_manager.list_jobs() if job.status in statuses]
        return [job.task_name.rpartition(".")[2] for job in found if not job.task_name.endswith("stalled")]

    def wait_for(self, condition: Any, seconds: float = 60) -> None:
        end, delivered = time.monotonic() + seconds, time.monotonic()
        while not condition():
            assert time.monotonic() < end, (self.jobs("todo", "doing"), self.setting.notes.all()[-10:])
            assert all(worker.is_alive() for worker in self.workers), "a worker has ended by itself"
            time.sleep(0.02)
            if time.monotonic() > delivered + self.setting.silence / 2:
                delivered = time.monotonic()
                self.deliver_stalled()

    def calls(self) -> list[Note]:
        """What was noted of threads: the calls of nodes and of the effect."""
        return [note for note in self.setting.notes.all() if note.thread != "-"]

    def noted(self, what: str) -> int:
        return sum(note.what == what for note in self.setting.notes.all())

    def wait_for_jobs(self, seconds: float = 60) -> None:
        self.wait_for(lambda: not self.jobs("todo", "doing"), seconds)

    def terminate(self) -> None:
        """SIGTERM to all workers."""
        for worker in self.workers:
            worker.terminate()

    def exit_codes(self) -> list[int | None]:
        """Wait until all workers have ended."""
        for worker in self.workers:
            worker.join(30)
        codes = [worker.exitcode for worker in self.workers]
        self.workers.clear()
        return codes


@contextmanager
def fleet(server: str, folder: Path, **options: Any) -> Iterator[Fleet]:
    """A fleet without workers, in a database of its own on a server; `options` are those of `Setting`."""
    name = f"fleet_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        setting = Setting(urlsplit(server)._replace(path=f"/{name}").geturl(), folder, **options)
        queue = App(connector=SyncPsycopgConnector(conninfo=setting.address))
        try:
            with queue.open():
                queue.schema_manager.apply_schema()
                made = Fleet(setting, queue)
                try:
                    yield made
                finally:
                    for worker in list(made.workers):
                        made.kill(worker)
                    made.store.close()
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
