"""One execution: from the call of a node to its transition, as a script (`nodes.steps`) that a driver follows.

Every execution passes through the same layers in the same order, from the outside in:

1. `_cached`: the cache of the node, around 2 to 4. What it holds goes through 4: schemas may change.
2. `_attempts`: the retry loop of the node, around 3 and 4. What the last attempt of a tool raised becomes its output
   (`_reported`): after its own retries, and before the error edges, which take the rest.
3. `_attempt`: the call of the node, within its timeout (`Timed`).
4. `_validated`: what it posted and returned is folded into one patch, whose sizes are checked.
5. `_condensed`: the modules that shorten what it wrote, with a retry loop of their own: the node's output is kept.
6. `_route`: a `Command`, the edges, or routers, which see the state after the patch. A module router has a retry loop.
7. The transition: patch, state and targets, which the scheduler commits.

`_layered` puts 1 to 5 together; if one of them raises, it follows an error edge (`_after_failure`). An optimizer may
ask for rollouts around them (`rollouts`).

A layer that a node has not asked for is left out. A transition is atomic: if a layer raises, nothing is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

from dspyer.dspy_module.request_gate import arun_within, run_within
from dspyer.dspy_module.tracing import append_to_trace
from dspyer.errors import Interrupt, NodeOutputError, RouteError, always_raised, list_names, unwrap_stop_iteration
from dspyer.events import Question
from dspyer.failure import Failure
from dspyer.graph.spec import check_send
from dspyer.nodes.attempt import Attempt, with_posts
from dspyer.nodes.condense import condensed
from dspyer.nodes.context import Context
from dspyer.nodes.node import Call, Decision, Reply, Send, StartRule
from dspyer.nodes.node_policy import NO_POLICY, CachePlan, NodePolicy
from dspyer.nodes.outputs import mark_of_module
from dspyer.nodes.router import Router
from dspyer.nodes.steps import Script, Step, retried, retried_after, wrapped
from dspyer.nodes.streamed import Streamed
from dspyer.nodes.timed import Timed
from dspyer.patch import DELETE, Replace, diff_value
from dspyer.persistence.execution_records import RecordKey
from dspyer.reducers import Updates
from dspyer.retry import Retry
from dspyer.runtime.live import LiveSession
from dspyer.runtime.node_cache import Capture, cached
from dspyer.runtime.rollouts import asked_again
from dspyer.runtime.session import Session
from dspyer.runtime.workers import TaskWorkers, ThreadWorkers, WorkOutcome
from dspyer.scheduler.run_state import Execution, Target, Transition, last_attempt
from dspyer.scheduler.topology import END, START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.threads.graph_fingerprint import named_classes
from dspyer.values.json import decoder


def script(session: Session, execution: Execution) -> Script[Transition]:
    """The script of an execution: of a node, or of the first commit of the run."""
    found = _start_script(session, execution) if execution.branch.head < 0 else _node_script(session, execution)
    if session.tokens is not None:
        found = wrapped(found, Streamed)
    if session.spans is not None and execution.branch.head >= 0:
        found = session.spans.node(session, execution, found)
    return found


def _node_script(session: Session, execution: Execution) -> Script[Transition]:
    """The layers 1 to 7 of a node."""
    name, graph = execution.node, session.graph
    call = _call(session, execution, execution.branch.state)
    if session.records.questions or graph.interrupt_before:
        _raise_if_unanswered(session, execution)
    began, clock = time.time(), time.perf_counter()
    check, from_cache, failure = None, False, None
    if name in session.layered:
        output = yield from _layered(session, execution, call, began, clock)
        if isinstance(output, Transition):
            return output
        call, goto, _, patch, after, from_cache, failure, completions = output
        check = graph.checked.get(name)
    else:  # layers 3 and 4 alone, without a generator for those that the node has not asked for
        try:
            reply: Reply = yield graph.nodes[name], call
            goto, completions = reply.goto, reply.completions
            patch, after = _folded(session, execution, call, _given(session, call, reply), reply.whole)
        except NodeOutputError as error:
            mark_of_module(error, graph.nodes[name])
            raise
    if completions is not None:
        session.completions[execution.id] = completions
    if check is None:
        targets = _known_targets(session, name, call, goto, after)
    else:  # the node has a check, or is its fix: the check starts at once, and sees what was sent to the node
        sent = check.sent_on(session.run.log, name, execution.branch.head, execution.overlay)
        targets = (Target(check.name, sent),)
    if targets is not None:
        transition = Transition(patch, after, targets, None, began, time.perf_counter() - clock)
    else:
        transition = yield from _route(session, execution, call, patch, after, began, clock)
    if session.records.questions:
        call.context.delegate.finish()
    if isinstance(session, LiveSession):
        transition = transition._replace(live=session.exchange(execution))
    if from_cache:
        transition = transition._replace(cached=True)
    if execution.id in session.failed_attempts:
        failed = session.take_failed_attempts(execution)
        transition = transition._replace(attempt=call.context.attempt, failed_attempts=failed)
    if failure is not None:
        transition = transition._replace(failure=failure)
    return transition


# --- layers 1 to 5, and the error edges around them


class _Output(NamedTuple):
    """What an attempt or the cache gave, validated: the patch and the state after it.

    `updates` is what condensers work on. `failure` is what the output reports, if it is that of a tool that has failed.
    """

    call: Call
    goto: tuple[str | Send, ...] | None
    updates: Mapping[str, object]
    patch: Mapping[str, Any]
    after: ImmutableState
    cached: bool = False
    failure: Failure | None = None
    completions: Any = None


def _layered(
    session: Session, execution: Execution, call: Call, began: float, clock: float
) -> Script[_Output | Transition]:
    """The output of a node that has a policy, condensers, a check or error edges; or the transition along an edge."""
    name, graph = execution.node, session.graph
    policy = graph.policies.get(name, NO_POLICY)
    try:
        output = yield from _output(session, execution, policy, call)
    except Exception as error:
        if name not in graph.error_edges:
            raise
        caught = _after_failure(session, execution, call, error, began, clock)
        if caught is None:
            raise
        return caught
    rollouts = session.optimizer_layers.rollouts
    if rollouts is None:
        return output
    return (yield from asked_again(rollouts, session, execution, output, partial(_output, session, execution, policy)))


def _output(session: Session, execution: Execution, policy: NodePolicy, call: Call) -> Script[_Output]:
    """Layers 1 to 5."""
    name, graph = execution.node, session.graph
    own = NO_POLICY if graph.nodes[name].map_fields else policy  # that of a map surrounds each of its items
    if own.cache is None:
        output = yield from _attempts(session, execution, call, own)
    else:
        output = yield from _cached(session, execution, call, own, own.cache)
    if name in graph.condensers:
        output = yield from _condensed(session, execution, output, policy.retry)
    return output


def _cached(session: Session, execution: Execution, call: Call, policy: NodePolicy, plan: CachePlan) -> Script[_Output]:
    """Layer 1: the output that the cache holds, else that of the attempts, which the cache keeps."""
    graph = session.graph
    make = partial(_attempts, session, execution, call, policy)
    use, decode = partial(_validated, session, execution, call), _decoder(graph.topology.schema)
    output, hit = yield from cached(plan, graph.nodes[execution.node], graph.cache_dir, decode, call, use, make)
    return output._replace(cached=hit)


def _attempts(
    session: Session, execution: Execution, call: Call, policy: NodePolicy, capture: Capture | None = None
) -> Script[_Output]:
    """Layer 2: the output of the first attempt that succeeds."""
    attempt: Callable[[Call], Script[_Output]]
    attempt = partial(_attempt, session, execution, timeout=policy.timeout, capture=capture)
    if session.graph.nodes[execution.node].reports_in:
        return _reported(session, execution, call, policy.retry, attempt)
    return retried(policy.retry, call, attempt)


def _reported(
    session: Session,
    execution: Execution,
    call: Call,
    retry: Retry | None,
    attempt: Callable[[Call], Script[_Output]],
) -> Script[_Output]:
    """The output of the first attempt that succeeds, or else what a tool reports of the error of the last one."""
    last = call

    def noted(call: Call) -> Script[_Output]:
        nonlocal last
        last = call
        return attempt(call)

    try:
        return (yield from retried(retry, call, noted))
    except Exception as error:
        # No local may refer to the error: its traceback refers to this frame.
        found = _report(session, execution, last, cast("Exception", unwrap_stop_iteration(error)))
        if found is None:
            raise
    reply, failure = found
    return _validated(session, execution, last, reply)._replace(failure=failure)


def _report(session: Session, execution: Execution, call: Call, error: Exception) -> tuple[Reply, Failure] | None:
    """What a tool reports of an error, and the record of it; None if its node fails."""
    reply = session.graph.nodes[execution.node].error_reply(call, error)
    if reply is None:
        return None
    # The attempt is the one that commits, since the answers to its questions count; what it posted does not.
    delegate = call.context.delegate
    if session.records.questions:
        delegate.finish()
    delegate.over, delegate.posts = True, None
    session.withdraw_posts(delegate)
    failure = delegate.failure(error, delegate.number)
    session.failure_caught(execution, error, failure)
    return reply, failure


def _attempt(
    session: Session,
    execution: Execution,
    call: Call,
    timeout: float | None = None,
    capture: Capture | None = None,
) -> Script[_Output]:
    """Layers 3 and 4: calls the node once, and validates what it gave; a cache gets that before, by `capture`."""
    node = session.graph.nodes[execution.node]
    step: Step = node if timeout is None else Timed(node, timeout)
    try:
        reply: Reply = yield step, call
        if capture is not None:
            reply = capture(reply)
        return _validated(session, execution, call, reply)
    except NodeOutputError as error:
        mark_of_module(error, node)
        raise


def _validated(session: Session, execution: Execution, call: Call, reply: Reply) -> _Output:
    """Layer 4: the output of an attempt, or of the cache."""
    schema = session.graph.topology.schema
    updates = _given(session, call, reply)
    condensers = session.graph.condensers.get(execution.node)
    if condensers is None:
        patch, after = _folded(session, execution, call, updates, reply.whole)
        return _Output(call, reply.goto, updates, patch, after, completions=reply.completions)
    # What will be shortened is validated after that: it may be too long now. The rest is validated before a module is
    # called for nothing.
    others = {field: update for field, update in updates.items() if field not in condensers}
    commit_id = session.id_prefix + execution.id
    schema.commit(call.state, others, node=execution.node, commit_id=commit_id, whole_values=reply.whole)
    return _Output(call, reply.goto, updates, {}, call.state)


def _given(session: Session, call: Call, reply: Reply) -> Mapping[str, object]:
    """What a node has posted and returned, without what live fields get at once."""
    attempt = call.context.delegate
    attempt.over = True
    updates = reply.updates
    if attempt.posts is not None:
        updates = with_posts(updates, attempt.posts, session.graph.topology.schema)
    # Not an empty method of `Session`: this runs for every node, and few graphs have live fields.
    return session.post_returned(attempt, updates) if isinstance(session, LiveSession) else updates


def _folded(
    session: Session, execution: Execution, call: Call, updates: Mapping[str, object], whole: bool
) -> tuple[Mapping[str, Any], ImmutableState]:
    """The validated patch of a node, and the state after it."""
    schema, state = session.graph.topology.schema, call.state
    commit_id = session.id_prefix + execution.id
    patch, after = schema.commit(state, updates, node=execution.node, commit_id=commit_id, whole_values=whole)
    if isinstance(session, LiveSession):
        patch, after = session.with_posts(execution, patch, after)
    schema.check_state_limit(execution.node, state, patch, after)
    return patch, after


def _condensed(session: Session, execution: Execution, output: _Output, retry: Retry | None) -> Script[_Output]:
    """Layer 5: the output with what its condensers gave. They have attempts of their own."""

    def condense(call: Call) -> Script[_Output]:
        try:
            updates = yield from condensed(session.graph.condensers[execution.node], output.updates, call)
            patch, after = _folded(session, execution, call, updates, False)
        except NodeOutputError as error:
            error.of_module = True
            raise
        return output._replace(patch=patch, after=after)

    return retried_after(retry, output.call, "condense", condense)


@lru_cache(maxsize=128)
def _decoder(schema: Schema) -> Callable[[Any], Any]:
    """Reads the values of cache entries: the classes that the schema names are searched for once."""
    return decoder(named_classes(schema))


def _after_failure(
    session: Session, execution: Execution, call: Call, error: Exception, began: float, clock: float
) -> Transition | None:
    """The transition along the first error edge that takes what a node raised; None if no edge does."""
    name, raised = execution.node, unwrap_stop_iteration(error)
    edge = next((edge for edge in session.graph.error_edges[name] if edge.takes(raised)), None)
    if edge is None:
        return None
    failure = Failure.of(
        raised,
        node=name,
        branch=execution.path,
        execution=execution.id,
        attempt=last_attempt(session.failed_attempts.get(execution.id, ())),
        index=_send_index(session, execution),
    )
    patch: dict[str, Any] = {}
    after = call.state
    if edge.into is not None:
        schema, commit_id = session.graph.topology.schema, session.id_prefix + execution.id
        written = {edge.into: failure}
        patch, after = schema.commit(call.state, written, node=name, commit_id=commit_id, whole_values=True)
        schema.check_state_limit(name, call.state, patch, after)
    session.failure_caught(execution, raised, failure)
    duration = time.perf_counter() - clock
    caught = Transition(patch, after, (Target(edge.target),), None, began, duration)
    failed = session.take_failed_attempts(execution)
    return caught._replace(attempt=failure.attempt, failure=failure, failed_attempts=failed)


def _send_index(session: Session, execution: Execution) -> int | None:
    """The position of the `Send` that started an execution among the targets of its node; None if none did.

    A check and the corrections after a node are started by Sends of their own: theirs is the position of the node.
    """
    name, log, head, sent = execution.node, session.run.log, execution.branch.head, execution.overlay
    check = session.graph.checks.get(name) or session.graph.checked.get(name)
    if check is not None and check.of != name:
        of = check.visit_at(log, head).of
        head, sent = (log[of].parents[0], log[of].sent or None) if of >= 0 else (head, None)
    if sent is None:
        return None
    return execution.path[-1] if len(log[head].commit.route) > 1 else 0


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
    found = exit_.call(Call(after, context, program, overlay, resources, runner)).targets
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
        decision: Decision = (
            exit_.call(routed) if exit_.inline else (yield from _decision(session, execution, exit_, routed))
        )
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


def _decision(session: Session, execution: Execution, router: Router, call: Call) -> Script[Decision]:
    """What a module router decides; it is retried under the policy of its node."""
    policy = session.graph.policies.get(execution.node, NO_POLICY)

    def decide(call: Call) -> Script[Decision]:
        decision: Decision = yield router, call
        return decision

    return retried_after(policy.retry, call, "route", decide)


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


class NodeRunner:
    """Runs the calls of one node concurrently: the items of a map."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session

    def gather(
        self, calls: Sequence[Callable[[], T]], max_concurrency: int | None, rule: StartRule | None = None
    ) -> list[T]:
        """Runs sync calls. After a failure nothing new starts, and the first failure in order is raised."""
        batch: Batch[T] = Batch(self.session, len(calls), max_concurrency, rule)
        with ThreadWorkers(batch.limit) as threads:
            while self._has_room() and batch.may_start(threads.busy):
                index = batch.start()
                threads.start(index, *self._work(run_within, calls[index]))
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
                tasks.start(index, *self._work(arun_within, calls[index]))
                while tasks.busy and not batch.may_start(tasks.busy):
                    batch.put(*await tasks.next())
        return batch.results()

    def _has_room(self) -> bool:
        """True, once the reader of the events has room for those of another call."""
        if self.session.queue is not None:
            self.session.queue.wait_for_room()
        return True

    async def _ahas_room(self) -> bool:
        if self.session.queue is not None:
            await self.session.queue.room()
        return True

    def _work(self, within: Callable[..., Any], call: Callable[[], Any]) -> tuple[Any, ...]:
        """A call with its arguments: if the run has a budget, each item has a gate of its own."""
        spending = self.session.spending
        return (call,) if spending is None else (within, spending, call)


class Batch(Generic[T]):
    """The bookkeeping of a `gather`, sync or async: which calls have started, and their outcomes."""

    def __init__(
        self, session: Session, count: int, max_concurrency: int | None, rule: StartRule | None = None
    ) -> None:
        limit = session.max_concurrency
        self.limit = min(limit, max_concurrency or limit)
        self._session, self._spending = session, session.spending
        self._count = count
        self._rule = rule
        self._started = 0
        self._outcomes: dict[int, WorkOutcome] = {}
        self._failed = False

    def may_start(self, busy: int) -> bool:
        """Whether another call may start while `busy` calls run."""
        may = self._started < self._count and busy < self.limit and not self._failed
        may = may and (self._rule is None or self._rule.may_start)
        if may and self._spending is not None:
            self._spending.check()
        return may and not self._session.cuts_off

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
