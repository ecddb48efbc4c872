"""The public names are the documented names, and each of them is explained."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import get_origin

import dspy
import pytest

import dspyer
import dspyer.agents
import dspyer.extend
import dspyer.inspector
import dspyer.lms
import dspyer.migrate
import dspyer.optimize
import dspyer.record
import dspyer.search
import dspyer.serve
import dspyer.stores
import dspyer.testing
from dspyer import policies, reducers
from tests.event_samples import event_types

API = Path(__file__).parent.parent / "docs" / "api"
MODULES: list[ModuleType] = [
    dspyer,
    dspyer.agents,
    dspyer.extend,
    dspyer.inspector,
    dspyer.lms,
    dspyer.migrate,
    dspyer.optimize,
    dspyer.record,
    dspyer.search,
    dspyer.serve,
    dspyer.stores,
    dspyer.testing,
]
PUBLIC: dict[str, object] = {
    f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__
}
PLACES = {
    name: f"{value.__module__}.{value.__qualname__}" for name, value in PUBLIC.items() if inspect.isroutine(value)
}
"""Where functions are written: a page names one in this way if its module has the same name."""

PAGES = [*API.glob("*.md"), API.parent / "errors.md"]
DOCUMENTED = {name for page in PAGES for name in re.findall(r"^::: ([\w.]+)", page.read_text(), re.MULTILINE)}


def order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions and modules, as the linter sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_all_is_sorted_and_complete() -> None:
    assert {module.__name__: list(module.__all__) for module in MODULES} == {
        module.__name__: sorted(module.__all__, key=order) for module in MODULES
    }
    assert not [(module, name) for module in MODULES for name in module.__all__ if not hasattr(module, name)]


def test_every_public_name_is_documented() -> None:
    def is_shown(name: str, value: object) -> bool:
        named = {name, PLACES.get(name)} & DOCUMENTED
        return inspect.ismodule(value) or bool(named) or getattr(value, "__module__", None) in DOCUMENTED

    assert not [name for name, value in PUBLIC.items() if not is_shown(name, value)]
    page, of_dspy = (API / "program.md").read_text(), {"forward", "aforward", *dir(dspy.Module)}
    methods = [name for name, _ in public_methods(dspyer.CompiledGraph) if name not in of_dspy]
    assert not [name for name in methods if f"        - {name}\n" not in page]


def test_every_documented_name_is_public() -> None:
    reached = {
        "dspyer.graph.spec.GraphSpec",  # as `program.graph`
        "dspyer.archive.archived_thread.ArchivedThread",  # as `archive.thread(name)`
        "dspyer.archive.run_info.Page",  # as `archive.runs()`
        "dspyer.archive.run_info.RunInfo",  # as an item of it
        "dspyer.archive.run_info.Waiting",  # as an item of `archive.questions()`
        "dspyer.display.stats.NodeStats",  # as `run.stats().nodes`
        "dspyer.display.stats.Stats",  # as `run.stats()`
        "dspyer.display.tokens.TokenRow",  # as `run.view_tokens().rows`
        "dspyer.display.tokens.Tokens",  # as `run.view_tokens()`
        "dspyer.migrate.langgraph_report.LangGraphReport",  # as `explain_langgraph(graph)`
        "dspyer.migrate.langgraph_report.LMNode",  # as an item of its `lm_calls`
        "dspyer.optimize.gepa.GEPAStats",  # as `gepa.stats`
        "dspyer.optimize.gepa.PredictorTuning",  # as `gepa.stats.predictors`
        "dspyer.optimize.headroom.FieldRoom",  # as `headroom(...).fields`
        "dspyer.record.overview.Cause",  # as an item of `archive.overview().failures`
        "dspyer.record.overview.Figures",  # as an item of `archive.overview().nodes`
        "dspyer.runtime.streams.AsyncEvents",  # as `program.astream(...)`
        "dspyer.runtime.streams.Events",  # as `program.stream(...)`
        "dspyer.stores.base",  # by authors of stores
        "dspyer.stores.postgres.Postgres",  # by its address; importing it needs a driver
        "dspyer.stores.postgres.Schemas",  # as above
        "dspyer.stores.encrypted.Encrypted",  # importing it needs an extra
    }
    assert not DOCUMENTED - PUBLIC.keys() - {*PLACES.values()} - reached


def test_every_error_is_on_the_errors_page() -> None:
    page = (API.parent / "errors.md").read_text()
    classes = [value for value in vars(dspyer.errors).values() if inspect.isclass(value)]
    raised = [cls.__name__ for cls in classes if issubclass(cls, BaseException)]
    assert not [name for name in raised if f"        - {name}\n" not in page]


def test_every_event_is_on_the_events_page() -> None:
    page = (API / "events.md").read_text()
    assert not [cls.__name__ for cls in event_types() if f"        - {cls.__name__}\n" not in page]


def test_every_merge_policy_is_on_its_pages() -> None:
    built_in = {name: value for name, value in vars(policies).items() if isinstance(value, policies.Policy)}
    assert built_in.keys() <= {*policies.__all__}
    pages = [API / "state.md", API.parent / "guides" / "branches.md"]
    for text in (*(page.read_text() for page in pages), dspyer.ImmutableState.merge.__doc__ or ""):
        assert not [one.name for one in built_in.values() if f'`"{one.name}"`' not in text], text[:80]


def test_every_reducer_is_built_in() -> None:
    found = {name for name, value in vars(reducers).items() if isinstance(value, reducers.Reducer)}
    assert found == {*reducers.BUILT_IN}
    assert found <= {*reducers.__all__}


def test_every_reducer_is_in_the_table() -> None:
    built_in = {f"`reducers.{name}`" for name, value in vars(reducers).items() if isinstance(value, reducers.Reducer)}
    assert built_in == set(re.findall(r"`reducers\.\w+`", (API.parent / "guides" / "state.md").read_text()))


def is_record(value: object) -> bool:
    """Made by dspyer and handed to its users, who never call it: an exception, a record, a context; or a protocol."""
    if not inspect.isclass(value):
        return False
    return (
        inspect.isabstract(value)
        or issubclass(value, BaseException | dspyer.Context | dspyer.extend.Schema)
        or hasattr(value, "_fields")
        or is_dataclass(value)
    )


def public_methods(cls: type) -> Iterator[tuple[str, object]]:
    for name, member in vars(cls).items():
        if getattr(member, "__name__", "") == "_refuse":  # of a frozen value: `append`, `update`, which raise
            continue
        if not name.startswith("_") and (callable(member) or isinstance(member, property | classmethod | staticmethod)):
            yield name, member


CALLABLES = sorted(name for name, value in PUBLIC.items() if callable(value) and get_origin(value) is None)


CLASSES: dict[str, type] = {name: value for name in CALLABLES if inspect.isclass(value := PUBLIC[name])}


def test_each_has_a_docstring_of_its_own() -> None:
    assert not [name for name in CALLABLES if not PUBLIC[name].__doc__]


def test_each_has_an_example() -> None:
    texts = {name: [inspect.getdoc(PUBLIC[name]) or ""] for name in CALLABLES if not is_record(PUBLIC[name])}
    for name in texts.keys() & CLASSES.keys():
        texts[name] += [inspect.getdoc(member) or "" for _, member in public_methods(CLASSES[name])]
    assert not [name for name, found in texts.items() if not any(">>>" in text for text in found)]


def test_methods_have_docstrings() -> None:
    methods = [(name, *method) for name, cls in CLASSES.items() for method in public_methods(cls)]
    assert not [(name, method) for name, method, member in methods if not inspect.getdoc(member)]


def called_by_users() -> Iterator[str]:
    """Functions, and methods of classes that users hold; what a store does is described once, by `Store`."""
    for name in CALLABLES:
        value = PUBLIC[name]
        if inspect.isfunction(value):
            yield name
        elif inspect.isclass(value) and (value is dspyer.Context or not is_record(value)):
            for method, member in public_methods(value):
                promised = issubclass(value, dspyer.stores.Store) and hasattr(dspyer.stores.Store, method)
                if not isinstance(member, property) and not promised and not method.startswith("test_"):
                    yield f"{name}.{method}"


def test_each_function_and_method_has_an_example() -> None:
    silent = []
    for name in called_by_users():
        owner, _, method = name.rpartition(".")
        value = getattr(PUBLIC[owner], method) if owner in PUBLIC else PUBLIC[name]
        if ">>>" not in (inspect.getdoc(value) or ""):
            silent.append(name)
    assert not silent, "give each an example that runs"


@pytest.mark.parametrize("name", ["StatefulNode", "unheard_of", "__wrapped__", "__path_hooks__"])
def test_a_name_that_is_not_there_is_a_missing_attribute(name: str) -> None:
    assert not hasattr(dspyer, name)
    assert getattr(dspyer, name, 7) == 7
    assert name not in dict(inspect.getmembers(dspyer))


@pytest.mark.parametrize("name", ["migrate", "testing", "serve"])
def test_a_module_that_is_imported_on_its_own_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dspyer, name, raising=False)
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}' before this line: import dspyer\.{name}$"):
        getattr(dspyer, name)
