"""One run in the making: the scheduler decides, the drivers wait, a session stands between them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from secrets import token_hex
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any

from dspyer.bond.tracing import Steps
from dspyer.building.blueprint import Blueprint
from dspyer.errors import RouteError, annotate, brief, original
from dspyer.events import (
    ConflictFound,
    Emitted,
    Event,
    MergedConflict,
    Path,
    RunEnded,
    RunStarted,
)
from dspyer.nodes import Call, Context, Decision, Node, Reply, Router, Runner, Send
from dspyer.patch import DELETE, Replace, diff_value
from dspyer.reducers import Updates
from dspyer.scheduler.lineage import lineage
from dspyer.scheduler.runstate import (
    Branch,
    Execution,
    Failure,
    RunState,
    Target,
    Transition,
    execution_id,
    path_text,
)
from dspyer.scheduler.schedule import advance, begin, plan, start
from dspyer.scheduler.topology import END, START
from dspyer.state import ImmutableState

if TYPE_CHECKING:
    import dspy

Script = Generator[tuple[Node | Router, Call], Any, Transition]
Observe = Callable[[Event], None]


logger = logging.getLogger("dspyer")


def log_conflict(conflict: MergedConflict) -> None:
    """A resolved conflict is a warning: somebody's write did not last."""
    if conflict.winner is not None:
        path = ".".join(map(str, conflict.path))
        writers = ", ".join(author for author, _ in conflict.values)
        decided = f"{brief(conflict.value)} by {conflict.winner}"
        logger.warning("join at %s: %s wrote %r, %s kept %s", conflict.join, writers, path, conflict.policy, decided)


def ignore(event: Event) -> None:
    """Where events go when nobody listens."""


class Session:
    """A run while it goes on. Made for each run, never kept on a program.

    Attributes:
        run: the run as a value; each step puts the next one here.
        events: what happened, in order of arrival, if anybody will be able to ask.
        steps: the DSPy trace of each execution.
    """

    def __init__(
        self,
        program: dspy.Module,
        blueprint: Blueprint,
        state: ImmutableState,
        resources: Mapping[type, object],
        observe: Observe = ignore,
        scope: tuple[str, ...] = (),
        keeps_events: bool = True,
    ) -> None:
        self.program = program
        self.blueprint = blueprint
        self.inputs = state
        self.resources = resources
        self.observe = observe
        self.scope = scope
        self.keeps_events = keeps_events
        self.run_id = token_hex(16)
        self.run: RunState = start(blueprint.topology)
        self.events: list[Event] = []
        self.steps: dict[str, Steps] = {}
        self.stopped = False
        self.started = time.time()
        self.duration = 0.0
        self._clock = time.perf_counter()
        self.record(RunStarted(self.run_id, blueprint.name, scope))

    def record(self, event: Event) -> None:
        """Keeps an event and shows it to whoever listens. May be called from any thread."""
        if self.scope and not event.scope:
            event = event._replace(scope=self.scope)
        if self.keeps_events:
            self.events.append(event)
        if type(event) is ConflictFound and event.scope == self.scope:
            log_conflict(event.conflict)
        if self.observe is not ignore:
            self.observe(event)

    def start_ready(self) -> list[Execution]:
        """Starts what may start, as far as `max_concurrency` goes."""
        started: list[Execution] = []
        limit = self.blueprint.max_concurrency
        run = self.run
        while not self.stopped and plan(run) and len(run.running) < limit:
            run, execution, events = begin(run)
            self.run = run
            for event in events:
                self.record(event)
            if execution is not None:
                started.append(execution)
        return started

    def finish(self, execution: Execution, outcome: Transition | BaseException, steps: Steps) -> None:
        """Folds a finished execution in."""
        if steps:
            self.steps[execution.id] = steps
        if isinstance(outcome, BaseException):
            outcome = original(outcome)
            place = f"branch {path_text(execution.path)}, visit {execution.visit}, attempt 1"
            annotate(outcome, f"in node {execution.node!r} ({place})")
        self.run, events = advance(self.run, execution.id, outcome)
        for event in events:
            self.record(event)

    def end(self) -> None:
        """Says that the run is over."""
        self.duration = time.perf_counter() - self._clock
        self.record(RunEnded(self.run_id, self.status, self.scope))

    @property
    def status(self) -> str:
        """`"completed"` or `"failed"`."""
        return "completed" if self.run.ended else "failed"

    def error(self) -> BaseException | None:
        """What stopped the run: the first failure in path order, with the others in its notes."""
        if not self.run.failures:
            return None
        first, *others = self.run.failures
        for other in others:
            what = "".join(format_exception_only(other.error)).partition("\n")[0]
            annotate(first.error, f"also failed: {other.node!r} (branch {path_text(other.path)}): {what}")
        return first.error

    def trace(self) -> list[Any]:
        """The DSPy trace in lineage order, whoever finished first. What failed comes after what its branch had done."""
        if not self.steps:
            return []
        last = len(self.run.log) - 1
        if self.run.ended and self.run.log[last].commit.id == execution_id((), last):  # it never forked
            return [step for steps in self.steps.values() for step in steps]
        heads, failed = self._heads()
        steps: list[Any] = []
        done: set[str] = set()
        for index in lineage(self.run.log, heads):
            done.add(self.run.log[index].commit.id)
            steps += self.steps.get(self.run.log[index].commit.id, ())
        for failure in failed:
            if failure.execution not in done:
                steps += self.steps.get(failure.execution, ())
        return steps

    def branches(self) -> dict[Path, ImmutableState]:
        """The state of each live branch; of a completed run, the trunk's."""
        if self.run.ended:
            return {(): self.run.resting}
        live = self._live()
        return {path: live[path].state for path in sorted(live)}

    def _live(self) -> dict[Path, Branch]:
        branches = [branch for group in (*self.run.waiting.values(), *self.run.ready) for branch in group.branches]
        branches += [execution.branch for execution in self.run.running.values()]
        branches += [branch for failure in self.run.failures for branch in failure.branches]
        return {branch.path: branch for branch in branches}

    def _heads(self) -> tuple[list[int], tuple[Failure, ...]]:
        if self.run.ended:
            return [len(self.run.log) - 1], ()
        live = self._live()
        return [live[path].head for path in sorted(live) if live[path].head >= 0], self.run.failures

    def script(self, execution: Execution, runner: Runner) -> Script:
        """What one execution does, as a script of calls: a driver makes each call in its own colour and sends the
        reply back.

        A transition is whole: if the node, the validation or a router raises, nothing of it is committed.
        """
        if execution.node == START:
            return self._begin_script(execution, runner)
        return self._node_script(execution, runner)

    def _begin_script(self, execution: Execution, runner: Runner) -> Script:
        began, clock = time.time(), time.perf_counter()
        patch = {name: diff_value(DELETE, value) for name, value in self.inputs.raw_items()}
        ways = self.blueprint.exits[START]
        if len(ways) == 1 and isinstance(ways[0], str):
            return Transition(patch, self.inputs, (Target(ways[0]),), None, began, time.perf_counter() - clock)
        call = self._call(execution, self.inputs, runner)
        return (yield from self._leave(execution, call, patch, self.inputs, began, clock))

    def _node_script(self, execution: Execution, runner: Runner) -> Script:
        began, clock = time.time(), time.perf_counter()
        name = execution.node
        state = execution.branch.state
        call = self._call(execution, state, runner)
        reply: Reply = yield self.blueprint.nodes[name], call
        schema = self.blueprint.topology.schema
        patch, after = schema.commit(
            state, reply.updates, node=name, commit_id="/".join((*self.scope, execution.id)), whole=reply.whole
        )
        if reply.goto is not None:
            targets = self._targets(name, reply.goto)
            return Transition(patch, after, targets, None, began, time.perf_counter() - clock)
        ways = self.blueprint.exits[name]
        if len(ways) == 1:
            way = ways[0]
            if isinstance(way, str):
                return Transition(patch, after, (Target(way),), None, began, time.perf_counter() - clock)
            if way.inline:
                routed = Call(after, call.context, call.program, call.overlay, call.resources, call.runner)
                goto = way.decide(routed).targets  # a router gives its own targets only
                first = goto[0]
                if len(goto) == 1 and isinstance(first, str):
                    return Transition(patch, after, (Target(first),), None, began, time.perf_counter() - clock)
                targets = self._targets(name, goto)
                return Transition(patch, after, targets, None, began, time.perf_counter() - clock)
        return (yield from self._leave(execution, call, patch, after, began, clock))

    def _leave(
        self, execution: Execution, call: Call, patch: dict[str, Any], state: ImmutableState, began: float, clock: float
    ) -> Script:
        """Follows the edges and routers of a node; what a module router writes belongs to the same transition."""
        name = execution.node
        goto: list[str | Send] = []
        reasons: list[str] = []
        before = execution.branch.state
        for way in self.blueprint.exits[name]:
            if isinstance(way, str):
                goto.append(way)
                continue
            routed = Call(state, call.context, call.program, call.overlay, call.resources, call.runner)
            decision: Decision = way.decide(routed) if way.inline else (yield way, routed)
            goto += decision.targets
            if decision.reason:
                reasons.append(decision.reason)
            if decision.updates:
                schema, author = self.blueprint.topology.schema, way.module_name or name
                commit_id = "/".join((*self.scope, execution.id, author))
                written, state = schema.commit(state, decision.updates, node=author, commit_id=commit_id, whole=True)
                for field, update in written.items():
                    folds = schema.reducer(field) is not None
                    net = update if folds else diff_value(before.raw(field, DELETE), state.raw(field, DELETE))
                    patch = {**patch, field: self._both(name, patch, field, net) if folds else net}
        duration = time.perf_counter() - clock
        return Transition(patch, state, self._targets(name, goto), "\n".join(reasons) or None, began, duration)

    def _both(self, name: str, patch: Mapping[str, Any], field: str, update: Any) -> Any:
        """What a node and its router did to a field with a reducer: a join, or the graph outside, folds each update."""
        if name == START and not isinstance(patch.get(field), Updates):  # what the run was given is no update
            return Updates(Replace(self.inputs.raw(field)) if field in patch else DELETE, update)
        return Updates(patch[field], update) if field in patch else update

    def _targets(self, name: str, goto: Sequence[str | Send]) -> tuple[Target, ...]:
        """Equal names count once; each `Send` is a branch of its own. What is no declared target is refused."""
        allowed = self.blueprint.topology.targets(name)
        if len(goto) == 1 and isinstance(goto[0], str) and goto[0] in allowed:
            return (Target(goto[0]),)
        targets: dict[Any, Target] = {}
        for i, way in enumerate(goto):
            node = way if isinstance(way, str) else way.node
            if node == END and not isinstance(way, str):
                raise RouteError(f"node {name!r} sent a branch to END: return END to finish the branch, not Send(END)")
            if node not in allowed:
                raise RouteError(
                    f"node {name!r} went to {node!r}, which is none of its targets: {', '.join(map(repr, allowed))}. "
                    "Declare it with an edge, in the path map of the router, or with add_node(goto=[...])"
                )
            if isinstance(way, str):
                targets.setdefault(way, Target(way))
            else:
                targets[i] = Target(node, way.overlay)
        if not targets:
            raise RouteError(
                f"node {name!r} has nowhere to go: return the name of a target, or END to finish the branch"
            )
        return tuple(targets.values())

    def _call(self, execution: Execution, state: ImmutableState, runner: Runner) -> Call:
        def sink(value: object) -> None:
            self.record(Emitted(execution.node, execution.path, execution.id, value))

        context = Context(self.run_id, execution.node, execution.path, execution.visit, execution.id, sink)
        return Call(state, context, self.program, execution.overlay, self.resources, runner)
