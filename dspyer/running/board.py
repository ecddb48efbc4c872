"""The board of a run: what was posted to its live fields, in the order of arrival, and who has read how far.

It only grows: a post that is taken back stays, with a withdrawal behind it. So what somebody has read is one number,
and whoever reads again reads the same. Nothing here waits, and nothing is safe without the lock of the session.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dspyer.durable.memo import Post
from dspyer.errors import NodeOutputError
from dspyer.events import Exchange, Path
from dspyer.nodes import LiveEntry
from dspyer.patch import DELETE, Replace
from dspyer.reducers import Updates
from dspyer.scheduler.provenance import whole_parts
from dspyer.scheduler.topology import START
from dspyer.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values import FrozenDict, FrozenList, thaw


class Ear:
    """One execution at the board: what it has posted, and what it has read.

    Args:
        execution: its id.
        node: its node.
        path: the path of its branch.
        own: the commits of the node in the lineage of the branch.
        before: up to which number these had read, by field.

    Attributes:
        posts: its posts with their numbers, by field.
        reads: up to which number it has read itself, by field.
        places: where it stands, by field.
        pending: what was fetched and not read yet, by field.
    """

    __slots__ = ("before", "execution", "node", "own", "path", "pending", "places", "posts", "reads")

    def __init__(self, execution: str, node: str, path: Path, own: frozenset[str], before: Mapping[str, int]) -> None:
        self.execution = execution
        self.node = node
        self.path = path
        self.own = own | {execution}
        self.before = before
        self.posts: dict[str, list[tuple[int, Any]]] = {}
        self.reads: dict[str, int] = {}
        self.places: dict[str, int] = {}
        self.pending: dict[str, deque[LiveEntry]] = {}

    def next(self, field: str) -> LiveEntry | None:
        """The next entry of a field that was fetched, and notes that it is read. It needs no lock."""
        pending = self.pending.get(field)
        if not pending:
            return None
        entry = pending.popleft()
        self.reads[field] = entry.seq
        plain = thaw(entry.value)
        return entry if plain is entry.value else entry._replace(value=plain)

    def exchange(self) -> Exchange | None:
        """What belongs to the outcome of the execution."""
        if not self.posts and not self.reads:
            return None
        posts = {field: tuple([seq for seq, _ in posts]) for field, posts in self.posts.items()}
        return Exchange(posts, dict(self.reads))

    def folded(
        self, schema: Schema, patch: Mapping[str, Any], state: ImmutableState
    ) -> tuple[dict[str, Any], ImmutableState]:
        """The patch and the state of the execution with its posts."""
        found: dict[str, Any] = {}
        for field, posts in self.posts.items():
            found[field] = posts[0][1] if len(posts) == 1 else Updates(*[update for _, update in posts])
        return {**patch, **found}, schema.replay(state, found)


class Board:
    """What was posted to the live fields of a run.

    Args:
        schema: the fields.
        state: the state with which the run begins.
        posts: what was posted in earlier attempts, as it arrived.
    """

    def __init__(self, schema: Schema, state: ImmutableState, posts: Iterable[Post] = ()) -> None:
        self.seq = 0
        self._schema = schema
        self._posts: dict[str, list[Post]] = {}
        self._entries: dict[int, tuple[LiveEntry, ...]] = {}
        self._latest: dict[tuple[str, Any], Post] = {}
        for field in schema.live:
            self._posts[field] = [Post(0, field, START, "", state.raw(field, DELETE))]
        for post in posts:
            if post.field in self._posts:
                self.add(post)

    def add(self, post: Post) -> None:
        """Puts a post or a withdrawal at the end."""
        self._posts[post.field].append(post)
        self._entries[post.seq] = self._entries_of(post)
        self.seq = max(self.seq, post.seq)
        if not post.withdraws:
            for key in self._keys(post.field, post.update):
                self._latest[post.field, key] = post

    def standing(self, execution: str | None = None) -> dict[str, list[Post]]:
        """The posts that were not taken back, by execution.

        Args:
            execution: which one; None for all.
        """
        found: dict[int, Post] = {}
        for posts in self._posts.values():
            for post in posts[1:]:
                if post.withdraws:
                    found.pop(post.withdraws, None)
                elif execution is None or post.execution == execution:
                    found[post.seq] = post
        by_execution: dict[str, list[Post]] = {}
        for seq in sorted(found):
            by_execution.setdefault(found[seq].execution, []).append(found[seq])
        return by_execution

    def withdraw(self, posts: Iterable[Post]) -> list[Post]:
        """Takes posts back; gives the withdrawals."""
        withdrawals = []
        for post in posts:
            withdrawal = Post(self.seq + 1, post.field, post.node, post.execution, None, post.seq)
            self.add(withdrawal)
            withdrawals.append(withdrawal)
            for key in self._keys(post.field, post.update):
                if self._latest.get((post.field, key)) is post:
                    del self._latest[post.field, key]
        return withdrawals

    def is_ahead_of(self, ear: Ear, field: str) -> bool:
        """Whether somebody who listens has not come to the end of a field."""
        return bool(ear.pending.get(field)) or ear.places.get(field, 0) < len(self._posts[field])

    def fetch(self, ear: Ear, field: str) -> None:
        """Hands somebody all that has come, to be read one by one."""
        posts = self._posts[field]
        place = ear.places.get(field)
        if place is None:
            before = ear.before.get(field)
            place = 0 if before is None else bisect_right(posts, before, key=lambda post: post.seq)
        pending = ear.pending.setdefault(field, deque())
        for post in posts[place:]:
            if post.execution not in ear.own:
                pending.extend(self._entries[post.seq] if post.seq else self._entries_of(post))
        ear.places[field] = len(posts)

    def unread(self, ear: Ear, field: str, update: Any, behind: Callable[[], frozenset[str]]) -> list[tuple[Any, Post]]:
        """The latest entries of others that somebody writes over without having read them, with their keys.

        Args:
            ear: who writes.
            field: the field.
            update: what it writes.
            behind: gives the commits in its lineage, whose entries it has in its state.
        """
        read = max(ear.reads.get(field, 0), ear.before.get(field, 0))
        found = []
        for key in self._keys(field, update):
            latest = self._latest.get((field, key))
            if latest is None or latest.seq <= read or latest.execution in ear.own or latest.execution in behind():
                continue
            found.append((key, latest))
        return found

    def merged(self, update: FrozenDict[Any, Any], unread: Iterable[tuple[Any, Post]]) -> FrozenDict[Any, Any]:
        """An update of keys, each value merged with the one that its author has not read."""
        for key, post in unread:
            update = update.set(key, _merged(post.update.raw(key), update.raw(key)))
        return update

    def _keys(self, field: str, update: Any) -> Iterable[Any]:
        """What of a field an update writes to, where two writes may be in conflict."""
        reducer, mark = self._schema.reducer(field), self._schema.live[field]
        if reducer is not None and reducer.shape == "keys" and isinstance(update, FrozenDict):
            return update
        return (None,) if mark.on_conflict == "reject" else ()

    def _entries_of(self, post: Post) -> tuple[LiveEntry, ...]:
        if post.withdraws:
            taken = self._entries.get(post.withdraws, ())
            return tuple([entry._replace(seq=post.seq, withdraws=post.withdraws) for entry in taken])
        reducer = self._schema.reducer(post.field)
        if not post.seq:
            parts: Iterable[tuple[Any, Any]] = [(part.key, part.value) for part in whole_parts(post.update).parts]
        else:
            assert reducer is not None  # a live field has one with parts
            assert reducer.parts is not None
            parts = reducer.parts(post.update)
        return tuple([LiveEntry(value, post.node, post.execution, post.seq, key) for key, value in parts])


def single_updates(node: str, field: str, value: object) -> tuple[object, ...]:
    """The updates that are posted one by one.

    Raises:
        NodeOutputError: for a value that would throw away what others have posted.
    """
    updates: tuple[object, ...] = value.updates if isinstance(value, Updates) else (value,)
    if any(update is DELETE or isinstance(update, Replace) for update in updates):
        raise NodeOutputError(
            f"node {node!r} writes {value!r} to the live field {field!r}, which only grows while others listen: post "
            "updates, or run with live=False"
        )
    return updates


def _merged(old: Any, new: Any) -> Any:
    """Two values of one key: mappings by key, lists one after the other, of others the later one."""
    if isinstance(old, FrozenDict) and isinstance(new, FrozenDict):
        for key, value in new.raw_items():
            old = old.set(key, _merged(old.raw(key), value) if key in old else value)
        return old
    if isinstance(old, FrozenList) and isinstance(new, FrozenList):
        return old.plus(new.raw_items())
    return new
