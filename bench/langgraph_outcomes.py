"""Values of a run in a form that two libraries share: JSON, without what differs between two runs of one library."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Any

from pydantic import BaseModel

# A random id; the number of dashes differs between libraries. Both give a message without an id one of these.
RANDOM = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
STAMP = re.compile(r"[\w:.\[\]()/-]+/\d+")  # dspyer's: the commit and the place of the message in it
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def plain(value: Any) -> Any:
    """A value as JSON has it: random ids numbered in the order of their appearance, addresses left out."""
    return _numbered(_plain(value), {})


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return {"enum": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(part) for part in value]}
    if isinstance(value, set | frozenset):
        return {"set": sorted((_plain(part) for part in value), key=repr)}
    name = type(value).__name__
    if isinstance(value, BaseModel):
        fields = {key: _plain(getattr(value, key, None)) for key in type(value).model_fields}
        return {name: fields | {key: _plain(part) for key, part in (value.model_extra or {}).items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: {field.name: _plain(getattr(value, field.name, None)) for field in dataclasses.fields(value)}}
    return {name: repr(value)}


def _numbered(value: Any, known: dict[str, str]) -> Any:
    if isinstance(value, str):
        text = RANDOM.sub(lambda found: known.setdefault(found[0].replace("-", ""), f"<id {len(known)}>"), value)
        return ADDRESS.sub("0x", text)
    if isinstance(value, dict):
        if isinstance(value.get("id"), str) and STAMP.fullmatch(value["id"]):
            value = value | {"id": known.setdefault(value["id"], f"<id {len(known)}>")}
        return {_numbered(key, known): _numbered(value[key], known) for key in sorted(value)}
    if isinstance(value, list):
        return [_numbered(part, known) for part in value]
    return value


# Errors of the two libraries for the same cause.
EQUIVALENT = {
    "GraphRecursionError": ["LimitError"],
    "InvalidUpdateError": ["MergeConflictError", "NodeOutputError", "InputError"],
    "ValidationError": ["InputError", "NodeOutputError"],
    "NodeCancelledError": ["CancelledError"],
    "NodeTimeoutError": ["NodeTimeoutError"],  # with other texts
}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether LangGraph's run and another have ended alike: in state and questions, or with the error."""
    if one["kind"] == other["kind"] == "error" and other["type"] in EQUIVALENT.get(one["type"], []):
        return True
    # LangGraph gives the questions of branches in the order in which they were asked first.
    if sorted(one.get("asked", ())) != sorted(other.get("asked", ())):
        return False
    return all(one.get(key) == other.get(key) for key in ("kind", "type", "text", "state"))
