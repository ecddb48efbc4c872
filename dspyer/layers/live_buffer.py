"""The posts to the live fields of a run, in the order of their arrival.

A post is a fact: it has a number, and is never taken back, whatever becomes of its execution. Its id is its execution,
its field and value, and which of several equal ones it is. So a later attempt that posts the same again, after a retry,
a crash or a question, gets the post that is there.

A key of a field (the id of a message) is a multi-value register, as in Dynamo (DeCandia et al. 2007) and in the CRDT
literature (Shapiro et al. 2011). A post *replaces* the posts at its key that its author knows: those that it has read,
its own, those in its lineage, and those with the same message. Posts that the author does not know are kept as
further *heads* of the key, which the `on_conflict` of the field merges, rejects or ignores. Which posts a post replaces
is stored with it, so that a resumed run rebuilds the same heads.

Nothing here waits, and nothing is safe without the lock of the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from dspyer.errors import NodeOutputError
from dspyer.events import BranchPath
from dspyer.nodes.live_access import LiveEntry, latest_value
from dspyer.patch import DELETE, Replace, each_update
from dspyer.persistence.execution_records import RecordedPost
from dspyer.reducers import Keyed
from dspyer.scheduler.provenance import unattributed_parts
from dspyer.scheduler.run_state import Branch, contains_commit
from dspyer.scheduler.topology import START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.json import to_json
from dspyer.values.persistent import PersistentMap

_WHOLE = (object(),)
"""The one key of a field that is written as a whole."""

_NOWHERE = Branch((), ((),), ImmutableState(), -1, "", -1, PersistentMap())


class ReaderCursor:
    """How far one attempt has read, and what it has posted.

    Attributes:
        position: its branch; an empty one for a node that is called without one.
        before: the numbers up to which earlier commits of its node in its lineage have read, by field.
        reads: the numbers up to which it has read, by field, `before` included.
    """

    __slots__ = ("_counts", "_next_entries", "before", "execution", "node", "path", "position", "reads")

    def __init__(
        self, execution: str, node: str, path: BranchPath, position: Branch | None, before: Mapping[str, int]
    ) -> None:
        self.execution = execution
        self.node = node
        self.path = path
        self.position = position or _NOWHERE
        self.before = before
        self.reads: dict[str, int] = dict(before)
        self._counts: dict[str, int] = {}  # how often it has posted each value, by digest
        self._next_entries: dict[str, tuple[int, int]] = {}  # by field: index of the post, and of the entry in it

    def next_post(self, buffer: LiveBuffer, digest: str, returned: bool) -> str:
        """The id of its next post of a value: that of a post which is there, if an earlier attempt has made it.

        A value that the node has returned counts as posted only if no later post has replaced it: what a node returns
        is what the field has.
        """
        known = buffer.posts_of.get(self.execution, {})
        while True:
            count = self._counts[digest] = self._counts.get(digest, 0) + 1
            name = f"{digest}.{count}"
            if not (returned and name in known and buffer.has_replaced(known[name])):
                return name

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
            entries = () if post.seq and self._skips(post) else buffer.entries(post)
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
        plain = thaw(entry.value)
        return entry if plain is entry.value else entry._replace(value=plain)

    def _skips(self, post: RecordedPost) -> bool:
        """Whether a post is not for this reader: of its own execution, or of an earlier visit of its node."""
        earlier = post.node == self.node and contains_commit(self.position, post.execution)
        return earlier or post.execution == self.execution


class LiveBuffer:
    """The posts to the live fields of a run, those of earlier attempts included. A post is never taken back.

    Attributes:
        seq: the number of the last post.
        posts: by field, in the order of arrival; the first is the value with which the run begins.
        posts_of: by execution, in the order of arrival, by the id of the post.
        recorded: by arrival number.
    """

    def __init__(self, schema: Schema, state: ImmutableState, posts: Mapping[int, RecordedPost]) -> None:
        self.seq = 0
        self.posts: dict[str, list[RecordedPost]] = {}
        self.posts_of: dict[str, dict[str, RecordedPost]] = {}
        self.recorded: dict[int, RecordedPost] = {}
        self._schema = schema
        self._entries: dict[tuple[str, int], tuple[LiveEntry, ...]] = {}  # a cache, by field and number of the post
        self._merged: dict[int, Any] = {}  # updates that were merged with other heads, by number of the post
        # By field and key: the posts that no other post has replaced, by number.
        self._heads: dict[tuple[str, Any], dict[int, RecordedPost]] = {}
        for field in schema.live_fields:
            latest = schema.reducer(field) is None
            value = latest_value(schema, state, field) if latest else state.raw(field, DELETE)
            self.posts[field] = [RecordedPost(0, field, START, "", "", value)]
        for seq in sorted(posts):
            if posts[seq].field in self.posts:
                self.add(posts[seq])
        self.seq = max(posts, default=0)

    def conflicts(
        self, reader: ReaderCursor, field: str, update: Any
    ) -> tuple[tuple[int, ...] | None, dict[Any, list[RecordedPost]]]:
        """The numbers of the posts that an update would replace, and those that it would overwrite unread, by key.

        The numbers are None for a field in which all posts are kept.
        """
        read = reader.reads.get(field, 0)
        over: list[int] = []
        unread: dict[Any, list[RecordedPost]] = {}
        for key in self._keys(field, update):
            for seq, post in self._heads.get((field, key), {}).items():
                if seq <= read or reader.knows(post) or self._repeats(field, key, post, update):
                    over.append(seq)
                else:
                    unread.setdefault(key, []).append(post)
        return tuple(dict.fromkeys(over)) if self._tracked(field) else None, unread

    def add(self, post: RecordedPost) -> Any:
        """Appends a post; returns the update for the commit of its execution, merged with other heads if declared."""
        field = post.field
        self.posts[field].append(post)
        self.recorded[post.seq] = post
        self.posts_of.setdefault(post.execution, {})[post.id] = post
        update = post.update
        keyed = self._keyed(field) if self._schema.live_fields[field].on_conflict == "merge" else None
        merged: dict[Any, Any] = {}
        for key in self._keys(field, post.update):
            heads = self._heads.setdefault((field, key), {})
            for seq in post.over or ():
                heads.pop(seq, None)
            heads[post.seq] = post
            if keyed is not None and len(heads) > 1:
                value, *others = [keyed.find(head.update, key) for head in heads.values()]
                for other in others:
                    value = _merged(value, other)
                merged[key] = value
        if keyed is not None and merged:
            values = {key: keyed.find(update, key) for key in self._keys(field, update)}
            update = self._merged[post.seq] = keyed.make_update({**values, **merged})
        return update

    def has_replaced(self, post: RecordedPost) -> bool:
        """Whether a later post of the same execution has replaced a part of a post."""
        field = post.field
        if self._schema.reducer(field) is not None and not self.by_key(field):
            return False
        keys = set(self._keys(field, post.update))
        later = [one for one in self.posts_of[post.execution].values() if one.seq > post.seq and one.field == field]
        return any(not keys.isdisjoint(self._keys(field, one.update)) for one in later)

    def of_commit(self, execution: str) -> dict[str, list[tuple[int, Any]]]:
        """The posts of an execution, by field, as its commit has them: numbers and updates.

        Those of all its attempts; without a reducer a commit has the latest value only.
        """
        found: dict[str, list[tuple[int, Any]]] = {}
        for post in self.posts_of.get(execution, {}).values():
            posts = found.setdefault(post.field, [])
            if self._schema.reducer(post.field) is None:
                posts.clear()
            posts.append((post.seq, self._merged.get(post.seq, post.update)))
        return found

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


def digest_of(field: str, update: object) -> str:
    """A short text that is the same for the same field and value. Raises what `freeze` raises."""
    if type(update) is str:
        text = f"{field}'{update}"
    elif isinstance(update, Replace):
        text = f"{field}={to_json(update.frozen)}"
    else:
        text = f"{field} {to_json(freeze(update))}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _merged(old: Any, new: Any) -> Any:
    """Two values of one key: mappings merged by key, lists concatenated, otherwise the later value."""
    if isinstance(old, FrozenDict) and isinstance(new, FrozenDict):
        for key, value in new.raw_items():
            old = old.set(key, _merged(old.raw(key), value) if key in old else value)
        return old
    if isinstance(old, FrozenList) and isinstance(new, FrozenList):
        return old.plus(new.raw_items())
    return new
