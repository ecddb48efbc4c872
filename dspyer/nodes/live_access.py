"""Live fields as a node sees them: entries that arrive while it runs, and the wait for the next one.

A node waits with a `Waiter` and gives up its slot of `max_concurrency` meanwhile: the run sets the outcome of the wait,
and wakes the node when it has a slot again. When a wait ends without an entry is decided by `layers.live`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from dataclasses import field as made
from functools import partial
from queue import SimpleQueue
from threading import RLock
from typing import Any, Literal, NamedTuple, Protocol

from dspyer import clock
from dspyer.blocking import is_on_loop
from dspyer.errors import AttemptError, AttemptOverError, Interrupt
from dspyer.events import BranchPath
from dspyer.patch import DELETE
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stopping import OVER, TimeLimit
from dspyer.values.freezing import same

WaitOutcome = Literal["waiting", "entry", "closed", "timeout", "abort"]
"""`abort` ends the attempt: a resume may bring what it waits for, or the run has ended."""


class LiveEntry(NamedTuple):
    """One entry of a live field: an item, the value of one key, or an amount.

    Attributes:
        value: a plain copy of it.
        author: the node that posted it; `"START"` for what was there when the run began.
        commit: the id of the commit that it belongs to.
        seq: the number of its arrival, in one order for all live fields of the run; 0 for what was there.
        key: the key, for a field that is a mapping.
    """

    value: Any
    author: str
    commit: str
    seq: int
    key: Any = None


class Peer(NamedTuple):
    """A node that runs at the moment.

    Attributes:
        node: its name.
        branch: the path of its branch.
        visit: how often it has run in the lineage of the branch, this time included.
        doing: the text of its last `ctx.doing`.
        waits_for: the live field that it waits for; "" while it works.
    """

    node: str
    branch: BranchPath
    visit: int
    doing: str = ""
    waits_for: str = ""


@dataclass(slots=True, eq=False)
class Together:
    """What the executions of one run know of each other, and of the slots of `max_concurrency`.

    Attributes:
        visible: whether they know of each other: not in a run with `live=False`, where nothing depends on timing.
        slots: how many of them may work at once.
        doing: the text of the last `ctx.doing`, by execution.
        parked: those that run, and hold no slot, since they wait for others; each with what it waits for.
        lock: guards what is parked, and the choice of what begins. Executions park in threads of their own.
        wake: makes the driver look again for what may begin. May be called from any thread.
        posts: those to live fields (`layers.live.LivePosts`, which lies above the nodes); None for a run in which posts
            wait for the commit of their node.
        each_round: called with the run, under the lock, whenever what may begin has begun.
    """

    visible: bool
    slots: int = 1
    doing: dict[str, str] = made(default_factory=dict)
    parked: dict[str, str] = made(default_factory=dict)
    lock: RLock = made(default_factory=RLock)
    wake: Callable[[], object] = made(init=False)  # set by the driver
    posts: Any = None
    each_round: list[Callable[[Any], object]] = made(default_factory=list)


class Waiter:
    """An execution that waits for the next entry of a field.

    Attributes:
        execution: its id.
        field: the field.
        wake: wakes it, from any thread.
        outcome: how the wait has ended, `"waiting"` until then. When it is set, the execution has its slot of
            `max_concurrency` again.
    """

    __slots__ = ("execution", "field", "outcome", "wake")

    def __init__(self, execution: str, field: str, wake: Callable[[], object]) -> None:
        self.execution = execution
        self.field = field
        self.wake = wake
        self.outcome: WaitOutcome = "waiting"


class EntrySource(Protocol):
    """The entries of one field for one execution."""

    def next_entry(self) -> LiveEntry | None:
        """The next entry; None if it has not arrived."""

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Start to wait for the next entry. `wake` is called once the outcome is set, perhaps before this returns."""

    def end_wait(self, waiter: Waiter, timed_out: bool) -> None:
        """Remove a waiter, which may have been woken.

        One that has `timed_out` is woken with its next slot instead, and reads what arrived until then.
        """


def latest_value(schema: Schema, state: ImmutableState, field: str) -> Any:
    """The frozen value of a field without a reducer; `DELETE` if it is unset or equals the field's default."""
    value, default = state.raw(field, DELETE), schema.fields[field].fixed_default
    return DELETE if default is not DELETE and same(value, default) else value


class BranchEntries:
    """The entries that a branch has when its node starts, for a run that is not live."""

    def __init__(self, entries: list[LiveEntry]) -> None:
        self._entries = deque(entries)

    def next_entry(self) -> LiveEntry | None:
        return self._entries.popleft() if self._entries else None

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """The outcome is `closed` at once: nothing else arrives."""
        waiter = Waiter("", "", wake)
        waiter.outcome = "closed"
        wake()
        return waiter

    def end_wait(self, waiter: Waiter, timed_out: bool) -> None:
        """Do nothing: it never waits."""


class Entries(Iterator[LiveEntry], AsyncIterator[LiveEntry]):
    """An iterator over the entries of a live field as they arrive. `ctx.live` makes it."""

    def __init__(self, source: EntrySource, field: str, timeout: float | None, limit: TimeLimit | None = None) -> None:
        self._source = source
        self._field = field
        self._timeout = timeout
        self._limit = limit

    def __iter__(self) -> Entries:
        return self

    def __aiter__(self) -> Entries:
        return self

    def __next__(self) -> LiveEntry:
        source = self._source
        while (entry := self._next_entry()) is None:
            if is_on_loop():
                raise AttemptError(
                    f"`for entry in ctx.live({self._field!r})` would block the event loop until another node posts: "
                    "write `async for` in an async node"
                )
            woken: SimpleQueue[str | None] = SimpleQueue()
            waiter = source.wait(partial(woken.put, "by the session"))
            try:
                with nullcontext() if self._limit is None else self._limit.signal.on_stop(woken.put):
                    if clock.get(woken, clock.after(self._timeout), "live") is None:
                        # The session may be ending the wait right now. It decides: the wait is ended in any case.
                        source.end_wait(waiter, timed_out=True)
                        clock.get(woken, None, "live")
            finally:
                source.end_wait(waiter, timed_out=False)
            if (last := self._entry_after(waiter)) is not None:
                return last
            if waiter.outcome == "closed":
                raise StopIteration
        return entry

    async def __anext__(self) -> LiveEntry:
        source = self._source
        while (entry := self._next_entry()) is None:
            signal = asyncio.Event()
            waiter = source.wait(partial(asyncio.get_running_loop().call_soon_threadsafe, signal.set))
            try:
                if waiter.outcome == "waiting":
                    with suppress(TimeoutError):
                        async with clock.timeout(clock.after(self._timeout), "live"):
                            await signal.wait()
                    if not signal.is_set():
                        source.end_wait(waiter, timed_out=True)
                        await signal.wait()
            finally:
                source.end_wait(waiter, timed_out=False)
            if (last := self._entry_after(waiter)) is not None:
                return last
            if waiter.outcome == "closed":
                raise StopAsyncIteration
        return entry

    def _next_entry(self) -> LiveEntry | None:
        if self._limit is not None and self._limit.over:
            raise AttemptOverError(f"ctx.live({self._field!r}): {OVER}")
        return self._source.next_entry()

    def _entry_after(self, waiter: Waiter) -> LiveEntry | None:
        """The entry after a wait, None if there is none; raises for an aborted attempt, and if none arrived in time."""
        if waiter.outcome == "abort" and not (self._limit is not None and self._limit.over):
            raise Interrupt(())
        entry = self._next_entry()
        if entry is None and waiter.outcome == "timeout":
            raise TimeoutError(f"nothing came to the live field {self._field!r} for {self._timeout} seconds")
        return entry
