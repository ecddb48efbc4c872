"""The handle of a stored conversation, `program.thread("t-42")`: its methods call the modules that do the work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import dspy

from dspyer import display
from dspyer.budget import Budget
from dspyer.errors import names_options, shows_removed
from dspyer.events import Commit, LMCall, Question, Sent
from dspyer.failure import Failure
from dspyer.log.execution_records import totals_at
from dspyer.log.rows import total_cost
from dspyer.log.time_travel import (
    Moment,
    ReadsHistory,
    ThreadReader,
    failures_in,
    last_end,
    open_questions,
    status_of,
    thread_bounds,
)
from dspyer.record.making import Items
from dspyer.record.record import Record
from dspyer.record.stored import FollowedRecords, records_of, unread_of
from dspyer.runtime.repairs import repairs_of_thread
from dspyer.runtime.request import new_request
from dspyer.runtime.run import Run
from dspyer.runtime.streams import AsyncEvents, Events
from dspyer.state import ImmutableState
from dspyer.stores.base import DeletionReport, Store
from dspyer.threads.changes import copy_thread, delete_thread, merge_thread, prune_thread, send_message, update_thread
from dspyer.threads.export import export, load
from dspyer.threads.graph_changes import NO_OTHERS, OtherGraphs
from dspyer.threads.playing import new_play, rerun_play, resumed_play, stop_run
from dspyer.threads.start import AnswersByKey, Delivery, IfOpen, OnConflict, Resources, StoredThread, ThreadProgram
from dspyer.worker_threads import run_in_thread


@shows_removed
class Thread(ReadsHistory):
    """A named conversation: runs over one state, kept in the store of the program. `program.thread(name)` makes it.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph(keep=["n"]).add_node("count",
        ...     lambda state: {"n": state.get("n", 0) + 1})
        >>> t = graph.add_path(START, "count", END).compile(
        ...     store=":memory:").thread("t-42")
        >>> t.run({}).status, t.run({}).status, t.state["n"]
        ('completed', 'completed', 2)
    """

    def __init__(self, program: ThreadProgram, store: Store, name: str, others: OtherGraphs = NO_OTHERS) -> None:
        self.name = name
        self._program = program
        self._store = store
        # Made once: it caches the history that was read, and holds nothing of a run between two calls.
        self._stored = StoredThread(program, store, name, others)

    @property
    def _past(self) -> ThreadReader:
        return self._stored.history

    @cached_property
    def _records(self) -> FollowedRecords:
        # Made when it is first asked: a run needs no reader of records.
        return FollowedRecords(self._stored.reader, self.name)

    # --- run

    @names_options("Thread")
    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        key: str | None = None,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        lock_timeout: float = 60.0,
        if_open: IfOpen = "refuse",
        take_over: bool = False,
        live: bool = True,
        budget: Budget | None = None,
    ) -> Run:
        """Starts a run that continues from the state of the thread.

        Args:
            inputs: the inputs by name; those of fields with a reducer are folded in.
            key: an idempotency key: the id of the request. The first call with it starts a run; a later one, with the
                same inputs, resumes that run if it failed, crashed or was stopped. If it has completed or waits for
                answers, it is returned as it is stored: nothing is called or written.
            resources: as in `program.run`; never stored.
            on_conflict: what to do while another run owns the thread: `"raise"`, or `"wait"` until it is free.
            lock_timeout: most seconds to wait for the thread.
            if_open: what becomes of an open run of the thread: `"refuse"` raises; `"amend"` adds the inputs to an
                agent's run that waits, whose open approvals are refused; `"abandon"` leaves it in the history.
            take_over: replaces another owner, which can commit nothing more.
            live: as in `program.run`; a resume or a rerun of the run keeps it.
            budget: as in `program.run`.

        Returns:
            The run; if a node failed, with its error in `run.error`.

        Raises:
            ConcurrentRunError: if another run owns the thread, or, with `key`, the run of another key has crashed.
            OpenRunError: if the last run failed, was stopped or waits for answers, or, without `key`, has crashed. Its
                `questions` are those that wait.
            ThreadError: if `key` is no text, or its run began with other inputs, was abandoned, or makes no progress;
                or if the open run cannot be amended. Nothing was written then.
            ChangedGraphError: if the thread belongs to a graph of another name, or its values do not fit this one.
            InputError: for missing, unknown or invalid inputs.
            StoreError: if the store fails before the run has begun.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("greet", lambda name: {
            ...     "text": f"Hello {name}"}).add_path(START, "greet", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"name": "Ada"}).state["text"]
            'Hello Ada'
        """
        request = new_request(resources, live, budget)
        return new_play(self._stored, inputs, request, if_open, take_over, on_conflict, lock_timeout, key).run()

    @names_options("Thread")
    async def arun(
        self,
        inputs: Mapping[str, Any],
        *,
        key: str | None = None,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        lock_timeout: float = 60.0,
        if_open: IfOpen = "refuse",
        take_over: bool = False,
        live: bool = True,
        budget: Budget | None = None,
    ) -> Run:
        """Starts a run in async code; arguments, result and errors are those of `run`.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("greet", lambda name: {
            ...     "text": f"Hello {name}"}).add_path(START, "greet", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> asyncio.run(t.arun({"name": "Ada"})).state["text"]
            'Hello Ada'
        """
        request = new_request(resources, live, budget)
        return await new_play(self._stored, inputs, request, if_open, take_over, on_conflict, lock_timeout, key).arun()

    @names_options("Thread")
    def stream(
        self,
        inputs: Mapping[str, Any],
        *,
        key: str | None = None,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        lock_timeout: float = 60.0,
        if_open: IfOpen = "refuse",
        take_over: bool = False,
        live: bool = True,
        budget: Budget | None = None,
        tokens: bool = False,
        reads: bool = False,
    ) -> Events:
        """Starts a run like `run` and yields its events as they happen.

        The run begins with the first event that is asked for. Closing the stream early stops it: what runs is finished
        and committed, and `resume` or `stream_resume` continues from there. A question ends the events. After the last
        one the iterator has the `run`. `tokens`, `reads`: as in `program.stream`.

        Raises:
            ConcurrentRunError: with the first event, as all that `run` raises.
            Exception: of the node that failed, after the last event.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("greet", lambda name: {
            ...     "text": f"Hello {name}"}).add_path(START, "greet", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> [type(event).__name__ for event in t.stream({"name": "Ada"})]
            ['RunStarted', 'Committed', 'NodeStarted', 'Committed', 'RunEnded']
        """
        request = new_request(resources, live, budget, tokens, reads)
        return new_play(self._stored, inputs, request, if_open, take_over, on_conflict, lock_timeout, key).stream()

    @names_options("Thread")
    def astream(
        self,
        inputs: Mapping[str, Any],
        *,
        key: str | None = None,
        resources: Resources = None,
        on_conflict: OnConflict = "raise",
        lock_timeout: float = 60.0,
        if_open: IfOpen = "refuse",
        take_over: bool = False,
        live: bool = True,
        budget: Budget | None = None,
        tokens: bool = False,
        reads: bool = False,
    ) -> AsyncEvents:
        """Starts a run in async code and yields its events; arguments, result and errors are those of `stream`.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("greet", lambda name: {
            ...     "text": f"Hello {name}"}).add_path(START, "greet", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> async def names(events):
            ...     return [type(event).__name__ async for event in events]
            >>> asyncio.run(names(t.astream({"name": "Ada"})))[-1]
            'RunEnded'
        """
        request = new_request(resources, live, budget, tokens, reads)
        return new_play(self._stored, inputs, request, if_open, take_over, on_conflict, lock_timeout, key).astream()

    def resume(
        self,
        answers: AnswersByKey = None,
        *,
        by: str | None = None,
        comment: str | None = None,
        resources: Resources = None,
        budget: Budget | None = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: bool = False,
    ) -> Run:
        """Continues the last run where it ended: after a failure, a crash, a stop or a question.

        What has finished is not called again; the result has the commits from the beginning of the run.

        Args:
            answers: answers to open questions, by `Question.id`. A key does if exactly one open question has it; it
                means whatever is open now, so an answer that may be delivered late or twice must come by id.
            by: who gives the answers, a text of at most 500 characters, which `thread.answers` shows. No model sees it.
            comment: what is said with them, likewise.
            resources: as in `program.run`; never stored.
            budget: what may be spent from here on; by default that of `compile`.
            take_over: replaces another owner, which can commit nothing more.
            max_resumes: how often a run may be resumed without progress.
            allow_changed_graph: whether a graph may continue the run that has changed since it began (nodes, edges,
                fields, policies; code, prompts and LMs may always differ), as far as the log fits it.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            ChangedGraphError: if the graph has changed, with the differences. No node was called then.
            InputError: if an answer does not fit its question, or a note is too long. Nothing was stored then.
            ThreadError: if there is nothing to resume, or an answer answers no open question.
            StoreError: if the store fails before anything has run.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_interrupt("ok", question="Send?", into="sent")
            >>> t = graph.add_path(START, "ok", END).compile(store=":memory:").thread(
            ...     "t-42")
            >>> t.run({}).status, t.resume({"ok": True}).state["sent"]
            ('interrupted', True)
        """
        request, answered = new_request(resources, True, budget), Delivery.checked(answers, by, comment)
        return resumed_play(self._stored, answered, request, take_over, max_resumes, allow_changed_graph).run()

    async def aresume(
        self,
        answers: AnswersByKey = None,
        *,
        by: str | None = None,
        comment: str | None = None,
        resources: Resources = None,
        budget: Budget | None = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: bool = False,
    ) -> Run:
        """Continues the last run in async code; arguments, result and errors are those of `resume`.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_interrupt("ok", question="Send it?", answer=bool,
            ...     into="sent")
            >>> t = graph.add_path(START, "ok", END).compile(store=":memory:").thread(
            ...     "t-42")
            >>> t.run({}).status, asyncio.run(t.aresume({"ok": True})).state["sent"]
            ('interrupted', True)
        """
        request, answered = new_request(resources, True, budget), Delivery.checked(answers, by, comment)
        return await resumed_play(self._stored, answered, request, take_over, max_resumes, allow_changed_graph).arun()

    def stream_resume(
        self,
        answers: AnswersByKey = None,
        *,
        by: str | None = None,
        comment: str | None = None,
        resources: Resources = None,
        budget: Budget | None = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: bool = False,
        tokens: bool = False,
        reads: bool = False,
    ) -> Events:
        """Continues the last run like `resume` and yields its events from now on, as `stream`, which raises the same.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_interrupt("ok", question="Send it?", answer=bool,
            ...     into="sent")
            >>> t = graph.add_path(START, "ok", END).compile(store=":memory:").thread(
            ...     "t-42")
            >>> (t.run({}).status, [type(event).__name__
            ...     for event in t.stream_resume({"ok": True})][-1])
            ('interrupted', 'RunEnded')
        """
        request, answered = new_request(resources, True, budget, tokens, reads), Delivery.checked(answers, by, comment)
        return resumed_play(self._stored, answered, request, take_over, max_resumes, allow_changed_graph).stream()

    def astream_resume(
        self,
        answers: AnswersByKey = None,
        *,
        by: str | None = None,
        comment: str | None = None,
        resources: Resources = None,
        budget: Budget | None = None,
        take_over: bool = False,
        max_resumes: int = 10,
        allow_changed_graph: bool = False,
        tokens: bool = False,
        reads: bool = False,
    ) -> AsyncEvents:
        """Continues the last run in async code and yields its events; otherwise like `stream_resume`.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_interrupt("ok", question="Send it?", answer=bool,
            ...     into="sent")
            >>> t = graph.add_path(START, "ok", END).compile(store=":memory:").thread(
            ...     "t-42")
            >>> async def names():
            ...     return [type(event).__name__ async
            ...         for event in t.astream_resume({"ok": True})]
            >>> t.run({}).status, asyncio.run(names())[-1]
            ('interrupted', 'RunEnded')
        """
        request, answered = new_request(resources, True, budget, tokens, reads), Delivery.checked(answers, by, comment)
        return resumed_play(self._stored, answered, request, take_over, max_resumes, allow_changed_graph).astream()

    # --- read

    @property
    def state(self) -> ImmutableState:
        """The last state that all branches of the last run shared.

        Raises:
            StoreError: if the newest commits cannot be read; it names the last version that can, for `thread.at`.
        """
        head = self._stored.readable_head()
        return self._stored.compatibility.without_removed_fields(head.state, head.last_run)

    @property
    def status(self) -> str:
        """`"new"`, `"running"`, `"completed"`, `"failed"`, `"interrupted"`, `"stopped"` or `"crashed"`."""
        return status_of(self._stored.reader.store, self.name)

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions of the last run that have no answer, in branch order."""
        return open_questions(self._stored.reader, self.name)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures with which the last run ended: also in another process, days later."""
        store = self._stored.store
        head, _ = thread_bounds(store, self.name)
        return failures_in(store, None if head is None else last_end(store, head))

    @property
    def error(self) -> Failure | None:
        """The first failure with which the last run ended; None if it did not fail."""
        return next(iter(self.failures), None)

    @property
    def usage(self) -> dict[str, dict[str, Any]]:
        """Tokens, requests and USD by language model, of all runs, also of those that were pruned."""
        row = self._stored.store.thread(self.name)
        return totals_at(self._stored.store, () if row is None or row.head is None else (row.head,), row and row.root)

    @property
    def cost(self) -> float | None:
        """US dollars of all runs, as `usage`, without those that `rerun` has replaced; None if a price is not known."""
        return total_cost(self.usage)

    def lm_calls(self, commit: int | str) -> tuple[LMCall, ...]:
        """The LM calls of a commit, also of items and graphs inside of its node, in the order in which they began.

        Args:
            commit: version or id of the commit; of an execution that has failed, its id (`Failure.execution`).

        Raises:
            LookupError: if there is no such commit or execution.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"n": 1}).cost, t.lm_calls(1)
            (0.0, ())
        """
        return self._records.calls(self._stored.history.id_of(commit))

    def repairs(self) -> list[dspy.Example]:
        """The corrections of all runs as training examples, as `run.repairs()` gives them. Reads the whole history.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda text: {
            ...     "loud": text.upper()}).add_path(START, "shout", END)
            >>> graph.compile(store=":memory:").thread("t-42").repairs()
            []
        """
        return repairs_of_thread(self._program, self._stored.reader, self.name)

    def record(self, run: str | None = None) -> Record:
        """A run as one value for readers, as `run.record()` gives it: the last one, or that with an id or a label.

        Args:
            run: the id of the run, or its label, with which the ids of its commits begin: `"t-42.1"`.

        Raises:
            ThreadError: if there is no such run.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"n": 1}).record().to_dict() == t.record("t-42.1").to_dict()
            True
        """
        return self._records.record(run)

    def items(self, node: str, run: str | None = None) -> Items:
        """The items of a map of the last run, as `run.items(node)`, also while a process runs it, and after a crash.

        Args:
            node: the map.
            run: as in `record`.

        Raises:
            KeyError: if there is no such map; it lists those that there are.
            ThreadError: if there is no such run.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_map("half", lambda n: 6 // n, over="ns", item="n",
            ...     into="halves")
            >>> t = graph.add_path(START, "half", END).compile(store=":memory:",
            ...     max_concurrency=1).thread("t-42")
            >>> (t.run({"ns": [1, 2, 0]}).status, str(t.items("half")),
            ...     t.items("half").results)
            ('failed', 'half: 2 of 3 items, 1 failed', {0: 6, 1: 3})
        """
        return self._records.items(node, run)

    def stats(self) -> display.Stats:
        """The reliability of each node, over all runs, as `run.stats()`. Reads the whole history.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> graph.compile(store=":memory:").thread("t-42").stats().to_dict()[
            ...     "nodes"]
            []
        """
        return display.count_stats(records_of(self._stored.reader, self.name))

    def replay(self) -> ImmutableState:
        """Computes all states again from the stored patches, and compares them with the stored snapshots and digests.

        No node, router, policy or language model is called; reducers fold.

        Raises:
            StoreError: if a state differs: what is stored was changed, or a reducer returns something else than it did.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"n": 1}).state == t.replay()
            True
        """
        return self._stored.history.replay()

    # --- change

    def copy(self, to: str, *, at: int | str | None = None, patch: Mapping[str, Any] | None = None) -> Self:
        """Makes another thread that continues from here, or from an earlier commit. Nothing is stored twice.

        At the end of a run the copy has no open run. Inside of a run it is an open run: `resume()` on the copy finishes
        it. The threads are independent. Without `at` the copy has all that the thread has, with answers, effects and
        questions of nodes that have not finished; with `at` only what led to that commit.

        Args:
            to: the name of the new thread.
            at: version or id of a commit; None for the thread as it is.
            patch: a change that the copy begins with, as `update` takes it.

        Raises:
            ThreadError: if there is a thread of this name, nothing to copy, or several branches are active where
                `patch` is to be committed.
            LookupError: if there is no such commit.
            NodeOutputError: if the patch does not fit the schema.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> (t.run({"n": 1}).status, t.copy(to="try-1", at=0,
            ...     patch={"n": 10}).resume().state["n"], t.state["n"])
            ('completed', 11, 2)
        """
        copied = type(self)(self._program, self._store, to, self._stored.compatibility.others)
        copy_thread(self._stored, copied._stored, at, patch)
        return copied

    def rerun(
        self,
        from_version: int | str,
        *,
        resources: Resources = None,
        budget: Budget | None = None,
        take_over: bool = False,
    ) -> Run:
        """Goes back to a commit and repeats what came after it: a new run, with new calls and new effects.

        The branches that were active at the commit continue, along the routes that they had taken there. What came
        after it leaves the history of the thread and stays in the store: `at`, `copy` and `rerun` take its ids.

        Args:
            from_version: version or id of the commit. To repeat a whole run with its inputs, that of its `START`.
            resources: as in `program.run`; never stored.
            budget: as in `program.run`.
            take_over: replaces another owner, which can commit nothing more.

        Raises:
            ConcurrentRunError: if another run owns the thread.
            ThreadError: if the commit is the end of a run: nothing comes after it.
            ChangedGraphError: if the graph has changed, and the log up to the commit does not fit it.
            LookupError: if there is no such commit.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"n": 1}).state["n"], t.rerun(0).state["n"]
            (2, 2)
        """
        request = new_request(resources, True, budget)
        return rerun_play(self._stored, from_version, request, take_over).run()

    async def arerun(
        self,
        from_version: int | str,
        *,
        resources: Resources = None,
        budget: Budget | None = None,
        take_over: bool = False,
    ) -> Run:
        """Goes back to a commit in async code; arguments, result and errors are those of `rerun`.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"n": 1}).state["n"], asyncio.run(t.arerun(0)).state["n"]
            (2, 2)
        """
        return await rerun_play(self._stored, from_version, new_request(resources, True, budget), take_over).arun()

    def _stream_rerun(self, from_version: int | str) -> Events:
        """Goes back to a commit and yields the events of what happens now: `rerun` for the inspector."""
        return rerun_play(self._stored, from_version, new_request(None, True, None), False).stream()

    def send(self, text: str, *, to: str | None = None, by: str = "", key: str | None = None) -> Sent:
        """Sends a message to the agent of the thread, in whatever process its run works, waits, or has ended.

        The agent is shown it at its next turn, once, as a user message. An agent that would end takes another turn for
        it, within `max_turns`; what comes later is `unread` until the next run. Copies have none; exports have all.

        Args:
            text: the text, at most 100,000 bytes.
            to: the node that is meant, `"team/lead"` for one inside of another; by default the agent that the program
                is, or each agent that is a node of it.
            by: who sends it, a text of at most 500 characters, which is the name of the message.
            key: an idempotency key: sent again with it, the message is there once.

        Returns:
            The message, with its number; `open` says whether a run is open that will be shown it.

        Raises:
            InputError: for a text that is empty or too long, an agent that is not there, or another text under the key.
            ThreadError: if the thread has no run yet, or the graph no agent. Nothing was sent then.

        Example:
            >>> from dspyer import agents, testing
            >>> calls = {"tool_calls": [{"name": "submit", "args": {"answer": "4"}}]}
            >>> lm = testing.ScriptedLM([{"next_thought": "", "tool_calls": calls}])
            >>> program = agents.tool_loop("question -> answer", [], lm=lm).compile(
            ...     store=":memory:")
            >>> t = program.thread("t-42")
            >>> (t.run({"question": "2 + 2?"}).status,
            ...     t.send("In words.", by="ada").open, [one.text for one in t.unread])
            ('completed', False, ['In words.'])
        """
        return send_message(self._stored, text, to, by, key)

    async def asend(self, text: str, *, to: str | None = None, by: str = "", key: str | None = None) -> Sent:
        """Sends a message in async code; arguments, result and errors are those of `send`.

        Example:
            >>> import asyncio
            >>> from dspyer import agents, testing
            >>> calls = {"tool_calls": [{"name": "submit", "args": {"answer": "4"}}]}
            >>> lm = testing.ScriptedLM([{"next_thought": "", "tool_calls": calls}])
            >>> t = agents.tool_loop("question -> answer", [], lm=lm).compile(
            ...     store=":memory:").thread("t-42")
            >>> (t.run({"question": "2 + 2?"}).status,
            ...     asyncio.run(t.asend("In words.")).number)
            ('completed', 0)
        """
        return await run_in_thread(lambda: self.send(text, to=to, by=by, key=key))

    @property
    def unread(self) -> tuple[Sent, ...]:
        """The messages that no turn has taken, in the order in which they were sent."""
        return unread_of(self._stored.store, self.name)

    def stop(self) -> None:
        """Ends the run that works on the thread, in whatever process it is. `resume` continues it.

        What it has committed stays; it commits nothing more. In its process nothing new starts, and async nodes are
        cancelled, once it finds out: at its next commit, or when it renews its lease (every 10 s).

        Raises:
            ThreadError: if no run works on the thread.

        Example:
            >>> from dspyer import END, START, Graph
            >>> stop = lambda state: program.thread("t-42").stop()
            >>> graph = Graph().add_node("stop", stop, writes=[]).add_node("late",
            ...     lambda: {"n": 1}, writes=["n"])
            >>> program = graph.add_path(START, "stop", "late", END).compile(
            ...     store=":memory:")
            >>> program.thread("t-42").run({}).status, program.thread("t-42").status
            ('stopped', 'stopped')
        """
        stop_run(self._stored)

    def update(self, patch: Mapping[str, Any] | None, as_node: str | None = None) -> Commit:
        """Commits a patch manually. It is validated like the output of a node, and is a commit like any other.

        In an open run the commit comes between the last one and the next node: `resume()` continues with it. If the
        router of the last node has read what it changes, the run goes on where that router leads now. After a finished
        run it changes what the next one begins with: fields that last.

        Args:
            patch: the change, as a node would return it; None changes nothing. In a conversation, a message with a
                known id replaces the one that has it, and `remove(id)` removes one.
            as_node: corrects what this node has written, and makes it the author, instead of `"update"`. If its edges
                lead to END alone, or it has ended the last run by a `Command`, the run is completed at once; else the
                next `resume()` continues along them, and asks its routers. An open run is abandoned. The node
                before a fork can be corrected until a branch has committed.

        Raises:
            ConcurrentRunError: if a run owns the thread.
            ThreadError: if several branches are active, with the nearest versions at which only one was; if a message
                has an unknown id, or a call would be without its result or a result without its call; if the router
                is a module: it is asked after `update(patch, as_node=...)`; without `as_node`, if the next run would
                drop the change, since the field does not last.
            NodeOutputError: if the patch does not fit the schema.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> (t.run({"n": 1}).status, t.update({"n": 7}, as_node="add").node,
            ...     t.status, t.state["n"])
            ('completed', 'add', 'completed', 7)
        """
        update_thread(self._stored, patch, as_node)
        return self.history(count=1, newest=True)[0]

    def merge(self, other: Self, *, base: Moment | None = None, policy: object = None) -> Commit | None:
        """Merges another thread into this one; the other one stays as it is. Neither may have an open run.

        Each commit that only one of them has is applied once, as when branches join: reducers fold, what one side
        changed is taken, and what both changed is a conflict for the merge policies. If one raises, nothing is written.
        Of fields that do not last, the other thread's values are taken. Merging again adds nothing.

        Args:
            other: the other thread, of the same store.
            base: for threads that have no commit in common, the state that both come from: a version or id of this
                thread, or the state itself.
            policy: decides conflicts, as in `Graph(merge=...)`; by default those of the graph, which raise.

        Returns:
            The commit, whose author is `"join:"` with the other thread's name; None if there is nothing to add.

        Raises:
            MergeConflictError: if both have changed something, and the policy is to raise.
            ConcurrentRunError: if a run owns one of the threads.
            OpenRunError: if the last run of one was not finished.
            ThreadError: if nothing they have in common is known: no commit, nor `base`, or what the other has pruned.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph(keep=["note"]).add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"])
            >>> t = graph.add_path(START, "add", END).compile(store=":memory:").thread(
            ...     "t-42")
            >>> _, other = t.run({"n": 1}), t.copy(to="try-1",
            ...     patch={"note": "checked"})
            >>> t.merge(other).node, t.state["note"], t.merge(other)
            ('join:try-1', 'checked', None)
        """
        merged = merge_thread(self._stored, other._stored, base, policy)
        return self._stored.history.listed().commits[-1] if merged else None

    # --- delete and export

    def delete(self, *, take_over: bool = False) -> DeletionReport:
        """Deletes the thread, and all of its history that no other thread reaches.

        The store uses the space again; `open_store(address).vacuum()` gives it back to the system.

        Args:
            take_over: deletes it although a run owns it; that run commits nothing more.

        Raises:
            ConcurrentRunError: if a run owns the thread, or acquires it meanwhile.
            ThreadError: if there is no such thread.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> t.run({"n": 1}).status, t.delete().runs, t.status
            ('completed', 1, 'new')
        """
        return delete_thread(self._stored, take_over)

    def prune(self, before: int | str, *, take_over: bool = False) -> DeletionReport:
        """Deletes the runs before the one that a commit belongs to.

        Runs that were abandoned, or replaced by a rerun, are deleted too. All from that commit's run on stays as it is.

        Args:
            before: version or id of a commit; its run is the first one that stays.
            take_over: as in `delete`.

        Raises:
            ConcurrentRunError: if a run owns the thread.
            ThreadError: if there is no such thread, or the run merges two threads.
            LookupError: if there is no such commit.
            StoreError: if the state there is larger than is read in one piece; nothing was deleted.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> _ = t.run({"n": 1}), t.run({"n": 5})
            >>> t.prune(before=2).rows, [commit.node for commit in t.history()]
            (3, ['pruned', 'START', 'add'])
        """
        return prune_thread(self._stored, before, take_over)

    def export(self, path: str | os.PathLike[str]) -> str:
        """Writes the thread to a file of JSON lines (runs, rows, large values), and returns the digest of the lines.

        A file that is there is replaced. It is a copy of what is stored, which `load` reads: also of what
        `compile(redact=...)` hides elsewhere, and in plain text if the store is encrypted.

        Raises:
            ThreadError: if there is no such thread.

        Example:
            >>> import os, tempfile
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> t = graph.compile(store=":memory:").thread("t-42")
            >>> (t.run({"n": 1}).status, len(t.export(
            ...     os.path.join(tempfile.mkdtemp(), "t-42.jsonl"))))
            ('completed', 32)
        """
        return export(self._stored.store, self._stored.existing_row(take_over=True), path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Makes this thread from a file that `export` has written, in this store or another one.

        Runs that are in the store already are shared, not stored twice. Every line is checked before anything is
        written, and nothing is executed or imported. Limits: 256 MiB of JSON and 4,000,000 values for a commit, answer
        or snapshot, with 1 GiB of long texts; 1 GiB for a line; 100 levels.

        Raises:
            ThreadError: if there is a thread of this name.
            StoreError: if the file is not what was exported.

        Example:
            >>> import os, tempfile
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> program, file = graph.compile(store=":memory:"), os.path.join(
            ...     tempfile.mkdtemp(), "t-42.jsonl")
            >>> _ = program.thread("t-42").run({"n": 1}), program.thread("t-42").export(
            ...     file)
            >>> program.thread("t-43").load(file), program.thread("t-43").state["n"]
            (None, 2)
        """
        load(self._stored.store, self.name, path)

    def __repr__(self) -> str:
        return f"<thread {self.name!r} in {self._store.address}>"
