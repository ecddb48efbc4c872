"""The examples run offline, as in a fresh clone of the project, and show what they say."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.children import server_address, use_server
from tests.test_docs_examples import shown_of_programs

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
    "alerts.py": [
        "system: Investigate this intrusion alert, severity high. 4 steps are left after this one.",
        "user: request = The alert: many failed logins from 203.0.113.7 | news = look_up: 14 failed logins",
        "assistant: finding = Passwords are being guessed.",
        "high: The password was found: lock the account of root.",
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
    "read.py": [
        "  bob failed",
        "  bob, 2 steps, 0.000022 USD: look_up (execution bob.1/trunk:2, attempt 1): KeyError: 'A-71'",
        "  and written       {'order': 'A-71'}",
        "  it had asked      scripted, 2 messages, 105 tokens",
        "  order comes from  find",
        "  completed: We are sorry. 40.0 are on their way to you.",
        "  try-1 completed, 5 steps",
    ],
    "tracing.py": [
        "    invoke_node limits (the server is busy)",
        "      attempt 2",
        "      item 1",
        "        Predict(StringSignature).forward",
        "            ScriptedLM.__call__",
    ],
    "killed.py": [
        "The first process: killed by SIGKILL",
        "thread 'tonight' is 'crashed': resume",
        "completed; urgent: billing 1",
    ],
    "rounds.py": [
        "researcher  analysis = view('analysis').new()      30   3,915   58,725    6.7 %",
        "whole prompts: 33,626 tokens with views, 285,723 with whole fields",
        "that is 11.8 %",
    ],
    "search.py": [
        "one try           39       1         6",
        "best of 12        31      12        72",
        "beam              33      21        21  add 5, double, double, add 5",
        "MCTS              33      33        33",
    ],
    "team.py": [
        "ada sends message 0, open: True",
        "found: Hook, Delfzijl",
        "letter: Delfzijl: 11:15, Hook: 9:40, early: Hook: 9:40, who says so? early: Hook: 9:40",
        "unread: 0",
    ],
    "scratchpad.py": [
        "16 posts, the author changed 3 times",
        "res res res res ana ana ana ana cod cod cod cod rev rev rev rev",
        "researcher  nothing",
        "the same pad both times: True, {'research': 4, 'analysis': 4, 'code': 4, 'review': 4}",
    ],
    "desk.py": [
        "interrupted: refund(order='A-17', amount=90.0)?",
        "ada approves it herself: 403 the desk decides about refunds",
        "eve:  ada:kettle asks for {'order': 'A-17', 'amount': 90.0}; half of it is enough",
        "it was killed by SIGKILL",
        "refund of 45.00, approved by eve",
        "the bank was asked 2 times under 1 key, and paid 1 time",
        "LM calls of both servers: 3",
        "by eve\n",
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
    "agent.py": [
        "mail(to='Ada', text='Low tide is at 09:40.",
        "work      Both at once.",
        "          -> research(topic='tides')",
        '          research: ["The ferry lands at every hour',
        "- no mail was sent to Ada",
        "          -> submit(report='Ada knows: low tide at 09:40, and no ferry then.')",
        "research          2      100 %",
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
    "files.py": [
        "{\"limit\": 50\n  ada approves write_file(name='shop.json', text='{\"limit\": 50')?",
        "write_file: '12 characters written' this is no JSON: Expecting ',' delimiter",
        'completed {"limit": 50}',
        'failed RefusedError("passwords are nobody\'s business")',
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
        "  tallow-T328      completed    a letter of ",
        "  quillbox-T313    completed    nothing was sent",
        "  parcelhen-T332   interrupted  Send this? send the instructions, and take 12.00 off the next invoice.",
        "  rotawing-T335    failed       the price list does not know 'rotawing' yet",
        "inspect demo.db --program look:desk",
    ],
    "from_langgraph.py": [
        "This graph can be converted: from_langgraph(graph).",
        "  classify  function    Keywords      messages                     category        plan",
    ],
    "reminder.py": [
        "2 hours later\n  lamp: completed, a lamp is on its way\n24 hours later\n  mail: 'a sofa' still waits",
        "  sofa: interrupted, ['last']\n49 hours later\n  sofa: completed, a sofa is not sent",
        "lamp: approve by ada, cool_down by expired\nsofa: last by expired",
    ],
    "approval.py": [
        "interrupted after 5 commits",
        "approve: Send this? end the contract, since you wrote: ",
        "the thread is interrupted, it asks ['approve']",
        "LM calls of this process: 0",
    ],
}

for program, outputs in shown_of_programs().items():
    if outputs:
        SHOWN.setdefault(program, []).extend(outputs)


FEWER: dict[str, dict[str, Any]] = {
    "fleet.py": {"HEARTBEAT": 0.1, "SILENCE": 0.6},
    "optimize.py": {"TRAIN": 48, "DEV": 6, "TEST": 16, "CANDIDATES": 2, "TRIALS": 3},
    "tune.py": {"TRAIN": 72, "DEV": 12, "TEST": 24, "CALLS": 120},
    "scans.py": {"LETTERS": 12},
    "scratchpad.py": {"THINKING": 0.01},
    "batch_dask.py": {"TICKETS": 40},
}
"""Constants of examples that take long: fewer held-out tickets show the gain of an optimizer too."""


DEAR = {"batch_dask.py", "batch_peps.py", "corrections.py", "fleet.py", "from_langgraph.py", "optimize.py", "scans.py"}
DEAR |= {"documents.py", "home.py", "search.py", "tune.py"}
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
    if name == "killed.py":
        assert_little_was_repeated(printed)
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
    arguments: Sequence[str] = (),
    folder: str | Path | None = None,
    server: str = "",
) -> None:
    """Run an example in this process, as `python example` does in an empty folder; its prints go to a file."""
    os.environ.pop("DSPYER_MODEL", None)
    os.environ.update(environment or {})
    os.chdir(folder or output.parent)
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", 1, "utf-8", closefd=False)  # noqa: SIM115 - it lasts as long as the process
    sys.stderr = open(2, "w", 1, "utf-8", closefd=False)  # noqa: SIM115 - as above
    sys.argv = [str(example), *arguments]
    sys.path.insert(0, str(example.parent))
    if server:
        fork_its_processes(example, output, server)
    if example.name not in FEWER:
        runpy.run_path(str(example), run_name="__main__")
        return
    module = importlib.import_module(example.stem)
    vars(module).update(FEWER[example.name])
    module.main()


def fork_its_processes(example: Path, output: Path, server: str) -> None:
    """What the example starts is forked from the server: by itself, each process would import DSPy and dspyer anew."""
    use_server(server)
    real = subprocess.run

    def run(
        command: Sequence[str], cwd: str | None = None, check: bool = False, **options: Any
    ) -> CompletedProcess[str]:
        python, file, *arguments = command
        if (python, file) != (sys.executable, str(example)):
            return real(command, cwd=cwd, check=check, **options)
        child = Forked(target=run_as_a_program, args=(example, output, None, arguments, cwd))
        child.start()
        child.join()
        done = CompletedProcess(command, child.exitcode or 0, "", "")
        if check:
            done.check_returncode()
        return done

    vars(subprocess).update(run=run)
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


def assert_little_was_repeated(printed: str) -> None:
    """Only what ran at the kill is called again; how much that was is a matter of timing."""
    repeated, bound = (int(number) for number in re.findall(r"called twice: (\d+),.* at most (\d+) do", printed)[0])
    assert repeated <= bound
    rows = [line.split() for line in printed.splitlines() if line.startswith(("category", "urgency", "summarize"))]
    assert len(rows) == 3
    assert all(int(first) + int(second) >= int(needed) for _, first, second, needed in rows)


def assert_no_scan_was_read_twice(printed: str) -> None:
    """Only the tasks that were lost with the process are repeated; how many these were is a matter of timing."""
    first, second, needed = (int(number) for number in re.findall(r"pools: (\d+) \+ (\d+), for (\d+)", printed)[0])
    lost, bound = (int(number) for number in re.findall(r"process: (\d+), of at most (\d+)", printed)[0])
    assert 0 < first < needed == first + second
    assert lost <= bound


def test_every_example_is_run() -> None:
    parts = {"fleet_tasks.py", "model.py", "scanner.py", "triage.py"}  # imported by the others
    servers = {"web.py"}  # read in a browser by test_web_pages.py
    assert {path.name for path in EXAMPLES.glob("*.py")} - parts - servers == SHOWN.keys()
