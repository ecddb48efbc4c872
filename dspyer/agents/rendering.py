"""Which messages of a conversation a mode shows: the plan of `context=`, and the rendering of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dspy

from dspyer.agents.conversation import Render, Shown, ShownConversation, converted, shown, text_input_of
from dspyer.errors import NodeOutputError, annotate, brief
from dspyer.message_list import EMPTY, check_chat
from dspyer.nodes.binding import Binding, plan_binding
from dspyer.nodes.callables import read_signature
from dspyer.nodes.node import NOTHING, Call
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.sync_async import is_async
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.views import Entry, View

ContextFunction = Callable[..., Any]
"""A pure function of the conversation and other fields that returns the messages to show."""

MESSAGES = "messages"
"""The field of the conversation."""

CONTEXT = "context"
"""The name under which a mode reads the view that selects the messages to show."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a mode shows a conversation to its predictor.

    Attributes:
        how: how messages are shown.
        who: how errors name the mode.
        view: the view that selects messages; None for another or no selection.
        fn: the function that selects messages; None for another or no selection.
        binding: what the function gets.
    """

    how: Shown
    who: str
    view: View | None = None
    fn: Callable[..., Any] | None = None
    binding: Binding | None = None

    def shown(self, call: Call) -> ShownConversation:
        """What the predictor is shown at a call."""
        whole = self._whole(call)
        if self.view is None and self.fn is None:
            return shown(whole.raw_items(), self.how)
        return shown(with_task(whole, self._selected(call)), self.how, whole.raw_items())

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
        messages = [item.value if isinstance(item, Entry) else item for item in found]
        try:
            check_chat([message for message in messages if not isinstance(message, FrozenDict)])
        except NodeOutputError as error:
            annotate(error, f"in the context of {self.who}")
            raise
        return messages


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
    renders: Mapping[str, Render] = NOTHING,
) -> PlannedRendering:
    """Decide how a mode shows a conversation. `options` are those of its node; `signature` that of its predictor.

    A context that is a view is not given here, but in `options`, as what the node reads under the name `CONTEXT`.
    """
    rendering = Rendering(Shown(text_input_of(signature), dict(renders), options.name), options.who)
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
    plan = plan_binding(read_signature(given, who), NodeOptions(options.name, options.schema), who)
    names, optional = plan.binding.reading()
    problems = [*plan.problems, *plan.unknown]
    if plan.binding.contexts or plan.binding.resources or names is None:
        problems.append(f"{who} gets values only: name the fields that it reads as its parameters")
    elif MESSAGES not in names.values():
        problems.append(f"{who} does not read {MESSAGES!r}: take it as a parameter and return those to show")
    reads |= dict(names or {})
    return PlannedRendering(replace(rendering, fn=given, binding=plan.binding), reads, optional, tuple(problems))
