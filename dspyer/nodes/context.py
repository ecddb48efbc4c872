"""What an execution may do in one attempt beside giving a result: effects, questions, values on the way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, Protocol

from dspyer.blocking import cancellation_count
from dspyer.errors import AttemptError, InputError, Interrupt, StateError, brief
from dspyer.events import BranchPath, Emitted, Event, Question
from dspyer.hints import signature_of
from dspyer.nodes.answer_types import schema_of, validated
from dspyer.nodes.live_access import LiveHost, NotLive
from dspyer.nodes.sync_async import is_async
from dspyer.nodes.view_access import NoRunViews, ViewSource
from dspyer.persistence.execution_records import (
    MISSING,
    AnswerSource,
    ExecutionRecords,
    RecordKey,
    effect_row,
    item_row,
    no_answer,
)
from dspyer.persistence.journal import Journal
from dspyer.persistence.rows import NewRow
from dspyer.scheduler.run_state import Branch
from dspyer.values.freezing import freeze
from dspyer.values.frozen import thaw

RESERVED = ("before", "after")
"""Keys of the questions of `compile(interrupt_before=, interrupt_after=)`."""


class AttemptHost(LiveHost, Protocol):
    """The run that an attempt belongs to.

    Attributes:
        records: what its executions have left behind.
        journal: writes it down; None for a run that is not stored.
        answer: answers questions as they are asked.
        root: the id of the run, the same however often it is taken up.
        label: the name of the run, in front of the ids of its questions; empty for a run that is not stored.
    """

    records: ExecutionRecords
    journal: Journal | None
    answer: AnswerSource
    root: str
    label: str

    @property
    def views(self) -> ViewSource:
        """What can be seen of the state through views, and who may see and post what."""

    def publish(self, event: Event) -> None:
        """Shows an event to whoever listens."""


class NoRun(NotLive):
    """Stands for the run of a node that is called without one.

    Args:
        answer: answers questions.
    """

    def __init__(self, answer: AnswerSource = no_answer) -> None:
        self.views: ViewSource = NoRunViews()
        self.records = ExecutionRecords()
        self.journal: Journal | None = None
        self.answer = answer
        self.root = "alone"
        self.label = ""

    def publish(self, event: Event) -> None:
        """Nobody listens."""


class Attempt:
    """One attempt of one execution. What it remembers of earlier attempts is in the records of the run.

    Args:
        host: the run.
        node: name of the node.
        branch: path of its branch.
        execution: id of the execution, as events name it.
        local_id: the same with the executions of the graphs around it.
        position: the branch itself, for what it has behind it.
        inside: whether it is one item of a map.

    Attributes:
        posts: what the node has posted, in the order of its calls; None for nothing.
        over: whether the node has returned.
    """

    __slots__ = (
        *("_open", "_refusal", "_used", "branch", "execution", "host", "inside"),
        *("local_id", "node", "over", "position", "posts"),
    )

    def __init__(
        self,
        host: AttemptHost | None = None,
        node: str = "",
        branch: BranchPath = (),
        execution: str = "",
        local_id: str = "",
        position: Branch | None = None,
        inside: bool = False,
    ) -> None:
        self.host: AttemptHost = host or NoRun()
        self.node = node
        self.branch = branch
        self.execution = execution
        self.local_id = local_id
        self.position = position
        self.inside = inside
        self.posts: list[tuple[str, Any]] | None = None
        self.over = False
        self._used: dict[tuple[str, str], object] | None = None
        self._open: list[Question] = []
        self._refusal: tuple[type[Exception], str] | None = None

    def item(self, index: int) -> Attempt:
        """The attempt of one item of a map, which is an execution of its own."""
        mark = f"[{index}]"
        return Attempt(
            self.host, self.node, self.branch, self.execution + mark, self.local_id + mark, self.position, True
        )

    def emit(self, value: object) -> None:
        """Puts a value into the stream of events."""
        self.host.publish(Emitted(self.node, self.branch, self.execution, value))

    # --- effects

    def once(self, key: str, fn: Callable[..., Any]) -> Any:
        """The recorded result of an effect; calls `fn` and records what it gives if there is none.

        Args:
            key: the name of the effect.
            fn: makes it.

        Returns:
            A value that belongs to the caller; for an async function an awaitable of it.
        """
        self._use("once", key)
        place = RecordKey(self.local_id, key)
        known = self.host.records.effects.get(place, MISSING)
        if is_async(fn):
            return self._await_once(place, fn, known)
        if known is not MISSING:
            return thaw(known)
        result = fn(**self._identity(place, fn))
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise AttemptError(
                f"{self.who}: the effect {key!r} gave an awaitable, from a function that is not async: give ctx.once "
                "an `async def` function and await what it returns"
            )
        frozen, draft = self._recorded(place, result)
        if self.host.journal is not None:
            self.host.journal.write([draft], flush=True)
        self.host.records.effects[place] = frozen
        return thaw(frozen)

    async def _await_once(self, place: RecordKey, fn: Callable[..., Awaitable[Any]], known: Any) -> Any:
        if known is not MISSING:
            return thaw(known)
        frozen, draft = self._recorded(place, await fn(**self._identity(place, fn)))
        before = cancellation_count()
        if self.host.journal is not None:
            await self.host.journal.awrite([draft], flush=True)
        self.host.records.effects[place] = frozen
        if cancellation_count() > before:
            raise asyncio.CancelledError  # it was held back until the effect was recorded
        return thaw(frozen)

    def _identity(self, place: RecordKey, fn: Callable[..., Any]) -> dict[str, str]:
        """A name of the effect for the other side, if the function wants one."""
        try:
            wanted = "key" in signature_of(fn).parameters
        except (TypeError, ValueError):  # a built-in function that does not say what it takes
            wanted = False
        if not wanted:
            return {}
        text = "\n".join((self.host.root, *place))
        return {"key": blake2b(text.encode(), digest_size=16).hexdigest()}

    def _recorded(self, place: RecordKey, result: object) -> tuple[Any, NewRow]:
        try:
            frozen = freeze(result, ("result",))
            draft = effect_row(place, frozen)
            if self.host.journal is not None and draft.content is not None:
                draft.content.data  # noqa: B018 - whether it can be written is known before the journal tries
        except StateError as error:
            raise AttemptError(
                f"{self.who}: the effect {place.key!r} has happened, but cannot be recorded, so the next attempt "
                f"repeats it: {error}. Let its function return plain data"
            ) from error
        return frozen, draft

    # --- questions

    def earlier_question(self, key: str) -> Question | None:
        """What this execution has asked under a key before, if it has."""
        return self.host.records.questions.get(RecordKey(self.local_id, key))

    def interrupt(self, key: str, text: str, answer: Any) -> Any:
        """The answer to a question.

        Args:
            key: the name of the question.
            text: what is asked.
            answer: the type of the answer; None to wait only.

        Raises:
            Interrupt: if there is no answer yet.
            InputError: if the answer is none of this type.
            AttemptError: if an earlier attempt has asked otherwise.
        """
        if key in RESERVED:
            raise AttemptError(
                f"{self.who}: the key {key!r} belongs to compile(interrupt_{key}=...): ctx.interrupt needs another"
            )
        if not isinstance(text, str):
            raise TypeError(f"{self.who}: the question {key!r} is {brief(text)}: a question is a text")
        self._use("interrupt", key)
        records, place = self.host.records, RecordKey(self.local_id, key)
        before = records.questions.get(place)
        run = self.host.label if before is None else before.run  # the id stays as it was when the question was sent
        question = Question(key, text, schema_of(answer), self.node, self.branch, self.local_id, run)
        if before is not None and before.answer != question.answer:
            self._refuse(
                f"{self.who} asks {key!r} for an answer of {_shape(question)}, and an earlier attempt asked for "
                f"{_shape(before)}"
            )
        if place not in records.answers:
            self._check_answered(f"asks {key!r} instead")
        if records.ask(question, self.host.answer):
            return self._answer(place, question, answer)
        self._open.append(question)
        raise Interrupt([question])

    def _answer(self, place: RecordKey, question: Question, answer: Any) -> Any:
        records = self.host.records
        try:
            return validated(answer, records.answers[place], question)
        except InputError as refusal:
            records.retract_answer(place)
            self._refusal = (InputError, str(refusal))
            raise

    def finish(self) -> None:
        """Checks what the attempt has asked, once the node has come to its end.

        Raises:
            Interrupt: if the node went on after a question that has no answer.
            Exception: if it went on after its question was refused, or has not asked what was answered.
        """
        if not self.host.records.questions:
            return
        if self._refusal is not None:
            kind, text = self._refusal
            raise kind(text)
        if self._open:
            raise Interrupt(self._open)
        self._check_answered("came to its end")

    def _check_answered(self, instead: str) -> None:
        used = self._used or {}
        missing = [key for key in self.host.records.answered_keys(self.local_id) if ("interrupt", key) not in used]
        missing = [key for key in missing if key not in RESERVED]
        if missing:
            self._refuse(
                f"{self.who} has not asked {', '.join(map(repr, missing))} again, which was answered, and {instead}"
            )

    def _refuse(self, text: str) -> None:
        text += (
            ". Each attempt must ask the same: keep what decides about a question with ctx.once, or leave the run with "
            "t.run(..., abandon=True)"
        )
        self._refusal = (AttemptError, text)
        raise AttemptError(text)

    # --- items of a map

    def recorded_result(self) -> Any:
        """The result of this item in an earlier attempt of the map, frozen; `MISSING` if there is none."""
        return self.host.records.items.get(self.local_id, MISSING)

    def raise_if_unanswered(self) -> None:
        """Does not go on where a question of this execution has no answer."""
        records = self.host.records
        if records.questions:
            waits = [
                question
                for question in records.open_questions_of(self.local_id)
                if not records.ask(question, self.host.answer)
            ]
            if waits:
                raise Interrupt(waits)

    def record_result(self, result: object, path: tuple[Any, ...]) -> Any:
        """Keeps the result of an item, where the run is stored."""
        journal = self.host.journal
        if journal is None:
            return result
        frozen = freeze(result, path)
        journal.write([self._item(frozen)])
        self.host.records.items[self.local_id] = frozen
        return frozen

    async def arecord_result(self, result: object, path: tuple[Any, ...]) -> Any:
        """The same in async code."""
        journal = self.host.journal
        if journal is None:
            return result
        frozen = freeze(result, path)
        await journal.awrite([self._item(frozen)])
        self.host.records.items[self.local_id] = frozen
        return frozen

    def _item(self, frozen: Any) -> NewRow:
        draft = item_row(self.local_id, frozen)
        if draft.content is not None:
            draft.content.data  # noqa: B018 - fails here, in the item, if it cannot be written
        return draft

    def _use(self, kind: str, key: str) -> None:
        if not key or type(key) is not str:
            raise AttemptError(f"{self.who}: ctx.{kind} takes a key, a text that names it; this one is {key!r}")
        if self._used is None:
            self._used = {}
        mark = object()
        if self._used.setdefault((kind, key), mark) is not mark:
            raise AttemptError(
                f"{self.who} used the key {key!r} of ctx.{kind} twice: give each its own key, in a loop for example "
                f"f'{key}-{{i}}'"
            )

    @property
    def who(self) -> str:
        """What errors call it."""
        return f"node {self.node!r} (execution {self.local_id})" if self.local_id else f"node {self.node!r}"


def _shape(question: Question) -> str:
    return "nothing" if question.answer is None else brief(dict(question.answer), 120)
