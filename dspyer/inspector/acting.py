"""Actions of the inspector on a thread, as `Thread` does it: answer, resume, stop, rerun, copy; and a prompt again.

A request is answered when its run has begun: what is wrong with the request itself (an answer of the wrong type, a
thread that another run owns) is raised before that. The run goes on in a thread of its own; readers follow its rows.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import dspy
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.routing import Route

from dspyer import CompiledGraph, Thread
from dspyer.display import count_of
from dspyer.errors import DspyerError, InputError, NodeOutputError, RunStoppedError, StateError, ThreadError, error_text
from dspyer.inspector.json_answers import NOTHING, RefusedError, answered, body_of
from dspyer.lm.tap import PRICES
from dspyer.patch import decode_update
from dspyer.runtime.streams import Events
from dspyer.stores import Store
from dspyer.threads.graph_changes import named_classes
from dspyer.values import json as encoding

logger = logging.getLogger("dspyer")

PASS = "pass it, as in dspyer inspect STORE --program module:graph"
NO_LM = "give its nodes lm=..., or call dspy.configure(lm=...) in its module"

# What reading a malformed JSON form may raise.
MALFORMED = (StateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


class Actions:
    """The actions of one app, and the runs that it has begun.

    Args:
        programs: the compiled graphs, by the names of their graphs.
        store: the store of the threads.
    """

    def __init__(self, programs: Mapping[str, CompiledGraph], store: Store) -> None:
        self._programs = programs
        self._store = store
        self._open: dict[Events, threading.Thread] = {}

    def routes(self) -> list[Route]:
        """The endpoints: only POST acts."""
        thread, at = {"thread": str}, {"at": str | int}
        return [
            _action("answer", self._answer, {**thread, "answers": dict}, {"by": str, "comment": str}),
            _action("resume", lambda thread: self._begin(self._existing(thread)[0].stream_resume()), thread),
            _action("stop", self._stop, thread),
            _action("rerun", lambda thread, at: self._begin(self._existing(thread)[0]._stream_rerun(at)), thread | at),
            _action("copy", self._copy, {**thread, "to": str}, {**at, "patch": dict}),
            _action(
                "again",
                self._again,
                {**thread, "run": str, "step": str, "call": int},
                {"messages": list, "model": str},
            ),
        ]

    def close(self) -> None:
        """Stop the runs that were begun here, and wait for them: nodes that are sync are finished and committed."""
        # All at once: each waits for the nodes of its run.
        closing = [threading.Thread(target=events.close, daemon=True) for events in list(self._open)]
        for one in closing:
            one.start()
        for one in closing:
            one.join()

    @property
    def workers(self) -> list[threading.Thread]:
        """The threads of the runs that were begun here and have not ended."""
        return list(self._open.values())

    # --- in worker threads: they may block

    def _stop(self, thread: str) -> dict[str, Any]:
        self._existing(thread)[0].stop()
        return {"stopped": True}

    def _again(
        self, thread: str, run: str, step: str, call: int, messages: list[Any] | None = None, model: str | None = None
    ) -> dict[str, Any]:
        """The answer to a prompt that is sent again: to the model that it was sent to, or to another one."""
        existing, program = self._existing(thread)
        calls = existing.record(run).step(step).lm
        if not 0 <= call < len(calls):
            raise LookupError(f"the step {step!r} has {count_of(len(calls), 'LM call')}, and none of the number {call}")
        asked, budget = calls[call], program.graph.budget
        lm = _lm_of(program, asked.model, model)
        try:
            with dspy.context(**{PRICES: {} if budget is None else dict(budget.prices or {})}):
                made = asked.again(lm, messages)
        except DspyerError:
            raise
        except Exception as error:
            raise RefusedError(502, error_text(error), kind=type(error).__name__) from error
        text = made.response if isinstance(made.response, str) else json.dumps(made.response, ensure_ascii=False)
        tokens = [made.prompt_tokens, made.response_tokens]
        return {"text": text, "seconds": made.seconds, "tokens": tokens, "cost": made.cost, "model": made.model}

    def _existing(self, name: str) -> tuple[Thread, CompiledGraph]:
        """The thread, and the program that acts on it.

        Raises `LookupError` if there is no such thread: acting on a name that is mistyped must not make one.
        """
        row = self._store.thread(name)
        run = None if row is None or row.head is None else self._store.run(row.head.run)
        if run is None:
            raise LookupError(f"there is no thread {name!r}")
        program = self._programs.get(graph := str(run.header.get("graph", "")))
        if program is None:
            raise RefusedError(403, f"thread {name!r} is of the graph {graph!r}, and there is no program of it: {PASS}")
        return Thread(program, self._store, name), program  # not the program's store: that of the archive is shown

    def _answer(
        self, thread: str, answers: Mapping[str, Any], by: str | None = None, comment: str | None = None
    ) -> dict[str, Any]:
        existing, program = self._existing(thread)
        decode = _decoder(program)
        given = _each(answers, lambda _, answer: decode(answer), "an answer is not in the JSON form of a value")
        try:
            return self._begin(existing.stream_resume(given, by=by, comment=comment))
        except (InputError, ThreadError) as error:
            if len(answers) == 1 and type(error) in (InputError, ThreadError):
                status = 422 if isinstance(error, InputError) else 409
                raise RefusedError(status, error_text(error), dict.fromkeys(answers, error_text(error))) from error
            raise

    def _copy(
        self, thread: str, to: str, at: str | int | None = None, patch: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        existing, program = self._existing(thread)
        schema, decode = program.graph.topology.schema, _decoder(program)
        update = None
        if patch is not None:
            state = existing.state if at is None else existing.at(at)

            def checked(field: str, update: Any) -> Any:
                found = decode_update(update, decode)
                schema.commit(state, {field: found}, node="update", commit_id="copy")
                return found

            update = _each(patch, checked, "the change does not fit the schema; nothing was copied")
        copied = existing.copy(to, at=at, patch=update)
        return {"thread": copied.name, "status": copied.status}

    def _begin(self, events: Events) -> dict[str, Any]:
        """Begin a run, and return when it owns its thread; the rest of it goes on in a thread of its own."""
        first = next(events, None)  # the run owns its thread, or this raises: it is the answer to the request
        rest = threading.Thread(target=self._finish, args=(events,), name="dspyer-inspector-run", daemon=True)
        self._open[events] = rest
        rest.start()
        return {"begun": True, "run": getattr(first, "run_id", None)}

    def _finish(self, events: Events) -> None:
        try:
            for _ in events:
                pass
        except BaseException as error:
            if not _has_ended(events):
                logger.error("a run that the inspector has begun broke off: resume it", exc_info=error)
        finally:
            del self._open[events]


def _decoder(program: CompiledGraph) -> Callable[[Any], Any]:
    return encoding.decoder(named_classes(program.graph.topology.schema))


def _lm_of(program: CompiledGraph, asked: str, wanted: str | None) -> Any:
    """The language model of a name, by default the one that was asked: of a program, or like one of it."""
    graphs = [program.graph]
    for graph in graphs:
        graphs += graph.inner.values()
    own = [predictor.lm for _, predictor in program.named_predictors()]
    own += [getattr(layer, "lm", None) for graph in graphs for some in graph.given_layers.values() for layer in some]
    known = {lm.model: lm for lm in (*own, dspy.settings.lm) if lm is not None}
    if not known:
        raise RefusedError(422, f"the program has no language model: {NO_LM}")
    name = wanted or asked
    return known[name] if name in known else (known.get(asked) or next(iter(known.values()))).copy(model=name)


def _each(given: Mapping[str, Any], read: Callable[[str, Any], Any], refusal: str) -> dict[str, Any]:
    """Values read by name, each for itself: the page shows each problem beside its field."""
    found, problems = {}, {}
    for name, one in given.items():
        try:
            found[name] = read(name, one)
        except (NodeOutputError, *MALFORMED) as error:
            problems[name] = error_text(error)
    if problems:
        raise RefusedError(422, refusal, problems)
    return found


def _action(
    name: str, act: Callable[..., Any], required: Mapping[str, Any], optional: Mapping[str, Any] = NOTHING
) -> Route:
    """The endpoint of an action, which gets what the body has by name."""

    async def make(request: Request) -> Any:
        body = await body_of(request, required, optional)
        return await run_sync(lambda: act(**body))

    return Route(f"/{name}", answered(make), methods=["POST"])


def _has_ended(events: Events) -> bool:
    """True if there is a run: then the store has its failure."""
    try:
        return events.run is not None
    except RunStoppedError:
        return True
    except BaseException:  # noqa: BLE001 - the caller logs it
        return False
