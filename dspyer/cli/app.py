"""The app: the table of commands, their help, and what the end of a command means to the shell."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache, wraps
from typing import Annotated, Any

import typer
from typer.main import get_command

from dspyer import __version__
from dspyer.cli import commands
from dspyer.cli.arguments import with_groups
from dspyer.cli.terminal import OutputError, discard_output, flush, note, write
from dspyer.errors import DspyerError, StoreError, error_text


class ExitCode(IntEnum):
    """The codes that the shell gets."""

    COMPLETED = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 3
    STOPPED = 4
    STORE = 5
    NO_OUTPUT = 74
    """stdout could not be written; `EX_IOERR` of sysexits.h. What the command did is done."""
    CTRL_C = 130
    """Ctrl-C while nothing ran; a run that it stops is `STOPPED`."""


EXIT_CODES = (
    "Exit codes: 0 success, 1 the run failed, 2 refused: nothing was changed, 3 the run waits for answers, "
    "4 the run was stopped, 5 the store failed."
)

REFUSALS = (DspyerError, LookupError, ValueError, TypeError, OSError, ImportError)
"""The errors of a command for a bad name, limit, version or file, or for an extra that is not installed."""

Function = Callable[..., str | None]
"""A command. If it made a run, it returns how that ended: the name of an `ExitCode`."""

COMMANDS: tuple[Function, ...] = (
    *(
        commands.runs,
        commands.threads,
        commands.due,
        commands.questions,
        commands.show,
        commands.log,
        commands.diff,
        commands.blame,
    ),
    *(commands.stats, commands.overview, commands.compare, commands.examples, commands.graph, commands.inspect),
    *(commands.run, commands.resume, commands.rerun, commands.stop),
    *(commands.copy, commands.prune, commands.export, commands.load),
)
"""In the order of the help: what looks at stored runs, what runs a program, what changes threads."""


@cache
def make_command() -> Any:
    """The app with all commands as one command, which is built once: `main(args, prog_name)` runs it."""
    app = typer.Typer(
        name="dspyer",
        help="Run dspyer programs, and look at the runs that a store keeps.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help starts in half the time
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=app.info.help)(_options)
    for function in COMMANDS:
        app.command(function.__name__)(_guarded(with_groups(function)))
    return get_command(app)


def _print_version(asked: bool) -> None:
    if asked:
        write(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """The options of the app itself."""


def _guarded(function: Function) -> Callable[..., None]:
    """A command whose errors become one line on stderr and an exit code."""

    @wraps(function)
    def command(**options: Any) -> None:
        try:
            code = _code_of(function, options)
            flush()  # here, and not at exit, where an error of stdout could not be told
        except OutputError as error:
            code = ExitCode.NO_OUTPUT
            note(f"dspyer: the command is done, but stdout cannot be written: {error}")
            discard_output()
        raise typer.Exit(code)

    return command


def _code_of(function: Function, options: Mapping[str, Any]) -> ExitCode:
    """Run a command; return how it ended."""
    try:
        return ExitCode[(function(**options) or "completed").upper()]
    except OutputError:
        raise
    except KeyboardInterrupt:
        return ExitCode.CTRL_C
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        _report(error)
        if isinstance(error, StoreError):  # it is a DspyerError, too
            return ExitCode.STORE
        return ExitCode.USAGE if isinstance(error, REFUSALS) else ExitCode.FAILED


def _report(error: Exception) -> None:
    if os.environ.get("DSPYER_TRACEBACK"):
        traceback.print_exception(error, file=sys.stderr)
        return
    # The text of a KeyError is the `repr` of its key.
    text = error_text(error.args[0]) if isinstance(error, KeyError) and error.args else error_text(error)
    kind = "" if isinstance(error, REFUSALS) else f"{type(error).__name__}: "
    note(f"dspyer: {kind}{text}")
    for line in getattr(error, "__notes__", ()):
        note(f"  {line}")
