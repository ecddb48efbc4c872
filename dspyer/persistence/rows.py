"""The rows of a run: their kinds, their headers, their contents, and the functions that build them.

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
    lm_call   LM calls of an execution that has no commit, or not yet; those of other executions are in their commit
    trace     the OpenTelemetry trace that the run is a part of
    resume    a resume, or the beginning of a rerun
    end       the end of a run, with its status

A row has a header and a content. The header is plain JSON that encryption leaves readable; user data is in the content.
Headers of commits are packed (see `CommitHeader.pack`): a long run is mostly commits.

A reader of an earlier version passes over kinds of rows, and parts of contents, that it does not know. So what is added
must be of no importance for the state, as LM calls are; anything else needs a new version of the store's format.

A run has a header too (`RunRow.header`). It is written once, when the run or a further part of it is created:

    label      its readable name, with which the global ids of its commits begin: "t-42.3"
    first      the version of its first commit
    graph      the name of its graph
    named      true if the user chose that name
    shape      the id of the graph's fingerprint, which is a blob
    drawing    the id of what a drawing of the graph shows besides its fingerprint, which is a blob too
    started    when this part of the run was started, seconds since the Unix epoch; lists of runs are in this order
    continues  true for a part that continues its parent (see `reader`)
    without    the rows before this part that do not count, as ranges of indexes
    names      new names of nodes by their old ones, if another graph continues the run
    keys       the salt of the ids of runs with keys; from the first one on in each run of the thread
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import time
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dspyer.errors import StoreError, brief
from dspyer.events import BranchPath, Commit, Exchange, MergedConflict, Question
from dspyer.failure import Failure
from dspyer.ids import path_of_id
from dspyer.patch import DELETE, SealedPatch, decode_update, encode_update
from dspyer.scheduler.lineage import Log, LogEntry
from dspyer.schema.schema import NOTHING_MADE
from dspyer.stores.base import Row, RunRow
from dspyer.stores.content import Content, Fetch
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, thaw
from dspyer.values.refusals import KeyPath

Decode = Callable[[Any], Any]
"""Makes a frozen value of its JSON form."""


class RowKind:
    """What a row of a run records. Plain strings: stores get the type that they return, and comparing costs little."""

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
    LM_CALL = "lm_call"
    TRACE = "trace"
    RESUME = "resume"
    END = "end"


COMMITS = frozenset((RowKind.COMMIT, RowKind.JOIN, RowKind.UPDATE, RowKind.MERGE))
"""The kinds of rows that are commits."""

NO_BLOBS: Mapping[str, bytes] = MappingProxyType({})

TIME_ORIGIN = 1_700_000_000_000
"""Milliseconds since the Unix epoch from which headers count: a smaller number takes fewer digits."""


class NewRow(NamedTuple):
    """A row without its number: the journal numbers it when it writes it."""

    kind: str
    header: tuple[Any, ...]
    content: Content | None = None

    def numbered(self, seq: int) -> Row:
        """Return the row with this number."""
        return Row(seq, self.kind, self.header, self.content)


def counted(rows: Sequence[Row | NewRow]) -> int:
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


# --- Headers of commits


_DEFAULTS: tuple[Any, ...] = (0, 1, None, (), None, None, (0, 0), 1, 0)
"""Of the fields that a header may lack at its end: lag, settled, parents, scope, items, live, calls,
attempt, cached."""


class MapItems(NamedTuple):
    """Which item rows hold the results of a map.

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
        return [f"{execution}[{index}]" for index in range(self.number + len(failed)) if index not in failed]


class CommitHeader(NamedTuple):
    """The structure of a commit.

    Attributes:
        id: branch path and index.
        node: its author.
        step: length of the longest chain of commits up to it.
        visit: how often the node has committed in its lineage.
        settled: whether no other branch was active.
        route: the nodes that its branch continues to.
        parents: indexes of its parents among the commits of its scope; None for the one before it.
        scope: local ids of the executions around it, outermost first.
        started: when the node began, milliseconds since the Unix epoch.
        duration: microseconds.
        items: of a map, which item rows hold its results; None if its own row does.
        live: posts to and reads of live fields.
        calls: number of predictor and tool calls, where the graph reads them.
        attempt: the number of the node's attempt. What the attempts before it raised is user data: see `CommitContent`.
        cached: whether the patch came from the node's cache.
    """

    id: str
    node: str
    step: int
    visit: int
    settled: bool
    route: tuple[str, ...]
    parents: tuple[int, ...] | None
    scope: tuple[str, ...]
    started: int
    duration: int
    items: MapItems | None = None
    live: Exchange | None = None
    calls: tuple[int, int] = (0, 0)
    attempt: int = 1
    cached: bool = False

    @property
    def item_ids(self) -> list[str]:
        """The local ids of the executions of its items."""
        return self.items.ids("/".join((*self.scope, self.id))) if self.items else []

    @property
    def branch(self) -> BranchPath:
        """The path of its branch."""
        return path_of_id(self.id)

    def pack(self) -> tuple[Any, ...]:
        """Return the header as its row holds it: differences instead of numbers, defaults at the end left out."""
        commit_id, node, step, visit, settled, route, parents, scope, started, duration, *_ = self
        branch, _, number = commit_id.rpartition(":")
        regular = number.isdigit()  # a manual commit is "trunk:3+1"
        index = int(number) if regular else _index(commit_id)
        lag = step - index
        targets = list(route) if len(route) != 1 else 0 if route[0] == node else route[0]  # 0: a loop to itself
        short_id = index if regular and branch == "trunk" else commit_id
        header = (short_id, node, targets, index - visit, started - TIME_ORIGIN, duration)
        rest = _pack_rare(self)
        if parents is None and not scope and not rest:
            return header if settled and not lag else (*header, lag, int(settled))
        return (*header, lag, int(settled), None if parents is None else list(parents), list(scope), *rest)

    @classmethod
    def parse(cls, header: Sequence[Any]) -> CommitHeader:
        """Return the header of a commit's row; raise `StoreError` if it is malformed."""
        try:
            return cls._parse(header)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise StoreError(
                f"a row has the header {brief(list(header))}, which is no commit's ({error}): it was changed after "
                "dspyer wrote it. Restore the store from a backup, or load the thread from an export"
            ) from error

    @classmethod
    def _parse(cls, header: Sequence[Any]) -> CommitHeader:
        commit_id, node, route, behind, started, duration, *rest = header
        lag, settled, parents, scope, items, live, calls, attempt, cached = (*rest, *_DEFAULTS[len(rest) :])
        if isinstance(commit_id, int):
            index, commit_id = commit_id, f"trunk:{commit_id}"
        else:
            index = _index(commit_id)
        return cls(
            commit_id,
            node,
            index + lag,
            index - behind,
            bool(settled),
            (node,) if route == 0 else (route,) if isinstance(route, str) else tuple(route),
            None if parents is None else tuple(parents),
            tuple(scope),
            started + TIME_ORIGIN,
            duration,
            None if items is None else MapItems(str(items[0]), int(items[1]), tuple(map(int, items[2:]))),
            None if live is None else Exchange({field: tuple(seqs) for field, seqs in live[0].items()}, live[1]),
            (int(calls[0]), int(calls[1])) if calls else (0, 0),
            1 if attempt is None else int(attempt),
            bool(cached),
        )


def _index(commit_id: str) -> int:
    """Return the index of a commit on its branch; of a manual commit (`"trunk:3+1"`), that of the commit before it."""
    return int(commit_id.rpartition(":")[2].partition("+")[0])


def _pack_rare(header: CommitHeader) -> list[Any]:
    """Pack the fields that few commits have: items of a map, live posts and reads, counted calls, a later attempt."""
    *_, items, live, calls, attempt, cached = header
    if items is None and live is None and not any(calls) and attempt == 1 and not cached:
        return []
    exchanged = None
    if live is not None:
        exchanged = [{field: list(seqs) for field, seqs in live.posts.items()}, dict(live.reads)]
    packed_items = None if items is None else [items.field, items.number, *items.failed]
    packed_calls = list(calls) if any(calls) else None
    rest: list[Any] = [packed_items, exchanged, packed_calls, None if attempt == 1 else attempt, int(cached) or None]
    while rest[-1] is None:
        rest.pop()
    return rest


# --- Building rows


def open_row(
    node: str, content: CommitContent, created: float | None = None, graph_blobs: Mapping[str, bytes] = NO_BLOBS
) -> NewRow:
    """Build the row of the patch with which a run begins.

    Args:
        node: `START` for inputs, or the node that a manual commit is attributed to.
        content: its patch, and what it made of fields.
        created: when a manual commit was made, seconds since the Unix epoch.
        graph_blobs: what is stored of the graph, by id.
    """
    header = (node,) if created is None else (node, int(created * 1_000))
    return NewRow(RowKind.OPEN, header, Content(content, encode_commit_content, graph_blobs))


def commit_row(
    entry: LogEntry,
    index: int,
    scope: tuple[str, ...],
    made: Mapping[str, Any],
    winners: Mapping[KeyPath, str],
    is_opening: bool = False,
    items: MapItems | None = None,
    lm_calls: tuple[Any, ...] = (),
    lm_texts: Mapping[str, bytes] = NO_BLOBS,
) -> NewRow:
    """Build the row of a commit.

    Args:
        entry: the commit in the log of its run.
        index: its index there.
        scope: local ids of the executions around it.
        made: how it has changed the fields that functions of the user fold; of a join, all fields that it changed.
        winners: of a join, the id of the commit that wrote each resolved value.
        is_opening: whether its patch is in the run's open row already, and is not written again.
        items: of a map, which item rows hold its results; None if its own row does.
        lm_calls: the LM calls of the execution, packed.
        lm_texts: their long texts, by id.
    """
    commit = entry.commit
    before = (index - 1,) if index else ()
    header = CommitHeader(
        commit.id,
        commit.node,
        commit.step,
        commit.visit,
        commit.version is not None,
        commit.route,
        None if entry.parents == before else entry.parents,
        scope,
        int(commit.started * 1_000),
        round(commit.duration * 1_000_000) or int(commit.duration > 0),  # 0 is said of what took no time
        items,
        commit.live,
        commit.calls,
        commit.attempt,
        commit.cached,
    )
    content = CommitContent(
        None if is_opening else commit.patch,
        entry.sends,
        commit.reason,
        commit.failure,
        commit.failed_attempts,
        lm_calls,
        made,
        frozen_conflicts(entry.conflicts),
        winners,
    )
    kind = RowKind.JOIN if len(entry.parents) > 1 else RowKind.COMMIT
    encode = encode_commit_content if items is None else partial(_encode_without, items.field)
    return NewRow(kind, header.pack(), Content(content, encode, lm_texts))


def manual_commit_row(
    kind: str, commit: Commit, content: CommitContent, graph_blobs: Mapping[str, bytes] = NO_BLOBS
) -> NewRow:
    """Build the row of a commit that no node made.

    Args:
        kind: `UPDATE` or `MERGE`.
        commit: the commit.
        content: its patch, and what it made of fields.
        graph_blobs: what is stored of the graph, by id, if a run begins with this row.
    """
    started = int(commit.started * 1_000)
    header = CommitHeader(commit.id, commit.node, commit.step, commit.visit, True, commit.route, None, (), started, 0)
    return NewRow(kind, header.pack(), Content(content, encode_commit_content, graph_blobs))


def resume_row(attempt: int, executions: Iterable[str], graph_blobs: Mapping[str, bytes] | None = None) -> NewRow:
    """Build the row of a resume, or of the beginning of a rerun.

    Args:
        attempt: how often the run was resumed without a commit in between; 0 for a rerun.
        executions: what is called again.
        graph_blobs: what is stored of the graph, by id, if it is another graph than before.
    """
    content = Content(None, extra_blobs=graph_blobs) if graph_blobs else None
    return NewRow(RowKind.RESUME, (attempt, list(executions)), content)


def end_row(
    status: str,
    fingerprint: str | None,
    failures: Iterable[tuple[Failure, BaseException]],
    usage: Mapping[str, Any] | None = None,
    steps: int | None = None,
    before: Mapping[str, Any] | None = None,
) -> NewRow:
    """Build the row of the end of a run, with the time.

    Args:
        status: `"completed"`, `"failed"`, `"interrupted"` or `"stopped"`.
        fingerprint: that of the final state of a completed run.
        failures: each failure with its exception, of which the traceback is stored as text.
        usage: tokens by language model, of the calls since the run was started or resumed.
        steps: how many commits the run has, without those of graphs inside its nodes; None if that is not known.
        before: what processes have used that worked on the run since its last end, and have written none.
    """
    failed = [failure.stored_with(error) for failure, error in failures]
    ended = int(time() * 1_000) - TIME_ORIGIN
    header = (status, fingerprint, dict(usage) if usage else None, ended, steps, *([dict(before)] if before else ()))
    return NewRow(RowKind.END, header, Content(failed, list) if failed else None)


class EndHeader(NamedTuple):
    """The header of the end of a run.

    Attributes:
        status: how it ended.
        fingerprint: that of the final state; None if it was not completed.
        usage: what it used by language model, since it was started or resumed.
        ended: seconds since the Unix epoch; None for a run that has not ended.
        steps: how many commits it has; None if that is not known.
        before: what processes have used that were killed since the end before this one: lists read no other rows.
    """

    status: str
    fingerprint: str | None = None
    usage: Mapping[str, Any] = MappingProxyType({})
    ended: float | None = None
    steps: int | None = None
    before: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def parse(cls, header: Sequence[Any]) -> EndHeader:
        """Return the header of an end row; raise `StoreError` if it is malformed."""
        status, fingerprint, usage, ended, steps, before = (*header, *(None,) * 6)[:6]
        if not isinstance(status, str) or not all(isinstance(one or {}, Mapping) for one in (usage, before)):
            raise StoreError(
                f"a row has the header {brief(list(header))}, which is not that of the end of a run: it was changed "
                "after dspyer wrote it. Restore the store from a backup, or load the thread from an export"
            )
        when = (TIME_ORIGIN + ended) / 1_000 if isinstance(ended, int) else None
        return cls(status, fingerprint, usage or {}, when, steps if isinstance(steps, int) else None, before or {})


def question_row(question: Question) -> NewRow:
    """Build the row of a question."""
    header = (question.execution, question.key, question.node, list(question.branch), question.run)
    return NewRow(RowKind.ASK, header, Content((question.text, question.answer), list))


def answer_row(key: tuple[str, str], frozen: Any) -> NewRow:
    """Build the row of an answer, by execution and key of its question."""
    return NewRow(RowKind.ANSWER, tuple(key), Content(frozen))


def retraction_row(key: tuple[str, str]) -> NewRow:
    """Build the row that retracts an answer: an answer row without content."""
    return NewRow(RowKind.ANSWER, tuple(key))


def effect_row(key: tuple[str, str], frozen: Any) -> NewRow:
    """Build the row of the result of an effect, by execution and key."""
    return NewRow(RowKind.ONCE, tuple(key), Content(frozen))


class StoredTrace(NamedTuple):
    """The OpenTelemetry trace of a run, which a resume in another process continues. No part of what a run is.

    Attributes:
        carrier: the span with which the run began there, as the headers of W3C Trace Context.
        started: when it began, seconds since the Unix epoch.
        thread: the thread of the run; a copy of a thread has the rows of the original.
    """

    carrier: dict[str, str]
    started: float
    thread: str


def trace_row(trace: StoredTrace) -> NewRow:
    """Build the row of the trace that a run is a part of."""
    return NewRow(RowKind.TRACE, (trace.carrier, int(trace.started), trace.thread))


def item_row(execution: str, frozen: Any) -> NewRow:
    """Build the row of the result of one item of a map."""
    return NewRow(RowKind.ITEM, (execution,), Content(frozen))


class PostHeader(NamedTuple):
    """The header of a post to a live field.

    Attributes:
        execution: the id of the execution that posts.
        scope: local ids of the executions around the run.
        node: its node.
        field: the field.
        seq: the arrival number.
        id: what no other post of the execution has: see `RecordedPost`.
        over: arrival numbers of the posts that it replaces; None if posts to the field do not replace each other.
        time: when it was posted, seconds since the Unix epoch.
    """

    execution: str
    scope: tuple[str, ...]
    node: str
    field: str
    seq: int
    id: str
    over: tuple[int, ...] | None
    time: float

    @classmethod
    def parse(cls, header: Sequence[Any]) -> PostHeader:
        """Return the header of a row."""
        execution, scope, node, field, seq, name, over, since = header
        over, time = None if over is None else tuple(over), (since + TIME_ORIGIN) / 1_000
        return cls(execution, tuple(scope), node, field, seq, name, over, time)


def post_row(header: PostHeader, update: Any) -> NewRow:
    """Build the row of a post to a live field; `update` is frozen."""
    *kept, over, time = header
    packed = (*kept, None if over is None else list(over), int(time * 1_000) - TIME_ORIGIN)
    return NewRow(RowKind.POST, packed, Content(CommitContent({header.field: update}), encode_commit_content))


# --- Contents of commits
#
# In the JSON form of a patch, `DELETE`, `Replace`, `Updates` and mappings that merge are tagged; everything else is the
# JSON form of a frozen value. So a patch can be folded again.


class CommitContent(NamedTuple):
    """The user data of a commit.

    Attributes:
        patch: None if it is the patch of the run's open row.
        overlays: what a `Send` adds to the state of each branch that it starts; empty without a `Send`.
        reason: why an LM router chose the route.
        failure: the failure after which the branch went along an error edge.
        failed_attempts: the attempts that raised before the one that was committed.
        lm_calls: the LM calls of the execution, packed (see `lm_calls`).
        made: how the fields have changed that functions of the user fold; readers call none of these. Of a join, how
            all fields have changed that differ from its first parent.
        conflicts: those of a join that were resolved, with frozen values.
        winners: for each path that a join resolved, the id of the commit that wrote the kept value; an id within the
            run, or of a merge of threads a global one, except for its own.
    """

    patch: Mapping[str, Any] | None
    overlays: tuple[FrozenDict[str, Any] | None, ...] = ()
    reason: str | None = None
    failure: Failure | None = None
    failed_attempts: tuple[Failure, ...] = ()
    lm_calls: tuple[Any, ...] = ()
    made: Mapping[str, Any] = NOTHING_MADE
    conflicts: tuple[MergedConflict, ...] = ()
    winners: Mapping[KeyPath, str] = NOTHING_MADE

    def plain_conflicts(self) -> tuple[MergedConflict, ...]:
        """Return the conflicts as users see them."""
        return tuple([_with_values(conflict, thaw) for conflict in self.conflicts])

    def winner_indexes(self, log: Log, own: str, index: int) -> dict[KeyPath, int]:
        """Return the winners as indexes of a log, in which this commit is at `index` and has the id `own`."""
        found: dict[KeyPath, int] = {}
        for path, winner in self.winners.items():
            places = (at for at in range(index - 1, -1, -1) if log[at].commit.id == winner)
            place = index if winner == own else next(places, None)
            if place is None:
                raise StoreError(f"commit {own} has a value of commit {winner!r}, which is not in the log before it")
            found[path] = place
        return found


LM_CALLS_INDEX: Final = 4
"""Where the JSON form of a commit's content has its LM calls."""

_NO_FAILURES: Final[tuple[Any, ...]] = (None, ())
_NO_MORE: Final[tuple[Any, ...]] = ((), None, _NO_FAILURES, (), NOTHING_MADE, (), ())


def encode_commit_content(content: CommitContent) -> Any:
    """Return the JSON form of a commit's content. Most commits have a patch and nothing else: a list of one item."""
    patch, overlays, reason, failure, failed, lm_calls, made, conflicts, winners = content
    encoded = None if patch is None else _encode_updates(patch)
    failures = (
        None if failure is None and not failed else [failure and _plain(failure), [_plain(one) for one in failed]]
    )
    if not overlays and reason is None and failures is None and not lm_calls and not made and not winners:
        return [encoded]
    sent = [None if overlay is None else encoding.encode(overlay) for overlay in overlays]
    full = [encoded, sent, reason]
    if winners:  # every conflict that was resolved has one
        won = [[_encode_path(path), winner] for path, winner in winners.items()]
        more = [_encode_updates(made), [_encode_conflict(conflict) for conflict in conflicts], won]
        return [*full, failures or _NO_FAILURES, lm_calls, *more]
    if lm_calls or made:
        return [*full, failures or _NO_FAILURES, lm_calls, *([_encode_updates(made)] if made else ())]
    return full if failures is None else [*full, failures]


def _encode_updates(updates: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encode_update(update) for name, update in updates.items()}


def _encode_without(field: str, content: CommitContent) -> Any:
    """Encode without the results of a map, which are in item rows."""
    patch = {name: update for name, update in (content.patch or {}).items() if name != field}
    return encode_commit_content(content._replace(patch=patch))


def decode_commit_content(encoded: list[Any], decode: Decode = encoding.decode) -> CommitContent:
    """Return the content of a commit from its JSON form."""
    encoded_patch, *more = encoded
    patch = None if encoded_patch is None else _decode_updates(encoded_patch, decode)
    if not more:
        return CommitContent(patch)
    # `lm_calls` reads those.
    sent, reason, (failure, failed), _, made, conflicts, winners = (*more, *_NO_MORE[len(more) :])
    return CommitContent(
        patch,
        tuple([None if overlay is None else decode(overlay) for overlay in sent]),
        reason,
        None if failure is None else Failure(**failure),
        tuple([Failure(**one) for one in failed]),
        made=_decode_updates(made, decode),
        conflicts=tuple([_decode_conflict(conflict, decode) for conflict in conflicts]),
        winners={_decode_path(path, decode): winner for path, winner in winners},
    )


def _decode_updates(encoded: Mapping[str, Any], decode: Decode) -> dict[str, Any]:
    return {name: decode_update(update, decode) for name, update in encoded.items()}


def _plain(failure: Failure) -> dict[str, Any]:
    return failure.model_dump(mode="json", exclude_defaults=True)


def attempts_of(header: CommitHeader, content: CommitContent) -> dict[str, Any]:
    """Return the fields of a commit that differ if attempts failed or its node was cached; none for most commits.

    Failures get the name that the node has now: a thread that continues with another graph may have renamed it.
    """
    failure, failed = content.failure, content.failed_attempts
    if failure is None and not failed and not header.cached:
        return {}
    node = {"node": header.node}
    return {
        "attempt": header.attempt,
        "failure": failure and failure.model_copy(update=node),
        "failed_attempts": tuple([one.model_copy(update=node) for one in failed]),
        "cached": header.cached,
    }


def _encode_path(path: KeyPath) -> list[Any]:
    return [encoding.encode(key) for key in path]


def _decode_path(encoded: list[Any], decode: Decode) -> KeyPath:
    return tuple([decode(key) for key in encoded])


def _encode_conflict(conflict: MergedConflict) -> list[Any]:
    one = _with_values(conflict, encode_update)
    return [one.join, _encode_path(one.path), one.base, one.values, one.policy, one.value, one.winner]


def _decode_conflict(encoded: list[Any], decode: Decode) -> MergedConflict:
    join, path, *rest = encoded
    return _with_values(MergedConflict(join, _decode_path(path, decode), *rest), lambda one: decode_update(one, decode))


def frozen_conflicts(conflicts: Iterable[MergedConflict]) -> tuple[MergedConflict, ...]:
    """Return conflicts as contents hold them: users may change the values that a run has shown them."""
    return tuple([_with_values(one, lambda value: value if value is DELETE else freeze(value)) for one in conflicts])


def _with_values(conflict: MergedConflict, of: Callable[[Any], Any]) -> MergedConflict:
    values = tuple([(author, of(side)) for author, side in conflict.values])
    return replace(conflict, base=of(conflict.base), values=values, value=of(conflict.value))


class MapCommitContent(Content):
    """The content of a map's commit, completed with the results in its item rows.

    Args:
        own: the content of the commit's row.
        field: the field of the results.
        items: the contents of the item rows, in order.
    """

    __slots__ = ("field", "items", "own")

    def __init__(self, own: Content, field: str, items: Sequence[Content]) -> None:
        super().__init__(None)
        self.own = own
        self.field = field
        self.items = items

    @property
    def is_encoded(self) -> bool:
        """Whether the bytes exist already."""
        return self.own.is_encoded

    @property
    def data(self) -> bytes:
        """The bytes of the commit's own content."""
        self._data = self.own.data
        self._refs, self._blobs = self.own.refs, self.own.blobs
        return self._data

    def value(self, fetch: Fetch, decode: Decode = encoding.decode) -> Any:
        """Return the value of the commit's own content."""
        return self.own.value(fetch, decode)

    def completed(self, content: CommitContent, fetch: Fetch, decode: Decode) -> CommitContent:
        """Return the content with the results in its patch."""
        patch = content.patch or {}
        if self.field in patch:
            return content
        results = freeze([item.value(fetch, decode) for item in self.items])
        return content._replace(patch={self.field: results, **patch})


def read_commit_content(content: Content | None, fetch: Fetch, decode: Decode) -> CommitContent:
    """Decode the content of a commit's row, with the results of a map's items."""
    if content is None:
        return CommitContent({})
    decoded: CommitContent = content.value(fetch, lambda encoded: decode_commit_content(encoded, decode))
    return content.completed(decoded, fetch, decode) if isinstance(content, MapCommitContent) else decoded


class UnreadablePatch(SealedPatch):
    """The empty patch of a commit that cannot be read, or that descends from one; `error` says why."""

    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = error

    def __repr__(self) -> str:
        return f"<unreadable: {self.error}>"
