"""`LiveFields`: the layer of live fields: nodes that run at once read each other's posts before these are committed.

A post is a fact: when `ctx.post` returns it has a number, is in the store, and can be read; it is never taken back. So
a reader depends on no other, and commits at once. A node that fails, is attempted again or asks leaves its posts: they
are part of the commit that its execution makes in the end. `LiveBuffer` holds the posts.

A wait for the next post ends when no one else works: each other execution has ended or waits too. Which of those that
wait goes on first, `scheduler.release_order` decides. After a failure or a question none goes on: a resume calls them
again, since it may bring what they wait for.

What is stored: each post as a row before a reader sees it, with its number and the posts that it replaces; with the
commit of a node the numbers of its posts and how far it has read.

One lock per run, `Together.lock`, guards the buffer, the waiters and the choice of what begins, as in a monitor (Hoare
1974). It is reentrant, since an observer that is called under it may stop the run, and it is never held while a node
works or waits. The locks of the journal and of a time limit are taken inside of it, never around it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple
from weakref import ref

from dspyer.errors import AttemptError, InputError, MergeConflictError, NodeOutputError
from dspyer.events import Exchange, LiveConflict, Posted
from dspyer.ids import whole_execution
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.log.journal import NewRows
from dspyer.log.rows import PostKey, PostRow
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.context import Entries, EntrySource, LiveEntry, Waiter, WaitOutcome, latest_value
from dspyer.nodes.node import Call, Output
from dspyer.nodes.steps import Script, SharedFields
from dspyer.patch import DELETE, Replace, each_update, update_size
from dspyer.reducers import Keyed, Updates
from dspyer.scheduler.lineage import Log
from dspyer.scheduler.provenance import unattributed_parts
from dspyer.scheduler.schedule import Branch, Execution, ReleaseOrder, RunState, contains_commit, plan
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
    """The entries that one attempt has read, and those that it has posted.

    Attributes:
        position: its branch; an empty one for a node that is called without one.
        before: the numbers up to which earlier commits of its node in its lineage have read, by field.
        reads: the numbers up to which it has read, by field, `before` included.
    """

    __slots__ = ("_around", "_counts", "_next_entries", "_own", "before", "execution", "node", "position", "reads")

    def __init__(self, places: tuple[Attempt, ...], before: Mapping[str, int]) -> None:
        self.execution, self.node = places[-1].outer_execution, places[-1].node
        self.position = places[-1].position or _NOWHERE
        # An attempt has its cursor: a reference back would be a cycle.
        self._around, self._own = places[:-1], ref(places[-1])
        self.before = before
        self.reads: dict[str, int] = dict(before)
        self._counts: dict[str, int] = {}  # how often it has posted each value, by digest
        self._next_entries: dict[str, tuple[int, int]] = {}  # by field: index of the post, and of the entry in it

    @property
    def places(self) -> tuple[Attempt, ...]:
        """Its attempt, after those of the nodes in which its graph runs, outermost first."""
        own = self._own()
        assert own is not None  # who reads or posts by it has the attempt
        return (*self._around, own)

    def next_post(self, buffer: LiveBuffer, digest: str, returned: bool) -> PostKey:
        """The key of its next post of a value: that of a post which is there, if an earlier attempt has made it.

        A value that the node has returned counts as posted only if no later post has replaced it: what a node returns
        is what the field has.
        """
        known = buffer.posts_of.get(self.execution, {})
        while True:
            count = self._counts[digest] = self._counts.get(digest, 0) + 1
            key = _places_of(self.places[-1]), f"{digest}.{count}"
            if not (returned and key in known and buffer.has_replaced(known[key])):
                return key

    def knows(self, post: PostRow, depth: int = 0) -> bool:
        """Says of a post that it is its own, or in its lineage, so that it need not be read.

        `depth` is how many graphs around its own the field belongs to.
        """
        if not depth and not post.places:
            return post.execution == self.execution or contains_commit(self.position, post.execution)
        return self._relation(post, depth) is not None

    def _relation(self, post: PostRow, depth: int) -> str | None:
        """The node of its lineage, or of its own execution, that has made a post; None for another one."""
        made_in = post.places or (post.execution,)
        places = self.places
        for place, one in zip(places[len(places) - 1 - depth :], made_in, strict=False):
            if one != place.execution:
                whole = whole_execution(one)
                if whole == place.outer_execution or not contains_commit(place.position or _NOWHERE, whole):
                    return None
                host: Any = place.host
                commits = (entry.commit for entry in host.run.log)
                return next((place.node for commit in commits if (commit.id, commit.node) == (whole, place.node)), "")
        return self.node

    def next(self, buffer: LiveBuffer, field: str, take: bool = True) -> LiveEntry | None:
        """The next entry of a field, None if there is none yet; `take` moves the cursor past it."""
        posts, depth, source = buffer.posts[field], 0, buffer
        if buffer.around:  # most graphs have no field of a graph around
            depth, source = buffer.depth.get(field, 0), buffer.around.get(field, buffer)
        known = self._next_entries.get(field)
        if known is None:
            before = self.before.get(field)
            known = (0 if before is None else bisect_right(posts, before, key=lambda post: post.seq), 0)
        index, part = known
        while index < len(posts):
            post = posts[index]
            # Number 0 is the value with which the run began: no post of a node, so there is nothing to skip.
            entries = () if post.seq and self.skips(post, depth) else source.entries(post)
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

    def skips(self, post: PostRow, depth: int) -> bool:
        """Says of a post that it is not for this reader: of its own execution, or of an earlier visit of its node."""
        if depth or post.places:
            return bool(self._relation(post, depth))
        earlier = post.node == self.node and contains_commit(self.position, post.execution)
        return earlier or post.execution == self.execution


class LiveBuffer:
    """The posts to the live fields of a run, in the order of their arrival, those of earlier attempts included.

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
        seq: the number of the last post.
        posts: by field, in the order of arrival; the first is the value with which the run begins.
        posts_of: by execution, in the order of arrival, by the id of the post.
        recorded: by arrival number.
        around: by field, of those that belong to a graph around, the buffer of that graph; its posts are in `posts`,
            too, and those of this run in `posts_of`.
        depth: of these fields, how many graphs further out that is.
    """

    def __init__(self, schema: Schema, state: ImmutableState, posts: Mapping[int, PostRow]) -> None:
        self.seq = 0
        self.posts: dict[str, list[PostRow]] = {}
        self.posts_of: dict[str, dict[PostKey, PostRow]] = {}
        self.recorded: dict[int, PostRow] = {}
        self.around: dict[str, LiveBuffer] = {}
        self.depth: dict[str, int] = {}
        self._schema = schema
        self._entries: dict[tuple[str, int], tuple[LiveEntry, ...]] = {}  # a cache, by field and number of the post
        self._merged: dict[int, Any] = {}  # updates that were merged with other heads, by number of the post
        # By field and key: the posts that no other post has replaced, by number.
        self._heads: dict[tuple[str, Any], dict[int, PostRow]] = {}
        for field in schema.live_fields:
            latest = schema.reducer(field) is None
            value = latest_value(schema, state, field) if latest else state.raw(field, DELETE)
            self.posts[field] = [PostRow("", (), START, field, 0, "", None, 0.0, {field: value})]
        for seq in sorted(posts):
            if posts[seq].field in self.posts:
                self.add(posts[seq])
        self.seq = max(posts, default=0)

    def conflicts(
        self, reader: ReaderCursor, field: str, update: Any, read: int, depth: int = 0
    ) -> tuple[tuple[int, ...] | None, dict[Any, list[PostRow]]]:
        """The numbers of the posts that an update would replace, and those that it would overwrite unread, by key.

        The numbers are None for a field in which all posts are kept.
        """
        over: list[int] = []
        unread: dict[Any, list[PostRow]] = {}
        for key in self._keys(field, update):
            for seq, post in self._heads.get((field, key), {}).items():
                if seq <= read or reader.knows(post, depth) or self._repeats(field, key, post, update):
                    over.append(seq)
                else:
                    unread.setdefault(key, []).append(post)
        return tuple(dict.fromkeys(over)) if self._tracked(field) else None, unread

    def add(self, post: PostRow) -> Any:
        """Appends a post; returns the update for the commit of its execution, merged with other heads if declared."""
        field = post.field
        self.posts[field].append(post)
        self.recorded[post.seq] = post
        self.posts_of.setdefault(post.execution, {})[post.key] = post
        update = post.update
        keyed = self.keyed(field) if self._schema.live_fields[field].on_conflict == "merge" else None
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

    def has_replaced(self, post: PostRow) -> bool:
        """Says that a later post of the same execution has replaced a part of a post."""
        field = post.field
        if self._schema.reducer(field) is not None and self.keyed(field) is None:
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
            posts.append((post.seq, self.around.get(post.field, self)._merged.get(post.seq, post.update)))
        return found

    def entries(self, post: PostRow) -> tuple[LiveEntry, ...]:
        """The entries that a reader gets for a post."""
        at = (post.field, post.seq)
        found = self._entries.get(at)
        if found is None:
            found = tuple([LiveEntry(one, post.node, post.execution, post.seq, key) for key, one in self._parts(post)])
            self._entries[at] = found
        return found

    def _parts(self, post: PostRow) -> Iterable[tuple[Any, Any]]:
        """The keys and values of a post."""
        reducer = self._schema.reducer(post.field)
        update = self._merged.get(post.seq, post.update)
        if reducer is None:
            value = update.value if post.seq and isinstance(update, Replace) else update
            return () if value is DELETE else ((None, value),)
        if not post.seq:  # the value with which the run began
            return [(part.key, part.value) for part in unattributed_parts(update).parts]
        assert reducer.parts is not None  # else the field could not be live
        return reducer.parts(update)

    def _tracked(self, field: str) -> bool:
        """Says that posts to a field can conflict, so that their heads are kept."""
        rule = self._schema.live_fields[field].on_conflict
        return rule == "reject" or self._schema.reducer(field) is None or self.keyed(field) is not None

    def _keys(self, field: str, update: Any) -> Iterable[Any]:
        """The keys of a field that an update writes; none if posts to it cannot conflict."""
        if not self._tracked(field):
            return ()
        reducer = self._schema.reducer(field)
        if reducer is None or self.keyed(field) is None:
            return _WHOLE
        assert reducer.parts is not None  # what has keys has parts
        return dict.fromkeys(key for key, _ in reducer.parts(update))

    def keyed(self, field: str) -> Keyed | None:
        """The keys of a field at which alone posts conflict; None for one key. A list that rejects conflicts is one."""
        reducer = self._schema.reducer(field)
        if reducer is None or (reducer.kind != "keys" and self._schema.live_fields[field].on_conflict == "reject"):
            return None
        return reducer.keyed

    def _repeats(self, field: str, key: Any, post: PostRow, update: Any) -> bool:
        """Says that an update has the same message as a post at a key, so that it loses nothing of it."""
        keyed = self.keyed(field)
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


def _places_of(attempt: Attempt) -> tuple[str, ...]:
    """The places of its posts: its own if it is an item of a map, or another part of an execution; else none."""
    return () if attempt.execution == attempt.outer_execution else (attempt.execution,)


class Around(NamedTuple):
    """The place of a run that shares live fields with the run around it.

    Attributes:
        attempt: that of the node in which it is.
        shared: the fields.
    """

    attempt: Attempt
    shared: SharedFields

    @property
    def posts(self) -> LivePosts:
        """The posts of the run around."""
        posts: LivePosts = self.attempt.host.together.posts
        return posts


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
        buffer: the posts.
        waiters: the executions that wait for an entry.
        outer: where the run is, if some of its live fields belong to the run around it; else None.
        shared: by field, of those, the posts of the run that it belongs to, and its name there.
        inside: the posts of runs inside of nodes that share fields with this one.
    """

    __slots__ = (
        "_held",
        "_listens",
        "_parked",
        "_read",
        "_run",
        "buffer",
        "inside",
        "lock",
        "outer",
        "schema",
        "shared",
        "waiters",
    )
    place: ClassVar[Place] = "outside"

    def __init__(self, run: Any) -> None:
        graph, start = run.graph, run.run_start
        self.schema = graph.topology.schema
        self.outer: Around | None = None if run.inside is None else run.inside.live
        if self.outer is not None:
            run.together.lock = self.outer.posts.lock  # one lock for all runs that share a field
        self.lock, self._parked = run.together.lock, run.together.parked
        # A module may call a program several times: these runs have the same scope, and not each other's posts.
        posts = {**run.records.posts.pop(run.ids.scope, {}), **start.kept.posts}
        self.buffer = LiveBuffer(self.schema, start.state, posts)
        if run.kept is not None:
            run.kept.posts = self.buffer.recorded  # for the next attempt
        writes = {name: (node.writes or {}).values() for name, node in graph.nodes.items()}
        self.waiters = LiveWaiters(run.together.slots, ReleaseOrder(graph.topology, writes), self._parked)
        self.inside: list[LivePosts] = []
        self.shared: dict[str, tuple[LivePosts, str]] = {}
        self._run: Any = None
        if self.outer is not None:
            self._share(self.outer)
        # Those of them that an agent here is shown posts to.
        self._listens = tuple([field for field in self.shared if self.refuses(field, "reads") is None])
        self._read: dict[str, tuple[int, Mapping[str, int]]] = {}  # by node: the last answer of `_read_before`
        self._held: RunState | None = None  # the run, if ready groups did not start in it though slots were free
        run.together.posts = self
        run.together.each_round.append(self._look)

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
                self.waiters.over = True
                self._abort()
                self._run = None
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
        posts = self.buffer.of_commit(attempt.outer_execution)
        if not posts and attempt.live_cursor is None:
            return None
        with self.lock:
            # What a node has read that has failed counts for nothing. If an earlier attempt alone has used the field,
            # the reads are those of earlier visits, since the next visit looks no further back than here.
            reads = {} if output.targets is not None else self._cursor(attempt).reads
        if not posts and not reads:
            return None
        return Exchange({field: tuple([seq for seq, _ in found]) for field, found in posts.items()}, dict(reads))

    def _abort(self) -> None:
        with self.lock:
            self.waiters.abort()
            self._settle()

    def _look(self, run: Any) -> None:
        """Gives free slots to due readers, now that what may begin has begun."""
        state: RunState = run.run
        free = len(state.running) - len(self._parked) < run.together.slots
        self._held = state if free and plan(state) else None
        self.release(run)

    def release(self, run: Any) -> None:
        """Gives free slots to due readers; if all that runs waits, ends a wait.

        All of them if a resume may bring what they wait for: an execution has failed, asked, was cancelled, or does not
        start. Where the run around can bring it, the node around waits.
        """
        state: RunState = run.run
        waiters, parked = self.waiters, len(self._parked)
        waiters.grant(len(state.running))
        if not waiters.count or parked != len(state.running):
            return
        ready = bool(plan(state))
        if ready and state is not self._held:
            return  # it starts as soon as the driver looks
        if ready or parked != waiters.count or state.failures or state.suspended:
            waiters.abort()
        elif not self._waits_outside():
            waiters.release_first(state.running)

    def park(self, waiter: Waiter, run: Any) -> None:
        """Lets an execution wait; the wait is over at once if the run is."""
        if self.waiters.over or run.stopped or waiter.execution not in run.run.running:
            waiter.outcome = "abort"
            waiter.wake()
            return
        self.waiters.enter(waiter)
        self.release(run)  # it has freed its slot, and may have been the last that worked
        if run.more_to_start:
            run.together.wake()  # the driver may start another execution in the slot

    # --- the run around, if it has some of the live fields

    @property
    def _places(self) -> tuple[Attempt, ...]:
        """The attempts of the nodes in which the run is, outermost first."""
        return () if self.outer is None else (*self.outer.posts._places, self.outer.attempt)

    def _share(self, around: Around) -> None:
        """Takes the posts to the fields that belong to a run around."""
        outer, buffer = around.posts, self.buffer
        for name, field in around.shared.names.items():
            posts, there = self.shared[name] = outer.shared.get(field, (outer, field))
            buffer.posts[name], buffer.around[name] = posts.buffer.posts[there], posts.buffer
            buffer.depth[name] = 1 + outer.buffer.depth.get(field, 0)
        names = {field: name for name, field in around.shared.names.items()}
        for post in outer.buffer.posts_of.get(around.attempt.outer_execution, {}).values():
            if post.field in names and len(post.places) > 1 and post.places[0] == around.attempt.execution:
                self._note(names[post.field], post.places[1:], post)

    def _note(self, field: str, places: tuple[str, ...], post: PostRow) -> None:
        """Notes a post of this run to a field that belongs to a run around; `places` begins with its execution here."""
        execution = whole_execution(places[0])
        places = () if places == (execution,) else places
        own = replace(post, execution=execution, field=field, places=places, patch={field: post.update})
        self.buffer.posts_of.setdefault(execution, {})[own.key] = own

    def refuses(self, field: str, option: str) -> str | None:
        """The node around that may not read, or write, a field; None if all may. What a map calls may not read."""
        if self.outer is None or field not in self.shared:
            return None
        attempt, shared = self.outer
        outer = (shared.reads if option == "reads" else shared.writes).get(field)
        if outer is None or (option == "reads" and attempt.index is not None):
            return attempt.node
        return self.outer.posts.refuses(outer, option)

    def _waits_outside(self) -> bool:
        """Lets the node around wait, and give up its slot, as long as all that run here do.

        False if they wait for no field of the run around.
        """
        if self.outer is None:
            return False
        attempt, reads, waiters = self.outer.attempt, self.outer.shared.reads, self.waiters
        fields = tuple(dict.fromkeys([reads[field] for field in waiters.fields if field in reads]))
        if fields and waiters.outside is None:
            waiters.outside = Waiter(attempt.outer_execution, fields, self._woken, release=self._release_first)
            self.outer.posts.park(waiters.outside, attempt.host)
        return bool(fields)

    def _woken(self) -> None:
        """Goes on, now that the node around has its slot again."""
        outside, self.waiters.outside = self.waiters.outside, None
        if outside is not None and outside.outcome == "abort":
            self.waiters.abort()
        elif self._run is not None:
            self.waiters.grant(len(self._run.run.running))

    def _release_first(self) -> None:
        self.waiters.release_first(self._run.run.running)
        self._settle()

    def _settle(self) -> None:
        """Lets those go on that need no longer wait, and the node around with them."""
        outside = self.waiters.outside
        if outside is None or self.outer is None:
            if self._run is not None:
                self.waiters.grant(len(self._run.run.running))
            return
        outer = self.outer.posts
        if self.waiters.is_due:
            outer.waiters.end_wait(outside.execution, "entry")
        elif self._run is None or self.waiters.count < len(self._run.run.running):
            outer.waiters.leave(outside)
            self.waiters.outside = None
        outer._settle()

    def _arrived(self, posts: LivePosts, field: str, author: str) -> None:
        """Makes the readers of a field due, here and inside of nodes."""
        for name in [field] if posts is self else [name for name, at in self.shared.items() if at == (posts, field)]:
            self.waiters.arrived(name, author)
        for inner in self.inside:
            inner._arrived(posts, field, "")
        self._settle()

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
        state = attempt.position.state if attempt.position is not None else ImmutableState()
        whole = schema.reducer(field) is None
        for update in single_updates(schema, attempt.node, field, value):
            digest = digest_of(field, update)
            with self.lock:
                cursor = self._cursor(attempt)
                key = cursor.next_post(self.buffer, digest, returned)
            commit_id = run.ids.global_id(attempt.execution, key[1])
            # Without the lock: validators and reducers are functions of the user.
            patch, after = schema.commit(state, {field: update}, node=attempt.node, commit_id=commit_id)
            frozen = _latest(after.raw(field, DELETE)) if whole else patch[field]
            self._add(cursor, field, key, frozen, commit_id)
        if run.events.queue is not None:
            run.events.queue.wait_for_room()  # without the lock
        return True

    def _add(self, cursor: ReaderCursor, field: str, key: PostKey, update: Any, commit_id: str) -> None:
        """Adds a post to the run that the field belongs to, and notes it in those between."""
        posts, at = self, field
        between: list[tuple[LivePosts, str, tuple[str, ...]]] = []
        places, name = key
        while at in posts.shared:
            around, places = posts.outer, places or (cursor.places[-1].execution,)
            assert around is not None
            between.append((posts, at, places))
            attempt, posts, at = around.attempt, around.posts, around.shared.names[at]
            places = (attempt.execution, *places)
            state = attempt.position.state if attempt.position is not None else ImmutableState()
            patch, after = posts.schema.commit(state, {at: update}, node=attempt.node, commit_id=commit_id)
            update = patch[at] if posts.schema.reducer(at) is not None else _latest(after.raw(at, DELETE))
        with self.lock:
            post = posts._numbered(cursor, at, (places, name), update, cursor.reads.get(field, 0))
            if post is not None:
                for inner, own, inside in between:
                    inner._note(own, inside, post)

    def _numbered(self, cursor: ReaderCursor, field: str, key: PostKey, update: Any, read: int) -> PostRow | None:
        """Writes a post to a field of this run with its number; None if an earlier attempt has made it."""
        attempt, *inside = cursor.places[len(self._places) :]
        run: Any = attempt.host
        buffer, execution, limit = self.buffer, attempt.outer_execution, cursor.places[-1].host.limit
        if key in buffer.posts_of.get(execution, ()):  # an earlier attempt has posted it
            return None
        over, unread = buffer.conflicts(cursor, field, update, read, len(inside))
        if unread:
            self._report_conflict(attempt, field, unread)
        now = time.time()
        with nullcontext() if limit is None else limit.writing():  # else the next attempt would not know it
            buffer.seq += 1  # not used again, also if the write fails: it may have taken effect
            scope, seq = run.ids.scope, buffer.seq
            reducer = self.schema.reducer(field)
            how = "replace" if reducer is None else reducer.name
            places, name = key
            post = PostRow(execution, scope, attempt.node, field, seq, name, over, now, {field: update}, how, places)
            if run.records.journal is not None:  # before a reader can see it: what was read must survive a crash
                run.records.journal.write(NewRows([post.row()]))
            update = buffer.add(post)
        run.publish(
            Posted(field, attempt.node, attempt.branch, execution, post.seq, update_size(update), update, how, now)
        )
        self._arrived(self, field, "" if inside else execution)
        return post

    def _report_conflict(self, attempt: Attempt, field: str, unread: Mapping[Any, list[PostRow]]) -> None:
        """Publishes the lost updates that a post would cause; refuses the post where the field says `"reject"`."""
        rule = self.schema.live_fields[field].on_conflict
        by_key = self.buffer.keyed(field) is not None
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

    def with_posts(
        self, attempt: Attempt, patch: dict[str, Any], after: ImmutableState
    ) -> tuple[dict[str, Any], ImmutableState]:
        """A patch and the state after it, with the posts of an execution."""
        found: dict[str, Any] = {}
        for field, posts in self.buffer.of_commit(attempt.outer_execution).items():
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
            return FieldReader(self, self._cursor(attempt), attempt.host, (field,))

    # --- what an agent asks for

    def unread(self, after: Mapping[str, int]) -> list[tuple[str, LiveEntry]]:
        """The entries of others behind a number, of each live field that the node around reads, in their order.

        Args:
            after: by field, the number of the last entry that the agent has been shown. What it has posted itself, also
                in earlier visits of its node, is not shown.
        """
        found, buffer = [], self.buffer
        for field in self._listens:
            posts, seen = buffer.posts[field], after.get(field, 0)
            if posts[-1].seq > seen:
                reader = ReaderCursor(self._places, {})
                with self.lock:
                    new = posts[bisect_right(posts, max(seen, 0), key=lambda post: post.seq) :]
                    others = [post for post in new if not reader.skips(post, buffer.depth[field] - 1)]
                    found += [(field, entry) for post in others for entry in buffer.around[field].entries(post)]
        found.sort(key=lambda one: one[1].seq)
        return [(field, entry._replace(value=thaw(entry.value))) for field, entry in found]

    def wait(self, attempt: Attempt, after: Mapping[str, int], timeout: float | None = None) -> Entries:
        """A loop whose next step waits for an entry that `unread` would give, and gives it.

        It ends when no one else works; then, and for an agent that reads no live field, `next(loop, None)` is None.
        It raises `TimeoutError` if nothing came in time, and `Interrupt` if a resume may bring it.
        """
        fields = self._listens
        with self.lock:
            cursor = self._cursor(attempt)
        source = UnreadPosts(self, cursor, attempt.host, fields, after) if fields else EntrySource()
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
            before = {} if branch is None else self._read_before(run.log, branch.head, attempt.node)
            cursor = attempt.live_cursor = ReaderCursor((*self._places, attempt), before)
        return cursor

    def _read_before(self, log: Log, head: int, node: str) -> Mapping[str, int]:
        """The entries that the visits of a node in the lineage of a commit have read."""
        known = self._read.get(node)
        if known is not None and known[0] == head:  # all branches of a fork have the same
            return known[1]
        found: dict[str, int] = {}
        stack, seen = [head], set[int]()
        while stack:
            at = stack.pop()
            if at < 0 or at in seen:
                continue
            seen.add(at)
            commit = log[at].commit
            if commit.node == node and commit.live is not None and (commit.live.reads or commit.failure is None):
                # It has what the visits before it have read. Several visits are the last ones where branches joined.
                for field, seq in commit.live.reads.items():
                    found[field] = max(seq, found.get(field, 0))
            else:
                stack += log[at].parents
        self._read[node] = head, found
        return found


@dataclass(frozen=True, slots=True)
class FieldReader(EntrySource):
    """The entries of one live field for one execution, as they arrive."""

    live: LivePosts
    cursor: ReaderCursor
    run: Any
    fields: tuple[str, ...]

    def has_next(self) -> bool:
        """Says that there is an entry."""
        return self.cursor.next(self.live.buffer, self.fields[0], take=False) is not None

    def next_entry(self) -> LiveEntry | None:
        """The next entry; None if there is none yet."""
        with self.live.lock:
            return self.cursor.next(self.live.buffer, self.fields[0])

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Begins to wait for the next entry. A wait that is over at once has its outcome already."""
        waiter = Waiter(self.cursor.execution, self.fields, wake)
        with self.live.lock:
            if self.has_next():
                waiter.outcome = "entry"
                wake()
            else:
                self.live.park(waiter, self.run)
        return waiter

    def end_wait(self, waiter: Waiter, timed_out: bool) -> None:
        """Ends a wait; one whose time is over as soon as a slot is free."""
        with self.live.lock:
            if timed_out:
                self.live.waiters.end_wait(waiter.execution, "timeout")
            else:
                self.live.waiters.leave(waiter)
            self.live._settle()


@dataclass(frozen=True, slots=True)
class UnreadPosts(FieldReader):
    """The entries that an agent has not been shown; they stay unread."""

    after: Mapping[str, int]

    def has_next(self) -> bool:
        """Says that there is an entry."""
        return self.next_entry() is not None

    def next_entry(self) -> LiveEntry | None:
        """The first of them; None if there is none yet."""
        return next((entry for _, entry in self.live.unread(self.after)), None)


class LiveWaiters:
    """The executions that wait for an entry, and the slots of `max_concurrency`. Guarded by the lock of the run.

    A waiting execution is parked: it holds no slot. When an entry arrives, the field closes or the time is over, it is
    *due*: it continues as soon as a slot is free, before another execution begins. So a run with one slot and a reader
    that started first does not deadlock.

    Attributes:
        over: whether waits end at once, since the run has ended.
        outside: the node around, while all that run here wait, and none of them gets a slot, since it has none.
    """

    def __init__(self, slots: int, order: ReleaseOrder, parked: dict[str, str]) -> None:
        self.over = False
        self.outside: Waiter | None = None
        self._slots = slots
        self._order = order
        self._parked = parked  # with what it waits for, by execution: these, and those that were left open
        self._waiting: dict[str, Waiter] = {}  # by execution; without those that are due
        self._due: deque[tuple[Waiter, WaitOutcome]] = deque()

    @property
    def count(self) -> int:
        """The number of executions that wait for an entry."""
        return len(self._waiting)

    @property
    def is_due(self) -> bool:
        """Says that one of them waits for its slot alone."""
        return bool(self._due)

    @property
    def fields(self) -> list[str]:
        """The fields that they wait for."""
        return [field for waiter in self._waiting.values() for field in waiter.fields]

    def enter(self, waiter: Waiter) -> None:
        """Adds an execution that has nothing to read."""
        if waiter.execution in self._waiting:
            raise AttemptError(
                f"the execution {waiter.execution} waits for two live fields at once: write one loop after the other"
            )
        self._waiting[waiter.execution] = waiter
        fields = waiter.fields
        self._parked[waiter.execution] = fields[0] if len(fields) == 1 else ", ".join(fields)

    def leave(self, waiter: Waiter) -> None:
        """Removes an execution that does not wait any more."""
        if self._waiting.get(waiter.execution) is waiter:
            self._out(waiter.execution)
        elif waiter.outcome == "waiting":
            self._due = deque([due for due in self._due if due[0] is not waiter])

    def forget(self, execution: str) -> None:
        """Removes an execution that has ended; after a timeout, its thread may still wait, and ends by itself."""
        if execution in self._waiting:
            self._out(execution)
        elif self._due:
            self._due = deque([due for due in self._due if due[0].execution != execution])

    def arrived(self, field: str, author: str) -> None:
        """Makes the readers of a field due, except the author of the new entry."""
        for name in [name for name, waiter in self._waiting.items() if field in waiter.fields and name != author]:
            self.end_wait(name, "entry")

    def end_wait(self, execution: str, outcome: WaitOutcome) -> None:
        """Makes an execution due, if it waits for an entry."""
        if execution in self._waiting:
            self._due.append((self._out(execution), outcome))

    def grant(self, running: int) -> None:
        """Assigns free slots to due executions, first come first served; `running` is how many run, waiting or not."""
        while self._due and self.outside is None and running - len(self._parked) - len(self._due) < self._slots:
            waiter, outcome = self._due.popleft()
            waiter.outcome = outcome
            waiter.wake()

    def release_first(self, running: PersistentMap[str, Execution]) -> None:
        """Ends one wait, now that no one else works."""
        first = self._order.first([(running[name], waiter.fields) for name, waiter in self._waiting.items()])
        if (release := self._waiting[first.id].release) is not None:
            release()
        else:
            self.end_wait(first.id, "closed")
        self.grant(len(running))

    def abort(self) -> None:
        """Ends all waits, also for a slot: what holds it may never have been called. A resume calls the nodes again."""
        for waiter in (*self._waiting.values(), *[waiter for waiter, _ in self._due]):
            waiter.outcome = "abort"
            waiter.wake()
        for execution in list(self._waiting):
            self._out(execution)
        self._due.clear()

    def _out(self, execution: str) -> Waiter:
        del self._parked[execution]
        return self._waiting.pop(execution)


def _latest(value: Any) -> Any:
    """A value as an update that replaces the old one: a mapping or None alone would be merged or ignored."""
    return Replace(value) if isinstance(value, Mapping) or value is None else value
