"""What one execution does, as a script of calls that a driver makes sync or async."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dspyer.dspy_module.tracing import append_to_trace
from dspyer.errors import Interrupt, RouteError, list_names
from dspyer.events import Question
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


def script(session: Session, execution: Execution) -> CallScript:
    """What one execution does: a driver makes each call sync or async and sends the reply back.

    A transition is whole: if the node, the validation or a router raises, nothing of it is committed.
    """
    if execution.branch.head < 0:
        return _begin_script(session, execution)
    return _node_script(session, execution)


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
    live = session if isinstance(session, LiveSession) else None
    if live is not None:
        updates = live.returned(attempt, updates)
    patch, after = schema.commit(
        state, updates, node=name, commit_id=session.global_id(execution.id), whole_values=reply.whole
    )
    if live is not None:
        patch, after = live.with_posts(execution, patch, after)
    schema.check_state_limit(name, state, patch, after)
    targets = _straight(session, name, call, reply.goto, after)
    if targets is not None:
        transition = Transition(patch, after, targets, None, began, time.perf_counter() - clock)
    else:
        transition = yield from _leave(session, execution, call, patch, after, began, clock)
    if session.records.questions:
        attempt.finish()
    return transition if live is None else transition._replace(live=live.exchange(execution))


def _straight(
    session: Session, name: str, call: Call, goto: Sequence[str | Send] | None, after: ImmutableState
) -> tuple[Target, ...] | None:
    """The targets of a node, where it takes no driver to know them; else None."""
    if goto is not None:
        return _targets(session, name, goto)
    ways = session.graph.exits[name]
    if len(ways) != 1:
        return None
    way = ways[0]
    if isinstance(way, str):
        return (Target(way),)
    if not way.inline:
        return None
    _, context, program, overlay, resources, runner = call
    found = way.decide(Call(after, context, program, overlay, resources, runner)).targets
    first = found[0]  # a router gives its own targets only
    return (Target(first),) if len(found) == 1 and isinstance(first, str) else _targets(session, name, found)


def _begin_script(session: Session, execution: Execution) -> CallScript:
    began, clock = time.time(), time.perf_counter()
    patch = session.run_start.patch
    ways = session.graph.exits[execution.node]
    if len(ways) == 1 and isinstance(ways[0], str):
        return Transition(patch, session.inputs, (Target(ways[0]),), None, began, time.perf_counter() - clock)
    call = _call(session, execution, session.inputs)
    call.context.attempt.over = True
    call.context.attempt.raise_if_unanswered()
    transition = yield from _leave(session, execution, call, patch, session.inputs, began, clock)
    call.context.attempt.finish()
    return transition


def _raise_if_unanswered(session: Session, execution: Execution) -> None:
    """Does not call again what has asked and has no answer, nor before its time what the program stops before."""
    name, node = session.local_id(execution.id), execution.node
    if node in session.graph.interrupt_before:
        before = Question("before", f"{node!r} comes next; go on?", None, node, execution.path, name, session.label)
        if not session.records.ask(before, session.answer):
            raise Interrupt([session.records.questions[RecordKey(name, "before")]])
    waits = [
        question
        for question in session.records.open_questions_of(name)
        if not session.records.ask(question, session.answer)
    ]
    if waits:
        raise Interrupt(waits)


def _leave(
    session: Session,
    execution: Execution,
    call: Call,
    patch: Mapping[str, Any],
    state: ImmutableState,
    began: float,
    clock: float,
) -> CallScript:
    """Follows the edges and routers of a node; what a module router writes belongs to the same transition."""
    name = execution.node
    goto: list[str | Send] = []
    reasons: list[str] = []
    before = execution.branch.state
    for way in session.graph.exits[name]:
        if isinstance(way, str):
            goto.append(way)
            continue
        routed = Call(state, call.context, call.program, call.overlay, call.resources, call.runner)
        decision: Decision = way.decide(routed) if way.inline else (yield way, routed)
        goto += decision.targets
        if decision.reason:
            reasons.append(decision.reason)
        if decision.updates:
            schema, author = session.graph.topology.schema, way.module_name or name
            commit_id = session.global_id(execution.id, author)
            old = state
            written, state = schema.commit(old, decision.updates, node=author, commit_id=commit_id, whole_values=True)
            schema.check_state_limit(author, old, written, state)
            for field, update in written.items():
                folds = schema.reducer(field) is not None
                net = update if folds else diff_value(before.raw(field, DELETE), state.raw(field, DELETE))
                patch = {**patch, field: _both(session, name, patch, field, net) if folds else net}
    duration = time.perf_counter() - clock
    return Transition(patch, state, _targets(session, name, goto), "\n".join(reasons) or None, began, duration)


def _both(session: Session, name: str, patch: Mapping[str, Any], field: str, update: Any) -> Any:
    """What a node and its router did to a field with a reducer: a join, or the graph outside, folds each update."""
    given = name == START and (session.journal is None or session.scope)  # values that a run is given are no updates
    if given and not isinstance(patch.get(field), Updates):
        return Updates(Replace(session.inputs.raw(field)) if field in patch else DELETE, update)
    return Updates(patch[field], update) if field in patch else update


def _targets(session: Session, name: str, goto: Sequence[str | Send]) -> tuple[Target, ...]:
    """Equal names count once; each `Send` is a branch of its own. What is no declared target is refused."""
    allowed = session.graph.topology.targets(name)
    if len(goto) == 1 and isinstance(goto[0], str) and goto[0] in allowed:
        return (Target(goto[0]),)
    targets: dict[Any, Target] = {}
    for i, way in enumerate(goto):
        node = way if isinstance(way, str) else way.node
        if node == END and not isinstance(way, str):
            raise RouteError(f"node {name!r} sent a branch to END: return END to finish the branch, not Send(END)")
        if node not in allowed:
            raise RouteError(
                f"node {name!r} went to {node!r}, which is none of its targets: {list_names(allowed)}. "
                "Declare it with an edge, in the path map of the router, or with add_node(goto=[...])"
            )
        if isinstance(way, str):
            targets.setdefault(way, Target(way))
        else:
            session.graph.check_send(name, way)
            targets[i] = Target(node, way.overlay)
    if not targets:
        raise RouteError(f"node {name!r} has nowhere to go: return the name of a target, or END to finish the branch")
    return tuple(targets.values())


def _call(session: Session, execution: Execution, state: ImmutableState) -> Call:
    local_id = global_id = execution.id
    if session.scope or session.run_start.label:
        local_id, global_id = session.local_id(execution.id), session.global_id(execution.id)
    attempt = Attempt(session, execution.node, execution.path, execution.id, local_id, execution.branch)
    context = Context(session.run_id, execution.node, execution.path, execution.visit, global_id, attempt)
    return Call(state, context, session.program, execution.overlay, session.resources, NodeRunner(session))


# --------------------------------------------------------------------------------------------------------------------
# Several calls of one node at once: the items of a map.

T = TypeVar("T")


class NodeRunner:
    """Runs the calls of one node at once (the items of a map), with the trace in the order of the calls."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session

    def gather(self, calls: Sequence[Callable[[], T]], max_concurrency: int | None) -> list[T]:
        """Runs sync calls. After a failure nothing new starts, and the first failure in order is raised."""
        batch: Batch[T] = Batch(self.session, len(calls), max_concurrency)
        with ThreadWorkers(batch.limit) as threads:
            while batch.wants(threads.busy):
                index = batch.take()
                threads.start(index, calls[index])
                while threads.busy and not batch.wants(threads.busy):
                    batch.put(*threads.next())
        return batch.results()

    async def agather(self, calls: Sequence[Callable[[], Awaitable[T]]], max_concurrency: int | None) -> list[T]:
        """Runs async calls, in the same way."""
        batch: Batch[T] = Batch(self.session, len(calls), max_concurrency)
        async with TaskWorkers() as tasks:
            while batch.wants(tasks.busy):
                index = batch.take()
                tasks.start(index, calls[index])
                while tasks.busy and not batch.wants(tasks.busy):
                    batch.put(*await tasks.next())
        return batch.results()


class Batch(Generic[T]):
    """Which of several calls to start next, and what became of them."""

    def __init__(self, session: Session, count: int, max_concurrency: int | None) -> None:
        limit = session.graph.max_concurrency
        self.limit = min(limit, max_concurrency or limit)
        self._stop_signal = session.stop_signal
        self._count = count
        self._next = 0
        self._outcomes: dict[int, WorkOutcome] = {}
        self._failed = False

    def wants(self, busy: int) -> bool:
        """Whether another call may start beside `busy` others."""
        may = self._next < self._count and busy < self.limit and not self._failed
        return may and self._stop_signal.reason is None

    def take(self) -> int:
        """The next call to start."""
        self._next += 1
        return self._next - 1

    def put(self, index: int, outcome: WorkOutcome) -> None:
        """Keeps an outcome."""
        error = outcome[1]
        if error is not None and not isinstance(error, Interrupt):
            cut_off = isinstance(error, asyncio.CancelledError) and self._stop_signal.reason is not None
            if not isinstance(error, Exception) and not cut_off:
                raise error
            self._failed = True
        self._outcomes[index] = outcome

    def results(self) -> list[T]:
        """The results in order; raises the first failure in order, or all questions if there is none.

        The traces are handed over either way. If the run was stopped before all calls had begun, the node is cut off:
        it runs again on a resume, and finds the items that were kept.
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
