"""A proxy in front of a PostgreSQL server that cuts a connection, or delays an answer, at a chosen message."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

BEFORE = "before"
AFTER = "after"
LATE = "late"


class Proxy:
    """Passes messages on, in one thread for each connection.

    Attributes:
        address: what clients connect to.
        connections: how many there were.
        answered: set once the server has answered a message whose answer is late.
        released: to be set so that the client gets it.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        options = conninfo_to_dict(target)
        self.address = f"postgresql://{quote(str(options['user']))}@{host}:{port}/{options['dbname']}?sslmode=disable"
        self.connections = 0
        self.answered, self.released = threading.Event(), threading.Event()
        self._cut: tuple[str, bytes] | None = None
        self._times = self._lost = 0
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self, when: str, text: bytes, times: int = 1) -> None:
        """Cuts the next connections whose client sends a message with a text: before the server gets it, or when the
        server has answered; the client gets no answer. With `LATE` it gets the answer once that is released."""
        self._cut, self._times = (when, text), times

    def lose(self) -> None:
        """Each connection that there is now is cut before its next message."""
        self._lost = self.connections

    @property
    def armed(self) -> bool:
        """Whether a connection is still to be cut."""
        return self._cut is not None

    def refuse(self) -> None:
        """Lets nobody in any more."""
        with suppress(OSError):  # it did before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self) -> None:
        self.refuse()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *values: object) -> None:
        thread = threading.Thread(target=work, args=values, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._start(self._serve, client, self._connect(), self.connections)

    def _connect(self) -> socket.socket:
        options = conninfo_to_dict(self._target)
        host, port = str(options.get("host", "127.0.0.1")), int(options.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(Path(host) / f".s.PGSQL.{port}"))
        return server

    def _serve(self, client: socket.socket, server: socket.socket, number: int) -> None:
        """One batch of messages after the other, as clients wait for the answer to each."""
        with client, server, suppress(OSError, EOFError):
            batch = _exactly(client, 4)
            batch += _exactly(client, struct.unpack("!I", batch)[0] - 4)  # the first message has no type
            while True:
                if number <= self._lost:
                    return
                cut = self._cut if self._cut is not None and self._cut[1] in batch else None
                if cut is not None:
                    self._times -= 1
                    self._cut = cut if self._times else None
                if cut is not None and cut[0] == BEFORE:
                    return
                server.sendall(batch)
                answer = _until(server, b"Z")  # ready for the next one
                if cut is not None and cut[0] == LATE:
                    self.answered.set()
                    self.released.wait()
                elif cut is not None:
                    return
                client.sendall(answer)
                batch = _until(client, b"QSX")  # the ends of a batch
                if batch.endswith(b"X\x00\x00\x00\x04"):
                    server.sendall(batch)
                    return


def _until(source: socket.socket, kinds: bytes) -> bytes:
    """Messages up to the first of some kinds."""
    data = b""
    while True:
        head = _exactly(source, 5)
        data += head + _exactly(source, struct.unpack("!I", head[1:])[0] - 4)
        if head[:1] in kinds:
            return data


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = source.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


@contextmanager
def proxy(target: str) -> Iterator[Proxy]:
    """A proxy in front of the server at an address."""
    between = Proxy(target)
    try:
        yield between
    finally:
        between.close()
