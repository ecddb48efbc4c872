"""A module that writes the value that its field already has is judged as any other: patches hold only what changed."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, Run, optimize
from dspyer.testing import ScriptedLM


class Rounds(BaseModel):
    question: str
    current: str = ""
    draft: str = ""
    rounds: int = 0
    answer: str = ""


def keep(draft: str, rounds: int) -> dict[str, Any]:
    return {"current": draft, "rounds": rounds + 1}


def twice(rounds: int) -> str:
    return "sum_up" if rounds == 2 else "revise"


def program() -> Any:
    graph = Graph(Rounds, name="Unchanged")
    graph.add_node("start", dspy.Predict("question -> current"))
    graph.add_node("revise", dspy.Predict("current -> draft"))
    graph.add_node("keep", keep, writes=["current", "rounds"])
    graph.add_node("sum_up", dspy.Predict("draft -> answer"))
    graph.add_path(START, "start", "revise", "keep")
    graph.add_conditional_edges("keep", twice, ["sum_up", "revise"])
    graph.add_edge("sum_up", END)
    return graph.compile()


METRIC = optimize.by_field(
    {
        "current": lambda example, current, state: current == example.drafts[state["rounds"]],
        "draft": lambda example, draft, state: draft == example.drafts[state["rounds"] + 1],
        "answer": optimize.equals("final"),
    },
    goal="answer",
)
EXAMPLE = dspy.Example(question="q", drafts=["a", "b", "c"], final="C").with_inputs("question")


@pytest.mark.parametrize(
    ("drafts", "culprit", "visits"),
    [
        (("b", "b"), "revise", {1: "right", 2: "wrong"}),  # the second visit leaves the draft as it is
        (("a", "a"), "revise", {1: "wrong", 2: "wrong"}),  # the first one does: its draft is copied unchanged, twice
        (("b", "c"), "sum_up", {1: "right", 2: "right"}),
    ],
)
def test_the_culprit_is_the_module_that_left_a_value_as_it_was(
    drafts: tuple[str, str], culprit: str, visits: dict[int, str]
) -> None:
    replies: list[dict[str, Any]] = [{"current": "a"}, *({"draft": draft} for draft in drafts), {"answer": "?"}]
    with ScriptedLM(replies), dspy.context(trace=[]):
        pred = program()(question="q")
        trace = list(dspy.settings.trace)
    found = optimize.culprits(Run.of(pred), EXAMPLE, METRIC)
    assert list(found.shares) == [culprit]
    assert {note.visit: note.verdict for note in found.notes if note.field == "draft"} == visits
    texts = [METRIC(EXAMPLE, pred, trace, "revise", [step]).feedback for step in trace[1:3]]
    wrong = [visit for visit, verdict in visits.items() if verdict == "wrong"]
    assert [text != "`draft` is right." for text in texts] == [visit in wrong for visit in (1, 2)]
    if drafts == ("a", "a"):
        assert texts[1] == "`draft` follows from `current`, which was already wrong: nothing to fix here."


def test_a_value_that_was_left_as_it_was_is_asked_for_again() -> None:
    few = optimize.FewShot(METRIC, rollouts=2, max_labeled_demos=0)
    replies: list[dict[str, Any]] = [{"current": "a"}, {"draft": "b"}, {"draft": "b"}, {"draft": "c"}, {"answer": "C"}]
    with ScriptedLM(replies) as lm:
        tuned = few.compile(program(), trainset=[EXAMPLE])
    assert len(lm.calls) == 5
    assert [demo.answer for demo in tuned.sum_up.demos] == ["C"]


def test_a_router_that_decides_the_same_again_is_judged_again() -> None:
    class State(BaseModel):
        question: str
        rounds: int = 0
        label: str = ""
        answer: str = ""

    graph = Graph(State, name="Routed")
    graph.add_node("count", lambda rounds: {"rounds": rounds + 1}, writes=["rounds"])
    graph.add_node("reply", dspy.Predict("question -> answer"))
    verdict = dspy.Predict("question, rounds: int -> label: Literal['again', 'done']")
    graph.add_edge(START, "count")
    graph.add_conditional_edges("count", verdict, {"again": "count", "done": "reply"}, writes="label")
    graph.add_edge("reply", END)
    metric = optimize.by_field(
        {
            "label": lambda example, label, state: label == ("again" if state["rounds"] < example.rounds else "done"),
            "answer": optimize.equals("final"),
        },
        goal="answer",
    )
    example = dspy.Example(question="q", rounds=1, final="A")
    with ScriptedLM([{"label": "again"}, {"label": "again"}, {"label": "done"}, {"answer": "B"}]):
        pred = graph.compile()(question="q")
    found = optimize.culprits(Run.of(pred), example, metric)
    labels = [note for note in found.notes if note.field == "label"]
    assert [note.verdict for note in labels] == ["wrong", "wrong", "right"]
