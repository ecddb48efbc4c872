"""Modules that a function uses without binding them are found and refused, wherever they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import dspy
import pytest
from pydantic import BaseModel

import dspyer
from dspyer import END, START, Command, Graph, Send
from dspyer.errors import GraphError
from tests.nodes.kit import graph_of, problems
from tests.rows import each

PREDICT = dspy.Predict("question -> answer")
LISTED = [dspy.Predict("question -> answer")]
NAMED = {"a": dspy.Predict("question -> answer")}
HOLDER = SimpleNamespace(predict=PREDICT, other=1)
LIBRARY = ModuleType("library")
LIBRARY.predict = PREDICT  # type: ignore[attr-defined]
answer = PREDICT


class Docs(BaseModel):
    docs: list[str] = []


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
    (problem,) = [text for text in problems(fn, name="search") if "dspy.Module" in text]
    assert f"node 'search' uses the dspy.Module {name!r} ({place})" in problem
    assert "modules={" in problem
    with pytest.raises(GraphError, match=r"the router of 'node' uses the dspy\.Module"):
        graph_of(lambda: None, targets=["a", "b"]).add_conditional_edges("node", fn, ["a", "b"]).compile()


def test_the_fix_is_code_to_paste() -> None:
    (problem,) = problems(uses_global, name="search")
    assert "add_node('search', uses_global, modules={'predict': PREDICT})" in problem


def reads_field_named_like_a_global(state: Any) -> Any:
    return state.answer


def makes_one(question: str) -> Any:
    return dspy.Predict("question -> answer")(question=question)


def uses_parameter(predict: Any) -> Any:
    return predict()


def again(n: int) -> Any:
    return again(n - 1) if n else None


@each("fn", [reads_field_named_like_a_global, makes_one, uses_parameter, len, dict, print, again])
def test_functions_without_a_hidden_module_have_no_problem(fn: Any) -> None:
    assert not [text for text in problems(fn) if "dspy.Module" in text]


def test_one_module_in_two_places_is_found_once() -> None:
    (problem,) = problems(functools.partial(uses_default, predict=PREDICT))
    assert problem.count("uses the dspy.Module 'predict'") == 1


def test_bound_modules_are_not_hidden() -> None:
    assert problems(takes, modules={"predict": PREDICT}) == []


def sends() -> Any:
    return [Send("a", {})]


def sends_by_module() -> Any:
    return [dspyer.Send("a", {})]


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


def promises_a_name(docs: Any) -> Literal["work"]:
    return docs()  # type: ignore[no-any-return]


def goes_on() -> Literal["work"]:
    return "work"


def goes_on_by_helper() -> Any:
    return goes_on()


@each(
    ("fn", "found"),
    [
        (sends, True),
        (functools.partial(sends), True),
        (functools.lru_cache(sends), True),
        (sends_by_module, True),
        (sends_by_helper, True),
        (promises_sends, True),
        (promises_a_name, False),
        (goes_on, False),
        (goes_on_by_helper, False),
    ],
)
def test_a_router_that_may_send_is_known_by_its_code_and_annotations(fn: Any, found: bool) -> None:
    """Of the target of a Send nobody else need write what it reads."""
    graph = Graph(Docs).add_node("work", lambda doc: None, writes=[]).add_conditional_edges(START, fn, ["work"])
    with nullcontext() if found else pytest.raises(GraphError, match="'doc' is no field"):
        graph.add_edge("work", END).compile()


def test_a_node_that_may_send_is_known_by_its_annotation() -> None:
    graph = Graph(Docs).add_node("split", promises_a_command, goto=["work"], writes=[]).add_edge(START, "split")
    graph.add_node("work", lambda doc: None, writes=[]).add_edge("work", END).compile()
