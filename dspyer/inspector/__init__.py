"""The inspector: a web page that shows stored runs, and acts on them if it has their program.

`app` is the ASGI application, to be mounted in one of the user's own; `inspect` serves it alone. What the page is made
of is in `dspyer/display/page`. Nothing here is imported by a program that only runs graphs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from dspyer import Archive, CompiledGraph
    from dspyer.stores import Store

__all__ = ["app", "inspect"]

MISSING = "the inspector needs Starlette and uvicorn: pip install starlette uvicorn"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the address; flushed, since a pipe may read it


def app(
    store: Archive | Store | str | os.PathLike[str],
    program: CompiledGraph | Sequence[CompiledGraph] | None = None,
    *,
    token: str | None,
    hosts: Sequence[str] = LOOPBACK,
) -> Starlette:
    """The inspector as an ASGI application, to be mounted in your own: `Mount("/runs", dspyer.inspector.app(...))`.

    Every request for data must bring the token, which is compared in constant time and is part of no address that a
    server or a log sees. Refused are also a foreign `Host` or `Origin`, a `Sec-Fetch-Site` of another site, and an
    action that is no POST of JSON. The page runs no script but its own file, loads nothing from elsewhere, and is not
    cached. The inspector knows no users: who gets through sees all threads of the store. A page that is open keeps a
    request open: limit the end of your server, for example `uvicorn.run(app, timeout_graceful_shutdown=5)`.

    Args:
        store: what it shows: the address of a store, a `Store`, or an `Archive`, which may have a key.
        program: the compiled graph with which it acts, or several: answer, resume, stop, rerun, copy, run a prompt
            again. A run is acted on by the program whose graph has the name of its graph; without one it is only read.
        token: what every request for data must have in its header `X-Dspyer-Token`; the page takes it from the fragment
            of its address, `#token=...`. None for no token: then everyone who reaches the app reads and, with a
            `program`, acts. Pass None only if the application around it checks who asks.
        hosts: the names under which it is reached, without ports; a request with another `Host` is refused. This keeps
            out web pages whose name was pointed at this machine (DNS rebinding).

    Returns:
        A `starlette.Starlette`.

    Raises:
        ImportError: if a package is missing: `pip install starlette uvicorn`.
        ValueError: for a host with a port, a token with other characters than letters, digits, `-` and `_`, two
            programs whose graphs have one name, or an `Archive` of another store than the program's.

    Example:
        >>> import dspyer.inspector
        >>> from dspyer.stores import Memory
        >>> page = dspyer.inspector.app(Memory(), token="b3tVkuVCV0nmZ1q2XAmdWg")
        >>> type(page).__name__
        'Starlette'
    """
    try:
        from dspyer.inspector.web_app import make_app
    except ImportError as error:
        raise ImportError(MISSING) from error
    return make_app(store, program, token=token, hosts=hosts)


def inspect(
    store: Archive | Store | str | os.PathLike[str],
    program: CompiledGraph | Sequence[CompiledGraph] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    browser: bool = True,
    say: Callable[[str], object] = _say,
) -> None:
    """Serves the inspector until Ctrl-C; what `dspyer inspect` runs.

    At the end, runs that were begun from the page are stopped as by `close()` of their stream: nodes that work are
    finished and committed, and `resume` continues them.

    Args:
        store: as in `app`.
        program: as in `app`.
        host: the address to bind to. Any other than a loopback address is reached by other machines: there is a warning
            then, and no encryption.
        port: its port; 0 for one that is free.
        browser: whether to open the page in a browser.
        say: gets one line, the address of the page with its token, once the server listens.

    Raises:
        ImportError: if a package is missing: `pip install starlette uvicorn`.
        OSError: if the port is taken, or the host is no address of this machine.
        StoreError: if the store cannot be opened.

    Example:
        >>> import dspyer.inspector
        >>> dspyer.inspector.inspect("runs.db", browser=False)  # doctest: +SKIP
        http://127.0.0.1:49152/#token=...
    """
    try:
        from dspyer.inspector.serving import serve
    except ImportError as error:
        raise ImportError(MISSING) from error

    serve(store, program, host=host, port=port, browser=browser, say=say)
