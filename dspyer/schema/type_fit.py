"""Return whether a value of one declared type can be valid as another: what a graph can refuse before it runs.

A pair of types is refused if no value fits, such as text for a list, or only some do, such as text for a number, which
takes "12" and refuses "twelve". A union fits if one of its members does. A type with validators, on either side, and
any type that is not known here, fits.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Any, NamedTuple, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, RootModel, ValidationError
from typing_extensions import is_typeddict

from dspyer.errors import NodeOutputError, list_names, suggestion
from dspyer.hints import UNIONS
from dspyer.policies import MANY, ONE, Pattern
from dspyer.schema.fields import refusal_text
from dspyer.schema.schema import Schema

ItemCheck = Callable[[object, int], None]

LISTS = ("list", "tuple", "set", "frozenset")
NUMBERS = ("int", "float", "bool")
MAPPINGS = ("dict", "model")
SCALARS = (date, time, timedelta, Decimal, UUID)  # of which pydantic makes no text
NEVER: Mapping[str, tuple[str, ...]] = {
    "str": (*NUMBERS, *LISTS, *MAPPINGS),
    **dict.fromkeys(NUMBERS, ("str", *LISTS, *MAPPINGS)),
    **dict.fromkeys(LISTS, ("str", *NUMBERS, *MAPPINGS)),
    "dict": ("str", *NUMBERS, *LISTS),
    "model": ("str", *NUMBERS, "dict"),  # a model is iterable, and pydantic makes lists of what is
    "scalar": ("str", *LISTS, *MAPPINGS),
    "NoneType": ("str", *NUMBERS, *LISTS, *MAPPINGS),
}
"""By the kind of the given type, the kinds that never accept it."""


def fits(given: Any, wanted: Any) -> bool:
    """Return whether a value of type `given` may be valid for type `wanted`.

    Example:
        >>> fits(str, list[dict]), fits(str | None, str), fits(list[str], list[int])
        (False, True, False)
    """
    given, given_is_plain = _unwrap_annotated(given)
    wanted, wanted_is_plain = _unwrap_annotated(wanted)
    if not (given_is_plain and wanted_is_plain):
        return True
    if get_origin(given) in UNIONS:
        return any(fits(member, wanted) for member in get_args(given))
    if get_origin(wanted) in UNIONS:
        return any(fits(given, member) for member in get_args(wanted))
    given_kind, wanted_kind = _kind(given), _kind(wanted, True)
    if wanted_kind in NEVER.get(given_kind, ()) or (wanted_kind == "NoneType" and given_kind in NEVER):
        return given_kind == wanted_kind
    given_item, wanted_item = _item(given), _item(wanted)
    have_items = (given_kind in LISTS and wanted_kind in LISTS) or given_kind == wanted_kind == "dict"
    return not have_items or given_item is None or wanted_item is None or fits(given_item, wanted_item)


def _unwrap_annotated(annotation: Any) -> tuple[Any, bool]:
    """Return a type without `Annotated`, and whether that has no validator that could change a value."""
    if get_origin(annotation) is not Annotated:
        return annotation, True
    return annotation.__origin__, _has_no_validators(annotation.__metadata__)


def _kind(annotation: Any, wanted: bool = False) -> str:
    """Return the kind of a type in the terms of `NEVER`; `""` for a type that it does not know.

    A subclass has the kind of its base as the given type only: as the wanted one it may accept more than its base.
    """
    if annotation is None or annotation is types.NoneType:
        return "NoneType"
    origin = get_origin(annotation) or annotation
    if is_typeddict(origin):
        return "dict"
    if not isinstance(origin, type) or issubclass(origin, Enum):
        return ""
    if issubclass(origin, BaseModel):
        return "model" if not wanted or _is_plain_model(origin) else ""
    if not wanted and (is_dataclass(origin) or issubclass(origin, SCALARS)):
        return "model" if is_dataclass(origin) else "scalar"
    known = (bool, str, int, float, list, tuple, set, frozenset, dict)
    found = [cls for cls in known if (origin is cls if wanted else issubclass(origin, cls))]
    return found[0].__name__ if found else ""


def _is_plain_model(model: type[BaseModel]) -> bool:
    """Return whether only mappings validate as the model: it has no validator that reads other values."""
    if issubclass(model, RootModel) or model.__pydantic_decorators__.model_validators:
        return False
    own: Any = model.__get_pydantic_core_schema__
    return own.__func__ is BaseModel.__get_pydantic_core_schema__.__func__  # type: ignore[attr-defined]


def _item(annotation: Any) -> Any:
    """Return the type of the items of a list or set, or of the values of a mapping; None if it is not a single type."""
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin in (list, set, frozenset) and len(arguments) == 1:
        return arguments[0]
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[0]
    return arguments[1] if origin is dict and len(arguments) == 2 else None


def misfit(schema: Schema, name: str, given: Any) -> str:
    """Return why a value of type `given` can never be written to a field, as the end of a sentence; empty if it can."""
    wanted = update_type(schema, name)
    if fits(given, wanted):
        return ""
    reducer = schema.reducer(name)
    takes = "takes" if reducer is None else f"takes by its reducer {reducer.name!r}"
    return f"is {shown_type(given)}, and field {name!r} {takes} {shown_type(wanted)}"


def shown_type(annotation: Any) -> str:
    """Return a type as a user writes it."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def update_type(schema: Schema, name: str) -> Any:
    """Return the type of what nodes write to a field: an update of its reducer, or its value; `Any` if unknown."""
    field = schema.fields.get(name)
    if field is None or schema.model is None or schema.model.model_config.get("coerce_numbers_to_str"):
        return Any
    if field.reads_other_fields or not _has_no_validators(field.info.metadata):
        return Any
    if field.reducer is None:
        return field.annotation
    if field.reducer.update_type is None:
        return Any
    found = field.reducer.update_type(field.annotation)
    if field.reducer.assign_ids is None or found is Any:
        return found
    if get_origin(found) is dict:  # of messages by key
        key, messages = get_args(found)
        return dict[key, messages | get_args(messages)[0]]  # type: ignore[misc, valid-type]  # a type made at run time
    return found | get_args(found)[0]  # a message alone is as good as a list of one


def value_type(schema: Schema, name: str) -> Any:
    """Return the type of the values of a field; `Any` if a validator may change them."""
    field = schema.fields.get(name)
    if field is None or field.reads_other_fields or not _has_no_validators(field.info.metadata):
        return Any
    return field.annotation


def _has_no_validators(metadata: Any) -> bool:
    return not any(hasattr(item, "__get_pydantic_core_schema__") for item in metadata)


def item_check(schema: Schema, name: str, author: str, advice: str = "") -> ItemCheck | None:
    """Return the check for single items of a list field; None if only the whole list can be validated.

    It gets an item and its index, and raises `NodeOutputError` if the field accepts no such list of `author`, a map;
    `advice` ends the text.
    """
    field = schema.fields.get(name)
    if field is None or field.validate_item is None or (field.reducer is not None and field.reducer.name != "extend"):
        return None
    return partial(_check_item, schema, name, author, advice)  # not a function inside of this one: it is pickled


def _check_item(schema: Schema, name: str, author: str, advice: str, item: object, index: int) -> None:
    validate = schema.fields[name].validate_item
    assert validate is not None  # else there is no check
    try:
        validate(item)
    except ValidationError as refusal:
        shown, why = schema.show_value((name, index), item), refusal_text(refusal, name)
        raise NodeOutputError(f"{author} gives {shown} for {name}[{index}], which is refused: {why}{advice}") from None


# Which paths lead into a value of a declared type, so that a pattern of `compile(redact=...)` that misses is refused.
#
# A value may be of a subclass of its declared class, so a path may also name a field of a subclass that exists by
# now. Of
# a type that is not known here, such as `Any` or `TypedDict`, any path leads on.


_WITHOUT_PARTS = (str, int, float, bool, bytes, types.NoneType)


class _Parts(NamedTuple):
    """The parts of a value.

    Attributes:
        by_name: the types of its fields; empty for none.
        of_any: the type of the items of a list, or of the values of a mapping; None for neither.
        numbered: whether these are items of a list.
    """

    by_name: Mapping[str, Any] = types.MappingProxyType({})
    of_any: Any = None
    numbered: bool = False

    def types_at(self, key: Any, pattern: Pattern) -> list[Any]:
        """The types of the parts that a segment of a pattern may match."""
        any_key = not pattern.literal and key == ONE
        found = [kind for name, kind in self.by_name.items() if any_key or key == name]
        if self.of_any is not None and (any_key or not self.numbered or str(key).isdecimal()):
            found.append(self.of_any)
        return found


def path_problem(pattern: Pattern, annotation: Any, by_item: bool = False) -> str:
    """Return the reason why a pattern can match nothing in a field of a type, without a full stop; empty if it can.

    With `by_item` the field is a list, and an update of it may be one item.

    Example:
        >>> path_problem(Pattern.of("names.first"), list[str])
        "'names' is list[str]: write 'names.*.first' for its items"
        >>> path_problem(Pattern.of("names.*"), list[str])
        ''
    """
    lists = [parts for parts in _parts(annotation) if parts is not None and parts.numbered]
    key = pattern.segments[1] if pattern.segments[1:] else ONE
    if by_item and not any(parts.types_at(key, pattern) for parts in lists):
        return _walk(pattern, [parts.of_any for parts in lists] or [annotation])
    return _walk(pattern, [annotation])


def merge_problem(pattern: Pattern, annotation: Any) -> str:
    """Return the reason why a merge policy of a pattern decides nothing in a field; empty if it may.

    A join merges mappings key by key, and takes any other value as a whole.

    Example:
        >>> merge_problem(Pattern.of("names.0"), list[str])
        "no join has a conflict at 'names.0': write 'names'"
    """
    return _walk(pattern, [annotation], merged=True)


def _walk(pattern: Pattern, kinds: list[Any], merged: bool = False) -> str:
    """`path_problem` for a value of one of the types, or `merge_problem`, for which only mappings have parts."""
    for number, key in enumerate(pattern.segments[1:], 1):
        if key == MANY and not pattern.literal:
            return ""
        parts = [found for kind in kinds for found in _parts(kind)]
        if None in parts:
            return ""
        known = [found for found in parts if found and not (merged and (found.numbered or found.by_name))]
        below = [kind for found in known for kind in found.types_at(key, pattern)]
        if not below and merged:
            return f"no join has a conflict at {_text(pattern.segments)}: write {_text(pattern.segments[:number])}"
        if not below:
            return _problem(pattern, number, kinds, known)
        kinds = below
    return ""


def _problem(pattern: Pattern, number: int, kinds: Iterable[Any], parts: Sequence[_Parts]) -> str:
    before, key = pattern.segments[:number], pattern.segments[number]
    place = f"{_text(before)} is {' or '.join(dict.fromkeys(map(shown_type, kinds)))}"
    names = dict.fromkeys(name for part in parts for name in part.by_name)
    if not names and any(part.numbered for part in parts):
        return f"{place}: write {_text((*before, ONE, *pattern.segments[number:]))} for its items"
    if not names:
        return f"{place}, which has no parts: write {_text(before)}"
    return (
        f"{place}, which has no {key!r}.{suggestion(key, names)} Fields: {list_names(names)}. To hide it in a subclass "
        f"that is defined later, or in what a thread holds, write {_text((*before, MANY, *pattern.segments[number:]))}"
    )


def _text(segments: Iterable[Any]) -> str:
    return repr(".".join(map(str, segments)))


def _parts(annotation: Any) -> Iterator[_Parts | None]:
    """The parts of each type that a value may have; None for a type that is not known."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    kind = origin or annotation
    if origin is Annotated:
        yield from _parts(arguments[0])
    elif origin in UNIONS:
        for member in arguments:
            yield from _parts(member)
    elif annotation in (None, *_WITHOUT_PARTS):
        yield _Parts()
    elif kind is list or (kind is tuple and arguments[1:] == (...,)):
        yield _Parts(of_any=arguments[0] if arguments else Any, numbered=True)
    elif kind is dict:
        yield _Parts(of_any=arguments[1] if arguments else Any)
    elif isinstance(kind, type) and kind is not BaseModel and (issubclass(kind, BaseModel) or is_dataclass(kind)):
        yield from map(_fields_of, _with_subclasses(kind))
    else:
        yield None


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    known: list[type] = cls.__subclasses__()
    for one in known:
        yield from _with_subclasses(one)


def _fields_of(cls: Any) -> _Parts | None:
    """The fields of a model or dataclass; None if its values may have others."""
    if issubclass(cls, BaseModel):
        open_to_all = cls.model_config.get("extra") == "allow"
        return None if open_to_all else _Parts({name: info.annotation for name, info in cls.model_fields.items()})
    return _Parts({field.name: Any if isinstance(field.type, str) else field.type for field in fields(cls)})
