"""When a run hides its values: from its start to its end, in each of the graphs around, and after a resume."""

from __future__ import annotations

import threading
from traceback import walk_tb
from typing import Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Context, Graph, Send
from dspyer.events import Committed, Emitted
from dspyer.extend import Layer, Stop
from dspyer.stores import Memory

SECRET = "SECRET-123"
HIDDEN = "[redacted]"


class State(BaseModel):
    q: str = ""
    token: str = ""


def test_each_graph_redacts_an_event_once() -> None:
    def marked(path: tuple[Any, ...], value: Any) -> Any:
        return f"<{value}>" if path == ("q",) else value

    inner = Graph(name="Inner").add_node("say", lambda q: {"q": "b"}).add_path(START, "say", END)
    outer = Graph(name="Outer", inputs=["q", "token"]).add_node("inner", inner.compile(redact=marked))
    outer.add_path(START, "inner", END)
    events = list(outer.compile(redact="token").stream({"q": "a", "token": ""}))
    patches = [event.commit.patch for event in events if isinstance(event, Committed)]
    assert [patch["q"] for patch in patches] == ["a", "<a>", "<b>", "b"], "too short to be hidden elsewhere"


class Handing(Memory):
    """Lets another node go on, to its end, while the commit of the first one is written."""

    def __init__(self) -> None:
        super().__init__()
        self.returned, self.writes, self.said = False, threading.Event(), threading.Event()

    def write(self, change: Any) -> Any:
        if self.returned and not self.writes.is_set():
            self.writes.set()
            assert self.said.wait(10)
        return super().write(change)


@pytest.mark.parametrize("inside", [False, True])
def test_a_value_is_hidden_as_soon_as_it_is_committed(inside: bool) -> None:
    store = Handing()

    def left(q: str) -> dict[str, Any]:
        store.returned = True
        return {"token": SECRET}

    def right(q: str, ctx: Context) -> None:
        assert store.writes.wait(10)
        ctx.emit(f"the token is {SECRET}")
        store.said.set()

    signs: Any = left
    if inside:
        part = Graph(State, inputs=["q"], name="Part").add_node("sign", left, writes=["token"])
        signs = part.add_path(START, "sign", END).compile(redact=["token"])
    graph = Graph(State, inputs=["q"]).add_node("left", signs, writes=["token"]).add_node("right", right, writes=[])
    graph.add_path(START, "left", END).add_path(START, "right", END)
    with graph.compile(store=store, redact=["token"]).thread("t").stream({"q": ""}) as stream:
        emitted = [event.value for event in stream if isinstance(event, Emitted)]
    assert emitted == [f"the token is {HIDDEN}"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_resumed_run_hides_what_an_earlier_process_has_committed(inside: bool) -> None:
    def ask(ctx: Context) -> None:
        ctx.interrupt("go", "Go on?")
        raise ValueError(f"the token is {SECRET}")

    graph = Graph(State, inputs=["q"]).add_node("sign", lambda q: {"token": SECRET}, writes=["token"])
    if inside:
        graph = Graph(State, inputs=["q"]).add_node("sign", graph.add_path(START, "sign", END), writes=["q"])
    graph.add_node("ask", ask, writes=[]).add_path(START, "sign", "ask", END)
    store = Memory()
    graph.compile(store=store, redact=["token"]).thread("t").run({"q": ""})
    run = graph.compile(store=store, redact=["token"]).thread("t").resume({"go": True})
    assert str(run.error) == f"the token is {HIDDEN}"


def test_the_error_of_a_run_is_a_copy_of_the_one_that_was_raised() -> None:
    raised: list[ValueError] = []

    def sign(token: str) -> None:
        raised.append(ValueError(f"the token is {token}"))
        raise raised[0]

    graph = Graph(State, inputs=["token"]).add_node("sign", sign, writes=[]).add_path(START, "sign", END)
    error = graph.compile(redact=["token"]).run({"token": SECRET}).error
    assert error is not None
    assert (type(error), str(error), str(raised[0])) == (ValueError, f"the token is {HIDDEN}", f"the token is {SECRET}")
    assert sign.__code__ in [frame.f_code for frame, _ in walk_tb(error.__traceback__)]


def test_why_a_run_was_stopped_is_redacted() -> None:
    class Closed(Layer):
        def admit(self, call: Any) -> None:
            raise Stop(f"{call.read('token')} is no token")

    graph = Graph(State, inputs=["token"]).add_node("sign", lambda token: {}, writes=[]).add_path(START, "sign", END)
    run = graph.compile(redact=["token"], layers=[Closed()]).run({"token": SECRET})
    assert run.status == "stopped"
    assert SECRET not in f"{run.error} {run.error!r}"


def refuse(token: str) -> None:
    raise ValueError(f"refused: {token}")


def test_what_a_send_brings_to_a_hidden_field_is_hidden_in_why_its_node_fails() -> None:
    graph = Graph(State).add_node("go", lambda: None, writes=[]).add_node("fail", refuse, writes=[])
    graph.add_conditional_edges("go", lambda: [Send("fail", {"token": SECRET})], ["fail"])
    graph.add_edge(START, "go").add_edge("fail", END)
    run = graph.compile(redact=["token"], store=":memory:").thread("t").run({})
    shown = f"{[event.to_dict() for event in run.events]} {run.error} {run.report()} {run.record().to_dict()}"
    assert "refused: [redacted]" in shown
    assert SECRET not in shown
