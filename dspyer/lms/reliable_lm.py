"""`reliable`: one `dspy.LM` of several, with retries, rate limits and fallback.

A `ReliableLM` has no engine of its own. It passes each call on, as it is, to a copy of one of its LMs that makes a
single request. So what DSPy does around a request is done once and by the LM that responds: its settings are merged,
its cache is asked, its price is taken, its name stands in the usage and in the history. (An engine of `dspy.LM` would
get the finished request only: without its rollout id, without what the backup LM has set for itself, and with a second
cache, history entry and usage count around it.)

What is decided about a call is a script (`nodes.steps`), the same for sync and async code.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from textwrap import shorten
from typing import Any, NamedTuple, Self, TypeAlias

import dspy
from dspy import (
    LMAuthError,
    LMCollectionLimitError,
    LMConfigurationError,
    LMError,
    LMInvalidRequestError,
    LMUnsupportedFeatureError,
)

from dspyer import Retry, clock
from dspyer.errors import (
    DspyerError,
    always_raised,
    annotate,
    is_transient,
    mark_lm_retries,
    retries_of_lm,
    with_article,
)
from dspyer.extend import TwoWays, arun_script, is_number, is_whole_number, run_script
from dspyer.layers.attempts import retry_after
from dspyer.lm.not_public import (
    CLIENT_KEYS,
    ENGINES,
    LM_CLASS_STATE_KEY,
    TRACKER,
    Request,
    _adapter_call,
    _cached,
    adapter_fallback_scope,
    adapter_message_call,
    prepare,
)
from dspyer.lm.tap import FALLBACK, responses_asked, token_counts
from dspyer.lms.gate import Gate, RateLimits, Sleep, raise_if_over
from dspyer.views import estimate_tokens

_log = logging.getLogger("dspyer.lms")

# Another LM would hide them: the request or the settings are wrong, and stay wrong until they are mended. Refusals and
# an exceeded context length are invalid requests, too.
_NO_FALLBACK = (
    LMInvalidRequestError,
    LMAuthError,
    LMConfigurationError,
    LMUnsupportedFeatureError,
    LMCollectionLimitError,
)
# What belongs to one of the LMs. The key of one must not be sent to the provider of another.
_OF_ONE_LM = {*CLIENT_KEYS, "model", "model_type", "engine", "async_engine", "num_retries", "provider"}

_Script: TypeAlias = Generator[tuple[Any, Any], Any, Any]


def reliable(
    *lms: dspy.LM,
    requests_per_minute: float | None = None,
    tokens_per_minute: float | None = None,
    max_concurrency: int | None = None,
    retry: Retry | int | None = 4,
    cooldown: float = 30.0,
) -> dspy.LM:
    """Make one `dspy.LM` of several: it retries requests, keeps to rate limits, and falls back to the next LM.

    The limits hold for each of the LMs, in this process: all threads, event loops and copies of the result share them.
    Requests are spaced evenly. A response from DSPy's cache takes no slot. For limits that differ between the LMs, nest
    the calls: `reliable(reliable(main, requests_per_minute=600), reliable(backup, requests_per_minute=60))`.

    The next LM is asked when the error of one remains after its last attempt, and before a stream has shown a token. It
    is not asked if the request or the settings are wrong (status 400, 401, 403, 404), after a refusal, and if the
    context is too long. The error that remains has its own type; notes on it name the errors of the LMs asked before.
    A node does not retry what has been repeated here.

    A pause takes as long as the server asks for (`Retry-After`). Above the `max_wait` of the policy, 60 seconds by
    default, the next LM is asked at once, and this one is skipped for the time that the server named. With every LM
    skipped, they are asked in order all the same; the first response ends a skip. A `Retry-After` below that holds back
    every caller of this LM.

    Each LM keeps its settings and its part of DSPy's cache; what a copy changes (`lm.copy(temperature=1.0)`) goes to
    all, and settings of one LM alone, such as a key, are refused. Capabilities are those that all of them have.
    Callbacks hear of each request, also of one that failed. Usage, cost and `history` have an entry per call, under the
    model that responded; the histories of the given LMs stay empty. A saved program has the LMs and limits without
    keys, and is loaded by `program.load(path, allow_unsafe_lm_state=True)`. What is loaded, unpickled or forked has
    limits of its own. A call with `n=5` is five requests, and is repeated as a whole. A cancelled caller, and one whose
    run has used up its budget, stops to wait. The logger `dspyer.lms` has retries at INFO and fallbacks at WARNING.

    In async code await `lm.acall`: a sync call within an event loop blocks it, and with `max_concurrency`, a sync
    program that calls its nodes in threads could wait there for slots that tasks of this loop hold.

    Args:
        *lms: the LMs, each a `dspy.LM`, in the order in which they are asked. They are copied, with `num_retries=0`.
        requests_per_minute: the most requests to one LM per minute.
        tokens_per_minute: the most tokens of one LM per minute, of prompts and responses. A request reserves an
            estimate of its prompt and its `max_tokens`, which the response corrects.
        max_concurrency: the most requests to one LM at a time.
        retry: when and how often a request to one LM is repeated: a `dspyer.Retry`, a number of attempts, or None for
            one attempt.
        cooldown: for how many seconds an LM that has used up its attempts is skipped if there is another one.

    Returns:
        A `dspy.LM`. It can be configured, pinned, copied, streamed, saved and optimized like any other.

    Raises:
        TypeError: without an LM, for one that is no `dspy.LM`, or a limit that is not a number.
        ValueError: for a limit that is not above 0, or an LM that is there twice.

    Example:
        >>> import dspy
        >>> from dspy.utils.exceptions import LMServerError
        >>> from dspyer.testing import ScriptedLM, no_pauses
        >>> main, backup = ScriptedLM([LMServerError("broken")] * 2), ScriptedLM(
        ...     [{"answer": "Paris"}])
        >>> with no_pauses(), dspy.context(lm=reliable(main, backup, retry=2)):
        ...     dspy.Predict("question -> answer")(
        ...         question="Capital of France?").answer
        'Paris'
    """
    _check_lms(lms)
    limits = RateLimits(requests_per_minute, tokens_per_minute, max_concurrency)
    _check_limits(limits, cooldown)
    return ReliableLM(lms, limits, Retry.from_option(retry) or Retry(1), float(cooldown))


class GatedLM(NamedTuple):
    """One of the LMs, and its gate."""

    lm: Any
    gate: Gate


@dataclass(slots=True)
class PassedCall:
    """A call that is passed on, and what is known of its last request."""

    prompt: Any
    messages: Any
    options: dict[str, Any]
    names: tuple[str, str] = ("__call__", "acall")  # of the method to call, in sync and in async code
    shown: bool = False  # whether the request has streamed a token
    known_tokens: int | None = None  # that the request has used; None if that is not known

    @property
    def request(self) -> Request | None:
        """The typed request of the call, None if it has a prompt or messages."""
        found = self.options.get("request", self.prompt)
        return found if isinstance(found, Request) else None

    def arguments(self, lm: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Prompt, messages and options, for one of the LMs."""
        if self.request is None:
            return self.prompt, self.messages, self.options
        options = {name: value for name, value in self.options.items() if name != "request"}
        return replace(self.request, model=lm.model), self.messages, options


def _of_all(capability: str) -> Any:
    """The property that says whether all LMs of a reliable one have a capability."""
    return property(lambda self: all(getattr(lane.lm, capability) for lane in self._lanes))


class ReliableLM(dspy.LM):
    """A `dspy.LM` that passes each call on to one of its LMs. `reliable` makes it."""

    # DSPy's cache is the LMs'. One around them would serve the response of a backup as that of the main LM.
    _cache_responses = False

    def __init__(self, lms: Sequence[dspy.LM], limits: RateLimits, retry: Retry, cooldown: float) -> None:
        main = lms[0]
        super().__init__(main.model, model_type=main.model_type, num_retries=retry.attempts - 1)
        # What reads an LM without calling it sees the main LM.
        self.kwargs = dict(main.kwargs)
        for name in ENGINES:
            if hasattr(main, name):
                setattr(self, name, getattr(main, name))
        self._settings = dict(main.kwargs)
        # Without retries of their own: they are made here. A reliable LM keeps its own, and its errors say so.
        single = [lm if isinstance(lm, ReliableLM) else lm.copy(num_retries=0) for lm in lms]
        self._lanes = tuple(GatedLM(lm, Gate(limits)) for lm in single)
        self._limits, self._retry, self._cooldown = limits, retry, cooldown

    # --- calls

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        return self._run(PassedCall(prompt, messages, kwargs))

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        return await self._arun(PassedCall(prompt, messages, kwargs))

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        return self._run(PassedCall(prompt, messages, kwargs, ("forward", "aforward")))

    async def aforward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        return await self._arun(PassedCall(prompt, messages, kwargs, ("forward", "aforward")))

    def _run(self, call: PassedCall) -> Any:
        script = self._script(call)
        try:
            return run_script(script)
        finally:
            script.close()  # it gives back what it holds, also after Ctrl-C or a cancellation

    async def _arun(self, call: PassedCall) -> Any:
        script = self._script(call)
        try:
            return await arun_script(script)
        finally:
            script.close()

    def _script(self, call: PassedCall) -> _Script:
        """Asks one LM after the other."""
        call.options = self._options(call)
        failed: list[str] = []
        left = list(self._lanes)
        while True:
            lane = next((lane for lane in left if not lane.gate.cooling), left[0])
            left.remove(lane)
            try:
                return (yield from self._ask(lane, call, left))
            except Exception as error:
                if call.shown or not left or not _falls_back(error):
                    if failed:
                        annotate(error, f"the LMs before it failed, too: {'; '.join(failed)}")
                    raise
                failed.append(f"{lane.lm.model}: {_one_line(error)}")
                _log.warning("%s failed, the next LM is asked: %s", lane.lm.model, _one_line(error))

    def _ask(self, lane: GatedLM, call: PassedCall, others: Sequence[GatedLM]) -> _Script:
        """Asks one LM, as often as the policy allows."""
        gate = lane.gate
        for attempt in count(1):
            step = RequestStep(self, self._prepared(lane.lm), call)
            may_be_cached = call.options.get("cache", step.lm.cache) and not gate.is_open
            look = partial(is_cached, step.lm, call)
            # In async code off the loop, as DSPy does it, since it may read a disk.
            if may_be_cached and (yield TwoWays(partial(look, False), partial(asyncio.to_thread, look, True)), None):
                return (yield step, None)
            asked = responses_asked(step.lm, call.options)  # one request for each
            requests = asked if is_whole_number(asked) and asked > 0 else 1  # DSPy refuses others
            reserved = 0 if gate.limits.tokens_per_minute is None else requests * _tokens_to_reserve(step.lm, call)
            yield from gate.enter(reserved, requests)
            sent = clock.now()
            try:
                found = yield step, None
            except Exception as error:
                call.known_tokens = call.known_tokens or 0
                pause = self._failed(lane, call, attempt, error, others)
                if pause is None:
                    raise
                _log.info("%s failed, attempt %s: %s", lane.lm.model, attempt, _one_line(error))
            else:
                gate.succeeded(sent)
                return found
            finally:
                gate.correct(reserved, reserved if call.known_tokens is None else call.known_tokens)
                gate.leave()
            yield Sleep(pause), None
        raise AssertionError  # the policy ends every series of attempts

    def _failed(
        self, lane: GatedLM, call: PassedCall, attempt: int, error: Exception, others: Sequence[GatedLM]
    ) -> float | None:
        """The pause before the next attempt at an LM; None if there is none."""
        if call.shown or always_raised(error):
            return None  # the reader has seen tokens: only the node may ask again, which says so in an event
        asked, longest = retry_after(error), self._retry.max_wait
        if asked <= longest:
            lane.gate.hold(asked)
        pause = self._retry.pause(attempt, error)
        if pause is not None and not (lane.gate.cooling and any(not other.gate.cooling for other in others)):
            return pause
        if _falls_back(error):
            lane.gate.cool(max(self._cooldown, asked if asked > longest else 0.0))
        # The policy of a node must not repeat what is repeated here.
        mark_lm_retries(error, max(retries_of_lm(error), self._retry.attempts - 1 + len(self._lanes) - 1))
        return None

    # --- requests

    def _changes(self) -> dict[str, Any]:
        """The settings of this LM that a copy has changed, or the user: they go with each request to any of the LMs."""
        now, before = self.kwargs, self._settings
        found: dict[str, Any] = {name: None for name in before if name not in now}
        found |= {name: value for name, value in now.items() if name not in before or before[name] != value}
        _check_settings(found)
        return found

    def _options(self, call: PassedCall) -> dict[str, Any]:
        found = self._changes()
        if not self.cache:
            found["cache"] = False
        if call.request is not None:  # it holds its settings
            found = {name: value for name, value in found.items() if name in ("cache", "rollout_id")}
        return {**found, **call.options}

    def _prepared(self, lm: Any) -> Any:
        """A copy of an LM for one request, whose callbacks and history are those of this LM, too."""
        one = lm.copy()
        one.callbacks = [*self.callbacks, *lm.callbacks]
        is_backup = getattr(self, FALLBACK, False) or lm is not self._lanes[0].lm
        setattr(one, FALLBACK, is_backup)  # DSPy may keep no history

        def update_history(entry: dict[str, Any]) -> None:
            entry[FALLBACK] = entry.get(FALLBACK, False) or is_backup
            self.update_history(entry)

        one.update_history = update_history
        return one

    # --- everything else that an LM does

    def copy(self, **kwargs: Any) -> Self:
        _check_settings(kwargs)
        copied: Self = super().copy(**kwargs)
        return copied

    def _refuse(self, *_args: Any, **_kwargs: Any) -> Any:
        names = ["finetune", "reinforce", "launch", "kill"]
        text = f"a reliable LM has no {'(), '.join(names)}(): call them on the LMs that it is made of"
        raise LMUnsupportedFeatureError(text, model=self.model, features=names)

    finetune = reinforce = launch = kill = _refuse

    def close(self) -> None:
        for lane in self._lanes:
            if hasattr(lane.lm, "close"):
                lane.lm.close()

    async def aclose(self) -> None:
        for lane in self._lanes:
            if hasattr(lane.lm, "aclose"):
                await lane.lm.aclose()

    def dump_state(self) -> dict[str, Any]:
        retry = self._retry
        if retry.on is not is_transient or retry.wait is not None:
            raise TypeError(
                "a reliable LM cannot be saved with a Retry that has its own on= or wait=: these are functions. Save "
                "the program without its LM, and set the LM again after loading: program.set_lm(lm)"
            )
        return {
            LM_CLASS_STATE_KEY: f"{type(self).__module__}.{type(self).__qualname__}",
            "lms": [lane.lm.dump_state() for lane in self._lanes],
            "limits": self._limits._asdict(),
            "retry": {"attempts": retry.attempts, "max_wait": retry.max_wait},
            "cooldown": self._cooldown,
            "cache": self.cache,
            "changes": self._changes(),
        }

    @classmethod
    def load_state(cls, state: dict[str, Any], *, allow_custom_lm_class: bool = False) -> Self:
        load = dspy.BaseLM.load_state
        lms = [load(one, allow_custom_lm_class=allow_custom_lm_class) for one in state["lms"]]
        # JSON has no infinity: DSPy writes null for it.
        attempts, max_wait, cooldown = state["retry"]["attempts"], state["retry"]["max_wait"], state["cooldown"]
        retry = Retry(attempts, max_wait=math.inf if max_wait is None else max_wait)
        loaded = cls(lms, RateLimits(**state["limits"]), retry, math.inf if cooldown is None else cooldown)
        return loaded.copy(cache=state["cache"], **state["changes"])

    supports_function_calling = _of_all("supports_function_calling")
    supports_reasoning = _of_all("supports_reasoning")
    supports_response_schema = _of_all("supports_response_schema")

    @property
    def supported_params(self) -> set[str]:
        return set.intersection(*(set(lane.lm.supported_params) for lane in self._lanes))


# --- steps


class RequestStep(NamedTuple):
    """A step that makes one request, with a copy of an LM that was made for it."""

    owner: ReliableLM
    lm: Any
    passed: PassedCall

    def call(self, _call: object) -> Any:
        """In sync code."""
        raise_if_over()
        with self._request():
            return self._made(0)

    async def acall(self, _call: object) -> Any:
        """In async code."""
        with self._request():
            return await self._made(1)

    def _made(self, way: int) -> Any:
        prompt, messages, options = self.passed.arguments(self.lm)
        return getattr(self.lm, self.passed.names[way])(prompt, messages=messages, **options)

    @contextmanager
    def _request(self) -> Iterator[None]:
        """A block with the request, after which it is known whether it has shown a token, and which it has used."""
        passed, made = self.passed, _adapter_call.get()
        # DSPy warns of messages as dicts, unless an adapter has made them, and for the LM that it calls.
        adapted = made is not None and made[0] is self.owner and made[1] is passed.messages
        as_the_owners = adapter_message_call(self.lm, passed.messages) if adapted else nullcontext()
        # DSPy tells a usage tracker what a response has used, also if it keeps no history, and if the call fails.
        passed.known_tokens = None
        counter = UsedTokens(passed, dspy.settings.get(TRACKER))
        with as_the_owners, adapter_fallback_scope() as progress, dspy.context(**{TRACKER: counter}):
            try:
                yield
            finally:
                passed.shown = progress.emitted


class UsedTokens(NamedTuple):
    """A usage tracker that adds up the tokens of a call, and passes on what it gets."""

    passed: PassedCall
    tracker: Any

    def add_usage(self, model: str, usage: dict[str, Any]) -> None:
        """Add what a response has used."""
        self.passed.known_tokens = ((self.passed.known_tokens or 0) + token_counts(usage).total) or None
        if self.tracker is not None:
            self.tracker.add_usage(model, usage)


def is_cached(lm: Any, passed: PassedCall, asynchronous: bool) -> bool:
    """Return whether DSPy's cache has the response."""
    call = prepare(lm, *passed.arguments(lm), asynchronous=asynchronous)
    return bool(call.cache) and _cached(lm, call, asynchronous) is not None


# --- checks, and small readings


def _check_lms(lms: Sequence[object]) -> None:
    if not lms:
        raise TypeError("reliable() takes one or more LMs: reliable(dspy.LM('openai/gpt-4.1'), ...)")
    for number, lm in enumerate(lms, 1):
        if not isinstance(lm, dspy.BaseLM):
            kind = with_article(type(lm).__name__)
            fix = f": dspy.LM({lm!r})" if isinstance(lm, str) else ""
            raise TypeError(f"reliable() takes dspy.LM objects, and LM {number} is {kind}{fix}")
        if any(lm is other for other in lms[: number - 1]):
            raise ValueError(
                f"reliable() got one LM twice ({lm.model!r}): retry= repeats a request to an LM, and the LMs are asked "
                f"one after the other. Give each once"
            )


def _check_limits(limits: RateLimits, cooldown: object) -> None:
    for name, value in limits._asdict().items():
        if value is None:
            continue
        whole = name == "max_concurrency"
        if not (is_whole_number(value) if whole else is_number(value)):
            raise TypeError(f"reliable({name}={value!r}): give a {'whole ' if whole else ''}number above 0, or None")
        if not 0 < value < math.inf:
            raise ValueError(f"reliable({name}={value!r}): give a number above 0, or None for no limit")
    if not is_number(cooldown):
        raise TypeError(f"reliable(cooldown={cooldown!r}): give seconds, 0 or more")
    if not cooldown >= 0:
        raise ValueError(f"reliable(cooldown={cooldown!r}): give seconds, 0 or more")


def _check_settings(names: Iterable[str]) -> None:
    refused = sorted(_OF_ONE_LM.intersection(names))
    if refused:
        raise ValueError(
            f"{', '.join(refused)}: a reliable LM takes no settings that belong to one LM. Set them on the LMs that it "
            f"is made of, and make another one: reliable(dspy.LM(..., {refused[0]}=...), ...)"
        )


def _falls_back(error: Exception) -> bool:
    if isinstance(error, (DspyerError, *_NO_FALLBACK)):
        return False
    return isinstance(error, LMError) or is_transient(error)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {shorten(str(error), 200)}"


def _tokens_to_reserve(lm: Any, call: PassedCall) -> int:
    request = call.request
    if request is not None:
        text = "".join([str(request.system or ""), *(str(message.text or "") for message in request.messages)])
        return estimate_tokens(text) + (request.config.max_tokens or 0)
    text = call.prompt if isinstance(call.prompt, str) else ""
    settings = {**lm.kwargs, **call.options}
    most = settings.get("max_tokens") or settings.get("max_completion_tokens") or 0
    return estimate_tokens(text + "".join(_texts(call.messages))) + most


def _texts(found: Any) -> Iterator[str]:
    """The texts of messages, however they are nested. What is no text (an image, a file) is not estimated."""
    if isinstance(found, Mapping):
        for part in (found.get("content"), found.get("text")):
            yield from _texts(part)
    elif isinstance(found, str):
        yield found
    elif isinstance(found, Sequence):
        for part in found:
            yield from _texts(part)
