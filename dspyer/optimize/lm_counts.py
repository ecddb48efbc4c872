"""Counting the LM calls of a program where they are made: each one for the node whose module made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

import dspy

from dspyer.events import LMCall
from dspyer.ids import outermost_execution
from dspyer.lm.not_public import CALLERS
from dspyer.lm.parameters import walk_parameters
from dspyer.lm.tap import Subscriber, TappedCall, subscribing
from dspyer.lm.tracing import Executing
from dspyer.optimize.components import nodes_by_part, only_graph
from dspyer.runtime.program import CompiledGraph


class LMCounts(Subscriber):
    """The LM calls of a block. May be used from several threads.

    Args:
        programs: the ids of the programs with the nodes: a metric may call others.

    Attributes:
        made: the calls that no cache of DSPy served, failed ones too, by node; "" for those of no node.
        cached: those that a cache of DSPy served.
    """

    def __init__(self, programs: Container[int] = ()) -> None:
        self._programs = programs
        self.made: Counter[str] = Counter()
        self.cached: Counter[str] = Counter()
        self._nodes: dict[int, _Nodes] = {}  # by program, which is kept
        self._lock = Lock()

    def ended(self, call: TappedCall) -> None:
        """Count a call that has ended."""
        hit = getattr((call.entry or {}).get("response"), "cache_hit", None)
        if hit is None:  # DSPy gives the responses of its caches no usage
            hit = not call.usages and bool(getattr(call.lm, "cache", False))
        with self._lock:
            counts = self.cached if hit and call.error is None else self.made
            counts[self._node(call.callers, call.execution)] += 1

    def returned(self, calls: Sequence[LMCall], program: Any, nodes: Mapping[str, str]) -> None:
        """Count the calls that a worker of an executor has made for a program."""
        predictors, callers = dict(walk_parameters(program)), dspy.settings.get(CALLERS) or []
        for call in calls:
            execution = outermost_execution(call.execution)
            running = nodes.get(execution, call.node)
            inner = predictors.get(call.predictor) if execution == call.execution else vars(program).get(running)
            counts = self.made if call.requests else self.cached
            with self._lock:
                counts[self._node([*callers, program, inner], Executing(execution, running, program))] += 1

    def _node(self, callers: Sequence[Any], here: Executing) -> str:
        """The node that calls: that of the innermost calling module which its program has, else the one that runs."""
        root = next((one for one in callers if id(one) in self._programs), None)
        if root is None:
            return ""
        known = self._nodes.get(id(root))
        if known is None:
            known = self._nodes[id(root)] = _Nodes(root, only_graph(root), nodes_by_part(root))
        nodes = next((known.of_part[id(one)] for one in reversed(callers) if id(one) in known.of_part), ())
        running = here.node if here.program is known.graph is not None else ""
        return running if running in nodes or not nodes else nodes[0]


class _Nodes(NamedTuple):
    """The nodes of a program, by the ids of their modules and predictors."""

    program: dspy.Module
    graph: CompiledGraph | None
    of_part: dict[int, tuple[str, ...]]


@contextmanager
def counting_lm_calls(programs: Container[int] = ()) -> Iterator[LMCounts]:
    """Count the LM calls of a block, in all its threads, by the nodes of the programs with these ids."""
    counts = LMCounts(programs)
    with dspy.context(**subscribing(counts)):
        yield counts
