"""Counting the LM calls of a program where they are made: each one for the node whose module made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.callback_context import ACTIVE_CALL_ID

from dspyer.dspy_module.lm_records import with_lm_callback
from dspyer.optimize.components import nodes_by_part


class LMCounts(BaseCallback):
    """The LM calls of a block. May be used from several threads.

    To DSPy it is a callback, and a module that calls: DSPy puts an entry into the history of each of those.

    Attributes:
        made: the calls that no cache of DSPy answered, failed ones too, by node; "" for those of no node.
        cached: those that a cache of DSPy answered.
        history: where DSPy appends entries; it stays empty.
    """

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.cached: Counter[str] = Counter()
        self.history: Any = _NotedHistory(self._entry)
        self._begun: dict[str, tuple[str, Any]] = {}
        self._answered: set[str] = set()  # by a cache
        self._nodes: dict[int, tuple[dspy.Module, dict[int, str]]] = {}  # by program, which is kept
        self._lock = Lock()

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note that a call begins."""
        del inputs
        self._begun[call_id] = (self._node(), instance)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Count a call that has ended."""
        del outputs, exception
        node, _ = self._begun.pop(call_id, ("", None))
        with self._lock:
            counts = self.cached if call_id in self._answered else self.made
            self._answered.discard(call_id)
            counts[node] += 1

    def _entry(self, entry: Mapping[str, Any]) -> None:
        call_id = ACTIVE_CALL_ID.get() or ""
        if call_id not in self._begun:
            return
        hit = getattr(entry.get("response"), "cache_hit", None)
        if hit is None:  # DSPy gives the responses of its caches no usage
            hit = not entry.get("usage") and bool(getattr(self._begun[call_id][1], "cache", False))
        if hit:
            with self._lock:
                self._answered.add(call_id)

    def _node(self) -> str:
        """The node that calls: that of the innermost calling module which its program has."""
        callers = list(dspy.settings.caller_modules or ())
        callers = callers[callers.index(self) + 1 :] if self in callers else []
        root = next((one for one in callers if isinstance(one, dspy.Module)), None)
        if root is None:
            return ""
        known = self._nodes.get(id(root))
        if known is None:
            known = self._nodes[id(root)] = (root, nodes_by_part(root))
        return next((known[1][id(one)] for one in reversed(callers) if id(one) in known[1]), "")


class _NotedHistory(list[Any]):
    """A history that passes each entry on and keeps none."""

    def __init__(self, note: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._note = note

    def append(self, entry: Mapping[str, Any]) -> None:
        self._note(entry)


@contextmanager
def counting_lm_calls() -> Iterator[LMCounts]:
    """Count the LM calls of a block, in all its threads."""
    counts, settings = LMCounts(), dspy.settings
    with dspy.context(
        caller_modules=[*(settings.caller_modules or []), counts],
        callbacks=with_lm_callback(settings.callbacks or [], counts),
    ):
        yield counts
