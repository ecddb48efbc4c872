"""The structure of the package, read from its syntax trees: layers, purity of the scheduler, sizes, names, circles."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bands import NOT_YET
from tests.syntax import inner, statements_of, tree_of

PACKAGE = Path(__file__).parent.parent / "dspyer"

# Two bands. The core knows nothing of what is on top; what is on top uses what users have: the names of `dspyer`, its
# public modules, other folders on top by their package. `tests/bands.py` lists what is not so yet.
ON_TOP = {
    *("agents", "search", "optimize", "lms", "migrate", "serve", "archive", "inspector"),
    *("cli", "display", "executors", "tracing", "testing", "__main__"),
}
PUBLIC = {"errors", "failure", "events", "policies", "reducers", "stores", "testing", "extend", "record"}
# Where one-line members draw, count and describe a run.
DRAWN = {"graph.spec", "record.compare", "record.drawn", "runtime.run", "threads.thread"}

# In the core, imports point down only: a module may import from the groups above its own, and from its own group
# without a cycle. A package is listed by its name and stands for all modules in it.
LAYERS: list[set[str]] = [
    {"errors", "failure", "hints", "clock", "ids", "waiting", "worker_threads"},
    {"values", "patch", "events", "record_codec"},
    {"policies", "message_list", "reducers"},
    {"state", "schema", "redaction"},
    {"scheduler"},
    {"views", "templates"},
    {"messages", "server_sent"},
    {"stores"},
    {"log"},
    {"record"},
    {"nodes", "layers", "lm", "budget"},
    {"graph"},
    {"runtime", "threads"},
    {"extend"},
    {"__init__"},
]
DSPY_FROM = 10  # the first group that may know DSPy
READS_STORES = {"archive", "display"}  # on top, and without DSPy: who reads a store does not wait for its import
WAITING = {
    "waiting",
    "clock",
    "stores",
    "log",
    "archive",
    "record",
    "worker_threads",
    "display.progress",
    "display.progress_screen",
    "server_sent",
}  # what is below it and may wait: threads, a clock and logs, and no DSPy
IMPURE = {"dspy", "litellm", "asyncio", "anyio", "threading", "concurrent", "time", "logging", "random"}

# An import inside a function needs a reason here: (module, imported name) -> why.
LOCAL_IMPORTS: dict[tuple[str, str], str] = {
    (
        "graph.builder",
        "dspyer.runtime.program",
    ): "Graph.compile() gives what the layer above defines, as users expect of it",
    ("record.step_examples", "dspy"): "who reads a store does not wait for its import",
    ("graph.builder", "dspyer.stores"): "a program without a store loads none",
    ("layers.attempts", "tenacity"): "it takes a tenth of the import, and most policies wait as by default",
    ("layers.cache", "diskcache"): "it imports Django if that is there, and few graphs cache",
    ("layers.cache", "diskcache.core"): "as above",
    ("display.progress", "dspyer.display.progress_screen"): "it needs rich, which only an extra installs",
    ("tracing", "dspyer.tracing.spans"): "it needs OpenTelemetry, which only a program has that traces",
    ("tracing", "dspyer.tracing.metrics"): "the same, for one that counts",
    ("stores.address", "dspyer.stores.postgres"): "it needs a driver that only an extra installs",
    ("__main__", "dspyer.cli.app"): "it needs typer, which only an extra installs",
    ("cli.commands", "dspyer.inspector"): "it needs a server, which only an extra installs",
    ("cli.store_access", "dspyer.stores.encrypted"): "it needs cryptography, which only an extra installs",
    **{
        (name, f"dspyer.cli.{module}"): "`dspyer --help` must start at once, and `programs` imports DSPy"
        for name in ("cli.commands", "cli.arguments")
        for module in ("programs", "store_access")
    },
    ("inspector", "dspyer.inspector.web_app"): "it needs Starlette, which only an extra installs",
    ("inspector", "dspyer.inspector.serving"): "it needs uvicorn, which only an extra installs",
    ("serve", "dspyer.serve.agui_route"): "it needs Starlette and the protocol's package, which only an extra installs",
    ("serve", "dspyer.serve.thread_router"): "it needs Starlette, which only an extra installs",
    ("inspector.web_app", "dspyer.inspector.acting"): "it imports DSPy, which reading does not need",
    ("archive.archive", "dspyer.stores.encrypted"): "it needs a cipher that only an extra installs",
}

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted name below the package: `state`, `nodes.function`, `__init__`."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if len(parts) > 1 and parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


NAMES = {name_of(path): path for path in MODULES}


def folder_of(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


def layer_of(name: str) -> int:
    for number, group in enumerate(LAYERS):
        if folder_of(name) in group:
            return number
    if folder_of(name) in ON_TOP:
        return len(LAYERS)
    raise AssertionError(f"dspyer/{name}: give the new module a place in LAYERS of {Path(__file__).name}, or ON_TOP")


def is_typing_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def that_run(node: ast.AST, inside: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement below one that runs, with whether it is inside a function."""
    for child in inner(node):
        if not is_typing_only(child):
            yield child, inside
            yield from that_run(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


@functools.cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """What a module imports when it runs, as absolute dotted names, with whether inside a function."""
    return [(name, inside) for node, inside in that_run(tree_of(path)) for name in imported(node, path)]


def imported(node: ast.AST, path: Path) -> Iterator[str]:
    """The absolute dotted names of modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = ["dspyer", *path.relative_to(PACKAGE).parent.parts]
        base = package[: len(package) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            deeper = f"{source}.{alias.name}"
            yield deeper if is_module(deeper) else source


def is_module(dotted: str) -> bool:
    return dotted.removeprefix("dspyer.") in NAMES


def own_imports(path: Path) -> set[str]:
    """The modules of dspyer that a module imports at its top."""
    found = set()
    for name, inside in imports(path):
        if not inside and name.split(".")[0] == "dspyer":
            found.add(name.removeprefix("dspyer").removeprefix(".") or "__init__")
    return found


@pytest.mark.slow("parses all files of the package")
def test_imports_point_down() -> None:
    too_high = [
        (name, other)
        for name, path in NAMES.items()
        if folder_of(name) not in ON_TOP
        for other in own_imports(path)
        if folder_of(other) not in ON_TOP and layer_of(other) > layer_of(name)
    ]
    assert not too_high, "the first imports from a layer above its own"


def beyond_its_band(name: str, path: Path) -> set[str]:
    """The names of dspyer that a module imports, anywhere and for typing too, though its band has not got them."""
    found = set()
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names if one.name.startswith("dspyer.")}
        elif isinstance(node, ast.ImportFrom) and folder_of(node.module or "") == "dspyer":
            source = (node.module or "").removeprefix("dspyer").removeprefix(".")
            found |= {one.name for one in node.names if not is_of_band(name, source, one.name)}
    return found


@functools.cache
def documented() -> set[str]:
    """The modules and names that the pages about the interface list: `stores.base`, `graph.spec.GraphSpec`."""
    pages = (PACKAGE.parent / "docs" / "api").rglob("*.md")
    return {found for page in pages for found in re.findall(r"^::: dspyer\.(\S+)", page.read_text(), re.MULTILINE)}


def is_of_band(name: str, source: str, imported_name: str) -> bool:
    """Whether a module may import a name from another one, `""` for the package itself."""
    deeper = f"{source}.{imported_name}".removeprefix(".")
    source = deeper if deeper in NAMES else source
    folder = folder_of(source)
    if folder_of(name) in ON_TOP:
        if {source, f"{source}.{imported_name}"} & documented() or source == "lm.not_public":  # names of DSPy
            return True
        return source in {"", *PUBLIC} or folder == folder_of(name) or (folder in ON_TOP and source == folder)
    if name == "__init__":  # its names are lazy
        return True
    if source == "executors":  # the one entry
        return folder_of(name) in {"runtime", "threads"}
    return folder not in {"", *ON_TOP} or (folder == "display" and name in DRAWN)


@pytest.mark.slow("parses all files of the package")
def test_bands() -> None:
    found = {name: beyond_its_band(name, path) for name, path in NAMES.items()}
    found = {name: names for name, names in found.items() if names}
    listed = {name: set(names.split()) for name, names in NOT_YET.items()}
    wrong = {name: (found.get(name, set()), listed.get(name, set())) for name in found.keys() | listed.keys()}
    lines = [
        f'"{name}": "{" ".join(sorted(now))}",  # new: {sorted(now - known)}, no more: {sorted(known - now)}'
        for name, (now, known) in sorted(wrong.items())
        if now != known
    ]
    assert not lines, "use public names, or take from the list what is well now:\n" + "\n".join(lines)


def test_no_import_cycle() -> None:
    graph = {name: own_imports(path) - {name} for name, path in NAMES.items()}
    done: set[str] = set()
    while ready := {name for name in graph.keys() - done if graph[name] & graph.keys() <= done}:
        done |= ready
    assert not graph.keys() - done, "these modules import each other in a circle"


def test_the_core_knows_no_dspy_clock_or_thread() -> None:
    core = [path for path in MODULES if layer_of(name_of(path)) < DSPY_FROM or folder_of(name_of(path)) in READS_STORES]
    impure = {name_of(path): {name.split(".")[0] for name, _ in imports(path)} & IMPURE for path in core}
    impure["record.step_examples"] -= {"dspy"}  # LOCAL_IMPORTS says why
    for name in impure:
        if WAITING & {name, name.split(".")[0]}:
            impure[name] -= {"threading", "concurrent", "time", "logging", "anyio", "asyncio"}
    assert core
    assert not {name: found for name, found in impure.items() if found}


def test_pyrsistent_has_one_importer() -> None:
    importers = {name for name, path in NAMES.items() for found, _ in imports(path) if found.startswith("pyrsistent")}
    assert importers == {"values.persistent"}


def test_imports_inside_functions_have_a_reason() -> None:
    hidden = {(name, found) for name, path in NAMES.items() for found, inside in imports(path) if inside}
    assert not hidden - LOCAL_IMPORTS.keys(), "move the import to the top, or give its reason in LOCAL_IMPORTS"


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of code: the docstring is documentation and does not count."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(function.body) > 1
    start = function.body[1].lineno if documented else function.lineno
    return (function.end_lineno or start) - start + 1


def test_functions_are_short() -> None:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [
        (name, node) for name, path in NAMES.items() for node in statements_of(path) if isinstance(node, kinds)
    ]
    long = {f"{name}.{node.name}": lines for name, node in functions if (lines := lines_of(node)) > 80}
    assert not long, "split these functions"


def test_modules_are_short() -> None:
    files = [*MODULES, *Path(__file__).parent.rglob("*.py")]
    sizes = {str(path): len(path.read_text().splitlines()) for path in files}
    assert not {name: size for name, size in sizes.items() if size > 1000}, "split these modules"


def test_no_drawer_for_everything() -> None:
    assert not {name_of(path) for path in MODULES} & {"utils", "helpers", "common", "misc"}


# --- names: a reader who searches for one finds one thing


@pytest.fixture(scope="module")
def classes() -> dict[str, list[tuple[str, ast.ClassDef]]]:
    """Every class of the package by its name, with the modules that define one of that name."""
    found: dict[str, list[tuple[str, ast.ClassDef]]] = {}
    for path in MODULES:
        for node in statements_of(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append((name_of(path), node))
    return found


def test_no_class_name_is_there_twice(classes: dict[str, list[tuple[str, ast.ClassDef]]]) -> None:
    twice = {name: [module for module, _ in places] for name, places in classes.items() if len(places) > 1}
    assert not twice, "give each of these classes its own name"


def test_no_file_stem_is_there_twice() -> None:
    stems = Counter(path.stem for path in MODULES if path.stem != "__init__")
    assert not {stem for stem, count in stems.items() if count > 1}, "give each of these files its own name"


# A class in another file than its only subclass -> why it is not a part of that class.
ONE_SUBCLASS: dict[str, str] = {
    "clock.Clock": "a process has the real one; the subclass is that of tests",
    "errors.ScriptError": "users catch it without importing `dspyer.testing`",
    "errors.UnsupportedValueError": "users catch it; the subclass carries how deep the value is",
    "patch.SealedPatch": "the subclass is what a reader without the classes of the values gets instead",
    "layers.attempts.Retry": "a node of LangGraph has several policies, and the first that accepts an error counts",
    "nodes.context.EntrySource": "a run without live fields has the base class, the subclass the posts of a live one",
    "nodes.attempt.AttemptHost": "a node that is called without a run has the base class, the subclass is the run",
    "nodes.node.Runner": "a node that is called without a run has the base class, the subclass needs a session",
    "values.frozen.FrozenDict": "the subclass is public, with what users ask of a state",
}


def test_no_class_is_spread_over_files(classes: dict[str, list[tuple[str, ast.ClassDef]]]) -> None:
    """A base class in another file that only one class has is a part of that class."""
    children = Counter[tuple[str, str]]()
    homes: dict[tuple[str, str], set[str]] = {}
    for places in classes.values():
        for module, node in places:
            for base in node.bases:
                name = ast.unparse(base).split("[")[0].split(".")[-1]
                if name in classes:
                    key = (classes[name][0][0], name)
                    children[key] += 1
                    homes.setdefault(key, set()).add(module)
    spread = [
        f"{module}.{name}"
        for (module, name), count in children.items()
        if count == 1 and homes[module, name] != {module}
    ]
    assert not set(spread) ^ ONE_SUBCLASS.keys(), (
        "move the base class into the file of its only subclass, or merge them"
    )


# --- circles


def all_imports(path: Path) -> set[str]:
    """The modules of dspyer that a module names anywhere, for type checkers alone too."""
    found = {name for node in statements_of(path) for name in imported(node, path)}
    return {name.removeprefix("dspyer.") for name in found if name.startswith("dspyer.")}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of modules that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        open_ = [start]
        while open_:
            for other in graph.get(open_.pop(), set()) - seen:
                seen.add(other)
                open_.append(other)
        reached[start] = seen
    return [
        group
        for name, group in (
            (name, {other for other in reached[name] if name in reached.get(other, set())}) for name in graph
        )
        if group and name == min(group)
    ]


def test_no_circle_of_more_than_four_files() -> None:
    graph = {name_of(path): all_imports(path) - {name_of(path)} for path in MODULES if path.name != "__init__.py"}
    large = [sorted(group) for group in circles(graph) if len(group) > 4]
    assert not large, "these modules name each other, if only for type checkers: move what they share below both"


# --- ids

SPLITTING = {"partition", "rpartition", "split", "rsplit"}
COMPARING = {"startswith", "endswith", "removeprefix", "removesuffix"}

# What looks as if it took an id to pieces -> what it takes to pieces.
NO_IDS: dict[tuple[str, str], str] = {
    ("cli.programs", "'/' in module_name"): "the name of a module",
    ("cli.programs", "name.partition(':')"): "module:program",
    ("lm.tap", "'/' in lm.model"): "provider/model",
    ("lm.tap", "lm.model.split('/', 1)"): "provider/model",
    ("tracing.spans", "model.partition('/')"): "provider/model",
    ("tracing.spans", "made.failed.partition(':')"): "the class of an error, and its text",
    ("lm.source", "':' in text"): "the source of a lambda",
    ("inspector.web_app", "host.partition(':')"): "host:port",
    ("inspector.web_app", "host.partition(']')"): "[host]:port",
    ("inspector.serving", "':' in host"): "an address of IPv6",
    ("log.execution_records", "call.failed.partition(':')"): "the class of an error, and its text",
    ("log.reader", "type_text.partition('[')"): "a type with arguments",
    ("stores.encrypted", "location.decode().partition('/')"): "what an encrypted text is bound to",
    ("migrate.nested_graphs", "':' in ns"): "a namespace of LangGraph",
    ("log.time_travel", "'/' not in path"): "the path of an agent in a program",
    ("stores.postgres", "user.partition(':')"): "user:password",
    ("testing.nearest", "str(schema['$ref']).rsplit('/', 1)"): "a reference in a JSON schema",
    ("testing.prompt", "'[' not in type_.removeprefix('Literal[').removeprefix('Union[Literal[')"): "a type",
    ("testing.store_samples", "f'trunk:{seq}'"): "an example",
    ("testing.store_samples", "'trunk:'"): "a part of that f-string",
    ("threads.start", "'/' in str(name)"): "the key of a question, or its id, which ends with the key",
    ("serve.thread_router", "'/' not in one"): "what the name of a thread has after that of its user",
    ("threads.graph_changes", "name.rpartition(':')"): "module:class",
    ("values.json", "name.rpartition(':')"): "module:class",
    ("values.json", "text.partition('/')"): "a fraction",
    ("values.freezing", "name.partition(':')"): "module:class",
}


def is_mark(node: ast.AST) -> bool:
    """Whether an expression is a text with which a part of an id ends or begins, such as `f"{label}/"`."""
    if isinstance(node, ast.JoinedStr):
        return any(is_mark(part) for part in node.values if isinstance(part, ast.Constant))
    return isinstance(node, ast.Constant) and node.value in ("/", "[", "]", ":", "+", "trunk")


def takes_ids_apart(node: ast.AST) -> bool:
    """Whether an expression does to a text what reads an id, or writes the path of a branch."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", "")
        given = [one for argument in node.args for one in getattr(argument, "elts", [argument])]
        if name in SPLITTING:
            return any(map(is_mark, given))
        if name in COMPARING:
            return any(isinstance(one, ast.JoinedStr) and is_mark(one) for one in given)
        return ast.unparse(node.func) in ("re.compile", "re.split") and "[/" in ast.unparse(node.args[0])
    # `"/" in execution`, and paths that are written by hand
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], ast.In | ast.NotIn) and is_mark(node.left)
    texts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return any(isinstance(one, ast.Constant) and str(one.value).startswith(("trunk:", "/trunk:")) for one in texts)


# A file without any of these takes nothing apart, and is not walked.
TAKEN_APART = re.compile(
    r"""(partition|split)\(["'][][/:+]|(swith|prefix|suffix)\(\(?f|\[/|"[][/:+]" (not )?in|["/]trunk:"""
)


def test_ids_are_taken_apart_in_one_place() -> None:
    found = {
        (name, ast.unparse(node))
        for name, path in NAMES.items()
        if name != "ids" and TAKEN_APART.search(path.read_text())
        for node in ast.walk(tree_of(path))
        if takes_ids_apart(node)
    }
    offenders = sorted(found - NO_IDS.keys())
    assert not offenders, "let ids.py do it, or say in NO_IDS what this takes to pieces"
    gone = sorted(NO_IDS.keys() - found)
    assert not gone, "take these from the list"
