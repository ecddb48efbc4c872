"""The options that several commands have, and what their texts mean: times, versions, JSON, answers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from getpass import getuser
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, get_type_hints

import typer

from dspyer.cli.terminal import note, write_json
from dspyer.errors import DspyerError

Record = Mapping[str, Any]


class UsageError(DspyerError):
    """Something given on the command line cannot be done as it is. Nothing was changed."""


# --- times

# A month and a year have no fixed length: who means them gives a date.
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_AGO = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|m|h|d|w)")
TIMES = "a time: 2026-11-22, 2026-11-22T14:09, today, yesterday, or how long ago: 30m, 2h, 3d, 1w"


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """The time that a text means, in the local zone unless it names one. A day is its first moment.

    Example:
        >>> noon = datetime.fromisoformat("2026-11-22T12:00+00:00")
        >>> parse_time("2h", noon).isoformat()
        '2026-11-22T10:00:00+00:00'
    """
    now = now or datetime.now().astimezone()
    word = text.strip().lower()
    today = datetime(now.year, now.month, now.day).astimezone()
    if word == "now":
        return now
    if word == "today":
        return today
    if word == "yesterday":
        before = today.date() - timedelta(days=1)  # 24 hours earlier is another day when the clocks change
        return datetime(before.year, before.month, before.day).astimezone()
    ago = _AGO.fullmatch(word)
    try:
        if ago:
            return now - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no time. Give {TIMES}") from None
    return found if found.tzinfo is not None else found.astimezone()


# --- versions and values


def version_of(text: str) -> int | str:
    """A commit as `Thread` names it: a version for digits, any other text is an id."""
    # Only ASCII digits: `int` takes digits of all scripts. 19 of them are more than any version.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


def parse_value(text: str) -> Any:
    """JSON if the text is JSON, else the text itself.

    Example:
        >>> (parse_value("true"), parse_value("[1]"), parse_value("Ada"),
        ...     parse_value("007"))
        (True, [1], 'Ada', '007')
    """
    try:
        return json.loads(text, parse_constant=_no_constant)  # NaN is a text: no state takes it
    except (ValueError, RecursionError):
        return text


def parse_object(option: str, text: str | None) -> dict[str, Any]:
    """A JSON object: from a file, from stdin for `-`, or the text itself if it begins with a brace."""
    if text is None:
        return {}
    source = "the text" if text.lstrip().startswith("{") else "stdin" if text == "-" else repr(text)
    try:
        content = text if source == "the text" else _read(text).decode("utf-8-sig")  # editors of Windows write a mark
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        hint = "; JSON begins with a brace" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{option}: {source} cannot be read: {reason}{hint}") from error
    try:
        found = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option}: {source} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f'{option}: {source} is no JSON object, which gives values by name: {{"name": value}}')
    return found


def _read(file: str) -> bytes:
    """The bytes of a file, or of stdin for `-`: JSON is UTF-8, whatever the locale says of stdin."""
    if file != "-":
        return Path(file).read_bytes()
    if sys.stdin is None:
        raise ValueError("it is closed")
    return sys.stdin.buffer.read()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def login() -> str | None:
    """The name of the user who runs the command; None if the system knows none, as in some containers."""
    try:
        return getuser()
    except (ImportError, KeyError, OSError):
        return None


def parse_answers(texts: Sequence[str], types: Mapping[str, object]) -> dict[str, Any]:
    """Answers by the key or id of their question, from texts `key=value`; a value is JSON, else the text itself.

    `types` has the types of the answers, as their JSON schemas say, by the keys and ids of the open questions. Where
    that is a text, the value is taken as it is. An id contains the name of a thread, and that may contain `=`: the
    names decide where a key with `=` ends.
    """
    found: dict[str, Any] = {}
    for text in texts:
        ends = [match.start() for match in re.finditer("=", text)]
        known = [end for end in ends if text[:end] in types]
        if not ends or not (known or ends)[0]:
            raise UsageError(f"--answer {text!r}: give the key or id of the question and the answer, key=value")
        end = (known or ends)[0]
        name = text[:end]
        if name in found:
            raise UsageError(f"--answer: {name!r} is given two answers")
        value = text[end + 1 :]
        found[name] = value if types.get(name) == "string" else parse_value(value)
    return found


# --- options


def commit_argument(text: str) -> Any:
    """Tell typer of an argument that names a commit."""
    return typer.Argument(metavar="COMMIT", help=text, show_default=False)


class BudgetOptions(NamedTuple):
    """The options of commands that make a run: what it may spend."""

    cost: Annotated[float | None, typer.Option("--budget-cost", metavar="USD", help="Most US dollars to spend.")] = None
    tokens: Annotated[int | None, typer.Option("--budget-tokens", metavar="N", help="Most tokens to spend.")] = None
    requests: Annotated[int | None, typer.Option("--budget-requests", metavar="N", help="Most requests to LMs.")] = None
    seconds: Annotated[float | None, typer.Option("--budget-seconds", metavar="N", help="Most seconds to take.")] = None


PROGRAM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""MODULE:NAME, as no address is written."""


class CommonOptions(NamedTuple):
    """The options of all commands: where the runs are, and how a command prints."""

    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar="DSPYER_STORE",
            metavar="ADDRESS",
            help="Where the runs are: the path of an SQLite file, or postgresql://...; to read, also MODULE:NAME of a "
            "program with a store.",
        ),
    ] = None
    key_file: Annotated[
        str | None,
        typer.Option(
            "--key-file",
            envvar="DSPYER_STORE_KEY_FILE",
            metavar="FILE",
            help="File with the key of an encrypted store. DSPYER_STORE_KEY may hold the key itself.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False
    unredacted: Annotated[bool, typer.Option("--unredacted", help="Show also what the program of a run hides.")] = False

    def archive(self, program: Any = None) -> Any:
        """The archive of the store, that of a program if one is given, opened for reading."""
        from dspyer.cli.store_access import open_archive

        # A store over others has no address: its program leads to it.
        if program is None and PROGRAM.fullmatch(self.store or "") and not Path(self.store or "").exists():
            from dspyer.cli.programs import program_on

            program = program_on(self.store or "", self._replace(store=None))
        return open_archive(self, program)

    def show(self, record: Record, print_it: Callable[[Any], object]) -> None:
        """Print a record as a line of JSON, or for people."""
        (write_json if self.as_json else print_it)(record)

    def show_all(self, records: Sequence[Record], print_them: Callable[[Any], object], nothing: str) -> None:
        """Print records as lines of JSON, or together for people; `nothing` is what these are told if there is none."""
        if self.as_json:
            for record in records:
                write_json(record)
        elif records:
            print_them(records)
        else:
            note(nothing)


def with_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command with an option for each field of the groups that the function takes, as typer reads its signature.

    All parameters are passed by name, so an option of a group may come before an argument without a default.
    """
    own = signature(function, eval_str=True).parameters
    groups = {name: one.annotation for name, one in own.items() if hasattr(one.annotation, "_fields")}
    flat = {name: (one.annotation, one.default) for name, one in own.items() if name not in groups}
    for group in groups.values():
        hints = get_type_hints(group, include_extras=True)
        flat |= {name: (hints[name], group._field_defaults[name]) for name in group._fields}

    @wraps(function)
    def command(**options: Any) -> Any:
        made = {name: group(*map(options.pop, group._fields)) for name, group in groups.items()}
        return function(**options, **made)

    # typer reads both.
    named = [Parameter(name, Parameter.KEYWORD_ONLY, default=at, annotation=kind) for name, (kind, at) in flat.items()]
    command.__signature__ = Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in named}
    return command
