"""What each process of a fleet with Celery imports: the queue, and what a worker does with a job.

docs/guides/fleet.md explains it; the program is that of `refunds.py`. It needs: pip install 'celery[redis]'

celery --app=celery_tasks worker --concurrency=4    # a worker: as many as you like, on any machine
python -c "import celery_tasks as t; t.advance.delay('refund-1', 'mail-1', {'text': 'Charged twice', 'amount': 19})"
"""

from __future__ import annotations

# --8<-- [start:celery]
import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init
from refunds import refunds

from dspyer import Run, errors

app = Celery("desk", broker=os.environ.get("BROKER_URL", "redis://"))
app.conf.task_acks_late = True  # what a dead worker had comes again
app.conf.task_reject_on_worker_lost = True  # and what a dead child had
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_transport_options = {"visibility_timeout": 3600}
PASSING = (
    errors.ConcurrentRunError,
    errors.OpenRunError,  # an earlier request failed, or waits
    errors.ChangedGraphError,
    errors.StoreError,
    ConnectionError,
)
again = {
    "autoretry_for": PASSING,
    "retry_backoff": 5,
    "retry_backoff_max": 60,  # seconds
    "max_retries": None,
}


@worker_process_init.connect
def start(**_: Any) -> None:
    app.program = refunds()  # each process has connections of its own


@app.task(**again)
def advance(thread: str, key: str, inputs: dict[str, Any]) -> None:
    ended(app.program.thread(thread).run(inputs, key=key))


@app.task(**again)
def answer(thread: str, answers: dict[str, Any]) -> None:
    ended(app.program.thread(thread).resume(answers))


def ended(run: Run) -> None:
    if run.error:
        raise run.error


# --8<-- [end:celery]
