"""Faults that a `tests.openai_server.OpenAIServer` makes, one for each request: the ways in which providers fail.

    OpenAIServer(answer, faults=[Status(429, Retry_After="2"), Drop(), None, Cut(after=1)])

`None` is a request that is answered. A fault that takes time waits for the test (`server.release()`), not for a clock.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol

HTML = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
UNPARSABLE = "I would rather not use your fields."


class Reply(Protocol):
    """What a fault may do with a request."""

    handler: BaseHTTPRequestHandler
    body: dict[str, Any]  # of the request

    @property
    def released(self) -> threading.Event:
        """Set when the test lets held requests go on."""

    def whole(self, text: str, finish: str = "stop") -> dict[str, Any]:
        """The body of a complete answer."""

    def events(self, text: str, finish: str = "stop") -> list[dict[str, Any]]:
        """The events of a complete answer."""

    def text(self) -> str:
        """What the server would answer."""


class Fault:
    """One way to fail. A subclass says what is sent."""

    def send(self, reply: Reply) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class DateIn:
    """A header that is an HTTP date, so many seconds after it is sent."""

    seconds: float

    def __str__(self) -> str:
        return formatdate(time.time() + self.seconds, usegmt=True)


class Status(Fault):
    """A status, with a body as OpenAI sends it. Headers are keywords, with `_` for `-`."""

    def __init__(self, status: int, code: str | None = None, **headers: str | DateIn) -> None:
        self.status, self.code, self.headers = status, code, headers

    def __repr__(self) -> str:
        return f"Status({self.status}{''.join(f', {k}={v!r}' for k, v in self.headers.items())})"

    def send(self, reply: Reply) -> None:
        error = {"error": {"message": f"status {self.status}", "type": "test", "code": self.code}}
        headers = {name: str(value) for name, value in self.headers.items()}
        _whole(reply, json.dumps(error).encode(), "application/json", self.status, headers)


@dataclass(frozen=True)
class Drop(Fault):
    """Closes the connection: before anything is sent, after the headers, or in the middle of the body."""

    where: str = "request"

    def send(self, reply: Reply) -> None:
        if self.where != "request":
            data = json.dumps(reply.whole(reply.text())).encode()
            _head(reply, "application/json", len(data))
            if self.where == "body":
                reply.handler.wfile.write(data[: len(data) // 2])
        _reset(reply)


@dataclass(frozen=True)
class Hold(Fault):
    """Sends nothing, or `after` tokens of a stream, and then nothing until the test releases it; then the rest."""

    after: int | None = None

    def send(self, reply: Reply) -> None:
        if self.after is None or not reply.body.get("stream"):
            reply.released.wait()
            _answer(reply, reply.text())
            return
        with _stream(reply) as send:
            for number, event in enumerate(reply.events(reply.text())):
                if number == self.after + 1:  # the first event holds the role only
                    reply.released.wait()
                send(event)


@dataclass(frozen=True)
class Cut(Fault):
    """Ends a stream after so many tokens: the connection is closed, without an end."""

    after: int = 1

    def send(self, reply: Reply) -> None:
        if not reply.body.get("stream"):
            Drop("body").send(reply)
            return
        with _stream(reply, done=False) as send:
            for event in reply.events(reply.text())[: self.after + 1]:
                send(event)


@dataclass(frozen=True)
class ErrorEvent(Fault):
    """An error in a stream, after so many tokens; status 500 if nothing is streamed."""

    after: int = 0
    type: str = "server_error"

    def send(self, reply: Reply) -> None:
        if not reply.body.get("stream"):
            Status(500).send(reply)
            return
        with _stream(reply, done=False) as send:
            for event in reply.events(reply.text())[: self.after + 1] if self.after else []:
                send(event)
            send({"error": {"message": "the model broke", "type": self.type, "code": self.type}})


@dataclass(frozen=True)
class Html(Fault):
    """A page of a proxy, with status 200."""

    def send(self, reply: Reply) -> None:
        _whole(reply, HTML.encode(), "text/html")


@dataclass(frozen=True)
class TruncatedJson(Fault):
    """A body, or an event, that stops in the middle, on a connection that is ended properly."""

    def send(self, reply: Reply) -> None:
        if not reply.body.get("stream"):
            data = json.dumps(reply.whole(reply.text())).encode()
            _whole(reply, data[: len(data) // 2], "application/json")
            return
        event = json.dumps(reply.events(reply.text())[1])
        _head(reply, "text/event-stream")
        reply.handler.wfile.write(f"data: {event[: len(event) // 2]}\n\n".encode())


@dataclass(frozen=True)
class EmptyChoices(Fault):
    """An answer without choices."""

    def send(self, reply: Reply) -> None:
        if reply.body.get("stream"):
            with _stream(reply) as send:
                for event in reply.events(""):
                    send({**event, "choices": []})
        else:
            data = {**reply.whole(""), "choices": []}
            _whole(reply, json.dumps(data).encode(), "application/json")


@dataclass(frozen=True)
class Text(Fault):
    """A complete answer of the test's choice: text without fields, or one that is cut off (`finish="length"`)."""

    text: str = UNPARSABLE
    finish: str = "stop"

    def send(self, reply: Reply) -> None:
        _answer(reply, self.text, self.finish)


@contextmanager
def refused_address() -> Iterator[str]:
    """An `api_base` whose port refuses connections for as long as the block lasts."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nothing else gets the port
        yield f"http://127.0.0.1:{closed.getsockname()[1]}/v1"


# --- sending


def _head(reply: Reply, kind: str, length: int | None = None, status: int = 200, **headers: str) -> None:
    handler = reply.handler
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.flush()


def _whole(reply: Reply, data: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
    _head(reply, kind, len(data), status, **(headers or {}))
    reply.handler.wfile.write(data)


@contextmanager
def _stream(reply: Reply, done: bool = True) -> Iterator[Any]:
    _head(reply, "text/event-stream")

    def send(event: dict[str, Any]) -> None:
        reply.handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        reply.handler.wfile.flush()

    yield send
    if done:
        reply.handler.wfile.write(b"data: [DONE]\n\n")


def _answer(reply: Reply, text: str, finish: str = "stop") -> None:
    if not reply.body.get("stream"):
        _whole(reply, json.dumps(reply.whole(text, finish)).encode(), "application/json")
        return
    with _stream(reply) as send:
        for event in reply.events(text, finish):
            send(event)


def _reset(reply: Reply) -> None:
    """Closes the connection with a reset instead of an end: the client may not take it for a short answer."""
    connection = reply.handler.connection
    reply.handler.wfile.flush()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reply.handler.close_connection = True
    connection.close()
