"""Rollouts: a node whose output is wrong is asked again at once, by itself, for the optimizer that asks for this layer.

The layer is outside of all others. A rollout is not a retry:
nothing has failed, so it has no part in attempts, events and commits. Its LM calls have rollout ids of their own.

Asked again are nodes that have called a predictor: another call of a function gives the same. A graph that is a node
would continue its run, a search is made of calls of its own, and posts to live fields have been read by siblings:
they are left as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from dspyer.dspy_module.executing import execute_attempt
from dspyer.dspy_module.tracing import Steps, append_to_trace, step_count, take_steps
from dspyer.errors import always_raised, unwrap_stop_iteration
from dspyer.events import Commit
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.layers.retry import apart_from_earlier
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.node import Call, Output
from dspyer.nodes.steps import Script, wrapped
from dspyer.runtime.run import Run
from dspyer.runtime.session import Session, SessionEnd
from dspyer.scheduler.lineage import LogEntry
from dspyer.state import ImmutableState

ROLLOUT_STRIDE = 10**6
"""Times that of later attempts (`lm_requests.STRIDE`): so that rollouts have other rollout ids than attempts."""


class Rollouts(Protocol):
    """Decides which outputs are asked for again. May be asked from several threads.

    Attributes:
        most: how many rollouts an output has at most.
        asked: the executions that were asked again.
    """

    most: int
    asked: list[str]

    def shared(self, execution: str, run: Callable[[], Run]) -> AbstractSet[str]:
        """The fields of which an output on a branch is a part, to be judged with those of its siblings."""

    def wants_another(
        self, execution: str, fields: Iterable[str], after: ImmutableState, run: Callable[[], Run]
    ) -> bool:
        """Whether an output is wrong through the fault of its node, which is then asked again.

        `run` gives the run as far as this commit. `fields` are those that it has written, also
        with the value that they had.
        """

    def is_right(self, fields: Iterable[str], after: ImmutableState) -> bool:
        """Whether the output of a rollout is right."""


@dataclass(frozen=True, slots=True, eq=False)
class AskedAgain(Layer):
    """Asks nodes again whose output is wrong.

    Attributes:
        rollouts: decides which outputs are asked for again.
    """

    place: ClassVar[Place] = "outside"

    rollouts: Rollouts

    def of(self, run: Any) -> AskedAgain | None:
        """Its part in an outermost run that is not stored: a stored map has recorded its items."""
        outermost, live = not run.scope and not run.called_in, run.together.visible and run.graph.around
        return self if outermost and run.journal is None and not live else None

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
        known = list(session.failed_attempts.get(execution, ()))

        def lose(steps: Steps) -> None:
            session.lose_steps(last, last.number, steps)

        def forget() -> None:
            """Leaves no mark of a rollout that is not taken."""
            lose(take_steps(0))
            if known:
                session.failed_attempts[execution] = list(known)
            else:
                session.failed_attempts.pop(execution, None)

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
    part.traces, part.lost = dict(session.traces), dict(session.lost)  # other threads add to these
    return Run(SessionEnd(part, session.run._replace(log=log), "stopped", None, (), []), None, None)
