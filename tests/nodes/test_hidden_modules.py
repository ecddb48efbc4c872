"""Modules that a function uses without binding them are found and refused, wherever they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import dspy

from dspyer.nodes import node as node_module
from dspyer.nodes.function import NodeModules
from dspyer.nodes.hidden_modules import find_hidden, mentions
from dspyer.nodes.node import Command, Send
from tests.nodes.kit import OPEN, built, built_router
from tests.rows import each

PREDICT = dspy.Predict("question -> answer")
LISTED = [dspy.Predict("question -> answer")]
NAMED = {"a": dspy.Predict("question -> answer")}
HOLDER = SimpleNamespace(predict=PREDICT, other=1)
LIBRARY = ModuleType("library")
LIBRARY.predict = PREDICT  # type: ignore[attr-defined]
answer = PREDICT


class Settings:
    predict = PREDICT


def uses_global(question: str) -> Any:
    return PREDICT(question=question)


def uses_global_inside(question: str) -> Any:
    return [lambda: [PREDICT(question=q) for q in [question]]]


def uses_list(question: str) -> Any:
    return LISTED[0](question=question)


def uses_dict(question: str) -> Any:
    return NAMED["a"](question=question)


def uses_attribute(question: str) -> Any:
    return HOLDER.predict(question=question)


def uses_class_attribute(question: str) -> Any:
    return Settings.predict(question=question)


def uses_library(question: str) -> Any:
    return LIBRARY.predict(question=question)


def uses_default(question: str, predict: Any = PREDICT) -> Any:
    return predict(question=question)


def uses_keyword_default(question: str, *, predict: Any = PREDICT) -> Any:
    return predict(question=question)


def uses_another_function(question: str) -> Any:
    return uses_global(question)


def takes(predict: Any, question: str) -> Any:
    return predict(question=question)


def closure() -> Callable[[str], Any]:
    predict = dspy.Predict("question -> answer")

    def node(question: str) -> Any:
        return predict(question=question)

    return node


def decorated(fn: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(question: str) -> Any:
        return fn(question)

    return wrapper


class WithAttribute:
    def __init__(self) -> None:
        self.predict = dspy.Predict("question -> answer")

    def __call__(self, question: str) -> Any:
        return self.predict(question=question)

    def method(self, question: str) -> Any:
        return self.predict(question=question)


class WithList(WithAttribute):
    def __init__(self) -> None:
        self.predicts = [dspy.Predict("question -> answer")]


class Heir(WithAttribute):
    pass


class UsesGlobal:
    def __call__(self, question: str) -> Any:
        return PREDICT(question=question)


class HeirOfUsesGlobal(UsesGlobal):
    pass


class OwnModule(dspy.Module):
    def search(self, question: str) -> Any:
        return None


@each(
    ("fn", "name", "place"),
    [
        (uses_global, "PREDICT", "a global variable"),
        (uses_global_inside, "PREDICT", "a global variable"),
        (uses_list, "LISTED[0]", "a global variable"),
        (uses_dict, "NAMED['a']", "a global variable"),
        (uses_attribute, "HOLDER.predict", "a global variable"),
        (uses_class_attribute, "Settings.predict", "a global variable"),
        (uses_library, "LIBRARY.predict", "a global variable"),
        (uses_default, "predict", "a default"),
        (uses_keyword_default, "predict", "a default"),
        (uses_another_function, "PREDICT", "a global variable, used by uses_global"),
        (closure(), "predict", "its closure"),
        (decorated(closure()), "predict", "its closure, used by node"),
        (functools.wraps(uses_global)(lambda question: None), "PREDICT", "a global variable"),
        (functools.partial(takes, PREDICT), "argument_1", "an argument of functools.partial"),
        (functools.partial(takes, predict=PREDICT), "predict", "an argument of functools.partial"),
        (functools.partial(uses_global), "PREDICT", "a global variable"),
        (WithAttribute(), "predict", "an attribute of WithAttribute"),
        (Heir(), "predict", "an attribute of Heir"),
        (HeirOfUsesGlobal(), "PREDICT", "a global variable"),
        (functools.lru_cache(uses_global), "PREDICT", "a global variable"),
        (WithAttribute().method, "predict", "an attribute of WithAttribute"),
        (WithList(), "predicts[0]", "an attribute of WithList"),
        (OwnModule().search, "OwnModule", "the object of the method"),
    ],
)
def test_a_module_that_the_graph_does_not_see_is_a_problem(fn: Any, name: str, place: str) -> None:
    found = find_hidden(fn)
    assert (found[0].name, found[0].place) == (name, place)
    (problem,) = [text for text in built(fn, "search").problems if "dspy.Module" in text]
    assert f"node 'search' uses the dspy.Module {name!r}" in problem
    assert "modules={" in problem
    problems = built_router("judge", fn, ["a", "b"], schema=OPEN).problems
    assert any("the router of 'judge' uses the dspy.Module" in text for text in problems)


def test_the_fix_is_code_to_paste() -> None:
    (problem,) = built(uses_global, "search").problems
    assert "add_node('search', uses_global, modules={'predict': PREDICT})" in problem


def reads_field_named_like_a_global(state: Any) -> Any:
    return state.answer


def makes_one(question: str) -> Any:
    return dspy.Predict("question -> answer")(question=question)


def uses_parameter(predict: Any) -> Any:
    return predict()


@each("fn", [reads_field_named_like_a_global, makes_one, uses_parameter, len, dict, print])
def test_functions_without_a_hidden_module_have_no_problem(fn: Any) -> None:
    assert find_hidden(fn) == []


def test_one_module_in_two_places_is_found_once() -> None:
    assert [hidden.name for hidden in find_hidden(functools.partial(uses_default, predict=PREDICT))] == ["predict"]


def test_a_recursive_function_is_searched_once() -> None:
    def again(n: int) -> Any:
        return again(n - 1) if n else None

    assert find_hidden(again) == []


def test_bound_modules_are_not_hidden() -> None:
    found = built(takes, modules={"predict": PREDICT})
    assert found.problems == ()
    assert isinstance(found.module, NodeModules)


def sends() -> Any:
    return [Send("a", {})]


def sends_by_module() -> Any:
    return [node_module.Send("a", {})]


def sends_by_helper(docs: list[str]) -> Any:
    return spread(docs)


def spread(docs: list[str]) -> Any:
    return [one(doc) for doc in docs]


def one(doc: str) -> Any:
    return Send("work", {"doc": doc}) if doc else spread([doc])


def promises_sends(docs: Any) -> list[Send] | Literal["work"]:
    return docs()  # type: ignore[no-any-return]


def promises_a_command(docs: Any) -> Command[Send]:
    return docs()  # type: ignore[no-any-return]


def test_mentions_finds_a_class_in_code_and_annotations() -> None:
    assert mentions(sends, Send)
    assert mentions(functools.partial(sends), Send)
    assert mentions(functools.lru_cache(sends), Send)
    assert mentions(sends_by_module, Send)
    assert mentions(sends_by_helper, Send)
    assert mentions(promises_sends, Send)
    assert mentions(promises_a_command, Send)
    assert not mentions(makes_one, Send)
    assert not mentions(len, Send)
