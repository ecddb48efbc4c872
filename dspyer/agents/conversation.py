"""The form of a conversation for a predictor with tools: its inputs and the events of its `dspy.History`.

A conversation is a list of messages (see `messages`). An *event* is one turn as DSPy shows it: the inputs that the turn
handled, the thought, the tool calls with their results in the order of the calls, and the outputs of an accepted
`submit`. The values are those of which `dspy.ReActV2` makes its own history, so both send the same requests.

A message that is neither a turn nor a task's inputs (a user message without `turn`, a message of another node) is text.
DSPy shows only the fields of a signature, so texts are shown in an input: the first one of type str.

Nothing of this is stored: a conversation is rendered again at each call, from the `Piece` that is kept of each message.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import dspy
from dspy import ToolCallResults

from dspyer import Entry, View
from dspyer.errors import InputError, NodeOutputError, annotate, brief
from dspyer.extend import (
    Binding,
    Call,
    Flaws,
    FrozenDict,
    FrozenList,
    FunctionSignature,
    NodeOptions,
    indented,
    is_async,
    label,
    plan_binding,
    read_signature,
    text_of,
    thaw,
)
from dspyer.hints import without_none
from dspyer.lm.not_public import CUSTOM_TYPE_END_IDENTIFIER, CUSTOM_TYPE_START_IDENTIFIER
from dspyer.message_list import EMPTY, TURN, check_chat
from dspyer.messages import ARGS

SUBMIT = "submit"
"""The tool by which a predictor gives its final outputs."""

THOUGHT = "next_thought"

PROBLEMS = "problems"
"""A key of a tool's message: what its check has found in the result."""

FORCED = "forced"
"""A key of an assistant message: why it had to submit."""


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
    """

    inputs: dict[str, Any]
    events: list[dict[str, Any]]

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
    """

    text_input: str
    renders: Mapping[str, Render] = {}
    mode: str = ""


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


def shown(
    messages: Iterable[Mapping[str, Any]], how: Shown, whole: Iterable[Mapping[str, Any]] | None = None
) -> ShownConversation:
    """The inputs and events for the next call of a predictor, from the messages that it is to see.

    The messages may be frozen or plain. `whole` is the conversation that they were selected from, if it is another: the
    ages of calls are counted there.

    Example:
        >>> calls = [{"id": "call_0_0", "type": "function", "function": {"name": "tide", "arguments": "{}"}}]
        >>> task = {"role": "user", "content": "High tide?", "turn": {"question": "High tide?"}}
        >>> turn = {"role": "assistant", "content": "I look it up.", "tool_calls": calls}
        >>> result = {"role": "tool", "name": "tide", "tool_call_id": "call_0_0", "content": "9:40", "value": "9:40"}
        >>> shown([task], Shown("question")).inputs
        {'question': 'High tide?'}
        >>> event = shown([task, turn, result], Shown("question")).events[0]
        >>> event["question"], event["tool_calls"].tool_call_results.tool_call_results[0].value
        ('High tide?', '9:40')
    """
    found = [converted(message) for message in messages]
    results = _results_by_turn(found)
    ages: Mapping[str, int] = {}
    if how.renders:
        ages = _ages(found if whole is None else [converted(message) for message in whole])
    pending: list[Piece] = []
    events = []
    used: set[str] = set()
    for place, piece in enumerate(found):
        if piece.calls:
            event = piece.event(results[place], how, ages)
            if event:
                event = _with_own_ids(event, used)
                events.append({**_inputs(pending, how.text_input), **event} if pending else event)
                pending = []
        elif not piece.is_silent:
            pending.append(piece)
    return ShownConversation(_inputs(pending, how.text_input), events)


def _results_by_turn(pieces: list[Piece]) -> dict[int, dict[str, Piece]]:
    """The turns with calls by their place, each with its results by the id of the call."""
    callers: dict[str, int] = {}
    results: dict[int, dict[str, Piece]] = {}
    for place, piece in enumerate(pieces):
        if piece.calls:
            results[place] = {}
            for call in piece.calls:
                callers[call.id] = place
        elif piece.call_id in callers:
            results[callers[piece.call_id]].setdefault(piece.call_id, piece)
    return results


def _with_own_ids(event: dict[str, Any], used: set[str]) -> dict[str, Any]:
    """An event in which no call has an id of `used`, to which its ids are added.

    Ids are unique in a conversation, but branches that ran in parallel and were joined may have taken the same one.
    """
    made: dspy.ToolCalls = event["tool_calls"]
    calls = made.tool_calls
    if not used.isdisjoint([call.id for call in calls]):
        numbered = (f"call_{number}" for number in itertools.count(len(used)))
        free = (each for each in numbered if each not in used)
        ids = [next(free) if call.id in used else call.id for call in calls]
        results = made.tool_call_results.tool_call_results
        event = {
            **event,
            "tool_calls": dspy.ToolCalls(
                tool_calls=[call.model_copy(update={"id": own}) for call, own in zip(calls, ids, strict=True)],
                tool_call_results=ToolCallResults(
                    tool_call_results=[
                        one.model_copy(update={"call_id": own}) for one, own in zip(results, ids, strict=True)
                    ]
                ),
            ),
        }
        calls = event["tool_calls"].tool_calls
    used.update([str(call.id) for call in calls])
    return event


def _ages(pieces: Iterable[Piece]) -> dict[str, int]:
    """The number of later turns, by the ids of calls."""
    turns = [piece.calls for piece in pieces if piece.calls]
    return {call.id: len(turns) - place - 1 for place, calls in enumerate(turns) for call in calls}


def _inputs(pieces: list[Piece], text_input: str) -> dict[str, Any]:
    """The inputs that messages bring: those of the last task among them, and the texts in the input for texts.

    No turn handled the inputs of an earlier task: its run failed before the first. So they are not shown.
    """
    inputs: dict[str, Any] = {}
    before: list[str] = []
    after: list[str] = []
    for piece in pieces:
        if piece.task is not None:
            inputs, before, after = dict(piece.task), [*before, *after], []
        else:
            after.append(piece.text)
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
        text: of any other message its content, with its author if it is another than the user.
    """

    def __init__(self, message: Mapping[str, Any]) -> None:
        plain = thaw(message)
        role, turn = plain.get("role"), plain.get(TURN)
        turn = turn if isinstance(turn, dict) else None
        self.task: dict[str, Any] | None = turn if role == "user" else None
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
        self.text = "" if self.is_silent or self.calls or self.task is not None else _text(plain)
        self._last: tuple[list[Piece], dict[str, Any]] = [], {}

    def event(self, results: Mapping[str, Piece], how: Shown, ages: Mapping[str, int]) -> dict[str, Any]:
        """The part of an event that a turn brings; empty if none of its calls is shown.

        A call without a result is left out: its tool runs, or the result was not selected.
        """
        # The age of a call changes with each turn, and a render may read it: such a turn is shown anew each time.
        if how.renders and any(call.name in how.renders for call in self.calls):
            return self._event(results, how, ages)
        found = list(results.values())
        # The same results give the same event: DSPy formats it once more, and nothing else is made again.
        known, event = self._last
        if known != found:  # pieces are compared by identity
            event = self._event(results, how, ages)
            self._last = found, event
        return event

    def _event(self, results: Mapping[str, Piece], how: Shown, ages: Mapping[str, int]) -> dict[str, Any]:
        calls, values, outputs = [], [], dict[str, Any]()
        for call_id, name, arguments in self.calls:
            if call_id not in results:
                continue
            value, error, edited = results[call_id].value, results[call_id].error, results[call_id].args
            args = json.loads(arguments) if edited is None else edited
            if name == SUBMIT and not error and isinstance(value, dict):
                outputs.update(value)
            if name in how.renders:
                # A render may change what it gets, and pieces are shared by all turns to come.
                call = ShownCall(name, args, copy.deepcopy(value), error, ages.get(call_id, 0), how.mode)
                args, value = _rendered(how.renders[name], call)
                if value is None:
                    continue
            calls.append(dspy.ToolCalls.ToolCall(id=call_id, name=name, args=args))
            # The model must be told that another call was made than it has asked for, and what a check found.
            value = noted(value, edited, results[call_id].problems)
            values.append(ToolCallResults.ToolCallResult(call_id=call_id, name=name, value=value, is_error=error))
        if not calls:
            return {}
        both = ToolCallResults(tool_call_results=values)
        return {**self.thought, "tool_calls": dspy.ToolCalls(tool_calls=calls, tool_call_results=both), **outputs}


def _rendered(render: Render, call: ShownCall) -> tuple[dict[str, Any], Any]:
    """The arguments and the value to show; the value None leaves out the call."""
    try:
        value = render(call)
    except Exception as error:
        annotate(error, f"in the render of the tool {call.name!r}")
        raise
    return (value.args, value.value) if isinstance(value, ShownCall) else (call.args, value)


def _thought_of(turn: dict[str, Any] | None, content: Any) -> dict[str, Any]:
    spoken = text_of(content) if content else None
    thought = turn[THOUGHT] if turn is not None and THOUGHT in turn else spoken
    if thought is None:
        return {}
    return {THOUGHT: dspy.Reasoning(content=thought) if isinstance(thought, str) else thought}


def _text(message: dict[str, Any]) -> str:
    author = message.get("name") or (message["role"] if message["role"] != "user" else None)
    text = _content_text(message.get("content"))
    return text if author is None else indented(f"{label(author)}: {text}")


def _content_text(content: Any) -> str:
    """The text of a content; of parts, those that are no text in the form in which DSPy makes parts of them again."""
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


# Which messages of a conversation a mode shows: the plan of `context=`, and the rendering of one call.


ContextFunction = Callable[..., Any]
"""A pure function of the conversation and other fields that returns the messages to show."""

MESSAGES = "messages"
"""The field of the conversation."""

CONTEXT = "context"
"""The name under which a mode reads the view that selects the messages to show."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The way in which a mode shows a conversation to its predictor.

    Attributes:
        how: how messages are shown.
        who: how errors name the mode.
        view: the view that selects messages; None for another or no selection.
        fn: the function that selects messages; None for another or no selection.
        binding: what the function gets.
        fields: what each render gets besides the call, by tool.
    """

    how: Shown
    who: str
    view: View | None = None
    fn: Callable[..., Any] | None = None
    binding: Binding | None = None
    fields: Mapping[str, Binding] = FrozenDict()

    def shown(self, call: Call) -> ShownConversation:
        """The conversation as the predictor is shown it at a call."""
        whole, how = self._whole(call), self.how
        if self.fields:
            # Read when a call is shown: before that, a field may be unset.
            bound = {tool: partial(_with_fields, how.renders[tool], own, call) for tool, own in self.fields.items()}
            how = how._replace(renders=bound)
        # Without a selection no message needs to be compared with others.
        if self.view is None and self.fn is None:
            return shown(whole.raw_items(), how)
        return shown(with_task(whole, self._selected(call)), how, whole.raw_items())

    def _whole(self, call: Call) -> FrozenList[Any]:
        sent = None if call.overlay is None else call.overlay.raw(MESSAGES, None)
        found = call.state.raw(MESSAGES, None) if sent is None else sent
        return EMPTY if found is None else found

    def _selected(self, call: Call) -> list[Mapping[str, Any]]:
        """The messages that the context selects: frozen ones of the conversation, and plain ones of a function."""
        if self.view is not None:
            found = call.read_view(self.view, "frozen", CONTEXT)
        else:
            assert self.fn is not None
            assert self.binding is not None
            try:
                found = self.fn(**self.binding.bind(call))
            except Exception as error:
                annotate(error, f"in the context of {self.who}")
                raise
        if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
            raise NodeOutputError(
                f"the context of {self.who} returned {brief(found)}, of type {type(found).__name__}: return a list of "
                "messages"
            )
        # A view gives entries, a function the messages themselves.
        messages = [item.value if isinstance(item, Entry) else item for item in found]
        try:
            # Frozen messages were checked when they were committed.
            check_chat([message for message in messages if not isinstance(message, FrozenDict)])
        except NodeOutputError as error:
            annotate(error, f"in the context of {self.who}")
            raise
        return messages


def _with_fields(render: Render, binding: Binding, call: Call, one: ShownCall) -> Any:
    return render(one, **binding.bind(call))


def with_task(whole: FrozenList[Any], selected: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The selected messages with the inputs of the current task, which are always shown.

    If they were not selected, they come before the first selected message that is later in the conversation.

    Example:
        >>> from dspyer.values.freezing import freeze
        >>> whole = freeze([{"role": "user", "content": text, "turn": {}, "id": text} for text in "ab"])
        >>> [message["id"] for message in with_task(whole, [])]
        ['b']
    """
    messages = list(whole.raw_items())  # reading each by its index takes several times as long
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.raw("role") == "user" and converted(message).task is not None:
            break
    else:
        return selected
    if any(each is message or each.get("id") == message.raw("id", place) for each in selected):
        return selected
    # By id: the selection may hold copies.
    later = {each.raw("id", at) for at, each in enumerate(messages[place + 1 :], place + 1)}
    first = (place for place, each in enumerate(selected) if each.get("id") in later)
    at = next(first, len(selected))
    return [*selected[:at], message, *selected[at:]]


class PlannedRendering(NamedTuple):
    """A rendering with what the mode reads for it, and what is wrong.

    Attributes:
        rendering: the rendering.
        reads: the fields that it reads, by the mode's own names.
        optional: those of them that may be unset.
        problems: what is wrong, each with its fix.
    """

    rendering: Rendering
    reads: Mapping[str, str]
    optional: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


def plan_rendering(
    context: ContextFunction | None,
    signature: type[dspy.Signature],
    options: NodeOptions,
    renders: Mapping[str, Render] = FrozenDict(),
) -> PlannedRendering:
    """Decide how a mode shows a conversation. `options` are those of its node; `signature` that of its predictor.

    A context that is a view is not given here, but in `options`, as what the node reads under the name `CONTEXT`.
    """
    rendering, reads, optional, problems = _plan_context(context, signature, options)
    reads, fields = dict(reads), {}
    for tool, render in renders.items():
        found = Flaws(f"the render of tool {tool!r}")
        own = plan_binding(_behind_call(render, found.who), NodeOptions(options.name, options.schema), found)
        names, _ = own.reading()
        problems += tuple(found.without_sends())
        if own.contexts or own.resources or names is None:
            problems += (f"{found.who} gets values only: name the fields that it reads as its parameters",)
        # No run needs them before a call of the tool is shown.
        new = {name: field for name, field in (names or {}).items() if name not in reads}
        reads, optional, fields[tool] = {**reads, **new}, optional | {*new.values()}, own
    rendering = replace(rendering, how=rendering.how._replace(renders=dict(renders)), fields=fields)
    return PlannedRendering(rendering, reads, optional, problems)


def _behind_call(render: Render, who: str) -> FunctionSignature:
    """The parameters of a render behind the first one, which gets the call."""
    try:
        first, *others = inspect.signature(render).parameters
    except ValueError:  # a function of C has no signature
        return FunctionSignature()
    found = read_signature(render, who) if others else FunctionSignature()
    return replace(found, parameters=tuple([one for one in found.parameters if one.name != first]))


def _plan_context(
    context: ContextFunction | None, signature: type[dspy.Signature], options: NodeOptions
) -> PlannedRendering:
    """The selection of the messages to show."""
    rendering = Rendering(Shown(text_input_of(signature), mode=options.name), options.who)
    reads = {MESSAGES: MESSAGES}
    given: Any = options.views.get(CONTEXT, context)
    who = f"the context of {options.who}"
    if given is None:
        return PlannedRendering(rendering, reads)
    if isinstance(given, View):
        if given.field != MESSAGES:
            problem = f"{who} is {given!r}, which is no view of the conversation: write view({MESSAGES!r})"
            return PlannedRendering(rendering, reads, problems=(problem,))
        return PlannedRendering(replace(rendering, view=given), reads)
    if not callable(given) or is_async(given) or isinstance(given, (type, dspy.Module)):
        problem = f"{who} is {brief(given)}: give view({MESSAGES!r}) with its steps, or a function that is not async"
        return PlannedRendering(rendering, reads, problems=(problem,))
    found = Flaws(who)
    binding = plan_binding(read_signature(given, who), NodeOptions(options.name, options.schema), found)
    names, optional = binding.reading()
    problems = found.without_sends()
    if binding.contexts or binding.resources or names is None:
        problems.append(f"{who} gets values only: name the fields that it reads as its parameters")
    elif MESSAGES not in names.values():
        problems.append(f"{who} does not read {MESSAGES!r}: take it as a parameter and return those to show")
    reads |= dict(names or {})
    return PlannedRendering(replace(rendering, fn=given, binding=binding), reads, optional, tuple(problems))


# The messages that an agent adds to its conversation, and the turns and calls in it.


def call_ids(given: Iterable[str | None], messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """The ids of the tool calls of a new turn: those that the model gave, where no call of the conversation has them.

    The others are `call_<turn>_<place>`, as in `dspy.ReActV2`: the number of turns with calls so far, and the place of
    the call in its turn.

    Example:
        >>> call_ids([None, "abc"], [])
        ['call_0_0', 'abc']
    """
    taken: set[str | None] = set()
    turn = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            turn += 1
            taken.update(call.get("id") for call in calls)
    wanted, ids = list(given), list[str]()
    for place, given_id in enumerate(wanted):
        # Derived, not random: a resumed turn has the ids that its results were stored under.
        numbered = (f"call_{number}_{place}" for number in itertools.count(turn))
        free = (each for each in numbered if each not in taken and each not in wanted)
        ids.append(next(free) if given_id is None or given_id in taken else given_id)
        taken.add(ids[-1])
    return ids


def task_message(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The user message of a task: its inputs as text, and under `turn` by name.

    Example:
        >>> task_message({"question": "Why?"})
        {'role': 'user', 'content': 'Why?', 'turn': {'question': 'Why?'}}
    """
    texts = {name: text_of(value) for name, value in inputs.items()}
    text = next(iter(texts.values())) if len(texts) == 1 else "\n".join(map(": ".join, texts.items()))
    return {"role": "user", "content": text, TURN: dict(inputs)}


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


class RequestedCall(NamedTuple):
    """A call of a tool, as an assistant message has it."""

    id: str
    name: str
    args: dict[str, Any]


class LastTurn(NamedTuple):
    """The last turn of a conversation.

    Attributes:
        mode: the mode that took it.
        unanswered: its calls without a result, in their order.
        forced: why it had to be the last one; "" for an ordinary turn.
    """

    mode: str
    unanswered: list[RequestedCall]
    forced: str = ""


def last_turn(messages: FrozenList[Any]) -> LastTurn:
    """The last turn of a conversation that has one."""
    message, unanswered = _last_turn_message(messages)
    if message is None:
        raise ValueError("the conversation has no turn")
    return LastTurn(message.raw("name"), unanswered, message.raw(FORCED, ""))


def unanswered_calls(messages: FrozenList[Any]) -> list[RequestedCall]:
    """The calls of the last turn that have no result; none if there is no turn."""
    return _last_turn_message(messages)[1]


def _last_turn_message(messages: FrozenList[Any]) -> tuple[FrozenDict[str, Any] | None, list[RequestedCall]]:
    answered = set()
    for index in range(len(messages) - 1, -1, -1):
        message = messages.raw(index)
        role = message.raw("role")
        if role == "tool":
            answered.add(message.raw("tool_call_id"))
        elif role == "assistant" and message.raw("tool_calls", None):
            return message, [call for call in tool_calls_of(message) if call.id not in answered]
    return None, []


def tool_calls_of(message: FrozenDict[str, Any]) -> list[RequestedCall]:
    """The tool calls of an assistant message."""
    found = message.raw("tool_calls", None)
    return [
        RequestedCall(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in (() if found is None else found)
    ]


def turns_of_task(messages: FrozenList[Any]) -> int:
    """The number of turns since the last user message that brought the inputs of a task."""
    turns = 0
    for message in reversed(list(messages.raw_items())):  # reading each by its index takes several times as long
        role = message.raw("role")
        if role == "assistant" and message.raw("tool_calls", None):
            turns += 1
        elif role == "user" and TURN in message:
            break
    return turns
