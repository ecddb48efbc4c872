"""What is asked of one call of a program, beside its inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dspy

from dspyer.errors import Interrupt, Interrupted, RunStoppedError, unwrap_stop_iteration
from dspyer.nodes.node import Call
from dspyer.patch import DELETE
from dspyer.persistence.execution_records import AnswerSource, ExecutionRecords, no_answer
from dspyer.persistence.journal import Journal
from dspyer.reducers import Updates
from dspyer.runtime.execution import NodeRunner
from dspyer.runtime.run import Run
from dspyer.runtime.session import Ended, Observe, RunStart, Session, StopSignal, ignore
from dspyer.scheduler.lineage import ancestry
from dspyer.values.freezing import same

REQUEST = "dspyer_request"


@dataclass(eq=False)
class Request:
    """What `run` and its like ask of the next call of a program, and the sessions that it makes.

    It travels in DSPy's settings, which every wrapper of a module and every thread of DSPy hands on.

    Attributes:
        keeps: whether a `Run` is made of the last session.
        ended: the outcome of the last session, until the `Run` is made or its error is raised.
        halt: says whether the runs are to stop, and why.
        cut_off: the run, if a cancellation is raised in the place of its result.
    """

    resources: Mapping[type, object] = field(default_factory=dict)
    observe: Observe = ignore
    scope: tuple[str, ...] = ()
    sessions: list[Session] = field(default_factory=list)
    predictions: dict[str, dspy.Prediction] = field(default_factory=dict)
    halt: StopSignal = field(default_factory=StopSignal)
    live: bool = True
    inside: bool = False
    answer: AnswerSource = no_answer
    opening: RunStart | None = None
    memo: ExecutionRecords | None = None
    journal: Journal | None = None
    label: tuple[str, ...] = ()
    root: str = ""
    keeps: bool = True
    ended: Ended | None = None
    cut_off: Run | None = None

    def run(self, usage: Mapping[str, Mapping[str, Any]]) -> Run:
        """The run of the last session."""
        ended, self.ended = self.ended, None
        assert ended is not None
        return Run(ended, self.predictions.get(ended.session.run_id), usage)

    def ended_with(self, error: BaseException) -> bool:
        """Whether the last session is a run that failed, waits or was stopped, and this its error."""
        ended = self.ended
        if ended is None:
            return False
        return ended.error is unwrap_stop_iteration(error) or (isinstance(error, Interrupted) and bool(ended.questions))

    def stop(self, reason: str) -> None:
        """Lets nothing new start. May be called from any thread."""
        self.halt.stop(reason)


def request_inside(call: Call) -> Request:
    """What a program that is a node asks of its own call: to be a part of the run around it."""
    runner: Any = call.runner
    if not isinstance(runner, NodeRunner):  # a node that is called alone, without a run
        return Request(call.resources, inside=True, keeps=False)
    within = Request(call.resources, runner.observe, runner.scope, inside=True, label=runner.label, keeps=False)
    within.memo, within.journal, within.answer, within.root = runner.memo, runner.journal, runner.answer, runner.root
    within.live = runner.live
    return within


@contextmanager
def inside(call: Call, request: Request) -> Iterator[None]:
    """Lets a run inside a node ask as the node would, and stop with the run around it.

    Args:
        call: the node's.
        request: what the run inside is asked for.
    """
    runner: Any = call.runner
    around = runner.halt if isinstance(runner, NodeRunner) else StopSignal()
    with around.calling(request.halt.stop), dspy.context(**{REQUEST: request}):
        try:
            yield
        except Interrupted as interruption:
            raise Interrupt(interruption.questions) from None
        except RunStoppedError:
            if request.halt.reason is None:  # of a program that a node inside has called itself
                raise
            raise asyncio.CancelledError from None


def changes(session: Session) -> dict[str, object]:
    """What the commits of a completed run changed: raw updates of fields with a reducer, net change of others."""
    log = session.run.log
    schema = session.blueprint.topology.schema
    before, after = session.inputs, session.run.trunk_state
    begun, *order = ancestry(log, [len(log) - 1])
    found: dict[str, Any] = {}
    for name, update in log[begun].commit.patch.items():  # the inputs, and what a router at START wrote
        if schema.reducer(name) is None:
            found[name] = None
        elif isinstance(update, Updates):
            found[name] = list(update.updates[1:])
    for index in order:
        for name, update in log[index].commit.patch.items():
            if schema.reducer(name) is None:
                found[name] = None
            else:
                found.setdefault(name, []).append(update)
    for name, updates in list(found.items()):
        if updates is not None:
            found[name] = Updates(*updates)
        elif same(before.raw(name, DELETE), after.raw(name, DELETE)):
            del found[name]
        else:
            found[name] = after.raw(name, DELETE)
    return found
