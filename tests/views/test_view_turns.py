"""Views of a conversation keep turns whole; the function of `then` may read fields."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, Graph, Messages, Send, View, view
from dspyer.errors import GraphError, UnsetFieldError
from tests.plain_values import plain
from tests.rows import each

ANN, BOB = "ann", "bob"


class Talk(BaseModel):
    messages: Messages = []
    left: list[Any] = []
    right: list[Any] = []
    found: Any = None
    plan: str = "rest"


class Notes(BaseModel):
    notes: list[str] = ["a"]
    plan: str = "rest"
    late: str
    found: Any = None


def call(number: int) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@st.composite
def walks(draw: st.DrawFn, prefix: int) -> list[dict[str, Any]]:
    """Calls in turns, their results in any order and at any later time, and texts of users and assistants between."""
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    for place in range(draw(st.integers(0, 9))):
        what = draw(st.sampled_from(["user", "text", "calls", "result", "result", "lone"]))
        if what == "calls":
            made = [call(prefix * 100 + place * 10 + number) for number in range(draw(st.integers(1, 3)))]
            waiting += [each["id"] for each in made]
            messages.append({"role": "assistant", "content": "", "tool_calls": made})
        elif what == "result" and waiting:
            chosen = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            messages.append({"role": "tool", "tool_call_id": chosen, "content": "x" * draw(st.integers(0, 9))})
        elif what == "lone":
            messages.append({"role": "tool", "tool_call_id": f"unknown{place}", "content": "?"})
        else:
            messages.append({"role": "user" if what == "user" else "assistant", "content": what})
    return messages


def program(shown: View, *, sent: bool = False) -> Any:
    graph = Graph(Talk)
    graph.add_node(ANN, lambda left: {"messages": left}, reads=["left"], writes=["messages"])
    graph.add_node(BOB, lambda right: {"messages": right}, reads=["right"], writes=["messages"])
    graph.add_node("read", lambda seen: {"found": seen}, reads={"seen": shown}, writes=["found"])
    graph.add_node("join", lambda: None)
    graph.add_edge(START, ANN).add_edge(START, BOB).add_edge(ANN, "join").add_edge(BOB, "join")
    if sent:
        graph.add_conditional_edges("join", lambda messages: Send("read", {"messages": messages}), ["read"])
    else:
        graph.add_edge("join", "read")
    return graph.add_edge("read", END).compile()


def without_lone(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the results whose call is not among the messages; a result of no call at all stays."""
    known = {each["id"] for message in messages for each in message.get("tool_calls", ())}
    return [
        each for each in messages if not str(each.get("tool_call_id")).startswith("c") or each["tool_call_id"] in known
    ]


def last_turns(messages: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    starts = [place for place, each in enumerate(messages) if each["role"] == "assistant"]
    if len(starts) < count:
        return messages
    start = starts[-count]
    while start and messages[start - 1]["role"] == "user":
        start -= 1
    return messages[start:]


def by_bytes(text: str) -> int:
    return -(-len(text.encode()) // 4)


def tokens(message: dict[str, Any]) -> int:
    calls = [json.dumps(plain(message["tool_calls"]), ensure_ascii=False)] if message.get("tool_calls") else []
    return by_bytes("\n".join([message["content"], *calls]))


def fitting(messages: list[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    count = 0
    while count < len(messages) and sum(map(tokens, messages[-count - 1 :])) <= budget:
        count += 1
    return messages[len(messages) - count :]


CUTS = {"last": lambda messages, count: messages[-count:], "fit": fitting, "turns": last_turns}
PROGRAMS = {
    (step, count, sent): program(
        view("messages").fit(count, count=by_bytes) if step == "fit" else getattr(view("messages"), step)(count),
        sent=sent,
    )
    for step in CUTS
    for count in (1, 2, 3, 5)
    for sent in (False, True)
}


@given(left=walks(1), right=walks(2), which=st.sampled_from(sorted(PROGRAMS)))
def test_a_cut_begins_with_whole_turns(left: Any, right: Any, which: Any) -> None:
    step, count, _ = which
    run = PROGRAMS[which].run({"left": left, "right": right})
    messages, found = run.state["messages"], run.state["found"]
    assert list(found) == without_lone(CUTS[step](list(messages), count))
    shown = {each["id"] for each in found}
    for message in found:  # what is shown of a turn is all of it
        ids = {each["id"] for each in message.get("tool_calls", ())}
        assert {each["id"] for each in messages if each.get("tool_call_id") in ids} <= shown


def test_turns_follow_other_steps() -> None:
    first, second = [{"role": "assistant", "content": "", "tool_calls": [call(number)]} for number in (1, 2)]
    results = [{"role": "tool", "tool_call_id": f"c{number}", "content": "r"} for number in (1, 2)]
    ask = {"role": "user", "content": "?"}
    shapes = {
        view("messages").by(ANN).turns(1): ["", "r"],
        view("messages").by(BOB).turns(1): ["?", "", "r"],
        view("messages").turns(1).by(ANN): [],
        view("messages").turns(2).by(ANN): ["", "r"],
        view("messages").turns(9): ["", "r", "?", "", "r"],
        view("messages").new().turns(1): ["?", "", "r"],
    }
    for shown, expected in shapes.items():
        run = program(shown).run({"left": [first, results[0]], "right": [ask, second, results[1]]})
        assert [message["content"] for message in run.state["found"]] == expected, shown


def test_only_a_conversation_has_turns() -> None:
    with pytest.raises(GraphError, match=r"only a conversation has turns: give the field the type dspyer.Messages"):
        program(view("left").turns(1))
    with pytest.raises(GraphError, match="whole number of at least 1"):
        view("messages").turns(0)


# --- fields of `then`


def with_plan(entries: Any, plan: str) -> Any:
    return [len(entries), plan]


def changed(entries: Any, left: list[Any]) -> Any:
    left.append(len(entries))
    return left


@each(
    ("fn", "expected"),
    [
        (len, 2),
        (with_plan, [2, "rest"]),
        (changed, [{"role": "user", "content": "a"}, 2]),
        (lambda entries, *, plan: plan, "rest"),
        (lambda entries, plan="none": plan, "rest"),
        (lambda entries, k=3: k, 3),
        (partial(with_plan, plan="bound"), [2, "bound"]),
        (lambda *entries, **more: [len(entries[0]), more], [2, {}]),
    ],
)
def test_the_function_of_then_takes_fields_by_name(fn: Any, expected: Any) -> None:
    user = {"role": "user", "content": "a"}
    run = program(view("messages").then(fn)).run({"left": [user], "right": [user]})
    assert run.state["found"] == expected
    assert run.state["left"] == [user]  # a copy was changed


def test_the_fields_of_then_are_reads_of_the_node() -> None:
    graph = Graph(Talk).add_node("read", lambda seen: None, reads={"seen": view("messages").then(with_plan)}, writes=[])
    assert graph.add_path(START, "read", END).compile().graph.nodes["read"].reads == {
        "seen": "messages",
        "plan": "plan",
    }


def test_a_name_of_then_that_is_no_field_is_a_build_error() -> None:
    with pytest.raises(GraphError, match=r"whose function takes 'plans', which is no field of the state .*'plan'"):
        program(view("messages").then(lambda entries, plans: plans))


def look(fn: Any, **late: Any) -> Any:
    """The run of a graph whose first node looks at notes by a function, and whose second one writes `late`."""
    graph = Graph(Notes, inputs=["notes", "plan"])
    graph.add_node("look", lambda seen: {"found": seen}, reads={"seen": view("notes").then(fn)}, writes=["found"])
    graph.add_node("write", lambda: {"late": "!"}, writes=["late"])
    return graph.add_path(START, "look", "write", END).compile().run(late)


def test_a_field_of_then_that_is_not_set() -> None:
    with pytest.raises(GraphError, match="node 'look' reads 'late', which nothing can have written by then"):
        look(lambda entries, late: late)
    late = view("notes").then(lambda entries, late: late)
    graph = Graph(Notes, inputs=["notes", "plan"]).add_node("ask", lambda ctx: {"found": ctx.view(late)})
    graph.add_node("write", lambda: {"late": "!"}, writes=["late"])
    run = graph.add_path(START, "ask", "write", END).compile().run({})
    assert isinstance(run.error, UnsetFieldError)
    assert "reads 'late', which nothing has written yet" in str(run.error)
    assert look(lambda entries, late="not yet": late).state["found"] == "not yet"


def test_ctx_view_reads_fields_that_the_node_may_read_only() -> None:
    def ask(ctx: Any) -> Any:
        return {"found": ctx.view(view("notes").then(lambda entries, plan: plan))}

    found = []
    for reads in (["notes"], ["notes", "plan"]):
        graph = Graph(Notes, inputs=["notes", "plan"]).add_node("ask", ask, reads=reads, writes=["found"])
        graph.add_node("write", lambda: {"late": "!"}, writes=["late"])
        found.append(graph.add_path(START, "ask", "write", END).compile().run({}))
    assert "'plan' is not among its reads ('notes')" in str(found[0].error)
    assert found[1].state["found"] == "rest"


def test_a_send_hides_a_field_of_then_and_tokens_are_counted_again() -> None:
    graph = Graph(Notes, inputs=["notes", "plan"])
    graph.add_node("look", lambda seen: {"found": seen}, reads={"seen": view("notes").then(with_plan)})
    graph.add_conditional_edges(START, lambda plan: Send("look", {"plan": f"no {plan}"}), ["look"])
    graph.add_node("write", lambda: {"late": "!"}, writes=["late"])
    run = graph.add_path("look", "write", END).compile().run({})
    assert run.state["found"] == [1, "no rest"]
    assert "with_plan" in str(run.view_tokens())
