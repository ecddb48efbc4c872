"""What is asked of one call of a program, beside its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dspy

from dspyer.durable.journal import Journal
from dspyer.durable.memo import Answer, Memo, no_answer
from dspyer.errors import Interrupt, Interrupted, brief, original
from dspyer.events import Question
from dspyer.nodes import Call
from dspyer.run import Run
from dspyer.running.gather import Gather
from dspyer.running.session import Observe, Opening, Session, ignore

REQUEST = "dspyer_request"


@dataclass(eq=False)
class Request:
    """What `run` and its like ask of the next call of a program, and the sessions that it makes.

    It travels in DSPy's settings, which every wrapper of a module and every thread of DSPy hands on.
    """

    resources: Mapping[type, object] = field(default_factory=dict)
    observe: Observe = ignore
    scope: tuple[str, ...] = ()
    sessions: list[Session] = field(default_factory=list)
    predictions: dict[str, dspy.Prediction] = field(default_factory=dict)
    stopped: bool = False
    inside: bool = False
    answer: Answer = no_answer
    opening: Opening | None = None
    memo: Memo | None = None
    journal: Journal | None = None
    label: tuple[str, ...] = ()

    def run(self, usage: Mapping[str, Mapping[str, Any]]) -> Run:
        """The run of the last session."""
        session = self.sessions[-1]
        return Run(session, self.predictions.get(session.run_id), usage)

    def failed_with(self, error: BaseException) -> bool:
        """Whether the last session is a failed run, and this its error."""
        return bool(self.sessions) and self.sessions[-1].error() is original(error)

    def stop(self) -> None:
        """Lets nothing new start."""
        self.stopped = True
        for session in self.sessions:
            session.stopped = True


def request_inside(call: Call) -> Request:
    """What a program that is a node asks of its own call: to be a part of the run around it."""
    runner: Any = call.runner
    if not isinstance(runner, Gather):  # a node that is called alone, without a run
        return Request(call.resources, inside=True)
    within = Request(call.resources, runner.observe, runner.scope, inside=True, label=runner.label)
    within.memo, within.journal = runner.memo, runner.journal
    return within


@contextmanager
def asking() -> Iterator[None]:
    """Lets a run inside a node ask as the node would."""
    try:
        yield
    except Interrupted as interruption:
        raise Interrupt(interruption.questions) from None


def interrupted(questions: Sequence[Question], graph: str) -> Interrupted:
    """What is raised where the result of a run is wanted that waits for answers."""
    asked = "; ".join(f"{question.key!r} of node {question.node!r}: {brief(question.text)}" for question in questions)
    return Interrupted(
        f"graph {graph!r} waits for {len(questions)} answer{'s' if len(questions) > 1 else ''}: {asked}. Run it on a "
        "thread, program.thread('a name'), and give the answers with resume(answers={...}); under an optimizer or "
        "Evaluate supply them with compile(interrupts={...})",
        questions,
    )
