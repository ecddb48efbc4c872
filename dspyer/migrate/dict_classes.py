"""Dicts of the standard library's classes: a state holds plain mappings, and the code of a graph expects its class."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import ReadOnly

_CLASSES: tuple[type, ...] = (Counter, OrderedDict)


def rebuilt_dict(annotation: Any) -> Callable[[Any], Any] | None:
    """Return what makes a plain dict one of the class that an annotation names, and leaves other values as they are.

    A `defaultdict` gets the class of its values as its factory, `list` in `defaultdict[str, list[int]]`. The result is
    None for an annotation that names no such class.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Required, NotRequired, ReadOnly):
        return rebuilt_dict(args[0])
    if origin in (Union, UnionType):
        return next(filter(None, map(rebuilt_dict, args)), None)
    cls = origin or annotation
    if cls is defaultdict:
        factory = get_origin(args[1]) or args[1] if args else None
        return partial(_rebuilt, partial(defaultdict, factory if isinstance(factory, type) else None))
    return partial(_rebuilt, cls) if cls in _CLASSES else None


def _rebuilt(make: Callable[[Any], Any], value: Any) -> Any:
    return make(value) if type(value) is dict else value
