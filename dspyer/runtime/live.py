"""A session with live fields: nodes that run at once read each other's posts before these are committed.

A post is a fact: when `ctx.post` returns it has a number, is in the store, and can be read; it is never taken back. So
a reader depends on no other, and commits at once. A node that fails, is attempted again or asks leaves its posts: they
are part of the commit that its execution makes in the end. `live_buffer` holds the posts.

A wait for the next post ends when no one else works: each other execution has ended or waits too. Which of those that
wait goes on first, `scheduler.release_order` decides. After a failure or a question none goes on: a resume calls them
again, since it may bring what they wait for.

What is stored: each post as a row before a reader sees it, with its number and the posts that it replaces; with the
commit of a node the numbers of its posts and how far it has read.

One lock per session guards the buffer, the waiters and the scheduling, as in a monitor (Hoare 1974). It is reentrant,
since an observer that is called under it may stop the run, and it is never held while a node works or waits. The
journal's lock is taken inside of it, never around it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as made
from threading import RLock
from typing import Any

from dspyer.dspy_module.tracing import Steps
from dspyer.errors import AttemptError, AttemptOverError, InputError, MergeConflictError
from dspyer.events import BranchPath, Commit, Exchange, Heard, LiveConflict, Posted
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.live_access import EntrySource, LiveEntry, Waiter, WaitOutcome
from dspyer.nodes.node import Call
from dspyer.patch import DELETE, Replace, update_size
from dspyer.persistence.execution_records import RecordedPost
from dspyer.persistence.rows import PostHeader, post_row
from dspyer.reducers import Updates
from dspyer.runtime.live_buffer import LiveBuffer, ReaderCursor, digest_of, single_updates
from dspyer.runtime.session import Session
from dspyer.scheduler.release_order import ReleaseOrder, WaitingReader
from dspyer.scheduler.run_state import Branch, Execution, Transition
from dspyer.scheduler.schedule import plan
from dspyer.state import ImmutableState
from dspyer.stopping import OVER


class LiveSession(Session):
    """A session whose nodes read each other's posts.

    Attributes:
        lock: guards the posts, the waiters and the scheduling.
        buffer: the posts.
        waiters: the executions that run, and which of them wait for an entry.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        topology = self.graph.topology
        self.lock = RLock()
        # A module may call a program several times: these runs have the same scope, and not each other's posts.
        posts = {**self.records.posts.pop(self.ids.scope, {}), **self.run_start.kept.posts}
        self.buffer = LiveBuffer(topology.schema, self.run_start.state, posts)
        writes = {name: (node.writes or {}).values() for name, node in self.graph.nodes.items()}
        self.waiters = LiveWaiters(self.max_concurrency, ReleaseOrder(topology, writes))
        self._node_reads: dict[str, NodeReads] = {}  # by node
        self._wake: Callable[[], None] | None = None
        self._ready_are_held = False  # ready groups did not start though slots are free: `interrupt_after`, or a stop
        for entry in self.run.log:
            self._note_reads(entry.commit)

    @property
    def max_running(self) -> int:
        """How many executions may run at once: those that wait hold no slot."""
        return self.max_concurrency + self.waiters.parked

    @contextmanager
    def driving(self, wake: Callable[[], None]) -> Iterator[None]:
        """Lets the session wake its driver; at the end, releases every reader that still waits."""
        self._wake = wake
        with self.stop_signal.on_stop(self._on_stop):
            try:
                yield
            finally:
                with self.lock:
                    self.waiters.end()

    # --- what a driver calls, as in `Session`, under the lock

    def start_ready(self) -> list[Execution]:
        """Begins the executions that may start. Due readers come first: whatever frees a slot calls `grant` at once."""
        with self.lock:
            started = super().start_ready()
            for execution in started:
                self.waiters.running[execution.id] = execution
            self._ready_are_held = bool(plan(self.run)) and len(self.run.running) < self.max_running
            self._release_waiters()
        return started

    def finish(self, execution: Execution, outcome: Transition | BaseException, steps: Steps) -> None:
        """Passes the outcome of an execution to the scheduler. What it frees, `start_ready` gives to others."""
        with self.lock:
            self.waiters.forget(execution.id)
            self._ready_are_held = False  # not known before the next `start_ready`
            committed = len(self.run.log)
            super().finish(execution, outcome, steps)
            for index in range(committed, len(self.run.log)):
                self._note_reads(self.run.log[index].commit)
            self.waiters.grant()

    def _note_reads(self, commit: Commit) -> None:
        if commit.live is not None:
            self._node_reads.setdefault(commit.node, NodeReads()).add(commit)

    def keep_commits(self) -> None:
        """Keeps the posts as well: the next attempt continues with them."""
        with self.lock:
            super().keep_commits()
            kept = self.records.kept.get(self.ids.scope)
            if kept is not None and self.kept is not None and not self.kept.handed_over:
                self.records.kept[self.ids.scope] = kept._replace(posts=self.buffer.recorded())

    def hand_over(self) -> None:
        """Takes no posts any more, either."""
        with self.lock:
            super().hand_over()

    def leave_open(self, execution: Execution) -> None:
        """Keeps a cancelled execution as running: `resume` calls it again."""
        with self.lock:
            self.waiters.forget(execution.id)
            self._release_waiters()

    def _on_stop(self, reason: str) -> None:
        """Ends all waits: a resume calls the nodes again. What works comes to its end."""
        del reason
        with self.lock:
            self.waiters.abort()

    def _release_waiters(self) -> None:
        """Gives free slots to due readers; if all that runs waits, ends a wait.

        All of them if a resume may bring what they wait for: an execution has failed, asked, was cancelled, or does not
        start.
        """
        waiters, run = self.waiters, self.run
        waiters.grant()
        if not waiters.all_wait:
            return
        ready = bool(plan(run))
        if ready and not self._ready_are_held:
            return  # it starts as soon as the driver looks
        cancelled = len(run.running) != len(waiters.running)
        if ready or cancelled or run.failures or run.suspended:
            waiters.abort()
        else:
            waiters.release_first()

    # --- what nodes call, from any thread

    def post_live(self, attempt: Attempt, field: str, value: object, returned: bool = False) -> bool:
        """Posts to a live field; other nodes can read the post when this returns. False if the field is not live.

        `returned`: whether the node has returned the value.
        """
        schema = self.graph.topology.schema
        if field not in schema.live_fields:
            return False
        state = attempt.position.state if attempt.position is not None else ImmutableState()
        whole = schema.reducer(field) is None
        for update in single_updates(schema, attempt.node, field, value):
            digest = digest_of(field, update)
            with self.lock:
                cursor = self._cursor(attempt)
                name = cursor.next_post(self.buffer, digest, returned)
            commit_id = self.ids.global_id(attempt.outer_execution, name)
            # Without the lock: validators and reducers are functions of the user.
            patch, after = schema.commit(state, {field: update}, node=attempt.node, commit_id=commit_id)
            with self.lock:
                self._add(attempt, cursor, field, name, _latest(after.raw(field, DELETE)) if whole else patch[field])
        if self.events.queue is not None:
            self.events.queue.wait_for_room()  # without the lock
        return True

    def _add(self, attempt: Attempt, cursor: ReaderCursor, field: str, name: str, update: Any) -> None:
        if self.handed_over:
            raise AttemptOverError(f"{attempt.who}: {OVER}")
        buffer, execution = self.buffer, cursor.execution
        if name in buffer.posts_of.get(execution, ()):  # an earlier attempt has posted it
            return
        over, unread = buffer.conflicts(cursor, field, update)
        if unread:
            self._report_conflict(attempt, field, unread)
        now = time.time()
        buffer.seq += 1  # not used again, also if the write fails: it may have taken effect
        post = RecordedPost(buffer.seq, field, attempt.node, execution, name, update, over)
        if self.records.journal is not None:  # before a reader can see it: what was read must survive a crash
            header = PostHeader(execution, self.ids.scope, post.node, field, post.seq, name, post.over, now)
            self.records.journal.write([post_row(header, update)])
        update = buffer.add(post)
        reducer = self.graph.topology.schema.reducer(field)
        how = "replace" if reducer is None else reducer.name
        self.publish(
            Posted(field, attempt.node, attempt.branch, execution, post.seq, update_size(update), update, how, now)
        )
        self.waiters.arrived(field, execution)

    def _report_conflict(self, attempt: Attempt, field: str, unread: Mapping[Any, list[RecordedPost]]) -> None:
        """Publishes the lost updates that a post would cause; refuses the post where the field says `"reject"`."""
        rule = self.graph.topology.schema.live_fields[field].on_conflict
        by_key = self.buffer.by_key(field)
        for key, posts in unread.items():
            named = key if by_key else None
            self.publish(LiveConflict(field, named, attempt.node, posts[-1].node, posts[-1].seq, rule))
        if rule == "reject":
            key, posts = next(iter(unread.items()))
            raise MergeConflictError(
                f"node {attempt.node!r} posts to the live field {field!r}{f', key {key!r},' if by_key else ''} "
                f"and has not read what {posts[-1].node!r} posted there before (seq {posts[-1].seq}): read "
                f"ctx.live({field!r}) up to there, then post again",
                (field, key) if by_key else (field,),
                (posts[-1].node, attempt.node),
            )

    def given(self, call: Call, updates: Mapping[str, object]) -> Mapping[str, object]:
        """What a node has posted and returned, but for live fields, which get it at once."""
        updates, live = super().given(call, updates), self.graph.topology.schema.live_fields
        for field in [name for name in updates if name in live]:
            self.post_live(call.context.delegate, field, updates[field], returned=True)
        return {name: update for name, update in updates.items() if name not in live}

    def live_entries(self, attempt: Attempt, field: str) -> EntrySource:
        """The entries of a live field, for the execution of `attempt`."""
        if field not in self.graph.topology.schema.live_fields:
            raise InputError(
                f"node {attempt.node!r} listens to {field!r}, which is not live: write Annotated[..., {field}'s "
                "reducer, live] in the schema, or read it with ctx.view"
            )
        with self.lock:
            return FieldReader(self, self._cursor(attempt), field)

    def wait(self, cursor: ReaderCursor, field: str, wake: Callable[[], object]) -> Waiter:
        """Begins to wait for the next entry of a field. A wait that is over at once has its outcome already."""
        waiter = Waiter(cursor.execution, field, wake)
        with self.lock:
            if cursor.next(self.buffer, field, take=False) is not None:
                waiter.outcome = "entry"
            elif self.waiters.over or self.stopped or cursor.execution not in self.waiters.running:
                waiter.outcome = "abort"
            else:
                self.waiters.enter(waiter)
                self._release_waiters()  # the waiter has freed its slot, and may have been the last that worked
                if self._wake is not None and self.more_to_start:
                    self._wake()  # the driver may start another execution in the slot
                return waiter
            wake()
        return waiter

    def executions(self) -> Sequence[Execution]:
        """The executions whose nodes are running, waiting ones too."""
        with self.lock:
            return tuple(self.waiters.running.values())

    def waits_for(self, execution: str) -> str:
        """The live field that an execution waits for; "" if it does not wait."""
        with self.lock:
            return self.waiters.field_of(execution)

    def folded(
        self, call: Call, updates: Mapping[str, object], whole: bool
    ) -> tuple[Mapping[str, Any], ImmutableState]:
        """The patch and state of an execution, with its posts added."""
        schema = self.graph.topology.schema
        patch, after = self.committed(call, updates, whole)
        found: dict[str, Any] = {}
        for field, posts in self.buffer.of_commit(call.context.delegate.outer_execution).items():
            found[field] = posts[0][1] if len(posts) == 1 else Updates(*[update for _, update in posts])
        if found:
            patch, after = {**patch, **found}, schema.replay(after, found)
        schema.check_state_limit(call.context.node, call.state, patch, after)
        return patch, after

    def exchange(self, execution: Execution, attempt: Attempt | None) -> Exchange | None:
        """The posts of an execution, and how far an attempt has read, as its commit stores them; None for neither."""
        posts = self.buffer.of_commit(execution.id)
        reads = {} if attempt is None or attempt.live_cursor is None else attempt.live_cursor.reads
        if not posts and not reads:
            return None
        return Exchange({field: tuple([seq for seq, _ in found]) for field, found in posts.items()}, dict(reads))

    def _cursor(self, attempt: Attempt) -> ReaderCursor:
        name = attempt.outer_execution
        if name not in self.waiters.running:
            raise AttemptError(
                f"node {attempt.node!r} (execution {attempt.local_id}) has ended, and something that it has started "
                "still uses its ctx: wait for that before the node returns"
            )
        cursor: ReaderCursor | None = attempt.live_cursor
        if cursor is None:
            branch, reads = attempt.position, self._node_reads.get(attempt.node)
            before = {} if branch is None or reads is None else reads.before(branch)
            cursor = attempt.live_cursor = ReaderCursor(name, attempt.node, attempt.branch, branch, before)
        return cursor


class FieldReader:
    """The entries of one live field for one execution (an `EntrySource`)."""

    def __init__(self, session: LiveSession, cursor: ReaderCursor, field: str) -> None:
        self._session = session
        self._cursor = cursor
        self._field = field

    def next_entry(self) -> LiveEntry | None:
        """The next entry; None if there is none yet."""
        session, cursor = self._session, self._cursor
        with session.lock:
            entry = cursor.next(session.buffer, self._field)
            if entry is not None and session.graph.topology.schema.live_fields[self._field].show_reads:
                session.publish(Heard(self._field, cursor.node, cursor.path, cursor.execution, entry.seq, entry.author))
            return entry

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Begins to wait for the next entry; calls `wake` when the wait is over."""
        return self._session.wait(self._cursor, self._field, wake)

    def time_out(self, waiter: Waiter) -> None:
        """Ends a wait whose time is over, as soon as a slot is free."""
        with self._session.lock:
            self._session.waiters.end_wait(waiter.execution, "timeout")
            self._session.waiters.grant()

    def stop_waiting(self, waiter: Waiter) -> None:
        """Removes a waiter."""
        with self._session.lock:
            self._session.waiters.leave(waiter)


class LiveWaiters:
    """The executions that wait for an entry, and the slots of `max_concurrency`. Guarded by the session's lock.

    A waiting execution holds no slot. When an entry arrives, the field closes or the time is over, it is *due*: it
    continues as soon as a slot is free. So a run with one slot and a reader that started first does not deadlock.

    Attributes:
        running: the executions whose nodes run, waiting or not, by id.
        over: whether waits end at once, since the run has ended.
    """

    def __init__(self, slots: int, order: ReleaseOrder) -> None:
        self.running: dict[str, Execution] = {}
        self.over = False
        self._slots = slots
        self._order = order
        self._waiting: dict[str, Waiter] = {}  # by execution; without those that are due
        self._of_field: dict[str, dict[str, Waiter]] = {}  # the same, by field
        self._due: deque[tuple[Waiter, WaitOutcome]] = deque()

    @property
    def parked(self) -> int:
        """How many executions run and hold no slot."""
        return len(self._waiting) + len(self._due)

    @property
    def all_wait(self) -> bool:
        """Whether something runs, and all of it waits for an entry."""
        return bool(self._waiting) and len(self._waiting) == len(self.running)

    def field_of(self, execution: str) -> str:
        """The field that an execution waits for; "" if it does not wait."""
        waiter = self._waiting.get(execution)
        return "" if waiter is None else waiter.field

    def enter(self, waiter: Waiter) -> None:
        """Adds an execution that has nothing to read."""
        if waiter.execution in self._waiting:
            raise AttemptError(
                f"the execution {waiter.execution} waits for two live fields at once: write one loop after the other"
            )
        self._waiting[waiter.execution] = waiter
        self._of_field.setdefault(waiter.field, {})[waiter.execution] = waiter

    def leave(self, waiter: Waiter) -> None:
        """Removes an execution that does not wait any more."""
        if self._waiting.get(waiter.execution) is waiter:
            self._out(waiter)
        elif waiter.outcome == "waiting":
            self._due = deque([due for due in self._due if due[0] is not waiter])

    def forget(self, execution: str) -> None:
        """Removes an execution that has ended; after a timeout, its thread may still wait, and ends by itself."""
        self.running.pop(execution, None)
        waiter = self._waiting.get(execution)
        if waiter is not None:
            self._out(waiter)
        elif self._due:
            self._due = deque([due for due in self._due if due[0].execution != execution])

    def arrived(self, field: str, author: str) -> None:
        """Makes the readers of a field due, except the author of the new entry."""
        if waiters := self._of_field.get(field):
            for waiter in [waiter for name, waiter in waiters.items() if name != author]:
                self.end_wait(waiter.execution, "entry")
            self.grant()

    def end_wait(self, execution: str, outcome: WaitOutcome) -> None:
        """Makes an execution due, if it waits for an entry."""
        waiter = self._waiting.get(execution)
        if waiter is not None:
            self._out(waiter)
            self._due.append((waiter, outcome))

    def grant(self) -> None:
        """Assigns free slots to due executions, first come first served."""
        while self._due and len(self.running) - self.parked < self._slots:
            waiter, outcome = self._due.popleft()
            waiter.outcome = outcome
            waiter.wake()

    def release_first(self) -> None:
        """Ends one wait, now that no one else works."""
        waiting = [(self.running[name], waiter.field) for name, waiter in self._waiting.items()]
        first = self._order.first([WaitingReader(one.position, one.path, one.id, field) for one, field in waiting])
        self.end_wait(first.execution, "closed")
        self.grant()

    def abort(self) -> None:
        """Ends all waits, also for a slot: what holds it may never have been called. A resume calls the nodes again."""
        for waiter in (*self._waiting.values(), *[waiter for waiter, _ in self._due]):
            waiter.outcome = "abort"
            waiter.wake()
        self._waiting.clear()
        self._of_field.clear()
        self._due.clear()

    def end(self) -> None:
        """Ends all waits, further ones at once: the run has ended."""
        self.over = True
        self.abort()

    def _out(self, waiter: Waiter) -> None:
        del self._waiting[waiter.execution]
        del self._of_field[waiter.field][waiter.execution]


@dataclass(slots=True)
class NodeReads:
    """How far the commits of one node have read, by the path of their branch.

    Attributes:
        commits: the indexes of its commits on each path, ascending.
        reads: for each of these commits the number of the last post read, by field, earlier commits included.
        latest: a cache: the head of the last branch for which `before` was computed, and the result.
    """

    commits: dict[BranchPath, list[int]] = made(default_factory=dict)
    reads: dict[BranchPath, list[Mapping[str, int]]] = made(default_factory=dict)
    latest: tuple[int, Mapping[str, int]] = (-1, {})

    def add(self, commit: Commit) -> None:
        """Adds a commit of the node."""
        if commit.live is not None and commit.live.reads:
            reads = self.reads.setdefault(commit.branch, [])
            self.commits.setdefault(commit.branch, []).append(int(commit.id.rpartition(":")[2]))
            reads.append(_later(reads[-1] if reads else {}, commit.live.reads))

    def before(self, branch: Branch) -> Mapping[str, int]:
        """How far the commits in the lineage of a branch have read. The branches of a fork have the same result."""
        head, found = self.latest
        if head != branch.head:
            found = {}
            for path, commits in self.commits.items():
                count = bisect_left(commits, branch.counts.get(path, 0))
                if count:
                    found = _later(found, self.reads[path][count - 1])
            self.latest = branch.head, found
        return found


def _later(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
    """The higher number of each field."""
    return {**one, **{field: max(seq, one.get(field, 0)) for field, seq in two.items()}}


def _latest(value: Any) -> Any:
    """A value as an update that replaces the old one: a mapping or None alone would be merged or ignored."""
    return Replace(value) if isinstance(value, Mapping) or value is None else value
