"""Who has answered, when, and what was said with it: from the row of the answer to all that shows a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, Archive, Breakpoints, CompiledGraph, Graph, Run, Thread, agents, errors, stores
from dspyer.events import Answer, Answered, Asked
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import ScriptedLM
from tests.agents.kit import SUBMIT, turn
from tests.log.processes import end_of, fork
from tests.rows import each

BY, COMMENT = "ada@shop.example", "half, see mail"
HALF = agents.Approval(True, args={"order": "A-17", "amount": 45})
Facts = list[tuple[str, Any, str | None, str | None]]


def facts(answers: tuple[Answer, ...]) -> Facts:
    assert all(one.at is not None and one.at > 1e9 for one in answers)
    return [(one.question.key, one.value, one.by, one.comment) for one in answers]


def paid(order: str, amount: int) -> str:
    return f"paid {amount}"


def refunding(store: Any, pays: Callable[[str, int], str] = paid, **options: Any) -> Any:
    def refund(order: str, amount: int) -> str:
        """Pays back."""
        return pays(order, amount)

    tool = agents.tool(refund, approve=True, effect=True)
    return agents.tool_loop("question -> answer", [tool]).compile(store=store, **options)


def ask(thread: Thread) -> Run:
    with ScriptedLM([turn(("refund", {"order": "A-17", "amount": 90}))]):
        return thread.run({"question": "Refund A-17."})


def resume(thread: Thread, answers: Any, **notes: Any) -> Run:
    return thread.resume(answers, **notes)


def aresume(thread: Thread, answers: Any, **notes: Any) -> Run:
    return asyncio.run(thread.aresume(answers, **notes))


def stream_resume(thread: Thread, answers: Any, **notes: Any) -> Run:
    events = thread.stream_resume(answers, **notes)
    assert len([event for event in events if isinstance(event, Answered)]) == 1
    return events.run


def astream_resume(thread: Thread, answers: Any, **notes: Any) -> Run:
    async def read() -> Run:
        events = thread.astream_resume(answers, **notes)
        assert len([event async for event in events if isinstance(event, Answered)]) == 1
        return events.run

    return asyncio.run(read())


@pytest.mark.parametrize("deliver", [resume, aresume, stream_resume, astream_resume])
def test_an_answer_has_its_author(deliver: Callable[..., Run], tmp_path: Path) -> None:
    """In the run, in the thread, in a copy and an export of it, in the archive, the record, the report and the event.

    The model sees neither who nor why.
    """
    store = f"{tmp_path}/runs.db"
    run = ask(refunding(store).thread("t"))
    asked = run.questions[0]
    assert asked.call is not None
    assert (asked.call.name, asked.call.args, asked.call.id) == ("refund", {"order": "A-17", "amount": 90}, "call_0_0")
    assert asked.call.schema == {
        "type": "object",
        "properties": {"order": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["order", "amount"],
    }
    thread = refunding(store).thread("t")  # as in another process
    assert thread.questions == (asked,)
    with ScriptedLM([SUBMIT]) as lm:
        run = deliver(thread, {asked.id: HALF}, by=BY, comment=COMMENT)
    expected: Facts = [("refund", HALF, BY, COMMENT)]
    assert facts(run.answers) == expected
    told = [event for event in run.events if isinstance(event, Answered)]
    assert [event.answer for event in told] == list(run.answers)
    assert json.loads(json.dumps(told[0].to_dict()))["answer"]["by"] == BY
    prompts = "".join(str(call.messages) for call in lm.calls)
    assert "45" in prompts
    assert BY not in prompts
    assert COMMENT not in prompts
    report = " ".join(run.report().replace("│", "").split())
    assert f"answered by {BY} with " in report
    assert f": {COMMENT}" in report
    (step,) = [one for one in run.record().to_dict()["steps"] if one["asked"]]
    assert (step["asked"]["call"]["args"]["amount"], step["asked"]["answer"]["by"]) == (90, BY)
    assert step["asked"]["answer"]["comment"] == COMMENT
    assert (step["call"]["id"], step["call"]["args"], step["call"]["error"]) == ("call_0_0", HALF.args, False)
    assert run.record().to_dict()["values"][step["call"]["result"]] == "paid 45"
    copied, program = thread.copy("copy"), refunding(store)
    thread.export(f"{tmp_path}/t.json")
    loaded = program.thread("loaded")
    loaded.load(f"{tmp_path}/t.json")
    with Archive(store) as archive:
        answers = {
            "thread": program.thread("t").answers,
            "copy": copied.answers,
            "export": loaded.answers,
            "archive": archive.thread("t").answers,
            "record": archive.thread("t").record().answers(),
        }
        report = " ".join(archive.thread("t").report().replace("│", "").split())
        assert f"answered by {BY} with " in report
        assert f": {COMMENT}" in report
    assert {name: facts(found) for name, found in answers.items()} == dict.fromkeys(answers, expected)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a long comment": ({"comment": "x" * 501}, "comment= is a text of at most 500 characters, not one of 501"),
    "a long name": ({"by": "x" * 1_000}, "by= is a text of at most 500 characters, not one of 1,000"),
    "no text": ({"by": 7}, "by= is a text of at most 500 characters, not 7"),
    "nobody": ({"by": " "}, "by= is empty: give a name, or None"),
}


def approving(store: Any = ":memory:", **options: Any) -> CompiledGraph:
    graph = Graph(inputs=["n"]).add_interrupt("ok", question="Send {n}?", answer=bool, into="sent")
    return graph.add_path(START, "ok", END).compile(store=store, **options)


@each("case", WRONG)
def test_notes_that_are_too_long_are_refused_before_anything_is_stored(case: str) -> None:
    notes, text = WRONG[case]
    thread = approving().thread("t")
    thread.run({"n": 1})
    for deliver in (resume, aresume):
        with pytest.raises(errors.InputError, match=text):
            deliver(thread, {"ok": True}, **notes)
    assert (thread.status, thread.answers) == ("interrupted", ())
    assert facts(thread.resume({"ok": True}, by="x" * 500, comment="\ud83d").answers) == [
        ("ok", True, "x" * 500, "\ufffd")
    ]


def test_a_second_delivery_keeps_the_first() -> None:
    thread = approving().thread("t")
    asked = thread.run({"n": 1}).questions[0].id
    first = thread.resume({asked: True}, by="ada", comment="first").answers
    assert thread.resume({asked: True}, by="bob", comment="second").answers == first == thread.answers
    assert facts(first) == [("ok", True, "ada", "first")]
    with pytest.raises(errors.ThreadError, match="was answered already by ada, with True"):
        thread.resume({asked: False}, by="bob")


def test_a_thread_has_the_answers_of_all_its_runs() -> None:
    """Also those that no person gave, and who has let a run go on."""
    program = approving(layers=[Breakpoints(before=["ok"])])
    thread = program.thread("t")
    thread.run({"n": 1})
    thread.resume(by="ada")
    thread.resume({"ok": True}, by="bob")
    one: Facts = [("before", None, "ada", None), ("ok", True, "bob", None)]
    assert facts(thread.answers) == one
    assert thread.run({"n": 2}).answers == ()
    last = thread.resume(
        {
            "before": None,
        },
        comment="late",
    )
    assert facts(last.answers) == [("before", None, None, "late")]
    assert facts(thread.answers) == [*one, *facts(last.answers)]
    thread.rerun("t.2/trunk:0")
    thread.resume({"before": None}, by="eve")
    assert [one.by for one in thread.answers] == ["ada", "bob", None, "eve"], "of the run that was replaced, too"
    assert [one.by for one in thread.copy("copy").answers] == ["ada", "bob", "eve"]
    run = approving().run({"n": 1}, answers={"ok": True})
    assert facts(run.answers) == [("ok", True, None, None)]
    assert [type(event) for event in run.events if isinstance(event, Asked | Answered)] == [Answered]


def test_what_is_hidden_is_hidden_once_it_is_answered() -> None:
    """Who is to approve must see the call; the process has it whole."""
    secret = "A-17-4111"
    thread = refunding(":memory:", redact=["question", "messages"]).thread("t")
    with ScriptedLM([turn(("refund", {"order": secret, "amount": 9000}))]):
        run = thread.run({"question": "Refund."})
    (asked,) = [event for event in run.events if isinstance(event, Asked)]
    for question in (run.questions[0], thread.questions[0], asked.question):
        assert question.text == f"refund(order='{secret}', amount=9000)?"
        assert question.call is not None
        assert question.call.args["order"] == secret
    assert secret in run.report()
    assert secret in json.dumps(run.record().to_dict())
    with ScriptedLM([SUBMIT]):
        run = thread.resume({"refund": agents.Approval(True, args={"order": secret, "amount": 45})}, by="ada")
    (told,) = [event for event in run.events if isinstance(event, Answered)]
    shown = f"{told} {told.to_dict()} {run.report()} {json.dumps(run.record().to_dict())}"
    assert secret not in shown
    hidden = {"order": "[redacted]", "amount": "[redacted]"}
    assert told.answer.value == {"ok": True, "reason": "[redacted]", "args": hidden}
    assert told.answer.question.call is not None
    assert told.answer.question.call.args == hidden
    assert (told.answer.by, run.answers[0].value.args["order"]) == ("ada", secret)


@pytest.mark.parametrize("store", ["memory", "file"])
def test_a_caller_may_change_the_arguments_that_it_was_shown(store: str, tmp_path: Path) -> None:
    thread = refunding(":memory:" if store == "memory" else f"{tmp_path}/runs.db").thread("t")
    call: Any = ask(thread).questions[0].call
    call.args["amount"] = 45
    again: Any = thread.questions[0].call
    assert again.args["amount"] == 90
    again.args["amount"] = 1
    with ScriptedLM([SUBMIT]):
        run = thread.resume({"refund": agents.Approval(True, args=call.args)})
    (answer,) = run.answers
    assert answer.question.call is not None
    assert (answer.question.call.args["amount"], answer.value.args["amount"]) == (90, 45)


def test_an_answer_survives_kill_9_before_its_call(tmp_path: Path) -> None:
    """It is stored with its author when the tool is called, is not asked for again, and is made once."""
    store, log = f"{tmp_path}/runs.db", tmp_path / "paid"

    def pays(order: str, amount: int) -> str:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        with log.open("a") as file:
            file.write(f"{amount}\n")
        return f"paid {amount}"

    parent = os.getpid()
    asked = ask(refunding(store, pays).thread("t")).questions[0].id
    answer = {asked: HALF}

    def child() -> None:
        refunding(store, pays).thread("t").resume(answer, by=BY, comment=COMMENT)

    assert end_of(fork(child)) == -signal.SIGKILL
    thread = refunding(store, pays).thread("t")
    assert (thread.status, thread.questions) == ("crashed", ())
    expected: Facts = [("refund", HALF, BY, COMMENT)]
    assert facts(thread.answers) == expected
    with ScriptedLM([SUBMIT]):
        run = thread.resume(answer, by="bob")  # the mail arrives a second time
    assert (run.status, log.read_text(), facts(run.answers)) == ("completed", "45\n", expected)


def rows_of(store: stores.SQLite) -> str:
    """What a store has of the last run of its thread, contents as they are."""
    found = store.thread("t")
    assert found is not None
    assert found.head is not None
    rows = store.rows(found.head.run, 0, found.head.seq)
    return repr([(dict(row.header), row.content and row.content.data) for row in rows])


def test_an_answer_costs_little_on_disk_and_is_encrypted(tmp_path: Path) -> None:
    sizes = []
    cases: list[dict[str, Any]] = [{}, {"by": BY, "comment": COMMENT}]
    for number, notes in enumerate(cases):
        store = stores.SQLite(tmp_path / f"{number}.db")
        thread = approving(store).thread("t")
        thread.run({"n": 1})
        thread.resume({"ok": True}, **notes)
        sizes.append(len(rows_of(store)))
    assert 0 < sizes[1] - sizes[0] <= 100
    store = stores.SQLite(tmp_path / "secret.db")
    thread = approving(Encrypted(store, key=os.urandom(32))).thread("t")
    thread.run({"n": 1})
    thread.resume({"ok": True}, by=BY, comment=COMMENT)
    assert facts(thread.answers) == [("ok", True, BY, COMMENT)]
    assert "trunk:1" in rows_of(store)
    assert BY not in rows_of(store)
    assert COMMENT not in rows_of(store)
