"""The public names are the documented names, and each of them is explained."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import dspyer
import dspyer.reducers
import dspyer.testing

API = Path(__file__).parent.parent / "docs" / "api"
MODULES: list[ModuleType] = [dspyer, dspyer.reducers, dspyer.testing]
PUBLIC: dict[str, object] = {
    f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__
}
DOCUMENTED = {
    name for page in API.glob("*.md") for name in re.findall(r"^::: ([\w.]+)", page.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_is_sorted_and_complete(module: ModuleType) -> None:
    assert list(module.__all__) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_public_names_are_the_documented_names() -> None:
    modules = {name for name, value in PUBLIC.items() if inspect.ismodule(value)}
    assert PUBLIC.keys() - modules == DOCUMENTED


def is_record(value: object) -> bool:
    """Made by dspyer for its users, who never call it: an exception or a record of a run."""
    return inspect.isclass(value) and (issubclass(value, BaseException) or hasattr(value, "_fields"))


def public_methods(cls: type) -> Iterator[tuple[str, object]]:
    for name, member in vars(cls).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, property | classmethod | staticmethod)):
            yield name, member


CALLABLES = sorted(name for name, value in PUBLIC.items() if callable(value))


@pytest.mark.parametrize("name", CALLABLES)
def test_it_has_a_docstring(name: str) -> None:
    value = PUBLIC[name]
    assert inspect.getdoc(value), f"{name} has no docstring"
    assert value.__doc__, f"{name} only inherits a docstring"


@pytest.mark.parametrize("name", [name for name in CALLABLES if not is_record(PUBLIC[name])])
def test_it_has_an_example(name: str) -> None:
    value = PUBLIC[name]
    texts = [inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        texts += [inspect.getdoc(member) or "" for _, member in public_methods(value)]
    assert any(">>>" in text for text in texts), f"{name} shows no example"


@pytest.mark.parametrize("name", [name for name in CALLABLES if inspect.isclass(PUBLIC[name])])
def test_its_methods_have_docstrings(name: str) -> None:
    cls = PUBLIC[name]
    assert inspect.isclass(cls)
    silent = [method for method, member in public_methods(cls) if not inspect.getdoc(member)]
    assert not silent
