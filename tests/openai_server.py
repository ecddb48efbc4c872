"""An HTTP server on the loopback that speaks the OpenAI chat protocol, so that tests can drive a real `dspy.LM`.

    with OpenAIServer(lambda messages: "Hello!") as server:
        lm = server.lm()
        lm("hi")

What it answers comes from a function; how it is sent (at once, or in server-sent events) from the request.
`faults` makes single requests fail, as `tests.http_faults` lists them.
"""

from __future__ import annotations

import json
import re
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import dspy

from dspyer.testing import Prompt, ScriptedLM
from tests.http_faults import Fault
from tests.timeouts import PATIENCE

Messages = list[dict[str, Any]]


class HTTPFailureError(Exception):
    """Raised by an answer function: the server sends this status instead of an answer."""

    def __init__(self, status: int, message: str = "", **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class OpenAIServer:
    """A chat server on an ephemeral port of the loopback.

    Args:
        answer: gives the text for the messages of a request. It may raise `HTTPFailureError`; any other exception gives
            status 500. It is called from several threads at once if requests overlap.
        model: name that answers carry.
        faults: what the first requests get instead of an answer, in order of arrival: a fault, or None for an answer.
            Or a function of the body of a request, which gives one of the two.
        pieces: how the text of an answer is cut if it is streamed, by default into words.

    Attributes:
        requests: the bodies of the requests, in order of arrival.
        times: when they arrived, as `time.monotonic`.
        sent: what each of them got: a fault, or None.
    """

    def __init__(
        self,
        answer: Callable[[Messages], str],
        model: str = "local",
        faults: Iterable[Fault | None] | Callable[[dict[str, Any]], Fault | None] = (),
        pieces: Callable[[str], list[str]] = re.compile(r"\s*\S+\s*").findall,
    ) -> None:
        self.answer = answer
        self.pieces = pieces
        self.model = model
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.sent: list[Fault | None] = []
        self.released = threading.Event()
        self._fault_of = faults if callable(faults) else None
        self._script = iter(()) if callable(faults) else iter(faults)
        self._lock = threading.Lock()
        self._server = _Connections(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="openai-server")

    @property
    def url(self) -> str:
        """The address for `api_base`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def lm(self, **settings: Any) -> Any:
        """A `dspy.LM` that talks to this server: no cache, no retries unless asked for."""
        defaults = {"api_base": self.url, "api_key": "test", "cache": False, "num_retries": 0}
        return dspy.LM(f"openai/{self.model}", **{**defaults, **settings})

    def release(self) -> None:
        """Lets the requests go on that `Hold` holds, those to come too."""
        self.released.set()

    def arrived(self, body: dict[str, Any]) -> Fault | None:
        """Records a request; returns the fault that it gets."""
        with self._lock:
            fault = self._fault_of(body) if self._fault_of is not None else next(self._script, None)
            self.requests.append(body)
            self.times.append(time.monotonic())
            self.sent.append(fault)
            return fault

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.read_all()  # a client that gave up may have sent a request that has not arrived yet
        self._server.server_close()


class _Connections(ThreadingHTTPServer):
    """Knows the connections whose request has not arrived."""

    request_queue_size = 128  # a connection that finds the queue full tries again after a second

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unread = set[Any]()
        self._changed = threading.Condition()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._unread.add(request)
        super().process_request(request, client_address)

    def is_read(self, request: Any) -> None:
        """The request of a connection has arrived, or never will."""
        with self._changed:
            self._unread.discard(request)
            self._changed.notify_all()

    def read_all(self) -> None:
        """Accepts the connections that wait, and waits until the request of each has arrived."""
        while select.select([self], [], [], 0)[0]:
            self.handle_request()
        with self._changed:
            assert self._changed.wait_for(lambda: not self._unread, PATIENCE), "a connection without a request"


def completion(model: str, messages: Messages, text: str, finish: str = "stop") -> dict[str, Any]:
    """The body of an answer that is sent at once."""
    return {
        "id": "chatcmpl-test",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": usage(messages, text),
    }


def chunks(
    model: str, messages: Messages, pieces: list[str], with_usage: bool, finish: str = "stop"
) -> Iterator[dict[str, Any]]:
    """The events of an answer that is streamed in these pieces."""

    def chunk(choices: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
        head = {"id": "chatcmpl-test", "object": "chat.completion.chunk", "created": 0, "model": model}
        return {**head, "choices": choices, **extra}

    yield chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    for piece in pieces:
        yield chunk([{"index": 0, "delta": {"content": piece}, "finish_reason": None}])
    yield chunk([{"index": 0, "delta": {}, "finish_reason": finish}])
    if with_usage:
        yield chunk([], usage=usage(messages, "".join(pieces)))


def usage(messages: Messages, text: str) -> dict[str, int]:
    """Tokens, counted as words."""
    sent = sum(len(text_of(message).split()) for message in messages)
    answered = len(text.split())
    return {"prompt_tokens": sent, "completion_tokens": answered, "total_tokens": sent + answered}


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, whether it is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def prompt_of(messages: Messages) -> Prompt:
    """What the messages of a request say: fields, demonstrations, inputs."""
    reader = ScriptedLM(lambda prompt: "read")
    text_by(reader, messages)
    return reader.calls[0].prompt


def answer_text(messages: Messages, answer: dict[str, Any] | Callable[[Prompt], dict[str, Any]]) -> str:
    """Output fields, in the form that the messages ask for."""
    return text_by(ScriptedLM([answer]), messages)


def text_by(lm: dspy.LM, messages: Messages) -> str:
    """What an LM of this process answers."""
    texts = [{"role": message["role"], "content": text_of(message)} for message in messages]
    return str(lm(dspy.lm15.request_from_openai_chat({"model": lm.model, "messages": texts})).text)


@dataclass
class _Reply:
    """What a fault may do with a request."""

    handler: BaseHTTPRequestHandler
    body: dict[str, Any]
    server: OpenAIServer

    @property
    def released(self) -> threading.Event:
        return self.server.released

    def text(self) -> str:
        return self.server.answer(self.body["messages"])

    def whole(self, text: str, finish: str = "stop") -> dict[str, Any]:
        return completion(self.body["model"], self.body["messages"], text, finish)

    def events(self, text: str, finish: str = "stop") -> list[dict[str, Any]]:
        with_usage = bool((self.body.get("stream_options") or {}).get("include_usage"))
        pieces = self.server.pieces(text)
        return list(chunks(self.body["model"], self.body["messages"], pieces, with_usage, finish))


def _handler_of(server: OpenAIServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fault = server.arrived(body)
            server._server.is_read(self.connection)
            if fault is not None:
                with suppress(ConnectionError):  # the client may have given up
                    fault.send(_Reply(self, body, server))
                return
            try:
                if self.path != "/v1/chat/completions":
                    raise HTTPFailureError(404, f"no such path: {self.path}")
                text = server.answer(body["messages"])
            except HTTPFailureError as failure:
                self._fail(failure.status, failure.message, failure.headers)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client gets it as status 500
                self._fail(500, f"{type(error).__name__}: {error}", {})
            else:
                self._answer(body, text)

        def _answer(self, body: dict[str, Any], text: str) -> None:
            reply = _Reply(self, body, server)
            if not body.get("stream"):
                self._send(200, "application/json", json.dumps(reply.whole(text)).encode())
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in reply.events(text):
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

        def _fail(self, status: int, message: str, headers: dict[str, str]) -> None:
            error = {"error": {"message": message, "type": "test", "code": None}}
            self._send(status, "application/json", json.dumps(error).encode(), headers)

        def _send(self, status: int, kind: str, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            for name, value in (headers or {}).items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)

        def finish(self) -> None:
            server._server.is_read(self.connection)
            super().finish()

        def log_message(self, *args: Any) -> None:
            """Keeps the tests' output quiet."""

    return Handler
