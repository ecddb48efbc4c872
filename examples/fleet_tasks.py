"""What each process of a fleet with Procrastinate imports: the program, the queue, and what a worker does with a job.

`fleet.py` runs it, and docs/guides/fleet.md explains it.

python -m procrastinate --app=fleet_tasks.app schema --apply          # once: the tables of the queue
python -m procrastinate --app=fleet_tasks.app worker --concurrency=4  # a worker: as many as you like, on any machine
"""

from __future__ import annotations

# --8<-- [start:queue]
from asyncio import CancelledError
from typing import Any

from procrastinate import App, PsycopgConnector, RetryStrategy
from refunds import DATABASE, refunds

from dspyer import Run, errors

program = refunds()
app = App(connector=PsycopgConnector(conninfo=DATABASE))
PUT_OFF = (
    errors.OpenRunError,  # an earlier request failed, or waits
    errors.ConcurrentRunError,  # another worker has the thread
    errors.ChangedGraphError,  # an old worker ends the run
)
TRIED_AGAIN = {*PUT_OFF[1:], errors.StoreError, ConnectionError, CancelledError}
again = RetryStrategy(max_attempts=20, wait=5, retry_exceptions=TRIED_AGAIN)
# --8<-- [end:queue]


# --8<-- [start:tasks]
@app.task(retry=again)
async def advance(thread: str, key: str, inputs: dict[str, Any]) -> None:
    try:
        run = await program.thread(thread).arun(inputs, key=key)
    except PUT_OFF:
        # Without the lock, which would hold back the answer.
        later = advance.configure(schedule_in={"minutes": 1})
        await later.defer_async(thread=thread, key=key, inputs=inputs)
    else:
        ended(run)


@app.task(retry=again)
async def answer(thread: str, answers: dict[str, Any]) -> None:
    ended(await program.thread(thread).aresume(answers))


def ended(run: Run) -> None:
    if run.error:
        raise run.error


# --8<-- [end:tasks]


# --8<-- [start:stalled]
@app.periodic(cron="* * * * *")
@app.task(queueing_lock="stalled")
async def stalled(timestamp: int) -> None:
    for job in await app.job_manager.get_stalled_jobs():
        await app.job_manager.retry_job(job)


# --8<-- [end:stalled]


# --8<-- [start:send]
async def send(thread: str, key: str, inputs: dict[str, Any]) -> None:
    """In the web process, inside of `async with app.open_async():`."""
    job = advance.configure(lock=thread)
    await job.defer_async(thread=thread, key=key, inputs=inputs)


async def reply(thread: str, question_id: str, value: Any) -> None:
    job = answer.configure(lock=thread)
    await job.defer_async(thread=thread, answers={question_id: value})


# --8<-- [end:send]
