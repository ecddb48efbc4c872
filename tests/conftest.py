"""What every test runs under: no network, no cache left behind by another run, one event loop."""

from __future__ import annotations

import ast
import atexit
import functools
import gc
import inspect
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Files of tests lie in memory where there is some: no test needs the disk, of which each flush takes 10 ms.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2**30:
    os.environ.setdefault("TMPDIR", "/dev/shm")

# Both are read when dspy is imported, so they are set before any test module is.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
if "DSPY_CACHEDIR" not in os.environ:  # workers have that of the process that starts them
    os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp(prefix="dspyer-tests-")
    atexit.register(shutil.rmtree, os.environ["DSPY_CACHEDIR"], ignore_errors=True)

import dspy
import pytest
from dspy.clients.base_lm import GLOBAL_HISTORY
from hypothesis import HealthCheck, settings

from dspyer import END, START, CompiledGraph, Graph
from dspyer.errors import Interrupted
from tests import type_adapters  # noqa: F401 - it changes DSPy
from tests.browser import chromium, page  # noqa: F401 - fixtures for every folder
from tests.budget import Budget, deep
from tests.children import fork_server  # noqa: F401 - as these
from tests.timeouts import time_is_over  # noqa: F401 - as these

# No property is judged by how fast a busy machine draws its examples. In CI the examples are the same in every run.
for _profile, _examples in {"ci": 20, "deep": 500}.items():
    settings.register_profile(
        _profile,
        max_examples=_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=bool(os.environ.get("CI")),
    )
settings.load_profile("deep" if deep else "ci")


def pytest_configure(config: pytest.Config) -> None:
    """Measures what the suite costs."""
    config.pluginmanager.register(Budget(config))


_kept_tree = functools.lru_cache(maxsize=4)(ast.parse)


def _parse(source: str) -> ast.Module:
    """A whole file is parsed once: only `inspect.findsource` parses these, and it only reads the tree."""
    return _kept_tree(source) if len(source) > 2_000 else ast.parse(source)


# Before Python 3.13, `inspect` parses a file for each class whose source it looks for, and each test that compiles a
# graph with a schema of its own asks for one.
_inspect: Any = inspect
_inspect.ast = SimpleNamespace(**{**vars(ast), "parse": _parse})


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Tests have no doctests: searching their modules for some takes a tenth of the collection."""
    return [collector for collector in (yield) if type(collector) is pytest.Module]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays: searching it for garbage again and again takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@functools.cache
def _asking() -> CompiledGraph:
    return Graph().add_interrupt("ask", question="?", into="answer").add_path(START, "ask", END).compile()


def _a_node_seems_to_run() -> bool:
    """Whether a program would count its LM calls as those of a node around it: its question says who has called it."""
    with pytest.raises(Interrupted) as asked:
        _asking()()
    return "the code of a node has called the program" in str(asked.value)


_last_path = pytest.StashKey[Path]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """At the first test of each file, leaves what is there out of every later garbage collection.

    What stays of the files before (modules, reports) stays for the session: a million objects in the end, of which each
    collection would take a second. DSPy's history of LM calls is emptied, since it does not grow beyond 10,000 entries.
    """
    stash = item.session.stash
    before = stash.get(_last_path, None)
    if before != item.path:
        stash[_last_path] = item.path
        GLOBAL_HISTORY.clear()
        gc.collect()
        gc.freeze()
        cache = vars(dspy).get("cache")  # made when it is first used
        if cache is not None and not (cache.enable_memory_cache and cache.enable_disk_cache):
            del dspy.cache
            pytest.fail(f"{before} has left DSPy without a part of its cache of LM calls")
        if _a_node_seems_to_run():
            pytest.fail(f"a node seems to run here, since {before}")


@pytest.fixture
def anyio_backend() -> str:
    """Async tests (`@pytest.mark.anyio`) run under asyncio, as DSPy does."""
    return "asyncio"


@pytest.fixture
def own_dspy_cache() -> Iterator[None]:
    """The test may replace DSPy's cache of LM calls by `dspy.configure_cache`."""
    before = dspy.cache
    yield
    dspy.cache = before
