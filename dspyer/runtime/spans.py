"""Spans of OpenTelemetry: one for each run, one for each execution of a node in it, one for each further attempt.

There is nothing to switch on. A run asks once whether the program has set a tracer provider; without one there is no
`RunSpans`, and OpenTelemetry is not even imported. dspyer makes no spans for LM calls: those of DSPy's instrumentations
become children of the node's span, since it is the current one while the node runs.

- A span that is current belongs to a thread or a task: it is made current, and no longer is, by a generator around the
  script of an execution (`nodes.steps`), so on every path, and in every mode.
- What becomes of an execution is known later: its commit, or its failure as `redact` shows it. So the span of a node
  remembers when its script ended, and is ended by the event (`Committed`, `NodeFailed`) as readers of a stream see it.
- An exporter, a processor or a sampler may raise. That is logged once, and the run goes on.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic_core import to_json

from dspyer.display.redaction import Redaction, Redactor
from dspyer.errors import Interrupt, error_text, unwrap_stop_iteration
from dspyer.events import (
    Asked,
    AttemptFailed,
    Committed,
    ConflictFound,
    Event,
    Joined,
    LiveConflict,
    NodeFailed,
    Posted,
)
from dspyer.graph.spec import GraphSpec
from dspyer.nodes.node import Call
from dspyer.nodes.steps import Script
from dspyer.persistence.execution_records import ExecutionRecords
from dspyer.persistence.journal import Journal
from dspyer.persistence.rows import StoredTrace, trace_row
from dspyer.runtime.session_events import Observe, ignore
from dspyer.scheduler.run_state import Execution, RunState, Transition, path_text
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.values.frozen import thaw

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

logger = logging.getLogger("dspyer")

# --- names: those of the conventions, and dspyer's own. `docs/guides/tracing.md` has the same table.

INVOKE_RUN: Final = "invoke_workflow"  # the name of the convention; dspyer itself says "run"
INVOKE_NODE: Final = "invoke_node"

SPAN_KIND: Final = "openinference.span.kind"
NODE_ID: Final = "graph.node.id"
NODE_NAME: Final = "graph.node.name"
NODE_PARENT: Final = "graph.node.parent_id"
SESSION_ID: Final = "session.id"
INPUT: Final = "input.value"
INPUT_TYPE: Final = "input.mime_type"
OUTPUT: Final = "output.value"
OUTPUT_TYPE: Final = "output.mime_type"
OPERATION: Final = "gen_ai.operation.name"
GRAPH_NAME: Final = "gen_ai.workflow.name"
CONVERSATION: Final = "gen_ai.conversation.id"
RUN_ID: Final = "dspyer.run_id"
STATUS: Final = "dspyer.status"
BRANCH: Final = "dspyer.branch"
VISIT: Final = "dspyer.visit"
EXECUTION: Final = "dspyer.execution"
VERSION: Final = "dspyer.version"
ATTEMPT: Final = "dspyer.attempt"
LAYER: Final = "dspyer.layer"

JOIN: Final = "dspyer.join"
CONFLICT: Final = "dspyer.conflict"
ROUTE: Final = "dspyer.route"
INTERRUPT: Final = "dspyer.interrupt"
POST: Final = "dspyer.post"
CACHE_HIT: Final = "dspyer.cache_hit"
ATTEMPT_FAILED: Final = "dspyer.attempt_failed"

_KINDS: Final = {"tool": "TOOL", "check": "EVALUATOR"}  # of OpenInference, by kind of node; any other is a CHAIN
_JSON: Final = "application/json"

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURES: Final = ("true", "span_only", "span_and_event")
"""The values with which spans have inputs and outputs: the first conventions knew `true`, later ones name the place."""

CONTINUED_FOR: Final = 86_400.0
"""Seconds for which a resume continues the trace of its run; after that it begins one that links to it. Backends close
traces, and what looks at one trace would wait for days."""


_publishing: ContextVar[RunSpans | None] = ContextVar("dspyer_publishing", default=None)
"""The innermost run whose event is being passed to the runs around it."""


class _OpenTelemetry:
    """The parts of OpenTelemetry's API that are used here. Made once a program has imported the API itself."""

    def __init__(self) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.context = context
        self.trace = trace
        self.propagator = TraceContextTextMapPropagator()
        self.node_key = context.create_key("dspyer-node")  # the id of the node around a run
        # The span of the caller, if a run continues another trace.
        self.caller_key = context.create_key("dspyer-caller")
        self._suppressed = str(getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", ""))
        self._none = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
        self._last: tuple[object, Tracer] | None = None

    def tracer(self) -> Tracer | None:
        """The tracer of the program's provider; None if it has set none, or traces nothing in this context."""
        provider = self.trace.get_tracer_provider()
        if isinstance(provider, self._none) or self.context.get_value(self._suppressed):
            return None
        last = self._last
        if last is None or last[0] is not provider:
            self._last = last = (provider, provider.get_tracer("dspyer"))
        return last[1]

    def stored(self, stored: StoredTrace) -> Context:
        """A context whose current span is the one that a stored run began with."""
        return self.propagator.extract(stored.carrier, context=self.context.Context())


@lru_cache(maxsize=1)
def _opentelemetry() -> _OpenTelemetry:
    return _OpenTelemetry()


def _tracing() -> tuple[_OpenTelemetry, Tracer] | None:
    """OpenTelemetry with the tracer of the program; None if the program does not trace."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    try:
        api = _opentelemetry()
        tracer = api.tracer()
    except Exception as error:  # noqa: BLE001 - of a provider that the environment names: the run goes on
        logger.warning("OpenTelemetry has no usable tracer provider, so the run is not traced: %s", _said(error))
        return None
    return None if tracer is None else (api, tracer)


class TracedRequest(Protocol):
    """What is needed of the `Request` of a run, which names the spans of the run around it."""

    @property
    def spans(self) -> RunSpans | None:
        """Those of the run around it."""

    @property
    def scope(self) -> tuple[str, ...]:
        """The executions around the run."""

    @property
    def records(self) -> ExecutionRecords | None:
        """The records of earlier processes."""

    @property
    def journal(self) -> Journal | None:
        """What writes the run."""


class TracedSession(Protocol):
    """What is needed of the `Session` of a run."""

    spans: RunSpans | None
    graph: GraphSpec
    redactor: Redactor | None
    records: ExecutionRecords
    run: RunState
    run_start: Any
    inputs: ImmutableState

    def local_id(self, execution_id: str, /) -> str:
        """The id of an execution within the outermost run."""


def run_spans(graph: GraphSpec, request: TracedRequest, run_id: str, label: tuple[str, ...]) -> RunSpans | None:
    """The spans of a run that begins; None if the program does not trace. Asked once per run."""
    found = _tracing()
    if found is None:
        return None
    thread = "" if request.journal is None else request.journal.thread
    if not thread and label:  # the run is merged into its thread at its end
        thread = label[0].rpartition(".")[0]
    return RunSpans(*found, graph, request, run_id, thread)


def run_span(session: TracedSession, outcome: Any) -> AbstractContextManager[None]:
    """The block of a run, in which its span is the current one; `outcome.ended` is how it has ended."""
    return _UNTRACED if session.spans is None else _RunSpan(session.spans, session, outcome)


def _takes_traces_whole() -> bool:
    """Whether the spans go to MLflow, which drops those of a trace that it has stored before (as of 3.17)."""
    use_own = os.environ.get("MLFLOW_USE_DEFAULT_TRACER_PROVIDER", "").strip().lower()
    return "mlflow" in sys.modules and use_own in ("false", "0")


def continued_trace(request: TracedRequest) -> AbstractContextManager[None]:
    """A block in which the trace of a resumed run is the current one: what DSPy traces around the run belongs to it.

    A rerun, and the first run of a copied thread, begin traces of their own.
    """
    records, journal = request.records, request.journal
    if records is None or records.trace is None or not records.resumes or journal is None:
        return _UNTRACED
    trace, found = records.trace, _tracing()
    if found is None or trace.thread != journal.thread or time.time() - trace.started > CONTINUED_FOR:
        return _UNTRACED
    if _takes_traces_whole():
        return _UNTRACED
    api = found[0]
    try:
        stored = api.stored(trace)
        there, caller = (api.trace.get_current_span(one).get_span_context() for one in (stored, None))
        if not there.is_valid or there.trace_id == caller.trace_id:
            return _UNTRACED
        around = api.trace.set_span_in_context(api.trace.get_current_span(stored))
        return _Current(api, api.context.set_value(api.caller_key, caller if caller.is_valid else None, around))
    except Exception as error:  # noqa: BLE001 - the run counts, not its trace
        logger.warning("a resumed run does not continue its trace: %s", _said(error))
        return _UNTRACED


class _Current:
    """A block with a context of OpenTelemetry. Not its `detach`, which logs an error in a closed coroutine.

    That may end in another context of Python than it began in, and changes nothing there.
    """

    __slots__ = ("_api", "_context", "_token")

    def __init__(self, api: _OpenTelemetry, context: Context) -> None:
        self._api = api
        self._context = context

    def __enter__(self) -> None:
        self._token = self._api.context.attach(self._context)

    def __exit__(self, *raised: object) -> None:
        with suppress(ValueError):
            self._token.var.reset(self._token)


class _Running:
    """The span of an execution that has begun.

    Attributes:
        span: the span.
        ended: when its script ended, nanoseconds since the Unix epoch; None while it runs.
    """

    __slots__ = ("ended", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.ended: int | None = None


class RunSpans:
    """The spans of one run. It refers neither to its session nor to errors; its methods may be called from any thread.

    Attributes:
        hiding: what the graph and those around it hide, outermost first.
    """

    def __init__(
        self, api: _OpenTelemetry, tracer: Tracer, graph: GraphSpec, request: TracedRequest, run_id: str, thread: str
    ) -> None:
        around = request.spans
        self._api = api
        self._tracer = tracer
        self._graph = graph
        self._run_id = run_id
        self._scope = request.scope
        self._stored = request.journal is not None and not request.scope
        self._thread = thread
        self._captures = os.environ.get(CAPTURE, "").strip().lower() in _CAPTURES
        self.hiding: tuple[tuple[Redaction, Redactor], ...] = () if around is None else around.hiding
        self._is_outermost = around is None
        self._running: dict[str, _Running] = {}
        self._span: Span = api.trace.INVALID_SPAN
        self._context = api.context.get_current()
        self._prefix = ""
        self._common: dict[str, Any] = {}
        self._lost = False

    # --- the run

    def begin(self, session: TracedSession) -> _Current:
        """Begins the span of the run; returns the block in which it is current."""
        api, graph = self._api, self._graph
        if session.redactor is not None and graph.redaction is not None:
            self.hiding = (*self.hiding, (graph.redaction, session.redactor))
        current = api.context.get_current()
        self._prefix = str(api.context.get_value(api.node_key, current) or "")
        user_session = api.context.get_value(SESSION_ID, current)  # of OpenInference's `using_session`
        if self._thread:
            self._common = {SESSION_ID: user_session or self._thread, CONVERSATION: self._thread}
        attributes: dict[str, Any] = {
            SPAN_KIND: "CHAIN",
            OPERATION: INVOKE_RUN,
            GRAPH_NAME: graph.name,
            RUN_ID: self._run_id,
            **self._common,
        }
        trace = session.records.trace if self._stored else None
        try:
            if self._captures:
                given = [name for name in (*graph.inputs, *graph.also) if name in session.run_start.patch]
                attributes |= {INPUT: self._shown(session.inputs, given), INPUT_TYPE: _JSON}
            around = api.trace.get_current_span(current).get_span_context()
            links, continues = self._links(trace, around, current)
            self._span = self._tracer.start_span(
                f"{INVOKE_RUN} {graph.name}", current, attributes=attributes, links=links
            )
            inside = api.trace.set_span_in_context(self._span, current)
            if api.context.get_value(api.caller_key, inside) is not None:
                inside = api.context.set_value(api.caller_key, None, inside)
            if self._thread and not user_session:  # the instrumentation of OpenInference puts it on DSPy's spans
                inside = api.context.set_value(SESSION_ID, self._thread, inside)
            self._context = inside
            if self._stored and not continues:
                self._keep_trace(session)
        except Exception as error:  # noqa: BLE001 - the run counts, not its trace
            self._lose(error)
        return _Current(api, self._context)

    def _links(self, trace: StoredTrace | None, around: Any, current: Context) -> tuple[list[Link], bool]:
        """The links of the run's span, and whether it continues the trace of earlier parts of the run."""
        api, links = self._api, list[Any]()
        caller = api.context.get_value(api.caller_key, current)
        if caller is not None:
            links.append(api.trace.Link(caller))
        if trace is None:
            return links, False
        there = api.trace.get_current_span(api.stored(trace)).get_span_context()
        if there.is_valid and there.trace_id == around.trace_id:
            return links, True
        return [*links, api.trace.Link(there)] if there.is_valid else links, False

    def _keep_trace(self, session: TracedSession) -> None:
        """Queues the row with the trace context: with the first commit of a new run, at once in a resumed one."""
        carrier: dict[str, str] = {}
        self._api.propagator.inject(carrier, context=self._context)
        if not carrier:
            return
        row = trace_row(StoredTrace(carrier, time.time(), self._thread))
        if session.run_start.first_row is None and not len(session.run.log):
            session.run_start = session.run_start._replace(first_row=row)
        else:
            session.records.queue_row(row)

    def end(self, session: TracedSession, ended: Any) -> None:
        """Ends the span of the run, and those of the executions that nothing was committed of."""
        for execution in list(self._running):
            self._finish(execution, "stopped")
        span = self._span
        try:
            if ended is not None and span.is_recording():
                span.set_attribute(STATUS, ended.status)
                if ended.status == "failed" and ended.error is not None:
                    self._run_failed(span, ended.error)
                if ended.status == "completed" and self._captures:
                    span.set_attributes({OUTPUT: self._outputs(session.run, session.inputs), OUTPUT_TYPE: _JSON})
        except Exception as error:  # noqa: BLE001 - the run counts, not its trace
            self._lose(error)
        self._end_span(span)

    def _run_failed(self, span: Span, error: BaseException) -> None:
        if self.hiding and not self._is_outermost:  # it is not redacted yet by the graphs around it
            self._set_failed(span, type(error).__name__)
        else:
            self._failed(span, unwrap_stop_iteration(error))

    def _outputs(self, run: RunState, inputs: ImmutableState) -> str:
        state, names = run.trunk_state, self._graph.outputs
        return self._shown(state, [name for name in state if name not in inputs] if names is None else names)

    # --- executions, their items and attempts

    def node(self, session: TracedSession, execution: Execution, script: Script[Transition]) -> Script[Transition]:
        """The script of an execution, whose span is current while it runs."""
        running = self._begin_node(session, execution)
        if running is None:
            return (yield from script)
        node = self._prefix + execution.node
        context = self._api.trace.set_span_in_context(running.span, self._context)
        try:
            with _Current(self._api, self._api.context.set_value(self._api.node_key, f"{node}/", context)):
                return (yield from script)
        except BaseException as error:
            self._left_with(execution.id, error)
            raise
        finally:
            running.ended = running.ended or time.time_ns()

    def _begin_node(self, session: TracedSession, execution: Execution) -> _Running | None:
        name = execution.node
        node = self._graph.nodes[name]
        attributes = {
            SPAN_KIND: _KINDS.get(node.kind, "CHAIN"),
            OPERATION: INVOKE_NODE,
            NODE_ID: self._prefix + name,
            NODE_NAME: name,
            BRANCH: path_text(execution.path),
            VISIT: execution.visit,
            EXECUTION: session.local_id(execution.id),
            **self._common,
        }
        try:
            before = _node_before(session.run, execution)
            if before:
                attributes[NODE_PARENT] = self._prefix + before
            elif self._prefix:
                attributes[NODE_PARENT] = self._prefix[:-1]
            running = _Running(self._tracer.start_span(f"{INVOKE_NODE} {name}", self._context, attributes=attributes))
            if running.span.is_recording():
                self._running[execution.id] = running
                if self._captures:
                    values = {**execution.branch.state, **({} if execution.overlay is None else execution.overlay)}
                    names = values if node.reads is None else dict.fromkeys(node.reads.values())
                    shown = self._shown(values, [name for name in names if name in values])
                    running.span.set_attributes({INPUT: shown, INPUT_TYPE: _JSON})
        except Exception as error:  # noqa: BLE001 - the run counts, not its trace
            self._lose(error)
            return self._running.get(execution.id)
        return running

    def item(self, call: Call, script: Script[Any]) -> Script[Any]:
        """The script of an item of a map, or of a trial of a search."""
        attempt = call.context.delegate
        attributes = {EXECUTION: attempt.local_id, NODE_NAME: attempt.node}
        return self._part(f"item {attempt.index}", attempt.execution, attributes, script)

    def attempt(self, call: Call, number: int, layer: str, script: Script[Any]) -> Script[Any]:
        """The script of an attempt after the first one. `layer` names what is attempted, if it is not the node."""
        attempt = call.context.delegate
        attributes = {EXECUTION: attempt.local_id, NODE_NAME: attempt.node, ATTEMPT: number}
        if layer:
            attributes[LAYER] = layer
        return self._part(f"attempt {number}", "", attributes, script)

    def _part(self, name: str, key: str, attributes: dict[str, Any], script: Script[Any]) -> Script[Any]:
        """A script with a span below the current one. `key` is the execution whose events it gets; "" for none."""
        kind = {SPAN_KIND: "CHAIN", OPERATION: INVOKE_NODE}
        try:
            span = self._tracer.start_span(name, attributes={**kind, **attributes, **self._common})
        except Exception as error:  # noqa: BLE001 - the run counts, not its trace
            self._lose(error)
            return (yield from script)
        if key and span.is_recording():
            self._running[key] = _Running(span)
        try:
            with _Current(self._api, self._api.trace.set_span_in_context(span)):
                return (yield from script)
        except BaseException as error:
            self._part_raised(span, error)
            raise
        finally:
            self._running.pop(key, None)
            self._end_span(span)

    def _part_raised(self, span: Span, error: BaseException) -> None:
        try:
            if isinstance(error, Interrupt):
                self._asked(span, error)
            elif not isinstance(error, Exception):
                span.set_attribute(STATUS, "stopped")
            elif self.hiding:  # what must be hidden in its text is known later
                self._set_failed(span, type(error).__name__)
            else:
                self._failed(span, unwrap_stop_iteration(error))
        except Exception as broken:  # noqa: BLE001 - the run counts, not its trace
            self._lose(broken)

    def _left_with(self, execution: str, error: BaseException) -> None:
        """Ends the span of an execution that has asked, or was cancelled; a failure is recorded by its event."""
        if isinstance(error, Exception):
            return
        running = self._running.get(execution)
        if running is not None and isinstance(error, Interrupt):
            try:
                self._asked(running.span, error)
            except Exception as broken:  # noqa: BLE001 - the run counts, not its trace
                self._lose(broken)
        self._finish(execution, "interrupted" if isinstance(error, Interrupt) else "stopped")

    def _finish(self, execution: str, status: str = "") -> None:
        """Ends the span of an execution, at the time when its script ended."""
        running = self._running.pop(execution, None)
        if running is not None:
            self._end_span(running.span, running.ended, status)

    def _end_span(self, span: Span, ended: int | None = None, status: str = "") -> None:
        try:
            if status:
                span.set_attribute(STATUS, status)
            span.end(ended)
        except Exception as error:  # noqa: BLE001 - of a processor: the run counts, not its trace
            self._lose(error)

    # --- what events add to spans

    def observer(self, observe: Observe) -> Observe:
        """An observer that adds events to the spans, and passes them on.

        Those of a run inside of a node are added by the outermost run, to which they are passed: as it shows them.
        """

        def note(event: Event) -> None:
            add = _ADDERS.get(type(event))
            spans = _publishing.get() or self
            if add is not None and spans._span.is_recording():
                try:
                    add(spans, event)
                except Exception as error:  # noqa: BLE001 - the run counts, not its trace
                    spans._lose(error)
            if observe is not ignore:
                observe(event)

        def pass_on(event: Event) -> None:
            if type(event) not in _ADDERS or _publishing.get() is not None:
                observe(event)
                return
            token = _publishing.set(self)
            try:
                observe(event)
            finally:
                _publishing.reset(token)

        return note if self._is_outermost else pass_on

    def _span_of(self, execution: str) -> Span:
        """The span of an execution or an item that runs; that of the run for any other."""
        running = self._running.get(execution) or self._running.get(execution.partition("[")[0])
        return self._span if running is None else running.span

    def _add_commit(self, event: Committed) -> None:
        commit = event.commit
        running = self._running.get(commit.id)
        if running is None:
            return
        span, ended = running.span, running.ended
        if commit.version is not None:
            span.set_attribute(VERSION, commit.version)
        if commit.cached:
            span.add_event(CACHE_HIT, timestamp=ended)
        if commit.route != self._graph.exits[commit.node]:  # otherwise its edges alone have decided
            route: dict[str, Any] = {"targets": commit.route}
            if self._captures and commit.reason:
                route["reason"] = commit.reason
            span.add_event(ROUTE, route, ended)
        if self._captures:
            span.set_attributes({OUTPUT: _json_text(event.to_dict()["commit"]["patch"]), OUTPUT_TYPE: _JSON})
        self._finish(commit.id)

    def _add_failure(self, event: NodeFailed) -> None:
        running = self._running.get(event.execution)
        if running is None:
            return
        self._failed(running.span, event.error)
        if running.ended is not None:  # otherwise an error edge leads on, or a tool reports it
            self._finish(event.execution, "failed")

    def _add_attempt(self, event: AttemptFailed) -> None:
        told: dict[str, Any] = {
            "attempt": event.attempt,
            "pause": event.pause,
            "exception.type": type(event.error).__qualname__,
            "exception.message": error_text(event.error),
        }
        self._span_of(event.execution).add_event(ATTEMPT_FAILED, told)

    def _add_join(self, event: Joined) -> None:
        told: dict[str, Any] = {"node": event.node, "branches": [path_text(path) for path in event.branches]}
        self._span.add_event(JOIN, {**told, "branch": path_text(event.branch)})

    def _add_conflict(self, event: ConflictFound) -> None:
        found = event.conflict
        told: dict[str, Any] = {"join": found.join, "path": ".".join(map(str, found.path)), "policy": found.policy}
        told["authors"] = [author for author, _ in found.values]
        if found.winner is not None:
            told["winner"] = found.winner
        self._span.add_event(CONFLICT, told)

    def _add_live_conflict(self, event: LiveConflict) -> None:
        told: dict[str, Any] = {"path": event.field, "authors": [event.author, event.other], "policy": event.rule}
        self._span.add_event(CONFLICT, told)

    def _add_question(self, event: Asked) -> None:
        question = event.question
        if question.key == "after":  # those of an execution are on its span
            self._span.add_event(INTERRUPT, self._question(question))

    def _add_post(self, event: Posted) -> None:
        told: dict[str, Any] = {"field": event.field, "seq": event.seq, "operation": event.operation}
        self._span_of(event.execution).add_event(POST, told)

    # --- what is shown

    def _asked(self, span: Span, interrupt: Interrupt) -> None:
        for question in interrupt.questions:
            span.add_event(INTERRUPT, self._question(question))

    def _question(self, question: Any) -> dict[str, Any]:
        told = {"key": question.key, "node": question.node}
        return {**told, "text": self._redacted(question.text)} if self._captures else told

    def _shown(self, state: Mapping[str, Any], names: Iterable[str]) -> str:
        """Fields of a state as JSON, as they may leave the run."""
        found: dict[str, Any] = {}
        for name in names:
            value = thaw(state[name])
            for redaction, _ in self.hiding:
                value = redaction.value((name,), value)
            found[name] = value
        return _json_text(self._redacted(found))

    def _redacted(self, value: Any) -> Any:
        for _, redactor in self.hiding:
            value = redactor.redact(value)
        return value

    def _failed(self, span: Span, error: BaseException) -> None:
        self._set_failed(span, _said(error))
        try:
            span.record_exception(error)
        except Exception:  # noqa: BLE001 - raised by a `__str__` of the user
            told = {"exception.type": type(error).__qualname__, "exception.message": error_text(error)}
            span.add_event("exception", told)

    def _set_failed(self, span: Span, text: str) -> None:
        span.set_status(self._api.trace.Status(self._api.trace.StatusCode.ERROR, text))

    def _lose(self, error: Exception) -> None:
        """Logs once what keeps a span from being recorded."""
        if not self._lost:
            self._lost = True
            logger.warning("graph %r: OpenTelemetry could not record a span: %s", self._graph.name, _said(error))


_ADDERS: Final[Mapping[type, Callable[[RunSpans, Any], None]]] = {
    Committed: RunSpans._add_commit,
    NodeFailed: RunSpans._add_failure,
    AttemptFailed: RunSpans._add_attempt,
    Joined: RunSpans._add_join,
    ConflictFound: RunSpans._add_conflict,
    LiveConflict: RunSpans._add_live_conflict,
    Asked: RunSpans._add_question,
    Posted: RunSpans._add_post,
}

_UNTRACED: AbstractContextManager[None] = nullcontext()


class _RunSpan:
    """The block of a traced run. Only the frame of the call refers to it, so it may refer to the session."""

    __slots__ = ("_current", "_outcome", "_session", "_spans")

    def __init__(self, spans: RunSpans, session: TracedSession, outcome: Any) -> None:
        self._spans = spans
        self._session = session
        self._outcome = outcome

    def __enter__(self) -> None:
        self._current = self._spans.begin(self._session)
        self._current.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._current.__exit__(kind, *raised)
        self._spans.end(self._session, self._outcome.ended)


def _node_before(run: RunState, execution: Execution) -> str:
    """The node from which a branch came, the first one after a join; "" for a node after `START`."""
    entry = run.log[execution.branch.head]
    while len(entry.parents) > 1:
        entry = run.log[entry.parents[0]]
    node = entry.commit.node
    return "" if node == START else node


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error_text(error)}"


def _json_text(value: Any) -> str:
    return to_json(value, serialize_unknown=True, inf_nan_mode="strings").decode()
