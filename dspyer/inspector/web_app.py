"""The routes of the inspector: the files of the page, and the API below `api/` (its JSON: README.md in this folder)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from dspyer import __version__
from dspyer.archive.archive import Archive
from dspyer.display.run_file import PAGE
from dspyer.inspector.following import Followers
from dspyer.inspector.guard import Guard, TokenGuard, name_of
from dspyer.inspector.json_answers import RefusedRequest, error_response
from dspyer.inspector.reading import Reading
from dspyer.stores import Store, open_store

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

READS = "the inspector only reads: give it the program, as in dspyer inspect STORE --program module:graph"
ACTIONS = ("answer", "resume", "stop", "rerun", "copy")


def make_app(store: Any, program: Any, *, token: str | None, hosts: Sequence[str]) -> Starlette:
    """The app of `dspyer.inspector.app`. Its `state` has the followers, and the actions if there is a program."""
    if token is not None and not re.fullmatch(r"[\w-]+", token, re.ASCII):
        raise ValueError("token: letters, digits, '-' and '_', at least one: it is a part of an address")
    for host in hosts:
        if not host or name_of(host.lower()) != host.lower():
            raise ValueError(f"hosts={host!r}: names or addresses, without ports: 'ops.example.com', '[::1]'")
    archive = store if isinstance(store, Archive) else Archive(store)
    actions = None
    if program is not None:
        from dspyer.inspector.acting import Actions  # only here: it imports DSPy

        actions = Actions(program, writable(program, store, archive))
    followers = Followers(archive)
    name = None if program is None else program.graph.name
    routes = [*Reading(archive, name, __version__).routes(), Route("/follow", followers.follow)]
    routes += [] if actions is None else actions.routes()
    known = {route.path.removeprefix("/") for route in routes}
    routes.append(Route("/{name:path}", OtherAddress(known, acts=actions is not None)))
    api = Mount("/api", routes=routes, middleware=[Middleware(TokenGuard, token=token)])
    app = Starlette(
        routes=[*page_routes(PAGE), api],
        middleware=[Middleware(Guard, hosts=tuple(hosts))],
        exception_handlers={HTTPException: _http_error},
    )
    app.state.followers, app.state.actions = followers, actions
    return app


def writable(program: Any, store: Any, archive: Archive) -> Store:
    """The store of an archive, to be written: an archive only reads."""
    if not isinstance(store, Archive):
        return open_store(store)
    own: Store | None = program._store
    if own is None or own.address != archive.address:
        raise ValueError(
            f"the inspector acts on the store of its archive, {archive.address!r}, and the program has "
            f"{'none' if own is None else repr(own.address)}: compile it with this store, or pass the store itself"
        )
    return own


def page_routes(folder: Path) -> list[Route]:
    """One route for each file of the page, read once: a path from outside never becomes the name of a file."""
    routes = []
    for path in sorted(folder.iterdir()):
        if path.suffix in MEDIA_TYPES:
            where = "/" if path.name == "index.html" else f"/{path.name}"
            routes.append(Route(where, _file(path.read_bytes(), MEDIA_TYPES[path.suffix])))
    return routes


def _file(data: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def send_file(request: Request) -> Response:
        del request
        return Response(data, media_type=media_type)

    return send_file


class OtherAddress:
    """Answers every other address of the API, and every other method of a known one."""

    def __init__(self, known: Collection[str], acts: bool) -> None:
        self._known = known
        self._acts = acts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request."""
        name = scope["path_params"]["name"]
        if name in self._known:
            refusal = RefusedRequest(405, "RequestError", f"api/{name} does not take {scope['method']}")
        elif name == "repairs":
            refusal = RefusedRequest(404, "RequestError", f"repairs are found with the program. {READS}")
        elif name in ACTIONS and not self._acts:
            refusal = RefusedRequest(403, "RequestError", READS)
        else:
            refusal = RefusedRequest(404, "RequestError", f"the inspector has no api/{name[:80]}")
        await refusal.response()(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    del request
    return error_response(error)
