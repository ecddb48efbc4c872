"""What a node asked before it failed, in the shell: its LM calls, and their texts if they were recorded."""

from __future__ import annotations

import json
from typing import Any, Literal

import dspy
import pytest

from dspyer import END, START, Archive, Graph
from dspyer.testing import ScriptedLM
from tests.cli.conftest import Command

Recorded = Literal["usage", "full"]


class Refund(dspy.Module):
    """Asks, and fails with the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = dspy.Predict("order -> reply")

    def forward(self, order: str) -> dspy.Prediction:
        raise KeyError(self.reply(order=order).reply)


def make_failed(recorded: Recorded, **settings: Any) -> None:
    graph = Graph(name="Support").add_node("note", lambda letter: {"order": letter}, writes=["order"])
    graph.add_node("refund", Refund(), reads=["order"], writes=["reply"]).add_path(START, "note", "refund", END)
    program = graph.compile(store="runs.db", record_lm_calls=recorded, **settings)
    with ScriptedLM([{"reply": "back\x1b[2J"}]):
        assert program.thread("t").run({"letter": "A-71"}).status == "failed"


def test_the_lm_calls_of_what_failed(cli: Command) -> None:
    make_failed("full")
    shown = cli("show", "t")
    assert "LM calls of what failed\nPREDICTOR" in shown.out
    assert "refund.reply" in shown.out
    assert "[[ ## reply ## ]]" not in shown.out
    (call,) = cli("show", "t", "--json").record["lm_calls"]
    assert (call["node"], call["messages"][-1]["role"]) == ("refund", "user")
    for execution in ([], ["t.1/trunk:2"]):
        texts = cli("show", "t", *execution, "--prompts").out
        assert "LM call 1, user:\n  [[ ## order ## ]]\n  A-71\n" in texts
        assert "LM call 1, response:\n  [[ ## reply ## ]]\n  back\\x1b[2J\n" in texts


def test_an_item_by_its_id(cli: Command) -> None:
    """That of one which failed its map is the id of the map; any other one is a step of its own."""
    graph = Graph(name="Parts").add_map("part", lambda n: 6 // n, over="items", item="n", into="found")
    graph.add_path(START, "part", END).compile(store="runs.db").thread("t").run({"items": [2, 0]})
    assert "items    part: 1 of 2 items, 1 failed\n" in cli("show", "t").out
    counts = {"node": "part", "total": 2, "done": 1, "failed": 1, "waiting": 0}
    assert cli("show", "t", "--json").record["items"] == [counts]
    shown = [cli("show", "t", f"trunk:1[{index}]", "--json").record["execution"] for index in range(2)]
    assert shown == ["t.1/trunk:1[0]", "t.1/trunk:1"]


@pytest.mark.parametrize(("recorded", "settings"), [("usage", {}), ("full", {"redact": ["reply"]})])
def test_without_texts(cli: Command, recorded: Recorded, settings: dict[str, Any]) -> None:
    make_failed(recorded, **settings)
    shown = cli("show", "t", "--prompts").out
    assert "refund.reply" in shown
    assert 'LM call 1: no texts; compile(record_lm_calls="full") records them' in shown
    assert "A-71\n" not in shown.partition("state")[0]


def test_of_a_commit(cli: Command) -> None:
    graph = Graph(name="Say").add_node("answer", dspy.Predict("question -> answer")).add_path(START, "answer", END)
    program = graph.compile(store="runs.db", record_lm_calls="full")
    with ScriptedLM([{"answer": "The moon."}]):
        program.thread("t").run({"question": "Why?"})
    assert cli("show", "t", "--json").record["lm_calls"] == []
    assert "LM calls" not in cli("show", "t", "--prompts").out
    assert "LM call 1, response:\n  [[ ## answer ## ]]\n  The moon.\n" in cli("show", "t", "1", "--prompts").out


def test_examples_are_lines_of_a_data_set_and_two_runs_are_compared(cli: Command) -> None:
    graph = Graph(name="Say").add_node("answer", dspy.Predict("question -> answer")).add_path(START, "answer", END)
    program = graph.compile(store="runs.db", record_lm_calls="full")
    with ScriptedLM([{"answer": "The moon."}, {"answer": "The \x1b[2Jsun."}]):
        for name, question in (("t", "Why?"), ("u", "What?")):
            program.thread(name).run({"question": question})
    made = cli("examples", "answer")
    assert [(one["inputs"], one["outputs"]["answer"], one["run"], one["step"]) for one in made.records] == [
        ({"question": "Why?"}, "The moon.", "t.1", "t.1/trunk:1"),
        ({"question": "What?"}, "The \x1b[2Jsun.", "u.1", "u.1/trunk:1"),
    ]
    assert ({*made.records[0]}, made.err) == ({"inputs", "outputs", "run", "step", "corrected"}, "")
    assert cli("examples", "answer", "--json", "--contains", "MOON").record == made.records[0]
    assert (cli("examples", "answer", "--status", "failed").out, cli("examples", "gone").code) == ("", 2)
    assert "Nodes that have some: 'answer'" in cli("examples", "gone").err
    for command in (["compare", "t", "u"], ["compare", "t.1", "u.1"]):
        with Archive("runs.db") as archive:
            a, b = [archive.thread(name).record() for name in "tu"]
        shown = cli(*command)
        assert (shown.code, shown.out.splitlines()[0], "\x1b" in shown.out) == (
            0,
            str(a.compare(b)).splitlines()[0],
            False,
        )
        assert cli(*command, "--json").record == {
            "a": "t.1",
            "b": "u.1",
            **json.loads(json.dumps(a.compare(b).to_dict())),
        }


@pytest.mark.parametrize(
    ("command", "text"),
    [(["t-9", "t-1"], "no thread 't-9'"), (["t-1", "t-1.9"], "no run 't-1.9'"), (["", "t-1"], "''")],
)
def test_what_cannot_be_compared(stored: Command, command: list[str], text: str) -> None:
    done = stored("compare", *command)
    assert (done.code, done.out, text in done.err) == (2, "", True), done.err
    asked, summed = stored("questions").out, stored("overview").out
    assert "Pay 5.0 USD?" in asked
    assert "ValueError: cannot read boom" in summed
