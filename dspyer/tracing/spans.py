"""Spans of OpenTelemetry: one for each run, one for each execution of a node in it, one for each further attempt.

There is nothing to switch on. Where the program has imported OpenTelemetry, a run asks once whether it has set a tracer
provider; without one there is no `RunSpans`. In any other program nothing here is called. The span of a node is the
current one while it runs, so spans of DSPy's instrumentations become its children. Each LM call has a span as well,
unless one of them has made it already (`ChatSpans`).

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import dspy
from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic_core import to_json

from dspyer import START, ImmutableState
from dspyer.errors import Interrupt, error_text, unwrap_stop_iteration
from dspyer.events import (
    Asked,
    AttemptFailed,
    Committed,
    ConflictFound,
    Joined,
    LiveConflict,
    LMCall,
    NodeFailed,
    Posted,
    is_built_in,
    path_of_event,
)
from dspyer.extend import Address, Call, Event, Inner, Layer, Place, Script, path_text, thaw, whole_execution
from dspyer.graph.spec import GraphSpec
from dspyer.ids import FIRST
from dspyer.layers.redacted import redacted
from dspyer.lm.not_public import CALLERS, BaseCallback
from dspyer.lm.tap import subscribing
from dspyer.log.rows import StoredTrace

UNTRACED: Final[AbstractContextManager[None]] = nullcontext()
logger = logging.getLogger("dspyer")

# --- names: those of the conventions, and dspyer's own. `docs/guides/tracing.md` has the same table.

INVOKE_NODE: Final = "invoke_node"
CHAT: Final = "chat"

SPAN_KIND: Final = "openinference.span.kind"
NODE_NAME: Final = "graph.node.name"
NODE_PARENT: Final = "graph.node.parent_id"
SESSION_ID: Final = "session.id"
OPERATION: Final = "gen_ai.operation.name"
STATUS: Final = "dspyer.status"
EXECUTION: Final = "dspyer.execution"

_KINDS: Final = {"tool": "TOOL", "check": "EVALUATOR"}  # of OpenInference, by kind of node; any other is a CHAIN

_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""The names of the conventions, by what stands in front of the model, where they differ."""

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURES: Final = ("true", "span_only", "span_and_event")
"""The values with which spans have inputs and outputs: the first conventions knew `true`, later ones name the place."""

CONTINUED_FOR: Final = 86_400.0
"""Seconds for which a resume continues the trace of its run; after that it begins one that links to it. Backends close
traces, and what looks at one trace would wait for days."""


_PROPAGATOR: Final = TraceContextTextMapPropagator()
_NODE_KEY: Final = otel_context.create_key("dspyer-node")  # the id of the node around a run
_CALLER_KEY: Final = otel_context.create_key("dspyer-caller")  # the caller's span, if a run continues another trace
_SUPPRESSED: Final = str(getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", ""))
_NO_PROVIDER: Final = otel_trace.ProxyTracerProvider, otel_trace.NoOpTracerProvider
"""What a program has that sets no provider."""


def _tracer() -> Tracer | None:
    """The tracer of the program's provider; None if it has set none, or traces nothing in this context."""
    try:
        provider = otel_trace.get_tracer_provider()
        if isinstance(provider, _NO_PROVIDER) or otel_context.get_value(_SUPPRESSED):
            return None
        return provider.get_tracer("dspyer")
    except Exception as error:  # noqa: BLE001 - of a provider that the environment names: the run goes on
        logger.warning("OpenTelemetry has no usable tracer provider, so the run is not traced: %s", _said(error))
        return None


def _span_of_stored(stored: StoredTrace) -> Span:
    """The span that a stored run began with."""
    return otel_trace.get_current_span(_PROPAGATOR.extract(stored.carrier, context=Context()))


def span_layers() -> tuple[Layer, ...]:
    """The layers of a call whose run has spans, and the runs inside of it; none if the program does not trace."""
    tracer = _tracer()
    if tracer is None:
        return ()
    # Shared by the three layers: an event of a run must find the span of its node.
    open_runs = _OpenRuns(tracer)
    return NodeSpans(open_runs), ItemSpans(open_runs), AttemptSpans(open_runs)


def _takes_traces_whole() -> bool:
    """Return whether the spans go to MLflow, which drops those of a trace that it has stored before (as of 3.17)."""
    use_own = os.environ.get("MLFLOW_USE_DEFAULT_TRACER_PROVIDER", "").strip().lower()
    return "mlflow" in sys.modules and use_own in ("false", "0")


def continued(request: Any) -> AbstractContextManager[None]:
    """The block of `continued_trace`. A rerun, and the first run of a copied thread, begin traces of their own."""
    records = request.records
    journal = None if records is None else records.journal
    if records is None or records.trace is None or not records.resumes or journal is None:
        return UNTRACED
    trace = records.trace
    if _tracer() is None or trace.thread != journal.thread or time.time() - trace.started > CONTINUED_FOR:
        return UNTRACED
    if _takes_traces_whole():
        return UNTRACED
    try:
        stored = _span_of_stored(trace)
        there, caller = (one.get_span_context() for one in (stored, otel_trace.get_current_span()))
        # The caller is in that trace already, or there is none to continue.
        if not there.is_valid or there.trace_id == caller.trace_id:
            return UNTRACED
        around = otel_trace.set_span_in_context(stored)
        return _Current(otel_context.set_value(_CALLER_KEY, caller if caller.is_valid else None, around))
    except Exception as error:  # noqa: BLE001 - the run counts, not its trace
        logger.warning("a resumed run does not continue its trace: %s", _said(error))
        return UNTRACED


class _Current:
    """A block with a context of OpenTelemetry. Not its `detach`, which logs an error in a closed coroutine.

    That may end in another context of Python than it began in, and changes nothing there.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = otel_context.attach(self._context)

    def __exit__(self, *raised: object) -> None:
        with suppress(ValueError):
            self._token.var.reset(self._token)


class _Guard:
    """A block in which what the tracer raises is logged, once: the run counts, not its trace."""

    __slots__ = ("_graph", "_has_logged")

    def __init__(self, graph: str) -> None:
        self._graph = graph
        self._has_logged = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._has_logged:
            self._has_logged = True
            logger.warning("graph %r: OpenTelemetry could not record a span: %s", self._graph, _said(error))
        return True


@dataclass(slots=True)
class _Running:
    """The span of an execution that has begun.

    Attributes:
        span: the span.
        ended: when its script ended, nanoseconds since the Unix epoch; None while it runs.
    """

    span: Span
    ended: int | None = None


class RunSpans:
    """The spans of one run. It refers neither to its session nor to errors; its methods may be called from any thread.

    Attributes:
        scope: the executions around the run.
    """

    def __init__(self, tracer: Tracer, run: Any, around: RunSpans | None) -> None:
        self._tracer = tracer
        self._graph: GraphSpec = run.graph
        self.scope: tuple[str, ...] = run.scope
        self._stored = run.log is not None and not run.scope
        self._thread = "" if run.log is None else run.log.journal.thread
        self._captures = os.environ.get(CAPTURE, "").strip().lower() in _CAPTURES
        self._hidden: Any = None
        self.is_outermost = around is None
        self._running: dict[str, _Running] = {}
        self._span: Span = otel_trace.INVALID_SPAN
        self._context = otel_context.get_current()
        self._prefix = ""
        self._common: dict[str, Any] = {}
        self._guard = _Guard(run.graph.name)

    # --- the run

    def begin(self, session: Any) -> _Current:
        """Begins the span of the run; returns the block in which it is current."""
        self._hidden = redacted(session)
        graph = self._graph
        current = otel_context.get_current()
        self._prefix = str(otel_context.get_value(_NODE_KEY, current) or "")
        # A session that the user has named is meant for all spans in it.
        user_session = otel_context.get_value(SESSION_ID, current)  # of OpenInference's `using_session`
        if self._thread:
            self._common = {SESSION_ID: user_session or self._thread, "gen_ai.conversation.id": self._thread}
        is_agent = any(node.kind == "mode" for node in graph.nodes.values())
        operation = "invoke_agent" if is_agent else "invoke_workflow"
        attributes: dict[str, Any] = {
            SPAN_KIND: "AGENT" if is_agent else "CHAIN",
            OPERATION: operation,
            "gen_ai.agent.name" if is_agent else "gen_ai.workflow.name": graph.name,
            "dspyer.run_id": session.run_id,
            **self._common,
        }
        trace = session.records.trace if self._stored else None
        with self._guard:
            if self._captures:
                given = [name for name in (*graph.inputs, *graph.also) if name in session.run_start.patch]
                attributes |= _valued("input", self._shown(session.run_start.state, given))
            around = otel_trace.get_current_span(current).get_span_context()
            links, continues = self._links(trace, around, current)
            self._span = self._tracer.start_span(
                f"{operation} {graph.name}", current, attributes=attributes, links=links
            )
            inside = otel_trace.set_span_in_context(self._span, current)
            if otel_context.get_value(_CALLER_KEY, inside) is not None:
                inside = otel_context.set_value(_CALLER_KEY, None, inside)
            if self._thread and not user_session:  # the instrumentation of OpenInference puts it on DSPy's spans
                inside = otel_context.set_value(SESSION_ID, self._thread, inside)
            self._context = inside
            # A trace that goes on is stored already.
            if self._stored and not continues:
                self._keep_trace(session)
        return _Current(self._context)

    def _links(self, trace: StoredTrace | None, around: Any, current: Context) -> tuple[list[Link], bool]:
        """The links of the run's span, and whether it continues the trace of earlier parts of the run."""
        links = list[Any]()
        caller: Any = otel_context.get_value(_CALLER_KEY, current)
        if caller is not None:
            links.append(otel_trace.Link(caller))
        if trace is None:
            return links, False
        there = _span_of_stored(trace).get_span_context()
        if there.is_valid and there.trace_id == around.trace_id:
            return links, True
        return [*links, otel_trace.Link(there)] if there.is_valid else links, False

    def _keep_trace(self, session: Any) -> None:
        """Queues the row with the trace context: with the first commit of a new run, at once in a resumed one."""
        # The format of W3C: the process that resumes the run may have another exporter.
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, context=self._context)
        if not carrier:
            return
        trace = StoredTrace(carrier, int(time.time()), self._thread)
        if len(session.run.log):
            session.records.queue_row(trace.row())
        else:
            session.records.with_commit[FIRST] = [trace]

    def end(self, session: Any) -> None:
        """Ends the span of the run, and those of the executions that nothing was committed of."""
        # A list: threads that still end take theirs out meanwhile.
        for execution in list(self._running):
            self._finish(execution, "stopped")
        span = self._span
        with self._guard:
            if span.is_recording():
                status, error, _ = session.ending
                span.set_attribute(STATUS, status)
                if status == "failed":  # inside of others it is not redacted yet by the graphs around it
                    error = session.layers.shown(error, ends=True)
                    self._failed(span, error, hides=bool(self._hidden.redactors) and not self.is_outermost)
                if status == "completed" and self._captures:
                    span.set_attributes(_valued("output", self._outputs(session.run, session.run_start.state)))
        self._end_span(span)

    def _outputs(self, run: Any, inputs: ImmutableState) -> str:
        state, names = run.trunk_state, self._graph.outputs
        return self._shown(state, [name for name in state if name not in inputs] if names is None else names)

    # --- executions, their items and attempts

    def node(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an execution, whose span is current while it runs."""
        return self._within(call, call.context.delegate.execution, self._begin_node(call), inner)

    def part(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of a part of an execution after its node, such as a router, which belongs to the node's span."""
        execution = call.context.delegate.outer_execution
        running = self._running.get(execution)
        if running is not None:
            running.ended = None
        return self._within(call, execution, running, inner)

    def _within(self, call: Call, execution: str, running: _Running | None, inner: Inner) -> Script[Any]:
        if running is None:
            return (yield from inner(call))
        try:
            with self._current_node(call.node, running.span):
                return (yield from inner(call))
        except BaseException as error:
            if not isinstance(error, Exception):  # a failure is recorded by its event
                self._left(running.span, error)
                self._finish(execution)
            raise
        finally:
            # Here and not at the event: waiting for siblings, or for the store, is no time of the node.
            running.ended = running.ended or time.time_ns()

    def _current_node(self, name: str, span: Span) -> _Current:
        context = otel_trace.set_span_in_context(span, self._context)
        return _Current(otel_context.set_value(_NODE_KEY, f"{self._prefix}{name}/", context))

    def _begin_node(self, call: Call) -> _Running | None:
        name, attempt, position = call.node, call.context.delegate, call.context.delegate.position
        node = self._graph.nodes[name]
        operation, told = INVOKE_NODE, dict[str, Any]()
        if node.kind == "tool":
            operation, told = "execute_tool", {"gen_ai.tool.name": name}
            sent = None if call.overlay is None else thaw(call.overlay).get("call")
            if isinstance(sent, dict) and isinstance(sent.get("id"), str):
                told["gen_ai.tool.call.id"] = sent["id"]
        attributes = {
            SPAN_KIND: _KINDS.get(node.kind, "CHAIN"),
            OPERATION: operation,
            **told,
            "graph.node.id": self._prefix + name,
            NODE_NAME: name,
            "dspyer.branch": path_text(attempt.branch),
            "dspyer.visit": call.context.visit,
            EXECUTION: attempt.local_id,
            **self._common,
        }
        running = None
        with self._guard:
            before = "" if position is None else _node_before(call.runner.session.run, position.head)
            if before:
                attributes[NODE_PARENT] = self._prefix + before
            # The first node of a run inside of a node follows that node.
            elif self._prefix:
                attributes[NODE_PARENT] = self._prefix[:-1]
            running = _Running(self._tracer.start_span(f"{operation} {name}", self._context, attributes=attributes))
            if running.span.is_recording():
                self._running[attempt.execution] = running
                if self._captures:
                    values = {**call.state, **({} if call.overlay is None else call.overlay)}
                    names = values if node.reads is None else dict.fromkeys(node.reads.values())
                    shown = self._shown(values, [name for name in names if name in values])
                    running.span.set_attributes(_valued("input", shown))
        return running

    def below(self, call: Call, inner: Inner, name: str, key: str = "", **more: Any) -> Script[Any]:
        """The script of an item or an attempt, with a span below the current one.

        `key` is the execution whose events it gets; "" for none.
        """
        attempt = call.context.delegate
        kind = {SPAN_KIND: "CHAIN", OPERATION: INVOKE_NODE, EXECUTION: attempt.local_id, NODE_NAME: attempt.node}
        span = None
        with self._guard:
            span = self._tracer.start_span(name, attributes={**kind, **more, **self._common})
        if span is None:
            return (yield from inner(call))
        if key and span.is_recording():
            self._running[key] = _Running(span)
        try:
            with _Current(otel_trace.set_span_in_context(span)):
                return (yield from inner(call))
        except BaseException as error:
            if isinstance(error, Exception):
                with self._guard:  # what must be hidden in its text is known later
                    self._failed(span, error, hides=bool(self._hidden.redactors))
            else:
                self._left(span, error)
            raise
        finally:
            self._running.pop(key, None)
            self._end_span(span)

    def _left(self, span: Span, error: BaseException) -> None:
        """Notes on a span what its script has asked, or that it was cancelled."""
        with self._guard:
            for question in error.questions if isinstance(error, Interrupt) else ():
                span.add_event("dspyer.interrupt", self._question(question))
            span.set_attribute(STATUS, "interrupted" if isinstance(error, Interrupt) else "stopped")

    def _finish(self, execution: str, status: str = "") -> None:
        """Ends the span of an execution, at the time when its script ended."""
        running = self._running.pop(execution, None)
        if running is not None:
            self._end_span(running.span, running.ended, status)

    def _end_span(self, span: Span, ended: int | None = None, status: str = "") -> None:
        with self._guard:
            if status:
                span.set_attribute(STATUS, status)
            span.end(ended)

    # --- LM calls

    def chat(self, execution: str, model: str, began: float | None = None) -> Span | None:
        """Begins the span of an LM call; None if the tracer raised."""
        provider, _, name = model.partition("/")
        attributes = {SPAN_KIND: "LLM", OPERATION: CHAT, "gen_ai.request.model": name or model, **self._common}
        if name:
            attributes["gen_ai.provider.name"] = _PROVIDERS.get(provider, provider)
        # A thread that code of the node has started may have no context.
        there = otel_trace.get_current_span().get_span_context().is_valid
        around = None if there else otel_trace.set_span_in_context(self._span_of(execution), self._context)
        at, kind = None if began is None else int(began * 1e9), otel_trace.SpanKind.CLIENT
        with self._guard:
            return self._tracer.start_span(f"{CHAT} {name or model}", around, kind, attributes, start_time=at)
        return None

    @property
    def shows_messages(self) -> bool:
        """Return whether spans of LM calls have messages. Where values are hidden none do: prompts hold them."""
        return self._captures and not self._hidden.redactors

    def end_chat(self, span: Span, made: LMCall, ended: float | None = None) -> None:
        """Ends the span of an LM call."""
        with self._guard:
            name = None if made.failed is None else made.failed.partition(":")[0]
            told = {
                "gen_ai.response.model": made.response_model,
                "gen_ai.response.finish_reasons": made.finish_reason and [made.finish_reason],
                "gen_ai.usage.input_tokens": made.prompt_tokens,
                "gen_ai.usage.output_tokens": made.response_tokens,
                "dspyer.cost": made.cost,
                "error.type": name,
            }
            if self.shows_messages:
                responses = made.response if isinstance(made.response, list) else [made.response]
                said = {"role": "assistant", "finish_reason": made.finish_reason or "stop"}
                told["gen_ai.input.messages"] = made.messages and _messages_text(made.messages)
                if made.response is not None:
                    told["gen_ai.output.messages"] = _messages_text([{**said, "content": one} for one in responses])
            span.set_attributes({key: value for key, value in told.items() if value is not None})
            if name not in (None, "CancelledError", "Interrupt"):
                self._set_failed(span, str(made.failed if self.shows_messages else name))
        self._end_span(span, None if ended is None else int(ended * 1e9))

    # --- what events add to spans

    def add(self, event: Event) -> None:
        """Adds an event of the run to its spans, as the outermost run shows it."""
        if self._span.is_recording():
            with self._guard:
                match event:
                    case Committed():
                        self._add_commit(event)
                    case NodeFailed():
                        self._add_failure(event)
                    case Asked(question) if question.key != "after":
                        pass  # those of an execution are on its span
                    case _:
                        name, told = _told(event, self._question)
                        execution = path_of_event(event)[-1] if hasattr(event, "execution") else ""
                        self._span_of(execution).add_event(name, told, int(event.at * 1e9))

    def _span_of(self, execution: str) -> Span:
        """The span of an execution or an item that runs; that of the run for any other."""
        running = self._running.get(execution) or self._running.get(whole_execution(execution))
        return self._span if running is None else running.span

    def _add_commit(self, event: Committed) -> None:
        commit = event.commit
        running = self._running.get(commit.id)
        if running is None:
            return
        span, ended = running.span, running.ended
        if commit.version is not None:
            span.set_attribute("dspyer.version", commit.version)
        if commit.cached:
            span.add_event("dspyer.cache_hit", timestamp=ended)
        if commit.route != self._graph.exits[commit.node]:  # otherwise its edges alone have decided
            route: dict[str, Any] = {"targets": commit.route}
            if self._captures and commit.reason:
                route["reason"] = commit.reason
            span.add_event("dspyer.route", route, ended)
        if self._captures:
            span.set_attributes(_valued("output", _json_text(event.to_dict()["commit"]["patch"])))
        self._finish(commit.id)

    def _add_failure(self, event: NodeFailed) -> None:
        running = self._running.get(event.execution)
        if running is None:
            return
        self._failed(running.span, event.error)
        if running.ended is not None:  # otherwise an error edge leads on, or a tool reports it
            self._finish(event.execution, "failed")

    # --- what is shown

    def _question(self, question: Any) -> dict[str, Any]:
        told = {"key": question.key, "node": question.node}
        return {**told, "text": self._hidden.shown(question.text)} if self._captures else told

    def _shown(self, state: Mapping[str, Any], names: Iterable[str]) -> str:
        """Fields of a state as JSON, as they may leave the run."""
        found: dict[str, Any] = {}
        for name in names:
            value = thaw(state[name])
            for redactor in self._hidden.redactors:
                value = redactor.redaction.value((name,), value)
            found[name] = value
        for redactor in self._hidden.redactors:
            found = redactor.redact(found, given=True)
        return _json_text(found)

    def _failed(self, span: Span, error: BaseException, *, hides: bool = False) -> None:
        error = unwrap_stop_iteration(error)
        self._set_failed(span, type(error).__name__ if hides else _said(error))
        if hides:
            return
        try:
            span.record_exception(error)
        except Exception:  # noqa: BLE001 - raised by a `__str__` of the user
            told = {"exception.type": type(error).__qualname__, "exception.message": error_text(error)}
            span.add_event("exception", told)

    def _set_failed(self, span: Span, text: str) -> None:
        span.set_status(otel_trace.Status(otel_trace.StatusCode.ERROR, text))


_SHOWN: Final = frozenset((
    *(Committed, NodeFailed, AttemptFailed, Joined, ConflictFound, LiveConflict, Asked, Posted),
))  # fmt: skip
"""The events of dspyer that spans have."""


def _told(event: Event, of_question: Callable[[Any], dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The name and the attributes of the event of a span."""
    told: dict[str, Any]
    match event:
        case AttemptFailed(attempt=attempt, pause=pause, error=error):
            told = {"exception.type": type(error).__qualname__, "exception.message": error_text(error)}
            return "dspyer.attempt_failed", {"attempt": attempt, "pause": pause, **told}
        case Joined(node, branches, branch):
            return "dspyer.join", {"node": node, "branches": [*map(path_text, branches)], "branch": path_text(branch)}
        case ConflictFound(found):
            told = {"join": found.join, "path": ".".join(map(str, found.path)), "policy": found.policy}
            winner = {} if found.winner is None else {"winner": found.winner}
            return "dspyer.conflict", {**told, "authors": [author for author, _ in found.values], **winner}
        case LiveConflict():
            return "dspyer.conflict", {
                "path": event.field,
                "authors": [event.author, event.other],
                "policy": event.rule,
            }
        case Asked(question):
            return "dspyer.interrupt", of_question(question)
        case Posted():
            return "dspyer.post", {name: getattr(event, name) for name in ("field", "seq", "operation", "live")}
    # Of a class that is not known here: its label and its fields.
    told = {"label": event.label()}
    for name, value in event.to_dict().items():
        if name not in ("event", "scope", "at") and value is not None:
            told[name] = value if isinstance(value, str | bool | int | float) else _json_text(value)
    return type(event).__name__, told


# --- the layers


class _OpenRuns(list["RunSpans"]):
    """The spans of the runs of a call that have not ended. Each operation is atomic: threads need no lock."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def last(self, scope: tuple[str, ...], execution: str = "") -> RunSpans | None:
        """The spans of a run by its scope, which is how an event names its run.

        Code of a node may make several runs of one scope: of these, the one in which `execution` runs, else the last.
        """
        found = [one for one in self if one.scope == scope]
        return next((one for one in found if execution in one._running), found[-1] if found else None)


class ChatSpans(BaseCallback):
    """Makes the spans of LM calls: it hears of them as the tap does, and is the last callback that DSPy calls.

    Where an instrumentation has made a span of the call, there is none of these. Whose wrapper is around the LM has
    made it the current one before any callback begins, and it says that it is of an LM. Whose callback makes one has
    done so since, as this is the last.
    """

    def __init__(self, open_runs: _OpenRuns) -> None:
        self._open_runs = open_runs
        self._before: dict[Any, Span] = {}
        self._open: dict[Any, tuple[RunSpans, Span, _Current] | None] = {}

    def settings(self) -> dict[str, Any]:
        """The settings of DSPy in which it hears of LM calls."""
        found = subscribing(self)
        callbacks = found.get("callbacks", dspy.settings.callbacks)
        return found | {"callbacks": type(callbacks)([*callbacks, self])}

    def begins(self, call: Any) -> None:
        """Hears that a call begins, before DSPy's other callbacks."""
        self._before[call] = otel_trace.get_current_span()

    def on_lm_start(self, **_: Any) -> None:
        """Begins its span, if no other callback and no wrapper has."""
        callers = dspy.settings.get(CALLERS) or [None]
        before = self._before.pop(callers[0], None)
        if before is None:
            return
        call, now = callers[0], otel_trace.get_current_span()
        self._open[call] = None
        spans = None if now is not before or _is_of_lm(now) else self._spans(call.execution.id)
        span = None if spans is None else spans.chat(_own(call.execution.id), str(call.lm.model))
        if spans is not None and span is not None:
            block = _Current(otel_trace.set_span_in_context(span))
            block.__enter__()
            self._open[call] = spans, span, block

    def ended(self, call: Any) -> None:
        """Ends its span; that of an LM whose class calls no callbacks begins only now."""
        self._before.pop(call, None)
        if call in self._open:
            if (found := self._open.pop(call)) is not None:
                spans, span, block = found
                block.__exit__()
                spans.end_chat(span, call.record(texts=spans.shows_messages))
        elif not _is_of_lm(otel_trace.get_current_span()):
            self.returned([call.record(texts=True)])

    def returned(self, calls: Iterable[LMCall]) -> None:
        """Makes the spans of calls that have ended elsewhere."""
        for call in calls:
            spans = self._spans(call.execution)
            span = None if spans is None else spans.chat(_own(call.execution), call.model, call.started)
            if spans is not None and span is not None:
                spans.end_chat(span, call, call.started + call.seconds)

    def _spans(self, execution: str) -> RunSpans | None:
        """The spans of the run in which an execution runs."""
        return self._open_runs.last(Address.parse(execution).scope, _own(execution))


def _own(execution: str) -> str:
    return Address.parse(execution).own


def _is_of_lm(span: Any) -> bool:
    """Return whether a span says that it is of an LM call."""
    attributes = getattr(span, "attributes", None) or {}
    return attributes.get(SPAN_KIND) == "LLM" or attributes.get(OPERATION) in (CHAT, "text_completion")


def _messages_text(messages: Iterable[Any]) -> str:
    """Messages in the form of the conventions: their content is a list of parts."""
    return _json_text([_message(one) for one in messages])


def _message(given: Any) -> dict[str, Any]:
    found = dict(given) if isinstance(given, Mapping) else {"role": "user", "content": given}
    content = found.pop("content", None)
    parts = content if isinstance(content, list) else [] if content is None else [content]
    shown = [{"type": "text", "content": one} if isinstance(one, str) else one for one in parts]
    return {"role": found.pop("role", "user"), "parts": shown, **found}


class _SpansOfRun(Layer):
    __slots__ = ("_open_runs", "_spans")

    def __init__(self, open_runs: _OpenRuns, spans: RunSpans | None = None) -> None:
        self._open_runs = open_runs
        self._spans = spans


class NodeSpans(_SpansOfRun):
    """Makes the span of each run, and of each execution in it."""

    __slots__ = ()
    place: ClassVar[Place] = "outside"

    def of(self, run: Any) -> NodeSpans:
        """Its part in one run; that of a run inside of a node is made by the part of the run around it."""
        spans = RunSpans(self._open_runs.tracer, run, self._spans)
        self._open_runs.append(spans)
        return NodeSpans(self._open_runs, spans)

    @contextmanager
    def run(self, run: Any) -> Iterator[None]:
        """A block in which the span of the run is the current one."""
        assert self._spans is not None
        try:
            with self._spans.begin(run):
                if self._spans.is_outermost:
                    with dspy.context(**ChatSpans(self._open_runs).settings()):
                        yield
                else:
                    yield
        finally:
            self._spans.end(run)
            self._open_runs.remove(self._spans)

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an execution, within its span."""
        assert self._spans is not None
        return self._spans.node(call, inner)

    def event(self, event: Event) -> Event:
        """Adds an event to the span that it is of, once the outermost run shows it."""
        if self._spans is not None and not self._spans.scope and (type(event) in _SHOWN or not is_built_in(event)):
            path = path_of_event(event)
            spans = self._open_runs.last(event.scope, path[-1] if len(path) > len(event.scope) else "")
            if spans is not None:
                spans.add(event)
        return event


class ItemSpans(_SpansOfRun):
    """Makes the spans of items of maps, and of trials of searches."""

    __slots__ = ()
    place: ClassVar[Place] = "retry"
    around_parts: ClassVar[bool] = True

    def of(self, run: Any) -> Layer:
        """Its part in one run."""
        return type(self)(self._open_runs, self._open_runs.last(run.scope))

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an item, within its span; a router, or what condenses, is in the span of its node."""
        attempt, spans = call.context.delegate, self._spans
        if spans is None or bool(attempt.part) is (attempt.index is not None):
            return inner(call)
        if attempt.part:
            return spans.part(call, inner)
        return spans.below(call, inner, f"item {attempt.index}", attempt.execution)


class AttemptSpans(ItemSpans):
    """Makes the span of each attempt after the first one."""

    __slots__ = ()
    place: ClassVar[Place] = "attempt"

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an attempt."""
        attempt, spans = call.context.delegate, self._spans
        if spans is None or call.attempt < 2:
            return inner(call)
        part = {"dspyer.layer": attempt.part} if attempt.part else {}
        return spans.below(call, inner, f"attempt {attempt.number}", "", **{"dspyer.attempt": attempt.number, **part})


def _node_before(run: Any, head: int) -> str:
    """The node from which a branch came, the first one after a join; "" for a node after `START`."""
    entry = run.log[head]
    while len(entry.parents) > 1:
        entry = run.log[entry.parents[0]]
    node = entry.commit.node
    return "" if node == START else node


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error_text(error)}"


def _valued(side: str, text: str) -> dict[str, Any]:
    """The attributes of inputs or outputs."""
    return {f"{side}.value": text, f"{side}.mime_type": "application/json"}


def _json_text(value: Any) -> str:
    return to_json(value, serialize_unknown=True, inf_nan_mode="strings").decode()
