"""Several calls of one node at once: the items of a map."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from dspyer.dspy_module.tracing import hand_over
from dspyer.durable.journal import Journal
from dspyer.durable.memo import AnswerSource, ExecutionRecords
from dspyer.errors import Interrupt
from dspyer.running.crews import TaskWorkers, ThreadWorkers, WorkOutcome
from dspyer.running.observing import Observe
from dspyer.running.session import Session
from dspyer.running.stopping import StopSignal
from dspyer.scheduler.run_state import Execution

T = TypeVar("T")


class NodeRunner:
    """Runs the calls of one node at once (the items of a map), with the trace in the order of the calls.

    Args:
        session: the run.
        execution: the node's.
        mark: which item of a map, at the end of the execution's name.
    """

    __slots__ = ("_execution", "_mark", "_session")

    def __init__(self, session: Session, execution: Execution, mark: str = "") -> None:
        self._session = session
        self._execution = execution
        self._mark = mark

    def item(self, index: int) -> NodeRunner:
        """What a graph that runs inside one of the calls gets: a scope of its own."""
        return NodeRunner(self._session, self._execution, f"{self._mark}[{index}]")

    @property
    def observe(self) -> Observe:
        """Where the events of a graph inside the node go."""
        return self._session.record

    @property
    def memo(self) -> ExecutionRecords:
        """What the run remembers of its executions."""
        return self._session.memo

    @property
    def journal(self) -> Journal | None:
        """What writes the run down."""
        return self._session.journal

    @property
    def answer(self) -> AnswerSource:
        """What answers questions as they are asked."""
        return self._session.answer

    @property
    def halt(self) -> StopSignal:
        """Whether the run is to stop."""
        return self._session.halt

    @property
    def root(self) -> str:
        """The id of the outermost run."""
        return self._session.root

    @property
    def live(self) -> bool:
        """Whether nodes that run at once see each other's posts."""
        return self._session.live

    @property
    def label(self) -> tuple[str, ...]:
        """The name of the run in what is named after its commits."""
        return self._session.opening.label

    @property
    def scope(self) -> tuple[str, ...]:
        """The executions around such a graph."""
        return (*self._session.scope, self._execution.id + self._mark)

    @property
    def _limit(self) -> int:
        return self._session.blueprint.max_concurrency

    def gather(self, calls: Sequence[Callable[[], T]], max_concurrency: int | None) -> list[T]:
        """Runs sync calls. After a failure nothing new starts, and the first failure in order is raised."""
        batch: Batch[T] = Batch(len(calls), min(self._limit, max_concurrency or self._limit), self.halt)
        with ThreadWorkers(batch.limit) as threads:
            while batch.wants(threads.busy):
                index = batch.take()
                threads.start(index, calls[index])
                while threads.busy and not batch.wants(threads.busy):
                    batch.put(*threads.next())
        return batch.results()

    async def agather(self, calls: Sequence[Callable[[], Awaitable[T]]], max_concurrency: int | None) -> list[T]:
        """Runs async calls, in the same way."""
        batch: Batch[T] = Batch(len(calls), min(self._limit, max_concurrency or self._limit), self.halt)
        async with TaskWorkers() as tasks:
            while batch.wants(tasks.busy):
                index = batch.take()
                tasks.start(index, calls[index])
                while tasks.busy and not batch.wants(tasks.busy):
                    batch.put(*await tasks.next())
        return batch.results()


class Batch(Generic[T]):
    """Which of several calls to start next, and what became of them."""

    def __init__(self, count: int, limit: int, halt: StopSignal) -> None:
        self.limit = limit
        self._halt = halt
        self._count = count
        self._next = 0
        self._outcomes: dict[int, WorkOutcome] = {}
        self._failed = False

    def wants(self, busy: int) -> bool:
        """Whether another call may start beside `busy` others."""
        may = self._next < self._count and busy < self.limit and not self._failed
        return may and self._halt.reason is None

    def take(self) -> int:
        """The next call to start."""
        self._next += 1
        return self._next - 1

    def put(self, index: int, outcome: WorkOutcome) -> None:
        """Keeps an outcome."""
        error = outcome[1]
        if error is not None and not isinstance(error, Interrupt):
            cut_off = isinstance(error, asyncio.CancelledError) and self._halt.reason is not None
            if not isinstance(error, Exception) and not cut_off:
                raise error
            self._failed = True
        self._outcomes[index] = outcome

    def results(self) -> list[T]:
        """The results in order; raises the first failure in order, or all questions if there is none.

        The traces are handed over either way. If the run was stopped before all calls had begun, the node is cut off:
        it runs again on a resume, and finds the items that were kept.
        """
        ordered = [self._outcomes.pop(index) for index in sorted(self._outcomes)]
        for _, _, steps in ordered:
            hand_over(steps)
        cut_off = self._halt.reason is not None and len(ordered) < self._count
        errors = [error for _, error, _ in ordered if error is not None]
        results = [result for result, _, _ in ordered]
        del ordered  # the traceback of an error refers to this frame, which should not refer to the error
        failures = [error for error in errors if not isinstance(error, Interrupt)]
        questions = [question for error in errors if isinstance(error, Interrupt) for question in error.questions]
        del errors
        if cut_off:
            raise asyncio.CancelledError
        if failures:
            raise failures.pop(0)
        if questions:
            raise Interrupt(questions)
        return results
