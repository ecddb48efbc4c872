"""Commands that run a program: exit codes, answers, budgets, signals; what reaches stdout."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import closing
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, Graph
from dspyer.__main__ import main
from dspyer.stores import SQLite
from dspyer.testing import clock
from tests.cli import orders
from tests.cli.conftest import Command
from tests.cli.orders import GRAPH
from tests.log.processes import end_of, fork
from tests.rows import each

# --- exit codes

# Arguments, exit code, and what stderr or stdout says.
CODES: list[tuple[list[str], int, str]] = [
    (["run", GRAPH, "--input", '{"text": "boom"}'], 1, "ValueError: cannot read boom"),
    (["run", GRAPH, "--input", '{"text": "x"}'], 3, "Pay 1.0 USD?"),
    (["run", "tests.cli.orders:loose"], 0, "completed"),
    (["run", "tests.cli.orders:add", "--input", '{"n": 0}', "--budget-seconds", "1e-9"], 4, "stopped"),
    (["run", GRAPH, "--input", '{"txt": "x"}'], 2, "txt"),
    (["run", GRAPH, "--input", "nothing.json"], 2, "No such file"),
    (["run", GRAPH, "--input", "[1]"], 2, "No such file"),
    (["run", GRAPH, "--input", '{"text": NaN}'], 2, "NaN is not JSON"),
    (["run", GRAPH, "--if-open", "abandon"], 2, "give --thread"),
    (["run", GRAPH, "--key", "r-1"], 2, "give --thread"),
    (["run", GRAPH, "--budget-cost", "-1"], 2, "more than 0"),
    (["run", "tests.cli.orders:nothing"], 2, "has no 'nothing'"),
    (["run", "tests.cli.orders:prgram"], 2, "Did you mean 'program'"),
    (["run", "tests.cli.orders:not_a_program"], 2, "is int"),
    (["run", "tests.cli.orders:broken"], 2, "RuntimeError: no network"),
    (["run", "tests.cli.missing:x"], 2, "no module 'tests.cli.missing'"),
    (["run", "app.py:graph"], 2, "Did you mean 'app:graph'"),
    (["run", "app"], 2, "module:name"),
    (["resume", "t-2"], 2, "nothing to resume"),
    (["resume", "t-9"], 2, "no thread 't-9'"),
    (["resume", "t-1"], 3, "Pay 5.0 USD?"),
    (["resume", "t-1", "--answer", "pay"], 2, "key=value"),
    (["resume", "t-1", "--answer", "=1"], 2, "key=value"),
    (["resume", "t-1", "--answer", "pya=true"], 2, "Did you mean 'pay'"),
    (["resume", "t-1", "--answer", "pay=true", "--answer", "pay=false"], 2, "two answers"),
    (["run", GRAPH, "--input", '{"text": "x"}', "--thread", "t-1"], 2, "thread.resume("),
    (["run", GRAPH, "--input", '{"text": "x"}', "--thread", "t-1", "--if-open", "abandon"], 3, "Pay 1.0 USD?"),
    (["rerun", "t-2", "17"], 2, "17"),
    (["copy", "t-2", "t-1"], 2, "t-1"),
    (["stop", "t-2"], 2, "nothing to stop"),
    (["prune", "t-2", "99"], 2, "99"),
    (["resume", "t-3", "--max-resumes", "-1"], 2, "'--max-resumes'"),
    (["runs", "--after", "x"], 2, "dspyer: after='x' is no cursor"),
    (["log", "t-2", "--first", "-1"], 2, "'--first'"),
    *[
        ([*command, version], 2, f"no commit has the id '{version}'")
        for version in ("x", "9" * 20, "9" * 5000)
        for command in (["show", "t-2"], ["diff", "t-2", "0"], ["blame", "t-2", "--at"], ["log", "t-2", "--inside"])
    ],
]


@each(("arguments", "code", "text"), CODES, ids=[" ".join(row[0])[:40] for row in CODES], items=3)
def test_exit_codes(stored: Command, arguments: list[str], code: int, text: str) -> None:
    before = runs_stored()
    done = stored(*arguments)
    assert (done.code, text in done.out + done.err) == (code, True), done
    assert "Traceback" not in done.err
    if code == 2:
        assert (done.out, runs_stored()) == ("", before)
        assert len(done.err.splitlines()) <= 4


def runs_stored() -> list[Any]:
    with closing(sqlite3.connect("runs.db")) as connection:
        return connection.execute("SELECT id FROM run ORDER BY id").fetchall()


def test_a_traceback_is_shown_on_request(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPYER_TRACEBACK", "1")
    assert "in broken" in cli("run", "tests.cli.orders:broken").err


def test_a_key_runs_once(stored: Command) -> None:
    request = ["run", GRAPH, "--thread", "t-7", "--key", "r-1"]
    first, again = (stored(*request, "--input", '{"text": "x"}', "--json") for _ in range(2))
    assert (first.code, again.code) == (3, 3)
    assert [done.records[0]["run_id"] for done in (first, again)] == [first.records[0]["run_id"]] * 2
    assert "this goes to stderr" in first.err
    assert "this goes to stderr" not in again.err
    stored("resume", "t-7", "--answer", "pay=true")
    assert stored(*request, "--input", '{"text": "x"}').code == 0
    refused = stored(*request, "--input", '{"text": "y"}')
    assert (refused.code, "other inputs" in refused.err) == (2, True)


# --- programs, inputs, answers


@pytest.mark.parametrize("name", ["graph", "program", "make"])
def test_a_program_is_a_graph_a_compiled_one_or_a_function(cli: Command, name: str) -> None:
    done = cli("run", f"tests.cli.orders:{name}", "--input", '{"text": "x"}', "--thread", "t", "--json")
    assert done.record["status"] == "interrupted"
    assert cli("threads", "--json").record["thread"] == "t"


def test_the_current_folder_is_importable(cli: Command) -> None:
    Path("app_of_this_test.py").write_text("from tests.cli.orders import loose as graph\nprint('loading')\n")
    done = cli("run", "app_of_this_test:graph", "--input", '{"a": 1}', "--json")
    assert done.record["outputs"] == {"seen": True}
    assert "loading" in done.err


def test_inputs_from_a_file_and_from_stdin(cli: Command) -> None:
    Path("in.json").write_text('{"text": "four"}')
    for arguments, stdin in ((["--input", "in.json"], ""), (["--input", "-"], '{"text": "four"}')):
        done = cli("run", GRAPH, *arguments, stdin=stdin)
        assert "Pay 4.0 USD?" in done.out


def test_what_nodes_print_does_not_reach_stdout(cli: Command) -> None:
    done = cli("run", GRAPH, "--input", '{"text": "x"}', "--json")
    assert done.record["status"] == "interrupted"
    assert "this goes to stderr" in done.err


def test_without_a_thread_nothing_is_stored(cli: Command) -> None:
    done = cli("run", GRAPH, "--input", '{"text": "x"}')
    assert "nothing was stored" in done.out
    assert not Path("runs.db").exists()


def test_the_store_of_the_program_is_used_if_none_is_given(
    cli: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DSPYER_STORE")
    assert cli("run", GRAPH, "--input", '{"text": "x"}', "--thread", "t").code == 2
    monkeypatch.setattr(orders, "own", orders.graph.compile(store="own.db"), raising=False)
    assert cli("run", "tests.cli.orders:own", "--input", '{"text": "x"}', "--thread", "t").code == 3
    assert cli("threads", "--store", "own.db", "--json").record["thread"] == "t"
    assert cli("run", "tests.cli.orders:own", "--input", "{}", "--thread", "t", "--store", "runs.db").code == 2


def test_answers_are_json_or_texts_and_ids_may_contain_equals_signs(cli: Command) -> None:
    form = "tests.cli.orders:form"
    asked = {one["key"]: one["id"] for one in cli("run", form, "--thread", "a=b", "--json").record["questions"]}
    given = {"ok": "true", "name": "Ada", "text": '"5"', "plus": "a=b", "code": "42", "n": "7"}
    answers = [f"{name}={text}" for name, text in {**given, asked["eq"]: "x=y"}.items()]
    options = [part for answer in answers for part in ("--answer", answer)]
    assert cli("resume", "a=b", "--program", form, *options, "--json").record["outputs"] == {
        "ok": True,
        "name": "Ada",
        "text": "5",
        "plus": "a=b",
        "eq": "x=y",
        "code": "42",
        "n": 7,
    }


def test_a_thread_is_continued_changed_and_pruned(stored: Command) -> None:
    done = stored("resume", "t-1", "--answer", "pay=true", "--by", "ada", "--comment", "by phone")
    assert done.code == 0
    assert "paid    true" in done.out
    for command in (["show", "t-1"], ["show", "t-1", "2"], ["log", "t-1"]):
        assert "'pay' answered by ada with true: by phone" in " ".join(stored(*command).out.split())
    assert stored("copy", "t-2", "try-1", "--at", "1", "--patch", '{"amount": 7, "notes": ["checked"]}').code == 0
    assert stored("resume", "try-1").code == 3
    done = stored("resume", "try-1", "--answer", "pay=false", "--json")
    assert f"by {getuser()}" in stored("show", "try-1").out
    assert (done.record["outputs"]["amount"], done.record["outputs"]["paid"]) == (7.0, False)
    assert stored("run", GRAPH, "--input", '{"text": "again"}', "--thread", "t-1").code == 3
    report = stored("prune", "t-1", "3")
    assert (report.code, report.out.splitlines()[0]) == (0, "deleted 0 runs and 8 rows")
    assert stored("log", "t-1", "--oldest", "--json").records[0]["node"] == "pruned"


def test_a_patch_may_delete(stored: Command) -> None:
    stored("run", "tests.cli.orders:loose", "--input", '{"a": 1, "b": {"c": 2, "d": 3}}', "--thread", "t", "--json")
    patch = '{"a": {"$type": "delete"}, "b": {"c": {"$type": "delete"}, "e": 4}}'
    assert stored("copy", "t", "u", "--at", "0", "--patch", patch, "--program", "tests.cli.orders:loose").code == 0
    assert stored("show", "u", "--json").record["state"] == {"b": {"d": 3, "e": 4}}
    assert stored("copy", "t", "v", "--patch", '{"a": {"$type": "no"}}').code == 2


def test_a_run_hides_what_its_program_redacts(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "secretive", orders.graph.compile(redact=["text"]), raising=False)
    for arguments in ([], ["--thread", "t"]):
        done = cli("run", "tests.cli.orders:secretive", "--input", '{"text": "boom and secret"}', *arguments)
        assert done.code == 1
        assert "secret" not in done.out.replace("secretive", "")


# --- signals


def in_a_process(*arguments: str) -> int:
    """A process of its own that runs a command in the folder of the test."""

    def work() -> None:
        sys.stdout = sys.stderr = Path("printed.txt").open("w")  # noqa: SIM115 - it ends with the process
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            main(arguments)
        except SystemExit as ended:
            os._exit(int(ended.code or 0))

    return fork(work)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_a_signal_stops_the_run(cli: Command, number: int) -> None:
    os.mkfifo("working")
    child = in_a_process("run", "tests.cli.orders:slow", "--input", '{"text": "working"}', "--thread", "t")
    Path("working").read_text()  # the node has begun
    os.kill(child, number)
    Path("enough").touch()  # the node is finished
    assert end_of(child) == 4
    assert "stopped by a signal" in Path("printed.txt").read_text()
    assert cli("show", "t", "--json").record["status"] == "stopped"


def test_stop_ends_the_run_of_another_process(cli: Command) -> None:
    os.mkfifo("working")
    child = in_a_process("run", "tests.cli.orders:slow", "--input", '{"text": "working"}', "--thread", "t")
    try:
        Path("working").read_text()
        assert cli("show", "t", "--json").record["status"] == "running"
        assert cli("run", GRAPH, "--input", '{"text": "x"}', "--thread", "t").code == 2
        done = cli("stop", "t", "--program", "tests.cli.orders:slow", "--json")
        assert done.record == {"thread": "t", "status": "stopped"}
    finally:
        os.kill(child, signal.SIGKILL)
        end_of(child)


def test_a_run_that_was_taken_over_says_so(cli: Command) -> None:
    done = cli("run", "tests.cli.orders:losing", "--input", '{"text": "x"}', "--thread", "t")
    assert done.code == 1
    assert "this process has lost the run: thread 't' was taken over" in done.err


def test_what_is_due_is_listed_for_cron(cli: Command) -> None:
    graph = Graph(name="Orders").add_interrupt("pay", question="Pay?", answer=bool, into="paid", expires=60)
    with clock() as time, SQLite("runs.db") as store:
        program = graph.add_path(START, "pay", END).compile(store=store)
        for name in ("a b", "c\nd"):
            program.thread(name).run({})
            time.advance(40)
        assert cli("due").out == "a b\n"
        assert (cli("due", "--graph", "Other").out, cli("due", "--graph", "Other").err) == ("", "no thread is due\n")
        time.advance(40)
        assert cli("due", "--limit", "1", "--json").records == [{"thread": "a b"}]
        assert len(cli("due").out.splitlines()) == 2  # a name is one line, whatever is in it
        assert ", expires 20" in cli("show", "a b").out
