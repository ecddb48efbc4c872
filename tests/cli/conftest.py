"""Runs commands in this process: a process of their own costs a second."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dspyer.__main__ import main
from dspyer.stores import SQLite
from tests.cli import orders


class Done(NamedTuple):
    """What a command has printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line, parse_constant=pytest.fail) for line in self.out.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        (found,) = self.records
        return found


Command = Callable[..., Done]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in an empty folder, whose store is `runs.db` and whose program is the orders."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "DSPYER_STORE_KEY", "DSPYER_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DSPYER_STORE", "runs.db")
    monkeypatch.setenv("DSPYER_PROGRAM", orders.GRAPH)
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments: str, stdin: str | bytes = "", encoding: str = "utf-8") -> Done:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        return Done(int(ended.value.code or 0), printed.out, printed.err)

    return command


def names_of_commands(cli: Command) -> list[str]:
    """All commands, in the order in which the help lists them."""
    return re.findall(r"^  ([a-z]+) {2,}[A-Z]", cli("--help").out, re.MULTILINE)


@pytest.fixture(scope="session")
def stored_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("cli") / "runs.db"
    with SQLite(file) as store:
        program = orders.graph.compile(store=store)
        assert program.thread("t-1").run({"text": "hello"}).status == "interrupted"
        assert program.thread("t-2").run({"text": "hi"}).status == "interrupted"
        assert program.thread("t-2").resume({"pay": True}).status == "completed"
        assert program.thread("t-3").run({"text": "boom"}).status == "failed"
    return file


@pytest.fixture
def stored(cli: Command, stored_file: Path) -> Command:
    """The same with three threads: `t-1` waits for an answer, `t-2` has completed, `t-3` has failed."""
    shutil.copyfile(stored_file, "runs.db")
    return cli
