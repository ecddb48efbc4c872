"""The handle on a stored conversation: `program.thread("t-42")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import anyio.to_thread

from dspyer.events import Question
from dspyer.nodes.binding import resources_of
from dspyer.redacting import Redactor
from dspyer.runtime.request import Request
from dspyer.runtime.run import Counts, Run, counts_in
from dspyer.runtime.session import Observe, ignore
from dspyer.runtime.streams import AsyncEvents, Events
from dspyer.state import ImmutableState
from dspyer.threads.changes import AllowChanged
from dspyer.threads.claiming import ThreadLock
from dspyer.threads.landing import MergeOnFinish
from dspyer.threads.looking import status_of, usage_of
from dspyer.threads.upkeep import Upkeep

Resources = Mapping[type, object] | Sequence[object] | None
OnConflict = Literal["raise", "wait", "merge"]


class Thread(MergeOnFinish, Upkeep):
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

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,
        abandon: bool = False,
        take_over: bool = False,
        live: bool = True,
    ) -> Run:
        """Starts a run that goes on from what the thread has come to.

        Args:
            inputs: the inputs by name; those of fields with a reducer are folded in.
            resources: as in `program.run`; never stored.
            on_conflict: what to do while another run owns the thread: `"raise"`, or `"wait"` until it is free. With
                `"merge"` the run starts at once beside others, owns nothing, and is merged into the thread at its end:
                `t.state` has both. What both have changed is a conflict for the graph's merge policies; if one raises,
                the run has failed and its commits stay. Such a run cannot wait for answers, nor be resumed.
            timeout: seconds to wait, and to try to land.
            abandon: leaves an open run as it is; its commits stay in the history.
            take_over: replaces another owner, who can commit nothing more.
            live: as in `program.run`; whoever resumes the run goes on in the same way.

        Returns:
            The run.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            OpenRunError: if the last run failed, crashed or waits for answers.
            ChangedGraphError: if the thread belongs to a graph of another name, or its values do not fit this one.
            InputError: for missing, unknown or invalid inputs.
            StoreError: if the store fails before the run has begun.
        """
        request = Request(resources_of(resources), live=live)
        return self._play(inputs, request, self._begin(inputs, request, abandon, take_over, on_conflict, timeout))

    async def arun(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,  # noqa: ASYNC109 - the same in both colours
        abandon: bool = False,
        take_over: bool = False,
        live: bool = True,
    ) -> Run:
        """Starts a run in async code, otherwise like `run`."""
        request = Request(resources_of(resources), live=live)
        claim = self._begin(inputs, request, abandon, take_over, on_conflict, timeout)
        return await self._aplay(inputs, request, claim)

    def stream(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,
        abandon: bool = False,
        take_over: bool = False,
        live: bool = True,
    ) -> Events:
        """Starts a run like `run` and gives its events as they happen.

        The run begins with the first event that is asked for. Closing the stream early stops it: nothing new starts,
        what runs is finished and committed, and `resume` or `stream_resume` goes on from there.

        Returns:
            An iterator of events; its `run` is there after the last one. If a node failed, its error is raised then; a
            question ends the events.
        """
        request = Request(resources_of(resources), live=live)
        claim = self._begin(inputs, request, abandon, take_over, on_conflict, timeout)
        return Events(lambda observe: self._play(inputs, request, claim, observe), request)

    def astream(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        timeout: float = 60.0,
        abandon: bool = False,
        take_over: bool = False,
        live: bool = True,
    ) -> AsyncEvents:
        """Starts a run in async code and gives its events as they happen, otherwise like `stream`."""
        request = Request(resources_of(resources), live=live)
        claim = self._begin(inputs, request, abandon, take_over, on_conflict, timeout)
        return AsyncEvents(lambda observe: self._aplay(inputs, request, claim, observe), request)

    def resume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: AllowChanged = False,
    ) -> Run:
        """Goes on with the last run where it stands: after a failure, a crash, or a question.

        What has finished is not called again.

        Args:
            answers: answers to open questions, by `Question.id`. A key does where exactly one open question has it; it
                means whatever is open now, so an answer that may be delivered late or twice must come by id.
            resources: as in `program.run`: they are never stored.
            take_over: replaces another owner, who can commit nothing more.
            max_resumes: how often a run may be taken up without coming any further.
            allow_changed_graph: whether a graph may go on that has changed since the run was begun (other nodes, edges,
                fields, policies: code, prompts and language models may always differ), as far as what the log says
                still has a place in it. A mapping gives new names of nodes by their old ones.

        Returns:
            The run, with the commits from its beginning.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            ChangedGraphError: if the graph has changed, with what is different. Nothing was called then.
            ThreadError: if there is nothing to resume, or an answer answers no open question.
            StoreError: if the store fails before anything has run.
        """
        request = Request(resources_of(resources))
        return self._play({}, request, self._take_up(answers, request, take_over, max_resumes, allow_changed_graph))

    async def aresume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: AllowChanged = False,
    ) -> Run:
        """Goes on with the last run in async code, otherwise like `resume`."""
        request = Request(resources_of(resources))
        return await self._aplay(
            {}, request, self._take_up(answers, request, take_over, max_resumes, allow_changed_graph)
        )

    def stream_resume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: AllowChanged = False,
    ) -> Events:
        """Goes on with the last run like `resume` and gives the events of what happens now, as they happen.

        Returns:
            An iterator of events, as of `stream`.
        """
        request = Request(resources_of(resources))
        claim = self._take_up(answers, request, take_over, max_resumes, allow_changed_graph)
        return Events(lambda observe: self._play({}, request, claim, observe), request)

    def astream_resume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        resources: Resources = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: AllowChanged = False,
    ) -> AsyncEvents:
        """Goes on with the last run in async code and gives the events, otherwise like `stream_resume`."""
        request = Request(resources_of(resources))
        claim = self._take_up(answers, request, take_over, max_resumes, allow_changed_graph)
        return AsyncEvents(lambda observe: self._aplay({}, request, claim, observe), request)

    def _begin(
        self,
        inputs: Mapping[str, Any],
        request: Request,
        abandon: bool,
        take_over: bool,
        on_conflict: str,
        timeout: float,
    ) -> ThreadLock:
        self._program._check_resources(request)
        own = partial(self._starter.begin, inputs, request, abandon=abandon, take_over=take_over)
        if on_conflict == "merge":
            own = partial(self._begin_beside, inputs, request, abandon)
        return ThreadLock(own, request, on_conflict, timeout)

    def _take_up(
        self,
        answers: Mapping[str, Any] | None,
        request: Request,
        take_over: bool,
        max_resumes: int,
        allow: AllowChanged,
    ) -> ThreadLock:
        self._program._check_resources(request)
        take_up = self._starter.take_up
        own = partial(take_up, answers, request, take_over=take_over, max_resumes=max_resumes, allow=allow)
        return ThreadLock(own, request, "raise", 0.0)

    def _play(self, inputs: Mapping[str, Any], request: Request, claim: ThreadLock, observe: Observe = ignore) -> Run:
        return self._landed(self._play_held(inputs, request, claim, observe), request, claim.patience)

    async def _aplay(
        self, inputs: Mapping[str, Any], request: Request, claim: ThreadLock, observe: Observe = ignore
    ) -> Run:
        return await self._alanded(await self._aplay_held(inputs, request, claim, observe), request, claim.patience)

    # These hold no run in a variable: the traceback of its error refers to their frames.

    def _play_held(self, inputs: Mapping[str, Any], request: Request, claim: ThreadLock, observe: Observe) -> Run:
        with claim.held():
            return self._program._run(inputs, request, observe)

    async def _aplay_held(
        self, inputs: Mapping[str, Any], request: Request, claim: ThreadLock, observe: Observe
    ) -> Run:
        async with claim.aheld():
            return await self._program._arun(inputs, request, observe)

    async def _alanded(self, run: Run, request: Request, patience: float) -> Run:
        if request.journal is None or request.journal.thread:
            return run
        return await anyio.to_thread.run_sync(self._landed, run, request, patience)

    @property
    def state(self) -> ImmutableState:
        """What the thread has come to: the last state that all branches of its last run shared.

        Raises:
            StoreError: if the newest commits cannot be read, for want of the right key for example. It names the last
                version that can: `t.at(version)`.
        """
        rest = self._starter.readable()
        return self._starter.fitting.shown(rest.state, rest.last)

    @property
    def status(self) -> str:
        """`"new"`, `"running"`, or how the last run ended: `"completed"`, `"failed"`, `"interrupted"`, `"stopped"`,
        `"crashed"`.
        """
        return status_of(self._starter.store, self.name)

    @property
    def usage(self) -> dict[str, dict[str, Any]]:
        """Tokens by language model, of all runs in its history, those of other processes too. What a process used that
        was killed is not known.

        It reads the whole history.
        """
        return usage_of(self._starter.store, self.name)

    @property
    def counts(self) -> dict[str, Counts]:
        """How often each node of the graph has run and called predictors and tools, over all runs in its history.

        It reads the whole history; `run.counts` has those of one run.
        """
        return counts_in(self.history(), self._program.graph.nodes)

    @property
    def questions(self) -> tuple[Question, ...]:
        """What the last run waits to be told."""
        questions, redaction = self._starter.questions(), self._program.graph.redaction
        if not questions or redaction is None:
            return questions
        shown: tuple[Question, ...] = Redactor(redaction, dict(self._starter.readable().state.raw_items())).shown(
            questions
        )
        return shown

    def __repr__(self) -> str:
        return f"<thread {self.name!r} in {self._store.address}>"
