"""The stops in dspyer/runtime/README.md, of calls and of stored commits: each file and function exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "dspyer"
PAGE = (PACKAGE / "runtime" / "README.md").read_text()
STOP = re.compile(r"^\d+\. `([\w/]+\.py)` (`[\w.]+`(?:, `[\w.]+`)*):", re.MULTILINE)
STOPS = [(path, re.findall(r"[\w.]+", names)) for path, names in STOP.findall(PAGE)]


def names_in(tree: ast.Module) -> set[str]:
    """The functions and classes of a module, and the methods of its classes as `Class.method`."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


def test_every_numbered_line_is_a_stop() -> None:
    assert len(STOPS) == len(re.findall(r"^\d+\. ", PAGE, re.MULTILINE)) > 20


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= 92


@pytest.mark.parametrize(("path", "names"), STOPS, ids=[f"{path}-{names[0]}" for path, names in STOPS])
def test_each_file_and_function_exists(path: str, names: list[str]) -> None:
    missing = set(names) - names_in(ast.parse((PACKAGE / path).read_text()))
    assert not missing, f"dspyer/{path} has no {sorted(missing)}: mend dspyer/runtime/README.md"
