"""`Request`, what a call of a program is given, and `Outcome`, what its runs leave behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

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
from dspyer.layers.streaming import Streaming
from dspyer.nodes.answer_types import Answers, answer_source
from dspyer.nodes.binding import resources_of
from dspyer.persistence.execution_records import ExecutionRecords
from dspyer.runtime.run_start import CallOptions, Inside, RunStart
from dspyer.scheduler.run_state import FailedBranch, RunState
from dspyer.stopping import StopSignal
from dspyer.values.scalars import check_flags

if TYPE_CHECKING:
    from dspyer.runtime.run import Run
    from dspyer.runtime.session import Session, SessionEnd

REQUEST = "dspyer_request"
"""The key of DSPy's settings under which a request travels: every wrapper of a module and every thread of DSPy passes
settings on, so the request reaches the program however deep it is wrapped."""

FAILED_RUNS = "dspyer_failed_runs"
"""The setting with a list that gets the failures of each outermost run: `dspy.Evaluate` keeps no exception."""


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


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """What `run`, `stream`, a thread or an outer graph pass to the next call of a program.

    Attributes:
        options: what the call asks for.
        inside: where the run is, if it is a part of another one; None for an outermost run.
        records: the results of effects, answers and items of earlier attempts; of a stored run, with its journal. None
            for a run that is not stored.
        run_start: the run before its first commit of this process; None to make one from the inputs.
        queue: where the events of the outermost run wait for their reader; None for no reader.
        stop_signal: stops the runs of the request.
        outcome: what the runs of the request leave behind. Copies of a request share it.
    """

    options: CallOptions = CallOptions()  # noqa: RUF009 - a value
    inside: Inside | None = None
    records: ExecutionRecords | None = None
    run_start: RunStart | None = None
    queue: EventQueue[Event] | None = None
    stop_signal: StopSignal = field(default_factory=StopSignal)
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def is_stored(self) -> bool:
        """Whether the run is stored."""
        return self.records is not None and self.records.journal is not None

    def read_from(self, queue: EventQueue[Event] | None) -> Request:
        """The same with a reader, who gets the events from a queue; None for no reader."""
        return self if queue is None else replace(self, queue=queue)

    def limits(self, graph: GraphSpec, run: RunState) -> list[Layer]:
        """The layers that bound a run: by its budget, that of `compile` by default, and by `max_calls`."""
        found: list[Layer] = []
        budget, outcome = self.options.budget or graph.budget, self.outcome
        if budget is not None and self.inside is None:
            outcome.spending = outcome.spending or Spending(budget, self.stop_signal)
            found.append(Spends(outcome.spending))
        if graph.max_calls is not None:
            scope = () if self.inside is None else self.inside.scope
            inside = 0 if self.records is None else self.records.calls_inside(scope)
            made = sum(entry.commit.node in graph.nodes for entry in run.log)
            found.append(CallCount(graph.name, graph.max_calls, made + inside))
        return found

    def recording(self, graph: GraphSpec) -> AbstractContextManager[LMRecorder]:
        """A block that records the LM calls of the run of a graph; those of a stored run get rows."""
        log = None
        if self.records is not None and self.is_stored:
            log = self.records.lm_calls = graph.lm_call_log()
        return record_lm_calls(log)

    def note_failures(self, failures: Iterable[FailedBranch]) -> None:
        """Adds the failures of a run to the list in DSPy's settings, if the run is no part of another one."""
        taker = None if self.inside is not None else dspy.settings.get(FAILED_RUNS)
        if taker is not None:
            taker.append([failed.failure for failed in failures])

    def stop(self, reason: str) -> None:
        """Stops the runs of the request. May be called from any thread."""
        self.stop_signal.stop(reason)

    def until_ctrl_c(self) -> held_back:
        """A block in which sync code runs the request: Ctrl-C stops it, and is raised at the end."""
        return held_back(partial(self.stop_signal.stop_from_handler, INTERRUPTED))


def new_request(
    resources: Mapping[type, object] | Sequence[object] | None,
    live: bool,
    budget: Budget | None,
    tokens: bool = False,
    answers: Answers = None,
) -> Request:
    """The request of a run that a user starts."""
    check_flags(live=live, tokens=tokens)
    layers = (Streaming(),) if tokens else ()
    return Request(CallOptions(resources_of(resources), answer_source(answers), live, Budget.of(budget), layers))
