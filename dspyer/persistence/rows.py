"""The rows of a run: one for each commit, and one for each thing that outlives a crash beside commits.

    open      the patch with which a run begins, before anything has run
    commit    a commit: of a node, of the inputs, of somebody who updates a thread by hand
    join      the commit of a join, with what the merge policies decided
    update    a commit that somebody made by hand; it changes the state, and not where the run goes
    merge     the commit in which two threads come together: of a run with two parents
    item      the result of one item of a map
    once      the result of an effect
    ask       a question
    answer    the answer to one
    post      a post to a live field, before anybody sees it
    withdraw  posts that were withdrawn: their execution committed nothing
    resume    the run was resumed, or a rerun begins
    end       the run came to its end, whatever its status

The structure of a row is its head, plain JSON that stays readable whatever its content is; what users wrote is in its
content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from traceback import format_exception
from types import MappingProxyType
from typing import Any, NamedTuple

from dspyer.errors import StoreError, brief
from dspyer.events import BranchPath, Commit, Exchange
from dspyer.patch import SealedPatch, decode_update, encode_update
from dspyer.persistence.snapshot_encoding import SnapshotEncoder
from dspyer.scheduler.lineage import LogEntry, Resolution
from dspyer.state import ImmutableState
from dspyer.stores.base import Row
from dspyer.stores.content import Content, Fetch
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict


class RowKind(StrEnum):
    """What a row of a run records."""

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
    WITHDRAW = "withdraw"
    RESUME = "resume"
    END = "end"


NO_BLOBS: Mapping[str, bytes] = MappingProxyType({})

TIME_ORIGIN = 1_700_000_000_000
"""Rows say when a node began in milliseconds since then."""

COMMITS = (RowKind.COMMIT, RowKind.JOIN, RowKind.UPDATE, RowKind.MERGE)
"""Rows that are commits."""


class NewRow(NamedTuple):
    """A row that has no number yet."""

    kind: str
    header: tuple[Any, ...]
    content: Content | None = None

    def numbered(self, seq: int) -> Row:
        """The row."""
        return Row(seq, self.kind, self.header, self.content)


_USUAL: tuple[Any, ...] = (0, 1, None, (), None, None, (0, 0))


class CommitHeader(NamedTuple):
    """The structure of a commit.

    Attributes:
        id: branch path and index.
        node: who made it.
        step: the longest chain of commits up to it.
        visit: how often the node has committed in its lineage.
        settled: whether no other branch was live.
        route: where its branch went.
        parents: places of its parents among the commits of its scope; None for the one before it.
        scope: the executions around it.
        started: when the node began, milliseconds since the epoch.
        duration: how long it took, microseconds.
        items: the field of a map's results and how many there are, where they are the results of its item rows.
        live: what the node exchanged over live fields.
        calls: how often it called predictors and tools, where the graph reads that.
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
    items: tuple[str, int] | None = None
    live: Exchange | None = None
    calls: tuple[int, int] = (0, 0)

    @property
    def item_names(self) -> list[str]:
        """The executions of these items."""
        name = "/".join((*self.scope, self.id))
        return [f"{name}[{index}]" for index in range(self.items[1])] if self.items else []

    @property
    def branch(self) -> BranchPath:
        """The path of its branch."""
        path = self.id.rpartition(":")[0]
        return () if path == "trunk" else tuple(map(int, path.split(".")))

    def pack(self) -> tuple[Any, ...]:
        """The head of a row: small numbers, and what says nothing is left out at the end."""
        name, node, step, visit, settled, route, parents, scope, started, duration, items, live, calls = self
        branch, _, number = name.rpartition(":")
        whole = number.isdigit()  # else it was made by hand
        index = int(number) if whole else _index(name)
        late = step - index
        goes = list(route) if len(route) != 1 else 0 if route[0] == node else route[0]
        first = index if whole and branch == "trunk" else name
        head = (first, node, goes, index - visit, started - TIME_ORIGIN, duration)
        rest = _beside(items, live, calls)
        if settled and not late and parents is None and not scope and not rest:
            return head
        if parents is None and not scope and not rest:
            return (*head, late, int(settled))
        full = (*head, late, int(settled), None if parents is None else list(parents), list(scope))
        return (*full, *rest)

    @classmethod
    def parse(cls, head: Sequence[Any]) -> CommitHeader:
        """The structure of a commit, from the head of its row.

        Raises:
            StoreError: if it is none.
        """
        try:
            return cls._parse(head)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise StoreError(
                f"the row of a commit begins with {brief(list(head))}, which is no commit ({error}): it was changed "
                "since dspyer has written it"
            ) from error

    @classmethod
    def _parse(cls, head: Sequence[Any]) -> CommitHeader:
        name, node, route, behind, started, duration, *rest = head
        late, settled, parents, scope, items, live, calls = (*rest, *_USUAL[len(rest) :])
        if isinstance(name, int):
            index, name = name, f"trunk:{name}"
        else:
            index = _index(name)
        return cls(
            name,
            node,
            index + late,
            index - behind,
            bool(settled),
            (node,) if route == 0 else (route,) if isinstance(route, str) else tuple(route),
            None if parents is None else tuple(parents),
            tuple(scope),
            started + TIME_ORIGIN,
            duration,
            None if items is None else (str(items[0]), int(items[1])),
            None if live is None else Exchange({field: tuple(seqs) for field, seqs in live[0].items()}, live[1]),
            (int(calls[0]), int(calls[1])),
        )


def _index(commit_id: str) -> int:
    """The place of a commit on its branch; of one made by hand (`"trunk:3+1"`), that of the commit before it."""
    return int(commit_id.rpartition(":")[2].partition("+")[0])


def _beside(items: tuple[str, int] | None, live: Exchange | None, calls: tuple[int, int]) -> list[Any]:
    """What few commits have in their heads: items of a map, posts and reads of live fields, counted calls."""
    if items is None and live is None and not any(calls):
        return []
    exchanged = None
    if live is not None:
        exchanged = [{field: list(seqs) for field, seqs in live.posts.items()}, dict(live.reads)]
    rest: list[Any] = [None if items is None else list(items), exchanged, list(calls) if any(calls) else None]
    while rest[-1] is None:
        rest.pop()
    return rest


def commit_row(
    entry: LogEntry,
    place: int,
    scope: tuple[str, ...],
    overlays: Iterable[FrozenDict[str, Any] | None] = (),
    opened: bool = False,
    items: tuple[str, int] | None = None,
) -> NewRow:
    """The row of a commit.

    Args:
        entry: the commit in the log of its run.
        place: its place there.
        scope: the executions around it.
        overlays: what the branches get that it sends.
        opened: whether its patch is the one with which the run was opened, and is not written again.
        items: the field of a map and how many results it holds, where item rows have them already.
    """
    commit = entry.commit
    before = (place - 1,) if place else ()
    head = CommitHeader(
        commit.id,
        commit.node,
        commit.step,
        commit.visit,
        commit.version is not None,
        commit.route,
        None if entry.parents == before else entry.parents,
        scope,
        int(commit.started * 1_000),
        int(commit.duration * 1_000_000),
        items,
        commit.live,
        commit.calls,
    )
    sent = tuple(overlays)
    written = CommitContent(
        None if opened else commit.patch,
        sent if sent and any(overlay is not None for overlay in sent) else (),
        commit.reason,
        entry.resolutions,
    )
    kind = RowKind.JOIN if len(entry.parents) > 1 else RowKind.COMMIT
    encode = encode_commit_content if items is None else partial(encode_without, items[0])
    return NewRow(kind, head.pack(), Content(written, encode))


def end_row(
    status: str,
    fingerprint: str | None,
    failures: Iterable[tuple[str, BranchPath, str, BaseException]],
    usage: Mapping[str, Any] | None = None,
) -> NewRow:
    """The row that says how a run ended.

    Args:
        status: `"completed"`, `"failed"`, `"interrupted"` or `"stopped"`.
        fingerprint: that of the final state of a completed run.
        failures: node, branch, execution and error of each failure. An error is kept as text.
        usage: tokens by language model, of the calls since the run was begun or taken up.
    """
    failed = [
        {
            "node": node,
            "branch": list(path),
            "execution": execution,
            "type": type(error).__name__,
            "message": str(error),
            "traceback": "".join(format_exception(error)),
        }
        for node, path, execution, error in failures
    ]
    head: tuple[Any, ...] = (status,) if fingerprint is None else (status, fingerprint)
    if usage:
        head = (status, fingerprint, dict(usage))
    return NewRow(RowKind.END, head, Content(failed, list) if failed else None)


def digest(state: ImmutableState) -> str:
    """A fingerprint of a state: the same for equal states, in every process."""
    return SnapshotEncoder().digest(state)


def resume_row(count: int, executions: Iterable[str], beside: Mapping[str, bytes] | None = None) -> NewRow:
    """The row that says that a run was resumed, or that a rerun begins there.

    Args:
        count: how often it was resumed without a commit in between; 0 for a rerun.
        executions: what is called again.
        beside: the fingerprint of the graph by its id, if it is another one than before.
    """
    return NewRow(RowKind.RESUME, (count, list(executions)), Content(None, extra_blobs=beside) if beside else None)


def open_row(
    node: str, patch: Mapping[str, Any], made: float | None = None, beside: Mapping[str, bytes] = NO_BLOBS
) -> NewRow:
    """The row of the patch with which a run begins.

    Args:
        node: who makes it: `START` for inputs, or a node in whose name somebody commits by hand.
        patch: the patch.
        made: when somebody made it by hand, seconds since the epoch.
        beside: the fingerprint of the graph by its id.
    """
    head = (node,) if made is None else (node, int(made * 1_000))
    return NewRow(RowKind.OPEN, head, Content(CommitContent(patch), encode_commit_content, beside))


def manual_commit_row(
    kind: str, commit: Commit, written: CommitContent, beside: Mapping[str, bytes] = NO_BLOBS
) -> NewRow:
    """The row of a commit that no node has made.

    Args:
        kind: `UPDATE` or `MERGE`.
        commit: the commit.
        written: its patch, and what the merge policies decided.
        beside: the fingerprint of the graph by its id, where a run begins with it.
    """
    started = int(commit.started * 1_000)
    head = CommitHeader(commit.id, commit.node, commit.step, commit.visit, True, commit.route, None, (), started, 0)
    return NewRow(kind, head.pack(), Content(written, encode_commit_content, beside))


def post_row(
    scope: tuple[str, ...], execution: str, node: str, field: str, seq: int, update: Any, over: Sequence[int] | None
) -> NewRow:
    """The row of a post to a live field.

    Args:
        scope: the executions around the run.
        execution: the one that posts.
        node: its node.
        field: the field.
        seq: the arrival number.
        update: the update, frozen.
        over: the arrival numbers of the posts that it replaces; None where posts stand side by side.
    """
    head = (execution, list(scope), node, field, seq, *([] if over is None else [list(over)]))
    return NewRow(RowKind.POST, head, Content(CommitContent({field: update}), encode_commit_content))


def withdraw_row(scope: tuple[str, ...], execution: str, node: str, seq: int, posts: Iterable[int]) -> NewRow:
    """The row that says that posts were withdrawn.

    Args:
        scope: the executions around the run.
        execution: the one that had posted.
        node: its node.
        seq: the last arrival number then.
        posts: the arrival numbers of the posts.
    """
    return NewRow(RowKind.WITHDRAW, (execution, list(scope), node, seq, list(posts)))


# --------------------------------------------------------------------------------------------------------------------
# What the rows of a run hold, as values and as JSON.
#
# A patch keeps apart what merges and what is a value: `DELETE`, `Replace`, `Updates` and mappings that merge are
# tagged, everything else is the JSON form of a frozen value.

Decode = Callable[[Any], Any]
"""Makes a frozen value of its JSON form."""


class UnreadablePatch(SealedPatch):
    """The patch of a commit that cannot be read, or that builds on one: empty, and says why.

    Attributes:
        error: why.
    """

    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = error

    def __repr__(self) -> str:
        return f"<unreadable: {self.error}>"


class CommitContent(NamedTuple):
    """What a commit holds beside its structure.

    Attributes:
        patch: its patch; None for the patch with which the run was opened.
        overlays: what each branch that goes on gets, for those started by a `Send`; empty where there are none.
        reason: why an LM router chose the route.
        resolutions: what the merge policies of a join decided.
    """

    patch: Mapping[str, Any] | None
    overlays: tuple[FrozenDict[str, Any] | None, ...] = ()
    reason: str | None = None
    resolutions: tuple[Resolution, ...] = ()


def encode_commit_content(written: CommitContent) -> Any:
    """The JSON form of what a commit holds: patch, overlays, reason, resolutions, as far as there are any."""
    patch, overlays, reason, resolutions = written
    encoded = None if patch is None else {name: encode_update(update) for name, update in patch.items()}
    if not overlays and reason is None and not resolutions:
        return [encoded]
    sent = [None if overlay is None else encoding.encode(overlay) for overlay in overlays]
    return [encoded, sent, reason, [_encode_resolution(resolution) for resolution in resolutions]]


def encode_without(field: str, written: CommitContent) -> Any:
    """The JSON form without one field of the patch, which other rows hold."""
    patch = {name: update for name, update in (written.patch or {}).items() if name != field}
    return encode_commit_content(written._replace(patch=patch))


class MapCommitContent(Content):
    """What the commit of a map holds, with the results of its items from their own rows.

    Args:
        own: the content of the commit.
        field: the field of the results.
        items: the results in order.
    """

    __slots__ = ("field", "items", "own")

    def __init__(self, own: Content, field: str, items: Sequence[Content]) -> None:
        super().__init__(None)
        self.own = own
        self.field = field
        self.items = items

    @property
    def is_encoded(self) -> bool:
        """Whether the bytes are there already."""
        return self.own.is_encoded

    @property
    def data(self) -> bytes:
        """The bytes of the commit's own content."""
        self._data = self.own.data
        self._refs, self._blobs = self.own.refs, self.own.blobs
        return self._data

    def value(self, fetch: Fetch, decode: Decode = encoding.decode) -> Any:
        """The value of the commit's own content."""
        return self.own.value(fetch, decode)

    def completed(self, written: CommitContent, fetch: Fetch, decode: Decode) -> CommitContent:
        """The commit with the results in it."""
        patch = written.patch or {}
        if self.field in patch:
            return written
        results = freeze([item.value(fetch, decode) for item in self.items])
        return written._replace(patch={self.field: results, **patch})


def decode_commit_content(found: list[Any], decode: Decode = encoding.decode) -> CommitContent:
    """What a commit holds, from its JSON form."""
    encoded, *more = found
    patch = None if encoded is None else {name: decode_update(update, decode) for name, update in encoded.items()}
    if not more:
        return CommitContent(patch)
    sent, reason, resolved = more
    return CommitContent(
        patch,
        tuple([None if overlay is None else decode(overlay) for overlay in sent]),
        reason,
        tuple([_decode_resolution(resolution, decode) for resolution in resolved]),
    )


def _encode_resolution(resolution: Resolution) -> list[Any]:
    parts: list[Any] = [resolution.policy, resolution.chosen]
    return [*parts, encode_update(resolution.value)] if resolution.chosen == "new" else parts


def _decode_resolution(found: list[Any], decode: Decode) -> Resolution:
    policy, chosen, *value = found
    return Resolution(policy, chosen, decode_update(value[0], decode) if value else None)
