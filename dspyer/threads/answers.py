"""Check the answers that a caller gives to the open questions of a run, before anything is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from dspyer.display.redaction import HIDDEN
from dspyer.errors import InputError, ThreadError, brief, suggestion
from dspyer.events import Question
from dspyer.graph.spec import GraphSpec
from dspyer.ids import Address
from dspyer.nodes.answer_types import check_shape, validated
from dspyer.persistence.execution_records import ExecutionRecords, RecordKey
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import thaw


def were_given(records: ExecutionRecords, answers: Mapping[str, Any], graph: GraphSpec, completed: bool) -> bool:
    """Whether a run has had each of these answers before: they were delivered again.

    To a `completed` run that can only be said of an answer by id. Raises `ThreadError` for one that differs.
    """
    if not isinstance(cast(object, answers), Mapping):
        return False
    asked = _Asked(records)
    for name, answer in answers.items():
        if completed and name not in asked.ids:
            return False
        if not _was_given(records, asked.named(name), name, freeze(answer), graph):
            return False
    return True


def _was_given(records: ExecutionRecords, question: Question, name: str, frozen: Any, graph: GraphSpec) -> bool:
    key = RecordKey(question.execution, question.key)
    if key not in records.answers:
        return False
    if not same(records.answers[key], frozen):
        raise ThreadError(f"question {name!r} was answered already, with {_shown(graph, records.answers[key])}")
    return True


def given_answers(records: ExecutionRecords, answers: Mapping[str, Any], graph: GraphSpec) -> dict[RecordKey, Any]:
    """The frozen answers that a resume adds: those of the caller, and None for each question that needs no answer.

    `answers` are by the id of a question, or by its key if only one open question has it. Raises `ThreadError` for an
    answer that fits no open question, several, or one that has another answer; `InputError` for one of the wrong type.

    Of an answer to a question that a node asks in its own code, or in a graph inside, the class is not known before the
    node runs again: until then it must have the types of the question's JSON schema.
    """
    if not isinstance(cast(object, answers), Mapping):
        listed = ", ".join(repr(question.key) for question in records.open_questions())
        raise InputError(
            f"answers come by the key or id of their question, resume({{'key': answer}}), not as {brief(answers)}. "
            f"Open questions: {listed or 'none'}"
        )
    given: dict[RecordKey, Any] = {}
    asked = _Asked(records)
    for name, answer in answers.items():
        question = asked.named(name)
        key = RecordKey(question.execution, question.key)
        frozen = freeze(answer)
        if _was_given(records, question, name, frozen, graph):
            continue  # the same answer, delivered twice
        if not same(given.get(key, frozen), frozen):
            raise ThreadError(
                f"question {question.id!r} is given two answers, by its key and by its id: {_shown(graph, given[key])} "
                f"and {_shown(graph, frozen)}. Nothing was stored: give it one"
            )
        shown = _shown(graph, frozen)
        node = None if Address.parse(question.execution).scope else graph.nodes.get(question.node)
        if node is not None and question.key in node.answer_types:
            validated(node.answer_types[question.key], frozen, question, shown)
        elif question.answer is None:
            validated(None, frozen, question, shown)
        else:
            check_shape(thaw(frozen), question, f" {shown}")
        given[key] = frozen
    for question in asked.open:
        if question.answer is None:
            given.setdefault(RecordKey(question.execution, question.key), None)
    return given


def _shown(graph: GraphSpec, answer: Any) -> str:
    """An answer as errors show it. Not at all if the graph hides values: what an answer is for, is not known here."""
    return brief(answer) if graph.redaction is None else HIDDEN


class _Asked:
    """The questions of a run, as answers name them: found once, since a run may ask thousands."""

    def __init__(self, records: ExecutionRecords) -> None:
        self.open = records.open_questions()
        self.ids = {question.id: question for question in records.questions.values()}
        self._keys = self._by_key(records.questions.values())
        self._open_keys = self._by_key(self.open)

    @staticmethod
    def _by_key(questions: Iterable[Question]) -> dict[str, list[Question]]:
        found: dict[str, list[Question]] = {}
        for question in questions:
            found.setdefault(question.key, []).append(question)
        return found

    def named(self, name: str) -> Question:
        """The question with this id, or else the only one with this key; an open one before one that was answered."""
        if name in self.ids:
            return self.ids[name]
        open_with_key = self._open_keys.get(name, [])
        candidates = open_with_key or self._keys.get(name, [])
        if len(candidates) == 1:
            return candidates[0]
        ids = ", ".join(repr(question.id) for question in self.open) or "none"
        if open_with_key:
            raise ThreadError(
                f"{len(open_with_key)} open questions have the key {name!r}: answer each by its id: {ids}"
            )
        # An id is that of another run or call: its answer must not be given to the question that is open now.
        meant = suggestion(name, [] if "/" in str(name) else list(self._open_keys))
        raise ThreadError(
            f"the last run has no open question {name!r} (another run may have asked it).{meant} Open questions: {ids}"
        )
