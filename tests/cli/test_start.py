"""How the program starts: what it imports, how much, and what it says without typer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_help_imports_little_and_neither_dspy_nor_pydantic() -> None:
    code = (
        "import sys\n"
        "from dspyer.__main__ import main\n"
        "try:\n    main(['--help'])\n"
        "finally:\n    print([name for name in ('dspy', 'litellm', 'pydantic', 'rich') if name in sys.modules])\n"
        "    print(len(sys.modules))"
    )
    done = python(code)
    *_, heavy, count = done.stdout.splitlines()
    assert heavy == "[]", done.stderr
    assert int(count) < 250  # modules, and not seconds: those depend on the machine. DSPy brings more than a thousand


def test_commands_that_read_import_no_dspy(stored_file: Path) -> None:
    reading = [
        ["runs"], ["threads"], ["show", "t-2"], ["show", "t-2", "1"], ["log", "t-2"], ["diff", "t-2", "0", "2"],
        ["blame", "t-2"], ["stats", "t-2"], ["graph", "t-2"],
    ]  # fmt: skip
    code = (
        "import json, sys\n"
        "from dspyer.__main__ import main\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    try:\n        main(command)\n"
        "    except SystemExit as ended:\n        assert not ended.code, command\n"
        "print([name for name in ('dspy', 'litellm', 'rich') if name in sys.modules])"
    )
    done = python(code, json.dumps([[*command, "--store", str(stored_file)] for command in reading]))
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_it_is_the_same_program_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "dspyer", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0.5.0")


def test_without_typer_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dspyer.__main__ import main

    monkeypatch.setitem(sys.modules, "typer", None)  # importing it raises ImportError
    for name in [name for name in sys.modules if name.startswith("dspyer.cli")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as ended:
        main(["runs"])
    assert ended.value.code == 2
    assert "pip install typer" in capsys.readouterr().err
