"""`ProgramCall`: one call of a program, from its request to its result."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import dspy

from dspyer.dspy_module.executing import executing_id
from dspyer.dspy_module.lm_records import LMRecorder
from dspyer.dspy_module.lm_requests import LMRetryNotes
from dspyer.dspy_module.not_public import COMPLETIONS, SEND_STREAM
from dspyer.dspy_module.tap import Subscriber, subscriber, subscribing
from dspyer.dspy_module.token_stream import apart_from_tokens
from dspyer.dspy_module.tracing import append_to_trace, is_rejected
from dspyer.errors import InputError, Interrupted, is_lost_work
from dspyer.executors.call import lost
from dspyer.graph.spec import GraphSpec, check_inputs
from dspyer.ids import full_id, new_run_id
from dspyer.layers.layer import Layer
from dspyer.layers.streaming import Streaming
from dspyer.nodes.answer_types import first_of
from dspyer.nodes.binding import check_resources
from dspyer.patch import DELETE, diff_value, seal
from dspyer.persistence.execution_records import no_answer
from dspyer.persistence.replay import replay
from dspyer.runtime.inner_runs import check_same_inputs
from dspyer.runtime.request import REQUEST, Request
from dspyer.runtime.run import Run
from dspyer.runtime.run_link import ATTRIBUTE as LINK
from dspyer.runtime.run_link import RunLink
from dspyer.runtime.run_start import CALLED, RunStart
from dspyer.runtime.session import Session
from dspyer.runtime.session_events import lm_watchers
from dspyer.scheduler.schedule import start
from dspyer.scheduler.topology import Topology
from dspyer.state import ImmutableState
from dspyer.tracing.spans import OPENTELEMETRY, span_layers
from dspyer.values.freezing import same
from dspyer.values.frozen import thaw


class ProgramCall:
    """One call of a program, from its request to its result.

    Args:
        program: the program.
        args: what it was called with: there are inputs by name alone.
        request: the request; by default that of DSPy's settings.

    Attributes:
        request: what the call was given.
    """

    __slots__ = ("_graph", "_program", "request")

    def __init__(self, program: Any, args: tuple[Any, ...], request: Request | None = None) -> None:
        self._program = program
        self._graph: GraphSpec = vars(program)["_graph"]  # `__getattribute__` of a `dspy.Module` takes a microsecond
        if args:
            name = self._graph.inputs[0] if self._graph.inputs else "name"
            raise InputError(f"graph {self._graph.name!r} takes its inputs by name: write program({name}=...)")
        self.request: Request = request or dspy.settings.get(REQUEST) or Request(CALLED)

    def open(self, inputs: Mapping[str, Any]) -> Session:
        """Checks the inputs, and makes the session."""
        request = self.request
        run_start = request.run_start or self._run_start(inputs)
        layers = (*request.options.layers, *request.limits(self._graph, run_start.run))
        if request.inside is None and OPENTELEMETRY in sys.modules:
            layers = (*layers, *span_layers())
        return self.session(run_start, layers)

    def session(self, run_start: RunStart, layers: tuple[Layer, ...]) -> Session:
        """The session of a run, with the layers of the call."""
        request, graph = self.request, self._graph
        resources, answer = self.resources(), request.options.answer
        if graph.answer is not no_answer:
            answer = first_of(answer, graph.answer)
        session = Session(self._program, graph, run_start, request, layers, resources, answer)
        request.outcome.sessions.append(session)
        return session

    def resources(self) -> Mapping[type, object]:
        """The resources of the call, checked against what the nodes need."""
        graph, own, asked = self._graph, vars(self._program)["_resources"], self.request.options.resources
        resources = {**own, **asked} if own and asked else own or asked
        if graph.needs_resources:
            check_resources((*graph.nodes.values(), *graph.routers), resources)
        return resources

    def _run_start(self, inputs: Mapping[str, Any]) -> RunStart:
        """A run from the inputs; inside a node of a stored run, with the commits that an earlier attempt has made."""
        graph, inside = self._graph, self.request.inside
        check_inputs(graph, inputs)
        topology, schema = graph.topology, graph.topology.schema
        if inside is None:
            state = schema.initial_state(inputs, commit_id="inputs")
            schema.check_state_limit(None, ImmutableState(), inputs, state)
            return _new_run(topology, state)
        commit_id = full_id(*inside.label, *inside.scope, "inputs")
        state = schema.initial_state(
            inputs if inside.own_inputs else schema.as_replacements(inputs, commit_id),
            commit_id=commit_id,
            # A wrapper of the program, or a callback of DSPy, may have given it other inputs.
            valid={name: value for name, value in inside.valid.items() if inputs.get(name) is value},
        )
        run_start, records = _new_run(topology, state, inside.label), self.request.records
        if records is None or (records.journal is None and not inside.keeps_commits):
            schema.check_state_limit(None, ImmutableState(), inputs, state)
            return run_start
        run_start = run_start.to_replay()
        kept = records.take_kept(inside.scope, inside.attempts)
        rows = [*records.commits(inside.scope), *kept.rows]
        if inside.own_inputs:
            check_same_inputs(inside, records, inputs, begun=bool(rows))
        run = replay(run_start.run, rows, run_start[1:3], *records.fetch_and_decode)
        if not len(run.log):  # what is committed already is not checked again: a limit may have changed since
            schema.check_state_limit(None, ImmutableState(), inputs, state)
        return run_start._replace(run=run, kept=kept)

    def close(self, session: Session) -> None:
        """Appends the trace to the caller's trace, also when a node has failed."""
        request = self.request
        trace = session.trace(session.run, whole=request.inside is not None)
        if trace:
            accepted_only = self._program._accepted_only
            append_to_trace([step for step in trace if not is_rejected(step[0])] if accepted_only else trace)
        session.keep_commits()
        request.outcome.ended = session.end()

    def result(self, session: Session) -> dspy.Prediction:
        """The outputs of a completed run; raises the error of any other one."""
        request, outcome = self.request, self.request.outcome
        ended, keeps_events = outcome.ended, request.options.keeps_events
        assert ended is not None
        if not keeps_events:  # no `Run` will be made of it
            outcome.ended = None
        if ended.error is not None:
            request.note_failures(ended.run.failures)
            try:
                if is_lost_work(ended.error) and not keeps_events and request.inside is None:
                    raise lost(f"what a node of graph {session.graph.name!r} gave it", ended.error) from ended.error
                raise ended.error
            finally:
                del ended  # the traceback refers to this frame, which should not refer to the error
        if ended.questions:
            direct = request.inside is None and bool(executing_id())
            raise Interrupted.of(ended.questions, session.graph.name, session.log is not None, direct)
        state, inputs, outputs = session.run.trunk_state._map, session.run_start.state._map, session.graph.outputs
        if outputs is None:
            outputs = tuple(
                [name for name, value in state.items() if name not in inputs or _differ(value, inputs[name])]
            )
        prediction = dspy.Prediction(**{name: thaw(state[name]) for name in outputs if name in state})
        vars(prediction)[COMPLETIONS] = _completions(session, prediction) if session.notes.completions else None
        # If the run is asked for before `_run` makes it: within a wrapper.
        link = RunLink(lambda prediction: Run(ended, prediction, subscriber(LMRecorder) if keeps_events else None))
        vars(prediction)[LINK] = link
        outcome.predicted(session.ids.run_id, prediction)
        return prediction


def _new_run(topology: Topology, state: ImmutableState, label: tuple[str, ...] = ()) -> RunStart:
    """A run whose first commit sets the inputs."""
    patch = {name: diff_value(DELETE, value) for name, value in state.raw_items()}
    return RunStart(start(topology), seal(patch), state, new_run_id(), label)


def _differ(value: Any, before: Any) -> bool:
    return value is not before and not same(value, before)


def _completions(session: Session, outputs: dspy.Prediction) -> Any:
    """The completions of the node that has written all outputs; None if several have, or what it wrote was changed."""
    log, known = session.run.log, session.notes.completions
    commits = [log[at].commit for at in reversed(range(len(log)))]
    writers = {next((commit.id for commit in commits if name in commit.patch), "") for name, _ in outputs.items()}
    found = known.get(writers.pop()) if len(writers) == 1 else None
    kept = [] if found is None else [name in found and same(found[name][0], value) for name, value in outputs.items()]
    return found if kept and all(kept) else None


def settings_inside(session: Session) -> dict[str, Any]:
    """DSPy's settings for the nodes of a run: the request was for the program alone."""
    found: dict[str, Any] = {REQUEST: None}
    callbacks, stream = dspy.settings.callbacks, dspy.settings.get(SEND_STREAM)
    if (callbacks or stream) and not any(isinstance(layer, Streaming) for layer in session.layers.asked):
        found |= apart_from_tokens(callbacks or [], stream)
    # An LM call is shown for the innermost of the runs that it is a part of.
    hearing: list[Subscriber] = [] if session.ids.scope else [*lm_watchers(session.ids.root)]
    if session.graph.attempts:
        hearing.append(LMRetryNotes())
    if hearing:
        found |= subscribing(*hearing, instead_of=(*map(type, hearing),), callbacks=found.get("callbacks"))
    return found
