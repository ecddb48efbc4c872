"""Arguments are parsed as `dspy.Tool` parses them."""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any, Literal

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from dspyer import CompiledGraph
from tests.agents.kit import agent, results, run_turn
from tests.rows import each


class Place(BaseModel):
    name: str
    people: int = 0


class Unit(Enum):
    ONE = "one"


GOT: list[Any] = []


def taking(kind: Any) -> dspy.Tool:
    """A tool that notes its argument."""

    def take(x: Any) -> str:
        """Takes a value."""
        GOT.append(x)
        return "taken"

    take.__annotations__["x"] = kind
    return dspy.Tool(take, name=f"take_{KINDS.index(kind)}")


KINDS: list[Any] = [int, float, str, bool, list[int], Place, Unit, Literal["a"], Any]
TOOLS = [taking(kind) for kind in KINDS]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "one", "7"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "people"]), inner, max_size=2),
    max_leaves=4,
)


def outcome(tool: dspy.Tool, value: Any) -> Any:
    """What the tool gets, or what is said of it."""
    GOT.clear()
    try:
        tool(x=value)
    except ValidationError as refusal:
        return [error["msg"] for error in refusal.errors()]
    except ValueError as error:
        return [str(error)]
    return GOT[0]


@functools.cache
def agent_of_all() -> CompiledGraph:
    return agent(*TOOLS)


@pytest.mark.slow("a law: 25 turns of an agent that has all tools")
@given(st.sampled_from(TOOLS), VALUES)
def test_each_value_is_parsed_or_refused_as_dspy_does(tool: dspy.Tool, value: Any) -> None:
    reference = outcome(tool, value)
    refused = not GOT
    GOT.clear()
    [(_, told, error)] = results(run_turn(agent_of_all(), (tool.name, {"x": value})))
    assert error == refused == (not GOT), (told, reference)
    if refused:
        assert all(" ".join(text.split())[:60] in told for text in reference), (told, reference)
    else:
        assert (GOT[0], type(GOT[0])) == (reference, type(reference))


@each("schema", [{"type": "no such type"}, {"type": "object", "properties": 7}])
def test_a_schema_that_is_none_is_left_to_the_tool(schema: Any) -> None:
    def made() -> dspy.Tool:
        return dspy.Tool(GOT.append, name="t", desc=".", args={"x": schema}, arg_types={"x": Any})

    try:
        made()(x=1)
    except Exception as error:  # noqa: BLE001 - the same is to be said
        expected = str(error).splitlines()[0][:40]
    else:
        expected = ""
    GOT.clear()
    [(_, told, is_error)] = results(run_turn(agent(made()), ("t", {"x": 1})))
    assert (is_error, GOT) == ((True, []) if expected else (False, [1]))
    assert expected in str(told)
