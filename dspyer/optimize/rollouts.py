"""Rollouts: a node whose output is wrong is asked again at once, by itself, for the optimizer that asks for this layer.

The layer is outside of all others. A rollout is not a retry:
nothing has failed, so it has no part in attempts, events and commits. Its LM calls have rollout ids of their own.

Asked again are nodes that have called a predictor: another call of a function gives the same. A graph that is a node
would continue its run, a search is made of calls of its own, and posts to live fields have been read by siblings:
they are left as they are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from dspyer.errors import always_raised, unwrap_stop_iteration
from dspyer.events import Commit
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.layers.retry import apart_from_earlier
from dspyer.lm.tracing import Steps, append_to_trace, execute_attempt, step_count, take_steps
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.node import Call, Output
from dspyer.nodes.steps import Script, wrapped
from dspyer.runtime.run import Run
from dspyer.runtime.session import Session, SessionEnd
from dspyer.scheduler.lineage import LogEntry

ROLLOUT_STRIDE = 10**6
"""Times that of later attempts (`lm_requests.STRIDE`): so that rollouts have other rollout ids than attempts."""


@dataclass(frozen=True, slots=True, eq=False)
class AskedAgain(Layer):
    """Asks nodes again whose output is wrong.

    Attributes:
        rollouts: decides which outputs are asked for again (`few_shot.StepJudge`), maybe from several threads.
    """

    place: ClassVar[Place] = "outside"

    rollouts: Any

    @property
    def asked_again(self) -> list[str]:
        """The executions that it has asked again; an executor adds those that a worker has asked."""
        asked: list[str] = self.rollouts.asked
        return asked

    def of(self, run: Any) -> AskedAgain | None:
        """Its part in an outermost run that is not stored: a stored map has recorded its items."""
        outermost, live = not run.scope and not run.ids.called_in, run.together.visible and run.graph.around
        return self if outermost and run.log is None and not live else None

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The first right output of a node: that of its call, or of a rollout; if none is right, that of its call."""
        first: Output = yield from inner(call)
        session, rollouts, delegate = call.runner.session, self.rollouts, call.context.delegate
        node, execution = session.graph.nodes[call.node], delegate.execution
        if first.targets is not None or node.look.inner or call.node in session.graph.searches or not step_count():
            return first
        so_far = partial(_run_so_far, session, delegate, first)
        shared = rollouts.shared(execution, so_far) if delegate.branch else frozenset()
        if not rollouts.wants_another(execution, {*first.patch, *node.always_writes} - shared, first.after, so_far):
            return first
        last, kept = first.call.context.delegate, take_steps(0)
        known = list(session.notes.failed_attempts.get(execution, ()))

        def lose(steps: Steps) -> None:
            session.lose_steps(last, last.number, steps)

        def forget() -> None:
            """Leaves no mark of a rollout that is not taken."""
            lose(take_steps(0))
            if known:
                session.notes.failed_attempts[execution] = list(known)
            else:
                session.notes.failed_attempts.pop(execution, None)

        for number in range(1, rollouts.most + 1):
            again = first.call.of_attempt(last.next(last.number))._replace(made=call.made)
            execute_attempt(last.number)
            step = apart_from_earlier(ROLLOUT_STRIDE * number, lose)
            try:
                output: Output = yield from wrapped(inner(again), step)
            except Exception as error:
                if always_raised(unwrap_stop_iteration(error)):
                    raise
                forget()
                continue
            if rollouts.is_right({*output.patch, *node.always_writes} - shared, output.after):
                lose(kept)
                return output
            forget()
        append_to_trace(kept)
        return first


def _run_so_far(session: Session, attempt: Attempt, output: Output) -> Run:
    """The run, as if it had been stopped after the commit of an output."""
    assert attempt.position is not None
    head = attempt.position.head
    before = session.run.log[head].commit
    commit = Commit(
        attempt.execution,
        None,
        attempt.node,
        attempt.branch,
        output.call.context.visit,
        before.step + 1,
        output.patch,
        (before.id,),
    )
    log = session.run.log.append(LogEntry(commit, output.after, (head,), None))
    part = copy.copy(session)
    part.notes = copy.copy(session.notes)
    part.notes.traces, part.notes.lost = (
        dict(session.notes.traces),
        dict(session.notes.lost),
    )  # other threads add to these
    return Run(SessionEnd(part, session.run._replace(log=log), "stopped", None, (), []), None, None)
