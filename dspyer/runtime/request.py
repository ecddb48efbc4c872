"""`Request`, the options of a call of a program; `RunStart`, a run before its first commit; `Outcome`, its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import dspy

from dspyer.budget import Budget, Spending
from dspyer.ctrl_c import held_back
from dspyer.dspy_module.lm_records import LMRecorder, record_lm_calls
from dspyer.dspy_module.tracing import Steps
from dspyer.errors import Interrupted, unwrap_stop_iteration
from dspyer.event_queue import EventQueue
from dspyer.events import Event
from dspyer.graph.spec import GraphSpec
from dspyer.layers.layer import Layer
from dspyer.layers.run_limits import CallCount, Spends
from dspyer.patch import DELETE, Replace, diff_value, seal
from dspyer.persistence.execution_records import AnswerSource, ExecutionRecords, KeptRun, no_answer
from dspyer.persistence.journal import Journal
from dspyer.persistence.lm_call_log import LMCallLog
from dspyer.persistence.rows import NewRow
from dspyer.runtime.session_events import Around, Observe, ignore
from dspyer.runtime.session_views import EarlierCommits
from dspyer.scheduler.run_state import FailedBranch, RunState
from dspyer.scheduler.schedule import start
from dspyer.scheduler.topology import Topology
from dspyer.state import ImmutableState
from dspyer.stopping import StopSignal, TimeLimit

if TYPE_CHECKING:
    from dspyer.runtime.run import Run
    from dspyer.runtime.session import Session, SessionEnd

REQUEST = "dspyer_request"
"""The key of DSPy's settings under which a request travels: every wrapper of a module and every thread of DSPy passes
settings on, so the request reaches the program however deep it is wrapped."""

FAILED_RUNS = "dspyer_failed_runs"
"""The setting with a list that gets the failures of each outermost run: `dspy.Evaluate` keeps no exception."""


class RunStart(NamedTuple):
    """A run before the first commit that this process makes.

    Attributes:
        run: the run; a resumed one has the commits of earlier processes.
        patch: the patch of its first commit.
        state: the state after that commit.
        run_id: its id.
        label: the name of the run, the same in every resume; in front of the ids that are derived from its commits.
            Empty for a run that is not stored.
        earlier: the commits of the thread before the run; None for none.
        id_prefixes: what the global ids of the commits of earlier processes begin with: (place of the first commit
            to which it does not apply any more, prefix), in ascending order.
        kept: of a run inside a node, what earlier attempts of the node have committed in this process.
        first_row: a row to write together with the first commit; None for none.
    """

    run: RunState
    patch: Mapping[str, Any]
    state: ImmutableState
    run_id: str
    label: tuple[str, ...] = ()
    earlier: EarlierCommits | None = None
    id_prefixes: tuple[tuple[int, str], ...] = ()
    kept: KeptRun = KeptRun()
    first_row: NewRow | None = None

    @classmethod
    def of(cls, topology: Topology, state: ImmutableState, label: tuple[str, ...] = ()) -> RunStart:
        """A new run, whose first commit sets the inputs."""
        patch = {name: diff_value(DELETE, value) for name, value in state.raw_items()}
        return cls(start(topology), seal(patch), state, token_hex(16), label)

    def to_replay(self) -> RunStart:
        """The same with a patch that can be replayed: it replaces the values of fields with a reducer."""
        # The patch of a run that begins from inputs holds whole values. Folding them a second time would add them to
        # what is there.
        reducer = self.run.topology.schema.reducer
        patch = {
            name: update if reducer(name) is None else Replace(self.state.raw(name))
            for name, update in self.patch.items()
        }
        return self._replace(patch=patch)


# Reasons of a stop, as the end of the sentence "the run of graph ... was stopped: ...".
CLOSED = "its stream was closed"
DROPPED = "the reader of its stream went away"
EXITING = "its process ended"
CANCELLED = "its task was cancelled"
INTERRUPTED = "Ctrl-C was pressed"
FAILED_BESIDE = "a branch beside it failed"


class Outcome:
    """The sessions and results of a request. A wrapper of a program may call it several times: the last run counts.

    Attributes:
        sessions: the sessions, in the order in which they began.
        ended: how the last session ended, until its `Run` is made or its error is raised.
        returned: the run that a worker has returned; None for a program without an executor.
        lost: the steps that led to nothing in the runs that workers have returned.
        cut_off: the run of a cancelled task, which raises `CancelledError` and so cannot return it.
        spending: the account of what all runs of the request have spent; None for no budget.
    """

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.ended: SessionEnd | None = None
        self.returned: Run | None = None
        self.lost: list[Steps] = []
        self.cut_off: Run | None = None
        self.spending: Spending | None = None
        self._predictions: dict[str, dspy.Prediction] = {}

    def predicted(self, run_id: str, prediction: dspy.Prediction) -> None:
        """Keeps the result of a completed run."""
        self._predictions[run_id] = prediction

    def take(self) -> tuple[SessionEnd, dspy.Prediction | None]:
        """Removes the end of the last session, and returns it with its result."""
        ended, self.ended = self.ended, None
        assert ended is not None
        return ended, self._predictions.get(ended.session.run_id)

    @property
    def error(self) -> BaseException | None:
        """Why the last run is not completed; None if it is, or if none has ended."""
        ended = self.ended or self.returned
        return None if ended is None else ended.error

    def take_returned(self) -> Run | None:
        """Removes the run that a worker has returned."""
        returned, self.returned = self.returned, None
        return returned

    def ended_with(self, error: BaseException) -> bool:
        """Whether `error` is how the last session ended: its failure or stop, or `Interrupted` for its questions."""
        ended = self.ended or self.returned
        if ended is None:
            return False
        return ended.error is unwrap_stop_iteration(error) or (isinstance(error, Interrupted) and bool(ended.questions))


@dataclass(frozen=True, eq=False)
class Request:
    """The options that `run`, `stream`, a thread or an outer graph pass to the next call of a program.

    A stored run has `run_start`, `records` and `journal`. A program that is a node of another one gets `records` and
    `journal` of the run around it, and makes its own `run_start`.

    Attributes:
        resources: objects by type, for parameters that are annotated with it.
        observe: gets each event.
        around: of a program inside a node, that node; None for an outermost run.
        queue: where the events of the outermost run wait for their reader; None for no reader.
        answer: answers questions as they are asked.
        live: whether nodes that run at once read each other's posts.
        keeps_events: whether a `Run` will be made, which has the events.
        inside: whether the program is called by a node of another graph, as a part of its run.
        own_inputs: whether that node has made up the inputs, `ctx.call(program, {...})`; else they are values of the
            state around it.
        valid: of these values, the frozen ones that need no validation, by input.
        scope: the executions around the run, outermost first.
        attempts: the numbers of their attempts.
        keeps_commits: whether one of them may be attempted again, so that the run must be continued then.
        label: the name of the outermost run, in front of the ids that are derived from it.
        root: the id of the outermost run; "" if this is the outermost one.
        run_start: the run before its first commit of this process; None to make one from the inputs.
        records: the results of effects, answers and items of earlier attempts; None for a run that is not stored.
        journal: writes the rows of the run; None for a run that is not stored.
        stop_signal: stops the runs of the request.
        budget: what the run may spend; None for the budget of `compile`.
        max_concurrency: of a program inside a node, that of the outermost program; None for its own.
        limit: the time that the node has in which the program is called; None for no limit.
        layers: what the call asks for around the nodes of its run, and of the runs inside of them.
        outcome: what the runs of the request leave behind. Copies of a request share it.
    """

    resources: Mapping[type, object] = field(default_factory=dict)
    observe: Observe = ignore
    around: Around | None = None
    queue: EventQueue[Event] | None = None
    answer: AnswerSource = no_answer
    live: bool = True
    keeps_events: bool = True
    inside: bool = False
    own_inputs: bool = False
    valid: Mapping[str, Any] = field(default_factory=dict)
    scope: tuple[str, ...] = ()
    attempts: tuple[int, ...] = ()
    keeps_commits: bool = False
    label: tuple[str, ...] = ()
    root: str = ""
    run_start: RunStart | None = None
    records: ExecutionRecords | None = None
    journal: Journal | None = None
    stop_signal: StopSignal = field(default_factory=StopSignal)
    budget: Budget | None = None
    max_concurrency: int | None = None
    limit: TimeLimit | None = None
    layers: tuple[Layer, ...] = ()
    outcome: Outcome = field(default_factory=Outcome)

    def read_from(self, queue: EventQueue[Event] | None) -> Request:
        """The same with a reader, who gets the events from a queue; None for no reader."""
        return self if queue is None else replace(self, observe=queue.put, queue=queue)

    def limits(self, graph: GraphSpec, run: RunState) -> list[Layer]:
        """The layers that bound a run: by its budget, that of `compile` by default, and by `max_calls`."""
        found: list[Layer] = []
        budget, outcome = self.budget or graph.budget, self.outcome
        if budget is not None and not self.inside:
            outcome.spending = outcome.spending or Spending(budget, self.stop_signal)
            found.append(Spends(outcome.spending))
        if graph.max_calls is not None:
            inside = 0 if self.records is None else self.records.calls_inside(self.scope)
            made = sum(entry.commit.node in graph.nodes for entry in run.log)
            found.append(CallCount(graph.name, graph.max_calls, made + inside))
        return found

    def recording(self, graph: GraphSpec) -> AbstractContextManager[LMRecorder]:
        """A block that records the LM calls of the run of a graph; those of a stored run get rows."""
        log = None
        if self.journal is not None and self.records is not None and graph.record_lm_calls != "none":
            log = self.records.lm_calls = LMCallLog(graph.record_lm_calls, graph.redaction is not None)
        return record_lm_calls(log)

    def note_failures(self, failures: Iterable[FailedBranch]) -> None:
        """Adds the failures of a run to the list in DSPy's settings, if the run is no part of another one."""
        taker = None if self.inside else dspy.settings.get(FAILED_RUNS)
        if taker is not None:
            taker.append([failed.failure for failed in failures])

    def stop(self, reason: str) -> None:
        """Stops the runs of the request. May be called from any thread."""
        self.stop_signal.stop(reason)

    def until_ctrl_c(self) -> held_back:
        """A block in which sync code runs the request: Ctrl-C stops it, and is raised at the end."""
        return held_back(lambda: self.stop_signal.stop_from_handler(INTERRUPTED))
