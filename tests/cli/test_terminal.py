"""What people see: tables in any width, colours only in a terminal, and no control character of a run."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
import unicodedata
from contextlib import closing, redirect_stdout
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from dspyer.__main__ import main
from tests.cli.conftest import Command

LOOKING = [
    ["runs"],
    ["threads"],
    ["show", "t"],
    ["show", "t", "1"],
    ["log", "t"],
    ["diff", "t", "0", "2"],
    ["blame", "t"],
    ["stats", "t"],
    ["graph", "t"],
]

# --- hostile values

JOINER = "\u200d"  # inside of emoji; it moves nothing


def is_harmless(text: str) -> bool:
    kinds = {unicodedata.category(char) for char in text.replace("\n", "").replace(JOINER, "")}
    return not kinds & {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"}


def width_of(line: str) -> int:
    """The columns that a line takes in a terminal."""
    kinds = [(unicodedata.category(char), unicodedata.east_asian_width(char)) for char in line]
    return sum(0 if category in ("Mn", "Me", "Cf") else 2 if wide in "WF" else 1 for category, wide in kinds)


HOSTILE = "boom \x1b[2J\x9b31m\r\n\t\a\u202etxt\u2028\u2029\ue000\u0378\ud800 👩\u200d👧"


def test_hostile_values_never_reach_the_terminal(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("run", "tests.cli.orders:hostile", "--input", json.dumps({"text": HOSTILE}), "--thread", "t")
    for command in LOOKING:
        for width in ("20", "80", "300"):
            monkeypatch.setenv("COLUMNS", width)
            done = cli(*command)
            assert done.code == 0, done.err
            assert is_harmless(done.out + done.err), command
        assert cli(*command, "--json").out.isascii()
    monkeypatch.setenv("COLUMNS", "300")
    assert r"boom \x1b[2J\x9b31m\r\n\t\x07\u202etxt\u2028\u2029\ue000\u0378" in cli("runs").out
    assert "👩\u200d👧" in cli("runs").out


@pytest.mark.parametrize(
    "name", ["-x", "../../x", "a b", "🙂👩\u200d👩\u200d👧", "a\nb\x1b[2J", "x" * 2000, "$(ls)", "a=b", "--json"]
)
def test_hostile_thread_names(cli: Command, name: str) -> None:
    run = ["run", "tests.cli.orders:graph", "--input", '{"text": "x"}', f"--thread={name}", "--json"]
    made = cli(*run)
    assert (made.code, made.record["thread"]) == (3, name)
    key = made.record["questions"][0]["id"]
    done = cli("show", "--", name)
    assert done.code == 0, done.err
    assert is_harmless(done.out + cli("runs").out)
    assert cli("threads", f"--thread={name}", "--json").record["thread"] == name
    assert cli("show", "--", f"{name}?").code == 2
    done = cli("resume", f"--answer={key}=true", "--json", "--", name)
    assert done.record["outputs"]["paid"] is True
    assert cli("export", "--", name, "t.jsonl").code == 0
    assert cli("load", "--store", "other.db", "--", name, "t.jsonl").code == 0
    assert sorted(path.name for path in Path().iterdir() if "db-" not in path.name) == [
        "other.db",
        "runs.db",
        "t.jsonl",
    ]


# --- tables


def test_tables_fit(stored: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("日本" * 40, "e\u0301" * 90):
        stored("run", "tests.cli.orders:loose", "--thread", name)
    for width in (20, 40, 80, 300):
        monkeypatch.setenv("COLUMNS", str(width))
        for command in (["runs"], ["log", "t-2"], ["blame", "t-2"], ["show", "t-1"], ["show", "t-2", "1"]):
            done = stored(*command)
            assert done.code == 0
            if width >= 80:
                assert max(map(width_of, done.out.splitlines())) <= width
    monkeypatch.setenv("COLUMNS", "80")
    assert "Orders" in stored("runs").out, "the widest column is cut first: the thread, and not the graph"


def test_a_table_is_cut_or_becomes_a_block_for_each_row(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"short": 1, "日本" * 4: 2, "long " * 9: 3}
    cli("run", "tests.cli.orders:loose", "--input", json.dumps(given), "--thread", "t")

    def lines(width: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", width)
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "then", cli("blame", "t").out).splitlines()

    assert lines("47") == [
        "PATH        NODE   VERSION  STARTED",
        "short       START        0  then",
        "日本日本…   START        0  then",
        "long long…  START        0  then",
        "seen        keep         1  then",
    ]
    rows = {"short": "START", "日本" * 4: "START", "long " * 9: "START", "seen": "keep"}
    blocks = [
        ["", f"path: {path}", f"node: {node}", f"version: {node == 'keep':d}", "started: then"]
        for path, node in rows.items()
    ]
    assert lines("12") == [line for block in blocks for line in block][1:]


def test_a_remark_below_a_row_is_cut(stored: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    remark = "  read (execution t-3.1/trunk:1, attempt 1): ValueError: cannot read boom"
    assert f"{remark[:69]}…" in stored("runs").out.splitlines()


def test_without_rows(cli: Command) -> None:
    cli("run", "tests.cli.orders:loose", "--thread", "t")
    done = cli("runs", "--status", "failed")
    assert (done.code, done.out, done.err) == (0, "", "no runs\n")
    assert cli("runs", "--status", "failed", "--json") == (0, "", "")


def test_values_are_shown_without_the_marks_of_their_types(cli: Command) -> None:
    cli("run", "tests.cli.orders:odd", "--thread", "t")
    assert '  number  "nan"\n  data    "/w=="\n' in cli("show", "t").out


# --- times


def in_zone(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()


@pytest.fixture(autouse=True)
def _zone_of_the_machine() -> object:
    yield
    os.environ.pop("TZ", None)
    time.tzset()


def midnight(days_ago: int) -> float:
    now = time.localtime()
    return time.mktime((now.tm_year, now.tm_mon, now.tm_mday - days_ago, 0, 0, 0, 0, 0, -1))


def test_times(stored: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a zone where it is about noon, and the clocks have changed the day before."""
    yesterday = time.gmtime(time.time() - 86400)
    day = yesterday.tm_yday - 1  # from 0
    in_zone(monkeypatch, f"AAA{yesterday.tm_hour - 12}BBB,{day}/2,{(day + 100) % 365}/2")
    assert midnight(0) - midnight(1) == 23 * 3600
    means = {
        "today": midnight(0),
        "yesterday": midnight(1),
        "now": time.time(),
        **{text: time.time() - seconds for text, seconds in AGO.items()},
        **{text: datetime.fromisoformat(text).astimezone().timestamp() for text in DATES},
    }
    found = {}
    for text, expected in means.items():
        with closing(sqlite3.connect("runs.db")) as connection:
            for thread, seconds in {"t-1": 60, "t-2": -60}.items():
                connection.execute("UPDATE run SET started = ? WHERE thread = ?", (expected + seconds, thread))
            connection.commit()
        lists = [stored("runs", option, text, "--json").records for option in ("--since", "--until")]
        found[text] = [{"t-1", "t-2"} & {info["thread"] for info in infos} for infos in lists]
    assert found == {text: [{"t-1"}, {"t-2"}] for text in means}


AGO = {"2h": 7200, "90m": 5400, "1.5d": 36 * 3600, "1w": 7 * 86400, "30 s": 30, "100min": 6000}
DATES = ("2026-03-28", "2026-03-28T08:15", "2026-03-28 08:15:30Z")


def test_what_is_no_time(cli: Command) -> None:
    for text in ("", "tomorrow", "2x", "99999999999w", "2026-13-01", "-2h", "１h"):
        done = cli("runs", "--since", text)
        assert (done.code, "is no time" in done.err) == (2, True), done


def test_since_and_until(stored: Command) -> None:
    everything = stored("runs", "--json").records
    middle = datetime.fromisoformat(everything[1]["started"])
    assert stored("runs", "--since", middle.isoformat(), "--json").records == everything[:2]
    assert stored("runs", "--until", middle.isoformat(), "--json").records == everything[2:]
    assert stored("runs", "--since", (middle + timedelta(days=1)).isoformat(), "--json").records == []


def test_times_are_local(stored: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    in_zone(monkeypatch, "Asia/Tokyo")
    tokyo = stored("show", "t-2").out
    in_zone(monkeypatch, "UTC")
    assert tokyo != stored("show", "t-2").out


# --- pages


def test_pages(stored: Command) -> None:
    first = stored("runs", "--limit", "2", "--json")
    assert len(first.records) == 2
    cursor = first.err.strip().removeprefix("there are more: --after ")
    second = stored("runs", "--limit", "2", "--json", "--after", cursor)
    assert second.err == ""
    assert [info["thread"] for info in first.records + second.records] == ["t-3", "t-2", "t-1"]
    assert stored("runs", "--after", "x").code == 2


def test_pages_of_a_log(stored: Command) -> None:
    def versions(*arguments: str) -> list[int]:
        return [commit["version"] for commit in stored("log", "t-2", "--json", *arguments).records]

    assert versions() == [2, 1, 0]
    assert versions("--oldest") == [0, 1, 2]
    assert versions("--count", "2") == [2, 1]
    assert versions("--first", "1") == [1, 0]
    assert stored("log", "t-2", "--count", "2").err == "there are more: --first 0\n"
    assert stored("log", "t-2", "--count", "2", "--oldest").err == "there are more: --first 2\n"
    assert stored("log", "t-2", "--count", "3").err == ""


# --- real streams


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_screen(*arguments: str) -> str:
    """What a command prints in a terminal."""
    with redirect_stdout(Screen()) as screen, pytest.raises(SystemExit):
        main(arguments)
    return screen.getvalue()


def test_colours_only_where_a_terminal_shows_them(stored: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in stored("runs").out
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31mfailed\x1b[0m" in on_screen("runs")
    assert "\x1b" not in on_screen("runs", "--json")
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert "\x1b" not in on_screen("runs")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo terminals")
@pytest.mark.slow("real processes: a terminal and a pipe")
def test_in_a_real_terminal_and_in_a_pipe_that_closes(stored: Command) -> None:
    import pty

    command = [sys.executable, "-m", "dspyer", "runs"]
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("COLUMNS")
    in_terminal = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
    in_pipe = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert in_pipe.stdout is not None
    in_pipe.stdout.close()
    assert in_terminal.wait() == 0
    os.close(follower)
    assert b"\x1b[31mfailed\x1b[0m" in os.read(leader, 65536)
    os.close(leader)
    assert in_pipe.stderr is not None
    assert (in_pipe.stderr.read(), in_pipe.wait()) == (b"", 0)
    in_pipe.stderr.close()
