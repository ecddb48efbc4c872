"""`CountingAdapter`: DSPy's adapter for `gepa`, whose calls are counted, and a repeated proposal asked for anew."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import dspy

from dspyer import CompiledGraph, Failure
from dspyer.errors import error_text, needs_new_response
from dspyer.events import LMCall
from dspyer.extend import outermost_execution
from dspyer.lm.not_public import CALLERS
from dspyer.lm.parameters import modules_in, walk, walk_parameters
from dspyer.lm.requests import STRIDE
from dspyer.lm.tap import Subscriber, TappedCall, subscribing
from dspyer.lm.tracing import Executing
from dspyer.optimize.gepa_stats import GEPAStats
from dspyer.runtime.request import FAILED_RUNS

# What GEPA may edit of a program, its components: the predictors by name. And which nodes of the graph they are in.


class Components:
    """The components of a program and its nodes.

    A component is in the node whose module has its predictor, at any depth: `write.draft.predict` is in the node
    `write`, whose program has a node `draft`. A router and a condenser with a module count as nodes of their own. The
    graph may also be inside of a module that does more than call it. A component outside of the graph stands for
    itself; so does every component of a module with several graphs, or none.

    Attributes:
        nodes: the names of the nodes, in the order of the graph; of a program without one, the components.
        exact: whether the program is a graph, so that its run knows of everything that ran.
    """

    def __init__(self, program: dspy.Module, components: Iterable[str]) -> None:
        every = tuple(components)
        graph = only_graph(program)
        self.exact = graph is program
        if graph is None:
            self._in = {name: (name,) for name in every}
            self.nodes: tuple[str, ...] = every
            return
        names = {id(parameter): name for name, parameter in program.named_parameters() if name in every}
        modules = {name: part for name, part in vars(graph).items() if isinstance(part, dspy.Module)}
        self._in = {
            attribute: tuple(dict.fromkeys(names[id(part)] for _, part in walk(module) if id(part) in names))
            for attribute, module in modules.items()
        }
        inside = {name for names in self._in.values() for name in names}
        self._in |= {name: (name,) for name in every if name not in inside}
        self.nodes = tuple(dict.fromkeys([*graph.graph.nodes, *self._in]))

    @property
    def tunable(self) -> tuple[str, ...]:
        """The nodes with a component."""
        return tuple(node for node in self.nodes if self._in.get(node))

    def nodes_of(self, component: str) -> tuple[str, ...]:
        """The nodes that a component is in, several if they share it; of one outside of the graph, its own name."""
        return tuple(node for node, inside in self._in.items() if component in inside) or (component,)


def nodes_by_part(program: dspy.Module) -> dict[int, tuple[str, ...]]:
    """The nodes of each module and predictor of a program, by id; outside of the graph, the component."""
    graph = only_graph(program)
    found: dict[int, tuple[str, ...]] = {}
    for attribute, module in vars(graph).items() if graph is not None else ():
        if isinstance(module, dspy.Module):
            for _, part in modules_in(module):
                found[id(part)] = (*found.get(id(part), ()), attribute)
    return {id(parameter): (name,) for name, parameter in program.named_parameters()} | found


def only_graph(program: dspy.Module) -> CompiledGraph | None:
    """The graph of a program, if it has just one, those inside of it not counted."""
    if isinstance(program, CompiledGraph):
        return program
    graphs = [part for _, part in modules_in(program) if isinstance(part, CompiledGraph)]
    inner = {id(part) for graph in graphs for _, part in modules_in(graph) if part is not graph}
    outer = [graph for graph in graphs if id(graph) not in inner]
    return outer[0] if len(outer) == 1 else None


# Counting the LM calls of a program where they are made: each one for the node whose module made it.


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
            # A worker says how many requests it has made; one without any was answered by a cache.
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


Candidate = Mapping[str, str]


class CountingAdapter:
    """DSPy's adapter with another one around it, which counts; `gepa` calls this one.

    Attributes:
        inner: DSPy's adapter.
        components: the components of the program.
        anew: whether a proposal that comes up again, with the same records, is asked for with another rollout id.
    """

    def __init__(self, inner: Any, components: Components, stats: GEPAStats) -> None:
        self.inner = inner
        self.components = components
        self.anew = False
        self._stats = stats
        # A copy, so that another LM for one proposal is no LM of the adapter.
        self._proposer = copy.copy(inner)
        self._proposer.reflection_lm = inner.reflection_lm or dspy.settings.lm
        self._proposed: Counter[str] = Counter()
        self._programs: WeakValueDictionary[int, dspy.Module] = WeakValueDictionary()  # of candidates, by id
        build = inner.build_program

        def noting(candidate: Candidate) -> dspy.Module:
            program: dspy.Module = build(candidate)
            self._programs[id(program)] = program  # LM calls of other programs are none of a node
            return program

        inner.build_program = noting

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    # --- runs

    def evaluate(self, batch: list[Any], candidate: Candidate, capture_traces: bool = False) -> Any:
        """The scores of a candidate on a batch."""
        (made,) = self._made(len(batch), lambda: [self.inner.evaluate(batch, candidate, capture_traces=capture_traces)])
        return made

    def batch_evaluate(self, items: Sequence[tuple[Candidate, list[Any]]]) -> list[Any]:
        """The scores of several candidates, each on its batch."""
        return self._made(sum(len(batch) for _, batch in items), lambda: self.inner.batch_evaluate(items))

    def _made(self, runs: int, make: Callable[[], list[Any]]) -> list[Any]:
        """The result of `make`, whose runs and LM calls are counted."""
        # Before they are made: a run that raises has been paid for.
        self._stats.metric_calls += runs
        failed: list[list[Failure]] = []
        with dspy.context(**{FAILED_RUNS: failed}), self.counting():
            try:
                made = make()
            finally:
                for failure in itertools.chain(*failed):
                    self._stats.node(failure.node).failed += 1
        self._stats.failed_runs += sum(_has_failed(output) for batch in made for output in batch.outputs)
        return made

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A block whose LM calls are counted, those of the nodes of a candidate and all others."""
        with counting_lm_calls(self._programs) as counts:
            try:
                yield
            finally:
                self._stats.other_lm_calls += counts.made.pop("", 0)
                counts.cached.pop("", 0)
                for node, made in counts.made.items():
                    self._stats.node(node).lm_calls += made
                for node, cached in counts.cached.items():
                    self._stats.node(node).lm_cached += cached

    # --- proposals

    def make_reflective_dataset(self, candidate: Candidate, eval_batch: Any, components_to_update: list[str]) -> Any:
        """The records for the reflection LM; none for no component."""
        if not components_to_update:
            return {}
        with self.counting(), self._reflecting():  # the metric is asked for feedback, and may ask an LM
            return self.inner.make_reflective_dataset(candidate, eval_batch, components_to_update)

    def propose_new_texts(
        self, candidate: Candidate, reflective_dataset: Mapping[str, Any], components_to_update: list[str]
    ) -> dict[str, str]:
        """New texts for components; with another rollout id, if they were proposed for these records before."""
        if not components_to_update:
            return {}
        key = blake2b(repr((sorted(candidate.items()), reflective_dataset)).encode(), digest_size=16).hexdigest()
        proposer, repeats = self._proposer, self._proposed[key] if self.anew else 0
        if repeats:
            self._stats.repeated += 1
            proposer = copy.copy(proposer)
            proposer.reflection_lm = _asking_anew(proposer.reflection_lm, repeats)
        with counting_lm_calls() as counts, self._reflecting():
            try:
                texts: dict[str, str] = proposer.propose_new_texts(
                    dict(candidate), reflective_dataset, components_to_update
                )
            except Exception as error:  # `gepa` asks once more: as before, but for an unusable response
                self._proposed[key] += needs_new_response(error)
                raise
            finally:
                self._stats.reflection_calls += counts.made.total()
                self._stats.reflection_cached += counts.cached.total()
        self._proposed[key] += 1
        for name, text in texts.items():
            if text != candidate.get(name):
                for node in self.components.nodes_of(name):
                    self._stats.node(node).proposed += 1
        return texts

    @contextmanager
    def _reflecting(self) -> Iterator[None]:
        """A block that reflects: counts what it raises, after which `gepa` goes on and says so in a log alone."""
        try:
            yield
        except Exception as error:
            self._stats.reflection_errors += 1
            self._stats.reflection_error = f"{type(error).__name__}: {error_text(error)}"
            raise


def _has_failed(output: Any) -> bool:
    """Return whether a run or its metric raised: DSPy's evaluation gives an empty prediction for it, or none."""
    return not isinstance(output, dspy.Prediction) or not output.keys()


def _asking_anew(lm: Any, repeats: int) -> Any:
    """The LM with requests that differ from its own, and from those of other repeats."""
    if not isinstance(lm, dspy.BaseLM):
        return lm
    rollout, temperature = lm.kwargs.get("rollout_id") or 0, lm.kwargs.get("temperature")
    return lm.copy(rollout_id=rollout + STRIDE * repeats, temperature=temperature or 1.0)
