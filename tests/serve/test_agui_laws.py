"""Laws of the route: after any run, the page shows what the thread holds; and no step of it breaks the protocol."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_serializer

from dspyer import END, START, CompiledGraph, Context, Graph, Messages, Replace, Send, reducers
from dspyer.testing import no_pauses
from tests.serve.posting import Page, app_of, body, kinds, of_kind, send

KEYS = st.sampled_from(["a", "b", "a/b", "~", "", "0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2) | st.floats(0, 1),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(KEYS, part, max_size=4),
    max_leaves=12,
)


class Row(BaseModel):
    n: int

    @field_serializer("n")
    def _count(self, n: int) -> int:
        converted.append(n)
        return n


converted: list[int] = []  # the rows that were made JSON


class Sheet(BaseModel):
    value: Any = None
    counts: dict[int, int] = {}
    rows: Annotated[list[Row], reducers.append] = []


@functools.cache
def writer() -> tuple[Any, list[dict[str, Any]]]:
    """An app over a graph that writes the updates of the list, one after another."""
    updates: list[dict[str, Any]] = []
    graph = Graph(Sheet, inputs=[]).add_node("write", lambda ctx: updates[ctx.visit - 1]).add_edge(START, "write")
    again = {"write": "write", END: END}
    graph.add_conditional_edges("write", lambda ctx: "write" if ctx.visit < len(updates) else END, again)
    return app_of(graph.compile(store=":memory:"), inputs=lambda body: {}), updates


def test_a_field_that_has_not_changed_is_not_made_json_again() -> None:
    app, updates = writer()
    updates[:] = [{"rows": Replace([Row(n=n) for n in range(50)])}, {"value": {1: 1}}, {"value": {1: 1}}]
    converted.clear()
    found = [one["snapshot"] for one in of_kind(send(app, body(thread=uuid4().hex)), "STATE_SNAPSHOT")]
    assert [one["value"] for one in found] == [None, None, {"1": 1}], "the third commit changes nothing"
    assert [len(one["rows"]) for one in found] == [0, 50, 50]
    assert sorted(converted) == [*range(50)]


class Work(BaseModel):
    message: str
    reply: str = ""
    log: Annotated[list[str], reducers.extend] = []
    table: dict[str, Any] = {}
    messages: Messages = []


class Step:
    """A node that writes a row, perhaps a text, a tool call or its result; its first attempts may fail."""

    def __init__(self, name: str, plan: Mapping[str, Any]) -> None:
        self.name = name
        self.plan = plan

    def __call__(self, message: str, ctx: Context) -> dict[str, Any]:
        if ctx.attempt <= self.plan["fails"]:
            raise ConnectionError("lost")
        if self.plan["asks"]:
            ctx.interrupt("ok", "Go on?", bool)
        if self.plan["emits"]:
            ctx.emit({"at": self.name})
        call = {"id": f"c{self.name}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        found = {"role": "tool", "name": "find", "tool_call_id": f"c{self.name}", "content": "found"}
        update: dict[str, Any] = {"log": [self.name], "table": {self.name: self.plan["value"]}}
        if self.plan["calls"]:
            update["messages"] = [{"role": "assistant", "content": "", "tool_calls": [call]}, found]
        return update


PLANS = st.fixed_dictionaries(
    {
        "fails": st.sampled_from([0, 0, 0, 1, 2]),
        "asks": st.sampled_from([False, False, True]),
        "emits": st.booleans(),
        "calls": st.booleans(),
        "value": VALUES,
        "targets": st.sets(st.integers(1, 3), max_size=2),
        "times": st.integers(1, 2),
    }
)


def program_of(plans: list[dict[str, Any]]) -> CompiledGraph:
    """A graph of layers without loops: node n goes on to later nodes, or sends itself to one several times."""
    graph = Graph(Work, inputs=["message"])
    names = [f"n{number}" for number in range(len(plans))]
    reached: set[str] = set()
    for number, (name, plan) in enumerate(zip(names, plans, strict=True)):
        graph.add_node(name, Step(name, plan), writes=["log", "table", "messages"], retry=2)
        targets = [names[number + ahead] for ahead in sorted(plan["targets"]) if number + ahead < len(names)]
        if targets and plan["times"] == 2:
            sends = [Send(targets[0], {"message": str(time)}) for time in range(2)]
            graph.add_conditional_edges(name, partial(list, sends), targets[:1])
            targets = targets[:1]
        else:
            graph.add_edge(name, targets or "tell")
        reached.update(targets)
    for name in sorted(set(names) - reached):
        graph.add_edge(START, name)
    graph.add_edge("tell", END)
    graph.add_node("tell", lambda log: {"reply": " ".join(log)}, writes=["reply"])
    return graph.compile(store=":memory:")


@given(st.lists(PLANS, min_size=1, max_size=4))
@settings(max_examples=15, deadline=None, phases=[Phase.reuse, Phase.generate])
def test_after_any_run_the_page_shows_what_the_thread_holds(plans: list[dict[str, Any]]) -> None:
    program = program_of(plans)
    app = app_of(program, text="reply")
    thread = program.thread("ada/t")
    with no_pauses():
        events = send(app, body(run="r0"))
        page = Page().read(events)
        while thread.status == "interrupted":
            asked = events[-1]["outcome"]["interrupts"]
            answers = [{"interruptId": one["id"], "status": "resolved", "payload": True} for one in asked]
            events = send(app, body(run=f"r{asked[0]['id']}", resume=answers))
            page.read(events)
    state, failed = thread.state.to_dict(), thread.status == "failed"
    assert page.state == json.loads(json.dumps({name: state[name] for name in ("reply", "log", "table", "messages")}))
    if not failed:
        made = [one["content"] if one["role"] == "tool" else "find{}" for one in state["messages"]]
        assert sorted(page.messages.values()) == sorted([*made, state["reply"]])
    assert [one["delta"] for one in of_kind(events, "TEXT_MESSAGE_CONTENT")] == [state["reply"]] * (not failed)
    assert kinds(events)[-1] == ("RUN_ERROR" if failed else "RUN_FINISHED")
