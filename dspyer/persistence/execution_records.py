"""What the executions of a run have left behind beside their commits: answers, effects, items of maps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from dspyer.errors import InputError, brief
from dspyer.events import Question
from dspyer.persistence.rows import COMMITS, CommitContent, CommitHeader, NewRow, RowKind, decode_commit_content
from dspyer.stores.base import Row
from dspyer.stores.content import Content, Fetch
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze

MISSING: Any = object()
"""Stands for a result that is not there: `None` is one."""

AnswerSource = Callable[[Question], Any]


def no_answer(question: Question) -> Any:
    """Answers nothing."""
    del question
    return MISSING


class RecordKey(NamedTuple):
    """The name of something that an execution leaves behind.

    Attributes:
        execution: the id of the execution, with those around it.
        key: its name there.
    """

    execution: str
    key: str


class RecordedPost(NamedTuple):
    """A post to a live field.

    Attributes:
        seq: the number of its arrival.
        field: the field.
        node: who posted it; `"START"` for what was there when the run began.
        execution: the id of the execution, and of the commit that it makes.
        update: the update, frozen, as the node gave it.
        over: the posts to the same keys that its author had read: it replaces these, and no others. None for
            all before it.
    """

    seq: int
    field: str
    node: str
    execution: str
    update: Any
    over: tuple[int, ...] | None = None


class ExecutionRecords:
    """What a run remembers of its executions.

    Attributes:
        effects: results of `ctx.once`, frozen.
        items: results of the items of maps, frozen, by the item's execution.
        questions: all that were asked, by execution and key.
        posts: those to live fields by their numbers, by the executions around the run; None for one that was withdrawn.
        answers: frozen.
        resumes: how often the run was resumed.
        fetch_and_decode: where blobs of its rows come from, and what makes frozen values of their JSON form.
    """

    def __init__(self) -> None:
        self.effects: dict[RecordKey, Any] = {}
        self.items: dict[str, Any] = {}
        self.questions: dict[RecordKey, Question] = {}
        self.posts: dict[tuple[str, ...], dict[int, RecordedPost | None]] = {}
        self.answers: dict[RecordKey, Any] = {}
        self.resumes = 0
        self.fetch_and_decode: tuple[Fetch, Callable[[Any], Any]] = (_no_blobs, encoding.decode)
        self._commits: dict[tuple[str, ...], list[Row]] = {}
        self._keys: dict[str, list[str]] = {}
        self._unwritten: deque[NewRow] = deque()

    def read(self, rows: Iterable[Row], fetch: Fetch, decode: Callable[[Any], Any] = encoding.decode) -> None:
        """Remembers what the rows of a run say.

        Args:
            rows: rows of any kind.
            fetch: where blobs come from.
            decode: what makes frozen values of their JSON form.
        """
        self.fetch_and_decode = (fetch, decode)
        for row in rows:
            content = row.content
            if row.kind in COMMITS:
                self._commits.setdefault(CommitHeader.parse(row.header).scope, []).append(row)
            elif row.kind == RowKind.ASK:
                execution, key, node, branch, *run = row.header  # without a run where an earlier version has written it
                text, answer = read_question(content, fetch)
                self._ask(Question(key, text, answer, node, tuple(branch), execution, *run))
            elif row.kind in (RowKind.POST, RowKind.WITHDRAW):
                self._read_posts(row, fetch, decode)
            elif row.kind == RowKind.RESUME:
                self.resumes = self.resumes + 1 if row.header[0] else 0
            elif row.kind == RowKind.ANSWER and content is None:
                self.answers.pop(RecordKey(*row.header), None)
            elif content is None:
                continue
            elif row.kind == RowKind.ANSWER:
                self.answers[RecordKey(*row.header)] = content.value(fetch, decode)
            elif row.kind == RowKind.ONCE:
                self.effects[RecordKey(*row.header)] = content.value(fetch, decode)
            elif row.kind == RowKind.ITEM:
                self.items[row.header[0]] = content.value(fetch, decode)

    def _read_posts(self, row: Row, fetch: Fetch, decode: Callable[[Any], Any]) -> None:
        execution, scope, node, *rest = row.header
        posts = self.posts.setdefault(tuple(scope), {})
        if row.kind == RowKind.WITHDRAW:
            seq, withdrawn = rest
            posts.setdefault(seq, None)
            posts.update(dict.fromkeys(withdrawn))
        elif row.content is not None:
            field, seq, *over = rest
            written: CommitContent = row.content.value(fetch, lambda found: decode_commit_content(found, decode))
            update = (written.patch or {})[field]
            posts[seq] = RecordedPost(seq, field, node, execution, update, tuple(over[0]) if over else None)

    def queue_row(self, draft: NewRow) -> None:
        """Takes a row that is written with the next ones."""
        self._unwritten.append(draft)

    def commits(self, scope: tuple[str, ...]) -> list[Row]:
        """The rows of the commits of one scope."""
        return self._commits.get(scope, [])

    def ask(self, question: Question, answer: AnswerSource = no_answer) -> bool:
        """Whether a question is answered; one that is new is asked.

        Args:
            question: the question.
            answer: answers it if nobody has yet.

        Raises:
            InputError: if that is an answer to a question that takes none.
        """
        key = RecordKey(question.execution, question.key)
        if key in self.answers:
            return True
        if key not in self.questions:
            self._ask(question)
            self._unwritten.append(question_row(question))
        given = answer(question)
        if given is MISSING:
            return False
        if question.answer is None and given is not None and given is not True:
            raise InputError(
                f"question {question.key!r} of node {question.node!r} takes no answer, and was given {brief(given)}: "
                "give None to go on"
            )
        self.record_answer(key, freeze(given, ("answer",)))
        return True

    def _ask(self, question: Question) -> None:
        self.questions[RecordKey(question.execution, question.key)] = question
        self._keys.setdefault(question.execution, []).append(question.key)

    def record_answer(self, key: RecordKey, frozen: Any) -> None:
        """Takes an answer."""
        self.answers[key] = frozen
        self._unwritten.append(answer_row(key, frozen))

    def retract_answer(self, key: RecordKey) -> None:
        """Takes an answer back that does not fit its question, which is open again."""
        if self.answers.pop(key, MISSING) is not MISSING:
            self._unwritten.append(NewRow(RowKind.ANSWER, tuple(key)))

    def take_unwritten(self) -> list[NewRow]:
        """The rows of questions and answers that were not written yet. May be called from any thread, each row once."""
        drafts = []
        while self._unwritten:
            try:
                drafts.append(self._unwritten.popleft())
            except IndexError:  # another thread was faster
                break
        return drafts

    def open_questions(self) -> tuple[Question, ...]:
        """The questions that have no answer."""
        return tuple([question for key, question in list(self.questions.items()) if key not in self.answers])

    def open_questions_of(self, execution: str) -> tuple[Question, ...]:
        """The questions of one execution that have no answer."""
        keys = [RecordKey(execution, key) for key in self._keys.get(execution, ())]
        return tuple([self.questions[key] for key in keys if key not in self.answers])

    def answered_keys(self, execution: str) -> list[str]:
        """The keys of the questions of one execution that have an answer."""
        return [key for key in self._keys.get(execution, ()) if RecordKey(execution, key) in self.answers]


def _no_blobs(ids: Collection[str]) -> Mapping[str, bytes]:
    """A run that is not stored has no blobs."""
    del ids
    return {}


def read_question(content: Content | None, fetch: Fetch) -> tuple[str, Mapping[str, Any] | None]:
    """Text and answer schema of a question."""
    text, answer = ("", None) if content is None else content.value(fetch, lambda plain: plain)
    return text, answer


def question_row(question: Question) -> NewRow:
    """The row of a question."""
    head = (question.execution, question.key, question.node, list(question.branch), question.run)
    return NewRow(RowKind.ASK, head, Content((question.text, question.answer), list))


def answer_row(key: RecordKey, frozen: Any) -> NewRow:
    """The row of an answer."""
    return NewRow(RowKind.ANSWER, tuple(key), Content(frozen))


def effect_row(key: RecordKey, frozen: Any) -> NewRow:
    """The row of the result of an effect."""
    return NewRow(RowKind.ONCE, tuple(key), Content(frozen))


def item_row(execution: str, frozen: Any) -> NewRow:
    """The row of the result of one item of a map."""
    return NewRow(RowKind.ITEM, (execution,), Content(frozen))
