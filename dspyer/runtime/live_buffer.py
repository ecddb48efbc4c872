"""The posts to the live fields of a run, in the order of their arrival.

A post belongs to its execution: it is committed with it, or withdrawn. A withdrawn post is never read again, and its
number is not reused. An execution *uses* a post when it reads it, when its own post is merged with it, and when its own
post is refused because of it; it depends on the executions whose posts it has used (see `runtime.live`).

A key of a field (the id of a message) is a multi-value register, as in Dynamo (DeCandia et al. 2007) and in the CRDT
literature (Shapiro et al. 2011). A post *replaces* the posts at its key that its author knows: those that it has read,
its own, those in its lineage, and those with the same message. Posts that the author does not know are kept as
further *heads* of the key, which the `on_conflict` of the field merges, rejects or ignores. Which posts a post replaces
is stored with it, so that a resumed run rebuilds the same heads.

Nothing here waits, and nothing is safe without the lock of the session.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dspyer.errors import NodeOutputError
from dspyer.events import BranchPath, Exchange
from dspyer.nodes.live_access import LiveEntry, latest_value
from dspyer.patch import DELETE, Replace, each_update
from dspyer.persistence.execution_records import RecordedPost
from dspyer.reducers import Keyed, Updates
from dspyer.scheduler.provenance import unattributed_parts
from dspyer.scheduler.run_state import Branch, contains_commit
from dspyer.scheduler.topology import START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.persistent import PersistentMap

_WHOLE = (object(),)
"""The one key of a field that is written as a whole."""

_NOWHERE = Branch((), ((),), ImmutableState(), -1, "", -1, PersistentMap())


class ReaderCursor:
    """How far one execution has read, and what it has posted and used.

    Attributes:
        position: its branch; an empty one for a node that is called without one.
        before: the numbers up to which earlier commits of its node in its lineage have read, by field.
        posts: its posts with their numbers, by field, as its commit has them.
        count: how many posts it has made.
        reads: the numbers up to which it has read, by field, `before` included.
        used: the executions whose posts it has used before they were committed.
        undone: whether one of these was withdrawn, so that this one commits nothing.
        goes_on: whether it was withdrawn by a failure after which the run goes on.
    """

    __slots__ = (
        *("_next_entries", "before", "count", "execution", "goes_on", "node", "path"),
        *("position", "posts", "reads", "undone", "used"),
    )

    def __init__(
        self, execution: str, node: str, path: BranchPath, position: Branch | None, before: Mapping[str, int]
    ) -> None:
        self.execution = execution
        self.node = node
        self.path = path
        self.position = position or _NOWHERE
        self.before = before
        self.posts: dict[str, list[tuple[int, Any]]] = {}
        self.count = 0
        self.reads: dict[str, int] = dict(before)
        self.used: set[str] = set()
        self.undone = False
        self.goes_on = False
        self._next_entries: dict[str, tuple[int, int]] = {}  # by field: index of the post, and of the entry in it

    def knows(self, post: RecordedPost) -> bool:
        """Whether a post is its own, or in its lineage, so that it need not be read."""
        return post.execution == self.execution or contains_commit(self.position, post.execution)

    def next(self, buffer: LiveBuffer, field: str, take: bool = True) -> LiveEntry | None:
        """The next entry of a field, None if there is none yet; `take` moves the cursor past it."""
        posts = buffer.posts[field]
        known = self._next_entries.get(field)
        if known is None:
            before = self.before.get(field)
            known = (0 if before is None else bisect_right(posts, before, key=lambda post: post.seq), 0)
        index, part = known
        while index < len(posts):
            post = posts[index]
            # Number 0 is the value with which the run began: no post of a node, so there is nothing to skip.
            entries = () if post.seq and self._skips(buffer, post) else buffer.entries(post)
            if part < len(entries):
                break
            index, part = index + 1, 0
        else:
            self._next_entries[field] = (index, part)
            return None
        self._next_entries[field] = (index, part + take)
        entry = entries[part]
        if take:
            self.reads[field] = entry.seq
            if post.execution in buffer.pending:
                self.used.add(post.execution)
        plain = thaw(entry.value)
        return entry if plain is entry.value else entry._replace(value=plain)

    def _skips(self, buffer: LiveBuffer, post: RecordedPost) -> bool:
        """Whether a post is not for this reader: withdrawn, its own, or of an earlier visit of its node."""
        if post.seq in buffer.withdrawn or post.execution == self.execution:
            return True
        return post.node == self.node and contains_commit(self.position, post.execution)

    def exchange(self) -> Exchange | None:
        """The numbers of its posts and how far it has read, as its commit stores them; None for neither."""
        if not self.posts and not self.reads:
            return None
        posts = {field: tuple([seq for seq, _ in posts]) for field, posts in self.posts.items()}
        return Exchange(posts, dict(self.reads))

    def committed(
        self, schema: Schema, patch: Mapping[str, Any], state: ImmutableState
    ) -> tuple[dict[str, Any], ImmutableState]:
        """The patch and the state of the execution, with its posts added."""
        found: dict[str, Any] = {}
        for field, posts in self.posts.items():
            found[field] = posts[0][1] if len(posts) == 1 else Updates(*[update for _, update in posts])
        return {**patch, **found}, schema.replay(state, found)


class PostConflict(NamedTuple):
    """The effect of a new post on the heads of its keys.

    Attributes:
        over: the numbers of the posts that it replaces; None for a field in which all posts are kept.
        unread: the posts by other nodes that it would overwrite unread (the lost-update check), by key.
    """

    over: tuple[int, ...] | None
    unread: dict[Any, list[RecordedPost]]


class LiveBuffer:
    """The posts to the live fields of a run, those of earlier attempts included.

    Attributes:
        seq: the number of the last post.
        posts: by field, in the order of arrival, withdrawn posts included; the first is the value with which the run
            begins.
        withdrawn: the numbers of the withdrawn posts.
        pending: the posts of executions that are not committed, by execution.
    """

    def __init__(self, schema: Schema, state: ImmutableState, posts: Mapping[int, RecordedPost | None]) -> None:
        self.seq = 0
        self.posts: dict[str, list[RecordedPost]] = {}
        self.withdrawn: set[int] = set()
        self.pending: dict[str, list[RecordedPost]] = {}
        self._schema = schema
        self._entries: dict[tuple[str, int], tuple[LiveEntry, ...]] = {}  # a cache, by field and number of the post
        self._merged: dict[int, Any] = {}  # updates that were merged with other heads, by number of the post
        # By field and key: all posts that are not withdrawn, from which heads are rebuilt; and the heads, by number.
        self._history: dict[tuple[str, Any], list[RecordedPost]] = {}
        self._heads: dict[tuple[str, Any], dict[int, RecordedPost]] = {}
        for field in schema.live_fields:
            latest = schema.reducer(field) is None
            value = latest_value(schema, state, field) if latest else state.raw(field, DELETE)
            self.posts[field] = [RecordedPost(0, field, START, "", value)]
        for seq in sorted(posts):
            post = posts[seq]
            if post is not None and post.field in self.posts:
                self.add(post)
        self.seq = max(posts, default=0)

    def conflicts(self, reader: ReaderCursor, field: str, update: Any) -> PostConflict:
        """The posts that an update would replace, and those that it would overwrite unread."""
        read = reader.reads.get(field, 0)
        over: list[int] = []
        unread: dict[Any, list[RecordedPost]] = {}
        for key in self._keys(field, update):
            for seq, post in self._heads.get((field, key), {}).items():
                if seq <= read or reader.knows(post) or self._repeats(field, key, post, update):
                    over.append(seq)
                else:
                    unread.setdefault(key, []).append(post)
        return PostConflict(tuple(dict.fromkeys(over)) if self._tracked(field) else None, unread)

    def add(self, post: RecordedPost) -> Any:
        """Appends a post; returns the update for the commit of its execution, merged with other heads if declared."""
        field = post.field
        self.seq = post.seq
        self.posts[field].append(post)
        self.pending.setdefault(post.execution, []).append(post)
        update = post.update
        keyed = self._keyed(field) if self._schema.live_fields[field].on_conflict == "merge" else None
        merged: dict[Any, Any] = {}
        for key in self._keys(field, post.update):
            self._history.setdefault((field, key), []).append(post)
            heads = self._heads.setdefault((field, key), {})
            _replace(heads, post)
            if keyed is not None and len(heads) > 1:
                value, *others = [keyed.find(head.update, key) for head in heads.values()]
                for other in others:
                    value = _merged(value, other)
                merged[key] = value
        if keyed is not None and merged:
            values = {key: keyed.find(update, key) for key in self._keys(field, update)}
            update = self._merged[post.seq] = keyed.make_update({**values, **merged})
        return update

    def commit(self, execution: str) -> None:
        """Commits the posts of an execution."""
        self.pending.pop(execution, None)

    def withdraw(self, execution: str) -> list[RecordedPost]:
        """Withdraws the posts of an execution, and restores the heads that they replaced; returns them."""
        posts = self.pending.pop(execution, [])
        self.withdrawn.update([post.seq for post in posts])
        for at in dict.fromkeys((post.field, key) for post in posts for key in self._keys(post.field, post.update)):
            history = self._history[at] = [one for one in self._history[at] if one.seq not in self.withdrawn]
            heads = self._heads[at] = {}
            for one in history:
                _replace(heads, one)
        return posts

    def recorded(self) -> dict[int, RecordedPost | None]:
        """The posts by arrival number; None for a withdrawn one."""
        posts = [post for posts in self.posts.values() for post in posts if post.seq]
        return {post.seq: None if post.seq in self.withdrawn else post for post in posts}

    def entries(self, post: RecordedPost) -> tuple[LiveEntry, ...]:
        """The entries that a reader gets for a post."""
        at = (post.field, post.seq)
        found = self._entries.get(at)
        if found is None:
            parts = self._parts(post) if post.seq else self._of_inputs(post)
            found = tuple([LiveEntry(value, post.node, post.execution, post.seq, key) for key, value in parts])
            self._entries[at] = found
        return found

    def _parts(self, post: RecordedPost) -> Iterable[tuple[Any, Any]]:
        """The keys and values of a post."""
        reducer = self._schema.reducer(post.field)
        update = self._merged.get(post.seq, post.update)
        if reducer is None:
            return ((None, update.value if isinstance(update, Replace) else update),)
        assert reducer.parts is not None  # else the field could not be live
        return reducer.parts(update)

    def _of_inputs(self, post: RecordedPost) -> Iterable[tuple[Any, Any]]:
        """The keys and values with which the run began."""
        if self._schema.reducer(post.field) is None:
            return () if post.update is DELETE else ((None, post.update),)
        return [(part.key, part.value) for part in unattributed_parts(post.update).parts]

    def _tracked(self, field: str) -> bool:
        """Whether posts to a field can conflict, so that their heads are kept."""
        rule = self._schema.live_fields[field].on_conflict
        return rule == "reject" or self._schema.reducer(field) is None or self.by_key(field)

    def _keys(self, field: str, update: Any) -> Iterable[Any]:
        """The keys of a field that an update writes; none if posts to it cannot conflict."""
        if not self._tracked(field):
            return ()
        if not self.by_key(field):
            return _WHOLE
        reducer = self._schema.reducer(field)
        assert reducer is not None
        assert reducer.parts is not None  # what has keys has parts
        return dict.fromkeys(key for key, _ in reducer.parts(update))

    def by_key(self, field: str) -> bool:
        """Whether posts to a field conflict only at the same key. A list that rejects conflicts is one key."""
        reducer = self._schema.reducer(field)
        if reducer is None or reducer.keyed is None:
            return False
        return reducer.kind == "keys" or self._schema.live_fields[field].on_conflict != "reject"

    def _keyed(self, field: str) -> Keyed | None:
        reducer = self._schema.reducer(field)
        return reducer.keyed if reducer is not None and self.by_key(field) else None

    def _repeats(self, field: str, key: Any, post: RecordedPost, update: Any) -> bool:
        """Whether an update has the same message as a post at a key, so that it loses nothing of it."""
        keyed = self._keyed(field)
        if keyed is None or isinstance(update, FrozenDict):
            return False
        return same(keyed.find(post.update, key), keyed.find(update, key))


def single_updates(schema: Schema, node: str, field: str, value: object) -> tuple[object, ...]:
    """The updates of a value, to be posted one by one; refuses a value that would remove other posts."""
    updates = each_update(value)
    latest = schema.reducer(field) is None
    if any(update is DELETE or (isinstance(update, Replace) and not latest) for update in updates):
        instead = "post a value" if latest else "post updates"
        raise NodeOutputError(
            f"node {node!r} writes {value!r} to the live field {field!r}, whose posts are never removed: {instead}, or "
            "run with live=False"
        )
    return updates


def _replace(heads: dict[int, RecordedPost], post: RecordedPost) -> None:
    """Adds a post to the heads of a key, in the place of those that it replaces."""
    if post.over is None:  # of a row that does not name them: see `RecordedPost.over`
        heads.clear()
    for seq in post.over or ():
        heads.pop(seq, None)
    heads[post.seq] = post


def _merged(old: Any, new: Any) -> Any:
    """Two values of one key: mappings merged by key, lists concatenated, otherwise the later value."""
    if isinstance(old, FrozenDict) and isinstance(new, FrozenDict):
        for key, value in new.raw_items():
            old = old.set(key, _merged(old.raw(key), value) if key in old else value)
        return old
    if isinstance(old, FrozenList) and isinstance(new, FrozenList):
        return old.plus(new.raw_items())
    return new
