"""A request as the routes of `agui` and `router` read it, and a stream as they answer it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar, cast

from anyio.to_thread import run_sync
from pydantic_core import to_jsonable_python
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dspyer import CompiledGraph, Thread
from dspyer.errors import InputError
from dspyer.extend import thaw

T = TypeVar("T")


def check_program(route: str, program: CompiledGraph) -> None:
    """Refuse what is no program with a store, when its route is made."""
    if not isinstance(cast(object, program), CompiledGraph):
        kind = type(program).__name__
        raise InputError(f"{route}(program): {kind} is no compiled graph: pass graph.compile(store=...)")
    program.thread(route)


async def json_content(request: Request) -> bytes:
    """The body of a request; raises status 415 if it is of another content type than JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a form of a foreign page can send any other type without asking
        raise HTTPException(415, f"the content type is {kind!r}: send application/json")
    return await request.body()


async def asked(function: Callable[..., T | Awaitable[T]], *given: Any) -> T:
    """Call a function of the application, a sync one in a worker thread, since it may block; return its result."""
    with of_application():
        found = function(*given) if iscoroutinefunction(function) else await run_sync(function, *given)
        return await found if isawaitable(found) else found


async def asked_thread(program: CompiledGraph, function: Callable[..., Any], *given: Any) -> Thread:
    """The thread that a function of the application gives to a request, or names."""
    found = await asked(function, *given)
    with of_application():
        return found if isinstance(found, Thread) else program.thread(found)


@contextmanager
def of_application() -> Iterator[None]:
    """A block of the application: what it raises is no fault of the client, unless it says so."""
    try:
        yield
    except (HTTPException, InputError):
        raise
    except Exception as error:
        raise RuntimeError("a function of the application has failed, or has returned no name of a thread") from error


def as_json(value: Any) -> Any:
    """A frozen or plain value as JSON has it; of an object that JSON cannot hold, its text."""
    plain = thaw(value)
    try:
        (found,) = to_jsonable_python([plain], bytes_mode="base64", serialize_unknown=True, inf_nan_mode="null")
    except Exception:  # noqa: BLE001 - classes have code of their own; and pydantic takes no half of a surrogate pair as a key
        if isinstance(plain, Mapping):
            return {str(key): as_json(item) for key, item in plain.items()}
        return [as_json(item) for item in plain] if isinstance(plain, list | tuple) else f"<{type(plain).__name__}>"
    return found


class RunResponse(StreamingResponse):
    """The events of a run, which ends with the response.

    Starlette leaves a generator where it was if the client goes away while a chunk is sent. The run would go on until
    the garbage collector frees it.
    """

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events: Any = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)
