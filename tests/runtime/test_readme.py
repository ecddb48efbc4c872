"""The stops in dspyer/runtime/README.md, of calls and of stored commits: each file and function exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

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


def test_every_numbered_line_is_a_stop_and_the_page_is_short() -> None:
    assert len(STOPS) == len(re.findall(r"^\d+\. ", PAGE, re.MULTILINE)) > 20
    assert len(PAGE.splitlines()) <= 92


def test_each_file_and_function_exists() -> None:
    wanted: dict[str, set[str]] = {}
    for path, names in STOPS:
        wanted.setdefault(path, set()).update(names)
    missing = {path: names - names_in(ast.parse((PACKAGE / path).read_text())) for path, names in wanted.items()}
    found = {path: sorted(names) for path, names in missing.items() if names}
    assert not found, f"they do not exist: mend dspyer/runtime/README.md: {found}"
