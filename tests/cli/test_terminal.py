"""What people see: tables in any width, colours only in a terminal, and no control character of a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import unicodedata
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from dspyer.cli import terminal
from dspyer.cli.arguments import parse_time
from dspyer.cli.terminal import Column, cut, value_text, visible, width_of, write_table
from tests.cli.conftest import Command
from tests.rows import each

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


def is_harmless(text: str) -> bool:
    kinds = {unicodedata.category(char) for char in text.replace("\n", "").replace(terminal.ZERO_WIDTH_JOINER, "")}
    return not kinds & {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"}


@given(st.text())
def test_visible_texts_move_no_cursor(text: str) -> None:
    shown = visible(text)
    assert is_harmless(shown)
    assert "\n" not in shown
    assert visible(shown) == shown


@given(st.text(), st.integers(1, 30))
def test_a_cut_text_fits(text: str, width: int) -> None:
    shown = visible(text)
    assert width_of(cut(shown, width)) <= width
    if width_of(shown) <= width:
        assert cut(shown, width) == shown


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_hostile_values_never_reach_the_terminal(
    cli: Command, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    given = '{"text": "boom \\u001b[2J\\u009b31m\\r\\n\\t\\u0007\\u202etxt"}'
    cli("run", "tests.cli.orders:hostile", "--input", given, "--thread", "t")
    for width in ("20", "80", "300"):
        monkeypatch.setenv("COLUMNS", width)
        done = cli(*command)
        assert done.code == 0, done.err
        assert is_harmless(done.out + done.err)
    assert cli(*command, "--json").out.isascii()


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


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_tables_fit(stored: Command, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for command in (["runs"], ["log", "t-2"], ["blame", "t-2"], ["show", "t-1"], ["show", "t-2", "1"]):
        done = stored(*command)
        assert done.code == 0
        if width >= 80:
            assert max(map(len, done.out.splitlines())) <= width


def test_a_table_shrinks_its_widest_columns_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [Column("NAME", least=4), Column("TEXT", least=4), Column("N", right=True)]
    rows = [["short", "long " * 9, "1"], ["日本" * 4, "x", "1000"]]
    monkeypatch.setenv("COLUMNS", "24")
    write_table(columns, rows, {0: "a remark that is longer than the table"})
    assert capsys.readouterr().out.splitlines() == [
        "NAME      TEXT         N",
        "short     long lo…     1",
        "  a remark that is long…",
        "日本日…   x         1000",
    ]
    monkeypatch.setenv("COLUMNS", "10")
    write_table(columns, rows)
    assert capsys.readouterr().out.splitlines() == [
        "name: short",
        f"text: {'long ' * 9}",
        "n: 1",
        "",
        "name: 日本日本日本日本",
        "text: x",
        "n: 1000",
    ]


def test_without_rows(cli: Command) -> None:
    cli("run", "tests.cli.orders:loose", "--thread", "t")
    done = cli("runs", "--status", "failed")
    assert (done.code, done.out, done.err) == (0, "", "no runs\n")
    assert cli("runs", "--status", "failed", "--json") == (0, "", "")


def test_values_are_shown_without_the_marks_of_their_types() -> None:
    assert value_text({"a": {"$type": "bytes", "value": "eA=="}, "$type": 1}) == '{"a": "eA==", "$type": 1}'


# --- times


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("today", "2026-03-30T00:00:00"),
        ("yesterday", "2026-03-29T00:00:00"),  # a day of 23 hours
        ("2h", "2026-03-30T10:00:00"),
        ("90m", "2026-03-30T10:30:00"),
        ("1.5d", "2026-03-28T23:00:00"),
        ("1w", "2026-03-23T11:00:00"),
        ("now", "2026-03-30T12:00:00"),
        ("2026-03-28", "2026-03-28T00:00:00"),
        ("2026-03-28T08:15", "2026-03-28T08:15:00"),
        ("2026-03-28 08:15:30Z", "2026-03-28T09:15:30"),
    ],
)
def test_times(monkeypatch: pytest.MonkeyPatch, text: str, time: str) -> None:
    in_zone(monkeypatch, "Europe/Berlin")
    now = datetime(2026, 3, 30, 12).astimezone()
    assert parse_time(text, now) == datetime.fromisoformat(time).astimezone()


def in_zone(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()


@pytest.fixture(autouse=True)
def _zone_of_the_machine() -> object:
    yield
    os.environ.pop("TZ", None)
    time.tzset()


@each("text", ["", "tomorrow", "2x", "99999999999w", "2026-13-01", "-2h", "１h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no time"):
        parse_time(text)


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


def test_colours_only_where_a_terminal_shows_them(stored: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in stored("runs").out
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31mfailed\x1b[0m" in stored("runs").out
    assert "\x1b" not in stored("runs", "--json").out
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert "\x1b" not in stored("runs").out


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
