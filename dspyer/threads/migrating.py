"""The state of a thread under a graph that has changed: what is gone, what no longer fits, what `migrate=` makes of it.

What changes is part of a patch in the log. So nothing here runs again when the history is read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from dspyer.errors import ChangedGraphError, StateError, brief, shown_names, suggestion
from dspyer.graph.spec import Migrate
from dspyer.patch import DELETE, Replace, diff_value
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList, thaw
from dspyer.values.types import Opaque

logger = logging.getLogger("dspyer")


class Adapted(NamedTuple):
    """A state that fits the schema.

    Attributes:
        before: the state as it was.
        state: the state that fits.
    """

    before: ImmutableState
    state: ImmutableState

    def patch(self, schema: Schema, patch: Mapping[str, Any]) -> dict[str, Any]:
        """A patch of the adapted state as one of the state as it was.

        Args:
            schema: the schema.
            patch: what changes the adapted state.
        """
        if self.state is self.before:
            return dict(patch)
        after = schema.replay(self.state, patch)
        found: dict[str, Any] = {}
        for name in dict.fromkeys((*self.before, *self.state, *patch)):
            moved = not same(self.before.raw(name, DELETE), self.state.raw(name, DELETE))
            if schema.reducer(name) is None:
                old, new = self.before.raw(name, DELETE), after.raw(name, DELETE)
                if not same(old, new):
                    found[name] = diff_value(old, new)
            elif moved:
                value = self.state.raw(name, DELETE)
                parts = [DELETE if value is DELETE else Replace(value), *([patch[name]] if name in patch else [])]
                found[name] = parts[0] if len(parts) == 1 else Updates(*parts)
            elif name in patch:
                found[name] = patch[name]
        return found


def adapt(
    thread: str,
    state: ImmutableState,
    schema: Schema,
    suspects: set[str],
    migrate: Migrate | None = None,
) -> Adapted:
    """A state that another graph has left, as one that fits the schema.

    Args:
        thread: the name of the thread, for errors.
        state: the state.
        schema: the schema of the graph now.
        suspects: the fields whose values may not fit any more.
        migrate: decides about all values; without it what the schema does not know is left out with a warning.

    Raises:
        ChangedGraphError: if a value does not fit, naming each such field with the reason.
    """
    if migrate is not None:
        values, suspects = _migrated(thread, state, schema, migrate)
    else:
        values = {name: state.raw(name) for name in state if schema.open or name in schema.fields}
        gone = [name for name in state if name not in values]
        if gone:
            logger.warning(
                "thread %r: the graph has no field %s any more; it leaves the state and stays in the history",
                thread,
                ", ".join(map(repr, gone)),
            )
    if schema.open:
        return Adapted(state, _state_of(state, values))
    problems = []
    for name in suspects & values.keys():
        try:
            values[name] = _fitting(schema, name, values[name])
        except (ValidationError, StateError, ValueError, TypeError) as error:
            shown = schema.shown((name,), values[name])
            problems.append(f"field {name!r}: {shown} does not fit any more: {_reason(error)}")
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in sorted(problems))
        raise ChangedGraphError(
            f"thread {thread!r} holds values that do not fit the graph:\n{lines}\nNothing was called, and the history "
            "can be read. Compile the graph with migrate=..., a function of the plain dict of old values that gives "
            "the new ones",
            sorted(problems),
        )
    return Adapted(state, _state_of(state, values))


def _state_of(state: ImmutableState, values: Mapping[str, Any]) -> ImmutableState:
    if list(values) == list(state) and all(same(values[name], state.raw(name)) for name in values):
        return state
    return ImmutableState(values)


def _migrated(thread: str, state: ImmutableState, schema: Schema, migrate: Migrate) -> tuple[dict[str, Any], set[str]]:
    new = migrate(thaw(state))
    if not isinstance(new, Mapping):
        raise ChangedGraphError(
            f"migrate= gave {brief(new)} for thread {thread!r}: it gives the values of the fields as a dict",
            ["migrate= gave no dict"],
        )
    unknown = [name for name in new if not schema.open and name not in schema.fields]
    if unknown:
        hints = "".join(suggestion(name, schema.fields) for name in unknown)
        raise ChangedGraphError(
            f"migrate= gave {', '.join(map(repr, unknown))} for thread {thread!r}, which the schema has not.{hints} "
            f"Its fields are {shown_names(schema.fields)}",
            [f"migrate= gave {name!r}, which is no field" for name in unknown],
        )
    return {name: freeze(value, (name,)) for name, value in new.items()}, set(new)


def _fitting(schema: Schema, name: str, value: Any) -> Any:
    """The value as the field's type has it: read anew, as if somebody had written it down."""
    frozen = freeze(schema.fields[name].validate(_plainest(value), {}), (name,))
    return value if same(frozen, value) else frozen


def _plainest(value: Any) -> Any:
    """A frozen value in plain ones: models and dataclasses as dicts, so that they are validated again."""
    if isinstance(value, CopyOnRead):
        if value.kind.in_parts and isinstance(value.content, FrozenDict):
            parts = {key: _plainest(part) for key, part in value.content.raw_items() if not str(key).startswith("$")}
            extra = value.content.raw("$extra", None)
            return {**parts, **(_plainest(extra) if extra is not None else {})}
        opened = value.open()
        if isinstance(opened, Opaque):
            raise StateError(opened.refusal)
        return opened
    if isinstance(value, FrozenDict):
        return {key: _plainest(part) for key, part in value.raw_items()}
    if isinstance(value, FrozenList):
        return [_plainest(part) for part in value.raw_items()]
    return thaw(value)


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" if problem["loc"] else problem["msg"]
        for problem in found
    )
