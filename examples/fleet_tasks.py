"""What each process of a fleet imports: the program, the queue, and what a worker does with a job.

`fleet.py` runs it, and docs/guides/batches.md explains it.

python -m procrastinate --app=fleet_tasks.app schema --apply          # once: the tables of the queue
python -m procrastinate --app=fleet_tasks.app worker --concurrency=4  # a worker: as many as you like, on any machine
"""

from __future__ import annotations

import os
import time
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import dspy
from model import language_model
from procrastinate import App, PsycopgConnector, RetryStrategy
from pydantic import BaseModel
from triage import Classify

from dspyer import END, START, CompiledGraph, Context, Graph, Run, errors

DATABASE = os.environ.get("DATABASE_URL", "postgresql://localhost/desk")
BANK = Path("bank.txt")  # stands for a bank: a line for each request that reached it


# --- the program


class Refund(BaseModel):
    """A customer wants money back."""

    text: str
    amount: float
    category: str | None = None
    covered: bool | None = None
    approved: bool | None = None
    receipt: str | None = None


def verify(amount: float) -> dict[str, Any]:
    """Ask the bank, which takes a while."""
    tell_the_bank(f"verify {amount:.2f} by process {os.getpid()}")
    time.sleep(0.2)
    return {"covered": True}


def pay(amount: float, ctx: Context) -> dict[str, Any]:
    """Pay once: the receipt is stored before the node goes on, and the bank gets the same key from every attempt."""

    def transfer(key: str) -> str:
        tell_the_bank(f"transfer {amount:.2f} key {key}")
        return f"receipt {key[:8]}"

    return {"receipt": ctx.once("pay", transfer)}


def tell_the_bank(line: str) -> None:
    with BANK.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def refunds() -> CompiledGraph:
    """The graph: classify and verify a request, ask a person above 50 USD, pay."""
    graph = Graph(Refund, inputs=["text", "amount"])
    graph.add_node("classify", dspy.Predict(Classify))
    graph.add_node("verify", verify, writes=["covered"])
    graph.add_interrupt("approve", question="Pay back {amount} USD?", answer=bool, into="approved")
    graph.add_node("pay", pay, writes=["receipt"])
    graph.add_path(START, "classify", "verify")
    graph.add_conditional_edges(
        "verify", lambda amount: "approve" if amount > 50 else "pay", {"approve": "approve", "pay": "pay"}
    )
    graph.add_conditional_edges("approve", "approved", {True: "pay", False: END})
    graph.add_edge("pay", END)
    return graph.compile(store=DATABASE)


dspy.configure(lm=language_model())
program = refunds()


# --- the queue

# --8<-- [start:queue]
app = App(connector=PsycopgConnector(conninfo=DATABASE))
TRIED_AGAIN = {
    errors.ConcurrentRunError,  # another worker has the thread
    errors.StoreError,
    ConnectionError,
    CancelledError,
}
again = RetryStrategy(max_attempts=20, wait=5, retry_exceptions=TRIED_AGAIN)
# --8<-- [end:queue]


# --8<-- [start:tasks]
@app.task(retry=again)
async def advance(thread: str, key: str, inputs: dict[str, Any]) -> None:
    try:
        run = await program.thread(thread).arun(inputs, key=key)
    except errors.OpenRunError:  # an earlier request failed, or waits
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
