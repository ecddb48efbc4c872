"""The difference of two frozen values as a JSON patch (RFC 6902).

Versions of a state share what did not change, and what is the same object is not looked into: the cost depends on what
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenDict, FrozenList

Operation = dict[str, Any]
AsJSON = Callable[[Any], Any]
"""Converts a frozen value."""


def operations(old: Mapping[str, Any], new: Mapping[str, Any], as_json: AsJSON, path: str = "") -> Iterator[Operation]:
    """The operations that make `new` of `old`: mappings of frozen values, with keys of type str."""
    for key in old:
        if key not in new:
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in new.items():
        at = f"{path}/{_escaped(key)}"
        if key not in old:
            yield {"op": "add", "path": at, "value": as_json(value)}
        else:
            yield from _changes(old[key], value, as_json, at)


def _changes(old: Any, new: Any, as_json: AsJSON, path: str) -> Iterator[Operation]:
    if old is new:
        return
    if _is_object(old) and _is_object(new):
        yield from operations(dict(old.raw_items()), dict(new.raw_items()), as_json, path)
    elif isinstance(old, FrozenList) and isinstance(new, FrozenList):
        for index, (before, after) in enumerate(zip(old.raw_items(), new.raw_items(), strict=False)):
            if before is not after:  # most items are the same
                yield from _changes(before, after, as_json, f"{path}/{index}")
        for index in range(len(old) - 1, len(new) - 1, -1):
            yield {"op": "remove", "path": f"{path}/{index}"}
        for index in range(len(old), len(new)):
            yield {"op": "add", "path": f"{path}/-", "value": as_json(new.raw(index))}
    elif not same(old, new):
        yield {"op": "replace", "path": path, "value": as_json(new)}


def _is_object(value: Any) -> bool:
    return isinstance(value, FrozenDict) and all(type(key) is str for key in value)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
