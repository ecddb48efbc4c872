"""What a run records and streams: commits, conflicts and events. Values only: nothing here decides anything."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from dspyer.errors import StateError, brief
from dspyer.patch import DELETE, encode_update
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict
from dspyer.values.json import TAG

BranchPath = tuple[int, ...]


class Exchange(NamedTuple):
    """What a node exchanged with running siblings over live fields while it ran.

    Attributes:
        posts: the arrival number of each of its posts, by field, in the order of the updates in its patch.
        reads: the arrival number up to which it has read, by field, in its earlier visits too.
    """

    posts: Mapping[str, tuple[int, ...]]
    reads: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return record_dict(self)


class Commit(NamedTuple):
    """One applied patch of a run.

    Attributes:
        id: branch path and index, for example `"trunk:3"` or `"0.1:2"`; known as soon as the node starts.
        version: place in the canonical order (step, branch); None inside a fork that has not joined yet.
        node: name of the node; `"START"` for the inputs, `"join:NAME"` for a join.
        branch: path of the branch, `()` for the trunk.
        visit: how often this node has committed in the lineage of the branch, this time included.
        step: 1 + the largest step of the parents.
        patch: what changed; markers `DELETE`, `Replace` and `Updates` as in patches.
        parents: ids of the commits that this one builds on.
        attempt: 1 for the first try of the node.
        route: names of the nodes that the branch went to.
        reason: why an LM router chose this route, None otherwise.
        started: wall clock, seconds since the epoch; of a join, when the last of its branches had come.
        duration: seconds.
        live: what the node exchanged over live fields; None for nothing.
        calls: how often it called predictors and tools.
        sizes: bytes of the JSON form of each field with a limit that it wrote, after it.
        size: bytes of the whole state after it, in a graph with `limit=`; None in others.
    """

    id: str
    version: int | None
    node: str
    branch: BranchPath
    visit: int
    step: int
    patch: Mapping[str, Update]
    parents: tuple[str, ...]
    attempt: int = 1
    route: tuple[str, ...] = ()
    reason: str | None = None
    started: float = 0.0
    duration: float = 0.0
    live: Exchange | None = None
    calls: tuple[int, int] = (0, 0)
    sizes: Mapping[str, int] = FrozenDict()
    size: int | None = None

    @property
    def ended(self) -> float:
        """When the node had finished, wall clock."""
        return self.started + self.duration

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return record_dict(self)


class MergedConflict(NamedTuple):
    """One conflict of a join: a path that several branches changed, and what became of it.

    Attributes:
        join: name of the node at which the branches joined.
        path: the path of the conflict.
        base: the value that the branches started from, `DELETE` for absent.
        values: (author, value) of each branch that changed the path, in branch order; `DELETE` for absent.
        policy: name of the merge policy.
        value: what the policy decided; None if it raised.
        winner: author of the decided value: a node, `"join:NAME"` for a new value, None if the policy raised.
    """

    join: str
    path: tuple[Any, ...]
    base: Any
    values: tuple[tuple[str, Any], ...]
    policy: str
    value: Any = None
    winner: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return record_dict(self)


class Question(NamedTuple):
    """What a run waits to be told.

    Attributes:
        key: its name in the node that asks; `"before"` and `"after"` where the program was compiled to stop there.
        text: what is asked.
        answer: the JSON schema of the answer; None if it needs none.
        node: name of the node that asks.
        branch: path of its branch.
        execution: id of the execution that asks, with those around it.
        run: name of the run that asked first, as in `ctx.execution`; empty for a run that is not stored.
    """

    key: str
    text: str
    answer: Mapping[str, Any] | None
    node: str
    branch: BranchPath
    execution: str
    run: str = ""

    @property
    def id(self) -> str:
        """Its name among all questions of a thread: run, execution and key, for example `"t-42.1/trunk:3/approve"`."""
        place = f"{self.run}/{self.execution}" if self.run else self.execution
        return f"{place}/{self.key}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return record_dict(self)


class FieldShape(NamedTuple):
    """What the schema says of a field.

    Attributes:
        name: its name.
        type: its type, as text.
        reducer: the name of its reducer; "" if writing replaces its value.
        live: what becomes of conflicts in a live field; "" if it is not live.
        limit_kb: the most that it holds, in kilobytes; None for no limit.
        full: what happens at that limit; "" for no limit.
    """

    name: str
    type: str
    reducer: str = ""
    live: str = ""
    limit_kb: float | None = None
    full: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return record_dict(self)


class RunStarted(NamedTuple):
    """A run began.

    Attributes:
        run_id: its id.
        graph: the name of the graph.
        fields: the fields of its schema; none for a graph without one.
        scope: the executions around it: empty for the outermost run.
    """

    run_id: str
    graph: str
    fields: tuple[FieldShape, ...] = ()
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class NodeStarted(NamedTuple):
    """A node was started. `execution` is the id that its commit will have."""

    node: str
    branch: BranchPath
    visit: int
    execution: str
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class Committed(NamedTuple):
    """A patch was applied.

    Attributes:
        commit: the commit. Inside of a fork it has no version yet: versions follow the order of branches, and a branch
            that began earlier may still commit.
        position: the place of the commit in the order in which the commits were made, counted like versions. It is the
            version where there is one.
        scope: the executions around the run.
    """

    commit: Commit
    position: int = 0
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class Forked(NamedTuple):
    """A branch split. `branches` are the paths of its children, in the order of `targets`."""

    branch: BranchPath
    targets: tuple[str, ...]
    branches: tuple[BranchPath, ...]
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class Joined(NamedTuple):
    """Branches became one again at `node`."""

    node: str
    branches: tuple[BranchPath, ...]
    branch: BranchPath
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class ConflictFound(NamedTuple):
    """A join met a conflict, resolved or not."""

    conflict: MergedConflict
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class NodeFailed(NamedTuple):
    """A node, its router or a join raised. Nothing of it was committed."""

    node: str
    branch: BranchPath
    execution: str
    error: BaseException
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class Asked(NamedTuple):
    """A node asked a question and gave way. Nothing of it was committed."""

    question: Question
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class ItemStarted(NamedTuple):
    """One item of a map, of `items`, was started. One that an earlier attempt has finished is not started again."""

    node: str
    branch: BranchPath
    execution: str
    item: int
    items: int
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class ItemFinished(NamedTuple):
    """One item of a map has ended: `"completed"`, `"failed"`, `"interrupted"` by a question, or `"stopped"`."""

    node: str
    branch: BranchPath
    execution: str
    item: int
    items: int
    status: str
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class Emitted(NamedTuple):
    """A node called `ctx.emit(value)`."""

    node: str
    branch: BranchPath
    execution: str
    value: Any
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class Posted(NamedTuple):
    """A node posted to a live field: running siblings see it now.

    Attributes:
        field: the field.
        node: the node.
        branch: the path of its branch.
        execution: the id of its execution.
        seq: the number of its arrival.
        size: bytes of the JSON form of the value.
        value: the update, as the commit of the node will have it in its patch.
        operation: how it is folded: the name of the reducer, `"replace"` without one.
        time: when, wall clock.
        scope: the executions around the run.
    """

    field: str
    node: str
    branch: BranchPath
    execution: str
    seq: int
    size: int
    value: Update
    operation: str
    time: float
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class Heard(NamedTuple):
    """A node heard an entry of a live field whose mark says `show_reads=True`. `author` is the node that posted it."""

    field: str
    node: str
    branch: BranchPath
    execution: str
    seq: int
    author: str
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class Withdrawn(NamedTuple):
    """Posts to a live field were withdrawn, since the attempt that made them commits nothing.

    Attributes:
        field: the field.
        node: the node.
        execution: the id of its execution.
        posts: the numbers of the posts.
        seq: the last arrival number then.
        scope: the executions around the run.
    """

    field: str
    node: str
    execution: str
    posts: tuple[int, ...]
    seq: int
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class LiveConflict(NamedTuple):
    """A node wrote to a live field without having read what another had written there.

    Attributes:
        field: the field.
        key: the key, in a field of keys; the id, in one of messages; None elsewhere.
        author: the node that wrote.
        other: the node whose latest entry it has not read.
        other_seq: the arrival number of that entry.
        rule: the `on_conflict` of the field.
        scope: the executions around the run.
    """

    field: str
    key: Any
    author: str
    other: str
    other_seq: int
    rule: str
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class Doing(NamedTuple):
    """A node said what it is doing, `ctx.doing(...)`."""

    node: str
    branch: BranchPath
    execution: str
    text: str
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


class RunEnded(NamedTuple):
    """A run came to its end. `status` is `"completed"`, `"failed"`, `"interrupted"` or `"stopped"`."""

    run_id: str
    status: str
    scope: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return event_dict(self)


LiveEvent = Posted | Heard | Withdrawn | LiveConflict | Doing
Event = (
    RunStarted
    | NodeStarted
    | Committed
    | Forked
    | Joined
    | ConflictFound
    | NodeFailed
    | Asked
    | ItemStarted
    | ItemFinished
    | Emitted
    | LiveEvent
    | RunEnded
)


# --------------------------------------------------------------------------------------------------------------------
# The JSON form of commits, events and questions: one conversion by the declared types of their attributes.
#
# What is declared as `Any` is a value of a state and gets the state's own encoding, as in a store or an export. Paths,
# names and numbers become lists, texts and numbers. So a new event needs no code of its own here.

Convert = Callable[[Any], Any]

_UPDATE = "update"
Update = Annotated[Any, _UPDATE]
"""The type of an attribute that holds an update of a patch, not a value."""


def record_dict(record: Any) -> dict[str, Any]:
    """The attributes and properties of a record by name, as JSON."""
    cls: Any = type(record)
    return {name: convert(getattr(record, name)) for name, convert in _converters(cls).items()}


def event_dict(event: Any) -> dict[str, Any]:
    """The same for an event, with its name in front."""
    return {"event": type(event).__name__, **record_dict(event)}


def error_dict(error: BaseException) -> dict[str, Any]:
    """Class, text and notes of an exception."""
    return {"type": type(error).__name__, "message": error_text(error), "notes": list(getattr(error, "__notes__", ()))}


def error_text(error: BaseException) -> str:
    """The text of an exception, of one that cannot say it too."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - a user's own class, and the run has failed already
        return f"<{type(error).__name__}.__str__ raised {type(problem).__name__}>"


@cache
def _converters(cls: Any) -> dict[str, Convert]:
    hints = get_type_hints(cls, include_extras=True)
    found = {name: _converter(hints[name]) for name in cls._fields}
    for name, value in vars(cls).items():
        if isinstance(value, property):
            found[name] = _converter(get_type_hints(value.fget)["return"])
    return found


def _converter(hint: Any) -> Convert:
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return _value
    if kind is Annotated and _UPDATE in parts:
        return encode_update
    if kind in (Union, types.UnionType):
        (inner,) = [_converter(part) for part in parts if part is not type(None)]
        return lambda value: None if value is None else inner(value)
    if kind is tuple and parts[-1] is ...:
        item = _converter(parts[0])
        return lambda items: [item(value) for value in items]
    if kind is tuple:
        converts = [_converter(part) for part in parts]
        return lambda items: [convert(value) for convert, value in zip(converts, items, strict=True)]
    if kind is not None and issubclass(kind, Mapping):
        item = _converter(parts[1])
        return lambda values: {str(key): item(values[key]) for key in values}
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return record_dict
    if isinstance(hint, type) and issubclass(hint, BaseException):
        return error_dict
    if hint in (str, int, float, bool):
        return _same
    raise TypeError(f"records have no attributes of the type {hint!r}: declare how it becomes JSON")


def _same(value: Any) -> Any:
    return value


def _value(value: Any) -> Any:
    """A value of a state; of what no state can hold (`ctx.emit` takes anything) class and text."""
    if value is DELETE:
        return {TAG: "delete"}
    try:
        return encoding.encode(freeze(value))
    except StateError:
        return {TAG: "object", "class": f"{type(value).__module__}:{type(value).__qualname__}", "value": brief(value)}
