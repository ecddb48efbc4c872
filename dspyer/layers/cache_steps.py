"""The steps of a script that uses a cache: work on its folder, lead a flight, follow one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import dspy

from dspyer.blocking import loop_of_worker, task_signal
from dspyer.layers.patch_cache import ANY_LOOP, Flight, on_disk
from dspyer.nodes.node import Call
from dspyer.nodes.steps import Script, arun_script, run_script
from dspyer.nodes.sync_async import blocked_loops
from dspyer.stopping import current_limit

_LED: Final = "dspyer_led"  # a setting, since DSPy carries these to its threads


def _led() -> tuple[Flight, ...]:
    """The flights that executions around the caller lead."""
    found: tuple[Flight, ...] = dspy.settings.get(_LED) or ()
    return found


class DiskStep:
    """Does something with the entries of a `PatchCache`, which is one of its methods with its arguments."""

    def __init__(self, work: Callable[..., Any], *args: Any) -> None:
        self._work = work
        self._args = args

    def call(self, call: Call) -> Any:
        del call
        return on_disk(self._work, *self._args).result()

    async def acall(self, call: Call) -> Any:
        del call
        return await asyncio.wrap_future(on_disk(self._work, *self._args))


class Lead(NamedTuple):
    """Runs the script of a leader as one step: its flight ends when it does, also if the task is cancelled."""

    flight: Flight
    script: Script[Any]

    def call(self, call: Call) -> Any:
        del call
        # In a worker thread of AnyIO, async functions run on the loop that the thread belongs to.
        with self._leading(ANY_LOOP if loop_of_worker() else None):
            return run_script(self.script)

    async def acall(self, call: Call) -> Any:
        del call
        with self._leading(asyncio.get_running_loop()):
            return await arun_script(self.script)

    @contextmanager
    def _leading(self, loop: object) -> Iterator[None]:
        with ExitStack() as stack:
            # If an attempt around the execution times out, it may be left running for good: nothing waits for it then.
            limit = current_limit.get()
            while limit is not None:
                stack.enter_context(limit.signal.on_stop(lambda _reason: self.flight.abandon()))
                limit = limit.around
            stack.enter_context(dspy.context(**{_LED: (*_led(), self.flight)}))
            with self.flight.leading(loop):
                yield


class Follow(NamedTuple):
    """Waits for the leader; returns whether it has an outcome. If the run is stopped, the execution is left open."""

    flight: Flight

    def call(self, call: Call) -> bool:
        if self._would_deadlock():
            return True
        ended = threading.Event()
        with call.runner.session.stop_signal.on_stop(lambda _reason: ended.set()):
            self.flight.on_end(ended.set)
            ended.wait()
        return self._has_outcome()

    async def acall(self, call: Call) -> bool:
        if self._would_deadlock():
            return True
        ended, end = task_signal()
        with call.runner.session.stop_signal.on_stop(end):
            self.flight.on_end(end)
            await ended
        return self._has_outcome()

    def _would_deadlock(self) -> bool:
        """Whether the leader waits for this execution.

        It is around it, if what is called calls its own program again. Or it needs an event loop that a sync call
        around this execution blocks, as in a notebook.
        """
        if any(flight is self.flight for flight in _led()):
            return True
        blocked = blocked_loops()
        return bool(blocked) and (self.flight.loop is ANY_LOOP or self.flight.loop in blocked)

    def _has_outcome(self) -> bool:
        if not self.flight.ended:
            raise asyncio.CancelledError
        return self.flight.has_outcome
