"""Read signatures and annotations without evaluating every name in them.

From Python 3.14 on annotations are evaluated on access (PEP 649), and evaluation fails for a name that is imported for
type checkers only. `Format.FORWARDREF` gives a `ForwardRef` in its place.
"""

from __future__ import annotations

import inspect
import sys
import types
from abc import ABCMeta
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel

UNIONS = (Union, types.UnionType)
"""The origins of `X | Y`: `typing.Union`, and the type that the operator gives."""


def without_none(annotation: Any) -> Any:
    """Return `X` for `X | None`, any other annotation unchanged."""
    if get_origin(annotation) in UNIONS:
        rest = [member for member in get_args(annotation) if member is not types.NoneType]
        if len(rest) == 1:
            return rest[0]
    return annotation


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are imported when they are first asked for (PEP 562).

    `homes` has the module of each name, as it is named from the package.
    """

    def found(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{homes[name]}", package), name)

    return found


def bare_subclass(base: type[BaseModel], namespace: dict[str, Any], metaclass: type | None = None) -> Any:
    """Return a subclass of a pydantic model with the same fields, for instances that are never validated.

    It is made as an abstract class alone: pydantic would collect the fields again and prepare to validate them, which
    takes ten times as long, for each program and each copy of one. All that it does not have itself is the base's.
    """
    make: Any = ABCMeta.__new__
    return make(metaclass or type(base), base.__name__, (base,), namespace)


if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature; an annotation that cannot be evaluated is a `ForwardRef`."""
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

    def typed_dict_keys(typed_dict: Any) -> list[str]:
        """Return the keys of a `TypedDict`, inherited ones first."""
        return list(get_annotations(typed_dict, format=Format.FORWARDREF))

else:

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature; annotations may be strings."""
        return inspect.signature(function)

    def typed_dict_keys(typed_dict: Any) -> list[str]:
        """Return the keys of a `TypedDict`, inherited ones first."""
        return list(typed_dict.__annotations__)
