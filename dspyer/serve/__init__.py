"""Programs behind protocols that clients speak. Nothing here is imported by a program that only runs graphs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ag_ui.core import RunAgentInput
    from starlette.requests import Request
    from starlette.routing import Route

    from dspyer import CompiledGraph

__all__ = ["agui"]


def agui(
    program: CompiledGraph,
    *,
    thread: Callable[[Request, RunAgentInput], str | Awaitable[str]],
    inputs: Callable[[RunAgentInput], Mapping[str, Any] | Awaitable[Mapping[str, Any]]] | None = None,
    text: str | Collection[str] | None = None,
    path: str = "/agui",
) -> Route:
    """A route on which AG-UI clients (https://ag-ui.com, protocol 1.0) run a program.

    One request is one run on a thread, or the answers to its questions. The response has the events of the run: steps,
    the texts of the assistant as they are written, tool calls with their results, the state and how it changes, and
    the values of `ctx.emit`. What the program returns is the state that the client sees: `Graph(outputs=[...])`.

    Args:
        program: a compiled graph with a store.
        thread: gets the HTTP request and its body, and returns the name of the thread in the store. The client chooses
            `body.thread_id`: put the user that you have authenticated into the name, or raise Starlette's
            `HTTPException(403)` here.
        inputs: gets the body and returns the inputs of the run. By default, the text of the last message if it is the
            user's: for an input that is a list of messages, for `message`, or for the only required input.
        text: the fields whose texts are messages of the assistant; of a field of messages, the assistant's. By default,
            the returned field of messages, or else the only returned field of type str. `()` for none.
        path: the path of the route.

    Returns:
        A Starlette route that takes POST: `Starlette(routes=[agui(...)])`, `FastAPI(routes=[agui(...)])`.

    Raises:
        ImportError: if a package is missing: `pip install ag-ui-protocol starlette`.
        ThreadError: if the program has no store, or has an executor.
        InputError: if there is no default for `inputs` or `text`, or `text` names no field.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph(inputs=["message"]).add_node("greet", lambda message: {"reply": "Hi!"}, writes=["reply"])
        >>> program = graph.add_path(START, "greet", END).compile(store=":memory:")
        >>> def thread(request, body):
        ...     return f"{request.headers['x-user']}/{body.thread_id}"
        >>> agui(program, thread=thread).path
        '/agui'
    """
    try:
        from dspyer.serve.agui_route import make_route
    except ImportError as error:
        raise ImportError("agui needs ag-ui-protocol and Starlette: pip install ag-ui-protocol starlette") from error
    return make_route(program, thread, inputs, text, path)
