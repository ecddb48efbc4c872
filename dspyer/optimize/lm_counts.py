"""Counting the LM calls of a program where they are made: each one for the node whose module made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

import dspy

from dspyer.dspy_module.executing import Executing, executing
from dspyer.dspy_module.lm_records import with_lm_callback
from dspyer.dspy_module.not_public import (
    ACTIVE_CALL_ID,
    CALLERS,
    HISTORY_OFF,
    HISTORY_SIZE,
    TRACKER,
    BaseCallback,
    UsageTracker,
    calling_modules,
)
from dspyer.dspy_module.parameters import walk_parameters
from dspyer.events import LMCall
from dspyer.optimize.components import nodes_by_part, only_graph
from dspyer.runtime.program import CompiledGraph
from dspyer.scheduler.run_state import outermost_execution


class LMCounts(BaseCallback):
    """The LM calls of a block. May be used from several threads.

    To DSPy it is a callback, and a module that calls: DSPy puts an entry into the history of each of those. Where the
    history is turned off, a usage tracker says which calls no cache served.

    Args:
        programs: the ids of the programs with the nodes: a metric may call others.

    Attributes:
        made: the calls that no cache of DSPy served, failed ones too, by node; "" for those of no node.
        cached: those that a cache of DSPy served.
        history: where DSPy appends entries; it stays empty.
    """

    def __init__(self, programs: Container[int] = ()) -> None:
        self._programs = programs
        self.made: Counter[str] = Counter()
        self.cached: Counter[str] = Counter()
        self.history: Any = _NotedHistory(self._entry)
        self._begun: dict[str, tuple[str, Any]] = {}
        self._used: set[str] | None = None  # calls with usage, if that is how they are told from those of a cache
        self._served: set[str] = set()  # by a cache
        self._nodes: dict[int, _Nodes] = {}  # by program, which is kept
        self._lock = Lock()

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note that a call begins."""
        del inputs
        self._begun[call_id] = (self._node(), instance)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Count a call that has ended."""
        del outputs
        node, _ = self._begun.pop(call_id, ("", None))
        known = exception is None and isinstance(dspy.settings.get(TRACKER), _NotedUsage)
        with self._lock:
            unused = known and self._used is not None and call_id not in self._used
            counts = self.cached if unused or call_id in self._served else self.made
            self._served.discard(call_id)
            counts[node] += 1

    def by_usage(self) -> UsageTracker:
        """A usage tracker by which the calls of the block are told from those of a cache."""
        self._used = used = set[str]()
        return _NotedUsage(used)

    def _entry(self, entry: Mapping[str, Any]) -> None:
        call_id = ACTIVE_CALL_ID.get() or ""
        if call_id not in self._begun:
            return
        hit = getattr(entry.get("response"), "cache_hit", None)
        if hit is None:  # DSPy gives the responses of its caches no usage
            hit = not entry.get("usage") and bool(getattr(self._begun[call_id][1], "cache", False))
        if hit:
            with self._lock:
                self._served.add(call_id)

    def take_lm_calls(self, program: Any, calls: Sequence[LMCall], nodes: Mapping[str, str]) -> None:
        """Count the calls that a worker of an executor has made for a program."""
        predictors = dict(walk_parameters(program))
        for call in calls:
            execution = outermost_execution(call.execution)
            running = nodes.get(execution, call.node)
            inner = predictors.get(call.predictor) if execution == call.execution else vars(program).get(running)
            counts = self.made if call.requests else self.cached
            with self._lock:
                counts[self._node([program, inner], Executing(execution, running, program))] += 1

    def _node(self, further: Sequence[Any] = (), here: Executing | None = None) -> str:
        """The node that calls: that of the innermost calling module which its program has, else the one that runs."""
        callers = [*calling_modules(), *further]
        root = next((one for one in callers if id(one) in self._programs), None)
        if root is None:
            return ""
        known = self._nodes.get(id(root))
        if known is None:
            known = self._nodes[id(root)] = _Nodes(root, only_graph(root), nodes_by_part(root))
        nodes = next((known.of_part[id(one)] for one in reversed(callers) if id(one) in known.of_part), ())
        here = here or executing.get()
        running = here.node if here is not None and here.program is known.graph is not None else ""
        return running if running in nodes or not nodes else nodes[0]


class _Nodes(NamedTuple):
    """The nodes of a program, by the ids of their modules and predictors."""

    program: dspy.Module
    graph: CompiledGraph | None
    of_part: dict[int, tuple[str, ...]]


class _NotedHistory(list[Any]):
    """A history that passes each entry on and keeps none."""

    def __init__(self, note: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._note = note

    def append(self, entry: Mapping[str, Any]) -> None:
        self._note(entry)


class _NotedUsage(UsageTracker):
    """A usage tracker that notes which calls have usage, and keeps none."""

    def __init__(self, used: set[str]) -> None:
        super().__init__()
        self._used = used

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        """Note the call: DSPy gives the usage of responses that no cache gave."""
        del lm, usage_entry
        self._used.add(ACTIVE_CALL_ID.get() or "")

    def __deepcopy__(self, memo: dict[int, Any]) -> _NotedUsage:
        return self  # `dspy.Parallel` gives each thread a copy


@contextmanager
def counting_lm_calls(programs: Container[int] = ()) -> Iterator[LMCounts]:
    """Count the LM calls of a block, in all its threads, by the nodes of the programs with these ids."""
    counts, settings = LMCounts(programs), dspy.settings
    further: dict[str, Any] = {}
    without_history = settings.get(HISTORY_OFF) or settings.get(HISTORY_SIZE) == 0
    if without_history and settings.get(TRACKER) is None and not settings.track_usage:
        further[TRACKER] = counts.by_usage()
    with dspy.context(
        **{**further, CALLERS: [*calling_modules(), counts]},
        callbacks=with_lm_callback(settings.callbacks or [], counts),
    ):
        yield counts
