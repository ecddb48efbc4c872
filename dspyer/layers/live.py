"""`LiveFields`: the layer of live fields: nodes that run at once read each other's posts before these are committed.

A post is a fact: when `ctx.post` returns it has a number, is in the store, and can be read; it is never taken back. So
a reader depends on no other, and commits at once. A node that fails, is attempted again or asks leaves its posts: they
are part of the commit that its execution makes in the end. `LiveField` holds the posts.

A wait for the next post ends when no one else works: each other execution has ended or waits too. Which of those that
wait goes on first, `ReleaseOrder` of the scheduler decides. After a failure or a question none goes on: a resume calls
them again, since it may bring what they wait for.

What is stored: each post as a row before a reader sees it, with its number and the posts that it replaces; with the
commit of a node the numbers of its posts and how far it has read.

One lock per run, `Together.lock`, guards the posts, the waiters and the choice of what begins, as in a monitor (Hoare
1974). It is reentrant, since an observer that is called under it may stop the run, and it is never held while a node
works or waits. The locks of the journal and of a time limit are taken inside of it, never around it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

from dspyer.errors import AttemptError, InputError, MergeConflictError, NodeOutputError
from dspyer.events import Exchange, LiveConflict, Posted
from dspyer.ids import full_id, whole_execution
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.log.journal import NewRows
from dspyer.log.rows import PostRow
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.context import Entries, EntrySource, LiveEntry, Waiter, WaitOutcome, latest_value
from dspyer.nodes.node import Call, Output
from dspyer.nodes.steps import Script, SharedFields
from dspyer.patch import DELETE, Replace, each_update, update_size
from dspyer.reducers import Keyed, Updates
from dspyer.scheduler.lineage import READS
from dspyer.scheduler.provenance import unattributed_parts
from dspyer.scheduler.schedule import ReleaseOrder, RunState, contains_commit, plan
from dspyer.scheduler.topology import START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.json import to_json

PostKey = tuple[tuple[str, ...], str]
"""The executions in which a post is made, from that of the run that has the field on, and its id there."""

_WHOLE = (object(),)
"""The one key of a field that is written as a whole."""


class ReaderCursor:
    """The entries that one attempt has read, and those that it has posted.

    Attributes:
        places: its attempt, after those of the nodes in which its graph runs, outermost first.
        before: the numbers up to which earlier commits of its node in its lineage have read, by field.
        reads: the numbers up to which it has read, by field, `before` included.
    """

    __slots__ = ("_counts", "_next_entries", "before", "places", "reads")

    def __init__(self, places: tuple[Attempt, ...], before: Mapping[str, int]) -> None:
        self.places = places
        self.before = before
        self.reads: dict[str, int] = dict(before)
        self._counts: dict[str, int] = {}  # how often it has posted each value, by digest
        self._next_entries: dict[str, tuple[int, int]] = {}  # by field: index of the post, and of the entry in it

    def next_post(self, field: LiveField, digest: str, returned: bool) -> PostKey:
        """The places and the id of its next post: those of one that is there, if an earlier attempt has made it.

        A value that the node has returned counts as posted only if no later post has replaced it: what a node returns
        is what the field has.
        """
        path = tuple([place.execution for place in self.places[field.level :]])
        while True:
            count = self._counts[digest] = self._counts.get(digest, 0) + 1
            key = path, f"{digest}.{count}"
            if not (returned and field.has_replaced(key)):
                return key

    def knows(self, post: PostRow, level: int, visits: bool = False) -> bool:
        """Says of a post that it is its own, or in its lineage, so that it need not be read.

        Args:
            post: the post.
            level: how many graphs there are around the one to which the field belongs.
            visits: whether only those in its lineage count that an earlier visit of its node has made.
        """
        for depth, (place, one) in enumerate(zip(self.places[level:], post.path, strict=False)):
            if one != place.execution:
                whole, host = whole_execution(one), place.host
                if whole == place.outer_execution:
                    return one == whole
                if place.position is None or not contains_commit(place.position, whole):
                    return False
                if not visits or not depth:  # the node of a post is that of its first place
                    return not visits or post.node == place.node
                commits = (entry.commit for entry in host.run.log)  # type: ignore[attr-defined]
                return any(commit.id == whole and commit.node == place.node for commit in commits)
        return True

    def next(self, field: LiveField, name: str, take: bool = True) -> LiveEntry | None:
        """The next entry of a field, None if there is none yet; `take` moves the cursor past it."""
        posts, known, node = field.posts, self._next_entries.get(name), self.places[field.level].node
        if known is None:
            before = self.before.get(name)
            known = (0 if before is None else bisect_right(posts, before, key=lambda post: post.seq), 0)
        index, part = known
        while index < len(posts):
            post = posts[index]
            entries = () if post.node == node and self.knows(post, field.level, True) else field.entries(post)
            if part < len(entries):
                break
            index, part = index + 1, 0
        else:
            self._next_entries[name] = (index, part)
            return None
        entry, last = entries[part], part + 1 == len(entries)
        self._next_entries[name] = (index + 1, 0) if take and last else (index, part + take)
        if take:
            self.reads[name] = entry.seq
        plain = thaw(entry.value)
        return entry if plain is entry.value else entry._replace(value=plain)


class LiveField:
    """The posts to one live field, in the order of their arrival, those of earlier attempts included.

    A graph inside that has the field in common with the graph around has the same object.

    A post has a number, and is never taken back, whatever becomes of its execution. Its id is its execution, its field
    and value, and which of several equal ones it is. So a later attempt that posts the same again, after a retry, a
    crash or a question, gets the post that is there.

    A key of a field (the id of a message) is a multi-value register, as in Dynamo (DeCandia et al. 2007) and in the
    CRDT literature (Shapiro et al. 2011). A post *replaces* the posts at its key that its author knows: those that it
    has read, its own, those in its lineage, and those with the same message. Posts that the author does not know are
    kept as further *heads* of the key, which the `on_conflict` of the field merges, rejects or ignores. Which posts a
    post replaces is stored with it, so that a resumed run rebuilds the same heads.

    Nothing here waits, and nothing is safe without the lock of the run.

    Attributes:
        name: its name in the graph to which it belongs, and `run` the run of that graph, which numbers the posts.
        level: how many graphs there are around that one.
        posts: in the order of arrival; the first is the value with which the run begins.
        operation: how posts are folded in: the name of the reducer, or `"replace"`.
        keyed: the keys at which alone posts conflict; None for one key. A list that rejects conflicts is one.
    """

    def __init__(self, schema: Schema, name: str, state: ImmutableState, level: int = 0, run: str = "") -> None:
        self.name, self.level, self.run = name, level, run
        self.rule, self.reducer = schema.live_fields[name].on_conflict, (reducer := schema.reducer(name))
        self.operation = "replace" if reducer is None else reducer.name
        is_one = reducer is None or (reducer.kind != "keys" and self.rule == "reject")
        self.keyed: Keyed | None = None if reducer is None or is_one else reducer.keyed
        # Without keys and a rule that refuses them, posts cannot conflict.
        self._tracked = is_one or self.keyed is not None
        value = latest_value(schema, state, name) if reducer is None else state.raw(name, DELETE)
        self.posts = [PostRow("", (), START, name, 0, "", None, 0.0, {name: value})]
        # By each execution in which they were made, with those around it.
        self._posts_of: dict[tuple[str, ...], dict[PostKey, PostRow]] = {}
        self._entries: dict[int, tuple[LiveEntry, ...]] = {}  # a cache, by number of the post
        self._merged: dict[int, Any] = {}  # updates that were merged with other heads, by number of the post
        self._heads: dict[Any, dict[int, PostRow]] = {}  # by key: the posts that no other has replaced, by number

    def has(self, key: PostKey) -> bool:
        """Says that a post is there, which an earlier attempt has made."""
        return key in self._posts_of.get(_whole(key[0]), ())

    def conflicts(
        self, reader: ReaderCursor, update: Any, read: int
    ) -> tuple[tuple[int, ...] | None, dict[Any, list[PostRow]]]:
        """The numbers of the posts that an update would replace, and those that it would overwrite unread, by key.

        The numbers are None for a field in which all posts are kept.
        """
        if not self._tracked:
            return None, {}
        over: list[int] = []
        unread: dict[Any, list[PostRow]] = {}
        for key in self._keys(update):
            for seq, post in self._heads.get(key, {}).items():
                if seq <= read or reader.knows(post, self.level) or self._repeats(key, post, update):
                    over.append(seq)
                else:
                    unread.setdefault(key, []).append(post)
        return tuple(dict.fromkeys(over)), unread

    def add(self, post: PostRow) -> Any:
        """Appends a post; returns the update for the commit of its execution, merged with other heads if declared."""
        self.posts.append(post)
        path = post.path
        for depth in range(1, len(path) + 1):
            self._posts_of.setdefault(_whole(path[:depth]), {})[path, post.id] = post
        update = post.update
        keyed = self.keyed if self.rule == "merge" else None
        merged: dict[Any, Any] = {}
        for key in self._keys(update):
            heads = self._heads.setdefault(key, {})
            for seq in post.over or ():
                heads.pop(seq, None)
            heads[post.seq] = post
            if keyed is not None and len(heads) > 1:
                value, *others = [keyed.find(head.update, key) for head in heads.values()]
                for other in others:
                    value = _merged(value, other)
                merged[key] = value
        if keyed is not None and merged:
            values = {key: keyed.find(update, key) for key in self._keys(update)}
            update = self._merged[post.seq] = keyed.make_update({**values, **merged})
        return update

    def has_replaced(self, key: PostKey) -> bool:
        """Says that a post is there, and a later one of the same execution has replaced a part of it."""
        posts = self._posts_of.get(_whole(key[0]), {})
        post = posts.get(key)
        if post is None or (self.reducer is not None and self.keyed is None):
            return False
        keys = set(self._keys(post.update))
        return any(one.seq > post.seq and not keys.isdisjoint(self._keys(one.update)) for one in posts.values())

    def of_commit(self, path: tuple[str, ...]) -> list[tuple[int, Any]]:
        """The posts of an execution, as its commit has them: numbers and updates.

        Those of all its attempts; without a reducer a commit has the latest value only.
        """
        posts = list(self._posts_of.get(path, {}).values())
        found = posts[-1:] if self.reducer is None else posts
        return [(post.seq, self._merged.get(post.seq, post.update)) for post in found]

    def entries(self, post: PostRow) -> tuple[LiveEntry, ...]:
        """The entries that a reader gets for a post."""
        found = self._entries.get(post.seq)
        if found is None:
            found = tuple([LiveEntry(one, post.node, post.execution, post.seq, key) for key, one in self._parts(post)])
            self._entries[post.seq] = found
        return found

    def _parts(self, post: PostRow) -> Iterable[tuple[Any, Any]]:
        """The keys and values of a post."""
        update = self._merged.get(post.seq, post.update)
        if self.reducer is None:
            value = update.value if post.seq and isinstance(update, Replace) else update
            return () if value is DELETE else ((None, value),)
        if not post.seq:  # the value with which the run began
            return [(part.key, part.value) for part in unattributed_parts(update).parts]
        assert self.reducer.parts is not None  # else the field could not be live
        return self.reducer.parts(update)

    def _keys(self, update: Any) -> Iterable[Any]:
        """The keys of the field that an update writes; none if posts to it cannot conflict."""
        if self.reducer is None or self.keyed is None:
            return _WHOLE if self._tracked else ()
        assert self.reducer.parts is not None  # what has keys has parts
        return dict.fromkeys(key for key, _ in self.reducer.parts(update))

    def _repeats(self, key: Any, post: PostRow, update: Any) -> bool:
        """Says that an update has the same message as a post at a key, so that it loses nothing of it."""
        if self.keyed is None or isinstance(update, FrozenDict):
            return False
        return same(self.keyed.find(post.update, key), self.keyed.find(update, key))


def _whole(path: tuple[str, ...]) -> tuple[str, ...]:
    """The places of an execution of which the last one may be a part."""
    return (*path[:-1], whole_execution(path[-1])) if path[-1].endswith("]") else path


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


class Around(NamedTuple):
    """The place of a run that shares live fields with the run around it.

    Attributes:
        attempt: that of the node in which it is.
        shared: the fields.
        posts: those of the run around.
    """

    attempt: Attempt
    shared: SharedFields
    posts: LivePosts


class LiveFields(Layer):
    """The layer of a graph with live fields, around all other layers of its nodes."""

    __slots__ = ()
    place: ClassVar[Place] = "outside"

    def of(self, run: Any) -> LivePosts | None:
        """Its part in one run, with the posts; None for a run with `live=False`."""
        return LivePosts(run) if run.together.visible else None


class LivePosts(Layer):
    """The posts of one run, and the nodes that wait for them. It does not refer to the run: that would be a cycle.

    Attributes:
        schema: the fields.
        lock: guards all of it, and what begins.
        fields: the posts, by field.
        waiters: the executions that wait for an entry.
        outer: where the run is, if some of its live fields belong to the run around it; else None.
        shared: the names of those in the graph around.
        listens: by field, of those that an agent here is shown posts to, the run that numbers them.
        inside: the posts of runs inside of nodes that share fields with this one.
    """

    place: ClassVar[Place] = "outside"

    def __init__(self, run: Any) -> None:
        graph, start = run.graph, run.run_start
        self.schema = graph.topology.schema
        self.outer: Around | None = None if run.inside is None else run.inside.live
        self.shared: Mapping[str, str] = {}
        self._places: tuple[Attempt, ...] = ()  # of the nodes in which the run is, outermost first
        if self.outer is not None:
            around, self.shared = self.outer.posts, self.outer.shared.names
            run.together.lock = around.lock  # one lock for all runs that share a field
            self._places = (*around._places, self.outer.attempt)
        self.lock = run.together.lock
        own = len(self._places), full_id(run.ids.root, *run.ids.scope)
        self.fields = {
            name: around.fields[self.shared[name]]
            if name in self.shared
            else LiveField(self.schema, name, start.state, *own)
            for name in self.schema.live_fields
        }
        self.listens = {name: self.fields[name].run for name in self.shared if self.refuses(name, "reads") is None}
        # A module may call a program several times: these runs have the same scope, and not each other's posts.
        self._recorded = {**run.records.posts.pop(run.ids.scope, {}), **start.kept.posts}
        for _, post in sorted(self._recorded.items()):
            if post.field in self.fields and post.field not in self.shared:
                self.fields[post.field].add(post)
        run.together.posted = max(self._recorded, default=0)
        if run.kept is not None:
            run.kept.posts = self._recorded  # for the next attempt
        writes = {name: (node.writes or {}).values() for name, node in graph.nodes.items()}
        self._order = ReleaseOrder(graph.topology, writes)
        self.waiters = LiveWaiters(run.together.slots, run.together.parked)
        self.inside: list[LivePosts] = []
        self._run: Any = None
        self._held: RunState | None = None  # the run, if ready groups did not start in it though slots were free
        run.together.posts = self

    # --- what the run calls

    @contextmanager
    def run(self, run: Any) -> Iterator[None]:
        """A block that ends all waits when the run is stopped, and when it has ended: a resume calls the nodes again.

        What works comes to its end.
        """
        around = None if self.outer is None else self.outer.posts.inside
        with run.stop_signal.on_stop(lambda _reason: self._abort()):
            self._run = run
            if around is not None:
                around.append(self)
            try:
                yield
            finally:
                with self.lock:
                    self._run = None
                    self._abort()
                if around is not None:
                    around.remove(self)

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The output of a node, with what it has exchanged."""
        try:
            output: Output = yield from inner(call)
            return output._replace(exchange=self._exchange(output))
        finally:
            with self.lock:
                self.waiters.forget(call.context.delegate.execution)
                self._settle()

    def _exchange(self, output: Output) -> Exchange | None:
        """The posts of an execution, and how far it has read, as its commit stores them; None for neither."""
        attempt = output.call.context.delegate
        posts, cursor = self._of_commit(attempt), attempt.live_cursor
        # What a node has read that has failed counts for nothing.
        reads = {} if cursor is None or output.targets is not None else dict(cursor.reads)
        if not posts and not reads:
            return None
        return Exchange({field: tuple([seq for seq, _ in found]) for field, found in posts.items()}, reads)

    def _abort(self) -> None:
        with self.lock:
            self.waiters.abort()
            self._settle()

    def look(self) -> None:
        """Gives free slots to due readers, now that what may begin has begun. To be called under the lock."""
        if self._run is None:
            return  # a layer around this one has failed to begin
        state: RunState = self._run.run
        free = len(state.running) - len(self.waiters.parked) < self._run.together.slots
        self._held = state if free and plan(state) else None
        self._release()

    def _release(self) -> None:
        """Gives free slots to due readers; if all that runs waits, ends a wait.

        All of them if a resume may bring what they wait for: an execution has failed, asked, was cancelled, or does not
        start. Where the run around can bring it, the node around waits.
        """
        state: RunState = self._run.run
        waiters, parked = self.waiters, len(self.waiters.parked)
        waiters.grant(len(state.running))
        if not waiters.waiting or parked != len(state.running):
            return
        ready = bool(plan(state))
        if ready and state is not self._held:
            return  # it starts as soon as the driver looks
        if ready or parked != len(waiters.waiting) or state.failures or state.suspended:
            waiters.abort()
        elif not self._waits_outside():
            self._release_first()

    def _release_first(self) -> None:
        """Ends one wait, now that no one else works."""
        running, waiting = self._run.run.running, self.waiters.waiting
        first = self._order.first([(running[name], waiter.fields) for name, waiter in waiting.items()]).id
        if (release := waiting[first].release) is not None:
            release()
        else:
            self.waiters.end_wait(first, "closed")
        self._settle()

    def park(self, waiter: Waiter) -> None:
        """Lets an execution wait; the wait is over at once if the run is."""
        run = self._run
        if run is None or run.stopped or waiter.execution not in run.run.running:
            waiter.outcome = "abort"
            waiter.wake()
            return
        self.waiters.enter(waiter)
        self._release()  # it has freed its slot, and may have been the last that worked
        if run.more_to_start:
            run.together.wake()  # the driver may start another execution in the slot

    # --- the run around, if it has some of the live fields

    def refuses(self, field: str, option: str) -> str | None:
        """The node around that may not read, or write, a field; None if all may. What a map calls may not read."""
        if self.outer is None or field not in self.shared:
            return None
        attempt, shared, posts = self.outer
        outer = (shared.reads if option == "reads" else shared.writes).get(field)
        if outer is None or (option == "reads" and attempt.index is not None):
            return attempt.node
        return posts.refuses(outer, option)

    def _waits_outside(self) -> bool:
        """Lets the node around wait, and give up its slot, as long as all that run here do.

        False if they wait for no field of the run around.
        """
        if self.outer is None:
            return False
        attempt, reads, waiters = self.outer.attempt, self.outer.shared.reads, self.waiters
        waited = [field for waiter in waiters.waiting.values() for field in waiter.fields]
        fields = tuple(dict.fromkeys([reads[field] for field in waited if field in reads]))
        if fields and waiters.outside is None:
            waiters.outside = Waiter(attempt.outer_execution, fields, self._woken, release=self._release_first)
            self.outer.posts.park(waiters.outside)
        return bool(fields)

    def _woken(self) -> None:
        """Goes on, now that the node around has its slot again."""
        outside, self.waiters.outside = self.waiters.outside, None
        if outside is not None and outside.outcome == "abort":
            self.waiters.abort()
        self._settle()

    def _settle(self) -> None:
        """Lets those go on that need no longer wait, and the node around with them."""
        outside = self.waiters.outside
        if outside is None or self.outer is None:
            if self._run is not None:
                self.waiters.grant(len(self._run.run.running))
            return
        outer = self.outer.posts
        if self.waiters.due:
            outer.waiters.end_wait(outside.execution, "entry")
        elif self._run is None or len(self.waiters.waiting) < len(self._run.run.running):
            outer.waiters.leave(outside)
            self.waiters.outside = None
        outer._settle()

    def _arrived(self, field: LiveField, author: str) -> None:
        """Makes the readers of a field due, here and inside of nodes."""
        if self.waiters.waiting:
            for name, one in self.fields.items():
                if one is field:
                    self.waiters.arrived(name, author)
            self._settle()
        for inner in self.inside:
            inner._arrived(field, "")

    # --- what nodes call, from any thread

    def post(self, attempt: Attempt, field: str, value: object, returned: bool = False) -> bool:
        """Posts to a live field; other nodes can read the post when this returns. False if the field is not live."""
        schema = self.schema
        run: Any = attempt.host  # a `Session`, which lies above the layers
        if field not in schema.live_fields:
            return False
        if (node := self.refuses(field, "writes")) is not None:
            raise NodeOutputError(
                f"{attempt.who} posts to {field!r}, which is a live field of the graph around, and the node in which "
                f"it runs does not write it there: name it, add_node({node!r}, ..., writes=[...])"
            )
        live = self.fields[field]
        for update in single_updates(schema, attempt.node, field, value):
            digest = digest_of(field, update)
            with self.lock:
                cursor = self._cursor(attempt)
                key = cursor.next_post(live, digest, returned)
            commit_id = run.ids.global_id(attempt.execution, key[1])
            # Without the lock: validators and reducers are functions of the user. Each graph that has the field has its
            # own, up to that to which it belongs.
            posts, at, author, found = self, field, attempt, update
            while True:
                state = author.position.state if author.position is not None else ImmutableState()
                patch, after = posts.schema.commit(state, {at: found}, node=author.node, commit_id=commit_id)
                found = patch[at] if live.reducer is not None else _latest(after.raw(at, DELETE))
                if at not in posts.shared or posts.outer is None:
                    break
                at, author, posts = posts.shared[at], posts.outer.attempt, posts.outer.posts
            with self.lock:
                if not live.has(key):
                    posts._number(author, cursor, live, key, found, cursor.reads.get(field, 0))
        if run.events.queue is not None:
            run.events.queue.wait_for_room()  # without the lock
        return True

    def _number(
        self, author: Attempt, cursor: ReaderCursor, field: LiveField, key: PostKey, update: Any, read: int
    ) -> None:
        """Writes a post to a field of this run with its number."""
        run: Any = author.host
        execution, (path, name) = author.outer_execution, key
        over, unread = field.conflicts(cursor, update, read)
        if unread:
            self._report_conflict(author, field, unread)
        now, limit = time.time(), cursor.places[-1].host.limit
        with nullcontext() if limit is None else limit.writing():  # else the next attempt would not know it
            run.together.posted = seq = run.together.posted + 1  # once only, also if the write fails: it may be there
            places = () if path == (execution,) else path
            place, patch = (execution, run.ids.scope, author.node, field.name), {field.name: update}
            post = PostRow(*place, seq, name, over, now, patch, field.operation, places)
            if run.records.journal is not None:  # before a reader can see it: what was read must survive a crash
                run.records.journal.write(NewRows([post.row()]))
            self._recorded[seq] = post
            update = field.add(post)
        seen = (field.name, author.node, author.branch, execution)
        run.publish(Posted(*seen, seq, update_size(update), update, field.operation, now))
        self._arrived(field, execution if len(path) == 1 else "")

    def _report_conflict(self, attempt: Attempt, live: LiveField, unread: Mapping[Any, list[PostRow]]) -> None:
        """Publishes the lost updates that a post would cause; refuses the post where the field says `"reject"`."""
        field, rule, by_key = live.name, live.rule, live.keyed is not None
        for key, posts in unread.items():
            named = key if by_key else None
            attempt.host.publish(LiveConflict(field, named, attempt.node, posts[-1].node, posts[-1].seq, rule))
        if rule == "reject":
            key, posts = next(iter(unread.items()))
            raise MergeConflictError(
                f"node {attempt.node!r} posts to the live field {field!r}{f', key {key!r},' if by_key else ''} "
                f"and has not read what {posts[-1].node!r} posted there before (seq {posts[-1].seq}): read "
                f"ctx.live({field!r}) up to there, then post again",
                (field, key) if by_key else (field,),
                (posts[-1].node, attempt.node),
            )

    def _of_commit(self, attempt: Attempt) -> dict[str, list[tuple[int, Any]]]:
        """The posts of an execution, by field, as its commit has them: numbers and updates."""
        path = (*[place.execution for place in self._places], attempt.outer_execution)
        posts = {name: field.of_commit(path[field.level :]) for name, field in self.fields.items()}
        return {name: found for name, found in posts.items() if found}

    def with_posts(
        self, attempt: Attempt, patch: dict[str, Any], after: ImmutableState
    ) -> tuple[dict[str, Any], ImmutableState]:
        """A patch and the state after it, with the posts of an execution."""
        found: dict[str, Any] = {}
        for field, posts in self._of_commit(attempt).items():
            found[field] = posts[0][1] if len(posts) == 1 else Updates(*[update for _, update in posts])
        return ({**patch, **found}, self.schema.replay(after, found)) if found else (patch, after)

    def entries(self, attempt: Attempt, field: str) -> EntrySource:
        """The entries of a live field, for the execution of `attempt`."""
        if field not in self.schema.live_fields:
            raise InputError(
                f"node {attempt.node!r} listens to {field!r}, which is not live: write Annotated[..., {field}'s "
                "reducer, live] in the schema, or read it with ctx.view"
            )
        if (node := self.refuses(field, "reads")) is not None:
            raise InputError(
                f"{attempt.who} listens to {field!r}, which is a live field of the graph around, and the node in which "
                f"it runs does not read it there: name it, add_node({node!r}, ..., reads=[...]), unless that is a map, "
                "whose items may post and not read"
            )
        with self.lock:
            return FieldReader(self, attempt, self._cursor(attempt), (field,))

    # --- what an agent asks for

    def unread(self, after: Mapping[str, int]) -> list[tuple[str, LiveEntry]]:
        """The entries of others behind a number, of each live field that the node around reads, in their order.

        Args:
            after: by field, the number of the last entry that the agent has been shown. What it has posted itself, also
                in earlier visits of its node, is not shown.
        """
        reader = self._agent(after)
        with self.lock:
            found = [
                (name, entry)
                for name in self.listens
                for entry in iter(partial(reader.next, self.fields[name], name), None)
            ]
        return sorted(found, key=lambda one: one[1].seq)

    def _agent(self, after: Mapping[str, int]) -> ReaderCursor:
        """The reader that an agent is: the node around it, of which it has been shown entries up to these numbers."""
        return ReaderCursor(self._places, {name: max(after.get(name, 0), 0) for name in self.listens})

    def wait(self, attempt: Attempt, after: Mapping[str, int], timeout: float | None = None) -> Entries:
        """A loop whose next step waits for an entry that `unread` would give, and gives it.

        It ends when no one else works; then, and for an agent that reads no live field, `next(loop, None)` is None.
        It raises `TimeoutError` if nothing came in time, and `Interrupt` if a resume may bring it.
        """
        fields = tuple(self.listens)
        source = FieldReader(self, attempt, self._agent(after), fields) if fields else EntrySource()
        return Entries(source, ", ".join(fields), timeout, attempt.limit or attempt.host.limit)

    def _cursor(self, attempt: Attempt) -> ReaderCursor:
        host: Any = attempt.host
        name, run = attempt.outer_execution, host.run
        if name not in run.running:
            raise AttemptError(
                f"node {attempt.node!r} (execution {attempt.local_id}) has ended, and something that it has started "
                "still uses its ctx: wait for that before the node returns"
            )
        cursor: ReaderCursor | None = attempt.live_cursor
        if cursor is None:
            branch = attempt.position
            before = {} if branch is None else branch.counts.get((READS, attempt.node), {})
            # Not of the attempt itself, which has the cursor: that would be a cycle.
            place = attempt.next(attempt.number)
            cursor = attempt.live_cursor = ReaderCursor((*self._places, place), before)
        return cursor


@dataclass(frozen=True, slots=True)
class FieldReader(EntrySource):
    """The entries of live fields for one execution, as they arrive."""

    live: LivePosts
    attempt: Attempt
    cursor: ReaderCursor
    names: tuple[str, ...]

    def next_entry(self, take: bool = True) -> LiveEntry | None:
        """The next entry; None if there is none yet."""
        with self.live.lock:
            for name in self.names:
                if (entry := self.cursor.next(self.live.fields[name], name, take)) is not None:
                    return entry
            return None

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Begins to wait for the next entry. A wait that is over at once has its outcome already."""
        waiter = Waiter(self.attempt.outer_execution, self.names, wake)
        with self.live.lock:
            if self.next_entry(take=False) is not None:
                waiter.outcome = "entry"
                wake()
            else:
                self.live.park(waiter)
        return waiter

    def end_wait(self, waiter: Waiter, timed_out: bool) -> None:
        """Ends a wait; one whose time is over as soon as a slot is free."""
        with self.live.lock:
            if timed_out:
                self.live.waiters.end_wait(waiter.execution, "timeout")
            else:
                self.live.waiters.leave(waiter)
            self.live._settle()


class LiveWaiters:
    """The executions that wait for an entry, and the slots of `max_concurrency`. Guarded by the lock of the run.

    A waiting execution is parked: it holds no slot. When an entry arrives, the field closes or the time is over, it is
    *due*: it continues as soon as a slot is free, before another execution begins. So a run with one slot and a reader
    that started first does not deadlock.

    Attributes:
        outside: the node around, while all that run here wait, and none of them gets a slot, since it has none.
        waiting: by execution; without those that are due.
        due: those that wait for their slot alone, with the outcome of their wait.
        parked: with what it waits for, by execution: those that wait, and those that were left open.
    """

    def __init__(self, slots: int, parked: dict[str, str]) -> None:
        self.outside: Waiter | None = None
        self.waiting: dict[str, Waiter] = {}
        self.due: dict[Waiter, WaitOutcome] = {}
        self._slots = slots
        self.parked = parked

    def enter(self, waiter: Waiter) -> None:
        """Adds an execution that has nothing to read."""
        if waiter.execution in self.waiting:
            raise AttemptError(
                f"the execution {waiter.execution} waits for two live fields at once: write one loop after the other"
            )
        self.waiting[waiter.execution] = waiter
        self.parked[waiter.execution] = ", ".join(waiter.fields)

    def leave(self, waiter: Waiter) -> None:
        """Removes an execution that does not wait any more."""
        self.due.pop(waiter, None)
        if self.waiting.get(waiter.execution) is waiter:
            del self.waiting[waiter.execution], self.parked[waiter.execution]

    def forget(self, execution: str) -> None:
        """Removes an execution that has ended; after a timeout, its thread may still wait, and ends by itself."""
        for waiter in (self.waiting.get(execution), *self.due):
            if waiter is not None and waiter.execution == execution:
                self.leave(waiter)

    def arrived(self, field: str, author: str) -> None:
        """Makes the readers of a field due, except the author of the new entry."""
        for name in [name for name, waiter in self.waiting.items() if field in waiter.fields and name != author]:
            self.end_wait(name, "entry")

    def end_wait(self, execution: str, outcome: WaitOutcome) -> None:
        """Makes an execution due, if it waits for an entry."""
        if (waiter := self.waiting.get(execution)) is not None:
            self.leave(waiter)
            self.due[waiter] = outcome

    def grant(self, running: int) -> None:
        """Assigns free slots to due executions, first come first served; `running` is how many run, waiting or not."""
        while self.due and self.outside is None and running - len(self.parked) - len(self.due) < self._slots:
            waiter = next(iter(self.due))
            waiter.outcome = self.due.pop(waiter)
            waiter.wake()

    def abort(self) -> None:
        """Ends all waits, also for a slot: what holds it may never have been called. A resume calls the nodes again."""
        for waiter in (*self.waiting.values(), *self.due):
            self.leave(waiter)
            waiter.outcome = "abort"
            waiter.wake()


def _latest(value: Any) -> Any:
    """A value as an update that replaces the old one: a mapping or None alone would be merged or ignored."""
    return Replace(value) if isinstance(value, Mapping) or value is None else value
