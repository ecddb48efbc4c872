"""Child processes of tests: forked from one server per worker that has imported dspyer, 0.03 s each in place of 1.2.

`run_python(source)` is what `subprocess.run([sys.executable, "-c", source])` is elsewhere, `Child(source)` a process
that is talked to, signalled or killed meanwhile. A child runs no `atexit` functions, and has the modules of its server
imported: a test about the start or the end of a process, or about what is imported, starts a real one and says so.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

PRELOADED = [
    "dspy",
    "dspyer.agents",
    "dspyer.optimize",
    "dspyer.search",
    "dspyer.stores.encrypted",
    "dspyer.stores.postgres",
    "dspyer.testing",
    "tests.fleet.fleet",
    "tests.test_examples",
]
PATIENCE = 60.0  # seconds for a child that should end


def start_server() -> None:
    """Starts the process that others are forked from, once."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        forkserver.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()


def server_pid() -> int | None:
    """The process id of the server, or None before it has started."""
    server: Any = forkserver
    found: int | None = server._forkserver._forkserver_pid  # no public name tells it
    return found


def server_address() -> str:
    """Where the server listens, for `use_server` in a child."""
    start_server()
    server: Any = forkserver
    address: str = server._forkserver._forkserver_address  # as above
    return address


def use_server(address: str) -> None:
    """Lets a child fork from its own server: `multiprocessing` would start another one, which imports all anew."""
    server: Any = forkserver
    vars(server._forkserver).update(_forkserver_address=address, ensure_running=lambda: None)


@pytest.fixture(scope="session")
def fork_server() -> None:
    """For tests that use `multiprocessing.get_context("forkserver")` themselves."""
    start_server()


class Child:
    """A Python process that runs `source` as its main module.

    Args:
        source: the program.
        arguments: `sys.argv` from 1 on.
        cwd: the folder it runs in; of the test if not given.
        env: variables that it has beside those of the server.

    Attributes:
        pid: its process id.
        stdout: what it prints, a text stream that is read while it runs.
        stderr: the same for errors.
        stdin: what it reads; `close()` ends it.
    """

    def __init__(
        self, source: str, *arguments: str, cwd: str | Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        start_server()
        context: Any = multiprocessing.get_context("forkserver")
        ends: list[tuple[Connection, Connection]] = [context.Pipe(duplex=False) for _ in range(3)]
        (read_in, write_in), (read_out, write_out), (read_err, write_err) = ends
        folder = str(cwd or Path.cwd())
        # Arguments are pickled, with the ends of pipes: their file descriptors are passed to the child.
        given = (source, arguments, folder, dict(env or {}), read_in, write_out, write_err)
        self._process = context.Process(target=_run, args=given)
        self._process.start()
        for end in (read_in, write_out, write_err):
            end.close()
        self.pid: int = self._process.pid
        self.stdin = _opened(write_in, "w")
        self.stdout = _opened(read_out, "r")
        self.stderr = _opened(read_err, "r")
        for stream in (self.stdin, self.stdout, self.stderr):
            weakref.finalize(self, stream.close)

    def kill(self) -> None:
        """Kills it, and waits for its end."""
        self._process.kill()
        self.wait()

    def wait(self, timeout: float = PATIENCE) -> int:
        """Waits for its end and gives its exit code, -9 if it was killed."""
        self._process.join(timeout)
        code: int | None = self._process.exitcode
        if code is None:
            self._process.kill()
            pytest.fail(f"a child has not ended within {timeout} s")
        return code


def run_python(
    source: str,
    *arguments: str,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
    timeout: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Runs `source` in a child to its end, as `subprocess.run` with captured text.

    One that takes longer than `timeout` fails the test.

    Raises:
        subprocess.CalledProcessError: `check` is set and its exit code is not 0.
    """
    child = Child(source, *arguments, cwd=cwd, env=env)
    child.stdin.close()
    killed: list[int] = []

    def kill() -> None:
        killed.append(child.pid)
        child._process.kill()

    too_long = threading.Timer(timeout, kill)
    too_long.start()
    with ThreadPoolExecutor(1) as reader:  # both at once: a pipe that is full stops the child
        errors = reader.submit(child.stderr.read)
        out, err = child.stdout.read(), errors.result()
    too_long.cancel()
    code = child.wait()
    if killed:
        pytest.fail(f"a child has not ended within {timeout} s; it printed {out[-500:]!r} and {err[-2000:]!r}")
    done = subprocess.CompletedProcess([sys.executable, "-c", source, *arguments], code, out, err)
    if check:
        done.check_returncode()
    return done


def _opened(end: Connection, mode: str) -> Any:
    """A text stream over an end of a pipe, which it owns."""
    stream = os.fdopen(os.dup(end.fileno()), mode, encoding="utf-8")
    end.close()
    return stream


def _run(
    source: str,
    arguments: tuple[str, ...],
    folder: str,
    env: dict[str, str],
    stdin: Connection,
    stdout: Connection,
    stderr: Connection,
) -> None:
    """The main function of a child."""
    for number, end in enumerate((stdin, stdout, stderr)):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", line_buffering=True)
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, folder)
    main = sys.modules["__main__"] = type(sys)("__main__")
    exec(compile(source, "<child>", "exec"), vars(main))
