"""Who waits at the board, and who holds a slot of `max_concurrency`. Nothing is safe without the session's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from dspyer.errors import AttemptError
from dspyer.nodes import Verdict, Waiter
from dspyer.scheduler.closing import Waiting, released
from dspyer.scheduler.runstate import Execution, RunState

MayWrite = Callable[[str], Collection[str]]


class WaitingRoom:
    """The executions that wait for an entry, or for a slot to go on with one.

    Args:
        slots: how many executions may work at once.
        may_write: the live fields that a branch at a node may still write.

    Attributes:
        running: the executions that run, waiting or not, by id.
        over: whether nobody waits any more: the run is left.
    """

    def __init__(self, slots: int, may_write: MayWrite) -> None:
        self.running: dict[str, Execution] = {}
        self.over = False
        self._slots = slots
        self._may_write = may_write
        self._waiting: dict[str, Waiter] = {}
        self._due: deque[tuple[Waiter, Verdict]] = deque()

    @property
    def parked(self) -> int:
        """How many hold no slot."""
        return len(self._waiting) + len(self._due)

    def field_of(self, execution: str) -> str:
        """The field that an execution waits for; "" if it works."""
        waiter = self._waiting.get(execution)
        return "" if waiter is None else waiter.field

    def enter(self, waiter: Waiter) -> None:
        """Takes somebody in who has nothing to read."""
        if waiter.execution in self._waiting:
            raise AttemptError(
                f"the execution {waiter.execution} waits for two live fields at once: write one loop after the other"
            )
        self._waiting[waiter.execution] = waiter

    def is_open(self, field: str) -> bool:
        """Whether somebody who works may write a field."""
        waiting, may_write = self._waiting, self._may_write
        return any(
            name not in waiting and field in may_write(execution.node) for name, execution in self.running.items()
        )

    def leave(self, waiter: Waiter) -> None:
        """Lets somebody go who does not wait any more."""
        if self._waiting.get(waiter.execution) is waiter:
            del self._waiting[waiter.execution]
        elif waiter.verdict == "waits":
            self._due = deque([due for due in self._due if due[0] is not waiter])

    def came(self, field: str) -> None:
        """Something came to a field: those who wait for it go on."""
        if self._waiting:
            for waiter in [waiter for waiter in self._waiting.values() if waiter.field == field]:
                self._release(waiter, "goes on")
            self.grant()

    def grant(self) -> None:
        """Gives free slots to those who have something to go on with."""
        while self._due and len(self.running) - self.parked < self._slots:
            waiter, verdict = self._due.popleft()
            waiter.verdict = verdict
            waiter.wake()

    def settle(self, run: RunState, halted: bool) -> None:
        """Releases those to whom nothing more comes.

        Args:
            run: the run.
            halted: whether nothing new starts.
        """
        while self._waiting:
            waiting = [
                Waiting(name, self.running[name].node, self.running[name].path, waiter.field)
                for name, waiter in self._waiting.items()
            ]
            able = [execution.node for name, execution in self.running.items() if name not in self._waiting]
            ready = [group.place[0] for group in run.ready]
            stopped = [execution.node for execution, _ in run.asked.values()]
            stopped += [failure.node.removeprefix("join:") for failure in run.failures]
            (stopped if halted else able).extend(ready)
            found = released(waiting, able, self._may_write)
            for one in found:
                missed = any(one.field in self._may_write(node) for node in stopped)
                self._release(self._waiting[one.execution], "gives way" if missed else "closed")
            if not found:
                break
            self.grant()

    def end(self) -> None:
        """Lets everybody give way."""
        self.over = True
        for waiter in (*self._waiting.values(), *[waiter for waiter, _ in self._due]):
            waiter.verdict = "gives way"
            waiter.wake()
        self._waiting.clear()
        self._due.clear()

    def _release(self, waiter: Waiter, verdict: Verdict) -> None:
        del self._waiting[waiter.execution]
        self._due.append((waiter, verdict))
