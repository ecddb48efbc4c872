"""Names of dspyer 0.3: the error of each, what it says to write, and what Python asks a module without them."""

from __future__ import annotations

import _thread
import importlib.util
import inspect
import pickle
import re
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import pytest

import dspyer
import dspyer.migrate
import dspyer.testing
from dspyer.removed_names import _INSTEAD, _MODULES_INSTEAD

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "from-03.md"

# What `dspyer.__all__` of 0.3.6 lists, without `Graph` and `ImmutableState`, which are here as well.
REMOVED = [
    *("AgentTranspiler", "Attempt", "BaseStorageAdapter", "DirectClient", "DirectLM", "FileStorageAdapter"),
    *("MockCompletionResult", "SelfCorrectionTrace", "StatefulNode", "dspyer_node", "from_langgraph"),
    *("generate_validation_report", "get_storage_adapter", "get_trace", "load_logged_dataset", "self_correcting"),
    "set_storage_adapter",
]
MODULES = ["compiler", "converter", "decorator", "signatures", "telemetry", "trace", "utils"]


def test_the_table_has_the_names_that_are_gone() -> None:
    assert [*_INSTEAD] == REMOVED
    assert len(REMOVED) == 17
    assert not {*REMOVED} & {*dir(dspyer)}


@pytest.mark.parametrize("name", REMOVED)
def test_an_import_says_what_to_write(name: str) -> None:
    text = rf"^dspyer\.{name} belongs to dspyer 0\.3, a different code base: write .*; see docs/guides/from-03\.md$"
    with pytest.raises(ImportError, match=text) as failed:
        exec(f"from dspyer import Graph, {name}")
    assert failed.value.name == "dspyer"
    with pytest.raises(AttributeError, match=text):
        getattr(dspyer, name)


@pytest.mark.parametrize("name", REMOVED)
def test_what_it_says_to_write_exists(name: str) -> None:
    owners: dict[str, object] = {
        "dspyer": dspyer,
        "graph": dspyer.Graph,
        "run": dspyer.Run,
        "thread": dspyer.Thread,
        "commit": dspyer.Commit,
        "events": dspyer.events,
    }
    named = re.findall(r"(?<![.\w])(dspyer|graph|run|thread|commit|events)\.([\w.]+)", _INSTEAD[name])
    assert named
    for owner, path in named:
        value = owners[owner]
        for part in path.rstrip(".").split("."):
            value = getattr(value, part)


@pytest.mark.parametrize("name", ["StatefulNode", "unheard_of", "__wrapped__", "__path_hooks__"])
def test_a_name_that_is_not_there_is_a_missing_attribute(name: str) -> None:
    assert not hasattr(dspyer, name)
    assert getattr(dspyer, name, 7) == 7
    assert name not in dict(inspect.getmembers(dspyer))


def test_an_unknown_name_is_not_said_to_be_an_old_one() -> None:
    with pytest.raises(ImportError, match=r"^cannot import name 'unheard_of' from 'dspyer'"):
        exec("from dspyer import unheard_of")
    with pytest.raises(AttributeError, match=r"^module 'dspyer' has no attribute 'unheard_of'$"):
        _ = dspyer.unheard_of


def test_a_module_that_is_imported_on_its_own_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("migrate", "testing", "serve"):
        assert importlib.util.find_spec(f"dspyer.{name}")
        monkeypatch.delattr(dspyer, name, raising=False)
        with pytest.raises(
            AttributeError, match=rf"has no attribute '{name}' before this line: import dspyer\.{name}$"
        ):
            getattr(dspyer, name)


def test_pickle_looks_for_an_object_in_all_modules() -> None:
    """An object that does not say its module: pickle asks every loaded one for its name."""
    attempt = types.FunctionType((lambda: 1).__code__, globals(), "Attempt")
    attempt.__module__ = None  # type: ignore[assignment]
    attempt.__qualname__ = "Attempt"
    home = types.ModuleType("a_home")
    sys.modules["a_home"] = home
    try:
        home.Attempt = attempt  # type: ignore[attr-defined]
        assert pickle.loads(pickle.dumps(attempt)) is attempt
    finally:
        del sys.modules["a_home"]


@pytest.mark.parametrize("name", MODULES)
def test_an_import_of_a_module_says_what_to_write(name: str) -> None:
    text = rf"^dspyer\.{name} belongs to dspyer 0\.3, a different code base: write .*; see docs/guides/from-03\.md$"
    for statement in (f"import dspyer.{name}", f"from dspyer.{name} import AgentTranspiler"):
        with pytest.raises(ModuleNotFoundError, match=text) as failed:
            exec(statement)
        assert failed.value.name == f"dspyer.{name}"
    with pytest.raises(ImportError, match=rf"^cannot import name '{name}' from 'dspyer'"):
        exec(f"from dspyer import {name}")
    assert [*_MODULES_INSTEAD] == MODULES


def test_a_module_that_was_never_there_is_not_found_as_usual() -> None:
    assert importlib.util.find_spec("dspyer.unheard_of") is None
    assert importlib.util.find_spec("StatefulNode") is None


def test_an_attribute_is_asked_for_by_no_python_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread that begins with `getattr`: there is no frame of a caller."""

    class Default:
        pass

    failed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", failed.append)
    default, ended = Default(), threading.Event()
    weakref.finalize(default, ended.set)
    _thread.start_new_thread(getattr, (dspyer, "StatefulNode", default))
    del default
    assert ended.wait(20)
    assert not failed


def test_the_page_has_a_row_for_each_name_and_each_module() -> None:
    firsts = re.findall(r"^\| (`.+?) \|", PAGE.read_text(), re.MULTILINE)
    shown = {name for first in firsts for name in re.findall(r"(?:dspyer\.)?\w+", first)}
    assert {*REMOVED} <= shown
    assert {f"dspyer.{name}" for name in MODULES} <= shown
