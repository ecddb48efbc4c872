"""Reading a pydantic model as a schema: fields, reducers, defaults, and the models that are refused."""

from __future__ import annotations

import copy
import pickle
from typing import Annotated, Any

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    RootModel,
    model_validator,
)

from dspyer import reducers
from dspyer.errors import (
    GraphError,
    NodeOutputError,
)
from dspyer.patch import DELETE
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from tests.rows import each
from tests.schema.research import SCHEMA, Options, Research, User


class TestReading:
    def test_fields(self) -> None:
        assert list(SCHEMA.fields) == list(Research.model_fields)
        assert SCHEMA.model is Research
        assert not SCHEMA.accepts_any_key
        assert SCHEMA.fields["question"].required
        assert SCHEMA.fields["question"].default() is DELETE
        assert not SCHEMA.fields["findings"].required
        assert SCHEMA.fields["findings"].default() == []
        assert SCHEMA.reducer("findings") is reducers.extend
        assert SCHEMA.reducer("answer") is None
        assert SCHEMA.reducer("replaced") is None, "its updates conflict, they do not fold"
        assert SCHEMA.reducer("unknown") is None

    def test_a_schema_without_a_model(self) -> None:
        schema = Schema.of(None)
        assert schema.accepts_any_key
        assert not schema.fields
        assert schema.model is None
        assert schema.reducer("any") is None
        with pytest.raises(GraphError, match="Graph\\(Research\\)"):
            schema.view(ImmutableState(), None)

    def test_a_schema_is_shared_by_copies(self) -> None:
        assert copy.deepcopy(SCHEMA) is SCHEMA
        assert copy.copy(SCHEMA) is SCHEMA
        assert list(pickle.loads(pickle.dumps(SCHEMA)).fields) == list(SCHEMA.fields)

    def test_other_metadata_is_not_taken_for_a_reducer(self) -> None:
        class Marker:
            pass

        class Model(BaseModel):
            a: Annotated[int, Field(gt=0), Marker()] = 1
            b: Annotated[str, AfterValidator(str.strip)] = ""

        schema = Schema.of(Model)
        assert schema.reducer("a") is schema.reducer("b") is None
        with pytest.raises(NodeOutputError, match="greater than 0"):
            schema.commit(schema.initial_state({}), {"a": 0}, node="n", commit_id="c")
        assert schema.commit(schema.initial_state({}), {"b": " x "}, node="n", commit_id="c")[0] == {"b": "x"}


def model_with(annotation: Any, default: Any = ..., **config: Any) -> type[BaseModel]:
    namespace: dict[str, Any] = {"__annotations__": {"field": annotation}, "__module__": __name__}
    if default is not ...:
        namespace["field"] = default
    namespace["model_config"] = {"arbitrary_types_allowed": True, **config}
    return type("Model", (BaseModel,), namespace)


class Checked(BaseModel):
    a: int = 0

    @model_validator(mode="after")
    def check_all(self) -> Checked:
        return self


class Private(BaseModel):
    _count: int = 0


class Reserved(BaseModel):
    run: int = 0
    state: int = 0
    ctx: int = 0


class Later(BaseModel):
    field: NotDefinedYet  # type: ignore[name-defined]  # noqa: F821


@each(
    ("model", "words"),
    [
        (model_with(Annotated[list[str], "extend"]), ["field 'field' of schema Model", "reducers.extend"]),
        (model_with(Annotated[list[str], "extnd"]), ["Did you mean 'extend'", "Field(description=...)"]),
        (model_with(Annotated[list[str], len]), ["'len' must take two arguments"]),
        (model_with(Annotated[list[str], lambda current: current]), ["two arguments"]),
        (model_with(Annotated[list[str], {"reducer": "extend"}]), ["is no reducer"]),
        (model_with(Annotated[str, reducers.extend]), ["reducer 'extend' needs a field of type list, not str"]),
        (model_with(Annotated[list[str], reducers.increment]), ["reducer 'increment' needs a field of numbers"]),
        (model_with(Annotated[list[str], reducers.extend, reducers.append]), ["2 reducers (extend, append)"]),
        (
            model_with(Annotated[list[str], reducers.extend] | None, None),
            ["Annotated[list[str] | None, reducers.extend]"],
        ),
        (model_with(Annotated[list[str], reducers.add_messages]), ["messages with an `id`"]),
        (model_with(Any, object()), ["its default cannot be part of a state"]),
        (model_with(int, "x", validate_default=True), ["its default is not valid"]),
        (Checked, ["'check_all'", "@field_validator"]),
        (Private, ["'_count' is a private attribute", "without the leading underscore"]),
        (Reserved, ["3 problems", "'run'", "'state'", "'ctx'", "rename it"]),
        (Later, ["'NotDefinedYet'", "not defined yet"]),
        (RootModel[int], ["a class of pydantic's BaseModel"]),
        (User(name="a"), ["a class of pydantic's BaseModel"]),
        (Options, ["a class of pydantic's BaseModel"]),
        (int, ["a class of pydantic's BaseModel"]),
    ],
)
def test_models_that_a_graph_cannot_use(model: Any, words: list[str]) -> None:
    with pytest.raises(GraphError) as refusal:
        Schema.of(model)
    assert all(word in str(refusal.value) for word in words)
