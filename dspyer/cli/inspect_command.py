"""The command that serves the inspector."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from dspyer.cli.arguments import JsonOption, KeyFileOption, StoreOption
from dspyer.cli.terminal import flush, note, write, write_json


def inspect(
    address: Annotated[
        str | None,
        typer.Argument(metavar="STORE", help="The store, instead of --store.", show_default=False),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option("--program", metavar="MODULE:NAME", help="Act with this program; otherwise it only reads."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to bind to; not loopback: others reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0 for a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show stored runs in a web page, until Ctrl-C. The first line is its address."""
    from dspyer.cli.store_access import open_archive
    from dspyer.inspector import inspect as serve

    def say(page: str) -> None:
        if as_json:
            write_json({"address": page})
        else:
            write(page)
        flush()  # a pipe may read it

    where = address if address is not None else store
    if program is None:
        with open_archive(where, key_file) as archive, suppress(KeyboardInterrupt):
            serve(archive, host=host, port=port, browser=not no_browser, say=say, warn=note)
        return
    from dspyer.cli.programs import archive_of, program_on

    loaded = program_on(program, where, key_file)
    with archive_of(loaded) as archive, suppress(KeyboardInterrupt):
        serve(archive, loaded, host=host, port=port, browser=not no_browser, say=say, warn=note)
