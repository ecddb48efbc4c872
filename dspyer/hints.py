"""Signatures and annotations, read without a need for every name in them.

From Python 3.14 on annotations are evaluated when somebody asks for them, and a name that only type checkers import is
missing then.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

UNIONS = (Union, types.UnionType)
"""The origins of `X | Y`: `typing.Union` and the type of the operator."""


def without_none(annotation: Any) -> Any:
    """A type without its `| None`."""
    if get_origin(annotation) in UNIONS:
        rest = [member for member in get_args(annotation) if member is not types.NoneType]
        if len(rest) == 1:
            return rest[0]
    return annotation


if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """A function's parameters; what cannot be evaluated in their annotations is a `ForwardRef`."""
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

    def typed_dict_keys(typed_dict: Any) -> list[str]:
        """The keys of a `TypedDict`, inherited ones first."""
        return list(get_annotations(typed_dict, format=Format.FORWARDREF))

else:

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """A function's parameters; annotations may be texts."""
        return inspect.signature(function)

    def typed_dict_keys(typed_dict: Any) -> list[str]:
        """The keys of a `TypedDict`, inherited ones first."""
        return list(typed_dict.__annotations__)
