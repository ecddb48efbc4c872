"""Every command prints JSON lines with `--json`, whose names are those of `to_dict()` and are stable."""

from __future__ import annotations

from dataclasses import fields

from dspyer.archive.run_info import RunInfo, Waiting
from dspyer.events import Commit
from dspyer.record import Overview
from tests.cli.conftest import Command, names_of_commands
from tests.cli.orders import GRAPH
from tests.rows import each

RUN = {*RunInfo._fields}
AROUND = {"answers", "blame", "lm_calls", "sent"}
COMMIT = {*(one.name for one in fields(Commit)), "ended"}

# A command, the keys of each of its lines, and their number.
ROWS: list[tuple[list[str], set[str], int]] = [
    (["runs"], RUN, 3),
    (["threads"], RUN, 3),
    (["due"], {"thread"}, 0),  # test_act.py has some
    (["questions"], {*Waiting._fields}, 1),
    (["overview"], {*Overview._fields}, 1),
    (["compare", "t-1", "t-2.1"], {"a", "b", "figures", "pairs"}, 1),
    (["show", "t-1"], {*RUN, "answers", "items", "messages", "state", "lm_calls"}, 1),
    (["show", "t-1", "1"], {"commit", "before", "after", "diff", "conflicts", *AROUND}, 1),
    (["show", "t-1", "trunk:2"], {"execution", "node", "parents", "state", *AROUND}, 1),
    (["log", "t-2"], {*COMMIT, "answers"}, 3),
    (["diff", "t-2", "0", "2"], {"first", "second", "diff"}, 1),
    (["blame", "t-2"], {"path", *COMMIT}, 4),
    (["blame", "t-2", "paid", "amount"], {"path", *COMMIT}, 2),
    (["stats", "t-2"], {"nodes", "usage", "unknown"}, 1),
    (["graph", "t-2"], {"name", "width", "height", "nodes", "edges"}, 1),
    (["run", GRAPH, "--input", '{"text": "a"}'], {*RUN, "outputs"}, 1),
    (["run", GRAPH, "--input", '{"text": "a"}', "--thread", "t-9"], {*RUN, "outputs"}, 1),
    (["resume", "t-1", "--answer", "pay=true"], {*RUN, "outputs"}, 1),
    (["copy", "t-2", "new"], {"thread", "status"}, 1),
    (["export", "t-2", "t-2.jsonl"], {"thread", "file", "digest"}, 1),
    (["rerun", "t-2", "0"], {*RUN, "outputs"}, 1),
    (["prune", "t-2", "1"], {"threads", "runs", "rows", "kept", "erased", "busy"}, 1),
]
BY_THEMSELVES = {
    "examples": "needs a predictor: tests/cli/test_prompts.py",
    "inspect": "serves until it is stopped: tests/cli/test_inspect.py",
    "stop": "needs a run that works: tests/cli/test_act.py",
    "load": "needs a file: tests/cli/test_files_and_stores.py",
}


def test_the_table_has_every_command(cli: Command) -> None:
    assert {row[0][0] for row in ROWS} | BY_THEMSELVES.keys() == {*names_of_commands(cli)}


@each(("command", "keys", "count"), ROWS, ids=[" ".join(row[0])[:30] for row in ROWS])
def test_keys(stored: Command, command: list[str], keys: set[str], count: int) -> None:
    done = stored(*command, "--json")
    assert done.code in (0, 3), done.err
    assert [set(record) for record in done.records] == [keys] * count
    assert done.out.isascii()


def test_a_run_is_printed_as_the_archive_lists_it(cli: Command) -> None:
    made = cli("run", GRAPH, "--input", '{"text": "hello"}', "--thread", "t", "--json").record
    outputs = made.pop("outputs")
    assert outputs is None
    assert cli("runs", "--json").record == made
    assert made["questions"][0]["text"] == "Pay 5.0 USD?"


def test_values_that_json_does_not_have(cli: Command) -> None:
    """NaN, bytes and values of unknown classes are in the encoding of the stores."""
    cli("run", "tests.cli.orders:odd", "--thread", "t", "--json")
    shown = cli("show", "t", "--json").record["state"]
    assert shown["number"] == {"$type": "float", "value": "nan"}
    assert shown["data"]["$type"] == "bytes"
    assert shown["place"]["$type"]
    assert "nan" in cli("show", "t").out
