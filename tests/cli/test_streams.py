"""Streams of the process that are closed, full, in another encoding, or written past `sys.stdout`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dspyer.__main__ import main
from tests.cli.conftest import Command
from tests.cli.orders import GRAPH
from tests.persistence.processes import end_of, fork

RUN = [sys.executable, "-m", "dspyer", "run", "tests.cli.orders:loose"]


def play(script: str, *, data: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a line of the shell, in which `$RUN` is the command."""
    paths = os.pathsep.join([str(Path.cwd()), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "RUN": " ".join(RUN), **variables}
    return subprocess.run(["sh", "-c", script], input=data, capture_output=True, env=environment, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize("closed", ["1", "2"])
@pytest.mark.slow("a real process, since a closed pipe is seen at its end")
def test_a_stream_that_is_closed_changes_no_exit_code(closed: str) -> None:
    done = play(f"$RUN {closed}>&-")
    assert done.returncode == 0
    assert (b"status" in done.stdout) is (closed == "2")
    assert done.stderr == b""
    refused = play(f"$RUN --input nothing {closed}>&-")
    assert (refused.returncode, refused.stdout) == (2, b""), "errors never reach stdout"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
def test_a_closed_stdin_is_refused() -> None:
    done = play("$RUN --input - <&-")
    assert done.returncode == 2
    assert b"stdin cannot be read: it is closed" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.slow("a real process, since a full disk is seen at its end")
def test_a_full_disk_is_told_apart_from_a_refusal(unbuffered: str) -> None:
    done = play("$RUN > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 74
    assert b"the command is done, but stdout cannot be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize(
    "variables",
    [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["latin-1", "C"],
)
@pytest.mark.slow("a real process, since a locale holds from its start")
def test_json_on_stdin_is_utf_8_in_every_locale(variables: dict[str, str]) -> None:
    order = f"{sys.executable} -m dspyer run {GRAPH} --input - --json"
    done = play(order, data='{"text": "Zoë"}'.encode(), **variables)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["questions"][0]["text"] == "Pay 3.0 USD?", "three characters"
    broken = play(order, data=b'{"text": "\xff"}', **variables)
    assert broken.returncode == 2, "what is no UTF-8 is never stored as something else"


def test_a_byte_order_mark_is_no_part_of_json(cli: Command) -> None:
    Path("in.json").write_text('{"text": "four"}', "utf-8-sig")
    assert "Pay 4.0 USD?" in cli("run", GRAPH, "--input", "in.json").out


PROGRAMS = """
import os, subprocess, sys
from dspyer import END, START, Graph

def one(node):
    return Graph(name="One").add_node("one", node, writes=["n"]).add_path(START, "one", END)

def start(n):
    subprocess.run([sys.executable, "-c", "print('of a process')"], check=True)
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
