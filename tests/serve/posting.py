"""A client of AG-UI without a network: requests to an ASGI app, and the events of its responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
from ag_ui.core import Event
from pydantic import TypeAdapter
from starlette.applications import Starlette

from dspyer import CompiledGraph
from dspyer.serve import agui

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)


def app_of(program: CompiledGraph, **options: Any) -> Starlette:
    """An app whose threads are named after the header `x-user`."""
    options.setdefault("thread", lambda request, body: f"{request.headers['x-user']}/{body.thread_id}")
    return Starlette(routes=[agui(program, **options)])


def user(text: Any, message_id: str = "m1") -> dict[str, Any]:
    return {"id": message_id, "role": "user", "content": text}


def body(
    text: Any = "Hi", *, thread: str = "t", run: str = "r1", resume: Sequence[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    found = {"threadId": thread, "runId": run, "messages": [user(text)], "state": {}, "tools": [], "context": []}
    return {**found, **({"resume": list(resume)} if resume else {}), **more}


async def asend(app: Any, request: dict[str, Any], who: str = "ada") -> list[dict[str, Any]]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://agent") as client:
        response = await client.post("/agui", json=request, headers={"x-user": who})
    assert response.status_code == 200, response.text
    assert response.headers["x-accel-buffering"] == "no"  # or nginx keeps events back
    return events_in(response.text)


def send(app: Any, request: dict[str, Any], who: str = "ada") -> list[dict[str, Any]]:
    return asyncio.run(asend(app, request, who))


def events_in(text: str) -> list[dict[str, Any]]:
    """The events of a response; each is valid by the protocol's own models."""
    found = [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n") if part.startswith("data: ")]
    for event in found:
        assert not EVENTS.validate_python(event).model_extra
    Page().read(found)
    return found


class Page:
    """What a page shows after the events of some requests.

    It refuses an order that the protocol forbids, as its client does.

    Attributes:
        state: the shared state.
        messages: the texts, tool calls and results by id, in the order in which they came.
    """

    def __init__(self, messages: Sequence[dict[str, Any]] = ()) -> None:
        self.state: Any = {}
        self.messages: dict[str, Any] = {one["id"]: one["content"] for one in messages}
        self._open: dict[str, set[str]] = {}
        self._status = ""

    def read(self, events: Sequence[dict[str, Any]]) -> Page:
        self._status = "new"
        self._open = {"STEP": set(), "TEXT_MESSAGE": set(), "TOOL_CALL": set()}
        for event in events:
            self._take(event)
        assert self._status == "ended"
        return self

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        allowed = ("RUN_STARTED", "RUN_ERROR") if self._status == "new" else ()
        assert self._status == "started" or kind in allowed, (self._status, kind)
        group, _, _ = kind.rpartition("_")
        self._open.setdefault(group, set())
        key = next((event[name] for name in ("stepName", "messageId", "toolCallId") if name in event), "")
        if kind in ("RUN_FINISHED", "RUN_ERROR"):
            self._status = "ended"
            assert kind == "RUN_ERROR" or not any(self._open.values()), self._open
        elif kind == "RUN_STARTED":
            self._status = "started"
        elif kind in ("STEP_STARTED", "TEXT_MESSAGE_START", "TOOL_CALL_START"):
            assert key not in self._open[group]
            self._open[group].add(key)
            if group != "STEP":
                assert key not in self.messages
                self.messages[key] = event.get("toolCallName", "")
        elif kind in ("STEP_FINISHED", "TEXT_MESSAGE_END", "TOOL_CALL_END"):
            self._open[group].remove(key)
        elif kind in ("TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS"):
            assert key in self._open[group]
            assert event["delta"]
            self.messages[key] += event["delta"]
        elif kind == "TOOL_CALL_RESULT":
            assert event["messageId"] not in self.messages
            self.messages[event["messageId"]] = event["content"]
        elif kind == "MESSAGES_SNAPSHOT":
            self.messages = {one["id"]: one.get("content") or _called(one) for one in event["messages"]}
        elif kind == "STATE_SNAPSHOT":
            self.state = event["snapshot"]


def _called(message: dict[str, Any]) -> str:
    return "".join(one["function"]["name"] + one["function"]["arguments"] for one in message["toolCalls"])


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def of_kind(events: Sequence[dict[str, Any]], *wanted: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] in wanted]
