"""The LM calls of a run, each with the execution that made it: DSPy itself counts by language model only.

A recorder hears of an LM call in three ways. A callback of DSPy sees when each call begins and how it ends, a failed
one too. Something in the list of calling modules (`caller_modules`), in whose histories DSPy puts an entry, gets usage,
cost and response. And a usage tracker gets the usage of responses that no cache gave, also where the history is off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple, Protocol

import dspy

from dspyer.display.running import LMUse
from dspyer.dspy_module.executing import Executing, executing
from dspyer.dspy_module.lm_prices import Prices, cost_of, requests_of, responses_asked, token_counts
from dspyer.dspy_module.not_public import (
    ACTIVE_CALL_ID,
    CALLED,
    CALLERS,
    DECIDES,
    TRACKER,
    BaseCallback,
    Request,
    UsageTracker,
    calling_modules,
    history_messages,
)
from dspyer.dspy_module.parameters import parameter_names
from dspyer.errors import error_text
from dspyer.events import LMCall
from dspyer.persistence.lm_usage import LMUsage, add_tokens, usage_of_calls

FALLBACK = "fallback"
"""The key of a history entry, and the attribute of its LM, that says whether the response came from a backup."""

NO_PRICES: Prices = {}


class CallLog(Protocol):
    """What gets the calls that are to be stored."""

    @property
    def wants_texts(self) -> bool:
        """Whether it wants messages and responses."""

    def add(self, call: LMCall) -> LMCall:
        """Take a call to be written; return it as the run shows it."""


class _Begun:
    """An LM call that has begun: what is known of it so far."""

    __slots__ = ("asked", "began", "clock", "entry", "execution", "given", "lm", "predictor", "usages")

    def __init__(self, lm: Any, given: Mapping[str, Any]) -> None:
        here, callers = executing.get() or Executing(), calling_modules()
        # A copy: the driver names its next execution in the same object.
        self.execution = Executing(here.id, here.node, here.program, here.attempt)
        self.lm = lm
        self.predictor = next((one for one in reversed(callers) if isinstance(one, dspy.Predict)), None)
        self.given = given
        self.asked = responses_asked(lm, given.get("kwargs") or {})
        self.entry: Mapping[str, Any] | None = None
        self.usages: list[Mapping[str, Any]] = []
        self.began = time.time()
        self.clock = time.perf_counter()


class LMRecorder:
    """Records the LM calls of a run. May be used from several threads.

    Args:
        log: gets the calls that are to be stored; None for none.
        prices: prices that come before those of DSPy.
        keeps_texts: whether to keep messages and responses for the run around this one, whose log wants them.

    Attributes:
        usages: the calls in the order in which they ended, without messages and responses.
        calls: the same as the run shows them.
        tracker: DSPy's usage tracker of the run.
    """

    def __init__(self, log: CallLog | None = None, prices: Prices = NO_PRICES, *, keeps_texts: bool = False) -> None:
        self.log = log
        self.prices = prices
        self.usages: list[LMCall] = []
        self.calls: list[LMCall] = []
        self._kept: list[LMCall] | None = [] if keeps_texts else None
        self._begun: dict[str, _Begun] = {}  # by DSPy's id of the call
        self.tracker = RunUsage(self._begun)
        self._names: dict[int, tuple[Any, dict[int, str]]] = {}  # of predictors, by id of their program, which is kept
        self._lock = Lock()

    @property
    def wants_texts(self) -> bool:
        """Whether the log, or that of a run around this one, wants messages and responses."""
        return self._kept is not None or (self.log is not None and self.log.wants_texts)

    # --- what DSPy calls

    def begin(self, call_id: str, lm: Any, inputs: Mapping[str, Any]) -> None:
        """Notes that a call begins."""
        self._begun[call_id] = _Begun(lm, inputs)

    def end(self, call_id: str, outputs: Any, error: BaseException | None) -> None:
        """Records a call that has ended."""
        begun = self._begun.pop(call_id, None)
        if begun is not None:
            self._record(begun, outputs, error)

    def add_entry(self, entry: Mapping[str, Any]) -> None:
        """Gets DSPy's history entry of a call; of an LM whose class calls no callbacks, this is all there is."""
        begun = self._begun.get(ACTIVE_CALL_ID.get() or "")
        if begun is not None:
            begun.entry = entry
            return
        found = _Begun(_NamedLM(str(entry.get("model"))), {"kwargs": entry.get("kwargs")})
        found.entry = entry
        self._record(found, entry.get("outputs"), None)

    # --- records

    def _record(self, begun: _Begun, outputs: Any, error: BaseException | None) -> None:
        entry, here, lm = begun.entry or {}, begun.execution, begun.lm
        usages = begun.usages or ([entry["usage"]] if entry.get("usage") else [])
        counts = [token_counts(usage) for usage in usages]
        cached = error is None and not usages
        call = LMCall(
            here.id,
            here.node,
            self._name(begun),
            str(lm.model),
            entry.get("response_model"),
            sum(one.prompt for one in counts),
            sum(one.response for one in counts),
            cost_of(lm, self.prices, begun.entry, usages) if usages else 0.0,
            time.perf_counter() - begun.clock,
            begun.began,
            cached,
            _finish_reason(entry.get("response")),
            here.attempt,
            None if error is None else type(error).__name__,
            requests=requests_of(begun.asked, begun.entry, usages, error is not None),
            fallback=bool(entry.get(FALLBACK) or (error is None and getattr(lm, FALLBACK, False))),
        )
        whole = call
        if self.wants_texts:
            whole = call._replace(messages=_messages(begun), response=_response(entry.get("outputs", outputs)))
            if error is not None:
                whole = whole._replace(failed=f"{call.failed}: {error_text(error)}", response=None)
        self._add(call, whole)

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

    def _name(self, begun: _Begun) -> str:
        """The name of the predictor in its program; of one that the program does not have, that of its class."""
        predictor, program = begun.predictor, begun.execution.program
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

    def add_returned(self, calls: Iterable[LMCall]) -> None:
        """Adds the calls that a worker of an executor has made."""
        for whole in calls:
            self._add(whole._replace(messages=None, response=None), whole)

    def add_inner(self, inner: LMRecorder, here: Executing) -> None:
        """Adds the calls of a run that was made by code of a node: they are calls of that node."""
        # A node that was left running may add some meanwhile.
        calls = list(zip(list(inner.usages), list(inner.usages if inner._kept is None else inner._kept), strict=False))
        for both in calls:
            call, whole = [one._replace(execution=here.id, node=here.node, attempt=here.attempt) for one in both]
            self._add(call, whole)


class _NamedLM(NamedTuple):
    """An LM of which the name alone is known."""

    model: str


class LMListener(BaseCallback):
    """What DSPy knows of a recorder: a callback, which has a history as a calling module has one.

    Attributes:
        recorder: the recorder. It does not refer to this object: only the cyclic garbage collector would free both.
        history: where DSPy appends entries; it stays empty.
    """

    def __init__(self, recorder: LMRecorder) -> None:
        self.recorder = recorder
        self.history: Any = _Entries(recorder)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note that a call begins."""
        self.recorder.begin(call_id, instance, inputs)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Record a call that has ended."""
        self.recorder.end(call_id, outputs, exception)

    def take_lm_calls(self, program: Any, calls: Sequence[LMCall], nodes: Mapping[str, str]) -> None:
        """Record the calls that a worker has made."""
        del program, nodes
        self.recorder.add_returned(calls)


class _Entries(list[Any]):
    """A history that passes each entry on and keeps none."""

    def __init__(self, recorder: LMRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def append(self, entry: Mapping[str, Any]) -> None:
        """Pass on an entry."""
        self._recorder.add_entry(entry)


class LMWatcher:
    """A module to DSPy that passes on what each LM call has used, and keeps nothing.

    Attributes:
        history: where DSPy appends entries; it stays empty.
    """

    def __init__(self, note: Callable[[LMUse], object], prices: Prices = NO_PRICES) -> None:
        self.history: Any = _Passed(note, prices)
        self._note = note

    def take_lm_calls(self, program: Any, calls: Sequence[LMCall], nodes: Mapping[str, str]) -> None:
        """Pass on what the calls that a worker has made have used."""
        del program, nodes
        for call in calls:
            self._note(LMUse(call.tokens, call.cost))


def pass_on_lm_calls(program: Any, calls: Sequence[LMCall], nodes: Mapping[str, str]) -> None:
    """Gives the LM calls that a worker of an executor has made to all who count LM calls here.

    They are those modules around the caller that have a method `take_lm_calls`. `nodes` are the nodes of the program
    that have run, by execution.
    """
    for one in calling_modules():
        take = getattr(type(one), "take_lm_calls", None)
        if take is not None:
            take(one, program, calls, nodes)


class _Passed(list[Any]):
    """A history that passes on what an entry says of tokens and cost."""

    def __init__(self, note: Callable[[LMUse], object], prices: Prices) -> None:
        super().__init__()
        self._note = note
        self._prices = prices

    def append(self, entry: Mapping[str, Any]) -> None:
        """Pass on an entry; a response from a cache has no usage, and costs nothing."""
        usage = entry.get("usage") or {}
        cost = cost_of(_NamedLM(str(entry.get("model"))), self._prices, entry, [usage]) if usage else 0.0
        self._note(LMUse(token_counts(usage).total, cost))


class RunUsage(UsageTracker):
    """DSPy's usage tracker of a run, which notes what it gets with the call that runs here."""

    def __init__(self, begun: Mapping[str, _Begun]) -> None:
        super().__init__()
        self._begun = begun

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        """Add the usage of a response that no cache gave."""
        begun = self._begun.get(ACTIVE_CALL_ID.get() or "")
        if begun is not None:
            begun.usages.append(usage_entry)
        super().add_usage(lm, usage_entry)

    def __deepcopy__(self, memo: dict[int, Any]) -> RunUsage:
        # `dspy.Parallel` gives each thread a copy, which it drops: the calls are those of the run there, too.
        return self


class LMCallbacks(list[Any]):
    """Callbacks that concern LMs alone: DSPy adds them to those of an LM, and to those of nothing else.

    Callbacks that DSPy calls for each module, adapter and tool would take 0.2 ms for each call of a predictor.
    """

    def __add__(self, others: Any) -> Any:
        # DSPy adds the callbacks of an instance to these (`with_callbacks`); the instance is a local of its frame.
        instance = sys._getframe(1).f_locals.get(CALLED, self)
        if instance is self or isinstance(instance, dspy.BaseLM) or hasattr(instance, DECIDES):
            return [*self, *others]
        return others


def with_lm_callback(callbacks: list[Any], own: BaseCallback, first: bool = False) -> list[Any]:
    """Callbacks and one more that concerns LMs alone."""
    found = [own, *callbacks] if first else [*callbacks, own]
    return LMCallbacks(found) if not callbacks or isinstance(callbacks, LMCallbacks) else found


def without_callbacks(callbacks: list[Any], gone: Sequence[object]) -> list[Any]:
    """Callbacks but for some of them."""
    left = [one for one in callbacks if one not in gone]
    return LMCallbacks(left) if isinstance(callbacks, LMCallbacks) else left


@contextmanager
def record_lm_calls(log: CallLog | None = None, prices: Prices = NO_PRICES) -> Iterator[LMRecorder]:
    """Records the LM calls of a block, which is one run. At its end they are added to those of the run around it."""
    settings = dspy.settings
    tracker = settings.get(TRACKER)
    modules, callbacks = calling_modules(), settings.callbacks or []
    around = [one for one in modules if isinstance(one, LMListener)]
    if around:
        modules = [one for one in modules if one not in around]
        callbacks = without_callbacks(callbacks, around)
    for one in around:
        prices = {**one.recorder.prices, **prices}
    keeps_texts = any(one.recorder.wants_texts for one in around)
    recorder, before = LMRecorder(log, prices, keeps_texts=keeps_texts), executing.get()
    listener = LMListener(recorder)
    here = before or Executing()
    place = Executing(here.id, here.node, here.program, here.attempt)
    executing.set(Executing())
    try:
        with dspy.context(
            callbacks=with_lm_callback(callbacks, listener),
            **{CALLERS: [*modules, listener], TRACKER: recorder.tracker},
        ):
            yield recorder
    finally:
        executing.set(before)
        # A tracker of the caller's own (`dspy.track_usage()`) passes on what it has to the one around it.
        own = isinstance(tracker, UsageTracker) and not isinstance(tracker, RunUsage)
        for taker in [tracker] if own else [one.recorder.tracker for one in around]:
            for model, entries in list(recorder.tracker.usage_data.items()):
                taker.usage_data[model] += entries
        for one in around:
            one.recorder.add_inner(recorder, place)


def current_recorder() -> LMRecorder | None:
    """The recorder of the run around the caller; None outside of any."""
    return next((one.recorder for one in calling_modules() if isinstance(one, LMListener)), None)


def usage_so_far() -> dict[str, LMUsage]:
    """What the run around the caller has used so far, by language model: tokens, requests and cost."""
    recorder = current_recorder()
    return {} if recorder is None else recorder.usage_by_lm()


# --- the texts of a call


def _messages(begun: _Begun) -> list[Any]:
    """The prompt of a call as a list of messages."""
    entry, given = begun.entry, begun.given
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
