"""Who may ask, checked before anything is read: the `Host`, the `Origin`, and the token of each request.

Threats, with what stops each of them:

- A web page on another site sends a request: its `Origin` (or `Sec-Fetch-Site`) is another one, and it lacks the token.
- A name is pointed at this machine (DNS rebinding), so that a foreign page has the right origin: its `Host` is unknown.
- Another user of the machine finds the port: the token is missing.
- A value in a run is HTML or a script: the content security policy runs only the script file of the page.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from ipaddress import ip_address

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dspyer.inspector.json_answers import RefusedRequest

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


class Guard:
    """Middleware around the whole app: refuses foreign hosts and origins, and adds the headers.

    Args:
        app: what it protects.
        hosts: the names under which the app is reached. One that stands for all addresses of the machine allows every
            IP address as a name: DNS rebinding needs a name.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(map(str.lower, hosts))
        self._any_address = any(host in UNSPECIFIED for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope["headers"])
        answer = self._app if refusal is None else refusal.response()
        await answer(scope, receive, send_with_headers)

    def _refusal(self, headers: Sequence[tuple[bytes, bytes]]) -> RefusedRequest | None:
        hosts = _values(headers, b"host")
        if len(hosts) != 1:
            return RefusedRequest(400, "HostError", "the request has no Host header, or several")
        host = hosts[0].lower()
        name = name_of(host)
        if name not in self._hosts and not (self._any_address and _is_address(name)):
            return RefusedRequest(
                403,
                "HostError",
                f"the inspector is not reached under the name {name!r}: open it as {min(self._hosts)!r}, or pass the "
                "name: app(..., hosts=[...])",
            )
        for origin in _values(headers, b"origin"):
            if origin.lower().partition("://")[2] != host:
                return RefusedRequest(403, "OriginError", f"a page of {origin!r} may not ask the inspector")
        return None


class TokenGuard:
    """Middleware around the API: refuses requests without the token, and those that another site has made."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        refusal = self._refusal(scope["headers"]) if scope["type"] == "http" else None
        answer = self._app if refusal is None else refusal.response()
        await answer(scope, receive, send)

    def _refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> RefusedRequest | None:
        given = [value for name, value in headers if name == TOKEN_HEADER]
        # Constant time: how long a comparison takes does not tell how much of a guess is right.
        if self._token is not None and not (len(given) == 1 and hmac.compare_digest(given[0], self._token)):
            words = "is wrong" if given else "is missing"
            return RefusedRequest(
                401,
                "TokenError",
                f"the token {words}: open the whole address that the inspector printed, up to its end",
            )
        for site in _values(headers, b"sec-fetch-site"):
            if site not in ("same-origin", "none"):
                return RefusedRequest(403, "OriginError", "a page of another site may not ask the inspector")
        return None


def _values(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for name, value in headers if name == wanted]


def name_of(host: str) -> str:
    """The name in a `Host` header, without its port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        address, bracket, port = host.partition("]")
        return address + bracket if not port or port[0] == ":" else host
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
