"""`Request`, what a call of a program is given, with how its run begins, and `Outcome`, what its runs leave behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import dspy

from dspyer.budget import Budget, Spending
from dspyer.clock import TimeLimit
from dspyer.errors import unwrap_stop_iteration
from dspyer.events import Event
from dspyer.graph.spec import GraphSpec
from dspyer.layers.layer import Layer
from dspyer.layers.live import Around
from dspyer.layers.redacted import ShowsReads, Streaming
from dspyer.layers.run_limits import Spends
from dspyer.lm.tap import LMRecorder, record_lm_calls
from dspyer.lm.tracing import Steps
from dspyer.log.execution_records import AnswerSource, ExecutionRecords, KeptRun, no_answer
from dspyer.nodes.attempt import Answers, answer_source
from dspyer.nodes.binding import resources_of
from dspyer.patch import Replace
from dspyer.runtime.session_views import EarlierCommits
from dspyer.scheduler.schedule import RunState
from dspyer.state import ImmutableState
from dspyer.values.scalars import check_flags
from dspyer.waiting import EventQueue, StopSignal, held_back

if TYPE_CHECKING:
    from dspyer.runtime.run import Run
    from dspyer.runtime.session import Session, SessionEnd, SessionEvents


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
    """

    run: RunState
    patch: Mapping[str, Any]
    state: ImmutableState
    run_id: str
    label: tuple[str, ...] = ()
    earlier: EarlierCommits | None = None
    id_prefixes: tuple[tuple[int, str], ...] = ()
    kept: KeptRun = KeptRun()

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


_NOTHING: Mapping[Any, Any] = {}  # not a `MappingProxyType`: a worker gets it


class CallOptions(NamedTuple):
    """The request of a call of a program.

    Attributes:
        resources: objects by type, for parameters that are annotated with it.
        answer: answers questions as they are asked.
        live: whether nodes that run at once read each other's posts.
        budget: what the run may spend; None for the budget of `compile`.
        layers: what is around the nodes of the run, and of the runs inside of them.
        keeps_events: whether a `Run` will be made, which has the events.
    """

    resources: Mapping[type, object] = _NOTHING
    answer: AnswerSource = no_answer
    live: bool = True
    budget: Budget | None = None
    layers: tuple[Layer, ...] = ()
    keeps_events: bool = True


CALLED = CallOptions(keeps_events=False)
"""What `program(...)` asks for."""


class Inside(NamedTuple):
    """The place of a run that is a part of the run around it: in a node that has called its program.

    Attributes:
        events: those of the run around it; None in a node that is called without a run, and in a worker.
        node: the name of the node.
        item: the index of the item of a map in which it is; None for another node.
        outermost: stops the outermost run.
        scope: the executions around the run, outermost first.
        attempts: the numbers of their attempts.
        keeps_commits: whether one of them may be attempted again, so that the run must be continued then.
        own_inputs: whether the node has made up the inputs, `ctx.call(program, {...})`; else they are values of the
            state around it.
        valid: of these values, the frozen ones that need no validation, by input.
        label: the name of the outermost run, in front of the ids that are derived from it.
        root: the id of the outermost run.
        limit: the time that the node has; None for no limit.
        max_concurrency: that of the outermost program; None for its own.
        live: the live fields that it has in common with the run around it; None for none.
    """

    events: SessionEvents | None = None
    node: str = ""
    item: int | None = None
    outermost: StopSignal | None = None
    scope: tuple[str, ...] = ()
    attempts: tuple[int, ...] = ()
    keeps_commits: bool = False
    own_inputs: bool = False
    valid: Mapping[str, Any] = _NOTHING
    label: tuple[str, ...] = ()
    root: str = ""
    limit: TimeLimit | None = None
    max_concurrency: int | None = None
    live: Around | None = None


REQUEST = "dspyer_request"
"""The key of DSPy's settings under which a request travels: every wrapper of a module and every thread of DSPy passes
settings on, so the request reaches the program however deep it is wrapped."""


# Reasons of a stop, as the end of the sentence "the run of graph ... was stopped: ...".
CLOSED = "its stream was closed"
DROPPED = "the reader of its stream went away"
EXITING = "its process ended"
CANCELLED = "its task was cancelled"
INTERRUPTED = "Ctrl-C was pressed"
FAILED_BESIDE = "a branch beside it failed"


UNFINISHED = ("interrupted", "stopped")
"""How a run ends that may go on."""


class Outcome:
    """The sessions and results of a request. A wrapper of a program may call it several times: the last run counts.

    Attributes:
        sessions: the sessions, in the order in which they began.
        ended: how the last session ended, until its `Run` is made or its error is raised.
        returned: the run that a worker has returned; None for a program without an executor.
        lost: the steps that led to nothing in the runs that workers have returned.
        cut_off: the run of a cancelled task, which raises `CancelledError` and so cannot return it.
        spending: the account of what all runs of the request have spent; None for no budget.
        queue: where the events of the outermost run wait for their reader; None for no reader.
        predictions: the results of completed runs, by run: a wrapper may call the program in several threads, and the
            last that ends may have failed.
    """

    def __init__(self, queue: EventQueue[Event] | None = None) -> None:
        self.queue = queue
        self.sessions: list[Session] = []
        self.ended: SessionEnd | None = None
        self.returned: Run | None = None
        self.lost: list[Steps] = []
        self.cut_off: Run | None = None
        self.spending: Spending | None = None
        self.predictions: dict[str, dspy.Prediction] = {}

    def take(self) -> tuple[SessionEnd, dspy.Prediction | None]:
        """Removes the end of the last session, and returns it with its result."""
        # Taken out, since it refers to the session: a request that is kept would keep every state of the run.
        ended, self.ended = self.ended, None
        assert ended is not None
        return ended, self.predictions.get(ended.session.run_id)

    @property
    def error(self) -> BaseException | None:
        """The reason why the last run is not completed; None if it is, or if none has ended."""
        ended = self.ended or self.returned
        return None if ended is None else ended.error

    def ended_with(self, error: BaseException) -> bool:
        """Tell if `error` is how the last session ended. A wrapper may fail at what an unfinished run has not given."""
        ended = self.ended or self.returned
        if ended is None:
            return False
        return ended.error is unwrap_stop_iteration(error) or ended.status in UNFINISHED


@dataclass(frozen=True, eq=False, slots=True)  # each is one call, and equal to no other
class Request:
    """The values that `run`, `stream`, a thread or an outer graph pass to the next call of a program.

    Attributes:
        options: what the call asks for.
        inside: where the run is, if it is a part of another one; None for an outermost run.
        records: the results of effects, answers and items of earlier attempts; of a stored run, with its journal. None
            for a run that is not stored.
        run_start: the run before its first commit of this process; None to make one from the inputs.
        stop_signal: stops the runs of the request.
        outcome: what the runs of the request leave behind. Copies of a request share it.
    """

    options: CallOptions = CallOptions()  # noqa: RUF009 - a value
    inside: Inside | None = None
    records: ExecutionRecords | None = None
    run_start: RunStart | None = None
    stop_signal: StopSignal = field(default_factory=StopSignal)
    outcome: Outcome = field(default_factory=Outcome)

    def limits(self, graph: GraphSpec) -> list[Layer]:
        """The layer that bounds a run by its budget, that of `compile` by default."""
        budget, outcome = self.options.budget or graph.budget, self.outcome
        if budget is None or self.inside is not None:
            return []
        outcome.spending = outcome.spending or Spending(budget, self.stop_signal)
        return [Spends(outcome.spending)]

    def recording(self, graph: GraphSpec) -> AbstractContextManager[LMRecorder]:
        """A block that records the LM calls of the run of a graph; those of a stored run get rows."""
        log = None
        if self.records is not None and self.records.journal is not None:
            log = self.records.lm_calls = graph.lm_call_log()
        return record_lm_calls(log)

    def until_ctrl_c(self) -> held_back:
        """A block in which sync code runs the request: Ctrl-C stops it, and is raised at the end."""
        return held_back(partial(self.stop_signal.stop_from_handler, INTERRUPTED))


def new_request(
    resources: Mapping[type, object] | Sequence[object] | None,
    live: bool,
    budget: Budget | None,
    tokens: bool = False,
    reads: bool = False,
    answers: Answers = None,
) -> Request:
    """The request of a run that a user starts."""
    usual = live is True and tokens is False and reads is False
    if usual and resources is None and budget is None and answers is None:
        return Request()  # the usual one: nothing was asked that could be wrong
    check_flags(live=live, tokens=tokens, reads=reads)
    layers: tuple[Layer, ...] = (*([Streaming()] if tokens else ()), *([ShowsReads()] if reads else ()))
    return Request(CallOptions(resources_of(resources), answer_source(answers), live, Budget.of(budget), layers))
