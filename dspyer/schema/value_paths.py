"""Which paths lead into a value of a declared type, so that a pattern of `compile(redact=...)` that misses is refused.

A value may be of a subclass of its declared class, so a path may also name a field of a subclass that exists by now. Of
a type that is not known here, such as `Any` or `TypedDict`, any path leads on.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from dspyer.errors import list_names, suggestion
from dspyer.hints import UNIONS
from dspyer.policies import MANY, ONE, Pattern
from dspyer.schema.type_fit import shown_type

_WITHOUT_PARTS = (str, int, float, bool, bytes, types.NoneType)


class _Parts(NamedTuple):
    """What a value consists of.

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
    """Why a pattern can match nothing in a field of a type, as a sentence without its end; empty if it can.

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
    """Why a merge policy of a pattern decides nothing in a field, as a sentence without its end; empty if it may.

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
