"""The benchmarks compute the right things and their tables render. No test here looks at a time."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import growth, killable, killed, overhead, tickets
from bench.environments import BENCH, Environment, requirements
from bench.machine import calibrate, describe, spread
from bench.peers import (
    dspyer_agents_bench,
    dspyer_bench,
    dspyer_lms_bench,
    dspyer_search_bench,
    dspyer_state_bench,
    dspyer_stored_bench,
    handwritten_bench,
    plain_bench,
)
from bench.peers.measure import UnsupportedError, WrongResultError, expect, timed
from bench.process import Library, Peer, PeerError
from bench.report import Cell, Measured, Report, as_results, as_text, number
from bench.rows import PLAIN, Entry, Row, tables
from bench.run import Bench
from tests.rows import each

PLAIN_ROWS: list[tuple[str, dict[str, Any]]] = [
    ("loop", {"keys": 3, "steps": 4}),
    ("loop", {"keys": 3, "steps": 4, "history": True}),
    ("fan_out", {"branches": 5}),
    ("fan_out", {"branches": 5, "mode": "async"}),
    *[("patch_key", {"keys": 9, "alive": 2, "ops": 3, "how": how}) for how in ("deepcopy", "dict copy")],
    *[("append_message", {"messages": 9, "alive": 2, "ops": 3, "how": how}) for how in ("deepcopy", "dict copy")],
    *[("patch_leaf", {"depth": 4, "alive": 2, "ops": 3, "how": how}) for how in ("deepcopy", "dict copy")],
    ("memory", {"keys": 9, "versions": 3}),
]
STATE_ROWS: list[tuple[str, dict[str, Any]]] = [
    ("patch_key", {"keys": 100, "alive": 2, "ops": 3}),
    ("append_message", {"messages": 100, "alive": 2, "ops": 3}),
    ("patch_leaf", {"depth": 4, "alive": 2, "ops": 3}),
    ("memory", {"keys": 9, "versions": 3}),
    ("fork_bytes", {"items": 70}),
]
STORED_ROWS: list[tuple[str, dict[str, Any]]] = [
    *[("stored_loop", {"store": store, "steps": 3}) for store in (":memory:", "runs.db")],
    ("stored_loop", {"store": "runs.db", "steps": 3, "mode": "async"}),
    ("message_bytes", {"messages": 5, "when": "closed"}),
    ("idle_bytes", {"size": 50_000, "steps": 2}),
    ("metered", {"steps": 3}),
    ("idle_step", {"size": 50_000, "steps": 3}),
    ("fork_stored", {"items": 70, "forks": 20}),
    *[("head", {"commits": 5, "what": what}) for what in ("n", "messages")],
    *[("archived", {"threads": 3, "what": what}) for what in ("list", "contains", "overview")],
    *[("recorded", {"commits": 5, "what": what}) for what in ("read", "JSON, gzip", "compare")],
    *[("inspected", {"commits": 5, "what": what}) for what in ("first page", "step")],
]
GRAPH_ROWS: list[tuple[str, dict[str, Any]]] = [
    ("loop", {"keys": 1, "steps": 4}),
    ("loop", {"keys": 100, "steps": 4, "history": True}),
    ("loop", {"keys": 1, "steps": 4, "retry": 3}),
    *[("loop", {"keys": 1, "steps": 4, "tracing": how}) for how in ("recorded", "left out")],
    ("call", {"keys": 50}),
    ("compile_chain", {"nodes": 3}),
    *[("cached", {"steps": 3, "hits": hits}) for hits in (True, False)],
    *[("fan_out", {"branches": 5, "mode": mode}) for mode in ("sync", "async", "mixed")],
    *[("crowd", {"runs": 5, "mode": mode}) for mode in ("sync", "async")],
    *[("map", {"branches": 5, "mode": mode}) for mode in ("sync", "async")],
    *[("fork", {"keys": 3, "steps": 2, "mode": mode}) for mode in ("sync", "async")],
]


@pytest.mark.parametrize(("work", "size"), PLAIN_ROWS)
def test_plain_workloads_check_their_result(work: str, size: dict[str, Any]) -> None:
    assert plain_bench.WORKS[work](**size)() > 0


@pytest.mark.parametrize(("work", "size"), STATE_ROWS)
def test_state_workloads_check_their_result(work: str, size: dict[str, Any]) -> None:
    assert dspyer_state_bench.WORKS[work](**size)() > 0


@pytest.mark.parametrize(("work", "size"), GRAPH_ROWS)
def test_graph_workloads_check_their_result(work: str, size: dict[str, Any]) -> None:
    assert dspyer_bench.WORKS[work](**size)() > 0


@pytest.mark.parametrize(("work", "size"), STORED_ROWS)
def test_stored_workloads_check_their_result(work: str, size: dict[str, Any]) -> None:
    assert dspyer_stored_bench.WORKS[work](**size)() > 0


def test_the_workload_of_limits_checks_its_result() -> None:
    assert dspyer_lms_bench.WORKS["limited"](items=5, width=3, window=0.01, share=1)() > 0


@pytest.mark.parametrize("by_hand", [True, False])
def test_the_workloads_of_agents_check_their_result(by_hand: bool) -> None:
    assert dspyer_agents_bench.WORKS["agent_turns"](turns=2, by_hand=by_hand)() > 0
    assert dspyer_agents_bench.WORKS["agent_bytes"](turns=2, size=10)() > 0


def test_what_may_be_nothing_is_measured_too() -> None:
    assert dspyer_stored_bench.WORKS["message_bytes"](messages=5, when="open")() >= 0
    assert isinstance(dspyer_stored_bench.WORKS["stored_loop"]("runs.db", 3, "flush")(), float)
    assert dspyer_stored_bench.WORKS["killed"](steps=2)() == 0


@pytest.mark.parametrize("work", sorted(handwritten_bench.WORKS))
def test_programs_by_hand_and_their_graphs_answer_alike(work: str) -> None:
    size = {"examples" if "evaluate" in work else "calls": 1}
    assert handwritten_bench.WORKS[work](**size)() > 0
    assert dspyer_bench.WORKS[work.removesuffix("_by_hand")](**size)() > 0


@functools.cache
def works_of(module: str) -> set[str]:
    """The workloads of a module, read from its text: the other libraries are not installed here."""
    tree = ast.parse((BENCH / "peers" / f"{module}.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "WORKS" and isinstance(node.value, ast.Dict):
            return {ast.literal_eval(key) for key in node.value.keys if key is not None}
    raise AssertionError(f"{module} has no WORKS")


def test_every_cell_of_every_row_has_its_workload() -> None:
    missing = [
        f"{row.title}: {entry.library.name} has no {entry.work}"
        for table in tables()
        for row in table.rows
        for entry in row.entries
        if not any(entry.work in works_of(module) for module in entry.library.modules)
    ]
    assert missing == []


def test_every_library_is_pinned() -> None:
    for table in tables():
        for row in table.rows:
            for library in (entry.library for entry in row.entries):
                if library.requirement:
                    lines = requirements(library.environment)
                    assert any(line.startswith(f"{library.requirement}==") for line in lines), library.name


def test_a_wrong_result_is_an_error_not_a_time() -> None:
    with pytest.raises(WrongResultError, match="got 1, wanted 2"):
        timed(lambda: 1, 1, lambda got: expect(got, 2))


def test_spread_is_half_the_quartiles_distance() -> None:
    assert spread([1.0]) == 0.0
    assert spread([8.0, 9.0, 10.0, 11.0, 12.0]) == pytest.approx(0.1)
    assert calibrate() > 0
    assert "Python" in describe()


def measured(**cells: list[float]) -> Measured:
    named = {name.replace("_", " "): Cell(values) for name, values in cells.items()}
    return Measured("a step", "µs", 15.0, "", named)


def test_ratios_are_taken_round_by_round() -> None:
    row = measured(dspyer=[1e-5, 2e-5, 4e-5], other=[1e-4, 2e-4, 8e-4])
    assert row.ratio("other") == pytest.approx(10)
    assert row.verdict() == "≤ 15 µs: **no**"
    assert measured(dspyer=[1e-5]).verdict() == "≤ 15 µs: yes"
    assert measured(other=[1e-5]).verdict() == "≤ 15 µs"


def test_a_goal_may_be_relative() -> None:
    row = Measured("chain", "ms", 1.05, "by hand", {"dspyer": Cell([0.0103]), "by hand": Cell([0.01])})
    assert row.verdict() == "≤ 1.05 × by hand: 1.03, yes"


def test_a_goal_may_be_how_much_faster() -> None:
    row = Measured("fan", "µs", 1 / 4, "LangGraph", {"dspyer": Cell([1e-5]), "LangGraph": Cell([3e-5])})
    assert row.verdict() == "≥ 4 × as fast as LangGraph: 3.00, **no**"
    assert row.shortfall() == "3.00 × as fast as LangGraph, goal 4"


def test_the_tables_of_the_results_have_three_columns_and_every_figure_is_listed() -> None:
    many = {name: Cell([value]) for name, value in (("dspyer", 1e-5), ("LangGraph", 1e-4), ("A", 2e-5), ("B", 3e-5))}
    many["plain Python"] = Cell([1e-7])
    page = as_results(Report([("Runs", "What it is.", [Measured("a step", "µs", None, "", many)])], [0.01]))
    row = next(line for line in page.splitlines() if line.startswith("| a step"))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        "a step",
        "10.0 µs ± 0%",
        "LangGraph 100 µs ± 0% (10.0×)<br>A 20.0 µs ± 0% (2.00×)",
    ]
    listed = page.partition("## All figures")[2]
    assert all(f"{name} " in listed for name in many)


def test_the_results_say_who_was_faster_and_the_run_which_goals_it_missed() -> None:
    slow = Measured("a step", "µs", 15.0, "", {"dspyer": Cell([2e-5]), "other": Cell([1e-5]), "by hand": Cell([1e-6])})
    ratio = Measured("chain", "ms", 1.05, "by hand", {"dspyer": Cell([0.012]), "by hand": Cell([0.01])})
    report = Report([("Runs", "What it is.", [slow, ratio])], [0.01], {}, 1, "a machine", "2026-01-01")
    page, printed = as_results(report), as_text(report)
    assert "- a step: 20.0 µs, goal 15" in printed
    assert "- chain: 1.20 × by hand, goal 1.05" in printed
    assert "goal" not in page.lower()
    assert "- a step: other (0.50×)" in page
    assert "by hand (" not in page.partition("Libraries that were faster")[2]


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.012, "0.01")])
def test_numbers_have_no_exponents(value: float, text: str) -> None:
    assert number(value) == text


def test_tables_render_with_figures_problems_and_gaps() -> None:
    first = measured(dspyer=[1e-5, 1e-5], other=[1e-4, 1e-4])
    second = Measured("a fork", "KiB", None, "", {"dspyer": Cell([2048.0]), "third": Cell([], "– keeps no history")})
    report = Report(
        [("Runs", "What it is.", [first, second])], [0.01, 0.011], {"other": "1.2"}, 2, "a machine", "2026-01-01"
    )
    text = as_text(report)
    assert "| a step | µs   | 10.0 ± 0% | 100 ± 0% (10.0×) |" in text
    assert "– keeps no history" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    page = as_results(report)
    assert page.startswith("Each library runs in a process of its own")
    assert "2026-01-01. a machine. other 1.2." in page


def test_a_row_is_measured_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = (
        Entry("plain", PLAIN, "loop", {"keys": 2, "steps": 3}),
        Entry("again", PLAIN, "loop", {"keys": 2, "steps": 3, "history": True}),
        Entry("nobody", PLAIN, "teleport", {}),
    )
    bench = Bench(rounds=2)
    try:
        row = bench.measure(Row("a step", "µs", entries))
    finally:
        bench.close()
    assert [len(cell.values) for cell in row.cells.values()] == [2, 2, 0]
    assert row.cells["nobody"].problem == "– no workload 'teleport'"
    assert len(bench.noise) == 4


def test_what_is_not_installed_is_said_in_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Environment(sys.executable, {"plain==1": "No matching distribution"})
    monkeypatch.setattr("bench.process.environment", lambda name: broken)
    with pytest.raises(PeerError, match="not installed: No matching distribution"):
        Peer(Library("plain", "anywhere", ("plain_bench",), "plain"), 10)


def test_a_process_that_dies_says_its_last_words() -> None:
    with pytest.raises(PeerError, match="the process ended: ModuleNotFoundError"):
        Peer(Library("ghost", "here", ("ghost_bench",)), 60)


def test_the_server_answers_each_line_and_survives_errors() -> None:
    asked = [
        {"ask": "hello"},
        {"ask": "prepare", "id": "a", "work": "loop", "size": {"keys": 1, "steps": 2}},
        {"ask": "round", "id": "a"},
        {"ask": "drop", "id": "a"},
        {"ask": "round", "id": "a"},
        {"ask": "dance"},
    ]
    done = subprocess.run(
        [sys.executable, str(Path(BENCH) / "peers" / "serve.py"), "plain_bench"],
        input="\n".join(map(json.dumps, asked)),
        capture_output=True,
        text=True,
        check=True,
    )
    hello, prepared, value, dropped, gone, unknown = map(json.loads, done.stdout.splitlines())
    assert hello["versions"] == {}
    assert prepared == dropped == {"ok": True}
    assert value["value"] > 0
    assert gone == {"error": "KeyError: 'a'"}
    assert unknown == {"error": "ValueError: unknown request 'dance'"}


def test_unsupported_is_not_a_failure() -> None:
    assert issubclass(UnsupportedError, Exception)
    assert not issubclass(UnsupportedError, WrongResultError)


@each("row", growth.ROWS, ids=[row.title for row in growth.ROWS], items=4)
def test_growth_rows_measure(row: growth.Growth) -> None:
    assert row.measure(3) > 0


OVERHEAD = [row for row in overhead.rows(0) if row.title != "import, after DSPy"]  # seconds for each process


@each("row", OVERHEAD, ids=[row.title for row in OVERHEAD], items=4)
def test_rows_of_the_overhead_measure(row: overhead.Row) -> None:
    title, ours, beside, *_ = row.cells(1, [])
    assert title == row.title
    assert ours.endswith(f" {row.unit}")
    assert beside == "–" if row.theirs is None else beside.startswith(f"{row.against}: ")


@each(
    "compare, goal, ours, theirs, told",
    [
        ("faster", 10, 2.0, 20.0, ("10.0 × as fast", "≥ 10 × as fast", "yes")),
        ("faster", 10, 2.0, 19.0, ("9.50 × as fast", "≥ 10 × as fast", "nearly")),
        ("faster", 10, 2.0, 18.0, ("9.00 × as fast", "≥ 10 × as fast", "**no**")),
        ("share", 1.2, 12.0, 10.0, ("1.20 ×", "≤ 1.2 ×", "yes")),
        ("share", 1.2, 14.0, 10.0, ("1.40 ×", "≤ 1.2 ×", "**no**")),
        ("alone", 51, 53.0, None, ("", "≤ 51 calls", "nearly")),
        ("alone", 0, 0.0, 3.0, ("", "≤ 0 calls", "yes")),
        ("alone", 0, 1.0, 3.0, ("", "≤ 0 calls", "**no**")),
        ("faster", None, 2.0, 20.0, ("10.0 × as fast", "–", "")),
    ],
)
def test_the_overhead_has_a_verdict(
    compare: Any, goal: float | None, ours: float, theirs: float | None, told: tuple[str, str, str]
) -> None:
    row = overhead.Row("a work", "calls", goal, compare, lambda: lambda: 1.0)
    assert row.verdict(ours, theirs) == told


def test_the_overhead_is_the_smallest_of_rounds_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []

    def peer(name: str, *values: float) -> overhead.Make:
        found = iter(values)

        def measure() -> float:
            told.append(name)
            return next(found)

        return lambda: measure

    row = overhead.Row("a work", "calls", 2, "faster", peer("a", 1, 4, 3), peer("b", 1, 9, 8))
    assert row.cells(2, [])[:4] == ["a work", "3.00 calls", "LangGraph: 8.00 calls", "2.67 × as fast"]
    assert told == ["a", "b"] * 3
    page = tmp_path / "page.md"
    page.write_text("# Benchmarks\n\n## Libraries that were faster\n")
    overhead.main(["--share", "0", "--rounds", "1", "--only", "`deepcopy`", "--write", str(page)])
    assert "| `deepcopy` of 2 predictors / by hand |" in capsys.readouterr().out
    assert page.read_text().index("## Overhead") < page.read_text().index("## Libraries that were faster")


@pytest.mark.slow("counts bytes, for which it collects the garbage of the whole process")
def test_the_workloads_of_searches_check_their_result() -> None:
    works = dspyer_search_bench.WORKS
    assert works["late_trial"](trials=12)() > 0
    assert 100 < works["trial_bytes"](trials=9, text=1000)() < 5_000
    for by_hand in (True, False):
        assert works["round_of_trials"](trials=2, seconds=0.0, by_hand=by_hand)() > 0


@pytest.mark.slow("an optimization in seven processes")
@pytest.mark.parametrize("optimizer", ["optimize.GEPA", "MIPROv2"])
def test_an_optimization_that_was_killed_and_is_started_again_ends_the_same(optimizer: str, tmp_path: Path) -> None:
    """DSPy's cache on disk answers what was asked before the kill, also of an LM that would answer differently now."""
    found = killed.survey(killable.Work(optimizer, small=True), 3, tmp_path)
    assert (found.points, found.equal) == (3, 3)
    assert found.repeated is not None
    assert found.repeated <= killable.BRANCHES
    assert 0 < found.before < 3 * found.calls


@pytest.mark.slow("two optimizers, each with a cache and without one")
def test_optimizers_on_tickets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without `cache=` the tuned programs are equal; the tool is called once for each ticket."""
    sizes = {"TRAIN": 5, "DEV": 3, "TEST": 2, "DEMOS": 2, "ROLLOUTS": 2, "BUDGET": 30, "MINIBATCH": 3, "TRIALS": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(tickets, name, size)
    assert (
        tickets.main(
            ["--seeds", "1", "--delay", "0", "--tool-delay", "0", "--only", "FewShot`, rollouts", "optimize.GEPA"]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()[2:-2]
    assert len(lines) == 2
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found = re.fullmatch(r"(\d+) tool calls, [\d.]+ min", cells[7])  # it would say OTHER RESULTS
        assert found, line
        assert 0 < int(found[1]) <= min(int(cells[5]), 8)
        assert "FewShot" in line or int(found[1]) <= int(cells[5]) / 4, "in an optimization each ticket comes back"
