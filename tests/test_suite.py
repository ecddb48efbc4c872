"""The tests themselves: what they import, patch and wait for. What they may cost is measured by `tests/budget.py`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import dspyer
from tests.faults import FAULTS
from tests.syntax import statements_of, tree_of
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
INTERNAL: dict[str, str] = {
    "dspy_module/test_field_texts.py": "a stream that is cut at any place reads as the adapter parses it",
    "dspy_module/test_source.py": "the source text of a class, and its one parse",
    "live/test_live_deadlock.py": "which reader is released: from outside a wrong answer is a hang or a lost race",
    "optimize/test_gepa_insides.py": "which culprits GEPA selects, and which runs it reuses: tuning hides mistakes",
    "persistence/test_codec.py": "rows, snapshots and opaque values: errors show in few states alone",
    "persistence/test_history_parts.py": "snapshots, pages and blame: errors show where a snapshot lies, 1 row in 480",
    "persistence/test_hostile.py": "limits of 256 MiB, which a test must lower",
    "persistence/test_journal.py": "writes that fail, or are handed over, between two calls of a store",
    "runtime/test_back_pressure.py": "the event queue: a lost wake-up is hard to see from outside",
    "lms/test_gate.py": "who gives up a slot, and who gets it, during a cancellation or a fork",
    "scheduler/simulation.py": "runs of the scheduler alone, for the laws of joins and lineage",
    "scheduler/test_joins.py": "laws of joins over random graphs",
    "scheduler/test_schedule.py": "laws of the ready queue, loops and lineage",
    "stores/test_connection_limit.py": "who waits for a connection, and how long",
    "stores/test_plans.py": "plans of writes and deletions: wrong ones leave rows for ever",
    "stores/test_postgres.py": "connections, and what stays on a server",
    "stores/test_sqlite.py": "checkpoints, locks and versions of tables",
    "threads/test_leases.py": "leases of processes that hang or were forked",
    "values/test_persistent.py": "persistent maps and vectors against dicts and lists",
    "values/test_values.py": "frozen values: what is copied, and when",
    "views/test_new_entries_law.py": "lineage: which entries are new, against a slow reference",
}

# A file that starts real processes -> why a child of tests/children.py would not do.
REAL_PROCESSES: dict[str, str] = {
    "archive/test_archive.py": "it asks what gets imported",
    "children.py": "it names the result of subprocess.run",
    "cli/test_start.py": "it asks what gets imported, and how long a start takes",
    "cli/test_streams.py": "streams that are closed, full or of another locale, from the start of a process on",
    "cli/test_terminal.py": "a real terminal",
    "faults.py": "it runs the tests of a changed copy",
    "inspector/test_page_files.py": "it runs Node",
    "serve/test_agui_in_node.py": "it runs Node",
    "stores/postgres_server.py": "it starts the server",
    "stores/test_postgres.py": "how a fork ends",
    "stores/test_sqlite_processes.py": "how daemon threads end",
    "test_bench.py": "it runs git",
    "test_lean.py": "it asks what gets imported",
    "threads/test_ctrl_c.py": "the end of a process",
    "executors/test_heavy_functions.py": "the end of a process",
    "executors/test_process_pool.py": "a pool that starts its processes anew",
    "inspector/test_reading.py": "it asks what gets imported",
    "migrate/test_stored_threads.py": "a process that has not imported the program",
    "runtime/test_trace_tools.py": "MLflow, which changes DSPy for good",
    "threads/test_stopping.py": "the end of a process",
    "test_hash_seed.py": "a hash seed holds for a process",
    "test_examples.py": "it forks what an example starts by `subprocess.run`",
}


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
    for node in statements_of(FILES[name]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "dspyer":
            yield from (f"{node.module}.{alias.name}" for alias in node.names if not is_public(node.module, alias.name))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("dspyer.") and alias.name not in PUBLIC:
                    yield alias.name


@pytest.mark.slow("parses all files of the tests")
def test_tests_import_public_names() -> None:
    """So that the inside can change while nothing does for users (tests about it are listed with their reason)."""
    private = {name: found for name in FILES if (found := sorted(set(private_imports(name))))}
    others = {name: found for name, found in private.items() if name not in INTERNAL}
    assert not others, "import from the public modules, or test what a user sees"
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
    # `module._compiled = True` is how users of DSPy freeze a module.
    private = re.compile(r"\._(?!_|compiled\b)|\bdspyer\.(?!testing\b)[\w.]+\.\w+")
    calls = re.compile(r"\.(setattr|delattr|patch|object)\(")
    found = [
        (name, what)
        for name, path in FILES.items()
        for node in [*statements_of(path), *(ast.walk(tree_of(path)) if calls.search(path.read_text()) else ())]
        if (what := patched(node))
    ]
    inside = [(name, what) for name, what in found if private.search(what)]
    assert not [(name, what) for name, what in inside if name not in INTERNAL or "._" in what]


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
        for name, path in FILES.items()
        if "sleep(" in path.read_text()
        for function in functions_that_are_not_slow(tree_of(path).body)
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
