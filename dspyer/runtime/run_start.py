"""What a run begins with: its first state, its ids, what its call asks for, and the node that it is inside of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dspyer.budget import Budget
from dspyer.ids import full_id
from dspyer.layers.layer import Layer
from dspyer.patch import Replace
from dspyer.persistence.execution_records import AnswerSource, KeptRun, no_answer
from dspyer.runtime.session_views import EarlierCommits
from dspyer.scheduler.run_state import RunState
from dspyer.state import ImmutableState
from dspyer.stopping import StopSignal, TimeLimit

if TYPE_CHECKING:
    from dspyer.runtime.session_events import SessionEvents


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


class RunIds(NamedTuple):
    """The ids of a run, and what begins those that are derived from it.

    Attributes:
        run_id: its own.
        root: that of the outermost run.
        label: the name of the outermost run, in front of the ids of its questions; "" if it is not stored.
        scope: the executions around the run, if it is a part of another one.
        prefix: what the ids of its commits begin with among all runs of a thread.
        around: what the ids of its executions begin with in `executing_id`.
        called_in: the execution of another run whose code has called the program, in which its LM calls are counted;
            "" for none, and for a run that is a part of another one.
    """

    run_id: str
    root: str
    label: str
    scope: tuple[str, ...]
    prefix: str
    around: str
    called_in: str

    def local_id(self, execution_id: str) -> str:
        """The id of an execution within the outermost run: after those of the executions around this graph."""
        return self.around + execution_id

    def global_id(self, execution_id: str, *rest: str) -> str:
        """The id of an execution among all runs of a thread: reducers derive the ids of messages from it."""
        return full_id(self.prefix + execution_id, *rest) if rest else self.prefix + execution_id


class Around(NamedTuple):
    """The node in which a run is, a part of the run around it.

    Attributes:
        events: the events of the run around it.
        node: the name of the node.
        item: the index of the item of a map in which it is; None for another node.
        stop_signal: stops the outermost run.
    """

    events: SessionEvents
    node: str
    item: int | None
    stop_signal: StopSignal


_NOTHING: Mapping[Any, Any] = {}  # not a `MappingProxyType`: a worker gets it


class CallOptions(NamedTuple):
    """What a call of a program asks for.

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
    """Where a run is that is a part of the run around it: in a node that has called its program.

    Attributes:
        around: that node; None for one that is called without a run, and in a worker.
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
    """

    around: Around | None = None
    scope: tuple[str, ...] = ()
    attempts: tuple[int, ...] = ()
    keeps_commits: bool = False
    own_inputs: bool = False
    valid: Mapping[str, Any] = _NOTHING
    label: tuple[str, ...] = ()
    root: str = ""
    limit: TimeLimit | None = None
    max_concurrency: int | None = None
