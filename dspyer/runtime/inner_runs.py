"""A program as a node of another one: its run is a part of the run around it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import blake2b
from typing import Any

import dspy

from dspyer.errors import AttemptError, Interrupt, Interrupted, RunStoppedError
from dspyer.ids import FIRST, Address, full_id, id_prefix, part_id
from dspyer.layers.attempts import Retry
from dspyer.layers.live import Around
from dspyer.log.execution_records import ExecutionRecords, RecordKey
from dspyer.log.rows import EffectRow
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.steps import InsideRun, SharedFields
from dspyer.runtime.lineage_order import changes_of
from dspyer.runtime.repairs import kept_logs
from dspyer.runtime.request import REQUEST, CallOptions, Inside, Outcome, Request
from dspyer.runtime.session import Session
from dspyer.schema.schema import NONE_VALID
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.waiting import StopSignal


def completed_inside(prediction: dspy.Prediction, request: Request) -> InsideRun:
    """The run of a request that has completed."""
    returned, sessions = request.outcome.returned, request.outcome.sessions
    if returned is not None:
        graph, log, after, before = returned._graph, returned._log, returned.state, returned._begin
    else:
        graph, run, before = sessions[-1].graph, sessions[-1].run, sessions[-1].run_start.state
        log, after = run.log, run.trunk_state
    return InsideRun(prediction, before, partial(changes_of, log, graph.topology.schema, after, before))


def _request_inside(
    attempt: Attempt,
    key: str | None,
    stop_signal: StopSignal | None,
    valid: Mapping[str, Any],
    shared: SharedFields | None,
) -> Request:
    """The request for a program that a node calls: its run is a part of the run around it."""
    around = _session_of(attempt)
    stop_signal = stop_signal or StopSignal()
    if around is None:  # a node that is called without a run, as `dspyer.testing.call_node` does
        host = attempt.host
        return Request(CallOptions(host.resources, host.answer, keeps_events=False), Inside(), stop_signal=stop_signal)
    # Of a node that is attempted once, nothing need be kept: rows of its commits would be made for nothing.
    retried = any(isinstance(layer, Retry) for layer in around.layers.of(attempt.node))
    execution = attempt.local_id if key is None else part_id(attempt.local_id, key)
    outer, posts = around.inside, around.together.posts
    inside = Inside(
        events=around.events,
        node=attempt.node,
        item=attempt.index,
        outermost=around.outermost,
        scope=Address.parse(execution).inside,
        attempts=(*(() if outer is None else outer.attempts), attempt.number),
        keeps_commits=retried or (outer is not None and outer.keeps_commits),
        own_inputs=key is not None,
        valid=valid,
        label=around.run_start.label,
        root=around.ids.root,
        limit=attempt.limit or around.limit,
        max_concurrency=around.together.slots,
        live=None if shared is None or posts is None else Around(attempt, shared, posts),
    )
    layers = around.layers.asked
    asked = CallOptions(around.resources, around.answer, around.together.visible, layers=layers, keeps_events=False)
    # An outcome of its own, since the run around has not ended; its events wait for the same reader.
    return Request(asked, inside, around.records, stop_signal=stop_signal, outcome=Outcome(around.events.queue))


def _session_of(attempt: Attempt) -> Session | None:
    """The run that an attempt belongs to; None for a node that is called without one."""
    return attempt.host if isinstance(attempt.host, Session) else None


def is_part(request: Request) -> bool:
    """Tell if the run of a request is a part of a run in this process."""
    return request.inside is not None and request.inside.events is not None


@contextmanager
def part_of_run(
    attempt: Attempt,
    key: str | None = None,
    stop_signal: StopSignal | None = None,
    valid: Mapping[str, Any] = NONE_VALID,
    shared: SharedFields | None = None,
) -> Iterator[Request]:
    """A context in which a run inside a node stops with the run around it, and its questions are those of the node.

    It also stops if the node times out, or a branch beside it has failed.

    Args:
        attempt: the attempt of the node.
        key: the key of `ctx.call`; None for a program that is a node.
        stop_signal: stops the runs inside.
        valid: the inputs that need no validation.
        shared: the live fields that the graph inside has in common with that of the node.
    """
    request = _request_inside(attempt, key, stop_signal, valid, shared)
    around = _session_of(attempt)
    stopped_with, failed = (StopSignal(), StopSignal()) if around is None else (around.stop_signal, around.failed)
    limit = None if request.inside is None else request.inside.limit
    # The inner run has a signal of its own. If it has no reason, another program that an inner node has called was
    # stopped, and its error is an error of that node.
    with (
        stopped_with.on_stop(lambda reason: request.stop_signal.stop(reason, stopped_with.error)),
        failed.on_stop(lambda reason: request.stop_signal.stop(reason, failed.error)),
        nullcontext() if limit is None else limit.signal.on_stop(request.stop_signal.stop),
        dspy.context(**{REQUEST: request}),
    ):
        try:
            try:
                yield request
                if (ended := request.outcome.ended) is not None:
                    request.outcome.ended = None
                    try:
                        raise ended.error or Interrupt(ended.questions)
                    finally:
                        del ended  # its error refers to this frame
            finally:
                _pass_on(attempt, around, request)
        except Interrupted as interruption:
            if not request.outcome.sessions:  # from a worker, which is not there any more when an answer comes
                raise
            raise Interrupt(interruption.questions) from None
        except (RunStoppedError, asyncio.CancelledError) as error:
            if stopped_with.reason is not None or failed.reason is not None:
                attempt.open_calls().cut_off = True  # also if the code of the node catches what is raised here
            if isinstance(error, asyncio.CancelledError) or request.stop_signal.reason is None:
                raise
            raise asyncio.CancelledError from None


def check_same_inputs(inside: Inside, records: ExecutionRecords, inputs: Mapping[str, Any], begun: bool) -> None:
    """Refuses inputs of `ctx.call` that differ from those with which an earlier attempt has begun the run inside.

    Their digest is recorded like the result of an effect; its row is written with the first commit of that run, and not
    by itself.
    """
    text = encoding.to_json(freeze(dict(sorted(inputs.items()))))
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    place = RecordKey(full_id(*inside.scope), "inputs")
    if begun:
        if records.effects.get(place, digest) != digest:
            raise AttemptError(
                f"the inputs of ctx.call (execution {place.execution}) differ from those that an earlier attempt gave: "
                "each attempt must give the same. Keep what decides about them with ctx.once, or leave the run with "
                "thread.run(..., if_open='abandon')"
            )
        return
    records.effects[place] = digest
    records.with_commit[full_id(*inside.scope, FIRST)] = [EffectRow(*place, digest)]


def _pass_on(attempt: Attempt, around: Session | None, request: Request) -> None:
    """Gives the run around a node what its trace and its commits do not have, also if the node then fails.

    These are the steps that led to nothing, of attempts that raised and of trials that lost, the logs in which
    checks have refused something, or agents took turns.
    """
    outcome = request.outcome
    for steps in (*outcome.lost, *[found for session in outcome.sessions for found in session.lost_steps()]):
        attempt.host.lose_steps(attempt, attempt.number, steps)
    if around is None:
        return
    notes = around.notes
    for session in outcome.sessions:
        own = session.ids.scope, session.run.log, session.ids.prefix, session.graph
        notes.logs |= kept_logs(*own, session.notes.logs)
    if (returned := outcome.returned) is not None:  # by a worker, where it was the outermost run
        inside = request.inside or Inside()
        prefix = id_prefix(*inside.label, *inside.scope)
        logs = kept_logs((), returned._log, returned._prefixes[1], returned._graph, returned._inner)
        for kept in logs.values():
            scope = (*inside.scope, *kept.scope)
            notes.logs[scope] = kept._replace(scope=scope, prefix=prefix + kept.prefix)
