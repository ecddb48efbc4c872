"""One execution: from the call of a node to its transition, as a script (`nodes.steps`) that a driver follows.

1. What surrounds the node, from the outside in: its layers (`layers.layer`), and innermost its call, whose reply is
   validated: what it posted and returned is folded into one patch, whose sizes are checked (`output_of`).
2. `_route`: a `Command`, the edges, or routers, which see the state after the patch.
3. The transition: patch, state and targets, which the scheduler commits.

A transition is atomic: if anything raises before it, nothing is committed.

The file has, in this order, the workers that make executions for a driver, the general path of an execution (the three
steps above), the calls of one node that run at once, and the straight path, which is the general one for plain nodes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import perf_counter, time
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar, cast

import anyio

from dspyer.errors import (
    Interrupt,
    NodeOutputError,
    RouteError,
    RunStoppedError,
    always_raised,
    annotate,
    brief,
    list_names,
)
from dspyer.graph.spec import GraphSpec, check_send
from dspyer.layers.layer import Layer, Stop, of_part
from dspyer.lm.tracing import Steps, append_to_trace, recording
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.binding import Binding
from dspyer.nodes.context import Context
from dspyer.nodes.function import FunctionNode, folded, given
from dspyer.nodes.map import Tolerance
from dspyer.nodes.module import ModuleNode
from dspyer.nodes.node import Call, Node, Output, Reply, Runner, Send
from dspyer.nodes.router import FunctionRouter
from dspyer.nodes.steps import Script, acall_function, acall_module, call_function, call_module, failure_or_questions
from dspyer.patch import DELETE, Replace, SealedPatch, diff_value
from dspyer.reducers import Updates
from dspyer.runtime.session import Session
from dspyer.scheduler.lineage import NO_CALLS
from dspyer.scheduler.schedule import Execution, Target, Transition
from dspyer.scheduler.topology import END, START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import Opaque
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.values.scalars import SCALARS
from dspyer.waiting import gives_up, may_raise
from dspyer.worker_threads import start_work

# --- concurrent work: threads for sync code, tasks for async code, and one queue of outcomes for the driver.
#
# The pattern is that of a completion queue (Java's `ExecutorCompletionService`, for example): any number of workers,
# one consumer. Work never raises into the consumer. An exception is part of its outcome, so that the driver sees
# outcomes in the order in which they arrived, failures too.
#
# - Threads are those of `dspyer.worker_threads`: as many as there is work, used again by later runs.
# - Each piece of work runs in a copy of the caller's context variables (PEP 567), and so with its DSPy settings, but
#   with a trace of its own: DSPy's trace is one list, in which concurrent nodes would mix their steps.
# - `wake` puts an empty outcome into the queue, so that a waiting consumer checks again which executions may start.


WorkOutcome = tuple[Any, BaseException | None, Steps]
"""The result or None, the exception or None, and the DSPy trace of a piece of work."""

_WAKE_UP: tuple[Any, WorkOutcome] = (None, (None, None, ()))


def run(work: Callable[..., Any], *args: Any) -> WorkOutcome:
    """Runs one piece of work with a DSPy trace of its own."""
    with recording() as steps:
        return run_here(steps, work, *args)


def run_here(steps: list[Any], work: Callable[..., Any], *args: Any) -> WorkOutcome:
    """Runs one piece of work in a recording that nothing else uses meanwhile, and empties the recording."""
    try:
        return work(*args), None, _take(steps) if steps else ()
    except BaseException as error:  # noqa: BLE001 - an outcome; the driver raises what is no Exception
        return None, error, _take(steps)


async def arun_here(steps: list[Any], work: Callable[..., Awaitable[Any]], *args: Any) -> WorkOutcome:
    """Runs async work in a recording. A cancellation is no outcome: it belongs to the task that was cancelled."""
    try:
        return await work(*args), None, _take(steps) if steps else ()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - as in run_here
        return None, error, _take(steps)


def _take(steps: list[Any]) -> Steps:
    taken = tuple(steps)
    steps.clear()
    return taken


class ThreadWorkers:
    """Sync work in threads."""

    def __init__(self) -> None:
        self._outcomes: deque[tuple[Any, WorkOutcome]] = deque()
        self._arrived: SimpleQueue[bool] = SimpleQueue()  # True for an outcome, False for a wake-up
        self.busy = 0  # how many outcomes of started work `next` has not returned

    def start(self, key: Any, work: Callable[..., Any], *args: Any) -> None:
        """Starts work; `next` returns its outcome under `key`."""
        start_work(partial(run, work, *args), partial(self._put, key))
        self.busy += 1  # after the work has started: nothing waits for what has not

    def _put(self, key: Any, outcome: WorkOutcome) -> None:
        self._outcomes.append((key, outcome))
        self._arrived.put(True)

    @property
    def done(self) -> bool:
        """Return whether `next` returns an outcome at once."""
        return bool(self._outcomes)

    @may_raise
    def next(self) -> tuple[Any, WorkOutcome]:
        """Waits for the next outcome; its key is None for a wake-up."""
        while not self._outcomes:
            if gives_up():
                raise KeyboardInterrupt
            if not self._arrived.get():
                return _WAKE_UP
        self.busy -= 1  # first: where the handler of a signal raises, an outcome may be lost, but nothing waits for it
        return self._outcomes.popleft()

    def wake(self) -> None:
        """Makes `next` return at once, with None as the key. May be called from any thread."""
        self._arrived.put(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        while self.busy and not gives_up():  # else it is left running
            self.next()


class TaskWorkers:
    """Async work in tasks of the running event loop. Plain tasks: an AnyIO task group costs six times as much each."""

    def __init__(self) -> None:
        self.busy = 0
        self._tasks: dict[asyncio.Task[None], Any] = {}
        self._done: deque[tuple[Any, WorkOutcome]] = deque()
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._here: asyncio.Task[Any] | None = None  # the consumer's own task, while it works itself
        self._here_cancelled = False

    async def run_here(self, steps: list[Any], work: Callable[..., Awaitable[Any]], *args: Any) -> WorkOutcome:
        """Returns the outcome of work that the consumer does itself; `cancel` ends it like other work."""
        task = self._here = cast("asyncio.Task[Any]", asyncio.current_task())
        before = task.cancelling()
        try:
            outcome = await arun_here(steps, work, *args)
        except asyncio.CancelledError:
            if not self._uncancelled() or task.cancelling() > before:
                raise
            # The caller has not cancelled this task: the cancellation is an outcome, as that of another task.
            return None, asyncio.CancelledError(), _take(steps)
        self._uncancelled()  # a sync node was finished
        return outcome

    def _uncancelled(self) -> bool:
        """Takes back the cancellation of the consumer's task by `cancel`; returns whether there was one."""
        assert self._here is not None
        cancelled = self._here_cancelled
        if cancelled:
            self._here.uncancel()
        self._here, self._here_cancelled = None, False
        return cancelled

    def start(self, key: Any, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Starts work; `next` returns its outcome under `key`."""
        self.busy += 1
        self._tasks[asyncio.create_task(self._run(key, work, *args))] = key

    async def _run(self, key: Any, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        # If the work raises CancelledError itself, nothing has cancelled the driver: it waits for this outcome.
        outcome: WorkOutcome = (None, asyncio.CancelledError(), ())
        try:
            with recording() as steps:
                outcome = await arun_here(steps, work, *args)
        finally:
            self._put(key, outcome)
            del self._tasks[cast("asyncio.Task[None]", asyncio.current_task())]

    def _put(self, key: Any, outcome: WorkOutcome) -> None:
        self._done.append((key, outcome))
        self._arrived.set()

    @property
    def done(self) -> bool:
        """Return whether `next` returns at once."""
        return bool(self._done)

    async def next(self) -> tuple[Any, WorkOutcome]:
        """Waits for the next outcome; its key is None for a wake-up."""
        while not self._done:
            self._arrived.clear()
            await self._arrived.wait()
        found = self._done.popleft()
        self.busy -= found is not _WAKE_UP
        return found

    def wake(self) -> None:
        """Makes `next` return at once, with None as the key. May be called from any thread."""

        def wake_up() -> None:
            self._done.append(_WAKE_UP)
            self._arrived.set()

        self._loop.call_soon_threadsafe(wake_up)

    def cancel(self) -> None:
        """Cancels what runs; `next` still returns its outcomes."""
        for task in self._tasks:
            task.cancel()
            task.add_done_callback(self._cancelled)
        if self._here is not None and not self._here_cancelled:
            self._here_cancelled = True
            self._here.cancel()

    def cancel_from_any_thread(self, _reason: str) -> None:
        """The same, for a stop signal."""
        with suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self.cancel)

    def _cancelled(self, task: asyncio.Task[None]) -> None:
        """Puts the outcome of a task that was cancelled before its first step: its `finally` never runs."""
        if task in self._tasks:
            self._put(self._tasks.pop(task), (None, asyncio.CancelledError(), ()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        if not self._tasks:
            return  # without entering a scope, which most runs do not need
        self.cancel()
        with anyio.CancelScope(shield=True):
            while self._tasks:
                # A further cancellation is dropped: tasks remain only if an exception has led here, and that one is
                # raised when this returns.
                with suppress(asyncio.CancelledError):
                    await asyncio.wait(tuple(self._tasks))


# --- the general path


def script(session: Session, execution: Execution) -> Script[Transition]:
    """The script of an execution: of a node, or of the first commit of the run."""
    return _start_script(session, execution) if execution.branch.head < 0 else _node_script(session, execution)


def _node_script(session: Session, execution: Execution) -> Script[Transition]:
    """The script of a node: within its layers, to what it commits and where the branch goes."""
    name, graph = execution.node, session.graph
    call = _call(session, execution, execution.branch.state)
    for layer in session.layers.admitting(name):
        _admit(session, layer, call)
    if session.records.questions:
        call.context.delegate.raise_if_unanswered()
    began, clock = time(), perf_counter()
    output: Output = yield from session.layers.chain(name)(call)
    patch, after, goto, targets, cached, failure, call, _, exchange = output
    if type(patch) is not SealedPatch:
        raise TypeError(
            f"a layer around node {name!r} gave an output with another patch, which the state after it does not have: "
            "change the reply, inner(replies(call, change))"
        )
    follows_edges = targets is None
    if targets is None and (check := graph.checked.get(name)) is not None:
        # The node has a check, or is its fix: the check starts at once, and sees what was sent to the node.
        targets = (Target(check.name, check.sent_on(session.run.log, name, execution.branch.head, execution.overlay)),)
    if targets is None:
        targets = _known_targets(session, name, goto)
    if targets is not None:
        transition = Transition(patch, after, targets, None, began, perf_counter() - clock)
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
    """The output of an execution, of the reply of its node: one patch of what it posted and returned, validated."""
    schema = call.runner.session.graph.topology.schema
    updates = given(call, reply.updates, schema)
    patch, after = folded(call, updates, schema, reply.whole)
    return Output(patch, after, reply.goto, None, False, None, call, updates)


def _start_script(session: Session, execution: Execution) -> Script[Transition]:
    """The script of the first commit: its patch is known (`RunStart`), and only routers at `START` are called."""
    began, clock = time(), perf_counter()
    first = session.run_start
    if (targets := _known_targets(session, execution.node)) is not None:
        return Transition(first.patch, first.state, targets, None, began, perf_counter() - clock)
    call = _call(session, execution, first.state)
    call.context.delegate.over = True
    call.context.delegate.raise_if_unanswered()
    transition = yield from _route(session, execution, call, first.patch, first.state, began, clock)
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


def _known_targets(session: Session, name: str, goto: Sequence[str | Send] | None = None) -> tuple[Target, ...] | None:
    """The targets if no router is asked: by a `Command`, or one edge; else None."""
    if goto is not None:
        return checked_targets(session.graph, name, goto)
    exits = session.graph.exits[name]
    return (Target(exits[0]),) if len(exits) == 1 and isinstance(exits[0], str) else None


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
        inline = exit_.module_name is None  # a function: no attempts of its own
        decision = yield from (exit_.script(routed) if inline else of_part(routed, "route", exit_.script))
        goto += decision.targets
        if decision.reason:
            reasons.append(decision.reason)
        if decision.updates:
            schema, author = session.graph.topology.schema, exit_.module_name or name
            commit_id = session.ids.global_id(execution.id, author)
            kept = {name: state.raw(name) for name in schema.transient if name in state}  # this is part of one commit
            updates = {**kept, **decision.updates}
            written, state = schema.commit(state, updates, node=author, commit_id=commit_id, whole_values=True)
            for field, update in written.items():
                folds = schema.reducer(field) is not None
                net = update if folds else diff_value(before.raw(field, DELETE), state.raw(field, DELETE))
                patch = {**patch, field: _both_updates(session, name, patch, field, net) if folds else net}
    duration = perf_counter() - clock
    targets = checked_targets(session.graph, name, goto)
    return Transition(patch, state, targets, "\n".join(reasons) or None, began, duration)


def _both_updates(session: Session, name: str, patch: Mapping[str, Any], field: str, update: Any) -> Any:
    """The updates of a node and of its router to one field with a reducer, as `Updates`: a join folds each of them."""
    # The first commit of a run that is not stored, or is inside a node, holds input values and not updates. There the
    # first of the `Updates` is the input, `DELETE` for none, and those after it are what routers wrote.
    holds_values = name == START and (session.log is None or session.ids.scope)
    if holds_values and not isinstance(patch.get(field), Updates):
        return Updates(Replace(session.run_start.state.raw(field)) if field in patch else DELETE, update)
    return Updates(patch[field], update) if field in patch else update


def checked_targets(graph: GraphSpec, name: str, goto: Sequence[str | Send]) -> tuple[Target, ...]:
    """The targets of a node, or a `RouteError`: equal names count once, each `Send` is a branch of its own."""
    allowed = graph.topology.own_targets(name)
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
            check_send(graph, name, target)
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
        self, calls: Sequence[Callable[[], T]], max_concurrency: int | None, rule: Tolerance | None = None
    ) -> list[T]:
        """Runs sync calls. After a failure nothing new starts, and the first failure in order is raised."""
        batch: Batch[T] = Batch(self.session, len(calls), max_concurrency, rule)
        with ThreadWorkers() as threads:
            while batch.may_start(threads.busy):
                index = batch.start()
                threads.start(index, calls[index])
                while threads.busy and not batch.may_start(threads.busy):
                    batch.put(*threads.next())
                if batch.queue is not None:
                    batch.queue.wait_for_room()  # for the events of another call
        return batch.results()

    async def agather(
        self, calls: Sequence[Callable[[], Awaitable[T]]], max_concurrency: int | None, rule: Tolerance | None = None
    ) -> list[T]:
        """Runs async calls, with the same rules."""
        batch: Batch[T] = Batch(self.session, len(calls), max_concurrency, rule)
        async with TaskWorkers() as tasks:
            while batch.may_start(tasks.busy):
                index = batch.start()
                tasks.start(index, calls[index])
                while tasks.busy and not batch.may_start(tasks.busy):
                    batch.put(*await tasks.next())
                if batch.queue is not None:
                    await batch.queue.room()
        return batch.results()


class Batch(Generic[T]):
    """The bookkeeping of a `gather`, sync or async: which calls have started, and their outcomes."""

    def __init__(
        self, session: Session, count: int, max_concurrency: int | None, rule: Tolerance | None = None
    ) -> None:
        limit = session.together.slots
        self.limit = min(limit, max_concurrency or limit)
        self.queue = session.events.queue
        self._session = session
        self._count = count
        self._rule = rule
        self._started = 0
        self._outcomes: dict[int, WorkOutcome] = {}
        self._failed = False

    def may_start(self, busy: int) -> bool:
        """Return whether another call may start while `busy` calls run."""
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


# --- the straight path
#
# A plain node, with the way out of it, as one function from an execution to its transition.
#
# Most nodes are a function or a predictor of fields alone, with nothing around them, and with one way out: an edge, or
# a router that is a field or a function of fields. What the general path (`execution`) finds out at each call of such a
# node, that there is no policy, no view, no resource and no question, is known when the graph is compiled. So a
# function is made that reads, calls, commits and routes. It gives the same transition, and raises the same errors.
#
# If something surrounds the nodes of a session, all of them take the general path (`straight_paths`). The functions are
# derived from the graph: they are made when it first runs, and no pickle holds them.


Overlay: TypeAlias = FrozenDict[str, Any] | None
Read: TypeAlias = Callable[[Session, ImmutableState, Overlay], dict[str, Any]]
"""The arguments of a call, from the state and what a `Send` has brought."""

Route: TypeAlias = Callable[[Session, ImmutableState, Overlay], tuple[Target, ...]]
WayOut: TypeAlias = tuple[Target, ...] | Route
"""The targets of an edge, or what gives those of a router from the state after the node."""

Invoke: TypeAlias = Callable[[Session, dict[str, Any]], Any]

_ABSENT: Any = object()
_NAMES = frozenset({str})
_SHARED = SCALARS | {FrozenDict, FrozenList}
_NOTHING: frozenset[type] = frozenset()
_new = tuple.__new__  # as in `schedule`


class StraightPath(NamedTuple):
    """One plain node as a function, for each of the two drivers."""

    call: Callable[[Session, Execution], Transition]
    acall: Callable[[Session, Execution], Awaitable[Transition]]


Paths: TypeAlias = Mapping[str, StraightPath | None]
_NO_PATHS: Paths = {}


def straight_paths(session: Session) -> Paths:
    """The straight path of each node that has one, by name; none if something surrounds the nodes of the session."""
    graph = session.graph
    if session.layers.per_step or session.records.questions:
        return _NO_PATHS
    paths: Paths | None = graph.derived.get("paths")
    if paths is None:
        paths = {START: _start(graph), **{name: _path(graph, node) for name, node in graph.nodes.items()}}
        graph.derived["paths"] = paths
    return paths


def _path(graph: GraphSpec, node: Node) -> StraightPath | None:
    surrounded = node.name in graph.layers or node.name in graph.checked or node.templates.in_instructions
    way_out = None if surrounded else _way_out(graph, node.name)
    if way_out is None:
        return None
    if type(node) is FunctionNode:
        return _function(graph.topology.schema, node, way_out)
    return _module(graph.topology.schema, node, way_out) if type(node) is ModuleNode else None


def _start(graph: GraphSpec) -> StraightPath | None:
    way_out = _way_out(graph, START)
    if way_out is None:
        return None

    def call(session: Session, _execution: Execution) -> Transition:
        return _first(session, way_out)

    async def acall(session: Session, execution: Execution) -> Transition:
        return call(session, execution)

    return StraightPath(call, acall)


def _function(schema: Schema, node: FunctionNode, way_out: WayOut) -> StraightPath | None:
    binding, fn, asynchronous = node.binding, node.fn, node.asynchronous
    if not _of_fields(binding) or node.goto or node.per_item or node.programs:
        return None
    read = _reader(binding)
    own = None if node.writes is None else {name for name, field in node.writes.items() if name == field}

    def reply(result: object) -> Reply:
        """The value of the function: a dict as it is, if its keys are names of fields that the node writes."""
        if type(result) is dict and (own is None or own.issuperset(result)) and _NAMES.issuperset(map(type, result)):
            return _new(Reply, (result, None, False))
        return node.reply(result)

    def invoke(_session: Session, arguments: dict[str, Any]) -> Any:
        return call_function(fn, arguments, asynchronous)

    def ainvoke(_session: Session, arguments: dict[str, Any]) -> Any:
        return acall_function(fn, arguments, asynchronous)

    return _straight(schema, node, read, (invoke, ainvoke), reply, way_out)


def _module(schema: Schema, node: ModuleNode, way_out: WayOut) -> StraightPath | None:
    name = node.name
    if not _of_fields(node.binding) or node.turns.fields or node.turns.histories:
        return None
    read = _reader(node.binding)

    def reply(result: object) -> Reply:
        return node.reply(result, {})  # the inputs are for turns of a conversation, which it has not

    def invoke(session: Session, arguments: dict[str, Any]) -> Any:
        return call_module(getattr(session.program, name), arguments)

    def ainvoke(session: Session, arguments: dict[str, Any]) -> Any:
        return acall_module(getattr(session.program, name), arguments)

    return _straight(schema, node, read, (invoke, ainvoke), reply, way_out)


def _straight(
    schema: Schema,
    node: FunctionNode | ModuleNode,
    read: Read,
    invokers: tuple[Invoke, Invoke],
    reply_of: Callable[[object], Reply],
    way_out: WayOut,
) -> StraightPath:
    name, (invoke, ainvoke) = node.name, invokers

    def committed(session: Session, execution: Execution, result: object) -> tuple[Mapping[str, Any], ImmutableState]:
        updates, _, whole = reply_of(result)
        before, commit_id = execution.branch.state, session.ids.prefix + execution.id
        return schema.commit(before, updates, node=name, commit_id=commit_id, whole_values=whole)

    def call(session: Session, execution: Execution) -> Transition:
        if execution.branch.head < 0:
            return _first(session, way_out)
        began, clock = time(), perf_counter()
        arguments = read(session, execution.branch.state, execution.overlay)
        try:
            patch, after = committed(session, execution, invoke(session, arguments))
        except (NodeOutputError, BaseExceptionGroup) as error:
            raise _as_raised(error, node)  # noqa: B904 - the same error, but for a group of questions
        return _transition(session, patch, after, execution.overlay, way_out, began, clock)

    async def acall(session: Session, execution: Execution) -> Transition:
        if execution.branch.head < 0:
            return _first(session, way_out)
        began, clock = time(), perf_counter()
        arguments = read(session, execution.branch.state, execution.overlay)
        try:
            patch, after = committed(session, execution, await ainvoke(session, arguments))
        except (NodeOutputError, BaseExceptionGroup) as error:
            raise _as_raised(error, node)  # noqa: B904 - as in `call`
        return _transition(session, patch, after, execution.overlay, way_out, began, clock)

    return StraightPath(call, acall)


def _first(session: Session, way_out: WayOut) -> Transition:
    """The first commit, of `START` or in the name of a node: its patch is known, and only the way out is not."""
    began, clock = time(), perf_counter()
    first = session.run_start
    return _transition(session, first.patch, first.state, None, way_out, began, clock)


def _as_raised(error: BaseException, node: Node) -> BaseException:
    if isinstance(error, NodeOutputError):
        error.of_module = error.of_module or node.of_module
    return failure_or_questions(error)


def _transition(
    session: Session,
    patch: Mapping[str, Any],
    after: ImmutableState,
    overlay: Overlay,
    way_out: WayOut,
    began: float,
    clock: float,
) -> Transition:
    targets = way_out if isinstance(way_out, tuple) else way_out(session, after, overlay)
    took = perf_counter() - clock
    return _new(Transition, (patch, after, targets, None, began, took, None, NO_CALLS, 1, None, (), False))


# --- reading


def _of_fields(binding: Binding) -> bool:
    """Return whether all parameters get whole fields, or what a `Send` brings."""
    others = binding.contexts or binding.resources or binding.modules or binding.whole_state or binding.rest is not None
    return not others and not any(one.view or one.computed for one in binding.fields)


def _reader(binding: Binding) -> Read:
    """The reader of the parameters of a plan of fields alone.

    Values that need nothing are passed as they are; for all others the general way to read is asked.
    """
    fields = [
        (one.name, one.field, _NOTHING if not one.readable else SCALARS if one.copy else _SHARED)
        for one in binding.fields
    ]

    def read(session: Session, state: ImmutableState, overlay: Overlay) -> dict[str, Any]:
        if overlay is None and not Opaque.alive:
            found, get = dict[str, Any](), state._map.get
            for name, field, shared in fields:
                value = get(field, _ABSENT)
                if type(value) not in shared:
                    break
                found[name] = value
            else:
                return found
        # What reads fields alone needs no context.
        return binding.bind(Call(state, cast("Any", None), session.program, overlay))

    return read


# --- the way out


def _way_out(graph: GraphSpec, name: str) -> WayOut | None:
    """The only way out of a node; None if it has none or several, or a router that needs more than fields."""
    exits = graph.exits[name]
    way = exits[0] if len(exits) == 1 else None
    if isinstance(way, str):
        return (Target(way),)
    return _function_router(name, way) if type(way) is FunctionRouter and _of_fields(way.binding) else None


def _function_router(name: str, router: FunctionRouter) -> WayOut:
    binding, fn, who = router.binding, router.fn, router.who
    read = _reader(binding)
    known = {text: (Target(names[0]),) for text, names in router.routes.by_text.items() if len(names) == 1}

    def targets(session: Session, after: ImmutableState, overlay: Overlay) -> tuple[Target, ...]:
        arguments = read(session, after, overlay)
        try:
            result = fn(**arguments)
        except Exception as error:
            annotate(error, f"in {who}")
            raise
        found = known.get(result) if type(result) is str else None
        return found or checked_targets(session.graph, name, router.resolve(result))

    return targets
