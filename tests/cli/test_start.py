"""How the program starts: what it imports, how fast, and what it says without typer."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_help_starts_at_once_and_imports_neither_dspy_nor_pydantic() -> None:
    code = (
        "import sys\n"
        "from dspyer.__main__ import main\n"
        "try:\n    main(['--help'])\n"
        "finally:\n    print([name for name in ('dspy', 'litellm', 'pydantic', 'rich') if name in sys.modules])"
    )
    began = time.perf_counter()
    done = python(code)
    took = time.perf_counter() - began
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert took < 0.4  # it takes 0.1 s


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
    assert "pip install 'dspyer[cli]'" in capsys.readouterr().err
