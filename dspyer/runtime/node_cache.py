"""The cache of a node: the layer around its retry loop (see `execution`).

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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import dspy

from dspyer import clock
from dspyer.dspy_module.not_public import CACHE_FOLDER, default_cache_dir
from dspyer.dspy_module.tracing import step_count
from dspyer.nodes.cache_key import key_of
from dspyer.nodes.node import Call, Node, Reply
from dspyer.nodes.node_policy import CachePlan
from dspyer.nodes.steps import Script
from dspyer.persistence.patch_cache import (
    CachedPatch,
    Flight,
    PatchCache,
    cache_in,
    decode_patch,
    encode_patch,
    join_flight,
)
from dspyer.runtime.cache_steps import DiskStep, Follow, Lead
from dspyer.values.frozen import thaw

logger = logging.getLogger("dspyer")

T = TypeVar("T")
Warn = Callable[..., None]
Capture = Callable[[Reply], Reply]
"""Is given what each attempt of the node returned, and returns what to validate and commit."""


def cached(
    plan: CachePlan,
    node: Node,
    folder: str | None,
    decode: Callable[[Any], Any],
    call: Call,
    use: Callable[[Reply], T],
    make: Callable[[Capture | None], Script[T]],
) -> Script[tuple[T, bool]]:
    """The output of a node, and whether it came from the cache.

    `decode` reads the values of entries, `use` validates what an entry holds, `make` calls the node, with its retries.
    """
    warn = partial(_warn, plan, call)
    try:
        key = key_of(plan, node, call)
    except Exception as error:  # noqa: BLE001 - if what the node reads is wrong, its call raises the same
        warn("what it reads gives no key, so nothing is kept", error)
        return (yield from make(None)), False
    look = _Look(plan, cache_in(folder or default_folder()), key, decode, warn)
    while True:
        flight, leads = join_flight(look.cache, key, plan.ttl)
        if leads:
            try:
                found: tuple[T, bool] = yield Lead(flight, _leader(look, flight, use, make, call)), call
            finally:
                flight.abandon()  # no follower waits for a script that is closed before its step
            return found
        has_outcome: bool = yield Follow(flight), call
        if has_outcome:
            output = None if flight.entry is None else look.used(flight.entry, use)
            if output is not None:
                return output, True
            return (yield from make(None)), False


def _leader(
    look: _Look, flight: Flight, use: Callable[[Reply], T], make: Callable[[Capture | None], Script[T]], call: Call
) -> Script[tuple[T, bool]]:
    """Looks the key up; without an entry that can be used, calls the node and stores what it returned."""
    entry: bytes | None = yield DiskStep(look.cache.read, look.key, look.plan.ttl), call
    found = None if entry is None else look.used(entry, use)
    if found is not None:
        flight.entry = entry
        return found, True
    steps = step_count()
    output = yield from make(look.capture)
    if look.entry is not None and step_count() > steps:
        look.warn("it called a predictor, which a result from the cache would leave out of the trace: it is not kept")
    elif look.entry is not None:
        flight.entry = look.entry
        yield DiskStep(look.cache.write, look.key, look.entry, look.plan.ttl), call
    return output, False


class _Look:
    """One look of an execution into the cache.

    Attributes:
        entry: what the last attempt returned, as an entry; None if it cannot be kept.
    """

    def __init__(self, plan: CachePlan, cache: PatchCache, key: str, decode: Callable[[Any], Any], warn: Warn) -> None:
        self.plan = plan
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

    def used(self, entry: bytes, use: Callable[[Reply], T]) -> T | None:
        """The output that an entry gives; None if it cannot be read, or the schema refuses it: then the node is called.

        The entry may be of another version of a class or of the schema.
        """
        try:
            return use(self._read_back(entry))
        except Exception as error:  # noqa: BLE001 - whatever is in the file, it fails no run
            self.warn("an entry cannot be used, so it is called", error)
            return None

    def _read_back(self, entry: bytes) -> Reply:
        # Plain copies, as the function returned them: pydantic accepts no frozen model in a plain dict.
        found = decode_patch(entry, lambda encoded: thaw(self._decode(encoded)))
        return Reply(found.updates, None, found.whole)


_warned: set[tuple[str, str]] = set()


def _warn(plan: CachePlan, call: Call, text: str, error: Exception | None = None) -> None:
    """Logs why the cache does not help: once per node and reason as a warning, then for debugging."""
    known = (plan.identity, text) in _warned
    _warned.add((plan.identity, text))
    shown = error if error is None else call.runner.session.events.shown(error)
    reason = text if shown is None else f"{text}: {type(shown).__name__}: {shown}"
    logger.log(logging.DEBUG if known else logging.WARNING, "cache of node %r: %s", plan.node, reason)
    if error is not None:
        error.__traceback__ = None  # its frames refer to the run, which would wait for the cyclic garbage collector


def default_folder() -> str:
    """The folder of node results in DSPy's cache folder: that of `dspy.configure_cache`, else of `DSPY_CACHEDIR`."""
    built = vars(dspy).get("cache")  # not `dspy.cache`, which would open DSPy's own files
    return str(Path(getattr(built, CACHE_FOLDER, None) or default_cache_dir(), "dspyer"))
