"""The parent's side of a benchmark: one process for each library, asked for one round at a time."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from bench.environments import BENCH, ROOT, environment


class PeerError(Exception):
    """A library that could not be asked, or a workload that failed: the text goes into the table."""


@dataclass(frozen=True)
class Library:
    """A library of the comparison.

    Attributes:
        name: as in the table.
        environment: name of the environment that has it installed.
        modules: the modules of `bench.peers` with its workloads.
        requirement: how its line in the environment's requirements starts.
    """

    name: str
    environment: str
    modules: tuple[str, ...]
    requirement: str = ""


class Peer:
    """A running process that has one library's workloads."""

    def __init__(self, library: Library, timeout: float) -> None:
        made = environment(library.environment)
        for line, complaint in made.missing.items():
            if library.requirement and line.startswith(library.requirement):
                raise PeerError(f"not installed: {complaint[:200]}")
        self.library = library
        self.timeout = timeout
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self.process = subprocess.Popen(
            [made.python, str(BENCH / "peers" / "serve.py"), *library.modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env={**os.environ, "PYTHONHASHSEED": "0", "LANGSMITH_TRACING": "false"},
        )
        try:
            hello = self.ask(ask="hello")
        except PeerError:
            self.close()
            raise
        self.python = str(hello["python"])
        self.versions: dict[str, str] = hello["versions"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise PeerError(self.last_words()) from None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            if not waiting.select(self.timeout):
                self.process.kill()
                raise PeerError(f"no answer within {self.timeout:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(self.last_words())
        answer: dict[str, Any] = json.loads(line)
        if "unsupported" in answer:
            raise PeerError(f"– {answer['unsupported']}")
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def last_words(self) -> str:
        """The last line that a dead process has written to its error stream."""
        self.process.wait(timeout=10)
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return f"the process ended: {lines[-1][:200] if lines else self.process.returncode}"

    def close(self) -> None:
        """Ends the process."""
        if self.process.stdin:
            with contextlib.suppress(OSError):  # a dead process reads no more
                self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self.complaints.close()
