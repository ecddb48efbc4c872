"""An ASGI app behind a real server: uvicorn on loopback, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal

import uvicorn

PATIENCE = 20.0  # seconds after which a test gives up
FAREWELL = 0.1  # seconds that an open response has to end once the server stops: a page follows its run for ever

# uvicorn looks each 0.1 s whether it should end, and whether its connections have.
_server_module: Any = uvicorn.server
_server_module.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 10)})


class Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # whose response did not end in time: uvicorn leaves it
            connection.transport.abort()
        await asyncio.sleep(0)  # the loop closes them now, and ends then


@contextmanager
def served(app: Any, port: int = 0, lifespan: Literal["on", "off"] = "off") -> Iterator[str]:
    """Serves an app during the block, at any free port if none is given; gives its address: `"http://127.0.0.1:49152"`."""
    options: dict[str, Any] = {"log_level": "error", "lifespan": lifespan, "timeout_graceful_shutdown": FAREWELL}
    server = Server(uvicorn.Config(app, port=port, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert server.listens.wait(PATIENCE)
    host, taken = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{taken}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
