"""Commands that write a thread to a file and read it back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspyer.cli.arguments import JsonOption, KeyFileOption, StoreOption, ThreadArgument, UsageError
from dspyer.cli.store_access import open_existing, open_writable
from dspyer.cli.terminal import visible, write, write_json
from dspyer.errors import ThreadError

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="File of JSON lines.", show_default=False)]


def export(
    thread: ThreadArgument,
    file: FileArgument,
    program: Annotated[
        str | None,
        typer.Option(
            "--program", metavar="MODULE:NAME", help="Redact as this program does; such a file cannot be loaded."
        ),
    ] = None,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a thread to a file, with everything that it holds. Handle the file like the store."""
    if program is None:
        from dspyer.persistence.checked_store import CheckedStore  # only here: `dspyer --help` needs none of it
        from dspyer.threads.export import export as write_thread

        with open_existing(store, key_file) as opened:
            checked = CheckedStore(opened)
            row = checked.thread(thread)
            if row is None:
                raise ThreadError(f"there is no thread {thread!r} in {opened.address}")
            digest = write_thread(checked, row, file)
    else:
        from dspyer.cli.programs import existing_thread, program_on  # only here: it imports DSPy

        digest = existing_thread(program_on(program, store, key_file), thread).export(file)
    if as_json:
        write_json({"thread": thread, "file": str(file), "digest": digest})
    else:
        write(f"wrote {visible(thread)} to {visible(str(file))}, digest {digest}")


def load(
    thread: ThreadArgument,
    file: FileArgument,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a thread from an exported file. The store is created if there is none."""
    from dspyer.persistence.checked_store import CheckedStore  # only here, as above
    from dspyer.threads.export import load as read_thread

    if store is None:
        raise UsageError("no store: give --store, the path of a file or postgresql://..., or set DSPYER_STORE")
    opened = open_writable(store, key_file, create=True)
    try:
        read_thread(CheckedStore(opened), thread, file)
    finally:
        opened.close()
    if as_json:
        write_json({"thread": thread, "file": str(file)})
    else:
        write(f"loaded {visible(thread)} from {visible(str(file))}")
