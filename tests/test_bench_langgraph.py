"""The recorder of `bench.langgraph_suite`: it runs a graph by both libraries, and knows same, refused and different."""

from __future__ import annotations

import json
import operator
import os
import signal
import threading
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from bench.langgraph_outcomes import plain, same
from bench.langgraph_recorder import Call, Recorder, dspyer_outcome, forked, import_all, langgraph_outcome
from bench.langgraph_suite import (
    DIFFERENCES,
    DOUBLED,
    TABLES,
    TITLE,
    Row,
    checkout,
    row,
    rows,
    run_tests,
    summary,
    tables,
    with_section,
)


class State(TypedDict, total=False):
    texts: Annotated[list[str], operator.add]
    name: str


CALLS: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    import_all()


def greet(state: State) -> dict[str, Any]:
    CALLS.append("greet")
    return {"texts": [f"Hello {state['name']}"]}


def fail(state: State) -> dict[str, Any]:
    raise ValueError(f"no {state['name']}")


def ask(state: State) -> dict[str, Any]:
    return {"texts": [f"{state['name']} said {interrupt('sure?')}"]}


def give_up(state: State) -> dict[str, Any]:
    return {"name": "x"}


def to_parent(state: State) -> Any:
    return Command(graph=Command.PARENT, update={"name": "x"})


def graph(*nodes: Any, **options: Any) -> Any:
    builder = StateGraph(State)
    for node in nodes:
        builder.add_node(node)
        builder.add_edge(START, node.__name__)
    return builder.compile(**options)


def recorded(tmp_path: Path, app: Any, given: Any, *, asynchronous: bool = False) -> dict[str, Any]:
    """The line of a test with one graph."""
    recorder = Recorder(str(tmp_path / "lines"), langgraph_outcome, dspyer_outcome)
    recorder.test = "tests/test_it.py::test_it[memory]"
    with recorder.hooked():
        for _ in range(2):  # the second call is not the first
            app.invoke(given, {"configurable": {"thread_id": "1"}})
    (line,) = (tmp_path / "lines").read_text().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_both_run_a_graph_in_processes_of_their_own(tmp_path: Path) -> None:
    CALLS.clear()
    line = recorded(tmp_path, graph(greet), {"name": "Ada"})
    assert CALLS == ["greet", "greet"]  # by the test itself: the recorder's runs left nothing behind
    assert line["langgraph"]["state"] == line["dspyer"]["state"] == {"name": "Ada", "texts": ["Hello Ada"]}
    assert row(line, {}) == Row("test_it.py::test_it", "same", (), None, calls=True)


def test_a_run_that_stops_is_continued_by_both(tmp_path: Path) -> None:
    line = recorded(tmp_path, graph(ask, checkpointer=InMemorySaver()), {"name": "Ada"})
    assert line["langgraph"]["asked"] == line["dspyer"]["asked"] == ["sure?"]
    assert line["langgraph_end"]["state"] == line["dspyer_end"]["state"] == {"name": "Ada", "texts": ["Ada said yes"]}
    assert row(line, {}).continued is True


@pytest.mark.parametrize("asynchronous", [False, True])
def test_errors_refusals_and_calls_without_an_input_are_told_apart(tmp_path: Path, asynchronous: bool) -> None:
    def outcomes(app: Any, given: Any) -> dict[str, Any]:
        call = Call(app, given, None, {}, asynchronous)
        return {"test": "t.py::t", **Recorder("", langgraph_outcome, dspyer_outcome).outcomes(call)}

    assert row(outcomes(graph(fail), {"name": "Ada"}), {}).kind == "same"
    refused = row(outcomes(graph(to_parent), {"name": "Ada"}), {})
    assert (refused.kind, len(refused.reasons)) == ("refused", 1)
    assert "`x` returns Command(graph=Command.PARENT)" in refused.reasons[0]
    line = outcomes(graph(give_up, greet), {"name": "Ada"})
    late = line | {"dspyer": {"kind": "error", "type": "GraphError", "text": "node 'x' asks"}}
    assert row(late, {"a trap": ["t.py::*"]}) == Row("t.py::t", "refused late", ("node `x` asks",))
    assert row(line | {"dspyer": line["langgraph"] | {"state": {}}}, {}).kind == "failed"
    assert row(line | {"dspyer": line["langgraph"] | {"state": {}}}, {"a trap": ["t.py::*"]}).reasons == ("a trap",)


def test_a_run_that_hangs_or_dies_is_an_outcome() -> None:
    def hang() -> dict[str, Any]:
        threading.Event().wait()
        return {}

    def die() -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    assert forked(hang, timeout=0.05)["text"] == "no end within 0.05 s"
    assert forked(die)["kind"] == "died"
    assert forked(lambda: {"n": {1}})["kind"] == "died"  # no JSON: nothing of it may go on in the test
    assert forked(lambda: {"n": 1})["n"] == 1


def test_random_ids_are_numbered_and_nothing_else_is_forgiven() -> None:
    one, other = "8c7a2e3e-1b1c-4f0e-9a55-1c2d3e4f5a6b", "00000000-0000-4000-8000-000000000001"
    assert plain({"id": one, "of": [one]}) == plain({"id": other, "of": [other]}) == {"id": "<id 0>", "of": ["<id 0>"]}
    assert plain({"id": "trunk:2/0"}) == plain({"id": one})
    assert plain({"id": one, "of": [one]}) != plain({"id": one, "of": [other]})
    for left, right in [((1,), [1]), ({1}, [1]), ({"a": 1}, {"a": 1, "b": None}), ("trunk:2/0", one)]:
        assert plain(left) != plain(right)
    done = {"kind": "completed", "state": {}, "asked": []}
    assert not same(done, done | {"asked": ["sure?"]})
    assert not same({"kind": "error", "type": "A", "text": "x"}, {"kind": "error", "type": "B", "text": "x"})


def test_the_tables_count_every_graph_once() -> None:
    found = [
        Row("a", "same", (), True, calls=True),
        Row("b", "refused", ("one", "two")),
        Row("c", "differs", ("a trap",)),
        Row("d", "left out", ("it waits",)),
    ]
    text = tables(found)
    assert "| 1 | 33% | end in the same state" in text
    assert "| 1 | one |\n| 1 | two |" in text
    assert "| 1 | a trap |" in text
    assert summary(found).startswith("3 graphs of 3 tests were compared. Of 1 runs")
    assert "Left out: 1, since it waits." in summary(found)


def test_what_langgraph_doubles_is_told_from_what_is_lost() -> None:
    def state(*texts: str, **more: Any) -> dict[str, Any]:
        return {"kind": "completed", "state": {"texts": list(texts), **more}, "asked": []}

    line = {"test": "t", "subgraphs": True, "dspyer": state("a", "b")}
    doubled = row(line | {"langgraph": state("a", "a", "b")}, {})
    assert (doubled.kind, doubled.reasons) == ("differs", (DOUBLED,))
    lost = [state("a", "c", "b"), state("a"), state("b", "b", "a"), state("a", "a", "b", n=1)]
    assert {row(line | {"langgraph": other}, {}).kind for other in lost} == {"failed"}
    assert row(line | {"subgraphs": False, "langgraph": state("a", "a", "b")}, {}).kind == "failed"


def test_the_tables_replace_those_of_the_page() -> None:
    page = f"# Page\n\n## {TITLE}\n\nAbout.\n\n## Next\n\nMore.\n"
    once = with_section(page, "| 1 |\n")
    assert once.startswith(f"# Page\n\n## {TITLE}\n\nAbout.\n\n{TABLES}\n\n| 1 |\n")
    assert once.endswith("\n## Next\n\nMore.\n")
    assert with_section(once, "| 1 |\n") == once
    assert with_section(with_section(page, "| 2 |\n"), "| 1 |\n") == once


def test_every_known_difference_has_a_reason_and_tests() -> None:
    assert rows([]) == []
    known = tomllib.loads(DIFFERENCES.read_text())["difference"]
    assert all(each["why"] and each["tests"] for each in known)
    assert len({each["why"] for each in known}) == len(known)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no checkout of LangGraph"):
        checkout(str(tmp_path))
    (tmp_path / "libs" / "langgraph" / "tests").mkdir(parents=True)
    assert checkout(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("code", [0, 1, 4, 5])
def test_tests_that_pytest_could_not_run_are_no_outcome(code: int, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexit {code}\n")
    python.chmod(0o755)
    with pytest.raises(SystemExit, match="not all tests") if code == 4 else nullcontext():
        run_tests(str(python), tmp_path, ["test_any.py"], tmp_path / "outcomes", [])
