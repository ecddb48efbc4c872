"""The events of a run as those of the AG-UI protocol 1.0 (https://docs.ag-ui.com). It decides, and waits for nothing.

What the protocol asks for: a step, a message or a tool call ends before its run does, and no step begins twice.

The messages of a run are what its fields hold. A text of an attempt that failed, that a check rejected, or that another
node has replaced is taken back by a snapshot of all messages: the protocol has no other way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, compress, count, repeat
from operator import is_not
from typing import Any, NamedTuple

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    FunctionCall,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)
from starlette.exceptions import HTTPException

from dspyer import START, ImmutableState, Run
from dspyer.agents.conversation import THOUGHT
from dspyer.errors import BudgetError
from dspyer.events import Asked, AttemptFailed, Committed, Emitted, NodeFailed, NodeStarted, Question, RunStarted, Token
from dspyer.extend import Event, FrozenList, is_within, thaw, whole_execution
from dspyer.graph.spec import GraphSpec
from dspyer.layers.redacted import redacted
from dspyer.redaction import Redactor
from dspyer.runtime.session import Session
from dspyer.serve.agui_messages import Said, ToolUse, said
from dspyer.serve.http_request import as_json
from dspyer.server_sent import last_of_refusal, last_of_run

Place = tuple[Any, ...]
"""The scope, execution, attempt, predictor and field of some tokens."""


_THOUGHTS = ("reasoning", THOUGHT)
"""Outputs of `dspy.ChainOfThought` and of agents that are not for the user."""


def encoded(event: BaseEvent) -> bytes:
    """An event as it is sent. Not by AG-UI's encoder, which takes neither deep values nor half of a surrogate pair."""
    text = json.dumps(event.model_dump(by_alias=True, exclude_none=True))
    plain = json.loads(text, parse_constant=lambda _: None)
    return f"data: {json.dumps(plain, ensure_ascii=False)}\n\n".encode(errors="replace")


def refusal(error: BaseException) -> RunErrorEvent:
    """The event that tells the client why a run could not begin or go on."""
    if isinstance(error, HTTPException):  # what the application, or this route, says itself
        return RunErrorEvent(message=str(error.detail), code="invalid")
    return _told(last_of_refusal(error, hides=True))


def _told(last: dict[str, Any]) -> RunErrorEvent:
    """The event for the last message of a stream; the log has what a customer must not read."""
    return RunErrorEvent(message=last["error"]["message"], code=last["error"]["code"])


class _Text(NamedTuple):
    """A text that is shown, as the tokens that have arrived."""

    field: str
    path: tuple[str, ...]  # the executions around the one that wrote it, and that one
    parts: list[str]


def _new(messages: FrozenList[Any], old: FrozenList[Any] | None) -> Iterator[bool]:
    """For each message of a list, whether an earlier list had another one: by identity, since lists are long."""
    return map(is_not, messages.raw_items(), chain(() if old is None else old.raw_items(), repeat(None)))


def _said(messages: Iterable[Any], wanted: Iterable[bool]) -> Iterator[Said]:
    found = (said(thaw(message)) for message in compress(messages, wanted))
    return (message for message in found if message is not None)


class EventTranslator:
    """Translates the events of one run.

    Args:
        graph: the graph.
        body: the request.
        texts: the fields whose texts are messages of the assistant.
        of_messages: the fields that hold messages.
    """

    def __init__(
        self, graph: GraphSpec, body: RunAgentInput, texts: frozenset[str], of_messages: frozenset[str]
    ) -> None:
        self._graph = graph
        self._body = body
        self._texts = texts
        self._of_messages = of_messages
        self._redactor: Redactor | None = None
        self._state: dict[str, Any] = {}  # the fields that the client sees
        self._shown: dict[str, Any] | None = None  # these as it sees them, in JSON; None before the first snapshot
        self._steps: Counter[str] = Counter()
        self._nodes: dict[str, str] = {}  # by execution
        self._open: dict[Place, str] = {}  # the ids of the texts that are being written
        self._unwritten: dict[str, _Text] = {}  # texts that no commit has, by id
        # The ids of the texts that this run has written, by what holds them: a field, or the id of a message.
        self._held: dict[str | tuple[str], str] = {}
        self._messages: dict[str, _Text | Message] = {}  # what the client was shown, by id
        self._ids = count()
        self._lists: dict[str, Any] = {}  # the fields of messages when they were last looked at
        self._seen: set[str] = set()  # ids of messages
        self._calls: dict[str, tuple[str, ToolUse]] = {}  # by id in the state: the id of the client, the call
        self._committed = False

    def translate(self, event: Event, session: Session | None) -> Iterator[BaseEvent]:
        """The events for one of the run, which `session` plays; None for a run that is returned as it was stored."""
        match event:
            case AttemptFailed() | NodeFailed():
                yield from self._take_back(self._unwritten_of(*event.scope, event.execution))
                if isinstance(event, NodeFailed) and not event.scope:
                    yield from self._end_step(event.node)
            case Token() if self._is_text(event):
                yield from self._token(event)
            case Emitted():
                yield CustomEvent(name=event.node, value=as_json(event.value))
            case _ if event.scope:  # graphs inside of nodes are no steps of their own
                pass
            case RunStarted():
                yield RunStartedEvent(thread_id=self._body.thread_id, run_id=self._body.run_id)
                if session is not None:
                    yield from self._begin(session)
            case NodeStarted():
                self._nodes[event.execution] = event.node
                self._steps[event.node] += 1
                if self._steps[event.node] == 1:  # the protocol has no two open steps of one name
                    yield StepStartedEvent(step_name=event.node)
            case Committed() if session is not None:
                yield from self._commit(event, session.run.log[event.position - session.run.first].state)
            case Asked():
                yield from self._end_step(event.question.node)
            case _:
                pass

    def end(self, end: Run | BaseException) -> Iterator[BaseEvent]:
        """The last events: `end` is the run, or why it could not begin or go on."""
        if not isinstance(end, Run):
            yield refusal(end)
            return
        for node in +self._steps:
            yield StepFinishedEvent(step_name=node)
        if not self._committed and end.status == "completed":  # the same request again: nothing was played
            yield from self._new_texts(frozenset(end.state), end.state)
        yield from self._take_back([*self._unwritten])
        yield from self._snapshot(end.state)
        yield self._last(end)

    def _last(self, run: Run) -> BaseEvent:
        outcome: RunFinishedOutcome = RunFinishedSuccessOutcome()
        if run.status == "interrupted":
            outcome = RunFinishedInterruptOutcome(interrupts=[self._interrupt(one) for one in run.questions])
        elif run.status == "failed" or isinstance(run.error, BudgetError):
            return _told(last_of_run(run.run_id, run.status, run.error, hides=True))
        elif run.status == "stopped":
            outcome = RunFinishedCancelledOutcome()
        return RunFinishedEvent(thread_id=self._body.thread_id, run_id=self._body.run_id, outcome=outcome)

    # --- state

    def _begin(self, session: Session) -> Iterator[BaseEvent]:
        self._redactor = redacted(session).own
        state = session.run.trunk_state
        branches = {entry.commit.branch: entry.state for entry in session.run.log}
        for before in (state, *branches.values()):
            for message in self._new_messages(before):  # the client has them from earlier requests
                self._calls.pop(message.answers, None)
        yield from self._snapshot(state)

    def _snapshot(self, state: ImmutableState) -> Iterator[BaseEvent]:
        """Show the client its part of a state, if that has changed: what the program returns, but for messages.

        A field that is the same object as before is not looked at again: states share what did not change.
        """
        graph, old, shown = self._graph, self._state, self._shown or {}
        if self._redactor is None and graph.redaction is not None:
            self._redactor = Redactor(graph.redaction, dict(state.raw_items()))
        self._state = {
            name: value
            for name, value in state.raw_items()
            if (name not in graph.inputs if graph.outputs is None else name in graph.outputs)
            and name not in self._texts & self._of_messages
        }
        now = {
            name: shown[name] if name in shown and old[name] is value else as_json(self._hide(name, value))
            for name, value in self._state.items()
        }
        if now != self._shown:
            self._shown = now
            yield StateSnapshotEvent(snapshot=now)

    def _hide(self, field: str, value: Any) -> Any:
        return value if self._redactor is None else thaw(self._redactor.field(field, value))

    def _commit(self, event: Committed, state: ImmutableState) -> Iterator[BaseEvent]:
        commit = event.commit
        self._committed = True
        yield from self._end_texts(self._unwritten_of(commit.id))
        if commit.node != START and not commit.node.startswith("join:"):
            yield from self._new_texts(frozenset(commit.patch), state)
        if not commit.branch:  # a branch may lack what another one has said
            yield from self._take_back(self._gone(state))
        for message in self._new_messages(state):
            yield from self._message(message, commit.id)
        if not commit.branch:
            yield from self._snapshot(state)
        yield from self._end_step(commit.node)

    # --- steps

    def _end_step(self, node: str) -> Iterator[BaseEvent]:
        if self._steps[node]:
            self._steps[node] -= 1
            if not self._steps[node]:
                yield StepFinishedEvent(step_name=node)

    # --- texts

    def _is_text(self, token: Token) -> bool:
        """True if a token belongs to a text for the user, by what its node writes."""
        node = self._graph.nodes.get(self._nodes.get(whole_execution([*token.scope, token.execution][0]), ""))
        writes = None if node is None or node.writes is None else frozenset(node.writes)
        if token.field in self._texts:
            return not token.scope or writes is None or token.field in writes
        # The only output of a module that adds a message is the text of the message.
        adds = bool(writes and writes & self._texts & self._of_messages)
        own = token.field not in _THOUGHTS and "." not in token.field  # an argument of a call is no text for the user
        return adds and own and (writes or frozenset()) - self._of_messages <= {token.field}

    def _token(self, token: Token) -> Iterator[BaseEvent]:
        place = (token.scope, token.execution, token.attempt, token.predictor, token.field)
        if token.text and place not in self._open:
            path = (*token.scope, token.execution)
            self._open[place] = message_id = self._new_id()
            self._messages[message_id] = self._unwritten[message_id] = _Text(token.field, path, [])
            yield TextMessageStartEvent(message_id=message_id)
        if token.text:
            self._unwritten[self._open[place]].parts.append(token.text)
            yield TextMessageContentEvent(message_id=self._open[place], delta=token.text)
        if token.done and place in self._open:
            yield TextMessageEndEvent(message_id=self._open.pop(place))

    def _new_id(self) -> str:
        return f"{self._body.run_id}/{next(self._ids)}"

    def _new_texts(self, fields: frozenset[str], state: ImmutableState) -> Iterator[BaseEvent]:
        """The texts that a commit has written. What the field had before, in this run, counts no more."""
        for field in sorted(self._texts & fields - self._of_messages):
            text = thaw(self._hide(field, state.raw(field, None)))
            old = self._held.get((field,))
            if old is not None and self._text_of(old) == text:
                continue
            self._held.pop((field,), None)
            if isinstance(text, str) and text:
                yield from self._say((field,), text, [one for one, it in self._unwritten.items() if it.field == field])
            yield from self._take_back([] if old is None else [old])

    def _text_of(self, message_id: str) -> str:
        shown = self._messages[message_id]
        return "".join(shown.parts) if isinstance(shown, _Text) else ""

    def _say(self, key: str | tuple[str], text: str, unwritten: Iterable[str]) -> Iterator[BaseEvent]:
        """Show a text of a commit; if it is one of those that were shown as tokens, that one counts from now on."""
        shown = next((one for one in unwritten if self._text_of(one) == text), None)
        self._held[key] = message_id = shown or (key if isinstance(key, str) else self._new_id())
        if shown is not None:
            del self._unwritten[shown]
            return
        self._messages[message_id] = _Text("", (), [text])
        yield TextMessageStartEvent(message_id=message_id)
        yield TextMessageContentEvent(message_id=message_id, delta=text)
        yield TextMessageEndEvent(message_id=message_id)

    def _unwritten_of(self, *path: str) -> list[str]:
        """The texts of an execution, of its parts, and of the runs inside of it; it has the executions around it."""
        *around, execution = path
        depth = len(around)
        return [
            one
            for one, (_, found, _) in self._unwritten.items()
            if [*found[:depth]] == around and len(found) > depth and is_within(found[depth], execution)
        ]

    def _end_texts(self, ids: Iterable[str]) -> Iterator[BaseEvent]:
        ended = set(ids)
        yield from (TextMessageEndEvent(message_id=one) for one in self._open.values() if one in ended)
        self._open = {place: one for place, one in self._open.items() if one not in ended}

    def _take_back(self, ids: list[str]) -> Iterator[BaseEvent]:
        """Ends texts that count no more, and shows the messages without them."""
        yield from self._end_texts(ids)
        for message_id in ids:
            del self._messages[message_id]
            self._unwritten.pop(message_id, None)
        if ids:
            yield MessagesSnapshotEvent(
                messages=[
                    *self._body.messages,
                    *[
                        AssistantMessage(id=one, content="".join(shown.parts)) if isinstance(shown, _Text) else shown
                        for one, shown in self._messages.items()
                    ],
                ]
            )

    # --- messages

    def _new_messages(self, state: ImmutableState) -> Iterator[Said]:
        """The messages of a state that were not seen before."""
        for field in sorted(self._of_messages):
            found, before = state.raw(field, None), self._lists.get(field)
            if found is before or not isinstance(found, FrozenList):
                continue
            self._lists[field] = found
            shown = [*found.raw_items()] if self._graph.redaction is None else self._hide(field, found)
            for message in _said(shown, _new(found, before)) if isinstance(shown, list) else ():  # else all is hidden
                if message.id not in self._seen:
                    self._seen.add(message.id)
                    self._calls.update({call.id: (f"{message.id}/{call.id}", call) for call in message.calls})
                    yield message

    def _gone(self, state: ImmutableState) -> list[str]:
        """The texts of this run that were removed from their field, or replaced under the same id."""
        gone = []
        for field in self._of_messages if self._held else ():
            found, before = state.raw(field, None), self._lists.get(field)
            if found is before or not (isinstance(found, FrozenList) and isinstance(before, FrozenList)):
                continue
            texts = {one.id: one.text for one in _said(found.raw_items(), _new(found, before))}
            for one in _said(before.raw_items(), _new(before, found)):
                if one.id in self._held and texts.get(one.id) != one.text:
                    gone.append(self._held.pop(one.id))
                    self._seen.discard(one.id)
        return gone

    def _message(self, message: Said, execution: str) -> Iterator[BaseEvent]:
        if message.role == "assistant":
            if message.text and self._texts & self._of_messages:
                yield from self._say(message.id, message.text, self._unwritten_of(execution))
            for call in message.calls:
                if self._calls[call.id][0] not in self._messages:
                    yield from self._call(call)
        elif message.role == "tool" and message.answers in self._calls:
            call_id, _ = self._calls.pop(message.answers)
            result = ToolMessage(id=message.id, content=message.text, tool_call_id=call_id, error=message.error)
            self._messages[message.id] = result
            yield ToolCallResultEvent(message_id=message.id, tool_call_id=call_id, content=message.text)

    def _call(self, call: ToolUse) -> Iterator[BaseEvent]:
        call_id = self._calls[call.id][0]
        made = ToolCall(id=call_id, function=FunctionCall(name=call.name, arguments=call.arguments))
        self._messages[call_id] = AssistantMessage(id=call_id, tool_calls=[made])
        yield ToolCallStartEvent(tool_call_id=call_id, tool_call_name=call.name)
        if call.arguments:
            yield ToolCallArgsEvent(tool_call_id=call_id, delta=call.arguments)
        yield ToolCallEndEvent(tool_call_id=call_id)

    # --- questions

    def _interrupt(self, question: Question) -> Interrupt:
        """A question; one about a call refers to it."""
        call_id, _ = self._calls.get(question.call.id if question.call else "", (None, None))
        schema = None if question.answer is None else dict(question.answer)
        until = question.expires
        reason = "confirmation" if schema and schema.get("type") == "boolean" else "input_required"
        return Interrupt(
            id=question.id,
            reason="tool_call" if call_id else reason,
            message=question.text,
            tool_call_id=call_id,
            response_schema=schema,
            expires_at=None if until is None else datetime.fromtimestamp(until, UTC).isoformat(),
            metadata={"node": question.node, "key": question.key},
        )
