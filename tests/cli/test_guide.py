"""The session that the page shows is what the commands print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.pages import FENCE, ROOT, blocks

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
    Path("app.py").write_text("\n\n".join(block.code for block in blocks(GUIDE)))
    monkeypatch.syspath_prepend(".")
    shown = list(session())
    assert len(shown) > 7
    for command, output in shown:
        name, *arguments = shlex.split(command)
        if name == "export":
            for assignment in arguments:
                monkeypatch.setenv(*assignment.split("=", 1))
            continue
        assert name == "dspyer"
        done = cli(*arguments)
        assert tidy(done.out + done.err) == tidy(output), f"{command} prints something else"


def test_the_page_has_each_exit_code(cli: Command) -> None:
    codes = re.findall(r"^\| (\d) \|", GUIDE.read_text(), re.MULTILINE)
    assert codes == re.findall(r"(\d)\s+[a-z]", cli("--help").out.partition("Exit codes:")[2])
