"""The route of `agui`: a request becomes a run on a thread, and its events the response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, Literal, NamedTuple

import anyio
from ag_ui.core import (
    ResumeEntry,
    RunAgentInput,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunStartedEvent,
    TextPart,
    UserMessage,
)
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dspyer import CompiledGraph, Thread
from dspyer.errors import InputError, list_names, suggestion
from dspyer.events import Question
from dspyer.graph.spec import GraphSpec
from dspyer.hints import without_none
from dspyer.runtime.streams import AsyncEvents
from dspyer.serve.agui_events import EventTranslator, encoded, refusal
from dspyer.serve.http_request import RunResponse, asked, asked_thread, check_program, json_content
from dspyer.server_sent import HEARTBEAT
from dspyer.threads.playing import stop_waiting

Name = Callable[[Request, RunAgentInput], str | Thread | Awaitable[str | Thread]]
Inputs = Callable[[RunAgentInput], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]

PATIENCE = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes the connection for dead."""

OF_CLIENT = "client:"
"""The beginning of the ids that a client's messages get in a state.

`add_messages` replaces a message by one with its id, and no client may choose that of another role's message. The same
message again is still one message.
"""


def make_route(
    program: CompiledGraph, thread: Name, inputs: Inputs | None, text: str | Collection[str] | None, path: str
) -> Route:
    """The route, once its options are checked."""
    check_program("agui", program)
    of_messages = message_fields(program.graph)
    texts = text_fields(program.graph, text, of_messages)
    served = Served(program, thread, inputs or default_inputs(program.graph, of_messages), texts, of_messages)
    return Route(path, served.respond, methods=["POST"])


# --- what the options mean


def message_fields(graph: GraphSpec) -> frozenset[str]:
    """The fields that hold messages."""
    fields = graph.topology.schema.fields.values()
    kinds = ("conversation", "add_messages", "langgraph.add_messages")
    return frozenset([one.name for one in fields if one.reducer is not None and one.reducer.name in kinds])


def text_fields(graph: GraphSpec, text: str | Collection[str] | None, of_messages: frozenset[str]) -> frozenset[str]:
    """The fields whose texts are messages of the assistant."""
    schema = graph.topology.schema
    if text is not None:
        names = frozenset([text] if isinstance(text, str) else text)
        unknown = sorted(names - set(schema.fields))
        if unknown and not schema.accepts_any_key:
            raise InputError(
                f"agui(text={text!r}): graph {graph.name!r} has no field {unknown[0]!r}"
                f"{suggestion(unknown[0], schema.fields)}"
            )
        return names
    if shown := of_messages & {*graph.inputs, *(graph.outputs or ())}:
        return shown
    returned = _returned(graph)
    if len(returned) > 1:
        raise InputError(
            f"agui(program): which of the fields {list_names(sorted(returned))} of graph {graph.name!r} is what the "
            f"assistant says? Pass text={min(returned)!r}, or text=() for none"
        )
    return frozenset(returned)


def _returned(graph: GraphSpec) -> set[str]:
    """The returned fields of type str; without a schema all, or all that its nodes are known to write."""
    fields, names = graph.topology.schema.fields, set(graph.outputs or ())
    if graph.outputs is None:
        names = {name for node in graph.nodes.values() for name in node.writes or ()}.difference(graph.inputs)
    return {name for name in names if name not in fields or without_none(fields[name].annotation) is str}


def default_inputs(graph: GraphSpec, of_messages: frozenset[str]) -> Inputs:
    """The function that gives a program the last message of the user."""
    names = sorted(of_messages.intersection(graph.inputs)) or [name for name in graph.inputs if name == "message"]
    names = names or sorted(graph.required or graph.inputs)
    if len(names) != 1 or graph.required - set(names):
        raise InputError(
            f"agui(program): the inputs of graph {graph.name!r} are {list_names(sorted(graph.inputs))}: pass "
            "inputs=, a function that gets the request (ag_ui.core.RunAgentInput) and returns the inputs"
        )
    (name,) = names

    def last_message(body: RunAgentInput) -> dict[str, Any]:
        last = body.messages[-1] if body.messages else None
        if not isinstance(last, UserMessage):
            raise HTTPException(422, "the last message of the request is not the user's")
        parts = last.content if isinstance(last.content, list) else [TextPart(text=last.content)]
        others = sorted({part.type for part in parts if not isinstance(part, TextPart)})
        if others:
            found = f"the message has parts of the type {list_names(others)}: this program takes text alone"
            raise HTTPException(422, found)
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        message_id = OF_CLIENT + last.id.removeprefix(OF_CLIENT)
        return {name: [{"role": "user", "content": text, "id": message_id}] if name in of_messages else text}

    return last_message


# --- a request


class Served(NamedTuple):
    """A program that is served: the options of `agui`."""

    program: CompiledGraph
    thread: Name
    inputs: Inputs
    texts: frozenset[str]
    of_messages: frozenset[str]

    async def respond(self, request: Request) -> Response:
        """The response: a stream of events, or status 400 for a request that is none of the protocol."""
        try:
            body = RunAgentInput.model_validate_json(await json_content(request))
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors(include_url=False)
            ]
            raise HTTPException(400, "; ".join(problems)) from None
        thread = await asked_thread(self.program, self.thread, request, body)
        return RunResponse(self._events(thread, body))

    async def _events(self, thread: Thread, body: RunAgentInput) -> AsyncGenerator[bytes, None]:
        try:
            stream = await self._stream(thread, body)
            if stream is None:
                run = {"thread_id": body.thread_id, "run_id": body.run_id}
                yield encoded(RunStartedEvent(**run))
                yield encoded(RunFinishedEvent(**run, outcome=RunFinishedCancelledOutcome()))
                return
            translator = EventTranslator(self.program.graph, body, self.texts, self.of_messages)
            async with stream, aclosing(stream._paced(PATIENCE)) as events:
                async for event in events:
                    if event is None:
                        yield HEARTBEAT
                        continue
                    for shown in translator.translate(event, stream._session):
                        yield encoded(shown)
                for shown in translator.end(await stream._end_of_run()):
                    yield encoded(shown)
        except Exception as error:  # noqa: BLE001 - a response that just breaks off says nothing
            yield encoded(refusal(error))

    async def _stream(self, thread: Thread, body: RunAgentInput) -> AsyncEvents | None:
        """The events of the run, which begins when they are read; None if its questions were cancelled."""
        status = await anyio.to_thread.run_sync(lambda: thread.status)
        if body.resume:
            questions = await anyio.to_thread.run_sync(lambda: thread.questions) if status == "interrupted" else ()
            answers = _answers(body.resume, questions)
            if answers:
                return thread.astream_resume(answers, tokens=True)
            if status == "interrupted":
                await anyio.to_thread.run_sync(stop_waiting, thread)
                status = await anyio.to_thread.run_sync(lambda: thread.status)
            if status in ("new", "running", "completed"):  # else the run does not go on, which is what was asked for
                raise HTTPException(422, f"there is no open interrupt {body.resume[0].interrupt_id!r}")
            return None
        given = await asked(self.inputs, body)
        # A run that its client has left, or that failed, is given up for a new message.
        if_open: Literal["refuse", "abandon"] = "abandon" if status in ("stopped", "failed", "crashed") else "refuse"
        return thread.astream(given, key=body.run_id, tokens=True, if_open=if_open)


def _answers(resume: list[ResumeEntry], questions: tuple[Question, ...]) -> dict[str, Any]:
    """The answers, none if all questions are cancelled; `questions` are those that are open."""
    names = [one.interrupt_id for one in resume]
    answers = {one.interrupt_id: one.payload for one in resume if one.status == "resolved"}
    missing = [one.id for one in questions if one.id not in names]
    unknown = [one for one in names if questions and one not in {question.id for question in questions}]
    if len(set(names)) < len(names):
        problem = "an interrupt has two answers"
    elif answers and len(answers) < len(names):
        problem = "answer all interrupts or cancel all: a run goes on when each has an answer"
    elif unknown and not answers:
        problem = f"there is no open interrupt {unknown[0]!r}"
    elif missing:
        problem = f"`resume` lacks {list_names(missing)}: a run goes on when all its interrupts have answers"
    else:
        return answers
    raise HTTPException(422, problem)
