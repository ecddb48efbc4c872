"""`python -m bench.langgraph_suite`: the graphs of LangGraph's own tests, run by LangGraph and by dspyer.

The tests come from a checkout of LangGraph (`--checkout`), or are cloned at the tag of the installed version. What was
counted and how, `bench/langgraph_recorder.py` says; why a graph may differ, `bench/langgraph_differences.toml` does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from bench.environments import BENCH, ROOT, environment, requirements
from bench.langgraph_outcomes import same

ENVIRONMENT = "langgraph-suite"
LIBRARIES = ("langgraph", "prebuilt")
REPOSITORY = "https://github.com/langchain-ai/langgraph"
DIFFERENCES = BENCH / "langgraph_differences.toml"
SIBLINGS = "a run that stops does not show what finished beside the node that stopped; continued, it ends the same"
DOUBLED = "LangGraph gives a reducer twice what a graph that is a node passes on; here nothing is doubled"
UNSTABLE = "LangGraph's own result changes from run to run"
KINDS = ("same", "refused", "differs", "refused late", "failed")
WRONG = ("refused late", "failed")
TITLE = "LangGraph's own tests"
TABLES = "<!-- written by bench.langgraph_suite -->"


@dataclass(frozen=True)
class Row:
    """One graph of one test.

    Attributes:
        test: the test, without its parameters.
        kind: one of `KINDS`, or "left out".
        reasons: why it is not the same.
        continued: whether a run that stopped and was continued has ended in the same way; None if none was.
        calls: of a completed run that is the same, whether each node of the graph was called as often.
    """

    test: str
    kind: str
    reasons: tuple[str, ...] = ()
    continued: bool | None = None
    calls: bool | None = None


def row(line: dict[str, Any], differences: dict[str, list[str]]) -> Row:
    """What a line of the recorder comes to."""
    test = line["test"].rsplit("/", 1)[-1].partition("[")[0]
    if "left_out" in line:
        return Row(test, "left out", (re.sub(r"\d+ s", "the time given", line["left_out"]),))
    langgraph, dspyer = line["langgraph"], line["dspyer"]
    ends = (line["langgraph_end"], line["dspyer_end"]) if "dspyer_end" in line else None
    continued = same(*ends) if ends else None
    if dspyer["kind"] == "refused" or dspyer.get("type") == "GraphError":
        kind = "refused" if dspyer["kind"] == "refused" else "refused late"
        return Row(test, kind, tuple(map(general, dspyer.get("problems") or [dspyer["text"]])))
    known = tuple(why for why, tests in differences.items() if any(fnmatch(test, each) for each in tests))
    if same(langgraph, dspyer):
        if ends and not continued:
            known += (DOUBLED,) if line.get("subgraphs") and doubled(*ends) else ()
            return Row(test, "differs" if known else "failed", known or ("continued, it ends otherwise",), continued)
        calls = called(langgraph) == called(dspyer) if langgraph["kind"] == "completed" else None
        return Row(test, "same", (), continued, calls)
    if not same(langgraph, line.get("again", langgraph)):
        return Row(test, "differs", (UNSTABLE,), continued)
    for key, changed in line.items():
        if key.startswith("dspyer ") and same(langgraph, changed):
            return Row(test, "differs", (f"the same with `from_langgraph({key.removeprefix('dspyer ')})`",), continued)
    if known and dspyer["kind"] != "died":
        return Row(test, "differs", known, continued)
    if line.get("subgraphs") and doubled(langgraph, dspyer):
        return Row(test, "differs", (DOUBLED,), continued)
    if continued and langgraph["asked"] == dspyer["asked"]:
        return Row(test, "differs", (SIBLINGS,), continued)
    return Row(test, "failed", (f"{langgraph['kind']} -> {dspyer['kind']} {dspyer.get('text', '')[:120]}",), continued)


def doubled(langgraph: dict[str, Any], dspyer: dict[str, Any]) -> bool:
    """Whether two states differ in lists alone, and each of LangGraph's has parts of the other's once more."""
    states = langgraph.get("state"), dspyer.get("state")
    if not all(isinstance(state, dict) for state in states) or langgraph["asked"] != dspyer["asked"]:
        return False
    one, other = states
    return one.keys() == other.keys() and all(one[key] == other[key] or more(one[key], other[key]) for key in one)


def more(long: Any, short: Any) -> bool:
    """Whether a list or text has the parts of another in their order, and more of the same."""
    if type(long) is not type(short) or not isinstance(long, list | str):
        return False
    rest = iter(long)
    return all(part in rest for part in short) and all(part in short for part in long)


def called(outcome: dict[str, Any]) -> Counter[int]:
    """How many nodes were called how often: the libraries may give them other names."""
    nodes = outcome.get("nodes", {})
    return Counter(nodes[name] for name in nodes if name != "START" and not name.startswith("join:"))


def general(problem: str) -> str:
    """A problem without the names of one graph."""
    return re.sub(r"'[^']*'", "`x`", problem)


def rows(lines: Iterable[dict[str, Any]]) -> list[Row]:
    """The rows of the lines that the recorder wrote."""
    found = tomllib.loads(DIFFERENCES.read_text())
    differences = {each["why"]: each["tests"] for each in found["difference"]}
    return [row(line, differences) for line in lines]


def tables(found: list[Row]) -> str:
    """The tables, as markdown."""
    compared = [each for each in found if each.kind in KINDS]
    total = len(compared)
    kinds = Counter(each.kind for each in compared)
    words = {
        "same": "end in the same state, with the same questions, or with the same error",
        "refused": "are refused by the converter, which names all reasons",
        "differs": "end differently, for a known reason",
        "refused late": "are refused while they run",
        "failed": "end differently, and no reason is known",
    }
    parts = [
        markdown(["graphs", "share", ""], [[kinds[k], f"{kinds[k] / max(total, 1):.0%}", words[k]] for k in KINDS])
    ]
    titles = {
        "refused": "why it is refused",
        "refused late": "why it is refused late",
        "differs": "why it differs",
        "failed": "what happened",
    }
    for kind, title in titles.items():
        reasons = Counter(reason for each in compared if each.kind == kind for reason in each.reasons)
        if reasons:
            parts.append(markdown(["graphs", title], [[count, reason] for reason, count in reasons.most_common()]))
    return "\n\n".join(parts)


def summary(found: list[Row]) -> str:
    """What was counted, in sentences."""
    compared = [each for each in found if each.kind in KINDS]
    left = Counter(each.reasons[0] for each in found if each.kind == "left out")
    stopped = [each for each in compared if each.continued is not None]
    counted = [each for each in compared if each.calls is not None]
    text = (
        f"{len(compared)} graphs of {len({each.test for each in compared})} tests were compared. Of {len(stopped)} "
        f"runs that stopped at a question or at a node and were then continued with the answer `yes`, "
        f"{sum(each.continued is True for each in stopped)} ended in the same state. Of {len(counted)} completed runs "
        f"that are the same, {sum(each.calls is True for each in counted)} called each node as often."
    )
    if left:
        text += " Left out: " + "; ".join(f"{count}, since {why}" for why, count in left.most_common()) + "."
    return text


def markdown(head: list[str], lines: list[list[Any]]) -> str:
    """A table."""
    cells = [head, ["---:", *["---"] * (len(head) - 1)], *lines]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in cells)


def with_section(page: str, text: str) -> str:
    """The page with other tables: they end its section about the tests."""
    before, _, rest = page.partition(f"\n## {TITLE}\n")
    section, mark, after = rest.partition("\n## ")
    about = section.partition(TABLES)[0].rstrip()
    return f"{before}\n## {TITLE}\n{about}\n\n{TABLES}\n\n{text.rstrip()}\n{mark}{after}"


def checkout(path: str | None) -> Path:
    """The folder of LangGraph's repository: the given one, or a clone at the tag of the installed version."""
    if path is not None:
        if not Path(path, "libs", LIBRARIES[0], "tests").is_dir():
            raise SystemExit(f"{path} is no checkout of LangGraph: it has no libs/{LIBRARIES[0]}/tests")
        return Path(path)
    version = next(
        word.removeprefix("langgraph==")
        for line in requirements(ENVIRONMENT)
        for word in line.split()
        if word.startswith("langgraph==")
    )
    folder = ROOT / ".bench-venv" / f"langgraph-{version}"
    if not folder.exists():
        clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", version, REPOSITORY, str(folder)]
        if subprocess.run(clone, check=False).returncode:
            raise SystemExit(f"LangGraph {version} could not be cloned from {REPOSITORY}: give --checkout")
    return folder


def record(folder: Path, only: list[str], workers: int) -> list[str]:
    """Runs the tests of LangGraph's libraries under the recorder, several files at once; its lines, by test."""
    made = environment(ENVIRONMENT)
    for line, complaint in made.missing.items():
        raise SystemExit(f"not installed: {line}: {complaint}")
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(workers) as pool:
        parts = []
        for library in LIBRARIES:
            place = folder / "libs" / library
            files = sorted(place.glob("tests/test_*.py"), key=lambda file: -file.stat().st_size)
            for number in range(workers):
                names = [str(file.relative_to(place)) for file in files[number::workers]]
                outcomes = Path(temporary, f"{library}-{number}")
                parts.append(pool.submit(run_tests, made.python, place, names, outcomes, only))
        for part in parts:
            part.result()
        lines = [line for file in Path(temporary).iterdir() for line in file.read_text().splitlines()]
    return sorted(lines)  # a line begins with its test


def run_tests(python: str, place: Path, files: list[str], outcomes: Path, only: list[str]) -> None:
    """Runs the tests of some files. A test of LangGraph may fail: its graphs are compared all the same."""
    words = ["-k", " or ".join(only)] if only else []
    plugin = ["-p", "bench.langgraph_recorder", "--langgraph-outcomes", str(outcomes)]
    ended = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *words, *files],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONSAFEPATH": "1",  # else the `bench` of LangGraph, in this folder, is found before ours
            "NO_DOCKER": "true",
            "LANGSMITH_TRACING": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        stdout=sys.stderr,
        check=False,
    )
    if ended.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest ended with {ended.returncode}, so not all tests of {place} have run: see above")


def main() -> int:
    """Runs the tests, prints the tables, and puts them into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", help="LangGraph's repository; cloned if it is not given")
    parser.add_argument("--lines", help="outcomes of an earlier run, instead of running the tests")
    parser.add_argument("--keep", help="file for the outcomes")
    parser.add_argument("--page", help="page whose section is replaced")
    parser.add_argument("--workers", type=int, default=4, help="files of tests that run at once")
    parser.add_argument("only", nargs="*", help="words, one of which must be in a test's name")
    options = parser.parse_args()
    if options.lines:
        lines = Path(options.lines).read_text().splitlines()
    else:
        lines = record(checkout(options.checkout).absolute(), options.only, options.workers)
    if options.keep:
        Path(options.keep).write_text("\n".join(lines) + "\n")
    found = rows(map(json.loads, lines))
    text = f"{textwrap.fill(summary(found), 140)}\n\n{tables(found)}\n"
    print(text)
    for each in found:
        if each.kind in WRONG:
            print(f"{each.test}: {'; '.join(each.reasons)}", file=sys.stderr)
    if options.page:
        page = Path(options.page)
        page.write_text(with_section(page.read_text(), text))
    return any(each.kind in WRONG for each in found)


if __name__ == "__main__":
    raise SystemExit(main())
