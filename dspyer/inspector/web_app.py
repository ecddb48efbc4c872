"""The inspector as an app: the files of the page, the API below `api/` (its JSON: README.md), and who may ask.

Threats, with what stops each of them:

- A web page on another site sends a request: its `Origin` (or `Sec-Fetch-Site`) is another one, and it lacks the token.
- A name is pointed at this machine (DNS rebinding), so that a foreign page has the right origin: its `Host` is unknown.
- Another user of the machine finds the port: the token is missing.
- A value in a run is HTML or a script: the content security policy runs only the script file of the page.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspyer import Archive
from dspyer.display import PAGE
from dspyer.inspector.json_answers import RefusedError, answered, error_response
from dspyer.inspector.reading import Following, Reading
from dspyer.stores import Store, open_store

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}

READS = "the inspector only reads: give it the program, as in dspyer inspect STORE --program module:graph"
ACTIONS = ("answer", "resume", "stop", "rerun", "copy", "again")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def make_app(store: Any, program: Any, *, token: str | None, hosts: Sequence[str]) -> Starlette:
    """The app of `dspyer.inspector.app`; its `state` has the followers, and the actions if there are programs."""
    if token is not None and not re.fullmatch(r"[\w-]+", token, re.ASCII):
        raise ValueError("token: letters, digits, '-' and '_', at least one: it is a part of an address")
    for host in hosts:
        if not host or name_of(host.lower()) != host.lower():
            raise ValueError(f"hosts={host!r}: names or addresses, without ports: 'ops.example.com', '[::1]'")
    archive = store if isinstance(store, Archive) else Archive(store)
    programs, actions = programs_of(program), None
    if programs:
        from dspyer.inspector.acting import Actions  # only here: it imports DSPy

        (writes, *_) = [writable(one, store, archive) for one in programs.values()]
        actions = Actions(programs, writes)
    following = Following(archive)
    routes = [*Reading(archive, programs).routes(), Route("/follow", answered(following.follow))]
    routes += [] if actions is None else actions.routes()
    known = {route.path.removeprefix("/") for route in routes}
    other = partial(_other_address, known, acts=actions is not None)
    routes.append(Route("/{name:path}", other, methods=METHODS))
    # The files of the page need no token: it reads the token from its own address, which is sent to no server.
    api = Mount("/api", routes=routes, middleware=[Middleware(Guard, partial(token_refusal, token=token))])
    app = Starlette(
        routes=[*page_routes(PAGE), api],
        middleware=[Middleware(Guard, partial(origin_refusal, hosts=frozenset(map(str.lower, hosts))))],
        exception_handlers={HTTPException: lambda _, error: error_response(error)},
    )
    app.state.following, app.state.actions = following, actions
    return app


def programs_of(given: Any) -> dict[str, Any]:
    """The programs that act, by the names of their graphs."""
    found: dict[str, Any] = {}
    for one in given if isinstance(given, list | tuple) else () if given is None else (given,):
        if found.setdefault(name := one.graph.name, one) is not one:
            raise ValueError(f"two programs have a graph of the name {name!r}: which one acts on its runs is not clear")
    return found


def writable(program: Any, store: Any, archive: Archive) -> Store:
    """The store of an archive, to be written: an archive only reads."""
    if not isinstance(store, Archive):
        return open_store(store)
    # An archive opens its store for reading. The program's may be written, if it is the same one.
    own: Store | None = program._store
    if own is None or own.address != archive.address:
        raise ValueError(
            f"the inspector acts on the store of its archive, {archive.address!r}, and the program has "
            f"{'none' if own is None else repr(own.address)}: compile it with this store, or pass the store itself"
        )
    return own


def page_routes(folder: Path) -> list[Route]:
    """One route for each file of the page, read once: a path from outside never becomes the name of a file."""

    def route(path: Path) -> Route:
        address = "/" if path.name == "index.html" else f"/{path.name}"
        return Route(address, Response(path.read_bytes(), media_type=MEDIA_TYPES[path.suffix]), methods=["GET"])

    return [route(path) for path in sorted(folder.iterdir()) if path.suffix in MEDIA_TYPES]


async def _other_address(known: Collection[str], request: Request, *, acts: bool) -> Response:
    """The answer for every other address of the API, and every other method of a known one."""
    name = request.path_params["name"]
    if name in known:
        return RefusedError(405, f"api/{name} does not take {request.method}").response()
    if name in ACTIONS and not acts:
        return RefusedError(403, READS).response()
    return RefusedError(404, f"the inspector has no api/{name[:80]}").response()


# --- who may ask, checked before anything is read

TOKEN_HEADER = b"x-dspyer-token"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every response, refusals included."""

UNSPECIFIED = ("0.0.0.0", "[::]")
"""Names that stand for all addresses of the machine."""


Headers = Sequence[tuple[bytes, bytes]]


class Guard:
    """Middleware that answers a request with its refusal, if there is one, and adds the headers to every response."""

    def __init__(self, app: ASGIApp, refusal_of: Callable[[Headers], RefusedError | None]) -> None:
        self._app = app
        self._refusal_of = refusal_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal_of(scope["headers"]) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal.response())(scope, receive, send_with_headers)


def origin_refusal(headers: Headers, hosts: Collection[str]) -> RefusedError | None:
    """The refusal of a request under another name than `hosts`, or of a page of another origin.

    A name that stands for all addresses of the machine allows every IP address: DNS rebinding needs a name.
    """
    given = _values(headers, b"host")
    if len(given) != 1:  # of two, a proxy and this app might each take another one
        return RefusedError(400, "the request has no Host header, or several", kind="HostError")
    host = given[0].lower()
    name = name_of(host)
    if name not in hosts and not (any(one in UNSPECIFIED for one in hosts) and address_of(name)):
        return RefusedError(
            403,
            f"the inspector is not reached under the name {name!r}: open it as {min(hosts)!r}, or pass the "
            "name: app(..., hosts=[...])",
            kind="HostError",
        )
    for origin in _values(headers, b"origin"):
        # The scheme may differ: a proxy in front ends TLS.
        if origin.lower().partition("://")[2] != host:
            return RefusedError(403, f"a page of {origin!r} may not ask the inspector", kind="OriginError")
    return None


def token_refusal(headers: Headers, token: str | None) -> RefusedError | None:
    """The refusal of a request to the API without the token, or of one that another site has made."""
    given = [value for name, value in headers if name == TOKEN_HEADER]
    # Constant time: how long a comparison takes does not tell how much of a guess is right.
    if token is not None and not (len(given) == 1 and hmac.compare_digest(given[0], token.encode())):
        words = "is wrong" if given else "is missing"
        return RefusedError(
            401,
            f"the token {words}: open the whole address that the inspector printed, up to its end",
            kind="TokenError",
        )
    for site in _values(headers, b"sec-fetch-site"):
        if site not in ("same-origin", "none"):  # "none": typed into the address bar
            return RefusedError(403, "a page of another site may not ask the inspector", kind="OriginError")
    return None


def _values(headers: Headers, wanted: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for name, value in headers if name == wanted]


def name_of(host: str) -> str:
    """The name in a `Host` header, without its port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        address, bracket, port = host.partition("]")
        return address + bracket if not port or port[0] == ":" else host
    return host.partition(":")[0]


def address_of(name: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a name is; None for any other name."""
    try:
        return ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
