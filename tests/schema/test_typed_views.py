"""A state as a read-only instance of its model, as a node with a parameter of that type gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dspyer import END, START, Graph, Send
from dspyer.errors import (
    ImmutableError,
    UnsetFieldError,
)
from dspyer.testing import call_node
from tests.schema.research import Research, User

GIVEN = {"question": "why", "findings": ["a"], "user": {"name": "Ada", "serial": 1}}


def read(use: Callable[[Any], Any], given: dict[str, Any] = GIVEN, **options: Any) -> Any:
    """What a node finds in the state that it gets."""

    def look(state: Research) -> None:
        found.append(use(state))

    found: list[Any] = []
    program = Graph(Research).add_node("look", look, **options).add_path(START, "look", END).compile()
    call_node(program, "look", given)
    return found[0]


def test_it_is_an_instance_of_the_model() -> None:
    view = read(lambda state: state)
    assert isinstance(view, Research)
    assert type(view).__name__ == "Research"
    assert (view.question, view.shout(), view.size) == ("why", "why!", 1)
    assert view.user == User(name="Ada", serial=1)


def test_it_cannot_be_changed() -> None:
    view = read(lambda state: state)
    with pytest.raises(ImmutableError, match=r"return \{'question': ...\} from the node"):
        view.question = "x"
    with pytest.raises(ImmutableError):
        del view.question
    with pytest.raises(ImmutableError):
        view.findings.append("b")

    def rename(state: Research) -> None:
        assert state.user is not None
        state.user.name = "changed"

    graph = Graph(Research).add_node("rename", rename, writes=[]).add_path(START, "rename", END)
    assert graph.compile().run(GIVEN).state["user"].name == "Ada"


def test_reading_an_unset_or_undeclared_field_raises() -> None:
    with pytest.raises(UnsetFieldError, match="field 'question' of Research"):
        read(lambda state: state.question, {})
    with pytest.raises(UnsetFieldError, match="reads="):
        read(lambda state: state.findings, reads=["question"])
    assert read(lambda state: state.question, reads=["question"]) == "why"
    with pytest.raises(AttributeError, match="Did you mean 'question'"):
        read(lambda state: state.qestion)
    assert not read(lambda state: hasattr(state, "absent"))


def test_dumps_are_plain_and_hold_what_is_readable() -> None:
    view = read(lambda state: state, reads=["question", "findings"])
    assert view.model_dump() == {"question": "why", "findings": ["a"]}
    assert type(view.model_dump()["findings"]) is list
    assert view.model_dump_json() == '{"question":"why","findings":["a"]}'


def test_a_model_copy_has_only_the_changed_fields_set() -> None:
    view = read(lambda state: state)
    assert view.model_fields_set == set()
    assert view.model_copy(update={"answer": "x"}).model_fields_set == {"answer"}


def test_what_a_send_brings_and_is_no_field_is_left_out() -> None:
    def look(state: Research, item: int) -> dict[str, Any]:
        return {"calls": item, "anything": "item" in vars(state)}

    graph = Graph(Research).add_node("look", look, writes=["calls", "anything"])
    graph.add_conditional_edges(START, lambda: [Send("look", {"item": 3})], ["look"])
    state = graph.add_edge("look", END).compile().run(GIVEN).state
    assert (state["calls"], state["anything"]) == (3, False)
