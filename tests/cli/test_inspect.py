"""`inspect`: the first line is the address, with its token; Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from dspyer.__main__ import main
from tests.cli.conftest import Command
from tests.cli.orders import GRAPH
from tests.log.processes import end_of, fork


@contextmanager
def inspecting(*arguments: str) -> Iterator[str]:
    """A process that serves the inspector, with its first line; it ends at Ctrl-C with success."""
    reading, writing = os.pipe()

    def work() -> None:
        sys.stdout = os.fdopen(writing, "w")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            main(["inspect", "--no-browser", *arguments])
        except SystemExit as ended:
            os._exit(int(ended.code or 0))

    child = fork(work)
    os.close(writing)
    with os.fdopen(reading) as lines:
        try:
            yield lines.readline()
        finally:
            os.kill(child, signal.SIGINT)
            code = end_of(child)
    assert code == 0


SHARDED = "tests.cli.orders:sharded"


@pytest.mark.parametrize("arguments", [["runs.db"], ["--program", GRAPH], ["--program", SHARDED]], ids=str)
def test_the_first_line_is_the_address(stored: Command, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = set[str]()
    if SHARDED in arguments:  # the store that the program was compiled with
        monkeypatch.delenv("DSPYER_STORE")
        assert stored("run", SHARDED, "--thread", "u-1", "--input", '{"text": "a"}', "--json").code == 3
        elsewhere = {"u-1"}
        shown = stored("runs", "--store", SHARDED, "--json").records
        assert {info["thread"] for info in shown} == {"t-3", "t-2", "t-1", "u-1"}
        no_store = stored("runs", "--store", "tests.cli.orders:program")
        assert (no_store.code, "no store: give --store" in no_store.err) == (2, True)
    with inspecting(*arguments) as line:
        address, _, token = line.strip().partition("#token=")
        answer = httpx.get(f"{address}api/runs", headers={"X-Dspyer-Token": token}, timeout=20)
        about = httpx.get(f"{address}api/about", headers={"X-Dspyer-Token": token}, timeout=20).json()
        assert httpx.get(f"{address}api/runs", timeout=20).status_code == 401
    assert address.startswith("http://127.0.0.1:")
    assert {info["thread"] for info in answer.json()["items"]} == {"t-3", "t-2", "t-1"} | elsewhere
    assert about["acts"] is ("--program" in arguments)


def test_a_store_that_is_missing_and_an_extra_that_is_missing(stored: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stored("inspect", "nothing.db", "--no-browser").code == 5
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "dspyer.inspector.serving", raising=False)
    done = stored("inspect", "--no-browser")
    assert (done.code, done.out) == (2, "")
    assert "pip install starlette uvicorn" in done.err
