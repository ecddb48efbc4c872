"""The tests themselves: what they import, patch and wait for. What they may cost is measured by `tests/budget.py`."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import dspyer
from tests.faults import FAULTS
from tests.test_public_names import DOCUMENTED

TESTS = Path(__file__).parent
FILES = {str(path.relative_to(TESTS)): path for path in sorted(TESTS.rglob("*.py"))}

PUBLIC = {
    f"dspyer.{name}"
    for name in (
        "agents",
        "archive",
        "errors",
        "events",
        "inspector",
        "lms",
        "migrate",
        "optimize",
        "policies",
        "reducers",
        "reducers.each",
        "search",
        "serve",
        "stores",
        "stores.base",
        "stores.encrypted",
        "stores.postgres",
        "testing",
    )
}

# A file that tests an inside of which a wrong answer would be hard to see from outside -> which one.
INTERNAL: dict[str, str] = {}

# A file that starts real processes -> why a child of tests/children.py would not do.
REAL_PROCESSES: dict[str, str] = {
    "children.py": "it names the result of subprocess.run",
}


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text())


@functools.cache
def nodes_of(name: str) -> list[ast.AST]:
    return list(ast.walk(tree_of(name)))


def is_public(module: str, name: str) -> bool:
    """Whether a test may import `name` from `module`."""
    dotted = f"{module}.{name}"
    if dotted in PUBLIC or dotted in DOCUMENTED or module in DOCUMENTED:
        return True
    if module == "dspyer":
        return name in dspyer.__all__ or name == "__version__"
    if module == "dspyer.__main__":
        return name == "main"
    if module not in PUBLIC or name.startswith("_"):
        return False
    home = import_module(module)
    return name in getattr(home, "__all__", [name]) and not inspect.ismodule(getattr(home, name))


def private_imports(name: str) -> Iterator[str]:
    for node in nodes_of(name):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "dspyer":
            yield from (f"{node.module}.{alias.name}" for alias in node.names if not is_public(node.module, alias.name))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("dspyer.") and alias.name not in PUBLIC:
                    yield alias.name


def test_tests_import_public_names() -> None:
    """So that the inside can change while nothing does for users (tests about it are listed with their reason)."""
    private = {name: found for name in FILES if (found := sorted(set(private_imports(name))))}
    assert not {name: found for name, found in private.items() if name not in INTERNAL}, (
        "import from the public modules, or test what a user sees"
    )
    assert not INTERNAL.keys() - private.keys(), "these files have become public: take them from the list"
    assert len(INTERNAL) <= 25


def patched(node: ast.AST) -> str | None:
    """What a statement replaces: the target of an assignment, or of `monkeypatch.setattr` and its like."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        target = node.targets[0]
        return None if ast.unparse(target.value) in {"self", "cls"} else ast.unparse(target)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in {"setattr", "delattr", "patch", "object"} or not node.args:
            return None
        owner = ast.unparse(node.func.value)
        if node.func.attr != "delattr" and "monkeypatch" not in owner and "mock" not in owner:
            return None
        texts = [arg.value if isinstance(arg, ast.Constant) else ast.unparse(arg) for arg in node.args[:2]]
        return ".".join(str(text) for text in texts) if isinstance(node.args[1:2], list) else None
    return None


def test_no_private_attribute_is_patched() -> None:
    """A fault is put in by a store, an LM, a clock or a layer of the test."""
    private = re.compile(r"\._(?!_)|\bdspyer\.(?!testing\b)[\w.]+\.\w+")
    found = {
        name: [what for node in nodes_of(name) if (what := patched(node)) and private.search(what)] for name in FILES
    }
    assert not {name: what for name, what in found.items() if what and name not in INTERNAL}
    assert not {name: what for name, what in found.items() if any("._" in one for one in what)}


def is_slow(node: ast.stmt) -> bool:
    """Whether a function or class is marked, or a statement marks the whole file."""
    marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", [])]
    return any(".slow(" in mark for mark in [*marks, ast.unparse(node) if isinstance(node, ast.Assign) else ""])


def functions_that_are_not_slow(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The functions of a file or class, with those inside of them."""
    if any(isinstance(node, ast.Assign) and is_slow(node) for node in body):
        return
    for node in body:
        if isinstance(node, ast.ClassDef) and not is_slow(node):
            yield from functions_that_are_not_slow(node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_slow(node):
            yield node


def seconds_of(call: ast.Call) -> float:
    """How long a call sleeps, as far as it is written there."""
    if ast.unparse(call.func).endswith("sleep") and call.args and isinstance(call.args[0], ast.Constant):
        seconds = call.args[0].value
        return seconds if isinstance(seconds, int | float) else 0.0
    return 0.0


def test_no_test_waits() -> None:
    """A test forces the order that it needs. One that must wait is slow, and says why."""
    waiting = [
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name in FILES
        for function in functions_that_are_not_slow(tree_of(name).body)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and 0.05 < seconds_of(node) < 10  # a longer one is stopped or killed meanwhile
    ]
    assert not waiting


def test_children_are_forked() -> None:
    """A process that imports dspyer costs 1.2 s, a fork of tests/children.py 0.03 s."""
    starting = re.compile(r"\bsubprocess\.|\bPopen\(|get_context\(\"spawn\"\)")
    found = {name for name, path in FILES.items() if name != "test_suite.py" and starting.search(path.read_text())}
    assert found == REAL_PROCESSES.keys()


def test_faults_can_be_applied() -> None:
    """Each seeded fault of `make test-faults` changes one line that is there once."""
    package = TESTS.parent
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60
    assert not [fault.name for fault in FAULTS if (package / fault.file).read_text().count(fault.old) != 1]
    assert not [fault.name for fault in FAULTS if not all((package / folder).exists() for folder in fault.tests)]
