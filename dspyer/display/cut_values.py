"""JSON values cut to a size that a page can show: marks take the place of what is cut and say how to get the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspyer.values.json import TAG

TEXT = 20_000
"""Characters of one text that are shown."""

ITEMS = 1_000
"""Items of one list, or keys of one mapping, that are shown."""

TOTAL = 500_000
"""Characters of one answer, keys included. Beyond these, `FEW` are shown of each further text, list and mapping."""

FEW = 20

PART = 1_000_000
"""Characters of a text that one part has."""

JSONPath = tuple[str | int, ...]

VALUE: Any = True
"""Where an answer holds a value, which may be cut."""

Places = Any
"""Where an answer holds values: `VALUE`; `{key or index: places}`; or `[places]`, for each part of a list or mapping.
Everything else is whole: its names, ids, figures and lists are what the page is made from."""


def cut(value: Any, path: JSONPath = ()) -> Any:
    """A JSON value with marks in place of long texts, lists and mappings; the value itself if nothing is long.

    A mark is `{"$type": "cut", "kind": "text" | "list" | "mapping", "length": the whole length, "path": the path of the
    value from `path` on, "value": its first part}`. No value of a state has this form: its mappings with a key
    `"$type"` are encoded as pairs.

    Example:
        >>> cut({"essay": "x" * 30_000}, ("after",))["essay"] | {"value": "..."}
        {'$type': 'cut', 'kind': 'text', 'length': 30000, 'path': ['after', 'essay'], 'value': '...'}
    """
    return _Cutter().cut(value, path)


def cut_within(answer: Any, places: Places, path: JSONPath = (), first: int = 0) -> Any:
    """An answer with the values at some places cut; what is shown of all of them counts towards one total.

    `first` is the index of the first item if the answer is a part of a list.

    Example:
        >>> answer = {"node": "read", "state": {"essay": "x" * 30_000}}
        >>> cut_within(answer, {"state": [VALUE]})["state"]["essay"]["path"]
        ['state', 'essay']
        >>> cut_within(answer, {}) == answer
        True
    """
    return _Cutter().cut_within(answer, places, path, first)


def part_of(value: Any, path: Sequence[str | int], first: int, most: int = PART) -> dict[str, Any]:
    """A part of the value at a path: `most` characters of a text, `ITEMS` of a list or mapping; these are cut again.

    Raises `LookupError` if there is no such path.

    Example:
        >>> part_of({"essay": "abcdef"}, ["essay"], 2, 3)
        {'kind': 'text', 'length': 6, 'first': 2, 'next': 5, 'value': 'cde'}
    """
    for key in path:
        value = _at(value, key)
    here, end = tuple(path), first + (most if type(value) is str else ITEMS)
    found: Any = value
    kind, length = _kind(value), 1
    if kind == "text":
        found, length = value[first:end], len(value)
    elif kind == "list":
        found, length = cut_within(value[first:end], [VALUE], here, first), len(value)
    elif kind == "mapping":
        found, length = cut_within({key: value[key] for key in list(value)[first:end]}, [VALUE], here), len(value)
    return {"kind": kind, "length": length, "first": first, "next": end if end < length else None, "value": found}


def _at(value: Any, key: Any) -> Any:
    if type(value) is dict and key in value:
        return value[key]
    if type(value) is list and type(key) is int and 0 <= key < len(value):
        return value[key]
    raise LookupError(f"the path does not fit the value: there is nothing at {key!r}")


def _kind(value: Any) -> str:
    kinds: dict[Any, str] = {str: "text", list: "list", dict: "mapping"}
    return kinds.get(type(value), "value")


class _Cutter:
    """Cuts one answer: what is shown of it counts towards one total."""

    def __init__(self) -> None:
        self._left = TOTAL

    def cut_within(self, found: Any, places: Places, path: JSONPath, first: int = 0) -> Any:
        if places is VALUE:
            return self.cut(found, path)
        if not places or not isinstance(found, list | dict):
            return found
        parts = found.items() if isinstance(found, dict) else enumerate(found, first)
        each = places[0] if isinstance(places, list) else None
        cut_parts = [(key, self.cut_within(part, each or places.get(key), (*path, key))) for key, part in parts]
        return dict(cut_parts) if isinstance(found, dict) else [part for _, part in cut_parts]

    def cut(self, value: Any, path: JSONPath) -> Any:
        if type(value) is str:
            most = TEXT if self._left > 0 else FEW
            self._left -= min(len(value), most)
            return value if len(value) <= most else _mark("text", value, path, value[:most])
        if type(value) is list:
            most = ITEMS if self._left > 0 else FEW
            self._left -= min(len(value), most)
            shown = [self.cut(item, (*path, number)) for number, item in enumerate(value[:most])]
            return shown if len(value) <= most else _mark("list", value, path, shown)
        if type(value) is dict:
            most = ITEMS if self._left > 0 or TAG in value else FEW
            keys = list(value)[:most]
            self._left -= sum(map(len, keys))
            shown_keys = {key: self.cut(value[key], (*path, key)) for key in keys}
            return shown_keys if len(value) <= most else _mark("mapping", value, path, shown_keys)
        return value


def _mark(kind: str, value: Any, path: JSONPath, shown: Any) -> dict[str, Any]:
    return {TAG: "cut", "kind": kind, "length": len(value), "path": list(path), "value": shown}
