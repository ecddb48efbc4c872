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
        "extend",
        "inspector",
        "lms",
        "migrate",
        "optimize",
        "policies",
        "record",
        "reducers",
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
    "dspy_contract/test_not_public.py": "each name of DSPy that is not public, before anything fails for want of it",
    "lm/test_field_texts.py": "a stream that is cut at any place reads as the adapter parses it",
    "lm/test_source.py": "the source text of a class, and its one parse",
    "live/test_live_release.py": "which reader goes on first: from outside a wrong answer is a lost race",
    "log/test_codec.py": "rows, snapshots and opaque values: errors show in few states alone",
    "log/test_history_parts.py": "snapshots, pages and blame: errors show where a snapshot lies, 1 row in 480",
    "log/test_hostile.py": "limits of 256 MiB, which a test must lower",
    "log/test_journal.py": "writes that fail, or are handed over, between two calls of a store",
    "runtime/test_back_pressure.py": "the event queue: a lost wake-up is hard to see from outside",
    "lms/test_gate.py": "who gives up a slot, and who gets it, during a cancellation or a fork",
    "test_record_codec.py": "records as JSON and back: a type that is written wrongly shows in few rows",
    "scheduler/simulation.py": "runs of the scheduler alone, for the laws of joins and lineage",
    "scheduler/test_joins.py": "laws of joins over random graphs",
    "scheduler/test_schedule.py": "laws of the ready queue, loops and lineage",
    "stores/bodies.py": "damaged rows, and many at once: no store writes them",
    "stores/test_connection_limit.py": "who waits for a connection, and how long",
    "stores/test_plans.py": "plans of writes and deletions: wrong ones leave rows for ever",
    "stores/test_postgres.py": "connections, and what stays on a server",
    "stores/test_sqlite.py": "checkpoints, locks and versions of tables",
    "test_ids.py": "ids under names of threads that look like ids",
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
    "fleet/celery_fleet.py": "it starts Redis",
    "inspector/test_page_files.py": "it runs Node",
    "serve/test_agui_in_node.py": "it runs Node",
    "stores/postgres_server.py": "it starts the server",
    "stores/test_postgres.py": "how a fork ends",
    "stores/test_retention_of_days.py": "it runs pg_dump",
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


# The folders and files of the package that are not public.
INSIDE = {path.stem for path in Path(dspyer.__file__).parent.iterdir()} - {
    *dspyer.__all__,
    *(name.split(".")[1] for name in PUBLIC),
}


def private_imports(name: str) -> Iterator[str]:
    for node in statements_of(FILES[name]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "dspyer":
            yield from (f"{node.module}.{alias.name}" for alias in node.names if not is_public(node.module, alias.name))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("dspyer.") and alias.name not in PUBLIC:
                    yield alias.name
    # What is reached otherwise: as an attribute of the package, by its name, or in the source of a child.
    text = FILES[name].read_text()
    for module, names in re.findall(r"\bfrom (dspyer[\w.]*) import (\w+(?:, \w+)*)", text):
        yield from (f"{module}.{one}" for one in names.split(", ") if not is_public(module, one))
    by_name = r"(?:import_module|__import__)\(f?[\"']dspyer\.(\w+)|sys\.modules\[f?[\"']dspyer\.(\w+)"
    for parts in re.findall(rf"{by_name}|(?<![\w.\"'`\[])(?<!from )(?<!import )dspyer\.(\w+)", text):
        yield from (f"dspyer.{part}" for part in parts if part in INSIDE)


@pytest.mark.slow("parses all files of the tests")
def test_tests_import_public_names() -> None:
    """So that the inside can change while nothing does for users (tests about it are listed with their reason)."""
    private = {name: found for name in FILES if (found := sorted(set(private_imports(name))))}
    others = {name: found for name, found in private.items() if name not in INTERNAL}
    assert not others, "import from the public modules, or test what a user sees"
    assert not INTERNAL.keys() - private.keys(), "these files have become public: take them from the list"
    assert len(INTERNAL) <= 25


def attributes_of(node: ast.AST) -> str | None:
    """Whose attributes an expression is: `vars(it)` or `it.__dict__`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "vars" and node.args:
        return ast.unparse(node.args[0])
    return ast.unparse(node.value) if isinstance(node, ast.Attribute) and node.attr == "__dict__" else None


def targets_of(node: ast.AST) -> Iterator[str]:
    """The attributes that a statement assigns or deletes."""
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    for target in [one for whole in targets for one in getattr(whole, "elts", [whole])]:
        if isinstance(target, ast.Attribute):
            yield ast.unparse(target)
        elif isinstance(target, ast.Subscript) and (owner := attributes_of(target.value)):
            yield f"{owner}.{getattr(target.slice, 'value', '')}"


def patched_by(call: ast.Call) -> Iterator[str]:
    """The attributes that `setattr`, `monkeypatch.setattr`, `mock.patch`, `vars(it).update` and their like replace."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    owner = attributes_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
    texts = [str(arg.value) if isinstance(arg, ast.Constant) else ast.unparse(arg) for arg in call.args[:2]]
    if name in {"setattr", "delattr", "__setattr__", "__delattr__", "patch", "object"} and texts:
        yield texts[0] if isinstance(call.args[0], ast.Constant) else ".".join(texts)
    elif name in {"setitem", "delitem"} and len(texts) == 2 and (it := attributes_of(call.args[0])):
        yield f"{it}.{texts[1]}"
    elif (name == "update" and owner) or (name == "multiple" and texts):
        yield from (f"{owner or texts[0]}.{keyword.arg}" for keyword in call.keywords)


def patched(path: Path) -> Iterator[str]:
    """What a file replaces, but what its own objects do with themselves."""
    calls = re.compile(r"(attr(__)?|item|patch|object|multiple)\(|\bvars\(|__dict__")
    lines = {number for number, line in enumerate(path.read_text().splitlines(), 1) if calls.search(line)}
    for node in statements_of(path):
        found = [*targets_of(node)] if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete) else []
        if hasattr(node, "decorator_list") or not lines.isdisjoint(range(node.lineno, (node.end_lineno or 0) + 1)):
            parts = [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt)]
            for call in (one for part in parts for one in ast.walk(part) if isinstance(one, ast.Call)):
                found += patched_by(call)
        yield from (what for what in found if not re.match(r"(self|cls)\.\w+$", what))


def test_no_private_attribute_is_patched() -> None:
    """A fault is put in by a store, an LM, a clock or a layer of the test."""
    # `module._compiled = True` is how users of DSPy freeze a module; others have no public name for it.
    private = re.compile(r"\._(?!_|compiled\b|forkserver|TRACER_PROVIDER)|\bdspyer\.(?!testing\b)[\w.]+\.\w+")
    found = [(name, what) for name, path in FILES.items() for what in patched(path) if private.search(what)]
    assert not [(name, what) for name, what in found if name not in INTERNAL or "._" in what]


def functions_that_are_not_slow(body: list[ast.stmt], marks: frozenset[str] = frozenset()) -> Iterator[ast.stmt]:
    """What stands in a file or class, but for the functions and classes that are marked: by `slow`, or a name of it."""
    named = [node for node in body if isinstance(node, ast.Assign) and ".slow(" in ast.unparse(node.value)]
    marks |= {ast.unparse(node.targets[0]) for node in named}
    if "pytestmark" in marks:
        return
    for node in body:
        given = [ast.unparse(mark) for mark in getattr(node, "decorator_list", [])]
        if any(".slow(" in mark or mark in marks for mark in given):
            continue
        if isinstance(node, ast.ClassDef):
            yield from functions_that_are_not_slow(node.body, marks)
        else:
            yield node


def seconds_of(call: ast.Call, constants: dict[str, object]) -> float:
    """How long a call sleeps, or waits for what does not come, as far as it is written there or in a constant."""
    name = ast.unparse(call.func)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not name.endswith(("sleep", ".wait")) or not given:
        return 0.0
    text = re.sub(r"\b[A-Za-z_]\w*", lambda name: str(constants.get(name[0], "")), ast.unparse(given[0]))
    try:
        seconds = float(eval(text, {"__builtins__": {}}))  # numbers alone
    except (SyntaxError, TypeError, ValueError, NameError):
        return 0.0
    # What is stopped or killed meanwhile may sleep for longer; a wait of seconds is for what comes.
    return seconds if seconds < (2 if name.endswith(".wait") else 10) else 0.0


def numbers_of(path: Path) -> dict[str, object]:
    """The names of a file that are numbers."""
    given = [
        node for node in statements_of(path) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    ]
    return {ast.unparse(node.targets[0]): node.value.value for node in given if isinstance(node.value, ast.Constant)}


def test_no_test_waits() -> None:
    """A test forces the order that it needs. One that must wait is slow, and says why."""
    waiting = [
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name, path in FILES.items()
        if re.search(r"sleep\(|\.wait\(", path.read_text())
        for numbers in [numbers_of(path)]
        for statement in functions_that_are_not_slow(tree_of(path).body)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and seconds_of(node, numbers) > 0.05
    ]
    assert not waiting


def test_children_are_forked() -> None:
    """A process that imports dspyer costs 1.2 s, a fork of tests/children.py 0.03 s."""
    starting = re.compile(
        r"\bsubprocess\.|\bfrom subprocess\b|\bPopen\(|[\"']spawn[\"']|\bcreate_subprocess_"
        r"|\bos\.(system|popen|posix_spawn|spawn|exec)"
    )
    found = {name for name, path in FILES.items() if name != "test_suite.py" and starting.search(path.read_text())}
    assert found == REAL_PROCESSES.keys()


def test_faults_can_be_applied() -> None:
    """Each seeded fault of `make test-faults` changes one line that is there once."""
    package = TESTS.parent
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60
    assert not [fault.name for fault in FAULTS if (package / fault.file).read_text().count(fault.old) != 1]
    assert not [fault.name for fault in FAULTS if not all((package / folder).exists() for folder in fault.tests)]
