"""The compiled graph: a `dspy.Module` whose attributes are the nodes' modules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import dspy

from dspyer.dspy_module.parameters import all_parameters, copy_tree, load_parameters, without_histories
from dspyer.dspy_module.signatures import own_signatures
from dspyer.dspy_module.source import reduce_program, source_class
from dspyer.dspy_module.tracing import append_to_trace
from dspyer.errors import InputError, Interrupt, Interrupted, RunStoppedError, ThreadError
from dspyer.graph.compile import prepare_modules
from dspyer.graph.spec import GraphSpec, check_inputs
from dspyer.nodes.answer_types import Interrupts, answering, first_of
from dspyer.nodes.binding import check_resources, resources_of
from dspyer.nodes.node import Call
from dspyer.patch import DELETE
from dspyer.persistence.replay import replay
from dspyer.persistence.store_errors import Guarded
from dspyer.reducers import Updates
from dspyer.runtime.drivers import adrive, drive
from dspyer.runtime.live import LiveSession
from dspyer.runtime.request import REQUEST, Observe, Request, RunStart, StopSignal, ignore
from dspyer.runtime.run import Run
from dspyer.runtime.session import Session
from dspyer.runtime.streams import AsyncEvents, Events
from dspyer.scheduler.lineage import ancestry
from dspyer.state import ImmutableState
from dspyer.stores import Store
from dspyer.threads.thread import Thread
from dspyer.values.freezing import same
from dspyer.values.frozen import thaw

_OTHERS = {
    "invoke": "call the program, program(question=...), or program.run({...}) for the whole run",
    "ainvoke": "await program.acall(question=...), or program.arun({...}) for the whole run",
    "get_state": "a thread has one, program.thread('a name').state",
    "update_state": "a thread has it, program.thread('a name').update({...})",
}
"""What other graph libraries call it."""


class CompiledGraph(dspy.Module):
    """A graph that runs. Made by `Graph.compile()`; each graph has a subclass of its own, whose source is the graph.

    It is called like any module, `program(question="...")` or `await program.acall(question="...")`, and gives a
    `dspy.Prediction`. Every optimizer of DSPy tunes it.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("shout", lambda state: {"loud": state["text"].upper()})
        >>> program = graph.add_path(START, "shout", END).compile()
        >>> program(text="hey").loud
        'HEY'
    """

    _dspyer_program = True

    def __init__(self, graph: GraphSpec, modules: Mapping[str, dspy.Module]) -> None:
        super().__init__()
        self._graph = graph
        self._resources: Mapping[type, object] = {}
        self._store: Store | None = None
        for name, module in modules.items():
            setattr(self, name, module)

    @property
    def graph(self) -> GraphSpec:
        """The graph as it was compiled: `explain()`, `to_mermaid()`, a picture in a notebook."""
        return self._graph

    def forward(self, *args: Any, **inputs: Any) -> dspy.Prediction:
        """Runs the graph. Call the program itself, not this.

        Args:
            args: none; inputs have names.
            inputs: the inputs by name.

        Returns:
            The outputs as plain values.

        Raises:
            InputError: for missing, unknown or invalid inputs.
            Exception: what the first failing node raised, unwrapped.
        """
        request, session = self._open(args, inputs)
        try:
            drive(session, **{REQUEST: None})
        finally:
            self._close(request, session)
        return self._answer(request, session)

    async def aforward(self, *args: Any, **inputs: Any) -> dspy.Prediction:
        """Runs the graph in async code. Await `acall`, not this.

        Args:
            args: none; inputs have names.
            inputs: the inputs by name.

        Returns:
            The outputs as plain values.
        """
        request, session = self._open(args, inputs)
        try:
            await adrive(session, **{REQUEST: None})
        finally:
            self._close(request, session)
        return self._answer(request, session)

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Mapping[type, object] | Sequence[object] | None = None,
        interrupts: Interrupts = None,
        live: bool = True,
    ) -> Run:
        """Runs the graph and gives all that the run leaves behind.

        Args:
            inputs: the inputs by name.
            resources: objects for parameters that are annotated with their type: clients, connections; never stored.
            interrupts: answers to questions by key, or a function from a `Question` to its answer; they come before
                those of `compile`.
            live: whether nodes that run at once see each other's posts to live fields; else each is isolated.

        Returns:
            The run; if a node failed, with its error in `run.error`; if it waits for answers, with its `questions`.

        Raises:
            InputError: for missing, unknown or invalid inputs.
        """
        return self._run(inputs, Request(resources_of(resources), answer=answering(interrupts), live=live))

    async def arun(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Mapping[type, object] | Sequence[object] | None = None,
        interrupts: Interrupts = None,
        live: bool = True,
    ) -> Run:
        """Runs the graph in async code and gives all that the run leaves behind.

        Args:
            inputs: the inputs by name.
            resources: as in `run`.
            interrupts: as in `run`.
            live: as in `run`.

        Returns:
            The run.
        """
        return await self._arun(inputs, Request(resources_of(resources), answer=answering(interrupts), live=live))

    def stream(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Mapping[type, object] | Sequence[object] | None = None,
        interrupts: Interrupts = None,
        live: bool = True,
    ) -> Events:
        """Runs the graph and gives its events as they happen.

        A reader that goes away (`close()`, the end of a `with` block, `break`) stops the run: see `Events`.

        Args:
            inputs: the inputs by name.
            resources: as in `run`.
            interrupts: as in `run`.
            live: as in `run`.

        Returns:
            An iterator of events; its `run` is there after the last one. If a node failed, its error is raised then; a
            question ends the events.
        """
        request = Request(resources_of(resources), answer=answering(interrupts), live=live)
        return Events(lambda observe: self._run(inputs, request, observe), request)

    def astream(
        self,
        inputs: Mapping[str, Any],
        *,
        resources: Mapping[type, object] | Sequence[object] | None = None,
        interrupts: Interrupts = None,
        live: bool = True,
    ) -> AsyncEvents:
        """Runs the graph in async code and gives its events as they happen.

        Args:
            inputs: the inputs by name.
            resources: as in `run`.
            interrupts: as in `run`.
            live: as in `run`.

        Returns:
            An async iterator of events, otherwise as in `stream`.
        """
        request = Request(resources_of(resources), answer=answering(interrupts), live=live)
        return AsyncEvents(lambda observe: self._arun(inputs, request, observe), request)

    def thread(self, name: str) -> Thread:
        """A stored conversation: runs that go on from each other. It begins with its first run.

        Args:
            name: any text; the same name is the same thread, in every process that uses the store.

        Returns:
            The handle on it.

        Raises:
            ThreadError: if the program was compiled without a store, or the name is empty or no text.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("shout", lambda state: {"loud": state["text"].upper()})
            >>> program = graph.add_path(START, "shout", END).compile(store=":memory:")
            >>> program.thread("t-42").run({"text": "hey"}).state["loud"]
            'HEY'
        """
        return Thread(self, self._kept(), name)

    def threads(self) -> list[str]:
        """The names of all threads in the store, sorted: those of other graphs too, if they share it.

        Raises:
            ThreadError: if the program was compiled without a store.
        """
        return Guarded(self._kept()).threads()

    def _kept(self) -> Store:
        if self._store is None:
            raise ThreadError(
                f"graph {self._graph.name!r} was compiled without a store: compile(store='runs.db') keeps runs in "
                "a file, compile(store=':memory:') as long as the program lives"
            )
        return self._store

    def with_resources(self, resources: Mapping[type, object] | Sequence[object]) -> CompiledGraph:
        """The same program with resources for every run: for `program(...)`, `dspy.Evaluate` and optimizers.

        Args:
            resources: as in `run`; those of a run come before these.

        Returns:
            A program that shares the modules of this one.
        """
        bound = type(self).__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound._resources = {**self._resources, **resources_of(resources)}
        return bound

    def run_inside(self, inputs: dict[str, Any], call: Call) -> Mapping[str, object]:
        """Runs as a node of another graph; returns what its commits changed."""
        request = _request_inside(call)
        with _inside(call, request):
            self(**inputs)
        return _changes(request.outcome.sessions[-1])

    async def arun_inside(self, inputs: dict[str, Any], call: Call) -> Mapping[str, object]:
        """Runs as a node of another graph in async code; returns what its commits changed."""
        request = _request_inside(call)
        with _inside(call, request):
            await self.acall(**inputs)
        return _changes(request.outcome.sessions[-1])

    def _run(self, inputs: Mapping[str, Any], request: Request, observe: Observe = ignore) -> Run:
        request, outcome = replace(request, observe=observe), request.outcome
        with dspy.context(**{REQUEST: request}), dspy.track_usage() as tracker:
            try:
                self(**inputs)
            except Exception as error:
                if not outcome.ended_with(error):
                    raise
        return Run(*outcome.take(), tracker.get_total_tokens())

    async def _arun(self, inputs: Mapping[str, Any], request: Request, observe: Observe = ignore) -> Run:
        request, outcome = replace(request, observe=observe), request.outcome
        with dspy.context(**{REQUEST: request}), dspy.track_usage() as tracker:
            try:
                await self.acall(**inputs)
            except asyncio.CancelledError:
                if outcome.ended is not None:
                    outcome.cut_off = Run(*outcome.take(), tracker.get_total_tokens())
                raise
            except Exception as error:
                if not outcome.ended_with(error):
                    raise
        return Run(*outcome.take(), tracker.get_total_tokens())

    def _open(self, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> tuple[Request, Session]:
        """Checks the inputs before anything starts."""
        graph = self._graph
        if args:
            name = graph.inputs[0] if graph.inputs else "name"
            raise InputError(f"graph {graph.name!r} takes its inputs by name: write program({name}=...)")
        asked: Request | None = dspy.settings.get(REQUEST)
        request = asked or Request(keeps_events=False)
        run_start = request.run_start or self._run_start(inputs, request)
        resources = self._check_resources(request)
        kind = LiveSession if graph.topology.schema.live_fields and request.live else Session
        session = kind(self, graph, run_start, request, resources, first_of(request.answer, graph.answer))
        request.outcome.sessions.append(session)
        return request, session

    def _check_resources(self, request: Request) -> Mapping[type, object]:
        """The resources of a call; refuses one that lacks some."""
        resources = {**self._resources, **request.resources}
        if self._graph.needs_resources:
            check_resources((*self._graph.nodes.values(), *self._graph.routers), resources)
        return resources

    def _run_start(self, inputs: Mapping[str, Any], request: Request) -> RunStart:
        """A run from the inputs; inside of a stored run, with the commits that an earlier attempt has made."""
        check_inputs(self._graph, inputs)
        topology, schema = self._graph.topology, self._graph.topology.schema
        state = schema.initial_state(schema.as_replacements(inputs) if request.inside else inputs)
        run_start = RunStart.of(topology, state, request.label)
        if request.journal is None or request.records is None:
            schema.check_state_limit(None, ImmutableState(), inputs, state)
            return run_start
        run_start = run_start.to_replay()
        run = replay(
            run_start.run, request.records.commits(request.scope), run_start[1:3], *request.records.fetch_and_decode
        )
        if not len(run.log):  # what has been committed is never refused
            schema.check_state_limit(None, ImmutableState(), inputs, state)
        return run_start._replace(run=run)

    def _close(self, request: Request, session: Session) -> None:
        """Hands the trace over to whoever reads it, also when a node has failed."""
        append_to_trace(session.trace())
        request.outcome.ended = session.end()

    def _answer(self, request: Request, session: Session) -> dspy.Prediction:
        outcome = request.outcome
        ended = outcome.ended
        assert ended is not None
        if not request.keeps_events:
            outcome.ended = None
        if ended.error is not None:
            try:
                raise ended.error
            finally:
                del ended  # the traceback refers to this frame
        if ended.questions:
            raise Interrupted.of(ended.questions, self._graph.name, session.journal is not None)
        state, outputs = session.run.trunk_state, self._graph.outputs
        if outputs is None:
            found = {
                name: value for name, value in state.raw_items() if not same(value, session.inputs.raw(name, DELETE))
            }
        else:
            found = {name: state.raw(name) for name in outputs if name in state}
        prediction = dspy.Prediction(**{name: thaw(value) for name, value in found.items()})
        outcome.predicted(session.run_id, prediction)
        return prediction

    if not TYPE_CHECKING:  # type checkers know the modules of no graph

        def __getattr__(self, name: str) -> NoReturn:
            hint = f": {_OTHERS[name]}" if name in _OTHERS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    # --- what DSPy does with a module

    def set_lm(self, lm: dspy.LM | None) -> None:
        """Sets the language model of every predictor, frozen ones too."""
        for _, parameter in all_parameters(self):
            if isinstance(parameter, dspy.Module):
                parameter.lm = lm

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """The parameters by name, frozen ones too, in the form of `dspy.Module.dump_state`."""
        return {name: parameter.dump_state(json_mode=json_mode) for name, parameter in all_parameters(self)}

    def load_state(self, state: dict[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Loads parameters. If they are another graph's, the error names what differs and nothing is changed."""
        load_parameters(self, state, allow_unsafe_lm_state)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledGraph:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        shared = {"_graph": self._graph, "_resources": self._resources, "_store": self._store}
        own = {name: value for name, value in self.__getstate__().items() if name not in shared}
        twin.__setstate__({**copy_tree(own, memo), **shared})
        own_signatures(twin)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_resources": {}}

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_program(without_histories(self))


# --- a program as a node of another one


def _request_inside(call: Call) -> Request:
    """What a program that is a node asks of its own call: to be a part of the run around it."""
    around: Session | None = call.runner.session
    if around is None:  # a node that is called without a run, as `dspyer.testing.call_node` does
        return Request(call.resources, inside=True, keeps_events=False)
    return Request(
        call.resources,
        observe=around.publish,
        answer=around.answer,
        live=around.live,
        keeps_events=False,
        inside=True,
        scope=tuple(call.context.attempt.local_id.split("/")),
        label=around.run_start.label,
        root=around.root,
        records=around.records,
        journal=around.journal,
    )


@contextmanager
def _inside(call: Call, request: Request) -> Iterator[None]:
    """Lets a run inside a node ask as the node would, and stop with the run around it."""
    around: Session | None = call.runner.session
    stopped_with = StopSignal() if around is None else around.stop_signal
    # The run inside has a signal of its own: it tells a stop of the run around it from one of a program that a node
    # inside has called itself.
    with stopped_with.on_stop(request.stop), dspy.context(**{REQUEST: request}):
        try:
            yield
        except Interrupted as interruption:
            raise Interrupt(interruption.questions) from None
        except RunStoppedError:
            if request.stop_signal.reason is None:
                raise
            raise asyncio.CancelledError from None


def _changes(session: Session) -> dict[str, object]:
    """What the commits of a completed run changed: raw updates of fields with a reducer, net change of others."""
    log = session.run.log
    schema = session.graph.topology.schema
    before, after = session.inputs, session.run.trunk_state
    begun, *order = ancestry(log, [len(log) - 1])
    found: dict[str, Any] = {}
    for name, update in log[begun].commit.patch.items():  # the inputs, and what a router at START wrote
        if schema.reducer(name) is None:
            found[name] = None
        elif isinstance(update, Updates):
            found[name] = list(update.updates[1:])
    for index in order:
        for name, update in log[index].commit.patch.items():
            if schema.reducer(name) is None:
                found[name] = None
            else:
                found.setdefault(name, []).append(update)
    for name, updates in list(found.items()):
        if updates is not None:
            found[name] = Updates(*updates)
        elif same(before.raw(name, DELETE), after.raw(name, DELETE)):
            del found[name]
        else:
            found[name] = after.raw(name, DELETE)
    return found


# --- making a program


def assemble(
    graph: GraphSpec, modules: Mapping[str, dspy.Module], text: str, store: Store | None = None
) -> CompiledGraph:
    """Makes the program of a graph, with copies of the modules; modules that share a part go on sharing it.

    Args:
        graph: the graph.
        modules: the user's modules by attribute.
        text: the graph as source text.
        store: where its threads are kept.

    Returns:
        The program.
    """
    copies = copy_tree(dict(modules), {})
    for name, module in copies.items():
        if name in graph.frozen and not getattr(module, "_dspyer_program", False):
            module._compiled = True
        if name in graph.thawed:
            for _, inner in module.named_sub_modules():
                inner._compiled = False
    prepare_modules(graph, copies)
    program = source_class(graph.name, CompiledGraph, text)(graph, copies)
    own_signatures(program, retag=True)
    program._store = store
    return program
