"""The inspector as a server of its own: its address, its browser, and its end at Ctrl-C."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress
from ipaddress import ip_address

import uvicorn
from starlette.applications import Starlette

PATIENCE = 2
"""Seconds for which requests may take after Ctrl-C."""


class InspectorServer(uvicorn.Server):
    """Ends the streams of events before it waits for requests to end: they would never end by themselves."""

    def __init__(self, app: Starlette, listening: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=PATIENCE
        )
        super().__init__(config)
        self._app = app
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then the server."""
        self._app.state.followers.close()
        await super().shutdown(sockets)


def new_token() -> str:
    """A random text of 256 bits."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address that is bound to."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def names_of(host: str) -> tuple[str, ...]:
    """The names under which a server bound to an address is reached, as `Guard` takes them."""
    name = f"[{host}]" if ":" in host else host
    if is_loopback(host):
        return (name, "127.0.0.1", "localhost", "[::1]")
    return (name, "127.0.0.1", "localhost", "[::1]", socket.gethostname())


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; raises `OSError` if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def serve(
    make_app: Callable[[str, tuple[str, ...]], Starlette],
    *,
    host: str,
    port: int,
    browser: bool,
    say: Callable[[str], object],
    warn: Callable[[str], object],
) -> None:
    """Serve until Ctrl-C. `make_app` gets the token and the names of the server.

    `say` gets the address as its first line, `warn` what else a person should know.
    """
    token = new_token()
    with closing(bound(host, port)) as listener:
        app = make_app(token, names_of(host))
        number = listener.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        shown = {"0.0.0.0": socket.gethostname(), "[::]": socket.gethostname()}.get(name, name)
        address = f"http://{shown}:{number}/#token={token}"

        def listening() -> None:
            say(address)
            if not is_loopback(host):
                warn(
                    f"anyone who can reach {host}, port {number}, and knows the token reads the stored runs"
                    + (" and acts on them" if app.state.actions is not None else "")
                    + "; nothing is encrypted on the way: use an SSH tunnel, or a server with TLS in front"
                )
            if browser:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        try:
            InspectorServer(app, listening).run(sockets=[listener])
        except KeyboardInterrupt:
            pass  # uvicorn raises it again once it has ended
        finally:
            _stop_runs(app, warn)


def _stop_runs(app: Starlette, warn: Callable[[str], object]) -> None:
    actions = app.state.actions
    if actions is not None and actions.running:
        count = actions.running
        warn(
            f"stopping {count} run{'s' * (count > 1)}: what works is finished and committed. Ctrl-C again ends at once"
        )
        actions.close()
