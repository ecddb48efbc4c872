"""What an optimization asks outside of nodes, kept in the folder of `optimize.cache`: its reflection LM, field metrics.

An optimization that is killed and started again takes the same steps, so it asks the same things in the same order. A
response is found by its request and by how often that request was made in this optimization: one that asks again gets a
new response, one that is started again gets the responses of before. A result of a field metric is found by the code of
the metric and by what it is given.

Both are on disk before they are used. An error of the disk is a miss (`patch_cache`), and what cannot be kept is used
as it is: nothing here raises, since `dspy.Evaluate` would count that as a wrong result of the program.
"""

from __future__ import annotations

import copy
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, Final

import dspy

from dspyer.dspy_module.lm_requests import asked_adapter
from dspyer.dspy_module.not_public import INPUT_KEYS
from dspyer.nodes.cache_key import Identity, digest
from dspyer.persistence.patch_cache import PatchCache, on_disk
from dspyer.runtime.module_cache import ModuleResults
from dspyer.runtime.optimizer_layers import optimizer_layers
from dspyer.state import ImmutableState
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze

logger = logging.getLogger("dspyer")

_FORM: Final = 1  # of keys and entries: another number leaves all earlier entries behind
_CLIENT: Final = ["api_key", "api_base", "base_url"]
"""What is no part of a request, as in the key of DSPy's own cache: it changes no response."""


def cached_lm(lm: Any) -> Any:
    """Return a twin of an LM that keeps its responses in the folder of `optimize.cache`, or the LM outside of a block.

    Each twin counts for itself how often it made a request: it is for one optimization.
    """
    results = optimizer_layers().results
    if results is None or not isinstance(lm, dspy.BaseLM):
        return lm
    twin = copy.copy(lm)
    if not isinstance(lm, CachesResponses):
        kind: Any = type(lm)
        twin.__class__ = _recording(kind)
    twin._dspyer_responses = _Responses(results.cache)
    return twin


def served_responses(lm: Any) -> int:
    """How many responses of an LM of `cached_lm` came from the folder so far, those of its copies too."""
    return lm._dspyer_responses.served if isinstance(lm, CachesResponses) else 0


def cached_result(
    metric: Callable[..., Any], arguments: Mapping[str, Any], judge: Callable[[], tuple[Any, ...]]
) -> tuple[Any, ...]:
    """Return what `judge` says of the arguments of a metric, from the folder of `optimize.cache` if it is there.

    Nothing is kept of a metric, or of arguments, that could not be told from others.
    """
    results = optimizer_layers().results
    key = None if results is None else _result_key(metric, arguments, results)
    if results is None or key is None:
        return judge()
    found = _read(results.cache, key)
    if found is None:
        made = judge()
        found = list(made)
        if _is_plain(found):
            _write(results.cache, key, found)
    return tuple(found)


def _result_key(metric: Callable[..., Any], arguments: Mapping[str, Any], results: ModuleResults) -> str | None:
    """The key of one call of a metric; None if it has none."""
    describer = results.describer
    identity = Identity((dspy.Module, dspy.BaseLM), describer.state_of)
    lm = dspy.settings.lm
    known_lm = None if lm is None else describer.state_of(lm)
    if lm is not None and known_lm is None:
        _warn(results, metric, "dspy.settings.lm does not cache: cache=True would")
        return None
    adapter = describer.adapter_of(asked_adapter())
    if adapter is None:
        _warn(results, metric, "dspy.settings.adapter cannot be told from another")
        return None
    try:
        described = [identity.of_callable(metric), known_lm, adapter]
        given = {name: encoding.encode(freeze(_contents(value))) for name, value in sorted(arguments.items())}
        key = digest([_FORM, "result", described, given])
    except Exception as error:  # noqa: BLE001 - whatever the example holds: the result is only not kept
        _warn(results, metric, "an argument has no JSON form", error)
        return None
    if identity.unknown:
        _warn(results, metric, f"they could be those of another {identity.unknown[0]}")
        return None
    return key


def _contents(value: Any) -> Any:
    """The fields of an example or a state."""
    if isinstance(value, dspy.Example):
        inputs = getattr(value, INPUT_KEYS)
        return {"fields": dict(value.items()), "inputs": None if inputs is None else sorted(inputs)}
    return dict(value) if isinstance(value, ImmutableState) else value


def _warn(results: ModuleResults, metric: Any, reason: str, error: Exception | None = None) -> None:
    """Logs why the results of a metric are not kept: once per metric and reason as a warning, then for debugging."""
    name = str(getattr(metric, "__qualname__", type(metric).__qualname__))
    level = logging.WARNING if results.is_new(("", name), reason) else logging.DEBUG
    text = reason if error is None else f"{reason}: {error}"
    logger.log(level, "optimize.cache: results of %s are not kept, since %s", name, text)


class CachesResponses:
    """The part of an LM that looks a request up before it makes it."""

    _dspyer_responses: _Responses

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """The response to a request, in sync code."""
        with self._dspyer_responses.request(self, prompt, messages, kwargs) as request:
            if request.outputs is None:
                request.keep(super().__call__(prompt, messages=messages, **kwargs))  # type: ignore[misc]
        return request.outputs

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """The response to a request, in async code."""
        with self._dspyer_responses.request(self, prompt, messages, kwargs) as request:
            if request.outputs is None:
                request.keep(await super().acall(prompt, messages=messages, **kwargs))  # type: ignore[misc]
        return request.outputs


@cache
def _recording(kind: Any) -> Any:
    """The class of an LM with `CachesResponses`, under the same name."""
    return type(
        kind.__name__, (CachesResponses, kind), {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    )


class _Responses:
    """The responses of one LM in a folder, and how often each request was made; `served` of them were in the folder."""

    def __init__(self, folder: PatchCache) -> None:
        self.folder = folder
        self.served = 0
        self._made: Counter[str] = Counter()
        self._lock = Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Responses:
        return self  # copies of the LM count together

    @contextmanager
    def request(self, lm: Any, prompt: Any, messages: Any, kwargs: Mapping[str, Any]) -> Iterator[_Request]:
        """One request: with its outputs, if they are in the folder. One that fails does not count."""
        key = _request_key(lm, prompt, messages, kwargs)
        if key is None:
            yield _Request(self.folder, None)
            return
        with self._lock:
            self._made[key] += 1
            number = self._made[key]
        found = _Request(self.folder, digest([_FORM, "response", key, number]))
        if found.outputs is not None:
            with self._lock:
                self.served += 1
        try:
            yield found
        except BaseException:
            with self._lock:
                self._made[key] -= 1
            raise


class _Request:
    """One request of an LM.

    Attributes:
        outputs: what the LM returned; None before it has.
    """

    def __init__(self, folder: PatchCache, key: str | None) -> None:
        self._folder = folder
        self._key = key
        self.outputs = None if key is None else _read(folder, key)

    def keep(self, outputs: Any) -> None:
        """Store what the LM returned, unless JSON would change it."""
        self.outputs = outputs
        if self._key is not None and _is_plain(outputs):
            _write(self._folder, self._key, outputs)


def _request_key(lm: Any, prompt: Any, messages: Any, kwargs: Mapping[str, Any]) -> str | None:
    """The key of a request; None for one that DSPy's cache has no key for either."""
    kind = type(lm).__mro__[2]  # the LM's own class, behind `CachesResponses`
    request = {
        **lm.kwargs,
        **kwargs,
        "_lm": [f"{kind.__module__}.{kind.__qualname__}", lm.model, lm.model_type],
        "_prompt": [prompt, messages],
    }
    try:
        return str(dspy.cache.cache_key(request, _CLIENT))
    except Exception as error:  # noqa: BLE001 - whatever the request holds: it is only not kept
        logger.debug("a response of %s is not kept: its request has no key: %s", lm.model, error)
        return None


# --- entries


def _read(folder: PatchCache, key: str) -> Any:
    entry = on_disk(folder.read, key, None).result()
    return None if entry is None else json.loads(entry)


def _write(folder: PatchCache, key: str, value: Any) -> None:
    """Store a value that is plain JSON, on disk when this returns."""
    on_disk(folder.write, key, json.dumps(value).encode(), None).result()


def _is_plain(value: Any) -> bool:
    """Whether a value reads from JSON as it is."""
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, bool, int) or (type(value) is float and value - value == 0)
