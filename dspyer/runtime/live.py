"""A session with live fields: nodes that run at once read each other's posts before these are committed.

The rule is that of recoverable schedules with cascading aborts (Bernstein, Hadzilacos and Goodman, "Concurrency Control
and Recovery in Database Systems", 1987, chapter 2), with executions as the transactions:

- A node may read what a running node has posted. It then depends on that node.
- An execution commits after all on which it depends; executions that depend on each other commit together.
- If one of them fails or asks a question, its posts are withdrawn, and all that depend on it are undone: they commit
  nothing, and run again when the run is resumed, or at once if an error edge has taken the failure. So no committed
  value depends on a withdrawn post.

`live_buffer` holds the posts, `scheduler.live_deadlock` decides when a reader can wait no longer.

What is stored: each post as a row before a reader sees it, with its number and the posts that it replaces; with the
commit of a node the numbers of its posts and how far it has read; which posts were withdrawn.

One lock per session guards the buffer, the waiters and the scheduling, as in a monitor (Hoare 1974). It is reentrant,
since an observer that is called under it may stop the run, and it is never held while a node works or waits. The
journal's lock is taken inside of it, never around it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as made
from threading import RLock
from typing import Any

from dspyer.dspy_module.tracing import Steps
from dspyer.errors import AttemptError, InputError, Interrupt, MergeConflictError
from dspyer.events import BranchPath, Commit, Exchange, Heard, LiveConflict, Posted, Withdrawn
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.live_access import EntrySource, LiveEntry, Waiter, WaitOutcome
from dspyer.nodes.node import Call
from dspyer.patch import DELETE, Replace, update_size
from dspyer.persistence.execution_records import RecordedPost
from dspyer.persistence.rows import PostHeader, post_row, withdraw_row
from dspyer.runtime.live_buffer import LiveBuffer, PostConflict, ReaderCursor, single_updates
from dspyer.runtime.run_trace import LostSteps
from dspyer.runtime.session import Session
from dspyer.scheduler.live_deadlock import HeldCommit, PossibleWriter, WaitingReader, WriteReach, readers_to_release
from dspyer.scheduler.run_state import Branch, Execution, RunState, Transition
from dspyer.scheduler.schedule import plan
from dspyer.state import ImmutableState


class LiveSession(Session):
    """A session whose nodes read each other's posts.

    Attributes:
        lock: guards the posts, the waiters and the scheduling.
        buffer: the posts.
        waiters: the executions that run, and which of them wait for an entry.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        graph, topology = self.graph, self.graph.topology
        self.lock = RLock()
        writes = {
            name: [field for field in (node.writes or {}).values() if field in topology.schema.live_fields]
            for name, node in graph.nodes.items()
        }
        self.waiters = LiveWaiters(self.max_concurrency, WriteReach(topology, writes))
        self.buffer = LiveBuffer(topology.schema, self.run_start.state, self._recorded_posts())
        self._cursors: dict[str, ReaderCursor] = {}  # of the executions that are not committed, by id
        self._finished: dict[str, tuple[Execution, Transition, Steps]] = {}  # not committed yet, by id
        self._node_reads: dict[str, NodeReads] = {}  # by node
        self._wake: Callable[[], None] | None = None
        self._to_call_again: list[Execution] = []  # undone by a failure after which the run goes on
        self._ready_are_held = False  # ready groups did not start though slots are free: `interrupt_after`, or a stop
        for entry in self.run.log:
            self._note_commit(entry.commit)
        for execution in list(self.buffer.pending):  # posted before a crash: the node will post again
            self._withdraw(execution)

    def _recorded_posts(self) -> Mapping[int, RecordedPost | None]:
        """The posts of the rows. Of a node that has committed, those that its commit does not name were withdrawn.

        The row that says so comes after the commit, so a copy or a rerun from there does not have it.
        """
        posts = self.records.posts.get(self.scope, {})
        if not posts:
            return posts
        named: dict[str, set[int]] = {}
        for entry in self.run.log:
            live = entry.commit.live
            named[entry.commit.id] = set() if live is None else {seq for seqs in live.posts.values() for seq in seqs}
        return {
            seq: None if post is None or seq not in named.get(post.execution, (seq,)) else post
            for seq, post in posts.items()
        }

    @property
    def more_to_start(self) -> bool:
        """Whether another execution could start at once, if there were a slot for it; also one that is called again."""
        return super().more_to_start or (bool(self._to_call_again) and not self.run.failures)

    @property
    def max_running(self) -> int:
        """How many executions may run at once: those that wait, or wait to be committed, hold no slot."""
        return self.max_concurrency + self.waiters.parked + len(self._finished)

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
            again = self._to_call_again
            if again and not self.run.failures:
                free = max(self.max_concurrency - len(self.waiters.running) + self.waiters.parked, 0)
                self._to_restart += again[:free]
                del again[:free]
            started = super().start_ready()
            for execution in started:
                self.waiters.running[execution.id] = execution
            run = self.run
            self._ready_are_held = bool(plan(run)) and len(run.running) < self.max_running
            self._release_waiters()
        return started

    def finish(self, execution: Execution, outcome: Transition | BaseException, steps: Steps) -> None:
        """Commits a finished execution once all on which it depends have finished; undoes readers of a failed one."""
        with self.lock:
            if self.handed_over:
                return
            self.waiters.forget(execution.id)
            cursor = self._cursors.get(execution.id)
            if cursor is not None and cursor.undone and not isinstance(outcome, BaseException):
                outcome = Interrupt(())
            if isinstance(outcome, BaseException):
                self._withdraw(execution.id)
                self._end_without_commit(execution, outcome, steps)
            elif outcome.failure is not None:
                # Committed at once, whatever the node has read. If it waited for a reader of its own posts, which are
                # withdrawn now, the two would undo each other again and again.
                self._withdraw(execution.id, goes_on=True)
                self._advance(execution, outcome, steps)
            else:
                self._finished[execution.id] = (execution, outcome, steps)
                self._commit_finished(execution.id)
            self._release_waiters()

    def _advance(self, execution: Execution, outcome: Transition | BaseException, steps: Steps) -> None:
        """Passes the outcome of an execution to the scheduler."""
        super().finish(execution, outcome, steps)
        self._cursors.pop(execution.id, None)

    def _end_without_commit(self, execution: Execution, outcome: BaseException, steps: Steps) -> None:
        """Ends an execution that raised or was undone. It is called again if only a failure that was taken undid it."""
        cursor = self._cursors.get(execution.id)
        undone = isinstance(outcome, Interrupt) and not outcome.questions
        if undone and cursor is not None and cursor.goes_on and not self.run.failures and not self.stopped:
            del self._cursors[execution.id]
            self._to_call_again.append(execution)
            if steps:
                self.lost.setdefault(execution.id, []).append(LostSteps(execution.id, 0, 1, steps))
        else:
            self._advance(execution, outcome, steps)

    def _commit_finished(self, name: str) -> None:
        """Commits a finished execution with what it depends on, then what depends on these, if all have finished."""
        work = [name]
        while work:
            together = self._with_dependencies(work.pop())
            posted = self.buffer.pending.keys() & together
            for one in together:
                self._commit(one)
            if posted:
                work += [one for one in self._finished if not posted.isdisjoint(self._cursors[one].used)]

    def _with_dependencies(self, name: str) -> list[str]:
        """The executions to commit together: those on which one depends, directly or not, then itself.

        Empty if one of them still runs.
        """
        # A depth-first search in post-order: dependencies come first, and a cycle is entered once.
        found: dict[str, None] = {}
        seen = {name}
        work = [(name, iter(self._depends_on(name)))] if name in self._finished else []
        while work:
            execution, needs = work[-1]
            for other in needs:
                if other not in self._finished:
                    return []
                if other not in seen:
                    seen.add(other)
                    work.append((other, iter(self._depends_on(other))))
                    break
            else:
                work.pop()
                found[execution] = None
        return list(found)

    def _depends_on(self, execution: str) -> list[str]:
        """The uncommitted executions whose posts an execution has used; sorted, for a reproducible order of commits."""
        cursor = self._cursors.get(execution)
        return [] if cursor is None or not cursor.used else sorted(cursor.used & self.buffer.pending.keys())

    def _commit(self, name: str) -> None:
        execution, outcome, steps = self._finished.pop(name)
        self._advance(execution, outcome, steps)
        self.buffer.commit(name)
        if outcome.live is not None and self.write_error is None:
            self._note_commit(self.run.log[len(self.run.log) - 1].commit)

    def _note_commit(self, commit: Commit) -> None:
        self.buffer.commit(commit.id)
        if commit.live is not None:
            self._node_reads.setdefault(commit.node, NodeReads()).add(commit)

    def keep_commits(self) -> None:
        """Keeps the posts as well: nodes of the next attempt read those of finished ones."""
        super().keep_commits()
        if self.kept is not None:
            self.records.posts[self.scope] = self.buffer.recorded()

    def hand_over(self) -> None:
        """Withdraws the posts of what still runs as well: the next attempt calls it again."""
        with self.lock:
            if not self.handed_over:
                for execution in self.run.running.values():
                    self.leave_open(execution)
            super().hand_over()

    def write_failed(self, error: BaseException) -> None:
        """Returns to the run as it was last written; nothing waits any more."""
        with self.lock:
            super().write_failed(error)
            self._finished.clear()
            self.waiters.end()

    def leave_open(self, execution: Execution) -> None:
        """Keeps a cancelled execution as running, and withdraws its posts: `resume` calls it again."""
        with self.lock:
            self.waiters.forget(execution.id)
            self._withdraw(execution.id)
            self._cursors.pop(execution.id, None)
            self._release_waiters()

    def _on_stop(self, reason: str) -> None:
        """Releases the readers whose possible writers will not start any more."""
        del reason
        with self.lock:
            self._release_waiters()

    def _release_waiters(self) -> None:
        self.waiters.grant()
        if not self.waiters.waits:
            return
        held = [
            HeldCommit(name, execution.position, execution.path, frozenset(self._depends_on(name)))
            for name, (execution, _, _) in self._finished.items()
        ]
        stopping = self.stopped or self._ready_are_held or bool(self.run.failures)
        self.waiters.settle(self.run, stopping, held, self._to_call_again)

    # --- what nodes call, from any thread

    def post_live(self, attempt: Attempt, field: str, value: object) -> bool:
        """Posts to a live field; other nodes can read the post when this returns. False if the field is not live."""
        schema = self.graph.topology.schema
        if field not in schema.live_fields:
            return False
        for update in single_updates(schema, attempt.node, field, value):
            with self.lock:
                cursor = self._cursor(attempt)
                number, cursor.count = cursor.count, cursor.count + 1
            commit_id = self.global_id(attempt.execution, *([str(number)] if number else []))
            state = attempt.position.state if attempt.position is not None else ImmutableState()
            whole = schema.reducer(field) is None
            # Without the lock: validators and reducers are functions of the user.
            patch, after = schema.commit(state, {field: update}, node=attempt.node, commit_id=commit_id)
            with self.lock:
                self._add(attempt, cursor, field, _latest(after.raw(field, DELETE)) if whole else patch[field])
        if self.queue is not None:
            self.queue.wait_for_room()  # without the lock
        return True

    def _add(self, attempt: Attempt, cursor: ReaderCursor, field: str, update: Any) -> None:
        if cursor.undone:
            raise Interrupt(())  # without questions: the node ends now, and runs again on a resume
        buffer = self.buffer
        conflict = buffer.conflicts(cursor, field, update)
        if conflict.unread:
            self._report_conflict(attempt, cursor, field, conflict)
        now = time.time()
        post = RecordedPost(buffer.seq + 1, field, attempt.node, attempt.execution, update, conflict.over)
        if self.journal is not None:  # before a reader can see it: what was read must survive a crash
            header = PostHeader(post.execution, self.scope, post.node, field, post.seq, post.over, now)
            self.journal.write([post_row(header, update)])
        update = buffer.add(post)
        posts = cursor.posts.setdefault(field, [])
        reducer = self.graph.topology.schema.reducer(field)
        if reducer is None:
            posts.clear()  # without a reducer a commit has the latest value only
        posts.append((post.seq, update))
        size = update_size(update)
        how = "replace" if reducer is None else reducer.name
        path, name = attempt.branch, attempt.execution
        self.publish(Posted(field, attempt.node, path, name, post.seq, size, update, how, now))
        self.waiters.arrived(field, attempt.execution)

    def _report_conflict(self, attempt: Attempt, cursor: ReaderCursor, field: str, conflict: PostConflict) -> None:
        """Publishes the lost updates that a post would cause; refuses the post where the field says `"reject"`."""
        schema = self.graph.topology.schema
        rule = schema.live_fields[field].on_conflict
        by_key = self.buffer.by_key(field)
        for key, posts in conflict.unread.items():
            named = key if by_key else None
            self.publish(LiveConflict(field, named, attempt.node, posts[-1].node, posts[-1].seq, rule))
        if rule == "reject" or (rule == "merge" and by_key):
            # This post is refused because of theirs, or merged with them: its execution depends on theirs.
            found = [post.execution for posts in conflict.unread.values() for post in posts]
            cursor.used.update([execution for execution in found if execution in self.buffer.pending])
        if rule == "reject":
            key, posts = next(iter(conflict.unread.items()))
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
            self.post_live(call.context.delegate, field, updates[field])
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
            if self.waiters.over or cursor.undone or cursor.execution not in self.waiters.running:
                waiter.outcome = "abort"
                wake()
                return waiter
            if cursor.next(self.buffer, field, take=False) is not None:
                waiter.outcome = "entry"
                wake()
                return waiter
            self.waiters.enter(waiter)
            self.waiters.grant()  # the waiter has freed its slot
            if not self.waiters.is_open(waiter):  # a cheap test: most waiters have a running writer
                self._release_waiters()
            if self._wake is not None and not self.stopped and self.more_to_start:
                self._wake()  # the driver may start another execution in the slot
        return waiter

    def withdraw_posts(self, attempt: Attempt) -> None:
        """Withdraws the posts of an attempt that raised. What has read them is called again, and counts as no attempt.

        Called in the thread of the node, while the driver waits.
        """
        with self.lock:
            cursor = self._cursors.pop(attempt.execution, None)  # first: of two that read each other, it is not undone
            if cursor is not None:
                cursor.undone = True
            self._withdraw(attempt.execution, goes_on=True)
            self._release_waiters()
            if self._wake is not None and self._to_call_again:
                self._wake()

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
        schema, cursor = self.graph.topology.schema, self._cursors.get(call.context.delegate.outer_execution)
        patch, after = self.committed(call, updates, whole)
        if cursor is not None:
            patch, after = cursor.committed(schema, patch, after)
        schema.check_state_limit(call.context.node, call.state, patch, after)
        return patch, after

    def exchange(self, execution: Execution) -> Exchange | None:
        """The posts of an execution and how far it has read, as its commit stores them; None for neither."""
        cursor = self._cursors.get(execution.id)
        return None if cursor is None else cursor.exchange()

    def _cursor(self, attempt: Attempt) -> ReaderCursor:
        name = attempt.execution
        if name not in self.waiters.running:
            raise AttemptError(
                f"node {attempt.node!r} (execution {attempt.local_id}) has ended, and something that it has started "
                "still uses its ctx: wait for that before the node returns"
            )
        cursor = self._cursors.get(name)
        if cursor is None:
            branch, reads = attempt.position, self._node_reads.get(attempt.node)
            before = {} if branch is None or reads is None else reads.before(branch)
            cursor = self._cursors[name] = ReaderCursor(name, attempt.node, attempt.branch, branch, before)
        return cursor

    def _withdraw(self, execution: str, goes_on: bool = False) -> None:
        """Withdraws the posts of an execution, and undoes all that have used them (cascading abort).

        `goes_on`: the run goes on after the failure of the execution, so what is undone is called again.
        """
        work = [execution]
        while work:
            name = work.pop()
            posts = self.buffer.withdraw(name)
            if not posts:
                continue
            seqs = tuple([post.seq for post in posts])
            if self.journal is not None:
                self.records.queue_row(withdraw_row(self.scope, name, posts[0].node, self.buffer.seq, seqs))
            for field in dict.fromkeys(post.field for post in posts):
                numbers = tuple([post.seq for post in posts if post.field == field])
                self.publish(Withdrawn(field, posts[0].node, name, numbers, self.buffer.seq))
            for other, cursor in list(self._cursors.items()):
                if name in cursor.used and not cursor.undone:
                    cursor.undone, cursor.goes_on = True, goes_on
                    work.append(other)
                    self.waiters.release(other, "abort")
                    if other in self._finished:
                        ended, _, steps = self._finished.pop(other)
                        self._end_without_commit(ended, Interrupt(()), steps)


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
            if cursor.undone:
                raise Interrupt(())
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
            self._session.waiters.release(waiter.execution, "timeout")
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

    def __init__(self, slots: int, reach: WriteReach) -> None:
        self.running: dict[str, Execution] = {}
        self.over = False
        self._slots = slots
        self._reach = reach
        self._waiting: dict[str, Waiter] = {}  # by execution; without those that are due
        self._of_field: dict[str, dict[str, Waiter]] = {}  # the same, by field
        self._due: deque[tuple[Waiter, WaitOutcome]] = deque()

    @property
    def parked(self) -> int:
        """How many executions run and hold no slot."""
        return len(self._waiting) + len(self._due)

    @property
    def waits(self) -> bool:
        """Whether an execution waits for an entry."""
        return bool(self._waiting)

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

    def is_open(self, waiter: Waiter) -> bool:
        """Whether a node that is not waiting may still write the field of a waiter."""
        field, position, waiting = waiter.field, self.running[waiter.execution].position, self._waiting
        works = [execution for name, execution in self.running.items() if name not in waiting]
        return any(self._reach.may_write(PossibleWriter(one.position), field, position) for one in works)

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
                self.release(waiter.execution, "entry")
            self.grant()

    def release(self, execution: str, outcome: WaitOutcome) -> None:
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

    def settle(
        self, run: RunState, stopping: bool, held: Iterable[HeldCommit], again: Collection[Execution] = ()
    ) -> None:
        """Releases the readers that no entry can reach any more.

        `stopping`: whether no ready group will start; `held`: the finished executions that are not committed; `again`:
        those that will be called again.

        If an execution that failed, asked a question, was cancelled or will not start could have written the field, the
        reader is undone, since it lacks entries that a resume would bring. Otherwise its field is closed for it.
        """
        ended = {one.execution for one in held} | {execution.id for execution in again}
        while self._waiting:  # a released reader may be the writer that another one waits for
            waiting = []
            for name, waiter in self._waiting.items():
                execution = self.running[name]
                waiting.append(WaitingReader(name, execution.position, execution.path, waiter.field))
            able = [
                PossibleWriter(execution.position)
                for name, execution in self.running.items()
                if name not in self._waiting
            ]
            # Those that would have continued, but will not in this process:
            unable = [PossibleWriter(execution.position) for execution, _ in run.suspended.values()]
            unable += [PossibleWriter(failure.position) for failure in run.failures]
            unable += [  # cancelled executions
                PossibleWriter(execution.position)
                for name, execution in run.running.items()
                if name not in self.running and name not in ended
            ]
            (unable if stopping else able).extend([PossibleWriter(one.position) for one in (*run.ready, *again)])
            found = readers_to_release(waiting, dict.fromkeys(able), held, self._reach)
            for one in found:
                missed = any(self._reach.may_write(writer, one.field, one.position) for writer in unable)
                self.release(one.execution, "abort" if missed else "closed")
            if not found:
                break
            self.grant()

    def end(self) -> None:
        """Ends all waits with `"abort"`, further ones at once: the run has ended."""
        self.over = True
        for waiter in (*self._waiting.values(), *[waiter for waiter, _ in self._due]):
            waiter.outcome = "abort"
            waiter.wake()
        self._waiting.clear()
        self._of_field.clear()
        self._due.clear()

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
