"""Answers to the questions of a run that waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dspyer.errors import InputError, ThreadError, brief
from dspyer.events import Question
from dspyer.graph.spec import GraphSpec
from dspyer.nodes.answer_types import validated
from dspyer.nodes.interrupt import InterruptNode
from dspyer.persistence.execution_records import ExecutionRecords, RecordKey
from dspyer.values.freezing import freeze, same


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
        listed = ", ".join(repr(question.key) for question in memo.open())
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
        if isinstance(node, InterruptNode) and question.key == node.name:
            validated(node.answer, frozen, question)
        elif question.answer is None:
            validated(None, frozen, question)
        found[key] = frozen
    for question in memo.open():
        if question.answer is None:
            found.setdefault(RecordKey(question.execution, question.key), None)
    return found


def _question(memo: ExecutionRecords, name: str) -> Question:
    questions = list(memo.questions.values())
    named = [question for question in questions if question.id == name]
    opened = [question for question in memo.open() if question.key == name]
    closed = [question for question in questions if question.key == name]
    if len(named or opened or closed) == 1:
        return (named or opened or closed)[0]
    listed = ", ".join(repr(question.id) for question in memo.open()) or "none"
    if opened:
        raise ThreadError(f"{len(opened)} open questions have the key {name!r}: answer each by its id: {listed}")
    raise ThreadError(
        f"the last run has no open question {name!r} (another run may have asked it). Open questions: {listed}"
    )
