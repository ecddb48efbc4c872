"""One run in the making: the scheduler decides, the drivers wait, a session stands between them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dspyer.display.redaction import Redactor
from dspyer.dspy_module.tracing import Steps, tokens_used
from dspyer.errors import Interrupt, RunStoppedError, annotate, brief, unwrap_stop_iteration
from dspyer.events import (
    Asked,
    BranchPath,
    Commit,
    ConflictFound,
    Event,
    MergedConflict,
    NodeFailed,
    Question,
    RunEnded,
    RunStarted,
)
from dspyer.graph.spec import GraphSpec
from dspyer.nodes.attempt import Attempt, NotLive
from dspyer.nodes.live_access import Peer
from dspyer.patch import seal
from dspyer.persistence.execution_records import MISSING, AnswerSource, ExecutionRecords, RecordKey
from dspyer.persistence.rows import COMMITS, CommitHeader, NewRow, RowKind, commit_row, end_row
from dspyer.persistence.snapshots import SnapshotState
from dspyer.runtime.request import Request, RunStart, ignore
from dspyer.runtime.session_views import Fields, SessionViews
from dspyer.scheduler.lineage import ancestry
from dspyer.scheduler.run_state import (
    Branch,
    Execution,
    Failure,
    Group,
    RunState,
    Suspended,
    Target,
    Transition,
    execution_id,
    path_text,
)
from dspyer.scheduler.schedule import advance, begin, limit_error, plan
from dspyer.state import ImmutableState
from dspyer.stores.base import Row
from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.views import ViewRead

if TYPE_CHECKING:
    import dspy


# --------------------------------------------------------------------------------------------------------------------
# Writing a run down as it goes on: what has happened since the last write, and when it counts.

ItemsOf = Callable[[Commit], tuple[str, int] | None]


class PendingRows:
    """What has happened in a session since its run was last written down.

    Attributes:
        run: the run as it was written.
        events: what was not shown yet.
    """

    def __init__(self, run: RunState) -> None:
        self.run = run
        self.events: list[Event] = []
        self._overlays: dict[str, tuple[FrozenDict[str, Any] | None, ...]] = {}

    def sent(self, execution_id: str, targets: Sequence[Target]) -> None:
        """Notes what an execution sends to its targets."""
        if len(targets) != 1 or targets[0].overlay is not None:
            self._overlays[execution_id] = tuple([target.overlay for target in targets])

    def drafts(
        self, run: RunState, scope: tuple[str, ...], opening: Mapping[str, Any], items_of: ItemsOf
    ) -> list[NewRow]:
        """The rows of the commits that were not written yet.

        Args:
            run: the run as it is now.
            scope: the executions around it.
            opening: the patch with which it was opened.
            items_of: the field of a map whose results have rows of their own, and how many there are.
        """
        found = []
        log = run.log
        for place in range(len(self.run.log), len(log)):
            entry = log[place]
            commit = entry.commit
            overlays = self._overlays.pop(commit.id, ()) if self._overlays else ()
            found.append(commit_row(entry, place, scope, overlays, commit.patch is opening, items_of(commit)))
        return found

    def take(self, run: RunState) -> list[Event]:
        """Takes a run as written, and gives the events that may be shown now."""
        events, self.events, self.run = self.events, [], run
        return events


logger = logging.getLogger("dspyer")


def log_conflict(conflict: MergedConflict) -> None:
    """A resolved conflict is a warning: somebody's write did not last."""
    if conflict.winner is not None:
        path = ".".join(map(str, conflict.path))
        writers = ", ".join(author for author, _ in conflict.values)
        decided = f"{brief(conflict.value)} by {conflict.winner}"
        logger.warning("join at %s: %s wrote %r, %s kept %s", conflict.join, writers, path, conflict.policy, decided)


GO_ON = "What it has committed is kept: continue it with t.resume()"
START_AGAIN = (
    "Start it again; a run on a thread, program.thread('a name'), could be continued with resume(), but not one with "
    'on_conflict="merge"'
)
_NOTHING_MORE: AbstractContextManager[None] = nullcontext()


class SessionEnd(NamedTuple):
    """The outcome of a session.

    Attributes:
        session: the session.
        run: the run.
        status: `"completed"`, `"failed"`, `"interrupted"` or `"stopped"`.
        error: what stopped the run.
        questions: what the run waits to be told.
        events: what happened, if they were kept.
    """

    session: Session
    run: RunState
    status: str
    error: BaseException | None
    questions: tuple[Question, ...]
    events: list[Event]

    def branches(self) -> dict[BranchPath, ImmutableState]:
        """The state of each live branch; of a completed run, the trunk's."""
        if self.run.ended:
            return {(): self.run.trunk_state}
        live = _live(self.run)
        return {path: live[path].state for path in sorted(live)}


def _place(row: Row) -> tuple[str, BranchPath, str]:
    """The node, branch and execution that a row is of."""
    if row.kind not in COMMITS:
        return row.kind, (), str(row.header[0])
    head = CommitHeader.parse(row.header)
    return head.node, head.branch, "/".join((*head.scope, head.id))


def _live(run: RunState) -> dict[BranchPath, Branch]:
    branches = [branch for group in (*run.waiting.values(), *run.ready) for branch in group.branches]
    branches += [execution.branch for execution in run.running.values()]
    branches += [execution.branch for execution, _ in run.suspended.values()]
    branches += [branch for failure in run.failures for branch in failure.branches]
    return {branch.path: branch for branch in branches}


class Session(NotLive):
    """A run while it goes on. Made for each run, never kept on a program.

    Attributes:
        run: the run as a value; each step puts the next one here.
        events: what happened, in order of arrival, if anybody will be able to ask.
        steps: the DSPy trace of each execution.
        records: what executions leave behind beside commits.
        journal: writes the run down; None for a run that is not stored.
        answer: answers questions as they are asked.
        root: the id of the outermost run.
        looks: which views were looked through.
        fields: the parts of its fields, for views.
        label: the name of the outermost run, in front of the ids of its questions; empty if it is not stored.
        live: whether nodes that run at once see each other's posts to live fields.
        stop_signal: says whether the run is to stop, and why.
    """

    def __init__(
        self,
        program: dspy.Module,
        graph: GraphSpec,
        run_start: RunStart,
        request: Request,
        resources: Mapping[type, object],
        answer: AnswerSource,
    ) -> None:
        self.program = program
        self.graph = graph
        self.run_start = run_start = run_start._replace(patch=seal(run_start.patch))
        self.inputs = run_start.state
        self.resources = resources
        self.observe = request.observe
        self.scope = scope = request.scope
        self._prefix = "".join([f"{part}/" for part in (*run_start.label, *scope)])
        self.keeps_events = request.keeps_events
        self.answer = answer
        self.live = request.live
        self.run_id = run_start.run_id
        self.root = request.root or run_start.run_id
        self.label = "/".join(run_start.label)
        self.run: RunState = run_start.run
        self.records = request.records or ExecutionRecords()
        self.journal = journal = request.journal
        self.unsaved = PendingRows(run_start.run) if journal is not None else None
        self.broken: BaseException | None = None
        self.end_written = False
        self.looks: list[ViewRead] = []
        given = journal is None or bool(scope)
        self.fields = Fields(graph.topology.schema, given, self._prefix, run_start.earlier, run_start.id_prefixes)
        self._taken_up = list(run_start.run.running.values())
        self._says: dict[str, str] = {}
        self.events: list[Event] = []
        self.steps: dict[str, Steps] = {}
        self.stop_signal = request.stop_signal
        self.started = time.time()
        self.duration = 0.0
        self._clock = time.perf_counter()
        redaction = graph.redaction
        self.redactor = None if redaction is None else Redactor(redaction, dict(run_start.state.raw_items()))
        if self.redactor is not None:
            for entry in run_start.run.log:  # of a run that is resumed
                self.redactor.learn_commit(entry.commit)
        self.publish(RunStarted(self.run_id, graph.name, graph.topology.schema.field_shapes, scope))

    def publish(self, event: Event) -> None:
        """Keeps an event and shows it to whoever listens. May be called from any thread."""
        if self.scope and not event.scope:
            event = event._replace(scope=self.scope)
        if self.redactor is not None:
            event = self.redactor.event(event)
        if self.keeps_events:
            self.events.append(event)
        if type(event) is ConflictFound and event.scope == self.scope:
            log_conflict(event.conflict)
        if self.observe is not ignore:
            self.observe(event)

    @property
    def views(self) -> SessionViews:
        """What its nodes can see through views. It refers to the session, so the session does not keep it."""
        return SessionViews(self)

    @property
    def most_at_once(self) -> int:
        """How many executions may have begun at once."""
        return self.graph.max_concurrency

    @property
    def most_threads(self) -> int:
        """How many threads may be needed for them."""
        return self.graph.max_concurrency

    def set_doing(self, attempt: Attempt, text: str) -> None:
        """Notes what a node is doing. May be called from any thread."""
        self._says[attempt.execution.partition("[")[0]] = text

    def peers(self, attempt: Attempt) -> list[Peer]:
        """The other nodes of the graph that run now. May be called from any thread."""
        if not self.live:
            return []
        name = attempt.execution.partition("[")[0]
        others = [one for one in self.at_work() if one.id != name and one.branch.head >= 0]
        return [
            Peer(one.node, one.path, one.visit, self._says.get(one.id, ""), self.waits_for(one.id))
            for one in sorted(others, key=lambda one: (one.path, one.id))
        ]

    def at_work(self) -> Sequence[Execution]:
        """The executions whose nodes run."""
        return tuple(self.run.running.values())

    def waits_for(self, execution: str) -> str:
        """The live field that an execution waits for; "" if it works."""
        del execution
        return ""

    def driven(self, nudge: Callable[[], None]) -> AbstractContextManager[None]:
        """What a driver is in as long as it drives the session."""
        del nudge
        return _NOTHING_MORE

    @property
    def stopped(self) -> bool:
        """Whether nothing new starts: the run was stopped, or the store has failed."""
        return self.stop_signal.reason is not None or self.broken is not None

    def stop(self, reason: str) -> None:
        """Lets nothing new start. May be called from any thread."""
        self.stop_signal.stop(reason)

    def leave(self, execution: Execution) -> None:
        """Leaves an execution open that was cut off since the run stops: `resume` calls it again."""

    def start_ready(self) -> list[Execution]:
        """Starts what may start, as far as `max_concurrency` goes."""
        started: list[Execution] = []
        limit = self.most_at_once
        if self._taken_up and not self.stopped:
            started, self._taken_up = self._within_limits(self._taken_up), []
        while not self.stopped and plan(self.run) and len(self.run.running) < limit:
            position = 0 if not self.graph.interrupt_after else self._next_position()
            if position is None:
                break
            self.run, execution, events = begin(self.run, position)
            self._tell(events)
            del events  # the traceback of a join that failed refers to this frame
            if execution is not None:
                started.append(execution)
        return started

    def _within_limits(self, executions: list[Execution]) -> list[Execution]:
        """Those of the executions that a join had begun before, for which no limit was reached; the others fail."""
        found = []
        before = self.run.calls - len(executions)
        for count, execution in enumerate(executions):
            limit = limit_error(self.run._replace(calls=before + count), execution.branch, execution.node)
            if limit is None:
                found.append(execution)
            else:
                self.run, events = advance(self.run, execution.id, limit)
                self._tell(events)
        return found

    def finish(self, execution: Execution, outcome: Transition | BaseException, steps: Steps) -> None:
        """Folds a finished execution in."""
        self._says.pop(execution.id, None)
        if self.broken is not None:
            return  # nothing can be written any more: what ran beside is not committed
        if steps:
            self.steps[execution.id] = steps
        found: Transition | Suspended | BaseException = outcome
        if isinstance(outcome, Interrupt):
            found = Suspended(cast("tuple[Question, ...]", outcome.questions))  # errors names no class of events
        elif isinstance(outcome, BaseException):
            found = unwrap_stop_iteration(outcome)
            resumes = self.records.resumes  # attempts count within one process: a resume begins with 1 again
            after = "" if not resumes else f" after {resumes} resume{'s' if resumes > 1 else ''}"
            place = f"branch {path_text(execution.path)}, visit {execution.visit}, attempt 1{after}"
            annotate(found, f"in node {execution.node!r} ({place})")
        elif self.unsaved is not None:
            self.unsaved.sent(execution.id, outcome.targets)
        self.run, events = advance(self.run, execution.id, found)
        self._tell(events)

    def _tell(self, events: list[Event]) -> None:
        """Shows what the scheduler says; where a run is written down, only once it is."""
        if self.unsaved is not None:
            self.unsaved.events += events
            if self.redactor is not None:
                for event in events:
                    self.redactor.learn(event)  # what fails before these are written may name it
            return
        for event in events:
            self.publish(event)

    def drafts(self) -> list[NewRow]:
        """The rows of what has happened since the last ones."""
        assert self.unsaved is not None
        drafts = self.unsaved.drafts(self.run, self.scope, self.run_start.patch, self._items_of)
        drafts += self.records.take_unwritten()
        return drafts

    def _items_of(self, commit: Commit) -> tuple[str, int] | None:
        """The field of a map and the number of its results, if they are what the rows of its items hold."""
        node = self.graph.nodes.get(commit.node)
        if node is None or node.map_fields is None:
            return None
        *_, into = node.map_fields
        results = commit.patch.get(into)
        if not isinstance(results, FrozenList) or not results:
            return None
        name = self.local_id(commit.id)
        items = [self.records.items.get(f"{name}[{index}]", MISSING) for index in range(len(results))]
        fits = all(one is two or same(one, two) for one, two in zip(items, results.raw_items(), strict=True))
        return (into, len(items)) if fits else None

    def last_drafts(self) -> list[NewRow]:
        """The rows that end the run."""
        ended = self.run.ended
        self._veil_failures()
        failures = [(failure.node, failure.path, failure.execution, failure.error) for failure in self.run.failures]
        refused = None if self.journal is None else self.journal.refused_row
        if self.broken is not None and refused is not None:
            failures.append((*_place(refused), self.broken))
        status = self.status
        fingerprint = self.journal.encoder.digest(self.run.trunk_state) if ended and self.journal is not None else None
        return [*self.drafts(), end_row(status, fingerprint, failures, tokens_used())]

    def _veil_failures(self) -> None:
        """Hides in the failures what `redact` hides."""
        redactor = self.redactor
        if redactor is not None and self.run.failures:
            shown = [failure._replace(error=redactor.error(failure.error)) for failure in self.run.failures]
            self.run = self.run._replace(failures=tuple(shown))

    def rested(self, drafts: Sequence[NewRow]) -> SnapshotState | None:
        """What the run comes to with some rows, where that is to be kept as a snapshot."""
        run, journal = self.run, self.journal
        ended = drafts[-1].kind == RowKind.END
        if self.scope or journal is None or not journal.snapshot_is_due(len(drafts), ended):
            return None
        place = len(run.log) - 1
        if ended:
            return SnapshotState(run.trunk_state, place) if run.ended else None
        alone = drafts[-1].kind in COMMITS and run.log[place].commit.version is not None
        return SnapshotState(run.log[place].state, place) if alone else None

    def saved(self) -> None:
        """Takes what has happened as written, and shows it."""
        assert self.unsaved is not None
        for event in self.unsaved.take(self.run):
            self.publish(event)

    @property
    def closed(self) -> bool:
        """Whether its end was written, or the store has failed."""
        return self.cut_off or self.end_written

    @property
    def cut_off(self) -> bool:
        """Whether nothing can be written any more: the store has failed, or another run owns the thread."""
        return self.broken is not None and (self.journal is None or self.journal.broken is not None)

    def lose(self, error: BaseException) -> None:
        """Goes back to what was written: the store failed, or refused a value. Nothing new starts."""
        assert self.unsaved is not None
        self.run = self.unsaved.run
        self.broken = error
        self.unsaved.take(self.run)

    def _next_position(self) -> int | None:
        """The first group that does not wait at a node after which the program stops."""
        for position, group in enumerate(self.run.ready):
            try:
                held = [self._held(branch) for branch in group.branches]  # each asks
            except Exception as error:  # noqa: BLE001 - of a function that gives answers: the run has failed
                self._fail(group, error)
                return None
            if not any(held):
                return position
        return None

    def _fail(self, group: Group, error: Exception) -> None:
        branch = group.branches[0]
        node = self.run.log[branch.head].commit.node
        failure = Failure(branch.path, node, branch.id, error, tuple(group.branches), group.position)
        self.run = self.run._replace(failures=(*self.run.failures, failure))
        self._tell([NodeFailed(node, branch.path, branch.id, error)])

    def _held(self, branch: Branch) -> bool:
        if branch.head < 0:
            return False
        commit = self.run.log[branch.head].commit
        if commit.node not in self.graph.interrupt_after:
            return False
        text = f"{commit.node!r} has run; go on?"
        question = Question("after", text, None, commit.node, commit.branch, self.local_id(commit.id), self.label)
        known = RecordKey(question.execution, question.key) in self.records.questions
        if self.records.ask(question, self.answer):
            return False
        if not known:
            self._tell([Asked(question)])
        return True

    def local_id(self, execution_id: str) -> str:
        """The id of an execution within its run: prefixed with the executions of the graphs around this one."""
        return "/".join((*self.scope, execution_id)) if self.scope else execution_id

    def end(self) -> SessionEnd:
        """Records that the run is over, and returns its outcome.

        The session keeps no exception of the run: the frames in a traceback refer to the session, and objects in a
        cycle are freed only by the cyclic garbage collector.
        """
        self.duration = time.perf_counter() - self._clock
        self._veil_failures()
        status = self.status
        self.publish(RunEnded(self.run_id, status, self.scope))
        error, questions = self.error(), self.questions()
        if self.redactor is not None:
            questions = self.redactor.shown(questions)
            error = None if error is None else self.redactor.error(error)
        ended = SessionEnd(self, self.run, status, error, questions, self.events)
        del error  # its traceback may refer to this frame
        if ended.error is not None:
            self.run = self.run._replace(failures=())
            self.broken = None
            if self.unsaved is not None:
                self.unsaved.take(self.run)
            if self.journal is not None and not self.scope:
                self.journal.drop_traceback()
        self.events = []
        return ended

    @property
    def status(self) -> str:
        """`"completed"`, `"failed"`, `"interrupted"` or `"stopped"`."""
        run = self.run
        if self.broken is not None or run.failures:
            return "failed"
        if run.ended:
            return "completed"
        return "interrupted" if self.questions() else "stopped"

    def questions(self) -> tuple[Question, ...]:
        """What the run waits to be told; nothing as long as it can go on without."""
        run = self.run
        if self.broken is not None or run.ended or run.failures or run.running:
            return ()
        within = self.local_id("") if self.scope else ""
        found = [question for question in self.records.open_questions() if question.execution.startswith(within)]
        if self.stopped and self._could_go_on({question.execution for question in found}):
            return ()
        return tuple(sorted(found, key=lambda question: (question.branch, question.id)))

    def _could_go_on(self, asked: set[str]) -> bool:
        """Whether something may start that waits for no answer, in a run that was stopped.

        Args:
            asked: the executions with open questions.
        """
        answers = self.records.answers
        for _, asking in self.run.suspended.values():
            if all(RecordKey(question.execution, question.key) in answers for question in asking.questions):
                return True
        return any(not any(self.local_id(branch.id) in asked for branch in group.branches) for group in self.run.ready)

    def error(self) -> BaseException | None:
        """What keeps the run from its end: the first failure in path order, with the others in its notes."""
        if self.broken is not None:
            return self.broken
        if self.run.failures:
            first, *others = self.run.failures
            for other in others:
                what = "".join(format_exception_only(other.error)).partition("\n")[0]
                annotate(first.error, f"also failed: {other.node!r} (branch {path_text(other.path)}): {what}")
            return first.error
        if self.status != "stopped":
            return None
        stored = self.journal is not None and bool(self.journal.thread)
        return RunStoppedError.of(self.stop_signal.reason or "", self.graph.name, GO_ON if stored else START_AGAIN)

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
        for index in ancestry(self.run.log, heads):
            done.add(self.run.log[index].commit.id)
            steps += self.steps.get(self.run.log[index].commit.id, ())
        for failure in failed:
            if failure.execution not in done:
                steps += self.steps.get(failure.execution, ())
        return steps

    def _heads(self) -> tuple[list[int], tuple[Failure, ...]]:
        if self.run.ended:
            return [len(self.run.log) - 1], ()
        live = _live(self.run)
        return [live[path].head for path in sorted(live) if live[path].head >= 0], self.run.failures

    def global_id(self, execution_id: str, *rest: str) -> str:
        """The id of an execution among all runs of a thread: reducers derive the ids of messages from it."""
        global_id = self._prefix + execution_id
        return "/".join((global_id, *rest)) if rest else global_id
