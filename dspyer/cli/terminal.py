"""Output of the commands: tables, fields and lines for people, JSON lines for programs, notes on stderr.

Every text of a run may hold anything: names, values and errors are shown with their control characters as escapes, so
that none reaches the terminal. JSON lines are ASCII for the same reason.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any, NamedTuple, TextIO

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
ZERO_WIDTH_JOINER = "\u200d"  # inside of emoji; it moves nothing


class Styled(NamedTuple):
    """A text and its colour or weight in a terminal, a key of `STYLES`."""

    text: str
    style: str = ""


Cell = str | Styled


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: its heading.
        cell: makes the cell of a record.
        right: whether it is aligned to the right, as numbers are.
        least: characters to which it may shrink; 0 for a column that is never cut.
    """

    title: str
    cell: Callable[[Any], Cell]
    right: bool = False
    least: int = 0


# --- text that is safe to print


def visible(text: str) -> str:
    """The text with control characters, direction marks and invalid characters as escapes: it cannot move the cursor.

    Example:
        >>> print(visible("a\\x1b[2Jb\\n"))
        a\\x1b[2Jb\\n
    """
    if text.isprintable():
        return text
    return "".join([char if _is_shown(char) else char.encode("unicode_escape").decode() for char in text])


def _is_shown(char: str) -> bool:
    return char.isprintable() or char == ZERO_WIDTH_JOINER or unicodedata.category(char) == "Zs"


def shell_word(text: str) -> str:
    """The text as one word of a shell, with control characters as escapes of `$'...'`.

    Example:
        >>> print(shell_word("a b"), shell_word("a\\x1b[2J"))
        'a b' $'a\\x1b[2J'
    """
    if visible(text) == text:
        return shlex.quote(text)
    return "$'" + visible(text.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def width_of(text: str) -> int:
    """The columns of a terminal that a text takes: two for wide characters, none for combining ones.

    Example:
        >>> width_of("日本"), width_of("e\\u0301")
        (4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """The beginning of a text in at most `width` columns, with an ellipsis if something is missing.

    Example:
        >>> cut("a long name", 7)
        'a long…'
    """
    if width_of(text) <= width:
        return text
    used, kept = 0, 0
    for char in text:
        used += _char_width(char)
        if used > width - 1:
            break
        kept += 1
    return f"{text[:kept]}…"


# --- the streams


def shows_colours(stream: TextIO) -> bool:
    """True if a stream is a terminal that shows colours, and the user has not asked for none (no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    with suppress(AttributeError, ValueError):  # a stream that is closed or was replaced
        return stream.isatty()
    return False


def columns_of_terminal() -> int:
    """The width for tables: of the terminal, or `COLUMNS`; 80 in a pipe."""
    return max(1, shutil.get_terminal_size((80, 24)).columns)


class OutputError(Exception):
    """stdout cannot be written, as on a full disk. What the command has done is done."""


def write(text: str) -> None:
    """Write a line to stdout. A reader that has closed the pipe ends the output without an error.

    Raises:
        OutputError: if stdout cannot be written.
    """
    try:
        _write_line(text, sys.stdout)
    except OSError as error:
        raise OutputError(error.strerror) from error


def _write_line(text: str, stream: TextIO | None) -> None:
    if stream is None:  # the process was started without it
        return
    try:
        stream.write(f"{text}\n")
    except UnicodeEncodeError:  # a terminal of another encoding must not end the command
        encoding = stream.encoding or "ascii"
        stream.write(f"{text.encode(encoding, 'backslashreplace').decode(encoding)}\n")
    except BrokenPipeError:
        discard_output()


def flush() -> None:
    """Write what is still buffered.

    Raises:
        OutputError: if stdout cannot be written.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            discard_output()
        except OSError as error:
            if stream is sys.stdout:
                discard_output()  # the interpreter would try it again at its end
                raise OutputError(error.strerror) from error
        except ValueError:  # it is closed
            continue


def discard_output() -> None:
    """Send all further output to nowhere: the reader of the pipe has gone, and the interpreter flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError, AttributeError):  # a stream without a file has nothing to flush
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def note(text: str) -> None:
    """Write a line for people to stderr."""
    with suppress(OSError):  # there is no other place to say it
        _write_line("\n".join(visible(line) for line in text.splitlines()), sys.stderr)


def paint(cell: Styled, text: str | None = None) -> str:
    """A cell as stdout shows it, in its style if there are colours; `text` is what is shown of it."""
    shown = cell.text if text is None else text
    # Asked for each cell, and not kept: stdout is another stream while a run prints.
    return f"\x1b[{STYLES[cell.style]}m{shown}\x1b[0m" if cell.style and shows_colours(sys.stdout) else shown


# --- JSON lines


def write_json(record: Mapping[str, Any]) -> None:
    """Write a record as one line of JSON, in ASCII.

    Raises `ValueError` for what JSON does not have: records are made by `to_dict()`, which has no such value.
    """
    write(json.dumps(record, allow_nan=False))


# --- tables and fields


def write_table(columns: Sequence[Column], records: Sequence[Any], remark: Callable[[Any], str] | None = None) -> None:
    """Write a table that fits the terminal: columns are cut that may be; if that is not enough, a block for each row.

    `remark` gives the line below a row, "" for none.
    """
    body = [[_visible_cell(column.cell(record)) for column in columns] for record in records]
    remarks = [visible(remark(record)) if remark is not None else "" for record in records]
    room = columns_of_terminal()
    widths = _fitted(columns, body, room)
    # Blocks have no heads: each of their lines begins with the name of its column.
    if widths is not None:
        write(_line([Styled(column.title, "bold") for column in columns], columns, widths))
    for number, (row, below) in enumerate(zip(body, remarks, strict=True)):
        if widths is not None:
            write(_line(row, columns, widths))
            if below:
                write(f"  {paint(Styled(below, 'dim'), cut(below, room - 2))}")
        else:
            if number:
                write("")
            for column, cell in zip(columns, row, strict=True):
                if cell.text:
                    write(f"{column.title.lower()}: {paint(cell)}")
            if below:
                write(below)


def _fitted(columns: Sequence[Column], body: Sequence[Sequence[Styled]], room: int) -> list[int] | None:
    """The widths of the columns, of which the widest ones are cut first; None if they do not fit."""
    titles = [width_of(column.title) for column in columns]
    # None is wider than the terminal, so that the loop is short.
    widths = [min(room, max([title, *(width_of(row[at].text) for row in body)])) for at, title in enumerate(titles)]
    while sum(widths) + 2 * (len(columns) - 1) > room:
        able = [at for at, column in enumerate(columns) if column.least and widths[at] > column.least]
        if not able:
            return None
        widths[max(able, key=widths.__getitem__)] -= 1
    return widths


def _line(cells: Sequence[Styled], columns: Sequence[Column], widths: Sequence[int]) -> str:
    found = []
    for at, (cell, column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        shown = cut(cell.text, width)
        space = " " * (width - width_of(shown))
        last = at == len(columns) - 1
        found.append(f"{space}{paint(cell, shown)}" if column.right else f"{paint(cell, shown)}{'' if last else space}")
    return "  ".join(found).rstrip()


def write_fields(fields: Iterable[tuple[str, Cell]], indent: int = 0) -> None:
    """Write names and values, one pair a line, the values below each other and cut at the width of the terminal."""
    pairs = [(visible(name), _visible_cell(value)) for name, value in fields]
    room = max(20, columns_of_terminal()) - indent
    widest = min(max([width_of(name) for name, _ in pairs], default=0), room // 2)
    for name, value in pairs:
        label = cut(name, widest)
        space = " " * (widest - width_of(label) + 2)
        shown = cut(value.text, room - widest - 2)
        write(f"{' ' * indent}{label}{space}{paint(value, shown)}".rstrip())


def write_text(text: str) -> None:
    """Write the lines of a text."""
    for line in text.splitlines():
        write(visible(line))


def write_wrapped(cell: Cell, indent: int = 0, one_line: bool = False) -> None:
    """Write a text in as many lines as it takes; with `one_line`, only as much as one line holds."""
    safe = _visible_cell(cell)
    room = max(10, columns_of_terminal() - indent)
    lines = [cut(safe.text, room)] if one_line else wrap(safe.text, room, subsequent_indent="  ") or [""]
    for line in lines:
        write(f"{' ' * indent}{paint(safe, line)}")


def _visible_cell(cell: Cell) -> Styled:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return Styled(visible(text), style)


# --- values and times


def value_text(value: object) -> str:
    """A value in JSON form on one line; what JSON does not have is shown without its `$type`.

    Example:
        >>> value_text({"seen": {"$type": "model", "class": "a:B",
        ...     "value": {"c": "é"}}})
        '{"seen": {"c": "é"}}'
    """
    return json.dumps(_readable(value), ensure_ascii=False, default=str)


def _readable(value: Any) -> Any:
    if isinstance(value, Mapping):
        if {"$type", "value"} <= value.keys():  # a set is a list to a reader, a model the dict of its fields
            return _readable(value["value"])
        return {key: _readable(part) for key, part in value.items()}
    return [_readable(part) for part in value] if isinstance(value, list | tuple) else value


def time_text(time: float | str | None) -> str:
    """A time (seconds since the epoch, or ISO 8601) in the local zone; "" for none."""
    if time is None:
        return ""
    found = datetime.fromisoformat(time) if isinstance(time, str) else datetime.fromtimestamp(time, UTC)
    return found.astimezone().strftime("%Y-%m-%d %H:%M:%S")
