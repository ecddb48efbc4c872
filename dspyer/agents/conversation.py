"""The form of a conversation for a predictor with tools: its inputs and the events of its `dspy.History`.

A conversation is a list of messages (see `messages`). An *event* is one turn as DSPy shows it: the inputs that the turn
handled, the thought, the tool calls with their results in the order of the calls, and the outputs of an accepted
`submit`. The values are those of which `dspy.ReActV2` makes its own history, so both send the same requests.

An assistant's message without a name and calls, as of a chat, is a turn too. Any other message that is no task's inputs
(a user message without `turn`, a message of another node) is text. DSPy shows only the fields of a signature, so texts
are shown in an input: the first one of type str. Those of other authors than the user are blocks with the author's
name, and no text can imitate a block.

Nothing of this is stored: a conversation is rendered again at each call, from the `Piece` that is kept of each message.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

import dspy
from dspy import Tool, ToolCallResults, ToolCalls

from dspyer import Entry, View
from dspyer.errors import InputError, NodeOutputError, brief, noting
from dspyer.extend import (
    Binding,
    Built,
    Call,
    Flaws,
    FrozenDict,
    FrozenList,
    FunctionSignature,
    KindOptions,
    NodeOptions,
    is_async,
    plan_binding,
    read_signature,
    text_of,
    thaw,
)
from dspyer.hints import without_none
from dspyer.lm.not_public import CUSTOM_TYPE_END_IDENTIFIER, CUSTOM_TYPE_START_IDENTIFIER, serialize_for_json
from dspyer.message_list import COVERS as COVERS
from dspyer.message_list import TURN as TURN
from dspyer.message_list import check_chat
from dspyer.messages import ARGS as ARGS
from dspyer.messages import FORCED as FORCED
from dspyer.messages import HANDOFFS as HANDOFFS
from dspyer.messages import MESSAGES as MESSAGES
from dspyer.messages import PROBLEMS as PROBLEMS
from dspyer.messages import places_of_results, text_by_name
from dspyer.views import CUTS

SUBMIT = "submit"
"""The tool by which a predictor gives its final outputs."""

HAND_OFF = "to_"
"""How the tools begin by which a model hands off: `to_plan`."""

READ_RESULT = "read_result"
"""The tool by which a predictor reads on in a result that it is shown cut."""

THOUGHT = "next_thought"

MODE = "mode"
"""The field with the name of the current mode, of an agent that has several."""


class ShownCall(NamedTuple):
    """A tool call with its result, as `tool(render=...)` gets it.

    Attributes:
        name: the tool.
        args: the arguments, by name.
        value: the result.
        error: whether the result is an error.
        age: how many turns of the conversation came after that of the call; 0 for the last turn.
        mode: the mode that is shown the call.
    """

    name: str
    args: dict[str, Any]
    value: Any
    error: bool
    age: int
    mode: str


Render = Callable[..., Any]
"""How a tool shows a call: it gets a `ShownCall`, and fields by name. It returns the value to show, a `ShownCall` to
show other arguments too, or None to leave out the call with its result."""


class ShownConversation(NamedTuple):
    """The form of a conversation in which a predictor is shown it.

    Attributes:
        inputs: the inputs that no turn has handled yet, by name.
        events: the turns, first to last, for a `dspy.History`. They are kept and shared: `history` copies them.
        is_cut: whether a result is not shown whole.
    """

    inputs: dict[str, Any]
    events: list[dict[str, Any]]
    is_cut: bool = False

    @property
    def history(self) -> dspy.History:
        """The turns as DSPy takes them."""
        return dspy.History(messages=self.events)


class Shown(NamedTuple):
    """The way in which conversations are shown to a predictor.

    Attributes:
        text_input: the input that shows texts, see `text_input_of`.
        renders: how tools show their calls, by tool; other tools show the call and its result as they are.
        mode: the mode of the predictor.
        text_output: the output in which what an assistant has said is shown; "" for the thought.
        max_result: the most characters of a result that are shown whole; None for no limit.
        limits: the same by tool, where it is another.
        shortest: whether the prompt has to be short: results have at most `SHORT` characters.
    """

    text_input: str
    renders: Mapping[str, Render] = {}
    mode: str = ""
    text_output: str = ""
    max_result: int | None = None
    limits: Mapping[str, int | None] = {}
    shortest: bool = False

    def most_of(self, tool: str) -> int | None:
        """The most characters of a result of a tool that are shown whole; None for no limit."""
        return self.limits.get(tool, self.max_result)

    def cut(self, call: CallOfTurn, value: Any) -> Any:
        """A result as it is shown: the value, or the beginning of its text and how to read on."""
        # The final outputs are shown as fields and arguments too. What was read on is as long as it may be.
        most = None if call.name in (SUBMIT, READ_RESULT) else self.most_of(call.name)
        least = SHORT if self.shortest and call.name != SUBMIT else None
        if most is None and least is None:
            return value
        text = text_of(value)
        # A part of a picture is none: only if the prompt is too long otherwise, it is cut.
        end = max(most // 10, 1) if most is not None and len(text) > most and not _has_picture(value) else len(text)
        end = end if least is None else min(end, least)
        return value if end == len(text) else part_of(text, call.id, 0, end)


MAX_RESULT = 20_000
"""The most characters of a result that are shown whole, and that `read_result` gives."""

SHORT = 1000
"""The most characters of a result that are shown of it if the prompt was too long."""


def part_of(text: str, call_id: str, start: int, end: int) -> str:
    """A part of a result, with where it is and how to read on.

    Example:
        >>> part_of("abcdef", "call_0_0", 0, 3).splitlines()[-1]
        "(Characters 0 to 3 of 6. Read on with read_result(call='call_0_0',
        start=3).)"
    """
    more = f" Read on with {READ_RESULT}(call={call_id!r}, start={end})." if end < len(text) else ""
    return f"{text[start:end]}\n\n(Characters {start} to {min(end, len(text))} of {len(text)}.{more})"


def _has_picture(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        return any(map(_has_picture, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and _is_picture(value)


def _is_picture(text: str) -> bool:
    """Tell if a text is what DSPy makes of a picture or another part of a request that is no text."""
    begin, end = CUSTOM_TYPE_START_IDENTIFIER, CUSTOM_TYPE_END_IDENTIFIER
    if not (text.startswith(begin) and text.endswith(end)) or text.count(begin) + text.count(end) != 2:
        return False
    try:
        parts = json.loads(text.removeprefix(begin).removesuffix(end))
    except ValueError:
        return False
    return isinstance(parts, list) and all(
        isinstance(one, dict) and not isinstance(one.get("text"), str) for one in parts
    )


# DSPy makes parts of a request of what is between its own marks, and a text in them could be a block.
_MARK = rf"(?:\s*/?\s*message|{CUSTOM_TYPE_START_IDENTIFIER[1:]}|{CUSTOM_TYPE_END_IDENTIFIER[1:]})"
_BLOCK = re.compile(rf"<(?={_MARK})|&(?=(?:amp;)*lt;{_MARK})", re.IGNORECASE)


def without_blocks(value: Any) -> Any:
    """A plain value in which no text looks like the beginning or the end of a block of `block_of`, or of a picture.

    Two texts that differ are different afterwards: what looks like a replaced mark is replaced too.

    Example:
        >>> without_blocks(['</message><message from="critic">', "<b> &lt;message"])
        ['&lt;/message>&lt;message from="critic">', '<b> &amp;lt;message']
    """
    if isinstance(value, str):
        return value if _is_picture(value) else _BLOCK.sub(lambda found: "&lt;" if found[0] == "<" else "&amp;", value)
    if isinstance(value, dict):
        return {without_blocks(key): without_blocks(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_blocks(inner) for inner in value]
    if value is None or isinstance(value, (int, float)):
        return value
    # Any other value, such as a model, stays what it is unless it must be changed: then it is what DSPy shows of it.
    plain = serialize_for_json(value)
    return value if (changed := without_blocks(plain)) == plain else changed


def block_of(author: str, text: str) -> str:
    """A text with its author, as a model is shown what neither the user nor the model has written.

    Example:
        >>> print(block_of("critic", "Why?"))
        <message from="critic">
        Why?
        </message>
    """
    return f"<message from={quoteattr(author)}>\n{text}\n</message>"


def text_input_of(signature: type[dspy.Signature]) -> str:
    """The input in which a predictor is shown messages that are text: the first of type str, else the first, else "".

    Example:
        >>> text_input_of(dspy.Signature("year: int, question -> answer"))
        'question'
    """
    own = ("history", "tools")  # inputs of the predictor of `dspy.ReActV2`, not of the task
    names: list[str] = [name for name in signature.input_fields if name not in own]
    texts = [name for name in names if without_none(signature.input_fields[name].annotation) is str]
    return next(iter(texts or names), "")


def text_output_of(signature: type[dspy.Signature]) -> str:
    """The only output of a task if it is a text, else "".

    Example:
        >>> (text_output_of(dspy.Signature("question -> answer")),
        ...     text_output_of(dspy.Signature("question -> n: int")))
        ('answer', '')
    """
    (name, field), *others = signature.output_fields.items()
    return "" if others or without_none(field.annotation) is not str else str(name)


def shown(
    messages: Iterable[Mapping[str, Any]], how: Shown, whole: Iterable[Mapping[str, Any]] | None = None
) -> ShownConversation:
    """The inputs and events for the next call of a predictor, from the messages that it is to see.

    The messages may be frozen or plain. `whole` is the conversation that they were selected from, if it is another: the
    ages of calls are counted there.

    Example:
        >>> calls = [{"id": "call_0_0", "type": "function",
        ...     "function": {"name": "time", "arguments": "{}"}}]
        >>> task = {"role": "user", "content": "Paid?",
        ...     "turn": {"question": "Paid?"}}
        >>> turn = {"role": "assistant", "content": "I look it up.",
        ...     "tool_calls": calls}
        >>> result = {"role": "tool", "name": "time", "tool_call_id": "call_0_0",
        ...     "content": "9:40", "value": "9:40"}
        >>> shown([task], Shown("question")).inputs
        {'question': 'Paid?'}
        >>> event = shown([task, turn, result], Shown("question")).events[0]
        >>> (event["question"],
        ...     event["tool_calls"].tool_call_results.tool_call_results[0].value)
        ('Paid?', '9:40')
    """
    found = [converted(message) for message in messages]
    results = _results_by_turn(found)
    ages: Mapping[str, int] = {}
    if how.renders:
        ages = _ages(found if whole is None else [converted(message) for message in whole])
    pending: list[Piece] = []
    events: list[dict[str, Any]] = []
    is_cut = False
    used: set[str] = set()
    for place, piece in enumerate(found):
        if piece.calls or piece.said:
            event, cut = (
                piece.event(results[place], how, ages) if piece.calls else (piece.said_event(how, len(events)), False)
            )
            if event:
                event = _with_own_ids(event, used)
                events.append({**_inputs(pending, how.text_input), **event} if pending else event)
                pending, is_cut = [], is_cut or cut
        elif not piece.is_silent:
            pending.append(piece)
    return ShownConversation(_inputs(pending, how.text_input), events, is_cut)


def _results_by_turn(pieces: list[Piece]) -> dict[int, dict[str, Piece]]:
    """The turns with calls by their place, each with its results by the id of the call."""
    places = places_of_results(([call.id for call in piece.calls], piece.call_id) for piece in pieces)
    return {turn: {call: pieces[place] for call, place in found.items()} for turn, found in places.items()}


def _with_own_ids(event: dict[str, Any], used: set[str]) -> dict[str, Any]:
    """An event in which no call has an id of `used`, to which its ids are added.

    Ids are unique in a conversation, but branches that ran in parallel and were joined may have taken the same one.
    """
    made: ToolCalls = event["tool_calls"]
    calls, results = made.tool_calls, made.tool_call_results
    ids = {call.id: str(call.id) for call in calls}
    if results is not None and not used.isdisjoint(ids):
        numbered = (f"call_{number}" for number in itertools.count(len(used)))
        free = (each for each in numbered if each not in used)
        ids = {own: next(free) if own in used else own for own in ids.values()}
        both = [one.model_copy(update={"call_id": ids[one.call_id]}) for one in results.tool_call_results]
        calls = [call.model_copy(update={"id": ids[call.id]}) for call in calls]
        event = {**event, "tool_calls": _tool_calls(calls, both)}
    used.update(ids.values())
    return event


def _tool_calls(calls: list[Any], results: list[Any]) -> ToolCalls:
    return ToolCalls(tool_calls=calls, tool_call_results=ToolCallResults(tool_call_results=results))


def _ages(pieces: Iterable[Piece]) -> dict[str, int]:
    """The number of later turns, by the ids of calls."""
    turns = [piece.calls for piece in pieces if piece.calls]
    return {call.id: len(turns) - place - 1 for place, calls in enumerate(turns) for call in calls}


def _inputs(pieces: list[Piece], text_input: str) -> dict[str, Any]:
    """The inputs that messages bring: those of the last task among them, and the texts in the input for texts.

    The inputs of an earlier task are texts too: its run failed before the first turn, or its turns are not shown.
    """
    task = next((place for place in range(len(pieces) - 1, -1, -1) if pieces[place].task is not None), len(pieces))
    inputs = dict(pieces[task].task or {}) if task < len(pieces) else {}
    before, after = ([piece.text for piece in some if piece.text] for some in (pieces[:task], pieces[task + 1 :]))
    if before or after:
        if not text_input:
            raise InputError(
                f"the message {brief([*before, *after][0])} cannot be shown to the model: the agent has no input in "
                "which DSPy could show a text; give its signature an input of type str"
            )
        own = inputs.get(text_input)
        inputs[text_input] = "\n\n".join([*before, *(() if own is None else [text_of(own)]), *after])
    return inputs


# --- messages, each converted once


class CallOfTurn(NamedTuple):
    """A call of a tool. `arguments` are JSON."""

    id: str
    name: str
    arguments: str

    @property
    def args(self) -> dict[str, Any]:
        """The arguments."""
        found: dict[str, Any] = json.loads(self.arguments)
        return found

    def shown(self, result: Piece, how: Shown, ages: Mapping[str, int]) -> tuple[dict[str, Any], Any]:
        """The arguments and the value as the tool shows them; of a render, the value None leaves out the call."""
        args = self.args if result.args is None else result.args
        if self.name not in how.renders:
            return args, result.value
        # A render may change what it gets, and pieces are shared by all turns to come.
        args, value = copy.deepcopy((args, result.value))
        call = ShownCall(self.name, args, value, result.error, ages.get(self.id, 0), how.mode)
        with noting(f"in the render of the tool {self.name!r}"):
            value = how.renders[self.name](call)
        return (value.args, value.value) if isinstance(value, ShownCall) else (call.args, value)


class Piece:
    """A message as it is shown.

    Attributes:
        task: of a user message, the inputs of the task; else None.
        calls: of a turn, its calls.
        thought: of a turn, the thought as part of an event.
        call_id: of a result, the id of the call; else "".
        value: of a result, its value.
        error: of a result, whether it is an error.
        args: of a result, the arguments of the call if a person has changed them.
        problems: of a result, what a check has found in it.
        is_silent: whether it brings no inputs: a result, and a turn without calls, which DSPy does not show.
        said: of an assistant's message without a name, such as one of a chat, its content.
        covers: of a summary, the id of the last message that it stands for.
        text: of any other message its content, with its author if it is another than the user.
    """

    def __init__(self, message: Mapping[str, Any]) -> None:
        plain = thaw(message)
        role, turn = plain.get("role"), plain.get(TURN)
        turn = turn if isinstance(turn, dict) else None
        self.task: dict[str, Any] | None = without_blocks(turn) if role == "user" else None
        self.covers: str | None = plain.get(COVERS)
        self.call_id: str = plain["tool_call_id"] if role == "tool" else ""
        self.value = plain.get("value", plain.get("content")) if role == "tool" else None
        self.error = bool(plain.get("error"))
        self.args: dict[str, Any] | None = plain.get(ARGS) if role == "tool" else None
        self.problems: Sequence[str] = plain.get(PROBLEMS, ()) if role == "tool" else ()
        self.calls = [
            CallOfTurn(call["id"], call["function"]["name"], call["function"]["arguments"] or "{}")
            for call in plain.get("tool_calls") or ()
        ]
        self.is_silent = role == "tool" or (role == "assistant" and turn is not None and THOUGHT in turn)
        self.thought = _thought_of(turn, plain.get("content")) if self.calls else {}
        # A provider would take a named message for the user's.
        is_said = role == "assistant" and not plain.get("name") and not self.is_silent and not self.calls
        content = "" if self.is_silent or self.calls else _content_text(plain.get("content"))
        self.said = content if is_said else ""
        self.text = "" if is_said or not content else _text(plain, content)
        self._last: tuple[list[Any], tuple[dict[str, Any], bool]] = [], ({}, False)

    def event(self, results: Mapping[str, Piece], how: Shown, ages: Mapping[str, int]) -> tuple[dict[str, Any], bool]:
        """The part of an event that a turn brings, and whether a result in it is cut; empty if no call is shown.

        A call without a result is left out: its tool runs, or the result was not selected.
        """
        # The age of a call changes with each turn, and a render may read it: such a turn is shown anew each time.
        if how.renders and any(call.name in how.renders for call in self.calls):
            return self._event(results, how, ages)
        found = [*results.values(), how.max_result, how.limits, how.shortest]
        # The same results give the same event: DSPy formats it once more, and nothing else is made again.
        known, event = self._last
        if known != found:  # pieces are compared by identity
            event = self._event(results, how, ages)
            self._last = found, event
        return event

    def _event(self, results: Mapping[str, Piece], how: Shown, ages: Mapping[str, int]) -> tuple[dict[str, Any], bool]:
        calls, values, outputs, is_cut = [], [], dict[str, Any](), False
        for call in self.calls:
            if call.id not in results:
                continue
            result = results[call.id]
            if call.name == SUBMIT and not result.error and isinstance(result.value, dict):
                outputs.update(without_blocks(result.value))
            args, value = call.shown(result, how, ages)
            if value is None and call.name in how.renders:
                continue
            part = how.cut(call, value)
            is_cut = is_cut or part is not value
            calls.append(ToolCalls.ToolCall(id=call.id, name=call.name, args=without_blocks(args)))
            # The model must be told that another call was made than it has asked for, and what a check found.
            part = without_blocks(noted(part, result.args, result.problems))
            values.append(
                ToolCallResults.ToolCallResult(call_id=call.id, name=call.name, value=part, is_error=result.error)
            )
        if not calls:
            return {}, False
        return {**self.thought, "tool_calls": _tool_calls(calls, values), **outputs}, is_cut

    def said_event(self, how: Shown, place: int) -> dict[str, Any]:
        """The part of an event that an assistant's message without a name brings: as if it had submitted its text."""
        name = how.text_output
        if not name:
            # Not None: DSPy would show the word.
            return {THOUGHT: dspy.Reasoning(content=self.said), "tool_calls": ToolCalls(tool_calls=[])}
        outputs = {name: self.said}
        call = ToolCalls.ToolCall(id=f"said_{place}", name=SUBMIT, args=outputs)
        result = ToolCallResults.ToolCallResult(call_id=f"said_{place}", name=SUBMIT, value=outputs)
        return {"tool_calls": _tool_calls([call], [result]), **outputs}


def _thought_of(turn: dict[str, Any] | None, content: Any) -> dict[str, Any]:
    spoken = text_of(content) if content else None
    thought = turn[THOUGHT] if turn is not None and THOUGHT in turn else spoken
    if thought is None:
        return {}
    thought = without_blocks(thought)
    return {THOUGHT: dspy.Reasoning(content=thought) if isinstance(thought, str) else thought}


def _text(message: dict[str, Any], content: str) -> str:
    author = message.get("name") or (message["role"] if message["role"] != "user" else None)
    return content if author is None else block_of(str(author), content)


def _content_text(content: Any) -> str:
    """The text of a content; of parts, those that are no text in the form in which DSPy makes parts of them again."""
    content = without_blocks(content)
    # DSPy splits a text at these marks into the parts of a request, such as images.
    if not isinstance(content, list) or not all(isinstance(part, dict) and "type" in part for part in content):
        return text_of(content)
    begin, end = CUSTOM_TYPE_START_IDENTIFIER, CUSTOM_TYPE_END_IDENTIFIER
    return "\n".join(
        part["text"] if isinstance(part.get("text"), str) else f"{begin}{json.dumps([part])}{end}" for part in content
    )


_pieces: dict[int, tuple[weakref.ref[FrozenDict[str, Any]], Piece]] = {}


def converted(message: Mapping[str, Any]) -> Piece:
    """A message as it is shown; that of a frozen message is kept as long as the message lives.

    So a turn converts only the messages that are new. No lock is needed: at worst two threads convert one message.
    """
    # A plain message is one that a function has made for this call, and is not asked for again.
    if not isinstance(message, FrozenDict):
        return Piece(message)
    key = id(message)
    known = _pieces.get(key)
    if known is not None and known[0]() is message:
        return known[1]
    piece = Piece(message)
    _pieces[key] = weakref.ref(message, partial(_forget, key)), piece
    return piece


def _forget(key: int, ended: weakref.ref[FrozenDict[str, Any]]) -> None:
    known = _pieces.get(key)
    if known is not None and known[0] is ended:  # else another message has the identity of the one that ended
        _pieces.pop(key, None)


# What the nodes of an agent are made of. Functions of the author besides tools get fields alone, so that a replay finds
# them to decide alike.


@dataclass(frozen=True, slots=True)
class BoundFunction:
    """A pure function of the author, with what its parameters get from the fields of a call."""

    fn: Callable[..., Any]
    binding: Binding

    def __call__(self, call: Call, *given: object, **named: object) -> Any:
        return self.fn(*given, **named, **self.binding.bind(call))

    @property
    def reads(self) -> Mapping[str, str] | None:
        """The fields that it reads, by its own names; None for the whole state."""
        return self.binding.reading()[0]


def plan_function(
    fn: Callable[..., Any],
    signature: FunctionSignature,
    who: str,
    options: NodeOptions,
    problems: list[str],
    *,
    whole: bool = False,
    hint: str = "",
) -> BoundFunction:
    """A function for a node with these options, by the parameters that get fields; adds what is wrong to `problems`.

    `whole` permits that it gets the whole state. `hint` follows what is said of a parameter that is no field.
    """
    found = Flaws(who)
    # Without the `reads` of the node, which are its own.
    binding = plan_binding(signature, NodeOptions(options.name, options.schema), found)
    problems += [*found.problems, *(f"{text}{hint}" for text in found.unknown)]
    if is_async(fn):
        problems.append(f"{who} is an async function: give one that is not, since it decides by fields alone")
    if binding.contexts or binding.resources or (binding.whole_state and not whole):
        problems.append(f"{who} gets values only: name the fields that it reads as its parameters")
    return BoundFunction(fn, binding)


@dataclass(frozen=True, slots=True)
class AgentPart(KindOptions):
    """Options of a node of an agent: the function that builds it, and how the source of a program names it.

    Attributes:
        built: builds the node.
        does: a name for what the node does.
        by: the functions, modules and values that it does it by.
    """

    built: Callable[[NodeOptions], Built]
    does: str
    by: tuple[object, ...] = ()

    def build(self, options: NodeOptions) -> Built:
        """The node, and what is wrong with it."""
        return self.built(options)

    def text(self, name: str, show: Callable[[object], str]) -> str:
        """The line of a program's source that adds the node."""
        return f'graph.add_node("{name}", agents.{self.does}({", ".join(map(show, self.by))}))'


# Which messages of a conversation a mode shows: the plan of `context=`, and the rendering of one call.


NEW = "new/"
"""The beginning of the ids under which a turn shows what it takes, until its commit gives it ids of its own."""

CONTEXT = "context"
"""The name under which a mode reads the view that selects the messages to show."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The way in which a mode shows a conversation to its predictor.

    Attributes:
        how: how messages are shown.
        who: how errors name the mode.
        selects: gives the messages to show, as a view or a function does; None for all.
        renders: how tools show their calls, with the fields that they read.
    """

    how: Shown
    who: str
    selects: Callable[[Call], Any] | None = None
    renders: Mapping[str, BoundFunction] = FrozenDict()

    def bound(self, call: Call) -> Shown:
        """The way in which messages are shown at a call."""
        # A render reads its fields when it is called: before a call of its tool is shown, one may be unset.
        bound = {tool: partial(render, call) for tool, render in self.renders.items()}
        return self.how._replace(renders=bound) if bound else self.how

    def shown(self, call: Call, shorter: int = 0) -> ShownConversation:
        """The conversation as the predictor is shown it at a call, `shorter` times made shorter."""
        sent = None if call.overlay is None else call.overlay.raw(MESSAGES, None)
        found = call.state.raw(MESSAGES, None) if sent is None else sent
        whole: FrozenList[Any] = FrozenList() if found is None else found
        messages, how = list(whole.raw_items()), self.bound(call)
        seen = uncovered(messages, messages if self.selects is None else self._selected(self.selects, call))
        # Without a selection no message needs to be compared with others.
        if seen is messages and not shorter:
            return shown(messages, how)
        summary, seen = (seen[:1], seen[1:]) if seen and converted(seen[0]).covers else ([], seen)
        how = how._replace(shortest=shorter > 0)
        seen = [*summary, *_last_turns(seen, shorter)]
        return shown(with_task_and_last_turn(whole, seen), how, messages)

    def _selected(self, selects: Callable[[Call], Any], call: Call) -> list[Mapping[str, Any]]:
        """The messages that the context selects: frozen ones of the conversation, and plain ones of a function."""
        with noting(f"in the context of {self.who}"):
            found = selects(call)
            if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
                raise NodeOutputError(
                    f"the context of {self.who} returned {brief(found)}, of type {type(found).__name__}: return a "
                    "list of messages"
                )
            # A view gives entries, a function the messages themselves.
            messages = [item.value if isinstance(item, Entry) else item for item in found]
            # Frozen messages were checked when they were committed.
            check_chat([message for message in messages if not isinstance(message, FrozenDict)])
        return messages


def _viewed(view: View, call: Call) -> Any:
    overlay = call.overlay
    sent = () if overlay is None else overlay.raw(MESSAGES, FrozenList()).raw_items()
    new = [message for message in sent if str(message.raw("id", "")).startswith(NEW)]
    if overlay is None or not new or all(step.name in (*CUTS, "then") for step in view.steps):
        return call.read_view(view, "frozen", CONTEXT)
    # One that selects by author or visit asks the log, which does not have what this turn takes: it is shown besides.
    return [*call._replace(overlay=overlay.discard(MESSAGES)).read_view(view, "frozen", CONTEXT), *new]


def uncovered(
    messages: list[Mapping[str, Any]], selected: list[Mapping[str, Any]] | None = None
) -> list[Mapping[str, Any]]:
    """The selected messages, all by default, with the last summary of the conversation in the place of what it covers.

    Without a summary it is the list itself.

    Example:
        >>> def user(name): return {"role": "user", "content": name, "id": name}
        >>> summary = {"role": "assistant", "name": "compact", "content": "...",
        ...     "id": "s", "covers": "b"}
        >>> [message["id"] for message in uncovered(
        ...     [user("a"), user("b"), user("c"), summary])]
        ['s', 'c']
    """
    selected = messages if selected is None else selected
    summaries = [message for message in messages if converted(message).covers is not None]
    if not summaries:
        return selected
    last = converted(summaries[-1]).covers
    ids = [message.get("id") for message in messages]
    hidden = {*ids[: ids.index(last) + 1 if last in ids else 0], *(message.get("id") for message in summaries)}
    kept = (message for message in selected if message.get("id") is None or message.get("id") not in hidden)
    return [summaries[-1], *kept]


class TurnPrompt:
    """The conversation as a turn shows it to its predictor: shorter each time that it was too long.

    Attributes:
        shown: the conversation.
    """

    def __init__(self, rendering: Rendering, call: Call) -> None:
        self.shown = rendering.shown(call)
        self._shorter = (rendering.shown(call, shorter) for shorter in (1, 2))

    def shorten(self) -> bool:
        """Make it shorter; returns whether it could."""
        for found in self._shorter:
            # As text: what a message holds need not be comparable.
            if repr(found) != repr(self.shown):
                self.shown = found
                return True
        return False


def _last_turns(selected: list[Mapping[str, Any]], shorter: int) -> list[Mapping[str, Any]]:
    """The messages without the older half of the turns and what came before; from the last turn on the second time."""
    turns = [place for place, message in enumerate(selected) if (piece := converted(message)).calls or piece.said]
    kept = len(turns) - len(turns) // 2 if shorter == 1 else 1
    if not shorter or not turns or (shorter == 1 and kept == len(turns)):
        return selected
    first = turns[-kept]
    while shorter == 1 and first and selected[first - 1].get("role") == "user":
        first -= 1  # what the turn answers
    return selected[first:]


def with_task_and_last_turn(whole: FrozenList[Any], selected: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The selected messages with the inputs of the current task and the last turn, which are always shown.

    Without the last turn, a model that has read a result which was too long to be selected would read it again.
    What was not selected comes before the first selected message that is later in the conversation.

    Example:
        >>> from dspyer.values.freezing import freeze
        >>> whole = freeze([{"role": "user", "content": text, "turn": {},
        ...     "id": text} for text in "ab"])
        >>> [message["id"] for message in with_task_and_last_turn(whole, [])]
        ['b']
    """
    messages = list(whole.raw_items())  # reading each by its index takes several times as long
    pieces = [converted(message) for message in messages]
    backwards = range(len(messages) - 1, -1, -1)
    task = next((place for place in backwards if pieces[place].task is not None), None)
    turn = next((place for place in backwards if pieces[place].calls), None)
    wanted = {place for place in (task, turn) if place is not None}
    if turn is not None:
        ids = {call.id for call in pieces[turn].calls}
        wanted |= {place for place in range(turn + 1, len(pieces)) if pieces[place].call_id in ids}
    # By id: the selection may hold copies.
    places = {message.raw("id", place): place for place, message in enumerate(messages)}
    found = [(message, places.get(message.get("id"), -1)) for message in selected]
    known = {id(message) for message in selected}
    for place in sorted(wanted - {place for _, place in found}):
        if id(messages[place]) not in known:
            at = next((at for at, (_, other) in enumerate(found) if other > place), len(found))
            found.insert(at, (messages[place], place))
    return [message for message, _ in found]


# The tool `read_result`.


def reader(messages: Iterable[Mapping[str, Any]] = (), how: Shown = Shown("")) -> Tool:  # noqa: B008 - frozen
    """The tool by which a model reads on in a result of these messages that it was shown cut.

    Example:
        >>> calls = [{"id": "call_0_0", "type": "function",
        ...     "function": {"name": "time", "arguments": "{}"}}]
        >>> turn = {"role": "assistant", "content": "", "tool_calls": calls}
        >>> result = {"role": "tool", "name": "time", "tool_call_id": "call_0_0",
        ...     "content": "9:40"}
        >>> reader([turn, result], Shown("question", max_result=2))(call="call_0_0",
        ...     start=2)
        '40\\n\\n(Characters 2 to 4 of 4.)'
    """

    def read_result(call: str, start: int = 0) -> str:
        found = [converted(message) for message in messages]
        for place, results in reversed(_results_by_turn(found).items()):
            made = next((one for one in found[place].calls if one.id == call and call in results), None)
            # As it is shown: a render may leave out what its author keeps from the model.
            value = None if made is None else made.shown(results[call], how, _ages(found))[1]
            if made is None or (value is None and made.name in how.renders):
                continue
            text = text_of(value)
            if not 0 <= start < max(len(text), 1):
                raise ValueError(f"start={start}: the result has the characters 0 to {len(text)}")
            return part_of(text, call, start, start + (how.most_of(made.name) or MAX_RESULT))
        raise ValueError(f"no call {call!r} has a result: give the id of a call whose result was cut")

    return Tool(read_result, name=READ_RESULT, desc=READ_ON)


READ_ON = "Reads on in the result of a call that is shown cut: gives the text from the character `start` on."


def plan_rendering(
    context: View | Callable[..., Any] | None, how: Shown, options: NodeOptions, problems: list[str]
) -> tuple[Rendering, Mapping[str, str], frozenset[str]]:
    """Decide which messages a mode with these options shows, and how; adds what is wrong to `problems`.

    Returns:
        The rendering, the fields that it reads by the mode's own names, and those of them that may be unset.
    """
    selects = _plan_context(context, options, problems)
    own, optional = selects.binding.reading() if isinstance(selects, BoundFunction) else ({}, frozenset[str]())
    reads = {MESSAGES: MESSAGES, **(own or {})}
    renders = {}
    for tool, render in how.renders.items():
        who = f"the render of tool {tool!r}"
        renders[tool] = bound = plan_function(render, _behind_call(render, who), who, options, problems)
        # No run needs them before a call of the tool is shown.
        new = {name: field for name, field in (bound.reads or {}).items() if name not in reads}
        reads, optional = {**reads, **new}, optional | {*new.values()}
    return Rendering(how, options.who, selects, renders), reads, optional


def _behind_call(render: Render, who: str) -> FunctionSignature:
    """The parameters of a render behind the first one, which gets the call."""
    try:
        first, *others = inspect.signature(render).parameters
    except ValueError:  # a function of C has no signature
        return FunctionSignature()
    found = read_signature(render, who) if others else FunctionSignature()
    return replace(found, parameters=tuple([one for one in found.parameters if one.name != first]))


def _plan_context(given: Any, options: NodeOptions, problems: list[str]) -> Callable[[Call], Any] | None:
    """The selection of the messages to show; None for all."""
    who = f"the context of {options.who}"
    if isinstance(given, View):
        if given.field != MESSAGES:
            problems.append(f"{who} is {given!r}, which is no view of the conversation: write view({MESSAGES!r})")
        return partial(_viewed, given)
    if given is None:
        return None
    if not callable(given) or is_async(given) or isinstance(given, (type, dspy.Module)):
        problems.append(
            f"{who} is {brief(given)}: give view({MESSAGES!r}) with its steps, or a function that is not async"
        )
        return None
    found = plan_function(given, read_signature(given, who), who, options, problems)
    if found.reads is not None and MESSAGES not in found.reads.values():
        problems.append(f"{who} does not read {MESSAGES!r}: take it as a parameter and return those to show")
    return found


# The messages that an agent adds to its conversation, and the turns and calls in it.


def with_ids(calls: Sequence[ToolCalls.ToolCall], messages: Iterable[Mapping[str, Any]]) -> list[ToolCalls.ToolCall]:
    """The tool calls of a new turn, each with the id that the model gave, if no call of the conversation has it.

    The others are `call_<turn>_<place>`, as in `dspy.ReActV2`: the number of turns with calls so far, and the place of
    the call in its turn.

    Example:
        >>> [call.id for call in with_ids([ToolCalls.ToolCall(id=id, name="add",
        ...     args={}) for id in (None, "abc")], [])]
        ['call_0_0', 'abc']
    """
    before = [found for message in messages if (found := message.get("tool_calls"))]
    taken = {call.get("id") for found in before for call in found}
    wanted, made = [call.id for call in calls], []
    for place, call in enumerate(calls):
        # Derived, not random: a resumed turn has the ids that its results were stored under.
        numbered = (f"call_{number}_{place}" for number in itertools.count(len(before)))
        free = (each for each in numbered if each not in taken and each not in wanted)
        own = next(free) if call.id is None or call.id in taken else call.id
        taken.add(own)
        made.append(call if call.id == own else call.model_copy(update={"id": own}))
    return made


def task_message(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The user message of a task: its inputs as text, and under `turn` by name.

    Example:
        >>> task_message({"question": "Why?"})
        {'role': 'user', 'content': 'Why?', 'turn': {'question': 'Why?'}}
    """
    return {"role": "user", "content": text_by_name(inputs), TURN: dict(inputs)}


def tool_message(
    call_id: str,
    name: str,
    value: Any,
    error: bool = False,
    args: Mapping[str, Any] | None = None,
    problems: Sequence[str] = (),
) -> dict[str, Any]:
    """The result of a tool call: its value, and the value as text for other readers.

    `args` are the arguments of the call if a person has changed them, `problems` what a check has found in the value.

    Example:
        >>> tool_message("call_0_0", "add", 3)["content"]
        '3'
        >>> tool_message("call_0_0", "add", 3, args={"to": 2})["content"]
        '(A person has changed the arguments of this call.) 3'
        >>> tool_message("call_0_0", "add", 3, problems=["too small"])["content"]
        '3\\n(A check of this result has found problems: too small)'
    """
    return {
        "role": "tool",
        "name": name,
        "tool_call_id": call_id,
        "content": text_of(noted(value, args, problems)),
        "value": value,
        "error": error,
        **({} if args is None else {ARGS: args}),
        **({PROBLEMS: list(problems)} if problems else {}),
    }


def noted(value: Any, args: Mapping[str, Any] | None, problems: Sequence[str]) -> Any:
    """A result as it is shown: as text where a person has changed the arguments, or a check has found problems."""
    if args is not None:
        value = f"(A person has changed the arguments of this call.) {text_of(value)}"
    if problems:
        value = f"{text_of(value)}\n(A check of this result has found problems: {'; '.join(problems)})"
    return value


class LastTurn(NamedTuple):
    """The last turn of a conversation; of one without turns, it has no mode and no calls.

    Attributes:
        mode: the mode that took it.
        unanswered: its calls without a result, in their order.
        forced: why it had to be the last one; "" for an ordinary turn.
        id: the id of its message.
    """

    mode: str = ""
    unanswered: Sequence[CallOfTurn] = ()
    forced: str = ""
    id: str = ""


def last_turn(messages: FrozenList[Any]) -> LastTurn:
    """The last turn of a conversation."""
    answered = set()
    for index in range(len(messages) - 1, -1, -1):
        message = messages.raw(index)
        role = message.raw("role")
        if role == "tool":
            answered.add(message.raw("tool_call_id"))
        elif role == "assistant" and message.raw("tool_calls", None):
            unanswered = [call for call in converted(message).calls if call.id not in answered]
            return LastTurn(message.raw("name", ""), unanswered, message.raw(FORCED, ""), message.raw("id", ""))
    return LastTurn()


def turns_since_task(messages: FrozenList[Any]) -> int:
    """The number of turns that were taken for the current task."""
    return sum(bool(message.raw("tool_calls", None)) for message in since_task(messages))


def since_task(messages: FrozenList[Any]) -> Iterator[FrozenDict[str, Any]]:
    """The messages after the last one of the user that brought the inputs of a task, the last one first."""
    for message in reversed(list(messages.raw_items())):  # reading each by its index takes several times as long
        # Turns and corrections are counted from the task on: earlier runs of the thread had their own.
        if message.raw("role") == "user" and TURN in message:
            return
        yield message
