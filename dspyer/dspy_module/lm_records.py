"""The LM calls of a run, each with the execution that made it: DSPy itself counts by language model only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, Protocol

import dspy

from dspyer.display.running import LMUse
from dspyer.dspy_module.executing import Executing, executing, executing_copy
from dspyer.dspy_module.not_public import TRACKER, Request, UsageTracker, history_messages
from dspyer.dspy_module.parameters import parameter_names
from dspyer.dspy_module.tap import Subscriber, TappedCall, subscriber, subscribing
from dspyer.errors import error_text
from dspyer.events import LMCall
from dspyer.persistence.lm_usage import LMUsage, add_tokens, usage_of_calls

FALLBACK = "fallback"
"""The key of a history entry, and the attribute of its LM, that says whether the response came from a backup."""


class CallLog(Protocol):
    """What gets the calls that are to be stored."""

    @property
    def wants_texts(self) -> bool:
        """Whether it wants messages and responses."""

    def add(self, call: LMCall) -> LMCall:
        """Take a call to be written; return it as the run shows it."""


class LMRecorder(Subscriber):
    """Records the LM calls of a run. May be used from several threads.

    Args:
        log: gets the calls that are to be stored; None for none.
        keeps_texts: whether to keep messages and responses for the run around this one, whose log wants them.

    Attributes:
        usages: the calls in the order in which they ended, without messages and responses.
        calls: the same as the run shows them.
        tracker: DSPy's usage tracker of the run.
    """

    def __init__(self, log: CallLog | None = None, *, keeps_texts: bool = False) -> None:
        self.log = log
        self.usages: list[LMCall] = []
        self.calls: list[LMCall] = []
        self._kept: list[LMCall] | None = [] if keeps_texts else None
        self.tracker = RunUsage()
        self._names: dict[int, tuple[Any, dict[int, str]]] = {}  # of predictors, by id of their program, which is kept
        self._lock = Lock()

    @property
    def wants_texts(self) -> bool:
        """Whether the log, or that of a run around this one, wants messages and responses."""
        return self._kept is not None or (self.log is not None and self.log.wants_texts)

    def ended(self, call: TappedCall) -> None:
        """Records a call that has ended."""
        entry, here, counts, error = call.entry or {}, call.execution, call.counts, call.error
        made = LMCall(
            here.id,
            here.node,
            self._name(call),
            str(call.lm.model),
            entry.get("response_model"),
            sum(one.prompt for one in counts),
            sum(one.response for one in counts),
            call.cost,
            call.seconds,
            call.began,
            error is None and not counts,
            _finish_reason(entry.get("response")),
            here.attempt,
            None if error is None else type(error).__name__,
            requests=call.requests,
            fallback=bool(entry.get(FALLBACK) or (error is None and getattr(call.lm, FALLBACK, False))),
        )
        whole = made
        if self.wants_texts:
            whole = replace(made, messages=_messages(call), response=_response(entry.get("outputs", call.outputs)))
            if error is not None:
                whole = replace(whole, failed=f"{made.failed}: {error_text(error)}", response=None)
        self._add(made, whole)

    def returned(self, calls: Iterable[LMCall], program: Any, nodes: Mapping[str, str]) -> None:
        """Adds the calls that a worker of an executor has made."""
        del program, nodes
        for whole in calls:
            self._add(replace(whole, messages=None, response=None), whole)

    def _add(self, call: LMCall, whole: LMCall) -> None:
        """Add a call, which is `whole` with messages and response; log, run and the run around it get what they may."""
        log, shown = self.log, call
        if log is not None:
            logged = log.add(whole if log.wants_texts else call)
            shown = logged if log.wants_texts else call
        with self._lock:
            self.usages.append(call)
            self.calls.append(shown)
            if self._kept is not None:
                self._kept.append(whole)

    def _name(self, call: TappedCall) -> str:
        """The name of the predictor in its program; of one that the program does not have, that of its class."""
        predictor = next((one for one in reversed(call.callers) if isinstance(one, dspy.Predict)), None)
        program = call.execution.program
        if predictor is None:
            return ""
        known = self._names.get(id(program))
        if known is None:
            names = {} if program is None else parameter_names(program)
            known = self._names[id(program)] = (program, names)
        return known[1].get(id(predictor)) or type(predictor).__name__

    def usage_by_lm(self) -> dict[str, LMUsage]:
        """Tokens as DSPy counts them, requests and cost so far, by language model, as plain JSON.

        A node that was left running may add some meanwhile.
        """
        so_far = UsageTracker()
        so_far.usage_data.update({name: list(entries) for name, entries in list(self.tracker.usage_data.items())})
        found: dict[str, LMUsage] = {}
        add_tokens(found, so_far.get_total_tokens())
        for name, counted in usage_of_calls([call for call in list(self.usages) if call.requests]).items():
            known = found.setdefault(name, {})
            known["requests"], known["cost"] = counted["requests"], counted["cost"]
        return found

    @property
    def with_texts(self) -> tuple[LMCall, ...]:
        """The calls with messages and responses, if the run around this one wants them."""
        return tuple(self.usages if self._kept is None else self._kept)

    def add_inner(self, inner: LMRecorder, here: Executing) -> None:
        """Adds the calls of a run that was made by code of a node: they are calls of that node."""
        # A node that was left running may add some meanwhile.
        calls = list(zip(list(inner.usages), list(inner.usages if inner._kept is None else inner._kept), strict=False))
        for both in calls:
            call, whole = [replace(one, execution=here.id, node=here.node, attempt=here.attempt) for one in both]
            self._add(call, whole)


class LMWatcher(Subscriber):
    """Passes on what each LM call has used, and keeps nothing."""

    def __init__(self, note: Callable[[LMUse], object]) -> None:
        self._note = note

    def ended(self, call: TappedCall) -> None:
        """Pass on what a call has used; a response from a cache costs nothing."""
        self._note(LMUse(sum(one.total for one in call.counts), call.cost))

    def returned(self, calls: Iterable[LMCall], program: Any, nodes: Mapping[str, str]) -> None:
        """Pass on what the calls that a worker has made have used."""
        del program, nodes
        for call in calls:
            self._note(LMUse(call.tokens, call.cost))


class RunUsage(UsageTracker):
    """DSPy's usage tracker of a run."""

    def __deepcopy__(self, memo: dict[int, Any]) -> RunUsage:
        # `dspy.Parallel` gives each thread a copy, which it drops: the calls are those of the run there, too.
        return self


@contextmanager
def record_lm_calls(log: CallLog | None = None) -> Iterator[LMRecorder]:
    """Records the LM calls of a block, which is one run. At its end they are added to those of the run around it."""
    tracker, around, before = dspy.settings.get(TRACKER), subscriber(LMRecorder), executing.get()
    recorder = LMRecorder(log, keeps_texts=around is not None and around.wants_texts)
    place = executing_copy()
    executing.set(Executing())
    try:
        with dspy.context(**subscribing(recorder, instead_of=(LMRecorder,)), **{TRACKER: recorder.tracker}):
            yield recorder
    finally:
        executing.set(before)
        # A tracker of the caller's own (`dspy.track_usage()`) passes on what it has to the one around it.
        own = isinstance(tracker, UsageTracker) and not isinstance(tracker, RunUsage)
        taker = tracker if own else None if around is None else around.tracker
        if taker is not None:
            for model, entries in list(recorder.tracker.usage_data.items()):
                taker.usage_data[model] += entries
        if around is not None:
            around.add_inner(recorder, place)


def usage_so_far() -> dict[str, LMUsage]:
    """What the run around the caller has used so far, by language model: tokens, requests and cost."""
    recorder = subscriber(LMRecorder)
    return {} if recorder is None else recorder.usage_by_lm()


# --- the texts of a call


def _messages(call: TappedCall) -> list[Any]:
    """The prompt of a call as a list of messages."""
    entry, given = call.entry, call.given
    source = given if entry is None else entry
    messages, prompt = source.get("messages"), source.get("prompt")
    if messages:
        return list(messages)
    if isinstance(prompt, Request):
        return list(history_messages(prompt))
    return [] if prompt is None else [{"role": "user", "content": str(prompt)}]


def _response(outputs: Any) -> Any:
    """The response: of several, or of one with parts, a list."""
    if not isinstance(outputs, list):
        return None if outputs is None else str(outputs)
    return outputs[0] if len(outputs) == 1 and isinstance(outputs[0], str) else outputs


def _finish_reason(response: Any) -> str | None:
    """Why a response ended; of several, what is not `"stop"` first."""
    found = [_reason_of(one) for one in (response if isinstance(response, tuple) else (response,))]
    return next((one for one in found if one not in (None, "stop")), next(iter(found), None))


def _reason_of(response: Any) -> str | None:
    reason = getattr(response, "finish_reason", None)
    if reason is None:
        choices = getattr(response, "choices", None)
        reason = getattr(choices[0], "finish_reason", None) if choices else None
    return None if reason is None else str(reason)
