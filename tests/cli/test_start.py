"""How the program starts: what it imports, how much, and what it says without typer."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import dspyer
from dspyer.__main__ import main

START = """
import json, sys
before = len(sys.modules)
from dspyer.__main__ import main

def imported(command, *names):
    try:
        main(command)
    except SystemExit as ended:
        assert not ended.code, command
    return [name for name in names if name in sys.modules]

assert imported(["--help"], "dspy", "litellm", "pydantic", "rich") == []
count = len(sys.modules) - before
for command in json.loads(sys.argv[1]):
    assert imported(command, "dspy", "litellm", "rich") == [], command
print(count)
"""


@pytest.mark.slow("a real process, since what it imports is counted")
def test_help_imports_little_and_commands_that_read_import_no_dspy(stored_file: Path) -> None:
    reading = [
        ["runs"], ["threads"], ["show", "t-2"], ["show", "t-2", "1"], ["log", "t-2"], ["diff", "t-2", "0", "2"],
        ["blame", "t-2"], ["stats", "t-2"], ["graph", "t-2"], ["questions"], ["overview"], ["compare", "t-1", "t-2"],
    ]  # fmt: skip
    commands = json.dumps([[*command, "--store", str(stored_file)] for command in reading])
    done = subprocess.run([sys.executable, "-c", START, commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Modules, and not seconds: those depend on the machine. DSPy brings more than a thousand.
    assert int(done.stdout.splitlines()[-1]) < 180


def test_it_is_the_same_program_as_a_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dspyer", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(Path(dspyer.__file__).with_name("__main__.py")), run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out.strip()) == (0, "0.5.0")


def test_without_typer_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)  # importing it raises ImportError
    for name in [name for name in sys.modules if name.startswith("dspyer.cli")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as ended:
        main(["runs"])
    assert ended.value.code == 2
    assert "pip install typer" in capsys.readouterr().err
