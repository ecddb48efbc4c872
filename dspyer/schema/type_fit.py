"""Which declared types can never fit: what a graph can refuse before it runs.

Only what is certain, or a lottery, is refused: a text never is a list, and whether one reads as a number depends on the
text. Unions fit if one member does; types that bring validators of their own, on either side, and all that is not known
here, fit.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from typing_extensions import is_typeddict

from dspyer.errors import NodeOutputError
from dspyer.hints import UNIONS
from dspyer.schema.fields import refusal_text
from dspyer.schema.schema import Schema

LISTS = ("list", "tuple", "set", "frozenset")
NUMBERS = ("int", "float", "bool")
MAPPINGS = ("dict", "model")
NEVER: Mapping[str, tuple[str, ...]] = {
    "str": (*NUMBERS, *LISTS, *MAPPINGS),
    **dict.fromkeys(NUMBERS, ("str", *LISTS, *MAPPINGS)),
    **dict.fromkeys(LISTS, ("str", *NUMBERS, *MAPPINGS)),
    "dict": ("str", *NUMBERS, *LISTS),
    "model": ("str", *NUMBERS),  # a model is iterable, and pydantic makes lists of what is
    "NoneType": ("str", *NUMBERS, *LISTS, *MAPPINGS),
}
"""By the kind of what is given, the kinds that never take it."""


def fits(given: Any, wanted: Any) -> bool:
    """Whether some value of a declared type may be valid as another one.

    Args:
        given: the type of what is written.
        wanted: the type of what is there.

    Example:
        >>> fits(str, list[dict]), fits(str | None, str), fits(list[str], list[int])
        (False, True, False)
    """
    given, known = _bare(given)
    wanted, plain = _bare(wanted)
    if not (known and plain):
        return True
    if get_origin(given) in UNIONS:
        return any(fits(member, wanted) for member in get_args(given))
    if get_origin(wanted) in UNIONS:
        return any(fits(given, member) for member in get_args(wanted))
    ours, theirs = _kind(given), _kind(wanted, True)
    if theirs in NEVER.get(ours, ()):
        return False
    item, wanted_item = _item(given), _item(wanted)
    both = (ours in LISTS and theirs in LISTS) or ours == theirs == "dict"
    return not both or item is None or wanted_item is None or fits(item, wanted_item)


def update_type(schema: Schema, name: str) -> Any:
    """The type of what is written to a field: an update of its reducer, or its value; `Any` where nothing is certain.

    Args:
        schema: the fields.
        name: the field.
    """
    field = schema.fields.get(name)
    if field is None or schema.model is None or schema.model.model_config.get("coerce_numbers_to_str"):
        return Any
    if field.reads_other_fields or not _says_no_more(field.info.metadata):
        return Any
    if field.reducer is None:
        return field.annotation
    if field.reducer.update_type is None:
        return Any
    found = field.reducer.update_type(field.annotation)
    if field.reducer.assign_ids is None:
        return found
    return found | get_args(found)[0]  # a message alone is as good as a list of one


def value_type(schema: Schema, name: str) -> Any:
    """The type of the values of a field; `Any` where a validator of its own may have made others of them.

    Args:
        schema: the fields.
        name: the field.
    """
    field = schema.fields.get(name)
    if field is None or field.reads_other_fields or not _says_no_more(field.info.metadata):
        return Any
    return field.annotation


@dataclass(frozen=True, slots=True)
class ItemCheck:
    """What refuses an item of a list before the list is whole.

    Attributes:
        schema: the fields.
        name: the field for the list.
        who: the node that makes the items, for errors.
    """

    schema: Schema
    name: str
    who: str

    def __call__(self, item: object, place: int) -> None:
        """Checks an item.

        Raises:
            NodeOutputError: if the field takes no list with this item.
        """
        validate = self.schema.fields[self.name].validate_item
        if validate is None:
            return
        try:
            validate(item)
        except ValidationError as refusal:
            shown = self.schema.show_value((self.name, place), item)
            why = refusal_text(refusal, self.name)
            text = f"{self.who} gives {shown} for {self.name}[{place}], which is refused: {why}"
            raise NodeOutputError(f"{text}. No further item was started") from None


def item_check(schema: Schema, name: str, who: str) -> ItemCheck | None:
    """What refuses an item of a list before the list is whole; None where only the whole list can be validated.

    Args:
        schema: the fields.
        name: the field for the list.
        who: the node that makes the items, for errors.

    Returns:
        A check of an item and its place.
    """
    field = schema.fields.get(name)
    if field is None or field.validate_item is None or (field.reducer is not None and field.reducer.name != "extend"):
        return None
    return ItemCheck(schema, name, who)


def _bare(annotation: Any) -> tuple[Any, bool]:
    """A type without its `Annotated`, and whether that says nothing which could change a value."""
    if get_origin(annotation) is not Annotated:
        return annotation, True
    return annotation.__origin__, _says_no_more(annotation.__metadata__)


def _says_no_more(metadata: Any) -> bool:
    return not any(hasattr(item, "__get_pydantic_core_schema__") for item in metadata)


def _kind(annotation: Any, wanted: bool = False) -> str:
    """What a type is, as far as `NEVER` knows it; `""` for anything else."""
    if annotation is None or annotation is types.NoneType:
        return "NoneType"
    origin = get_origin(annotation) or annotation
    if is_typeddict(origin):
        return "dict"
    if not isinstance(origin, type) or issubclass(origin, Enum):
        return ""
    if issubclass(origin, BaseModel):
        return "model" if not wanted or _is_plain_model(origin) else ""
    known = (bool, str, int, float, list, tuple, set, frozenset, dict)
    found = [cls for cls in known if (origin is cls if wanted else issubclass(origin, cls))]
    return found[0].__name__ if found else ""


def _is_plain_model(model: type[BaseModel]) -> bool:
    """Whether instances are made of mappings alone: nothing in the model reads other values."""
    if issubclass(model, RootModel) or model.__pydantic_decorators__.model_validators:
        return False
    own: Any = model.__get_pydantic_core_schema__
    return own.__func__ is BaseModel.__get_pydantic_core_schema__.__func__  # type: ignore[attr-defined]


def _item(annotation: Any) -> Any:
    """The type of the items of a list or set, or of the values of a mapping; None if it is not one type."""
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin in (list, set, frozenset) and len(arguments) == 1:
        return arguments[0]
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[0]
    return arguments[1] if origin is dict and len(arguments) == 2 else None


def misfit(schema: Schema, name: str, given: Any) -> str:
    """Why what is given can never be written to a field, as the end of a sentence; empty if it may.

    Args:
        schema: the fields.
        name: the field.
        given: the type of what is given.
    """
    wanted = update_type(schema, name)
    if fits(given, wanted):
        return ""
    reducer = schema.reducer(name)
    takes = "takes" if reducer is None else f"takes by its reducer {reducer.name!r}"
    return f"is {shown_type(given)}, and field {name!r} {takes} {shown_type(wanted)}"


def shown_type(annotation: Any) -> str:
    """A type as a user writes it."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__name__
    return str(annotation).replace("typing.", "")
