"""`CountingAdapter`: DSPy's adapter for `gepa`, whose calls are counted, and a repeated proposal asked for anew."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import dspy

from dspyer import CompiledGraph
from dspyer.errors import error_text, needs_new_response
from dspyer.lm.parameters import modules_in, walk
from dspyer.lm.requests import STRIDE
from dspyer.optimize.gepa_stats import GEPAStats

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


def only_graph(program: dspy.Module) -> CompiledGraph | None:
    """The graph of a program, if it has just one, those inside of it not counted."""
    if isinstance(program, CompiledGraph):
        return program
    graphs = [part for _, part in modules_in(program) if isinstance(part, CompiledGraph)]
    inner = {id(part) for graph in graphs for _, part in modules_in(graph) if part is not graph}
    outer = [graph for graph in graphs if id(graph) not in inner]
    return outer[0] if len(outer) == 1 else None


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
        """The result of `make`, whose runs are counted."""
        # Before they are made: a run that raises has been paid for.
        self._stats.metric_calls += runs
        made = make()
        self._stats.failed_runs += sum(_has_failed(output) for batch in made for output in batch.outputs)
        return made

    # --- proposals

    def make_reflective_dataset(self, candidate: Candidate, eval_batch: Any, components_to_update: list[str]) -> Any:
        """The records for the reflection LM; none for no component."""
        if not components_to_update:
            return {}
        with self._reflecting():  # the metric is asked for feedback
            return self.inner.make_reflective_dataset(candidate, eval_batch, components_to_update)

    def propose_new_texts(
        self, candidate: Candidate, reflective_dataset: Mapping[str, Any], components_to_update: list[str]
    ) -> dict[str, str]:
        """New texts for components; with another rollout id, if they were proposed for these records before."""
        if not components_to_update:
            return {}
        # By what the reflection LM is shown, and not by the number of the iteration: a run that goes on from `log_dir`
        # asks as the one before did.
        key = blake2b(repr((sorted(candidate.items()), reflective_dataset)).encode(), digest_size=16).hexdigest()
        proposer, repeats = self._proposer, self._proposed[key] if self.anew else 0
        if repeats:
            self._stats.repeated += 1
            proposer = copy.copy(proposer)
            proposer.reflection_lm = _asking_anew(proposer.reflection_lm, repeats)
        with self._reflecting():
            try:
                texts: dict[str, str] = proposer.propose_new_texts(
                    dict(candidate), reflective_dataset, components_to_update
                )
            except Exception as error:  # `gepa` asks once more: as before, but for an unusable response
                self._proposed[key] += needs_new_response(error)
                raise
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
