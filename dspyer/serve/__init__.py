"""Programs as services: routes for clients. Nothing here is imported by a program that only runs graphs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ag_ui.core import RunAgentInput
    from starlette.requests import Request
    from starlette.routing import Route, Router

    from dspyer import CompiledGraph, Thread

__all__ = ["agui", "router"]


def agui(
    program: CompiledGraph,
    *,
    thread: Callable[[Request, RunAgentInput], str | Thread | Awaitable[str | Thread]],
    inputs: Callable[[RunAgentInput], Mapping[str, Any] | Awaitable[Mapping[str, Any]]] | None = None,
    text: str | Collection[str] | None = None,
    path: str = "/agui",
) -> Route:
    """A route on which AG-UI clients (https://ag-ui.com, protocol 1.0) run a program.

    One request is one run on a thread, or the answers to its questions. The response has the events of the run: steps,
    the texts of the assistant as they are written, tool calls with their results, the state and how it changes, and
    the values of `ctx.emit`. What the program returns is the state that the client sees: `Graph(outputs=[...])`.

    All open questions are answered in one request; an answer that is missing or does not fit is a `RUN_ERROR`, and the
    questions stay open. With `"status": "cancelled"` for all of them the run is given up. `runId` is the key of the
    run. If a run fails, the client may send the same answers again, which resumes it. By default the id of a user's
    message begins with `client:` in a list of messages, so no client replaces one of the assistant. A body that is not
    of the protocol gets the status 400, another content type than JSON 415. Events of graphs inside of nodes are left
    out, but for the tokens of a text that the node writes and what they emit.

    Args:
        program: a compiled graph with a store.
        thread: gets the HTTP request and its body, and returns the name of the thread in the store, or the thread. The
            client chooses `body.thread_id`: put the user that you have authenticated into the name, or raise
            Starlette's `HTTPException(403)` here.
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
        >>> graph = Graph(inputs=["message"]).add_node("greet",
        ...     lambda message: {"reply": "Hi!"}, writes=["reply"])
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


def router(
    program: CompiledGraph,
    *,
    thread: Callable[[Request, str], str | Thread | Awaitable[str | Thread]],
    by: Callable[[Request], str | Awaitable[str | None] | None] | None = None,
    if_open: Literal["refuse", "amend", "abandon"] = "refuse",
    recover: bool = False,
) -> Router:
    """A service for the threads of a program, to be mounted: `app.mount("/chats", serve.router(...))`.

    | route | body | it |
    |---|---|---|
    | `POST /{name}` | inputs | starts a run; with the header `Idempotency-Key` once, however often it is sent |
    | `POST /{name}/answers` | `{id: answer}` | answers questions, and continues the run |
    | `POST /{name}/resume` | | continues a run that failed, crashed or was stopped |
    | `POST /{name}/stop` | | stops the run, in whatever process it is |
    | `POST /{name}/messages` | `{text}`, `to` | sends a message to an agent, as `thread.send`; 202 with its number |
    | `GET /{name}` | | reads `status`, `outputs`, `questions`, `answers` and `error` of the last run |
    | `GET /` | | lists `names`, at most 1,000; `?after=` the last of these gives the next |

    A run is answered at its end by `{"status", "outputs", "questions", "error"}`, or with `Accept: text/event-stream`
    by its events as they happen, with tokens. `error` is what `errors.public` gives, `{"code", "status", "message"}`,
    and the response has its status. A client that leaves stops its run. All bodies are JSON, and another content type
    gets 415, since pages of other sites can send those; set `SameSite` on the cookie of a login too. An answer comes
    by the id of its question; given twice, it calls nothing. A user's name before that of a thread has no `/` in it.

    Args:
        program: a compiled graph with a store.
        thread: gets the request and the name in its path, and returns the name of the thread in the store, or the
            thread. The client chooses the name: put the user that you have authenticated before it, or raise
            Starlette's `HTTPException(403)` here. For the empty name it returns what the names that are listed begin
            with.
        by: gets the request of an answer, and returns who answers, `Answer.by`, or raises `HTTPException`.
        if_open: what new inputs do to an open run, as in `thread.run`.
        recover: whether `program.recover()` is called once in the background, and again after a minute, when the leases
            of owners in other containers have ended: at the start of an app whose lifespan is that of the router,
            `FastAPI(lifespan=router.lifespan_context)`, else with the first request.

    Returns:
        A Starlette router.

    Raises:
        ImportError: if Starlette is missing: `pip install starlette`.
        ThreadError: if the program has no store, or has an executor.
        InputError: if the program is no compiled graph, or `thread` or `by` no function.
        ValueError: if `if_open` is another text.

    Example:
        >>> from starlette.applications import Starlette
        >>> from starlette.routing import Mount
        >>> from dspyer import END, START, Graph
        >>> graph = Graph(inputs=["message"]).add_node("greet",
        ...     lambda message: {"reply": "Hi!"}, writes=["reply"])
        >>> program = graph.add_path(START, "greet", END).compile(store=":memory:")
        >>> chats = router(
        ...     program,
        ...     thread=lambda request, name: f"{request.headers['x-user']}/{name}")
        >>> app = Starlette(routes=[Mount("/chats", app=chats)])
    """
    try:
        from dspyer.serve.thread_router import make_router
    except ImportError as error:
        raise ImportError("router needs Starlette: pip install starlette") from error
    return make_router(program, thread, by, if_open, recover)
