"""Who waits for a live field, and who holds a slot of `max_concurrency`. Nothing is safe without the session's lock.

An execution that waits holds no slot. When an entry comes, its field closes or its time is over, it is *due*: it goes
on as soon as a slot is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dspyer.errors import AttemptError
from dspyer.nodes.live_access import Verdict, Waiter
from dspyer.scheduler.live_deadlock import Held, Origin, Reach, Waiting, released
from dspyer.scheduler.run_state import Execution, RunState


class LiveWaiters:
    """The executions that wait for an entry, or for a slot to go on with one.

    Args:
        slots: how many executions may work at once.
        reach: what a branch may write.

    Attributes:
        running: the executions whose nodes run, waiting or not, by id.
        over: whether nothing waits any more: the run is left.
    """

    def __init__(self, slots: int, reach: Reach) -> None:
        self.running: dict[str, Execution] = {}
        self.over = False
        self._slots = slots
        self._reach = reach
        self._waiting: dict[str, Waiter] = {}
        self._of_field: dict[str, dict[str, Waiter]] = {}
        self._due: deque[tuple[Waiter, Verdict]] = deque()

    @property
    def parked(self) -> int:
        """How many run and hold no slot."""
        return len(self._waiting) + len(self._due)

    @property
    def waits(self) -> bool:
        """Whether an execution waits for an entry."""
        return bool(self._waiting)

    def field_of(self, execution: str) -> str:
        """The field that an execution waits for; "" if it works."""
        waiter = self._waiting.get(execution)
        return "" if waiter is None else waiter.field

    def enter(self, waiter: Waiter) -> None:
        """Takes in an execution that has nothing to read."""
        if waiter.execution in self._waiting:
            raise AttemptError(
                f"the execution {waiter.execution} waits for two live fields at once: write one loop after the other"
            )
        self._waiting[waiter.execution] = waiter
        self._of_field.setdefault(waiter.field, {})[waiter.execution] = waiter

    def is_open(self, waiter: Waiter) -> bool:
        """Whether a node that works may write the field of a listener."""
        field, place, waiting = waiter.field, self.running[waiter.execution].place, self._waiting
        works = [execution for name, execution in self.running.items() if name not in waiting]
        return any(self._reach.may_write(Origin(one.place), field, place) for one in works)

    def leave(self, waiter: Waiter) -> None:
        """Lets an execution go that does not wait any more."""
        if self._waiting.get(waiter.execution) is waiter:
            self._out(waiter)
        elif waiter.verdict == "waits":
            self._due = deque([due for due in self._due if due[0] is not waiter])

    def came(self, field: str, author: str) -> None:
        """An entry came to a field: those who wait for it are due, but not its author."""
        if waiters := self._of_field.get(field):
            for waiter in [waiter for name, waiter in waiters.items() if name != author]:
                self.release(waiter.execution, "goes on")
            self.grant()

    def release(self, execution: str, verdict: Verdict) -> None:
        """An execution is due, if it waits for an entry."""
        waiter = self._waiting.get(execution)
        if waiter is not None:
            self._out(waiter)
            self._due.append((waiter, verdict))

    def grant(self) -> None:
        """Gives free slots to those who are due."""
        while self._due and len(self.running) - self.parked < self._slots:
            waiter, verdict = self._due.popleft()
            waiter.verdict = verdict
            waiter.wake()

    def settle(self, run: RunState, halted: bool, held: Iterable[Held]) -> None:
        """Releases the listeners to which no entry comes.

        Args:
            run: the run.
            halted: whether nothing new starts.
            held: the executions that have ended and not committed.
        """
        while self._waiting:
            waiting = []
            for name, waiter in self._waiting.items():
                execution = self.running[name]
                waiting.append(Waiting(name, execution.place, execution.path, waiter.field))
            able = [Origin(execution.place) for name, execution in self.running.items() if name not in self._waiting]
            stopped = [Origin(execution.place) for execution, _ in run.asked.values()]
            stopped += [Origin(failure.place) for failure in run.failures]
            ended = {one.execution for one in held}
            stopped += [  # those that were cut off
                Origin(execution.place)
                for name, execution in run.running.items()
                if name not in self.running and name not in ended
            ]
            (stopped if halted else able).extend([Origin(group.place) for group in run.ready])
            found = released(waiting, dict.fromkeys(able), held, self._reach)
            for one in found:
                missed = any(self._reach.may_write(origin, one.field, one.place) for origin in stopped)
                self.release(one.execution, "gives way" if missed else "closed")
            if not found:
                break
            self.grant()

    def end(self) -> None:
        """Lets all give way."""
        self.over = True
        for waiter in (*self._waiting.values(), *[waiter for waiter, _ in self._due]):
            waiter.verdict = "gives way"
            waiter.wake()
        self._waiting.clear()
        self._of_field.clear()
        self._due.clear()

    def _out(self, waiter: Waiter) -> None:
        del self._waiting[waiter.execution]
        del self._of_field[waiter.field][waiter.execution]
