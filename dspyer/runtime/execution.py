"""One execution: from the call of a node to its transition, as a script (`nodes.steps`) that a driver follows.

1. What surrounds the node, from the outside in: its layers (`layers.layer`), and innermost its call, whose reply is
   validated: what it posted and returned is folded into one patch, whose sizes are checked (`output_of`).
2. `_route`: a `Command`, the edges, or routers, which see the state after the patch.
3. The transition: patch, state and targets, which the scheduler commits.

A transition is atomic: if anything raises before it, nothing is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dspyer.dspy_module.tracing import append_to_trace
from dspyer.errors import Interrupt, RouteError, RunStoppedError, always_raised, brief, list_names
from dspyer.graph.spec import check_send
from dspyer.layers.layer import Layer, Stop, of_part
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.context import Context
from dspyer.nodes.node import Call, Decision, Output, Reply, Runner, Send, StartRule
from dspyer.nodes.outputs import folded, given
from dspyer.nodes.steps import Script
from dspyer.patch import DELETE, Replace, SealedPatch, diff_value
from dspyer.reducers import Updates
from dspyer.runtime.session import Session
from dspyer.runtime.workers import TaskWorkers, ThreadWorkers, WorkOutcome
from dspyer.scheduler.run_state import Execution, Target, Transition
from dspyer.scheduler.topology import END, START
from dspyer.state import ImmutableState


def script(session: Session, execution: Execution) -> Script[Transition]:
    """The script of an execution: of a node, or of the first commit of the run."""
    return _start_script(session, execution) if execution.branch.head < 0 else _node_script(session, execution)


def _node_script(session: Session, execution: Execution) -> Script[Transition]:
    """The script of a node: within its layers, to what it commits and where the branch goes."""
    name, graph = execution.node, session.graph
    call = _call(session, execution, execution.branch.state)
    for layer in session.layers.admitting(name):
        _admit(session, layer, call)
    call.context.delegate.raise_if_unanswered()
    began, clock = time.time(), time.perf_counter()
    output: Output = yield from session.layers.chain(name)(call)
    patch, after, goto, targets, cached, failure, call, _, completions, exchange = output
    if type(patch) is not SealedPatch:
        raise TypeError(
            f"a layer around node {name!r} gave an output with another patch, which the state after it does not have: "
            "change the reply, inner(replies(call, change))"
        )
    if completions is not None:
        session.notes.completions[execution.id] = completions
    follows_edges = targets is None
    if targets is None and (check := graph.checked.get(name)) is not None:
        # The node has a check, or is its fix: the check starts at once, and sees what was sent to the node.
        targets = (Target(check.name, check.sent_on(session.run.log, name, execution.branch.head, execution.overlay)),)
    if targets is None:
        targets = _known_targets(session, name, call, goto, after)
    if targets is not None:
        transition = Transition(patch, after, targets, None, began, time.perf_counter() - clock)
    else:
        transition = yield from _route(session, execution, call, patch, after, began, clock)
    if follows_edges and session.records.questions:
        call.context.delegate.finish()
    if exchange is not None:
        transition = transition._replace(live=exchange)
    if cached:
        transition = transition._replace(cached=True)
    if failure is not None or execution.id in session.notes.failed_attempts:
        failed = session.take_failed_attempts(execution)
        attempt = call.context.attempt if failure is None or follows_edges else failure.attempt
        transition = transition._replace(attempt=attempt, failure=failure, failed_attempts=failed)
    return transition


def output_of(call: Call, reply: Reply) -> Output:
    """What an execution makes of the reply of its node: one patch of what it posted and returned, validated."""
    schema = call.runner.session.graph.topology.schema
    updates = given(call, reply.updates, schema)
    patch, after = folded(call, updates, schema, reply.whole)
    return Output(patch, after, reply.goto, None, False, None, call, updates, reply.completions)


def _start_script(session: Session, execution: Execution) -> Script[Transition]:
    """The script of the first commit: its patch is known (`RunStart`), and only routers at `START` are called."""
    began, clock = time.time(), time.perf_counter()
    patch = session.run_start.patch
    exits = session.graph.exits[execution.node]
    if len(exits) == 1 and isinstance(exits[0], str):
        return Transition(patch, session.inputs, (Target(exits[0]),), None, began, time.perf_counter() - clock)
    call = _call(session, execution, session.inputs)
    call.context.delegate.over = True
    call.context.delegate.raise_if_unanswered()
    transition = yield from _route(session, execution, call, patch, session.inputs, began, clock)
    call.context.delegate.finish()
    return transition


def _call(session: Session, execution: Execution, state: ImmutableState) -> Call:
    local_id, global_id = session.ids.local_id(execution.id), session.ids.global_id(execution.id)
    attempt = Attempt(session, execution.node, execution.path, execution.id, local_id, execution.branch)
    context = Context(session.ids.run_id, execution.node, execution.path, execution.visit, global_id, attempt)
    return Call(state, context, session.program, execution.overlay, session.resources, NodeRunner(session), output_of)


def _admit(session: Session, layer: Layer, call: Call) -> None:
    """Asks a layer whether an execution may begin. If it stops the outermost run, the execution is left open."""
    try:
        found: object = layer.admit(call)  # type: ignore[func-returns-value]  # what a user's method returns
    except Stop as stop:
        reason = stop.reason or f"{type(layer).__name__} has stopped it"
        session.outermost.stop(reason, RunStoppedError("", reason))  # with an error: what runs is finished
        raise asyncio.CancelledError from None
    if found is not None:
        raise TypeError(
            f"{type(layer).__name__}.admit returned {brief(found)}: raise Stop(...) to stop, or return None"
        )


# --- where the branch continues


def _known_targets(
    session: Session, name: str, call: Call, goto: Sequence[str | Send] | None, after: ImmutableState
) -> tuple[Target, ...] | None:
    """The targets if no driver is needed to find them: by a `Command`, one edge or one inline router; else None.

    Most nodes have one of these: this saves them the generator of `_route`.
    """
    if goto is not None:
        return checked_targets(session, name, goto)
    exits = session.graph.exits[name]
    if len(exits) != 1:
        return None
    exit_ = exits[0]
    if isinstance(exit_, str):
        return (Target(exit_),)
    if exit_.module_name is not None:
        return None
    found = exit_.call(call._replace(state=after)).targets
    first = found[0]  # a router returns declared targets only, so one name needs no check
    return (Target(first),) if len(found) == 1 and isinstance(first, str) else checked_targets(session, name, found)


def _route(
    session: Session,
    execution: Execution,
    call: Call,
    patch: Mapping[str, Any],
    state: ImmutableState,
    began: float,
    clock: float,
) -> Script[Transition]:
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
        inline = exit_.module_name is None
        decision: Decision = exit_.call(routed) if inline else (yield from of_part(routed, "route", exit_.script))
        goto += decision.targets
        if decision.reason:
            reasons.append(decision.reason)
        if decision.updates:
            schema, author = session.graph.topology.schema, exit_.module_name or name
            commit_id = session.ids.global_id(execution.id, author)
            old = state
            written, state = schema.commit(old, decision.updates, node=author, commit_id=commit_id, whole_values=True)
            schema.check_state_limit(author, old, written, state)
            for field, update in written.items():
                folds = schema.reducer(field) is not None
                net = update if folds else diff_value(before.raw(field, DELETE), state.raw(field, DELETE))
                patch = {**patch, field: _both_updates(session, name, patch, field, net) if folds else net}
    duration = time.perf_counter() - clock
    return Transition(patch, state, checked_targets(session, name, goto), "\n".join(reasons) or None, began, duration)


def _both_updates(session: Session, name: str, patch: Mapping[str, Any], field: str, update: Any) -> Any:
    """The updates of a node and of its router to one field with a reducer, as `Updates`: a join folds each of them."""
    # The first commit of a run that is not stored, or is inside a node, holds input values and not updates. There the
    # first of the `Updates` is the input, `DELETE` for none, and those after it are what routers wrote.
    holds_values = name == START and (session.log is None or session.ids.scope)
    if holds_values and not isinstance(patch.get(field), Updates):
        return Updates(Replace(session.inputs.raw(field)) if field in patch else DELETE, update)
    return Updates(patch[field], update) if field in patch else update


def checked_targets(session: Session, name: str, goto: Sequence[str | Send]) -> tuple[Target, ...]:
    """The targets of a node, or a `RouteError`: equal names count once, each `Send` is a branch of its own."""
    allowed = session.graph.topology.own_targets(name)
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


class NodeRunner(Runner):
    """Runs the calls of one node concurrently: the items of a map."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session

    def gather(
        self, calls: Sequence[Callable[[], T]], max_concurrency: int | None, rule: StartRule | None = None
    ) -> list[T]:
        """Runs sync calls. After a failure nothing new starts, and the first failure in order is raised."""
        batch: Batch[T] = Batch(self.session, len(calls), max_concurrency, rule)
        with ThreadWorkers() as threads:
            while self._has_room() and batch.may_start(threads.busy):
                index = batch.start()
                threads.start(index, calls[index])
                while threads.busy and not batch.may_start(threads.busy):
                    batch.put(*threads.next())
        return batch.results()

    async def agather(
        self, calls: Sequence[Callable[[], Awaitable[T]]], max_concurrency: int | None, rule: StartRule | None = None
    ) -> list[T]:
        """Runs async calls, with the same rules."""
        batch: Batch[T] = Batch(self.session, len(calls), max_concurrency, rule)
        async with TaskWorkers() as tasks:
            while await self._ahas_room() and batch.may_start(tasks.busy):
                index = batch.start()
                tasks.start(index, calls[index])
                while tasks.busy and not batch.may_start(tasks.busy):
                    batch.put(*await tasks.next())
        return batch.results()

    def _has_room(self) -> bool:
        """True, once the reader of the events has room for those of another call."""
        if self.session.events.queue is not None:
            self.session.events.queue.wait_for_room()
        return True

    async def _ahas_room(self) -> bool:
        if self.session.events.queue is not None:
            await self.session.events.queue.room()
        return True


class Batch(Generic[T]):
    """The bookkeeping of a `gather`, sync or async: which calls have started, and their outcomes."""

    def __init__(
        self, session: Session, count: int, max_concurrency: int | None, rule: StartRule | None = None
    ) -> None:
        limit = session.together.slots
        self.limit = min(limit, max_concurrency or limit)
        self._session = session
        self._count = count
        self._rule = rule
        self._started = 0
        self._outcomes: dict[int, WorkOutcome] = {}
        self._failed = False

    def may_start(self, busy: int) -> bool:
        """Whether another call may start while `busy` calls run."""
        may = self._started < self._count and busy < self.limit and not self._failed
        return may and (self._rule is None or self._rule.may_start) and not self._session.cuts_off

    def start(self) -> int:
        """Counts one more call as started, and returns its index."""
        self._started += 1
        return self._started - 1

    def put(self, index: int, outcome: WorkOutcome) -> None:
        """Keeps an outcome; raises at once what is no error of a call, such as Ctrl-C."""
        result, error, _ = outcome
        if error is not None and not isinstance(error, Interrupt):
            cancelled_by_stop = isinstance(error, asyncio.CancelledError) and self._session.cuts_off
            if not isinstance(error, Exception) and not cancelled_by_stop:
                raise error
            self._failed = True
        if error is None and self._rule is not None:
            self._rule.note(index, result)
        self._outcomes[index] = outcome

    def results(self) -> list[T]:
        """The results in order of the calls, whose traces are appended to the caller's.

        If the run was stopped before all calls had begun, the node is cancelled: it runs again on a resume, and finds
        the items that were recorded. Otherwise the first failure in order is raised, one that always propagates before
        the others, or all questions if there is none. If the rule has ended the calls, neither a stop nor a question
        changes how the node ends.
        """
        ordered = [self._outcomes.pop(index) for index in sorted(self._outcomes)]
        for _, _, steps in ordered:
            append_to_trace(steps)
        ended = self._rule is not None and self._rule.ended
        cut_off = self._session.cuts_off and len(ordered) < self._count and not ended
        errors = [error for _, error, _ in ordered if error is not None]
        results = [result for result, _, _ in ordered]
        del ordered  # the traceback of an error refers to this frame, which should not refer to the error
        failures = [error for error in errors if not isinstance(error, Interrupt)]
        failures.sort(key=always_raised, reverse=True)
        questions = [question for error in errors if isinstance(error, Interrupt) for question in error.questions]
        del errors
        if cut_off:
            raise asyncio.CancelledError
        if failures:
            raise failures.pop(0)
        if questions and not ended:
            raise Interrupt(questions)
        return results
