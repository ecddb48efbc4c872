"""What the classes of LangGraph's schemas do beside naming keys: attributes that are no data, and validators."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, PlainValidator, WrapValidator

from dspyer.schema.fields import validated_fields

_VALIDATORS = (AfterValidator, BeforeValidator, PlainValidator, WrapValidator)


def data_channels(builder: Any) -> dict[str, Any]:
    """Return the channels of a `StateGraph` that hold data.

    LangGraph makes channels of the private attributes of pydantic models and of the marker `_: KW_ONLY` of a dataclass
    too. No node can read those.
    """
    return {
        key: channel
        for key, channel in builder.channels.items()
        if getattr(channel, "typ", None) is not dataclasses.KW_ONLY
        and not all(key in private_attributes(schema) for schema, keys in builder.schemas.items() if key in keys)
    }


def private_attributes(schema: Any) -> frozenset[str]:
    """Return the names that a pydantic model has as private attributes; none for another class."""
    is_model = isinstance(schema, type) and issubclass(schema, BaseModel)
    return frozenset(schema.__private_attributes__) if is_model else frozenset()


def own_validation(builder: Any, key: str, annotation: Any) -> str:
    """Return why a key is validated by its class alone, when a node reads it; empty if the annotation says it all.

    A validator may change a value each time it runs, so that a second run before the value is committed would change
    it twice; and it may accept what the annotation does not.
    """
    if _has_validator(annotation):
        return "its annotation has a validator, which runs when a node reads it, as in LangGraph"
    for schema in builder.schemas:
        if isinstance(schema, type) and issubclass(schema, BaseModel) and key in schema.model_fields:
            of_model = schema.__pydantic_decorators__.model_validators.values()
            if key in validated_fields(schema) or any(each.info.mode != "after" for each in of_model):
                return f"{schema.__name__} has a validator for it, which runs when a node reads it, as in LangGraph"
    return ""


def _has_validator(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated and any(isinstance(each, _VALIDATORS) for each in annotation.__metadata__):
        return True
    return any(map(_has_validator, get_args(annotation)))
