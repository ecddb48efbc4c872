"""An activity of Temporal that a workflow calls to do a run: it resumes where a lost or cancelled attempt has stopped.

docs/guides/fleet.md explains it; the program is that of `refunds.py`. It needs: pip install temporalio
"""

from __future__ import annotations

# --8<-- [start:activity]
import asyncio
from typing import Any

from refunds import refunds
from temporalio import activity

program = refunds()
BEAT = 10  # seconds, below the heartbeat_timeout


@activity.defn
async def advance(thread: str, key: str, inputs: dict[str, Any]) -> str:
    async def beat() -> None:
        while True:
            activity.heartbeat()  # how Temporal tells that it is cancelled
            await asyncio.sleep(BEAT)

    beating = asyncio.create_task(beat())
    try:
        run = await program.thread(thread).arun(inputs, key=key)
    finally:
        beating.cancel()
    if run.error:
        raise run.error  # the next attempt resumes it
    return run.status


# --8<-- [end:activity]
