"""Typed, read-only views: a state as an instance of its schema's model."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import BaseModel

from dspyer.errors import ImmutableError, UnsetFieldError, suggestion
from dspyer.values.frozen import thaw


def view_class(model: type[BaseModel]) -> type[BaseModel]:
    """A subclass of a model for instances made by `fill`: methods and properties work, nothing can be set.

    Args:
        model: the schema.

    Returns:
        The class, called as the model.
    """
    name, fields = model.__name__, model.model_fields

    def refuse_read(_view: BaseModel, key: str) -> Any:
        if key in fields:
            raise UnsetFieldError(
                f"field {key!r} of {name} cannot be read here: no node has written it yet, "
                "or the node does not list it in reads="
            )
        raise AttributeError(f"{name} has no field or attribute {key!r}.{suggestion(key, fields)}")

    def refuse_write(_view: BaseModel, key: str, _value: Any = None) -> NoReturn:
        raise ImmutableError(
            f"the state that a node reads cannot be changed: return {{{key!r}: ...}} from the node instead"
        )

    def plain(view: BaseModel) -> BaseModel:
        return fill(model, {key: thaw(value) for key, value in view.__dict__.items() if key in fields})

    def model_dump(view: BaseModel, *args: Any, **options: Any) -> dict[str, Any]:
        return plain(view).model_dump(*args, **options)

    def model_dump_json(view: BaseModel, *args: Any, **options: Any) -> str:
        return plain(view).model_dump_json(*args, **options)

    namespace = {
        "__module__": model.__module__,
        "__qualname__": model.__qualname__,
        "__doc__": model.__doc__,
        "__getattr__": refuse_read,
        "__setattr__": refuse_write,
        "__delattr__": refuse_write,
        "model_dump": model_dump,
        "model_dump_json": model_dump_json,
    }
    view: type[BaseModel] = types.new_class(name, (model,), {}, lambda body: body.update(namespace))
    return view


def fill(cls: type[BaseModel], values: Mapping[str, Any]) -> BaseModel:
    """An instance of a model with these values alone, unvalidated.

    No field counts as set, so that a node that returns `view.model_copy(update={...})` writes the update alone.
    """
    view = cls.__new__(cls)
    object.__setattr__(view, "__dict__", values)
    object.__setattr__(view, "__pydantic_fields_set__", set())
    object.__setattr__(view, "__pydantic_extra__", None)
    object.__setattr__(view, "__pydantic_private__", None)
    return view
