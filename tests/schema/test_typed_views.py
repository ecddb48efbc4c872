"""A state as a read-only instance of its model, as a node with a parameter of that type gets it."""

from __future__ import annotations

from typing import Any

import pytest

from dspyer.errors import (
    ImmutableError,
    UnsetFieldError,
)
from tests.schema.research import SCHEMA, Research, User


class TestView:
    state = SCHEMA.initial_state({"question": "why", "findings": ["a"], "user": {"name": "Ada", "serial": 1}})

    def view(self, readable: frozenset[str] | None = None) -> Any:
        return SCHEMA.view(self.state, readable)

    def test_it_is_an_instance_of_the_model(self) -> None:
        view = self.view()
        assert isinstance(view, Research)
        assert type(view).__name__ == "Research"
        assert view.question == "why"
        assert view.shout() == "why!"
        assert view.size == 1
        assert view.user == User(name="Ada", serial=1)

    def test_it_cannot_be_changed(self) -> None:
        view = self.view()
        with pytest.raises(ImmutableError, match=r"return \{'question': ...\} from the node"):
            view.question = "x"
        with pytest.raises(ImmutableError):
            del view.question
        with pytest.raises(ImmutableError):
            view.findings.append("b")
        view.user.name = "changed"
        assert self.state["user"].name == "Ada"
        assert self.state["findings"] == ["a"]

    def test_reading_an_unset_or_undeclared_field_raises(self) -> None:
        with pytest.raises(UnsetFieldError, match="field 'question' of Research"):
            _ = SCHEMA.view(SCHEMA.initial_state({}), None).question  # type: ignore[attr-defined]
        with pytest.raises(UnsetFieldError, match="reads="):
            _ = self.view(frozenset({"question"})).findings
        assert self.view(frozenset({"question"})).question == "why"
        with pytest.raises(AttributeError, match="Did you mean 'question'"):
            _ = self.view().qestion
        assert not hasattr(self.view(), "absent")

    def test_dumps_are_plain_and_hold_what_is_readable(self) -> None:
        view = self.view(frozenset({"question", "findings"}))
        assert view.model_dump() == {"question": "why", "findings": ["a"]}
        assert type(view.model_dump()["findings"]) is list
        assert view.model_dump_json() == '{"question":"why","findings":["a"]}'

    def test_a_model_copy_has_only_the_changed_fields_set(self) -> None:
        view = self.view()
        assert view.model_fields_set == set()
        assert view.model_copy(update={"answer": "x"}).model_fields_set == {"answer"}

    def test_keys_that_are_not_fields_are_left_out(self) -> None:
        assert "item" not in SCHEMA.view({**self.state, "item": 1}, None).__dict__


# Writes of every kind, valid or not, for the laws.
