"""Reading a pydantic model as a schema: fields, reducers, defaults, and the models that are refused."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    RootModel,
    model_validator,
)

from dspyer import Graph, reducers
from dspyer.errors import (
    GraphError,
    NodeOutputError,
)
from tests.rows import each
from tests.schema.research import Options, User, write


def test_other_metadata_is_not_taken_for_a_reducer() -> None:
    class Marker:
        pass

    class Model(BaseModel):
        a: Annotated[int, Field(gt=0), Marker()] = 1
        b: Annotated[str, AfterValidator(str.strip)] = ""

    assert write(Model, {"a": 2, "b": "y"}, {"a": 3, "b": " x "}).commits[-1].patch == {"a": 3, "b": "x"}
    with pytest.raises(NodeOutputError, match="greater than 0"):
        write(Model, {"a": 0})


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
        Graph(model)
    assert all(word in str(refusal.value) for word in words)
