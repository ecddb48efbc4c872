"""The session that the guide shows is what the commands print, and its tables have every command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command, names_of_commands
from tests.test_docs_examples import FENCE, ROOT, blocks

GUIDE = ROOT / "docs" / "command-line.md"


def session() -> Iterator[tuple[str, str]]:
    """Each command of the `console` blocks, with the output that the page shows."""
    for fence in FENCE.finditer(GUIDE.read_text()):
        if fence["language"] == "console":
            for part in re.split(r"^\$ ", fence["body"], flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield command, output


# Times, durations and random ids differ from run to run, and with them the width of columns and where a text is cut.
CHANGING = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|[\d.]+ (µs|ms|s|min)\b|(?<![\w-])[\w-]{12}(?![\w-])|,? *…| +")


def tidy(output: str) -> list[str]:
    return [CHANGING.sub(" ", line).strip() for line in output.splitlines() if line.strip()]


def test_the_session(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = blocks(GUIDE)
    Path("app.py").write_text(program.code)
    monkeypatch.syspath_prepend(".")
    shown = list(session())
    assert len(shown) > 10
    for command, output in shown:
        name, *arguments = shlex.split(command)
        if name == "export":
            for assignment in arguments:
                monkeypatch.setenv(*assignment.split("=", 1))
            continue
        assert name == "dspyer"
        done = cli(*arguments)
        assert tidy(done.out + done.err) == tidy(output), f"{command} prints something else"


def test_the_tables_have_every_command(cli: Command) -> None:
    names = names_of_commands(cli)
    text = GUIDE.read_text()
    rows = re.findall(r"^\| `(\w+)[^|`]*` \| [^|]+ \| `[\w.]+`", text, re.MULTILINE)
    assert rows == names
    in_scripts = text[text.index("a line is") : text.index("exit code")]
    assert {name for name in re.findall(r"`(\w+)", in_scripts) if name in names} == {*names}
    codes = re.findall(r"^\| (\d) \|", text, re.MULTILINE)
    assert codes == re.findall(r"(\d)\s+[a-z]", cli("--help").out.partition("Exit codes:")[2])
