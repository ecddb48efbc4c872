"""One attempt of a node's execution: its effects, its questions and their answers, what it has read and posted.

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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context as ContextVars
from dataclasses import dataclass
from dataclasses import field as made
from datetime import datetime
from functools import lru_cache, partial
from hashlib import blake2b
from inspect import isroutine
from math import floor
from threading import Lock, RLock
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import dspy
from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import to_json

from dspyer.clock import OVER, TimeLimit, wall
from dspyer.errors import (
    AnswerError,
    AttemptError,
    AttemptOverError,
    InputError,
    Interrupt,
    NodeOutputError,
    QuestionExpired,
    StateError,
    brief,
)
from dspyer.events import AskedCall, BranchPath, Emitted, Event, Question, own_copy
from dspyer.failure import Failure
from dspyer.hints import signature_of
from dspyer.ids import RunIds, id_prefix, part_id, whole_execution
from dspyer.lm.tap import current_gate
from dspyer.lm.tracing import Steps
from dspyer.log.execution_records import (
    MISSING,
    AnswerSource,
    ExecutionRecords,
    RecordKey,
    expired_text,
    has_expired,
    no_answer,
)
from dspyer.log.journal import NewRows
from dspyer.log.rows import DraftRow, EffectRow
from dspyer.nodes.callables import members
from dspyer.nodes.field_access import kind_of_parts
from dspyer.nodes.steps import OpenCalls, Script, TwoWays, arun_script, is_async, not_cancelled, run_script
from dspyer.patch import DELETE
from dspyer.scheduler.schedule import Branch
from dspyer.schema.fields import refusal_text
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, thaw
from dspyer.values.json import with_valid_text
from dspyer.values.scalars import is_number
from dspyer.views import (
    CUTS,
    Fitted,
    View,
    ViewForm,
    ViewRead,
    fitted,
    render,
    select_parts,
    select_plain_parts,
    sum_of_amounts,
    text_of,
)
from dspyer.waiting import cancellation_count


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
    """Common knowledge of the executions of one run, of each other and of the slots of `max_concurrency`.

    Attributes:
        visible: whether they know of each other: not in a run with `live=False`, where nothing depends on timing.
        slots: how many of them may work at once.
        doing: the text of the last `ctx.doing`, by execution.
        parked: those that run, and hold no slot, since they wait for others; each with what it waits for.
        lock: guards what is parked, and the choice of what begins. Executions park in threads of their own.
        wake: makes the driver look again for what may begin. May be called from any thread.
        posts: those to live fields (`layers.live.LivePosts`, which lies above the nodes); None for a run in which posts
            wait for the commit of their node.
        posted: the number of the last post.
    """

    visible: bool
    slots: int = 1
    doing: dict[str, str] = made(default_factory=dict)
    parked: dict[str, str] = made(default_factory=dict)
    lock: RLock = made(default_factory=RLock)
    wake: Callable[[], object] = made(init=False)  # set by the driver
    posts: Any = None
    posted: int = 0


RESERVED_KEYS = ("before", "after")
"""Keys of the questions of `Breakpoints(before=, after=)`."""

attempt_lock = Lock()  # guards `Attempt.posts` and effects in progress: threads of one node may use its `ctx` at once


class AttemptHost:
    """The run that an attempt belongs to. This class is that of a node which is called without a run, by a test.

    Attributes:
        records: the records of its executions.
        answer: answers questions as they are asked.
        program: the program that runs, whose attributes are the modules of its nodes; None for none.
        resources: the run's resources by type.
        together: what its executions know of each other.
        ids: those of the run; a resume has the same ones.
        first_trial_error: the error of the first trial of a search, the cause if all trials fail; None if an earlier
            process made it.
    """

    first_trial_error: Exception | None = None
    ids = RunIds("alone", "alone", "", (), "", "", "")

    def __init__(
        self,
        answer: AnswerSource = no_answer,
        program: dspy.Module | None = None,
        resources: Mapping[type, object] = MappingProxyType({}),
        views: Any = None,
    ) -> None:
        self.records = ExecutionRecords()
        self.answer = answer
        self.program = program
        self.resources = resources
        self.together = Together(False)
        self._views = views

    @property
    def views(self) -> Any:
        """The fields as views show them, and the permissions of the nodes (`RunViews`, which lies above the nodes)."""
        return self._views

    @property
    def limit(self) -> TimeLimit | None:
        """The time that the node has in which the run is, and so all attempts of the run; None for no limit."""
        return None

    def publish(self, event: Event) -> None:
        """Adds an event to the stream."""

    def posted(self, attempt: Attempt, field: str, value: object) -> None:
        """Publishes a post that waits for the commit of its node."""

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
        # It counts as the attempt that makes it, and ends with it.
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
        """Return whether the attempt, or a node that contains it, has timed out."""
        limit = self.limit or self.host.limit
        return limit is not None and limit.over

    @property
    def left_running(self) -> bool:
        """Tell if its sync code goes on in a thread although the attempt, or a node that contains it, has timed out."""
        limit = self.limit or self.host.limit
        return limit is not None and limit.left_running

    def check_time(self) -> None:
        """Raise `AttemptOverError` if the attempt does not count any more: it has timed out, or another one follows."""
        if self.timed_out:
            raise AttemptOverError(f"{self.who}: {OVER}")
        # Its threads may go on after the node has failed; what they do would be counted for the attempt that follows.
        if self.following is not None:
            raise AttemptOverError(
                f"{self.who}: attempt {self.number} has failed, and another one follows: nothing that it does counts "
                "any more. Threads and tasks of a node must end before it does"
            )

    @property
    def outer_execution(self) -> str:
        """The id of the execution; of an item or another part, that of the whole."""
        return whole_execution(self.execution)

    def failure(self, error: BaseException, number: int, index: int | None = None) -> Failure:
        """The record of what attempt `number` of this execution raised; `index` is the place of its `Send`, if any."""
        return Failure.of(
            error,
            node=self.node,
            branch=self.branch,
            execution=self.execution,
            attempt=number,
            index=self.index if index is None else index,
        )

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
        asynchronous = is_async(fn)
        effect = self._effect(RecordKey(self.local_id, key), fn, asynchronous)
        return arun_script(effect) if asynchronous else run_script(effect)

    def _effect(self, place: RecordKey, fn: Callable[..., Any], asynchronous: bool, flush: bool = True) -> Script[Any]:
        no_call: Any = None  # these steps need none
        # An attempt before this one may still be at the same effect, in a thread or task that its node left behind: the
        # effect is then recorded by it, or fails and is ours.
        while (earlier := self._begin_effect(place, asynchronous)) is not None:
            yield TwoWays(earlier.result, partial(asyncio.wrap_future, earlier)), no_call
            self.check_time()
        records = self.host.records
        try:
            if (known := records.effects.get(place, MISSING)) is not MISSING:
                return thaw(known)
            if records.journal is not None:  # the run may have lost its thread: then nothing could be recorded
                records.journal.raise_if_broken()
            made = partial(fn, **self._idempotency_key(place, fn))
            result = yield TwoWays(made, made), no_call
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()  # else Python warns of a coroutine that was never awaited
                raise AttemptError(
                    f"{self.who}: the effect {place.key!r} gave an awaitable, from a function that is not async: give "
                    "ctx.once an `async def` function and await what it returns"
                )
            frozen, row = self._effect_row(place, result)
            # A cancellation must not come between the write and the record: the row would be there, and this process
            # would make the effect again.
            before = cancellation_count() if asynchronous else 0
            # The row before the record: a result that the store does not have must not count as recorded.
            if records.journal is not None:
                rows = NewRows([*records.lm_call_rows(place.execution), row], flush=flush)
                yield TwoWays(partial(records.journal.write, rows), partial(records.journal.awrite, rows)), no_call
            records.effects[place] = frozen
            if asynchronous and cancellation_count() > before:
                raise asyncio.CancelledError  # it came during the write, which was finished first
            # A copy is returned, as a later attempt gets it: a node that changed its result would otherwise differ
            # after a resume.
            return thaw(frozen)
        finally:
            self._end_effect(place)

    def _begin_effect(self, place: RecordKey, is_async: bool) -> Future[None] | None:
        """Marks an effect as begun; if an earlier attempt has begun it and not ended, returns what to wait for.

        A node may leave tasks or threads behind when it fails (`asyncio.gather` does), which its next attempt must not
        overtake: the effect would happen twice. An attempt that has timed out is not waited for: its effect may hang.
        """
        own, in_progress = _Effect(self, is_async), self.host.records.in_progress
        with attempt_lock:
            # Under the lock: of two attempts, one makes the effect and the other waits for it.
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
        with attempt_lock:
            found: _Effect | None = self.host.records.in_progress.get(place)
            if found is not None and found.attempt is self:  # else a later attempt did not wait for this one
                del self.host.records.in_progress[place]
                found.ended.set_result(None)

    def _idempotency_key(self, place: RecordKey, fn: Callable[..., Any]) -> dict[str, str]:
        """The argument `key`, the same text in every attempt, if the function has such a parameter; else nothing."""
        try:
            wanted = "key" in signature_of(fn).parameters
        except (TypeError, ValueError):  # a built-in function whose signature Python does not know
            wanted = False
        if not wanted:
            return {}
        # Of the outermost run, which keeps its id after each resume, and of nothing that differs between attempts.
        text = "\n".join((self.host.ids.root, *place))
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

    def interrupt(
        self,
        key: str,
        text: str,
        answer: Any,
        call: AskedCall | None = None,
        expires: Expires = None,
        default: Any = MISSING,
    ) -> Any:
        """The answer to a question, `call` being what it is about; raises `Interrupt` if there is none yet."""
        self.check_time()
        if key in RESERVED_KEYS:
            raise AttemptError(
                f"{self.who}: the key {key!r} belongs to Breakpoints({key}=...): ctx.interrupt needs another"
            )
        if not isinstance(text, str):
            raise TypeError(f"{self.who}: the question {key!r} is {brief(text)}: a question is a text")
        if problem := deadline_problem(expires, default, answer):
            raise AttemptError(f"{self.who}: the question {key!r}: {problem}")
        # Claimed before anything is compared: two threads that ask under one key would share an answer.
        self.claim_key("interrupt", key)
        records, place = self.host.records, RecordKey(self.local_id, key)
        before = records.questions.get(place)
        run = self.host.ids.label if before is None else before.run  # the id stays as it was when the question was sent
        # Likewise its time: what an earlier attempt has said holds.
        until = expiry(expires) if before is None else before.expires
        question = Question(key, text, schema_of(answer), self.node, self.branch, self.local_id, run, call, until)
        # The answer that is stored was validated against the type of the earlier question.
        if before is not None and before.answer != question.answer:
            self._refuse(
                f"{self.who} asks {key!r} for an answer of {_schema_text(question)}, and an earlier attempt asked for "
                f"{_schema_text(before)}"
            )
        # A new question may not take the place of one that was answered: the answer would be lost, and with it what a
        # person decided. One that was asked before may wait, or have expired.
        if before is None:
            self._check_all_asked(f"asks {key!r} instead")
        # A timer, which takes no answer, needs no default.
        if records.ask(question, self.host.answer, None if answer in NO_ANSWER else default):
            return self._validated_answer(place, question, answer)
        if before is not None and has_expired(before):
            records.lapsed.add(place)
            raise QuestionExpired(f"{self.who}: {expired_text(before)} without an answer, and has no default")
        self._open.append(question)
        raise Interrupt([question])

    def _validated_answer(self, place: RecordKey, question: Question, answer: Any) -> Any:
        records = self.host.records
        try:
            given = records.answers[place].value
            return validated(answer, given, question, "")  # not shown: a graph around this one may redact it
        except InputError as refusal:
            # The question is open again: a resume may bring an answer that fits.
            records.retract_answer(place)
            self._refusal = (AnswerError, str(refusal))
            raise AnswerError(str(refusal)) from None

    def open_calls(self) -> OpenCalls:
        """The programs that the attempt has called."""
        with attempt_lock:
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
        # Nearly all attempts end here: nothing was ever asked in this run.
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
            "thread.run(..., if_open='abandon')"
        )
        self._refusal = (AttemptError, text)
        raise AttemptError(text)

    # --- views

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
        if not view.counts:
            return self._shown(view, form, name, sent, overlay)
        # The head: where an edit has changed the state before a resume, its entries are counted anew.
        head = -1 if self.position is None else self.position.head
        place = RecordKey(self.local_id, f"fit {head} {name or view!r}")
        known = self.host.records.effects.get(place, ())
        reading = fitted(view, known)
        found = self._shown(reading, form, name, sent, overlay)
        # Number 0 is a look into the cache; without an id there is no run in which a resume could come.
        if self.number and self.local_id and not known:
            left = [step.counter.left for step in reading.steps if isinstance(step.counter, Fitted)]
            run_script(self._effect(place, lambda: left, False, flush=False))
        return found

    def _shown(self, view: View, form: ViewForm, name: str, sent: Any, overlay: FrozenDict[str, Any] | None) -> Any:
        views, position = self.host.views, self.position
        field_of = partial(_read_field, overlay, None if position is None else position.state)
        parts_kind = kind_of_parts(views.schema, view.field)
        # No node of the run wrote what was sent, so steps that choose by author or by visit do not apply: all of it is
        # new.
        if sent is not DELETE:
            steps = tuple([step for step in view.steps if step.name in (*CUTS, "then")])
            cut = View(view.field, steps)
            return render(cut, *select_plain_parts(cut, sent, parts_kind), form, field_of)
        if position is None:
            raise InputError(f"{self.who} reads {view!r}: there is no run that it could be a view of")
        read = ViewRead(self.node, name or view.field, view, position.head)
        index = views.index(view.field, position)
        if index is None:
            parts_kind, selected = select_plain_parts(view, position.state.raw(view.field, DELETE), parts_kind)
        else:
            if parts_kind == "amount" and form in ("values", "text", "frozen"):
                total = sum_of_amounts(view, index, self.node)
                if total is not None:
                    # Number 0 is a look into the cache, which is no read.
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
        """Raise `Interrupt` if a question of an earlier attempt waits: the node would only ask it again."""
        records = self.host.records
        if records.questions:
            waits = [
                question
                for question in records.questions_of(self.local_id, answered=False)
                if not records.ask(question, self.host.answer)
            ]
            if waits and not any(map(has_expired, waits)):
                raise Interrupt(waits)

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


# --- types of answers: the JSON schema that a question shows, and the validated value that a node gets


Answers: TypeAlias = Mapping[str, Any] | Callable[[Question], Any] | None
"""Answers that are given before the questions are asked: by key, or from a function of the question."""

NO_ANSWER = (None, type(None))
"""The values of `answer=` for a question that only waits for a resume."""


def _given(answers: Mapping[str, Any], question: Question) -> Any:
    """The answer by key, or by execution and key (`"1:0/approve"`); `MISSING` if there is none."""
    here = id_prefix(question.execution) + question.key
    return answers.get(question.key, answers.get(here, MISSING))


def answer_source(answers: Answers) -> AnswerSource:
    """The source of answers for `answers=`: a dict by key, or a function that answers every question."""
    if answers is None:
        return no_answer
    if isinstance(answers, Mapping):
        return partial(_given, dict(answers))
    if callable(answers):
        return answers
    raise TypeError(
        f"answers={brief(answers)}: give a dict from the key of a question to its answer, or a function "
        "(Question) -> answer"
    )


def first_of(first: AnswerSource, second: AnswerSource) -> AnswerSource:
    """An answer source that asks the second source only where the first has no answer."""
    # Nothing is wrapped in the usual case: a run without answers asks no function.
    if first is no_answer or second is no_answer:
        return second if first is no_answer else first

    def answer(question: Question) -> Any:
        given = first(question)
        return second(question) if given is MISSING else given

    return answer


Expires: TypeAlias = float | datetime | None
"""When a question expires: seconds from when it is first asked, or a time with a time zone; None for never."""

LONGEST_WAIT = 100 * 365 * 86_400
"""Most seconds of `expires=`: a time beyond it is a mistake, and no date."""


def deadline_problem(expires: object, default: Any, answer: Any) -> str:
    """The reason why a question cannot have this `expires=` and `default=`, and what to give; empty if it can."""
    if expires is None:
        return "" if default is MISSING else "default= is the answer once the question has expired: give expires=, too"
    if isinstance(expires, datetime):
        if expires.utcoffset() is None:
            return f"expires={expires!r} has no time zone: say datetime(..., tzinfo=UTC), or give seconds"
    elif not is_number(expires) or not 0 <= expires <= LONGEST_WAIT:
        return (
            f"expires={brief(expires)}: give seconds from when it is first asked, 0 to {LONGEST_WAIT:,}, or a datetime "
            "with a time zone"
        )
    if default is MISSING:
        return ""
    try:
        validated(answer, freeze(default, ("default",)), Question("", "", schema_of(answer), "", (), ""))
    except (InputError, StateError):
        kind = "None" if answer in NO_ANSWER else type_name(answer)
        return f"default={brief(default)} is no answer of its type, answer={kind}"
    return ""


def expiry(expires: Expires) -> float | None:
    """The time at which a question expires that is asked now, seconds since the epoch."""
    if isinstance(expires, datetime):
        return expires.timestamp()
    # As rows hold times, and down: a test that moves the clock by `expires` finds the question expired.
    return None if expires is None else floor((wall() + expires) * 1_000) / 1_000


def schema_of(answer: Any) -> Mapping[str, Any] | None:
    """The JSON schema of a type of answers; None for a question that needs no answer."""
    return None if answer in NO_ANSWER else _known_or_described(answer)[1]


def validated(answer: Any, frozen: Any, question: Question, shown: str | None = None) -> Any:
    """The answer `frozen` as a value of its type, a copy; an `InputError` if it is not of this type.

    The error has the text `shown` in the place of the answer, if that is given; `""` for none.
    """
    plain = thaw(frozen)
    shown = f" {brief(plain) if shown is None else shown}" if shown != "" else ""
    if answer in NO_ANSWER:
        if plain is None or plain is True:
            return None
        raise InputError(f"{_named(question)} takes no answer, and was given{shown or ' one'}: give None to resume")
    try:
        value = _read_strictly(_known_or_described(answer)[0], plain)
    except ValidationError as refusal:
        why = refusal_text(refusal, "")
        raise InputError(
            f"the answer{shown} to {_named(question)} is no {type_name(answer)}: {why}. The question is open"
        ) from None
    check_shape(plain, question, shown)
    return value


def check_shape(plain: Any, question: Question, shown: str) -> None:
    """Raise `InputError` for an answer of JSON values that are of other types than the question's JSON schema says.

    That needs no class, and tells true from 1 also where Python does not: in an enum, or a `Literal`.
    """
    if _is_json(plain) and not _Shape(thaw(question.answer)).is_valid(plain):
        schema = brief(thaw(question.answer))
        raise InputError(f"the answer{shown} to {_named(question)} does not fit {schema}. The question is open")


_KEPT = ("$ref", "type", "enum", "const", "allOf", "anyOf", "properties", "items", "prefixItems")
_ALL = Draft202012Validator.VALIDATORS
# Types alone: patterns are of another language than Python's, and fields may have other names than the schema shows.
_SHAPES: dict[str, Any] = {name: lambda *_: None for name in _ALL if name not in _KEPT}
_SHAPES["additionalProperties"] = lambda it, extra, *of: extra and _ALL["additionalProperties"](it, extra, *of)
_Shape: Any = extend(Draft202012Validator, _SHAPES)


def _is_json(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        return all(map(_is_json, [*value, *value.values()] if isinstance(value, dict) else value))
    return type(value) in (str, bool, int, float, type(None))


def _read_strictly(adapter: TypeAdapter[Any], plain: Any) -> Any:
    """The value of an instance of the type, or of JSON: no text or number becomes a yes, no text a number."""
    try:
        # Strictly: without that, pydantic reads "no" as False and 1 as True, and a person's text would decide what it
        # does not say.
        return adapter.validate_python(plain, strict=True)
    except ValidationError:
        adapter.validate_python(plain)  # refuses what fits as JSON alone: a date is no text
        text = to_json(with_valid_text(plain), inf_nan_mode="constants", fallback=str)
        return adapter.validate_json(text, strict=True)


def type_name(answer: Any) -> str:
    """A type of answers as errors show it."""
    kinds = members(answer)
    if all(isinstance(kind, type) for kind in kinds):
        return " | ".join(kind.__name__ for kind in kinds)
    return str(answer).replace("typing.", "")


def _named(question: Question) -> str:
    return f"question {question.key!r} of node {question.node!r}"


def _described(answer: Any) -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    try:
        if isroutine(answer):
            raise PydanticUserError("a function", code=None)
        adapter: TypeAdapter[Any] = TypeAdapter(answer)
        return adapter, adapter.json_schema()
    except PydanticUserError as refusal:
        reason = str(refusal).partition("\n")[0]
        raise TypeError(
            f"answer={brief(answer)} is no type of answers ({reason}): give a type that pydantic validates and has a "
            "JSON schema for, like bool, str, Literal['yes', 'no'] or a model; None to wait only"
        ) from None


# A type adapter costs more than a call of a node: it is made once for each type.
_known = lru_cache(maxsize=256)(_described)


def _known_or_described(answer: Any) -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    try:
        return _known(answer)
    except TypeError:  # a type that cannot be hashed, like Annotated with a list: it is not cached
        return _described(answer)
