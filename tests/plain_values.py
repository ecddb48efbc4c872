"""Values as a state holds them, and back, by public names."""

from __future__ import annotations

from typing import Any

from dspyer import DELETE, ImmutableState


def frozen(value: object) -> Any:
    """`value` as a state holds it."""
    return ImmutableState({"value": value}).raw("value")


def plain(value: object) -> Any:
    """`value` in dicts, lists and sets that may be changed."""
    return ImmutableState({"value": value}).to_dict()["value"]


def same(left: object, right: object) -> bool:
    """Whether a state that holds `left` need not be changed to hold `right`: 1, 1.0 and True are three values."""
    if left is DELETE or right is DELETE:
        return left is right
    return not ImmutableState({"value": left}).diff({"value": right})


FrozenDict = type(frozen({}))
FrozenList = type(frozen([]))
MAX_DEPTH = 100  # levels of a value, as errors and the page about states tell
