"""The records of the executions of a run besides commits: effects, items of maps, questions, answers, live posts.

An execution that is called again after a crash finds its records here: `ctx.once` returns the recorded result, an
answered question is not asked again, and a map calls only the items that have no result.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from dspyer.clock import wall
from dspyer.errors import InputError, LMCallError, StateError, StoreError, brief, with_article
from dspyer.events import Answer, Commit, LMCall, Question
from dspyer.ids import (
    Address,
    execution_id,
    full_id,
    id_order,
    ids_around,
    is_within,
    outermost_execution,
    whole_execution,
)
from dspyer.log.journal import Journal
from dspyer.log.reader import newest_rows, own_commit, read_runs
from dspyer.log.rows import (
    COMMITS,
    RECORDS,
    AnswerRow,
    CommitContent,
    CommitRow,
    DraftRow,
    EffectRow,
    EndRow,
    ItemRow,
    LayerRow,
    LMCallsRow,
    LMUsage,
    PostRow,
    QuestionRow,
    ResumeRow,
    RowKind,
    StoredRow,
    StoredTrace,
    is_readable,
    row_time,
    sum_usage,
    usage_of_calls,
)
from dspyer.record_codec import MALFORMED, DecodeValue, decode, short_encoder
from dspyer.stores.base import Point, Row, Store
from dspyer.stores.content import Fetch, ReadBudget, blob_id
from dspyer.stores.sql import CHANGED
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import thaw
from dspyer.values.json import with_valid_text

_T = TypeVar("_T")

# LM calls in the rows of a run: those that are not written yet, and the compact form of those that are.
#
# The calls of an execution that committed are in the content of its commit's row, so that they go where the commit
# goes: into copies, reruns, exports; and the row numbers of commits stay what they are without LM calls. Calls of an
# execution that has no commit, or not yet (it failed, it waits for an answer, an item of a map), are in rows of the
# kind `lm_call`.
#
# Long messages and responses are blobs: a system prompt is stored once. They are read only when calls are asked for:
# the content names them in another form than `Content.value` looks for.


# --- Calls on their way to a row

Choose = Callable[[LMCall], LMCall | None]
"""Decides what is written of an LM call; None for nothing."""

Recorded = Literal["usage", "full", "none"]
"""How much of LM calls is written."""


def check_recorded(given: Any) -> Recorded | Choose:
    """Return what an option `record_lm_calls=` means; raise `TypeError` or `ValueError` for anything else."""
    if isinstance(given, str) and given in get_args(Recorded):
        level: Recorded = given  # type: ignore[assignment]  # it is one of them
        return level
    form = (
        "give 'usage' (models, tokens, cost and times), 'full' (messages and responses, too), 'none', or a function "
        "that gets each LMCall and returns what to write, or None"
    )
    if isinstance(given, str):
        raise ValueError(f"record_lm_calls={given!r} is unknown: {form}")  # noqa: TRY004 - the type is right
    if not callable(given) or isinstance(given, type):
        raise TypeError(f"record_lm_calls={brief(given)}: {form}")
    if inspect.iscoroutinefunction(given):
        raise TypeError(f"record_lm_calls={brief(given)} is async: {form}. It is called while a node runs")
    function: Choose = given
    return function


class LMCallLog:
    """LM calls on their way to the rows of a run. May be used from several threads.

    Args:
        recorded: how much of them is written, or what decides it.
        redacts: whether the graph hides values. Then the run shows messages and responses only if a function has
            decided about them.
    """

    def __init__(self, recorded: Recorded | Choose, redacts: bool) -> None:
        self.wants_texts = recorded not in ("usage", "none")
        self._choose = None if isinstance(recorded, str) else recorded
        self._hidden = redacts and self._choose is None
        self._waiting: dict[str, list[LMCall]] = {}
        self._lock = Lock()
        self._failed: tuple[LMCall, Exception] | None = None

    def add(self, call: LMCall) -> LMCall:
        """Take a call to be written; return it as the run shows it."""
        written: LMCall | None = call
        if self._choose is not None:
            try:
                written = _checked(self._choose(call), call)
            except Exception as error:  # noqa: BLE001 - raised by the next write: DSPy drops what a callback raises
                written = usage_alone(call)
                self._failed = self._failed or (written, error)
        if written is not None:
            with self._lock:
                self._waiting.setdefault(written.execution, []).append(written)
        return usage_alone(call) if written is None or self._hidden else written

    def take_error(self) -> LMCallError | None:
        """Return, once, the error of a function that has raised, or has returned neither a call nor None."""
        failed, self._failed = self._failed, None
        if failed is None:
            return None
        error = LMCallError(*failed)
        error.__cause__ = failed[1]
        return error

    @property
    def waits(self) -> bool:
        """True while calls wait for a row."""
        return bool(self._waiting)

    def calls_of(self, execution: str, taken: list[LMCall]) -> StoredCalls:
        """Take the calls of an execution for its commit, and add them to `taken`."""
        with self._lock:
            calls = self._waiting.pop(execution, [])
        taken += calls
        return self._encoded(calls)

    def rows_inside(self, execution: str, taken: list[LMCall]) -> list[DraftRow]:
        """Take the calls that were made inside of an execution and have no row yet: of attempts that failed there."""
        return self._rows(lambda name: name != execution and is_within(name, execution), taken)

    def put_back(self, taken: list[LMCall]) -> None:
        """Let calls wait again that were taken with commits whose rows were not written."""
        with self._lock:
            for call in taken:
                self._waiting.setdefault(call.execution, []).append(call)
        taken.clear()

    def rows_of(self, execution: str | None = None) -> list[DraftRow]:
        """Take the calls of an execution, and of those inside of it; None for all calls."""
        return self._rows(lambda name: execution is None or is_within(name, execution))

    def _rows(self, wanted: Callable[[str], bool], taken: list[LMCall] | None = None) -> list[DraftRow]:
        with self._lock:
            waiting = [self._waiting.pop(name) for name in [*self._waiting] if wanted(name)]
        rows = []
        for calls in waiting:
            if taken is not None:
                taken += calls
            stored, texts = self._encoded(calls)
            rows.append(LMCallsRow(calls[0].execution, calls[0].node, stored).row(texts))
        return rows

    def _encoded(self, calls: Iterable[LMCall]) -> StoredCalls:
        texts: dict[str, bytes] = {}
        return [encode_call(call, texts) for call in calls], texts


def _checked(chosen: Any, call: LMCall) -> LMCall | None:
    """Return what a function has chosen to write; the place of the call stays what it is."""
    if chosen is None:
        return None
    if not isinstance(chosen, LMCall):
        if inspect.iscoroutine(chosen):
            chosen.close()  # else Python warns of a coroutine that was never awaited
        kind = with_article(type(chosen).__name__)
        raise TypeError(f"it returned {kind}, not an LMCall (such as dataclasses.replace(call, messages=None)) or None")
    kept: LMCall = replace(chosen, execution=call.execution, node=call.node)
    encode_call(kept, {})
    return kept


INLINE = 256
"""Bytes of a message, or of a response, up to which it stays in its row; longer ones become blobs."""

# --- The form of a call

StoredCall = dict[str, Any]
"""The JSON form of an LM call."""

StoredCalls = tuple[Sequence[StoredCall], Mapping[str, bytes]]
"""LM calls on their way to a row, and the long texts in them by id."""


def encode_call(call: LMCall, blobs: dict[str, bytes]) -> StoredCall:
    """Return the JSON form of a call; its long texts are added to `blobs`.

    Args:
        call: the call. Its execution and its node are those of the row.
        blobs: long texts by id.
    """
    found = short_encoder(LMCall, ("execution", "node", *_TEXTS))(call)
    found["started"], found["seconds"] = round(call.started, 3), round(call.seconds, 6)
    if call.cost is not None:
        found["cost"] = round(call.cost, 12)
    for name in _TEXTS:
        if (said := getattr(call, name)) is not None:
            listed = isinstance(said, list | tuple)
            found[name] = [_stored(part, blobs) for part in said] if listed else _stored(said, blobs)
    return found


_TEXTS = ("messages", "response")
"""The attributes of a call that hold what was said."""

_LONG = "$"
"""The key of what stands for a long message: its value is the id of the blob."""

_REFERENCE = re.compile(r'{"\$": "([0-9A-F]{32})"}')
_NAMED = re.compile(rb'"([0-9A-F]{32})"')


def _stored(said: Any, blobs: dict[str, bytes]) -> Any:
    """Return a message, or a part of a response, as JSON; a long one is added to `blobs`."""
    plain = with_valid_text(json.loads(json.dumps(said, default=str)))  # of an object its text
    data = json.dumps(plain, ensure_ascii=False).encode()
    if len(data) <= INLINE and b'"$"' not in data:  # whatever has that key itself is no reference
        return plain
    blobs[name := blob_id(data)] = data
    # In capitals: `Content.value` looks for the ids of blobs in the bytes, and reads those that it finds.
    return {_LONG: name.upper()}


def decode_call(stored: Mapping[str, Any], execution: str, node: str, fetch: Fetch | None = None) -> LMCall:
    """Return a call from its JSON form; without `fetch`, without its texts.

    Raises:
        StoreError: if the form is malformed.
    """
    try:
        plain = {**stored, "execution": execution, "node": node}
        texts = {name: plain.pop(name) for name in _TEXTS if name in plain}
        call = decode(LMCall, plain)
        if fetch is not None:
            data = json.dumps(texts)
            names = {name.lower() for name in _REFERENCE.findall(data)}
            blobs = fetch(names) if names else {}

            def said(part: dict[str, Any]) -> Any:
                return json.loads(blobs[part[_LONG].lower()]) if _LONG in part else part

            call = replace(call, **json.loads(data, object_hook=said))
    except MALFORMED as error:
        raise StoreError(
            f"an LM call of execution {execution!r} is stored as {brief(stored)}, which cannot be read ({error}): "
            f"{CHANGED}"
        ) from error
    return call


def usage_alone(call: LMCall) -> LMCall:
    """Return a call without messages, response and the text of an error.

    Example:
        >>> call = LMCall("trunk:1", "a", "a", "lm", None, 1, 1, 0.0, 0.1, 0.0,
        ...     failed="ValueError: odd", response="x")
        >>> usage_alone(call).failed, usage_alone(call).response
        ('ValueError', None)
    """
    failed = None if call.failed is None else call.failed.partition(":")[0]
    return replace(call, messages=None, response=None, failed=failed)


# --- Rows with calls


def calls_in(row: Row, fetch: Fetch | None = None) -> list[LMCall]:
    """Return the LM calls that a row holds: a commit's own, or those of an `lm_call` row; none for other rows.

    Args:
        row: the row.
        fetch: loads blobs by id, as `Store.blobs` does; None for calls without messages and responses.
    """
    content = row.content
    if not (row.kind in COMMITS or row.kind == RowKind.LM_CALL) or not is_readable(row) or content is None:
        return []
    if content.original is not None:  # of a store in memory
        record: CommitContent | LMCallsRow = content.original
        found: Sequence[Mapping[str, Any]] = record.lm_calls
    elif b'"lm_calls":' in content.data:  # not `content.value`, which reads the long values of the patch, too
        try:
            found = json.loads(ReadBudget().spend(content.data)).get("lm_calls", ())
        except MALFORMED as error:
            raise StoreError(f"row {row.seq} has a content that cannot be read ({error}): {CHANGED}") from error
    else:
        found = ()
    if not found:
        return []
    header = LMCallsRow.of(row) if row.kind == RowKind.LM_CALL else CommitRow.of(row)
    return [decode_call(one, header.execution, header.node, fetch) for one in found]


def long_texts_in(rows: Iterable[Row]) -> set[str]:
    """Return the ids of the blobs with long texts of the LM calls that rows hold, as far as they can be read."""
    contents = [row.content for row in rows if row.kind in COMMITS or row.kind == RowKind.LM_CALL]
    stored = [one.data for one in contents if one is not None and one.original is None]
    return {name.decode().lower() for data in stored for name in _NAMED.findall(data)}


# What the runs of a thread have used: its totals, which the row of the end of each run holds.


def totals_at(store: Store, heads: Sequence[Point], root: Point | None = None) -> dict[str, LMUsage]:
    """Return what a thread has used up to its head, or heads: what the last end of a run says, and the LM calls since.

    A run without an end, whose process was killed, counts once it has ended; of it, the LM calls in its rows count.
    What histories that were merged have used is the sum of their runs, some of which they may have in common.
    """
    calls: list[LMCall] = []
    found: list[Mapping[str, Any]] = []
    while len(heads) == 1:
        (at,), heads = heads, ()
        for run, row in newest_rows(store, at):
            heads = run.parents
            if row.kind == RowKind.END:
                found, heads = [EndRow.of(row).totals], ()
                break
            if at == root:
                heads = ()
                break
            calls += _readable_calls(row)
    for merged in read_runs(store, heads, root):
        last = merged.rows[-1]  # at the root it counts what was pruned, too
        is_pruned = merged.points[-1] == root and last.kind == RowKind.END
        found.append(EndRow.of(last).totals if is_pruned else run_usage(merged.rows))
    return sum_usage((*found, usage_of_calls(calls)))


def run_usage(rows: Iterable[Row], *, by_node: bool = False) -> dict[str, LMUsage]:
    """Return what the rows of a run say that it has used, by language model, or by node of its own graph.

    It is what its last end says, and the LM calls after that: of processes that were killed. Calls that cannot be read
    count nothing: a run with such a row can be resumed and stopped.
    """
    used: Mapping[str, Mapping[str, Any]] = {}
    since: list[LMCall] = []
    commits: list[CommitRow] = []
    for row in rows:
        if row.kind == RowKind.END:
            end = EndRow.of(row)
            used, since = end.nodes if by_node else end.usage, []
        else:
            since += _readable_calls(row)
            commits += filter(None, [own_commit(row) if by_node else None])
    return sum_usage((used, usage_by_node(since, commits) if by_node else usage_of_calls(since)))


def usage_by_node(calls: Sequence[LMCall], commits: Iterable[Commit | CommitRow]) -> dict[str, LMUsage]:
    """Return what the LM calls of a run have used by node of its own graph, whose commits are given."""
    nodes: dict[str, str] = {}
    for one in commits if calls else ():
        nodes[one.id] = one.node
        # An execution that has no commit yet: where the one before it has led.
        forks, after = len(one.route) > 1, Address.parse(one.id).index + 1
        for index, node in enumerate(one.route):
            nodes.setdefault(execution_id((*one.branch, index), 0) if forks else execution_id(one.branch, after), node)
    return usage_of_calls(calls, lambda call: nodes.get(outermost_execution(call.execution), call.node))


def _readable_calls(row: Row) -> Sequence[LMCall]:
    with suppress(StoreError, ValueError):
        return calls_in(row)
    return ()


class _Missing(Enum):
    MISSING = "missing"  # a member: it stays the same object in a pickle, which a node in a worker of a pool comes from


MISSING: Any = _Missing.MISSING
"""A result that is not recorded: `None` may be a result."""

AnswerSource = Callable[[Question], Any]
"""Returns the answer to a question; `MISSING` for none."""


EXPIRED = "expired"
"""Who has given the default of a question, once that has expired: a name that no `by=` can have."""


def has_expired(question: Question) -> bool:
    """Return whether the time of a question is over, by the clock of this process."""
    return question.expires is not None and question.expires <= wall()


def expired_text(question: Question) -> str:
    """The words of errors for a question that has expired."""
    at = datetime.fromtimestamp(question.expires or 0, UTC)
    return f"question {question.key!r} of node {question.node!r} expired at {at:%Y-%m-%d %H:%M:%S} UTC"


def no_answer(question: Question) -> Any:
    """Answer no question."""
    del question
    return MISSING


class RecordKey(NamedTuple):
    """The key of an effect, question or answer: the local id of its execution, and its key there."""

    execution: str
    key: str


class KeptRun(NamedTuple):
    """The commits of a run inside a node, for the next attempt of the node, which continues it.

    Attributes:
        attempts: the numbers of the attempts of the nodes around it, outermost first.
        rows: the rows of its commits; in a stored run the journal has written the same ones.
        traces: the DSPy trace of each committed execution, by id.
        posts: its posts to live fields, by arrival number.
    """

    attempts: tuple[int, ...] = ()
    rows: tuple[Row, ...] = ()
    traces: Mapping[str, Sequence[Any]] = MappingProxyType({})
    posts: Mapping[int, PostRow] = MappingProxyType({})


@dataclass(eq=False, repr=False)
class ExecutionRecords:
    """The records of one run. Methods may be called from the threads of several nodes at once.

    Attributes:
        effects: results of `ctx.once`, frozen.
        in_progress: the effects that have begun, until they are recorded or have failed. Not stored.
        items: results of the items of maps, frozen, by the item's execution.
        finished: those of a run that is not stored, for readers alone: another attempt calls its items again.
        questions: all questions, by execution and key.
        answers: answers, with frozen values, by execution and key of their question.
        lapsed: the questions that this process has found expired, without a default. Not stored.
        delivered: those that this process has got, until an event has told of them. Not stored.
        with_commit: the rows that are written just before the commit of an execution, in order, by its id; of earlier
            processes those of layers alone.
        posts: posts to live fields by scope and arrival number, as rows have them.
        new_responses: how often an execution has asked LMs for responses that no cache has, by execution and layer,
            until it succeeds. Not stored.
        kept: the runs inside of nodes that may be attempted again, by scope, until the node commits. Not stored.
        trace: the trace that the run is a part of; None if it was not traced.
        lm_calls: the LM calls that are not written yet; None if none are to be written.
        used_before: what the processes before this one have used that worked on the run.
        nodes_before: the same by node.
        totals_before: what the runs of the thread before this one have used.
        begun: the executions inside of which earlier processes have committed.
        resumes: how often the run was resumed since its last rerun.
        took_over: whether the run has replaced another owner of its thread.
        journal: writes the rows of the run; None for a run that is not stored.
        fetch_and_decode: the functions that read contents of its rows: one loads blobs, one decodes values.
    """

    effects: dict[RecordKey, Any] = field(default_factory=dict)
    in_progress: dict[RecordKey, Any] = field(default_factory=dict)
    items: dict[str, Any] = field(default_factory=dict)
    finished: dict[str, Any] = field(default_factory=dict)
    questions: dict[RecordKey, Question] = field(default_factory=dict)
    _asked: dict[str, list[RecordKey]] = field(default_factory=dict)  # the questions of each execution
    answers: dict[RecordKey, Answer] = field(default_factory=dict)
    lapsed: set[RecordKey] = field(default_factory=set)
    delivered: deque[Answer] = field(default_factory=deque)
    with_commit: dict[str, list[StoredRow]] = field(default_factory=dict)
    posts: dict[tuple[str, ...], dict[int, PostRow]] = field(default_factory=dict)
    new_responses: dict[RecordKey, int] = field(default_factory=dict)
    kept: dict[tuple[str, ...], KeptRun] = field(default_factory=dict)
    lm_calls: LMCallLog | None = None
    used_before: Mapping[str, Any] = field(default_factory=dict)
    nodes_before: Mapping[str, Any] = field(default_factory=dict)
    totals_before: Mapping[str, Any] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    resumes: int = 0
    took_over: bool = False
    trace: StoredTrace | None = None
    journal: Journal | None = None
    fetch_and_decode: tuple[Fetch, DecodeValue] = (lambda _: {}, encoding.decode)  # a run that is not stored has none
    _commits: dict[tuple[str, ...], list[Row]] = field(default_factory=dict)
    # Executions that have committed, where a question may be open inside of one.
    _ended: set[str] = field(default_factory=set)
    _unwritten: deque[DraftRow] = field(default_factory=deque)

    # --- Reading rows

    def read(self, rows: Iterable[Row], fetch: Fetch, decode: DecodeValue = encoding.decode) -> None:
        """Add what the rows of a run have recorded, whatever their kind."""
        self.fetch_and_decode = (fetch, decode)
        for row in rows:
            kind = row.kind
            if kind in COMMITS:
                head = CommitRow.of(row)
                self._commits.setdefault(head.scope, []).append(row)
                self._ended.add(head.execution)
                if head.scope:
                    self.begun.add(whole_execution(full_id(*head.scope)))
                elif kind == RowKind.UPDATE and head.route:
                    self._forget_next(Address.parse(head.id))
            elif kind == RowKind.ASK:
                self._add(QuestionRow.read(row, fetch).question())
            elif kind == RowKind.POST:
                post = PostRow.read(row, fetch, decode)
                self.posts.setdefault(post.scope, {})[post.seq] = post
            elif kind == RowKind.LAYER:
                added = LayerRow.read(row, fetch)
                self.with_commit.setdefault(added.execution, []).append(added)
            elif kind == RowKind.RESUME:
                self.resumes = self.resumes + 1 if ResumeRow.of(row).attempt else 0
            elif kind == RowKind.TRACE:
                self.trace = StoredTrace.of(row)
            elif kind == RowKind.ANSWER:
                given = AnswerRow.read(row, fetch, decode)
                key = RecordKey(given.execution, given.key)
                self.answers.pop(key, None)  # so that the order is that in which they were given
                if key in self.questions and not given.retracted:  # else its row is one of others, read alone
                    self.answers[key] = given.answer(self.questions[key])
            elif kind == RowKind.ONCE:
                effect = EffectRow.read(row, fetch, decode)
                self.effects[RecordKey(effect.execution, effect.key)] = effect.value
            elif kind == RowKind.ITEM:
                item = ItemRow.read(row, fetch, decode)
                self.items[item.execution] = item.value

    def _forget_next(self, edit: Address) -> None:
        """Drop the stops of the node that would have come next: an edit has led to another one, which asks anew."""
        for key in self._asked.pop(execution_id(edit.path, edit.index + 1), ()):
            self.questions.pop(key)
            self.answers.pop(key, None)

    def commits(self, scope: tuple[str, ...]) -> list[Row]:
        """Return the rows of the commits of one scope."""
        return self._commits.get(scope, [])

    def patches_inside(self) -> Iterator[Mapping[str, Any]]:
        """Yield what earlier processes have written besides the commits of the run's own graph."""
        yield from (post.patch for posts in self.posts.values() for post in posts.values())
        for scope, rows in self._commits.items():
            yield from patches_in(rows if scope else (), *self.fetch_and_decode)

    def lm_call_rows(self, execution: str) -> list[DraftRow]:
        """Take the LM calls of an execution that are not written yet, as rows that go before its next row."""
        return [] if self.lm_calls is None else self.lm_calls.rows_of(execution)

    # --- What is added to an open run

    def add(self, key: str, value: Any) -> DraftRow:
        """Add a value to those under a key of the run, and return the row to write."""
        place = RecordKey("", key)  # of no execution: that of the node which reads it has not begun
        self.effects[place] = freeze(with_valid_text([*thaw(self.added(key)), value]))
        return EffectRow(*place, self.effects[place]).row()

    def keep(self, place: RecordKey, value: Any) -> None:
        """Record a value as an effect is, in the write of the question that its attempt asks next."""
        self.effects[place] = freeze(value)
        self._unwritten.append(EffectRow(*place, self.effects[place]).row())

    def added(self, key: str) -> Sequence[Any]:
        """Return the values that were added under a key of the run."""
        found: Sequence[Any] = self.effects.get(RecordKey("", key), ())
        return found

    # --- Runs inside of nodes

    def take_kept(self, scope: tuple[str, ...], attempts: tuple[int, ...]) -> KeptRun:
        """Take what an earlier attempt of the node at the end of `scope` has committed; an empty run if there is none.

        A module may call a program several times within one attempt. These are runs of their own.
        """
        kept = self.kept.pop(scope, None)
        return KeptRun(attempts) if kept is None or kept.attempts == attempts else kept._replace(attempts=attempts)

    def kept_within(self, scope: tuple[str, ...], execution: str) -> list[tuple[str, ...]]:
        """Return the scopes of the kept runs inside of an execution, or of the items of a map."""
        depth = len(scope)
        return [
            one
            for one in list(self.kept)
            if len(one) > depth and one[:depth] == scope and is_within(one[depth], execution)
        ]

    # --- Questions and answers

    def ask(self, question: Question, answer: AnswerSource = no_answer, default: Any = MISSING) -> bool:
        """Record a question that is new, and return whether it has an answer now.

        Args:
            question: the question.
            answer: asked for the answer if none is recorded.
            default: the answer if that has none, and a question that was asked before has expired.

        Raises:
            InputError: if the question takes no answer, and gets one.
        """
        key = RecordKey(question.execution, question.key)
        if key in self.answers:
            return True
        is_new, by = key not in self.questions, None
        if is_new:
            self._add(question)
            self._unwritten.append(QuestionRow.of_question(question).row())
        given = answer(question)
        if given is MISSING and not is_new and has_expired(question):
            given, by = default, EXPIRED
        if given is MISSING:
            return False
        if question.answer is None and given is not None and given is not True:
            raise InputError(
                f"question {question.key!r} of node {question.node!r} takes no answer, and was given one: answer "
                "it with None or True"
            )
        found = Answer(question, freeze(given, ("answer",)), by, at=row_time())
        self.deliver(found)
        self._unwritten.append(AnswerRow.of_answer(found).row())
        return True

    def deliver(self, answer: Answer) -> None:
        """Take a new answer, which its caller writes."""
        self.answers[RecordKey(answer.question.execution, answer.question.key)] = answer
        self.delivered.append(answer)

    def given_answers(self) -> tuple[Answer, ...]:
        """Return all answers with plain values, in the order in which they were given."""
        return tuple([replace(one, value=thaw(one.value)) for one in list(self.answers.values())])

    def retract_answer(self, key: RecordKey) -> None:
        """Remove an answer that does not fit its question: the question is open again."""
        if self.answers.pop(key, MISSING) is not MISSING:
            self._unwritten.append(AnswerRow(*key, retracted=True).row())

    def end_questions(self, execution: str) -> None:
        """Close the questions inside of an execution that commits: nothing waits for an answer any more.

        They are open still if the node has failed while a part of it waited, and an error edge takes the failure.
        """
        if len(self.answers) < len(self.questions):
            self._ended.add(execution)

    def open_questions(self) -> tuple[Question, ...]:
        """Return the questions without an answer whose executions have not ended, in branch order."""
        asked = list(self.questions.items())
        found = [key for key, _ in asked if key not in self.answers and not self._has_ended(key)]
        # By all executions around them: which branch has asked first is a matter of time.
        return tuple([self.questions[key] for key in sorted(found, key=lambda key: (id_order(key.execution), key.key))])

    def first_expiry(self) -> float | None:
        """Return when the first of the open questions expires; None for never."""
        # One of an item that may fail stays open until its map commits, and no further resume helps it.
        waits = [one for one in self.open_questions() if RecordKey(one.execution, one.key) not in self.lapsed]
        return min([one.expires for one in waits if one.expires is not None], default=None)

    def _has_ended(self, asked: RecordKey) -> bool:
        around = ids_around(asked.execution)
        if asked.key != "after":  # which is asked when its execution has committed
            around.append(asked.execution)
        return not self._ended.isdisjoint(around)

    def questions_of(self, execution: str, answered: bool) -> list[Question]:
        """Return the questions of one execution that have an answer, or that have none, in the order of asking."""
        asked = list(self._asked.get(execution, ()))
        return [self.questions[key] for key in asked if (key in self.answers) is answered]

    def _add(self, question: Question) -> None:
        key = RecordKey(question.execution, question.key)
        self.questions[key] = question
        # A map with a question for each of its items asks for those of every item.
        self._asked.setdefault(key.execution, []).append(key)

    # --- Rows to write

    def queue_row(self, row: DraftRow) -> None:
        """Queue a row for the next write."""
        self._unwritten.append(row)

    def take_unwritten(self) -> list[DraftRow]:
        """Take all queued rows; of several threads that call this, each row goes to one."""
        return _taken(self._unwritten)

    def take_delivered(self) -> list[Answer]:
        """Take the answers of which no event has told yet, likewise."""
        return _taken(self.delivered)


def _taken(queue: deque[_T]) -> list[_T]:
    found = []
    while queue:
        try:
            found.append(queue.popleft())
        except IndexError:  # another thread has taken the last one since the check
            break
    return found


def patches_in(rows: Iterable[Row], fetch: Fetch, decode: DecodeValue) -> Iterator[Mapping[str, Any]]:
    """Yield the patches of the rows that have one; what cannot be read is left out, since it is shown nowhere."""
    for row in rows:
        if row.kind in (RowKind.OPEN, RowKind.POST, *COMMITS):
            with suppress(Exception):
                record: Any = RECORDS[row.kind].read(row, fetch, decode)
                yield record.patch or {}


def check_row(row: Row, fetch: Fetch, decode: DecodeValue) -> None:
    """Read all of a row; raises what that raises, or `StateError`, for one that no run has written."""
    record = RECORDS.get(row.kind)
    if record is None:
        raise StateError(f"this dspyer writes no row of kind {row.kind!r}")
    record.read(row, fetch, decode)
    records = ExecutionRecords()
    records.read([row], fetch, decode)
    for question in records.questions.values():
        question.to_dict()  # its values are not checked before lists show them
    calls_in(row, fetch)
