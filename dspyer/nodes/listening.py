"""What a node hears of its siblings while both run: entries of live fields, who they are, what they are doing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from threading import Event as Signal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from dspyer.errors import AttemptError, InputError, Interrupt
from dspyer.events import Doing, Path
from dspyer.nodes.names import listed
from dspyer.nodes.sight import look
from dspyer.views import View

if TYPE_CHECKING:
    from dspyer.nodes.attempt import Attempt

Verdict = Literal["waits", "goes on", "closed", "gives way"]


class LiveEntry(NamedTuple):
    """What came to a live field: one item, the value of one key, or an amount.

    Attributes:
        value: a plain copy of it.
        author: the node that posted it; `"START"` for what was there when the run began.
        commit: the id of the commit that it belongs to.
        seq: the number of its arrival, one order for all live fields of the run; 0 for what was there.
        key: the key, for a field that is a mapping.
        withdraws: the number of the entry that this one takes back, since the attempt that had posted it committed
            nothing; None for an entry that stands.
    """

    value: Any
    author: str
    commit: str
    seq: int
    key: Any = None
    withdraws: int | None = None


class Peer(NamedTuple):
    """A node that runs at the moment.

    Attributes:
        node: its name.
        branch: the path of its branch.
        visit: how often it has run in the lineage of the branch, this time included.
        doing: what it said last, with `ctx.doing`.
        waits_for: the live field that it waits for; "" if it works.
    """

    node: str
    branch: Path
    visit: int
    doing: str = ""
    waits_for: str = ""


class Waiter:
    """Somebody who waits for the next entry.

    Args:
        execution: who.
        field: of which field.
        wake: wakes it, from any thread.

    Attributes:
        verdict: what became of it.
    """

    __slots__ = ("execution", "field", "verdict", "wake")

    def __init__(self, execution: str, field: str, wake: Callable[[], object]) -> None:
        self.execution = execution
        self.field = field
        self.wake = wake
        self.verdict: Verdict = "waits"


class Source(Protocol):
    """Where the entries of one field come from, for one execution."""

    def heard(self) -> LiveEntry | None:
        """The next entry, if it is there."""

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Waits for the next entry. `wake` is called once the verdict has fallen, perhaps before this returns."""

    def leave(self, waiter: Waiter) -> None:
        """Waits no longer."""


class Past:
    """The entries that a branch has, where nobody else is heard.

    Args:
        entries: the entries.
    """

    def __init__(self, entries: list[LiveEntry]) -> None:
        self._entries = deque(entries)

    def heard(self) -> LiveEntry | None:
        """The next entry."""
        return self._entries.popleft() if self._entries else None

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Nothing more comes."""
        waiter = Waiter("", "", wake)
        waiter.verdict = "closed"
        wake()
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """There is nothing to leave."""


class Entries(Iterator[LiveEntry], AsyncIterator[LiveEntry]):
    """The entries of a live field as they come, for `for` and `async for`. Made by `ctx.live`."""

    def __init__(self, source: Source, field: str, timeout: float | None) -> None:
        self._source = source
        self._field = field
        self._timeout = timeout

    def __iter__(self) -> Entries:
        return self

    def __aiter__(self) -> Entries:
        return self

    def __next__(self) -> LiveEntry:
        source = self._source
        while (entry := source.heard()) is None:
            if _on_loop():
                raise AttemptError(
                    f"`for entry in ctx.live({self._field!r})` would stop the event loop until somebody posts: write "
                    "`async for` in an async node"
                )
            signal = Signal()
            waiter = source.wait(signal.set)
            try:
                if not signal.wait(self._timeout) and waiter.verdict == "waits":
                    raise self._late()
            finally:
                source.leave(waiter)
            if (last := self._after(waiter)) is not None:
                return last
            if waiter.verdict == "closed":
                raise StopIteration
        return entry

    async def __anext__(self) -> LiveEntry:
        source = self._source
        while (entry := source.heard()) is None:
            woken = asyncio.Event()
            waiter = source.wait(partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set))
            try:
                if waiter.verdict == "waits":
                    await asyncio.wait_for(woken.wait(), self._timeout)
            except TimeoutError:
                if waiter.verdict == "waits":
                    raise self._late() from None
            finally:
                source.leave(waiter)
            if (last := self._after(waiter)) is not None:
                return last
            if waiter.verdict == "closed":
                raise StopAsyncIteration
        return entry

    def _after(self, waiter: Waiter) -> LiveEntry | None:
        """What came while the field was closed; raises for a node that gives way."""
        if waiter.verdict == "gives way":
            raise Interrupt(())
        return self._source.heard()

    def _late(self) -> TimeoutError:
        return TimeoutError(f"nothing came to the live field {self._field!r} for {self._timeout} seconds")


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Hearing(Protocol):
    """What a run offers to nodes that run beside others."""

    def posted(self, attempt: Attempt, field: str, value: object) -> bool:
        """Posts to a live field, if it is one and the run is live; says whether it did."""

    def source(self, attempt: Attempt, field: str) -> Source:
        """Where the entries of a field come from."""

    def says(self, attempt: Attempt, text: str) -> None:
        """Notes what a node is doing."""

    def peers(self, attempt: Attempt) -> list[Peer]:
        """The other nodes that run now."""


class Isolated:
    """A run in which nobody hears anybody: posts are part of the commit, and a node hears what its branch has."""

    __slots__ = ()

    def posted(self, attempt: Attempt, field: str, value: object) -> bool:
        """Posts to a live field, if it is one and the run is live.

        Returns:
            Whether it did.
        """
        del attempt, field, value
        return False

    def source(self, attempt: Attempt, field: str) -> Source:
        """Where the entries of a field come from."""
        found = look(attempt, View(field), "entries")
        return Past([LiveEntry(entry.value, entry.author, entry.commit, 0, entry.key) for entry in found])

    def says(self, attempt: Attempt, text: str) -> None:
        """Notes what a node is doing."""

    def peers(self, attempt: Attempt) -> list[Peer]:
        """The other nodes that run now."""
        del attempt
        return []


class Company:
    """What `ctx` offers to nodes that run beside others."""

    __slots__ = ()
    attempt: Attempt

    def live(self, field: str, *, timeout: float | None = None) -> Entries:
        """The entries of a live field as they come, for `for` in sync nodes and `async for` in async ones.

        A node hears each entry once: on its first visit from the beginning of the field, later from where its last
        visit in its lineage had come to; not what it has posted itself. The loop ends when the field is *closed*:
        nobody who may write it runs, can still start, or waits on an open field; of nodes that wait for each other,
        the first in path order goes on. If a writer fails or asks, the node gives way and commits nothing; when the run
        is resumed, it runs again. While it waits it holds no slot of `max_concurrency`.

        Args:
            field: a live field among what the node reads.
            timeout: seconds to wait for an entry.

        Returns:
            An iterator of `LiveEntry`.

        Raises:
            InputError: if the field is not live, or none of what the node reads.
            TimeoutError: in the loop, if nothing came for so long.
        """
        attempt = self.attempt
        if attempt.inside:
            raise AttemptError(f"{attempt.who}: an item of a map cannot wait for the live field {field!r}")
        allowed = attempt.host.sight.permits(attempt.node, "reads")
        if allowed is not None and field not in allowed:
            raise InputError(
                f"{attempt.who} listens to {field!r}, which is not among its reads ({listed(sorted(allowed))}): add it "
                "there"
            )
        return Entries(attempt.host.source(attempt, field), field, timeout)

    def doing(self, text: str) -> None:
        """Says what the node is doing: an event, and shown to siblings by `peers`.

        Args:
            text: a few words.
        """
        attempt = self.attempt
        attempt.host.record(Doing(attempt.node, attempt.branch, attempt.execution, text))
        attempt.host.says(attempt, text)

    def peers(self) -> list[Peer]:
        """The other nodes that run at the moment, in branch order, with what they are doing."""
        return self.attempt.host.peers(self.attempt)
