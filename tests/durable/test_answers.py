"""Answers that a thread is given: refused before anything is stored, or kept before anything runs."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from dspyer import END, START, Graph, errors
from dspyer.program import CompiledGraph


def asking(answer: Any) -> CompiledGraph:
    graph = Graph()
    graph.add_interrupt("ask", question="Well?", answer=answer, into=None if answer is None else "said")
    return graph.add_path(START, "ask", END).compile(store=":memory:")


@pytest.mark.parametrize(
    ("answer", "refused", "given", "kept"),
    [
        (bool, "perhaps", "no", False),
        (int, "many", 0, 0),
        (Literal["a", "b"], "c", "b", "b"),
        (str, 7, "", ""),
        (int | None, "x", None, None),
    ],
)
def test_an_answer_that_does_not_fit_changes_nothing(answer: Any, refused: Any, given: Any, kept: Any) -> None:
    thread = asking(answer).thread("t")
    thread.run({})
    before = thread.history()
    with pytest.raises(errors.InputError, match="'ask'"):
        thread.resume({"ask": refused})
    assert (thread.status, thread.history()) == ("interrupted", before)
    assert [question.key for question in thread.questions] == ["ask"]
    assert thread.resume({"ask": given}).state["said"] == kept


def test_a_question_that_takes_no_answer_refuses_one() -> None:
    thread = asking(None).thread("t")
    thread.run({})
    with pytest.raises(errors.InputError, match="takes no answer"):
        thread.resume({"ask": False})
    assert thread.resume().status == "completed"
