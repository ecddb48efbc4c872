"""A run with live fields: running siblings see each other's posts and wait for them.

What is recorded: each post as a row before anybody sees it, with its number and the posts that it replaces; with the
commit of a node the numbers of its posts and how far it has read; and which posts were withdrawn. `board` says what
becomes of posts, `scheduler.closing` when a loop ends. All of this happens under one lock, and so does scheduling.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from dspyer.patch import DELETE, Replace, update_size
from dspyer.persistence.execution_records import RecordedPost
from dspyer.persistence.rows import post_row, withdraw_row
from dspyer.runtime.live_buffer import LiveBuffer, Meeting, ReaderCursor, single_updates
from dspyer.runtime.session import Session
from dspyer.scheduler.live_deadlock import HeldCommit, PossibleWriter, WaitingReader, WriteReach, readers_to_release
from dspyer.scheduler.run_state import Branch, Execution, RunState, Transition
from dspyer.scheduler.schedule import plan
from dspyer.state import ImmutableState

MANY = 1_000_000


@dataclass(slots=True)
class Visits:
    """How far the commits of one node have read, by the path of their branch.

    Attributes:
        places: the indexes of its commits on each path.
        reads: up to which number each had read, by field, those before it on the path included.
    """

    places: dict[BranchPath, list[int]] = made(default_factory=dict)
    reads: dict[BranchPath, list[Mapping[str, int]]] = made(default_factory=dict)
    latest: tuple[int, Mapping[str, int]] = (-1, {})

    def add(self, commit: Commit) -> None:
        """Notes a commit."""
        if commit.live is not None and commit.live.reads:
            reads = self.reads.setdefault(commit.branch, [])
            self.places.setdefault(commit.branch, []).append(int(commit.id.rpartition(":")[2]))
            reads.append(_later(reads[-1] if reads else {}, commit.live.reads))

    def before(self, branch: Branch) -> Mapping[str, int]:
        """How far those in the lineage of a branch have read. Copies of one branch ask for the same."""
        head, found = self.latest
        if head != branch.head:
            found = {}
            for path, places in self.places.items():
                count = bisect_left(places, branch.counts.get(path, 0))
                if count:
                    found = _later(found, self.reads[path][count - 1])
            self.latest = branch.head, found
        return found


class Listener:
    """One execution that listens to one live field."""

    def __init__(self, session: LiveSession, reader: ReaderCursor, field: str) -> None:
        self._session = session
        self._reader = reader
        self._field = field

    def next_entry(self) -> LiveEntry | None:
        """The next entry, if it is there."""
        session, reader = self._session, self._reader
        with session.lock:
            if reader.undone:
                raise Interrupt(())
            entry = reader.next(session.board, self._field)
            if entry is not None and session.graph.topology.schema.live_fields[self._field].show_reads:
                session.publish(Heard(self._field, reader.node, reader.path, reader.execution, entry.seq, entry.author))
            return entry

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Waits for the next entry."""
        return self._session.wait(self._reader, self._field, wake)

    def time_out(self, waiter: Waiter) -> None:
        """Its time is over."""
        with self._session.lock:
            self._session.room.release(waiter.execution, "timeout")
            self._session.room.grant()

    def stop_waiting(self, waiter: Waiter) -> None:
        """Waits no longer."""
        with self._session.lock:
            self._session.room.leave(waiter)


class LiveSession(Session):
    """A run whose live fields are live.

    Attributes:
        lock: held for short, never while a node works.
        board: what was posted.
        room: who waits.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        graph, topology = self.graph, self.graph.topology
        self.lock = RLock()
        writes = {
            name: [field for field in (node.writes or {}).values() if field in topology.schema.live_fields]
            for name, node in graph.nodes.items()
        }
        self.room = LiveWaiters(graph.max_concurrency, WriteReach(topology, writes))
        self.board = LiveBuffer(topology.schema, self.run_start.state, self.records.posts.get(self.scope, {}))
        self._readers: dict[str, ReaderCursor] = {}
        self._done: dict[str, tuple[Execution, Transition, Steps]] = {}
        self._visits: dict[str, Visits] = {}
        self._nudge: Callable[[], None] | None = None
        self._stands = False
        for entry in self.run.log:
            self._note(entry.commit)
        for execution in list(self.board.pending):  # of an earlier attempt that came to no end
            self._withdraw(execution)

    @property
    def most_at_once(self) -> int:
        """How many executions may have begun at once: those who wait, or have ended, hold no slot."""
        return self.graph.max_concurrency + self.room.parked + len(self._done)

    @property
    def most_threads(self) -> int:
        """How many threads may be needed for them: `start_ready` bounds them."""
        return MANY

    @contextmanager
    def driven(self, nudge: Callable[[], None]) -> Iterator[None]:
        """Lets a driver be called when something may start; at its end nothing waits any more.

        Args:
            nudge: makes the driver look, from any thread.
        """
        self._nudge = nudge
        with self.stop_signal.on_stop(self._halted):
            try:
                yield
            finally:
                with self.lock:
                    self.room.end()

    # --- scheduling, under the lock

    def start_ready(self) -> list[Execution]:
        """Starts what may start. What has something to read comes first."""
        with self.lock:
            started = super().start_ready()
            for execution in started:
                self.room.running[execution.id] = execution
            run = self.run
            self._stands = bool(plan(run)) and len(run.running) < self.most_at_once
            self._settle()
        return started

    def finish(self, execution: Execution, outcome: Transition | BaseException, steps: Steps) -> None:
        """Folds a finished execution in, once all have committed whose posts it has used."""
        with self.lock:
            self.room.running.pop(execution.id, None)
            reader = self._readers.get(execution.id)
            if reader is not None and reader.undone and not isinstance(outcome, BaseException):
                outcome = Interrupt(())
            if isinstance(outcome, BaseException):
                self._withdraw(execution.id)
                self._fold(execution, outcome, steps)
            else:
                self._done[execution.id] = (execution, outcome, steps)
                self._commit_done(execution.id)
            self._settle()

    def _fold(self, execution: Execution, outcome: Transition | BaseException, steps: Steps) -> None:
        """Puts what has become of an execution into the run."""
        super().finish(execution, outcome, steps)
        self._readers.pop(execution.id, None)

    def _commit_done(self, name: str) -> None:
        """Commits an execution that has ended, and all that waited for it, if nothing is missing that they need."""
        work = [name]
        while work:
            together = self._complete(work.pop())
            posted = self.board.pending.keys() & together
            for one in together:
                self._commit(one)
            if posted:
                work += [one for one in self._done if not posted.isdisjoint(self._readers[one].used)]

    def _complete(self, name: str) -> list[str]:
        """An execution that has ended with all that it needs, those first; nothing if one of them has not ended."""
        found: dict[str, None] = {}
        seen = {name}
        work = [(name, iter(self._needs(name)))] if name in self._done else []
        while work:
            execution, needs = work[-1]
            for other in needs:
                if other not in self._done:
                    return []
                if other not in seen:
                    seen.add(other)
                    work.append((other, iter(self._needs(other))))
                    break
            else:
                work.pop()
                found[execution] = None
        return list(found)

    def _needs(self, execution: str) -> list[str]:
        """The executions that must commit before one that has ended, in the order of their names."""
        reader = self._readers.get(execution)
        return [] if reader is None or not reader.used else sorted(reader.used & self.board.pending.keys())

    def _commit(self, name: str) -> None:
        execution, outcome, steps = self._done.pop(name)
        self._fold(execution, outcome, steps)
        self.board.commit(name)
        if outcome.live is not None and self.broken is None:
            self._note(self.run.log[len(self.run.log) - 1].commit)

    def _note(self, commit: Commit) -> None:
        self.board.commit(commit.id)
        if commit.live is not None:
            self._visits.setdefault(commit.node, Visits()).add(commit)

    def lose(self, error: BaseException) -> None:
        """Goes back to what was written: the store failed."""
        with self.lock:
            super().lose(error)
            self._done.clear()
            self.room.end()

    def leave(self, execution: Execution) -> None:
        """Leaves an execution open that was cut off. What it has posted is withdrawn: it will be posted again."""
        with self.lock:
            self.room.running.pop(execution.id, None)
            self._withdraw(execution.id)
            self._readers.pop(execution.id, None)
            self._settle()

    def _halted(self, reason: str) -> None:
        """Lets those give way who wait for what does not start any more."""
        del reason
        with self.lock:
            self._settle()

    def _settle(self) -> None:
        self.room.grant()
        if not self.room.waits:
            return
        held = [
            HeldCommit(name, execution.position, execution.path, frozenset(self._needs(name)))
            for name, (execution, _, _) in self._done.items()
        ]
        self.room.settle(self.run, self.stopped or self._stands or bool(self.run.failures), held)

    # --- what nodes do, from any thread

    def post_live(self, attempt: Attempt, field: str, value: object) -> bool:
        """Posts to a live field: siblings see it when this returns."""
        schema = self.graph.topology.schema
        if field not in schema.live_fields:
            return False
        for update in single_updates(schema, attempt.node, field, value):
            with self.lock:
                reader = self._reader(attempt)
                number, reader.count = reader.count, reader.count + 1
            commit_id = self.global_id(attempt.execution, *([str(number)] if number else []))
            state = attempt.position.state if attempt.position is not None else ImmutableState()
            whole = schema.reducer(field) is None
            patch, after = schema.commit(state, {field: update}, node=attempt.node, commit_id=commit_id)
            with self.lock:
                self._add(attempt, reader, field, _latest(after.raw(field, DELETE)) if whole else patch[field])
        return True

    def _add(self, attempt: Attempt, reader: ReaderCursor, field: str, update: Any) -> None:
        if reader.undone:
            raise Interrupt(())
        board = self.board
        meeting = board.meets(reader, field, update)
        if meeting.unread:
            self._meet(attempt, reader, field, meeting)
        post = RecordedPost(board.seq + 1, field, attempt.node, attempt.execution, update, meeting.over)
        if self.journal is not None:
            self.journal.write([post_row(self.scope, post.execution, post.node, field, post.seq, update, post.over)])
        update = board.add(post)
        posts = reader.posts.setdefault(field, [])
        reducer = self.graph.topology.schema.reducer(field)
        if reducer is None:
            posts.clear()  # the latest value is all that its commit has
        posts.append((post.seq, update))
        size = update_size(update)
        how = "replace" if reducer is None else reducer.name
        path, name, now = attempt.branch, attempt.execution, time.time()
        self.publish(Posted(field, attempt.node, path, name, post.seq, size, update, how, now))
        self.room.came(field, attempt.execution)

    def _meet(self, attempt: Attempt, reader: ReaderCursor, field: str, meeting: Meeting) -> None:
        """Says that a post meets what its author has not read; refuses it where that is the rule of the field."""
        schema = self.graph.topology.schema
        rule = schema.live_fields[field].on_conflict
        by_key = self.board.by_key(field)
        for key, posts in meeting.unread.items():
            named = key if by_key else None
            self.publish(LiveConflict(field, named, attempt.node, posts[-1].node, posts[-1].seq, rule))
        if rule == "reject" or (rule == "merge" and by_key):
            found = [post.execution for posts in meeting.unread.values() for post in posts]
            reader.used.update([execution for execution in found if execution in self.board.pending])
        if rule == "reject":
            key, posts = next(iter(meeting.unread.items()))
            raise MergeConflictError(
                f"node {attempt.node!r} posts to the live field {field!r}{f', key {key!r},' if by_key else ''} "
                f"and has not read what {posts[-1].node!r} posted there before (seq {posts[-1].seq}): read on in "
                f"ctx.live({field!r}), then post again",
                (field, key) if by_key else (field,),
                (posts[-1].node, attempt.node),
            )

    def returned(self, attempt: Attempt, updates: Mapping[str, object]) -> dict[str, object]:
        """Posts what a node has returned for live fields; gives the rest."""
        live = self.graph.topology.schema.live_fields
        for field in [name for name in updates if name in live]:
            self.post_live(attempt, field, updates[field])
        return {name: update for name, update in updates.items() if name not in live}

    def live_entries(self, attempt: Attempt, field: str) -> EntrySource:
        """Where the entries of a live field come from."""
        if field not in self.graph.topology.schema.live_fields:
            raise InputError(
                f"node {attempt.node!r} listens to {field!r}, which is not live: write Annotated[..., {field}'s "
                "reducer, live] in the schema, or read it with ctx.view"
            )
        with self.lock:
            return Listener(self, self._reader(attempt), field)

    def wait(self, reader: ReaderCursor, field: str, wake: Callable[[], object]) -> Waiter:
        """Waits for the next entry of a field."""
        waiter = Waiter(reader.execution, field, wake)
        with self.lock:
            if self.room.over or reader.undone or reader.execution not in self.room.running:
                waiter.outcome = "abort"
                wake()
                return waiter
            if reader.next(self.board, field, take=False) is not None:
                waiter.outcome = "entry"
                wake()
                return waiter
            self.room.enter(waiter)
            self.room.grant()
            if not self.room.is_open(waiter):
                self._settle()
            if self._nudge is not None and not self.stopped and plan(self.run):
                self._nudge()
        return waiter

    def at_work(self) -> Sequence[Execution]:
        """The executions whose nodes run."""
        with self.lock:
            return tuple(self.room.running.values())

    def waits_for(self, execution: str) -> str:
        """The live field that an execution waits for; "" if it works."""
        with self.lock:
            return self.room.field_of(execution)

    def with_posts(
        self, execution: Execution, patch: dict[str, Any], state: ImmutableState
    ) -> tuple[dict[str, Any], ImmutableState]:
        """What an execution commits, with its posts."""
        reader = self._readers.get(execution.id)
        return (patch, state) if reader is None else reader.folded(self.graph.topology.schema, patch, state)

    def exchange(self, execution: Execution) -> Exchange | None:
        """What an execution has posted and read."""
        reader = self._readers.get(execution.id)
        return None if reader is None else reader.exchange()

    def _reader(self, attempt: Attempt) -> ReaderCursor:
        name = attempt.execution
        if name not in self.room.running:
            raise AttemptError(
                f"node {attempt.node!r} (execution {attempt.local_id}) has come to its end, and something that it has "
                "started still uses its ctx: wait for that before the node returns"
            )
        reader = self._readers.get(name)
        if reader is None:
            branch, visits = attempt.position, self._visits.get(attempt.node)
            before = {} if branch is None or visits is None else visits.before(branch)
            reader = self._readers[name] = ReaderCursor(name, attempt.node, attempt.branch, branch, before)
        return reader

    def _withdraw(self, execution: str) -> None:
        """Withdraws the posts of an execution, and of all who have used them."""
        work = [execution]
        while work:
            name = work.pop()
            posts = self.board.withdraw(name)
            if not posts:
                continue
            seqs = tuple([post.seq for post in posts])
            if self.journal is not None:
                self.records.queue_row(withdraw_row(self.scope, name, posts[0].node, self.board.seq, seqs))
            for field in dict.fromkeys(post.field for post in posts):
                numbers = tuple([post.seq for post in posts if post.field == field])
                self.publish(Withdrawn(field, posts[0].node, name, numbers, self.board.seq))
            for other, reader in list(self._readers.items()):
                if name in reader.used and not reader.undone:
                    reader.undone = True
                    work.append(other)
                    self.room.release(other, "abort")
                    if other in self._done:
                        ended, _, steps = self._done.pop(other)
                        self._fold(ended, Interrupt(()), steps)


def _later(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
    """The higher number of each field."""
    return {**one, **{field: max(seq, one.get(field, 0)) for field, seq in two.items()}}


def _latest(value: Any) -> Any:
    """A value as an update that takes the place of what is there."""
    return Replace(value) if isinstance(value, Mapping) or value is None else value


# --------------------------------------------------------------------------------------------------------------------
# Who waits for a live field, and who holds a slot of `max_concurrency`. Nothing is safe without the session's lock.
#
# An execution that waits holds no slot. When an entry comes, its field closes or its time is over, it is *due*: it goes
# on as soon as a slot is free.


class LiveWaiters:
    """The executions that wait for an entry, or for a slot to go on with one.

    Args:
        slots: how many executions may work at once.
        reach: what a branch may write.

    Attributes:
        running: the executions whose nodes run, waiting or not, by id.
        over: whether nothing waits any more: the run is left.
    """

    def __init__(self, slots: int, reach: WriteReach) -> None:
        self.running: dict[str, Execution] = {}
        self.over = False
        self._slots = slots
        self._reach = reach
        self._waiting: dict[str, Waiter] = {}
        self._of_field: dict[str, dict[str, Waiter]] = {}
        self._due: deque[tuple[Waiter, WaitOutcome]] = deque()

    @property
    def parked(self) -> int:
        """How many run and hold no slot."""
        return len(self._waiting) + len(self._due)

    @property
    def waits(self) -> bool:
        """Whether an execution waits for an entry."""
        return bool(self._waiting)

    def field_of(self, execution: str) -> str:
        """The field that an execution waits for; "" if it works."""
        waiter = self._waiting.get(execution)
        return "" if waiter is None else waiter.field

    def enter(self, waiter: Waiter) -> None:
        """Takes in an execution that has nothing to read."""
        if waiter.execution in self._waiting:
            raise AttemptError(
                f"the execution {waiter.execution} waits for two live fields at once: write one loop after the other"
            )
        self._waiting[waiter.execution] = waiter
        self._of_field.setdefault(waiter.field, {})[waiter.execution] = waiter

    def is_open(self, waiter: Waiter) -> bool:
        """Whether a node that works may write the field of a listener."""
        field, place, waiting = waiter.field, self.running[waiter.execution].position, self._waiting
        works = [execution for name, execution in self.running.items() if name not in waiting]
        return any(self._reach.may_write(PossibleWriter(one.position), field, place) for one in works)

    def leave(self, waiter: Waiter) -> None:
        """Lets an execution go that does not wait any more."""
        if self._waiting.get(waiter.execution) is waiter:
            self._out(waiter)
        elif waiter.outcome == "waiting":
            self._due = deque([due for due in self._due if due[0] is not waiter])

    def came(self, field: str, author: str) -> None:
        """An entry came to a field: those who wait for it are due, but not its author."""
        if waiters := self._of_field.get(field):
            for waiter in [waiter for name, waiter in waiters.items() if name != author]:
                self.release(waiter.execution, "entry")
            self.grant()

    def release(self, execution: str, outcome: WaitOutcome) -> None:
        """An execution is due, if it waits for an entry."""
        waiter = self._waiting.get(execution)
        if waiter is not None:
            self._out(waiter)
            self._due.append((waiter, outcome))

    def grant(self) -> None:
        """Gives free slots to those who are due."""
        while self._due and len(self.running) - self.parked < self._slots:
            waiter, outcome = self._due.popleft()
            waiter.outcome = outcome
            waiter.wake()

    def settle(self, run: RunState, halted: bool, held: Iterable[HeldCommit]) -> None:
        """Releases the listeners to which no entry comes.

        Args:
            run: the run.
            halted: whether nothing new starts.
            held: the executions that have ended and not committed.
        """
        while self._waiting:
            waiting = []
            for name, waiter in self._waiting.items():
                execution = self.running[name]
                waiting.append(WaitingReader(name, execution.position, execution.path, waiter.field))
            able = [
                PossibleWriter(execution.position)
                for name, execution in self.running.items()
                if name not in self._waiting
            ]
            stopped = [PossibleWriter(execution.position) for execution, _ in run.suspended.values()]
            stopped += [PossibleWriter(failure.position) for failure in run.failures]
            ended = {one.execution for one in held}
            stopped += [  # those that were cut off
                PossibleWriter(execution.position)
                for name, execution in run.running.items()
                if name not in self.running and name not in ended
            ]
            (stopped if halted else able).extend([PossibleWriter(group.position) for group in run.ready])
            found = readers_to_release(waiting, dict.fromkeys(able), held, self._reach)
            for one in found:
                missed = any(self._reach.may_write(origin, one.field, one.position) for origin in stopped)
                self.release(one.execution, "abort" if missed else "closed")
            if not found:
                break
            self.grant()

    def end(self) -> None:
        """Lets all give way."""
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
