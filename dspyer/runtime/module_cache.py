"""The cache of module calls that `optimize.cache` asks for: what a module returned, found by all that it depends on.

It is below the nodes and not around them: a node reads, and makes updates, routes and messages of what its module
returned, with a result from the cache as with any other. So modules are cached wherever a graph calls them: in nodes,
items of maps, routers, condensers, checks, turns of agents and tools.

A frame surrounds each attempt of one of these (`keeping`):

- A later attempt that asks for a new response stores its result under the key of the first attempt, so that a hit also
  avoids the attempts that failed.
- What an attempt has stored is removed if the attempt fails: its result may have been the cause.
- If an attempt fails that got a result from the cache, it is made once more, with calls. The entry may be of another
  version of a class or of the schema.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import dspy

from dspyer.dspy_module.lm_requests import STRIDE
from dspyer.dspy_module.predictors import predictors_in
from dspyer.dspy_module.tracing import append_to_trace, step_count, steps_since, take_steps
from dspyer.errors import NodeTimeoutError, StateError, always_raised
from dspyer.nodes.call_interceptor import call_interceptor, intercepted_by
from dspyer.nodes.module_key import ModuleDescriber, NoKeyError
from dspyer.nodes.node import Call
from dspyer.nodes.node_policy import NO_POLICY
from dspyer.nodes.steps import Script, Step, arun_script, run_script, wrapped
from dspyer.nodes.sync_async import amodule_called, module_called
from dspyer.persistence.execution_records import RecordKey
from dspyer.persistence.patch_cache import Flight, cache_in, join_flight
from dspyer.runtime.cache_steps import DiskStep, Follow, Lead
from dspyer.runtime.module_cache_entries import decode_result, encode_result
from dspyer.runtime.optimizer_layers import asking_for

logger = logging.getLogger("dspyer")

T = TypeVar("T")


class CallCounts:
    """The calls of one node or router, in a block.

    Attributes:
        made: how many were made.
        spared: how many were not, since the cache had the result.
        lm_made: how often predictors were called for those that were made.
        lm_spared: how often they would have been for the others.
    """

    __slots__ = ("lm_made", "lm_spared", "made", "spared")

    def __init__(self) -> None:
        self.made = self.spared = self.lm_made = self.lm_spared = 0


class ModuleResults:
    """The results of module calls in a folder, while a block asks for them. May be used from several threads.

    Attributes:
        folder: the path of the folder.
        cache: its entries.
        counts: the calls by graph and node.
        describer: makes the keys.
        lock: guards the counts.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.cache = cache_in(folder)
        self.counts: dict[tuple[str, str], CallCounts] = {}
        self.describer = ModuleDescriber()
        self.lock = Lock()
        self._warned: set[tuple[str, str, str]] = set()

    def keeping(
        self, call: Call, attempt: Callable[[Call], Script[T]], layer: str, from_cache: Callable[[T], T] | None
    ) -> Callable[[Call], Script[T]]:
        """An attempt with a frame around its steps; `nodes.steps.keeping` says what the arguments are."""
        around = call_interceptor.get()

        def called(call: Call) -> Script[T]:
            return (yield from wrapped(attempt(call), _Uncached))

        def kept(call: Call) -> Script[T]:
            steps = step_count()
            frame = ModuleFrame(self, call, layer)
            try:
                found = yield from frame.attempted(attempt)
            except Exception as error:
                if not frame.spared or always_raised(error) or isinstance(error, NodeTimeoutError):
                    raise
                frame.warn("a result in the cache cannot be used, so the module is called", error)
                take_steps(steps)
                frame = ModuleFrame(self, call, layer, fresh=True)
                found = yield from frame.attempted(attempt)
            return frame.ended(found, from_cache, around)

        policy = call.runner.session.graph.policies.get(call.context.node, NO_POLICY)
        return called if policy.uncached else kept

    def count(self, where: tuple[str, str], spared: bool, steps: int) -> None:
        """Counts a call of a node."""
        with self.lock:
            counts = self.counts.setdefault(where, CallCounts())
            if spared:
                counts.spared += 1
                counts.lm_spared += steps
            else:
                counts.made += 1
                counts.lm_made += steps

    def take_counts(self) -> dict[tuple[str, str], CallCounts]:
        """The counts, which begin anew."""
        with self.lock:
            counts, self.counts = self.counts, {}
        return counts

    def add_counts(self, counts: Mapping[tuple[str, str], CallCounts]) -> None:
        """Adds counts of another process."""
        with self.lock:
            for where, more in counts.items():
                known = self.counts.setdefault(where, CallCounts())
                for name in CallCounts.__slots__:
                    setattr(known, name, getattr(known, name) + getattr(more, name))

    def is_new(self, where: tuple[str, str], reason: str) -> bool:
        """Whether a reason not to keep the results of a node is given for the first time."""
        with self.lock:
            known = (*where, reason) in self._warned
            self._warned.add((*where, reason))
        return not known


class ModuleFrame:
    """One attempt: the modules that it calls are looked up. A `CallInterceptor`.

    Attributes:
        spared: how many calls were spared.
        made: how many were made.
        stored: the keys of what was stored.
    """

    def __init__(self, results: ModuleResults, call: Call, layer: str, fresh: bool = False) -> None:
        self.spared = self.made = 0
        self.stored: list[str] = []
        self._results = results
        self._call = call
        self._layer = layer
        self._fresh = fresh
        self._session = call.runner.session

    def attempted(self, attempt: Callable[[Call], Script[T]]) -> Script[T]:
        """The attempt with its steps in this frame. If it fails, what it has stored is removed."""
        try:
            return (yield from wrapped(attempt(self._call), partial(_InFrame, self)))
        except Exception:
            if self.stored:
                yield DiskStep(self._results.cache.remove, tuple(self.stored)), self._call
            raise

    def ended(self, found: T, from_cache: Callable[[T], T] | None, around: Any) -> T:
        """The result of the attempt, marked if the cache had all that its modules return."""
        if isinstance(around, ModuleFrame) and around._session is self._session:  # of an item, in that of its map
            with self._results.lock:
                around.spared += self.spared
                around.made += self.made
        return from_cache(found) if from_cache is not None and self.spared and not self.made else found

    # --- what modules are called through

    def call_module(self, module: dspy.Module, inputs: Mapping[str, Any]) -> Any:
        """What a module returns, in sync code."""
        return run_script(self._script(module, inputs))

    async def acall_module(self, module: dspy.Module, inputs: Mapping[str, Any]) -> Any:
        """The same in async code."""
        return await arun_script(self._script(module, inputs))

    def _script(self, module: dspy.Module, inputs: Mapping[str, Any]) -> Script[Any]:
        call, results = self._call, self._results
        if next(predictors_in(module, graphs=True), None) is None:
            return (yield _ModuleCall(module, inputs), call)
        where = (self._session.graph.name, self._name(module))
        attempt = call.context.delegate
        asked = attempt.host.records.new_responses.get(RecordKey(attempt.local_id, self._layer), 0)
        try:
            key, described = results.describer.key_of(where, module, inputs, STRIDE * asked)
        except Exception as error:  # noqa: BLE001 - whatever the module holds: it is called as without a cache
            self.warn("its results are not kept", error, where)
            return (yield from self._made(None, where, module, inputs))
        look = _Lookup(self, key, described, where, module, inputs)
        if asked or self._fresh:
            return (yield from self._made(look, where, module, inputs))
        while True:
            flight, leads = join_flight(results.cache, key, None)
            if leads:
                try:
                    found: Any = yield Lead(flight, self._leader(look, flight)), call
                finally:
                    flight.abandon()
                return found
            has_outcome: bool = yield Follow(flight), call
            if has_outcome:
                spared = None if flight.entry is None else look.used(flight.entry)
                return (yield from self._made(look, where, module, inputs)) if spared is None else spared[0]

    def _leader(self, look: _Lookup, flight: Flight) -> Script[Any]:
        entry: bytes | None = yield DiskStep(self._results.cache.read, look.key, None), self._call
        found = None if entry is None else look.used(entry)
        if found is not None:
            flight.entry = entry
            return found[0]
        result = yield from self._made(look, look.where, look.module, look.inputs)
        flight.entry = look.entry
        return result

    def _made(
        self, look: _Lookup | None, where: tuple[str, str], module: dspy.Module, inputs: Mapping[str, Any]
    ) -> Script[Any]:
        """What the module returns when it is called; stored if there is a key."""
        before = step_count()
        result = yield _ModuleCall(module, inputs), self._call
        steps = steps_since(before)
        self.made += 1
        self._results.count(where, False, len(steps))
        if look is not None and look.encode(result, steps):
            assert look.entry is not None
            self.stored.append(look.key)
            yield DiskStep(self._results.cache.write, look.key, look.entry, None), self._call
        return result

    def _name(self, module: dspy.Module) -> str:
        """The name of the node, router or condenser that a module is."""
        attributes = vars(self._call.program).items()
        return next((name for name, value in attributes if value is module), self._call.context.node)

    def warn(self, text: str, error: Exception, where: tuple[str, str] | None = None) -> None:
        """Logs why the cache does not help: once per node and reason as a warning, then for debugging."""
        where = where or (self._session.graph.name, self._call.context.node)
        shown = self._session.events.shown(error)
        own = isinstance(error, NoKeyError | StateError)
        reason = f"{text}: {shown}" if own else f"{text}: {type(shown).__name__}: {shown}"
        level = logging.WARNING if self._results.is_new(where, text) else logging.DEBUG
        logger.log(level, "optimize.cache, node %r: %s", where[1], reason)
        error.__traceback__ = None  # its frames refer to the run, which would wait for the cyclic garbage collector


class _Lookup:
    """One look of a frame into the cache.

    Attributes:
        described: what the module and its inputs were before the call.
        entry: the entry of what the module returned; None if it cannot be kept.
    """

    def __init__(
        self,
        frame: ModuleFrame,
        key: str,
        described: Any,
        where: tuple[str, str],
        module: dspy.Module,
        inputs: Mapping[str, Any],
    ) -> None:
        self.key = key
        self.described = described
        self.where = where
        self.module = module
        self.inputs = inputs
        self.entry: bytes | None = None
        self._frame = frame
        self._schema = frame._session.graph.topology.schema

    def used(self, entry: bytes) -> tuple[Any] | None:
        """What an entry gives, its steps added to the trace; None if it cannot be read."""
        try:
            result, steps = decode_result(entry, self.module, self.inputs, self._schema)
        except Exception as error:  # noqa: BLE001 - whatever is in the file, it fails no run
            self._frame.warn("a result in the cache cannot be read, so the module is called", error, self.where)
            return None
        append_to_trace(steps)
        self._frame.spared += 1
        self._frame._results.count(self.where, True, len(steps))
        return (result,)

    def encode(self, result: Any, steps: Any) -> bool:
        """Makes the entry of what the module returned, if it can be kept."""
        try:
            if not steps:
                raise StateError("it called no predictor of its own")
            if self._frame._results.describer.call_of(self.module, self.inputs) != self.described:
                raise StateError(
                    "a call changes the module, its inputs, or a variable that its code uses, so the next one may give "
                    "something else"
                )
            entry = encode_result(result, steps, self.module, self.inputs)
            again = decode_result(entry, self.module, self.inputs, self._schema)
            if encode_result(*again, self.module, self.inputs) != entry:
                raise StateError("JSON changes what it returned")
        except Exception as error:  # noqa: BLE001 - the result is good, it only cannot be kept
            self._frame.warn("its results are not kept", error, self.where)
            return False
        self.entry = entry
        return True


# --- steps


class _InFrame(NamedTuple):
    """A step within a frame."""

    frame: ModuleFrame
    step: Step

    def call(self, call: Call) -> Any:
        with intercepted_by(self.frame):
            return self.step.call(call)

    async def acall(self, call: Call) -> Any:
        with intercepted_by(self.frame):
            return await self.step.acall(call)


class _Uncached(NamedTuple):
    """A step of a node with `cache=False`, outside of the block."""

    step: Step

    def call(self, call: Call) -> Any:
        with intercepted_by(None), asking_for(results=None):
            return self.step.call(call)

    async def acall(self, call: Call) -> Any:
        with intercepted_by(None), asking_for(results=None):
            return await self.step.acall(call)


class _ModuleCall(NamedTuple):
    """The call of a module itself. What it calls has frames of its own."""

    module: dspy.Module
    inputs: Mapping[str, Any]

    def call(self, call: Call) -> Any:
        del call
        with intercepted_by(None):
            return module_called(self.module, self.inputs)

    async def acall(self, call: Call) -> Any:
        del call
        with intercepted_by(None):
            return await amodule_called(self.module, self.inputs)
