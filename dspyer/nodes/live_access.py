"""What a node hears of its siblings while both run: entries of live fields, who they are, what they are doing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import Event as Signal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from dspyer.errors import AttemptError, InputError, Interrupt
from dspyer.events import BranchPath, Doing
from dspyer.nodes.field_names import listed
from dspyer.nodes.view_access import read_view
from dspyer.patch import DELETE
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import same
from dspyer.values.frozen import thaw
from dspyer.views import View

if TYPE_CHECKING:
    from dspyer.nodes.context import Attempt

WaitOutcome = Literal["waiting", "entry", "closed", "timeout", "abort"]


class LiveEntry(NamedTuple):
    """What came to a live field: one item, the value of one key, or an amount.

    Attributes:
        value: a plain copy of it.
        author: the node that posted it; `"START"` for what was there when the run began.
        commit: the id of the commit that it belongs to.
        seq: the number of its arrival, one order for all live fields of the run; 0 for what was there.
        key: the key, for a field that is a mapping.
    """

    value: Any
    author: str
    commit: str
    seq: int
    key: Any = None

    @property
    def withdraws(self) -> None:
        """None: a post that was withdrawn is not heard, and what has heard it commits nothing."""
        return None


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
    branch: BranchPath
    visit: int
    doing: str = ""
    waits_for: str = ""


class Waiter:
    """An execution that waits for the next entry of a field.

    Args:
        execution: its id.
        field: the field.
        wake: wakes it, from any thread.

    Attributes:
        outcome: how the waiting has ended; it is given together with a slot of `max_concurrency`.
    """

    __slots__ = ("execution", "field", "outcome", "wake")

    def __init__(self, execution: str, field: str, wake: Callable[[], object]) -> None:
        self.execution = execution
        self.field = field
        self.wake = wake
        self.outcome: WaitOutcome = "waiting"


class EntrySource(Protocol):
    """Where the entries of one field come from, for one execution."""

    def next_entry(self) -> LiveEntry | None:
        """The next entry, if it is there."""

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Waits for the next entry. `wake` is called once the outcome has fallen, perhaps before this returns."""

    def time_out(self, waiter: Waiter) -> None:
        """Its time is over: it is woken as soon as it may go on, with what has come until then."""

    def stop_waiting(self, waiter: Waiter) -> None:
        """Waits no longer."""


def latest_value(schema: Schema, state: ImmutableState, field: str) -> Any:
    """The frozen value of a field without a reducer; `DELETE` for none, and for its default, which was not written."""
    value, default = state.raw(field, DELETE), schema.fields[field].fixed_default
    return DELETE if default is not DELETE and same(value, default) else value


class BranchEntries:
    """The entries that a branch has, where nobody else is heard.

    Args:
        entries: the entries.
    """

    def __init__(self, entries: list[LiveEntry]) -> None:
        self._entries = deque(entries)

    def next_entry(self) -> LiveEntry | None:
        """The next entry."""
        return self._entries.popleft() if self._entries else None

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Nothing more comes."""
        waiter = Waiter("", "", wake)
        waiter.outcome = "closed"
        wake()
        return waiter

    def time_out(self, waiter: Waiter) -> None:
        """It has not waited."""

    def stop_waiting(self, waiter: Waiter) -> None:
        """There is nothing to leave."""


class Entries(Iterator[LiveEntry], AsyncIterator[LiveEntry]):
    """The entries of a live field as they come, for `for` and `async for`. Made by `ctx.live`."""

    def __init__(self, source: EntrySource, field: str, timeout: float | None) -> None:
        self._source = source
        self._field = field
        self._timeout = timeout

    def __iter__(self) -> Entries:
        return self

    def __aiter__(self) -> Entries:
        return self

    def __next__(self) -> LiveEntry:
        source = self._source
        while (entry := source.next_entry()) is None:
            if _on_loop():
                raise AttemptError(
                    f"`for entry in ctx.live({self._field!r})` would stop the event loop until somebody posts: write "
                    "`async for` in an async node"
                )
            signal = Signal()
            waiter = source.wait(signal.set)
            try:
                if not signal.wait(self._timeout):
                    source.time_out(waiter)
                    signal.wait()
            finally:
                source.stop_waiting(waiter)
            if (last := self._after(waiter)) is not None:
                return last
            if waiter.outcome == "closed":
                raise StopIteration
        return entry

    async def __anext__(self) -> LiveEntry:
        source = self._source
        while (entry := source.next_entry()) is None:
            woken = asyncio.Event()
            waiter = source.wait(partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set))
            try:
                if waiter.outcome == "waiting":
                    with suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), self._timeout)
                    if not woken.is_set():
                        source.time_out(waiter)
                        await woken.wait()
            finally:
                source.stop_waiting(waiter)
            if (last := self._after(waiter)) is not None:
                return last
            if waiter.outcome == "closed":
                raise StopAsyncIteration
        return entry

    def _after(self, waiter: Waiter) -> LiveEntry | None:
        """What has come when the waiting is over; raises for a node that gives way, or if nothing came in time."""
        if waiter.outcome == "abort":
            raise Interrupt(())
        entry = self._source.next_entry()
        if entry is None and waiter.outcome == "timeout":
            raise TimeoutError(f"nothing came to the live field {self._field!r} for {self._timeout} seconds")
        return entry


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class LiveHost(Protocol):
    """What a run offers to nodes that run beside others."""

    def post_live(self, attempt: Attempt, field: str, value: object) -> bool:
        """Posts to a live field, if it is one and the run is live; says whether it did."""

    def live_entries(self, attempt: Attempt, field: str) -> EntrySource:
        """Where the entries of a field come from."""

    def set_doing(self, attempt: Attempt, text: str) -> None:
        """Notes what a node is doing."""

    def peers(self, attempt: Attempt) -> list[Peer]:
        """The other nodes that run now."""


class NotLive:
    """A run in which nobody hears anybody: posts are part of the commit, and a node hears what its branch has."""

    __slots__ = ()

    def post_live(self, attempt: Attempt, field: str, value: object) -> bool:
        """Posts to a live field, if it is one and the run is live.

        Returns:
            Whether it did.
        """
        del attempt, field, value
        return False

    def live_entries(self, attempt: Attempt, field: str) -> EntrySource:
        """Where the entries of a field come from."""
        views, position = attempt.host.views, attempt.position
        if position is not None and field in views.schema.fields and views.schema.reducer(field) is None:
            value = latest_value(views.schema, position.state, field)
            return BranchEntries([] if value is DELETE else [LiveEntry(thaw(value), "", "", 0)])
        found = read_view(attempt, View(field), "entries")
        return BranchEntries([LiveEntry(entry.value, entry.author, entry.commit, 0, entry.key) for entry in found])

    def set_doing(self, attempt: Attempt, text: str) -> None:
        """Notes what a node is doing."""

    def peers(self, attempt: Attempt) -> list[Peer]:
        """The other nodes that run now."""
        del attempt
        return []


class LiveContext:
    """What `ctx` offers to nodes that run beside others."""

    __slots__ = ()
    attempt: Attempt

    def live(self, field: str, *, timeout: float | None = None) -> Entries:
        """The entries of a live field as they come, for `for` in sync nodes and `async for` in async ones.

        A node hears each entry once: on its first visit from the beginning of the field, later from where its last
        visit in its lineage had come to; not what it has posted itself, nor what was withdrawn. The loop ends when the
        field is *closed*: no other branch may still write it before this node ends. Of nodes that wait for each other,
        the first in path order goes on. If a writer fails or asks, the node gives way and commits nothing; when the
        run is resumed, it runs again. So it does if it has heard an entry of a node that fails or asks later: it
        commits after all whose entries it has heard. While it waits it holds no slot of `max_concurrency`.

        Args:
            field: a live field among what the node reads.
            timeout: seconds to wait for an entry; not those in which it waits for a slot with one.

        Returns:
            An iterator of `LiveEntry`.

        Raises:
            InputError: if the field is not live, or none of what the node reads.
            TimeoutError: in the loop, if nothing came for so long.

        Example:
            >>> from typing import Annotated
            >>> from pydantic import create_model
            >>> from dspyer import END, START, Graph, live, reducers
            >>> Pad = create_model("Pad", notes=(Annotated[list[str], reducers.append, live], []))
            >>> def writes(ctx):
            ...     ctx.post("notes", "tide at 6")
            >>> def reads(ctx):
            ...     for note in ctx.live("notes"):
            ...         print(note.author, note.value)
            >>> graph = Graph(Pad).add_node("writes", writes, writes=["notes"])
            >>> graph = graph.add_node("reads", reads, reads=["notes"], writes=[])
            >>> graph = graph.add_edge(START, ["writes", "reads"]).add_edge(["writes", "reads"], END)
            >>> graph.compile().run({}).status
            writes tide at 6
            'completed'
        """
        attempt = self.attempt
        if attempt.inside:
            raise AttemptError(f"{attempt.who}: an item of a map cannot wait for the live field {field!r}")
        allowed = attempt.host.views.permitted_fields(attempt.node, "reads")
        if allowed is not None and field not in allowed:
            raise InputError(
                f"{attempt.who} listens to {field!r}, which is not among its reads ({listed(sorted(allowed))}): add it "
                "there"
            )
        return Entries(attempt.host.live_entries(attempt, field), field, timeout)

    def doing(self, text: str) -> None:
        """Says what the node is doing: an event, and shown to siblings by `peers`.

        Args:
            text: a few words.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("count", lambda ctx: ctx.doing("counting"), writes=[])
            >>> run = graph.add_path(START, "count", END).compile().run({})
            >>> [event.text for event in run.events if type(event).__name__ == "Doing"]
            ['counting']
        """
        attempt = self.attempt
        attempt.host.publish(Doing(attempt.node, attempt.branch, attempt.execution, text))
        attempt.host.set_doing(attempt, text)

    def peers(self) -> list[Peer]:
        """The other nodes of the graph that run at the moment, in branch order, with what they are doing.

        Returns:
            A `Peer` for each; none in a run with `live=False`, where nothing depends on timing.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("alone", lambda ctx: {"peers": len(ctx.peers())}, writes=["peers"])
            >>> graph.add_path(START, "alone", END).compile().run({}).state["peers"]
            0
        """
        return self.attempt.host.peers(self.attempt)
