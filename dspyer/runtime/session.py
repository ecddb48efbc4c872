"""The session: one run in progress, between the scheduler, which decides, and the drivers, which wait.

A session holds the `RunState` (a value) and replaces it with the next one at each step. A driver repeats three steps:
`start_ready` returns the executions that may start, the driver runs them, `finish` passes an outcome to the scheduler.
The session decides nothing about the graph; it adds what the pure scheduler must not know: events, traces, questions of
breakpoints after nodes, and the rows that a stored run has not written yet.

In a stored run the order is that of a write-ahead log (see `log.journal`): a commit is written, then its event
is published, then what depends on the commit starts. So no reader of the stream sees a commit that a crash could undo,
and no call depends on such a commit.
"""

from __future__ import annotations

import logging
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as made
from functools import partial
from traceback import format_exception_only
from typing import Any, NamedTuple

import dspy

from dspyer.clock import TimeLimit
from dspyer.errors import (
    ConcurrentRunError,
    Interrupt,
    RunStoppedError,
    always_raised,
    annotate,
    brief,
    drop_tracebacks,
    unwrap_stop_iteration,
)
from dspyer.events import (
    Answered,
    Asked,
    AttemptFailed,
    BranchPath,
    ConflictFound,
    Doing,
    Emitted,
    Event,
    MergedConflict,
    NodeFailed,
    Posted,
    Question,
    RunEnded,
    RunStarted,
    Token,
    TraceStep,
    own_copy,
)
from dspyer.failure import Failure
from dspyer.graph.spec import GraphSpec
from dspyer.ids import RunIds, full_id, id_prefix, path_text
from dspyer.layers.layer import USING, Layer, RunLayers
from dspyer.lm.tap import LMWatcher, Spent
from dspyer.lm.tracing import Steps, executing_id, is_apart
from dspyer.log.execution_records import (
    AnswerSource,
    ExecutionRecords,
    RecordKey,
)
from dspyer.log.rows import DraftRow, LayerRow
from dspyer.nodes.attempt import Attempt, AttemptHost, Peer, Together
from dspyer.nodes.node import Call
from dspyer.patch import DELETE, Replace, SealedPatch, seal, update_size
from dspyer.reducers import Updates
from dspyer.runtime.lineage_order import LostSteps, trace_of, trace_steps_of, uncredited, unfinished_branches
from dspyer.runtime.repairs import KeptLog, log_rejection
from dspyer.runtime.request import FAILED_BESIDE, Inside, Request, RunStart
from dspyer.runtime.run_log import KeptCommits, RunLog
from dspyer.runtime.session_views import Fields, ReadSources, RunViews
from dspyer.scheduler.lineage import decided_by
from dspyer.scheduler.schedule import (
    Advanced,
    Branch,
    Execution,
    FailedBranch,
    Group,
    RunState,
    Suspended,
    Transition,
    advance,
    begin,
    last_attempt,
    limit_error,
    only_end_is_left,
)
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze
from dspyer.values.frozen import thaw
from dspyer.views import ViewRead
from dspyer.waiting import StopSignal

logger = logging.getLogger("dspyer")

CAN_RESUME = "What it has committed is kept: continue it with thread.resume()"
CANNOT_RESUME = "Start it again; if it is stored, program.thread('a name').run(...), it can be continued with resume()"
STOPPED_BY_THREAD = "thread.stop() was called"


@dataclass(slots=True, eq=False)
class ExecutionNotes:
    """Records that the executions of a run leave beside their commits.

    Attributes:
        traces: the DSPy trace of each execution, by id; that of a trial of a search under the id of the trial.
        lost: the DSPy trace of attempts that raised, by execution, each with the execution (of an item) and the number.
        failed_attempts: the attempts that another one followed, by execution, until it is committed or fails; those of
            the items of a map are under the execution of the map.
        logs: by scope, the logs of graphs inside of nodes where a check refused or an agent took turns, and of those
            around them.
        view_reads: the views that nodes have read, for `Run.tokens`.
    """

    traces: dict[str, Steps]
    lost: dict[str, list[LostSteps]] = made(default_factory=dict)
    failed_attempts: dict[str, list[Failure]] = made(default_factory=dict)
    logs: dict[tuple[str, ...], KeptLog] = made(default_factory=dict)
    view_reads: list[ViewRead] = made(default_factory=list)


class Session(AttemptHost):
    """One run in progress. Made for each run, never kept on a program.

    Attributes:
        program: the program, whose attributes are the modules of the nodes.
        graph: its graph.
        run_start: the run before the first commit of this process.
        run: the run as a value; each step replaces it.
        ids: its ids.
        inside: where it is, if it is a part of another run; None for an outermost one.
        resources: objects by type, for parameters that are annotated with it.
        answer: answers questions as they are asked.
        records: the results of effects, answers and items of a map, of earlier attempts too; with the journal.
        log: what it has still to write; None for a run that is not stored.
        kept: what has been committed, for another attempt of the node around the run; None for an outermost run.
        notes: what its executions leave beside their commits.
        events: keeps and publishes its events.
        layers: the layers around its nodes.
        together: what its executions know of each other, and of its slots.
        stop_signal: says whether the run is to stop, and why.
        failed: stops what runs inside of nodes, once a branch has failed.
        began: when it began, by the wall clock and by the performance counter, in seconds.
    """

    def __init__(
        self,
        program: dspy.Module,
        run_start: RunStart,
        request: Request,
        layers: tuple[Layer, ...],
        resources: Mapping[type, object],
        answer: AnswerSource,
    ) -> None:
        self.began = time.time(), time.perf_counter()
        self.program = program
        self.graph: GraphSpec = vars(program)["_graph"]  # `__getattribute__` of a `dspy.Module` takes a microsecond
        if type(run_start.patch) is not SealedPatch:
            run_start = run_start._replace(patch=seal(run_start.patch))
        self.run_start = run_start
        self.run: RunState = run_start.run
        self.inside = inside = request.inside
        nodes = self.graph.nodes
        self.ids = _ids_of(run_start, inside)
        self.resources = resources
        self.answer = answer
        slots = None if inside is None else inside.max_concurrency  # the outermost program decides for all runs inside
        self.together = Together(request.options.live, slots or self.graph.max_concurrency)
        self.stop_signal = request.stop_signal
        self.failed = StopSignal()
        self.records = records = request.records or ExecutionRecords()
        journal = records.journal
        self.log = None if journal is None else RunLog(run_start, records, journal, self.ids, nodes)
        self.kept = None if inside is None else KeptCommits(run_start, records, self.ids, nodes, inside)
        self.notes = ExecutionNotes(dict(run_start.kept.traces))
        self._fields: Fields | None = None
        self._to_restart = list(run_start.run.running._data.values())
        self.layers = self._layers_of(layers)
        self.events = SessionEvents(self.layers, request, self.ids, self.log)
        if self.events.heard:
            topology = self.graph.topology
            shapes = topology.schema.field_shapes
            self.events.publish(RunStarted(run_start.run_id, topology.name, shapes, scope=self.ids.scope))
        for event in self._answered() if records.delivered else ():
            self.events.publish(event)

    def _layers_of(self, asked: Sequence[Layer]) -> RunLayers:
        """The layers of the run; all runs that have none but those of their kinds of nodes share one value."""
        graph, using = self.graph, dspy.settings.get(USING) or ()
        if asked or using or graph.around or graph.of_runs or graph.layers:
            return RunLayers(graph, asked, using, self)
        shared: RunLayers | None = graph.derived.get("layers")
        if shared is None:
            shared = graph.derived["layers"] = RunLayers(graph)
        return shared

    # --- where it is

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.ids.run_id

    @property
    def scope(self) -> tuple[str, ...]:
        """The executions around the run, if it is a part of another one."""
        return self.ids.scope

    def rows(self, kind: str) -> list[Any]:
        """The bodies of the rows of a kind that layers have added to its commits, in order (`Layer.rows`)."""
        known, local_id = self.records.with_commit, self.ids.local_id
        rows = [row for entry in self.run.log for row in known.get(local_id(entry.commit.id), ())] if known else ()
        return [thaw(row.body) for row in rows if isinstance(row, LayerRow) and row.name == kind]

    def reads(self) -> ReadSources:
        """The reads of its commits so far, for a layer that asks at its end."""
        return ReadSources(self.graph, self.fields, self.run.log, self.notes.view_reads)

    @property
    def limit(self) -> TimeLimit | None:
        """The time that the node has in which the run is; None for no limit."""
        return None if self.inside is None else self.inside.limit

    @property
    def fields(self) -> Fields:
        """The items or keys of each field with their authors, for views. Nothing is computed before a view is read."""
        if self._fields is None:
            start, ids = self.run_start, self.ids
            # A run on a thread begins with updates of what the thread has.
            whole = self.log is None or bool(ids.scope)
            self._fields = Fields(self.graph.topology.schema, whole, ids.prefix, start.earlier, start.id_prefixes)
        return self._fields

    # --- what a driver calls

    def start_ready(self) -> list[Execution]:
        """Begins the executions that may start, at most `max_concurrency` at once besides those that are parked."""
        started: list[Execution] = []
        together = self.together
        with together.lock:
            limit = together.slots + len(together.parked)
            if self._to_restart and self._may_start:
                executions, self._to_restart = self._to_restart, []
                for one in executions:  # which were running when an earlier process ended
                    error = limit_error(self.run.topology, one.branch, one.node)
                    if error is None:
                        started.append(one)
                    else:  # the limit is lower than in the earlier process
                        self.finish(one, error, ())
            while (
                self.run.ready._chain is not None  # `plan`, without its calls: this runs for every node
                and not self.run.failures
                and ((self.stop_signal.reason is None and self.log is None) or self._may_start)
                and len(self.run.running._data) < limit
            ):
                try:
                    position = 0 if not self.layers.stops_after else self._next_position()
                    if position is None:
                        break
                    self.run, execution, events = begin(self.run, position, None, bool(self.events.heard))
                except CancelledError:  # what answers, or a merge policy, was refused an LM call: a resume asks again
                    if not self.stopped:
                        raise
                    break
                if events:
                    self.events.publish_once_written(events)
                if execution is not None:
                    started.append(execution)
            if together.posts is not None:
                together.posts.look()
        if self.run.failures:
            self.failed.stop(FAILED_BESIDE, RunStoppedError("", FAILED_BESIDE))
        return started

    def _with_rows(
        self, execution: Execution, outcome: Transition | BaseException
    ) -> tuple[Transition | BaseException, Advanced | None]:
        """Keeps what the layers add to the commit of a transition; what one raises is the outcome in its place.

        Returns the outcome with what follows of it, a value: nothing is noted before the layers have been asked.
        """
        if not isinstance(outcome, Transition):
            return outcome, None
        made = advance(self.run, execution.id, outcome, heard=bool(self.events.heard))
        commit = made[0].log[-1].commit
        place = self.ids.local_id(commit.id)
        try:
            self.records.with_commit[place] = self.layers.rows(commit, place)
        except Exception as error:  # noqa: BLE001 - of a layer
            return error, None
        return outcome, made

    def finish(self, execution: Execution, outcome: Transition | BaseException, steps: Steps) -> None:
        """Passes the outcome of an execution to the scheduler, which commits it or records the failure."""
        self.together.doing.pop(execution.id, None)
        if (self.log is not None and self.log.error is not None) or (self.kept is not None and self.kept.handed_over):
            return  # nothing can be written any more, or would count, so nothing more is committed
        if isinstance(outcome, ConcurrentRunError) and self.log is not None and self.log.journal.broken is not None:
            # An effect or a post was refused, as the commit would have been: no failure.
            self.write_failed(self.log, outcome)
            return
        outcome, made = self._with_rows(execution, outcome) if self.layers.writes else (outcome, None)
        if steps and isinstance(outcome, Transition) and outcome.failure is not None:
            lost = LostSteps(0, outcome.failure.attempt, steps)  # an error edge leads on
            self.notes.lost.setdefault(execution.id, []).append(lost)
        elif steps:
            self.notes.traces[execution.id] = steps
        found: Transition | Suspended | BaseException = outcome
        failed: tuple[Failure, ...] = ()
        if isinstance(outcome, Interrupt):
            found = Suspended(outcome.questions)
        elif isinstance(outcome, BaseException):
            found = unwrap_stop_iteration(outcome)
            failed = self.take_failed_attempts(execution)
            self._annotate(execution.node, execution.path, execution.visit, found, last_attempt(failed))
        else:
            if execution.node in self.graph.rejecting:
                log_rejection(self.graph.rejecting[execution.node], outcome, self.layers.shown)
            if self.records.questions:
                self.records.end_questions(self.ids.local_id(execution.id))
            if self.records.kept:
                for scope in self.records.kept_within(self.ids.scope, execution.id):
                    self.records.kept.pop(scope, None)
        if self.records.lm_calls is not None and isinstance(outcome, BaseException):
            for row in self.records.lm_call_rows(self.ids.local_id(execution.id)):
                self.records.queue_row(row)
        self.run, events = made or advance(self.run, execution.id, found, failed, bool(self.events.heard))
        if self.records.delivered:
            events = [*self._answered(), *events]
        if events:
            self.events.publish_once_written(events)

    def take_failed_attempts(self, execution: Execution) -> tuple[Failure, ...]:
        """The attempts of an execution that another one followed; those of the items of a map in item order."""
        failed = self.notes.failed_attempts.pop(execution.id, [])
        # The sort is stable: the attempts of one item keep their order, and so do those of the node.
        return tuple(sorted(failed, key=lambda failure: (failure.index is None, failure.index or 0)))

    def failure_caught(self, call: Call, error: BaseException, failure: Failure) -> None:
        """Reports a failure after which the run goes on, before it is committed. May be called from any thread."""
        node, path = call.context.node, call.context.branch
        self._annotate(node, path, call.context.visit, error, failure.attempt)
        self.layers.shown(error, failure)
        self.publish(NodeFailed(node, path, call.context.delegate.execution, error))

    def _annotate(self, node: str, path: BranchPath, visit: int, error: BaseException, attempt: int) -> None:
        """Notes on an exception where it was raised. Attempts count within one process: a resume begins with 1."""
        resumes = self.records.resumes
        after = "" if not resumes else f" after {resumes} resume{'s' if resumes > 1 else ''}"
        of = f" of graph {self.graph.name!r}" if self.ids.scope else ""  # nested nodes may have one name
        annotate(error, f"in node {node!r}{of} (branch {path_text(path)}, visit {visit}, attempt {attempt}{after})")

    def leave_open(self, execution: Execution) -> None:
        """Leaves an execution that was cancelled, or not called, without an outcome; `resume` calls it again.

        It is still in `run.running`, and holds no slot.
        """
        self.together.parked[execution.id] = ""

    @property
    def more_to_start(self) -> bool:
        """Return whether another execution could start at once, if there were a slot for it."""
        run = self.run
        return run.ready._chain is not None and not run.failures

    @property
    def stopped(self) -> bool:
        """Return whether no further execution starts: the run was stopped, or a write has failed."""
        return self.stop_signal.reason is not None or (self.log is not None and self.log.error is not None)

    @property
    def cuts_off(self) -> bool:
        """Return whether the runs inside of nodes, and maps, end before their next node or item."""
        return self.stop_signal.reason is not None or self.failed.reason is not None

    @property
    def _may_start(self) -> bool:
        """Return whether another execution may start: `END`, which calls no node, also if a stop lets nodes finish."""
        if self.log is not None and self.log.error is not None:
            return False
        if self.stop_signal.reason is None:
            return True
        return self.only_begins or (isinstance(self.stop_signal.error, RunStoppedError) and only_end_is_left(self.run))

    @property
    def only_begins(self) -> bool:
        """Return whether the first commit of a run inside of a node is due, although a stop lets nodes finish.

        It calls no node, and by it a resume knows that the node had begun.
        """
        return bool(self.ids.scope) and not len(self.run.log) and isinstance(self.stop_signal.error, RunStoppedError)

    @property
    def outermost(self) -> StopSignal:
        """The signal that stops the outermost run."""
        inside = self.inside
        return self.stop_signal if inside is None or inside.outermost is None else inside.outermost

    def _next_position(self) -> int | None:
        """The index of the first ready group that does not wait for an answer of a breakpoint after a node."""
        for position, group in enumerate(self.run.ready):
            try:
                held = [self._waits_after(branch) for branch in group.branches]  # a list: each branch asks its question
            except Exception as error:  # noqa: BLE001 - raised by the user's function of answers: it fails the run
                self._fail(group, error)
                return None
            if not any(held):
                return position
        return None

    def _waits_after(self, branch: Branch) -> bool:
        """Return whether a branch waits for the answer of a breakpoint after its last node; asks for it once."""
        if branch.head < 0:
            return False
        commit = decided_by(self.run.log, branch.head).commit  # a person who edits what it wrote has not answered
        if commit.node not in self.layers.stops_after:
            return False
        text = f"{commit.node!r} has run; continue?"
        question = Question(
            "after", text, None, commit.node, commit.branch, self.ids.local_id(commit.id), self.ids.label
        )
        known = RecordKey(question.execution, question.key) in self.records.questions
        if self.records.ask(question, self.answer):
            return False
        if not known:
            self.events.publish_once_written([Asked(question)])
        return True

    def _fail(self, group: Group, error: Exception) -> None:
        branch = group.branches[0]
        node = self.run.log[branch.head].commit.node
        failure = FailedBranch(branch.path, node, branch.id, error, tuple(group.branches), group.position)
        self.run = self.run._replace(failures=(*self.run.failures, failure))
        self.events.publish_once_written([NodeFailed(node, branch.path, branch.id, error)])

    # --- events

    def _answered(self) -> list[Event]:
        """The events of the answers that were given since the last call."""
        return [Answered(replace(one, value=thaw(one.value))) for one in self.records.take_delivered()]

    def publish(self, event: Event) -> None:
        """Keeps an event and passes it on. May be called from any thread."""
        self.events.publish(event)

    # --- what a node asks of its run (as `AttemptHost`)

    @property
    def views(self) -> RunViews:
        """The source of the nodes' views, as of now."""
        return RunViews(self.graph, self.fields, self.run.log, self.notes.view_reads)

    def posted(self, attempt: Attempt, field: str, value: object) -> None:
        """Numbers and publishes a post that waits for the commit of its node. May be called from any thread."""
        together, execution = self.together, attempt.outer_execution
        with together.lock:  # events come in the order of the numbers
            together.posted = seq = together.posted + 1
            if not self.events.heard:
                return
            update: Any = value if value is DELETE or isinstance(value, Replace | Updates) else freeze(value)
            how = self.graph.topology.schema.operation(field, update)
            place = (field, attempt.node, attempt.branch, execution)
            self.publish(Posted(*place, seq, update_size(update), update, how, time.time(), live=False))
        if self.events.queue is not None:
            self.events.queue.wait_for_room()  # without the lock

    def attempt_failed(self, attempt: Attempt, number: int, error: Exception, pause: float) -> None:
        """Records an attempt that another one follows after `pause` seconds. May be called from any thread."""
        failure = attempt.failure(error, number)
        self.notes.failed_attempts.setdefault(attempt.outer_execution, []).append(failure)  # both atomic
        shown = self.layers.shown(error, failure)
        self.publish(AttemptFailed(attempt.node, attempt.branch, attempt.execution, number, error, pause))
        logger.info("%s, attempt %d failed, the next one in %.1f s: %r", attempt.who, number, pause, shown)
        # The event outlives the attempt. A traceback would keep the frames of the attempt, and all their values.
        drop_tracebacks(error)

    def lose_steps(self, attempt: Attempt, number: int, steps: Steps) -> None:
        """Keeps the steps of an attempt that raised: they are paid for, and led to nothing. From any thread.

        Those of a run inside it that the next attempt continues are not lost.
        """
        if steps and self.records.kept:
            within = [self.records.kept[scope] for scope in self.records.kept_within(self.ids.scope, attempt.execution)]
            used = {id(step) for run in within for one in run.traces.values() for step in one}
            steps = tuple([step for step in steps if id(step) not in used])
        if steps:
            lost = LostSteps(attempt.index or 0, number, steps)
            self.notes.lost.setdefault(attempt.outer_execution, []).append(lost)

    def lost_steps(self) -> list[Steps]:
        """The steps that led to nothing, for a run around this one: of attempts that raised, of trials that lost."""
        found = [lost.steps for execution in sorted(self.notes.lost) for lost in self.notes.lost[execution]]
        return [*found, *uncredited(self.run, self.graph, self.notes.traces)]

    def hold_steps(self, attempt: Attempt, steps: Steps) -> None:
        """Keeps the steps of a trial. May be called from any thread."""
        if steps:
            self.notes.traces[attempt.execution] = steps

    def peers(self, attempt: Attempt) -> list[Peer]:
        """The other nodes of the graph that are running. May be called from any thread."""
        together, own = self.together, attempt.outer_execution
        if not together.visible:
            return []
        others = [one for one in self.run.running.values() if one.id != own and one.branch.head >= 0]
        found = [
            Peer(one.node, one.path, one.visit, together.doing.get(one.id, ""), together.parked.get(one.id, ""))
            for one in sorted(others, key=lambda one: (one.path, one.id))
        ]
        around = None if self.inside is None else self.inside.live
        return found if around is None else [*found, *around.attempt.host.peers(around.attempt)]

    # --- writes

    def written(self, log: RunLog) -> None:
        """Publishes the events whose rows are now written."""
        for event in log.written(self.run):
            self.events.publish(event)

    def write_failed(self, log: RunLog, error: BaseException) -> None:
        """Returns to the run as it was last written: the store failed, or refused a value. Nothing more starts."""
        self.run = log.failed(error)
        self.stop_signal.stop("its store failed")  # ends the pauses between attempts

    def end_rows(self, log: RunLog) -> list[DraftRow]:
        """The last rows of the run."""
        if (error := log.lm_call_error()) is not None:
            self.write_failed(log, error)
        self._show_failures()
        run, failures = self.run, [(failed.failure, failed.error) for failed in self.run.failures]
        refused = log.failures()
        status = self.ending[0]
        if self.refusal is not None and status == "failed" and not failures + refused:
            # The execution whose LM call was refused was left open; a response of unknown cost has been committed.
            places = [(one.node, one.path, one.id) for one in run.running.values()]
            places += [(entry.commit.node, entry.commit.branch, entry.commit.id) for entry in run.log[-1:]]
            node, path, execution = places[0] if places else (START, (), "")
            failure = Failure.of(self.refusal, node=node, branch=path, execution=execution)
            refused.append((failure, self.refusal))
        failures += [(self.layers.shown(one, ends=True), self.layers.shown(error, ends=True)) for one, error in refused]
        return log.end_rows(run, status, failures, self.graph.hidden)

    # --- how the run ended

    def keep_commits(self) -> None:
        """Keeps what a run inside a node has committed, for the next attempt of the node."""
        if self.kept is not None:
            self.kept.keep(self.run if self.log is None else self.log.run, self.notes.traces)

    def hand_over(self) -> None:
        """Keeps what is committed, and nothing from here on: the run goes on in a thread that is left running."""
        self.keep_commits()
        assert self.kept is not None  # a node is around the run: it has timed out
        self.kept.handed_over = True

    def end(self) -> SessionEnd:
        """Publishes the end of the run, and returns how it ended."""
        duration = time.perf_counter() - self.began[1]
        if self.run.failures:
            self._show_failures()
        status, error, questions = self.ending
        if self.events.heard:
            self.events.publish(RunEnded(self.ids.run_id, status, scope=self.ids.scope))
        if status != "completed":
            error = self.layers.shown(error, ends=True)  # open questions are shown as they were asked
        ended = SessionEnd(self, self.run, status, error, questions, self.events.kept, duration)
        vars(self).pop("first_trial_error", None)  # its traceback refers to frames of the run
        self.events.kept = []
        return ended

    @property
    def ending(self) -> tuple[str, BaseException | None, tuple[Question, ...]]:
        """The status of the run when it ends, why it is not completed, and the questions that it waits for."""
        run, log = self.run, self.log
        if log is not None and log.stopped_at is not None:
            return "stopped", RunStoppedError("", STOPPED_BY_THREAD).told(self.graph.name, CAN_RESUME), ()
        if log is not None and log.error is not None:
            return "failed", log.error, ()
        if run.failures:
            return "failed", self._first_failure(), ()
        if run.ended:
            return "completed", None, ()
        if self.refusal is not None:
            return "failed", self.refusal, ()
        if questions := self.questions():
            return "interrupted", None, questions
        if run.suspended and self.stop_signal.reason is None and self.ids.scope:
            return "interrupted", None, ()  # what it waits for may come when the run around it is resumed
        stopped = self.stop_signal.error
        if not isinstance(stopped, RunStoppedError):
            stopped = RunStoppedError("", self.stop_signal.reason or "")
        can_resume = log is not None and log.journal.thread
        return "stopped", stopped.told(self.graph.name, CAN_RESUME if can_resume else CANNOT_RESUME), ()

    def _first_failure(self) -> BaseException:
        """The first failure in path order, with the others in its notes."""
        first, *others = self.run.failures
        if self.ids.scope:  # what no retry and no error edge may take must reach those of the node around the run
            first, *others = sorted(self.run.failures, key=lambda failure: not always_raised(failure.error))
        for other in others:
            what = "".join(format_exception_only(other.error)).partition("\n")[0]
            annotate(first.error, f"also failed: {other.node!r} (branch {path_text(other.path)}): {what}")
        return first.error

    @property
    def refusal(self) -> Exception | None:
        """The failure that has stopped the outermost run, which is none of a node: it could not begin, or go on."""
        error = self.stop_signal.error
        return None if self.ids.scope or isinstance(error, RunStoppedError) else error

    def questions(self) -> tuple[Question, ...]:
        """The open questions; none while something can run without their answers."""
        run = self.run
        if run.ended or run.failures or run.running or (self.log is not None and self.log.error is not None):
            return ()
        within = self.ids.local_id("") if self.ids.scope else ""
        found = [question for question in self.records.open_questions() if question.execution.startswith(within)]
        if self.stopped and self._could_continue({question.execution for question in found}):
            return ()
        return tuple(found)

    def _could_continue(self, asked: set[str]) -> bool:
        """Return whether a stopped run could start an execution other than those `asked`, which have open questions."""
        answers = self.records.answers
        for _, suspended in self.run.suspended.values():
            if all(RecordKey(question.execution, question.key) in answers for question in suspended.questions):
                return True
        return any(
            not any(self.ids.local_id(branch.id) in asked for branch in group.branches) for group in self.run.ready
        )

    def trace(self, run: RunState, whole: bool = False) -> list[Any]:
        """The DSPy trace of the run; `run` has the failures, which the session drops at its end.

        For the run around it, the trace is `whole`: with the steps that are only counted.
        """
        if not self.notes.traces:
            return []
        found = trace_of(run, self.graph, self.notes.traces)
        return found if whole else [step for step in found if not is_apart(step[0])]

    def trace_steps(self, run: RunState) -> list[TraceStep]:
        """All steps of the DSPy trace, in the order of `trace`, each with what became of it."""
        traces, lost = self.notes.traces, self.notes.lost
        return trace_steps_of(run, self.graph, traces, lost) if traces or lost else []

    def _show_failures(self) -> None:
        """Leaves of the failures what may be shown."""
        shown = [one._replace(error=self.layers.shown(one.error, ends=True)) for one in self.run.failures]
        self.run = self.run._replace(failures=tuple(shown))


def _ids_of(start: RunStart, inside: Inside | None) -> RunIds:
    label, run_id = start.label, start.run_id
    if inside is None:
        return RunIds(run_id, run_id, full_id(*label), (), id_prefix(*label), "", executing_id())
    scope = inside.scope
    around, prefix = id_prefix(*scope), id_prefix(*label, *scope)
    return RunIds(run_id, inside.root or run_id, full_id(*label), scope, prefix, around, "")


class SessionEnd(NamedTuple):
    """The end of a session.

    Attributes:
        status: `"completed"`, `"failed"`, `"interrupted"` or `"stopped"`.
        error: why the run is not completed; None for one that is, or that waits for answers.
        questions: the questions that the run waits for.
        events: the events, if they were kept.
        duration: how long it took, in seconds.
    """

    session: Session
    run: RunState
    status: str
    error: BaseException | None
    questions: tuple[Question, ...]
    events: list[Event]
    duration: float = 0.0

    def branches(self) -> dict[BranchPath, ImmutableState]:
        """The state of each unfinished branch; of a completed run, the trunk's."""
        if self.run.ended:
            return {(): self.run.trunk_state}
        branches = unfinished_branches(self.run)
        return {path: branches[path].state for path in sorted(branches)}


# --- the events of a session: what they show, when they are published, and who gets them
#
# An event passes through one place, `SessionEvents.publish`: through the layers of the run; then it is kept for
# `run.events`, and passed to the reader of the stream and to the watchers of the process.

Watch = Callable[[str, Event | Spent], object]
"""Called with the id of an outermost run and one of its events, as its layers show it, or what an LM call of it has
used; from any thread. It must not raise."""

_watchers: list[Watch] = []
"""Those who see the events of every run in the process. Each change is atomic: runs read it without a lock."""

_set = object.__setattr__

_NOT_KEPT = (Token, Emitted)
"""A node makes as many of them as it likes: `run.events` must not grow with them."""

_AT_WILL = (Emitted, Doing)
"""What a node says between its steps, where nothing is locked: it waits until the reader has room for the next one."""


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """A block during which `watch` sees each event of each run in the process, those of runs inside of nodes too.

    They have the id of the outermost run and the scope of the event; tokens are among them if the run streams them.
    What LM calls use is seen of the runs that begin in the block.
    """
    own = partial(watch)  # equal to nothing but itself
    _watchers.append(own)
    try:
        yield
    finally:
        _watchers.remove(own)


def lm_watchers(run_id: str) -> list[LMWatcher]:
    """The watchers that pass the LM calls of a run to those who watch them."""
    return [LMWatcher(partial(watch, run_id)) for watch in tuple(_watchers)] if _watchers else []


class SessionEvents:
    """The events of a session. It does not refer to the session: that would be a cycle.

    Args:
        layers: those of the run, through which events pass before any reader sees them.
        request: says where the run is, who reads its events, and whether a `Run` will be made, which has them.
        ids: the ids of the run.
        log: what a stored run has still to write; None for a run that is not stored.

    Attributes:
        kept: the events in order of arrival.
        queue: where the events of the outermost run wait for their reader; None for no reader.
        heard: not empty as long as anybody hears the events: a stream, `run.events`, a layer, the run around, or those
            who watch the process, who come and go. Nothing else need be published than conflicts, which are logged.
    """

    def __init__(
        self,
        layers: RunLayers,
        request: Request,
        ids: RunIds,
        log: RunLog | None,
    ) -> None:
        inside = request.inside
        self.kept: list[Event] = []
        self.queue = queue = request.outcome.queue
        self._layers = layers
        self._around = around = None if inside is None else inside.events
        self._keeps = keeps = request.options.keeps_events
        self._root, self._scope = ids.root, ids.scope
        self._log = log
        self._limit = None if inside is None else inside.limit
        hears = keeps or queue is not None or bool(layers.events)
        self.heard: Sequence[object] = (hears,) if hears else _watchers if around is None else around.heard

    def publish(self, event: Event) -> None:
        """Keeps an event and passes it on. May be called from any thread; a node that emits may wait here."""
        if self._limit is not None and self._limit.left_running:
            return
        if not self.heard and type(event) is not ConflictFound:
            return
        # It is changed in place, since no reader has it yet: a copy would take longer than the rest.
        if not event.at:
            _set(event, "at", time.time())
        if self._scope and not event.scope:
            _set(event, "scope", self._scope)
        for layer in self._layers.events:
            shown = _shown(layer, event)
            if shown is None:
                return
            event = shown
        if self._keeps and type(event) not in _NOT_KEPT:
            self.kept.append(event)
        if type(event) is ConflictFound and event.scope == self._scope:
            log_conflict(self._layers.shown(event).conflict)
        if _watchers and not self._scope:  # events of runs inside of nodes come here too
            for watch in tuple(_watchers):
                watch(self._root, event)
        if self._around is not None:
            self._around.publish(event)
        elif self.queue is not None:
            self.queue.put(event)
            if type(event) in _AT_WILL:
                self.queue.wait_for_room()

    def publish_once_written(self, events: list[Event]) -> None:
        """Publishes events of the scheduler; of a stored run, after the rows that they report are written."""
        if self._log is not None:
            self._log.events += events
            for event in events if self._layers.showing else ():
                self._layers.shown(event)  # an error that is published before the next write may name what is hidden
            return
        for event in events:
            self.publish(event)


def _shown(layer: Layer, event: Event) -> Event | None:
    """The form that a layer gives an event; None if it drops it."""
    try:
        shown = layer.event(event)
    except Exception as error:
        annotate(error, f"in {type(layer).__name__}.event, which got {type(event).__name__}")
        raise
    if shown is not None and not isinstance(shown, Event):
        raise TypeError(f"{type(layer).__name__}.event returned {brief(shown)}: return an event, or None")
    if shown is not None and not shown.at:
        shown = own_copy(shown, scope=shown.scope or event.scope, at=event.at)
    return shown


def log_conflict(conflict: MergedConflict) -> None:
    """Log a conflict that a policy has settled, with the value that stays; an unsettled one fails the run."""
    if conflict.winner is not None:
        path = ".".join(map(str, conflict.path))
        writers = ", ".join(author for author, _ in conflict.values)
        decided = f"{brief(conflict.value)} by {conflict.winner}"
        logger.info("join at %s: %s wrote %r, %s kept %s", conflict.join, writers, path, conflict.policy, decided)
