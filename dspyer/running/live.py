"""A run with live fields: running siblings see each other's posts, wait for them, and know of each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any

from dspyer.durable.memo import Post
from dspyer.durable.rows import post_draft, withdraw_draft
from dspyer.errors import AttemptError, InputError, MergeConflictError
from dspyer.events import Exchange, LiveConflict, Posted, Withdrawn
from dspyer.nodes import Attempt, LiveEntry, Peer, Source, Waiter
from dspyer.patch import encode_update
from dspyer.running.board import Board, Ear, single_updates
from dspyer.running.session import Session
from dspyer.running.waiting import WaitingRoom
from dspyer.scheduler.closing import reachable_writes
from dspyer.scheduler.lineage import lineage
from dspyer.scheduler.runstate import Branch, Execution, Transition
from dspyer.scheduler.schedule import plan
from dspyer.state import ImmutableState

MANY = 1_000_000


class Listener:
    """One execution that listens to one live field."""

    def __init__(self, session: LiveSession, ear: Ear, field: str) -> None:
        self._session = session
        self._ear = ear
        self._field = field

    def heard(self) -> LiveEntry | None:
        """The next entry, if it is there."""
        ear, field = self._ear, self._field
        entry = ear.next(field)
        if entry is None:
            with self._session.lock:
                self._session.board.fetch(ear, field)
            entry = ear.next(field)
        return entry

    def wait(self, wake: Callable[[], object]) -> Waiter:
        """Waits for the next entry."""
        return self._session.wait(self._ear, self._field, wake)

    def leave(self, waiter: Waiter) -> None:
        """Waits no longer."""
        with self._session.lock:
            self._session.room.leave(waiter)


class LiveSession(Session):
    """A run whose live fields are live. What happens at the board happens under its lock, and so does scheduling.

    Attributes:
        lock: held for short, never while a node works.
        board: what was posted.
        room: who waits.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        blueprint, topology = self.blueprint, self.blueprint.topology
        self.lock = RLock()
        writes = {
            name: [field for field in (node.writes or {}).values() if field in topology.schema.live]
            for name, node in blueprint.nodes.items()
        }
        self.room = WaitingRoom(blueprint.max_concurrency, cache(lambda node: reachable_writes(topology, writes, node)))
        self.board = Board(topology.schema, self.opening.state, self.memo.posts.get(self.scope, ()))
        self._ears: dict[str, Ear] = {}
        self._says: dict[str, str] = {}
        self._nudge: Callable[[], None] | None = None
        self._stands = False
        committed = {entry.commit.id for entry in self.run.log} if self.board.seq else set()
        for execution in self.board.standing():
            if execution not in committed:  # an earlier attempt that came to no end
                self._withdraw(execution)

    @property
    def most_at_once(self) -> int:
        """How many executions may have begun at once: those who wait for an entry hold no slot."""
        return self.blueprint.max_concurrency + self.room.parked

    @property
    def most_threads(self) -> int:
        """How many threads may be needed for them: `start_ready` bounds them."""
        return MANY

    @contextmanager
    def driven(self, nudge: Callable[[], None]) -> Iterator[None]:
        """Lets a driver be called when something may start; at its end nobody waits any more.

        Args:
            nudge: makes the driver look, from any thread.
        """
        self._nudge = nudge
        try:
            yield
        finally:
            with self.lock:
                self.room.end()

    # --- scheduling, under the lock

    def start_ready(self) -> list[Execution]:
        """Starts what may start. Whoever has something to read comes first."""
        with self.lock:
            started = super().start_ready()
            for execution in started:
                self.room.running[execution.id] = execution
            run = self.run
            self._stands = bool(plan(run)) and len(run.running) < self.most_at_once
            self._settle()
        return started

    def finish(self, execution: Execution, outcome: Transition | BaseException, steps: Any) -> None:
        """Folds a finished execution in. What it has posted is taken back if it commits nothing."""
        with self.lock:
            if isinstance(outcome, BaseException):
                self._withdraw(execution.id)
            super().finish(execution, outcome, steps)
            self.room.running.pop(execution.id, None)
            self._ears.pop(execution.id, None)
            self._says.pop(execution.id, None)
            self._settle()

    def lose(self, error: BaseException) -> None:
        """Goes back to what was written: the store failed."""
        with self.lock:
            super().lose(error)
            self.room.end()

    def stop(self) -> None:
        """Lets nothing new start."""
        super().stop()
        with self.lock:
            self._settle()

    def _settle(self) -> None:
        self.room.grant()
        self.room.settle(self.run, self.stopped or self._stands or bool(self.run.failures))

    # --- what nodes do, from any thread

    def posted(self, attempt: Attempt, field: str, value: object) -> bool:
        """Posts to a live field: siblings see it when this returns."""
        schema = self.blueprint.topology.schema
        if field not in schema.live:
            return False
        for update in single_updates(attempt.node, field, value):
            with self.lock:
                ear = self._ear(attempt)
                number = sum([len(posts) for posts in ear.posts.values()])
                stamp = self.stamp_of(attempt.execution, *([str(number)] if number else []))
            state = attempt.position.state if attempt.position is not None else ImmutableState()
            patch, _ = schema.commit(state, {field: update}, node=attempt.node, commit_id=stamp)
            with self.lock:
                self._add(attempt, ear, field, patch[field])
        return True

    def _add(self, attempt: Attempt, ear: Ear, field: str, update: Any) -> None:
        rule = self.blueprint.topology.schema.live[field].on_conflict
        unread = self.board.unread(ear, field, update, lambda: self._behind(attempt.position))
        for key, other in unread:
            self.record(LiveConflict(field, key, attempt.node, other.node, other.seq, rule))
        if unread and rule == "reject":
            key, other = unread[0]
            raise MergeConflictError(
                f"node {attempt.node!r} posts to the live field {field!r}{'' if key is None else f', key {key!r},'} "
                f"and has not read what {other.node!r} posted there before (seq {other.seq}): read on in "
                f"ctx.live({field!r}), then post again",
                (field,) if key is None else (field, key),
                (other.node, attempt.node),
            )
        if unread and rule == "merge":
            update = self.board.merged(update, unread)
        post = Post(self.board.seq + 1, field, attempt.node, attempt.execution, update)
        if self.journal is not None:
            self.journal.write([post_draft(self.scope, post.execution, post.node, field, post.seq, update)])
        self.board.add(post)
        ear.posts.setdefault(field, []).append((post.seq, update))
        size = len(json.dumps(encode_update(update), ensure_ascii=False).encode("utf-8", "surrogatepass"))
        self.record(Posted(field, attempt.node, attempt.branch, attempt.execution, post.seq, size))
        self.room.came(field)

    def returned(self, attempt: Attempt, updates: Mapping[str, object]) -> dict[str, object]:
        """Posts what a node has returned for live fields; gives the rest."""
        live = self.blueprint.topology.schema.live
        for field in [name for name in updates if name in live]:
            self.posted(attempt, field, updates[field])
        return {name: update for name, update in updates.items() if name not in live}

    def source(self, attempt: Attempt, field: str) -> Source:
        """Where the entries of a live field come from."""
        if field not in self.blueprint.topology.schema.live:
            raise InputError(
                f"node {attempt.node!r} listens to {field!r}, which is not live: write Annotated[..., {field}'s "
                "reducer, live] in the schema, or read it with ctx.view"
            )
        with self.lock:
            return Listener(self, self._ear(attempt), field)

    def wait(self, ear: Ear, field: str, wake: Callable[[], object]) -> Waiter:
        """Waits for the next entry of a field."""
        waiter = Waiter(ear.execution, field, wake)
        with self.lock:
            if self.room.over:
                waiter.verdict = "gives way"
                wake()
                return waiter
            if self.board.is_ahead_of(ear, field):
                waiter.verdict = "goes on"
                wake()
                return waiter
            self.room.enter(waiter)
            self.room.grant()
            if not self.room.is_open(field):
                self._settle()
            if self._nudge is not None and not self.stopped and plan(self.run):
                self._nudge()
        return waiter

    def says(self, attempt: Attempt, text: str) -> None:
        """Notes what a node is doing."""
        self._says[attempt.execution] = text

    def peers(self, attempt: Attempt) -> list[Peer]:
        """The other nodes that run now."""
        with self.lock:
            others = [one for name, one in self.room.running.items() if name != attempt.execution]
            return [
                Peer(one.node, one.path, one.visit, self._says.get(one.id, ""), self.room.field_of(one.id))
                for one in sorted(others, key=lambda one: (one.path, one.id))
            ]

    def with_posts(
        self, execution: Execution, patch: dict[str, Any], state: ImmutableState
    ) -> tuple[dict[str, Any], ImmutableState]:
        """What an execution commits, with its posts."""
        ear = self._ears.get(execution.id)
        return (patch, state) if ear is None else ear.folded(self.blueprint.topology.schema, patch, state)

    def exchange(self, execution: Execution) -> Exchange | None:
        """What an execution has posted and read."""
        ear = self._ears.get(execution.id)
        return None if ear is None else ear.exchange()

    def _ear(self, attempt: Attempt) -> Ear:
        ear = self._ears.get(attempt.execution)
        if ear is None:
            if attempt.execution not in self.room.running:
                raise AttemptError(
                    f"node {attempt.node!r} (execution {attempt.name}) has come to its end, and something that it has "
                    "started still uses its ctx: wait for that before the node returns"
                )
            ear = self._ears[attempt.execution] = self._new_ear(attempt)
        return ear

    def _new_ear(self, attempt: Attempt) -> Ear:
        position = attempt.position
        own: set[str] = set()
        before: dict[str, int] = {}
        if position is not None and position.tally.get(attempt.node, 0):
            for place in lineage(self.run.log, [position.head]):
                commit = self.run.log[place].commit
                if commit.node == attempt.node:
                    own.add(commit.id)
                    for field, seq in (commit.live.reads if commit.live is not None else {}).items():
                        before[field] = max(seq, before.get(field, 0))
        return Ear(attempt.execution, attempt.node, attempt.branch, frozenset(own), before)

    def _behind(self, position: Branch | None) -> frozenset[str]:
        if position is None:
            return frozenset()
        return frozenset([self.run.log[place].commit.id for place in lineage(self.run.log, [position.head])])

    def _withdraw(self, execution: str) -> None:
        for posts in self.board.standing(execution).values():
            withdrawals = self.board.withdraw(posts)
            seq, taken = withdrawals[0].seq, tuple([post.seq for post in posts])
            if self.journal is not None:
                self.memo.later(withdraw_draft(self.scope, execution, posts[0].node, seq, taken))
            for field in dict.fromkeys(post.field for post in posts):
                numbers = tuple([post.seq for post in posts if post.field == field])
                self.record(Withdrawn(field, posts[0].node, execution, numbers, seq))
                self.room.came(field)
