"""Arguments are parsed as `dspy.Tool` parses them, by validators that are made once."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from dspyer.agents.tool_arguments import argument_parsers


class Place(BaseModel):
    name: str
    people: int = 0


class Unit(Enum):
    ONE = "one"


def many(
    n: int, x: float, text: str, flag: bool, items: list[int], place: Place, unit: Unit, mode: Literal["a"], other: Any
) -> None:
    """Takes an argument of each kind."""


TOOL = dspy.Tool(many)
PARSERS = argument_parsers(TOOL)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["", "a", "one", "7"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "people"]), inner, max_size=2),
    max_leaves=4,
)


def outcome(parse: Any) -> Any:
    try:
        return parse()
    except ValidationError as refusal:
        return [error["msg"] for error in refusal.errors()]
    except ValueError as error:
        return str(error)


@given(st.sampled_from(sorted(TOOL.args)), VALUES)
def test_each_value_is_parsed_or_refused_as_dspy_does(name: str, value: Any) -> None:
    own = outcome(lambda: PARSERS[name].parse(name, value))
    reference = outcome(lambda: TOOL._validate_and_parse_args(**{name: value})[name])
    assert own == reference
    assert type(own) is type(reference)


@pytest.mark.parametrize("schema", [{"type": "no such type"}, {"type": "object", "properties": 7}])
def test_a_schema_that_is_none_is_left_to_the_tool(schema: Any) -> None:
    tool = dspy.Tool(lambda **_: None, name="t", args={"x": schema}, arg_types={"x": Any})
    assert argument_parsers(tool) == {}
