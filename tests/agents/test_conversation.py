"""What a predictor with tools is shown of a conversation, against what `dspy.ReActV2` gives its predictor."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import dspy
import pytest
from dspy.adapters.types.tool import ToolCallResults
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer.agents.conversation import Shown, ShownCall, shown, text_input_of
from dspyer.errors import InputError
from dspyer.messages import call_ids
from dspyer.values.freezing import freeze
from tests.messages.providers import problems_of

ADAPTERS = {
    "chat": dspy.ChatAdapter(),
    "json": dspy.JSONAdapter(),
    "native": dspy.ChatAdapter(use_native_function_calling=True),
    "xml": dspy.XMLAdapter(),
}


class Report(BaseModel):
    title: str
    pages: int


class Task(dspy.Signature):
    """Write the report."""

    year: int = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()
    report: Report = dspy.OutputField()


def tide(place: str) -> dict[str, Any]:
    """Returns the tide at a place."""
    if place == "Atlantis":
        raise ValueError("no such place")
    return {"place": place, "hours": (9, 21), "note": "“neap”", "report": Report(title="t", pages=1)}


HOW = Shown("question")
INPUTS = {"year": 2026, "question": "When does the tide turn?"}
SUBMIT = ("submit", {"answer": "At nine.", "report": {"title": "Tides", "pages": 3}})
SCRIPTS: dict[str, list[tuple[str | None, list[tuple[str, dict[str, Any]]]]]] = {
    "one call": [("Look.", [("tide", {"place": "Ely"})]), ("Done.", [SUBMIT])],
    "several calls": [("Look.", [("tide", {"place": "Ely"}), ("tide", {"place": "Rye"})]), ("Done.", [SUBMIT])],
    "no thought": [(None, [("tide", {"place": "Ely"})]), (None, [SUBMIT])],
    "errors": [
        ("Look.", [("tide", {"place": "Atlantis"}), ("tides", {}), ("tide", {"no": 1})]),
        ("Stop.", [("submit", {"answer": "?"})]),
        ("Done.", [SUBMIT]),
    ],
    "submit with others": [("All.", [("tide", {"place": "Ely"}), SUBMIT, ("tide", {"place": "Rye"})])],
}


class ScriptedPredictor(dspy.Module):
    """Gives the turns of a script, and keeps a copy of what it was given."""

    def __init__(self, turns: list[tuple[str | None, list[tuple[str, dict[str, Any]]]]]) -> None:
        super().__init__()
        self.turns = list(turns)
        self.given: list[dict[str, Any]] = []

    def forward(self, **inputs: Any) -> dspy.Prediction:
        self.given.append({**inputs, "history": copy.deepcopy(inputs["history"])})
        thought, calls = self.turns.pop(0)
        reasoning = None if thought is None else dspy.Reasoning(content=thought)
        made = dspy.ToolCalls.from_dict_list([{"name": name, "args": args} for name, args in calls])
        return dspy.Prediction(next_thought=reasoning, tool_calls=made)


def run_react(
    script: str, inputs: dict[str, Any], history: Any = None
) -> tuple[dspy.Module, list[dict[str, Any]], Any]:
    agent = dspy.ReActV2(Task, [tide])
    signature, agent.react = agent.react.signature, ScriptedPredictor(SCRIPTS[script])
    done = agent(**inputs, history=history)
    return signature, agent.react.given, done.history


def messages_of(inputs: dict[str, Any], events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The messages of a run before each of its turns and after the last, as the loop commits them."""
    found: list[dict[str, Any]] = [{"role": "user", "content": "?", "turn": inputs}]
    stages = [list(found)]
    for event in events:
        thought = event.get("next_thought")
        calls = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": json.dumps(each.args)}}
            for each in event["tool_calls"].tool_calls
        ]
        text = None if thought is None else thought.content
        turn = {"role": "assistant", "name": "react", "content": text or "", "tool_calls": calls}
        results = ToolCallResults.model_validate(event["tool_calls"].tool_call_results).tool_call_results
        found.append({**turn, "turn": {"next_thought": text}})
        found += [
            {"role": "tool", "name": each.name, "tool_call_id": each.call_id, "content": "", "value": each.value}
            | {"error": each.is_error}
            for each in reversed(results)  # the order of arrival is not the order in a prompt
        ]
        stages.append(list(found))
    return stages


def requests(signature: Any, given: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, adapter in ADAPTERS.items():
        inputs, shape = dict(given), signature
        if name == "native":  # as `Adapter._call_preprocess` does
            shape = signature.delete("tools").delete("tool_calls")
        found[name] = json.dumps(adapter.format(shape, [], inputs), ensure_ascii=False)
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_turn_is_given_what_react_gives_its_predictor(script: str) -> None:
    signature, given, history = run_react(script, INPUTS)
    for stage, expected in zip(messages_of(INPUTS, history.messages), given, strict=False):
        for messages in (stage, list(freeze(stage).raw_items())):
            found = shown(messages, HOW)
            mine = {**found.inputs, "history": found.history, "tools": expected["tools"]}
            assert requests(signature, mine) == requests(signature, expected)


def test_the_next_run_is_given_what_react_is_given_with_its_history() -> None:
    """But for the ids of calls: `ReActV2` begins again with `call_0_0`, here each id is there once."""
    _, _, history = run_react("several calls", INPUTS)
    first = messages_of(INPUTS, history.messages)[-1]
    again = {**INPUTS, "question": "And tomorrow?"}
    count = len(history.messages)
    signature, given, both = run_react("errors", again, dspy.History(messages=list(history.messages)))
    for stage, expected in zip(messages_of(again, both.messages[count:]), given, strict=False):
        found = shown([*first, *stage], HOW)
        mine = {**found.inputs, "history": found.history, "tools": expected["tools"]}
        assert without_ids(requests(signature, mine)) == without_ids(requests(signature, expected))


def without_ids(found: dict[str, Any]) -> dict[str, Any]:
    return {name: re.sub(r"call_\d+(_\d+)?", "call", text) for name, text in found.items()}


def call(number: int, name: str = "tide") -> dict[str, Any]:
    return {"id": f"call_{number}_0", "type": "function", "function": {"name": name, "arguments": '{"place": "Ely"}'}}


def turn(number: int, thought: str = "Look.") -> dict[str, Any]:
    return {"role": "assistant", "content": thought, "tool_calls": [call(number)], "turn": {"next_thought": thought}}


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "name": "tide", "tool_call_id": f"call_{number}_0", "content": "9:40", "value": "9:40"}


TASK = {"role": "user", "content": "?", "turn": INPUTS}
HINT = {"role": "user", "content": "Ask the harbour."}


@pytest.mark.parametrize(
    ("messages", "inputs", "events"),
    [
        ([TASK], INPUTS, []),
        ([TASK, turn(0)], INPUTS, []),  # the call has no result yet
        ([TASK, turn(0), result(0)], {}, [INPUTS]),
        ([TASK, turn(0), result(0), HINT], {"question": HINT["content"]}, [INPUTS]),
        ([TASK, HINT], {**INPUTS, "question": f"{INPUTS['question']}\n\nAsk the harbour."}, []),
        ([HINT, TASK], {**INPUTS, "question": f"Ask the harbour.\n\n{INPUTS['question']}"}, []),
        ([TASK, {**TASK, "turn": {"question": "And now?"}}], {"question": "And now?"}, []),  # its run had no turn
        ([TASK, HINT, turn(0), result(0)], {}, [{**INPUTS, "question": f"{INPUTS['question']}\n\nAsk the harbour."}]),
        ([{"role": "assistant", "name": "critic", "content": "Why?\nSay."}], {"question": "critic: Why?\n  Say."}, []),
        ([{"role": "assistant", "content": "Hi."}], {"question": "assistant: Hi."}, []),
        ([TASK, {"role": "assistant", "content": "Hm.", "turn": {"next_thought": "Hm."}}], INPUTS, []),
        ([TASK, result(0)], INPUTS, []),
        ([TASK, turn(0), turn(1), result(1), result(0)], {}, [INPUTS, {}]),
    ],
)
def test_which_inputs_are_shown_and_where(messages: Any, inputs: Any, events: Any) -> None:
    found = shown(list(freeze(messages).raw_items()), HOW)
    assert found.inputs == inputs
    own = [{name: value for name, value in event.items() if name in INPUTS} for event in found.events]
    assert own == events


def test_texts_go_to_the_first_input_of_type_str() -> None:
    assert text_input_of(Task) == "question"
    assert text_input_of(dspy.Signature("year: int, topic: Optional[str] -> answer")) == "topic"
    assert text_input_of(dspy.Signature("year: int -> answer")) == "year"
    assert text_input_of(dspy.ReActV2(Task, [tide]).react.signature) == "question"
    with pytest.raises(InputError, match="cannot be shown to the model: the agent has no input"):
        shown([HINT], Shown(""))


def test_the_calls_of_joined_branches_have_ids_of_their_own() -> None:
    """Two branches that ran in parallel had the same number of turns, so both have `call_1_0`."""
    first, second = [[turn(1, thought), {**result(1), "value": thought}] for thought in ("left", "right")]
    messages = list(freeze([TASK, turn(0), result(0), *first, *second, turn(2), result(2)]).raw_items())
    for _ in range(2):  # also of what is kept
        events = [event["tool_calls"] for event in shown(messages, HOW).events]
        assert [[one.id for one in event.tool_calls] for event in events] == [
            ["call_0_0"],
            ["call_1_0"],
            ["call_2"],
            ["call_2_0"],
        ]
        results = [one for event in events for one in event.tool_call_results.tool_call_results]
        assert [one.call_id for one in results] == ["call_0_0", "call_1_0", "call_2", "call_2_0"]
        assert [one.value for one in results] == ["9:40", "left", "right", "9:40"]


# --- laws


@st.composite
def walks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns, results in any order and at any later time, tasks and texts: what parallel branches leave after a join."""
    messages: list[dict[str, Any]] = [TASK]
    waiting: list[str] = []
    for _ in range(draw(st.integers(0, 12))):
        what = draw(st.sampled_from(["task", "text", "turn", "turn", "result", "result", "result"]))
        if what == "turn":
            thought = draw(st.sampled_from([None, "", "Look."]))
            ids = call_ids([None] * draw(st.integers(1, 3)), messages)
            made = [{**call(0), "id": one} for one in ids]
            waiting += ids
            messages.append(
                {**turn(0), "tool_calls": made, "turn": {"next_thought": thought}, "content": thought or ""}
            )
        elif what == "result" and waiting:
            chosen = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            messages.append({**result(0), "tool_call_id": chosen})
        else:
            messages.append(TASK if what == "task" else HINT)
    return messages


@given(walks(), st.data())
def test_what_is_shown_of_any_selection_is_a_chat_that_providers_accept(messages: Any, data: Any) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
    leave_out = data.draw(st.sets(st.sampled_from(sorted({one.get("tool_call_id", "") for one in messages}))))
    chosen = [message for message, keep in zip(messages, kept, strict=True) if keep]

    def render(given_call: ShownCall) -> Any:
        return None if given_call.value in leave_out else given_call.value

    chosen = [{**one, "value": one["tool_call_id"]} if one["role"] == "tool" else one for one in chosen]
    found = shown(list(freeze(chosen).raw_items()), Shown("question", {"tide": render}))
    answered = {one["tool_call_id"] for one in chosen if one["role"] == "tool"} - leave_out
    called = {each["id"] for one in chosen for each in one.get("tool_calls", ())}
    events = [event["tool_calls"] for event in found.events]
    ids = [one.id for event in events for one in event.tool_calls]
    assert ids == [one.call_id for event in events for one in event.tool_call_results.tool_call_results]
    assert set(ids) == answered & called
    inputs = {**found.inputs, "history": found.history}
    shape = dspy.ReActV2(Task, [tide]).react.signature.delete("tools").delete("tool_calls")
    chat = ADAPTERS["native"].format(shape, [], inputs)[1:]
    chat = [{key: value for key, value in one.items() if key != "name"} for one in chat]  # DSPy names the tools
    assert [text for text in problems_of(chat) if "first message" not in text and "is empty" not in text] == []


@given(walks())
def test_every_message_is_shown_once(messages: Any) -> None:
    found = shown(messages, HOW)
    answered = {one["tool_call_id"] for one in messages if one["role"] == "tool"}
    assert {one.id for event in found.events for one in event["tool_calls"].tool_calls} == answered
    texts = [str(each.get("question")) for each in [*found.events, found.inputs]]
    assert "".join(texts).count("Ask the harbour.") == messages.count(HINT)
    assert "".join(texts).count("When does the tide turn?") <= messages.count(TASK)
