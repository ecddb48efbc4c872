"""The examples run offline, as in a fresh clone of the project, and show what they say."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import runpy
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from tests import type_adapters  # noqa: F401 - the examples are forked from a process that has imported this file
from tests.children import server_address, use_server
from tests.pages import shown_of_programs

EXAMPLES = Path(__file__).parent.parent / "examples"

SHOWN = {
    "quickstart.py": [
        "loop of plan_step, check: a round begins at plan_step",
        "fork    classify, extract, urgency, contract",
        "join    4 branches at triage",
        "merge   urgency",
        "empty: category, wish, urgency, step, remarks, reply",
        "Who wrote it? category: classify, urgency: contract, reply: answer",
        "12 tickets, as the desk is written",
    ],
    "optimize.py": [
        "as written",
        "BootstrapFewShot ",
        "BootstrapFewShotWithRandomSearch",
        "MIPROv2",
        "the tickets of quickstart.py",
        "loaded into a new graph",
    ],
    "tune.py": [
        "field     right  given right inputs  goal if it were gold  runs it breaks",
        "last writer   assign ",
        "100 % classify: `category` is 'billing', expected 'bug'.",
        "  dspy.LabeledFewShot ",
        "  dspy.BootstrapFewShot ",
        "  optimize.FewShot ",
        "  optimize.GEPA ",
        "predictor  right given right inputs  selected  kept",
    ],
    "documents.py": [
        "START -> understand -> retrieve -> answer -> quoted -> answer_fix -> quoted",
        "Which operator multiplies two matrices?",
    ],
    "corrections.py": [
        "40 mails in the archive; people have corrected categories in 37, urgency in 37",
        "Where the desk loses: goal `queue`: 1 of 40 right",
        "review.urgency",
        "route (not tunable) ",
        "45 gold runs",
    ],
    "research_team.py": [
        "plan past today join:critic critic plan past today join:critic critic write",
        "remark: '[PEP 338] Executing modules as scripts: off topic'",
    ],
    "extract.py": [
        "adds_up: reads lines, total; writes problems; -> END, extract_fix",
        "the letters to learn from: first try 1 of 4, corrected 3, left 0",
        "refused  [12.5, 2.0, 40.0] the lines miss the total by 4.00",
        "the others, as written:    first try 1 of 5, corrected 3, left 1",
        "tuned with 3 repairs:      first try 4 of 5, corrected 0, left 1",
        "to be looked at: 2 x ticket 9.00; fee 1.00; total 24.00 -- the lines miss the total by 5.00",
        "extract           5     80.0 %    20.0 %",
    ],
    "rounds.py": [
        "researcher  analysis = view('analysis').new()      30   3,915   58,725    6.7 %",
        "whole prompts: 33,626 tokens with views, 285,723 with whole fields",
        "that is 11.8 %",
    ],
    "whole.py": [
        "['read took ",
        "refund(order='A-17', amount=60)? -> half of it",
        "'write' comes next; continue? -> goes on",
        "Dear Ada, We pay 45.00 back for the kettle. ['A-17 broke']",
        "the reply is by ada.2/trunk:0, that of the run was by trunk:6",
        "    read[0] (item) scripted",
        "    refund (tool)",
        "18 executions were timed",
        "`reply` is 'Dear Ada, We pay 45.00 back for the kettle.', expected 'Dear Ada, no.'.",
    ],
    "fleet.py": [
        "web: 12 requests, one of them sent twice",
        "a worker was killed in the middle of its runs: ",
        "every job has ended: {'completed': 10, 'interrupted': 2}",
        "  refund-04 asks: Pay back 79.0 USD?",
        "the other workers ended with [0, 0]",
        "in the end: {'completed': 12}",
        "failed jobs: none",
        "runs: 12 for 12 requests",
        "with 12 keys",
    ],
    "retention.py": [
        "threads: 8, the newest runs: ['2026-11-23/r2', '2026-11-23/r1', '2026-11-22/r2']",
        "2026-08-24 is not dropped: ",
        "days: 2026-08-25, 2026-11-22, 2026-11-23; threads: 6",
        "delivered again: 0 calls",
        "delivered late: 0 calls, requests of 2026-08-24 are kept no longer",
        "deleted: ('ada', 'bob'), in use: ()",
        "completed: 1, left: ['eve', 'fay']",
    ],
    "batch_peps.py": ["0.0204 USD, 0.000068 each"],
    "scans.py": [
        "The first pool loses a process: the run has failed, BrokenProcessPool",
        "The second pool: the run has completed",
        "12 of 12 letters were read as they were written",
        "12 were classified, by the language model of this process",
    ],
    "batch_dask.py": [
        "% of 40 tickets",
        "after 10 tickets, a worker is killed",
        "the same predictions: True",
    ],
    "look.py": [
        "  reader-17-short  completed    0.0017 USD",
        "  reader-18        failed       0.0000 USD",
        "  reader-19        interrupted  0.0015 USD",
        "+ update: task",
        "~   react: prompt: task",
        "  False  Both repeat what works.",
        "inspect demo.db --program look:program",
    ],
    "from_langgraph.py": [
        "This graph can be converted: from_langgraph(graph).",
        "  classify  function    Keywords      messages                     category        plan",
    ],
    "support_chat.py": ["      killed by SIGKILL: True"],
}

for program, outputs in shown_of_programs().items():
    if outputs:
        SHOWN.setdefault(program, []).extend(outputs)


FEWER: dict[str, dict[str, Any]] = {
    "fleet.py": {"HEARTBEAT": 0.1, "SILENCE": 0.6},
    "optimize.py": {"TRAIN": 48, "DEV": 6, "TEST": 16, "CANDIDATES": 2, "TRIALS": 3},
    "tune.py": {"TRAIN": 72, "DEV": 12, "TEST": 24, "CALLS": 120},
    "scans.py": {"LETTERS": 12},
    "batch_dask.py": {"TICKETS": 40},
}
"""Constants of examples that take long: fewer held-out tickets show the gain of an optimizer too."""


DEAR = {"batch_dask.py", "batch_peps.py", "corrections.py", "fleet.py", "from_langgraph.py", "optimize.py", "scans.py"}
DEAR |= {"documents.py", "home.py", "tune.py"}
RUNS = [
    pytest.param(name, marks=[pytest.mark.slow("many runs, processes or an optimizer")] * (name in DEAR))
    for name in SHOWN
]


@pytest.mark.parametrize("name", RUNS)
def test_example_shows_what_it_says(name: str, tmp_path: Path) -> None:
    """S004-30."""
    output = tmp_path / "output.txt"
    child = started(EXAMPLES / name, output)
    child.join()
    printed = output.read_text(encoding="utf-8")
    assert child.exitcode == 0, printed
    for line in SHOWN[name]:
        assert line in printed
    if name == "optimize.py":
        assert_tuning_helped(printed)
    if name == "tune.py":
        assert_fields_helped(printed)
    if name == "corrections.py":
        assert_corrections_helped(printed)
    if name == "from_langgraph.py":
        assert_predictors_learned(printed)
    if name == "scans.py":
        assert_no_scan_was_read_twice(printed)


class Forked(ForkServerProcess):
    """A process with the environment of the one that starts it. By itself, it would have the server's."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.environment = dict(os.environ)

    def run(self) -> None:
        """What it does."""
        os.environ.update(self.environment)
        super().run()


class Forking(ForkServerContext):
    """In place of `multiprocessing.get_context`."""

    Process = Forked


def started(example: Path, output: Path) -> Forked:
    """A child that runs an example, as `run_as_a_program` does; the processes it starts are forked from its server."""
    child = Forked(target=run_as_a_program, args=(example, output), kwargs={"server": server_address()})
    child.start()
    return child


def run_as_a_program(
    example: Path,
    output: Path,
    environment: Mapping[str, str] | None = None,
    server: str = "",
) -> None:
    """Run an example in this process, as `python example` does in an empty folder; its prints go to a file."""
    os.environ.pop("DSPYER_MODEL", None)
    os.environ.update(environment or {})
    os.chdir(output.parent)
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", 1, "utf-8", closefd=False)  # noqa: SIM115 - it lasts as long as the process
    sys.stderr = open(2, "w", 1, "utf-8", closefd=False)  # noqa: SIM115 - as above
    sys.argv = [str(example)]
    sys.path.insert(0, str(example.parent))
    if server:
        fork_its_processes(server)
    if example.name not in FEWER:
        runpy.run_path(str(example), run_name="__main__")
        return
    module = importlib.import_module(example.stem)
    vars(module).update(FEWER[example.name])
    module.main()


def fork_its_processes(server: str) -> None:
    """What the example starts is forked from the server: by itself, each process would import DSPy and dspyer anew."""
    use_server(server)
    vars(multiprocessing).update(get_context=lambda method: Forking())
    os.environ["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "forkserver"


def assert_tuning_helped(printed: str) -> None:
    """Every optimizer beats the program as written, and the saved program scores as its original."""
    scores = [float(line.split(" %")[0].split()[-1]) for line in printed.splitlines() if " %" in line]
    before, *after, loaded = scores
    assert len(after) == 3
    assert min(after) > before + 5
    assert loaded == max(after)
    tickets = [[word for word in line if word in "✓✗"] for line in printed.splitlines() if "…" in line]
    assert len(tickets) == 12
    written, tuned = (sum(marks[i] == "✓" for marks in tickets for i in pair) for pair in ((0, 1), (2, 3)))
    assert tuned > written


def assert_fields_helped(printed: str) -> None:
    """Judged by field, demonstrations and instructions are learned from runs that went wrong elsewhere."""
    queue = {
        line.split("  ")[1]: int(line.split()[-1].removesuffix("%"))
        for line in printed.splitlines()
        if line[-1:] == "%"
    }
    assert queue["optimize.FewShot"] > queue["dspy.BootstrapFewShot"] + 5
    assert queue["optimize.GEPA"] > queue["as written"] + 5
    selected = {
        line.split()[0]: int(line.split()[-2]) for line in printed.splitlines() if line.startswith(("quote ", "judge "))
    }
    assert selected["quote"] == 0 < selected["judge"]


def assert_corrections_helped(printed: str) -> None:
    """The map and the editor have learned from what people have corrected."""
    lines = {line.split("  ")[1].strip(): line for line in printed.splitlines() if line.endswith("%")}
    before, after = ([int(share) for share in re.findall(r"(\d+)%", lines[name])] for name in ("as written", "tuned"))
    assert all(now > was + 5 for was, now in zip(before, after, strict=True))


def assert_predictors_learned(printed: str) -> None:
    """Tuning moves the converted graph, with its predictors, past its chat model; what was learned is saved."""
    rows = re.findall(r"^  (\w.*?) +(\d+) +(\d+) +(\d+)$", printed, re.MULTILINE)
    right = {title: [int(count) for count in counts] for title, *counts in rows}
    before = right["converted, its chat model"]
    assert all(now > was for was, now in zip(before, right["in this process"], strict=True))
    assert right["saved and loaded"] == right["in this process"]


def assert_no_scan_was_read_twice(printed: str) -> None:
    """Only the tasks that were lost with the process are repeated; how many these were is a matter of timing."""
    first, second, needed = (int(number) for number in re.findall(r"pools: (\d+) \+ (\d+), for (\d+)", printed)[0])
    lost, bound = (int(number) for number in re.findall(r"process: (\d+), of at most (\d+)", printed)[0])
    assert 0 < first < needed == first + second
    assert lost <= bound


def test_every_example_is_run() -> None:
    parts = {"fleet_tasks.py", "model.py", "refunds.py", "scanner.py", "triage.py"}  # imported by the others
    parts |= {"celery_tasks.py", "temporal_activities.py"}  # run by tests/fleet
    assert {path.name for path in EXAMPLES.glob("*.py")} - parts == SHOWN.keys()


def test_the_overview_of_tutorials_names_every_example() -> None:
    overview = (EXAMPLES.parent / "docs" / "tutorials" / "index.md").read_text()
    assert set(re.findall(r"`(\w+\.py)`", overview)) == {path.name for path in EXAMPLES.glob("*.py")}
