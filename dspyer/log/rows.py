"""The rows of a run: one dataclass per kind, with the attributes of its header and of its content.

A run is an append-only log. One row is a commit, or something else that must survive a crash:

    open      the patch with which a run begins, written before any node runs
    commit    the commit of a node, or of the inputs
    join      the commit of a join, with what the join made: no reader merges again
    update    a manual commit: it changes the state, and not which node comes next
    merge     the commit that merges two threads, stored as a join: its run has two parents
    item      the result of one item of a map
    once      the result of `ctx.once`
    ask       a question
    answer    the answer to a question; without content, the answer was retracted
    post      a post to a live field, written before any reader sees it
    layer     what a layer adds to a commit (`Layer.rows`), just before the row of that commit
    sent      a message of `thread.send`, in the run that is the inbox of its thread
    lm_call   LM calls of an execution that has no commit, or not yet; those of other executions are in their commit
    trace     the OpenTelemetry trace that the run is a part of
    resume    a resume, or the beginning of a rerun
    end       the end of a run, with its status

A row has a header and a content, both JSON objects (see `StoredRow`). Encryption leaves headers readable; what the user
has written is in the content.

A run has a header too (`RunRow.header`). It is written once, when the run or a further part of it is created:

    label      its readable name, with which the global ids of its commits begin: "t-42.3"
    first      the version of its first commit
    graph      the name of its graph
    named      true if the user chose that name
    shape      the id of the graph's fingerprint, which is a blob
    drawing    the id of what a drawing of the graph shows besides its fingerprint, which is a blob too
    hidden     what the program redacts: patterns as text, literal paths as lists, or "function"
    lm_calls   how much of LM calls the program records, if not "usage": "full", "none" or "function"
    started    when this part of the run was started, seconds since the Unix epoch; lists of runs are in this order
    continues  true for a part that continues its parent (see `reader`)
    without    the rows before this part that do not count, as ranges of indexes
    took       how far the agents had read the inbox before: its identity, the path of the agent, the number
    inbox      of the run that is the inbox, alone: its identity
    keys       the salt of the ids of runs with keys; from the first one on in each run of the thread
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from dataclasses import field as declared  # some rows have a field `field`
from functools import cache, partial
from itertools import chain
from time import time
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

from dspyer.errors import StoreError, brief
from dspyer.events import Answer, AskedCall, BranchPath, Commit, Exchange, LMCall, MergedConflict, Question
from dspyer.failure import Failure
from dspyer.ids import full_id, part_id, path_of_id
from dspyer.patch import DELETE, SealedPatch
from dspyer.record_codec import JSON, MALFORMED, DecodeValue, Update, decode_fields, fields_of, short_encoder
from dspyer.stores.base import Row, RunRow
from dspyer.stores.content import Content, Fetch
from dspyer.stores.sql import CHANGED, DAMAGED
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, thaw
from dspyer.values.scalars import KeyPath

# How a record becomes a row and is read again, by the codec of all records (`record_codec`).
#
# The fields of a row's class are its header, or, marked by `CONTENT`, its content: two JSON objects, from which what
# is equal to its default is left out. Reading is strict: a name that is not declared, a value of another type, or a
# missing one is an error.


CONTENT: Final = "content"
"""The mark of a field that belongs to the content of a row: it may hold what the user has written."""

NO_BLOBS: Mapping[str, bytes] = types.MappingProxyType({})

logger = logging.getLogger("dspyer")


LONGEST_NOTE = 500
"""Most characters of `by` and of `comment` of an answer, and of `by` of a message, which are in their rows."""


def row_time() -> float:
    """The time, as rows hold it."""
    return round(time(), 3)


class DraftRow(NamedTuple):
    """A row before the journal numbers it and writes it."""

    kind: str
    header: Mapping[str, Any]
    content: Content | None = None

    def numbered(self, seq: int) -> Row:
        """Return the row with this number."""
        return Row(seq, self.kind, self.header, self.content)


class StoredRow:
    """A row of a run as an object: a dataclass whose fields are its header, or, marked by `CONTENT`, its content.

    The classes are not frozen, since one is made for every commit, and that takes four times as long. Nothing changes
    one that is written.
    """

    __slots__ = ()
    KIND: ClassVar[str]
    """The kind of its rows; a class of several kinds has a field `kind` instead."""

    @property
    def kind(self) -> str:
        """The kind of its row."""
        return self.KIND

    def header(self) -> dict[str, Any]:
        """Return the header of its row."""
        cls: Any = type(self)
        return short_encoder(cls, _not_in_header(cls))(self)

    def row(
        self, blobs: Mapping[str, bytes] = NO_BLOBS, encode: Callable[[Any], dict[str, Any]] | None = None
    ) -> DraftRow:
        """Return it as a row, with more blobs to store by id; `encode` makes another content than `encode_content`."""
        cls: Any = type(self)
        if not blobs and all(getattr(self, name) == default for name, default in _content_of(cls)):
            return DraftRow(self.kind, self.header())
        return DraftRow(self.kind, self.header(), Content(self, encode or encode_content, blobs))

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the record of a row, without what is in its content.

        Raises:
            StoreError: if the header is malformed.
        """
        kind: Any = cls
        try:
            found = decode_fields(kind, row.header, encoding.decode, _not_in_header(kind))
            if not hasattr(cls, "KIND"):
                found["kind"] = row.kind
            return cls(**found)
        except MALFORMED as error:  # TypeError: a field without a default is missing
            raise StoreError(_malformed(cls, row, error)) from error

    @classmethod
    def read(cls, row: Row, fetch: Fetch, decode: DecodeValue = encoding.decode) -> Self:
        """Return the record of a row with its content; raise `StoreError` if one of both is malformed."""
        return cls.of(row).filled(row, fetch, decode)

    def filled(self, row: Row, fetch: Fetch, decode: DecodeValue = encoding.decode) -> Self:
        """Take the content of its row too, which `of` leaves unread. One that is malformed changes nothing."""
        if row.content is not None:
            cls = type(self)
            found = row.content.value(fetch, partial(_decode_content, cls, decode))
            for name in content_names(cls):
                if not isinstance(found, dict):  # of a store in memory: the record that was written
                    setattr(self, name, getattr(found, name))
                elif name in found:
                    setattr(self, name, found[name])
        return self


@cache
def _content_of(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names and the defaults of the fields that are in the content of a row."""
    return tuple([(field.name, field.default) for field in fields_of(cls) if CONTENT in field.marks])


def content_names(cls: Any) -> list[str]:
    """Return the names of the fields that are in the content of a row of a class."""
    return [name for name, _ in _content_of(cls)]


@cache
def _not_in_header(cls: Any) -> tuple[str, ...]:
    return "kind", *[field.name for field in fields_of(cls) if CONTENT in field.marks or field.decode is None]


@cache
def _not_in_content(cls: Any) -> tuple[str, ...]:
    return tuple([field.name for field in fields_of(cls) if CONTENT not in field.marks])


def encode_content(record: StoredRow) -> dict[str, Any]:
    """Return the JSON form of what a record has in its content, without what is equal to its default."""
    cls: Any = type(record)
    return short_encoder(cls, _not_in_content(cls))(record)


def _decode_content(cls: Any, decode: DecodeValue, plain: Any) -> dict[str, Any]:
    """Return the fields of a record that its content holds, by name; raise `StoreError` if it is malformed."""
    try:
        return decode_fields(cls, plain, decode, _not_in_content(cls))
    except MALFORMED as error:
        raise StoreError(f"a content, {brief(plain)}, is none of a {cls.__name__} ({error}): {CHANGED}") from error


def is_readable(row: Row) -> bool:
    """Return whether a row is not damaged; a warning names one that is, for those who show the rest without it.

    What a resume needs is never left out like this: reading such a row raises.
    """
    if DAMAGED not in row.header:
        return True
    logger.warning("left out: %s", _malformed(StoredRow, row, StoreError()))
    return False


def _malformed(cls: type[StoredRow], row: Row, error: Exception) -> str:
    if DAMAGED in row.header:
        return f"row {row.seq}, of kind {row.kind!r}, is damaged: {row.header[DAMAGED]}. It {CHANGED.partition(' ')[2]}"
    header = brief(dict(row.header))
    return f"row {row.seq} has the header {header}, which is none of a {cls.__name__} ({error}): {CHANGED}"


# Sums of what language models used.


LMUsage = dict[str, Any]
"""What one language model has used: token counts as its provider names them, `requests`, and `cost` in US dollars."""


def add_tokens(total: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds counts to counts, in place; values that are no counts are left out.

    Example:
        >>> total = {"lm": {"prompt_tokens": 1}}
        >>> add_tokens(total, {"lm": {"prompt_tokens": 2, "details": {"cached": 1},
        ...     "id": "x"}})
        >>> total
        {'lm': {'prompt_tokens': 3, 'details': {'cached': 1}}}
    """
    for name, value in more.items():
        if isinstance(value, Mapping):
            add_tokens(total.setdefault(name, {}), value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            total[name] = total.get(name, 0) + value


def sum_usage(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, LMUsage]:
    """The sum of several usages of language models; a cost that is not known makes the sum unknown.

    Example:
        >>> one = {"lm": {"total_tokens": 1, "requests": 1, "cost": 0.5}}
        >>> sum_usage([one, {"lm": {"total_tokens": 1, "requests": 1,
        ...     "cost": None}}])
        {'lm': {'total_tokens': 2, 'requests': 2, 'cost': None}}
    """
    total: dict[str, LMUsage] = {}
    for model, used in chain.from_iterable(part.items() for part in parts):
        into = total.setdefault(model, {})
        costs = into.get("cost", 0.0), used.get("cost")
        add_tokens(into, {name: value for name, value in used.items() if name != "cost"})
        into["cost"] = None if None in costs else sum(costs)
    return total


def usage_of_calls(
    calls: Iterable[LMCall], name_of: Callable[[LMCall], str] = lambda call: call.model
) -> dict[str, LMUsage]:
    """The usage of LM calls by language model, or by what else a call belongs to.

    Example:
        >>> from dataclasses import replace
        >>> call = LMCall("trunk:1", "a", "a", "lm", None, 3, 1, 0.5, 0.1, 0.0)
        >>> usage_of_calls([call, replace(call, requests=0, cached=True,
        ...     cost=0.0)])["lm"]
        {'prompt_tokens': 6, 'completion_tokens': 2, 'total_tokens': 8, 'requests':
        1, 'cost': 0.5}
    """
    return sum_usage(
        {
            name_of(call): {
                "prompt_tokens": call.prompt_tokens,
                "completion_tokens": call.response_tokens,
                "total_tokens": call.tokens,
                "requests": call.requests,
                "cost": call.cost,
            }
        }
        for call in calls
    )


def total_cost(usage: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The cost of all language models in US dollars; None if that of one is not known.

    Example:
        >>> (total_cost({"a": {"cost": 0.25}, "b": {"cost": 0.5}}),
        ...     total_cost({"a": {"cost": None}}), total_cost({}))
        (0.75, None, 0.0)
    """
    costs = [used.get("cost") for used in usage.values()]
    return None if None in costs else float(sum(cost for cost in costs if cost is not None))


AT: Mapping[str, str] = {"key": "at"}
"""The metadata of the field with the time of a row, which is "at" in its header."""


class RowKind:
    """The kinds of rows, as plain strings: stores get the type that they return, and comparing costs little."""

    OPEN = "open"
    COMMIT = "commit"
    JOIN = "join"
    UPDATE = "update"
    MERGE = "merge"
    ITEM = "item"
    ONCE = "once"
    ASK = "ask"
    ANSWER = "answer"
    POST = "post"
    LAYER = "layer"
    SENT = "sent"
    LM_CALL = "lm_call"
    TRACE = "trace"
    RESUME = "resume"
    END = "end"


COMMITS = frozenset((RowKind.COMMIT, RowKind.JOIN, RowKind.UPDATE, RowKind.MERGE))
"""The kinds of rows that are commits."""


def counted(rows: Sequence[Row | DraftRow]) -> int:
    """Return how many rows count for the next snapshot: all but those of LM calls, which no state is computed of."""
    return len(rows) if len(rows) == 1 else sum([row.kind != RowKind.LM_CALL for row in rows])


# --- Headers of runs


def first_version(run: RunRow) -> int:
    """The version of the first commit of a run."""
    return int(run.header.get("first", 0))


def run_label(run: RunRow) -> str:
    """The label of a run or of a part of one; its id if it has none."""
    return str(run.header.get("label", run.id))


def fingerprint_id(run: RunRow) -> str:
    """The id of the fingerprint of the graph that made a part of a run; "" if unknown."""
    return str(run.header.get("shape", ""))


def drawing_id(run: RunRow) -> str:
    """The id of what a drawing of the graph of a part of a run shows; "" if unknown."""
    return str(run.header.get("drawing", ""))


# --- Commits
#
# In the JSON form of a patch, `DELETE`, `Replace`, `Updates` and mappings that merge are tagged; everything else is the
# JSON form of a frozen value. So a patch can be folded again.


def frozen_conflicts(conflicts: Iterable[MergedConflict]) -> tuple[MergedConflict, ...]:
    """Return conflicts as contents hold them: users may change the values that a run has shown them."""
    return tuple([_with_values(one, lambda value: value if value is DELETE else freeze(value)) for one in conflicts])


def _with_values(conflict: MergedConflict, of: Callable[[Any], Any]) -> MergedConflict:
    values = tuple([(author, of(side)) for author, side in conflict.values])
    return replace(conflict, base=of(conflict.base), values=values, value=of(conflict.value))


JSONValues = Annotated[Sequence[Mapping[str, Any]], JSON, CONTENT]


@dataclass(slots=True)
class CommitContent(StoredRow):
    """The user data of a commit. Most have a patch and nothing else.

    Attributes:
        patch: None if it is the patch of the run's open row.
        sent: what a `Send` adds to the state of each branch that it starts; empty without a `Send`.
        reason: why an LM router chose the route.
        failure: the failure after which the branch went along an error edge.
        failed: the attempts that raised before the one that was committed.
        lm_calls: the LM calls of the execution, in JSON: `calls_in` reads them when asked for.
        made: how the fields have changed that functions of the user fold; readers call none of these. Of a join, how
            all fields have changed that differ from its first parent.
        conflicts: those of a join that were resolved, with frozen values.
        winners: for each path that a join resolved, the id of the commit that wrote the kept value; an id within the
            run, or of a merge of threads a global one, except for its own.
    """

    patch: Annotated[Mapping[str, Update] | None, CONTENT] = FrozenDict()
    sent: Annotated[tuple[FrozenDict[str, Any] | None, ...], CONTENT] = ()
    reason: Annotated[str | None, CONTENT] = None
    failure: Annotated[Failure | None, CONTENT] = None
    failed: Annotated[tuple[Failure, ...], CONTENT] = ()
    lm_calls: JSONValues = ()
    made: Annotated[Mapping[str, Update], CONTENT] = FrozenDict()
    conflicts: Annotated[tuple[MergedConflict, ...], CONTENT] = ()
    winners: Annotated[Mapping[KeyPath, str], CONTENT] = FrozenDict()


@dataclass(slots=True)
class MapItems:
    """The item rows that hold the results of a map.

    Attributes:
        field: the field of the results.
        number: how many there are.
        failed: the indexes of the items that failed, which have no row.
    """

    field: str
    number: int
    failed: tuple[int, ...] = ()

    def ids(self, execution: str) -> list[str]:
        """The local ids of the items, by that of the map."""
        failed = set(self.failed)
        return [part_id(execution, index) for index in range(self.number + len(failed)) if index not in failed]


@dataclass(slots=True, kw_only=True)
class CommitRow(CommitContent):
    """A commit: of a node or the inputs, of a join, by hand (`update`), or of a merge of two threads.

    Attributes:
        kind: which of these.
        id: branch path and index.
        node: its author.
        route: the nodes that its branch continues to.
        times: when the node began, milliseconds since the Unix epoch, and how many microseconds it took.
        step: length of the longest chain of commits up to it.
        visit: how often the node has committed in its lineage.
        settled: whether no other branch was active.
        parents: indexes of its parents among the commits of its scope; None for the one before it.
        scope: local ids of the executions around it, outermost first.
        items: of a map, which item rows hold its results; None if its own row does.
        live: posts to and reads of live fields.
        calls: number of predictor and tool calls, where the graph reads them.
        attempt: the number of the node's attempt. What the attempts before it raised is user data: `failed`.
        cached: whether the patch came from the node's cache.
    """

    kind: str = RowKind.COMMIT
    id: str
    node: str
    route: tuple[str, ...] = declared(default=(), metadata={"key": "to"})
    times: tuple[int, int] = declared(default=(0, 0), metadata=AT)
    step: int = 0
    visit: int = 1
    settled: bool = True
    parents: tuple[int, ...] | None = None
    scope: tuple[str, ...] = ()
    items: MapItems | None = None
    live: Exchange | None = None
    calls: tuple[int, int] = (0, 0)
    attempt: int = 1
    cached: bool = False

    @classmethod
    def of_commit(cls, commit: Commit, **more: Any) -> Self:
        """The row of a commit; `more` are the attributes that a commit does not have."""
        return cls(
            id=commit.id,
            node=commit.node,
            route=commit.route,
            # 0 is said of what took no time
            times=(int(commit.started * 1_000), round(commit.duration * 1_000_000) or int(commit.duration > 0)),
            step=commit.step,
            visit=commit.visit,
            settled=commit.version is not None,
            live=commit.live,
            calls=commit.calls,
            attempt=commit.attempt,
            cached=commit.cached,
            patch=commit.patch,
            reason=commit.reason,
            failure=commit.failure,
            failed=commit.failed_attempts,
            **more,
        )

    @property
    def seconds(self) -> tuple[float, float]:
        """The time at which the node began, seconds since the Unix epoch, and how many seconds it took."""
        began, took = self.times
        return began / 1_000, took / 1_000_000

    @property
    def execution(self) -> str:
        """The id of its execution, with those around it."""
        return full_id(*self.scope, self.id) if self.scope else self.id

    def plain_conflicts(self) -> tuple[MergedConflict, ...]:
        """Return the conflicts as users see them."""
        return tuple([_with_values(conflict, thaw) for conflict in self.conflicts])

    def winner_indexes(self, count: int, id_of: Callable[[int], str]) -> dict[KeyPath, int]:
        """Return the winners as indexes among the commits before it, of which `id_of` gives the ids, and itself."""
        found: dict[KeyPath, int] = {}
        for path, winner in self.winners.items():
            places = (at for at in range(count - 1, -1, -1) if id_of(at) == winner)
            place = count if winner == self.id else next(places, None)
            if place is None:
                raise StoreError(f"commit {self.id} has a value of {winner!r}, which is not in the log before it")
            found[path] = place
        return found

    @property
    def attempts(self) -> dict[str, Any]:
        """The fields of a commit that differ if attempts failed or its node was cached; none for most commits."""
        if self.failure is None and not self.failed and not self.cached:
            return {}
        failed = {"failure": self.failure, "failed_attempts": self.failed}
        return {"attempt": self.attempt, "cached": self.cached, **failed}

    def filled(self, row: Row, fetch: Fetch, decode: DecodeValue = encoding.decode) -> Self:
        """Take the content of its row, and of a map the results in the rows of its items: see `with_map_results`."""
        StoredRow.filled(self, row, fetch, decode)
        parts, patch = None if row.content is None else row.content.parts, self.patch or {}
        if parts is not None and self.items is not None and self.items.field not in patch:
            if None in parts:
                raise StoreError("it refers to rows of its items, which are not there")
            results = freeze([ItemRow.read(item, fetch, decode).value for item in parts])
            self.patch = {self.items.field: results, **patch}
        return self

    @property
    def item_ids(self) -> list[str]:
        """The local ids of the executions of its items."""
        return self.items.ids(self.execution) if self.items else []

    @property
    def branch(self) -> BranchPath:
        """The path of its branch."""
        return path_of_id(self.id)


def is_settled(row: Row) -> bool:
    """Return whether no other branch was active after a row, without reading the rest of its header."""
    return "settled" not in row.header  # which is true unless it is written


def content_without(field: str, record: CommitRow) -> dict[str, Any]:
    """Return the content of a map's commit without its results, which are in the rows of its items."""
    patch = {name: update for name, update in (record.patch or {}).items() if name != field}
    return encode_content(replace(record, patch=patch))


@dataclass(slots=True, kw_only=True)
class OpenRow(CommitContent):
    """The patch with which a run begins, and what it made of fields.

    Attributes:
        node: `START` for inputs, or the node that a manual commit is attributed to.
        created: when a manual commit was made, milliseconds since the Unix epoch; None for inputs.
    """

    KIND: ClassVar[str] = RowKind.OPEN
    node: str
    created: int | None = declared(default=None, metadata=AT)


# --- What executions record


@dataclass(slots=True)
class ItemRow(StoredRow):
    """The result of one item of a map."""

    KIND: ClassVar[str] = RowKind.ITEM
    execution: str
    value: Annotated[Any, CONTENT] = None


@dataclass(slots=True)
class EffectRow(StoredRow):
    """The result of `ctx.once`, by execution and key."""

    KIND: ClassVar[str] = RowKind.ONCE
    execution: str
    key: str
    value: Annotated[Any, CONTENT] = None


@dataclass(slots=True)
class QuestionRow(StoredRow):
    """A question, and when it was asked; the other attributes are those of `Question`."""

    KIND: ClassVar[str] = RowKind.ASK
    execution: str
    key: str
    node: str
    branch: tuple[int, ...] = ()
    run: str = ""
    text: Annotated[str, CONTENT] = ""
    answer: Annotated[Mapping[str, Any] | None, JSON, CONTENT] = None
    call: Annotated[AskedCall | None, CONTENT] = None
    at: float | None = None
    expires: float | None = None

    @classmethod
    def of_question(cls, question: Question) -> QuestionRow:
        """Return the row of a question that is asked now."""
        # A copy, here and below: users who edit the arguments of a call change what they were shown.
        return cls(**{one.name: deepcopy(getattr(question, one.name)) for one in fields(question)}, at=row_time())

    def question(self) -> Question:
        """Return the question."""
        return Question(**{one.name: deepcopy(getattr(self, one.name)) for one in fields(Question)})


@dataclass(slots=True)
class AnswerRow(StoredRow):
    """The answer to a question, by execution and key of it, and when; or, if `retracted`, that it has none any more.

    Who has answered and what was said with it is content: encrypted stores hide it.
    """

    KIND: ClassVar[str] = RowKind.ANSWER
    execution: str
    key: str
    value: Annotated[Any, CONTENT] = None
    by: Annotated[str | None, CONTENT] = None
    comment: Annotated[str | None, CONTENT] = None
    retracted: bool = False
    at: float | None = None

    @classmethod
    def of_answer(cls, answer: Answer) -> AnswerRow:
        """Return the row of an answer, whose value is frozen."""
        asked = answer.question
        return cls(asked.execution, asked.key, answer.value, answer.by, answer.comment, at=answer.at)

    def answer(self, question: Question) -> Answer:
        """Return the answer, with its frozen value."""
        return Answer(question, self.value, self.by, self.comment, self.at)


@dataclass(slots=True)
class PostRow(StoredRow):
    """A post to a live field.

    Attributes:
        execution: the id of the execution that posts, and of the commit that it makes.
        scope: local ids of the executions around the run.
        node: its author; `"START"` for the value with which the run began.
        field: the field.
        seq: the arrival number.
        id: what no other post of these places has: a digest of field and value, and which of several equal ones it is.
        over: arrival numbers of the posts to the same keys that its author knew: it replaces these, and no others. None
            for a field whose posts do not replace each other.
        time: when it was posted, seconds since the Unix epoch.
        patch: the update as the node gave it, frozen, by the field.
        operation: how it is folded in, as in the event `Posted`.
        places: where it was made: the execution, or the item of it, and those of the graphs inside; empty for a post of
            the execution itself.
    """

    KIND: ClassVar[str] = RowKind.POST
    execution: str
    scope: tuple[str, ...]
    node: str
    field: str
    seq: int
    id: str
    over: tuple[int, ...] | None
    time: float = declared(metadata=AT)
    patch: Annotated[Mapping[str, Update], CONTENT] = FrozenDict()
    operation: str = "replace"
    places: tuple[str, ...] = ()

    @property
    def update(self) -> Any:
        """The update of the field."""
        return self.patch[self.field]

    @property
    def path(self) -> tuple[str, ...]:
        """The executions in which it was made, from that of the run on."""
        return self.places or (self.execution,)


@dataclass(slots=True)
class LayerRow(StoredRow):
    """Data that a layer adds to a commit; no reader but the layers of a resume asks for it.

    Attributes:
        execution: the id of the execution that has committed.
        name: the kind that the layer has given it. It is in the header, like the names of nodes.
        body: the data, frozen.
    """

    KIND: ClassVar[str] = RowKind.LAYER
    execution: str
    name: str
    body: Annotated[Any, CONTENT] = None


@dataclass(slots=True)
class SentRow(StoredRow):
    """A message of `thread.send`; its number is that of the row.

    Attributes:
        id: random, so that no two of equal text are one row.
        at: when it was sent, seconds since the Unix epoch.
        text: the text.
        by: who sent it.
        to: the agent that it is for; None for each that is no sub-agent.
        key: what identifies it if it is sent again.
    """

    KIND: ClassVar[str] = RowKind.SENT
    id: str
    at: float
    text: Annotated[str, CONTENT] = ""
    by: Annotated[str, CONTENT] = ""
    to: Annotated[str | None, CONTENT] = None
    key: Annotated[str | None, CONTENT] = None


@dataclass(slots=True)
class LMCallsRow(StoredRow):
    """LM calls of an execution that has no commit yet: they go before the next row of it."""

    KIND: ClassVar[str] = RowKind.LM_CALL
    execution: str
    node: str
    lm_calls: JSONValues = ()


# --- What happens to a run


@dataclass(slots=True)
class StoredTrace(StoredRow):
    """The OpenTelemetry trace of a run, which a resume in another process continues. No part of what a run is.

    Attributes:
        carrier: the span with which the run began there, as the headers of W3C Trace Context.
        started: when it began, seconds since the Unix epoch.
        thread: the thread of the run; a copy of a thread has the rows of the original.
    """

    KIND: ClassVar[str] = RowKind.TRACE
    carrier: Mapping[str, str]
    started: float = declared(metadata=AT)
    thread: str


@dataclass(slots=True)
class ResumeRow(StoredRow):
    """A resume, or the beginning of a rerun.

    Attributes:
        attempt: how often the run was resumed without a commit in between; 0 for a rerun.
    """

    KIND: ClassVar[str] = RowKind.RESUME
    attempt: int = 0


@dataclass(slots=True)
class EndRow(StoredRow):
    """The end of a run. It has all that lists and totals need: they read no other rows, however many a thread has.

    Attributes:
        status: how it ended: `"completed"`, `"failed"`, `"interrupted"` or `"stopped"`.
        digest: that of the final state; None if it was not completed.
        usage: what it has used so far by language model, in all processes that worked on it.
        cost: what that has cost in US dollars; None if a language model has no price.
        ended: milliseconds since the Unix epoch; None for a run that has not ended.
        steps: how many commits it has, without those of graphs inside its nodes.
        totals: what the runs of the thread have used, up to and with this one.
        expires: when the first of its questions expires; None for never.
        failures: those with which it ended, with their tracebacks as text.
        failed: the attempts before these, which other attempts followed.
        visits: by node of its own graph how often it has committed, how often it has ended the run with a failure, and
            the seconds of its commits.
        nodes: what its nodes have used, like `usage`; one that runs a graph, with what is inside.
        hidden: what is hidden in the failures, as the header of a run says it; None for nothing.
    """

    KIND: ClassVar[str] = RowKind.END
    status: str
    digest: str | None = None
    usage: Mapping[str, Mapping[str, Any]] = FrozenDict()
    cost: float | None = 0.0
    ended: int | None = declared(default=None, metadata=AT)
    steps: int = 0
    totals: Mapping[str, Mapping[str, Any]] = FrozenDict()
    expires: float | None = None
    failures: JSONValues = ()
    failed: Annotated[tuple[Failure, ...], CONTENT] = ()
    visits: Mapping[str, tuple[int, int, float]] = FrozenDict()
    nodes: Mapping[str, Mapping[str, Any]] = FrozenDict()
    hidden: Any = None


def end_row(
    status: str,
    fingerprint: str | None,
    failures: Iterable[tuple[Failure, BaseException]],
    usage: Mapping[str, Any] = FrozenDict(),
    steps: int = 0,
    before: Mapping[str, Any] = FrozenDict(),
    attempts: Iterable[Failure] = (),
    expires: float | None = None,
    commits: Iterable[tuple[str, float]] = (),
    nodes: Mapping[str, Mapping[str, Any]] = FrozenDict(),
    hidden: list[Any] | str | None = None,
) -> DraftRow:
    """Build the row of the end of a run, with the time, and each failure with its exception.

    Args:
        status: how it ended.
        fingerprint: that of the final state.
        failures: those with which it ended.
        usage: what the whole run has used.
        steps: how many commits it has.
        before: what the runs of the thread before it have used.
        attempts: those before the failures, which other attempts followed.
        expires: when the first of its open questions expires.
        commits: the node of each commit of its own graph that a node has made, and how many seconds it took.
        nodes: what its nodes have used.
        hidden: what is hidden in the failures.
    """
    visits: dict[str, tuple[int, int, float]] = {}
    pairs = list(failures)
    for node, count, lost, seconds in chain(
        [(node, 1, 0, seconds) for node, seconds in commits], [(failure.node, 0, 1, 0.0) for failure, _ in pairs]
    ):
        known = visits.get(node, (0, 0, 0.0))
        visits[node] = known[0] + count, known[1] + lost, round(known[2] + seconds, 6)
    failed = tuple([failure.stored_with(error) for failure, error in pairs])
    totals, now, again = sum_usage((before, usage)), int(time() * 1_000), tuple(attempts)
    cost = total_cost(usage)
    hidden = hidden if failed else None
    end = EndRow(status, fingerprint, usage, cost, now, steps, totals, expires, failed, again, visits, nodes, hidden)
    return end.row()


RECORDS: Mapping[str, type[StoredRow]] = dict.fromkeys(COMMITS, CommitRow) | {
    record.KIND: record
    for record in (
        *(OpenRow, ItemRow, EffectRow, QuestionRow, AnswerRow, PostRow, LayerRow, SentRow),
        *(LMCallsRow, StoredTrace, ResumeRow, EndRow),
    )
}
"""The classes of the rows, by kind."""


class UnreadablePatch(SealedPatch):
    """The empty patch of a commit that cannot be read, or that descends from one; `error` says why."""

    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = error

    def __repr__(self) -> str:
        return f"<unreadable: {self.error}>"
