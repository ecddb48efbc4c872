"""One attempt of a node's execution: what `ctx` does. Effects, questions, views, posts, live fields, items of a map.

An *execution* is one call of a node in one branch: its commit has the execution's id. Each call of the node within it
is an *attempt*. Within a process only a retry policy makes a second one; after a crash or a question a resume makes
another. What must survive an attempt (results of effects, answers, results of map items) is kept in the
`ExecutionRecords` of the run, under the execution's `local_id`; if the run is stored, the journal has written it
before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from contextvars import Context as ContextVars
from dataclasses import dataclass
from dataclasses import field as made
from functools import partial
from hashlib import blake2b
from queue import SimpleQueue
from threading import Lock, RLock
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import dspy

from dspyer import clock
from dspyer.clock import OVER, TimeLimit
from dspyer.errors import (
    AnswerError,
    AttemptError,
    AttemptOverError,
    InputError,
    Interrupt,
    NodeOutputError,
    StateError,
    brief,
    list_names,
    suggestion,
)
from dspyer.events import BranchPath, Doing, Emitted, Event, Question, own_copy
from dspyer.failure import Failure
from dspyer.hints import signature_of
from dspyer.ids import part_id, whole_execution
from dspyer.lm.tap import current_gate
from dspyer.lm.tracing import Steps
from dspyer.log.execution_records import MISSING, AnswerSource, ExecutionRecords, RecordKey, no_answer
from dspyer.log.rows import DraftRow, EffectRow, ItemRow
from dspyer.nodes.answer_types import schema_of, validated
from dspyer.nodes.field_access import (
    ViewSource,
    author_problems,
    chosen_plainly,
    fields_of_then,
    kind_of_parts,
    view_problems,
)
from dspyer.nodes.steps import OpenCalls, not_cancelled
from dspyer.nodes.sync_async import is_async
from dspyer.patch import DELETE, Replace, diff_value, plain_patch
from dspyer.reducers import Updates
from dspyer.scheduler.schedule import Branch
from dspyer.scheduler.topology import START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, thaw
from dspyer.values.scalars import is_number
from dspyer.views import (
    CUTS,
    Delta,
    View,
    ViewForm,
    ViewRead,
    change_text,
    render,
    select_parts,
    sum_of_amounts,
    text_of,
    value_of_parts,
)
from dspyer.waiting import cancellation_count, is_on_loop

# Live fields as a node sees them: entries that arrive while it runs, and the wait for the next one.
#
# A node waits with a `Waiter` and gives up its slot of `max_concurrency` meanwhile: the run sets the outcome of the
# wait,
# and wakes the node when it has a slot again. When a wait ends without an entry is decided by `layers.live`.


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


def latest_value(schema: Schema, state: ImmutableState, field: str) -> Any:
    """The frozen value of a field without a reducer; `DELETE` if it is unset or equals the field's default."""
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
        waiter = Waiter("", "", wake)
        waiter.outcome = "closed"  # nothing else arrives
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


RESERVED_KEYS = ("before", "after")
"""Keys of the questions of `Breakpoints(before=, after=)`."""

_lock = Lock()  # guards `Attempt.posts` and effects in progress: threads of one node may use its `ctx` at once


class AttemptHost:
    """The run that an attempt belongs to. This class is that of a node which is called without a run, by a test.

    Attributes:
        records: the records of its executions.
        answer: answers questions as they are asked.
        program: the program that runs, whose attributes are the modules of its nodes; None for none.
        resources: the run's resources by type.
        together: what its executions know of each other.
    """

    def __init__(
        self,
        answer: AnswerSource = no_answer,
        program: dspy.Module | None = None,
        resources: Mapping[type, object] = MappingProxyType({}),
        views: ViewSource | None = None,
    ) -> None:
        self.records = ExecutionRecords()
        self.answer = answer
        self.program = program
        self.resources = resources
        self.together = Together(False)
        self._views = views or ViewSource()

    @property
    def root(self) -> str:
        """The id of the outermost run, the same after each resume."""
        return "alone"

    @property
    def label(self) -> str:
        """The name of the outermost run, in front of the ids of its questions; "" for a run that is not stored."""
        return ""

    @property
    def limit(self) -> TimeLimit | None:
        """The time that the node has in which the run is, and so all attempts of the run; None for no limit."""
        return None

    @property
    def views(self) -> ViewSource:
        """The fields as views show them, and the permissions of the nodes."""
        return self._views

    @property
    def first_trial_error(self) -> Exception | None:
        """What the first trial has raised, the cause if all trials fail; None if an earlier process made it."""
        return None

    def publish(self, event: Event) -> None:
        """Adds an event to the stream."""

    def peers(self, attempt: Attempt) -> list[Peer]:
        """The other nodes that run now."""
        del attempt
        return []

    def attempt_failed(self, attempt: Attempt, number: int, error: Exception, pause: float) -> None:
        """Records that attempt `number` raised, and that another one follows after `pause` seconds."""

    def lose_steps(self, attempt: Attempt, number: int, steps: Steps) -> None:
        """Keeps the DSPy trace of attempt `number`, which raised."""

    def hold_steps(self, attempt: Attempt, steps: Steps) -> None:
        """Keeps the DSPy trace of a trial: it led to the result if the search picks the trial, or one below it."""

    def hold_error(self, trial: int, error: Exception) -> None:
        """Keeps what a trial has raised, by its number."""


@dataclasses.dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of one execution.

    Attributes:
        host: the run.
        node: name of the node.
        branch: path of its branch.
        execution: id of the execution, as events name it.
        local_id: the id, after those of the executions that it runs inside of; the key of its records.
        position: the branch, with its state and its history; None without a run.
        index: the index of its item in a map; None for a node.
        number: how many attempts of the execution this process has made, this one included; 0 for a look into the
            cache, which is no attempt.
        posts: the updates that the node has posted, in the order of its calls; None for none.
        over: whether the node has returned or raised.
        part: the name of the part of an execution that it is, of a router or what condenses, which has attempts of its
            own; "" for a node or an item.
        following: the attempt that was made after this one had failed; None for none.
        live_cursor: how far it has read live fields, and what it has posted to them; None for nothing.
        limit: the time that the attempt has; None for no timeout.
        calls: the programs that it has called; None for none.
        edited: the arguments of the call of a tool that it makes, if a person has changed them; else None.
        home: the context of the node's function, if programs are bound to it.
    """

    host: AttemptHost = dataclasses.field(default_factory=AttemptHost)
    node: str = ""
    branch: BranchPath = ()
    execution: str = ""
    local_id: str = ""
    position: Branch | None = None
    index: int | None = None
    number: int = 1
    part: str = ""
    posts: list[tuple[str, Any]] | None = None
    live_cursor: Any = None
    over: bool = False
    following: Attempt | None = None
    limit: TimeLimit | None = None
    calls: OpenCalls | None = None
    edited: Mapping[str, Any] | None = None
    home: ContextVars | None = None
    _used: dict[tuple[str, str], object] | None = None
    _open: list[Question] = dataclasses.field(default_factory=list)
    _refusal: tuple[type[Exception], str] | None = None

    @property
    def who(self) -> str:
        """The node, and its execution in a run, for errors."""
        return f"node {self.node!r} (execution {self.local_id})" if self.local_id else f"node {self.node!r}"

    def item(self, index: int) -> Attempt:
        """The attempt of one item of a map, which is an execution of its own."""
        place = (self.host, self.node, self.branch, part_id(self.execution, index), part_id(self.local_id, index))
        return Attempt(*place, self.position, index)

    def of_part(self, name: str) -> Attempt:
        """The attempt of a part of this execution, which is an execution of its own."""
        place = (self.host, self.node, self.branch, part_id(self.execution, name), part_id(self.local_id, name))
        return Attempt(*place, self.position, self.index, part=name)

    def repeated(self) -> Attempt:
        """The attempt of a call that is made again within this one: its effects and questions are its own."""
        found = self.of_part("again")
        found.number, found.limit = self.number, self.limit
        return found

    def next(self, number: int) -> Attempt:
        """Another attempt of the same execution, with nothing of this one: no posts, no used keys."""
        place = (self.host, self.node, self.branch, self.execution, self.local_id, self.position, self.index)
        return Attempt(*place, number, self.part)

    @property
    def last(self) -> Attempt:
        """The last attempt that was made of its execution: this one, or one after it."""
        found = self
        while found.following is not None:
            found = found.following
        return found

    @property
    def timed_out(self) -> bool:
        """Whether the attempt, or a node that contains it, has timed out."""
        limit = self.limit or self.host.limit
        return limit is not None and limit.over

    @property
    def left_running(self) -> bool:
        """Whether its sync code goes on in a thread although the attempt, or a node that contains it, has timed out."""
        limit = self.limit or self.host.limit
        return limit is not None and limit.left_running

    def check_time(self) -> None:
        """Raise `AttemptOverError` if the attempt does not count any more: it has timed out, or another one follows."""
        if self.timed_out:
            raise AttemptOverError(f"{self.who}: {OVER}")
        if self.following is not None:
            raise AttemptOverError(
                f"{self.who}: attempt {self.number} has failed, and another one follows: nothing that it does counts "
                "any more. Threads and tasks of a node must end before it does"
            )

    def seconds_left(self) -> float | None:
        """The seconds that the attempt or the budget has left; None for no limit."""
        limit, gate = self.limit or self.host.limit, current_gate()
        found = [None if limit is None else limit.left(), None if gate is None else gate.seconds_left()]
        return min((seconds for seconds in found if seconds is not None), default=None)

    @property
    def outer_execution(self) -> str:
        """The id of the execution; of an item or another part, that of the whole."""
        return whole_execution(self.execution)

    def failure(self, error: BaseException, number: int) -> Failure:
        """The record of what attempt `number` of this execution raised."""
        return Failure.of(
            error,
            node=self.node,
            branch=self.branch,
            execution=self.execution,
            attempt=number,
            index=self.index,
        )

    def emit(self, value: object) -> None:
        """Add a value to the stream of events."""
        self.check_time()
        self.publish(value)

    def publish(self, value: object) -> None:
        """Publish an event; of any other value an `Emitted`."""
        event = own_copy(value) if isinstance(value, Event) else Emitted(self.node, self.branch, self.execution, value)
        self.host.publish(event)

    # --- effects

    def once(self, key: str, fn: Callable[..., Any]) -> Any:
        """Return a copy of the recorded result of an effect; without a record, call `fn` and record its result.

        For an async function, return an awaitable of the result.
        """
        self.check_time()
        self.claim_key("once", key)
        place = RecordKey(self.local_id, key)
        if is_async(fn):
            return self._aonce(place, fn)
        while (earlier := self._begin_effect(place, is_async=False)) is not None:
            earlier.result()
            self.check_time()
        try:
            known = self._known_or_recordable(place)
            if known is not MISSING:
                return thaw(known)
            result = fn(**self._idempotency_key(place, fn))
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()  # else Python warns of a coroutine that was never awaited
                raise AttemptError(
                    f"{self.who}: the effect {key!r} gave an awaitable, from a function that is not async: give "
                    "ctx.once an `async def` function and await what it returns"
                )
            frozen, row = self._effect_row(place, result)
            # The row before the record: a result that the store does not have must not count as recorded.
            if self.host.records.journal is not None:
                self.host.records.journal.write([*self.host.records.lm_call_rows(place.execution), row], flush=True)
            self.host.records.effects[place] = frozen
            return thaw(frozen)
        finally:
            self._end_effect(place)

    async def _aonce(self, place: RecordKey, fn: Callable[..., Awaitable[Any]]) -> Any:
        while (earlier := self._begin_effect(place, is_async=True)) is not None:
            await asyncio.wrap_future(earlier)
            self.check_time()
        try:
            known = self._known_or_recordable(place)
            if known is not MISSING:
                return thaw(known)
            frozen, row = self._effect_row(place, await fn(**self._idempotency_key(place, fn)))
            before = cancellation_count()
            if self.host.records.journal is not None:
                await self.host.records.journal.awrite(
                    [*self.host.records.lm_call_rows(place.execution), row], flush=True
                )
            self.host.records.effects[place] = frozen
            if cancellation_count() > before:
                raise asyncio.CancelledError  # it came during the write, which was finished first
            return thaw(frozen)
        finally:
            self._end_effect(place)

    def _begin_effect(self, place: RecordKey, is_async: bool) -> Future[None] | None:
        """Marks an effect as begun; if an earlier attempt has begun it and not ended, returns what to wait for.

        A node may leave tasks or threads behind when it fails (`asyncio.gather` does), which its next attempt must not
        overtake: the effect would happen twice. An attempt that has timed out is not waited for: its effect may hang.
        """
        own, in_progress = _Effect(self, is_async), self.host.records.in_progress
        with _lock:
            other: _Effect = in_progress.setdefault(place, own)
            if other.attempt.timed_out and other is not own:
                in_progress[place] = own
                other.ended.set_result(None)
        if in_progress.get(place) is own:
            return None
        if other.is_async and not is_async:
            raise AttemptError(  # a wait would block the event loop on which the other one runs
                f"{self.who}: the effect {place.key!r} of an earlier attempt is still in progress, and is async: give "
                "ctx.once the same function in each attempt"
            )
        return other.ended

    def _end_effect(self, place: RecordKey) -> None:
        with _lock:
            found: _Effect | None = self.host.records.in_progress.get(place)
            if found is not None and found.attempt is self:  # else a later attempt did not wait for this one
                del self.host.records.in_progress[place]
                found.ended.set_result(None)

    def _known_or_recordable(self, place: RecordKey) -> Any:
        """The recorded result of an effect, else `MISSING`; then raises if the effect could not be recorded.

        It could not if the run has lost its thread, or its store has failed.
        """
        known = self.host.records.effects.get(place, MISSING)
        if known is MISSING and self.host.records.journal is not None:
            self.host.records.journal.raise_if_broken()
        return known

    def _idempotency_key(self, place: RecordKey, fn: Callable[..., Any]) -> dict[str, str]:
        """The argument `key`, the same text in every attempt, if the function has such a parameter; else nothing."""
        try:
            wanted = "key" in signature_of(fn).parameters
        except (TypeError, ValueError):  # a built-in function whose signature Python does not know
            wanted = False
        if not wanted:
            return {}
        text = "\n".join((self.host.root, *place))
        return {"key": blake2b(text.encode(), digest_size=16).hexdigest()}

    def _effect_row(self, place: RecordKey, result: object) -> tuple[Any, DraftRow]:
        if (gate := current_gate()) is not None:
            gate.raise_if_refused()  # nothing is recorded of code that went on after an LM call of it was refused
        if self.timed_out:
            raise AttemptOverError(
                f"{self.who}: the effect {place.key!r} has happened, but its attempt had timed out: it is not "
                "recorded, so a later attempt repeats it, with the same idempotency key"
            )
        try:
            frozen = freeze(result, ("result",))
            row = EffectRow(*place, frozen).row()
            if self.host.records.journal is not None and row.content is not None:
                row.content.data  # noqa: B018 - encodes it now: whether it can be stored is known before the write
        except StateError as error:
            raise AttemptError(
                f"{self.who}: the effect {place.key!r} has happened, but cannot be recorded, so the next attempt "
                f"repeats it: {error}. Let its function return plain data"
            ) from error
        return frozen, row

    # --- questions

    def earlier_question(self, key: str) -> Question | None:
        """The question that an earlier attempt asked under this key."""
        return self.host.records.questions.get(RecordKey(self.local_id, key))

    def interrupt(self, key: str, text: str, answer: Any) -> Any:
        """The answer to a question; raises `Interrupt` if there is none yet."""
        self.check_time()
        if key in RESERVED_KEYS:
            raise AttemptError(
                f"{self.who}: the key {key!r} belongs to Breakpoints({key}=...): ctx.interrupt needs another"
            )
        if not isinstance(text, str):
            raise TypeError(f"{self.who}: the question {key!r} is {brief(text)}: a question is a text")
        self.claim_key("interrupt", key)
        records, place = self.host.records, RecordKey(self.local_id, key)
        before = records.questions.get(place)
        run = self.host.label if before is None else before.run  # the id stays as it was when the question was sent
        question = Question(key, text, schema_of(answer), self.node, self.branch, self.local_id, run)
        if before is not None and before.answer != question.answer:
            self._refuse(
                f"{self.who} asks {key!r} for an answer of {_schema_text(question)}, and an earlier attempt asked for "
                f"{_schema_text(before)}"
            )
        if place not in records.answers:
            self._check_all_asked(f"asks {key!r} instead")
        if records.ask(question, self.host.answer):
            return self._validated_answer(place, question, answer)
        self._open.append(question)
        raise Interrupt([question])

    def _validated_answer(self, place: RecordKey, question: Question, answer: Any) -> Any:
        records = self.host.records
        try:
            return validated(answer, records.answers[place], question, "")  # a graph around this one may redact it
        except InputError as refusal:
            records.retract_answer(place)
            self._refusal = (AnswerError, str(refusal))
            raise AnswerError(str(refusal)) from None

    def open_calls(self) -> OpenCalls:
        """The programs that the attempt has called."""
        with _lock:
            if self.calls is None:
                self.calls = OpenCalls()
        return self.calls

    def note_questions(self, questions: Sequence[Question]) -> None:
        """Keep the questions of a program that the node has called: the node must not commit without the answers."""
        self._open += questions

    def finish(self) -> None:
        """Raise what keeps a node from committing although it has returned: a question without a valid answer.

        Node code may have caught the `Interrupt` or the error of a question; it is raised again here.
        """
        if not self.host.records.questions:
            return
        if self._refusal is not None:
            raise self._refusal[0](self._refusal[1])
        if self._open:
            raise Interrupt(self._open)
        self._check_all_asked("came to its end")

    def _check_all_asked(self, instead: str) -> None:
        """Refuse an attempt that has left out a question which an earlier attempt asked and which was answered."""
        used = self._used or {}
        answered = self.host.records.questions_of(self.local_id, answered=True)
        missing = [one.key for one in answered if ("interrupt", one.key) not in used and one.key not in RESERVED_KEYS]
        if missing:
            self._refuse(
                f"{self.who} has not asked {', '.join(map(repr, missing))} again, which was answered, and {instead}"
            )

    def _refuse(self, text: str) -> None:
        text += (
            ". Each attempt must ask the same: keep what decides about a question with ctx.once, or leave the run with "
            "thread.run(..., abandon=True)"
        )
        self._refusal = (AttemptError, text)
        raise AttemptError(text)

    # --- views

    def view(self, view: View) -> Any:
        """The entries of a view, for `ctx.view`: checked here, since no graph build has seen it."""
        self.check_running("looks at a view")
        views = self.host.views
        schema = views.schema
        for field in (view.field, *fields_of_then(view, schema)):
            self._check_permitted("reads", field, f"looks at {view!r}, and {field!r}", InputError)
        problems = view_problems(view, "ctx.view", schema, self.who)
        problems += author_problems(view, "ctx.view", (START, *views.nodes), self.who)
        if not schema.accepts_any_key and view.field not in schema.fields:
            hint = suggestion(view.field, schema.fields)
            problems.append(f"{self.who} looks at {view!r}: that is no field of the state.{hint}")
        if problems:
            raise InputError(problems[0])
        return self.read_view(view, "entries")

    def read_view(
        self,
        view: View,
        form: ViewForm,
        name: str = "",
        sent: Any = DELETE,
        overlay: FrozenDict[str, Any] | None = None,
    ) -> Any:
        """Return what a view shows of its field, in the given form, and record the read.

        `sent` is the frozen value that a `Send` or a map brought for the field: it hides the field, counts as new and
        has no author. `name` is the node's own name for the view, as the record of the read shows it. A function of
        `then` reads further fields in the state and, before it, in `overlay`.
        """
        views, position = self.host.views, self.position
        field_of = partial(_read_field, overlay, None if position is None else position.state)
        parts_kind = kind_of_parts(views.schema, view.field)
        if sent is not DELETE:
            steps = tuple([step for step in view.steps if step.name in (*CUTS, "then")])
            cut = View(view.field, steps)
            return render(cut, *chosen_plainly(cut, sent, parts_kind), form, field_of)
        if position is None:
            raise InputError(f"{self.who} reads {view!r}: there is no run that it could be a view of")
        read = ViewRead(self.node, name or view.field, view, position.head)
        index = views.index(view.field, position)
        if index is None:
            parts_kind, selected = chosen_plainly(view, position.state.raw(view.field, DELETE), parts_kind)
        else:
            if parts_kind == "amount" and form in ("values", "text", "frozen"):
                total = sum_of_amounts(view, index, self.node)
                if total is not None:
                    if self.number:
                        views.record_read(read)
                    return text_of(total) if form == "text" else total
            selected = select_parts(
                view, parts_kind, index, self.node, lambda: views.news(view.field, position, self.node)
            )
        result = render(view, parts_kind, selected, form, field_of)
        if self.number:
            views.record_read(read)
        return result

    def delta(self) -> Delta:
        """What has changed since the node last ran, of the fields that it reads."""
        self.check_running("asks for a delta")
        views, position = self.host.views, self.position
        if position is None:
            return Delta({}, "")
        patch: dict[str, Any] = {}
        lines: list[str] = []
        allowed = views.permitted_fields(self.node, "reads")
        for field, before, after, parts in views.changed(position, self.node, allowed):
            if parts is None:
                patch |= plain_patch({field: DELETE if after is DELETE else diff_value(before, after)})
            else:
                patch[field] = value_of_parts(*parts)
            lines.append(change_text(field, after, parts))
        return Delta(patch, "\n".join(lines))

    # --- posts and live fields

    def post(self, field: str, value: object) -> None:
        """Post an update: at once to a live field of a live run, else as part of the node's commit."""
        self.check_time()
        if self.index is not None:
            raise NodeOutputError(
                f"{self.who} posts to {field!r} from an item of a map: return it in the item's result"
            )
        self.check_running(f"posts to {field!r}")
        self._check_permitted("writes", field, f"posts to {field!r}, which", NodeOutputError)
        schema = self.host.views.schema
        if not schema.accepts_any_key and field not in schema.fields:
            hint = suggestion(field, schema.fields)
            raise NodeOutputError(f"{self.who} posts to {field!r}, which is no field of the schema.{hint}")
        if schema.reducer(field) is None and field not in schema.live_fields and self.position is not None:
            raise NodeOutputError(
                f"{self.who} posts to {field!r}, which has no reducer to fold the post: give the field one, for "
                f"example Annotated[list[str], reducers.append], or return {{{field!r}: ...}}"
            )
        if value is not DELETE and not isinstance(value, (Replace, Updates)):
            value = thaw(freeze(value, (field,)))  # a copy: the node may change its object after the post
        live = self.host.together.posts
        if live is not None and live.post(self, field, value):
            return
        with _lock:
            if self.posts is None:
                self.posts = []
            self.posts.append((field, value))

    def live(self, field: str, timeout: float | None) -> Entries:
        """The entries of a live field as they arrive."""
        self.check_time()
        if self.index is not None:
            raise AttemptError(f"{self.who}: an item of a map cannot wait for the live field {field!r}")
        self._check_permitted("reads", field, f"listens to {field!r}, which", InputError)
        if timeout is not None and not (is_number(timeout) and timeout >= 0):
            raise InputError(f"{self.who}: ctx.live({field!r}, timeout={timeout!r}): give seconds from 0, or None")
        live = self.host.together.posts
        source = self._entries_before(field) if live is None else live.entries(self, field)
        return Entries(source, field, timeout, self.limit or self.host.limit)

    def _entries_before(self, field: str) -> EntrySource:
        """The entries that the branch has when the node starts."""
        schema, position = self.host.views.schema, self.position
        if position is not None and field in schema.fields and schema.reducer(field) is None:
            value = latest_value(schema, position.state, field)
            return EntrySource([] if value is DELETE else [LiveEntry(thaw(value), "", "", 0)])
        found = self.read_view(View(field), "entries")
        return EntrySource([LiveEntry(entry.value, entry.author, entry.commit, 0, entry.key) for entry in found])

    def set_doing(self, text: str) -> None:
        """Record what the node is doing, as an event and for its siblings."""
        self.check_time()
        self.host.publish(Doing(self.node, self.branch, self.execution, text))
        self.host.together.doing[self.outer_execution] = text

    def _check_permitted(
        self, option: Literal["reads", "writes"], field: str, what: str, error: type[Exception]
    ) -> None:
        """Refuse a field that the node may not read or write."""
        allowed = self.host.views.permitted_fields(self.node, option)
        if allowed is not None and field not in allowed:
            raise error(f"{self.who} {what} is not among its {option} ({list_names(sorted(allowed))}): add it there")

    def check_running(self, what: str) -> None:
        self.check_time()
        if self.over:
            raise NodeOutputError(
                f"{self.who} {what} after the node has returned: a router gets what it decides by as parameters, and "
                "threads of a node must end before it does"
            )

    # --- items of a map

    def recorded_result(self) -> Any:
        """The frozen result of this item in an earlier attempt of the map; `MISSING` if there is none."""
        return self.host.records.items.get(self.local_id, MISSING)

    def raise_if_unanswered(self) -> None:
        """Raise `Interrupt` if a question of an earlier attempt has no answer: the node would only ask it again."""
        records = self.host.records
        if records.questions:
            waits = [
                question
                for question in records.questions_of(self.local_id, answered=False)
                if not records.ask(question, self.host.answer)
            ]
            if waits:
                raise Interrupt(waits)

    def record_result(self, frozen: Any) -> None:
        """Record the result of an item, whose row is written."""
        self.host.records.items[self.local_id] = frozen

    def item_row(self, frozen: Any) -> DraftRow:
        """The row of the result of an item."""
        row = ItemRow(self.local_id, frozen).row()
        if row.content is not None:
            row.content.data  # noqa: B018 - encodes it now: what cannot be stored fails here, in the item
        return row

    def claim_key(self, kind: str, key: str) -> None:
        """Refuse a key that this attempt has used before: two effects would share one record."""
        if not key or type(key) is not str:
            raise AttemptError(f"{self.who}: ctx.{kind} takes a key, a text that names it; this one is {key!r}")
        if self._used is None:
            self._used = {}
        mark = object()
        # `setdefault` is atomic: of two threads that use one key, one finds the other's mark.
        if self._used.setdefault((kind, key), mark) is not mark:
            raise AttemptError(
                f"{self.who} used the key {key!r} of ctx.{kind} twice: give each its own key, in a loop for example "
                f"f'{key}-{{i}}'"
            )


@dataclasses.dataclass(slots=True, eq=False)
class _Effect:
    """An effect that an attempt has begun; `ended` is done when it is recorded, or has failed."""

    attempt: Attempt
    is_async: bool
    ended: Future[None] = dataclasses.field(default_factory=not_cancelled)


def _read_field(overlay: FrozenDict[str, Any] | None, state: FrozenDict[str, Any] | None, field: str) -> Any:
    """The frozen value of a field, of an overlay before the state; `DELETE` if it is not set."""
    found = DELETE if overlay is None else overlay.raw(field, DELETE)
    return found if found is not DELETE or state is None else state.raw(field, DELETE)


def _schema_text(question: Question) -> str:
    return "nothing" if question.answer is None else brief(dict(question.answer), 120)
