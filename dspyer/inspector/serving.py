"""The inspector as a server of its own: its address, its browser, and its end at Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette

from dspyer.display import count_of
from dspyer.inspector import LOOPBACK
from dspyer.inspector.web_app import UNSPECIFIED, address_of, make_app

if TYPE_CHECKING:
    from dspyer import CompiledGraph

logger = logging.getLogger("dspyer")

PATIENCE = 2
"""Seconds for which requests may take after Ctrl-C."""


class InspectorServer(uvicorn.Server):
    """Ends with its streams of events and its runs, at Ctrl-C and at SIGTERM, which ends the process after it."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=PATIENCE
        )
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, which never end by themselves, then the server, then the runs that it has begun."""
        self._app.state.following.closed = True  # uvicorn waits for open responses first
        await super().shutdown(sockets)
        actions = self._app.state.actions
        count = 0 if actions is None else len(actions.workers)
        if not count:
            return
        logger.warning("stopping %s: the nodes that work are finished first, and committed", count_of(count, "run"))
        stopping = threading.Thread(target=actions.close, daemon=True)
        stopping.start()
        while stopping.is_alive() and not self.force_exit:  # noqa: ASYNC110 - a second Ctrl-C sets it, in a signal handler
            await asyncio.sleep(0.02)


def is_loopback(host: str) -> bool:
    """True if only this machine reaches an address that is bound to."""
    found = address_of(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def serve(
    store: Any,
    program: CompiledGraph | Sequence[CompiledGraph] | None,
    *,
    host: str,
    port: int,
    browser: bool,
    say: Callable[[str], object],
) -> None:
    """Serve until Ctrl-C; `say` gets the address of the page."""
    token = secrets.token_urlsafe(32)  # 256 bits
    name, own = f"[{host}]" if ":" in host else host, () if is_loopback(host) else (socket.gethostname(),)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.create_server((host, port), family=family)) as listener, ExitStack() as after:
        app = make_app(store, program, token=token, hosts=(name, *LOOPBACK, *own))
        number = listener.getsockname()[1]
        shown = socket.gethostname() if name in UNSPECIFIED else name
        address = f"http://{shown}:{number}/#token={token}"
        if own:
            logger.warning(
                "anyone who can reach %s, port %s, and knows the token reads the stored runs%s; nothing is encrypted "
                "on the way: use an SSH tunnel, or a server with TLS in front",
                host,
                number,
                " and acts on them" if program else "",
            )
        # Before the server runs: the socket listens already, and who connects waits until it does.
        with suppress(KeyboardInterrupt):  # uvicorn raises it again once it has ended
            if browser:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
            # The record of a run of 10,000 steps makes a million objects, none of them garbage: a third of its time.
            after.callback(gc.set_threshold, *gc.get_threshold())
            gc.set_threshold(200_000, 10, 10)
            say(address)
            InspectorServer(app).run(sockets=[listener])
