"""A long result is cut where it is shown, and a prompt that is too long is made shorter."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import agents, view
from dspyer.errors import AgentError, GraphError
from dspyer.testing import ScriptedLM
from tests.agents.kit import SUBMIT, agent, modes, results, start, turn
from tests.rows import each

LONG = "".join(f"{number:07d} " for number in range(12_500))  # 100,000 characters


def read(name: str = "a") -> Any:
    """Reads a file."""
    return LONG


def last(lm: ScriptedLM) -> str:
    return json.dumps(lm.calls[-1].messages, ensure_ascii=False)


# --- cut where it is shown


@modes
def test_a_long_result_is_shown_in_part_and_read_on(mode: str) -> None:
    on = [turn(("read_result", {"call": "call_0_0", "start": start})) for start in (2_000, 22_000, 82_000)]
    with ScriptedLM([turn(("read", {})), *on, SUBMIT]) as lm:
        run = start(agent(read), mode)
    run.raise_error()
    values = [value for _, value, _ in results(run)]
    assert values[0] == LONG  # it is stored whole
    assert values[1] == (
        f"{LONG[2_000:22_000]}\n\n(Characters 2000 to 22000 of 100000. Read on with "
        "read_result(call='call_0_0', start=22000).)"
    )
    assert values[3] == f"{LONG[82_000:]}\n\n(Characters 82000 to 100000 of 100000.)"
    shown = lm.calls[1].messages[-2]["content"]
    assert LONG[:2_000] in shown
    assert LONG[:2_008] not in shown
    assert "(Characters 0 to 2000 of 100000. Read on with read_result(call='call_0_0', start=2000).)" in shown
    assert LONG[82_000:99_999] in last(lm)  # what was read on is not cut
    offered = ["read_result" in call.messages[-1]["content"] for call in lm.calls]
    assert offered == [False, True, True, True, True]


def test_read_result_is_offered_natively_only_if_a_result_is_cut() -> None:
    lm = ScriptedLM([turn(("read", {})), SUBMIT])
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        start(agent(read)).raise_error()
    offered = [[tool.name for tool in call.prompt.tools] for call in lm.calls]
    assert offered == [["read", "submit"], ["read", "submit", "read_result"]]


@each(
    ("of_agent", "of_tool", "shown"),
    [
        (100, {}, 10),
        (100, {"max_result": 1000}, 100),
        (100, {"max_result": None}, 100_000),
        (None, {}, 100_000),
        (None, {"max_result": 50}, 5),
        (100_000, {}, 100_000),
        (99_999, {}, 9_999),
        (3, {}, 1),
    ],
)
def test_how_much_is_shown(of_agent: Any, of_tool: Any, shown: int) -> None:
    with ScriptedLM([turn(("read", {})), SUBMIT]) as lm:
        start(agent(agents.tool(read, **of_tool), max_result=of_agent)).raise_error()
    assert LONG[:shown] in last(lm)
    assert (f"(Characters 0 to {shown} of 100000. Read on" in last(lm)) == (shown < 100_000)
    assert ("read_result" in last(lm)) == (shown < 100_000)


def test_each_mode_and_a_value_that_is_no_text() -> None:
    def rows() -> list[int]:
        """Lists rows."""
        return list(range(1000))

    graph = agents.modes("question -> answer", {"look": agents.Mode("Look.", [rows])}, max_result=100)
    script = [turn(("rows", {})), turn(("read_result", {"call": "call_0_0", "start": 10})), SUBMIT]
    with ScriptedLM(script) as lm:
        run = start(graph.compile())
    assert "[0, 1, 2, \\\\n\\\\n(Characters 0 to 10 of 4890." in json.dumps(lm.calls[1].messages)
    assert results(run)[0][1] == list(range(1000))
    assert results(run)[1][1].startswith("3, 4, 5, 6")


@each(
    ("args", "said"),
    [
        ({"call": "call_9_0"}, "no call 'call_9_0' has a result"),
        ({"call": "call_0_0", "start": -1}, "start=-1: the result has the characters 0 to 100000"),
        ({"call": "call_0_0", "start": 100_000}, "start=100000"),
        ({"call": "call_0_0", "start": "x"}, "start"),
        ({}, "call"),
    ],
)
def test_what_cannot_be_read_is_said(args: Any, said: str) -> None:
    with ScriptedLM([turn(("read", {})), turn(("read_result", args)), SUBMIT]):
        run = start(agent(read))
    name, value, error = results(run)[1]
    assert (name, error) == ("read_result", True)
    assert said in value
    assert value.startswith("step: read_result; error: ")


def test_what_a_render_hides_cannot_be_read() -> None:
    secret = agents.tool(read, name="secret", render=lambda call: None)
    short = agents.tool(read, name="short", render=lambda call: call.value.replace("0", "x"))
    script = [
        turn(("secret", {}), ("short", {})),
        turn(("read_result", {"call": "call_0_0"}), ("read_result", {"call": "call_0_1", "start": 16})),
        SUBMIT,
    ]
    with ScriptedLM(script):
        found = results(start(agent(secret, short)))
    assert "no call 'call_0_0' has a result" in found[2][1]
    assert found[3][1].startswith("xxxxxx2 xxxxxx3 ")


class Desk(BaseModel):
    secret: str = "0000002"


def test_what_is_read_on_is_rendered_with_fields() -> None:
    tool = agents.tool(read, render=lambda call, secret: call.value.replace(secret, "*"))
    script = [turn(("read", {})), turn(("read_result", {"call": "call_0_0", "start": 8})), SUBMIT]
    with ScriptedLM(script):
        found = results(start(agent(tool, schema=Desk)))
    assert found[1][1].startswith("0000001 * 0000003 ")


@each(
    ("make", "said"),
    [
        (lambda: agent(read, max_result=0), "max_result=0: give the most characters of a result"),
        (lambda: agent(read, max_result="many"), "max_result='many': give"),
        (lambda: agent(read, max_result=True), "max_result=True: give"),
        (lambda: agents.tool(read, max_result=-1), "tool 'read': max_result=-1: give"),
        (lambda: agent(agents.tool(read, name="read_result")), "the agent has a tool 'read_result'"),
    ],
)
def test_what_max_result_cannot_be(make: Any, said: str) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert said in str(caught.value)


class Seeing(dspy.ChatAdapter):
    """Keeps the chats that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.chats: list[Any] = []

    def format(self, *args: Any) -> Any:
        self.chats.append(super().format(*args))
        return self.chats[-1]


def test_a_picture_is_not_cut() -> None:
    picture, adapter = dspy.Image(f"data:image/png;base64,{'iVBORw0KGgo' * 3000}"), Seeing()

    def look() -> dspy.Image:
        """Looks."""
        return picture

    with dspy.context(lm=ScriptedLM([turn(("look", {})), SUBMIT]), adapter=adapter):
        start(agent(look)).raise_error()
    parts = [part for one in adapter.chats[1] if isinstance(one["content"], list) for part in one["content"]]
    assert {"type": "image_url", "image_url": {"url": picture.url}} in parts


# --- a prompt that is too long

TOO_LONG = dspy.ContextWindowExceededError(message="too long")


def page(name: str) -> str:
    """Reads a page."""
    return f"page {name}: " + LONG[:5000]


def pages_shown(lm: ScriptedLM) -> list[list[int]]:
    """For each request the length of each page in it."""
    found = []
    for call in lm.calls:
        text = "\n".join(str(one["content"]) for one in call.messages)
        found.append(
            [
                next(size for size in (5000, 992, 0) if f"page {name}: {LONG[:size]}" in text or not size)
                for name in "abcd"
            ]
        )
    return found


PAGES = [turn(("page", {"name": name})) for name in "abcd"]
WHOLE = [5000, 5000, 5000, 5000]


@modes
@each(
    ("answers", "shown"),
    [
        ([SUBMIT], [WHOLE]),
        ([TOO_LONG, SUBMIT], [WHOLE, [0, 992, 992, 992]]),
        ([TOO_LONG, TOO_LONG, SUBMIT], [WHOLE, [0, 992, 992, 992], [0, 0, 0, 992]]),
        ([TOO_LONG] * 3 + [SUBMIT], [WHOLE, [0, 992, 992, 992], [0, 0, 0, 992], [0, 0, 0, 992]]),  # which must submit
        ([TOO_LONG] * 4, [WHOLE, [0, 992, 992, 992], [0, 0, 0, 992], [0, 0, 0, 992]]),
    ],
)
def test_a_prompt_that_is_too_long_is_made_shorter_twice(mode: str, answers: Any, shown: Any) -> None:
    thread = agent(page, store=":memory:").thread("t")
    with ScriptedLM([SUBMIT]):
        thread.run({"question": "An earlier question?"})
    with ScriptedLM([*PAGES, *answers]) as lm:
        run = start(thread, mode)
    assert pages_shown(lm)[4:] == shown
    texts = [json.dumps(call.messages) for call in lm.calls[4:]]
    assert all("Why?" in text for text in texts)
    assert ["An earlier question?" in text for text in texts] == [True] + [False] * (len(answers) - 1)
    assert [value for _, value, _ in results(run)] == [page(name) for name in "abcd"]
    assert all("page d" not in text or "read_result" in text for text in texts[1:])
    if len(answers) < 4 or answers[-1] is SUBMIT:
        run.raise_error()
        return
    assert isinstance(run.error, AgentError)
    assert run.error.reason == "context_window_exceeded"


def test_the_last_turn_that_must_submit_is_made_shorter_too() -> None:
    with ScriptedLM([*PAGES, TOO_LONG, SUBMIT]) as lm:
        run = start(agent(page, max_turns=4))
    run.raise_error()
    assert pages_shown(lm)[4:] == [WHOLE, [0, 0, 992, 992]]


def test_a_prompt_that_cannot_be_shorter_is_not_sent_again() -> None:
    with ScriptedLM([TOO_LONG, TOO_LONG]) as lm:
        assert isinstance(start(agent(page)).error, AgentError)
    assert len(lm.calls) == 2  # the turn, and the one that must submit


def test_what_a_context_selects_is_made_shorter() -> None:
    context = view("messages").turns(3)
    with ScriptedLM([*PAGES, TOO_LONG, TOO_LONG, SUBMIT]) as lm:
        start(agent(page, context=context)).raise_error()
    assert pages_shown(lm)[4:] == [[0, 5000, 5000, 5000], [0, 0, 992, 992], [0, 0, 0, 992]]
