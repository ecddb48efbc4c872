"""Acting from the inspector: what a thread does, what is refused at once, two tabs, and the end of the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple

import dspy
import pytest
from pydantic import BaseModel, Field

import dspyer.inspector
from dspyer import END, START, Budget, CompiledGraph, Graph, Thread, reducers
from dspyer.errors import LMCallError
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM
from tests.inspector.asking import TOKEN, get, post
from tests.rows import each

PATIENCE = 20.0


class Order(BaseModel):
    id: str
    amount: Annotated[int, Field(ge=0)] = 0


class Desk(BaseModel):
    order: Order
    notes: Annotated[list[str], reducers.extend] = []
    paid: bool | None = None
    sent: int = 0


class Gate:
    """A node that counts its calls, and waits while the gate is closed."""

    def __init__(self) -> None:
        self.calls = 0
        self.began = threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.error: Exception | None = None

    def send(self, order: Order) -> dict[str, Any]:
        self.calls += 1
        self.began.set()
        assert self.open.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return {"sent": order.amount, "notes": [f"sent {order.id}"]}


class Setting(NamedTuple):
    app: Any
    program: CompiledGraph
    gate: Gate

    def thread(self, name: str = "t") -> Thread:
        return self.program.thread(name)

    def asked(self, name: str = "t") -> Thread:
        """A thread whose run waits for the answer whether to pay."""
        thread = self.thread(name)
        assert thread.run({"order": {"id": "A-1", "amount": 5}}).status == "interrupted"
        return thread

    def ended(self, name: str = "t") -> str:
        """The status of a thread once the runs that were begun from the page have ended."""
        for worker in list(self.app.state.actions.workers):
            worker.join(PATIENCE)
        return self.thread(name).status


@pytest.fixture
def setting() -> Iterator[Setting]:
    gate = Gate()
    graph = Graph(Desk, name="Desk").add_interrupt("pay", question="Pay?", answer=bool, into="paid")
    graph.add_node("send", gate.send).add_path(START, "pay", "send", END)
    store = Memory()
    program = graph.compile(store=store)
    yield Setting(dspyer.inspector.app(store, program, token=TOKEN), program, gate)
    gate.open.set()


def test_it_says_that_it_acts(setting: Setting) -> None:
    about = get(setting.app, "about")
    assert (about["programs"], about["acts"], about["store"]) == (["Desk"], True, ":memory:")


def test_an_answer_continues_the_run(setting: Setting) -> None:
    question = setting.asked().questions[0]
    long = post(setting.app, "answer", thread="t", answers={question.id: True}, comment="x" * 501)
    assert (long.status_code, setting.thread().answers) == (422, ())
    begun = post(setting.app, "answer", thread="t", answers={question.id: True}, by="ada", comment="by phone")
    assert begun.status_code == 200, begun.text
    assert begun.json()["begun"] is True
    assert setting.ended() == "completed"
    shown = get(setting.app, "record", thread="t")
    ((step, asked),) = [(step["id"], step["asked"]) for step in shown["items"] if step["asked"]]
    assert (asked["answer"]["by"], asked["answer"]["comment"], asked["id"]) == ("ada", "by phone", question.id)
    assert question.id == f"{step}/{question.key}"
    assert (setting.thread().state["paid"], setting.thread().state["sent"], setting.gate.calls) == (True, 5, 1)
    assert shown["run"]["id"] == get(setting.app, "record", thread="t", run=begun.json()["run"])["run"]["id"]


def test_answers_are_checked_before_anything_runs(setting: Setting) -> None:
    setting.asked()
    rows: list[tuple[Any, int, str]] = [
        ({"pay": "perhaps"}, 422, "pay"),
        ({"pay": {"$type": "odd", "value": 1}}, 422, "pay"),
        ({"pay": {"$type": "tuple"}}, 422, "pay"),
        ({"other": True}, 409, "other"),
    ]
    for answers, status, field in rows:
        refused = post(setting.app, "answer", thread="t", answers=answers)
        assert refused.status_code == status, refused.text
        assert list(refused.json()["fields"]) == [field]
        assert refused.json()["error"]["message"]
    assert setting.thread().status == "interrupted"
    assert setting.gate.calls == 0


def test_two_tabs_at_once(setting: Setting) -> None:
    setting.asked()
    setting.gate.open.clear()
    assert post(setting.app, "answer", thread="t", answers={"pay": True}).status_code == 200
    assert setting.gate.began.wait(PATIENCE)
    assert get(setting.app, "record", thread="t")["run"]["status"] == "running"
    bodies: dict[str, dict[str, Any]] = {"answer": {"answers": {"pay": False}}, "resume": {}, "rerun": {"at": 0}}
    for name, body in bodies.items():
        refused = post(setting.app, name, thread="t", **body)
        assert refused.status_code == 409, (name, refused.text)
        error = refused.json()["error"]
        assert error["type"] == "ConcurrentRunError"
        assert "Another tab or process" in error["message"]
    setting.gate.open.set()
    assert setting.ended() == "completed"
    assert setting.gate.calls == 1
    again = post(setting.app, "answer", thread="t", answers={"pay": True})
    assert again.status_code == 409
    assert "nothing to resume" in again.json()["error"]["message"]


def test_many_tabs_at_the_same_moment(setting: Setting) -> None:
    setting.asked()
    setting.gate.open.clear()
    with ThreadPoolExecutor(6) as tabs:
        found = list(tabs.map(lambda _: post(setting.app, "answer", thread="t", answers={"pay": True}), range(6)))
    assert sorted(response.status_code for response in found) == [200, 409, 409, 409, 409, 409]
    setting.gate.open.set()
    assert setting.ended() == "completed"
    assert setting.gate.calls == 1


def test_stop_and_resume(setting: Setting) -> None:
    setting.asked()
    setting.gate.open.clear()
    assert post(setting.app, "answer", thread="t", answers={"pay": True}).status_code == 200
    assert setting.gate.began.wait(PATIENCE)
    assert post(setting.app, "stop", thread="t").json() == {"stopped": True}
    assert setting.thread().status == "stopped"
    setting.gate.open.set()
    assert setting.ended() == "stopped"
    assert post(setting.app, "stop", thread="t").status_code == 409
    assert post(setting.app, "resume", thread="t").status_code == 200
    assert setting.ended() == "completed"
    assert setting.gate.calls == 2


def test_a_run_that_fails_has_begun(setting: Setting) -> None:
    setting.asked()
    setting.gate.error = ValueError("no stamp")
    assert post(setting.app, "answer", thread="t", answers={"pay": True}).status_code == 200
    assert setting.ended() == "failed"
    assert get(setting.app, "record", thread="t")["run"]["failure"]["message"] == "no stamp"


def test_rerun(setting: Setting) -> None:
    setting.asked().resume({"pay": True})
    assert post(setting.app, "rerun", thread="t", at=1).status_code == 200
    assert setting.ended() == "completed"
    assert setting.gate.calls == 2
    last = setting.thread().history()[-1].id
    refused = {"at": 99}, {"at": "odd"}, {"at": last}
    assert [post(setting.app, "rerun", thread="t", **body).status_code for body in refused] == [404, 404, 409]


def test_a_copy_with_an_edited_state(setting: Setting) -> None:
    setting.asked().resume({"pay": True})
    before = setting.thread().state["order"]
    shown = get(setting.app, "record", thread="t")["items"][0]["wrote"]["order"]["value"]
    edited = {**get(setting.app, "values", thread="t", id=shown)["values"][shown], "amount": 9}
    copied = post(
        setting.app,
        "copy",
        thread="t",
        to="try",
        at=1,
        patch={"order": edited, "notes": {"$type": "replace", "value": ["by hand"]}},
    )
    assert copied.json() == {"thread": "try", "status": "stopped"}
    assert post(setting.app, "resume", thread="try").status_code == 200
    assert setting.ended("try") == "completed"
    state = setting.thread("try").state
    assert (state["sent"], state["notes"]) == (9, ["by hand", "sent A-1"])
    assert type(state["order"]) is Order
    assert setting.thread().state["order"] == before


PATCHES: list[tuple[dict[str, Any], set[str]]] = [
    ({"sent": "many"}, {"sent"}),
    ({"sent": "many", "paid": "perhaps", "notes": ["fine"]}, {"sent", "paid"}),
    ({"other": 1}, {"other"}),
    ({"order": {"$type": "model", "class": "os:system", "value": {}}}, {"order"}),
    ({"order": {"id": "B", "amount": -1}}, {"order"}),
    ({"notes": {"$type": "patch", "value": 3}}, {"notes"}),
    ({"notes": {"$type": "replace"}}, {"notes"}),
    ({"notes": {"$type": []}}, {"notes"}),
    ({"sent": {"$type": "updates", "value": [1, "x"]}}, {"sent"}),
]


@each(("patch", "fields"), PATCHES)
def test_a_patch_is_checked_field_by_field(patch: dict[str, Any], fields: set[str], setting: Setting) -> None:
    setting.asked().resume({"pay": True})
    refused = post(setting.app, "copy", thread="t", to="try", at=1, patch=patch)
    assert refused.status_code == 422, refused.text
    assert refused.json()["fields"].keys() == fields
    assert all(refused.json()["fields"].values())
    assert setting.thread("try").status == "new"


def test_a_copy_does_not_replace_a_thread(setting: Setting) -> None:
    setting.asked()
    setting.asked("u")
    assert post(setting.app, "copy", thread="t", to="u").status_code == 409
    assert post(setting.app, "copy", thread="t", to="").status_code == 409
    assert post(setting.app, "copy", thread="t", to="v", at="odd").status_code == 404


def test_a_name_that_is_mistyped_makes_no_thread(setting: Setting) -> None:
    bodies: dict[str, dict[str, Any]] = {"answer": {"answers": {}}, "resume": {}, "stop": {}}
    bodies |= {"rerun": {"at": 0}, "copy": {"to": "u"}}
    for name, body in bodies.items():
        for thread in ("missing", "\ud800"):
            assert post(setting.app, name, thread=thread, **body).status_code == 404
    assert setting.program.threads() == []


def test_the_end_of_the_server_stops_its_runs(setting: Setting) -> None:
    setting.asked()
    setting.gate.open.clear()
    assert post(setting.app, "answer", thread="t", answers={"pay": True}).status_code == 200
    assert setting.gate.began.wait(PATIENCE)
    closing = threading.Thread(target=setting.app.state.actions.close)
    closing.start()
    setting.gate.open.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert setting.ended() in ("stopped", "completed")
    assert setting.thread().state["sent"] == 5  # what was working was committed
    assert setting.gate.calls == 1


def test_each_run_is_acted_on_by_the_program_of_its_graph(setting: Setting) -> None:
    store = setting.program.thread("t")._store
    other = Graph(name="Other").add_interrupt("ask", question="?", answer=bool, into="ok").add_path(START, "ask", END)
    others, mine = other.compile(store=store), setting.program
    others.thread("o").run({})
    setting.asked()
    bodies: dict[str, dict[str, Any]] = {"answer": {"answers": {"ask": True}}, "resume": {}, "stop": {}}
    bodies |= {"rerun": {"at": 0}, "copy": {"to": "u"}}
    for name, body in bodies.items():
        refused = post(setting.app, name, thread="o", **body)
        assert refused.status_code == 403
        assert "'Other'" in refused.json()["error"]["message"]
        assert "--program" in refused.json()["error"]["message"]
    assert others.thread("o").status == "interrupted"
    both = Setting(dspyer.inspector.app(store, [mine, others], token=TOKEN), mine, setting.gate)
    assert get(both.app, "about")["programs"] == ["Desk", "Other"]
    acts = [get(app, "record", thread=t)["graphs"][""]["can_act"] for app in (setting.app, both.app) for t in "to"]
    assert acts == [True, False, True, True]
    assert post(both.app, "answer", thread="o", answers={"ask": True}).status_code == 200
    assert post(both.app, "answer", thread="t", answers={"pay": True}).status_code == 200
    assert (both.ended(), others.thread("o").status) == ("completed", "completed")
    with pytest.raises(ValueError, match="two programs have a graph of the name 'Other'"):
        dspyer.inspector.app(store, [mine, others, other.compile(store=store)], token=TOKEN)


# --- a prompt again


def asking(record: str = "full", lm: Any = None) -> tuple[Any, str, CompiledGraph]:
    """An app, its step that has asked a model, and its program; "bound" is the model of the node."""
    graph = Graph(name="Ask").add_node("ask", dspy.Predict("question -> answer"), lm=lm).add_path(START, "ask", END)
    store = Memory()
    budget = Budget(cost=1, prices=dict.fromkeys(("scripted", "bound"), (1.0, 2.0)))
    program = graph.compile(store=store, record_lm_calls=record, budget=budget)  # type: ignore[arg-type]
    program.thread("t").run({"question": "Capital of France?"}).raise_error()
    return dspyer.inspector.app(store, program, token=TOKEN), "t.1/trunk:1", program


def test_a_prompt_is_sent_again_and_stored_nowhere() -> None:
    words = [{"answer": word} for word in ("Lyon", "Paris", "Nice")]
    lm = ScriptedLM([*words, ConnectionError("down")], model="scripted")
    with dspy.context(lm=lm):
        app, step, _ = asking()
        body: dict[str, Any] = {"thread": "t", "run": "t.1", "step": step, "call": 0}
        before = get(app, "record", thread="t")
        found = post(app, "again", **body).json()
        assert "Paris" in found.get("text", ""), found
        assert (found["model"], found["cost"] > 0, found["seconds"] > 0) == ("scripted", True, True)
        assert found["cost"] == pytest.approx(1e-6 * found["tokens"][0] + 2e-6 * found["tokens"][1])
        edited = [{"role": "user", "content": "And of Piedmont?"}]
        found = post(app, "again", **body, messages=edited, model="other").json()
        assert ("Nice" in found["text"], found["model"]) == (True, "other")
        assert [one.content for one in lm.calls[-1].prompt.turns] == ["And of Piedmont?"]
        failed = post(app, "again", **body)
        assert (failed.status_code, failed.json()["error"]["type"]) == (502, "LMUnexpectedError")
        rows: list[tuple[dict[str, Any], int]] = [
            ({"call": 1}, 404),
            ({"step": "t.1/odd"}, 404),
            ({"run": "odd"}, 409),
            ({"call": -1}, 404),
        ]
        for wrong, status in [*rows, ({"messages": "text"}, 400)]:
            assert post(app, "again", **{**body, **wrong}).status_code == status
    after = get(app, "record", thread="t")
    assert [after[name] for name in ("run", "items", "count")] == [before[name] for name in ("run", "items", "count")]


def test_a_prompt_again_asks_the_model_of_its_node_or_says_what_is_missing() -> None:
    script = {"France": {"answer": "Paris"}}
    app, step, _ = asking(lm=ScriptedLM(script, model="bound"))
    body: dict[str, Any] = {"thread": "t", "run": "t.1", "step": step, "call": 0}
    with dspy.context(lm=ScriptedLM([], model="other")):
        assert post(app, "again", **body).json()["model"] == "bound"
    with dspy.context(lm=ScriptedLM(script)):
        app, step, program = asking("usage")
        refused = post(app, "again", **body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (422, "LMCallError")
        assert 'record_lm_calls="full"' in refused.json()["error"]["message"]
        (call,) = program.thread("t").record().calls(step)
        with pytest.raises(LMCallError, match="record_lm_calls"):
            call.again()
        again = call.again(messages=[{"role": "user", "content": "France"}])
        assert (again.node, again.execution, again.predictor) == (call.node, call.execution, call.predictor)
    refused = post(app, "again", **body)
    assert (refused.status_code, "dspy.configure" in refused.json()["error"]["message"]) == (422, True)


def test_no_cache_answers_a_prompt_that_is_sent_again() -> None:
    words = iter(("Lyon", "Paris"))
    lm = ScriptedLM(lambda prompt: {"answer": next(words)}, cache=True)
    with dspy.context(lm=lm):
        app, step, _ = asking()
        assert "Paris" in post(app, "again", thread="t", run="t.1", step=step, call=0).json()["text"]


def test_a_program_needs_the_store_of_its_archive() -> None:
    graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    with pytest.raises(ValueError, match="compile it with this store"):
        dspyer.inspector.app(dspyer.Archive(Memory()), graph.compile(), token=TOKEN)
    for token in ("", "a b", "ä", "a/b"):
        with pytest.raises(ValueError, match="token"):
            dspyer.inspector.app(Memory(), token=token)
    for host in ("", "localhost:8000", "http://localhost", "[::1]:80"):
        with pytest.raises(ValueError, match="hosts"):
            dspyer.inspector.app(Memory(), token=TOKEN, hosts=[host])
