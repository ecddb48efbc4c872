"""Which messages a mode is shown (`context=`), and how tools show their calls (`render=`)."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import agents, view
from dspyer.agents.conversation import Shown, ShownCall, shown
from dspyer.errors import GraphError, NodeOutputError
from dspyer.messages import task_message, tool_message
from dspyer.testing import ScriptedLM
from dspyer.values.freezing import freeze
from dspyer.values.frozen import thaw
from tests.openai_server import OpenAIServer


class Plan(BaseModel):
    plan: str = "look"
    count: int = 1


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"next_thought": "so", "tool_calls": {"tool_calls": [{"name": name, "args": args} for name, args in made]}}


TURNS = [calls(("add", {"a": number, "b": 0}), ("add", {"a": number, "b": 5})) for number in range(10, 15)]
SUBMIT = calls(("submit", {"answer": 3}))


def last_request(context: Any, turns: int = 3) -> list[tuple[str, str]]:
    """What the last turn of a run is shown besides the system message, as (role, text without the reminder)."""
    program = agents.tool_loop("question -> answer: int", [add], context=context, schema=Plan).compile()
    with ScriptedLM([*TURNS[:turns], SUBMIT]) as lm:
        run = program.run({"question": "1 + 2?"})
    assert run.status == "completed", run.error
    assert len(run.state["messages"]) == 1 + 3 * turns + 2  # whatever is shown, the conversation is the same
    texts = [(turn["role"], turn["content"].split("\n\nRespond")[0]) for turn in lm.calls[-1].messages[1:]]
    without_tools = [(role, text.split("[[ ## tools ## ]]")[0].strip()) for role, text in texts]
    return [(role, text) for role, text in without_tools if text]


def shown_sums(context: Any, turns: int = 3) -> list[str]:
    """The results that the last turn is shown."""
    found = last_request(context, turns)
    assert found[0] == ("user", "[[ ## question ## ]]\n1 + 2?")  # the task is always there
    return [text.rpartition("[[ ## tool_call_results ## ]]\n")[2] for role, text in found[1:] if role == "user"]


def recent(messages: Any) -> Any:
    """The last five messages: two results of the turn before the last, without their call, and the last turn."""
    return messages[-5:]


def only_task(messages: Any, count: int) -> Any:
    return [message for message in messages if message["role"] == "user"][:count]


def summary(messages: Any, plan: str) -> Any:
    return [{"role": "user", "content": f"{len(messages)} messages before, to {plan}"}, *messages[-3:]]


@pytest.mark.parametrize(
    ("context", "sums"),
    [
        (None, [(10, 15), (11, 16), (12, 17)]),
        (view("messages"), [(10, 15), (11, 16), (12, 17)]),
        (view("messages").last(3), [(12, 17)]),
        (view("messages").last(5), [(12, 17)]),  # two results without their call are left out
        (view("messages").turns(2), [(11, 16), (12, 17)]),
        (view("messages").by("react"), [(10, 15), (11, 16), (12, 17)]),
        (view("messages").then(lambda entries: entries[-4:]), [(12, 17)]),
        (view("messages").fit(10_000), [(10, 15), (11, 16), (12, 17)]),
        (view("messages").fit(1), []),
        (recent, [(12, 17)]),
        (only_task, []),
        (lambda messages: [each for each in messages if each.get("tool_call_id") != "call_1_0"], "one result"),
        (lambda messages: [dict(each) for each in messages[-3:]], [(12, 17)]),
    ],
)
def test_a_context_selects_the_messages_and_keeps_calls_with_their_results(context: Any, sums: Any) -> None:
    found = shown_sums(context)
    if sums == "one result":
        assert len(found) == 3
        assert "call_1_0" not in found[1]
        assert '"value": 16' in found[1]
        return
    assert len(found) == len(sums)
    for text, values in zip(found, sums, strict=True):
        assert [f'"value": {value}' in text for value in values] == [True, True]


def test_a_context_may_add_texts_of_its_own() -> None:
    found = last_request(summary)
    assert found[0] == ("user", "[[ ## question ## ]]\n10 messages before, to look\n\n1 + 2?")
    assert len(found) == 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_mode_shows_what_another_one_left_out(asynchronous: bool) -> None:
    """The conversation itself is the same for all modes."""
    look = agents.Mode("Look.", [add], to=["work"])
    work = agents.Mode("Work.", [add], to=["look"], context=lambda messages: messages[:1])
    program = agents.modes("question -> answer: int", {"look": look, "work": work}).compile()
    inputs = {"question": "1 + 2?"}
    with ScriptedLM([TURNS[0], calls(("to_work", {})), TURNS[1], calls(("to_look", {})), SUBMIT]) as lm:
        run = asyncio.run(program.arun(inputs)) if asynchronous else program.run(inputs)
    assert run.state["answer"] == 3
    found = ["".join(turn["content"] for turn in call.messages) for call in lm.calls]
    assert ['"value": 10' in text for text in found] == [False, True, False, False, True]
    assert ['"value": 11' in text for text in found] == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("context", "problem"),
    [
        (3, "the context of node 'react' is 3: give view('messages')"),
        (view("plan"), "view('plan'), which is no view of the conversation"),
        (view("messages").by("reactt"), "'reactt' is no node"),
        (lambda messages, plans: messages[: len(plans)], "its parameter 'plans'"),
        (lambda plan: [plan], "does not read 'messages'"),
        (lambda messages, ctx: ctx and messages, "gets values only"),
    ],
)
def test_a_context_that_cannot_be_is_a_build_error(context: Any, problem: str) -> None:
    with pytest.raises(GraphError) as caught:
        agents.tool_loop("question -> answer: int", [add], context=context, schema=Plan).compile()
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("context", "problem"),
    [
        (lambda messages: "all" if messages else None, "returned 'all', of type str: return a list of messages"),
        (lambda messages: [message["content"] for message in messages], "a message is a dict"),
        (lambda messages: [*messages, {"role": "system", "content": "x"}], "system messages are not kept"),
    ],
)
def test_a_context_that_gives_no_messages_fails_the_mode(context: Any, problem: str) -> None:
    program = agents.tool_loop("question -> answer: int", [add], context=context).compile()
    with ScriptedLM([]):
        run = program.run({"question": "1 + 2?"})
    assert isinstance(run.error, NodeOutputError)
    assert problem in str(run.error)
    assert "the context of node 'react'" in "".join([str(run.error), *run.error.__notes__])


# --- render


def conversation(turns: int) -> Any:
    messages: list[dict[str, Any]] = [{**task_message({"question": "?"}), "id": "task"}]
    for number in range(turns):
        listed = [
            {"id": f"{name}{number}", "type": "function", "function": {"name": name, "arguments": '{"a": [1]}'}}
            for name in ("add", "see")
        ]
        message = {"role": "assistant", "content": "", "tool_calls": listed, "turn": {"next_thought": None}}
        results = [tool_message(f"{name}{number}", name, {"n": [number]}, error=number == 1) for name in ("see", "add")]
        messages += [{**each, "id": f"{number}{place}"} for place, each in enumerate([message, *results])]
    return freeze(messages)


def rendered(messages: Any, **renders: Any) -> list[list[tuple[str, Any, Any]]]:
    found = shown(messages.raw_items(), Shown("question", renders, "work")).events
    results = [event["tool_calls"].tool_call_results.tool_call_results for event in found]
    return [
        [
            (call.name, call.args, result.value)
            for call, result in zip(event["tool_calls"].tool_calls, each, strict=True)
        ]
        for event, each in zip(found, results, strict=True)
    ]


def test_a_tool_decides_how_each_of_its_results_is_shown() -> None:
    messages = conversation(3)
    asked: list[ShownCall] = []

    def short(call: ShownCall) -> Any:
        asked.append(call)
        return call.value if call.age < 1 else f"({len(call.value)} keys)"

    found = rendered(messages, add=short)
    assert [values[0][2] for values in found] == ["(1 keys)", "(1 keys)", {"n": [2]}]
    assert [values[1][2] for values in found] == [{"n": [0]}, {"n": [1]}, {"n": [2]}]
    assert asked == [
        ShownCall("add", {"a": [1]}, {"n": [number]}, number == 1, 2 - number, "work") for number in range(3)
    ]
    rendered(messages, add=short)
    assert len(asked) == 6  # at each rendering


def test_none_leaves_out_the_call_and_a_turn_without_calls() -> None:
    messages = conversation(3)
    found = rendered(messages, add=lambda call: None)
    assert [[name for name, _, _ in values] for values in found] == [["see"], ["see"], ["see"]]
    found = rendered(messages, add=lambda call: call.age or None, see=lambda call: None if call.age != 1 else 1)
    assert [[name for name, _, _ in values] for values in found] == [["add"], ["add", "see"]]
    all_out = shown(messages.raw_items(), Shown("question", {"add": lambda _: None, "see": lambda _: None}, "work"))
    assert all_out == ({"question": "?"}, [])  # the task is pending again: it is shown in any case


def test_a_render_may_shorten_the_arguments_too_and_changes_nothing_that_is_kept() -> None:
    messages = conversation(2)
    before = rendered(messages)

    def spoil(call: ShownCall) -> Any:
        call.args["a"].append(2)
        call.value["n"].append(3)
        return call._replace(args={"a": "..."}, value=call.value)

    found = rendered(messages, add=spoil)
    assert found[0][0] == ("add", {"a": "..."}, {"n": [0, 3]})
    assert rendered(messages) == before


def test_an_error_of_a_render_names_the_tool() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        rendered(conversation(1), add=lambda call: 1 / call.age)
    assert caught.value.__notes__ == ["in the render of the tool 'add'"]


def test_the_age_of_a_call_counts_the_turns_that_are_not_shown() -> None:
    messages = conversation(3)
    selected = [messages[index] for index in (0, 1, 2, 3)]
    ages: list[int] = []
    shown(selected, Shown("question", {"add": lambda call: ages.append(call.age)}), messages.raw_items())
    assert ages == [2]


def test_a_call_that_a_context_made_up_has_no_age() -> None:
    messages = conversation(1)
    made = [thaw(message) for message in messages]
    made[1]["tool_calls"][0]["id"] = made[3]["tool_call_id"] = "own"
    ages: list[int] = []
    shown(made, Shown("question", {"add": lambda call: ages.append(call.age)}), messages.raw_items())
    assert ages == [0]


def test_a_picture_in_a_message_of_a_chat_is_a_part_of_the_request() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    chat = [{"role": "user", "content": [{"type": "text", "text": "Look at this:"}, picture]}]
    turn = """[[ ## next_thought ## ]]
so

[[ ## tool_calls ## ]]
{"tool_calls": [{"name": "submit", "args": {"answer": "x"}}]}

[[ ## completed ## ]]"""
    program = agents.tool_loop("question -> answer", []).compile()
    with OpenAIServer(lambda messages: turn) as server, dspy.context(lm=server.lm(cache=False)):
        run = program.run({"question": "What is it?", "messages": chat})
    assert run.status == "completed", run.error
    content = server.requests[0]["messages"][-1]["content"]
    assert picture in content
    assert "Look at this:" in content[0]["text"]
    assert "What is it?" in content[2]["text"]
    assert "base64" not in content[0]["text"] + content[2]["text"]


# --- what is kept


def test_messages_are_converted_once_and_forgotten_with_their_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    from dspyer.agents import conversation as module

    made: list[Any] = []

    class Counted(module.Piece):
        def __init__(self, message: Any) -> None:
            made.append(message["role"])
            super().__init__(message)

    monkeypatch.setattr(module, "Piece", Counted)
    gc.collect()
    kept = len(module._pieces)
    messages = conversation(20)
    first = shown(messages.raw_items(), Shown("question"))
    assert len(made) == 61
    again = shown(messages.raw_items(), Shown("question"))
    assert len(made) == 61
    assert all(one is other for one, other in zip(first.events[1:], again.events[1:], strict=True))
    assert len(module._pieces) == kept + 61
    made.clear()
    del messages
    assert len(module._pieces) == kept


def test_what_is_kept_of_a_turn_follows_the_results_that_are_shown() -> None:
    messages = conversation(1)

    def names(*places: int) -> list[str]:
        events = shown([messages[place] for place in places], Shown("question")).events
        return [call.name for event in events for call in event["tool_calls"].tool_calls]

    every, see, add_alone = (0, 1, 2, 3), (0, 1, 2), (0, 1, 3)
    assert [names(*each) for each in (see, every, add_alone, (0, 1), every)] == [
        ["see"],
        ["add", "see"],
        ["add"],
        [],
        ["add", "see"],
    ]


def test_a_history_is_a_copy() -> None:
    messages = conversation(2)
    history = shown(messages.raw_items(), Shown("question")).history
    assert isinstance(history, dspy.History)
    history.messages[0].clear()
    history.messages.append({"question": "spoiled"})
    assert shown(messages.raw_items(), Shown("question")).events[0]["question"] == "?"
    assert len(shown(messages.raw_items(), Shown("question")).history.messages) == 2
