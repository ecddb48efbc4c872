"""`NodeCache`: the layer that keeps the results of a node on disk, around all its attempts.

An execution computes its key from what it reads. If another execution of this process has the same key, it follows that
one. Else it leads: it looks the key up, and without an entry it calls the node and stores what that returned. The entry
holds what the node returned, not the patch that was committed: that one is the net change of one state. So an entry is
validated and folded each time, as if the node had just returned it.

The leader commits what it has read back from its entry: a value that JSON changes is the same in the first run and in
all later ones. Whatever cannot be kept is committed as it is, and a warning says why it is not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import dspy

from dspyer import clock
from dspyer.dspy_module.not_public import CACHE_FOLDER, default_cache_dir
from dspyer.dspy_module.tracing import step_count
from dspyer.layers.cache_key import CachePlan, key_of
from dspyer.layers.cache_steps import DiskStep, Follow, Lead
from dspyer.layers.layer import Inner, Layer, Place, replies
from dspyer.layers.patch_cache import (
    CachedPatch,
    Flight,
    PatchCache,
    cache_in,
    decode_patch,
    encode_patch,
    join_flight,
)
from dspyer.nodes.node import Call, Node, Output, Reply
from dspyer.nodes.steps import Script
from dspyer.schema.schema import Schema
from dspyer.values.frozen import thaw
from dspyer.values.json import decoder
from dspyer.values.named_classes import held_classes

logger = logging.getLogger("dspyer")

Warn: TypeAlias = Callable[..., None]


class NodeCache(Layer):
    """The cache of one node: the layer of `add_node(cache=)`."""

    __slots__ = ("_node", "_plan")
    place: ClassVar[Place] = "cache"

    def __init__(self, plan: CachePlan, node: Node) -> None:
        self._plan = plan
        self._node = node

    @property
    def note(self) -> str:
        """How `explain()` names it."""
        return "cached" if self._plan.ttl is None else f"cached for {self._plan.ttl:g} s"

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The output that the cache holds, else that of `inner`, which the cache keeps."""
        plan = self._plan
        warn = partial(_warn, plan, call)
        try:
            key = key_of(plan, self._node, call)
        except Exception as error:  # noqa: BLE001 - if what the node reads is wrong, its call raises the same
            warn("what it reads gives no key, so nothing is kept", error)
            return (yield from inner(call))
        decode = _decoder(call.runner.session.graph.topology.schema)
        look = _Look(plan, cache_in(plan.folder or default_folder()), key, decode, call, warn)
        while True:
            flight, leads = join_flight(look.cache, key, plan.ttl)
            if leads:
                try:
                    found: Output = yield Lead(flight, _leader(look, flight, inner)), call
                finally:
                    flight.abandon()  # no follower waits for a script that is closed before its step
                return found
            has_outcome: bool = yield Follow(flight), call
            if has_outcome:
                output = None if flight.entry is None else look.used(flight.entry)
                return output or (yield from inner(call))


@lru_cache(maxsize=128)
def _decoder(schema: Schema) -> Callable[[Any], Any]:
    """Reads the values of cache entries: the classes that the schema names are searched for once."""
    return decoder(() if schema.model is None else held_classes(schema.model))


def _leader(look: _Look, flight: Flight, inner: Inner) -> Script[Output]:
    """Looks the key up; without an entry that can be used, calls the node and stores what it returned."""
    call = look.call
    entry: bytes | None = yield DiskStep(look.cache.read, look.key, look.plan.ttl), call
    found = None if entry is None else look.used(entry)
    if found is not None:
        flight.entry = entry
        return found
    steps = step_count()
    output: Output = yield from inner(replies(call, look.capture))
    if look.entry is not None and step_count() > steps:
        look.warn("it called a predictor, which a result from the cache would leave out of the trace: it is not kept")
    elif look.entry is not None:
        flight.entry = look.entry
        yield DiskStep(look.cache.write, look.key, look.entry, look.plan.ttl), call
    return output


class _Look:
    """One look of an execution into the cache.

    Attributes:
        entry: what the last attempt returned, as an entry; None if it cannot be kept.
    """

    def __init__(
        self, plan: CachePlan, cache: PatchCache, key: str, decode: Callable[[Any], Any], call: Call, warn: Warn
    ) -> None:
        self.plan = plan
        self.call = call
        self.cache = cache
        self.key = key
        self.warn = warn
        self.entry: bytes | None = None
        self._decode = decode

    def capture(self, reply: Reply) -> Reply:
        """Encodes what the node returned; returns it as it reads from its entry."""
        self.entry = None
        try:
            entry = encode_patch(CachedPatch(reply.updates, reply.whole, clock.wall()))
            found = self._read_back(entry)
        except Exception as error:  # noqa: BLE001 - the result is good, it only has no JSON form that can be read
            self.warn("what it returned cannot be kept", error)
            return reply
        self.entry = entry
        return found

    def used(self, entry: bytes) -> Output | None:
        """The output that an entry gives; None if it cannot be read, or the schema refuses it: then the node is called.

        The entry may be of another version of a class or of the schema.
        """
        try:
            output: Output = self.call.reply(self._read_back(entry))
        except Exception as error:  # noqa: BLE001 - whatever is in the file, it fails no run
            self.warn("an entry cannot be used, so it is called", error)
            return None
        return output._replace(cached=True)

    def _read_back(self, entry: bytes) -> Reply:
        # Plain copies, as the function returned them: pydantic accepts no frozen model in a plain dict.
        found = decode_patch(entry, lambda encoded: thaw(self._decode(encoded)))
        return Reply(found.updates, None, found.whole)


_warned: set[tuple[str, str]] = set()


def _warn(plan: CachePlan, call: Call, text: str, error: Exception | None = None) -> None:
    """Logs why the cache does not help: once per node and reason as a warning, then for debugging."""
    known = (plan.identity, text) in _warned
    _warned.add((plan.identity, text))
    shown = error if error is None else call.runner.session.layers.shown(error)
    reason = text if shown is None else f"{text}: {type(shown).__name__}: {shown}"
    logger.log(logging.DEBUG if known else logging.WARNING, "cache of node %r: %s", plan.node, reason)
    if error is not None:
        error.__traceback__ = None  # its frames refer to the run, which would wait for the cyclic garbage collector


def default_folder() -> str:
    """The folder of node results in DSPy's cache folder: that of `dspy.configure_cache`, else of `DSPY_CACHEDIR`."""
    built = vars(dspy).get("cache")  # not `dspy.cache`, which would open DSPy's own files
    return str(Path(getattr(built, CACHE_FOLDER, None) or default_cache_dir(), "dspyer"))
