"""`run.repairs()` and `thread.repairs()`: the corrections that a check accepted, as training examples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Breakpoints, CompiledGraph, Graph, Send, fill, reducers, view
from dspyer.errors import CheckError
from dspyer.testing import ScriptedLM, no_pauses
from tests.runtime.conftest import Play, play

__all__ = ["play"]

DRAFT = "question -> answer, cites: list[str]"


def answer(text: str, *cites: str) -> dict[str, Any]:
    return {"answer": text, "cites": list(cites)}


def cited(cites: list[str]) -> list[str]:
    return [] if cites else ["no source was cited"]


def graph(**options: Any) -> Graph:
    made = Graph().add_node("draft", dspy.Predict(DRAFT)).add_check("cited", cited, of="draft", **options)
    return made.add_path(START, "draft", END)


def test_a_correction_is_an_example(play: Play) -> None:
    with ScriptedLM([answer("a"), answer("b"), answer("c", "x")]):
        run = play(graph().compile(), {"question": "q"})
    (example,) = run.repairs()
    assert dict(example.inputs()) == {"question": "q"}
    assert (example.answer, example.cites) == ("c", ["x"])
    assert example.problems == [["no source was cited"]] * 2
    assert example.rejected == [{"answer": "a", "cites": []}, {"answer": "b", "cites": []}]
    assert example.commit == run.commits[-1].id


NONE: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "passed at once": ({}, [answer("a", "x")]),
    "accepted": ({"max_fixes": 1, "accept": True}, [answer("a"), answer("b")]),
    "refused to the end": ({"max_fixes": 1}, [answer("a"), answer("b")]),
    "accepted at once": ({"max_fixes": 0, "accept": True}, [answer("a")]),
}


@pytest.mark.parametrize(("options", "answers"), NONE.values(), ids=NONE)
def test_only_what_a_check_accepted_is_an_example(options: dict[str, Any], answers: list[Any]) -> None:
    with ScriptedLM(answers):
        run = graph(**options).compile().run({"question": "q"})
    assert run.repairs() == []


def test_the_inputs_are_those_that_the_node_has_read(play: Play) -> None:
    """Renamed, through a view, filled into a template, and overwritten since."""

    class Story(BaseModel):
        text: str
        notes: Annotated[list[str], reducers.append] = []
        topic: str = "bees"
        problems: list[str] = []

    made = Graph(Story, inputs=["text", "topic"])
    made.add_node("note", lambda: {"notes": "first"}, writes=["notes"])
    reads = {"draft": "text", "news": view("notes").new(), "task": fill("Write on {topic}")}
    module = dspy.Predict("draft, news: list[str], task -> better")
    made.add_node("revise", module, reads=reads, writes={"better": "text"})
    made.add_check("good", lambda text: [] if text == "good" else ["bad"], of="revise")
    made.add_path(START, "note", "revise", END)
    with ScriptedLM([{"better": "bad"}, {"better": "good"}]):
        run = play(made.compile(), {"text": "old"})
    (example,) = run.repairs()
    assert dict(example.inputs()) == {"draft": "old", "news": ["first"], "task": "Write on bees"}
    assert example.better == "good"


class Docs(BaseModel):
    docs: list[str]
    summaries: dict[str, str] = {}
    problems: list[str] = []


def spread(docs: list[str]) -> list[Send]:
    return [Send("shorten", {"doc": doc}) for doc in docs]


def in_sends() -> Graph:
    made = Graph(Docs)
    made.add_node("shorten", lambda doc: {"summaries": {doc: doc * 2}}, writes=["summaries"])
    made.add_check(
        "short",
        lambda doc, summaries: [] if len(summaries[doc]) < 3 else [f"{doc} is long"],
        of="shorten",
        fix=lambda doc: {"summaries": {doc: doc[:1]}},
    )
    return made.add_conditional_edges(START, spread, ["shorten"]).add_edge("shorten", END)


def in_a_map() -> Graph:
    inner = Graph(name="One", inputs=["doc"], outputs=["summary"])
    inner.add_node("shorten", lambda doc: {"summary": doc * 2}, writes=["summary"])
    inner.add_check(
        "short",
        lambda summary: [] if len(summary) < 3 else ["too long"],
        of="shorten",
        fix=lambda doc: {"summary": doc[:1]},
    )
    inner.add_path(START, "shorten", END)
    return (
        Graph().add_map("all", inner.compile(), over="docs", item="doc", into="summaries").add_path(START, "all", END)
    )


@pytest.mark.parametrize("make", [in_sends, in_a_map])
def test_branches_and_items_have_repairs_of_their_own(play: Play, tmp_path: Path, make: Callable[[], Graph]) -> None:
    program = make().compile(store=tmp_path / "runs.db")
    docs = ["a", "bb", "cc", "d", *(letter * 3 for letter in "efghijk")]
    run = play(program, {"docs": docs})
    assert run.status == "completed", run.error
    assert [example.doc for example in run.repairs()] == [doc for doc in docs if len(doc) > 1]
    thread = program.thread("t")
    stored = thread.run({"docs": docs})
    assert thread.repairs() == stored.repairs()
    assert [dict(example.inputs()) for example in stored.repairs()] == [dict(one.inputs()) for one in run.repairs()]


def drafted_and_sent(failing: list[bool]) -> Graph:
    """A correction that is accepted, and then a node that fails, both inside a node."""

    def send() -> None:
        if failing:
            failing.pop()
            raise ConnectionError("refused")

    inner = in_a_draft().add_node("send", send, writes=[]).add_path("draft", "send", END)
    return Graph().add_node("mail", inner.compile(), retry=2).add_edge(START, "mail").add_edge("mail", END)


def in_a_draft() -> Graph:
    made = Graph(name="Mail", inputs=["topic"], outputs=["text"])
    made.add_node("draft", lambda topic: {"text": topic * 2}, writes=["text"])
    shorter: Callable[..., Any] = lambda topic: {"text": topic}  # noqa: E731
    made.add_check("short", lambda text: [] if len(text) < 3 else ["too long"], of="draft", fix=shorter)
    return made.add_edge(START, "draft")


@pytest.mark.parametrize("failures", [1, 2], ids=["retried", "failed"])
def test_a_correction_counts_once_whatever_fails_after_it(play: Play, tmp_path: Path, failures: int) -> None:
    for stored in (False, True):
        made = drafted_and_sent([True] * failures).add_error_edge("mail", END)
        program = made.compile(store=tmp_path / "runs.db" if stored else None)
        thread = program.thread("t") if stored else None
        with no_pauses():
            run = play(thread or program, {"topic": "at"})
        assert run.status == "completed", run.error
        assert [(one.topic, one.text, one.rejected) for one in run.repairs()] == [("at", "at", [{"text": "atat"}])]
        assert thread is None or thread.repairs() == run.repairs()


def test_a_node_that_is_to_run_again_has_no_repairs_yet(tmp_path: Path) -> None:
    failing = [True] * 2
    thread = drafted_and_sent(failing).compile(store=tmp_path / "runs.db").thread("t")
    with no_pauses():
        run = thread.run({"topic": "at"})
    assert run.status == "failed"
    assert run.repairs() == thread.repairs() == []
    assert thread.resume().repairs() == thread.repairs() != []


def test_a_thread_has_the_repairs_of_all_its_runs(tmp_path: Path) -> None:
    program = graph().compile(store=tmp_path / "runs.db")
    thread, found = program.thread("t"), []
    assert thread.repairs() == []
    for question in ("q1", "q2"):
        with ScriptedLM([answer("a"), answer("c", question)]):
            found += thread.run({"question": question}).repairs()
    with ScriptedLM([answer("c", "x")]):
        thread.run({"question": "q3"})
    again = graph().compile(store=tmp_path / "runs.db").thread("t")
    assert again.repairs() == found
    assert [repair for key in program.threads() for repair in program.thread(key).repairs()] == found
    assert [example.question for example in found] == ["q1", "q2"]
    assert [example.commit for example in found] == ["t.1/trunk:4", "t.2/trunk:4"]


def test_a_resumed_run_has_the_repairs_from_before(tmp_path: Path) -> None:
    program = graph().compile(store=tmp_path / "runs.db", layers=[Breakpoints(after=["draft_fix"])])
    thread = program.thread("t")
    with ScriptedLM([answer("a"), answer("b", "x")]):
        assert thread.run({"question": "q"}).status == "interrupted"
    with ScriptedLM([]):
        run = program.thread("t").resume(answers={"after": True})
    (example,) = run.repairs()
    assert (example.question, example.answer, example.rejected) == ("q", "b", [{"answer": "a", "cites": []}])
    assert program.thread("t").repairs() == [example]


def changed_after_a_correction(changes: dict[str, Any]) -> tuple[Any, Any]:
    """A run in which a person changed the state between the only correction and the check."""
    thread = graph(max_fixes=1).compile(store=":memory:", layers=[Breakpoints(after=["draft_fix"])]).thread("t")
    with ScriptedLM([answer("a"), answer("b")]):
        thread.run({"question": "q"})
    thread.update(changes)
    with ScriptedLM([]):
        return thread, thread.resume(answers={"after": True})


def test_what_a_person_changed_is_no_new_visit() -> None:
    _, run = changed_after_a_correction({"answer": "by hand"})
    assert isinstance(run.error, CheckError)
    assert "after 1 correction:" in str(run.error)
    assert run.repairs() == []


def test_what_a_person_changed_after_a_correction_was_accepted_too() -> None:
    thread, run = changed_after_a_correction({"cites": ["by hand"]})
    assert run.status == "completed", run.error
    (example,) = run.repairs()
    assert (example.answer, example.cites) == ("b", ["by hand"])
    assert thread.repairs() == [example]


def test_repairs_are_redacted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dspyer")

    class Mail(BaseModel):
        user: dict[str, str]
        reply: str = ""
        problems: list[str] = []

    made = Graph(Mail).add_node("write", dspy.Predict("user: dict[str, str] -> reply"))
    made.add_check("polite", lambda user, reply: [] if "Dear" in reply else [f"greet {user['email']}"], of="write")
    program = made.add_path(START, "write", END).compile(redact="user.email", store=":memory:")
    with ScriptedLM([{"reply": "Hi"}, {"reply": "Dear ann@example.org"}]):
        run = program.thread("t").run({"user": {"name": "Ann", "email": "ann@example.org"}})
    for example in (*run.repairs(), *program.thread("t").repairs()):
        assert "ann@example.org" not in repr(example)
        assert example.user["name"] == "Ann"
        assert example.reply.startswith("Dear ")
    assert len(run.repairs()) == 1
    (line,) = [record.getMessage() for record in caplog.records if record.name == "dspyer"]
    assert line == "check 'polite' refused the output of 'write', a correction follows: greet [redacted]"


def test_repairs_train_the_node() -> None:
    program = graph().compile()
    with ScriptedLM([answer("a"), answer("c", "x")]):
        trainset = program.run({"question": "q"}).repairs()

    program.draft = dspy.LabeledFewShot(k=1).compile(program.draft, trainset=trainset)
    with ScriptedLM([answer("d", "y")]) as lm:
        program(question="other")
    shown = [turn.content for turn in lm.calls[0].prompt.turns]
    assert any("[[ ## question ## ]]\nq" in text for text in shown)
    assert not any("no source" in text for text in shown)

    def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
        return bool(prediction.cites == example.cites)

    with ScriptedLM(lambda prompt: answer("c", "x")):
        tuned = dspy.BootstrapFewShot(metric=metric, max_labeled_demos=1).compile(
            dspy.Predict(DRAFT), trainset=trainset
        )
    (demo,) = tuned.demos
    assert (demo["question"], demo["answer"]) == ("q", "c")


def test_a_check_error_keeps_its_problems_through_pickle() -> None:
    import pickle

    async def main(program: CompiledGraph) -> Any:
        return await program.arun({"question": "q"})

    with ScriptedLM([answer("a")]):
        run = asyncio.run(main(graph(max_fixes=0).compile()))
    error = pickle.loads(pickle.dumps(run.error))
    assert isinstance(error, CheckError)
    assert error.problems == ("no source was cited",)
