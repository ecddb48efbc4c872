"""An edit decides anew what was decided by it: where a branch goes whose router has read what is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Breakpoints, Command, CompiledGraph, Context, Graph, Run, Send, Thread, reducers
from dspyer.errors import ThreadError
from dspyer.testing import ScriptedLM

Action = Literal["pay", "refuse", "both", "again"]


class Case(BaseModel):
    action: Action = "pay"
    note: str = ""
    seen: Annotated[list[str], reducers.extend] = []


class Desk:
    """decide -> pay, refuse, both or decide again; each node fails while it is in `bad`."""

    def __init__(self, store: Any = ":memory:", layers: Any = (), decide: Any = None, route: Any = "action") -> None:
        self.bad: set[str] = set()
        graph = Graph(Case).add_node("decide", decide or self.node("decide"), writes=["seen"], **self.options(decide))
        for name in ("pay", "refuse", "file"):
            graph.add_node(name, self.node(name), writes=["seen"])
        targets: Any = {"pay": "pay", "refuse": "refuse", "both": ["pay", "refuse"], "again": "decide"}
        graph.add_edge(START, "decide").add_conditional_edges("decide", route, targets)
        graph.add_edge("pay", "file").add_edge("refuse", "file").add_edge("file", END)
        self.program = graph.compile(store=store, layers=list(layers))

    @staticmethod
    def options(decide: Any) -> dict[str, Any]:
        return {} if decide is None else {"goto": ["refuse"]}

    def node(self, name: str) -> Any:
        def work(note: str, ctx: Context) -> dict[str, Any]:
            del note
            if name == "pay":
                ctx.once("sent", lambda: name) if "effect" in self.bad else None
            if name in self.bad:
                raise RuntimeError(name)
            return {"seen": [name]}

        return work

    def failed(self, node: str = "pay", **inputs: Any) -> Thread:
        self.bad.add(node)
        thread = self.program.thread("t")
        assert thread.run(inputs).status == "failed"
        self.bad.discard(node)
        return thread


def resumed(thread: Thread, mode: str = "sync", **options: Any) -> Run:
    return thread.resume(**options) if mode == "sync" else asyncio.run(thread.aresume(**options))


EDITS: dict[str, tuple[Action, list[str], tuple[str, ...]]] = {
    "to another node": ("refuse", ["decide", "refuse", "file"], ("refuse",)),
    "to two": ("both", ["decide", "pay", "refuse", "file"], ("pay", "refuse")),
    "to the same": ("pay", ["decide", "pay", "file"], ()),
}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("edit", EDITS)
def test_the_branch_continues_where_it_leads_from_the_edited_state(edit: str, mode: str, tmp_path: Path) -> None:
    action, seen, route = EDITS[edit]
    desk = Desk(tmp_path / "t.db")
    thread = desk.failed()
    before = thread.history()
    made = thread.update({"action": action, "note": "by Ada"})
    assert (made.route, made.id) == (route, "t.2/trunk:1+1")
    assert thread.history() == [*before, made]  # the log keeps where the run would have gone
    other = Desk(tmp_path / "t.db").program.thread("t")  # another process knows as much
    run = resumed(other, mode)
    assert (run.status, run.state["seen"]) == ("completed", seen)
    assert [commit.route for commit in run.commits if commit.node == "update"] == [route]
    assert thread.replay() == thread.state == run.state
    copy = thread.copy("copy", at=1, patch={"action": action})
    assert resumed(copy, mode).state["seen"] == seen
    assert [step.node for step in run.record().steps] == [step.node for step in thread.record().steps]


def test_a_branch_goes_back_in_its_loop() -> None:
    desk = Desk()
    thread = desk.failed()
    assert thread.update({"action": "again"}).route == ("decide",)
    desk.bad.add("decide")
    assert thread.resume().failures[0].node == "decide"  # at the second visit
    desk.bad.clear()
    assert thread.update({"note": "x"}).route == ()
    assert [commit.visit for commit in thread.copy("copy").resume().commits if commit.node == "decide"][:2] == [1, 2]
    assert thread.update({"action": "both"}).route == ("pay", "refuse")
    run = thread.resume()
    assert run.state["seen"] == ["decide", "pay", "refuse", "file"]
    assert thread.replay() == run.state


def test_an_edit_may_be_edited_again() -> None:
    thread = Desk().failed()
    routes = [thread.update({"action": action}).route for action in ("refuse", "pay", "refuse", "refuse")]
    assert routes == [("refuse",), ("pay",), ("refuse",), ()]
    assert thread.resume().state["seen"] == ["decide", "refuse", "file"]
    with pytest.raises(ThreadError, match="without this change of 'action'"):
        thread.update({"action": "pay"})  # the run is completed: nothing is decided


def test_the_router_of_the_start_is_asked_too() -> None:
    class Ask(BaseModel):
        kind: Literal["a", "b"]
        seen: list[str] = []

    def a() -> dict[str, Any]:
        raise RuntimeError

    graph = Graph(Ask).add_node("a", a, writes=["seen"]).add_node("b", lambda: {"seen": ["b"]}, writes=["seen"])
    graph.add_conditional_edges(START, "kind", ["a", "b"]).add_edge("a", END).add_edge("b", END)
    thread = graph.compile(store=":memory:").thread("t")
    assert thread.run({"kind": "a"}).status == "failed"
    assert thread.update({"kind": "b"}).route == ("b",)
    assert thread.resume().state["seen"] == ["b"]


def test_sends_are_made_of_the_edited_state() -> None:
    class Batch(BaseModel):
        docs: list[str]
        seen: Annotated[list[str], reducers.extend] = []

    def split(docs: list[str]) -> list[Send]:
        return [Send("read", {"doc": doc}) for doc in docs]

    def nothing(docs: list[str]) -> dict[str, Any]:
        del docs
        return {}

    def read(doc: str) -> dict[str, Any]:
        if doc == "bad":
            raise RuntimeError(doc)
        return {"seen": [doc]}

    graph = Graph(Batch).add_node("list", nothing, writes=[]).add_node("read", read, writes=["seen"])
    graph.add_edge(START, "list").add_conditional_edges("list", split, ["read"]).add_edge("read", END)
    thread = graph.compile(store=":memory:").thread("t")
    assert thread.run({"docs": ["bad"]}).status == "failed"
    assert thread.update({"docs": ["x"]}).route == ("read",)
    assert thread.update({"docs": ["y", "z"]}).route == ("read", "read")
    run = thread.resume()
    assert run.state["seen"] == ["y", "z"]
    for record in (run.record(), thread.record()):
        assert [dict(step.sent) for step in record.steps if step.node == "read"] == [{"doc": "y"}, {"doc": "z"}]
    assert thread.replay() == thread.state


def test_what_a_node_has_decided_itself_stays() -> None:
    def decide() -> Any:
        return Command({"seen": ["decide"]}, goto="refuse")

    desk = Desk(decide=decide)
    thread = desk.failed("refuse")
    assert thread.update({"action": "both"}).route == ()
    assert thread.resume().state["seen"] == ["decide", "refuse", "file"]


def test_a_model_that_routes_is_asked_by_as_node() -> None:
    route = dspy.Predict("note -> action: Literal['pay', 'refuse', 'both', 'again']")
    desk = Desk(route=route)
    desk.bad.add("pay")
    thread = desk.program.thread("t")
    with ScriptedLM([{"action": "pay"}, {"action": "refuse"}]):
        assert thread.run({"note": "ok"}).status == "failed"
        before = thread.history()
        with pytest.raises(
            ThreadError, match=r"router of 'decide'.* is a module.*as_node='decide'.*the next resume asks"
        ):
            thread.update({"note": "no"})
        assert thread.history() == before
        assert thread.update({"action": "both"}).route == ()  # it has not read that
        thread.update({"note": "no"}, as_node="decide")
        assert thread.resume().state["seen"] == ["decide", "refuse", "file"]


def test_an_effect_that_was_recorded_is_not_left_behind() -> None:
    desk = Desk()
    desk.bad.add("effect")
    thread = desk.failed()
    before = thread.history()
    with pytest.raises(ThreadError, match="has done a part of its work already"):
        thread.update({"action": "refuse"})
    assert thread.history() == before
    assert thread.update({"note": "x"}).route == ()
    assert thread.resume().status == "completed"


# --- stops


def stopped(program: CompiledGraph, *keys: str) -> Thread:
    thread = program.thread("t")
    assert [question.key for question in thread.run({}).questions] == list(keys)
    return thread


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_open_stop_after_a_node_stays_open_and_is_not_asked_twice(mode: str) -> None:
    desk = Desk(layers=[Breakpoints(after=["decide"])])
    thread = stopped(desk.program, "after")
    asked = thread.questions
    for action in ("refuse", "pay", "refuse"):
        thread.update({"action": action})
        assert thread.questions == asked
        assert thread.status == "interrupted"
    copy = thread.copy("copy", at=1, patch={"action": "refuse"})  # without the question, which came after the commit
    assert [question.key for question in resumed(copy, mode).questions] == ["after"]
    for one in (thread, copy):
        run = resumed(one, mode)
        assert (run.status, run.state["seen"]) == ("completed", ["decide", "refuse", "file"])


BEFORE: dict[str, Callable[[Thread], object]] = {
    "open": lambda thread: thread.questions,
    "answered": lambda thread: thread.resume(),
}


@pytest.mark.parametrize("state", BEFORE)
def test_a_stop_before_the_new_node_is_asked(state: str) -> None:
    """The answer to the stop before another node is none to this one."""
    desk = Desk(layers=[Breakpoints(before=["pay", "refuse"])])
    thread = stopped(desk.program, "before")
    desk.bad.add("pay")
    BEFORE[state](thread)
    thread.update({"action": "refuse"})
    assert not thread.questions
    assert [question.node for question in thread.resume().questions] == ["refuse"]
    assert [question.node for question in thread.questions] == ["refuse"]
    assert thread.resume().state["seen"] == ["decide", "refuse", "file"]
    assert thread.record().steps


def test_what_comes_after_an_edit_can_be_repeated_and_copied() -> None:
    """Also where it leads to the end."""
    desk = Desk()
    thread = desk.failed()
    version = thread.update({"action": "refuse"}).version or 0
    seen = thread.resume().state["seen"]
    assert thread.copy("copy", at=version).resume().state["seen"] == seen
    assert thread.copy("before", at=version - 1).resume().state["seen"] == ["decide", "pay", "file"]
    assert thread.rerun(version).state["seen"] == seen == ["decide", "refuse", "file"]
    assert thread.replay() == thread.state

    class Mail(BaseModel):
        action: Literal["send", "drop"] = "send"
        sent: bool = False

    def send() -> dict[str, Any]:
        raise RuntimeError

    graph = Graph(Mail).add_node("think", lambda action: {"action": action}, writes=["action"])
    graph.add_node("send", send, writes=["sent"]).add_edge(START, "think").add_edge("send", END)
    graph.add_conditional_edges("think", "action", {"send": "send", "drop": END})
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({})
    assert (thread.update({"action": "drop"}).route, thread.status) == (("END",), "failed")
    run = thread.resume()
    assert (run.status, run.state["sent"], thread.status) == ("completed", False, "completed")
    assert thread.replay() == run.state
