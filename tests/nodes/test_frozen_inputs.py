"""A graph in a node gets frozen values: nothing is copied, and what is valid outside is not validated again."""

from __future__ import annotations

from typing import Annotated, Any

import dspy
import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from dspyer import END, START, Graph, ImmutableState, Send, reducers, view
from dspyer.errors import ImmutableError
from dspyer.search import best_of
from tests.rows import each


class Work(BaseModel):
    table: dict[str, list[int]] = {}
    log: Annotated[list[str], reducers.extend] = []
    n: int = 0


def step(schema: Any, seen: list[Any]) -> Graph:
    """A graph whose node notes its state."""

    def look(state: ImmutableState) -> dict[str, int]:
        seen.append({name: state.raw(name) for name in state})
        return {"n": state["n"] + 1}

    graph = Graph(schema, name="Step", inputs=["table", "log", "n"], outputs=["n"])
    return graph.add_node("look", look, writes=["n"]).add_path(START, "look", END)


INPUTS = {"table": {"a": [1]}, "log": ["x"], "n": 0}


@pytest.mark.parametrize("schema", [Work, None])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_nested_graph_has_the_very_values_of_the_state_around_it(schema: Any, depth: int) -> None:
    seen: list[Any] = []
    graph = step(schema, seen)
    for _ in range(depth):
        around = Graph(schema, name="Around", inputs=["table", "log", "n"])
        graph = around.add_node("first", graph, writes=["n"]).add_path(START, "first", END)
    run = graph.compile().run(INPUTS)
    assert run.state["n"] == 1
    assert seen[0]["table"] is run.state.raw("table")
    assert seen[0]["log"] is run.state.raw("log")


def test_a_trial_has_the_very_values_of_the_state_of_its_search() -> None:
    seen: list[Any] = []
    run = best_of(step(Work, seen), 3, lambda n: n).compile().run(INPUTS)
    assert all(one["table"] is run.state.raw("table") for one in seen)


@pytest.mark.parametrize("how", ["send", "view", "map"])
def test_what_a_send_a_map_or_a_view_brings_is_frozen_once(how: str) -> None:
    given: list[Any] = []
    inner = step(None, []).compile()

    class Watch(dspy.utils.BaseCallback):
        def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            if isinstance(instance, type(inner)):
                given.append(inputs["kwargs"])

    graph = Graph(name="Around", inputs=["table", "log", "n"])
    if how == "map":
        graph.add_map("step", inner, over="tables", item="table", into="results")
        graph.add_node("split", lambda: {"tables": [{"a": [1]}]}).add_path(START, "split", "step", END)
    else:
        reads: Any = {"table": "table", "log": view("log").last(1) if how == "view" else "log", "n": "n"}
        graph.add_node("step", inner, reads=reads, writes=["n"]).add_edge("step", END)
        graph.add_conditional_edges(START, lambda: Send("step", {"table": {"a": [1]}}), ["step"])
    with dspy.context(callbacks=[Watch()]):
        run = graph.compile().run(INPUTS)
    run.raise_error()
    with pytest.raises(ImmutableError):
        given[0]["table"].update(b=[2])
    with pytest.raises(ImmutableError):
        given[0]["log"].append("y")
    assert given[0]["log"] == ["x"]


def test_what_is_valid_outside_is_not_validated_again() -> None:
    validated: list[int] = []

    def note(number: int) -> int:
        validated.append(number)
        return number

    class Counted(BaseModel):
        table: dict[str, Annotated[int, AfterValidator(note)]] = {}

    graph = Graph(Counted, inputs=["table"]).add_node("look", lambda table: None, writes=[])
    inner = graph.add_path(START, "look", END)
    around = Graph(Counted, inputs=["table"]).add_node("inner", inner, writes=[]).add_path(START, "inner", END)
    around.compile().run({"table": {"a": 1}}).raise_error()
    assert validated == [1]


class Fewer(BaseModel):
    table: dict[str, list[int]] = Field(default={}, max_length=1)


class Other(BaseModel):
    table: dict[str, list[float]] = {}


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    table: dict[str, list[int]] = {}


class Checked(BaseModel):
    table: dict[str, list[int]] = {}

    @field_validator("table")
    @classmethod
    def not_empty(cls, value: Any) -> Any:
        if not value:
            raise ValueError("empty")
        return value


def double(table: dict[str, list[int]]) -> dict[str, list[int]]:
    return {name: 2 * one for name, one in table.items()}


class Doubled(BaseModel):
    table: Annotated[dict[str, list[int]], AfterValidator(double)] = {}


@each(
    ("outer", "inner", "table", "found"),
    [
        (Work, Fewer, {"a": [1], "b": [2]}, "at most 1 item"),
        (Work, Other, {"a": [1]}, {"a": [1.0]}),
        (Other, Work, {"a": [1.5]}, "valid integer"),
        (Work, Stripped, {" a ": [1]}, {"a": [1]}),
        (Work, Checked, {}, "empty"),
        (Work, Doubled, {"a": [1]}, {"a": [1, 1]}),
    ],
)
def test_a_field_that_refuses_more_validates_again(
    outer: type[BaseModel], inner: type[BaseModel], table: Any, found: Any
) -> None:
    seen: list[Any] = []

    def look(table: dict[str, Any]) -> None:
        seen.append(table)

    graph = Graph(inner, inputs=["table"], outputs=[]).add_node("look", look)
    around = Graph(outer, inputs=["table"]).add_node("inner", graph.add_path(START, "look", END))
    run = around.add_path(START, "inner", END).compile().run({"table": table})
    if isinstance(found, str):
        assert found in str(run.error)
    else:
        assert repr(seen) == repr([found])
