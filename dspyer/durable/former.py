"""How values were folded when the graph was another one, as far as the fingerprint of its schema tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pydantic.fields import FieldInfo

from dspyer.patch import DELETE
from dspyer.reducers import BUILT_IN, Reducer
from dspyer.schema.fields import STARTS, Field
from dspyer.schema.limits import Limit
from dspyer.schema.schema import Schema
from dspyer.values.types import Opaque


def former_schema(facts: Mapping[str, Any], now: Schema) -> Schema:
    """The schema that folds the updates of runs which another graph has made.

    Nothing is validated again. A field that is still there is folded by its reducer if that has the same name, any
    other by the built-in reducer of the name; what a reducer has folded that is not there any more is opaque.

    Args:
        facts: the fingerprint of that graph: its fields, with type and name of the reducer.
        now: the schema of the graph now.
    """
    if facts.get("open"):
        return Schema.of(None, whole=now.whole)
    fields = {
        name: _field(name, text, reducer, Limit(*rest[0]) if rest else None, now.fields.get(name))
        for name, (text, reducer, *rest) in facts.get("fields", {}).items()
        if reducer
    }
    return Schema(now.model, MappingProxyType(fields), None, whole=now.whole)


def _field(name: str, text: str, reducer: str, limit: Limit | None, now: Field | None) -> Field:
    if now is not None and now.reducer is not None and now.reducer.name == reducer:
        return replace(now, checks_result=False, limit=limit)
    found = BUILT_IN.get(reducer) or Reducer(reducer, _lost(name, reducer), None)
    start = found.empty
    if found is BUILT_IN["union"]:
        kind = text.partition("[")[0].partition(" ")[0]
        start = next((value for cls, value in STARTS.items() if cls.__name__ == kind), start)
    return Field(
        name=name,
        annotation=Any,
        info=FieldInfo(annotation=Any),
        required=False,
        reducer=found,
        whole=False,
        constant=False,
        exact=frozenset(),
        validate=lambda value, _others: value,
        validate_update=None,
        validate_entries=None,
        free=True,
        merges=True,
        model=None,
        checks_result=False,
        wants_others=False,
        start=start,
        fixed_default=DELETE,
        limit=limit,
    )


def _lost(name: str, reducer: str) -> Any:
    lost = Opaque(f"value of field {name!r}", f"it was folded by reducer {reducer!r}, which is not there", "null")
    return lambda _current, _update: lost
