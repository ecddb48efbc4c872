"""The program `dspyer`, also as `python -m dspyer`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; ends the process with its exit code.

    Args:
        arguments: the command and its arguments; by default those of the process.

    Raises:
        SystemExit: always, with the exit code.
    """
    try:
        from dspyer.cli.app import make_command  # only here: an extra installs typer
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "click"):
            raise
        print("dspyer: the command line needs typer: pip install typer", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    make_command().main(None if arguments is None else list(arguments), prog_name="dspyer")


if __name__ == "__main__":
    main()
