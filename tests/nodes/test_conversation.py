"""What a predictor with tools is shown of a conversation, against what `dspy.ReActV2` gives its predictor."""

from __future__ import annotations

import copy
import json
from typing import Any

import dspy
import pytest
from dspy.adapters.types.tool import ToolCallResults
from pydantic import BaseModel

from dspyer.nodes.conversation import Shown, shown, text_input_of
from dspyer.values.freezing import freeze

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
    _, _, history = run_react("several calls", INPUTS)
    first = messages_of(INPUTS, history.messages)[-1]
    again = {**INPUTS, "question": "And tomorrow?"}
    count = len(history.messages)
    signature, given, both = run_react("errors", again, dspy.History(messages=list(history.messages)))
    for stage, expected in zip(messages_of(again, both.messages[count:]), given, strict=False):
        found = shown([*first, *stage], HOW)
        mine = {**found.inputs, "history": found.history, "tools": expected["tools"]}
        assert requests(signature, mine) == requests(signature, expected)


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
