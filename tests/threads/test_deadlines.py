"""Questions that expire: their default, their error edge, timers, answers that come too late, and what is due."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, Archive, Breakpoints, CompiledGraph, Graph, Retry, Run, Thread, agents
from dspyer.errors import AttemptError, ConcurrentRunError, GraphError, InputError, QuestionExpired, ThreadError, public
from dspyer.stores import Memory, SQLite
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import FakeClock, ScriptedLM, clock
from tests.children import Child, run_python

Resume = Callable[..., Run]


@pytest.fixture
def time() -> Iterator[FakeClock]:
    with clock() as found:
        yield found


@pytest.fixture(params=["sync", "async"])
def resume(request: pytest.FixtureRequest) -> Resume:
    if request.param == "sync":
        return lambda thread, *given, **options: thread.resume(*given, **options)
    return lambda thread, *given, **options: asyncio.run(thread.aresume(*given, **options))


Make = Callable[..., CompiledGraph]


def node(**deadline: Any) -> Graph:
    graph = Graph(name="Desk").add_interrupt("ok", question="Send it?", answer=bool, into="sent", **deadline)
    return graph.add_path(START, "ok", "after", END)


def in_a_function(**deadline: Any) -> Graph:
    def ask(ctx: Any) -> dict[str, Any]:
        return {"sent": ctx.interrupt("ok", "Send it?", bool, **deadline)}

    return Graph(name="Desk").add_node("ask", ask, writes=["sent"]).add_path(START, "ask", "after", END)


def in_a_graph(**deadline: Any) -> Graph:
    inner = Graph().add_interrupt("ok", question="Send it?", answer=bool, into="sent", **deadline)
    return Graph(name="Desk").add_node("inner", inner.add_path(START, "ok", END)).add_path(START, "inner", "after", END)


def in_a_map(**deadline: Any) -> Graph:
    def ask(item: int, ctx: Any) -> dict[str, Any]:
        return {"one": ctx.interrupt("ok", f"Send {item}?", bool, **deadline) if item else True}

    graph = Graph(name="Desk").add_node("list", lambda: {"items": [0, 1]}, writes=["items"])
    graph.add_map("asks", ask, over="items", item="item", into="found")
    graph.add_node("pick", lambda found: {"sent": found[1]}, writes=["sent"])
    return graph.add_path(START, "list", "asks", "pick", "after", END)


def in_a_bound_program(**deadline: Any) -> Graph:
    inner = Graph().add_interrupt("ok", question="Send it?", answer=bool, into="sent", **deadline)

    def ask(program: Any, ctx: Any) -> dict[str, Any]:
        return {"sent": ctx.call(program, {}).sent}

    graph = Graph(name="Desk").add_node(
        "ask", ask, modules={"program": inner.add_path(START, "ok", END)}, writes=["sent"]
    )
    return graph.add_path(START, "ask", "after", END)


@pytest.fixture(params=[node, in_a_function, in_a_graph, in_a_map, in_a_bound_program])
def asking(request: pytest.FixtureRequest) -> Callable[..., tuple[Thread, list[object]]]:
    """A thread that waits, and the calls of the node behind the question."""

    def begun(store: Any = None, **deadline: Any) -> tuple[Thread, list[object]]:
        calls: list[object] = []

        def after(sent: object) -> None:
            calls.append(sent)

        graph = request.param(**deadline).add_node(after, writes=[])
        thread = graph.compile(store=Memory() if store is None else store).thread("t")
        assert thread.run({}).status == "interrupted"
        return thread, calls

    return begun


def test_the_time_of_day_stands_still_with_the_clock(time: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.wall()
    monkeypatch.setattr("time.time", lambda: before - 1)  # it was read a while before the clock that stands
    assert time.wall() == before
    time.advance(24 * 3600)
    assert time.wall() == before + 24 * 3600


def test_before_the_time_a_resume_changes_nothing(asking: Any, resume: Resume, time: FakeClock) -> None:
    thread, calls = asking(expires=60, default=False)
    (question,) = thread.questions
    assert question.expires == pytest.approx(time.wall() + 60, abs=0.01)
    time.advance(59)
    before = thread.record().to_dict()
    run = resume(thread)
    assert (run.status, run.questions, calls) == ("interrupted", (question,), [])
    assert thread.record().to_dict() == before
    for _ in range(20):  # however often: it is no attempt
        assert resume(thread).status == "interrupted"
    assert resume(thread, {"ok": True}, by="ada").status == "completed"
    assert calls == [True]


def test_after_it_the_default_is_the_answer(asking: Any, resume: Resume, time: FakeClock) -> None:
    thread, calls = asking(expires=60, default=False)
    (question,) = thread.questions
    time.advance(60.01)
    with pytest.raises(
        InputError, match=r"'ok' .*expired at .* UTC: the answer True comes too late. Nothing was"
    ) as late:
        resume(thread, {"ok": True})
    assert public(late.value).code == "conflict"
    assert thread.questions == (question,)
    run = resume(thread)
    assert (run.status, calls) == ("completed", [False])
    (answer,) = thread.answers
    assert (answer.value, answer.by, answer.comment) == (False, "expired", None)
    assert answer.question == question
    for given in (True, False):  # the person who says no, too, must not think that it was heard
        with pytest.raises(InputError, match="gone on without an answer") as late:
            resume(thread, {question.id: given})
        assert public(late.value).code == "conflict"
    assert calls == [False]


def test_without_a_default_the_node_raises(asking: Any, resume: Resume, time: FakeClock) -> None:
    thread, calls = asking(expires=60)
    time.advance(61)
    run = resume(thread)
    assert (run.status, calls) == ("failed", [])
    with pytest.raises(QuestionExpired, match=r"expired at .* without an answer, and has no default"):
        run.raise_error()
    with pytest.raises(InputError, match="too late"):
        resume(thread, {"ok": True})


def test_another_process_has_the_same_time(asking: Any, tmp_path: Path, time: FakeClock) -> None:
    """A store that is opened anew, an export, and a copy: the time of the question is in its row."""
    thread, _ = asking(SQLite(tmp_path / "runs.db"), expires=60, default=True)
    (question,) = thread.questions
    copy = thread.copy(to="copy")
    assert copy.questions[0].expires == question.expires
    with Archive(tmp_path / "runs.db") as archive:
        assert archive.thread("t").info().questions == (question,)
        assert archive.due() == []
        assert archive.due(at=datetime.fromtimestamp(question.expires + 0.01, UTC)) == ["t"]  # and no copy to look at
    time.advance(61)
    assert copy.resume().status == "completed"  # who wants it resumes it


@pytest.mark.parametrize("of_function", [False, True])
def test_an_error_edge_takes_the_expiry_and_no_retry(of_function: bool, resume: Resume, time: FakeClock) -> None:
    calls: list[int] = []

    def ask(ctx: Any) -> dict[str, Any]:
        calls.append(1)
        return {"sent": ctx.interrupt("ok", "Send it?", bool, expires=60)}

    graph = Graph()
    if of_function:
        graph.add_node("ok", ask, writes=["sent"], retry=Retry(3, on=Exception))
    else:
        graph.add_interrupt("ok", question="Send it?", answer=bool, into="sent", expires=60)
    graph.add_node("remind", lambda why: {"reminded": why.type}, writes=["reminded"])
    graph.add_path(START, "ok", END).add_error_edge("ok", "remind", on=QuestionExpired, into="why").add_edge(
        "remind", END
    )
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({})
    time.advance(61)
    assert resume(thread).state["reminded"] == "QuestionExpired"
    assert (thread.status, thread.questions, len(calls)) == ("completed", (), 2 * of_function)


def test_a_retry_on_the_expiry_is_refused() -> None:
    with pytest.raises(ValueError, match="QuestionExpired"):
        Retry(on=QuestionExpired)


def test_node_code_may_catch_the_expiry(resume: Resume, time: FakeClock) -> None:
    def ask(ctx: Any) -> dict[str, Any]:
        try:
            return {"sent": ctx.interrupt("ok", "Send it?", expires=timed)}
        except QuestionExpired:
            return {"sent": "nobody"}

    timed = datetime.now(UTC) + timedelta(seconds=time.wall() - datetime.now(UTC).timestamp() + 60)
    thread = (
        Graph().add_node("ask", ask, writes=["sent"]).add_path(START, "ask", END).compile(store=":memory:").thread("t")
    )
    assert thread.run({}).questions[0].expires == timed.timestamp()
    time.advance(61)
    assert (resume(thread).state["sent"], thread.status, thread.answers) == ("nobody", "completed", ())


def test_node_code_that_catches_the_expiry_may_ask_further(resume: Resume, time: FakeClock) -> None:
    def ask(ctx: Any) -> dict[str, Any]:
        try:
            return {"sent": ctx.interrupt("ok", "Send it?", expires=60)}
        except QuestionExpired:
            return {"sent": ctx.interrupt("boss", "Nobody has said: send it?", str)}

    program = Graph().add_node("ask", ask, writes=["sent"]).add_path(START, "ask", END).compile(store=":memory:")
    thread = program.thread("t")
    thread.run({})
    time.advance(61)
    assert resume(thread).questions[0].key == "boss"
    assert resume(thread, {"boss": "yes"}).state["sent"] == "yes"


def test_a_timer_waits_for_its_time_alone(resume: Resume, time: FakeClock) -> None:
    graph = Graph().add_interrupt("cool_down", question="Waits an hour.", answer=None, expires=3600)
    program = graph.add_path(START, "cool_down", END).compile(store=":memory:")
    thread = program.thread("t")
    thread.run({})
    assert resume(thread).status == "interrupted"
    time.advance(3601)
    assert resume(thread).status == "completed"
    assert [(answer.value, answer.by) for answer in thread.answers] == [(None, "expired")]
    early = program.thread("early")
    early.run({})
    assert resume(early, {"cool_down": None}, by="ada").status == "completed"
    assert early.answers[0].by == "ada"


def test_only_what_has_expired_goes_on(resume: Resume, time: FakeClock) -> None:
    """The other branches wait, and the next time is the next one; a run with two is due twice."""
    graph = Graph().add_interrupt("a", question="A?", answer=str, into="x", expires=60, default="late")
    graph.add_interrupt("b", question="B?", answer=str, into="y", expires=120, default="later")
    graph.add_interrupt("c", question="C?", answer=str, into="z")
    graph.add_edge(START, ["a", "b", "c"]).add_edge(["a", "b", "c"], END)
    store = Memory()
    thread = graph.compile(store=store).thread("t")
    thread.run({})
    due = []
    for _ in range(3):
        time.advance(61)
        due.append(Archive(store).due())
        due.append([question.key for question in resume(thread).questions])
    assert due == [["t"], ["b", "c"], ["t"], ["c"], [], ["c"]]
    assert resume(thread, {"c": "now"}).status == "completed"
    assert [(answer.value, answer.by) for answer in thread.answers] == [
        ("late", "expired"),
        ("later", "expired"),
        ("now", None),
    ]


def test_two_questions_of_one_node(time: FakeClock) -> None:
    """The node is called for the one that has expired; the other one is asked again, and waits."""

    def ask(ctx: Any) -> dict[str, Any]:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(ctx.interrupt, "a", "A?", str, expires=60, default="none")
            second = pool.submit(ctx.interrupt, "b", "B?", str)
        errors = [one.exception() for one in (first, second)]
        if raised := [error for error in errors if error is not None]:
            raise raised[0]
        return {"found": first.result() + second.result()}

    store = Memory()
    thread = Graph().add_node("ask", ask, writes=["found"]).add_path(START, "ask", END).compile(store=store).thread("t")
    thread.run({})
    time.advance(61)
    assert [question.key for question in thread.resume().questions] == ["b"]
    assert Archive(store).due() == []
    assert thread.resume({"b": "!"}).state["found"] == "none!"


def test_an_item_that_may_fail_is_due_once(time: FakeClock) -> None:
    def ask(item: int, ctx: Any) -> dict[str, Any]:
        return {"one": ctx.interrupt("ok", f"{item}?", bool, expires=60 * item)}

    graph = Graph().add_map("asks", ask, over="items", item="item", into="found", failures="bad")
    store = Memory()
    program = graph.add_path(START, "asks", END).compile(store=store)
    thread = program.thread("t")
    thread.run({"items": [1, 2, 3]})
    for _ in range(2):
        time.advance(60)
        assert (program.recover(), program.recover(), Archive(store).due()) == (["t"], [], [])
    run = thread.resume({thread.questions[-1].id: True})
    assert (run.status, run.state["found"]) == ("completed", [True])
    assert [failure.type for failure in run.state["bad"]] == ["QuestionExpired"] * 2


def test_the_model_of_an_agent_reads_that_a_question_of_its_tool_has_expired(time: FakeClock) -> None:
    def pay(order: str, ctx: Any) -> str:
        """Pays."""
        return f"paid {ctx.interrupt('sure', 'Sure?', bool, expires=60)}"

    program = agents.tool_loop("message -> reply", [pay]).compile(store=":memory:")
    calls = {"name": "pay", "args": {"order": "A"}}, {"name": "submit", "args": {"reply": "Not today."}}
    with ScriptedLM([{"next_thought": "", "tool_calls": {"tool_calls": [call]}} for call in calls]):
        thread = program.thread("t")
        assert thread.run({"message": "Pay A."}).status == "interrupted"
        time.advance(60)
        assert program.recover() == ["t"]
    assert "QuestionExpired" in thread.state["messages"][2]["content"]
    assert thread.state["reply"] == "Not today."


def test_answers_in_advance_come_before_the_default(resume: Resume, time: FakeClock) -> None:
    graph = node(expires=0, default=False).add_node("after", lambda sent: {"said": sent}, writes=["said"])
    store = Memory()
    thread = graph.compile(store=store).thread("t")
    thread.run({})
    time.advance(1)
    assert resume(graph.compile(store=store, answers={"ok": True}).thread("t")).state["said"] is True
    other = graph.compile(store=store).thread("other")
    other.run({})
    time.advance(1)
    assert Archive(store).due() == ["other"]
    assert resume(graph.compile(store=store, answers={"ok": True}).thread("other")).status == "completed"
    assert graph.compile(answers={"ok": True}).run({}).state["said"] is True  # nobody waits under an optimizer


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"expires": -1}, "expires=-1: give seconds"),
    ({"expires": True}, "expires=True: give seconds"),
    ({"expires": float("nan")}, "give seconds"),
    ({"expires": float("inf")}, "give seconds"),
    ({"expires": "1h"}, "expires='1h': give seconds"),
    ({"expires": timedelta(hours=1)}, "give seconds"),
    ({"expires": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
    ({"default": False}, "give expires=, too"),
    ({"default": None}, "give expires=, too"),
    ({"expires": 1, "default": "no"}, "default='no' is no answer of its type, answer=bool"),
    ({"expires": 1, "default": None}, "default=None is no answer of its type, answer=bool"),
    ({"expires": 1, "default": object()}, "is no answer of its type"),
]


def test_a_deadline_that_cannot_be() -> None:
    for deadline, problem in PROBLEMS:
        with pytest.raises(GraphError, match=f"node 'ok': .*{problem}"):
            node(**deadline).add_node("after", lambda: None, writes=[]).compile()
        run = in_a_function(**deadline).add_node("after", lambda sent: {}, writes=[]).compile().run({})
        with pytest.raises(AttemptError, match=f"node 'ask' .*the question 'ok': .*{problem}"):
            run.raise_error()


def test_a_timer_takes_no_default() -> None:
    graph = Graph().add_interrupt("wait", question="Waits.", answer=None, expires=1, default=True)
    graph.add_path(START, "wait", END).compile()  # True is how permission is given
    bad = Graph().add_interrupt("wait", question="Waits.", answer=None, expires=1, default="x")
    with pytest.raises(GraphError, match="default='x' is no answer of its type, answer=None"):
        bad.add_path(START, "wait", END).compile()


def test_a_default_is_what_it_was_when_the_graph_was_compiled(resume: Resume, time: FakeClock) -> None:
    given = {"ok": False}
    graph = Graph().add_interrupt("ok", question="?", answer=dict, into="sent", expires=60, default=given)
    thread = graph.add_path(START, "ok", END).compile(store=":memory:").thread("t")
    thread.run({})
    given["ok"] = True
    time.advance(60)
    assert resume(thread).state["sent"] == {"ok": False}


def test_nobody_is_called_expired(time: FakeClock) -> None:
    thread = (
        node(expires=60, default=False)
        .add_node("after", lambda sent: {}, writes=[])
        .compile(store=":memory:")
        .thread("t")
    )
    thread.run({})
    with pytest.raises(InputError, match="by='expired' is the author of defaults"):
        thread.resume({"ok": True}, by="expired")


# --- what is due


def waiting(store: Any, name: str, expires: float | None, graph: str = "Desk") -> Thread:
    made = Graph(name=graph).add_interrupt("ok", question="?", answer=bool, into="ok", expires=expires)
    thread = made.add_path(START, "ok", END).compile(store=store).thread(name)
    thread.run({})
    return thread


def test_due_is_the_longest_due_first_without_a_key(tmp_path: Path, time: FakeClock) -> None:
    store = Encrypted(SQLite(tmp_path / "runs.db"), key=Encrypted.new_key())
    for name, expires, graph in (
        ("b", 20, "Desk"),
        ("a", 30, "Desk"),
        ("c", 10, "Other"),
        ("d", None, "Desk"),
        ("e", 90, "Desk"),
    ):
        waiting(store, name, expires, graph)
    waiting(store, "answered", 5).resume({"ok": True})
    now = datetime.now(UTC)
    with Archive(tmp_path / "runs.db") as archive:
        assert archive.due() == []
        time.advance(60)
        assert archive.due() == ["c", "b", "a"]
        assert archive.due(limit=2) == ["c", "b"]
        assert archive.due(graph="Desk") == ["b", "a"]
        assert archive.due(at=now) == []
        for given in ({"limit": 0}, {"limit": True}):
            with pytest.raises(ValueError, match="1 or more"):
                archive.due(**given)
        with pytest.raises(TypeError):
            archive.due(at="now")  # type: ignore[arg-type]


def test_a_change_of_a_run_that_waits_keeps_its_time(resume: Resume, time: FakeClock) -> None:
    store = Memory()
    thread = waiting(store, "t", 60)
    thread.update({"note": "Ada has called"})
    copy = thread.copy(to="copy", patch={"note": "and here?"})
    assert Archive(store).due() == []
    time.advance(61)
    assert Archive(store).due() == ["copy", "t"]
    assert [type(resume(one).error) for one in (thread, copy)] == [QuestionExpired] * 2


def test_recover_resumes_what_is_due_and_gives_no_permission(time: FakeClock) -> None:
    store, purged = Memory(), []
    graph = node(expires=60, default=False).add_node("after", lambda sent: {}, writes=[])
    graph.add_node("purge", lambda: purged.append(1), writes=[]).add_path(START, "purge", END)
    program = graph.compile(store=store, layers=[Breakpoints(before=["purge"])])
    program.thread("t").run({})
    waiting(store, "other", 60, "Other")
    waiting(store, "failing", 60)
    assert program.recover() == []
    time.advance(61)
    assert sorted(program.recover()) == ["t"]  # `failing` was made by another version of the graph
    assert ([question.key for question in program.thread("t").questions], purged) == (["before"], [])
    assert program.recover() == []
    assert program.thread("t").resume().status == "completed"
    assert purged == [1]


DESK = """
import json, os, signal, sys, time
from dspyer import END, START, Archive, Graph
from dspyer.errors import ConcurrentRunError, ThreadError

def after(sent):
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    with open("calls", "a") as file:
        file.write(f"after {sent}\\n")

graph = Graph(name="Desk").add_interrupt("ok", question="Send?", answer=bool, into="sent", expires=0.01, default=False)
graph.add_node("after", lambda sent: after(sent) or {}, writes=[])
program = graph.add_path(START, "ok", "after", END).compile(store="runs.db")

if sys.argv[1] == "ask":
    for name in sys.argv[2:]:
        program.thread(name).run({})
if sys.argv[1] == "die":
    time.sleep(0.05)
    program.thread(sys.argv[2]).resume()
if sys.argv[1] == "work":
    print("ready")
    sys.stdin.readline()
    taken = []
    for name in Archive("runs.db").due(graph="Desk"):
        try:
            taken.append((name, program.thread(name).resume().status))
        except (ConcurrentRunError, ThreadError):
            pass
    print(json.dumps(taken))
"""


def test_a_process_that_dies_behind_the_default(tmp_path: Path) -> None:
    """The default is recorded once, and the node behind it is called again by who comes next."""
    assert run_python(DESK, "ask", "t", cwd=tmp_path).returncode == 0
    assert run_python(DESK, "die", "t", cwd=tmp_path).returncode == -9
    with Archive(tmp_path / "runs.db") as archive:
        assert (archive.thread("t").info().status, archive.due()) == ("crashed", ["t"])
        (first,) = archive.thread("t").answers
        assert (first.value, first.by) == (False, "expired")
        child = Child(DESK, "work", cwd=tmp_path)
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == [["t", "completed"]]
        assert child.wait() == 0
        assert (archive.thread("t").answers, archive.due()) == ((first,), [])
    assert (tmp_path / "calls").read_text() == "after False\n"


def test_of_two_workers_one_gets_each_run(tmp_path: Path) -> None:
    names = [f"t-{number}" for number in range(8)]
    assert run_python(DESK, "ask", *names, cwd=tmp_path).returncode == 0
    children = [Child(DESK, "work", cwd=tmp_path) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    taken = [json.loads(child.stdout.readline()) for child in children]
    assert [child.wait() for child in children] == [0, 0]
    assert Counter(name for name, _ in taken[0] + taken[1]) == Counter(names)
    assert (tmp_path / "calls").read_text() == "after False\n" * 8


def test_in_one_process_one_caller_gets_the_run(time: FakeClock) -> None:
    calls: list[int] = []
    program = (
        node(expires=60, default=False).add_node("after", lambda: calls.append(1), writes=[]).compile(store=":memory:")
    )
    program.thread("t").run({})
    time.advance(61)

    def resumed(_: int) -> str | None:
        try:
            return program.thread("t").resume().status
        except (ConcurrentRunError, ThreadError):
            return None

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(resumed, range(4)))
    assert (sorted(found, key=str), calls) == ([None, None, None, "completed"], [1])


# --- where it is shown


def test_the_time_is_shown(tmp_path: Path, time: FakeClock) -> None:
    thread = waiting(SQLite(tmp_path / "runs.db"), "t", 60)
    (question,) = thread.questions
    at = f"{datetime.fromtimestamp(question.expires or 0, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
    with Archive(tmp_path / "runs.db") as archive:
        assert f"ok (expires {at}): ?" in archive.thread("t").report()
    (asked,) = [step["asked"] for step in thread.record().to_dict()["steps"] if step.get("asked")]
    assert asked["expires"] == question.expires
