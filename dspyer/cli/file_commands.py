"""Commands that write a thread to a file and read it back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspyer.cli.arguments import JsonOption, KeyFileOption, StoreOption, ThreadArgument
from dspyer.cli.terminal import visible, write, write_json

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="File of JSON lines.", show_default=False)]


def export(
    thread: ThreadArgument,
    file: FileArgument,
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a thread to a file, with everything that it holds. Handle the file like the store."""
    from dspyer.cli.store_access import export_thread

    digest = export_thread(store, key_file, thread, file)
    if as_json:
        write_json({"thread": thread, "file": str(file), "digest": digest})
    else:
        write(f"wrote {visible(thread)} to {visible(str(file))}, digest {digest}")


def load(
    thread: ThreadArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What export has written.", exists=True, dir_okay=False)],
    store: StoreOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a thread from an exported file. The store is created if there is none."""
    from dspyer.cli.store_access import load_thread

    load_thread(store, key_file, thread, file)
    if as_json:
        write_json({"thread": thread, "file": str(file)})
    else:
        write(f"loaded {visible(thread)} from {visible(str(file))}")
