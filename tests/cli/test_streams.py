"""Streams of the process that are closed, full, in another encoding, or written past `sys.stdout`."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from dspyer.__main__ import main
from tests.cli.conftest import Command
from tests.cli.orders import GRAPH
from tests.log.processes import end_of, fork

LOOSE = "tests.cli.orders:loose"


def started(*arguments: str, stdout: Any = subprocess.PIPE, data: bytes = b"", **variables: str) -> Any:
    """A real process that runs a command."""
    paths = os.pathsep.join([str(Path.cwd()), *sys.path])
    command = [sys.executable, "-m", "dspyer", *arguments]
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    return subprocess.run(command, input=data, stdout=stdout, stderr=subprocess.PIPE, env=environment, check=False)


def forked(*arguments: str, closed: int) -> tuple[int, str, str]:
    """A command in a process that has no stdin, stdout or stderr: its exit code, and what it prints on the others."""
    files = [Path(name) for name in ("stdin", "stdout", "stderr")]
    for file in files:
        file.write_text("")

    def work() -> None:
        for number, (file, mode) in enumerate(zip(files, "rww", strict=True)):
            with file.open(mode) as opened:
                os.dup2(opened.fileno(), number)
        os.close(closed)
        streams = [None if number == closed else os.fdopen(number, mode) for number, mode in enumerate("rww")]
        sys.stdin, sys.stdout, sys.stderr = streams  # as the interpreter does
        try:
            main(arguments)
        except SystemExit as ended:
            for stream in filter(None, streams[1:]):
                stream.flush()
            os._exit(int(ended.code or 0))

    code = end_of(fork(work))
    return code, files[1].read_text(), files[2].read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
@pytest.mark.parametrize("closed", [1, 2])
def test_a_stream_that_is_closed_changes_no_exit_code(cli: Command, closed: int) -> None:
    code, out, err = forked("run", LOOSE, closed=closed)
    assert (code, "status" in out, err) == (0, closed == 2, "")
    code, out, _ = forked("run", LOOSE, "--input", "nothing", closed=closed)
    assert (code, out) == (2, ""), "errors never reach stdout"


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_a_closed_stdin_is_refused(cli: Command) -> None:
    code, _, err = forked("run", LOOSE, "--input", "-", closed=0)
    assert code == 2
    assert "stdin cannot be read: it is closed" in err


FULL = "the command is done, but stdout cannot be written: No space left on device"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.slow("a real process, since a full disk is seen at its end")
def test_a_full_disk_is_told_apart_from_a_refusal(stored_file: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = started("runs", "--store", str(stored_file), stdout=full, PYTHONUNBUFFERED="")
    assert done.returncode == 74
    assert FULL in done.stderr.decode()
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_seen_at_the_first_line_of_a_stream_without_a_buffer(
    cli: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        Path("/dev/full").open("wb", buffering=0) as raw,
        io.TextIOWrapper(raw, write_through=True) as full,
        redirect_stdout(full),
        pytest.raises(SystemExit) as ended,
    ):
        main(["run", LOOSE])
    assert (ended.value.code, FULL in capsys.readouterr().err) == (74, True)


@pytest.mark.skipif(sys.platform == "win32", reason="its locales are others")
def test_what_is_no_utf_8_is_refused_in_every_locale() -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = started("run", GRAPH, "--input", "-", data=b'{"text": "\xff"}', **variables)
    assert (done.returncode, b"stdin cannot be read: 'utf-8'" in done.stderr) == (2, True)


def test_json_on_stdin_is_utf_8_in_every_encoding_of_the_stream(cli: Command) -> None:
    request = ["run", GRAPH, "--input", "-"]
    for encoding in ("latin-1", "ascii", "utf-8"):
        assert "Pay 3.0 USD?" in cli(*request, stdin='{"text": "Zoë"}', encoding=encoding).out
        assert cli(*request, stdin=b'{"text": "\xff"}', encoding=encoding).code == 2


def test_what_the_encoding_of_stdout_lacks_is_an_escape(cli: Command) -> None:
    with io.TextIOWrapper(io.BytesIO(), "ascii") as ascii_only:
        with redirect_stdout(ascii_only), pytest.raises(SystemExit):
            main(["run", GRAPH, "--input", '{"text": "Zoë"}', "--thread", "Zoë"])
        ascii_only.seek(0)
        assert ascii_only.readline() == "thread   Zo\\xeb\n"


def test_a_byte_order_mark_is_no_part_of_json(cli: Command) -> None:
    Path("in.json").write_text('{"text": "four"}', "utf-8-sig")
    assert "Pay 4.0 USD?" in cli("run", GRAPH, "--input", "in.json").out


PROGRAMS = """
import os, subprocess, sys
from dspyer import END, START, Graph

def one(node):
    return Graph(name="One").add_node("one", node, writes=["n"]).add_path(START, "one", END)

def start(n):
    subprocess.run(["echo", "of a process"], check=True)
    os.write(1, b"to the descriptor\\n")
    return {"n": n}

def leave(n):
    sys.exit(n)

starts, leaves = one(start), one(leave)

def leaving():
    sys.exit(0)

async def later():
    return starts
"""


def test_what_other_processes_print_does_not_reach_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "programs_a.py").write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)

    def child() -> None:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), number)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115 - as the interpreter does
        with pytest.raises(SystemExit) as ended:
            main(["run", "programs_a:starts", "--input", '{"n": 1}', "--json"])
        assert ended.value.code == 0
        sys.stdout.flush()

    assert end_of(fork(child)) == 0
    assert json.loads((tmp_path / "stdout").read_text())["status"] == "completed"
    printed = (tmp_path / "stderr").read_text()
    assert "of a process" in printed
    assert "to the descriptor" in printed


@pytest.mark.parametrize("code", [0, 7])
def test_a_node_that_ends_the_process_stops_the_run(cli: Command, code: int) -> None:
    Path("programs_b.py").write_text(PROGRAMS)
    done = cli("run", "programs_b:leaves", "--input", json.dumps({"n": code}), "--thread", "t", "--json")
    assert (done.code, done.record["status"]) == (4, "stopped")
    assert f"SystemExit({code})" in done.err
    unstored = cli("run", "programs_b:leaves", "--input", json.dumps({"n": code}))
    assert (unstored.code, "stopped" in unstored.out) == (4, True)


@pytest.mark.parametrize(("name", "text"), [("leaving", "SystemExit: 0"), ("later", "is an async function")])
def test_a_function_that_gives_no_program_is_refused(cli: Command, name: str, text: str) -> None:
    Path("programs_c.py").write_text(PROGRAMS)
    done = cli("run", f"programs_c:{name}", "--input", '{"n": 1}')
    assert done.code == 2
    assert text in done.err
