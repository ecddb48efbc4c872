"""What the executions of a run have recorded besides commits: effects, items of maps, questions, answers, live posts.

An execution that is called again after a crash finds its records here: `ctx.once` returns the recorded result, an
answered question is not asked again, and a map calls only the items that have no result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from dspyer.errors import InputError, StateError
from dspyer.events import Question
from dspyer.ids import ids_around, is_within
from dspyer.log.journal import Journal
from dspyer.log.lm_calls import LMCallLog, calls_in
from dspyer.log.rows import (
    COMMITS,
    RECORDS,
    AnswerRow,
    CommitRow,
    DraftRow,
    EffectRow,
    ItemRow,
    LayerRow,
    PostRow,
    QuestionRow,
    ResumeRow,
    RowKind,
    StoredRow,
    StoredTrace,
    Totals,
)
from dspyer.record_codec import DecodeValue
from dspyer.stores.base import Row
from dspyer.stores.content import Fetch
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze

MISSING: Any = object()
"""A result that is not recorded: `None` may be a result."""

AnswerSource = Callable[[Question], Any]
"""Returns the answer to a question; `MISSING` for none."""


def no_answer(question: Question) -> Any:
    """Answer no question."""
    del question
    return MISSING


class RecordKey(NamedTuple):
    """The key of an effect, question or answer: the local id of its execution, and its key there."""

    execution: str
    key: str


class KeptRun(NamedTuple):
    """What a run inside a node has committed, for the next attempt of the node, which continues it.

    Attributes:
        attempts: the numbers of the attempts of the nodes around it, outermost first.
        rows: the rows of its commits; in a stored run the journal has written the same ones.
        traces: the DSPy trace of each committed execution, by id.
        posts: its posts to live fields, by arrival number.
    """

    attempts: tuple[int, ...] = ()
    rows: tuple[Row, ...] = ()
    traces: Mapping[str, Sequence[Any]] = MappingProxyType({})
    posts: Mapping[int, PostRow] = MappingProxyType({})


def _no_blobs(ids: Collection[str]) -> Mapping[str, bytes]:
    """Return no blobs: a run that is not stored has none."""
    del ids
    return {}


@dataclass(eq=False, repr=False)
class ExecutionRecords:
    """The records of one run. Methods may be called from the threads of several nodes at once.

    Attributes:
        effects: results of `ctx.once`, frozen.
        in_progress: the effects that have begun, until they are recorded or have failed. Not stored.
        items: results of the items of maps, frozen, by the item's execution.
        questions: all questions, by execution and key.
        answers: answers, frozen, by execution and key of their question.
        with_commit: the rows that are written just before the commit of an execution, in order, by its id; of earlier
            processes those of layers alone.
        posts: posts to live fields by scope and arrival number, as rows have them.
        new_responses: how often an execution has asked LMs for responses that no cache has, by execution and layer,
            until it succeeds. Not stored.
        kept: the runs inside of nodes that may be attempted again, by scope, until the node commits. Not stored.
        trace: the trace that the run is a part of; None if it was not traced.
        lm_calls: the LM calls that are not written yet; None if none are to be written.
        used_before: what the processes before this one have used that worked on the run.
        totals_before: those of the thread before the run.
        resumes: how often the run was resumed since its last rerun.
        journal: writes the rows of the run; None for a run that is not stored.
        fetch_and_decode: the functions that read contents of its rows: one loads blobs, one decodes values.
    """

    effects: dict[RecordKey, Any] = field(default_factory=dict)
    in_progress: dict[RecordKey, Any] = field(default_factory=dict)
    items: dict[str, Any] = field(default_factory=dict)
    questions: dict[RecordKey, Question] = field(default_factory=dict)
    _asked: dict[str, list[RecordKey]] = field(default_factory=dict)  # the questions of each execution
    answers: dict[RecordKey, Any] = field(default_factory=dict)
    with_commit: dict[str, list[StoredRow]] = field(default_factory=dict)
    posts: dict[tuple[str, ...], dict[int, PostRow]] = field(default_factory=dict)
    new_responses: dict[RecordKey, int] = field(default_factory=dict)
    kept: dict[tuple[str, ...], KeptRun] = field(default_factory=dict)
    lm_calls: LMCallLog | None = None
    used_before: Mapping[str, Any] = field(default_factory=dict)
    totals_before: Totals = Totals()  # noqa: RUF009 - a value
    resumes: int = 0
    trace: StoredTrace | None = None
    journal: Journal | None = None
    fetch_and_decode: tuple[Fetch, DecodeValue] = (_no_blobs, encoding.decode)
    _commits: dict[tuple[str, ...], list[Row]] = field(default_factory=dict)
    # Executions that have committed, where a question may be open inside of one.
    _ended: set[str] = field(default_factory=set)
    _unwritten: deque[DraftRow] = field(default_factory=deque)

    # --- Reading rows

    def read(self, rows: Iterable[Row], fetch: Fetch, decode: DecodeValue = encoding.decode) -> None:
        """Add what the rows of a run have recorded, whatever their kind."""
        self.fetch_and_decode = (fetch, decode)
        for row in rows:
            kind = row.kind
            if kind in COMMITS:
                head = CommitRow.of(row)
                self._commits.setdefault(head.scope, []).append(row)
                self._ended.add(head.execution)
            elif kind == RowKind.ASK:
                self._add(QuestionRow.read(row, fetch).question())
            elif kind == RowKind.POST:
                post = PostRow.read(row, fetch, decode)
                self.posts.setdefault(post.scope, {})[post.seq] = post
            elif kind == RowKind.LAYER:
                added = LayerRow.read(row, fetch)
                self.with_commit.setdefault(added.execution, []).append(added)
            elif kind == RowKind.RESUME:
                self.resumes = self.resumes + 1 if ResumeRow.of(row).attempt else 0
            elif kind == RowKind.TRACE:
                self.trace = StoredTrace.of(row)
            elif kind == RowKind.ANSWER:
                given = AnswerRow.read(row, fetch, decode)
                key = RecordKey(given.execution, given.key)
                if given.retracted:
                    self.answers.pop(key, None)
                else:
                    self.answers[key] = given.value
            elif kind == RowKind.ONCE:
                effect = EffectRow.read(row, fetch, decode)
                self.effects[RecordKey(effect.execution, effect.key)] = effect.value
            elif kind == RowKind.ITEM:
                item = ItemRow.read(row, fetch, decode)
                self.items[item.execution] = item.value

    def commits(self, scope: tuple[str, ...]) -> list[Row]:
        """Return the rows of the commits of one scope."""
        return self._commits.get(scope, [])

    def lm_call_rows(self, execution: str) -> list[DraftRow]:
        """Take the LM calls of an execution that are not written yet, as rows that go before its next row."""
        return [] if self.lm_calls is None else self.lm_calls.rows_of(execution)

    # --- Runs inside of nodes

    def take_kept(self, scope: tuple[str, ...], attempts: tuple[int, ...]) -> KeptRun:
        """Take what an earlier attempt of the node at the end of `scope` has committed; an empty run if there is none.

        A module may call a program several times within one attempt. These are runs of their own.
        """
        kept = self.kept.pop(scope, None)
        return KeptRun(attempts) if kept is None or kept.attempts == attempts else kept._replace(attempts=attempts)

    def kept_within(self, scope: tuple[str, ...], execution: str) -> list[tuple[str, ...]]:
        """Return the scopes of the kept runs inside of an execution, or of the items of a map."""
        depth = len(scope)
        return [
            one
            for one in list(self.kept)
            if len(one) > depth and one[:depth] == scope and is_within(one[depth], execution)
        ]

    # --- Questions and answers

    def ask(self, question: Question, answer: AnswerSource = no_answer) -> bool:
        """Record a question that is new, and return whether it has an answer now.

        Args:
            question: the question.
            answer: asked for the answer if none is recorded.

        Raises:
            InputError: if the question takes no answer, and gets one.
        """
        key = RecordKey(question.execution, question.key)
        if key in self.answers:
            return True
        if key not in self.questions:
            self._add(question)
            self._unwritten.append(QuestionRow.of_question(question).row())
        given = answer(question)
        if given is MISSING:
            return False
        if question.answer is None and given is not None and given is not True:
            raise InputError(
                f"question {question.key!r} of node {question.node!r} takes no answer, and was given one: answer "
                "it with None or True"
            )
        self.answers[key] = frozen = freeze(given, ("answer",))
        self._unwritten.append(AnswerRow(*key, frozen).row())
        return True

    def retract_answer(self, key: RecordKey) -> None:
        """Remove an answer that does not fit its question: the question is open again."""
        if self.answers.pop(key, MISSING) is not MISSING:
            self._unwritten.append(AnswerRow(*key, retracted=True).row())

    def end_questions(self, execution: str) -> None:
        """Close the questions inside of an execution that commits: nothing waits for an answer any more.

        They are open still if the node has failed while a part of it waited, and an error edge takes the failure.
        """
        if len(self.answers) < len(self.questions):
            self._ended.add(execution)

    def open_questions(self) -> tuple[Question, ...]:
        """Return the questions without an answer whose executions have not ended."""
        asked = list(self.questions.items())
        return tuple([one for key, one in asked if key not in self.answers and not self._has_ended(key)])

    def _has_ended(self, asked: RecordKey) -> bool:
        around = ids_around(asked.execution)
        if asked.key != "after":  # which is asked when its execution has committed
            around.append(asked.execution)
        return not self._ended.isdisjoint(around)

    def questions_of(self, execution: str, answered: bool) -> list[Question]:
        """Return the questions of one execution that have an answer, or that have none, in the order of asking."""
        asked = list(self._asked.get(execution, ()))
        return [self.questions[key] for key in asked if (key in self.answers) is answered]

    def _add(self, question: Question) -> None:
        key = RecordKey(question.execution, question.key)
        self.questions[key] = question
        # A map with a question for each of its items asks for those of every item.
        self._asked.setdefault(key.execution, []).append(key)

    # --- Rows to write

    def queue_row(self, row: DraftRow) -> None:
        """Queue a row for the next write."""
        self._unwritten.append(row)

    def take_unwritten(self) -> list[DraftRow]:
        """Take all queued rows; of several threads that call this, each row goes to one."""
        rows = []
        while self._unwritten:
            try:
                rows.append(self._unwritten.popleft())
            except IndexError:  # another thread has taken the last one since the check
                break
        return rows


def check_row(row: Row, fetch: Fetch, decode: DecodeValue) -> None:
    """Read all of a row; raises what that raises, or `StateError`, for one that no run has written."""
    record = RECORDS.get(row.kind)
    if record is None:
        raise StateError(f"this dspyer writes no row of kind {row.kind!r}")
    record.read(row, fetch, decode)
    ExecutionRecords().read([row], fetch, decode)
    calls_in(row, fetch)
