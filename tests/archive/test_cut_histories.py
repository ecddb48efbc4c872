"""Histories that were cut and continued: what an archive shows of their runs, and the LM calls of their commits."""

from __future__ import annotations

import dspy

from dspyer import END, START, Archive, CompiledGraph, Graph, Thread
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM


def program(store: Memory, fails: bool = False) -> CompiledGraph:
    """Asks a language model, then a person, then the model again, and may fail after that."""

    def last(again: str, ask: dspy.Predict) -> dict[str, str]:
        found = ask(again=again).last
        if fails:
            raise ConnectionError("lost")
        return {"last": found}

    graph = Graph(inputs=["question"], keep=["question"]).add_node("first", dspy.Predict("question -> again"))
    graph.add_interrupt("ok", question="Sure?", into="sure")
    graph.add_node("last", last, modules={"ask": dspy.Predict("again -> last")}, writes=["last"])
    return graph.add_path(START, "first", "ok", "last", END).compile(store=store, record_lm_calls="full")


def check(store: Memory, thread: Thread) -> None:
    """Everything of every run of a thread can be read, and a page has the LM calls that each commit has."""
    archive = Archive(store)
    there = archive.thread(thread.name)
    history = thread.history()
    calls = {commit.id: len(thread.lm_calls(commit.id)) for commit in history}
    record = there.record()
    assert {step.id: len(record.calls(step.id)) for step in record.steps if step.id in calls}.items() <= calls.items()
    for info in (*archive.threads(thread=thread.name), *archive.runs(thread=thread.name)):
        assert there.info(info.run_id) == info
        assert there.history(run=info.run_id)
        assert there.report(info.run_id)
        assert there.to_svg(info.run_id)
        assert there.stats(info.run_id).usage is not None
        assert there.record(info.run_id).run_id == info.run_id


def test_a_run_whose_beginning_was_pruned() -> None:
    store = Memory()
    thread = program(store).thread("t")
    with ScriptedLM([{"again": "a"}] * 2):
        thread.run({"question": "why?"})
        thread.rerun(1)  # a part that continues the first run, which pruning deletes
        thread.run({"question": "why?"}, if_open="abandon")
    thread.prune(before=thread.history()[-1].id)
    assert [commit.node for commit in thread.history()] == ["pruned", "START", "first"]
    check(store, thread)


def test_a_copy_of_the_commit_at_which_a_pruned_history_begins() -> None:
    store = Memory()
    thread = program(store).thread("t")
    thread.update({"question": "what?"})
    thread.update({"question": "who?"})
    thread.prune(before=1)
    copy = thread.copy(to="u", at=thread.history()[0].id)
    assert [commit.node for commit in copy.history()] == ["pruned"]
    check(store, copy)


def test_a_run_of_a_part_that_the_thread_has_left() -> None:
    store = Memory()
    thread = program(store).thread("t")
    with ScriptedLM([{"again": "a"}] * 2):
        thread.run({"question": "why?"})
        thread.rerun(0)
    check(store, thread)


def test_a_call_of_an_attempt_that_failed_in_the_run_that_a_copy_continues() -> None:
    store = Memory()
    with ScriptedLM([{"again": "a"}, {"last": "b"}]):
        thread = program(store, fails=True).thread("t")
        thread.run({"question": "why?"})
        assert thread.resume(answers={"ok": True}).status == "failed"
    copy = thread.copy(to="u")
    with ScriptedLM([{"last": "c"}]):
        assert program(store).thread("u").resume().status == "completed"
    assert [len(copy.lm_calls(commit.id)) for commit in copy.history()] == [0, 1, 0, 2]
    check(store, copy)
