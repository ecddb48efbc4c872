"""The environments of the other libraries, made with venv and pip below `.bench-venv/`."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
HERE = "here"  # the environment that runs this: dspyer's own


@dataclass(frozen=True)
class Environment:
    """An interpreter, and what could not be installed for it.

    Attributes:
        python: path of its interpreter.
        missing: requirement name -> last line of pip's complaint.
    """

    python: str
    missing: dict[str, str] = field(default_factory=dict)


def requirements(name: str) -> list[str]:
    """The installations of an environment, each a line of one or more requirements."""
    lines = (BENCH / f"requirements-{name}.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def environment(name: str) -> Environment:
    """The named environment, made if it is not there or if its requirements have changed."""
    if name == HERE:
        return Environment(sys.executable)
    folder = ROOT / ".bench-venv" / name
    python = folder / "bin" / "python"
    lines = requirements(name)
    digest = hashlib.sha256("\n".join([sys.version, *lines]).encode()).hexdigest()
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == digest and python.exists():
        return Environment(str(python))
    print(f"making the environment .bench-venv/{name}: {', '.join(lines)}", file=sys.stderr)
    made = run([sys.executable, "-m", "venv", "--clear", str(folder)])
    if made:
        return Environment(str(python), dict.fromkeys(lines, made))
    missing = {}
    for line in lines:
        complaint = run([str(python), "-m", "pip", "install", "--quiet", *line.split()])
        if complaint:
            missing[line] = complaint
    if not missing:
        stamp.write_text(digest)
    return Environment(str(python), missing)


def run(command: list[str]) -> str:
    """Runs a command; the last line of its complaint, empty if it went well."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1] if said else f"exit code {done.returncode}"
