"""`Context`: what a node's function gets as its parameter `ctx`, and the entries of live fields that it waits for."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, NoReturn, overload

import dspy
from typing_extensions import TypeVar

from dspyer import clock
from dspyer.clock import OVER, TimeLimit
from dspyer.errors import (
    AttemptError,
    AttemptOverError,
    InputError,
    Interrupt,
    NodeOutputError,
    list_names,
    suggestion,
)
from dspyer.events import Doing
from dspyer.lm.tap import current_gate
from dspyer.log.execution_records import MISSING
from dspyer.nodes.attempt import Attempt, Expires, Peer, attempt_lock
from dspyer.nodes.field_access import (
    author_problems,
    fields_of_then,
    view_problems,
)
from dspyer.nodes.steps import acall_program, call_program
from dspyer.patch import DELETE, Replace, diff_value, plain_patch
from dspyer.reducers import Updates
from dspyer.scheduler.topology import START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import thaw
from dspyer.values.scalars import is_number
from dspyer.views import (
    Delta,
    View,
    change_text,
    value_of_parts,
)
from dspyer.waiting import is_on_loop

T = TypeVar("T")

# A node that waits for the next entry of a live field has a `Waiter`, and gives up its slot of `max_concurrency`
# meanwhile: the run sets the outcome of the wait, and wakes the node when it has a slot again. When a wait ends without
# an entry is decided by `layers.live`.

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


@dataclass(slots=True, eq=False)
class Waiter:
    """An execution that waits for the next entry of a field, or of several.

    Attributes:
        execution: its id.
        fields: the fields.
        wake: wakes it, from any thread.
        outcome: how the wait has ended, `"waiting"` until then. When it is set, the execution has its slot of
            `max_concurrency` again.
        release: of a graph inside, in which all wait: lets one of them go on; None for any other node.
    """

    execution: str
    fields: tuple[str, ...]
    wake: Callable[[], object]
    outcome: WaitOutcome = "waiting"
    release: Callable[[], object] | None = None


def latest_value(schema: Schema, state: ImmutableState, field: str) -> Any:
    """The frozen value of a field without a reducer; `DELETE` if it is unset or equals the field's default."""
    # No node has posted a default: it is no entry.
    value, default = state.raw(field, DELETE), schema.fields[field].fixed_default
    return DELETE if default is not DELETE and same(value, default) else value


class EntrySource:
    """The entries of one field for one execution; this class has those of its branch when it starts, and no others.

    A run in which live fields are live has a subclass (`layers.live`, which lies above the nodes).
    """

    def __init__(self, entries: Iterable[LiveEntry] = ()) -> None:
        self._entries = deque(entries)

    def next_entry(self) -> LiveEntry | None:
        """The next entry; None if it has not arrived."""
        return self._entries.popleft() if self._entries else None

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Start to wait for the next entry. `wake` is called once the outcome is set, perhaps before this returns."""
        waiter = Waiter("", (), wake, "closed")  # nothing else arrives
        wake()
        return waiter

    def end_wait(self, waiter: Waiter, timed_out: bool) -> None:
        """Remove a waiter, which may have been woken.

        One that has `timed_out` is woken with its next slot instead, and reads what arrived until then.
        """


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
            # A queue, and not a condition: the waker may call before this thread waits, and must never block under
            # the lock of the run.
            woken: SimpleQueue[str | None] = SimpleQueue()
            waiter = source.wait(partial(woken.put, "by the session"))
            try:
                with nullcontext() if self._limit is None else self._limit.signal.on_stop(woken.put):
                    if clock.get(woken, clock.after(self._timeout), "live") is None:
                        # The session may be ending the wait right now. It decides: the wait is ended in any case.
                        source.end_wait(waiter, timed_out=True)
                        clock.get(woken, None, "live")
            # Also if the wait is broken off, by Ctrl-C for one: a waiter that stayed would be given a slot that
            # no one uses.
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
        # A sibling has failed or asked. The questions are those of the sibling, so this one has none; over an attempt
        # that has timed out, its own error counts.
        if waiter.outcome == "abort" and not (self._limit is not None and self._limit.over):
            raise Interrupt(())
        entry = self._next_entry()
        if entry is None and waiter.outcome == "timeout":
            raise TimeoutError(f"nothing came to the live field {self._field!r} for {self._timeout} seconds")
        return entry


@dataclass(frozen=True, slots=True)
class Context:
    """The place of a node in a run, and what it may do besides returning a patch. A parameter named `ctx` gets it.

    Attributes:
        run_id: id of the run.
        node: name of the node.
        branch: path of the branch, `()` for the trunk.
        visit: how often the node has run in the lineage of the branch, this time included.
        execution: id of the commit that this call will make; that of an item of a map ends with its index, `[0]`.
            Every attempt of the call has the same id, every other call another.

    Example:
        >>> from dspyer import END, START, Context, Graph
        >>> def count(ctx: Context):
        ...     return {"visits": ctx.visit}
        >>> graph = Graph().add_node("count", count, writes=["visits"])
        >>> graph.add_path(START, "count", END).compile().run({}).state["visits"]
        1
    """

    run_id: str
    node: str
    branch: tuple[int, ...] = ()
    visit: int = 1
    execution: str = ""
    delegate: Attempt = dataclasses.field(default_factory=Attempt, repr=False, compare=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"ctx of node {self.node!r} is a part of its run, which stays in this process: pass what the other process "
            "needs as values, such as ctx.execution"
        )

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1: only `retry=` makes a second one. A resume begins with 1 again.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.testing import no_pauses
            >>> def fetch(ctx):
            ...     if ctx.attempt < 3:
            ...         raise ConnectionError("no line")
            ...     return {"tries": ctx.attempt}
            >>> graph = Graph().add_node("fetch", fetch, writes=["tries"],
            ...     retry=3).add_path(START, "fetch", END)
            >>> with no_pauses():
            ...     graph.compile().run({}).state["tries"]
            3
        """
        return self.delegate.number

    @property
    def seconds_left(self) -> float | None:
        """The seconds that are left: of the attempt's `timeout=`, or of the budget of the run, whichever is less.

        None if neither is bounded. For nodes that can do less when there is little time.

        Example:
            >>> from dspyer import END, START, Graph
            >>> def search(ctx):
            ...     return {"depth": "deep" if ctx.seconds_left > 10 else "quick"}
            >>> graph = Graph().add_node("search", search, writes=["depth"],
            ...     timeout=60).add_path(START, "search", END)
            >>> graph.compile().run({}).state["depth"]
            'deep'
        """
        attempt = self.delegate
        limit, gate = attempt.limit or attempt.host.limit, current_gate()
        found = [None if limit is None else limit.left(), None if gate is None else gate.seconds_left()]
        return min((seconds for seconds in found if seconds is not None), default=None)

    def emit(self, value: object) -> None:
        """Add a value to the run's event stream at once, for progress and partial results.

        It is for who reads the stream: nothing keeps the value, `run.events` neither. If 1,000 events wait for the
        reader, this waits too; in a node that is `async def` it never waits, and the next step does.

        Args:
            value: any object; it is not committed.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("fetch", lambda ctx: ctx.emit("half done"),
            ...     writes=[])
            >>> with graph.add_path(START, "fetch", END).compile().stream({}) as events:
            ...     [event.value for event in events if type(event).__name__
            ...         == "Emitted"]
            ['half done']
        """
        attempt = self.delegate
        attempt.check_time()
        attempt.publish(value)

    @overload
    def once(self, key: str, fn: Callable[..., Awaitable[T]]) -> Awaitable[T]: ...

    @overload
    def once(self, key: str, fn: Callable[..., T]) -> T: ...

    def once(self, key: str, fn: Callable[..., Any]) -> Any:
        """Make an effect that must not be repeated: a later attempt of the node gets the recorded result.

        On a thread the result is flushed to the store before this returns. A crash between the effect and its record
        calls `fn` again; if `fn` has a parameter `key`, it gets an idempotency key, a text that is the same in every
        attempt and differs between effects, by which the other system can recognise the repeated call. An exception is
        not recorded.

        Args:
            key: the name of the effect, unique within one attempt.
            fn: a function without parameters, or with the parameter `key`, whose result can be stored. Await what this
                method returns if `fn` is async.

        Returns:
            The recorded result.

        Raises:
            AttemptError: if the key was used before in this attempt, or the result cannot be stored.
            StoreError: if the store fails.

        Example:
            The node runs twice, since its question ends the first attempt; the card is charged once.

            >>> from dspyer import END, START, Graph
            >>> def pay(ctx):
            ...     receipt = ctx.once("charge", lambda: print("charged") or "r-1")
            ...     ctx.interrupt("ship", "Ship it?")
            ...     return {"receipt": receipt}
            >>> graph = Graph().add_node("pay", pay, writes=["receipt"]).add_path(START,
            ...     "pay", END)
            >>> thread = graph.compile(store=":memory:").thread("order-7")
            >>> thread.run({}).status
            charged
            'interrupted'
            >>> thread.resume(answers={"ship": True}).state["receipt"]
            'r-1'
        """
        return self.delegate.once(key, fn)

    @overload
    def interrupt(
        self, key: str, question: str, answer: type[T], *, expires: Expires = None, default: Any = ...
    ) -> T: ...

    @overload
    def interrupt(self, key: str, question: str, *, expires: Expires = None, default: Any = ...) -> bool: ...

    @overload
    def interrupt(
        self, key: str, question: str, answer: object, *, expires: Expires = None, default: Any = ...
    ) -> Any: ...

    def interrupt(
        self, key: str, question: str, answer: Any = bool, *, expires: Expires = None, default: Any = MISSING
    ) -> Any:
        """Ask a question outside the program. The first attempt ends here; an attempt that has the answer gets it.

        The node runs again from its first line when the answer is given: effects before the question belong into
        `once`.

        Args:
            key: the name of the question, unique within one attempt.
            question: the text to show.
            answer: the type of the answer, any that pydantic validates; None for a question that only waits for a
                resume.
            expires: when the question expires: seconds from when it is first asked, or a `datetime` with a time zone;
                None for never. The first resume after it calls the node again.
            default: the answer then.

        Returns:
            The answer. A falsy one is an answer too.

        Raises:
            AttemptError: if an earlier attempt asked another question under this key, or asked one that got answered
                and that this attempt has left out; or if `expires` or `default` cannot be.
            QuestionExpired: if the question has expired without an answer, and has no default.
            InputError: if the answer is not of this type.

        Example:
            >>> from dspyer import END, START, Graph
            >>> def send(draft, ctx):
            ...     return {"sent": ctx.interrupt("approve", f"Send {draft!r}?", bool)}
            >>> graph = Graph().add_node("send", send, writes=["sent"]).add_path(START,
            ...     "send", END)
            >>> thread = graph.compile(store=":memory:").thread("mail-1")
            >>> thread.run({"draft": "Dear Ada"}).questions[0].text
            "Send 'Dear Ada'?"
            >>> thread.resume(answers={"approve": True}).state["sent"]
            True
        """
        return self.delegate.interrupt(key, question, answer, None, expires, default)

    def call(self, program: dspy.Module, inputs: Mapping[str, Any], *, key: str | None = None) -> dspy.Prediction:
        """Call a program as a part of this run. It is bound to the node with `add_node(modules=)`.

        On a thread, its commits are stored: a later attempt of the node, after a crash, a question or an error, calls
        the same program again, and only those of its nodes run that had not finished. Its questions are questions of
        this run, its events are events of this run, and its steps are in the trace. Several threads may call programs
        at once. In an async node, use `await ctx.acall(...)`.

        A program that a function calls directly, `program(...)`, is a run of its own instead: it begins anew in each
        attempt, and cannot ask questions.

        Args:
            program: a program that is bound to the node, taken as a parameter.
            inputs: its inputs by name. Each attempt must give the same ones: compute with `once` what may differ.
            key: the name of the call, unique within one attempt; by default the name under which the program is bound.

        Returns:
            The outputs of the program, as `program(...)` returns them.

        Raises:
            AttemptError: if the key was used before in this attempt, the program is not bound to the node, or an
                earlier attempt gave other inputs under this key.
            InputError: for missing, unknown or invalid inputs.
            Exception: what a node of the program raised, unwrapped.

        Example:
            The question ends the run. Once it is answered, both nodes run again, but `look_up` has its result already.

            >>> from dspyer import END, START, Graph
            >>> def look_up(topic):
            ...     print("looked up")
            ...     return {"found": f"{topic}: 6:12"}
            >>> inner = Graph(inputs=["topic"]).add_node("look_up", look_up,
            ...     writes=["found"])
            >>> inner = inner.add_interrupt("use", question="Use {found}?", answer=bool,
            ...     into="used")
            >>> inner = inner.add_path(START, "look_up", "use", END)
            >>> def plan(topic, research, ctx):
            ...     result = ctx.call(research, {"topic": topic})
            ...     return {"plan": result.found if result.used else "none"}
            >>> graph = Graph(name="Plan").add_node("plan", plan,
            ...     modules={"research": inner}, writes=["plan"])
            >>> thread = graph.add_path(START, "plan", END).compile(
            ...     store=":memory:").thread("t-1")
            >>> thread.run({"topic": "high water"}).questions[0].text
            looked up
            'Use high water: 6:12?'
            >>> thread.resume({"use": True}).state["plan"]
            'high water: 6:12'
        """
        return call_program(self.delegate, program, inputs, key)

    async def acall(
        self, program: dspy.Module, inputs: Mapping[str, Any], *, key: str | None = None
    ) -> dspy.Prediction:
        """Call a program as a part of this run from an async node. Otherwise like `call`.

        Several calls may run at once, each with a key of its own. If one asks a question, the others run on, also in an
        `asyncio.TaskGroup`, and all questions come together. All calls must have begun when the function ends; it waits
        for them.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> shout = Graph(inputs=["text"]).add_node("shout",
            ...     lambda text: {"loud": text.upper()}, writes=["loud"])
            >>> async def both(texts, shout, ctx):
            ...     calls = [ctx.acall(shout, {"text": text}, key=f"text-{i}")
            ...         for i, text in enumerate(texts)]
            ...     return {"loud": [found.loud for found in await asyncio.gather(
            ...         *calls)]}
            >>> graph = Graph(name="Both").add_node("both", both,
            ...     modules={"shout": shout.add_path(START, "shout", END)},
            ...     writes=["loud"])
            >>> graph.add_path(START, "both", END).compile()(texts=["hey", "you"]).loud
            ['HEY', 'YOU']
        """
        return await acall_program(self.delegate, program, inputs, key)

    def post(self, field: str, value: object) -> None:
        """Add an update to the node's commit, before what the node returns. Dropped if the node fails.

        A post to a live field is visible to running siblings at once, and stays. May be called from any thread of the
        node. An item of a map may post to live fields alone.

        Args:
            field: a field with a reducer, or a live one, among what the node writes, by its name in the state.
            value: one update, as the node would return it.

        Raises:
            NodeOutputError: if the node may not write the field, or it has no reducer, or the node has returned.

        Example:
            >>> from typing import Annotated
            >>> from pydantic import create_model
            >>> from dspyer import END, START, Graph, reducers
            >>> Log = create_model("Log", lines=(Annotated[list[str], reducers.append],
            ...     []))
            >>> def work(ctx):
            ...     ctx.post("lines", "started")
            ...     return {"lines": "done"}
            >>> graph = Graph(Log).add_node("work", work, writes=["lines"]).add_path(
            ...     START, "work", END)
            >>> graph.compile().run({}).state.to_dict()["lines"]
            ['started', 'done']
        """
        attempt = self.delegate
        attempt.check_time()
        # After the return its commit is made: a later post would be in no commit.
        attempt.check_running(f"posts to {field!r}")
        self._check_permitted("writes", field, f"posts to {field!r}, which", NodeOutputError)
        schema = attempt.host.views.schema
        if field not in schema:
            hint = suggestion(field, schema.fields)
            raise NodeOutputError(f"{attempt.who} posts to {field!r}, which is no field of the schema.{hint}")
        if schema.reducer(field) is None and field not in schema.live_fields and attempt.position is not None:
            raise NodeOutputError(
                f"{attempt.who} posts to {field!r}, which has no reducer to fold the post: give the field one, for "
                f"example Annotated[list[str], reducers.append], or return {{{field!r}: ...}}"
            )
        # `Replace`, `Updates` and `DELETE` are told apart by their class, which a copy would lose; they are frozen
        # already.
        if value is not DELETE and not isinstance(value, (Replace, Updates)):
            value = thaw(freeze(value, (field,)))  # a copy: the node may change its object after the post
        live = attempt.host.together.posts
        if live is not None and live.post(attempt, field, value):
            return
        if attempt.index is not None:
            raise NodeOutputError(
                f"{attempt.who} posts to {field!r} from an item of a map, which can post to live fields alone, and not "
                "in a run with live=False: return it in the item's result"
            )
        # Threads of one node may post at once.
        with attempt_lock:
            if attempt.posts is None:
                attempt.posts = []
            attempt.posts.append((field, value))
        attempt.host.posted(attempt, field, value)

    def view(self, view: View) -> Any:
        """The entries that a view shows, as `reads` would give them to a parameter `list[Entry]`.

        Args:
            view: the view; its field must be among what the node reads.

        Returns:
            The entries; for a view that ends with `.then(fn)`, the result of that function.

        Raises:
            InputError: if the node does not read the field, or the field's type does not support the view.

        Example:
            >>> from typing import Annotated
            >>> from pydantic import create_model
            >>> from dspyer import END, START, Graph, reducers, view
            >>> Log = create_model("Log", lines=(Annotated[list[str], reducers.append],
            ...     []), last=(str, ""))
            >>> def read(ctx):
            ...     (entry,) = ctx.view(view("lines").last(1))
            ...     return {"last": f"{entry.author}: {entry.value}"}
            >>> graph = Graph(Log).add_node("write",
            ...     lambda state: {"lines": "mail at 6"}, writes=["lines"])
            >>> graph = graph.add_node("read", read, reads=["lines"], writes=["last"])
            >>> graph.add_path(START, "write", "read", END).compile().run({}).state[
            ...     "last"]
            'write: mail at 6'
        """
        attempt = self.delegate
        attempt.check_running("looks at a view")
        views = attempt.host.views
        schema = views.schema
        for field in (view.field, *fields_of_then(view, schema)):
            self._check_permitted("reads", field, f"looks at {view!r}, and {field!r}", InputError)
        problems = view_problems(view, "ctx.view", schema, attempt.who)
        problems += author_problems(view, "ctx.view", (START, *views.nodes), attempt.who)
        if view.field not in schema:
            hint = suggestion(view.field, schema.fields)
            problems.append(f"{attempt.who} looks at {view!r}: that is no field of the state.{hint}")
        if problems:
            raise InputError(problems[0])
        return attempt.read_view(view, "entries")

    def delta(self) -> Delta:
        """Changes since the node last ran, of the fields that it reads; on its first visit all that is set.

        For a field with a reducer these are the new entries. For any other it is the net change: a value that was
        changed and changed back is not in it.

        Returns:
            The changes by field of the state: `.patch` as values, `.text` for a prompt.

        Raises:
            NodeOutputError: if the node has returned.

        Example:
            >>> from dspyer import END, START, Graph
            >>> def watch(n, ctx):
            ...     print(ctx.delta().patch)
            >>> graph = Graph().add_node("watch", watch, writes=[])
            >>> graph = graph.add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "watch", "add")
            >>> graph = graph.add_conditional_edges("add", lambda n: "watch" if n < 2
            ...     else END, ["watch", END])
            >>> graph.compile().run({"n": 0}).status
            {'n': 0}
            {'n': 1}
            'completed'
        """
        attempt = self.delegate
        attempt.check_running("asks for a delta")
        views, position = attempt.host.views, attempt.position
        if position is None:
            return Delta({}, "")
        patch: dict[str, Any] = {}
        lines: list[str] = []
        # A change of a field that the node may not read would tell it what is there.
        allowed = views.permitted_fields(attempt.node, "reads")
        for field, before, after, parts in views.changed(position, attempt.node, allowed):
            if parts is None:
                patch |= plain_patch({field: DELETE if after is DELETE else diff_value(before, after)})
            else:
                patch[field] = value_of_parts(*parts)
            lines.append(change_text(field, after, parts))
        return Delta(patch, "\n".join(lines))

    def live(self, field: str, *, timeout: float | None = None) -> Entries:
        """The entries of a live field as they arrive, for `for` in sync nodes and `async for` in async ones.

        A node gets each entry once: on its first visit from the beginning of the field, later from the position that
        its last visit in its lineage had reached. It does not get its own posts.

        The loop ends when no one else works: all other nodes that run wait too. Of these the first in path order goes
        on whose field no other one that waits can write, nor a node after it up to the next join. If a sibling has
        failed or asked a question, or the run was stopped, this attempt ends instead: it commits nothing, and a resume
        calls the node again. Its `finally` and `with` blocks run then, and `except Exception` does not catch that.
        While it waits it occupies no slot of `max_concurrency`.

        Args:
            field: a live field among what the node reads.
            timeout: seconds to wait for an entry, without the time in which the node waits for a slot.

        Returns:
            An iterator of `LiveEntry`.

        Raises:
            AttemptError: in an item of a map.
            InputError: if the field is not live, or the node does not read it.
            TimeoutError: in the loop, if no entry arrived in time.

        Example:
            >>> from typing import Annotated
            >>> from pydantic import create_model
            >>> from dspyer import END, START, Graph, live, reducers
            >>> Pad = create_model("Pad", notes=(Annotated[list[str], reducers.append,
            ...     live], []))
            >>> def writes(ctx):
            ...     ctx.post("notes", "mail at 6")
            >>> def reads(ctx):
            ...     for note in ctx.live("notes"):
            ...         print(note.author, note.value)
            >>> graph = Graph(Pad).add_node("writes", writes, writes=["notes"])
            >>> graph = graph.add_node("reads", reads, reads=["notes"], writes=[])
            >>> graph = graph.add_edge(START, ["writes", "reads"]).add_edge(
            ...     ["writes", "reads"], END)
            >>> graph.compile().run({}).status
            writes mail at 6
            'completed'
        """
        attempt = self.delegate
        attempt.check_time()
        if attempt.index is not None:
            raise AttemptError(f"{attempt.who}: an item of a map cannot wait for the live field {field!r}")
        self._check_permitted("reads", field, f"listens to {field!r}, which", InputError)
        if timeout is not None and not (is_number(timeout) and timeout >= 0):
            raise InputError(f"{attempt.who}: ctx.live({field!r}, timeout={timeout!r}): give seconds from 0, or None")
        # Without live fields in the graph, or with `live=False`, nothing depends on timing: the node gets what its
        # branch has.
        live = attempt.host.together.posts
        source = self._entries_before(field) if live is None else live.entries(attempt, field)
        return Entries(source, field, timeout, attempt.limit or attempt.host.limit)

    def doing(self, text: str) -> None:
        """Report what the node is doing: an event, and shown to siblings by `peers`.

        Args:
            text: a few words.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("count", lambda ctx: ctx.doing("counting"),
            ...     writes=[])
            >>> run = graph.add_path(START, "count", END).compile().run({})
            >>> [event.text for event in run.events if type(event).__name__ == "Doing"]
            ['counting']
        """
        attempt = self.delegate
        attempt.check_time()
        attempt.host.publish(Doing(attempt.node, attempt.branch, attempt.execution, text))
        attempt.host.together.doing[attempt.outer_execution] = text

    def peers(self) -> list[Peer]:
        """The other nodes of the graph that run at the moment, in branch order, with what they are doing.

        Returns:
            A `Peer` for each; none in a run with `live=False`, where nothing depends on timing.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("alone", lambda ctx: {
            ...     "peers": len(ctx.peers())}, writes=["peers"])
            >>> graph.add_path(START, "alone", END).compile().run({}).state["peers"]
            0
        """
        return self.delegate.host.peers(self.delegate)

    def _entries_before(self, field: str) -> EntrySource:
        """The entries that the branch has when the node starts."""
        attempt = self.delegate
        schema, position = attempt.host.views.schema, attempt.position
        if position is not None and field in schema.fields and schema.reducer(field) is None:
            value = latest_value(schema, position.state, field)
            return EntrySource([] if value is DELETE else [LiveEntry(thaw(value), "", "", 0)])
        found = attempt.read_view(View(field), "entries")
        return EntrySource([LiveEntry(entry.value, entry.author, entry.commit, 0, entry.key) for entry in found])

    def _check_permitted(
        self, option: Literal["reads", "writes"], field: str, what: str, error: type[Exception]
    ) -> None:
        """Refuse a field that the node may not read or write."""
        attempt = self.delegate
        allowed = attempt.host.views.permitted_fields(attempt.node, option)
        if allowed is not None and field not in allowed:
            raise error(f"{attempt.who} {what} is not among its {option} ({list_names(sorted(allowed))}): add it there")
