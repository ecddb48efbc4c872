"""What a predictor with tools is shown of a conversation: its inputs and the events of its `dspy.History`.

A conversation is a list of messages (see `messages`). An *event* is one turn as DSPy shows it: the inputs that the turn
handled, the thought, the tool calls with their results in the order of the calls, and the outputs of an accepted
`submit`. The values are those of which `dspy.ReActV2` makes its own history, so both send the same requests.

A message that is neither a turn nor a task's inputs (a user message without `turn`, a message of another node) is text.
DSPy shows only the fields of a signature, so texts are shown in an input: the first one of type str.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import dspy
from dspy.adapters.types.tool import ToolCallResults

from dspyer.hints import without_none
from dspyer.message_list import TURN
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.views import indented, label, text_of

SUBMIT = "submit"
"""The tool by which a predictor gives its final outputs."""

THOUGHT = "next_thought"


class ShownConversation(NamedTuple):
    """What a predictor is shown of a conversation.

    Attributes:
        inputs: the inputs that no turn has handled yet, by name.
        events: the turns, first to last, for a `dspy.History`.
    """

    inputs: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def history(self) -> dspy.History:
        """The turns as DSPy takes them."""
        return dspy.History(messages=self.events)


def text_input_of(signature: type[dspy.Signature]) -> str:
    """The input in which a predictor is shown messages that are text: the first of type str, else the first.

    Example:
        >>> text_input_of(dspy.Signature("year: int, question -> answer"))
        'question'
    """
    names: list[str] = list(signature.input_fields)
    texts = [name for name in names if without_none(signature.input_fields[name].annotation) is str]
    return (texts or names)[0]


def shown(messages: Iterable[Mapping[str, Any]], text_input: str) -> ShownConversation:
    """The inputs and events for the next call of a predictor, from the messages that it is to see.

    `text_input` is the input that shows texts. The messages may be frozen or plain.

    Example:
        >>> calls = [{"id": "call_0_0", "type": "function", "function": {"name": "tide", "arguments": "{}"}}]
        >>> task = {"role": "user", "content": "High tide?", "turn": {"question": "High tide?"}}
        >>> turn = {"role": "assistant", "content": "I look it up.", "tool_calls": calls}
        >>> result = {"role": "tool", "name": "tide", "tool_call_id": "call_0_0", "content": "9:40", "value": "9:40"}
        >>> shown([task], "question").inputs
        {'question': 'High tide?'}
        >>> shown([task, turn, result], "question").events[0]["tool_calls"].tool_call_results.tool_call_results[0].value
        '9:40'
    """
    found = list(messages)
    results = _results_by_turn(found)
    pending: list[Mapping[str, Any]] = []
    events = []
    for place, message in enumerate(found):
        if _get(message, "role") == "tool":
            continue
        if not is_turn(message):
            pending.append(message)
            continue
        turn = _turn_values(message, results.get(place, {}))
        if turn:
            events.append({**_inputs(pending, text_input), **turn})
            pending = []
    return ShownConversation(_inputs(pending, text_input), events)


def is_turn(message: Mapping[str, Any]) -> bool:
    """Whether a message is a turn of a predictor with tools: it calls tools, or holds what such a predictor thought."""
    if _get(message, "role") != "assistant":
        return False
    turn = _get(message, TURN)
    return bool(_get(message, "tool_calls")) or (isinstance(turn, Mapping) and THOUGHT in turn)


def is_task(message: Mapping[str, Any]) -> bool:
    """Whether a message holds the inputs of a task."""
    return _get(message, "role") == "user" and isinstance(_get(message, TURN), Mapping)


def _results_by_turn(messages: list[Mapping[str, Any]]) -> dict[int, dict[str, Mapping[str, Any]]]:
    """The results by the place of the turn that made the call, and by the call's id."""
    callers: dict[str, int] = {}
    results: dict[int, dict[str, Mapping[str, Any]]] = {}
    for place, message in enumerate(messages):
        if _get(message, "role") == "tool":
            call_id = _get(message, "tool_call_id")
            if call_id in callers:
                results[callers[call_id]].setdefault(call_id, message)
        elif calls := _get(message, "tool_calls"):
            results[place] = {}
            callers.update(dict.fromkeys([_get(call, "id") for call in _items(calls)], place))
    return results


def _turn_values(message: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The part of an event that a turn brings; empty if none of its calls is shown.

    A call without a result is left out: the tool runs, or the context left the result out.
    """
    calls, values, outputs = [], [], {}
    for call in _items(_get(message, "tool_calls") or ()):
        call_id, function = _get(call, "id"), _get(call, "function")
        result = results.get(call_id)
        if result is None:
            continue
        name = _get(function, "name")
        value, failed = _value_of(result), bool(_get(result, "error"))
        calls.append(dspy.ToolCalls.ToolCall(id=call_id, name=name, args=json.loads(_get(function, "arguments"))))
        values.append(ToolCallResults.ToolCallResult(call_id=call_id, name=name, value=value, is_error=failed))
        if name == SUBMIT and not failed and isinstance(value, dict):
            outputs.update(value)
    if not calls:
        return {}
    shown_calls = dspy.ToolCalls(tool_calls=calls, tool_call_results=ToolCallResults(tool_call_results=values))
    return {**_thought_of(message), "tool_calls": shown_calls, **outputs}


def _value_of(result: Mapping[str, Any]) -> Any:
    return thaw(_get(result, "value" if "value" in result else "content"))


def _thought_of(message: Mapping[str, Any]) -> dict[str, Any]:
    turn = _get(message, TURN)
    if isinstance(turn, Mapping) and THOUGHT in turn:
        thought = thaw(_get(turn, THOUGHT))
    else:
        content = thaw(_get(message, "content"))
        thought = text_of(content) if content else None
    if thought is None:
        return {}
    return {THOUGHT: dspy.Reasoning(content=thought) if isinstance(thought, str) else thought}


def _inputs(messages: list[Mapping[str, Any]], text_input: str) -> dict[str, Any]:
    """The inputs that messages bring: those of the last task among them, and the texts in the input for texts.

    No turn handled the inputs of an earlier task: its run failed before the first. So they are not shown.
    """
    inputs: dict[str, Any] = {}
    before: list[str] = []
    after: list[str] = []
    for message in messages:
        if is_task(message):
            inputs, before, after = thaw(_get(message, TURN)), [*before, *after], []
        else:
            after.append(_text(message))
    if before or after:
        own = inputs.get(text_input)
        inputs[text_input] = "\n\n".join([*before, *(() if own is None else [text_of(own)]), *after])
    return inputs


def _text(message: Mapping[str, Any]) -> str:
    """A message as text, with its author if it is another than the user."""
    text = text_of(thaw(_get(message, "content")))
    role, name = _get(message, "role"), _get(message, "name")
    author = name or (role if role != "user" else None)
    return text if author is None else indented(f"{label(author)}: {text}")


def _get(message: Any, key: str) -> Any:
    return message.raw(key, None) if isinstance(message, FrozenDict) else message.get(key)


def _items(values: Any) -> Iterable[Any]:
    return values.raw_items() if isinstance(values, FrozenList) else cast(Iterable[Any], values)
