"""`CompiledGraph`: what `Graph.compile()` returns, a `dspy.Module` that runs its graph.

The modules of the nodes are its attributes, as in every module of DSPy, so that optimizers find them. A call goes
through DSPy's own `__call__` (callbacks, usage, history), which calls `forward`. The options of `run`, `stream` and
threads are passed to `forward` as a `Request` in DSPy's settings: DSPy's `__call__`, or a module that wraps the
program, takes inputs only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import dspy

from dspyer.budget import Budget
from dspyer.errors import ThreadError, names_options, shows_removed
from dspyer.executors import check_executor, check_sent, refused
from dspyer.graph.compile import prepare_modules
from dspyer.graph.spec import GraphSpec
from dspyer.lm.not_public import COMPILED
from dspyer.lm.parameters import (
    all_parameters,
    copy_parts,
    copy_tree,
    load_parameters,
    modules_in,
    own_signatures,
    walk_parameters,
    without_histories,
)
from dspyer.lm.source import SourceText, reduce_program, source_class
from dspyer.log.journal import CheckedStore
from dspyer.log.reader import check_thread_name
from dspyer.nodes.attempt import Answers, Attempt
from dspyer.nodes.binding import resources_of
from dspyer.nodes.steps import InsideRun
from dspyer.runtime.drivers import acall_program, arun_program, call_program, run_program
from dspyer.runtime.inner_runs import completed_inside, part_of_run
from dspyer.runtime.request import new_request
from dspyer.runtime.run import Run
from dspyer.runtime.streams import AsyncEvents, Events
from dspyer.stores import Store
from dspyer.stores.base import DeletionReport
from dspyer.threads.changes import delete_threads, idle_seconds
from dspyer.threads.graph_changes import Migrate, OtherGraphs
from dspyer.threads.playing import recover_threads
from dspyer.threads.thread import Thread

_NAMES_ELSEWHERE = {
    "invoke": "call the program, program(question=...), or program.run({...}) for the whole run",
    "ainvoke": "await program.acall(question=...), or program.arun({...}) for the whole run",
    "get_state": "a thread has one, program.thread('a name').state",
    "update_state": "a thread has it, program.thread('a name').update({...})",
}
"""Methods of other graph libraries, each with what to use here: a part of the error for a missing attribute."""


@shows_removed
class CompiledGraph(dspy.Module):
    """A compiled graph, made by `Graph.compile()`. Each graph has a subclass of its own, whose source is the graph.

    It is called like any module, `program(question="...")` or `await program.acall(question="...")`, and returns a
    `dspy.Prediction`. Every optimizer of DSPy tunes it.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("shout", lambda state: {
        ...     "loud": state["text"].upper()})
        >>> program = graph.add_path(START, "shout", END).compile()
        >>> program(text="hey").loud
        'HEY'
    """

    _dspyer_program = True
    _accepted_only = False
    _executor: Executor | None = None

    def __init__(self, graph: GraphSpec, modules: Mapping[str, dspy.Module]) -> None:
        super().__init__()
        self._graph = graph
        self._resources: Mapping[type, object] = {}
        self._store: Store | None = None
        for name, module in modules.items():
            setattr(self, name, module)

    # --- running

    @names_options("CompiledGraph")
    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Mapping[type, object] | Sequence[object] | None = None,
        answers: Answers = None,
        live: bool = True,
        budget: Budget | None = None,
    ) -> Run:
        """Runs the graph and returns the run with its state, commits, events and errors.

        Ctrl-C, a closed stream and a cancelled task stop it: sync nodes are finished and committed, async nodes are
        cancelled. Ctrl-C raises `KeyboardInterrupt` once, when the end of the run is written; pressed again, it is
        raised at once. It needs Python's own handler of SIGINT.

        Args:
            inputs: the inputs by name.
            resources: objects for parameters that are annotated with their type: clients, connections; never stored.
            answers: answers to questions by key, or a function from a `Question` to its answer; they come before
                those of `compile`.
            live: whether nodes that run at once read each other's posts to live fields; otherwise each is isolated.
            budget: what the run may spend; by default that of `compile`.

        Returns:
            The run. If a node failed, its error is `run.error`; if the run waits for answers, it has `questions`.

        Raises:
            InputError: for missing, unknown or invalid inputs.
            ExecutorLost: if the program has an executor, which has lost the call.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> run = graph.add_path(START, "shout", END).compile().run({"text": "hey"})
            >>> run.status, run.prediction.loud
            ('completed', 'HEY')
        """
        return run_program(self, inputs, new_request(resources, live, budget, answers=answers))

    @names_options("CompiledGraph")
    async def arun(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Mapping[type, object] | Sequence[object] | None = None,
        answers: Answers = None,
        live: bool = True,
        budget: Budget | None = None,
    ) -> Run:
        """Runs the graph in async code; arguments, result and errors are those of `run`.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> asyncio.run(graph.add_path(START, "shout", END).compile().arun(
            ...     {"text": "hey"})).status
            'completed'
        """
        return await arun_program(self, inputs, new_request(resources, live, budget, answers=answers))

    @names_options("CompiledGraph")
    def stream(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Mapping[type, object] | Sequence[object] | None = None,
        answers: Answers = None,
        live: bool = True,
        budget: Budget | None = None,
        tokens: bool = False,
        reads: bool = False,
    ) -> Events:
        """Runs the graph and returns its events as they happen.

        The run begins with the first event that is asked for. A reader that goes away (`close()`, the end of a `with`
        block, `break`) stops the run: see `Events`.

        Args:
            inputs: the inputs by name.
            resources: as in `run`.
            answers: as in `run`.
            live: as in `run`.
            budget: as in `run`.
            tokens: whether the LMs are asked to stream, and the events have a `Token` for each piece of the output
                fields of the predictors. A field that `redact` may change arrives as one token.
            reads: whether the events have a `Read` for each execution of a node, with the fields that it reads.

        Returns:
            An iterator of events, whose `run` is the run after the last event. A question ends the events.

        Raises:
            ThreadError: if the program has an executor.
            InputError: from the iterator, for missing, unknown or invalid inputs.
            Exception: from the iterator, after the last event, what the failing node raised.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> with graph.add_path(START, "shout", END).compile().stream(
            ...     {"text": "hey"}) as stream:
            ...     names = [type(event).__name__ for event in stream]
            >>> names[0], names[-1], stream.run.state["loud"]
            ('RunStarted', 'RunEnded', 'HEY')

            With the tokens of the LMs:

            >>> import dspy
            >>> from dspyer.events import Token
            >>> from dspyer.testing import ScriptedLM
            >>> graph = Graph().add_node("answer", dspy.Predict(
            ...     "question -> answer")).add_path(START, "answer", END)
            >>> with dspy.context(lm=ScriptedLM([{"answer": "in the north"}])):
            ...     stream = graph.compile().stream({"question": "Where?"}, tokens=True)
            ...     texts = [event.text for event in stream if isinstance(event, Token)]
            >>> texts, "".join(texts) == stream.run.state["answer"]
            (['in', ' the', ' north', ''], True)
        """
        self._refuse_executor()
        request = new_request(resources, live, budget, tokens, reads, answers)
        return Events(partial(run_program, self, inputs, request), request)

    @names_options("CompiledGraph")
    def astream(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Mapping[type, object] | Sequence[object] | None = None,
        answers: Answers = None,
        live: bool = True,
        budget: Budget | None = None,
        tokens: bool = False,
        reads: bool = False,
    ) -> AsyncEvents:
        """Runs the graph in async code and returns its events as they happen; otherwise like `stream`.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> async def main(program):
            ...     return [type(event).__name__ async
            ...         for event in program.astream({"text": "hey"})]
            >>> asyncio.run(main(graph.add_path(START, "shout", END).compile()))[-1]
            'RunEnded'
        """
        self._refuse_executor()
        request = new_request(resources, live, budget, tokens, reads, answers)
        return AsyncEvents(partial(arun_program, self, inputs, request), request)

    def with_resources(self, resources: Mapping[type, object] | Sequence[object]) -> CompiledGraph:
        """The same program with resources for every run: for `program(...)`, `dspy.Evaluate` and optimizers.

        Args:
            resources: as in `run`; the resources of a single run come before these.

        Returns:
            A program that shares the modules of this one.

        Raises:
            InputError: if the program has an executor, and one of them cannot be pickled.

        Example:
            >>> from dspyer import END, START, Graph
            >>> class Rates:
            ...     usd = 0.5
            >>> def convert(amount: float, rates: Rates) -> dict:
            ...     return {"euros": amount * rates.usd}
            >>> program = Graph().add_node("convert", convert).add_path(START,
            ...     "convert", END).compile()
            >>> program.with_resources([Rates()])(amount=8).euros
            4.0
        """
        found = self._with(_resources={**self._resources, **resources_of(resources)})
        if self._executor is not None:
            check_sent(found)
        return found

    def with_executor(self, executor: Executor) -> CompiledGraph:
        """The same program, each call of which is one task of an executor: of a pool of processes, or of a cluster.

        For many independent runs whose nodes compute, made by `dspy.Evaluate`, an optimizer, or threads and tasks of
        your own: each of these waits for its call, so their number bounds the calls in flight. Calls that wait for
        language models need threads or `acall` instead, and a call below 10 ms is not worth sending.

        A call gives what it gives without an executor: result, errors with their notes, trace, usage, `run` and
        `Run.of(prediction)`. If a worker is lost with it, it raises `ExecutorLost`, which is no `Exception`: no score
        counts it. Dask makes such a call again by itself, without `retries=`; no executor repeats a call that raises.

        A worker gets the program with its parameters, the inputs, and DSPy's settings without callbacks, trackers and
        streams; a setting that is None here is the worker's own, and so is DSPy's cache. Functions and classes of a
        script or notebook are sent with it, other modules must be importable there. Language models are sent without
        their history, but with their API keys. In the worker stay `lm.history`, the callbacks of DSPy (those of the
        program itself are called here), spans, and what a node changes outside of the state. Budgets are counted there,
        and the limits of `lms.reliable` hold for each worker.

        An exception arrives with its class and attributes; one that cannot be pickled is a `RuntimeError` with its
        type, text and traceback. DSPy's cache is used as `dspy.configure_cache` says here, in the folder of the worker
        and as far as it is on there. Steps that `dspyer.optimize` judges run in this process. As a node of another
        graph the program is one step with one commit, and it may not ask questions.

        Args:
            executor: any `concurrent.futures.Executor`: a `ProcessPoolExecutor` (with the start method `spawn`, if this
                process has threads), a pool of loky, `Client().get_executor()` of Dask.

        Returns:
            A program that shares the modules of this one. It cannot be streamed, and has no threads. `deepcopy` shares
            the executor, a pickle leaves it out.

        Raises:
            TypeError: if it is no executor.
            InputError: if a part of the program or a resource of `with_resources` cannot be pickled, or a node needs a
                resource that no worker has.

        Example:
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> program = graph.add_path(START, "shout", END).compile()
            >>> with ThreadPoolExecutor(2) as pool:
            ...     program.with_executor(pool)(text="hey").loud
            'HEY'
        """
        found = self._with(_executor=check_executor(executor))
        check_sent(found)
        return found

    def _refuse_executor(self) -> None:
        if self._executor is not None:
            raise refused(self)

    def _with(self, **attributes: object) -> CompiledGraph:
        """A program with other attributes, which shares the modules of this one."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__, **attributes)
        return twin

    @property
    def graph(self) -> GraphSpec:
        """The graph as it was compiled: its nodes and edges, `explain()`, `to_mermaid()`, a picture in a notebook.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> list(graph.add_path(START, "shout", END).compile().graph.nodes)
            ['shout']
        """
        return self._graph

    # --- stored conversations

    def thread(self, name: str, *, migrate: Migrate | None = None, graphs: Iterable[str] = ()) -> Thread:
        """A stored conversation: each run continues from the state of the one before. It begins with its first run.

        Args:
            name: any text; the same name is the same thread, in every process that uses the store.
            migrate: converts the state that an earlier graph left in the thread (a plain dict) to the one with which
                this graph continues; called once, by the next run or resume. Without it new fields get their defaults,
                those that are gone leave the state with a warning, and values that do not fit are refused.
                A new reducer folds the updates from now on; what an old one has made stays.
            graphs: names of other graphs whose thread this one may continue: the name that it had before, or those of
                graphs that work on one thread by turns.
                graphs that work on one thread by turns. A graph that has no name of its own, `Graph(name=...)`, is
                refused only if it has no node and no field in common with the last one.

        Returns:
            The handle on it.

        Raises:
            ThreadError: if the program was compiled without a store or has an executor, the name is empty or no text,
                or `migrate` is no function.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> program = graph.add_path(START, "shout", END).compile(store=":memory:")
            >>> program.thread("t-42").run({"text": "hey"}).state["loud"]
            'HEY'
        """
        self._refuse_executor()
        return Thread(self, self._require_store(), name, OtherGraphs.of(migrate, graphs))

    def threads(self, *, idle: timedelta | None = None, after: str = "", limit: int | None = None) -> list[str]:
        """The names of the threads in the store, sorted: of all, or of a page.

        A store that graphs share has those of other graphs too.

        Args:
            idle: only threads that no run owns, and that were last run, changed or sent a message so long ago or
                longer, by the clock of the PostgreSQL server, or else of this machine. A run that was stopped by a
                crash counts as its thread's use until its lease of 30 s has ended.
            after: only names that come after this one; the last name of the page before. A thread that is made or
                deleted between two pages changes no other one: none comes twice, and none is left out.
            limit: the most names of the page; None for all.

        Raises:
            ThreadError: if the program was compiled without a store, or `after` is no text.
            ValueError: if `limit` is no number above 0, or `idle` is negative or no timedelta.
            StoreError: if the store fails.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> program = graph.add_path(START, "shout", END).compile(store=":memory:")
            >>> _ = program.thread("t-42").run({"text": "hey"})
            >>> _ = program.thread("t-43").run({"text": "you"})
            >>> program.threads(), program.threads(after="t-42", limit=100)
            (['t-42', 't-43'], ['t-43'])
        """
        store = CheckedStore(self._require_store())
        if after != "":
            check_thread_name(after, "threads(after='t-42'), or after='' for the first page")
        if limit is not None and (int(limit) != limit or limit < 1):
            raise ValueError(f"limit={limit!r}: a page has at least one name; None for all names")
        most = 2**63 - 1  # a database cannot count further
        return store.threads(after, None if limit is None else min(int(limit), most), idle_seconds(idle))

    def delete(self, names: Iterable[str], *, idle: timedelta | None = None) -> DeletionReport:
        """Deletes threads in one transaction, with all of their history that no other thread reaches.

        A thread that a run owns is left. One whose last run failed, was stopped, has crashed or waits for an answer is
        deleted: that run can be resumed no more. Keys of the runs are forgotten: `run(key=...)` calls the nodes again.

        Args:
            names: names of the threads. Those that no thread has are ignored.
            idle: leaves also the threads that are not idle for so long, as `threads(idle=...)` says: those that were
                used since that has listed them.

        Returns:
            What was deleted: `report.threads` names the threads that are gone, `report.busy` those that were left.

        Raises:
            ThreadError: if the program was compiled without a store, or `names` is one text or has what is no name.
            ValueError: if `idle` is negative or no timedelta.
            StoreError: if the store fails; nothing was deleted. Of a `Sharded` one, each shard has its transaction.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> program = graph.add_path(START, "shout", END).compile(store=":memory:")
            >>> for name in ("t-42", "t-43", "t-44"):
            ...     _ = program.thread(name).run({"text": "hey"})
            >>> program.delete(["t-42", "missing"]).threads
            ('t-42',)
            >>> from datetime import timedelta
            >>> while names := program.threads(idle=timedelta(), limit=500):
            ...     _ = program.delete(names, idle=timedelta())
            >>> program.threads()
            []
        """
        return delete_threads(CheckedStore(self._require_store()), names, idle)

    def recover(self) -> list[str]:
        """Resumes the runs of this graph that can go on by themselves, one by one.

        Those are the runs whose processes have crashed, and those with a question that has expired, as `Archive.due`
        names them. A stop that asks for permission alone stays.

        A run whose owner lives is left alone; on another host, or in another container, that is known once its lease
        of 30 s has ended. Of several processes that do so at once, one gets each run.

        Returns:
            The names of the threads whose runs were resumed, also of those that failed then. A run that cannot be
            resumed, since the graph has changed or it has made no progress for long, is left out, and logged.

        Raises:
            ThreadError: if the program was compiled without a store or has an executor.
            StoreError: if the store cannot be read.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> graph.add_path(START, "shout", END).compile(store=":memory:").recover()
            []
        """
        self._refuse_executor()
        return recover_threads(CheckedStore(self._require_store()), self._graph.name, self.thread)

    def _require_store(self) -> Store:
        if self._store is None:
            raise ThreadError(
                f"graph {self._graph.name!r} was compiled without a store: compile(store='runs.db') keeps runs in "
                "a file, compile(store=':memory:') as long as the program lives"
            )
        return self._store

    # --- what DSPy calls

    def forward(self, *args: Any, **inputs: Any) -> dspy.Prediction:
        """Runs the graph for DSPy. Call the program itself, not this.

        Args:
            args: none; inputs have names.
            inputs: the inputs by name.

        Returns:
            The outputs as plain values.

        Raises:
            InputError: for missing, unknown or invalid inputs.
            Interrupted: if the run waits for answers.
            ExecutorLost: if an executor has lost the call, or what a node had given it.
            Exception: what the first failing node raised, unwrapped.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> graph.add_path(START, "shout", END).compile()(text="hey")
            Prediction(
                loud='HEY'
            )
        """
        return call_program(self, args, inputs)

    async def aforward(self, *args: Any, **inputs: Any) -> dspy.Prediction:
        """Runs the graph for DSPy in async code. Await `acall`, not this; otherwise like `forward`.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {
            ...     "loud": state["text"].upper()})
            >>> asyncio.run(graph.add_path(START, "shout", END).compile().acall(
            ...     text="hey")).loud
            'HEY'
        """
        return await acall_program(self, args, inputs)

    def named_parameters(self) -> list[tuple[str, Any]]:
        """The parameters that optimizers may change, by name: not those of frozen nodes, nor of the judge of a search.

        Returns:
            The parameters, each with its name.

        Example:
            >>> import dspy
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("ask", dspy.Predict("text -> question"))
            >>> graph = graph.add_node("answer", dspy.Predict("question -> answer"),
            ...     frozen=True)
            >>> [name for name, _ in graph.add_path(START, "ask", "answer",
            ...     END).compile().named_parameters()]
            ['ask']
        """
        # DSPy leaves out what is in a compiled module, but no module that is a parameter itself, as `dspy.Predict` is.
        open_to_all = self._with()
        for name in self._graph.frozen:
            open_to_all.__dict__.pop(name, None)
        found: dict[int, tuple[str, Any]] = {}
        for one in walk_parameters(open_to_all, tuned=True):
            found.setdefault(id(one[1]), one)
        return list(found.values())

    def set_lm(self, lm: dspy.LM | None) -> None:
        """Sets the language model of every predictor, frozen ones too.

        Args:
            lm: the language model; None for the one of DSPy's settings.

        Example:
            >>> import dspy
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("answer", dspy.Predict("question -> answer"))
            >>> program = graph.add_path(START, "answer", END).compile()
            >>> program.set_lm(dspy.LM("openai/gpt-4o-mini"))
            >>> program.answer.lm.model
            'openai/gpt-4o-mini'
        """
        for _, parameter in all_parameters(self):
            if isinstance(parameter, dspy.Module):
                parameter.lm = lm

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """The parameters by name, frozen ones too, in the form of `dspy.Module.dump_state`.

        Args:
            json_mode: whether the values are made JSON, as in DSPy.

        Returns:
            The state of each predictor: demonstrations, signature, language model.

        Example:
            >>> import dspy
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("answer", dspy.Predict("question -> answer"))
            >>> list(graph.add_path(START, "answer", END).compile().dump_state())
            ['answer']
        """
        return {name: parameter.dump_state(json_mode=json_mode) for name, parameter in all_parameters(self)}

    def load_state(self, state: dict[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Loads parameters. If they are another graph's, nothing is changed.

        Args:
            state: what `dump_state` has returned.
            allow_unsafe_lm_state: as in DSPy.

        Raises:
            GraphError: if the predictors differ from those of the state; it names them.

        Example:
            >>> import dspy
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("answer", dspy.Predict(
            ...     "question -> answer")).add_path(START, "answer", END)
            >>> tuned, fresh = graph.compile(), graph.compile()
            >>> tuned.answer.demos = [dspy.Example(question="1 + 1", answer="2")]
            >>> fresh.load_state(tuned.dump_state())
            >>> fresh.answer.demos[0]["answer"]
            '2'
        """
        load_parameters(self, state, allow_unsafe_lm_state)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledGraph:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        # Optimizers copy a program by the hundred: what they cannot change is shared.
        shared = {"_graph": self._graph, "_resources": self._resources, "_store": self._store}
        if self._executor is not None:
            shared["_executor"] = self._executor
        own = {name: value for name, value in self.__getstate__().items() if name not in shared}
        copies, whole = copy_parts(own, memo)
        twin.__setstate__({**copies, **shared})
        if not whole:
            own_signatures(twin)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        # Clients, connections and pools belong to this process.
        state.pop("_executor", None)
        return {**state, "_resources": {}}

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_program(without_histories(self))

    # --- as a node of another graph

    def _run_inside(self, inputs: dict[str, Any], attempt: Attempt, *args: Any, **options: Any) -> InsideRun:
        """Runs as a part of the run that `attempt` belongs to; the options are those of `part_of_run`."""
        with part_of_run(attempt, *args, **options) as request:
            prediction = self(**inputs)
        return completed_inside(prediction, request)

    async def _arun_inside(self, inputs: dict[str, Any], attempt: Attempt, *args: Any, **options: Any) -> InsideRun:
        """The same from async code."""
        with part_of_run(attempt, *args, **options) as request:
            prediction = await self.acall(**inputs)
        return completed_inside(prediction, request)

    if not TYPE_CHECKING:  # with it, a type checker would refuse the modules of the nodes as attributes

        def __getattr__(self, name: str) -> NoReturn:
            hint = f": {_NAMES_ELSEWHERE[name]}" if name in _NAMES_ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")


# --- making a program


def make_program(
    graph: GraphSpec, modules: Mapping[str, dspy.Module], text: SourceText, store: Store | None = None
) -> CompiledGraph:
    """The program of a graph, with copies of the user's modules; modules that share a part still share it.

    `text` is the graph as source, which becomes the source of the program's class.
    """
    copies = copy_tree(dict(modules), {})
    for name, module in copies.items():
        if name in graph.frozen and not getattr(module, "_dspyer_program", False):
            setattr(module, COMPILED, True)
        if name in graph.thawed:
            for _, inner in modules_in(module):
                setattr(inner, COMPILED, False)
    prepare_modules(graph, copies)
    program = source_class(graph.name, CompiledGraph, text)(graph, copies)
    own_signatures(program, retag=True)
    program._store = store
    return program
