"""Answers to questions of a thread: refused before anything is stored, or stored before anything runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from dspyer import END, START, Breakpoints, CompiledGraph, Context, Graph, Run, Thread, errors
from dspyer.stores.base import Store
from tests.rows import each


def asking(answer: Any) -> CompiledGraph:
    graph = Graph()
    graph.add_interrupt("ask", question="Well?", answer=answer, into=None if answer is None else "said")
    return graph.add_path(START, "ask", END).compile(store=":memory:")


@pytest.mark.parametrize(
    ("answer", "refused", "given", "kept"),
    [
        (bool, "no", False, False),
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


def test_questions_are_in_branch_order_whoever_has_asked_first() -> None:
    """Also those of graphs inside, and of more than ten items."""
    inner = Graph(inputs=["n"]).add_interrupt("ok", question="{n}?", answer=bool, into="said")
    inner.add_path(START, "ok", END)
    graph = Graph().add_map("each", inner, over="ns", item="n", into="found").add_node("inside", inner)
    graph.add_interrupt("own", question="own?", answer=bool, into="own")
    graph.add_edge(START, ["own", "each", "inside"]).add_edge(["own", "each", "inside"], END)
    thread = graph.compile(store=":memory:").thread("t")
    run = thread.run({"ns": list(range(12)), "n": 12})
    expected = ["own?", *[f"{n}?" for n in range(13)]]
    assert [question.text for question in run.questions] == expected
    assert [question.text for question in thread.questions] == expected


def test_a_question_without_an_answer_type_refuses_answers() -> None:
    thread = asking(None).thread("t")
    thread.run({})
    with pytest.raises(errors.InputError, match="takes no answer"):
        thread.resume({"ask": False})
    assert thread.resume().status == "completed"


def approving(store: Store | str = ":memory:") -> CompiledGraph:
    def work(n: int, ctx: Context) -> dict[str, Any]:
        return {"ok": ctx.interrupt("approve", f"send {n}?", bool)}

    return Graph().add_node("work", work, reads=["n"], writes=["ok"]).add_path(START, "work", END).compile(store=store)


def test_an_answer_by_id_delivered_twice_does_not_answer_the_next_run() -> None:
    thread = approving().thread("t")
    first = thread.run({"n": 1}).questions[0].id
    assert first == "t.1/trunk:1/approve"
    thread.resume({first: True})
    second = thread.run({"n": 2}).questions[0].id
    assert second == "t.2/trunk:1/approve"
    with pytest.raises(errors.ThreadError, match=rf"no open question '{first}' .* Open questions: '{second}'"):
        thread.resume({first: True})
    assert (thread.status, "ok" in thread.questions[0].id) == ("interrupted", False)
    assert thread.resume({second: False}).state["ok"] is False


@pytest.mark.parametrize("by_key_first", [True, False])
def test_two_answers_to_one_question_in_one_call_are_refused(by_key_first: bool) -> None:
    thread = approving().thread("t")
    sent = thread.run({"n": 1}).questions[0].id
    answers = {"approve": False, sent: True} if by_key_first else {sent: True, "approve": False}
    with pytest.raises(errors.ThreadError, match=f"question '{sent}' is given two answers"):
        thread.resume(answers)
    assert [question.id for question in thread.questions] == [sent]
    assert thread.resume({"approve": True, sent: True}).state["ok"] is True


def test_a_key_of_similar_spelling_is_offered_and_never_for_an_id() -> None:
    thread = approving().thread("t")
    thread.run({"n": 1})
    with pytest.raises(errors.ThreadError, match=r"'aprove' .*\. Did you mean 'approve'\? Open questions: "):
        thread.resume({"aprove": True})
    with pytest.raises(errors.ThreadError, match="no open question") as refused:
        thread.resume({"t/approve": True})
    assert "Did you mean" not in str(refused.value)


def test_a_rerun_asks_again_and_an_abandoned_question_gets_no_answer_of_later_runs() -> None:
    thread = approving().thread("t")
    first = thread.run({"n": 1}).questions[0].id
    second = thread.run({"n": 2}, if_open="abandon").questions[0].id
    third = thread.rerun(from_version=1).questions[0].id
    assert len({first, second, third}) == 3
    for late in (first, second):
        with pytest.raises(errors.ThreadError, match="no open question"):
            thread.resume({late: True})
    assert thread.resume({third: True}).state["n"] == 2


@pytest.mark.parametrize("change", ["nothing", "an update", "a copy", "another process"])
def test_the_id_of_an_open_question_never_changes(change: str, tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    thread = approving(path).thread("t")
    sent = thread.run({"n": 1}).questions[0].id
    if change == "an update":
        thread.update({"m": 1})
    elif change == "a copy":
        thread = thread.copy(to="u")
    elif change == "another process":
        thread = approving(path).thread("t")
    assert [question.id for question in thread.questions] == [sent]
    assert [question.id for question in thread.resume().questions] == [sent]
    assert thread.resume({sent: True}).state["ok"] is True


def test_ids_of_questions_before_and_after_nodes_and_in_graphs_inside_name_the_run() -> None:
    inner = Graph().add_node("work", lambda n, ctx: {"ok": ctx.interrupt("approve", "?", bool)}, writes=["ok"])
    graph = Graph().add_node("inside", inner.add_path(START, "work", END).compile(), writes=["ok"])
    graph = graph.add_path(START, "inside", END)
    thread = graph.compile(store=":memory:", layers=[Breakpoints(before=["inside"], after=["inside"])]).thread("a/b")
    assert [question.id for question in thread.run({"n": 1}).questions] == ["a/b.1/trunk:1/before"]
    assert [question.id for question in thread.resume().questions] == ["a/b.1/trunk:1/trunk:1/approve"]
    run = thread.resume({"a/b.1/trunk:1/trunk:1/approve": True})
    assert [question.id for question in run.questions] == ["a/b.1/trunk:1/after"]
    assert thread.resume({"a/b.1/trunk:1/after": None}).status == "completed"


# --- an answer that is delivered twice


class Steps:
    """Two questions, one after the other, and the calls of the nodes that ask and use them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = False

    def ask(self, ctx: Context) -> dict[str, Any]:
        self.calls.append(ctx.node)
        return {ctx.node: ctx.interrupt("ok", f"{ctx.node}?", bool)}

    def last(self) -> None:
        self.calls.append("last")
        if self.fails:
            raise ValueError("not yet")

    def thread(self, store: Store) -> Thread:
        graph = Graph(inputs=[]).add_node("one", self.ask, writes=["one"]).add_node("two", self.ask, writes=["two"])
        graph.add_node("last", self.last, writes=[])
        return graph.add_path(START, "one", "two", "last", END).compile(store=store).thread("t")


def resume(t: Thread, answers: Any) -> Run:
    return t.resume(answers)


def aresume(t: Thread, answers: Any) -> Run:
    return asyncio.run(t.aresume(answers))


def stream_resume(t: Thread, answers: Any) -> Run:
    events = t.stream_resume(answers)
    assert [type(event).__name__ for event in events][-1] == "RunEnded"
    return events.run


@each("deliver", [resume, aresume, stream_resume])
def test_an_answer_that_comes_again_returns_the_run_as_stored(deliver: Callable[..., Run], store: Store) -> None:
    steps = Steps()
    t = steps.thread(store)
    one = t.run({}).questions[0].id
    two = deliver(t, {one: True}).questions[0].id
    called = ["one", "one", "two"]
    again = deliver(t, {one: True})
    assert (again.status, [question.id for question in again.questions], steps.calls) == ("interrupted", [two], called)
    done = deliver(t, {two: False})
    called += ["two", "last"]
    for answers in ({one: True}, {two: False}, {one: True, two: False}):
        history = t.history()
        again = deliver(steps.thread(store), answers)
        assert (again.status, again.state, again.run_id) == ("completed", done.state, done.run_id)
        assert (steps.calls, t.history()) == (called, history)


def test_an_answer_that_comes_again_and_differs_is_refused(store: Store) -> None:
    steps = Steps()
    t = steps.thread(store)
    one = t.run({}).questions[0].id
    two = t.resume({one: True}).questions[0].id
    with pytest.raises(errors.ThreadError, match="was answered already, with True"):
        t.resume({one: False})
    t.resume({two: True})
    for wrong in ({one: False}, {one: True, two: False}):
        with pytest.raises(errors.ThreadError, match="was answered already, with True"):
            t.resume(wrong)
    for unknown in ({"ok": True}, {"t.1/trunk:9/ok": True}, {one: True, "t.2/trunk:1/ok": True}):
        with pytest.raises(errors.ThreadError, match="nothing to resume"):
            t.resume(unknown)
    assert steps.calls == ["one", "one", "two", "two", "last"]


def test_an_answer_that_comes_again_after_a_failure_resumes_the_run(store: Store) -> None:
    """The worker that had the answer has failed, or was killed: its queue delivers the answer to another one."""
    steps = Steps()
    t = steps.thread(store)
    one = t.run({}).questions[0].id
    two = t.resume({one: True}).questions[0].id
    steps.fails = True
    assert t.resume({two: True}).status == "failed"
    steps.fails = False
    assert t.resume({two: True}).status == "completed"
    assert steps.calls == ["one", "one", "two", "two", "last", "last"]


def test_an_answer_that_comes_late_is_refused(store: Store) -> None:
    steps = Steps()
    t = steps.thread(store)
    first = t.run({}).questions[0].id
    t.resume({t.resume({first: True}).questions[0].id: True})
    second = t.run({}).questions[0].id
    with pytest.raises(errors.ThreadError, match="no open question"):
        t.resume({first: True})
    t.resume({t.resume({second: True}).questions[0].id: True})
    with pytest.raises(errors.ThreadError, match="nothing to resume"):
        t.resume({first: True})


def test_an_answer_that_comes_again_does_not_go_on_past_a_pause(store: Store) -> None:
    """A question that takes no answer is a pause, which each `resume` ends; an old answer is no such decision."""
    graph = Graph().add_node("work", lambda ctx: {"ok": ctx.interrupt("ok", "?", bool)}, writes=["ok"])
    graph.add_node("send", lambda: {"sent": True}, writes=["sent"]).add_path(START, "work", "send", END)
    t = graph.compile(store=store, layers=[Breakpoints(before=["send"])]).thread("t")
    one = t.run({}).questions[0].id
    for _ in range(2):
        assert t.resume({one: True}).status == "interrupted"
    assert t.resume().state["sent"] is True


@pytest.mark.parametrize("completed", [False, True])
def test_answers_without_their_questions_are_refused(completed: bool) -> None:
    thread = asking(bool).thread("t")
    thread.run({})
    if completed:
        thread.resume({"ask": True})
    with pytest.raises((errors.InputError, errors.ThreadError), match=r"finished its last run|not as"):
        thread.resume([True])  # type: ignore[arg-type]


@pytest.mark.parametrize("hiding", ["the graph around it", "the graph itself"])
def test_an_answer_to_a_graph_inside_is_refused_at_once_and_not_shown(hiding: str) -> None:
    """The graph around it may redact the answer, which the one inside does not know."""
    outer, own = (["token"], None) if hiding == "the graph around it" else (None, ["token"])
    inner = Graph(inputs=["q"]).add_interrupt(
        "pin", question="Which?", answer=Annotated[int, Field(multiple_of=2)], into="token"
    )
    graph = Graph(inputs=["q"]).add_node("inner", inner.add_path(START, "pin", END).compile(redact=own))
    thread = graph.add_path(START, "inner", END).compile(store=":memory:", redact=outer).thread("t")
    (question,) = thread.run({"q": "x"}).questions
    for wrong, text in (("no number: 4711", "is no int: Input should be a valid integer"), (4711, "a multiple of 2")):
        with pytest.raises(errors.InputError, match=text) as caught:
            thread.resume({question.id: wrong})
        assert "4711" not in str(caught.value)
        assert thread.answers == ()
    assert thread.resume({question.id: 4712}).state["token"] == 4712
