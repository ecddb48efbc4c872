"""Requests and answers of the API as JSON: errors have one form and no traceback, bodies and values a largest size."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any

from anyio.to_thread import run_sync
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dspyer.display import json_bytes
from dspyer.errors import ConcurrentRunError, DspyerError, StoreError, ThreadError, error_text

logger = logging.getLogger("dspyer")

NOTHING: Mapping[str, Any] = MappingProxyType({})

LARGEST_BODY = 16 * 1024 * 1024
"""Bytes of a request that are read."""


class JSONAnswer(Response):
    """A response of JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return json_bytes(content)


class RefusedError(Exception):
    """A request cannot be done as it is: the status, a text, texts by field, and a name for the kind of error."""

    def __init__(
        self, status: int, message: str, fields: Mapping[str, str] = NOTHING, kind: str = "RequestError"
    ) -> None:
        super().__init__(message)
        self.status, self.fields, self.kind = status, fields, kind

    def response(self) -> JSONAnswer:
        """The response that says so."""
        error = {"type": self.kind, "message": str(self)}
        return JSONAnswer({"error": error, "fields": dict(self.fields)}, self.status)


ADVICE = "Another tab or process works on this thread. Wait until its run has ended, or stop it"
STATUSES: tuple[tuple[type[Exception], int], ...] = ((ThreadError, 409), (StoreError, 503), (DspyerError, 422))
"""The statuses of errors that are foreseen, the first class that fits."""


def error_response(error: Exception) -> Response:
    """The answer to a request that raised an error; one that was not foreseen is logged, and not told."""
    if isinstance(error, RefusedError):
        return error.response()
    if isinstance(error, HTTPException):
        return RefusedError(error.status_code, error.detail).response()
    if isinstance(error, ClientDisconnect):  # in the middle of its request: this answer is sent to no one
        return RefusedError(400, "the request ended before its body did").response()
    # A LookupError is raised on purpose; a KeyError is a mistake of ours.
    known = 404 if type(error) is LookupError else next((one for of, one in STATUSES if isinstance(error, of)), 500)
    if known == 500:
        logger.error("the inspector failed to answer a request", exc_info=error)
        return RefusedError(
            500, "the inspector failed to answer; its log has the error", kind="InternalError"
        ).response()
    text = f"{error_text(error)}. {ADVICE}" if isinstance(error, ConcurrentRunError) else error_text(error)
    return RefusedError(known, text, kind=type(error).__name__).response()


Endpoint = Callable[[Request], Awaitable[Response]]


def answered(make: Callable[[Request], Awaitable[Any]]) -> Endpoint:
    """An endpoint that answers with the JSON that an async function returns, or with the error that it raises."""

    @wraps(make)
    async def endpoint(request: Request) -> Response:
        try:
            found = await make(request)
            return found if isinstance(found, Response) else JSONAnswer(found)
        except Exception as error:  # noqa: BLE001 - logged, and answered without what it says
            return error_response(error)

    return endpoint


def read_in_thread(read: Callable[[Request], Any]) -> Endpoint:
    """An endpoint that answers with the JSON that a function returns. It may block: it runs in a worker thread."""
    return answered(lambda request: run_sync(lambda: JSONAnswer(read(request))))


async def body_of(
    request: Request, required: Mapping[str, Any], optional: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """The JSON object that a request carries, checked by names and types; raises `RefusedError`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "the body of a request must be JSON: Content-Type: application/json")
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > LARGEST_BODY:  # counted as it comes: the header with its length may lie
            raise RefusedError(413, f"the body of a request may have {LARGEST_BODY // 1024 // 1024} MB")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None
    allowed = {**required, **optional}
    if not isinstance(found, dict) or not found.keys() <= allowed.keys() or not required.keys() <= found.keys():
        raise RefusedError(
            400,
            f"the body is a JSON object with {', '.join(required)}; optional: {', '.join(optional) or 'nothing'}",
        )
    for name, value in found.items():
        if value is None and name in optional:
            continue
        if not isinstance(value, allowed[name]) or isinstance(value, bool):  # True is an int, and no version
            raise RefusedError(400, f"{name!r} has the wrong type in the body", {name: "has the wrong type"})
    return found


def number(request: Request, name: str, default: int, least: int = 0, most: int | None = None) -> int:
    """A whole number of the query; raises `RefusedError` for anything else."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    # Only ASCII digits: `int` takes digits of all scripts, underscores and spaces.
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise RefusedError(400, f"{name}={text!r} is not a whole number", {name: "is not a whole number"})
    value = int(text)
    if value < least or (most is not None and value > most):
        words = f"at least {least}" + ("" if most is None else f" and at most {most}")
        raise RefusedError(400, f"{name}={value}: it is {words}", {name: f"is {words}"})
    return value


def text_of(request: Request, name: str) -> str:
    """A text that the query must have; raises `RefusedError` without it."""
    text = request.query_params.get(name)
    if not text:
        raise RefusedError(400, f"the address lacks {name}=...", {name: "is missing"})
    return text
