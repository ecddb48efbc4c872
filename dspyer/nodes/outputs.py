"""What a node returns, as updates of the state and targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, get_args, get_origin

import dspy
from pydantic import BaseModel
from typing_extensions import is_typeddict

from dspyer.errors import NodeOutputError, RouteError, brief, list_names, suggestion
from dspyer.hints import typed_dict_keys
from dspyer.nodes.callables import literals, members
from dspyer.nodes.field_names import FieldNames
from dspyer.nodes.node import Call, Command, Goto, Send
from dspyer.patch import seal
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState

Values: TypeAlias = Mapping[str, object]
RESULT = ""  # among the values of an item of a map: a result that is one value, not values by name (see `is_bare`)
RETURNS = "return a dict of what changed, a model, a dspy.Prediction, None, or Command(update=..., goto=...)"


def values_of_model(model: BaseModel) -> dict[str, object]:
    """The fields of a model that were set, in the order of its class."""
    extra = model.model_extra or {}
    names = [name for name in type(model).model_fields if name in model.model_fields_set]
    return {**{name: getattr(model, name) for name in names}, **extra}


def values_of(result: object, who: str) -> tuple[Values, bool]:
    """A node's result as values by name, and whether they are whole.

    A patch is merged into what is there. The values of a model or a `dspy.Prediction` are whole: they replace it.
    """
    if result is None:
        return {}, False
    if type(result) is dict:
        return _patch(result, who), False
    if isinstance(result, dspy.Prediction):
        return dict(result.items()), True
    if isinstance(result, BaseModel) and not isinstance(result, Mapping):
        return values_of_model(result), True
    if isinstance(result, ImmutableState):
        raise NodeOutputError(
            f"{who} returned the whole state, of {len(result)} fields: return only what changed, "
            "as a dict, or `state.diff(new)`"
        )
    if isinstance(result, Mapping):
        return _patch(result, who), False
    hint = "; to go somewhere, return Command(goto=...)" if _holds_send(result) else ""
    if type(result).__name__ == Command.__name__:
        hint = f" of dspyer: this one is of {type(result).__module__}"
    raise NodeOutputError(f"{who} returned {brief(result)}, of type {type(result).__name__}: {RETURNS}{hint}")


def _patch(patch: Mapping[Any, object], who: str) -> Values:
    for key in patch:
        if type(key) is not str:
            raise NodeOutputError(f"{who} returned a patch with the key {brief(key)}: the keys are names of fields")
    return patch


def is_bare(result: object) -> bool:
    """Whether the result of an item is one value, and not values by name like a dict or a prediction."""
    by_name = result is None or isinstance(result, (Mapping, dspy.Prediction))
    return not by_name and not _holds_send(result)


def _holds_send(result: object) -> bool:
    items = result if isinstance(result, (list, tuple)) else (result,)
    return any(isinstance(item, Send) for item in items)


def permitted(values: Values, writes: FieldNames | None, who: str) -> Values:
    """The values by field of the state, if the node may write all of them; `writes` None permits any."""
    if writes is None:
        return values
    for name in values:
        if name not in writes:
            raise NodeOutputError(
                f"{who} returned {name!r}, which it does not write: its writes are {list_names(writes)}. "
                f"Add it to them, or do not return it.{suggestion(name, writes)}"
            )
    return {writes[name]: value for name, value in values.items()}


class DeclaredResult(NamedTuple):
    """What a return annotation declares.

    Attributes:
        writes: the names that are written; None for unknown.
        goto: the targets of a `Command`.
    """

    writes: tuple[str, ...] | None = None
    goto: tuple[str, ...] = ()


def declared_result(annotation: Any, schema: Schema) -> DeclaredResult:
    """What a return annotation declares about writes and targets."""
    writes: dict[str, None] | None = {}
    goto: list[str] = []
    for member in members(annotation):
        kind = get_origin(member) or member
        if kind is Command:
            goto += [str(target) for argument in get_args(member) for target in literals(argument)]
            writes = None
        elif writes is None or member in (None, type(None)):
            continue
        elif is_typeddict(kind):
            writes.update(dict.fromkeys(typed_dict_keys(kind)))
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not schema.model:
            writes.update(dict.fromkeys(kind.model_fields))
        else:
            writes = None
    return DeclaredResult(None if writes is None else tuple(writes), tuple(dict.fromkeys(goto)))


def goto_of(command: Command[Any], declared: tuple[str, ...], who: str) -> tuple[Goto, ...] | None:
    """The targets of a `Command` of a node that is no tool, all declared; None if it takes the node's edges."""
    if command.result is not None:
        raise NodeOutputError(
            f"{who} returned Command(result={brief(command.result)}), which is what a model is shown of the call of a "
            "tool, and the node is no tool: return the value in update={...}, or give the function to an agent, "
            "agents.tool_loop(signature, tools=[...])"
        )
    if command.goto is None:
        return None
    goto = (command.goto,) if isinstance(command.goto, (str, Send)) else tuple(command.goto)
    if not goto:
        raise RouteError(f"{who} returned Command(goto=[]): name a target, END, or leave goto out to take its edges")
    for target in goto:
        check_target(target, declared, who, "declare it with `-> Command[Literal[...]]` or add_node(goto=[...])")
    return goto


def check_target(target: object, declared: tuple[str, ...], who: str, fix: str) -> None:
    """Refuse a target that is not declared; `fix` says how to declare it."""
    name = target.node if isinstance(target, Send) else target
    if not isinstance(name, str):
        raise RouteError(
            f"{who} went to {brief(target)}, of type {type(target).__name__}: give a name, a Send or a list"
        )
    if name not in declared:
        raise RouteError(
            f"{who} went to {name!r}; its targets are {list_names(declared)}: {fix}.{suggestion(name, declared)}"
        )


def given(call: Call, updates: Mapping[str, object], schema: Schema) -> Mapping[str, object]:
    """What a node has posted and then returned, merged by field; from here on it may do nothing more.

    A field without a reducer keeps its last value.
    """
    attempt = call.context.delegate
    attempt.over = True
    if (live := attempt.host.together.posts) is not None:
        updates = {name: one for name, one in updates.items() if not live.post(attempt, name, one, returned=True)}
    if attempt.posts is None:
        return updates
    merged: dict[str, list[object]] = {}
    for field, value in (*attempt.posts, *updates.items()):
        found = merged.setdefault(field, [])
        if schema.reducer(field) is None:
            found.clear()
        found.append(value)
    return {field: Updates(*found) if len(found) > 1 else found[0] for field, found in merged.items()}


def folded(
    call: Call, updates: Mapping[str, object], schema: Schema, whole: bool = False
) -> tuple[Mapping[str, Any], ImmutableState]:
    """The validated patch of some updates, with all that the execution has posted, and the state after it."""
    patch, after = schema.commit(call.state, updates, node=call.node, commit_id=call.execution, whole_values=whole)
    attempt = call.context.delegate
    if (live := attempt.host.together.posts) is not None:
        patch, after = live.with_posts(attempt, patch, after)
    schema.check_state_limit(call.node, call.state, patch, after)
    return seal(patch), after
