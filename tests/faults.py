"""Seeded faults: one line of the core changed as a mistake would change it, and the tests that must see it.

`make test-faults` (`python -m tests.faults [NAME ...]`) applies each to a copy of the project, runs its folder until
the first failure, and fails if a fault is found or unseen against its row. The faults were chosen by people who read
the package and its docs, and not the tests. A line that changes takes its fault with it: the row is written anew, or
another one is chosen in its place. `tests/test_suite.py` checks that each row still fits the package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LEFT_OUT = (".venv", ".git", "node_modules", "site", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis")
PATIENCE = 600.0  # seconds: a fault under which a test hangs is found


class Fault(NamedTuple):
    """A fault.

    Attributes:
        name: what is wrong, in a few words.
        file: the file that is changed, from the root of the project.
        old: a text that is there once.
        new: what it is replaced by.
        loss: what a user would lose.
        tests: the folders or files that are run.
        found: whether they see it. One that they do not see has its reason in a comment.
    """

    name: str
    file: str
    old: str
    new: str
    loss: str
    tests: tuple[str, ...]
    found: bool = True


def first_failure(fault: Fault) -> str | None:
    """The first test that fails under a fault, or None.

    Raises:
        RuntimeError: the tests could not be run.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        file = copy / fault.file
        file.write_text(file.read_text().replace(fault.old, fault.new))
        # Browser tests are left out: no fault is in what only a browser shows, and two at once would need two of them.
        environment = {**os.environ, "PYTHONPATH": str(copy), "DSPYER_NO_BROWSER": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault.tests]
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            return "a test hangs"
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"{fault.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split()[1] if failed else None


def main(names: list[str]) -> int:
    """Runs the faults of these names, or all; the exit code says whether each row is right."""
    faults = [fault for fault in FAULTS if not names or fault.name in names]
    wrong = 0
    with ThreadPoolExecutor(int(os.environ.get("WORKERS", "2"))) as pool:
        began = time.monotonic()
        for fault, failure in zip(faults, pool.map(first_failure, faults), strict=True):
            as_told = (failure is not None) == fault.found
            wrong += not as_told
            print(f"{'  ' if as_told else '! '}{fault.name:44} {'unseen' if failure is None else failure}", flush=True)
    print(f"{len(faults)} faults, {wrong} against their row, {time.monotonic() - began:.0f} s")
    return wrong and 1


FAULTS: tuple[Fault, ...] = ()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
