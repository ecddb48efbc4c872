"""The names of `reads` and `writes`: a node's own names on the left, the fields of the state on the right."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from dspyer.errors import list_names, suggestion
from dspyer.schema.schema import Schema
from dspyer.templates import Fill
from dspyer.views import View

FieldNames: TypeAlias = Mapping[str, str]
NamesSpec: TypeAlias = Mapping[str, str] | Iterable[str]
ReadsSpec: TypeAlias = Mapping[str, str | View | Fill] | Iterable[str]


def name_map(spec: NamesSpec | None, option: str, who: str) -> tuple[dict[str, str] | None, list[str]]:
    """A list or a map of names as a map from the node's own names, and what is wrong with it."""
    if spec is None:
        return None, []
    if isinstance(spec, str):
        return None, [f"{who}: {option}={spec!r} is one name: write {option}=[{spec!r}]"]
    found = dict(spec) if isinstance(spec, Mapping) else {name: name for name in spec}
    wrong = [name for pair in found.items() for name in pair if not isinstance(name, str)]
    if wrong:
        return None, [f"{who}: {option} holds {list_names(wrong)}: names are strings"]
    return found, []


def check_names(
    names: FieldNames,
    option: str,
    who: str,
    *,
    own: Collection[str] | None,
    schema: Schema,
    overlay: Collection[str] = (),
) -> list[str]:
    """Problems of a map of names: own names that the node does not have, and fields that the state does not have.

    `own` are the names that the node has, None for any; `overlay` are names that are as good as fields; `option` is
    `"reads"` or `"writes"`.
    """
    problems = []
    for left, right in names.items():
        known_left = own is None or left in own
        if known_left and (_is_field(right, schema) or right in overlay):
            continue
        swap = ""
        if left != right and (own is None or right in own) and (_is_field(left, schema) or left in overlay):
            swap = f" The node's own name is on the left: write {option}={{{right!r}: {left!r}}}."
        if not known_left:
            parts = "inputs" if option == "reads" else "outputs"
            hint = swap or suggestion(left, own or ()) or " Leave it out."
            problems.append(f"{who}: {left!r} in {option} is none of its {parts} ({list_names(own or ())}).{hint}")
        else:
            problems.append(f"{who}: {right!r} in {option} {unknown_field_text(right, schema)}{swap}")
    if option == "writes":
        fields = list(names.values())
        twice = [field for field in dict.fromkeys(fields) if fields.count(field) > 1]
        problems.extend(f"{who}: writes names the field {field!r} more than once" for field in twice)
    return problems


def unknown_field_text(name: str, schema: Schema) -> str:
    """A text that a name is no field of the state, with the name that may have been meant."""
    return f"is no field of the state ({list_names(schema.fields)}).{suggestion(name, schema.fields)}"


def unknown_outputs_text(names: Iterable[str], schema: Schema) -> str:
    """A text that no name that a function returns is a field, with how to store them as one value."""
    return (
        f"has {list_names(names)}, none of which is a field of the state ({list_names(schema.fields)}). What a "
        "function returns is a patch, also as a model: to store all of it in one field, return {'field': ...}"
    )


def _is_field(name: str, schema: Schema) -> bool:
    return schema.accepts_any_key or name in schema.fields
