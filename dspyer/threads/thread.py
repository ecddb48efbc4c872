"""The handle on a stored conversation: `program.thread("t-42")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio.to_thread

from dspyer.durable.journal import guarded
from dspyer.durable.reading import Reader
from dspyer.errors import ThreadError
from dspyer.events import Question
from dspyer.nodes import resources_of
from dspyer.request import Request
from dspyer.run import Run
from dspyer.state import ImmutableState
from dspyer.stores.base import Store
from dspyer.threads.decoding import decoder
from dspyer.threads.owning import leases
from dspyer.threads.starting import Owned, Starter, patiently

if TYPE_CHECKING:
    from dspyer.program import CompiledGraph

Resources = Mapping[type, object] | Sequence[object] | None
T = TypeVar("T")
OnConflict = Literal["raise", "wait"]


class Thread:
    """A named conversation: runs over one state, kept in the store of the program.

    Attributes:
        name: its name.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("count", lambda state: {"n": state.get("n", 0) + 1}).add_path(START, "count", END)
        >>> t = graph.compile(store=":memory:").thread("t-42")
        >>> t.run({}).status, t.run({}).status, t.state["n"]
        ('completed', 'completed', 2)
    """

    def __init__(self, program: CompiledGraph, store: Store, name: str) -> None:
        self.name = name
        self._program = program
        self._store = store
        schema = program.graph.topology.schema
        self._starter = Starter(program.graph, store, name, Reader(store, schema, decoder(schema)))

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,
        abandon: bool = False,
        take_over: bool = False,
    ) -> Run:
        """Starts a run that goes on from what the thread has come to.

        Args:
            inputs: the inputs by name; those of fields with a reducer are folded in.
            resources: as in `program.run`; never stored.
            on_conflict: what to do while another run owns the thread: `"raise"`, or `"wait"` until it is free.
            timeout: seconds to wait.
            abandon: leaves an open run as it is; its commits stay in the history.
            take_over: replaces another owner, who can commit nothing more.

        Returns:
            The run.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            OpenRunError: if the last run failed, crashed or waits for answers.
            InputError: for missing, unknown or invalid inputs.
            StoreError: if the store fails before the run has begun.
        """
        request = Request(resources_of(resources))
        begin = partial(self._starter.begin, inputs, request, abandon=abandon, take_over=take_over)
        owned = _owned(begin, on_conflict, timeout)
        try:
            return self._program._run(inputs, owned.request)
        finally:
            _give_back(owned)

    async def arun(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,  # noqa: ASYNC109 - the same in both colours
        abandon: bool = False,
        take_over: bool = False,
    ) -> Run:
        """Starts a run in async code, otherwise like `run`."""
        request = Request(resources_of(resources))
        begin = partial(self._starter.begin, inputs, request, abandon=abandon, take_over=take_over)
        owned = await anyio.to_thread.run_sync(_owned, begin, on_conflict, timeout)
        try:
            return await self._program._arun(inputs, owned.request)
        finally:
            _give_back(owned)

    def resume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
    ) -> Run:
        """Goes on with the last run where it stands: after a failure, a crash, or a question.

        What has finished is not called again.

        Args:
            answers: answers to open questions, by key, or by id where several open questions have the key.
            resources: as in `program.run`: they are never stored.
            take_over: replaces another owner, who can commit nothing more.
            max_resumes: how often a run may be taken up without coming any further.

        Returns:
            The run, with the commits from its beginning.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            ThreadError: if there is nothing to resume, or an answer answers no open question.
            StoreError: if the store fails before anything has run.
        """
        request = Request(resources_of(resources))
        owned = self._starter.take_up(answers, request, take_over=take_over, max_resumes=max_resumes)
        try:
            return self._program._run({}, owned.request)
        finally:
            _give_back(owned)

    async def aresume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
    ) -> Run:
        """Goes on with the last run in async code, otherwise like `resume`."""
        request = Request(resources_of(resources))
        take_up = partial(self._starter.take_up, answers, request, take_over=take_over, max_resumes=max_resumes)
        owned = await anyio.to_thread.run_sync(take_up)
        try:
            return await self._program._arun({}, owned.request)
        finally:
            _give_back(owned)

    @property
    def state(self) -> ImmutableState:
        """What the thread has come to: the last state that all branches of its last run shared."""
        return self._read(self._starter.rest).state

    @property
    def status(self) -> str:
        """`"new"`, `"running"`, or how the last run ended: `"completed"`, `"failed"`, `"interrupted"`, `"stopped"`,
        `"crashed"`.
        """
        return self._read(self._starter.status)

    @property
    def questions(self) -> tuple[Question, ...]:
        """What the last run waits to be told."""
        return self._read(self._starter.questions)

    def _read(self, work: Callable[[], T]) -> T:
        return guarded(self._store, work)

    def __repr__(self) -> str:
        return f"<thread {self.name!r} in {self._store.address}>"


def _owned(begin: Callable[[], Owned], on_conflict: str, timeout: float) -> Owned:
    if on_conflict == "raise":
        return begin()
    if on_conflict == "wait":
        return patiently(begin, timeout)
    raise ThreadError(f'on_conflict={on_conflict!r}: it is "raise" or "wait"')


def _give_back(owned: Owned) -> None:
    """Renews the lease no longer; a run that was torn out of its work gives the thread back."""
    leases.let_go(owned.owner.token)
    session = owned.request.sessions[-1] if owned.request.sessions else None
    if session is None or not session.closed:
        owned.journal.leave()
