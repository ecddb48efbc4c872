"""One execution: from the call of a node to its transition, as a *script* that a sync or async driver follows.

A script is a generator (PEP 342): it yields each node or router with its call, the driver makes the call in its own way
and sends the reply back. So the steps of an execution are written once, and not once for each kind of driver:

1. Call the node; fold what it posted and returned into one patch, validated, and check the limits on size.
2. Find the targets: a `Command`, the edges, or routers, which see the state after the patch.
3. Return the transition: patch, state and targets.

A transition is atomic: if the node, the validation or a router raises, nothing of it is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from dspyer.dspy_module.tracing import append_to_trace
from dspyer.errors import Interrupt, RouteError, list_names
from dspyer.events import Question
from dspyer.graph.spec import check_send
from dspyer.nodes.attempt import Attempt, with_posts
from dspyer.nodes.condense import condensed
from dspyer.nodes.context import Context
from dspyer.nodes.node import Call, Decision, Node, Reply, Send
from dspyer.nodes.router import Router
from dspyer.patch import DELETE, Replace, diff_value
from dspyer.persistence.execution_records import RecordKey
from dspyer.reducers import Updates
from dspyer.runtime.live import LiveSession
from dspyer.runtime.session import Session
from dspyer.runtime.workers import TaskWorkers, ThreadWorkers, WorkOutcome
from dspyer.scheduler.run_state import Execution, Target, Transition
from dspyer.scheduler.topology import END, START
from dspyer.state import ImmutableState

CallScript = Generator[tuple[Node | Router, Call], Any, Transition]
"""Yields a node or router with its call, is sent the reply, and returns the transition."""


def script(session: Session, execution: Execution) -> CallScript:
    """The script of an execution: of a node, or of the first commit of the run."""
    if execution.branch.head < 0:
        return _start_script(session, execution)
    return _node_script(session, execution)


def run_script(calls: CallScript) -> Transition:
    """Makes the calls of a script in sync code."""
    reply: Reply | Decision | None = None
    while True:
        try:
            step, call = calls.send(reply)
        except StopIteration as done:
            return cast(Transition, done.value)
        reply = step.decide(call) if isinstance(step, Router) else step.call(call)


async def arun_script(calls: CallScript) -> Transition:
    """Makes the calls of a script in async code."""
    reply: Reply | Decision | None = None
    while True:
        try:
            step, call = calls.send(reply)
        except StopIteration as done:
            return cast(Transition, done.value)
        reply = await (step.adecide(call) if isinstance(step, Router) else step.acall(call))


def _node_script(session: Session, execution: Execution) -> CallScript:
    name, state = execution.node, execution.branch.state
    call = _call(session, execution, state)
    if session.records.questions or session.graph.interrupt_before:
        _raise_if_unanswered(session, execution)
    began, clock = time.time(), time.perf_counter()
    reply: Reply = yield session.graph.nodes[name], call
    attempt = call.context.attempt
    attempt.over = True
    schema = session.graph.topology.schema
    updates = reply.updates if attempt.posts is None else with_posts(reply.updates, attempt.posts, schema)
    condensers = session.graph.condensers
    if condensers and name in condensers:
        updates = yield from condensed(condensers[name], updates, call)
    # Not three empty methods of `Session`: this runs for every node, and few graphs have live fields.
    live = session if isinstance(session, LiveSession) else None
    if live is not None:
        updates = live.post_returned(attempt, updates)
    commit_id = session.id_prefix + execution.id
    patch, after = schema.commit(state, updates, node=name, commit_id=commit_id, whole_values=reply.whole)
    if live is not None:
        patch, after = live.with_posts(execution, patch, after)
    schema.check_state_limit(name, state, patch, after)
    targets = _known_targets(session, name, call, reply.goto, after)
    if targets is not None:
        transition = Transition(patch, after, targets, None, began, time.perf_counter() - clock)
    else:
        transition = yield from _route(session, execution, call, patch, after, began, clock)
    if session.records.questions:
        attempt.finish()
    return transition if live is None else transition._replace(live=live.exchange(execution))


def _start_script(session: Session, execution: Execution) -> CallScript:
    """The script of the first commit: its patch is known (`RunStart`), and only routers at `START` are called."""
    began, clock = time.time(), time.perf_counter()
    patch = session.run_start.patch
    exits = session.graph.exits[execution.node]
    if len(exits) == 1 and isinstance(exits[0], str):
        return Transition(patch, session.inputs, (Target(exits[0]),), None, began, time.perf_counter() - clock)
    call = _call(session, execution, session.inputs)
    call.context.attempt.over = True
    call.context.attempt.raise_if_unanswered()
    transition = yield from _route(session, execution, call, patch, session.inputs, began, clock)
    call.context.attempt.finish()
    return transition


def _call(session: Session, execution: Execution, state: ImmutableState) -> Call:
    local_id = global_id = execution.id
    if session.scope or session.run_start.label:
        local_id, global_id = session.local_id(execution.id), session.global_id(execution.id)
    attempt = Attempt(session, execution.node, execution.path, execution.id, local_id, execution.branch)
    context = Context(session.run_id, execution.node, execution.path, execution.visit, global_id, attempt)
    return Call(state, context, session.program, execution.overlay, session.resources, NodeRunner(session))


def _raise_if_unanswered(session: Session, execution: Execution) -> None:
    """Raises `Interrupt`, before the node is called, if one of its questions or `interrupt_before` has no answer."""
    name, node = session.local_id(execution.id), execution.node
    records = session.records
    if node in session.graph.interrupt_before:
        before = Question("before", f"{node!r} comes next; continue?", None, node, execution.path, name, session.label)
        if not records.ask(before, session.answer):
            raise Interrupt([records.questions[RecordKey(name, "before")]])
    waits = [question for question in records.open_questions_of(name) if not records.ask(question, session.answer)]
    if waits:
        raise Interrupt(waits)


# --- where the branch continues


def _known_targets(
    session: Session, name: str, call: Call, goto: Sequence[str | Send] | None, after: ImmutableState
) -> tuple[Target, ...] | None:
    """The targets if no driver is needed to find them: by a `Command`, one edge or one inline router; else None.

    Most nodes have one of these: this saves them the generator of `_route`.
    """
    if goto is not None:
        return _targets(session, name, goto)
    exits = session.graph.exits[name]
    if len(exits) != 1:
        return None
    exit_ = exits[0]
    if isinstance(exit_, str):
        return (Target(exit_),)
    if not exit_.inline:
        return None
    _, context, program, overlay, resources, runner = call
    found = exit_.decide(Call(after, context, program, overlay, resources, runner)).targets
    first = found[0]  # a router returns declared targets only, so one name needs no check
    return (Target(first),) if len(found) == 1 and isinstance(first, str) else _targets(session, name, found)


def _route(
    session: Session,
    execution: Execution,
    call: Call,
    patch: Mapping[str, Any],
    state: ImmutableState,
    began: float,
    clock: float,
) -> CallScript:
    """Follows the edges and calls the routers of a node. What a module router writes is part of the transition."""
    name = execution.node
    goto: list[str | Send] = []
    reasons: list[str] = []
    before = execution.branch.state
    for exit_ in session.graph.exits[name]:
        if isinstance(exit_, str):
            goto.append(exit_)
            continue
        routed = call._replace(state=state)
        decision: Decision = exit_.decide(routed) if exit_.inline else (yield exit_, routed)
        goto += decision.targets
        if decision.reason:
            reasons.append(decision.reason)
        if decision.updates:
            schema, author = session.graph.topology.schema, exit_.module_name or name
            commit_id = session.global_id(execution.id, author)
            old = state
            written, state = schema.commit(old, decision.updates, node=author, commit_id=commit_id, whole_values=True)
            schema.check_state_limit(author, old, written, state)
            for field, update in written.items():
                folds = schema.reducer(field) is not None
                net = update if folds else diff_value(before.raw(field, DELETE), state.raw(field, DELETE))
                patch = {**patch, field: _both_updates(session, name, patch, field, net) if folds else net}
    duration = time.perf_counter() - clock
    return Transition(patch, state, _targets(session, name, goto), "\n".join(reasons) or None, began, duration)


def _both_updates(session: Session, name: str, patch: Mapping[str, Any], field: str, update: Any) -> Any:
    """The updates of a node and of its router to one field with a reducer, as `Updates`: a join folds each of them."""
    # The first commit of a run that is not stored, or is inside a node, holds input values and not updates. There the
    # first of the `Updates` is the input, `DELETE` for none, and those after it are what routers wrote.
    holds_values = name == START and (session.journal is None or session.scope)
    if holds_values and not isinstance(patch.get(field), Updates):
        return Updates(Replace(session.inputs.raw(field)) if field in patch else DELETE, update)
    return Updates(patch[field], update) if field in patch else update


def _targets(session: Session, name: str, goto: Sequence[str | Send]) -> tuple[Target, ...]:
    """The targets of a node, or a `RouteError`: equal names count once, each `Send` is a branch of its own."""
    allowed = session.graph.topology.targets(name)
    if len(goto) == 1 and isinstance(goto[0], str) and goto[0] in allowed:
        return (Target(goto[0]),)
    targets: dict[Any, Target] = {}
    for index, target in enumerate(goto):
        node = target if isinstance(target, str) else target.node
        if node == END and not isinstance(target, str):
            raise RouteError(f"node {name!r} sent a branch to END: return END to finish the branch, not Send(END)")
        if node not in allowed:
            raise RouteError(
                f"node {name!r} went to {node!r}, which is none of its targets: {list_names(allowed)}. "
                "Declare it with an edge, in the path map of the router, or with add_node(goto=[...])"
            )
        if isinstance(target, str):
            targets.setdefault(target, Target(target))
        else:
            check_send(session.graph, name, target)
            targets[index] = Target(node, target.overlay)
    if not targets:
        raise RouteError(f"node {name!r} has nowhere to go: return the name of a target, or END to finish the branch")
    return tuple(targets.values())


# --- several calls of one node at once

T = TypeVar("T")


class NodeRunner:
    """Runs the calls of one node concurrently: the items of a map."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session

    def gather(self, calls: Sequence[Callable[[], T]], max_concurrency: int | None) -> list[T]:
        """Runs sync calls. After a failure nothing new starts, and the first failure in order is raised."""
        batch: Batch[T] = Batch(self.session, len(calls), max_concurrency)
        with ThreadWorkers(batch.limit) as threads:
            while batch.may_start(threads.busy):
                index = batch.start()
                threads.start(index, calls[index])
                while threads.busy and not batch.may_start(threads.busy):
                    batch.put(*threads.next())
        return batch.results()

    async def agather(self, calls: Sequence[Callable[[], Awaitable[T]]], max_concurrency: int | None) -> list[T]:
        """Runs async calls, with the same rules."""
        batch: Batch[T] = Batch(self.session, len(calls), max_concurrency)
        async with TaskWorkers() as tasks:
            while batch.may_start(tasks.busy):
                index = batch.start()
                tasks.start(index, calls[index])
                while tasks.busy and not batch.may_start(tasks.busy):
                    batch.put(*await tasks.next())
        return batch.results()


class Batch(Generic[T]):
    """The bookkeeping of a `gather`, sync or async: which calls have started, and their outcomes."""

    def __init__(self, session: Session, count: int, max_concurrency: int | None) -> None:
        limit = session.graph.max_concurrency
        self.limit = min(limit, max_concurrency or limit)
        self._stop_signal = session.stop_signal
        self._count = count
        self._started = 0
        self._outcomes: dict[int, WorkOutcome] = {}
        self._failed = False

    def may_start(self, busy: int) -> bool:
        """Whether another call may start while `busy` calls run."""
        may = self._started < self._count and busy < self.limit and not self._failed
        return may and self._stop_signal.reason is None

    def start(self) -> int:
        """Counts one more call as started, and returns its index."""
        self._started += 1
        return self._started - 1

    def put(self, index: int, outcome: WorkOutcome) -> None:
        """Keeps an outcome; raises at once what is no error of a call, such as Ctrl-C."""
        error = outcome[1]
        if error is not None and not isinstance(error, Interrupt):
            cancelled_by_stop = isinstance(error, asyncio.CancelledError) and self._stop_signal.reason is not None
            if not isinstance(error, Exception) and not cancelled_by_stop:
                raise error
            self._failed = True
        self._outcomes[index] = outcome

    def results(self) -> list[T]:
        """The results in order of the calls, whose traces are appended to the caller's.

        If the run was stopped before all calls had begun, the node is cancelled: it runs again on a resume, and finds
        the items that were recorded. Otherwise the first failure in order is raised, or all questions if there is none.
        """
        ordered = [self._outcomes.pop(index) for index in sorted(self._outcomes)]
        for _, _, steps in ordered:
            append_to_trace(steps)
        cut_off = self._stop_signal.reason is not None and len(ordered) < self._count
        errors = [error for _, error, _ in ordered if error is not None]
        results = [result for result, _, _ in ordered]
        del ordered  # the traceback of an error refers to this frame, which should not refer to the error
        failures = [error for error in errors if not isinstance(error, Interrupt)]
        questions = [question for error in errors if isinstance(error, Interrupt) for question in error.questions]
        del errors
        if cut_off:
            raise asyncio.CancelledError
        if failures:
            raise failures.pop(0)
        if questions:
            raise Interrupt(questions)
        return results
