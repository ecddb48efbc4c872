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
"""The mark of a place where an answer holds a value, which may be cut."""

Places = Any
"""The places where an answer holds values: `VALUE`; `{key or index: places}`; or `[places]`, for each part of a list.
Everything else is whole: its names, ids, figures and lists are what the page is made from."""


def cut_within(answer: Any, places: Places, path: JSONPath = (), first: int = 0) -> Any:
    """A JSON answer with marks for what is long in its values; what is shown of all values counts towards one total.

    A mark is `{"$type": "cut", "kind": "text" | "list" | "mapping", "length": the whole length, "path": the path of the
    value from `path` on, "value": its first part}`. No value of a state has this form: its mappings with a key
    `"$type"` are encoded as pairs. `first` is the index of the first item if the answer is a part of a list.

    Example:
        >>> answer = {"node": "read", "state": {"essay": "x" * 30_000}}
        >>> cut_within(answer, {"state": [VALUE]})["state"]["essay"] | {
        ...     "value": "..."}
        {'$type': 'cut', 'kind': 'text', 'length': 30000, 'path': ['state',
        'essay'], 'value': '...'}
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
    kind, end = _KINDS.get(type(value), "value"), first + (most if type(value) is str else ITEMS)
    length = 1 if kind == "value" else len(value)
    found = _Cutter().part(value, tuple(path), first, end)
    return {"kind": kind, "length": length, "first": first, "next": end if end < length else None, "value": found}


def _at(value: Any, key: Any) -> Any:
    if type(value) is dict and key in value:
        return value[key]
    if type(value) is list and type(key) is int and 0 <= key < len(value):
        return value[key]
    raise LookupError(f"the path does not fit the value: there is nothing at {key!r}")


_KINDS: dict[type, str] = {str: "text", list: "list", dict: "mapping"}


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
        kind = _KINDS.get(type(value))
        if kind is None:
            return value
        most = TEXT if kind == "text" else ITEMS
        # A mapping with a tag is the form of one value: it would mean another one without some of its keys.
        if self._left <= 0 and not (kind == "mapping" and TAG in value):
            most = FEW
        shown = self.part(value, path, 0, most)
        if len(value) <= most:
            return shown
        return {TAG: "cut", "kind": kind, "length": len(value), "path": list(path), "value": shown}

    def part(self, value: Any, path: JSONPath, first: int, end: int) -> Any:
        """The part of a text, list or mapping between two places, its own parts cut; any other value as it is."""
        if type(value) is dict:
            keys = list(value)[first:end]
            self._left -= sum(map(len, keys))
            return {key: self.cut(value[key], (*path, key)) for key in keys}
        if type(value) not in _KINDS:
            return value
        shown = value[first:end]
        self._left -= len(shown)
        return shown if type(value) is str else [self.cut(one, (*path, at)) for at, one in enumerate(shown, first)]
