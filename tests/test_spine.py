"""The spine: the files that a call of one plain node enters. They stay few, small, and name no feature."""

from __future__ import annotations

import json
import re
import sys
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

import dspyer
from dspyer import END, START, CompiledGraph, Graph
from dspyer.extend import Layer, using
from tests.children import run_python

PACKAGE = Path(dspyer.__file__).parent
FEATURE = re.compile(
    r"retr(y|ies)|timeout|budget|span|tracer|redact|rollout|search|agent|executor|condense|repair", re.IGNORECASE
)
OPTIONS = {
    "graph/spec.py": "it holds the options of `compile`",
    "runtime/program.py": "it has the signatures that name them",
    "runtime/drivers.py": "it turns the options of a call into layers",
    "runtime/request.py": "it holds the options of a call",
}
"""The files of the spine that may name features, and why."""


def plain_program() -> CompiledGraph:
    return Graph().add_node("shout", lambda text: {"loud": text.upper()}).add_path(START, "shout", END).compile()


@cache
def entered() -> list[tuple[str, str]]:
    """The functions of the package that the third call of a plain program enters, with their files.

    In a process of its own: once one has read a value of an unknown class, each read looks for more of them.
    """
    done = run_python("import json; from tests.test_spine import traced; print(json.dumps(traced()))", check=True)
    return [(path, name) for path, name in json.loads(done.stdout)]


def traced() -> list[tuple[str, str]]:
    """The same, of this process."""
    program, found = plain_program(), list[tuple[str, str]]()

    def see(frame: Any, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            found.append((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname))

    for _ in range(2):
        program(text="hey")
    before, tracing = sys.getprofile(), sys.modules.pop("opentelemetry.context", None)  # a program that does not trace
    sys.setprofile(see)
    try:
        program(text="hey")
    finally:
        sys.setprofile(before)
        if tracing is not None:
            sys.modules["opentelemetry.context"] = tracing
    return found


def test_a_plain_call_enters_few_files_and_makes_few_calls() -> None:
    calls = entered()
    files = sorted({path for path, _ in calls})
    assert 0 < len(files) <= 15, files
    assert len(calls) <= 150, calls


def test_the_files_that_it_enters_name_no_feature() -> None:
    named: dict[str, set[str]] = {}
    for path in {path for path, _ in entered()} - OPTIONS.keys():
        with (PACKAGE / path).open("rb") as source:
            names = {token.string for token in tokenize.tokenize(source.readline) if token.type == tokenize.NAME}
        named[path] = {name for name in names if FEATURE.search(name)} - {"repairs"}
    assert not {path: found for path, found in named.items() if found}, "make it a layer, or give its reason in OPTIONS"


def test_the_run_that_a_layer_sees_has_few_attributes() -> None:
    runs: list[Any] = []

    class Seeing(Layer):
        def of(self, run: Any) -> None:
            runs.append(run)

    with using(Seeing()):
        plain_program()(text="hey")
    assert 0 < len(vars(runs[0])) <= 20, sorted(vars(runs[0]))
