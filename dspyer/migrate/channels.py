"""The channels of a LangGraph as the fields of a state, and its values on their way in and out of nodes.

For the converter:

    fields = state_fields(builder, validate=True, findings=findings)
    graph = Graph(fields.model, inputs=fields.inputs, required=[], outputs=fields.outputs)

    fields.field("__root__")                       # 'root': the field of a key of LangGraph; other keys keep their name
    fields.seen(spec.input_schema, state, managed) # what a node or router gets: a dict, dataclass, model or root value
    fields.updates(result)                         # what a node returned -> the dict that the node of dspyer returns
    fields.input_values(value)                     # what `invoke(value)` got -> the inputs of `program.run`

`seen` takes the state that a node of dspyer gets (its parameter `state`), and the managed values by key. It returns
plain copies of the keys of that schema, private ones included; a key that nothing has written is missing in a dict, and
has the default of the class in a dataclass or model. `updates` takes all that LangGraph accepts from a node: None, a
dict, an object of a schema, a `Command` (its update alone; the targets are the converter's business), a `Send` (which
updates nothing), or a list of Commands and these; `Overwrite` becomes `Replace`. Keys that are no channel stay in the
result, where the graph refuses them, unless `extra="drop"`.

Problems and notes go to `findings`, and nothing is raised. Channels that cannot be fields are found by `unsupported`.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import operator
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import FunctionType
from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypeGuard, get_args, get_origin

from langchain_core.messages import (
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    RemoveMessage,
    convert_to_messages,
    message_chunk_to_message,
)
from langgraph.channels import AnyValue, BinaryOperatorAggregate, DeltaChannel, EphemeralValue, UntrackedValue
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Command, Send
from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic.fields import FieldInfo
from typing_extensions import ReadOnly

from dspyer import DELETE, ImmutableState, Replace, Updates, message_list, reducers
from dspyer.errors import GraphError, InputError, NodeOutputError, brief, list_names
from dspyer.extend import FrozenList, freeze, thaw
from dspyer.migrate.internals import (
    add_message_batches,
    data_channels,
    overwrite,
    own_validation,
    private_attributes,
    rebuilt_dict,
)
from dspyer.migrate.nested_graphs import CHECKPOINTS
from dspyer.migrate.unsupported import Findings, graph_problem
from dspyer.nodes.callables import mentions
from dspyer.reducers import BUILT_IN, Reducer
from dspyer.values.freezing import classes_in, is_rebuildable
from dspyer.values.frozen import CopyOnRead, RecentFindings
from dspyer.values.scalars import SCALARS

# The reducers of LangGraph's channels as reducers of dspyer.
#
# A function that folds updates was written for plain values, and may change what it is given: it gets a plain copy of
# the old value and of the update, and its result is frozen. Where that copy would be the main cost and cannot matter,
# with an addition of lists and messages that are only added, the frozen values are folded without it.


ADD_MESSAGES: Any = add_messages
_VARIABLE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_BARE_ADD_MESSAGES = ADD_MESSAGES(format=None).func  # of which add_messages(format=...) makes a partial


def reducer_of(channel: BinaryOperatorAggregate[Any] | DeltaChannel[Any]) -> Reducer:
    """Return the reducer of a field that does what a channel does."""
    if isinstance(channel, DeltaChannel):
        function: Callable[..., Any] = channel.reducer
        fold: Callable[[Any, Any], Any] = partial(_fold_batch, function)
    else:
        function = channel.operator
        fold = partial(_fold_messages if _adds_messages(function) else _fold_plain, function)
        # A state holds plain dicts, and the user's function may add `Counter`s.
        if (rebuilt := rebuilt_dict(channel.typ)) is not None:
            fold = partial(_fold_dicts, rebuilt, function)
    return Reducer(_name(function), fold, update_type=_anything, assign_ids=_stamp_of(channel, function))


def start_of(channel: BinaryOperatorAggregate[Any] | DeltaChannel[Any]) -> Any:
    """Return the frozen value that a channel has before its first update; `DELETE` if it has none.

    Raises what the type of the channel raises, and `UnsupportedValueError` for a value that no state can hold.
    """
    if isinstance(channel, DeltaChannel):
        return freeze(channel.typ())
    return freeze(channel.get()) if channel.is_available() else DELETE


def _name(function: Callable[..., Any]) -> str:
    """The name under which a fingerprint has a reducer: never that of a reducer of dspyer, which folds otherwise."""
    name = "add_messages" if _adds_messages(function) else str(getattr(function, "__name__", type(function).__name__))
    return f"langgraph.{name}" if name in BUILT_IN else name


def _anything(_annotation: Any) -> Any:
    return Any


# --- folds


def _fold_plain(function: Callable[[Any, Any], Any], current: Any, update: Any) -> Any:
    if type(current) is FrozenList and type(update) is FrozenList and _is_addition(function):
        return current.plus(update.raw_items())
    return function(thaw(current), thaw(update))


_ADDITION = (lambda left, right: left + right).__code__


def _is_addition(function: Any) -> bool:
    """Tell if a function only adds its two arguments: `operator.add`, or a function with the code of an addition."""
    if function is operator.add:
        return True
    code = function.__code__ if type(function) is FunctionType else None
    return code is not None and (code.co_argcount, code.co_flags & _VARIABLE, code.co_code) == (2, 0, _ADDITION.co_code)


def _fold_dicts(rebuilt: Callable[[Any], Any], function: Callable[[Any, Any], Any], current: Any, update: Any) -> Any:
    return function(rebuilt(thaw(current)), rebuilt(thaw(update)))


def _fold_batch(function: Callable[[Any, Sequence[Any]], Any], current: Any, update: Any) -> Any:
    if function is add_message_batches and _only_adds(current, update):
        return _added(current, update)
    return function(thaw(current), [thaw(update)])


def _fold_messages(function: Callable[[Any, Any], Any], current: Any, update: Any) -> Any:
    if function is ADD_MESSAGES and _only_adds(current, update):
        return _added(current, update)
    return function(_with_ids(_messages(thaw(current)), "left", ()), thaw(update))


_of_messages: RecentFindings[bool] = RecentFindings(least=64)


def _added(current: FrozenList[Any], update: FrozenList[Any]) -> FrozenList[Any]:
    # Of known messages and new ones: the next fold need not look at all of them again.
    new = message_list.add(current, update)
    _of_messages.put(new, True)
    return new


def _only_adds(current: Any, update: Any) -> bool:
    """Return whether messages are added to messages or replace those with their ids, and none is removed."""
    return (
        _all_messages(current)
        and type(update) is FrozenList
        and all(type(each) is CopyOnRead and _only_added(each.cls) for each in update.raw_items())
    )


def _all_messages(value: Any) -> bool:
    if type(value) is not FrozenList:
        return False
    if _of_messages.get(value):
        return True
    classes = {each.cls if type(each) is CopyOnRead else None for each in value.raw_items()}
    return all(cls is not None and issubclass(cls, BaseMessage) for cls in classes)


def _only_added(cls: type) -> bool:
    return issubclass(cls, BaseMessage) and not issubclass(cls, (BaseMessageChunk, RemoveMessage))


# --- ids of messages


def _adds_messages(function: Any) -> bool:
    return function is ADD_MESSAGES or (isinstance(function, partial) and function.func is _BARE_ADD_MESSAGES)


def _stamp_of(channel: object, function: Any) -> Callable[[Any, str, Any], Any] | None:
    """Return how updates get the ids of their messages; None for a reducer that assigns none."""
    if _adds_messages(function):
        return _stamp
    if isinstance(channel, DeltaChannel):
        return _stamp_each if function is add_message_batches else partial(_stamp_found, ())
    return partial(_stamp_found, (str, tuple)) if mentions(function, ADD_MESSAGES) else None


def _stamp(update: Any, commit_id: str, current: Any) -> list[BaseMessage]:
    """Return the messages of an update, each with an id."""
    return _with_ids(_messages(thaw(update)), commit_id, current)


def _stamp_each(update: Any, commit_id: str, current: Any) -> list[BaseMessage]:
    """The same for a channel in which an empty id counts as none."""
    return _with_ids(
        [each.model_copy(update={"id": None}) if each.id == "" else each for each in _messages(thaw(update))],
        commit_id,
        current,
    )


def _stamp_found(others: tuple[type, ...], update: Any, commit_id: str, current: Any) -> Any:
    """Return an update in which messages have ids: objects, and in lists also the dicts that stand for one.

    Items of the types `others` stand for messages too. Everything else stays as it is.
    """
    value = thaw(update)
    if not isinstance(value, list):
        if isinstance(value, BaseMessage):
            return _with_ids([value], commit_id, current)[0]
        if _stands_for_message(value) and not value.get("id"):
            return {**value, "id": _with_ids([HumanMessage("")], commit_id, current)[0].id}
        return value
    items = [_messages(each)[0] if isinstance(each, others) or _stands_for_message(each) else each for each in value]
    stamped = iter(_with_ids([each for each in items if isinstance(each, BaseMessage)], commit_id, current))
    return [next(stamped) if isinstance(each, BaseMessage) else each for each in items]


_ROLES = frozenset({"user", "human", "assistant", "ai", "tool", "system", "function"})
_TYPES = frozenset({"human", "ai", "tool", "system", "function", "remove"})


def _stands_for_message(value: Any) -> bool:
    return isinstance(value, dict) and (value.get("role") in _ROLES or value.get("type") in _TYPES)


def _messages(value: Any) -> list[BaseMessage]:
    """Return the messages that LangChain reads in a value: one message or a list, in any of its notations."""
    given = value if isinstance(value, list) else [value]
    try:
        found = convert_to_messages(given)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise NodeOutputError(f"{brief(value)} is no message or list of messages: {error}") from error
    return [message_chunk_to_message(each) if isinstance(each, BaseMessageChunk) else each for each in found]


def _with_ids(messages: Iterable[BaseMessage], commit_id: str, current: Any) -> list[BaseMessage]:
    """Return messages, those without an id with one that is derived from the commit and that no other message has."""
    return message_list.assign_ids(list(messages), commit_id, freeze(current) if current is not DELETE else current)


MESSAGES = replace(reducer_of(BinaryOperatorAggregate(list, ADD_MESSAGES)), empty=FrozenList())
"""The reducer of LangGraph's messages, by which a stored thread is read without its program."""


logger = logging.getLogger(__name__)

ROOT = "__root__"
"""The key of a state that is one value."""

ROOT_FIELD = "root"

Extra = Literal["error", "drop"]

_REPLACE: Final = dataclasses.replace(
    reducers.replace,
    hint="mend the annotation of LangGraph's state, or convert with from_langgraph(validate=False), which checks none",
)
_OF_ONE_STEP: Final = dataclasses.replace(_REPLACE, transient=True)


@dataclasses.dataclass(frozen=True)
class ChannelKeys:
    """The keys of a `StateGraph`, by which values come in and out of its nodes.

    Attributes:
        folding: the fields with a reducer.
        batched: those with a reducer of batches, which an `Overwrite(None)` resets.
        of_last_write: those of which the last of several writes at once counts.
        channels: the keys of LangGraph that are fields.
        managed: the keys of managed values, which are no fields.
        keys: the keys of each schema, managed ones included.
        input_keys: the keys that `invoke` takes.
        dicts: by field, what makes a plain dict one of the class that its annotation names, such as `Counter`.
    """

    folding: frozenset[str]
    batched: frozenset[str]
    of_last_write: frozenset[str]
    channels: tuple[str, ...]
    managed: frozenset[str]
    keys: Mapping[Any, tuple[str, ...]]
    input_keys: tuple[str, ...]
    dicts: Mapping[str, Callable[[Any], Any]]

    @staticmethod
    def field(key: str) -> str:
        """Return the field of a key."""
        return ROOT_FIELD if key == ROOT else key

    @cached_property
    def writable(self) -> tuple[str, ...]:
        """The keys that LangGraph reads from an object that a node returns."""
        return (*self.channels, *self.managed)

    def seen(self, schema: Any, state: ImmutableState, managed: Mapping[str, Any]) -> Any:
        """Return what a node or router of this input schema gets: plain copies, in an instance of the schema.

        Raises what the schema's class raises, such as a `ValidationError` of a pydantic model.
        """
        keys = self.keys[schema]
        if keys == (ROOT,):
            return self._plain(ROOT_FIELD, state.raw(ROOT_FIELD, None))
        values = self._values(keys, state, managed)
        is_built = isinstance(schema, type) and (issubclass(schema, BaseModel) or dataclasses.is_dataclass(schema))
        return schema(**values) if is_built else values

    def reader(self, state: ImmutableState) -> Callable[..., Any]:
        """Return the function by which code reads channels; a `ToolNode` takes their names from its second argument."""
        return partial(self._read, state, self.channels)

    def _read(self, state: ImmutableState, _: Sequence[str], select: str | Sequence[str], fresh: bool = False) -> Any:
        del fresh  # what a node writes is its result: while it runs, it has written nothing
        values = self._values([select] if isinstance(select, str) else select, state, {})
        return values.get(select) if isinstance(select, str) else values

    def _values(self, keys: Iterable[str], state: ImmutableState, managed: Mapping[str, Any]) -> dict[str, Any]:
        values = {}
        for key in keys:
            if key in managed:
                values[key] = managed[key]
            elif self.field(key) in state:
                values[key] = self._plain(self.field(key), state.raw(self.field(key)))
        return values

    def _plain(self, name: str, raw: Any) -> Any:
        value = thaw(raw)
        return self.dicts[name](value) if name in self.dicts else value

    def updates(self, result: object, *, extra: Extra = "error") -> dict[str, Any]:
        """Return the updates by field that a node returned; raises `NodeOutputError` for what LangGraph refuses."""
        single = self.channels == (ROOT,) and not self.managed
        pairs = [
            pair
            for pair in (_root_pairs(result) if single else _pairs(result, self.writable))
            if pair[0] not in self.managed and (extra == "error" or pair[0] in self.channels)
        ]
        return self._collected(pairs, "the node returns")

    def _collected(
        self, pairs: Iterable[tuple[str, Any]], who: str, error: type[Exception] = NodeOutputError
    ) -> dict[str, Any]:
        """Return updates by field, several of a field with a reducer in their order."""
        found: dict[str, Any] = {}
        for key, value in pairs:
            name = self.field(key)
            update = self._update(name, value)
            if name not in found or name in self.of_last_write:
                found[name] = update
            elif name in self.folding:
                found[name] = Updates(found[name], update)
            else:
                raise error(
                    f"{who} two values for {key!r} at once, and LangGraph takes one for a key without a reducer: give "
                    "one of them"
                )
        return found

    def _update(self, name: str, value: Any) -> Any:
        if name not in self.folding:
            return value
        bypasses, new = overwrite(value)
        if not bypasses:
            return value
        # LangGraph resets a channel of batches by `Overwrite(None)`.
        return DELETE if new is None and name in self.batched else Replace(new)

    def input_values(self, value: object) -> dict[str, Any]:
        """Return the inputs of a run that LangGraph is given as `invoke(value)`.

        Keys that are not in the graph's input schema are left out, with a line in the log, as LangGraph does. Raises
        `InputError` for a value that LangGraph refuses, and for a `Command`, which is no input of a new run.
        """
        if value is None or (isinstance(value, Command) and (value.goto or value.resume is not None)):
            advice = "thread.resume(answers) continues a run" if value is not None else "give the fields as a dict"
            raise InputError(f"{brief(value)} is no input of a new run: {advice}")
        try:
            pairs = list(_root_pairs(value) if self.input_keys == (ROOT,) else _pairs(value, self.input_keys))
        except NodeOutputError:
            raise InputError(
                f"the input is {brief(value)}, of type {type(value).__name__}: give a dict or an object of the schema"
            ) from None
        unknown = [key for key, _ in pairs if key not in self.input_keys]
        if unknown:
            logger.info("LangGraph ignores these keys of the input: %s", ", ".join(unknown))
        return self._collected([pair for pair in pairs if pair[0] in self.input_keys], "the input has", InputError)


@dataclasses.dataclass(frozen=True)
class StateFields(ChannelKeys):
    """The fields of a converted graph.

    Attributes:
        model: the schema, for `Graph(model)`.
        inputs: the fields that a run may be given, none of them required.
        outputs: the fields that a run returns.
        passing: the fields that no run of a thread finds from the one before.
    """

    model: type[BaseModel]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    passing: tuple[str, ...]


def langgraph_inputs(graph: Any, value: object) -> dict[str, Any]:
    """Return the inputs with which a converted graph begins a run as `graph.invoke(value)` does.

    Args:
        graph: a `StateGraph`, or what its `compile()` returned.
        value: a dict, an object of the graph's schema, a `Command` with an update, or the value of a state that is one
            value. Keys that are not in the input schema are left out, with a line in the log, as LangGraph does.

    Returns:
        The inputs by field, for `program.run(...)` and `thread.run(...)`. They are not validated yet.

    Raises:
        InputError: if LangGraph would refuse the value, or it is a `Command` that resumes a run or goes to a node.
        GraphError: if `graph` is no graph of LangGraph with nodes and edges.

    Example:
        >>> from typing import TypedDict
        >>> from langgraph.graph import StateGraph
        >>> class State(TypedDict):
        ...     name: str
        >>> langgraph_inputs(StateGraph(State), {"name": "Ada", "nmae": "Bob"})
        {'name': 'Ada'}
    """
    builder = graph.builder if isinstance(graph, CompiledStateGraph) else graph
    if not isinstance(builder, StateGraph):
        raise GraphError(graph_problem(graph))
    return _channel_keys(builder).input_values(value)


def state_fields(builder: Any, *, validate: bool, findings: Findings) -> StateFields:
    """Return the fields of a `StateGraph`, with what is wrong with them in `findings`."""
    if ROOT in builder.channels and ROOT_FIELD in builder.channels:
        findings.problem(f"field {ROOT_FIELD!r}: it would be the field of the state's root value: rename it")
    definitions: dict[str, Any] = {}
    kept = data_channels(builder)
    for key in builder.channels.keys() - kept.keys():
        findings.note(f"{key!r} is left out: it is a private attribute or a marker of a class, and no data")
    for key, channel in kept.items():
        name = ChannelKeys.field(key)
        if _folds(channel):
            try:
                definitions[name] = _folding_field(channel)
            except Exception as error:  # noqa: BLE001 - the user's type may raise anything
                findings.problem(
                    f"field {name!r} starts from {_shown(channel.typ)}(), which no field can hold: {error}"
                )
        else:
            annotation, why = Any, own_validation(builder, key, channel.typ) if validate else ""
            if validate and not why:
                annotation, why = _plain_type(channel.typ)
            if why:
                findings.note(f"field {name!r} accepts anything: {why}")
            fold = _OF_ONE_STEP if isinstance(channel, (EphemeralValue, AnyValue)) else _REPLACE
            definitions[name] = (Annotated[annotation, fold], ...)
        findings.value_types.append(_without_markers(channel.typ))
    findings.value_types += builder.schemas  # an instance of one may be the value of a Send
    untracked = [key for key, channel in kept.items() if isinstance(channel, UntrackedValue)]
    if untracked:
        findings.note(
            f"each run of a thread begins without {list_names(untracked)}, which is stored here, and must be data"
        )
    passing = [key for key, channel in kept.items() if isinstance(channel, (EphemeralValue, AnyValue, UntrackedValue))]
    keys = _channel_keys(builder)
    returned = [key for key in keys.keys[builder.output_schema] if key not in keys.managed]
    return StateFields(
        **vars(keys),
        model=_model(builder.state_schema, definitions),
        inputs=tuple(map(ChannelKeys.field, keys.input_keys)),
        outputs=tuple(map(ChannelKeys.field, returned)),
        passing=tuple(map(ChannelKeys.field, passing)),
    )


def with_checkpoints(fields: StateFields, inside: bool, findings: Findings) -> StateFields:
    """Return the fields with that of the checkpoints; a graph `inside` of another one gets and returns it."""
    if CHECKPOINTS in fields.model.model_fields:
        findings.problem(f"field {CHECKPOINTS!r} is the one that keeps checkpoints of graphs inside: rename it")
    added: Any = {CHECKPOINTS: (Annotated[dict[str, bytes], reducers.update], {})}
    model, passed = create_model(fields.model.__name__, __base__=fields.model, **added), (CHECKPOINTS,) * inside
    return dataclasses.replace(fields, model=model, inputs=fields.inputs + passed, outputs=fields.outputs + passed)


def _channel_keys(builder: Any) -> ChannelKeys:
    kept = data_channels(builder)
    schemas = {
        schema: tuple(key for key in keys if key in kept or key in builder.managed)
        for schema, keys in builder.schemas.items()
    }
    channels = {ChannelKeys.field(key): channel for key, channel in kept.items()}
    return ChannelKeys(
        folding=frozenset([name for name, channel in channels.items() if _folds(channel)]),
        batched=frozenset([name for name, channel in channels.items() if isinstance(channel, DeltaChannel)]),
        of_last_write=frozenset(
            [name for name, each in channels.items() if isinstance(each, AnyValue) or not getattr(each, "guard", True)]
        ),
        channels=tuple(kept),
        managed=frozenset(builder.managed),
        keys=schemas,
        input_keys=tuple([key for key in schemas[builder.input_schema] if key not in builder.managed]),
        dicts={name: made for name, channel in channels.items() if (made := rebuilt_dict(channel.typ)) is not None},
    )


def _folds(channel: object) -> bool:
    return isinstance(channel, (BinaryOperatorAggregate, DeltaChannel))


def _folding_field(channel: Any) -> Any:
    """Return the type and default of a field with a reducer. It accepts anything: the user's function decides."""
    start = start_of(channel)
    return Annotated[Any, reducer_of(channel)], ... if start is DELETE else start


def _model(state_schema: Any, definitions: Mapping[str, Any]) -> type[BaseModel]:
    name = getattr(state_schema, "__name__", "State")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a field may have the name of a method of BaseModel: no one calls these here
        config = ConfigDict(protected_namespaces=())
        return create_model(name if name.isidentifier() else "State", __config__=config, **definitions)


# --- types of plain fields


def _plain_type(annotation: Any) -> tuple[Any, str]:
    """Return the type by which a field is validated, and why it is `Any` where LangGraph's annotation is another."""
    bare = _without_markers(annotation)
    if bare is Any or bare is inspect.Parameter.empty:
        return Any, ""
    shown = _shown(bare)
    if _holds_typed_dict(bare):
        return Any, f"its type {shown} has a TypedDict, and validation would drop the keys that it does not name"
    if (get_origin(bare) or bare) in (Iterable, Generator):
        return Any, f"its type is {shown}, and validation would make an iterator of a list"
    try:
        TypeAdapter(bare)
    except Exception:  # noqa: BLE001 - pydantic raises many kinds, and the user's own types raise theirs
        return Any, f"its type {shown} is none that pydantic can validate"
    return bare, ""


def _without_markers(annotation: Any) -> Any:
    """Return a type without `Required` and the like, and without the metadata that is not pydantic's."""
    origin = get_origin(annotation)
    if origin in (Required, NotRequired, ReadOnly):
        return _without_markers(get_args(annotation)[0])
    if origin is not Annotated:
        return annotation
    inner = _without_markers(annotation.__origin__)
    # A reducer in `Annotated` is LangGraph's; a constraint is pydantic's and holds here too.
    kept = [each for each in annotation.__metadata__ if _is_constraint(each)]
    return Annotated[(inner, *kept)] if kept else inner


def _is_constraint(item: Any) -> bool:
    module = type(item).__module__.split(".")[0]
    return isinstance(item, FieldInfo) or module in ("annotated_types", "pydantic", "pydantic_core")


def _shown(annotation: Any) -> str:
    return inspect.formatannotation(_without_markers(annotation))


def _holds_typed_dict(annotation: Any) -> bool:
    return hasattr(annotation, "__required_keys__") or any(map(_holds_typed_dict, get_args(annotation)))


def stored_classes(types: Iterable[Any]) -> Iterator[type]:
    """The classes that types name and of which a thread has values, to be read by another process.

    They belong to the schema of their graph, and not to the process: another graph may have others of these names, as
    two graphs have that one function made.
    """
    return (cls for cls in classes_in(types) if cls not in SCALARS and is_rebuildable(cls))


# --- what a node returns


def _pairs(result: Any, keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values that LangGraph reads in the result of a node; `keys` are those of an object."""
    if result is None or isinstance(result, Send):
        return
    if isinstance(result, dict):
        yield from result.items()
    elif isinstance(result, Command):
        yield from _command_pairs(result)
    elif is_several(result):
        for each in result:
            yield from _pairs(each, keys)
    elif _annotated(type(result)):
        yield from _object_pairs(result, keys)
    else:
        raise NodeOutputError(
            f"it returned {brief(result)}, of type {type(result).__name__}: return a dict of what changed, an object "
            "of the state's schema, a Command, or None"
        )


def is_several(result: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a node returned several results at once: a list with a `Command` in it."""
    return isinstance(result, (list, tuple)) and any(isinstance(each, Command) for each in result)


def _root_pairs(result: Any) -> Iterator[tuple[str, Any]]:
    """Yield the root value that a node returned, which may be anything."""
    if isinstance(result, Command):
        yield from _command_pairs(result)
    elif is_several(result):
        for each in result:
            yield from _command_pairs(each) if isinstance(each, Command) else ((ROOT, each),)
    elif result is not None:
        yield ROOT, result


def _command_pairs(command: Command[Any]) -> Iterable[tuple[str, Any]]:
    update = command.update
    if update is None:
        return ()
    if isinstance(update, dict):
        return update.items()
    if isinstance(update, (list, tuple)) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in update
    ):
        return update
    if _annotated(type(update)):
        return _object_pairs(update, _annotated(type(update)))
    return ((ROOT, update),)


def _annotated(cls: type) -> tuple[str, ...]:
    """Return the names that a class and its bases annotate, of which LangGraph takes the values of an object."""
    named = [name for base in reversed(cls.__mro__) for name in inspect.get_annotations(base)]
    return tuple(name for name in named if name not in private_attributes(cls))


def _object_pairs(value: Any, keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the values of an object; a None that was not set explicitly in a pydantic model is no update."""
    given = value.model_fields_set if isinstance(value, BaseModel) else frozenset()
    fields: Mapping[str, FieldInfo] = type(value).model_fields if isinstance(value, BaseModel) else {}
    for key in keys:
        part = getattr(value, key, DELETE)
        # An object of a model names all fields: a default of None would reset what the node has not touched.
        default_is_none = key in fields and fields[key].default is None
        if part is not DELETE and (part is not None or not default_is_none or key in given):
            yield key, part
