"""Export and load; stores that are missing, damaged, locked, encrypted or down."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from dspyer.stores import SQLite
from dspyer.stores.encrypted import Encrypted
from tests.cli.conftest import Command, names_of_commands
from tests.cli.orders import GRAPH, graph
from tests.stores.bodies import with_content

ARGUMENTS = {
    "runs": [],
    "threads": [],
    "due": [],
    "questions": [],
    "overview": [],
    "compare": ["t-1", "t-2"],
    "inspect": ["--no-browser"],
    "diff": ["t-2", "0", "1"],
    "rerun": ["t-2", "0"],
    "copy": ["t-2", "new"],
    "prune": ["t-2", "2"],
    "export": ["t-2", "t-2.jsonl"],
}
CREATE = {"run", "load"}


def on_stores(cli: Command) -> list[list[str]]:
    """A command line of each command that needs a store."""
    return [[name, *ARGUMENTS.get(name, ["t-2"])] for name in names_of_commands(cli) if name not in CREATE]


def test_a_thread_is_exported_and_loaded(stored: Command) -> None:
    done = stored("export", "t-2", "t-2.jsonl", "--json")
    assert done.record["digest"] in Path("t-2.jsonl").read_text()
    assert stored("load", "copy", "t-2.jsonl", "--store", "new.db", "--json").record == {
        "thread": "copy",
        "file": "t-2.jsonl",
    }
    before, after = stored("show", "t-2", "--json").record, stored("show", "copy", "--store", "new.db", "--json").record
    assert before["state"] == after["state"]
    assert stored("load", "copy", "t-2.jsonl", "--store", "new.db").code == 2
    assert stored("load", "x", "nothing.jsonl", "--store", "other.db").code == 2
    Path("bad.jsonl").write_text("{}")
    assert stored("load", "x", "bad.jsonl", "--store", "new.db").code == 5
    assert not Path("other.db").exists()


# Arguments, exit code, and what stderr says; `good` has a thread.
REFUSED: list[tuple[list[str], int, str]] = [
    (["load", "x", "list"], 5, "line 1: it is no object"),
    (["load", "x", "empty"], 5, "its end is missing"),
    (["load", "x", "half"], 5, "Nothing was loaded"),
    (["load", "x", "folder"], 2, "is a directory"),
    (["load", "", "good"], 2, "no name of a thread"),
    (["run", GRAPH, "--thread", "x"], 2, "missing inputs"),
    (["run", GRAPH, "--thread", "x", "--input", '{"text": 1}'], 2, "is refused"),
    (["run", GRAPH, "--thread", "", "--input", '{"text": "x"}'], 2, "no name of a thread"),
]


def test_what_is_refused_creates_no_store(stored: Command) -> None:
    assert stored("export", "t-2", "good").code == 0
    Path("list").write_text("[]\n")
    Path("empty").touch()
    Path("half").write_text(Path("good").read_text()[:300])
    Path("folder").mkdir()
    before = set(Path().iterdir())
    for command, code, text in REFUSED:
        done = stored(*command, "--store", "new.db")
        assert (done.code, done.out, text in done.err, "Traceback" in done.err) == (code, "", True, False), done
        assert set(Path().iterdir()) == before, command


def test_a_folder_is_no_file_to_export_to(stored: Command) -> None:
    for name in (".", "", "missing/t.jsonl"):
        done = stored("export", "t-2", name)
        assert (done.code, done.out, "Error:" in done.err) == (2, "", False), done
        assert [path.name for path in Path().iterdir()] == ["runs.db"]


def test_a_store_that_is_missing_is_never_created(cli: Command) -> None:
    for command in on_stores(cli):
        done = cli(*command)
        assert (done.code, done.out) == (5, ""), done
        assert "there is no file" in done.err
        assert not list(Path().iterdir()), command


def test_reading_changes_no_byte(stored: Command) -> None:
    Path("runs.db").chmod(0o400)
    before = Path("runs.db").read_bytes()
    for command in on_stores(stored)[:8]:
        assert stored(*command).code == 0, command
    assert Path("runs.db").read_bytes() == before
    assert [path.name for path in Path().iterdir()] == ["runs.db"]


@pytest.mark.parametrize(
    ("address", "text", "code"),
    [
        (".", "is a folder", 5),
        ("text.db", "no SQLite file", 5),
        ("other.db", "no store of dspyer", 5),
        (":memory:", "ends with its process", 2),
        ("mysql://host/db", "no store of kind 'mysql'", 2),
        ("postgresql://ada:secret@127.0.0.1:1/runs", "127.0.0.1", 5),
    ],
)
def test_what_is_no_store(cli: Command, address: str, text: str, code: int) -> None:
    Path("text.db").write_text("no database" * 1000)
    with sqlite3.connect("other.db") as connection:
        connection.execute("CREATE TABLE a (b)")
    connection.close()
    for command in (["runs"], ["resume", "t"], ["run", GRAPH, "--input", '{"text": "x"}', "--thread", "t"]):
        done = cli(*command, "--store", address)
        assert (done.code, text in done.err) == (code, True), done
        assert "secret" not in done.err
        assert len(done.err.splitlines()) <= 4


def test_without_a_store(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSPYER_STORE")
    for command in on_stores(cli):
        done = cli(*command)
        assert (done.code, "DSPYER_STORE" in done.err) == (2, True), done


def test_a_locked_file_can_be_read(stored: Command) -> None:
    connection = sqlite3.connect("runs.db", isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        assert len(stored("runs", "--json").records) == 3
    finally:
        connection.close()


def test_of_a_damaged_thread_the_structure_is_listed(stored: Command) -> None:
    where = "run = (SELECT id FROM run WHERE thread = 't-2') AND seq = 2"
    with sqlite3.connect("runs.db") as connection:
        ((body,),) = connection.execute(f"SELECT body FROM entry WHERE {where}")
        connection.execute(f"UPDATE entry SET body = ? WHERE {where}", (with_content(body, b"no JSON"),))
    connection.close()
    log, shown = stored("log", "t-2"), stored("show", "t-2")
    assert (log.code, shown.code) == (5, 5)
    assert log.out.count("(unreadable)") == 2  # and the first commit is there
    assert "t-2" in shown.out
    assert "Traceback" not in log.err + shown.err
    patches = [record["patch"] for record in stored("log", "t-2", "--json").records]
    assert [patch.get("$type") for patch in patches] == ["unreadable", "unreadable", None]
    assert stored("show", "t-1").code == 0


# --- encryption


@pytest.fixture
def key(cli: Command) -> str:
    """The key of the store, which is encrypted."""
    key = Encrypted.new_key()
    Path("key.txt").write_text(f"{key}\n")
    done = cli("run", GRAPH, "--input", '{"text": "secret"}', "--thread", "t", "--key-file", "key.txt")
    assert done.code == 3, done.err
    assert b"secret" not in Path("runs.db").read_bytes()
    return key


def test_the_key_comes_from_a_file_or_the_environment(cli: Command, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("show", "t", "--key-file", "key.txt", "--json").record["state"]["text"] == "secret"
    monkeypatch.setenv("DSPYER_STORE_KEY", key)
    assert cli("show", "t", "--json").record["state"]["text"] == "secret"
    assert cli("resume", "t", "--answer", "pay=true").code == 0
    monkeypatch.setenv("DSPYER_STORE_KEY", Encrypted.new_key())
    again = cli("run", GRAPH, "--input", '{"text": "x"}', "--thread", "t")
    assert (cli("show", "t").code, again.code) == (5, 5)


def test_with_another_key_a_graph_is_not_taken_for_none(
    cli: Command, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPYER_STORE_KEY", Encrypted.new_key())
    for command in ("graph", "stats"):
        done = cli(command, "t")
        assert (done.code, "encrypted with another key" in done.err) == (5, True)


def test_without_the_key(cli: Command, key: str) -> None:
    done = cli("show", "t")
    assert done.code == 5
    assert "DSPYER_STORE_KEY" in done.err
    assert (cli("resume", "t").code, cli("runs", "--key-file", "nothing").code) == (5, 2)
    Path("empty").touch()
    assert cli("runs", "--key-file", "empty").code == 2
    Path("bad").write_text("too short")
    assert cli("show", "t", "--key-file", "bad").code == 2


def test_a_key_in_the_environment_does_not_change_a_store_that_is_not_encrypted(
    stored: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPYER_STORE_KEY", Encrypted.new_key())
    assert stored("resume", "t-1", "--answer", "pay=true").code == 0
    Path("key.txt").write_text(os.environ["DSPYER_STORE_KEY"])
    done = stored("resume", "t-2", "--key-file", "key.txt")
    assert (done.code, "not encrypted" in done.err) == (5, True)
    monkeypatch.delenv("DSPYER_STORE_KEY")
    assert stored("show", "t-1", "--json").record["state"]["paid"] is True


def test_an_empty_store_becomes_encrypted_if_there_is_a_key(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with SQLite("runs.db") as store:
        thread = graph.compile(store=store).thread("gone")
        thread.run({"text": "x"})
        thread.delete()
    monkeypatch.setenv("DSPYER_STORE_KEY", Encrypted.new_key())
    assert cli("run", GRAPH, "--input", '{"text": "secret"}', "--thread", "t").code == 3
    assert b"secret" not in Path("runs.db").read_bytes()
