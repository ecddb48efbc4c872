"""What a thread says of itself without a look at its states: from its last rows, however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from dspyer.dspy_module.tracing import add_tokens
from dspyer.errors import InputError, ThreadError, brief
from dspyer.events import Question
from dspyer.graph.spec import GraphSpec
from dspyer.nodes.answer_types import validated
from dspyer.persistence.execution_records import ExecutionRecords, RecordKey
from dspyer.persistence.reader import ending_row, newest_rows, read_runs
from dspyer.persistence.rows import CommitHeader, RowKind
from dspyer.stores.base import Point, Row, Store
from dspyer.threads.ownership import is_alive
from dspyer.values.freezing import freeze, same

PROGRESS = (RowKind.COMMIT, RowKind.JOIN, RowKind.ITEM, RowKind.ONCE, RowKind.ANSWER, RowKind.END)
"""Rows that show that a run has come further."""


def status_of(store: Store, thread: str) -> str:
    """What a thread does, or how its last run ended.

    Args:
        store: where it is kept.
        thread: its name.
    """
    row = store.thread(thread)
    while row is not None and row.head is not None:
        end = last_end(store, row.head)
        if end is not None:
            return str(end.header[0])
        if is_alive(row):
            return "running"
        now = store.thread(thread)
        if now is None or now.head == row.head:  # its owner has gone without a word
            return "crashed"
        row = now
    return "new"


def last_end(store: Store, at: Point) -> Row | None:
    """The row that says how a run ended; None if it has not ended, or was resumed since.

    Args:
        store: where it is kept.
        at: its last row.
    """
    return ending_row(row for _, row in newest_rows(store, at))


def questions_in(store: Store, at: Point) -> list[Row]:
    """The rows of the questions of a run that may be open, and of answers to them, in order.

    A commit after which one branch was live leaves no question open: every execution before it had ended.

    Args:
        store: where it is kept.
        at: its last row.
    """
    return list(_questions(store, at))[::-1]


def _questions(store: Store, at: Point) -> Iterator[Row]:
    for _, row in newest_rows(store, at):
        if row.kind in (RowKind.ASK, RowKind.ANSWER):
            yield row
        elif row.kind == RowKind.OPEN:
            return
        elif row.kind in (RowKind.COMMIT, RowKind.JOIN):
            head = CommitHeader.parse(row.header)
            if head.settled and not head.scope:
                return


def usage_of(store: Store, thread: str) -> dict[str, dict[str, Any]]:
    """The tokens of all runs of a thread, by language model, as far as they have said how they ended.

    Args:
        store: where it is kept.
        thread: its name.
    """
    row = store.thread(thread)
    total: dict[str, dict[str, Any]] = {}
    if row is not None and row.head is not None:
        for run in read_runs(store, [row.head], row.root):
            for end in run.rows:
                if end.kind == RowKind.END and len(end.header) > 2:
                    add_tokens(total, end.header[2])
    return total


def resumes(rows: Sequence[Row]) -> int:
    """How often a run was resumed since it last came further.

    Args:
        rows: of the run.
    """
    count = 0
    for row in reversed(rows):
        if row.kind in PROGRESS or (row.kind == RowKind.RESUME and not row.header[0]):
            break
        count += row.kind == RowKind.RESUME
    return count


# --------------------------------------------------------------------------------------------------------------------
# Answers to the questions of a run that waits.


def given_answers(memo: ExecutionRecords, answers: Mapping[str, Any], blueprint: GraphSpec) -> dict[RecordKey, Any]:
    """What a resume answers: what it was given, and the questions that need no answer.

    Args:
        memo: what the run has asked and been told.
        answers: by the key of a question where one open question has it, else by its id.
        blueprint: the graph. What a node asks in its own code, or in a graph inside, is validated when it runs again.

    Returns:
        The frozen answers by execution and key.

    Raises:
        ThreadError: if an answer answers no open question, or several, or one that has another answer already
            or gets two.
        InputError: if an answer is none of the type that was asked for, or the answers are no mapping.
    """
    if not isinstance(cast(object, answers), Mapping):
        listed = ", ".join(repr(question.key) for question in memo.open_questions())
        raise InputError(
            f"answers come by the key or id of their question, resume({{'key': answer}}), not as {brief(answers)}. "
            f"Open questions: {listed or 'none'}"
        )
    found: dict[RecordKey, Any] = {}
    for name, answer in answers.items():
        question = _question(memo, name)
        key = RecordKey(question.execution, question.key)
        frozen = freeze(answer)
        if key in memo.answers:
            if not same(memo.answers[key], frozen):
                raise ThreadError(f"question {name!r} was answered already, with {brief(memo.answers[key])}")
            continue
        if not same(found.get(key, frozen), frozen):
            raise ThreadError(
                f"question {question.id!r} is given two answers, by its key and by its id: {brief(found[key])} and "
                f"{brief(frozen)}. Nothing was taken: give it one"
            )
        node = None if "/" in question.execution else blueprint.nodes.get(question.node)
        if node is not None and question.key in node.answer_types:
            validated(node.answer_types[question.key], frozen, question)
        elif question.answer is None:
            validated(None, frozen, question)
        found[key] = frozen
    for question in memo.open_questions():
        if question.answer is None:
            found.setdefault(RecordKey(question.execution, question.key), None)
    return found


def _question(memo: ExecutionRecords, name: str) -> Question:
    questions = list(memo.questions.values())
    named = [question for question in questions if question.id == name]
    opened = [question for question in memo.open_questions() if question.key == name]
    closed = [question for question in questions if question.key == name]
    if len(named or opened or closed) == 1:
        return (named or opened or closed)[0]
    listed = ", ".join(repr(question.id) for question in memo.open_questions()) or "none"
    if opened:
        raise ThreadError(f"{len(opened)} open questions have the key {name!r}: answer each by its id: {listed}")
    raise ThreadError(
        f"the last run has no open question {name!r} (another run may have asked it). Open questions: {listed}"
    )
